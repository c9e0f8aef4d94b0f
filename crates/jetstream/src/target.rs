//! Which stream is written, by whom.

use outbox::Writers;

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
