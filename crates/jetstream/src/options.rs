//! How to reach NATS: servers, credentials, TLS.

use std::fmt;
use std::path::PathBuf;

use crate::secret::Secret;
use crate::url::{Server, UrlAuth, UrlFault, parse_urls};

/// Longest inbox prefix, in bytes. Each row's line in the NATS protocol holds the reply subject
/// made of it beside the row's own subject, which may have 3,800 of the 4,096 bytes that a server
/// reads.
const MAX_INBOX_PREFIX_BYTES: usize = 100;

/// The settings as configuration gives them, not yet checked.
#[derive(Debug, Clone, Default)]
pub struct NatsSettings {
    /// One or more servers, comma-separated; `nats://`, `tls://` or plain `host:port`; may hold
    /// `user:password@` or `token@`, percent-encoded.
    pub url: Secret,
    /// User name; needs `password`.
    pub user: Option<String>,
    /// Password of `user`.
    pub password: Option<Secret>,
    /// Token.
    pub token: Option<Secret>,
    /// File with a JWT and an nkey seed (`.creds`).
    pub credentials_file: Option<PathBuf>,
    /// File with an nkey seed.
    pub nkey_file: Option<PathBuf>,
    /// File with a token.
    pub token_file: Option<PathBuf>,
    /// PEM file of the authorities to trust instead of the system's.
    pub tls_ca: Option<PathBuf>,
    /// PEM file of our certificate; needs `tls_key`.
    pub tls_cert: Option<PathBuf>,
    /// PEM file of the key to `tls_cert`.
    pub tls_key: Option<PathBuf>,
    /// The server wants the TLS handshake before its INFO (`handshake_first: true`).
    pub tls_first: bool,
    /// Instead of `_INBOX`, where the account's permissions ask for it.
    pub inbox_prefix: Option<String>,
    /// Name of the replication slot; connections are called `postrider/SLOT`.
    pub slot: String,
}

/// How we say who we are. Files are read again at every connect, so that a rotated credential
/// works without a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Auth {
    /// Nothing.
    None,
    /// Name and password.
    UserPassword(String, Secret),
    /// A token.
    Token(Secret),
    /// A file with a token.
    TokenFile(PathBuf),
    /// A file with a JWT and a seed.
    CredentialsFile(PathBuf),
    /// A file with a seed.
    NkeyFile(PathBuf),
}

/// One thing that is wrong with the settings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsFault {
    /// A URL that cannot be read.
    #[error("NATS url number {number}")]
    Url {
        /// Counted from 1.
        number: usize,
        /// What is wrong.
        source: UrlFault,
    },
    /// Two URLs with different credentials.
    #[error(
        "the NATS urls hold different credentials; give one set for all servers, in one of the \
         urls or in a file"
    )]
    DifferentCredentials,
    /// More than one way to authenticate.
    #[error("more than one way to authenticate to NATS: {}; keep one", .0.join(", "))]
    SeveralCredentials(Vec<&'static str>),
    /// `user` without `password`, or the other way round.
    #[error("NATS {given} is set, {missing} is not; they go together")]
    Half {
        /// The one that is there.
        given: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// An inbox prefix that is no subject.
    #[error(
        "the NATS inbox prefix is no subject of letters, digits, `-` and `_`, parted by dots, with \
         at most {MAX_INBOX_PREFIX_BYTES} bytes"
    )]
    InboxPrefix,
}

/// All that is wrong with the settings, in one error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct OptionsFaults(pub Vec<OptionsFault>);

impl fmt::Display for OptionsFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            match fault {
                OptionsFault::Url { source, .. } => write!(f, "{separator}{fault}: {source}")?,
                _ => write!(f, "{separator}{fault}")?,
            }
        }
        Ok(())
    }
}

/// Checked settings: where NATS is and how to log in.
#[derive(Debug, Clone)]
pub struct NatsOptions {
    pub(crate) servers: Vec<Server>,
    pub(crate) auth: Auth,
    pub(crate) tls_ca: Option<PathBuf>,
    pub(crate) tls_client: Option<(PathBuf, PathBuf)>,
    pub(crate) tls_first: bool,
    pub(crate) inbox_prefix: Option<String>,
    pub(crate) name: String,
}

impl NatsOptions {
    /// Checks the settings.
    ///
    /// # Errors
    /// Everything that is wrong, at once; no text of it holds a secret.
    pub fn new(settings: NatsSettings) -> Result<Self, OptionsFaults> {
        let mut faults = Vec::new();
        let mut servers = Vec::new();
        let mut url_auth: Option<UrlAuth> = None;
        match parse_urls(settings.url.reveal()) {
            Err(found) => faults.extend(
                found
                    .into_iter()
                    .map(|(number, source)| OptionsFault::Url { number, source }),
            ),
            Ok(found) => {
                for (server, auth) in found {
                    servers.push(server);
                    if auth.is_some() && url_auth.is_some() && auth != url_auth {
                        faults.push(OptionsFault::DifferentCredentials);
                    }
                    url_auth = auth.or(url_auth);
                }
            }
        }
        let auth = choose_auth(&settings, url_auth, &mut faults);
        let pair = |given, missing| OptionsFault::Half { given, missing };
        let tls_client = match (settings.tls_cert, settings.tls_key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(_), None) => {
                faults.push(pair("tls_cert", "tls_key"));
                None
            }
            (None, Some(_)) => {
                faults.push(pair("tls_key", "tls_cert"));
                None
            }
        };
        if settings.inbox_prefix.as_deref().is_some_and(bad_prefix) {
            faults.push(OptionsFault::InboxPrefix);
        }
        if !faults.is_empty() {
            return Err(OptionsFaults(faults));
        }
        Ok(Self {
            servers,
            auth,
            tls_ca: settings.tls_ca,
            tls_client,
            tls_first: settings.tls_first,
            inbox_prefix: settings.inbox_prefix,
            name: format!("postrider/{}", settings.slot),
        })
    }

    /// The servers without credentials, for messages.
    #[must_use]
    pub fn servers(&self) -> String {
        let servers: Vec<String> = self.servers.iter().map(ToString::to_string).collect();
        servers.join(", ")
    }

    /// Whether anything asks for TLS on every connection.
    pub(crate) fn requires_tls(&self) -> bool {
        self.tls_ca.is_some() || self.tls_client.is_some() || self.tls_first
    }
}

fn choose_auth(
    settings: &NatsSettings,
    url_auth: Option<UrlAuth>,
    faults: &mut Vec<OptionsFault>,
) -> Auth {
    let mut found: Vec<(&'static str, Auth)> = Vec::new();
    match url_auth {
        None => {}
        Some(UrlAuth::UserPassword(user, password)) => {
            found.push(("credentials in the url", Auth::UserPassword(user, password)));
        }
        Some(UrlAuth::Token(token)) => found.push(("token in the url", Auth::Token(token))),
    }
    let half = |given, missing| OptionsFault::Half { given, missing };
    match (&settings.user, &settings.password) {
        (Some(user), Some(password)) => found.push((
            "user and password",
            Auth::UserPassword(user.clone(), password.clone()),
        )),
        (Some(_), None) => faults.push(half("user", "password")),
        (None, Some(_)) => faults.push(half("password", "user")),
        (None, None) => {}
    }
    if let Some(token) = &settings.token {
        found.push(("token", Auth::Token(token.clone())));
    }
    if let Some(path) = &settings.token_file {
        found.push(("token_file", Auth::TokenFile(path.clone())));
    }
    if let Some(path) = &settings.credentials_file {
        found.push(("credentials_file", Auth::CredentialsFile(path.clone())));
    }
    if let Some(path) = &settings.nkey_file {
        found.push(("nkey_file", Auth::NkeyFile(path.clone())));
    }
    if found.len() > 1 {
        let names = found.iter().map(|(name, _)| *name).collect();
        faults.push(OptionsFault::SeveralCredentials(names));
    }
    found.pop().map_or(Auth::None, |(_, auth)| auth)
}

fn bad_prefix(prefix: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    prefix.len() > MAX_INBOX_PREFIX_BYTES
        || prefix
            .split('.')
            .any(|token| token.is_empty() || !token.bytes().all(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(url: &str) -> NatsSettings {
        NatsSettings {
            url: Secret::new(url),
            slot: "s".into(),
            ..NatsSettings::default()
        }
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let faults = NatsOptions::new(NatsSettings {
            user: Some("u".into()),
            token: Some(Secret::new("S3CR3T")),
            token_file: Some("t".into()),
            tls_key: Some("k".into()),
            inbox_prefix: Some("a..b".into()),
            ..settings("ftp://x,nats://h:S3CR3T")
        })
        .unwrap_err();
        assert_eq!(faults.0.len(), 6, "{faults}");
        let shown = format!("{faults} {faults:?}");
        assert!(!shown.contains("S3CR3T"), "{shown}");
        for word in ["number 1", "number 2", "password", "token_file", "tls_cert"] {
            assert!(shown.contains(word), "{word} in {shown}");
        }
    }

    #[test]
    fn an_inbox_prefix_leaves_room_for_the_subject_in_a_line() {
        let with = |prefix: String| {
            NatsOptions::new(NatsSettings {
                inbox_prefix: Some(prefix),
                ..settings("h")
            })
        };
        assert!(with("x".repeat(MAX_INBOX_PREFIX_BYTES)).is_ok());
        let faults = with("x".repeat(MAX_INBOX_PREFIX_BYTES + 1)).unwrap_err();
        assert!(faults.to_string().contains("100 bytes"), "{faults}");
    }

    #[test]
    fn credentials_of_the_url_hold_for_all_servers() {
        let options = NatsOptions::new(settings("nats://u:S3CR3T@a,b")).unwrap();
        assert_eq!(
            options.auth,
            Auth::UserPassword("u".into(), Secret::new("S3CR3T"))
        );
        assert_eq!(options.servers(), "nats://a:4222, nats://b:4222");
        assert!(!format!("{options:?}").contains("S3CR3T"));
        assert!(NatsOptions::new(settings("nats://u:p@a,nats://u:p@b")).is_ok());
        let faults = NatsOptions::new(settings("nats://u:p@a,nats://u:q@b")).unwrap_err();
        assert_eq!(faults.0, [OptionsFault::DifferentCredentials]);
    }

    #[test]
    fn tls_files_ask_for_tls() {
        assert!(!NatsOptions::new(settings("h")).unwrap().requires_tls());
        let options = NatsOptions::new(NatsSettings {
            tls_ca: Some("ca.pem".into()),
            ..settings("h")
        });
        assert!(options.unwrap().requires_tls());
    }
}
