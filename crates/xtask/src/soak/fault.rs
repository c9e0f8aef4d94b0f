//! One fault: what it does, for how long, and what ends it.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postrider_tests::Rng;
use testbed::{Direction, Fault as Cut, StopMode};

use super::world::{Brokers, World};

/// A fast stop of PostgreSQL and a SIGTERM of the streamer take no longer, whatever NATS does.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// How long either takes when another fault holds it up, which may be as long as a dead peer goes
/// unnoticed.
const HELD_UP_LIMIT: Duration = Duration::from_secs(120);

/// How long a cluster may take to be whole again.
const HEAL_LIMIT: Duration = Duration::from_secs(60);

/// Which process or connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Postgres,
    Nats,
    Streamer,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postgres => "PostgreSQL",
            Self::Nats => "NATS",
            Self::Streamer => "streamer",
        })
    }
}

/// What happens to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `kill -9`, and started again after a while.
    Kill,
    /// Stopped in good order, and started again after a while.
    Restart,
    /// SIGSTOP, and SIGCONT after a while.
    Pause,
    /// The streamer's connections are closed.
    Cut,
    /// Nothing gets through for a while, and then arrives.
    Partition(Direction),
    /// The streamer's connections are swallowed, and closed after a while.
    BlackHole,
    /// The same, and never closed: each side has to find out by itself.
    Forgotten,
    /// New connections are refused for a while, and the old ones closed.
    Refuse,
    /// The stream's leader hands over.
    StepDown,
    /// All servers of the cluster, one after the other.
    Rolling,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill -9",
            Self::Restart => "restart",
            Self::Pause => "pause",
            Self::Cut => "cut connections",
            Self::Partition(Direction::Both) => "partition",
            Self::Partition(_) => "one-way partition",
            Self::BlackHole => "black hole, then reset",
            Self::Forgotten => "black hole for good",
            Self::Refuse => "refused connections",
            Self::StepDown => "leader step-down",
            Self::Rolling => "rolling restart",
        })
    }
}

/// A fault that was chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    pub(super) target: Target,
    pub(super) kind: Kind,
    /// Which of several brokers; all of them for what is done to connections.
    node: usize,
    /// From its begin to its end.
    pub(super) length: Duration,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.target, self.kind)
    }
}

/// What may happen around the choice.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) cluster: bool,
    /// The round is so long that a minute for one fault is no loss.
    pub(super) patient: bool,
}

/// How long most faults last, in milliseconds: from less than a round trip to longer than timeouts.
const SHORT_MS: std::ops::Range<u64> = 0..1500;
const LONG_MS: std::ops::Range<u64> = 1500..8000;
/// Longer than either side waits for a frozen peer.
const VERY_LONG_MS: std::ops::Range<u64> = 35_000..55_000;

impl Fault {
    /// Draws one, at another target than `other`.
    pub(super) fn draw(rng: &mut Rng, limits: Limits, other: Option<Target>) -> Self {
        let targets = [Target::Postgres, Target::Nats, Target::Streamer];
        let mut target = pick(rng, &targets, Target::Nats);
        while Some(target) == other {
            target = pick(rng, &targets, Target::Nats);
        }
        let kind = match target {
            Target::Streamer => pick(
                rng,
                &[Kind::Kill, Kind::Kill, Kind::Pause, Kind::Restart],
                Kind::Kill,
            ),
            Target::Nats if limits.cluster && rng.percent(40) => {
                let kinds = [
                    Kind::StepDown,
                    Kind::StepDown,
                    Kind::StepDown,
                    Kind::Rolling,
                ];
                let kind = pick(rng, &kinds, Kind::StepDown);
                // A second fault has only a moment.
                if other.is_some() {
                    Kind::StepDown
                } else {
                    kind
                }
            }
            Target::Postgres | Target::Nats => {
                let kinds = [
                    Kind::Kill,
                    Kind::Kill,
                    Kind::Restart,
                    Kind::Pause,
                    Kind::Pause,
                    Kind::Cut,
                    Kind::Partition(Direction::Both),
                    Kind::Partition(Direction::ToServer),
                    Kind::Partition(Direction::ToClient),
                    Kind::BlackHole,
                    Kind::Refuse,
                ];
                let kind = pick(rng, &kinds, Kind::Kill);
                let forget = limits.patient && kind == Kind::BlackHole && rng.percent(30);
                if forget { Kind::Forgotten } else { kind }
            }
        };
        let very_long = limits.patient && kind == Kind::Pause && rng.percent(10);
        let length = match (very_long, rng.percent(60)) {
            (true, _) => rng.millis(VERY_LONG_MS),
            (false, true) => rng.millis(SHORT_MS),
            (false, false) => rng.millis(LONG_MS),
        };
        let node = usize::try_from(rng.pick(0..3)).unwrap_or_default();
        Self {
            target,
            kind,
            node,
            length,
        }
    }

    /// Its name in the summary.
    pub(super) fn name(&self) -> String {
        self.to_string()
    }

    /// Lets it begin. `alone` says that no other fault is under way, so that stops are on time.
    ///
    /// # Errors
    /// When it cannot be done, which also is so when a stop takes too long.
    pub(super) async fn begin(&self, world: &mut World, alone: bool) -> Result<()> {
        let begun = match self.target {
            Target::Postgres => self.begin_postgres(world, alone).await,
            Target::Nats => self.begin_nats(world).await,
            Target::Streamer => self.begin_streamer(world, alone).await,
        };
        begun.with_context(|| format!("begin of {self}"))
    }

    async fn begin_postgres(&self, world: &mut World, alone: bool) -> Result<()> {
        match self.kind {
            Kind::Kill => world.postgres.kill9().await,
            Kind::Pause => world.postgres.pause(),
            Kind::Restart => {
                world.postgres.begin_stop(StopMode::Fast)?;
                let limit = if alone { STOP_LIMIT } else { HELD_UP_LIMIT };
                world.postgres.wait_stopped(limit).await
            }
            kind => begin_network(kind, std::slice::from_ref(&world.postgres_proxy)).await,
        }
    }

    async fn begin_nats(&self, world: &mut World) -> Result<()> {
        let stream = world.line.stream.clone();
        match (self.kind, &mut world.brokers) {
            (Kind::Kill, brokers) => brokers.node(self.node)?.kill9().await,
            (Kind::Pause, brokers) => brokers.node(self.node)?.pause(),
            (Kind::Restart, brokers) => brokers.node(self.node)?.stop().await,
            (Kind::StepDown, Brokers::Three(cluster)) => {
                cluster.leader(&stream, HEAL_LIMIT).await?;
                // Without a leader in this moment there is none to step down.
                let _ = cluster.step_down(&stream).await;
                Ok(())
            }
            (Kind::Rolling, Brokers::Three(cluster)) => {
                cluster.rolling_restart(&stream, HEAL_LIMIT).await
            }
            (kind, _) => begin_network(kind, &world.nats_proxies).await,
        }
    }

    async fn begin_streamer(&self, world: &mut World, alone: bool) -> Result<()> {
        let streamer = &mut world.streamer;
        match self.kind {
            Kind::Pause => streamer.pause(),
            Kind::Restart => {
                let limit = if alone { STOP_LIMIT } else { HELD_UP_LIMIT };
                streamer.terminate()?;
                let code = streamer.wait_exit(limit).await?;
                ensure!(
                    code == Some(0),
                    "the streamer ended with {code:?} after SIGTERM"
                );
                Ok(())
            }
            _ => streamer.kill9().await,
        }
    }

    /// Ends it: what was stopped is started, what was closed is open.
    ///
    /// # Errors
    /// When something does not start again.
    pub(super) async fn end(&self, world: &mut World) -> Result<()> {
        let ended = match (self.target, self.kind) {
            (Target::Streamer, Kind::Pause) => world.streamer.resume(),
            (Target::Streamer, _) => world.streamer.start_again(),
            (Target::Postgres, Kind::Pause) => world.postgres.resume(),
            (Target::Postgres, Kind::Kill | Kind::Restart) => world.postgres.start_again().await,
            (Target::Nats, Kind::Pause) => world.brokers.node(self.node)?.resume(),
            (Target::Nats, Kind::Kill | Kind::Restart) => {
                world.brokers.node(self.node)?.start_again().await
            }
            (Target::Postgres, kind) => {
                end_network(kind, std::slice::from_ref(&world.postgres_proxy)).await;
                Ok(())
            }
            (Target::Nats, kind) => {
                end_network(kind, &world.nats_proxies).await;
                Ok(())
            }
        };
        ended.with_context(|| format!("end of {self}"))
    }
}

async fn begin_network(kind: Kind, proxies: &[testbed::Proxy]) -> Result<()> {
    for proxy in proxies {
        match kind {
            Kind::Cut => proxy.cut().await,
            Kind::Partition(direction) => proxy.set(Cut::Stall(direction)),
            Kind::BlackHole | Kind::Forgotten => proxy.set(Cut::BlackHole),
            Kind::Refuse => {
                proxy.set(Cut::Refuse);
                proxy.cut().await;
            }
            _ => {}
        }
    }
    Ok(())
}

async fn end_network(kind: Kind, proxies: &[testbed::Proxy]) {
    for proxy in proxies {
        proxy.set(Cut::Pass);
        if kind == Kind::BlackHole {
            proxy.cut().await;
        }
    }
}

fn pick<T: Copy>(rng: &mut Rng, all: &[T], default: T) -> T {
    let index = usize::try_from(rng.pick(0..all.len() as u64)).unwrap_or_default();
    all.get(index).copied().unwrap_or(default)
}
