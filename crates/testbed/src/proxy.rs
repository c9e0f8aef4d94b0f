//! A TCP proxy that does to connections what networks do to them. It knows no protocol, so it
//! stands before either server.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::ports::ReservedPort;

/// The most that is read at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// With a throttle, the pieces are what this time allows, so that it is even.
const THROTTLE_TICK: Duration = Duration::from_millis(20);

/// How often the proxy tries to take its port back when it ends to refuse connections.
const LISTEN_TRIES_MAX: u32 = 100;
/// And how long it waits in between.
const LISTEN_RETRY: Duration = Duration::from_millis(20);

/// The way of bytes through a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From clients to the server.
    ToServer,
    /// From the server to clients.
    ToClient,
    /// Both.
    Both,
}

impl Direction {
    fn covers(self, other: Self) -> bool {
        self == Self::Both || self == other
    }
}

/// What a proxy does to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    Pass,
    /// Connections are accepted and stay, and whatever comes on them is swallowed, as by a
    /// firewall that has forgotten them. Connections that were open stay mute for good, also when
    /// the fault is over: neither side hears of the other again, not even of its end.
    BlackHole,
    /// New connections are refused. Open ones are left alone.
    Refuse,
    /// Nothing is carried this way for now. What is sent meanwhile arrives when the fault is over,
    /// as after a partition of the network.
    Stall(Direction),
    /// Each piece arrives later by so much.
    Delay(Duration),
    /// No more than so many bytes a second, each way of each connection.
    Throttle {
        /// At least 50.
        bytes_per_s: u64,
    },
}

#[derive(Debug)]
struct Shared {
    upstream_port: AtomicU16,
    accepted: AtomicU64,
    connections: Mutex<JoinSet<()>>,
}

impl Shared {
    fn connections(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A proxy on 127.0.0.1 before a server, gone with its connections when dropped. It lives in the
/// tokio runtime that it was started in.
#[derive(Debug)]
pub struct Proxy {
    port: ReservedPort,
    fault: watch::Sender<Fault>,
    shared: Arc<Shared>,
    listener: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy before the server on a port of 127.0.0.1.
    ///
    /// # Errors
    /// When there is no port to listen on.
    pub async fn start(upstream_port: u16) -> Result<Self> {
        let port = ReservedPort::pick()?;
        let shared = Arc::new(Shared {
            upstream_port: AtomicU16::new(upstream_port),
            accepted: AtomicU64::new(0),
            connections: Mutex::default(),
        });
        let (fault, faults) = watch::channel(Fault::Pass);
        let socket = listen(port.number()).await?;
        let serving = serve(socket, port.number(), Arc::clone(&shared), faults);
        let listener = tokio::spawn(async move {
            // Without its port it refuses connections, which the test then says.
            let _ = serving.await;
        });
        Ok(Self {
            port,
            fault,
            shared,
            listener,
        })
    }

    /// Its TCP port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Does this from now on, to open connections as well.
    pub fn set(&self, fault: Fault) {
        self.fault.send_replace(fault);
    }

    /// What it does now.
    #[must_use]
    pub fn fault(&self) -> Fault {
        *self.fault.borrow()
    }

    /// Sends new connections to another server.
    pub fn redirect(&self, upstream_port: u16) {
        self.shared
            .upstream_port
            .store(upstream_port, Ordering::Relaxed);
    }

    /// Closes all open connections, towards both sides.
    pub async fn cut(&self) {
        let mut open = std::mem::take(&mut *self.shared.connections());
        open.shutdown().await;
    }

    /// How many connections it has accepted so far.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How many connections are open, those that a black hole holds included.
    #[must_use]
    pub fn open(&self) -> usize {
        let mut connections = self.shared.connections();
        while connections.try_join_next().is_some() {}
        connections.len()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.abort();
        self.shared.connections().abort_all();
    }
}

/// Takes the port, which connections of an earlier listener may still hold for a moment.
async fn listen(port: u16) -> Result<TcpListener> {
    for _ in 1..LISTEN_TRIES_MAX {
        if let Ok(socket) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            return Ok(socket);
        }
        tokio::time::sleep(LISTEN_RETRY).await;
    }
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
        Ok(socket) => Ok(socket),
        Err(error) => bail!("the proxy cannot listen on port {port}: {error}"),
    }
}

/// Accepts connections; while they are to be refused, nothing listens.
async fn serve(
    mut socket: TcpListener,
    port: u16,
    shared: Arc<Shared>,
    mut faults: watch::Receiver<Fault>,
) -> Result<()> {
    loop {
        if *faults.borrow_and_update() == Fault::Refuse {
            drop(socket);
            faults.wait_for(|fault| *fault != Fault::Refuse).await?;
            socket = listen(port).await?;
        }
        tokio::select! {
            changed = faults.changed() => changed?,
            accepted = socket.accept() => {
                let Ok((client, _)) = accepted else { continue };
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                let upstream = shared.upstream_port.load(Ordering::Relaxed);
                let carrying = carry(client, upstream, faults.clone());
                let mut connections = shared.connections();
                while connections.try_join_next().is_some() {}
                connections.spawn(carrying);
            }
        }
    }
}

/// Why a connection is carried no further.
#[derive(Debug)]
struct Broken;

/// One connection, until both sides have closed it or one has broken it.
async fn carry(client: TcpStream, upstream_port: u16, mut faults: watch::Receiver<Fault>) {
    if *faults.borrow_and_update() == Fault::BlackHole {
        // The server never hears of it, and the client has the handshake of its own kernel.
        let (from_client, _to_client) = client.into_split();
        return swallow(from_client).await;
    }
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, upstream_port)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let there = pump(from_client, to_server, Direction::ToServer, faults.clone());
    let back = pump(from_server, to_client, Direction::ToClient, faults);
    let _ = tokio::try_join!(there, back);
}

/// Carries bytes one way, to the end of the stream.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    direction: Direction,
    mut faults: watch::Receiver<Fault>,
) -> Result<(), Broken> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let fault = *faults.borrow_and_update();
        let limit = match fault {
            Fault::BlackHole => return swallow(from).await,
            Fault::Stall(stalled) if stalled.covers(direction) => {
                faults.changed().await.map_err(|_| Broken)?;
                continue;
            }
            Fault::Throttle { bytes_per_s } => {
                let share = bytes_per_s * u64::try_from(THROTTLE_TICK.as_millis()).unwrap_or(1);
                usize::try_from(share / 1000)
                    .unwrap_or(CHUNK_BYTES)
                    .clamp(1, CHUNK_BYTES)
            }
            _ => CHUNK_BYTES,
        };
        let Some(room) = buffer.get_mut(..limit) else {
            return Err(Broken);
        };
        let count = tokio::select! {
            biased;
            changed = faults.changed() => {
                changed.map_err(|_| Broken)?;
                continue;
            }
            count = from.read(room) => count.map_err(|_| Broken)?,
        };
        match fault {
            Fault::Delay(time) => tokio::time::sleep(time).await,
            Fault::Throttle { .. } => tokio::time::sleep(THROTTLE_TICK).await,
            _ => {}
        }
        if count == 0 {
            to.shutdown().await.map_err(|_| Broken)?;
            return Ok(());
        }
        let piece = buffer.get(..count).ok_or(Broken)?;
        tokio::select! {
            biased;
            written = to.write_all(piece) => written.map_err(|_| Broken)?,
            // The receiver reads no more; it must not learn of a black hole by that.
            () = black_hole(&mut faults) => return swallow(from).await,
        }
    }
}

/// Waits until connections are to be swallowed.
async fn black_hole(faults: &mut watch::Receiver<Fault>) {
    let begins = faults.wait_for(|fault| *fault == Fault::BlackHole);
    if begins.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Reads and forgets, and stays when the other side has gone. Never ends.
async fn swallow<T>(mut from: OwnedReadHalf) -> T {
    let mut buffer = vec![0; CHUNK_BYTES];
    while from.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    std::future::pending().await
}
