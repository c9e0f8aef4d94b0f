//! A point in time as PostgreSQL sends it.

/// Microseconds from 1970-01-01 to 2000-01-01, both UTC: 10,957 days.
const POSTGRES_EPOCH_UNIX_MICROS: i64 = 10_957 * 86_400 * 1_000_000;

/// A point in time, in microseconds since 2000-01-01 00:00 UTC (PostgreSQL's `TimestampTz`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The time that is `micros` microseconds after 2000-01-01 00:00 UTC.
    #[must_use]
    pub const fn from_postgres_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since 2000-01-01 00:00 UTC, negative before.
    #[must_use]
    pub const fn as_postgres_micros(self) -> i64 {
        self.0
    }

    /// Microseconds since 1970-01-01 00:00 UTC, negative before. Times that no `i64` can hold
    /// (they lie 290,000 years ahead, no clock gives them) become the last one it can.
    #[must_use]
    pub const fn as_unix_micros(self) -> i64 {
        self.0.saturating_add(POSTGRES_EPOCH_UNIX_MICROS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_agree() {
        assert_eq!(Timestamp::default().as_unix_micros(), 946_684_800_000_000);
        let year_1970 = Timestamp::from_postgres_micros(-946_684_800_000_000);
        assert_eq!(year_1970.as_unix_micros(), 0);
        assert_eq!(
            Timestamp::from_postgres_micros(i64::MAX).as_unix_micros(),
            i64::MAX
        );
    }
}
