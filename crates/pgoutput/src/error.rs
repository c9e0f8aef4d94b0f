//! What can be wrong with the bytes of a message.

use std::fmt;

use crate::MessageKind;

/// The bytes are not a pgoutput message of the agreed protocol version.
///
/// The message cannot be skipped safely: bytes that are misread once mean that server and decoder
/// disagree on the protocol, or that the link corrupts data. End the session and report it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read pgoutput message{}: {field} at byte {offset}: {reason}", KindSuffix(*.kind))]
pub struct DecodeError {
    pub(crate) kind: Option<MessageKind>,
    pub(crate) field: &'static str,
    pub(crate) offset: usize,
    pub(crate) reason: DecodeReason,
}

impl DecodeError {
    /// The kind of the message; `None` if its first byte is missing or unknown.
    #[must_use]
    pub const fn kind(&self) -> Option<MessageKind> {
        self.kind
    }

    /// The field that could not be read, in the words of the PostgreSQL manual.
    #[must_use]
    pub const fn field(&self) -> &'static str {
        self.field
    }

    /// Where that field begins, in bytes from the beginning of the message.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// What is wrong with it.
    #[must_use]
    pub const fn reason(&self) -> DecodeReason {
        self.reason
    }
}

/// What is wrong with a field of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeReason {
    /// The message ends inside the field.
    #[error("cut off: {needed} bytes needed, {left} left")]
    Truncated {
        /// Bytes that the field takes.
        needed: usize,
        /// Bytes that the message still has.
        left: usize,
    },
    /// The message goes on after its last field.
    #[error("{count} bytes left over")]
    LeftOver {
        /// Bytes after the last field.
        count: usize,
    },
    /// No message kind has this tag.
    #[error("unknown message tag {}", Byte(*.tag))]
    UnknownMessage {
        /// The first byte of the message.
        tag: u8,
    },
    /// The byte is none of those that the field may have.
    #[error("unknown byte {}, wanted one of {wanted}", Byte(*.found))]
    UnknownByte {
        /// The byte that is there.
        found: u8,
        /// The bytes that the format knows.
        wanted: &'static str,
    },
    /// A count is negative, or the message is too short for so many items.
    #[error("impossible count {count}: {left} bytes left")]
    BadCount {
        /// The count that is there.
        count: i64,
        /// Bytes that the message still has after the count.
        left: usize,
    },
    /// A length is negative.
    #[error("negative length {length}")]
    BadLength {
        /// The length that is there.
        length: i32,
    },
    /// A text runs to the end of the message without the NUL byte that ends it.
    #[error("no NUL byte in the {left} bytes left")]
    MissingNul {
        /// Bytes that the message still has.
        left: usize,
    },
    /// The message kind belongs to a later protocol version than the one agreed on.
    #[error("needs protocol version {needed}, this session speaks version {spoken}")]
    NotInVersion {
        /// The first version that has this kind.
        needed: u8,
        /// The version of the session.
        spoken: u8,
    },
    /// The message kind cannot come between Stream Start and Stream Stop.
    #[error("not allowed inside a streamed block")]
    InsideStream,
    /// A Stream Stop without its Stream Start.
    #[error("not allowed outside a streamed block")]
    OutsideStream,
}

/// ` Insert ('I')` in an error message, or nothing.
struct KindSuffix(Option<MessageKind>);

impl fmt::Display for KindSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(kind) => write!(f, " {kind}"),
            None => Ok(()),
        }
    }
}

/// A byte as `'x'` if it is printable ASCII, else as `0xff`.
struct Byte(u8);

impl fmt::Display for Byte {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_ascii_graphic() {
            write!(f, "'{}'", char::from(self.0))
        } else {
            write!(f, "0x{:02x}", self.0)
        }
    }
}
