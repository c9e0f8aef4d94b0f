//! Faults of flags, environment and configuration file: collected, then shown all at once.

use std::fmt;
use std::path::PathBuf;

/// Longest piece of a user's value that a message repeats, in characters. Enough to recognise it.
const QUOTED_MAX_CHARS: usize = 60;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// A flag of the command line, with its dashes.
    Flag(String),
    /// An environment variable.
    Variable(String),
    /// The configuration file.
    File {
        /// Its path as given.
        path: PathBuf,
        /// Line, from 1, where one can be named.
        line: Option<usize>,
    },
    /// Nowhere: the value is missing or a default.
    Nowhere,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::File {
                path,
                line: Some(line),
            } => write!(f, "{}:{line}", path.display()),
            Self::File { path, line: None } => write!(f, "{}", path.display()),
            Self::Nowhere => Ok(()),
        }
    }
}

/// One fault: where, which key, what is wrong, what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where the value came from.
    pub place: Place,
    /// Dotted key path (`nats.stream`, `outbox[2].table`); empty where the place says it all.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// What is wanted; empty if the problem says it.
    pub help: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A flag's or variable's name says the key already.
        let names_key = matches!(self.place, Place::File { .. } | Place::Nowhere);
        if self.place != Place::Nowhere {
            write!(f, "{}: ", self.place)?;
        }
        if names_key && !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.problem)?;
        if !self.help.is_empty() {
            write!(f, "\n    help: {}", self.help)?;
        }
        Ok(())
    }
}

/// All faults of one start, sorted by place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Sorts the faults; `None` if there are none.
    pub fn from_list(mut list: Vec<Fault>) -> Option<Self> {
        if list.is_empty() {
            return None;
        }
        list.sort_by(|a, b| a.place.cmp(&b.place));
        list.dedup();
        Some(Self(list))
    }

    /// A single fault.
    pub fn one(fault: Fault) -> Self {
        Self(vec![fault])
    }

    /// The faults.
    pub fn list(&self) -> &[Fault] {
        &self.0
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("1 fault in the configuration; nothing was started")?,
            count => write!(
                f,
                "{count} faults in the configuration; nothing was started"
            )?,
        }
        for fault in &self.0 {
            write!(f, "\n  {fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// What a check finds wrong with a value, before it is known where the value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// What is wrong.
    pub problem: String,
    /// What is wanted.
    pub help: String,
}

impl Wrong {
    /// What is wrong, and what is wanted.
    pub fn new(problem: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            help: help.into(),
        }
    }

    /// With place and key.
    pub fn at(self, place: Place, key: impl Into<String>) -> Fault {
        Fault {
            place,
            key: key.into(),
            problem: self.problem,
            help: self.help,
        }
    }
}

/// A user's value in quotes, control characters escaped, cut where it is long.
pub fn quote(value: &str) -> String {
    let mut cut: String = value.chars().take(QUOTED_MAX_CHARS).collect();
    if cut.len() < value.len() {
        cut.push('…');
    }
    format!("{cut:?}")
}

/// The known name that was probably meant.
pub fn suggest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters may be wrong: "tabel" finds "table", "x" finds nothing.
    let most = (given.chars().count() / 3).clamp(1, 4);
    known
        .into_iter()
        .map(|name| (distance(&given.to_lowercase(), &name.to_lowercase()), name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}

/// Edit distance with neighbouring letters swapped counted as one (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    // Names are short; anything longer than this is no slip of the pen.
    const MOST_CHARS: usize = 80;
    if a.len() > MOST_CHARS || b.len() > MOST_CHARS {
        return usize::MAX;
    }
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, cb) in b.iter().enumerate() {
            let at = |line: &[usize], index: usize| line.get(index).copied().unwrap_or(usize::MAX);
            let swap = at(&last, j).saturating_add(usize::from(ca != cb));
            let mut best = swap
                .min(at(&last, j + 1).saturating_add(1))
                .min(at(&row, j).saturating_add(1));
            let crossed = i > 0 && j > 0 && a.get(i - 1) == Some(cb) && b.get(j - 1) == Some(ca);
            if crossed {
                best = best.min(at(&before_last, j - 1).saturating_add(1));
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_its_name() {
        let known = ["table", "subject", "stream", "id", "max_in_flight_bytes"];
        assert_eq!(suggest("tabel", known), Some("table"));
        assert_eq!(suggest("Stream", known), Some("stream"));
        assert_eq!(
            suggest("max_inflight_byte", known),
            Some("max_in_flight_bytes")
        );
        assert_eq!(suggest("colour", known), None);
        assert_eq!(suggest(&"x".repeat(100_000), known), None);
        assert_eq!(distance("abc", "acb"), 1);
        assert_eq!(distance("", "abc"), 3);
    }

    #[test]
    fn faults_come_sorted_and_say_where() {
        let file = |line| Place::File {
            path: "p.toml".into(),
            line: Some(line),
        };
        let wrong = |text: &str| Wrong::new(text, "");
        let faults = Faults::from_list(vec![
            wrong("not given").at(Place::Nowhere, "postgres.url"),
            wrong("c").at(file(9), "nats.stream"),
            wrong("b").at(file(2), "postgres.slot"),
            Wrong::new("a", "do this").at(Place::Flag("--postgres-slot".into()), "postgres.slot"),
        ])
        .unwrap();
        assert_eq!(
            faults.to_string(),
            "4 faults in the configuration; nothing was started\n  \
             --postgres-slot: a\n    help: do this\n  \
             p.toml:2: postgres.slot: b\n  \
             p.toml:9: nats.stream: c\n  \
             postgres.url: not given"
        );
        assert_eq!(Faults::from_list(vec![]), None);
    }

    #[test]
    fn quotes_are_short_and_harmless() {
        assert_eq!(quote("a\n\u{1b}[31m"), r#""a\n\u{1b}[31m""#);
        assert!(quote(&"é".repeat(1000)).chars().count() < 70);
    }
}
