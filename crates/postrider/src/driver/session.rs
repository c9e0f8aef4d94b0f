//! Opening the replication session, and what its errors mean.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outbox::{
    Fork, OutboxSpec, SessionStart, Source, SourceFault, SourceFaultKind, StatusUpdate, TableFault,
};
use pgoutput::Lsn;
use postgres::{
    ConnectConfig, Control, Ending, Fault, Finding, Object, Outcome, PgError, ReplicationSession,
    RowCount, SetupPlan, SystemIdentity, TableInfo, WalStream,
};

use crate::config::Settings;
use crate::exit::{CommandError, Exit};

/// How long the look at the catalog before a session may take, and then the session's beginning.
/// Both take milliseconds, unless somebody holds locks on the catalog or the server is gone. The
/// session's commands have their own limit below it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Seconds from 1970 to 2000, where PostgreSQL's clock begins.
const POSTGRES_EPOCH_UNIX_SECONDS: u64 = 946_684_800;

/// A session that streams.
#[derive(Debug)]
pub(crate) struct Session {
    pub(super) stream: WalStream,
}

/// Warnings that were given, so that a standby does not repeat them at each of its attempts.
#[derive(Debug, Default)]
pub(super) struct Told(Mutex<HashSet<String>>);

impl Told {
    /// Gives the warnings among these findings, and one for each table that no longer has what its
    /// outbox needs. That is no fault yet: rows that were written before may still fit.
    pub(super) fn warn(&self, settings: &Settings, findings: &[Finding], tables: &[TableInfo]) {
        for finding in findings {
            if finding.outcome == Outcome::Warning {
                self.warn_once(finding.to_string());
            }
        }
        for table in tables {
            if let Err(fault) = check_columns(settings, table) {
                let publication = &settings.postgres.publication;
                self.warn_once(format!(
                    "{fault}, as publication {publication} sends it; its next row will stop the \
                     streamer"
                ));
            }
        }
    }

    pub(super) fn warn_once(&self, text: String) {
        if self.is_new(&text) {
            tracing::warn!("{text}");
        }
    }

    fn is_new(&self, text: &str) -> bool {
        let mut given = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        given.insert(text.to_owned())
    }
}

/// Whether a table has the columns that its outbox needs. Tables of no outbox have.
pub(crate) fn check_columns(settings: &Settings, table: &TableInfo) -> Result<(), TableFault> {
    match spec_of(settings, table) {
        Some(spec) => outbox::check_columns(spec, columns_of(table), settings.outboxes.len() - 1),
        None => Ok(()),
    }
}

fn spec_of<'a>(settings: &'a Settings, table: &TableInfo) -> Option<&'a OutboxSpec> {
    let name = &table.name;
    let is_this = |spec: &&OutboxSpec| spec.schema == name.schema && spec.table == name.name;
    settings.outboxes.iter().find(is_this)
}

/// Name and type of each column.
pub(crate) fn columns_of(table: &TableInfo) -> impl Iterator<Item = (&str, &str)> {
    let columns = table.columns.iter();
    columns.map(|column| (column.name.as_str(), column.type_name.as_str()))
}

/// Whether ids of a table may be those of another writer of the same stream.
pub(crate) fn may_collide(settings: &Settings, table: &TableInfo) -> bool {
    spec_of(settings, table).is_some_and(|spec| outbox::ids_may_collide(spec, columns_of(table)))
}

/// What is to be known of such a table whose stream is shared.
pub(crate) fn collision_warning(table: &str) -> String {
    format!(
        "ids of {table} are integers, unique only in that table; in a shared stream name the \
         table in its dedup_id, for example \"{{table}}:{{id}}\""
    )
}

/// Everything about tables whose ids collide, which only a change of the configuration cures.
pub(crate) fn collisions<'a>(
    settings: &Settings,
    tables: impl Iterator<Item = &'a TableInfo>,
) -> Option<String> {
    let faults: Vec<String> = tables
        .filter_map(|table| match check_columns(settings, table) {
            Err(fault @ TableFault::IdsCollide { .. }) => Some(fault.to_string()),
            _ => None,
        })
        .collect();
    (!faults.is_empty()).then(|| faults.join("; "))
}

/// What opening a session gives.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) session: Session,
    pub(super) start: SessionStart,
    /// A position before which the tables' names are history, and the outboxes' oids with their
    /// index in the settings.
    pub(super) tables: (Lsn, Vec<(u32, usize)>),
    /// Tables whose ids another writer of a shared stream may use as well.
    pub(super) colliding_tables: Vec<String>,
    /// An ordinary connection to the same server.
    pub(super) control: Control,
}

impl Session {
    pub(super) async fn send_status(&mut self, status: StatusUpdate) -> Result<(), PgError> {
        let StatusUpdate {
            confirmed,
            reply_requested,
        } = status;
        self.stream
            .send_status(confirmed, clock_micros(), reply_requested)
            .await
    }
}

/// How long the orderly end of the replication stream may take; it delivers the last confirmation.
const PART_TIMEOUT: Duration = Duration::from_secs(5);

impl Session {
    /// The orderly end: a last confirmation, and the slot is free.
    pub(super) async fn part(mut self, confirmed: Lsn) {
        let last = StatusUpdate {
            confirmed,
            reply_requested: false,
        };
        let ending = match self.send_status(last).await {
            Ok(()) => self.stream.finish(PART_TIMEOUT).await,
            Err(error) => Err(error),
        };
        match ending {
            Ok(Ending::Complete) => tracing::info!(%confirmed, "confirmed, and the slot is free"),
            Ok(Ending::Deadline) => tracing::warn!(
                %confirmed,
                "the stream did not end in time; the last confirmation may be missing"
            ),
            Err(error) => tracing::warn!(
                %confirmed,
                error = error.one_line(),
                "the stream broke at its end; the last confirmation may be missing"
            ),
        }
    }
}

/// The client's clock in PostgreSQL's count, microseconds since 2000. The server only shows it.
fn clock_micros() -> i64 {
    let epoch = UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_UNIX_SECONDS);
    let since = SystemTime::now().duration_since(epoch).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// What the slot and its publication must be for these settings.
pub(crate) fn plan(settings: &Settings, dead_letters: bool) -> SetupPlan {
    let tables = settings.outboxes.iter();
    SetupPlan {
        slot: settings.postgres.slot.clone(),
        publication: settings.postgres.publication.clone(),
        tables: tables
            .map(|spec| postgres::TableName {
                schema: spec.schema.clone(),
                name: spec.table.clone(),
            })
            .collect(),
        create_tables: false,
        dead_letters,
        slot_timeout: Duration::from_secs(30),
    }
}

/// Checks everything that the slot needs, then begins to stream. The publication is looked at each
/// time: on server 18 the rows of a missing one vanish without an error.
///
/// Connecting bounds itself, by the hosts of the URL and their `connect_timeout`; all else is
/// bounded here.
pub(super) async fn open(
    settings: &Settings,
    config: ConnectConfig,
    told: &Told,
) -> Result<Opened, SourceFault> {
    let control = Control::connect(&config)
        .await
        .map_err(|error| fault_of(&error))?;
    // On the very server that is looked at.
    let config = config.only_at(control.host());
    let looking = in_time(look(settings, &control, told));
    let (looked, session) = tokio::join!(looking, ReplicationSession::connect(&config));
    let (looked, session) = match (looked, session) {
        (Ok(looked), Ok(session)) => (looked, session),
        (Err(fault), Ok(session)) => {
            session.close().await;
            return Err(fault);
        }
        (Ok(_), Err(error)) => return Err(fault_of_login(&config, &error)),
        (Err(fault), Err(error)) => return Err(first_to_cure(fault, &config, &error)),
    };
    let confirmed_flush = looked.confirmed_flush;
    let beginning = begin(settings, &config, &control, session, confirmed_flush);
    let (session, start) = in_time(beginning).await?;
    Ok(Opened {
        session,
        start,
        tables: looked.tables,
        colliding_tables: looked.colliding_tables,
        control,
    })
}

/// Gives up what takes longer than [`ANSWER_TIMEOUT`].
async fn in_time<T>(
    asking: impl Future<Output = Result<T, SourceFault>>,
) -> Result<T, SourceFault> {
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, asking).await;
    answer.unwrap_or_else(|_| {
        Err(SourceFault {
            kind: SourceFaultKind::Unreachable,
            detail: format!("no answer within {} s", ANSWER_TIMEOUT.as_secs()),
        })
    })
}

/// Of what the catalog says and why the session could not log in: the server as a whole comes
/// first, then our rights on it, then what is made with them.
fn first_to_cure(looked: SourceFault, config: &ConnectConfig, error: &PgError) -> SourceFault {
    use SourceFaultKind as Kind;
    let login = fault_of_login(config, error);
    let is_ours = matches!(login.kind, Kind::Permission | Kind::Authentication);
    match looked.kind {
        Kind::Unfit => looked,
        _ if is_ours => login,
        _ => looked,
    }
}

/// Begins to stream from the slot.
async fn begin(
    settings: &Settings,
    config: &ConnectConfig,
    control: &Control,
    mut session: ReplicationSession,
    confirmed_flush: Lsn,
) -> Result<(Session, SessionStart), SourceFault> {
    let pg = &settings.postgres;
    let identity = session
        .identify_system()
        .await
        .map_err(|error| fault_of(&error))?;
    let history = session.timeline_history(identity.timeline).await;
    let history = history.map_err(|error| fault_of(&error))?;
    let started = session
        .start(&pg.slot, std::slice::from_ref(&pg.publication))
        .await;
    let stream = match started {
        Ok(stream) => stream,
        Err(error) => return Err(start_fault(control, &pg.slot, &error).await),
    };
    refuse_to_hold_up_commits(control, &pg.slot).await?;
    // Until the slot was ours its holder may have been sent rows that were flushed after
    // IDENTIFY_SYSTEM. Should the control connection have met another server of a failover, the
    // greater of the two only makes a stale tail known later.
    let flushed = control.wal_flush_position().await;
    let flushed = flushed.map_err(|error| fault_of(&error))?;
    let forks = history.iter().map(|fork| Fork {
        timeline: fork.timeline,
        switch_lsn: fork.switch_lsn,
    });
    let start = SessionStart {
        forks: forks.collect(),
        log_end: identity.wal_position.max(flushed),
        source: named(identity, config, &pg.slot),
        confirmed_flush,
    };
    Ok((Session { stream }, start))
}

/// What the catalog says.
struct Looked {
    confirmed_flush: Lsn,
    tables: (Lsn, Vec<(u32, usize)>),
    colliding_tables: Vec<String>,
}

/// Checks all that the slot needs.
async fn look(settings: &Settings, control: &Control, told: &Told) -> Result<Looked, SourceFault> {
    let report = postgres::check(control, &plan(settings, false)).await;
    let report = report.map_err(|error| fault_of(&error))?;
    if let Some(detail) = collisions(settings, report.tables.iter()) {
        let kind = SourceFaultKind::Misconfigured;
        return Err(SourceFault { kind, detail });
    }
    told.warn(settings, &report.findings, &report.tables);
    let names = control.unseen_standby_names().await;
    if let Some(names) = names.map_err(|error| fault_of(&error))? {
        told.warn_once(format!(
            "synchronous_standby_names is {names:?}, and this role cannot see whether it matches \
             postrider/{}, for which every commit would wait. Cure: GRANT pg_monitor to the role",
            settings.postgres.slot
        ));
    }
    if let Some(finding) = report.faults().next() {
        return Err(fault_of_finding(finding));
    }
    let confirmed_flush = control.confirmed_flush(&settings.postgres.slot).await;
    let confirmed_flush = confirmed_flush
        .map_err(|error| fault_of(&error))?
        .unwrap_or_default();
    let tables = outbox_tables(settings, control).await;
    let tables = tables.map_err(|error| fault_of(&error))?;
    let colliding = report.tables.iter();
    let colliding = colliding.filter(|table| may_collide(settings, table));
    Ok(Looked {
        confirmed_flush,
        tables,
        colliding_tables: colliding.map(|table| table.name.to_string()).collect(),
    })
}

/// The log of a slot on a server that has identified itself.
fn named(identity: SystemIdentity, config: &ConnectConfig, slot: &str) -> Source {
    Source {
        system_identifier: identity.system_identifier,
        timeline: identity.timeline,
        database: identity
            .database
            .unwrap_or_else(|| config.database().to_owned()),
        slot: slot.to_owned(),
    }
}

/// The log of our slot, as the headers of its rows name it.
pub(crate) async fn source_of(config: &ConnectConfig, slot: &str) -> Result<Source, PgError> {
    let mut session = ReplicationSession::connect(config).await?;
    let identity = session.identify_system().await?;
    session.close().await;
    Ok(named(identity, config, slot))
}

/// Says how many rows of each outbox are older than the slot, which never brings them.
pub(super) async fn tell_older_rows(
    settings: &Settings,
    config: &ConnectConfig,
    told: &Told,
) -> Result<(), PgError> {
    // A connection of its own: counting may take its time, and nothing waits for it.
    let control = Control::connect(config).await?;
    for name in &plan(settings, false).tables {
        let Some(table) = control.table(name).await? else {
            continue;
        };
        let rows = control.rows_before_slot(&table, &settings.postgres.slot);
        let Some(count) = rows.await?.and_then(some_rows) else {
            continue;
        };
        if told.is_new(&format!("older rows of {name}")) {
            tracing::info!("{name}: {count} rows are older than the slot; {OLDER_ROWS_CURE}");
        }
    }
    Ok(())
}

/// What becomes of rows from before the slot.
pub(crate) const OLDER_ROWS_CURE: &str = "they are not streamed, only what commits after it was \
                                          made. To send them too, insert them anew";

/// A count in words; `None` for none.
pub(crate) fn some_rows(count: RowCount) -> Option<String> {
    match count {
        RowCount::Exactly(0) | RowCount::About(..=0) => None,
        RowCount::Exactly(count) => Some(count.to_string()),
        RowCount::MoreThan(count) => Some(format!("more than {count}")),
        RowCount::About(count) => Some(format!("about {count}")),
    }
}

/// The oids of the outboxes. The position is read first, so that a table that was renamed in
/// between is found under its new name or not at all.
async fn outbox_tables(
    settings: &Settings,
    control: &Control,
) -> Result<(Lsn, Vec<(u32, usize)>), PgError> {
    let as_of = control.wal_insert_position().await?;
    let mut tables = Vec::new();
    for (index, name) in plan(settings, false).tables.iter().enumerate() {
        let found = control.table(name).await?;
        tables.extend(found.map(|table| (table.oid, index)));
    }
    Ok((as_of, tables))
}

/// A streamer that is a synchronous standby holds up every commit of the cluster until it confirms,
/// and its own dead letters with them. The role sees it only with `pg_monitor`.
async fn refuse_to_hold_up_commits(control: &Control, slot: &str) -> Result<(), SourceFault> {
    let lag = control
        .read_lag(slot)
        .await
        .map_err(|error| fault_of(&error))?;
    let state = lag.and_then(|lag| lag.sync_state);
    match state.filter(|state| state != "async") {
        None => Ok(()),
        Some(state) => Err(SourceFault {
            kind: SourceFaultKind::Unfit,
            detail: format!(
                "synchronous_standby_names matches this streamer (sync_state {state}), so commits \
                 would wait for it; name the standbys there that are meant, not postrider/{slot} \
                 and not *"
            ),
        }),
    }
}

/// Why the stream did not start; a held slot is named with its holder.
async fn start_fault(control: &Control, slot: &str, error: &PgError) -> SourceFault {
    let mut fault = fault_of(error);
    if fault.kind == SourceFaultKind::SlotHeld
        && let Ok(Some(holder)) = control.slot_holder(slot).await
    {
        let name = holder
            .application_name
            .unwrap_or_else(|| "unknown".to_owned());
        fault.detail = format!(
            "standing by: backend {} ({name}) streams from it",
            holder.pid
        );
    }
    fault
}

/// What an error of PostgreSQL means to the relay.
pub(super) fn fault_of(error: &PgError) -> SourceFault {
    use SourceFaultKind as Kind;
    let fault = error.fault();
    let kind = match fault {
        Fault::ServerStarting | Fault::ServerShuttingDown => Kind::Restarting,
        Fault::TooManyConnections => Kind::TooManyConnections,
        Fault::SlotActive { .. } => Kind::SlotHeld,
        Fault::SlotMissing => Kind::SlotMissing,
        Fault::SlotLost => Kind::SlotLost,
        Fault::PublicationMissing => Kind::PublicationMissing,
        Fault::AuthFailed => Kind::Authentication,
        Fault::PermissionDenied => Kind::Permission,
        Fault::Unreachable | Fault::SlotOnStandby | Fault::NotWritable | Fault::Cancelled => {
            Kind::Unreachable
        }
        Fault::WalLevel
        | Fault::DatabaseMissing
        | Fault::TooManySlots
        | Fault::Pooler
        | Fault::ServerVersion
        | Fault::Tls
        | Fault::Other => Kind::Unfit,
    };
    let mut detail = error.one_line();
    if let Some(cure) = fault.cure() {
        detail.push_str("; ");
        detail.push_str(cure);
    }
    SourceFault { kind, detail }
}

/// What it means that the replication session could not log in, with the cure for this very role.
fn fault_of_login(config: &ConnectConfig, error: &PgError) -> SourceFault {
    let mut fault = fault_of(error);
    if let Some(finding) = postgres::replication_refusal(config, error) {
        fault.detail = finding.to_string();
    }
    fault
}

/// What a finding of the check means to the relay.
pub(super) fn fault_of_finding(finding: &Finding) -> SourceFault {
    use SourceFaultKind as Kind;
    let missing = finding.outcome == Outcome::Missing;
    let kind = match finding.object {
        Object::Slot if missing => Kind::SlotMissing,
        Object::Slot => Kind::SlotLost,
        Object::Publication if missing => Kind::PublicationMissing,
        Object::Publication => Kind::PublicationUnfit,
        Object::Table | Object::DeadLetterTable => Kind::TableChanged,
        Object::Server => Kind::Unfit,
    };
    SourceFault {
        kind,
        detail: finding.to_string(),
    }
}

/// The error with which a command ends that could not work with PostgreSQL.
pub(crate) fn command_error(error: &PgError) -> CommandError {
    let exit = match fault_of(error).kind {
        SourceFaultKind::SlotMissing | SourceFaultKind::SlotLost => Exit::SlotLost,
        SourceFaultKind::Authentication | SourceFaultKind::Permission | SourceFaultKind::Unfit => {
            Exit::Refused
        }
        _ => Exit::Failed,
    };
    let failed = CommandError::message(exit, error.one_line());
    match error.fault().cure() {
        Some(cure) => failed.with_help(cure),
        None => failed,
    }
}
