//! What goes wrong, and when.

use outbox::Writers;

use super::{Event, World, new_relay};
use crate::rng::Rng;

/// Which sorts of fault a history has.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    /// Upper bound of the number of single faults.
    pub(super) most: u64,
    pub(super) poison_permille: u64,
    pub(super) lost_publish_permille: u64,
    pub(super) lost_ack_permille: u64,
    pub(super) late_ack_permille: u64,
    pub(super) swapped_ack_permille: u64,
    pub(super) overload_permille: u64,
    /// A stranger on the subject acks before the stream does, in its name.
    pub(super) stranger_permille: u64,
    session_cut: bool,
    postgres_crash: bool,
    epoch_cut: bool,
    streamer_kill: bool,
    stream_full: bool,
    pub(super) forget: bool,
    /// The server is replaced by a clone of it.
    pub(super) replace: bool,
    /// A standby that was behind is promoted.
    pub(super) promote: bool,
    /// The newest messages may not be read.
    pub(super) no_look_back: bool,
    /// What a connection that was given up had sent may arrive late.
    pub(super) late_arrivals: bool,
    /// The tail is spoilt by somebody else who writes, not by a deletion.
    spoil_by_writing: bool,
    /// The stream's last message is deleted, or somebody else writes one.
    pub(super) spoil_tail: bool,
}

impl Faults {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        // Both are drawn always, so that each decision keeps its number.
        let mut rate = |most: u64| {
            let (happens, permille) = (rng.chance(400), rng.between(1, most));
            if happens { permille } else { 0 }
        };
        let (poison_permille, lost_publish_permille) = (rate(100), rate(50));
        let (lost_ack_permille, late_ack_permille) = (rate(50), rate(50));
        let (swapped_ack_permille, overload_permille) = (rate(300), rate(50));
        let stranger_permille = rate(20);
        let (forget, spoil_tail) = (rng.chance(150), rng.chance(100));
        let (other_history, promote) = (rng.chance(300), rng.chance(500));
        let other_history = !forget && !spoil_tail && other_history;
        Self {
            most: rng.below(12),
            poison_permille,
            lost_publish_permille,
            lost_ack_permille,
            late_ack_permille,
            swapped_ack_permille,
            overload_permille,
            stranger_permille,
            session_cut: rng.chance(500),
            postgres_crash: rng.chance(500),
            epoch_cut: rng.chance(500),
            streamer_kill: rng.chance(500),
            stream_full: rng.chance(200),
            forget,
            spoil_tail,
            replace: other_history && !promote,
            promote: other_history && promote,
            no_look_back: rng.chance(100),
            late_arrivals: rng.chance(800),
            spoil_by_writing: rng.chance(500),
        }
    }
}

impl Faults {
    /// The length of the duplicate window. What the stream tells makes it needless, but for late
    /// publishes of a connection that was given up: a history without a window has none of those.
    pub(super) fn window(&self, rng: &mut Rng, writers: Writers) -> u64 {
        // A clone's stream tells nothing, and a stream that must not be looked at little.
        let blind = self.no_look_back && (writers == Writers::Shared || self.promote);
        if self.spoil_tail {
            return 60_000_000;
        }
        if self.replace || blind {
            return u64::MAX;
        }
        if !self.late_arrivals {
            return 0;
        }
        if rng.chance(500) {
            10_000_000
        } else {
            u64::MAX
        }
    }
}

impl World {
    /// One fault of a sort that this history has.
    pub(super) fn fault(&mut self) {
        match self.rng.below(9) {
            0 if self.faults.session_cut => {
                self.note(|| "fault: session cut".to_owned());
                self.summary.session_cuts += 1;
                self.cut_session();
            }
            1 if self.faults.postgres_crash => {
                self.note(|| "fault: postgres crash".to_owned());
                self.summary.postgres_crashes += 1;
                self.database.crash();
                self.cut_session();
            }
            2 if self.faults.epoch_cut => {
                self.note(|| "fault: epoch cut".to_owned());
                self.summary.epoch_cuts += 1;
                self.break_link();
            }
            3 if self.faults.streamer_kill => self.kill_streamer(),
            4 if self.faults.stream_full => {
                self.stream.full = true;
                self.summary.full_streams += 1;
                self.schedule_in(1_000, 20_000_000, Event::StreamHeals);
            }
            5 if self.faults.forget => self.broker_forgets(),
            6 if self.faults.spoil_tail => self.spoil_tail(),
            7 if self.faults.replace => self.replace_server(),
            8 if self.faults.promote => self.promote_standby(),
            _ => {}
        }
    }

    fn kill_streamer(&mut self) {
        self.note(|| "fault: streamer killed".to_owned());
        self.summary.streamer_kills += 1;
        self.start_another();
    }

    /// The streamer is gone; another one starts.
    pub(super) fn start_another(&mut self) {
        self.stop_by = None;
        self.process += 1;
        self.walsender = None;
        self.cut_link();
        self.tell_forgotten();
        let now = self.instant();
        self.relay = new_relay(&mut self.rng, self.limits, now);
    }

    /// Another server answers under the name of the old one. What was stored of the rows that it
    /// never had stays in the stream, and must not be taken for its own.
    fn replace_server(&mut self) {
        self.note(|| "fault: the server is replaced by a clone".to_owned());
        self.summary.replaced_servers += 1;
        self.forget_events(|event| matches!(event, Event::Parked { .. }));
        let gone = if self.rng.chance(500) {
            self.summary.restored_servers += 1;
            self.database.restore(&mut self.rng)
        } else {
            self.database.replace(&mut self.rng)
        };
        self.orphans.extend(gone);
        self.meet_other_server();
    }

    /// A standby takes over that did not have everything.
    fn promote_standby(&mut self) {
        // A row that was renamed after one promotion is renamed anew after the next, unless the
        // messages tell that it is stored.
        let shared = self.stream.writers == Writers::Shared;
        if shared && self.faults.no_look_back && self.summary.promotions > 0 {
            return;
        }
        self.note(|| "fault: a standby is promoted".to_owned());
        self.summary.promotions += 1;
        self.forget_events(|event| matches!(event, Event::Parked { .. }));
        // Which of the rows before the fork had been parked can be told by the messages of an
        // exclusive stream alone.
        let exclusive = self.stream.writers == Writers::Exclusive;
        let forgets_letters = exclusive && !self.faults.no_look_back;
        let gone = self.database.promote(&mut self.rng, forgets_letters);
        self.orphans.extend(gone);
        self.meet_other_server();
    }

    /// What was confirmed to the old server is of no account to the new one.
    fn meet_other_server(&mut self) {
        self.highest_status = self.highest_status.min(self.database.confirmed);
        self.checked = self.checked.min(self.database.first_unconfirmed());
        self.cut_session();
    }

    /// The broker dies and loses its newest messages.
    fn broker_forgets(&mut self) {
        let count = self.rng.between(1, 8);
        let before: Vec<_> = self.stream.messages().cloned().collect();
        let lost = self.stream.forget_newest(count);
        self.note(|| format!("fault: the broker forgets {lost}"));
        self.summary.forgotten += lost;
        let kept = self.stream.messages().count();
        for stored in before.iter().skip(kept) {
            if let Some(position) = stored.position {
                // It was stored, and the machine cannot know better yet.
                self.mark_stored(stored);
                self.forgotten.push(position);
            }
        }
        self.break_link();
    }

    /// A foreign message in an exclusive stream breaks the rule that the stream is named for. The
    /// machine loses nothing as long as it remembers what it sent or may look at the newest
    /// messages. Without both, or when the broker then loses the foreign message, the rows around
    /// it are beyond proof.
    fn may_write_foreign(&self) -> bool {
        let forgetful =
            self.faults.session_cut || self.faults.postgres_crash || self.faults.streamer_kill;
        let blind = self.faults.forget || (forgetful && self.faults.no_look_back);
        self.stream.writers == Writers::Shared || !blind
    }

    fn spoil_tail(&mut self) {
        if !self.faults.spoil_by_writing {
            self.note(|| "fault: the last message is deleted".to_owned());
            if let Some(stored) = self.stream.delete_last() {
                self.mark_stored(&stored);
            }
        } else if self.may_write_foreign() {
            self.note(|| "fault: somebody else writes".to_owned());
            self.stream.publish_foreign();
        }
        self.summary.spoiled_tails += 1;
    }
}
