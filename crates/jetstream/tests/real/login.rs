//! Credentials and TLS.

use nkeys::KeyPair;
use outbox::BrokerFaultKind;
use postrider_jetstream::{NatsOptions, NatsSettings, Secret};
use testbed::Nats;

use crate::common::{make_stream, nats_server, open, options, settings, target};

#[tokio::test]
async fn credentials_in_the_url_work_percent_encoded_and_never_show() {
    let nats = nats_server()
        .config(r#"authorization { user: "app user", password: "S3CR3T@x,y%" }"#)
        .start()
        .await
        .unwrap();
    let place = format!("127.0.0.1:{}", nats.port());
    let good = options(&format!("nats://app%20user:S3CR3T%40x%2Cy%25@{place}"));
    make_stream(&good).await;
    let (_, epoch) = open(&good, &target(None)).await.unwrap();
    assert!(!format!("{epoch:?}{good:?}").contains("S3CR3T"));
    for wrong in ["app%20user:S3CR3T", "S3CR3T", "other:S3CR3T"] {
        let wrong = options(&format!("{wrong}@{place}"));
        let fault = open(&wrong, &target(None)).await.unwrap_err();
        assert_eq!(fault.kind, BrokerFaultKind::Authentication, "{fault}");
        let shown = format!("{fault} {fault:?} {wrong:?}");
        assert!(!shown.contains("S3CR3T"), "{shown}");
    }
    let nobody = options(&place);
    let fault = open(&nobody, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::Authentication, "{fault}");
    // One server that is not there does not keep us from the other.
    let two = options(&format!("127.0.0.1:1,app%20user:S3CR3T%40x%2Cy%25@{place}"));
    open(&two, &target(None)).await.unwrap();
}

#[tokio::test]
async fn a_token_file_is_read_again_at_each_connect() {
    let nats = nats_server()
        .config(r#"authorization { token: "S3CR3T" }"#)
        .start()
        .await
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    let options = NatsOptions::new(NatsSettings {
        token_file: Some(path.clone()),
        ..settings(&nats.url())
    })
    .unwrap();
    let fault = open(&options, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::Authentication, "{fault}");
    assert!(fault.detail.contains("token"), "{fault}");
    std::fs::write(&path, "old\n").unwrap();
    let fault = open(&options, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::Authentication, "{fault}");
    std::fs::write(&path, "S3CR3T\n").unwrap();
    make_stream(&options).await;
    open(&options, &target(None)).await.unwrap();
}

#[tokio::test]
async fn an_nkey_file_works() {
    let pair = KeyPair::new_user();
    let nats = nats_server()
        .config(&format!(
            "authorization {{ users: [ {{ nkey: {} }} ] }}",
            pair.public_key()
        ))
        .start()
        .await
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("user.nk");
    std::fs::write(&path, pair.seed().unwrap()).unwrap();
    let options = NatsOptions::new(NatsSettings {
        nkey_file: Some(path.clone()),
        ..settings(&nats.url())
    })
    .unwrap();
    make_stream(&options).await;
    open(&options, &target(None)).await.unwrap();
    std::fs::write(&path, KeyPair::new_user().seed().unwrap()).unwrap();
    let fault = open(&options, &target(None)).await.unwrap_err();
    assert_eq!(fault.kind, BrokerFaultKind::Authentication, "{fault}");
}

struct Authority {
    pem: String,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(params, key);
        Self { pem, issuer }
    }

    /// Certificate and key for a name.
    fn sign(&self, name: &str) -> (String, String) {
        let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.extended_key_usages = vec![
            rcgen::ExtendedKeyUsagePurpose::ServerAuth,
            rcgen::ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

async fn tls_server(authority: &Authority, extra: &str) -> Nats {
    let (cert, key) = authority.sign("localhost");
    nats_server()
        .file("ca.pem", authority.pem.clone())
        .file("cert.pem", cert)
        .file("key.pem", key)
        .config(&format!(
            "tls {{ cert_file: cert.pem, key_file: key.pem, ca_file: ca.pem, {extra} }}"
        ))
        .start()
        .await
        .unwrap()
}

#[tokio::test]
async fn a_private_authority_and_a_client_certificate_work() {
    let authority = Authority::new();
    let nats = tls_server(&authority, "verify: true").await;
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        Some(path)
    };
    let (cert, key) = authority.sign("client");
    let base = NatsSettings {
        tls_ca: file("ca.pem", &authority.pem),
        tls_cert: file("client.pem", &cert),
        tls_key: file("client.key", &key),
        ..settings(&format!("localhost:{}", nats.port()))
    };
    let good = NatsOptions::new(base.clone()).unwrap();
    make_stream(&good).await;
    open(&good, &target(None)).await.unwrap();

    let no_client = NatsSettings {
        tls_cert: None,
        tls_key: None,
        ..base.clone()
    };
    let other_ca = NatsSettings {
        tls_ca: file("other.pem", &Authority::new().pem),
        ..base.clone()
    };
    let other_name = NatsSettings {
        url: Secret::new(format!("tls://127.0.0.1:{}", nats.port())),
        ..base.clone()
    };
    let no_file = NatsSettings {
        tls_ca: Some(dir.path().join("absent.pem")),
        ..base.clone()
    };
    let no_pem = NatsSettings {
        tls_ca: file("no.pem", "hello"),
        ..base.clone()
    };
    let first = NatsSettings {
        tls_first: true,
        ..base
    };
    for (settings, word) in [
        (no_client, "certificate"),
        (other_ca, "tls_ca"),
        (other_name, "127.0.0.1"),
        (no_file, "absent.pem"),
        (no_pem, "no.pem"),
        (first, "tls_first"),
    ] {
        let options = NatsOptions::new(settings).unwrap();
        let fault = open(&options, &target(None)).await.unwrap_err();
        assert_eq!(fault.kind, BrokerFaultKind::Tls, "{word}: {fault}");
        assert!(fault.detail.contains(word), "{word}: {fault}");
    }
}

#[tokio::test]
async fn handshake_first_works_and_is_hinted_at() {
    let authority = Authority::new();
    let nats = tls_server(&authority, "handshake_first: true").await;
    let dir = tempfile::tempdir().unwrap();
    let ca = dir.path().join("ca.pem");
    std::fs::write(&ca, &authority.pem).unwrap();
    let late = NatsSettings {
        tls_ca: Some(ca),
        ..settings(&format!("localhost:{}", nats.port()))
    };
    let first = NatsSettings {
        tls_first: true,
        ..late.clone()
    };
    let first = NatsOptions::new(first).unwrap();
    make_stream(&first).await;
    open(&first, &target(None)).await.unwrap();
    let late = NatsOptions::new(late).unwrap();
    let fault = open(&late, &target(None)).await.unwrap_err();
    // As from a proxy whose server is away: nothing that must end a streamer.
    assert_eq!(fault.kind, BrokerFaultKind::Unreachable, "{fault}");
    assert!(fault.detail.contains("tls_first = true"), "{fault}");
}
