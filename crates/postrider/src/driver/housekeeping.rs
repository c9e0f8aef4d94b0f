//! What happens once in a while: the progress line and the look at publication and tables.

use std::time::{Duration, Instant};

use outbox::{Relay, SourceFault, Writers};
use pgoutput::Lsn;
use postgres::Watched;
use tokio::sync::Mutex;

use crate::config::Settings;

use super::control::SharedControl;
use super::session::{self, Session, Told};
use super::tasks::Tasks;

/// How often the streamer of an exclusive stream looks whether a command waits for its turn.
const TURN_EVERY: Duration = Duration::from_secs(1);

/// One line a minute says that the streamer lives and where it stands.
const PROGRESS_EVERY: Duration = Duration::from_secs(60);

/// How often publication and tables are looked at, at least. The rows of a table that left the
/// publication vanish without an error, so this bounds how many can.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// How soon they are looked at again when the log has moved: a change of them is written there, so
/// a cluster that writes nothing is not asked.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Housekeeping {
    progress_at: Instant,
    /// The last look in this session: when, and how far the log was received then.
    looked: Option<(Instant, Lsn)>,
    turn_at: Instant,
    published: u64,
    published_at: Option<Instant>,
}

impl Housekeeping {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            progress_at: now + PROGRESS_EVERY,
            looked: None,
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
        match (session, self.looked) {
            (None, _) => self.looked = None,
            (Some(_), Some((at, _))) if now.duration_since(at) < LOOK_AGAIN => {}
            (Some(_), last) => {
                let received = relay.snapshot().received;
                let due = last.is_none_or(|(at, seen)| {
                    seen != received || now.duration_since(at) >= LOOK_EVERY
                });
                if due && tasks.look() {
                    self.looked = Some((now, received));
                }
            }
        }
        if self.turn_at <= now {
            self.turn_at = now + TURN_EVERY;
            if relay.snapshot().writers == Some(Writers::Exclusive) {
                tasks.check_turn();
            }
        }
        self.tell_progress(now, relay);
    }

    /// The progress line, when it is due.
    fn tell_progress(&mut self, now: Instant, relay: &Relay) {
        let published = relay.counters().published;
        if published > self.published {
            self.published = published;
            self.published_at = Some(now);
        }
        if now < self.progress_at {
            return;
        }
        self.progress_at = now + PROGRESS_EVERY;
        let state = relay.snapshot();
        let last_publish = match self.published_at {
            Some(at) => format!("{} s ago", now.duration_since(at).as_secs()),
            None => "never".to_owned(),
        };
        // Without a session nothing is known of the slot, which is not the same as 0.
        let known = |lsn: Lsn| (lsn != Lsn::ZERO).then_some(lsn);
        let confirmed = known(state.confirmed);
        let lag_bytes = confirmed.map(|confirmed| state.log_end.bytes_since(confirmed));
        tracing::info!(
            state = state.state,
            in_flight = state.in_flight_rows,
            confirmed = confirmed.map(tracing::field::display),
            received = known(state.received).map(tracing::field::display),
            lag_bytes,
            published = state.counters.published,
            duplicates = state.counters.duplicates,
            dead_letters = state.counters.dead_lettered,
            last_publish,
            "progress"
        );
    }
}

/// What the last look found, kept over sessions.
pub(super) type LastLook = Option<(Watched, Instant)>;

/// Whether the publication still gives us the inserts of every outbox. A server that does not
/// answer is the session's trouble, not told here.
pub(super) async fn look(
    settings: &Settings,
    control: &SharedControl,
    last: &Mutex<LastLook>,
    told: &Told,
) -> Option<SourceFault> {
    let mut last = last.lock().await;
    let before = last.as_ref().map(|(watched, _)| watched);
    let what = "looking at publication and tables";
    let looked = control.with(settings, what, async |control| {
        // At the same pace, and of no account: rows that a halt was noted at may have flowed.
        let _ = control.forget_halts(&settings.postgres.slot).await;
        postgres::look(control, &session::plan(settings, false), before).await
    });
    let look = match looked.await {
        Ok(look) => look,
        Err(error) => {
            let fault = session::fault_of(&error);
            tracing::debug!("publication and tables could not be looked at: {fault}");
            return None;
        }
    };
    told.warn(settings, &look.findings, &look.tables);
    let Some(finding) = look.fault() else {
        tracing::debug!(as_of = %look.watched.as_of, "publication and tables are as they must be");
        *last = Some((look.watched, Instant::now()));
        return None;
    };
    let mut fault = session::fault_of_finding(finding);
    if let Some((watched, at)) = last.as_ref() {
        let statement = fault.detail.trim_end_matches(';').len();
        fault.detail.truncate(statement);
        fault.detail.push_str(&format!(
            "; all was well at {}, {} s ago: rows committed since then may be in the table alone",
            watched.as_of,
            at.elapsed().as_secs(),
        ));
    }
    Some(fault)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex as StdMutex};

    use outbox::{RelaySettings, SessionStart, Source};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<StdMutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Lines {
        fn take(&self) -> Vec<String> {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            let text = String::from_utf8(bytes).unwrap();
            text.lines().map(str::to_owned).collect()
        }
    }

    #[test]
    fn one_line_a_minute_tells_where_the_streamer_stands() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let begun = Instant::now();
        let mut relay = Relay::new(RelaySettings::new(Vec::new()), begun);
        let mut housekeeping = Housekeeping::new(begun);
        let second = |n| begun + Duration::from_secs(n);

        housekeeping.tell_progress(second(59), &relay);
        assert_eq!(lines.take(), [""; 0]);
        housekeeping.tell_progress(second(60), &relay);
        let [line] = &lines.take()[..] else {
            panic!("not one line");
        };
        for text in [
            "INFO",
            "progress",
            "state=\"starting\"",
            "in_flight=0",
            "\"never\"",
        ] {
            assert!(line.contains(text), "{text} is not in {line}");
        }
        for unknown in ["confirmed", "received", "lag_bytes"] {
            assert!(!line.contains(unknown), "{unknown} is in {line}");
        }

        relay.handle_time(begun);
        let source = Source {
            system_identifier: 1,
            timeline: 1,
            database: "shop".to_owned(),
            slot: "postrider".to_owned(),
        };
        let start = SessionStart {
            source,
            forks: Vec::new(),
            log_end: Lsn::new(0x2000),
            confirmed_flush: Lsn::new(0x1000),
        };
        relay.handle_session_started(begun, start);
        for minute in 2..5 {
            housekeeping.tell_progress(second(60 * minute - 1), &relay);
            assert_eq!(lines.take(), [""; 0], "minute {minute}");
            housekeeping.tell_progress(second(60 * minute), &relay);
            let said = lines.take();
            assert_eq!(said.len(), 1, "{said:?}");
            // What the slot had confirmed before this session, not 0/0.
            for text in ["confirmed=0/1000", "lag_bytes=4096"] {
                assert!(said[0].contains(text), "{text} is not in {said:?}");
            }
        }
    }
}
