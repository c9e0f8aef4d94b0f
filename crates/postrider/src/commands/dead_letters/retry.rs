//! `dead-letters retry`.
//!
//! A letter goes when JetStream has acked its message, not before, and whatever interrupts this,
//! running it again ends right. Before a message is sent, the letter notes which sequence it is to
//! get: in an exclusive stream it stands there or nowhere, so the next run looks there first,
//! however much later. In a shared stream the dedup id absorbs the copy, within the stream's
//! duplicate window.
//!
//! In an exclusive stream the chain is kept: each message names the sequence before it, and repeats
//! the resume point that the message before it told. The streamer is asked by a lock in PostgreSQL
//! to give way, for some seconds at a time, and nothing is sent before it does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use jetstream::{Epoch, EpochEvent, StreamAdmin, StreamTarget};
use outbox::{
    CommandMessage, EpochEnd, EpochStart, Outgoing, PubAck, ReadBack, Refusal, ResumeMark,
    RetryReason, RowVerdict, Source, StoredRow, Token, Writers,
};
use postgres::{ConnectConfig, Control, DeadLetterFilter, DeadLetterFull, LetterTry};

use crate::cli::RetryArgs;
use crate::cli::output::print;
use crate::commands::setup::broker_error;
use crate::config::Settings;
use crate::driver::{command_error, headers_json, owner, source_of, target};
use crate::exit::{CommandError, Exit};

use super::source::{ORIGIN, Tables, Unfit};
use super::{not_there, note, table_error};

/// How long an answer of JetStream may take, as the streamer has it.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// How long another command may keep its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

/// What the streamer gets between two turns.
const PAUSE: Duration = Duration::from_secs(1);

/// Nothing is sent later than this in a turn. Well below what the streamer waits for a command, so
/// that a message on its way has arrived by then.
const TURN_LIMIT: Duration = Duration::from_secs(10);

/// How long the streamer may take to give way: it looks once a second, and rows in flight are
/// answered within seconds, or its connection is given up.
const GAP_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is looked whether it does.
const GAP_POLL: Duration = Duration::from_millis(50);

/// For so long the stream has to be at rest where no streamer says that it is: what one that was
/// killed had sent is stored within milliseconds.
const REST: Duration = Duration::from_millis(300);

/// Pause before the tail is read again after another message took the place.
const CHAIN_PAUSE: Duration = Duration::from_millis(20);

/// After this much time without a letter that was decided, the command gives up.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn execute(
    settings: &Settings,
    config: &ConnectConfig,
    control: Control,
    args: RetryArgs,
) -> Result<Exit, CommandError> {
    let slot = settings.postgres.slot.clone();
    let named = !args.ids.is_empty();
    let mut queue: VecDeque<i64> = if !named {
        let filter = DeadLetterFilter {
            slot: Some(slot.clone()),
            table_name: args.table,
            reason: args.reason,
        };
        let ids = control.dead_letter_ids(&filter).await;
        ids.map_err(|error| table_error(&error))?.into()
    } else {
        args.ids.into()
    };
    if queue.is_empty() {
        print("no dead letters\n")?;
        return Ok(Exit::Done);
    }
    let source = source_of(config, &slot)
        .await
        .map_err(|error| command_error(&error))?;
    let options = settings.nats.options(&slot)?;
    let admin = StreamAdmin::connect(&options)
        .await
        .map_err(|fault| broker_error(&fault))?;
    let mut retry = Retry {
        settings,
        control,
        admin,
        target: target(settings, owner(&source)),
        source,
        tables: Tables::default(),
        token: 0,
        named,
        epoch_over: false,
        decided_at: Instant::now(),
        turn_until: Instant::now(),
        stored: 0,
        refused: 0,
        missing: Vec::new(),
    };
    retry.all(&mut queue).await?;
    retry.summary(&slot)
}

/// What became of one attempt.
enum Outcome {
    /// The stream holds the message.
    Stored { sequence: u64, before: bool },
    /// It cannot be published as it is.
    Refused { unfit: Unfit, sent: bool },
    /// There is no such letter of this slot.
    Missing,
    /// Another message took the place: look at the tail and try again.
    Outrun,
    /// The connection is over: open another and try again.
    Broken(String),
}

/// Where the next message goes.
struct Place {
    writers: Writers,
    last_sequence: u64,
    mark: ResumeMark,
    max_message_bytes: u64,
}

struct Retry<'a> {
    settings: &'a Settings,
    control: Control,
    admin: StreamAdmin,
    target: StreamTarget,
    source: Source,
    tables: Tables,
    token: u64,
    /// The letters were named, so that one that is gone is an error.
    named: bool,
    /// The epoch has ended with the answer to a letter.
    epoch_over: bool,
    /// When a letter was decided last.
    decided_at: Instant,
    /// Nothing is sent in this turn any more: the streamer may go on by itself.
    turn_until: Instant,
    stored: u64,
    refused: u64,
    missing: Vec<i64>,
}

impl Retry<'_> {
    async fn all(&mut self, queue: &mut VecDeque<i64>) -> Result<(), CommandError> {
        let slot = self.settings.postgres.slot.clone();
        loop {
            let taken = self.control.take_turn(&slot, TURN_TIMEOUT).await;
            taken.map_err(|error| match postgres::is_turn_timeout(&error) {
                true => CommandError::message(
                    Exit::Failed,
                    "another postrider command writes this stream; try again when it is done",
                ),
                false => command_error(&error),
            })?;
            let done = self.turn(queue).await;
            let ended = self.control.end_turn(&slot).await;
            done?;
            ended.map_err(|error| command_error(&error))?;
            if queue.is_empty() {
                return Ok(());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// One turn: as many letters as its time allows.
    async fn turn(&mut self, queue: &mut VecDeque<i64>) -> Result<(), CommandError> {
        let (start, mut epoch) = self.open().await?;
        let mut place = self.place(&start);
        if place.writers == Writers::Exclusive {
            self.await_gap().await?;
            self.look(&mut place).await?;
        }
        let until = Instant::now() + postgres::TURN;
        self.turn_until = Instant::now() + TURN_LIMIT;
        while let Some(&id) = queue.front() {
            if Instant::now() >= until {
                break;
            }
            let outcome = self.attempt(&mut epoch, &mut place, id).await?;
            let waits = match outcome {
                Outcome::Outrun => {
                    tokio::time::sleep(CHAIN_PAUSE).await;
                    self.look(&mut place).await?;
                    "somebody else writes the stream"
                }
                Outcome::Broken(detail) => {
                    note(&format!("{detail}; trying again"));
                    tokio::time::sleep(PAUSE).await;
                    place = self.reopen(&mut epoch).await?;
                    "no answer from JetStream"
                }
                decided => {
                    queue.pop_front();
                    self.decided_at = Instant::now();
                    self.tell(id, decided)?;
                    if self.epoch_over {
                        place = self.reopen(&mut epoch).await?;
                    }
                    continue;
                }
            };
            if self.decided_at.elapsed() > PATIENCE {
                let text = format!("dead letter {id} could not be sent: {waits}");
                return Err(CommandError::message(Exit::Failed, text)
                    .with_help("it is kept; run the command again"));
            }
        }
        epoch.close().await;
        Ok(())
    }

    /// Reads the tail anew.
    async fn look(&self, place: &mut Place) -> Result<(), CommandError> {
        let state = self.admin.state(&self.target.stream).await;
        let state = state.map_err(|fault| broker_error(&fault))?;
        place.last_sequence = state.last_sequence;
        place.mark = ResumeMark::of(&state.tail, &self.source);
        Ok(())
    }

    /// Waits until the streamer, if there is one, has nothing in flight, and what was in flight
    /// of one that is gone has come to rest.
    async fn await_gap(&self) -> Result<(), CommandError> {
        let slot = &self.settings.postgres.slot;
        let begin = Instant::now();
        loop {
            let gap = self.control.is_gap(slot).await;
            if gap.map_err(|error| command_error(&error))? {
                return Ok(());
            }
            let holder = self.control.slot_holder(slot).await;
            if holder.map_err(|error| command_error(&error))?.is_none() {
                break;
            }
            if begin.elapsed() > GAP_TIMEOUT {
                let text = "the streamer that has the slot does not give way";
                return Err(CommandError::message(Exit::Failed, text)
                    .with_help("see its log; stop it, or run the command again later"));
            }
            tokio::time::sleep(GAP_POLL).await;
        }
        let mut before = None;
        loop {
            let state = self.admin.state(&self.target.stream).await;
            let last = state.map_err(|fault| broker_error(&fault))?.last_sequence;
            if before.replace(last) == Some(last) {
                return Ok(());
            }
            tokio::time::sleep(REST).await;
        }
    }

    async fn reopen(&mut self, epoch: &mut Epoch) -> Result<Place, CommandError> {
        let (start, opened) = self.open().await?;
        std::mem::replace(epoch, opened).close().await;
        self.epoch_over = false;
        Ok(self.place(&start))
    }

    async fn open(&self) -> Result<(EpochStart, Epoch), CommandError> {
        let options = self.settings.nats.options(&self.settings.postgres.slot)?;
        let opened = Epoch::open(&options, &self.target, 0).await;
        opened.map_err(|fault| broker_error(&fault))
    }

    fn place(&self, start: &EpochStart) -> Place {
        Place {
            writers: start.writers,
            last_sequence: start.last_sequence,
            mark: ResumeMark::of(&start.tail, &self.source),
            max_message_bytes: start.max_message_bytes,
        }
    }

    /// Tries to bring one letter into the stream, and removes it if it is there.
    async fn attempt(
        &mut self,
        epoch: &mut Epoch,
        place: &mut Place,
        id: i64,
    ) -> Result<Outcome, CommandError> {
        let letter = self.control.dead_letter(id).await;
        let letter = letter.map_err(|error| table_error(&error))?;
        let is_ours = |letter: &DeadLetterFull| {
            letter.entry.slot == self.settings.postgres.slot && !letter.entry.halted
        };
        let Some(letter) = letter.filter(is_ours) else {
            return Ok(Outcome::Missing);
        };
        let outcome = match self.stored_before(epoch, &letter).await? {
            Some(outcome) => outcome,
            None => self.send(epoch, place, &letter).await?,
        };
        match &outcome {
            Outcome::Stored { .. } => {
                let slot = &self.settings.postgres.slot;
                let removed = self.control.remove_dead_letter(id, slot).await;
                removed.map_err(|error| table_error(&error))?;
            }
            Outcome::Refused { unfit, sent } => {
                let Unfit { reason, detail } = unfit;
                let noted = self.control.note_refusal(id, reason, detail, *sent).await;
                noted.map_err(|error| table_error(&error))?;
            }
            Outcome::Missing | Outcome::Outrun | Outcome::Broken(_) => {}
        }
        Ok(outcome)
    }

    /// Whether an earlier try, of which nobody heard, has stored the letter after all.
    async fn stored_before(
        &self,
        epoch: &Epoch,
        letter: &DeadLetterFull,
    ) -> Result<Option<Outcome>, CommandError> {
        let Some(sequence) = letter.due_sequence else {
            return Ok(None);
        };
        let dedup_id = letter.entry.dedup_id.as_deref().unwrap_or_default();
        Ok(match epoch.read_back(sequence).await {
            ReadBack::Row(row) if self.is_this(&row, dedup_id, None) => {
                let before = true;
                Some(Outcome::Stored { sequence, before })
            }
            ReadBack::Row(_) | ReadBack::Foreign | ReadBack::Gone => None,
            ReadBack::Unknown { detail } => Some(Outcome::Broken(detail)),
        })
    }

    /// Whether a stored message is that of a letter: one that a retry has sent, or the row itself
    /// by the streamer.
    fn is_this(&self, row: &StoredRow, dedup_id: &str, position: Option<&str>) -> bool {
        let by_retry = row.origin.as_deref() == Some(ORIGIN);
        let by_streamer = row.origin.is_none()
            && position.is_some_and(|position| row.position.to_string() == position);
        row.dedup_id.trim() == dedup_id.trim()
            && row.source.same_log(&self.source)
            && (by_retry || by_streamer)
    }

    async fn send(
        &mut self,
        epoch: &mut Epoch,
        place: &mut Place,
        letter: &DeadLetterFull,
    ) -> Result<Outcome, CommandError> {
        let found = self
            .tables
            .message(self.settings, &self.control, letter, &place.mark)
            .await
            .map_err(|error| table_error(&error))?;
        let found = match found {
            Ok(found) => found,
            Err(unfit) => return Ok(refused(unfit, false)),
        };
        let message = found.message;
        let exclusive = place.writers == Writers::Exclusive;
        let subject = String::from_utf8_lossy(&message.subject).into_owned();
        let headers = headers_json(&message.headers);
        let is_null = message.headers.get(outbox::header::PAYLOAD) == Some("null");
        let body = Some(&message.payload[..]).filter(|_| !is_null);
        let sent = LetterTry {
            dedup_id: &message.dedup_id,
            subject: &subject,
            due_sequence: exclusive.then_some(place.last_sequence + 1),
            content: found.from_table.then_some((headers.as_str(), body)),
        };
        let noted = self.control.note_try(letter.entry.id, &sent).await;
        noted.map_err(|error| table_error(&error))?;
        if Instant::now() >= self.turn_until {
            return Ok(Outcome::Broken("the turn took too long".to_owned()));
        }
        self.token += 1;
        let token = Token(self.token);
        epoch.publish(Outgoing {
            token,
            subject: message.subject.clone(),
            headers: message.headers.clone(),
            payload: message.payload.clone(),
            expected_last_sequence: exclusive.then_some(place.last_sequence),
            settled: None,
        });
        match answer(epoch, token).await {
            Ok(Ok(ack)) => {
                let position = &letter.entry.position;
                self.acked(epoch, place, &message, ack, position).await
            }
            Ok(Err(refusal)) => self.refused(place, &message, &refusal),
            Err(Some(end)) => {
                self.epoch_over = true;
                Ok(ended(&message, end))
            }
            Err(None) => {
                let seconds = ACK_TIMEOUT.as_secs();
                Ok(Outcome::Broken(format!("no PubAck within {seconds} s")))
            }
        }
    }

    async fn acked(
        &self,
        epoch: &Epoch,
        place: &mut Place,
        message: &CommandMessage,
        ack: PubAck,
        position: &str,
    ) -> Result<Outcome, CommandError> {
        let sequence = ack.sequence;
        if !ack.duplicate {
            place.last_sequence = sequence;
            let before = false;
            return Ok(Outcome::Stored { sequence, before });
        }
        let taken = |detail: String| {
            let reason = "id_taken".to_owned();
            Ok(refused(Unfit { reason, detail }, true))
        };
        match epoch.read_back(sequence).await {
            ReadBack::Row(row) if self.is_this(&row, &message.dedup_id, Some(position)) => {
                let before = true;
                Ok(Outcome::Stored { sequence, before })
            }
            ReadBack::Row(_) | ReadBack::Foreign => {
                taken(outbox::PoisonReason::IdTaken { sequence }.to_string())
            }
            ReadBack::Gone => taken(format!(
                "JetStream remembers the dedup id for sequence {sequence}, where nothing stands \
                 any more; it forgets it with the duplicate window"
            )),
            ReadBack::Unknown { detail } => Ok(Outcome::Broken(detail)),
        }
    }

    fn refused(
        &self,
        place: &Place,
        message: &CommandMessage,
        refusal: &Refusal,
    ) -> Result<Outcome, CommandError> {
        let (size, limit) = (message.size_bytes(), place.max_message_bytes);
        match outbox::refusal_verdict(refusal, size, limit) {
            RowVerdict::Poison(reason) => Ok(refused(reason.into(), true)),
            RowVerdict::Unroutable(detail) => {
                let reason = "unroutable".to_owned();
                Ok(refused(Unfit { reason, detail }, true))
            }
            RowVerdict::Retry(RetryReason::ChainBroken | RetryReason::InProcess) => {
                Ok(Outcome::Outrun)
            }
            RowVerdict::Retry(reason) => Err(CommandError::message(Exit::Failed, reason)
                .with_help("what is not sent is kept; run the command again later")),
        }
    }

    fn tell(&mut self, id: i64, outcome: Outcome) -> Result<(), CommandError> {
        match outcome {
            Outcome::Stored { sequence, before } => {
                self.stored += 1;
                let how = if before {
                    "was stored before"
                } else {
                    "stored"
                };
                print(&format!("{id}: {how}, at sequence {sequence}\n"))?;
            }
            Outcome::Refused { unfit, .. } => {
                self.refused += 1;
                print(&format!(
                    "{id}: refused again, {}: {}\n",
                    unfit.reason, unfit.detail
                ))?;
            }
            Outcome::Missing if self.named => self.missing.push(id),
            // Discarded meanwhile, or sent by another retry.
            Outcome::Missing => {}
            Outcome::Outrun | Outcome::Broken(_) => {}
        }
        Ok(())
    }

    fn summary(&self, slot: &str) -> Result<Exit, CommandError> {
        print(&format!(
            "{} stored, {} refused again\n",
            self.stored, self.refused
        ))?;
        if self.refused == 0 {
            return not_there(&self.missing, slot);
        }
        if !self.missing.is_empty() {
            note(&format!(
                "no dead letter of slot {slot} has the id {:?}",
                self.missing
            ));
        }
        let text = format!("{} dead letters were refused again", self.refused);
        Err(CommandError::message(Exit::Failed, text)
            .with_help("`postrider dead-letters list` has the reasons"))
    }
}

fn refused(unfit: Unfit, sent: bool) -> Outcome {
    Outcome::Refused { unfit, sent }
}

/// What the end of the connection says about the one message in flight.
fn ended(message: &CommandMessage, end: EpochEnd) -> Outcome {
    match outbox::end_verdict(&end, message.subject.len(), message.size_bytes()) {
        Some(reason) => refused(reason.into(), true),
        None => Outcome::Broken(match end {
            EpochEnd::Disconnected { detail }
            | EpochEnd::PermissionDenied { detail }
            | EpochEnd::Server { detail } => detail,
            EpochEnd::MaxPayloadViolation => "the account's max_payload was exceeded".to_owned(),
        }),
    }
}

/// The answer to one message; `Err` with the end of the epoch, or with nothing where none came.
async fn answer(
    epoch: &mut Epoch,
    token: Token,
) -> Result<Result<PubAck, Refusal>, Option<EpochEnd>> {
    let waiting = async {
        loop {
            let mut events = Vec::new();
            epoch.next_events(&mut events).await;
            for event in events {
                match event {
                    EpochEvent::Acked { token: of, ack } if of == token => return Ok(Ok(ack)),
                    EpochEvent::Refused { token: of, refusal } if of == token => {
                        return Ok(Err(refusal));
                    }
                    EpochEvent::Ended(end) => return Err(Some(end)),
                    // Late answers to attempts that were given up.
                    EpochEvent::Acked { .. } | EpochEvent::Refused { .. } => {}
                }
            }
        }
    };
    tokio::time::timeout(ACK_TIMEOUT, waiting)
        .await
        .unwrap_or(Err(None))
}
