//! The epoch: order in it, its end, what the next one sends again.

use super::support::wire::{self, Val};
use super::support::{
    Bench, OUTBOX, api_error, broker_fault, epoch_start, id_of, session_start, settings,
};
use crate::outbox::{
    Action, BrokerFaultKind as Kind, EpochEnd, EpochReason, Notice, OnUnroutable, PoisonReason,
    PubAck, ReadBack, Refusal, StopKind, Tail, Taker, Token, Writers,
};

fn gone() -> EpochEnd {
    EpochEnd::Disconnected {
        detail: "gone".to_owned(),
    }
}

fn ended(bench: &Bench, wanted: impl Fn(&EpochReason) -> bool) -> bool {
    bench.noticed(|notice| matches!(notice, Notice::EpochEnded { reason, .. } if wanted(reason)))
}

#[test]
fn an_exclusive_stream_takes_a_chain_and_a_shared_one_a_row_per_key() {
    let rows = [("a", "1"), ("b", "1"), ("c", "2"), ("d", "1")];
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &rows);
    let expected: Vec<_> = bench
        .sent
        .iter()
        .map(|row| row.expected_last_sequence)
        .collect();
    assert_eq!(expected, [Some(0), Some(1), Some(2), Some(3)]);

    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &rows);
    let sent = bench.take_sent();
    assert_eq!(sent.iter().map(id_of).collect::<Vec<_>>(), ["a", "c"]);
    assert!(sent.iter().all(|row| row.expected_last_sequence.is_none()));
    bench.ack(&sent[1]);
    assert!(bench.sent.is_empty());
    bench.ack(&sent[0]);
    let sent = bench.take_sent();
    assert_eq!(id_of(&sent[0]), "b");
    // Everything up to the first row is stored, the third one is behind a gap.
    assert_eq!(sent[0].settled, Some(super::support::position(100, 0)));
    bench.ack(&sent[0]);
    let sent = bench.take_sent();
    assert_eq!(id_of(&sent[0]), "d");
    assert_eq!(sent[0].settled, Some(super::support::position(100, 2)));
}

#[test]
fn a_mute_broker_ends_the_epoch_after_the_ack_timeout_and_the_rows_go_out_again() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let mut bench = Bench::new(writers);
        bench.transaction(100, &[("a", "1"), ("b", "2")]);
        let epoch = bench.epoch;
        assert_eq!(bench.take_sent_ids(), ["a", "b"]);
        bench.advance(4_900);
        assert_eq!(bench.epoch, epoch);
        bench.advance(400);
        assert!(bench.epoch > epoch);
        assert!(bench.actions.contains(&Action::CloseEpoch { epoch }));
        assert!(ended(&bench, |reason| matches!(
            reason,
            EpochReason::Stalled(_)
        )));
        assert_eq!(bench.take_sent_ids(), ["a", "b"]);
        assert_eq!(bench.relay.snapshot().counters.resent, 2);
        assert_eq!(bench.settled(), 0);
    }
}

#[test]
fn what_an_old_epoch_still_says_is_not_heard() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    let (old, row) = (bench.epoch, bench.take_sent().remove(0));
    bench.end_epoch(gone());
    bench.advance(1_000);
    assert_ne!(bench.epoch, old);
    let now = bench.now();
    let ack = PubAck {
        sequence: 1,
        duplicate: false,
    };
    bench.relay.handle_acked(now, old, row.token, ack);
    bench
        .relay
        .handle_refused(now, old, row.token, Refusal::NoResponders);
    bench.relay.handle_epoch_ended(now, old, gone());
    bench.pump();
    assert_eq!(bench.settled(), 0);
    assert_eq!(bench.relay.snapshot().state, "streaming");
    bench.ack_all();
    assert_eq!(bench.settled(), 110);
}

#[test]
fn lost_acks_are_found_in_the_stream_and_nothing_is_sent_twice() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("b", "1"), ("c", "1")]);
    let sent = bench.take_sent();
    bench.store(&sent[0]);
    bench.store(&sent[1]);
    bench.end_epoch(gone());
    bench.advance(1_000);
    // The tail covers a and b; each is looked for at the sequence that it was to get.
    let questions = bench.questions();
    assert_eq!(questions, [(sent[0].token, 1), (sent[1].token, 2)]);
    assert!(bench.sent.is_empty());
    for ((token, sequence), row) in questions.into_iter().zip(&sent) {
        let at = row.headers.get("Outbox-Position").unwrap().parse().unwrap();
        let found = super::support::stored(sequence, at, &id_of(row));
        bench.read_back(token, ReadBack::Row(found));
    }
    let again = bench.take_sent();
    assert_eq!(again.len(), 1);
    assert_eq!(
        (id_of(&again[0]).as_str(), again[0].expected_last_sequence),
        ("c", Some(2))
    );
    bench.ack(&again[0]);
    assert_eq!(bench.settled(), 110);
    assert_eq!(bench.relay.snapshot().counters.skipped, 2);
}

#[test]
fn a_second_writer_in_a_rows_place_is_noticed_and_the_row_sent_again() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    let sent = bench.take_sent();
    // A stranger took sequence 1, a was refused, b found its place and was stored.
    let stream = bench.stream.as_mut().unwrap();
    stream.last_sequence = 1;
    stream.tail = Tail::Foreign;
    let now = bench.now();
    bench
        .relay
        .handle_refused(now, bench.epoch, sent[0].token, api_error(400, 10_071));
    let stream = bench.stream.as_mut().unwrap();
    stream.last_sequence = 2;
    let tail = super::support::stored(2, super::support::position(100, 1), "b");
    stream.tail = Tail::Row(tail.clone());
    bench.pump();
    bench.advance(1_000);
    assert_eq!(bench.questions(), [(sent[0].token, 1), (sent[1].token, 2)]);
    bench.read_back(sent[0].token, ReadBack::Foreign);
    bench.read_back(sent[1].token, ReadBack::Row(tail));
    assert!(bench.noticed(|notice| matches!(notice, Notice::SecondWriter { sequence: 1, .. })));
    assert_eq!(bench.take_sent_ids(), ["a"]);
    assert_eq!(bench.settled(), 0);
}

#[test]
fn an_ack_that_names_another_sequence_is_no_ack() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1")]);
    let sent = bench.take_sent();
    bench.ack_at(sent[0].token, 7);
    assert_eq!(bench.settled(), 0);
    let unexpected = |reason: &EpochReason| {
        *reason
            == EpochReason::UnexpectedSequence {
                expected: 1,
                acked: 7,
            }
    };
    assert!(ended(&bench, unexpected));
}

#[test]
fn id_in_process_and_every_passing_refusal_are_retried() {
    for refusal in [
        api_error(409, 10_158),
        api_error(503, 10_077),
        api_error(503, 10_023),
        api_error(429, 10_167),
        api_error(500, 0),
        Refusal::TooManyRequests,
        Refusal::NoResponders,
        Refusal::Malformed {
            detail: "x".to_owned(),
        },
        Refusal::ForeignAck {
            stream: "OTHER".to_owned(),
        },
        api_error(400, 10_060),
    ] {
        for writers in [Writers::Exclusive, Writers::Shared] {
            let mut bench = Bench::new(writers);
            bench.transaction(100, &[("a", "1")]);
            for _ in 0..5 {
                let sent = bench.take_sent();
                assert_eq!(sent.len(), 1, "{refusal:?}");
                bench.refuse(sent[0].token, refusal.clone());
                assert_eq!(bench.settled(), 0);
                bench.await_sent();
                assert!(bench.letters().is_empty());
            }
            bench.ack_all();
            assert_eq!(bench.settled(), 110);
        }
    }
}

#[test]
fn an_unroutable_subject_is_parked_only_where_asked_for_and_once_sure() {
    let mut limits = settings();
    limits.on_unroutable = OnUnroutable::Park;
    for (refusal, attempts) in [
        // Nobody answers: that may be a leader election.
        (Refusal::NoResponders, 5),
        // Another stream answers: that is sure.
        (
            Refusal::ForeignAck {
                stream: "OTHER".to_owned(),
            },
            1,
        ),
        (api_error(400, 10_060), 1),
    ] {
        let mut bench = Bench::with(limits.clone(), Writers::Exclusive);
        bench.transaction(100, &[("a", "1")]);
        let mut refused = 0;
        while bench.letters().is_empty() {
            bench.await_sent();
            let sent = bench.take_sent();
            bench.refuse(sent[0].token, refusal.clone());
            refused += 1;
        }
        assert_eq!(refused, attempts, "{refusal:?}");
        let token = bench.letters()[0].token;
        assert!(matches!(
            bench.letters()[0].reason,
            PoisonReason::Refused { .. }
        ));
        bench.parked(token);
        assert_eq!(bench.settled(), 110);
    }
}

#[test]
fn an_unroutable_subject_of_a_shared_stream_is_parked_while_other_rows_flow() {
    let mut limits = settings();
    limits.on_unroutable = OnUnroutable::Park;
    let mut bench = Bench::with(limits, Writers::Shared);
    bench.transaction(100, &[("strange", "1")]);
    for number in 1..=20_u64 {
        let id = format!("row{number}");
        bench.transaction(1_000 * number, &[(&id, &id)]);
        let sent = bench.take_sent();
        for row in sent.iter().filter(|row| id_of(row) != "strange") {
            bench.ack(row);
        }
        if let Some(row) = sent.iter().find(|row| id_of(row) == "strange") {
            bench.refuse(row.token, Refusal::NoResponders);
        }
        bench.advance(1_000);
        if let Some(letter) = bench.letters().first() {
            assert_eq!(letter.dedup_id, "strange");
            assert!(number >= 4, "parked after {number}");
            return;
        }
    }
    panic!("it is not parked: {:?}", bench.relay.snapshot());
}

/// The question about a row's subject, and the epoch that asks.
fn asked(bench: &Bench) -> Option<(u64, Token)> {
    bench.actions.iter().find_map(|action| match action {
        Action::FindTaker {
            epoch,
            token,
            subject,
        } => {
            assert_eq!(subject, "outbox.placed");
            Some((*epoch, *token))
        }
        _ => None,
    })
}

fn taker(bench: &mut Bench, taker: Taker) {
    let (now, (epoch, token)) = (bench.now(), asked(bench).unwrap());
    bench.relay.handle_taker(now, epoch, token, taker);
    bench.pump();
}

fn nobody() -> Taker {
    Taker::NotOurs {
        detail: "no stream takes it".to_owned(),
    }
}

#[test]
fn a_row_without_an_answer_is_asked_about_and_named_before_it_counts_as_a_stall() {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let mut bench = Bench::new(writers);
        bench.transaction(100, &[("a", "1")]);
        let epoch = bench.epoch;
        bench.advance(2_400);
        assert_eq!(asked(&bench), None);
        bench.advance(200);
        assert!(asked(&bench).is_some());
        taker(&mut bench, nobody());
        let by_name = |reason: &EpochReason| {
            let text = reason.to_string();
            text.contains("outbox.placed") && text.contains("no stream takes it")
        };
        assert!(ended(&bench, by_name), "{:?}", bench.notices);
        assert_eq!(bench.settled(), 0);
        bench.await_sent();
        assert!(bench.epoch > epoch);
        bench.ack_all();
        assert_eq!(bench.settled(), 110);
    }
}

#[test]
fn a_subject_that_is_ours_or_unknown_stalls_and_is_asked_about_once() {
    for answer in [Taker::Ours, Taker::Unknown] {
        let mut bench = Bench::new(Writers::Exclusive);
        bench.transaction(100, &[("a", "1")]);
        bench.advance(2_600);
        taker(&mut bench, answer);
        bench.take_actions();
        bench.advance(2_300);
        assert_eq!(asked(&bench), None, "once about each row");
        bench.advance(200);
        assert!(ended(&bench, |reason| matches!(
            reason,
            EpochReason::Stalled(_)
        )));
    }
}

#[test]
fn a_silent_subject_is_parked_where_asked_for_and_once_sure() {
    let other = Taker::Other {
        stream: "OTHER".to_owned(),
    };
    for (answer, questions) in [(nobody(), 5), (other, 1)] {
        let mut limits = settings();
        limits.on_unroutable = OnUnroutable::Park;
        let mut bench = Bench::with(limits, Writers::Exclusive);
        bench.transaction(100, &[("a", "1"), ("b", "1")]);
        let mut asked_for = 0;
        while bench.letters().is_empty() {
            bench.await_sent();
            bench.take_sent();
            bench.take_actions();
            bench.advance(2_600);
            taker(&mut bench, answer.clone());
            asked_for += 1;
        }
        assert_eq!(asked_for, questions);
        let letter = bench.letters()[0].clone();
        assert_eq!(letter.dedup_id, "a");
        bench.parked(letter.token);
        bench.ack_all();
        assert_eq!(bench.settled(), 110);
    }
}

#[test]
fn an_answer_about_a_subject_that_comes_late_changes_nothing() {
    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &[("a", "1")]);
    bench.advance(2_600);
    bench.ack_all();
    taker(&mut bench, nobody());
    assert_eq!(bench.settled(), 110);
    assert!(!ended(&bench, |_| true));
}

#[test]
fn writers_that_change_between_epochs_begin_a_new_session() {
    let mut bench = Bench::new(Writers::Exclusive);
    // a is not acked, the second row of its key is on its way to the dead letters.
    bench.transaction(100, &[("a", "1")]);
    bench.wal(200, wire::begin(200));
    let no_id = [Val::Null, "1".into(), "placed".into(), "{}".into()];
    bench.wal(0, wire::insert(OUTBOX, &no_id));
    bench.wal(200, wire::commit(200, 210));
    let letter = bench.letters()[0].token;
    bench.stream.as_mut().unwrap().writers = Writers::Shared;
    bench.end_epoch(gone());
    bench.advance(1_000);
    assert!(ended(&bench, |reason| *reason == EpochReason::WritersChanged));
    assert_eq!(bench.relay.snapshot().counters.sessions, 2);
    bench.parked(letter);
    bench.transaction(100, &[("a", "1")]);
    bench.ack_all();
    assert_eq!(bench.settled(), 110);
    assert_eq!(bench.relay.snapshot().writers, Some(Writers::Shared));
}

#[test]
fn faults_on_the_way_to_a_stream_back_off() {
    for kind in [
        Kind::Unreachable,
        Kind::NoJetStream,
        Kind::StreamMissing,
        Kind::StreamUnavailable,
        Kind::PermissionDenied,
    ] {
        let mut bench = Bench::start(settings(), Some(session_start()), None);
        let (mut refused, mut last) = (0, 0);
        while bench.now_ms < 120_000 {
            if bench.epoch != last {
                last = bench.epoch;
                refused += 1;
                let now = bench.now();
                bench
                    .relay
                    .handle_epoch_refused(now, last, broker_fault(kind));
                bench.pump();
            }
            bench.keepalive(0, false);
            bench.advance(100);
        }
        assert!((5..=25).contains(&refused), "{kind:?}: {refused}");
        assert_eq!(bench.stop(), None);
    }
}

#[test]
fn what_only_a_person_can_cure_stops_at_the_start_and_is_retried_later() {
    for kind in [
        Kind::Authentication,
        Kind::Tls,
        Kind::StreamUnfit,
        Kind::OtherOwner,
    ] {
        let mut bench = Bench::start(settings(), Some(session_start()), None);
        let now = bench.now();
        bench
            .relay
            .handle_epoch_refused(now, bench.epoch, broker_fault(kind));
        bench.pump();
        assert_eq!(bench.stop().unwrap().0, StopKind::Refused, "{kind:?}");

        let mut bench = Bench::new(Writers::Exclusive);
        bench.stream = None;
        bench.end_epoch(gone());
        bench.advance(1_000);
        for _ in 0..5 {
            let (now, epoch) = (bench.now(), bench.epoch);
            bench
                .relay
                .handle_epoch_refused(now, epoch, broker_fault(kind));
            bench.pump();
            bench.keepalive(0, false);
            bench.advance(29_900);
            assert_eq!(bench.epoch, epoch);
            bench.advance(100);
            assert_eq!(bench.epoch, epoch + 1, "{kind:?}");
        }
        assert_eq!(bench.stop(), None);
    }
}

#[test]
fn an_epoch_that_never_stores_anything_backs_off_and_one_that_does_starts_over() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    let first = bench.epoch;
    for _ in 0..1_200 {
        if !bench.take_sent().is_empty() {
            bench.end_epoch(gone());
        }
        bench.keepalive(0, false);
        bench.advance(100);
    }
    let epochs = bench.epoch - first;
    assert!((5..=25).contains(&epochs), "{epochs}");
    bench.await_sent();
    let sent = bench.take_sent();
    bench.ack(&sent[0]);
    let before = bench.epoch;
    bench.end_epoch(gone());
    bench.advance(300);
    assert_eq!(bench.epoch, before + 1);
}

#[test]
fn a_connection_closed_for_max_payload_finds_its_row_and_only_that_one() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("large", "1"), ("c", "1")]);
    assert_eq!(bench.take_sent().len(), 3);
    bench.end_epoch(EpochEnd::MaxPayloadViolation);
    bench.advance(1_000);
    // From now on one row at a time, until one is stored.
    let sent = bench.take_sent();
    assert_eq!(sent.len(), 1);
    bench.ack(&sent[0]);
    assert_eq!(bench.take_sent().len(), 2);
    bench.end_epoch(EpochEnd::MaxPayloadViolation);
    bench.advance(1_000);
    assert_eq!(bench.take_sent_ids(), ["large"]);
    bench.end_epoch(EpochEnd::MaxPayloadViolation);
    bench.advance(1_000);
    let letter = bench.letters()[0].clone();
    assert_eq!(letter.dedup_id, "large");
    assert!(matches!(letter.reason, PoisonReason::TooLarge { .. }));
    bench.parked(letter.token);
    bench.ack_all();
    assert_eq!(bench.settled(), 110);
}

#[test]
fn a_subject_over_the_servers_own_line_is_found_by_being_alone() {
    let words = || EpochEnd::Server {
        detail: "maximum control line exceeded".to_owned(),
    };
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("long", "1"), ("b", "1")]);
    assert_eq!(bench.take_sent().len(), 2);
    bench.end_epoch(words());
    bench.advance(1_000);
    assert_eq!(bench.take_sent_ids(), ["long"]);
    bench.end_epoch(words());
    bench.advance(1_000);
    let letter = bench.letters()[0].clone();
    assert_eq!(letter.reason.name(), "subject_too_long");
    let text = letter.reason.to_string();
    assert!(
        text.contains("13 bytes") && text.contains("max_control_line"),
        "{text}"
    );
    bench.parked(letter.token);
    bench.ack_all();
    assert_eq!(bench.settled(), 110);
}

#[test]
fn a_broker_that_lost_acked_messages_is_refilled_in_a_new_session() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    bench.ack_all();
    bench.stream = Some(epoch_start(Writers::Exclusive));
    bench.end_epoch(gone());
    bench.advance(1_000);
    assert!(bench.noticed(|notice| matches!(notice, Notice::BrokerLost { .. })));
    assert!(bench.actions.contains(&Action::CloseSession));
    assert_eq!(bench.relay.snapshot().counters.sessions, 2);
    bench.transaction(100, &[("a", "1"), ("b", "1")]);
    assert_eq!(bench.take_sent_ids(), ["a", "b"]);
}

#[test]
fn a_stream_made_again_under_its_name_is_refilled_too() {
    let mut bench = Bench::new(Writers::Shared);
    bench.transaction(100, &[("a", "1")]);
    bench.ack_all();
    bench.stream.as_mut().unwrap().created_unix_nanos = 2;
    bench.end_epoch(gone());
    bench.advance(1_000);
    assert!(bench.noticed(|notice| matches!(notice, Notice::BrokerLost { .. })));
    assert_eq!(bench.relay.snapshot().counters.sessions, 2);
}
