//! Where a row stands: its position in the log, and the server whose log that is.

use std::fmt;
use std::str::FromStr;

use pgoutput::Lsn;

/// The place of one row in the order in which transactions committed.
///
/// Written `COMMIT_LSN/N`, for example `0/16B3748/0`. Positions order first by commit, then by the
/// number of the change, and compare only within one [`Source`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The LSN of the commit record, as the Begin message announces it.
    pub commit_lsn: Lsn,
    /// The number of the change among all changes of its transaction that were received, from 0.
    /// Rows of tables that are no outbox count too, so that a table added to the configuration
    /// later moves no number.
    pub change: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.commit_lsn, self.change)
    }
}

/// The text is not a position or a source.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not {wanted}: {text:?}")]
pub struct ParsePositionError {
    wanted: &'static str,
    text: String,
}

impl ParsePositionError {
    fn new(wanted: &'static str, text: &str) -> Self {
        Self {
            wanted,
            text: text.chars().take(128).collect(),
        }
    }
}

impl FromStr for Position {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (lsn, change) = text.rsplit_once('/')?;
            Some(Self {
                commit_lsn: lsn.parse().ok()?,
                change: plain_number(change)?,
            })
        };
        parse().ok_or_else(|| ParsePositionError::new("a position COMMIT_LSN/N", text))
    }
}

/// The log that positions belong to: server, timeline, database and slot.
///
/// Written `SYSTEM_IDENTIFIER/TIMELINE/DATABASE/SLOT`; the database name is percent-encoded where
/// it holds a slash, a percent sign or a byte outside printable ASCII.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Source {
    /// `pg_control`'s system identifier, made by initdb (IDENTIFY_SYSTEM).
    pub system_identifier: u64,
    /// The server's timeline; a promotion begins a new one.
    pub timeline: u32,
    /// Name of the database whose rows these are.
    pub database: String,
    /// Name of the replication slot.
    pub slot: String,
}

impl Source {
    /// Whether both name the same database and slot of the same server, on whatever timeline.
    #[must_use]
    pub fn same_log(&self, other: &Self) -> bool {
        self.system_identifier == other.system_identifier
            && self.database == other.database
            && self.slot == other.slot
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/", self.system_identifier, self.timeline)?;
        for byte in self.database.bytes() {
            if byte.is_ascii_graphic() && byte != b'/' && byte != b'%' {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        write!(f, "/{}", self.slot)
    }
}

impl FromStr for Source {
    type Err = ParsePositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let mut parts = text.split('/');
            let source = Self {
                system_identifier: plain_number(parts.next()?)?,
                timeline: u32::try_from(plain_number(parts.next()?)?).ok()?,
                database: percent_decoded(parts.next()?)?,
                slot: parts.next().filter(|slot| !slot.is_empty())?.to_owned(),
            };
            parts.next().is_none().then_some(source)
        };
        parse().ok_or_else(|| {
            ParsePositionError::new("a source SYSTEM_IDENTIFIER/TIMELINE/DATABASE/SLOT", text)
        })
    }
}

/// A number as we write it: digits only, no sign, no blank.
fn plain_number(text: &str) -> Option<u64> {
    let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if plain { text.parse().ok() } else { None }
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after.get(2..)?;
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_order_by_commit_then_change() {
        let at = |text: &str| text.parse::<Position>().unwrap();
        assert!(at("0/16B3748/9") < at("0/16B3748/10"));
        assert!(at("0/16B3748/10") < at("0/16B3749/0"));
        assert!(at("0/FFFFFFFF/0") < at("1/0/0"));
        assert_eq!(at("0/16B3748/7").to_string(), "0/16B3748/7");
    }

    #[test]
    fn what_is_no_position_is_refused() {
        for text in [
            "", "0/0", "0/0/", "0/0/-1", "0/0/+1", "x/0/0", "0/0/0/0", "0/0/ 1",
        ] {
            assert!(text.parse::<Position>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn sources_survive_any_database_name() {
        for database in ["shop", "a/b", "100%", "Größe", "with space", ""] {
            let source = Source {
                system_identifier: 7_301_234_567_890_123_456,
                timeline: 3,
                database: database.to_owned(),
                slot: "postrider".to_owned(),
            };
            let text = source.to_string();
            assert!(text.is_ascii(), "{text}");
            assert_eq!(text.parse::<Source>().unwrap(), source);
        }
        for text in [
            "",
            "1/2/3",
            "1/2/3/",
            "1/2/3/4/5",
            "x/1/db/slot",
            "1/x/db/slot",
            "1/1/%4/s",
        ] {
            assert!(text.parse::<Source>().is_err(), "{text:?}");
        }
    }
}
