//! Parking a row that JetStream cannot take: `postrider.dead_letter`.

use crate::control::Control;
use crate::error::PgError;

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

impl Control {
    /// Parks a row. True if it was not parked before; the same row a second time changes nothing,
    /// so that a crash between parking and confirming is harmless. When this returns, the row is
    /// committed to disk.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn park(&self, letter: &DeadLetter<'_>) -> Result<bool, PgError> {
        let inserted = self
            .client()
            .execute(
                "INSERT INTO postrider.dead_letter (slot, source, position, table_name, row_id, \
                 dedup_id, subject, headers, payload, reason, detail, created_at) \
                 VALUES ($1, $2, $3, $4, $5, $6, $7, COALESCE($8::text, '{}')::json, $9, $10, \
                 $11, $12) ON CONFLICT DO NOTHING",
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
                ],
            )
            .await?;
        Ok(inserted == 1)
    }

    /// How many rows of `slot` are parked; `None` if there is no table or no right to read it.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn dead_letter_count(&self, slot: &str) -> Result<Option<i64>, PgError> {
        if !self.may("SELECT").await?.unwrap_or(false) {
            return Ok(None);
        }
        let row = self
            .client()
            .query_one(
                "SELECT count(*) FROM postrider.dead_letter WHERE slot = $1",
                &[&slot],
            )
            .await?;
        Ok(Some(row.try_get(0)?))
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
