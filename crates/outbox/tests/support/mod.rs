//! A bench for the relay machine: literal inputs, everything it puts out collected.
#![allow(dead_code, reason = "each test program uses its own part of the bench")]

pub(crate) mod wire;

use std::time::{Duration, Instant};

use bytes::Bytes;
use outbox::{
    Action, BrokerFault, BrokerFaultKind, DeadLetter, EpochStart, LookBack, LookBackRange, Notice,
    OutboxSpec, Outgoing, Position, PubAck, Reach, ReadBack, ReadNext, Refusal, Relay,
    RelaySettings, SeenMessage, SessionStart, Source, SourceFault, SourceFaultKind, StatusUpdate,
    StopKind, StoredRow, Tail, Token, Writers, header,
};
use pgoutput::{Frame, Lsn};

use self::wire::{Val, oid};

/// The relation that [`Bench::describe`] describes: `public.outbox`.
pub(crate) const OUTBOX: u32 = 16_385;
/// Another published table.
pub(crate) const ORDERS: u32 = 16_400;

/// Rounds of polling after which the machine is taken to run in circles.
const MOST_ROUNDS: u32 = 50;

/// The machine with a clock in milliseconds, both connections answered as the test says.
pub(crate) struct Bench {
    pub(crate) relay: Relay,
    base: Instant,
    pub(crate) now_ms: u64,
    /// Answers `OpenSession` at once; `None` leaves it open.
    pub(crate) session: Option<SessionStart>,
    /// Answers `OpenEpoch` at once; `None` leaves it open.
    pub(crate) stream: Option<EpochStart>,
    /// The newest epoch asked for.
    pub(crate) epoch: u64,
    pub(crate) actions: Vec<Action>,
    pub(crate) sent: Vec<Outgoing>,
    /// Status updates with their times.
    pub(crate) statuses: Vec<(u64, StatusUpdate)>,
    pub(crate) notices: Vec<Notice>,
    /// PostgreSQL answers when it is asked for a sign of life.
    pub(crate) server_answers: bool,
    next_sequence: u64,
    /// What the stream holds, for who looks back.
    pub(crate) messages: Vec<SeenMessage>,
    /// The newest messages may not be read.
    pub(crate) look_back_denied: bool,
}

pub(crate) fn settings() -> RelaySettings {
    RelaySettings::new(vec![OutboxSpec::new("public", "outbox")])
}

pub(crate) fn source() -> Source {
    Source {
        system_identifier: 7_001,
        timeline: 1,
        database: "shop".to_owned(),
        slot: "postrider".to_owned(),
    }
}

pub(crate) fn session_start() -> SessionStart {
    SessionStart {
        source: source(),
        forks: Vec::new(),
        log_end: Lsn::new(1_000_000),
        confirmed_flush: Lsn::new(1),
    }
}

pub(crate) fn epoch_start(writers: Writers) -> EpochStart {
    EpochStart {
        writers,
        created_unix_nanos: 1,
        last_sequence: 0,
        tail: Tail::Empty,
        max_message_bytes: 1 << 20,
    }
}

pub(crate) fn position(commit_lsn: u64, change: u64) -> Position {
    Position {
        commit_lsn: Lsn::new(commit_lsn),
        change,
    }
}

/// A row of this source as the stream holds it.
pub(crate) fn stored(sequence: u64, at: Position, dedup_id: &str) -> StoredRow {
    StoredRow {
        sequence,
        source: source(),
        position: at,
        dedup_id: dedup_id.to_owned(),
        settled: None,
        chained: true,
        origin: None,
        position_id: None,
    }
}

pub(crate) fn source_fault(kind: SourceFaultKind) -> SourceFault {
    SourceFault {
        kind,
        detail: "as the test says".to_owned(),
    }
}

pub(crate) fn broker_fault(kind: BrokerFaultKind) -> BrokerFault {
    BrokerFault {
        kind,
        detail: "as the test says".to_owned(),
    }
}

pub(crate) fn api_error(code: u16, err_code: u32) -> Refusal {
    Refusal::Api {
        code,
        err_code,
        description: "as the test says".to_owned(),
    }
}

impl Bench {
    /// Both connections open at once and stay up.
    pub(crate) fn new(writers: Writers) -> Self {
        Self::with(settings(), writers)
    }

    pub(crate) fn with(settings: RelaySettings, writers: Writers) -> Self {
        Self::start(settings, Some(session_start()), Some(epoch_start(writers)))
    }

    pub(crate) fn start(
        settings: RelaySettings,
        session: Option<SessionStart>,
        stream: Option<EpochStart>,
    ) -> Self {
        let base = Instant::now();
        let mut bench = Self {
            relay: Relay::new(settings, base),
            base,
            now_ms: 0,
            session,
            next_sequence: stream.as_ref().map_or(0, |stream| stream.last_sequence),
            stream,
            epoch: 0,
            actions: Vec::new(),
            sent: Vec::new(),
            statuses: Vec::new(),
            notices: Vec::new(),
            server_answers: true,
            messages: Vec::new(),
            look_back_denied: false,
        };
        bench.pump();
        bench
    }

    pub(crate) fn now(&self) -> Instant {
        self.base + Duration::from_millis(self.now_ms)
    }

    /// Polls in the documented order until nothing is left, and holds the machine to waiting for a
    /// time that is yet to come.
    pub(crate) fn pump(&mut self) {
        let now = self.now();
        for _ in 0..MOST_ROUNDS {
            self.poll_all();
            match self.relay.poll_timeout() {
                Some(due) if due <= now => self.relay.handle_time(now),
                _ => return,
            }
        }
        panic!(
            "the machine asks to be called again at once, for ever, at {} ms",
            self.now_ms
        );
    }

    fn poll_all(&mut self) {
        let now = self.now();
        loop {
            let mut busy = false;
            while let Some(action) = self.relay.poll_action() {
                busy = true;
                self.act(action);
            }
            while let Some(row) = self.relay.poll_publish(now) {
                busy = true;
                self.sent.push(row);
            }
            // A poison row that was next has become an action.
            while let Some(action) = self.relay.poll_action() {
                busy = true;
                self.act(action);
            }
            while let Some(status) = self.relay.poll_status(now) {
                self.statuses.push((self.now_ms, status));
                if status.reply_requested && self.server_answers {
                    self.relay.handle_wal(now, alive());
                }
            }
            while let Some(notice) = self.relay.poll_notice() {
                assert!(!notice.to_string().is_empty());
                self.notices.push(notice);
            }
            if !busy {
                return;
            }
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now();
        match (&action, &self.session, &self.stream) {
            (Action::OpenSession, Some(start), _) => {
                self.relay.handle_session_started(now, start.clone());
            }
            (Action::OpenEpoch { epoch }, _, Some(start)) => {
                self.epoch = *epoch;
                self.next_sequence = start.last_sequence;
                self.relay.handle_epoch_started(now, *epoch, start.clone());
            }
            (Action::OpenEpoch { epoch }, ..) => self.epoch = *epoch,
            (Action::LookBack { epoch, range }, ..) => {
                let answer = if self.look_back_denied {
                    Err("denied".to_owned())
                } else {
                    Ok(self.look_back(range))
                };
                self.relay.handle_looked_back(now, *epoch, answer);
            }
            (Action::ReadNext { epoch, sequence }, ..) => {
                self.hold_tail();
                let mut messages = self.messages.iter();
                let found = messages.find(|message| message.sequence >= *sequence);
                let found = found.cloned().map_or(ReadNext::End, ReadNext::Message);
                self.relay.handle_read_next(now, *epoch, found);
            }
            // What was on its way there is of no account any more.
            (Action::CloseEpoch { .. }, ..) => self.sent.clear(),
            _ => {}
        }
        self.actions.push(action);
    }

    /// What the stream's last message is, the stream holds.
    fn hold_tail(&mut self) {
        let Some(start) = &self.stream else { return };
        let (sequence, row) = match &start.tail {
            Tail::Empty | Tail::Gone => return,
            Tail::Foreign => (start.last_sequence, None),
            Tail::Row(row) => (row.sequence, Some(row.clone())),
        };
        self.messages.retain(|message| message.sequence < sequence);
        self.messages.push(SeenMessage { sequence, row });
    }

    fn look_back(&mut self, range: &LookBackRange) -> LookBack {
        self.hold_tail();
        let within = |message: &&SeenMessage| (range.from..=range.to).contains(&message.sequence);
        let mut messages: Vec<_> = self.messages.iter().filter(within).cloned().collect();
        let reach = if messages.first().is_none_or(|first| first.sequence == 1) {
            Reach::Beginning
        } else {
            Reach::Wanted
        };
        let surplus = messages.len().saturating_sub(range.rows);
        messages.drain(..surplus);
        let reach = if surplus > 0 { Reach::Wanted } else { reach };
        LookBack { messages, reach }
    }

    /// Lets time pass, stopping wherever the machine wants to be called.
    pub(crate) fn advance(&mut self, millis: u64) {
        let until = self.now_ms + millis;
        while self.now_ms < until {
            let due = self.relay.poll_timeout().map_or(until, |due| {
                let micros = due.duration_since(self.base).as_micros();
                u64::try_from(micros.div_ceil(1_000)).unwrap()
            });
            self.now_ms = due.clamp(self.now_ms + 1, until);
            let now = self.now();
            self.relay.handle_time(now);
            self.pump();
        }
    }

    pub(crate) fn wal(&mut self, start: u64, data: Bytes) {
        let now = self.now();
        let frame = Frame::WalData {
            start: Lsn::new(start),
            server_time_micros: 0,
            data,
        };
        self.relay.handle_wal(now, frame);
        self.pump();
    }

    pub(crate) fn keepalive(&mut self, wal_end: u64, reply_requested: bool) {
        let now = self.now();
        let frame = Frame::KeepAlive {
            wal_end: Lsn::new(wal_end),
            server_time_micros: 0,
            reply_requested,
        };
        self.relay.handle_wal(now, frame);
        self.pump();
    }

    /// Describes `public.outbox` with id, aggregate_id, type and payload.
    pub(crate) fn describe(&mut self) {
        self.wal(0, wire::relation(OUTBOX, "public", "outbox", &columns()));
    }

    pub(crate) fn row(&mut self, id: &str, key: &str) {
        let values = [id.into(), key.into(), "placed".into(), "{}".into()];
        self.wal(0, wire::insert(OUTBOX, &values));
    }

    /// A whole transaction of rows with one key each; it ends 10 bytes behind its commit record.
    pub(crate) fn transaction(&mut self, commit_lsn: u64, rows: &[(&str, &str)]) {
        self.wal(commit_lsn, wire::begin(commit_lsn));
        self.describe();
        for (id, key) in rows {
            self.row(id, key);
        }
        self.wal(commit_lsn, wire::commit(commit_lsn, commit_lsn + 10));
    }

    /// Rows handed to the publisher since the last call.
    pub(crate) fn take_sent(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.sent)
    }

    /// Their dedup ids.
    pub(crate) fn take_sent_ids(&mut self) -> Vec<String> {
        self.take_sent().iter().map(id_of).collect()
    }

    pub(crate) fn take_actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.actions)
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// The stream stores a row at its next sequence and says so.
    pub(crate) fn ack(&mut self, row: &Outgoing) {
        self.store(row);
        self.ack_at(row.token, self.next_sequence);
    }

    /// The stream stores a row at its next sequence; nobody hears of it.
    pub(crate) fn store(&mut self, row: &Outgoing) {
        self.next_sequence += 1;
        let at = row.headers.get(header::POSITION).unwrap_or_default();
        let tail = StoredRow {
            settled: row.settled,
            chained: row.expected_last_sequence.is_some(),
            ..stored(self.next_sequence, at.parse().unwrap(), &id_of(row))
        };
        self.messages.push(SeenMessage {
            sequence: self.next_sequence,
            row: Some(tail.clone()),
        });
        if let Some(stream) = &mut self.stream {
            stream.last_sequence = self.next_sequence;
            stream.tail = Tail::Row(tail);
        }
    }

    /// Lets time pass until a row is sent.
    pub(crate) fn await_sent(&mut self) {
        for _ in 0..600 {
            if !self.sent.is_empty() {
                return;
            }
            self.advance(100);
        }
        panic!(
            "nothing was sent within a minute: {:?}",
            self.relay.snapshot()
        );
    }

    /// The stream stores everything that is sent, until nothing more comes.
    pub(crate) fn ack_all(&mut self) {
        loop {
            let sent = self.take_sent();
            if sent.is_empty() {
                return;
            }
            sent.iter().for_each(|row| self.ack(row));
        }
    }

    pub(crate) fn ack_at(&mut self, token: Token, sequence: u64) {
        self.answer_ack(token, sequence, false);
    }

    pub(crate) fn ack_duplicate(&mut self, token: Token, sequence: u64) {
        self.answer_ack(token, sequence, true);
    }

    fn answer_ack(&mut self, token: Token, sequence: u64, duplicate: bool) {
        let now = self.now();
        let ack = PubAck {
            sequence,
            duplicate,
        };
        self.relay.handle_acked(now, self.epoch, token, ack);
        self.pump();
    }

    pub(crate) fn refuse(&mut self, token: Token, refusal: Refusal) {
        let now = self.now();
        self.relay.handle_refused(now, self.epoch, token, refusal);
        self.pump();
    }

    pub(crate) fn read_back(&mut self, token: Token, found: ReadBack) {
        let now = self.now();
        self.relay.handle_read_back(now, self.epoch, token, found);
        self.pump();
    }

    pub(crate) fn parked(&mut self, token: Token) {
        let now = self.now();
        self.relay.handle_parked(now, token);
        self.pump();
    }

    pub(crate) fn end_epoch(&mut self, end: outbox::EpochEnd) {
        let now = self.now();
        self.relay.handle_epoch_ended(now, self.epoch, end);
        self.pump();
    }

    pub(crate) fn end_session(&mut self, kind: SourceFaultKind) {
        let now = self.now();
        self.relay.handle_session_ended(now, source_fault(kind));
        self.pump();
    }

    pub(crate) fn shut_down(&mut self) {
        let now = self.now();
        self.relay.handle_shutdown(now);
        self.pump();
    }

    /// What the slot would be told now.
    pub(crate) fn confirmed(&self) -> u64 {
        self.relay.confirmed().as_u64()
    }

    pub(crate) fn settled(&self) -> u64 {
        self.relay.snapshot().settled.as_u64()
    }

    /// The last status update that went out.
    pub(crate) fn last_status(&self) -> u64 {
        self.statuses
            .last()
            .map_or(0, |(_, status)| status.confirmed.as_u64())
    }

    pub(crate) fn stop(&self) -> Option<(StopKind, &str)> {
        self.actions.iter().find_map(|action| match action {
            Action::Stop { kind, detail } => Some((*kind, detail.as_str())),
            _ => None,
        })
    }

    /// Dead letters asked for since the last [`take_actions`](Self::take_actions).
    pub(crate) fn letters(&self) -> Vec<&DeadLetter> {
        let mut letters = Vec::new();
        for action in &self.actions {
            if let Action::Park(letter) = action {
                letters.push(&**letter);
            }
        }
        letters
    }

    /// Questions to the stream since the last [`take_actions`](Self::take_actions).
    pub(crate) fn questions(&self) -> Vec<(Token, u64)> {
        let question = |action: &Action| match action {
            Action::ReadBack {
                token, sequence, ..
            } => Some((*token, *sequence)),
            _ => None,
        };
        self.actions.iter().filter_map(question).collect()
    }

    pub(crate) fn noticed(&self, wanted: impl Fn(&Notice) -> bool) -> bool {
        self.notices.iter().any(wanted)
    }
}

/// A keepalive that says nothing new.
fn alive() -> Frame {
    Frame::KeepAlive {
        wal_end: Lsn::ZERO,
        server_time_micros: 0,
        reply_requested: false,
    }
}

pub(crate) fn columns() -> [(&'static str, u32); 4] {
    [
        ("id", oid::TEXT),
        ("aggregate_id", oid::TEXT),
        ("type", oid::TEXT),
        ("payload", oid::JSONB),
    ]
}

pub(crate) fn id_of(row: &Outgoing) -> String {
    row.headers
        .get(header::MSG_ID)
        .unwrap_or_default()
        .to_owned()
}

/// Sends one row of one table through a fresh machine, as change 0 of the commit at 0/16B3748.
/// What came of it is in the bench.
pub(crate) fn send_row(
    settings: RelaySettings,
    schema: &str,
    table: &str,
    columns: &[(&str, u32)],
    values: &[Val<'_>],
) -> Bench {
    const COMMIT: u64 = 0x016B_3748;
    let mut bench = Bench::with(settings, Writers::Exclusive);
    bench.wal(COMMIT, wire::begin(COMMIT));
    bench.wal(0, wire::relation(OUTBOX, schema, table, columns));
    bench.wal(0, wire::insert(OUTBOX, values));
    bench.wal(COMMIT, wire::commit(COMMIT, COMMIT + 48));
    bench
}
