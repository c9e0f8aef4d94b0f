//! Names to addresses, addresses to sockets, sockets to streams.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream, lookup_host};

use super::{PgStream, Transport, tls};
use crate::error::PgError;
use crate::url::{ConnectConfig, Host, HostAddress, Keepalive, TlsMode};

/// One way to reach a host.
pub(super) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// All addresses of a host, in the resolver's order.
pub(super) async fn addresses(host: &Host) -> Result<Vec<Address>, PgError> {
    let (name, addr) = match &host.address {
        HostAddress::Unix { directory } => {
            let file = directory.join(format!(".s.PGSQL.{}", host.port));
            return Ok(vec![Address::Unix(file)]);
        }
        HostAddress::Tcp { name, addr } => (name, addr),
    };
    if let Some(addr) = addr {
        return Ok(vec![Address::Tcp(SocketAddr::new(*addr, host.port))]);
    }
    let found = lookup_host((name.as_str(), host.port))
        .await
        .map_err(|e| failed(host, e))?;
    let addresses: Vec<Address> = found.map(Address::Tcp).collect();
    if addresses.is_empty() {
        return Err(failed(host, io::Error::other("the name has no address")));
    }
    Ok(addresses)
}

/// A connection, and whether it is encrypted.
pub(super) struct Dialled {
    pub(super) stream: PgStream,
    pub(super) encrypted: bool,
}

fn plain(stream: impl Transport + 'static) -> Dialled {
    Dialled {
        stream: Box::new(stream),
        encrypted: false,
    }
}

/// Connects and, where the URL asks for it, encrypts in this mode.
pub(super) async fn connect(
    config: &ConnectConfig,
    host: &Host,
    address: &Address,
    mode: TlsMode,
) -> Result<Dialled, PgError> {
    match address {
        // As in libpq, `sslmode` says nothing about Unix sockets.
        Address::Unix(path) => {
            let stream = UnixStream::connect(path)
                .await
                .map_err(|e| failed(host, e))?;
            Ok(plain(stream))
        }
        Address::Tcp(address) => {
            let stream = TcpStream::connect(address)
                .await
                .map_err(|e| failed(host, e))?;
            tune(&stream, config.keepalive).map_err(|e| failed(host, e))?;
            if mode == TlsMode::Disable {
                return Ok(plain(stream));
            }
            tls::secure(config, host, stream)
                .await
                .map_err(Box::new)
                .map_err(|source| PgError::Tls {
                    host: host.to_string(),
                    source,
                })
        }
    }
}

/// Status updates are small and urgent, so Nagle's algorithm is off; keepalive is on as in libpq.
fn tune(stream: &TcpStream, settings: Keepalive) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    if !settings.disabled {
        let mut keepalive = TcpKeepalive::new();
        if let Some(idle) = settings.idle {
            keepalive = keepalive.with_time(idle);
        }
        if let Some(interval) = settings.interval {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(count) = settings.count {
            keepalive = keepalive.with_retries(count);
        }
        socket.set_keepalive(true)?;
        if settings.idle.is_some() || settings.interval.is_some() || settings.count.is_some() {
            socket.set_tcp_keepalive(&keepalive)?;
        }
    }
    #[cfg(target_os = "linux")]
    if settings.user_timeout.is_some() {
        socket.set_tcp_user_timeout(settings.user_timeout)?;
    }
    Ok(())
}

fn failed(host: &Host, source: io::Error) -> PgError {
    PgError::Connect {
        host: host.to_string(),
        source,
    }
}
