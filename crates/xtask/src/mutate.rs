//! `cargo xtask mutate`: breaks the machine on purpose and sees whether the simulator notices.
//!
//! A simulator that never fails proves little. Each mutation of the table is applied to a copy of
//! the workspace, and the simulator runs there; a mutation that it does not notice is a hole.

mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::steps::{cargo, workspace};

/// Histories within which a mutation has to be noticed.
const HISTORIES: u64 = 10_000;

/// Options of `cargo xtask mutate`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Histories within which each mutation has to be noticed
    #[arg(long, value_name = "N", default_value_t = HISTORIES)]
    histories: u64,

    /// Only mutations with this text in their names or laws
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// One way to break a law.
struct Mutation {
    /// What is wrong then.
    name: &'static str,
    /// The law that it breaks.
    law: &'static str,
    /// The file.
    file: &'static str,
    /// Texts in it, each there once, and what stands in their place then.
    edits: &'static [(&'static str, &'static str)],
    caught_by: CaughtBy,
}

/// Who has to notice.
enum CaughtBy {
    Simulator,
    /// A test of the same package: what goes wrong is nothing that a walsender or a stream does.
    Test {
        /// `--lib`, or the name of a test file.
        target: &'static str,
        name: &'static str,
    },
}

/// Tries all mutations and lists what noticed them.
pub(crate) fn run(options: &Options) -> Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("postrider-mutate-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let copy = Copy::new(folder.path())?;
    let wanted = |mutation: &&Mutation| {
        let only = options.only.as_deref().unwrap_or_default();
        mutation.name.contains(only) || mutation.law.contains(only)
    };
    let mutations: Vec<_> = table::MUTATIONS.iter().filter(wanted).collect();
    for mutation in &mutations {
        mutation.applied(&copy)?;
    }
    println!("The machine as it is:");
    let sound = copy.simulate(options.histories)?;
    ensure!(sound.is_none(), "it breaks a law already: {sound:?}");
    println!("keeps every law in {} histories\n", options.histories);
    let mut missed = Vec::new();
    for mutation in &mutations {
        let begun = Instant::now();
        let caught = mutation.try_in(&copy, options.histories)?;
        let seconds = begun.elapsed().as_secs_f64();
        let answer = caught.as_deref().unwrap_or("NOT CAUGHT");
        println!(
            "{}\n  law {}\n  {answer} ({seconds:.0} s)",
            mutation.name, mutation.law
        );
        if caught.is_none() {
            missed.push(mutation.name);
        }
    }
    println!(
        "\n{} of {} mutations caught",
        mutations.len() - missed.len(),
        mutations.len()
    );
    ensure!(missed.is_empty(), "not caught: {}", missed.join("; "));
    Ok(())
}

impl Mutation {
    /// The file's text with the mutation, and without.
    fn applied(&self, copy: &Copy) -> Result<(String, String)> {
        let sound = fs::read_to_string(copy.folder.join(self.file))
            .with_context(|| format!("cannot read {}", self.file))?;
        let mut broken = sound.clone();
        for (before, after) in self.edits {
            let found = broken.matches(before).count();
            if found != 1 {
                bail!(
                    "the mutation {:?} does not fit {} any more: found {found} times, wanted \
                     once:\n{before}",
                    self.name,
                    self.file
                );
            }
            broken = broken.replace(before, after);
        }
        Ok((broken, sound))
    }

    /// What noticed it, if anything did.
    fn try_in(&self, copy: &Copy, histories: u64) -> Result<Option<String>> {
        let (broken, sound) = self.applied(copy)?;
        let path = copy.folder.join(self.file);
        fs::write(&path, broken)?;
        let result = match self.caught_by {
            CaughtBy::Simulator => copy.simulate(histories),
            CaughtBy::Test { target, name } => copy.test(target, name),
        };
        fs::write(&path, sound)?;
        result.with_context(|| format!("the mutation {:?}", self.name))
    }
}

/// A copy of the workspace, to break.
struct Copy {
    folder: PathBuf,
}

impl Copy {
    fn new(folder: &Path) -> Result<Self> {
        let list = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(workspace())
            .output()
            .context("cannot run git")?;
        ensure!(list.status.success(), "git cannot list the files");
        let names = String::from_utf8(list.stdout)?;
        for name in names.split('\0').filter(|name| !name.is_empty()) {
            let (from, to) = (workspace().join(name), folder.join(name));
            // A file that was deleted and not yet committed is listed too.
            if !from.is_file() {
                continue;
            }
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::copy(&from, &to).with_context(|| format!("cannot copy {name}"))?;
        }
        let folder = folder.to_owned();
        Ok(Self { folder })
    }

    /// Built for the build to be quick as well: it is done anew for each mutation.
    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = cargo(arguments);
        command
            .current_dir(&self.folder)
            .env("CARGO_TARGET_DIR", target_folder())
            .env("CARGO_PROFILE_PROOF_OPT_LEVEL", "1")
            .env("RUSTFLAGS", "--cap-lints allow");
        command
    }

    /// The law that broke and the seed that shows it, if one did.
    fn simulate(&self, histories: u64) -> Result<Option<String>> {
        let arguments = [
            "test",
            "--profile=proof",
            "-p",
            "postrider-outbox",
            "--test",
            "simulation",
        ];
        let mut command = self.cargo(&arguments);
        command
            .args([
                "--",
                "--nocapture",
                "--exact",
                "every_history_keeps_the_guarantee",
            ])
            .env("POSTRIDER_SIM_HISTORIES", histories.to_string())
            .env("POSTRIDER_SIM_SHRINK", "0");
        let output = command.output().context("cannot run cargo")?;
        Ok(failure(&output)?.map(|text| {
            let seed = text.lines().find(|line| line.starts_with("seed "));
            let shown: String = seed
                .unwrap_or("the simulator failed")
                .chars()
                .take(400)
                .collect();
            format!("caught by the simulator: {shown}")
        }))
    }

    fn test(&self, target: &str, name: &str) -> Result<Option<String>> {
        let mut command = self.cargo(&["test", "--profile=proof", "-p", "postrider-outbox"]);
        if target == "--lib" {
            command.arg(target);
        } else {
            command.args(["--test", target]);
        }
        command.args(["--", "--exact", name]);
        let output = command.output().context("cannot run cargo")?;
        Ok(failure(&output)?.map(|_| format!("caught by the test {name}")))
    }
}

/// What a test run printed if a test failed; `None` if one passed.
fn failure(output: &Output) -> Result<Option<String>> {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let ran = printed
        .lines()
        .any(|line| line.starts_with("running 1 test"));
    if !ran {
        bail!("no test ran:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok((!output.status.success()).then_some(printed))
}

/// Beside the usual build, which keeps its own settings.
fn target_folder() -> PathBuf {
    let usual = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| workspace().join("target"), PathBuf::from);
    usual.join("mutations")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutation_fits_the_code() {
        let copy = Copy {
            folder: workspace(),
        };
        for mutation in table::MUTATIONS {
            let (broken, sound) = mutation.applied(&copy).unwrap();
            assert_ne!(broken, sound, "{}", mutation.name);
        }
        for law in 1..=7 {
            let law = law.to_string();
            let breaks = |mutation: &Mutation| mutation.law.contains(&law);
            assert!(
                table::MUTATIONS.iter().any(breaks),
                "no mutation of law {law}"
            );
        }
    }
}
