//! cargo-deny over the dependency tree, where it is installed. What it checks without a network,
//! `crates/xtask/tests/dependencies.rs` checks everywhere.

use std::process::Stdio;

use anyhow::Result;

use crate::steps::{Steps, cargo};

/// Runs it, if it is there.
pub(crate) fn check(steps: &mut Steps) -> Result<()> {
    let version = cargo(&["deny", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !version.is_ok_and(|status| status.success()) {
        println!("\ncargo-deny is not installed (`cargo install cargo-deny --locked`): the unit");
        println!("tests have checked its rules, all but advisories.");
        return Ok(());
    }
    let mut rules = cargo(&["deny", "check", "bans", "licenses", "sources"]);
    steps.command("dependencies", &mut rules)?;
    let fetched = cargo(&["deny", "fetch", "db"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()?;
    if !fetched.success() {
        println!("\nThe database of advisories cannot be reached: none were checked.");
        return Ok(());
    }
    let mut advisories = cargo(&["deny", "check", "--disable-fetch", "advisories"]);
    steps.command("advisories", &mut advisories)
}
