//! The machine's state for status, metrics and people.

use pgoutput::Lsn;

use crate::Position;
use crate::broker::Writers;

use super::broker::Broker;
use super::source::Session;
use super::{Goal, Relay};

/// What was counted since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Rows newly stored.
    pub published: u64,
    /// Rows that JetStream held already, by their dedup id.
    pub duplicates: u64,
    /// Rows not sent because the stream's tail covers them.
    pub skipped: u64,
    /// Publishes of rows that had been sent before.
    pub resent: u64,
    /// Rows written to the dead-letter table.
    pub dead_lettered: u64,
    /// Negative answers.
    pub refused: u64,
    /// Transactions received to their end.
    pub transactions: u64,
    /// Changes received that are no outbox inserts.
    pub foreign_changes: u64,
    /// Answers that belonged to no row in flight.
    pub stray_answers: u64,
    /// Replication sessions begun.
    pub sessions: u64,
    /// Epochs that ended.
    pub epochs_ended: u64,
}

/// The oldest row that is not settled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeadRow {
    /// Its position.
    pub position: Position,
    /// Its dedup id.
    pub dedup_id: String,
    /// How often it was handed to the publisher.
    pub attempts: u32,
}

/// The machine at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelaySnapshot {
    /// `starting`, `streaming`, `postgres_down`, `nats_down`, `draining` or `stopped`.
    pub state: &'static str,
    /// Who writes the stream, while an epoch is there.
    pub writers: Option<Writers>,
    /// Newest position received in this session.
    pub received: Lsn,
    /// Everything before this is stored or parked.
    pub settled: Lsn,
    /// The end of the server's log as far as this session shows it.
    pub log_end: Lsn,
    /// Everything before this was confirmed, in this session or before it.
    pub confirmed: Lsn,
    /// Rows received and not settled.
    pub in_flight_rows: usize,
    /// Bytes of those rows.
    pub in_flight_bytes: usize,
    /// Commit time of the oldest transaction that is not settled, microseconds since 1970 on the
    /// server's clock.
    pub oldest_commit_time_micros: Option<i64>,
    /// The oldest row that is not settled.
    pub head: Option<HeadRow>,
    /// What was counted.
    pub counters: Counters,
}

impl Relay {
    /// What was counted so far.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The machine's state.
    #[must_use]
    pub fn snapshot(&self) -> RelaySnapshot {
        let state = match (&self.goal, &self.session, &self.broker) {
            (Goal::Stopped, ..) => "stopped",
            (Goal::Drain { .. } | Goal::Fail { .. }, ..) => "draining",
            (_, Session::Up(_), Broker::Up(_)) => "streaming",
            (_, Session::Up(_), _) if self.broker_proven => "nats_down",
            (_, _, Broker::Up(_)) if self.session_proven => "postgres_down",
            _ => "starting",
        };
        let start = self.session.start();
        let confirmed_before = start.map_or(Lsn::ZERO, |start| start.confirmed_flush);
        RelaySnapshot {
            state,
            writers: self.broker.start().map(|start| start.writers),
            received: self.ledger.received(),
            settled: self.ledger.settled(),
            log_end: self.log_end(),
            confirmed: self.confirmations.confirmed().max(confirmed_before),
            in_flight_rows: self.window.unsettled(),
            in_flight_bytes: self.window.bytes(),
            oldest_commit_time_micros: self.ledger.oldest_commit_time_micros(),
            head: self.window.front().map(|row| HeadRow {
                position: row.position,
                dedup_id: String::from_utf8_lossy(&row.message.dedup_id).into_owned(),
                attempts: row.attempts,
            }),
            counters: self.counters,
        }
    }
}
