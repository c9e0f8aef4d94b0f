//! Exit codes, and the error of a command that carries one.

use std::fmt;

/// How a command ends, as the code that the shell sees. `status` has its own: [`StatusExit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exit {
    /// Done.
    Done,
    /// Failed for a reason that is neither of the others.
    Failed,
    /// Bad flags or configuration. Every fault was listed, nothing was connected to.
    Usage,
    /// A precondition does not hold.
    Refused,
    /// The slot is lost, missing or unusable, or its publication or table is gone.
    SlotLost,
    /// Halted on a poison row (`on_poison = "halt"`).
    Poison,
}

impl Exit {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 6] = [
        Self::Done,
        Self::Failed,
        Self::Usage,
        Self::Refused,
        Self::SlotLost,
        Self::Poison,
    ];

    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::SlotLost => 4,
            Self::Poison => 5,
        }
    }

    /// What it means, for documentation.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Usage => {
                "bad flags or configuration (all faults listed at once, before any connection \
                 unless only the tables can tell)"
            }
            Self::Refused => "a precondition does not hold",
            Self::SlotLost => "slot lost or missing, or its publication or table gone",
            Self::Poison => "halted on a poison row (`on_poison = \"halt\"`)",
        }
    }
}

/// How `status` ends, so that it can serve as a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatusExit {
    /// Everything read, no limit exceeded.
    Fine,
    /// A limit given by a flag is exceeded.
    OverLimit,
    /// The slot is lost or missing.
    SlotLost,
    /// It cannot be told: a server does not answer, or flags or configuration are bad.
    Unknown,
}

impl StatusExit {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Fine, Self::OverLimit, Self::SlotLost, Self::Unknown];

    /// The code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Fine => 0,
            Self::OverLimit => 1,
            Self::SlotLost => 2,
            Self::Unknown => 3,
        }
    }

    /// What it means, for documentation.
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Fine => "fine",
            Self::OverLimit => "over a limit that a flag sets",
            Self::SlotLost => "slot lost or missing",
            Self::Unknown => "cannot tell (no connection, bad flags or configuration)",
        }
    }
}

impl From<Exit> for StatusExit {
    /// What an error of the general kind means to a check: everything but a lost slot is
    /// "cannot tell".
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::Fine,
            Exit::SlotLost => Self::SlotLost,
            Exit::Failed | Exit::Usage | Exit::Refused | Exit::Poison => Self::Unknown,
        }
    }
}

/// Why a command did not do its work: exit code, error with its causes, and the way out.
#[derive(Debug)]
pub struct CommandError {
    exit: Exit,
    error: anyhow::Error,
    help: Option<String>,
}

impl CommandError {
    /// An error that ends the program with this code.
    pub fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self {
            exit,
            error: error.into(),
            help: None,
        }
    }

    /// An error that is only a sentence.
    pub fn message(exit: Exit, message: impl fmt::Display) -> Self {
        Self {
            exit,
            error: anyhow::Error::msg(message.to_string()),
            help: None,
        }
    }

    /// Adds what the user can do about it.
    #[must_use]
    pub fn with_help(mut self, help: impl fmt::Display) -> Self {
        self.help = Some(help.to_string());
        self
    }

    /// The code with which the program ends.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// The error with its causes.
    pub fn error(&self) -> &anyhow::Error {
        &self.error
    }
}

impl From<anyhow::Error> for CommandError {
    /// An error that nobody classified is a failure.
    fn from(error: anyhow::Error) -> Self {
        Self::new(Exit::Failed, error)
    }
}

impl From<std::io::Error> for CommandError {
    fn from(error: std::io::Error) -> Self {
        Self::new(Exit::Failed, error)
    }
}

impl fmt::Display for CommandError {
    /// `error:` with one line of `cause:` per cause and `help:` at the end. A cause whose text the
    /// line before already ends with is left out: some libraries repeat their source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = self.error.to_string();
        write!(f, "error: {before}")?;
        for cause in self.error.chain().skip(1) {
            let text = cause.to_string();
            if !before.ends_with(&text) {
                write!(f, "\ncause: {text}")?;
            }
            before = text;
        }
        match &self.help {
            Some(help) => write!(f, "\nhelp: {help}"),
            None => Ok(()),
        }
    }
}

/// The exit codes as a Markdown table, for the README.
pub fn markdown_table() -> String {
    let mut text = String::from("| code | meaning | `status` |\n|---|---|---|\n");
    for exit in Exit::ALL {
        let status = StatusExit::ALL
            .iter()
            .find(|status| status.code() == exit.code());
        let status = status.map_or("", |status| status.meaning());
        text.push_str(&format!(
            "| {} | {} | {status} |\n",
            exit.code(),
            exit.meaning()
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_contract() {
        assert_eq!(Exit::ALL.map(Exit::code), [0, 1, 2, 3, 4, 5]);
        assert_eq!(StatusExit::ALL.map(StatusExit::code), [0, 1, 2, 3]);
        assert_eq!(StatusExit::from(Exit::SlotLost).code(), 2);
        assert_eq!(StatusExit::from(Exit::Usage).code(), 3);
    }

    #[test]
    fn an_error_prints_cause_and_help() {
        let io = std::io::Error::other("connection refused");
        let error = anyhow::Error::new(io).context("no connection to db:5432");
        let error = CommandError::new(Exit::Failed, error).with_help("is the server running?");
        assert_eq!(
            error.to_string(),
            "error: no connection to db:5432\ncause: connection refused\n\
             help: is the server running?"
        );
    }

    #[test]
    fn a_repeated_cause_is_printed_once() {
        let io = std::io::Error::other("refused");
        let error = anyhow::Error::new(io).context("cannot connect: refused");
        assert_eq!(
            CommandError::new(Exit::Failed, error).to_string(),
            "error: cannot connect: refused"
        );
    }

    #[test]
    fn the_table_has_every_code() {
        let table = markdown_table();
        assert_eq!(table.lines().count(), 2 + Exit::ALL.len());
        assert!(table.contains("| 3 | a precondition does not hold"));
    }
}
