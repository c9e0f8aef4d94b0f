//! `kill -9` of each of the three processes under load, and what else breaks connections.
//!
//! However a history goes, in the end the distinct ids of the stream are those of the table, the
//! order of commits is kept, and at no time was a row confirmed that the stream lacked.

use std::time::Duration;

use anyhow::{Result, ensure};
use postrider_tests::{
    Line, Load, LoadPlan, PATIENCE, Progress, Rng, Sampler, Stage, Streamer, Versions, Writers,
    check_order, check_payloads, everyday_or_long, for_each_version, last_sequence, read_stream,
    wait_until, witness,
};

/// A fault may come at any time after the load began.
const FAULT_AFTER_MS: std::ops::Range<u64> = 50..900;
/// What was killed stays away for up to so long.
const AWAY_MS: std::ops::Range<u64> = 0..1200;

/// A line under load, watched.
struct Scene {
    stage: Stage,
    line: Line,
    streamer: Streamer,
    load: Load,
    sampler: Sampler,
    rng: Rng,
}

impl Scene {
    async fn open(what: &str, versions: Versions, writers: Writers) -> Result<Self> {
        let mut rng = Rng::printed(&format!("{what}, {}, {versions}", writers.name()));
        let stage = Stage::start(versions).await?;
        let line = Line::ready(&stage, "shop", writers).await?;
        witness::open(&stage.client("shop").await?).await?;
        let url = stage.postgres.url("shop");
        let sampler = Sampler::start(&url, &line.slot);
        let streamer = line.start(&stage).await?;
        let load = Load::start(&url, &LoadPlan::default(), &mut rng);
        Ok(Self {
            stage,
            line,
            streamer,
            load,
            sampler,
            rng,
        })
    }

    /// Waits for a random instant.
    async fn random_instant(&mut self) {
        tokio::time::sleep(self.rng.millis(FAULT_AFTER_MS)).await;
    }

    /// Keeps what was killed away for a random time, often none.
    async fn away(&mut self) {
        if self.rng.percent(60) {
            tokio::time::sleep(self.rng.millis(AWAY_MS)).await;
        }
    }

    /// Waits until more rows are stored than now, so that each round meets a streamer at work.
    async fn wait_progress(&self) -> Result<()> {
        let jetstream = self.stage.jetstream().await?;
        let (before, _) = last_sequence(&jetstream, &self.line.stream).await?;
        wait_until(PATIENCE, "rows to be stored again", async || {
            let (now, _) = last_sequence(&jetstream, &self.line.stream).await?;
            Ok(Progress::when(now > before, || now.to_string()))
        })
        .await
    }

    /// Ends the load, lets everything settle, and checks it.
    async fn close(mut self) -> Result<()> {
        let committed = self.load.stop().await?;
        self.line.wait_confirmed(&self.stage).await?;
        ensure!(self.streamer.is_running(), "the streamer has ended");
        self.streamer.stop_within(PATIENCE).await?;
        let client = self.stage.client("shop").await?;
        let rows = witness::rows(&client, &self.line.slot, "outbox").await?;
        let jetstream = self.stage.jetstream().await?;
        let stored = read_stream(&jetstream, &self.line.stream).await?;
        check_order(&rows, &stored, self.line.writers)?;
        let table = postrider_tests::Table::read(&client, "outbox").await?;
        ensure!(table.rows.len() == rows.len(), "table and witness differ");
        check_payloads(&table, &stored)?;
        let samples = self.sampler.finish(&rows, &stored).await?;
        println!(
            "{committed} transactions or more, {} rows, {} messages, {samples} samples",
            rows.len(),
            stored.len()
        );
        Ok(())
    }
}

async fn kill_the_streamer(versions: Versions, writers: Writers) -> Result<()> {
    let mut scene = Scene::open("kill -9 of the streamer", versions, writers).await?;
    for _ in 0..everyday_or_long(4, 30) {
        scene.random_instant().await;
        scene.streamer.kill9().await?;
        scene.away().await;
        scene.streamer.start_again()?;
        scene.wait_progress().await?;
    }
    scene.close().await
}

async fn kill_postgres(versions: Versions, writers: Writers) -> Result<()> {
    let mut scene = Scene::open("kill -9 of PostgreSQL", versions, writers).await?;
    let pid = scene.streamer.pid()?;
    for _ in 0..everyday_or_long(2, 10) {
        scene.random_instant().await;
        scene.stage.postgres.kill9().await?;
        scene.away().await;
        scene.stage.postgres.start_again().await?;
        scene.wait_progress().await?;
    }
    ensure!(scene.streamer.pid()? == pid, "the streamer ended meanwhile");
    scene.close().await
}

async fn kill_nats(versions: Versions, writers: Writers) -> Result<()> {
    let mut scene = Scene::open("kill -9 of nats-server", versions, writers).await?;
    let pid = scene.streamer.pid()?;
    for _ in 0..everyday_or_long(2, 10) {
        scene.random_instant().await;
        scene.stage.nats.kill9().await?;
        scene.away().await;
        scene.stage.nats.start_again().await?;
        scene.wait_progress().await?;
    }
    ensure!(scene.streamer.pid()? == pid, "the streamer ended meanwhile");
    scene.close().await
}

#[tokio::test]
async fn nothing_is_lost_when_the_streamer_is_killed_exclusive() -> Result<()> {
    for_each_version(async |versions| kill_the_streamer(versions, Writers::Exclusive).await).await
}

#[tokio::test]
async fn nothing_is_lost_when_the_streamer_is_killed_shared() -> Result<()> {
    for_each_version(async |versions| kill_the_streamer(versions, Writers::Shared).await).await
}

#[tokio::test]
async fn nothing_is_lost_when_postgres_is_killed_exclusive() -> Result<()> {
    for_each_version(async |versions| kill_postgres(versions, Writers::Exclusive).await).await
}

#[tokio::test]
async fn nothing_is_lost_when_postgres_is_killed_shared() -> Result<()> {
    for_each_version(async |versions| kill_postgres(versions, Writers::Shared).await).await
}

#[tokio::test]
async fn nothing_is_lost_when_nats_is_killed_exclusive() -> Result<()> {
    for_each_version(async |versions| kill_nats(versions, Writers::Exclusive).await).await
}

#[tokio::test]
async fn nothing_is_lost_when_nats_is_killed_shared() -> Result<()> {
    for_each_version(async |versions| kill_nats(versions, Writers::Shared).await).await
}

#[tokio::test]
async fn postgres_may_restart_while_nats_is_down() -> Result<()> {
    for_each_version(async |versions| {
        let what = "PostgreSQL restarts while NATS is down";
        let mut scene = Scene::open(what, versions, Writers::Exclusive).await?;
        let pid = scene.streamer.pid()?;
        scene.random_instant().await;
        scene.stage.nats.kill9().await?;
        scene.random_instant().await;
        scene.stage.postgres.kill9().await?;
        scene.stage.postgres.start_again().await?;
        let holder = scene.line.wait_holds(&scene.stage, &mut scene.streamer);
        holder.await?;
        scene.random_instant().await;
        scene.stage.nats.start_again().await?;
        scene.wait_progress().await?;
        ensure!(scene.streamer.pid()? == pid, "the streamer ended meanwhile");
        scene.close().await
    })
    .await
}

/// A connection comes back within so long.
const BACK_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test]
async fn every_connection_that_is_terminated_comes_back() -> Result<()> {
    for_each_version(async |versions| {
        let what = "pg_terminate_backend";
        let mut scene = Scene::open(what, versions, Writers::Exclusive).await?;
        let pid = scene.streamer.pid()?;
        let client = scene.stage.client("shop").await?;
        for round in 0..everyday_or_long(8, 20) {
            let sql = "SELECT active_pid, (SELECT count(pg_terminate_backend(a.pid)) \
                       FROM pg_stat_activity AS a WHERE a.application_name LIKE 'postrider%') \
                       FROM pg_replication_slots WHERE slot_name = $1";
            let row = client.query_one(sql, &[&scene.line.slot]).await?;
            let (old, ended): (Option<i32>, i64) = (row.try_get(0)?, row.try_get(1)?);
            ensure!(ended > 0, "round {round}: no connection of the streamer");
            let what = format!("another walsender after round {round}");
            wait_until(BACK_WITHIN, &what, async || {
                let new = scene.line.holder(&client).await?;
                let back = new.is_some() && new != old;
                Ok(Progress::when(back, || format!("{old:?} -> {new:?}")))
            })
            .await?;
            // A session that never worked would make the next attempt wait longer, rightly.
            scene.wait_progress().await?;
        }
        ensure!(scene.streamer.pid()? == pid, "the streamer ended meanwhile");
        scene.close().await
    })
    .await
}
