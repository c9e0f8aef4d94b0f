//! The history file of a timeline, as `TIMELINE_HISTORY` sends it.

use pgoutput::Lsn;

use crate::error::PgError;

/// The end of one timeline: from `switch_lsn` on, the history went on without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineFork {
    /// The timeline that was left.
    pub timeline: u32,
    /// Where it was left.
    pub switch_lsn: Lsn,
}

impl TimelineFork {
    /// Reads the content of a history file.
    ///
    /// # Errors
    /// If a line of it is none of a history.
    pub fn parse_history(content: &[u8]) -> Result<Vec<Self>, PgError> {
        parse(content)
    }
}

/// Reads `TIMELINE<tab>LSN<tab>reason` lines; empty lines and `#` comments are skipped
/// (PostgreSQL's `readTimeLineHistory`).
pub(super) fn parse(content: &[u8]) -> Result<Vec<TimelineFork>, PgError> {
    let mut forks: Vec<TimelineFork> = Vec::new();
    for line in content.split(|byte| *byte == b'\n') {
        // The reason may be in any encoding; the two fields before it are ASCII.
        let line = String::from_utf8_lossy(line);
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let mut fields = line.split_ascii_whitespace();
        let fork = fields
            .next()
            .and_then(|timeline| timeline.parse().ok())
            .and_then(|timeline| {
                let switch_lsn = fields.next()?.parse().ok()?;
                Some(TimelineFork {
                    timeline,
                    switch_lsn,
                })
            });
        let Some(fork) = fork else {
            return Err(PgError::protocol("a timeline history line is not readable"));
        };
        if forks
            .last()
            .is_some_and(|last| last.timeline >= fork.timeline)
        {
            return Err(PgError::protocol("a timeline history is out of order"));
        }
        forks.push(fork);
    }
    Ok(forks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forks_are_read_in_their_order() {
        let content = b"1\t0/3000000\tno recovery target specified\n\n# comment\n\
            3\t16/B374D848\tbefore 2026-01-01 00:00:00+00\n";
        let forks = parse(content).unwrap();
        assert_eq!(
            forks,
            [
                TimelineFork {
                    timeline: 1,
                    switch_lsn: Lsn::new(0x300_0000)
                },
                TimelineFork {
                    timeline: 3,
                    switch_lsn: Lsn::new(0x16_B374_D848)
                },
            ]
        );
        assert_eq!(parse(b"").unwrap(), []);
    }

    #[test]
    fn anything_else_is_an_error() {
        for content in [
            "x\t0/1\t",
            "1",
            "1\tnowhere",
            "2\t0/1\n1\t0/2",
            "1\t0/1\n1\t0/2",
        ] {
            assert!(parse(content.as_bytes()).is_err(), "{content:?}");
        }
    }
}
