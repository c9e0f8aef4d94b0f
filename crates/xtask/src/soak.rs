//! `cargo xtask soak`: everything around the streamer fails at random, for as long as it is told
//! to, and the guarantee is checked all the while.
//!
//! The time is cut into rounds, each with servers, table and stream of its own. In a round, writers
//! load the table; one after the other, faults come over PostgreSQL, NATS and the streamer, now and
//! then two at a time, and after each the time is taken until all that was committed by its end is
//! confirmed. Beside that the checker of the tests holds stream, table and confirmations against
//! each other. One printed seed repeats all choices, though not the timing of the machine.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use postrider_tests::{Rng, Versions, Writers};
use testbed::{NatsVersion, PgVersion};

use crate::build;

mod evidence;
mod fault;
mod round;
mod tally;
mod world;

use round::Round;
use tally::Tally;

/// The longest time that one pair of servers is kept; the checker's memory grows with it.
const ROUND_MAX: Duration = Duration::from_secs(10 * 60);

/// The writers of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Choice {
    /// The streamer alone
    Exclusive,
    /// Others as well
    Shared,
    /// One after the other
    Alternate,
}

/// Options of `cargo xtask soak`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// How long, without starts and ends of the rounds
    #[arg(long, value_name = "N", default_value_t = 10)]
    minutes: u64,

    /// Repeats the choices of a run that printed this seed
    #[arg(long, value_name = "S")]
    seed: Option<u64>,

    /// Three nats-servers and streams of three replicas instead of one
    #[arg(long)]
    cluster: bool,

    /// Who writes the streams
    #[arg(long, value_enum, default_value_t = Choice::Alternate)]
    writers: Choice,
}

impl Options {
    /// The rounds: at least two, so that both kinds of streams and both versions have their turn.
    fn rounds(&self, rng: &mut Rng) -> Vec<Round> {
        let whole = Duration::from_secs(60 * self.minutes.max(1));
        let mut count: u32 = 2;
        while whole / count > ROUND_MAX {
            count += 2;
        }
        let rounds = (0..count).map(|number| {
            let writers = match self.writers {
                Choice::Exclusive => Writers::Exclusive,
                Choice::Shared => Writers::Shared,
                Choice::Alternate if number % 2 == 0 => Writers::Exclusive,
                Choice::Alternate => Writers::Shared,
            };
            // Each kind of stream meets each version in four rounds.
            let newer = (number + number / 2).is_multiple_of(2);
            let postgres = if newer {
                PgVersion::V18
            } else {
                PgVersion::V15
            };
            Round {
                number: number + 1,
                length: whole / count,
                versions: Versions {
                    postgres,
                    nats: NatsVersion::Newest,
                },
                writers,
                cluster: self.cluster,
                rng: rng.fork(),
            }
        });
        rounds.collect()
    }
}

/// Runs all rounds, up to the first violation.
pub(crate) fn run(options: &Options) -> Result<()> {
    let seed = options
        .seed
        .unwrap_or_else(|| Rng::from_clock().next_u64() >> 32);
    // As for the tests: a build of one's own, such as one that is not to change meanwhile.
    let program = match std::env::var_os("POSTRIDER_BIN") {
        Some(path) => PathBuf::from(path),
        None => build::postrider()?,
    };
    println!("soak: {} minutes, --seed {seed}", options.minutes);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(all_rounds(options, seed, program))
}

async fn all_rounds(options: &Options, seed: u64, program: PathBuf) -> Result<()> {
    let begun = Instant::now();
    let mut tally = Tally::default();
    let mut failed = None;
    for round in options.rounds(&mut Rng::new(seed)) {
        let number = round.number;
        let result = Box::pin(round.play(&program, seed, &mut tally)).await;
        if let Err(error) = result.with_context(|| format!("in round {number}")) {
            failed = Some(error);
            break;
        }
    }
    tally.print(seed, begun.elapsed());
    match failed {
        Some(error) => Err(error),
        None if tally.findings.is_clean() => Ok(()),
        None => bail!("the guarantee was violated"),
    }
}
