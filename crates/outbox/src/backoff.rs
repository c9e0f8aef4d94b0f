//! How long to wait before the next attempt.

use std::time::Duration;

/// The first wait after a success.
const FIRST: Duration = Duration::from_millis(200);

/// No wait is longer. Together with [`FIRST`] and doubling, an outage of two minutes costs about
/// a dozen attempts, and the end of an outage is noticed within this time.
const LONGEST: Duration = Duration::from_secs(15);

/// Doubling waits, capped, with jitter.
///
/// The jitter comes from a counter that the caller seeds, so that one seed gives one history.
#[derive(Debug, Clone)]
pub(crate) struct Backoff {
    attempts: u32,
    state: u64,
}

impl Backoff {
    pub(crate) const fn new(seed: u64) -> Self {
        Self {
            attempts: 0,
            state: seed,
        }
    }

    /// Attempts since the last success.
    #[cfg(test)]
    pub(crate) const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The wait before the next attempt: between three quarters and the whole of the doubled wait.
    pub(crate) fn next(&mut self) -> Duration {
        let doubled = FIRST
            .saturating_mul(1 << self.attempts.min(16))
            .min(LONGEST);
        self.attempts = self.attempts.saturating_add(1);
        let quarter = doubled / 4;
        let quarter_micros = u64::try_from(quarter.as_micros())
            .unwrap_or(u64::MAX)
            .max(1);
        doubled - Duration::from_micros(self.draw() % quarter_micros)
    }

    /// The attempt succeeded.
    pub(crate) const fn reset(&mut self) {
        self.attempts = 0;
    }

    /// The next number of the sequence "splitmix64".
    const fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_of_two_minutes_costs_5_to_25_attempts() {
        for seed in 0..1_000 {
            let mut backoff = Backoff::new(seed);
            let mut waited = Duration::ZERO;
            while waited < Duration::from_secs(120) {
                let wait = backoff.next();
                assert!(wait <= LONGEST && wait >= FIRST * 3 / 4, "{wait:?}");
                waited += wait;
            }
            assert!(
                (5..=25).contains(&backoff.attempts()),
                "{}",
                backoff.attempts()
            );
        }
    }

    #[test]
    fn a_success_starts_over() {
        let mut backoff = Backoff::new(7);
        for _ in 0..20 {
            backoff.next();
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
