//! Rows whose ids are taken by orphans of a timeline that the server has left: a sequence that went
//! back with the promotion hands the same ids out again.

use std::time::Instant;

use crate::Position;
use crate::broker::{Token, renamed_id};
use crate::notice::{EpochReason, Notice};
use crate::render::Rendered;

use super::Relay;
use super::broker::Broker;
use super::window::RowState;

impl Relay {
    /// Whether a dedup id is known to be an orphan's.
    pub(super) fn is_orphans_id(&self, dedup_id: &[u8]) -> bool {
        !self.orphan_ids.is_empty()
            && std::str::from_utf8(dedup_id).is_ok_and(|id| self.orphan_ids.contains(id.trim()))
    }

    /// Looks at the rows that arrived before the orphans were known.
    pub(super) fn rename_waiting(&mut self) {
        if self.orphan_ids.is_empty() {
            return;
        }
        let waiting = self.window.iter();
        let waiting = waiting.filter(|(_, row)| {
            let unsent = row.state == RowState::Waiting && row.attempts == 0;
            unsent && self.is_orphans_id(&row.message.dedup_id)
        });
        let tokens: Vec<_> = waiting.map(|(token, _)| token).collect();
        for token in tokens {
            self.rename_at(token);
        }
    }

    fn rename_at(&mut self, token: Token) {
        let Some(row) = self.window.get_mut(token) else {
            return;
        };
        let position = row.position;
        let mut message = std::mem::take(&mut row.message);
        self.rename(&mut message, position);
        if let Some(row) = self.window.get_mut(token) {
            row.message = message;
        }
    }

    /// Gives a row the id `ID@TIMELINE`, as an orphan has its own: JetStream would call it a
    /// duplicate, and consumers that remember ids would too.
    pub(super) fn rename(&mut self, rendered: &mut Rendered, position: Position) {
        let Some(timeline) = self.session.start().map(|start| start.source.timeline) else {
            return;
        };
        let row_id = String::from_utf8_lossy(&rendered.dedup_id);
        let row_id = row_id.chars().take(super::output::SHOWN_ID_CHARS).collect();
        self.notices.push_back(Notice::Renamed {
            row_id,
            position,
            timeline,
        });
        rendered.rename(renamed_id(&rendered.dedup_id, timeline));
    }

    /// The row's id is taken by an orphan of a timeline that the server has left: it goes out under
    /// another one.
    pub(super) fn outlive_orphan(&mut self, now: Instant, token: Token) {
        let Some(row) = self.window.get_mut(token) else {
            return;
        };
        let RowState::Judged { sequence, .. } = row.state else {
            return;
        };
        row.state = RowState::Waiting;
        self.rename_at(token);
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        // Those behind it in the chain have been refused by then, if there were any.
        let alone = live.in_flight == 1;
        live.judging -= 1;
        live.in_flight -= 1;
        match sequence {
            None => live.order.give_back(token),
            Some(sequence) if alone => live.order.repeat(token, sequence - 1),
            Some(_) => self.end_epoch(now, EpochReason::DuplicateProved),
        }
    }
}
