//! Rows that JetStream cannot take: `postrider.dead_letter`.
//!
//! A parked row is gone from the stream's way; what becomes of it is for people to say. A halted
//! one is only noted here, for `status`: it is still the slot's to send. Such a note needs nobody
//! to take it back: it counts as long as the slot has not confirmed the row's transaction.

use std::time::Duration;

use tokio_postgres::Row;

use crate::control::Control;
use crate::error::{Fault, PgError};

/// The table, as messages name it.
pub const DEAD_LETTER_TABLE: &str = "postrider.dead_letter";

/// A row to park. The fields are the columns of `sql/dead_letter.sql`.
#[derive(Debug, Clone, Copy, Default)]
pub struct DeadLetter<'a> {
    /// The slot it came through.
    pub slot: &'a str,
    /// `SYSTEM_IDENTIFIER/TIMELINE/DATABASE/SLOT`.
    pub source: &'a str,
    /// `COMMIT_LSN/N`.
    pub position: &'a str,
    /// `schema.table`.
    pub table_name: &'a str,
    /// The row's id as text.
    pub row_id: Option<&'a str>,
    /// The dedup id it would have had.
    pub dedup_id: Option<&'a str>,
    /// The subject it would have had.
    pub subject: Option<&'a str>,
    /// The headers as a JSON object; `None` for none.
    pub headers_json: Option<&'a str>,
    /// The body.
    pub payload: Option<&'a [u8]>,
    /// Subject, headers and payload are not all that the row was to become.
    pub incomplete: bool,
    /// A short name of the kind of fault.
    pub reason: &'a str,
    /// What exactly was wrong.
    pub detail: Option<&'a str>,
    /// When the row was made, as the outbox table has it.
    pub created_at: Option<&'a str>,
}

/// Whether rows can be parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeadLetterAccess {
    /// The role may insert.
    Writable,
    /// There is no table; `setup` makes it.
    Missing,
    /// The role may not use the schema or insert; see `sql/roles.sql`.
    NoRight,
}

/// A row of the table, without headers and payload.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetterEntry {
    /// Its number.
    pub id: i64,
    /// The slot it came through.
    pub slot: String,
    /// The streamer stopped at it; else it is parked.
    pub halted: bool,
    /// `COMMIT_LSN/N`.
    pub position: String,
    /// `schema.table`.
    pub table_name: String,
    /// The row's id as text.
    pub row_id: Option<String>,
    /// The dedup id it would have had.
    pub dedup_id: Option<String>,
    /// The subject it would have had.
    pub subject: Option<String>,
    /// Bytes of the body; `None` for none.
    pub payload_bytes: Option<i64>,
    /// A short name of the kind of fault.
    pub reason: String,
    /// What exactly was wrong.
    pub detail: Option<String>,
    /// When the row was made, as the outbox table has it.
    pub created_at: Option<String>,
    /// When it was parked or first halted at, RFC 3339 in UTC.
    pub parked_at: String,
    /// How long ago that was.
    pub age: Duration,
    /// How often it was sent again.
    pub tries: i32,
}

/// A row of the table with everything.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetterFull {
    /// What a list shows.
    pub entry: DeadLetterEntry,
    /// The headers, a JSON object.
    pub headers_json: String,
    /// The body; `None` for none.
    pub payload: Option<Vec<u8>>,
    /// Subject, headers and payload are all that the row was to become.
    pub complete: bool,
    /// The sequence that the last try was to get in an exclusive stream.
    pub due_sequence: Option<u64>,
}

/// What is about to be sent for a dead letter.
#[derive(Debug, Clone, Copy)]
pub struct LetterTry<'a> {
    /// The dedup id.
    pub dedup_id: &'a str,
    /// The subject.
    pub subject: &'a str,
    /// The sequence that it is to get in an exclusive stream.
    pub due_sequence: Option<u64>,
    /// Headers as a JSON object and body, where they are not those of the letter: it holds them
    /// from then on.
    pub content: Option<(&'a str, Option<&'a [u8]>)>,
}

/// Which rows of the table are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeadLetterFilter {
    /// Of this slot; `None` for all.
    pub slot: Option<String>,
    /// Of this table, as `schema.table`.
    pub table_name: Option<String>,
    /// With this reason.
    pub reason: Option<String>,
}

/// The table in numbers, for one slot.
#[derive(Debug, Clone, PartialEq)]
pub struct DeadLetterStats {
    /// Rows parked.
    pub parked: i64,
    /// How long ago the oldest was parked.
    pub oldest_age: Option<Duration>,
    /// The newest one's reason.
    pub newest_reason: Option<String>,
    /// The row at which the streamer stopped and which has not flowed since.
    pub halted: Option<DeadLetterEntry>,
}

/// Columns of a [`DeadLetterEntry`], in its order.
const ENTRY: &str = "d.id, d.slot, d.state = 'halted', d.position, d.table_name, d.row_id, \
     d.dedup_id, d.subject, octet_length(d.payload)::int8, d.reason, d.detail, d.created_at, \
     to_char(d.parked_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"'), \
     greatest(extract(epoch FROM now() - d.parked_at), 0)::float8, d.tries";

/// A note of a halt counts until its transaction is confirmed.
const COUNTS: &str = "(d.state = 'parked' OR NOT EXISTS (SELECT FROM pg_replication_slots s \
     WHERE s.slot_name = d.slot \
     AND s.confirmed_flush_lsn > regexp_replace(d.position, '/[0-9]+$', '')::pg_lsn))";

fn entry(row: &Row) -> Result<DeadLetterEntry, PgError> {
    let age: f64 = row.try_get(13)?;
    Ok(DeadLetterEntry {
        id: row.try_get(0)?,
        slot: row.try_get(1)?,
        halted: row.try_get(2)?,
        position: row.try_get(3)?,
        table_name: row.try_get(4)?,
        row_id: row.try_get(5)?,
        dedup_id: row.try_get(6)?,
        subject: row.try_get(7)?,
        payload_bytes: row.try_get(8)?,
        reason: row.try_get(9)?,
        detail: row.try_get(10)?,
        created_at: row.try_get(11)?,
        parked_at: row.try_get(12)?,
        age: Duration::try_from_secs_f64(age).unwrap_or_default(),
        tries: row.try_get(14)?,
    })
}

impl Control {
    /// Parks a row. True if it was not parked before; the same row a second time changes nothing,
    /// so that a crash between parking and confirming is harmless. When this returns, the row is
    /// committed to disk. The right to insert is enough.
    ///
    /// A header can hold a character that the database's encoding lacks, for JSON can name any.
    /// Headers are then written in ASCII, with the escapes of JSON, and so is the detail.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn park(&self, letter: &DeadLetter<'_>) -> Result<bool, PgError> {
        let inserted = self
            .insert_or_escape(letter, "parked", "DO NOTHING")
            .await?;
        Ok(inserted == 1)
    }

    /// Notes that the streamer stopped at a row. The note keeps the time of the first halt.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn note_halted(&self, letter: &DeadLetter<'_>) -> Result<(), PgError> {
        let newest = "(source, position, state) DO UPDATE \
                      SET reason = excluded.reason, detail = excluded.detail";
        match self.insert_or_escape(letter, "halted", newest).await {
            Err(error) if error.fault() == Fault::PermissionDenied => {
                self.insert_or_escape(letter, "halted", "DO NOTHING")
                    .await?;
            }
            other => {
                other?;
            }
        }
        Ok(())
    }

    async fn insert_or_escape(
        &self,
        letter: &DeadLetter<'_>,
        state: &str,
        on_conflict: &str,
    ) -> Result<u64, PgError> {
        match self.insert(letter, state, on_conflict).await {
            Err(error) if is_untranslatable(&error) => {
                let headers = letter.headers_json.map(in_ascii);
                let detail = letter.detail.map(in_ascii);
                let letter = DeadLetter {
                    headers_json: headers.as_deref(),
                    detail: detail.as_deref(),
                    ..*letter
                };
                self.insert(&letter, state, on_conflict).await
            }
            other => other,
        }
    }

    async fn insert(
        &self,
        letter: &DeadLetter<'_>,
        state: &str,
        on_conflict: &str,
    ) -> Result<u64, PgError> {
        let statement = format!(
            "INSERT INTO postrider.dead_letter (slot, source, position, table_name, row_id, \
             dedup_id, subject, headers, payload, reason, detail, created_at, state, \
             complete) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, COALESCE($8::text, '{{}}')::json, $9, $10, \
             $11, $12, $13, $14) ON CONFLICT {on_conflict}"
        );
        let inserted = self
            .client()
            .execute(
                &statement,
                &[
                    &letter.slot,
                    &letter.source,
                    &letter.position,
                    &letter.table_name,
                    &letter.row_id,
                    &letter.dedup_id,
                    &letter.subject,
                    &letter.headers_json,
                    &letter.payload,
                    &letter.reason,
                    &letter.detail,
                    &letter.created_at,
                    &state,
                    &!letter.incomplete,
                ],
            )
            .await?;
        Ok(inserted)
    }

    /// The table in numbers; `None` if there is no table or no right to read it.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn dead_letter_stats(&self, slot: &str) -> Result<Option<DeadLetterStats>, PgError> {
        if !self.may("SELECT").await?.unwrap_or(false) {
            return Ok(None);
        }
        let numbers = self
            .client()
            .query_one(
                "SELECT count(*), extract(epoch FROM now() - min(parked_at))::float8, \
                 (SELECT reason FROM postrider.dead_letter \
                  WHERE slot = $1 AND state = 'parked' ORDER BY id DESC LIMIT 1) \
                 FROM postrider.dead_letter WHERE slot = $1 AND state = 'parked'",
                &[&slot],
            )
            .await?;
        let statement = format!(
            "SELECT {ENTRY} FROM postrider.dead_letter d \
             WHERE d.slot = $1 AND d.state = 'halted' AND {COUNTS} ORDER BY d.id DESC LIMIT 1"
        );
        let halted = self.client().query_opt(&statement, &[&slot]).await?;
        let oldest: Option<f64> = numbers.try_get(1)?;
        Ok(Some(DeadLetterStats {
            parked: numbers.try_get(0)?,
            oldest_age: oldest.and_then(|age| Duration::try_from_secs_f64(age.max(0.0)).ok()),
            newest_reason: numbers.try_get(2)?,
            halted: halted.as_ref().map(entry).transpose()?,
        }))
    }

    /// Rows of the table in the order of their parking, at most `limit`.
    ///
    /// # Errors
    /// A broken connection, or the server's error, also where the table is missing.
    pub async fn dead_letters(
        &self,
        filter: &DeadLetterFilter,
        limit: i64,
    ) -> Result<Vec<DeadLetterEntry>, PgError> {
        let statement = format!(
            "SELECT {ENTRY} FROM postrider.dead_letter d WHERE ($1::text IS NULL OR d.slot = $1) \
             AND ($2::text IS NULL OR d.table_name = $2) AND ($3::text IS NULL OR d.reason = $3) \
             AND {COUNTS} ORDER BY d.id LIMIT $4"
        );
        let DeadLetterFilter {
            slot,
            table_name,
            reason,
        } = filter;
        let rows = self
            .client()
            .query(&statement, &[slot, table_name, reason, &limit])
            .await?;
        rows.iter().map(entry).collect()
    }

    /// The numbers of the parked rows that a filter names, in the order of their parking.
    ///
    /// # Errors
    /// A broken connection, or the server's error, also where the table is missing.
    pub async fn dead_letter_ids(&self, filter: &DeadLetterFilter) -> Result<Vec<i64>, PgError> {
        let DeadLetterFilter {
            slot,
            table_name,
            reason,
        } = filter;
        let rows = self
            .client()
            .query(
                "SELECT id FROM postrider.dead_letter WHERE ($1::text IS NULL OR slot = $1) \
                 AND ($2::text IS NULL OR table_name = $2) AND ($3::text IS NULL OR reason = $3) \
                 AND state = 'parked' ORDER BY id",
                &[slot, table_name, reason],
            )
            .await?;
        rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
    }

    /// One row of the table with everything; `None` if it is not there.
    ///
    /// # Errors
    /// A broken connection, or the server's error, also where the table is missing.
    pub async fn dead_letter(&self, id: i64) -> Result<Option<DeadLetterFull>, PgError> {
        let statement = format!(
            "SELECT {ENTRY}, d.headers::text, d.payload, d.due_sequence, d.complete \
             FROM postrider.dead_letter d WHERE d.id = $1"
        );
        let Some(row) = self.client().query_opt(&statement, &[&id]).await? else {
            return Ok(None);
        };
        let due_sequence: Option<i64> = row.try_get(17)?;
        Ok(Some(DeadLetterFull {
            entry: entry(&row)?,
            headers_json: row.try_get(15)?,
            payload: row.try_get(16)?,
            complete: row.try_get(18)?,
            due_sequence: due_sequence.and_then(|sequence| u64::try_from(sequence).ok()),
        }))
    }

    /// Notes that a row is about to be sent again, and where it is to stand. When this returns, the
    /// note is committed.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn note_try(&self, id: i64, sent: &LetterTry<'_>) -> Result<(), PgError> {
        let due = sent.due_sequence;
        let due = due.and_then(|sequence| i64::try_from(sequence).ok());
        let (headers, payload) = sent.content.unzip();
        self.client()
            .execute(
                "UPDATE postrider.dead_letter SET tries = tries + 1, tried_at = now(), \
                 dedup_id = $2, subject = $3, due_sequence = $4, \
                 headers = COALESCE($5::text::json, headers), \
                 payload = CASE WHEN $5::text IS NULL THEN payload ELSE $6 END, \
                 complete = complete OR $5::text IS NOT NULL WHERE id = $1",
                &[
                    &id,
                    &sent.dedup_id,
                    &sent.subject,
                    &due,
                    &headers,
                    &payload.flatten(),
                ],
            )
            .await?;
        Ok(())
    }

    /// Notes why a row could not be sent again; `sent` if the try was noted before.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn note_refusal(
        &self,
        id: i64,
        reason: &str,
        detail: &str,
        sent: bool,
    ) -> Result<(), PgError> {
        let more = i32::from(!sent);
        self.client()
            .execute(
                "UPDATE postrider.dead_letter SET reason = $2, detail = $3, tries = tries + $4, \
                 tried_at = now() WHERE id = $1",
                &[&id, &reason, &detail, &more],
            )
            .await?;
        Ok(())
    }

    /// Removes a parked row of a slot, and gives back what it was; `None` if there is none.
    ///
    /// # Errors
    /// A broken connection, or the server's error, also where the table is missing.
    pub async fn remove_dead_letter(
        &self,
        id: i64,
        slot: &str,
    ) -> Result<Option<DeadLetterEntry>, PgError> {
        let statement = format!(
            "DELETE FROM postrider.dead_letter d \
             WHERE d.id = $1 AND d.slot = $2 AND d.state = 'parked' RETURNING {ENTRY}"
        );
        let row = self.client().query_opt(&statement, &[&id, &slot]).await?;
        row.as_ref().map(entry).transpose()
    }

    /// Removes the notes of halts of a slot whose rows have flowed, where the role may.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn forget_halts(&self, slot: &str) -> Result<u64, PgError> {
        if !self.may("DELETE").await?.unwrap_or(false) {
            return Ok(0);
        }
        let statement = format!(
            "DELETE FROM postrider.dead_letter d \
             WHERE d.slot = $1 AND d.state = 'halted' AND NOT {COUNTS}"
        );
        Ok(self.client().execute(&statement, &[&slot]).await?)
    }

    /// Whether rows can be parked here.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn dead_letter_access(&self) -> Result<DeadLetterAccess, PgError> {
        Ok(match self.may("INSERT").await? {
            None => DeadLetterAccess::Missing,
            Some(true) => DeadLetterAccess::Writable,
            Some(false) => DeadLetterAccess::NoRight,
        })
    }

    /// Whether our role has `privilege` on the table; `None` if there is none. Reads the catalog
    /// and not `to_regclass`, which fails without the right to use the schema.
    async fn may(&self, privilege: &str) -> Result<Option<bool>, PgError> {
        let row = self
            .client()
            .query_opt(
                "SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, $1) \
                 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = 'postrider' AND c.relname = 'dead_letter'",
                &[&privilege],
            )
            .await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }
}

/// `untranslatable_character` and `character_not_in_repertoire` (PostgreSQL manual, appendix A).
fn is_untranslatable(error: &PgError) -> bool {
    error
        .server()
        .is_some_and(|server| ["22P05", "22021"].contains(&server.code.as_str()))
}

/// The text with JSON's escapes for all that is not ASCII. JSON stays the same JSON: its strings
/// alone hold such characters.
fn in_ascii(text: &str) -> String {
    let mut ascii = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_ascii() && c != '\0' {
            ascii.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            ascii.push_str(&format!("\\u{unit:04x}"));
        }
    }
    ascii
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_in_ascii_is_the_same_json() {
        let text = "{\"a\":\"\u{e9}\u{4e2d}\u{1f600}\"}";
        let ascii = r#"{"a":"\u00e9\u4e2d\ud83d\ude00"}"#;
        assert_eq!(in_ascii(text), ascii);
    }
}
