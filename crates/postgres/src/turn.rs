//! Whose turn it is to write the stream of a slot: the streamer's, or that of a command.
//!
//! In an exclusive stream each message names the sequence before it. A command beside a busy
//! streamer would never find the right one, and a streamer whose chain a command has broken would
//! break the command's in turn. So a command holds an advisory lock per slot while it writes, and
//! the streamer, which looks for that lock, gives way until it is released. The lock ends with its
//! connection, so a command that is killed holds up nobody.

use std::time::Duration;

use crate::control::Control;
use crate::error::PgError;

/// Longest time for which a command writes before it lets the streamer go on. What is left then
/// waits for the command's next turn.
pub const TURN: Duration = Duration::from_secs(5);

/// First half of the key of the advisory lock that commands hold while they write a stream; the
/// second half is made of the slot's name. `PRDL` in ASCII.
const LOCK_CLASS: i32 = 0x5052_444C;

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
        // One statement takes and gives it back: what is shared hinders nobody who asks as we do.
        let row = self
            .client()
            .query_one(
                "SELECT CASE WHEN pg_try_advisory_lock_shared($1, $2) \
                 THEN NOT pg_advisory_unlock_shared($1, $2) ELSE true END",
                &[&LOCK_CLASS, &lock_key(slot)],
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
