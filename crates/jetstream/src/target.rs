//! Which stream is written, by whom.

use outbox::Writers;

/// Longest name of a stream in bytes (JSMaxNameLen of nats-server).
const MAX_NAME_BYTES: usize = 255;

/// Whether JetStream takes this as the name of a stream: no blank, dot, wildcard, path separator
/// or unprintable character, and not too long.
#[must_use]
pub fn is_stream_name(name: &str) -> bool {
    let bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && !name.contains(bad)
}

/// The stream of one epoch, as configuration names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamTarget {
    /// Name of the stream.
    pub stream: String,
    /// Who writes it; `None` leaves it to the stream's own metadata, and without that to
    /// [`Writers::Shared`], which is safe whoever else writes.
    pub writers: Option<Writers>,
    /// `SYSTEM_IDENTIFIER/DATABASE/SLOT`, compared with what `setup` wrote into the stream.
    pub owner: String,
    /// The subjects that we publish to, with `*` and `>` where a template takes a value from the
    /// row, for example `outbox.*.*`.
    pub patterns: Vec<String>,
}

impl StreamTarget {
    /// Who writes the stream, given what its metadata says.
    #[must_use]
    pub fn writers(&self, by_metadata: Option<Writers>) -> Writers {
        self.writers.or(by_metadata).unwrap_or(Writers::Shared)
    }
}

#[cfg(test)]
mod tests {
    use super::is_stream_name;

    #[test]
    fn names_as_jetstream_takes_them() {
        for name in ["OUTBOX", "orders-2", "über", &"x".repeat(255)] {
            assert!(is_stream_name(name), "{name}");
        }
        let long = "x".repeat(256);
        for name in [
            "", "a.b", "a b", "a*", ">", "a/b", "a\\b", "a\tb", "a\0", &long,
        ] {
            assert!(!is_stream_name(name), "{name:?}");
        }
    }
}
