//! What the machine wants done.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use pgoutput::Lsn;

use crate::broker::{Outgoing, Token, Writers};
use crate::notice::Notice;
use crate::source::StatusUpdate;
use crate::verdict::StopKind;

use super::broker::Broker;
use super::order::SendOrder;
use super::search::Search;
use super::source::Session;
use super::window::{RowState, WindowRow};
use super::{Action, DeadLetter, Goal, OnPoison, Relay};

/// Longest row id in a log line, in characters.
pub(super) const SHOWN_ID_CHARS: usize = 128;

/// Parts of a confirm delay within which positions are kept as one. They are due when the last of
/// them would be, so a confirmation comes up to this part of the delay late, and never early; and
/// no more than this many positions and two are kept.
const CONFIRM_DELAY_PARTS: u32 = 256;

/// Settled positions on their way to PostgreSQL.
#[derive(Debug)]
pub(super) struct Confirmations {
    confirmed: Lsn,
    /// Settled positions that the confirm delay still holds back, with the time they are due. Those
    /// times lie further apart than a part of the delay.
    delayed: VecDeque<(Instant, Lsn)>,
    /// The position of the last status update.
    sent: Option<Lsn>,
    sent_at: Instant,
    asked_at: Instant,
    /// The server asked for a status update.
    pub(super) reply_wanted: bool,
}

impl Confirmations {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            confirmed: Lsn::ZERO,
            delayed: VecDeque::new(),
            sent: None,
            sent_at: now,
            asked_at: now,
            reply_wanted: false,
        }
    }

    pub(super) fn reset(&mut self, now: Instant) {
        *self = Self::new(now);
    }

    pub(super) const fn confirmed(&self) -> Lsn {
        self.confirmed
    }

    /// Takes over what is settled, at once or after `delay`.
    pub(super) fn advance(&mut self, now: Instant, settled: Lsn, delay: Duration) {
        if delay.is_zero() {
            self.confirmed = self.confirmed.max(settled);
            return;
        }
        let newest = self.delayed.back().map_or(self.confirmed, |(_, lsn)| *lsn);
        if settled > newest {
            let due = now + delay;
            match self.delayed.back_mut().filter(|(until, _)| due <= *until) {
                Some((_, position)) => *position = settled,
                None => {
                    // Rounded up, so that a delay has no more parts than that.
                    let part = delay / CONFIRM_DELAY_PARTS + Duration::from_nanos(1);
                    let until = due + part;
                    self.delayed.push_back((until, settled));
                }
            }
        }
        while let Some((due, lsn)) = self.delayed.front()
            && *due <= now
        {
            self.confirmed = self.confirmed.max(*lsn);
            self.delayed.pop_front();
        }
        assert!(
            self.delayed.len() <= CONFIRM_DELAY_PARTS as usize + 2,
            "{} delayed confirmations, more than a delay has parts",
            self.delayed.len()
        );
    }
}

impl Relay {
    /// The next thing to do, if any.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing that happened, if any.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// The next row to publish, if any may go out now. May also bring new actions.
    pub fn poll_publish(&mut self, now: Instant) -> Option<Outgoing> {
        if self.is_stopped() {
            return None;
        }
        loop {
            let Broker::Up(live) = &mut self.broker else {
                return None;
            };
            let exclusive = live.start.writers == Writers::Exclusive;
            let waits = live.yielding || live.search.is_some() || (exclusive && live.judging > 0);
            if waits || (live.careful && live.in_flight > 0) {
                return None;
            }
            let token = live.order.peek(&self.window)?;
            let settled = self.window.settled_up_to();
            let row = self.window.get_mut(token)?;
            if row.message.poison.is_some() {
                let idle = live.in_flight == 0;
                if !self.handle_poison(token, idle) {
                    return None;
                }
                continue;
            }
            live.order.took(token);
            let sequence = match &mut live.order {
                SendOrder::Chain { last_sequence, .. } => {
                    *last_sequence += 1;
                    Some(*last_sequence)
                }
                SendOrder::PerKey { .. } => None,
            };
            row.state = RowState::Sent { sequence };
            if row.attempts == 0 {
                row.sent_behind = self.seen.last_sequence;
            }
            row.attempts += 1;
            row.due_sequence = sequence;
            live.in_flight += 1;
            self.counters.resent += u64::from(row.attempts > 1);
            self.sent.push(token, now);
            return Some(outgoing(
                token,
                row,
                sequence,
                settled.filter(|_| !exclusive),
            ));
        }
    }

    /// A poison row is next. Returns whether another row may be looked at.
    fn handle_poison(&mut self, token: Token, nothing_in_flight: bool) -> bool {
        if self.settings.on_poison == OnPoison::Halt && !nothing_in_flight {
            return false;
        }
        let Some(letter) = self.dead_letter(token) else {
            return false;
        };
        let row_id: String = letter.row_id.chars().take(SHOWN_ID_CHARS).collect();
        let notice = Notice::Poison {
            table: letter.table.clone(),
            row_id,
            position: letter.position,
            reason: letter.reason.clone(),
        };
        if self.settings.on_poison == OnPoison::Halt {
            let detail = notice.to_string();
            self.actions.push_back(Action::NoteHalted(Box::new(letter)));
            self.stop(StopKind::Halted, detail);
            return false;
        }
        self.notices.push_back(notice);
        if let Some(row) = self.window.get_mut(token) {
            row.state = RowState::Parking;
        }
        self.actions.push_back(Action::Park(Box::new(letter)));
        match self.broker.epoch_mut().map(|epoch| &mut epoch.order) {
            // In a chain the row stays in the way until it is parked: the stream's last message
            // must never be ahead of a row that is neither stored nor parked.
            Some(SendOrder::Chain { .. }) | None => false,
            Some(order @ SendOrder::PerKey { .. }) => {
                order.took(token);
                true
            }
        }
    }

    fn dead_letter(&self, token: Token) -> Option<DeadLetter> {
        let row = self.window.get(token)?;
        let spec = self.settings.outboxes.get(row.table_index)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Some(DeadLetter {
            token,
            source: self.session.start()?.source.to_string(),
            position: row.position,
            table: format!("{}.{}", spec.schema, spec.table),
            row_id: text(&row.message.row_id),
            dedup_id: text(&row.message.dedup_id),
            subject: text(&row.message.subject),
            headers: row.message.headers.clone(),
            payload: row.message.payload.clone(),
            reason: row.message.poison.clone()?,
        })
    }

    /// A dead letter could not be committed: it is tried again, or the relay halts where the role
    /// may not write the table at all.
    pub fn handle_park_failed(&mut self, token: Token, permitted: bool, detail: String) {
        let Some(row) = self.window.get(token) else {
            return;
        };
        if row.state != RowState::Parking {
            return;
        }
        let position = row.position;
        if !permitted {
            let reason = row
                .message
                .poison
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default();
            self.stop(
                StopKind::Halted,
                format!(
                    "the row at {position} cannot be published ({reason}) and its dead letter \
                     may not be written ({detail}); grant INSERT on postrider.dead_letter, or \
                     repair the row"
                ),
            );
            return;
        }
        self.notices
            .push_back(Notice::ParkFailed { position, detail });
        if let Some(letter) = self.dead_letter(token) {
            self.actions.push_back(Action::Park(Box::new(letter)));
        }
    }

    /// A status update that is due, if any.
    pub fn poll_status(&mut self, now: Instant) -> Option<StatusUpdate> {
        let settings = &self.settings;
        if !self.session.is_up() {
            return None;
        }
        self.confirmations
            .advance(now, self.ledger.settled(), settings.confirm_delay);
        assert!(
            self.confirmations.confirmed <= self.ledger.settled(),
            "confirmed {} is past what is settled, {}",
            self.confirmations.confirmed,
            self.ledger.settled()
        );
        let ask = self.asks_for_reply(now);
        let state = &mut self.confirmations;
        let moved = state.sent != Some(state.confirmed);
        let since = now.duration_since(state.sent_at);
        let due = state.reply_wanted
            || ask
            || since >= self.settings.status_interval
            || (moved && since >= self.settings.status_pace);
        if !due {
            return None;
        }
        assert!(
            state.sent.is_none_or(|sent| sent <= state.confirmed),
            "a confirmation would go back from {:?} to {}",
            state.sent,
            state.confirmed
        );
        state.reply_wanted = false;
        state.sent = Some(state.confirmed);
        state.sent_at = now;
        if ask {
            state.asked_at = now;
        }
        let update = StatusUpdate {
            confirmed: state.confirmed,
            reply_requested: ask,
        };
        self.check_goal(now);
        Some(update)
    }

    /// Whether the server should be asked where it is: after a long silence as a proof of life,
    /// and on the way to a target that only a keepalive can reach.
    fn asks_for_reply(&self, now: Instant) -> bool {
        let Session::Up(live) = &self.session else {
            return false;
        };
        let since_asked = now.duration_since(self.confirmations.asked_at);
        let silent = now.duration_since(live.heard_at) >= self.settings.ask_after
            && since_asked >= self.settings.ask_after;
        let to_target = self.nears_target() && since_asked >= self.settings.status_pace;
        silent || to_target
    }

    /// Whether nothing but a keepalive is missing on the way to the target.
    fn nears_target(&self) -> bool {
        self.settings.caught_up_at.is_some() && self.goal == Goal::Stream && self.ledger.is_clear()
    }

    /// The position that a status update would confirm now.
    #[must_use]
    pub const fn confirmed(&self) -> Lsn {
        self.confirmations.confirmed()
    }

    /// When [`handle_time`](Self::handle_time) is due, if nothing else happens before.
    #[must_use]
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        if self.is_stopped() {
            return None;
        }
        let session = match &self.session {
            Session::Down { until } => Some(*until),
            Session::Opening => None,
            Session::Up(live) => Some(self.session_timeout(live.heard_at)),
        };
        let broker = match &self.broker {
            Broker::Down { until } if self.session.is_up() => Some(*until),
            Broker::Up(live) => {
                let judged = (live.judging > 0).then_some(live.judged_until);
                let found = live.search.as_ref().map(Search::until);
                judged.into_iter().chain(found).min()
            }
            Broker::Down { .. } | Broker::Opening { .. } => None,
        };
        let ack = self.answer_due();
        let drain = match self.goal {
            Goal::Drain { until, .. } | Goal::Fail { until, .. } => Some(until),
            Goal::Stream | Goal::Stopped => None,
        };
        [session, broker, ack, drain].into_iter().flatten().min()
    }

    fn session_timeout(&self, heard_at: Instant) -> Instant {
        let (state, settings) = (&self.confirmations, &self.settings);
        let newest = state
            .delayed
            .back()
            .map_or(state.confirmed, |(_, lsn)| *lsn);
        let unsent = state.sent != Some(state.confirmed) || self.ledger.settled() > newest;
        let status = if unsent || self.nears_target() {
            settings.status_pace
        } else {
            settings.status_interval
        };
        let silence = self.wants_wal().then(|| heard_at + settings.silence_limit);
        let delayed = state.delayed.front().map(|(at, _)| *at);
        [silence, delayed]
            .into_iter()
            .flatten()
            .fold(state.sent_at + status, Instant::min)
    }
}

fn outgoing(
    token: Token,
    row: &WindowRow,
    sequence: Option<u64>,
    settled: Option<crate::Position>,
) -> Outgoing {
    Outgoing {
        token,
        subject: row.message.subject.clone(),
        headers: row.message.headers.clone(),
        payload: row.message.payload.clone(),
        expected_last_sequence: sequence.map(|sequence| sequence - 1),
        settled,
    }
}
