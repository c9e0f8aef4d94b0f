//! SIGTERM: rows in flight are awaited for a bounded time, nothing new begins.

use super::support::{Bench, OUTBOX, columns, settings, wire};
use crate::outbox::{EpochEnd, SourceFaultKind, StopKind, Writers};

#[test]
fn an_idle_machine_stops_at_once() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.shut_down();
    assert_eq!(bench.stop().unwrap().0, StopKind::Drained);
    assert!(!bench.relay.wants_wal());
    assert_eq!(bench.relay.poll_timeout(), None);
}

#[test]
fn rows_in_flight_are_awaited_and_confirmed_in_the_last_status() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    let sent = bench.take_sent();
    bench.shut_down();
    assert_eq!(bench.stop(), None);
    assert!(!bench.relay.wants_wal());
    bench.ack(&sent[0]);
    assert_eq!(bench.stop(), None);
    bench.ack(&sent[1]);
    let (kind, text) = bench.stop().unwrap();
    assert_eq!(kind, StopKind::Drained);
    assert!(text.contains("every row received is stored"), "{text}");
    // What the shell sends as its last word.
    let now = bench.now();
    let _ = bench.relay.poll_status(now);
    assert_eq!(bench.confirmed(), 110);
}

#[test]
fn an_open_transaction_is_read_to_its_end() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.wal(100, wire::begin(100));
    bench.describe();
    bench.row("a", "1");
    bench.ack_all();
    bench.shut_down();
    assert!(bench.relay.wants_wal());
    bench.row("b", "1");
    bench.ack_all();
    assert_eq!(bench.stop(), None);
    bench.wal(100, wire::commit(100, 110));
    assert_eq!(bench.stop().unwrap().0, StopKind::Drained);
    let now = bench.now();
    let _ = bench.relay.poll_status(now);
    assert_eq!(bench.confirmed(), 110);
}

#[test]
fn the_wait_is_bounded_and_says_what_is_left() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    bench.advance(2_000);
    bench.shut_down();
    bench.advance(2_000);
    assert_eq!(bench.stop(), None);
    bench.advance(3_100);
    let (kind, text) = bench.stop().unwrap();
    assert_eq!(kind, StopKind::Drained);
    assert!(text.contains("1 rows not acked"), "{text}");
    assert_eq!(bench.confirmed(), 0);
}

#[test]
fn nothing_is_awaited_from_a_server_that_is_gone() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    bench.session = None;
    bench.end_session(SourceFaultKind::Unreachable);
    bench.shut_down();
    assert_eq!(bench.stop().unwrap().0, StopKind::Drained);

    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    bench.stream = None;
    bench.end_epoch(EpochEnd::Disconnected {
        detail: "gone".to_owned(),
    });
    bench.shut_down();
    assert_eq!(bench.stop().unwrap().0, StopKind::Drained);
}

#[test]
fn a_machine_that_stopped_does_nothing_any_more() {
    let mut bench = Bench::with(settings(), Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    bench.shut_down();
    bench.advance(6_000);
    bench.take_actions();
    bench.take_sent();
    bench.wal(200, wire::begin(200));
    bench.advance(60_000);
    bench.shut_down();
    assert!(bench.actions.is_empty(), "{:?}", bench.actions);
    assert!(bench.sent.is_empty());
}

#[test]
fn rows_before_a_table_fault_are_confirmed_with_the_closing_session() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    let sent = bench.take_sent();
    bench.wal(300, wire::begin(300));
    bench.wal(0, wire::relation(OUTBOX, "public", "renamed", &columns()));
    assert_eq!(bench.stop(), None, "row a is not acked yet");
    assert!(!bench.relay.wants_wal());
    bench.ack(&sent[0]);
    assert_eq!(bench.stop().unwrap().0, StopKind::SlotLost);
    let parting = bench.relay.parting_confirmation().unwrap().as_u64();
    assert!((101..300).contains(&parting), "{parting}");
}
