//! What a stream holds, with the times at which it was stored.

use std::time::Duration;

use anyhow::{Context, Result};
use async_nats::HeaderMap;
use async_nats::jetstream::Context as JetStream;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::pull::OrderedConfig;
use bytes::Bytes;
use futures_util::StreamExt;

/// How long the next message may take to come.
const NEXT_LIMIT: Duration = Duration::from_secs(30);

/// A message as the stream holds it.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Its sequence in the stream.
    pub sequence: u64,
    /// When the server stored it, in nanoseconds since 1970 by the clock that all processes of
    /// this machine share.
    pub stored_at_unix_ns: i128,
    /// Its subject.
    pub subject: String,
    /// Its headers; empty where it has none.
    pub headers: HeaderMap,
    /// Its payload.
    pub payload: Bytes,
}

impl Stored {
    /// The first value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(async_nats::HeaderValue::as_str)
    }

    /// The dedup id, header `Nats-Msg-Id`; empty where it has none.
    #[must_use]
    pub fn id(&self) -> &str {
        self.header("Nats-Msg-Id").unwrap_or_default()
    }
}

/// The last sequence of a stream and the number of its messages.
///
/// # Errors
/// When there is no such stream or the server does not answer.
pub async fn last_sequence(jetstream: &JetStream, stream: &str) -> Result<(u64, u64)> {
    let found = jetstream.get_stream(stream).await;
    let found = found.with_context(|| format!("cannot look at the stream {stream}"))?;
    let state = &found.cached_info().state;
    Ok((state.last_sequence, state.messages))
}

/// All messages of a stream, in its order.
///
/// # Errors
/// When there is no such stream, or the server does not answer.
pub async fn read_stream(jetstream: &JetStream, stream: &str) -> Result<Vec<Stored>> {
    read_from(jetstream, stream, 1, usize::MAX).await
}

/// The messages of a stream from a sequence on, in its order, up to its end or to so many.
///
/// # Errors
/// When there is no such stream, or the server does not answer.
pub async fn read_from(
    jetstream: &JetStream,
    stream: &str,
    first: u64,
    count_max: usize,
) -> Result<Vec<Stored>> {
    let found = jetstream.get_stream(stream).await;
    let found = found.with_context(|| format!("cannot look at the stream {stream}"))?;
    let (last, count) = last_sequence(jetstream, stream).await?;
    let mut all = Vec::new();
    let mut next_sequence = first;
    if count == 0 || last < first {
        return Ok(all);
    }
    let config = OrderedConfig {
        deliver_policy: DeliverPolicy::ByStartSequence {
            start_sequence: first,
        },
        ..OrderedConfig::default()
    };
    let consumer = found.create_consumer(config).await?;
    let mut messages = consumer.messages().await?;
    loop {
        let next = tokio::time::timeout(NEXT_LIMIT, messages.next()).await;
        let next = next.with_context(|| format!("no message from {stream} in {NEXT_LIMIT:?}"))?;
        let message = next.context("the stream's reader ended early")??;
        let (sequence, pending, published) = {
            let info = message.info().map_err(anyhow::Error::from_boxed)?;
            (info.stream_sequence, info.pending, info.published)
        };
        let message = message.message;
        // A reader that is made anew before its first message begins at the stream's beginning.
        if sequence >= next_sequence && sequence <= last {
            next_sequence = sequence + 1;
            all.push(Stored {
                sequence,
                stored_at_unix_ns: published.unix_timestamp_nanos(),
                subject: message.subject.to_string(),
                headers: message.headers.unwrap_or_default(),
                payload: message.payload,
            });
        }
        // The last one may have been deleted, so its number alone is not waited for.
        if sequence >= last || pending == 0 || all.len() >= count_max {
            return Ok(all);
        }
    }
}
