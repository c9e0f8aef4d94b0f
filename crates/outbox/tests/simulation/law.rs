//! What a history may not break.

use std::fmt;

/// What every history must keep: the laws of the ledger, and what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Law {
    ConfirmedInOrder,
    NothingConfirmedEarly,
    InFlightIsBounded,
    NoEarlyRetry,
    StatusNeverStops,
    OrderPerKey,
    NothingLost,
    NothingInvented,
    NothingTwice,
    ParkedForAReason,
    Progress,
    StopsInTime,
    /// The machine itself found that it went wrong.
    OwnAssertions,
    /// No law of the machine: the simulator is at fault.
    Simulator,
}

impl Law {
    const fn text(self) -> &'static str {
        match self {
            Self::ConfirmedInOrder => {
                "law 1: confirmed <= settled <= received in this session, and never goes back"
            }
            Self::NothingConfirmedEarly => {
                "laws 2 and 3: nothing is confirmed before it and all before it are stored or \
                 parked"
            }
            Self::InFlightIsBounded => "law 4: what is in flight is bounded",
            Self::NoEarlyRetry => {
                "law 5: a row is sent again when nothing behind it is without an answer"
            }
            Self::StatusNeverStops => "law 4: status updates never stop",
            Self::OrderPerKey => "law 5: rows with one key enter the stream in commit order",
            Self::NothingLost => "guarantee: no row is lost",
            Self::NothingInvented => "guarantee: no message without its row (law 7: its own id)",
            Self::NothingTwice => "guarantee: no row is stored twice",
            Self::ParkedForAReason => "guarantee: only poison is parked",
            Self::Progress => "guarantee: progress once the faults stop",
            Self::StopsInTime => "guarantee: a streamer that is asked to stop stops in time",
            Self::OwnAssertions => "an assertion of the machine",
            Self::Simulator => "the simulator's own rules",
        }
    }

    /// That it was broken, and how.
    pub(crate) fn broken(self, detail: impl Into<String>) -> Violation {
        let detail = detail.into();
        Violation { law: self, detail }
    }
}

/// A law was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) law: Law,
    pub(crate) detail: String,
}

impl Violation {
    /// Whether this is the same fault as another one, in a history that may be shorter: the same
    /// law, and for an assertion the same place in the code.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let place = |violation: &Self| {
            let detail = violation.detail.rsplit_once(" at crates/");
            detail.map(|(_, place)| place.to_owned())
        };
        self.law == other.law && (self.law != Law::OwnAssertions || place(self) == place(other))
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} ({})", self.detail, self.law.text())
    }
}
