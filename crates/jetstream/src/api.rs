//! Questions to JetStream's API, and why they get no answer.
//!
//! Answers are read by own small types instead of async-nats's: a field or a value that a newer
//! server adds must not make a stream unusable.

use std::time::Duration;

use async_nats::client::Request;
use async_nats::{RequestError, RequestErrorKind};
use outbox::{BrokerFault, BrokerFaultKind, EpochEnd};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::config::StreamConfig;
use crate::connect::{Link, fault, shortened};
use crate::stored::{StoredMessage, decode_base64};

/// For one answer. A leader answers in milliseconds; an election takes some seconds.
pub(crate) const API_TIMEOUT: Duration = Duration::from_secs(5);

/// HTTP-like code of an answer that no repetition changes.
const BAD_REQUEST: u16 = 400;

/// Error codes of JetStream that decide something (errors.json of nats-server).
mod code {
    /// JSNoMessageFoundErr.
    pub(super) const NO_MESSAGE: u32 = 10_037;
    /// JSNotEnabledForAccountErr.
    pub(super) const OFF_FOR_ACCOUNT: u32 = 10_039;
    /// JSClusterNoPeersErrF.
    pub(super) const NO_PEERS: u32 = 10_005;
    /// JSStreamNotFoundErr.
    pub(super) const NO_STREAM: u32 = 10_059;
    /// JSStreamSubjectOverlapErr.
    pub(super) const SUBJECT_OVERLAP: u32 = 10_065;
    /// JSStreamReplicasNotSupportedErr.
    pub(super) const NO_REPLICAS: u32 = 10_074;
    /// JSNotEnabledErr.
    pub(super) const OFF: u32 = 10_076;
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiFault {
    /// JetStream answered with an error.
    #[error("{description} (JetStream error {code}/{err_code})")]
    Api {
        code: u16,
        err_code: u32,
        description: String,
    },
    /// Nobody listens on the API's subject.
    #[error("nobody answers for JetStream")]
    NoResponders,
    /// No answer in time.
    #[error("no answer within {} s", API_TIMEOUT.as_secs())]
    TimedOut,
    /// The connection came into trouble meanwhile.
    #[error("{}", words_of(.0))]
    Trouble(EpochEnd),
    /// The answer could not be read.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
    /// The client could not send the question.
    #[error("the question could not be sent: {0}")]
    Client(#[source] RequestError),
}

impl ApiFault {
    /// Whether the stream's subjects are another stream's already.
    pub(crate) fn is_subject_overlap(&self) -> bool {
        matches!(self, Self::Api { err_code, .. } if *err_code == code::SUBJECT_OVERLAP)
    }

    /// Whether there are not as many servers as the stream is to have replicas.
    pub(crate) fn is_lack_of_servers(&self) -> bool {
        let lack = [code::NO_PEERS, code::NO_REPLICAS];
        matches!(self, Self::Api { err_code, .. } if lack.contains(err_code))
    }

    /// Whether the stream does not exist.
    pub(crate) fn is_stream_missing(&self) -> bool {
        matches!(self, Self::Api { err_code, .. } if *err_code == code::NO_STREAM)
    }

    /// What this means for the use of a stream. `asked` is the API subject without its prefix.
    pub(crate) fn into_broker_fault(self, stream: &str, asked: &str) -> BrokerFault {
        let (kind, detail) = match &self {
            Self::Api { err_code, .. } if *err_code == code::NO_STREAM => (
                BrokerFaultKind::StreamMissing,
                format!("{stream}; `setup` makes it, or create it by hand"),
            ),
            Self::Api { err_code, .. } if [code::OFF, code::OFF_FOR_ACCOUNT].contains(err_code) => {
                let cure = "enable it for the account that we log in to (`jetstream: enabled` in \
                            the account of the server's configuration)";
                let error = format!("JetStream error {err_code}");
                (BrokerFaultKind::NoJetStream, format!("{error}; {cure}"))
            }
            // Requests that the server will refuse as often as they come.
            Self::Api {
                code: BAD_REQUEST, ..
            } => (
                BrokerFaultKind::StreamUnfit,
                format!("{stream}: $JS.API.{asked}: {self}"),
            ),
            Self::NoResponders => (
                BrokerFaultKind::NoJetStream,
                "nobody answers for it; start nats-server with `-js` or a `jetstream {}` block, \
                 and log in to an account that has it"
                    .to_owned(),
            ),
            Self::Trouble(EpochEnd::PermissionDenied { detail }) => (
                BrokerFaultKind::PermissionDenied,
                format!(
                    "{detail}; allow our user to publish to $JS.API.{asked} and to subscribe to \
                     its inbox (_INBOX.> or nats.inbox_prefix)"
                ),
            ),
            Self::Trouble(end) => (BrokerFaultKind::Unreachable, words_of(end)),
            other @ Self::Client(_) => (BrokerFaultKind::Unreachable, other.to_string()),
            other => (
                BrokerFaultKind::StreamUnavailable,
                format!("{stream}: $JS.API.{asked}: {other}; its leader may be missing"),
            ),
        };
        fault(kind, detail)
    }
}

/// The end of an epoch in words.
pub(crate) fn words_of(end: &EpochEnd) -> String {
    match end {
        EpochEnd::Disconnected { detail }
        | EpochEnd::PermissionDenied { detail }
        | EpochEnd::Server { detail } => detail.clone(),
        EpochEnd::MaxPayloadViolation => "Maximum Payload Violation".to_owned(),
    }
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(default)]
    error: Option<ErrorWire>,
}

#[derive(Deserialize)]
struct ErrorWire {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(default)]
    description: String,
}

/// Asks one question under `$JS.API.` and reads the answer.
pub(crate) async fn ask<T: DeserializeOwned>(
    link: &Link,
    verb: &str,
    body: &Value,
) -> Result<T, ApiFault> {
    let payload = if body.is_null() {
        Vec::new()
    } else {
        serde_json::to_vec(body).map_err(|error| ApiFault::Unreadable(error.to_string()))?
    };
    let request = Request::new()
        .payload(payload.into())
        .timeout(Some(API_TIMEOUT));
    let mut trouble = link.watch();
    let answer = tokio::select! {
        biased;
        end = trouble.next() => return Err(ApiFault::Trouble(end)),
        answer = link.client.send_request(format!("$JS.API.{verb}"), request) => answer,
    };
    let message = answer.map_err(|error| match error.kind() {
        RequestErrorKind::NoResponders => ApiFault::NoResponders,
        RequestErrorKind::TimedOut => ApiFault::TimedOut,
        _ => ApiFault::Client(error),
    })?;
    read_answer(&message.payload)
}

fn read_answer<T: DeserializeOwned>(payload: &[u8]) -> Result<T, ApiFault> {
    let unreadable = |error: serde_json::Error| ApiFault::Unreadable(error.to_string());
    let envelope: Envelope = serde_json::from_slice(payload).map_err(unreadable)?;
    if let Some(error) = envelope.error {
        return Err(ApiFault::Api {
            code: error.code,
            err_code: error.err_code,
            description: shortened(&error.description),
        });
    }
    serde_json::from_slice(payload).map_err(unreadable)
}

/// STREAM.INFO, as far as we read it.
#[derive(Debug, Clone)]
pub(crate) struct StreamInfo {
    /// As the server wrote it, for updates that keep what we do not know.
    pub(crate) raw_config: Value,
    pub(crate) config: StreamConfig,
    pub(crate) created_unix_nanos: i128,
    pub(crate) state: StateWire,
    pub(crate) cluster: Option<ClusterWire>,
}

#[derive(Deserialize)]
struct InfoWire {
    config: Value,
    created: String,
    state: StateWire,
    #[serde(default)]
    cluster: Option<ClusterWire>,
}

/// `state` of STREAM.INFO.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct StateWire {
    #[serde(default)]
    pub(crate) messages: u64,
    #[serde(default)]
    pub(crate) bytes: u64,
    #[serde(default)]
    pub(crate) first_seq: u64,
    #[serde(default)]
    pub(crate) last_seq: u64,
    #[serde(default)]
    pub(crate) last_ts: String,
}

/// `cluster` of STREAM.INFO; absent on a server without a cluster.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ClusterWire {
    #[serde(default)]
    pub(crate) leader: Option<String>,
    #[serde(default)]
    pub(crate) replicas: Option<Vec<Replica>>,
}

/// A follower of the stream's leader.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Replica {
    /// Name of the server.
    pub name: String,
    /// It holds everything that the leader holds.
    #[serde(default)]
    pub current: bool,
    /// The leader believes it down.
    #[serde(default)]
    pub offline: bool,
    /// Operations it is behind.
    #[serde(default)]
    pub lag: u64,
}

/// The stream as its leader sees it.
pub(crate) async fn stream_info(link: &Link, stream: &str) -> Result<StreamInfo, ApiFault> {
    let wire: InfoWire = ask(link, &format!("STREAM.INFO.{stream}"), &Value::Null).await?;
    read_info(wire)
}

/// STREAM.CREATE or STREAM.UPDATE with a whole configuration.
pub(crate) async fn write_stream(
    link: &Link,
    verb: &str,
    stream: &str,
    config: &Value,
) -> Result<StreamInfo, ApiFault> {
    let wire: InfoWire = ask(link, &format!("STREAM.{verb}.{stream}"), config).await?;
    read_info(wire)
}

fn read_info(wire: InfoWire) -> Result<StreamInfo, ApiFault> {
    let created = OffsetDateTime::parse(&wire.created, &Rfc3339)
        .map_err(|error| ApiFault::Unreadable(format!("created: {error}")))?;
    let config = StreamConfig::deserialize(&wire.config)
        .map_err(|error| ApiFault::Unreadable(error.to_string()))?;
    Ok(StreamInfo {
        raw_config: wire.config,
        config,
        created_unix_nanos: created.unix_timestamp_nanos(),
        state: wire.state,
        cluster: wire.cluster,
    })
}

#[derive(Deserialize)]
struct MessageAnswer {
    message: MessageWire,
}

#[derive(Deserialize)]
struct MessageWire {
    seq: u64,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    hdrs: String,
    #[serde(default)]
    data: String,
    #[serde(default)]
    time: String,
}

/// The message at a sequence (STREAM.MSG.GET, answered by the leader); `None` if it is gone.
pub(crate) async fn message_at(
    link: &Link,
    stream: &str,
    sequence: u64,
) -> Result<Option<StoredMessage>, ApiFault> {
    let message = message(link, stream, &json!({ "seq": sequence })).await?;
    match message {
        Some(message) if message.sequence != sequence => {
            let sequence = message.sequence;
            let what = format!("it is about sequence {sequence}");
            Err(ApiFault::Unreadable(what))
        }
        message => Ok(message),
    }
}

/// The first message at or after a sequence; `None` if there is none.
pub(crate) async fn message_from(
    link: &Link,
    stream: &str,
    sequence: u64,
) -> Result<Option<StoredMessage>, ApiFault> {
    message(
        link,
        stream,
        &json!({ "seq": sequence, "next_by_subj": ">" }),
    )
    .await
}

async fn message(
    link: &Link,
    stream: &str,
    which: &Value,
) -> Result<Option<StoredMessage>, ApiFault> {
    read_message(ask(link, &format!("STREAM.MSG.GET.{stream}"), which).await)
}

fn read_message(
    answer: Result<MessageAnswer, ApiFault>,
) -> Result<Option<StoredMessage>, ApiFault> {
    let answer = match answer {
        Ok(answer) => answer,
        Err(ApiFault::Api { err_code, .. }) if err_code == code::NO_MESSAGE => return Ok(None),
        Err(fault) => return Err(fault),
    };
    let decode = |text: &str| {
        decode_base64(text)
            .map(Into::into)
            .ok_or_else(|| ApiFault::Unreadable("it is not base64".to_owned()))
    };
    Ok(Some(StoredMessage {
        sequence: answer.message.seq,
        headers: decode(&answer.message.hdrs)?,
        payload: decode(&answer.message.data)?,
        subject: answer.message.subject,
        time: answer.message.time,
    }))
}

impl StoredMessage {
    /// Reads the answer to STREAM.MSG.GET; `None` if it says that there is no such message.
    ///
    /// # Errors
    /// With the reason, if it says something else or cannot be read.
    pub fn from_answer(payload: &[u8]) -> Result<Option<Self>, String> {
        read_message(read_answer(payload)).map_err(|fault| fault.to_string())
    }
}

#[derive(Deserialize)]
struct NamesWire {
    #[serde(default)]
    streams: Option<Vec<String>>,
}

/// The streams that take a subject: at most one for a subject without wildcards.
pub(crate) async fn streams_for(link: &Link, subject: &str) -> Result<Vec<String>, ApiFault> {
    let names: NamesWire = ask(link, "STREAM.NAMES", &json!({ "subject": subject })).await?;
    Ok(names.streams.unwrap_or_default())
}
