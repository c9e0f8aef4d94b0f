//! Watches a slot's confirmation throughout a test.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use pgoutput::Lsn;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

use crate::stored::Stored;
use crate::witness::Committed;

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(10);

/// How long a server may keep the sampler waiting before it connects anew.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

const CONFIRMED: &str =
    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1";

/// What a slot had confirmed at some time.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    /// Its `confirmed_flush_lsn`.
    pub confirmed: Lsn,
    /// After the answer came, so not before the server read the number.
    pub taken_at_unix_ns: i128,
}

/// Reads `confirmed_flush_lsn` again and again, from its start to its drop.
#[derive(Debug)]
pub struct Sampler {
    samples: Arc<Mutex<Vec<Sample>>>,
    task: JoinHandle<()>,
}

impl Sampler {
    /// Starts it for a slot of the server of a libpq URL. A server that is away is come back to.
    #[must_use]
    pub fn start(url: &str, slot: &str) -> Self {
        let samples: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let (url, slot, taken) = (url.to_owned(), slot.to_owned(), Arc::clone(&samples));
        let task = tokio::spawn(async move {
            let mut client = None;
            let mut last = None;
            loop {
                let looking = tokio::time::timeout(ANSWER_LIMIT, look(&url, &slot, &mut client));
                match looking.await {
                    // The first sight of a position is the strictest.
                    Ok(Ok(sample)) if last != Some(sample.confirmed) => {
                        last = Some(sample.confirmed);
                        let mut samples = taken.lock().unwrap_or_else(PoisonError::into_inner);
                        samples.push(sample);
                    }
                    Ok(Ok(_)) => {}
                    _ => client = None,
                }
                tokio::time::sleep(EVERY).await;
            }
        });
        Self { samples, task }
    }

    /// The samples since the last call; of those that show the same position, the first.
    #[must_use]
    pub fn take(&self) -> Vec<Sample> {
        let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut samples)
    }

    /// Ends it, and checks every sample: each row that was confirmed was in the stream before.
    /// Gives back how many samples there were.
    ///
    /// # Errors
    /// When a sample shows a row confirmed that the stream lacked at that time.
    pub fn finish(self, committed: &[Committed], stored: &[Stored]) -> Result<usize> {
        let samples = self.take();
        ensure!(!samples.is_empty(), "not one sample was taken");
        let mut first_stored: HashMap<&str, i128> = HashMap::new();
        for message in stored {
            let at = first_stored
                .entry(message.id())
                .or_insert(message.stored_at_unix_ns);
            *at = message.stored_at_unix_ns.min(*at);
        }
        // For each committed row, when the last of it and all before it was stored.
        let mut all_stored_at = i128::MIN;
        let mut prefix = Vec::with_capacity(committed.len());
        for row in committed {
            let at = first_stored.get(row.id.as_str());
            let at = at.with_context(|| format!("row {} is not in the stream", row.id))?;
            all_stored_at = all_stored_at.max(*at);
            prefix.push((row, all_stored_at));
        }
        for sample in &samples {
            let confirmed = prefix.partition_point(|(row, _)| row.end_lsn <= sample.confirmed);
            let Some((row, stored_at)) = confirmed.checked_sub(1).and_then(|at| prefix.get(at))
            else {
                continue;
            };
            ensure!(
                *stored_at <= sample.taken_at_unix_ns,
                "{} was confirmed, with it row {} and all before, {} us before the stream had all",
                sample.confirmed,
                row.id,
                (stored_at - sample.taken_at_unix_ns) / 1000
            );
        }
        Ok(samples.len())
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn look(url: &str, slot: &str, client: &mut Option<Client>) -> Result<Sample> {
    if client.as_ref().is_none_or(Client::is_closed) {
        let (new, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(async move {
            // Its end shows in the next use of the client.
            let _ = connection.await;
        });
        *client = Some(new);
    }
    let client = client.as_ref().context("no connection")?;
    let row = client.query_one(CONFIRMED, &[&slot]).await?;
    let text: &str = row.try_get(0)?;
    Ok(Sample {
        confirmed: text.parse()?,
        taken_at_unix_ns: unix_ns()?,
    })
}

/// The clock that all processes of this machine share, in nanoseconds since 1970.
pub(crate) fn unix_ns() -> Result<i128> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(i128::try_from(since.as_nanos())?)
}
