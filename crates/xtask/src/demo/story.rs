//! The seven steps, on a stream that Postrider alone writes.

use anyhow::{Context, Result, ensure};

use super::crash;
use super::line::Line;
use super::look::{self, Numbers, Stream};
use super::shop::{Counts, Event, Shop};
use super::stage::Servers;
use super::{check, heading, print_indented, say};

/// Orders of step 3.
const ORDERS: usize = 20;
/// Orders of step 6, which are stored and not confirmed when the streamer is killed.
const LATE_ORDERS: usize = 3;

/// Makes tables, publication, slot and stream, and starts the streamer.
///
/// # Errors
/// When `postrider` or a server refuses.
pub(super) async fn prepare(servers: &Servers, line: &mut Line) -> Result<Shop> {
    let shop = Shop::open(servers, line.database()).await?;
    println!("\npostrider setup --create-table:");
    print_indented(&line.finish(&["setup", "--create-table"]).await?);
    let pid = line.start(servers, &[]).await?;
    println!("postrider run (pid {pid}) holds the slot {}.", line.slot());
    Ok(shop)
}

/// Tells the story.
///
/// # Errors
/// When a claim does not hold.
pub(super) async fn tell(servers: &mut Servers, line: &mut Line, shop: &mut Shop) -> Result<()> {
    servers.nats.stop().await?;
    println!("nats-server is stopped now: the broker is down.");
    dual_write(servers, line, shop).await?;
    rolled_back(servers, line, shop).await?;
    place_orders(servers, line, shop).await?;
    let during = outage(servers, line, shop).await?;
    servers.nats.start_again().await?;
    delivered(servers, line, shop, &during).await?;
    crash_and_replay(servers, line, shop).await
}

async fn dual_write(servers: &Servers, line: &Line, shop: &mut Shop) -> Result<()> {
    heading(
        "1",
        "A dual write: the order is committed, then its event is published.",
    );
    let error = shop.dual_write(servers, "dual write").await?;
    say(format!("the publish fails: {error}"));
    let numbers = outage_numbers(servers, line, shop).await?;
    check_counts(&numbers, 1, 0, 0)?;
    say("The order exists, no event does, and nothing says that one is owed.");
    Ok(())
}

async fn rolled_back(servers: &Servers, line: &Line, shop: &mut Shop) -> Result<()> {
    heading(
        "2",
        "The outbox: order and event in one transaction, which then fails.",
    );
    let (inside, error) = shop.fail_after_both("rolled back").await?;
    say(format!(
        "inside the transaction: orders={} events={}; then: {error}",
        inside.orders, inside.events
    ));
    ensure!(
        inside
            == Counts {
                orders: 2,
                events: 1
            },
        "the transaction did not see its own rows"
    );
    let numbers = outage_numbers(servers, line, shop).await?;
    check_counts(&numbers, 1, 0, 0)?;
    say("Both rows are gone together.");
    Ok(())
}

async fn place_orders(servers: &Servers, line: &Line, shop: &mut Shop) -> Result<()> {
    heading(
        "3",
        "Twenty orders are placed through the outbox. The broker is still down.",
    );
    for number in 1..=ORDERS {
        shop.place(&format!("item {number}")).await?;
    }
    let numbers = outage_numbers(servers, line, shop).await?;
    check_counts(&numbers, 21, 20, 20)?;
    say("The service noticed nothing. Each order has its event, save the one of step 1.");
    Ok(())
}

/// The broker is down: the streamer has every row and confirms none.
async fn outage(servers: &Servers, line: &Line, shop: &Shop) -> Result<Numbers> {
    heading(
        "4",
        "The streamer has read all of it from the WAL and cannot publish.",
    );
    let (sent, flushed) = look::wait_answered(line, shop).await?;
    let first = shop.commits().first().context("no order was placed")?;
    say(format!(
        "PostgreSQL has sent up to {sent}; first commit at {first}; confirmed up to {flushed}"
    ));
    ensure!(
        !look::is_at_or_before(shop, first, &flushed).await?,
        "the streamer confirmed {flushed}, past the first order at {first}, without a broker"
    );
    let numbers = outage_numbers(servers, line, shop).await?;
    check_counts(&numbers, 21, 20, 20)?;
    ensure!(numbers.unconfirmed_bytes > 0, "no WAL waits");
    say(format!(
        "No order is confirmed, so none is lost: {} bytes of WAL wait for the streamer's word.",
        numbers.unconfirmed_bytes
    ));
    Ok(numbers)
}

async fn delivered(servers: &Servers, line: &Line, shop: &Shop, during: &Numbers) -> Result<()> {
    heading(
        "5",
        "The broker is back. Nobody does anything; the streamer reconnects.",
    );
    look::wait_stored(servers, line, ORDERS as u64).await?;
    look::wait_confirmed(line, shop).await?;
    let numbers = print_numbers(servers, line, shop).await?;
    check_counts(&numbers, 21, 20, 0)?;
    let stream = numbers.stream.context("NATS does not answer")?;
    check_complete(&stream, &shop.events().await?)?;
    let first = stream.rows.first().context("the stream is empty")?;
    let commit = look::commit_of(first)?;
    ensure!(
        look::is_at_or_before(shop, &during.confirmed, commit).await?,
        "{} was confirmed during the outage, before {commit} was stored",
        during.confirmed
    );
    check("messages of the dual write", stream.others, 0)?;
    say("Each event once, in commit order, payloads as in the table; only then confirmed.");
    say("The event of step 1 is not among them: nobody will ever send it.");
    Ok(())
}

async fn crash_and_replay(servers: &Servers, line: &mut Line, shop: &mut Shop) -> Result<()> {
    heading("6", "kill -9 between publish and confirmation.");
    line.stop().await?;
    // The one of step 1 has no event.
    let orders = ORDERS + LATE_ORDERS + 1;
    let killed = crash::before_confirmation(servers, line, shop, LATE_ORDERS, orders).await?;

    heading(
        "7",
        "The streamer is started again, and PostgreSQL replays what is not confirmed.",
    );
    let replay = crash::replay(servers, line, shop, &killed).await?;
    check("copies that went over the wire", replay.copies, 0)?;
    check("delivered", replay.stream.rows.len(), ORDERS + LATE_ORDERS)?;
    say("It read the stream's last message first, and sent nothing that is stored already.");
    say("A relay that marks rows after publishing them sends these three twice.");
    Ok(())
}

/// The stream is the outbox: every row once, in commit order, byte for byte, and none removed.
///
/// # Errors
/// When it is not.
pub(super) fn check_complete(stream: &Stream, events: &[Event]) -> Result<()> {
    check("delivered", stream.rows.len(), events.len())?;
    check("distinct", stream.distinct(), events.len())?;
    let messages = (stream.rows.len() + stream.others) as u64;
    check(
        "last sequence of the stream",
        stream.last_sequence,
        messages,
    )?;
    for (message, event) in stream.rows.iter().zip(events) {
        let id = message.id().unwrap_or_default();
        ensure!(
            id.rsplit(':').next() == Some(event.id.as_str()),
            "message {} has the id {id}, where the table has row {}",
            message.sequence,
            event.id
        );
        ensure!(
            message.payload == event.payload.as_bytes(),
            "message {} does not hold the payload of row {}",
            message.sequence,
            event.id
        );
    }
    Ok(())
}

/// Orders, events, and placed orders that are not confirmed.
///
/// # Errors
/// When there are others.
pub(super) fn check_counts(
    numbers: &Numbers,
    orders: usize,
    events: usize,
    pending: usize,
) -> Result<()> {
    check("orders", numbers.orders, i64::try_from(orders)?)?;
    check("events", numbers.events, i64::try_from(events)?)?;
    check("pending", numbers.pending, i64::try_from(pending)?)
}

/// Reads the numbers and prints them.
///
/// # Errors
/// Those of the servers.
pub(super) async fn print_numbers(servers: &Servers, line: &Line, shop: &Shop) -> Result<Numbers> {
    let numbers = look::numbers(servers, line, shop).await?;
    say(numbers.to_string());
    Ok(numbers)
}

/// The same while NATS must not answer.
async fn outage_numbers(servers: &Servers, line: &Line, shop: &Shop) -> Result<Numbers> {
    let numbers = print_numbers(servers, line, shop).await?;
    ensure!(
        numbers.stream.is_none(),
        "NATS answers although it was stopped"
    );
    Ok(numbers)
}
