//! Holds a stream against its table while both grow, for runs that are too long to be kept in
//! memory.
//!
//! One look takes, in this order: the samples of the slot's confirmation, what the stream has
//! stored since the last look, and what was committed since then. So a message that has no
//! committed row is a phantom, and a row that a sample shows as confirmed must be among the
//! messages.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::ServerAddr;
use async_nats::jetstream::{self, Context as JetStream};
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls};

use crate::book::{Book, Findings};
use crate::line::Line;
use crate::sampler::{Sample, Sampler, unix_ns};
use crate::stored::{Stored, read_from};
use crate::witness::{self, Cursor};

/// Messages that are read at a time. On a busy machine a look may have a long way to the end of the
/// stream; what it has read it keeps, also when it is given up.
const READ_AT_A_TIME: usize = 2000;

/// How long a server may keep a look waiting before it is given up, to be taken later.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// How often the last look is tried.
const LAST_LOOKS_MAX: u32 = 5;

/// A sample is told of so long after it was taken at the most, in nanoseconds: it lies in a list.
const SAMPLE_LATENESS_MAX_NS: i128 = 1_000_000_000;

/// The check of one line. It has connections of its own and survives that the servers go away.
#[derive(Debug)]
pub struct Checker {
    postgres_url: String,
    nats_url: String,
    slot: String,
    stream: String,
    sampler: Sampler,
    client: Option<Client>,
    jetstream: Option<JetStream>,
    next_sequence: u64,
    /// Read, and not yet held against the rows.
    messages: Vec<Stored>,
    cursor: Cursor,
    samples: VecDeque<Sample>,
    book: Book,
}

impl Checker {
    /// Begins with a line whose table is empty, and whose witness has been opened.
    #[must_use]
    pub fn start(line: &Line, postgres_url: &str, nats_url: &str) -> Self {
        Self {
            postgres_url: postgres_url.to_owned(),
            nats_url: nats_url.to_owned(),
            slot: line.slot.clone(),
            stream: line.stream.clone(),
            sampler: Sampler::start(postgres_url, &line.slot),
            client: None,
            jetstream: None,
            next_sequence: 1,
            messages: Vec::new(),
            cursor: Cursor::default(),
            samples: VecDeque::new(),
            book: Book::new(line.writers),
        }
    }

    /// What has been found so far.
    #[must_use]
    pub fn findings(&self) -> &Findings {
        &self.book.findings
    }

    /// Checks what has come since the last look.
    ///
    /// # Errors
    /// When a server does not answer: nothing is wrong then, and nothing is missed by the next
    /// look. Violations are in [`Checker::findings`].
    pub async fn look(&mut self) -> Result<()> {
        let begun = unix_ns()?;
        self.samples.extend(self.sampler.take());
        loop {
            match timeout(ANSWER_LIMIT, self.read_on()).await {
                Ok(Ok(0)) => break,
                Ok(Ok(_)) => {}
                failed => {
                    self.jetstream = None;
                    return failed.context("NATS is mute")?.map(drop);
                }
            }
        }
        match timeout(ANSWER_LIMIT, self.take_rows()).await {
            Ok(Ok(())) => {}
            failed => {
                self.client = None;
                return failed.context("PostgreSQL is mute")?;
            }
        }
        for message in self.messages.drain(..) {
            self.book.store(&message);
        }
        for sample in self.samples.drain(..) {
            self.book.sample(sample);
        }
        self.book.forget(begun - SAMPLE_LATENESS_MAX_NS);
        Ok(())
    }

    /// The last look: everything that was committed must be there.
    ///
    /// # Errors
    /// When a server does not answer.
    pub async fn finish(mut self) -> Result<Findings> {
        let mut looked = self.look().await;
        for _ in 1..LAST_LOOKS_MAX {
            if looked.is_err() {
                looked = self.look().await;
            }
        }
        looked?;
        let client = connected(&mut self.client, &self.postgres_url).await?;
        let row = client.query_one("SELECT count(*) FROM outbox", &[]).await?;
        let in_table = u64::try_from(row.try_get::<_, i64>(0)?)?;
        self.book.close(in_table);
        Ok(self.book.findings)
    }

    /// Reads some more messages, and says how many; none at the end of the stream.
    async fn read_on(&mut self) -> Result<usize> {
        let jetstream = match &self.jetstream {
            Some(jetstream) => jetstream,
            None => {
                let addresses = self.nats_url.split(',').map(str::parse);
                let addresses: Vec<ServerAddr> = addresses.collect::<Result<_, _>>()?;
                let client = async_nats::connect(addresses).await?;
                self.jetstream.insert(jetstream::new(client))
            }
        };
        let (stream, first) = (&self.stream, self.next_sequence);
        let read = read_from(jetstream, stream, first, READ_AT_A_TIME).await?;
        if let Some(last) = read.last() {
            self.next_sequence = last.sequence + 1;
        }
        let count = read.len();
        self.messages.extend(read);
        Ok(count)
    }

    async fn take_rows(&mut self) -> Result<()> {
        let client = connected(&mut self.client, &self.postgres_url).await?;
        let cursor = &mut self.cursor;
        while let Some(rows) = witness::take(client, &self.slot, "outbox", cursor).await? {
            rows.into_iter().for_each(|row| self.book.commit(row));
        }
        Ok(())
    }
}

async fn connected<'a>(client: &'a mut Option<Client>, url: &str) -> Result<&'a Client> {
    if client.as_ref().is_none_or(Client::is_closed) {
        let (new, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(async move {
            // Its end shows in the next use of the client.
            let _ = connection.await;
        });
        *client = Some(new);
    }
    client.as_ref().context("no connection")
}
