//! The decisions of Postrider, without IO.
//!
//! This room turns what PostgreSQL's write-ahead log says into what JetStream is asked to store,
//! and decides what may be confirmed. It holds
//!
//! - the rendering of outbox rows as messages ([`OutboxSpec`], [`Template`]),
//! - the ledger: what may be confirmed, and why no row can be lost,
//! - the relay machine ([`Relay`]), which joins both with the two connections' comings and goings,
//! - the verdicts: retry, poison or stop.
//!
//! # Laws
//!
//! There is no socket, clock, thread or random source here, and nothing waits: time comes in as an
//! [`Instant`](std::time::Instant), work goes out as values. That is what lets a simulator run any
//! number of faulty histories from one seed. Nothing is logged either; what people should know
//! leaves as a [`Notice`].
#![warn(missing_docs)]

mod backoff;
mod broker;
mod ledger;
mod notice;
mod position;
mod relay;
mod render;
mod source;
mod verdict;

pub use broker::{
    BrokerFault, BrokerFaultKind, EpochEnd, EpochStart, Headers, LookBack, LookBackRange, Outgoing,
    PubAck, Reach, ReadBack, ReadNext, Refusal, SeenMessage, StoredRow, Tail, Taker, Token,
    Writers, header,
};
pub use notice::{EpochReason, Level, Notice};
pub use position::{ParsePositionError, Position, Source};
pub use relay::{
    Action, Counters, DeadLetter, HeadRow, OnPoison, OnUnroutable, Relay, RelaySettings,
    RelaySnapshot,
};
pub use render::{
    CommandMessage, OutboxSpec, Part, PoisonReason, ResumeMark, Role, StoredLetter, TableFault,
    TableRow, Template, TemplateError, UnfitRow, check_columns, header_name_fault, id_column,
    ids_may_collide, is_header_name,
};
pub use source::{Fork, SessionStart, SourceFault, SourceFaultKind, StatusUpdate};
pub use verdict::{
    RetryReason, RowVerdict, StopKind, of_end as end_verdict, of_refusal as refusal_verdict,
};
