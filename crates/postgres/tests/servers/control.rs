//! Lag and dead letters.

use postrider_postgres::{Control, DeadLetter, DeadLetterAccess};
use testbed::versions_under_test;

use crate::support::{relay, server, superuser};

#[tokio::test]
async fn a_slot_is_read_in_one_statement_and_unknown_is_not_zero() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let control = Control::connect(&superuser(&postgres).for_slot("s"))
            .await
            .unwrap();
        assert_eq!(control.read_lag("s").await.unwrap(), None);
        assert_eq!(control.confirmed_flush("s").await.unwrap(), None);

        let sql = "SELECT pg_create_logical_replication_slot('s', 'pgoutput'); \
                   CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 5000);";
        postgres.sql("shop", sql).await.unwrap();
        let open = postgres.connect("shop").await.unwrap();
        open.batch_execute("BEGIN; CREATE TABLE held (id int)")
            .await
            .unwrap();
        let pid: i32 = open
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);

        let lag = control.read_lag("s").await.unwrap().unwrap();
        assert_eq!(lag.plugin.as_deref(), Some("pgoutput"));
        assert_eq!(lag.database.as_deref(), Some("shop"));
        assert_eq!(lag.wal_status.as_deref(), Some("reserved"));
        assert!(lag.retained_bytes.unwrap() > 5_000_000, "{lag:?}");
        assert!(lag.unconfirmed_bytes.unwrap() > 5_000_000);
        assert_eq!(
            (lag.holder.as_ref(), lag.unsent_bytes, lag.reply_age),
            (None, None, None)
        );
        assert_eq!((lag.safe_wal_size_bytes, lag.keep_size_bytes), (None, None));
        assert_eq!(lag.failover.is_some(), version.major() >= 17);
        let oldest = lag.oldest_xact.as_ref().unwrap();
        assert_eq!(oldest.pid, Some(pid));
        assert!(oldest.age.is_some() && !lag.is_lost());

        // An ordinary role sees as much of it as it may.
        let control = Control::connect(&relay(&postgres)).await.unwrap();
        let lag = control.read_lag("s").await.unwrap().unwrap();
        assert!(lag.retained_bytes.is_some());
        assert_eq!(lag.oldest_xact.unwrap().pid, Some(pid));
    }
}

#[tokio::test]
async fn a_row_is_parked_once_however_often_it_comes() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        let relay = Control::connect(&relay(&postgres)).await.unwrap();
        assert_eq!(
            relay.dead_letter_access().await.unwrap(),
            DeadLetterAccess::Missing
        );
        assert_eq!(relay.dead_letter_stats("s").await.unwrap(), None);

        let file = include_str!("../../../../sql/dead_letter.sql");
        postgres.sql("shop", file).await.unwrap();
        assert_eq!(
            relay.dead_letter_access().await.unwrap(),
            DeadLetterAccess::NoRight
        );
        assert_eq!(relay.dead_letter_stats("s").await.unwrap(), None);
        let grant = "GRANT USAGE ON SCHEMA postrider TO relay; \
                     GRANT SELECT, INSERT ON postrider.dead_letter TO relay";
        postgres.sql("shop", grant).await.unwrap();
        assert_eq!(
            relay.dead_letter_access().await.unwrap(),
            DeadLetterAccess::Writable
        );

        let letter = DeadLetter {
            slot: "s",
            source: "7/1/shop/s",
            position: "0/16B3748/0",
            table_name: "public.outbox",
            row_id: Some("42"),
            headers_json: Some(r#"{"a": "\u0000", "a": 1}"#),
            payload: Some(&[0, 1, 255]),
            reason: "too_large",
            detail: Some("2 MiB; the server takes 1 MiB"),
            created_at: Some("infinity"),
            ..DeadLetter::default()
        };
        assert!(relay.park(&letter).await.unwrap());
        assert!(!relay.park(&letter).await.unwrap());
        let second = DeadLetter {
            position: "0/16B3748/1",
            headers_json: None,
            ..letter
        };
        assert!(relay.park(&second).await.unwrap());
        let stats = relay.dead_letter_stats("s").await.unwrap().unwrap();
        assert_eq!((stats.parked, stats.halted), (2, None));
        assert_eq!(stats.newest_reason.as_deref(), Some("too_large"));
        assert!(stats.oldest_age.is_some());
        let other = relay.dead_letter_stats("other").await.unwrap().unwrap();
        assert_eq!((other.parked, other.oldest_age), (0, None));
        // A halt at a row is noted beside, and the right to insert is enough for it.
        for reason in ["no_id", "too_large"] {
            let halted = DeadLetter { reason, ..letter };
            relay.note_halted(&halted).await.unwrap();
        }
        let stats = relay.dead_letter_stats("s").await.unwrap().unwrap();
        assert_eq!(stats.parked, 2);
        assert_eq!(stats.halted.unwrap().reason, "no_id");
        let payload = "SELECT encode(payload, 'hex') FROM postrider.dead_letter LIMIT 1";
        assert_eq!(
            postgres.value("shop", payload).await.unwrap().as_deref(),
            Some("0001ff")
        );
    }
}

#[tokio::test]
async fn a_header_that_the_database_cannot_encode_is_parked_in_ascii() {
    let version = versions_under_test().unwrap().postgres[0];
    let postgres = server(version).await;
    let make = "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' \
                LC_COLLATE 'C' LC_CTYPE 'C'";
    postgres.sql("postgres", make).await.unwrap();
    let file = include_str!("../../../../sql/dead_letter.sql");
    postgres.sql("latin", file).await.unwrap();
    let config = crate::support::parse(&format!(
        "postgres://postgres@/latin?host={}&port={}",
        postgres.socket_dir().display(),
        postgres.port()
    ));
    let control = Control::connect(&config).await.unwrap();
    let letter = DeadLetter {
        slot: "s",
        source: "7/1/latin/s",
        position: "0/16B3748/0",
        table_name: "public.outbox",
        row_id: Some("é"),
        headers_json: Some("{\"Name\":\"\u{4e2d}\"}"),
        payload: None,
        reason: "too_large",
        detail: Some("the header \u{4e2d}"),
        ..DeadLetter::default()
    };
    assert!(control.park(&letter).await.unwrap());
    let query = "SELECT headers::text, detail, row_id, payload IS NULL FROM postrider.dead_letter";
    let rows = postgres.rows("latin", query).await.unwrap();
    let cells: Vec<_> = rows[0]
        .iter()
        .map(|cell| cell.as_deref().unwrap())
        .collect();
    assert_eq!(cells[..2], [r#"{"Name":"\u4e2d"}"#, r"the header \u4e2d"]);
    assert_eq!(cells[2..], ["é", "t"]);
}

#[tokio::test]
async fn the_connection_ends_with_its_owner() {
    let version = versions_under_test().unwrap().postgres[0];
    let postgres = server(version).await;
    let control = Control::connect(&relay(&postgres).for_slot("s"))
        .await
        .unwrap();
    let pid = control.backend_pid();
    let query = format!("SELECT application_name FROM pg_stat_activity WHERE pid = {pid}");
    let name = postgres.value("shop", &query).await.unwrap();
    assert_eq!(name.as_deref(), Some("postrider/s/control"));
    drop(control);
    let limit = crate::support::PATIENCE;
    testbed::wait_until(limit, "the backend to be gone", async || {
        let rows = postgres.rows("shop", &query).await?;
        Ok(testbed::Progress::when(rows.is_empty(), || {
            "still there".to_owned()
        }))
    })
    .await
    .unwrap();
}
