//! How the streamer ends: what is stored is confirmed, and the next start sends nothing again.

mod calls;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use pgoutput::Lsn;
use postrider_tests::{
    Line, Load, LoadPlan, PATIENCE, Progress, Rng, Stage, Versions, Writers, check_order,
    everyday_or_long, for_each_version, last_sequence, read_stream, wait_until, witness,
};
use tokio_postgres::Client;

/// SIGTERM ends the streamer within so long, whatever is down.
const END_WITHIN: Duration = Duration::from_secs(10);

fn insert(rows: u64, mark: &str) -> String {
    format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) SELECT 'order', \
         'a' || n % 7, 'placed', jsonb_build_object('n', n, 'mark', '{mark}') \
         FROM generate_series(1, {rows}) AS n"
    )
}

async fn wal_insert_position(client: &Client) -> Result<Lsn> {
    let sql = "SELECT pg_current_wal_insert_lsn()::text";
    let row = client.query_one(sql, &[]).await?;
    Ok(row.try_get::<_, &str>(0)?.parse()?)
}

/// Sees every message that is published, also those that the stream drops as duplicates.
async fn count_published(mut tap: async_nats::Subscriber) -> Result<usize> {
    tap.unsubscribe().await?;
    let mut count = 0;
    while tap.next().await.is_some() {
        count += 1;
    }
    Ok(count)
}

#[tokio::test]
async fn sigterm_after_the_last_ack_confirms_the_last_commit_and_a_restart_sends_nothing()
-> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let mut rng = Rng::printed(&format!("SIGTERM after the last ack, {versions}"));
        // In a shared stream nothing but the confirmation keeps a row from being sent again.
        let line = Line::ready(&stage, "shop", Writers::Shared).await?;
        let client = stage.client("shop").await?;
        witness::open(&client).await?;
        let taps = stage.nats.connect().await?;
        let tap = taps.subscribe("outbox.>").await?;
        taps.flush().await?;
        let mut expected = 0;
        let mut streamer = line.start(&stage).await?;
        for round in 0..everyday_or_long(5, 20) {
            if round > 0 {
                streamer.start_again()?;
                line.wait_holds(&stage, &mut streamer).await?;
            }
            let rows = rng.pick(1..40);
            expected += rows;
            client.batch_execute(&insert(rows, "x")).await?;
            line.wait_stored(&stage, expected).await?;
            streamer.stop_within(END_WITHIN).await?;
            let confirmed = line.confirmed(&client).await?;
            let committed = witness::rows(&client, &line.slot, "outbox").await?;
            let end = committed.last().context("no rows")?.end_lsn;
            // The server may have written more since, which may be confirmed, too.
            let last = wal_insert_position(&client).await?;
            ensure!(
                end <= confirmed && confirmed <= last,
                "round {round}: the last commit ends at {end}, confirmed is {confirmed}"
            );
        }
        streamer.start_again()?;
        line.wait_holds(&stage, &mut streamer).await?;
        line.wait_confirmed(&stage).await?;
        streamer.stop_within(END_WITHIN).await?;
        let (_, stored) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
        ensure!(stored == expected, "{stored} messages of {expected} rows");
        let published = count_published(tap).await? as u64;
        ensure!(
            published == expected,
            "{published} published, {expected} rows"
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn sigterm_under_load_drains_and_the_restart_goes_on_where_it_ended() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let mut rng = Rng::printed(&format!("SIGTERM under load, {versions}"));
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let client = stage.client("shop").await?;
        witness::open(&client).await?;
        let load = Load::start(&stage.postgres.url("shop"), &LoadPlan::default(), &mut rng);
        let mut streamer = line.start(&stage).await?;
        for round in 1..=everyday_or_long(3, 20) {
            line.wait_stored(&stage, 50 * round).await?;
            tokio::time::sleep(rng.millis(0..300)).await;
            streamer.stop_within(END_WITHIN).await?;
            streamer.start_again()?;
            line.wait_holds(&stage, &mut streamer).await?;
        }
        load.stop().await?;
        line.wait_confirmed(&stage).await?;
        let committed = witness::rows(&client, &line.slot, "outbox").await?;
        let stored = read_stream(&stage.jetstream().await?, &line.stream).await?;
        check_order(&committed, &stored, line.writers)
    })
    .await
}

/// How NATS is away.
#[derive(Debug, Clone, Copy)]
enum Away {
    Down,
    Mute,
}

async fn ends_in_time(versions: Versions, away: Away) -> Result<()> {
    let mut stage = Stage::start(versions).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let client = stage.client("shop").await?;
    let mut streamer = line.start(&stage).await?;
    client.batch_execute(&insert(10, "before")).await?;
    line.wait_stored(&stage, 10).await?;
    match away {
        Away::Down => stage.nats.kill9().await?,
        Away::Mute => stage.nats.pause()?,
    }
    client.batch_execute(&insert(5000, "pending")).await?;
    wait_until(PATIENCE, "PostgreSQL to send the rows", async || {
        let sql = "SELECT sent_lsn >= pg_current_wal_lsn() FROM pg_stat_replication";
        let sent: Option<bool> = client.query_one(sql, &[]).await?.try_get(0)?;
        Ok(Progress::when(sent == Some(true), String::new))
    })
    .await?;
    streamer
        .stop_within(END_WITHIN)
        .await
        .with_context(|| format!("NATS is {away:?}"))?;
    match away {
        Away::Down => stage.nats.start_again().await?,
        Away::Mute => stage.nats.resume()?,
    }
    line.ok(&["run", "--until-caught-up"]).await?;
    let (_, stored) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
    ensure!(stored == 5010, "NATS was {away:?}: {stored} of 5010");
    Ok(())
}

#[tokio::test]
async fn sigterm_with_nats_away_ends_in_time_and_loses_nothing() -> Result<()> {
    for_each_version(async |versions| {
        let both = tokio::try_join!(
            ends_in_time(versions, Away::Down),
            ends_in_time(versions, Away::Mute)
        );
        both.map(drop)
    })
    .await
}

#[tokio::test]
async fn until_caught_up_ends_with_everything_stored_and_confirmed() -> Result<()> {
    for_each_version(async |versions| {
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let client = stage.client("shop").await?;
        let jetstream = stage.jetstream().await?;
        client.batch_execute("CREATE TABLE busy (t text)").await?;
        let busy = "INSERT INTO busy SELECT repeat(md5(n::text), 20) \
                    FROM generate_series(1, 20000) AS n";
        let lazy = |rows| {
            let insert = insert(rows, "lazy");
            format!("SET synchronous_commit = off; {insert}; RESET synchronous_commit")
        };
        // What is written before each call, and how many rows the stream then has.
        let cases = [
            ("nothing", String::new(), 0),
            ("a thousand rows", insert(1000, "x"), 1000),
            ("nothing more", String::new(), 1000),
            ("rows without a flush", lazy(100), 1100),
            ("one row without a flush", lazy(1), 1101),
            (
                "other WAL behind the rows",
                format!("{}; {busy}", insert(9, "x")),
                1110,
            ),
            ("other WAL alone", busy.to_owned(), 1110),
        ];
        for (what, statements, rows) in cases {
            client.batch_execute(&statements).await?;
            let sql = "SELECT pg_current_wal_flush_lsn()::text";
            let flushed: Lsn = client
                .query_one(sql, &[])
                .await?
                .try_get::<_, &str>(0)?
                .parse()?;
            let out = line.ok(&["run", "--until-caught-up"]).await;
            out.with_context(|| what.to_owned())?;
            let (_, stored) = last_sequence(&jetstream, &line.stream).await?;
            ensure!(stored == rows, "{what}: {stored} of {rows} stored");
            let confirmed = line.confirmed(&client).await?;
            ensure!(
                confirmed >= flushed,
                "{what}: {confirmed} confirmed of {flushed}"
            );
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_signal_ends_every_command_that_waits_for_a_mute_server() -> Result<()> {
    for (words, code) in [
        (&["run"][..], 0),
        (&["run", "--until-caught-up"], 1),
        (&["run", "--setup"], 0),
        (&["setup"], 1),
        (&["teardown"], 1),
        (&["status", "--watch", "1s"], 3),
    ] {
        for interrupt in [false, true] {
            // It takes connections and never says a word; one of its own for each, as a program may
            // leave a second connection behind that nobody has accepted.
            let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
            let port = mute.local_addr()?.port();
            let postgres = format!("postgres://a@127.0.0.1:{port}/a");
            let caller = calls::Caller::at(&postgres, &format!("nats://127.0.0.1:{port}"));
            let mut waits = caller.spawn(words)?;
            let _peer = tokio::time::timeout(PATIENCE, mute.accept()).await??;
            match interrupt {
                true => waits.interrupt()?,
                false => waits.terminate()?,
            }
            let ended = waits.wait_exit(Duration::from_secs(5)).await?;
            let log = waits.stderr_text();
            ensure!(ended == Some(code), "{words:?}: {ended:?}\n{log}");
        }
    }
    Ok(())
}
