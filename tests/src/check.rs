//! Holds a stream against its table.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use anyhow::{Context, Result, ensure};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::line::Writers;
use crate::stored::Stored;
use crate::witness::Committed;

/// How many of the rows at fault an error names.
const NAMED_MAX: usize = 10;

/// The rows of a table: id and payload, as text.
#[derive(Debug, Clone, Default)]
pub struct Table {
    /// By id; a payload that is NULL is `None`.
    pub rows: HashMap<String, Option<String>>,
}

impl Table {
    /// Reads the columns `id` and `payload`, as text, of a table named as SQL names it.
    ///
    /// # Errors
    /// Those of the server.
    pub async fn read(client: &Client, table: &str) -> Result<Self> {
        let sql = format!("SELECT id::text, payload::text FROM {table}");
        let mut rows = HashMap::new();
        for message in client.simple_query(&sql).await? {
            if let SimpleQueryMessage::Row(row) = message {
                let id = row.get(0).context("a row without id")?;
                rows.insert(id.to_owned(), row.get(1).map(str::to_owned));
            }
        }
        Ok(Self { rows })
    }
}

/// Checks that the stream holds exactly the committed rows, in order.
///
/// Exclusive: each once, in the order of the commits. Shared: each at least once, and the rows of
/// each aggregate appear first in the order of the commits. Either way each message names its
/// commit in `Outbox-Position`.
///
/// # Errors
/// Says what is missing, too many or out of order.
pub fn check_order(committed: &[Committed], stored: &[Stored], writers: Writers) -> Result<()> {
    let wanted: BTreeSet<&str> = committed.iter().map(|row| row.id.as_str()).collect();
    ensure!(
        wanted.len() == committed.len(),
        "two committed rows have one id"
    );
    let found: BTreeSet<&str> = stored.iter().map(Stored::id).collect();
    let named = |ids: Vec<&&str>| {
        let some: Vec<&&str> = ids.iter().take(NAMED_MAX).copied().collect();
        format!("{}: {some:?}", ids.len())
    };
    let missing: Vec<&&str> = wanted.difference(&found).collect();
    ensure!(
        missing.is_empty(),
        "of {} committed rows the stream lacks {}",
        committed.len(),
        named(missing)
    );
    let phantoms: Vec<&&str> = found.difference(&wanted).collect();
    ensure!(
        phantoms.is_empty(),
        "the stream holds rows that were not committed, {}",
        named(phantoms)
    );
    if writers == Writers::Exclusive {
        check_once(stored)?;
    }
    let mut seen = HashSet::new();
    let first: Vec<&Stored> = stored
        .iter()
        .filter(|message| seen.insert(message.id()))
        .collect();
    check_sequence(committed, &first, writers)
}

/// Checks that no row is in the stream twice.
///
/// # Errors
/// Names rows that are.
pub fn check_once(stored: &[Stored]) -> Result<()> {
    let mut seen = HashSet::new();
    let twice: Vec<&str> = stored
        .iter()
        .map(Stored::id)
        .filter(|id| !seen.insert(*id))
        .take(NAMED_MAX)
        .collect();
    ensure!(
        twice.is_empty(),
        "{} messages, some rows twice: {twice:?}",
        stored.len()
    );
    Ok(())
}

/// Compares ids in order, within each ordering key.
fn check_sequence(committed: &[Committed], first: &[&Stored], writers: Writers) -> Result<()> {
    let rows: HashMap<&str, &Committed> =
        committed.iter().map(|row| (row.id.as_str(), row)).collect();
    let key = |row: &Committed| match writers {
        Writers::Exclusive => String::new(),
        Writers::Shared => row.aggregate_id.clone(),
    };
    let mut wanted: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for row in committed {
        wanted.entry(key(row)).or_default().push(&row.id);
    }
    let mut next: BTreeMap<String, std::vec::IntoIter<&str>> = wanted
        .into_iter()
        .map(|(key, ids)| (key, ids.into_iter()))
        .collect();
    for message in first {
        let row = rows.get(message.id()).context("a phantom")?;
        let expected = next.get_mut(&key(row)).and_then(Iterator::next);
        ensure!(
            expected == Some(message.id()),
            "sequence {} holds row {} where row {expected:?} is next, ordering key {:?}",
            message.sequence,
            message.id(),
            key(row)
        );
        let position = message.header("Outbox-Position").unwrap_or_default();
        let commit = position.rsplit_once('/').map(|(commit, _)| commit);
        ensure!(
            commit == Some(row.commit_lsn.to_string().as_str()),
            "row {} was committed at {} but its Outbox-Position is {position:?}",
            row.id,
            row.commit_lsn
        );
    }
    Ok(())
}

/// Checks that each message has its row's payload, byte for byte, and nothing for NULL.
///
/// # Errors
/// Names the first row that differs.
pub fn check_payloads(table: &Table, stored: &[Stored]) -> Result<()> {
    for message in stored {
        let id = message.id();
        let payload = table.rows.get(id);
        let payload = payload.with_context(|| format!("the table has no row {id}"))?;
        let is_null = message.header("Outbox-Payload") == Some("null");
        ensure!(
            is_null == payload.is_none(),
            "row {id}: Outbox-Payload tells of NULL: {is_null}"
        );
        let wanted = payload.as_deref().unwrap_or_default().as_bytes();
        ensure!(
            wanted == message.payload,
            "row {id}: {} bytes in the table, {} in the stream, not the same",
            wanted.len(),
            message.payload.len()
        );
    }
    Ok(())
}
