//! Which row may be sent next.

use std::collections::{HashMap, VecDeque};

use super::window::{RowState, Window, WindowRow};
use crate::broker::{Token, Writers};

/// The order in which the rows of an epoch go out.
#[derive(Debug)]
pub(crate) enum SendOrder {
    /// Exclusive stream: strictly one after the other, each chained to the one before it.
    Chain {
        /// The next row to look at.
        next: Token,
        /// Sequence that the next row must find as the stream's last.
        last_sequence: u64,
    },
    /// Shared stream: at most one un-acked row per ordering key, many keys at a time.
    PerKey {
        /// Unsettled rows of each key in commit order. Only the first of a key may be in flight.
        queues: HashMap<u64, VecDeque<Token>>,
        /// First rows of their keys that wait to be sent.
        ready: VecDeque<Token>,
    },
}

impl SendOrder {
    /// The order for all rows of the window, none of which is in flight.
    pub(crate) fn new(writers: Writers, last_sequence: u64, window: &Window) -> Self {
        match writers {
            Writers::Exclusive => Self::Chain {
                next: window.begin(),
                last_sequence,
            },
            Writers::Shared => {
                let mut order = Self::PerKey {
                    queues: HashMap::new(),
                    ready: VecDeque::new(),
                };
                for (token, row) in window.iter() {
                    if row.state != RowState::Settled {
                        order.added(token, row.message.key);
                    }
                }
                if let Self::PerKey { ready, .. } = &mut order {
                    // On its way to the dead letters already; its key waits for it.
                    let parking = |row: &WindowRow| row.state == RowState::Parking;
                    ready.retain(|token| !window.get(*token).is_some_and(parking));
                }
                order
            }
        }
    }

    /// A row joined the window at its end.
    pub(crate) fn added(&mut self, token: Token, key: u64) {
        if let Self::PerKey { queues, ready } = self {
            let queue = queues.entry(key).or_default();
            if queue.is_empty() {
                ready.push_back(token);
            }
            queue.push_back(token);
        }
    }

    /// The row that may go out now, if any.
    pub(crate) fn peek(&mut self, window: &Window) -> Option<Token> {
        match self {
            Self::Chain { next, .. } => {
                *next = (*next).max(window.begin());
                while window
                    .get(*next)
                    .is_some_and(|row| row.state == RowState::Settled)
                {
                    next.0 += 1;
                }
                let row = window.get(*next)?;
                (row.state == RowState::Waiting).then_some(*next)
            }
            Self::PerKey { ready, .. } => ready.front().copied(),
        }
    }

    /// The row that [`peek`](Self::peek) named went out, to the publisher or to the dead letters.
    pub(crate) fn took(&mut self, token: Token) {
        match self {
            Self::Chain { next, .. } => next.0 = token.0 + 1,
            Self::PerKey { ready, .. } => {
                ready.pop_front();
            }
        }
    }

    /// A row that went out has to go out again, as the first of its key.
    pub(crate) fn give_back(&mut self, token: Token) {
        match self {
            Self::Chain { next, .. } => *next = (*next).min(token),
            Self::PerKey { ready, .. } => ready.push_front(token),
        }
    }

    /// In a chain: a row that went out stored nothing, so the row behind it takes its place.
    pub(crate) fn rewind(&mut self, token: Token, sequence: u64) {
        if let Self::Chain {
            next,
            last_sequence,
        } = self
        {
            *next = Token(token.0 + 1);
            *last_sequence = sequence;
        }
    }

    /// In a chain: a row that went out alone stored nothing and goes out again.
    pub(crate) fn repeat(&mut self, token: Token, sequence: u64) {
        if let Self::Chain {
            next,
            last_sequence,
        } = self
        {
            *next = token;
            *last_sequence = sequence;
        }
    }

    /// A row is settled; the next of its key becomes ready.
    pub(crate) fn settled(&mut self, token: Token, key: u64) {
        let Self::PerKey { queues, ready } = self else {
            return;
        };
        let Some(queue) = queues.get_mut(&key) else {
            return;
        };
        assert!(
            queue.front() == Some(&token),
            "only the first row of a key is ever in flight"
        );
        queue.pop_front();
        match queue.front() {
            Some(next) => ready.push_back(*next),
            None => {
                queues.remove(&key);
            }
        }
    }
}
