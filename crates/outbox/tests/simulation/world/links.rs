//! The connections: what travels on them, and what becomes of it when they break.

use outbox::{
    EpochEnd, EpochStart, LookBackRange, Outgoing, PubAck, Refusal, SessionStart, SourceFault,
    SourceFaultKind, StatusUpdate, Token, Writers,
};

use super::{Event, World};
use crate::law::{Law, Violation};
use crate::stream::Stored;
use crate::tape::Occasion;

/// The publisher's connection of one epoch.
#[derive(Debug)]
pub(super) struct Link {
    process: u64,
    epoch: u64,
    /// Nothing overtakes on a connection.
    last_publish_at: u64,
    last_answer_at: u64,
    /// Publishes without an answer, and their bytes.
    pub(super) in_flight: Vec<(Token, usize)>,
}

/// A publish on its way to the broker.
#[derive(Debug)]
pub(super) struct Publish {
    process: u64,
    epoch: u64,
    row: Outgoing,
}

/// What becomes of a publish and its answer; times in microseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    lost: bool,
    refused: bool,
    stranger: bool,
    stranger_swallows: bool,
    stranger_ahead: u64,
    delay: u64,
    ack_lost: bool,
    ack_late: bool,
    ack_lateness: u64,
    ack_overtakes: bool,
}

impl Publish {
    pub(super) fn occasion(&self) -> Occasion {
        Occasion::named("publish", [self.process, self.epoch, self.row.token.0])
    }
}

impl World {
    pub(super) fn open_session(&mut self) {
        let now = self.instant();
        if self.trouble() && self.rng.chance(100) {
            self.relay.handle_session_ended(now, session_fault());
            return;
        }
        self.walsenders += 1;
        let session = self.walsenders;
        self.walsender = Some(self.database.start_replication(session, self.now));
        let confirmed_flush = self.database.confirmed;
        self.note(|| format!("session {session} from {confirmed_flush}"));
        let start = SessionStart {
            source: self.database.source(),
            forks: self.database.forks.clone(),
            log_end: self.database.log_end(),
            confirmed_flush,
        };
        self.relay.handle_session_started(now, start);
        self.schedule_in(100, 5_000, Event::Frames { session });
    }

    pub(super) fn cut_session(&mut self) {
        if self.walsender.take().is_some() {
            let now = self.instant();
            self.relay.handle_session_ended(now, session_fault());
        }
    }

    /// Hands some frames to the machine, as long as it wants them.
    pub(super) fn deliver_frames(&mut self, session: u64) {
        let now = self.instant();
        let most = self.rng.between(1, 9);
        let mut left = most;
        while let Some(walsender) = &mut self.walsender
            && walsender.number == session
        {
            if left == 0 || !self.relay.wants_wal() {
                break;
            }
            left -= 1;
            if walsender.pipe.is_empty() {
                walsender.produce(&self.database, &mut self.rng);
            }
            match walsender.deliver() {
                Some(frame) => self.relay.handle_wal(now, frame),
                None => break,
            }
        }
        if self
            .walsender
            .as_ref()
            .is_some_and(|walsender| walsender.number == session)
        {
            // Nobody looks closely at a quiet log.
            let longest = if left == most { 400_000 } else { 60_000 };
            self.schedule_in(200, longest, Event::Frames { session });
        }
    }

    pub(super) fn status(&mut self, status: StatusUpdate) -> Result<(), Violation> {
        self.check_confirmation(status.confirmed)?;
        if let Some(session) = self.walsender.as_ref().map(|walsender| walsender.number) {
            let StatusUpdate {
                confirmed,
                reply_requested,
            } = status;
            let event = Event::StatusArrives {
                session,
                confirmed,
                reply_requested,
            };
            self.schedule_in(50, 2_000, event);
        }
        Ok(())
    }

    pub(super) fn open_epoch(&mut self, epoch: u64) {
        let now = self.instant();
        if self.trouble() && self.rng.chance(100) {
            let kind = outbox::BrokerFaultKind::Unreachable;
            let fault = outbox::BrokerFault {
                kind,
                detail: "fake".to_owned(),
            };
            self.relay.handle_epoch_refused(now, epoch, fault);
            return;
        }
        self.link = Some(Link {
            process: self.process,
            epoch,
            last_publish_at: self.now,
            last_answer_at: self.now,
            in_flight: Vec::new(),
        });
        self.tell_forgotten();
        let start = self.stream.epoch_start();
        if self.trouble() && self.rng.chance(200) {
            // It is on its way while other things happen.
            let event = Event::EpochOpened {
                process: self.process,
                epoch,
                start: Box::new(start),
            };
            self.schedule_in(10, 5_000, event);
        } else {
            self.epoch_opened(epoch, start);
        }
    }

    pub(super) fn epoch_opened(&mut self, epoch: u64, start: EpochStart) {
        self.note(|| format!("epoch {epoch}: {start:?}"));
        let now = self.instant();
        self.relay.handle_epoch_started(now, epoch, start);
    }

    pub(super) fn look_back(&mut self, process: u64, epoch: u64, range: &LookBackRange) {
        let answer = if self.faults.no_look_back {
            Err("fake".to_owned())
        } else {
            self.summary.look_backs += 1;
            Ok(self.stream.look_back(range))
        };
        self.note(|| format!("look back: {answer:?}"));
        let event = Event::LookedBack {
            process,
            epoch,
            answer,
        };
        self.schedule_in(10, 5_000, event);
    }

    pub(super) fn publish(&mut self, row: Outgoing) -> Result<(), Violation> {
        let position = row
            .headers
            .get(outbox::header::POSITION)
            .unwrap_or_default()
            .to_owned();
        self.note(|| format!("publish {position} after {:?}", row.expected_last_sequence));
        let delay = self.rng.between(50, 3_000);
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        // What was refused is sent again only when no answer is missing: a row behind it might be
        // stored still, before it.
        let exclusive = self.stream.writers == Writers::Exclusive;
        let behind =
            |(sent, _): &(Token, usize)| *sent == row.token || (exclusive && *sent > row.token);
        if link.in_flight.iter().any(behind) {
            let detail = format!("the row at {position} is sent before an answer has come");
            return Err(Law::NoEarlyRetry.broken(detail));
        }
        let size = row.subject.len() + row.headers.as_block().len() + row.payload.len();
        link.in_flight.push((row.token, size));
        link.last_publish_at = link.last_publish_at.max(self.now + delay);
        let at = link.last_publish_at;
        let publish = Publish {
            process: link.process,
            epoch: link.epoch,
            row,
        };
        self.summary.publishes += 1;
        self.schedule_at(at, Event::PublishArrives(Box::new(publish)));
        self.check_in_flight()
    }

    /// The client closes its connection, or dies: what is on the way may arrive still, late even,
    /// or not at all.
    pub(super) fn cut_link(&mut self) {
        let Some(link) = self.link.take() else { return };
        let survivors = if self.rng.chance(500) {
            self.rng.below(20)
        } else {
            0
        };
        let late = if self.faults.late_arrivals && self.rng.chance(300) {
            self.rng.below(8_000_000)
        } else {
            0
        };
        let mut on_the_way: Vec<usize> = Vec::new();
        for (index, event) in self.events.iter().enumerate() {
            if let Some(Event::PublishArrives(publish)) = event
                && (publish.process, publish.epoch) == (link.process, link.epoch)
            {
                on_the_way.push(index);
            }
        }
        let mut kept = Vec::new();
        for (order, index) in on_the_way.into_iter().enumerate() {
            let event = self.events[index].take();
            if (order as u64) < survivors {
                kept.extend(event);
            }
        }
        self.summary.zombie_publishes += kept.len() as u64;
        self.forget_events(|_| false);
        for event in kept {
            let at = self.now + late + 1;
            self.schedule_at(at, event);
        }
    }

    /// Takes events out of the queue: those that `is_void`, and those that were taken before.
    pub(super) fn forget_events(&mut self, is_void: impl Fn(&Event) -> bool) {
        for event in &mut self.events {
            if event.as_ref().is_some_and(&is_void) {
                *event = None;
            }
        }
        self.queue
            .retain(|std::cmp::Reverse((_, _, index))| self.events[*index].is_some());
    }

    /// The connection breaks; the client notices a little later.
    pub(super) fn break_link(&mut self) {
        let Some(link) = &self.link else { return };
        let (process, epoch) = (link.process, link.epoch);
        self.cut_link();
        self.schedule_in(10, 5_000, Event::EpochDies { process, epoch });
    }

    pub(super) fn epoch_dies(&mut self, epoch: u64) {
        let now = self.instant();
        let end = EpochEnd::Disconnected {
            detail: "fake".to_owned(),
        };
        self.relay.handle_epoch_ended(now, epoch, end);
    }

    /// What becomes of a publish and of its answer. All is drawn always, so that each decision
    /// keeps its number.
    fn draw_fate(&mut self) -> Fate {
        let (faults, rng) = (&self.faults, &mut self.rng);
        let mut fate = Fate {
            lost: rng.chance(faults.lost_publish_permille),
            refused: rng.chance(faults.overload_permille),
            stranger: rng.chance(faults.stranger_permille),
            stranger_swallows: rng.chance(500),
            stranger_ahead: rng.between(2, 9),
            delay: rng.between(50, 2_000),
            ack_lost: rng.chance(faults.lost_ack_permille),
            ack_late: rng.chance(faults.late_ack_permille),
            ack_lateness: rng.below(8_000_000),
            ack_overtakes: rng.chance(faults.swapped_ack_permille),
        };
        if !self.trouble() {
            fate = Fate {
                delay: fate.delay,
                ack_overtakes: fate.ack_overtakes,
                ..Fate::default()
            };
        }
        fate
    }

    pub(super) fn publish_arrives(&mut self, publish: Publish) {
        let fate = self.draw_fate();
        if fate.lost {
            self.summary.lost_publishes += 1;
            return;
        }
        let answer = self.strangers_answer(fate, &publish.row);
        let answer = if answer.is_some() && fate.stranger_swallows {
            answer
        } else if fate.refused {
            self.summary.overloads += 1;
            Some(Err(Refusal::TooManyRequests))
        } else {
            let stored = self.stream.publish(self.now, &publish.row);
            answer.or(Some(stored))
        };
        self.note(|| format!("answer {answer:?}"));
        let alive =
            |link: &&mut Link| (link.process, link.epoch) == (publish.process, publish.epoch);
        let (Some(link), Some(answer)) = (self.link.as_mut().filter(alive), answer) else {
            return;
        };
        let (process, epoch, token) = (link.process, link.epoch, publish.row.token);
        if fate.ack_lost {
            self.summary.lost_acks += 1;
            return;
        }
        let mut at = self.now + fate.delay;
        if fate.ack_late {
            self.summary.late_acks += 1;
            at += fate.ack_lateness;
        }
        if !fate.ack_overtakes {
            link.last_answer_at = link.last_answer_at.max(at);
            at = link.last_answer_at;
        }
        self.schedule_at(
            at,
            Event::Answer {
                process,
                epoch,
                token,
                answer,
            },
        );
    }

    /// A stranger who listens on the subject answers first. In an exclusive stream its wrong
    /// sequence gives it away; in a shared one nothing does.
    fn strangers_answer(&mut self, fate: Fate, row: &Outgoing) -> Option<Result<PubAck, Refusal>> {
        let before = row.expected_last_sequence.filter(|_| fate.stranger)?;
        self.summary.strangers += 1;
        Some(Ok(PubAck {
            sequence: before + fate.stranger_ahead,
            duplicate: false,
        }))
    }

    pub(super) fn answer(&mut self, epoch: u64, token: Token, answer: Result<PubAck, Refusal>) {
        let now = self.instant();
        if let Some(link) = self.link.as_mut().filter(|link| link.epoch == epoch) {
            link.in_flight.retain(|(sent, _)| *sent != token);
        }
        match answer {
            Ok(ack) => {
                self.summary.acks += 1;
                self.relay.handle_acked(now, epoch, token, ack);
            }
            Err(refusal) => self.relay.handle_refused(now, epoch, token, refusal),
        }
    }

    /// The row was stored once, whatever becomes of the message.
    pub(super) fn mark_stored(&mut self, stored: &Stored) {
        let Some(position) = stored.position else {
            return;
        };
        let found = self.database.row(position);
        let is_its = found.is_some_and(|row| self.database.is_of(row, stored));
        if let Some(row) = self.database.row_mut(position).filter(|_| is_its) {
            row.settled_once = true;
        }
    }
}

fn session_fault() -> SourceFault {
    SourceFault {
        kind: SourceFaultKind::Unreachable,
        detail: "fake".to_owned(),
    }
}
