//! What the tests share.

use std::time::Duration;

use bytes::Bytes;
use outbox::{BrokerFault, EpochStart, Headers, Outgoing, Token, Writers};
use postrider_jetstream::{
    Epoch, EpochEvent, NatsOptions, NatsSettings, Secret, StreamAdmin, StreamTarget, StreamWanted,
};
use testbed::{Nats, NatsBuilder, versions_under_test};

/// A server of the last version under test. Each test runs on one; `cargo xtask test --matrix` runs
/// them all once for each.
pub(crate) fn nats_server() -> NatsBuilder {
    let versions = versions_under_test().unwrap().nats;
    Nats::builder().version(*versions.last().unwrap())
}

/// For everything that must happen at once.
pub(crate) const SOON: Duration = Duration::from_secs(10);

pub(crate) const OWNER: &str = "7301234567890123456/shop/postrider";

pub(crate) fn settings(url: &str) -> NatsSettings {
    NatsSettings {
        url: Secret::new(url),
        slot: "postrider".to_owned(),
        ..NatsSettings::default()
    }
}

pub(crate) fn options(url: &str) -> NatsOptions {
    NatsOptions::new(settings(url)).unwrap()
}

pub(crate) fn target(writers: Option<Writers>) -> StreamTarget {
    StreamTarget {
        stream: "OUTBOX".to_owned(),
        writers,
        owner: OWNER.to_owned(),
        patterns: vec!["outbox.*.*".to_owned()],
    }
}

pub(crate) fn wanted() -> StreamWanted {
    StreamWanted::new(
        target(None),
        vec!["outbox.>".to_owned()],
        vec!["public.outbox".to_owned()],
    )
}

/// Makes the stream as `setup` does.
pub(crate) async fn make_stream(options: &NatsOptions) {
    let admin = StreamAdmin::connect(options).await.unwrap();
    admin.ensure(&wanted()).await.unwrap();
}

pub(crate) async fn open(
    options: &NatsOptions,
    target: &StreamTarget,
) -> Result<(EpochStart, Epoch), BrokerFault> {
    let opening = Epoch::open(options, target, 1);
    tokio::time::timeout(SOON, opening).await.unwrap()
}

/// Row number `n`, with the headers that Postrider gives to rows.
pub(crate) fn row(n: u64) -> Outgoing {
    let block = format!(
        "Nats-Msg-Id: row-{n}\r\nOutbox-Position: 0/{:X}/0\r\n\
         Outbox-Source: 7301234567890123456/1/shop/postrider\r\n",
        0x0100_0000 + n * 0x100
    );
    Outgoing {
        token: Token(n),
        subject: Bytes::from(format!("outbox.order.created{}", n % 16)),
        headers: Headers::from_block(Bytes::from(block)),
        payload: Bytes::from(format!("{{\"n\":{n}}}")),
        expected_last_sequence: None,
        settled: None,
    }
}

/// Row number `n` in a chain that began behind `base`.
pub(crate) fn chained(n: u64, base: u64) -> Outgoing {
    Outgoing {
        expected_last_sequence: Some(base + n),
        ..row(n)
    }
}

/// The next events, at least one.
pub(crate) async fn events(epoch: &mut Epoch) -> Vec<EpochEvent> {
    let mut events = Vec::new();
    let waiting = epoch.next_events(&mut events);
    tokio::time::timeout(SOON, waiting).await.unwrap();
    events
}

/// So many events.
pub(crate) async fn count(epoch: &mut Epoch, wanted: usize) -> Vec<EpochEvent> {
    let mut all = Vec::new();
    while all.len() < wanted {
        all.extend(events(epoch).await);
    }
    all
}

/// Publishes one row and gives back what became of it.
pub(crate) async fn one(epoch: &mut Epoch, row: Outgoing) -> EpochEvent {
    epoch.publish(row);
    events(epoch).await.remove(0)
}
