//! Faulty histories of the relay machine, each from one seed.
//!
//! A fake PostgreSQL, a fake JetStream and a fake clock drive the real machine. Acks get lost, come
//! late or swapped; publishes vanish; either side dies at any step; the streamer is killed and
//! starts with an empty memory; PostgreSQL forgets confirmations; the broker forgets its newest
//! messages. A checker holds every history against the guarantee: no loss, no phantom, order per
//! key, nothing confirmed early, and progress once the faults stop.
//!
//! `POSTRIDER_SIM_HISTORIES` says how many histories to run, `POSTRIDER_SIM_SEED` where to begin.
//! A violation prints the seed of its history; that seed alone with one history replays it, and
//! `POSTRIDER_SIM_TRACE=1` prints its steps.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

extern crate postrider_outbox as outbox;

mod database;
mod rng;
mod stream;
mod wire;
mod world;

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::world::{Summary, World};

/// Histories when nothing else is asked for: what fits into a debug build's unit tests.
const DEFAULT_HISTORIES: u64 = 1_000;

fn number_from_env(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name}={text:?} is not a number")),
        Err(_) => default,
    }
}

#[test]
fn every_history_keeps_the_guarantee() {
    let histories = number_from_env("POSTRIDER_SIM_HISTORIES", DEFAULT_HISTORIES);
    let first = number_from_env("POSTRIDER_SIM_SEED", 1);
    let trace = std::env::var("POSTRIDER_SIM_TRACE").is_ok();
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let next = AtomicU64::new(first);
    let summaries: Vec<Summary> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut total = Summary::default();
                    loop {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= first + histories {
                            return total;
                        }
                        total.add(&run_one(seed, trace));
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("no violation"))
            .collect()
    });
    let mut total = Summary::default();
    summaries.iter().for_each(|summary| total.add(summary));
    println!("{histories} histories from seed {first}: {total:?}");
    assert!(total.rows > 0, "histories without rows prove nothing");
    if histories >= DEFAULT_HISTORIES {
        total.assert_every_fault_happened();
    }
}

fn run_one(seed: u64, trace: bool) -> Summary {
    let mut world = World::new(seed, trace);
    let result = std::panic::catch_unwind(AssertUnwindSafe(|| world.run()));
    match result {
        Ok(Ok(summary)) => summary,
        Ok(Err(violation)) => panic!("seed {seed}: {violation}"),
        Err(panic) => {
            eprintln!("seed {seed} panicked");
            std::panic::resume_unwind(panic)
        }
    }
}
