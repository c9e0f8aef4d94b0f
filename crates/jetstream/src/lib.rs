//! The NATS side of Postrider: the publisher that works in epochs, stream set-up and checks, and
//! reading a stream.
//!
//! Laws of this room:
//! - It never learns what a position means, and never retries: the relay machine decides.
//! - No answer is dropped. Every row handed to an [`Epoch`] ends as acked, refused, or with the
//!   epoch itself.
//! - A connection that carries rows never reconnects: what would be sent after the break would
//!   leave a hole before it.
//! - Secrets stand in no error, no `Debug` and no log line.
#![warn(missing_docs)]

mod ack;
mod api;
mod config;
mod connect;
mod epoch;
mod identity;
mod look_back;
mod options;
mod reader;
mod secret;
mod stored;
mod stream;
mod subject;
mod target;
mod url;

pub use ack::parse_ack;
pub use api::Replica;
pub use config::{
    Concern, DEFAULT_DUPLICATE_WINDOW, Finding, StreamConfig, check_stream, metadata, writers_name,
};
pub use connect::install_crypto_provider;
pub use epoch::{Epoch, EpochEvent, EpochReader, MAX_IN_FLIGHT_ROWS};
pub use look_back::look_back;
pub use options::{NatsOptions, NatsSettings, OptionsFault, OptionsFaults};
pub use reader::StreamReader;
pub use secret::Secret;
pub use stored::StoredMessage;
pub use stream::{ServerFacts, StreamAdmin, StreamState, StreamWanted};
pub use subject::{covers, overlaps};
pub use target::{StreamTarget, is_stream_name};
pub use url::{Server, UrlFault};
