//! Peers that are not what they should be: a pooler, a server that lies, a server that talks
//! nonsense. Scripted, since no real server does it.

mod calls;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use calls::Caller;
use postgres::{ConnectConfig, Control, Environment, Fault, PgError, ReplicationSession};
use postrider_tests::{Nats, Rng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// `SSLRequest` without its length (PostgreSQL manual, "Message Formats").
const SSL_REQUEST: u32 = 80_877_103;

/// A limit that only a client which is led astray reaches: the connect timeout below is 2 s, for
/// each of two connections.
const BOUND: Duration = Duration::from_secs(20);

/// What a peer says once the client has introduced itself.
#[derive(Debug, Clone)]
enum Say {
    /// These bytes.
    Bytes(Vec<u8>),
    /// These, for ever.
    Endlessly(Vec<u8>),
    /// Offers SCRAM-SHA-256 and then asks for so many iterations.
    Scram(u32),
    /// Waits for one message of the client.
    Listen,
}

/// A server of PostgreSQL's protocol that says the same to everybody, and then waits for the client
/// to go.
async fn peer(script: Vec<Say>) -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let script = Arc::new(script);
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let script = Arc::clone(&script);
            // The client may leave at any point.
            tokio::spawn(async move { act(socket, &script).await });
        }
    });
    Ok(port)
}

async fn act(mut socket: TcpStream, script: &[Say]) -> std::io::Result<()> {
    while read_rest(&mut socket).await? == SSL_REQUEST.to_be_bytes() {
        socket.write_all(b"N").await?;
    }
    for say in script {
        match say {
            Say::Bytes(bytes) => socket.write_all(bytes).await?,
            Say::Endlessly(bytes) => loop {
                socket.write_all(bytes).await?;
            },
            Say::Listen => {
                socket.read_u8().await?;
                read_rest(&mut socket).await?;
            }
            Say::Scram(iterations) => {
                socket
                    .write_all(&authentication(10, b"SCRAM-SHA-256\0\0"))
                    .await?;
                socket.read_u8().await?;
                let first = read_rest(&mut socket).await?;
                let first = String::from_utf8_lossy(&first).into_owned();
                let nonce = first.split("r=").nth(1).unwrap_or_default();
                let answer = format!("r={nonce}x,s=c2FsdA==,i={iterations}");
                socket
                    .write_all(&authentication(11, answer.as_bytes()))
                    .await?;
            }
        }
    }
    tokio::io::copy(&mut socket, &mut tokio::io::sink())
        .await
        .map(drop)
}

/// The rest of a message whose length comes next.
async fn read_rest(socket: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let length = socket.read_u32().await?;
    let mut body = vec![0; usize::try_from(length.saturating_sub(4)).unwrap_or(0)];
    socket.read_exact(&mut body).await?;
    Ok(body)
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

/// `AuthenticationRequest` of this kind.
fn authentication(kind: u32, body: &[u8]) -> Vec<u8> {
    message(b'R', &[&kind.to_be_bytes(), body].concat())
}

fn error(severity: &str, code: &str, text: &str) -> Vec<u8> {
    let fields = format!("S{severity}\0V{severity}\0C{code}\0M{text}\0\0");
    message(b'E', fields.as_bytes())
}

/// A log-in that succeeds, as server 15.
fn welcome() -> Vec<u8> {
    let parameter = |text: &str| message(b'S', text.as_bytes());
    [
        authentication(0, &[]),
        parameter("server_version\x0015.4\0"),
        parameter("client_encoding\0UTF8\0"),
        message(b'K', &[0, 0, 0, 1, 0, 0, 0, 2]),
        message(b'Z', b"I"),
    ]
    .concat()
}

fn url(port: u16) -> String {
    format!("postgres://app:S3CR3T%40x@127.0.0.1:{port}/shop?connect_timeout=2")
}

#[tokio::test]
async fn a_pooler_in_front_is_named_with_the_cure() -> Result<()> {
    let nats = Nats::builder().start().await?;
    let at_once = |code: &str, text: &str| vec![Say::Bytes(error("FATAL", code, text))];
    let prepared = "prepared statement \"s0\" does not exist";
    let scripts = [
        at_once("08P01", "unsupported startup parameter: options"),
        at_once(
            "08P01",
            "unsupported startup parameter in options: bytea_output",
        ),
        at_once("08P01", "unsupported startup parameter: replication"),
        at_once("08P01", "no such database: shop"),
        at_once("08P01", "pgbouncer cannot connect to server"),
        at_once("08P01", "server login failed: wrong password type"),
        at_once("08P01", "query_wait_timeout"),
        // Pooling by transaction, which took the start-up options without a word.
        vec![
            Say::Bytes(welcome()),
            Say::Listen,
            Say::Bytes([error("ERROR", "26000", prepared), message(b'Z', b"I")].concat()),
        ],
    ];
    for script in scripts {
        let caller = Caller::at(&url(peer(script.clone()).await?), &nats.url());
        for command in ["setup", "run"] {
            let words = ["pooler", "connect to PostgreSQL directly"];
            let ended = caller.refused(&[command], 3, &words).await;
            ended.with_context(|| format!("{command}: {script:?}"))?;
        }
    }
    Ok(())
}

/// What both connections make of a peer; a panic would fail the test.
async fn both(port: u16) -> Result<[PgError; 2]> {
    let config = ConnectConfig::parse_in(&url(port), &Environment::default())?;
    let begun = Instant::now();
    let control = Control::connect(&config)
        .await
        .err()
        .context("a control connection")?;
    let session = ReplicationSession::connect(&config)
        .await
        .err()
        .context("a session")?;
    ensure!(begun.elapsed() < BOUND, "it took {:?}", begun.elapsed());
    Ok([control, session])
}

#[tokio::test]
async fn an_iteration_count_that_would_stall_us_is_refused_at_once() -> Result<()> {
    let nats = Nats::builder().start().await?;
    for iterations in [100_001, 2_147_483_647, u32::MAX] {
        let port = peer(vec![Say::Scram(iterations)]).await?;
        for error in both(port).await? {
            ensure!(error.fault() == Fault::AuthFailed, "{}", error.one_line());
            ensure!(
                error.one_line().contains("iteration"),
                "{}",
                error.one_line()
            );
        }
        let caller = Caller::at(&url(port), &nats.url());
        caller.refused(&["setup"], 3, &["iteration"]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn nonsense_from_a_server_is_an_error_within_bounds() -> Result<()> {
    let mut scripts = vec![
        vec![Say::Bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())],
        vec![Say::Bytes(vec![b'R', 0x7f, 0xff, 0xff, 0xff])],
        vec![Say::Bytes(vec![b'R', 0, 0, 0, 0])],
        vec![Say::Bytes(vec![b'E', 0xff, 0xff, 0xff, 0xff, b'M'])],
        vec![Say::Bytes(authentication(5, &[1, 2]))],
        vec![Say::Bytes(authentication(7, &[]))],
        vec![Say::Bytes(authentication(9, &[]))],
        vec![Say::Bytes(authentication(10, &[]))],
        vec![Say::Bytes(authentication(10, b"SCRAM-SHA-999\0\0"))],
        vec![Say::Bytes(authentication(11, b"r=x,s=y,i=1"))],
        vec![Say::Bytes(authentication(12, b"v=x"))],
        vec![Say::Bytes(authentication(0xffff_ffff, &[]))],
        vec![Say::Bytes(message(b'E', b"\xff\xfe\xfd"))],
        vec![Say::Bytes(message(b'Z', b"I"))],
        vec![
            Say::Bytes(authentication(0, &[])),
            Say::Endlessly(message(b'N', b"Mx\0\0")),
        ],
        vec![
            Say::Bytes(authentication(0, &[])),
            Say::Endlessly(message(b'S', b"a\0b\0")),
        ],
        vec![
            Say::Scram(4096),
            Say::Listen,
            Say::Bytes(authentication(0, &[])),
        ],
        vec![
            Say::Bytes(welcome()),
            Say::Listen,
            Say::Bytes(message(b'D', &[0, 2, 0, 0, 0, 9])),
        ],
    ];
    let mut rng = Rng::new(20);
    for _ in 0..10 {
        let bytes = (0..200).map(|_| u8::try_from(rng.pick(0..256)).unwrap_or(0));
        scripts.push(vec![Say::Bytes(bytes.collect())]);
    }
    for script in scripts {
        let port = peer(script.clone()).await?;
        let config = ConnectConfig::parse_in(&url(port), &Environment::default())?;
        let begun = Instant::now();
        // A session may come about with a server that does all right up to there.
        let control = Control::connect(&config).await.err();
        let session = ReplicationSession::connect(&config).await;
        let session = match session {
            Ok(mut session) => session.identify_system().await.err(),
            Err(error) => Some(error),
        };
        ensure!(begun.elapsed() < BOUND, "{script:?}: {:?}", begun.elapsed());
        for error in [control, session] {
            let text = error
                .with_context(|| format!("{script:?} was believed"))?
                .one_line();
            ensure!(!text.contains("S3CR3T"), "{text}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn nonsense_from_a_nats_server_is_an_error_within_bounds() -> Result<()> {
    let postgres = postrider_tests::Postgres::builder().start().await?;
    postgres.create_database("shop").await?;
    let url = postgres.url("shop");
    for script in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        b"INFO {\r\n".to_vec(),
        b"INFO {}\r\n".to_vec(),
        b"INFO {\"max_payload\":-1,\"port\":99999999}\r\n".to_vec(),
        b"-ERR 'no'\r\n".to_vec(),
        vec![0; 1024],
        vec![b'x'; 1024 * 1024],
        b"INFO {\"nonce\":\"\\u0000\",\"auth_required\":true}\r\nMSG a b c d e\r\n".to_vec(),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let place = format!("nats://S3CR3T%40x@{}", listener.local_addr()?);
        let words = script.clone();
        let server = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let _ = socket.write_all(&words).await;
                let mut heard = [0; 1024];
                let _ = socket.read(&mut heard).await;
            }
        });
        let begun = Instant::now();
        let ended = Caller::at(&url, &place).finish(&["setup", "-vv"]).await?;
        server.abort();
        let what = String::from_utf8_lossy(script.get(..20).unwrap_or(&script)).into_owned();
        ensure!(begun.elapsed() < BOUND, "{what}: {:?}", begun.elapsed());
        ensure!(matches!(ended.code, Some(1 | 3)), "{what}: {ended:?}");
        let said = format!("{}{}", ended.stdout, ended.stderr);
        ensure!(
            !said.contains("panicked") && !said.contains("S3CR3T"),
            "{what}: {said}"
        );
    }
    Ok(())
}
