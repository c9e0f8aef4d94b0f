//! Reading the newest messages of a stream.

use std::time::Instant;

use bytes::Bytes;
use outbox::{Headers, LookBackRange, Outgoing, Position, Reach, ReadNext, Source, Token, Writers};
use postrider_jetstream::{Epoch, NatsOptions, StreamAdmin, look_back};
use testbed::Nats;

use crate::common::{SOON, chained, count, make_stream, one, open, options, row, target, wanted};

fn source() -> Source {
    "7301234567890123456/1/shop/postrider".parse().unwrap()
}

fn range(writers: Writers, to: u64, rows: usize) -> LookBackRange {
    LookBackRange {
        source: source(),
        writers,
        from: 1,
        to,
        rows,
    }
}

/// Row `n` of another database, under the same subjects.
fn of_another(n: u64) -> Outgoing {
    let block = format!(
        "Nats-Msg-Id: other-{n}\r\nOutbox-Position: 0/{n:X}/0\r\n\
         Outbox-Source: 7301234567890123456/1/warehouse/postrider\r\n"
    );
    Outgoing {
        token: Token(1_000_000 + n),
        headers: Headers::from_block(Bytes::from(block)),
        ..row(n)
    }
}

async fn publish_all(epoch: &mut Epoch, rows: impl Iterator<Item = Outgoing>) {
    let mut published = 0;
    for row in rows {
        epoch.publish(row);
        published += 1;
    }
    count(epoch, published).await;
}

async fn prepared() -> (Nats, NatsOptions, Epoch) {
    let nats = Nats::builder().start().await.unwrap();
    let options = options(&nats.url());
    make_stream(&options).await;
    let (_, epoch) = open(&options, &target(None)).await.unwrap();
    (nats, options, epoch)
}

#[tokio::test]
async fn the_newest_messages_are_read_in_order_as_far_back_as_wanted() {
    const ROWS: u64 = 20_000;
    let (_nats, options, mut epoch) = prepared().await;
    for begin in (0..ROWS).step_by(5_000) {
        publish_all(&mut epoch, (begin..begin + 5_000).map(|n| chained(n, 0))).await;
    }
    let wanted = range(Writers::Exclusive, ROWS, 16_384);
    let began = Instant::now();
    let found = look_back(&options, &target(None), &wanted).await.unwrap();
    println!("{} messages in {:?}", found.messages.len(), began.elapsed());
    assert_eq!(found.reach, Reach::Wanted);
    assert_eq!(found.messages.len(), 16_384);
    let sequences = found.messages.iter().map(|message| message.sequence);
    assert!(sequences.eq(ROWS - 16_384 + 1..=ROWS));
    let last = found.messages.last().unwrap().row.as_ref().unwrap();
    assert_eq!(last.dedup_id, format!("row-{}", ROWS - 1));
    assert!(
        last.chained,
        "the server keeps the expected sequence as a header"
    );
    assert_eq!(last.settled, None);
    // What was there when the epoch began is all that is asked for.
    let few = range(Writers::Exclusive, 3, 16_384);
    let found = look_back(&options, &target(None), &few).await.unwrap();
    assert_eq!((found.messages.len(), found.reach), (3, Reach::Beginning));
    let none = range(Writers::Exclusive, 0, 16_384);
    let found = look_back(&options, &target(None), &none).await.unwrap();
    assert_eq!((found.messages.len(), found.reach), (0, Reach::Beginning));
    epoch.close().await;
}

#[tokio::test]
async fn in_a_shared_stream_ours_are_found_far_behind_those_of_others() {
    let (_nats, options, mut epoch) = prepared().await;
    let settled: Position = "0/AB/7".parse().unwrap();
    let mine = (0..3).map(|n| Outgoing {
        settled: Some(settled),
        ..row(n)
    });
    publish_all(&mut epoch, mine).await;
    // Of others: on our subjects, and elsewhere in the stream.
    publish_all(&mut epoch, (0..3_000).map(of_another)).await;
    let elsewhere = (3_000..9_000).map(|n| Outgoing {
        subject: Bytes::from_static(b"outbox.elsewhere"),
        ..of_another(n)
    });
    publish_all(&mut epoch, elsewhere).await;
    let wanted = range(Writers::Shared, 9_003, 3);
    let found = look_back(&options, &target(None), &wanted).await.unwrap();
    let rows: Vec<_> = found
        .messages
        .iter()
        .map(|message| (message.sequence, message.row.as_ref().unwrap().settled))
        .collect();
    assert_eq!(
        rows,
        [(1, Some(settled)), (2, Some(settled)), (3, Some(settled))]
    );
    let row = found.messages[0].row.as_ref().unwrap();
    assert!(!row.chained);
    epoch.close().await;
}

#[tokio::test]
async fn deleted_messages_are_no_obstacle() {
    let (nats, options, mut epoch) = prepared().await;
    publish_all(&mut epoch, (0..10).map(|n| chained(n, 0))).await;
    let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
    let stream = jetstream.get_stream("OUTBOX").await.unwrap();
    for sequence in [1, 2, 5, 6, 7] {
        stream.delete_message(sequence).await.unwrap();
    }
    let wanted = range(Writers::Exclusive, 10, 100);
    let found = look_back(&options, &target(None), &wanted).await.unwrap();
    let sequences: Vec<_> = found.messages.iter().map(|seen| seen.sequence).collect();
    assert_eq!(sequences, [3, 4, 8, 9, 10]);
    let reader = epoch.reader();
    for (asked, wanted) in [(1, Some(3)), (5, Some(8)), (10, Some(10)), (11, None)] {
        let found = match reader.read_next(asked).await {
            ReadNext::Message(message) => Some(message.sequence),
            ReadNext::End => None,
            ReadNext::Unknown { detail } => panic!("{detail}"),
        };
        assert_eq!(found, wanted, "from {asked}");
    }
    epoch.close().await;
}

#[tokio::test]
async fn a_user_that_may_make_no_consumer_is_told_so_at_once() {
    let config = r#"accounts { APP {
        jetstream: enabled
        users: [
            { user: admin, password: admin }
            { user: app, password: app, permissions: {
                publish: { deny: ["$JS.API.CONSUMER.>"] } } }
        ]
    } }"#;
    let nats = Nats::builder().config(config).start().await.unwrap();
    let url = |user: &str| format!("nats://{user}:{user}@127.0.0.1:{}", nats.port());
    let admin = StreamAdmin::connect(&options(&url("admin"))).await.unwrap();
    admin.ensure(&wanted()).await.unwrap();
    let options = options(&url("app"));
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    one(&mut epoch, chained(0, 0)).await;
    let wanted = range(Writers::Exclusive, 1, 10);
    let target = target(None);
    let asking = look_back(&options, &target, &wanted);
    let fault = tokio::time::timeout(SOON / 2, asking)
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(fault.kind, outbox::BrokerFaultKind::PermissionDenied);
    assert!(fault.detail.contains("CONSUMER.CREATE"), "{}", fault.detail);
    // The epoch has a connection of its own and goes on.
    one(&mut epoch, chained(1, 0)).await;
    assert_eq!(epoch.in_flight(), 0);
    epoch.close().await;
}
