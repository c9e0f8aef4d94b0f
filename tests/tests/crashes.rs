//! `kill -9` of each of the three processes under load, and what else breaks connections.
//!
//! However a history goes, in the end the distinct ids of the stream are those of the table, the
//! order of commits is kept, and at no time was a row confirmed that the stream lacked.

use std::time::Duration;

use anyhow::{Result, ensure};
use postrider_tests::{
    Progress, Scene, Stage, Versions, Writers, everyday_or_long, for_each_version, wait_until,
};

async fn open(what: &str, versions: Versions, writers: Writers) -> Result<Scene<Stage>> {
    let stage = Stage::start(versions).await?;
    Scene::open(&format!("{what}, {versions}"), stage, writers).await
}

async fn kill_the_streamer(versions: Versions, writers: Writers) -> Result<()> {
    let mut scene = open("kill -9 of the streamer", versions, writers).await?;
    for _ in 0..everyday_or_long(4, 30) {
        scene.random_instant().await;
        scene.streamer.kill9().await?;
        scene.away().await;
        scene.streamer.start_again()?;
        scene.wait_progress().await?;
    }
    scene.close().await.map(drop)
}

async fn kill_postgres(versions: Versions, writers: Writers) -> Result<()> {
    let mut scene = open("kill -9 of PostgreSQL", versions, writers).await?;
    let pid = scene.streamer.pid()?;
    for _ in 0..everyday_or_long(2, 10) {
        scene.random_instant().await;
        scene.servers.postgres.kill9().await?;
        scene.away().await;
        scene.servers.postgres.start_again().await?;
        scene.wait_progress().await?;
    }
    ensure!(scene.streamer.pid()? == pid, "the streamer ended meanwhile");
    scene.close().await.map(drop)
}

async fn kill_nats(versions: Versions, writers: Writers) -> Result<()> {
    let mut scene = open("kill -9 of nats-server", versions, writers).await?;
    let pid = scene.streamer.pid()?;
    for _ in 0..everyday_or_long(2, 10) {
        scene.random_instant().await;
        scene.servers.nats.kill9().await?;
        scene.away().await;
        scene.servers.nats.start_again().await?;
        scene.wait_progress().await?;
    }
    ensure!(scene.streamer.pid()? == pid, "the streamer ended meanwhile");
    scene.close().await.map(drop)
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
        let mut scene = open(what, versions, Writers::Exclusive).await?;
        let pid = scene.streamer.pid()?;
        scene.random_instant().await;
        scene.servers.nats.kill9().await?;
        scene.random_instant().await;
        scene.servers.postgres.kill9().await?;
        scene.servers.postgres.start_again().await?;
        let holder = scene.line.wait_holds(&scene.servers, &mut scene.streamer);
        holder.await?;
        scene.random_instant().await;
        scene.servers.nats.start_again().await?;
        scene.wait_progress().await?;
        ensure!(scene.streamer.pid()? == pid, "the streamer ended meanwhile");
        scene.close().await.map(drop)
    })
    .await
}

/// A connection comes back within so long.
const BACK_WITHIN: Duration = Duration::from_secs(20);

#[tokio::test]
async fn every_connection_that_is_terminated_comes_back() -> Result<()> {
    for_each_version(async |versions| {
        let what = "pg_terminate_backend";
        let mut scene = open(what, versions, Writers::Exclusive).await?;
        let pid = scene.streamer.pid()?;
        let client = scene.servers.client("shop").await?;
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
        scene.close().await.map(drop)
    })
    .await
}
