//! The PostgreSQL side of Postrider: replication session, control connection, setup.
//!
//! Laws of this room:
//! - It decides no position: what is confirmed is an argument of [`WalStream::send_status`].
//! - Both connections go through one URL parser and one connector, so that what works for one
//!   works for the other.
//! - Receiving may be dropped at any await without losing a byte.
//! - No error text carries a secret.

#![warn(missing_docs)]

mod connect;
mod control;
mod dead_letter;
mod error;
mod lag;
mod publication;
mod quote;
mod session;
mod setup;
mod sql;
mod table;
mod turn;
mod url;
mod version;

pub use connect::{PgStream, TlsError, Transport};
pub use control::Control;
pub use dead_letter::{
    DEAD_LETTER_TABLE, DeadLetter, DeadLetterAccess, DeadLetterEntry, DeadLetterFilter,
    DeadLetterFull, DeadLetterStats, LetterTry,
};
pub use error::{Fault, PgError, ServerError, SqlState};
pub use lag::{OpenTransaction, SlotHolder, SlotLag};
pub use publication::{Publication, PublishedTable};
pub use quote::{quote_identifier, quote_literal, quote_qualified};
pub use session::{
    CreatedSlot, Ending, ReplicationSession, SystemIdentity, TextRow, TimelineFork, WalStream,
};
pub use setup::{
    Finding, Look, Object, Outcome, SetupPlan, SetupReport, SlotWait, Watched, check,
    check_slot_name, drop_slot, look, print_sql, replication_refusal, setup, teardown,
};
pub use table::{Column, MAX_COUNTED_ROWS, RowCount, TableInfo, TableKind, TableName};
pub use turn::{TURN, is_turn_timeout};
pub use url::{
    ConnectConfig, DEFAULT_CONNECT_TIMEOUT, DEFAULT_PORT, Environment, Host, HostAddress, Password,
    SessionTarget, TLS_VARIABLES, TlsMode, UrlError, UrlErrors,
};
pub use version::{MIN_SERVER_MAJOR, ServerVersion};
