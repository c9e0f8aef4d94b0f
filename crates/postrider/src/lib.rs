//! The shell of Postrider: command line, configuration, logs, exit codes and commands.
//!
//! `main.rs` calls [`start`] and nothing else. The library exists so that tests and the README's
//! checks can reach the tables. Its laws: all faults of flags and configuration are shown at once,
//! before any connection; no secret is printed; results go to stdout, all else to stderr.

#![warn(missing_docs)]

pub mod cli;
pub mod commands;
pub mod config;
pub mod driver;
pub mod exit;
pub mod logging;
pub mod redact;
pub mod secret;
pub mod signals;

use std::ffi::OsString;

use crate::cli::output::{complain, print};
use crate::cli::{Command, Invocation};
use crate::config::{Environment, Faults, Loaded, Settings};
use crate::exit::{CommandError, Exit, StatusExit};
use crate::logging::LogFormat;
use crate::signals::Signals;

/// Threads of the runtime. One for the streamer's loop, one for what must not wait for it.
const WORKER_THREADS: usize = 2;

/// The whole program: reads the command line, checks the configuration, runs the command, and
/// answers with the exit code.
pub fn start(args: impl IntoIterator<Item = OsString>, environment: &dyn Environment) -> u8 {
    let invocation = match cli::parse(args) {
        Ok(invocation) => invocation,
        Err(stop) if stop.to_stderr => {
            complain(&stop.text);
            return stop.code;
        }
        Err(stop) => return printed(&stop.text, stop.code),
    };
    let is_status = matches!(invocation.command, Command::Status(_));
    let (loaded, log_settings) = match check(&invocation, environment) {
        Ok(checked) => checked,
        Err(faults) => {
            complain(&redact::scrub(&format!("error: {faults}")));
            return code_of(Exit::Usage, is_status);
        }
    };
    logging::start(&log_settings, &loaded.redactor);
    match execute(invocation.command, loaded.settings) {
        Ok(code) => code,
        Err(error) => {
            match log_settings.format {
                // Whoever reads the log by program reads the end in the same form.
                LogFormat::Json if tracing::enabled!(tracing::Level::ERROR) => {
                    tracing::error!(exit_code = error.exit().code(), "{error}");
                }
                _ => complain(&loaded.redactor.clean(&error.to_string())),
            }
            code_of(error.exit(), is_status)
        }
    }
}

/// Prints to stdout and keeps the code, unless stdout fails.
fn printed(text: &str, code: u8) -> u8 {
    match print(text) {
        Ok(()) => code,
        Err(error) => {
            complain(&format!("error: cannot write to stdout\ncause: {error}"));
            Exit::Failed.code()
        }
    }
}

/// `status` has codes of its own.
fn code_of(exit: Exit, is_status: bool) -> u8 {
    if is_status {
        StatusExit::from(exit).code()
    } else {
        exit.code()
    }
}

/// All checks that need no connection, with all their faults.
fn check(
    invocation: &Invocation,
    environment: &dyn Environment,
) -> Result<(Loaded, logging::LogSettings), Faults> {
    let mut faults = invocation.faults.clone();
    let variables = environment.variables();
    let variable = |name: &str| {
        let found = variables.iter().find(|(known, _)| known == name);
        found.and_then(|(_, value)| value.to_str().map(str::to_owned))
    };
    let log_settings = logging::settings(&invocation.logging, variable, &mut faults);
    let loaded = config::load(&invocation.config, environment, faults)?;
    Ok((loaded, log_settings))
}

/// Runs the command on a runtime of its own.
fn execute(command: Command, settings: Settings) -> Result<u8, CommandError> {
    // The one TLS provider of the program; a second start in one process finds it installed.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(perform(command, settings));
    // Dropping the runtime would wait for a name that is being resolved, however long that takes.
    runtime.shutdown_background();
    ended
}

async fn perform(command: Command, settings: Settings) -> Result<u8, CommandError> {
    let mut signals = Signals::listen()?;
    Ok(match command {
        Command::Setup(args) => {
            let work = Box::pin(commands::setup::execute(settings, args));
            signals.unless_asked(work).await??.code()
        }
        Command::Run(args) => {
            let work = Box::pin(commands::run::execute(settings, args, &mut signals));
            work.await?.code()
        }
        Command::Status(args) => {
            let work = Box::pin(commands::status::execute(settings, args, &mut signals));
            work.await?.code()
        }
        Command::DeadLetters(args) => {
            let work = Box::pin(commands::dead_letters::execute(settings, args));
            signals.unless_asked(work).await??.code()
        }
        Command::Teardown(args) => {
            let work = Box::pin(commands::teardown::execute(settings, args));
            signals.unless_asked(work).await??.code()
        }
    })
}
