//! Rows whose subject no stream takes, or another one than the configured.
//!
//! Most of them are told by an answer: nobody listens, or another stream answers. But a subject
//! that no stream takes while an ordinary subscriber listens on it has no answer at all. So when a
//! row waits long for its PubAck, the stream is asked whether it takes the row's subject, before
//! the wait counts as a stall.

use std::time::Instant;

use crate::broker::{Taker, Token};
use crate::notice::EpochReason;
use crate::render::PoisonReason;

use super::broker::Broker;
use super::window::RowState;
use super::{Action, OnUnroutable, Relay};

/// Part of the ack timeout after which the question is asked, so that its answer comes before the
/// wait is a stall. JetStream answers within milliseconds, so it is seldom asked.
const ASK_AT_PART_OF_ACK_TIMEOUT: u32 = 2;

/// Epochs without a stored row after which a subject that nobody answers counts as unroutable.
/// A leader election takes about this long.
const FRUITLESS_EPOCHS_UNTIL_UNROUTABLE: u32 = 4;

impl Relay {
    /// Which stream takes the subject of a row that waits for its answer.
    pub fn handle_taker(&mut self, now: Instant, epoch: u64, token: Token, taker: Taker) {
        let (detail, sure) = match taker {
            Taker::Ours | Taker::Unknown => return,
            Taker::Other { stream } => (format!("it belongs to stream {stream}"), true),
            Taker::NotOurs { detail } => (detail, false),
        };
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        if live.number != epoch {
            return;
        }
        let Some(row) = self.window.get_mut(token) else {
            return;
        };
        if !matches!(row.state, RowState::Sent { .. }) {
            return;
        }
        row.state = RowState::Waiting;
        live.in_flight -= 1;
        self.unroutable(now, token, detail, sure);
    }

    /// A row was sent and is not stored, as its subject leads elsewhere or nowhere. `sure` says
    /// that it cannot be the passing state of a cluster.
    pub(super) fn unroutable(&mut self, now: Instant, token: Token, detail: String, sure: bool) {
        let sure = sure || self.fruitless_epochs >= FRUITLESS_EPOCHS_UNTIL_UNROUTABLE || {
            // Rows of other keys are stored, so there is a leader, and this one goes on failing.
            let stored_any = matches!(&self.broker, Broker::Up(live) if live.stored_any);
            let attempts = self.window.get(token).map_or(0, |row| row.attempts);
            stored_any && attempts > FRUITLESS_EPOCHS_UNTIL_UNROUTABLE
        };
        if self.settings.on_unroutable == OnUnroutable::Park && sure {
            let (err_code, description) = (0, detail);
            let reason = PoisonReason::Refused {
                err_code,
                description,
            };
            self.poisoned(now, token, reason);
            return;
        }
        let row = self.window.get(token);
        let subject = row.map(|row| String::from_utf8_lossy(&row.message.subject).into_owned());
        let subject = subject.unwrap_or_default();
        self.end_epoch(now, EpochReason::Unroutable { subject, detail });
    }

    /// Asks about the subject of the row that has waited longest, once it has waited long. One
    /// question about each such row.
    pub(super) fn ask_taker(&mut self, now: Instant) {
        let after = self.settings.ack_timeout / ASK_AT_PART_OF_ACK_TIMEOUT;
        let Some((token, sent_at)) = self.sent.oldest(&self.window) else {
            return;
        };
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        if now.duration_since(sent_at) < after || live.asked_about == Some(token) {
            return;
        }
        live.asked_about = Some(token);
        let subject = self
            .window
            .get(token)
            .map(|row| row.message.subject.clone());
        self.actions.push_back(Action::FindTaker {
            epoch: live.number,
            token,
            subject: subject.unwrap_or_default(),
        });
    }

    /// When the row that has waited longest for an answer is asked about, or has waited too long.
    pub(super) fn answer_due(&mut self) -> Option<Instant> {
        let timeout = self.settings.ack_timeout;
        let (token, sent_at) = self.sent.oldest(&self.window)?;
        let Broker::Up(live) = &self.broker else {
            return Some(sent_at + timeout);
        };
        if live.asked_about == Some(token) {
            return Some(sent_at + timeout);
        }
        Some(sent_at + timeout / ASK_AT_PART_OF_ACK_TIMEOUT)
    }
}
