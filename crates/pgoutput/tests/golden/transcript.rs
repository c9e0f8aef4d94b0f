//! Messages as lines that read alike for every server.
//!
//! Transaction ids, OIDs, log positions and times differ with every recording. They are not
//! printed but checked, against what the server said outside of the messages, and against each
//! other. So two fields that were read in the wrong order do not get past this.

use std::collections::HashMap;

use postrider_pgoutput::{
    Begin, Decoder, Lsn, Message, Name, OldRow, Prepare, Relation, StreamPrepare, Timestamp, Tuple,
    Value,
};

use crate::fixture::{Row, Session};

/// Values longer than this that repeat one byte are printed as such.
const LONG_VALUE_BYTES: usize = 40;

struct Reader<'a> {
    session: &'a Session,
    relations: HashMap<u32, String>,
    begin: Option<Begin>,
    prepare: Option<Prepare>,
    /// The streamed transaction of the current or last block, and its subtransactions.
    top: u32,
    subtransactions: Vec<u32>,
}

/// One line for each message, without the empty transactions that server 14 sends.
pub(crate) fn transcript(session: &Session) -> Vec<String> {
    let mut reader = Reader {
        session,
        relations: HashMap::new(),
        begin: None,
        prepare: None,
        top: 0,
        subtransactions: Vec::new(),
    };
    let mut decoder = Decoder::new(session.version);
    let mut lines: Vec<String> = Vec::new();
    for row in &session.rows {
        let message = decoder
            .decode(row.data.clone())
            .unwrap_or_else(|error| panic!("{}: {error}: {:?}", session.name, row.data));
        assert_eq!(message.kind().tag(), row.data[0]);
        let line = reader.line(row, &message);
        if line == "commit" && lines.last().is_some_and(|last| last == "begin") {
            lines.pop();
        } else {
            lines.push(line);
        }
    }
    lines
}

fn bytes_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains(char::is_control) => text.to_owned(),
        _ => bytes.escape_ascii().to_string(),
    }
}

fn name_text(name: &Name) -> String {
    bytes_text(name.as_bytes())
}

fn value_text(value: Value<'_>) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::UnchangedToast => "unchanged".to_owned(),
        Value::Text(text)
            if text.len() > LONG_VALUE_BYTES && text.iter().all(|byte| *byte == text[0]) =>
        {
            format!("{} times {}", text.len(), char::from(text[0]))
        }
        Value::Text(text) => format!("\"{}\"", bytes_text(text)),
        Value::Binary(bytes) => {
            format!(
                "\\x{}",
                bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()
            )
        }
    }
}

/// The row by all the ways there are to read it.
fn row_text(tuple: &Tuple) -> String {
    assert_eq!(tuple.iter().len(), tuple.len());
    assert_eq!(tuple.iter().count(), tuple.len());
    assert_eq!(tuple.is_empty(), tuple.iter().next().is_none());
    for (index, value) in tuple.iter().enumerate() {
        assert_eq!(tuple.get(index), Some(value));
        assert_eq!(tuple.bytes(index).as_deref(), value.as_bytes());
        assert_eq!(
            value.as_bytes().and_then(|b| tuple.share(b)).as_deref(),
            value.as_bytes()
        );
    }
    assert_eq!(tuple.get(tuple.len()), None);
    format!(
        "({})",
        tuple.iter().map(value_text).collect::<Vec<_>>().join(", ")
    )
}

fn old_text(old: &OldRow) -> String {
    let kind = if matches!(old, OldRow::Key(_)) {
        "key"
    } else {
        "full"
    };
    format!("{kind} {}", row_text(old.tuple()))
}

impl Reader<'_> {
    /// A time within the scenario is not printed.
    fn time(&self, time: Timestamp) -> String {
        let micros = time.as_unix_micros();
        if (self.session.from.unix_micros..=self.session.to.unix_micros).contains(&micros) {
            String::new()
        } else {
            format!(" at {micros}")
        }
    }

    fn check_range(&self, begin: Lsn, end: Lsn) {
        assert!(self.session.from.lsn <= begin, "{begin}");
        assert!(begin < end, "{begin} {end}");
        assert!(end <= self.session.to.lsn, "{end}");
    }

    fn check_xid(row: &Row, xid: u32) {
        assert!(row.xid == 0 || row.xid == xid, "{} {xid}", row.xid);
    }

    /// `""` outside of streamed blocks, else whether top or which subtransaction.
    fn xid_text(&mut self, xid: Option<u32>) -> String {
        let Some(xid) = xid else { return String::new() };
        if xid == self.top {
            return "top ".to_owned();
        }
        assert!(xid > self.top && xid < self.top + 10, "{xid} {}", self.top);
        if !self.subtransactions.contains(&xid) {
            self.subtransactions.push(xid);
        }
        let index = self
            .subtransactions
            .iter()
            .position(|sub| *sub == xid)
            .unwrap();
        format!("sub{index} ")
    }

    fn relation_name(&self, id: u32) -> &str {
        &self.relations[&id]
    }

    fn relation(&mut self, relation: &Relation) -> String {
        assert_eq!(relation.detached(), *relation);
        let full = [
            relation.namespace.as_bytes(),
            b".",
            relation.name.as_bytes(),
        ]
        .concat();
        assert_eq!(self.session.oids[&relation.id], full);
        let mut line = format!(
            "relation {} {:?}",
            bytes_text(&full),
            relation.replica_identity
        );
        for column in &relation.columns {
            let key = if column.is_key() { "*" } else { "" };
            let type_name = match self.session.oids.get(&column.type_oid) {
                Some(name) => bytes_text(name),
                None => column.type_oid.to_string(),
            };
            line += &format!(" {key}{}:{type_name}", name_text(&column.name));
            if column.type_modifier != -1 {
                line += &format!("({})", column.type_modifier);
            }
        }
        self.relations.insert(relation.id, bytes_text(&full));
        line
    }

    fn line(&mut self, row: &Row, message: &Message) -> String {
        match message {
            Message::Begin(begin) => {
                Self::check_xid(row, begin.xid);
                self.begin = Some(*begin);
                format!("begin{}", self.time(begin.commit_time))
            }
            Message::Commit(commit) => {
                let begin = self.begin.take().unwrap();
                assert_eq!(begin.final_lsn, commit.commit_lsn);
                assert_eq!(begin.commit_time, commit.commit_time);
                assert_eq!(commit.end_lsn, row.lsn);
                assert_eq!(commit.flags, 0);
                self.check_range(commit.commit_lsn, commit.end_lsn);
                format!("commit{}", self.time(commit.commit_time))
            }
            Message::Origin(origin) => {
                format!(
                    "origin {} \"{}\"",
                    origin.commit_lsn,
                    name_text(&origin.name)
                )
            }
            Message::StreamStart(start) => {
                Self::check_xid(row, start.xid);
                assert_eq!(start.is_first(), self.top != start.xid);
                if start.is_first() {
                    self.top = start.xid;
                    self.subtransactions.clear();
                }
                format!("stream start {}", start.first_segment)
            }
            Message::StreamStop => "stream stop".to_owned(),
            Message::StreamCommit(commit) => {
                assert_eq!(commit.xid, self.top);
                assert_eq!(commit.end_lsn, row.lsn);
                assert_eq!(commit.flags, 0);
                self.check_range(commit.commit_lsn, commit.end_lsn);
                format!("stream commit{}", self.time(commit.commit_time))
            }
            Message::StreamAbort(abort) => {
                let stray = if self.top == 0 { "stray " } else { "" };
                self.top = abort.xid;
                let mut line = format!("{stray}abort {}", self.xid_text(Some(abort.subxid)));
                if let Some(details) = abort.details {
                    assert_eq!(details.abort_lsn, row.lsn);
                    line += &format!("with details{}", self.time(details.abort_time));
                }
                line.trim_end().to_owned()
            }
            Message::BeginPrepare(_)
            | Message::Prepare(_)
            | Message::CommitPrepared(_)
            | Message::RollbackPrepared(_)
            | Message::StreamPrepare(_) => self.two_phase_line(row, message),
            _ => self.change_line(row, message),
        }
    }

    fn two_phase_line(&mut self, row: &Row, message: &Message) -> String {
        match message {
            Message::BeginPrepare(begin) => {
                Self::check_xid(row, begin.xid);
                self.check_range(begin.prepare_lsn, begin.end_lsn);
                self.prepare = Some(Prepare {
                    flags: 0,
                    prepare_lsn: begin.prepare_lsn,
                    end_lsn: begin.end_lsn,
                    prepare_time: begin.prepare_time,
                    xid: begin.xid,
                    gid: begin.gid.clone(),
                });
                format!(
                    "begin prepare \"{}\"{}",
                    begin.gid,
                    self.time(begin.prepare_time)
                )
            }
            Message::Prepare(prepare) => {
                assert_eq!(self.prepare.as_ref(), Some(prepare));
                assert_eq!(prepare.end_lsn, row.lsn);
                format!("prepare \"{}\"", prepare.gid)
            }
            Message::StreamPrepare(prepare) => self.stream_prepare_line(row, prepare),
            Message::CommitPrepared(commit) => {
                let prepare = self.prepare.take().unwrap();
                assert_eq!((commit.xid, &commit.gid), (prepare.xid, &prepare.gid));
                assert_eq!(commit.flags, 0);
                assert_eq!(commit.end_lsn, row.lsn);
                assert!(prepare.end_lsn <= commit.commit_lsn);
                assert!(prepare.prepare_time < commit.commit_time);
                self.check_range(commit.commit_lsn, commit.end_lsn);
                format!(
                    "commit prepared \"{}\"{}",
                    commit.gid,
                    self.time(commit.commit_time)
                )
            }
            Message::RollbackPrepared(rollback) => {
                let prepare = self.prepare.take().unwrap();
                assert_eq!((rollback.xid, &rollback.gid), (prepare.xid, &prepare.gid));
                assert_eq!(rollback.flags, 0);
                assert_eq!(rollback.prepare_end_lsn, prepare.end_lsn);
                assert_eq!(rollback.rollback_end_lsn, row.lsn);
                assert_eq!(rollback.prepare_time, prepare.prepare_time);
                assert!(prepare.prepare_time < rollback.rollback_time);
                let time = self.time(rollback.rollback_time);
                format!("rollback prepared \"{}\"{time}", rollback.gid)
            }
            other => panic!("{other:?}"),
        }
    }

    fn stream_prepare_line(&mut self, row: &Row, prepare: &StreamPrepare) -> String {
        let StreamPrepare {
            flags,
            prepare_lsn,
            end_lsn,
            prepare_time,
            xid,
            ref gid,
        } = *prepare;
        assert_eq!(xid, self.top);
        assert_eq!(flags, 0);
        assert_eq!(end_lsn, row.lsn);
        self.check_range(prepare_lsn, end_lsn);
        let gid = gid.clone();
        let line = format!("stream prepare \"{gid}\"{}", self.time(prepare_time));
        self.prepare = Some(Prepare {
            flags,
            prepare_lsn,
            end_lsn,
            prepare_time,
            xid,
            gid,
        });
        line
    }

    fn change_line(&mut self, row: &Row, message: &Message) -> String {
        match message {
            Message::Message(message) => {
                assert_eq!(message.lsn, row.lsn);
                let kind = if message.is_transactional() {
                    "transactional"
                } else {
                    "at once"
                };
                assert!(message.flags <= 1);
                format!(
                    "{}message {kind} \"{}\" \"{}\"",
                    self.xid_text(message.xid),
                    message.prefix,
                    bytes_text(&message.content)
                )
            }
            Message::Relation(relation) => self.xid_text(relation.xid) + &self.relation(relation),
            Message::Type(message) => {
                let oid = &self.session.oids[&message.id];
                let full = format!("{}.{}", message.namespace, message.name);
                format!(
                    "{}type {} named {full}",
                    self.xid_text(message.xid),
                    bytes_text(oid)
                )
            }
            Message::Insert(insert) => {
                let xid = self.xid_text(insert.xid);
                let relation = self.relation_name(insert.relation_id);
                format!("{xid}insert {relation} {}", row_text(&insert.new))
            }
            Message::Update(update) => {
                let xid = self.xid_text(update.xid);
                let relation = self.relation_name(update.relation_id);
                let old = update
                    .old
                    .as_ref()
                    .map_or(String::new(), |old| old_text(old) + " ");
                format!("{xid}update {relation} {old}new {}", row_text(&update.new))
            }
            Message::Delete(delete) => {
                let xid = self.xid_text(delete.xid);
                let relation = self.relation_name(delete.relation_id);
                format!("{xid}delete {relation} {}", old_text(&delete.old))
            }
            Message::Truncate(truncate) => {
                let xid = self.xid_text(truncate.xid);
                let cascade = if truncate.is_cascade() {
                    " cascade"
                } else {
                    ""
                };
                let restart = if truncate.restarts_identity() {
                    " restart identity"
                } else {
                    ""
                };
                let ids = truncate.relation_ids.iter();
                let names: Vec<_> = ids.map(|id| self.relation_name(*id)).collect();
                format!("{xid}truncate {}{cascade}{restart}", names.join(", "))
            }
            other => panic!("{other:?}"),
        }
    }
}
