//! The messages, one type each.
//!
//! Field for field as in the PostgreSQL manual, "Logical Replication Message Formats". A change
//! inside a streamed block has the `xid` of its (sub)transaction; elsewhere it has none, as Begin
//! names the transaction.

use bytes::Bytes;

use crate::{Lsn, MessageKind, Name, Timestamp, Tuple};

/// One pgoutput message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant's type is documented")]
pub enum Message {
    Begin(Begin),
    Message(LogicalMessage),
    Commit(Commit),
    Origin(Origin),
    Relation(Relation),
    Type(Type),
    Insert(Insert),
    Update(Update),
    Delete(Delete),
    Truncate(Truncate),
    StreamStart(StreamStart),
    StreamStop,
    StreamCommit(StreamCommit),
    StreamAbort(StreamAbort),
    BeginPrepare(BeginPrepare),
    Prepare(Prepare),
    CommitPrepared(CommitPrepared),
    RollbackPrepared(RollbackPrepared),
    StreamPrepare(StreamPrepare),
}

impl Message {
    /// The kind of this message.
    #[must_use]
    pub const fn kind(&self) -> MessageKind {
        match self {
            Self::Begin(_) => MessageKind::Begin,
            Self::Message(_) => MessageKind::Message,
            Self::Commit(_) => MessageKind::Commit,
            Self::Origin(_) => MessageKind::Origin,
            Self::Relation(_) => MessageKind::Relation,
            Self::Type(_) => MessageKind::Type,
            Self::Insert(_) => MessageKind::Insert,
            Self::Update(_) => MessageKind::Update,
            Self::Delete(_) => MessageKind::Delete,
            Self::Truncate(_) => MessageKind::Truncate,
            Self::StreamStart(_) => MessageKind::StreamStart,
            Self::StreamStop => MessageKind::StreamStop,
            Self::StreamCommit(_) => MessageKind::StreamCommit,
            Self::StreamAbort(_) => MessageKind::StreamAbort,
            Self::BeginPrepare(_) => MessageKind::BeginPrepare,
            Self::Prepare(_) => MessageKind::Prepare,
            Self::CommitPrepared(_) => MessageKind::CommitPrepared,
            Self::RollbackPrepared(_) => MessageKind::RollbackPrepared,
            Self::StreamPrepare(_) => MessageKind::StreamPrepare,
        }
    }
}

/// A committed transaction begins. Its changes follow, then its Commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begin {
    /// Where its commit record begins; equal to [`Commit::commit_lsn`].
    pub final_lsn: Lsn,
    /// When it committed.
    pub commit_time: Timestamp,
    /// Its transaction id.
    pub xid: u32,
}

/// The transaction of the last Begin is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Unused by PostgreSQL so far, 0.
    pub flags: u8,
    /// Where its commit record begins.
    pub commit_lsn: Lsn,
    /// Where its commit record ends: the position to confirm once the transaction is done with.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: Timestamp,
}

/// What `pg_logical_emit_message` wrote; only when the session asked for `messages`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogicalMessage {
    /// The streamed transaction it is part of.
    pub xid: Option<u32>,
    /// Bit 0: see [`LogicalMessage::is_transactional`].
    pub flags: u8,
    /// Where the message is in the log.
    pub lsn: Lsn,
    /// The first argument: who the message is for.
    pub prefix: Name,
    /// The message itself, any bytes.
    pub content: Bytes,
}

impl LogicalMessage {
    /// Whether it comes with its transaction's changes, when that commits. If not, it comes as
    /// soon as it is written, possibly between the messages of another transaction, and even if
    /// its own is rolled back.
    #[must_use]
    pub const fn is_transactional(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// The transaction was replicated to this server from elsewhere. Follows Begin or its like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// Where the commit is in the log of the server it came from.
    pub commit_lsn: Lsn,
    /// The name of the replication origin.
    pub name: Name,
}

/// The shape of a table. Comes before the first change of it in a session, and again after the
/// table was altered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Relation {
    /// The streamed transaction it comes with.
    pub xid: Option<u32>,
    /// The table's OID, by which changes name it.
    pub id: u32,
    /// The schema; empty for `pg_catalog`.
    pub namespace: Name,
    /// The table.
    pub name: Name,
    /// What old rows contain.
    pub replica_identity: ReplicaIdentity,
    /// The published columns, in the order of the tuples' columns.
    pub columns: Vec<Column>,
}

impl Relation {
    /// A copy with memory of its own, for keeping: the original keeps its whole message's buffer
    /// alive, and whatever else the receiver put into the same buffer.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self {
            namespace: self.namespace.detached(),
            name: self.name.detached(),
            columns: self
                .columns
                .iter()
                .map(|column| Column {
                    name: column.name.detached(),
                    ..column.clone()
                })
                .collect(),
            ..*self
        }
    }
}

/// What identifies the old row of an Update or Delete (`pg_class.relreplident`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReplicaIdentity {
    /// The primary key, if there is one.
    Default,
    /// Nothing.
    Nothing,
    /// All columns.
    Full,
    /// The columns of a chosen unique index.
    Index,
}

/// One column of a [`Relation`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Bit 0: see [`Column::is_key`].
    pub flags: u8,
    /// Its name.
    pub name: Name,
    /// The OID of its type.
    pub type_oid: u32,
    /// The type's modifier (`pg_attribute.atttypmod`), -1 for none.
    pub type_modifier: i32,
}

impl Column {
    /// Whether the column is part of the replica identity.
    #[must_use]
    pub const fn is_key(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// The name of a type that is not built in. Comes before the Relation that uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Type {
    /// The streamed transaction it comes with.
    pub xid: Option<u32>,
    /// The type's OID.
    pub id: u32,
    /// The schema; empty for `pg_catalog`.
    pub namespace: Name,
    /// The type. A domain is named by its base type, an enum by itself.
    pub name: Name,
}

/// A new row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Insert {
    /// The streamed transaction it is part of.
    pub xid: Option<u32>,
    /// The [`Relation::id`] of its table.
    pub relation_id: u32,
    /// The row.
    pub new: Tuple,
}

/// A changed row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Update {
    /// The streamed transaction it is part of.
    pub xid: Option<u32>,
    /// The [`Relation::id`] of its table.
    pub relation_id: u32,
    /// What is known of the row before. With a key as replica identity, only if the key changed.
    pub old: Option<OldRow>,
    /// The row after.
    pub new: Tuple,
}

/// A deleted row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delete {
    /// The streamed transaction it is part of.
    pub xid: Option<u32>,
    /// The [`Relation::id`] of its table.
    pub relation_id: u32,
    /// What is known of the row.
    pub old: OldRow,
}

/// A row before its change, as far as the replica identity has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OldRow {
    /// The key columns; the others are NULL.
    Key(Tuple),
    /// All columns (replica identity `FULL`).
    Full(Tuple),
}

impl OldRow {
    /// The columns, whichever they are.
    #[must_use]
    pub const fn tuple(&self) -> &Tuple {
        match self {
            Self::Key(tuple) | Self::Full(tuple) => tuple,
        }
    }
}

/// Tables were truncated together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Truncate {
    /// The streamed transaction it is part of.
    pub xid: Option<u32>,
    /// Bit 0: [`Truncate::is_cascade`], bit 1: [`Truncate::restarts_identity`].
    pub flags: u8,
    /// The [`Relation::id`]s of the tables.
    pub relation_ids: Vec<u32>,
}

impl Truncate {
    /// Whether the command said `CASCADE`.
    #[must_use]
    pub const fn is_cascade(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Whether the command said `RESTART IDENTITY`.
    #[must_use]
    pub const fn restarts_identity(&self) -> bool {
        self.flags & 2 != 0
    }
}

/// A block of changes of a transaction still in progress begins (protocol version 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamStart {
    /// The top-level transaction.
    pub xid: u32,
    /// 1 on the transaction's first block, else 0; see [`StreamStart::is_first`].
    pub first_segment: u8,
}

impl StreamStart {
    /// Whether it is the transaction's first block.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.first_segment == 1
    }
}

/// A streamed transaction committed (protocol version 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamCommit {
    /// The top-level transaction.
    pub xid: u32,
    /// Unused by PostgreSQL so far, 0.
    pub flags: u8,
    /// Where its commit record begins.
    pub commit_lsn: Lsn,
    /// Where its commit record ends: the position to confirm once the transaction is done with.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: Timestamp,
}

/// A streamed (sub)transaction was rolled back (protocol version 2).
///
/// Server 18 also sends it in sessions that do not stream, for a subtransaction of a transaction
/// that was rolled back and never sent. Who keeps no changes of transactions in progress has
/// nothing to undo and ignores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamAbort {
    /// The top-level transaction.
    pub xid: u32,
    /// The subtransaction; equal to `xid` if the whole transaction was rolled back.
    pub subxid: u32,
    /// Where and when; only with protocol version 4 and the option `streaming 'parallel'`.
    pub details: Option<AbortDetails>,
}

/// Where and when a streamed transaction was rolled back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbortDetails {
    /// Where its abort record is in the log.
    pub abort_lsn: Lsn,
    /// When it was rolled back.
    pub abort_time: Timestamp,
}

/// A prepared transaction begins. Its changes follow, then its Prepare.
///
/// A session gets prepared transactions if it asked for `two_phase` (protocol version 3), but also,
/// whatever its version, if its slot was created for them. Its changes count only once Commit
/// Prepared has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeginPrepare {
    /// Where its prepare record begins.
    pub prepare_lsn: Lsn,
    /// Where its prepare record ends.
    pub end_lsn: Lsn,
    /// When it was prepared.
    pub prepare_time: Timestamp,
    /// Its transaction id.
    pub xid: u32,
    /// The name the user gave in `PREPARE TRANSACTION`.
    pub gid: Name,
}

/// The transaction of the last Begin Prepare is complete and prepared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepare {
    /// Unused by PostgreSQL so far, 0.
    pub flags: u8,
    /// Where its prepare record begins.
    pub prepare_lsn: Lsn,
    /// Where its prepare record ends.
    pub end_lsn: Lsn,
    /// When it was prepared.
    pub prepare_time: Timestamp,
    /// Its transaction id.
    pub xid: u32,
    /// The name the user gave in `PREPARE TRANSACTION`.
    pub gid: Name,
}

/// A prepared transaction was committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitPrepared {
    /// Unused by PostgreSQL so far, 0.
    pub flags: u8,
    /// Where its commit record begins.
    pub commit_lsn: Lsn,
    /// Where its commit record ends.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: Timestamp,
    /// Its transaction id.
    pub xid: u32,
    /// The name the user gave in `PREPARE TRANSACTION`.
    pub gid: Name,
}

/// A prepared transaction was rolled back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollbackPrepared {
    /// Unused by PostgreSQL so far, 0.
    pub flags: u8,
    /// Where its prepare record ends.
    pub prepare_end_lsn: Lsn,
    /// Where its rollback record ends.
    pub rollback_end_lsn: Lsn,
    /// When it was prepared.
    pub prepare_time: Timestamp,
    /// When it was rolled back.
    pub rollback_time: Timestamp,
    /// Its transaction id.
    pub xid: u32,
    /// The name the user gave in `PREPARE TRANSACTION`.
    pub gid: Name,
}

/// A streamed transaction was prepared (protocol version 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPrepare {
    /// Unused by PostgreSQL so far, 0.
    pub flags: u8,
    /// Where its prepare record begins.
    pub prepare_lsn: Lsn,
    /// Where its prepare record ends.
    pub end_lsn: Lsn,
    /// When it was prepared.
    pub prepare_time: Timestamp,
    /// Its transaction id.
    pub xid: u32,
    /// The name the user gave in `PREPARE TRANSACTION`.
    pub gid: Name,
}
