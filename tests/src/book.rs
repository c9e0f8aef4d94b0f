//! What a stream must hold, told bit by bit, and what is wrong with it.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::line::Writers;
use crate::sampler::Sample;
use crate::stored::Stored;
use crate::witness::{self, Committed};

/// How many violations are described; the others are only counted.
const DESCRIBED_MAX: usize = 50;

/// How many rows at fault a description names.
const NAMED_MAX: usize = 10;

/// What has been found so far.
#[derive(Debug, Default, Clone)]
pub struct Findings {
    /// Committed rows.
    pub rows: u64,
    /// Messages of the stream.
    pub messages: u64,
    /// Samples of the confirmation that were checked.
    pub samples: u64,
    /// Rows that were confirmed while the stream lacked them, or that it lacked in the end.
    pub lost: u64,
    /// Rows that came before one that was committed earlier under the same ordering key; in an
    /// exclusive stream all rows have one.
    pub out_of_order: u64,
    /// Messages of a row that the stream had already.
    pub stored_twice: u64,
    /// Messages that are no committed row, or not as it was committed.
    pub phantoms: u64,
    /// The first violations, in words.
    pub described: Vec<String>,
}

impl Findings {
    /// Whether the guarantee holds so far.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost + self.out_of_order + self.stored_twice + self.phantoms == 0
    }

    fn describe(&mut self, text: String) {
        if self.described.len() < DESCRIBED_MAX {
            self.described.push(text);
        }
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Self) {
        self.rows += other.rows;
        self.messages += other.messages;
        self.samples += other.samples;
        self.lost += other.lost;
        self.out_of_order += other.out_of_order;
        self.stored_twice += other.stored_twice;
        self.phantoms += other.phantoms;
        for text in &other.described {
            self.describe(text.clone());
        }
    }
}

/// A committed row that is not checked to its end yet.
#[derive(Debug)]
struct Awaited {
    committed: Committed,
    stored_at_unix_ns: Option<i128>,
}

/// The committed rows, the messages that are theirs, and the samples of the confirmation. What was
/// checked is forgotten but for its id.
#[derive(Debug)]
pub(crate) struct Book {
    writers: Writers,
    /// In the order of the commits.
    awaited: VecDeque<Awaited>,
    /// How many rows have left the front of `awaited`.
    left: usize,
    /// Where an id that is not stored yet stands, counted from the first row of all.
    unstored: HashMap<String, usize>,
    /// The same numbers for each ordering key.
    next_of_key: HashMap<String, VecDeque<usize>>,
    stored_ids: HashSet<String>,
    pub(crate) findings: Findings,
}

impl Book {
    pub(crate) fn new(writers: Writers) -> Self {
        Self {
            writers,
            awaited: VecDeque::new(),
            left: 0,
            unstored: HashMap::new(),
            next_of_key: HashMap::new(),
            stored_ids: HashSet::new(),
            findings: Findings::default(),
        }
    }

    /// A row was committed, after all that were told before.
    pub(crate) fn commit(&mut self, row: Committed) {
        let number = self.left + self.awaited.len();
        self.unstored.insert(row.id.clone(), number);
        self.key_of(&row.aggregate_id).push_back(number);
        self.findings.rows += 1;
        self.awaited.push_back(Awaited {
            committed: row,
            stored_at_unix_ns: None,
        });
    }

    /// The rows of an ordering key that are not stored yet.
    fn key_of(&mut self, aggregate_id: &str) -> &mut VecDeque<usize> {
        let key = match self.writers {
            Writers::Exclusive => "",
            Writers::Shared => aggregate_id,
        };
        self.next_of_key.entry(key.to_owned()).or_default()
    }

    /// The next message of the stream. Its row, if it has one, was told before.
    pub(crate) fn store(&mut self, message: &Stored) {
        let (id, sequence) = (message.id().to_owned(), message.sequence);
        self.findings.messages += 1;
        if self.stored_ids.contains(&id) {
            self.findings.stored_twice += 1;
            self.findings
                .describe(format!("sequence {sequence} holds row {id} once more"));
            return;
        }
        let number = self.unstored.remove(&id);
        let index = number.and_then(|number| number.checked_sub(self.left));
        let row = index.and_then(|index| self.awaited.get_mut(index));
        let (Some(number), Some(row)) = (number, row) else {
            self.findings.phantoms += 1;
            self.findings.describe(format!(
                "sequence {sequence} holds {id:?}, which is no committed row"
            ));
            return;
        };
        row.stored_at_unix_ns = Some(message.stored_at_unix_ns);
        let key = row.committed.aggregate_id.clone();
        let differs = difference(&row.committed, message);
        let waiting = self.key_of(&key);
        let place = waiting.iter().position(|waits| *waits == number);
        if let Some(place) = place {
            waiting.remove(place);
        }
        if place != Some(0) {
            let ahead_of = place.unwrap_or_default();
            self.findings.out_of_order += 1;
            self.findings.describe(format!(
                "sequence {sequence} holds row {id}, ordering key {key}, ahead of {ahead_of} rows \
                 that were committed before it"
            ));
        }
        if let Some(differs) = differs {
            self.findings.phantoms += 1;
            self.findings
                .describe(format!("sequence {sequence}, row {id}: {differs}"));
        }
        self.stored_ids.insert(id);
    }

    /// Nothing may be confirmed that the stream did not hold at the time. All messages that were
    /// stored before the sample was taken were told before.
    pub(crate) fn sample(&mut self, sample: Sample) {
        self.findings.samples += 1;
        let covered = self
            .awaited
            .partition_point(|row| row.committed.end_lsn <= sample.confirmed);
        let early = self.awaited.iter().take(covered).find(|row| {
            let stored_at = row.stored_at_unix_ns;
            stored_at.is_none_or(|stored_at| stored_at > sample.taken_at_unix_ns)
        });
        let Some(row) = early else { return };
        let when = match row.stored_at_unix_ns {
            Some(at) => format!("stored {} us later", (at - sample.taken_at_unix_ns) / 1000),
            None => String::from("which is not stored yet"),
        };
        self.findings.lost += 1;
        let (confirmed, id) = (sample.confirmed, row.committed.id.clone());
        self.findings.describe(format!(
            "{confirmed} was confirmed, and with it row {id}, {when}"
        ));
    }

    /// Lets go of rows that were stored before a time from which on all samples are still to come.
    pub(crate) fn forget(&mut self, before_unix_ns: i128) {
        while self.awaited.front().is_some_and(|row| {
            row.stored_at_unix_ns
                .is_some_and(|stored_at| stored_at < before_unix_ns)
        }) {
            self.awaited.pop_front();
            self.left += 1;
        }
    }

    /// All has been told, and the table has so many rows.
    pub(crate) fn close(&mut self, in_table: u64) {
        let missing: Vec<&str> = self.unstored.keys().map(String::as_str).collect();
        if !missing.is_empty() {
            let some: Vec<&str> = missing.iter().take(NAMED_MAX).copied().collect();
            let text = format!("{} rows were never stored: {some:?}", missing.len());
            self.findings.lost += missing.len() as u64;
            self.findings.describe(text);
        }
        let rows = self.findings.rows;
        if in_table != rows {
            self.findings.lost += in_table.abs_diff(rows);
            self.findings
                .describe(format!("the table has {in_table} rows, its log has {rows}"));
        }
    }
}

/// What of a message is not as its row was committed.
fn difference(committed: &Committed, message: &Stored) -> Option<String> {
    let position = message.header("Outbox-Position").unwrap_or_default();
    let commit = position.rsplit_once('/').map(|(commit, _)| commit);
    if commit != Some(committed.commit_lsn.to_string().as_str()) {
        let wanted = committed.commit_lsn;
        return Some(format!(
            "committed at {wanted}, its Outbox-Position is {position:?}"
        ));
    }
    let same = witness::payload_hash(&message.payload) == committed.payload_hash;
    (!same).then(|| String::from("its payload is another one"))
}

#[cfg(test)]
mod tests;
