//! The crash once more, in a stream that others write, too.

use anyhow::{Context, Result};
use async_nats::jetstream::stream::Config;

use super::crash;
use super::line::Line;
use super::shop::Shop;
use super::stage::Servers;
use super::{check, heading, print_indented, say};

/// Orders that are stored and not confirmed when the streamer is killed.
const ORDERS: usize = 5;

/// Where the other service publishes.
const OTHER_SUBJECT: &str = "events.payment.settled";

/// Kills and restarts the streamer of the billing database.
///
/// # Errors
/// When a claim does not hold.
pub(super) async fn tell(servers: &Servers, line: &mut Line) -> Result<()> {
    println!(
        "\nThe same once more in a shared stream: another database, slot and publication, and"
    );
    println!("a stream EVENTS that exists already and that a payment service writes, too.");
    make_stream(servers, line).await?;
    let mut shop = Shop::open(servers, line.database()).await?;
    println!("\npostrider setup --create-table, with --nats-writers shared:");
    print_indented(&line.finish(&["setup", "--create-table"]).await?);

    heading("6b", "kill -9 between publish and confirmation.");
    publish_as_another(servers).await?;
    let killed = crash::before_confirmation(servers, line, &mut shop, ORDERS, ORDERS).await?;
    publish_as_another(servers).await?;

    heading("7b", "The streamer is started again.");
    let replay = crash::replay(servers, line, &shop, &killed).await?;
    check("messages of the other service", replay.stream.others, 2)?;
    check("delivered", replay.stream.rows.len(), ORDERS)?;
    check("copies that went over the wire", replay.copies, 0)?;
    say(format!(
        "the stream holds {} messages: {} of the outbox, {} of the payment service",
        replay.stream.last_sequence,
        replay.stream.rows.len(),
        replay.stream.others
    ));
    say(
        "The last message is another service's, so the streamer read the newest ones back: it went",
    );
    say("on behind the newest mark of what is settled, and left out the rows whose ids it found.");
    Ok(())
}

/// The stream as its owner made it.
async fn make_stream(servers: &Servers, line: &Line) -> Result<()> {
    let jetstream = async_nats::jetstream::new(servers.nats.connect().await?);
    let config = Config {
        name: line.stream().to_owned(),
        subjects: vec![line.subjects().to_owned()],
        ..Config::default()
    };
    jetstream
        .create_stream(config)
        .await
        .with_context(|| format!("cannot make the stream {}", line.stream()))?;
    Ok(())
}

async fn publish_as_another(servers: &Servers) -> Result<()> {
    let jetstream = async_nats::jetstream::new(servers.nats.connect().await?);
    let ack = jetstream.publish(OTHER_SUBJECT, "{}".into()).await?;
    ack.await?;
    Ok(())
}
