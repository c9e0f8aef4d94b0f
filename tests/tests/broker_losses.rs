//! A broker that comes back without what it had acked.

mod calls;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use calls::{insert, newest, stays_unconfirmed, wait_ids, wait_log};
use postrider_tests::{Line, PATIENCE, Stage, Writers, for_each_version};

/// Copies a folder with owners and modes, for the server may run as another user.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-Rp").arg(from).arg(to).status();
    ensure!(status.context("cannot run cp")?.success(), "cp failed");
    Ok(())
}

#[tokio::test]
async fn a_broker_that_comes_back_from_an_older_copy_is_refilled() -> Result<()> {
    for_each_version(async |versions| {
        let shared_too = versions == newest()?;
        let all = [Writers::Exclusive, Writers::Shared];
        for writers in all.into_iter().take(if shared_too { 2 } else { 1 }) {
            let mut stage = Stage::start(versions).await?;
            let line = Line::ready(&stage, "shop", writers).await?;
            let line = line.flag("--delivery-confirm-delay", "1h");
            let mut streamer = line.start(&stage).await?;
            let before = insert(&stage, "shop", 3).await?;
            wait_ids(&stage, &["1", "2", "3"]).await?;
            let (store, older) = (
                stage.nats.dir().join("store"),
                stage.nats.dir().join("copy"),
            );
            stage.nats.stop().await?;
            copy(&store, &older)?;
            stage.nats.start_again().await?;
            insert(&stage, "shop", 3).await?;
            let all = ["1", "2", "3", "4", "5", "6"];
            wait_ids(&stage, &all).await?;

            stage.nats.kill9().await?;
            stage.nats.wipe_store()?;
            copy(&older, &store)?;
            stage.nats.start_again().await?;
            let alarm = "the stream lost messages that were acked";
            wait_log(&mut streamer, &[alarm]).await?;
            wait_ids(&stage, &all).await?;
            stays_unconfirmed(&stage, &line, before).await?;
            insert(&stage, "shop", 1).await?;
            wait_ids(&stage, &["1", "2", "3", "4", "5", "6", "7"]).await?;
            streamer.stop_within(PATIENCE).await?;
        }
        Ok(())
    })
    .await
}
