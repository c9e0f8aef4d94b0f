//! Outbox tables: their names, and what the catalog says of them.

use std::fmt;

use crate::control::Control;
use crate::error::PgError;
use crate::quote::quote_qualified;

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
    /// `schema.table`, in double quotes: the text that SQL takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&quote_qualified(&self.schema, &self.name))
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
            table.name,
            MAX_COUNTED_ROWS + 1,
        );
        let count: i64 = self.client().query_one(&statement, &[]).await?.try_get(0)?;
        Ok(if count > MAX_COUNTED_ROWS {
            RowCount::MoreThan(MAX_COUNTED_ROWS)
        } else {
            RowCount::Exactly(count)
        })
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
            assert_eq!(TableName::parse(&table.to_string()).unwrap(), table);
        }
        for text in [
            "", ".", "a.", ".a", "a.b.c", "a-b", "\"a", "\"\"", "\"a\"b", "1a", "a b",
        ] {
            assert!(TableName::parse(text).is_err(), "{text}");
        }
    }
}
