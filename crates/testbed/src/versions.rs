//! Which server versions a test run is about.

use anyhow::{Context, Result, bail};

use crate::artifacts::{NatsVersion, PgVersion};

/// Names the PostgreSQL versions, comma-separated majors: `15,18`.
const POSTGRES_VARIABLE: &str = "POSTRIDER_TEST_PG";
/// Names the nats-server versions, comma-separated: `2.10,newest`.
const NATS_VARIABLE: &str = "POSTRIDER_TEST_NATS";

/// The server versions that a test should be run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionsUnderTest {
    /// PostgreSQL versions, in the order given; never empty.
    pub postgres: Vec<PgVersion>,
    /// nats-server versions, in the order given; never empty.
    pub nats: Vec<NatsVersion>,
}

/// Reads `POSTRIDER_TEST_PG` (such as `15,18`) and `POSTRIDER_TEST_NATS` (such as `2.10,newest`).
///
/// Where a variable is absent or empty: PostgreSQL 18, the newest nats-server.
///
/// # Errors
/// When a variable names a version that the testbed does not know.
pub fn versions_under_test() -> Result<VersionsUnderTest> {
    let postgres = std::env::var(POSTGRES_VARIABLE).unwrap_or_default();
    let nats = std::env::var(NATS_VARIABLE).unwrap_or_default();
    Ok(VersionsUnderTest {
        postgres: parse_list(&postgres, &PgVersion::ALL, PgVersion::V18)
            .context(POSTGRES_VARIABLE)?,
        nats: parse_list(&nats, &NatsVersion::ALL, NatsVersion::Newest).context(NATS_VARIABLE)?,
    })
}

fn parse_list<T: Copy + ToString>(text: &str, known: &[T], default: T) -> Result<Vec<T>> {
    let words: Vec<&str> = text
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .collect();
    if words.is_empty() {
        return Ok(vec![default]);
    }
    let find = |word: &str| -> Result<T> {
        if let Some(found) = known.iter().find(|version| version.to_string() == word) {
            return Ok(*found);
        }
        let names: Vec<String> = known.iter().map(ToString::to_string).collect();
        bail!("no version {word:?}; known are {}", names.join(", "));
    };
    words.into_iter().map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_versions() {
        let parse = |text| parse_list(text, &PgVersion::ALL, PgVersion::V18);
        assert_eq!(parse("").unwrap(), [PgVersion::V18]);
        assert_eq!(parse("15, 18,").unwrap(), [PgVersion::V15, PgVersion::V18]);
        assert!(
            parse("15,9.6")
                .unwrap_err()
                .to_string()
                .contains("14, 15, 16, 17, 18")
        );
        let nats = parse_list("2.10,newest", &NatsVersion::ALL, NatsVersion::Newest).unwrap();
        assert_eq!(nats, [NatsVersion::V2_10, NatsVersion::Newest]);
    }
}
