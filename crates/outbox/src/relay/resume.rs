//! The resume point: which replayed rows the stream holds already, and the proof of it.
//!
//! An exclusive stream holds exactly a prefix of the rows in commit order, so its last message
//! says everything: rows at or before its position are stored, rows after it are not. But that
//! position means something only in the log that it came from. A restored backup or a cloned
//! server has the same system identifier and other rows at the same LSNs. So a skip is proved,
//! never assumed: until the row at the resume position has arrived with the id that is stored
//! there, the ledger is on hold, and if the replay passes the position without meeting that row,
//! the session starts again without a resume point.

use crate::Position;
use crate::broker::{EpochStart, StoredRow, Tail, Writers, same_id};
use crate::notice::{EpochReason, Notice};
use crate::render::Rendered;
use crate::source::{SessionStart, Standing};

use super::broker::Broker;
use super::window::RowState;
use super::{Action, Relay};

/// What is known about rows that need not be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resume {
    /// No row is skipped (any more).
    Settled,
    /// Rows at or before `position` are skipped.
    Skipping {
        position: Position,
        dedup_id: String,
        sequence: u64,
        /// Rows skipped so far. None: nothing is on hold, as nothing is believed yet.
        skipped: u64,
    },
}

/// What an arriving row means to the resume point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Not stored: send it.
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
            Self::Skipping {
                position, skipped, ..
            } => match at.cmp(position) {
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
        let (Some(session), Some(start)) = (self.session.start(), self.broker.start()) else {
            return;
        };
        if self.epoch_session != self.counters.sessions {
            // The tail was read before the slot was ours: its holder may have published since.
            self.end_epoch(now, EpochReason::BeforeSession);
            return;
        }
        if let Resume::Skipping {
            position,
            dedup_id,
            sequence,
            skipped: 1..,
        } = &self.resume
        {
            // Rows were skipped on the word of an earlier epoch. It has to be the same word still.
            // A command that wrote behind it has carried its position and id forward.
            let same = |row: &StoredRow| {
                let carried = row.origin.is_some() && row.resume_id() == Some(dedup_id);
                row.position == *position && (row.sequence == *sequence || carried)
            };
            if !matches!(&start.tail, Tail::Row(row) if same(row)) {
                self.restart_session(now, EpochReason::StreamChanged);
            }
            return;
        }
        self.resume = Resume::Settled;
        let careful = match resume_row(session, start, self.void_tail, self.log_end()) {
            ResumePoint::At(row) => {
                let row = row.clone();
                self.resume_at(now, row);
                false
            }
            ResumePoint::None => false,
            ResumePoint::Unknown(notice) => {
                self.notices.extend(notice);
                true
            }
        };
        if let Some(epoch) = self.broker.epoch_mut() {
            epoch.careful |= careful;
        }
    }

    fn resume_at(&mut self, now: std::time::Instant, tail: StoredRow) {
        let position = tail.position;
        let resume_id = tail.resume_id().unwrap_or_default();
        let proved = if self.seen.newest_stored >= Some(position) {
            Some(true)
        } else {
            self.window
                .at(position)
                .map(|row| same_id(resume_id, &row.message.dedup_id))
        };
        let passed = self.window.iter().any(|(_, row)| row.position > position);
        let behind = self
            .window
            .front()
            .is_some_and(|row| row.position <= position);
        match proved {
            Some(true) => {
                self.seen.newest_stored = self.seen.newest_stored.max(Some(position));
                self.cover(now, position);
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
                    position,
                    dedup_id: resume_id.to_owned(),
                    sequence: tail.sequence,
                    skipped: 0,
                };
                self.skipped(self.window.unsettled() as u64);
                self.cover(now, position);
            }
        }
    }

    /// Settles every row of the window up to a position. Rows that this process sent itself are
    /// first looked for at the sequence that they were to get.
    fn cover(&mut self, now: std::time::Instant, position: Position) {
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        let (epoch, last_sequence) = (live.number, live.start.last_sequence);
        for (token, row) in self.window.iter_mut() {
            if row.position > position {
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
        let covered: Vec<_> = self
            .window
            .iter()
            .take_while(|(_, row)| row.position <= position)
            .filter(|(_, row)| row.state == RowState::Waiting && row.due_sequence.is_none())
            .map(|(token, _)| token)
            .collect();
        for token in covered {
            self.settle(token);
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
            position,
            dedup_id,
            sequence,
            skipped,
        } = &self.resume
        else {
            return;
        };
        let (position, sequence, skipped) = (*position, *sequence, *skipped + 1);
        if !same_id(dedup_id, &row.dedup_id) {
            self.void_resume(now, position, sequence);
            return;
        }
        self.counters.skipped += 1;
        self.seen.newest_stored = self.seen.newest_stored.max(Some(position));
        self.resume = Resume::Settled;
        self.ledger.release();
        self.notices
            .push_back(Notice::Resumed { position, skipped });
    }

    /// The replay has passed the resume position, as a Begin or a keepalive shows.
    pub(super) fn void_if_passed(&mut self, now: std::time::Instant, reached: pgoutput::Lsn) {
        if let Resume::Skipping {
            position, sequence, ..
        } = self.resume
            && self.resume.is_unproved()
            && reached > position.commit_lsn
        {
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
        self.void_tail = Some(sequence);
        self.notices.push_back(Notice::ResumeVoid { position });
        self.restart_session(now, EpochReason::SessionEnded);
    }
}

/// What the stream's last message says about where to go on.
enum ResumePoint<'a> {
    /// Rows up to this one are stored.
    At(&'a StoredRow),
    /// Nothing that concerns us is stored.
    None,
    /// Rows may be stored; only the duplicate window can tell.
    Unknown(Option<Notice>),
}

fn resume_row<'a>(
    session: &SessionStart,
    start: &'a EpochStart,
    void_tail: Option<u64>,
    log_end: pgoutput::Lsn,
) -> ResumePoint<'a> {
    if start.writers == Writers::Shared {
        return ResumePoint::None;
    }
    let row = match &start.tail {
        Tail::Empty => return ResumePoint::None,
        Tail::Gone => {
            let detail = "its last message is gone by age, limit, purge or delete";
            return ResumePoint::Unknown(Some(Notice::NoResumePoint { detail }));
        }
        Tail::Foreign => {
            let detail = "its last message is not one of ours";
            return ResumePoint::Unknown(Some(Notice::NoResumePoint { detail }));
        }
        Tail::Row(row) => row,
    };
    if void_tail == Some(row.sequence) {
        return ResumePoint::Unknown(None);
    }
    if row.resume_id().is_none() {
        let detail = "its last message came from a command, when there was no resume point";
        return ResumePoint::Unknown(Some(Notice::NoResumePoint { detail }));
    }
    let position = row.position;
    let notice = match session.standing(row, log_end) {
        Standing::Held => return ResumePoint::At(row),
        Standing::OtherLog => {
            let detail = "its last message comes from another server, database or slot";
            Notice::NoResumePoint { detail }
        }
        Standing::Orphan(fork) => Notice::Orphans {
            timeline: fork.timeline,
            position,
            switch_lsn: fork.switch_lsn,
        },
        Standing::OtherTimeline => {
            let detail = "its last message comes from a timeline that this server never was on";
            Notice::NoResumePoint { detail }
        }
        Standing::BeyondLogEnd => Notice::BeyondLogEnd { position, log_end },
    };
    ResumePoint::Unknown(Some(notice))
}
