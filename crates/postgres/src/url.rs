//! libpq connection URLs: one parser whose result feeds both connections.
//!
//! `postgres://user:password@host:port,host:port/database?option=value` as libpq reads it
//! (PostgreSQL manual, "Connection URIs"): the URL becomes keyword and value pairs ([`parse`]), and
//! the pairs become a checked [`ConnectConfig`] ([`options`]). What cannot be honoured is refused
//! by name, never ignored, and all faults of one URL are reported together. A fault never repeats a
//! value: a misplaced `@` or `/` makes parts of the password look like something else.

mod options;
mod parse;
mod passfile;
mod password;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use password::Password;

/// The port PostgreSQL listens on unless told otherwise.
pub const DEFAULT_PORT: u16 = 5432;

/// How long one attempt on one address may take, from the first packet to the end of
/// authentication. libpq waits for ever by default; a daemon that must try the next host cannot.
pub const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the server is, who we are there, and how the connection is protected: a whole libpq URL,
/// checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectConfig {
    pub(crate) hosts: Vec<Host>,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) password: Option<Password>,
    pub(crate) passfile: Option<PathBuf>,
    pub(crate) tls: TlsSettings,
    pub(crate) connect_timeout: Duration,
    pub(crate) application_name: Option<String>,
    pub(crate) default_application_name: String,
    pub(crate) options: Option<String>,
    pub(crate) target: SessionTarget,
    pub(crate) keepalive: Keepalive,
}

/// One server of the URL's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// How to reach it.
    pub address: HostAddress,
    /// TCP port, or the number in the name of the socket file.
    pub port: u16,
}

/// How a server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostAddress {
    /// By TCP.
    Tcp {
        /// Name or address as written; the name a certificate is checked against.
        name: String,
        /// `hostaddr`: connect to this address and do not resolve the name.
        addr: Option<IpAddr>,
    },
    /// By the Unix-domain socket `.s.PGSQL.PORT` in this directory.
    Unix {
        /// Directory of the socket file.
        directory: PathBuf,
    },
}

/// libpq's `sslmode` (PostgreSQL manual, "SSL Mode Descriptions").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it, plain if the server says that it has not.
    Prefer,
    /// TLS or no connection; the certificate is checked only if a root certificate is given.
    Require,
    /// As `Require`, and the certificate comes from a trusted authority.
    VerifyCa,
    /// As `VerifyCa`, and the certificate names the host.
    VerifyFull,
}

/// Whose signature on the server's certificate counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TrustedRoots {
    /// No `sslrootcert`: this file of libpq's if it exists.
    DefaultFile(Option<PathBuf>),
    /// `sslrootcert=FILE`.
    File(PathBuf),
    /// `sslrootcert=system`.
    System,
}

/// A client certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClientCertificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// Named in the URL; libpq's default files are used only if they exist.
    pub(crate) explicit: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    pub(crate) mode: TlsMode,
    pub(crate) roots: TrustedRoots,
    pub(crate) client: Option<ClientCertificate>,
    /// `sslnegotiation=direct`: TLS from the first byte (servers from 17 on).
    pub(crate) direct: bool,
    /// `sslsni`: tell the server the host name in the clear.
    pub(crate) sni: bool,
    /// `ssl_min_protocol_version=TLSv1.3`; otherwise 1.2 is the least.
    pub(crate) only_tls13: bool,
}

/// libpq's `target_session_attrs`, as far as a streamer has a use for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionTarget {
    /// The first server that answers.
    Any,
    /// The first that accepts writes: the default when several hosts are given.
    ReadWrite,
    /// The first that is not in recovery.
    Primary,
}

/// TCP keepalive, in libpq's words. `None` leaves the system's value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Keepalive {
    pub(crate) disabled: bool,
    pub(crate) idle: Option<Duration>,
    pub(crate) interval: Option<Duration>,
    pub(crate) count: Option<u32>,
    pub(crate) user_timeout: Option<Duration>,
}

/// What libpq takes from the environment of the process. An argument, so that parsing is a
/// function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// The operating system's user name, the default database user.
    pub user: Option<String>,
    /// Home directory, under which `.pgpass` and `.postgresql/` lie.
    pub home: Option<PathBuf>,
    /// `PGPASSWORD`.
    pub password: Option<Password>,
    /// `PGPASSFILE`.
    pub passfile: Option<PathBuf>,
    /// The variables of [`TLS_VARIABLES`], for options that the URL does not give.
    pub tls: BTreeMap<&'static str, String>,
}

/// Variables of libpq about the protection of a connection, with the options that they stand for.
/// They are honoured or refused as those are: ignored, they would leave a connection less protected
/// than its owner believes.
pub const TLS_VARIABLES: [(&str, &str); 15] = [
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
    ("PGSSLCERT", "sslcert"),
    ("PGSSLKEY", "sslkey"),
    ("PGSSLCRL", "sslcrl"),
    ("PGSSLCRLDIR", "sslcrldir"),
    ("PGSSLSNI", "sslsni"),
    ("PGSSLNEGOTIATION", "sslnegotiation"),
    ("PGSSLCERTMODE", "sslcertmode"),
    ("PGSSLMINPROTOCOLVERSION", "ssl_min_protocol_version"),
    ("PGSSLMAXPROTOCOLVERSION", "ssl_max_protocol_version"),
    ("PGREQUIREPEER", "requirepeer"),
    ("PGREQUIREAUTH", "require_auth"),
    ("PGCHANNELBINDING", "channel_binding"),
    ("PGGSSENCMODE", "gssencmode"),
];

impl ConnectConfig {
    /// Reads a libpq URL, with defaults from `environment`.
    ///
    /// # Errors
    /// Every fault of the URL at once.
    pub fn parse_in(url: &str, environment: &Environment) -> Result<Self, UrlErrors> {
        let mut faults = Vec::new();
        let mut pairs = parse::pairs(url, &mut faults);
        options::add_environment(&mut pairs, environment, &mut faults);
        let config = options::checked(&pairs, environment, &mut faults);
        match config {
            Some(config) if faults.is_empty() => Ok(config),
            _ => Err(UrlErrors(faults)),
        }
    }

    /// The same, announcing itself as `postrider/SLOT` unless the URL has an `application_name`.
    /// PostgreSQL cuts the name at 63 bytes.
    #[must_use]
    pub fn for_slot(mut self, slot: &str) -> Self {
        self.default_application_name = format!("postrider/{slot}");
        self
    }

    /// The same servers, `first` before the others if it is one of them: a server that worked is
    /// found without a wait for those that are dead.
    #[must_use]
    pub fn beginning_with(mut self, first: &Host) -> Self {
        if let Some(place) = self.hosts.iter().position(|host| host == first) {
            let host = self.hosts.remove(place);
            self.hosts.insert(0, host);
        }
        self
    }

    /// The same for one server alone, so that a second connection leads to the server of the first.
    #[must_use]
    pub fn only_at(mut self, host: &Host) -> Self {
        self.hosts = vec![host.clone()];
        self
    }

    /// The database user.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The database.
    #[must_use]
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The name that the sessions announce.
    #[must_use]
    pub fn application_name(&self) -> &str {
        self.application_name
            .as_deref()
            .unwrap_or(&self.default_application_name)
    }

    /// The password for `host`: from the URL, `PGPASSWORD` or the password file, in this order.
    /// The file is read each time, because passwords rotate.
    pub(crate) fn password_for(&self, host: &Host) -> Option<Password> {
        if let Some(password) = &self.password {
            return Some(password.clone());
        }
        passfile::look_up(self.passfile.as_deref()?, host, &self.database, &self.user)
    }
}

impl fmt::Display for ConnectConfig {
    /// `user@host:port,host:port/database`, for logs: no password, no options.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@", self.user)?;
        for (index, host) in self.hosts.iter().enumerate() {
            write!(f, "{}{host}", if index == 0 { "" } else { "," })?;
        }
        write!(f, "/{}", self.database)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            HostAddress::Tcp { name, .. } if name.contains(':') => {
                write!(f, "[{name}]:{}", self.port)
            }
            HostAddress::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
            HostAddress::Unix { directory } => {
                write!(f, "{}/.s.PGSQL.{}", directory.display(), self.port)
            }
        }
    }
}

/// One fault of a URL. Texts name options and parts, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Another scheme, or none.
    #[error("the PostgreSQL URL must begin with postgres:// or postgresql://")]
    Scheme,
    /// A `%` that is not followed by two hexadecimal digits, or bytes that are no UTF-8 text.
    #[error("bad percent-encoding in the {part} (a plain % is written %25)")]
    PercentEncoding {
        /// The part of the URL.
        part: String,
    },
    /// An `@` where none can be, most likely from an unencoded password.
    #[error(
        "the {part} has an unexpected `@`: inside a password write `@` as %40, `/` as %2F and \
         `?` as %3F"
    )]
    StrayAt {
        /// The part of the URL.
        part: &'static str,
    },
    /// `[` without `]`, or something other than a port after it.
    #[error("an IPv6 address is written in brackets, [::1], with an optional :port after them")]
    Brackets,
    /// A query part without `=` or with more than one.
    #[error("every option after `?` is written name=value, separated by `&` (`=` is %3D, `&` %26)")]
    OptionSyntax,
    /// An option that libpq does not have either.
    #[error("unknown option {name:?}")]
    UnknownOption {
        /// The name as written, or `?` if it might be a piece of a password.
        name: String,
    },
    /// An option or value that libpq has and this program cannot honour.
    #[error("{name} cannot be honoured: {reason}")]
    Unsupported {
        /// The option.
        name: &'static str,
        /// Why, and what to do.
        reason: &'static str,
    },
    /// A value outside what the option takes.
    #[error("{name} must be {wanted}")]
    Value {
        /// The option.
        name: &'static str,
        /// What it takes.
        wanted: &'static str,
    },
    /// No user in the URL and none in the environment.
    #[error("no user: name one in the URL (postgres://USER@host/database)")]
    NoUser,
    /// Lists of hosts, addresses and ports of different lengths.
    #[error("{name} has {found} entries for {hosts} hosts")]
    ListLength {
        /// `hostaddr` or `port`.
        name: &'static str,
        /// Entries found.
        found: usize,
        /// Hosts given.
        hosts: usize,
    },
}

/// All faults of one URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlErrors(pub Vec<UrlError>);

impl fmt::Display for UrlErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            write!(f, "{}{fault}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UrlErrors {}

#[cfg(test)]
mod tests;
