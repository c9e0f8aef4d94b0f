//! Free loopback ports that stay ours while a server is down.
//!
//! A port from `bind(0)` lies in the range from which the kernel also takes the local ports of
//! outgoing connections, so any client may hold it by the time a killed server wants it back.
//! Ours come from below that range. Against other users of this crate the port is reserved by a
//! UDP socket on the same number: it costs nothing, works across processes and accounts, and the
//! kernel frees it when its owner dies.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use anyhow::{Result, bail};

/// Below the ports of outgoing connections (32768 on Linux, 49152 on macOS).
const FIRST_PORT: u16 = 12_000;
/// How many ports from [`FIRST_PORT`] on are used.
const PORT_COUNT: u16 = 20_000;
/// Tries before giving up: on a machine with half of the ports taken, 64 tries fail once in 1e19.
const TRIES_MAX: u32 = 64;

/// A TCP port on 127.0.0.1 that is reserved for as long as this value lives.
#[derive(Debug)]
pub(crate) struct ReservedPort {
    number: u16,
    _reservation: UdpSocket,
}

impl ReservedPort {
    /// Reserves a port on which nothing listens.
    ///
    /// # Errors
    /// When none was found in [`TRIES_MAX`] tries.
    pub(crate) fn pick() -> Result<Self> {
        for _ in 0..TRIES_MAX {
            let number = random_port();
            let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else {
                continue;
            };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self {
                    number,
                    _reservation: reservation,
                });
            }
        }
        bail!(
            "no free port on 127.0.0.1 between {FIRST_PORT} and {} after {TRIES_MAX} tries",
            FIRST_PORT + PORT_COUNT
        );
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }
}

fn random_port() -> u16 {
    // Each RandomState has its own random keys, which is all the randomness needed here.
    let random = RandomState::new().build_hasher().finish() % u64::from(PORT_COUNT);
    FIRST_PORT + u16::try_from(random).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_ports_differ_and_can_be_listened_on() {
        let ports: Vec<ReservedPort> = (0..50).map(|_| ReservedPort::pick().unwrap()).collect();
        let mut numbers: Vec<u16> = ports.iter().map(ReservedPort::number).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 50);
        for number in numbers {
            assert!((FIRST_PORT..FIRST_PORT + PORT_COUNT).contains(&number));
            TcpListener::bind((Ipv4Addr::LOCALHOST, number)).unwrap();
        }
    }
}
