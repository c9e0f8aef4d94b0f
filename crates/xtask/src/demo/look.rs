//! Reading the numbers from the servers.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, Result, ensure};
use testbed::{Progress, StoredMessage, read_all, wait_until};

use super::PATIENCE;
use super::line::Line;
use super::shop::Shop;
use super::stage::Servers;

/// What a slot says, and how many of the given commits it has not confirmed.
const SLOT: &str = "
    SELECT s.confirmed_flush_lsn::text,
           pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn)::bigint,
           (SELECT count(*) FROM unnest($2::text[]) AS c (lsn)
            WHERE c.lsn::pg_lsn > s.confirmed_flush_lsn)
    FROM pg_replication_slots AS s WHERE s.slot_name = $1";

/// What the streamer has been sent and what it answered after the time given.
const SENDER: &str = "
    SELECT r.sent_lsn::text, s.confirmed_flush_lsn::text,
           r.sent_lsn >= $2::text::pg_lsn AND r.reply_time > $3::text::timestamptz
    FROM pg_stat_replication AS r
    JOIN pg_replication_slots AS s ON s.active_pid = r.pid
    WHERE s.slot_name = $1";

/// Transactions that PostgreSQL has decoded for a slot and handed to its output plugin so far.
const DECODED: &str = "SELECT total_txns FROM pg_stat_replication_slots WHERE slot_name = $1";

/// The numbers of one moment.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    pub(super) orders: i64,
    pub(super) events: i64,
    /// Placed orders whose commit the slot has not confirmed.
    pub(super) pending: i64,
    pub(super) confirmed: String,
    pub(super) unconfirmed_bytes: i64,
    /// `None`: NATS does not answer.
    pub(super) stream: Option<Stream>,
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "orders={} events={} pending={} confirmed_flush_lsn={} ",
            self.orders, self.events, self.pending, self.confirmed
        )?;
        match &self.stream {
            Some(stream) => write!(
                f,
                "delivered={} distinct={}",
                stream.rows.len(),
                stream.distinct()
            ),
            None => f.write_str("stream=unreachable"),
        }
    }
}

/// What a stream holds.
#[derive(Debug, Clone)]
pub(super) struct Stream {
    /// Messages that came from an outbox.
    pub(super) rows: Vec<StoredMessage>,
    /// Messages of other writers.
    pub(super) others: usize,
    /// The last sequence: as large as the number of messages when none was ever removed.
    pub(super) last_sequence: u64,
}

impl Stream {
    /// How many different events the stream holds.
    pub(super) fn distinct(&self) -> usize {
        let ids: BTreeSet<Option<&str>> = self.rows.iter().map(StoredMessage::id).collect();
        ids.len()
    }
}

/// Reads all numbers.
///
/// # Errors
/// Those of PostgreSQL, and those of a NATS that answers.
pub(super) async fn numbers(servers: &Servers, line: &Line, shop: &Shop) -> Result<Numbers> {
    let counts = shop.counts().await?;
    let commits = shop.commits().to_vec();
    let row = shop
        .client()
        .query_opt(SLOT, &[&line.slot(), &commits])
        .await?
        .with_context(|| format!("there is no slot {}", line.slot()))?;
    Ok(Numbers {
        orders: counts.orders,
        events: counts.events,
        confirmed: row.try_get(0)?,
        unconfirmed_bytes: row.try_get(1)?,
        pending: row.try_get(2)?,
        stream: stream(servers, line.stream()).await?,
    })
}

async fn stream(servers: &Servers, name: &str) -> Result<Option<Stream>> {
    let Ok(client) = servers.nats.connect().await else {
        return Ok(None);
    };
    let jetstream = async_nats::jetstream::new(client);
    let messages = read_all(&jetstream, name).await?;
    let found = jetstream.get_stream(name).await?;
    let state = &found.cached_info().state;
    ensure!(
        state.messages == messages.len() as u64,
        "the stream {name} grew while it was read"
    );
    let total = messages.len();
    let rows: Vec<StoredMessage> = messages
        .into_iter()
        .filter(|message| message.header("Outbox-Position").is_some())
        .collect();
    Ok(Some(Stream {
        others: total - rows.len(),
        rows,
        last_sequence: state.last_sequence,
    }))
}

/// Waits until the stream holds so many messages.
///
/// # Errors
/// When time runs out.
pub(super) async fn wait_stored(servers: &Servers, line: &Line, count: u64) -> Result<()> {
    let what = format!("{count} messages in the stream {}", line.stream());
    wait_until(PATIENCE, &what, async || {
        let jetstream = async_nats::jetstream::new(servers.nats.connect().await?);
        let found = testbed::message_count(&jetstream, line.stream()).await?;
        Ok(Progress::when(found >= count, || {
            format!("{found} of {count}")
        }))
    })
    .await
}

/// Waits until every placed order is confirmed.
///
/// # Errors
/// When time runs out.
pub(super) async fn wait_confirmed(line: &Line, shop: &Shop) -> Result<()> {
    let what = format!("confirmed_flush_lsn to reach {}", shop.last_commit()?);
    let commits = shop.commits().to_vec();
    wait_until(PATIENCE, &what, async || {
        let row = shop
            .client()
            .query_one(SLOT, &[&line.slot(), &commits])
            .await?;
        let (confirmed, pending): (String, i64) = (row.try_get(0)?, row.try_get(2)?);
        Ok(Progress::when(pending == 0, || {
            format!("{confirmed}, {pending} pending")
        }))
    })
    .await
}

/// Waits until PostgreSQL has sent every placed order to the streamer and has had an answer to
/// that. Gives back how far was sent, and how far the answer confirms.
///
/// # Errors
/// When time runs out.
pub(super) async fn wait_answered(line: &Line, shop: &Shop) -> Result<(String, String)> {
    let client = shop.client();
    let now = client
        .query_one("SELECT clock_timestamp()::text", &[])
        .await?;
    let now: String = now.try_get(0)?;
    let last = shop.last_commit()?;
    let what = format!("the streamer to answer after it was sent everything up to {last}");
    wait_until(PATIENCE, &what, async || {
        let row = client
            .query_opt(SENDER, &[&line.slot(), &last, &now])
            .await?;
        let Some(row) = row else {
            return Ok(Progress::NotYet(String::from("no streamer is connected")));
        };
        let (sent, flushed): (String, String) = (row.try_get(0)?, row.try_get(1)?);
        let answered: Option<bool> = row.try_get(2)?;
        Ok(if answered == Some(true) {
            Progress::Done((sent, flushed))
        } else {
            Progress::NotYet(format!("sent up to {sent}, confirmed up to {flushed}"))
        })
    })
    .await
}

/// Whether a WAL position is at or before another.
///
/// # Errors
/// Those of PostgreSQL.
pub(super) async fn is_at_or_before(shop: &Shop, one: &str, other: &str) -> Result<bool> {
    let query = "SELECT $1::text::pg_lsn <= $2::text::pg_lsn";
    Ok(shop
        .client()
        .query_one(query, &[&one, &other])
        .await?
        .try_get(0)?)
}

/// Transactions decoded for the slot so far.
///
/// # Errors
/// Those of PostgreSQL.
pub(super) async fn decoded(line: &Line, shop: &Shop) -> Result<i64> {
    let row = shop.client().query_one(DECODED, &[&line.slot()]).await?;
    Ok(row.try_get(0)?)
}

/// Whether a streamer holds the slot.
///
/// # Errors
/// Those of PostgreSQL; when there is no such slot.
pub(super) async fn slot_is_active(servers: &Servers, database: &str, slot: &str) -> Result<bool> {
    let query = format!("SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'");
    let active = servers.postgres.value(database, &query).await?;
    Ok(active.as_deref() == Some("t"))
}

/// The commit position of a stored row: what stands before the last slash of `Outbox-Position`.
///
/// # Errors
/// When it has none.
pub(super) fn commit_of(message: &StoredMessage) -> Result<&str> {
    let position = message.header("Outbox-Position");
    let commit = position.and_then(|position| Some(position.rsplit_once('/')?.0));
    commit.with_context(|| format!("message {} has no Outbox-Position", message.sequence))
}
