//! Reading a stream's newest messages, by their headers and from the newest back.
//!
//! A short-lived consumer does it: one request makes it, one or two fetch thousands of messages
//! without their bodies, one removes it. It may live on a follower that is some messages behind its
//! leader, so what it does not show may be there all the same; what it shows is there.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::{HeaderMap, Message, Subscriber};
use futures_util::StreamExt;
use outbox::{BrokerFault, BrokerFaultKind, LookBack, LookBackRange, Reach, SeenMessage, Writers};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api::{API_TIMEOUT, ApiFault, ask, stream_info};
use crate::connect::{Link, Purpose, connect, fault};
use crate::options::NatsOptions;
use crate::stored::row_from;
use crate::subject::overlaps;
use crate::target::StreamTarget;

/// For the whole of it. A session cannot go on meanwhile, but for the status updates.
const LOOK_BACK_TIMEOUT: Duration = Duration::from_secs(20);

/// Messages that are fetched at a time; half of what a subscription of the client holds.
const BATCH_MESSAGES: u64 = 16_384;

/// Most messages that are read, ours and others. A stream that mixes our subjects with more of
/// others than this gives no full answer.
const MAX_MESSAGES: u64 = 131_072;

/// Sequences that are looked at first, at least; then four times as many, and so on.
const LEAST_SPAN: u64 = 1_024;
const SPAN_GROWTH: u64 = 4;

/// Most bytes of dedup ids that are kept. Ids are the user's and may be as long as headers get.
const MAX_KEPT_BYTES: usize = 16 * 1024 * 1024;

/// After this time without a request the server removes a consumer that we could not remove.
const INACTIVE_NANOS: u64 = 10_000_000_000;

/// Reads the newest messages of a stream until enough of ours were seen.
///
/// # Errors
/// When there is no connection, or the consumer cannot be made or read. Nothing is left behind but
/// a consumer that removes itself.
pub async fn look_back(
    options: &NatsOptions,
    target: &StreamTarget,
    range: &LookBackRange,
) -> Result<LookBack, BrokerFault> {
    let reading = async {
        let link = connect(options, Purpose::Tool).await?;
        let mut reader = Reader {
            link: &link,
            target,
            range,
            messages: VecDeque::new(),
            read: 0,
            ours: 0,
            kept_bytes: 0,
        };
        let reach = reader.read_all().await.map_err(|(error, verb)| {
            error.into_broker_fault(&target.stream, &format!("{verb}.{}", target.stream))
        })?;
        Ok(LookBack {
            messages: reader.messages.into(),
            reach,
        })
    };
    let late = || {
        let seconds = LOOK_BACK_TIMEOUT.as_secs();
        Err(fault(
            BrokerFaultKind::StreamUnavailable,
            format!("{}: not read within {seconds} s", target.stream),
        ))
    };
    tokio::time::timeout(LOOK_BACK_TIMEOUT, reading)
        .await
        .unwrap_or_else(|_| late())
}

/// What went wrong, and with which request.
type Failure = (ApiFault, &'static str);

struct Reader<'a> {
    link: &'a Link,
    target: &'a StreamTarget,
    range: &'a LookBackRange,
    messages: VecDeque<SeenMessage>,
    /// Messages that came over the wire.
    read: u64,
    /// Messages of the log that is looked for.
    ours: usize,
    kept_bytes: usize,
}

impl Reader<'_> {
    async fn read_all(&mut self) -> Result<Reach, Failure> {
        let info = stream_info(self.link, &self.target.stream).await;
        let info = info.map_err(|error| (error, "STREAM.INFO"))?;
        let lowest = self.range.from.max(info.state.first_seq).max(1);
        let end = if self.range.from > info.state.first_seq {
            Reach::Wanted
        } else {
            Reach::Beginning
        };
        let mut to = self.range.to.min(info.state.last_seq);
        let mut span = LEAST_SPAN.max(self.range.rows as u64);
        while to >= lowest {
            if self.ours >= self.range.rows {
                return Ok(Reach::Wanted);
            }
            let from = to.saturating_sub(span - 1).max(lowest);
            if !self.read_part(from, to).await? {
                return Ok(Reach::Limit);
            }
            to = from - 1;
            span = span.saturating_mul(SPAN_GROWTH);
        }
        Ok(end)
    }

    /// Reads the messages of some sequences. Returns whether that was possible within the limits.
    async fn read_part(&mut self, from: u64, to: u64) -> Result<bool, Failure> {
        let consumer = self
            .create(from)
            .await
            .map_err(|error| (error, "CONSUMER.CREATE"))?;
        let part = self.fetch(&consumer, to).await;
        let stream = &self.target.stream;
        let delete = format!("CONSUMER.DELETE.{stream}.{}", consumer.name);
        // Otherwise it removes itself.
        let _ = ask::<Value>(self.link, &delete, &Value::Null).await;
        let part = part.map_err(|error| (error, "CONSUMER.MSG.NEXT"))?;
        let Some(part) = part else {
            return Ok(false);
        };
        for message in part.into_iter().rev() {
            self.messages.push_front(message);
        }
        Ok(true)
    }

    async fn create(&self, from: u64) -> Result<Consumer, ApiFault> {
        let mut config = json!({
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": from,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "headers_only": true,
            "mem_storage": true,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_NANOS,
        });
        if let (Some(filters), Some(config)) = (self.filters(), config.as_object_mut()) {
            match filters.as_slice() {
                [one] => config.insert("filter_subject".to_owned(), json!(one)),
                many => config.insert("filter_subjects".to_owned(), json!(many)),
            };
        }
        let stream = &self.target.stream;
        let body = json!({ "stream_name": stream, "config": config });
        ask(self.link, &format!("CONSUMER.CREATE.{stream}"), &body).await
    }

    /// Our subjects in a shared stream; `None` for all, also where the server would refuse them
    /// because they overlap.
    fn filters(&self) -> Option<Vec<&str>> {
        let patterns: Vec<&str> = self.target.patterns.iter().map(String::as_str).collect();
        let overlap = patterns.iter().enumerate().any(|(index, one)| {
            let mut others = patterns.iter().skip(index + 1);
            others.any(|other| overlaps(one, other))
        });
        let all = self.range.writers == Writers::Exclusive || overlap || patterns.is_empty();
        (!all).then_some(patterns)
    }

    /// Reads from where the consumer begins up to a sequence; `None` if that is over the limits.
    async fn fetch(
        &mut self,
        consumer: &Consumer,
        to: u64,
    ) -> Result<Option<Vec<SeenMessage>>, ApiFault> {
        let mut part = Vec::new();
        let mut pending = consumer.num_pending;
        let lost = |error: &dyn std::fmt::Display| ApiFault::Unreadable(error.to_string());
        let inbox = self.link.client.new_inbox();
        let answers = self.link.client.subscribe(inbox.clone()).await;
        let mut answers = answers.map_err(|error| lost(&error))?;
        let mut asked = 0_u64;
        while pending > 0 {
            if self.read >= MAX_MESSAGES || self.kept_bytes > MAX_KEPT_BYTES {
                return Ok(None);
            }
            if asked == 0 {
                asked = pending.min(BATCH_MESSAGES);
                self.request(consumer, &inbox, asked).await?;
            }
            let message = self.next(&mut answers).await?;
            let Some(place) = Place::of(&message) else {
                return Err(ended(&message));
            };
            asked -= 1;
            pending = place.pending;
            self.read += 1;
            if place.sequence > to {
                break;
            }
            self.take(place.sequence, message.headers.as_ref(), &mut part);
        }
        Ok(Some(part))
    }

    async fn request(&self, consumer: &Consumer, inbox: &str, batch: u64) -> Result<(), ApiFault> {
        let expires = u64::try_from(API_TIMEOUT.as_nanos()).unwrap_or(u64::MAX);
        let body = json!({ "batch": batch, "expires": expires }).to_string();
        let stream = &self.target.stream;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{}", consumer.name);
        let client = &self.link.client;
        let sent = client
            .publish_with_reply(subject, inbox.to_owned(), body.into())
            .await;
        sent.map_err(|error| ApiFault::Unreadable(error.to_string()))
    }

    async fn next(&self, answers: &mut Subscriber) -> Result<Message, ApiFault> {
        let mut trouble = self.link.watch();
        tokio::select! {
            biased;
            message = answers.next() => {
                message.ok_or_else(|| ApiFault::Unreadable("the connection ended".to_owned()))
            }
            end = trouble.next() => Err(ApiFault::Trouble(end)),
            () = tokio::time::sleep(API_TIMEOUT) => Err(ApiFault::TimedOut),
        }
    }

    fn take(&mut self, sequence: u64, headers: Option<&HeaderMap>, part: &mut Vec<SeenMessage>) {
        let get = |name: &str| headers?.get(name).map(async_nats::HeaderValue::as_str);
        let row = row_from(sequence, get);
        let is_ours = row
            .as_ref()
            .is_some_and(|row| row.source.same_log(&self.range.source));
        if is_ours || self.range.writers == Writers::Exclusive {
            self.kept_bytes += row.as_ref().map_or(0, |row| row.dedup_id.len());
            self.ours +=
                usize::from(is_ours && row.as_ref().is_some_and(|row| row.origin.is_none()));
            part.push(SeenMessage { sequence, row });
        }
    }
}

/// The consumer that was made.
#[derive(Deserialize)]
struct Consumer {
    name: String,
    /// Messages that it will deliver.
    #[serde(default)]
    num_pending: u64,
}

/// Where a delivered message stands, by its reply subject (ADR-15 of NATS):
/// `$JS.ACK.STREAM.CONSUMER.DELIVERED.STREAM_SEQ.CONSUMER_SEQ.TIME.PENDING`, or with
/// `DOMAIN.ACCOUNT` behind `$JS.ACK` and perhaps more behind `PENDING`.
struct Place {
    sequence: u64,
    pending: u64,
}

impl Place {
    const TOKENS: usize = 9;
    const TOKENS_WITH_DOMAIN: usize = 11;

    fn of(message: &Message) -> Option<Self> {
        if message.status.is_some_and(|status| status.as_u16() != 200) {
            return None;
        }
        let reply = message.reply.as_ref()?.as_str().strip_prefix("$JS.ACK.")?;
        let tokens: Vec<&str> = reply.split('.').collect();
        let count = tokens.len() + 2;
        let shift = match count {
            Self::TOKENS => 0,
            Self::TOKENS_WITH_DOMAIN.. => 2,
            _ => return None,
        };
        let number = |index: usize| tokens.get(index + shift)?.parse().ok();
        Some(Self {
            sequence: number(3)?,
            pending: number(6)?,
        })
    }
}

/// The server ended the request: the consumer is gone, or it took too long.
fn ended(message: &Message) -> ApiFault {
    let status = message.status.map_or(0, |status| status.as_u16());
    let words = message.description.as_deref().unwrap_or_default();
    ApiFault::Unreadable(format!("the consumer ended with {status} {words}"))
}
