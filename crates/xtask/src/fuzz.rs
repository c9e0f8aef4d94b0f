//! `cargo xtask fuzz`: hostile bytes for everything that reads bytes from outside.
//!
//! With a nightly compiler and cargo-fuzz the targets are built for libFuzzer, which sees what code
//! an input reaches. Without them the seeds and random changes of them are tried.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::steps::{Steps, cargo, workspace};

/// How to get what the real fuzzer needs.
const HOW_TO_INSTALL: &str = "the real fuzzer needs a nightly compiler and cargo-fuzz:\n\
                              \x20   rustup toolchain install nightly --profile minimal\n\
                              \x20   cargo install cargo-fuzz --locked";

/// Options of `cargo xtask fuzz`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Minutes for each target; parts of one are fine
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    minutes: f64,

    /// One target only, instead of all in turn
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,

    /// Do without nightly compiler and cargo-fuzz even if they are there
    #[arg(long)]
    stable: bool,
}

/// One target, as the targets' own program lists it.
struct Target {
    name: String,
    max_len_bytes: String,
}

/// Runs all targets, up to the first finding.
pub(crate) fn run(options: &Options) -> Result<()> {
    let fuzzer = if options.stable { None } else { find() };
    let seconds = (options.minutes * 60.0).ceil().max(1.0);
    let targets = targets(options.target.as_deref())?;
    if fuzzer.is_none() && !options.stable {
        println!("{HOW_TO_INSTALL}\nUntil then: the seeds and random changes of them.");
    }
    let mut steps = Steps::default();
    for target in &targets {
        let name = &target.name;
        match &fuzzer {
            Some(fuzzer) => steps.step(name, || fuzz(fuzzer, target, seconds))?,
            None => {
                let folder = workspace().join("fuzz/artifacts").join(name);
                let mut short = own_program(&["short", name, &seconds.to_string()]);
                steps.command(name, short.arg(folder))?;
            }
        }
    }
    steps.print_summary();
    Ok(())
}

/// The program that knows the targets, built as the tests are: with all assertions, and with
/// nothing to build that they have not built.
fn own_program(args: &[&str]) -> Command {
    let mut command = cargo(&["run", "-p", "postrider-fuzz-targets", "--"]);
    command.args(args);
    command
}

fn targets(only: Option<&str>) -> Result<Vec<Target>> {
    let output = own_program(&["list"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot list the targets")?;
    if !output.status.success() {
        bail!("the targets cannot be built");
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let all = text.lines().filter_map(|line| line.split_once(' '));
    let targets: Vec<_> = all
        .filter(|(name, _)| only.is_none_or(|only| only == *name))
        .map(|(name, max)| Target {
            name: name.to_owned(),
            max_len_bytes: max.to_owned(),
        })
        .collect();
    if targets.is_empty() {
        bail!("no such target; there are:\n{text}");
    }
    Ok(targets)
}

/// Where cargo-fuzz is, if a nightly compiler is there too.
fn find() -> Option<PathBuf> {
    let nightly = Command::new("rustup")
        .args(["run", "nightly", "rustc", "--version"])
        .stderr(Stdio::null())
        .output();
    if !nightly.is_ok_and(|output| output.status.success()) {
        return None;
    }
    let mut folders: Vec<PathBuf> = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect())
        .unwrap_or_default();
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    folders.extend(home.map(|home| home.join("bin")));
    folders
        .into_iter()
        .map(|folder| folder.join("cargo-fuzz"))
        .find(|path| path.is_file())
}

/// One target under libFuzzer, with its seeds beside what earlier rounds found.
fn fuzz(fuzzer: &PathBuf, target: &Target, seconds: f64) -> Result<()> {
    let corpus = workspace().join("fuzz/corpus").join(&target.name);
    let status = own_program(&["seeds", &target.name])
        .arg(&corpus)
        .status()?;
    if !status.success() {
        bail!("the seeds cannot be written");
    }
    let mut command = Command::new("rustup");
    command.args(["run", "nightly"]).arg(fuzzer);
    command.args(["run", &target.name, "--"]);
    // No limit that grows with the corpus: the seeds are as long as inputs get.
    command.args([
        format!("-max_total_time={seconds:.0}"),
        format!("-max_len={}", target.max_len_bytes),
        "-len_control=0".to_owned(),
        "-timeout=10".to_owned(),
        "-rss_limit_mb=2048".to_owned(),
        "-print_final_stats=1".to_owned(),
    ]);
    command.current_dir(workspace().join("fuzz"));
    for name in foreign_variables() {
        command.env_remove(name);
    }
    let status = command.status().context("cannot run cargo-fuzz")?;
    if !status.success() {
        bail!(
            "a finding: its input is in fuzz/artifacts/{}; run it again with\n    cargo run -p \
             postrider-fuzz-targets -- try {} FILE",
            target.name,
            target.name
        );
    }
    Ok(())
}

/// What cargo and rustup told us about our own compiler, which is another one. The target folder
/// too: the fuzz package has its own.
fn foreign_variables() -> Vec<OsString> {
    let starts = ["CARGO", "RUSTUP_TOOLCHAIN", "RUSTC", "LD_LIBRARY_PATH"];
    let keep = ["CARGO_HOME", "CARGO_NET_OFFLINE"];
    std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| {
            let text = name.to_string_lossy();
            let is_config = text.starts_with("CARGO_REGISTRIES") || text.starts_with("CARGO_HTTP");
            let begins = starts.iter().any(|start| text.starts_with(start));
            begins && !is_config && !keep.contains(&text.as_ref())
        })
        .collect()
}
