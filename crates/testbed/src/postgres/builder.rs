//! How a PostgreSQL server is put together before its first start.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::{Postgres, SUPERUSER, append, server_command, setting};
use crate::account::Account;
use crate::artifacts::PgVersion;
use crate::cache;
use crate::command::run_within;
use crate::install::{PostgresPrograms, find_postgres};
use crate::ports::ReservedPort;
use crate::process::Signal;
use crate::server::Server;

/// How often another port is tried when something took ours between the look and the start.
const PORT_TRIES_MAX: u32 = 5;

/// File names have at most 255 bytes; this leaves room for what is put around it meanwhile.
const TEMPLATE_NAME_MAX_BYTES: usize = 200;

/// How long initdb, or a copy of what it made, may take: a second or two on an idle machine.
const CLUSTER_LIMIT: Duration = Duration::from_secs(3 * 60);

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
    pub(super) fn new() -> Self {
        Self {
            version: PgVersion::V18,
            with_tls: false,
            configuration: String::new(),
            authentication: String::from("trust"),
            host_rules: None,
            files: Vec::new(),
        }
    }

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
        let what = format!("PostgreSQL {} on port {}", self.version, port.number());
        let mut server = Server::new(what, Some(account), Signal::Quit)?;
        let data = server.folder().join("data");
        let mut copy = Command::new("cp");
        copy.arg("-Rp").arg(template.join("data")).arg(&data);
        account.apply(&mut copy);
        tokio::task::spawn_blocking(move || run_within(&mut copy, CLUSTER_LIMIT)).await??;

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
        let command = server_command(&programs.postgres, server.folder());
        server.set_command(command, None);
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
        run_within(&mut command, CLUSTER_LIMIT)
    })
}
