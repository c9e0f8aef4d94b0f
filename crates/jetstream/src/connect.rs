//! One connection: made with the checked options, watched for what the server says about it.
//!
//! A connection that publishes must never reconnect by itself: async-nats would send what was
//! queued behind the rows that the broken connection lost, and the stream would have a hole. The
//! crate has no switch for it, but it asks our authentication callback at every attempt, so the
//! callback refuses from the second round of attempts on; with `max_reconnects` the client then
//! ends itself and drops its queue.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_nats::{
    AuthError, Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr,
    ServerError,
};
use outbox::{BrokerFault, BrokerFaultKind, EpochEnd};
use tokio::sync::watch;

use crate::identity;
use crate::options::NatsOptions;

/// For TCP, TLS and login together, per address. A server that needs longer is as good as gone.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A silent peer is noticed after two missed pings and the next tick: 10 to 15 s.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How many words of a server's message are kept.
const MAX_DETAIL_CHARS: usize = 512;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Carries rows: ends with the first disconnect. Holds so many commands and messages.
    Epoch { commands: usize, messages: usize },
    /// Questions and reading: may reconnect.
    Tool,
}

/// A connection and what went wrong with it.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) client: Client,
    purpose: Purpose,
    trouble: watch::Receiver<Option<EpochEnd>>,
}

impl Link {
    /// Begins to look out for trouble.
    pub(crate) fn watch(&self) -> TroubleWatch {
        let mut receiver = self.trouble.clone();
        // A tool's connection lives on after trouble; only what comes from now on counts.
        if self.purpose == Purpose::Tool {
            receiver.mark_unchanged();
        }
        TroubleWatch {
            purpose: self.purpose,
            receiver,
        }
    }
}

/// Waits for trouble on a connection.
#[derive(Debug)]
pub(crate) struct TroubleWatch {
    purpose: Purpose,
    receiver: watch::Receiver<Option<EpochEnd>>,
}

impl TroubleWatch {
    /// The trouble: on an epoch's connection the first that there ever was, on a tool's the next.
    /// Pending while there is none; may be dropped and called again.
    pub(crate) async fn next(&mut self) -> EpochEnd {
        let found = match self.purpose {
            Purpose::Epoch { .. } => match self.receiver.wait_for(Option::is_some).await {
                Ok(end) => end.clone(),
                Err(_) => None,
            },
            Purpose::Tool => match self.receiver.changed().await {
                Ok(()) => self.receiver.borrow_and_update().clone(),
                Err(_) => None,
            },
        };
        // Without a sender the client's event task is gone, and with it the client.
        found.unwrap_or_else(|| EpochEnd::Disconnected {
            detail: "the connection to NATS was closed".to_owned(),
        })
    }

    /// The trouble that is known by now.
    pub(crate) fn known(&self) -> Option<EpochEnd> {
        self.receiver.borrow().clone()
    }
}

/// Makes ring the process's TLS provider, unless one was made before; may be called any number of
/// times. async-nats builds its TLS configuration from the process's provider.
pub fn install_crypto_provider() {
    // An error says that a provider stands already: the program's own choice, made in `main`.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// Connects to the first server that lets us in.
pub(crate) async fn connect(options: &NatsOptions, purpose: Purpose) -> Result<Link, BrokerFault> {
    install_crypto_provider();
    check_tls_files(options)?;
    let mut servers = Vec::with_capacity(options.servers.len());
    for server in &options.servers {
        let address = server.to_string().parse::<ServerAddr>();
        servers.push(
            address.map_err(|error| {
                fault(BrokerFaultKind::Unreachable, format!("{server}: {error}"))
            })?,
        );
    }
    let (sender, trouble) = watch::channel(None);
    let client = client_options(options, purpose, sender)
        .connect(servers)
        .await
        .map_err(|error| connect_fault(options, &error))?;
    Ok(Link {
        client,
        purpose,
        trouble,
    })
}

fn client_options(
    options: &NatsOptions,
    purpose: Purpose,
    trouble: watch::Sender<Option<EpochEnd>>,
) -> ConnectOptions {
    let rounds = Arc::new(AtomicU32::new(0));
    let auth = options.auth.clone();
    let once = purpose != Purpose::Tool;
    let seen = Arc::clone(&rounds);
    let mut client = ConnectOptions::with_auth_callback(move |nonce| {
        let answer = if once && seen.load(Ordering::Acquire) > 1 {
            Err(AuthError::new("this connection must not come back"))
        } else {
            identity::answer(&auth, &nonce).map_err(AuthError::new)
        };
        std::future::ready(answer)
    })
    // Asked before every round of attempts, the first one included; it leaves the choice alone.
    .reconnect_to_server_callback(move |_, _| {
        rounds.fetch_add(1, Ordering::AcqRel);
        std::future::ready(None)
    })
    .event_callback(move |event| {
        if let Some(end) = trouble_of(event) {
            trouble.send_if_modified(|first| {
                let new = first.is_none() || !once;
                if new {
                    *first = Some(end);
                }
                new
            });
        }
        std::future::ready(())
    })
    .name(&options.name)
    .connection_timeout(CONNECT_TIMEOUT)
    .ping_interval(PING_INTERVAL)
    .require_tls(options.requires_tls());
    if let Purpose::Epoch { commands, messages } = purpose {
        client = client
            .client_capacity(commands)
            .subscription_capacity(messages)
            .max_reconnects(options.servers.len())
            .reconnect_delay_callback(|_| Duration::ZERO);
    }
    if options.tls_first {
        client = client.tls_first();
    }
    if let Some(path) = &options.tls_ca {
        client = client.add_root_certificates(path.clone());
    }
    if let Some((cert, key)) = &options.tls_client {
        client = client.add_client_certificate(cert.clone(), key.clone());
    }
    if let Some(prefix) = &options.inbox_prefix {
        client = client.custom_inbox_prefix(prefix);
    }
    client
}

/// What an event means for an epoch; `None` where it goes on.
fn trouble_of(event: Event) -> Option<EpochEnd> {
    let disconnected = |detail: &str| EpochEnd::Disconnected {
        detail: detail.to_owned(),
    };
    match event {
        Event::Disconnected => Some(disconnected("the connection to NATS broke")),
        Event::Closed => Some(disconnected("the connection to NATS was closed")),
        // The server closes its clients one by one from here; another server takes us at once.
        Event::LameDuckMode => Some(disconnected("the NATS server is shutting down (lame duck)")),
        Event::SlowConsumer(_) => Some(EpochEnd::Server {
            detail: "acks came faster than they were read, some were dropped".to_owned(),
        }),
        Event::ServerError(error) => Some(server_trouble(&error)),
        Event::Connected | Event::Draining | Event::ClientError(_) => None,
    }
}

fn server_trouble(error: &ServerError) -> EpochEnd {
    let words = match error {
        ServerError::Other(words) => words.clone(),
        other => other.to_string(),
    };
    let lower = words.to_ascii_lowercase();
    let detail = shortened(&words);
    if lower.starts_with("permissions violation") {
        EpochEnd::PermissionDenied { detail }
    } else if lower.starts_with("maximum payload") {
        EpochEnd::MaxPayloadViolation
    } else {
        EpochEnd::Server { detail }
    }
}

/// The server's words, cut to a length that fits a log line.
pub(crate) fn shortened(words: &str) -> String {
    words.chars().take(MAX_DETAIL_CHARS).collect()
}

/// A fault of the given kind.
pub(crate) fn fault(kind: BrokerFaultKind, detail: impl Into<String>) -> BrokerFault {
    BrokerFault {
        kind,
        detail: detail.into(),
    }
}

/// The crate names no file in its errors, so missing and empty ones are told here.
fn check_tls_files(options: &NatsOptions) -> Result<(), BrokerFault> {
    let (cert, key) = match &options.tls_client {
        Some((cert, key)) => (Some(cert.as_path()), Some(key.as_path())),
        None => (None, None),
    };
    let checks = [
        ("tls_ca", options.tls_ca.as_deref(), "CERTIFICATE-----"),
        ("tls_cert", cert, "CERTIFICATE-----"),
        ("tls_key", key, "PRIVATE KEY-----"),
    ];
    for (setting, path, mark) in checks {
        let Some(path) = path else { continue };
        let bad = |what: String| {
            let path: &Path = path;
            fault(
                BrokerFaultKind::Tls,
                format!("{setting} = {}: {what}", path.display()),
            )
        };
        let content = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
        if !content
            .windows(mark.len())
            .any(|part| part == mark.as_bytes())
        {
            return Err(bad("no PEM block of that sort in it".to_owned()));
        }
    }
    Ok(())
}

/// Tells apart why no connection came about.
fn connect_fault(options: &NatsOptions, error: &ConnectError) -> BrokerFault {
    let servers = options.servers();
    let words = shortened(&deepest(error));
    let lower = words.to_ascii_lowercase();
    let named = |name: &str| lower.contains(name);
    match error.kind() {
        ConnectErrorKind::Authentication => fault(
            BrokerFaultKind::Authentication,
            format!("{servers}: {words}; check the credentials and their files"),
        ),
        ConnectErrorKind::AuthorizationViolation => fault(
            BrokerFaultKind::Authentication,
            format!(
                "{servers}: {words}; check user, password, token or credentials file against the \
                 server's accounts"
            ),
        ),
        _ if named("authentication") || named("authorization") => fault(
            BrokerFaultKind::Authentication,
            format!("{servers}: {words}; renew the credentials"),
        ),
        // A proxy before a server that is just being restarted does the same, so this passes.
        _ if named("expected info, got nothing") && !options.tls_first => fault(
            BrokerFaultKind::Unreachable,
            format!(
                "{servers}: the server closed the connection without a word; if its configuration \
                 says handshake_first, set nats.tls_first = true"
            ),
        ),
        _ if options.tls_first && named("invalidcontenttype") => fault(
            BrokerFaultKind::Tls,
            format!(
                "{servers}: the server speaks before TLS; remove nats.tls_first, or set \
                 handshake_first in the server's tls block"
            ),
        ),
        ConnectErrorKind::Tls => fault(BrokerFaultKind::Tls, format!("{servers}: {words}")),
        _ if is_tls(error) => fault(
            BrokerFaultKind::Tls,
            format!(
                "{servers}: {words}; check nats.tls_ca (the authority that signed the server's \
                 certificate), the host name in the url, and nats.tls_cert if the server asks \
                 for a client certificate"
            ),
        ),
        ConnectErrorKind::TimedOut => fault(
            BrokerFaultKind::Unreachable,
            format!(
                "{servers}: no answer within {} s",
                CONNECT_TIMEOUT.as_secs()
            ),
        ),
        ConnectErrorKind::Dns => fault(
            BrokerFaultKind::Unreachable,
            format!("{servers}: host name not found: {words}"),
        ),
        _ => fault(BrokerFaultKind::Unreachable, format!("{servers}: {words}")),
    }
}

/// The text of the innermost cause, which says most.
fn deepest(error: &ConnectError) -> String {
    let mut cause: &dyn Error = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string()
}

/// Whether rustls stands behind an IO error.
fn is_tls(error: &ConnectError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<rustls::Error>() {
            return true;
        }
        let inner = error.downcast_ref().and_then(std::io::Error::get_ref);
        if inner.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_errors_are_told_apart() {
        let other = |words: &str| server_trouble(&ServerError::Other(words.to_owned()));
        let denied = other("Permissions Violation for Publish to \"a.b\"");
        assert!(matches!(denied, EpochEnd::PermissionDenied { detail } if detail.contains("a.b")));
        assert_eq!(
            other("Maximum Payload Violation"),
            EpochEnd::MaxPayloadViolation
        );
        assert!(matches!(other("Stale Connection"), EpochEnd::Server { .. }));
        assert!(trouble_of(Event::Connected).is_none());
    }
}
