//! `cargo xtask demo`: the story of the outbox pattern, told by real servers.
//!
//! Seven steps break the way from an order to its event on purpose. Every number that is printed
//! was read from PostgreSQL or NATS a moment before, and every step checks what it prints: a claim
//! that does not hold ends the demo with an error.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;

mod crash;
mod keep;
mod line;
mod look;
mod shared;
mod shop;
mod stage;
mod story;

use crate::build;
use line::Line;
use stage::Servers;

/// How long anything may take that takes well under a second on an idle machine. Reconnecting to a
/// broker that was down comes with a backoff of some seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `cargo xtask demo`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Leaves servers and streamers running until Ctrl-C, and says how to use them
    #[arg(long)]
    keep: bool,
}

/// Builds the program, then tells the story.
pub(crate) fn run(options: &Options) -> Result<()> {
    let begun = Instant::now();
    println!("Postrider demo: from an outbox table in PostgreSQL into a NATS JetStream stream.\n");
    println!("  building the program: cargo build -p postrider");
    let program = build::postrider()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start a runtime")?;
    runtime.block_on(tell(options, program, begun))
}

/// All of it; whatever fails, the streamers' last words are printed.
async fn tell(options: &Options, program: PathBuf, begun: Instant) -> Result<()> {
    let mut servers = Box::pin(Servers::start()).await?;
    let mut shop_line = Line::for_shop(&servers, program.clone());
    let mut billing_line = Line::for_billing(&servers, program)?;
    let told = async {
        let mut shop = story::prepare(&servers, &mut shop_line).await?;
        story::tell(&mut servers, &mut shop_line, &mut shop).await?;
        shared::tell(&servers, &mut billing_line).await?;
        lag_table(&servers, &[&shop_line, &billing_line]).await
    };
    if let Err(error) = told.await {
        for line in [&shop_line, &billing_line] {
            if let Some(tail) = line.log_tail() {
                eprintln!("\n{tail}");
            }
        }
        return Err(error);
    }
    println!(
        "\nEvery number above was checked. That took {:.0} s.",
        begun.elapsed().as_secs_f64()
    );
    if options.keep {
        keep::until_interrupted(&servers, &[&shop_line, &billing_line]).await?;
    }
    Ok(())
}

/// What `postrider status` says at the end, checked.
async fn lag_table(servers: &Servers, lines: &[&Line]) -> Result<()> {
    let jetstream = async_nats::jetstream::new(servers.nats.connect().await?);
    for line in lines {
        println!("\npostrider status, slot {}:", line.slot());
        let before = slot_words(servers, line).await?;
        let table = line.finish(&["status"]).await?;
        print_indented(&table);
        // A keepalive may move the slot between two looks.
        let after = slot_words(servers, line).await?;
        let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
        let messages = testbed::message_count(&jetstream, line.stream()).await?;
        let holds = |texts: &[String]| texts.iter().all(|text| table.contains(text));
        let counts = [
            format!(" messages {messages}, "),
            "dead letters 0".to_owned(),
        ];
        anyhow::ensure!(
            holds(&counts) && (holds(&before) || holds(&after)),
            "this table does not say {counts:?} and {after:?}"
        );
    }
    Ok(())
}

/// What the table must say of the slot: who holds it, and what is confirmed.
async fn slot_words(servers: &Servers, line: &Line) -> Result<Vec<String>> {
    let sql = format!(
        "SELECT ' backend ' || active_pid || ' ', ' confirmed ' || confirmed_flush_lsn || ' ' \
         FROM pg_replication_slots WHERE slot_name = '{}'",
        line.slot()
    );
    let rows = servers.postgres.rows(line.database(), &sql).await?;
    Ok(rows.into_iter().flatten().flatten().collect())
}

/// The output of a command, set apart from ours.
fn print_indented(text: &str) {
    for row in text.lines() {
        println!("     {row}");
    }
}

/// The heading of a step.
fn heading(number: &str, title: &str) {
    println!("\n{number}. {title}");
}

/// A line below the heading.
fn say(text: impl AsRef<str>) {
    println!("   {}", text.as_ref());
}

/// What a step claims, checked.
///
/// # Errors
/// When the number is another.
fn check<T: PartialEq + std::fmt::Display>(what: &str, found: T, wanted: T) -> Result<()> {
    anyhow::ensure!(
        found == wanted,
        "a claim of this step does not hold: {what} is {found}, expected {wanted}"
    );
    Ok(())
}
