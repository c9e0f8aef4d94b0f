//! A nats-server with JetStream.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::TcpStream;

use crate::account::Account;
use crate::artifacts::NatsVersion;
use crate::install::find_nats;
use crate::ports::ReservedPort;
use crate::process::Signal;
use crate::server::{self, Server, Service};
use crate::wait::Progress;

/// How long a start may take: the recovery of large streams takes seconds.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(60);

/// How long [`Nats::stop`] waits.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// How often another port is tried when something took ours between the look and the start.
pub(crate) const PORT_TRIES_MAX: u32 = 5;

/// The server's first line is some hundred bytes long; more is not read.
const INFO_MAX_BYTES: u64 = 64 * 1024;

/// What a [`Nats`] is to be like.
#[derive(Debug, Clone)]
pub struct NatsBuilder {
    version: NatsVersion,
    configuration: String,
    files: Vec<(String, Vec<u8>)>,
}

impl NatsBuilder {
    /// The version; the newest unless said otherwise.
    #[must_use]
    pub fn version(mut self, version: NatsVersion) -> Self {
        self.version = version;
        self
    }

    /// Adds text to the server's configuration file: accounts, TLS, limits. Address and JetStream
    /// store are set already.
    #[must_use]
    pub fn config(mut self, text: &str) -> Self {
        self.configuration.push_str(text);
        self.configuration.push('\n');
        self
    }

    /// Puts a file, such as a certificate, beside the configuration, which can name it without a
    /// folder.
    #[must_use]
    pub fn file(mut self, name: &str, content: impl Into<Vec<u8>>) -> Self {
        self.files.push((name.to_string(), content.into()));
        self
    }

    /// Finds or fetches the server, starts it, and waits until it and its JetStream answer.
    ///
    /// # Errors
    /// When the server can be neither found nor fetched, or does not start; the error then quotes
    /// the end of its log.
    pub async fn start(self) -> Result<Nats> {
        let (account, program) = found(self.version).await?;
        for _ in 1..PORT_TRIES_MAX {
            match self.try_start(account, &program).await {
                Err(error) if is_port_taken(&error) => {}
                result => return result,
            }
        }
        self.try_start(account, &program).await
    }

    async fn try_start(&self, account: Account, program: &Path) -> Result<Nats> {
        let mut nats = self.prepare(account, program)?;
        nats.start_again().await?;
        Ok(nats)
    }

    /// The server with its folder and configuration, not started yet.
    pub(crate) fn prepare(&self, account: Account, program: &Path) -> Result<Nats> {
        let port = ReservedPort::pick()?;
        let what = format!("nats-server {} on port {}", self.version, port.number());
        let mut server = Server::new(what, Some(account), Signal::Kill)?;
        let folder = server.folder().to_path_buf();
        for (name, content) in &self.files {
            fs::write(folder.join(name), content)?;
            account.give(&folder.join(name))?;
        }
        let configuration = format!(
            "listen: \"127.0.0.1:{}\"\njetstream {{ store_dir: \"{}\" }}\n{}",
            port.number(),
            folder.join("store").display(),
            self.configuration
        );
        fs::write(folder.join("nats.conf"), configuration)?;
        account.give(&folder.join("nats.conf"))?;
        let mut command = Command::new(program);
        command.arg("-c").arg(folder.join("nats.conf"));
        command.current_dir(&folder).env("HOME", &folder);
        server.set_command(command, None);
        Ok(Nats {
            version: self.version,
            server,
            port,
        })
    }
}

/// Finds or fetches the server's program.
pub(crate) async fn found(version: NatsVersion) -> Result<(Account, PathBuf)> {
    let prepared = tokio::task::spawn_blocking(move || {
        let account = Account::current()?;
        anyhow::Ok((account, find_nats(version, account)?))
    });
    prepared.await?
}

/// Whether something took a port between the look and the start.
pub(crate) fn is_port_taken(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("address already in use")
}

/// A nats-server on 127.0.0.1 with JetStream and a file store, gone when dropped. Its process is
/// controlled as that of any [`Server`].
#[derive(Debug)]
pub struct Nats {
    version: NatsVersion,
    server: Server,
    port: ReservedPort,
}

/// What the server's first line says about how it is to be spoken to.
#[derive(Debug, serde::Deserialize)]
struct ServerInfo {
    #[serde(default)]
    jetstream: bool,
    #[serde(default)]
    auth_required: bool,
    #[serde(default)]
    tls_required: bool,
}

impl Nats {
    /// Describes a server to start.
    #[must_use]
    pub fn builder() -> NatsBuilder {
        NatsBuilder {
            version: NatsVersion::Newest,
            configuration: String::new(),
            files: Vec::new(),
        }
    }

    /// The version that was asked for.
    #[must_use]
    pub fn version(&self) -> NatsVersion {
        self.version
    }

    /// The TCP port on 127.0.0.1; the same over all starts.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The URL of the server, without credentials.
    #[must_use]
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port())
    }

    /// The folder of the server's configuration, files and store.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.server.folder()
    }

    /// Connects without credentials.
    ///
    /// # Errors
    /// When the server does not accept the connection.
    pub async fn connect(&self) -> Result<async_nats::Client> {
        let connecting = async_nats::connect(self.url());
        connecting
            .await
            .with_context(|| format!("cannot connect to {}", self.url()))
    }

    /// Stops the server in good order and waits until it is gone.
    ///
    /// # Errors
    /// When it does not run, or does not stop in half a minute.
    pub async fn stop(&mut self) -> Result<()> {
        self.server
            .end_by(Signal::Terminate, STOP_LIMIT)
            .await
            .map(drop)
    }

    /// Starts a stopped or killed server on the same port and store, and waits until it answers.
    ///
    /// # Errors
    /// When it runs already or does not start.
    pub async fn start_again(&mut self) -> Result<()> {
        self.server.launch()?;
        self.wait_ready(START_LIMIT).await
    }

    /// A stop and a start.
    ///
    /// # Errors
    /// Those of [`Nats::stop`] and [`Nats::start_again`].
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.start_again().await
    }

    /// Waits until the server accepts connections and JetStream answers. Where a client needs
    /// credentials or TLS, what the server says of JetStream in its first line is enough.
    ///
    /// # Errors
    /// When it ended instead, or time runs out.
    pub async fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        server::wait_ready(self, limit).await
    }

    /// Removes all streams of a stopped server, as a lost disk would.
    ///
    /// # Errors
    /// When the server runs, or the store cannot be removed.
    pub fn wipe_store(&mut self) -> Result<()> {
        if self.is_running() {
            bail!("the store of a running server is not wiped: stop it first");
        }
        let store = self.dir().join("store");
        fs::remove_dir_all(&store).with_context(|| format!("cannot remove {}", store.display()))
    }

    /// Writes the configuration file anew: the given text in place of that of
    /// [`NatsBuilder::config`]. Takes effect with [`Nats::reload`] or the next start.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn set_config(&self, text: &str) -> Result<()> {
        let path = self.dir().join("nats.conf");
        let old = fs::read_to_string(&path)?;
        let head: Vec<&str> = old.lines().take(2).collect();
        fs::write(&path, format!("{}\n{text}\n", head.join("\n")))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// Makes the server read its configuration again (it does so a moment later).
    ///
    /// # Errors
    /// When it does not run.
    pub fn reload(&mut self) -> Result<()> {
        self.server.signal(Signal::Hangup)
    }
}

impl Service for Nats {
    fn server(&mut self) -> &mut Server {
        &mut self.server
    }

    async fn ping(&self) -> Result<Progress<()>> {
        let socket = TcpStream::connect(("127.0.0.1", self.port())).await?;
        let configuration = fs::read_to_string(self.dir().join("nats.conf"))?;
        if configuration.contains("handshake_first") {
            // Such a server says nothing before TLS.
            return Ok(Progress::Done(()));
        }
        let mut line = String::new();
        BufReader::new(socket.take(INFO_MAX_BYTES))
            .read_line(&mut line)
            .await?;
        let text = line
            .strip_prefix("INFO ")
            .context("its first line is not INFO")?;
        let info: ServerInfo = serde_json::from_str(text).context("in its INFO line")?;
        if !info.jetstream {
            return Ok(Progress::NotYet(String::from("JetStream is not there yet")));
        }
        if info.auth_required || info.tls_required {
            return Ok(Progress::Done(()));
        }
        let client = self.connect().await?;
        async_nats::jetstream::new(client)
            .query_account()
            .await
            .context("JetStream")?;
        Ok(Progress::Done(()))
    }
}

impl Deref for Nats {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl DerefMut for Nats {
    fn deref_mut(&mut self) -> &mut Server {
        &mut self.server
    }
}
