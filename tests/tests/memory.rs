//! Memory stays flat, however large a transaction is and however long the broker is away.

use std::time::Duration;

use anyhow::{Result, ensure};
use postrider_tests::{
    Line, PATIENCE, Stage, Streamer, Versions, Writers, everyday_or_long, for_each_version,
    last_sequence,
};

/// The most resident memory that the streamer may ever have had.
const PEAK_MAX_BYTES: u64 = 64 * 1024 * 1024;

/// How NATS is away in the middle of the transaction.
#[derive(Debug, Clone, Copy)]
enum Away {
    Down,
    Mute,
}

/// The way of a row differs with the writers only behind the window, which the everyday size of a
/// shared stream still fills many times over.
fn rows(writers: Writers) -> u64 {
    match writers {
        Writers::Exclusive => everyday_or_long(200_000, 1_000_000),
        Writers::Shared => everyday_or_long(100_000, 1_000_000),
    }
}

fn away_for() -> Duration {
    Duration::from_secs(everyday_or_long(10, 60))
}

fn check_peak(streamer: &mut Streamer) -> Result<()> {
    let peak = streamer.rss_peak_bytes()?;
    println!("peak resident memory: {} KiB", peak / 1024);
    ensure!(peak < PEAK_MAX_BYTES, "{peak} bytes resident");
    Ok(())
}

async fn stays_small(versions: Versions, writers: Writers, away: Away) -> Result<()> {
    let rows = rows(writers);
    let mut stage = Stage::start(versions).await?;
    let line = Line::ready(&stage, "shop", writers).await?;
    let mut streamer = line.start(&stage).await?;
    let client = stage.client("shop").await?;
    let sql = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) SELECT 'order', \
         'a' || n % 1000, 'placed', jsonb_build_object('n', n, 'filler', repeat('x', 200)) \
         FROM generate_series(1, {rows}) AS n"
    );
    client.batch_execute(&sql).await?;
    line.wait_stored(&stage, rows / 20).await?;
    let (_, before) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
    ensure!(before < rows, "all stored before NATS went away");
    match away {
        Away::Down => stage.nats.kill9().await?,
        Away::Mute => stage.nats.pause()?,
    }
    // The outage itself: there is nothing to wait for but its length.
    tokio::time::sleep(away_for()).await;
    check_peak(&mut streamer)?;
    match away {
        Away::Down => stage.nats.start_again().await?,
        Away::Mute => stage.nats.resume()?,
    }
    let limit = everyday_or_long(PATIENCE, 10 * PATIENCE);
    line.wait_confirmed_within(&stage, limit).await?;
    check_peak(&mut streamer)?;
    let (_, stored) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
    ensure!(stored == rows, "{stored} of {rows} stored");
    Ok(())
}

#[tokio::test]
async fn a_huge_transaction_is_not_held_in_memory_though_nats_goes_down_in_it() -> Result<()> {
    for_each_version(async |versions| stays_small(versions, Writers::Exclusive, Away::Down).await)
        .await
}

#[tokio::test]
async fn nor_is_one_into_a_shared_stream_though_nats_falls_silent_in_its_middle() -> Result<()> {
    for_each_version(async |versions| stays_small(versions, Writers::Shared, Away::Mute).await)
        .await
}

/// The most resident memory with rows that are nearly as large as a message may be.
const LARGE_PEAK_MAX_BYTES: u64 = 128 * 1024 * 1024;

/// Below the recommended table's own limit, and below NATS' with the headers.
const LARGE_PAYLOAD_BYTES: u64 = 890_000;

async fn stays_small_with_large_rows(versions: Versions, away: Away) -> Result<()> {
    let rows = everyday_or_long(300, 2000);
    let mut stage = Stage::start(versions).await?;
    let line = Line::ready(&stage, "shop", Writers::Exclusive).await?;
    let mut streamer = line.start(&stage).await?;
    let client = stage.client("shop").await?;
    let sql = format!(
        "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) SELECT 'order', \
         'a' || n % 7, 'placed', jsonb_build_object('n', n, 'filler', \
         repeat('x', {LARGE_PAYLOAD_BYTES})) FROM generate_series(1, {rows}) AS n"
    );
    client.batch_execute(&sql).await?;
    line.wait_stored(&stage, rows / 20).await?;
    let (_, before) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
    ensure!(before < rows, "all stored before NATS went away");
    match away {
        Away::Down => stage.nats.stop().await?,
        Away::Mute => stage.nats.pause()?,
    }
    // The outage itself: there is nothing to wait for but its length.
    tokio::time::sleep(Duration::from_secs(everyday_or_long(8, 120))).await;
    match away {
        Away::Down => stage.nats.start_again().await?,
        Away::Mute => stage.nats.resume()?,
    }
    line.wait_confirmed_within(&stage, everyday_or_long(PATIENCE, 4 * PATIENCE))
        .await?;
    let peak = streamer.rss_peak_bytes()?;
    println!("{away:?}: peak resident memory: {} KiB", peak / 1024);
    ensure!(peak < LARGE_PEAK_MAX_BYTES, "{peak} bytes resident");
    let (_, stored) = last_sequence(&stage.jetstream().await?, &line.stream).await?;
    ensure!(stored == rows, "{stored} of {rows} stored");
    Ok(())
}

#[tokio::test]
async fn rows_of_900_kb_are_not_piled_up_while_nats_is_away() -> Result<()> {
    for_each_version(async |versions| {
        stays_small_with_large_rows(versions, Away::Down).await?;
        stays_small_with_large_rows(versions, Away::Mute).await
    })
    .await
}
