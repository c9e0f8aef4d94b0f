//! `postrider`: streams a PostgreSQL outbox table to NATS JetStream from the write-ahead log.

use std::process::ExitCode;

use postrider::config::ProcessEnvironment;

fn main() -> ExitCode {
    ExitCode::from(postrider::start(std::env::args_os(), &ProcessEnvironment))
}
