//! The decisions of one history, in a form that can be printed and read again.

use std::fmt;
use std::str::FromStr;

/// An event, as far as chance is concerned. Events of two histories with the same name are the
/// same event. 32 bits are enough: two events with one name share their decisions, no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Occasion(u32);

/// One decision of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Decision {
    pub(crate) occasion: Occasion,
    pub(crate) number: u32,
}

/// Steele, Lea and Flood's "SplitMix": spreads a number over all 64 bits.
const fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

impl Occasion {
    /// The event of a sort that these numbers tell from others of the sort.
    pub(crate) fn named(sort: &'static str, numbers: [u64; 3]) -> Self {
        let name = sort
            .bytes()
            .fold(0, |hash, byte| mix(hash ^ u64::from(byte)));
        Self::of(numbers.into_iter().fold(name, |hash, n| mix(hash ^ n)))
    }

    /// The `number`th event that this one causes.
    pub(crate) fn child(self, number: u64) -> Self {
        Self::of(mix(u64::from(self.0) << 32 | number))
    }

    const fn of(hash: u64) -> Self {
        Self(hash as u32)
    }
}

impl Decision {
    /// What a seed says.
    pub(crate) fn value(self, seed: u64) -> u64 {
        mix(mix(seed) ^ (u64::from(self.occasion.0) << 32 | u64::from(self.number)))
    }
}

/// All decisions of a history that are not 0, in the order in which they were taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tape(Vec<(Decision, u64)>);

impl Tape {
    pub(crate) const fn new(decisions: Vec<(Decision, u64)>) -> Self {
        Self(decisions)
    }

    pub(crate) fn decisions(&self) -> &[(Decision, u64)] {
        &self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The sum of all values: of two tapes of one length, that with the smaller numbers reads
    /// better.
    pub(crate) fn sum(&self) -> u128 {
        self.0.iter().map(|(_, value)| u128::from(*value)).sum()
    }

    /// The tape without the decisions in `range`.
    pub(crate) fn without(&self, range: std::ops::Range<usize>) -> Self {
        let mut decisions = self.0.clone();
        decisions.drain(range);
        Self(decisions)
    }

    /// The tape with another value in one place.
    pub(crate) fn with(&self, index: usize, value: u64) -> Self {
        let mut decisions = self.0.clone();
        decisions[index].1 = value;
        Self(decisions)
    }
}

impl fmt::Display for Tape {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (Decision { occasion, number }, value)) in self.0.iter().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(out, "{space}{:08x}.{number}={value}", occasion.0)?;
        }
        Ok(())
    }
}

impl FromStr for Tape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let word = |word: &str| {
            let (name, value) = word.split_once('=')?;
            let (occasion, number) = name.split_once('.')?;
            let decision = Decision {
                occasion: Occasion(u32::from_str_radix(occasion, 16).ok()?),
                number: number.parse().ok()?,
            };
            Some((decision, value.parse().ok()?))
        };
        text.split_whitespace()
            .map(|text| word(text).ok_or_else(|| format!("{text:?} is not a decision")))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

#[test]
fn a_printed_tape_reads_as_it_was() {
    let decision = |number| Decision {
        occasion: Occasion::named("test", [1, 2, 3]),
        number,
    };
    let tape = Tape::new(vec![(decision(0), 1), (decision(7), u64::MAX)]);
    assert_eq!(tape.to_string().parse(), Ok(tape));
    assert_eq!("".parse(), Ok(Tape::default()));
    assert!("12.3".parse::<Tape>().is_err());
}
