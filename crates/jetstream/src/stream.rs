//! Making a stream, looking at it, and telling where a subject goes.

use std::time::Duration;

use outbox::{BrokerFault, BrokerFaultKind, Tail, Writers};
use serde_json::{Value, json};

use crate::api::{
    ApiFault, Replica, StreamInfo, message_at, stream_info, streams_for, write_stream,
};
use crate::config::{
    Concern, DEFAULT_DUPLICATE_WINDOW, Finding, StreamConfig, check_stream, metadata, writers_name,
};
use crate::connect::{Link, Purpose, connect, fault};
use crate::options::NatsOptions;
use crate::stored::tail_of;
use crate::target::StreamTarget;

/// What `setup` wants of the stream.
#[derive(Debug, Clone)]
pub struct StreamWanted {
    /// Name, writers, owner and patterns. A stream that is made here without `writers` is
    /// [`Writers::Exclusive`].
    pub target: StreamTarget,
    /// The subjects of a stream that is made here, for example `outbox.>`.
    pub subjects: Vec<String>,
    /// The outbox tables that are routed here, `schema.table`.
    pub tables: Vec<String>,
    /// Copies of each message in a stream that is made here; 1 where there is no cluster.
    pub replicas: u32,
    /// How long ids are remembered in a stream that is made here.
    pub duplicate_window: Duration,
    /// Take over a stream that belongs to another Postrider.
    pub adopt: bool,
}

impl StreamWanted {
    /// One copy, the usual duplicate window, no taking over.
    #[must_use]
    pub fn new(target: StreamTarget, subjects: Vec<String>, tables: Vec<String>) -> Self {
        Self {
            target,
            subjects,
            tables,
            replicas: 1,
            duplicate_window: DEFAULT_DUPLICATE_WINDOW,
            adopt: false,
        }
    }
}

/// A stream at this moment, for `status`.
#[derive(Debug, Clone)]
pub struct StreamState {
    /// Its configuration.
    pub config: StreamConfig,
    /// When it was made, nanoseconds since 1970.
    pub created_unix_nanos: i128,
    /// Messages in it.
    pub messages: u64,
    /// Bytes of all messages.
    pub size_bytes: u64,
    /// Sequence of the oldest message.
    pub first_sequence: u64,
    /// Sequence of the newest message, or the last that there was.
    pub last_sequence: u64,
    /// When the newest message was stored, RFC 3339; `None` if there never was one.
    pub last_time: Option<String>,
    /// Server that leads the stream; `None` without a cluster, or while there is no leader.
    pub leader: Option<String>,
    /// The leader's followers.
    pub replicas: Vec<Replica>,
    /// What the newest message says.
    pub tail: Tail,
}

/// The server that answers us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Name of its cluster, if it is in one.
    pub cluster: Option<String>,
    /// Largest message (headers and payload) that the server takes; the account's limit is not
    /// visible to a client.
    pub max_payload_bytes: u64,
}

/// A connection for questions and set-up. It carries no rows and may reconnect.
#[derive(Debug, Clone)]
pub struct StreamAdmin {
    pub(crate) link: Link,
}

impl StreamAdmin {
    /// Connects.
    ///
    /// # Errors
    /// Why there is no connection, with the cure.
    pub async fn connect(options: &NatsOptions) -> Result<Self, BrokerFault> {
        let link = connect(options, Purpose::Tool).await?;
        Ok(Self { link })
    }

    /// The server at the other end.
    #[must_use]
    pub fn server(&self) -> ServerFacts {
        let info = self.link.client.server_info();
        ServerFacts {
            name: info.server_name,
            version: info.version,
            cluster: info.cluster,
            max_payload_bytes: info.max_payload as u64,
        }
    }

    /// The stream that takes a subject: tells a subject that nobody takes from one that goes
    /// elsewhere.
    ///
    /// # Errors
    /// When JetStream does not answer.
    pub async fn which_stream_takes(&self, subject: &str) -> Result<Option<String>, BrokerFault> {
        let mut streams = streams_for(&self.link, subject)
            .await
            .map_err(|error| error.into_broker_fault(subject, "STREAM.NAMES"))?;
        Ok(streams.pop())
    }

    /// The stream and its newest message.
    ///
    /// # Errors
    /// When there is no such stream, or it does not answer.
    pub async fn state(&self, stream: &str) -> Result<StreamState, BrokerFault> {
        let info = self.info(stream).await?;
        let last_sequence = info.state.last_seq;
        let tail = if last_sequence == 0 {
            Tail::Empty
        } else {
            let stored = message_at(&self.link, stream, last_sequence).await;
            let asked = format!("STREAM.MSG.GET.{stream}");
            let stored = stored.map_err(|error| error.into_broker_fault(stream, &asked))?;
            tail_of(stored.as_ref())
        };
        let (leader, replicas) = match info.cluster {
            Some(cluster) => (cluster.leader, cluster.replicas.unwrap_or_default()),
            None => (None, Vec::new()),
        };
        Ok(StreamState {
            config: info.config,
            created_unix_nanos: info.created_unix_nanos,
            messages: info.state.messages,
            size_bytes: info.state.bytes,
            first_sequence: info.state.first_seq,
            last_sequence,
            // Go's zero time stands for never.
            last_time: Some(info.state.last_ts)
                .filter(|time| !time.is_empty() && !time.starts_with("0001-")),
            leader,
            replicas,
            tail,
        })
    }

    /// Looks at the stream as configured and changes nothing.
    ///
    /// # Errors
    /// When there is no such stream, or it does not answer.
    pub async fn check(&self, target: &StreamTarget) -> Result<Vec<Finding>, BrokerFault> {
        let info = self.info(&target.stream).await?;
        let mut findings: Vec<Finding> = other_owner(&info.config, target).into_iter().collect();
        let writers = target.writers(info.config.writers());
        findings.extend(check_stream(&info.config, writers, &target.patterns));
        Ok(findings)
    }

    /// Makes the stream if it is missing, and writes owner, writers and tables into its metadata.
    /// Nothing else of a stream that exists is changed; a stream with a [`Finding::Refuse`] is
    /// not touched at all.
    ///
    /// # Errors
    /// When JetStream refuses or does not answer.
    pub async fn ensure(&self, wanted: &StreamWanted) -> Result<Vec<Finding>, BrokerFault> {
        let stream = &wanted.target.stream;
        match stream_info(&self.link, stream).await {
            Ok(info) => self.adapt(wanted, &info).await,
            Err(error) if error.is_stream_missing() => self.create(wanted).await,
            Err(error) => Err(error.into_broker_fault(stream, &format!("STREAM.INFO.{stream}"))),
        }
    }

    async fn info(&self, stream: &str) -> Result<StreamInfo, BrokerFault> {
        stream_info(&self.link, stream)
            .await
            .map_err(|error| error.into_broker_fault(stream, &format!("STREAM.INFO.{stream}")))
    }

    async fn create(&self, wanted: &StreamWanted) -> Result<Vec<Finding>, BrokerFault> {
        let target = &wanted.target;
        let stream = &target.stream;
        let writers = target.writers(Some(Writers::Exclusive));
        let window = i64::try_from(wanted.duplicate_window.as_nanos()).unwrap_or(i64::MAX);
        // No limit of count, size or age: a stream that drops rows is the user's decision.
        let config = json!({
            "name": stream,
            "subjects": wanted.subjects,
            "retention": "limits",
            "storage": "file",
            "discard": "old",
            "max_msgs": -1,
            "max_bytes": -1,
            "max_age": 0,
            "max_msgs_per_subject": -1,
            "max_msg_size": -1,
            "max_consumers": -1,
            "num_replicas": wanted.replicas,
            "duplicate_window": window,
            "allow_direct": true,
            "metadata": our_metadata(wanted, writers),
        });
        let made = match write_stream(&self.link, "CREATE", stream, &config).await {
            Ok(made) => made,
            Err(error) => return Err(self.create_fault(wanted, error).await),
        };
        let mut findings = vec![Finding::Made(format!(
            "stream {stream} for {}, {} writer, {} replica(s)",
            wanted.subjects.join(", "),
            writers_name(writers),
            made.config.num_replicas,
        ))];
        if made.config.owner().is_none() {
            findings.push(no_metadata("the server is older than 2.10 and keeps none"));
        }
        findings.extend(check_stream(&made.config, writers, &target.patterns));
        Ok(findings)
    }

    async fn create_fault(&self, wanted: &StreamWanted, error: ApiFault) -> BrokerFault {
        let stream = &wanted.target.stream;
        if error.is_lack_of_servers() {
            let replicas = wanted.replicas;
            return fault(
                BrokerFaultKind::StreamUnfit,
                format!(
                    "{stream}: {replicas} replicas need a cluster of {replicas} servers with \
                     JetStream ({error}); add servers, or set nats.replicas to what there is (1 \
                     without a cluster)"
                ),
            );
        }
        if !error.is_subject_overlap() {
            return error.into_broker_fault(stream, &format!("STREAM.CREATE.{stream}"));
        }
        let mut others = Vec::new();
        for subject in &wanted.subjects {
            if let Ok(found) = streams_for(&self.link, subject).await {
                others.extend(found);
            }
        }
        others.sort();
        others.dedup();
        fault(
            BrokerFaultKind::StreamUnfit,
            format!(
                "{stream}: its subjects {} are taken by the stream {}; name that stream in \
                 nats.stream, or change the subjects",
                wanted.subjects.join(", "),
                others.join(", "),
            ),
        )
    }

    async fn adapt(
        &self,
        wanted: &StreamWanted,
        info: &StreamInfo,
    ) -> Result<Vec<Finding>, BrokerFault> {
        let target = &wanted.target;
        let stream = &target.stream;
        let writers = target.writers(info.config.writers());
        let mut findings: Vec<Finding> = Vec::new();
        let other = other_owner(&info.config, target);
        if !wanted.adopt {
            findings.extend(other.clone());
        }
        findings.extend(check_stream(&info.config, writers, &target.patterns));
        if findings
            .iter()
            .any(|finding| matches!(finding, Finding::Refuse(_)))
        {
            return Ok(findings);
        }
        let ours = our_metadata(wanted, writers);
        let known = |(key, value): (&String, &Value)| {
            info.config.metadata.get(key).map(String::as_str) == value.as_str()
        };
        let mut first = if ours.as_object().is_some_and(|ours| ours.iter().all(known)) {
            vec![Finding::Found(format!(
                "stream {stream}, {} writer",
                writers_name(writers)
            ))]
        } else {
            self.write_metadata(stream, info, ours, writers).await?
        };
        if other.is_some() {
            first.push(Finding::Made(format!("stream {stream} is ours now")));
        }
        first.extend(differences(wanted, &info.config));
        first.append(&mut findings);
        Ok(first)
    }

    async fn write_metadata(
        &self,
        stream: &str,
        info: &StreamInfo,
        ours: Value,
        writers: Writers,
    ) -> Result<Vec<Finding>, BrokerFault> {
        let mut config = info.raw_config.clone();
        let mut all = serde_json::Map::new();
        for (key, value) in &info.config.metadata {
            all.insert(key.clone(), json!(value));
        }
        if let (Value::Object(ours), Some(config)) = (ours, config.as_object_mut()) {
            all.extend(ours);
            config.insert("metadata".to_owned(), Value::Object(all));
        }
        match write_stream(&self.link, "UPDATE", stream, &config).await {
            Ok(made) if made.config.owner().is_some() => Ok(vec![Finding::Made(format!(
                "owner and {} writer in the metadata of stream {stream}",
                writers_name(writers)
            ))]),
            Ok(_) => Ok(vec![no_metadata(
                "the server is older than 2.10 and keeps none",
            )]),
            // The stream works without; only the protection by the owner's name is missing.
            Err(error @ (ApiFault::Api { .. } | ApiFault::Trouble(_))) => {
                Ok(vec![no_metadata(&error.to_string())])
            }
            Err(error) => Err(error.into_broker_fault(stream, &format!("STREAM.UPDATE.{stream}"))),
        }
    }
}

fn our_metadata(wanted: &StreamWanted, writers: Writers) -> Value {
    json!({
        metadata::OWNER: wanted.target.owner,
        metadata::WRITERS: writers_name(writers),
        metadata::TABLES: wanted.tables.join(","),
    })
}

fn no_metadata(reason: &str) -> Finding {
    Finding::Warn(Concern {
        field: "metadata",
        reason: format!("owner and writers could not be written into the stream: {reason}"),
        cure: "set nats.writers in the configuration; no other Postrider is kept out by name"
            .to_owned(),
    })
}

fn other_owner(config: &StreamConfig, target: &StreamTarget) -> Option<Finding> {
    let owner = config.owner().filter(|&owner| owner != target.owner)?;
    Some(Finding::Refuse(Concern {
        field: metadata::OWNER,
        reason: format!("the stream belongs to {owner}, we are {}", target.owner),
        cure: "stop the other one for good, then run `setup --adopt`; or name another stream"
            .to_owned(),
    }))
}

/// Where the stream is less than `setup` would make, and that is no matter of safety.
fn differences(wanted: &StreamWanted, config: &StreamConfig) -> Vec<Finding> {
    let mut left = Vec::new();
    if config.num_replicas < wanted.replicas {
        left.push(Finding::Left(format!(
            "num_replicas {} (setup would make {})",
            config.num_replicas, wanted.replicas
        )));
    }
    if config.duplicate_window() < wanted.duplicate_window {
        left.push(Finding::Left(format!(
            "duplicate_window {} s (setup would make {} s)",
            config.duplicate_window().as_secs_f64(),
            wanted.duplicate_window.as_secs_f64()
        )));
    }
    if !wanted.subjects.iter().all(|subject| config.takes(subject)) {
        left.push(Finding::Left(format!(
            "subjects {} (setup would make {})",
            config.subjects.join(", "),
            wanted.subjects.join(", ")
        )));
    }
    left
}
