//! Decoder of PostgreSQL's `pgoutput` logical replication messages.
//!
//! To come: the decoder. The types below are what the other rooms already build on.

mod lsn;
mod replication;

pub use lsn::{Lsn, ParseLsnError};
pub use replication::Frame;
