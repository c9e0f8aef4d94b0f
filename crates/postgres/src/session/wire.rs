//! Messages in, messages out, over one buffer each way.
//!
//! Nothing here waits for an exact number of bytes, so every read may be dropped at any await and
//! taken up again. A message is cut out of the read buffer without being copied; whoever keeps its
//! `Bytes` keeps the whole buffer (at most [`READ_BUFFER_BYTES`], or one large message) alive.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};

use crate::connect::PgStream;
use crate::error::PgError;

/// Size of the read buffer. A walsender sends one message per system call, some hundred bytes each;
/// this takes in what arrives while a batch is worked on.
const READ_BUFFER_BYTES: usize = 128 * 1024;

/// With less room than this a new buffer is taken instead of reading a few bytes.
const MIN_READ_BYTES: usize = 16 * 1024;

/// A buffer that one large message has made larger than this is given back after it.
const MAX_KEPT_BUFFER_BYTES: usize = 1024 * 1024;

/// `Terminate`.
const TERMINATE: [u8; 5] = [b'X', 0, 0, 0, 4];

/// Tag and length in front of every message.
const HEADER_BYTES: usize = 5;

/// Largest message accepted in a session's beginning and in answers to commands.
pub(super) const MAX_COMMAND_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// Largest message accepted while streaming. PostgreSQL cannot build a longer one: its own limit
/// for a string buffer is one byte less (`MaxAllocSize`).
pub(super) const MAX_STREAM_MESSAGE_BYTES: usize = 1024 * 1024 * 1024;

/// One message of the server: its tag and what follows the length.
pub(super) struct Message {
    pub(super) tag: u8,
    pub(super) body: Bytes,
}

/// A stream with its two buffers.
pub(super) struct Wire {
    stream: PgStream,
    input: BytesMut,
    output: Vec<u8>,
    /// How much of `output` the socket has taken.
    written: usize,
    /// Where in `output` the newest status update begins, while none of it has been written.
    replaceable: Option<usize>,
    /// Something was written since the last flush.
    unflushed: bool,
}

impl Wire {
    pub(super) fn new(stream: PgStream) -> Self {
        Self {
            stream,
            input: BytesMut::with_capacity(READ_BUFFER_BYTES),
            output: Vec::new(),
            written: 0,
            replaceable: None,
            unflushed: false,
        }
    }

    /// Cuts the next whole message out of the buffer; `None` if it has not fully arrived.
    pub(super) fn take_message(&mut self, max_bytes: usize) -> Result<Option<Message>, PgError> {
        let Some(total) = self.announced(max_bytes)? else {
            return Ok(None);
        };
        if self.input.len() < total {
            return Ok(None);
        }
        let mut body = self.input.split_to(total);
        let tag = body.get_u8();
        body.advance(HEADER_BYTES - 1);
        Ok(Some(Message {
            tag,
            body: body.freeze(),
        }))
    }

    /// Length of the message at the front of the buffer, header included.
    fn announced(&self, max_bytes: usize) -> Result<Option<usize>, PgError> {
        let Some((_, rest)) = self.input.split_first() else {
            return Ok(None);
        };
        let Some(length) = rest.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        if !(4..=max_bytes).contains(&length) {
            return Err(PgError::protocol(format!(
                "a message announces {length} bytes; between 4 and {max_bytes} are possible"
            )));
        }
        Ok(Some(length + 1))
    }

    /// Reads once. `Closed` at the end of the stream.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PgError>> {
        self.make_room();
        // This future keeps nothing of its own between polls, so a fresh one each time is the same.
        let read = pin!(self.stream.read_buf(&mut self.input));
        match ready!(read.poll(cx)) {
            Ok(0) => Poll::Ready(Err(PgError::Closed)),
            Ok(_) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(PgError::Io(error))),
        }
    }

    /// Hands waiting bytes to the socket, as many as it takes. Ready when all are gone.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), PgError>> {
        while let Some(rest) = self
            .output
            .get(self.written..)
            .filter(|rest| !rest.is_empty())
        {
            let sent =
                ready!(Pin::new(&mut self.stream).poll_write(cx, rest)).map_err(PgError::Io)?;
            if sent == 0 {
                return Poll::Ready(Err(PgError::Io(io::ErrorKind::WriteZero.into())));
            }
            self.written += sent;
            self.unflushed = true;
            if self.replaceable.is_some_and(|start| self.written > start) {
                self.replaceable = None;
            }
        }
        self.output.clear();
        self.written = 0;
        self.replaceable = None;
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx)).map_err(PgError::Io)?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Appends bytes to what waits to be sent.
    pub(super) fn queue(&mut self, bytes: &[u8]) {
        self.replaceable = None;
        self.output.extend_from_slice(bytes);
    }

    /// Appends a status update, in place of an older one that has not begun to leave: with a full
    /// socket at most one partly sent and one whole update wait.
    pub(super) fn queue_status(&mut self, bytes: &[u8]) {
        if let Some(start) = self.replaceable {
            self.output.truncate(start);
        }
        self.replaceable = Some(self.output.len());
        self.output.extend_from_slice(bytes);
    }

    /// Waits for the next message, sending what waits to be sent meanwhile. May be dropped at any
    /// time without loss.
    pub(super) async fn next_message(&mut self, max_bytes: usize) -> Result<Message, PgError> {
        poll_fn(|cx| self.poll_message(cx, max_bytes)).await
    }

    pub(super) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
        max_bytes: usize,
    ) -> Poll<Result<Message, PgError>> {
        if let Poll::Ready(Err(error)) = self.poll_send(cx) {
            // A server that ended the session said why before it closed: read that first.
            return match self.take_message(max_bytes) {
                Ok(Some(message)) => Poll::Ready(Ok(message)),
                _ => match self.poll_fill(cx) {
                    Poll::Ready(Ok(())) => Poll::Ready(
                        self.take_message(max_bytes)
                            .and_then(|message| message.ok_or(error)),
                    ),
                    _ => Poll::Ready(Err(error)),
                },
            };
        }
        loop {
            if let Some(message) = self.take_message(max_bytes)? {
                return Poll::Ready(Ok(message));
            }
            ready!(self.poll_fill(cx))?;
        }
    }

    /// Sends what waits to be sent, to the last byte.
    pub(super) async fn flush(&mut self) -> Result<(), PgError> {
        poll_fn(|cx| self.poll_send(cx)).await
    }

    /// Sends what the socket takes at once and leaves the rest for later reads to send.
    pub(super) async fn flush_without_waiting(&mut self) -> Result<(), PgError> {
        poll_fn(|cx| match self.poll_send(cx) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => Poll::Ready(Ok(())),
        })
        .await
    }

    /// Sends `Terminate` and closes our direction. How the server takes it is of no interest.
    pub(super) async fn say_farewell(&mut self) {
        self.queue(&TERMINATE);
        if self.flush().await.is_ok() {
            let _ = poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await;
        }
    }

    /// Room for the next read. Grows with what has arrived, not with what a length field claims.
    fn make_room(&mut self) {
        let held = self.input.len();
        let shrink = held < MIN_READ_BYTES && self.input.capacity() > MAX_KEPT_BUFFER_BYTES;
        if !shrink && self.input.capacity() - held >= MIN_READ_BYTES {
            return;
        }
        let wanted = READ_BUFFER_BYTES.max(held);
        if !shrink && self.input.try_reclaim(wanted) {
            return;
        }
        let mut fresh = BytesMut::with_capacity(held + wanted);
        fresh.extend_from_slice(&self.input);
        self.input = fresh;
    }
}
