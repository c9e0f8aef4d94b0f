//! Reading a stream from one sequence to another, in order, in bounded memory.
//!
//! It asks for single messages (STREAM.MSG.GET, answered by the leader), several questions at a
//! time. That needs no consumer, leaves nothing behind on the server, and holds no more messages
//! than there are questions.

use std::fmt;
use std::future::Future;
use std::pin::Pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesOrdered;
use outbox::BrokerFault;

use crate::api::{ApiFault, message_at, message_from, stream_info};
use crate::connect::{Link, Purpose, connect};
use crate::options::NatsOptions;
use crate::stored::StoredMessage;

/// Questions at a time. Each answer can be as large as a message, so memory is bounded by this
/// many messages; more bring little, the server answers them one after the other.
const WINDOW: usize = 16;

type Answer = Result<Option<StoredMessage>, ApiFault>;
type Asking = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Reads messages in the order of their sequences.
pub struct StreamReader {
    link: Link,
    stream: String,
    /// The next sequence to ask for.
    next: u64,
    /// The last sequence to ask for.
    last: u64,
    asking: FuturesOrdered<Asking>,
    /// How many sequences in a row had no message.
    missing: usize,
}

impl fmt::Debug for StreamReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamReader")
            .field("stream", &self.stream)
            .field("next", &self.next)
            .field("last", &self.last)
            .finish_non_exhaustive()
    }
}

impl StreamReader {
    /// Connects and begins at `from`, or at the oldest message if that is later. Reads up to what
    /// the stream holds now.
    ///
    /// # Errors
    /// When there is no connection, no such stream, or it does not answer.
    pub async fn open(options: &NatsOptions, stream: &str, from: u64) -> Result<Self, BrokerFault> {
        let link = connect(options, Purpose::Tool).await?;
        let info = stream_info(&link, stream)
            .await
            .map_err(|error| error.into_broker_fault(stream, &format!("STREAM.INFO.{stream}")))?;
        Ok(Self {
            link,
            stream: stream.to_owned(),
            next: from.max(info.state.first_seq).max(1),
            last: info.state.last_seq,
            asking: FuturesOrdered::new(),
            missing: 0,
        })
    }

    /// The last sequence that will be looked at.
    #[must_use]
    pub const fn last_sequence(&self) -> u64 {
        self.last
    }

    /// The next message, `None` behind the last one. Sequences without a message are passed over.
    ///
    /// # Errors
    /// When the stream does not answer. The next call asks for the same message again.
    ///
    /// May be dropped while it waits: the next call goes on where this one stood.
    pub async fn next(&mut self) -> Result<Option<StoredMessage>, BrokerFault> {
        loop {
            while self.asking.len() < WINDOW && self.next <= self.last {
                self.asking.push_back(self.ask(self.next));
                self.next += 1;
            }
            let Some(answer) = self.asking.next().await else {
                return Ok(None);
            };
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    // The question without an answer, and those behind it, are asked again.
                    self.next -= self.asking.len() as u64 + 1;
                    self.asking.clear();
                    return Err(self.fault(error));
                }
            };
            match answer {
                Some(message) => {
                    self.missing = 0;
                    return Ok(Some(message));
                }
                None => self.missing += 1,
            }
            // A whole window without a message: perhaps millions follow, so the server looks.
            if self.missing >= WINDOW {
                return self.jump().await;
            }
        }
    }

    /// The first message behind a gap.
    async fn jump(&mut self) -> Result<Option<StoredMessage>, BrokerFault> {
        // Questions not answered yet are asked again from the message found. Where to go on stands
        // before the wait, which may end without an answer.
        let from = self.next - self.asking.len() as u64;
        self.next = from;
        self.asking.clear();
        self.missing = 0;
        let found = message_from(&self.link, &self.stream, from)
            .await
            .map_err(|error| self.fault(error))?;
        let found = found.filter(|message| message.sequence <= self.last);
        self.next = match &found {
            Some(message) => message.sequence + 1,
            None => self.last + 1,
        };
        Ok(found)
    }

    fn ask(&self, sequence: u64) -> Asking {
        let link = self.link.clone();
        let stream = self.stream.clone();
        Box::pin(async move { message_at(&link, &stream, sequence).await })
    }

    fn fault(&self, error: ApiFault) -> BrokerFault {
        error.into_broker_fault(&self.stream, &format!("STREAM.MSG.GET.{}", self.stream))
    }
}
