//! Reading a whole JetStream stream, to check what is in it.

use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::HeaderMap;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use async_nats::jetstream::{self, Context as JetStream};
use bytes::Bytes;
use futures_util::StreamExt;

/// How long the next message may take to come.
const NEXT_LIMIT: Duration = Duration::from_secs(30);

/// A message as the stream holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Its sequence in the stream.
    pub sequence: u64,
    /// Its subject.
    pub subject: String,
    /// Its headers; empty where it has none.
    pub headers: HeaderMap,
    /// Its payload.
    pub payload: Bytes,
}

impl StoredMessage {
    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(async_nats::HeaderValue::as_str)
    }

    /// The dedup id, header `Nats-Msg-Id`.
    #[must_use]
    pub fn id(&self) -> Option<&str> {
        self.header("Nats-Msg-Id")
    }
}

/// The number of messages that a stream holds.
///
/// # Errors
/// When there is no such stream or the server does not answer.
pub async fn message_count(jetstream: &JetStream, stream: &str) -> Result<u64> {
    let found = jetstream.get_stream(stream).await;
    let found = found.with_context(|| format!("cannot look at the stream {stream}"))?;
    Ok(found.cached_info().state.messages)
}

/// All messages of a stream, in its order.
///
/// # Errors
/// Those of [`scan`].
pub async fn read_all(jetstream: &JetStream, stream: &str) -> Result<Vec<StoredMessage>> {
    let mut messages = Vec::new();
    scan(jetstream, stream, |message| messages.push(message)).await?;
    Ok(messages)
}

/// Calls `visit` with each message that the stream holds at the time of the call, in its order,
/// without keeping them.
///
/// # Errors
/// When there is no such stream, or the server does not answer.
pub async fn scan(
    jetstream: &JetStream,
    stream: &str,
    mut visit: impl FnMut(StoredMessage),
) -> Result<()> {
    let found = jetstream.get_stream(stream).await;
    let found = found.with_context(|| format!("cannot look at the stream {stream}"))?;
    let state = &found.cached_info().state;
    if state.messages == 0 {
        return Ok(());
    }
    let last_sequence = state.last_sequence;
    let config = OrderedConfig {
        deliver_policy: jetstream::consumer::DeliverPolicy::All,
        ..OrderedConfig::default()
    };
    let consumer = found
        .create_consumer(config)
        .await
        .context("cannot make a consumer")?;
    let mut messages = consumer
        .messages()
        .await
        .context("cannot read the stream")?;
    loop {
        let next = tokio::time::timeout(NEXT_LIMIT, messages.next()).await;
        let next = next.with_context(|| format!("no message from {stream} in {NEXT_LIMIT:?}"))?;
        let message = next.context("the stream's reader ended early")?;
        let message = message.context("cannot read the stream")?;
        let (sequence, pending) = {
            let info = message.info().map_err(anyhow::Error::from_boxed)?;
            (info.stream_sequence, info.pending)
        };
        let message = message.message;
        if sequence <= last_sequence {
            visit(StoredMessage {
                sequence,
                subject: message.subject.to_string(),
                headers: message.headers.unwrap_or_default(),
                payload: message.payload,
            });
        }
        // The last one may have been deleted, so its number alone is not waited for.
        if sequence >= last_sequence || pending == 0 {
            return Ok(());
        }
    }
}
