//! Rows that can never be stored: parked in their turn, or the relay halts.

use super::support::{Bench, api_error, id_of, settings};
use crate::outbox::{
    Action, EpochEnd, Notice, OnPoison, PoisonReason, Refusal, SourceFaultKind, StopKind, Token,
    Writers,
};

/// Message too large for the stream (JetStream error 10054).
fn too_large() -> Refusal {
    api_error(400, 10_054)
}

fn gone() -> EpochEnd {
    EpochEnd::Disconnected {
        detail: "gone".to_owned(),
    }
}

fn park_fails(bench: &mut Bench, token: Token, permitted: bool) {
    bench
        .relay
        .handle_park_failed(token, permitted, "disk full".to_owned());
    bench.pump();
}

#[test]
fn in_an_exclusive_stream_later_rows_wait_until_it_is_parked() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("bad", "2"), ("c", "3")]);
    let sent = bench.take_sent();
    bench.ack(&sent[0]);
    bench.refuse(sent[1].token, too_large());
    let letter = bench.letters()[0].clone();
    assert_eq!(letter.dedup_id, "bad");
    assert_eq!(letter.subject, "outbox.placed");
    assert!(matches!(letter.reason, PoisonReason::TooLarge { .. }));
    assert!(bench.noticed(|notice| matches!(notice, Notice::Poison { .. })));
    bench.advance(60_000);
    assert!(bench.sent.is_empty());
    assert_eq!(bench.settled(), 0);
    bench.parked(letter.token);
    let sent = bench.take_sent();
    assert_eq!(
        (id_of(&sent[0]).as_str(), sent[0].expected_last_sequence),
        ("c", Some(1))
    );
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 110);
    assert_eq!(bench.relay.snapshot().counters.dead_lettered, 1);
}

#[test]
fn in_a_shared_stream_only_its_own_key_waits() {
    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &[("bad", "1"), ("b", "1"), ("c", "2")]);
    let sent = bench.take_sent();
    bench.refuse(sent[0].token, too_large());
    bench.ack(&sent[1]);
    assert!(bench.sent.is_empty());
    let token = bench.letters()[0].token;
    bench.parked(token);
    assert_eq!(bench.take_sent_ids(), ["b"]);
}

#[test]
fn every_final_refusal_is_poison() {
    for code in [10_054, 10_097, 10_165, 10_166] {
        for writers in [Writers::Exclusive, Writers::Shared] {
            let mut bench = Bench::new(writers);
            bench.transaction(100, &[("bad", "1")]);
            let sent = bench.take_sent();
            bench.refuse(sent[0].token, api_error(400, code));
            assert_eq!(bench.letters().len(), 1, "{code}");
            let too_large = code == 10_054;
            let name = if too_large { "too_large" } else { "refused" };
            assert_eq!(bench.letters()[0].reason.name(), name);
        }
    }
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("bad", "1")]);
    let sent = bench.take_sent();
    let refusal = Refusal::TooLarge {
        size_bytes: 2_000,
        limit_bytes: 1_000,
    };
    bench.refuse(sent[0].token, refusal);
    assert_eq!(bench.letters()[0].reason.name(), "too_large");
}

#[test]
fn a_dead_letter_that_fails_is_asked_for_again_and_nothing_is_confirmed() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("bad", "1")]);
    let sent = bench.take_sent();
    bench.refuse(sent[0].token, too_large());
    for attempt in 1..5 {
        assert_eq!(bench.letters().len(), attempt);
        park_fails(&mut bench, sent[0].token, true);
        assert_eq!(bench.settled(), 0);
    }
    assert!(bench.noticed(|notice| matches!(notice, Notice::ParkFailed { .. })));
    bench.parked(sent[0].token);
    assert_eq!(bench.settled(), 110);
}

#[test]
fn a_role_that_may_not_write_dead_letters_halts() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("bad", "1")]);
    let sent = bench.take_sent();
    bench.refuse(sent[0].token, too_large());
    park_fails(&mut bench, sent[0].token, false);
    let (kind, text) = bench.stop().unwrap();
    assert_eq!(kind, StopKind::Halted);
    for word in [
        "0/64/0",
        "the limit is",
        "disk full",
        "grant INSERT on postrider.dead_letter",
    ] {
        assert!(text.contains(word), "{text}");
    }
    assert_eq!(bench.confirmed(), 0);
}

#[test]
fn halt_waits_for_the_rows_before_it_and_stops_with_the_row() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let mut limits = settings();
        limits.on_poison = OnPoison::Halt;
        limits.max_message_bytes = 400;
        let mut bench = Bench::with(limits, writers);
        bench.transaction(100, &[("a", "1")]);
        let long = "x".repeat(400);
        bench.transaction(200, &[(long.as_str(), "2"), ("c", "3")]);
        assert_eq!(bench.stop(), None);
        let sent = bench.take_sent();
        assert_eq!(id_of(&sent[0]), "a");
        sent.iter().for_each(|row| bench.ack(row));
        let (kind, text) = bench.stop().unwrap();
        assert_eq!(kind, StopKind::Halted);
        assert!(text.contains("xxxx") && text.contains("0/C8/0"), "{text}");
        assert!(text.len() < 500, "a long id is shortened: {text}");
        let noted = |action: &Action| match action {
            Action::NoteHalted(letter) => Some(letter.dedup_id == long),
            _ => None,
        };
        assert_eq!(bench.actions.iter().find_map(noted), Some(true));
        assert!(bench.letters().is_empty());
        assert_eq!(bench.settled(), 110);
    }
}

#[test]
fn a_dead_letter_outlives_the_epoch_but_not_the_session() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let mut bench = Bench::new(writers);
        bench.transaction(100, &[("bad", "1"), ("b", "1")]);
        let sent = bench.take_sent();
        bench.refuse(sent[0].token, too_large());
        assert_eq!(bench.letters().len(), 1);
        bench.end_epoch(gone());
        bench.advance(1_000);
        assert_eq!(bench.letters().len(), 1, "it is on its way already");
        assert!(bench.sent.is_empty());
        bench.parked(sent[0].token);
        bench.ack_all();
        assert_eq!(bench.settled(), 110, "{writers:?}");

        let mut bench = Bench::new(writers);
        bench.transaction(100, &[("bad", "1")]);
        let sent = bench.take_sent();
        bench.refuse(sent[0].token, too_large());
        bench.end_session(SourceFaultKind::Unreachable);
        bench.parked(sent[0].token);
        assert_eq!(bench.relay.snapshot().counters.dead_lettered, 0);
    }
}

#[test]
fn a_dead_letter_committed_while_rows_go_one_at_a_time_frees_its_key() {
    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &[("a", "1"), ("bad", "2"), ("c", "2")]);
    let sent = bench.take_sent();
    let bad = sent.iter().find(|row| id_of(row) == "bad").unwrap().token;
    bench.refuse(bad, too_large());
    // Two epochs without a stored row: the next one sends one row at a time.
    for _ in 0..3 {
        bench.end_epoch(gone());
        bench.advance(1_000);
    }
    assert_eq!(bench.take_sent_ids(), ["a"]);
    bench.parked(bad);
    assert_eq!(bench.relay.snapshot().counters.dead_lettered, 1);
    bench.end_epoch(gone());
    bench.await_sent();
    bench.ack_all();
    assert_eq!(bench.settled(), 110);
    assert_eq!(bench.letters().len(), 1);
}

#[test]
fn a_second_report_of_one_dead_letter_is_not_heard() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("bad", "1"), ("b", "1")]);
    let sent = bench.take_sent();
    bench.refuse(sent[0].token, too_large());
    bench.parked(sent[0].token);
    bench.parked(sent[0].token);
    bench.parked(Token(999));
    assert_eq!(bench.relay.snapshot().counters.dead_lettered, 1);
    bench.ack_all();
    assert_eq!(bench.settled(), 110);
}
