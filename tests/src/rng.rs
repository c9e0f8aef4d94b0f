//! Choices that one printed number repeats.

use std::ops::Range;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A stream of numbers from a seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The numbers of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The numbers of a seed that the clock gives.
    #[must_use]
    pub fn from_clock() -> Self {
        Self::new(clock())
    }

    /// The numbers of `POSTRIDER_TEST_SEED`, or of a new seed. Either is printed with `what`, so
    /// that a failure can be repeated.
    #[must_use]
    pub fn printed(what: &str) -> Self {
        let given = std::env::var("POSTRIDER_TEST_SEED").ok();
        let seed = given
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(clock);
        println!("{what}: POSTRIDER_TEST_SEED={seed}");
        Self::new(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number of the range; its start where the range is empty.
    pub fn pick(&mut self, range: Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start).max(1);
        range.start + self.next_u64() % width
    }

    /// True so many times out of a hundred.
    pub fn percent(&mut self, chance: u64) -> bool {
        self.pick(0..100) < chance
    }

    /// A time of the range, in milliseconds.
    pub fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.pick(range))
    }

    /// Another stream of numbers, so that tasks do not take turns at one.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(1, |since| u64::from(since.subsec_nanos()) + since.as_secs())
}
