//! Finding the last message before the orphans in an exclusive stream.
//!
//! The stream holds a prefix of the log, then rows of a history that this server left. Whether a
//! message belongs to those is monotone in its sequence, so halving finds the boundary in one
//! question per bit. Sequences without a message are no obstacle: the question is for the first
//! message at or behind a sequence. After several promotions in a row there may be several such
//! runs with rows of this server between them; the newest is looked for, and if the message before
//! it is lost too, the run before that.

use crate::broker::{SeenMessage, StoredRow};
use crate::source::Standing;

use super::survey::{History, Lost};

/// Questions after which the search is given up. Halving 2^64 sequences takes 64; the rest is for
/// strangers' messages and for more than one promotion.
const MAX_QUESTIONS: u32 = 512;

/// The search for the boundary.
#[derive(Debug)]
pub(crate) struct Bisection {
    /// What the messages behind the boundary are.
    run: Standing,
    /// Sequences below this one come before the boundary.
    low: u64,
    /// From this sequence on there is nothing, or messages behind the boundary.
    high: u64,
    /// The half that is being looked at begins here.
    middle: u64,
    /// The sequence asked for.
    asked: u64,
    /// The last message that is known to stand before the boundary.
    before: Option<StoredRow>,
    questions: u32,
    /// All that is lost, from the first run looked at.
    pub(crate) lost: Lost,
}

/// How the search goes on.
#[derive(Debug)]
pub(crate) enum Step {
    /// The first message at or behind this sequence is wanted.
    Ask(u64),
    /// The last message of this server's history, if there is one.
    Done(Option<StoredRow>),
    /// Too many questions.
    GivenUp,
}

impl Bisection {
    /// Begins below messages that are lost.
    pub(crate) fn new(lost: Lost) -> Self {
        Self {
            run: lost.standing,
            low: 1,
            high: lost.first_sequence,
            middle: 0,
            asked: 0,
            before: None,
            questions: 0,
            lost,
        }
    }

    /// The next question.
    pub(crate) fn step(&mut self, history: History<'_>) -> Step {
        while self.low >= self.high {
            match self.before.take() {
                None => return Step::Done(None),
                Some(row) if history.standing(&row) == Standing::Held => {
                    return Step::Done(Some(row));
                }
                Some(row) => {
                    self.run = history.standing(&row);
                    self.low = 1;
                    self.high = row.sequence;
                    self.lose(&row);
                }
            }
        }
        if self.questions >= MAX_QUESTIONS {
            return Step::GivenUp;
        }
        self.questions += 1;
        self.middle = self.low + (self.high - self.low) / 2;
        self.asked = self.middle;
        Step::Ask(self.asked)
    }

    /// The answer, `None` if no message stands at or behind the sequence asked for.
    pub(crate) fn answered(&mut self, history: History<'_>, found: Option<SeenMessage>) -> Step {
        let found = found.filter(|message| message.sequence < self.high);
        let Some(message) = found else {
            self.high = self.middle;
            return self.step(history);
        };
        let row = message.row.filter(|row| row.resume_id().is_some());
        match row.map(|row| (history.standing(&row), row)) {
            None | Some((Standing::OtherLog, _)) => {
                // It says nothing; the one behind it may.
                self.questions += 1;
                if self.questions >= MAX_QUESTIONS {
                    return Step::GivenUp;
                }
                self.asked = message.sequence + 1;
                Step::Ask(self.asked)
            }
            Some((standing, row)) if standing == self.run => {
                self.high = self.middle;
                self.lose(&row);
                self.step(history)
            }
            Some((_, row)) => {
                self.low = row.sequence + 1;
                self.before = Some(row);
                self.step(history)
            }
        }
    }

    fn lose(&mut self, row: &StoredRow) {
        let lost = &mut self.lost;
        if row.sequence < lost.first_sequence {
            lost.count += lost.first_sequence - row.sequence;
            lost.first_sequence = row.sequence;
            lost.timeline = row.source.timeline;
        }
        lost.lowest = lost.lowest.min(row.position);
        lost.highest = lost.highest.max(row.position);
    }
}
