//! From the bytes of a message to its type.

use bytes::{Buf, Bytes};

use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeReason};
use crate::{
    AbortDetails, Begin, BeginPrepare, Column, Commit, CommitPrepared, Delete, Insert,
    LogicalMessage, Message, MessageKind, OldRow, Origin, Prepare, Relation, ReplicaIdentity,
    RollbackPrepared, StreamAbort, StreamCommit, StreamPrepare, StreamStart, Truncate, Tuple, Type,
    Update,
};

/// Bytes of a Relation's column whose name is empty: flags 1, NUL 1, type 4, modifier 4.
const RELATION_COLUMN_SIZE_MIN: usize = 10;
/// Bytes of a relation id in Truncate.
const RELATION_ID_SIZE: usize = 4;

/// Tag of the new row of an Insert or Update.
const ROW_NEW: u8 = b'N';
/// Tag of an old row of which only the key columns are there.
const ROW_KEY: u8 = b'K';
/// Tag of an old row with all columns.
const ROW_OLD: u8 = b'O';

/// What the session asked the server for with the option `proto_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolVersion {
    /// Whole transactions, in the order they commit. Every supported server.
    V1,
    /// Also transactions still in progress, in blocks (`streaming 'on'`). Server 14.
    V2,
    /// Also prepared transactions (`two_phase 'on'`). Server 15.
    V3,
    /// Also blocks that can be applied in parallel (`streaming 'parallel'`). Server 16.
    V4,
}

impl ProtocolVersion {
    /// The number for the option `proto_version`.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
            Self::V4 => 4,
        }
    }
}

/// Decodes the messages of one session, in the order they come.
///
/// It remembers one thing: whether it is inside a streamed block, where changes have another form.
/// So every message has to pass through it, and every session needs a new one.
#[derive(Debug, Clone)]
pub struct Decoder {
    version: ProtocolVersion,
    in_stream: bool,
}

impl Decoder {
    /// For a new session with this version of the protocol.
    #[must_use]
    pub const fn new(version: ProtocolVersion) -> Self {
        Self {
            version,
            in_stream: false,
        }
    }

    /// Whether the last message was inside a streamed block or began one.
    #[must_use]
    pub const fn is_in_stream(&self) -> bool {
        self.in_stream
    }

    /// Decodes one whole message: the payload of one `XLogData`, or one row of
    /// `pg_logical_slot_get_binary_changes`.
    ///
    /// Names, values and contents in the result share the memory of `data`. Insert, Begin and
    /// Commit do not allocate. Relation and Truncate allocate at most about five times the size of
    /// the message. The others, which hand out parts of `data`, may allocate what `Bytes` keeps
    /// beside it to be shared, once, a few words.
    ///
    /// # Errors
    /// If the bytes are not one message of this protocol version, whole and with nothing behind
    /// it, or the message cannot come at this point. The decoder's state is then unchanged.
    pub fn decode(&mut self, data: Bytes) -> Result<Message, DecodeError> {
        let (mut fields, kind) = Cursor::open(&data)?;
        self.check_place(&fields, kind)?;
        let message = match kind {
            // The hot path. Its row is the rest of the message, so `data` itself becomes the row
            // and not even a reference count is touched.
            MessageKind::Insert => {
                let xid = self.stream_xid(&mut fields)?;
                let relation_id = fields.u32("relation id")?;
                new_row_tag(&mut fields)?;
                let (count, begin) = fields.tuple()?;
                fields.finish()?;
                let new = Tuple::from_checked(count, advanced(data, begin));
                return Ok(Message::Insert(Insert {
                    xid,
                    relation_id,
                    new,
                }));
            }
            MessageKind::Begin => Message::Begin(begin(&mut fields)?),
            MessageKind::Commit => Message::Commit(commit(&mut fields)?),
            MessageKind::Message
            | MessageKind::Relation
            | MessageKind::Type
            | MessageKind::Update
            | MessageKind::Delete
            | MessageKind::Truncate => {
                let xid = self.stream_xid(&mut fields)?;
                change(kind, xid, &mut fields)?
            }
            MessageKind::Origin => Message::Origin(origin(&mut fields)?),
            MessageKind::StreamStart => Message::StreamStart(stream_start(&mut fields)?),
            MessageKind::StreamStop => Message::StreamStop,
            MessageKind::StreamCommit => Message::StreamCommit(stream_commit(&mut fields)?),
            MessageKind::StreamAbort => {
                Message::StreamAbort(stream_abort(&mut fields, self.version)?)
            }
            MessageKind::BeginPrepare => Message::BeginPrepare(begin_prepare(&mut fields)?),
            MessageKind::Prepare => Message::Prepare(prepare(&mut fields)?),
            MessageKind::CommitPrepared => Message::CommitPrepared(commit_prepared(&mut fields)?),
            MessageKind::RollbackPrepared => {
                Message::RollbackPrepared(rollback_prepared(&mut fields)?)
            }
            MessageKind::StreamPrepare => Message::StreamPrepare(stream_prepare(&mut fields)?),
        };
        fields.finish()?;
        match kind {
            MessageKind::StreamStart => self.in_stream = true,
            MessageKind::StreamStop => self.in_stream = false,
            _ => {}
        }
        Ok(message)
    }

    /// Whether this kind may come now. What is let through in spite of the version is known from
    /// real servers: 18 sends Stream Abort to any session, and 15 and later send prepared
    /// transactions to any session on a slot that was created for them.
    fn check_place(&self, fields: &Cursor<'_>, kind: MessageKind) -> Result<(), DecodeError> {
        let refuse = |reason| Err(fields.refuse_message(reason));
        match kind {
            MessageKind::StreamStart | MessageKind::StreamStop | MessageKind::StreamCommit
                if self.version < ProtocolVersion::V2 =>
            {
                refuse(DecodeReason::NotInVersion {
                    needed: 2,
                    spoken: self.version.number(),
                })
            }
            MessageKind::StreamPrepare if self.version < ProtocolVersion::V2 => {
                refuse(DecodeReason::NotInVersion {
                    needed: 3,
                    spoken: self.version.number(),
                })
            }
            MessageKind::StreamStop if !self.in_stream => refuse(DecodeReason::OutsideStream),
            MessageKind::Begin
            | MessageKind::Commit
            | MessageKind::StreamStart
            | MessageKind::StreamCommit
            | MessageKind::StreamAbort
            | MessageKind::BeginPrepare
            | MessageKind::Prepare
            | MessageKind::CommitPrepared
            | MessageKind::RollbackPrepared
            | MessageKind::StreamPrepare
                if self.in_stream =>
            {
                refuse(DecodeReason::InsideStream)
            }
            _ => Ok(()),
        }
    }

    fn stream_xid(&self, fields: &mut Cursor<'_>) -> Result<Option<u32>, DecodeError> {
        if self.in_stream {
            fields.u32("xid").map(Some)
        } else {
            Ok(None)
        }
    }
}

/// `data` without its first `count` bytes, which the cursor has passed.
fn advanced(mut data: Bytes, count: usize) -> Bytes {
    data.advance(count.min(data.len()));
    data
}

fn begin(fields: &mut Cursor<'_>) -> Result<Begin, DecodeError> {
    Ok(Begin {
        final_lsn: fields.lsn("final LSN")?,
        commit_time: fields.timestamp("commit timestamp")?,
        xid: fields.u32("xid")?,
    })
}

fn commit(fields: &mut Cursor<'_>) -> Result<Commit, DecodeError> {
    Ok(Commit {
        flags: fields.u8("flags")?,
        commit_lsn: fields.lsn("commit LSN")?,
        end_lsn: fields.lsn("end LSN")?,
        commit_time: fields.timestamp("commit timestamp")?,
    })
}

fn origin(fields: &mut Cursor<'_>) -> Result<Origin, DecodeError> {
    Ok(Origin {
        commit_lsn: fields.lsn("commit LSN on the origin")?,
        name: fields.name("origin name")?,
    })
}

/// The kinds that have an xid inside a streamed block. (Insert, too, has its own place above.)
fn change(
    kind: MessageKind,
    xid: Option<u32>,
    fields: &mut Cursor<'_>,
) -> Result<Message, DecodeError> {
    Ok(match kind {
        MessageKind::Relation => Message::Relation(relation(xid, fields)?),
        MessageKind::Type => Message::Type(Type {
            xid,
            id: fields.u32("type id")?,
            namespace: fields.name("type namespace")?,
            name: fields.name("type name")?,
        }),
        MessageKind::Update => Message::Update(update(xid, fields)?),
        MessageKind::Delete => Message::Delete(Delete {
            xid,
            relation_id: fields.u32("relation id")?,
            old: old_row(fields)?,
        }),
        MessageKind::Truncate => Message::Truncate(truncate(xid, fields)?),
        _ => Message::Message(LogicalMessage {
            xid,
            flags: fields.u8("flags")?,
            lsn: fields.lsn("message LSN")?,
            prefix: fields.name("prefix")?,
            content: fields.sized_bytes("content length", "content")?,
        }),
    })
}

fn relation(xid: Option<u32>, fields: &mut Cursor<'_>) -> Result<Relation, DecodeError> {
    let id = fields.u32("relation id")?;
    let namespace = fields.name("relation namespace")?;
    let name = fields.name("relation name")?;
    let replica_identity = replica_identity(fields)?;
    let count = fields.count_i16("number of columns", RELATION_COLUMN_SIZE_MIN)?;
    let mut columns = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        columns.push(Column {
            flags: fields.u8("column flags")?,
            name: fields.name("column name")?,
            type_oid: fields.u32("column type")?,
            type_modifier: fields.i32("column type modifier")?,
        });
    }
    Ok(Relation {
        xid,
        id,
        namespace,
        name,
        replica_identity,
        columns,
    })
}

fn replica_identity(fields: &mut Cursor<'_>) -> Result<ReplicaIdentity, DecodeError> {
    fields.one_of("replica identity", "d, n, f, i", |byte| match byte {
        b'd' => Some(ReplicaIdentity::Default),
        b'n' => Some(ReplicaIdentity::Nothing),
        b'f' => Some(ReplicaIdentity::Full),
        b'i' => Some(ReplicaIdentity::Index),
        _ => None,
    })
}

fn row(fields: &mut Cursor<'_>) -> Result<Tuple, DecodeError> {
    let (count, begin) = fields.tuple()?;
    Ok(Tuple::from_checked(count, fields.share(begin)))
}

fn new_row_tag(fields: &mut Cursor<'_>) -> Result<(), DecodeError> {
    fields.one_of("row tag", "N", |byte| (byte == ROW_NEW).then_some(()))
}

/// Which row follows.
enum RowTag {
    New,
    Key,
    Old,
}

fn update(xid: Option<u32>, fields: &mut Cursor<'_>) -> Result<Update, DecodeError> {
    let relation_id = fields.u32("relation id")?;
    let tag = fields.one_of("row tag", "K, O, N", |byte| match byte {
        ROW_NEW => Some(RowTag::New),
        ROW_KEY => Some(RowTag::Key),
        ROW_OLD => Some(RowTag::Old),
        _ => None,
    })?;
    let old = match tag {
        RowTag::New => None,
        RowTag::Key => Some(OldRow::Key(row(fields)?)),
        RowTag::Old => Some(OldRow::Full(row(fields)?)),
    };
    if old.is_some() {
        new_row_tag(fields)?;
    }
    Ok(Update {
        xid,
        relation_id,
        old,
        new: row(fields)?,
    })
}

fn old_row(fields: &mut Cursor<'_>) -> Result<OldRow, DecodeError> {
    let wrap = fields.one_of("row tag", "K, O", |byte| match byte {
        ROW_KEY => Some(OldRow::Key as fn(Tuple) -> OldRow),
        ROW_OLD => Some(OldRow::Full as fn(Tuple) -> OldRow),
        _ => None,
    })?;
    Ok(wrap(row(fields)?))
}

fn truncate(xid: Option<u32>, fields: &mut Cursor<'_>) -> Result<Truncate, DecodeError> {
    let begin = fields.offset();
    let field = "number of relations";
    let count = fields.i32(field)?;
    let flags = fields.u8("flags")?;
    let count = fields.check_count(begin, field, i64::from(count), RELATION_ID_SIZE)?;
    let mut relation_ids = Vec::with_capacity(count);
    for _ in 0..count {
        relation_ids.push(fields.u32("relation id")?);
    }
    Ok(Truncate {
        xid,
        flags,
        relation_ids,
    })
}

fn stream_start(fields: &mut Cursor<'_>) -> Result<StreamStart, DecodeError> {
    Ok(StreamStart {
        xid: fields.u32("xid")?,
        first_segment: fields.u8("first segment")?,
    })
}

fn stream_commit(fields: &mut Cursor<'_>) -> Result<StreamCommit, DecodeError> {
    Ok(StreamCommit {
        xid: fields.u32("xid")?,
        flags: fields.u8("flags")?,
        commit_lsn: fields.lsn("commit LSN")?,
        end_lsn: fields.lsn("end LSN")?,
        commit_time: fields.timestamp("commit timestamp")?,
    })
}

/// Version 4 alone does not tell whether LSN and time are there: the server adds them only if the
/// session's option `streaming` is `parallel`. Hence by the bytes left.
fn stream_abort(
    fields: &mut Cursor<'_>,
    version: ProtocolVersion,
) -> Result<StreamAbort, DecodeError> {
    let xid = fields.u32("xid")?;
    let subxid = fields.u32("subtransaction xid")?;
    let details = if version >= ProtocolVersion::V4 && fields.left() > 0 {
        Some(AbortDetails {
            abort_lsn: fields.lsn("abort LSN")?,
            abort_time: fields.timestamp("abort timestamp")?,
        })
    } else {
        None
    };
    Ok(StreamAbort {
        xid,
        subxid,
        details,
    })
}

fn begin_prepare(fields: &mut Cursor<'_>) -> Result<BeginPrepare, DecodeError> {
    Ok(BeginPrepare {
        prepare_lsn: fields.lsn("prepare LSN")?,
        end_lsn: fields.lsn("end LSN")?,
        prepare_time: fields.timestamp("prepare timestamp")?,
        xid: fields.u32("xid")?,
        gid: fields.name("gid")?,
    })
}

fn prepare(fields: &mut Cursor<'_>) -> Result<Prepare, DecodeError> {
    Ok(Prepare {
        flags: fields.u8("flags")?,
        prepare_lsn: fields.lsn("prepare LSN")?,
        end_lsn: fields.lsn("end LSN")?,
        prepare_time: fields.timestamp("prepare timestamp")?,
        xid: fields.u32("xid")?,
        gid: fields.name("gid")?,
    })
}

fn commit_prepared(fields: &mut Cursor<'_>) -> Result<CommitPrepared, DecodeError> {
    Ok(CommitPrepared {
        flags: fields.u8("flags")?,
        commit_lsn: fields.lsn("commit LSN")?,
        end_lsn: fields.lsn("end LSN")?,
        commit_time: fields.timestamp("commit timestamp")?,
        xid: fields.u32("xid")?,
        gid: fields.name("gid")?,
    })
}

fn rollback_prepared(fields: &mut Cursor<'_>) -> Result<RollbackPrepared, DecodeError> {
    Ok(RollbackPrepared {
        flags: fields.u8("flags")?,
        prepare_end_lsn: fields.lsn("prepare end LSN")?,
        rollback_end_lsn: fields.lsn("rollback end LSN")?,
        prepare_time: fields.timestamp("prepare timestamp")?,
        rollback_time: fields.timestamp("rollback timestamp")?,
        xid: fields.u32("xid")?,
        gid: fields.name("gid")?,
    })
}

fn stream_prepare(fields: &mut Cursor<'_>) -> Result<StreamPrepare, DecodeError> {
    Ok(StreamPrepare {
        flags: fields.u8("flags")?,
        prepare_lsn: fields.lsn("prepare LSN")?,
        end_lsn: fields.lsn("end LSN")?,
        prepare_time: fields.timestamp("prepare timestamp")?,
        xid: fields.u32("xid")?,
        gid: fields.name("gid")?,
    })
}
