//! What the configuration says about one outbox table.

use super::{Template, is_header_name};

/// What a column means to Postrider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The row's id, from which the dedup id is made.
    Id,
    /// The body of the message.
    Payload,
    /// The sort of thing the event is about.
    AggregateType,
    /// The thing the event is about; the default ordering key.
    AggregateId,
    /// What happened.
    Type,
    /// A subject of the writer's own making, dots included.
    Topic,
    /// A JSON object of further headers.
    Headers,
    /// When the row was made.
    CreatedAt,
    /// W3C trace context.
    TraceParent,
    /// W3C trace context, vendor part.
    TraceState,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 10] = [
        Self::Id,
        Self::Payload,
        Self::AggregateType,
        Self::AggregateId,
        Self::Type,
        Self::Topic,
        Self::Headers,
        Self::CreatedAt,
        Self::TraceParent,
        Self::TraceState,
    ];

    /// The column names under which a role is found when the configuration names none; the first
    /// that the table has wins. They are those of the common outbox guides and of Debezium's
    /// outbox event router.
    #[must_use]
    pub const fn usual_names(self) -> &'static [&'static str] {
        match self {
            Self::Id => &["id", "event_id"],
            Self::Payload => &["payload", "data", "body"],
            Self::AggregateType => &["aggregate_type", "aggregatetype"],
            Self::AggregateId => &["aggregate_id", "aggregateid"],
            Self::Type => &["type", "event_type"],
            Self::Topic => &["topic", "subject"],
            Self::Headers => &["headers"],
            Self::CreatedAt => &["created_at", "timestamp"],
            Self::TraceParent => &["traceparent"],
            Self::TraceState => &["tracestate"],
        }
    }

    /// The role's name in templates and in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Payload => "payload",
            Self::AggregateType => "aggregate_type",
            Self::AggregateId => "aggregate_id",
            Self::Type => "type",
            Self::Topic => "topic",
            Self::Headers => "headers",
            Self::CreatedAt => "created_at",
            Self::TraceParent => "traceparent",
            Self::TraceState => "tracestate",
        }
    }

    /// The role with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }
}

/// One outbox table and how its rows become messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutboxSpec {
    /// Schema of the table, exactly as PostgreSQL stores it.
    pub schema: String,
    /// Name of the table, exactly as PostgreSQL stores it.
    pub table: String,
    /// Subject; by default made of the columns that the table has.
    pub subject: Option<Template>,
    /// Dedup id; by default the row id as text.
    pub dedup_id: Option<Template>,
    /// Ordering key; by default the aggregate id, else one key for the whole table.
    pub ordering_key: Option<Template>,
    /// Columns named by the configuration, by role.
    pub columns: Vec<(Role, String)>,
    /// Headers taken from columns: header name, column name.
    pub headers: Vec<(String, String)>,
}

impl OutboxSpec {
    /// The subjects that rows of this table can have, as a NATS pattern. Without a configured
    /// subject it is everything below `outbox`, since the columns decide.
    #[must_use]
    pub fn subject_pattern(&self) -> String {
        self.subject
            .as_ref()
            .map_or_else(|| "outbox.>".to_owned(), Template::subject_pattern)
    }

    /// A table whose columns are found by their usual names.
    #[must_use]
    pub fn new(schema: &str, table: &str) -> Self {
        Self {
            schema: schema.to_owned(),
            table: table.to_owned(),
            subject: None,
            dedup_id: None,
            ordering_key: None,
            columns: Vec::new(),
            headers: Vec::new(),
        }
    }
}

/// Why a row or the configuration may not set a header, or `None` if it may.
///
/// `Nats-*` steers the server and `Outbox-*` is ours to state; of the former only `Nats-TTL` may
/// be set.
#[must_use]
pub fn header_name_fault(name: &str) -> Option<&'static str> {
    let begins = |prefix: &str| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    if !is_header_name(name) {
        Some("a header name is printable ASCII without blanks and colons")
    } else if begins("Nats-") && name != "Nats-TTL" {
        Some("headers that begin with Nats- steer the server; only Nats-TTL may be set")
    } else if begins("Outbox-") {
        Some("headers that begin with Outbox- are written by Postrider")
    } else {
        None
    }
}
