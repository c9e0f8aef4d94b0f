//! The one loop that joins the relay machine with both servers.
//!
//! The machine decides, this loop acts: it carries frames, rows, answers and status updates between
//! the machine and the two connections, and opens and closes those when told to. Slow work (opening
//! connections, reading back, writing dead letters) runs in tasks of its own and reports over one
//! channel, so that nothing holds up the status updates.

mod control;
mod epoch;
mod housekeeping;
mod session;
mod tasks;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jetstream::{Epoch, EpochEvent};
use outbox::{
    Action, DeadLetter, EpochStart, Level, Notice, Relay, SourceFault, SourceFaultKind, StopKind,
    Writers,
};
use pgoutput::Frame;
use tokio::sync::mpsc;

use crate::config::Settings;
use crate::signals::Signals;

pub(crate) use self::epoch::{owner, target};
pub(crate) use self::session::{
    OLDER_ROWS_CURE, check_columns, collision_warning, collisions, columns_of, command_error,
    may_collide, plan, some_rows, source_of,
};
pub(crate) use self::tasks::headers_json;

use self::housekeeping::Housekeeping;
use self::session::Session;
use self::tasks::{Report, Tasks};

/// Frames that are taken from the replication stream at a time. Enough to make a wake-up worth its
/// cost, few enough that status updates and PubAcks never wait long.
const MAX_FRAMES_AT_A_TIME: usize = 512;

/// Bytes of frames that are taken at a time; they stand in memory beside the window.
const MAX_FRAME_BYTES_AT_A_TIME: usize = 256 * 1024;

/// A wake-up when the machine names no time, so that a mistake there cannot freeze the loop.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// Why the streamer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// What it means.
    pub kind: StopKind,
    /// What happened, for people.
    pub detail: String,
}

/// The streamer.
#[derive(Debug)]
pub struct Driver {
    relay: Relay,
    tasks: Tasks,
    reports: mpsc::Receiver<Report>,
    session: Option<Session>,
    /// Frames taken from the stream and not yet handed to the machine.
    frames: VecDeque<Frame>,
    epoch: Option<(u64, Epoch)>,
    housekeeping: Housekeeping,
    /// Tables whose ids another writer of a shared stream may use as well.
    colliding_tables: Vec<String>,
    /// The row at which the streamer halts.
    halted: Option<Box<DeadLetter>>,
    stopped: Option<Stopped>,
}

impl Driver {
    /// A streamer that has not begun. `relay` was made from the same settings.
    #[must_use]
    pub fn new(settings: Settings, relay: Relay) -> Self {
        let (tasks, reports) = Tasks::new(settings);
        Self {
            relay,
            tasks,
            reports,
            session: None,
            frames: VecDeque::new(),
            epoch: None,
            housekeeping: Housekeeping::new(Instant::now()),
            colliding_tables: Vec::new(),
            halted: None,
            stopped: None,
        }
    }

    /// Streams until a signal, a caught-up target or a fault that only a person can cure.
    pub async fn run(mut self, signals: &mut Signals) -> Stopped {
        let mut events = Vec::new();
        let mut batch = Vec::new();
        loop {
            let now = Instant::now();
            self.relay.handle_time(now);
            self.look_at_control(now);
            self.feed(now);
            self.perform(now).await;
            if let Some(stopped) = self.stopped.take() {
                self.finish(now).await;
                return stopped;
            }
            self.housekeeping
                .look(now, &self.relay, &mut self.tasks, self.session.as_ref());
            let wake_at = self
                .relay
                .poll_timeout()
                .unwrap_or(now + LONGEST_SLEEP)
                .min(now + LONGEST_SLEEP);
            let reads = self.frames.is_empty() && self.relay.wants_wal();
            tokio::select! {
                biased;
                name = signals.next() => {
                    tracing::info!(signal = name, "stopping: waiting for PubAcks in flight");
                    self.relay.handle_shutdown(Instant::now());
                }
                report = self.reports.recv() => self.take_report(report),
                number = next_events(self.epoch.as_mut(), &mut events) => {
                    self.take_events(number, &mut events);
                }
                result = next_frames(self.session.as_mut(), &mut batch), if reads => {
                    self.frames.extend(batch.drain(..));
                    if let Err(error) = result {
                        self.session_failed(error);
                    }
                }
                () = self.tasks.panicked() => {}
                () = tokio::time::sleep_until(wake_at.into()) => {}
            }
        }
    }

    /// The server ends ordinary connections when it shuts down; then it waits for us.
    fn look_at_control(&mut self, now: Instant) {
        if self.session.is_some() && self.tasks.control_was_closed() {
            self.drop_session();
            let detail = "it closed our control connection, as it does when it shuts down";
            let fault = SourceFault {
                kind: SourceFaultKind::Restarting,
                detail: detail.to_owned(),
            };
            self.relay.handle_session_ended(now, fault);
        }
    }

    /// Hands frames to the machine as long as it has room.
    fn feed(&mut self, now: Instant) {
        while self.relay.wants_wal()
            && let Some(frame) = self.frames.pop_front()
        {
            self.relay.handle_wal(now, frame);
        }
    }

    /// Does everything that the machine asks for.
    async fn perform(&mut self, now: Instant) {
        loop {
            while let Some(action) = self.relay.poll_action() {
                self.act(action);
            }
            while let Some((_, epoch)) = &mut self.epoch
                && let Some(outgoing) = self.relay.poll_publish(now)
            {
                epoch.publish(outgoing);
            }
            while let Some(status) = self.relay.poll_status(now) {
                if let Some(session) = &mut self.session
                    && let Err(error) = session.send_status(status).await
                {
                    self.session_failed(error);
                }
            }
            // A row that cannot be published and a goal that is reached bring actions of their own.
            match self.relay.poll_action() {
                Some(action) => self.act(action),
                None => break,
            }
        }
        while let Some(notice) = self.relay.poll_notice() {
            log(&notice);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::OpenSession => self.tasks.open_session(),
            Action::CloseSession => {
                match (self.session.take(), self.relay.parting_confirmation()) {
                    (Some(session), Some(confirmed)) => {
                        self.frames.clear();
                        self.tasks.part(session, confirmed);
                    }
                    (_, _) => self.drop_session(),
                }
            }
            Action::OpenEpoch { epoch } => self.tasks.open_epoch(epoch),
            Action::CloseEpoch { epoch } => {
                if let Some((_, old)) = self.epoch.take_if(|(number, _)| *number == epoch) {
                    self.tasks.close_epoch(old);
                }
            }
            Action::ReadBack {
                epoch,
                token,
                sequence,
            } => {
                if let Some((number, open)) = &self.epoch
                    && *number == epoch
                {
                    self.tasks.read_back(open.reader(), epoch, token, sequence);
                }
            }
            Action::FindTaker {
                epoch,
                token,
                subject,
            } => {
                if let Some((number, open)) = &self.epoch
                    && *number == epoch
                {
                    let reader = open.reader();
                    self.tasks.find_taker(reader, epoch, token, &subject);
                }
            }
            Action::LookBack { epoch, range } => self.tasks.look_back(epoch, range),
            Action::ReadNext { epoch, sequence } => {
                if let Some((number, open)) = &self.epoch
                    && *number == epoch
                {
                    self.tasks.read_next(open.reader(), epoch, sequence);
                }
            }
            Action::Park(letter) => self.tasks.park(letter),
            Action::NoteHalted(letter) => self.halted = Some(letter),
            Action::Stop { kind, detail } => self.stopped = Some(Stopped { kind, detail }),
        }
    }

    fn take_report(&mut self, report: Option<Report>) {
        let now = Instant::now();
        match report {
            Some(Report::SessionOpened(Ok(opened))) => {
                self.tasks.learn_owner(&opened.start.source);
                self.tasks.keep_control(opened.control);
                self.session = Some(opened.session);
                self.colliding_tables = opened.colliding_tables;
                if self.tasks.writers() == Some(Writers::Shared) {
                    self.warn_of_collisions();
                }
                let (as_of, tables) = opened.tables;
                self.relay.handle_tables(as_of, tables);
                self.relay.handle_session_started(now, opened.start);
            }
            Some(Report::SessionOpened(Err(fault))) => self.relay.handle_session_ended(now, fault),
            Some(Report::EpochOpened(number, Ok(opened))) => {
                let (start, epoch) = *opened;
                self.tell_about_tables(&start);
                self.epoch = Some((number, epoch));
                self.relay.handle_epoch_started(now, number, start);
            }
            Some(Report::EpochOpened(number, Err(fault))) => {
                self.relay.handle_epoch_refused(now, number, fault);
            }
            Some(Report::ReadBack(epoch, token, found)) => {
                self.relay.handle_read_back(now, epoch, token, found);
            }
            Some(Report::Taker(epoch, token, taker)) => {
                self.relay.handle_taker(now, epoch, token, taker);
            }
            Some(Report::LookedBack(epoch, answer)) => {
                self.relay.handle_looked_back(now, epoch, answer);
            }
            Some(Report::ReadNext(epoch, found)) => {
                self.relay.handle_read_next(now, epoch, found);
            }
            Some(Report::Parked(token, Ok(()))) => self.relay.handle_parked(now, token),
            Some(Report::Parked(token, Err(failure))) => {
                self.relay
                    .handle_park_failed(token, failure.permitted, failure.detail);
            }
            Some(Report::SourceFault(fault)) if self.session.is_some() => {
                self.relay.handle_source_fault(now, fault);
            }
            Some(Report::TurnTaken) => self.relay.handle_yield(now),
            Some(Report::SourceFault(_)) | None => {}
        }
    }

    /// What can only be told once both the tables and the stream are known.
    fn tell_about_tables(&self, start: &EpochStart) {
        if start.writers == Writers::Shared {
            self.warn_of_collisions();
        }
        if start.last_sequence == 0 {
            self.tasks.tell_older_rows();
        }
    }

    fn warn_of_collisions(&self) {
        for table in &self.colliding_tables {
            self.tasks.warn_once(collision_warning(table));
        }
    }

    fn take_events(&mut self, number: u64, events: &mut Vec<EpochEvent>) {
        let now = Instant::now();
        for event in events.drain(..) {
            match event {
                EpochEvent::Acked { token, ack } => {
                    self.relay.handle_acked(now, number, token, ack);
                }
                EpochEvent::Refused { token, refusal } => {
                    self.relay.handle_refused(now, number, token, refusal);
                }
                EpochEvent::Ended(end) => self.relay.handle_epoch_ended(now, number, end),
            }
        }
    }

    fn session_failed(&mut self, error: postgres::PgError) {
        let fault = session::fault_of(&error);
        self.drop_session();
        self.relay.handle_session_ended(Instant::now(), fault);
    }

    fn drop_session(&mut self) {
        self.session = None;
        self.frames.clear();
    }

    /// The orderly end: what may be confirmed is confirmed, then both connections close.
    async fn finish(mut self, now: Instant) {
        if let Some((_, epoch)) = self.epoch.take() {
            self.tasks.close_epoch(epoch);
        }
        // Takes over what was settled since the last update, due or not.
        let _ = self.relay.poll_status(now);
        if let Some(letter) = self.halted.take() {
            self.tasks.note_halted(&letter).await;
        }
        if let Some(session) = self.session.take() {
            session.part(self.relay.confirmed()).await;
        }
        self.tasks.forget_halts().await;
        self.tasks.finish().await;
    }
}

/// Events of the epoch, if there is one, with its number.
async fn next_events(epoch: Option<&mut (u64, Epoch)>, events: &mut Vec<EpochEvent>) -> u64 {
    match epoch {
        Some((number, epoch)) => {
            epoch.next_events(events).await;
            *number
        }
        None => std::future::pending().await,
    }
}

/// Frames of the session, if there is one.
async fn next_frames(
    session: Option<&mut Session>,
    frames: &mut Vec<Frame>,
) -> Result<(), postgres::PgError> {
    match session {
        Some(session) => {
            let (count, bytes) = (MAX_FRAMES_AT_A_TIME, MAX_FRAME_BYTES_AT_A_TIME);
            session.stream.next_frames(frames, count, bytes).await
        }
        None => std::future::pending().await,
    }
}

fn log(notice: &Notice) {
    if let Notice::Stopping { kind, .. } = notice
        && !matches!(kind, StopKind::Drained | StopKind::CaughtUp)
    {
        // The program ends with this as its error, which is printed then.
        tracing::debug!("{notice}");
        return;
    }
    match notice.level() {
        Level::Debug => tracing::debug!("{notice}"),
        Level::Info => tracing::info!("{notice}"),
        Level::Warn => tracing::warn!("{notice}"),
        Level::Error => tracing::error!("{notice}"),
    }
}
