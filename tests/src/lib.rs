//! What the tests of the whole share: both servers, the streamer as users run it, writers that
//! load the outbox, and the checks that hold a stream against its table.
//!
//! The tests run the real program. It is the one that `POSTRIDER_BIN` names, or else the one that
//! `cargo build -p postrider` put beside the tests.
//!
//! What is true is asked of the servers, never of the streamer: the order of commits is that of a
//! second replication slot, the [`witness`], and a row counts as stored from the time that the
//! stream itself gives the message.
//!
//! - `POSTRIDER_TEST_PG`, `POSTRIDER_TEST_NATS`: server versions, see the testbed.
//! - `POSTRIDER_TEST_LONG=1`: all rounds of each fault and the full sizes.
//! - `POSTRIDER_TEST_SEED=N`: replays the choices of a test that printed this seed.

#![warn(missing_docs)]

mod book;
pub mod certificates;
mod check;
mod checker;
mod line;
mod load;
mod rng;
mod sampler;
mod scene;
mod stage;
mod stored;
pub mod witness;

pub use book::Findings;
pub use check::{Table, check_once, check_order, check_payloads};
pub use checker::Checker;
pub use line::{Ended, Line, Streamer, Writers, program};
pub use load::{Load, LoadPlan};
pub use rng::Rng;
pub use sampler::{Sample, Sampler};
pub use scene::Scene;
pub use stage::{
    ClusterStage, Proxies, Servers, Stage, Versions, client, for_each_version, jetstream,
};
pub use stored::{Stored, last_sequence, read_from, read_stream};
pub use testbed::{
    Direction, Fault, Nats, NatsBuilder, NatsCluster, NatsVersion, PgVersion, Postgres,
    PostgresBuilder, Program, Progress, Proxy, StopMode, wait_until,
};

use std::time::Duration;

/// How long anything may take that is not itself under test. Generous, for two cores run several
/// servers at once; a test that passes never waits as long.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Whether the long run was asked for.
#[must_use]
pub fn is_long() -> bool {
    std::env::var("POSTRIDER_TEST_LONG").is_ok_and(|value| value == "1")
}

/// The everyday number or the long one.
pub fn everyday_or_long<T>(everyday: T, long: T) -> T {
    if is_long() { long } else { everyday }
}
