//! Watches a slot's confirmation throughout a test.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use pgoutput::Lsn;
use tokio::sync::watch;
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
struct Sample {
    confirmed: Lsn,
    /// After the answer came, so not before the server read the number.
    taken_at_unix_ns: i128,
}

/// Reads `confirmed_flush_lsn` again and again, from its start to [`Sampler::finish`].
#[derive(Debug)]
pub struct Sampler {
    stop: watch::Sender<bool>,
    task: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    /// Starts it for a slot of the server of a libpq URL. A server that is away is come back to.
    #[must_use]
    pub fn start(url: &str, slot: &str) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (url, slot) = (url.to_owned(), slot.to_owned());
        let task = tokio::spawn(async move {
            let mut samples = Vec::new();
            let mut client = None;
            while !*stopped.borrow() {
                let looking = tokio::time::timeout(ANSWER_LIMIT, look(&url, &slot, &mut client));
                match looking.await {
                    Ok(Ok(sample)) => samples.push(sample),
                    _ => client = None,
                }
                tokio::time::sleep(EVERY).await;
            }
            samples
        });
        Self { stop, task }
    }

    /// Ends it, and checks every sample: each row that was confirmed was in the stream before.
    /// Gives back how many samples were taken.
    ///
    /// # Errors
    /// When a sample shows a row confirmed that the stream lacked at that time.
    pub async fn finish(self, committed: &[Committed], stored: &[Stored]) -> Result<usize> {
        self.stop.send_replace(true);
        let samples = self.task.await?;
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
    let taken_at = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(Sample {
        confirmed: text.parse()?,
        taken_at_unix_ns: i128::try_from(taken_at.as_nanos())?,
    })
}
