//! What is sent for a dead letter: the row as its table holds it now, else what the letter holds.
//!
//! The row comes first, since that is where it can be mended: by an UPDATE of its headers or
//! payload, or by another subject or dedup id in the configuration. It has to be the very row: the
//! only one of its id, and made at the same time, where the table says when. Without it the letter
//! is sent, unless its own fault is that it could not be rendered whole.

use std::collections::HashMap;

use outbox::{
    CommandMessage, OutboxSpec, PoisonReason, ResumeMark, StoredLetter, TableRow, UnfitRow, header,
    id_column,
};
use postgres::{Control, DeadLetterFull, PgError, TableInfo, TableName};

use crate::config::Settings;
use crate::driver::columns_of;

/// `Outbox-Origin` of these messages.
pub(super) const ORIGIN: &str = "dead-letter";

/// Why there is no message.
#[derive(Debug)]
pub(super) struct Unfit {
    /// A short name of the kind of fault.
    pub(super) reason: String,
    /// In words.
    pub(super) detail: String,
}

impl From<PoisonReason> for Unfit {
    fn from(reason: PoisonReason) -> Self {
        Self {
            reason: reason.name().to_owned(),
            detail: reason.to_string(),
        }
    }
}

/// What is to be sent.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) message: CommandMessage,
    /// It is the row as its table has it, not what the letter holds.
    pub(super) from_table: bool,
}

/// The outbox tables as they are now.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// By `schema.table`; `None` where it cannot be read.
    known: HashMap<String, Option<Table>>,
}

#[derive(Debug, Clone)]
struct Table {
    spec: OutboxSpec,
    info: TableInfo,
    id_column: String,
}

impl Tables {
    /// The message for a letter.
    pub(super) async fn message(
        &mut self,
        settings: &Settings,
        control: &Control,
        letter: &DeadLetterFull,
        mark: &ResumeMark,
    ) -> Result<Result<Found, Unfit>, PgError> {
        let limit = settings.nats.max_message_bytes.unwrap_or(u64::MAX);
        if let Some((table, values)) = self.row(settings, control, letter).await? {
            let columns: Vec<_> = columns_of(&table.info).collect();
            let values: Vec<_> = values
                .iter()
                .map(|value| value.as_ref().map(String::as_bytes))
                .collect();
            let row = TableRow {
                columns: &columns,
                values: &values,
            };
            match row.message(&table.spec, mark, ORIGIN, limit) {
                Ok(message) if same_time(&message, letter) => {
                    let from_table = true;
                    return Ok(Ok(Found {
                        message,
                        from_table,
                    }));
                }
                Err(UnfitRow::Poison(reason)) => return Ok(Err(reason.into())),
                // Another row that has got the same id since, or another table of that name.
                Ok(_) | Err(UnfitRow::Table(_)) => {}
            }
        }
        let entry = &letter.entry;
        if !letter.complete {
            return Ok(Err(Unfit {
                reason: entry.reason.clone(),
                detail: format!(
                    "its row is not in {} any more, and the dead letter does not hold all of it: \
                     insert a mended row, then discard this",
                    entry.table_name
                ),
            }));
        }
        let headers = match headers_of(&letter.headers_json) {
            Ok(headers) => headers,
            Err(error) => {
                return Ok(Err(Unfit {
                    reason: "headers_not_object".to_owned(),
                    detail: format!("the headers of the dead letter cannot be read: {error}"),
                }));
            }
        };
        let stored = StoredLetter {
            subject: entry.subject.as_deref().unwrap_or_default(),
            dedup_id: entry.dedup_id.as_deref().unwrap_or_default(),
            headers: &headers,
            payload: letter.payload.as_deref().unwrap_or_default(),
        };
        let message = stored.message(mark, ORIGIN, limit);
        Ok(message.map_err(Unfit::from).map(|message| Found {
            message,
            from_table: false,
        }))
    }

    /// The row of a letter, if its table holds exactly one with its id.
    async fn row(
        &mut self,
        settings: &Settings,
        control: &Control,
        letter: &DeadLetterFull,
    ) -> Result<Option<(Table, Vec<Option<String>>)>, PgError> {
        let Some(id) = letter.entry.row_id.as_deref() else {
            return Ok(None);
        };
        let Some(table) = self
            .table(settings, control, &letter.entry.table_name)
            .await?
        else {
            return Ok(None);
        };
        let found = control
            .rows_with_id(&table.info, &table.id_column, id)
            .await;
        let mut rows = match found {
            Ok(rows) => rows,
            // An id or a value that does not fit any more; a broken connection shows again.
            Err(error) => {
                tracing::debug!("row {id} cannot be read: {}", error.one_line());
                return Ok(None);
            }
        };
        let only = rows.pop().filter(|_| rows.is_empty());
        Ok(only.map(|values| (table, values)))
    }

    async fn table(
        &mut self,
        settings: &Settings,
        control: &Control,
        name: &str,
    ) -> Result<Option<Table>, PgError> {
        if let Some(known) = self.known.get(name) {
            return Ok(known.clone());
        }
        let is_this = |spec: &&OutboxSpec| format!("{}.{}", spec.schema, spec.table) == name;
        let mut table = None;
        if let Some(spec) = settings.outboxes.iter().find(is_this) {
            let name = TableName {
                schema: spec.schema.clone(),
                name: spec.table.clone(),
            };
            let found = control.table(&name).await?.filter(|info| info.readable);
            table = found.and_then(|info| {
                let id_column = id_column(spec, columns_of(&info)).ok()?;
                Some(Table {
                    spec: spec.clone(),
                    info,
                    id_column,
                })
            });
        }
        self.known.insert(name.to_owned(), table.clone());
        Ok(table)
    }
}

/// Whether row and letter were made at the same time, as far as both tell.
fn same_time(message: &CommandMessage, letter: &DeadLetterFull) -> bool {
    match (
        message.headers.get(header::CREATED_AT),
        &letter.entry.created_at,
    ) {
        (Some(row), Some(letter)) => row == letter,
        _ => true,
    }
}

/// Names and values of a JSON object, in their order, a name as often as it comes.
fn headers_of(json: &str) -> Result<Vec<(String, String)>, serde_json::Error> {
    struct Members(Vec<(String, String)>);

    impl<'de> serde::Deserialize<'de> for Members {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;

            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Members;

                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("a JSON object of texts")
                }

                fn visit_map<A: serde::de::MapAccess<'de>>(
                    self,
                    mut map: A,
                ) -> Result<Members, A::Error> {
                    let mut members = Vec::new();
                    while let Some(member) = map.next_entry()? {
                        members.push(member);
                    }
                    Ok(Members(members))
                }
            }

            deserializer.deserialize_map(Visitor)
        }
    }

    serde_json::from_str(json).map(|Members(members)| members)
}

#[cfg(test)]
mod tests {
    use super::headers_of;

    #[test]
    fn headers_keep_their_order_and_number() {
        let headers = headers_of(r#"{"b": "1", "a": "\u0000", "b": "2"}"#).unwrap();
        let headers: Vec<_> = headers
            .iter()
            .map(|(name, value)| (&name[..], &value[..]))
            .collect();
        assert_eq!(headers, [("b", "1"), ("a", "\0"), ("b", "2")]);
        for bad in ["[]", "{", r#"{"a": 1}"#] {
            assert!(headers_of(bad).is_err(), "{bad}");
        }
    }
}
