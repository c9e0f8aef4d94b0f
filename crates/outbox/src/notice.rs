//! What happened, for logs and people.

use std::time::Duration;

use crate::Position;
use crate::broker::{BrokerFault, EpochEnd, Writers};
use crate::render::PoisonReason;
use crate::source::SourceFault;
use crate::verdict::{RetryReason, StopKind};

/// How loud a [`Notice`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Of interest to who looks for a cause.
    Debug,
    /// Part of the normal course.
    Info,
    /// Something is not as it should be, and heals by itself or can wait.
    Warn,
    /// Somebody has to look.
    Error,
}

/// One thing that happened. Its `Display` is a sentence for the log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    /// A replication session began.
    #[error("streaming from slot {slot} ({source_name})")]
    SessionStarted {
        /// The slot's name.
        slot: String,
        /// The session's [`Source`](crate::Source).
        source_name: String,
    },
    /// The replication session ended or could not begin; another will be tried.
    #[error("{fault}; next attempt in {}", seconds(*.retry_in))]
    SessionEnded {
        /// What happened.
        fault: SourceFault,
        /// When the next attempt is made.
        retry_in: Duration,
    },
    /// An epoch began: rows can be published.
    #[error("publishing ({} stream, last sequence {last_sequence})", writers_name(*.writers))]
    EpochStarted {
        /// Who writes the stream.
        writers: Writers,
        /// The stream's last sequence.
        last_sequence: u64,
    },
    /// No epoch could begin; another will be tried.
    #[error("{fault}; next attempt in {}", seconds(*.retry_in))]
    EpochRefused {
        /// What happened.
        fault: BrokerFault,
        /// When the next attempt is made.
        retry_in: Duration,
    },
    /// The epoch ended; un-acked rows will be sent again in the next one.
    #[error("publishing interrupted: {reason}; next attempt in {}", seconds(*.retry_in))]
    EpochEnded {
        /// What happened.
        reason: EpochReason,
        /// When the next attempt is made.
        retry_in: Duration,
    },
    /// Rows up to a position are stored already, so they are not sent again.
    #[error("resuming after {position} (sequence {sequence})")]
    Resuming {
        /// The resume position.
        position: Position,
        /// Its sequence.
        sequence: u64,
    },
    /// The row at the resume position arrived with the id that is stored there.
    #[error("{skipped} rows were stored already; the resume position {position} is proved")]
    Resumed {
        /// The resume position.
        position: Position,
        /// Rows that were not sent again.
        skipped: u64,
    },
    /// The replay passed the resume position without meeting its row.
    #[error(
        "the stream's last message names position {position}, but this server's log has no such \
         row (a restored or cloned server, or changed dedup ids): starting again from the slot \
         alone, rows may be stored twice"
    )]
    ResumeVoid {
        /// The position that the stream names.
        position: Position,
    },
    /// The stream's last message tells no resume point.
    #[error("no resume point in the stream ({detail}): slot and duplicate window decide")]
    NoResumePoint {
        /// Why not.
        detail: &'static str,
    },
    /// The stream's last message stands where this server's log has not come to yet.
    #[error(
        "the stream's last message names position {position}, but this server's log ends at \
         {log_end}: another server wrote it, of which this one is a copy made earlier (restored \
         or cloned). Its rows beyond the copy are not in this database. Slot and duplicate window \
         decide; do not let both servers stream"
    )]
    BeyondLogEnd {
        /// The position that the stream names.
        position: Position,
        /// Where this server's log ends.
        log_end: pgoutput::Lsn,
    },
    /// The stream holds messages of a timeline that this server has left.
    #[error(
        "the stream holds orphans: up to {count} messages of timeline {timeline} from sequence \
         {first_sequence} to {last_sequence}, positions {lowest} to {highest}, beyond the \
         promotion at {switch_lsn}. This server never had those rows; what it commits now is \
         stored behind them"
    )]
    Orphans {
        /// The timeline that was left.
        timeline: u32,
        /// Where this server's history left that timeline.
        switch_lsn: pgoutput::Lsn,
        /// Sequence of the first orphan.
        first_sequence: u64,
        /// Sequence of the last one.
        last_sequence: u64,
        /// How many they are; where not each was looked at, how many they are at most.
        count: u64,
        /// The lowest of their positions.
        lowest: Position,
        /// The highest of their positions.
        highest: Position,
    },
    /// In a shared stream: none of the messages looked at is ours.
    #[error("the stream holds no messages of this slot yet, or no longer")]
    NothingOfOurs,
    /// The newest messages could not be read.
    #[error(
        "the stream's newest messages could not be read ({detail}): what they would tell is not \
         known. In a shared stream the slot and the duplicate window decide which rows are sent \
         again; in an exclusive one the last message does, and a second writer would go unseen. \
         Allow our user to create, read and delete consumers of the stream"
    )]
    LookBackFailed {
        /// What went wrong.
        detail: String,
    },
    /// There are too many messages to look at.
    #[error(
        "after {messages} of its newest messages the stream still held others that may be rows \
         to be sent: what stands before them is not known, and a copy is stored where the \
         duplicate window has passed"
    )]
    LookBackCut {
        /// Messages that were kept.
        messages: usize,
    },
    /// Messages of others stand in an exclusive stream.
    #[error(
        "the stream has a second writer: {count} messages that are not ours stand behind our own, \
         from sequence {first_sequence} to {last_sequence}. An exclusive stream is for Postrider \
         alone: keep others from writing it, or set nats.writers = \"shared\""
    )]
    Strangers {
        /// Sequence of the first.
        first_sequence: u64,
        /// Sequence of the last.
        last_sequence: u64,
        /// How many were seen.
        count: u64,
    },
    /// A row goes out under another dedup id than its own.
    #[error(
        "row {row_id} at {position} is sent under the id {row_id}@{timeline}: the stream holds \
         its id for an orphan of a timeline that this server has left"
    )]
    Renamed {
        /// The row's dedup id, shortened.
        row_id: String,
        /// Its position.
        position: Position,
        /// The timeline of this session.
        timeline: u32,
    },
    /// Somebody else wrote into an exclusive stream, in the place of one of our rows.
    #[error(
        "the stream has a second writer: another message stands at sequence {sequence}, which was \
         for the row at {position}; that row is sent again, behind rows that came after it. Keep \
         others from writing this stream, or set nats.writers = \"shared\""
    )]
    SecondWriter {
        /// The row whose place was taken.
        position: Position,
        /// The sequence.
        sequence: u64,
    },
    /// The broker lost messages that it had acked.
    #[error(
        "the stream lost messages that were acked ({detail}): replaying what the slot still \
         holds; compare table and stream for the rest"
    )]
    BrokerLost {
        /// How it shows.
        detail: String,
    },
    /// A table was bound to its outbox.
    #[error("table {table} is an outbox; subject {subject}")]
    TableBound {
        /// `schema.table`.
        table: String,
        /// The subject with columns in braces.
        subject: String,
    },
    /// A row can never be stored and goes to the dead letters.
    #[error("row {row_id} of {table} at {position} cannot be published: {reason}")]
    Poison {
        /// `schema.table`.
        table: String,
        /// The row's id, shortened.
        row_id: String,
        /// Its position.
        position: Position,
        /// Why.
        reason: PoisonReason,
    },
    /// A dead letter could not be written; it will be tried again.
    #[error("the dead letter of the row at {position} cannot be written: {detail}")]
    ParkFailed {
        /// The row's position.
        position: Position,
        /// What PostgreSQL said.
        detail: String,
    },
    /// The relay stops for good.
    #[error("{detail}")]
    Stopping {
        /// What it means.
        kind: StopKind,
        /// What happened.
        detail: String,
    },
}

impl Notice {
    /// How loud it is.
    #[must_use]
    pub const fn level(&self) -> Level {
        match self {
            Self::SessionStarted { .. }
            | Self::EpochStarted { .. }
            | Self::Resuming { .. }
            | Self::Resumed { .. }
            | Self::NothingOfOurs
            | Self::Renamed { .. }
            | Self::TableBound { .. } => Level::Info,
            Self::EpochEnded { reason, .. } => reason.level(),
            Self::SessionEnded { .. }
            | Self::EpochRefused { .. }
            | Self::NoResumePoint { .. }
            | Self::LookBackFailed { .. }
            | Self::LookBackCut { .. } => Level::Warn,
            Self::ResumeVoid { .. }
            | Self::BeyondLogEnd { .. }
            | Self::Orphans { .. }
            | Self::Strangers { .. }
            | Self::SecondWriter { .. }
            | Self::BrokerLost { .. }
            | Self::Poison { .. }
            | Self::ParkFailed { .. } => Level::Error,
            Self::Stopping { kind, .. } => match kind {
                StopKind::Drained | StopKind::CaughtUp => Level::Info,
                _ => Level::Error,
            },
        }
    }
}

/// Why an epoch ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EpochReason {
    /// The connection or the server ended it.
    #[error("{}", epoch_end_text(.0))]
    Ended(EpochEnd),
    /// A row was refused for now.
    #[error("{0}")]
    Refused(RetryReason),
    /// No stream, or the wrong one, takes the subject.
    #[error("subject {subject}: {detail}")]
    Unroutable {
        /// The row's subject.
        subject: String,
        /// What is known.
        detail: String,
    },
    /// A row can never be stored; those behind it were refused with it.
    #[error("a row cannot be stored and was taken out of the sequence")]
    Poison,
    /// No answer within the ack timeout.
    #[error("no PubAck within {}", seconds(*.0))]
    Stalled(Duration),
    /// A PubAck named another sequence than the one that the chain leads to.
    #[error("a PubAck named sequence {acked} where {expected} was due")]
    UnexpectedSequence {
        /// The sequence that the chain leads to.
        expected: u64,
        /// The one in the PubAck.
        acked: u64,
    },
    /// A row turned out to be stored already.
    #[error("a row was stored already")]
    DuplicateProved,
    /// JetStream calls a row a duplicate of a message that is gone.
    #[error(
        "JetStream calls a row a duplicate of sequence {sequence}, where nothing stands any more; \
         waiting for the duplicate window to pass"
    )]
    DuplicateGone {
        /// The sequence.
        sequence: u64,
    },
    /// What a duplicate stands for could not be read.
    #[error("a duplicate could not be read back: {detail}")]
    DuplicateUnread {
        /// What went wrong.
        detail: String,
    },
    /// A question about where to go on was not answered.
    #[error("the stream does not tell where to go on: {detail}")]
    SearchUnanswered {
        /// What went wrong.
        detail: String,
    },
    /// The replication session ended.
    #[error("the replication session ended")]
    SessionEnded,
    /// The replication session began after it, so what it knows of the stream may be out of date:
    /// whoever held the slot before could still publish.
    #[error("the replication session began after it")]
    BeforeSession,
    /// The stream is exclusive where it was shared, or the other way round.
    #[error("the stream's writers are set to others than before")]
    WritersChanged,
    /// The stream lost messages.
    #[error("the stream is not what it was")]
    StreamChanged,
    /// Another command of ours asked for a gap between our rows.
    #[error("another postrider command writes the stream")]
    Yielded,
}

impl EpochReason {
    const fn level(&self) -> Level {
        match self {
            Self::DuplicateProved | Self::Poison | Self::SessionEnded | Self::BeforeSession => {
                Level::Debug
            }
            Self::Yielded => Level::Info,
            _ => Level::Warn,
        }
    }
}

fn epoch_end_text(end: &EpochEnd) -> String {
    match end {
        EpochEnd::Disconnected { detail } => format!("NATS disconnected ({detail})"),
        EpochEnd::PermissionDenied { detail } => format!("NATS permission denied ({detail})"),
        EpochEnd::MaxPayloadViolation => "the account's max_payload was exceeded".to_owned(),
        EpochEnd::Server { detail } => format!("NATS reported an error ({detail})"),
    }
}

const fn writers_name(writers: Writers) -> &'static str {
    match writers {
        Writers::Exclusive => "exclusive",
        Writers::Shared => "shared",
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}
