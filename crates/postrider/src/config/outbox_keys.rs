//! The keys of `[[outbox]]`, and those of the whole program that this version does not have.

/// What a key of `[[outbox]]` holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutboxKind {
    /// A table name as in SQL.
    Table,
    /// A subject template.
    Subject,
    /// A stream name.
    Stream,
    /// The name of a column.
    Column,
    /// A table of header names and columns.
    Headers,
    /// A template that must differ from row to row.
    KeyTemplate,
}

/// One key of `[[outbox]]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutboxKey {
    /// Name within the table.
    pub name: &'static str,
    /// What it holds.
    pub kind: OutboxKind,
    /// What holds without it, in words.
    pub without: &'static str,
    /// One sentence.
    pub help: &'static str,
}

const fn outbox_key(
    name: &'static str,
    kind: OutboxKind,
    without: &'static str,
    help: &'static str,
) -> OutboxKey {
    OutboxKey {
        name,
        kind,
        without,
        help,
    }
}

/// The keys of `[[outbox]]`, in the order of the documentation.
pub const OUTBOX_KEYS: [OutboxKey; 16] = [
    outbox_key(
        "table",
        OutboxKind::Table,
        "`outbox`",
        "table, as in SQL; without a schema: in `public`",
    ),
    outbox_key(
        "subject",
        OutboxKind::Subject,
        "`outbox.{topic}` with a topic column, else `outbox.{aggregate_type}.{type}`",
        "subject template; `{column}` becomes one token",
    ),
    outbox_key(
        "stream",
        OutboxKind::Stream,
        "`nats.stream`",
        "stream; must be `nats.stream`",
    ),
    outbox_key(
        "id",
        OutboxKind::Column,
        "`id`, `event_id`",
        "column of the row id",
    ),
    outbox_key(
        "payload",
        OutboxKind::Column,
        "`payload`, `data`, `body`",
        "column of the message body",
    ),
    outbox_key(
        "aggregate_type",
        OutboxKind::Column,
        "`aggregate_type`, `aggregatetype`",
        "column of the aggregate type",
    ),
    outbox_key(
        "aggregate_id",
        OutboxKind::Column,
        "`aggregate_id`, `aggregateid`",
        "column of the aggregate id",
    ),
    outbox_key(
        "type",
        OutboxKind::Column,
        "`type`, `event_type`",
        "column of the event type",
    ),
    outbox_key(
        "topic",
        OutboxKind::Column,
        "`topic`, `subject`",
        "column of the topic",
    ),
    outbox_key(
        "headers",
        OutboxKind::Headers,
        "none",
        "header names and the columns whose values they carry: `{ \"Tenant\" = \"tenant_id\" }`",
    ),
    outbox_key(
        "headers_column",
        OutboxKind::Column,
        "`headers`",
        "column with a JSON object of headers",
    ),
    outbox_key(
        "created_at",
        OutboxKind::Column,
        "`created_at`, `timestamp`",
        "column of the creation time",
    ),
    outbox_key(
        "traceparent",
        OutboxKind::Column,
        "`traceparent`",
        "column of the trace parent",
    ),
    outbox_key(
        "tracestate",
        OutboxKind::Column,
        "`tracestate`",
        "column of the trace state",
    ),
    outbox_key(
        "ordering_key",
        OutboxKind::KeyTemplate,
        "`{aggregate_id}`, else one key for the table",
        "rows with one key keep their order in a shared stream",
    ),
    outbox_key(
        "dedup_id",
        OutboxKind::KeyTemplate,
        "`{id}`",
        "`Nats-Msg-Id`; `{table}` makes ids unique that are so only per table",
    ),
];

/// Keys and sections of the documentation of the whole program that this version does not have.
pub const NOT_YET: [(&str, &str); 8] = [
    (
        "message",
        "messages without a table (pg_logical_emit_message)",
    ),
    ("http", "the HTTP side (metrics, health)"),
    ("outbox.format", "CloudEvents headers"),
    ("outbox.mark", "marking published rows"),
    ("outbox.expires", "per-message expiry"),
    ("outbox.deliver", "delayed delivery"),
    ("outbox.expires_at", "per-message expiry"),
    ("outbox.deliver_at", "delayed delivery"),
];
