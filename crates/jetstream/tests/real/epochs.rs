//! Rows in, answers out, and how an epoch ends.

use std::time::Instant;

use outbox::{BrokerFaultKind, EpochEnd, PubAck, ReadBack, Refusal, Tail, Token, Writers};
use postrider_jetstream::{Epoch, EpochEvent, MAX_IN_FLIGHT_ROWS};
use testbed::read_all;

use crate::common::{
    SOON, chained, count, events, make_stream, nats_server, one, open, options, row, target,
};

const ROWS: u64 = 10_000;

fn acked(event: &EpochEvent) -> (Token, PubAck) {
    match event {
        EpochEvent::Acked { token, ack } => (*token, *ack),
        other => panic!("{other:?}"),
    }
}

fn refused(event: &EpochEvent) -> Refusal {
    match event {
        EpochEvent::Refused { refusal, .. } => refusal.clone(),
        other => panic!("{other:?}"),
    }
}

/// Publishes rows `from..to` with at most `window` in flight, and checks each answer.
async fn run_chain(epoch: &mut Epoch, from: u64, to: u64, window: usize) {
    let mut next = from;
    let mut answered = from;
    while answered < to {
        while next < to && epoch.in_flight() < window {
            epoch.publish(chained(next, 0));
            next += 1;
        }
        for event in events(epoch).await {
            let (token, ack) = acked(&event);
            assert_eq!(token, Token(answered));
            assert_eq!(ack.sequence, answered + 1);
            assert!(!ack.duplicate);
            answered += 1;
        }
    }
}

#[tokio::test]
async fn a_chain_of_ten_thousand_rows_is_acked_row_by_row() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (start, mut epoch) = open(&options, &target(None)).await.unwrap();
    assert_eq!(start.writers, Writers::Exclusive);
    assert_eq!((start.last_sequence, &start.tail), (0, &Tail::Empty));
    assert_eq!(start.max_message_bytes, 1024 * 1024);
    run_chain(&mut epoch, 0, ROWS / 2, 1024).await;
    // The largest window that is allowed, all at once.
    run_chain(&mut epoch, ROWS / 2, ROWS, MAX_IN_FLIGHT_ROWS).await;
    assert_eq!((epoch.in_flight(), epoch.unknown_answers()), (0, 0));

    let ReadBack::Row(read) = epoch.read_back(ROWS).await else {
        panic!("no row");
    };
    assert_eq!(read.dedup_id, format!("row-{}", ROWS - 1));
    assert_eq!(epoch.reader().read_back(ROWS + 1).await, ReadBack::Gone);
    epoch.close().await;

    let (again, _epoch) = open(&options, &target(None)).await.unwrap();
    assert_eq!(again.created_unix_nanos, start.created_unix_nanos);
    assert_eq!(again.last_sequence, ROWS);
    assert_eq!(again.tail, Tail::Row(read));

    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let stored = read_all(&jetstream, "OUTBOX").await.unwrap();
    assert_eq!(stored.len() as u64, ROWS);
    for (message, n) in stored.iter().zip(0..) {
        assert_eq!(message.id(), Some(format!("row-{n}").as_str()));
        assert_eq!(message.payload, row(n).payload);
        assert_eq!(message.subject.as_bytes(), row(n).subject);
        assert_eq!(message.header("Nats-Expected-Stream"), Some("OUTBOX"));
        assert_eq!(message.header("Outbox-Settled"), None);
    }
}

#[tokio::test]
async fn behind_a_wrong_sequence_everything_is_refused() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    epoch.publish(chained(0, 0));
    for n in 1..100 {
        epoch.publish(chained(n, 1));
    }
    let events = count(&mut epoch, 100).await;
    assert_eq!(acked(&events[0]).1.sequence, 1);
    for event in &events[1..] {
        let refusal = refused(event);
        assert!(
            matches!(
                refusal,
                Refusal::Api {
                    err_code: 10_071,
                    ..
                }
            ),
            "{refusal:?}"
        );
    }
}

#[tokio::test]
async fn a_killed_server_ends_the_epoch_and_the_tail_tells_where_to_go_on() {
    let mut nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (first, mut epoch) = open(&options, &target(None)).await.unwrap();
    let mut next = 0;
    let mut acks = 0;
    while acks < 2000 {
        while epoch.in_flight() < 4096 {
            epoch.publish(chained(next, 0));
            next += 1;
        }
        acks += events(&mut epoch).await.len() as u64;
    }
    nats.kill9().await.unwrap();
    let killed = Instant::now();
    let end = loop {
        match events(&mut epoch).await.pop() {
            Some(EpochEvent::Ended(end)) => break end,
            Some(EpochEvent::Acked { token, .. }) => acks = token.0 + 1,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(end, EpochEnd::Disconnected { .. }), "{end:?}");
    // By the end of its connection: pings alone would take longer.
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
    // Rows handed over now end with the epoch; nothing of them may reach the stream.
    epoch.publish(chained(next, 0));
    nats.start_again().await.unwrap();

    let (start, mut epoch2) = open(&options, &target(None)).await.unwrap();
    assert_eq!(start.created_unix_nanos, first.created_unix_nanos);
    assert!(
        start.last_sequence >= acks,
        "{} {acks}",
        start.last_sequence
    );
    let Tail::Row(tail) = &start.tail else {
        panic!("{start:?}");
    };
    // An exclusive stream holds exactly a prefix: message n+1 is row n.
    assert_eq!(tail.dedup_id, format!("row-{}", start.last_sequence - 1));
    run_chain(
        &mut epoch2,
        start.last_sequence,
        start.last_sequence + 500,
        100,
    )
    .await;
    drop(epoch);
}

#[tokio::test]
async fn a_frozen_server_ends_the_epoch_within_three_pings() {
    let mut nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    nats.pause().unwrap();
    epoch.publish(chained(0, 0));
    let mut events = Vec::new();
    let waiting = epoch.next_events(&mut events);
    tokio::time::timeout(2 * SOON, waiting).await.unwrap();
    assert!(
        matches!(
            events[..],
            [EpochEvent::Ended(EpochEnd::Disconnected { .. })]
        ),
        "{events:?}"
    );
    nats.resume().unwrap();
}

#[tokio::test]
async fn a_duplicate_names_the_older_message() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let shared = target(Some(Writers::Shared));
    let (start, mut epoch) = open(&options, &shared).await.unwrap();
    assert_eq!(start.writers, Writers::Shared);
    for n in 0..3 {
        let event = one(&mut epoch, row(n)).await;
        assert_eq!(acked(&event).1.sequence, n + 1);
    }
    let again = outbox::Outgoing {
        token: Token(77),
        settled: Some("0/100/3".parse().unwrap()),
        ..row(1)
    };
    let duplicate = PubAck {
        sequence: 2,
        duplicate: true,
    };
    let event = one(&mut epoch, again).await;
    assert_eq!(acked(&event), (Token(77), duplicate));
    let settled = outbox::Outgoing {
        settled: Some("0/100/3".parse().unwrap()),
        ..row(4)
    };
    assert_eq!(acked(&one(&mut epoch, settled).await).1.sequence, 4);
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let stored = read_all(&jetstream, "OUTBOX").await.unwrap();
    assert_eq!(stored[3].header("Outbox-Settled"), Some("0/100/3"));
    assert_eq!(stored[3].header("Nats-Expected-Last-Sequence"), None);
}

#[tokio::test]
async fn a_subject_without_a_stream_and_one_of_another_stream_are_told_apart() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let client = nats.connect().await.unwrap();
    let jetstream = async_nats::jetstream::new(client.clone());
    jetstream
        .create_stream(async_nats::jetstream::stream::Config {
            name: "OTHER".to_owned(),
            subjects: vec!["other.>".to_owned()],
            ..Default::default()
        })
        .await
        .unwrap();
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    let mut lost = row(0);
    lost.subject = "nobody.listens".into();
    assert_eq!(refused(&one(&mut epoch, lost).await), Refusal::NoResponders);
    let mut other = row(1);
    other.subject = "other.a".into();
    let refusal = refused(&one(&mut epoch, other).await);
    assert!(
        matches!(
            refusal,
            Refusal::Api {
                err_code: 10_060,
                ..
            }
        ),
        "{refusal:?}"
    );

    // Someone who is no stream answers on a plain subject.
    let mut plain = client.subscribe("plain.a").await.unwrap();
    // A question behind the subscription: its answer says that the server knows both.
    jetstream.query_account().await.unwrap();
    for (n, answer) in [
        (2, r#"{"stream":"MINE","seq":1}"#),
        (3, "thanks"),
        (4, r#"{"stream":"OUTBOX","seq":9}"#),
    ] {
        let mut taken = row(n);
        taken.subject = "plain.a".into();
        epoch.publish(taken);
        let asked = futures_util::StreamExt::next(&mut plain).await.unwrap();
        let reply = asked.reply.unwrap();
        client.publish(reply.clone(), answer.into()).await.unwrap();
        client.publish(reply, "{}".into()).await.unwrap();
        client.flush().await.unwrap();
        let event = events(&mut epoch).await.remove(0);
        match n {
            2 => assert!(
                matches!(refused(&event), Refusal::ForeignAck { stream } if stream == "MINE")
            ),
            3 => assert!(matches!(refused(&event), Refusal::Malformed { .. })),
            _ => assert_eq!(acked(&event).1.sequence, 9),
        }
    }
    // The second answers fitted no row; the last of them may be under way still.
    assert!(epoch.unknown_answers() >= 2);
}

#[tokio::test]
async fn a_full_stream_refuses_without_ending_the_epoch() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let config = async_nats::jetstream::stream::Config {
        name: "OUTBOX".to_owned(),
        subjects: vec!["outbox.>".to_owned()],
        max_messages: 2,
        max_message_size: 2000,
        discard: async_nats::jetstream::stream::DiscardPolicy::New,
        ..Default::default()
    };
    jetstream.create_stream(config.clone()).await.unwrap();
    let (start, mut epoch) = open(&options, &target(None)).await.unwrap();
    assert_eq!(start.writers, Writers::Shared);
    assert_eq!(start.max_message_bytes, 2000);
    for n in 0..2 {
        acked(&one(&mut epoch, row(n)).await);
    }
    let refusal = refused(&one(&mut epoch, row(2)).await);
    assert!(
        matches!(
            refusal,
            Refusal::Api {
                err_code: 10_077,
                ..
            }
        ),
        "{refusal:?}"
    );
    let roomier = async_nats::jetstream::stream::Config {
        max_messages: 10,
        ..config
    };
    jetstream.update_stream(roomier).await.unwrap();
    acked(&one(&mut epoch, row(3)).await);
}

#[tokio::test]
async fn a_message_is_measured_with_its_headers_before_it_is_sent() {
    let nats = nats_server()
        .config("max_payload: 4096")
        .start()
        .await
        .unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (start, mut epoch) = open(&options, &target(None)).await.unwrap();
    assert_eq!(start.max_message_bytes, 4096);
    let mut large = chained(0, 0);
    large.payload = vec![b'x'; 4096].into();
    let Refusal::TooLarge {
        size_bytes,
        limit_bytes: 4096,
    } = refused(&one(&mut epoch, large.clone()).await)
    else {
        panic!("not too large");
    };
    let frame = usize::try_from(size_bytes).unwrap() - 4096;
    // Exactly the limit goes through, so the measure is the server's own.
    large.payload = vec![b'x'; 4096 - frame].into();
    assert_eq!(acked(&one(&mut epoch, large.clone()).await).1.sequence, 1);
    large.payload = vec![b'x'; 4096 - frame + 1].into();
    large.token = Token(1);
    assert!(matches!(
        refused(&one(&mut epoch, large).await),
        Refusal::TooLarge {
            size_bytes: 4097,
            ..
        }
    ));
}

#[tokio::test]
async fn a_server_that_shuts_down_ends_the_epoch() {
    let mut nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    nats.stop().await.unwrap();
    let end = events(&mut epoch).await;
    assert!(
        matches!(end[..], [EpochEvent::Ended(EpochEnd::Disconnected { .. })]),
        "{end:?}"
    );
    let fault = open(&options, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::Unreachable);
    epoch.close().await;
}

#[tokio::test]
async fn what_was_acked_before_the_end_comes_before_it() {
    let mut nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    for n in 0..3000 {
        epoch.publish(chained(n, 0));
    }
    // All are stored and nearly all answered while nobody reads the answers.
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    testbed::wait_until(SOON, "3000 messages", async || {
        let count = testbed::message_count(&jetstream, "OUTBOX").await?;
        Ok(testbed::Progress::when(count == 3000, || count.to_string()))
    })
    .await
    .unwrap();
    // On the same connection, behind the answers but for those that the server still holds back.
    epoch.read_back(3000).await;
    nats.stop().await.unwrap();
    let mut all = Vec::new();
    while !matches!(all.last(), Some(EpochEvent::Ended(_))) {
        all.extend(events(&mut epoch).await);
    }
    let (_, answers) = all.split_last().unwrap();
    assert!(answers.len() > 2000, "{} answers", answers.len());
    for (event, n) in answers.iter().zip(0..) {
        assert_eq!(acked(event).0, Token(n));
    }
}

#[tokio::test]
async fn the_tail_tells_gone_and_foreign_messages() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let sent = jetstream.publish("outbox.a.b", "x".into()).await.unwrap();
    sent.await.unwrap();
    let (start, epoch) = open(&options, &target(None)).await.unwrap();
    assert_eq!((start.last_sequence, start.tail), (1, Tail::Foreign));
    assert_eq!(epoch.read_back(1).await, ReadBack::Foreign);
    let stream = jetstream.get_stream("OUTBOX").await.unwrap();
    stream.purge().await.unwrap();
    let (start, _epoch) = open(&options, &target(None)).await.unwrap();
    assert_eq!((start.last_sequence, start.tail), (1, Tail::Gone));
}

#[tokio::test]
async fn a_wait_that_is_dropped_loses_no_answer() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    for n in 0..2000 {
        epoch.publish(chained(n, 0));
    }
    let mut all = Vec::new();
    let deadline = Instant::now() + SOON;
    while all.len() < 2000 {
        assert!(Instant::now() < deadline, "{} answers", all.len());
        tokio::select! {
            biased;
            () = tokio::task::yield_now() => {}
            () = epoch.next_events(&mut all) => {}
        }
        tokio::select! {
            biased;
            () = epoch.next_events(&mut all) => {}
            () = tokio::task::yield_now() => {}
        }
    }
    for (event, n) in all.iter().zip(0..) {
        assert_eq!(acked(event).0, Token(n));
    }
}

#[tokio::test]
async fn lame_duck_ends_the_epoch_before_the_server_does() {
    let mut nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    let pid = nats.pid().unwrap().to_string();
    // SIGUSR2 is nats-server's signal for it (`nats-server --signal ldm`).
    // By the shell's own `kill`, for not every system has one outside of it.
    let kill = std::process::Command::new("sh")
        .args(["-c", "kill -s USR2 \"$0\"", &pid])
        .status();
    assert!(kill.unwrap().success());
    let end = events(&mut epoch).await;
    let [EpochEvent::Ended(EpochEnd::Disconnected { detail })] = &end[..] else {
        panic!("{end:?}");
    };
    assert!(detail.contains("lame duck"), "{detail}");
    epoch.close().await;
}
