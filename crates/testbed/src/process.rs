//! Processes and signals, by the tools that every Unix has: `/proc` or `ps`, and the shell's
//! `kill`. The safe standard library can send no signal but SIGKILL.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// A signal that the testbed sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signal {
    Continue,
    Hangup,
    Interrupt,
    Kill,
    Quit,
    Stop,
    Terminate,
}

impl Signal {
    /// Its name as `kill -s` wants it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Continue => "CONT",
            Self::Hangup => "HUP",
            Self::Interrupt => "INT",
            Self::Kill => "KILL",
            Self::Quit => "QUIT",
            Self::Stop => "STOP",
            Self::Terminate => "TERM",
        }
    }
}

/// Sends `signal` to all of `pids` at once. A process that is gone already is no error.
///
/// # Errors
/// When the shell cannot be run, or none of the processes could be signalled.
pub(crate) fn send(signal: Signal, pids: &[u32]) -> Result<()> {
    if pids.is_empty() {
        return Ok(());
    }
    let output = Command::new("sh")
        .args(["-c", "kill -s \"$@\"", "kill", signal.name()])
        .args(pids.iter().map(ToString::to_string))
        .stdin(Stdio::null())
        .output()
        .context("cannot run `sh` to send a signal")?;
    if !output.status.success() && pids.iter().any(|pid| is_alive(*pid)) && pids.len() == 1 {
        let text = String::from_utf8_lossy(&output.stderr).trim().to_string();
        bail!(
            "cannot send SIG{} to process {pids:?}: {text}",
            signal.name()
        );
    }
    Ok(())
}

/// One line of the process table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    pid: u32,
    parent: u32,
    /// Dead, and only not yet collected by its parent.
    is_zombie: bool,
}

/// Whether a process of this number runs (a zombie does not).
pub(crate) fn is_alive(pid: u32) -> bool {
    if let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) {
        return parse_stat(&stat).is_some_and(|entry| !entry.is_zombie);
    }
    !has_proc()
        && table()
            .iter()
            .any(|entry| entry.pid == pid && !entry.is_zombie)
}

/// `pid` and all processes below it, `pid` first.
pub(crate) fn family(pid: u32) -> Vec<u32> {
    let table = table();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        let children = table
            .iter()
            .filter(|entry| entry.parent == parent && !entry.is_zombie);
        let new: Vec<u32> = children
            .map(|entry| entry.pid)
            .filter(|p| !found.contains(p))
            .collect();
        found.extend(new);
    }
    found
}

fn has_proc() -> bool {
    fs::metadata("/proc/self/stat").is_ok()
}

fn table() -> Vec<Entry> {
    if !has_proc() {
        return table_of_ps();
    }
    let Ok(folders) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    folders
        .filter_map(|folder| {
            let name = folder.ok()?.file_name();
            let pid: u32 = name.to_str()?.parse().ok()?;
            parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
        })
        .collect()
}

/// `PID (NAME) STATE PARENT ...`; the name may hold spaces and parentheses.
fn parse_stat(text: &str) -> Option<Entry> {
    let pid = text.split(' ').next()?.parse().ok()?;
    let mut rest = text.rsplit(") ").next()?.split(' ');
    let is_zombie = matches!(rest.next()?, "Z" | "X");
    Some(Entry {
        pid,
        parent: rest.next()?.parse().ok()?,
        is_zombie,
    })
}

fn table_of_ps() -> Vec<Entry> {
    let output = Command::new("ps")
        .args(["-A", "-o", "pid=,ppid=,stat="])
        .output();
    let Ok(output) = output else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let pid = fields.next()?.parse().ok()?;
            let parent = fields.next()?.parse().ok()?;
            Some(Entry {
                pid,
                parent,
                is_zombie: fields.next()?.starts_with('Z'),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_odd_names() {
        let entry = parse_stat("42 (a) (b c) S 7 42 42 0").unwrap();
        assert_eq!(
            entry,
            Entry {
                pid: 42,
                parent: 7,
                is_zombie: false
            }
        );
        assert!(parse_stat("42 (x) Z 7 42").unwrap().is_zombie);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn finds_children_and_sees_the_dead() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        assert!(family(std::process::id()).contains(&child.id()));
        assert!(is_alive(child.id()));
        send(Signal::Kill, &[child.id()]).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while is_alive(child.id()) && std::time::Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(!is_alive(child.id()), "a zombie counts as dead");
        child.wait().unwrap();
        send(Signal::Terminate, &[child.id()]).unwrap();
    }
}
