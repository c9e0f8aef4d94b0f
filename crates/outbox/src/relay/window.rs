//! The rows that are received and not yet settled, in commit order.

use std::collections::VecDeque;
use std::time::Instant;

use crate::Position;
use crate::broker::{Headers, Token};
use crate::ledger::TransactionSerial;
use crate::render::Rendered;

/// What a row costs beside the bytes of its message: its entry here, its reference counts and its
/// share of the client's queues. Measured at about 200 bytes; rounded up.
const ROW_OVERHEAD_BYTES: usize = 320;

/// Where a row stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowState {
    /// To be sent, or sent in an epoch that is over.
    Waiting,
    /// Sent in this epoch, without an answer yet. In an exclusive stream its answer must name
    /// `sequence`.
    Sent { sequence: Option<u64> },
    /// JetStream called it a duplicate; what it holds under that id is being read.
    Judged {
        sequence: Option<u64>,
        stored_at: u64,
    },
    /// The stream's tail says that it is stored; what stands at its sequence is being read.
    Verified,
    /// On its way into the dead-letter table.
    Parking,
    /// Stored or parked.
    Settled,
}

#[derive(Debug)]
pub(crate) struct WindowRow {
    pub(crate) position: Position,
    pub(crate) transaction: TransactionSerial,
    pub(crate) table_index: usize,
    pub(crate) message: Rendered,
    pub(crate) state: RowState,
    /// How often it was handed to the publisher.
    pub(crate) attempts: u32,
    /// The sequence that its last attempt in an exclusive stream was to get.
    pub(crate) due_sequence: Option<u64>,
    /// The stream's last sequence as far as it was known when the row was first sent. What stands
    /// behind it was not there before that was known.
    pub(crate) sent_behind: u64,
    cost_bytes: usize,
}

/// Rows by token. Tokens ascend with the positions and are never used again in a process.
#[derive(Debug)]
pub(crate) struct Window {
    rows: VecDeque<WindowRow>,
    front: u64,
    /// Rows that are not settled; settled ones may wait in the queue behind others.
    unsettled: usize,
    bytes: usize,
    /// Position of the newest row that left the front.
    left: Option<Position>,
}

impl Window {
    pub(crate) const fn new() -> Self {
        Self {
            rows: VecDeque::new(),
            front: 0,
            unsettled: 0,
            bytes: 0,
            left: None,
        }
    }

    pub(crate) fn push(
        &mut self,
        position: Position,
        transaction: TransactionSerial,
        table_index: usize,
        message: Rendered,
        pinned_bytes: usize,
    ) -> Token {
        let cost_bytes = ROW_OVERHEAD_BYTES
            + pinned_bytes
            + message.subject.len()
            + message.headers.as_block().len()
            + message.payload.len();
        let token = self.end();
        assert!(
            self.rows.back().is_none_or(|last| last.position < position),
            "rows arrive in the order of their positions"
        );
        self.rows.push_back(WindowRow {
            position,
            transaction,
            table_index,
            message,
            state: RowState::Waiting,
            attempts: 0,
            due_sequence: None,
            sent_behind: 0,
            cost_bytes,
        });
        self.unsettled += 1;
        self.bytes += cost_bytes;
        token
    }

    /// The token of the oldest row.
    pub(crate) const fn begin(&self) -> Token {
        Token(self.front)
    }

    /// The token that the next row will get.
    pub(crate) fn end(&self) -> Token {
        Token(self.front + self.rows.len() as u64)
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) const fn unsettled(&self) -> usize {
        self.unsettled
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(crate) fn get(&self, token: Token) -> Option<&WindowRow> {
        self.rows.get(self.index(token)?)
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut WindowRow> {
        let index = self.index(token)?;
        self.rows.get_mut(index)
    }

    pub(crate) fn front(&self) -> Option<&WindowRow> {
        self.rows.front()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Token, &WindowRow)> {
        (self.front..).map(Token).zip(&self.rows)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Token, &mut WindowRow)> {
        (self.front..).map(Token).zip(&mut self.rows)
    }

    /// The row at exactly this position.
    pub(crate) fn at(&self, position: Position) -> Option<&WindowRow> {
        self.get(self.token_at(position)?)
    }

    /// The token of the row at exactly this position.
    pub(crate) fn token_at(&self, position: Position) -> Option<Token> {
        let index = self
            .rows
            .binary_search_by(|row| row.position.cmp(&position))
            .ok()?;
        Some(Token(self.front + index as u64))
    }

    /// The newest position that was received, settled rows included.
    pub(crate) fn newest(&self) -> Option<Position> {
        self.rows.back().map(|row| row.position).or(self.left)
    }

    /// Rows up to a position are settled without having been here.
    pub(crate) fn passed(&mut self, position: Position) {
        if self.rows.is_empty() {
            self.left = self.left.max(Some(position));
        }
    }

    /// Marks a row settled and lets go of its message. Settled rows at the front leave.
    /// `None` if the row was settled before.
    pub(crate) fn settle(&mut self, token: Token) -> Option<TransactionSerial> {
        let row = self
            .get_mut(token)
            .filter(|row| row.state != RowState::Settled)?;
        row.state = RowState::Settled;
        let (transaction, cost_bytes) = (row.transaction, std::mem::take(&mut row.cost_bytes));
        row.message.subject.clear();
        row.message.headers = Headers::default();
        row.message.payload.clear();
        row.message.dedup_id.clear();
        row.message.row_id.clear();
        self.unsettled -= 1;
        self.bytes -= cost_bytes;
        while let Some(row) = self.rows.front()
            && row.state == RowState::Settled
        {
            self.left = Some(row.position);
            self.rows.pop_front();
            self.front += 1;
        }
        Some(transaction)
    }

    /// Forgets all rows; their tokens stay used.
    pub(crate) fn clear(&mut self) {
        self.front = self.end().0;
        self.rows.clear();
        self.unsettled = 0;
        self.bytes = 0;
        self.left = None;
    }

    /// Every row received in this session up to here is settled.
    pub(crate) const fn settled_up_to(&self) -> Option<Position> {
        self.left
    }

    fn index(&self, token: Token) -> Option<usize> {
        usize::try_from(token.0.checked_sub(self.front)?).ok()
    }
}

/// Rows in flight in the order of their sending, to find the one that waits longest for an answer.
///
/// It holds no more than twice the window: behind the row at its front, which is in the window,
/// stand rows that were in the window when that one was sent, or came in since and cannot have
/// left it. Each is sent once in an epoch, and the next epoch begins without entries.
#[derive(Debug, Default)]
pub(crate) struct SentLog {
    entries: VecDeque<(Token, Instant)>,
}

impl SentLog {
    pub(crate) fn push(&mut self, token: Token, now: Instant) {
        self.entries.push_back((token, now));
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// The row that waits longest for an answer, and since when.
    pub(crate) fn oldest(&mut self, window: &Window) -> Option<(Token, Instant)> {
        while let Some(&(token, sent_at)) = self.entries.front() {
            let in_flight = window
                .get(token)
                .is_some_and(|row| matches!(row.state, RowState::Sent { .. }));
            if in_flight {
                return Some((token, sent_at));
            }
            self.entries.pop_front();
        }
        None
    }
}
