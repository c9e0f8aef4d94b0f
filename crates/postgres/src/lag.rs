//! What the server says about a slot, in one statement, and who holds it.

use std::time::Duration;

use pgoutput::Lsn;
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::control::Control;
use crate::error::PgError;
use crate::sql;

/// One reading of `sql/slot_lag.sql`. A value that the server's version or the role's rights do not
/// give is `None`, never 0.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotLag {
    /// The slot.
    pub slot: String,
    /// Its output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// Its database.
    pub database: Option<String>,
    /// Whether it ends with its session.
    pub temporary: bool,
    /// Who holds it.
    pub holder: Option<SlotHolder>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// How much more may be written before the slot can be lost.
    pub safe_wal_size_bytes: Option<i64>,
    /// `max_slot_wal_keep_size`; `None` where it is without limit.
    pub keep_size_bytes: Option<i64>,
    /// WAL kept on disk for the slot.
    pub retained_bytes: Option<i64>,
    /// WAL that is not confirmed.
    pub unconfirmed_bytes: Option<i64>,
    /// Of the retained, what is kept for the oldest open transaction.
    pub held_by_open_xacts_bytes: Option<i64>,
    /// Where the log stands.
    pub current_lsn: Option<Lsn>,
    /// From where WAL is kept; `None` when the slot is lost.
    pub restart_lsn: Option<Lsn>,
    /// What was confirmed, as the server's memory has it.
    pub confirmed_flush_lsn: Option<Lsn>,
    /// Time since a session held the slot (17 and newer).
    pub inactive_for: Option<Duration>,
    /// Why the slot can no longer be used.
    pub invalid_reason: Option<String>,
    /// Whether it is synchronized to standbys (17 and newer).
    pub failover: Option<bool>,
    /// `async`, unless the server waits for us at each commit.
    pub sync_state: Option<String>,
    /// WAL that was not sent to the holder yet.
    pub unsent_bytes: Option<i64>,
    /// Time since the holder's last status update.
    pub reply_age: Option<Duration>,
    /// The oldest open transaction that has written something, in the whole cluster.
    pub oldest_xact: Option<OpenTransaction>,
}

/// The session that holds a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHolder {
    /// Its backend.
    pub pid: i32,
    /// What it calls itself, if our role may see that.
    pub application_name: Option<String>,
}

/// An open transaction.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenTransaction {
    /// Its backend; `None` for a prepared transaction.
    pub pid: Option<i32>,
    /// The name of a prepared transaction.
    pub gid: Option<String>,
    /// How long it has been open, if our role may see that.
    pub age: Option<Duration>,
}

impl SlotLag {
    /// Whether the slot's WAL is gone.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.invalid_reason.is_some() || self.wal_status.as_deref() == Some("lost")
    }
}

impl Control {
    /// Reads how `slot` stands; `None` if there is no such slot.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn read_lag(&self, slot: &str) -> Result<Option<SlotLag>, PgError> {
        let statement = sql::render(sql::section(sql::SLOT_LAG, "slot_lag"), &[("slot", slot)]);
        let row = self.client().query_opt(&statement, &[]).await?;
        row.as_ref().map(slot_lag).transpose()
    }

    /// Who holds `slot`; `None` if nobody does or there is no such slot.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn slot_holder(&self, slot: &str) -> Result<Option<SlotHolder>, PgError> {
        let row = self
            .client()
            .query_opt(
                "SELECT s.active_pid, COALESCE(r.application_name, a.application_name) \
                 FROM pg_replication_slots s \
                 LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid \
                 LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid \
                 WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL",
                &[&slot],
            )
            .await?;
        let holder = |row: Row| -> Result<_, PgError> {
            Ok(SlotHolder {
                pid: row.try_get(0)?,
                application_name: row.try_get(1)?,
            })
        };
        row.map(holder).transpose()
    }

    /// The confirmed position of `slot`, as the server's memory has it; `None` if there is no such
    /// slot or it was never ready.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn confirmed_flush(&self, slot: &str) -> Result<Option<Lsn>, PgError> {
        let row = self
            .client()
            .query_opt(
                "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = $1",
                &[&slot],
            )
            .await?;
        Ok(row
            .map(|row| lsn(&row, "confirmed_flush_lsn"))
            .transpose()?
            .flatten())
    }

    /// `synchronous_standby_names`, if it names any and our role cannot see whether it matches us.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn unseen_standby_names(&self) -> Result<Option<String>, PgError> {
        let sql = "SELECT current_setting('synchronous_standby_names') \
                   WHERE current_setting('synchronous_standby_names') <> '' \
                   AND NOT pg_has_role('pg_read_all_stats', 'USAGE')";
        let row = self.client().query_opt(sql, &[]).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }

    /// The end of the log as it is inserted so far: whatever commits from now on lies behind it.
    /// On a standby, the end of what it has replayed.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn wal_insert_position(&self) -> Result<Lsn, PgError> {
        self.position(
            "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() \
             ELSE pg_current_wal_insert_lsn() END)::text AS position",
        )
        .await
    }

    /// The end of the server's log on disk.
    ///
    /// # Errors
    /// A broken connection, or the server's error; a standby has no such position.
    pub async fn wal_flush_position(&self) -> Result<Lsn, PgError> {
        self.position("SELECT pg_current_wal_flush_lsn()::text AS position")
            .await
    }

    async fn position(&self, sql: &str) -> Result<Lsn, PgError> {
        let row = self.client().query_one(sql, &[]).await?;
        Ok(lsn(&row, "position")?.unwrap_or_default())
    }
}

fn slot_lag(row: &Row) -> Result<SlotLag, PgError> {
    let pid: Option<i32> = row.try_get("active_pid")?;
    let xact_pid: Option<i32> = row.try_get("oldest_xact_pid")?;
    let xact_gid: Option<String> = row.try_get("oldest_xact_gid")?;
    let xact_age = duration(row, "oldest_xact_seconds")?;
    let application_name = row.try_get("holder_application_name")?;
    Ok(SlotLag {
        slot: row.try_get("slot_name")?,
        plugin: row.try_get("plugin")?,
        database: row.try_get("database")?,
        temporary: row.try_get("temporary")?,
        holder: pid.map(|pid| SlotHolder {
            pid,
            application_name,
        }),
        wal_status: row.try_get("wal_status")?,
        safe_wal_size_bytes: row.try_get("safe_wal_size_bytes")?,
        keep_size_bytes: row.try_get("keep_size_bytes")?,
        retained_bytes: row.try_get("retained_bytes")?,
        unconfirmed_bytes: row.try_get("unconfirmed_bytes")?,
        held_by_open_xacts_bytes: row.try_get("held_by_open_xacts_bytes")?,
        current_lsn: lsn(row, "current_lsn")?,
        restart_lsn: lsn(row, "restart_lsn")?,
        confirmed_flush_lsn: lsn(row, "confirmed_flush_lsn")?,
        inactive_for: duration(row, "inactive_seconds")?,
        invalid_reason: row.try_get("invalid_reason")?,
        failover: row.try_get("failover")?,
        sync_state: row.try_get("sync_state")?,
        unsent_bytes: row.try_get("unsent_bytes")?,
        reply_age: duration(row, "reply_seconds")?,
        oldest_xact: (xact_pid.is_some() || xact_gid.is_some()).then_some(OpenTransaction {
            pid: xact_pid,
            gid: xact_gid,
            age: xact_age,
        }),
    })
}

fn optional<'a, T: FromSql<'a>>(row: &'a Row, name: &str) -> Result<Option<T>, PgError> {
    Ok(row.try_get::<_, Option<T>>(name)?)
}

/// A position that was sent as text.
fn lsn(row: &Row, name: &str) -> Result<Option<Lsn>, PgError> {
    let text: Option<&str> = optional(row, name)?;
    text.map(|text| {
        text.parse()
            .map_err(|_| PgError::protocol(format!("{name} is no LSN")))
    })
    .transpose()
}

/// Seconds that may be NULL; two clocks' difference below zero counts as zero, and what is no
/// length of time (`infinity`) as unknown.
fn duration(row: &Row, name: &str) -> Result<Option<Duration>, PgError> {
    let seconds: Option<f64> = optional(row, name)?;
    Ok(seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()))
}
