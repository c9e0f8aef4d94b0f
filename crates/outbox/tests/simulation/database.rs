//! A fake PostgreSQL: committed transactions and one replication slot.

use std::collections::VecDeque;

use outbox::{Fork, Position, Source};
use pgoutput::{Frame, Lsn};

use crate::rng::Rng;
use crate::stream::Stored;
use crate::wire;

/// What is special about a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// NULL id: poison that the renderer finds.
    NoId,
    /// Too large for the stream: poison that the broker finds.
    TooLarge,
}

#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) key: u64,
    pub(crate) kind: Kind,
    pub(crate) position: Position,
    /// It was acked or found stored once, or its dead letter is committed.
    pub(crate) settled_once: bool,
    pub(crate) parked: bool,
}

#[derive(Debug)]
pub(crate) struct Transaction {
    pub(crate) commit_lsn: Lsn,
    pub(crate) end_lsn: Lsn,
    pub(crate) rows: Vec<Row>,
    /// Changes of other tables before each row, which take numbers too.
    foreign: bool,
}

#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) transactions: Vec<Transaction>,
    wal_end: u64,
    /// `confirmed_flush_lsn` in the server's memory, and as saved on disk.
    pub(crate) confirmed: Lsn,
    durable: Lsn,
    rows: u64,
    timeline: u32,
    pub(crate) forks: Vec<Fork>,
}

/// One walsender.
#[derive(Debug)]
pub(crate) struct Walsender {
    pub(crate) number: u64,
    next: usize,
    described: bool,
    sent_to: u64,
    pub(crate) pipe: VecDeque<Frame>,
    pub(crate) wants_reply: bool,
    /// What the client has been given to read, and what it confirmed.
    pub(crate) delivered: Lsn,
    in_transaction: bool,
    pub(crate) last_status: Option<Lsn>,
    pub(crate) last_status_at: u64,
}

impl Database {
    pub(crate) fn new() -> Self {
        Self {
            transactions: Vec::new(),
            wal_end: 1_000,
            confirmed: Lsn::new(1_000),
            durable: Lsn::new(1_000),
            rows: 0,
            timeline: 1,
            forks: Vec::new(),
        }
    }

    pub(crate) fn source(&self) -> Source {
        Source {
            system_identifier: 7,
            timeline: self.timeline,
            database: "shop".to_owned(),
            slot: "postrider".to_owned(),
        }
    }

    /// Whether a message that was stored for a position of a timeline is of this history.
    fn holds(&self, timeline: u32, position: Position) -> bool {
        let left = self.forks.iter().find(|fork| fork.timeline == timeline);
        timeline == self.timeline || left.is_some_and(|fork| position.commit_lsn < fork.switch_lsn)
    }

    /// Whether a message is the one of a row, under the row's id or `ID@TIMELINE`.
    pub(crate) fn is_of(&self, row: &Row, stored: &Stored) -> bool {
        let timeline = stored.source.as_ref().map_or(0, |source| source.timeline);
        stored.position == Some(row.position)
            && self.holds(timeline, row.position)
            && (stored.id == row.id || stored.id == format!("{}@{timeline}", row.id))
    }

    /// A standby that was behind is promoted. What it did not have is gone, and dead letters that
    /// had not reached it are, where `forgets_letters`. Returns the rows that are gone.
    pub(crate) fn promote(
        &mut self,
        rng: &mut Rng,
        forgets_letters: bool,
    ) -> Vec<(Position, String)> {
        let gone = self.restore(rng);
        self.forks.push(Fork {
            timeline: self.timeline,
            switch_lsn: Lsn::new(self.wal_end),
        });
        self.timeline += 1;
        // The standby's copy of the slot was behind too.
        let from = self.durable.min(self.confirmed);
        self.confirmed = from;
        let unconfirmed = self.transactions.iter_mut();
        let unconfirmed = unconfirmed.filter(|transaction| transaction.commit_lsn >= from);
        for row in unconfirmed.flat_map(|transaction| &mut transaction.rows) {
            if forgets_letters && row.parked && rng.chance(500) {
                row.parked = false;
                row.settled_once = false;
            }
        }
        gone
    }

    /// Commits one transaction of the application.
    pub(crate) fn commit(&mut self, rng: &mut Rng, keys: u64, poison_permille: u64) {
        let count = if rng.chance(150) {
            0
        } else {
            rng.between(1, 5)
        };
        let foreign = rng.chance(200);
        let commit_lsn = Lsn::new(self.wal_end + rng.between(10, 200));
        let end_lsn = Lsn::new(commit_lsn.as_u64() + 40);
        let rows = (0..count)
            .map(|index| {
                self.rows += 1;
                let kind = if !rng.chance(poison_permille) {
                    Kind::Plain
                } else if rng.chance(500) {
                    Kind::NoId
                } else {
                    Kind::TooLarge
                };
                let change = if foreign { 2 * index + 1 } else { index };
                Row {
                    id: format!("r{}", self.rows),
                    key: rng.below(keys),
                    kind,
                    position: Position { commit_lsn, change },
                    settled_once: false,
                    parked: false,
                }
            })
            .collect();
        self.wal_end = end_lsn.as_u64();
        self.transactions.push(Transaction {
            commit_lsn,
            end_lsn,
            rows,
            foreign,
        });
    }

    /// Other databases write WAL.
    pub(crate) fn write_foreign(&mut self, rng: &mut Rng) {
        self.wal_end += rng.between(100, 10_000);
    }

    /// The server is replaced by a copy of it made earlier, which then went another way: the same
    /// log by name, other rows at the same places. Returns the rows that never were.
    pub(crate) fn replace(&mut self, rng: &mut Rng) -> Vec<(Position, String)> {
        let from = rng.below(self.transactions.len() as u64 + 1) as usize;
        let mut gone = Vec::new();
        for transaction in self.transactions.iter_mut().skip(from) {
            self.confirmed = self.confirmed.min(transaction.commit_lsn);
            for row in &mut transaction.rows {
                self.rows += 1;
                gone.push((row.position, row.id.clone()));
                *row = Row {
                    id: format!("r{}", self.rows),
                    settled_once: false,
                    parked: false,
                    ..*row
                };
            }
            let kept = rng.below(transaction.rows.len() as u64 + 1) as usize;
            if rng.chance(300) {
                transaction.rows.truncate(kept);
            }
        }
        if rng.chance(300) {
            self.hand_out_again(&gone);
        }
        self.durable = self.durable.min(self.confirmed);
        gone
    }

    /// A sequence goes back with its server: new rows get the ids that other rows had.
    fn hand_out_again(&mut self, gone: &[(Position, String)]) {
        for pair in gone.windows(2) {
            if let [(_, id), (position, _)] = pair
                && let Some(row) = self.row_mut(*position)
            {
                row.id.clone_from(id);
            }
        }
    }

    /// The end of the log; everything in it is flushed.
    pub(crate) const fn log_end(&self) -> Lsn {
        Lsn::new(self.wal_end)
    }

    /// The server is replaced by a copy of it made earlier, with nothing written since. What is
    /// written from now on stands at places that the stream has seen. Returns the rows that are
    /// gone.
    pub(crate) fn restore(&mut self, rng: &mut Rng) -> Vec<(Position, String)> {
        // It has seen the last promotion, if there was one: what was stored since the one before
        // would be of a timeline that nobody can place any more.
        let last = self.forks.last().map_or(Lsn::ZERO, |fork| fork.switch_lsn);
        let least = self.transactions.partition_point(|tx| tx.end_lsn <= last);
        let from = rng.below((self.transactions.len() - least) as u64 + 1) as usize + least;
        let gone: Vec<_> = self
            .transactions
            .split_off(from)
            .into_iter()
            .flat_map(|transaction| transaction.rows)
            .map(|row| (row.position, row.id))
            .collect();
        let end = self
            .transactions
            .last()
            .map_or(1_000, |last| last.end_lsn.as_u64());
        self.wal_end = end;
        self.confirmed = self.confirmed.min(Lsn::new(end));
        self.durable = self.durable.min(self.confirmed);
        if rng.chance(300) {
            // The sequence went back with its server: the next ids were handed out before.
            let number = |row: &Row| row.id[1..].parse().unwrap_or(0);
            self.rows = self.rows().map(number).max().unwrap_or(0);
        }
        gone
    }

    /// The index of the first transaction that the slot has not forgotten.
    pub(crate) fn first_unconfirmed(&self) -> usize {
        self.transactions
            .partition_point(|tx| tx.commit_lsn < self.confirmed)
    }

    /// The slot reaches the disk.
    pub(crate) fn checkpoint(&mut self) {
        self.durable = self.confirmed;
    }

    /// The server dies and recovers: confirmations since the last save are gone.
    pub(crate) fn crash(&mut self) {
        self.confirmed = self.durable;
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.transactions
            .iter()
            .flat_map(|transaction| &transaction.rows)
    }

    pub(crate) fn row(&self, position: Position) -> Option<&Row> {
        let index = self
            .transactions
            .binary_search_by(|transaction| transaction.commit_lsn.cmp(&position.commit_lsn))
            .ok()?;
        let mut rows = self.transactions[index].rows.iter();
        rows.find(|row| row.position == position)
    }

    pub(crate) fn row_mut(&mut self, position: Position) -> Option<&mut Row> {
        let index = self
            .transactions
            .binary_search_by(|transaction| transaction.commit_lsn.cmp(&position.commit_lsn))
            .ok()?;
        self.transactions[index]
            .rows
            .iter_mut()
            .find(|row| row.position == position)
    }

    /// START_REPLICATION at 0/0.
    pub(crate) fn start_replication(&self, number: u64, now: u64) -> Walsender {
        Walsender {
            number,
            next: self.first_unconfirmed(),
            described: false,
            sent_to: self.confirmed.as_u64(),
            pipe: VecDeque::new(),
            wants_reply: false,
            delivered: Lsn::ZERO,
            in_transaction: false,
            last_status: None,
            last_status_at: now,
        }
    }
}

impl Walsender {
    /// The client reads a frame.
    pub(crate) fn deliver(&mut self) -> Option<Frame> {
        let frame = self.pipe.pop_front()?;
        let reached = match &frame {
            Frame::KeepAlive { wal_end, .. } if !self.in_transaction => *wal_end,
            Frame::KeepAlive { .. } => Lsn::ZERO,
            Frame::WalData { data, .. } => {
                let end_lsn = wire::commit_end(data);
                self.in_transaction |= wire::is_begin(data);
                self.in_transaction &= end_lsn.is_none();
                end_lsn.unwrap_or_default()
            }
        };
        self.delivered = self.delivered.max(reached);
        Some(frame)
    }

    /// Puts the next transaction into the pipe, or a keepalive if there is none.
    pub(crate) fn produce(&mut self, database: &Database, rng: &mut Rng) {
        let data = |start, data| Frame::WalData {
            start,
            server_time_micros: 0,
            data,
        };
        match database.transactions.get(self.next) {
            Some(transaction) => {
                self.next += 1;
                let at = transaction.commit_lsn;
                self.pipe.push_back(data(at, wire::begin(at)));
                if !self.described {
                    self.described = true;
                    let zero = Lsn::ZERO;
                    self.pipe
                        .push_back(data(zero, wire::relation(wire::RELATION_ID, "outbox")));
                    let foreign = wire::relation(wire::FOREIGN_RELATION_ID, "orders");
                    self.pipe.push_back(data(zero, foreign));
                }
                for row in &transaction.rows {
                    if rng.chance(100) {
                        // It says nothing about the open transaction, whatever it names.
                        self.pipe.push_back(keepalive(database.wal_end, rng));
                    }
                    if transaction.foreign {
                        let other = [Some("1"), None, None, None];
                        self.pipe
                            .push_back(data(at, wire::insert(wire::FOREIGN_RELATION_ID, other)));
                    }
                    let key = row.key.to_string();
                    let id = (row.kind != Kind::NoId).then_some(row.id.as_str());
                    let payload = if row.kind == Kind::TooLarge {
                        "large"
                    } else {
                        "{}"
                    };
                    let values = [id, Some(key.as_str()), Some("placed"), Some(payload)];
                    self.pipe
                        .push_back(data(at, wire::insert(wire::RELATION_ID, values)));
                }
                self.pipe
                    .push_back(data(at, wire::commit(at, transaction.end_lsn)));
                self.sent_to = self.sent_to.max(transaction.end_lsn.as_u64());
            }
            None if self.sent_to < database.wal_end || self.wants_reply || rng.chance(50) => {
                self.sent_to = self.sent_to.max(database.wal_end);
                self.wants_reply = false;
                self.pipe.push_back(keepalive(self.sent_to, rng));
            }
            None => {}
        }
    }
}

fn keepalive(wal_end: u64, rng: &mut Rng) -> Frame {
    Frame::KeepAlive {
        wal_end: Lsn::new(wal_end),
        server_time_micros: 0,
        reply_requested: rng.chance(200),
    }
}
