//! One history: the machine between a fake PostgreSQL and a fake JetStream.

mod check;
mod faults;
mod links;
mod stopping;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::time::{Duration, Instant};

use outbox::{
    Action, EpochStart, LookBack, LookBackRange, OutboxSpec, Position, PubAck, Refusal, Relay,
    RelaySettings, Token, Writers,
};
use pgoutput::Lsn;

use crate::Manner;
use crate::database::{Database, Walsender};
use crate::law::{Law, Violation};
use crate::rng::Rng;
use crate::stream::Stream;
use crate::tape::{Occasion, Tape};

pub(crate) use self::check::Summary;
use self::faults::Faults;
use self::links::{Link, Publish};

/// Longest time that faults and commits last, in microseconds.
const TROUBLE_MICROS: u64 = 30_000_000;

/// Time within which everything must be confirmed once the faults have stopped, in microseconds.
/// It covers the longest duplicate window of a history and the longest backoff.
const PATIENCE_MICROS: u64 = 400_000_000;

/// Most rows that any process of a history has in flight.
const MOST_IN_FLIGHT_ROWS: u64 = 40;

/// Events after which a history is taken to run in circles.
const MAX_EVENTS: u64 = 300_000;

/// Rounds of polling after which the machine is taken to run in circles.
const MAX_ROUNDS: u32 = 1_000;

/// Most planned events of one sort.
const MOST_PLANNED: u64 = 25;

#[derive(Debug)]
enum Event {
    Commit,
    ForeignWal,
    Checkpoint,
    Fault,
    Sigterm,
    StreamHeals,
    SessionOpens {
        process: u64,
    },
    Frames {
        session: u64,
    },
    StatusArrives {
        session: u64,
        confirmed: Lsn,
        reply_requested: bool,
    },
    EpochOpens {
        process: u64,
        epoch: u64,
    },
    EpochDies {
        process: u64,
        epoch: u64,
    },
    PublishArrives(Box<Publish>),
    Answer {
        process: u64,
        epoch: u64,
        token: Token,
        answer: Result<PubAck, Refusal>,
    },
    ReadBack {
        process: u64,
        epoch: u64,
        token: Token,
        sequence: u64,
    },
    /// The newest messages are read; the answer takes a while.
    LookBack {
        process: u64,
        epoch: u64,
        range: Box<LookBackRange>,
    },
    LookedBack {
        process: u64,
        epoch: u64,
        answer: Result<LookBack, String>,
    },
    ReadNext {
        process: u64,
        epoch: u64,
        sequence: u64,
    },
    /// What the stream said at the beginning of an epoch arrives.
    EpochOpened {
        process: u64,
        epoch: u64,
        start: Box<EpochStart>,
    },
    Parked {
        process: u64,
        token: Token,
        position: Position,
        fails: bool,
    },
}

impl Event {
    /// What names the event, for those that are the same event in another history by what they
    /// are about. Others are named after the event that causes them.
    fn occasion(&self) -> Option<Occasion> {
        Some(match self {
            Self::EpochOpens { process, epoch } => {
                Occasion::named("epoch opens", [*process, *epoch, 0])
            }
            Self::PublishArrives(publish) => publish.occasion(),
            Self::Answer {
                process,
                epoch,
                token,
                ..
            } => Occasion::named("answer", [*process, *epoch, token.0]),
            Self::Parked { process, token, .. } => {
                Occasion::named("parked", [*process, token.0, 0])
            }
            _ => return None,
        })
    }
}

/// Limits of what the streamer may have in flight.
#[derive(Debug, Clone, Copy)]
struct Limits {
    rows: usize,
    bytes: usize,
}

pub(crate) struct World {
    /// What happened, for people, if anybody asked.
    story: Option<RefCell<Vec<String>>>,
    rng: Rng,
    faults: Faults,
    base: Instant,
    now: u64,
    /// Things that have happened.
    steps: u64,
    trouble_until: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    events: Vec<Option<Event>>,
    /// What the decisions of each event are named by.
    occasions: Vec<Occasion>,
    scheduled: u64,
    timer: Option<u64>,
    database: Database,
    stream: Stream,
    limits: Limits,
    relay: Relay,
    /// Number of the running streamer process.
    process: u64,
    walsenders: u64,
    walsender: Option<Walsender>,
    link: Option<Link>,
    keys: u64,
    /// The highest position that any status update confirmed.
    highest_status: Lsn,
    /// Transactions whose rows were checked against `highest_status`.
    checked: usize,
    /// Rows that the broker forgot and the machine has not been told about.
    forgotten: Vec<Position>,
    /// Dead letters on their way.
    parking: HashSet<(u64, Token)>,
    /// Rows of servers that were replaced by a clone which never had them.
    orphans: HashSet<(Position, String)>,
    summary: Summary,
    /// The streamer was asked to stop, and has to be gone by then.
    stop_by: Option<u64>,
}

impl World {
    pub(crate) fn new(mut rng: Rng, manner: Manner) -> Self {
        let faults = Faults::draw(&mut rng);
        rng.enter(Occasion::named("stream", [0; 3]));
        let writers = if rng.chance(600) {
            Writers::Exclusive
        } else {
            Writers::Shared
        };
        let replicated = rng.chance(500);
        let window = faults.window(&mut rng, writers);
        let (keys, trouble_until) = (rng.between(1, 6), rng.between(1_000_000, TROUBLE_MICROS));
        let base = Instant::now();
        rng.enter(Occasion::named("first process", [0; 3]));
        let limits = Limits::draw(&mut rng);
        let relay = new_relay(&mut rng, limits, base);
        Self {
            story: manner.with_story.then(RefCell::default),
            stream: Stream::new(writers, replicated, window, manner.stream_lies),
            keys,
            trouble_until,
            faults,
            base,
            now: 0,
            steps: 0,
            queue: BinaryHeap::new(),
            events: Vec::new(),
            occasions: Vec::new(),
            scheduled: 0,
            timer: Some(0),
            database: Database::new(),
            limits,
            relay,
            process: 1,
            walsenders: 0,
            walsender: None,
            link: None,
            highest_status: Lsn::ZERO,
            checked: 0,
            forgotten: Vec::new(),
            parking: HashSet::new(),
            orphans: HashSet::new(),
            summary: Summary {
                histories: 1,
                ..Summary::default()
            },
            stop_by: None,
            rng,
        }
    }

    pub(crate) fn run(&mut self) -> Result<Summary, Violation> {
        self.plan();
        loop {
            self.steps += 1;
            if self.steps > MAX_EVENTS || self.now > self.trouble_until + PATIENCE_MICROS {
                return Err(self.stuck());
            }
            let next = self.queue.peek().map(|Reverse((at, ..))| *at);
            match (self.timer, next) {
                (Some(timer), next) if next.is_none_or(|next| timer <= next) => {
                    self.now = self.now.max(timer);
                    self.rng.enter(Occasion::named("timer", [self.now, 0, 0]));
                    let now = self.instant();
                    self.relay.handle_time(now);
                }
                (_, Some(_)) => {
                    let Some(Reverse((at, _, index))) = self.queue.pop() else {
                        continue;
                    };
                    self.now = self.now.max(at);
                    self.rng.enter(self.occasions[index]);
                    let event = self.events[index].take();
                    let twice = || Law::Simulator.broken("an event happened twice");
                    self.handle(event.ok_or_else(twice)?)?;
                }
                (_, None) => return Err(Law::Progress.broken("nothing is left to happen")),
            }
            self.drive()?;
            self.check_stop()?;
            self.check_status_goes_on()?;
            if self.now > self.trouble_until && self.is_quiet() {
                return self.finish();
            }
        }
    }

    fn plan(&mut self) {
        self.plan_some("commit", [3, 25], || Event::Commit);
        self.plan_some("checkpoint", [0, 6], || Event::Checkpoint);
        self.plan_some("foreign WAL", [0, 3], || Event::ForeignWal);
        let most = self.faults.most.max(1);
        self.plan_some("fault", [0, most], || Event::Fault);
        self.rng.enter(Occasion::named("ends", [0; 3]));
        let most = if self.rng.chance(300) { 3 } else { 1 };
        self.plan_some("end", [most / 2, most], || Event::Sigterm);
    }

    /// Plans from `least` to below `most` events. Each may be taken out of the history alone.
    fn plan_some(&mut self, sort: &'static str, [least, most]: [u64; 2], event: fn() -> Event) {
        self.rng.enter(Occasion::named(sort, [u64::MAX, 0, 0]));
        let count = self.rng.between(least, most);
        for number in 0..MOST_PLANNED {
            self.rng.enter(Occasion::named(sort, [number, 0, 0]));
            if self.rng.happens(number < count) {
                let at = self.rng.below(self.trouble_until);
                self.schedule_at(at, event());
            }
        }
    }

    pub(crate) const fn steps(&self) -> u64 {
        self.steps
    }

    /// The story so far, and the decisions that made it.
    pub(crate) fn take_records(&mut self) -> (Vec<String>, Tape) {
        let story = self.story.take().map(RefCell::into_inner);
        (story.unwrap_or_default(), self.rng.take_notes())
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    fn schedule_at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        let occasion = event.occasion();
        let occasion = occasion.unwrap_or_else(|| self.rng.next_occasion());
        self.occasions.push(occasion);
        self.events.push(Some(event));
        self.queue
            .push(Reverse((at, self.scheduled, self.events.len() - 1)));
    }

    fn schedule_in(&mut self, least: u64, most: u64, event: Event) {
        let at = self.now + self.rng.between(least, most);
        self.schedule_at(at, event);
    }

    fn note(&self, text: impl FnOnce() -> String) {
        if let Some(story) = &self.story {
            let seconds = self.now as f64 / 1e6;
            story
                .borrow_mut()
                .push(format!("{seconds:>11.6} s  {}", text()));
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Commit => {
                self.database
                    .commit(&mut self.rng, self.keys, self.faults.poison_permille);
                self.note(|| "commit".to_owned());
            }
            Event::ForeignWal => self.database.write_foreign(&mut self.rng),
            Event::Checkpoint => self.database.checkpoint(),
            Event::Fault => self.fault(),
            Event::Sigterm => self.ask_to_stop(),
            Event::StreamHeals => self.stream.full = false,
            Event::SessionOpens { process } if process == self.process => self.open_session(),
            Event::Frames { session } => self.deliver_frames(session),
            Event::StatusArrives {
                session,
                confirmed,
                reply_requested,
            } => {
                if let Some(walsender) = &mut self.walsender
                    && walsender.number == session
                {
                    walsender.wants_reply |= reply_requested;
                    self.database.confirmed = self.database.confirmed.max(confirmed);
                }
            }
            Event::EpochOpens { process, epoch } if process == self.process => {
                self.open_epoch(epoch);
            }
            Event::EpochDies { process, epoch } if process == self.process => {
                self.epoch_dies(epoch);
            }
            Event::EpochOpened {
                process,
                epoch,
                start,
            } if process == self.process => self.epoch_opened(epoch, *start),
            Event::PublishArrives(publish) => self.publish_arrives(*publish),
            Event::Answer {
                process,
                epoch,
                token,
                answer,
            } if process == self.process => {
                self.answer(epoch, token, answer);
            }
            Event::Parked {
                process,
                token,
                position,
                fails,
            } => {
                self.parked(process, token, position, fails);
            }
            other => self.handle_question(other),
        }
        Ok(())
    }

    /// What is asked of the stream and answered by it; a dead process hears nothing.
    fn handle_question(&mut self, event: Event) {
        match event {
            Event::LookBack {
                process,
                epoch,
                range,
            } if process == self.process => self.look_back(process, epoch, &range),
            Event::LookedBack {
                process,
                epoch,
                answer,
            } if process == self.process => {
                let now = self.instant();
                self.relay.handle_looked_back(now, epoch, answer);
            }
            Event::ReadNext {
                process,
                epoch,
                sequence,
            } if process == self.process => {
                let now = self.instant();
                let found = self.stream.read_next(sequence);
                self.relay.handle_read_next(now, epoch, found);
            }
            Event::ReadBack {
                process,
                epoch,
                token,
                sequence,
            } if process == self.process => {
                let found = self.stream.read_back(sequence);
                let now = self.instant();
                if let Some(stored) = self.stream.at(sequence).cloned() {
                    self.mark_stored(&stored);
                }
                self.relay.handle_read_back(now, epoch, token, found);
            }
            _ => {}
        }
    }

    /// Does what the machine asks for.
    fn drive(&mut self) -> Result<(), Violation> {
        let now = self.instant();
        for round in 0.. {
            if round > MAX_ROUNDS {
                return Err(Law::Progress.broken("the machine asks for more, for ever"));
            }
            let mut busy = false;
            while let Some(action) = self.relay.poll_action() {
                busy = true;
                self.act(action)?;
            }
            while let Some(row) = self.relay.poll_publish(now) {
                busy = true;
                self.publish(row)?;
            }
            while let Some(action) = self.relay.poll_action() {
                busy = true;
                self.act(action)?;
            }
            while let Some(status) = self.relay.poll_status(now) {
                self.status(status)?;
            }
            if !busy {
                break;
            }
        }
        while let Some(notice) = self.relay.poll_notice() {
            self.note(|| format!("notice: {notice}"));
        }
        let base = self.base;
        // Rounded up: a timer that comes before its time is asked for again at once, for ever.
        self.timer = self.relay.poll_timeout().map(|at| {
            let nanos = at.duration_since(base).as_nanos();
            u64::try_from(nanos.div_ceil(1_000)).unwrap_or(u64::MAX)
        });
        Ok(())
    }

    fn act(&mut self, action: Action) -> Result<(), Violation> {
        self.note(|| format!("action: {action:?}"));
        let process = self.process;
        match action {
            Action::OpenSession => {
                self.schedule_in(500, 20_000, Event::SessionOpens { process });
            }
            Action::CloseSession => self.walsender = None,
            Action::OpenEpoch { epoch } => {
                self.schedule_in(500, 20_000, Event::EpochOpens { process, epoch });
            }
            Action::CloseEpoch { .. } => self.cut_link(),
            Action::ReadBack {
                epoch,
                token,
                sequence,
            } => {
                let event = Event::ReadBack {
                    process,
                    epoch,
                    token,
                    sequence,
                };
                self.schedule_in(100, 3_000, event);
            }
            Action::LookBack { epoch, range } => {
                let event = Event::LookBack {
                    process,
                    epoch,
                    range,
                };
                self.schedule_in(100, 20_000, event);
            }
            Action::ReadNext { epoch, sequence } => {
                let event = Event::ReadNext {
                    process,
                    epoch,
                    sequence,
                };
                self.schedule_in(100, 3_000, event);
            }
            Action::Park(letter) => {
                if !self.parking.insert((process, letter.token)) {
                    let detail = format!("the row at {} is parked twice", letter.position);
                    return Err(Law::ParkedForAReason.broken(detail));
                }
                let fails = self.trouble() && self.rng.chance(100);
                let (token, position) = (letter.token, letter.position);
                let event = Event::Parked {
                    process,
                    token,
                    position,
                    fails,
                };
                self.schedule_in(100, 50_000, event);
            }
            // Every subject is the stream's, and the question is only about stalls.
            Action::FindTaker { .. } | Action::NoteHalted(_) => {}
            Action::Stop { kind, detail } => return self.stopped(kind, &detail),
        }
        Ok(())
    }

    /// Whether faults may still happen.
    fn trouble(&self) -> bool {
        self.now < self.trouble_until
    }

    fn parked(&mut self, process: u64, token: Token, position: Position, fails: bool) {
        self.parking.remove(&(process, token));
        let same_process = process == self.process;
        if !same_process && self.rng.chance(500) {
            return;
        }
        let now = self.instant();
        if fails {
            if same_process {
                self.relay
                    .handle_park_failed(token, true, "fake".to_owned());
            }
            return;
        }
        if let Some(row) = self.database.row_mut(position) {
            row.parked = true;
            row.settled_once = true;
        }
        if same_process {
            self.relay.handle_parked(now, token);
        }
    }
}

impl Limits {
    fn draw(rng: &mut Rng) -> Self {
        let (rows, narrow, bytes) = (
            rng.between(1, MOST_IN_FLIGHT_ROWS),
            rng.chance(200),
            rng.between(500, 20_000),
        );
        Self {
            rows: rows as usize,
            bytes: if narrow { bytes as usize } else { 1 << 24 },
        }
    }
}

fn new_relay(rng: &mut Rng, limits: Limits, now: Instant) -> Relay {
    let mut settings = RelaySettings::new(vec![OutboxSpec::new("public", "outbox")]);
    settings.jitter_seed = rng.number();
    settings.max_in_flight_rows = limits.rows;
    settings.look_back_rows = 2 * MOST_IN_FLIGHT_ROWS as usize;
    settings.max_in_flight_bytes = limits.bytes;
    if rng.chance(100) {
        settings.confirm_delay = Duration::from_millis(rng.between(1, 5_000));
    }
    Relay::new(settings, now)
}
