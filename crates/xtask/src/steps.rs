//! Steps that are run one after the other, each with a heading and its time.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The folder of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    found.canonicalize().unwrap_or(found)
}

/// Variables by which cargo tells a program about the package that it was built from.
const PACKAGE_VARIABLES: [&str; 2] = ["CARGO_MANIFEST_", "CARGO_PKG_"];

/// The cargo that runs us, with its arguments, in the workspace.
///
/// It does not see what the cargo above us told about our own package: build scripts of
/// dependencies look at these variables, and would run again after each change between a cargo
/// that was called by us and one that was called by hand.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.args(arguments).current_dir(workspace());
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if PACKAGE_VARIABLES
            .iter()
            .any(|start| text.starts_with(start))
        {
            command.env_remove(&name);
        }
    }
    command
}

/// What has been run so far.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    done: Vec<(String, Duration)>,
}

impl Steps {
    /// Runs a command; its output goes where ours goes.
    ///
    /// # Errors
    /// When it fails; a summary has been printed then.
    pub(crate) fn command(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line: Vec<_> = words
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        self.step(name, || {
            let line = line.join(" ");
            let status = command
                .status()
                .with_context(|| format!("cannot run {line}"))?;
            if !status.success() {
                bail!("{line} failed ({status})");
            }
            Ok(())
        })
    }

    /// Runs `work` as a step.
    ///
    /// # Errors
    /// When it fails; a summary has been printed then.
    pub(crate) fn step(&mut self, name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
        println!("\n==== {name} ====");
        let begun = Instant::now();
        let result = work();
        let time = begun.elapsed();
        if let Err(error) = result {
            self.print_summary();
            println!("FAILED {:>7.1} s  {name}", time.as_secs_f64());
            return Err(error.context(format!("step {name:?}")));
        }
        self.done.push((name.to_string(), time));
        Ok(())
    }

    /// A line for each step, and the sum.
    pub(crate) fn print_summary(&self) {
        println!("\n==== summary ====");
        for (name, time) in &self.done {
            println!("ok     {:>7.1} s  {name}", time.as_secs_f64());
        }
        let sum: Duration = self.done.iter().map(|(_, time)| *time).sum();
        println!(
            "       {:>7.1} s  {} steps",
            sum.as_secs_f64(),
            self.done.len()
        );
    }
}
