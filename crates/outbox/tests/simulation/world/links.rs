//! The connections: what travels on them, and what becomes of it when they break.

use outbox::{
    EpochEnd, Outgoing, PubAck, Refusal, SessionStart, SourceFault, SourceFaultKind, StatusUpdate,
    Token,
};

use super::{Event, World, source};
use crate::stream::Stored;

/// The publisher's connection of one epoch.
#[derive(Debug)]
pub(super) struct Link {
    process: u64,
    epoch: u64,
    /// Nothing overtakes on a connection.
    last_publish_at: u64,
    last_answer_at: u64,
}

/// A publish on its way to the broker.
#[derive(Debug)]
pub(super) struct Publish {
    process: u64,
    epoch: u64,
    row: Outgoing,
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
        self.walsender = Some(self.database.start_replication(session));
        let confirmed_flush = self.database.confirmed;
        self.note(|| format!("session {session} from {confirmed_flush}"));
        let start = SessionStart {
            source: source(),
            forks: Vec::new(),
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
        let mut left = self.rng.between(1, 9);
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
            match walsender.pipe.pop_front() {
                Some(frame) => self.relay.handle_wal(now, frame),
                None => break,
            }
        }
        if self
            .walsender
            .as_ref()
            .is_some_and(|walsender| walsender.number == session)
        {
            self.schedule_in(200, 60_000, Event::Frames { session });
        }
    }

    pub(super) fn status(&mut self, status: StatusUpdate) -> Result<(), String> {
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
        });
        self.tell_forgotten();
        let start = self.stream.epoch_start();
        self.note(|| format!("epoch {epoch}: {start:?}"));
        self.relay.handle_epoch_started(now, epoch, start);
    }

    pub(super) fn publish(&mut self, row: Outgoing) {
        let position = row
            .headers
            .get(outbox::header::POSITION)
            .unwrap_or_default()
            .to_owned();
        self.note(|| format!("publish {position} after {:?}", row.expected_last_sequence));
        let delay = self.rng.between(50, 3_000);
        let Some(link) = &mut self.link else { return };
        link.last_publish_at = link.last_publish_at.max(self.now + delay);
        let at = link.last_publish_at;
        let publish = Publish {
            process: link.process,
            epoch: link.epoch,
            row,
        };
        self.summary.publishes += 1;
        self.schedule_at(at, Event::PublishArrives(Box::new(publish)));
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
        let late = if self.rng.chance(300) {
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

    pub(super) fn publish_arrives(&mut self, publish: Publish) {
        if self.trouble() && self.rng.chance(self.faults.lost_publish_permille) {
            self.summary.lost_publishes += 1;
            return;
        }
        let answer = if self.trouble() && self.rng.chance(self.faults.overload_permille) {
            self.summary.overloads += 1;
            Err(Refusal::TooManyRequests)
        } else {
            self.stream.publish(self.now, &publish.row)
        };
        self.note(|| format!("answer {answer:?}"));
        let alive =
            |link: &&mut Link| (link.process, link.epoch) == (publish.process, publish.epoch);
        let Some(link) = self.link.as_mut().filter(alive) else {
            return;
        };
        let (process, epoch, token) = (link.process, link.epoch, publish.row.token);
        let mut delay = self.rng.between(50, 2_000);
        if self.now < self.trouble_until {
            if self.rng.chance(self.faults.lost_ack_permille) {
                self.summary.lost_acks += 1;
                return;
            }
            if self.rng.chance(self.faults.late_ack_permille) {
                self.summary.late_acks += 1;
                delay += self.rng.below(8_000_000);
            }
        }
        let at = if self.rng.chance(self.faults.swapped_ack_permille) {
            self.now + delay
        } else {
            link.last_answer_at = link.last_answer_at.max(self.now + delay);
            link.last_answer_at
        };
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

    pub(super) fn answer(&mut self, epoch: u64, token: Token, answer: Result<PubAck, Refusal>) {
        let now = self.instant();
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
        if let Some(position) = stored.position
            && let Some(row) = self.database.row_mut(position)
            && row.id == stored.id
        {
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
