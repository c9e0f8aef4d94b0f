//! The replication session.

use pgoutput::{Frame, Lsn};
use postrider_postgres::{Control, Ending, Fault, ReplicationSession};
use testbed::{Postgres, versions_under_test};

use crate::support::{PATIENCE, receive, relay, server, superuser};

const TABLE_AND_SLOT: &str = "CREATE TABLE outbox (id bigint PRIMARY KEY, body text); \
     CREATE PUBLICATION pub FOR TABLE outbox WITH (publish = 'insert');";

async fn prepare(postgres: &Postgres) {
    postgres.sql("shop", TABLE_AND_SLOT).await.unwrap();
    let slot = "SELECT pg_create_logical_replication_slot('s', 'pgoutput')";
    postgres.sql("shop", slot).await.unwrap();
}

fn publications() -> Vec<String> {
    vec!["pub".to_owned()]
}

#[tokio::test]
async fn commands_are_answered() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let config = relay(&postgres).for_slot("s");
        let mut session = ReplicationSession::connect(&config).await.unwrap();
        assert_eq!(u32::from(session.server_version().major()), version.major());
        let identity = session.identify_system().await.unwrap();
        assert_eq!(
            (identity.timeline, identity.database.as_deref()),
            (1, Some("shop"))
        );
        assert!(identity.system_identifier > 0 && !identity.wal_position.is_zero());
        assert_eq!(session.timeline_history(1).await.unwrap(), []);
        for (setting, value) in [
            ("TimeZone", "UTC"),
            ("DateStyle", "ISO"),
            ("IntervalStyle", "iso_8601"),
            ("bytea_output", "hex"),
            ("extra_float_digits", "3"),
            ("wal_sender_timeout", "30s"),
            ("client_encoding", "UTF8"),
            ("application_name", "postrider/s"),
        ] {
            let rows = session
                .simple_query(&format!("SHOW {setting}"))
                .await
                .unwrap();
            let shown = rows[0][0].as_deref().unwrap();
            assert!(shown.starts_with(value.as_bytes()), "{setting}: {shown:?}");
        }
        // An error leaves the session usable.
        let error = session.simple_query("SELECT 1/0").await.unwrap_err();
        assert_eq!(error.server().unwrap().code.as_str(), "22012");
        let created = session.create_slot("made", false).await.unwrap();
        assert!(!created.consistent_point.is_zero() && created.snapshot_name.is_some());
        session.close().await;
    }
}

#[tokio::test]
async fn the_last_status_counts_twenty_times_of_twenty() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        prepare(&postgres).await;
        let control = Control::connect(&relay(&postgres)).await.unwrap();
        for round in 0..20 {
            // Every fifth round leaves a backlog behind: more than the socket's buffers hold, so
            // that the server is blocked in sending when the stream ends.
            let backlog = if round % 5 == 4 { 40_000 } else { 0 };
            let writer = postgres.connect("shop").await.unwrap();
            writer.batch_execute("TRUNCATE outbox").await.unwrap();
            for id in 1..=50 {
                let insert = format!("INSERT INTO outbox VALUES ({id}, 'a')");
                writer.batch_execute(&insert).await.unwrap();
            }
            let insert = format!(
                "INSERT INTO outbox \
                 SELECT i, repeat('x', 200) FROM generate_series(51, 50 + {backlog}) i"
            );
            writer.batch_execute(&insert).await.unwrap();
            let session = ReplicationSession::connect(&relay(&postgres))
                .await
                .unwrap();
            let mut stream = session.start("s", &publications()).await.unwrap();
            let (rows, end) = receive(&mut stream, 50).await.unwrap();
            assert_eq!(rows, 50, "round {round}");
            stream.send_status(end, 0, false).await.unwrap();
            let ending = stream.finish(PATIENCE).await.unwrap();
            assert_eq!(ending, Ending::Complete);
            let confirmed = control.confirmed_flush("s").await.unwrap();
            assert_eq!(confirmed, Some(end), "round {round}");
            if backlog > 0 {
                // The rest comes again, whole, in the next session.
                let session = ReplicationSession::connect(&relay(&postgres))
                    .await
                    .unwrap();
                let mut stream = session.start("s", &publications()).await.unwrap();
                let (rows, end) = receive(&mut stream, 1).await.unwrap();
                assert_eq!(rows, backlog, "round {round}");
                stream.send_status(end, 0, false).await.unwrap();
                assert_eq!(stream.finish(PATIENCE).await.unwrap(), Ending::Complete);
            }
        }
    }
}

#[tokio::test]
async fn faults_are_told_apart() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        prepare(&postgres).await;
        let config = relay(&postgres);
        let start = async |slot: &str| {
            ReplicationSession::connect(&config)
                .await?
                .start(slot, &publications())
                .await
        };
        assert_eq!(
            start("missing").await.unwrap_err().fault(),
            Fault::SlotMissing
        );

        let mut stream = start("s").await.unwrap();
        let pid = Some(stream.backend_pid());
        assert_eq!(
            start("s").await.unwrap_err().fault(),
            Fault::SlotActive { pid }
        );

        // Ended by an administrator: the reason is received, not a broken pipe.
        postgres
            .sql(
                "shop",
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots",
            )
            .await
            .unwrap();
        let error = loop {
            match stream.next_frame().await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert_eq!(
            error.fault(),
            Fault::ServerShuttingDown,
            "{}",
            error.one_line()
        );
    }
}

#[tokio::test]
async fn rows_from_before_their_publication_are_a_fault_on_every_version() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        prepare(&postgres).await;
        let config = relay(&postgres);
        // Rows from before the publication: an error up to 17, a mere warning from 18 on.
        postgres
            .sql(
                "shop",
                "SELECT pg_create_logical_replication_slot('older', 'pgoutput'); \
                 INSERT INTO outbox VALUES (1, 'a'); \
                 CREATE PUBLICATION \"Young Pub\" FOR TABLE outbox;",
            )
            .await
            .unwrap();
        let session = ReplicationSession::connect(&config).await.unwrap();
        let names = vec!["Young Pub".to_owned()];
        let mut stream = session.start("older", &names).await.unwrap();
        let error = loop {
            match tokio::time::timeout(PATIENCE, stream.next_frame())
                .await
                .expect("a fault")
            {
                Ok(Frame::KeepAlive { .. }) => {}
                Ok(frame) => {
                    assert!(
                        !crate::support::is_insert(&frame),
                        "a row of an unknown publication"
                    );
                }
                Err(error) => break error,
            }
        };
        assert_eq!(
            error.fault(),
            Fault::PublicationMissing,
            "{}",
            error.one_line()
        );
    }
}

#[tokio::test]
async fn a_status_arrives_while_nobody_reads_the_stream() {
    let version = versions_under_test().unwrap().postgres[0];
    let postgres = server(version).await;
    prepare(&postgres).await;
    postgres
        .sql(
            "shop",
            "INSERT INTO outbox SELECT i, repeat('x', 500) FROM generate_series(1, 100000) i",
        )
        .await
        .unwrap();
    let session = ReplicationSession::connect(&superuser(&postgres))
        .await
        .unwrap();
    let mut stream = session.start("s", &publications()).await.unwrap();
    let pid = stream.backend_pid();
    // The socket is full of WAL, and the server is blocked in sending more; it reads our updates
    // all the same. It shows our clock of the last one.
    for now_micros in 1..=20 {
        stream
            .send_status(Lsn::ZERO, now_micros, false)
            .await
            .unwrap();
        let query = format!(
            "SELECT extract(microseconds FROM reply_time)::int FROM pg_stat_replication \
             WHERE pid = {pid}"
        );
        let wanted = Some(now_micros.to_string());
        testbed::wait_until(PATIENCE, "the status to be read", async || {
            let shown = postgres.value("shop", &query).await?;
            Ok(testbed::Progress::when(shown == wanted, || {
                format!("{shown:?}")
            }))
        })
        .await
        .unwrap();
    }
    let (rows, end) = receive(&mut stream, 1).await.unwrap();
    assert_eq!(rows, 100_000);
    assert_eq!(stream.backend_pid(), pid);
    stream.send_status(end, 0, false).await.unwrap();
    assert_eq!(stream.finish(PATIENCE).await.unwrap(), Ending::Complete);
}
