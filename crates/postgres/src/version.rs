//! The server's version.

use std::fmt;

use crate::error::PgError;

/// The oldest major version that is supported: 13 has no logical messages in pgoutput and reports
/// too little of itself at the start of a session.
pub const MIN_SERVER_MAJOR: u16 = 14;

/// What a server says of its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerVersion {
    text: String,
    major: u16,
}

impl ServerVersion {
    /// Reads the parameter `server_version`, for example `15.18 (Debian 15.18-0+deb12u1)` or
    /// `19devel`.
    ///
    /// # Errors
    /// [`PgError::ServerVersion`] for anything older than [`MIN_SERVER_MAJOR`] or unreadable.
    pub fn parse(text: &str) -> Result<Self, PgError> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        let major = text.get(..digits).and_then(|digits| digits.parse().ok());
        match major {
            Some(major) if major >= MIN_SERVER_MAJOR => Ok(Self {
                text: text.to_owned(),
                major,
            }),
            _ => Err(PgError::ServerVersion {
                found: text.chars().take(64).collect(),
            }),
        }
    }

    /// The major version, for example 18.
    #[must_use]
    pub fn major(&self) -> u16 {
        self.major
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_major_version_is_read_and_old_ones_are_refused() {
        let text = "15.18 (Debian 15.18-0+deb12u1)";
        assert_eq!(ServerVersion::parse(text).unwrap().major(), 15);
        assert_eq!(ServerVersion::parse("19devel").unwrap().major(), 19);
        assert_eq!(ServerVersion::parse("14").unwrap().to_string(), "14");
        for text in ["13.23", "9.6.1", "unknown", ""] {
            assert!(ServerVersion::parse(text).is_err(), "{text}");
        }
    }
}
