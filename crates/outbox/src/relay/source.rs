//! The replication session: its beginning, its end, and whether it is alive.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pgoutput::{Decoder, Lsn, ProtocolVersion};

use crate::ledger::Ledger;
use crate::notice::{EpochReason, Notice};
use crate::render::{Plan, Renderer};
use crate::source::{SessionStart, SourceFault, SourceFaultKind};
use crate::verdict::{self, Verdict};

use super::{Action, Relay};

/// One of the tables that the session has described.
#[derive(Debug)]
pub(super) enum Table {
    /// An outbox, by its index in the settings.
    Outbox {
        index: usize,
        name: String,
        plan: Box<Plan>,
    },
    /// Any other table.
    Other,
}

/// The outbox tables as the server had them when it was asked last.
///
/// A row comes under the name that its table had when it was written, which need not be the one
/// that the table has now. By its oid it is known all the same, so that a table that was renamed
/// and renamed back, or for which the configuration was changed, loses no row.
#[derive(Debug, Default)]
pub(super) struct KnownTables {
    /// Names in transactions that committed before this are history; a strange name in a later one
    /// says that the table is being renamed now.
    pub(super) as_of: Lsn,
    /// Oid and index in the settings.
    tables: Vec<(u32, usize)>,
}

impl KnownTables {
    pub(super) fn get(&self, oid: u32) -> Option<usize> {
        let mut tables = self.tables.iter();
        tables.find_map(|&(known, index)| (known == oid).then_some(index))
    }
}

/// The replication session.
#[derive(Debug)]
pub(super) enum Session {
    Down { until: Instant },
    Opening,
    Up(Box<Live>),
}

/// A session that streams.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) start: SessionStart,
    pub(super) decoder: Decoder,
    pub(super) renderer: Renderer,
    pub(super) tables: HashMap<u32, Table>,
    /// Commit LSN of the open transaction and number of its next change.
    pub(super) open: Option<crate::Position>,
    /// Bytes of frames since the last row that was kept. That row's payload lies in the same read
    /// buffers, so they stay in memory with it.
    pub(super) between_rows_bytes: usize,
    /// When the server last said anything while it was being read.
    pub(super) heard_at: Instant,
    /// The reader was held back, so silence proves nothing.
    pub(super) was_held_back: bool,
    burst_since: Instant,
    burst: u32,
}

impl Session {
    pub(super) const fn is_up(&self) -> bool {
        matches!(self, Self::Up(_))
    }

    /// The end of the server's log as far as the session shows it; it grows.
    pub(super) fn log_end(&self) -> Lsn {
        match self {
            Self::Up(live) => {
                let open = live.open.map(|open| open.commit_lsn.as_u64() + 1);
                live.start.log_end.max(Lsn::new(open.unwrap_or_default()))
            }
            _ => Lsn::ZERO,
        }
    }

    pub(super) fn start(&self) -> Option<&SessionStart> {
        match self {
            Self::Up(live) => Some(&live.start),
            _ => None,
        }
    }
}

impl Relay {
    /// Says which tables the outboxes are, by oid and index in the settings. They had the names of
    /// the settings at some time after `as_of`, a position of the log. Call it before
    /// [`handle_session_started`](Self::handle_session_started); it holds for later sessions too.
    pub fn handle_tables(&mut self, as_of: Lsn, tables: Vec<(u32, usize)>) {
        self.known_tables = KnownTables { as_of, tables };
    }

    /// The replication session streams.
    pub fn handle_session_started(&mut self, now: Instant, start: SessionStart) {
        if !matches!(self.session, Session::Opening) {
            return;
        }
        self.notices.push_back(Notice::SessionStarted {
            slot: start.source.slot.clone(),
            source_name: start.source.to_string(),
        });
        self.session_proven = true;
        self.standing_by = None;
        self.parting = None;
        self.counters.sessions += 1;
        self.confirmations.reset(now);
        self.session = Session::Up(Box::new(Live {
            decoder: Decoder::new(ProtocolVersion::V1),
            renderer: Renderer::new(&start.source, self.settings.max_message_bytes),
            tables: HashMap::new(),
            open: None,
            between_rows_bytes: 0,
            heard_at: now,
            was_held_back: false,
            burst_since: now,
            burst: 0,
            start,
        }));
        self.reconcile(now);
    }

    /// The replication session ended, or could not begin.
    pub fn handle_session_ended(&mut self, now: Instant, fault: SourceFault) {
        let was_up = match self.session {
            Session::Down { .. } => return,
            Session::Opening => false,
            Session::Up(_) => true,
        };
        self.forget_session(now);
        // A slot that only its holder keeps from us: all that a start can refuse was in order.
        self.session_proven |= fault.kind == SourceFaultKind::SlotHeld;
        match verdict::of_source(&fault, self.session_proven) {
            Verdict::Stop(kind) => self.stop(kind, fault.to_string()),
            verdict => {
                let wait = match verdict {
                    Verdict::RetryAfter(wait) => wait,
                    _ => self.session_backoff.next(),
                };
                self.session = Session::Down { until: now + wait };
                self.tell_session_ended(fault, wait);
            }
        }
        if was_up {
            self.end_epoch(now, EpochReason::SessionEnded);
        }
        self.check_goal(now);
    }

    /// A standby that goes on standing by says so once, not at each of its attempts.
    fn tell_session_ended(&mut self, fault: SourceFault, retry_in: Duration) {
        let standing_by = fault.kind == SourceFaultKind::SlotHeld;
        if standing_by && self.standing_by.as_ref() == Some(&fault) {
            return;
        }
        self.standing_by = standing_by.then(|| fault.clone());
        self.notices
            .push_back(Notice::SessionEnded { fault, retry_in });
    }

    /// Ends the session ourselves, to begin another at once.
    pub(super) fn restart_session(&mut self, now: Instant, reason: EpochReason) {
        if self.session.is_up() {
            self.parting = None;
            self.actions.push_back(Action::CloseSession);
            self.forget_session(now);
        }
        self.end_epoch(now, reason);
    }

    /// What the server sent makes no sense, or no more of it may be read: stop for good.
    pub(super) fn fail_session(&mut self, now: Instant, kind: SourceFaultKind, detail: String) {
        self.part(now);
        self.actions.push_back(Action::CloseSession);
        self.handle_session_ended(now, SourceFault { kind, detail });
    }

    /// What is settled may still be confirmed when the session closes, though it ends on a fault:
    /// the rows behind it may need a configuration that those before it do not fit.
    fn part(&mut self, now: Instant) {
        let settled = self.ledger.settled();
        let delay = self.settings.confirm_delay;
        self.confirmations.advance(now, settled, delay);
        self.parting = Some(self.confirmations.confirmed());
    }

    /// The position to confirm with the session that [`Action::CloseSession`] closes, if any.
    #[must_use]
    pub const fn parting_confirmation(&self) -> Option<Lsn> {
        self.parting
    }

    /// The end of the server's log as far as it is known: what it sent is flushed.
    pub(super) fn log_end(&self) -> Lsn {
        self.session.log_end().max(self.ledger.received())
    }

    fn forget_session(&mut self, now: Instant) {
        self.session = Session::Down { until: now };
        self.resume = super::Resume::Settled;
        self.located = None;
        self.beyond.clear();
        self.orphan_ids.clear();
        self.seen.newest_stored = None;
        self.ledger = Ledger::new();
        self.window.clear();
        self.sent.clear();
        self.confirmations.reset(now);
    }

    /// Notes that the server said something; counts keepalives that want a reply.
    /// Returns whether it is shutting down and waits for us.
    pub(super) fn heard(&mut self, now: Instant, wants_reply: bool) -> bool {
        // Only now: a walsender may die right after it has started.
        self.session_backoff.reset();
        let outstanding = !self.ledger.is_clear();
        let Session::Up(live) = &mut self.session else {
            return false;
        };
        live.heard_at = now;
        if !wants_reply {
            return false;
        }
        if now.duration_since(live.burst_since) > Duration::from_secs(1) {
            live.burst_since = now;
            live.burst = 0;
        }
        live.burst += 1;
        outstanding && live.burst > self.settings.shutdown_burst
    }

    /// Opens a session that is due, ends one that is silent.
    pub(super) fn check_session(&mut self, now: Instant) {
        if self.is_stopped() {
            return;
        }
        let reading = self.wants_wal();
        match &mut self.session {
            Session::Down { until } if *until <= now => {
                self.session = Session::Opening;
                self.actions.push_back(Action::OpenSession);
            }
            Session::Up(live) => {
                if live.was_held_back || !reading {
                    live.was_held_back = !reading;
                    live.heard_at = now;
                } else if now.duration_since(live.heard_at) >= self.settings.silence_limit {
                    let detail = format!(
                        "no sign of life for {} s",
                        self.settings.silence_limit.as_secs()
                    );
                    self.fail_session(now, SourceFaultKind::Unreachable, detail);
                }
            }
            _ => {}
        }
    }

    /// Whether the replication stream should be read: the window has room and nothing ends.
    #[must_use]
    pub fn wants_wal(&self) -> bool {
        let ends = match self.goal {
            super::Goal::Stream => false,
            super::Goal::Drain { .. } => !self.ledger.is_open(),
            super::Goal::Fail { .. } | super::Goal::Stopped => true,
        };
        !ends
            && self.session.is_up()
            && self.window.len() < self.settings.max_in_flight_rows
            && self.window.bytes() < self.settings.max_in_flight_bytes
    }

    /// Stops for good with a fault of slot, publication or table that the shell found.
    pub fn handle_source_fault(&mut self, now: Instant, fault: SourceFault) {
        if let Verdict::Stop(kind) = verdict::of_source(&fault, self.session_proven) {
            self.stop(kind, fault.to_string());
        } else if self.session.is_up() {
            self.part(now);
            self.actions.push_back(Action::CloseSession);
            self.handle_session_ended(now, fault);
        }
    }
}
