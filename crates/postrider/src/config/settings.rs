//! The checked configuration: plain values that need no further checks.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use crate::config::table_name::TableName;
use crate::secret::{Secret, SecretSource};

/// Everything a command needs to know, checked.
///
/// `Debug` is the dump for debugging: secrets show as a mask.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The database and its slot.
    pub postgres: PostgresSettings,
    /// The broker and its stream.
    pub nats: NatsSettings,
    /// The outbox tables: at least one, no table twice.
    pub outboxes: Vec<OutboxSettings>,
    /// How rows are delivered.
    pub delivery: DeliverySettings,
}

/// `[postgres]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PostgresSettings {
    /// libpq URL. Its password, if any, gives way to [`PostgresSettings::password`].
    pub url: Secret<String>,
    /// Name of the key, variable or flag that gave the URL, for error messages.
    pub url_origin: String,
    /// Password, instead of one in the URL.
    pub password: Option<SecretSource>,
    /// Replication slot: 1 to 63 of `a-z`, `0-9`, `_`.
    pub slot: String,
    /// Publication, as stored (no quoting).
    pub publication: String,
}

/// `[nats]`.
#[derive(Clone, Debug, PartialEq)]
pub struct NatsSettings {
    /// One or more server URLs, comma-separated, as given; user, password or token may be inside
    /// (never together with an [`NatsSettings::auth`] other than [`NatsAuth::InUrl`]).
    pub url: Secret<String>,
    /// Name of the key, variable or flag that gave the URL, for error messages.
    pub url_origin: String,
    /// How to log in.
    pub auth: NatsAuth,
    /// TLS.
    pub tls: NatsTls,
    /// The stream.
    pub stream: String,
    /// Who writes the stream; `None`: what the stream's metadata says, exclusive for a new one.
    pub writers: Option<Writers>,
    /// Largest message (headers and payload) in bytes, where it is below the server's own limit.
    pub max_message_bytes: Option<u64>,
    /// Replicas of a stream that `setup` makes; `None`: one on a single server, three in a cluster.
    pub replicas: Option<u8>,
}

/// How to log in to NATS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NatsAuth {
    /// By what the URL says: user and password, a token, or nothing.
    InUrl,
    /// User and password.
    User {
        /// User name.
        user: String,
        /// Password.
        password: SecretSource,
    },
    /// Token.
    Token(SecretSource),
    /// Credentials file (JWT and seed). Read it again at each connection.
    CredentialsFile(PathBuf),
    /// File with an NKey seed. Read it again at each connection.
    NkeyFile(PathBuf),
}

/// TLS towards NATS. The scheme `tls://` in the URL asks for it too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatsTls {
    /// PEM file of the authorities that are trusted, instead of the system's.
    pub ca: Option<PathBuf>,
    /// PEM file of the client certificate; always together with [`NatsTls::key`].
    pub cert: Option<PathBuf>,
    /// PEM file of the client key.
    pub key: Option<PathBuf>,
    /// TLS handshake before the server's INFO (`handshake_first` of the server).
    pub first: bool,
}

/// Who writes the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writers {
    /// Postrider alone.
    Exclusive,
    /// Others too.
    Shared,
}

/// One `[[outbox]]`. Columns that are `None` are found by their usual names.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxSettings {
    /// The table.
    pub table: TableName,
    /// Subject template; `None`: by the columns that the table has.
    pub subject: Option<String>,
    /// Column of the row id.
    pub id: Option<String>,
    /// Column of the payload.
    pub payload: Option<String>,
    /// Column of the aggregate type.
    pub aggregate_type: Option<String>,
    /// Column of the aggregate id.
    pub aggregate_id: Option<String>,
    /// Column of the event type.
    pub event_type: Option<String>,
    /// Column of the topic.
    pub topic: Option<String>,
    /// Column with a JSON object of headers.
    pub headers_column: Option<String>,
    /// Header name and the column whose value it carries.
    pub headers: Vec<(String, String)>,
    /// Column of the creation time.
    pub created_at: Option<String>,
    /// Column of the W3C trace parent.
    pub traceparent: Option<String>,
    /// Column of the W3C trace state.
    pub tracestate: Option<String>,
    /// Template of the ordering key; `None`: aggregate id, else topic, else type.
    pub ordering_key: Option<String>,
    /// Template of the dedup id.
    pub dedup_id: String,
}

/// `[delivery]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliverySettings {
    /// What happens to a row that can never be stored.
    pub on_poison: OnPoison,
    /// What happens to a row whose subject no stream, or another stream, takes.
    pub on_unroutable: OnUnroutable,
    /// How long the confirmation is held back behind the acks.
    pub confirm_delay: Duration,
    /// Bound of what is published and not yet acked, in bytes.
    pub max_in_flight_bytes: u64,
}

/// What happens to a row that can never be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPoison {
    /// Written to the dead-letter table; the stream goes on.
    Park,
    /// The streamer stops.
    Halt,
}

/// What happens to a row whose subject no stream, or another stream, takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnroutable {
    /// Wait until the stream takes it.
    Wait,
    /// As a poison row under `park`.
    Park,
}

impl fmt::Display for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}
