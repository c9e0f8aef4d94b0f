//! `cargo xtask ci`: what CI will say, before it says it. A fresh clone shows a file that was not
//! committed and a step that works only in this folder.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::{Steps, workspace};

/// Clones the last commit and runs `.ci/run` in the clone.
pub(crate) fn run() -> Result<()> {
    // Not a temporary folder, which Ctrl-C would leave behind for ever with its gigabytes: this one
    // is removed by the next start, or by `cargo clean`.
    let folder = workspace().join("target/ci");
    remove(&folder)?;
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let clone = folder.join("postrider");
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
    remove(&folder)
}

/// Removes a folder with all that is in it, if there is one.
fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}
