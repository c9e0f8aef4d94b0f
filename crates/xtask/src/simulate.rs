//! `cargo xtask simulate`: faulty histories of the relay machine, as many as are asked for.

use std::process::Command;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;

use crate::steps::cargo;

/// Options of `cargo xtask simulate`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Histories to run, each from its own seed: a million takes some minutes on two cores
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    histories: u64,

    /// The first seed
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    seed: u64,

    /// Leave a history that breaks a law as it is, instead of cutting it down to the shortest
    #[arg(long)]
    no_shrink: bool,

    /// Print every step of every history
    #[arg(long)]
    trace: bool,

    /// Run one history again, from the decisions that were printed for it
    #[arg(long, value_name = "DECISIONS", conflicts_with_all = ["histories", "seed"])]
    replay: Option<String>,
}

/// The simulator's test as it is run for many histories.
pub(crate) fn simulator() -> Command {
    cargo(&[
        "test",
        "--profile=proof",
        "-p",
        "postrider-outbox",
        "--test",
        "simulation",
        "--",
        "--nocapture",
    ])
}

/// Runs them, up to the first that breaks a law.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut command = simulator();
    command.args(["--exact", "every_history_keeps_the_guarantee"]);
    command
        .env("POSTRIDER_SIM_HISTORIES", options.histories.to_string())
        .env("POSTRIDER_SIM_SEED", options.seed.to_string())
        .env(
            "POSTRIDER_SIM_SHRINK",
            if options.no_shrink { "0" } else { "1" },
        );
    if options.trace {
        command.env("POSTRIDER_SIM_TRACE", "1");
    }
    if let Some(decisions) = &options.replay {
        command.env("POSTRIDER_SIM_REPLAY", decisions);
    }
    let begun = Instant::now();
    let status = command.status()?;
    if !status.success() {
        bail!("the simulator found a fault, or was not built");
    }
    println!(
        "{:.1} s in all, with the build",
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}
