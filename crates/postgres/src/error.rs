//! What can go wrong with PostgreSQL, typed, with the server's own code kept.

mod fault;
mod server;

pub use fault::Fault;
pub use server::{ServerError, SqlState};

use std::io;
use std::time::Duration;

use crate::connect::TlsError;
use crate::url::UrlErrors;

/// An error of this room. [`PgError::fault`] says what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum PgError {
    /// The URL has faults.
    #[error("the PostgreSQL URL is not usable")]
    Url(#[from] UrlErrors),
    /// No connection to this host.
    #[error("cannot connect to PostgreSQL at {host}")]
    Connect {
        /// Host and port, or socket file.
        host: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// Every host of the list failed; the last failure is the source.
    #[error("none of the {count} PostgreSQL hosts could be used (last tried: {host})")]
    NoHost {
        /// Hosts tried.
        count: usize,
        /// The last one.
        host: String,
        /// Its failure.
        #[source]
        source: Box<PgError>,
    },
    /// This server is a standby or read-only and the URL wants a writable one.
    #[error("the server at {host} does not accept writes (target_session_attrs)")]
    NotWritable {
        /// Host and port.
        host: String,
    },
    /// This server is a standby, on which no slot of ours can be made or read.
    #[error("the server {host} is a standby: waiting for its promotion")]
    Standby {
        /// User, host and database.
        host: String,
    },
    /// A step took longer than it may.
    #[error("PostgreSQL did not finish in {} s: {what}", limit.as_secs())]
    Timeout {
        /// The step.
        what: String,
        /// The limit.
        limit: Duration,
    },
    /// The connection could not be protected as the URL demands.
    #[error("no TLS connection to PostgreSQL at {host}")]
    Tls {
        /// Host and port.
        host: String,
        /// Why.
        #[source]
        source: Box<TlsError>,
    },
    /// Authentication failed on our side; a refusal by the server is [`PgError::Server`].
    #[error("cannot authenticate with PostgreSQL: {reason}")]
    Auth {
        /// What is missing or wrong, and the cure.
        reason: String,
    },
    /// The server answered with an error.
    #[error("PostgreSQL answered with an error")]
    Server(#[source] Box<ServerError>),
    /// The server is older than this program supports.
    #[error("PostgreSQL {found} is too old: version 14 or newer is needed")]
    ServerVersion {
        /// What the server says of itself.
        found: String,
    },
    /// The server, or something between us, does not speak the protocol as agreed.
    #[error("PostgreSQL protocol error: {reason}")]
    Protocol {
        /// What was expected and what came.
        reason: String,
    },
    /// The established connection broke.
    #[error("the connection to PostgreSQL broke")]
    Io(#[source] io::Error),
    /// The connection is closed: by the server, or by an earlier error.
    #[error("PostgreSQL closed the connection")]
    Closed,
    /// The control connection's client library failed without an answer of the server.
    #[error("the control connection to PostgreSQL failed")]
    Client(#[source] tokio_postgres::Error),
    /// What was asked for is not there or is not as it must be.
    #[error("{what}")]
    Refused {
        /// What, where, and how to cure it.
        what: String,
    },
}

impl PgError {
    pub(crate) fn protocol(reason: impl Into<String>) -> Self {
        Self::Protocol {
            reason: reason.into(),
        }
    }

    /// The server wants a password and none is configured.
    pub(crate) fn no_password(user: &str) -> Self {
        let reason = format!(
            "the server asks for a password for user {user:?} and there is none: put it into the \
             URL, PGPASSWORD or the password file"
        );
        Self::Auth { reason }
    }

    /// The server's answer, however deeply wrapped.
    #[must_use]
    pub fn server(&self) -> Option<&ServerError> {
        match self {
            Self::Server(error) => Some(error),
            Self::NoHost { source, .. } => source.server(),
            _ => None,
        }
    }

    /// The verdict: which situation of the operating manual this is.
    #[must_use]
    pub fn fault(&self) -> Fault {
        fault::of(self)
    }

    /// The chain of messages in one line, `outer: inner: innermost`.
    #[must_use]
    pub fn one_line(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            text.push_str(": ");
            text.push_str(&error.to_string());
            source = error.source();
        }
        text
    }
}

impl From<ServerError> for PgError {
    fn from(error: ServerError) -> Self {
        Self::Server(Box::new(error))
    }
}

impl From<tokio_postgres::Error> for PgError {
    fn from(error: tokio_postgres::Error) -> Self {
        if let Some(db) = error.as_db_error() {
            return ServerError::from(db).into();
        }
        if error.is_closed() {
            return Self::Closed;
        }
        Self::Client(error)
    }
}
