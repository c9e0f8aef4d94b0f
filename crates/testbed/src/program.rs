//! A program under test, run as a child.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::Signal;
use crate::server::Server;

/// The file that takes the program's stdout; its stderr goes to the log.
const STDOUT_FILE: &str = "stdout";

/// What a [`Program`] is run with.
#[derive(Debug)]
pub struct ProgramBuilder {
    command: Command,
}

impl ProgramBuilder {
    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Sets the current folder of the program.
    #[must_use]
    pub fn current_dir(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// Starts the program.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(self) -> Result<Program> {
        let name = Path::new(self.command.get_program())
            .file_name()
            .unwrap_or_default();
        let what = name.to_string_lossy().into_owned();
        let mut server = Server::new(what, None, Signal::Kill)?;
        server.set_command(self.command, Some(STDOUT_FILE));
        server.launch()?;
        Ok(Program { server })
    }
}

/// A running child with its output in files; killed when dropped. It runs as we do, and is
/// controlled as any [`Server`].
#[derive(Debug)]
pub struct Program {
    server: Server,
}

impl Program {
    /// Describes a run of the program at `path`.
    ///
    /// Our own environment is handed on, without what would configure a streamer behind the
    /// test's back: `POSTRIDER_*`, `DATABASE_URL`, `NATS_URL`, `PG*`.
    #[must_use]
    pub fn builder(path: impl Into<PathBuf>) -> ProgramBuilder {
        let mut command = Command::new(path.into());
        let unwanted = |name: &OsString| {
            let name = name.to_string_lossy();
            name.starts_with("POSTRIDER_")
                || name.starts_with("PG")
                || name == "DATABASE_URL"
                || name == "NATS_URL"
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| unwanted(name)) {
            command.env_remove(name);
        }
        ProgramBuilder { command }
    }

    /// Starts it again with the same arguments after it has ended. Output is appended.
    ///
    /// # Errors
    /// When it still runs or cannot be started.
    pub fn start_again(&mut self) -> Result<()> {
        self.server.launch()
    }

    /// SIGTERM; does not wait.
    ///
    /// # Errors
    /// When it does not run.
    pub fn terminate(&mut self) -> Result<()> {
        self.server.signal(Signal::Terminate)
    }

    /// SIGINT, as by Ctrl-C; does not wait.
    ///
    /// # Errors
    /// When it does not run.
    pub fn interrupt(&mut self) -> Result<()> {
        self.server.signal(Signal::Interrupt)
    }

    /// Waits until it has ended, and gives back its exit code, or `None` when a signal ended it.
    ///
    /// # Errors
    /// When it still runs after `limit`; the error quotes the end of its stderr.
    pub async fn wait_exit(&mut self, limit: Duration) -> Result<Option<i32>> {
        self.server
            .wait_exit(limit)
            .await
            .map(|status: ExitStatus| status.code())
    }

    /// The largest resident memory that the running process has had so far (Linux only).
    ///
    /// # Errors
    /// When it does not run, or the system does not tell.
    pub fn rss_peak_bytes(&mut self) -> Result<u64> {
        let path = format!("/proc/{}/status", self.server.pid()?);
        let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("no VmHWM in {path}"))? * 1024)
    }

    /// All that it has written to stdout.
    #[must_use]
    pub fn stdout_text(&self) -> String {
        self.server.text_of(STDOUT_FILE)
    }

    /// All that it has written to stderr.
    #[must_use]
    pub fn stderr_text(&self) -> String {
        self.server.log_text()
    }
}

impl Deref for Program {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl DerefMut for Program {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.server
    }
}
