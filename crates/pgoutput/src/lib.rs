//! Decoder of PostgreSQL's `pgoutput` logical replication messages.
#![warn(missing_docs)]

mod cursor;
mod decoder;
mod error;
mod kind;
mod lsn;
mod message;
mod name;
mod replication;
mod timestamp;
mod tuple;

pub use decoder::{Decoder, ProtocolVersion};
pub use error::{DecodeError, DecodeReason};
pub use kind::MessageKind;
pub use lsn::{Lsn, ParseLsnError};
pub use message::{
    AbortDetails, Begin, BeginPrepare, Column, Commit, CommitPrepared, Delete, Insert,
    LogicalMessage, Message, OldRow, Origin, Prepare, Relation, ReplicaIdentity, RollbackPrepared,
    StreamAbort, StreamCommit, StreamPrepare, StreamStart, Truncate, Type, Update,
};
pub use name::Name;
pub use replication::Frame;
pub use timestamp::Timestamp;
pub use tuple::{Tuple, TupleIter, Value};
