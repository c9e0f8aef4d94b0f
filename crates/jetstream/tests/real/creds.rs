//! A credentials file against a server in operator mode.

use crate::common::{make_stream, nats_server, open, settings, target};
use nkeys::KeyPair;
use outbox::BrokerFaultKind;
use postrider_jetstream::{NatsOptions, NatsSettings};

/// RFC 4648 section 5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut padded = [0; 3];
        padded[..group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes([0, padded[0], padded[1], padded[2]]);
        for digit in 0..=group.len() {
            let index = (bits >> (18 - 6 * digit)) & 0x3f;
            text.push(char::from(DIGITS[index as usize]));
        }
    }
    text
}

/// A JWT as NATS signs them (ADR-14): Ed25519 over header and claims.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: serde_json::Value) -> String {
    let header = serde_json::json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let claims = serde_json::json!({
        "jti": "test", "iat": 1_700_000_000, "name": "test",
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats,
    });
    let part = |value: serde_json::Value| base64url(value.to_string().as_bytes());
    let text = format!("{}.{}", part(header), part(claims));
    let signature = base64url(&issuer.sign(text.as_bytes()).unwrap());
    format!("{text}.{signature}")
}

fn credentials(jwt: &str, user: &KeyPair) -> String {
    let seed = user.seed().unwrap();
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

#[tokio::test]
async fn a_credentials_file_works_and_is_read_again() {
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let operator_jwt = jwt(
        &operator,
        &operator,
        serde_json::json!({ "type": "operator", "version": 2 }),
    );
    let account_jwt = |account: &KeyPair, disk: i64| {
        let claims = serde_json::json!({
            "type": "account", "version": 2,
            "limits": {
                "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
                "wildcards": true, "conn": -1, "leaf": -1, "mem_storage": disk,
                "disk_storage": disk, "streams": disk, "consumer": disk,
            },
        });
        jwt(&operator, account, claims)
    };
    let user_jwt = |user: &KeyPair| {
        let claims = serde_json::json!({
            "type": "user", "version": 2, "pub": {}, "sub": {},
            "subs": -1, "data": -1, "payload": -1,
        });
        jwt(&account, user, claims)
    };
    // JetStream wants a system account, which itself has no JetStream.
    let system_pair = KeyPair::new_account();
    let config = format!(
        "operator: {operator_jwt}\nsystem_account: {system}\nresolver: MEMORY\n\
         resolver_preload: {{\n{system}: {}\n{}: {}\n}}",
        account_jwt(&system_pair, 0),
        account.public_key(),
        account_jwt(&account, -1),
        system = system_pair.public_key(),
    );
    let nats = nats_server().config(&config).start().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.creds");
    let (user, other) = (KeyPair::new_user(), KeyPair::new_user());
    // Somebody else's seed does not fit the JWT.
    std::fs::write(&path, credentials(&user_jwt(&user), &other)).unwrap();
    let options = NatsOptions::new(NatsSettings {
        credentials_file: Some(path.clone()),
        ..settings(&nats.url())
    })
    .unwrap();
    let fault = open(&options, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::Authentication, "{fault}");
    std::fs::write(&path, credentials(&user_jwt(&other), &other)).unwrap();
    make_stream(&options).await;
    open(&options, &target(None)).await.unwrap();
}
