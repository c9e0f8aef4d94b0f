//! Servers that belong together: a cluster of NATS, a primary with its standby.

// A test says by a panic that it failed; so do its helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use async_nats::jetstream::stream::Config;
use postrider_testbed as testbed;
use testbed::{NatsCluster, PgVersion, Postgres, StopMode, message_count, versions_under_test};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_cluster_outlives_the_loss_of_any_node_and_changes_its_leader() {
    for version in versions_under_test().unwrap().nats {
        let mut cluster = NatsCluster::start(version).await.unwrap();
        let jetstream = cluster.jetstream().await.unwrap();
        let config = Config {
            name: String::from("EVENTS"),
            subjects: vec![String::from("events.>")],
            num_replicas: 3,
            ..Default::default()
        };
        jetstream.create_stream(config).await.unwrap();
        cluster.wait_healthy("EVENTS", LIMIT).await.unwrap();
        let sent = jetstream.publish("events.1", "one".into()).await.unwrap();
        sent.await.unwrap();

        let first = cluster.leader("EVENTS", LIMIT).await.unwrap();
        cluster.step_down("EVENTS").await.unwrap();
        testbed::wait_until(LIMIT, "another leader", async || {
            let now = cluster.leader("EVENTS", LIMIT).await?;
            Ok(testbed::Progress::when(now != first, || now.to_string()))
        })
        .await
        .unwrap();

        let leader = cluster.leader("EVENTS", LIMIT).await.unwrap();
        cluster.node(leader).unwrap().kill9().await.unwrap();
        testbed::wait_until(LIMIT, "one of the others to lead", async || {
            let now = cluster.leader("EVENTS", LIMIT).await?;
            Ok(testbed::Progress::when(now != leader, || now.to_string()))
        })
        .await
        .unwrap();
        cluster.node(leader).unwrap().start_again().await.unwrap();
        cluster.wait_healthy("EVENTS", LIMIT).await.unwrap();

        cluster.node(0).unwrap().pause().unwrap();
        cluster.node(0).unwrap().resume().unwrap();
        cluster.rolling_restart("EVENTS", LIMIT).await.unwrap();
        let jetstream = cluster.jetstream().await.unwrap();
        assert_eq!(message_count(&jetstream, "EVENTS").await.unwrap(), 1);
    }
}

#[tokio::test]
async fn a_standby_follows_its_primary_and_takes_its_place() {
    for version in versions_under_test().unwrap().postgres {
        let mut primary = Postgres::builder().version(version).start().await.unwrap();
        primary.create_database("shop").await.unwrap();
        primary
            .sql("shop", "CREATE TABLE t (id int)")
            .await
            .unwrap();
        let mut standby = primary.start_standby("standby").await.unwrap();
        primary
            .sql("shop", "INSERT INTO t VALUES (1)")
            .await
            .unwrap();
        standby.wait_replayed(&primary, LIMIT).await.unwrap();
        assert!(
            standby
                .sql("shop", "INSERT INTO t VALUES (2)")
                .await
                .is_err()
        );
        if version >= PgVersion::V17 {
            let sql = "SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, false, \
                       true)";
            primary.sql("shop", sql).await.unwrap();
            standby.wait_slot_synced("s", LIMIT).await.unwrap();
        }

        // What it has not received by then is lost with the primary.
        standby.stop(StopMode::Fast).await.unwrap();
        primary
            .sql("shop", "INSERT INTO t VALUES (3)")
            .await
            .unwrap();
        primary.kill9().await.unwrap();
        standby.start_again().await.unwrap();
        standby.promote().await.unwrap();
        standby
            .sql("shop", "INSERT INTO t VALUES (4)")
            .await
            .unwrap();
        let query = "SELECT string_agg(id::text, ',' ORDER BY id) FROM t";
        let rows = standby.value("shop", query).await.unwrap();
        assert_eq!(rows.as_deref(), Some("1,4"), "PostgreSQL {version}");
    }
}
