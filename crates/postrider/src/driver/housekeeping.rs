//! What happens once in a while: the progress line and the look at the publication.

use std::time::{Duration, Instant};

use outbox::{Relay, SourceFault, SourceFaultKind, Writers};

use crate::config::Settings;

use super::control::SharedControl;
use super::session::{self, Session};
use super::tasks::Tasks;

/// How often the streamer of an exclusive stream looks whether a command waits for its turn.
const TURN_EVERY: Duration = Duration::from_secs(1);

/// One line a minute says that the streamer lives and where it stands.
const PROGRESS_EVERY: Duration = Duration::from_secs(60);

/// How often the publication is looked at. From server 18 on, the rows of a table that left the
/// publication vanish without an error, so this bounds how many can.
const PUBLICATION_EVERY: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Housekeeping {
    progress_at: Instant,
    publication_at: Instant,
    turn_at: Instant,
    published: u64,
    published_at: Option<Instant>,
}

impl Housekeeping {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            progress_at: now + PROGRESS_EVERY,
            publication_at: now + PUBLICATION_EVERY,
            turn_at: now + TURN_EVERY,
            published: 0,
            published_at: None,
        }
    }

    pub(super) fn look(
        &mut self,
        now: Instant,
        relay: &Relay,
        tasks: &mut Tasks,
        session: Option<&Session>,
    ) {
        if self.publication_at <= now {
            self.publication_at = now + PUBLICATION_EVERY;
            if session.is_some() {
                tasks.check_publication();
            }
        }
        if self.turn_at <= now {
            self.turn_at = now + TURN_EVERY;
            if relay.snapshot().writers == Some(Writers::Exclusive) {
                tasks.check_turn();
            }
        }
        if self.progress_at <= now {
            self.progress_at = now + PROGRESS_EVERY;
            self.tell_progress(now, relay);
        }
    }

    fn tell_progress(&mut self, now: Instant, relay: &Relay) {
        let state = relay.snapshot();
        if state.counters.published > self.published {
            self.published = state.counters.published;
            self.published_at = Some(now);
        }
        let last_publish = match self.published_at {
            Some(at) => format!("within {} s", now.duration_since(at).as_secs() + 60),
            None => "never".to_owned(),
        };
        tracing::info!(
            state = state.state,
            in_flight = state.in_flight_rows,
            confirmed = %state.confirmed,
            received = %state.received,
            lag_bytes = state.received.bytes_since(state.confirmed),
            published = state.counters.published,
            duplicates = state.counters.duplicates,
            dead_letters = state.counters.dead_lettered,
            last_publish,
            "progress"
        );
    }
}

/// Whether the publication still gives us the inserts of every outbox. A server that does not
/// answer is the session's trouble, not told here.
pub(super) async fn check_publication(
    settings: &Settings,
    control: &SharedControl,
) -> Option<SourceFault> {
    let name = &settings.postgres.publication;
    let tables = session::plan(settings, false).tables;
    let found = control
        .with(settings, "looking at the publication", async |control| {
            // At the same pace, and of no account: rows that a halt was noted at may have flowed.
            let _ = control.forget_halts(&settings.postgres.slot).await;
            control.publication(name, &tables).await
        })
        .await;
    let publication = match found {
        Ok(Some(publication)) => publication,
        Ok(None) => {
            return Some(SourceFault {
                kind: SourceFaultKind::PublicationMissing,
                detail: format!(
                    "publication {name} was dropped; rows committed since then are not streamed; \
                     cure: {}",
                    postgres::Fault::PublicationMissing.cure().unwrap_or("")
                ),
            });
        }
        Err(error) => {
            let fault = session::fault_of(&error);
            tracing::debug!("the publication could not be checked: {fault}");
            return None;
        }
    };
    let lacking = settings
        .outboxes
        .iter()
        .find(|spec| publication.table(&spec.schema, &spec.table).is_none());
    let detail = match lacking {
        Some(spec) => format!(
            "publication {name} no longer has table {}.{}: ALTER PUBLICATION {} ADD TABLE {}; \
             rows committed meanwhile are not streamed",
            spec.schema,
            spec.table,
            postgres::quote_identifier(name),
            postgres::quote_qualified(&spec.schema, &spec.table),
        ),
        None if !publication.inserts => format!(
            "publication {name} no longer publishes inserts: ALTER PUBLICATION {} SET (publish = \
             'insert'); rows committed meanwhile are not streamed",
            postgres::quote_identifier(name),
        ),
        None => return None,
    };
    Some(SourceFault {
        kind: SourceFaultKind::PublicationUnfit,
        detail,
    })
}
