//! One epoch: one connection, one run of publishes in order.
//!
//! The epoch begins with what the stream's leader says about its last message and ends with the
//! first thing that could leave a hole: a disconnect, a server error, a refused permission. Rows
//! without an answer may or may not be stored then; the next epoch's beginning tells. Nothing is
//! retried here, and no answer is dropped: those that fit no row in flight are counted.
//!
//! Only core NATS is used to carry rows, with our own inbox for the answers. A hand-written
//! protocol writer could stand in for async-nats behind [`Epoch`]'s public face.

use std::collections::{HashSet, VecDeque};
use std::str::FromStr;
use std::task::Poll;
use std::time::Duration;

use async_nats::client::PublishErrorKind;
use async_nats::{HeaderMap, HeaderName, HeaderValue, Message, Subject, Subscriber};
use futures_util::{FutureExt, StreamExt};
use outbox::{
    BrokerFault, BrokerFaultKind, EpochEnd, EpochStart, Outgoing, PubAck, ReadBack, ReadNext,
    Refusal, SeenMessage, Tail, Taker, Token, header,
};

use crate::ack::parse_ack;
use crate::api::{ApiFault, StreamInfo, message_at, message_from, stream_info};
use crate::config::{check_stream, refused};
use crate::connect::{Link, Purpose, TroubleWatch, connect, fault};
use crate::options::NatsOptions;
use crate::stored::{read_back_of, tail_of};
use crate::stream::StreamAdmin;
use crate::target::StreamTarget;

/// Most rows without an answer in one epoch. The relay machine stays at or below it, so that a
/// publish finds room in the client's queue and need not wait.
pub const MAX_IN_FLIGHT_ROWS: usize = 8192;

/// Room in the client's queue beyond the rows: questions, read-backs, subscriptions.
const QUEUE_SLACK: usize = 1024;

/// Answers that may wait to be read. Each row has one, but other subscribers of a subject can send
/// more; an overflow loses answers and ends the epoch.
const ACK_CAPACITY: usize = 4 * MAX_IN_FLIGHT_ROWS;

/// For the orderly end of a connection that still works.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Bytes of the first line of a header block and of the blank line that closes it.
const HEADER_FRAME_BYTES: usize = "NATS/1.0\r\n".len() + "\r\n".len();

/// What happened in an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EpochEvent {
    /// The row is stored.
    Acked {
        /// The attempt.
        token: Token,
        /// JetStream's answer.
        ack: PubAck,
    },
    /// The row is not stored by this attempt.
    Refused {
        /// The attempt.
        token: Token,
        /// Why.
        refusal: Refusal,
    },
    /// The epoch is over; it is the last event.
    Ended(EpochEnd),
}

/// One connection that carries rows into one stream.
#[derive(Debug)]
pub struct Epoch {
    link: Link,
    trouble: TroubleWatch,
    acks: Subscriber,
    stream: String,
    stream_header: HeaderValue,
    /// `INBOX.`, the token follows.
    inbox: String,
    max_payload_bytes: usize,
    in_flight: HashSet<u64>,
    /// Events that arose here, not on the wire.
    own: VecDeque<EpochEvent>,
    ended: bool,
    unknown_answers: u64,
}

impl Epoch {
    /// Connects, looks at the stream and reads its last message. `number` only names the epoch in
    /// the log.
    ///
    /// # Errors
    /// What keeps us from a usable stream, with its cure. Nothing was published.
    pub async fn open(
        options: &NatsOptions,
        target: &StreamTarget,
        number: u64,
    ) -> Result<(EpochStart, Self), BrokerFault> {
        let purpose = Purpose::Epoch {
            commands: MAX_IN_FLIGHT_ROWS + QUEUE_SLACK,
            messages: ACK_CAPACITY,
        };
        let link = connect(options, purpose).await?;
        let lost =
            |error: &dyn std::fmt::Display| fault(BrokerFaultKind::Unreachable, error.to_string());
        let inbox = link.client.new_inbox();
        let acks = link.client.subscribe(format!("{inbox}.*")).await;
        let acks = acks.map_err(|error| lost(&error))?;
        let trouble = link.watch();
        let asked = format!("STREAM.INFO.{}", target.stream);
        let info = stream_info(&link, &target.stream)
            .await
            .map_err(|error| error.into_broker_fault(&target.stream, &asked))?;
        let server = link.client.server_info();
        let start = begin(&link, target, &info, server.max_payload).await?;
        if let Some(end) = trouble.known() {
            let fault = ApiFault::Trouble(end).into_broker_fault(&target.stream, &asked);
            return Err(fault);
        }
        let stream_header = HeaderValue::from_str(&target.stream)
            .map_err(|error| fault(BrokerFaultKind::StreamUnfit, error.to_string()))?;
        tracing::debug!(
            epoch = number,
            server = %server.server_name,
            version = %server.version,
            stream = %target.stream,
            last_sequence = start.last_sequence,
            "epoch open"
        );
        let epoch = Self {
            link,
            trouble,
            acks,
            stream: target.stream.clone(),
            stream_header,
            inbox: format!("{inbox}."),
            max_payload_bytes: server.max_payload,
            in_flight: HashSet::new(),
            own: VecDeque::new(),
            ended: false,
            unknown_answers: 0,
        };
        Ok((start, epoch))
    }

    /// Sends one row. Never waits: the row goes into the client's queue; its answer comes by
    /// [`next_events`](Self::next_events), also when it is refused here.
    pub fn publish(&mut self, outgoing: Outgoing) {
        let token = outgoing.token;
        if let Err(refusal) = self.send(outgoing) {
            self.own.push_back(EpochEvent::Refused { token, refusal });
        }
    }

    fn send(&mut self, outgoing: Outgoing) -> Result<(), Refusal> {
        let local = |detail: String| Refusal::Malformed { detail };
        let token = outgoing.token.0;
        let (headers, header_bytes) = self.headers(&outgoing).map_err(local)?;
        let size = header_bytes + outgoing.payload.len();
        if size > self.max_payload_bytes {
            return Err(Refusal::TooLarge {
                size_bytes: size as u64,
                limit_bytes: self.max_payload_bytes as u64,
            });
        }
        let subject = Subject::from_utf8(outgoing.subject)
            .map_err(|error| local(format!("the subject is not UTF-8: {error}")))?;
        let reply = Subject::from(format!("{}{token}", self.inbox));
        let sending = self.link.client.publish_with_reply_and_headers(
            subject,
            reply,
            headers,
            outgoing.payload,
        );
        // Polled once, outside the scheduler's budget: the queue has room for every row that may
        // be in flight, so the only other outcome is a broken contract.
        match tokio::task::unconstrained(sending).now_or_never() {
            Some(Ok(())) => {
                self.in_flight.insert(token);
                Ok(())
            }
            // The client is gone. The row ends with the epoch, like those in flight.
            Some(Err(error)) if error.kind() == PublishErrorKind::Send => Ok(()),
            Some(Err(error)) => Err(local(format!("it cannot be sent: {error}"))),
            None => {
                let detail = format!("more than {MAX_IN_FLIGHT_ROWS} rows in flight");
                self.own
                    .push_back(EpochEvent::Ended(EpochEnd::Server { detail }));
                Ok(())
            }
        }
    }

    /// The row's headers with those of this attempt, and how many bytes they take on the wire.
    fn headers(&self, outgoing: &Outgoing) -> Result<(HeaderMap, usize), String> {
        let mut headers = HeaderMap::new();
        let mut size = HEADER_FRAME_BYTES;
        let mut add = |name: &str, value: HeaderValue| {
            size += name.len() + value.as_str().len() + ": \r\n".len();
            let name =
                HeaderName::from_str(name).map_err(|error| format!("header {name:?}: {error}"))?;
            headers.append(name, value);
            Ok::<(), String>(())
        };
        let value = |name: &str, value: &str| {
            HeaderValue::from_str(value).map_err(|error| format!("header {name}: {error}"))
        };
        for (name, text) in outgoing.headers.iter() {
            add(name, value(name, text)?)?;
        }
        add(header::EXPECTED_STREAM, self.stream_header.clone())?;
        if let Some(sequence) = outgoing.expected_last_sequence {
            add(header::EXPECTED_LAST_SEQUENCE, HeaderValue::from(sequence))?;
        }
        if let Some(settled) = outgoing.settled {
            let settled = settled.to_string();
            add(header::SETTLED, value(header::SETTLED, &settled)?)?;
        }
        Ok((headers, size))
    }

    /// Waits for at least one event and adds all that are ready. Answers that came before the end
    /// of the connection come before [`EpochEvent::Ended`]; after that it never returns again.
    ///
    /// May be dropped while it waits: no event is lost.
    pub async fn next_events(&mut self, out: &mut Vec<EpochEvent>) {
        let before = out.len();
        loop {
            if !self.ended {
                self.take_ready(out);
            }
            if out.len() > before {
                return;
            }
            if self.ended {
                std::future::pending::<()>().await;
            }
            tokio::select! {
                biased;
                message = self.acks.next() => match message {
                    Some(message) => self.take_answer(&message, out),
                    // The client is gone; the trouble says why.
                    None => self.end(out).await,
                },
                _ = self.trouble.next() => self.end(out).await,
            }
        }
    }

    /// Takes what lies ready, without waiting.
    fn take_ready(&mut self, out: &mut Vec<EpochEvent>) {
        while let Some(event) = self.own.pop_front() {
            self.ended |= matches!(event, EpochEvent::Ended(_));
            out.push(event);
            if self.ended {
                return;
            }
        }
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Some(message)) = self.acks.poll_next_unpin(&mut context) {
            self.take_answer(&message, out);
        }
    }

    /// Everything that was received, then the end. The connection's task hands over an answer
    /// before it reports trouble that came later, so the inbox is complete now.
    async fn end(&mut self, out: &mut Vec<EpochEvent>) {
        let end = self.trouble.next().await;
        let acks = &mut self.acks;
        let rest = std::future::poll_fn(|context| {
            let mut rest = Vec::new();
            while let Poll::Ready(Some(message)) = acks.poll_next_unpin(context) {
                rest.push(message);
            }
            Poll::Ready(rest)
        });
        // Outside the scheduler's budget, which would cut a long inbox short.
        for message in tokio::task::unconstrained(rest).await {
            self.take_answer(&message, out);
        }
        self.ended = true;
        out.push(EpochEvent::Ended(end));
    }

    fn take_answer(&mut self, message: &Message, out: &mut Vec<EpochEvent>) {
        let token = message.subject.strip_prefix(self.inbox.as_str());
        let token = token.and_then(|digits| digits.parse().ok());
        let Some(token) = token.filter(|token| self.in_flight.remove(token)) else {
            self.unknown_answers += 1;
            return;
        };
        let token = Token(token);
        let status = message.status.map(|status| status.as_u16());
        out.push(match parse_ack(&self.stream, status, &message.payload) {
            Ok(ack) => EpochEvent::Acked { token, ack },
            Err(refusal) => EpochEvent::Refused { token, refusal },
        });
    }

    /// Rows without an answer.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Answers that fitted no row in flight: second answers to one row, or a stranger's.
    #[must_use]
    pub const fn unknown_answers(&self) -> u64 {
        self.unknown_answers
    }

    /// A handle that reads the stream beside the publishing.
    #[must_use]
    pub fn reader(&self) -> EpochReader {
        EpochReader {
            link: self.link.clone(),
            stream: self.stream.clone(),
        }
    }

    /// What stands in the stream at a sequence that a PubAck named.
    pub async fn read_back(&self, sequence: u64) -> ReadBack {
        self.reader().read_back(sequence).await
    }

    /// Ends the connection within a second. What was handed to [`publish`](Self::publish) before
    /// may still go out until it returns, and beyond if the connection hangs: the client sends its
    /// queue before it looks at a request to stop.
    pub async fn close(mut self) {
        if self.trouble.known().is_some() && self.ended {
            return;
        }
        let closing = async {
            if self.link.client.drain().await.is_ok() {
                while self.acks.next().await.is_some() {}
            }
        };
        // Without an answer in time the client is dropped and ends itself when its pings fail.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, closing).await;
    }
}

/// Reads single messages of the epoch's stream; cheap to clone.
#[derive(Debug, Clone)]
pub struct EpochReader {
    link: Link,
    stream: String,
}

impl EpochReader {
    /// The first message at or behind a sequence, as the stream's leader says.
    pub async fn read_next(&self, sequence: u64) -> ReadNext {
        match message_from(&self.link, &self.stream, sequence).await {
            Ok(Some(stored)) => ReadNext::Message(SeenMessage {
                sequence: stored.sequence,
                row: stored.row(),
            }),
            Ok(None) => ReadNext::End,
            Err(error) => ReadNext::Unknown {
                detail: error.to_string(),
            },
        }
    }

    /// What stands in the stream at a sequence, as its leader says. Answers within seconds.
    pub async fn read_back(&self, sequence: u64) -> ReadBack {
        match message_at(&self.link, &self.stream, sequence).await {
            Ok(stored) => read_back_of(stored.as_ref()),
            Err(error) => ReadBack::Unknown {
                detail: error.to_string(),
            },
        }
    }

    /// Which stream takes a subject, as the servers say now. Answers within seconds.
    ///
    /// The epoch's connection is asked only about its own stream, which it may do. About others a
    /// connection of its own asks, as the server's refusal would end the epoch under a wrong name.
    pub async fn find_taker(&self, options: &NatsOptions, subject: &str) -> Taker {
        let ours = &self.stream;
        let Ok(info) = stream_info(&self.link, ours).await else {
            return Taker::Unknown;
        };
        if info.config.takes(subject) {
            return Taker::Ours;
        }
        let subjects = info.config.subjects.join(", ");
        let found = match StreamAdmin::connect(options).await {
            Ok(admin) => admin.which_stream_takes(subject).await,
            Err(fault) => Err(fault),
        };
        match found {
            Ok(Some(stream)) if stream == *ours => Taker::Ours,
            Ok(Some(stream)) => Taker::Other { stream },
            Ok(None) => Taker::NotOurs {
                detail: format!(
                    "no stream takes it ({ours} takes {subjects}), and who listens on it does not \
                     answer"
                ),
            },
            Err(_) => Taker::NotOurs {
                detail: format!("{ours} does not take it (it takes {subjects})"),
            },
        }
    }
}

/// Checks the stream and reads its tail.
async fn begin(
    link: &Link,
    target: &StreamTarget,
    info: &StreamInfo,
    max_payload: usize,
) -> Result<EpochStart, BrokerFault> {
    let stream = &target.stream;
    if let Some(owner) = info.config.owner().filter(|&owner| owner != target.owner) {
        return Err(fault(
            BrokerFaultKind::OtherOwner,
            format!(
                "{stream} belongs to {owner}, we are {}; `setup --adopt` takes it",
                target.owner
            ),
        ));
    }
    let writers = target.writers(info.config.writers());
    let findings = check_stream(&info.config, writers, &target.patterns);
    if let Some(detail) = refused(&findings) {
        return Err(fault(
            BrokerFaultKind::StreamUnfit,
            format!("{stream}: {detail}"),
        ));
    }
    let last_sequence = info.state.last_seq;
    let tail = if last_sequence == 0 {
        Tail::Empty
    } else {
        let asked = format!("STREAM.MSG.GET.{stream}");
        let stored = message_at(link, stream, last_sequence)
            .await
            .map_err(|error| error.into_broker_fault(stream, &asked))?;
        tail_of(stored.as_ref())
    };
    let server_max = max_payload as u64;
    Ok(EpochStart {
        writers,
        created_unix_nanos: info.created_unix_nanos,
        last_sequence,
        tail,
        max_message_bytes: info
            .config
            .max_message_bytes()
            .map_or(server_max, |max| max.min(server_max)),
    })
}
