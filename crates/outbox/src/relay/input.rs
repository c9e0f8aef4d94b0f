//! What comes out of the log.

use std::time::Instant;

use pgoutput::{Frame, Insert, Message, Relation};

use crate::ledger::LedgerFault;
use crate::notice::Notice;
use crate::render::{Part, Plan, Row, TableFault};
use crate::source::{SourceFault, SourceFaultKind};
use crate::{OutboxSpec, Position};

use super::resume::{Arrival, Resume};
use super::source::{Live, Session, Table};
use super::{Goal, Relay};

/// Size of the buffers that the replication session reads into, in bytes; a kept payload keeps one.
const READ_BUFFER_BYTES: usize = 128 * 1024;

/// Why a frame could not be taken in.
enum Fault {
    /// The stream makes no sense.
    Protocol(String),
    /// A table is no longer what the configuration says.
    Table(TableFault),
}

impl From<LedgerFault> for Fault {
    fn from(fault: LedgerFault) -> Self {
        Self::Protocol(fault.to_string())
    }
}

impl Relay {
    /// A frame of the replication stream.
    pub fn handle_wal(&mut self, now: Instant, frame: Frame) {
        let ends = self.is_stopped() || matches!(self.goal, Goal::Fail { .. });
        if ends || !self.session.is_up() {
            return;
        }
        let (start, data) = match frame {
            Frame::KeepAlive {
                wal_end,
                reply_requested,
                ..
            } => {
                self.handle_keepalive(now, wal_end, reply_requested);
                return;
            }
            Frame::WalData { start, data, .. } => (start, data),
        };
        self.heard(now, false);
        match self.handle_data(now, data) {
            Ok(()) => {}
            Err(Fault::Protocol(detail)) => {
                let detail = format!("{detail} (at {start})");
                self.fail_session(now, SourceFaultKind::Protocol, detail);
            }
            Err(Fault::Table(fault)) => {
                let kind = match fault {
                    TableFault::IdsCollide { .. } => SourceFaultKind::Misconfigured,
                    _ => SourceFaultKind::TableChanged,
                };
                let detail = fault.to_string();
                self.fail_after_draining(now, SourceFault { kind, detail });
            }
        }
    }

    fn handle_keepalive(&mut self, now: Instant, wal_end: pgoutput::Lsn, reply_requested: bool) {
        if self.heard(now, reply_requested) {
            let detail = "the server waits for us to shut down, and rows are not stored yet";
            self.fail_session(now, SourceFaultKind::Restarting, detail.to_owned());
            return;
        }
        if !self.ledger.is_open() {
            self.void_if_passed(now, wal_end);
        }
        if self.session.is_up() {
            self.ledger.keepalive(wal_end);
            self.confirmations.reply_wanted |= reply_requested;
        }
    }

    fn handle_data(&mut self, now: Instant, data: bytes::Bytes) -> Result<(), Fault> {
        let Session::Up(live) = &mut self.session else {
            return Ok(());
        };
        live.between_rows_bytes = live.between_rows_bytes.saturating_add(data.len());
        let message = live
            .decoder
            .decode(data)
            .map_err(|error| Fault::Protocol(error.to_string()))?;
        match message {
            Message::Insert(insert) => self.handle_insert(now, &insert)?,
            Message::Begin(begin) => {
                self.ledger
                    .begin(begin.final_lsn, begin.commit_time.as_unix_micros())?;
                live.open = Some(Position {
                    commit_lsn: begin.final_lsn,
                    change: 0,
                });
                self.void_if_passed(now, begin.final_lsn);
            }
            Message::Commit(commit) => {
                live.open = None;
                self.ledger.commit(commit.commit_lsn, commit.end_lsn)?;
                self.counters.transactions += 1;
                self.check_goal(now);
            }
            Message::Relation(relation) => self.handle_relation(&relation)?,
            Message::Update(_) | Message::Delete(_) | Message::Truncate(_) => {
                self.next_change()?;
                self.counters.foreign_changes += 1;
            }
            Message::Message(message) if message.is_transactional() => {
                self.next_change()?;
                self.counters.foreign_changes += 1;
            }
            // A stream abort was seen from server 18 under protocol 1; it concerns nobody here.
            Message::Message(_)
            | Message::Origin(_)
            | Message::Type(_)
            | Message::StreamAbort(_) => {}
            other => {
                let kind = other.kind();
                return Err(Fault::Protocol(format!(
                    "a {kind} message, which protocol version 1 does not have"
                )));
            }
        }
        Ok(())
    }

    /// The position of the next change of the open transaction.
    fn next_change(&mut self) -> Result<Position, Fault> {
        let outside = || Fault::from(LedgerFault::Outside { what: "change" });
        let Session::Up(live) = &mut self.session else {
            return Err(outside());
        };
        let next = live.open.as_mut().ok_or_else(outside)?;
        let position = *next;
        next.change += 1;
        Ok(position)
    }

    fn handle_insert(&mut self, now: Instant, insert: &Insert) -> Result<(), Fault> {
        let position = self.next_change()?;
        let Session::Up(live) = &mut self.session else {
            return Ok(());
        };
        let Live {
            tables, renderer, ..
        } = &mut **live;
        let Some(table) = tables.get(&insert.relation_id) else {
            let relation = insert.relation_id;
            return Err(Fault::Protocol(format!(
                "a row of relation {relation} not described"
            )));
        };
        let Table::Outbox { index, plan, .. } = table else {
            self.counters.foreign_changes += 1;
            return Ok(());
        };
        let arrival = self.resume.arrival(position);
        match arrival {
            Arrival::Skip => {
                self.skipped(1);
                return Ok(());
            }
            Arrival::Void => {
                self.void_if_passed(now, pgoutput::Lsn::new(u64::MAX));
                return Ok(());
            }
            Arrival::New => self.resume = Resume::Settled,
            Arrival::Decides => {}
        }
        let index = *index;
        let mut rendered = renderer
            .render(&Row {
                plan,
                tuple: &insert.new,
                position,
            })
            .map_err(|fault| Fault::Protocol(fault.to_string()))?;
        if arrival == Arrival::Decides {
            self.decide_resume(now, &rendered);
            return Ok(());
        }
        let is_stored = self.is_known(position, &rendered.dedup_id);
        if !is_stored && self.is_orphans_id(&rendered.dedup_id) {
            self.rename(&mut rendered, position);
        }
        let transaction = self.ledger.add_row()?;
        let key = rendered.key;
        let pinned_bytes = self.take_pinned_bytes(insert);
        let token = self
            .window
            .push(position, transaction, index, rendered, pinned_bytes);
        if is_stored {
            // It takes its place in the window all the same: see the bound in `survey.rs`.
            self.settle_stored(token);
        } else if let Some(epoch) = self.broker.epoch_mut() {
            epoch.order.added(token, key);
        }
        Ok(())
    }

    /// What the row keeps in memory beside its own bytes: the frames before it, as far as one read
    /// buffer reaches.
    fn take_pinned_bytes(&mut self, insert: &Insert) -> usize {
        let Session::Up(live) = &mut self.session else {
            return 0;
        };
        let all = std::mem::take(&mut live.between_rows_bytes);
        all.saturating_sub(insert.new.size_bytes())
            .min(READ_BUFFER_BYTES)
    }

    fn handle_relation(&mut self, relation: &Relation) -> Result<(), Fault> {
        let Session::Up(live) = &mut self.session else {
            return Ok(());
        };
        let name = format!("{}.{}", relation.namespace, relation.name);
        let is_this = |spec: &OutboxSpec| {
            relation.namespace == spec.schema.as_str() && relation.name == spec.table.as_str()
        };
        let by_name = self.settings.outboxes.iter().position(is_this);
        let known = self.known_tables.get(relation.id);
        let before = live
            .open
            .is_some_and(|open| open.commit_lsn < self.known_tables.as_of);
        let former_name = match live.tables.get(&relation.id) {
            Some(Table::Outbox { name: old, .. }) => Some(old.clone()).filter(|old| *old != name),
            _ if by_name.is_some() => None,
            _ => known
                .and_then(|index| self.settings.outboxes.get(index))
                .map(|spec| format!("{}.{}", spec.schema, spec.table)),
        };
        if !before && let Some(old) = former_name {
            return Err(Fault::Table(TableFault::Renamed { old, new: name }));
        }
        let table = match by_name.or(known) {
            None => Table::Other,
            Some(index) => {
                let Some(spec) = self.settings.outboxes.get(index) else {
                    return Ok(());
                };
                let plan = Plan::bind(spec, relation).map_err(Fault::Table)?;
                if plan.ids_only_unique_in_table && self.settings.outboxes.len() > 1 {
                    return Err(Fault::Table(TableFault::IdsCollide { table: name }));
                }
                self.notices.push_back(Notice::TableBound {
                    table: name.clone(),
                    subject: plan_subject(&plan, relation),
                });
                Table::Outbox {
                    index,
                    name,
                    plan: Box::new(plan),
                }
            }
        };
        live.tables.insert(relation.id, table);
        Ok(())
    }
}

/// The subject with columns in braces, for people.
fn plan_subject(plan: &Plan, relation: &Relation) -> String {
    plan.parts(relation)
        .map(|part| match part {
            Part::Literal(text) => text,
            Part::Place(column) => format!("{{{column}}}"),
        })
        .collect()
}
