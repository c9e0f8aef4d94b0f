//! The resume point: which replayed rows the stream holds already, and the proof of it.

use super::support::wire::Val::Text;
use super::support::wire::{self, oid};
use super::support::{
    Bench, ORDERS, epoch_start, id_of, position, session_start, settings, stored,
};
use crate::outbox::{
    Action, EpochEnd, EpochStart, Fork, Notice, Position, SourceFaultKind, StoredRow, Tail, Writers,
};
use pgoutput::Lsn;

/// An exclusive stream of five messages, the last one as given.
pub(super) fn stream(tail: Tail) -> EpochStart {
    EpochStart {
        last_sequence: 5,
        tail,
        ..epoch_start(Writers::Exclusive)
    }
}

fn begun(tail: Tail) -> Bench {
    Bench::start(settings(), Some(session_start()), Some(stream(tail)))
}

pub(super) fn tail_at(at: Position, id: &str) -> Tail {
    Tail::Row(stored(5, at, id))
}

pub(super) fn voided(notice: &Notice) -> bool {
    matches!(notice, Notice::ResumeVoid { .. })
}

pub(super) fn proved(notice: &Notice) -> bool {
    matches!(notice, Notice::Resumed { .. })
}

#[test]
fn rows_up_to_the_tail_are_skipped_and_confirmed_once_its_row_has_arrived() {
    let mut bench = begun(tail_at(position(200, 1), "d"));
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    bench.keepalive(150, true);
    assert_eq!(
        (bench.settled(), bench.last_status()),
        (0, 0),
        "believed, not proved"
    );
    bench.wal(200, wire::begin(200));
    bench.row("c", "1");
    assert!(!bench.noticed(proved));
    bench.row("d", "1");
    assert!(bench.noticed(proved));
    assert_eq!(bench.settled(), 150);
    bench.row("e", "1");
    bench.wal(200, wire::commit(200, 210));
    let sent = bench.take_sent();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].expected_last_sequence, Some(5));
    assert_eq!(bench.settled(), 150);
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 210);
    assert_eq!(bench.relay.snapshot().counters.skipped, 4);
}

#[test]
fn another_id_at_the_resume_position_voids_it() {
    let mut bench = begun(tail_at(position(100, 1), "b"));
    bench.wal(100, wire::begin(100));
    bench.describe();
    bench.row("a", "1");
    bench.row("not b", "1");
    assert!(bench.noticed(voided));
    assert!(bench.actions.contains(&Action::CloseSession));
    assert_eq!((bench.settled(), bench.last_status()), (0, 0));
    // The session begins again without a resume point; the rows are sent one at a time.
    bench.transaction(100, &[("a", "1"), ("not b", "1")]);
    let sent = bench.take_sent();
    assert_eq!(sent.len(), 1);
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 0);
    bench.ack_all();
    assert_eq!(bench.settled(), 110);
    assert_eq!(bench.relay.snapshot().counters.sessions, 2);
}

#[test]
fn passing_the_resume_position_without_its_row_voids_it() {
    type Pass = fn(&mut Bench);
    let by_begin: Pass = |bench| bench.wal(300, wire::begin(300));
    let by_keepalive: Pass = |bench| bench.keepalive(201, false);
    let by_id: Pass = |bench| {
        bench.wal(200, wire::begin(200));
        bench.row("x", "1");
    };
    // The change at the resume position is no outbox row here; one comes behind it.
    let by_row: Pass = |bench| {
        bench.wal(200, wire::begin(200));
        let columns = [("id", oid::INT4)];
        bench.wal(0, wire::relation(ORDERS, "public", "orders", &columns));
        bench.wal(0, wire::insert(ORDERS, &[Text("1")]));
        assert!(!bench.noticed(voided));
        bench.row("y", "1");
    };
    for pass in [by_begin, by_keepalive, by_id, by_row] {
        let mut bench = begun(tail_at(position(200, 0), "z"));
        bench.transaction(100, &[("a", "1")]);
        assert!(!bench.noticed(voided));
        assert_eq!(bench.settled(), 0);
        pass(&mut bench);
        assert!(bench.noticed(voided));
        assert_eq!(bench.last_status(), 0);
        bench.transaction(100, &[("a", "1")]);
        bench.ack_all();
        assert_eq!(
            bench.settled(),
            110,
            "{:#?} {:?}",
            bench.notices,
            bench.sent
        );
    }
}

#[test]
fn a_keepalive_up_to_the_resume_position_voids_nothing() {
    let mut bench = begun(tail_at(position(200, 0), "b"));
    bench.transaction(100, &[("a", "1")]);
    bench.keepalive(200, false);
    assert!(!bench.noticed(voided));
    assert_eq!(bench.settled(), 0);
    bench.transaction(200, &[("b", "1")]);
    assert_eq!(bench.settled(), 210);
}

#[test]
fn rows_beyond_the_tail_need_no_proof() {
    let mut bench = begun(tail_at(position(50, 0), "old"));
    bench.transaction(100, &[("a", "1")]);
    let sent = bench.take_sent();
    assert_eq!(sent[0].expected_last_sequence, Some(5));
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 110);
    assert!(!bench.noticed(voided));
}

#[test]
fn the_hold_outlasts_a_broker_reconnect_in_the_middle_of_the_skip() {
    let mut bench = begun(tail_at(position(200, 0), "b"));
    bench.transaction(100, &[("a", "1")]);
    bench.end_epoch(EpochEnd::Disconnected {
        detail: "gone".to_owned(),
    });
    bench.keepalive(150, true);
    bench.advance(1_000);
    bench.keepalive(160, true);
    assert_eq!((bench.settled(), bench.last_status()), (0, 0));
    assert_eq!(bench.relay.snapshot().counters.sessions, 1);
    bench.transaction(200, &[("b", "1")]);
    assert!(bench.noticed(proved));
    assert_eq!(bench.settled(), 210);
    assert!(bench.sent.is_empty());
}

#[test]
fn a_stream_that_changed_in_the_middle_of_the_skip_begins_the_session_again() {
    let mut bench = begun(tail_at(position(200, 0), "b"));
    bench.transaction(100, &[("a", "1")]);
    bench.stream = Some(stream(Tail::Gone));
    bench.end_epoch(EpochEnd::Disconnected {
        detail: "gone".to_owned(),
    });
    bench.advance(1_000);
    assert_eq!(bench.relay.snapshot().counters.sessions, 2);
    assert_eq!(bench.settled(), 0);
    bench.transaction(100, &[("a", "1")]);
    assert_eq!(bench.take_sent_ids(), ["a"]);
}

#[test]
fn the_hold_does_not_outlast_the_session() {
    let mut bench = begun(tail_at(position(200, 0), "b"));
    bench.transaction(100, &[("a", "1")]);
    bench.end_session(SourceFaultKind::Unreachable);
    bench.stream = Some(stream(tail_at(position(50, 0), "old")));
    bench.advance(1_000);
    bench.transaction(100, &[("a", "1")]);
    bench.ack_all();
    assert_eq!(bench.settled(), 110);
}

#[test]
fn rows_that_came_before_the_epoch_are_covered_by_its_tail_where_it_is_proved() {
    let mut bench = Bench::start(settings(), Some(session_start()), None);
    bench.transaction(100, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let (now, epoch) = (bench.now(), bench.epoch);
    let start = stream(tail_at(position(100, 1), "b"));
    bench.stream = Some(start.clone());
    bench.relay.handle_epoch_started(now, epoch, start);
    bench.pump();
    assert_eq!(bench.take_sent_ids(), ["c"]);
    assert_eq!(bench.settled(), 0);
    assert!(bench.noticed(|notice| matches!(notice, Notice::Resumed { skipped: 2, .. })));
    assert_eq!(bench.relay.snapshot().counters.skipped, 2);

    let mut bench = Bench::start(settings(), Some(session_start()), None);
    bench.transaction(100, &[("a", "1"), ("x", "1"), ("c", "1")]);
    let (now, epoch) = (bench.now(), bench.epoch);
    let start = stream(tail_at(position(100, 1), "b"));
    bench.stream = Some(start.clone());
    bench.relay.handle_epoch_started(now, epoch, start);
    bench.pump();
    assert!(bench.noticed(voided));
}

#[test]
fn rows_that_came_before_the_epoch_and_end_before_its_tail_wait_for_the_proof() {
    let mut bench = Bench::start(settings(), Some(session_start()), None);
    bench.transaction(100, &[("a", "1")]);
    let (now, epoch) = (bench.now(), bench.epoch);
    let start = stream(tail_at(position(200, 0), "b"));
    bench.stream = Some(start.clone());
    bench.relay.handle_epoch_started(now, epoch, start);
    bench.pump();
    bench.keepalive(150, true);
    assert!(bench.sent.is_empty());
    assert_eq!((bench.settled(), bench.last_status()), (0, 0));
    bench.transaction(200, &[("b", "1")]);
    assert_eq!(bench.settled(), 210);
}

#[test]
fn a_tail_that_is_none_of_ours_gives_no_resume_point() {
    let mut other_server = stored(5, position(100, 1), "b");
    other_server.source.system_identifier = 1;
    let mut other_database = stored(5, position(100, 1), "b");
    other_database.source.database = "other".to_owned();
    let mut other_slot = stored(5, position(100, 1), "b");
    other_slot.source.slot = "other".to_owned();
    for tail in [
        Tail::Gone,
        Tail::Foreign,
        Tail::Row(other_server),
        Tail::Row(other_database),
        Tail::Row(other_slot),
    ] {
        let mut bench = begun(tail);
        assert!(bench.noticed(|notice| matches!(notice, Notice::NoResumePoint { .. })));
        bench.transaction(100, &[("a", "1"), ("b", "1")]);
        // Careful: duplicates are met one at a time.
        assert_eq!(bench.take_sent_ids(), ["a"]);
        assert_eq!(bench.relay.snapshot().counters.skipped, 0);
    }
    let mut bench = begun(Tail::Empty);
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    assert_eq!(bench.take_sent_ids(), ["a", "b"]);
}

#[test]
fn the_last_message_of_a_shared_stream_stands_for_itself_alone() {
    let mut start = stream(tail_at(position(100, 1), "b"));
    start.writers = Writers::Shared;
    let mut bench = Bench::start(settings(), Some(session_start()), Some(start));
    bench.transaction(100, &[("a", "1"), ("b", "2"), ("c", "3")]);
    assert_eq!(bench.take_sent_ids(), ["a", "c"]);
}

#[test]
fn a_tail_beyond_the_end_of_the_log_is_void_at_once() {
    let begun = |log_end| {
        let session = outbox::SessionStart {
            log_end: Lsn::new(log_end),
            ..session_start()
        };
        let start = stream(tail_at(position(200, 0), "z"));
        Bench::start(settings(), Some(session), Some(start))
    };
    let beyond = |notice: &Notice| matches!(notice, Notice::BeyondLogEnd { .. });
    let mut bench = begun(200);
    assert!(bench.noticed(beyond));
    bench.transaction(100, &[("a", "1")]);
    assert_eq!(bench.take_sent_ids(), ["a"]);
    assert_eq!(bench.relay.snapshot().counters.skipped, 0);
    // A commit record at 200 ends behind it, so it is whole in a log that ends at 201.
    let mut bench = begun(201);
    assert!(!bench.noticed(beyond));
    bench.transaction(100, &[("a", "1")]);
    assert!(bench.take_sent_ids().is_empty());
}

#[test]
fn what_the_session_itself_stored_is_never_beyond_the_end_of_the_log() {
    let session = outbox::SessionStart {
        log_end: Lsn::new(1),
        ..session_start()
    };
    let mut bench = Bench::start(settings(), Some(session), Some(stream(Tail::Empty)));
    bench.wal(300, wire::begin(300));
    bench.describe();
    bench.row("a", "1");
    bench.row("b", "1");
    let sent = bench.take_sent();
    sent.iter().for_each(|row| bench.store(row));
    bench.end_epoch(EpochEnd::Disconnected {
        detail: "gone".to_owned(),
    });
    bench.advance(1_000);
    assert!(!bench.noticed(|notice| matches!(notice, Notice::BeyondLogEnd { .. })));
    assert_eq!(
        bench.questions().len(),
        2,
        "each is looked for at its place"
    );
}

fn promoted(switch_lsn: u64, tail: StoredRow) -> Bench {
    let mut session = session_start();
    session.source.timeline = 2;
    session.forks = vec![Fork {
        timeline: 1,
        switch_lsn: Lsn::new(switch_lsn),
    }];
    Bench::start(settings(), Some(session), Some(stream(Tail::Row(tail))))
}

#[test]
fn a_tail_from_before_the_promotion_holds() {
    let mut bench = promoted(101, stored(5, position(100, 1), "b"));
    bench.transaction(100, &[("a", "1"), ("b", "1"), ("c", "1")]);
    assert!(bench.noticed(proved));
    assert_eq!(bench.take_sent_ids(), ["c"]);
}

#[test]
fn a_tail_from_beyond_the_promotion_is_void_and_no_row_is_skipped() {
    let mut bench = promoted(100, stored(5, position(100, 1), "b"));
    let orphans = |notice: &Notice| matches!(notice, Notice::Orphans { timeline: 1, .. });
    assert!(bench.noticed(orphans));
    bench.transaction(100, &[("x", "1"), ("y", "1")]);
    assert_eq!(bench.take_sent_ids(), ["x"]);
    assert_eq!(bench.relay.snapshot().counters.skipped, 0);
}

#[test]
fn a_timeline_that_the_server_never_was_on_is_void() {
    let mut tail = stored(5, position(100, 1), "b");
    tail.source.timeline = 7;
    let mut bench = promoted(100, tail);
    assert!(bench.noticed(|notice| matches!(notice, Notice::NoResumePoint { .. })));
    bench.transaction(100, &[("x", "1")]);
    assert_eq!(bench.take_sent_ids(), ["x"]);
}

/// A message of a command at sequence 5, which repeats what the tail before it said.
fn letter_at(at: Position, position_id: Option<&str>) -> StoredRow {
    StoredRow {
        origin: Some("dead-letter".to_owned()),
        position_id: position_id.map(str::to_owned),
        ..stored(5, at, "letter")
    }
}

#[test]
fn a_commands_message_at_the_tail_tells_the_resume_point_of_the_row_before_it() {
    let tail = Tail::Row(letter_at(position(200, 0), Some("b")));
    let mut bench = begun(tail);
    bench.transaction(100, &[("a", "1")]);
    bench.transaction(200, &[("b", "1"), ("c", "1")]);
    assert!(bench.noticed(proved));
    let sent = bench.take_sent();
    assert_eq!(sent.iter().map(id_of).collect::<Vec<_>>(), ["c"]);
    assert_eq!(sent[0].expected_last_sequence, Some(5));
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 210);
    // The id is that of the row, not that of the message which repeats its position.
    let mut bench = begun(Tail::Row(letter_at(position(100, 0), Some("b"))));
    bench.transaction(100, &[("letter", "1")]);
    assert!(bench.noticed(voided));
}

#[test]
fn a_command_that_writes_while_rows_are_skipped_changes_nothing() {
    let mut bench = begun(tail_at(position(200, 0), "b"));
    bench.transaction(100, &[("a", "1")]);
    let mut next = stream(Tail::Row(StoredRow {
        sequence: 6,
        ..letter_at(position(200, 0), Some("b"))
    }));
    next.last_sequence = 6;
    bench.stream = Some(next);
    bench.end_epoch(EpochEnd::Disconnected {
        detail: "gone".to_owned(),
    });
    bench.advance(1_000);
    bench.transaction(200, &[("b", "1"), ("c", "1")]);
    assert!(bench.noticed(proved) && !bench.noticed(voided));
    assert_eq!(bench.relay.snapshot().counters.sessions, 1);
    assert_eq!(bench.take_sent()[0].expected_last_sequence, Some(6));
}

#[test]
fn a_command_that_knew_no_resume_point_leaves_none() {
    let mut bench = begun(Tail::Row(letter_at(position(0, 0), None)));
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    assert!(bench.noticed(|notice| matches!(notice, Notice::NoResumePoint { .. })));
    assert_eq!(bench.take_sent_ids(), ["a"], "one row at a time");
}

#[test]
fn a_command_finds_a_gap_once_the_rows_in_flight_are_answered() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    let sent = bench.take_sent();
    let before = bench.epoch;
    bench.relay.handle_yield(bench.now());
    bench.pump();
    bench.transaction(200, &[("c", "1")]);
    bench.ack(&sent[0]);
    bench.advance(10);
    assert_eq!(bench.epoch, before, "a row is in flight");
    assert!(bench.sent.is_empty(), "nothing more goes out");
    bench.ack(&sent[1]);
    // The command writes while no epoch is open.
    let letter = letter_at(position(100, 1), Some("b"));
    let stream = bench.stream.as_mut().unwrap();
    (stream.last_sequence, stream.tail) = (
        3,
        Tail::Row(StoredRow {
            sequence: 3,
            ..letter
        }),
    );
    bench.advance(10);
    assert_eq!(bench.epoch, before + 1);
    let sent = bench.take_sent();
    assert_eq!(sent.iter().map(id_of).collect::<Vec<_>>(), ["c"]);
    assert_eq!(sent[0].expected_last_sequence, Some(3));
    bench.ack_at(sent[0].token, 4);
    assert_eq!(bench.settled(), 210);
    assert!(bench.questions().is_empty());
}

#[test]
fn what_ends_is_not_held_up_by_a_command() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    let sent = bench.take_sent();
    bench.shut_down();
    bench.relay.handle_yield(bench.now());
    bench.pump();
    bench.ack(&sent[0]);
    bench.advance(10);
    assert_eq!(bench.settled(), 110);
    assert!(bench.stop().is_some());
}
