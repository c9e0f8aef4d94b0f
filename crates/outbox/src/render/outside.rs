//! Messages that do not come from the log: a command puts them into the stream.
//!
//! In an exclusive stream the last message tells the streamer where to go on. A message that a
//! command puts behind it therefore repeats what the message before it said: the source, the
//! position and the dedup id of the row at that position. It is known by its `Outbox-Origin`.

use bytes::{BufMut, Bytes, BytesMut};
use pgoutput::{Tuple, Value};

use super::encode::push_header_value;
use super::plan::{Plan, TableFault, relation};
use super::row::{
    MAX_HEADERS_BYTES, MAX_SUBJECT_BYTES, PoisonReason, Renderer, Row, push_display, put_header,
};
use super::spec::{OutboxSpec, header_name_fault};
use crate::broker::{Headers, Tail, header};
use crate::{Position, Source};

/// Longest subject that an error shows, in characters.
const SHOWN_SUBJECT_CHARS: usize = 64;

/// What the stream's last message says about where the streamer goes on, to be repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeMark {
    source: Source,
    position: Position,
    position_id: Option<String>,
}

impl ResumeMark {
    /// The mark of a stream with this tail. `own` is the log that our slot streams; it stands in
    /// where the tail says nothing, with the position before all others and no id, by which the
    /// streamer knows that there is no resume point.
    #[must_use]
    pub fn of(tail: &Tail, own: &Source) -> Self {
        match tail {
            Tail::Row(row) => Self {
                source: row.source.clone(),
                position: row.position,
                position_id: row.resume_id().map(str::to_owned),
            },
            Tail::Empty | Tail::Gone | Tail::Foreign => Self {
                source: own.clone(),
                position: Position {
                    commit_lsn: pgoutput::Lsn::ZERO,
                    change: 0,
                },
                position_id: None,
            },
        }
    }
}

/// A message for a command to publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandMessage {
    /// The subject.
    pub subject: Bytes,
    /// Everything but the headers that depend on the attempt.
    pub headers: Headers,
    /// The body.
    pub payload: Bytes,
    /// The dedup id.
    pub dedup_id: String,
}

impl CommandMessage {
    /// Bytes of headers and payload.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        (self.headers.as_block().len() + self.payload.len()) as u64
    }
}

/// Why a row that was read from its table cannot be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnfitRow {
    /// The table is not what the configuration says.
    #[error(transparent)]
    Table(TableFault),
    /// The row is poison.
    #[error(transparent)]
    Poison(PoisonReason),
}

/// The column that holds the row id in a table with these columns (name and type as PostgreSQL
/// writes it).
///
/// # Errors
///
/// If a needed or named column is missing.
pub fn id_column<'a>(
    spec: &OutboxSpec,
    columns: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<String, TableFault> {
    let relation = relation(spec, columns);
    let plan = Plan::bind(spec, &relation)?;
    let column = relation.columns.get(plan.id.index);
    Ok(column
        .map(|column| column.name.to_string())
        .unwrap_or_default())
}

/// A row that was read from its table.
#[derive(Debug, Clone, Copy)]
pub struct TableRow<'a> {
    /// Name and type of each column, as PostgreSQL writes them.
    pub columns: &'a [(&'a str, &'a str)],
    /// Their values in the text form of their types, `None` for NULL.
    pub values: &'a [Option<&'a [u8]>],
}

impl TableRow<'_> {
    /// The message of this row by the present configuration.
    ///
    /// # Errors
    ///
    /// If the table lacks a column, or the row is poison.
    pub fn message(
        &self,
        spec: &OutboxSpec,
        mark: &ResumeMark,
        origin: &str,
        max_message_bytes: u64,
    ) -> Result<CommandMessage, UnfitRow> {
        let relation = relation(spec, self.columns.iter().copied());
        let plan = Plan::bind(spec, &relation).map_err(UnfitRow::Table)?;
        let row = Row {
            plan: &plan,
            tuple: &Tuple::default(),
            position: mark.position,
        };
        let values = self.values.iter();
        let values: Vec<Value<'_>> = values
            .map(|value| value.map_or(Value::Null, Value::Text))
            .collect();
        let rendered = Renderer::new(&mark.source, max_message_bytes).render_text(&row, &values);
        if let Some(poison) = rendered.poison {
            return Err(UnfitRow::Poison(poison));
        }
        let mut block = BytesMut::from(rendered.headers.as_block().as_ref());
        push_origin(&mut block, mark, origin);
        Ok(CommandMessage {
            subject: rendered.subject,
            headers: Headers::from_block(block.freeze()),
            payload: rendered.payload,
            dedup_id: String::from_utf8_lossy(&rendered.dedup_id).into_owned(),
        })
    }
}

/// A row as the dead-letter table holds it.
#[derive(Debug, Clone, Copy)]
pub struct StoredLetter<'a> {
    /// The subject that it was to have.
    pub subject: &'a str,
    /// The dedup id.
    pub dedup_id: &'a str,
    /// The headers that it was to have, in their order.
    pub headers: &'a [(String, String)],
    /// The body.
    pub payload: &'a [u8],
}

impl StoredLetter<'_> {
    /// The message that the letter holds.
    ///
    /// # Errors
    ///
    /// If it cannot be published as it stands.
    pub fn message(
        &self,
        mark: &ResumeMark,
        origin: &str,
        max_message_bytes: u64,
    ) -> Result<CommandMessage, PoisonReason> {
        if self.dedup_id.trim().is_empty() {
            return Err(PoisonReason::NoId);
        }
        check_subject(self.subject)?;
        let mut block = BytesMut::new();
        put_header(&mut block, header::MSG_ID, |out| {
            push_header_value(out, self.dedup_id.as_bytes());
        });
        let mark_is_due = |name: &str| !is_written_anew(name);
        for (name, value) in self.headers.iter().filter(|(name, _)| mark_is_due(name)) {
            check_header(name)?;
            put_header(&mut block, name, |out| {
                push_header_value(out, value.as_bytes());
            });
        }
        put_header(&mut block, header::POSITION, |out| {
            push_display(out, mark.position);
        });
        put_header(&mut block, header::SOURCE, |out| {
            push_display(out, &mark.source);
        });
        push_origin(&mut block, mark, origin);
        if block.len() > MAX_HEADERS_BYTES {
            return Err(PoisonReason::HeadersTooLarge {
                size_bytes: block.len(),
                limit_bytes: MAX_HEADERS_BYTES,
            });
        }
        let message = CommandMessage {
            subject: Bytes::copy_from_slice(self.subject.as_bytes()),
            headers: Headers::from_block(block.freeze()),
            payload: Bytes::copy_from_slice(self.payload),
            dedup_id: self.dedup_id.to_owned(),
        };
        let (size_bytes, limit_bytes) = (message.size_bytes(), max_message_bytes);
        if size_bytes > limit_bytes {
            return Err(PoisonReason::TooLarge {
                size_bytes,
                limit_bytes,
            });
        }
        Ok(message)
    }
}

fn push_origin(block: &mut BytesMut, mark: &ResumeMark, origin: &str) {
    put_header(block, header::ORIGIN, |out| {
        out.put_slice(origin.as_bytes());
    });
    if let Some(id) = &mark.position_id {
        put_header(block, header::POSITION_ID, |out| {
            push_header_value(out, id.as_bytes());
        });
    }
}

/// Whether a header of the letter gives way to one of ours.
fn is_written_anew(name: &str) -> bool {
    [
        header::MSG_ID,
        header::POSITION,
        header::SOURCE,
        header::SETTLED,
        header::ORIGIN,
        header::POSITION_ID,
        header::EXPECTED_STREAM,
        header::EXPECTED_LAST_SEQUENCE,
    ]
    .contains(&name)
}

/// A header of the letter must still be one: the table can be edited by hand.
fn check_header(name: &str) -> Result<(), PoisonReason> {
    let ours = [
        header::TABLE,
        header::AGGREGATE_TYPE,
        header::AGGREGATE_ID,
        header::TYPE,
        header::CREATED_AT,
        header::PAYLOAD,
    ];
    match header_name_fault(name) {
        Some(fault) if !ours.contains(&name) => Err(PoisonReason::HeaderRefused {
            name: name.chars().take(SHOWN_SUBJECT_CHARS).collect(),
            fault,
        }),
        _ => Ok(()),
    }
}

fn check_subject(subject: &str) -> Result<(), PoisonReason> {
    if subject.len() > MAX_SUBJECT_BYTES {
        return Err(PoisonReason::SubjectTooLong {
            size_bytes: subject.len(),
            limit_bytes: MAX_SUBJECT_BYTES,
        });
    }
    let is_token = |token: &str| {
        !token.is_empty()
            && token.bytes().all(|byte| byte.is_ascii_graphic())
            && !token.contains(['*', '>'])
    };
    if subject.starts_with('$') || !subject.split('.').all(is_token) {
        return Err(PoisonReason::SubjectUnfit {
            subject: subject.chars().take(SHOWN_SUBJECT_CHARS).collect(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::StoredRow;

    fn own() -> Source {
        "7/1/shop/postrider".parse().unwrap()
    }

    fn tail(origin: Option<&str>, position_id: Option<&str>) -> Tail {
        Tail::Row(StoredRow {
            sequence: 4,
            source: "7/2/shop/postrider".parse().unwrap(),
            position: "0/64/1".parse().unwrap(),
            dedup_id: "m".to_owned(),
            settled: None,
            chained: true,
            origin: origin.map(str::to_owned),
            position_id: position_id.map(str::to_owned),
        })
    }

    fn letter<'a>(headers: &'a [(String, String)]) -> StoredLetter<'a> {
        StoredLetter {
            subject: "outbox.a",
            dedup_id: "5",
            headers,
            payload: b"{}",
        }
    }

    fn shown(message: &CommandMessage) -> String {
        let block = std::str::from_utf8(message.headers.as_block()).unwrap();
        block.replace("\r\n", "\n")
    }

    #[test]
    fn what_the_tail_says_is_carried_forward() {
        for (tail, source, position, id) in [
            (tail(None, None), "7/2/shop/postrider", "0/64/1", Some("m")),
            (
                tail(Some("replay"), Some("r")),
                "7/2/shop/postrider",
                "0/64/1",
                Some("r"),
            ),
            (
                tail(Some("replay"), None),
                "7/2/shop/postrider",
                "0/64/1",
                None,
            ),
            (Tail::Empty, "7/1/shop/postrider", "0/0/0", None),
            (Tail::Gone, "7/1/shop/postrider", "0/0/0", None),
            (Tail::Foreign, "7/1/shop/postrider", "0/0/0", None),
        ] {
            let message = letter(&[])
                .message(&ResumeMark::of(&tail, &own()), "dead-letter", 1000)
                .unwrap();
            assert_eq!(message.headers.get(header::MSG_ID), Some("5"));
            assert_eq!(message.headers.get(header::SOURCE), Some(source));
            assert_eq!(message.headers.get(header::POSITION), Some(position));
            assert_eq!(message.headers.get(header::POSITION_ID), id);
            assert_eq!(message.headers.get(header::ORIGIN), Some("dead-letter"));
        }
    }

    #[test]
    fn a_letters_headers_stay_save_those_that_are_written_anew() {
        let headers = [
            ("Nats-Msg-Id", "old"),
            ("Outbox-Table", "public.outbox"),
            ("Outbox-Position", "0/1/0"),
            ("Tenant", "a\r\nb"),
            ("Tenant", "c"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mark = ResumeMark::of(&Tail::Empty, &own());
        let message = letter(&headers)
            .message(&mark, "dead-letter", 1000)
            .unwrap();
        assert_eq!(
            shown(&message),
            "Nats-Msg-Id: 5\nOutbox-Table: public.outbox\nTenant: a%0D%0Ab\nTenant: c\n\
             Outbox-Position: 0/0/0\nOutbox-Source: 7/1/shop/postrider\n\
             Outbox-Origin: dead-letter\n"
        );
    }

    #[test]
    fn what_was_spoilt_by_hand_is_refused_by_name() {
        let mark = ResumeMark::of(&Tail::Empty, &own());
        let reason = |letter: StoredLetter<'_>| {
            letter
                .message(&mark, "dead-letter", 1000)
                .unwrap_err()
                .name()
        };
        for subject in ["", "a..b", "a.*", "a.>", "$SYS.a", "a b", "a.", "é"] {
            let letter = StoredLetter {
                subject,
                ..letter(&[])
            };
            assert_eq!(reason(letter), "subject_unfit", "{subject:?}");
        }
        let long = "s".repeat(MAX_SUBJECT_BYTES + 1);
        let subject = long.as_str();
        assert_eq!(
            reason(StoredLetter {
                subject,
                ..letter(&[])
            }),
            "subject_too_long"
        );
        let payload = &[0; 1000][..];
        assert_eq!(
            reason(StoredLetter {
                payload,
                ..letter(&[])
            }),
            "too_large"
        );
        assert_eq!(
            reason(StoredLetter {
                dedup_id: " ",
                ..letter(&[])
            }),
            "no_id"
        );
        for name in ["Nats-Rollup", "a b", "", "Outbox-Foo"] {
            let headers = [(name.to_owned(), String::new())];
            assert_eq!(reason(letter(&headers)), "header_refused", "{name:?}");
        }
        let headers = [("T".to_owned(), "x".repeat(MAX_HEADERS_BYTES))];
        assert_eq!(reason(letter(&headers)), "headers_too_large");
    }
}
