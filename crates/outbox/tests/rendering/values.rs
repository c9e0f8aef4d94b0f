//! Values that would be more than they seem: one message each, reversible, nothing injected.

use super::support::wire::Val::{self, Bytes, Null, Text};
use super::support::wire::oid;
use super::{header, message, spec, subject};
use crate::outbox::Outgoing;

fn sent(aggregate_type: Val<'_>, event_type: Val<'_>) -> Outgoing {
    let row = [
        ("id", oid::TEXT, Text("1")),
        ("aggregate_type", oid::TEXT, aggregate_type),
        ("aggregate_id", oid::TEXT, aggregate_type),
        ("type", oid::TEXT, event_type),
        ("payload", oid::JSONB, Text("{}")),
    ];
    message(&spec(), &row)
}

fn decoded(token: &str) -> Vec<u8> {
    if token == "_" {
        return Vec::new();
    }
    let mut parts = token.split('%');
    let mut bytes = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    bytes
}

#[test]
fn every_value_is_one_token_and_can_be_read_back() {
    let injection = "x\r\nPUB evil 5\r\nhello\r\n";
    for (value, token, in_header) in [
        ("a b", "a%20b", "a b"),
        ("a.b", "a%2Eb", "a.b"),
        ("*", "%2A", "*"),
        (">", "%3E", ">"),
        ("a..b", "a%2E%2Eb", "a..b"),
        (".", "%2E", "."),
        ("", "_", ""),
        ("_", "%5F", "_"),
        ("%2E", "%252E", "%2E"),
        ("\u{a0}", "%C2%A0", "\u{a0}"),
        ("é✓", "%C3%A9%E2%9C%93", "é✓"),
        ("tab\t\u{1}", "tab%09%01", "tab\t\u{1}"),
        ("\u{7f}", "%7F", "\u{7f}"),
        (
            injection,
            "x%0D%0APUB%20evil%205%0D%0Ahello%0D%0A",
            "x%0D%0APUB evil 5%0D%0Ahello%0D%0A",
        ),
    ] {
        let row = sent(Text(value), Text("t"));
        let tokens: Vec<_> = subject(&row).split('.').collect();
        assert_eq!(tokens, ["outbox", token, "t"], "{value:?}");
        assert_eq!(decoded(token), value.as_bytes());
        assert_eq!(header(&row, "Outbox-Aggregate-Type"), Some(in_header));
        assert_eq!(header(&row, "Outbox-Aggregate-Id"), Some(in_header));
        let lines = row.headers.as_block().iter().filter(|byte| **byte == b'\n');
        assert_eq!(lines.count(), row.headers.iter().count());
    }
}

#[test]
fn a_null_value_is_an_empty_token_and_no_header() {
    let row = sent(Null, Text("t"));
    assert_eq!(subject(&row), "outbox._.t");
    assert_eq!(header(&row, "Outbox-Aggregate-Type"), None);
    assert_eq!(header(&row, "Outbox-Aggregate-Id"), None);
}

#[test]
fn bytes_that_are_not_utf8_are_percent_encoded_in_subject_and_headers() {
    let row = sent(Bytes(b"caf\xe9"), Bytes(b"\xff\x80"));
    assert_eq!(subject(&row), "outbox.caf%E9.%FF%80");
    assert_eq!(header(&row, "Outbox-Aggregate-Type"), Some("caf%E9"));
    assert_eq!(header(&row, "Outbox-Type"), Some("%FF%80"));
}

#[test]
fn a_topic_keeps_its_dots_and_nothing_else() {
    for (topic, wanted) in [
        ("order.placed", "outbox.order.placed"),
        ("a..b", "outbox.a._.b"),
        (".", "outbox._._"),
        ("", "outbox._"),
        ("a.*.>", "outbox.a.%2A.%3E"),
        ("a b\r\n", "outbox.a%20b%0D%0A"),
        ("%2E", "outbox.%252E"),
        ("é", "outbox.%C3%A9"),
    ] {
        let row = [
            ("id", oid::TEXT, Text("1")),
            ("topic", oid::TEXT, Text(topic)),
            ("payload", oid::JSONB, Text("{}")),
        ];
        assert_eq!(subject(&message(&spec(), &row)), wanted, "{topic:?}");
    }
}

#[test]
fn a_subject_cannot_reach_the_servers_own_subjects() {
    let mut spec = spec();
    spec.subject = super::template("{topic}");
    let row = [
        ("id", oid::TEXT, Text("1")),
        ("topic", oid::TEXT, Text("$JS.API.STREAM.DELETE.OUTBOX")),
        ("payload", oid::JSONB, Text("{}")),
    ];
    assert_eq!(
        subject(&message(&spec, &row)),
        "%24JS.API.STREAM.DELETE.OUTBOX"
    );
}

#[test]
fn an_id_keeps_all_its_digits_and_cannot_leave_its_line() {
    for (id, wanted) in [
        ("9223372036854775807", "9223372036854775807"),
        ("-1", "-1"),
        ("a\r\nNats-Rollup: all", "a%0D%0ANats-Rollup: all"),
    ] {
        let row = [
            ("id", oid::TEXT, Text(id)),
            ("type", oid::TEXT, Text("t")),
            ("payload", oid::JSONB, Text("{}")),
        ];
        let row = message(&spec(), &row);
        assert_eq!(header(&row, "Nats-Msg-Id"), Some(wanted));
        assert_eq!(header(&row, "Nats-Rollup"), None);
    }
}
