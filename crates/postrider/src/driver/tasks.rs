//! The slow work beside the loop.

use std::sync::Arc;
use std::time::Duration;

use jetstream::{Epoch, EpochReader};
use outbox::{
    BrokerFault, BrokerFaultKind, DeadLetter, EpochStart, ReadBack, Source, SourceFault, Taker,
    Token,
};
use pgoutput::Lsn;
use postgres::{Control, Fault, PgError};
use tokio::sync::{Mutex, Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::config::Settings;

use super::session::{self, Opened, Session, Told};
use super::{epoch, housekeeping};

/// Reports that may wait for the loop. Tasks beyond it wait themselves.
const REPORT_CAPACITY: usize = 1024;

/// Read-backs under way at a time: enough to hide the round trip, few beside the publishes.
const MAX_READ_BACKS: usize = 128;

/// Wait before a dead letter that could not be written is tried again.
const PARK_RETRY: Duration = Duration::from_secs(2);

/// How long an epoch may take to open, all its questions included. Above the sum of what its own
/// requests wait, so that their better errors come first.
const OPEN_EPOCH_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a session may take to open.
const OPEN_SESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// How long tasks may take to end with the process.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// What a task has to say.
#[derive(Debug)]
pub(super) enum Report {
    SessionOpened(Result<Box<Opened>, SourceFault>),
    EpochOpened(u64, Result<Box<(EpochStart, Epoch)>, BrokerFault>),
    ReadBack(u64, Token, ReadBack),
    Taker(u64, Token, Taker),
    Parked(Token, Result<(), ParkFailure>),
    SourceFault(SourceFault),
}

/// Why a dead letter is not written.
#[derive(Debug)]
pub(super) struct ParkFailure {
    /// Whether the role may write it at all.
    pub(super) permitted: bool,
    pub(super) detail: String,
}

/// Starts tasks and ends them with itself.
#[derive(Debug)]
pub(super) struct Tasks {
    settings: Arc<Settings>,
    reports: mpsc::Sender<Report>,
    running: JoinSet<()>,
    told: Arc<Told>,
    /// The session that is being closed.
    parting: Option<JoinHandle<()>>,
    read_backs: Arc<Semaphore>,
    /// Known from the first session on; an epoch needs it to tell whose stream it is.
    owner: watch::Sender<Option<String>>,
    /// The connection for dead letters and checks, opened when first needed.
    control: Arc<Mutex<Option<Control>>>,
}

impl Tasks {
    pub(super) fn new(settings: Settings) -> (Self, mpsc::Receiver<Report>) {
        let (reports, receiver) = mpsc::channel(REPORT_CAPACITY);
        let tasks = Self {
            settings: Arc::new(settings),
            reports,
            running: JoinSet::new(),
            told: Arc::default(),
            parting: None,
            read_backs: Arc::new(Semaphore::new(MAX_READ_BACKS)),
            owner: watch::Sender::new(None),
            control: Arc::default(),
        };
        (tasks, receiver)
    }

    fn spawn(&mut self, task: impl Future<Output = Report> + Send + 'static) {
        while self.running.try_join_next().is_some() {}
        let reports = self.reports.clone();
        self.running.spawn(async move {
            let report = task.await;
            // Without a receiver the process is ending.
            let _ = reports.send(report).await;
        });
    }

    pub(super) fn open_session(&mut self) {
        let settings = Arc::clone(&self.settings);
        let told = Arc::clone(&self.told);
        let parting = self.parting.take();
        self.spawn(async move {
            if let Some(parting) = parting {
                // The slot is free only then. How it went is in the log.
                let _ = parting.await;
            }
            let opened =
                tokio::time::timeout(OPEN_SESSION_TIMEOUT, session::open(&settings, &told)).await;
            Report::SessionOpened(match opened {
                Ok(result) => result.map(Box::new),
                Err(_) => Err(SourceFault {
                    kind: outbox::SourceFaultKind::Unreachable,
                    detail: format!("no session within {} s", OPEN_SESSION_TIMEOUT.as_secs()),
                }),
            })
        });
    }

    /// Closes a session in good order, beside the loop.
    pub(super) fn part(&mut self, session: Session, confirmed: Lsn) {
        self.parting = Some(tokio::spawn(session.part(confirmed)));
    }

    /// Tells the epochs whose rows they carry.
    pub(super) fn learn_owner(&self, source: &Source) {
        self.owner.send_replace(Some(epoch::owner(source)));
    }

    /// Takes the control connection that came with a session.
    pub(super) fn keep_control(&self, control: Control) {
        // A dead letter that is being written holds the lock, with a connection that works.
        if let Ok(mut kept) = self.control.try_lock() {
            *kept = Some(control);
        }
    }

    /// Whether the server has closed the control connection. A fast shutdown ends ordinary
    /// connections first and then waits for the walsenders, whose stream may be full and unread.
    pub(super) fn control_was_closed(&self) -> bool {
        let Ok(mut control) = self.control.try_lock() else {
            return false;
        };
        control.take_if(|control| control.is_closed()).is_some()
    }

    pub(super) fn open_epoch(&mut self, number: u64) {
        let settings = Arc::clone(&self.settings);
        let mut owner = self.owner.subscribe();
        self.spawn(async move {
            let owner = match owner.wait_for(Option::is_some).await {
                Ok(owner) => owner.clone().unwrap_or_default(),
                Err(_) => String::new(),
            };
            let opening = open_epoch(&settings, owner, number);
            let opened = tokio::time::timeout(OPEN_EPOCH_TIMEOUT, opening).await;
            let late = || BrokerFault {
                kind: BrokerFaultKind::Unreachable,
                detail: format!("no answer within {} s", OPEN_EPOCH_TIMEOUT.as_secs()),
            };
            Report::EpochOpened(number, opened.unwrap_or_else(|_| Err(late())).map(Box::new))
        });
    }

    /// Ends an epoch's connection beside the loop.
    pub(super) fn close_epoch(epoch: Epoch) {
        tokio::spawn(epoch.close());
    }

    pub(super) fn read_back(
        &mut self,
        reader: EpochReader,
        epoch: u64,
        token: Token,
        sequence: u64,
    ) {
        let permits = Arc::clone(&self.read_backs);
        self.spawn(async move {
            // The semaphore is never closed; without a permit the read goes on all the same.
            let _permit = permits.acquire().await;
            Report::ReadBack(epoch, token, reader.read_back(sequence).await)
        });
    }

    /// Asks which stream takes a row's subject.
    pub(super) fn find_taker(
        &mut self,
        reader: EpochReader,
        epoch: u64,
        token: Token,
        subject: &[u8],
    ) {
        let settings = Arc::clone(&self.settings);
        let subject = String::from_utf8_lossy(subject).into_owned();
        self.spawn(async move {
            let taker = match settings.nats.options(&settings.postgres.slot) {
                Ok(options) => reader.find_taker(&options, &subject).await,
                Err(_) => Taker::Unknown,
            };
            Report::Taker(epoch, token, taker)
        });
    }

    pub(super) fn park(&mut self, letter: Box<DeadLetter>) {
        let settings = Arc::clone(&self.settings);
        let control = Arc::clone(&self.control);
        self.spawn(async move {
            let token = letter.token;
            let result = park(&settings, &control, &letter)
                .await
                .map_err(|error| ParkFailure {
                    permitted: !is_refused(&error),
                    detail: error.one_line(),
                });
            if result.as_ref().is_err_and(|failure| failure.permitted) {
                tokio::time::sleep(PARK_RETRY).await;
            }
            Report::Parked(token, result)
        });
    }

    /// Looks whether slot and publication still are what they were.
    pub(super) fn check_publication(&self) {
        let settings = Arc::clone(&self.settings);
        let control = Arc::clone(&self.control);
        let reports = self.reports.clone();
        tokio::spawn(async move {
            if let Some(fault) = housekeeping::check_publication(&settings, &control).await {
                let _ = reports.send(Report::SourceFault(fault)).await;
            }
        });
    }

    pub(super) async fn finish(mut self) {
        if let Some(parting) = self.parting.take() {
            // It has a limit of its own.
            let _ = parting.await;
        }
        let ending = async { while self.running.join_next().await.is_some() {} };
        self.reports = mpsc::channel(1).0;
        self.owner.send_replace(Some(String::new()));
        if tokio::time::timeout(FINISH_TIMEOUT, ending).await.is_err() {
            tracing::debug!("tasks were cut off at the end");
        }
    }
}

async fn open_epoch(
    settings: &Settings,
    owner: String,
    number: u64,
) -> Result<(EpochStart, Epoch), BrokerFault> {
    let options = settings
        .nats
        .options(&settings.postgres.slot)
        .map_err(|error| BrokerFault {
            kind: BrokerFaultKind::Authentication,
            detail: error.to_string(),
        })?;
    Epoch::open(&options, &epoch::target(settings, owner), number).await
}

/// The control connection, opened anew if there is none that works.
pub(super) async fn connected<'a>(
    settings: &Settings,
    control: &'a mut Option<Control>,
) -> Result<&'a Control, PgError> {
    if control.as_ref().is_none_or(Control::is_closed) {
        let config = settings.postgres.connect_config().map_err(PgError::Io)?;
        *control = Some(Control::connect(&config).await?);
    }
    control.as_ref().ok_or(PgError::Closed)
}

/// Commits a dead letter; writing one twice is the same as once.
async fn park(
    settings: &Settings,
    control: &Mutex<Option<Control>>,
    letter: &DeadLetter,
) -> Result<(), PgError> {
    let mut guard = control.lock().await;
    let control = connected(settings, &mut guard).await?;
    let mut headers = serde_json::Map::new();
    for (name, value) in letter.headers.iter() {
        headers.insert(name.to_owned(), value.into());
    }
    let headers = serde_json::Value::Object(headers).to_string();
    let position = letter.position.to_string();
    let detail = letter.reason.to_string();
    let some = |text: &'_ str| !text.is_empty();
    control
        .park(&postgres::DeadLetter {
            slot: &settings.postgres.slot,
            source: &letter.source,
            position: &position,
            table_name: &letter.table,
            row_id: Some(letter.row_id.as_str()).filter(|id| some(id)),
            dedup_id: Some(letter.dedup_id.as_str()).filter(|id| some(id)),
            subject: Some(&letter.subject),
            headers_json: Some(&headers),
            payload: Some(&letter.payload),
            reason: letter.reason.name(),
            detail: Some(&detail),
            created_at: letter.headers.get(outbox::header::CREATED_AT),
        })
        .await?;
    Ok(())
}

/// Whether the role may not write dead letters, or there is nowhere to write them.
fn is_refused(error: &PgError) -> bool {
    /// The table or its schema does not exist (PostgreSQL manual, appendix A).
    const UNDEFINED: [&str; 2] = ["42P01", "3F000"];
    let undefined = |server: &postgres::ServerError| UNDEFINED.contains(&server.code.as_str());
    error.fault() == Fault::PermissionDenied || error.server().is_some_and(undefined)
}
