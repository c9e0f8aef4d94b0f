//! A PostgreSQL server.

use std::fs::OpenOptions;
use std::io::Write;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::artifacts::PgVersion;
use crate::ports::ReservedPort;
use crate::process::Signal;
use crate::server::{self, Server, Service};
use crate::wait::Progress;

pub use builder::PostgresBuilder;

mod builder;
mod standby;

/// The superuser of every server; trusted on the Unix socket.
const SUPERUSER: &str = "postgres";

/// How long a start may take: a crash recovery of a loaded test takes seconds on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long [`Postgres::stop`] waits.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How a server is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    /// Waits until all clients have gone by themselves.
    Smart,
    /// Ends the clients' sessions, but waits for replication clients to confirm what was sent.
    Fast,
    /// Ends at once, without a checkpoint; the next start recovers as after a crash.
    Immediate,
}

impl StopMode {
    fn signal(self) -> Signal {
        match self {
            Self::Smart => Signal::Terminate,
            Self::Fast => Signal::Interrupt,
            Self::Immediate => Signal::Quit,
        }
    }
}

/// A PostgreSQL server on 127.0.0.1 and a Unix socket, gone when dropped.
///
/// Its process is the postmaster, controlled as that of any [`Server`].
/// `wal_level` is `logical`, the superuser `postgres` needs no password (see
/// [`PostgresBuilder::auth`]).
#[derive(Debug)]
pub struct Postgres {
    version: PgVersion,
    program: PathBuf,
    server: Server,
    port: ReservedPort,
}

impl Postgres {
    /// Describes a server to start.
    #[must_use]
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::new()
    }

    /// The major version.
    #[must_use]
    pub fn version(&self) -> PgVersion {
        self.version
    }

    /// The TCP port on 127.0.0.1; the same over all starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The folder of the Unix socket, for a URL's `host`.
    #[must_use]
    pub fn socket_dir(&self) -> &Path {
        self.server.folder()
    }

    /// The data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.server.folder().join("data")
    }

    /// The folder of the server's programs (`initdb`, and where the build has them `psql`, ...).
    #[must_use]
    pub fn bin_dir(&self) -> &Path {
        self.program.parent().unwrap_or(Path::new("/"))
    }

    /// The libpq URL of a database, as superuser over TCP.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://{SUPERUSER}@127.0.0.1:{}/{}",
            self.port(),
            escape(database)
        )
    }

    /// The libpq URL of a database for another user.
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str, database: &str) -> String {
        let (user, password) = (escape(user), escape(password));
        format!(
            "postgres://{user}:{password}@127.0.0.1:{}/{}",
            self.port(),
            escape(database)
        )
    }

    /// Connects as superuser over the Unix socket, which trusts everyone whatever
    /// [`PostgresBuilder::auth`] says. The connection is driven by a task of its own.
    ///
    /// # Errors
    /// When the server does not accept the connection.
    pub async fn connect(&self, database: &str) -> Result<Client> {
        let mut config = tokio_postgres::Config::new();
        config
            .host_path(self.socket_dir())
            .port(self.port())
            .user(SUPERUSER)
            .dbname(database);
        config
            .application_name("testbed")
            .connect_timeout(Duration::from_secs(5));
        let (client, connection) = config
            .connect(NoTls)
            .await
            .with_context(|| format!("cannot connect to PostgreSQL {}", self.version))?;
        tokio::spawn(async move {
            // Its end shows in the next use of the client.
            let _ = connection.await;
        });
        Ok(client)
    }

    /// Makes a database.
    ///
    /// # Errors
    /// Those of the server.
    pub async fn create_database(&self, name: &str) -> Result<()> {
        self.sql(
            "postgres",
            &format!("CREATE DATABASE \"{}\"", name.replace('"', "\"\"")),
        )
        .await
    }

    /// Runs statements, separated by semicolons, in a database on a new connection.
    ///
    /// # Errors
    /// Those of the server.
    pub async fn sql(&self, database: &str, statements: &str) -> Result<()> {
        let client = self.connect(database).await?;
        client
            .batch_execute(statements)
            .await
            .with_context(|| excerpt(statements))
    }

    /// Runs a query on a new connection and gives back its rows as text, NULL as `None`.
    ///
    /// # Errors
    /// Those of the server.
    pub async fn rows(&self, database: &str, query: &str) -> Result<Vec<Vec<Option<String>>>> {
        let client = self.connect(database).await?;
        let messages = client
            .simple_query(query)
            .await
            .with_context(|| excerpt(query))?;
        let rows = messages.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(
                (0..row.len())
                    .map(|column| row.get(column).map(String::from))
                    .collect(),
            ),
            _ => None,
        });
        Ok(rows.collect())
    }

    /// The first column of the first row of a query, as text; `None` for NULL.
    ///
    /// # Errors
    /// Those of the server, and when the query gives no row.
    pub async fn value(&self, database: &str, query: &str) -> Result<Option<String>> {
        let rows = self.rows(database, query).await?;
        let first = rows
            .into_iter()
            .next()
            .with_context(|| format!("no row: {query}"))?;
        Ok(first.into_iter().next().flatten())
    }

    /// Stops the server and waits until it is gone, at most a minute.
    ///
    /// # Errors
    /// When it does not run, or does not stop in that time: a fast stop waits for a replication
    /// client to confirm.
    pub async fn stop(&mut self, mode: StopMode) -> Result<()> {
        self.server
            .end_by(mode.signal(), STOP_LIMIT)
            .await
            .map(drop)
    }

    /// Tells the server to stop and does not wait.
    ///
    /// # Errors
    /// When it does not run.
    pub fn begin_stop(&mut self, mode: StopMode) -> Result<()> {
        self.server.signal(mode.signal())
    }

    /// Waits until a server that was told to stop is gone.
    ///
    /// # Errors
    /// When it still runs after `limit`.
    pub async fn wait_stopped(&mut self, limit: Duration) -> Result<()> {
        self.server.wait_exit(limit).await.map(drop)
    }

    /// Starts a stopped or killed server on the same port and data, and waits until it answers.
    ///
    /// # Errors
    /// When it runs already or does not start.
    pub async fn start_again(&mut self) -> Result<()> {
        self.server.launch()?;
        self.wait_ready(START_LIMIT).await
    }

    /// Waits until the server answers a query.
    ///
    /// # Errors
    /// When it ended instead, or time runs out.
    pub async fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        server::wait_ready(self, limit).await
    }

    /// A fast stop and a start.
    ///
    /// # Errors
    /// Those of [`Postgres::stop`] and [`Postgres::start_again`].
    pub async fn restart(&mut self) -> Result<()> {
        self.stop(StopMode::Fast).await?;
        self.start_again().await
    }

    /// Sets a parameter in `postgresql.conf` over earlier ones; takes effect with
    /// [`Postgres::reload`] or the next start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn append_conf(&self, name: &str, value: &str) -> Result<()> {
        append(
            &self.data_dir().join("postgresql.conf"),
            &setting(name, value),
        )
    }

    /// Makes the server read its configuration again (it does so a moment later).
    ///
    /// # Errors
    /// When it does not run.
    pub fn reload(&mut self) -> Result<()> {
        self.server.signal(Signal::Hangup)
    }
}

impl Service for Postgres {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    async fn ping(&self) -> Result<Progress<()>> {
        let client = self.connect("postgres").await?;
        client.simple_query("SELECT 1").await?;
        Ok(Progress::Done(()))
    }
}

impl Deref for Postgres {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl DerefMut for Postgres {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.server
    }
}

/// Variables of libpq that would lead a server astray.
const LIBPQ_VARIABLES: [&str; 7] = [
    "PGDATA",
    "PGPORT",
    "PGHOST",
    "PGDATABASE",
    "PGUSER",
    "PGTZ",
    "PGOPTIONS",
];

/// What starts the server of this folder, whose data lies below it.
fn server_command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("-D")
        .arg(folder.join("data"))
        .current_dir(folder);
    command.env("HOME", folder).env("LC_ALL", "C");
    for name in LIBPQ_VARIABLES {
        command.env_remove(name);
    }
    command
}

/// A line of `postgresql.conf`.
fn setting(name: &str, value: &str) -> String {
    format!(
        "{name} = '{}'\n",
        value.replace('\\', "\\\\").replace('\'', "''")
    )
}

fn append(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .append(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}

fn escape(part: &str) -> String {
    utf8_percent_encode(part, NON_ALPHANUMERIC).to_string()
}

/// The beginning of a statement, for an error.
fn excerpt(statements: &str) -> String {
    let start: String = statements.trim().chars().take(200).collect();
    format!("in the SQL: {start}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_quoted() {
        assert_eq!(setting("a", "it's C:\\x"), "a = 'it''s C:\\\\x'\n");
    }
}
