//! What NATS refuses: waited for where it can heal, an error where it cannot, and always by name.

mod calls;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::stream::{Config, DiscardPolicy, Source};
use calls::{
    Caller, commit, dead_letters, edit_stream, ends_with, ids, insert, newest, stays_unconfirmed,
    stored, wait_end, wait_ids, wait_log,
};
use futures_util::StreamExt;
use postrider_tests::{
    Line, PATIENCE, Progress, Stage, Streamer, Writers, for_each_version, wait_until, witness,
};

/// How long a row waits for its PubAck.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn wrong_nats_credentials_are_an_error_of_their_own_without_the_secret() -> Result<()> {
    let users = "authorization { users = [ { user: admin, password: admin }, \
                 { user: app, password: \"right-one\" } ] }\nno_auth_user: admin\n";
    let stage = Stage::start_with(newest()?, |it| it, |it| it.config(users)).await?;
    Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let call = |password: &str| {
        let url = format!("nats://app:{password}@127.0.0.1:{}", stage.nats.port());
        Caller::at(&stage.postgres.url("shop"), &url)
    };
    call("right-one").ok(&["run", "--until-caught-up"]).await?;
    for command in ["setup", "run"] {
        let text = ["NATS refused the credentials"];
        let ended = call("wrong-one").refused(&[command], 3, &text).await?;
        ensure!(!ended.stderr.contains("wrong-one"), "{}", ended.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn a_missing_stream_is_waited_for_by_name_and_then_everything_flows() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let jetstream = stage.jetstream().await?;
        jetstream.delete_stream("OUTBOX").await?;
        let before = insert(&stage, "shop", 3).await?;
        let mut streamer = line.launch(&[])?;
        wait_log(&mut streamer, &[NO_STREAM, "OUTBOX"]).await?;
        stays_unconfirmed(&stage, &line, before).await?;
        line.ok(&["setup"]).await?;
        wait_ids(&stage, &["1", "2", "3"]).await?;
        line.wait_confirmed(&stage).await?;
        streamer.stop_within(PATIENCE).await
    })
    .await
}

/// What the log says of a stream that is not there.
const NO_STREAM: &str = "the stream does not exist";

/// Waits until the log has said once more than so many times that there is no stream, and gives
/// back how often it has.
async fn wait_misses_more(streamer: &Streamer, times: usize) -> Result<usize> {
    wait_until(PATIENCE, "the stream to be missed again", async || {
        let count = streamer.stderr_text().matches(NO_STREAM).count();
        Ok(match count > times {
            true => Progress::Done(count),
            false => Progress::NotYet(format!("{count} times")),
        })
    })
    .await
}

#[tokio::test]
async fn a_stream_deleted_under_load_freezes_the_confirmation_until_it_is_made_again() -> Result<()>
{
    const ROWS: usize = 300;
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let jetstream = stage.jetstream().await?;
        let client = stage.client("shop").await?;
        witness::open(&client).await?;
        let mut streamer = line.start(&stage).await?;
        let deleting = async {
            line.wait_stored(&stage, 30).await?;
            jetstream.delete_stream("OUTBOX").await?;
            anyhow::Ok(())
        };
        tokio::try_join!(insert(&stage, "shop", ROWS), deleting)?;
        // What was acked before the deletion may be confirmed for a moment longer.
        let times = wait_misses_more(&streamer, 0).await?;
        let times = wait_misses_more(&streamer, times).await?;
        let frozen = line.confirmed(&client).await?;
        insert(&stage, "shop", 1).await?;
        wait_misses_more(&streamer, times).await?;
        let confirmed = line.confirmed(&client).await?;
        ensure!(
            confirmed == frozen,
            "{confirmed} is confirmed, not {frozen}"
        );

        line.ok(&["setup"]).await?;
        line.wait_confirmed(&stage).await?;
        let committed = witness::rows(&client, &line.slot, "outbox").await?;
        let owed = committed.iter().filter(|row| row.end_lsn > frozen);
        let owed: Vec<&str> = owed.map(|row| row.id.as_str()).collect();
        let found = ids(&stage).await?;
        ensure!(owed.len() > 1 && committed.len() == ROWS + 1, "{owed:?}");
        // Rows before those were stored in the old stream; some of them may be there again.
        let rest = found.get(found.len().saturating_sub(owed.len())..);
        ensure!(
            rest.is_some_and(|rest| rest == owed),
            "{found:?}, not {owed:?}"
        );
        streamer.stop_within(PATIENCE).await
    })
    .await
}

#[tokio::test]
async fn an_account_without_jetstream_is_named_as_such() -> Result<()> {
    let accounts = "accounts { PLAIN { users = [ { user: plain, password: plain } ] }, \
                    STORE { jetstream: enabled, users = [ { user: store, password: store } ] } }\n\
                    no_auth_user: store\n";
    let stage = Stage::start_with(newest()?, |it| it, |it| it.config(accounts)).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let url = format!("nats://plain:plain@127.0.0.1:{}", stage.nats.port());
    let plain = Caller::at(&stage.postgres.url("shop"), &url);
    plain
        .refused(&["setup"], 3, &["JetStream is not available"])
        .await?;
    let before = insert(&stage, "shop", 1).await?;
    let mut streamer = plain.spawn(&["run"])?;
    wait_log(
        &mut streamer,
        &["JetStream is not available", "next attempt in"],
    )
    .await?;
    stays_unconfirmed(&stage, &line, before).await?;
    streamer.terminate()?;
    wait_end(&mut streamer, 0, &[]).await?;
    Ok(())
}

#[tokio::test]
async fn a_full_stream_is_waited_for_and_the_order_is_kept() -> Result<()> {
    for writers in [Writers::Exclusive, Writers::Shared] {
        let stage = Stage::start(newest()?).await?;
        let line = Line::ready(&stage, "shop", writers).await?;
        edit_stream(&stage, |config| {
            config.max_messages = 2;
            config.discard = DiscardPolicy::New;
        })
        .await?;
        let mut streamer = line.start(&stage).await?;
        insert(&stage, "shop", 2).await?;
        let before = insert(&stage, "shop", 3).await?;
        wait_log(&mut streamer, &["the stream is full"]).await?;
        ensure!(ids(&stage).await? == ["1", "2"]);
        stays_unconfirmed(&stage, &line, before).await?;
        edit_stream(&stage, |config| config.max_messages = 100).await?;
        wait_ids(&stage, &["1", "2", "3", "4", "5"]).await?;
        line.wait_confirmed(&stage).await?;
        streamer.stop_within(PATIENCE).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_that_would_lose_or_refuse_rows_is_refused_naming_the_field() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let jetstream = stage.jetstream().await?;
    jetstream.delete_stream("OUTBOX").await?;
    let plain = || Config {
        name: "OUTBOX".to_owned(),
        subjects: vec!["outbox.>".to_owned()],
        ..Config::default()
    };
    let no_ack = Config {
        no_ack: true,
        ..plain()
    };
    let foreign = Config {
        subjects: vec!["other.>".to_owned()],
        ..plain()
    };
    let source = Source {
        name: "ORIGIN".to_owned(),
        ..Source::default()
    };
    let mirror = Config {
        subjects: Vec::new(),
        mirror: Some(source),
        ..plain()
    };
    let origin = Config {
        name: "ORIGIN".to_owned(),
        subjects: vec!["o".to_owned()],
        ..plain()
    };
    jetstream.create_stream(origin).await?;
    let cases = [
        ("no_ack", no_ack, false),
        ("sealed", plain(), true),
        ("mirror", mirror, false),
        ("subjects", foreign, false),
    ];
    for (field, config, seal) in cases {
        jetstream.create_stream(config).await.context(field)?;
        if seal {
            edit_stream(&stage, |config| config.sealed = true).await?;
        }
        let named = format!("{field}: ");
        for command in ["setup", "run"] {
            let ended = line.finish(&[command]).await?;
            ends_with(&ended, 3, &[&named, "OUTBOX"]).context(command)?;
        }
        jetstream.delete_stream("OUTBOX").await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_subject_that_nats_denies_is_named_and_heals_with_the_right() -> Result<()> {
    let users = |deny: &str| {
        format!(
            "authorization {{ users = [ {{ user: admin, password: admin }}, {{ user: app, \
             password: app, permissions: {{ publish: {{ deny: [\"{deny}\"] }} }} }} ] }}\n\
             no_auth_user: admin\n"
        )
    };
    let denying = users("outbox.order.closed");
    let mut stage = Stage::start_with(newest()?, |it| it, |it| it.config(&denying)).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let url = format!("nats://app:app@127.0.0.1:{}", stage.nats.port());
    let mut streamer = Caller::at(&stage.postgres.url("shop"), &url).spawn(&["run"])?;
    insert(&stage, "shop", 1).await?;
    wait_ids(&stage, &["1"]).await?;
    let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
               VALUES ('order', '1', 'closed', '{}')";
    let before = commit(&stage, "shop", sql).await?;
    insert(&stage, "shop", 1).await?;
    wait_log(&mut streamer, &["permission denied", "outbox.order.closed"]).await?;
    stays_unconfirmed(&stage, &line, before).await?;
    ensure!(ids(&stage).await? == ["1"]);
    stage.nats.set_config(&users("something.else"))?;
    stage.nats.reload()?;
    wait_ids(&stage, &["1", "2", "3"]).await?;
    streamer.terminate()?;
    wait_end(&mut streamer, 0, &[]).await?;
    Ok(())
}

#[tokio::test]
async fn a_subject_that_no_stream_takes_waits_or_is_parked() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    edit_stream(&stage, |config| {
        config.subjects = vec!["outbox.order.>".to_owned()];
    })
    .await?;
    let strange = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
                   VALUES ('invoice', '1', 'sent', '{}')";
    stage.postgres.sql("shop", strange).await?;
    insert(&stage, "shop", 1).await?;
    let mut streamer = line.launch(&[])?;
    wait_log(
        &mut streamer,
        &["outbox.invoice.sent", "no stream takes the subject"],
    )
    .await?;
    ensure!(ids(&stage).await?.is_empty() && dead_letters(&stage).await?.is_empty());
    edit_stream(&stage, |config| {
        config.subjects = vec!["outbox.>".to_owned()];
    })
    .await?;
    wait_ids(&stage, &["1", "2"]).await?;
    streamer.stop_within(PATIENCE).await?;

    edit_stream(&stage, |config| {
        config.subjects = vec!["outbox.order.>".to_owned()];
    })
    .await?;
    stage.postgres.sql("shop", strange).await?;
    insert(&stage, "shop", 1).await?;
    line.ok(&[
        "run",
        "--until-caught-up",
        "--delivery-on-unroutable",
        "park",
    ])
    .await?;
    wait_ids(&stage, &["1", "2", "4"]).await?;
    let letters = dead_letters(&stage).await?;
    ensure!(
        letters.len() == 1 && letters.iter().all(|(id, _)| id == "3"),
        "{letters:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_subject_that_only_a_silent_subscriber_takes_is_named_like_one_that_nobody_takes()
-> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    edit_stream(&stage, |config| {
        config.subjects = vec!["outbox.order.>".to_owned()];
    })
    .await?;
    // It takes the row as any subscriber does, so the server does not say that nobody is there.
    let subscriber = stage.nats.connect().await?;
    let mut silent = subscriber.subscribe("outbox.invoice.>").await?;
    subscriber.flush().await?;
    let strange = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
                   VALUES ('invoice', '1', 'sent', '{}')";
    stage.postgres.sql("shop", strange).await?;
    insert(&stage, "shop", 1).await?;
    let mut streamer = line.launch(&[])?;
    let first = silent.next().await.context("the row never came")?;
    let since = Instant::now();
    ensure!(first.subject.as_str() == "outbox.invoice.sent");
    wait_log(
        &mut streamer,
        &["outbox.invoice.sent", "no stream takes it"],
    )
    .await?;
    let took = since.elapsed();
    ensure!(took < ACK_TIMEOUT, "named after {took:?}");
    ensure!(ids(&stage).await?.is_empty() && dead_letters(&stage).await?.is_empty());
    edit_stream(&stage, |config| {
        config.subjects = vec!["outbox.>".to_owned()];
    })
    .await?;
    wait_ids(&stage, &["1", "2"]).await?;
    let log = streamer.log_tail();
    ensure!(!log.contains("no PubAck within"), "a bare stall: {log}");
    streamer.stop_within(PATIENCE).await
}

#[tokio::test]
async fn a_stream_of_another_owner_is_refused_until_it_is_adopted() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    let first = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let other = Line::new(&stage, "bank").await?.slot("bank");
    let ended = other.finish(&["setup", "--create-table"]).await?;
    ends_with(&ended, 3, &["OUTBOX", "--adopt", "shop"])?;
    other.ok(&["setup", "--create-table", "--adopt"]).await?;
    let ended = first.finish(&["run"]).await?;
    ends_with(&ended, 3, &["the stream has another owner", "--adopt"])?;
    insert(&stage, "bank", 1).await?;
    other.ok(&["run", "--until-caught-up"]).await?;
    ensure!(stored(&stage).await?.len() == 1);
    Ok(())
}
