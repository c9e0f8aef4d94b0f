//! `--keep`: the servers stay, and the reader is told how to use them.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use super::line::Line;
use super::stage::Servers;

/// What to try first; the event appears in the subscription at once. It has no double quotes, so
/// that a shell takes it between two.
const INSERT: &str = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
    VALUES ('order', '99', 'placed', jsonb_build_object('order_id', 99))";

/// Prints the commands, then waits for SIGINT or SIGTERM.
///
/// # Errors
/// When the signals cannot be caught.
pub(super) async fn until_interrupted(servers: &Servers, lines: &[&Line]) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot catch SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot catch SIGTERM")?;
    println!("\nServers and streamers go on running. In another terminal:");
    for line in lines {
        print_commands(servers, line);
    }
    println!("\nCtrl-C here ends all of them and removes their data.");
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    println!("\nending");
    Ok(())
}

fn print_commands(servers: &Servers, line: &Line) {
    println!("\n  slot {} -> stream {}", line.slot(), line.stream());
    let url = servers.postgres.url(line.database());
    match psql(servers.postgres.bin_dir()) {
        Some(psql) => {
            let psql = quoted(&psql.display().to_string());
            println!("  {psql} '{url}' -c \"{INSERT}\"");
        }
        None => {
            println!("  (psql is not installed here; any PostgreSQL client will do)");
            println!("  psql '{url}' -c \"{INSERT}\"");
        }
    }
    let (nats, stream) = (servers.nats.url(), line.stream());
    println!("  nats --server {nats} sub --stream {stream} --all");
    println!("  nats --server {nats} stream info {stream}");
    let flags: Vec<String> = line.flags().iter().map(|flag| quoted(flag)).collect();
    let program = quoted(&line.program().display().to_string());
    println!("  {program} {} status --watch 2s", flags.join(" "));
}

/// The `psql` beside the server, else the one on PATH.
fn psql(beside: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::iter::once(beside.to_path_buf())
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join("psql"))
        .find(|program| program.is_file())
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_the_shell() {
        assert_eq!(quoted("--nats-url"), "--nats-url");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }
}
