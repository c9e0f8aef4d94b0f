//! A position in the write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A position in PostgreSQL's write-ahead log, in bytes since its beginning.
///
/// Written and parsed as PostgreSQL does: two hexadecimal halves with a slash, `16/B374D848`
/// (PostgreSQL manual, "pg_lsn Type").
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(u64);

impl Lsn {
    /// `0/0`, which PostgreSQL reads as "no position".
    pub const ZERO: Self = Self(0);

    /// The position that lies `bytes` after the beginning of the log.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Bytes since the beginning of the log.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }

    /// Whether this is `0/0`.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Bytes from `earlier` to this position, 0 if `earlier` is later.
    #[must_use]
    pub const fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The text is not a log position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a log position: {text:?} (wanted two hexadecimal halves, for example 16/B374D848)")]
pub struct ParseLsnError {
    text: String,
}

impl FromStr for Lsn {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let half = |digits: &str| {
            let plain = (1..=8).contains(&digits.len())
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if plain {
                u32::from_str_radix(digits, 16).ok()
            } else {
                None
            }
        };
        text.split_once('/')
            .and_then(|(high, low)| Some((half(high)?, half(low)?)))
            .map(|(high, low)| Self(u64::from(high) << 32 | u64::from(low)))
            .ok_or_else(|| ParseLsnError {
                text: text.chars().take(64).collect(),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_number_agree() {
        for (text, bytes) in [
            ("0/0", 0),
            ("0/16B3748", 0x16B_3748),
            ("16/B374D848", 0x16_B374_D848),
            ("FFFFFFFF/FFFFFFFF", u64::MAX),
        ] {
            let lsn: Lsn = text.parse().unwrap();
            assert_eq!(lsn, Lsn::new(bytes));
            assert_eq!(lsn.to_string(), text);
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "/",
            "0",
            "0/",
            "/0",
            "0/0/0",
            "0/G",
            "-1/0",
            "+1/0",
            "0/123456789",
            " 0/0",
        ] {
            assert!(text.parse::<Lsn>().is_err(), "{text:?}");
        }
    }
}
