//! Retry, poison or stop: the one place where it is decided, and what the operator does about it.

use std::time::Duration;

use crate::broker::{BrokerFault, BrokerFaultKind, EpochEnd, Refusal};
use crate::render::PoisonReason;
use crate::source::{SourceFault, SourceFaultKind};

/// JetStream's error codes that decide something (nats-server, `errors.json`).
mod err_code {
    pub(super) const MESSAGE_TOO_LARGE: u32 = 10_054;
    pub(super) const WRONG_STREAM: u32 = 10_060;
    pub(super) const WRONG_LAST_SEQUENCE: u32 = 10_071;
    pub(super) const STREAM_FULL: u32 = 10_077;
    pub(super) const HEADERS_TOO_LARGE: u32 = 10_097;
    pub(super) const DUPLICATE_IN_PROCESS: u32 = 10_158;
    pub(super) const WRONG_LAST_SEQUENCE_CONSTANT: u32 = 10_164;
    pub(super) const TTL_INVALID: u32 = 10_165;
    pub(super) const TTL_DISABLED: u32 = 10_166;
    pub(super) const TOO_MANY_REQUESTS: u32 = 10_167;
    pub(super) const NO_STORAGE: [u32; 4] = [10_002, 10_023, 10_028, 10_047];
}

/// How often a standby asks whether the slot is free. A holder's death frees the slot at once if
/// its host closes the connection, so this is how long a take-over waits.
const STANDBY_RETRY: Duration = Duration::from_secs(2);

/// How often something is tried again that only a person can cure while the process runs, such as
/// a rotated password: often enough to heal by itself, seldom enough not to fill logs.
const SLOW_RETRY: Duration = Duration::from_secs(30);

/// What a fault of one of the servers leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Try again, with the backoff of the connection.
    Retry,
    /// Try again after this time, however often it happened.
    RetryAfter(Duration),
    /// Give up: only a person can go on from here.
    Stop(StopKind),
}

/// Why the relay stops for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StopKind {
    /// It was asked to, and has drained.
    Drained,
    /// Everything up to the target is stored and confirmed.
    CaughtUp,
    /// Slot, publication or table is lost, missing or changed.
    SlotLost,
    /// A server or its configuration does not allow to begin.
    Refused,
    /// A poison row under the policy `halt`.
    Halted,
    /// What PostgreSQL sent cannot be understood.
    Failed,
    /// The configuration is wrong, which only the tables could tell.
    Misconfigured,
}

/// What a refused publish means for the row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowVerdict {
    /// The row can be stored later.
    Retry(RetryReason),
    /// No stream, or the wrong one, takes the subject.
    Unroutable(String),
    /// The row can never be stored.
    Poison(PoisonReason),
}

/// Why a row has to wait, by name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RetryReason {
    /// Another message took the place in the chain.
    #[error("the stream's last sequence is not the expected one")]
    ChainBroken,
    /// The same id is being stored right now.
    #[error("the dedup id is in process")]
    InProcess,
    /// The stream has reached a limit and discards new messages.
    #[error("the stream is full ({0})")]
    StreamFull(String),
    /// The server or the account has no storage left.
    #[error("JetStream has no storage left ({0})")]
    NoStorage(String),
    /// The server's ingest queue is full.
    #[error("JetStream is overloaded")]
    Overloaded,
    /// An answer that decides nothing.
    #[error("{0}")]
    Other(String),
}

/// Decides about a refused row of `size_bytes`, headers and payload: whether it can be stored
/// later, and if not, why. `limit_bytes` is what server and stream take together.
#[must_use]
pub fn of_refusal(refusal: &Refusal, size_bytes: u64, limit_bytes: u64) -> RowVerdict {
    match refusal {
        Refusal::Api { err_code, .. } if *err_code == err_code::MESSAGE_TOO_LARGE => {
            RowVerdict::Poison(PoisonReason::TooLarge {
                size_bytes,
                limit_bytes,
            })
        }
        Refusal::Api {
            code,
            err_code,
            description,
        } => of_api(*code, *err_code, description),
        Refusal::NoResponders => {
            RowVerdict::Unroutable("no stream takes the subject, or it has no leader".to_owned())
        }
        Refusal::TooManyRequests => RowVerdict::Retry(RetryReason::Overloaded),
        Refusal::TooLarge {
            size_bytes,
            limit_bytes,
        } => {
            let (size_bytes, limit_bytes) = (*size_bytes, *limit_bytes);
            RowVerdict::Poison(PoisonReason::TooLarge {
                size_bytes,
                limit_bytes,
            })
        }
        Refusal::ForeignAck { stream } => {
            RowVerdict::Unroutable(format!("the subject belongs to stream {stream}"))
        }
        Refusal::Malformed { detail } => {
            RowVerdict::Retry(RetryReason::Other(format!("unreadable answer: {detail}")))
        }
    }
}

fn of_api(code: u16, err_code: u32, description: &str) -> RowVerdict {
    let words = || description.to_owned();
    match err_code {
        err_code::HEADERS_TOO_LARGE | err_code::TTL_INVALID | err_code::TTL_DISABLED => {
            RowVerdict::Poison(PoisonReason::Refused {
                err_code,
                description: words(),
            })
        }
        err_code::WRONG_LAST_SEQUENCE | err_code::WRONG_LAST_SEQUENCE_CONSTANT => {
            RowVerdict::Retry(RetryReason::ChainBroken)
        }
        err_code::DUPLICATE_IN_PROCESS => RowVerdict::Retry(RetryReason::InProcess),
        err_code::STREAM_FULL => RowVerdict::Retry(RetryReason::StreamFull(words())),
        err_code::TOO_MANY_REQUESTS => RowVerdict::Retry(RetryReason::Overloaded),
        err_code::WRONG_STREAM => RowVerdict::Unroutable(words()),
        code if err_code::NO_STORAGE.contains(&code) => {
            RowVerdict::Retry(RetryReason::NoStorage(words()))
        }
        _ => RowVerdict::Retry(RetryReason::Other(format!(
            "{description} ({code}/{err_code})"
        ))),
    }
}

/// What the end of an epoch says about the one row that was in flight, with the bytes of its
/// subject and of its headers and payload; `None` where it says nothing. The limits are the
/// server's own, and a client is not told them.
#[must_use]
pub fn of_end(end: &EpochEnd, subject_bytes: usize, size_bytes: u64) -> Option<PoisonReason> {
    match end {
        EpochEnd::MaxPayloadViolation => Some(PoisonReason::TooLarge {
            size_bytes,
            limit_bytes: 0,
        }),
        EpochEnd::Server { detail } if is_control_line(detail) => {
            Some(PoisonReason::SubjectTooLong {
                size_bytes: subject_bytes,
                limit_bytes: 0,
            })
        }
        _ => None,
    }
}

/// The server's words for a protocol line over its `max_control_line` (nats-server, `errors.go`).
fn is_control_line(words: &str) -> bool {
    words
        .to_ascii_lowercase()
        .starts_with("maximum control line")
}

/// Decides about a fault of the replication session. `proven` says that a session has worked in
/// this process before, so that what a start would refuse is taken for something that passes.
pub(crate) fn of_source(fault: &SourceFault, proven: bool) -> Verdict {
    use SourceFaultKind as Kind;
    match fault.kind {
        Kind::Unreachable | Kind::Restarting | Kind::TooManyConnections => Verdict::Retry,
        Kind::SlotHeld => Verdict::RetryAfter(STANDBY_RETRY),
        Kind::SlotMissing
        | Kind::SlotLost
        | Kind::PublicationMissing
        | Kind::PublicationUnfit
        | Kind::TableChanged => Verdict::Stop(StopKind::SlotLost),
        Kind::Authentication | Kind::Permission | Kind::Unfit if proven => {
            Verdict::RetryAfter(SLOW_RETRY)
        }
        Kind::Authentication | Kind::Permission | Kind::Unfit => Verdict::Stop(StopKind::Refused),
        Kind::Protocol => Verdict::Stop(StopKind::Failed),
        Kind::Misconfigured => Verdict::Stop(StopKind::Misconfigured),
    }
}

/// Decides about a fault on the way to a usable stream.
pub(crate) fn of_broker(fault: &BrokerFault, proven: bool) -> Verdict {
    use BrokerFaultKind as Kind;
    match fault.kind {
        Kind::Unreachable | Kind::NoJetStream | Kind::StreamMissing | Kind::StreamUnavailable => {
            Verdict::Retry
        }
        _ if proven => Verdict::RetryAfter(SLOW_RETRY),
        Kind::PermissionDenied => Verdict::Retry,
        Kind::Authentication | Kind::Tls | Kind::StreamUnfit | Kind::OtherOwner => {
            Verdict::Stop(StopKind::Refused)
        }
    }
}
