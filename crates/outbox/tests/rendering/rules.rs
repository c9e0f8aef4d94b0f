//! Templates, named columns, headers, payloads, content types.

use super::support::wire::Val::{self, Bytes, Null, Text};
use super::support::wire::oid;
use super::{header, letter, message, spec, subject, template, with_columns};
use crate::outbox::{OutboxSpec, PoisonReason, Role, Writers};

/// A row with the needed columns and one more.
fn row_with<'a>(name: &'a str, type_oid: u32, value: Val<'a>) -> [(&'a str, u32, Val<'a>); 4] {
    [
        ("id", oid::TEXT, Text("1")),
        ("type", oid::TEXT, Text("placed")),
        ("payload", oid::JSONB, Text("{}")),
        (name, type_oid, value),
    ]
}

#[test]
fn templates_take_roles_columns_and_the_table() {
    let mut spec = OutboxSpec::new("sales", "Outbox Events");
    spec.subject = template("{table}.{tenant}.{aggregate_type}.v1.{topic}");
    spec.dedup_id = template("{table}:{tenant}/{id}");
    spec.columns = vec![(Role::AggregateType, "kind".to_owned())];
    let row = [
        ("id", oid::INT8, Text("5")),
        ("kind", oid::TEXT, Text("a.b")),
        ("tenant", oid::TEXT, Text("x.y")),
        ("topic", oid::TEXT, Text("c.d")),
        ("payload", oid::JSONB, Text("{}")),
    ];
    let row = message(&spec, &row);
    // The table's name is text of the template; only a topic keeps the dots of its value.
    assert!(
        subject(&row).ends_with(".x%2Ey.a%2Eb.v1.c.d"),
        "{}",
        subject(&row)
    );
    assert_eq!(
        header(&row, "Nats-Msg-Id"),
        Some("sales.Outbox Events:x.y/5")
    );
    assert_eq!(header(&row, "Outbox-Table"), Some("sales.Outbox Events"));
}

#[test]
fn a_table_name_in_the_subject_cannot_break_the_protocol() {
    let mut spec = OutboxSpec::new("sales", "Outbox Events>");
    spec.subject = template("{table}.{type}");
    let row = message(&spec, &row_with("note", oid::TEXT, Null));
    assert_eq!(subject(&row), "sales.Outbox%20Events%3E.placed");
}

#[test]
fn columns_named_by_the_configuration_win_over_usual_names() {
    let spec = with_columns(
        spec(),
        &[
            (Role::Id, "uid"),
            (Role::Payload, "content"),
            (Role::AggregateId, "who"),
            (Role::Type, "what"),
            (Role::CreatedAt, "made"),
            (Role::Headers, "extra"),
        ],
    );
    let row = [
        ("id", oid::INT8, Text("1")),
        ("type", oid::TEXT, Text("unused")),
        ("payload", oid::JSONB, Text("unused")),
        ("uid", oid::TEXT, Text("u-1")),
        ("content", oid::TEXT, Text("hello")),
        ("who", oid::TEXT, Text("me")),
        ("what", oid::TEXT, Text("said")),
        ("made", oid::TIMESTAMPTZ, Text("2026-02-03 04:05:06+00")),
        ("extra", oid::JSON, Text(r#"{"A": "b"}"#)),
    ];
    let row = message(&spec, &row);
    assert_eq!(subject(&row), "outbox.said");
    assert_eq!(&row.payload[..], b"hello");
    for (name, value) in [
        ("Nats-Msg-Id", "u-1"),
        ("Outbox-Aggregate-Id", "me"),
        ("Outbox-Type", "said"),
        ("Outbox-Created-At", "2026-02-03T04:05:06Z"),
        ("A", "b"),
        ("Content-Type", "text/plain; charset=utf-8"),
    ] {
        assert_eq!(header(&row, name), Some(value), "{name}");
    }
}

#[test]
fn headers_mapped_from_columns_are_raw_and_absent_where_null() {
    let mut spec = spec();
    spec.headers = vec![
        ("Tenant".to_owned(), "tenant_id".to_owned()),
        ("Ratio".to_owned(), "ratio".to_owned()),
        ("Until".to_owned(), "until".to_owned()),
        ("Nothing".to_owned(), "nothing".to_owned()),
        ("Nats-TTL".to_owned(), "ttl".to_owned()),
    ];
    let row = [
        ("id", oid::TEXT, Text("1")),
        ("type", oid::TEXT, Text("t")),
        ("payload", oid::JSONB, Text("{}")),
        ("tenant_id", oid::TEXT, Text("blue & green\t€")),
        ("ratio", oid::FLOAT8, Text("NaN")),
        ("until", oid::TIMESTAMPTZ, Text("-infinity")),
        ("nothing", oid::TEXT, Null),
        ("ttl", oid::TEXT, Text("1h")),
    ];
    let row = message(&spec, &row);
    assert_eq!(header(&row, "Tenant"), Some("blue & green\t€"));
    assert_eq!(header(&row, "Ratio"), Some("NaN"));
    assert_eq!(header(&row, "Until"), Some("-infinity"));
    assert_eq!(header(&row, "Nats-TTL"), Some("1h"));
    assert_eq!(header(&row, "Nothing"), None);
}

#[test]
fn a_headers_column_gives_strings_as_they_are_and_other_values_as_json() {
    let json = r#"{"S": "a\nb\u00e9", "N": 12345678901234567890.10, "E": 1e400,
        "O": {"x": [1, "y"]},
        "B": true, "Z": null, "Empty": "", "Nats-TTL": "5s", "content-type": "text/csv"}"#;
    let row = message(&spec(), &row_with("headers", oid::JSON, Text(json)));
    let rendered: Vec<_> = row.headers.iter().skip(5).collect();
    assert_eq!(
        rendered,
        [
            ("S", "a%0Abé"),
            ("N", "12345678901234567890.10"),
            ("E", "1e400"),
            ("O", r#"{"x": [1, "y"]}"#),
            ("B", "true"),
            ("Z", "null"),
            ("Empty", ""),
            ("Nats-TTL", "5s"),
            ("content-type", "text/csv"),
        ]
    );
}

#[test]
fn a_null_headers_column_adds_nothing() {
    let row = message(&spec(), &row_with("headers", oid::JSONB, Null));
    assert_eq!(row.headers.iter().count(), 6);
}

#[test]
fn a_headers_column_that_is_no_object_is_poison() {
    for text in ["null", "[]", "\"x\"", "7", "", "{", "{\"a\": }", "{} x"] {
        let letter = letter(&spec(), &row_with("headers", oid::JSON, Text(text)));
        let not_object = matches!(letter.reason, PoisonReason::HeadersNotObject { .. });
        assert!(not_object, "{text:?}: {:?}", letter.reason);
        assert_eq!(letter.dedup_id, "1");
        assert_eq!(letter.subject, "outbox.placed");
        assert_eq!(&letter.payload[..], b"{}");
    }
}

#[test]
fn headers_that_a_row_may_not_set_are_poison() {
    for name in [
        "Nats-Msg-Id",
        "nats-expected-stream",
        "Nats-Rollup",
        "nats-ttl",
        "Outbox-Position",
        "outbox-anything",
        "",
        "a b",
        "a:b",
        "é",
        "a\\r\\nb",
    ] {
        let json = format!(r#"{{"Fine": 1, "{name}": "x"}}"#);
        let letter = letter(&spec(), &row_with("headers", oid::JSONB, Text(&json)));
        assert_eq!(letter.reason.name(), "header_refused", "{name:?}");
        let text = letter.reason.to_string();
        assert!(
            text.contains(&format!("{:?}", name.replace("\\r\\n", "\r\n"))),
            "{text}"
        );
    }
}

#[test]
fn payloads_are_the_columns_bytes_and_the_type_says_what_they_are() {
    let json = r#"{"n":12345678901234567890.1234567890123456789,"big":9007199254740993,"e":1e400}"#;
    type Case<'a> = (u32, Val<'a>, &'a [u8], &'a str, Option<&'a str>);
    let cases: [Case<'_>; 9] = [
        (
            oid::JSON,
            Text(json),
            json.as_bytes(),
            "application/json",
            None,
        ),
        (oid::JSONB, Text("null"), b"null", "application/json", None),
        (oid::TEXT, Text(""), b"", "text/plain; charset=utf-8", None),
        (
            oid::TEXT,
            Text("é\t\u{1}"),
            "é\t\u{1}".as_bytes(),
            "text/plain; charset=utf-8",
            None,
        ),
        (
            oid::TEXT,
            Bytes(b"\xff\xfe\x80"),
            b"\xff\xfe\x80",
            "text/plain; charset=utf-8",
            None,
        ),
        (
            oid::BYTEA,
            Text("\\x00ff0D0a"),
            b"\0\xff\r\n",
            "application/octet-stream",
            None,
        ),
        (
            oid::BYTEA,
            Text("\\x"),
            b"",
            "application/octet-stream",
            None,
        ),
        (oid::JSONB, Null, b"", "application/json", Some("null")),
        (
            oid::BYTEA,
            Null,
            b"",
            "application/octet-stream",
            Some("null"),
        ),
    ];
    for (type_oid, value, body, content_type, payload_header) in cases {
        let row = [
            ("id", oid::TEXT, Text("1")),
            ("type", oid::TEXT, Text("t")),
            ("payload", type_oid, value),
        ];
        let row = message(&spec(), &row);
        assert_eq!(&row.payload[..], body, "{value:?}");
        assert_eq!(
            header(&row, "Content-Type"),
            Some(content_type),
            "{value:?}"
        );
        assert_eq!(header(&row, "Outbox-Payload"), payload_header, "{value:?}");
    }
}

#[test]
fn a_toasted_payload_is_byte_equal() {
    let long: String = ('a'..='z').cycle().take(200_000).collect();
    let row = [
        ("id", oid::TEXT, Text("1")),
        ("type", oid::TEXT, Text("t")),
        ("payload", oid::TEXT, Text(&long)),
    ];
    assert_eq!(&message(&spec(), &row).payload[..], long.as_bytes());
}

#[test]
fn a_bytea_that_is_not_hexadecimal_is_poison() {
    for text in ["\\x0", "\\x0g", "abc", ""] {
        let row = [
            ("id", oid::TEXT, Text("1")),
            ("type", oid::TEXT, Text("t")),
            ("payload", oid::BYTEA, Text(text)),
        ];
        let letter = letter(&spec(), &row);
        assert_eq!(letter.reason, PoisonReason::PayloadNotHex);
        assert_eq!(&letter.payload[..], text.as_bytes());
    }
}

#[test]
fn created_at_is_rfc3339_where_it_can_be() {
    for (text, wanted) in [
        ("2026-02-03 04:05:06.789+00", "2026-02-03T04:05:06.789Z"),
        ("2026-02-03 04:05:06", "2026-02-03T04:05:06Z"),
        ("infinity", "infinity"),
        ("0044-03-15 12:00:00+00 BC", "0044-03-15 12:00:00+00 BC"),
        ("294276-12-31 23:59:59+00", "294276-12-31 23:59:59+00"),
        ("yesterday\r\n", "yesterday%0D%0A"),
    ] {
        let row = message(
            &spec(),
            &row_with("created_at", oid::TIMESTAMPTZ, Text(text)),
        );
        assert_eq!(header(&row, "Outbox-Created-At"), Some(wanted));
    }
    let row = message(&spec(), &row_with("created_at", oid::TIMESTAMPTZ, Null));
    assert_eq!(header(&row, "Outbox-Created-At"), None);
}

#[test]
fn trace_context_columns_win_over_the_headers_column() {
    let json = r#"{"traceparent": "from json", "tracestate": "from json"}"#;
    let row = [
        ("id", oid::TEXT, Text("1")),
        ("type", oid::TEXT, Text("t")),
        ("payload", oid::JSONB, Text("{}")),
        ("traceparent", oid::TEXT, Text("from column")),
        ("headers", oid::JSONB, Text(json)),
    ];
    let row = message(&spec(), &row);
    let traces: Vec<_> = row
        .headers
        .iter()
        .filter(|(name, _)| name.starts_with("trace"))
        .collect();
    assert_eq!(
        traces,
        [("traceparent", "from column"), ("tracestate", "from json")]
    );
}

#[test]
fn positions_count_every_change_of_the_transaction() {
    use super::support::{Bench, ORDERS, OUTBOX, wire};
    let mut bench = Bench::new(Writers::Exclusive);
    bench.wal(256, wire::begin(256));
    bench.describe();
    bench.wal(
        0,
        wire::relation(ORDERS, "public", "orders", &[("id", oid::INT4)]),
    );
    bench.row("a", "k");
    bench.wal(0, wire::insert(ORDERS, &[Text("1")]));
    bench.wal(0, wire::update(ORDERS, &[Text("1")]));
    bench.wal(0, wire::delete(ORDERS, &[Text("1")]));
    bench.wal(0, wire::truncate(&[ORDERS]));
    bench.wal(0, wire::logical_message(true, "other", b"x"));
    bench.row("b", "k");
    bench.wal(
        0,
        wire::update(OUTBOX, &[Text("a"), Text("k"), Text("t"), Val::Unchanged]),
    );
    bench.wal(0, wire::logical_message(false, "other", b"x"));
    bench.row("c", "k");
    bench.wal(256, wire::commit(256, 300));
    let positions: Vec<_> = bench
        .sent
        .iter()
        .map(|row| header(row, "Outbox-Position").unwrap())
        .collect();
    assert_eq!(positions, ["0/100/0", "0/100/6", "0/100/8"]);
}
