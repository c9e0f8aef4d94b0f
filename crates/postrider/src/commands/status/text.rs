//! The reading as a table for people.

use std::time::Duration;

use outbox::Tail;
use postgres::{DeadLetterEntry, SlotLag};

use super::report::Report;

/// Clears the screen and goes to its top, for `--watch` on a terminal.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// The table.
pub(super) fn table(report: &Report, watching: bool) -> String {
    let mut rows: Vec<(&str, String)> = Vec::new();
    match &report.slot {
        Err(error) => {
            rows.push(("slot", report.slot_name.clone()));
            rows.push(("  state", format!("cannot tell: {error}")));
        }
        Ok(None) => rows.push((
            "slot",
            format!(
                "{} does not exist; `postrider setup` makes it",
                report.slot_name
            ),
        )),
        Ok(Some(slot)) => slot_rows(slot, report.lag, &mut rows),
    }
    match &report.stream {
        Err(error) => {
            rows.push(("stream", report.stream_name.clone()));
            rows.push(("  state", format!("cannot tell: {error}")));
        }
        Ok(stream) => {
            let writers = stream
                .config
                .writers()
                .map_or("unknown", jetstream::writers_name);
            rows.push((
                "stream",
                format!("{} (writers: {writers})", report.stream_name),
            ));
            let (count, size) = (stream.messages, bytes(stream.size_bytes));
            rows.push(("  messages", format!("{count}, {size}")));
            rows.push(("  last sequence", stream.last_sequence.to_string()));
            if let Tail::Row(row) = &stream.tail {
                rows.push((
                    "  last row",
                    format!("{} (id {})", row.position, row.dedup_id),
                ));
            }
            if let Some(time) = &stream.last_time {
                rows.push(("  last stored", time.clone()));
            }
        }
    }
    dead_letter_rows(report, &mut rows);
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let body: String = rows
        .iter()
        .map(|(name, value)| format!("{name:<width$}  {value}\n"))
        .collect();
    match (
        watching,
        std::io::IsTerminal::is_terminal(&std::io::stdout()),
    ) {
        (true, true) => format!("{CLEAR}{body}"),
        // In a file or pipe, an empty line parts one reading from the next.
        (true, false) => format!("{body}\n"),
        (false, _) => body,
    }
}

fn dead_letter_rows(report: &Report, rows: &mut Vec<(&'static str, String)>) {
    let letters = match &report.dead_letters {
        Ok(Some(letters)) => {
            let oldest = letters.oldest_age.map(duration);
            let newest = letters.newest_reason.as_deref();
            match oldest.zip(newest) {
                Some((oldest, newest)) => format!(
                    "{}, the oldest {oldest} ago, the newest {newest}; see \
                     `postrider dead-letters list`",
                    letters.parked
                ),
                None => letters.parked.to_string(),
            }
        }
        Ok(None) => "cannot tell: no table postrider.dead_letter, or no right to read it".into(),
        Err(_) => "cannot tell".to_owned(),
    };
    rows.push(("dead letters", letters));
    if let Ok(Some(letters)) = &report.dead_letters
        && let Some(row) = &letters.halted
    {
        halted_rows(row, rows);
    }
}

/// The row that keeps the streamer from going on.
fn halted_rows(row: &DeadLetterEntry, rows: &mut Vec<(&'static str, String)>) {
    let id = row.row_id.as_deref().unwrap_or("without id");
    rows.push((
        "HALTED",
        format!("at row {id} of {} ({})", row.table_name, row.position),
    ));
    let detail = row.detail.as_deref().unwrap_or("no detail");
    rows.push(("  reason", format!("{}: {detail}", row.reason)));
    rows.push((
        "  since",
        format!("{} ({})", row.parked_at, duration(row.age)),
    ));
}

fn slot_rows(slot: &SlotLag, lag: Option<Duration>, rows: &mut Vec<(&'static str, String)>) {
    rows.push(("slot", slot.slot.clone()));
    let state = match (&slot.holder, slot.is_lost()) {
        (_, true) => format!(
            "LOST ({})",
            slot.invalid_reason.as_deref().unwrap_or("its WAL is gone")
        ),
        (Some(holder), _) => format!(
            "streaming to backend {} ({})",
            holder.pid,
            holder.application_name.as_deref().unwrap_or("unknown")
        ),
        (None, _) => match slot.inactive_for {
            Some(since) => format!("nobody streams from it, for {}", duration(since)),
            None => "nobody streams from it".to_owned(),
        },
    };
    rows.push(("  state", state));
    let mut optional = |name, value: Option<String>| rows.extend(value.map(|value| (name, value)));
    let size = |value: Option<i64>| value.map(|value| bytes(u64::try_from(value).unwrap_or(0)));
    optional(
        "  confirmed",
        slot.confirmed_flush_lsn.map(|lsn| lsn.to_string()),
    );
    optional("  server at", slot.current_lsn.map(|lsn| lsn.to_string()));
    optional("  not confirmed", size(slot.unconfirmed_bytes));
    optional("  lag", lag.map(duration));
    let held = slot.held_by_open_xacts_bytes.filter(|held| *held > 0);
    optional(
        "  WAL retained",
        size(slot.retained_bytes).map(|retained| match (held, &slot.oldest_xact) {
            (Some(held), Some(xact)) => format!(
                "{retained}, of which {} for the oldest open transaction ({})",
                bytes(u64::try_from(held).unwrap_or(0)),
                open_transaction(xact)
            ),
            _ => retained,
        }),
    );
    optional(
        "  until lost",
        match (slot.safe_wal_size_bytes, slot.keep_size_bytes) {
            (Some(safe), _) => Some(format!(
                "{} more WAL ({})",
                bytes(u64::try_from(safe).unwrap_or(0)),
                slot.wal_status.as_deref().unwrap_or("unknown")
            )),
            (None, None) if !slot.is_lost() => {
                Some("never: max_slot_wal_keep_size is unlimited, the disk is the limit".to_owned())
            }
            _ => slot.wal_status.clone(),
        },
    );
    optional(
        "  sync_state",
        slot.sync_state
            .clone()
            .filter(|state| state != "async")
            .map(|state| {
                format!("{state}: commits wait for this streamer; see synchronous_standby_names")
            }),
    );
}

fn open_transaction(xact: &postgres::OpenTransaction) -> String {
    let who = match (xact.pid, &xact.gid) {
        (Some(pid), _) => format!("backend {pid}"),
        (None, Some(gid)) => format!("prepared {gid:?}"),
        (None, None) => "unknown".to_owned(),
    };
    match xact.age {
        Some(age) => format!("{who}, open for {}", duration(age)),
        None => who,
    }
}

/// Bytes in the unit that keeps the number readable, as PostgreSQL's `pg_size_pretty` counts.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 10_240 {
        return format!("{count} B");
    }
    let mut value = count;
    let mut unit = "B";
    for next in UNITS {
        if value < 10_240 {
            break;
        }
        value /= 1024;
        unit = next;
    }
    format!("{value} {unit}")
}

fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..=9 => format!("{:.1} s", duration.as_secs_f64()),
        10..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_readable() {
        for (count, text) in [
            (0, "0 B"),
            (10_239, "10239 B"),
            (10_240, "10 KiB"),
            (64 << 20, "64 MiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
        for (seconds, text) in [
            (1, "1.0 s"),
            (75, "75 s"),
            (600, "10 min"),
            (10_000, "2 h"),
            (900_000, "10 d"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }
}
