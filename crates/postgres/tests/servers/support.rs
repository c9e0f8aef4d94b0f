//! Servers, and the little of pgoutput that these tests read.

use std::time::Duration;

use pgoutput::{Frame, Lsn};
use postrider_postgres::{ConnectConfig, Environment, PgError, WalStream};
use testbed::{PgVersion, Postgres};

/// Long enough for a busy machine; reached only by a failing test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const PASSWORD: &str = "S3CR3T@/:#%{\\ x";

/// A server with a database `shop` and a role `relay` that may replicate and has a difficult
/// password, checked by SCRAM.
pub(crate) async fn server(version: PgVersion) -> Postgres {
    let postgres = Postgres::builder()
        .version(version)
        .auth("scram-sha-256")
        .start()
        .await
        .unwrap();
    postgres.create_database("shop").await.unwrap();
    let password = PASSWORD.replace('\'', "''");
    let role = format!(
        "CREATE ROLE relay LOGIN REPLICATION PASSWORD '{password}'; \
         GRANT CREATE ON DATABASE shop TO relay; GRANT CREATE ON SCHEMA public TO relay;"
    );
    postgres.sql("shop", &role).await.unwrap();
    postgres
}

pub(crate) fn parse(url: &str) -> ConnectConfig {
    ConnectConfig::parse_in(url, &Environment::default()).unwrap()
}

/// As the role `relay` over TCP.
pub(crate) fn relay(postgres: &Postgres) -> ConnectConfig {
    parse(&postgres.url_as("relay", PASSWORD, "shop"))
}

/// As superuser over the Unix socket.
pub(crate) fn superuser(postgres: &Postgres) -> ConnectConfig {
    let socket = postgres
        .socket_dir()
        .display()
        .to_string()
        .replace('/', "%2F");
    parse(&format!(
        "postgres://postgres@{socket}:{}/shop",
        postgres.port()
    ))
}

/// The end of a transaction, if this is a pgoutput Commit: the byte `C`, flags, the position of
/// the commit, the position after it.
pub(crate) fn commit_end(frame: &Frame) -> Option<Lsn> {
    let Frame::WalData { data, .. } = frame else {
        return None;
    };
    let end = data.get(10..18).filter(|_| data.first() == Some(&b'C'))?;
    Some(Lsn::new(u64::from_be_bytes(end.try_into().ok()?)))
}

/// Whether this is a pgoutput Insert.
pub(crate) fn is_insert(frame: &Frame) -> bool {
    matches!(frame, Frame::WalData { data, .. } if data.first() == Some(&b'I'))
}

/// Receives until `commits` transactions with rows have ended; gives the number of rows and the
/// last end. Server 14 also sends transactions without rows.
pub(crate) async fn receive(
    stream: &mut WalStream,
    commits: usize,
) -> Result<(usize, Lsn), PgError> {
    let (mut rows, mut rows_before, mut seen, mut end) = (0, 0, 0, Lsn::ZERO);
    let mut frames = Vec::new();
    while seen < commits {
        frames.clear();
        tokio::time::timeout(PATIENCE, stream.next_frames(&mut frames, 1, usize::MAX))
            .await
            .expect("the transactions arrive")?;
        for frame in &frames {
            rows += usize::from(is_insert(frame));
            if let Some(position) = commit_end(frame) {
                seen += usize::from(rows > rows_before);
                rows_before = rows;
                end = position;
            }
        }
    }
    Ok((rows, end))
}
