//! What is kept of a round that failed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use postrider_tests::{jetstream, read_stream};

use super::world::World;
use crate::steps::workspace;

/// How long the stream may take to be read; its server may be the one that does not answer.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// Writes the logs of all, the report and what the stream holds into a folder of `target/soak`.
///
/// # Errors
/// When the folder cannot be written.
pub(super) async fn keep(world: &World, name: &str, report: &str) -> Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = workspace().join(target).join("soak").join(name);
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    write(&folder, "report.txt", report)?;
    write(&folder, "streamer.log", &world.streamer.stderr_text())?;
    write(&folder, "postgres.log", &world.postgres.log_text())?;
    for (index, node) in world.brokers.nodes().iter().enumerate() {
        write(&folder, &format!("nats-{index}.log"), &node.log_text())?;
    }
    if let Ok(Ok(listing)) = tokio::time::timeout(READ_LIMIT, listing(world)).await {
        write(&folder, "stream.txt", &listing)?;
    }
    Ok(folder)
}

/// One line for each message: sequence, time in nanoseconds, id, position.
async fn listing(world: &World) -> Result<String> {
    let stored = read_stream(&jetstream(world).await?, &world.line.stream).await?;
    let mut text = String::new();
    for message in &stored {
        let position = message.header("Outbox-Position").unwrap_or_default();
        writeln!(
            text,
            "{} {} {} {position}",
            message.sequence,
            message.stored_at_unix_ns,
            message.id()
        )?;
    }
    Ok(text)
}

fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}
