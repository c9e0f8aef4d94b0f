//! SIGTERM at any step, and what the shell does at the end.

use outbox::StopKind;

use super::World;
use crate::law::{Law, Violation};

/// A streamer that is asked to stop is gone within its drain timeout, in microseconds; the timer
/// that ends it may come a little late.
const STOP_WITHIN_MICROS: u64 = 5_000_000 + 1_000;

impl World {
    /// SIGTERM.
    pub(super) fn ask_to_stop(&mut self) {
        if self.stop_by.is_some() {
            return;
        }
        self.note(|| "SIGTERM".to_owned());
        self.stop_by = Some(self.now + STOP_WITHIN_MICROS);
        self.summary.stops += 1;
        let now = self.instant();
        self.relay.handle_shutdown(now);
    }

    /// A streamer that was asked to stop stops in time, whatever happens meanwhile.
    pub(super) fn check_stop(&self) -> Result<(), Violation> {
        match self.stop_by {
            Some(by) if self.now > by => Err(Law::StopsInTime.broken(format!(
                "SIGTERM was forgotten: {:?}",
                self.relay.snapshot()
            ))),
            _ => Ok(()),
        }
    }

    /// The machine has stopped. The last word to PostgreSQL may get there or not.
    pub(super) fn stopped(&mut self, kind: StopKind, detail: &str) -> Result<(), Violation> {
        if self.stop_by.is_none() || kind != StopKind::Drained {
            return Err(Law::Progress.broken(format!("the machine stopped: {detail}")));
        }
        let now = self.instant();
        let _ = self.relay.poll_status(now);
        if self.walsender.is_some() {
            let confirmed = self.relay.confirmed();
            self.check_confirmation(confirmed)?;
            if self.rng.chance(800) {
                self.database.confirmed = self.database.confirmed.max(confirmed);
            }
        }
        self.summary.drained += u64::from(detail.starts_with("drained"));
        self.start_another();
        Ok(())
    }
}
