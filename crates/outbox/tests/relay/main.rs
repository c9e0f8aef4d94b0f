//! The relay machine step by step, with literal times: what it does for each thing that happens.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

extern crate postrider_outbox as outbox;

mod confirming;
mod duplicates;
mod ending;
mod epochs;
mod frames;
mod poison;
mod resuming;
mod searching;
mod sessions;
#[path = "../support/mod.rs"]
mod support;
