//! The slot keeps moving while the outbox is silent and others write.

use anyhow::{Result, ensure};
use postrider_tests::{Line, Stage, Writers, everyday_or_long, for_each_version};

/// The most WAL that the slot may retain.
const RETAINED_MAX_BYTES: i64 = 64 * 1024 * 1024;

/// Writes about 16 MiB of WAL, one segment.
const BUSY: &str = "INSERT INTO busy SELECT repeat(md5(n::text), 40) \
                    FROM generate_series(1, 11000) AS n";

#[tokio::test]
async fn an_idle_outbox_retains_little_beside_busy_tables_and_a_busy_database() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        stage.postgres.create_database("busy").await?;
        let shop = stage.client("shop").await?;
        let other = stage.client("busy").await?;
        for client in [&shop, &other] {
            let table = "CREATE TABLE busy (t text); ALTER TABLE busy ALTER t SET STORAGE PLAIN";
            client.batch_execute(table).await?;
        }
        let _streamer = line.start(&stage).await?;
        let begin = wal_bytes(&shop).await?;
        let mut most = 0;
        for _ in 0..everyday_or_long(5, 60) {
            for client in [&shop, &other] {
                client.batch_execute(BUSY).await?;
                client.batch_execute("TRUNCATE busy").await?;
                // As the background writer does every 15 s: a slot's restart_lsn moves only to
                // the places where the server notes which transactions are running.
                client.batch_execute("CHECKPOINT").await?;
                line.wait_confirmed(&stage).await?;
                let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint \
                           FROM pg_replication_slots WHERE slot_name = $1";
                let row = shop.query_one(sql, &[&line.slot]).await?;
                most = most.max(row.try_get(0)?);
                ensure!(most < RETAINED_MAX_BYTES, "{most} bytes retained");
            }
        }
        let written = wal_bytes(&shop).await? - begin;
        println!("{written} bytes of WAL written, at most {most} retained");
        ensure!(
            written > 2 * RETAINED_MAX_BYTES,
            "too little written to show anything: {written} bytes"
        );
        Ok(())
    })
    .await
}

async fn wal_bytes(client: &tokio_postgres::Client) -> Result<i64> {
    let sql = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint";
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}
