//! Writers that load the recommended outbox table.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use crate::rng::Rng;

/// How long a writer waits before it tries a server again that refused it.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// How long one connection attempt may take: a paused server never answers.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// What the writers do.
#[derive(Debug, Clone)]
pub struct LoadPlan {
    /// How many write at a time.
    pub writers: u64,
    /// How many aggregates their rows are about.
    pub aggregates: u64,
    /// The most rows of one transaction; the fewest is one.
    pub rows_max: u64,
    /// Of a hundred transactions so many are rolled back.
    pub rollback_percent: u64,
    /// Of a hundred transactions so many roll back to a savepoint in their middle.
    pub savepoint_percent: u64,
    /// The longest pause of a writer between two transactions, in milliseconds.
    pub pause_max_ms: u64,
}

impl Default for LoadPlan {
    /// Some thousand rows a second at most, from four writers.
    fn default() -> Self {
        Self {
            writers: 4,
            aggregates: 12,
            rows_max: 6,
            rollback_percent: 10,
            savepoint_percent: 15,
            pause_max_ms: 8,
        }
    }
}

/// Running writers. They connect again whenever their connection breaks, until they are stopped.
#[derive(Debug)]
pub struct Load {
    stop: watch::Sender<bool>,
    writers: JoinSet<u64>,
}

impl Load {
    /// Starts them on the database of a libpq URL.
    #[must_use]
    pub fn start(url: &str, plan: &LoadPlan, rng: &mut Rng) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut writers = JoinSet::new();
        for number in 0..plan.writers {
            let writer = Writer {
                url: url.to_owned(),
                plan: plan.clone(),
                number,
                rng: rng.fork(),
                stopped: stopped.clone(),
            };
            writers.spawn(writer.write());
        }
        Self { stop, writers }
    }

    /// Ends them after their current transactions. Gives back how many transactions are known to be
    /// committed; the connection may have broken on some more.
    ///
    /// # Errors
    /// When a writer panicked.
    pub async fn stop(mut self) -> Result<u64> {
        self.stop.send_replace(true);
        let mut committed = 0;
        while let Some(writer) = self.writers.join_next().await {
            committed += writer?;
        }
        Ok(committed)
    }
}

struct Writer {
    url: String,
    plan: LoadPlan,
    number: u64,
    rng: Rng,
    stopped: watch::Receiver<bool>,
}

impl Writer {
    async fn write(mut self) -> u64 {
        let mut committed = 0;
        let mut client: Option<Client> = None;
        while !*self.stopped.borrow() {
            let Some(open) = client.as_ref().filter(|client| !client.is_closed()) else {
                client = connect(&self.url).await.ok();
                if client.is_none() {
                    tokio::time::sleep(RETRY_AFTER).await;
                }
                continue;
            };
            let (statements, commits) = self.transaction(committed);
            // Two round trips, so that other writers commit between.
            let end = if commits { "COMMIT" } else { "ROLLBACK" };
            let result = match open.batch_execute(&statements).await {
                Ok(()) => open.batch_execute(end).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => committed += u64::from(commits),
                Err(_) => client = None,
            }
            tokio::time::sleep(self.rng.millis(0..self.plan.pause_max_ms)).await;
        }
        committed
    }

    /// The statements of a transaction without its end, and whether it is to commit.
    fn transaction(&mut self, number: u64) -> (String, bool) {
        let mut statements = String::from("BEGIN;");
        let rows = self.rng.pick(1..self.plan.rows_max + 1);
        for row in 0..rows {
            statements.push_str(&self.insert(number, row));
        }
        if self.rng.percent(self.plan.savepoint_percent) {
            statements.push_str("SAVEPOINT middle;");
            for row in rows..rows + 2 {
                statements.push_str(&self.insert(number, row));
            }
            statements.push_str("ROLLBACK TO middle;");
            statements.push_str(&self.insert(number, rows + 2));
        }
        (statements, !self.rng.percent(self.plan.rollback_percent))
    }

    fn insert(&mut self, transaction: u64, row: u64) -> String {
        let aggregate = self.rng.pick(0..self.plan.aggregates);
        let (writer, filler) = (self.number, self.rng.pick(0..400));
        format!(
            "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) VALUES ('order', \
             'a{aggregate}', 'changed', jsonb_build_object('writer', {writer}, 'transaction', \
             {transaction}, 'row', {row}, 'filler', repeat('x', {filler})));"
        )
    }
}

/// Connects to a libpq URL; the connection is driven by a task of its own.
async fn connect(url: &str) -> Result<Client> {
    let connecting = tokio::time::timeout(CONNECT_LIMIT, tokio_postgres::connect(url, NoTls));
    let (client, connection) = connecting.await.context("no answer")??;
    tokio::spawn(async move {
        // Its end shows in the next use of the client.
        let _ = connection.await;
    });
    Ok(client)
}
