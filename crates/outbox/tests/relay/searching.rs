//! What the stream is asked at the beginning of a session, and what its newest messages tell.

use super::resuming::{proved, stream, tail_at, voided};
use super::support::{Bench, epoch_start, id_of, position, session_start, settings, stored};
use crate::outbox::{Action, EpochEnd, Fork, Notice, StoredRow, Tail, Writers};
use pgoutput::Lsn;

#[test]
fn rows_that_came_before_the_orphans_were_known_are_renamed_too() {
    let mut session = session_start();
    session.source.timeline = 2;
    session.forks = vec![Fork {
        timeline: 1,
        switch_lsn: Lsn::new(100),
    }];
    let mut bench = Bench::start(settings(), Some(session), None);
    bench.transaction(100, &[("b", "1"), ("c", "1")]);
    let (now, epoch) = (bench.now(), bench.epoch);
    let start = stream(tail_at(position(300, 0), "b"));
    bench.stream = Some(start.clone());
    bench.relay.handle_epoch_started(now, epoch, start);
    bench.pump();
    assert_eq!(bench.take_sent_ids(), ["b@2"]);
}

#[test]
fn the_last_message_before_many_orphans_is_found_by_halving() {
    let mut tail = stored(5_000, position(10_000, 0), "z");
    tail.source.timeline = 1;
    let mut bench = Bench::start(settings(), None, Some(stream(Tail::Empty)));
    let held = (1..=700).filter(|n| n % 3 > 0);
    let held = held.map(|n| stored(n, position(n, 0), &format!("r{n}")));
    let orphans = (701..5_000).map(|n| stored(n, position(5_000 + n, 0), &format!("o{n}")));
    bench.messages = held
        .chain(orphans)
        .map(|row| outbox::SeenMessage {
            sequence: row.sequence,
            row: Some(row),
        })
        .collect();
    let mut start = stream(Tail::Row(tail));
    start.last_sequence = 5_000;
    bench.stream = Some(start);
    bench.look_back_denied = true;
    let mut session = session_start();
    session.source.timeline = 2;
    session.forks = vec![Fork {
        timeline: 1,
        switch_lsn: Lsn::new(701),
    }];
    let now = bench.now();
    bench.relay.handle_session_started(now, session);
    bench.pump();
    let named = |notice: &Notice| match notice {
        Notice::Orphans {
            first_sequence,
            last_sequence,
            count,
            ..
        } => (*first_sequence, *last_sequence, *count) == (701, 5_000, 4_300),
        _ => false,
    };
    assert!(bench.noticed(named), "{:?}", bench.notices);
    let is_question = |action: &&Action| matches!(action, Action::ReadNext { .. });
    let questions = bench.actions.iter().filter(is_question).count();
    assert!(questions <= 14, "{questions}");
    bench.transaction(700, &[("r700", "1")]);
    bench.transaction(800, &[("new", "1")]);
    assert_eq!(bench.take_sent_ids(), ["new"]);
}

#[test]
fn a_strangers_message_in_an_exclusive_stream_ends_the_prefix() {
    let mut bench = Bench::start(settings(), None, Some(stream(Tail::Empty)));
    let row = |sequence: u64, at: u64, id: &str| outbox::SeenMessage {
        sequence,
        row: Some(stored(sequence, position(at, 0), id)),
    };
    let stranger = outbox::SeenMessage {
        sequence: 2,
        row: None,
    };
    // The stranger took the place of the row at 200, and the chain went on behind it.
    bench.messages = vec![row(1, 100, "a"), stranger, row(3, 300, "c")];
    let mut start = stream(Tail::Row(stored(3, position(300, 0), "c")));
    start.last_sequence = 3;
    bench.stream = Some(start);
    let now = bench.now();
    bench.relay.handle_session_started(now, session_start());
    bench.pump();
    let told = |notice: &Notice| {
        matches!(
            notice,
            Notice::Strangers {
                first_sequence: 2,
                last_sequence: 2,
                count: 1
            }
        )
    };
    assert!(bench.noticed(told));
    bench.transaction(100, &[("a", "1")]);
    bench.transaction(200, &[("b", "1")]);
    bench.transaction(300, &[("c", "1")]);
    let sent = bench.take_sent();
    assert_eq!(sent.iter().map(id_of).collect::<Vec<_>>(), ["b"]);
    assert_eq!(sent[0].expected_last_sequence, Some(3));
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 310);
}

#[test]
fn a_strangers_message_before_the_first_of_ours_may_hide_a_row_too() {
    let mut bench = Bench::start(settings(), None, Some(stream(Tail::Empty)));
    bench.messages = vec![outbox::SeenMessage {
        sequence: 1,
        row: None,
    }];
    let mut start = stream(Tail::Row(stored(2, position(200, 0), "b")));
    start.last_sequence = 2;
    bench.stream = Some(start);
    let now = bench.now();
    bench.relay.handle_session_started(now, session_start());
    bench.pump();
    bench.transaction(100, &[("a", "1")]);
    bench.transaction(200, &[("b", "1")]);
    assert_eq!(bench.take_sent_ids(), ["a"]);
}

/// A shared stream whose third message says that all up to 200 was stored.
fn shared() -> Bench {
    let mut bench = Bench::start(settings(), None, Some(epoch_start(Writers::Shared)));
    let row = |sequence: u64, at: u64, id: &str, settled: Option<u64>| outbox::SeenMessage {
        sequence,
        row: Some(StoredRow {
            settled: settled.map(|at| position(at, 0)),
            chained: false,
            ..stored(sequence, position(at, 0), id)
        }),
    };
    bench.messages = vec![
        row(1, 100, "a", None),
        row(2, 200, "b", None),
        row(3, 400, "d", Some(200)),
    ];
    let stream = bench.stream.as_mut().unwrap();
    (stream.last_sequence, stream.tail) = (4, Tail::Foreign);
    bench
}

#[test]
fn a_shared_stream_is_resumed_by_its_marks_and_by_what_is_found_behind_them() {
    let mut bench = shared();
    bench.stream.as_mut().unwrap().tail = Tail::Gone;
    let now = bench.now();
    bench.relay.handle_session_started(now, session_start());
    bench.pump();
    bench.transaction(100, &[("a", "1")]);
    assert_eq!(bench.settled(), 0, "believed, not proved");
    bench.transaction(200, &[("b", "1")]);
    assert!(bench.noticed(proved));
    assert_eq!(bench.settled(), 210);
    bench.transaction(300, &[("c", "1")]);
    bench.transaction(400, &[("d", "1")]);
    let sent = bench.take_sent();
    assert_eq!(sent.iter().map(id_of).collect::<Vec<_>>(), ["c"]);
    assert_eq!(sent[0].settled, Some(position(200, 0)));
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 410);
}

#[test]
fn another_row_where_a_shared_stream_is_to_be_resumed_voids_it() {
    let mut bench = shared();
    bench.stream.as_mut().unwrap().tail = Tail::Gone;
    let now = bench.now();
    bench.relay.handle_session_started(now, session_start());
    bench.pump();
    bench.transaction(200, &[("not b", "1")]);
    assert!(bench.noticed(voided) || !bench.sent.is_empty());
    assert_eq!(bench.settled(), 0);
}

#[test]
fn a_shared_stream_that_may_not_be_looked_at_has_no_resume_point() {
    let mut bench = shared();
    bench.look_back_denied = true;
    let now = bench.now();
    bench.relay.handle_session_started(now, session_start());
    bench.pump();
    assert!(bench.noticed(|notice| matches!(notice, Notice::LookBackFailed { .. })));
    bench.transaction(100, &[("a", "1")]);
    assert_eq!(bench.take_sent_ids(), ["a"]);
}

#[test]
fn rows_of_a_shared_stream_that_lost_their_acks_are_found_in_the_next_epoch() {
    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &[("a", "1"), ("b", "2"), ("c", "3")]);
    let sent = bench.take_sent();
    bench.store(&sent[1]);
    bench.end_epoch(EpochEnd::Disconnected {
        detail: "gone".to_owned(),
    });
    bench.await_sent();
    assert_eq!(bench.take_sent_ids(), ["a", "c"]);
    assert_eq!(bench.relay.snapshot().counters.skipped, 1);
}
