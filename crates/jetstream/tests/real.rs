//! The publisher against a real nats-server.

#[path = "real/common.rs"]
mod common;
#[path = "real/denied.rs"]
mod denied;
#[path = "real/epochs.rs"]
mod epochs;
#[path = "real/login.rs"]
mod login;
#[path = "real/setup.rs"]
mod setup;
