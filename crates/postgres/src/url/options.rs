//! From libpq's keywords and values to a checked configuration.

mod tls;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::parse::Pairs;
use super::{
    ConnectConfig, DEFAULT_CONNECT_TIMEOUT, DEFAULT_PORT, Environment, Host, HostAddress,
    Keepalive, Password, SessionTarget, TLS_VARIABLES, UrlError,
};

/// Longest time that one connection attempt may be given, seconds: beyond it a dead first host
/// would hide the living second one for too long.
const MAX_CONNECT_TIMEOUT_SECONDS: u64 = 600;

/// More hosts than any cluster has; bounds one round of attempts.
const MAX_HOSTS: usize = 32;

/// Linux's own limits for these socket options (tcp(7)).
const MAX_KEEPALIVE_SECONDS: u32 = 32_767;
const MAX_KEEPALIVE_COUNT: u32 = 127;
const MAX_USER_TIMEOUT_MS: u32 = 2_147_483_647;

/// Where distributions and where PostgreSQL itself put the socket.
const SOCKET_DIRECTORIES: [&str; 2] = ["/var/run/postgresql", "/tmp"];

/// Options that are read below.
const HONOURED: [&str; 30] = [
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "passfile",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "sslnegotiation",
    "sslsni",
    "sslcertmode",
    "sslcompression",
    "ssl_min_protocol_version",
    "connect_timeout",
    "application_name",
    "fallback_application_name",
    "options",
    "target_session_attrs",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "channel_binding",
    "gssencmode",
    "client_encoding",
    "load_balance_hosts",
];

const OWN_SESSION: &str = "the program sets this itself for each of its sessions; remove it";
const NO_GSS: &str = "GSSAPI and Kerberos are not built in; use a password or a client certificate";
const NO_CRL: &str = "revocation lists are not read; remove it";

/// Options of libpq that are refused, each with its reason.
const REFUSED: [(&str, &str); 17] = [
    ("replication", OWN_SESSION),
    (
        "service",
        "service files are not read; write the settings into the URL",
    ),
    (
        "servicefile",
        "service files are not read; write the settings into the URL",
    ),
    ("krbsrvname", NO_GSS),
    ("gsslib", NO_GSS),
    ("gssdelegation", NO_GSS),
    ("sslcrl", NO_CRL),
    ("sslcrldir", NO_CRL),
    (
        "sslpassword",
        "encrypted keys are not read; give sslkey an unencrypted one",
    ),
    (
        "sslkeylogfile",
        "TLS secrets are not written to files; remove it",
    ),
    (
        "ssl_max_protocol_version",
        "only the lowest version can be chosen; remove it",
    ),
    ("requiressl", "it is obsolete; write sslmode=require"),
    (
        "requirepeer",
        "the owner of the server process is not checked; remove it",
    ),
    (
        "require_auth",
        "the method of authentication cannot be chosen; remove it",
    ),
    ("min_protocol_version", "protocol 3.0 is spoken; remove it"),
    ("max_protocol_version", "protocol 3.0 is spoken; remove it"),
    ("scram_client_key", "give the password instead"),
];

/// Whether libpq has an option of this name, as far as this program knows.
pub(super) fn is_known(name: &str) -> bool {
    HONOURED.contains(&name) || REFUSED.iter().any(|(refused, _)| *refused == name)
}

/// Whether this is a directory where libpq looks when no host is given.
pub(super) fn is_default_socket(directory: &Path) -> bool {
    SOCKET_DIRECTORIES
        .iter()
        .any(|default| directory == Path::new(default))
}

/// Adds what the environment says and the URL does not. What cannot be honoured is refused, under
/// the name of its variable.
pub(super) fn add_environment(
    pairs: &mut Pairs,
    environment: &Environment,
    faults: &mut Vec<UrlError>,
) {
    for (name, option) in TLS_VARIABLES {
        let Some(value) = environment.tls.get(name).filter(|value| !value.is_empty()) else {
            continue;
        };
        let refused = REFUSED.iter().find(|(refused, _)| *refused == option);
        match (pairs.contains_key(option), refused) {
            (true, _) => {}
            (false, Some((_, reason))) => faults.push(UrlError::Unsupported { name, reason }),
            (false, None) => {
                pairs.insert(option.to_owned(), value.clone());
            }
        }
    }
}

/// Reads one option after the other and collects the faults.
struct Reader<'a> {
    pairs: &'a Pairs,
    faults: &'a mut Vec<UrlError>,
}

/// Checks all pairs. `None` only together with at least one fault.
pub(super) fn checked(
    pairs: &Pairs,
    environment: &Environment,
    faults: &mut Vec<UrlError>,
) -> Option<ConnectConfig> {
    let scheme_missing = faults.contains(&UrlError::Scheme);
    if scheme_missing {
        return None;
    }
    let mut reader = Reader { pairs, faults };
    reader.names();
    let hosts = reader.hosts();
    let user = reader
        .get("user")
        .map(str::to_owned)
        .or_else(|| environment.user.clone());
    if user.is_none() {
        reader.faults.push(UrlError::NoUser);
    }
    let database = reader
        .get("dbname")
        .map(str::to_owned)
        .or_else(|| user.clone());
    let password = reader
        .get("password")
        .map(|text| Password::new(text.to_owned()));
    let home = environment.home.as_deref();
    let passfile = reader
        .get("passfile")
        .map(PathBuf::from)
        .or_else(|| environment.passfile.clone())
        .or_else(|| home.map(|home| home.join(".pgpass")));
    let tls = reader.tls(home);
    let keepalive = reader.keepalive();
    let connect_timeout = reader.connect_timeout();
    let target = reader.target(hosts.len());
    reader.fixed_choices();
    let application_name = reader
        .get("application_name")
        .or_else(|| reader.get("fallback_application_name"))
        .map(str::to_owned);
    let options = reader.get("options").map(str::to_owned);
    Some(ConnectConfig {
        hosts,
        user: user?,
        database: database?,
        password: password.or_else(|| environment.password.clone()),
        passfile,
        tls,
        connect_timeout,
        application_name,
        default_application_name: "postrider".to_owned(),
        options,
        target,
        keepalive,
    })
}

impl Reader<'_> {
    /// A value that is there and not empty; libpq takes an empty value for none.
    fn get(&self, name: &str) -> Option<&str> {
        self.pairs
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    fn fail(&mut self, name: &'static str, wanted: &'static str) {
        self.faults.push(UrlError::Value { name, wanted });
    }

    fn refuse(&mut self, name: &'static str, reason: &'static str) {
        self.faults.push(UrlError::Unsupported { name, reason });
    }

    /// Refuses what is not known and what is known and not honoured.
    fn names(&mut self) {
        for name in self.pairs.keys() {
            if let Some((name, reason)) = REFUSED.iter().find(|(refused, _)| refused == name) {
                self.faults.push(UrlError::Unsupported { name, reason });
            } else if !HONOURED.contains(&name.as_str()) {
                let name = name.chars().take(64).collect();
                self.faults.push(UrlError::UnknownOption { name });
            }
        }
    }

    /// Accepts the values of `accepted` and refuses every other one.
    fn only(&mut self, name: &'static str, accepted: &[&str], reason: &'static str) {
        if self
            .get(name)
            .is_some_and(|value| !accepted.contains(&value))
        {
            self.refuse(name, reason);
        }
    }

    /// Options of which only some values can be honoured.
    fn fixed_choices(&mut self) {
        self.only(
            "channel_binding",
            &["disable", "prefer"],
            "channel binding is not offered; use sslmode=verify-full",
        );
        self.only("gssencmode", &["disable", "prefer"], NO_GSS);
        self.only(
            "client_encoding",
            &["UTF8", "utf8", "UTF-8", "utf-8", "auto"],
            "it is UTF8",
        );
        self.only(
            "load_balance_hosts",
            &["disable"],
            "hosts are tried in the order given",
        );
    }

    fn hosts(&mut self) -> Vec<Host> {
        let list = |name: &str| -> Vec<String> {
            self.get(name).map_or_else(Vec::new, |text| {
                text.split(',').map(str::to_owned).collect()
            })
        };
        let (names, addresses, ports) = (list("host"), list("hostaddr"), list("port"));
        let count = names.len().max(addresses.len()).max(1);
        if count > MAX_HOSTS {
            self.fail("host", "a list of at most 32 hosts");
            return Vec::new();
        }
        if !addresses.is_empty() && !names.is_empty() && names.len() != addresses.len() {
            let (found, hosts) = (addresses.len(), names.len());
            self.faults.push(UrlError::ListLength {
                name: "hostaddr",
                found,
                hosts,
            });
        }
        if ports.len() > 1 && ports.len() != count {
            let found = ports.len();
            self.faults.push(UrlError::ListLength {
                name: "port",
                found,
                hosts: count,
            });
        }
        let entry =
            |list: &[String], index: usize| list.get(index).map_or("", String::as_str).to_owned();
        (0..count)
            .map(|index| {
                let port = entry(&ports, if ports.len() == 1 { 0 } else { index });
                let port = self.port(&port);
                let address = self.address(entry(&names, index), &entry(&addresses, index));
                Host { address, port }
            })
            .collect()
    }

    fn port(&mut self, text: &str) -> u16 {
        if text.is_empty() {
            return DEFAULT_PORT;
        }
        let port = text.parse().ok().filter(|port| *port != 0);
        if port.is_none() {
            self.fail(
                "port",
                "a number from 1 to 65535 (in a password write `:` as %3A)",
            );
        }
        port.unwrap_or(DEFAULT_PORT)
    }

    fn address(&mut self, name: String, hostaddr: &str) -> HostAddress {
        if !hostaddr.is_empty() {
            let addr: Option<IpAddr> = hostaddr.parse().ok();
            if addr.is_none() {
                self.fail("hostaddr", "an IPv4 or IPv6 address");
            }
            let name = if name.is_empty() {
                hostaddr.to_owned()
            } else {
                name
            };
            return HostAddress::Tcp { name, addr };
        }
        if name.is_empty() {
            let [distribution, plain] = SOCKET_DIRECTORIES.map(Path::new);
            let directory = if distribution.is_dir() {
                distribution
            } else {
                plain
            };
            return HostAddress::Unix {
                directory: directory.to_owned(),
            };
        }
        if name.starts_with('@') {
            self.refuse(
                "host",
                "abstract sockets are not supported; name a directory",
            );
        }
        if name.starts_with('/') {
            return HostAddress::Unix {
                directory: name.into(),
            };
        }
        HostAddress::Tcp { name, addr: None }
    }

    /// A 0/1 option that is on by default.
    fn flag(&mut self, name: &'static str) -> bool {
        match self.get(name) {
            None | Some("1") => true,
            Some("0") => false,
            Some(_) => {
                self.fail(name, "0 or 1");
                true
            }
        }
    }

    fn keepalive(&mut self) -> Keepalive {
        let disabled = !self.flag("keepalives");
        let seconds = |number: u32| Duration::from_secs(number.into());
        Keepalive {
            disabled,
            idle: self
                .number("keepalives_idle", MAX_KEEPALIVE_SECONDS)
                .map(seconds),
            interval: self
                .number("keepalives_interval", MAX_KEEPALIVE_SECONDS)
                .map(seconds),
            count: self.number("keepalives_count", MAX_KEEPALIVE_COUNT),
            user_timeout: self
                .number("tcp_user_timeout", MAX_USER_TIMEOUT_MS)
                .map(|number| Duration::from_millis(number.into())),
        }
    }

    /// A number, where 0 means the system's own value, as in libpq.
    fn number(&mut self, name: &'static str, max: u32) -> Option<u32> {
        let number = self
            .get(name)?
            .parse::<u32>()
            .ok()
            .filter(|number| *number <= max);
        if number.is_none() {
            self.fail(name, "a whole number in the range that the system takes");
        }
        number.filter(|number| *number > 0)
    }

    fn connect_timeout(&mut self) -> Duration {
        let Some(text) = self.get("connect_timeout") else {
            return DEFAULT_CONNECT_TIMEOUT;
        };
        match text.parse::<u64>() {
            Ok(seconds) if (1..=MAX_CONNECT_TIMEOUT_SECONDS).contains(&seconds) => {
                Duration::from_secs(seconds)
            }
            _ => {
                self.fail("connect_timeout", "a number of seconds from 1 to 600");
                DEFAULT_CONNECT_TIMEOUT
            }
        }
    }

    fn target(&mut self, hosts: usize) -> SessionTarget {
        match self.get("target_session_attrs") {
            None if hosts > 1 => SessionTarget::ReadWrite,
            None | Some("any") => SessionTarget::Any,
            Some("read-write") => SessionTarget::ReadWrite,
            Some("primary") => SessionTarget::Primary,
            Some("read-only" | "standby" | "prefer-standby") => {
                self.refuse(
                    "target_session_attrs",
                    "the slot lives on the primary; write read-write, primary or any",
                );
                SessionTarget::Any
            }
            Some(_) => {
                self.fail("target_session_attrs", "any, read-write or primary");
                SessionTarget::Any
            }
        }
    }
}
