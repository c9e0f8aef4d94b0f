//! A second slot on the same publication, which tells in which order the rows were committed.

use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use pgoutput::{Decoder, Lsn, Message, ProtocolVersion, Relation, Value};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

/// Name of the slot.
const SLOT: &str = "witness";

/// Changes that [`take`] reads at a time; a transaction is never cut.
const TAKEN_AT_A_TIME: i32 = 20_000;

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
    /// Of its column `payload` as the stream is to have it, see [`payload_hash`].
    pub payload_hash: u64,
}

/// A number that two payloads share only by chance; NULL is as empty.
#[must_use]
pub fn payload_hash(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    payload.hash(&mut hasher);
    hasher.finish()
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
    Ok(decode(&changes, table)?.0)
}

/// How far [`take`] has come.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cursor {
    /// The commit record of the last row given.
    commit_lsn: Lsn,
    /// The end of the last transaction read.
    end_lsn: Lsn,
}

/// The next rows committed to a table, in the order of the commits; `None` when there are no more.
///
/// What it has given is forgotten by the slot with the next call, so that the slot retains little:
/// not before, or an answer that is lost on the way would lose rows. A crash of the server makes
/// the slot remember again; those rows are not given once more.
///
/// # Errors
/// Those of the server, and bytes that are no pgoutput. The next call gives what this one had.
pub async fn take(
    client: &Client,
    publication: &str,
    table: &str,
    cursor: &mut Cursor,
) -> Result<Option<Vec<Committed>>> {
    if cursor.end_lsn > Lsn::ZERO {
        let sql = "SELECT pg_replication_slot_advance($1, $2::text::pg_lsn)::text";
        let end = cursor.end_lsn.to_string();
        client.query_one(sql, &[&SLOT, &end]).await?;
    }
    let sql = "SELECT data FROM pg_logical_slot_peek_binary_changes($1, NULL, $3, \
               'proto_version', '1', 'publication_names', $2)";
    let parameters: [&(dyn ToSql + Sync); 3] = [&SLOT, &publication, &TAKEN_AT_A_TIME];
    let changes = client.query(sql, &parameters).await?;
    let (mut rows, Some(end)) = decode(&changes, table)? else {
        return Ok(None);
    };
    rows.retain(|row| row.commit_lsn > cursor.commit_lsn);
    cursor.end_lsn = end;
    if let Some(last) = rows.last() {
        cursor.commit_lsn = last.commit_lsn;
    }
    Ok(Some(rows))
}

/// Reads the rows of a table out of pgoutput's messages, and where the last transaction ends.
fn decode(changes: &[Row], table: &str) -> Result<(Vec<Committed>, Option<Lsn>)> {
    let mut decoder = Decoder::new(ProtocolVersion::V1);
    let mut relation: Option<Relation> = None;
    let mut all: Vec<Committed> = Vec::new();
    let mut commit_lsn = Lsn::default();
    let mut first_of_transaction = 0;
    let mut end = None;
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
                    payload_hash: payload_hash(
                        column(relation, &values, "payload")?
                            .unwrap_or_default()
                            .as_bytes(),
                    ),
                });
            }
            Message::Commit(commit) => {
                end = Some(commit.end_lsn);
                for row in all.iter_mut().skip(first_of_transaction) {
                    row.end_lsn = commit.end_lsn;
                }
            }
            _ => {}
        }
    }
    Ok((all, end))
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
