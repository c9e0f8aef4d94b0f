//! Frames that are no rows, and frames that make no sense.

use bytes::Bytes;

use super::support::wire::Val::{Null, Text};
use super::support::wire::{self, oid};
use super::support::{Bench, ORDERS, OUTBOX};
use crate::outbox::{Action, StopKind, Writers};

#[test]
fn what_concerns_other_tables_is_skipped_and_progress_is_made() {
    let mut bench = Bench::new(Writers::Exclusive);
    let large = vec![7; 1 << 20];
    bench.wal(90, wire::logical_message(false, "other", &large));
    bench.wal(100, wire::begin(100));
    bench.wal(0, wire::origin("elsewhere"));
    bench.wal(0, wire::type_message(30_000, "mood"));
    bench.wal(
        0,
        wire::relation(ORDERS, "public", "orders", &[("id", oid::INT4)]),
    );
    bench.wal(100, wire::truncate(&[ORDERS]));
    bench.wal(100, wire::insert(ORDERS, &[Text("1")]));
    bench.wal(100, wire::update(ORDERS, &[Text("1")]));
    bench.wal(100, wire::delete(ORDERS, &[Text("1")]));
    bench.wal(100, wire::logical_message(true, "other", &large));
    bench.wal(100, wire::stream_abort());
    bench.wal(100, wire::commit(100, 110));
    assert_eq!(bench.stop(), None);
    assert!(bench.sent.is_empty());
    assert_eq!(bench.settled(), 110);
    let counters = bench.relay.snapshot().counters;
    assert_eq!((counters.transactions, counters.foreign_changes), (1, 5));
}

#[test]
fn unknown_bytes_stop_with_the_byte_and_the_lsn() {
    for (data, words) in [
        (&b"Z123"[..], &["'Z'", "byte 0"][..]),
        (b"", &["byte 0"]),
        (b"B\0\0", &["Begin", "byte 1"]),
        (b"S\0\0\x02\xbc\x01", &["StreamStart"]),
    ] {
        let mut bench = Bench::new(Writers::Exclusive);
        bench.wal(0x016B_3748, Bytes::copy_from_slice(data));
        let (kind, text) = bench.stop().unwrap();
        assert_eq!(kind, StopKind::Failed);
        assert!(text.contains("0/16B3748"), "{text}");
        for word in words {
            let squeezed = text.replace(' ', "");
            assert!(squeezed.contains(&word.replace(' ', "")), "{word}: {text}");
        }
        assert!(bench.actions.contains(&Action::CloseSession));
        assert_eq!(bench.confirmed(), 0);
    }
}

#[test]
fn messages_out_of_place_stop_before_confirming() {
    let begin = |lsn| wire::begin(lsn);
    let commit = wire::commit;
    for frames in [
        vec![begin(100), begin(200)],
        vec![commit(100, 110)],
        vec![begin(100), commit(90, 110)],
        vec![begin(100), commit(100, 100)],
        vec![begin(200), commit(200, 210), begin(100)],
        vec![wire::insert(OUTBOX, &[Null])],
        vec![wire::truncate(&[OUTBOX])],
    ] {
        let mut bench = Bench::new(Writers::Exclusive);
        let last = frames.len() - 1;
        for (index, frame) in frames.into_iter().enumerate() {
            assert_eq!(bench.stop(), None, "{index}");
            bench.wal(1, frame);
            if index < last {
                continue;
            }
            assert_eq!(bench.stop().map(|(kind, _)| kind), Some(StopKind::Failed));
        }
    }
}

#[test]
fn a_transaction_that_goes_back_is_a_fault_even_with_rows_in_flight() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(200, &[("a", "1")]);
    bench.wal(100, wire::begin(100));
    bench.row("b", "1");
    assert_eq!(bench.stop().map(|(kind, _)| kind), Some(StopKind::Failed));
}

#[test]
fn savepoints_and_rollbacks_leave_only_the_rows_that_count() {
    // The server sends what the savepoints left: 500 rows, then 5.
    let mut bench = Bench::new(Writers::Exclusive);
    let ids: Vec<String> = (0..505).map(|id| id.to_string()).collect();
    let rows: Vec<_> = ids.iter().map(|id| (id.as_str(), "k")).collect();
    bench.transaction(100, &rows);
    let sent = bench.take_sent();
    assert_eq!(
        sent.iter().map(super::support::id_of).collect::<Vec<_>>(),
        ids
    );
    for (row, index) in sent.iter().zip(0..) {
        assert_eq!(row.expected_last_sequence, Some(index));
        assert_eq!(bench.settled(), 0);
        bench.ack(row);
    }
    assert_eq!(bench.settled(), 110);
}

#[test]
fn insert_and_delete_in_one_transaction_publish_once() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.wal(100, wire::begin(100));
    bench.describe();
    bench.row("a", "1");
    bench.wal(100, wire::delete(OUTBOX, &[Text("a"), Null, Null, Null]));
    bench.wal(100, wire::commit(100, 110));
    assert_eq!(bench.take_sent_ids(), ["a"]);
}

#[test]
fn a_huge_transaction_is_published_as_it_arrives_and_confirmed_at_its_commit() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.wal(100, wire::begin(100));
    bench.describe();
    for id in 0..10_000 {
        bench.row(&id.to_string(), "k");
        let sent = bench.take_sent();
        assert_eq!(sent.len(), 1);
        bench.ack(&sent[0]);
        assert_eq!(bench.relay.snapshot().in_flight_rows, 0);
    }
    assert_eq!(bench.settled(), 0);
    bench.wal(100, wire::commit(100, 110));
    assert_eq!(bench.settled(), 110);
}
