//! The one source of chance. Each of its decisions has a name, so that it can be noted and taken
//! back.
//!
//! A decision is named by its occasion, which is the event during which it is taken, and by its
//! number there. Its value comes from the seed and the name alone: what is decided elsewhere has
//! no influence on it. The value 0 is always the quiet one, no fault, no event, the shortest delay,
//! so a history can be cut down by forgetting decisions ([`crate::shrink`]), and what is left of
//! them replays it.

use std::collections::HashMap;

use crate::tape::{Decision, Occasion, Tape};

/// Where values come from.
#[derive(Debug)]
enum Origin {
    Seed(u64),
    /// What is not in it is 0.
    Tape(HashMap<Decision, u64>),
}

#[derive(Debug)]
pub(crate) struct Rng {
    origin: Origin,
    occasion: Occasion,
    /// Decisions taken and occasions named during this one.
    taken: u32,
    named: u64,
    notes: Option<Vec<(Decision, u64)>>,
}

impl Rng {
    fn new(origin: Origin, notes: Option<Vec<(Decision, u64)>>) -> Self {
        Self {
            origin,
            occasion: Occasion::named("begin", [0; 3]),
            taken: 0,
            named: 0,
            notes,
        }
    }

    /// Chance without a memory.
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self::new(Origin::Seed(seed), None)
    }

    /// The same decisions, noted.
    pub(crate) fn noting(seed: u64) -> Self {
        Self::new(Origin::Seed(seed), Some(Vec::new()))
    }

    /// The decisions of a tape; those that come up are noted.
    pub(crate) fn replaying(tape: &Tape) -> Self {
        let values = tape.decisions().iter().copied().collect();
        Self::new(Origin::Tape(values), Some(Vec::new()))
    }

    /// What was decided and is not 0, in its order.
    pub(crate) fn take_notes(&mut self) -> Tape {
        Tape::new(self.notes.take().unwrap_or_default())
    }

    /// From now on decisions belong to this occasion.
    pub(crate) fn enter(&mut self, occasion: Occasion) {
        self.occasion = occasion;
        self.taken = 0;
        self.named = 0;
    }

    /// Names the occasion of an event that this one causes.
    pub(crate) fn next_occasion(&mut self) -> Occasion {
        self.named += 1;
        self.occasion.child(self.named)
    }

    fn decide(&mut self, end: u64, from_seed: impl FnOnce(u64) -> u64) -> u64 {
        let decision = Decision {
            occasion: self.occasion,
            number: self.taken,
        };
        self.taken += 1;
        let value = match &self.origin {
            Origin::Seed(seed) => from_seed(decision.value(*seed)),
            Origin::Tape(tape) => tape.get(&decision).map_or(0, |value| (*value).min(end - 1)),
        };
        if value != 0
            && let Some(notes) = &mut self.notes
        {
            notes.push((decision, value));
        }
        value
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.decide(u64::MAX, |value| value)
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        let end = end.max(1);
        self.decide(end, |value| value % end)
    }

    /// A number from `begin` to below `end`.
    pub(crate) fn between(&mut self, begin: u64, end: u64) -> u64 {
        begin + self.below(end - begin)
    }

    /// True `permille` times of 1000. A tape may say so too where `permille` is 0.
    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        self.decide(2, |value| u64::from(value % 1000 < permille)) == 1
    }

    /// Whether something that a seed plans does happen: a decision that a tape may forget.
    pub(crate) fn happens(&mut self, planned: bool) -> bool {
        self.decide(2, |_| u64::from(planned)) == 1
    }
}
