//! One round: servers of its own, load, faults, and the check beside them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use postrider_tests::{Checker, Findings, Load, Rng, Servers, Versions, Writers};
use testbed::{Progress, wait_until};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::evidence;
use super::fault::{Fault, Limits};
use super::tally::Tally;
use super::world::{DATABASE, World};

/// From the end of a fault until everything is confirmed again: twice the time after which a dead
/// peer must have been noticed.
const RECOVERY_LIMIT: Duration = Duration::from_secs(240);

/// Time between two looks of the checker.
const LOOK_EVERY: Duration = Duration::from_millis(700);

/// Quiet time between two faults, in milliseconds.
const QUIET_MS: std::ops::Range<u64> = 100..2500;

/// Of a hundred faults so many come two at a time.
const TWICE_PERCENT: u64 = 20;

/// From this length on a round has time for faults that cost a minute.
const PATIENT_FROM: Duration = Duration::from_secs(150);

/// A round as it was drawn.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) number: u32,
    pub(super) length: Duration,
    pub(super) versions: Versions,
    pub(super) writers: Writers,
    pub(super) cluster: bool,
    pub(super) rng: Rng,
}

/// The checker in a task of its own.
struct Watch {
    stop: watch::Sender<bool>,
    violated: watch::Receiver<bool>,
    task: JoinHandle<Checker>,
}

impl Watch {
    fn start(mut checker: Checker) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (violation, violated) = watch::channel(false);
        let task = tokio::spawn(async move {
            while !*stopped.borrow() {
                // A server that is away is looked at later.
                let _ = checker.look().await;
                violation.send_replace(!checker.findings().is_clean());
                tokio::time::sleep(LOOK_EVERY).await;
            }
            checker
        });
        Self {
            stop,
            violated,
            task,
        }
    }

    fn is_violated(&self) -> bool {
        *self.violated.borrow()
    }

    async fn end(self) -> Result<Checker> {
        self.stop.send_replace(true);
        Ok(self.task.await?)
    }
}

impl Round {
    /// Plays it.
    ///
    /// # Errors
    /// A violation, and whatever does not work; evidence is kept then.
    pub(super) async fn play(self, program: &Path, seed: u64, tally: &mut Tally) -> Result<()> {
        println!(
            "\nround {}: {:.0} s, {}{}, {}",
            self.number,
            self.length.as_secs_f64(),
            self.versions,
            if self.cluster { " x 3" } else { "" },
            self.writers.name()
        );
        let number = self.number;
        let mut world = Box::pin(World::start(&self, program)).await?;
        let result = Box::pin(self.disturb(&mut world, tally)).await;
        let clean = result.is_ok() && tally.findings.is_clean();
        if !clean {
            let name = format!("seed-{seed}-round-{number}");
            let report = format!("{result:#?}\n{:#?}\n", tally.findings);
            match Box::pin(evidence::keep(&world, &name, &report)).await {
                Ok(folder) => println!("evidence: {}", folder.display()),
                Err(error) => println!("no evidence could be kept: {error:#}"),
            }
        }
        result?;
        ensure!(clean, "the guarantee was violated");
        Ok(())
    }

    async fn disturb(mut self, world: &mut World, tally: &mut Tally) -> Result<()> {
        let url = world.postgres.url(DATABASE);
        let watch = Watch::start(Checker::start(&world.line, &url, &world.nats_url()));
        let load = Load::start(&url, &world.load(), &mut self.rng);
        let result = Box::pin(self.all_faults(world, &watch, tally)).await;
        // What was found counts, also when the round broke off.
        let mut checker = watch.end().await?;
        let ended = match result {
            Ok(()) => settle(world, load, checker).await,
            Err(error) => {
                let _ = checker.look().await;
                tally.findings.add(checker.findings());
                return Err(error);
            }
        };
        tally.findings.add(&ended?);
        Ok(())
    }

    async fn all_faults(
        &mut self,
        world: &mut World,
        watch: &Watch,
        tally: &mut Tally,
    ) -> Result<()> {
        let begun = Instant::now();
        recovered(world).await?;
        while begun.elapsed() < self.length && !watch.is_violated() {
            tokio::time::sleep(self.rng.millis(QUIET_MS)).await;
            let faults = self.draw();
            let at = begun.elapsed();
            self.apply(world, &faults).await?;
            let recovery = recovered(world).await;
            let names: Vec<String> = faults.iter().map(Fault::name).collect();
            let lengths: Vec<String> = faults
                .iter()
                .map(|fault| format!("{:.1} s", fault.length.as_secs_f64()))
                .collect();
            let recovery = recovery.with_context(|| format!("after {}", names.join(" with ")))?;
            println!(
                "{:>7.1} s  {} for {}; all confirmed {:.1} s after it",
                at.as_secs_f64(),
                names.join(" with "),
                lengths.join(" and "),
                recovery.as_secs_f64()
            );
            tally.fault(&names, recovery);
        }
        Ok(())
    }

    fn draw(&mut self) -> Vec<Fault> {
        let limits = Limits {
            cluster: self.cluster,
            patient: self.length >= PATIENT_FROM,
        };
        let first = Fault::draw(&mut self.rng, limits, None);
        let mut faults = vec![first];
        if self.rng.percent(TWICE_PERCENT) {
            faults.push(Fault::draw(&mut self.rng, limits, Some(first.target)));
        }
        faults
    }

    /// All begin before the first ends.
    async fn apply(&mut self, world: &mut World, faults: &[Fault]) -> Result<()> {
        for (index, fault) in faults.iter().enumerate() {
            Box::pin(fault.begin(world, index == 0)).await?;
            tokio::time::sleep(fault.length).await;
        }
        for fault in faults {
            Box::pin(fault.end(world)).await?;
        }
        Ok(())
    }
}

/// Waits until all that is committed by now is confirmed, and gives back how long that took.
async fn recovered(world: &mut World) -> Result<Duration> {
    let begun = Instant::now();
    let client = world.postgres.connect(DATABASE).await?;
    let row = client
        .query_one("SELECT pg_current_wal_lsn()::text", &[])
        .await?;
    let target: String = row.try_get(0)?;
    let (slot, streamer) = (world.line.slot.clone(), &mut world.streamer);
    let sql = "SELECT confirmed_flush_lsn >= $2::text::pg_lsn, confirmed_flush_lsn::text \
               FROM pg_replication_slots WHERE slot_name = $1";
    let what = format!("everything up to {target} to be confirmed");
    let confirmed = wait_until(RECOVERY_LIMIT, &what, async || {
        if !streamer.is_running() {
            return Ok(Progress::Done(false));
        }
        let row = client.query_one(sql, &[&slot, &target]).await?;
        let (is_there, confirmed): (bool, String) = (row.try_get(0)?, row.try_get(1)?);
        Ok(if is_there {
            Progress::Done(true)
        } else {
            Progress::NotYet(confirmed)
        })
    });
    if !confirmed.await? {
        bail!(
            "the streamer ended by itself:\n{}",
            world.streamer.log_tail()
        );
    }
    Ok(begun.elapsed())
}

/// The end of a round: no more load, everything confirmed, and the last look.
async fn settle(world: &mut World, load: Load, checker: Checker) -> Result<Findings> {
    load.stop().await?;
    recovered(world).await?;
    world.streamer.stop_within(RECOVERY_LIMIT).await?;
    checker.finish().await
}
