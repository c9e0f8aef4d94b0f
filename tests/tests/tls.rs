//! TLS to both servers, by the whole program: `setup` opens both of its PostgreSQL connections and
//! one to NATS, so it ends with 0 only if all of them are protected as asked.

mod calls;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use calls::{Caller, ids, insert, newest};
use postrider_tests::certificates::{Algorithm, Authority, HOST, Leaf, Signed, private_file};
use postrider_tests::{
    Nats, PATIENCE, Postgres, Progress, Stage, Versions, for_each_version, wait_until,
};

/// Which connections the roles of a test may use. As superusers they need no other right.
const HOST_RULES: &str = "hostssl all tls 127.0.0.1/32 trust\n\
                          hostnossl all plain 127.0.0.1/32 trust\n\
                          hostssl all certified 127.0.0.1/32 cert\n\
                          hostssl all password 127.0.0.1/32 scram-sha-256";

const ROLES: &str = "CREATE ROLE tls LOGIN SUPERUSER; CREATE ROLE plain LOGIN SUPERUSER; \
                     CREATE ROLE certified LOGIN SUPERUSER; \
                     CREATE ROLE password LOGIN SUPERUSER PASSWORD 'S3CR3T@x'";

/// A PostgreSQL with TLS and a plain NATS, set up.
async fn stage(versions: Versions, server: &Signed, authority: &Authority) -> Result<Stage> {
    let (certificate, key) = (server.certificate.clone(), server.key.clone());
    let authority = authority.pem.clone();
    let stage = Stage::start_with(
        versions,
        |it| {
            it.tls_capable()
                .config("ssl", "on")
                .config("ssl_ca_file", "ca.crt")
                .file("server.crt", certificate)
                .file("server.key", key)
                .file("ca.crt", authority)
                .host_rules(HOST_RULES)
        },
        |it| it,
    )
    .await?;
    stage.postgres.create_database("shop").await?;
    stage.postgres.sql("shop", ROLES).await?;
    let socket = format!(
        "postgres://postgres@/shop?host={}&port={}",
        stage.postgres.socket_dir().display(),
        stage.postgres.port()
    );
    Caller::at(&socket, &stage.nats.url())
        .ok(&["setup", "--create-table"])
        .await?;
    Ok(stage)
}

/// At 127.0.0.1 under the name `host`, in an empty home.
fn at(stage: &Stage, home: &Path, user: &str, host: &str, query: &str) -> Caller {
    let port = stage.postgres.port();
    let url = format!("postgres://{user}@{host}:{port}/shop?hostaddr=127.0.0.1&{query}");
    Caller::at(&url, &stage.nats.url()).env("HOME", &home.display().to_string())
}

#[tokio::test]
async fn sslmode_means_what_libpq_means_on_both_connections() -> Result<()> {
    let authority = Authority::new("test authority", Algorithm::Ecdsa256)?;
    let stranger = Authority::new("stranger", Algorithm::Ecdsa256)?;
    let server = authority.sign(&Leaf::server()?)?;
    let (authority, stranger, server) = (&authority, &stranger, &server);
    for_each_version(async |versions| {
        let stage = stage(versions, server, authority).await?;
        let folder = tempfile::tempdir()?;
        let file = |name: &str, text: &str| private_file(folder.path(), name, text);
        let ca = format!("sslrootcert={}", file("ca.crt", &authority.pem)?);
        let other = format!("sslrootcert={}", file("other.crt", &stranger.pem)?);
        let home = folder.path().join("home");
        std::fs::create_dir_all(home.join(".postgresql"))?;
        let works = async |user: &str, host: &str, query: &str| {
            let caller = at(&stage, &home, user, host, query);
            let result = caller.ok(&["setup"]).await;
            result
                .map(drop)
                .with_context(|| format!("{user}@{host} {query}"))
        };
        let fails = async |user: &str, host: &str, query: &str, word: &str| {
            let caller = at(&stage, &home, user, host, query);
            let result = caller.refused(&["setup"], 3, &[word]).await;
            result
                .map(drop)
                .with_context(|| format!("{user}@{host} {query}"))
        };
        works("plain", HOST, "sslmode=disable").await?;
        // Its own line in pg_hba.conf wants no encryption: libpq then does without.
        works("plain", HOST, "sslmode=prefer").await?;
        fails("plain", HOST, "sslmode=require", "pg_hba.conf").await?;
        fails("tls", HOST, "sslmode=disable", "pg_hba.conf").await?;
        for mode in ["prefer", "require"] {
            works("tls", "wrong.example", &format!("sslmode={mode}")).await?;
        }
        works("tls", "wrong.example", &format!("sslmode=verify-ca&{ca}")).await?;
        works("tls", HOST, &format!("sslmode=verify-full&{ca}")).await?;
        works("tls", "127.0.0.1", &format!("sslmode=verify-full&{ca}")).await?;
        let full = format!("sslmode=verify-full&{ca}");
        fails("tls", "wrong.example", &full, "wrong.example").await?;
        for mode in ["require", "verify-ca", "verify-full"] {
            let query = format!("sslmode={mode}&{other}");
            fails("tls", HOST, &query, "UnknownIssuer").await?;
        }
        for mode in ["verify-ca", "verify-full"] {
            fails("tls", HOST, &format!("sslmode={mode}"), "sslrootcert").await?;
        }
        // libpq's default file makes even `require` verify.
        private_file(&home.join(".postgresql"), "root.crt", &stranger.pem)?;
        fails("tls", HOST, "sslmode=require", "UnknownIssuer").await?;
        std::fs::remove_file(home.join(".postgresql/root.crt"))?;

        system_and_refusals(&stage, folder.path()).await
    })
    .await
}

/// The system's authorities; and what would weaken it, or cannot be honoured.
async fn system_and_refusals(stage: &Stage, folder: &Path) -> Result<()> {
    let home = folder.join("home");
    let system = at(stage, &home, "tls", HOST, "sslrootcert=system");
    let file = folder.join("ca.crt").display().to_string();
    system
        .clone()
        .env("SSL_CERT_FILE", &file)
        .ok(&["setup"])
        .await?;
    let file = folder.join("other.crt").display().to_string();
    let unknown = system.env("SSL_CERT_FILE", &file);
    unknown.refused(&["setup"], 3, &["UnknownIssuer"]).await?;
    // What would weaken it, or cannot be honoured, is refused before any connection.
    for (query, word) in [
        ("sslrootcert=system&sslmode=require", "verify-full"),
        ("sslmode=allow", "sslmode=allow"),
        ("sslcrl=x", "sslcrl"),
        ("channel_binding=require", "channel_binding"),
        ("requirepeer=x", "requirepeer"),
    ] {
        let caller = at(stage, &home, "tls", HOST, query);
        caller.refused(&["setup"], 2, &[word]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_client_certificate_lets_its_role_into_postgres() -> Result<()> {
    let authority = Authority::new("test authority", Algorithm::Ecdsa256)?;
    let stranger = Authority::new("stranger", Algorithm::Ecdsa256)?;
    let stage = stage(newest()?, &authority.sign(&Leaf::server()?)?, &authority).await?;
    let folder = tempfile::tempdir()?;
    let query = |name: &str, signed: &Signed| -> Result<String> {
        let key = private_file(folder.path(), &format!("{name}.key"), &signed.key)?;
        let certificate = private_file(folder.path(), &format!("{name}.crt"), &signed.certificate)?;
        Ok(format!(
            "sslmode=require&sslcert={certificate}&sslkey={key}"
        ))
    };
    let own = authority.sign(&Leaf::named("certified"))?;
    let right = query("right", &own)?;
    let call = |query: &str| at(&stage, folder.path(), "certified", HOST, query);
    call(&right).ok(&["setup"]).await?;
    let rsa = authority.sign(&Leaf::named("certified").algorithm(Algorithm::Rsa256))?;
    call(&query("rsa", &rsa)?).ok(&["setup"]).await?;
    let wrong = [
        ("another role", authority.sign(&Leaf::named("tls"))?),
        (
            "another authority",
            stranger.sign(&Leaf::named("certified"))?,
        ),
        (
            "expired",
            authority.sign(&Leaf::named("certified").years(2000, 2001))?,
        ),
    ];
    for (what, signed) in &wrong {
        let ended = call(&query("wrong", signed)?).finish(&["setup"]).await?;
        ensure!(matches!(ended.code, Some(1 | 3)), "{what}: {ended:?}");
    }
    call("sslmode=require")
        .refused(&["setup"], 3, &["certificate"])
        .await?;
    // As libpq does, a key that others may read is not used.
    let open = folder.path().join("right.key");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(open, mode)?;
    call(&right).refused(&["setup"], 3, &["chmod 0600"]).await?;
    Ok(())
}

/// Gives a running server another certificate.
async fn exchange(postgres: &mut Postgres, signed: &Signed) -> Result<()> {
    std::fs::write(postgres.data_dir().join("server.key"), &signed.key)?;
    std::fs::write(postgres.data_dir().join("server.crt"), &signed.certificate)?;
    postgres.restart().await
}

/// What it is, the certificate, the host, and what the refusal says if it is refused.
type Kind = (&'static str, Signed, &'static str, Option<&'static str>);

fn kinds(authority: &Authority, rsa: &Authority) -> Result<Vec<Kind>> {
    let server = Leaf::server()?;
    let old_style = Signed {
        certificate: include_str!("../fixtures/version_one.crt").to_owned(),
        key: include_str!("../fixtures/version_one.key").to_owned(),
    };
    Ok(vec![
        (
            "ECDSA with SHA-384",
            authority.sign(&server.clone().algorithm(Algorithm::Ecdsa384))?,
            HOST,
            None,
        ),
        (
            "RSA with SHA-384",
            rsa.sign(&server.clone().algorithm(Algorithm::Rsa384))?,
            HOST,
            None,
        ),
        (
            "RSA with SHA-256 under SHA-384",
            rsa.sign(&server.clone().algorithm(Algorithm::Rsa256))?,
            HOST,
            None,
        ),
        (
            "a common name alone",
            authority.sign(&Leaf::named(HOST))?,
            HOST,
            None,
        ),
        (
            "a wildcard as common name",
            authority.sign(&Leaf::named("*.shop.example"))?,
            "db.shop.example",
            None,
        ),
        (
            "another common name",
            authority.sign(&Leaf::named("other.example"))?,
            HOST,
            Some(HOST),
        ),
        (
            "a common name beside alternative names",
            authority.sign(&server)?,
            "server",
            Some("server"),
        ),
        (
            "expired",
            authority.sign(&server.clone().years(2000, 2001))?,
            HOST,
            Some("expired"),
        ),
        (
            "not yet valid",
            authority.sign(&server.clone().years(2199, 2200))?,
            HOST,
            Some("not valid yet"),
        ),
        ("version 1", old_style, HOST, Some("version 1")),
    ])
}

#[tokio::test]
async fn certificates_of_postgres_of_every_kind_and_age_are_told_apart() -> Result<()> {
    let authority = Authority::new("test authority", Algorithm::Ecdsa384)?;
    let rsa = Authority::new("rsa authority", Algorithm::Rsa384)?;
    let first = authority.sign(&Leaf::server()?)?;
    let mut stage = stage(newest()?, &first, &authority).await?;
    let folder = tempfile::tempdir()?;
    let both = format!("{}{}", authority.pem, rsa.pem);
    let ca = private_file(folder.path(), "ca.crt", &both)?;
    let full = format!("sslmode=verify-full&sslrootcert={ca}");
    for (what, signed, host, refusal) in kinds(&authority, &rsa)? {
        exchange(&mut stage.postgres, &signed).await?;
        let strict = at(&stage, folder.path(), "password:S3CR3T%40x", host, &full);
        let result = match refusal {
            None => strict.ok(&["setup"]).await.map(drop),
            Some(word) => strict.refused(&["setup"], 3, &[word]).await.map(drop),
        };
        result.context(what)?;
        // Without a root, `require` asks nothing of a certificate.
        let lax = at(&stage, folder.path(), "tls", host, "sslmode=require");
        lax.ok(&["setup"]).await.context(what)?;
    }
    Ok(())
}

/// A NATS with this in its tls block, and everything else as the tests have it.
async fn nats(signed: &Signed, authority: &Authority, more: &str) -> Result<Nats> {
    Nats::builder()
        .file("server.crt", signed.certificate.clone())
        .file("server.key", signed.key.clone())
        .file("ca.crt", authority.pem.clone())
        .config(&format!(
            "tls {{ cert_file: server.crt, key_file: server.key, ca_file: ca.crt, {more} }}"
        ))
        .start()
        .await
}

/// An outbox table of its own for each NATS.
async fn database(postgres: &Postgres, name: &str) -> Result<String> {
    postgres.create_database(name).await?;
    Ok(postgres.url(name))
}

/// By its address, from the system's authorities, and with neither.
async fn trusts(url: &str, nats: &Nats, ca: &str, other: &str, setup: &[&str]) -> Result<()> {
    let call = |host: &str| Caller::at(url, &format!("nats://{host}:{}", nats.port()));
    let by_address = call("127.0.0.1").flag("--nats-tls-ca", ca);
    by_address.ok(setup).await?;
    let system = Caller::at(url, &format!("tls://localhost:{}", nats.port()));
    let trusted = system.clone().env("SSL_CERT_FILE", ca);
    trusted.ok(setup).await?;
    let distrusted = call("localhost").flag("--nats-tls-ca", other);
    for caller in [system.env("SSL_CERT_FILE", other), distrusted] {
        caller.refused(setup, 3, &["UnknownIssuer"]).await?;
    }
    Ok(())
}

#[tokio::test]
async fn certificates_of_nats_of_every_kind_and_age_are_told_apart() -> Result<()> {
    let authority = Authority::new("test authority", Algorithm::Ecdsa384)?;
    let rsa = Authority::new("rsa authority", Algorithm::Rsa384)?;
    let folder = tempfile::tempdir()?;
    let both = format!("{}{}", authority.pem, rsa.pem);
    let ca = private_file(folder.path(), "ca.crt", &both)?;
    let stranger = Authority::new("stranger", Algorithm::Ecdsa256)?;
    let other = private_file(folder.path(), "other.crt", &stranger.pem)?;
    let postgres = Postgres::builder()
        .version(newest()?.postgres)
        .start()
        .await?;
    let server = Leaf::server()?;
    for (number, (what, signed, refusal)) in [
        (
            "ECDSA",
            authority.sign(&server.clone().algorithm(Algorithm::Ecdsa384))?,
            None,
        ),
        (
            "RSA",
            rsa.sign(&server.clone().algorithm(Algorithm::Rsa384))?,
            None,
        ),
        (
            "expired",
            authority.sign(&server.clone().years(2000, 2001))?,
            Some("expired"),
        ),
        (
            "not yet valid",
            authority.sign(&server.clone().years(2199, 2200))?,
            Some("not valid yet"),
        ),
        (
            "another name",
            authority.sign(&Leaf::named("localhost"))?,
            Some("localhost"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let nats = nats(&signed, &authority, "").await?;
        let url = database(&postgres, &format!("shop_{number}")).await?;
        let call = |host: &str| Caller::at(&url, &format!("nats://{host}:{}", nats.port()));
        let trusting = call("localhost").flag("--nats-tls-ca", &ca);
        let slot = format!("slot_{number}");
        let setup = ["setup", "--create-table", "--postgres-slot", &slot];
        match refusal {
            Some(word) => trusting.refused(&setup, 3, &[word]).await.map(drop),
            None => trusting.ok(&setup).await.map(drop),
        }
        .context(what)?;
        if refusal.is_some() {
            continue;
        }
        trusts(&url, &nats, &ca, &other, &setup)
            .await
            .context(what)?;
    }
    Ok(())
}

#[tokio::test]
async fn client_certificates_and_handshake_first_work_with_nats() -> Result<()> {
    let authority = Authority::new("test authority", Algorithm::Ecdsa256)?;
    let stranger = Authority::new("stranger", Algorithm::Ecdsa256)?;
    let folder = tempfile::tempdir()?;
    let ca = private_file(folder.path(), "ca.crt", &authority.pem)?;
    let postgres = Postgres::builder()
        .version(newest()?.postgres)
        .start()
        .await?;
    let url = database(&postgres, "shop").await?;
    let server = authority.sign(&Leaf::server()?)?;
    let signed = |name: &str, signed: &Signed| -> Result<[String; 2]> {
        Ok([
            private_file(folder.path(), &format!("{name}.crt"), &signed.certificate)?,
            private_file(folder.path(), &format!("{name}.key"), &signed.key)?,
        ])
    };
    let right = signed("right", &authority.sign(&Leaf::named("right"))?)?;
    let foreign = signed("foreign", &stranger.sign(&Leaf::named("right"))?)?;
    let old = authority.sign(&Leaf::named("right").years(2000, 2001))?;
    let old = signed("old", &old)?;
    let call = |nats: &Nats, client: Option<&[String; 2]>| {
        let caller = Caller::at(&url, &format!("nats://localhost:{}", nats.port()));
        let caller = caller.flag("--nats-tls-ca", &ca);
        match client {
            None => caller,
            Some([certificate, key]) => caller
                .flag("--nats-tls-cert", certificate)
                .flag("--nats-tls-key", key),
        }
    };
    let verifying = nats(&server, &authority, "verify: true").await?;
    let setup = ["setup", "--create-table"];
    call(&verifying, Some(&right)).ok(&setup).await?;
    for wrong in [None, Some(&foreign), Some(&old)] {
        let caller = call(&verifying, wrong);
        caller
            .refused(&setup, 3, &["ertificate"])
            .await
            .with_context(|| format!("{wrong:?}"))?;
    }
    drop(verifying);

    let first = nats(&server, &authority, "handshake_first: true").await?;
    let caller = call(&first, None);
    // It closes the connection without a word, as a server that is stopping does.
    caller.refused(&setup, 1, &["tls_first"]).await?;
    let caller = caller.env("POSTRIDER_NATS_TLS_FIRST", "true");
    caller.ok(&setup).await?;
    let plain = Nats::builder().start().await?;
    let caller = call(&plain, None);
    caller.refused(&setup, 3, &["TLS"]).await?;
    let caller = caller.env("POSTRIDER_NATS_TLS_FIRST", "true");
    caller.refused(&setup, 3, &["tls_first"]).await?;
    Ok(())
}

#[tokio::test]
async fn rows_flow_with_tls_on_both_sides() -> Result<()> {
    let authority = Authority::new("test authority", Algorithm::Ecdsa256)?;
    let server = authority.sign(&Leaf::server()?)?;
    let mut stage = stage(newest()?, &server, &authority).await?;
    let folder = tempfile::tempdir()?;
    let ca = private_file(folder.path(), "ca.crt", &authority.pem)?;
    stage.nats = nats(&server, &authority, "").await?;
    let url = format!(
        "postgres://tls@{HOST}:{}/shop?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={ca}",
        stage.postgres.port()
    );
    let nats_url = format!("tls://localhost:{}", stage.nats.port());
    let caller = Caller::at(&url, &nats_url).flag("--nats-tls-ca", &ca);
    caller.ok(&["setup"]).await?;
    let mut streamer = caller.spawn(&["run"])?;
    insert(&stage, "shop", 3).await?;
    let wait = wait_until(PATIENCE, "the rows to be confirmed", async || {
        let status = caller.finish(&["status", "--output", "json"]).await?;
        let stored = status.stdout.contains("\"messages\":3");
        Ok(Progress::when(stored, || status.stdout))
    });
    wait.await?;
    streamer.terminate()?;
    let ended = calls::ended(&mut streamer).await?;
    ensure!(ended.code == Some(0), "{ended:?}");
    // In the clear there is no way in.
    ensure!(ids(&stage).await.is_err());
    Ok(())
}
