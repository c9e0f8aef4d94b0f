//! The control connection: ordinary SQL, over the same connector and with the same settings as the
//! replication session.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_postgres::NoTls;
use tokio_postgres::config::SslMode;

use crate::connect::{PgStream, check_target, first_host, pinned_options};
use crate::error::PgError;
use crate::url::{ConnectConfig, Host};
use crate::version::ServerVersion;

/// How long a connection that is no longer wanted may take to say farewell.
const FAREWELL: Duration = Duration::from_secs(1);

/// A parked row must be on disk before its position is confirmed, whatever the role's default.
const CONTROL_OPTIONS: &str = "-c synchronous_commit=on";

/// A connection for SQL. Its task ends with it.
pub struct Control {
    client: tokio_postgres::Client,
    version: ServerVersion,
    backend_pid: i32,
    host: Host,
    /// `user@host:port/database`, for findings.
    shown: String,
    /// Dropped with this value, which tells the connection's task to end.
    _alive: oneshot::Sender<()>,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control")
            .field("backend_pid", &self.backend_pid)
            .finish_non_exhaustive()
    }
}

/// The client library has no public kinds for these; without this, a wrong password file would
/// look like a fault of the program.
fn login_error(error: tokio_postgres::Error, config: &ConnectConfig) -> PgError {
    let cause = std::error::Error::source(&error)
        .map(ToString::to_string)
        .unwrap_or_default();
    if cause == "password missing" {
        return PgError::no_password(&config.user);
    }
    if error.to_string() == "authentication error" {
        return PgError::Auth { reason: cause };
    }
    error.into()
}

impl Control {
    /// Opens a connection to the first fitting host of `config`, announced as the replication
    /// session with `/control` behind it.
    ///
    /// # Errors
    /// What kept the last host tried from serving; see [`PgError::fault`].
    pub async fn connect(config: &ConnectConfig) -> Result<Self, PgError> {
        first_host(config, |stream, host| Self::start(config, stream, host)).await
    }

    async fn start(config: &ConnectConfig, stream: PgStream, host: Host) -> Result<Self, PgError> {
        let mut settings = tokio_postgres::Config::new();
        settings
            .user(config.user.as_str())
            .dbname(config.database.as_str())
            .application_name(format!("{}/control", config.application_name()))
            .options(pinned_options(config, CONTROL_OPTIONS))
            // The stream is as protected as it is to be; nothing is negotiated on top of it.
            .ssl_mode(SslMode::Disable);
        if let Some(password) = config.password_for(&host) {
            settings.password(password.expose());
        }
        let (client, connection) = settings
            .connect_raw(stream, NoTls)
            .await
            .map_err(|error| login_error(error, config))?;
        let version =
            ServerVersion::parse(connection.parameter("server_version").unwrap_or("unknown"))?;
        check_target(
            config,
            &host,
            connection.parameter("in_hot_standby"),
            connection.parameter("default_transaction_read_only"),
        )?;
        let (alive, dropped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        tracing::debug!(%error, "control connection ended");
                    }
                }
                _ = dropped => {
                    // An answer is not awaited: a peer that is gone must not hold the task.
                    let _ = timeout(FAREWELL, connection).await;
                }
            }
        });
        let mut control = Self {
            client,
            version,
            backend_pid: 0,
            shown: config.to_string(),
            host,
            _alive: alive,
        };
        control.backend_pid = control
            .client
            .query_one("SELECT pg_backend_pid()", &[])
            .await?
            .try_get(0)?;
        Ok(control)
    }

    /// The client, for SQL of the caller's own.
    #[must_use]
    pub fn client(&self) -> &tokio_postgres::Client {
        &self.client
    }

    /// The server's version.
    #[must_use]
    pub fn server_version(&self) -> &ServerVersion {
        &self.version
    }

    /// Process id of this connection's backend.
    #[must_use]
    pub fn backend_pid(&self) -> i32 {
        self.backend_pid
    }

    /// The server of the URL's list that this connection leads to.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    pub(crate) fn shown(&self) -> &str {
        &self.shown
    }

    /// Whether the connection is gone.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}
