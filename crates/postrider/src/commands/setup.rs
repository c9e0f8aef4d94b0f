//! `postrider setup`.

use std::fmt::Write as _;

use jetstream::{Concern, Finding as StreamFinding, StreamAdmin, StreamTarget, StreamWanted};
use outbox::{BrokerFault, BrokerFaultKind, Writers};
use postgres::{
    Control, Fault, Finding, Object, Outcome, ReplicationSession, SetupPlan, SetupReport, SlotWait,
    TableKind,
};

use crate::cli::SetupArgs;
use crate::cli::output::print;
use crate::config::Settings;
use crate::driver::{
    OLDER_ROWS_CURE, check_columns, collision_warning, collisions, command_error, may_collide,
    owner, plan, some_rows, source_of, target,
};
use crate::exit::{CommandError, Exit};

/// Subjects of a stream that is made here, and copies of each message in a cluster.
const DEFAULT_SUBJECT: &str = "outbox.>";
const CLUSTER_REPLICAS: u32 = 3;

/// Runs the command.
///
/// # Errors
/// When something is in the way that `setup` does not change (exit 3), or a server does not answer.
pub async fn execute(settings: Settings, args: SetupArgs) -> Result<Exit, CommandError> {
    let config = settings.postgres.connect_config()?;
    let plan = SetupPlan {
        create_tables: args.create_table,
        slot_timeout: args.timeout,
        ..plan(&settings, true)
    };
    if args.print_sql {
        // The version decides one line; a server that is not there does not keep the DBA waiting.
        let major = Control::connect(&config)
            .await
            .ok()
            .map(|control| control.server_version().major());
        print(&postgres::print_sql(&plan, config.user(), major))?;
        return Ok(Exit::Done);
    }
    // Both servers first: a slot without a stream would only keep WAL.
    let options = settings.nats.options(&settings.postgres.slot)?;
    let admin = StreamAdmin::connect(&options)
        .await
        .map_err(|fault| broker_error(&fault))?;
    let control = Control::connect(&config)
        .await
        .map_err(|error| command_error(&error))?;
    refuse_unfit_tables(&control, &settings).await?;
    if !args.adopt {
        refuse_unfit_stream(&control, &admin, &settings, config.database()).await?;
    }
    if args.recreate_slot {
        drop_lost_slot(&config, &control, &plan, &settings).await?;
    }
    drop(control);
    let mut on_wait = |wait: &SlotWait| tracing::warn!("{}", waiting_for(wait));
    let report = postgres::setup(&config, &plan, &mut on_wait)
        .await
        .map_err(|error| command_error(&error))?;
    print(&postgres_text(&report))?;
    if let Some(fault) = report.faults().next() {
        return Err(refused(fault));
    }
    let source = source_of(&config, &settings.postgres.slot)
        .await
        .map_err(|error| command_error(&error))?;
    set_up_stream(
        &admin,
        &settings,
        target(&settings, owner(&source)),
        args.adopt,
    )
    .await?;
    warn_of_collisions(&admin, &settings, &report).await?;
    print(&next_steps(&report))?;
    Ok(Exit::Done)
}

/// Integer ids are unique in their table only, and others write a shared stream.
async fn warn_of_collisions(
    admin: &StreamAdmin,
    settings: &Settings,
    report: &SetupReport,
) -> Result<(), CommandError> {
    let state = admin.state(&settings.nats.stream).await;
    let by_metadata = state.ok().and_then(|state| state.config.writers());
    if settings.nats.writers.or(by_metadata) == Some(Writers::Exclusive) {
        return Ok(());
    }
    for table in &report.tables {
        if may_collide(settings, table) {
            print(&line("warning", collision_warning(&table.name.to_string())))?;
        }
    }
    Ok(())
}

/// The error of a finding that stands in the way: its cure is the help.
pub(super) fn refused(finding: &Finding) -> CommandError {
    let alone = Finding {
        cure: None,
        ..finding.clone()
    };
    let exit = match finding.fault {
        Some(Fault::SlotLost | Fault::SlotMissing | Fault::PublicationMissing) => Exit::SlotLost,
        _ => Exit::Refused,
    };
    let error = CommandError::message(exit, alone);
    match &finding.cure {
        Some(cure) => error.with_help(cure),
        None => error,
    }
}

fn postgres_text(report: &SetupReport) -> String {
    report
        .findings
        .iter()
        .map(|finding| line(outcome_word(finding.outcome), finding))
        .collect()
}

const fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Found => "found",
        Outcome::Made => "made",
        Outcome::Dropped => "dropped",
        Outcome::Missing => "missing",
        Outcome::Warning => "warning",
        Outcome::Wrong => "wrong",
    }
}

fn line(word: &str, text: impl std::fmt::Display) -> String {
    format!("{word:<8} {text}\n")
}

fn waiting_for(wait: &SlotWait) -> String {
    let transaction = &wait.transaction;
    let who = match (transaction.pid, &transaction.gid) {
        (Some(pid), _) => format!("backend {pid}"),
        (None, Some(gid)) => format!("prepared transaction {gid:?}"),
        (None, None) => "a transaction".to_owned(),
    };
    let name = wait.application_name.as_deref().unwrap_or("unknown");
    let age = transaction.age.map_or_else(
        || "unknown age".to_owned(),
        |age| format!("open for {} s", age.as_secs()),
    );
    format!("the slot waits for {who} ({name}), {age}: it must end first")
}

/// Rows that were there before the slot are not streamed: how many, and what to do about them.
fn next_steps(report: &SetupReport) -> String {
    let mut text = String::new();
    for (table, rows) in report.tables.iter().zip(&report.row_counts) {
        let Some(count) = some_rows(*rows) else {
            continue;
        };
        let name = &table.name;
        let _ = if report.slot_made {
            writeln!(
                text,
                "note     {name}: {count} rows were there before the slot was made; \
                 {OLDER_ROWS_CURE}"
            )
        } else {
            writeln!(
                text,
                "note     {name}: {count} rows are there now; `run` streams what commits after \
                 the slot was made"
            )
        };
    }
    text.push_str("ready    start with: postrider run\n");
    text
}

/// Tables that are there must have the columns that their outboxes need, before a slot is made that
/// could never be streamed.
async fn refuse_unfit_tables(control: &Control, settings: &Settings) -> Result<(), CommandError> {
    let mut tables = Vec::new();
    for name in &plan(settings, false).tables {
        let found = control.table(name).await;
        let found = found.map_err(|error| command_error(&error))?;
        // What is no table at all is told as such later.
        tables.extend(found.filter(|table| table.kind != TableKind::Other));
    }
    if let Some(faults) = collisions(settings, tables.iter()) {
        return Err(CommandError::message(Exit::Usage, faults));
    }
    for table in &tables {
        check_columns(settings, table)
            .map_err(|fault| CommandError::message(Exit::Refused, fault))?;
    }
    refuse_hidden_columns(control, settings).await
}

/// So must what a publication that is there sends of them.
async fn refuse_hidden_columns(control: &Control, settings: &Settings) -> Result<(), CommandError> {
    let look = postgres::look(control, &plan(settings, false), None).await;
    let look = look.map_err(|error| command_error(&error))?;
    let publication = &settings.postgres.publication;
    let tables = look.tables.iter();
    for table in tables.filter(|table| table.kind != TableKind::Other) {
        check_columns(settings, table).map_err(|fault| {
            let text = format!("publication {publication} leaves out columns: {fault}");
            let name = table.name.to_sql();
            CommandError::message(Exit::Refused, text).with_help(format!(
                "as its owner, put the table in with all columns: ALTER PUBLICATION {quoted} DROP \
                 TABLE {name}; ALTER PUBLICATION {quoted} ADD TABLE {name};",
                quoted = postgres::quote_identifier(publication),
            ))
        })?;
    }
    Ok(())
}

/// A stream that is there must be one that we may write, for the same reason. Where the server does
/// not tell its identifier this early, the later check of the stream decides alone.
async fn refuse_unfit_stream(
    control: &Control,
    admin: &StreamAdmin,
    settings: &Settings,
    database: &str,
) -> Result<(), CommandError> {
    let sql = "SELECT system_identifier::text FROM pg_control_system()";
    let Ok(row) = control.client().query_one(sql, &[]).await else {
        return Ok(());
    };
    let identifier: String = row.try_get(0).unwrap_or_default();
    let owner = format!("{identifier}/{database}/{}", settings.postgres.slot);
    let findings = match admin.check(&target(settings, owner)).await {
        Ok(findings) => findings,
        Err(fault) if fault.kind == BrokerFaultKind::StreamMissing => return Ok(()),
        Err(fault) => return Err(broker_error(&fault)),
    };
    let refused = findings.iter().find_map(|finding| match finding {
        StreamFinding::Refuse(concern) => Some(concern),
        _ => None,
    });
    refused.map_or(Ok(()), |concern| {
        Err(refusal(&settings.nats.stream, concern))
    })
}

/// The error that a refused stream ends with.
fn refusal(stream: &str, concern: &Concern) -> CommandError {
    let text = format!("stream {stream}: {}: {}", concern.field, concern.reason);
    CommandError::message(Exit::Refused, text).with_help(&concern.cure)
}

/// `--recreate-slot`: only a slot that is lost is dropped, and the gap is named. With the slot its
/// position goes, so all that a new slot needs is looked at before.
async fn drop_lost_slot(
    config: &postgres::ConnectConfig,
    control: &Control,
    plan: &SetupPlan,
    settings: &Settings,
) -> Result<(), CommandError> {
    let slot = &settings.postgres.slot;
    let lag = control
        .read_lag(slot)
        .await
        .map_err(|error| command_error(&error))?;
    let Some(lag) = lag else { return Ok(()) };
    if !lag.is_lost() {
        return Err(CommandError::message(
            Exit::Refused,
            format!("slot {slot} is not lost, so --recreate-slot would throw rows away"),
        )
        .with_help("leave out --recreate-slot; `postrider teardown` drops a healthy slot"));
    }
    let looked = postgres::check(control, plan).await;
    let looked = looked.map_err(|error| command_error(&error))?;
    let is_made_later = |finding: &Finding| match finding.object {
        Object::Slot => true,
        Object::Publication => finding.outcome == Outcome::Missing,
        Object::Table => finding.outcome == Outcome::Missing && plan.create_tables,
        Object::Server | Object::DeadLetterTable => false,
    };
    if let Some(fault) = looked.faults().find(|finding| !is_made_later(finding)) {
        return Err(refused(fault));
    }
    match ReplicationSession::connect(config).await {
        Ok(session) => session.close().await,
        Err(error) => return Err(command_error(&error)),
    }
    let dropped = postgres::drop_slot(control, slot, false)
        .await
        .map_err(|error| command_error(&error))?;
    if dropped.outcome == Outcome::Wrong {
        return Err(refused(&dropped));
    }
    let from = lag
        .confirmed_flush_lsn
        .map_or_else(|| "unknown".to_owned(), |lsn| lsn.to_string());
    let table = settings
        .outboxes
        .first()
        .map(|spec| format!("{}.{}", spec.schema, spec.table));
    print(&line("dropped", format!("slot {slot}, lost after {from}")))?;
    print(&line(
        "gap",
        format!(
            "rows of {} committed after {from} and before the new slot are not streamed; compare \
             the table's ids with the stream's Nats-Msg-Id headers and insert the missing again",
            table.unwrap_or_default()
        ),
    ))?;
    Ok(())
}

async fn set_up_stream(
    admin: &StreamAdmin,
    settings: &Settings,
    target: StreamTarget,
    adopt: bool,
) -> Result<(), CommandError> {
    let clustered = admin.server().cluster.is_some();
    let stream = target.stream.clone();
    let subjects = subjects(&target.patterns);
    let tables = settings
        .outboxes
        .iter()
        .map(|spec| format!("{}.{}", spec.schema, spec.table));
    let mut wanted = StreamWanted::new(target, subjects, tables.collect());
    wanted.adopt = adopt;
    wanted.replicas = settings
        .nats
        .replicas
        .map_or(if clustered { CLUSTER_REPLICAS } else { 1 }, u32::from);
    let findings = admin
        .ensure(&wanted)
        .await
        .map_err(|fault| broker_error(&fault))?;
    let mut refused = None;
    for finding in &findings {
        let (word, text) = match finding {
            StreamFinding::Found(text) => ("found", text.clone()),
            StreamFinding::Made(text) => ("made", text.clone()),
            StreamFinding::Left(text) => ("left", text.clone()),
            StreamFinding::Warn(concern) => ("warning", concern.to_string()),
            StreamFinding::Refuse(concern) => {
                refused = refused.or(Some(concern));
                ("wrong", concern.to_string())
            }
        };
        print(&line(word, format!("stream {stream}: {text}")))?;
    }
    refused.map_or(Ok(()), |concern| Err(refusal(&stream, concern)))
}

/// What a new stream takes: the usual subject where it covers any of ours, and the rest of ours. An
/// outbox with subjects of its own leaves the usual one to the stream of another.
fn subjects(patterns: &[String]) -> Vec<String> {
    let (usual, own): (Vec<_>, Vec<_>) = patterns
        .iter()
        .cloned()
        .partition(|pattern| jetstream::covers(DEFAULT_SUBJECT, pattern));
    let usual = (!usual.is_empty()).then(|| DEFAULT_SUBJECT.to_owned());
    usual.into_iter().chain(own).collect()
}

/// The error with which a command ends that could not work with NATS.
pub(crate) fn broker_error(fault: &BrokerFault) -> CommandError {
    let exit = match fault.kind {
        BrokerFaultKind::Unreachable | BrokerFaultKind::StreamUnavailable => Exit::Failed,
        _ => Exit::Refused,
    };
    CommandError::message(exit, fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_stream_takes_the_usual_subject_only_where_it_is_ours() {
        let subjects = |patterns: &[&str]| {
            subjects(
                &patterns
                    .iter()
                    .map(|it| (*it).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(subjects(&["outbox.*.*"]), ["outbox.>"]);
        assert_eq!(subjects(&["bank.*", "outbox.a"]), ["outbox.>", "bank.*"]);
        assert_eq!(subjects(&["bank.*"]), ["bank.*"]);
    }
}
