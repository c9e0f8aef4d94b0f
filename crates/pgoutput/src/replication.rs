//! What the walsender sends inside `CopyData`: the frames around pgoutput messages.

use bytes::Bytes;

use crate::Lsn;

/// One message of the streaming replication protocol, server to client
/// (PostgreSQL manual, "Streaming Replication Protocol": `XLogData`, `Primary keepalive message`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// `XLogData`: one pgoutput message.
    WalData {
        /// Position of the change; `0/0` on messages that stand for no change (Relation, Type).
        start: Lsn,
        /// The server's clock when it sent this, microseconds since 2000-01-01 UTC.
        server_time_micros: i64,
        /// The pgoutput message.
        data: Bytes,
    },
    /// `Primary keepalive message`.
    KeepAlive {
        /// Everything before this position that concerns the slot has been sent.
        wal_end: Lsn,
        /// The server's clock when it sent this, microseconds since 2000-01-01 UTC.
        server_time_micros: i64,
        /// The server waits for a status update and will end the session without one.
        reply_requested: bool,
    },
}
