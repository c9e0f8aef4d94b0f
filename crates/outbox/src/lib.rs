//! The decisions of Postrider, without IO.

mod broker;
mod position;
mod source;

pub use broker::{
    BrokerFault, BrokerFaultKind, EpochEnd, EpochStart, Headers, Outgoing, PubAck, ReadBack,
    Refusal, StoredRow, Tail, Token, Writers, header,
};
pub use position::{ParsePositionError, Position, Source};
pub use source::{Fork, SessionStart, SourceFault, SourceFaultKind, StatusUpdate};
