//! Making and looking at streams, and reading them.

use std::task::Poll;
use std::time::Instant;

use async_nats::jetstream::stream::{Config, RetentionPolicy};
use outbox::{BrokerFaultKind, Tail, Writers};
use postrider_jetstream::{Finding, StreamAdmin, StreamReader, StreamWanted};
use testbed::{Nats, NatsVersion};

use crate::common::{
    OWNER, SOON, chained, count, make_stream, nats_server, one, open, options, row, target, wanted,
};

fn refused(findings: &[Finding]) -> Vec<&'static str> {
    let field = |finding: &Finding| match finding {
        Finding::Refuse(concern) => Some(concern.field),
        _ => None,
    };
    findings.iter().filter_map(field).collect()
}

#[tokio::test]
async fn a_stream_is_made_once_and_found_again() {
    let nats = nats_server().start().await.unwrap();
    let admin = StreamAdmin::connect(&options(&nats.url())).await.unwrap();
    assert_eq!(admin.which_stream_takes("outbox.a").await.unwrap(), None);
    let made = admin.ensure(&wanted()).await.unwrap();
    assert!(matches!(&made[0], Finding::Made(text) if text.contains("outbox.>")));
    let found = admin.ensure(&wanted()).await.unwrap();
    assert!(matches!(&found[0], Finding::Found(_)), "{found:?}");
    assert_eq!(refused(&found), [""; 0]);

    let state = admin.state("OUTBOX").await.unwrap();
    assert_eq!(state.config.owner(), Some(OWNER));
    assert_eq!(state.config.writers(), Some(Writers::Exclusive));
    assert_eq!(state.config.retention, "limits");
    assert_eq!(
        (state.messages, state.last_time, state.tail),
        (0, None, Tail::Empty)
    );
    let taken = admin.which_stream_takes("outbox.a").await.unwrap();
    assert_eq!(taken.as_deref(), Some("OUTBOX"));
    assert!(admin.server().version.starts_with("2."));
}

#[tokio::test]
async fn another_owner_is_refused_until_it_is_adopted() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let admin = StreamAdmin::connect(&options).await.unwrap();
    let mut other = wanted();
    other.target.owner = "1/x/y".to_owned();
    let findings = admin.ensure(&other).await.unwrap();
    assert_eq!(refused(&findings), ["postrider_owner"]);
    assert_eq!(
        refused(&admin.check(&other.target).await.unwrap()),
        ["postrider_owner"]
    );
    let fault = open(&options, &other.target).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::OtherOwner, "{fault}");
    other.adopt = true;
    let findings = admin.ensure(&other).await.unwrap();
    assert_eq!(refused(&findings), [""; 0]);
    open(&options, &other.target).await.unwrap();
    let fault = open(&options, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::OtherOwner, "{fault}");
}

#[tokio::test]
async fn a_stream_of_the_users_keeps_its_configuration() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let config = Config {
        name: "OUTBOX".to_owned(),
        subjects: vec!["outbox.>".to_owned(), "more.>".to_owned()],
        max_age: std::time::Duration::from_secs(3600),
        description: Some("mine".to_owned()),
        metadata: [("team".to_owned(), "a".to_owned())].into(),
        ..Default::default()
    };
    let before = jetstream.create_stream(config).await.unwrap();
    let before = before.cached_info().config.clone();
    let admin = StreamAdmin::connect(&options).await.unwrap();
    let findings = admin.ensure(&wanted()).await.unwrap();
    assert!(matches!(&findings[0], Finding::Made(_)), "{findings:?}");
    let after = jetstream.get_stream("OUTBOX").await.unwrap();
    let mut after = after.cached_info().config.clone();
    assert_eq!(
        after.metadata.get("postrider_writers").map(String::as_str),
        Some("shared")
    );
    after
        .metadata
        .retain(|key, _| !key.starts_with("postrider_"));
    assert_eq!(after, before);
}

#[tokio::test]
async fn an_unfit_stream_is_refused_and_not_touched() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let config = Config {
        name: "OUTBOX".to_owned(),
        subjects: vec!["orders.>".to_owned()],
        retention: RetentionPolicy::Interest,
        no_ack: true,
        ..Default::default()
    };
    jetstream.create_stream(config).await.unwrap();
    let admin = StreamAdmin::connect(&options).await.unwrap();
    let findings = admin.ensure(&wanted()).await.unwrap();
    assert_eq!(refused(&findings), ["no_ack", "retention", "subjects"]);
    let fault = open(&options, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::StreamUnfit, "{fault}");
    for field in ["no_ack", "retention", "subjects"] {
        assert!(fault.detail.contains(field), "{fault}");
    }
    assert_eq!(admin.state("OUTBOX").await.unwrap().config.owner(), None);

    let mut second = wanted();
    second.target.stream = "SECOND".to_owned();
    second.subjects = vec!["orders.new".to_owned()];
    let fault = admin.ensure(&second).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::StreamUnfit, "{fault}");
    assert!(
        fault.detail.contains("taken by the stream OUTBOX"),
        "{fault}"
    );
}

#[tokio::test]
async fn a_reader_passes_over_gaps_of_any_length() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let mut empty = StreamReader::open(&options, "OUTBOX", 0).await.unwrap();
    assert_eq!(empty.next().await.unwrap(), None);

    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    for n in 0..300 {
        epoch.publish(chained(n, 0));
    }
    count(&mut epoch, 300).await;
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let stream = jetstream.get_stream("OUTBOX").await.unwrap();
    let gone = |sequence: u64| {
        sequence <= 5
            || sequence.is_multiple_of(7)
            || (50..=200).contains(&sequence)
            || sequence > 290
    };
    for sequence in (1..=300).filter(|&sequence| gone(sequence)) {
        stream.delete_message(sequence).await.unwrap();
    }
    for from in [0, 1, 6, 45, 100, 250, 290, 291, 300, 301] {
        let mut reader = StreamReader::open(&options, "OUTBOX", from).await.unwrap();
        assert_eq!(reader.last_sequence(), 300);
        let mut read = Vec::new();
        while let Some(message) = reader.next().await.unwrap() {
            let n = message.sequence - 1;
            assert_eq!(message.payload, row(n).payload);
            assert_eq!(message.subject.as_bytes(), row(n).subject);
            assert_eq!(message.row().unwrap().dedup_id, format!("row-{n}"));
            assert!(message.time.starts_with("20"));
            read.push(message.sequence);
        }
        let kept: Vec<u64> = (from.max(1)..=300).filter(|&n| !gone(n)).collect();
        assert_eq!(read, kept, "from {from}");
    }
    let fault = StreamReader::open(&options, "ABSENT", 0).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::StreamMissing);
}

/// What a future gives within so many polls; `None` if it is dropped before.
async fn within_polls<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    std::future::poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

#[tokio::test]
async fn a_reader_that_is_dropped_while_it_waits_passes_nothing_over() {
    let nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    for n in 0..60 {
        epoch.publish(chained(n, 0));
    }
    count(&mut epoch, 60).await;
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let stream = jetstream.get_stream("OUTBOX").await.unwrap();
    for sequence in 2..=20 {
        stream.delete_message(sequence).await.unwrap();
    }
    // From the gap on: the first message is found by a question of its own, the last wait.
    for polls in 0.. {
        let mut reader = StreamReader::open(&options, "OUTBOX", 2).await.unwrap();
        let first = within_polls(reader.next(), polls).await;
        let finished = first.is_some();
        let mut read: Vec<u64> = first
            .into_iter()
            .map(|message| message.unwrap().unwrap().sequence)
            .collect();
        while let Some(message) = reader.next().await.unwrap() {
            read.push(message.sequence);
        }
        let kept: Vec<u64> = (21..=60).collect();
        assert_eq!(read, kept, "dropped after {polls} polls");
        if finished {
            break;
        }
    }
}

#[tokio::test]
async fn a_reader_whose_question_failed_asks_it_again() {
    let mut nats = nats_server().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    for n in 0..100 {
        epoch.publish(chained(n, 0));
    }
    count(&mut epoch, 100).await;
    let mut reader = StreamReader::open(&options, "OUTBOX", 0).await.unwrap();
    let mut read = vec![reader.next().await.unwrap().unwrap().sequence];
    nats.kill9().await.unwrap();
    let mut failed = 0;
    while failed == 0 {
        match reader.next().await {
            Ok(message) => read.push(message.unwrap().sequence),
            Err(_) => failed += 1,
        }
    }
    nats.start_again().await.unwrap();
    let deadline = Instant::now() + SOON * 3;
    while read.len() < 100 && Instant::now() < deadline {
        match reader.next().await {
            Ok(message) => read.push(message.unwrap().sequence),
            Err(_) => tokio::task::yield_now().await,
        }
    }
    let all: Vec<u64> = (1..=100).collect();
    assert_eq!(read, all);
}

#[tokio::test]
async fn the_oldest_server_works_too() {
    let nats = Nats::builder()
        .version(NatsVersion::V2_10)
        .start()
        .await
        .unwrap();
    let options = options(&nats.url());
    let admin = StreamAdmin::connect(&options).await.unwrap();
    let wanted = StreamWanted {
        replicas: 1,
        ..wanted()
    };
    let made = admin.ensure(&wanted).await.unwrap();
    assert!(matches!(&made[0], Finding::Made(_)), "{made:?}");
    let (start, mut epoch) = open(&options, &target(None)).await.unwrap();
    assert_eq!(start.writers, Writers::Exclusive);
    one(&mut epoch, chained(0, 0)).await;
    assert_eq!(admin.state("OUTBOX").await.unwrap().messages, 1);
}
