//! The commands and their own flags.

use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches};

use crate::config::TableName;
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
    /// `dead-letters`.
    DeadLetters(DeadLettersArgs),
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
    pub output: Output,
    /// Repeat with this pause.
    pub watch: Option<Duration>,
    /// Limits that turn it into a check.
    pub limits: StatusLimits,
}

/// Form of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
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

/// What `dead-letters` is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLettersArgs {
    /// `dead-letters list`.
    List(ListArgs),
    /// `dead-letters retry`.
    Retry(RetryArgs),
    /// `dead-letters discard`: those with these numbers.
    Discard(Vec<i64>),
}

/// Flags of `dead-letters list`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListArgs {
    /// Form of the result.
    pub output: Output,
    /// Only those of this table, `schema.table`.
    pub table: Option<String>,
    /// Only those with this reason.
    pub reason: Option<String>,
    /// Of every slot, not of the configured one alone.
    pub all_slots: bool,
}

/// Flags of `dead-letters retry`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryArgs {
    /// Those with these numbers; empty for all.
    pub ids: Vec<i64>,
    /// Of all, only those of this table, `schema.table`.
    pub table: Option<String>,
    /// Of all, only those with this reason.
    pub reason: Option<String>,
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

/// Numbers of dead letters, as PostgreSQL gives them.
const ID_BOUNDS: Bounds = Bounds {
    min: 1,
    max: i64::MAX as u64,
};

/// All commands for clap.
pub(super) fn all() -> [clap::Command; 5] {
    [setup(), run(), status(), dead_letters(), teardown()]
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
            "Longest wait for open transactions and locks, like 30s or 5m [default: 30s]",
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
             With --max-lag-seconds it may wait for as long: while a streamer is active, the lag \
             is measured by the time until what is in the log now is confirmed.\n\n\
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

fn dead_letters() -> clap::Command {
    clap::Command::new("dead-letters")
        .about("Lists, retries or discards the rows that JetStream could not take")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .subcommands([
            dead_letters_list(),
            dead_letters_retry(),
            dead_letters_discard(),
        ])
        .after_help(
            "Examples:\n  \
             postrider dead-letters list\n  \
             postrider dead-letters retry 17\n  \
             postrider dead-letters discard 17 18",
        )
}

fn dead_letters_list() -> clap::Command {
    clap::Command::new("list")
        .about("Shows the dead letters of the slot, with reasons and cures")
        .arg(value(
            "output",
            "table|json",
            "Form of the result [default: table]",
        ))
        .args(letter_filters())
        .arg(switch("all-slots", "Those of other slots, too"))
        .after_help(
            "Examples:\n  \
             postrider dead-letters list\n  \
             postrider dead-letters list --reason too_large --output json",
        )
}

fn dead_letters_retry() -> clap::Command {
    clap::Command::new("retry")
        .about("Publishes dead letters again, all of the slot or those named")
        .long_about(
            "Publishes dead letters again, all of the slot or those named, and removes each that \
             JetStream has stored. A row that is still in its table is read from there, as it is \
             now, and routed by the present configuration; else what the dead letter holds is \
             sent. One that is refused again stays, with its new reason. It may run beside the \
             streamer, and be interrupted and run again.",
        )
        .arg(
            Arg::new("id")
                .value_name("ID")
                .num_args(0..)
                .help("Numbers of dead letters, as `dead-letters list` shows them [default: all]"),
        )
        .args(letter_filters())
        .after_help(
            "Examples:\n  \
             postrider dead-letters retry\n  \
             postrider dead-letters retry 17 18\n  \
             postrider dead-letters retry --reason too_large --nats-max-message-bytes 4MiB",
        )
}

fn dead_letters_discard() -> clap::Command {
    clap::Command::new("discard")
        .about("Removes dead letters for good; prints what they were")
        .arg(
            Arg::new("id")
                .value_name("ID")
                .num_args(1..)
                .required(true)
                .help("Numbers of dead letters, as `dead-letters list` shows them"),
        )
        .after_help("Example:\n  postrider dead-letters discard 17 18")
}

fn letter_filters() -> [Arg; 2] {
    [
        value(
            "table",
            "TABLE",
            "Only those of this table, like public.outbox",
        ),
        value(
            "reason",
            "REASON",
            "Only those with this reason, like too_large",
        ),
    ]
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
        "dead-letters" => Command::DeadLetters(match matches.subcommand() {
            Some(("list", matches)) => {
                let mut own = Own {
                    matches,
                    faults: own.faults,
                };
                DeadLettersArgs::List(ListArgs {
                    output: own.value("output", parse_output).unwrap_or_default(),
                    table: own.value("table", parse_table),
                    reason: own.value("reason", |text| Ok(text.to_owned())),
                    all_slots: matches.get_flag("all-slots"),
                })
            }
            Some(("retry", matches)) => {
                let mut own = Own {
                    matches,
                    faults: own.faults,
                };
                DeadLettersArgs::Retry(RetryArgs {
                    ids: own.ids(),
                    table: own.value("table", parse_table),
                    reason: own.value("reason", |text| Ok(text.to_owned())),
                })
            }
            // clap admits the three only.
            other => DeadLettersArgs::Discard(other.map_or_else(Vec::new, |(_, matches)| {
                let mut own = Own {
                    matches,
                    faults: own.faults,
                };
                own.ids()
            })),
        }),
        "teardown" => Command::Teardown(TeardownArgs {
            force: matches.get_flag("force"),
        }),
        // clap admits the five commands only.
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

    /// Numbers of dead letters, each once, in the order given.
    fn ids(&mut self) -> Vec<i64> {
        let mut ids = Vec::new();
        for text in self.matches.get_many::<String>("id").unwrap_or_default() {
            let place = Place::Flag("ID".to_owned());
            match parse_integer(text, ID_BOUNDS) {
                Ok(id) => ids.extend(i64::try_from(id).ok().filter(|id| !ids.contains(id))),
                Err(wrong) => self.faults.push(wrong.at(place, "")),
            }
        }
        ids
    }
}

/// A table as SQL names it, to the form in which dead letters name it.
fn parse_table(text: &str) -> Result<String, Wrong> {
    TableName::parse(text).map(|name| format!("{}.{}", name.schema(), name.table()))
}

fn parse_output(text: &str) -> Result<Output, Wrong> {
    match text {
        "table" => Ok(Output::Table),
        "json" => Ok(Output::Json),
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
            output: Output::Json,
            watch,
            limits,
        };
        let all = "status --output json --watch 2s --max-lag-bytes 1MiB --max-lag-seconds 60 \
                   --max-retained-bytes 5";
        assert_eq!(line(all).command, Command::Status(args));
    }

    #[test]
    fn flags_of_dead_letters() {
        let list = ListArgs {
            output: Output::Json,
            table: Some("Sales.outbox".to_owned()),
            reason: Some("no_id".to_owned()),
            all_slots: true,
        };
        let all = "dead-letters list --output json --table \"Sales\".outbox --reason no_id \
                   --all-slots";
        let command = |text: &str| match line(text).command {
            Command::DeadLetters(args) => args,
            other => panic!("{other:?}"),
        };
        assert_eq!(command(all), DeadLettersArgs::List(list));
        let all = RetryArgs::default();
        assert_eq!(command("dead-letters retry"), DeadLettersArgs::Retry(all));
        let some = RetryArgs {
            ids: vec![3, 1],
            ..RetryArgs::default()
        };
        assert_eq!(
            command("dead-letters retry 3 1 3"),
            DeadLettersArgs::Retry(some)
        );
        let discard = DeadLettersArgs::Discard(vec![7]);
        assert_eq!(command("dead-letters discard 7"), discard);
        assert_eq!(line("dead-letters retry 0 x 1").faults.len(), 2);
        let flags = line("dead-letters list --postgres-slot a").config.flags;
        assert_eq!(flags["postgres.slot"], "a");
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
