//! One way from an outbox table to a stream: database, slot, stream, and the streamer between.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use testbed::{Program, ProgramBuilder, Progress, wait_until};

use super::PATIENCE;
use super::look::slot_is_active;
use super::stage::Servers;

/// How much of the streamer's log a failure prints.
const LOG_TAIL_LINES: usize = 25;

/// The configuration of the line into a shared stream. Its ids are unique only in its own table,
/// and others write the stream, too: so the table's name becomes a part of the dedup id.
const BILLING_CONFIGURATION: &str = "\
[[outbox]]
table = \"public.outbox\"
subject = \"events.{aggregate_type}.{type}\"
dedup_id = \"billing:{table}:{id}\"
";

/// How `postrider` is called for one slot, and its streamer when there is one.
#[derive(Debug)]
pub(super) struct Line {
    program: PathBuf,
    database: &'static str,
    slot: &'static str,
    stream: &'static str,
    subjects: &'static str,
    flags: Vec<String>,
    streamer: Option<Program>,
}

impl Line {
    /// From the shop's outbox into a stream of its own, with nothing configured but the two URLs.
    pub(super) fn for_shop(servers: &Servers, program: PathBuf) -> Self {
        Self {
            program,
            database: "shop",
            slot: "postrider",
            stream: "OUTBOX",
            subjects: "outbox.>",
            flags: url_flags(servers, "shop"),
            streamer: None,
        }
    }

    /// From another database's outbox into a stream that others write, too.
    ///
    /// # Errors
    /// When the configuration file cannot be written.
    pub(super) fn for_billing(servers: &Servers, program: PathBuf) -> Result<Self> {
        // In a folder that goes with its server, also after Ctrl-C.
        let file = servers.nats.dir().join("billing.toml");
        std::fs::write(&file, BILLING_CONFIGURATION)
            .with_context(|| format!("cannot write {}", file.display()))?;
        let mut flags = vec![String::from("--config"), file.display().to_string()];
        flags.extend(url_flags(servers, "billing"));
        let own = [
            ("--postgres-slot", "billing"),
            ("--postgres-publication", "billing"),
            ("--nats-stream", "EVENTS"),
            ("--nats-writers", "shared"),
        ];
        for (flag, value) in own {
            flags.extend([flag.to_owned(), value.to_owned()]);
        }
        Ok(Self {
            program,
            database: "billing",
            slot: "billing",
            stream: "EVENTS",
            subjects: "events.>",
            flags,
            streamer: None,
        })
    }

    pub(super) fn database(&self) -> &'static str {
        self.database
    }

    pub(super) fn slot(&self) -> &'static str {
        self.slot
    }

    pub(super) fn stream(&self) -> &'static str {
        self.stream
    }

    /// The subjects that the stream takes.
    pub(super) fn subjects(&self) -> &'static str {
        self.subjects
    }

    pub(super) fn program(&self) -> &Path {
        &self.program
    }

    /// The flags that lead a command to this line.
    pub(super) fn flags(&self) -> &[String] {
        &self.flags
    }

    fn command(&self, words: &[&str]) -> ProgramBuilder {
        Program::builder(&self.program)
            .args(&self.flags)
            .args(words)
    }

    /// Runs a command to its end and gives back what it printed.
    ///
    /// # Errors
    /// When its exit code is not 0; the error quotes its log.
    pub(super) async fn finish(&self, words: &[&str]) -> Result<String> {
        let what = format!("postrider {}", words.join(" "));
        let mut program = self.command(words).spawn()?;
        let code = program
            .wait_exit(PATIENCE)
            .await
            .with_context(|| what.clone())?;
        if code != Some(0) {
            let code = code.map_or_else(|| String::from("a signal"), |code| code.to_string());
            bail!(
                "`{what}` ended with {code}:\n{}{}",
                program.stdout_text(),
                program.stderr_text()
            );
        }
        Ok(program.stdout_text())
    }

    /// Starts `postrider run` and waits until it holds the slot.
    ///
    /// # Errors
    /// When it ends instead, or does not take the slot in time.
    pub(super) async fn start(&mut self, servers: &Servers, extra: &[&str]) -> Result<u32> {
        let mut words = vec!["run"];
        words.extend(extra);
        let mut streamer = self.command(&words).spawn()?;
        let pid = streamer.pid();
        self.streamer = Some(streamer);
        let pid = pid?;
        let what = format!("the streamer to take the slot {}", self.slot);
        let ended = wait_until(PATIENCE, &what, async || {
            let runs = self
                .streamer
                .as_mut()
                .is_some_and(|program| program.is_running());
            let active = slot_is_active(servers, self.database, self.slot).await?;
            Ok(match (runs, active) {
                (false, _) => Progress::Done(true),
                (true, true) => Progress::Done(false),
                (true, false) => Progress::NotYet(String::from("the slot is not active")),
            })
        });
        if ended.await? {
            bail!("the streamer ended at its start");
        }
        Ok(pid)
    }

    fn running(&mut self) -> Result<&mut Program> {
        self.streamer.as_mut().context("no streamer was started")
    }

    /// SIGTERM, as a deployment does; waits until the streamer has drained and ended.
    ///
    /// # Errors
    /// When it does not end in time, or with another code than 0.
    pub(super) async fn stop(&mut self) -> Result<()> {
        let streamer = self.running()?;
        streamer.terminate()?;
        let code = streamer.wait_exit(PATIENCE).await?;
        anyhow::ensure!(
            code == Some(0),
            "the streamer ended with {code:?} after SIGTERM, not with 0"
        );
        Ok(())
    }

    /// `kill -9`; returns when the process is gone and PostgreSQL has noticed.
    ///
    /// # Errors
    /// When it does not run, or the slot stays active.
    pub(super) async fn kill9(&mut self, servers: &Servers) -> Result<()> {
        self.running()?.kill9().await?;
        let what = format!("the slot {} to be released", self.slot);
        wait_until(PATIENCE, &what, async || {
            let active = slot_is_active(servers, self.database, self.slot).await?;
            Ok(Progress::when(!active, || String::from("it is active")))
        })
        .await
    }

    /// The end of the streamer's log, for a failure.
    pub(super) fn log_tail(&self) -> Option<String> {
        let text = self.streamer.as_ref()?.stderr_text();
        let rows: Vec<&str> = text.lines().collect();
        let first = rows.len().saturating_sub(LOG_TAIL_LINES);
        let tail = rows.get(first..)?.join("\n  ");
        Some(format!(
            "the log of the streamer of slot {} ends:\n  {tail}",
            self.slot
        ))
    }
}

fn url_flags(servers: &Servers, database: &str) -> Vec<String> {
    vec![
        String::from("--postgres-url"),
        servers.postgres.url(database),
        String::from("--nats-url"),
        servers.nats.url(),
    ]
}
