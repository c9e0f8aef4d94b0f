//! The commands, one module each.

pub mod dead_letters;
pub mod run;
pub mod setup;
pub mod status;
pub mod teardown;
