//! What the stream's newest messages say about where to go on.
//!
//! # How far back is far enough
//!
//! Let W be the most rows that the window holds (`max_in_flight_rows`). Rows enter the window in
//! the order of the log and leave it at its front, settled; rows that are skipped because a message
//! proves them stored enter it all the same, settled. So whenever a row is sent, fewer than W rows
//! lie between it and the position up to which all is settled then.
//!
//! **Shared.** That position goes out with the row (`Outbox-Settled`). Let S be the greatest one in
//! the stream. A message m behind S was sent when its own mark S(m) <= S held, so it lies within W
//! rows of S: at most W positions behind S are stored. Let x be the one of them with the lowest
//! sequence. Stored after x are others behind S, fewer than W, and rows before S. Such a row was
//! not settled when x was sent, or it would not have been stored after x; so it lies between S(x)
//! and x, and there are fewer than W of those. Therefore **every stored row behind S lies among the
//! last 2 W messages of ours**, and so does the newest stored row at or before S: what was stored
//! after it lies behind it or, by the same argument, among the fewer than W rows before it.
//!
//! A mark speaks of rows that were stored before it, so the row by which it is proved is looked for
//! before it too. A restored or cloned server writes the same log by name: its rows may stand among
//! those of the other, and a mark of the one must not be proved by a row of the other.
//!
//! This holds over epochs, sessions and processes, as none of them begins before a position that
//! the slot has confirmed, nor counts its rows from elsewhere. Parked rows take a place in the
//! window and none in the stream. Three things can push a row out of the 2 W: copies of one
//! position (a publish of a connection given up that arrives behind the duplicate window), more
//! outboxes than before while a row is stuck, and messages in which the bound was another one. Then
//! a stored row is not found and is sent again: a copy, never a loss, since what is skipped is
//! skipped on what was found.
//!
//! **Exclusive.** The stream holds a prefix of the log unless somebody else wrote into it. A
//! stranger's message that took the place of a row in flight leaves that row out and the chain
//! behind it whole. When the streamer ended then, the row was among the W newest of its window and
//! everything sent behind it is behind the stranger, so the stranger stands among the last W
//! messages of ours. If one is there, only the rows before it count as a prefix; those behind it
//! are stored if they are found, one by one.

use std::collections::BTreeMap;

use crate::broker::{LookBack, Reach, SeenMessage, StoredRow, Writers, same_id};
use crate::source::{SessionStart, Standing};
use crate::{Position, Source};

/// A row that is known to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) position: Position,
    dedup_id: String,
    timeline: u32,
}

impl Known {
    fn of(row: &StoredRow) -> Self {
        Self {
            position: row.position,
            dedup_id: row.resume_id().unwrap_or_default().to_owned(),
            timeline: row.source.timeline,
        }
    }

    pub(crate) fn has_id(&self, dedup_id: &[u8]) -> bool {
        same_id(&self.dedup_id, self.timeline, dedup_id)
    }
}

/// Messages of ours that this server's log does not have, at the end of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    /// Why they are not this server's.
    pub(crate) standing: Standing,
    pub(crate) timeline: u32,
    pub(crate) first_sequence: u64,
    pub(crate) last_sequence: u64,
    /// How many there are; at most so many where not each was looked at.
    pub(crate) count: u64,
    pub(crate) lowest: Position,
    pub(crate) highest: Position,
}

impl Lost {
    /// The last message of all.
    pub(crate) fn of(row: &StoredRow, standing: Standing) -> Self {
        Self {
            standing,
            timeline: row.source.timeline,
            first_sequence: row.sequence,
            last_sequence: row.sequence,
            count: 1,
            lowest: row.position,
            highest: row.position,
        }
    }
}

/// Messages of others in an exclusive stream, behind one of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Strangers {
    pub(crate) first_sequence: u64,
    pub(crate) last_sequence: u64,
    pub(crate) count: u64,
}

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Rows at or before this one are stored.
    pub(crate) covered: Option<StoredRow>,
    /// Rows behind it that are stored, by position.
    pub(crate) beyond: Vec<Known>,
    /// Messages of ours, whatever their history.
    pub(crate) ours: usize,
    pub(crate) lost: Option<Lost>,
    pub(crate) strangers: Option<Strangers>,
    /// Dedup ids of rows that this server's history left behind.
    pub(crate) orphan_ids: Vec<String>,
}

/// Whose history counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct History<'a> {
    pub(crate) session: &'a SessionStart,
    /// The end of the server's log.
    pub(crate) log_end: pgoutput::Lsn,
    /// Messages up to this sequence were proved to be of another history.
    pub(crate) void_up_to: u64,
    /// Messages of ours that are read back.
    pub(crate) enough: usize,
}

impl History<'_> {
    pub(crate) fn standing(&self, row: &StoredRow) -> Standing {
        self.session.standing(row, self.log_end)
    }

    fn holds(&self, row: &StoredRow) -> bool {
        row.sequence > self.void_up_to && self.standing(row) == Standing::Held
    }

    fn source(&self) -> &Source {
        &self.session.source
    }
}

/// Messages that tell of a row: those of the streamer, and in an exclusive stream those of commands
/// that repeat the position and the id of the row before them. In a shared one that is not the row
/// up to which all is stored.
fn rows(messages: &[SeenMessage], writers: Writers) -> impl DoubleEndedIterator<Item = &StoredRow> {
    let exclusive = writers == Writers::Exclusive;
    let rows = messages.iter().filter_map(|message| message.row.as_ref());
    rows.filter(move |row| row.origin.is_none() || (exclusive && row.resume_id().is_some()))
}

/// Rows of this server's history among the messages, by position; of copies the newest.
pub(crate) fn held(history: History<'_>, found: &LookBack) -> Vec<Known> {
    let held = rows(&found.messages, Writers::Shared).filter(|row| history.holds(row));
    let held: BTreeMap<Position, Known> = held.map(|row| (row.position, Known::of(row))).collect();
    held.into_values().collect()
}

/// Works out where to go on.
pub(crate) fn survey(history: History<'_>, writers: Writers, found: &LookBack) -> Survey {
    let ours =
        || rows(&found.messages, writers).filter(|row| row.source.same_log(history.source()));
    let mut survey = Survey {
        ours: ours().count(),
        lost: lost(history, ours()),
        ..Survey::default()
    };
    let orphans = ours().filter(|row| history.standing(row).is_orphan());
    survey.orphan_ids = orphans.map(|row| row.dedup_id.clone()).collect();
    let held: Vec<&StoredRow> = ours().filter(|row| history.holds(row)).collect();
    // A stream may have been a shared one before; then there are holes.
    let is_chain = held.iter().all(|row| row.chained);
    if writers == Writers::Exclusive {
        survey.strangers = strangers(history, &held, &found.messages);
    }
    if writers == Writers::Exclusive && is_chain {
        survey.look_at_chain(history, &held, found);
    } else {
        survey.look_at_shared(&held);
    }
    survey
}

impl Survey {
    fn look_at_shared(&mut self, held: &[&StoredRow]) {
        // Everything settled lies before the row that says so. Of several the first: what a clone
        // of the server wrote behind it must not be taken for what it speaks of.
        let marks = held.iter().filter_map(|row| {
            let settled = row.settled.filter(|settled| *settled < row.position)?;
            Some((settled, std::cmp::Reverse(row.sequence)))
        });
        if let Some((settled, std::cmp::Reverse(said_at))) = marks.max() {
            let before = held.iter().filter(|row| row.sequence < said_at);
            let covered = before
                .filter(|row| row.position <= settled)
                .max_by_key(|row| (row.position, row.sequence));
            self.covered = covered.map(|row| (*row).clone());
        }
        self.keep_beyond(held.iter().copied());
    }

    fn look_at_chain(&mut self, history: History<'_>, held: &[&StoredRow], found: &LookBack) {
        let hiding = first_hiding(history, held, &found.messages);
        let mut least_behind = None;
        let mut covered = None;
        for &row in held.iter().rev() {
            let before_stranger = hiding.is_none_or(|first| row.sequence < first);
            if before_stranger && least_behind.is_none_or(|least| row.position < least) {
                covered = Some(row);
                break;
            }
            least_behind = Some(least_behind.map_or(row.position, |least| row.position.min(least)));
        }
        // A promotion may have cost dead letters that were committed behind the fork, of rows
        // before it. Where no message is missing, a row that is not found was parked, or never
        // stored: so each is looked at by itself, as far as the messages go back.
        let promoted = covered.is_some_and(|row| row.source.timeline != history.source().timeline);
        if promoted && is_gapless(&found.messages) {
            covered = held
                .first()
                .copied()
                .filter(|_| found.reach != Reach::Beginning);
        }
        self.covered = covered.cloned();
        let behind = covered.map_or(0, |row| row.sequence);
        let behind = held.iter().copied().filter(|row| row.sequence > behind);
        self.keep_beyond(behind);
    }

    /// Keeps what is stored behind the covered row; of copies the newest.
    fn keep_beyond<'a>(&mut self, held: impl Iterator<Item = &'a StoredRow>) {
        let covered = self.covered.as_ref().map(|row| row.position);
        let beyond: BTreeMap<Position, Known> = held
            .filter(|row| Some(row.position) > covered)
            .map(|row| (row.position, Known::of(row)))
            .collect();
        self.beyond = beyond.into_values().collect();
    }
}

fn is_gapless(messages: &[SeenMessage]) -> bool {
    let pairs = messages.iter().zip(messages.iter().skip(1));
    pairs
        .into_iter()
        .all(|(one, next)| next.sequence == one.sequence + 1)
}

/// The first stranger that may stand in the place of a row of ours, be it the very first one.
/// Behind it are some of ours, as what follows the last is yet to be sent, but not so many that all
/// before them was settled.
fn first_hiding(
    history: History<'_>,
    held: &[&StoredRow],
    messages: &[SeenMessage],
) -> Option<u64> {
    let is_ours = |row: &StoredRow| row.source.same_log(history.source());
    let stranger = |message: &&SeenMessage| !message.row.as_ref().is_some_and(is_ours);
    let strangers = messages.iter().filter(stranger);
    let mut sequences = strangers.map(|message| message.sequence);
    sequences.find(|sequence| {
        let behind = held.partition_point(|row| row.sequence < *sequence);
        let behind = held.len() - behind;
        behind > 0 && behind < history.enough
    })
}

/// The strangers that stand behind one of ours.
fn strangers(
    history: History<'_>,
    held: &[&StoredRow],
    messages: &[SeenMessage],
) -> Option<Strangers> {
    let first_of_ours = held.first()?.sequence;
    let is_ours = |row: &StoredRow| row.source.same_log(history.source());
    let mut strangers: Option<Strangers> = None;
    for message in messages {
        if message.sequence < first_of_ours || message.row.as_ref().is_some_and(is_ours) {
            continue;
        }
        let sequence = message.sequence;
        let found = strangers.get_or_insert(Strangers {
            first_sequence: sequence,
            last_sequence: sequence,
            count: 0,
        });
        found.last_sequence = sequence;
        found.count += 1;
    }
    strangers
}

/// The newest messages of ours, as far as they are none of this server's history.
fn lost<'a>(
    history: History<'_>,
    ours: impl DoubleEndedIterator<Item = &'a StoredRow>,
) -> Option<Lost> {
    let mut lost: Option<Lost> = None;
    for row in ours.rev() {
        let standing = history.standing(row);
        let other = lost.is_some_and(|lost| lost.standing != standing);
        if standing == Standing::Held || other {
            break;
        }
        match &mut lost {
            None => lost = Some(Lost::of(row, standing)),
            Some(lost) => {
                lost.first_sequence = row.sequence;
                lost.count += 1;
                lost.lowest = lost.lowest.min(row.position);
                lost.highest = lost.highest.max(row.position);
            }
        }
    }
    lost
}
