//! The slow work beside the loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jetstream::{Epoch, EpochReader, NatsOptions};
use outbox::{
    BrokerFault, BrokerFaultKind, DeadLetter, EpochStart, Headers, LookBack, LookBackRange,
    ReadBack, ReadNext, Source, SourceFault, SourceFaultKind, Taker, Token, Writers, header,
};
use pgoutput::Lsn;
use postgres::{Control, PgError};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use crate::config::Settings;

use super::control::SharedControl;
use super::epoch;
use super::housekeeping::{self, LastLook};
use super::session::{self, Opened, Session, Told};

/// Reports that may wait for the loop. Tasks beyond it wait themselves.
const REPORT_CAPACITY: usize = 1024;

/// Read-backs under way at a time: enough to hide the round trip, few beside the publishes.
const MAX_READ_BACKS: usize = 128;

/// Wait before a dead letter that could not be written is tried again.
const PARK_RETRY: Duration = Duration::from_secs(2);

/// How long an epoch may take to open, all its questions included. Above the sum of what its own
/// requests wait, so that their better errors come first.
const OPEN_EPOCH_TIMEOUT: Duration = Duration::from_secs(30);

/// How long tasks may take to end with the process.
const FINISH_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a command may write the stream before the streamer goes on all the same. Above
/// [`postgres::TURN`] and the answers that the command may still wait for.
const TURN_LIMIT: Duration = Duration::from_secs(20);

/// How often it is looked whether the command is done.
const TURN_POLL: Duration = Duration::from_millis(100);

/// How long one such look may take. Without an answer the streamer goes on: whoever writes beside
/// it is kept apart by the chain, which costs repetitions and no row.
const TURN_LOOK_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the note of a halt may take. The process is ending, and its log has the row too.
const NOTE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a task has to say.
#[derive(Debug)]
pub(super) enum Report {
    SessionOpened(Result<Box<Opened>, SourceFault>),
    EpochOpened(u64, Result<Box<(EpochStart, Epoch)>, BrokerFault>),
    ReadBack(u64, Token, ReadBack),
    Taker(u64, Token, Taker),
    LookedBack(u64, Result<LookBack, String>),
    ReadNext(u64, ReadNext),
    Parked(Token, Result<(), ParkFailure>),
    SourceFault(SourceFault),
    /// A command waits for a gap between our rows.
    TurnTaken,
}

/// Why a dead letter is not written.
#[derive(Debug)]
pub(super) struct ParkFailure {
    /// Whether it can be written at all, by this role and into this table.
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
    /// The epoch that is being closed.
    closing: Option<JoinHandle<()>>,
    read_backs: Arc<Semaphore>,
    /// Known from the first session on; an epoch needs it to tell whose stream it is.
    owner: watch::Sender<Option<String>>,
    /// The connection for dead letters and checks.
    control: Arc<SharedControl>,
    /// The check of the publication that is under way.
    checking: Option<JoinHandle<()>>,
    last_look: Arc<tokio::sync::Mutex<LastLook>>,
    /// A command has kept its turn beyond all measure; it is not waited for again until it ends.
    gave_up: Arc<AtomicBool>,
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
            closing: None,
            read_backs: Arc::new(Semaphore::new(MAX_READ_BACKS)),
            owner: watch::Sender::new(None),
            control: Arc::default(),
            checking: None,
            last_look: Arc::default(),
            gave_up: Arc::default(),
        };
        (tasks, receiver)
    }

    fn spawn(&mut self, task: impl Future<Output = Report> + Send + 'static) {
        let reports = self.reports.clone();
        self.running.spawn(async move {
            let report = task.await;
            // Without a receiver the process is ending.
            let _ = reports.send(report).await;
        });
    }

    /// Ends with a panic when a task has: without its report the loop would wait for ever, and hold
    /// the slot meanwhile. Released programs end at the first panic anyway (`panic = "abort"`).
    pub(super) async fn panicked(&mut self) {
        hand_on_panic(&mut self.running).await;
    }

    pub(super) fn open_session(&mut self) {
        let settings = Arc::clone(&self.settings);
        let told = Arc::clone(&self.told);
        let control = Arc::clone(&self.control);
        let parting = self.parting.take();
        self.spawn(async move {
            if let Some(parting) = parting {
                // The slot is free only then. How it went is in the log.
                let _ = parting.await;
            }
            let opened = match control.config(&settings) {
                Ok(config) => session::open(&settings, config, &told).await,
                Err(error) => Err(SourceFault {
                    kind: SourceFaultKind::Unfit,
                    detail: error.to_string(),
                }),
            };
            Report::SessionOpened(opened.map(Box::new))
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
        self.control.keep(control);
    }

    /// Whether the server has closed the control connection. A fast shutdown ends ordinary
    /// connections first and then waits for the walsenders, whose stream may be full and unread.
    pub(super) fn control_was_closed(&self) -> bool {
        self.control.was_closed()
    }

    pub(super) fn open_epoch(&mut self, number: u64) {
        let settings = Arc::clone(&self.settings);
        let control = Arc::clone(&self.control);
        let gave_up = Arc::clone(&self.gave_up);
        let mut owner = self.owner.subscribe();
        let closing = self.closing.take();
        self.spawn(async move {
            if let Some(closing) = closing {
                // What the old connection still had in its queue is out or gone then.
                let _ = closing.await;
            }
            await_turn(&settings, &control, &gave_up).await;
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
    pub(super) fn close_epoch(&mut self, epoch: Epoch) {
        self.closing = Some(tokio::spawn(epoch.close()));
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

    /// Reads the stream's newest messages over a connection of its own: a refusal there must not
    /// end the epoch.
    pub(super) fn look_back(&mut self, epoch: u64, range: Box<LookBackRange>) {
        let settings = Arc::clone(&self.settings);
        self.spawn(async move {
            let answer = look_back(&settings, &range).await;
            Report::LookedBack(epoch, answer.map_err(|fault| fault.to_string()))
        });
    }

    pub(super) fn read_next(&mut self, reader: EpochReader, epoch: u64, sequence: u64) {
        self.spawn(async move { Report::ReadNext(epoch, reader.read_next(sequence).await) });
    }

    pub(super) fn park(&mut self, letter: Box<DeadLetter>) {
        let settings = Arc::clone(&self.settings);
        let control = Arc::clone(&self.control);
        self.spawn(async move {
            let token = letter.token;
            let result = park(&settings, &control, &letter)
                .await
                .map_err(|error| ParkFailure {
                    permitted: !is_permanent(&error),
                    detail: error.one_line(),
                });
            if result.as_ref().is_err_and(|failure| failure.permitted) {
                tokio::time::sleep(PARK_RETRY).await;
            }
            Report::Parked(token, result)
        });
    }

    /// Looks whether a command waits for the stream.
    pub(super) fn check_turn(&self) {
        let settings = Arc::clone(&self.settings);
        let control = Arc::clone(&self.control);
        let gave_up = Arc::clone(&self.gave_up);
        let reports = self.reports.clone();
        tokio::spawn(async move {
            let taken = turn_is_taken(&settings, &control).await;
            if taken && !gave_up.load(Ordering::Relaxed) {
                let _ = reports.send(Report::TurnTaken).await;
            }
        });
    }

    /// Who writes the stream, as far as the configuration says.
    pub(super) fn writers(&self) -> Option<Writers> {
        self.settings.nats.writers
    }

    /// Gives a warning that was not given before.
    pub(super) fn warn_once(&self, text: String) {
        self.told.warn_once(text);
    }

    /// Says once how many rows of the outboxes the slot will never bring.
    pub(super) fn tell_older_rows(&self) {
        let settings = Arc::clone(&self.settings);
        let config = self.control.config(&self.settings);
        let told = Arc::clone(&self.told);
        tokio::spawn(async move {
            let Ok(config) = config else { return };
            if let Err(error) = session::tell_older_rows(&settings, &config, &told).await {
                tracing::debug!("older rows could not be counted: {}", error.one_line());
            }
        });
    }

    /// Notes the row at which the streamer halts, for `status`. Where the role may not, the log
    /// alone has it.
    pub(super) async fn note_halted(&self, letter: &DeadLetter) {
        let parts = LetterParts::of(letter);
        let row = parts.row(&self.settings, letter);
        let noting = async |control: &Control| control.note_halted(&row).await;
        let noting = self.control.with(&self.settings, "noting a halt", noting);
        match tokio::time::timeout(NOTE_TIMEOUT, noting).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!("`status` will not show this row: {}", error.one_line());
            }
            Err(_) => tracing::warn!("`status` will not show this row: PostgreSQL is slow"),
        }
    }

    /// Removes what was noted of halts at rows that have flowed since.
    pub(super) async fn forget_halts(&self) {
        let slot = &self.settings.postgres.slot;
        let forgetting = async |control: &Control| control.forget_halts(slot).await;
        let what = "removing notes of halts";
        let forgetting = self.control.with(&self.settings, what, forgetting);
        if let Ok(Err(error)) = tokio::time::timeout(NOTE_TIMEOUT, forgetting).await {
            tracing::debug!("notes of halts stay: {}", error.one_line());
        }
    }

    /// Looks whether publication and tables still are what they were, unless the last look is not
    /// over yet. Gives back whether it was begun.
    pub(super) fn look(&mut self) -> bool {
        if self.checking.as_ref().is_some_and(|it| !it.is_finished()) {
            return false;
        }
        let settings = Arc::clone(&self.settings);
        let control = Arc::clone(&self.control);
        let last = Arc::clone(&self.last_look);
        let told = Arc::clone(&self.told);
        let reports = self.reports.clone();
        self.checking = Some(tokio::spawn(async move {
            let look = housekeeping::look(&settings, &control, &last, &told);
            if let Some(fault) = look.await {
                let _ = reports.send(Report::SourceFault(fault)).await;
            }
        }));
        true
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

async fn turn_is_taken(settings: &Settings, control: &SharedControl) -> bool {
    let slot = &settings.postgres.slot;
    let looking = async |control: &Control| control.turn_is_taken(slot).await;
    let looking = control.with(settings, "looking whose turn it is", looking);
    match tokio::time::timeout(TURN_LOOK_TIMEOUT, looking).await {
        Ok(Ok(taken)) => taken,
        Ok(Err(error)) => {
            tracing::debug!("cannot tell whose turn it is: {}", error.one_line());
            false
        }
        Err(_) => false,
    }
}

/// Waits, within limits, until no command writes the stream. Only an exclusive stream needs it:
/// the chain of one would break that of the other.
async fn await_turn(settings: &Settings, control: &SharedControl, gave_up: &AtomicBool) {
    if settings.nats.writers == Some(Writers::Shared) {
        return;
    }
    let begin = Instant::now();
    // The connection that was asked for the gap, by its backend, and whether it has it for sure.
    let mut gap = None;
    let gave_up_now = loop {
        if !turn_is_taken(settings, control).await {
            break false;
        }
        if gave_up.load(Ordering::Relaxed) {
            break true;
        }
        if begin.elapsed() >= TURN_LIMIT {
            let seconds = TURN_LIMIT.as_secs();
            tracing::warn!("a postrider command writes the stream for {seconds} s: going on");
            break true;
        }
        let giving = give_way(settings, control, &mut gap);
        if let Ok(Err(error)) = tokio::time::timeout(TURN_LOOK_TIMEOUT, giving).await {
            tracing::debug!("cannot give way: {}", error.one_line());
        }
        tokio::time::sleep(TURN_POLL).await;
    };
    gave_up.store(gave_up_now, Ordering::Relaxed);
    if gap.is_none() {
        return;
    }
    let ending = async |control: &Control| match gap {
        Some((pid, _)) if pid == control.backend_pid() => control.end_gap().await,
        _ => Ok(()),
    };
    let ending = control.with(settings, "ending a gap", ending);
    if let Ok(Err(error)) = tokio::time::timeout(TURN_LOOK_TIMEOUT, ending).await {
        tracing::debug!("the gap ends with its connection: {}", error.one_line());
    }
}

/// Says that nothing is in flight, unless this connection says so already.
async fn give_way(
    settings: &Settings,
    control: &SharedControl,
    gap: &mut Option<(i32, bool)>,
) -> Result<(), PgError> {
    let slot = &settings.postgres.slot;
    let giving = async |control: &Control| {
        let pid = control.backend_pid();
        if *gap != Some((pid, true)) {
            // Asked for, it may be held, even if no answer comes in time.
            *gap = Some((pid, false));
            *gap = Some((pid, control.begin_gap(slot).await?));
        }
        Ok(())
    };
    control
        .with(settings, "giving way to a command", giving)
        .await
}

fn nats_options(settings: &Settings) -> Result<NatsOptions, BrokerFault> {
    let options = settings.nats.options(&settings.postgres.slot);
    options.map_err(|error| BrokerFault {
        kind: BrokerFaultKind::Authentication,
        detail: error.to_string(),
    })
}

async fn look_back(settings: &Settings, range: &LookBackRange) -> Result<LookBack, BrokerFault> {
    let options = nats_options(settings)?;
    let target = epoch::target(settings, epoch::owner(&range.source));
    jetstream::look_back(&options, &target, range).await
}

/// Panics when one of the tasks has; ends in no other way.
async fn hand_on_panic(running: &mut JoinSet<()>) {
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    std::future::pending::<()>().await;
}

async fn open_epoch(
    settings: &Settings,
    owner: String,
    number: u64,
) -> Result<(EpochStart, Epoch), BrokerFault> {
    let options = nats_options(settings)?;
    Epoch::open(&options, &epoch::target(settings, owner), number).await
}

/// Commits a dead letter; writing one twice is the same as once.
async fn park(
    settings: &Settings,
    control: &SharedControl,
    letter: &DeadLetter,
) -> Result<(), PgError> {
    let parts = LetterParts::of(letter);
    let row = parts.row(settings, letter);
    let parking = async |control: &Control| control.park(&row).await;
    let what = "writing a dead letter";
    control.with(settings, what, parking).await?;
    Ok(())
}

/// Headers as a JSON object, by hand: a row may have several of one name.
pub(crate) fn headers_json(headers: &Headers) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let members = headers.iter();
    let members = members.map(|(name, value)| format!("{}: {}", quoted(name), quoted(value)));
    format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
}

/// The texts of a dead letter that the table's row borrows.
struct LetterParts {
    position: String,
    headers: String,
    detail: String,
}

impl LetterParts {
    fn of(letter: &DeadLetter) -> Self {
        Self {
            position: letter.position.to_string(),
            headers: headers_json(&letter.headers),
            detail: letter.reason.to_string(),
        }
    }

    fn row<'a>(
        &'a self,
        settings: &'a Settings,
        letter: &'a DeadLetter,
    ) -> postgres::DeadLetter<'a> {
        let is_null = letter.headers.get(header::PAYLOAD) == Some("null");
        let some = |text: &'a str| Some(text).filter(|text| !text.is_empty());
        postgres::DeadLetter {
            slot: &settings.postgres.slot,
            source: &letter.source,
            position: &self.position,
            table_name: &letter.table,
            row_id: some(&letter.row_id),
            dedup_id: some(&letter.dedup_id),
            subject: Some(&letter.subject),
            headers_json: Some(&self.headers),
            payload: Some(&letter.payload[..]).filter(|_| !is_null),
            incomplete: !letter.reason.is_rendered_whole(),
            reason: letter.reason.name(),
            detail: Some(&self.detail),
            created_at: letter.headers.get(header::CREATED_AT),
        }
    }
}

/// Whether trying again would only fail again: the role may not write dead letters, there is no
/// place to write them, or the table does not take this row.
fn is_permanent(error: &PgError) -> bool {
    /// Classes of codes: feature not supported, data, integrity, invalid schema, syntax or access
    /// rule, limits of the program, errors of triggers (PostgreSQL manual, appendix A).
    const CLASSES: [&str; 7] = ["0A", "22", "23", "3F", "42", "54", "P0"];
    error.server().is_some_and(|server| {
        CLASSES
            .iter()
            .any(|class| server.code.as_str().starts_with(class))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_ends_the_loop_and_with_it_the_session() {
        let mut running = JoinSet::new();
        running.spawn(async {});
        running.spawn(std::future::pending());
        let quiet = tokio::time::timeout(Duration::from_millis(20), hand_on_panic(&mut running));
        assert!(quiet.await.is_err(), "tasks that end or run are no panic");
        running.spawn(async { panic!("as a mistake would") });
        let ended = tokio::spawn(async move { hand_on_panic(&mut running).await }).await;
        assert!(ended.unwrap_err().is_panic());
    }
}
