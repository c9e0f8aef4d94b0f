//! The one connector of both sessions: hosts in order, socket, TLS.

mod certificate;
mod dial;
mod tls;
mod verifier;

use std::future::Future;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::error::{Fault, PgError};
use crate::url::{ConnectConfig, Host, SessionTarget, TlsMode};

pub use tls::TlsError;

/// A connection to a server, encrypted or not, over TCP or a Unix socket.
pub trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// The one stream type that both sessions run on.
pub type PgStream = Box<dyn Transport>;

/// Settings that both sessions pin, whatever the database or role says: with these, text values
/// have one form, and no timeout meant for applications ends a streamer.
const PINNED: &str = "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 \
    -c bytea_output=hex -c extra_float_digits=3 -c idle_in_transaction_session_timeout=0 \
    -c idle_session_timeout=0 -c statement_timeout=0 -c lock_timeout=0";

/// The `options` startup parameter: the URL's own first, so that ours have the last word.
pub(crate) fn pinned_options(config: &ConnectConfig, more: &str) -> String {
    let mut options = String::new();
    for part in [config.options.as_deref().unwrap_or(""), PINNED, more] {
        if !part.is_empty() {
            options.push_str(if options.is_empty() { "" } else { " " });
            options.push_str(part);
        }
    }
    options
}

/// Tries the hosts in their order until `start` makes a session on one of them. A host that does
/// not answer, is starting up or full, or is not writable, gives way to the next; an answer such
/// as a wrong password ends the search, as in libpq.
pub(crate) async fn first_host<T, F, Fut>(
    config: &ConnectConfig,
    mut start: F,
) -> Result<T, PgError>
where
    F: FnMut(PgStream, Host) -> Fut,
    Fut: Future<Output = Result<T, PgError>>,
{
    let mut last = None;
    for host in &config.hosts {
        match one_host(config, host, &mut start).await {
            Ok(session) => return Ok(session),
            Err(error) if may_try_next(&error) => last = Some((host.to_string(), error)),
            Err(error) => return Err(error),
        }
    }
    match (config.hosts.len(), last) {
        (_, None) => Err(PgError::Refused {
            what: "the URL names no host".to_owned(),
        }),
        (1, Some((_, error))) => Err(error),
        (count, Some((host, source))) => Err(PgError::NoHost {
            count,
            host,
            source: Box::new(source),
        }),
    }
}

/// Tries every address of one host; each attempt has the whole connect timeout, as in libpq.
async fn one_host<T, F, Fut>(
    config: &ConnectConfig,
    host: &Host,
    start: &mut F,
) -> Result<T, PgError>
where
    F: FnMut(PgStream, Host) -> Fut,
    Fut: Future<Output = Result<T, PgError>>,
{
    let addresses = timeout(config.connect_timeout, dial::addresses(host))
        .await
        .map_err(|_| timed_out(config, host))??;
    let mut last = None;
    for address in addresses {
        match one_address(config, host, &address, start).await {
            Ok(session) => return Ok(session),
            Err(error) if may_try_next(&error) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| timed_out(config, host)))
}

fn timed_out(config: &ConnectConfig, host: &Host) -> PgError {
    PgError::Timeout {
        what: format!("connecting to {host}"),
        limit: config.connect_timeout,
    }
}

/// Tries one address, under `prefer` a second time without TLS where libpq does so too.
async fn one_address<T, F, Fut>(
    config: &ConnectConfig,
    host: &Host,
    address: &dial::Address,
    start: &mut F,
) -> Result<T, PgError>
where
    F: FnMut(PgStream, Host) -> Fut,
    Fut: Future<Output = Result<T, PgError>>,
{
    let mode = config.tls.mode;
    let (encrypted, error) = match attempt(config, host, address, mode, start).await {
        Ok(session) => return Ok(session),
        Err(failure) => failure,
    };
    if mode != TlsMode::Prefer || !is_refusal_of_tls(encrypted, &error) {
        return Err(error);
    }
    tracing::debug!(
        error = error.one_line(),
        "sslmode=prefer: going on without TLS"
    );
    match attempt(config, host, address, TlsMode::Disable, start).await {
        Ok(session) => Ok(session),
        // Not that way either: then the first reason is the one to cure.
        Err((_, later)) if is_refused_by_hba(&later) => Err(error),
        Err((_, later)) => Err(later),
    }
}

/// One attempt, within its time. A failure comes with whether the connection was encrypted.
async fn attempt<T, F, Fut>(
    config: &ConnectConfig,
    host: &Host,
    address: &dial::Address,
    mode: TlsMode,
    start: &mut F,
) -> Result<T, (bool, PgError)>
where
    F: FnMut(PgStream, Host) -> Fut,
    Fut: Future<Output = Result<T, PgError>>,
{
    let mut encrypted = false;
    let attempt = async {
        let dialled = dial::connect(config, host, address, mode).await?;
        encrypted = dialled.encrypted;
        start(dialled.stream, host.clone()).await
    };
    let result = timeout(config.connect_timeout, attempt).await;
    let result = result.unwrap_or_else(|_| Err(timed_out(config, host)));
    result.map_err(|error| (encrypted, error))
}

fn is_refusal_of_tls(encrypted: bool, error: &PgError) -> bool {
    match error {
        PgError::Tls { source, .. } => source.is_handshake(),
        error => encrypted && is_refused_by_hba(error),
    }
}

/// `invalid_authorization_specification`: no line of pg_hba.conf, or one that says reject. A wrong
/// password has a code of its own.
fn is_refused_by_hba(error: &PgError) -> bool {
    error
        .server()
        .is_some_and(|server| server.code.as_str() == "28000")
}

fn may_try_next(error: &PgError) -> bool {
    matches!(
        error.fault(),
        Fault::Unreachable
            | Fault::ServerStarting
            | Fault::ServerShuttingDown
            | Fault::TooManyConnections
            | Fault::NotWritable
    )
}

/// Compares what the server reports of itself at the start (14 and newer report both parameters)
/// with what the URL wants.
pub(crate) fn check_target(
    config: &ConnectConfig,
    host: &Host,
    in_hot_standby: Option<&str>,
    read_only: Option<&str>,
) -> Result<(), PgError> {
    let standby = in_hot_standby == Some("on");
    let fits = match config.target {
        SessionTarget::Any => true,
        SessionTarget::Primary => !standby,
        SessionTarget::ReadWrite => !standby && read_only != Some("on"),
    };
    if fits {
        Ok(())
    } else {
        Err(PgError::NotWritable {
            host: host.to_string(),
        })
    }
}
