//! The rendering of rows, whatever their columns hold: a subject that NATS takes and that its
//! pattern covers, each value in its own token and readable again, and headers that nothing in a
//! value can add to.

use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use jetstream::covers;
use outbox::{
    Action, DeadLetter, EpochStart, OutboxSpec, Outgoing, Relay, RelaySettings, Role, SessionStart,
    Source, Tail, Template, Writers, header, is_header_name,
};
use pgoutput::{Frame, Lsn};
use postrider::config::template::check_subject;

use crate::input::Input;

const RELATION: u32 = 16_385;

/// The columns of the table, `bytea` or text by the input's choice. The last one is mapped to a
/// header of its own.
const COLUMNS: [&str; 9] = [
    "id",
    "aggregate_id",
    "type",
    "payload",
    "headers",
    "created_at",
    "aggregate_type",
    "topic",
    "tenant",
];
const TYPE: usize = 2;

const OID_BYTEA: u32 = 17;
const OID_TEXT: u32 = 25;
const OID_JSONB: u32 = 3_802;

/// The input: choices, a template, and a value for each column.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.byte();
    let payload_oid = [OID_JSONB, OID_TEXT, OID_BYTEA][usize::from(choice) % 3];
    let with_topic = choice & 0x10 != 0;
    let template = input.text();
    let mut spec = OutboxSpec::new("public", "outbox");
    spec.headers = vec![("X-Tenant".to_owned(), "tenant".to_owned())];
    let mut pattern = None;
    if choice & 0x20 != 0 {
        // The value stands alone in its token, so it can be read again.
        spec.subject = Template::parse("a.{type}.z").ok();
    } else if check_subject(&template).is_ok() {
        spec.subject = Template::parse(&template).ok();
        pattern = Some(spec.subject_pattern());
    }
    if !with_topic {
        spec.columns = vec![(Role::Topic, "tenant".to_owned())];
    }
    let values: Vec<Option<&[u8]>> = (0..COLUMNS.len()).map(|_| value(&mut input)).collect();

    let (rows, letters) = publish(spec, payload_oid, &values);
    for row in &rows {
        check_subject_of(row, pattern.as_deref());
        check_headers(row.headers.as_block());
        assert!(
            row.headers
                .get(header::MSG_ID)
                .is_some_and(|id| !id.is_empty())
        );
        if choice & 0x20 != 0 {
            let token = row
                .subject
                .strip_prefix(b"a.")
                .and_then(|rest| rest.strip_suffix(b".z"));
            assert_eq!(
                token.map(decoded),
                Some(values[TYPE].unwrap_or_default().to_vec())
            );
        }
        if payload_oid != OID_BYTEA {
            assert_eq!(row.payload, values[3].unwrap_or_default());
        }
    }
    for letter in &letters {
        check_headers(letter.headers.as_block());
        assert!(!letter.reason.to_string().is_empty());
    }
    assert!(rows.len() + letters.len() <= 1);
}

fn value<'a>(input: &mut Input<'a>) -> Option<&'a [u8]> {
    match input.byte() {
        0 => None,
        // A long one, for the limits.
        255 => Some(std::mem::take(&mut input.0)),
        length => {
            let (taken, rest) = input.0.split_at(usize::from(length).min(input.0.len()));
            input.0 = rest;
            Some(taken)
        }
    }
}

/// One row through the machine.
fn publish(
    spec: OutboxSpec,
    payload_oid: u32,
    values: &[Option<&[u8]>],
) -> (Vec<Outgoing>, Vec<DeadLetter>) {
    let now = Instant::now();
    let mut relay = Relay::new(RelaySettings::new(vec![spec]), now);
    relay.handle_time(now);
    while relay.poll_action().is_some() {}
    relay.handle_session_started(
        now,
        SessionStart {
            source: Source {
                system_identifier: 7,
                timeline: 1,
                database: "shop".to_owned(),
                slot: "postrider".to_owned(),
            },
            forks: Vec::new(),
            log_end: Lsn::new(1_000),
            confirmed_flush: Lsn::new(1),
        },
    );
    relay.handle_time(now);
    while let Some(action) = relay.poll_action() {
        if let Action::OpenEpoch { epoch } = action {
            let start = EpochStart {
                writers: Writers::Exclusive,
                created_unix_nanos: 1,
                last_sequence: 0,
                tail: Tail::Empty,
                max_message_bytes: 1 << 20,
            };
            relay.handle_epoch_started(now, epoch, start);
        }
    }
    let mut frames = BytesMut::new();
    for data in [
        begin(&mut frames),
        relation(&mut frames, payload_oid),
        insert(&mut frames, values),
    ] {
        let frame = Frame::WalData {
            start: Lsn::new(100),
            server_time_micros: 0,
            data,
        };
        relay.handle_wal(now, frame);
    }
    let (mut rows, mut letters) = (Vec::new(), Vec::new());
    rows.extend(relay.poll_publish(now));
    while let Some(action) = relay.poll_action() {
        if let Action::Park(letter) = action {
            letters.push(*letter);
        }
    }
    while let Some(notice) = relay.poll_notice() {
        assert!(!notice.to_string().is_empty());
    }
    (rows, letters)
}

fn begin(out: &mut BytesMut) -> Bytes {
    out.put_u8(b'B');
    out.put_u64(100);
    out.put_i64(0);
    out.put_u32(700);
    out.split().freeze()
}

fn relation(out: &mut BytesMut, payload_oid: u32) -> Bytes {
    out.put_u8(b'R');
    out.put_u32(RELATION);
    out.put_slice(b"public\0outbox\0d");
    out.put_u16(u16::try_from(COLUMNS.len()).unwrap());
    for name in COLUMNS {
        out.put_u8(0);
        out.put_slice(name.as_bytes());
        out.put_u8(0);
        out.put_u32(if name == "payload" {
            payload_oid
        } else {
            OID_TEXT
        });
        out.put_i32(-1);
    }
    out.split().freeze()
}

fn insert(out: &mut BytesMut, values: &[Option<&[u8]>]) -> Bytes {
    out.put_u8(b'I');
    out.put_u32(RELATION);
    out.put_u8(b'N');
    out.put_u16(u16::try_from(values.len()).unwrap());
    for value in values {
        match value {
            None => out.put_u8(b'n'),
            Some(bytes) => {
                out.put_u8(b't');
                out.put_u32(u32::try_from(bytes.len()).unwrap());
                out.put_slice(bytes);
            }
        }
    }
    out.split().freeze()
}

/// NATS takes it, it is nobody else's, and the pattern that `setup` gives the stream covers it.
fn check_subject_of(row: &Outgoing, pattern: Option<&str>) {
    let subject = std::str::from_utf8(&row.subject).unwrap();
    for token in subject.split('.') {
        assert!(!token.is_empty(), "{subject:?} has an empty token");
        let hostile = |byte: u8| !byte.is_ascii_graphic() || matches!(byte, b'*' | b'>');
        assert!(!token.bytes().any(hostile), "{subject:?}");
    }
    assert!(!subject.starts_with('$'), "{subject:?} is the server's own");
    assert!(!subject.starts_with("_INBOX."), "{subject:?} is an inbox");
    if let Some(pattern) = pattern {
        assert!(covers(pattern, subject), "{pattern:?} and {subject:?}");
    }
}

/// Each line is one header with a good name; none steers the server but those that may.
fn check_headers(block: &Bytes) {
    let text = std::str::from_utf8(block).unwrap();
    let lines = text.strip_suffix("\r\n").unwrap_or(text).split("\r\n");
    let mut ids = 0;
    let mut positions = 0;
    for line in lines {
        assert!(!line.contains(['\r', '\n', '\0']), "{line:?}");
        let (name, _) = line.split_once(": ").unwrap();
        assert!(is_header_name(name), "{name:?}");
        ids += usize::from(name.eq_ignore_ascii_case(header::MSG_ID));
        positions += usize::from(name.eq_ignore_ascii_case(header::POSITION));
        let steers = name.to_ascii_lowercase().starts_with("nats-");
        assert!(
            !steers || [header::MSG_ID, "Nats-TTL"].contains(&name),
            "{name:?}"
        );
    }
    assert_eq!((ids, positions), (1, 1), "{text:?}");
}

/// A token as the value that it was.
fn decoded(token: &[u8]) -> Vec<u8> {
    if token == b"_" {
        return Vec::new();
    }
    let mut out = Vec::new();
    let mut rest = token;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = std::str::from_utf8(&rest[..2]).unwrap();
            out.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &rest[2..];
        } else {
            out.push(byte);
        }
    }
    out
}
