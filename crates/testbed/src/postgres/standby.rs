//! A streaming standby of a running primary.
//!
//! It begins as a copy of the primary's data folder, taken between `pg_backup_start` and
//! `pg_backup_stop` (manual, "Making a Base Backup Using the Low Level API"), which needs no
//! `pg_basebackup` and works the same on every version. The log comes over the connection, from a
//! physical slot that was made first.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio_postgres::Client;

use super::{Postgres, SUPERUSER, append, server_command, setting};
use crate::account::Account;
use crate::artifacts::PgVersion;
use crate::ports::ReservedPort;
use crate::process::Signal;
use crate::server::Server;
use crate::wait::{Patience, Progress};

/// What of a data folder a standby must not take over or need not (manual, same place).
const FOLDERS_LEFT_EMPTY: [&str; 7] = [
    "pg_dynshmem",
    "pg_notify",
    "pg_replslot",
    "pg_serial",
    "pg_snapshots",
    "pg_stat_tmp",
    "pg_subtrans",
];
const FILES_LEFT_OUT: [&str; 3] = ["postmaster.pid", "postmaster.opts", "backup_label"];
/// Its segments come over the connection; its folders are needed.
const WAL_FOLDER: &str = "pg_wal";

/// How long `pg_promote` may take: the end of recovery writes a checkpoint.
const PROMOTE_LIMIT: Duration = Duration::from_secs(60);

/// From this version on logical slots can be copied to a standby.
const FIRST_WITH_FAILOVER_SLOTS: PgVersion = PgVersion::V17;

impl Postgres {
    /// Starts a standby that streams from this server through a physical slot named `name`, and
    /// waits until it answers queries. From version 17 on it also copies failover slots.
    ///
    /// # Errors
    /// When the data cannot be copied, or the standby does not start.
    pub async fn start_standby(&self, name: &str) -> Result<Self> {
        let account = Account::current()?;
        let port = ReservedPort::pick()?;
        let what = format!(
            "standby of PostgreSQL {} on port {}",
            self.version,
            port.number()
        );
        let mut server = Server::new(what, Some(account), Signal::Quit)?;
        let data = server.folder().join("data");

        let client = self.connect("postgres").await?;
        let sql = "SELECT pg_create_physical_replication_slot($1, true)";
        client.execute(sql, &[&name]).await?;
        let label = copy_running(&client, self.version, &self.data_dir(), &data, account).await?;
        fs::write(data.join("backup_label"), label)?;
        account.give(&data.join("backup_label"))?;
        fs::write(data.join("standby.signal"), "")?;
        account.give(&data.join("standby.signal"))?;

        let socket_folder = server.folder().display().to_string();
        let mut configuration = setting("port", &port.number().to_string());
        configuration.push_str(&setting("unix_socket_directories", &socket_folder));
        configuration.push_str(&setting("primary_slot_name", name));
        configuration.push_str(&setting("hot_standby_feedback", "on"));
        let mut primary = format!(
            "host={} port={} user={SUPERUSER} application_name={name}",
            self.socket_dir().display(),
            self.port()
        );
        if self.version >= FIRST_WITH_FAILOVER_SLOTS {
            primary.push_str(" dbname=postgres");
            configuration.push_str(&setting("sync_replication_slots", "on"));
        }
        configuration.push_str(&setting("primary_conninfo", &primary));
        append(&data.join("postgresql.conf"), &configuration)?;

        server.set_command(server_command(&self.program, server.folder()), None);
        let mut standby = Self {
            version: self.version,
            program: self.program.clone(),
            server,
            port,
        };
        standby.start_again().await?;
        Ok(standby)
    }

    /// Waits until a standby has replayed everything that its primary has written by now.
    ///
    /// # Errors
    /// When it has not within `limit`.
    pub async fn wait_replayed(&self, primary: &Self, limit: Duration) -> Result<()> {
        let written = primary.value("postgres", "SELECT pg_current_wal_lsn()");
        let written = written.await?.context("no position")?;
        let query = format!("SELECT pg_last_wal_replay_lsn() >= '{written}'::pg_lsn");
        let what = format!("the standby to replay {written}");
        self.wait_true(limit, &what, &query).await
    }

    /// Waits until a standby has a copy of a failover slot that it could serve after a promotion.
    ///
    /// # Errors
    /// When it has not within `limit`, as always before version 17.
    pub async fn wait_slot_synced(&self, slot: &str, limit: Duration) -> Result<()> {
        let what = format!("the standby to have slot {slot}");
        let query = format!(
            "SELECT coalesce(bool_and(synced AND NOT temporary AND invalidation_reason IS NULL), \
             false) FROM pg_replication_slots WHERE slot_name = '{slot}' HAVING count(*) = 1"
        );
        self.wait_true(limit, &what, &query).await
    }

    /// Makes a standby a primary, and waits until it takes writes.
    ///
    /// # Errors
    /// When it does not within a minute.
    pub async fn promote(&self) -> Result<()> {
        let query = format!("SELECT pg_promote(true, {})", PROMOTE_LIMIT.as_secs());
        let promoted = self.value("postgres", &query).await?;
        if promoted.as_deref() != Some("t") {
            bail!("pg_promote: {promoted:?}\n{}", self.log_tail());
        }
        let what = "the promoted server to take writes";
        self.wait_true(PROMOTE_LIMIT, what, "SELECT NOT pg_is_in_recovery()")
            .await
    }

    /// Waits until a query that gives one truth value gives true.
    async fn wait_true(&self, limit: Duration, what: &str, query: &str) -> Result<()> {
        let mut patience = Patience::new(limit, what);
        loop {
            let looked = patience.look(async {
                let answer = self.value("postgres", query).await?;
                let is_true = answer.as_deref() == Some("t");
                Ok(Progress::when(is_true, || format!("{answer:?}")))
            });
            if looked.await?.is_some() {
                return Ok(());
            }
        }
    }
}

/// Copies the data folder of a running server and gives back the text of `backup_label`.
async fn copy_running(
    client: &Client,
    version: PgVersion,
    from: &Path,
    to: &Path,
    account: Account,
) -> Result<String> {
    // The functions had other names before version 15.
    let (start, stop) = if version >= PgVersion::V15 {
        (
            "SELECT pg_backup_start('standby', true)::text",
            "SELECT labelfile FROM pg_backup_stop(false)",
        )
    } else {
        (
            "SELECT pg_start_backup('standby', true, false)::text",
            "SELECT labelfile FROM pg_stop_backup(false, false)",
        )
    };
    client.query_one(start, &[]).await?;
    let (source, target) = (from.to_path_buf(), to.to_path_buf());
    tokio::task::spawn_blocking(move || copy_folder(&source, &target, Content::All, account))
        .await??;
    let row = client.query_one(stop, &[]).await?;
    Ok(row.try_get(0)?)
}

/// What of a folder is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Content {
    All,
    Folders,
    Nothing,
}

/// Copies a folder of a running server: a file may vanish meanwhile.
fn copy_folder(from: &Path, to: &Path, content: Content, account: Account) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    account.give(to)?;
    if content == Content::Nothing {
        return Ok(());
    }
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let target = to.join(name.as_ref());
        if entry.file_type()?.is_dir() {
            let below = match (content, name.as_ref()) {
                (Content::All, WAL_FOLDER) => Content::Folders,
                (_, name) if FOLDERS_LEFT_EMPTY.contains(&name) => Content::Nothing,
                (content, _) => content,
            };
            copy_folder(&entry.path(), &target, below, account)?;
        } else if content == Content::All && !FILES_LEFT_OUT.contains(&name.as_ref()) {
            match fs::copy(entry.path(), &target) {
                Ok(_) => account.give(&target)?,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    let path = entry.path();
                    return Err(error).with_context(|| format!("cannot copy {}", path.display()));
                }
            }
        }
    }
    Ok(())
}
