//! The epoch: its beginning, its answers and its end.

use std::time::{Duration, Instant};

use crate::Position;
use crate::broker::{BrokerFault, EpochEnd, EpochStart, PubAck, ReadBack, Refusal, Token, Writers};
use crate::notice::{EpochReason, Notice};
use crate::render::PoisonReason;
use crate::source::Standing;
use crate::verdict::{self, RetryReason, RowVerdict, Verdict};

use super::order::SendOrder;
use super::search::Search;
use super::window::{RowState, WindowRow};
use super::{Action, Goal, Relay};

/// Epochs without a stored row after which the head row is sent alone and judged alone. A row that
/// closes the connection looks like an outage; alone in flight it is known by what it does.
const FRUITLESS_EPOCHS_UNTIL_CAREFUL: u32 = 2;

/// The connection to JetStream.
#[derive(Debug)]
pub(super) enum Broker {
    Down { until: Instant },
    Opening { epoch: u64 },
    Up(Box<Epoch>),
}

/// An epoch that publishes.
#[derive(Debug)]
pub(super) struct Epoch {
    pub(super) number: u64,
    pub(super) start: EpochStart,
    pub(super) order: SendOrder,
    /// One row at a time until one is newly stored.
    pub(super) careful: bool,
    /// Rows sent and not answered, judged ones included.
    pub(super) in_flight: usize,
    /// Rows that are being read back, and until when an answer is awaited.
    pub(super) judging: usize,
    pub(super) judged_until: Instant,
    /// The row whose subject was asked about, as it waited long for an answer.
    pub(super) asked_about: Option<Token>,
    /// What has to be known before anything is published.
    pub(super) search: Option<Search>,
    pub(super) stored_any: bool,
    /// Nothing more is sent, so that a command finds a gap.
    pub(super) yielding: bool,
}

/// What this process saw of the stream.
#[derive(Debug, Default)]
pub(super) struct Seen {
    created_unix_nanos: Option<i128>,
    /// Who wrote the stream in the newest epoch.
    writers: Option<Writers>,
    /// The stream's last sequence, as far as it is known.
    pub(super) last_sequence: u64,
    /// Newest position stored in this session.
    pub(super) newest_stored: Option<Position>,
}

impl Broker {
    pub(super) fn start(&self) -> Option<&EpochStart> {
        match self {
            Self::Up(epoch) => Some(&epoch.start),
            _ => None,
        }
    }

    pub(super) fn epoch_mut(&mut self) -> Option<&mut Epoch> {
        match self {
            Self::Up(epoch) => Some(epoch),
            _ => None,
        }
    }
}

impl Relay {
    pub(super) fn current_epoch(&self) -> Option<u64> {
        match &self.broker {
            Broker::Up(epoch) => Some(epoch.number),
            _ => None,
        }
    }

    /// An epoch began.
    pub fn handle_epoch_started(&mut self, now: Instant, epoch: u64, start: EpochStart) {
        if !matches!(self.broker, Broker::Opening { epoch: opening } if opening == epoch) {
            return;
        }
        self.broker_proven = true;
        if self.seen.is_another(&start) {
            // What was found out of the stream of this name before concerns its sequences.
            self.void_up_to = 0;
            self.strangers_told = 0;
        }
        let lost = self.seen.lost(&start);
        let before = self.seen.writers.replace(start.writers);
        let other_writers = before.is_some_and(|before| before != start.writers);
        self.notices.push_back(Notice::EpochStarted {
            writers: start.writers,
            last_sequence: start.last_sequence,
        });
        self.broker = Broker::Up(Box::new(Epoch {
            number: epoch,
            order: SendOrder::new(start.writers, start.last_sequence, &self.window),
            careful: std::mem::take(&mut self.careful_next),
            in_flight: 0,
            judging: 0,
            judged_until: now,
            asked_about: None,
            search: None,
            stored_any: false,
            yielding: false,
            start,
        }));
        if let Some(detail) = lost {
            self.notices.push_back(Notice::BrokerLost { detail });
            if self.session.is_up() {
                self.restart_session(now, EpochReason::StreamChanged);
                return;
            }
        }
        if other_writers && self.session.is_up() {
            // Rows that went out under the other order may still be on their way, one key's second
            // to the dead letters before its first is stored; and their places in a chain mean
            // nothing in a stream that others write, nor the other way round.
            self.restart_session(now, EpochReason::WritersChanged);
            return;
        }
        self.reconcile(now);
    }

    /// No epoch could begin.
    pub fn handle_epoch_refused(&mut self, now: Instant, epoch: u64, fault: BrokerFault) {
        if !matches!(self.broker, Broker::Opening { epoch: opening } if opening == epoch) {
            return;
        }
        match verdict::of_broker(&fault, self.broker_proven) {
            Verdict::Stop(kind) => {
                self.broker = Broker::Down { until: now };
                self.stop(kind, fault.to_string());
            }
            verdict => {
                let wait = match verdict {
                    Verdict::RetryAfter(wait) => wait,
                    _ => self.broker_backoff.next(),
                };
                self.broker = Broker::Down { until: now + wait };
                self.notices.push_back(Notice::EpochRefused {
                    fault,
                    retry_in: wait,
                });
            }
        }
        self.check_goal(now);
    }

    /// The publisher reports the end of an epoch.
    pub fn handle_epoch_ended(&mut self, now: Instant, epoch: u64, end: EpochEnd) {
        let Broker::Up(live) = &self.broker else {
            return;
        };
        if live.number != epoch {
            return;
        }
        if verdict::of_end(&end, 0, 0).is_some() {
            if live.careful && live.in_flight == 1 {
                self.poison_in_flight(&end);
            }
            self.careful_next = true;
        }
        self.end_epoch(now, EpochReason::Ended(end));
    }

    /// Another command of ours wants to write the stream: no more rows go out, and once those in
    /// flight are answered the epoch ends. With one in flight, the command's message would take
    /// its place in the chain, and the rows behind it would be stored without it. The next epoch is
    /// asked for at once; whoever opens it waits for that command first. What is about to end is
    /// not held up by it.
    pub fn handle_yield(&mut self, now: Instant) {
        if self.goal == Goal::Stream
            && let Broker::Up(live) = &mut self.broker
        {
            live.yielding = true;
            self.check_yield(now);
        }
    }

    /// Ends an epoch that gives way, once nothing is in flight.
    fn check_yield(&mut self, now: Instant) {
        if let Broker::Up(live) = &self.broker
            && live.yielding
            && live.in_flight == 0
            && live.judging == 0
        {
            self.end_epoch(now, EpochReason::Yielded);
        }
    }

    /// The one row in flight closed the connection by its size.
    fn poison_in_flight(&mut self, end: &EpochEnd) {
        let in_flight = self
            .window
            .iter_mut()
            .map(|(_, row)| row)
            .find(|row| matches!(row.state, RowState::Sent { .. }));
        if let Some(row) = in_flight {
            let size = row.message.headers.as_block().len() + row.message.payload.len();
            row.message.poison = verdict::of_end(end, row.message.subject.len(), size as u64);
        }
    }

    /// A positive PubAck of the configured stream.
    pub fn handle_acked(&mut self, now: Instant, epoch: u64, token: Token, ack: PubAck) {
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        if live.number != epoch {
            return;
        }
        let Some(row) = self.window.get_mut(token) else {
            self.counters.stray_answers += 1;
            return;
        };
        let RowState::Sent { sequence } = row.state else {
            self.counters.stray_answers += 1;
            return;
        };
        if ack.duplicate && ack.sequence == 0 {
            // Of a message that is not stored yet, and perhaps never will be.
            self.end_epoch(now, EpochReason::Refused(RetryReason::InProcess));
            return;
        }
        if ack.duplicate {
            row.state = RowState::Judged {
                sequence,
                stored_at: ack.sequence,
            };
            live.judging += 1;
            live.judged_until = now + self.settings.ack_timeout;
            let sequence = ack.sequence;
            self.actions.push_back(Action::ReadBack {
                epoch,
                token,
                sequence,
            });
            return;
        }
        if let Some(expected) = sequence.filter(|expected| *expected != ack.sequence) {
            let acked = ack.sequence;
            self.end_epoch(now, EpochReason::UnexpectedSequence { expected, acked });
            return;
        }
        live.in_flight -= 1;
        live.careful = false;
        live.stored_any = true;
        self.fruitless_epochs = 0;
        self.broker_backoff.reset();
        self.seen.last_sequence = self.seen.last_sequence.max(ack.sequence);
        self.counters.published += 1;
        self.settle(token);
        self.check_goal(now);
    }

    /// A negative answer to one publish.
    pub fn handle_refused(&mut self, now: Instant, epoch: u64, token: Token, refusal: Refusal) {
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        if live.number != epoch {
            return;
        }
        let Some(row) = self.window.get_mut(token) else {
            self.counters.stray_answers += 1;
            return;
        };
        if !matches!(row.state, RowState::Sent { .. }) {
            self.counters.stray_answers += 1;
            return;
        }
        row.state = RowState::Waiting;
        live.in_flight -= 1;
        self.counters.refused += 1;
        let exclusive = live.start.writers == Writers::Exclusive;
        if exclusive && live.judging > 0 {
            // The chain broke at the row that is being judged; this one was behind it.
            return;
        }
        let size = row.message.headers.as_block().len() + row.message.payload.len();
        let limit_bytes = live.start.max_message_bytes;
        let poison = match verdict::of_refusal(&refusal, size as u64, limit_bytes) {
            RowVerdict::Poison(reason) => reason,
            RowVerdict::Retry(reason) => {
                self.end_epoch(now, EpochReason::Refused(reason));
                return;
            }
            RowVerdict::Unroutable(detail) => {
                let sure = !matches!(refusal, Refusal::NoResponders);
                self.unroutable(now, token, detail, sure);
                return;
            }
        };
        self.poisoned(now, token, poison);
    }

    /// A row that went out and was not stored can never be.
    pub(super) fn poisoned(&mut self, now: Instant, token: Token, reason: PoisonReason) {
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        if let Some(row) = self.window.get_mut(token) {
            row.message.poison = Some(reason);
        }
        if live.start.writers == Writers::Exclusive {
            self.end_epoch(now, EpochReason::Poison);
        } else {
            live.order.give_back(token);
        }
    }

    /// What stands at the sequence that was asked for.
    pub(super) fn judge(&mut self, now: Instant, token: Token, found: ReadBack) {
        let Some(row) = self.window.get(token) else {
            return;
        };
        let (is_stored, is_orphan) = match (&found, self.session.start()) {
            (ReadBack::Row(stored), Some(start)) => {
                let has_id = stored.has_id(&row.message.dedup_id);
                let here = stored.position == row.position || stored.origin.is_some();
                let standing = start.standing(stored, self.log_end());
                let held = standing == Standing::Held;
                let own = stored.origin.is_none();
                (
                    held && has_id && here,
                    standing.is_orphan() && has_id && own,
                )
            }
            _ => (false, false),
        };
        match row.state {
            RowState::Judged { .. } if is_orphan => self.outlive_orphan(now, token),
            RowState::Judged { .. } => self.judge_duplicate(now, token, found, is_stored),
            RowState::Verified => self.judge_verified(now, token, &found, is_stored),
            _ => {}
        }
    }

    /// The tail covers a row that was sent and not acked. It is stored only if it stands at its
    /// own sequence: a foreign message that took its place would leave the chain behind it whole.
    fn judge_verified(&mut self, now: Instant, token: Token, found: &ReadBack, is_stored: bool) {
        if let ReadBack::Unknown { detail } = found {
            let detail = detail.clone();
            self.end_epoch(now, EpochReason::DuplicateUnread { detail });
            return;
        }
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        live.judging -= 1;
        live.judged_until = now + self.settings.ack_timeout;
        if is_stored {
            self.counters.skipped += 1;
            self.settle(token);
            self.check_goal(now);
            return;
        }
        live.careful = true;
        let Some(row) = self.window.get_mut(token) else {
            return;
        };
        row.state = RowState::Waiting;
        let position = row.position;
        let sequence = row.due_sequence.unwrap_or_default();
        // Where nothing stands, the message may have been deleted: it is nobody's.
        if *found != ReadBack::Gone {
            self.strangers_told = self.strangers_told.max(sequence);
            self.notices
                .push_back(Notice::SecondWriter { position, sequence });
        }
    }

    /// JetStream called a row a duplicate: stored it is only if this very row stands there.
    fn judge_duplicate(&mut self, now: Instant, token: Token, found: ReadBack, is_stored: bool) {
        let Broker::Up(live) = &mut self.broker else {
            return;
        };
        let Some(row) = self.window.get_mut(token) else {
            return;
        };
        let RowState::Judged {
            sequence,
            stored_at,
        } = row.state
        else {
            return;
        };
        live.judging -= 1;
        let exclusive = live.start.writers == Writers::Exclusive;
        // Those behind it in the chain have been refused by then, if there were any.
        let alone = live.in_flight == 1;
        if is_stored || (found == ReadBack::Gone && was_stored_since(row, stored_at)) {
            live.in_flight -= 1;
            self.counters.duplicates += 1;
            if alone && let Some(sequence) = sequence {
                // Nothing was stored, so the next row still follows the same message.
                live.order.rewind(token, sequence - 1);
            }
            self.settle(token);
            if exclusive && !alone {
                self.end_epoch(now, EpochReason::DuplicateProved);
            }
            self.check_goal(now);
            return;
        }
        match found {
            ReadBack::Row(_) | ReadBack::Foreign => {
                row.state = RowState::Waiting;
                live.in_flight -= 1;
                let sequence = stored_at;
                self.poisoned(now, token, PoisonReason::IdTaken { sequence });
            }
            ReadBack::Gone => {
                self.end_epoch(
                    now,
                    EpochReason::DuplicateGone {
                        sequence: stored_at,
                    },
                );
            }
            ReadBack::Unknown { detail } => {
                self.end_epoch(now, EpochReason::DuplicateUnread { detail });
            }
        }
    }

    /// A row is stored or parked.
    pub(super) fn settle(&mut self, token: Token) {
        let Some(row) = self.window.get(token) else {
            return;
        };
        let (position, key) = (row.position, row.message.key);
        let Some(transaction) = self.window.settle(token) else {
            return;
        };
        self.seen.newest_stored = self.seen.newest_stored.max(Some(position));
        if let Some(epoch) = self.broker.epoch_mut() {
            epoch.order.settled(token, key);
        }
        self.ledger.settle_row(transaction);
    }

    /// Ends the epoch, if there is one; its unanswered rows wait again.
    pub(super) fn end_epoch(&mut self, now: Instant, reason: EpochReason) {
        let Broker::Up(live) = &self.broker else {
            return;
        };
        let (number, stored_any) = (live.number, live.stored_any);
        for (_, row) in self.window.iter_mut() {
            if !matches!(row.state, RowState::Parking | RowState::Settled) {
                row.state = RowState::Waiting;
            }
        }
        self.sent.clear();
        self.actions.push_back(Action::CloseEpoch { epoch: number });
        let at_once = match reason {
            EpochReason::DuplicateProved
            | EpochReason::Poison
            | EpochReason::SessionEnded
            | EpochReason::BeforeSession
            | EpochReason::WritersChanged
            | EpochReason::StreamChanged
            | EpochReason::Yielded => true,
            EpochReason::Refused(RetryReason::ChainBroken) => stored_any,
            _ => false,
        };
        if !stored_any && !at_once {
            self.fruitless_epochs += 1;
        }
        self.careful_next |= self.fruitless_epochs >= FRUITLESS_EPOCHS_UNTIL_CAREFUL
            || matches!(
                reason,
                EpochReason::DuplicateProved | EpochReason::DuplicateGone { .. }
            );
        let wait = if at_once {
            Duration::ZERO
        } else {
            self.broker_backoff.next()
        };
        self.broker = Broker::Down { until: now + wait };
        self.counters.epochs_ended += 1;
        self.notices.push_back(Notice::EpochEnded {
            reason,
            retry_in: wait,
        });
    }

    /// Opens an epoch that is due, ends one that is stalled.
    pub(super) fn check_epoch(&mut self, now: Instant) {
        if self.is_stopped() {
            return;
        }
        self.check_yield(now);
        match &self.broker {
            // Without a session there is nothing to publish, and a tail read now would be stale.
            Broker::Down { until } if *until <= now && self.session.is_up() => {
                self.epochs += 1;
                self.epoch_session = self.counters.sessions;
                self.broker = Broker::Opening { epoch: self.epochs };
                self.actions
                    .push_back(Action::OpenEpoch { epoch: self.epochs });
            }
            Broker::Up(live) => {
                let timeout = self.settings.ack_timeout;
                let unread = live.judging > 0 && live.judged_until <= now;
                let oldest = self.sent.oldest(&self.window);
                if oldest.is_some_and(|(_, sent_at)| now.duration_since(sent_at) >= timeout) {
                    self.end_epoch(now, EpochReason::Stalled(timeout));
                } else if unread {
                    let detail = "no answer".to_owned();
                    self.end_epoch(now, EpochReason::DuplicateUnread { detail });
                } else if live
                    .search
                    .as_ref()
                    .is_some_and(|search| search.until() <= now)
                {
                    let detail = "no answer".to_owned();
                    self.end_epoch(now, EpochReason::SearchUnanswered { detail });
                } else {
                    self.ask_taker(now);
                }
            }
            _ => {}
        }
    }
}

/// Whether the message that JetStream calls the original of a row was stored by an earlier attempt
/// of this process, though it is gone (a work queue's consumer took it, or a limit).
///
/// It has the row's dedup id, and it was stored behind everything that was known of the stream when
/// the row was first sent, so it is not an old message of somebody else. What is left is another
/// publisher of a shared stream who used the same id just then: with the message gone, nothing
/// could tell the two apart. On the first attempt the original cannot be ours: it does not count.
const fn was_stored_since(row: &WindowRow, sequence: u64) -> bool {
    row.attempts > 1 && sequence > row.sent_behind
}

impl Seen {
    /// Whether the stream was made anew.
    fn is_another(&self, start: &EpochStart) -> bool {
        self.created_unix_nanos
            .is_some_and(|created| created != start.created_unix_nanos)
    }

    /// Whether the stream is not what it was; remembers what it is now.
    fn lost(&mut self, start: &EpochStart) -> Option<String> {
        let lost = match self.created_unix_nanos {
            Some(created) if created != start.created_unix_nanos => {
                Some("it was deleted and made again".to_owned())
            }
            _ if start.last_sequence < self.last_sequence => Some(format!(
                "its last sequence is {}, this process saw {} acked",
                start.last_sequence, self.last_sequence
            )),
            _ => None,
        };
        self.created_unix_nanos = Some(start.created_unix_nanos);
        self.last_sequence = start.last_sequence;
        lost
    }
}
