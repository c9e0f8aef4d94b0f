//! `duplicate: true` is read back, not believed.

use super::support::{
    Bench, api_error, epoch_start, id_of, position, session_start, settings, stored,
};
use crate::outbox::{
    Action, EpochEnd, EpochReason, Fork, Notice, Outgoing, PoisonReason, ReadBack, StoredRow, Tail,
    Writers, header,
};
use pgoutput::Lsn;

/// A bench with three rows in flight, the first of which JetStream calls a duplicate of
/// sequence 9; in an exclusive stream those behind it are refused.
fn judged(writers: Writers) -> (Bench, Vec<Outgoing>) {
    let mut bench = Bench::new(writers);
    bench.transaction(100, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let sent = bench.take_sent();
    bench.ack_duplicate(sent[0].token, 9);
    for row in sent.iter().skip(1) {
        bench.refuse(row.token, api_error(400, 10_071));
    }
    assert_eq!(bench.questions(), [(sent[0].token, 9)]);
    assert_eq!(bench.settled(), 0);
    assert!(bench.sent.is_empty());
    (bench, sent)
}

fn row_a() -> StoredRow {
    stored(9, position(100, 0), "a")
}

#[test]
fn this_very_row_is_stored() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let (mut bench, sent) = judged(writers);
        bench.read_back(sent[0].token, ReadBack::Row(row_a()));
        assert_eq!(bench.relay.snapshot().counters.duplicates, 1);
        let again = bench.take_sent();
        assert_eq!(id_of(&again[0]), "b");
        if writers == Writers::Exclusive {
            // Nothing was stored for the duplicate, so its place in the chain is the next row's.
            assert_eq!(again[0].expected_last_sequence, Some(0));
        }
        for row in &again {
            bench.ack(row);
        }
        bench.ack_all();
        assert_eq!(bench.settled(), 110);
    }
}

#[test]
fn another_row_under_the_id_is_a_collision_and_poison() {
    let elsewhere = stored(9, position(90, 0), "a");
    let mut other_source = row_a();
    other_source.source.slot = "other".to_owned();
    let other_id = stored(9, position(100, 0), "z");
    for found in [
        ReadBack::Row(elsewhere),
        ReadBack::Row(other_source),
        ReadBack::Row(other_id),
        ReadBack::Foreign,
    ] {
        for writers in [Writers::Exclusive, Writers::Shared] {
            let (mut bench, sent) = judged(writers);
            bench.read_back(sent[0].token, found.clone());
            bench.advance(1_000);
            let letter = bench.letters()[0].clone();
            assert_eq!(letter.reason, PoisonReason::IdTaken { sequence: 9 });
            assert_eq!(letter.dedup_id, "a");
            assert!(letter.reason.to_string().contains("sequence 9"));
            bench.parked(letter.token);
            bench.ack_all();
            assert_eq!(bench.settled(), 110);
        }
    }
}

#[test]
fn a_copy_that_another_command_sent_counts_by_its_id() {
    let mut replayed = stored(9, position(50, 0), "a");
    replayed.origin = Some("verify".to_owned());
    let (mut bench, sent) = judged(Writers::Shared);
    bench.read_back(sent[0].token, ReadBack::Row(replayed));
    assert_eq!(bench.relay.snapshot().counters.duplicates, 1);
}

#[test]
fn an_older_timeline_of_the_same_log_counts_up_to_its_fork() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        for (switch_lsn, is_stored) in [(101, true), (100, false)] {
            let mut bench = promoted(writers, switch_lsn);
            bench.transaction(100, &[("a", "1"), ("b", "2")]);
            let sent = bench.take_sent();
            bench.ack_duplicate(sent[0].token, 9);
            if writers == Writers::Exclusive {
                bench.refuse(sent[1].token, api_error(400, 10_071));
            }
            bench.read_back(sent[0].token, ReadBack::Row(row_a()));
            let counters = bench.relay.snapshot().counters;
            assert_eq!(counters.duplicates, u64::from(is_stored));
            bench.await_sent();
            let again = bench.take_sent_ids();
            let renamed = again.iter().any(|id| id == "a@2");
            assert_eq!(renamed, !is_stored, "{writers:?} {switch_lsn}: {again:?}");
        }
    }
}

/// A bench on timeline 2, which left timeline 1 at a position.
fn promoted(writers: Writers, switch_lsn: u64) -> Bench {
    let mut session = session_start();
    session.source.timeline = 2;
    session.forks = vec![Fork {
        timeline: 1,
        switch_lsn: Lsn::new(switch_lsn),
    }];
    Bench::start(settings(), Some(session), Some(epoch_start(writers)))
}

#[test]
fn a_row_whose_id_an_orphan_has_goes_out_under_id_and_timeline() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let mut bench = promoted(writers, 100);
        bench.transaction(100, &[("a", "1")]);
        let sent = bench.take_sent();
        bench.ack_duplicate(sent[0].token, 9);
        bench.read_back(sent[0].token, ReadBack::Row(row_a()));
        assert!(bench.noticed(|notice| matches!(notice, Notice::Renamed { timeline: 2, .. })));
        let again = bench.take_sent();
        assert_eq!(id_of(&again[0]), "a@2");
        assert_eq!(
            again[0].expected_last_sequence,
            sent[0].expected_last_sequence
        );
        let headers = |row: &Outgoing| row.headers.iter().count();
        assert_eq!(headers(&again[0]), headers(&sent[0]));
        assert_eq!(again[0].headers.get(header::POSITION), Some("0/64/0"));
        bench.ack(&again[0]);
        assert_eq!(bench.settled(), 110);
        assert!(bench.letters().is_empty());
    }
}

#[test]
fn a_message_that_is_gone_or_unreadable_waits_and_stores_nothing() {
    let gone = |reason: &EpochReason| matches!(reason, EpochReason::DuplicateGone { sequence: 9 });
    let unread = |reason: &EpochReason| matches!(reason, EpochReason::DuplicateUnread { .. });
    let unknown = ReadBack::Unknown {
        detail: "timeout".to_owned(),
    };
    for (found, is_reason) in [
        (ReadBack::Gone, &gone as &dyn Fn(&EpochReason) -> bool),
        (unknown, &unread),
    ] {
        for writers in [Writers::Exclusive, Writers::Shared] {
            let (mut bench, sent) = judged(writers);
            bench.read_back(sent[0].token, found.clone());
            assert_eq!(bench.settled(), 0);
            assert!(bench.letters().is_empty());
            let ended = |notice: &Notice| match notice {
                Notice::EpochEnded { reason, .. } => is_reason(reason),
                _ => false,
            };
            assert!(bench.noticed(ended));
            bench.advance(1_000);
            assert_eq!(bench.take_sent_ids()[0], "a");
        }
    }
}

#[test]
fn a_question_without_an_answer_ends_the_epoch() {
    let (mut bench, _) = judged(Writers::Exclusive);
    let epoch = bench.epoch;
    bench.advance(4_900);
    assert_eq!(bench.epoch, epoch);
    bench.advance(500);
    assert!(bench.epoch > epoch);
    assert!(bench.actions.contains(&Action::CloseEpoch { epoch }));
    assert_eq!(bench.settled(), 0);
}

#[test]
fn a_duplicate_of_sequence_zero_is_not_stored() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    let sent = bench.take_sent();
    bench.ack_duplicate(sent[0].token, 0);
    assert_eq!(bench.settled(), 0);
    assert!(bench.questions().is_empty(), "no message has sequence 0");
    bench.advance(1_000);
    assert_eq!(bench.take_sent_ids(), ["a"]);
    assert!(bench.letters().is_empty());
}

#[test]
fn blanks_around_an_id_are_no_part_of_it() {
    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &[("a   ", "1")]);
    let sent = bench.take_sent();
    bench.ack_duplicate(sent[0].token, 9);
    bench.read_back(sent[0].token, ReadBack::Row(row_a()));
    assert_eq!(bench.settled(), 110);
}

/// Row a was sent, its ack was lost with the connection, and JetStream calls the second attempt a
/// duplicate of a message that a consumer of the work queue has taken out already.
fn gone_after_a_lost_ack(writers: Writers, known: u64, original: u64) -> Bench {
    let mut stream = epoch_start(writers);
    stream.last_sequence = known;
    let mut bench = Bench::start(settings(), Some(session_start()), Some(stream));
    bench.transaction(100, &[("a", "1")]);
    assert_eq!(bench.take_sent_ids(), ["a"]);
    let detail = "gone".to_owned();
    bench.end_epoch(EpochEnd::Disconnected { detail });
    if let Some(stream) = &mut bench.stream {
        stream.last_sequence = original.max(known);
        stream.tail = Tail::Gone;
    }
    bench.advance(1_000);
    // In a chain the row is first looked for at the sequence that it was to get.
    for (token, _) in bench.questions() {
        bench.read_back(token, ReadBack::Gone);
    }
    bench.await_sent();
    let sent = bench.take_sent();
    bench.ack_duplicate(sent[0].token, original);
    bench.read_back(sent[0].token, ReadBack::Gone);
    bench
}

#[test]
fn a_duplicate_that_was_stored_since_the_first_attempt_is_ours_though_it_is_gone() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let bench = gone_after_a_lost_ack(writers, 20, 21);
        assert_eq!(bench.relay.snapshot().counters.duplicates, 1);
        assert_eq!(bench.settled(), 110);
    }
}

#[test]
fn a_gone_duplicate_from_before_the_first_attempt_proves_nothing() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let mut bench = gone_after_a_lost_ack(writers, 20, 20);
        assert_eq!(bench.settled(), 0);
        bench.await_sent();
        assert_eq!(bench.take_sent_ids(), ["a"]);
    }
}

#[test]
fn a_gone_duplicate_on_the_first_attempt_is_not_ours() {
    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &[("a", "1")]);
    let sent = bench.take_sent();
    bench.ack_duplicate(sent[0].token, 7);
    bench.read_back(sent[0].token, ReadBack::Gone);
    assert_eq!(bench.settled(), 0);
    assert!(bench.letters().is_empty());
}

#[test]
fn what_was_acked_meanwhile_moves_the_proof_on() {
    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &[("a", "1")]);
    let sent = bench.take_sent();
    bench.ack_at(sent[0].token, 50);
    bench.transaction(200, &[("b", "1")]);
    assert_eq!(bench.take_sent_ids(), ["b"]);
    let detail = "gone".to_owned();
    if let Some(stream) = &mut bench.stream {
        stream.last_sequence = 60;
    }
    bench.end_epoch(EpochEnd::Disconnected { detail });
    bench.await_sent();
    let sent = bench.take_sent();
    // Stored before the ack that came before the first attempt: somebody else's.
    bench.ack_duplicate(sent[0].token, 49);
    bench.read_back(sent[0].token, ReadBack::Gone);
    assert_eq!(bench.settled(), 110);
}

#[test]
fn a_gone_message_in_a_rows_place_is_no_second_writer() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    let sent = bench.take_sent();
    bench.store(&sent[0]);
    bench.store(&sent[1]);
    let detail = "gone".to_owned();
    bench.end_epoch(EpochEnd::Disconnected { detail });
    bench.advance(1_000);
    assert_eq!(bench.questions(), [(sent[0].token, 1), (sent[1].token, 2)]);
    bench.read_back(sent[0].token, ReadBack::Gone);
    let found = stored(2, position(100, 1), "b");
    bench.read_back(sent[1].token, ReadBack::Row(found));
    assert!(!bench.noticed(|notice| matches!(notice, Notice::SecondWriter { .. })));
    // Sent again, it is a duplicate of what stood there.
    let again = bench.take_sent();
    assert_eq!(id_of(&again[0]), "a");
    bench.ack_duplicate(again[0].token, 1);
    bench.read_back(again[0].token, ReadBack::Gone);
    assert_eq!(bench.settled(), 110);
}
