//! Calls of the program with all flags in the test's own hands: other users, dead hosts, wrong
//! values.

#![allow(dead_code, reason = "each test file uses a part")]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::stream::Config;
use pgoutput::Lsn;
use postrider_tests::{
    Ended, Line, PATIENCE, Program, Progress, Stage, Stored, Versions, program, read_stream,
    wait_until,
};
use tokio_postgres::{Client, SimpleQueryMessage};

/// The newest of the versions under test, for what depends on one server alone or on none.
pub(crate) fn newest() -> Result<Versions> {
    let under_test = testbed::versions_under_test()?;
    Ok(Versions {
        postgres: *under_test.postgres.last().context("no PostgreSQL")?,
        nats: *under_test.nats.last().context("no NATS")?,
    })
}

/// Flags and environment of a call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Caller {
    flags: Vec<String>,
    environment: Vec<(String, String)>,
}

impl Caller {
    /// Both servers of a stage, as superuser of a database.
    pub(crate) fn new(stage: &Stage, database: &str) -> Self {
        Self::at(&stage.postgres.url(database), &stage.nats.url())
    }

    /// Two URLs.
    pub(crate) fn at(postgres: &str, nats: &str) -> Self {
        Self::default()
            .flag("--postgres-url", postgres)
            .flag("--nats-url", nats)
    }

    /// Adds a flag with its value.
    pub(crate) fn flag(mut self, flag: &str, value: &str) -> Self {
        self.flags.extend([flag.to_owned(), value.to_owned()]);
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts a command.
    pub(crate) fn spawn(&self, words: &[&str]) -> Result<Program> {
        let mut call = Program::builder(program()?).args(&self.flags).args(words);
        for (name, value) in &self.environment {
            call = call.env(name, value);
        }
        call.spawn()
    }

    /// Runs a command to its end.
    pub(crate) async fn finish(&self, words: &[&str]) -> Result<Ended> {
        ended(&mut self.spawn(words)?).await
    }

    /// Runs a command that must end with 0, and gives back its stdout.
    pub(crate) async fn ok(&self, words: &[&str]) -> Result<String> {
        let ended = self.finish(words).await?;
        ends_with(&ended, 0, &[])?;
        Ok(ended.stdout)
    }

    /// Runs a command that must end with this code and say all of this.
    pub(crate) async fn refused(&self, words: &[&str], code: i32, texts: &[&str]) -> Result<Ended> {
        let ended = self.finish(words).await?;
        ends_with(&ended, code, texts)?;
        Ok(ended)
    }
}

/// Waits for the end of a program.
pub(crate) async fn ended(program: &mut Program) -> Result<Ended> {
    let code = program.wait_exit(PATIENCE).await?;
    Ok(Ended {
        code,
        stdout: program.stdout_text(),
        stderr: program.stderr_text(),
    })
}

/// Whether it ended with this code and said all of this.
pub(crate) fn ends_with(ended: &Ended, code: i32, texts: &[&str]) -> Result<()> {
    let said = format!("{}{}", ended.stdout, ended.stderr);
    ensure!(
        ended.code == Some(code),
        "ended with {:?}, not {code}:\n{said}",
        ended.code
    );
    for text in texts {
        ensure!(said.contains(text), "{text:?} is not in:\n{said}");
    }
    Ok(())
}

/// Waits until a running program has logged all of this.
pub(crate) async fn wait_log(program: &mut Program, texts: &[&str]) -> Result<()> {
    let what = format!("{texts:?} in the log");
    let seen = wait_until(PATIENCE, &what, async || {
        let log = program.stderr_text();
        if texts.iter().all(|text| log.contains(text)) {
            return Ok(Progress::Done(true));
        }
        Ok(match program.is_running() {
            true => Progress::NotYet(tail(&log)),
            false => Progress::Done(false),
        })
    });
    let seen = seen.await?;
    ensure!(seen, "it ended instead:\n{}", tail(&program.stderr_text()));
    Ok(())
}

/// Waits until a program has ended with this code and said all of this.
pub(crate) async fn wait_end(program: &mut Program, code: i32, texts: &[&str]) -> Result<Ended> {
    let ended = ended(program).await?;
    ends_with(&ended, code, texts)?;
    Ok(ended)
}

/// The last lines of a log.
fn tail(log: &str) -> String {
    const LINES: usize = 20;
    let lines: Vec<&str> = log.lines().collect();
    let first = lines.len().saturating_sub(LINES);
    lines.get(first..).unwrap_or_default().join("\n")
}

/// The dedup ids of the stream `OUTBOX`, in its order.
pub(crate) async fn ids(stage: &Stage) -> Result<Vec<String>> {
    let stored = stored(stage).await?;
    Ok(stored
        .iter()
        .map(|message| message.id().to_owned())
        .collect())
}

/// The messages of the stream `OUTBOX`, in its order.
pub(crate) async fn stored(stage: &Stage) -> Result<Vec<Stored>> {
    read_stream(&stage.jetstream().await?, "OUTBOX").await
}

/// Waits until the stream `OUTBOX` holds these ids, in this order, and no others.
pub(crate) async fn wait_ids(stage: &Stage, wanted: &[&str]) -> Result<()> {
    let jetstream = stage.jetstream().await?;
    wait_until(PATIENCE, &format!("the ids {wanted:?}"), async || {
        // Only asked for in full when it can be true: reading takes a consumer.
        let count = testbed::message_count(&jetstream, "OUTBOX").await?;
        if usize::try_from(count)? < wanted.len() {
            return Ok(Progress::NotYet(format!("{count} messages")));
        }
        let found = ids(stage).await?;
        Ok(Progress::when(found == wanted, || format!("{found:?}")))
    })
    .await
}

/// Inserts so many rows of the recommended outbox table, one transaction each. Gives back a
/// position just before the end of the first of them, see [`commit`].
pub(crate) async fn insert(stage: &Stage, database: &str, count: usize) -> Result<Lsn> {
    let client = stage.client(database).await?;
    let sql = "INSERT INTO outbox (aggregate_type, aggregate_id, type, payload) \
               VALUES ('order', '1', 'placed', '{}')";
    let before = commit_by(&client, sql).await?;
    for _ in 1..count {
        client.batch_execute(sql).await?;
    }
    Ok(before)
}

/// Runs statements in one transaction. Gives back a position just before its commit: as long as
/// nothing behind it is confirmed, the transaction is not.
pub(crate) async fn commit(stage: &Stage, database: &str, sql: &str) -> Result<Lsn> {
    commit_by(&stage.client(database).await?, sql).await
}

async fn commit_by(client: &Client, sql: &str) -> Result<Lsn> {
    let sql = format!("BEGIN; {sql}; SELECT pg_current_wal_insert_lsn(); COMMIT");
    let answers = client.simple_query(&sql).await?;
    let position = answers.iter().find_map(|answer| match answer {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    Ok(position.context("no position")?.parse()?)
}

/// Whether a transaction is not confirmed whose end lies behind this position.
pub(crate) async fn stays_unconfirmed(stage: &Stage, line: &Line, before: Lsn) -> Result<()> {
    let confirmed = line.confirmed(&stage.client(&line.database).await?).await?;
    ensure!(
        confirmed <= before,
        "{confirmed} is confirmed; the row that must stay ends behind {before}"
    );
    Ok(())
}

/// A time within which what has not happened is taken not to happen: several times what the
/// streamer needs, for it is awaited in full.
pub(crate) const QUIET: Duration = Duration::from_secs(2);

/// Dead letters in the order of their parking: id and reason.
pub(crate) async fn dead_letters(stage: &Stage) -> Result<Vec<(String, String)>> {
    let sql = "SELECT row_id, reason FROM postrider.dead_letter ORDER BY id";
    let rows = stage.postgres.rows("shop", sql).await?;
    let cell = |cell: Option<&Option<String>>| cell.cloned().flatten().unwrap_or_default();
    Ok(rows
        .iter()
        .map(|row| (cell(row.first()), cell(row.get(1))))
        .collect())
}

/// Changes the configuration of the stream `OUTBOX`.
pub(crate) async fn edit_stream(stage: &Stage, edit: impl FnOnce(&mut Config)) -> Result<()> {
    let jetstream = stage.jetstream().await?;
    let mut config = jetstream
        .get_stream("OUTBOX")
        .await?
        .cached_info()
        .config
        .clone();
    edit(&mut config);
    jetstream.update_stream(config).await?;
    Ok(())
}
