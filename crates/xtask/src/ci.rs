//! `cargo xtask ci`: what CI will say, before it says it. A fresh clone shows a file that was not
//! committed and a step that works only in this folder.

use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::{Steps, workspace};

/// Clones the last commit and runs `.ci/run` in the clone.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::Builder::new()
        .prefix("postrider-ci-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let clone = folder.path().join("postrider");
    let mut steps = Steps::default();
    let mut git = Command::new("git");
    git.args(["clone", "--quiet"]).arg(workspace()).arg(&clone);
    steps.command("a fresh clone", &mut git)?;
    let mut script = Command::new("bash");
    script.arg(".ci/run").current_dir(&clone).env("CI", "true");
    // What cargo told us about this workspace is not about the clone.
    for name in [
        "CARGO_TARGET_DIR",
        "CARGO_MANIFEST_DIR",
        "CARGO_MANIFEST_PATH",
    ] {
        script.env_remove(name);
    }
    steps.command(".ci/run", &mut script)?;
    steps.print_summary();
    Ok(())
}
