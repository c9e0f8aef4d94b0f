//! A stream's configuration, and whether it keeps what we promise.

use std::collections::BTreeMap;
use std::time::Duration;

use outbox::Writers;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::subject::{covers, overlaps};

/// Metadata keys that `setup` writes into the stream.
pub mod metadata {
    /// `SYSTEM_IDENTIFIER/DATABASE/SLOT` of the Postrider that writes the stream.
    pub const OWNER: &str = "postrider_owner";
    /// `exclusive` or `shared`.
    pub const WRITERS: &str = "postrider_writers";
    /// The outbox tables that are routed here.
    pub const TABLES: &str = "postrider_tables";
}

/// JetStream's default window, and the least that is worth having.
pub const DEFAULT_DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// The fields of a stream's configuration that we look at (STREAM.INFO, `config`).
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StreamConfig {
    /// Name of the stream.
    pub name: String,
    /// Patterns whose messages it takes; empty for a mirror.
    pub subjects: Vec<String>,
    /// `limits`, `interest` or `workqueue`.
    pub retention: String,
    /// `file` or `memory`.
    pub storage: String,
    /// `old` or `new`: what gives way at a limit.
    pub discard: String,
    /// Most messages, -1 for no limit.
    pub max_msgs: i64,
    /// Most bytes, -1 for no limit.
    pub max_bytes: i64,
    /// Oldest message in nanoseconds, 0 for no limit.
    pub max_age: i64,
    /// Most messages of one subject, -1 for no limit.
    pub max_msgs_per_subject: i64,
    /// Largest message (headers and payload) in bytes, -1 for no limit of its own.
    pub max_msg_size: i64,
    /// Copies of each message.
    pub num_replicas: u32,
    /// Stores without an ack.
    pub no_ack: bool,
    /// Takes no more messages, for ever.
    pub sealed: bool,
    /// How long ids are remembered, nanoseconds.
    pub duplicate_window: i64,
    /// `async`: acks before the write (2.12 and later).
    pub persist_mode: Option<String>,
    /// Annotations; ours begin with `postrider_`.
    pub metadata: BTreeMap<String, String>,
    pub(crate) mirror: Option<IgnoredAny>,
    pub(crate) sources: Option<Vec<IgnoredAny>>,
    pub(crate) republish: Option<IgnoredAny>,
    pub(crate) subject_transform: Option<IgnoredAny>,
}

impl StreamConfig {
    /// The owner that `setup` wrote.
    #[must_use]
    pub fn owner(&self) -> Option<&str> {
        self.metadata.get(metadata::OWNER).map(String::as_str)
    }

    /// Who writes the stream by its own metadata.
    #[must_use]
    pub fn writers(&self) -> Option<Writers> {
        match self.metadata.get(metadata::WRITERS)?.as_str() {
            "exclusive" => Some(Writers::Exclusive),
            "shared" => Some(Writers::Shared),
            _ => None,
        }
    }

    /// The dedup window.
    #[must_use]
    pub fn duplicate_window(&self) -> Duration {
        Duration::from_nanos(u64::try_from(self.duplicate_window).unwrap_or_default())
    }

    /// The stream's own limit for one message, headers included; `None` without one.
    #[must_use]
    pub fn max_message_bytes(&self) -> Option<u64> {
        u64::try_from(self.max_msg_size).ok().filter(|&max| max > 0)
    }

    /// Whether one of the stream's patterns takes everything that `pattern` can match.
    #[must_use]
    pub fn takes(&self, pattern: &str) -> bool {
        self.subjects.iter().any(|subject| covers(subject, pattern))
    }
}

/// How `setup` writes [`Writers`] into metadata and messages.
#[must_use]
pub const fn writers_name(writers: Writers) -> &'static str {
    match writers {
        Writers::Exclusive => "exclusive",
        Writers::Shared => "shared",
    }
}

/// One thing found out about a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It was there and is as wanted.
    Found(String),
    /// It was made or changed now.
    Made(String),
    /// It differs from what `setup` would make and was left alone.
    Left(String),
    /// It works, with a risk.
    Warn(Concern),
    /// It would lose or refuse rows.
    Refuse(Concern),
}

/// A field of a stream's configuration that endangers rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Concern {
    /// The field as STREAM.INFO names it.
    pub field: &'static str,
    /// What stands there and what it leads to.
    pub reason: String,
    /// How to cure it.
    pub cure: String,
}

impl std::fmt::Display for Concern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}; {}", self.field, self.reason, self.cure)
    }
}

/// Looks at a configuration for the given writers. `patterns` are the subjects that we publish
/// to, with `*` and `>` where a template takes a value from the row.
///
/// Refusals come first.
#[must_use]
pub fn check_stream(config: &StreamConfig, writers: Writers, patterns: &[String]) -> Vec<Finding> {
    let mut findings = refusals(config, writers);
    if config.mirror.is_none() {
        findings.extend(
            patterns
                .iter()
                .filter_map(|pattern| check_pattern(config, pattern)),
        );
    }
    findings.extend(warnings(config));
    findings
}

fn check_pattern(config: &StreamConfig, pattern: &str) -> Option<Finding> {
    if config.takes(pattern) {
        return None;
    }
    let subjects: Vec<String> = config
        .subjects
        .iter()
        .map(|text| format!("`{text}`"))
        .collect();
    let subjects = subjects.join(", ");
    let cure = format!(
        "nats stream edit {} --subjects=... with `{pattern}` in it, or change the subject template",
        config.name
    );
    if config
        .subjects
        .iter()
        .any(|subject| overlaps(subject, pattern))
    {
        let reason = format!("{subjects} take only a part of `{pattern}`; other rows must wait");
        return Some(warn("subjects", reason, cure));
    }
    Some(refuse(
        "subjects",
        format!("{subjects} do not take `{pattern}`"),
        cure,
    ))
}

/// The refusals among findings, for one line.
pub(crate) fn refused(findings: &[Finding]) -> Option<String> {
    let refused: Vec<String> = findings
        .iter()
        .filter_map(|finding| match finding {
            Finding::Refuse(concern) => Some(concern.to_string()),
            _ => None,
        })
        .collect();
    (!refused.is_empty()).then(|| refused.join("; "))
}

fn refuse(field: &'static str, reason: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding::Refuse(concern(field, reason, cure))
}

fn warn(field: &'static str, reason: impl Into<String>, cure: impl Into<String>) -> Finding {
    Finding::Warn(concern(field, reason, cure))
}

fn concern(field: &'static str, reason: impl Into<String>, cure: impl Into<String>) -> Concern {
    Concern {
        field,
        reason: reason.into(),
        cure: cure.into(),
    }
}

fn refusals(config: &StreamConfig, writers: Writers) -> Vec<Finding> {
    let name = &config.name;
    let mut findings = Vec::new();
    let exclusive = writers == Writers::Exclusive;
    if config.no_ack {
        findings.push(refuse(
            "no_ack",
            "true: the stream never acknowledges, so nothing could ever be confirmed",
            format!("nats stream edit {name} --ack"),
        ));
    }
    if config.sealed {
        findings.push(refuse(
            "sealed",
            "true: the stream takes no more messages",
            "a sealed stream cannot be opened again; name another stream",
        ));
    }
    if config.mirror.is_some() {
        findings.push(refuse(
            "mirror",
            "the stream copies another one and takes no messages itself",
            "name the stream that is mirrored",
        ));
    }
    if config.retention == "interest" {
        findings.push(refuse(
            "retention",
            "interest: messages are acknowledged without being stored when no consumer exists",
            "use a stream with retention=limits",
        ));
    }
    if config.retention == "workqueue" && exclusive {
        findings.push(refuse(
            "retention",
            "workqueue: consumed messages vanish, so the stream's tail cannot tell where to resume",
            "use retention=limits, or writers = \"shared\"",
        ));
    }
    if config.sources.as_ref().is_some_and(|list| !list.is_empty()) && exclusive {
        findings.push(refuse(
            "sources",
            "the stream takes in messages of other streams, so Postrider is not its only writer",
            "remove the sources, or set writers = \"shared\"",
        ));
    }
    if config.persist_mode.as_deref() == Some("async") {
        findings.push(refuse(
            "persist_mode",
            "async: acks come before the write, so a confirmed row may not be stored",
            format!("nats stream edit {name} --persist-mode default"),
        ));
    }
    findings
}

fn warnings(config: &StreamConfig) -> Vec<Finding> {
    let name = &config.name;
    let mut findings = Vec::new();
    if config.storage == "memory" {
        findings.push(warn(
            "storage",
            "memory: everything is gone when the server restarts",
            "use a stream with storage=file",
        ));
    }
    if config.num_replicas == 1 {
        findings.push(warn(
            "num_replicas",
            "1: a lost disk loses the stream, and a power cut up to 2 minutes of acknowledged rows",
            format!("in a cluster: nats stream edit {name} --replicas=3"),
        ));
    } else if config.num_replicas.is_multiple_of(2) && config.num_replicas > 0 {
        findings.push(warn(
            "num_replicas",
            format!(
                "{}: an even number tolerates no more losses than one less",
                config.num_replicas
            ),
            format!("nats stream edit {name} --replicas=3"),
        ));
    }
    findings.extend(limit_warnings(config));
    findings.extend(routing_warnings(config));
    findings
}

/// What happens to a row that is sent again by a new process while its message is gone. A process
/// that sent it before knows better. (`max_age` needs no such warning: JetStream refuses a
/// duplicate window that is longer.)
const DUPLICATE_OF_NOTHING: &str = "a row whose ack was lost with the streamer waits until the \
    duplicate window has passed, and is then stored a second time";

/// What makes messages or ids vanish, or rows wait.
fn limit_warnings(config: &StreamConfig) -> Vec<Finding> {
    let name = &config.name;
    let mut findings = Vec::new();
    let limited = config.max_msgs > 0 || config.max_bytes > 0;
    if config.discard == "old" && (limited || config.max_age > 0) {
        findings.push(warn(
            "discard",
            "old, with a limit: the oldest messages vanish whether they were read or not",
            "raise max_msgs, max_bytes and max_age above what consumers may lag behind",
        ));
    }
    if config.discard == "new" && limited {
        findings.push(warn(
            "discard",
            "new, with a limit: at the limit rows wait in PostgreSQL and WAL piles up",
            "watch the stream's size against max_msgs and max_bytes",
        ));
    }
    if config.max_msgs_per_subject > 0 {
        findings.push(warn(
            "max_msgs_per_subject",
            format!(
                "{}: older messages of a subject vanish; {DUPLICATE_OF_NOTHING}",
                config.max_msgs_per_subject
            ),
            format!("nats stream edit {name} --max-msgs-per-subject=-1"),
        ));
    }
    if config.duplicate_window() < DEFAULT_DUPLICATE_WINDOW {
        findings.push(warn(
            "duplicate_window",
            format!(
                "{} s: a row sent again after a longer outage may be stored twice",
                config.duplicate_window().as_secs_f64()
            ),
            format!("nats stream edit {name} --dupe-window=2m (about 200 bytes of RAM per id)"),
        ));
    }
    if config.retention == "workqueue" {
        findings.push(warn(
            "retention",
            format!(
                "workqueue: ids of consumed messages are forgotten when the server restarts, and \
                 {DUPLICATE_OF_NOTHING}"
            ),
            "use retention=limits where consumers do not deduplicate themselves",
        ));
    }
    findings
}

/// What sends messages to other places than they were meant for.
fn routing_warnings(config: &StreamConfig) -> Vec<Finding> {
    let mut findings = Vec::new();
    if config.republish.is_some() {
        findings.push(warn(
            "republish",
            "messages are also sent out to other subjects",
            "see that no other stream takes them by mistake",
        ));
    }
    if config.subject_transform.is_some() {
        findings.push(warn(
            "subject_transform",
            "messages are stored under other subjects than they were sent to",
            "see that consumers filter by the new subjects",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(extra: &str) -> StreamConfig {
        let text = format!(
            r#"{{"name":"S","subjects":["outbox.>"],"retention":"limits","storage":"file",
                "discard":"old","max_msgs":-1,"max_bytes":-1,"max_age":0,"num_replicas":3,
                "max_msgs_per_subject":-1,"max_msg_size":-1,"duplicate_window":120000000000,
                "from_the_future":{{"x":1}}{extra}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    fn fields(extra: &str, writers: Writers) -> (Vec<&'static str>, Vec<&'static str>) {
        let base: serde_json::Value = serde_json::from_str(&format!("{{{extra}}}")).unwrap();
        let mut config = serde_json::json!({
            "name": "S", "subjects": ["outbox.>"], "retention": "limits", "storage": "file",
            "discard": "old", "max_msgs": -1, "num_replicas": 3,
            "duplicate_window": 120_000_000_000_i64,
        });
        for (key, value) in base.as_object().unwrap() {
            config[key] = value.clone();
        }
        let config: StreamConfig = serde_json::from_value(config).unwrap();
        let (mut refused, mut warned) = (Vec::new(), Vec::new());
        for finding in check_stream(&config, writers, &["outbox.>".to_owned()]) {
            match finding {
                Finding::Refuse(concern) => refused.push(concern.field),
                Finding::Warn(concern) => warned.push(concern.field),
                other => panic!("{other:?}"),
            }
        }
        (refused, warned)
    }

    #[test]
    fn what_setup_makes_is_fine() {
        let config = config("");
        assert!(config.takes("outbox.orders.*"));
        assert_eq!(config.max_message_bytes(), None);
        let found = check_stream(&config, Writers::Exclusive, &["outbox.>".to_owned()]);
        assert_eq!(found, []);
    }

    #[test]
    fn each_danger_is_named_by_its_field() {
        use Writers::{Exclusive, Shared};
        for (extra, writers, refused) in [
            (r#""no_ack":true"#, Shared, "no_ack"),
            (r#""sealed":true"#, Shared, "sealed"),
            (r#""mirror":{"name":"X"},"subjects":[]"#, Shared, "mirror"),
            (r#""retention":"interest""#, Shared, "retention"),
            (r#""retention":"workqueue""#, Exclusive, "retention"),
            (r#""sources":[{"name":"X"}]"#, Exclusive, "sources"),
            (r#""persist_mode":"async""#, Exclusive, "persist_mode"),
            (r#""subjects":["outbox"]"#, Exclusive, "subjects"),
        ] {
            assert_eq!(fields(extra, writers).0, [refused], "{extra}");
        }
        for (extra, warned) in [
            (r#""subjects":["outbox.*"]"#, "subjects"),
            (r#""subjects":["outbox.a.b"]"#, "subjects"),
            (r#""storage":"memory""#, "storage"),
            (r#""num_replicas":1"#, "num_replicas"),
            (r#""num_replicas":2"#, "num_replicas"),
            (r#""max_age":1"#, "discard"),
            (r#""discard":"new","max_bytes":5"#, "discard"),
            (r#""max_msgs_per_subject":1"#, "max_msgs_per_subject"),
            (r#""duplicate_window":1000000000"#, "duplicate_window"),
            (r#""retention":"workqueue""#, "retention"),
            (r#""republish":{"dest":"x"}"#, "republish"),
            (r#""subject_transform":{"dest":"x"}"#, "subject_transform"),
        ] {
            assert_eq!(fields(extra, Shared), (vec![], vec![warned]), "{extra}");
        }
        let none = (vec![], vec![]);
        assert_eq!(fields(r#""sources":[]"#, Exclusive), none);
        assert_eq!(fields(r#""sources":[{"name":"X"}]"#, Shared), none);
        assert_eq!(fields(r#""mirror":null"#, Shared), none);
    }
}
