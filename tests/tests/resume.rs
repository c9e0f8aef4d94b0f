//! Beyond the duplicate window: PostgreSQL sends again what was confirmed, and the stream knows.
//!
//! A crash of PostgreSQL takes the slot back to what was last written to disk of it. When that was
//! is up to the server, so the slot's file is put back here to what it was before the first row.
//! The streams remember ids for a tenth of a second only.

mod calls;

use std::time::Duration;

use anyhow::{Result, ensure};
use calls::{edit_stream, ids, insert, wait_log};
use postrider_tests::{Line, PATIENCE, Stage, Streamer, Versions, Writers, for_each_version};

/// The shortest duplicate window that nats-server takes.
const WINDOW: Duration = Duration::from_millis(100);

/// Rows that are stored and confirmed before anything happens.
const ROWS: usize = 300;

/// A line whose rows are stored and confirmed; then the streamer and PostgreSQL are killed.
async fn delivered(versions: Versions, writers: Writers) -> Result<(Stage, Line)> {
    let mut stage = Stage::start(versions).await?;
    let line = Line::ready(&stage, "shop", writers).await?;
    edit_stream(&stage, |config| config.duplicate_window = WINDOW).await?;
    stage.postgres.sql("shop", "CHECKPOINT").await?;
    let file = stage
        .postgres
        .data_dir()
        .join("pg_replslot/postrider/state");
    let before = std::fs::read(&file)?;
    let mut streamer = line.start(&stage).await?;
    insert(&stage, "shop", ROWS).await?;
    line.wait_stored(&stage, ROWS as u64).await?;
    line.wait_confirmed(&stage).await?;
    streamer.kill9().await?;
    stage.postgres.kill9().await?;
    std::fs::write(&file, before)?;
    Ok((stage, line))
}

/// PostgreSQL comes back, and the streamer meets every row again. More rows follow.
async fn replayed(stage: &mut Stage, line: &Line) -> Result<Streamer> {
    tokio::time::sleep(2 * WINDOW).await;
    stage.postgres.start_again().await?;
    let streamer = line.start(stage).await?;
    insert(stage, "shop", 10).await?;
    line.wait_confirmed(stage).await?;
    Ok(streamer)
}

async fn check_once_each(stage: &Stage) -> Result<()> {
    let mut found = ids(stage).await?;
    let count = found.len();
    found.sort();
    found.dedup();
    ensure!(
        found.len() == count,
        "{} of {count} are copies",
        count - found.len()
    );
    ensure!(count == ROWS + 10, "{count} messages");
    Ok(())
}

async fn nothing_twice(versions: Versions, writers: Writers) -> Result<()> {
    let (mut stage, line) = delivered(versions, writers).await?;
    let mut streamer = replayed(&mut stage, &line).await?;
    wait_log(&mut streamer, &["rows were stored already", "is proved"]).await?;
    check_once_each(&stage).await
}

#[tokio::test]
async fn nothing_is_stored_twice_beyond_the_duplicate_window_exclusive() -> Result<()> {
    for_each_version(async |versions| nothing_twice(versions, Writers::Exclusive).await).await
}

#[tokio::test]
async fn nothing_is_stored_twice_beyond_the_duplicate_window_shared() -> Result<()> {
    for_each_version(async |versions| nothing_twice(versions, Writers::Shared).await).await
}

#[tokio::test]
async fn a_purged_tail_costs_copies_and_no_row_and_is_told() -> Result<()> {
    for_each_version(async |versions| {
        let (mut stage, line) = delivered(versions, Writers::Exclusive).await?;
        let jetstream = stage.jetstream().await?;
        jetstream.get_stream("OUTBOX").await?.purge().await?;
        let mut streamer = replayed(&mut stage, &line).await?;
        wait_log(&mut streamer, &["no resume point", "purge"]).await?;
        check_once_each(&stage).await
    })
    .await
}

#[tokio::test]
async fn a_stream_made_anew_under_a_stopped_streamer_gets_what_the_slot_holds() -> Result<()> {
    for_each_version(async |versions| {
        let (mut stage, line) = delivered(versions, Writers::Exclusive).await?;
        stage.jetstream().await?.delete_stream("OUTBOX").await?;
        stage.postgres.start_again().await?;
        line.ok(&["setup"]).await?;
        let _streamer = line.start(&stage).await?;
        insert(&stage, "shop", 10).await?;
        line.wait_confirmed(&stage).await?;
        check_once_each(&stage).await
    })
    .await
}

#[tokio::test]
async fn a_second_writer_is_told_at_the_start() -> Result<()> {
    for_each_version(async |versions| {
        let (mut stage, line) = delivered(versions, Writers::Exclusive).await?;
        let jetstream = stage.jetstream().await?;
        let sent = jetstream
            .publish("outbox.intruder.came", "x".into())
            .await?;
        sent.await?;
        let mut streamer = replayed(&mut stage, &line).await?;
        wait_log(
            &mut streamer,
            &["the stream has a second writer: 1 messages"],
        )
        .await?;
        let found = ids(&stage).await?;
        ensure!(found.len() == ROWS + 11, "{} messages", found.len());
        streamer.stop_within(PATIENCE).await
    })
    .await
}
