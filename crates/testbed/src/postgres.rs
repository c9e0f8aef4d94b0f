//! A PostgreSQL server.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::account::Account;
use crate::artifacts::PgVersion;
use crate::cache;
use crate::install::{PostgresPrograms, find_postgres, run};
use crate::ports::ReservedPort;
use crate::process::Signal;
use crate::server::Server;
use crate::wait::{Patience, Progress};

/// The superuser of every server; trusted on the Unix socket.
const SUPERUSER: &str = "postgres";

/// How long a start may take: a crash recovery of a loaded test takes seconds on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// How long [`Postgres::stop`] waits.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How often another port is tried when something took ours between the look and the start.
const PORT_TRIES_MAX: u32 = 5;

/// File names have at most 255 bytes; this leaves room for what is put around it meanwhile.
const TEMPLATE_NAME_MAX_BYTES: usize = 200;

/// Set on every server, before what the test sets.
///
/// fsync: a killed process loses nothing that it handed to the kernel, only a power cut would; so
/// the tests run fast and are as strict. Dynamic shared memory lies in the data folder, where
/// nothing of it can be left behind.
const DEFAULT_CONFIGURATION: &str = "\
listen_addresses = '127.0.0.1'
wal_level = 'logical'
max_replication_slots = 20
max_wal_senders = 20
max_prepared_transactions = 10
max_connections = 100
shared_buffers = '32MB'
fsync = off
jit = off
dynamic_shared_memory_type = 'mmap'
logging_collector = off
log_destination = 'stderr'
log_line_prefix = '%m [%p] %q%u@%d %a '
timezone = 'UTC'
log_timezone = 'UTC'
";

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

/// What a [`Postgres`] is to be like.
#[derive(Debug, Clone)]
pub struct PostgresBuilder {
    version: PgVersion,
    with_tls: bool,
    configuration: String,
    authentication: String,
    host_rules: Option<String>,
    files: Vec<(String, Vec<u8>)>,
}

impl PostgresBuilder {
    /// The major version; 18 unless said otherwise.
    #[must_use]
    pub fn version(mut self, version: PgVersion) -> Self {
        self.version = version;
        self
    }

    /// Takes a build that has TLS (the usual build of version 18 has none). To use it, give it
    /// `server.crt` and `server.key` by [`PostgresBuilder::file`] and set `ssl` to `on`.
    #[must_use]
    pub fn tls_capable(mut self) -> Self {
        self.with_tls = true;
        self
    }

    /// Sets a parameter of `postgresql.conf`; the last setting of a name counts.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.configuration.push_str(&setting(name, value));
        self
    }

    /// How TCP clients prove who they are, such as `scram-sha-256`; `trust` unless said otherwise.
    /// The Unix socket trusts everyone.
    #[must_use]
    pub fn auth(mut self, method: &str) -> Self {
        self.authentication = method.to_string();
        self
    }

    /// The rules of `pg_hba.conf` for TCP clients, in place of those by [`PostgresBuilder::auth`].
    #[must_use]
    pub fn host_rules(mut self, lines: &str) -> Self {
        self.host_rules = Some(lines.to_string());
        self
    }

    /// Puts a file into the data folder before the start, readable by the server alone.
    #[must_use]
    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.to_string(), content.into()));
        self
    }

    /// Finds or fetches the server, starts it, and waits until it answers.
    ///
    /// # Errors
    /// When the server can be neither found nor fetched, or does not start; the error then quotes
    /// the end of its log.
    pub async fn start(self) -> Result<Postgres> {
        let (version, with_tls) = (self.version, self.with_tls);
        let prepared = tokio::task::spawn_blocking(move || {
            let account = Account::current()?;
            let programs = find_postgres(version, with_tls, account)?;
            let template = template(&programs, account)?;
            anyhow::Ok((account, programs, template))
        });
        let (account, programs, template) = prepared.await??;
        for _ in 1..PORT_TRIES_MAX {
            match self.try_start(account, &programs, &template).await {
                Err(error) if format!("{error:#}").contains("Address already in use") => {}
                result => return result,
            }
        }
        self.try_start(account, &programs, &template).await
    }

    async fn try_start(
        &self,
        account: Account,
        programs: &PostgresPrograms,
        template: &Path,
    ) -> Result<Postgres> {
        let port = ReservedPort::pick()?;
        let what = format!("PostgreSQL {}", self.version);
        let server = Server::new(what, Some(account), Signal::Quit)?;
        let data = server.folder().join("data");
        let mut copy = Command::new("cp");
        copy.arg("-Rp").arg(template.join("data")).arg(&data);
        account.apply(&mut copy);
        tokio::task::spawn_blocking(move || run(&mut copy)).await??;

        let socket_folder = server.folder().display().to_string();
        let mut configuration = String::from(DEFAULT_CONFIGURATION);
        configuration.push_str(&setting("port", &port.number().to_string()));
        configuration.push_str(&setting("unix_socket_directories", &socket_folder));
        configuration.push_str(&self.configuration);
        append(&data.join("postgresql.conf"), &configuration)?;
        let host_rules = self.host_rules.clone().unwrap_or_else(|| {
            let method = &self.authentication;
            format!(
                "host all all 127.0.0.1/32 {method}\nhost replication all 127.0.0.1/32 {method}"
            )
        });
        let rules = format!("local all all trust\nlocal replication all trust\n{host_rules}\n");
        fs::write(data.join("pg_hba.conf"), rules)?;
        for (name, content) in &self.files {
            let path = data.join(name);
            fs::write(&path, content)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
            account.give(&path)?;
        }
        let mut postgres = Postgres {
            version: self.version,
            program: programs.postgres.clone(),
            port,
            server,
        };
        postgres.start_again().await?;
        Ok(postgres)
    }
}

/// A PostgreSQL server on 127.0.0.1 and a Unix socket, gone when dropped.
///
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
        PostgresBuilder {
            version: PgVersion::V18,
            with_tls: false,
            configuration: String::new(),
            authentication: String::from("trust"),
            host_rules: None,
            files: Vec::new(),
        }
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

    /// The process id of the postmaster.
    ///
    /// # Errors
    /// When the server does not run.
    pub fn pid(&mut self) -> Result<u32> {
        self.server.pid()
    }

    /// Whether the postmaster runs; paused counts as running.
    pub fn is_running(&mut self) -> bool {
        self.server.is_running()
    }

    /// `kill -9` of the postmaster and all its children. Returns when all are gone, so that the
    /// server can be started again at once.
    ///
    /// # Errors
    /// When the server does not run.
    pub async fn kill9(&mut self) -> Result<()> {
        self.server.kill9().await
    }

    /// Stops all processes of the server without ending them: connections stay, nothing answers.
    ///
    /// # Errors
    /// When the server does not run.
    pub fn pause(&mut self) -> Result<()> {
        self.server.pause()
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// When the server does not run.
    pub fn resume(&mut self) -> Result<()> {
        self.server.resume()
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
        self.launch()?;
        self.wait_ready(START_LIMIT).await
    }

    /// Starts a stopped or killed server and does not wait until it answers.
    ///
    /// # Errors
    /// When it runs already.
    pub fn launch(&mut self) -> Result<()> {
        let mut command = Command::new(&self.program);
        command
            .arg("-D")
            .arg(self.data_dir())
            .current_dir(self.server.folder());
        command.env("HOME", self.server.folder()).env("LC_ALL", "C");
        for name in [
            "PGDATA",
            "PGPORT",
            "PGHOST",
            "PGDATABASE",
            "PGUSER",
            "PGTZ",
            "PGOPTIONS",
        ] {
            command.env_remove(name);
        }
        self.server.launch(&command, None)
    }

    /// Waits until the server answers a query.
    ///
    /// # Errors
    /// When it ended instead, or time runs out.
    pub async fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let what = format!(
            "PostgreSQL {} on port {} to answer",
            self.version,
            self.port()
        );
        let mut patience = Patience::new(limit, &what);
        while self.server.is_running() {
            let answer = patience.look(self.ping()).await;
            if answer.with_context(|| self.server.log_tail())?.is_some() {
                return Ok(());
            }
        }
        bail!(
            "PostgreSQL {} ended at its start\n{}",
            self.version,
            self.server.log_tail()
        );
    }

    async fn ping(&self) -> Result<Progress<()>> {
        let client = self.connect("postgres").await?;
        client.simple_query("SELECT 1").await?;
        Ok(Progress::Done(()))
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

    /// All that the server has logged, over all its starts.
    #[must_use]
    pub fn log_text(&self) -> String {
        self.server.log_text()
    }
}

/// A fresh cluster of this server, made once and copied for each server: initdb takes seconds.
fn template(programs: &PostgresPrograms, account: Account) -> Result<PathBuf> {
    let root = cache::writable_root(account)?;
    let program = programs.postgres.display().to_string();
    // Two builds of one version may differ in what initdb makes, so the path is part of the name.
    let name = format!(
        "{}-{program}-uid{}",
        programs.version_text,
        account.server_uid()
    );
    let mut name = name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
    let surplus = name.len().saturating_sub(TEMPLATE_NAME_MAX_BYTES);
    name.drain(..surplus);
    cache::make_once(&root, "templates", &name, |folder| {
        account.give(folder)?;
        let mut command = Command::new(&programs.initdb);
        command
            .arg("-D")
            .arg(folder.join("data"))
            .args(["-U", SUPERUSER, "-A", "trust"]);
        command.args(["-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]);
        command
            .current_dir(folder)
            .env("HOME", folder)
            .env("LC_ALL", "C")
            .env("TZ", "UTC");
        command.env_remove("PGDATA");
        account.apply(&mut command);
        run(&mut command)
    })
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
