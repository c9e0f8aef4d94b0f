//! Decoder of PostgreSQL's `pgoutput` logical replication messages.
//!
//! `pgoutput` is the output plugin of PostgreSQL's own logical replication. This crate turns each
//! of its messages, of protocol versions 1 to 4 (servers 14 to 18), into a Rust type. It does no
//! IO: the bytes come from a walsender's `XLogData` or from `pg_logical_slot_get_binary_changes`,
//! and what they mean for you is yours to say.
//!
//! ```
//! use bytes::Bytes;
//! use postrider_pgoutput::{DecodeError, Decoder, Message, ProtocolVersion, Value};
//!
//! # fn main() -> Result<(), DecodeError> {
//! let mut decoder = Decoder::new(ProtocolVersion::V1);
//! let data = Bytes::from_static(b"I\0\0\x40\x7fN\0\x02t\0\0\0\x011n");
//! if let Message::Insert(insert) = decoder.decode(data)? {
//!     assert_eq!(insert.relation_id, 16511);
//!     let row: Vec<Value<'_>> = insert.new.iter().collect();
//!     assert_eq!(row, [Value::Text(b"1"), Value::Null]);
//!     // One value as a buffer of its own, which still shares the message's memory:
//!     assert_eq!(insert.new.bytes(0), Some(Bytes::from_static(b"1")));
//! }
//!
//! let error = decoder.decode(Bytes::from_static(b"I\0\0\x40\x7fN\0\x02t\0\0")).unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "cannot read pgoutput message Insert ('I'): column length at byte 9: \
//!      cut off: 4 bytes needed, 2 left",
//! );
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! - **No bytes make it panic**, and none make it allocate more than in proportion to the
//!   message: each count is checked against the bytes left before it is believed.
//! - **A message is decoded whole or not at all.** Lengths, counts, tags and the end of the message
//!   are checked at once, so walking a row afterwards cannot fail. [`DecodeError`] says which
//!   field of which message is wrong, at which byte and why.
//! - **No value is copied.** Rows, names and contents share the memory of their message. Begin,
//!   Insert and Commit do not allocate either. (So whatever is kept keeps its message's whole
//!   buffer; [`Relation::detached`] and [`Name::detached`] make copies for keeping.)
//! - **Bytes stay bytes.** A [`Name`] need not be UTF-8, and a [`Value`] is in its type's text or
//!   binary format, undecoded.
//! - **Bytes are taken apart in one place**, the private module `cursor`, with checked reads only.
//!
//! # What it does not do
//!
//! Connect, speak the replication protocol around the messages ([`Frame`] only names its parts),
//! keep the relations a session has announced, put streamed transactions together, or know types.
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
