//! A peer that is frozen or cut off is noticed from either side, without anyone's help.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use postrider_tests::{
    Fault, Line, PATIENCE, PostgresBuilder, Progress, Proxies, Proxy, Scene, Stage, Streamer,
    Versions, Writers, for_each_version, last_sequence, wait_until,
};
use tokio_postgres::Client;

/// The limit of what users may be made to wait. What it took is printed; it is far less.
const NOTICED_WITHIN: Duration = Duration::from_secs(120);

/// Which of the two servers.
#[derive(Debug, Clone, Copy)]
enum Peer {
    Postgres,
    Nats,
}

/// How it says nothing more.
#[derive(Debug, Clone, Copy)]
enum Silence {
    /// Its process is stopped: its kernel goes on accepting connections and bytes.
    Frozen,
    /// Bytes vanish on the way, and no end of a connection is ever heard of.
    BlackHole,
}

const INSERT: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) SELECT \
                      'order', 'a' || n % 7, 'placed', '{}' FROM generate_series(1, 10) AS n";

/// A row that is parked: its subject is longer than the protocol allows.
const POISON: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
                      VALUES ('order', 'a', repeat('x', 40000), '{}')";

/// A line through proxies, idle, with a server that itself never asks for a sign of life.
struct Quiet {
    stage: Stage,
    proxies: Proxies,
    line: Line,
    streamer: Streamer,
    client: Client,
}

impl Quiet {
    async fn open(versions: Versions) -> Result<Self> {
        let never = |builder: PostgresBuilder| builder.config("wal_sender_timeout", "0");
        let stage = Stage::start_with(versions, never, |nats| nats).await?;
        let proxies = Proxies::before(&stage).await?;
        let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
        let line = line.through(&proxies);
        let streamer = line.start(&stage).await?;
        let client = stage.client("shop").await?;
        client.batch_execute(INSERT).await?;
        line.wait_confirmed(&stage).await?;
        Ok(Self {
            stage,
            proxies,
            line,
            streamer,
            client,
        })
    }

    fn proxy(&self, peer: Peer) -> &Proxy {
        match peer {
            Peer::Postgres => &self.proxies.postgres,
            Peer::Nats => &self.proxies.nats,
        }
    }

    fn begin(&mut self, peer: Peer, silence: Silence) -> Result<()> {
        match (silence, peer) {
            (Silence::BlackHole, peer) => self.proxy(peer).set(Fault::BlackHole),
            (Silence::Frozen, Peer::Postgres) => self.stage.postgres.pause()?,
            (Silence::Frozen, Peer::Nats) => self.stage.nats.pause()?,
        }
        Ok(())
    }

    fn end(&mut self, peer: Peer, silence: Silence) -> Result<()> {
        match (silence, peer) {
            (Silence::BlackHole, peer) => self.proxy(peer).set(Fault::Pass),
            (Silence::Frozen, Peer::Postgres) => self.stage.postgres.resume()?,
            (Silence::Frozen, Peer::Nats) => self.stage.nats.resume()?,
        }
        Ok(())
    }
}

async fn is_noticed(versions: Versions, peer: Peer, silence: Silence) -> Result<()> {
    let mut quiet = Quiet::open(versions).await?;
    let pid = quiet.streamer.pid()?;
    let before = quiet.proxy(peer).accepted();
    let begun = Instant::now();
    quiet.begin(peer, silence)?;
    let what = format!("another attempt, {peer:?} {silence:?}");
    wait_until(NOTICED_WITHIN, &what, async || {
        let now = quiet.proxy(peer).accepted();
        Ok(Progress::when(now > before, || now.to_string()))
    })
    .await?;
    let noticed = begun.elapsed();
    quiet.end(peer, silence)?;
    quiet.client.batch_execute(INSERT).await?;
    // The connection that writes dead letters was cut off with the others.
    quiet.client.batch_execute(POISON).await?;
    quiet.client.batch_execute(INSERT).await?;
    let Quiet { stage, line, .. } = &quiet;
    line.wait_confirmed(stage).await?;
    let (_, stored) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
    ensure!(stored == 30, "{peer:?} {silence:?}: {stored} of 30 stored");
    ensure!(quiet.streamer.pid()? == pid, "the streamer ended meanwhile");
    println!(
        "{peer:?} {silence:?}: noticed after {:.1} s, all well after {:.1} s",
        noticed.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

#[tokio::test]
async fn a_frozen_or_cut_off_postgres_is_noticed_and_what_waited_is_delivered() -> Result<()> {
    for_each_version(async |versions| {
        let both = tokio::try_join!(
            is_noticed(versions, Peer::Postgres, Silence::Frozen),
            is_noticed(versions, Peer::Postgres, Silence::BlackHole),
        );
        both.map(drop)
    })
    .await
}

#[tokio::test]
async fn a_frozen_or_cut_off_nats_is_noticed_and_what_waited_is_delivered() -> Result<()> {
    for_each_version(async |versions| {
        let both = tokio::try_join!(
            is_noticed(versions, Peer::Nats, Silence::Frozen),
            is_noticed(versions, Peer::Nats, Silence::BlackHole),
        );
        both.map(drop)
    })
    .await
}

/// A streamer that is frozen with rows in flight loses its slot to the standby instance; when it
/// goes on, what it had still to say changes nothing.
async fn gives_way(versions: Versions, writers: Writers) -> Result<()> {
    let what = format!("a frozen streamer, {versions}");
    let mut scene = Scene::open(&what, Stage::start(versions).await?, writers).await?;
    let client = scene.servers.client("shop").await?;
    let mut standby = scene.line.launch(&[])?;
    wait_until(PATIENCE, "the second to stand by", async || {
        let says = standby.stderr_text().contains("standing by");
        Ok(Progress::when(says, String::new))
    })
    .await?;
    scene.wait_progress().await?;
    let first = scene.line.holder(&client).await?;
    let begun = Instant::now();
    scene.streamer.pause()?;
    wait_until(NOTICED_WITHIN, "the standby to take over", async || {
        let now = scene.line.holder(&client).await?;
        let taken = now.is_some() && now != first;
        Ok(Progress::when(taken, || format!("{now:?}")))
    })
    .await?;
    println!("taken over after {:.1} s", begun.elapsed().as_secs_f64());
    scene.wait_progress().await?;
    scene.streamer.resume()?;
    scene.random_instant().await;
    scene.wait_progress().await?;
    ensure!(scene.streamer.is_running(), "the frozen one has ended");
    standby.stop_within(PATIENCE).await?;
    scene.close().await.map(drop)
}

#[tokio::test]
async fn a_frozen_streamer_gives_way_and_its_late_rows_change_nothing() -> Result<()> {
    for_each_version(async |versions| {
        let both = tokio::try_join!(
            gives_way(versions, Writers::Exclusive),
            gives_way(versions, Writers::Shared),
        );
        both.map(drop)
    })
    .await
}
