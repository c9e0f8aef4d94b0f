//! The stream of WAL, and the one number that goes back.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pgoutput::{Frame, Lsn};
use pgwire_replication::protocol::replication::{
    ReplicationCopyData, encode_standby_status_update, parse_copy_data,
};
use tokio::time::timeout;

use super::wire::{MAX_STREAM_MESSAGE_BYTES, Message, Wire};
use crate::error::{PgError, ServerError};

/// `CopyDone`: we send no more status updates.
const COPY_DONE: [u8; 5] = [b'c', 0, 0, 0, 4];

/// How a stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The server has read everything we sent, the last status update included.
    Complete,
    /// The time was over first. The last status may or may not have arrived: ask the slot.
    Deadline,
}

/// A running logical replication stream, owned by one task.
///
/// Receiving also sends what an earlier status update could not, so a loop that polls
/// [`next_frames`](Self::next_frames) and calls [`send_status`](Self::send_status) between polls
/// never waits for the socket to take a status. After an error the stream is of no more use.
pub struct WalStream {
    wire: Wire,
    backend_pid: i32,
}

impl std::fmt::Debug for WalStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WalStream")
            .field("backend_pid", &self.backend_pid)
            .finish_non_exhaustive()
    }
}

impl WalStream {
    pub(super) fn new(wire: Wire, backend_pid: i32) -> Self {
        Self { wire, backend_pid }
    }

    /// Process id of our walsender on the server.
    #[must_use]
    pub fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    /// Waits for the next frame. May be dropped at any time without loss.
    ///
    /// # Errors
    /// [`PgError::Server`] with the reason the server gave, [`PgError::Closed`] or
    /// [`PgError::Io`] when the connection ended without one, [`PgError::Protocol`].
    pub async fn next_frame(&mut self) -> Result<Frame, PgError> {
        poll_fn(|cx| self.poll_frame(cx)).await
    }

    /// A frame that has already arrived; `None` if waiting would be necessary.
    ///
    /// # Errors
    /// As [`next_frame`](Self::next_frame).
    pub fn try_next_frame(&mut self) -> Result<Option<Frame>, PgError> {
        while let Some(message) = self.wire.take_message(MAX_STREAM_MESSAGE_BYTES)? {
            if let Some(frame) = frame(message)? {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Waits for at least one frame and appends it to `frames`, with those behind it that have
    /// already arrived, up to `max_count` frames or until `max_bytes` of messages are reached.
    /// May be dropped at any time without loss.
    ///
    /// # Errors
    /// As [`next_frame`](Self::next_frame); frames before the error are in `frames`.
    pub async fn next_frames(
        &mut self,
        frames: &mut Vec<Frame>,
        max_count: usize,
        max_bytes: usize,
    ) -> Result<(), PgError> {
        let first = self.next_frame().await?;
        let mut count = 1;
        let mut bytes = size_bytes(&first);
        frames.push(first);
        while count < max_count && bytes < max_bytes {
            let Some(frame) = self.try_next_frame()? else {
                break;
            };
            count += 1;
            bytes += size_bytes(&frame);
            frames.push(frame);
        }
        Ok(())
    }

    /// Reports `confirmed` as written, flushed and applied: the server may forget everything before
    /// it. Returns at once even if the socket is full; what it does not take is sent by the next
    /// call or while receiving, the newest update in place of unsent older ones.
    ///
    /// `now_micros` is our clock in microseconds since 2000-01-01 UTC; with `reply_requested` the
    /// server answers with a keepalive.
    ///
    /// # Errors
    /// [`PgError::Io`] if the connection is broken. Receive once more for the server's reason.
    pub async fn send_status(
        &mut self,
        confirmed: Lsn,
        now_micros: i64,
        reply_requested: bool,
    ) -> Result<(), PgError> {
        let position = pgwire_replication::Lsn::from_u64(confirmed.as_u64());
        let update = encode_standby_status_update(position, now_micros, reply_requested);
        let length = u32::try_from(update.len() + 4)
            .map_err(|_| PgError::protocol("a status update is too long"))?;
        let mut packet = Vec::with_capacity(update.len() + 5);
        packet.push(b'd');
        packet.extend_from_slice(&length.to_be_bytes());
        packet.extend_from_slice(&update);
        self.wire.queue_status(&packet);
        self.wire.flush_without_waiting().await
    }

    /// Ends the stream so that the last status update counts: it is sent, then `CopyDone`, and what
    /// the server still sends is read and dropped until it has answered. Closing with unread data
    /// would reset the connection, and the server would lose the update with it.
    ///
    /// A server in the middle of sending a large transaction answers only after it; `limit` bounds
    /// the wait.
    ///
    /// # Errors
    /// As [`next_frame`](Self::next_frame).
    pub async fn finish(mut self, limit: Duration) -> Result<Ending, PgError> {
        self.wire.queue(&COPY_DONE);
        match timeout(limit, self.drain()).await {
            Ok(result) => result.map(|()| Ending::Complete),
            Err(_) => Ok(Ending::Deadline),
        }
    }

    async fn drain(&mut self) -> Result<(), PgError> {
        loop {
            let message = self.wire.next_message(MAX_STREAM_MESSAGE_BYTES).await?;
            match message.tag {
                b'Z' => break,
                b'E' => return Err(ServerError::parse(&message.body).into()),
                _ => {}
            }
        }
        self.wire.say_farewell().await;
        Ok(())
    }

    fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Result<Frame, PgError>> {
        loop {
            let message = ready!(self.wire.poll_message(cx, MAX_STREAM_MESSAGE_BYTES))?;
            if let Some(frame) = frame(message)? {
                return Poll::Ready(Ok(frame));
            }
        }
    }
}

/// Length of what a frame carries.
fn size_bytes(frame: &Frame) -> usize {
    match frame {
        Frame::WalData { data, .. } => data.len(),
        Frame::KeepAlive { .. } => 0,
    }
}

/// Reads one message of the stream; `None` for those that say nothing about WAL.
fn frame(message: Message) -> Result<Option<Frame>, PgError> {
    match message.tag {
        b'd' => {}
        b'E' => return Err(ServerError::parse(&message.body).into()),
        b'N' => return notice(&ServerError::parse(&message.body)),
        b'S' | b'A' => return Ok(None),
        // CopyDone or CommandComplete: the server ends the stream, as it does when shutting down.
        b'c' | b'C' => return Err(PgError::Closed),
        tag => return Err(super::unexpected(tag, "streaming")),
    }
    let data = parse_copy_data(message.body).map_err(|error| PgError::Protocol {
        reason: error.to_string(),
    })?;
    Ok(Some(match data {
        ReplicationCopyData::XLogData {
            wal_start,
            server_time_micros,
            data,
            ..
        } => Frame::WalData {
            start: Lsn::new(wal_start.as_u64()),
            server_time_micros,
            data,
        },
        ReplicationCopyData::KeepAlive {
            wal_end,
            server_time_micros,
            reply_requested,
        } => Frame::KeepAlive {
            wal_end: Lsn::new(wal_end.as_u64()),
            server_time_micros,
            reply_requested,
        },
    }))
}

/// From server 18 on a publication that does not exist at the current position is only a warning
/// (55000, "skipped loading publication"), and its rows are left out in silence. Here it is the
/// error that it was before, or rows would be lost.
fn notice(notice: &ServerError) -> Result<Option<Frame>, PgError> {
    if notice.severity == "WARNING" && notice.code.as_str() == "55000" {
        return Err(notice.clone().into());
    }
    tracing::debug!(%notice, "notice from the walsender");
    Ok(None)
}
