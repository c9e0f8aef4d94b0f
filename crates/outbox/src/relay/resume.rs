//! The resume point: which replayed rows the stream holds already, and the proof of it.
//!
//! Where everything up to some position is stored, replayed rows up to there need not be sent
//! again, however long the outage was. In an exclusive stream, which holds a prefix of the rows in
//! commit order, that is the position of the last message; in a shared one the messages say it of
//! themselves. What exactly the stream tells is worked out in `survey.rs`.
//!
//! But a position means something only in the log that it came from. A restored backup or a cloned
//! server has the same system identifier and other rows at the same LSNs. So a skip is proved,
//! never assumed: until the row at the resume position has arrived with the id that is stored
//! there, the ledger is on hold, and if the replay passes the position without meeting that row,
//! the session starts again without a resume point. Single rows behind the resume position that
//! were found in the stream are proof of themselves: they arrive at their position with their id.

use crate::Position;
use crate::broker::{StoredRow, Tail, Writers};
use crate::notice::{EpochReason, Notice};
use crate::render::Rendered;
use crate::source::Standing;

use super::broker::Broker;
use super::survey::Strangers;
use super::window::RowState;
use super::{Action, Relay};

/// What is known about rows that need not be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resume {
    /// No row is skipped (any more).
    Settled,
    /// Rows at or before the position of `row` are skipped.
    Skipping {
        row: Box<StoredRow>,
        /// Rows skipped so far. None: nothing is on hold, as nothing is believed yet.
        skipped: u64,
    },
}

/// What an arriving row means to the resume point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Not skipped.
    New,
    /// Stored.
    Skip,
    /// At the resume position: its id decides.
    Decides,
    /// The resume position was passed without its row.
    Void,
}

impl Resume {
    /// Looks at a row that arrives at `position`.
    pub(crate) fn arrival(&self, at: Position) -> Arrival {
        match self {
            Self::Settled => Arrival::New,
            Self::Skipping { row, skipped } => match at.cmp(&row.position) {
                std::cmp::Ordering::Less => Arrival::Skip,
                std::cmp::Ordering::Equal => Arrival::Decides,
                std::cmp::Ordering::Greater if *skipped > 0 => Arrival::Void,
                std::cmp::Ordering::Greater => Arrival::New,
            },
        }
    }

    /// Whether rows are believed to be stored without a proof yet.
    pub(crate) const fn is_unproved(&self) -> bool {
        matches!(self, Self::Skipping { skipped, .. } if *skipped > 0)
    }
}

impl Relay {
    /// A session and an epoch are both there: works out where to go on.
    pub(super) fn reconcile(&mut self, now: std::time::Instant) {
        if !self.session.is_up() {
            return;
        }
        let Some(start) = self.broker.start() else {
            return;
        };
        if self.epoch_session != self.counters.sessions {
            // The tail was read before the slot was ours: its holder may have published since.
            self.end_epoch(now, EpochReason::BeforeSession);
            return;
        }
        let Some(located) = &self.located else {
            self.locate(now);
            return;
        };
        if located.writers != start.writers {
            // What was found out holds for the one kind of stream only.
            self.restart_session(now, EpochReason::StreamChanged);
            return;
        }
        let unchanged = located.last_sequence == start.last_sequence && located.tail == start.tail;
        // A command that wrote behind the tail has carried its position and id forward.
        let unchanged = unchanged
            || matches!((&located.tail, &start.tail),
                (Tail::Row(before), Tail::Row(row)) if row.repeats(before));
        match start.writers {
            Writers::Shared => self.look_for_sent(now),
            // Nothing was stored in this session.
            Writers::Exclusive if unchanged => {}
            // Rows were skipped on the word of an earlier epoch. It has to be the same word still.
            Writers::Exclusive if self.resume.is_unproved() => {
                self.restart_session(now, EpochReason::StreamChanged);
            }
            Writers::Exclusive if self.resume != Resume::Settled => {
                self.resume = Resume::Settled;
                self.beyond.clear();
                self.located = None;
                self.locate(now);
            }
            Writers::Exclusive => self.go_on(now),
        }
    }

    /// A later epoch of the session, in an exclusive stream in which something was stored since
    /// the session began.
    fn go_on(&mut self, now: std::time::Instant) {
        let (Some(session), Some(start)) = (self.session.start(), self.broker.start()) else {
            return;
        };
        let log_end = self.log_end();
        let detail = match &start.tail {
            Tail::Row(row) if row.sequence <= self.void_up_to => None,
            Tail::Row(row)
                if row.chained
                    && row.resume_id().is_some()
                    && session.standing(row, log_end) == Standing::Held =>
            {
                let row = row.clone();
                self.resume_at(now, row);
                return;
            }
            Tail::Row(_) => Some("its last message is none of this server's history"),
            Tail::Foreign => {
                let sequence = start.last_sequence;
                self.tell_strangers(Strangers {
                    first_sequence: sequence,
                    last_sequence: sequence,
                    count: 1,
                });
                None
            }
            Tail::Empty | Tail::Gone => {
                Some("its last message is gone by age, limit, purge or delete")
            }
        };
        let notice = detail.map(|detail| Notice::NoResumePoint { detail });
        self.notices.extend(notice);
        self.be_careful();
        self.verify_sent(now, None);
    }

    /// Goes on behind a stored row. Should it turn out at once to be none of this server's, the
    /// session starts again.
    pub(super) fn resume_at(&mut self, now: std::time::Instant, tail: StoredRow) {
        let position = tail.position;
        let proved = if self.seen.newest_stored >= Some(position) {
            Some(true)
        } else {
            self.window
                .at(position)
                .map(|row| tail.has_resume_id(&row.message.dedup_id))
        };
        let passed = self.window.iter().any(|(_, row)| row.position > position);
        let behind = self
            .window
            .front()
            .is_some_and(|row| row.position <= position);
        match proved {
            Some(true) => {
                self.seen.newest_stored = self.seen.newest_stored.max(Some(position));
                let skipped = self.cover(now, position);
                if skipped > 0 {
                    self.counters.skipped += skipped;
                    self.notices
                        .push_back(Notice::Resumed { position, skipped });
                }
            }
            Some(false) => self.void_resume(now, position, tail.sequence),
            None if passed && behind => self.void_resume(now, position, tail.sequence),
            None if passed => {}
            None => {
                self.notices.push_back(Notice::Resuming {
                    position,
                    sequence: tail.sequence,
                });
                self.resume = Resume::Skipping {
                    row: Box::new(tail),
                    skipped: 0,
                };
                self.skipped(self.window.unsettled() as u64);
                self.cover(now, position);
            }
        }
    }

    /// Settles every row of the window up to a position, and says how many. Rows that this process
    /// sent itself are first looked for at the sequence that they were to get.
    fn cover(&mut self, now: std::time::Instant, position: Position) -> u64 {
        self.verify_sent(now, Some(position));
        let covered: Vec<_> = self
            .window
            .iter()
            .take_while(|(_, row)| row.position <= position)
            .filter(|(_, row)| row.state == RowState::Waiting && row.due_sequence.is_none())
            .map(|(token, _)| token)
            .collect();
        let count = covered.len() as u64;
        for token in covered {
            self.settle(token);
        }
        count
    }

    /// Asks what stands at the sequences that rows sent by this process were to get, up to a
    /// position if there is one.
    fn verify_sent(&mut self, now: std::time::Instant, position: Option<Position>) {
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        let (epoch, last_sequence) = (live.number, live.start.last_sequence);
        for (token, row) in self.window.iter_mut() {
            if position.is_some_and(|position| row.position > position) {
                break;
            }
            if row.state == RowState::Waiting
                && let Some(sequence) = row.due_sequence.filter(|due| *due <= last_sequence)
            {
                row.state = RowState::Verified;
                live.judging += 1;
                live.judged_until = now + self.settings.ack_timeout;
                self.actions.push_back(Action::ReadBack {
                    epoch,
                    token,
                    sequence,
                });
            }
        }
    }

    /// Notes that replayed rows are not sent; from the first on, nothing more is settled.
    pub(super) fn skipped(&mut self, rows: u64) {
        if let Resume::Skipping { skipped, .. } = &mut self.resume {
            *skipped += rows;
            self.counters.skipped += rows;
            if *skipped > 0 {
                self.ledger.hold();
            }
        }
    }

    /// The row at the resume position arrived: its id proves the skip or voids it.
    pub(super) fn decide_resume(&mut self, now: std::time::Instant, row: &Rendered) {
        let Resume::Skipping {
            row: stored,
            skipped,
        } = &self.resume
        else {
            return;
        };
        let (position, sequence, skipped) = (stored.position, stored.sequence, *skipped + 1);
        if !stored.has_resume_id(&row.dedup_id) {
            self.void_resume(now, position, sequence);
            return;
        }
        self.counters.skipped += 1;
        self.seen.newest_stored = self.seen.newest_stored.max(Some(position));
        self.resume = Resume::Settled;
        self.window.passed(position);
        self.ledger.release();
        self.notices
            .push_back(Notice::Resumed { position, skipped });
    }

    /// The replay has passed the resume position, as a Begin or a keepalive shows.
    pub(super) fn void_if_passed(&mut self, now: std::time::Instant, reached: pgoutput::Lsn) {
        if let Resume::Skipping { row, .. } = &self.resume
            && self.resume.is_unproved()
            && reached > row.position.commit_lsn
        {
            let (position, sequence) = (row.position, row.sequence);
            self.void_resume(now, position, sequence);
        }
    }

    /// The resume position is none: the session starts again and skips nothing on its word.
    pub(super) fn void_resume(
        &mut self,
        now: std::time::Instant,
        position: Position,
        sequence: u64,
    ) {
        // The second time, nothing that stood there is believed any more.
        let located = self.located.as_ref();
        let sequence = match (self.void_up_to, located) {
            (1.., Some(located)) => located.last_sequence,
            _ => sequence,
        };
        self.void_up_to = self.void_up_to.max(sequence);
        self.notices.push_back(Notice::ResumeVoid { position });
        self.restart_session(now, EpochReason::SessionEnded);
    }
}
