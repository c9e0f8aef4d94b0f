//! Secrets as a type: what is wrapped here can be used, but not printed by accident.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Shown instead of a secret.
pub const MASK: &str = "***";

/// Largest secret file that is read, in bytes. Credentials and keys are a few kilobytes; the cap
/// keeps a wrong path (a device, a log) from filling the memory.
pub const SECRET_FILE_MAX_BYTES: usize = 64 * 1024;

/// A value that must not be shown: `Debug` prints a mask, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// The value itself. Each caller is a place to check that it is neither logged nor printed.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MASK)
    }
}

/// Where a password or token comes from. A file is read again at each connection, so that a
/// rotated secret is used without a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource {
    /// Given by environment or configuration file.
    Value(Secret<String>),
    /// In a file of its own; `at_start` is what it held when the configuration was checked.
    File {
        /// The file.
        path: PathBuf,
        /// Its content at start.
        at_start: Secret<String>,
    },
}

impl SecretSource {
    /// The secret as it was when the configuration was checked.
    pub fn at_start(&self) -> &Secret<String> {
        match self {
            Self::Value(secret) => secret,
            Self::File { at_start, .. } => at_start,
        }
    }

    /// The secret as it is now.
    ///
    /// # Errors
    /// When its file cannot be read, is empty, too large, or not UTF-8.
    pub fn current(&self) -> io::Result<Secret<String>> {
        match self {
            Self::Value(secret) => Ok(secret.clone()),
            Self::File { path, .. } => read_secret(path, &std::fs::read(path)?),
        }
    }
}

/// The secret in the bytes of a file: UTF-8, without the line end that editors and `echo` append.
///
/// # Errors
/// When the content is empty, too large, or not UTF-8. The error never repeats the content.
pub fn read_secret(path: &Path, bytes: &[u8]) -> io::Result<Secret<String>> {
    let fault = |what: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} {what}", path.display()),
        )
    };
    if bytes.len() > SECRET_FILE_MAX_BYTES {
        return Err(fault("is larger than a secret can be (64 KiB)"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| fault("is not UTF-8 text"))?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(fault("is empty"));
    }
    Ok(Secret::new(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_a_mask() {
        let secret = Secret::new("S3CR3T@x".to_owned());
        let source = SecretSource::File {
            path: "/run/pw".into(),
            at_start: secret.clone(),
        };
        let shown = format!(
            "{secret:?} {source:?} {:?}",
            SecretSource::Value(secret.clone())
        );
        assert!(!shown.contains("S3CR3T"), "{shown}");
        assert!(shown.contains(MASK));
    }

    #[test]
    fn a_file_loses_one_line_end_only() {
        let read = |bytes: &[u8]| read_secret(Path::new("/pw"), bytes).map(|s| s.expose().clone());
        assert_eq!(read(b"abc\n").unwrap(), "abc");
        assert_eq!(read(b"abc\r\n").unwrap(), "abc");
        assert_eq!(read(b" abc \n\n").unwrap(), " abc \n");
        assert!(read(b"\n").unwrap_err().to_string().contains("is empty"));
        assert!(read(b"\xff").unwrap_err().to_string().contains("UTF-8"));
        assert!(read(&vec![b'a'; SECRET_FILE_MAX_BYTES + 1]).is_err());
    }

    #[test]
    fn a_rotated_file_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        std::fs::write(&path, "new\n").unwrap();
        let source = SecretSource::File {
            path: path.clone(),
            at_start: Secret::new("old".to_owned()),
        };
        assert_eq!(source.current().unwrap().expose(), "new");
        assert_eq!(source.at_start().expose(), "old");
        std::fs::remove_file(&path).unwrap();
        assert!(source.current().is_err());
    }
}
