//! What a publication publishes, read from the catalog.

use crate::control::Control;
use crate::error::PgError;

/// A publication as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publication {
    /// Its name.
    pub name: String,
    /// Whether inserts are published.
    pub inserts: bool,
    /// Whether updates, deletes or truncations are published, too.
    pub more_than_inserts: bool,
    /// `FOR ALL TABLES`.
    pub all_tables: bool,
    /// `publish_via_partition_root`.
    pub via_root: bool,
    /// The tables, those of schemas and of `FOR ALL TABLES` included; at most
    /// [`MAX_PUBLISHED_TABLES`].
    pub tables: Vec<PublishedTable>,
}

/// A table of a publication.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishedTable {
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// The columns that are published (15 and newer).
    pub columns: Option<Vec<String>>,
    /// The row filter (15 and newer).
    pub row_filter: Option<String>,
}

/// Most tables that are read of one publication: `FOR ALL TABLES` in a large database.
pub const MAX_PUBLISHED_TABLES: usize = 10_000;

impl Publication {
    /// The entry of a table.
    #[must_use]
    pub fn table(&self, schema: &str, name: &str) -> Option<&PublishedTable> {
        self.tables
            .iter()
            .find(|table| table.schema == schema && table.name == name)
    }
}

impl Control {
    /// Reads a publication; `None` if there is none of this name.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn publication(&self, name: &str) -> Result<Option<Publication>, PgError> {
        // One statement, so that the parts belong together. to_jsonb makes the columns that 14
        // lacks a NULL.
        let rows = self
            .client()
            .query(
                "SELECT p.pubinsert, p.pubupdate OR p.pubdelete OR p.pubtruncate, \
                 p.puballtables, p.pubviaroot, t.schemaname::text, t.tablename::text, \
                 (SELECT array_agg(a) FROM jsonb_array_elements_text(CASE jsonb_typeof(j.row -> \
                 'attnames') WHEN 'array' THEN j.row -> 'attnames' END) a), \
                 j.row ->> 'rowfilter' \
                 FROM pg_publication p \
                 LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname \
                 LEFT JOIN LATERAL (SELECT to_jsonb(t) AS row) j ON true \
                 WHERE p.pubname = $1 LIMIT 10000",
                &[&name],
            )
            .await?;
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let mut tables = Vec::new();
        for row in &rows {
            if let Some(schema) = row.try_get::<_, Option<String>>(4)? {
                tables.push(PublishedTable {
                    schema,
                    name: row.try_get(5)?,
                    columns: row.try_get(6)?,
                    row_filter: row.try_get(7)?,
                });
            }
        }
        Ok(Some(Publication {
            name: name.to_owned(),
            inserts: first.try_get(0)?,
            more_than_inserts: first.try_get(1)?,
            all_tables: first.try_get(2)?,
            via_root: first.try_get(3)?,
            tables,
        }))
    }
}
