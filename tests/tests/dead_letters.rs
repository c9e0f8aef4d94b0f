//! `postrider dead-letters`: list, retry and discard, beside a streamer and without one.

mod calls;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use calls::{
    dead_letters, edit_stream, ends_with, ids, insert, newest, stored, wait_ids, wait_log,
};
use postrider_tests::{
    Line, Load, LoadPlan, PATIENCE, Progress, Rng, Stage, Stored, Versions, Writers,
    everyday_or_long, for_each_version, last_sequence, wait_until,
};
use serde_json::Value;

/// A row of 2 kB, which the lines here only take with another limit.
const LARGE: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
                     VALUES ('order', '1', 'large', to_jsonb(repeat('x', 2000)))";

/// A limit that large rows are over, and one that they are not.
const LOW: [&str; 2] = ["--nats-max-message-bytes", "1KiB"];
const HIGH: [&str; 2] = ["--nats-max-message-bytes", "1MiB"];

async fn line(versions: Versions, writers: Writers) -> Result<(Stage, Line)> {
    let stage = Stage::start(versions).await?;
    let line = Line::ready(&stage, "shop", writers).await?;
    Ok((stage, line))
}

/// Runs a command whose letters are to be under the high limit.
async fn retry(line: &Line, ids: &[&str], code: i32, texts: &[&str]) -> Result<()> {
    let words = [&["dead-letters", "retry"], &HIGH[..], ids].concat();
    ends_with(&line.finish(&words).await?, code, texts)
}

/// Streams what is there under the low limit.
async fn catch_up(line: &Line) -> Result<()> {
    let words = [&["run", "--until-caught-up"], &LOW[..]].concat();
    line.ok(&words).await.map(|_| ())
}

async fn listed(line: &Line, filters: &[&str]) -> Result<Vec<Value>> {
    let words = [&["dead-letters", "list", "--output", "json"], filters].concat();
    let text = line.ok(&words).await?;
    serde_json::from_str(&text).with_context(|| text)
}

fn header<'a>(message: &'a Stored, name: &str) -> &'a str {
    message.header(name).unwrap_or_default()
}

/// Has the ids of the duplicate window forgotten: from here on only what the stream holds counts.
async fn forget_ids(stage: &Stage) -> Result<()> {
    let window = Duration::from_millis(100);
    edit_stream(stage, |config| config.duplicate_window = window).await?;
    tokio::time::sleep(3 * window).await;
    Ok(())
}

async fn list(line: &Line, texts: &[&str]) -> Result<()> {
    ends_with(&line.finish(&["dead-letters", "list"]).await?, 0, texts)
}

/// What the list says of a large row, one without sound headers, and another.
async fn check_list(line: &Line) -> Result<()> {
    list(
        line,
        &["raise the limit", "with UPDATE", "the limit is 1024"],
    )
    .await?;
    let all = listed(line, &[]).await?;
    ensure!(all.len() == 3, "{all:?}");
    let large = all.first().context("none")?;
    for (name, value) in [
        ("row_id", "2"),
        ("reason", "too_large"),
        ("subject", "outbox.order.large"),
        ("state", "parked"),
        ("slot", "postrider"),
        ("table", "public.outbox"),
    ] {
        ensure!(large[name] == value, "{name}: {large}");
    }
    let numbers = (&large["payload_bytes"], &large["tries"]);
    ensure!(numbers == (&Value::from(2002), &Value::from(0)), "{large}");
    let null = all.get(1).context("no second")?;
    ensure!(null.get("payload_bytes").is_none(), "{null}");
    for (filter, count) in [
        (["--reason", "too_large"], 1),
        (["--table", "public.outbox"], 3),
        (["--table", "other"], 0),
    ] {
        ensure!(listed(line, &filter).await?.len() == count, "{filter:?}");
    }
    Ok(())
}

/// The messages of the letters, behind the first one: they say what it says of the resume point.
fn check_sent(messages: &[Stored]) -> Result<()> {
    let found: Vec<&str> = messages.iter().map(Stored::id).collect();
    ensure!(found == ["1", "2", "3"], "{found:?}");
    let (first, sent) = messages.split_first().context("none")?;
    for message in sent {
        for (name, value) in [
            ("Outbox-Origin", "dead-letter"),
            ("Outbox-Position", header(first, "Outbox-Position")),
            ("Outbox-Source", header(first, "Outbox-Source")),
            ("Outbox-Position-Id", "1"),
            ("Outbox-Table", "public.outbox"),
        ] {
            ensure!(header(message, name) == value, "{name}: {message:?}");
        }
    }
    let mended = sent.last().context("none")?;
    ensure!(header(mended, "Tenant") == "t", "{mended:?}");
    ensure!(header(mended, "Outbox-Payload") == "null", "{mended:?}");
    Ok(())
}

async fn mend_and_retry(versions: Versions, writers: Writers) -> Result<()> {
    let (stage, line) = line(versions, writers).await?;
    list(&line, &["no dead letters"]).await?;
    insert(&stage, "shop", 1).await?;
    stage.postgres.sql("shop", LARGE).await?;
    let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload, headers) \
               VALUES ('order', '1', 'placed', NULL, '[]'), ('order', '1', 'gone', '{}', '\"x\"')";
    stage.postgres.sql("shop", sql).await?;
    catch_up(&line).await?;
    check_list(&line).await?;
    // One mended where its row stands, one gone with its row, and one too large still.
    let sql = "UPDATE outbox SET headers = '{\"Tenant\": \"t\"}' WHERE id = 3; \
               DELETE FROM outbox WHERE id IN (2, 4)";
    stage.postgres.sql("shop", sql).await?;
    let words = [&["dead-letters", "retry", "1"], &LOW[..]].concat();
    let still = ["1: refused again, too_large", "the limit is 1024"];
    ends_with(&line.finish(&words).await?, 1, &still)?;
    let all = listed(&line, &[]).await?;
    ensure!(all.first().is_some_and(|it| it["tries"] == 1), "{all:?}");
    let texts = [
        "1: stored, at sequence 2",
        "2: stored, at sequence 3",
        "3: refused again, headers_not_object: its row is not in public.outbox any more",
        "2 stored, 1 refused again",
    ];
    retry(&line, &[], 1, &texts).await?;
    check_sent(&stored(&stage).await?)?;
    let discard = ["dead-letters", "discard", "3", "1", "77"];
    let texts = ["discarded 3: row 4 of public.outbox", "the id 1, 77"];
    ends_with(&line.finish(&discard).await?, 1, &texts)?;
    list(&line, &["no dead letters"]).await?;
    retry(&line, &[], 0, &["no dead letters"]).await?;
    retry(&line, &["5"], 1, &["the id 5"]).await?;
    // The streamer goes on behind it.
    insert(&stage, "shop", 1).await?;
    catch_up(&line).await?;
    ensure!(ids(&stage).await? == ["1", "2", "3", "5"]);
    Ok(())
}

#[tokio::test]
async fn dead_letters_are_listed_mended_retried_and_discarded() -> Result<()> {
    for_each_version(|versions| mend_and_retry(versions, Writers::Exclusive)).await
}

#[tokio::test]
async fn dead_letters_of_a_shared_stream_keep_their_dedup_ids() -> Result<()> {
    mend_and_retry(newest()?, Writers::Shared).await
}

#[tokio::test]
async fn a_retry_that_is_killed_at_any_point_ends_right_the_next_time() -> Result<()> {
    for_each_version(async |versions| {
        let (stage, line) = line(versions, Writers::Exclusive).await?;
        let client = stage.client("shop").await?;
        client
            .batch_execute(
                "CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS \
                 $$ BEGIN PERFORM pg_sleep(600); RETURN NULL; END $$",
            )
            .await?;
        // Before its message is sent, and after it was acked.
        for (event, stands) in [("UPDATE", false), ("DELETE", true)] {
            insert(&stage, "shop", 1).await?;
            stage.postgres.sql("shop", LARGE).await?;
            catch_up(&line).await?;
            let before = ids(&stage).await?.len();
            let trigger = format!(
                "CREATE TRIGGER hang BEFORE {event} ON postrider.dead_letter \
                 FOR EACH ROW EXECUTE FUNCTION hang()"
            );
            client.batch_execute(&trigger).await?;
            let words = [&["dead-letters", "retry"], &HIGH[..]].concat();
            let mut hangs = line.command(&words).spawn()?;
            wait_until(PATIENCE, "the retry to hang", async || {
                let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
                let count: i64 = client.query_one(sql, &[]).await?.try_get(0)?;
                Ok(Progress::when(count == 1, || format!("{count} hang")))
            })
            .await?;
            hangs.kill9().await?;
            let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                       WHERE wait_event = 'PgSleep'";
            client.batch_execute(sql).await?;
            client
                .batch_execute("DROP TRIGGER hang ON postrider.dead_letter")
                .await?;
            ensure!(ids(&stage).await?.len() == before + usize::from(stands));
            forget_ids(&stage).await?;
            let told = if stands {
                "was stored before"
            } else {
                ": stored"
            };
            retry(&line, &[], 0, &[told, "1 stored, 0 refused again"]).await?;
            let found = ids(&stage).await?;
            ensure!(found.len() == before + 1, "{event}: {found:?}");
            ensure!(dead_letters(&stage).await?.is_empty());
        }
        Ok(())
    })
    .await
}

/// Rows of the log in their order and each once, letters each once behind the row they name.
fn check_beside(messages: &[Stored], rows: usize, letters: usize) -> Result<()> {
    let is_letter = |message: &&Stored| message.header("Outbox-Origin").is_some();
    let (sent, streamed): (Vec<_>, Vec<_>) = messages.iter().partition(is_letter);
    let position = |message: &Stored| header(message, "Outbox-Position").parse();
    let positions: Result<Vec<outbox::Position>, _> =
        streamed.iter().map(|message| position(message)).collect();
    let positions = positions?;
    ensure!(
        positions.is_sorted_by(|a, b| a < b),
        "rows are out of order"
    );
    ensure!(
        positions.len() == rows,
        "{} rows of {rows}",
        positions.len()
    );
    let mut distinct: Vec<&str> = sent.iter().map(|message| message.id()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    ensure!(
        (sent.len(), distinct.len()) == (letters, letters),
        "{distinct:?}"
    );
    for pair in messages.windows(2) {
        let [before, message] = pair else { continue };
        if message.header("Outbox-Origin").is_some() {
            let told = |it: &Stored| header(it, "Outbox-Position").to_owned();
            ensure!(told(before) == told(message), "{before:?} {message:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_retry_beside_a_busy_streamer_loses_nothing_and_doubles_nothing() -> Result<()> {
    for_each_version(async |versions| {
        let (stage, line) = line(versions, Writers::Exclusive).await?;
        let letters = everyday_or_long(20, 200);
        for _ in 0..letters {
            stage.postgres.sql("shop", LARGE).await?;
        }
        catch_up(&line).await?;
        let mut rng = Rng::printed(&format!("retry beside a streamer, {versions}"));
        let plan = LoadPlan {
            pause_max_ms: 2,
            ..LoadPlan::default()
        };
        let mut streamer = line.launch(&LOW)?;
        let load = Load::start(&stage.postgres.url("shop"), &plan, &mut rng);
        let jetstream = stage.jetstream().await?;
        let progress = async || {
            let (before, _) = last_sequence(&jetstream, "OUTBOX").await?;
            wait_until(PATIENCE, "rows to be stored", async || {
                let (now, _) = last_sequence(&jetstream, "OUTBOX").await?;
                Ok(Progress::when(now > before + 50, || now.to_string()))
            })
            .await
        };
        progress().await?;
        let all = format!("{letters} stored, 0 refused again");
        retry(&line, &[], 0, &[&all]).await?;
        progress().await?;
        load.stop().await?;
        line.wait_confirmed(&stage).await?;
        ensure!(streamer.is_running(), "the streamer has ended");
        let log = streamer.stderr_text();
        for word in ["ERROR", "second writer", "lost messages", "no resume point"] {
            ensure!(!log.contains(word), "{word}:\n{}", streamer.log_tail());
        }
        streamer.stop_within(PATIENCE).await?;
        let sql = "SELECT count(*) FROM outbox WHERE type <> 'large'";
        let rows = stage
            .postgres
            .value("shop", sql)
            .await?
            .context("no count")?;
        check_beside(&stored(&stage).await?, rows.parse()?, letters)?;
        ensure!(dead_letters(&stage).await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn the_streamer_resumes_exactly_behind_a_dead_letter() -> Result<()> {
    for_each_version(async |versions| {
        let (stage, line) = line(versions, Writers::Exclusive).await?;
        insert(&stage, "shop", 3).await?;
        stage.postgres.sql("shop", LARGE).await?;
        insert(&stage, "shop", 2).await?;
        let words = [&["--delivery-confirm-delay", "1h"], &LOW[..]].concat();
        let mut streamer = line.launch(&words)?;
        wait_ids(&stage, &["1", "2", "3", "5", "6"]).await?;
        wait_log(&mut streamer, &["cannot be published"]).await?;
        streamer.kill9().await?;
        retry(&line, &[], 0, &["1: stored, at sequence 6"]).await?;
        forget_ids(&stage).await?;
        // Everything comes again: nothing of it is stored twice, and the dead letter is not parked.
        insert(&stage, "shop", 1).await?;
        catch_up(&line).await?;
        let found = ids(&stage).await?;
        ensure!(found == ["1", "2", "3", "5", "6", "4", "7"], "{found:?}");
        ensure!(dead_letters(&stage).await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_letter_that_outlived_its_stream_and_those_of_other_slots_are_told_apart() -> Result<()> {
    let (stage, line) = line(newest()?, Writers::Exclusive).await?;
    // Poison before all others: no resume point held, and none is made up.
    stage.postgres.sql("shop", LARGE).await?;
    catch_up(&line).await?;
    let sql = "INSERT INTO postrider.dead_letter (slot, source, position, table_name, reason) \
               VALUES ('other', '1/1/shop/other', '0/1/0', 'public.outbox', 'no_id')";
    stage.postgres.sql("shop", sql).await?;
    ensure!(listed(&line, &[]).await?.len() == 1);
    ensure!(listed(&line, &["--all-slots"]).await?.len() == 2);
    retry(
        &line,
        &["2"],
        1,
        &["no dead letter of slot postrider has the id 2"],
    )
    .await?;
    retry(&line, &[], 0, &["1 stored, 0 refused again"]).await?;
    insert(&stage, "shop", 2).await?;
    catch_up(&line).await?;
    ensure!(
        ids(&stage).await? == ["1", "2", "3"],
        "{:?}",
        ids(&stage).await?
    );
    // A table that is not there, and a stream that is not.
    stage.postgres.sql("shop", LARGE).await?;
    catch_up(&line).await?;
    stage.jetstream().await?.delete_stream("OUTBOX").await?;
    retry(&line, &[], 3, &["the stream does not exist"]).await?;
    stage
        .postgres
        .sql("shop", "DROP SCHEMA postrider CASCADE")
        .await?;
    let ended = line.finish(&["dead-letters", "list"]).await?;
    ends_with(
        &ended,
        3,
        &["no table postrider.dead_letter", "postrider setup"],
    )
}
