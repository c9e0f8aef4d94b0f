//! What the proxy does to connections.

// A test says by a panic that it failed; so do its helpers.
#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use postrider_testbed::{Direction, Fault, Progress, Proxy, wait_until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LIMIT: Duration = Duration::from_secs(20);

/// Long enough for bytes to arrive on a busy machine if they are on their way.
const A_WHILE: Duration = Duration::from_millis(300);

/// A proxy before a server that sends everything back.
async fn before_an_echo() -> Proxy {
    let echo = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = echo.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = echo.accept().await {
            tokio::spawn(async move {
                let (mut from, mut to) = socket.into_split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    Proxy::start(port).await.unwrap()
}

async fn open(proxy: &Proxy) -> TcpStream {
    TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port()))
        .await
        .unwrap()
}

/// What comes back, or `None` when nothing does.
async fn said_back(socket: &mut TcpStream, word: &[u8], patience: Duration) -> Option<Vec<u8>> {
    socket.write_all(word).await.ok()?;
    heard(socket, word.len(), patience).await
}

async fn heard(socket: &mut TcpStream, count: usize, patience: Duration) -> Option<Vec<u8>> {
    let mut answer = vec![0; count];
    let reading = tokio::time::timeout(patience, socket.read_exact(&mut answer));
    reading.await.ok()?.ok()?;
    Some(answer)
}

#[tokio::test]
async fn bytes_pass_and_ends_of_streams_too() {
    let proxy = before_an_echo().await;
    let mut socket = open(&proxy).await;
    assert_eq!(
        said_back(&mut socket, b"hello", LIMIT).await.unwrap(),
        b"hello"
    );
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
    socket.shutdown().await.unwrap();
    let mut rest = Vec::new();
    socket.read_to_end(&mut rest).await.unwrap();
    wait_until(LIMIT, "the connection to be gone", async || {
        Ok(Progress::when(proxy.open() == 0, || {
            proxy.open().to_string()
        }))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_black_hole_swallows_for_good_and_new_connections_work_after_it() {
    let proxy = before_an_echo().await;
    let mut before = open(&proxy).await;
    assert!(said_back(&mut before, b"hello", LIMIT).await.is_some());
    proxy.set(Fault::BlackHole);
    let mut within = open(&proxy).await;
    for socket in [&mut before, &mut within] {
        assert_eq!(said_back(socket, b"lost", A_WHILE).await, None);
    }
    proxy.set(Fault::Pass);
    for socket in [&mut before, &mut within] {
        assert_eq!(said_back(socket, b"lost", A_WHILE).await, None);
    }
    let mut after = open(&proxy).await;
    assert!(said_back(&mut after, b"hello", LIMIT).await.is_some());
    proxy.cut().await;
    for socket in [&mut before, &mut within, &mut after] {
        let mut buffer = [0; 8];
        let ended = tokio::time::timeout(LIMIT, socket.read(&mut buffer)).await;
        assert!(matches!(ended.unwrap(), Ok(0) | Err(_)));
    }
}

#[tokio::test]
async fn what_a_stall_holds_back_arrives_after_it() {
    let proxy = before_an_echo().await;
    let mut socket = open(&proxy).await;
    for direction in [Direction::ToServer, Direction::ToClient, Direction::Both] {
        assert!(said_back(&mut socket, b"hello", LIMIT).await.is_some());
        proxy.set(Fault::Stall(direction));
        assert_eq!(said_back(&mut socket, b"later", A_WHILE).await, None);
        proxy.set(Fault::Pass);
        assert_eq!(heard(&mut socket, 5, LIMIT).await.unwrap(), b"later");
    }
}

#[tokio::test]
async fn refused_is_refused_and_open_connections_go_on() {
    let proxy = before_an_echo().await;
    let mut open_one = open(&proxy).await;
    // Until it is answered, a connection may wait to be accepted, and is refused with the rest.
    assert!(said_back(&mut open_one, b"hello", LIMIT).await.is_some());
    proxy.set(Fault::Refuse);
    wait_until(LIMIT, "a refusal", async || {
        let tried = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await;
        Ok(Progress::when(tried.is_err(), String::new))
    })
    .await
    .unwrap();
    assert!(said_back(&mut open_one, b"hello", LIMIT).await.is_some());
    proxy.set(Fault::Pass);
    wait_until(LIMIT, "the port to be back", async || {
        let tried = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).await;
        Ok(Progress::when(tried.is_ok(), String::new))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn delays_and_throttles_take_their_time() {
    let proxy = before_an_echo().await;
    let mut socket = open(&proxy).await;
    proxy.set(Fault::Delay(Duration::from_millis(100)));
    let begun = Instant::now();
    assert!(said_back(&mut socket, b"hello", LIMIT).await.is_some());
    assert!(
        begun.elapsed() >= Duration::from_millis(200),
        "there and back"
    );
    proxy.set(Fault::Throttle {
        bytes_per_s: 10_000,
    });
    let begun = Instant::now();
    assert!(said_back(&mut socket, &[b'x'; 5000], LIMIT).await.is_some());
    assert!(
        begun.elapsed() >= Duration::from_millis(450),
        "{:?}",
        begun.elapsed()
    );
}

#[tokio::test]
async fn a_redirected_proxy_sends_new_connections_elsewhere() {
    let proxy = before_an_echo().await;
    let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    proxy.redirect(other.local_addr().unwrap().port());
    let mut socket = open(&proxy).await;
    let (mut there, _) = tokio::time::timeout(LIMIT, other.accept())
        .await
        .unwrap()
        .unwrap();
    there.write_all(b"elsewhere").await.unwrap();
    assert_eq!(heard(&mut socket, 9, LIMIT).await.unwrap(), b"elsewhere");
}
