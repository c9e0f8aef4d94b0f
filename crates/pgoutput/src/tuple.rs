//! The columns of one row.

use std::fmt;
use std::iter::FusedIterator;

use bytes::Bytes;

use crate::cursor::split_value;

/// The columns of one row, in the order of the [`Relation`](crate::Relation)'s columns.
///
/// It shares the memory of its message. The bytes were checked when the message was decoded, so
/// reading them cannot fail. A column is found by walking over those before it: to read several,
/// walk once with [`Tuple::iter`] (and `nth` to go forward) rather than [`Tuple::get`] for each.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Tuple {
    count: u16,
    columns: Bytes,
}

impl Tuple {
    /// `columns` are `count` columns that the cursor has checked.
    pub(crate) const fn from_checked(count: u16, columns: Bytes) -> Self {
        Self { count, columns }
    }

    /// Number of columns.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it has no columns, as a row of a table without columns.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that the columns take in the message: values, tags and lengths.
    #[must_use]
    pub const fn size_bytes(&self) -> usize {
        self.columns.len()
    }

    /// The columns from first to last, without allocation.
    #[must_use]
    pub fn iter(&self) -> TupleIter<'_> {
        TupleIter {
            left: self.count,
            columns: &self.columns,
        }
    }

    /// The column at `index`, from 0. Walks over the columns before it.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Value<'_>> {
        self.iter().nth(index)
    }

    /// The value at `index`, from 0, as a buffer that shares the memory of the message.
    /// `None` if there is no such column, or if it is NULL or not sent.
    #[must_use]
    pub fn bytes(&self, index: usize) -> Option<Bytes> {
        self.share(self.get(index)?.as_bytes()?)
    }

    /// Turns a value that [`Tuple::iter`] or [`Tuple::get`] gave into a buffer that shares the
    /// memory of the message. `None` if `value` does not lie inside this tuple.
    #[must_use]
    pub fn share(&self, value: &[u8]) -> Option<Bytes> {
        if value.is_empty() {
            return Some(Bytes::new());
        }
        let begin = value
            .as_ptr()
            .addr()
            .checked_sub(self.columns.as_ptr().addr())?;
        let end = begin.checked_add(value.len())?;
        (end <= self.columns.len()).then(|| self.columns.slice(begin..end))
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl<'a> IntoIterator for &'a Tuple {
    type Item = Value<'a>;
    type IntoIter = TupleIter<'a>;

    fn into_iter(self) -> TupleIter<'a> {
        self.iter()
    }
}

/// The columns of a [`Tuple`] from first to last.
#[derive(Debug, Clone)]
pub struct TupleIter<'a> {
    left: u16,
    columns: &'a [u8],
}

impl<'a> Iterator for TupleIter<'a> {
    type Item = Value<'a>;

    #[inline]
    fn next(&mut self) -> Option<Value<'a>> {
        let left = self.left.checked_sub(1)?;
        let value = split_value(&mut self.columns)?;
        self.left = left;
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.left), Some(usize::from(self.left)))
    }
}

impl ExactSizeIterator for TupleIter<'_> {}
impl FusedIterator for TupleIter<'_> {}

/// One column of a row.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Value<'a> {
    /// NULL.
    Null,
    /// The value is stored out of line (TOAST) and the Update did not touch it, so the server did
    /// not send it. (It is in the old row if the replica identity is `FULL`.)
    UnchangedToast,
    /// In the type's text format, in the client encoding.
    Text(&'a [u8]),
    /// In the type's binary send format; only when the session asked for `binary`.
    Binary(&'a [u8]),
}

impl<'a> Value<'a> {
    /// The bytes of a value that is there.
    #[must_use]
    pub const fn as_bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Null | Self::UnchangedToast => None,
            Self::Text(bytes) | Self::Binary(bytes) => Some(bytes),
        }
    }

    /// Whether this is NULL. (A value that was not sent is not.)
    #[must_use]
    pub const fn is_null(self) -> bool {
        matches!(self, Self::Null)
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::UnchangedToast => f.write_str("UnchangedToast"),
            Self::Text(bytes) => write!(f, "Text(\"{}\")", bytes.escape_ascii()),
            Self::Binary(bytes) => write!(f, "Binary(\"{}\")", bytes.escape_ascii()),
        }
    }
}
