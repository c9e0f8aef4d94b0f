//! The streamer keeps its session, gives it up in time, and takes it over.

mod calls;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use postrider_tests::{
    Line, PATIENCE, PostgresBuilder, Progress, Proxies, Stage, StopMode, Versions, Writers,
    everyday_or_long, for_each_version, last_sequence, wait_until,
};
use tokio::net::TcpListener;
use tokio_postgres::Client;

/// How NATS is away.
#[derive(Debug, Clone, Copy)]
enum Away {
    Down,
    Mute,
}

/// Rows of the transaction that waits for NATS.
const PENDING_ROWS: u64 = 20_000;

fn insert(rows: u64) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) SELECT 'order', \
         'a' || n % 7, 'placed', jsonb_build_object('n', n) FROM generate_series(1, {rows}) AS n"
    )
}

/// A status update is never older than this; one is due every second, and the machine is busy.
const STATUS_AGE_MAX_SECONDS: f64 = 5.0;

/// Watches that the slot stays with one walsender until a time, and that status updates go on.
async fn holds_until(line: &Line, client: &Client, holder: i32, until: Instant) -> Result<()> {
    let mut oldest: f64 = 0.0;
    let last = wait_until(PATIENCE + PATIENCE, "a time to pass", async || {
        let now = line.holder(client).await?;
        oldest = status_age_seconds(client).await?.max(oldest);
        let over = now != Some(holder) || Instant::now() >= until;
        Ok(if over {
            Progress::Done(now)
        } else {
            Progress::NotYet(String::from("it still holds the slot"))
        })
    })
    .await?;
    ensure!(last == Some(holder), "walsender {holder} became {last:?}");
    ensure!(
        oldest < STATUS_AGE_MAX_SECONDS,
        "no status update for {oldest} s"
    );
    Ok(())
}

/// How old the last status update is, by the clock that both share; 0 before the first.
async fn status_age_seconds(client: &Client) -> Result<f64> {
    let sql = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - reply_time)), 0)::float8 \
               FROM pg_stat_replication";
    Ok(client.query_one(sql, &[]).await?.try_get(0)?)
}

async fn outlasts(versions: Versions, away: Away) -> Result<()> {
    let timeout = |builder: PostgresBuilder| builder.config("wal_sender_timeout", "5s");
    let mut stage = Stage::start_with(versions, timeout, |nats| nats).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let mut streamer = line.start(&stage).await?;
    let client = stage.client("shop").await?;
    let before = line.wait_holds(&stage, &mut streamer).await?;
    match away {
        Away::Down => stage.nats.kill9().await?,
        Away::Mute => stage.nats.pause()?,
    }
    client.batch_execute(&insert(PENDING_ROWS)).await?;
    // The outage itself, longer than two timeouts: all through it the session must be the same.
    let until = Instant::now() + Duration::from_secs(everyday_or_long(12, 60));
    holds_until(&line, &client, before, until).await?;
    match away {
        Away::Down => stage.nats.start_again().await?,
        Away::Mute => stage.nats.resume()?,
    }
    line.wait_confirmed(&stage).await?;
    ensure!(
        line.holder(&client).await? == Some(before),
        "another walsender after NATS came back"
    );
    ensure!(
        !stage
            .postgres
            .log_text()
            .contains("due to replication timeout"),
        "the server ended a session for its silence"
    );
    let (_, stored) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
    ensure!(stored == PENDING_ROWS, "{stored} of {PENDING_ROWS} stored");
    Ok(())
}

#[tokio::test]
async fn the_session_outlasts_a_broker_that_is_down_or_mute() -> Result<()> {
    for_each_version(async |versions| {
        let both = tokio::try_join!(
            outlasts(versions, Away::Down),
            outlasts(versions, Away::Mute)
        );
        both.map(drop)
    })
    .await
}

/// When the server last had a status update from the streamer.
async fn reply_time(client: &Client) -> Result<String> {
    let sql = "SELECT reply_time::text FROM pg_stat_replication WHERE reply_time IS NOT NULL";
    let row = client.query_opt(sql, &[]).await?;
    Ok(row.context("no status update yet")?.try_get(0)?)
}

/// One is due every second. The session asks the server to ask after 15 s, whatever its own
/// setting; that must not be needed.
const THREE_UPDATES_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn status_goes_out_on_its_own_timer_when_the_server_never_asks() -> Result<()> {
    for_each_version(async |versions| {
        let never = |builder: PostgresBuilder| builder.config("wal_sender_timeout", "0");
        let stage = Stage::start_with(versions, never, |nats| nats).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let _streamer = line.start(&stage).await?;
        let client = stage.client("shop").await?;
        let mut seen: Vec<String> = Vec::new();
        wait_until(
            THREE_UPDATES_WITHIN,
            "three updates from an idle streamer",
            async || {
                let time = reply_time(&client).await?;
                if seen.last() != Some(&time) {
                    seen.push(time);
                }
                Ok(Progress::when(seen.len() > 3, || format!("{seen:?}")))
            },
        )
        .await?;
        client.batch_execute(&insert(10)).await?;
        line.wait_confirmed(&stage).await
    })
    .await
}

/// Longer than two rounds of NATS' pings and two questions to a silent PostgreSQL.
const IDLE_FOR: Duration = Duration::from_secs(22);

/// Nobody has anything to say for a while: the same session, the same connections, no word of
/// trouble, and the first row after it goes the same way.
async fn is_left_in_peace(versions: Versions, timeout: &str) -> Result<()> {
    let asks = |builder: PostgresBuilder| builder.config("wal_sender_timeout", timeout);
    let stage = Stage::start_with(versions, asks, |nats| nats).await?;
    let proxies = Proxies::before(&stage).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let line = line.through(&proxies);
    let mut streamer = line.start(&stage).await?;
    let client = stage.client("shop").await?;
    client.batch_execute(&insert(10)).await?;
    line.wait_confirmed(&stage).await?;
    let holder = line.wait_holds(&stage, &mut streamer).await?;
    let connections = || (proxies.postgres.accepted(), proxies.nats.accepted());
    let before = connections();
    let idle = everyday_or_long(IDLE_FOR, 10 * IDLE_FOR);
    holds_until(&line, &client, holder, Instant::now() + idle).await?;
    client.batch_execute(&insert(10)).await?;
    line.wait_confirmed(&stage).await?;
    ensure!(
        connections() == before,
        "{before:?} connections became {:?}",
        connections()
    );
    let log = streamer.stderr_text();
    ensure!(!log.contains("next attempt"), "{log}");
    ensure!(
        !stage
            .postgres
            .log_text()
            .contains("due to replication timeout"),
        "the server ended a session for its silence"
    );
    Ok(())
}

#[tokio::test]
async fn an_idle_line_is_left_in_peace_whatever_the_servers_timeout() -> Result<()> {
    for_each_version(async |versions| {
        let both = tokio::try_join!(
            is_left_in_peace(versions, "3s"),
            is_left_in_peace(versions, "0")
        );
        both.map(drop)
    })
    .await
}

/// More than the streamer's window takes, so that it cannot read on.
const UNREAD_ROWS: u64 = 10_000;

/// A fast stop of PostgreSQL takes no longer, whatever NATS does.
const STOP_WITHIN: Duration = Duration::from_secs(10);

async fn stops_in_time(versions: Versions, away: Away) -> Result<()> {
    let mut stage = Stage::start(versions).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let mut streamer = line.start(&stage).await?;
    match away {
        Away::Down => stage.nats.kill9().await?,
        Away::Mute => stage.nats.pause()?,
    }
    stage.postgres.sql("shop", &insert(UNREAD_ROWS)).await?;
    stage.postgres.begin_stop(StopMode::Fast)?;
    let stopped = stage.postgres.wait_stopped(STOP_WITHIN).await;
    stopped.with_context(|| format!("NATS is {away:?}"))?;
    stage.postgres.start_again().await?;
    match away {
        Away::Down => stage.nats.start_again().await?,
        Away::Mute => stage.nats.resume()?,
    }
    line.wait_confirmed(&stage).await?;
    ensure!(streamer.is_running(), "the streamer has ended");
    let (_, stored) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
    ensure!(stored == UNREAD_ROWS, "NATS was {away:?}: {stored} stored");
    Ok(())
}

#[tokio::test]
async fn a_fast_stop_of_postgres_is_not_held_up_when_nats_is_away() -> Result<()> {
    for_each_version(async |versions| {
        let both = tokio::try_join!(
            stops_in_time(versions, Away::Down),
            stops_in_time(versions, Away::Mute)
        );
        both.map(drop)
    })
    .await
}

/// A standby takes over within so long after its holder's death.
const TAKEOVER_WITHIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_standby_takes_over_within_seconds_of_the_holders_death() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let client = stage.client("shop").await?;
        let mut holder = line.start(&stage).await?;
        let first = line.wait_holds(&stage, &mut holder).await?;
        let mut standby = line.launch(&[])?;
        wait_until(
            PATIENCE,
            "the second to say that it stands by",
            async || {
                let text = standby.stderr_text();
                let says = text.contains("standing by") && text.contains(&first.to_string());
                Ok(Progress::when(says && standby.is_running(), || text))
            },
        )
        .await?;
        client.batch_execute(&insert(2000)).await?;
        holder.kill9().await?;
        wait_until(TAKEOVER_WITHIN, "the standby to take over", async || {
            let now = line.holder(&client).await?;
            let taken = now.is_some_and(|pid| pid != first);
            Ok(Progress::when(taken, || format!("{now:?}")))
        })
        .await?;
        client.batch_execute(&insert(10)).await?;
        line.wait_confirmed(&stage).await?;
        let (_, stored) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
        ensure!(stored == 2010, "{stored} of 2010 stored");
        ensure!(standby.is_running(), "the standby has ended");
        Ok(())
    })
    .await
}

/// A host that takes connections and never says a word, and how often it was tried.
async fn mute_host() -> Result<(u16, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    tokio::spawn(async move {
        let mut peers = Vec::new();
        while let Ok((peer, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            peers.push(peer);
        }
    });
    Ok((port, tried))
}

#[tokio::test]
async fn hosts_that_are_dead_are_waited_for_once_and_not_again_at_each_session() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let (dead, tried) = mute_host().await?;
        let url = format!(
            "postgres://postgres@127.0.0.1:{dead},127.0.0.1:{dead},127.0.0.1:{}/shop\
             ?connect_timeout=1",
            stage.postgres.port()
        );
        let mut streamer = calls::Caller::at(&url, &stage.nats.url()).spawn(&["run"])?;
        calls::wait_log(&mut streamer, &["streaming from slot postrider"]).await?;
        // The look at the dead letters, and the session with its control connection.
        let once = tried.load(Ordering::Relaxed);
        ensure!(once <= 4, "each dead host was tried {} times", once / 2);
        let client = stage.client("shop").await?;
        let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
                   WHERE application_name LIKE 'postrider/%'";
        const SESSIONS: usize = 3;
        for _ in 0..SESSIONS {
            client.query_one(end, &[]).await?;
            client.batch_execute(&insert(10)).await?;
            line.wait_confirmed(&stage).await?;
        }
        // The rows from before the slot are counted once, over a connection of their own.
        let again = tried.load(Ordering::Relaxed);
        ensure!(
            again <= once + 2,
            "dead hosts were tried {once} times, and {again} after {SESSIONS} sessions more"
        );
        streamer.terminate()?;
        calls::wait_end(&mut streamer, 0, &[]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_server_without_a_free_walsender_is_waited_for_from_the_start() -> Result<()> {
    for_each_version(async |versions| {
        let one = |builder: PostgresBuilder| builder.config("max_wal_senders", "1");
        let stage = Stage::start_with(versions, one, |nats| nats).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let mut holder = line.start(&stage).await?;
        line.wait_holds(&stage, &mut holder).await?;
        // A second line beside it, whose slot is made without a session.
        let client = stage.client("shop").await?;
        let slot = "SELECT pg_create_logical_replication_slot('other', 'pgoutput')";
        client.query_one(slot, &[]).await?;
        let other = calls::Caller::new(&stage, "shop")
            .flag("--postgres-slot", "other")
            .flag("--nats-stream", "OTHER");
        let mut waits = other.spawn(&["run"])?;
        calls::wait_log(&mut waits, &["max_wal_senders", "next attempt in"]).await?;
        holder.stop_within(PATIENCE).await?;
        calls::wait_log(&mut waits, &["streaming from slot other"]).await?;
        waits.terminate()?;
        calls::wait_end(&mut waits, 0, &[]).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_control_connection_that_freezes_is_replaced_and_the_session_goes_on() -> Result<()> {
    let stage = Stage::start(calls::newest()?).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let line = line.flag("--nats-max-message-bytes", "1KiB");
    let mut streamer = line.start(&stage).await?;
    let holder = line.wait_holds(&stage, &mut streamer).await?;
    let client = stage.client("shop").await?;
    let control = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE '%/control'";
    // Beside it there are short ones at the start.
    let frozen: i32 = wait_until(PATIENCE, "one control connection", async || {
        let found = client.query(control, &[]).await?;
        Ok(match found.as_slice() {
            [one] => Progress::Done(one.try_get(0)?),
            more => Progress::NotYet(format!("{} of them", more.len())),
        })
    })
    .await?;
    signal(frozen, "STOP").await?;
    let large = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
                 VALUES ('order', '1', 'placed', to_jsonb(repeat('x', 2000)))";
    client.batch_execute(large).await?;
    client.batch_execute(&insert(1)).await?;
    let confirmed = line.wait_confirmed(&stage).await;
    let parked = client.query_one("SELECT count(*) FROM postrider.dead_letter", &[]);
    let parked: i64 = parked.await?.try_get(0)?;
    let still = line.holder(&client).await?;
    signal(frozen, "CONT").await?;
    confirmed?;
    ensure!(parked == 1, "{parked} dead letters");
    ensure!(still == Some(holder), "walsender {holder} became {still:?}");
    streamer.stop_within(PATIENCE).await
}

async fn signal(pid: i32, name: &str) -> Result<()> {
    let command = format!("kill -{name} {pid}");
    let status = tokio::process::Command::new("sh")
        .args(["-c", &command])
        .status()
        .await?;
    ensure!(status.success(), "{command}: {status}");
    Ok(())
}
