//! SIGTERM and SIGINT.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that ask for an orderly end.
#[derive(Debug)]
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    asked_before: bool,
}

impl Signals {
    pub(super) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            asked_before: false,
        })
    }

    /// The next signal's name. The second one ends the process at once: whoever asks twice does not
    /// want to wait, and nothing is lost by it but the last confirmation.
    pub(super) async fn next(&mut self) -> &'static str {
        let (name, number) = tokio::select! {
            _ = self.terminate.recv() => ("SIGTERM", 15),
            _ = self.interrupt.recv() => ("SIGINT", 2),
        };
        if std::mem::replace(&mut self.asked_before, true) {
            tracing::warn!(signal = name, "asked twice: leaving at once");
            std::process::exit(128 + number);
        }
        name
    }
}
