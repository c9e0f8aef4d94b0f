//! The only place that takes bytes apart. Every read is checked and knows what it read.

use bytes::Bytes;

use crate::error::{DecodeError, DecodeReason};
use crate::{Lsn, MessageKind, Name, Timestamp, Value};

/// Tag of a tuple's column that is NULL.
const COLUMN_NULL: u8 = b'n';
/// Tag of a tuple's column whose out-of-line value did not change and is not sent.
const COLUMN_UNCHANGED_TOAST: u8 = b'u';
/// Tag of a tuple's column in text format.
const COLUMN_TEXT: u8 = b't';
/// Tag of a tuple's column in binary format.
const COLUMN_BINARY: u8 = b'b';

/// Reads the fields of one message in their order.
pub(crate) struct Cursor<'a> {
    data: &'a Bytes,
    offset: usize,
    kind: Option<MessageKind>,
}

impl<'a> Cursor<'a> {
    /// Begins at the first byte of a message and reads its tag.
    pub(crate) fn open(data: &'a Bytes) -> Result<(Self, MessageKind), DecodeError> {
        let mut cursor = Self {
            data,
            offset: 0,
            kind: None,
        };
        let tag = cursor.u8("message tag")?;
        match MessageKind::from_tag(tag) {
            Some(kind) => {
                cursor.kind = Some(kind);
                Ok((cursor, kind))
            }
            None => Err(cursor.refuse_message(DecodeReason::UnknownMessage { tag })),
        }
    }

    /// Bytes read so far.
    pub(crate) const fn offset(&self) -> usize {
        self.offset
    }

    fn rest(&self) -> &'a [u8] {
        self.data.get(self.offset..).unwrap_or_default()
    }

    /// Bytes not read yet.
    pub(crate) fn left(&self) -> usize {
        self.rest().len()
    }

    /// An error about the field that begins at the current offset.
    #[cold]
    fn fail(&self, field: &'static str, reason: DecodeReason) -> DecodeError {
        DecodeError {
            kind: self.kind,
            field,
            offset: self.offset,
            reason,
        }
    }

    /// An error about the message as such, told by its tag.
    #[cold]
    pub(crate) fn refuse_message(&self, reason: DecodeReason) -> DecodeError {
        DecodeError {
            kind: self.kind,
            field: "message tag",
            offset: 0,
            reason,
        }
    }

    #[cold]
    fn cut_off(&self, field: &'static str, needed: usize) -> DecodeError {
        self.fail(
            field,
            DecodeReason::Truncated {
                needed,
                left: self.left(),
            },
        )
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeError> {
        match self.rest().first_chunk::<N>() {
            Some(chunk) => {
                self.offset += N;
                Ok(*chunk)
            }
            None => Err(self.cut_off(field, N)),
        }
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        self.array::<1>(field).map(u8::from_be_bytes)
    }

    /// A byte that `known` gives a meaning; `wanted` names those it knows.
    pub(crate) fn one_of<T>(
        &mut self,
        field: &'static str,
        wanted: &'static str,
        known: impl FnOnce(u8) -> Option<T>,
    ) -> Result<T, DecodeError> {
        let begin = self.offset;
        let found = self.u8(field)?;
        known(found).ok_or(DecodeError {
            kind: self.kind,
            field,
            offset: begin,
            reason: DecodeReason::UnknownByte { found, wanted },
        })
    }

    fn i16(&mut self, field: &'static str) -> Result<i16, DecodeError> {
        self.array(field).map(i16::from_be_bytes)
    }

    pub(crate) fn i32(&mut self, field: &'static str) -> Result<i32, DecodeError> {
        self.array(field).map(i32::from_be_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        self.array(field).map(u32::from_be_bytes)
    }

    pub(crate) fn lsn(&mut self, field: &'static str) -> Result<Lsn, DecodeError> {
        self.array(field).map(u64::from_be_bytes).map(Lsn::new)
    }

    pub(crate) fn timestamp(&mut self, field: &'static str) -> Result<Timestamp, DecodeError> {
        self.array(field)
            .map(i64::from_be_bytes)
            .map(Timestamp::from_postgres_micros)
    }

    /// A text up to its NUL byte.
    pub(crate) fn name(&mut self, field: &'static str) -> Result<Name, DecodeError> {
        let rest = self.rest();
        let Some(length) = rest.iter().position(|&byte| byte == 0) else {
            return Err(self.fail(field, DecodeReason::MissingNul { left: rest.len() }));
        };
        let begin = self.offset;
        self.offset += length + 1;
        Ok(Name::new(self.data.slice(begin..begin + length)))
    }

    /// Bytes with their length (4 bytes) in front.
    pub(crate) fn sized_bytes(
        &mut self,
        length_field: &'static str,
        field: &'static str,
    ) -> Result<Bytes, DecodeError> {
        let length = self.length(length_field)?;
        let begin = self.offset;
        self.skip(field, length)?;
        Ok(self.data.slice(begin..self.offset))
    }

    /// How many items follow, each of at least `item_size_min` bytes. A count that the rest of the
    /// message cannot hold is refused here, so the caller may allocate by it.
    pub(crate) fn count_i16(
        &mut self,
        field: &'static str,
        item_size_min: usize,
    ) -> Result<u16, DecodeError> {
        let begin = self.offset;
        let count = self.i16(field)?;
        self.check_count(begin, field, i64::from(count), item_size_min)?;
        Ok(count.unsigned_abs())
    }

    /// The check of [`Self::count_i16`] alone, for a `count` that was read at offset `begin`.
    pub(crate) fn check_count(
        &self,
        begin: usize,
        field: &'static str,
        count: i64,
        item_size_min: usize,
    ) -> Result<usize, DecodeError> {
        let left = self.left();
        let fits = |items: &usize| items.checked_mul(item_size_min).is_some_and(|s| s <= left);
        usize::try_from(count).ok().filter(fits).ok_or(DecodeError {
            kind: self.kind,
            field,
            offset: begin,
            reason: DecodeReason::BadCount { count, left },
        })
    }

    fn length(&mut self, field: &'static str) -> Result<usize, DecodeError> {
        let begin = self.offset;
        let length = self.i32(field)?;
        usize::try_from(length).map_err(|_| DecodeError {
            kind: self.kind,
            field,
            offset: begin,
            reason: DecodeReason::BadLength { length },
        })
    }

    fn skip(&mut self, field: &'static str, length: usize) -> Result<(), DecodeError> {
        if length > self.left() {
            return Err(self.cut_off(field, length));
        }
        self.offset += length;
        Ok(())
    }

    /// Checks a whole tuple and goes past it. Returns its column count; its columns lie between
    /// the offset after the count, also returned, and the offset after this call.
    pub(crate) fn tuple(&mut self) -> Result<(u16, usize), DecodeError> {
        // A column takes at least its tag.
        let count = self.count_i16("number of columns", 1)?;
        let begin = self.offset;
        for _ in 0..count {
            let has_value = self.one_of("column tag", "n, u, t, b", |tag| match tag {
                COLUMN_NULL | COLUMN_UNCHANGED_TOAST => Some(false),
                COLUMN_TEXT | COLUMN_BINARY => Some(true),
                _ => None,
            })?;
            if has_value {
                let length = self.length("column length")?;
                self.skip("column value", length)?;
            }
        }
        Ok((count, begin))
    }

    /// Shares the bytes between two offsets that were both passed.
    pub(crate) fn share(&self, begin: usize) -> Bytes {
        self.data.slice(begin.min(self.offset)..self.offset)
    }

    /// Nothing may follow.
    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            count => Err(self.fail("end of message", DecodeReason::LeftOver { count })),
        }
    }
}

/// Splits the first column off the columns of a tuple that [`Cursor::tuple`] has checked.
/// `None` when none is left (or on bytes that were never checked).
#[inline]
pub(crate) fn split_value<'a>(columns: &mut &'a [u8]) -> Option<Value<'a>> {
    let (&tag, rest) = columns.split_first()?;
    match tag {
        COLUMN_NULL => {
            *columns = rest;
            Some(Value::Null)
        }
        COLUMN_UNCHANGED_TOAST => {
            *columns = rest;
            Some(Value::UnchangedToast)
        }
        COLUMN_TEXT | COLUMN_BINARY => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(i32::from_be_bytes(*length)).ok()?;
            let (value, rest) = rest.split_at_checked(length)?;
            *columns = rest;
            Some(if tag == COLUMN_TEXT {
                Value::Text(value)
            } else {
                Value::Binary(value)
            })
        }
        _ => None,
    }
}
