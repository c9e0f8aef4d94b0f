//! `status`: what it shows, and what it is worth as a check.

mod calls;

use anyhow::{Context, Result, ensure};
use calls::{Caller, ends_with, ids, insert};
use postrider_tests::{
    Ended, Line, PATIENCE, Progress, Stage, Writers, for_each_version, wait_until,
};
use serde_json::Value;

/// The reading of `status --output json` with its exit code.
async fn reading(line: &Line, limits: &[&str]) -> Result<(Option<i32>, Value)> {
    let words = [&["status", "--output", "json"], limits].concat();
    let ended = line.finish(&words).await?;
    let value = serde_json::from_str(&ended.stdout);
    Ok((ended.code, value.with_context(|| format!("{ended:?}"))?))
}

fn number(reading: &Value, pointer: &str) -> Result<i64> {
    let value = reading.pointer(pointer).and_then(Value::as_i64);
    value.with_context(|| format!("no number {pointer} in {reading}"))
}

#[tokio::test]
async fn status_shows_slot_stream_and_dead_letters_whether_run_is_up_or_down() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let down = line.ok(&["status"]).await?;
        let rows = [
            "nobody streams from it",
            "confirmed",
            "WAL retained",
            "until lost",
            "OUTBOX (writers: exclusive)",
            "messages       0",
            "dead letters   0",
        ];
        for row in rows {
            let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
            ensure!(
                squeezed(&down).contains(&squeezed(row)),
                "{row:?} is not in:\n{down}"
            );
        }
        let mut streamer = line.start(&stage).await?;
        insert(&stage, "shop", 3).await?;
        line.wait_confirmed(&stage).await?;
        let pid = line
            .holder(&stage.client("shop").await?)
            .await?
            .context("not held")?;
        let up = line.ok(&["status"]).await?;
        let holder = format!("streaming to backend {pid} (postrider");
        ensure!(up.contains(&holder) && up.contains("(id 3)"), "{up}");
        let (code, json) = reading(&line, &[]).await?;
        ensure!(code == Some(0), "{code:?}");
        ensure!(number(&json, "/slot/holder_pid")? == i64::from(pid));
        ensure!(number(&json, "/stream/messages")? == 3);
        ensure!(number(&json, "/stream/last_sequence")? == 3);
        ensure!(number(&json, "/dead_letters")? == 0);
        ensure!(
            json.pointer("/slot/active") == Some(&Value::Bool(true)),
            "{json}"
        );
        ensure!(
            !json.to_string().contains("null"),
            "an absent value is null: {json}"
        );
        streamer.stop_within(PATIENCE).await
    })
    .await
}

#[tokio::test]
async fn written_wal_shows_as_retained_and_fails_the_check_until_it_is_confirmed() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start_with(
            versions,
            |it| it.config("max_slot_wal_keep_size", "4GB"),
            |it| it,
        )
        .await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        insert(&stage, "shop", 1).await?;
        let limits = ["--max-retained-bytes", "40MiB", "--max-lag-bytes", "40MiB"];
        let (code, _) = reading(&line, &limits).await?;
        ensure!(code == Some(0), "{code:?}");
        // 50 MB that have nothing to do with the outbox.
        let sql = "CREATE TABLE busy AS SELECT repeat(md5(i::text), 30) AS text \
                   FROM generate_series(1, 50000) AS i";
        stage.postgres.sql("shop", sql).await?;
        let (code, json) = reading(&line, &limits).await?;
        ensure!(code == Some(1), "{code:?}: {json}");
        ensure!(
            number(&json, "/slot/retained_bytes")? > 50_000_000,
            "{json}"
        );
        ensure!(
            number(&json, "/slot/unconfirmed_bytes")? > 50_000_000,
            "{json}"
        );
        ensure!(number(&json, "/slot/safe_wal_bytes")? > 0, "{json}");
        ensure!(json.pointer("/slot/wal_status").is_some(), "{json}");
        for limit in [
            ["--max-retained-bytes", "40MiB"],
            ["--max-lag-bytes", "40MiB"],
        ] {
            let (code, _) = reading(&line, &limit).await?;
            ensure!(code == Some(1), "{limit:?}: {code:?}");
        }
        let table = line.finish(&["status"]).await?;
        ends_with(&table, 0, &["WAL retained", "more WAL"])?;
        line.ok(&["run", "--until-caught-up"]).await?;
        let (code, json) = reading(&line, &["--max-lag-bytes", "40MiB"]).await?;
        ensure!(code == Some(0), "{code:?}: {json}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_long_open_transaction_that_holds_the_wal_is_named() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let holder = stage.client("shop").await?;
        holder
            .batch_execute("CREATE TABLE held (id int); BEGIN")
            .await?;
        holder.batch_execute("INSERT INTO held VALUES (1)").await?;
        let pid: i32 = holder
            .query_one("SELECT pg_backend_pid()", &[])
            .await?
            .try_get(0)?;
        let mut streamer = line.start(&stage).await?;
        let sql = "CREATE TABLE busy AS SELECT repeat(md5(i::text), 30) AS text \
                   FROM generate_series(1, 20000) AS i";
        stage.postgres.sql("shop", sql).await?;
        insert(&stage, "shop", 1).await?;
        line.wait_confirmed(&stage).await?;
        let (_, json) = reading(&line, &[]).await?;
        ensure!(
            number(&json, "/slot/oldest_transaction_pid")? == i64::from(pid),
            "{json}"
        );
        let held = number(&json, "/slot/held_by_open_transactions_bytes")?;
        let unconfirmed = number(&json, "/slot/unconfirmed_bytes")?;
        ensure!(held > 10_000_000 && unconfirmed < 1_000_000, "{json}");
        let table = line.ok(&["status"]).await?;
        let named = format!("for the oldest open transaction (backend {pid}, open for");
        ensure!(table.contains(&named), "{table}");
        streamer.stop_within(PATIENCE).await
    })
    .await
}

#[tokio::test]
async fn with_one_server_down_the_other_is_still_shown() -> Result<()> {
    for_each_version(async |versions| {
        let mut stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        insert(&stage, "shop", 2).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        stage.nats.stop().await?;
        let (code, json) = reading(&line, &["--max-lag-bytes", "1GiB"]).await?;
        ensure!(
            code == Some(0) && json.pointer("/slot/confirmed_flush_lsn").is_some(),
            "{json}"
        );
        ensure!(json.pointer("/stream/error").is_some(), "{json}");
        ensure!(
            json.pointer("/stream/messages").is_none(),
            "a number without a reading: {json}"
        );
        let table = line.finish(&["status"]).await?;
        ends_with(&table, 0, &["nobody streams from it", "cannot tell: NATS"])?;

        stage.nats.start_again().await?;
        stage.postgres.kill9().await?;
        let (code, json) = reading(&line, &[]).await?;
        ensure!(code == Some(3), "{code:?}");
        ensure!(number(&json, "/stream/messages")? == 2, "{json}");
        ensure!(json.pointer("/slot/retained_bytes").is_none(), "{json}");
        ensure!(json.pointer("/dead_letters").is_none(), "{json}");
        let table = line.finish(&["status"]).await?;
        ends_with(&table, 3, &["cannot tell", "OUTBOX (writers: exclusive)"])
    })
    .await
}

#[tokio::test]
async fn a_missing_slot_is_2_and_bad_flags_are_3() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        stage.postgres.create_database("shop").await?;
        let caller = Caller::new(&stage, "shop");
        let says = ["postrider does not exist", "postrider setup"];
        caller.refused(&["status"], 2, &says).await?;
        let limits = ["status", "--max-lag-bytes", "-5"];
        caller
            .refused(&limits, 3, &["--max-lag-bytes", "negative"])
            .await?;
        caller
            .refused(&["status", "--no-such-flag"], 3, &["--no-such-flag"])
            .await?;
        let nowhere = Caller::at(&stage.postgres.url("nowhere"), &stage.nats.url());
        nowhere.refused(&["status"], 3, &["nowhere"]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_lost_slot_is_named_by_status_and_run_and_made_anew_only_when_asked() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start_with(
            versions,
            |it| {
                it.config("max_slot_wal_keep_size", "1MB")
                    .config("min_wal_size", "32MB")
                    .config("max_wal_size", "48MB")
            },
            |it| it,
        )
        .await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        insert(&stage, "shop", 1).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        let ended = line.finish(&["setup", "--recreate-slot"]).await?;
        ends_with(&ended, 3, &["is not lost"])?;
        insert(&stage, "shop", 1).await?;
        lose_slot(&stage, &line).await?;

        let folder = tempfile::tempdir()?;
        let file = folder.path().join("postrider.toml");
        std::fs::write(&file, "[[outbox]]\ntable = \"nothing\"\n")?;
        let file = file.display().to_string();
        let status: Ended = line.finish(&["status"]).await?;
        ends_with(&status, 2, &["LOST"])?;
        let (code, json) = reading(&line, &["--max-lag-bytes", "1GiB"]).await?;
        ensure!(
            code == Some(2) && json.pointer("/slot/lost") == Some(&Value::Bool(true)),
            "{json}"
        );
        for command in ["run", "setup"] {
            let ended = line.finish(&[command]).await?;
            let texts = ["postrider", "its WAL is gone", "--recreate-slot"];
            ends_with(&ended, 4, &texts)?;
        }
        // With the slot its position would go: not before a new one can be made.
        let words = ["setup", "--recreate-slot"];
        let no_nats = Caller::at(&stage.postgres.url("shop"), "nats://127.0.0.1:9");
        no_nats.refused(&words, 1, &["NATS cannot be"]).await?;
        let no_table = Caller::new(&stage, "shop").env("POSTRIDER_CONFIG", &file);
        no_table.refused(&words, 3, &["no such table"]).await?;
        ends_with(&line.finish(&["status"]).await?, 2, &["LOST"])?;
        let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots";
        let last = stage.postgres.value("shop", sql).await?;
        let said = line.ok(&["setup", "--recreate-slot"]).await?;
        ensure!(
            said.contains("gap") && said.contains("rows of public.outbox"),
            "{said}"
        );
        if let Some(last) = last {
            ensure!(
                said.contains(&last),
                "the gap does not begin at {last}:\n{said}"
            );
        }
        insert(&stage, "shop", 1).await?;
        line.ok(&["run", "--until-caught-up"]).await?;
        ensure!(ids(&stage).await? == ["1", "3"], "{:?}", ids(&stage).await?);
        ends_with(&line.finish(&["status"]).await?, 0, &[])
    })
    .await
}

/// Writes WAL until the server gives the slot up.
async fn lose_slot(stage: &Stage, line: &Line) -> Result<()> {
    let client = stage.client(&line.database).await?;
    wait_until(PATIENCE, "the slot to be lost", async || {
        client
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS busy (text text); \
                 INSERT INTO busy SELECT repeat(md5(i::text), 30) \
                 FROM generate_series(1, 20000) AS i",
            )
            .await?;
        client.batch_execute("SELECT pg_switch_wal()").await?;
        client.batch_execute("CHECKPOINT").await?;
        let sql = "SELECT wal_status FROM pg_replication_slots";
        let status: Option<String> = client.query_one(sql, &[]).await?.try_get(0)?;
        Ok(Progress::when(status.as_deref() == Some("lost"), || {
            format!("{status:?}")
        }))
    })
    .await
}

#[tokio::test]
async fn a_watched_status_goes_on_until_it_is_stopped() -> Result<()> {
    let stage = Stage::start(calls::newest()?).await?;
    Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let mut watch = Caller::new(&stage, "shop").spawn(&["status", "--watch", "100ms"])?;
    wait_until(PATIENCE, "three readings", async || {
        let readings = watch.stdout_text().matches("dead letters").count();
        Ok(Progress::when(readings >= 3, || {
            format!("{readings} readings")
        }))
    })
    .await?;
    watch.interrupt()?;
    let ended = calls::ended(&mut watch).await?;
    ends_with(&ended, 0, &[])
}

#[tokio::test]
async fn a_limit_that_is_exceeded_is_1_also_where_the_lag_has_to_be_measured() -> Result<()> {
    for_each_version(async |versions| {
        let mut stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let mut streamer = line.start(&stage).await?;
        insert(&stage, "shop", 1).await?;
        line.wait_confirmed(&stage).await?;
        let check = ["status", "--max-lag-seconds", "60"];
        ends_with(&line.finish(&check).await?, 0, &[])?;
        stage.nats.pause()?;
        insert(&stage, "shop", 1).await?;
        // The streamer is active, so that the server does not know since when something waits.
        let over = "over limit: lag (--max-lag-seconds)";
        for limit in ["0", "1"] {
            let check = ["status", "--max-lag-seconds", limit];
            ends_with(&line.finish(&check).await?, 1, &[over])?;
        }
        stage.nats.resume()?;
        line.wait_confirmed(&stage).await?;
        ends_with(&line.finish(&check).await?, 0, &[])?;
        streamer.stop_within(PATIENCE).await
    })
    .await
}
