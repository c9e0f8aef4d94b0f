//! What the relay machine and the NATS side say to each other.
//!
//! The publisher works in epochs: one connection, one run of publishes in order. Any refusal,
//! stall or disconnect ends the epoch; the next one begins with what the stream itself says about
//! its last message. The machine decides; the publisher only carries rows out and facts back.

use bytes::Bytes;

use crate::{Position, Source};

/// Names of the headers that Postrider writes and reads back.
pub mod header {
    /// The dedup id that JetStream keeps for the length of the duplicate window.
    pub const MSG_ID: &str = "Nats-Msg-Id";
    /// Refuses the message unless it lands in the named stream.
    pub const EXPECTED_STREAM: &str = "Nats-Expected-Stream";
    /// Refuses the message unless the stream's last sequence is the given one.
    pub const EXPECTED_LAST_SEQUENCE: &str = "Nats-Expected-Last-Sequence";
    /// `schema.table` of the row.
    pub const TABLE: &str = "Outbox-Table";
    /// The row's aggregate type.
    pub const AGGREGATE_TYPE: &str = "Outbox-Aggregate-Type";
    /// The row's aggregate id.
    pub const AGGREGATE_ID: &str = "Outbox-Aggregate-Id";
    /// The row's event type.
    pub const TYPE: &str = "Outbox-Type";
    /// When the row was made, RFC 3339 in UTC.
    pub const CREATED_AT: &str = "Outbox-Created-At";
    /// [`Position`](crate::Position) of the row.
    pub const POSITION: &str = "Outbox-Position";
    /// In a shared stream, the position up to which everything is stored.
    pub const SETTLED: &str = "Outbox-Settled";
    /// [`Source`](crate::Source) of the row.
    pub const SOURCE: &str = "Outbox-Source";
    /// Which command sent a message that did not come from the log.
    pub const ORIGIN: &str = "Outbox-Origin";
    /// On such a message: the dedup id of the row at its `Outbox-Position`.
    pub const POSITION_ID: &str = "Outbox-Position-Id";
    /// `null` where the payload column is NULL.
    pub const PAYLOAD: &str = "Outbox-Payload";
    /// Media type of the payload.
    pub const CONTENT_TYPE: &str = "Content-Type";
}

/// Names one attempt to publish one row; unique within a process, never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Rendered headers: `Name: value` lines, each ended by CR LF, as NATS carries them.
///
/// Neither names nor values hold CR, LF or NUL; the renderer sees to that.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers {
    block: Bytes,
}

impl Headers {
    /// Wraps a block of rendered lines; whoever calls it keeps the rule above.
    ///
    /// # Panics
    /// If the block is not UTF-8: no header of it could be read, so the row would go out without
    /// its dedup id and its position.
    #[must_use]
    pub fn from_block(block: Bytes) -> Self {
        assert!(
            std::str::from_utf8(&block).is_ok(),
            "rendered headers are UTF-8"
        );
        Self { block }
    }

    /// The lines as they go over the wire, without status line and closing blank line.
    #[must_use]
    pub const fn as_block(&self) -> &Bytes {
        &self.block
    }

    /// Names and values in order of writing.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        // It is UTF-8, as `from_block` sees to.
        let text = std::str::from_utf8(&self.block).unwrap_or_default();
        text.split("\r\n").filter_map(|line| line.split_once(": "))
    }

    /// The first value of a header, by its exact name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter()
            .find_map(|(key, value)| (key == name).then_some(value))
    }
}

/// One row to publish now.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Comes back with the answer.
    pub token: Token,
    /// Subject, checked to be one that JetStream can store: UTF-8 without blanks or wildcards.
    pub subject: Bytes,
    /// Everything but the headers that depend on the attempt.
    pub headers: Headers,
    /// The body, byte for byte what PostgreSQL holds.
    pub payload: Bytes,
    /// In an exclusive stream: the sequence after which this row must be stored.
    pub expected_last_sequence: Option<u64>,
    /// In a shared stream: everything up to here is stored (`Outbox-Settled`).
    pub settled: Option<Position>,
}

/// A positive PubAck of the configured stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PubAck {
    /// Sequence of the stored message; of the older one when `duplicate`.
    pub sequence: u64,
    /// JetStream says that it held this dedup id already and stored nothing.
    pub duplicate: bool,
}

/// A negative answer to one publish. Nothing was stored for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// JetStream's error answer.
    Api {
        /// HTTP-like code.
        code: u16,
        /// JetStream's own code, 0 where the server gave none.
        err_code: u32,
        /// The server's words.
        description: String,
    },
    /// Status 503: nobody listens on the subject, so no stream takes it (or it has no leader).
    NoResponders,
    /// Status 429: the server's ingest queue is full.
    TooManyRequests,
    /// The message is larger than the connection's max_payload, so it was not sent.
    TooLarge {
        /// Headers and payload together.
        size_bytes: u64,
        /// The server's limit.
        limit_bytes: u64,
    },
    /// Someone answered who is not the configured stream.
    ForeignAck {
        /// The stream that the answer names.
        stream: String,
    },
    /// The answer could not be read.
    Malformed {
        /// What was wrong with it.
        detail: String,
    },
}

/// Why an epoch cannot go on. Rows without an answer may or may not be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EpochEnd {
    /// The connection broke or the server closed it.
    Disconnected {
        /// What is known of the reason.
        detail: String,
    },
    /// The server refuses publishes to a subject, or our ack inbox.
    PermissionDenied {
        /// The server's words; they name the subject.
        detail: String,
    },
    /// The server closed the connection because a message was over the account's max_payload.
    MaxPayloadViolation,
    /// The server reported another error on the connection.
    Server {
        /// The server's words.
        detail: String,
    },
}

/// Who writes the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// Postrider alone: every row is chained to the one before it.
    Exclusive,
    /// Others too: order is kept per key with one un-acked row each.
    Shared,
}

/// What the stream's last message says (STREAM.MSG.GET, answered by the leader).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tail {
    /// The stream has never held a message.
    Empty,
    /// The last message is gone by age, limit, purge or delete; its sequence is intact.
    Gone,
    /// The last message does not carry our headers.
    Foreign,
    /// The last message is one of Postrider's.
    Row(StoredRow),
}

/// Our headers of one stored message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRow {
    /// Sequence in the stream.
    pub sequence: u64,
    /// `Outbox-Source`.
    pub source: Source,
    /// `Outbox-Position`.
    pub position: Position,
    /// `Nats-Msg-Id`.
    pub dedup_id: String,
    /// `Outbox-Settled`: everything up to here was stored or parked when the message was sent.
    pub settled: Option<Position>,
    /// It had to follow the stream's last message (`Nats-Expected-Last-Sequence`), as every row in
    /// an exclusive stream has.
    pub chained: bool,
    /// `Outbox-Origin`, where the message did not come from the log.
    pub origin: Option<String>,
    /// `Outbox-Position-Id`, where the message did not come from the log.
    pub position_id: Option<String>,
}

impl StoredRow {
    /// Whether the message was stored under this dedup id. Blanks around a header's value are not
    /// part of it, neither for the server's duplicate window nor when it is read back.
    pub(crate) fn has_id(&self, dedup_id: &[u8]) -> bool {
        same_id(&self.dedup_id, self.source.timeline, dedup_id)
    }

    /// The dedup id of the row at [`position`](Self::position): the message's own, unless a
    /// command put the message there and repeats the position of the row before it. `None` if
    /// that command knew of no such row.
    #[must_use]
    pub fn resume_id(&self) -> Option<&str> {
        match &self.origin {
            None => Some(&self.dedup_id),
            Some(_) => self.position_id.as_deref(),
        }
    }

    /// Whether this is the dedup id of the row at [`position`](Self::position).
    pub(crate) fn has_resume_id(&self, dedup_id: &[u8]) -> bool {
        self.resume_id()
            .is_some_and(|id| same_id(id, self.source.timeline, dedup_id))
    }

    /// Whether a command put this message behind `before` and repeats what that one says.
    pub(crate) fn repeats(&self, before: &Self) -> bool {
        self.origin.is_some()
            && self.position == before.position
            && self.resume_id().is_some()
            && self.resume_id() == before.resume_id()
    }
}

/// The dedup id of a row whose own id an orphan of a lost timeline has taken: `ID@TIMELINE`.
pub(crate) fn renamed_id(dedup_id: &[u8], timeline: u32) -> Vec<u8> {
    let mut renamed = dedup_id.to_vec();
    renamed.extend_from_slice(format!("@{timeline}").as_bytes());
    renamed
}

/// Compares a dedup id that was read back, of a message from `timeline`, with one that is to be
/// sent.
pub(crate) fn same_id(stored: &str, timeline: u32, sent: &[u8]) -> bool {
    let renamed = || {
        let (id, suffix) = stored.trim().rsplit_once('@')?;
        (suffix.parse() == Ok(timeline)).then(|| id.trim())
    };
    std::str::from_utf8(sent)
        .is_ok_and(|sent| sent.trim() == stored.trim() || renamed() == Some(sent.trim()))
}

/// Which of a stream's messages are to be read, from the newest back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookBackRange {
    /// The log whose messages count, on whatever timeline.
    pub source: Source,
    /// In a shared stream only the messages of this log are of interest, in an exclusive one
    /// those of everybody.
    pub writers: Writers,
    /// Nothing before this sequence has to be read.
    pub from: u64,
    /// The newest sequence to be read.
    pub to: u64,
    /// So many messages of the log are enough.
    pub rows: usize,
}

/// The newest messages of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookBack {
    /// In the order of their sequences.
    pub messages: Vec<SeenMessage>,
    /// How far back they go.
    pub reach: Reach,
}

/// One message, by its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenMessage {
    /// Sequence in the stream.
    pub sequence: u64,
    /// Our headers; `None` where it has none.
    pub row: Option<StoredRow>,
}

/// How far back messages were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// To the first message that there is.
    Beginning,
    /// As far as was asked for.
    Wanted,
    /// To a limit of the reader, short of what was asked for.
    Limit,
}

/// The first message at or behind a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadNext {
    /// This one.
    Message(SeenMessage),
    /// There is none.
    End,
    /// The question could not be answered.
    Unknown {
        /// What went wrong.
        detail: String,
    },
}

/// The beginning of an epoch: the stream as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EpochStart {
    /// Who writes the stream, by configuration or by the stream's own metadata.
    pub writers: Writers,
    /// When the stream was made, nanoseconds since 1970: another value is another stream.
    pub created_unix_nanos: i128,
    /// The stream's last sequence, 0 if it never held a message.
    pub last_sequence: u64,
    /// The stream's last message.
    pub tail: Tail,
    /// Largest message (headers and payload) that server and stream take together.
    pub max_message_bytes: u64,
}

/// What stands in the stream at a sequence that a PubAck named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadBack {
    /// A message with our headers.
    Row(StoredRow),
    /// A message without our headers.
    Foreign,
    /// No message at that sequence any more.
    Gone,
    /// The question could not be answered now.
    Unknown {
        /// What went wrong.
        detail: String,
    },
}

/// Which stream takes a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taker {
    /// The configured one.
    Ours,
    /// Another one.
    Other {
        /// Its name.
        stream: String,
    },
    /// Not the configured one.
    NotOurs {
        /// What is known, for people.
        detail: String,
    },
    /// The question could not be answered now.
    Unknown,
}

/// Why no epoch could begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind}: {detail}")]
pub struct BrokerFault {
    /// The sort of trouble; it decides what happens next.
    pub kind: BrokerFaultKind,
    /// What exactly, where, and how to cure it.
    pub detail: String,
}

/// The sorts of trouble on the way to a usable stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BrokerFaultKind {
    /// No connection: refused, timed out, name not found, TLS broken off.
    #[error("NATS cannot be reached")]
    Unreachable,
    /// The server refused our credentials.
    #[error("NATS refused the credentials")]
    Authentication,
    /// The server accepts us, but denies a subject that is needed (JetStream API, ack inbox).
    #[error("NATS denies a permission")]
    PermissionDenied,
    /// TLS could not be agreed on (certificate, authority, handshake-first).
    #[error("no TLS session with NATS")]
    Tls,
    /// JetStream is off on the server or in the account.
    #[error("JetStream is not available")]
    NoJetStream,
    /// The stream does not exist.
    #[error("the stream does not exist")]
    StreamMissing,
    /// The stream exists but its leader does not answer.
    #[error("the stream does not answer")]
    StreamUnavailable,
    /// The stream's configuration would lose or refuse our rows.
    #[error("the stream cannot be used")]
    StreamUnfit,
    /// The stream belongs to another Postrider.
    #[error("the stream has another owner")]
    OtherOwner,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "UTF-8")]
    fn headers_that_are_not_utf8_are_not_taken_for_none() {
        let _ = Headers::from_block(Bytes::from_static(b"Nats-Msg-Id: \xff\r\n"));
    }
}
