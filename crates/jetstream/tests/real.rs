//! The publisher against a real nats-server.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "clippy.toml allows them in tests, but does not see that helpers of tests are tests"
)]

#[path = "real/common.rs"]
mod common;
#[path = "real/creds.rs"]
mod creds;
#[path = "real/denied.rs"]
mod denied;
#[path = "real/epochs.rs"]
mod epochs;
#[path = "real/login.rs"]
mod login;
#[path = "real/look_back.rs"]
mod look_back;
#[path = "real/setup.rs"]
mod setup;
