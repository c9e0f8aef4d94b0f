//! One way from an outbox table to a stream, and the streamer on it.

use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use pgoutput::Lsn;
use testbed::{Program, ProgramBuilder, Progress, wait_until};
use tokio_postgres::Client;

use crate::PATIENCE;
use crate::stage::{Proxies, Servers, client, jetstream};

/// How much of the streamer's log a failing test shows.
const LOG_TAIL_LINES: usize = 40;

/// The program under test: `POSTRIDER_BIN`, else the one beside the test's own folder.
///
/// # Errors
/// When there is none.
pub fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("POSTRIDER_BIN") {
        return Ok(PathBuf::from(path));
    }
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(std::path::Path::parent);
    let path = folder
        .context("the test has no folder")?
        .join(format!("postrider{}", std::env::consts::EXE_SUFFIX));
    ensure!(
        path.is_file(),
        "{} is missing: run `cargo build -p postrider` first, or set POSTRIDER_BIN",
        path.display()
    );
    Ok(path)
}

/// Who writes a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// The streamer alone.
    Exclusive,
    /// Others as well.
    Shared,
}

impl Writers {
    /// As `nats.writers` names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }
}

/// How a command ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub stdout: String,
    /// What it wrote to stderr.
    pub stderr: String,
}

/// Database, slot, publication and stream that belong together, and the flags that lead there.
#[derive(Debug)]
pub struct Line {
    program: PathBuf,
    /// The database.
    pub database: String,
    /// The slot; the publication has the same name.
    pub slot: String,
    /// The stream.
    pub stream: String,
    /// Who writes the stream.
    pub writers: Writers,
    postgres_url: String,
    nats_url: String,
    flags: Vec<String>,
    /// For files of the line; it goes with its server, also when the test is killed.
    folder: PathBuf,
}

impl Line {
    /// A line from a new database into the stream `OUTBOX`, nothing set up yet. Slot and
    /// publication are named `postrider`.
    ///
    /// # Errors
    /// When the database cannot be made or the program is missing.
    pub async fn new(servers: &impl Servers, database: &str) -> Result<Self> {
        Self::with_program(servers, database, program()?).await
    }

    /// The same for a program that is elsewhere.
    ///
    /// # Errors
    /// When the database cannot be made.
    pub async fn with_program(
        servers: &impl Servers,
        database: &str,
        program: PathBuf,
    ) -> Result<Self> {
        servers.postgres().create_database(database).await?;
        Ok(Self {
            program,
            database: database.to_owned(),
            slot: String::from("postrider"),
            stream: String::from("OUTBOX"),
            writers: Writers::Exclusive,
            postgres_url: servers.postgres().url(database),
            nats_url: servers.nats_url(),
            flags: Vec::new(),
            folder: servers.postgres().socket_dir().to_path_buf(),
        })
    }

    /// A line from a new database with the recommended outbox table, everything set up.
    ///
    /// # Errors
    /// When `setup` fails.
    pub async fn ready(servers: &impl Servers, database: &str, writers: Writers) -> Result<Self> {
        let line = Self::new(servers, database).await?.writers(writers);
        line.ok(&["setup", "--create-table"]).await?;
        Ok(line)
    }

    /// Says who writes the stream.
    #[must_use]
    pub fn writers(mut self, writers: Writers) -> Self {
        self.writers = writers;
        self.flag("--nats-writers", writers.name())
    }

    /// Another way to the database.
    #[must_use]
    pub fn postgres_url(mut self, url: &str) -> Self {
        self.postgres_url = url.to_owned();
        self
    }

    /// Another way to the broker.
    #[must_use]
    pub fn nats_url(mut self, url: &str) -> Self {
        self.nats_url = url.to_owned();
        self
    }

    /// Both ways through proxies.
    #[must_use]
    pub fn through(mut self, proxies: &Proxies) -> Self {
        self.postgres_url = proxies.postgres_url(&self.database);
        self.nats_url = proxies.nats_url();
        self
    }

    /// Another slot, and a publication of the same name.
    #[must_use]
    pub fn slot(mut self, name: &str) -> Self {
        self.slot = name.to_owned();
        self.flag("--postgres-slot", name)
            .flag("--postgres-publication", name)
    }

    /// Another stream.
    #[must_use]
    pub fn stream(mut self, name: &str) -> Self {
        self.stream = name.to_owned();
        self.flag("--nats-stream", name)
    }

    /// Adds a global flag with its value.
    #[must_use]
    pub fn flag(mut self, flag: &str, value: &str) -> Self {
        self.flags.extend([flag.to_owned(), value.to_owned()]);
        self
    }

    /// Gives it a configuration file of this text, beside the flags.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn config(self, toml: &str) -> Result<Self> {
        let mut file = tempfile::Builder::new();
        let file = file.suffix(".toml").tempfile_in(&self.folder)?;
        let (_, file) = file.keep()?;
        std::fs::write(&file, toml)?;
        Ok(self.flag("--config", &file.display().to_string()))
    }

    /// A call of the program with the line's flags, to be added to.
    #[must_use]
    pub fn command(&self, words: &[&str]) -> ProgramBuilder {
        Program::builder(&self.program)
            .args(["--postgres-url", &self.postgres_url])
            .args(["--nats-url", &self.nats_url])
            .args(&self.flags)
            .args(words)
    }

    /// Runs a command to its end.
    ///
    /// # Errors
    /// When it does not end in time.
    pub async fn finish(&self, words: &[&str]) -> Result<Ended> {
        finish(self.command(words)).await
    }

    /// Runs a command that must end with 0, and gives back its stdout.
    ///
    /// # Errors
    /// When it ends otherwise; the error quotes its output.
    pub async fn ok(&self, words: &[&str]) -> Result<String> {
        let ended = self.finish(words).await?;
        ensure!(
            ended.code == Some(0),
            "`postrider {}` ended with {:?}:\n{}{}",
            words.join(" "),
            ended.code,
            ended.stdout,
            ended.stderr
        );
        Ok(ended.stdout)
    }

    /// Starts `postrider run` and does not wait for anything.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn launch(&self, extra: &[&str]) -> Result<Streamer> {
        let program = self.command(&["run"]).args(extra).spawn()?;
        Ok(Streamer {
            label: format!("{} ({})", self.slot, self.database),
            program,
            tells_its_end: true,
        })
    }

    /// Starts `postrider run` and waits until it holds the slot.
    ///
    /// # Errors
    /// When it ends instead, or does not take the slot in time.
    pub async fn start(&self, servers: &impl Servers) -> Result<Streamer> {
        let mut streamer = self.launch(&[])?;
        self.wait_holds(servers, &mut streamer).await?;
        Ok(streamer)
    }

    /// Waits until a streamer holds the slot.
    ///
    /// # Errors
    /// When the streamer ends, or the slot is not active in time.
    pub async fn wait_holds(&self, servers: &impl Servers, streamer: &mut Streamer) -> Result<i32> {
        let client = client(servers, &self.database).await?;
        let holder = wait_until(PATIENCE, "the streamer to take its slot", async || {
            Ok(match (streamer.is_running(), self.holder(&client).await?) {
                (false, _) => Progress::Done(None),
                (true, Some(pid)) => Progress::Done(Some(pid)),
                (true, None) => Progress::NotYet(String::from("the slot is free")),
            })
        });
        holder.await?.context("the streamer ended at its start")
    }

    /// The backend that holds the slot.
    ///
    /// # Errors
    /// Those of PostgreSQL; when there is no such slot.
    pub async fn holder(&self, client: &Client) -> Result<Option<i32>> {
        let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
        Ok(client.query_one(sql, &[&self.slot]).await?.try_get(0)?)
    }

    /// The slot's `confirmed_flush_lsn`.
    ///
    /// # Errors
    /// Those of PostgreSQL; when there is no such slot.
    pub async fn confirmed(&self, client: &Client) -> Result<Lsn> {
        let sql = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots \
                   WHERE slot_name = $1";
        lsn(client.query_one(sql, &[&self.slot]).await?.try_get(0)?)
    }

    /// Waits until everything that is committed by now is confirmed.
    ///
    /// # Errors
    /// When time runs out.
    pub async fn wait_confirmed(&self, servers: &impl Servers) -> Result<()> {
        self.wait_confirmed_within(servers, PATIENCE).await
    }

    /// The same, within a time.
    ///
    /// # Errors
    /// When time runs out.
    pub async fn wait_confirmed_within(
        &self,
        servers: &impl Servers,
        limit: Duration,
    ) -> Result<()> {
        let client = client(servers, &self.database).await?;
        let target = wal_position(&client).await?;
        let what = format!("confirmed_flush_lsn to reach {target}");
        wait_until(limit, &what, async || {
            let confirmed = self.confirmed(&client).await?;
            Ok(Progress::when(confirmed >= target, || {
                confirmed.to_string()
            }))
        })
        .await
    }

    /// Waits until the stream holds at least so many messages.
    ///
    /// # Errors
    /// When time runs out.
    pub async fn wait_stored(&self, servers: &impl Servers, count: u64) -> Result<()> {
        let jetstream = jetstream(servers).await?;
        let what = format!("{count} messages in the stream {}", self.stream);
        wait_until(PATIENCE, &what, async || {
            let found = testbed::message_count(&jetstream, &self.stream).await?;
            Ok(Progress::when(found >= count, || found.to_string()))
        })
        .await
    }
}

/// Runs a command to its end.
///
/// # Errors
/// When it does not end in time.
async fn finish(command: ProgramBuilder) -> Result<Ended> {
    let mut program = command.spawn()?;
    let code = program.wait_exit(PATIENCE).await?;
    Ok(Ended {
        code,
        stdout: program.stdout_text(),
        stderr: program.stderr_text(),
    })
}

/// The end of the WAL that is written so far.
async fn wal_position(client: &Client) -> Result<Lsn> {
    let row = client
        .query_one("SELECT pg_current_wal_lsn()::text", &[])
        .await?;
    lsn(row.try_get(0)?)
}

fn lsn(text: &str) -> Result<Lsn> {
    text.parse().with_context(|| format!("{text:?}"))
}

/// A running `postrider run`. Its log's end is printed when it is dropped, which the test harness
/// shows for a test that fails.
#[derive(Debug)]
pub struct Streamer {
    label: String,
    program: Program,
    tells_its_end: bool,
}

impl Deref for Streamer {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl DerefMut for Streamer {
    fn deref_mut(&mut self) -> &mut Program {
        &mut self.program
    }
}

impl Streamer {
    /// SIGTERM, and waits until it has ended, which must be with 0.
    ///
    /// # Errors
    /// When it does not end within `limit`, or otherwise.
    pub async fn stop_within(&mut self, limit: Duration) -> Result<()> {
        self.program.terminate()?;
        match self.program.wait_exit(limit).await? {
            Some(0) => Ok(()),
            code => bail!("the streamer ended with {code:?} after SIGTERM, not with 0"),
        }
    }

    /// Its log is not printed in the end.
    pub fn keep_quiet(&mut self) {
        self.tells_its_end = false;
    }

    /// The end of its log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = self.program.stderr_text();
        let rows: Vec<&str> = text.lines().collect();
        let first = rows.len().saturating_sub(LOG_TAIL_LINES);
        rows.get(first..).unwrap_or_default().join("\n  ")
    }
}

impl Drop for Streamer {
    fn drop(&mut self) {
        if self.tells_its_end {
            println!(
                "the log of streamer {} ends:\n  {}",
                self.label,
                self.log_tail()
            );
        }
    }
}
