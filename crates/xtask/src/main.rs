//! The commands of this project, run as `cargo xtask COMMAND`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod build;
mod ci;
mod demo;
mod deny;
mod fuzz;
mod mutate;
mod simulate;
mod soak;
mod steps;
mod test;

/// The commands of this project.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The story of the outbox pattern, told by real servers; every number is checked
    Demo(demo::Options),
    /// Formatting, lints, documentation, unit tests, simulation and tests on real servers
    Test(test::Options),
    /// Faulty histories of the relay machine; one that breaks a law is cut down and told
    Simulate(simulate::Options),
    /// Breaks the machine on purpose and sees whether the simulator notices
    Mutate(mutate::Options),
    /// Hostile bytes for everything that reads bytes from outside
    Fuzz(fuzz::Options),
    /// Kills, pauses, cuts off and restarts all three at random under load, and checks
    Soak(soak::Options),
    /// Runs what CI runs, as CI runs it: `.ci/run` in a fresh clone of the last commit
    Ci,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Demo(options) => demo::run(&options),
        Command::Test(options) => test::run(&options),
        Command::Simulate(options) => simulate::run(&options),
        Command::Mutate(options) => mutate::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::Soak(options) => soak::run(&options),
        Command::Ci => ci::run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
