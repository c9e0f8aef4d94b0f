//! The slot: made while others work, or checked as it is.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::{Finding, MAX_TIMEOUT_MS, Object, Outcome, SetupPlan};
use crate::control::Control;
use crate::error::{Fault, PgError};
use crate::lag::{OpenTransaction, SlotLag};
use crate::sql;
use crate::url::ConnectConfig;

/// How soon a wait is explained, and how often it is looked at again.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The server gives up by itself at the time limit; this much later we no longer believe that it
/// will say so.
const ANSWER_GRACE: Duration = Duration::from_secs(10);

/// Longest name of a slot (`NAMEDATALEN` - 1).
const MAX_SLOT_NAME_BYTES: usize = 63;

/// Who keeps the making of a slot waiting.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotWait {
    /// The transaction that must end first.
    pub transaction: OpenTransaction,
    /// What its session calls itself, if our role may see that.
    pub application_name: Option<String>,
    /// What it is doing (`active`, `idle in transaction`), if our role may see that.
    pub state: Option<String>,
    /// How long the slot has been waiting.
    pub waited: Duration,
}

/// Whether PostgreSQL takes this as the name of a slot.
///
/// # Errors
/// What is wrong with it.
pub fn check_slot_name(slot: &str) -> Result<(), String> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    if !slot.is_empty() && slot.len() <= MAX_SLOT_NAME_BYTES && slot.bytes().all(plain) {
        return Ok(());
    }
    Err(format!(
        "a slot name has 1 to 63 lower-case letters, digits and underscores, which {:?} has not",
        slot.chars().take(100).collect::<String>()
    ))
}

/// The statement that makes the slot on a server of this version.
pub(super) fn statement(slot: &str, major: u16) -> String {
    let section = if major >= 17 {
        "slot_with_failover"
    } else {
        "slot"
    };
    let text = sql::section(sql::PUBLICATION_AND_SLOT, section);
    sql::render(text, &[("slot", slot)]).trim().to_owned()
}

/// Checks the slot as it is.
pub(super) async fn find(control: &Control, plan: &SetupPlan) -> Result<Finding, PgError> {
    let name = &plan.slot;
    let Some(slot) = control.read_lag(name).await? else {
        return missing(control, name).await;
    };
    let row = control
        .client()
        .query_one(
            "SELECT current_database()::text, COALESCE((SELECT two_phase \
             FROM pg_replication_slots WHERE slot_name = $1), false)",
            &[name],
        )
        .await?;
    Ok(verify(&slot, row.try_get(0)?, row.try_get(1)?))
}

/// A slot that is not there. After a promotion that is the usual reason, so it is named.
async fn missing(control: &Control, name: &str) -> Result<Finding, PgError> {
    // The first eight digits of a WAL file's name are its timeline.
    let sql = "SELECT CASE WHEN NOT pg_is_in_recovery() THEN \
               left(pg_walfile_name(pg_current_wal_lsn()), 8) END";
    let row = control.client().query_one(sql, &[]).await?;
    let timeline: Option<&str> = row.try_get(0)?;
    let timeline = timeline.and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let text = match timeline {
        Some(timeline @ 2..) => format!(
            "not there; this server was a standby once (it is on timeline {timeline}), and only a \
             failover slot (17 and newer, with sync_replication_slots on the standby) outlives a \
             promotion"
        ),
        _ => "not there".to_owned(),
    };
    Ok(Finding::new(Object::Slot, name, Outcome::Missing, text).of_fault(Fault::SlotMissing))
}

fn verify(slot: &SlotLag, database: &str, two_phase: bool) -> Finding {
    let name = slot.slot.as_str();
    let wrong = |text: String| Finding::new(Object::Slot, name, Outcome::Wrong, text);
    let other_name = "configure another slot name, or drop this one: SELECT \
                      pg_drop_replication_slot('...')";
    if slot.plugin.as_deref() != Some("pgoutput") {
        let plugin = slot
            .plugin
            .as_deref()
            .unwrap_or("none, it is a physical slot");
        return wrong(format!("its output plugin is not pgoutput ({plugin})")).cured_by(other_name);
    }
    if slot.database.as_deref() != Some(database) {
        let other = slot.database.as_deref().unwrap_or("none");
        return wrong(format!("it belongs to another database ({other:?})")).cured_by(other_name);
    }
    if slot.temporary {
        return wrong("it is temporary and ends with its session".to_owned()).cured_by(other_name);
    }
    if two_phase {
        return wrong(
            "it decodes prepared transactions (two_phase), which are not known to commit"
                .to_owned(),
        )
        .cured_by(other_name);
    }
    if slot.is_lost() {
        return lost(slot);
    }
    let position = slot
        .confirmed_flush_lsn
        .map_or("an unknown position".to_owned(), |lsn| lsn.to_string());
    Finding::new(
        Object::Slot,
        name,
        Outcome::Found,
        format!("found, confirmed up to {position}"),
    )
}

/// A slot whose WAL is gone or that was given up: why, and what is missing since.
fn lost(slot: &SlotLag) -> Finding {
    let reason = slot.invalid_reason.as_deref().unwrap_or("lost");
    // The reasons of pg_replication_slots.invalidation_reason; up to 16 there is only "lost".
    let words = match reason {
        "lost" | "wal_removed" => "more WAL was written than max_slot_wal_keep_size lets it keep",
        "idle_timeout" => "no session held it for longer than idle_replication_slot_timeout",
        "rows_removed" => "rows of the catalog that it needs were removed",
        "wal_level_insufficient" => "wal_level was lowered below logical",
        _ => "the server gave it up",
    };
    let gap = slot.confirmed_flush_lsn.map_or_else(String::new, |lsn| {
        format!("; rows committed after {lsn} were not confirmed")
    });
    let text = format!("its WAL is gone ({reason}: {words}){gap}");
    Finding::new(Object::Slot, &slot.slot, Outcome::Wrong, text).of_fault(Fault::SlotLost)
}

/// Makes the slot if it is missing; checks it otherwise.
pub(super) async fn make(
    config: &ConnectConfig,
    control: &Control,
    plan: &SetupPlan,
    on_wait: &mut (dyn FnMut(&SlotWait) + Send),
) -> Result<Finding, PgError> {
    if control.read_lag(&plan.slot).await?.is_some() {
        return find(control, plan).await;
    }
    let limit = plan.slot_timeout;
    let Err(error) = create(config, control, plan, on_wait).await else {
        let text = "made; it streams what commits from now on";
        return Ok(Finding::new(Object::Slot, &plan.slot, Outcome::Made, text));
    };
    // Another setup was faster.
    if error
        .server()
        .is_some_and(|server| server.code.as_str() == "42710")
    {
        return find(control, plan).await;
    }
    if !matches!(error.fault(), Fault::Cancelled) {
        return Err(error);
    }
    let blocker = oldest_writer(control).await?;
    let text = format!(
        "not made within {} s: it waits for every transaction that is open in the cluster{}",
        limit.as_secs_f32(),
        blocker.map_or(String::new(), |blocker| format!(
            "; the oldest is {blocker}"
        )),
    );
    Ok(Finding::new(Object::Slot, &plan.slot, Outcome::Wrong, text).cured_by(
        "end that transaction (SELECT pg_terminate_backend(PID), or ROLLBACK PREPARED), or give a \
         longer --timeout",
    ))
}

/// Makes the slot on a connection of its own, so that the other can look why it takes time.
async fn create(
    config: &ConnectConfig,
    control: &Control,
    plan: &SetupPlan,
    on_wait: &mut (dyn FnMut(&SlotWait) + Send),
) -> Result<(), PgError> {
    let maker = Control::connect(config).await?;
    let limit = plan.slot_timeout;
    let limit_ms = limit.as_millis().clamp(1, MAX_TIMEOUT_MS);
    maker
        .client()
        .batch_execute(&format!("SET statement_timeout = {limit_ms}"))
        .await?;
    // If we are gone, the server notices within a second and makes no slot that nobody knows of.
    // Platforms without this setting refuse it; there the time limit alone ends the wait.
    let _ = maker
        .client()
        .batch_execute("SET client_connection_check_interval = '1s'")
        .await;

    let begun = Instant::now();
    let statement = statement(&plan.slot, control.server_version().major());
    let creation = maker.client().batch_execute(&statement);
    let mut creation = std::pin::pin!(timeout(limit + ANSWER_GRACE, creation));
    loop {
        tokio::select! {
            made = creation.as_mut() => return match made {
                Ok(made) => Ok(made?),
                Err(_) => {
                    Err(PgError::Timeout { what: "making the slot".to_owned(), limit })
                }
            },
            () = sleep(LOOK_EVERY) => {
                if let Some(wait) = who_blocks(control, &maker, begun).await? {
                    on_wait(&wait);
                }
            }
        }
    }
}

/// The transaction for which `maker` waits.
async fn who_blocks(
    control: &Control,
    maker: &Control,
    begun: Instant,
) -> Result<Option<SlotWait>, PgError> {
    let row = control
        .client()
        .query_opt(
            // A prepared transaction blocks as pid 0, and its lock tells which one it is.
            "SELECT NULLIF(b.pid, 0), p.gid, \
             extract(epoch FROM now() - COALESCE(a.xact_start, p.prepared))::float8, \
             a.application_name, a.state \
             FROM unnest(pg_blocking_pids($1)) AS b(pid) \
             LEFT JOIN pg_stat_activity a ON a.pid = b.pid \
             LEFT JOIN pg_locks l ON b.pid = 0 AND l.pid = $1 AND NOT l.granted \
             LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid LIMIT 1",
            &[&maker.backend_pid()],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let seconds: Option<f64> = row.try_get(2)?;
    Ok(Some(SlotWait {
        transaction: OpenTransaction {
            pid: row.try_get(0)?,
            gid: row.try_get(1)?,
            age: seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).ok()),
        },
        application_name: row.try_get(3)?,
        state: row.try_get(4)?,
        waited: begun.elapsed(),
    }))
}

/// The oldest transaction that has written, in words.
async fn oldest_writer(control: &Control) -> Result<Option<String>, PgError> {
    let row = control
        .client()
        .query_opt(
            "SELECT 'pid ' || pid || COALESCE(', open for ' || \
             round(extract(epoch FROM now() - xact_start)) || ' s', '') \
             FROM pg_stat_activity WHERE backend_xid IS NOT NULL \
             ORDER BY age(backend_xid) DESC LIMIT 1",
            &[],
        )
        .await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> SlotLag {
        SlotLag {
            slot: "s".to_owned(),
            plugin: Some("pgoutput".to_owned()),
            database: Some("shop".to_owned()),
            temporary: false,
            holder: None,
            wal_status: Some("reserved".to_owned()),
            safe_wal_size_bytes: None,
            keep_size_bytes: None,
            retained_bytes: None,
            unconfirmed_bytes: None,
            held_by_open_xacts_bytes: None,
            current_lsn: None,
            restart_lsn: None,
            confirmed_flush_lsn: "0/ABC".parse().ok(),
            inactive_for: None,
            invalid_reason: None,
            failover: None,
            sync_state: None,
            unsent_bytes: None,
            reply_age: None,
            oldest_xact: None,
        }
    }

    #[test]
    fn a_slot_that_cannot_be_streamed_is_wrong_by_name() {
        assert_eq!(verify(&slot(), "shop", false).outcome, Outcome::Found);
        let reason = |reason: &str| SlotLag {
            invalid_reason: Some(reason.to_owned()),
            ..slot()
        };
        let lost = SlotLag {
            wal_status: Some("lost".to_owned()),
            ..slot()
        };
        for (slot, database, two_phase, word) in [
            (slot(), "bank", false, "\"shop\""),
            (slot(), "shop", true, "two_phase"),
            (lost, "shop", false, "max_slot_wal_keep_size"),
            (
                reason("wal_removed"),
                "shop",
                false,
                "max_slot_wal_keep_size",
            ),
            (
                reason("idle_timeout"),
                "shop",
                false,
                "idle_replication_slot_timeout",
            ),
            (
                reason("wal_level_insufficient"),
                "shop",
                false,
                "wal_level was lowered",
            ),
            (reason("rows_removed"), "shop", false, "catalog"),
            (
                reason("of_a_later_version"),
                "shop",
                false,
                "of_a_later_version",
            ),
        ] {
            let found = verify(&slot, database, two_phase);
            assert_eq!(found.outcome, Outcome::Wrong, "{word}");
            assert!(found.to_string().contains(word), "{found}");
            if slot.is_lost() {
                assert!(found.text.contains("after 0/ABC"), "{found}");
            }
        }
    }

    #[test]
    fn slot_names_are_checked_as_the_server_does() {
        for name in ["postrider", "a", "_1", &"x".repeat(63)] {
            assert!(check_slot_name(name).is_ok(), "{name}");
        }
        for name in ["", "A", "a-b", "a b", "a\"b", "ä", &"x".repeat(64)] {
            assert!(check_slot_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn the_failover_flag_is_set_where_there_is_one() {
        assert!(statement("s", 16).ends_with("('s', 'pgoutput', false, false);"));
        assert!(statement("s", 17).ends_with("('s', 'pgoutput', false, false, true);"));
    }
}
