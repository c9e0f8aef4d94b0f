//! Building the program that demo and soak are about.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::steps::cargo;

/// Builds `postrider` and gives back its path. Cargo's progress goes to stderr.
///
/// # Errors
/// When it does not build.
pub(crate) fn postrider() -> Result<PathBuf> {
    let arguments = [
        "build",
        "-p",
        "postrider",
        "--message-format=json-render-diagnostics",
    ];
    let mut child = cargo(&arguments)
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let messages = child.stdout.take().context("cargo has no stdout")?;
    let mut program = None;
    for message in BufReader::new(messages).lines() {
        if let Some(path) = executable(&message?) {
            program = Some(path);
        }
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("`cargo build -p postrider` failed ({status})");
    }
    program.context("cargo built postrider and did not say where it is")
}

/// The program's path, when a message of cargo is about it.
fn executable(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message.pointer("/target/name")?.as_str()? != "postrider" {
        return None;
    }
    Some(PathBuf::from(message.get("executable")?.as_str()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_program_among_cargos_messages() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["bin"],"name":"postrider"},
            "executable":"/target/debug/postrider"}"#;
        assert_eq!(
            executable(line),
            Some(PathBuf::from("/target/debug/postrider"))
        );
        let library = r#"{"target":{"name":"postrider"},"executable":null}"#;
        assert_eq!(executable(library), None);
        assert_eq!(executable(r#"{"reason":"build-finished"}"#), None);
    }
}
