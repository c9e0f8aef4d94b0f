//! Every way to log in to either server, right and wrong, by the whole program.

mod calls;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use calls::{Caller, insert, newest, wait_end, wait_log};
use nkeys::KeyPair;
use postrider_tests::certificates::{Algorithm, Authority, Leaf, private_file};
use postrider_tests::{Nats, PATIENCE, Postgres, Progress, Stage, for_each_version, wait_until};
use serde_json::json;

/// A password in which everything is that a URL, a shell or a file could stumble over.
const PASSWORD: &str = "a@b/c:d#e%f{g\\h i";

const SETUP: [&str; 2] = ["setup", "--create-table"];

/// For a JWT that is to expire under the streamer: time enough to start it.
const LIFETIME_SECONDS: i64 = 5;

#[tokio::test]
async fn every_password_method_of_postgres_works_and_wrong_ones_end_with_3() -> Result<()> {
    for_each_version(async |versions| {
        let rules = "host all scram 127.0.0.1/32 scram-sha-256\n\
                     host all prepared 127.0.0.1/32 scram-sha-256\n\
                     host all hashed 127.0.0.1/32 md5\n\
                     host all clear 127.0.0.1/32 password\n\
                     host all nobody 127.0.0.1/32 reject";
        let stage = Stage::start_with(versions, |it| it.host_rules(rules), |it| it).await?;
        stage.postgres.create_database("shop").await?;
        let quoted = PASSWORD.replace('\'', "''");
        // SASLprep makes one password of the two spellings of the second role.
        let sql = format!(
            "CREATE ROLE scram LOGIN SUPERUSER PASSWORD '{quoted}'; \
             CREATE ROLE prepared LOGIN SUPERUSER PASSWORD 'fi1x'; \
             CREATE ROLE clear LOGIN SUPERUSER PASSWORD '{quoted}'; \
             CREATE ROLE nobody LOGIN SUPERUSER PASSWORD '{quoted}'; \
             SET password_encryption = 'md5'; \
             CREATE ROLE hashed LOGIN SUPERUSER PASSWORD '{quoted}'"
        );
        stage.postgres.sql("shop", &sql).await?;
        let call = |user: &str, password: &str| {
            let url = stage.postgres.url_as(user, password, "shop");
            Caller::at(&url, &stage.nats.url())
        };
        for (user, password) in [
            ("scram", PASSWORD),
            ("prepared", "\u{fb01}\u{2460}x"),
            ("hashed", PASSWORD),
            ("clear", PASSWORD),
        ] {
            call(user, password).ok(&SETUP).await.context(user)?;
            let wrong = call(user, "WR0NG-one");
            let ended = wrong
                .refused(&SETUP, 3, &["password"])
                .await
                .context(user)?;
            ensure!(!ended.stderr.contains("WR0NG"), "{user}: {}", ended.stderr);
        }
        call("nobody", PASSWORD)
            .refused(&SETUP, 3, &["pg_hba.conf"])
            .await?;
        passwords_from_elsewhere(&stage).await
    })
    .await
}

/// The password file of libpq, its variable, and the program's own.
async fn passwords_from_elsewhere(stage: &Stage) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let port = stage.postgres.port();
    let escaped = PASSWORD.replace('\\', "\\\\").replace(':', "\\:");
    let lines = format!("other:*:*:*:no\n127.0.0.1:{port}:shop:scram:{escaped}\n");
    let passfile = private_file(folder.path(), "pgpass", &lines)?;
    let own_file = private_file(folder.path(), "password", &format!("{PASSWORD}\n"))?;
    let url = |query: &str| format!("postgres://scram@127.0.0.1:{port}/shop{query}");
    let bare =
        Caller::at(&url(""), &stage.nats.url()).env("HOME", &folder.path().display().to_string());
    let in_url = Caller::at(&url(&format!("?passfile={passfile}")), &stage.nats.url());
    for (what, caller) in [
        ("passfile in the URL", in_url),
        ("PGPASSFILE", bare.clone().env("PGPASSFILE", &passfile)),
        ("PGPASSWORD", bare.clone().env("PGPASSWORD", PASSWORD)),
        (
            "its own variable",
            bare.clone().env("POSTRIDER_POSTGRES_PASSWORD", PASSWORD),
        ),
        (
            "its own file",
            bare.clone().flag("--postgres-password-file", &own_file),
        ),
    ] {
        caller.ok(&SETUP).await.context(what)?;
    }
    bare.refused(&SETUP, 3, &["PGPASSWORD"]).await?;
    // As libpq does, a file that others may read is not used.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&passfile, mode)?;
    let open = bare.env("PGPASSFILE", &passfile);
    open.refused(&SETUP, 3, &["chmod 0600", "PGPASSWORD"])
        .await?;
    Ok(())
}

#[tokio::test]
async fn hosts_are_tried_in_order_and_reached_by_socket_and_address() -> Result<()> {
    let stage = Stage::start_with(
        newest()?,
        |it| {
            it.config("listen_addresses", "127.0.0.1,::1")
                .host_rules("host all all 127.0.0.1/32 trust\nhost all all ::1/128 trust")
        },
        |it| it,
    )
    .await?;
    stage.postgres.create_database("shop").await?;
    let port = stage.postgres.port();
    let folder = stage.postgres.socket_dir().display().to_string();
    let encoded = folder.replace('/', "%2F");
    let mut urls = vec![
        format!("postgres://postgres@/shop?host={folder}&port={port}"),
        format!("postgres://postgres@{encoded}:{port}/shop"),
        // Nothing listens on a port below 10.
        format!("postgres://postgres@127.0.0.1:9,localhost:{port}/shop"),
        format!(
            "postgres://postgres@127.0.0.1:9,{encoded}:{port}/shop?target_session_attrs=primary"
        ),
    ];
    if tokio::net::TcpListener::bind("[::1]:0").await.is_ok() {
        urls.push(format!("postgres://postgres@[::1]:{port}/shop"));
        urls.push(format!("postgres://postgres@/shop?host=::1&port={port}"));
    }
    for url in &urls {
        let caller = Caller::at(url, &stage.nats.url());
        caller.ok(&SETUP).await.with_context(|| url.clone())?;
    }
    // A server that takes no writes gives way to the next one that does.
    let sql = "ALTER DATABASE shop SET default_transaction_read_only = on";
    stage.postgres.sql("shop", sql).await?;
    let url = format!("postgres://postgres@127.0.0.1:{port}/shop?target_session_attrs=read-write");
    let ended = Caller::at(&url, &stage.nats.url())
        .finish(&["setup"])
        .await?;
    calls::ends_with(&ended, 1, &["does not accept writes"])?;
    let url = format!("postgres://postgres@127.0.0.1:{port}/shop?target_session_attrs=standby");
    let caller = Caller::at(&url, &stage.nats.url());
    caller
        .refused(&["setup"], 2, &["target_session_attrs"])
        .await?;
    Ok(())
}

/// A PostgreSQL for tests of NATS alone, and its URL.
async fn postgres() -> Result<(Postgres, String)> {
    let postgres = Postgres::builder()
        .version(newest()?.postgres)
        .start()
        .await?;
    postgres.create_database("shop").await?;
    let url = postgres.url("shop");
    Ok((postgres, url))
}

/// Every byte percent-encoded.
fn escape(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

#[tokio::test]
async fn users_and_nkeys_of_nats_work_and_wrong_ones_end_with_3() -> Result<()> {
    let (_postgres, url) = postgres().await?;
    let folder = tempfile::tempdir()?;
    let pair = KeyPair::new_user();
    let quoted = PASSWORD.replace('\\', "\\\\");
    let users = format!(
        "authorization {{ users: [ {{ user: app, password: \"{quoted}\" }}, \
         {{ nkey: {} }} ] }}",
        pair.public_key()
    );
    let nats = Nats::builder().config(&users).start().await?;
    let place = format!("127.0.0.1:{}", nats.port());
    let in_url = |user: &str| Caller::at(&url, &format!("nats://{user}{place}"));
    let refused = ["NATS refused the credentials"];
    let seed = private_file(folder.path(), "seed", &pair.seed()?)?;
    let wrong_seed = private_file(folder.path(), "wrong", &KeyPair::new_user().seed()?)?;
    let password_file = private_file(folder.path(), "password", &format!("{PASSWORD}\n"))?;
    let named = in_url("").flag("--nats-user", "app");
    for (what, caller) in [
        ("in the URL", in_url(&format!("app:{}@", escape(PASSWORD)))),
        (
            "variable",
            named.clone().env("POSTRIDER_NATS_PASSWORD", PASSWORD),
        ),
        (
            "password file",
            named.clone().flag("--nats-password-file", &password_file),
        ),
        ("nkey", in_url("").flag("--nats-nkey-file", &seed)),
    ] {
        caller.ok(&SETUP).await.context(what)?;
    }
    for (what, caller) in [
        ("nobody", in_url("")),
        ("a wrong password", in_url("app:WR0NG@")),
        (
            "a wrong user",
            in_url(&format!("other:{}@", escape(PASSWORD))),
        ),
        ("a token", in_url("WR0NG@")),
        (
            "a wrong variable",
            named.env("POSTRIDER_NATS_PASSWORD", "WR0NG"),
        ),
        (
            "another nkey",
            in_url("").flag("--nats-nkey-file", &wrong_seed),
        ),
        (
            "no nkey",
            in_url("").flag("--nats-nkey-file", &password_file),
        ),
    ] {
        let ended = caller.refused(&SETUP, 3, &refused).await.context(what)?;
        ensure!(!ended.stderr.contains("WR0NG"), "{what}: {}", ended.stderr);
    }
    Ok(())
}

#[tokio::test]
async fn a_token_of_nats_works_from_everywhere_and_a_wrong_one_ends_with_3() -> Result<()> {
    let (_postgres, url) = postgres().await?;
    let folder = tempfile::tempdir()?;
    let nats = Nats::builder()
        .config("authorization { token: \"S3CR3T@x\" }")
        .start()
        .await?;
    let place = format!("127.0.0.1:{}", nats.port());
    let in_url = |user: &str| Caller::at(&url, &format!("nats://{user}{place}"));
    let file = private_file(folder.path(), "token", "S3CR3T@x\n")?;
    for caller in [
        in_url("S3CR3T%40x@"),
        in_url("").env("POSTRIDER_NATS_TOKEN", "S3CR3T@x"),
        in_url("").flag("--nats-token-file", &file),
    ] {
        caller.ok(&SETUP).await?;
    }
    let refused = ["NATS refused the credentials"];
    in_url("WR0NG@").refused(&SETUP, 3, &refused).await?;
    Ok(())
}

#[tokio::test]
async fn a_certificate_is_mapped_to_a_nats_user() -> Result<()> {
    let (_postgres, url) = postgres().await?;
    let authority = Authority::new("test authority", Algorithm::Ecdsa256)?;
    let server = authority.sign(&Leaf::server()?)?;
    let folder = tempfile::tempdir()?;
    let ca = private_file(folder.path(), "ca.crt", &authority.pem)?;
    let nats = Nats::builder()
        .file("server.crt", server.certificate)
        .file("server.key", server.key)
        .file("ca.crt", authority.pem.clone())
        .config(
            "tls { cert_file: server.crt, key_file: server.key, ca_file: ca.crt, \
             verify_and_map: true }\n\
             authorization { users: [ { user: \"CN=app\" } ] }",
        )
        .start()
        .await?;
    let call = |name: &str| -> Result<Caller> {
        let signed = authority.sign(&Leaf::named(name))?;
        let key = private_file(folder.path(), &format!("{name}.key"), &signed.key)?;
        let certificate = private_file(folder.path(), &format!("{name}.crt"), &signed.certificate)?;
        Ok(
            Caller::at(&url, &format!("nats://localhost:{}", nats.port()))
                .flag("--nats-tls-ca", &ca)
                .flag("--nats-tls-cert", &certificate)
                .flag("--nats-tls-key", &key),
        )
    };
    call("app")?.ok(&SETUP).await?;
    let refused = ["NATS refused the credentials"];
    call("other")?.refused(&SETUP, 3, &refused).await?;
    Ok(())
}

/// RFC 4648, section 5, without padding.
fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let mut bits = 0_u32;
        for index in 0..3 {
            bits = bits << 8 | u32::from(group.get(index).copied().unwrap_or(0));
        }
        for digit in 0..=group.len() {
            let index = usize::try_from(bits >> (18 - 6 * digit) & 63).unwrap_or(0);
            text.push(char::from(DIGITS.get(index).copied().unwrap_or(b'A')));
        }
    }
    text
}

/// A JWT as NATS signs them: Ed25519 over header and claims (NATS ADR-14).
fn jwt(
    issuer: &KeyPair,
    subject: &KeyPair,
    expires: Option<i64>,
    nats: serde_json::Value,
) -> Result<String> {
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let mut claims = json!({
        "jti": "test", "iat": 1_700_000_000, "name": "test",
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats,
    });
    if let (Some(expires), Some(claims)) = (expires, claims.as_object_mut()) {
        claims.insert(String::from("exp"), expires.into());
    }
    let part = |value: serde_json::Value| base64url(value.to_string().as_bytes());
    let text = format!("{}.{}", part(header), part(claims));
    let signature = base64url(&issuer.sign(text.as_bytes())?);
    Ok(format!("{text}.{signature}"))
}

/// An operator, an account with JetStream, and a server that knows both.
struct Operator {
    account: KeyPair,
    nats: Nats,
}

impl Operator {
    async fn start() -> Result<Self> {
        let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
        // JetStream wants a system account, which itself has no JetStream.
        let system = KeyPair::new_account();
        let claims = json!({ "type": "operator", "version": 2 });
        let operator_jwt = jwt(&operator, &operator, None, claims)?;
        let account_jwt = |account: &KeyPair, disk: i64| {
            let claims = json!({
                "type": "account", "version": 2,
                "limits": {
                    "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1,
                    "wildcards": true, "conn": -1, "leaf": -1, "mem_storage": disk,
                    "disk_storage": disk, "streams": disk, "consumer": disk,
                },
            });
            jwt(&operator, account, None, claims)
        };
        let config = format!(
            "operator: {operator_jwt}\nsystem_account: {system}\nresolver: MEMORY\n\
             resolver_preload: {{\n{system}: {}\n{}: {}\n}}",
            account_jwt(&system, 0)?,
            account.public_key(),
            account_jwt(&account, -1)?,
            system = system.public_key(),
        );
        let nats = Nats::builder().config(&config).start().await?;
        Ok(Self { account, nats })
    }

    /// A credentials file for a user, signed by somebody.
    fn credentials(
        &self,
        issuer: &KeyPair,
        seed: &KeyPair,
        user: &KeyPair,
        expires: Option<i64>,
    ) -> Result<String> {
        let claims = json!({
            "type": "user", "version": 2, "pub": {}, "sub": {},
            "subs": -1, "data": -1, "payload": -1,
        });
        Ok(format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            jwt(issuer, user, expires, claims)?,
            seed.seed()?,
        ))
    }

    fn caller(&self, postgres: &str, folder: &Path, credentials: &str) -> Result<Caller> {
        let file = private_file(folder, "app.creds", credentials)?;
        let caller = Caller::at(postgres, &self.nats.url());
        Ok(caller.flag("--nats-credentials-file", &file))
    }
}

#[tokio::test]
async fn a_credentials_file_works_in_operator_mode_and_wrong_ones_end_with_3() -> Result<()> {
    let (_postgres, url) = postgres().await?;
    let operator = Operator::start().await?;
    let folder = tempfile::tempdir()?;
    let (user, other) = (KeyPair::new_user(), KeyPair::new_user());
    let own = &operator.account;
    let right = operator.credentials(own, &user, &user, None)?;
    operator
        .caller(&url, folder.path(), &right)?
        .ok(&SETUP)
        .await?;
    let refused = ["NATS refused the credentials"];
    for (what, text) in [
        (
            "another's seed",
            operator.credentials(own, &other, &user, None)?,
        ),
        (
            "expired",
            operator.credentials(own, &user, &user, Some(1_700_000_001))?,
        ),
        (
            "another account",
            operator.credentials(&KeyPair::new_account(), &user, &user, None)?,
        ),
        ("no credentials", String::from("hello\n")),
    ] {
        let caller = operator.caller(&url, folder.path(), &text)?;
        caller.refused(&SETUP, 3, &refused).await.context(what)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_jwt_renewed_on_disk_is_used_when_the_old_one_expires() -> Result<()> {
    let stage = Stage::start(newest()?).await?;
    stage.postgres.create_database("shop").await?;
    let operator = Operator::start().await?;
    let (folder, user) = (tempfile::tempdir()?, KeyPair::new_user());
    let own = &operator.account;
    let lasting = operator.credentials(own, &user, &user, None)?;
    let url = stage.postgres.url("shop");
    operator
        .caller(&url, folder.path(), &lasting)?
        .ok(&SETUP)
        .await?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let expires = i64::try_from(now)? + LIFETIME_SECONDS;
    let short = operator.credentials(own, &user, &user, Some(expires))?;
    let caller = operator.caller(&url, folder.path(), &short)?;
    let mut streamer = caller.spawn(&["run"])?;
    wait_log(&mut streamer, &["publishing ("]).await?;
    private_file(folder.path(), "app.creds", &lasting)?;
    // The server closes the connection when the JWT expires.
    wait_log(&mut streamer, &["publishing interrupted"]).await?;
    insert(&stage, "shop", 1).await?;
    wait_until(PATIENCE, "a message in the stream", async || {
        let status = caller.finish(&["status", "--output", "json"]).await?;
        let stored = status.stdout.contains("\"messages\":1");
        Ok(Progress::when(stored, || status.stdout))
    })
    .await?;
    streamer.terminate()?;
    wait_end(&mut streamer, 0, &[]).await?;
    Ok(())
}
