//! The relay machine: everything between the log and the stream, as decisions.

mod bisection;
mod broker;
mod input;
mod order;
mod orphans;
mod output;
mod resume;
mod search;
mod settings;
mod snapshot;
mod source;
mod survey;
mod unroutable;
mod window;

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use self::broker::{Broker, Seen};
use self::output::Confirmations;
use self::resume::Resume;
use self::search::Located;
use self::source::{KnownTables, Session};
use self::survey::Known;
use self::window::{SentLog, Window};
use crate::backoff::Backoff;
use crate::broker::{LookBackRange, ReadBack, Token};
use crate::ledger::Ledger;
use crate::notice::Notice;
use crate::render::PoisonReason;
use crate::source::SourceFault;
use crate::verdict::StopKind;
use crate::{Headers, Position};

pub use settings::{OnPoison, OnUnroutable, RelaySettings};
pub use snapshot::{Counters, HeadRow, RelaySnapshot};

/// Something that the shell must do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Open a replication session; answer with `handle_session_started` or `handle_session_ended`.
    OpenSession,
    /// Close the replication session, after a last status update if there is a
    /// [`parting_confirmation`](Relay::parting_confirmation); no answer.
    CloseSession,
    /// Open an epoch; answer with `handle_epoch_started` or `handle_epoch_refused`.
    OpenEpoch {
        /// Its number, which comes back with everything that belongs to it.
        epoch: u64,
    },
    /// Close the epoch's connection; no answer.
    CloseEpoch {
        /// Its number.
        epoch: u64,
    },
    /// Read what stands at a sequence; answer with `handle_read_back`.
    ReadBack {
        /// The epoch that asks.
        epoch: u64,
        /// The row in question.
        token: Token,
        /// The sequence that the PubAck named.
        sequence: u64,
    },
    /// Ask which stream takes the subject of a row that waits long for its answer; answer with
    /// `handle_taker`.
    FindTaker {
        /// The epoch that asks.
        epoch: u64,
        /// The row in question.
        token: Token,
        /// Its subject.
        subject: bytes::Bytes,
    },
    /// Read the stream's newest messages, by their headers; answer with `handle_looked_back`.
    LookBack {
        /// The epoch that asks.
        epoch: u64,
        /// Which, and how many.
        range: Box<LookBackRange>,
    },
    /// Read the first message at or behind a sequence; answer with `handle_read_next`.
    ReadNext {
        /// The epoch that asks.
        epoch: u64,
        /// The sequence.
        sequence: u64,
    },
    /// Commit a dead letter; answer with `handle_parked` or `handle_park_failed`.
    Park(Box<DeadLetter>),
    /// The relay halts at this row and stops: note it where people look for it. No answer.
    NoteHalted(Box<DeadLetter>),
    /// End the process.
    Stop {
        /// What it means.
        kind: StopKind,
        /// What happened, for people.
        detail: String,
    },
}

/// A row on its way into the dead-letter table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Comes back with the answer.
    pub token: Token,
    /// `SYSTEM_IDENTIFIER/TIMELINE/DATABASE/SLOT`.
    pub source: String,
    /// Where the row stands in the log.
    pub position: Position,
    /// `schema.table`.
    pub table: String,
    /// The row's own id, empty where it has none.
    pub row_id: String,
    /// The dedup id, empty where the row has no id.
    pub dedup_id: String,
    /// The subject as far as it could be rendered.
    pub subject: String,
    /// The headers as far as they could be rendered.
    pub headers: Headers,
    /// The payload.
    pub payload: bytes::Bytes,
    /// Why it is here.
    pub reason: PoisonReason,
}

/// What ends the machine's work, once nothing is left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// Stream for ever.
    Stream,
    /// Answer what is in flight, then stop.
    Drain { kind: StopKind, until: Instant },
    /// Answer what is in flight, then end with the fault that `failure` holds. Nothing is read any
    /// more. `drain` is what was asked for beside it, to be gone back to if the session ends first.
    Fail {
        until: Instant,
        drain: Option<StopKind>,
    },
    /// Nothing more.
    Stopped,
}

/// The relay machine: everything between the log and the stream, as decisions.
///
/// It has no socket, no clock and no thread. What happens outside comes in by `handle_*`, with the
/// time as an argument; what is to be done goes out by `poll_*`. After any input, poll in this
/// order until each answers `None`: [`poll_action`](Self::poll_action),
/// [`poll_publish`](Self::poll_publish) (which may bring new actions),
/// [`poll_status`](Self::poll_status) (which may, too), [`poll_notice`](Self::poll_notice); then
/// wait for the next input or for [`poll_timeout`](Self::poll_timeout), and read the replication
/// stream only while [`wants_wal`](Self::wants_wal).
///
/// Two connections come and go under it. A **session** is one run of START_REPLICATION, an
/// **epoch** is one run of publishes. Rows live in the window from their arrival until they are
/// settled; an epoch that ends puts its un-acked rows back to waiting, a session that ends forgets
/// them all, as PostgreSQL sends them again.
#[derive(Debug)]
pub struct Relay {
    settings: RelaySettings,
    session: Session,
    known_tables: KnownTables,
    session_backoff: Backoff,
    /// Why we stand by, as it was told last.
    standing_by: Option<SourceFault>,
    /// What ends the session once the rows before it are settled.
    failure: Option<SourceFault>,
    /// What the closing session may still confirm.
    parting: Option<pgoutput::Lsn>,
    /// A session has worked in this process.
    session_proven: bool,
    broker: Broker,
    broker_backoff: Backoff,
    /// An epoch has worked in this process.
    broker_proven: bool,
    epochs: u64,
    /// The newest session when the newest epoch was asked for.
    epoch_session: u64,
    /// Epochs in a row that ended without a row being stored.
    fruitless_epochs: u32,
    /// The next epoch sends one row at a time until one is newly stored.
    careful_next: bool,
    seen: Seen,
    resume: Resume,
    /// What the session knows of the stream; none until it has asked.
    located: Option<Located>,
    /// Rows yet to arrive that are known to be stored, by position.
    beyond: VecDeque<Known>,
    /// Dedup ids that orphans of a lost timeline have taken.
    orphan_ids: HashSet<String>,
    /// Messages up to this sequence were proved to be of another history.
    void_up_to: u64,
    /// Sequence of the newest message of a second writer that was told.
    strangers_told: u64,
    ledger: Ledger,
    window: Window,
    sent: SentLog,
    confirmations: Confirmations,
    goal: Goal,
    counters: Counters,
    actions: VecDeque<Action>,
    notices: VecDeque<Notice>,
}

impl Relay {
    /// A machine that begins by opening both connections.
    #[must_use]
    pub fn new(settings: RelaySettings, now: Instant) -> Self {
        let seed = settings.jitter_seed;
        Self {
            session: Session::Down { until: now },
            known_tables: KnownTables::default(),
            session_backoff: Backoff::new(seed),
            standing_by: None,
            failure: None,
            parting: None,
            session_proven: false,
            broker: Broker::Down { until: now },
            broker_backoff: Backoff::new(seed.rotate_left(32) ^ u64::MAX),
            broker_proven: false,
            epochs: 0,
            epoch_session: 0,
            fruitless_epochs: 0,
            careful_next: false,
            seen: Seen::default(),
            resume: Resume::Settled,
            located: None,
            beyond: VecDeque::new(),
            orphan_ids: HashSet::new(),
            void_up_to: 0,
            strangers_told: 0,
            ledger: Ledger::new(),
            window: Window::new(),
            sent: SentLog::default(),
            confirmations: Confirmations::new(now),
            goal: Goal::Stream,
            counters: Counters::default(),
            actions: VecDeque::new(),
            notices: VecDeque::new(),
            settings,
        }
    }

    /// The time has come that [`poll_timeout`](Self::poll_timeout) named, or any other time.
    pub fn handle_time(&mut self, now: Instant) {
        self.check_session(now);
        self.check_epoch(now);
        self.check_goal(now);
    }

    /// Asks for an orderly end: rows in flight are awaited for a bounded time, nothing new begins.
    pub fn handle_shutdown(&mut self, now: Instant) {
        self.begin_drain(now, StopKind::Drained);
    }

    /// Ends with this fault, but first lets the rows before it be acked and confirmed: they may not
    /// fit the configuration that the rows behind it need.
    fn fail_after_draining(&mut self, now: Instant, fault: SourceFault) {
        let (until, drain) = match self.goal {
            Goal::Drain { kind, until } => (until, Some(kind)),
            _ => (now + self.settings.drain_timeout, None),
        };
        self.failure = Some(fault);
        self.goal = Goal::Fail { until, drain };
        self.check_goal(now);
    }

    fn begin_drain(&mut self, now: Instant, kind: StopKind) {
        self.goal = match self.goal {
            Goal::Stream => Goal::Drain {
                kind,
                until: now + self.settings.drain_timeout,
            },
            Goal::Fail { until, drain: None } => Goal::Fail {
                until,
                drain: Some(kind),
            },
            Goal::Drain { .. } | Goal::Fail { .. } | Goal::Stopped => return,
        };
        self.check_goal(now);
    }

    /// Whether everything is done that the goal asks for; then says so.
    fn check_goal(&mut self, now: Instant) {
        match self.goal {
            Goal::Stream => {
                let target = self.settings.caught_up_at;
                if target.is_some_and(|target| self.confirmations.confirmed() >= target) {
                    self.begin_drain(now, StopKind::CaughtUp);
                }
            }
            Goal::Drain { kind, until } => {
                let idle = !self.ledger.is_open() && self.window.is_empty();
                if idle || self.is_stuck(now) || now >= until {
                    self.stop_drained(kind);
                }
            }
            Goal::Fail { until, drain } if !self.session.is_up() => {
                // It ended by itself, with nothing left to confirm. A next session would meet the
                // fault again.
                self.failure = None;
                match drain {
                    Some(kind) => {
                        self.goal = Goal::Drain { kind, until };
                        self.check_goal(now);
                    }
                    None => self.goal = Goal::Stream,
                }
            }
            Goal::Fail { until, .. } => {
                if (self.window.is_empty() || self.is_stuck(now) || now >= until)
                    && let Some(fault) = self.failure.take()
                {
                    self.fail_session(now, fault.kind, fault.detail);
                }
            }
            Goal::Stopped => {}
        }
    }

    /// Whether waiting for PubAcks is in vain: without a session nothing can be confirmed, and
    /// while the broker is given a pause nothing is sent. An epoch that is due or opening may yet
    /// bring them.
    fn is_stuck(&self, now: Instant) -> bool {
        !self.session.is_up() || matches!(self.broker, Broker::Down { until } if until > now)
    }

    fn stop_drained(&mut self, kind: StopKind) {
        let left = self.window.unsettled();
        let detail = if left == 0 {
            "drained: every row received is stored".to_owned()
        } else {
            format!("stopping with {left} rows not acked yet; they will be sent again")
        };
        self.stop(kind, detail);
    }

    fn stop(&mut self, kind: StopKind, detail: String) {
        if self.goal == Goal::Stopped {
            return;
        }
        self.goal = Goal::Stopped;
        self.notices.push_back(Notice::Stopping {
            kind,
            detail: detail.clone(),
        });
        self.actions.push_back(Action::Stop { kind, detail });
    }

    fn is_stopped(&self) -> bool {
        self.goal == Goal::Stopped
    }

    /// What stands at the sequence that a duplicate's PubAck named.
    pub fn handle_read_back(&mut self, now: Instant, epoch: u64, token: Token, found: ReadBack) {
        if self.current_epoch() == Some(epoch) {
            self.judge(now, token, found);
        }
    }

    /// The dead letter of a row is committed.
    pub fn handle_parked(&mut self, now: Instant, token: Token) {
        let parking = |row: &window::WindowRow| row.state == window::RowState::Parking;
        if self.window.get(token).is_some_and(parking) {
            self.counters.dead_lettered += 1;
            self.settle(token);
            self.check_goal(now);
        }
    }
}
