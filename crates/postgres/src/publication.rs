//! What a publication publishes, read from the catalog.

use crate::control::Control;
use crate::error::PgError;
use crate::table::TableName;

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
    /// Those of the tables asked for that it publishes, by schemas and `FOR ALL TABLES` too.
    pub tables: Vec<PublishedTable>,
    /// How many more it publishes; not counted for `FOR ALL TABLES`.
    pub other_tables: i64,
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
    /// Reads a publication with regard to `tables`; `None` if there is none of this name.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn publication(
        &self,
        name: &str,
        tables: &[TableName],
    ) -> Result<Option<Publication>, PgError> {
        let schemas: Vec<&str> = tables.iter().map(|it| it.schema.as_str()).collect();
        let names: Vec<&str> = tables.iter().map(|it| it.name.as_str()).collect();
        // One statement, so that the parts belong together. to_jsonb makes the columns that 14
        // lacks a NULL.
        let rows = self
            .client()
            .query(
                "SELECT p.pubinsert, p.pubupdate OR p.pubdelete OR p.pubtruncate, \
                 p.puballtables, p.pubviaroot, t.schemaname::text, t.tablename::text, \
                 (SELECT array_agg(a) FROM jsonb_array_elements_text(CASE jsonb_typeof(j.row -> \
                 'attnames') WHEN 'array' THEN j.row -> 'attnames' END) a), \
                 j.row ->> 'rowfilter', \
                 CASE WHEN p.puballtables THEN 0 ELSE (SELECT count(*) \
                 FROM pg_publication_tables a WHERE a.pubname = p.pubname) END \
                 FROM pg_publication p \
                 LEFT JOIN pg_publication_tables t ON t.pubname = p.pubname \
                 AND (t.schemaname, t.tablename) IN \
                 (SELECT * FROM unnest($2::text[], $3::text[])) \
                 LEFT JOIN LATERAL (SELECT to_jsonb(t) AS row) j ON true \
                 WHERE p.pubname = $1",
                &[&name, &schemas, &names],
            )
            .await?;
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        let mut found = Vec::new();
        for row in &rows {
            if let Some(schema) = row.try_get::<_, Option<String>>(4)? {
                found.push(PublishedTable {
                    schema,
                    name: row.try_get(5)?,
                    columns: row.try_get(6)?,
                    row_filter: row.try_get(7)?,
                });
            }
        }
        let all: i64 = first.try_get(8)?;
        let ours = i64::try_from(found.len()).unwrap_or(i64::MAX);
        Ok(Some(Publication {
            other_tables: all.saturating_sub(ours).max(0),
            name: name.to_owned(),
            inserts: first.try_get(0)?,
            more_than_inserts: first.try_get(1)?,
            all_tables: first.try_get(2)?,
            via_root: first.try_get(3)?,
            tables: found,
        }))
    }
}
