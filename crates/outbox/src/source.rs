//! What the relay machine and the PostgreSQL side say to each other.

use pgoutput::Lsn;

use crate::broker::StoredRow;
use crate::{Position, Source};

/// The beginning of a replication session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStart {
    /// Server, timeline, database and slot of this session.
    pub source: Source,
    /// The forks that led to the server's timeline, oldest first (TIMELINE_HISTORY).
    pub forks: Vec<Fork>,
    /// The end of the server's log on disk (its flush position), read once the slot was ours.
    /// A walsender sends only what is flushed, so no row of this server stands at or beyond it.
    pub log_end: Lsn,
    /// The slot's confirmed_flush_lsn before the session began.
    pub confirmed_flush: Lsn,
}

/// The end of one timeline in a server's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fork {
    /// The timeline that ended.
    pub timeline: u32,
    /// Where it was left: what that timeline holds beyond belongs to another history.
    pub switch_lsn: Lsn,
}

impl Fork {
    /// Whether the history that goes on behind this fork has the transaction.
    fn holds(&self, position: Position) -> bool {
        position.commit_lsn < self.switch_lsn
    }
}

/// What a stored message of ours is to the server of a session, going by its position alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It may stand in this server's log.
    Held,
    /// Another server, database or slot wrote it.
    OtherLog,
    /// This server's history left its timeline before it: an orphan.
    Orphan(Fork),
    /// This server never was on its timeline.
    OtherTimeline,
    /// This server's log does not reach so far.
    BeyondLogEnd,
}

impl Standing {
    /// Whether it is of a timeline that this server does not share with it.
    pub(crate) const fn is_orphan(&self) -> bool {
        matches!(self, Self::Orphan(_) | Self::OtherTimeline)
    }
}

impl SessionStart {
    /// Where a stored message stands. `log_end` is the end of the log as far as it is known by
    /// now.
    ///
    /// A message beyond `log_end` was never sent by this server, and that needs no waiting to see:
    /// a walsender reads the log only up to the flush position (`WalSndWaitForWal` in PostgreSQL's
    /// source), so the commit record of every row that was ever sent was on disk then. A crash
    /// takes nothing off the disk: recovery replays the log to its end, and what was flushed is
    /// flushed still, with `synchronous_commit` off too. Only another history has a shorter log: a
    /// backup that was restored, a copy of the data directory, a disk that lied about its flush.
    pub(crate) fn standing(&self, row: &StoredRow, log_end: Lsn) -> Standing {
        if !row.source.same_log(&self.source) {
            return Standing::OtherLog;
        }
        if row.source.timeline == self.source.timeline {
            return if row.position.commit_lsn < log_end {
                Standing::Held
            } else {
                Standing::BeyondLogEnd
            };
        }
        let fork = self
            .forks
            .iter()
            .find(|fork| fork.timeline == row.source.timeline);
        match fork {
            Some(fork) if fork.holds(row.position) => Standing::Held,
            Some(fork) => Standing::Orphan(*fork),
            None => Standing::OtherTimeline,
        }
    }
}

/// A standby status update to send (PostgreSQL manual, "Streaming Replication Protocol").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatusUpdate {
    /// Everything before this may be forgotten by the slot.
    pub confirmed: Lsn,
    /// Asks the server to answer at once with a keepalive, as proof of life.
    pub reply_requested: bool,
}

/// Why a replication session ended or could not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {detail}")]
pub struct SourceFault {
    /// The sort of trouble; it decides what happens next.
    pub kind: SourceFaultKind,
    /// What exactly, where, and how to cure it.
    pub detail: String,
}

/// The sorts of trouble with PostgreSQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum SourceFaultKind {
    /// No connection, or it broke: refused, reset, timed out, TLS broken off.
    #[error("PostgreSQL cannot be reached")]
    Unreachable,
    /// The server starts, stops or recovers (57P01, 57P02, 57P03).
    #[error("PostgreSQL is starting or stopping")]
    Restarting,
    /// Connection slots are used up (53300).
    #[error("PostgreSQL has no free connection")]
    TooManyConnections,
    /// The slot is active for another process (55006).
    #[error("the slot is held by another process")]
    SlotHeld,
    /// The slot does not exist (42704).
    #[error("the slot does not exist")]
    SlotMissing,
    /// The slot exists but its WAL is gone or it was invalidated (55000).
    #[error("the slot is lost")]
    SlotLost,
    /// The publication does not exist, now or at the slot's position (42704).
    #[error("the publication does not exist")]
    PublicationMissing,
    /// The publication does not give us the outbox rows.
    #[error("the publication is unfit")]
    PublicationUnfit,
    /// An outbox table is missing, or no longer what it was.
    #[error("the outbox table changed")]
    TableChanged,
    /// The configuration cannot be right for the tables that are there.
    #[error("the configuration does not fit the tables")]
    Misconfigured,
    /// Credentials refused (28xxx).
    #[error("PostgreSQL refused the credentials")]
    Authentication,
    /// The role lacks a right (42501).
    #[error("a right is missing in PostgreSQL")]
    Permission,
    /// The server or database cannot do this: database missing, wal_level, version, pooler.
    #[error("PostgreSQL is not set up for this")]
    Unfit,
    /// What came over the wire does not make sense.
    #[error("the replication stream cannot be read")]
    Protocol,
}
