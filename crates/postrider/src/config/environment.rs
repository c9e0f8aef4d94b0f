//! Environment variables and files, as an argument: tests pass a map.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// What configuration is read from besides the command line.
pub trait Environment: fmt::Debug {
    /// The variables, in any order.
    fn variables(&self) -> Vec<(OsString, OsString)>;

    /// A file's content, at most `max_bytes` of it.
    ///
    /// # Errors
    /// When it cannot be read, or is larger.
    fn read(&self, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>>;
}

/// The process's own environment and file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEnvironment;

impl Environment for ProcessEnvironment {
    fn variables(&self) -> Vec<(OsString, OsString)> {
        std::env::vars_os().collect()
    }

    fn read(&self, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
        use std::io::Read as _;

        let mut content = Vec::new();
        let cap = u64::try_from(max_bytes)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        std::fs::File::open(path)?
            .take(cap)
            .read_to_end(&mut content)?;
        within(content, max_bytes)
    }
}

/// An environment made of maps, for tests.
#[derive(Clone, Debug, Default)]
pub struct MemoryEnvironment {
    /// Variables.
    pub variables: BTreeMap<String, String>,
    /// Files.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

impl MemoryEnvironment {
    /// With these variables and no file.
    pub fn with_variables<'a>(variables: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            variables: variables.into_iter().map(owned).collect(),
            files: BTreeMap::new(),
        }
    }

    /// Adds a file.
    #[must_use]
    pub fn file(mut self, path: &str, content: &str) -> Self {
        self.files.insert(path.into(), content.as_bytes().to_vec());
        self
    }
}

impl Environment for MemoryEnvironment {
    fn variables(&self) -> Vec<(OsString, OsString)> {
        self.variables
            .iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    fn read(&self, path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
        match self.files.get(path) {
            Some(content) => within(content.clone(), max_bytes),
            None => Err(io::Error::new(io::ErrorKind::NotFound, "no such file")),
        }
    }
}

/// Refuses what is larger than its cap.
fn within(content: Vec<u8>, max_bytes: usize) -> io::Result<Vec<u8>> {
    if content.len() > max_bytes {
        let text = format!("larger than {max_bytes} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    Ok(content)
}
