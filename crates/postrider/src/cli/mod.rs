//! The command line: flags of every key from the table of keys, and the commands' own.

pub mod commands;
pub mod markdown;
pub mod output;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches};

pub use crate::cli::commands::{
    Command, DeadLettersArgs, ListArgs, Output, RetryArgs, RunArgs, SetupArgs, StatusArgs,
    StatusLimits, TeardownArgs,
};
pub use crate::cli::markdown::flags_markdown;

use crate::config::keys::{KEYS, Key, Kind};
use crate::config::{ConfigInput, Fault};
use crate::exit::{Exit, StatusExit};
use crate::logging::LogInput;
use crate::redact::scrub;

/// A command line that was understood.
#[derive(Clone, Debug)]
pub struct Invocation {
    /// The command with its own flags.
    pub command: Command,
    /// Configuration flags.
    pub config: ConfigInput,
    /// Logging flags.
    pub logging: LogInput,
    /// Faults of the command's own flags, to be shown with those of the configuration.
    pub faults: Vec<Fault>,
}

/// A command line after which there is nothing to do: help, version, or a fault of usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Text to print.
    pub text: String,
    /// To stderr rather than stdout.
    pub to_stderr: bool,
    /// Code to exit with.
    pub code: u8,
}

/// Reads a command line, its first word being the program's name.
///
/// # Errors
/// With help, version, or a usage error.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Invocation, Stop> {
    let args: Vec<OsString> = args.into_iter().collect();
    let matches = match root().try_get_matches_from(&args) {
        Ok(matches) => matches,
        Err(error) => return Err(stop(&error, &args)),
    };
    let mut faults = Vec::new();
    let Some((name, own)) = matches.subcommand() else {
        // clap demands a command; this is its answer in our words.
        let text = "error: no command is given\n".to_owned();
        return Err(Stop {
            text,
            to_stderr: true,
            code: Exit::Usage.code(),
        });
    };
    let command = commands::read(name, own, &mut faults);
    // Global flags may stand before or behind the command; clap shows them in both.
    let mut flags = BTreeMap::new();
    for key in KEYS.iter().filter(|key| key.flag().is_some()) {
        if let Some(value) = own.get_one::<String>(key.name) {
            flags.insert(key.name, value.clone());
        }
    }
    Ok(Invocation {
        command,
        config: ConfigInput {
            file: own.get_one::<PathBuf>("config").cloned(),
            flags,
        },
        logging: log_input(own),
        faults,
    })
}

fn log_input(matches: &ArgMatches) -> LogInput {
    LogInput {
        verbose: matches.get_count("verbose"),
        quiet: matches.get_flag("quiet"),
        format: matches.get_one::<String>("log_format").cloned(),
    }
}

/// Help and version go to stdout with 0; anything else is a usage error.
fn stop(error: &clap::Error, args: &[OsString]) -> Stop {
    let to_stderr = error.use_stderr();
    let code = match (to_stderr, is_status(args)) {
        (false, _) => Exit::Done.code(),
        (true, true) => StatusExit::from(Exit::Usage).code(),
        (true, false) => Exit::Usage.code(),
    };
    // The help that stands in for a missing command holds nothing of the user's.
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    let text = if to_stderr && !is_help {
        // clap repeats the word it does not understand, and that may be a URL with a password.
        scrub(&error.to_string()).into_owned()
    } else {
        error.to_string()
    };
    Stop {
        text,
        to_stderr,
        code,
    }
}

/// Whether the command is `status`, as far as can be told of a line with faults: its codes differ.
fn is_status(args: &[OsString]) -> bool {
    let lenient = root().ignore_errors(true).try_get_matches_from(args);
    let by_clap = lenient
        .ok()
        .and_then(|matches| matches.subcommand_name().map(str::to_owned));
    by_clap.as_deref() == Some("status")
}

/// The whole command line.
pub fn root() -> clap::Command {
    let mut root = clap::Command::new("postrider")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Streams a PostgreSQL outbox table to NATS JetStream from the write-ahead log")
        .after_help(
            "Each flag can also be a key of the file or an environment variable: --postgres-slot, \
             slot in [postgres], POSTRIDER_POSTGRES_SLOT. Passwords and tokens have no flag: use \
             the variable, the file, or a file of their own.\n\n\
             Example:\n  \
             export DATABASE_URL=postgres://postrider@localhost:5432/shop\n  \
             export NATS_URL=nats://localhost:4222\n  \
             postrider run --setup",
        )
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .args(common_args());
    for key in KEYS {
        root = root.args(key_arg(key));
    }
    root.subcommands(commands::all())
}

/// Flags that are no keys.
fn common_args() -> [Arg; 4] {
    [
        Arg::new("config")
            .short('c')
            .long("config")
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file (TOML); also POSTRIDER_CONFIG"),
        Arg::new("verbose")
            .short('v')
            .long("verbose")
            .action(ArgAction::Count)
            .conflicts_with("quiet")
            .help("More logs: -v debug, -vv trace"),
        Arg::new("quiet")
            .short('q')
            .long("quiet")
            .action(ArgAction::SetTrue)
            .help("Only warnings and errors"),
        Arg::new("log_format")
            .long("log-format")
            .value_name("text|json")
            .help("Form of the logs on stderr [default: text]"),
    ]
    .map(|arg| arg.global(true).help_heading("Common options"))
}

/// The flag of a key.
fn key_arg(key: &Key) -> Option<Arg> {
    let flag = key.flag()?;
    let mut help = key.help.replace('`', "");
    let without = key.without.replace('`', "");
    match (key.default, without.as_str()) {
        (Some(value), _) => help.push_str(&format!(" [default: {value}]")),
        (None, "") => {}
        (None, text) => help.push_str(&format!(" [default: {text}]")),
    }
    let heading = match key.section() {
        "postgres" => "PostgreSQL options",
        "nats" => "NATS options",
        _ => "Delivery options",
    };
    let arg = Arg::new(key.name)
        .long(flag.trim_start_matches("--").to_owned())
        .value_name(key.kind.value_name())
        .help(help)
        .help_heading(heading)
        .hide_short_help(key.rare)
        // A value may begin with a dash: a negative number shall be told from an unknown flag.
        .allow_hyphen_values(matches!(
            key.kind,
            Kind::Size(_) | Kind::Duration(_) | Kind::Integer(_)
        ))
        .global(true);
    Some(match key.kind {
        Kind::Bool => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        _ => arg,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(line: &str) -> Result<Invocation, Stop> {
        parse(
            format!("postrider {line}")
                .split_whitespace()
                .map(OsString::from),
        )
    }

    #[test]
    fn the_definition_is_sound() {
        root().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_behind_the_command() {
        for text in [
            "--postgres-slot a run -vv -c f",
            "run --postgres-slot a -c f -v -v",
        ] {
            let invocation = line(text).unwrap();
            assert_eq!(invocation.config.flags["postgres.slot"], "a", "{text}");
            assert_eq!(invocation.config.file, Some("f".into()));
            assert_eq!(invocation.logging.verbose, 2);
            assert!(matches!(invocation.command, Command::Run(_)));
        }
        let invocation = line("run --nats-tls-first").unwrap();
        assert_eq!(invocation.config.flags["nats.tls_first"], "true");
        let invocation = line("run --nats-tls-first=false --nats-replicas -1").unwrap();
        assert_eq!(invocation.config.flags["nats.tls_first"], "false");
        assert_eq!(invocation.config.flags["nats.replicas"], "-1");
    }

    #[test]
    fn usage_errors_exit_2_or_3_for_status() {
        assert_eq!(line("run --nope").unwrap_err().code, 2);
        assert_eq!(line("nope").unwrap_err().code, 2);
        assert_eq!(line("run -v -q").unwrap_err().code, 2);
        assert_eq!(line("status --nope").unwrap_err().code, 3);
        assert_eq!(line("--postgres-slot a status --nope").unwrap_err().code, 3);
        assert_eq!(
            line("run --postgres-slot status --nope").unwrap_err().code,
            2
        );
    }

    #[test]
    fn a_url_in_the_wrong_place_is_not_repeated() {
        for text in [
            "run postgres://u:S3CR3T@h/d",
            "postgres://u:S3CR3T@h/d",
            "run --nats-token=S3CR3T",
            "run --postgres-ulr=postgres://u:S3CR3T@h/d",
        ] {
            let stop = line(text).unwrap_err();
            assert!(!stop.text.contains("S3CR3T"), "{}", stop.text);
            assert_eq!(stop.code, 2);
        }
    }

    #[test]
    fn help_and_version_go_to_stdout() {
        for text in ["--help", "-h", "--version", "run --help", "status -h"] {
            let stop = line(text).unwrap_err();
            assert!(!stop.to_stderr, "{text}");
            assert_eq!(stop.code, 0, "{text}");
        }
        assert!(
            line("--version")
                .unwrap_err()
                .text
                .contains(env!("CARGO_PKG_VERSION"))
        );
        let (long, short) = (
            line("--help").unwrap_err().text,
            line("-h").unwrap_err().text,
        );
        for key in KEYS {
            let Some(flag) = key.flag() else { continue };
            assert!(long.contains(&flag), "{flag}");
            assert_eq!(short.contains(&format!("{flag} ")), !key.rare, "{flag}");
        }
    }
}
