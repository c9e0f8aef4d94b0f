//! The guard: a small shell process that outlives us and cleans up after us.
//!
//! Why no server can be left behind: the guard is started before the server and holds the read end
//! of a pipe whose only write end is ours. Whatever ends this process (a normal exit, a panic,
//! `kill -9`), the kernel closes that end, the guard's `read` returns, and it ends the server named
//! in the pid file and removes the folder. The server writes its pid file itself, before it turns
//! into the server program (`server.rs`); if we die before that, the folder is gone by the time it
//! tries, and it gives up. The guard is in a process group of its own and ignores the signals of a
//! terminal.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::process::Signal;

/// What the guard runs.
const SCRIPT: &str = include_str!("guard.sh");

/// How long the end of the guard is waited for: its own limits add up to 5 s.
const END_LIMIT: Duration = Duration::from_secs(10);

/// How often its end is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running guard of one folder.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    folder: PathBuf,
}

impl Guard {
    /// Starts the guard of `folder`. It ends the server with `ending` first, which is for servers
    /// that leave something in the kernel when they are killed.
    ///
    /// # Errors
    /// When no shell can be started.
    pub(crate) fn start(folder: &Path, ending: Signal) -> Result<Self> {
        use std::os::unix::process::CommandExt;

        let process = Command::new("sh")
            .args(["-c", SCRIPT, "guard"])
            .arg(folder)
            .arg(ending.name())
            .stdin(Stdio::piped())
            // It must not hold the pipes of whoever reads our own output.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("cannot start `sh`, which watches over the test servers")?;
        Ok(Self {
            process,
            folder: folder.to_path_buf(),
        })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Lets the guard do its work and waits until server and folder are gone. `server` is
    /// collected meanwhile, so that it does not stay as a zombie.
    pub(crate) fn finish(&mut self, mut server: Option<&mut Child>) {
        drop(self.process.stdin.take());
        let deadline = Instant::now() + END_LIMIT;
        while Instant::now() < deadline {
            if let Some(child) = server.as_mut() {
                let _ = child.try_wait();
            }
            if !matches!(self.process.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}
