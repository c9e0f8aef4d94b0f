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

/// The text is not the name of a table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a table name: {text:?} (write table, schema.table, or quote parts as in SQL: \
     \"My-Schema\".\"Out.box\")"
)]
pub struct TableNameError {
    text: String,
}

impl TableName {
    /// The name as SQL takes it, in double quotes.
    #[must_use]
    pub fn to_sql(&self) -> String {
        quote_qualified(&self.schema, &self.name)
    }

    /// Reads a name as SQL does: unquoted parts are folded to lower case, parts in double quotes
    /// are taken as they are. Without a schema, `public`.
    ///
    /// # Errors
    /// More than two parts, an empty one, or quotes that do not match.
    pub fn parse(text: &str) -> Result<Self, TableNameError> {
        let fault = || TableNameError {
            text: text.chars().take(200).collect(),
        };
        let (first, rest) = identifier(text).ok_or_else(fault)?;
        let Some(rest) = rest else {
            return Ok(Self {
                schema: "public".to_owned(),
                name: first,
            });
        };
        match identifier(rest).ok_or_else(fault)? {
            (name, None) => Ok(Self {
                schema: first,
                name,
            }),
            _ => Err(fault()),
        }
    }
}

/// One identifier and, after a dot, the rest.
fn identifier(text: &str) -> Option<(String, Option<&str>)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (name, rest) = match text.split_once('.') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let plain = |c: char| c.is_alphanumeric() || c == '_' || c == '$';
        let fits = !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit() || c == '$')
            && name.chars().all(plain);
        // Only ASCII is folded, as PostgreSQL does in UTF-8 databases.
        return fits.then(|| (name.to_ascii_lowercase(), rest));
    };
    let mut name = String::new();
    let mut rest = quoted;
    loop {
        let (part, after) = rest.split_once('"')?;
        name.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => {
                name.push('"');
                rest = more;
            }
            None if name.is_empty() || name.contains('\0') => return None,
            None if after.is_empty() => return Some((name, None)),
            None => return Some((name, Some(after.strip_prefix('.')?))),
        }
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
    /// `NOT NULL`.
    pub not_null: bool,
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
    /// Columns of the primary key.
    pub primary_key: Vec<String>,
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
                 has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), \
                 ARRAY(SELECT a.attname::text FROM pg_index i \
                       JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, place) \
                       ON true JOIN pg_attribute a \
                       ON a.attrelid = c.oid AND a.attnum = k.attnum \
                       WHERE i.indrelid = c.oid AND i.indisprimary ORDER BY k.place) \
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
            primary_key: row.try_get(4)?,
            readable: row.try_get(3)?,
        }))
    }

    async fn columns(&self, oid: u32) -> Result<Vec<Column>, PgError> {
        let rows = self
            .client()
            .query(
                "SELECT attname::text, format_type(atttypid, atttypmod), attnotnull, \
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
                not_null: row.try_get(2)?,
                generated: row.try_get(3)?,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_names_are_read_as_sql_reads_them() {
        for (text, schema, name) in [
            ("outbox", "public", "outbox"),
            ("Outbox", "public", "outbox"),
            ("audit.outbox", "audit", "outbox"),
            ("\"Audit\".\"Out-Box\"", "Audit", "Out-Box"),
            ("\"a.b\".\"c\"\"d\"", "a.b", "c\"d"),
            ("\"select\"", "public", "select"),
            ("sales.\"Order\"", "sales", "Order"),
        ] {
            let table = TableName::parse(text).unwrap();
            assert_eq!(
                (table.schema.as_str(), table.name.as_str()),
                (schema, name),
                "{text}"
            );
            assert_eq!(TableName::parse(&table.to_sql()).unwrap(), table);
        }
        for text in [
            "", ".", "a.", ".a", "a.b.c", "a-b", "\"a", "\"\"", "\"a\"b", "1a", "a b",
        ] {
            assert!(TableName::parse(text).is_err(), "{text}");
        }
    }
}
