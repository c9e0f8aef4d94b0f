//! The one ordinary connection that dead letters and checks share.
//!
//! No lock is held while a query waits, and no query waits for ever: when a partition swallows the
//! packets, a connection that gives no answer is let go, and a new session's connection takes its
//! place at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use postgres::{ConnectConfig, Control, Host, PgError};

use crate::config::Settings;

/// How long a query may take. They read the catalog or write one row; locks that others hold on
/// the catalog or on the dead letters are waited for as long.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct SharedControl {
    kept: Mutex<Kept>,
    /// Held by who connects, so that many dead letters make one connection.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Kept {
    control: Option<Arc<Control>>,
    /// The server that worked last; the next attempt begins with it.
    host: Option<Host>,
}

impl SharedControl {
    /// Takes the connection that came with a session.
    pub(super) fn keep(&self, control: Control) {
        let mut kept = self.lock();
        kept.host = Some(control.host().clone());
        kept.control = Some(Arc::new(control));
    }

    /// Whether the server has closed the connection; told once. One that gave no answer was let go
    /// of before, so this is never the end of a connection that a session has outlived.
    pub(super) fn was_closed(&self) -> bool {
        let mut kept = self.lock();
        kept.control.take_if(|it| it.is_closed()).is_some()
    }

    /// How to connect, as of now.
    ///
    /// # Errors
    /// When the password file cannot be read.
    pub(super) fn config(&self, settings: &Settings) -> std::io::Result<ConnectConfig> {
        let config = settings.postgres.connect_config()?;
        Ok(match &self.lock().host {
            Some(host) => config.beginning_with(host),
            None => config,
        })
    }

    /// Does `work` on a connection that works, opened anew if there is none.
    pub(super) async fn with<T>(
        &self,
        settings: &Settings,
        what: &str,
        work: impl AsyncFnOnce(&Control) -> Result<T, PgError>,
    ) -> Result<T, PgError> {
        let control = self.connected(settings).await?;
        match tokio::time::timeout(QUERY_TIMEOUT, work(&control)).await {
            Ok(result) => result,
            Err(_) => {
                self.forget(&control);
                Err(PgError::Timeout {
                    what: what.to_owned(),
                    limit: QUERY_TIMEOUT,
                })
            }
        }
    }

    async fn connected(&self, settings: &Settings) -> Result<Arc<Control>, PgError> {
        let _turn = self.connecting.lock().await;
        if let Some(control) = self.working() {
            return Ok(control);
        }
        let config = self.config(settings).map_err(|error| PgError::Refused {
            what: error.to_string(),
        })?;
        let opened = Control::connect(&config).await?;
        // A session may have brought one meanwhile; then that one stays.
        if let Some(control) = self.working() {
            return Ok(control);
        }
        self.keep(opened);
        self.working().ok_or(PgError::Closed)
    }

    fn working(&self) -> Option<Arc<Control>> {
        let kept = self.lock();
        kept.control.clone().filter(|control| !control.is_closed())
    }

    fn forget(&self, control: &Arc<Control>) {
        let mut kept = self.lock();
        kept.control.take_if(|it| Arc::ptr_eq(it, control));
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
