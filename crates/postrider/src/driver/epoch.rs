//! The stream that an epoch writes.

use jetstream::StreamTarget;
use outbox::Source;

use crate::config::Settings;

/// The owner of a stream, as its metadata names it.
pub(crate) fn owner(source: &Source) -> String {
    format!(
        "{}/{}/{}",
        source.system_identifier, source.database, source.slot
    )
}

/// The stream of these settings.
pub(crate) fn target(settings: &Settings, owner: String) -> StreamTarget {
    let mut patterns: Vec<String> = settings
        .outboxes
        .iter()
        .map(outbox::OutboxSpec::subject_pattern)
        .collect();
    patterns.sort();
    patterns.dedup();
    StreamTarget {
        stream: settings.nats.stream.clone(),
        writers: settings.nats.writers,
        owner,
        patterns,
    }
}
