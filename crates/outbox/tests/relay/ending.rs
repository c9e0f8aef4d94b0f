//! SIGTERM: rows in flight are awaited for a bounded time, nothing new begins.

use super::support::{Bench, OUTBOX, api_error, columns, settings, wire};
use crate::outbox::{Action, EpochEnd, SourceFaultKind, StopKind, Writers};

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

/// A bench whose epoch has ended for a poison row; the next one is being opened, and `b` waits.
fn between_epochs() -> Bench {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("large", "1"), ("b", "1")]);
    let (stream, sent) = (bench.stream.take(), bench.take_sent());
    // Over the stream's limit.
    bench.refuse(sent[0].token, api_error(400, 10_054));
    assert_ne!(bench.relay.snapshot().state, "streaming");
    bench.stream = stream;
    bench
}

/// The epoch that is being opened begins.
fn open_epoch(bench: &mut Bench) {
    let (now, start) = (bench.now(), bench.stream.clone().unwrap());
    bench.relay.handle_epoch_started(now, bench.epoch, start);
    bench.pump();
}

#[test]
fn an_epoch_that_changes_at_once_is_waited_for() {
    let mut bench = between_epochs();
    bench.shut_down();
    assert_eq!(bench.stop(), None, "the next epoch is being opened");
    bench.advance(300);
    open_epoch(&mut bench);
    let letter = bench.letters()[0].token;
    bench.parked(letter);
    bench.ack_all();
    assert_eq!(bench.stop().unwrap().0, StopKind::Drained);
    assert_eq!(bench.settled(), 110);

    let mut bench = between_epochs();
    bench.shut_down();
    bench.advance(4_900);
    assert_eq!(bench.stop(), None);
    bench.advance(200);
    let (kind, text) = bench.stop().unwrap();
    assert_eq!(kind, StopKind::Drained);
    assert!(text.contains("2 rows not acked"), "{text}");
}

#[test]
fn rows_before_a_table_fault_are_waited_for_across_epochs_too() {
    let mut bench = between_epochs();
    bench.wal(300, wire::begin(300));
    bench.wal(0, wire::relation(OUTBOX, "public", "renamed", &columns()));
    assert_eq!(bench.stop(), None, "the next epoch is being opened");
    open_epoch(&mut bench);
    let letter = bench.letters()[0].token;
    bench.parked(letter);
    bench.ack_all();
    assert_eq!(bench.stop().unwrap().0, StopKind::SlotLost);
    let parting = bench.relay.parting_confirmation().unwrap().as_u64();
    assert!((101..300).contains(&parting), "{parting}");
}

/// A bench that is ending for a table fault while row a is in flight.
fn failing(shut_down_first: bool) -> Bench {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.wal(300, wire::begin(300));
    bench.describe();
    bench.row("a", "1");
    if shut_down_first {
        bench.shut_down();
    }
    bench.wal(0, wire::relation(OUTBOX, "public", "renamed", &columns()));
    assert_eq!(bench.stop(), None);
    assert_eq!(bench.relay.snapshot().state, "draining");
    bench.take_actions();
    bench
}

#[test]
fn a_shutdown_is_not_forgotten_for_a_table_fault() {
    for shut_down_first in [true, false] {
        let mut bench = failing(shut_down_first);
        if !shut_down_first {
            bench.shut_down();
        }
        bench.session = None;
        bench.end_session(SourceFaultKind::Unreachable);
        assert_eq!(bench.stop().unwrap().0, StopKind::Drained);
        assert_eq!(bench.relay.parting_confirmation(), None);
        assert!(!bench.actions.contains(&Action::CloseSession));
    }
}

#[test]
fn a_table_fault_whose_session_ended_is_met_again_in_the_next() {
    let mut bench = failing(false);
    bench.end_session(SourceFaultKind::Unreachable);
    bench.advance(1_000);
    assert_eq!(bench.stop(), None);
    assert_eq!(bench.relay.snapshot().state, "streaming");
    assert_eq!(bench.relay.parting_confirmation(), None);
    assert!(!bench.actions.contains(&Action::CloseSession));
    bench.wal(300, wire::begin(300));
    bench.describe();
    bench.row("a", "1");
    bench.wal(0, wire::relation(OUTBOX, "public", "renamed", &columns()));
    bench.ack_all();
    assert_eq!(bench.stop().unwrap().0, StopKind::SlotLost);
}
