//! Texts that the server ends with a NUL byte.

use std::borrow::Cow;
use std::fmt;
use std::str::Utf8Error;

use bytes::Bytes;

/// A name or other short text of a message: a table, a column, a message prefix, a transaction id.
///
/// The server sends it in the client encoding, which is UTF-8 for all practical purposes. A
/// database whose encoding is `SQL_ASCII` does not convert, however, and its names may be any
/// bytes but NUL. Hence bytes here, and a check for who wants text.
///
/// It shares the memory of the message it came in.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Bytes);

impl Name {
    /// Wraps a text. (It may have NUL bytes; the server never sends one.)
    #[must_use]
    pub const fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The bytes as the server sent them, without the NUL at the end.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text.
    ///
    /// # Errors
    /// If the bytes are not UTF-8.
    pub fn to_str(&self) -> Result<&str, Utf8Error> {
        std::str::from_utf8(&self.0)
    }

    /// The text, with U+FFFD where the bytes are not UTF-8.
    #[must_use]
    pub fn to_str_lossy(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The same memory as a shared buffer.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// A copy with memory of its own, which no longer keeps the message's buffer alive.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Bytes::copy_from_slice(&self.0))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.to_str_lossy())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_str_lossy(), f)
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for Name {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl From<&'static str> for Name {
    fn from(text: &'static str) -> Self {
        Self(Bytes::from_static(text.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_kept_and_shown() {
        let name = Name::new(Bytes::from_static(b"caf\xe9"));
        assert_eq!(name.as_bytes(), b"caf\xe9");
        assert!(name.to_str().is_err());
        assert_eq!(name.to_string(), "caf\u{fffd}");
        assert_eq!(format!("{name:?}"), "\"caf\u{fffd}\"");
    }

    #[test]
    fn text_compares_with_text() {
        let name = Name::from("Größe");
        assert_eq!(name, "Größe");
        assert_eq!(name.to_str(), Ok("Größe"));
        assert_eq!(name.detached(), name);
    }
}
