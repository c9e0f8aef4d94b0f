//! Making what a streamer needs, and saying what was there already.
//!
//! Everything here can be run again: what exists is checked and left as it is. The publication is
//! committed before the slot is made, because a slot that is older than its publication fails
//! for ever (servers up to 17) or loses rows in silence (18). What was made by hand and does not
//! fit is reported with the statement that cures it, and not altered.

mod print;
mod publication;
mod server;
mod slot;
mod tables;
mod teardown;
mod watch;

use std::fmt;
use std::time::Duration;

use crate::control::Control;
use crate::error::{Fault, PgError};
use crate::table::{RowCount, TableInfo, TableName};
use crate::url::ConnectConfig;

pub use print::print_sql;
pub use server::replication_refusal;
pub use slot::{SlotWait, check_slot_name};
pub use teardown::{drop_slot, teardown};
pub use watch::{Look, Watched, look};

/// The largest timeout that the server takes, a 32-bit number of milliseconds.
const MAX_TIMEOUT_MS: u128 = 2_147_483_647;

/// What is to be there at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetupPlan {
    /// Name of the slot.
    pub slot: String,
    /// Name of the publication.
    pub publication: String,
    /// The outbox tables.
    pub tables: Vec<TableName>,
    /// Make tables that are missing, from `sql/outbox.sql`.
    pub create_tables: bool,
    /// Make the dead-letter table.
    pub dead_letters: bool,
    /// How long making the slot may wait for open transactions, and all else for locks.
    pub slot_timeout: Duration,
}

/// What a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Object {
    /// The server and our rights on it.
    Server,
    /// An outbox table.
    Table,
    /// The publication.
    Publication,
    /// The slot.
    Slot,
    /// The dead-letter table.
    DeadLetterTable,
}

/// What was found or done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It was there and fits.
    Found,
    /// It was missing and has been made.
    Made,
    /// It was there and has been dropped.
    Dropped,
    /// It is not there.
    Missing,
    /// It works, and something about it should be known.
    Warning,
    /// It does not fit; nothing was changed.
    Wrong,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// What it is about.
    pub object: Object,
    /// Which one.
    pub name: String,
    /// What was found or done.
    pub outcome: Outcome,
    /// In words.
    pub text: String,
    /// What cures it: a statement or an instruction.
    pub cure: Option<String>,
    /// The situation, where it is one of those that an error of the server can name too.
    pub fault: Option<Fault>,
}

impl Finding {
    fn new(object: Object, name: &str, outcome: Outcome, text: impl Into<String>) -> Self {
        Self {
            object,
            name: name.to_owned(),
            outcome,
            text: text.into(),
            cure: None,
            fault: None,
        }
    }

    /// A fault, with its usual cure.
    fn of_fault(mut self, fault: Fault) -> Self {
        self.cure = fault.cure().map(str::to_owned);
        self.fault = Some(fault);
        self
    }

    fn cured_by(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let object = match self.object {
            Object::Server => "server",
            Object::Table => "table",
            Object::Publication => "publication",
            Object::Slot => "slot",
            Object::DeadLetterTable => "dead-letter table",
        };
        write!(f, "{object} {}: {}", self.name, self.text)?;
        if let Some(cure) = &self.cure {
            write!(f, "; cure: {cure}")?;
        }
        Ok(())
    }
}

/// Everything that [`setup`] and [`check`] have to say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetupReport {
    /// In the order of looking.
    pub findings: Vec<Finding>,
    /// The outbox tables as they are.
    pub tables: Vec<TableInfo>,
    /// The rows that they held before the slot was made, in the order of `tables`: those rows are
    /// not in the stream. Counted by [`setup`] alone, since it may take its time.
    pub row_counts: Vec<RowCount>,
    /// Whether this run made the slot.
    pub slot_made: bool,
}

impl SetupReport {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.faults().next().is_none()
    }

    /// The findings that keep the streamer from running.
    pub fn faults(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| matches!(finding.outcome, Outcome::Wrong | Outcome::Missing))
    }
}

/// Looks at everything `plan` names and changes nothing. It reads the catalog alone, however large
/// the tables are: a streamer looks at each of its attempts to begin.
///
/// # Errors
/// An error of the server that is no finding, such as a standby, which may be promoted yet.
pub async fn check(control: &Control, plan: &SetupPlan) -> Result<SetupReport, PgError> {
    let findings = server::check(control, &plan.slot).await?;
    let mut report = SetupReport {
        findings,
        ..SetupReport::default()
    };
    tables::find(control, plan, false, &mut report).await?;
    let found = publication::find(control, plan, &mut report).await?;
    report.findings.extend(found);
    if plan.dead_letters {
        report
            .findings
            .push(tables::find_dead_letters(control).await?);
    }
    report.findings.push(slot::find(control, plan).await?);
    Ok(report)
}

/// Makes what `plan` names and is missing. Stops before the first change if something cannot
/// work, and before making the slot if anything else is wrong; the report says what and why.
/// `on_wait` is told who keeps the slot waiting.
///
/// # Errors
/// No connection, or an error of the server that is no finding. What was made before it stays and
/// is found by the next run.
pub async fn setup(
    config: &ConnectConfig,
    plan: &SetupPlan,
    on_wait: &mut (dyn FnMut(&SlotWait) + Send),
) -> Result<SetupReport, PgError> {
    let control = Control::connect(config).await?;
    limit_locks(&control, plan.slot_timeout).await?;
    let findings = server::check_all(config, &control, &plan.slot).await?;
    let mut report = SetupReport {
        findings,
        ..SetupReport::default()
    };
    if let Err(reason) = check_slot_name(&plan.slot) {
        report.findings.push(Finding::new(
            Object::Slot,
            &plan.slot,
            Outcome::Wrong,
            reason,
        ));
    }
    if !report.is_ready() {
        return Ok(report);
    }
    tables::find(&control, plan, plan.create_tables, &mut report).await?;
    for table in &report.tables {
        report.row_counts.push(control.row_count(table).await?);
    }
    // A slot that is there and no use is told before anything is made beside it.
    let slot = slot::find(&control, plan).await?;
    if slot.outcome == Outcome::Wrong {
        report.findings.push(slot);
    }
    if !report.is_ready() {
        return Ok(report);
    }
    let made = publication::make(&control, plan, &mut report).await?;
    report.findings.extend(made);
    if plan.dead_letters {
        report
            .findings
            .push(tables::make_dead_letters(&control).await?);
    }
    if report.is_ready() {
        let finding = slot::make(config, &control, plan, on_wait).await?;
        report.slot_made = finding.outcome == Outcome::Made;
        report.findings.push(finding);
    }
    Ok(report)
}

/// Bounds how long each statement of this connection may wait for the locks of others.
async fn limit_locks(control: &Control, limit: Duration) -> Result<(), PgError> {
    let limit_ms = limit.as_millis().clamp(1, MAX_TIMEOUT_MS);
    let statement = format!("SET lock_timeout = {limit_ms}");
    Ok(control.client().batch_execute(&statement).await?)
}
