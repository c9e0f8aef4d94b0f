//! What the streamer and `status` say of the slot: all of one moment, and true.

mod calls;

use anyhow::{Context, Result, ensure};
use calls::{insert, newest, wait_log};
use postrider_tests::{Line, PATIENCE, Stage, Writers, for_each_version, is_long};

/// The statement that `status` reads, with a log that seems to end before everything.
fn statement_of_an_early_log() -> Result<String> {
    let file = include_str!("../../sql/slot_lag.sql");
    let (_, statement) = file
        .split_once("-- section: slot_lag\n")
        .context("no section")?;
    let early = statement.replace("pg_current_wal_lsn()", "'0/1'::pg_lsn");
    ensure!(early != statement, "it does not ask where the log ends");
    let (early, _) = early.split_once(":'slot';").context("no end")?;
    Ok(format!("{early}'postrider'"))
}

#[tokio::test]
async fn a_reading_is_one_statement_and_no_difference_in_it_is_below_zero() -> Result<()> {
    for_each_version(async |versions| {
        let postgres = |it: testbed::PostgresBuilder| it.config("log_statement", "all");
        let stage = Stage::start_with(versions, postgres, |it| it).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        insert(&stage, "shop", 1).await?;
        let read_before = stage.postgres.log_text().len();
        line.ok(&["status"]).await?;
        let log = stage.postgres.log_text();
        let log = log.get(read_before..).context("the log was cut")?;
        for source in ["FROM pg_replication_slots AS s\n", "pg_current_wal_lsn()"] {
            let count = log.matches(source).count();
            ensure!(count == 1, "{count} times {source} in:\n{log}");
        }

        let client = stage.client("shop").await?;
        let row = client.query_one(&statement_of_an_early_log()?, &[]).await?;
        for column in ["retained_bytes", "unconfirmed_bytes"] {
            let value: Option<i64> = row.try_get(column)?;
            ensure!(value == Some(0), "{column} is {value:?}");
        }
        let unsent: Option<i64> = row.try_get("unsent_bytes")?;
        ensure!(unsent.is_none(), "{unsent:?} without a walsender");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_progress_line_tells_what_the_slot_has_confirmed() -> Result<()> {
    // The line comes once a minute.
    if !is_long() {
        return Ok(());
    }
    let stage = Stage::start(newest()?).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    insert(&stage, "shop", 1).await?;
    line.ok(&["run", "--until-caught-up"]).await?;
    // Nothing more is confirmed while this runs.
    let line = line.flag("--delivery-confirm-delay", "1h");
    let mut streamer = line.start(&stage).await?;
    insert(&stage, "shop", 1).await?;
    let confirmed = line.confirmed(&stage.client("shop").await?).await?;
    let told = format!("confirmed={confirmed} ");
    let texts = [
        "progress",
        "state=\"streaming\"",
        "in_flight=0",
        &told,
        " s ago",
    ];
    wait_log(&mut streamer, &texts).await?;
    streamer.stop_within(PATIENCE).await
}
