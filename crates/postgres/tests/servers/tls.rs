//! TLS, with libpq's meaning of each mode.

use std::path::Path;

use postrider_postgres::{ConnectConfig, Control, Fault, PgError, ReplicationSession};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use testbed::{PgVersion, Postgres, versions_under_test};

use crate::support::parse;

struct Certificates {
    authority: String,
    stranger: String,
    server: String,
    server_key: String,
    client: String,
    client_key: String,
}

/// A certificate authority, a server certificate for the name `db.example` and the address
/// 127.0.0.1, a client certificate for the role `relay`, and another authority.
fn certificates() -> Certificates {
    let authority = |name: &str| {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let (issuer, stranger) = (authority("test authority"), authority("stranger"));
    let signed = |name: &str, names: Vec<SanType>| {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, name);
        params.subject_alt_names = names;
        let key = KeyPair::generate().unwrap();
        (
            params.signed_by(&key, &issuer).unwrap().pem(),
            key.serialize_pem(),
        )
    };
    let names = vec![
        SanType::DnsName("db.example".try_into().unwrap()),
        SanType::IpAddress("127.0.0.1".parse().unwrap()),
    ];
    let (server, server_key) = signed("db.example", names);
    let (client, client_key) = signed("relay", Vec::new());
    Certificates {
        authority: issuer.pem(),
        stranger: stranger.pem(),
        server,
        server_key,
        client,
        client_key,
    }
}

async fn both(config: &ConnectConfig) -> Result<bool, PgError> {
    let control = Control::connect(config).await?;
    let query = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let encrypted = control.client().query_one(query, &[]).await?.get(0);
    let mut session = ReplicationSession::connect(config).await?;
    let rows = session.simple_query(query).await?;
    let also = rows[0][0].as_deref() == Some(&b"t"[..]);
    assert_eq!(encrypted, also, "both connections are protected alike");
    session.close().await;
    Ok(encrypted)
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    use std::os::unix::fs::PermissionsExt;

    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

/// Where the certificates lie; removed when dropped.
struct Folder {
    place: tempfile::TempDir,
    made: Certificates,
}

impl Folder {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let path = place.path();
        let made = certificates();
        write(path, "authority.crt", &made.authority);
        write(path, "stranger.crt", &made.stranger);
        write(path, "client.crt", &made.client);
        write(path, "client.key", &made.client_key);
        Self { place, made }
    }

    fn file(&self, name: &str) -> String {
        self.place.path().join(name).display().to_string()
    }

    /// A server with the certificate of the authority.
    async fn server(&self, version: PgVersion) -> Postgres {
        let postgres = Postgres::builder()
            .version(version)
            .tls_capable()
            .config("ssl", "on")
            .config("ssl_ca_file", "ca.crt")
            .file("server.crt", self.made.server.as_str())
            .file("server.key", self.made.server_key.as_str())
            .file("ca.crt", self.made.authority.as_str())
            .host_rules("hostssl all relay 127.0.0.1/32 cert\nhost all postgres 127.0.0.1/32 trust")
            .start()
            .await
            .unwrap();
        postgres
            .sql("postgres", "CREATE ROLE relay LOGIN REPLICATION")
            .await
            .unwrap();
        postgres
    }
}

/// As superuser at 127.0.0.1, under the name `host`.
fn at(postgres: &Postgres, host: &str, query: &str) -> ConnectConfig {
    let port = postgres.port();
    parse(&format!(
        "postgres://postgres@{host}:{port}/postgres?hostaddr=127.0.0.1&{query}"
    ))
}

#[tokio::test]
async fn modes_mean_what_libpq_means() {
    let folder = Folder::new();
    let ca = format!("sslrootcert={}", folder.file("authority.crt"));
    let stranger = format!("sslrootcert={}", folder.file("stranger.crt"));
    let missing = format!("sslrootcert={}", folder.file("missing.crt"));
    for version in versions_under_test().unwrap().postgres {
        let postgres = folder.server(version).await;
        for (host, query, encrypted) in [
            ("db.example", "sslmode=disable".to_owned(), false),
            ("db.example", "sslmode=prefer".to_owned(), true),
            ("wrong.example", "sslmode=require".to_owned(), true),
            ("127.0.0.1", "sslmode=require".to_owned(), true),
            ("wrong.example", format!("sslmode=require&{ca}"), true),
            ("wrong.example", format!("sslmode=verify-ca&{ca}"), true),
            ("db.example", format!("sslmode=verify-full&{ca}"), true),
            ("127.0.0.1", format!("sslmode=verify-full&{ca}"), true),
            (
                "db.example",
                format!("ssl_min_protocol_version=TLSv1.3&{ca}"),
                true,
            ),
        ] {
            let result = both(&at(&postgres, host, &query)).await;
            let result = result.unwrap_or_else(|e| panic!("{host} {query}: {}", e.one_line()));
            assert_eq!(result, encrypted, "{host} {query}");
        }
        for (host, query, part) in [
            (
                "wrong.example",
                format!("sslmode=verify-full&{ca}"),
                "wrong.example",
            ),
            (
                "db.example",
                format!("sslmode=verify-ca&{stranger}"),
                "UnknownIssuer",
            ),
            (
                "db.example",
                format!("sslmode=require&{stranger}"),
                "UnknownIssuer",
            ),
            (
                "db.example",
                "sslmode=verify-full".to_owned(),
                "sslrootcert=system",
            ),
            (
                "db.example",
                format!("sslmode=verify-ca&{missing}"),
                "missing.crt",
            ),
        ] {
            let error = both(&at(&postgres, host, &query)).await.unwrap_err();
            assert_eq!(
                error.fault(),
                Fault::Tls,
                "{host} {query}: {}",
                error.one_line()
            );
            assert!(
                error.one_line().contains(part),
                "{host} {query}: {}",
                error.one_line()
            );
        }
    }
}

#[tokio::test]
async fn direct_negotiation_works_where_the_server_has_it() {
    let folder = Folder::new();
    let ca = format!("sslrootcert={}", folder.file("authority.crt"));
    for version in versions_under_test().unwrap().postgres {
        let postgres = folder.server(version).await;
        let query = format!("sslmode=verify-full&{ca}&sslnegotiation=direct");
        let result = both(&at(&postgres, "db.example", &query)).await;
        assert_eq!(result.is_ok(), version.major() >= 17);
    }
}

#[tokio::test]
async fn a_client_certificate_is_shown_when_asked_for() {
    let folder = Folder::new();
    let (ca, crt, key) = (
        folder.file("authority.crt"),
        folder.file("client.crt"),
        folder.file("client.key"),
    );
    for version in versions_under_test().unwrap().postgres {
        let postgres = folder.server(version).await;
        let url = format!("postgres://relay@127.0.0.1:{}/postgres", postgres.port());
        let mutual = format!("sslmode=verify-full&sslrootcert={ca}&sslcert={crt}&sslkey={key}");
        assert!(both(&parse(&format!("{url}?{mutual}"))).await.unwrap());
        let error = both(&parse(&format!("{url}?sslmode=require")))
            .await
            .unwrap_err();
        assert_eq!(error.fault(), Fault::AuthFailed, "{}", error.one_line());
    }
}

#[tokio::test]
async fn a_self_signed_certificate_may_be_its_own_root() {
    for version in versions_under_test().unwrap().postgres {
        for is_ca in [IsCa::Ca(BasicConstraints::Unconstrained), IsCa::NoCa] {
            let mut params = CertificateParams::new(vec!["db.example".to_owned()]).unwrap();
            params.is_ca = is_ca;
            let key = KeyPair::generate().unwrap();
            let own = params.self_signed(&key).unwrap().pem();
            let folder = Folder::new();
            let root = format!(
                "sslrootcert={}",
                write(folder.place.path(), "own.crt", &own)
            );
            let postgres = Postgres::builder()
                .version(version)
                .tls_capable()
                .config("ssl", "on")
                .file("server.crt", own.as_str())
                .file("server.key", key.serialize_pem())
                .start()
                .await
                .unwrap();
            let full = format!("sslmode=verify-full&{root}");
            let error = both(&at(&postgres, "wrong.example", &full))
                .await
                .unwrap_err();
            assert_eq!(error.fault(), Fault::Tls, "{}", error.one_line());
            let foreign = format!(
                "sslmode=verify-ca&sslrootcert={}",
                folder.file("stranger.crt")
            );
            let error = both(&at(&postgres, "db.example", &foreign))
                .await
                .unwrap_err();
            assert_eq!(error.fault(), Fault::Tls, "{}", error.one_line());
            for query in [full, format!("sslmode=verify-ca&{root}")] {
                let result = both(&at(&postgres, "db.example", &query)).await;
                assert!(result.unwrap_or_else(|e| panic!("{query}: {}", e.one_line())));
            }
        }
    }
}

#[tokio::test]
async fn a_server_without_tls_is_taken_by_prefer_alone() {
    let version = versions_under_test().unwrap().postgres[0];
    let postgres = Postgres::builder().version(version).start().await.unwrap();
    let url = |mode: &str| {
        let port = postgres.port();
        parse(&format!(
            "postgres://postgres@127.0.0.1:{port}/postgres?sslmode={mode}"
        ))
    };
    Control::connect(&url("prefer")).await.unwrap();
    let error = Control::connect(&url("require")).await.unwrap_err();
    assert_eq!(error.fault(), Fault::Tls);
    assert!(
        error.one_line().contains("ssl = on"),
        "{}",
        error.one_line()
    );
}

#[tokio::test]
async fn prefer_goes_on_without_tls_where_libpq_does_and_other_modes_do_not() {
    let version = *versions_under_test().unwrap().postgres.last().unwrap();
    let folder = Folder::new();
    let stranger = format!("sslrootcert={}", folder.file("stranger.crt"));
    // Only the way without TLS has a line for `plain`.
    let rules = "hostnossl all plain 127.0.0.1/32 trust\nhost all postgres 127.0.0.1/32 trust";
    let postgres = Postgres::builder()
        .version(version)
        .tls_capable()
        .config("ssl", "on")
        .file("server.crt", folder.made.server.as_str())
        .file("server.key", folder.made.server_key.as_str())
        .host_rules(rules)
        .start()
        .await
        .unwrap();
    let role = "CREATE ROLE plain LOGIN REPLICATION";
    postgres.sql("postgres", role).await.unwrap();
    let url = format!("postgres://plain@127.0.0.1:{}/postgres", postgres.port());
    let prefer = parse(&format!("{url}?sslmode=prefer"));
    assert!(!both(&prefer).await.unwrap());
    let require = parse(&format!("{url}?sslmode=require"));
    let error = both(&require).await.unwrap_err();
    assert_eq!(error.fault(), Fault::AuthFailed, "{}", error.one_line());
    // A certificate of an authority that is not trusted.
    let untrusted = format!("sslmode=prefer&{stranger}");
    assert!(
        !both(&at(&postgres, "db.example", &untrusted))
            .await
            .unwrap()
    );
    // Neither way: the reason of the first.
    let nobody = format!("postgres://nobody@127.0.0.1:{}/postgres", postgres.port());
    let error = both(&parse(&nobody)).await.unwrap_err();
    assert!(
        error.one_line().contains("SSL encryption"),
        "{}",
        error.one_line()
    );
}
