//! The checked configuration: plain values that need no further checks.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use outbox::{OnPoison, OnUnroutable, OutboxSpec, Writers};
use postgres::{ConnectConfig, UrlErrors};

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
    pub outboxes: Vec<OutboxSpec>,
    /// How rows are delivered.
    pub delivery: DeliverySettings,
}

/// `[postgres]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PostgresSettings {
    /// libpq URL.
    pub url: Secret<String>,
    /// Password, where the URL has none.
    pub password: Option<SecretSource>,
    /// Replication slot: 1 to 63 of `a-z`, `0-9`, `_`.
    pub slot: String,
    /// Publication, as stored (no quoting).
    pub publication: String,
    /// What libpq takes from the environment.
    pub libpq: postgres::Environment,
}

impl PostgresSettings {
    /// How to connect, as of now: a password file is read again. Sessions announce themselves as
    /// `postrider/SLOT`.
    ///
    /// # Errors
    /// When the password file cannot be read. The URL was checked at start.
    pub fn connect_config(&self) -> io::Result<ConnectConfig> {
        let password = self
            .password
            .as_ref()
            .map(SecretSource::current)
            .transpose()?;
        self.parse_url(password.as_ref())
            .map_err(|faults| io::Error::other(faults.to_string()))
    }

    /// The URL, parsed, with this password where it has none.
    ///
    /// # Errors
    /// All faults of the URL; they repeat none of its values.
    pub(super) fn parse_url(
        &self,
        password: Option<&Secret<String>>,
    ) -> Result<ConnectConfig, UrlErrors> {
        let mut libpq = self.libpq.clone();
        if let Some(password) = password {
            libpq.password = Some(postgres::Password::new(password.expose().clone()));
        }
        Ok(ConnectConfig::parse_in(self.url.expose(), &libpq)?.for_slot(&self.slot))
    }
}

/// `[nats]`.
#[derive(Clone, Debug, PartialEq)]
pub struct NatsSettings {
    /// One or more server URLs, comma-separated, as given; user, password or token may be inside
    /// (never together with an [`NatsSettings::auth`] other than [`NatsAuth::InUrl`]).
    pub url: Secret<String>,
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

impl NatsSettings {
    /// How to connect, as of now: a password file is read again (all other files by the client, at
    /// each connection). Connections announce themselves as `postrider/SLOT`.
    ///
    /// # Errors
    /// When the password file cannot be read. The rest was checked at start.
    pub fn options(&self, slot: &str) -> io::Result<jetstream::NatsOptions> {
        let options = jetstream::NatsOptions::new(self.unchecked_options(slot)?);
        options.map_err(|faults| io::Error::other(faults.to_string()))
    }

    /// The settings in the client's form.
    pub(super) fn unchecked_options(&self, slot: &str) -> io::Result<jetstream::NatsSettings> {
        let secret = |secret: &Secret<String>| jetstream::Secret::new(secret.expose().as_str());
        let mut options = jetstream::NatsSettings {
            url: secret(&self.url),
            tls_ca: self.tls.ca.clone(),
            tls_cert: self.tls.cert.clone(),
            tls_key: self.tls.key.clone(),
            tls_first: self.tls.first,
            slot: slot.to_owned(),
            ..jetstream::NatsSettings::default()
        };
        match &self.auth {
            NatsAuth::InUrl => {}
            NatsAuth::User { user, password } => {
                options.user = Some(user.clone());
                options.password = Some(secret(&password.current()?));
            }
            NatsAuth::Token(SecretSource::Value(token)) => options.token = Some(secret(token)),
            NatsAuth::Token(SecretSource::File { path, .. }) => {
                options.token_file = Some(path.clone());
            }
            NatsAuth::CredentialsFile(path) => options.credentials_file = Some(path.clone()),
            NatsAuth::NkeyFile(path) => options.nkey_file = Some(path.clone()),
        }
        Ok(options)
    }
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
