//! What is known of slot, stream and dead letters at one moment. What could not be read is absent,
//! with the reason; it is never 0.

use std::time::{Duration, Instant};

use jetstream::{StreamAdmin, StreamState};
use outbox::Tail;
use postgres::{Control, DeadLetterStats, SlotLag};
use serde_json::{Map, Value, json};

use crate::cli::StatusLimits;
use crate::config::Settings;
use crate::exit::StatusExit;

/// How long either server may take. `status` serves as a check, which must end.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the confirmed position is looked at meanwhile.
const MEASURE_EVERY: Duration = Duration::from_millis(50);

/// One reading.
pub(super) struct Report {
    pub(super) slot_name: String,
    pub(super) stream_name: String,
    /// `Ok(None)`: there is no such slot.
    pub(super) slot: Result<Option<SlotLag>, String>,
    pub(super) dead_letters: Result<Option<DeadLetterStats>, String>,
    /// How far delivery lies behind in time, where that can be told.
    pub(super) lag: Option<Duration>,
    pub(super) stream: Result<StreamState, String>,
}

impl Report {
    /// Reads both servers. With a limit of the lag in time, that lag is measured where the server
    /// cannot tell it.
    pub(super) async fn read(settings: &Settings, max_lag: Option<Duration>) -> Self {
        let database = read_database(settings, max_lag);
        let (database, stream) = tokio::join!(database, read_stream(settings));
        let (slot, dead_letters, lag) = match database {
            Ok((slot, dead_letters, lag)) => (Ok(slot), Ok(dead_letters), lag),
            Err(error) => (Err(error.clone()), Err(error), None),
        };
        Self {
            slot_name: settings.postgres.slot.clone(),
            stream_name: settings.nats.stream.clone(),
            slot,
            dead_letters,
            lag,
            stream,
        }
    }

    /// What the reading means as a check, and in words which limits decided it.
    pub(super) fn verdict(&self, limits: &StatusLimits) -> (StatusExit, Vec<String>) {
        let slot = match &self.slot {
            Err(_) => return (StatusExit::Unknown, Vec::new()),
            Ok(None) => return (StatusExit::SlotLost, Vec::new()),
            Ok(Some(slot)) if slot.is_lost() => return (StatusExit::SlotLost, Vec::new()),
            Ok(Some(slot)) => slot,
        };
        let bytes = |value: Option<i64>| value.map(|value| u64::try_from(value).unwrap_or(0));
        let in_bytes = |value: u64| format!("{value} B");
        let in_seconds = |value: Duration| format!("{:.3} s", value.as_secs_f64());
        let checks = [
            checked(
                "not confirmed (--max-lag-bytes)",
                limits.max_lag_bytes,
                bytes(slot.unconfirmed_bytes),
                in_bytes,
            ),
            checked(
                "WAL retained (--max-retained-bytes)",
                limits.max_retained_bytes,
                bytes(slot.retained_bytes),
                in_bytes,
            ),
            checked(
                "lag (--max-lag-seconds)",
                limits.max_lag,
                self.lag,
                in_seconds,
            ),
        ];
        // A limit that is known to be exceeded is worth more than one that cannot be told.
        let worst = [StatusExit::OverLimit, StatusExit::Unknown];
        let exit = worst
            .into_iter()
            .find(|worse| checks.iter().flatten().any(|(exit, _)| exit == worse));
        let reasons = checks.into_iter().flatten().map(|(_, reason)| reason);
        (exit.unwrap_or(StatusExit::Fine), reasons.collect())
    }

    pub(super) fn json(&self) -> Value {
        let mut report = Map::new();
        report.insert("slot".to_owned(), self.slot_json());
        report.insert("stream".to_owned(), self.stream_json());
        if let Ok(Some(letters)) = &self.dead_letters {
            dead_letters_json(letters, &mut report);
        }
        if let Some(lag) = self.lag {
            report.insert("lag_seconds".to_owned(), json!(lag.as_secs_f64()));
        }
        Value::Object(report)
    }

    fn slot_json(&self) -> Value {
        let slot = match &self.slot {
            Err(error) => return json!({ "name": self.slot_name, "error": error }),
            Ok(None) => return json!({ "name": self.slot_name, "exists": false }),
            Ok(Some(slot)) => slot,
        };
        let seconds = |duration: Option<Duration>| duration.map(|it| it.as_secs_f64());
        let text = |lsn: Option<pgoutput::Lsn>| lsn.map(|lsn| lsn.to_string());
        without_null(json!({
            "name": slot.slot,
            "exists": true,
            "active": slot.holder.is_some(),
            "holder_pid": slot.holder.as_ref().map(|holder| holder.pid),
            "holder": slot.holder.as_ref().and_then(|holder| holder.application_name.clone()),
            "database": slot.database,
            "wal_status": slot.wal_status,
            "lost": slot.is_lost(),
            "lost_reason": slot.invalid_reason,
            "retained_bytes": slot.retained_bytes,
            "unconfirmed_bytes": slot.unconfirmed_bytes,
            "held_by_open_transactions_bytes": slot.held_by_open_xacts_bytes,
            "safe_wal_bytes": slot.safe_wal_size_bytes,
            "keep_size_bytes": slot.keep_size_bytes,
            "unsent_bytes": slot.unsent_bytes,
            "current_lsn": text(slot.current_lsn),
            "restart_lsn": text(slot.restart_lsn),
            "confirmed_flush_lsn": text(slot.confirmed_flush_lsn),
            "failover": slot.failover,
            "sync_state": slot.sync_state,
            "inactive_seconds": seconds(slot.inactive_for),
            "reply_age_seconds": seconds(slot.reply_age),
            "oldest_transaction_pid": slot.oldest_xact.as_ref().and_then(|xact| xact.pid),
            "oldest_transaction_gid": slot.oldest_xact.as_ref().and_then(|xact| xact.gid.clone()),
            "oldest_transaction_seconds":
                seconds(slot.oldest_xact.as_ref().and_then(|xact| xact.age)),
        }))
    }

    fn stream_json(&self) -> Value {
        let stream = match &self.stream {
            Err(error) => return json!({ "name": self.stream_name, "error": error }),
            Ok(stream) => stream,
        };
        let position = match &stream.tail {
            Tail::Row(row) => Some(row.position.to_string()),
            _ => None,
        };
        without_null(json!({
            "name": self.stream_name,
            "messages": stream.messages,
            "bytes": stream.size_bytes,
            "first_sequence": stream.first_sequence,
            "last_sequence": stream.last_sequence,
            "last_time": stream.last_time,
            "leader": stream.leader,
            "writers": stream.config.writers().map(jetstream::writers_name),
            "owner": stream.config.owner(),
            "last_position": position,
        }))
    }
}

fn dead_letters_json(letters: &DeadLetterStats, report: &mut Map<String, Value>) {
    let mut insert = |name: &str, value| report.insert(name.to_owned(), value);
    insert("dead_letters", json!(letters.parked));
    if let Some(age) = letters.oldest_age {
        insert("oldest_dead_letter_seconds", json!(age.as_secs()));
    }
    if let Some(reason) = &letters.newest_reason {
        insert("newest_dead_letter_reason", json!(reason));
    }
    if let Some(row) = &letters.halted {
        let halted = json!({
            "row_id": row.row_id,
            "table": row.table_name,
            "position": row.position,
            "reason": row.reason,
            "detail": row.detail,
            "since": row.parked_at,
            "seconds": row.age.as_secs(),
        });
        insert("halted", without_null(halted));
    }
}

/// What a limit says about a value, if it says anything.
fn checked<T: PartialOrd + Copy>(
    what: &str,
    limit: Option<T>,
    value: Option<T>,
    shown: impl Fn(T) -> String,
) -> Option<(StatusExit, String)> {
    match (limit?, value) {
        (limit, Some(value)) if value > limit => {
            let (limit, value) = (shown(limit), shown(value));
            let reason = format!("over limit: {what}: {value}, at most {limit} allowed");
            Some((StatusExit::OverLimit, reason))
        }
        (_, Some(_)) => None,
        (_, None) => Some((StatusExit::Unknown, format!("cannot tell: {what}"))),
    }
}

/// Absent, not null: so a reader cannot take it for a value.
fn without_null(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .collect(),
        ),
        other => other,
    }
}

/// How far delivery lies behind in time, as far as the server alone can tell: not at all when all
/// is confirmed, and as long as the slot has been left alone otherwise. While somebody streams, the
/// server does not know since when something waits.
fn lag_of(slot: &SlotLag) -> Option<Duration> {
    match slot.unconfirmed_bytes? {
        0 => Some(Duration::ZERO),
        _ if slot.holder.is_none() => slot.inactive_for,
        _ => None,
    }
}

/// How long it takes until what is in the log now is confirmed: the honest measure of a lag in time
/// that the server does not keep. Waits until `limit` is passed: only
/// then is it known to be exceeded.
async fn measured_lag(
    control: &Control,
    slot: &SlotLag,
    limit: Duration,
) -> Result<Option<Duration>, postgres::PgError> {
    let Some(target) = slot.current_lsn else {
        return Ok(None);
    };
    let begin = Instant::now();
    loop {
        let asked = control.confirmed_flush(&slot.slot);
        let answer = tokio::time::timeout(READ_TIMEOUT, asked).await;
        let answer = answer.map_err(|_| postgres::PgError::Timeout {
            what: "reading the confirmed position".to_owned(),
            limit: READ_TIMEOUT,
        })?;
        let waited = begin.elapsed();
        match answer? {
            None => return Ok(None),
            Some(confirmed) if confirmed >= target || waited > limit => return Ok(Some(waited)),
            Some(_) => tokio::time::sleep(MEASURE_EVERY).await,
        }
    }
}

/// Slot, dead letters, lag in time.
type Database = (Option<SlotLag>, Option<DeadLetterStats>, Option<Duration>);

async fn read_database(settings: &Settings, max_lag: Option<Duration>) -> Result<Database, String> {
    let config = settings
        .postgres
        .connect_config()
        .map_err(|error| error.to_string())?;
    let slot = &settings.postgres.slot;
    let reading = async {
        let control = Control::connect(&config).await?;
        let lag = control.read_lag(slot).await?;
        let dead_letters = control.dead_letter_stats(slot).await?;
        Ok((control, lag, dead_letters))
    };
    let late = |_| format!("no answer within {} s", READ_TIMEOUT.as_secs());
    let (control, slot, dead_letters) = tokio::time::timeout(READ_TIMEOUT, reading)
        .await
        .map_err(late)?
        .map_err(|error: postgres::PgError| error.one_line())?;
    let lag = match (&slot, max_lag) {
        (Some(slot), Some(limit)) if lag_of(slot).is_none() && !slot.is_lost() => {
            let measured = measured_lag(&control, slot, limit).await;
            measured.map_err(|error| error.one_line())?
        }
        (Some(slot), _) => lag_of(slot),
        (None, _) => None,
    };
    Ok((slot, dead_letters, lag))
}

async fn read_stream(settings: &Settings) -> Result<StreamState, String> {
    let options = settings
        .nats
        .options(&settings.postgres.slot)
        .map_err(|error| error.to_string())?;
    let reading = async {
        let admin = StreamAdmin::connect(&options).await?;
        admin.state(&settings.nats.stream).await
    };
    let late = |_| format!("no answer within {} s", READ_TIMEOUT.as_secs());
    tokio::time::timeout(READ_TIMEOUT, reading)
        .await
        .map_err(late)?
        .map_err(|fault: outbox::BrokerFault| fault.to_string())
}
