//! Renders one row.

use std::hash::Hasher;

use bytes::{BufMut, Bytes, BytesMut};
use pgoutput::{Tuple, Value};

use super::encode::{push_header_value, push_token, push_topic};
use super::instant::push_rfc3339;
use super::json;
use super::plan::{PayloadKind, Piece, Plan};
use super::spec::header_name_fault;
use crate::broker::{Headers, header};
use crate::{Position, Source};

/// Longest subject, in bytes. NATS reads at most 4096 bytes of a protocol line
/// (`max_control_line`), of which reply subject, verb and sizes take up to 200.
pub(super) const MAX_SUBJECT_BYTES: usize = 3_800;

/// Largest header block of a row, in bytes. JetStream refuses more than 65,535 (error 10097), of
/// which the headers that depend on the attempt take up to 500.
pub(super) const MAX_HEADERS_BYTES: usize = 65_000;

/// Size of the buffers that rendered subjects and headers are cut from, in bytes: large enough
/// that an allocation serves many rows, small enough that one held row pins little.
const ARENA_BYTES: usize = 16 * 1024;

/// Rows with up to this many columns are walked without an allocation.
const COLUMNS_ON_STACK: usize = 32;

/// Why a row cannot be published, ever, as it stands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoisonReason {
    /// The id column is NULL or empty, or the dedup id that is made of the row.
    #[error("the row has no id")]
    NoId,
    /// The `headers` column is not a JSON object.
    #[error("the headers column is not a JSON object: {detail}")]
    HeadersNotObject {
        /// What the parser said.
        detail: String,
    },
    /// A header that the row may not set.
    #[error("the headers column sets {name:?}: {fault}")]
    HeaderRefused {
        /// The header's name, shortened.
        name: String,
        /// What is wrong with it.
        fault: &'static str,
    },
    /// The bytea payload is not in hexadecimal form.
    #[error("the bytea payload cannot be read as hexadecimal")]
    PayloadNotHex,
    /// Subject too long for the NATS protocol.
    #[error("the subject has {size_bytes} bytes, {}", subject_limit(*.limit_bytes))]
    SubjectTooLong {
        /// Its length.
        size_bytes: usize,
        /// The limit, 0 if it is the server's own, which it does not tell.
        limit_bytes: usize,
    },
    /// Headers too large for JetStream.
    #[error("the headers have {size_bytes} bytes, {limit_bytes} are possible")]
    HeadersTooLarge {
        /// Their length.
        size_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// Headers and payload are larger than what may be sent.
    #[error("headers and payload have {size_bytes} bytes, {}", message_limit(*.limit_bytes))]
    TooLarge {
        /// Headers and payload together.
        size_bytes: u64,
        /// The limit, 0 if it is the account's own, which the server does not tell.
        limit_bytes: u64,
    },
    /// JetStream holds the dedup id for another row.
    #[error(
        "the dedup id is already stored at sequence {sequence} of the stream for another row; \
         ids unique only within a table need {{table}} in dedup_id"
    )]
    IdTaken {
        /// Where the other message stands.
        sequence: u64,
    },
    /// A dead letter's subject that was changed by hand to one that no message can have.
    #[error("{subject:?} is no subject that can be published to")]
    SubjectUnfit {
        /// The subject, shortened.
        subject: String,
    },
    /// JetStream refused this very message.
    #[error("JetStream refused the message: {description} ({err_code})")]
    Refused {
        /// JetStream's code.
        err_code: u32,
        /// The server's words.
        description: String,
    },
}

impl PoisonReason {
    /// Whether the row could be rendered whole, so that only its size, its id or JetStream is in
    /// the way.
    #[must_use]
    pub const fn is_rendered_whole(&self) -> bool {
        !matches!(
            self,
            Self::HeadersNotObject { .. } | Self::HeaderRefused { .. } | Self::PayloadNotHex
        )
    }

    /// A short fixed name for tables, metrics and queries.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::NoId => "no_id",
            Self::HeadersNotObject { .. } => "headers_not_object",
            Self::HeaderRefused { .. } => "header_refused",
            Self::PayloadNotHex => "payload_not_hex",
            Self::SubjectTooLong { .. } => "subject_too_long",
            Self::SubjectUnfit { .. } => "subject_unfit",
            Self::HeadersTooLarge { .. } => "headers_too_large",
            Self::TooLarge { .. } => "too_large",
            Self::IdTaken { .. } => "id_taken",
            Self::Refused { .. } => "refused",
        }
    }
}

fn subject_limit(limit_bytes: usize) -> String {
    match limit_bytes {
        0 => "more than the server's max_control_line leaves room for".to_owned(),
        _ => format!("{limit_bytes} are possible"),
    }
}

fn message_limit(limit_bytes: u64) -> String {
    match limit_bytes {
        0 => "more than the account's max_payload, which a client is not told; set \
              nats.max_message_bytes to it"
            .to_owned(),
        _ => format!(
            "the limit is {limit_bytes} (the least of nats.max_message_bytes, the server's \
             max_payload and the stream's max_msg_size)"
        ),
    }
}

/// A row as a message, save what depends on the attempt.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rendered {
    pub(crate) subject: Bytes,
    pub(crate) headers: Headers,
    pub(crate) payload: Bytes,
    pub(crate) dedup_id: Bytes,
    /// The row's own id, as text.
    pub(crate) row_id: Bytes,
    /// Hash of the ordering key. Two keys with one hash are merely kept in order too.
    pub(crate) key: u64,
    /// Why it may not be sent.
    pub(crate) poison: Option<PoisonReason>,
}

impl Rendered {
    /// Sends the row under another dedup id, whose header is the first.
    pub(crate) fn rename(&mut self, dedup_id: Vec<u8>) {
        let block = self.headers.as_block();
        let end = block.windows(2).position(|pair| pair == b"\r\n");
        let rest = block.get(end.unwrap_or_default()..).unwrap_or_default();
        let mut renamed = BytesMut::with_capacity(block.len() + dedup_id.len());
        begin_header(&mut renamed, header::MSG_ID);
        renamed.put_slice(&dedup_id);
        renamed.put_slice(rest);
        self.headers = Headers::from_block(renamed.freeze());
        self.dedup_id = dedup_id.into();
    }
}

/// One row to render.
pub(crate) struct Row<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) tuple: &'a Tuple,
    pub(crate) position: Position,
}

/// The row holds a value that PostgreSQL did not send.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column {column} of an insert was not sent, which PostgreSQL does not do")]
pub(crate) struct ValueNotSent {
    pub(crate) column: usize,
}

/// Renders rows of one session.
#[derive(Debug)]
pub(crate) struct Renderer {
    arena: BytesMut,
    source: String,
    max_message_bytes: u64,
}

impl Renderer {
    pub(crate) fn new(source: &Source, max_message_bytes: u64) -> Self {
        Self {
            arena: BytesMut::new(),
            source: source.to_string(),
            max_message_bytes,
        }
    }

    /// Renders a row. A poisonous row is rendered as far as it goes, with the reason.
    ///
    /// # Errors
    ///
    /// If a value is missing that an insert always has.
    pub(crate) fn render(&mut self, row: &Row<'_>) -> Result<Rendered, ValueNotSent> {
        let mut on_stack = [Value::Null; COLUMNS_ON_STACK];
        let on_heap: Vec<Value<'_>>;
        let values: &[Value<'_>] = if row.tuple.len() <= COLUMNS_ON_STACK {
            for (place, value) in on_stack.iter_mut().zip(row.tuple.iter()) {
                *place = value;
            }
            &on_stack
        } else {
            on_heap = row.tuple.iter().collect();
            &on_heap
        };
        if let Some(column) = values
            .iter()
            .position(|value| *value == Value::UnchangedToast)
        {
            return Err(ValueNotSent { column });
        }
        if self.arena.capacity() < ARENA_BYTES / 8 {
            self.arena = BytesMut::with_capacity(ARENA_BYTES);
        }
        Ok(self.render_values(row, &Values(values)))
    }

    /// Renders a row whose values did not come as a tuple; they are as many as the plan's columns.
    pub(super) fn render_text(&mut self, row: &Row<'_>, values: &[Value<'_>]) -> Rendered {
        self.render_values(row, &Values(values))
    }

    fn render_values(&mut self, row: &Row<'_>, values: &Values<'_>) -> Rendered {
        let plan = row.plan;
        let mut poison = None;
        push_subject(&mut self.arena, &plan.subject, values);
        let subject = self.arena.split().freeze();
        if subject.len() > MAX_SUBJECT_BYTES {
            let (size_bytes, limit_bytes) = (subject.len(), MAX_SUBJECT_BYTES);
            poison = Some(PoisonReason::SubjectTooLong {
                size_bytes,
                limit_bytes,
            });
        }
        let id_range = self.push_headers(row, values, &mut poison);
        let block = self.arena.split().freeze();
        if block.len() > MAX_HEADERS_BYTES {
            let (size_bytes, limit_bytes) = (block.len(), MAX_HEADERS_BYTES);
            poison = Some(PoisonReason::HeadersTooLarge {
                size_bytes,
                limit_bytes,
            });
        }
        let payload = payload(row, values).unwrap_or_else(|raw| {
            poison = Some(PoisonReason::PayloadNotHex);
            raw
        });
        let size_bytes = (block.len() + payload.len()) as u64;
        if size_bytes > self.max_message_bytes {
            let limit_bytes = self.max_message_bytes;
            poison = Some(PoisonReason::TooLarge {
                size_bytes,
                limit_bytes,
            });
        }
        let dedup_id = block.slice(id_range);
        if dedup_id.is_empty() || values.get(plan.id.index).is_none_or(<[u8]>::is_empty) {
            poison = Some(PoisonReason::NoId);
        }
        let own_id = Piece::Value(plan.id.index);
        let row_id = if plan.dedup_id.as_slice() == [own_id] {
            dedup_id.clone()
        } else {
            let id = values.get(plan.id.index).unwrap_or_default();
            push_header_value(&mut self.arena, id);
            self.arena.split().freeze()
        };
        let key = key_hash(&plan.ordering_key, values);
        Rendered {
            subject,
            headers: Headers::from_block(block),
            payload,
            dedup_id,
            row_id,
            key,
            poison,
        }
    }

    /// Writes the headers and returns where in them the dedup id stands.
    fn push_headers(
        &mut self,
        row: &Row<'_>,
        values: &Values<'_>,
        poison: &mut Option<PoisonReason>,
    ) -> std::ops::Range<usize> {
        let (plan, out) = (row.plan, &mut self.arena);
        begin_header(out, header::MSG_ID);
        let id_begin = out.len();
        push_pieces(out, &plan.dedup_id, values);
        let id_range = id_begin..out.len();
        out.put_slice(b"\r\n");
        put_header(out, header::TABLE, |out| out.put_slice(&plan.table));
        for (name, bound) in [
            (header::AGGREGATE_TYPE, plan.aggregate_type),
            (header::AGGREGATE_ID, plan.aggregate_id),
            (header::TYPE, plan.event_type),
            ("traceparent", plan.trace_parent),
            ("tracestate", plan.trace_state),
        ] {
            if let Some(value) = bound.and_then(|bound| values.get(bound.index)) {
                put_header(out, name, |out| push_header_value(out, value));
            }
        }
        if let Some(text) = plan.created_at.and_then(|bound| values.get(bound.index)) {
            put_header(out, header::CREATED_AT, |out| push_rfc3339(out, text));
        }
        put_header(out, header::POSITION, |out| push_display(out, row.position));
        put_header(out, header::SOURCE, |out| {
            out.put_slice(self.source.as_bytes());
        });
        let mut has_content_type = false;
        for (name, column) in &plan.headers {
            if let Some(value) = values.get(*column) {
                has_content_type |= name.eq_ignore_ascii_case(header::CONTENT_TYPE);
                put_header(out, name, |out| push_header_value(out, value));
            }
        }
        if let Some(text) = plan
            .headers_column
            .and_then(|bound| values.get(bound.index))
        {
            match push_json_headers(out, text, plan) {
                Ok(content_type) => has_content_type |= content_type,
                Err(reason) => *poison = Some(reason),
            }
        }
        if !has_content_type {
            put_header(out, header::CONTENT_TYPE, |out| {
                out.put_slice(match plan.payload_kind {
                    PayloadKind::Json => b"application/json",
                    PayloadKind::Bytea => b"application/octet-stream",
                    PayloadKind::Text => b"text/plain; charset=utf-8",
                });
            });
        }
        if values.get(plan.payload.index).is_none() {
            put_header(out, header::PAYLOAD, |out| out.put_slice(b"null"));
        }
        id_range
    }
}

/// The values of a row by column.
struct Values<'a>(&'a [Value<'a>]);

impl<'a> Values<'a> {
    /// The value's text, `None` where it is NULL.
    fn get(&self, index: usize) -> Option<&'a [u8]> {
        self.0.get(index).and_then(|value| value.as_bytes())
    }
}

fn begin_header(out: &mut BytesMut, name: &str) {
    out.put_slice(name.as_bytes());
    out.put_slice(b": ");
}

pub(super) fn put_header(out: &mut BytesMut, name: &str, value: impl FnOnce(&mut BytesMut)) {
    begin_header(out, name);
    value(out);
    out.put_slice(b"\r\n");
}

pub(super) fn push_display(out: &mut BytesMut, value: impl std::fmt::Display) {
    // Writing to a growing buffer cannot fail.
    let _ = std::fmt::Write::write_fmt(out, format_args!("{value}"));
}

fn push_subject(out: &mut BytesMut, pieces: &[Piece], values: &Values<'_>) {
    for piece in pieces {
        let begins = out.is_empty();
        match piece {
            Piece::Literal(text) => out.put_slice(text),
            Piece::Value(column) => {
                push_token(out, values.get(*column).unwrap_or_default(), begins);
            }
            Piece::Topic(column) => {
                push_topic(out, values.get(*column).unwrap_or_default(), begins);
            }
        }
    }
}

/// A dedup id: values joined as they are, made safe for a header.
fn push_pieces(out: &mut BytesMut, pieces: &[Piece], values: &Values<'_>) {
    for piece in pieces {
        match piece {
            Piece::Literal(text) => push_header_value(out, text),
            Piece::Value(column) | Piece::Topic(column) => {
                push_header_value(out, values.get(*column).unwrap_or_default());
            }
        }
    }
}

/// The same key gives the same hash in every process: SipHash with its fixed default keys.
fn key_hash(pieces: &[Piece], values: &Values<'_>) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    for piece in pieces {
        match piece {
            Piece::Literal(text) => hasher.write(text),
            Piece::Value(column) | Piece::Topic(column) => {
                hasher.write(values.get(*column).unwrap_or_default());
                hasher.write_u8(0xff);
            }
        }
    }
    hasher.finish()
}

/// Writes the members of the `headers` column; tells whether `Content-Type` was among them.
fn push_json_headers(out: &mut BytesMut, text: &[u8], plan: &Plan) -> Result<bool, PoisonReason> {
    /// Longest part of a bad header name that is shown, in characters.
    const SHOWN_NAME_CHARS: usize = 64;

    let json::Members(members) =
        json::members(text).map_err(|error| PoisonReason::HeadersNotObject {
            detail: error.to_string(),
        })?;
    let mut has_content_type = false;
    for (name, value) in members {
        if let Some(fault) = header_name_fault(&name) {
            let name = name.chars().take(SHOWN_NAME_CHARS).collect();
            return Err(PoisonReason::HeaderRefused { name, fault });
        }
        has_content_type |= name.eq_ignore_ascii_case(header::CONTENT_TYPE);
        let from_column = (name == "traceparent" && plan.trace_parent.is_some())
            || (name == "tracestate" && plan.trace_state.is_some());
        if !from_column {
            put_header(out, &name, |out| match json::string_text(value) {
                Some(text) => push_header_value(out, text.as_bytes()),
                None => push_header_value(out, value.get().as_bytes()),
            });
        }
    }
    Ok(has_content_type)
}

/// The body; `Err` with the column's text if it is a bytea that is not hexadecimal.
fn payload(row: &Row<'_>, values: &Values<'_>) -> Result<Bytes, Bytes> {
    let Some(text) = values.get(row.plan.payload.index) else {
        return Ok(Bytes::new());
    };
    let shared = || {
        row.tuple
            .share(text)
            .unwrap_or_else(|| Bytes::copy_from_slice(text))
    };
    match row.plan.payload_kind {
        PayloadKind::Json | PayloadKind::Text => Ok(shared()),
        PayloadKind::Bytea => hex_decoded(text).ok_or_else(shared),
    }
}

/// The bytes of `\x0123...` (PostgreSQL manual, "bytea Hex Format").
fn hex_decoded(text: &[u8]) -> Option<Bytes> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    let digits = text.strip_prefix(b"\\x")?;
    let mut bytes = BytesMut::with_capacity(digits.len() / 2);
    for pair in digits.chunks(2) {
        let [high, low] = pair else { return None };
        bytes.put_u8(digit(*high)? << 4 | digit(*low)?);
    }
    Some(bytes.freeze())
}
