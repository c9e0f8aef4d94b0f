//! What may be confirmed to PostgreSQL, and why no row can be lost.
//!
//! # The argument
//!
//! A slot forgets a transaction once the client confirms a position at or past the transaction's
//! commit: PostgreSQL sends again exactly the transactions whose commit record begins at or after
//! `confirmed_flush_lsn` (`LogicalConfirmReceivedLocation`, `SnapBuildXactNeedsSkip` in its
//! source). It believes the client; it does not even check that it sent what is confirmed. So a row
//! is lost if, and only if, a position past its commit is confirmed while the row is neither in the
//! stream nor in the dead-letter table. The ledger makes that impossible:
//!
//! 1. Commits arrive in the order of their commit records, each transaction whole: Begin, changes,
//!    Commit. The ledger keeps them as a queue in that order. An entry counts the rows of its
//!    transaction that are not yet settled, that is, neither stored (a positive PubAck, or the
//!    row seen in the stream) nor parked (a committed dead letter).
//! 2. The settled position moves only over entries at the front of the queue that are closed (their
//!    Commit arrived) and count zero, and it moves exactly to the `end_lsn` of such a Commit. Every
//!    transaction with a commit before that position is therefore settled as a whole: it was in
//!    front of this one, or it was never sent in this session because the slot had forgotten it
//!    earlier, by the same rule.
//! 3. A keepalive says that everything before its position has been sent. It joins the queue as an
//!    entry without rows, so it cannot overtake anything, and it is dropped while a transaction is
//!    open, since that transaction commits behind it. Without keepalives an idle outbox would hold
//!    back the WAL of a whole busy cluster.
//! 4. The ledger begins empty with every session. Nothing is confirmed that was not received in the
//!    session that confirms it, so a slot made anew, moved or failed over cannot be confused with
//!    an older one.
//! 5. While rows are skipped because the stream is believed to hold them, the ledger is on hold:
//!    nothing more is settled until the belief has been proved.
//!
//! # Why the queue is bounded
//!
//! A PostgreSQL 14 sends Begin and Commit of every transaction of its database, and all versions
//! send those whose rows are skipped, while one row may wait for hours. So an entry without rows
//! that closes behind another settled one becomes a part of it. What is left in the queue are
//! entries that had rows of the window, which is bounded, at most one without rows behind each of
//! them, and one that is open. On hold no row enters the window.
//!
//! The laws are asserted here in release builds too: a process that would break one must die before
//! the next status update leaves it, as the slot cannot take a confirmation back.

use std::collections::VecDeque;

use pgoutput::Lsn;

/// Names one transaction of the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransactionSerial(u64);

/// The server sent something that no walsender sends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LedgerFault {
    #[error("a transaction began inside another one (commit {open}, then {new})")]
    BeginInside { open: Lsn, new: Lsn },
    #[error("a transaction with commit {new} began after the one that ended at {end}")]
    BeginBefore { end: Lsn, new: Lsn },
    #[error("a {what} arrived outside a transaction")]
    Outside { what: &'static str },
    #[error("the commit at {commit} ends a transaction announced for {announced}")]
    OtherCommit { announced: Lsn, commit: Lsn },
    #[error("the commit at {commit} ends at {end}, not past {received}, which was sent before it")]
    Backwards {
        commit: Lsn,
        end: Lsn,
        received: Lsn,
    },
}

#[derive(Debug)]
struct Entry {
    /// `None` while the transaction is open.
    end_lsn: Option<Lsn>,
    /// Rows neither stored nor parked.
    outstanding: u64,
    /// Commit time on the server's clock, microseconds since 1970; `None` for keepalives.
    commit_time_micros: Option<i64>,
}

impl Entry {
    /// Whether it has ended and nothing of it is outstanding.
    const fn is_silent(&self) -> bool {
        self.end_lsn.is_some() && self.outstanding == 0
    }
}

#[derive(Debug)]
pub(crate) struct Ledger {
    queue: VecDeque<Entry>,
    /// Serial of the entry at the front.
    front: u64,
    /// Commit LSN of the open transaction, whose entry is at the back.
    open: Option<Lsn>,
    /// Where the newest transaction that is no longer open ended.
    committed: Lsn,
    received: Lsn,
    settled: Lsn,
    on_hold: bool,
}

impl Ledger {
    pub(crate) const fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            front: 0,
            open: None,
            committed: Lsn::ZERO,
            received: Lsn::ZERO,
            settled: Lsn::ZERO,
            on_hold: false,
        }
    }

    /// Everything before this is stored or parked, and may be confirmed.
    pub(crate) const fn settled(&self) -> Lsn {
        self.settled
    }

    /// The newest position that the server has sent.
    pub(crate) const fn received(&self) -> Lsn {
        self.received
    }

    /// Whether a transaction has begun and not ended.
    pub(crate) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Whether everything received is settled.
    pub(crate) fn is_clear(&self) -> bool {
        self.queue.is_empty()
    }

    /// Commit time of the oldest transaction that is not settled, microseconds since 1970.
    pub(crate) fn oldest_commit_time_micros(&self) -> Option<i64> {
        self.queue.iter().find_map(|entry| entry.commit_time_micros)
    }

    /// A transaction begins; `commit_lsn` is the commit that Begin announces.
    pub(crate) fn begin(&mut self, commit_lsn: Lsn, time_micros: i64) -> Result<(), LedgerFault> {
        if let Some(open) = self.open {
            return Err(LedgerFault::BeginInside {
                open,
                new: commit_lsn,
            });
        }
        if commit_lsn < self.committed {
            return Err(LedgerFault::BeginBefore {
                end: self.committed,
                new: commit_lsn,
            });
        }
        self.open = Some(commit_lsn);
        self.queue.push_back(Entry {
            end_lsn: None,
            outstanding: 0,
            commit_time_micros: Some(time_micros),
        });
        Ok(())
    }

    /// A row of the open transaction has to be stored.
    pub(crate) fn add_row(&mut self) -> Result<TransactionSerial, LedgerFault> {
        let serial = self.front + (self.queue.len() as u64).saturating_sub(1);
        match (self.open, self.queue.back_mut()) {
            (Some(_), Some(entry)) => entry.outstanding += 1,
            _ => return Err(LedgerFault::Outside { what: "row" }),
        }
        Ok(TransactionSerial(serial))
    }

    /// The open transaction ends.
    pub(crate) fn commit(&mut self, commit_lsn: Lsn, end_lsn: Lsn) -> Result<(), LedgerFault> {
        let announced = self.open.ok_or(LedgerFault::Outside { what: "commit" })?;
        if announced != commit_lsn {
            return Err(LedgerFault::OtherCommit {
                announced,
                commit: commit_lsn,
            });
        }
        let received = self.received;
        if end_lsn <= commit_lsn || end_lsn < received {
            return Err(LedgerFault::Backwards {
                commit: commit_lsn,
                end: end_lsn,
                received,
            });
        }
        self.open = None;
        self.received = end_lsn;
        self.committed = end_lsn;
        if let Some(entry) = self.queue.back_mut() {
            entry.end_lsn = Some(end_lsn);
        }
        self.merge_newest();
        self.settle();
        Ok(())
    }

    /// Makes the newest entry a part of the one before it, if nothing is outstanding in either:
    /// they are settled together anyhow. No row can name the entry that goes, as it counts none.
    fn merge_newest(&mut self) {
        let Some(last) = self.queue.len().checked_sub(1) else {
            return;
        };
        let is_silent = |index: usize| self.queue.get(index).is_some_and(Entry::is_silent);
        if !is_silent(last) || !last.checked_sub(1).is_some_and(is_silent) {
            return;
        }
        if let Some(newest) = self.queue.pop_back()
            && let Some(before) = self.queue.back_mut()
        {
            before.end_lsn = newest.end_lsn;
            before.commit_time_micros = before.commit_time_micros.or(newest.commit_time_micros);
        }
    }

    /// The server says that everything before `wal_end` has been sent.
    pub(crate) fn keepalive(&mut self, wal_end: Lsn) {
        if self.is_open() || wal_end <= self.received {
            return;
        }
        self.received = wal_end;
        match self.queue.back_mut().filter(|entry| entry.is_silent()) {
            Some(entry) => entry.end_lsn = Some(wal_end),
            None => self.queue.push_back(Entry {
                end_lsn: Some(wal_end),
                outstanding: 0,
                commit_time_micros: None,
            }),
        }
        self.settle();
    }

    /// A row is stored or parked.
    pub(crate) fn settle_row(&mut self, transaction: TransactionSerial) {
        let entry = transaction
            .0
            .checked_sub(self.front)
            .and_then(|index| usize::try_from(index).ok())
            .and_then(|index| self.queue.get_mut(index));
        let outstanding = entry.as_ref().map_or(0, |entry| entry.outstanding);
        assert!(outstanding > 0, "a row was settled twice: {transaction:?}");
        if let Some(entry) = entry {
            entry.outstanding -= 1;
        }
        self.settle();
    }

    /// Nothing more is settled until [`release`](Self::release).
    pub(crate) const fn hold(&mut self) {
        self.on_hold = true;
    }

    /// Ends a [`hold`](Self::hold).
    pub(crate) fn release(&mut self) {
        self.on_hold = false;
        self.settle();
    }

    fn settle(&mut self) {
        let before = self.settled;
        while !self.on_hold
            && let Some(Entry {
                end_lsn: Some(end_lsn),
                outstanding: 0,
                ..
            }) = self.queue.front()
        {
            self.settled = *end_lsn;
            self.queue.pop_front();
            self.front += 1;
        }
        assert!(
            before <= self.settled,
            "settled went down: {before} to {}",
            self.settled
        );
        assert!(
            self.settled <= self.received,
            "settled {} is past {}, the newest position received",
            self.settled,
            self.received
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lsn(bytes: u64) -> Lsn {
        Lsn::new(bytes)
    }

    #[test]
    fn a_transaction_is_settled_when_it_and_all_before_it_are() {
        let mut ledger = Ledger::new();
        ledger.begin(lsn(100), 1).unwrap();
        let first = ledger.add_row().unwrap();
        ledger.commit(lsn(100), lsn(110)).unwrap();
        ledger.begin(lsn(200), 2).unwrap();
        let second = ledger.add_row().unwrap();
        let third = ledger.add_row().unwrap();
        ledger.settle_row(second);
        ledger.settle_row(third);
        ledger.commit(lsn(200), lsn(210)).unwrap();
        assert_eq!(ledger.settled(), Lsn::ZERO);
        assert_eq!(ledger.oldest_commit_time_micros(), Some(1));
        ledger.settle_row(first);
        assert_eq!(ledger.settled(), lsn(210));
        assert!(ledger.is_clear());
    }

    #[test]
    fn stored_rows_of_an_open_transaction_settle_nothing() {
        let mut ledger = Ledger::new();
        ledger.begin(lsn(100), 0).unwrap();
        let row = ledger.add_row().unwrap();
        ledger.settle_row(row);
        ledger.keepalive(lsn(105));
        assert_eq!(ledger.settled(), Lsn::ZERO);
        ledger.commit(lsn(100), lsn(110)).unwrap();
        assert_eq!(ledger.settled(), lsn(110));
    }

    #[test]
    fn keepalives_queue_behind_rows_and_never_go_back() {
        let mut ledger = Ledger::new();
        for (wal_end, settled) in [(100, 100), (90, 100), (110, 110)] {
            ledger.keepalive(lsn(wal_end));
            assert_eq!(ledger.settled(), lsn(settled));
        }
        ledger.begin(lsn(200), 0).unwrap();
        let row = ledger.add_row().unwrap();
        ledger.commit(lsn(200), lsn(210)).unwrap();
        for wal_end in 300..400 {
            ledger.keepalive(lsn(wal_end));
        }
        assert_eq!(ledger.queue.len(), 2, "keepalives are one entry");
        assert_eq!(ledger.settled(), lsn(110));
        ledger.settle_row(row);
        assert_eq!(ledger.settled(), lsn(399));
    }

    #[test]
    fn a_hold_keeps_everything_back() {
        let mut ledger = Ledger::new();
        ledger.hold();
        ledger.begin(lsn(100), 0).unwrap();
        ledger.commit(lsn(100), lsn(110)).unwrap();
        ledger.keepalive(lsn(120));
        assert_eq!(ledger.settled(), Lsn::ZERO);
        ledger.release();
        assert_eq!(ledger.settled(), lsn(120));
    }

    #[test]
    fn empty_transactions_are_one_entry_behind_a_row_and_on_hold() {
        for on_hold in [false, true] {
            let mut ledger = Ledger::new();
            ledger.begin(lsn(100), 1).unwrap();
            let row = (!on_hold).then(|| ledger.add_row().unwrap());
            ledger.commit(lsn(100), lsn(110)).unwrap();
            if on_hold {
                ledger.hold();
            }
            for number in 1..=1_000 {
                ledger.begin(lsn(1_000 * number), 2).unwrap();
                ledger
                    .commit(lsn(1_000 * number), lsn(1_000 * number + 10))
                    .unwrap();
                ledger.keepalive(lsn(1_000 * number + 20));
            }
            assert!(ledger.queue.len() <= 2, "{}", ledger.queue.len());
            let before = if on_hold { lsn(110) } else { Lsn::ZERO };
            assert_eq!(ledger.settled(), before);
            if let Some(row) = row {
                ledger.settle_row(row);
            }
            ledger.release();
            assert_eq!(ledger.settled(), lsn(1_000_020));
            assert!(ledger.is_clear());
        }
    }

    #[test]
    fn a_serial_stays_right_after_entries_were_merged() {
        let mut ledger = Ledger::new();
        ledger.begin(lsn(100), 1).unwrap();
        let first = ledger.add_row().unwrap();
        ledger.commit(lsn(100), lsn(110)).unwrap();
        for commit in [200, 300] {
            ledger.begin(lsn(commit), 2).unwrap();
            ledger.commit(lsn(commit), lsn(commit + 10)).unwrap();
        }
        ledger.begin(lsn(400), 3).unwrap();
        let second = ledger.add_row().unwrap();
        ledger.commit(lsn(400), lsn(410)).unwrap();
        ledger.settle_row(first);
        assert_eq!(ledger.settled(), lsn(310));
        assert_eq!(ledger.oldest_commit_time_micros(), Some(3));
        ledger.settle_row(second);
        assert_eq!(ledger.settled(), lsn(410));
    }

    #[test]
    fn nonsense_from_the_server_is_a_fault() {
        let mut ledger = Ledger::new();
        assert!(ledger.add_row().is_err());
        assert!(ledger.commit(lsn(1), lsn(2)).is_err());
        ledger.begin(lsn(100), 0).unwrap();
        assert!(ledger.begin(lsn(101), 0).is_err());
        assert!(ledger.commit(lsn(99), lsn(110)).is_err());
        assert!(ledger.commit(lsn(100), lsn(100)).is_err());
        ledger.commit(lsn(100), lsn(110)).unwrap();
        assert!(matches!(
            ledger.begin(lsn(109), 0),
            Err(LedgerFault::BeginBefore { .. })
        ));
        ledger.keepalive(lsn(300));
        ledger.begin(lsn(200), 0).unwrap();
        assert!(matches!(
            ledger.commit(lsn(200), lsn(210)),
            Err(LedgerFault::Backwards { .. })
        ));
    }

    #[test]
    #[should_panic(expected = "settled twice")]
    fn settling_a_row_twice_is_fatal() {
        let mut ledger = Ledger::new();
        ledger.begin(lsn(100), 0).unwrap();
        let row = ledger.add_row().unwrap();
        ledger.settle_row(row);
        ledger.settle_row(row);
    }
}
