//! Permissions, accounts and limits that a client cannot see beforehand.

use outbox::{BrokerFaultKind, EpochEnd};
use postrider_jetstream::{EpochEvent, StreamAdmin};
use testbed::Nats;

use crate::common::{
    chained, events, make_stream, nats_server, one, open, options, row, target, wanted,
};

/// An account with JetStream, an administrator, and a user with the given permissions.
fn accounts(permissions: &str, limits: &str) -> String {
    format!(
        r#"accounts {{
            APP {{
                jetstream: enabled
                {limits}
                users: [
                    {{ user: admin, password: admin }}
                    {{ user: app, password: app, permissions: {{ {permissions} }} }}
                ]
            }}
            BARE {{ users: [ {{ user: bare, password: bare }} ] }}
        }}"#
    )
}

async fn server(permissions: &str, limits: &str) -> Nats {
    let nats = nats_server().config(&accounts(permissions, limits));
    let nats = nats.start().await.unwrap();
    make_stream(&options(&as_user(&nats, "admin"))).await;
    nats
}

fn as_user(nats: &Nats, user: &str) -> String {
    format!("nats://{user}:{user}@127.0.0.1:{}", nats.port())
}

#[tokio::test]
async fn a_denied_subject_ends_the_epoch_by_name() {
    let nats = server(r#"publish: { deny: ["outbox.order.created1"] }"#, "").await;
    let options = options(&as_user(&nats, "app"));
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    for n in 0..10 {
        epoch.publish(chained(n, 0));
    }
    let mut end = None;
    while end.is_none() {
        end = events(&mut epoch)
            .await
            .into_iter()
            .find_map(|event| match event {
                EpochEvent::Ended(end) => Some(end),
                _ => None,
            });
    }
    let Some(EpochEnd::PermissionDenied { detail }) = end else {
        panic!("{end:?}");
    };
    assert!(detail.contains("outbox.order.created1"), "{detail}");
    epoch.close().await;
}

#[tokio::test]
async fn a_denied_inbox_or_api_is_told_at_the_start() {
    let nats = server(r#"subscribe: { deny: ["_INBOX.>"] }"#, "").await;
    let denied = options(&as_user(&nats, "app"));
    let fault = open(&denied, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::PermissionDenied, "{fault}");
    assert!(fault.detail.contains("_INBOX"), "{fault}");

    let nats = server(r#"publish: { deny: ["$JS.API.STREAM.MSG.GET.>"] }"#, "").await;
    let denied = options(&as_user(&nats, "app"));
    let admin = options(&as_user(&nats, "admin"));
    let (_, mut epoch) = open(&admin, &target(None)).await.unwrap();
    one(&mut epoch, chained(0, 0)).await;
    let fault = open(&denied, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::PermissionDenied, "{fault}");
    assert!(
        fault.detail.contains("$JS.API.STREAM.MSG.GET.OUTBOX"),
        "{fault}"
    );

    let asking = StreamAdmin::connect(&denied).await.unwrap();
    let fault = asking.state("OUTBOX").await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::PermissionDenied, "{fault}");
    // The connection of a tool lives on, and the next question is a new one.
    let taken = asking.which_stream_takes("outbox.a").await.unwrap();
    assert_eq!(taken.as_deref(), Some("OUTBOX"));
}

#[tokio::test]
async fn an_account_without_jetstream_is_told_by_name() {
    let nats = server("", "").await;
    let bare = options(&as_user(&nats, "bare"));
    let fault = open(&bare, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::NoJetStream, "{fault}");
    let asking = StreamAdmin::connect(&bare).await.unwrap();
    let fault = asking.ensure(&wanted()).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::NoJetStream, "{fault}");
}

#[tokio::test]
async fn a_missing_stream_is_told_by_name() {
    let nats = nats_server().start().await.unwrap();
    let fault = open(&options(&nats.url()), &target(None))
        .await
        .unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::StreamMissing, "{fault}");
    assert!(fault.detail.contains("OUTBOX") && fault.detail.contains("setup"));
}

#[tokio::test]
async fn the_accounts_own_max_payload_ends_the_epoch_by_name() {
    let nats = server("", "limits { max_payload: 1000 }").await;
    let options = options(&as_user(&nats, "app"));
    let (_, mut epoch) = open(&options, &target(None)).await.unwrap();
    let mut large = chained(0, 0);
    large.payload = vec![b'x'; 2000].into();
    let end = one(&mut epoch, large).await;
    assert_eq!(end, EpochEvent::Ended(EpochEnd::MaxPayloadViolation));

    // The server is there and would let us in again, but this connection must not come back: a
    // row handed to it now, stored, would be one that nobody waits for.
    epoch.publish(row(5));
    let (start, mut next) = open(&options, &target(None)).await.unwrap();
    assert_eq!(start.last_sequence, 0);
    for n in 0..50 {
        let event = one(&mut next, chained(n, 0)).await;
        assert!(matches!(event, EpochEvent::Acked { .. }), "{event:?}");
    }
    let admin = StreamAdmin::connect(&options).await.unwrap();
    assert_eq!(admin.state("OUTBOX").await.unwrap().messages, 50);
    epoch.close().await;
}
