//! Cuts a history that breaks a law down to the shortest that still breaks it.
//!
//! A history is the list of its decisions that are not 0, in their order ([`Tape`]). Taking one out
//! takes a commit or a fault out of the history, or makes a delay short. So the shortest history is
//! looked for by taking out ever smaller runs of decisions (Zeller's delta debugging) as long as
//! the same law breaks, until none can go; then each number that is left is made as small as it
//! can be. A decision that did not come up in a replay is forgotten at once.

use std::time::{Duration, Instant};

use crate::law::{Law, Violation};
use crate::rng::Rng;
use crate::tape::Tape;
use crate::{Ending, History, Manner};

/// Most steps of a story that are shown from its beginning, and from its end.
const SHOWN_STEPS: usize = 200;

/// Longest time that the search may take; what was found by then counts.
const PATIENCE: Duration = Duration::from_secs(120);

/// A history that breaks a law, and how it was found.
#[derive(Debug)]
pub(crate) struct Shrunk {
    pub(crate) tape: Tape,
    pub(crate) violation: Violation,
    manner: Manner,
    /// Decisions and steps of the history in the beginning.
    decisions_before: usize,
    steps_before: u64,
    steps: u64,
    replays: u64,
}

impl Shrunk {
    /// The shortest history with the fault of this seed's.
    pub(crate) fn new(seed: u64, manner: Manner) -> Self {
        let history = History::of(Rng::noting(seed), manner);
        let Ending::Broken(violation) = history.ending else {
            panic!("seed {seed} breaks a law at times only: chance from elsewhere got in");
        };
        let mut search = Search {
            best: Self {
                decisions_before: history.tape.len(),
                tape: history.tape,
                violation,
                manner,
                steps_before: history.steps,
                steps: history.steps,
                replays: 0,
            },
            until: Instant::now() + PATIENCE,
        };
        // Smaller numbers may let more decisions go.
        while search.take_out() | search.make_small() {}
        search.best
    }

    /// What to tell people: the story, the law, and how to see it again.
    pub(crate) fn report(&self) -> String {
        let manner = Manner {
            with_story: true,
            ..self.manner
        };
        let again = History::of(Rng::replaying(&self.tape), manner);
        format!(
            "The shortest history that was found ({} decisions and {} steps of {} and {}, after {} \
             replays):\n{}\nBroken: {}\n\nTo see it again:\n\
             POSTRIDER_SIM_REPLAY='{}'",
            self.tape.len(),
            self.steps,
            self.decisions_before,
            self.steps_before,
            self.replays,
            excerpt(&again.story),
            self.violation,
            self.tape,
        )
    }
}

/// The story, without its middle if it is long: a history that makes no progress repeats itself.
fn excerpt(story: &[String]) -> String {
    let (begin, end) = (
        SHOWN_STEPS.min(story.len()),
        story.len().saturating_sub(SHOWN_STEPS),
    );
    if end <= begin {
        return story.join("\n");
    }
    format!(
        "{}\n... {} more ...\n{}",
        story[..begin].join("\n"),
        end - begin,
        story[end..].join("\n")
    )
}

struct Search {
    best: Shrunk,
    until: Instant,
}

impl Search {
    /// Whether the same law breaks with these decisions; then they are the best so far.
    fn holds(&mut self, tape: &Tape) -> bool {
        self.best.replays += 1;
        let history = History::of(Rng::replaying(tape), self.best.manner);
        let Ending::Broken(violation) = history.ending else {
            return false;
        };
        let better =
            (history.tape.len(), history.tape.sum()) < (self.best.tape.len(), self.best.tape.sum());
        if !violation.is_like(&self.best.violation) || !better {
            return false;
        }
        self.best.tape = history.tape;
        self.best.steps = history.steps;
        self.best.violation = violation;
        true
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Takes out decisions until none can go. Returns whether any went.
    fn take_out(&mut self) -> bool {
        let before = self.best.tape.len();
        let mut size = before.div_ceil(2);
        while size > 0 {
            let count = self.best.tape.len();
            // From the end: what comes late depends on what came early, seldom the other way.
            let mut end = count;
            while end > 0 && !self.is_late() {
                let begin = end.saturating_sub(size);
                if self.holds(&self.best.tape.without(begin..end)) {
                    end = begin.min(self.best.tape.len());
                } else {
                    end = begin;
                }
            }
            let shorter = self.best.tape.len() < count;
            size = if size == 1 && shorter && !self.is_late() {
                1
            } else {
                size / 2
            };
        }
        self.best.tape.len() < before
    }

    /// Makes each number as small as it can be, by halving the distance to it. Returns whether a
    /// decision went with that.
    fn make_small(&mut self) -> bool {
        let before = self.best.tape.len();
        let mut index = 0;
        while index < self.best.tape.len() && !self.is_late() {
            let (decision, value) = self.best.tape.decisions()[index];
            let (mut too_small, mut works) = (0, value);
            while works - too_small > 1 && !self.is_late() {
                let middle = too_small + (works - too_small) / 2;
                if self.holds(&self.best.tape.with(index, middle)) {
                    works = middle;
                } else {
                    too_small = middle;
                }
                if self.best.tape.decisions().get(index).map(|(name, _)| *name) != Some(decision) {
                    break;
                }
            }
            index += 1;
        }
        self.best.tape.len() < before
    }
}

#[test]
fn a_history_is_cut_down_to_its_cause_and_replays_from_its_printed_form() {
    let manner = Manner {
        with_story: false,
        stream_lies: true,
    };
    let breaks = |seed: &u64| {
        let history = History::of(Rng::from_seed(*seed), manner);
        matches!(history.ending, Ending::Broken(_)) && history.steps > 200
    };
    let seed = (1..1_000).find(breaks).expect("a lie is found out");
    let shrunk = Shrunk::new(seed, manner);
    println!("{}", shrunk.report());
    // One commit at any time, with three rows.
    assert_eq!(shrunk.violation.law, Law::NothingConfirmedEarly);
    assert!(shrunk.tape.len() <= 3, "{}", shrunk.report());

    let printed: Tape = shrunk.tape.to_string().parse().unwrap();
    let again = History::of(Rng::replaying(&printed), manner);
    assert_eq!(again.tape, shrunk.tape);
    assert!(matches!(again.ending, Ending::Broken(violation) if violation == shrunk.violation));
}
