//! A line under load and under watch, to which a test does something.

use anyhow::{Result, ensure};
use testbed::{Progress, wait_until};

use crate::PATIENCE;
use crate::check::{Table, check_once, check_order, check_payloads};
use crate::line::{Line, Streamer, Writers};
use crate::load::{Load, LoadPlan};
use crate::rng::Rng;
use crate::sampler::Sampler;
use crate::stage::{Servers, client, jetstream};
use crate::stored::{last_sequence, read_stream};
use crate::witness;

/// A fault may come at any time after the load began, in milliseconds.
const FAULT_AFTER_MS: std::ops::Range<u64> = 50..900;
/// What was killed stays away for up to so long, in milliseconds.
const AWAY_MS: std::ops::Range<u64> = 0..1200;

/// A line under load, watched. However its history goes, in the end the distinct ids of the stream
/// are those of the table, each once, the order of commits is kept, and at no time was a row
/// confirmed that the stream lacked: [`Scene::close`] checks that.
#[derive(Debug)]
pub struct Scene<S> {
    /// The servers, to do something to.
    pub servers: S,
    /// The line between them.
    pub line: Line,
    /// The streamer on it.
    pub streamer: Streamer,
    /// Choices that the seed repeats.
    pub rng: Rng,
    load: Load,
    sampler: Sampler,
}

impl<S: Servers> Scene<S> {
    /// Starts streamer and load. `what` names the test beside its seed.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn open(what: &str, servers: S, writers: Writers) -> Result<Self> {
        let line = Line::ready(&servers, "shop", writers).await?;
        Self::over(what, servers, line, &LoadPlan::default()).await
    }

    /// The same over a line that was made before.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn over(what: &str, servers: S, line: Line, plan: &LoadPlan) -> Result<Self> {
        let mut rng = Rng::printed(&format!("{what}, {}", line.writers.name()));
        witness::open(&client(&servers, &line.database).await?).await?;
        let url = servers.postgres().url(&line.database);
        let sampler = Sampler::start(&url, &line.slot);
        let streamer = line.start(&servers).await?;
        let load = Load::start(&url, plan, &mut rng);
        Ok(Self {
            servers,
            line,
            streamer,
            rng,
            load,
            sampler,
        })
    }

    /// Waits for a random instant.
    pub async fn random_instant(&mut self) {
        tokio::time::sleep(self.rng.millis(FAULT_AFTER_MS)).await;
    }

    /// Keeps what was killed away for a random time, often none.
    pub async fn away(&mut self) {
        if self.rng.percent(60) {
            tokio::time::sleep(self.rng.millis(AWAY_MS)).await;
        }
    }

    /// Waits until more rows are stored than now, so that each round meets a streamer at work.
    ///
    /// # Errors
    /// When none are in time.
    pub async fn wait_progress(&self) -> Result<()> {
        let stream = &self.line.stream;
        let jetstream = jetstream(&self.servers).await?;
        let mut before = None;
        wait_until(PATIENCE, "rows to be stored again", async || {
            let (now, _) = last_sequence(&jetstream, stream).await?;
            let first = *before.get_or_insert(now);
            Ok(Progress::when(now > first, || now.to_string()))
        })
        .await
    }

    /// Ends the load, lets everything settle, and checks it. Gives back how many rows there were.
    ///
    /// # Errors
    /// What of the guarantee does not hold.
    pub async fn close(mut self) -> Result<usize> {
        let committed = self.load.stop().await?;
        self.line.wait_confirmed(&self.servers).await?;
        ensure!(self.streamer.is_running(), "the streamer has ended");
        self.streamer.stop_within(PATIENCE).await?;
        let client = client(&self.servers, &self.line.database).await?;
        let rows = witness::rows(&client, &self.line.slot, "outbox").await?;
        let stored = read_stream(&jetstream(&self.servers).await?, &self.line.stream).await?;
        check_order(&rows, &stored, self.line.writers)?;
        check_once(&stored)?;
        let table = Table::read(&client, "outbox").await?;
        ensure!(table.rows.len() == rows.len(), "table and witness differ");
        check_payloads(&table, &stored)?;
        let samples = self.sampler.finish(&rows, &stored)?;
        println!(
            "{committed} transactions or more, {} rows, {} messages, {samples} samples",
            rows.len(),
            stored.len()
        );
        Ok(rows.len())
    }
}
