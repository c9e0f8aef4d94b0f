//! The replication session: its faults, its silence, its end by the server.

use super::support::{Bench, epoch_start, session_start, settings, source_fault};
use crate::outbox::{
    Action, Notice, SourceFault, SourceFaultKind as Kind, StopKind, Tail, Writers,
};

/// A machine whose sessions are opened by hand.
fn waiting() -> Bench {
    Bench::start(settings(), None, Some(epoch_start(Writers::Exclusive)))
}

fn fail_opening(bench: &mut Bench, kind: Kind) {
    let now = bench.now();
    bench.relay.handle_session_ended(now, source_fault(kind));
    bench.pump();
}

fn last_fault(bench: &Bench) -> &SourceFault {
    for notice in bench.notices.iter().rev() {
        if let Notice::SessionEnded { fault, .. } = notice {
            return fault;
        }
    }
    panic!("no session ended: {:?}", bench.notices);
}

fn attempts(bench: &Bench) -> usize {
    let opens = |action: &&Action| **action == Action::OpenSession;
    bench.actions.iter().filter(opens).count()
}

#[test]
fn an_outage_of_two_minutes_costs_5_to_25_attempts() {
    for kind in [
        Kind::Unreachable,
        Kind::Restarting,
        Kind::TooManyConnections,
    ] {
        let mut bench = waiting();
        let mut failed = 0;
        while bench.now_ms < 120_000 {
            if attempts(&bench) > failed {
                failed += 1;
                fail_opening(&mut bench, kind);
            }
            bench.advance(100);
        }
        assert!((5..=25).contains(&failed), "{kind:?}: {failed}");
        assert_eq!(bench.stop(), None);
    }
}

#[test]
fn a_standby_asks_every_two_seconds_however_long() {
    let mut bench = waiting();
    for attempt in 1..100 {
        assert_eq!(attempts(&bench), attempt);
        fail_opening(&mut bench, Kind::SlotHeld);
        bench.advance(2_000);
    }
    assert_eq!(bench.stop(), None);
}

#[test]
fn a_standby_outlasts_a_password_that_is_rotated_meanwhile() {
    for kind in [Kind::Authentication, Kind::Permission, Kind::Unfit] {
        let mut bench = waiting();
        fail_opening(&mut bench, Kind::SlotHeld);
        bench.advance(2_000);
        fail_opening(&mut bench, kind);
        assert_eq!(bench.stop(), None, "{kind:?}");
    }
}

#[test]
fn a_standby_that_takes_over_reads_the_streams_tail_again() {
    let mut bench = waiting();
    fail_opening(&mut bench, Kind::SlotHeld);
    let early = bench.epoch;
    // Meanwhile the holder publishes three rows. It dies, and the slot is free.
    let stream = bench.stream.as_mut().unwrap();
    stream.last_sequence = 3;
    stream.tail = Tail::Row(super::support::stored(
        3,
        super::support::position(100, 2),
        "c",
    ));
    bench.session = Some(session_start());
    bench.advance(2_000);
    assert!(
        bench.epoch > early,
        "the tail known from before is out of date"
    );
    bench.transaction(100, &[("a", "1"), ("b", "1"), ("c", "1"), ("d", "1")]);
    let sent = bench.take_sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(super::support::id_of(&sent[0]), "d");
    assert_eq!(sent[0].expected_last_sequence, Some(3));
    let second = |notice: &Notice| matches!(notice, Notice::SecondWriter { .. });
    assert!(!bench.noticed(second));
}

#[test]
fn lost_slots_publications_and_tables_stop_at_once() {
    for kind in [
        Kind::SlotMissing,
        Kind::SlotLost,
        Kind::PublicationMissing,
        Kind::PublicationUnfit,
        Kind::TableChanged,
    ] {
        let mut bench = waiting();
        fail_opening(&mut bench, kind);
        let (stop, text) = bench.stop().unwrap();
        assert_eq!(stop, StopKind::SlotLost, "{kind:?}");
        assert!(text.contains(&kind.to_string()), "{text}");

        let mut bench = Bench::new(Writers::Exclusive);
        let now = bench.now();
        bench.relay.handle_source_fault(now, source_fault(kind));
        bench.pump();
        assert_eq!(bench.stop().unwrap().0, StopKind::SlotLost, "{kind:?}");
    }
}

#[test]
fn refused_credentials_stop_at_the_start_and_are_retried_later() {
    for kind in [Kind::Authentication, Kind::Permission, Kind::Unfit] {
        let mut bench = waiting();
        fail_opening(&mut bench, kind);
        assert_eq!(bench.stop().unwrap().0, StopKind::Refused, "{kind:?}");

        let mut bench = Bench::new(Writers::Exclusive);
        bench.session = None;
        bench.end_session(Kind::Unreachable);
        bench.advance(1_000);
        for attempt in 2..6 {
            assert_eq!(attempts(&bench), attempt, "{kind:?}");
            fail_opening(&mut bench, kind);
            assert_eq!(bench.stop(), None);
            bench.advance(30_000);
        }
    }
}

#[test]
fn a_session_that_ends_forgets_its_rows_and_the_next_one_sends_them_again() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    bench.transaction(200, &[("b", "1")]);
    let sent = bench.take_sent();
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 110);
    let epoch = bench.epoch;
    bench.end_session(Kind::Unreachable);
    assert_eq!((bench.settled(), bench.confirmed()), (0, 0));
    assert_eq!(bench.relay.snapshot().in_flight_rows, 0);
    assert!(bench.actions.contains(&Action::CloseEpoch { epoch }));
    bench.advance(1_000);
    // A late answer of the old epoch's row means nothing now.
    bench.ack_at(sent[1].token, 2);
    assert_eq!(bench.relay.snapshot().counters.stray_answers, 1);
    bench.transaction(200, &[("b", "1")]);
    let again = bench.take_sent();
    assert_eq!(again[0].expected_last_sequence, Some(1));
    assert_ne!(again[0].token, sent[1].token);
    bench.ack(&again[0]);
    assert_eq!(bench.settled(), 210);
}

#[test]
fn a_slot_made_anew_is_the_only_source_of_truth() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(5_000, &[("a", "1")]);
    bench.ack_all();
    bench.advance(1_000);
    assert_eq!(bench.last_status(), 5_010);
    bench.end_session(Kind::Unreachable);
    // Another slot of the same name, on a server made anew: its positions are lower.
    bench.session.as_mut().unwrap().source.system_identifier = 9;
    bench.advance(1_000);
    bench.statuses.clear();
    bench.transaction(100, &[("b", "1")]);
    assert_eq!(bench.take_sent_ids(), ["b"]);
    bench.advance(1_000);
    assert_eq!(bench.last_status(), 0);
}

#[test]
fn a_silent_server_is_asked_and_then_taken_for_dead() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.server_answers = false;
    bench.statuses.clear();
    bench.advance(44_000);
    let asked = bench
        .statuses
        .iter()
        .filter(|(_, status)| status.reply_requested);
    let times: Vec<_> = asked.map(|(at, _)| at / 1_000).collect();
    assert_eq!(times, [10, 20, 30, 40]);
    assert_eq!(bench.relay.snapshot().counters.sessions, 1);
    bench.session = None;
    bench.advance(2_000);
    assert!(bench.actions.contains(&Action::CloseSession));
    let fault = last_fault(&bench);
    assert!(fault.detail.contains("45 s"), "{fault}");
}

#[test]
fn a_server_that_answers_is_alive() {
    let mut bench = Bench::new(Writers::Exclusive);
    for _ in 0..30 {
        bench.advance(10_000);
        bench.keepalive(0, false);
    }
    assert_eq!(bench.relay.snapshot().counters.sessions, 1);
}

#[test]
fn silence_proves_nothing_while_the_machine_does_not_read() {
    let mut limits = settings();
    limits.max_in_flight_rows = 1;
    let mut bench = Bench::start(limits, Some(session_start()), None);
    bench.transaction(100, &[("a", "1")]);
    bench.advance(300_000);
    bench.stream = Some(epoch_start(Writers::Exclusive));
    let (now, epoch) = (bench.now(), bench.epoch);
    let start = epoch_start(Writers::Exclusive);
    bench.relay.handle_epoch_started(now, epoch, start);
    bench.pump();
    bench.ack_all();
    assert!(bench.relay.wants_wal());
    bench.advance(40_000);
    assert_eq!(bench.relay.snapshot().counters.sessions, 1);
}

#[test]
fn a_burst_of_keepalives_with_rows_outstanding_closes_the_session() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    bench.session = None;
    for _ in 0..50 {
        bench.keepalive(110, true);
    }
    assert!(!bench.actions.contains(&Action::CloseSession));
    bench.keepalive(110, true);
    assert!(bench.actions.contains(&Action::CloseSession));
    assert_eq!(last_fault(&bench).kind, Kind::Restarting);
    assert_eq!(bench.stop(), None);
}

#[test]
fn a_burst_with_nothing_outstanding_is_answered() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.statuses.clear();
    for _ in 0..1_000 {
        bench.keepalive(110, true);
    }
    assert_eq!(bench.statuses.len(), 1_000);
    assert_eq!(bench.last_status(), 110);
    assert!(!bench.actions.contains(&Action::CloseSession));
}

#[test]
fn requests_at_the_usual_pace_are_no_burst() {
    let mut bench = Bench::start(settings(), Some(session_start()), None);
    bench.transaction(100, &[("a", "1")]);
    for _ in 0..200 {
        bench.advance(100);
        bench.keepalive(110, true);
    }
    assert_eq!(bench.relay.snapshot().counters.sessions, 1);
}
