//! Tables that change while they stream: columns are mapped by name at each Relation message.

use pgoutput::Lsn;

use super::support::wire::Val::{Null, Text, Unchanged};
use super::support::wire::{self, oid};
use super::support::{Bench, OUTBOX};
use super::{header, subject, with_columns};
use crate::outbox::{Notice, OutboxSpec, RelaySettings, Role, StopKind, Writers};

/// A bench in the middle of a transaction whose table has been described.
fn streaming(spec: OutboxSpec, columns: &[(&str, u32)]) -> Bench {
    let (schema, table) = (spec.schema.clone(), spec.table.clone());
    let mut bench = Bench::with(RelaySettings::new(vec![spec]), Writers::Exclusive);
    bench.wal(256, wire::begin(256));
    bench.wal(0, wire::relation(OUTBOX, &schema, &table, columns));
    bench
}

fn assert_stopped(bench: &Bench, kind: StopKind, words: &[&str]) {
    let (found, text) = bench.stop().expect("a stop");
    assert_eq!(found, kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    assert_eq!(bench.confirmed(), 0);
    assert!(!bench.relay.wants_wal());
}

const COLUMNS: [(&str, u32); 4] = [
    ("id", oid::TEXT),
    ("aggregate_id", oid::TEXT),
    ("type", oid::TEXT),
    ("payload", oid::JSONB),
];

#[test]
fn columns_added_dropped_reordered_and_retyped_are_found_by_name() {
    let mut bench = streaming(OutboxSpec::new("public", "outbox"), &COLUMNS);
    bench.row("a", "k");
    let changed = [
        ("note", oid::TEXT),
        ("payload", oid::BYTEA),
        ("aggregate_type", oid::TEXT),
        ("type", oid::TEXT),
        ("id", oid::INT8),
    ];
    bench.wal(0, wire::relation(OUTBOX, "public", "outbox", &changed));
    let values = [
        Text("n"),
        Text("\\x01"),
        Text("order"),
        Text("t"),
        Text("2"),
    ];
    bench.wal(0, wire::insert(OUTBOX, &values));
    assert_eq!(bench.stop(), None);
    let (before, after) = (&bench.sent[0], &bench.sent[1]);
    assert_eq!(subject(before), "outbox.placed");
    assert_eq!(subject(after), "outbox.order.t");
    assert_eq!(&after.payload[..], &[1]);
    assert_eq!(header(after, "Nats-Msg-Id"), Some("2"));
    assert_eq!(header(after, "Outbox-Aggregate-Id"), None);
    assert_eq!(
        header(after, "Content-Type"),
        Some("application/octet-stream")
    );
    let bound = Notice::TableBound {
        table: "public.outbox".to_owned(),
        subject: "outbox.{aggregate_type}.{type}".to_owned(),
    };
    assert!(bench.notices.contains(&bound));
}

#[test]
fn a_needed_column_that_disappears_stops_before_confirming() {
    for (gone, word) in [
        ("id", "for id"),
        ("payload", "for payload"),
        ("type", "default subject"),
    ] {
        let mut bench = streaming(OutboxSpec::new("public", "outbox"), &COLUMNS);
        bench.row("a", "k");
        let left: Vec<_> = COLUMNS
            .into_iter()
            .filter(|(name, _)| *name != gone)
            .collect();
        bench.wal(0, wire::relation(OUTBOX, "public", "outbox", &left));
        for sent in bench.take_sent() {
            bench.ack(&sent);
        }
        assert_stopped(&bench, StopKind::SlotLost, &["public.outbox", word]);
    }
}

#[test]
fn a_column_that_the_configuration_names_and_the_table_lacks_stops() {
    let named = with_columns(
        OutboxSpec::new("public", "outbox"),
        &[(Role::AggregateId, "owner")],
    );
    let mut in_subject = OutboxSpec::new("public", "outbox");
    in_subject.subject = super::template("x.{region}");
    let mut in_key = OutboxSpec::new("public", "outbox");
    in_key.ordering_key = super::template("{account}");
    let mut in_headers = OutboxSpec::new("public", "outbox");
    in_headers.headers = vec![("Tenant".to_owned(), "tenant_id".to_owned())];
    for (spec, words) in [
        (named, ["\"owner\"", "aggregate_id"]),
        (in_subject, ["\"region\"", "`subject`"]),
        (in_key, ["\"account\"", "`ordering_key`"]),
        (in_headers, ["\"tenant_id\"", "\"Tenant\""]),
    ] {
        let bench = streaming(spec, &COLUMNS);
        assert_stopped(&bench, StopKind::SlotLost, &words);
    }
}

#[test]
fn a_renamed_table_stops_and_both_names_are_told() {
    let mut bench = streaming(OutboxSpec::new("public", "outbox"), &COLUMNS);
    bench.row("a", "k");
    bench.wal(0, wire::relation(OUTBOX, "public", "outbox_old", &COLUMNS));
    assert_eq!(bench.stop(), None, "the row before it is not acked yet");
    assert!(!bench.relay.wants_wal());
    for sent in bench.take_sent() {
        bench.ack(&sent);
    }
    assert_stopped(
        &bench,
        StopKind::SlotLost,
        &["public.outbox ", "public.outbox_old"],
    );
}

#[test]
fn a_table_is_known_by_its_oid_under_the_names_that_it_once_had() {
    let mut bench = Bench::with(
        RelaySettings::new(vec![OutboxSpec::new("public", "outbox")]),
        Writers::Exclusive,
    );
    bench.relay.handle_tables(Lsn::new(1000), vec![(OUTBOX, 0)]);
    bench.wal(256, wire::begin(256));
    for name in ["events", "outbox", "outbox_old"] {
        bench.wal(0, wire::relation(OUTBOX, "public", name, &COLUMNS));
        let values = [Text(name), Text("k"), Text("t"), Text("{}")];
        bench.wal(0, wire::insert(OUTBOX, &values));
    }
    assert_eq!((bench.sent.len(), bench.stop()), (3, None));
}

#[test]
fn a_table_renamed_before_its_first_row_stops_as_well() {
    let mut bench = Bench::with(
        RelaySettings::new(vec![OutboxSpec::new("public", "outbox")]),
        Writers::Exclusive,
    );
    bench.relay.handle_tables(Lsn::new(100), vec![(OUTBOX, 0)]);
    bench.wal(256, wire::begin(256));
    bench.wal(0, wire::relation(OUTBOX + 1, "public", "other", &COLUMNS));
    assert_eq!(bench.stop(), None);
    bench.wal(0, wire::relation(OUTBOX, "public", "events", &COLUMNS));
    let names = ["public.outbox ", "public.events"];
    assert_stopped(&bench, StopKind::SlotLost, &names);
}

#[test]
fn a_table_made_anew_under_the_same_name_goes_on() {
    let mut bench = streaming(OutboxSpec::new("public", "outbox"), &COLUMNS);
    bench.wal(0, wire::relation(OUTBOX + 1, "public", "outbox", &COLUMNS));
    let values = [Text("a"), Text("k"), Text("t"), Text("{}")];
    bench.wal(0, wire::insert(OUTBOX + 1, &values));
    assert_eq!(bench.sent.len(), 1);
}

#[test]
fn a_table_of_the_same_name_in_another_schema_is_another_table() {
    let mut bench = streaming(OutboxSpec::new("public", "outbox"), &COLUMNS);
    for (id, schema, table) in [
        (1, "audit", "outbox"),
        (2, "public", "Outbox"),
        (3, "public", "outbox2"),
    ] {
        bench.wal(0, wire::relation(id, schema, table, &[("note", oid::TEXT)]));
        bench.wal(0, wire::insert(id, &[Null]));
    }
    assert_eq!(bench.stop(), None);
    assert!(bench.sent.is_empty());
    bench.wal(256, wire::commit(256, 266));
    assert_eq!(bench.settled(), 266);
    assert_eq!(bench.relay.snapshot().counters.foreign_changes, 3);
}

#[test]
fn an_unchanged_toast_marker_in_an_insert_is_an_error_never_an_empty_message() {
    let mut bench = streaming(OutboxSpec::new("public", "outbox"), &COLUMNS);
    bench.wal(
        0,
        wire::insert(OUTBOX, &[Text("a"), Text("k"), Text("t"), Unchanged]),
    );
    assert!(bench.sent.is_empty());
    assert_stopped(&bench, StopKind::Failed, &["column 3", "not sent"]);
}

#[test]
fn a_row_of_a_table_that_was_not_described_is_an_error() {
    let mut bench = streaming(OutboxSpec::new("public", "outbox"), &COLUMNS);
    bench.wal(0x1F0, wire::insert(999, &[Text("a")]));
    assert_stopped(&bench, StopKind::Failed, &["999", "0/1F0"]);
}

#[test]
fn integer_ids_of_several_outboxes_need_the_table_in_the_dedup_id() {
    let outboxes = || {
        vec![
            OutboxSpec::new("public", "outbox"),
            OutboxSpec::new("sales", "outbox"),
        ]
    };
    let columns = [
        ("id", oid::INT8),
        ("type", oid::TEXT),
        ("payload", oid::JSONB),
    ];
    let mut bench = Bench::with(RelaySettings::new(outboxes()), Writers::Exclusive);
    bench.wal(256, wire::begin(256));
    bench.wal(0, wire::relation(1, "public", "outbox", &columns));
    assert_stopped(
        &bench,
        StopKind::Misconfigured,
        &["public.outbox", "{table}", "dedup_id"],
    );

    let mut named = outboxes();
    for spec in &mut named {
        spec.dedup_id = super::template("{table}:{id}");
    }
    let mut bench = Bench::with(RelaySettings::new(named), Writers::Exclusive);
    bench.wal(256, wire::begin(256));
    for (relation, schema) in [(1, "public"), (2, "sales")] {
        bench.wal(0, wire::relation(relation, schema, "outbox", &columns));
        bench.wal(
            0,
            wire::insert(relation, &[Text("5"), Text("t"), Text("{}")]),
        );
    }
    assert_eq!(bench.take_sent_ids(), ["public.outbox:5", "sales.outbox:5"]);
}

#[test]
fn uuids_of_several_outboxes_do_not_collide() {
    let columns = [
        ("id", oid::UUID),
        ("type", oid::TEXT),
        ("payload", oid::JSONB),
    ];
    let outboxes = vec![
        OutboxSpec::new("public", "outbox"),
        OutboxSpec::new("sales", "outbox"),
    ];
    let mut bench = Bench::with(RelaySettings::new(outboxes), Writers::Exclusive);
    bench.wal(256, wire::begin(256));
    bench.wal(0, wire::relation(1, "public", "outbox", &columns));
    assert_eq!(bench.stop(), None);
}
