//! Three nats-servers that are one cluster, under load: their leaders change, they are restarted
//! one after the other, killed and paused, and no row is lost, misplaced or stored twice.

use std::time::Duration;

use anyhow::{Result, ensure};
use postrider_tests::{
    ClusterStage, Line, LoadPlan, PATIENCE, Scene, Versions, Writers, everyday_or_long,
    for_each_version, jetstream,
};

/// Long enough for the others to elect a leader in the place of one that is mute.
const MUTE_FOR: Duration = Duration::from_secs(6);

/// Three replicas share two cores with all else here.
fn plan() -> LoadPlan {
    LoadPlan {
        pause_max_ms: 20,
        ..LoadPlan::default()
    }
}

async fn open(versions: Versions, writers: Writers) -> Result<Scene<ClusterStage>> {
    let stage = ClusterStage::start(versions).await?;
    let line = Line::ready(&stage, "shop", writers).await?;
    let stream = jetstream(&stage).await?.get_stream(&line.stream).await?;
    let replicas = stream.cached_info().config.num_replicas;
    ensure!(replicas == 3, "setup made a stream of {replicas} replicas");
    let what = format!("a cluster of NATS, {versions}");
    let scene = Scene::over(&what, stage, line, &plan()).await?;
    scene.wait_progress().await?;
    Ok(scene)
}

/// The server that leads the stream now.
async fn leader(scene: &Scene<ClusterStage>) -> Result<usize> {
    let cluster = &scene.servers.cluster;
    cluster.leader(&scene.line.stream, PATIENCE).await
}

async fn disturbed(versions: Versions, writers: Writers) -> Result<()> {
    let mut scene = open(versions, writers).await?;
    let pid = scene.streamer.pid()?;
    let stream = scene.line.stream.clone();
    for _ in 0..everyday_or_long(4, 60) {
        scene.random_instant().await;
        // The one before may still be under way: then there is nobody to step down.
        leader(&scene).await?;
        scene.servers.cluster.step_down(&stream).await?;
    }
    scene.wait_progress().await?;
    for _ in 0..everyday_or_long(1, 5) {
        let cluster = &mut scene.servers.cluster;
        cluster.rolling_restart(&stream, PATIENCE).await?;
        scene.wait_progress().await?;

        let lost = leader(&scene).await?;
        scene.servers.cluster.node(lost)?.kill9().await?;
        scene.wait_progress().await?;
        scene.servers.cluster.node(lost)?.start_again().await?;
        scene
            .servers
            .cluster
            .wait_healthy(&stream, PATIENCE)
            .await?;

        let mute = leader(&scene).await?;
        scene.servers.cluster.node(mute)?.pause()?;
        tokio::time::sleep(MUTE_FOR).await;
        scene.servers.cluster.node(mute)?.resume()?;
        scene.wait_progress().await?;
        scene
            .servers
            .cluster
            .wait_healthy(&stream, PATIENCE)
            .await?;
    }
    ensure!(scene.streamer.pid()? == pid, "the streamer ended meanwhile");
    scene.close().await.map(drop)
}

#[tokio::test]
async fn step_downs_rolling_restarts_and_lost_leaders_lose_nothing_exclusive() -> Result<()> {
    for_each_version(async |versions| disturbed(versions, Writers::Exclusive).await).await
}

#[tokio::test]
async fn step_downs_rolling_restarts_and_lost_leaders_lose_nothing_shared() -> Result<()> {
    for_each_version(async |versions| disturbed(versions, Writers::Shared).await).await
}
