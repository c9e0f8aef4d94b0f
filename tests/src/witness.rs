//! A second slot on the same publication, which tells in which order the rows were committed.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use pgoutput::{Decoder, Lsn, Message, ProtocolVersion, Relation, Value};
use tokio_postgres::Client;

/// Name of the slot.
const SLOT: &str = "witness";

/// A committed row of an outbox table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// Its column `id`, as text.
    pub id: String,
    /// Its column `aggregate_id`; empty where the table has none or the value is NULL.
    pub aggregate_id: String,
    /// The position of its commit record.
    pub commit_lsn: Lsn,
    /// The end of its transaction: what a slot that has confirmed it stands at or behind.
    pub end_lsn: Lsn,
}

/// Makes the slot. Rows committed from now on are seen by it.
///
/// # Errors
/// Those of the server.
pub async fn open(client: &Client) -> Result<()> {
    let sql = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')::text";
    client
        .query_one(sql, &[&SLOT])
        .await
        .context("the witness slot")?;
    Ok(())
}

/// Drops the slot, which otherwise retains all WAL.
///
/// # Errors
/// Those of the server.
pub async fn close(client: &Client) -> Result<()> {
    let sql = "SELECT pg_drop_replication_slot($1)";
    client.query_one(sql, &[&SLOT]).await?;
    Ok(())
}

/// The rows committed to a table since [`open`], in the order of their commits. Can be asked again.
///
/// # Errors
/// Those of the server, and bytes that are no pgoutput.
pub async fn rows(client: &Client, publication: &str, table: &str) -> Result<Vec<Committed>> {
    let sql = "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL, \
               'proto_version', '1', 'publication_names', $2)";
    let changes = client.query(sql, &[&SLOT, &publication]).await?;
    let mut decoder = Decoder::new(ProtocolVersion::V1);
    let mut relation: Option<Relation> = None;
    let mut all: Vec<Committed> = Vec::new();
    let mut commit_lsn = Lsn::default();
    let mut first_of_transaction = 0;
    for change in changes {
        let data: Vec<u8> = change.try_get(0)?;
        match decoder.decode(Bytes::from(data))? {
            Message::Begin(begin) => {
                commit_lsn = begin.final_lsn;
                first_of_transaction = all.len();
            }
            Message::Relation(found) if found.name.as_bytes() == table.as_bytes() => {
                relation = Some(found);
            }
            Message::Insert(insert) => {
                let Some(relation) = relation.as_ref().filter(|it| it.id == insert.relation_id)
                else {
                    continue;
                };
                let values: Vec<Value<'_>> = insert.new.iter().collect();
                all.push(Committed {
                    id: column(relation, &values, "id")?.context("a row without id")?,
                    aggregate_id: column(relation, &values, "aggregate_id")?.unwrap_or_default(),
                    commit_lsn,
                    end_lsn: Lsn::default(),
                });
            }
            Message::Commit(commit) => {
                for row in all.iter_mut().skip(first_of_transaction) {
                    row.end_lsn = commit.end_lsn;
                }
            }
            _ => {}
        }
    }
    Ok(all)
}

/// The text of a column; `None` for NULL and where there is no such column.
fn column(relation: &Relation, values: &[Value<'_>], name: &str) -> Result<Option<String>> {
    let columns = relation.columns.iter();
    let named = |column: &pgoutput::Column| column.name.as_bytes() == name.as_bytes();
    let index = columns.into_iter().position(named);
    match index.and_then(|index| values.get(index)) {
        Some(Value::Text(bytes)) => Ok(Some(String::from_utf8(bytes.to_vec())?)),
        Some(Value::Null) | None => Ok(None),
        Some(other) => bail!("column {name} has {other:?}"),
    }
}
