//! Sequences of everything that can happen to the relay machine, sensible and senseless: nothing
//! that PostgreSQL, JetStream or the shell say may make it panic. The laws of its ledger are
//! assertions, so a history that breaks one is found here too.

use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use outbox::{
    Action, BrokerFault, BrokerFaultKind, EpochEnd, EpochStart, Fork, LookBack, OnPoison,
    OnUnroutable, OutboxSpec, Outgoing, Position, PubAck, Reach, ReadBack, ReadNext, Refusal,
    Relay, RelaySettings, SeenMessage, SessionStart, Source, SourceFault, SourceFaultKind,
    StoredRow, Tail, Taker, Token, Writers, header,
};
use pgoutput::{Frame, Lsn};

use crate::input::Input;

/// Rounds of polling after which the machine is taken to run in circles.
const MOST_ROUNDS: u32 = 1_000;

const SOURCE_FAULTS: [SourceFaultKind; 8] = [
    SourceFaultKind::Unreachable,
    SourceFaultKind::Restarting,
    SourceFaultKind::TooManyConnections,
    SourceFaultKind::SlotHeld,
    SourceFaultKind::Authentication,
    SourceFaultKind::Unreachable,
    SourceFaultKind::SlotLost,
    SourceFaultKind::Protocol,
];

const BROKER_FAULTS: [BrokerFaultKind; 6] = [
    BrokerFaultKind::Unreachable,
    BrokerFaultKind::PermissionDenied,
    BrokerFaultKind::NoJetStream,
    BrokerFaultKind::StreamMissing,
    BrokerFaultKind::Tls,
    BrokerFaultKind::Unreachable,
];

/// The machine and what it waits for.
struct Bench {
    relay: Relay,
    now: Instant,
    lsn: u64,
    open: Option<u64>,
    session_asked: bool,
    epoch_asked: Option<u64>,
    epoch: u64,
    writers: Writers,
    sent: Vec<Outgoing>,
    questions: Vec<(u64, Token, u64)>,
    letters: Vec<Token>,
    takers: Vec<(u64, Token)>,
    last: Option<StoredRow>,
    last_sequence: u64,
}

fn source(timeline: u32) -> Source {
    Source {
        system_identifier: 7,
        timeline,
        database: "shop".to_owned(),
        slot: "postrider".to_owned(),
    }
}

fn settings(input: &mut Input<'_>) -> RelaySettings {
    let mut settings = RelaySettings::new(vec![
        OutboxSpec::new("public", "outbox"),
        OutboxSpec::new("public", "events"),
    ]);
    settings.max_in_flight_rows = usize::from(input.byte() % 16) + 1;
    let flags = input.byte();
    if flags & 1 == 1 {
        settings.on_poison = OnPoison::Halt;
    }
    if flags & 2 == 2 {
        settings.on_unroutable = OnUnroutable::Park;
    }
    if flags & 4 == 4 {
        settings.confirm_delay = Duration::from_millis(input.small() * 50);
    }
    if flags & 8 == 8 {
        settings.caught_up_at = Some(Lsn::new(input.small() * 100));
    }
    settings.max_message_bytes = 600;
    settings
}

impl Bench {
    fn wal(&mut self, data: Bytes) {
        let frame = Frame::WalData {
            start: Lsn::new(self.lsn),
            server_time_micros: 0,
            data,
        };
        self.relay.handle_wal(self.now, frame);
    }

    fn begin(&mut self, input: &mut Input<'_>) {
        self.lsn += input.small();
        self.open = Some(self.lsn);
        let mut out = BytesMut::new();
        out.put_u8(b'B');
        out.put_u64(self.lsn);
        out.put_i64(0);
        out.put_u32(700);
        self.wal(out.freeze());
    }

    fn commit(&mut self, input: &mut Input<'_>) {
        let commit = self.open.take().unwrap_or(self.lsn);
        self.lsn += input.small() + 1;
        let mut out = BytesMut::new();
        out.put_slice(b"C\0");
        out.put_u64(commit);
        out.put_u64(self.lsn);
        out.put_i64(0);
        self.wal(out.freeze());
    }

    fn relation(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let table: &[u8] = [&b"outbox"[..], b"events", b"orders"][usize::from(choice % 3)];
        let columns: [&[u8]; 5] = [b"id", b"aggregate_id", b"type", b"payload", b"headers"];
        let shown = if choice & 0x40 == 0 { 5 } else { 4 };
        let mut out = BytesMut::new();
        out.put_u8(b'R');
        out.put_u32(u32::from(choice % 3));
        out.put_slice(b"public\0");
        out.put_slice(table);
        out.put_slice(b"\0d");
        out.put_u16(shown);
        for name in columns.iter().take(usize::from(shown)) {
            out.put_u8(0);
            out.put_slice(name);
            out.put_u8(0);
            out.put_u32(if choice & 0x20 == 0 { 25 } else { 17 });
            out.put_i32(-1);
        }
        self.wal(out.freeze());
    }

    fn insert(&mut self, input: &mut Input<'_>) {
        let choice = input.byte();
        let mut out = BytesMut::new();
        out.put_u8(b'I');
        out.put_u32(u32::from(choice % 3));
        out.put_u8(b'N');
        let columns = if choice & 0x40 == 0 { 5 } else { 4 };
        out.put_u16(columns);
        for column in 0..columns {
            if choice & 0x80 == 0x80 && column != 1 {
                let value = input.bytes();
                out.put_u8(b't');
                out.put_u32(u32::try_from(value.len()).unwrap_or(0));
                out.put_slice(value);
            } else if column == 4 {
                out.put_u8(b'n');
            } else {
                out.put_slice(b"t\0\0\0\x01");
                out.put_u8(b'a' + input.byte() % 4);
            }
        }
        self.wal(out.freeze());
    }

    fn start_session(&mut self, input: &mut Input<'_>) {
        if !std::mem::take(&mut self.session_asked) {
            return;
        }
        let timeline = 1 + u32::from(input.byte().is_multiple_of(8));
        self.open = None;
        // The server goes back to what was confirmed, or further.
        self.lsn = self.lsn.saturating_sub(input.small() * 4);
        let start = SessionStart {
            source: source(timeline),
            forks: vec![Fork {
                timeline: 1,
                switch_lsn: Lsn::new(300),
            }],
            log_end: Lsn::new(self.lsn + input.small()),
            confirmed_flush: Lsn::new(1),
        };
        self.relay.handle_session_started(self.now, start);
    }

    fn start_epoch(&mut self, input: &mut Input<'_>) {
        let Some(epoch) = self.epoch_asked.take() else {
            return;
        };
        self.epoch = epoch;
        let tail = match input.byte() % 8 {
            0 => Tail::Empty,
            1 => Tail::Gone,
            2 => Tail::Foreign,
            3 => Tail::Row(self.invented_row(input)),
            _ => self.last.clone().map_or(Tail::Empty, Tail::Row),
        };
        if input.byte().is_multiple_of(16) {
            self.last_sequence = input.small();
        }
        let start = EpochStart {
            writers: self.writers,
            created_unix_nanos: i128::from(input.byte() == 255),
            last_sequence: self.last_sequence,
            tail,
            max_message_bytes: 1 << 20,
        };
        self.relay.handle_epoch_started(self.now, epoch, start);
    }

    fn invented_row(&mut self, input: &mut Input<'_>) -> StoredRow {
        StoredRow {
            sequence: self.last_sequence,
            source: source(1 + u32::from(input.flag())),
            position: Position {
                commit_lsn: Lsn::new(self.lsn.saturating_sub(input.small())),
                change: input.small() % 4,
            },
            dedup_id: char::from(b'a' + input.byte() % 4).to_string(),
            settled: input.flag().then_some(Position {
                commit_lsn: Lsn::new(self.lsn.saturating_sub(input.small())),
                change: 0,
            }),
            chained: input.flag(),
            origin: input.flag().then(|| "replay".to_owned()),
            position_id: input.flag().then(|| "a".to_owned()),
        }
    }

    fn row_of(&self, sent: &Outgoing, sequence: u64) -> Option<StoredRow> {
        Some(StoredRow {
            sequence,
            source: sent.headers.get(header::SOURCE)?.parse().ok()?,
            position: sent.headers.get(header::POSITION)?.parse().ok()?,
            dedup_id: sent.headers.get(header::MSG_ID)?.to_owned(),
            settled: sent.settled,
            chained: sent.expected_last_sequence.is_some(),
            origin: None,
            position_id: None,
        })
    }

    /// The oldest row in flight is answered, or any.
    fn answer(&mut self, input: &mut Input<'_>) {
        if self.sent.is_empty() {
            return;
        }
        let choice = input.byte();
        let index = usize::from(choice >> 4) % self.sent.len();
        let row = self.sent.remove(index);
        let (now, epoch, token) = (self.now, self.epoch, row.token);
        match choice % 8 {
            0..=3 => {
                self.last_sequence += 1;
                self.last = self.row_of(&row, self.last_sequence);
                let sequence = self.last_sequence;
                let ack = PubAck {
                    sequence,
                    duplicate: false,
                };
                self.relay.handle_acked(now, epoch, token, ack);
            }
            4 => {
                // Stored, and the answer is lost.
                self.last_sequence += 1;
                self.last = self.row_of(&row, self.last_sequence);
            }
            5 => {
                let sequence = input.small();
                let ack = PubAck {
                    sequence,
                    duplicate: true,
                };
                self.relay.handle_acked(now, epoch, token, ack);
                // Kept, to be read back and to be answered once more.
                self.sent.push(row);
            }
            _ => {
                let refusal = refusal(input);
                self.relay.handle_refused(now, epoch, token, refusal);
            }
        }
    }

    fn read_back(&mut self, input: &mut Input<'_>) {
        let Some((epoch, token, sequence)) = self.questions.pop() else {
            return;
        };
        let found = match input.byte() % 6 {
            0 => ReadBack::Gone,
            1 => ReadBack::Foreign,
            2 => ReadBack::Unknown {
                detail: String::new(),
            },
            3 => ReadBack::Row(self.invented_row(input)),
            _ => self
                .sent
                .iter()
                .find(|row| row.token == token)
                .and_then(|row| self.row_of(row, sequence))
                .map_or(ReadBack::Gone, ReadBack::Row),
        };
        self.relay.handle_read_back(self.now, epoch, token, found);
    }

    /// The newest messages are the last one; what else was read depends on where the log stands.
    fn look_back(&mut self, epoch: u64, rows: usize) {
        let messages = self.last.iter().take(rows).map(|row| SeenMessage {
            sequence: row.sequence,
            row: (!self.lsn.is_multiple_of(5)).then(|| row.clone()),
        });
        let found = LookBack {
            messages: messages.collect(),
            reach: match self.lsn % 3 {
                0 => Reach::Beginning,
                1 => Reach::Wanted,
                _ => Reach::Limit,
            },
        };
        let answer = if self.lsn.is_multiple_of(7) {
            Err(String::new())
        } else {
            Ok(found)
        };
        self.relay.handle_looked_back(self.now, epoch, answer);
    }

    fn read_next(&mut self, epoch: u64, sequence: u64) {
        let last = self.last.clone().filter(|row| row.sequence >= sequence);
        let found = last.map_or(ReadNext::End, |row| {
            ReadNext::Message(SeenMessage {
                sequence: row.sequence,
                row: Some(row),
            })
        });
        self.relay.handle_read_next(self.now, epoch, found);
    }

    fn taker(&mut self, input: &mut Input<'_>) {
        let Some((epoch, token)) = self.takers.pop() else {
            return;
        };
        let taker = match input.byte() % 4 {
            0 => Taker::Ours,
            1 => Taker::Unknown,
            2 => Taker::Other {
                stream: "OTHER".to_owned(),
            },
            _ => Taker::NotOurs {
                detail: String::new(),
            },
        };
        self.relay.handle_taker(self.now, epoch, token, taker);
    }

    /// Answers to questions that nobody asked.
    fn stray(&mut self, input: &mut Input<'_>) {
        let (now, epoch, token) = (self.now, self.epoch, Token(input.small()));
        match input.byte() % 6 {
            0 => {
                let ack = PubAck {
                    sequence: input.small(),
                    duplicate: input.flag(),
                };
                self.relay.handle_acked(now, epoch, token, ack);
            }
            1 => {
                let refusal = refusal(input);
                self.relay.handle_refused(now, epoch, token, refusal);
            }
            2 => {
                let found = ReadBack::Row(self.invented_row(input));
                self.relay.handle_read_back(now, epoch, token, found);
            }
            3 => self.relay.handle_parked(now, token),
            4 => {
                let permitted = !input.byte().is_multiple_of(8);
                self.relay
                    .handle_park_failed(token, permitted, String::new());
            }
            _ => {
                let end = EpochEnd::MaxPayloadViolation;
                self.relay.handle_epoch_ended(now, epoch + 1, end);
            }
        }
    }

    fn end_epoch(&mut self, input: &mut Input<'_>) {
        let detail = String::new;
        let end = match input.byte() % 4 {
            0 => EpochEnd::PermissionDenied { detail: detail() },
            1 => EpochEnd::MaxPayloadViolation,
            2 => EpochEnd::Server { detail: detail() },
            _ => EpochEnd::Disconnected { detail: detail() },
        };
        self.relay.handle_epoch_ended(self.now, self.epoch, end);
    }

    fn refuse_opening(&mut self, input: &mut Input<'_>) {
        let detail = String::new;
        if let Some(epoch) = self.epoch_asked.take()
            && let Some(kind) = input.pick(&BROKER_FAULTS)
        {
            let fault = BrokerFault {
                kind,
                detail: detail(),
            };
            self.relay.handle_epoch_refused(self.now, epoch, fault);
        }
    }

    fn end_session(&mut self, input: &mut Input<'_>) {
        let Some(kind) = input.pick(&SOURCE_FAULTS) else {
            return;
        };
        let fault = SourceFault {
            kind,
            detail: String::new(),
        };
        self.session_asked = false;
        if input.byte().is_multiple_of(8) {
            self.relay.handle_source_fault(self.now, fault);
        } else {
            self.relay.handle_session_ended(self.now, fault);
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 24 {
            0 => self.wal(Bytes::copy_from_slice(input.bytes())),
            1 | 2 => self.begin(input),
            3 | 4 => self.commit(input),
            5 => self.relation(input),
            6..=9 => self.insert(input),
            10 => {
                let wal_end = self.lsn + input.small();
                let frame = Frame::KeepAlive {
                    wal_end: Lsn::new(wal_end),
                    server_time_micros: 0,
                    reply_requested: input.flag(),
                };
                self.relay.handle_wal(self.now, frame);
            }
            11..=14 => self.answer(input),
            15 => self.read_back(input),
            16 => self.stray(input),
            17 => self.end_epoch(input),
            18 => self.end_session(input),
            19 => self.start_session(input),
            20 => self.start_epoch(input),
            21 => {
                if let Some(token) = self.letters.pop() {
                    if input.flag() {
                        self.relay.handle_parked(self.now, token);
                    } else {
                        self.relay.handle_park_failed(token, true, String::new());
                    }
                }
            }
            22 => {
                self.now += Duration::from_millis(input.small() * input.small());
                self.relay.handle_time(self.now);
            }
            _ => match input.byte() {
                0 => self.relay.handle_shutdown(self.now),
                1..=32 => self.taker(input),
                33..=40 => self.relay.handle_yield(self.now),
                41..=48 => {
                    let tables = vec![(0, usize::from(input.flag()))];
                    self.relay
                        .handle_tables(Lsn::new(input.small() * 4), tables);
                }
                _ => self.refuse_opening(input),
            },
        }
    }

    fn poll(&mut self) {
        for _ in 0..MOST_ROUNDS {
            while let Some(action) = self.relay.poll_action() {
                match action {
                    Action::OpenSession => self.session_asked = true,
                    Action::OpenEpoch { epoch } => self.epoch_asked = Some(epoch),
                    Action::CloseEpoch { .. } => self.sent.clear(),
                    Action::ReadBack {
                        epoch,
                        token,
                        sequence,
                    } => self.questions.push((epoch, token, sequence)),
                    Action::Park(letter) => self.letters.push(letter.token),
                    Action::CloseSession => self.open = None,
                    Action::FindTaker { epoch, token, .. } => self.takers.push((epoch, token)),
                    Action::LookBack { epoch, range } => self.look_back(epoch, range.rows),
                    Action::ReadNext { epoch, sequence } => self.read_next(epoch, sequence),
                    Action::NoteHalted(_) | Action::Stop { .. } => {}
                }
            }
            while let Some(row) = self.relay.poll_publish(self.now) {
                self.sent.push(row);
            }
            while self.relay.poll_status(self.now).is_some() {}
            while let Some(notice) = self.relay.poll_notice() {
                assert!(!notice.to_string().is_empty());
            }
            let snapshot = self.relay.snapshot();
            assert!(self.relay.confirmed() <= snapshot.settled);
            assert!(snapshot.settled <= snapshot.received);
            match self.relay.poll_timeout() {
                Some(due) if due <= self.now => self.relay.handle_time(self.now),
                _ => return,
            }
        }
        panic!("the machine asks to be called again at once, for ever");
    }
}

fn refusal(input: &mut Input<'_>) -> Refusal {
    let codes = [
        10_054, 10_060, 10_071, 10_077, 10_097, 10_158, 10_164, 10_167, 10_023, 0,
    ];
    match input.byte() % 8 {
        0 => Refusal::NoResponders,
        1 => Refusal::TooManyRequests,
        2 => Refusal::TooLarge {
            size_bytes: 9,
            limit_bytes: 8,
        },
        3 => Refusal::ForeignAck {
            stream: String::new(),
        },
        4 => Refusal::Malformed {
            detail: String::new(),
        },
        _ => Refusal::Api {
            code: 400,
            err_code: input.pick(&codes).unwrap_or_default(),
            description: String::new(),
        },
    }
}

/// The input: settings, then one byte per step with the bytes that the step takes.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let now = Instant::now();
    let writers = if input.flag() {
        Writers::Exclusive
    } else {
        Writers::Shared
    };
    let mut bench = Bench {
        relay: Relay::new(settings(&mut input), now),
        now,
        lsn: 100,
        open: None,
        session_asked: false,
        epoch_asked: None,
        epoch: 0,
        writers,
        sent: Vec::new(),
        questions: Vec::new(),
        letters: Vec::new(),
        takers: Vec::new(),
        last: None,
        last_sequence: 0,
    };
    bench.poll();
    bench.start_session(&mut input);
    bench.poll();
    bench.start_epoch(&mut input);
    bench.poll();
    while !input.0.is_empty() {
        bench.step(&mut input);
        bench.poll();
    }
}
