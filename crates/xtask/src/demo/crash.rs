//! A streamer that dies after its rows were stored and before it could confirm them.

use anyhow::{Context, Result, ensure};
use async_nats::{Client, Subscriber};
use futures_util::{FutureExt, StreamExt};

use super::line::Line;
use super::look::{self, Stream};
use super::shop::Shop;
use super::stage::Servers;
use super::story::{check_complete, check_counts, print_numbers};
use super::{PATIENCE, say};

/// Holds the confirmation back for longer than the demo takes: the moment between PubAck and
/// confirmation, which lasts milliseconds otherwise, becomes as long as we like.
const HOLD_CONFIRMATION: [&str; 2] = ["--delivery-confirm-delay", "1h"];

/// What the killed streamer left behind.
#[derive(Debug)]
pub(super) struct Killed {
    /// Transactions that were stored and not confirmed.
    transactions: usize,
    /// Orders and events in the tables.
    orders: usize,
    events: usize,
    /// Transactions that PostgreSQL had decoded for the slot so far.
    decoded: i64,
}

/// What the restart did.
#[derive(Debug)]
pub(super) struct Replay {
    /// Rows that were published again.
    pub(super) copies: usize,
    /// The stream afterwards.
    pub(super) stream: Stream,
}

/// Places orders, waits until the stream holds them, and kills the streamer while the slot is
/// still before the first of them. There are `orders_then` orders in the end.
///
/// # Errors
/// When a claim does not hold.
pub(super) async fn before_confirmation(
    servers: &Servers,
    line: &mut Line,
    shop: &mut Shop,
    orders: usize,
    orders_then: usize,
) -> Result<Killed> {
    let before = look::numbers(servers, line, shop).await?;
    let events_then = usize::try_from(before.events)? + orders;
    let before = before.stream.context("NATS does not answer")?;
    let pid = line.start(servers, &HOLD_CONFIRMATION).await?;
    say(format!(
        "the streamer (pid {pid}) runs with {}; {orders} more orders are placed",
        HOLD_CONFIRMATION.join(" ")
    ));
    for number in 1..=orders {
        shop.place(&format!("late item {number}")).await?;
    }
    look::wait_stored(servers, line, before.last_sequence + orders as u64).await?;
    // It has told PostgreSQL since then what may be confirmed.
    look::wait_answered(line, shop).await?;
    let numbers = print_numbers(servers, line, shop).await?;
    check_counts(&numbers, orders_then, events_then, orders)?;
    let stream = numbers.stream.context("NATS does not answer")?;
    let first = stream.rows.iter().rev().nth(orders - 1);
    let first = look::commit_of(first.context("the stream is empty")?)?;
    let decoded = look::decoded(line, shop).await?;

    line.kill9(servers).await?;
    let after = look::numbers(servers, line, shop).await?;
    say(format!(
        "kill -9 {pid}. The stream holds the {orders} rows, the first committed at {first}, and"
    ));
    say(format!(
        "confirmed_flush_lsn is {}: as far as PostgreSQL knows, nobody has them.",
        after.confirmed
    ));
    ensure!(
        look::is_at_or_before(shop, &after.confirmed, first).await?,
        "{} is confirmed, past the row that was to be replayed, {first}",
        after.confirmed
    );
    Ok(Killed {
        transactions: orders,
        orders: orders_then,
        events: events_then,
        decoded,
    })
}

/// Starts the streamer again and waits until everything is confirmed, listening to what it
/// publishes meanwhile.
///
/// # Errors
/// When a claim does not hold.
pub(super) async fn replay(
    servers: &Servers,
    line: &mut Line,
    shop: &Shop,
    killed: &Killed,
) -> Result<Replay> {
    let mut listener = Listener::start(servers, line.subjects()).await?;
    line.start(servers, &[]).await?;
    look::wait_confirmed(line, shop).await?;
    let copies = listener.heard().await?;
    let replayed = look::decoded(line, shop).await? - killed.decoded;
    let numbers = print_numbers(servers, line, shop).await?;
    say(format!(
        "replayed by PostgreSQL: {replayed} transactions; published again: {copies}; pending: {}",
        numbers.pending
    ));
    ensure!(
        replayed >= i64::try_from(killed.transactions)?,
        "PostgreSQL replayed {replayed} transactions, and {} were not confirmed",
        killed.transactions
    );
    check_counts(&numbers, killed.orders, killed.events, 0)?;
    let stream = numbers.stream.context("NATS does not answer")?;
    check_complete(&stream, &shop.events().await?)?;
    Ok(Replay { copies, stream })
}

/// Hears what is published, also what JetStream then drops as a duplicate: a plain subscription
/// gets every message, a stream keeps only the first of each dedup id.
#[derive(Debug)]
struct Listener {
    client: Client,
    rows: Subscriber,
    marks: Subscriber,
    mark: String,
}

impl Listener {
    /// Listens from now on.
    async fn start(servers: &Servers, subjects: &'static str) -> Result<Self> {
        let client = servers.nats.connect().await?;
        let mark = client.new_inbox();
        let mut listener = Self {
            rows: client.subscribe(subjects).await?,
            marks: client.subscribe(mark.clone()).await?,
            client,
            mark,
        };
        listener.catch_up().await?;
        Ok(listener)
    }

    /// Sends itself a message and waits for it. The server handles what a connection sends, and
    /// delivers to it, in order: what was published before has arrived when this one has.
    async fn catch_up(&mut self) -> Result<()> {
        self.client.publish(self.mark.clone(), "".into()).await?;
        let next = tokio::time::timeout(PATIENCE, self.marks.next()).await;
        next.context("NATS does not deliver")?
            .context("the connection to NATS has ended")?;
        Ok(())
    }

    /// How many rows of an outbox were published since the start.
    async fn heard(&mut self) -> Result<usize> {
        self.catch_up().await?;
        let mut count = 0;
        while let Some(Some(message)) = self.rows.next().now_or_never() {
            let headers = message.headers.as_ref();
            if headers.is_some_and(|headers| headers.get("Outbox-Position").is_some()) {
                count += 1;
            }
        }
        Ok(count)
    }
}
