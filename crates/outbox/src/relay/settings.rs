//! The machine's limits and policies.

use std::time::Duration;

use pgoutput::Lsn;

use crate::OutboxSpec;

/// What happens to a row that can never be published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnPoison {
    /// Write it to the dead-letter table and go on.
    Park,
    /// Stop with the row's name.
    Halt,
}

/// What happens to a row whose subject no stream takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnUnroutable {
    /// Wait until a stream takes it.
    Wait,
    /// Treat it as poison.
    Park,
}

/// Limits and policies of a [`Relay`](super::Relay).
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// The outbox tables.
    pub outboxes: Vec<OutboxSpec>,
    /// Policy for rows that can never be published.
    pub on_poison: OnPoison,
    /// Policy for rows whose subject no stream takes.
    pub on_unroutable: OnUnroutable,
    /// How long a settled position is held back before it is confirmed.
    pub confirm_delay: Duration,
    /// Most bytes of rows between PostgreSQL and their PubAcks. One row may go over it.
    pub max_in_flight_bytes: usize,
    /// Most rows between PostgreSQL and their PubAcks.
    pub max_in_flight_rows: usize,
    /// Messages of ours that are read back at the beginning of a session: twice the most rows that
    /// this or an earlier version of the program had in flight (see `survey.rs` for the reason).
    pub look_back_rows: usize,
    /// Largest message (headers and payload), in bytes.
    pub max_message_bytes: u64,
    /// Stop once everything up to here is confirmed.
    pub caught_up_at: Option<Lsn>,
    /// An unanswered publish ends the epoch after this time. JetStream answers within
    /// milliseconds; a leader election takes up to 4 s.
    pub ack_timeout: Duration,
    /// Least time between two status updates that nobody asked for.
    pub status_pace: Duration,
    /// A status update is sent at least this often. It must be well under the server's
    /// `wal_sender_timeout`, of which 1 s is the least that is in use.
    pub status_interval: Duration,
    /// After this much silence the server is asked for a sign of life.
    pub ask_after: Duration,
    /// After this much silence the session is taken for dead.
    pub silence_limit: Duration,
    /// How long a drain waits for PubAcks.
    pub drain_timeout: Duration,
    /// Keepalives that ask for a reply, within a second and with rows outstanding, after which
    /// the server is taken to be waiting for us to shut down. A healthy server sends one per half
    /// `wal_sender_timeout`; one that shuts down sends tens of thousands.
    pub shutdown_burst: u32,
    /// Where the jitter of the backoffs begins; any number.
    pub jitter_seed: u64,
}

/// Rows in flight: enough to keep JetStream busy (more than 1024 gain little), and few enough for
/// the client's queues. Should it ever be less, `look_back_rows` must stay what it is: it is for
/// rows that were sent under the greater one.
const MAX_IN_FLIGHT_ROWS: usize = 8_192;

impl RelaySettings {
    /// Settings with the documented defaults.
    #[must_use]
    pub fn new(outboxes: Vec<OutboxSpec>) -> Self {
        Self {
            outboxes,
            on_poison: OnPoison::Park,
            on_unroutable: OnUnroutable::Wait,
            confirm_delay: Duration::ZERO,
            max_in_flight_bytes: 16 * 1024 * 1024,
            max_in_flight_rows: MAX_IN_FLIGHT_ROWS,
            look_back_rows: 2 * MAX_IN_FLIGHT_ROWS,
            max_message_bytes: 1024 * 1024,
            caught_up_at: None,
            ack_timeout: Duration::from_secs(5),
            status_pace: Duration::from_millis(100),
            status_interval: Duration::from_secs(1),
            ask_after: Duration::from_secs(10),
            silence_limit: Duration::from_secs(45),
            drain_timeout: Duration::from_secs(5),
            shutdown_burst: 50,
            jitter_seed: 0,
        }
    }
}
