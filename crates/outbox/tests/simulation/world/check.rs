//! Holds a history against the guarantee.

use std::collections::HashMap;

use outbox::{Position, Writers};
use pgoutput::Lsn;

use super::World;
use crate::database::{Kind, Row};
use crate::law::{Law, Violation};

/// What happened in one or many histories.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Summary {
    pub(crate) histories: u64,
    pub(crate) rows: u64,
    pub(crate) steps: u64,
    pub(crate) publishes: u64,
    pub(crate) acks: u64,
    pub(crate) parked: u64,
    pub(crate) stored_twice: u64,
    pub(crate) session_cuts: u64,
    pub(crate) postgres_crashes: u64,
    pub(crate) epoch_cuts: u64,
    pub(crate) streamer_kills: u64,
    pub(crate) full_streams: u64,
    pub(crate) forgotten: u64,
    pub(crate) spoiled_tails: u64,
    pub(crate) replaced_servers: u64,
    pub(crate) restored_servers: u64,
    pub(crate) promotions: u64,
    pub(crate) look_backs: u64,
    pub(crate) renamed: u64,
    pub(crate) zombie_publishes: u64,
    pub(crate) lost_publishes: u64,
    pub(crate) overloads: u64,
    pub(crate) strangers: u64,
    pub(crate) lost_acks: u64,
    pub(crate) late_acks: u64,
    pub(crate) skipped: u64,
    pub(crate) duplicates: u64,
    pub(crate) stops: u64,
    pub(crate) drained: u64,
}

impl Summary {
    /// What never has to happen comes first.
    fn fields(&mut self) -> Vec<&mut u64> {
        vec![
            &mut self.stored_twice,
            &mut self.histories,
            &mut self.rows,
            &mut self.steps,
            &mut self.publishes,
            &mut self.acks,
            &mut self.parked,
            &mut self.session_cuts,
            &mut self.postgres_crashes,
            &mut self.epoch_cuts,
            &mut self.streamer_kills,
            &mut self.full_streams,
            &mut self.forgotten,
            &mut self.spoiled_tails,
            &mut self.replaced_servers,
            &mut self.restored_servers,
            &mut self.promotions,
            &mut self.look_backs,
            &mut self.renamed,
            &mut self.zombie_publishes,
            &mut self.lost_publishes,
            &mut self.overloads,
            &mut self.strangers,
            &mut self.lost_acks,
            &mut self.late_acks,
            &mut self.skipped,
            &mut self.duplicates,
            &mut self.stops,
            &mut self.drained,
        ]
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let mut other = *other;
        for (sum, part) in self.fields().into_iter().zip(other.fields()) {
            *sum += *part;
        }
    }

    /// A simulator whose faults never happen proves nothing.
    pub(crate) fn assert_every_fault_happened(&mut self) {
        let shown = *self;
        for (index, count) in self.fields().into_iter().enumerate() {
            let may_be_zero = index == 0;
            assert!(
                may_be_zero || *count > 0,
                "field {index} of {shown:?} never happened"
            );
        }
    }
}

/// Longest time between two status updates, in microseconds: well under the least
/// `wal_sender_timeout` in use, 3 s.
const STATUS_PATIENCE_MICROS: u64 = 1_500_000;

impl World {
    /// Confirmations never go back, and never beyond what was read in their session.
    pub(super) fn check_status(&mut self, confirmed: Lsn) -> Result<(), Violation> {
        let Some(walsender) = &mut self.walsender else {
            return Ok(());
        };
        if walsender.last_status > Some(confirmed) || confirmed > walsender.delivered {
            return Err(Law::ConfirmedInOrder.broken(format!(
                "{confirmed} was confirmed after {:?}, when everything up to {} had been read",
                walsender.last_status, walsender.delivered
            )));
        }
        walsender.last_status = Some(confirmed);
        walsender.last_status_at = self.now;
        Ok(())
    }

    /// Status updates never stop, however full the window is.
    pub(super) fn check_status_goes_on(&self) -> Result<(), Violation> {
        let status_at = self.walsender.as_ref().map(|sender| sender.last_status_at);
        if status_at.is_some_and(|at| self.now - at > STATUS_PATIENCE_MICROS) {
            return Err(Law::StatusNeverStops.broken("no status update for too long"));
        }
        Ok(())
    }

    /// What is in flight never passes the limits, but for one row.
    pub(super) fn check_in_flight(&self) -> Result<(), Violation> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        let rows = link.in_flight.len();
        let bytes: usize = link.in_flight.iter().map(|(_, bytes)| bytes).sum();
        let newest = link.in_flight.last().map_or(0, |(_, bytes)| *bytes);
        let limits = &self.limits;
        if rows > limits.rows || bytes - newest >= limits.bytes {
            let detail = format!("{rows} rows of {bytes} bytes in flight, over {limits:?}");
            return Err(Law::InFlightIsBounded.broken(detail));
        }
        Ok(())
    }

    /// No status update may confirm a row that is neither stored nor parked.
    pub(super) fn check_confirmation(&mut self, confirmed: Lsn) -> Result<(), Violation> {
        self.check_status(confirmed)?;
        self.highest_status = self.highest_status.max(confirmed);
        while let Some(transaction) = self.database.transactions.get(self.checked) {
            if transaction.commit_lsn >= self.highest_status {
                break;
            }
            if confirmed < transaction.end_lsn && confirmed > transaction.commit_lsn {
                let detail = format!("{confirmed} was confirmed, inside a commit record");
                return Err(Law::ConfirmedInOrder.broken(detail));
            }
            for row in &transaction.rows {
                let is_its = |stored| self.database.is_of(row, stored);
                if !row.settled_once && !self.stream.messages().any(is_its) {
                    return Err(Law::NothingConfirmedEarly.broken(format!(
                        "{confirmed} was confirmed, but row {} at {} is not stored",
                        row.id, row.position
                    )));
                }
            }
            self.checked += 1;
        }
        Ok(())
    }

    /// The machine is about to learn what the broker forgot: from now on, those rows count as
    /// never stored, unless PostgreSQL was told already.
    pub(super) fn tell_forgotten(&mut self) {
        for position in std::mem::take(&mut self.forgotten) {
            let told = position.commit_lsn < self.highest_status;
            let shared = self.stream.writers == Writers::Shared;
            if let Some(row) = self.database.row_mut(position) {
                row.settled_once = row.parked || told || shared;
            }
        }
    }

    /// Everything that was committed is confirmed.
    pub(super) fn is_quiet(&self) -> bool {
        self.forgotten.is_empty()
            && self
                .database
                .transactions
                .last()
                .is_none_or(|last| self.database.confirmed >= last.end_lsn)
    }

    pub(super) fn stuck(&self) -> Violation {
        let last = self.database.transactions.last().map(|last| last.end_lsn);
        Law::Progress.broken(format!(
            "no progress: confirmed {} of {last:?}, {:?}, {:?}",
            self.database.confirmed,
            self.relay.snapshot(),
            self.faults
        ))
    }

    pub(super) fn finish(&mut self) -> Result<Summary, Violation> {
        let place: HashMap<_, _> = self
            .database
            .rows()
            .enumerate()
            .map(|(index, row)| (row.position, (index, row)))
            .collect();
        let copies = self.count_copies(&place)?;
        for (position, (_, row)) in &place {
            if !copies.contains_key(position) && !row.settled_once && !row.parked {
                return Err(Law::NothingLost.broken(format!("lost: {} at {position}", row.id)));
            }
            let collides = self.orphans.iter().any(|(_, id)| *id == row.id);
            if row.parked && row.kind == Kind::Plain && !collides {
                return Err(Law::ParkedForAReason.broken(format!(
                    "{} at {position} was parked without a reason",
                    row.id
                )));
            }
        }
        let stored_twice = copies.values().filter(|count| **count > 1).count() as u64;
        if stored_twice > 0 && !self.faults.spoil_tail {
            return Err(Law::NothingTwice.broken(format!("{stored_twice} rows are stored twice")));
        }
        let renamed = self
            .stream
            .messages()
            .filter(|stored| stored.id.contains('@'));
        let renamed = renamed.count() as u64;
        let counters = self.relay.snapshot().counters;
        Ok(Summary {
            rows: place.len() as u64,
            steps: self.steps,
            parked: self.database.rows().filter(|row| row.parked).count() as u64,
            stored_twice,
            renamed,
            skipped: counters.skipped,
            duplicates: counters.duplicates,
            ..self.summary
        })
    }

    /// How often each row is stored: none that was never committed, and none too late for its key.
    fn count_copies(
        &self,
        place: &HashMap<Position, (usize, &Row)>,
    ) -> Result<HashMap<Position, u64>, Violation> {
        let mut copies: HashMap<_, u64> = HashMap::new();
        let mut newest: HashMap<u64, usize> = HashMap::new();
        let exclusive = self.stream.writers == Writers::Exclusive;
        for stored in self.stream.messages() {
            let Some(position) = stored.position else {
                continue;
            };
            let found = place.get(&position);
            let Some((index, row)) = found.filter(|(_, row)| self.database.is_of(row, stored))
            else {
                let id = stored.id.split('@').next().unwrap_or_default();
                if found.is_some_and(|(_, row)| row.id == id) {
                    // The standby that was promoted never heard of the timeline on which its own
                    // row was stored: the row is there, and to the machine it is an orphan.
                    copies.entry(position).or_default();
                    continue;
                }
                if self.orphans.contains(&(position, id.to_owned())) {
                    continue;
                }
                return Err(Law::NothingInvented.broken(format!(
                    "phantom: {} at {position} was never committed",
                    stored.id
                )));
            };
            let count = copies.entry(position).or_default();
            *count += 1;
            if *count > 1 {
                continue;
            }
            let key = if exclusive { 0 } else { row.key };
            let late = newest
                .insert(key, *index)
                .is_some_and(|before| before > *index);
            // A second writer in an exclusive stream, a deleted message and a broker that loses
            // what it acked cost the order of what is left; the machine says so when it notices.
            let excused = self.faults.spoil_tail || self.faults.forget;
            if late && !excused {
                let detail = format!("order: {} at {position} came too late", row.id);
                return Err(Law::OrderPerKey.broken(detail));
            }
        }
        Ok(copies)
    }
}
