//! One match from an error to the situation it stands for.
//!
//! The SQLSTATE decides where it can. Where one code covers several situations, the name of the
//! server's function that raised it (never translated) and the English text decide.

use super::{PgError, ServerError};

/// The situation an error stands for, and with it what can be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Nobody answers, or the connection broke: try again.
    Unreachable,
    /// The server is starting up or recovering (57P03): try again.
    ServerStarting,
    /// The server is shutting down or ended this session (57P01, 57P02, 57P05): try again, and look
    /// at the slot, because a slot that was just lost looks like this.
    ServerShuttingDown,
    /// No free connection or walsender (53300): try again.
    TooManyConnections,
    /// Another session holds the slot (55006): wait as standby.
    SlotActive {
        /// The holder's backend process id on the server, if the message tells.
        pid: Option<i32>,
    },
    /// There is no such slot (42704): stop, the operator decides.
    SlotMissing,
    /// The slot exists and its WAL is gone (55000): stop, the operator decides.
    SlotLost,
    /// The slot cannot be used on this server because it is a standby (55000): wait for promotion.
    SlotOnStandby,
    /// `wal_level` is below `logical` (55000): stop.
    WalLevel,
    /// The publication does not exist at the slot's position (42704, or the warning of 18): stop.
    PublicationMissing,
    /// Wrong user, password, certificate, or no line in `pg_hba.conf` (28xxx): stop.
    AuthFailed,
    /// No such database (3D000): stop.
    DatabaseMissing,
    /// A right is missing (42501): stop.
    PermissionDenied,
    /// No free replication slot (53400): stop.
    TooManySlots,
    /// A connection pooler answered instead of PostgreSQL: stop, connect directly.
    Pooler,
    /// The server is older than 14: stop.
    ServerVersion,
    /// TLS could not be had as demanded: stop.
    Tls,
    /// Every reachable host is read-only: try again, a primary may be on its way.
    NotWritable,
    /// A limit of ours or the server's, or a person, ended the command (25P03, 55P03, 57014): try
    /// again.
    Cancelled,
    /// Anything else: stop and show the message.
    Other,
}

impl Fault {
    /// Whether trying again later, unchanged, can succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Unreachable
                | Self::ServerStarting
                | Self::ServerShuttingDown
                | Self::TooManyConnections
                | Self::SlotActive { .. }
                | Self::SlotOnStandby
                | Self::NotWritable
                | Self::Cancelled
        )
    }

    /// What the operator should do, for an error message; `None` where waiting is the answer.
    #[must_use]
    pub fn cure(&self) -> Option<&'static str> {
        Some(match self {
            Self::SlotMissing => {
                "run `postrider setup` for a new slot; rows that committed since the old one was \
                 lost are in the table alone"
            }
            Self::SlotLost => {
                "run `postrider setup --recreate-slot`: the slot's WAL is gone; it names the gap"
            }
            Self::WalLevel => {
                "set wal_level = logical (ALTER SYSTEM SET wal_level = 'logical') and restart \
                 PostgreSQL"
            }
            Self::PublicationMissing => {
                "publication and slot belong together: run `postrider teardown` and `postrider \
                 setup`, which make both anew; rows that are not in the stream by then are in the \
                 table alone"
            }
            Self::AuthFailed => {
                "check user and password, and that pg_hba.conf lets this user into this database \
                 (a line for the keyword `replication` does not count for logical replication)"
            }
            Self::DatabaseMissing => "check the database name in the URL",
            Self::PermissionDenied => {
                "the role needs REPLICATION (ALTER ROLE ... REPLICATION), or on a managed service \
                 its replication role; see sql/roles.sql"
            }
            Self::TooManySlots => "raise max_replication_slots, or drop a slot that is not used",
            Self::Pooler => "this is a connection pooler: connect to PostgreSQL directly",
            Self::ServerVersion => "use PostgreSQL 14 or newer",
            Self::Tls => "check sslmode, sslrootcert and the server's certificate",
            _ => return None,
        })
    }
}

/// Classifies an error.
pub(super) fn of(error: &PgError) -> Fault {
    match error {
        PgError::Connect { .. } | PgError::Timeout { .. } | PgError::Io(_) | PgError::Closed => {
            Fault::Unreachable
        }
        PgError::Client(source) => client(source),
        PgError::NoHost { source, .. } => of(source),
        PgError::NotWritable { .. } => Fault::NotWritable,
        PgError::Standby { .. } => Fault::SlotOnStandby,
        // A broken handshake is a broken connection; a bad certificate is not.
        PgError::Tls { source, .. } if source.is_io() => Fault::Unreachable,
        PgError::Tls { .. } => Fault::Tls,
        PgError::Auth { .. } => Fault::AuthFailed,
        PgError::Server(error) => server(error),
        PgError::ServerVersion { .. } => Fault::ServerVersion,
        PgError::Url(_) | PgError::Protocol { .. } | PgError::Refused { .. } => Fault::Other,
    }
}

fn client(error: &tokio_postgres::Error) -> Fault {
    let broken = std::error::Error::source(error)
        .is_some_and(|source| source.downcast_ref::<std::io::Error>().is_some());
    if broken || error.is_closed() {
        Fault::Unreachable
    } else {
        Fault::Other
    }
}

fn server(error: &ServerError) -> Fault {
    let raised_by = |routine: &str| error.routine.as_deref() == Some(routine);
    let message = without_names(&error.message);
    let says = |text: &str| message.contains(text);
    match error.code.as_str() {
        "57P03" => Fault::ServerStarting,
        "57P01" | "57P02" | "57P05" => Fault::ServerShuttingDown,
        "53300" => Fault::TooManyConnections,
        "55006" => Fault::SlotActive {
            pid: last_number(&error.message),
        },
        "42704" if says("publication") || raised_by("get_publication_oid") => {
            Fault::PublicationMissing
        }
        "42704" if says("replication slot") || raised_by("ReplicationSlotAcquire") => {
            Fault::SlotMissing
        }
        "55000" => prerequisite(error),
        "3D000" => Fault::DatabaseMissing,
        "42501" => Fault::PermissionDenied,
        "53400" => Fault::TooManySlots,
        "25P03" | "57014" | "55P03" => Fault::Cancelled,
        code if is_pooler(code, &error.message) => Fault::Pooler,
        code if code.starts_with("28") => Fault::AuthFailed,
        code if code.starts_with("08") => Fault::Unreachable,
        _ => Fault::Other,
    }
}

/// Texts that connection poolers give and PostgreSQL does not.
fn is_pooler(code: &str, message: &str) -> bool {
    /// Of PgBouncer, Pgpool-II and Odyssey, all under codes of class 08 (connection exception).
    const CONNECTING: [&str; 11] = [
        "unsupported startup parameter",
        "pgbouncer",
        "Pgpool",
        "odyssey",
        "no such user/database",
        "no such database",
        "unsupported pkt type",
        "server login failed",
        "query_wait_timeout",
        "client_login_timeout",
        "no more connections allowed",
    ];
    // A statement prepared on one server connection and executed on another: the mark of pooling
    // by transaction.
    let lost_statement =
        matches!(code, "26000" | "42P05") && message.contains("prepared statement");
    lost_statement
        || (code.starts_with("08") && CONNECTING.iter().any(|text| message.contains(text)))
}

/// 55000, "object not in prerequisite state", of 14 to 18.
fn prerequisite(error: &ServerError) -> Fault {
    let message = without_names(&error.message);
    let says = |text: &str| message.contains(text);
    let raised_by = |routine: &str| error.routine.as_deref() == Some(routine);
    if error.severity == "WARNING" || says("publication") || raised_by("LoadPublications") {
        return Fault::PublicationMissing;
    }
    // Newer servers quote the names of settings, too.
    if error.message.contains("wal_level") && says("requires") {
        return Fault::WalLevel;
    }
    if says("standby") || says("synchronized from the primary") || says("synced from the primary") {
        return Fault::SlotOnStandby;
    }
    // 14: "cannot read from logical replication slot", 15 to 17: "can no longer get changes from
    // replication slot", 18: "can no longer access replication slot".
    if says("can no longer") || says("cannot read from") || says("invalidated") {
        return Fault::SlotLost;
    }
    Fault::Other
}

/// The text without what stands in double quotes: a slot may be called `x_standby`, and a
/// publication `wal_level`.
fn without_names(message: &str) -> String {
    message.split('"').step_by(2).collect()
}

/// `replication slot "s" is active for PID 4711`, in any language.
fn last_number(message: &str) -> Option<i32> {
    message
        .split(|c: char| !c.is_ascii_digit())
        .rfind(|digits| !digits.is_empty())?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests;
