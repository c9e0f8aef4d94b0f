//! SIGTERM and SIGINT.
//!
//! They are listened to from the first moment of a command on. Listening replaces what the system
//! does by itself, for good: a signal that nobody waited for would be swallowed. And a process that
//! is the first of its container has no such default: without a handler SIGTERM does nothing.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{CommandError, Exit};

/// The signals that ask for an orderly end.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
    asked_before: bool,
}

impl Signals {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the system refuses a handler.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            asked_before: false,
        })
    }

    /// The next signal's name. The second one ends the process at once: whoever asks twice does not
    /// want to wait, and nothing is lost by it but the last confirmation.
    pub async fn next(&mut self) -> &'static str {
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

    /// Does `work`, unless a signal comes first: then the work is dropped where it stands.
    ///
    /// # Errors
    /// The signal, by its name.
    pub async fn unless_asked<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Asked> {
        tokio::select! {
            biased;
            name = self.next() => Err(Asked(name)),
            result = work => Ok(result),
        }
    }
}

/// A signal that came before the work was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asked(pub &'static str);

impl From<Asked> for CommandError {
    fn from(Asked(name): Asked) -> Self {
        Self::message(
            Exit::Failed,
            format!("stopped by {name} before it was done"),
        )
    }
}
