//! Outbox tables: their names, and what the catalog says of them.

use std::fmt;

use tokio_postgres::SimpleQueryMessage;

use crate::control::Control;
use crate::error::PgError;
use crate::quote::{quote_identifier, quote_literal, quote_qualified};

/// Rows that are counted exactly; beyond, "at least" is enough to say and cheaper to know.
pub const MAX_COUNTED_ROWS: i64 = 1_000_000;

/// Schema and name of a table, each exactly as in the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
}

impl TableName {
    /// The name as SQL takes it, in double quotes.
    #[must_use]
    pub fn to_sql(&self) -> String {
        quote_qualified(&self.schema, &self.name)
    }
}

impl fmt::Display for TableName {
    /// `schema.table`, for people; SQL takes [`to_sql`](TableName::to_sql).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// What kind of relation a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableKind {
    /// An ordinary table.
    Ordinary,
    /// A partitioned table.
    Partitioned,
    /// A view, foreign table, sequence or other relation that has no WAL of its own.
    Other,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name.
    pub name: String,
    /// Type as `format_type` writes it, for example `timestamp with time zone`.
    pub type_name: String,
    /// `GENERATED ALWAYS AS (...)`: not published before server 18.
    pub generated: bool,
}

/// A table as the catalog has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableInfo {
    /// Its name.
    pub name: TableName,
    /// Its oid, which stays when it is renamed.
    pub oid: u32,
    /// Its kind.
    pub kind: TableKind,
    /// `UNLOGGED` or temporary: its rows are not in the WAL.
    pub unlogged: bool,
    /// Its columns in their order.
    pub columns: Vec<Column>,
    /// Whether our role may read it.
    pub readable: bool,
}

/// Rows of a table at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowCount {
    /// Counted.
    Exactly(i64),
    /// More than are worth counting.
    MoreThan(i64),
    /// The role may not read the table; the statistics say about this many (-1: never analysed).
    About(i64),
}

impl Control {
    /// Looks a table up by schema and name; `None` if there is none.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn table(&self, table: &TableName) -> Result<Option<TableInfo>, PgError> {
        let row = self
            .client()
            .query_opt(
                "SELECT c.oid, c.relkind::text, c.relpersistence::text, \
                 has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') \
                 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE n.nspname = $1 AND c.relname = $2",
                &[&table.schema, &table.name],
            )
            .await?;
        let Some(row) = row else { return Ok(None) };
        let oid: u32 = row.try_get(0)?;
        Ok(Some(TableInfo {
            name: table.clone(),
            oid,
            kind: match row.try_get::<_, &str>(1)? {
                "r" => TableKind::Ordinary,
                "p" => TableKind::Partitioned,
                _ => TableKind::Other,
            },
            unlogged: row.try_get::<_, &str>(2)? != "p",
            columns: self.columns(oid).await?,
            readable: row.try_get(3)?,
        }))
    }

    async fn columns(&self, oid: u32) -> Result<Vec<Column>, PgError> {
        let rows = self
            .client()
            .query(
                "SELECT attname::text, format_type(atttypid, atttypmod), \
                 attgenerated::text <> '' FROM pg_attribute \
                 WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                &[&oid],
            )
            .await?;
        let mut columns = Vec::with_capacity(rows.len());
        for row in rows {
            columns.push(Column {
                name: row.try_get(0)?,
                type_name: row.try_get(1)?,
                generated: row.try_get(2)?,
            });
        }
        Ok(columns)
    }

    /// Counts the rows of a table, up to [`MAX_COUNTED_ROWS`].
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn row_count(&self, table: &TableInfo) -> Result<RowCount, PgError> {
        if !table.readable {
            let row = self
                .client()
                .query_one(
                    "SELECT reltuples::int8 FROM pg_class WHERE oid = $1",
                    &[&table.oid],
                )
                .await?;
            return Ok(RowCount::About(row.try_get(0)?));
        }
        let statement = format!(
            "SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS counted",
            table.name.to_sql(),
            MAX_COUNTED_ROWS + 1,
        );
        let count: i64 = self.client().query_one(&statement, &[]).await?.try_get(0)?;
        Ok(if count > MAX_COUNTED_ROWS {
            RowCount::MoreThan(MAX_COUNTED_ROWS)
        } else {
            RowCount::Exactly(count)
        })
    }

    /// Counts the rows of a table that were committed before a slot was made, as long as it has
    /// not streamed; `None` if the slot is not there or the role may not read the table. No more
    /// than [`MAX_COUNTED_ROWS`] rows are looked at.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn rows_before_slot(
        &self,
        table: &TableInfo,
        slot: &str,
    ) -> Result<Option<RowCount>, PgError> {
        if !table.readable {
            return Ok(None);
        }
        // Until it streams, a slot keeps the oldest transaction that ran when it was made. A row
        // of long ago has an xmin of an earlier round of the counter, which looks like the future.
        let statement = format!(
            "SELECT count(*), count(*) FILTER (WHERE age(rows.xmin) NOT BETWEEN 0 AND s.oldest) \
             FROM (SELECT age(catalog_xmin) AS oldest FROM pg_replication_slots \
                   WHERE slot_name = $1 AND catalog_xmin IS NOT NULL) AS s, \
             LATERAL (SELECT t.xmin FROM {} AS t LIMIT {}) AS rows",
            table.name.to_sql(),
            MAX_COUNTED_ROWS + 1,
        );
        let row = self.client().query_one(&statement, &[&slot]).await?;
        let (all, before): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Some(if all > MAX_COUNTED_ROWS && before > 0 {
            RowCount::MoreThan(before - 1)
        } else {
            RowCount::Exactly(before)
        }))
    }

    /// The rows of a table with this id, at most two: their values in the order of
    /// [`TableInfo::columns`], in the text form of their types.
    ///
    /// # Errors
    /// A broken connection, or the server's error, also where `id` is no value of the column's type
    /// or a value is not UTF-8.
    pub async fn rows_with_id(
        &self,
        table: &TableInfo,
        column: &str,
        id: &str,
    ) -> Result<Vec<Vec<Option<String>>>, PgError> {
        let columns: Vec<String> = table
            .columns
            .iter()
            .map(|column| quote_identifier(&column.name))
            .collect();
        // A literal without a type takes that of the column, so that an index serves.
        let statement = format!(
            "SELECT {} FROM {} WHERE {} = {} LIMIT 2",
            columns.join(", "),
            table.name.to_sql(),
            quote_identifier(column),
            quote_literal(id),
        );
        let mut rows = Vec::new();
        for message in self.client().simple_query(&statement).await? {
            if let SimpleQueryMessage::Row(row) = message {
                let value = |index| Ok(row.try_get(index)?.map(str::to_owned));
                let values: Result<_, PgError> = (0..columns.len()).map(value).collect();
                rows.push(values?);
            }
        }
        Ok(rows)
    }
}
