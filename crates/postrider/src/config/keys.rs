//! The one table of configuration keys: flags, environment variables, checks, defaults and the
//! README's table all come from here.

pub use crate::config::outbox_keys::{NOT_YET, OUTBOX_KEYS, OutboxKey, OutboxKind};
use crate::config::units::Bounds;

/// How a value is written and checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Plain text, not empty.
    Text,
    /// URL that may hold a password: never repeated in a message.
    Url,
    /// A secret: never repeated in a message, and no flag (every user of a machine can read the
    /// flags of a process).
    Secret,
    /// Path of a file that must be readable at start.
    Path,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Bool,
    /// Size with a unit.
    Size(Bounds),
    /// Duration with a unit; bounds in milliseconds.
    Duration(Bounds),
    /// Whole number.
    Integer(Bounds),
    /// Replication slot name.
    Slot,
    /// Publication name.
    Publication,
    /// Stream name.
    Stream,
}

impl Kind {
    /// Placeholder of the value in `--help`.
    pub fn value_name(self) -> String {
        match self {
            Self::Text | Self::Slot | Self::Publication | Self::Stream => "NAME".to_owned(),
            Self::Url => "URL".to_owned(),
            Self::Secret => "SECRET".to_owned(),
            Self::Path => "FILE".to_owned(),
            Self::Choice(words) => words.join("|"),
            Self::Bool => "true|false".to_owned(),
            Self::Size(_) => "SIZE".to_owned(),
            Self::Duration(_) => "DURATION".to_owned(),
            Self::Integer(_) => "N".to_owned(),
        }
    }
}

/// One scalar key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Dotted name, as in the file.
    pub name: &'static str,
    /// How it is written and checked.
    pub kind: Kind,
    /// Value without any other, written as in the file.
    pub default: Option<&'static str>,
    /// What holds without a value, where there is no `default`; empty: nothing to say.
    pub without: &'static str,
    /// Shown by `--help`, but not by the short `-h`.
    pub rare: bool,
    /// One sentence.
    pub help: &'static str,
}

impl Key {
    const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self {
            name,
            kind,
            default: None,
            without: "",
            rare: false,
            help,
        }
    }

    const fn default(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }

    const fn without(mut self, without: &'static str) -> Self {
        self.without = without;
        self
    }

    const fn rare(mut self) -> Self {
        self.rare = true;
        self
    }

    /// `postgres` of `postgres.slot`.
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// `slot` of `postgres.slot`.
    pub fn leaf(&self) -> &'static str {
        self.name
            .split_once('.')
            .map_or(self.name, |(_, leaf)| leaf)
    }

    /// `--postgres-slot`; `None` for secrets.
    pub fn flag(&self) -> Option<String> {
        let flag = || format!("--{}", self.name.replace(['.', '_'], "-"));
        (self.kind != Kind::Secret).then(flag)
    }

    /// `POSTRIDER_POSTGRES_SLOT`.
    pub fn variable(&self) -> String {
        format!(
            "POSTRIDER_{}",
            self.name.replace('.', "_").to_ascii_uppercase()
        )
    }
}

/// Names the configuration file.
pub const CONFIG_VARIABLE: &str = "POSTRIDER_CONFIG";
/// Log filter; see [`crate::logging`].
pub const LOG_VARIABLE: &str = "POSTRIDER_LOG";
/// `text` or `json`.
pub const LOG_FORMAT_VARIABLE: &str = "POSTRIDER_LOG_FORMAT";

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const DAY_MS: u64 = 86_400_000;

/// A message is never allowed less than its headers need.
const MESSAGE_BOUNDS: Bounds = Bounds {
    min: KIB,
    max: 64 * MIB,
};
/// Less than the smallest cannot hold one message and its neighbours; more than the largest is
/// no bound on any machine that a streamer runs on.
const IN_FLIGHT_BOUNDS: Bounds = Bounds {
    min: 64 * KIB,
    max: 4 * GIB,
};
/// WAL is kept on the primary for as long: a month of it is a mistake.
const CONFIRM_DELAY_BOUNDS: Bounds = Bounds {
    min: 0,
    max: 30 * DAY_MS,
};
/// JetStream's own bound.
const REPLICA_BOUNDS: Bounds = Bounds { min: 1, max: 5 };

/// `postgres.url`
pub const POSTGRES_URL: Key = Key::new(
    "postgres.url",
    Kind::Url,
    "libpq URL of the database; sslmode, sslrootcert, sslcert, sslkey, several hosts and unix \
     sockets work",
)
.without("`DATABASE_URL`");
/// `postgres.url_file`
pub const POSTGRES_URL_FILE: Key = Key::new(
    "postgres.url_file",
    Kind::Path,
    "file that holds the database URL",
)
.rare();
/// `postgres.password`
pub const POSTGRES_PASSWORD: Key = Key::new(
    "postgres.password",
    Kind::Secret,
    "password, instead of one in the URL",
);
/// `postgres.password_file`
pub const POSTGRES_PASSWORD_FILE: Key = Key::new(
    "postgres.password_file",
    Kind::Path,
    "file that holds the password; read again at each connection",
)
.rare();
/// `postgres.slot`
pub const POSTGRES_SLOT: Key =
    Key::new("postgres.slot", Kind::Slot, "replication slot").default("postrider");
/// `postgres.publication`
pub const POSTGRES_PUBLICATION: Key = Key::new(
    "postgres.publication",
    Kind::Publication,
    "publication of the outbox tables",
)
.default("postrider");
/// `nats.url`
pub const NATS_URL: Key = Key::new(
    "nats.url",
    Kind::Url,
    "NATS server, or several, comma-separated; user, password and token in the URL work",
)
.without("`NATS_URL`, else `nats://localhost:4222`");
/// `nats.url_file`
pub const NATS_URL_FILE: Key =
    Key::new("nats.url_file", Kind::Path, "file that holds the NATS URL").rare();
/// `nats.user`
pub const NATS_USER: Key = Key::new("nats.user", Kind::Text, "user, with a password").rare();
/// `nats.password`
pub const NATS_PASSWORD: Key = Key::new("nats.password", Kind::Secret, "password of the user");
/// `nats.password_file`
pub const NATS_PASSWORD_FILE: Key = Key::new(
    "nats.password_file",
    Kind::Path,
    "file that holds the password; read again at each connection",
)
.rare();
/// `nats.token`
pub const NATS_TOKEN: Key = Key::new("nats.token", Kind::Secret, "token");
/// `nats.token_file`
pub const NATS_TOKEN_FILE: Key = Key::new(
    "nats.token_file",
    Kind::Path,
    "file that holds the token; read again at each connection",
)
.rare();
/// `nats.credentials_file`
pub const NATS_CREDENTIALS_FILE: Key = Key::new(
    "nats.credentials_file",
    Kind::Path,
    "credentials file (JWT and seed); read again at each connection",
);
/// `nats.nkey_file`
pub const NATS_NKEY_FILE: Key = Key::new(
    "nats.nkey_file",
    Kind::Path,
    "file that holds an NKey seed; read again at each connection",
)
.rare();
/// `nats.tls_ca`
pub const NATS_TLS_CA: Key = Key::new(
    "nats.tls_ca",
    Kind::Path,
    "PEM file of the certificate authorities to trust",
)
.without("the system's")
.rare();
/// `nats.tls_cert`
pub const NATS_TLS_CERT: Key = Key::new(
    "nats.tls_cert",
    Kind::Path,
    "PEM file of the client certificate",
)
.rare();
/// `nats.tls_key`
pub const NATS_TLS_KEY: Key =
    Key::new("nats.tls_key", Kind::Path, "PEM file of the client key").rare();
/// `nats.tls_first`
pub const NATS_TLS_FIRST: Key = Key::new(
    "nats.tls_first",
    Kind::Bool,
    "TLS before the server's greeting (`handshake_first` on the server)",
)
.default("false")
.rare();
/// `nats.stream`
pub const NATS_STREAM: Key = Key::new(
    "nats.stream",
    Kind::Stream,
    "stream; `setup` makes it for `outbox.>` when it is missing",
)
.default("OUTBOX");
/// `nats.writers`
pub const NATS_WRITERS: Key = Key::new(
    "nats.writers",
    Kind::Choice(&["exclusive", "shared"]),
    "whether Postrider alone writes the stream",
)
.without("what the stream says; `exclusive` for one that `setup` makes");
/// `nats.max_message_bytes`
pub const NATS_MAX_MESSAGE_BYTES: Key = Key::new(
    "nats.max_message_bytes",
    Kind::Size(MESSAGE_BOUNDS),
    "largest message, where the account's limit is below the server's (a client cannot see it)",
)
.without("the server's limit")
.rare();
/// `nats.replicas`
pub const NATS_REPLICAS: Key = Key::new(
    "nats.replicas",
    Kind::Integer(REPLICA_BOUNDS),
    "replicas of a stream that `setup` makes",
)
.without("3 in a cluster, else 1")
.rare();
/// `delivery.on_poison`
pub const DELIVERY_ON_POISON: Key = Key::new(
    "delivery.on_poison",
    Kind::Choice(&["park", "halt"]),
    "a row that can never be stored: `park` writes it to the dead-letter table and goes on, \
     `halt` stops with exit code 5",
)
.default("park");
/// `delivery.on_unroutable`
pub const DELIVERY_ON_UNROUTABLE: Key = Key::new(
    "delivery.on_unroutable",
    Kind::Choice(&["wait", "park"]),
    "a row whose subject no stream takes, or another stream",
)
.default("wait")
.rare();
/// `delivery.confirm_delay`
pub const DELIVERY_CONFIRM_DELAY: Key = Key::new(
    "delivery.confirm_delay",
    Kind::Duration(CONFIRM_DELAY_BOUNDS),
    "holds the confirmation back, so that a broker that lost acked messages can be refilled",
)
.default("0s")
.rare();
/// `delivery.max_in_flight_bytes`
pub const DELIVERY_MAX_IN_FLIGHT_BYTES: Key = Key::new(
    "delivery.max_in_flight_bytes",
    Kind::Size(IN_FLIGHT_BOUNDS),
    "bound of what is published and not yet acked",
)
.default("16MiB")
.rare();
/// `delivery.transactions`
pub const DELIVERY_TRANSACTIONS: Key = Key::new(
    "delivery.transactions",
    Kind::Choice(&["stream"]),
    "how a transaction is published: `stream`, row by row as it arrives",
)
.default("stream")
.rare();

/// All scalar keys, in the order of the documentation.
pub const KEYS: [&Key; 28] = [
    &POSTGRES_URL,
    &POSTGRES_URL_FILE,
    &POSTGRES_PASSWORD,
    &POSTGRES_PASSWORD_FILE,
    &POSTGRES_SLOT,
    &POSTGRES_PUBLICATION,
    &NATS_URL,
    &NATS_URL_FILE,
    &NATS_USER,
    &NATS_PASSWORD,
    &NATS_PASSWORD_FILE,
    &NATS_TOKEN,
    &NATS_TOKEN_FILE,
    &NATS_CREDENTIALS_FILE,
    &NATS_NKEY_FILE,
    &NATS_TLS_CA,
    &NATS_TLS_CERT,
    &NATS_TLS_KEY,
    &NATS_TLS_FIRST,
    &NATS_STREAM,
    &NATS_WRITERS,
    &NATS_MAX_MESSAGE_BYTES,
    &NATS_REPLICAS,
    &DELIVERY_ON_POISON,
    &DELIVERY_ON_UNROUTABLE,
    &DELIVERY_CONFIRM_DELAY,
    &DELIVERY_MAX_IN_FLIGHT_BYTES,
    &DELIVERY_TRANSACTIONS,
];

/// The scalar keys and those of `[[outbox]]` as a Markdown table, for the README.
pub fn markdown_table() -> String {
    let mut text =
        String::from("| key | flag | environment | default | meaning |\n|---|---|---|---|---|\n");
    for key in KEYS {
        let flag = key.flag().map_or(String::new(), |flag| format!("`{flag}`"));
        let default = key
            .default
            .map_or(key.without.to_owned(), |value| format!("`{value}`"));
        let line = format!(
            "| `{}` | {flag} | `{}` | {default} | {} |\n",
            key.name,
            key.variable(),
            key.help
        );
        text.push_str(&line);
    }
    text.push_str("\n| key of `[[outbox]]` | default | meaning |\n|---|---|---|\n");
    for key in OUTBOX_KEYS {
        text.push_str(&format!(
            "| `{}` | {} | {} |\n",
            key.name, key.without, key.help
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_derived_and_unique() {
        assert_eq!(POSTGRES_SLOT.flag().unwrap(), "--postgres-slot");
        assert_eq!(POSTGRES_SLOT.variable(), "POSTRIDER_POSTGRES_SLOT");
        assert_eq!(NATS_TLS_CA.flag().unwrap(), "--nats-tls-ca");
        let names: BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
        let variables: BTreeSet<_> = KEYS.iter().map(|key| key.variable()).collect();
        assert_eq!((names.len(), variables.len()), (KEYS.len(), KEYS.len()));
    }

    #[test]
    fn secrets_have_no_flag_and_no_default() {
        for key in KEYS.iter().filter(|key| key.kind == Kind::Secret) {
            assert_eq!((key.flag(), key.default), (None, None), "{}", key.name);
        }
    }

    #[test]
    fn the_table_has_every_key_and_no_stray_bar() {
        let table = markdown_table();
        for key in KEYS {
            assert!(
                table.contains(&format!("| `{}` |", key.name)),
                "{}",
                key.name
            );
        }
        for line in table.lines().take(2 + KEYS.len()) {
            assert_eq!(line.matches('|').count(), 6, "{line}");
        }
    }
}
