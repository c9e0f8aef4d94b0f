//! `duplicate: true` is read back, not believed.

use super::support::{Bench, api_error, id_of, position, stored};
use crate::outbox::{
    Action, EpochReason, Notice, Outgoing, PoisonReason, ReadBack, StoredRow, Writers,
};

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
fn an_older_timeline_of_the_same_log_counts() {
    let mut before = row_a();
    before.source.timeline = 0;
    let (mut bench, sent) = judged(Writers::Shared);
    bench.read_back(sent[0].token, ReadBack::Row(before));
    assert_eq!(bench.relay.snapshot().counters.duplicates, 1);
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
