//! The replication session: commands first, then one endless stream of WAL.
//!
//! Built on the protocol parts of pgwire-replication (message encodings) and postgres-protocol
//! (SCRAM), over the connector that the control connection uses as well.

mod history;
mod startup;
mod stream;
mod wire;

use std::time::Duration;

use bytes::{Buf, Bytes};
use pgoutput::Lsn;
use pgwire_replication::protocol::framing::write_query;
use tokio::time::timeout;

use crate::connect::first_host;
use crate::error::{PgError, ServerError};
use crate::quote::{publication_names, quote_identifier};
use crate::url::ConnectConfig;
use crate::version::ServerVersion;
use wire::{MAX_COMMAND_MESSAGE_BYTES, Wire};

pub use history::TimelineFork;
pub use stream::{Ending, WalStream};

/// How long a command may take that the server answers from memory.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a session that is no longer wanted may take to say farewell.
const FAREWELL: Duration = Duration::from_secs(1);

/// Most rows kept of one answer; the commands used here give one.
const MAX_ANSWER_ROWS: usize = 10_000;

/// A row of an answer in text format; `None` is NULL.
pub type TextRow = Vec<Option<Bytes>>;

/// Who the server is and where its log stands (`IDENTIFY_SYSTEM`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The number that initdb gave the cluster; standbys and restored backups share it.
    pub system_identifier: u64,
    /// The current timeline.
    pub timeline: u32,
    /// The current flush position.
    pub wal_position: Lsn,
    /// The database of this session.
    pub database: Option<String>,
}

/// A slot made by [`ReplicationSession::create_slot`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreatedSlot {
    /// The position from which the slot streams.
    pub consistent_point: Lsn,
    /// For `SET TRANSACTION SNAPSHOT`; valid until the next command on this session.
    pub snapshot_name: Option<String>,
}

/// A walsender session that takes commands. [`start`](Self::start) turns it into a stream.
pub struct ReplicationSession {
    wire: Wire,
    version: ServerVersion,
    backend_pid: i32,
}

impl std::fmt::Debug for ReplicationSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReplicationSession")
            .field("version", &self.version)
            .field("backend_pid", &self.backend_pid)
            .finish_non_exhaustive()
    }
}

impl ReplicationSession {
    /// Opens a session on the first fitting host of `config`.
    ///
    /// # Errors
    /// What kept the last host tried from serving; see [`PgError::fault`].
    pub async fn connect(config: &ConnectConfig) -> Result<Self, PgError> {
        let session =
            first_host(config, |stream, host| startup::start(config, stream, host)).await?;
        let startup::Started {
            wire,
            version,
            backend_pid,
            is_sql_ascii,
        } = session;
        let mut session = Self {
            wire,
            version,
            backend_pid,
        };
        if is_sql_ascii {
            // Asked for UTF-8, the server would end the stream at the first other byte.
            session.quick("SET client_encoding = 'SQL_ASCII'").await?;
        }
        Ok(session)
    }

    /// The server's version.
    #[must_use]
    pub fn server_version(&self) -> &ServerVersion {
        &self.version
    }

    /// Process id of our walsender, `active_pid` of the slot once streaming.
    #[must_use]
    pub fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    /// `IDENTIFY_SYSTEM`.
    ///
    /// # Errors
    /// A broken connection or an answer of another form.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, PgError> {
        let rows = self.quick("IDENTIFY_SYSTEM").await?;
        let row = rows.first().map_or(&[] as &[_], Vec::as_slice);
        let field = |index: usize| row.get(index).and_then(|value| text(value.as_deref()?));
        let identity = || {
            Some(SystemIdentity {
                system_identifier: field(0)?.parse().ok()?,
                timeline: field(1)?.parse().ok()?,
                wal_position: field(2)?.parse().ok()?,
                database: field(3).map(str::to_owned),
            })
        };
        identity().ok_or_else(|| PgError::protocol("IDENTIFY_SYSTEM has an unknown answer"))
    }

    /// `TIMELINE_HISTORY`: where each earlier timeline ended, oldest first. Empty for timeline 1,
    /// which has no history.
    ///
    /// # Errors
    /// A broken connection, a missing or unreadable history file.
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<Vec<TimelineFork>, PgError> {
        if timeline <= 1 {
            return Ok(Vec::new());
        }
        let rows = self.quick(&format!("TIMELINE_HISTORY {timeline}")).await?;
        let content = rows
            .first()
            .and_then(|row| row.get(1))
            .and_then(Option::as_deref);
        history::parse(content.unwrap_or_default())
    }

    /// Runs any command or SQL statement by the simple protocol and returns its rows as text.
    /// Waits as long as the server does; dropped before its end, the session is of no more use.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<TextRow>, PgError> {
        if sql.contains('\0') {
            return Err(PgError::protocol("a command cannot contain a NUL byte"));
        }
        self.send_command(sql).await?;
        let mut rows = Vec::new();
        let mut failure = None;
        loop {
            let message = self.wire.next_message(MAX_COMMAND_MESSAGE_BYTES).await?;
            match message.tag {
                b'D' if rows.len() < MAX_ANSWER_ROWS => rows.push(data_row(message.body)?),
                b'D' => return Err(PgError::protocol("an answer has too many rows")),
                b'E' => {
                    let error = ServerError::parse(&message.body);
                    // After a fatal error there is no ReadyForQuery, only the end of the stream.
                    if matches!(error.severity.as_str(), "FATAL" | "PANIC") {
                        return Err(error.into());
                    }
                    failure = failure.or(Some(error));
                }
                b'Z' => return failure.map_or(Ok(rows), |error| Err(error.into())),
                b'T' | b'C' | b'I' | b'N' | b'S' | b'A' => {}
                tag => return Err(unexpected(tag, "waiting for an answer")),
            }
        }
    }

    /// Makes a logical slot together with a snapshot that shows exactly the rows which the slot
    /// will not stream. Waits for every transaction that is open in the cluster; to give up, end
    /// this session's backend from another connection.
    ///
    /// # Errors
    /// A broken connection, or the server's error.
    pub async fn create_slot(
        &mut self,
        slot: &str,
        failover: bool,
    ) -> Result<CreatedSlot, PgError> {
        let name = quote_identifier(slot);
        let options = match (self.version.major(), failover) {
            (17.., true) => "(SNAPSHOT 'export', FAILOVER true)",
            (15.., _) => "(SNAPSHOT 'export')",
            _ => "EXPORT_SNAPSHOT",
        };
        let command = format!("CREATE_REPLICATION_SLOT {name} LOGICAL pgoutput {options}");
        let rows = self.simple_query(&command).await?;
        let row = rows.first().map_or(&[] as &[_], Vec::as_slice);
        let field = |index: usize| row.get(index).and_then(|value| text(value.as_deref()?));
        let consistent_point = field(1)
            .and_then(|lsn| lsn.parse().ok())
            .ok_or_else(|| PgError::protocol("CREATE_REPLICATION_SLOT has an unknown answer"))?;
        Ok(CreatedSlot {
            consistent_point,
            snapshot_name: field(2).map(str::to_owned),
        })
    }

    /// Starts streaming `publications` from where the slot stands. The position is never given: the
    /// slot alone knows what was confirmed, also after a failover.
    ///
    /// # Errors
    /// The slot is held by another session, missing, lost, or of another plugin: see
    /// [`PgError::fault`]. A missing publication shows only at the first change.
    pub async fn start(
        mut self,
        slot: &str,
        publications: &[String],
    ) -> Result<WalStream, PgError> {
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names {}, \
             messages 'true')",
            quote_identifier(slot),
            publication_names(publications),
        );
        self.send_command(&command).await?;
        let started = async {
            loop {
                let message = self.wire.next_message(MAX_COMMAND_MESSAGE_BYTES).await?;
                match message.tag {
                    b'W' => return Ok(()),
                    b'E' => return Err(ServerError::parse(&message.body).into()),
                    b'N' | b'S' | b'A' => {}
                    tag => return Err(unexpected(tag, "starting the stream")),
                }
            }
        };
        timeout(COMMAND_TIMEOUT, started)
            .await
            .map_err(|_| timed_out("START_REPLICATION"))??;
        Ok(WalStream::new(self.wire, self.backend_pid))
    }

    /// Ends the session in good order, so that the server logs no broken connection. Bounded in
    /// time; failures are of no interest any more.
    pub async fn close(mut self) {
        let _ = timeout(FAREWELL, self.wire.say_farewell()).await;
    }

    async fn quick(&mut self, command: &str) -> Result<Vec<TextRow>, PgError> {
        timeout(COMMAND_TIMEOUT, self.simple_query(command))
            .await
            .map_err(|_| timed_out(command))?
    }

    async fn send_command(&mut self, command: &str) -> Result<(), PgError> {
        let mut packet = Vec::new();
        write_query(&mut packet, command)
            .await
            .map_err(|error| PgError::protocol(error.to_string()))?;
        self.wire.queue(&packet);
        Ok(())
    }
}

fn timed_out(command: &str) -> PgError {
    PgError::Timeout {
        what: command.to_owned(),
        limit: COMMAND_TIMEOUT,
    }
}

fn unexpected(tag: u8, while_doing: &str) -> PgError {
    PgError::protocol(format!("message {:?} while {while_doing}", char::from(tag)))
}

fn text(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok()
}

/// Reads a `DataRow`.
fn data_row(mut body: Bytes) -> Result<TextRow, PgError> {
    let short = || PgError::protocol("a row ends early");
    let count = body.try_get_i16().map_err(|_| short())?;
    let mut row = Vec::new();
    for _ in 0..count {
        let length = body.try_get_i32().map_err(|_| short())?;
        row.push(match usize::try_from(length) {
            Err(_) => None,
            Ok(length) if length <= body.len() => Some(body.split_to(length)),
            Ok(_) => return Err(short()),
        });
    }
    Ok(row)
}

#[cfg(test)]
mod tests;
