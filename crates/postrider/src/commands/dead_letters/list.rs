//! `dead-letters list`.

use std::collections::BTreeMap;
use std::time::Duration;

use postgres::{Control, DeadLetterEntry, DeadLetterFilter};
use serde_json::{Value, json};

use crate::cli::output::{complain, print};
use crate::cli::{ListArgs, Output};
use crate::config::Settings;
use crate::exit::{CommandError, Exit};

use super::{advice, table_error};

/// Most letters that are shown. Whoever has more has one reason many times, and the filters.
const SHOWN_MAX: i64 = 10_000;

/// Longest id or subject that a table shows, in characters; JSON has all of it.
const SHOWN_CHARS: usize = 60;

/// What becomes of a row that the streamer halts at.
const HALTED_ADVICE: &str = "the streamer stops at this row: cure it and start `run` again, or let \
                             it go with on_poison = \"park\"";

pub(super) async fn execute(
    settings: &Settings,
    control: &Control,
    args: ListArgs,
) -> Result<Exit, CommandError> {
    let filter = DeadLetterFilter {
        slot: (!args.all_slots).then(|| settings.postgres.slot.clone()),
        table_name: args.table,
        reason: args.reason,
    };
    let found = control.dead_letters(&filter, SHOWN_MAX + 1).await;
    let mut entries = found.map_err(|error| table_error(&error))?;
    let shown = usize::try_from(SHOWN_MAX).unwrap_or(usize::MAX);
    let more = entries.len() > shown;
    entries.truncate(shown);
    match args.output {
        Output::Json => {
            let entries: Vec<Value> = entries.iter().map(member).collect();
            print(&format!("{}\n", Value::from(entries)))?;
        }
        Output::Table => print(&table(&entries, args.all_slots))?,
    }
    if more {
        complain(&format!(
            "only the oldest {SHOWN_MAX} are shown; --table and --reason narrow them down"
        ));
    }
    Ok(Exit::Done)
}

/// A letter for programs. What it lacks is absent, not null.
fn member(entry: &DeadLetterEntry) -> Value {
    let advice = if entry.halted {
        HALTED_ADVICE
    } else {
        advice(&entry.reason)
    };
    let all = json!({
        "id": entry.id,
        "slot": entry.slot,
        "state": if entry.halted { "halted" } else { "parked" },
        "table": entry.table_name,
        "row_id": entry.row_id,
        "dedup_id": entry.dedup_id,
        "position": entry.position,
        "subject": entry.subject,
        "payload_bytes": entry.payload_bytes,
        "reason": entry.reason,
        "detail": entry.detail,
        "created_at": entry.created_at,
        "parked_at": entry.parked_at,
        "age_seconds": entry.age.as_secs(),
        "tries": entry.tries,
        "advice": advice,
    });
    match all {
        Value::Object(members) => {
            let members = members.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(members.collect())
        }
        other => other,
    }
}

/// The letters for people: one line each, its fault below, and what to do about each kind.
fn table(entries: &[DeadLetterEntry], all_slots: bool) -> String {
    if entries.is_empty() {
        return "no dead letters\n".to_owned();
    }
    let mut rows = vec![
        [
            "id", "age", "table", "row id", "subject", "payload", "tries", "reason",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    for entry in entries {
        rows.push(vec![
            entry.id.to_string(),
            age(entry.age),
            entry.table_name.clone(),
            shortened(entry.row_id.as_deref().unwrap_or("-")),
            shortened(entry.subject.as_deref().unwrap_or("-")),
            entry
                .payload_bytes
                .map_or_else(|| "NULL".to_owned(), |bytes| format!("{bytes} B")),
            entry.tries.to_string(),
            entry.reason.clone(),
        ]);
    }
    let mut text = String::new();
    let widths = widths(&rows);
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths);
        let line: Vec<String> = cells
            .map(|(cell, &width)| format!("{cell:<width$}"))
            .collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
        let Some(entry) = index.checked_sub(1).and_then(|index| entries.get(index)) else {
            continue;
        };
        if all_slots {
            text.push_str(&format!("    slot {}\n", entry.slot));
        }
        if let Some(detail) = &entry.detail {
            text.push_str(&format!("    {detail}\n"));
        }
        if entry.halted {
            text.push_str(&format!("    HALTED: {HALTED_ADVICE}\n"));
        }
    }
    let parked = entries.iter().filter(|entry| !entry.halted);
    let cures: BTreeMap<&str, &str> = parked
        .map(|entry| (entry.reason.as_str(), advice(&entry.reason)))
        .collect();
    if !cures.is_empty() {
        text.push_str("\nwhat to do (`postrider dead-letters retry ID`, `... discard ID`)\n");
    }
    for (reason, cure) in cures {
        text.push_str(&format!("  {reason}: {cure}\n"));
    }
    text
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let mut widths = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    widths
}

/// A text that fits a line, without what would leave it.
pub(super) fn shortened(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(SHOWN_CHARS).map(clean).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        short.push('…');
    }
    short
}

fn age(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..=119 => format!("{seconds} s"),
        seconds @ 120..=7_199 => format!("{} min", seconds / 60),
        seconds @ 7_200..=172_799 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> DeadLetterEntry {
        DeadLetterEntry {
            id: 7,
            slot: "postrider".to_owned(),
            halted: false,
            position: "0/1/0".to_owned(),
            table_name: "public.outbox".to_owned(),
            row_id: Some("5".to_owned()),
            dedup_id: None,
            subject: Some("s".repeat(100)),
            payload_bytes: None,
            reason: "no_id".to_owned(),
            detail: Some("the row has no id".to_owned()),
            created_at: None,
            parked_at: "2026-01-01T00:00:00Z".to_owned(),
            age: Duration::from_secs(130),
            tries: 2,
        }
    }

    #[test]
    fn a_table_names_each_fault_and_each_cure_once() {
        let halted = DeadLetterEntry {
            halted: true,
            row_id: Some("a\nb".to_owned()),
            ..entry()
        };
        let text = table(&[entry(), entry(), halted], false);
        assert_eq!(text.matches("the row has no id\n").count(), 3, "{text}");
        assert_eq!(text.matches("insert the row anew").count(), 1, "{text}");
        assert_eq!(text.matches("HALTED").count(), 1, "{text}");
        assert!(text.contains("2 min  public.outbox  5 "), "{text}");
        assert!(
            text.contains("a\u{fffd}b") && text.contains("sss…"),
            "{text}"
        );
        assert_eq!(table(&[], false), "no dead letters\n");
    }

    #[test]
    fn json_has_no_null() {
        let json = member(&entry());
        assert_eq!(json["state"], "parked");
        assert_eq!(json["tries"], 2);
        assert!(json.get("payload_bytes").is_none() && !json.to_string().contains("null"));
    }
}
