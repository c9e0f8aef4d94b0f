//! The commands and their own flags.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches};

use crate::config::fault::{Fault, Place, Wrong, quote};
use crate::config::units::{Bounds, parse_duration, parse_integer, parse_size};

/// A command with its flags.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// `setup`.
    Setup(SetupArgs),
    /// `run`.
    Run(RunArgs),
    /// `status`.
    Status(StatusArgs),
    /// `teardown`.
    Teardown(TeardownArgs),
}

/// Flags of `setup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetupArgs {
    /// Make the recommended outbox table where it is missing.
    pub create_table: bool,
    /// Print the SQL and change nothing.
    pub print_sql: bool,
    /// Drop a lost slot and make it anew, accepting the gap.
    pub recreate_slot: bool,
    /// Take over a stream that has another owner in its metadata.
    pub adopt: bool,
    /// Longest wait for the slot (old transactions hold it up).
    pub timeout: Duration,
}

impl Default for SetupArgs {
    /// As without flags.
    fn default() -> Self {
        Self {
            create_table: false,
            print_sql: false,
            recreate_slot: false,
            adopt: false,
            timeout: SETUP_TIMEOUT,
        }
    }
}

/// Flags of `run`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunArgs {
    /// Do `setup` first.
    pub setup: bool,
    /// Exit when everything committed before the start is stored and confirmed.
    pub until_caught_up: bool,
}

/// Flags of `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StatusArgs {
    /// Form of the result.
    pub output: StatusOutput,
    /// Repeat with this pause.
    pub watch: Option<Duration>,
    /// Limits that turn it into a check.
    pub limits: StatusLimits,
}

/// Form of the result of `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatusOutput {
    /// A table for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
}

/// Limits of `status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusLimits {
    /// Most WAL that is not yet confirmed, in bytes.
    pub max_lag_bytes: Option<u64>,
    /// Longest lag.
    pub max_lag: Option<Duration>,
    /// Most WAL that the slot retains, in bytes.
    pub max_retained_bytes: Option<u64>,
}

/// Flags of `teardown`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeardownArgs {
    /// Also while a streamer is active.
    pub force: bool,
}

/// `setup --timeout` without the flag. Long enough for a busy server's running transactions,
/// short enough for a deployment step.
pub const SETUP_TIMEOUT: Duration = Duration::from_secs(30);

const DAY_MS: u64 = 86_400_000;
/// A wait of zero cannot make a slot; a day is no deployment step.
const TIMEOUT_BOUNDS: Bounds = Bounds {
    min: 100,
    max: DAY_MS,
};
/// Faster is a load on the server; slower than a day is no watching.
const WATCH_BOUNDS: Bounds = Bounds {
    min: 100,
    max: DAY_MS,
};
/// LSNs are 64 bits; limits beyond their signed half cannot be compared by the server.
const BYTES_BOUNDS: Bounds = Bounds {
    min: 0,
    max: i64::MAX as u64,
};
/// Ten years.
const LAG_BOUNDS: Bounds = Bounds {
    min: 0,
    max: 315_360_000,
};

/// All commands for clap.
pub(super) fn all() -> [clap::Command; 4] {
    [setup(), run(), status(), teardown()]
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

fn value(name: &'static str, value_name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value_name)
        .allow_hyphen_values(true)
        .help(help)
}

fn setup() -> clap::Command {
    clap::Command::new("setup")
        .about("Makes what is missing: publication, slot, dead-letter table, stream")
        .long_about(
            "Makes what is missing: publication, slot, dead-letter table, stream. It says what it \
             found, made and left alone, and can be run again.",
        )
        .arg(switch(
            "create-table",
            "Make the recommended outbox table where it is missing",
        ))
        .arg(switch(
            "print-sql",
            "Print the SQL for an administrator and change nothing",
        ))
        .arg(switch(
            "recreate-slot",
            "Drop a lost slot and make it anew, accepting the gap",
        ))
        .arg(switch(
            "adopt",
            "Take over a stream that belongs to another Postrider",
        ))
        .arg(value(
            "timeout",
            "DURATION",
            "Longest wait for the slot, like 30s or 5m [default: 30s]",
        ))
        .after_help(
            "Examples:\n  \
             postrider setup --create-table\n  \
             postrider -c postrider.toml setup --print-sql > for-the-dba.sql",
        )
}

fn run() -> clap::Command {
    clap::Command::new("run")
        .about("Streams the outbox until SIGTERM or SIGINT")
        .long_about(
            "Streams the outbox until SIGTERM or SIGINT; then it drains, confirms the last acks \
             and exits 0.",
        )
        .arg(switch("setup", "Do setup first"))
        .arg(switch(
            "until-caught-up",
            "Exit 0 once everything committed before the start is stored and confirmed",
        ))
        .after_help(
            "Examples:\n  \
             postrider run --setup\n  \
             postrider -c postrider.toml --log-format json run",
        )
}

fn status() -> clap::Command {
    clap::Command::new("status")
        .about("Shows slot, retained WAL, lag, stream and dead letters; can serve as a check")
        .long_about(
            "Shows slot, retained WAL, lag, stream and dead letters. It asks the servers, so it \
             works while the streamer is down.\n\n\
             Exit codes: 0 fine, 1 over a limit, 2 slot lost or missing, 3 cannot tell.",
        )
        .arg(value(
            "output",
            "table|json",
            "Form of the result [default: table]",
        ))
        .arg(value(
            "watch",
            "DURATION",
            "Repeat with this pause, like 2s",
        ))
        .arg(value(
            "max-lag-bytes",
            "SIZE",
            "Most unconfirmed WAL, like 64MiB",
        ))
        .arg(value("max-lag-seconds", "N", "Longest lag, in seconds"))
        .arg(value(
            "max-retained-bytes",
            "SIZE",
            "Most WAL that the slot retains, like 10GiB",
        ))
        .after_help(
            "Examples:\n  \
             postrider status\n  \
             postrider status --watch 2s\n  \
             postrider status --output json --max-lag-bytes 64MiB --max-lag-seconds 60",
        )
}

fn teardown() -> clap::Command {
    clap::Command::new("teardown")
        .about("Drops slot and publication; keeps tables and stream")
        .arg(switch(
            "force",
            "Also while a streamer is active: its connection is ended",
        ))
        .after_help("Example:\n  postrider teardown")
}

/// The command's own flags, checked. Faults are noted, to be shown with all others.
pub(super) fn read(name: &str, matches: &ArgMatches, faults: &mut Vec<Fault>) -> Command {
    let mut own = Own { matches, faults };
    match name {
        "setup" => Command::Setup(SetupArgs {
            create_table: matches.get_flag("create-table"),
            print_sql: matches.get_flag("print-sql"),
            recreate_slot: matches.get_flag("recreate-slot"),
            adopt: matches.get_flag("adopt"),
            timeout: own
                .value("timeout", |text| parse_duration(text, TIMEOUT_BOUNDS))
                .unwrap_or(SETUP_TIMEOUT),
        }),
        "status" => Command::Status(StatusArgs {
            output: own.value("output", parse_output).unwrap_or_default(),
            watch: own.value("watch", |text| parse_duration(text, WATCH_BOUNDS)),
            limits: StatusLimits {
                max_lag_bytes: own.value("max-lag-bytes", |text| parse_size(text, BYTES_BOUNDS)),
                max_lag: own
                    .value("max-lag-seconds", |text| parse_integer(text, LAG_BOUNDS))
                    .map(Duration::from_secs),
                max_retained_bytes: own
                    .value("max-retained-bytes", |text| parse_size(text, BYTES_BOUNDS)),
            },
        }),
        "teardown" => Command::Teardown(TeardownArgs {
            force: matches.get_flag("force"),
        }),
        // clap admits the four commands only.
        _ => Command::Run(RunArgs {
            setup: matches.get_flag("setup"),
            until_caught_up: matches.get_flag("until-caught-up"),
        }),
    }
}

struct Own<'a> {
    matches: &'a ArgMatches,
    faults: &'a mut Vec<Fault>,
}

impl Own<'_> {
    fn value<T>(&mut self, name: &str, check: impl Fn(&str) -> Result<T, Wrong>) -> Option<T> {
        let text = self.matches.get_one::<String>(name)?;
        let place = || Place::Flag(format!("--{name}"));
        check(text)
            .map_err(|wrong| self.faults.push(wrong.at(place(), "")))
            .ok()
    }
}

fn parse_output(text: &str) -> Result<StatusOutput, Wrong> {
    match text {
        "table" => Ok(StatusOutput::Table),
        "json" => Ok(StatusOutput::Json),
        _ => {
            let problem = format!("{} is not a form of output", quote(text));
            Err(Wrong::new(problem, "write table or json"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Invocation, parse};

    fn line(line: &str) -> Invocation {
        let words = format!("postrider {line}");
        parse(words.split_whitespace().map(OsString::from)).unwrap()
    }

    #[test]
    fn flags_of_the_commands() {
        assert_eq!(line("setup").command, Command::Setup(SetupArgs::default()));
        let args = SetupArgs {
            create_table: true,
            print_sql: true,
            recreate_slot: true,
            adopt: true,
            timeout: Duration::from_secs(300),
        };
        let all = "setup --create-table --print-sql --recreate-slot --adopt --timeout 5m";
        assert_eq!(line(all).command, Command::Setup(args));
        let args = RunArgs {
            setup: true,
            until_caught_up: true,
        };
        assert_eq!(
            line("run --setup --until-caught-up").command,
            Command::Run(args)
        );
        let args = TeardownArgs { force: true };
        assert_eq!(line("teardown --force").command, Command::Teardown(args));
        let limits = StatusLimits {
            max_lag_bytes: Some(1 << 20),
            max_lag: Some(Duration::from_secs(60)),
            max_retained_bytes: Some(5),
        };
        let watch = Some(Duration::from_secs(2));
        let args = StatusArgs {
            output: StatusOutput::Json,
            watch,
            limits,
        };
        let all = "status --output json --watch 2s --max-lag-bytes 1MiB --max-lag-seconds 60 \
                   --max-retained-bytes 5";
        assert_eq!(line(all).command, Command::Status(args));
    }

    #[test]
    fn faults_of_their_values_are_collected() {
        let all = "status --output xml --watch 2 --max-lag-bytes -1 --max-lag-seconds NaN \
                   --max-retained-bytes 99999999999GiB";
        let faults = line(all).faults;
        let shown: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(faults.len(), 5, "{shown:?}");
        assert!(
            shown[2].starts_with("--max-lag-bytes: \"-1\" is negative"),
            "{shown:?}"
        );
    }
}
