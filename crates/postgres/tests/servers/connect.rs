//! URLs and authentication, on both connections alike.

use std::net::TcpListener;

use postrider_postgres::{ConnectConfig, Control, Fault, PgError, ReplicationSession};
use testbed::{Postgres, versions_under_test};

use crate::support::{PASSWORD, parse, relay, server};

/// Opens both kinds of connection and closes them.
async fn both(config: &ConnectConfig) -> Result<(), PgError> {
    let control = Control::connect(config).await?;
    control.client().batch_execute("SELECT 1").await?;
    let mut session = ReplicationSession::connect(config).await?;
    session.identify_system().await?;
    session.close().await;
    Ok(())
}

/// A port on which nobody listens.
fn dead_port() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

#[tokio::test]
async fn passwords_of_any_kind_work_and_wrong_ones_do_not_show() {
    for version in versions_under_test().unwrap().postgres {
        let postgres = server(version).await;
        both(&relay(&postgres)).await.unwrap();
        // SASLprep makes one password of these two spellings.
        let sql = "CREATE ROLE sasl LOGIN REPLICATION PASSWORD 'fi1x'; \
                   GRANT CREATE ON DATABASE shop TO sasl;";
        postgres.sql("shop", sql).await.unwrap();
        both(&parse(&postgres.url_as(
            "sasl",
            "\u{fb01}\u{2460}x",
            "shop",
        )))
        .await
        .unwrap();

        let wrong = parse(&postgres.url_as("relay", "WR0NG@x", "shop"));
        for error in [
            Control::connect(&wrong).await.unwrap_err(),
            ReplicationSession::connect(&wrong).await.unwrap_err(),
        ] {
            assert_eq!(error.fault(), Fault::AuthFailed, "{}", error.one_line());
            let shown = format!("{error:?} {}", error.one_line());
            assert!(!shown.contains("WR0NG"), "{shown}");
        }
        let none = parse(&format!(
            "postgres://relay@127.0.0.1:{}/shop",
            postgres.port()
        ));
        let error = ReplicationSession::connect(&none).await.unwrap_err();
        assert!(
            error.one_line().contains("PGPASSWORD"),
            "{}",
            error.one_line()
        );
        let missing = parse(&postgres.url_as("relay", PASSWORD, "nowhere"));
        let error = ReplicationSession::connect(&missing).await.unwrap_err();
        assert_eq!(error.fault(), Fault::DatabaseMissing);
    }
}

#[tokio::test]
async fn md5_and_plain_passwords_work() {
    for version in versions_under_test().unwrap().postgres {
        for method in ["md5", "password"] {
            let postgres = Postgres::builder().version(version).auth(method).start();
            let postgres = postgres.await.unwrap();
            postgres.create_database("shop").await.unwrap();
            let sql = "SET password_encryption = 'md5'; \
                       CREATE ROLE relay LOGIN REPLICATION PASSWORD 'p@ss';";
            postgres.sql("shop", sql).await.unwrap();
            both(&parse(&postgres.url_as("relay", "p@ss", "shop")))
                .await
                .unwrap();
        }
    }
}

#[tokio::test]
async fn unix_sockets_and_lists_of_hosts_work() {
    let version = versions_under_test().unwrap().postgres[0];
    let postgres = server(version).await;
    let (port, dead) = (postgres.port(), dead_port());
    let folder = postgres.socket_dir().display().to_string();
    let encoded = folder.replace('/', "%2F");
    let password = postgres.url_as("relay", PASSWORD, "shop");
    let password = password.split('@').next().unwrap();
    for url in [
        format!("postgres://relay@{encoded}:{port}/shop"),
        format!("postgres://relay@/shop?host={folder}&port={port}"),
        format!("{password}@127.0.0.1:{dead},localhost:{port}/shop"),
        format!("{password}@nowhere.invalid:1,{encoded}:{port}/shop"),
        format!("{password}@name-is-not-resolved:{port}/shop?hostaddr=127.0.0.1"),
        format!("{password}@localhost:{port}/shop?target_session_attrs=primary"),
    ] {
        both(&parse(&url))
            .await
            .unwrap_or_else(|error| panic!("{}", error.one_line()));
    }

    // Nothing answers: the hosts are named, and it is a reason to try again.
    let url = format!("{password}@127.0.0.1:{dead},127.0.0.1:{}/shop", dead_port());
    let error = Control::connect(&parse(&url)).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Unreachable);
    assert!(
        error.one_line().contains("none of the 2"),
        "{}",
        error.one_line()
    );

    // A read-only server is passed over when a writable one is wanted.
    postgres
        .sql(
            "shop",
            "ALTER ROLE relay SET default_transaction_read_only = on",
        )
        .await
        .unwrap();
    both(&parse(&format!("{password}@127.0.0.1:{port}/shop")))
        .await
        .unwrap();
    let url = format!("{password}@127.0.0.1:{port}/shop?target_session_attrs=read-write");
    for error in [
        Control::connect(&parse(&url)).await.unwrap_err(),
        ReplicationSession::connect(&parse(&url)).await.unwrap_err(),
    ] {
        assert_eq!(error.fault(), Fault::NotWritable, "{}", error.one_line());
    }
}

#[tokio::test]
async fn a_server_that_accepts_and_says_nothing_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = parse(&format!(
        "postgres://u:p@127.0.0.1:{port}/d?connect_timeout=1"
    ));
    for error in [
        Control::connect(&config).await.unwrap_err(),
        ReplicationSession::connect(&config).await.unwrap_err(),
    ] {
        assert!(
            matches!(error, PgError::Timeout { .. }),
            "{}",
            error.one_line()
        );
        assert_eq!(error.fault(), Fault::Unreachable);
    }
}
