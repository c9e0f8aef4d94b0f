//! Faulty histories of the relay machine, each from one seed.
//!
//! A fake PostgreSQL, a fake JetStream and a fake clock drive the real machine. Acks get lost, come
//! late or swapped; publishes vanish; either side dies at any step; the streamer is killed and
//! starts with an empty memory; PostgreSQL forgets confirmations; the broker forgets its newest
//! messages. A checker holds every history against the guarantee: no loss, no phantom, order per
//! key, nothing confirmed early, and progress once the faults stop.
//!
//! A history that breaks a law is cut down to the shortest that still does, and printed as a story.
//!
//! `cargo xtask simulate` runs this. The variables that it sets: `POSTRIDER_SIM_HISTORIES`, how
//! many histories to run; `POSTRIDER_SIM_SEED`, where to begin; `POSTRIDER_SIM_SHRINK=0`, to leave
//! a history as it is; `POSTRIDER_SIM_REPLAY`, the decisions of one history, to run that alone.
//! `POSTRIDER_SIM_TRACE=1` prints the steps of all.

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
mod law;
mod rng;
mod shrink;
mod stream;
mod tape;
mod wire;
mod world;

use std::cell::RefCell;
use std::num::NonZero;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, Once};

use crate::law::{Law, Violation};
use crate::rng::Rng;
use crate::shrink::Shrunk;
use crate::tape::Tape;
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

/// How a history ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Kept(Summary),
    Broken(Violation),
}

/// How a history is run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Manner {
    /// Tell what happens.
    pub(crate) with_story: bool,
    /// The stream acks a row that it does not store, which nothing can make good: a fault for the
    /// simulator to find.
    pub(crate) stream_lies: bool,
}

/// One history, from its beginning to its end.
#[derive(Debug)]
pub(crate) struct History {
    pub(crate) ending: Ending,
    pub(crate) steps: u64,
    /// What was decided, if the source of chance notes it.
    pub(crate) tape: Tape,
    pub(crate) story: Vec<String>,
}

impl History {
    /// Runs the history that `rng` decides.
    pub(crate) fn of(rng: Rng, manner: Manner) -> Self {
        let mut world = World::new(rng, manner);
        let result = quietly(|| world.run());
        let ending = match result {
            Ok(Ok(summary)) => Ending::Kept(summary),
            Ok(Err(violation)) => Ending::Broken(violation),
            Err(panic) => Ending::Broken(Law::OwnAssertions.broken(panic)),
        };
        let steps = world.steps();
        let (story, tape) = world.take_records();
        Self {
            ending,
            steps,
            tape,
            story,
        }
    }
}

thread_local! {
    /// While a history runs on this thread: what it panicked with.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Catches a panic and says what it was and where, instead of printing it.
fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().map(ToString::to_string);
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            let text = text.unwrap_or_default();
            let place = info.location().map(ToString::to_string);
            let text = format!("{text} at {}", place.unwrap_or_default());
            let caught = PANIC
                .with_borrow_mut(|caught| caught.as_mut().map(|caught| caught.clone_from(&text)));
            if caught.is_none() {
                print(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let result = std::panic::catch_unwind(AssertUnwindSafe(work));
    let caught = PANIC.take();
    result.map_err(|_| caught.unwrap_or_default())
}

#[test]
fn every_history_keeps_the_guarantee() {
    if let Ok(text) = std::env::var("POSTRIDER_SIM_REPLAY") {
        replay(&text);
        return;
    }
    let histories = number_from_env("POSTRIDER_SIM_HISTORIES", DEFAULT_HISTORIES);
    let first = number_from_env("POSTRIDER_SIM_SEED", 1);
    let run = Run {
        next: AtomicU64::new(first),
        end: first + histories,
        manner: Manner {
            with_story: std::env::var("POSTRIDER_SIM_TRACE").is_ok(),
            stream_lies: false,
        },
        broken: AtomicBool::new(false),
        total: Mutex::default(),
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let violations: Vec<_> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| run.work())).collect();
        let joined = workers.into_iter().map(|worker| worker.join().unwrap());
        joined.flatten().collect()
    });
    if let Some((seed, violation)) = violations.into_iter().min_by_key(|(seed, _)| *seed) {
        fail(seed, &violation);
    }
    let mut total = run.total.into_inner().unwrap();
    println!("{histories} histories from seed {first}: {total:?}");
    assert!(total.rows > 0, "histories without rows prove nothing");
    if histories >= DEFAULT_HISTORIES {
        total.assert_every_fault_happened();
    }
}

/// Many histories, for all threads together.
struct Run {
    next: AtomicU64,
    end: u64,
    manner: Manner,
    broken: AtomicBool,
    total: Mutex<Summary>,
}

impl Run {
    /// Runs histories until none is left or one broke a law.
    fn work(&self) -> Option<(u64, Violation)> {
        let mut total = Summary::default();
        let mut violation = None;
        while !self.broken.load(Ordering::Relaxed) {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                break;
            }
            let history = History::of(Rng::from_seed(seed), self.manner);
            if self.manner.with_story {
                println!("seed {seed}\n{}", history.story.join("\n"));
            }
            match history.ending {
                Ending::Kept(summary) => total.add(&summary),
                Ending::Broken(broken) => {
                    self.broken.store(true, Ordering::Relaxed);
                    violation = Some((seed, broken));
                }
            }
        }
        self.total.lock().unwrap().add(&total);
        violation
    }
}

/// Says which law broke in the history of this seed, and shows the shortest history that does so.
fn fail(seed: u64, violation: &Violation) {
    println!("seed {seed}: {violation}");
    if number_from_env("POSTRIDER_SIM_SHRINK", 1) != 0 {
        println!("\n{}\n", Shrunk::new(seed, Manner::default()).report());
    }
    panic!("seed {seed}: {violation}");
}

/// Runs one history from its decisions.
fn replay(text: &str) {
    let tape: Tape = text.parse().unwrap_or_else(|fault| panic!("{fault}"));
    let manner = Manner {
        with_story: true,
        stream_lies: false,
    };
    let history = History::of(Rng::replaying(&tape), manner);
    println!("{}", history.story.join("\n"));
    match history.ending {
        Ending::Kept(summary) => println!("no law is broken: {summary:?}"),
        Ending::Broken(violation) => panic!("{violation}"),
    }
}
