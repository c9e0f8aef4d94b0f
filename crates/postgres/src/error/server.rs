//! An error or warning as the server words it.

use std::fmt;

/// A five-character SQLSTATE (PostgreSQL manual, "PostgreSQL Error Codes").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState([u8; 5]);

impl SqlState {
    /// Reads a code; anything but five ASCII letters or digits becomes `XX000`, internal error.
    #[must_use]
    pub fn new(code: &str) -> Self {
        match <[u8; 5]>::try_from(code.as_bytes()) {
            Ok(bytes) if bytes.iter().all(u8::is_ascii_alphanumeric) => Self(bytes),
            _ => Self(*b"XX000"),
        }
    }

    /// The code as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The fields of an ErrorResponse or NoticeResponse that a reader needs
/// (PostgreSQL manual, "Error and Notice Message Fields").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// SQLSTATE.
    pub code: SqlState,
    /// `ERROR`, `FATAL`, `WARNING`, ... never translated.
    pub severity: String,
    /// The message, in the server's language.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
    /// The function in the server's source that raised it; never translated.
    pub routine: Option<String>,
}

impl ServerError {
    /// Reads the payload of an ErrorResponse or NoticeResponse. Never fails: what cannot be read is
    /// left out, because an error about an error would hide the first one.
    #[must_use]
    pub fn parse(payload: &[u8]) -> Self {
        let mut error = Self {
            code: SqlState::new(""),
            severity: "ERROR".to_owned(),
            message: "the server gave no message".to_owned(),
            detail: None,
            hint: None,
            routine: None,
        };
        for field in payload.split(|byte| *byte == 0) {
            let Some((kind, text)) = field.split_first() else {
                break;
            };
            let text = String::from_utf8_lossy(text).into_owned();
            match kind {
                b'C' => error.code = SqlState::new(&text),
                b'V' => error.severity = text,
                b'M' => error.message = text,
                b'D' => error.detail = Some(text),
                b'H' => error.hint = Some(text),
                b'R' => error.routine = Some(text),
                _ => {}
            }
        }
        error
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.code)?;
        for (label, text) in [("detail", &self.detail), ("hint", &self.hint)] {
            if let Some(text) = text {
                write!(f, "; {label}: {text}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ServerError {}

impl From<&tokio_postgres::error::DbError> for ServerError {
    fn from(error: &tokio_postgres::error::DbError) -> Self {
        Self {
            code: SqlState::new(error.code().code()),
            severity: error.severity().to_owned(),
            message: error.message().to_owned(),
            detail: error.detail().map(str::to_owned),
            hint: error.hint().map(str::to_owned),
            routine: error.routine().map(str::to_owned),
        }
    }
}
