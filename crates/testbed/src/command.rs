//! Programs that are run to their end, with a deadline.

use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::process::{Signal, family, send};

/// How often the end of a program is looked for: most of them end within milliseconds.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How much of a program's output is kept: an error quotes it, and `--version` is one line.
const OUTPUT_MAX_BYTES: u64 = 1 << 20;

/// Runs a program without input to its end and gives back what it printed. One that still runs
/// after `limit` is killed, and so are its children.
///
/// # Errors
/// When it cannot be started, or does not end in time.
pub(crate) fn output_within(command: &mut Command, limit: Duration) -> Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    // Files, for a pipe that is full would stop a program that nobody reads.
    let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .spawn()
        .with_context(|| format!("cannot run `{program}`: is it installed and on PATH?"))?;
    let Some(status) = wait_within(&mut child, limit)? else {
        // A stopped process can start no child between the look at the table and the kill.
        let _ = send(Signal::Stop, &[child.id()]);
        let _ = send(Signal::Kill, &family(child.id()));
        child.wait()?;
        bail!(
            "`{program}` did not end within {limit:?}: {}",
            String::from_utf8_lossy(&read_back(&mut stderr)?).trim()
        );
    };
    Ok(Output {
        status,
        stdout: read_back(&mut stdout)?,
        stderr: read_back(&mut stderr)?,
    })
}

/// Runs a program that must succeed; an error says what it printed.
///
/// # Errors
/// When it cannot be started, fails, or does not end in time.
pub(crate) fn run_within(command: &mut Command, limit: Duration) -> Result<()> {
    let output = output_within(command, limit)?;
    if !output.status.success() {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        bail!(
            "`{}` failed ({}): {}{}",
            words.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim(),
            String::from_utf8_lossy(&output.stdout).trim()
        );
    }
    Ok(())
}

fn wait_within(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn read_back(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(OUTPUT_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::is_alive;

    const LIMIT: Duration = Duration::from_secs(60);

    #[test]
    fn a_program_that_does_not_end_is_killed_with_its_children() {
        let script = "echo $$ >&2; sleep 600 & echo $! >&2; wait";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let error = output_within(&mut command, Duration::from_secs(2)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`sh` did not end within 2s"), "{text}");
        let numbers = text.rsplit("2s: ").next().unwrap_or_default();
        let pids: Vec<u32> = numbers.lines().map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(pids.len(), 2, "{text}");
        // A signal takes a moment to end a process.
        let deadline = Instant::now() + LIMIT;
        while pids.iter().any(|pid| is_alive(*pid)) {
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_failure_quotes_all_that_was_said() {
        let script = "head -c 200000 /dev/zero; echo 'no such package' >&2; exit 3";
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let text = run_within(&mut command, LIMIT).unwrap_err().to_string();
        assert!(text.contains("no such package"), "{}", text.len());
        assert!(text.contains("exit status: 3"), "{}", text.len());
        let absent = run_within(&mut Command::new("no-such-program"), LIMIT);
        let text = absent.unwrap_err().to_string();
        assert!(text.contains("is it installed"), "{text}");
    }
}
