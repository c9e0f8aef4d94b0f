//! From a fresh stream to a session that takes commands: startup packet, authentication, the
//! parameters that the server reports.

use std::collections::HashMap;

use pgwire_replication::protocol::framing::{write_password_message, write_startup_message};
use pgwire_replication::protocol::messages::{auth, parse_auth_request};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};

use super::wire::{MAX_COMMAND_MESSAGE_BYTES, Wire};
use crate::connect::{PgStream, check_target, pinned_options};
use crate::error::{PgError, ServerError};
use crate::url::{ConnectConfig, Host, Password};
use crate::version::ServerVersion;

/// Protocol 3.0.
const PROTOCOL_VERSION: i32 = 3 << 16;

/// Settings of the replication session alone. The server asks for a sign of life after half of this
/// and ends the session after the whole, whatever its own setting (also 0). Our side, which hears
/// nothing from a dead server, waits half as long again.
const REPLICATION_OPTIONS: &str = "-c wal_sender_timeout=30s";

/// A server sends about 20 messages before it is ready; more than this is no PostgreSQL.
const MAX_STARTUP_MESSAGES: usize = 10_000;

/// A session as it stands when the server takes commands.
pub(super) struct Started {
    pub(super) wire: Wire,
    pub(super) version: ServerVersion,
    pub(super) backend_pid: i32,
    /// The database's text is in no known encoding (`server_encoding` SQL_ASCII).
    pub(super) is_sql_ascii: bool,
}

/// Starts a logical replication session on `stream`.
pub(super) async fn start(
    config: &ConnectConfig,
    stream: PgStream,
    host: Host,
) -> Result<Started, PgError> {
    let mut wire = Wire::new(stream);
    wire.queue(&startup_packet(config).await?);

    let mut login = Login {
        config,
        host: &host,
        scram: Scram::NotBegun,
    };
    let mut reported: HashMap<String, String> = HashMap::new();
    let mut backend_pid = 0;
    for _ in 0..MAX_STARTUP_MESSAGES {
        let message = wire.next_message(MAX_COMMAND_MESSAGE_BYTES).await?;
        match message.tag {
            b'R' => login.answer(&message.body, &mut wire).await?,
            b'S' => reported.extend(parameter_status(&message.body)),
            b'K' => {
                backend_pid = message
                    .body
                    .first_chunk::<4>()
                    .map_or(0, |pid| i32::from_be_bytes(*pid));
            }
            b'E' => return Err(refused(ServerError::parse(&message.body))),
            b'N' | b'v' => {}
            b'Z' => {
                let report = |name: &str| reported.get(name).map(String::as_str);
                let version = ServerVersion::parse(report("server_version").unwrap_or("unknown"))?;
                check_target(
                    config,
                    &host,
                    report("in_hot_standby"),
                    report("default_transaction_read_only"),
                )?;
                return Ok(Started {
                    wire,
                    version,
                    backend_pid,
                    is_sql_ascii: report("server_encoding") == Some("SQL_ASCII"),
                });
            }
            tag => return Err(super::unexpected(tag, "starting the session")),
        }
    }
    Err(PgError::protocol(
        "the server does not get to the end of its startup messages",
    ))
}

/// Reads a `ParameterStatus`: name and value, each ended by a zero byte.
fn parameter_status(body: &[u8]) -> Option<(String, String)> {
    let mut parts = body.split(|byte| *byte == 0);
    let mut text = || {
        parts
            .next()
            .map(|part| String::from_utf8_lossy(part).into_owned())
    };
    Some((text()?, text()?))
}

async fn startup_packet(config: &ConnectConfig) -> Result<Vec<u8>, PgError> {
    let options = pinned_options(config, REPLICATION_OPTIONS);
    let parameters = [
        ("user", config.user.as_str()),
        ("database", config.database.as_str()),
        ("replication", "database"),
        ("application_name", config.application_name()),
        ("client_encoding", "UTF8"),
        ("options", options.as_str()),
    ];
    let mut packet = Vec::new();
    write_startup_message(&mut packet, PROTOCOL_VERSION, &parameters)
        .await
        .map_err(|error| PgError::protocol(error.to_string()))?;
    Ok(packet)
}

/// Version 13 does not get as far as naming its version: it stumbles over a setting of 14.
fn refused(error: ServerError) -> PgError {
    if error.code.as_str() == "42704" && error.message.contains("idle_session_timeout") {
        return PgError::ServerVersion {
            found: "13 or older".to_owned(),
        };
    }
    error.into()
}

enum Scram {
    NotBegun,
    Running(Box<ScramSha256>),
    Finished,
}

/// The authentication exchange.
struct Login<'a> {
    config: &'a ConnectConfig,
    host: &'a Host,
    scram: Scram,
}

impl Login<'_> {
    async fn answer(&mut self, body: &[u8], wire: &mut Wire) -> Result<(), PgError> {
        let (method, data) =
            parse_auth_request(body).map_err(|error| PgError::protocol(error.to_string()))?;
        let reply = match (method, &mut self.scram) {
            // A server that began SCRAM must prove that it knows the password, too.
            (auth::OK, Scram::NotBegun | Scram::Finished) => return Ok(()),
            (auth::CLEARTEXT_PASSWORD, Scram::NotBegun) => zero_ended(self.password()?.expose()),
            (auth::MD5_PASSWORD, Scram::NotBegun) => {
                let salt = data.first_chunk::<4>().ok_or_else(|| incomplete("md5"))?;
                let password = self.password()?;
                let user = self.config.user.as_bytes();
                zero_ended(&md5_hash(user, password.expose().as_bytes(), *salt))
            }
            (auth::SASL, Scram::NotBegun) => {
                let offered = data.split(|byte| *byte == 0);
                if !offered
                    .into_iter()
                    .any(|name| name == SCRAM_SHA_256.as_bytes())
                {
                    return Err(PgError::Auth {
                        reason: "the server offers no method that is supported here \
                                 (SCRAM-SHA-256, md5, password, certificate)"
                            .to_owned(),
                    });
                }
                let password = self.password()?;
                // "Unsupported", not "unrequested": the second would claim that the server had not
                // offered channel binding, and a server that had would refuse it as tampered with.
                let scram =
                    ScramSha256::new(password.expose().as_bytes(), ChannelBinding::unsupported());
                let reply = initial_response(scram.message())?;
                self.scram = Scram::Running(Box::new(scram));
                reply
            }
            (auth::SASL_CONTINUE, Scram::Running(scram)) => {
                // Bounds the iteration count: 100,000 at most.
                scram.update(data).map_err(|error| scram_failed(&error))?;
                scram.message().to_vec()
            }
            (auth::SASL_FINAL, Scram::Running(scram)) => {
                scram.finish(data).map_err(|error| scram_failed(&error))?;
                self.scram = Scram::Finished;
                return Ok(());
            }
            (7..=9, _) => {
                return Err(PgError::Auth {
                    reason: "the server asks for GSSAPI, SSPI or Kerberos, which is not \
                             supported; use scram-sha-256 or cert for this user in pg_hba.conf"
                        .to_owned(),
                });
            }
            (other, _) => {
                return Err(PgError::protocol(format!(
                    "authentication message {other} is unknown or out of order"
                )));
            }
        };
        let mut packet = Vec::new();
        write_password_message(&mut packet, &reply)
            .await
            .map_err(|error| PgError::protocol(error.to_string()))?;
        wire.queue(&packet);
        Ok(())
    }

    fn password(&self) -> Result<Password, PgError> {
        self.config
            .password_for(self.host)
            .ok_or_else(|| PgError::no_password(&self.config.user))
    }
}

fn scram_failed(error: &std::io::Error) -> PgError {
    PgError::Auth {
        reason: format!("SCRAM-SHA-256 failed: {error}"),
    }
}

fn incomplete(what: &str) -> PgError {
    PgError::protocol(format!("the {what} authentication message is incomplete"))
}

fn zero_ended(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// `SASLInitialResponse`: mechanism, length, first message.
fn initial_response(first: &[u8]) -> Result<Vec<u8>, PgError> {
    let length = i32::try_from(first.len()).map_err(|_| incomplete("SASL"))?;
    let mut body = zero_ended(SCRAM_SHA_256);
    body.extend_from_slice(&length.to_be_bytes());
    body.extend_from_slice(first);
    Ok(body)
}
