//! Start, stop, kill, pause and restart of both servers.

use std::time::{Duration, Instant};

use postrider_testbed as testbed;
use testbed::{Nats, Postgres, StopMode, read_all, versions_under_test};

#[tokio::test]
async fn postgres_starts_stops_and_comes_back_with_its_data() {
    for version in versions_under_test().unwrap().postgres {
        let mut postgres = Postgres::builder().version(version).start().await.unwrap();
        let number = postgres
            .value("postgres", "SHOW server_version_num")
            .await
            .unwrap()
            .unwrap();
        assert_eq!(number.parse::<u32>().unwrap() / 10_000, version.major());
        assert_eq!(
            postgres
                .value("postgres", "SHOW wal_level")
                .await
                .unwrap()
                .unwrap(),
            "logical"
        );
        postgres.create_database("shop").await.unwrap();
        postgres
            .sql("shop", "CREATE TABLE t (id int); INSERT INTO t VALUES (1)")
            .await
            .unwrap();

        let begun = Instant::now();
        postgres.kill9().await.unwrap();
        assert!(!postgres.is_running());
        assert!(postgres.connect("shop").await.is_err());
        postgres.start_again().await.unwrap();
        eprintln!(
            "PostgreSQL {version}: killed and back in {:?}",
            begun.elapsed()
        );
        assert_eq!(
            postgres
                .value("shop", "SELECT count(*) FROM t")
                .await
                .unwrap()
                .unwrap(),
            "1"
        );

        for mode in [StopMode::Smart, StopMode::Fast, StopMode::Immediate] {
            postgres.stop(mode).await.unwrap();
            assert!(!postgres.is_running());
            postgres.start_again().await.unwrap();
        }
        postgres.restart().await.unwrap();
        assert_eq!(
            postgres
                .value("shop", "SELECT count(*) FROM t")
                .await
                .unwrap()
                .unwrap(),
            "1"
        );
        assert!(postgres.log_text().contains("ready to accept connections"));
    }
}

#[tokio::test]
async fn a_paused_postgres_is_mute_until_resumed() {
    let mut postgres = Postgres::builder().start().await.unwrap();
    let client = postgres.connect("postgres").await.unwrap();
    client.simple_query("SELECT 1").await.unwrap();
    postgres.pause().unwrap();
    let mute = client.simple_query("SELECT 2");
    assert!(
        tokio::time::timeout(Duration::from_millis(200), mute)
            .await
            .is_err()
    );
    assert!(postgres.is_running());
    postgres.resume().unwrap();
    client.simple_query("SELECT 3").await.unwrap();
    postgres.pause().unwrap();
    postgres.kill9().await.unwrap();
}

#[tokio::test]
async fn postgres_takes_settings_passwords_and_rules() {
    let mut postgres = Postgres::builder()
        .config("work_mem", "7MB")
        .auth("scram-sha-256")
        .start()
        .await
        .unwrap();
    assert_eq!(
        postgres
            .value("postgres", "SHOW work_mem")
            .await
            .unwrap()
            .unwrap(),
        "7MB"
    );
    let password = "p@ss/wörd :%";
    let create = format!("CREATE ROLE ann LOGIN PASSWORD '{password}'");
    postgres.sql("postgres", &create).await.unwrap();
    let url = postgres.url_as("ann", password, "postgres");
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    client.simple_query("SELECT 1").await.unwrap();
    let wrong = postgres.url_as("ann", "wrong", "postgres");
    assert!(
        tokio_postgres::connect(&wrong, tokio_postgres::NoTls)
            .await
            .is_err()
    );

    postgres.append_conf("work_mem", "9MB").unwrap();
    postgres.reload().unwrap();
    let what = "the new work_mem";
    testbed::wait_until(Duration::from_secs(10), what, async || {
        let value = postgres.value("postgres", "SHOW work_mem").await?.unwrap();
        Ok(testbed::Progress::when(value == "9MB", || value))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_server_that_does_not_start_says_why() {
    let error = Postgres::builder()
        .config("no_such_setting", "1")
        .start()
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("no_such_setting"),
        "{error:#}"
    );
    let error = Nats::builder()
        .config("no_such_setting {")
        .start()
        .await
        .unwrap_err();
    assert!(format!("{error:#}").contains("its log ends"), "{error:#}");
}

#[tokio::test]
async fn nats_keeps_its_messages_over_kill_and_stop_and_loses_them_when_wiped() {
    for version in versions_under_test().unwrap().nats {
        let mut nats = Nats::builder().version(version).start().await.unwrap();
        let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
        let config = async_nats::jetstream::stream::Config {
            name: String::from("EVENTS"),
            subjects: vec![String::from("events.>")],
            ..Default::default()
        };
        jetstream.create_stream(config).await.unwrap();
        for number in 0..100 {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Nats-Msg-Id", format!("id-{number}"));
            let payload = format!("payload {number}").into();
            let subject = format!("events.{number}");
            let sent = jetstream
                .publish_with_headers(subject, headers, payload)
                .await
                .unwrap();
            sent.await.unwrap();
        }
        for _ in 0..2 {
            nats.kill9().await.unwrap();
            assert!(!nats.is_running());
            nats.start_again().await.unwrap();
            nats.restart().await.unwrap();
        }
        let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
        assert_eq!(
            testbed::message_count(&jetstream, "EVENTS").await.unwrap(),
            100
        );
        let messages = read_all(&jetstream, "EVENTS").await.unwrap();
        assert_eq!(messages.len(), 100);
        assert_eq!(messages[41].sequence, 42);
        assert_eq!(messages[41].subject, "events.41");
        assert_eq!(messages[41].id(), Some("id-41"));
        assert_eq!(&messages[41].payload[..], b"payload 41");

        let stream = jetstream.get_stream("EVENTS").await.unwrap();
        stream.delete_message(100).await.unwrap();
        stream.delete_message(7).await.unwrap();
        assert_eq!(read_all(&jetstream, "EVENTS").await.unwrap().len(), 98);
        stream.purge().await.unwrap();
        assert_eq!(read_all(&jetstream, "EVENTS").await.unwrap().len(), 0);

        nats.stop().await.unwrap();
        nats.wipe_store().unwrap();
        nats.start_again().await.unwrap();
        let jetstream = async_nats::jetstream::new(nats.connect().await.unwrap());
        assert!(jetstream.get_stream("EVENTS").await.is_err());
    }
}

#[tokio::test]
async fn a_paused_nats_is_mute_until_resumed() {
    let mut nats = Nats::builder().start().await.unwrap();
    let client = nats.connect().await.unwrap();
    client.flush().await.unwrap();
    nats.pause().unwrap();
    let mut round_trip = Box::pin(client.request("$JS.API.INFO", "".into()));
    let mute = tokio::time::timeout(Duration::from_millis(200), &mut round_trip).await;
    assert!(mute.is_err());
    nats.resume().unwrap();
    round_trip.await.unwrap();
}

#[tokio::test]
async fn nats_takes_configuration_text() {
    let nats = Nats::builder()
        .config("max_payload: 2048\nauthorization { user: ann, password: secret }")
        .start()
        .await
        .unwrap();
    assert!(nats.connect().await.is_err());
    let options = async_nats::ConnectOptions::with_user_and_password("ann".into(), "secret".into());
    let client = options.connect(nats.url()).await.unwrap();
    assert_eq!(client.server_info().max_payload, 2048);
}

#[tokio::test]
async fn a_build_with_tls_is_found_for_every_version() {
    let names = vec![String::from("localhost")];
    let identity = rcgen::generate_simple_self_signed(names).unwrap();
    let (certificate, key) = (identity.cert.pem(), identity.signing_key.serialize_pem());
    for version in versions_under_test().unwrap().postgres {
        let builder = Postgres::builder().version(version).tls_capable();
        let builder = builder.file("server.crt", certificate.clone());
        let builder = builder.file("server.key", key.clone());
        let postgres = builder.config("ssl", "on").start().await.unwrap();
        let answer = postgres.value("postgres", "SHOW ssl").await.unwrap();
        assert_eq!(answer.as_deref(), Some("on"), "PostgreSQL {version}");
    }
}
