//! Whose turn it is to write the stream of a slot: the streamer's, or that of a command.
//!
//! In an exclusive stream each message names the sequence before it. A message that a command puts
//! between rows in flight takes the place of the first of them, and only that one is refused: the
//! one behind it finds the sequence that it names. So nothing may be in flight while a command
//! writes. It holds an advisory lock, the **turn**; the streamer, which looks for it, lets its rows
//! be acked, sends no more, and holds another lock, the **gap**, until the turn ends. Where a
//! streamer has the slot, a command writes only once there is a gap. Both locks end with their
//! connections, so that whoever is killed holds up nobody.

use std::time::Duration;

use crate::control::Control;
use crate::error::PgError;

/// Longest time for which a command writes before it lets the streamer go on. What is left then
/// waits for the command's next turn.
pub const TURN: Duration = Duration::from_secs(5);

/// First half of the key of the advisory lock that commands hold while they write a stream; the
/// second half is made of the slot's name. `PRDL` in ASCII.
const LOCK_CLASS: i32 = 0x5052_444C;

/// First half of the key of the lock that a streamer holds while it gives way. `PRGP` in ASCII.
const GAP_CLASS: i32 = 0x5052_4750;

/// FNV-1a, so that the key depends on nothing but the slot's name.
fn lock_key(slot: &str) -> i32 {
    let hash = slot.bytes().fold(0x811C_9DC5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    i32::from_ne_bytes(hash.to_ne_bytes())
}

impl Control {
    /// Waits for the right to write the slot's stream beside its streamer, and takes it. It ends
    /// with [`end_turn`](Self::end_turn) or with the connection.
    ///
    /// # Errors
    /// When another command has it for longer than `limit` ([`is_turn_timeout`]), or the connection
    /// breaks.
    pub async fn take_turn(&self, slot: &str, limit: Duration) -> Result<(), PgError> {
        // A timeout of zero would be none.
        let limit_ms = limit.as_millis().max(1);
        self.client()
            .batch_execute(&format!("SET lock_timeout = {limit_ms}"))
            .await?;
        self.client()
            .execute(
                "SELECT pg_advisory_lock($1, $2)",
                &[&LOCK_CLASS, &lock_key(slot)],
            )
            .await?;
        self.client().batch_execute("RESET lock_timeout").await?;
        Ok(())
    }

    /// Gives the right back.
    ///
    /// # Errors
    /// A broken connection, with which it is given back as well.
    pub async fn end_turn(&self, slot: &str) -> Result<(), PgError> {
        self.client()
            .execute(
                "SELECT pg_advisory_unlock($1, $2)",
                &[&LOCK_CLASS, &lock_key(slot)],
            )
            .await?;
        Ok(())
    }

    /// Whether a command has the right to write the slot's stream now.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn turn_is_taken(&self, slot: &str) -> Result<bool, PgError> {
        self.is_held(LOCK_CLASS, slot).await
    }

    /// Says that the slot's streamer has nothing in flight and sends nothing, until
    /// [`end_gap`](Self::end_gap) or the end of the connection. False if it could not be said just
    /// now, as when a command asks at the same moment: to be tried again.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn begin_gap(&self, slot: &str) -> Result<bool, PgError> {
        let row = self
            .client()
            .query_one(
                "SELECT pg_try_advisory_lock($1, $2)",
                &[&GAP_CLASS, &lock_key(slot)],
            )
            .await?;
        Ok(row.try_get(0)?)
    }

    /// Ends a gap, however often this connection began it: a question that was given up may have
    /// been heard all the same. A streamer's connection holds no other advisory lock.
    ///
    /// # Errors
    /// A broken connection, with which it ends as well.
    pub async fn end_gap(&self) -> Result<(), PgError> {
        self.client()
            .execute("SELECT pg_advisory_unlock_all()", &[])
            .await?;
        Ok(())
    }

    /// Whether the slot's streamer gives way now.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn is_gap(&self, slot: &str) -> Result<bool, PgError> {
        self.is_held(GAP_CLASS, slot).await
    }

    async fn is_held(&self, class: i32, slot: &str) -> Result<bool, PgError> {
        // One statement takes and gives it back: what is shared hinders nobody who asks as we do.
        let row = self
            .client()
            .query_one(
                "SELECT CASE WHEN pg_try_advisory_lock_shared($1, $2) \
                 THEN NOT pg_advisory_unlock_shared($1, $2) ELSE true END",
                &[&class, &lock_key(slot)],
            )
            .await?;
        Ok(row.try_get(0)?)
    }
}

/// Whether the wait for a turn came to its limit (SQLSTATE 55P03, lock_not_available).
#[must_use]
pub fn is_turn_timeout(error: &PgError) -> bool {
    error
        .server()
        .is_some_and(|server| server.code.as_str() == "55P03")
}
