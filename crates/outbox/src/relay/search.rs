//! Asking the stream where to go on, before the first row of a session is published.
//!
//! An epoch begins with the stream's last message. For the first epoch of a session that is not
//! enough: in a shared stream the last message is seldom ours and never the whole answer, in an
//! exclusive one a second writer may have hidden a row before it, and after a promotion it may
//! belong to a history that the server has left. So the newest messages are read, a bounded number
//! of them; and where all of them are orphans, the last message before those is searched for. Rows
//! that arrive meanwhile wait in the window.

use std::time::{Duration, Instant};

use crate::broker::{LookBack, LookBackRange, Reach, ReadNext, Tail, Writers};
use crate::notice::{EpochReason, Notice};
use crate::source::Standing;

use super::bisection::{Bisection, Step};
use super::order::SendOrder;
use super::survey::{self, History, Known, Lost, Strangers, Survey};
use super::window::RowState;
use super::{Action, Relay};

/// Longest time that an answer is awaited. The reader has limits of its own, well below.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(60);

/// What an epoch waits for before it publishes.
#[derive(Debug)]
pub(super) enum Search {
    /// The newest messages.
    LookingBack { until: Instant },
    /// The last message before those that this server's history left behind.
    Bisecting {
        until: Instant,
        bisection: Box<Bisection>,
    },
}

impl Search {
    pub(super) const fn until(&self) -> Instant {
        match self {
            Self::LookingBack { until } | Self::Bisecting { until, .. } => *until,
        }
    }
}

/// The stream as it was when the session found out where to go on.
#[derive(Debug)]
pub(super) struct Located {
    pub(super) writers: Writers,
    pub(super) last_sequence: u64,
    pub(super) tail: Tail,
}

impl Relay {
    fn history(&self) -> Option<History<'_>> {
        Some(History {
            session: self.session.start()?,
            log_end: self.log_end(),
            void_up_to: self.void_up_to,
            enough: self.settings.look_back_rows,
        })
    }

    /// The first epoch of a session: finds out where to go on, or begins to ask.
    pub(super) fn locate(&mut self, now: Instant) {
        let (Some(history), Some(start)) = (self.history(), self.broker.start()) else {
            return;
        };
        let nowhere = match (start.writers, &start.tail) {
            (_, Tail::Empty) => {
                self.located(Survey::default());
                return;
            }
            (Writers::Shared, _) => None,
            (Writers::Exclusive, Tail::Gone) => {
                let detail = "its last message is gone by age, limit, purge or delete";
                Some(Some(Notice::NoResumePoint { detail }))
            }
            (Writers::Exclusive, Tail::Row(row)) if row.sequence <= self.void_up_to => Some(None),
            (Writers::Exclusive, Tail::Row(row)) => match history.standing(row) {
                Standing::OtherLog => {
                    let detail = "its last message comes from another server, database or slot";
                    Some(Some(Notice::NoResumePoint { detail }))
                }
                _ => None,
            },
            (Writers::Exclusive, Tail::Foreign) => None,
        };
        match nowhere {
            None => self.look_back(now, 1),
            Some(notice) => {
                self.notices.extend(notice);
                self.located(Survey::default());
                self.be_careful();
            }
        }
    }

    /// Rows are met one at a time, as duplicates among them are likely.
    pub(super) fn be_careful(&mut self) {
        if let Some(epoch) = self.broker.epoch_mut() {
            epoch.careful = true;
        }
    }

    /// Notes what the session goes by.
    fn located(&mut self, survey: Survey) {
        let Some(start) = self.broker.start() else {
            return;
        };
        self.located = Some(Located {
            writers: start.writers,
            last_sequence: start.last_sequence,
            tail: start.tail.clone(),
        });
        self.orphan_ids = survey.orphan_ids.into_iter().collect();
    }

    /// Asks for the newest messages, from a sequence on.
    fn look_back(&mut self, now: Instant, from: u64) {
        let Some(source) = self.session.start().map(|start| start.source.clone()) else {
            return;
        };
        let rows = self.settings.look_back_rows;
        let Some(epoch) = self.broker.epoch_mut() else {
            return;
        };
        let until = now + SEARCH_TIMEOUT;
        epoch.search = Some(Search::LookingBack { until });
        self.actions.push_back(Action::LookBack {
            epoch: epoch.number,
            range: Box::new(LookBackRange {
                source,
                writers: epoch.start.writers,
                from,
                to: epoch.start.last_sequence,
                rows,
            }),
        });
    }

    /// A later epoch of the session in a shared stream: which of the rows that were sent and not
    /// acked are stored? Each of them stands behind what was there when it was sent first.
    pub(super) fn look_for_sent(&mut self, now: Instant) {
        let Some(last_sequence) = self.broker.start().map(|start| start.last_sequence) else {
            return;
        };
        let waiting = self.window.iter().map(|(_, row)| row);
        let waiting = waiting.filter(|row| row.state == RowState::Waiting && row.attempts > 0);
        let after = waiting.map(|row| row.sent_behind).min();
        if let Some(after) = after.filter(|after| *after < last_sequence) {
            self.look_back(now, after + 1);
        }
    }

    /// The newest messages, or why they could not be read.
    pub fn handle_looked_back(
        &mut self,
        now: Instant,
        epoch: u64,
        answer: Result<LookBack, String>,
    ) {
        if self.current_epoch() != Some(epoch) {
            return;
        }
        let Some(live) = self.broker.epoch_mut() else {
            return;
        };
        if !matches!(live.search, Some(Search::LookingBack { .. })) {
            return;
        }
        live.search = None;
        match (self.located.is_some(), answer) {
            (true, Ok(found)) => self.settle_found(&found),
            // The duplicate window decides.
            (true, Err(_)) => {}
            (false, Ok(found)) => self.looked_back(now, &found),
            (false, Err(detail)) => self.not_looked_back(now, detail),
        }
        self.check_goal(now);
    }

    /// Rows of this session that were sent and not acked, and are found.
    fn settle_found(&mut self, found: &LookBack) {
        let Some(history) = self.history() else {
            return;
        };
        let stored = survey::held(history, found);
        self.take_beyond(stored);
    }

    fn looked_back(&mut self, now: Instant, found: &LookBack) {
        let (Some(history), Some(start)) = (self.history(), self.broker.start()) else {
            return;
        };
        let survey = survey::survey(history, start.writers, found);
        if found.reach == Reach::Limit {
            let messages = found.messages.len();
            self.notices.push_back(Notice::LookBackCut { messages });
        }
        let nothing_held = survey.covered.is_none() && survey.beyond.is_empty();
        match survey.lost.filter(|_| nothing_held) {
            Some(lost) if self.may_bisect() && found.reach != Reach::Beginning => {
                self.orphan_ids.extend(survey.orphan_ids);
                self.bisect(now, Bisection::new(lost));
            }
            _ => self.conclude(now, survey),
        }
    }

    fn may_bisect(&self) -> bool {
        let start = self.broker.start();
        start.is_some_and(|start| start.writers == Writers::Exclusive)
    }

    /// The newest messages cannot be read: the last one has to do.
    fn not_looked_back(&mut self, now: Instant, detail: String) {
        let (Some(history), Some(start)) = (self.history(), self.broker.start()) else {
            return;
        };
        let exclusive = start.writers == Writers::Exclusive;
        let tail = match &start.tail {
            Tail::Row(row) if exclusive && row.resume_id().is_some() => Some(row.clone()),
            _ => None,
        };
        let standing = tail.as_ref().map(|row| history.standing(row));
        self.notices.push_back(Notice::LookBackFailed { detail });
        match (tail, standing) {
            (Some(row), Some(Standing::Held)) if row.chained => {
                let survey = Survey {
                    covered: Some(row),
                    ours: 1,
                    ..Survey::default()
                };
                self.conclude(now, survey);
            }
            (Some(row), Some(standing)) if standing != Standing::Held => {
                self.bisect(now, Bisection::new(Lost::of(&row, standing)));
            }
            _ => {
                self.located(Survey::default());
                self.be_careful();
            }
        }
    }

    fn bisect(&mut self, now: Instant, mut bisection: Bisection) {
        let Some(history) = self.history() else {
            return;
        };
        let step = bisection.step(history);
        self.bisected(now, Box::new(bisection), step);
    }

    /// What stands at or behind the sequence asked for.
    pub fn handle_read_next(&mut self, now: Instant, epoch: u64, found: ReadNext) {
        if self.current_epoch() != Some(epoch) {
            return;
        }
        let search = self.broker.epoch_mut().and_then(|live| live.search.take());
        let mut bisection = match search {
            Some(Search::Bisecting { bisection, .. }) => bisection,
            other => {
                if let Some(live) = self.broker.epoch_mut() {
                    live.search = other;
                }
                return;
            }
        };
        let found = match found {
            ReadNext::Message(message) => Some(message),
            ReadNext::End => None,
            ReadNext::Unknown { detail } => {
                self.end_epoch(now, EpochReason::SearchUnanswered { detail });
                return;
            }
        };
        let Some(history) = self.history() else {
            return;
        };
        let step = bisection.answered(history, found);
        self.bisected(now, bisection, step);
        self.check_goal(now);
    }

    fn bisected(&mut self, now: Instant, bisection: Box<Bisection>, step: Step) {
        let lost = Some(bisection.lost);
        match step {
            Step::Ask(sequence) => {
                let until = now + SEARCH_TIMEOUT;
                if let Some(live) = self.broker.epoch_mut() {
                    let epoch = live.number;
                    live.search = Some(Search::Bisecting { until, bisection });
                    self.actions.push_back(Action::ReadNext { epoch, sequence });
                }
            }
            Step::Done(covered) => {
                let orphan_ids = self.orphan_ids.drain().collect();
                self.conclude(
                    now,
                    Survey {
                        // Only a chain says anything about the rows before it.
                        covered: covered.filter(|row| row.chained),
                        lost,
                        orphan_ids,
                        ..Survey::default()
                    },
                );
            }
            Step::GivenUp => {
                let orphan_ids = self.orphan_ids.drain().collect();
                self.conclude(
                    now,
                    Survey {
                        lost,
                        orphan_ids,
                        ..Survey::default()
                    },
                );
            }
        }
    }

    /// All is known that can be: goes on from there.
    fn conclude(&mut self, now: Instant, mut survey: Survey) {
        let Some(writers) = self.broker.start().map(|start| start.writers) else {
            return;
        };
        let exclusive = writers == Writers::Exclusive;
        if let Some(strangers) = survey.strangers {
            self.tell_strangers(strangers);
        }
        if let Some(lost) = survey.lost {
            self.tell_lost(&lost);
        }
        let (covered, beyond) = (survey.covered.take(), std::mem::take(&mut survey.beyond));
        if covered.is_none() && beyond.is_empty() {
            if exclusive {
                self.be_careful();
            }
            if survey.lost.is_none() {
                self.notices.push_back(match (exclusive, survey.ours) {
                    (false, 0) => Notice::NothingOfOurs,
                    _ => Notice::NoResumePoint {
                        detail: "none of its newest messages says up to where all is stored",
                    },
                });
            }
        }
        self.located(survey);
        if let Some(row) = covered {
            self.resume_at(now, row);
        }
        // A resume point that is void has ended the session.
        if self.session.is_up() {
            self.take_beyond(beyond);
            self.rename_waiting();
        }
    }

    /// Settles rows that are known to be stored; those that are yet to arrive are remembered.
    fn take_beyond(&mut self, beyond: Vec<Known>) {
        let newest = self.window.newest();
        for known in beyond {
            if Some(known.position) > newest {
                self.beyond.push_back(known);
                continue;
            }
            let waits = |row: &&super::window::WindowRow| row.state == RowState::Waiting;
            let row = self.window.at(known.position).filter(waits);
            if row.is_some_and(|row| known.has_id(&row.message.dedup_id))
                && let Some(token) = self.window.token_at(known.position)
            {
                self.settle_stored(token);
            }
        }
        let Some(epoch) = self.broker.epoch_mut() else {
            return;
        };
        // Nothing is in flight yet, and rows may have been settled in the middle of their keys.
        let start = &epoch.start;
        epoch.order = SendOrder::new(start.writers, start.last_sequence, &self.window);
    }

    /// A row was stored before it could be sent, or without an ack.
    pub(super) fn settle_stored(&mut self, token: crate::broker::Token) {
        if let Some(transaction) = self.window.settle(token) {
            self.counters.skipped += 1;
            self.ledger.settle_row(transaction);
        }
    }

    /// Whether the row that arrives at a position is among those known to be stored.
    pub(super) fn is_known(&mut self, position: crate::Position, dedup_id: &[u8]) -> bool {
        while self
            .beyond
            .front()
            .is_some_and(|known| known.position < position)
        {
            self.beyond.pop_front();
        }
        let at = self
            .beyond
            .front()
            .filter(|known| known.position == position);
        at.is_some_and(|known| known.has_id(dedup_id))
    }

    pub(super) fn tell_strangers(&mut self, strangers: Strangers) {
        let Strangers {
            first_sequence,
            last_sequence,
            count,
        } = strangers;
        if last_sequence > self.strangers_told {
            self.strangers_told = last_sequence;
            self.notices.push_back(Notice::Strangers {
                first_sequence,
                last_sequence,
                count,
            });
        }
    }

    fn tell_lost(&mut self, lost: &Lost) {
        let notice = match lost.standing {
            Standing::Orphan(fork) => Notice::Orphans {
                timeline: lost.timeline,
                switch_lsn: fork.switch_lsn,
                first_sequence: lost.first_sequence,
                last_sequence: lost.last_sequence,
                count: lost.count,
                lowest: lost.lowest,
                highest: lost.highest,
            },
            Standing::BeyondLogEnd => Notice::BeyondLogEnd {
                position: lost.highest,
                log_end: self.log_end(),
            },
            Standing::Held | Standing::OtherLog | Standing::OtherTimeline => {
                let detail = "its last message comes from a timeline that this server never was on";
                Notice::NoResumePoint { detail }
            }
        };
        self.notices.push_back(notice);
    }
}
