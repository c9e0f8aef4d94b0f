//! What all children of the testbed have in common: a folder, a log, a guard, and a process that
//! can be signalled, paused, killed and started again.
//!
//! A [`Server`] knows the command that it runs and nothing of what the program does; [`Postgres`],
//! [`Nats`] and [`Program`] add that, and hand on the rest.
//!
//! [`Postgres`]: crate::Postgres
//! [`Nats`]: crate::Nats
//! [`Program`]: crate::Program

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::account::Account;
use crate::cache::make_open_folder;
use crate::guard::Guard;
use crate::process::{Signal, family, is_alive, send};
use crate::wait::{Patience, Progress};

/// Writes its own pid, then turns into the program: so the guard knows the server from its first
/// moment on.
const LAUNCHER: &str = "echo $$ > \"$1\" || exit 1; shift; exec \"$@\"";

/// How often the end of a process is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// How long SIGKILL may take to remove a process and its children.
const KILL_LIMIT: Duration = Duration::from_secs(20);

/// How much of a log an error quotes.
const LOG_TAIL_LINES: usize = 20;

/// A child process with its folder and its guard, gone when dropped.
#[derive(Debug)]
pub struct Server {
    /// As errors name it, such as `PostgreSQL 18`.
    what: String,
    account: Option<Account>,
    /// What is run at each start.
    command: Command,
    /// The file of the folder that takes stdout; the log where there is none.
    stdout: Option<&'static str>,
    child: Option<Child>,
    guard: Guard,
}

impl Server {
    /// Makes the folder and starts the guard; no server runs yet, and what it will run is said by
    /// [`Server::set_command`]. With an account the folder belongs to it and the server runs as it.
    pub(crate) fn new(what: String, account: Option<Account>, ending: Signal) -> Result<Self> {
        let root = match account {
            Some(account) => account.temporary_root()?,
            None => Account::current()?.temporary_root()?,
        };
        let folder = tempfile::Builder::new()
            .prefix("postrider-")
            .tempdir_in(&root)
            .with_context(|| format!("cannot make a folder in {}", root.display()))?;
        make_open_folder(folder.path())?;
        if let Some(account) = account {
            account.give(folder.path())?;
        }
        let guard = Guard::start(folder.path(), ending)?;
        // From here on the guard removes the folder.
        let _ = folder.keep();
        Ok(Self {
            what,
            account,
            command: Command::new("false"),
            stdout: None,
            child: None,
            guard,
        })
    }

    /// Says what to run: program, arguments, environment and current folder are used, its stdin is
    /// empty. Its output goes to the log; with `stdout`, that goes to this file of the folder.
    pub(crate) fn set_command(&mut self, command: Command, stdout: Option<&'static str>) {
        self.command = command;
        self.stdout = stdout;
    }

    pub(crate) fn folder(&self) -> &Path {
        self.guard.folder()
    }

    fn pid_file(&self) -> PathBuf {
        self.folder().join("pid")
    }

    fn log_file(&self) -> PathBuf {
        self.folder().join("log")
    }

    /// A file to write to; under root it belongs to the server's account.
    fn open_log(&self, path: &Path) -> Result<File> {
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        if let Some(account) = self.account {
            account.give(path)?;
        }
        Ok(file)
    }

    /// Starts the stopped or killed process and does not wait until it answers.
    ///
    /// # Errors
    /// When it runs already or cannot be started.
    pub fn launch(&mut self) -> Result<()> {
        if self.is_running() {
            bail!("{} runs already", self.what);
        }
        let log = self.open_log(&self.log_file())?;
        let output = match self.stdout {
            Some(name) => self.open_log(&self.folder().join(name))?,
            None => log.try_clone()?,
        };
        let command = &self.command;
        let mut launcher = Command::new("sh");
        launcher
            .args(["-c", LAUNCHER, "launch"])
            .arg(self.pid_file());
        launcher.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => launcher.env(name, value),
                None => launcher.env_remove(name),
            };
        }
        if let Some(folder) = command.get_current_dir() {
            launcher.current_dir(folder);
        }
        launcher
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(log)
            .process_group(0);
        if let Some(account) = self.account {
            account.apply(&mut launcher);
        }
        let child = launcher
            .spawn()
            .with_context(|| format!("cannot start {}", self.what))?;
        self.child = Some(child);
        Ok(())
    }

    /// Whether the process runs; paused counts as running.
    pub fn is_running(&mut self) -> bool {
        matches!(self.exit_status(), Ok(None))
    }

    /// The exit status, once the process has ended.
    ///
    /// # Errors
    /// When it was never started.
    pub(crate) fn exit_status(&mut self) -> Result<Option<ExitStatus>> {
        let pid_file = self.pid_file();
        let Some(child) = self.child.as_mut() else {
            bail!("{} was not started", self.what)
        };
        let status = child.try_wait()?;
        if status.is_some() {
            // The number is free for another process now, which must not be taken for ours.
            let _ = fs::remove_file(pid_file);
        }
        Ok(status)
    }

    /// The process id.
    ///
    /// # Errors
    /// When the process does not run.
    pub fn pid(&mut self) -> Result<u32> {
        match (self.is_running(), self.child.as_ref()) {
            (true, Some(child)) => Ok(child.id()),
            _ => bail!("{} does not run\n{}", self.what, self.log_tail()),
        }
    }

    pub(crate) fn signal(&mut self, signal: Signal) -> Result<()> {
        let pid = self.pid()?;
        send(signal, &[pid])
    }

    /// Waits for the process to end by itself or by an earlier signal.
    pub(crate) async fn wait_exit(&mut self, limit: Duration) -> Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.exit_status()? {
                return Ok(status);
            }
            if Instant::now() >= deadline {
                bail!(
                    "{} still runs after {limit:?}\n{}",
                    self.what,
                    self.log_tail()
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// `kill -9` of the process and all its children. Returns when all are gone, so that it can be
    /// started again at once.
    ///
    /// # Errors
    /// When the process does not run.
    pub async fn kill9(&mut self) -> Result<()> {
        let pid = self.pid()?;
        // Stopped, it can start no child between the look at the process table and the kill.
        send(Signal::Stop, &[pid])?;
        let family = family(pid);
        send(Signal::Kill, &family)?;
        self.wait_exit(KILL_LIMIT).await?;
        self.wait_gone(&family).await
    }

    /// Waits until none of these processes is left.
    async fn wait_gone(&self, family: &[u32]) -> Result<()> {
        let deadline = Instant::now() + KILL_LIMIT;
        while let Some(pid) = family.iter().find(|pid| is_alive(**pid)) {
            if Instant::now() >= deadline {
                bail!(
                    "process {pid} of {} is still there after {KILL_LIMIT:?}",
                    self.what
                );
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Stops the process and all its children without ending them: connections stay, nothing
    /// answers.
    ///
    /// # Errors
    /// When the process does not run.
    pub fn pause(&mut self) -> Result<()> {
        let pid = self.pid()?;
        send(Signal::Stop, &[pid])?;
        send(Signal::Stop, &family(pid))
    }

    /// Lets a paused process and its children go on.
    ///
    /// # Errors
    /// When the process does not run.
    pub fn resume(&mut self) -> Result<()> {
        let pid = self.pid()?;
        let mut family = family(pid);
        family.reverse();
        send(Signal::Continue, &family)
    }

    /// Sends `signal` and waits until the process and its children are gone.
    pub(crate) async fn end_by(&mut self, signal: Signal, limit: Duration) -> Result<ExitStatus> {
        let pid = self.pid()?;
        let family = family(pid);
        send(signal, &[pid])?;
        let status = self.wait_exit(limit).await?;
        self.wait_gone(&family).await?;
        Ok(status)
    }

    /// All that the process has written to its log, over all its starts; for a program that is
    /// its stderr.
    #[must_use]
    pub fn log_text(&self) -> String {
        self.text_of("log")
    }

    /// The text of a file in the folder; empty where there is none.
    pub(crate) fn text_of(&self, name: &str) -> String {
        let bytes = fs::read(self.folder().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The end of the log, for an error.
    #[must_use]
    pub fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.len().saturating_sub(LOG_TAIL_LINES);
        let tail = lines.get(first..).unwrap_or_default();
        format!("its log ends:\n  {}", tail.join("\n  "))
    }
}

/// A server program that can be asked whether it serves.
pub(crate) trait Service: Send + Sync {
    /// Its process.
    fn server(&mut self) -> &mut Server;

    /// Done when it serves. Called again and again while it starts.
    fn ping(&self) -> impl Future<Output = Result<Progress<()>>> + Send;
}

/// Waits until a launched service serves.
///
/// # Errors
/// When it ended instead, or time runs out; the error quotes the end of its log.
pub(crate) async fn wait_ready(service: &mut impl Service, limit: Duration) -> Result<()> {
    let what = format!("{} to answer", service.server().what);
    let mut patience = Patience::new(limit, &what);
    while service.server().is_running() {
        let answer = patience.look(service.ping()).await;
        if answer
            .with_context(|| service.server().log_tail())?
            .is_some()
        {
            return Ok(());
        }
    }
    let server = service.server();
    bail!("{} ended at its start\n{}", server.what, server.log_tail());
}

impl Drop for Server {
    fn drop(&mut self) {
        self.guard.finish(self.child.as_mut());
    }
}
