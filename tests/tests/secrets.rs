//! Whatever goes wrong, and however much is logged: a password or token is never printed.

mod calls;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use calls::{Caller, ended, newest, wait_log};
use postrider_tests::certificates::private_file;
use postrider_tests::{Ended, Stage};

/// The secret as it is.
const SECRET: &str = "S3CR3T@x";

/// The secret in a URL.
const ENCODED: &str = "S3CR3T%40x";

/// Parts that every spelling of the secret has one of, beside base64: raw or percent-encoded, bytes
/// as `Debug` shows them, hexadecimal.
const TRACES: [&str; 4] = ["s3cr3t", "83, 51, 67", "533343523354", "%53%33%43"];

/// Ways to make the program say as much as it can.
const LOUD: [&[&str]; 2] = [&["-vv"], &["--log-format", "json", "-vv"]];

/// What base64 makes of the secret in the middle of a text, in small letters: the characters that
/// it alone decides, for each of the three places of a group at which it can begin.
fn base64_traces(secret: &[u8]) -> [String; 3] {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    [0, 1, 2].map(|before| {
        let bytes = [vec![0; before], secret.to_vec()].concat();
        let bits: Vec<usize> = bytes
            .iter()
            .flat_map(|byte| (0..8).rev().map(move |bit| usize::from(byte >> bit & 1)))
            .collect();
        // Groups of six that lie in the secret as a whole.
        let groups = bits.chunks_exact(6).skip((8 * before).div_ceil(6));
        let index = |group: &[usize]| group.iter().fold(0, |number, bit| 2 * number + bit);
        let letters = groups.filter_map(|group| ALPHABET.get(index(group)));
        let text: String = letters.map(|letter| char::from(*letter)).collect();
        text.to_lowercase()
    })
}

#[test]
fn base64_of_the_secret_is_found_wherever_it_begins() {
    let traces = base64_traces(SECRET.as_bytes());
    // Of the secret with `/more` behind it, and nothing, `a`, `ab`, `app:` before it.
    for text in [
        "uzndujnuqhgvbw9yzq==",
        "yvmzq1izveb4l21vcmu=",
        "ywjtm0nsm1raec9tb3jl",
        "yxbwolmzq1izveb4l21vcmu=",
    ] {
        assert!(
            traces.iter().any(|trace| text.contains(trace)),
            "{text}: {traces:?}"
        );
        assert!(traces.iter().all(|trace| trace.len() >= 9), "{traces:?}");
    }
}

fn check(what: &str, ended: &Ended) -> Result<()> {
    let said = format!("{}\n{}", ended.stdout, ended.stderr);
    let lower = said.to_lowercase();
    let traces = TRACES.map(str::to_owned).into_iter();
    for trace in traces.chain(base64_traces(SECRET.as_bytes())) {
        ensure!(
            !lower.contains(&trace),
            "{what} shows the secret ({trace}):\n{said}"
        );
    }
    Ok(())
}

/// Every command with all logs, none of which may show the secret. `run` is stopped after its first
/// failure, if it goes on.
async fn try_all(what: &str, caller: &Caller) -> Result<()> {
    let loud = caller
        .clone()
        .env("POSTRIDER_LOG", "trace")
        .env("RUST_BACKTRACE", "full");
    for words in [
        vec!["setup"],
        vec!["status"],
        vec!["teardown"],
        vec!["setup", "--print-sql"],
    ] {
        let what = format!("{words:?} with {what}");
        check(&what, &loud.finish(&words).await?)?;
    }
    for flags in LOUD {
        let words = [flags, ["run"].as_slice()].concat();
        let what = format!("{words:?} with {what}");
        let mut run = loud.spawn(&words)?;
        // An error at the start ends it, anything else it waits for.
        if wait_log(&mut run, &["next attempt in"]).await.is_ok() {
            run.terminate().with_context(|| what.clone())?;
        }
        let ended = ended(&mut run).await?;
        ensure!(
            ended.stderr.contains("postrider::driver"),
            "{what} logs little:\n{}",
            ended.stderr
        );
        check(&what, &ended)?;
    }
    Ok(())
}

/// `run` with all logs, which NATS must refuse, once PostgreSQL has let it stream.
async fn try_streamer(what: &str, caller: &Caller) -> Result<()> {
    let loud = caller.clone().env("POSTRIDER_LOG", "trace");
    for flags in LOUD {
        let words = [flags, ["run"].as_slice()].concat();
        let what = format!("{words:?} with {what}");
        let ended = loud.finish(&words).await?;
        ensure!(
            ended.code == Some(3) && ended.stderr.contains("NATS refused the credentials"),
            "{what} was not refused by NATS: {ended:?}"
        );
        check(&what, &ended)?;
    }
    let ended = loud.finish(&["setup"]).await?;
    check(what, &ended)
}

/// Places that are libpq's, or where it is not what the place is for.
fn more_callers(
    folder: &Path,
    pg_host: &str,
    nats_host: &str,
) -> Result<[(&'static str, Caller); 3]> {
    let bare = Caller::at(
        &format!("postgres://app@{pg_host}/shop"),
        &format!("nats://{nats_host}"),
    );
    let passfile = private_file(folder, "pgpass", &format!("*:*:*:app:{SECRET}\n"))?;
    // What is not what it should be could be quoted by whoever complains about it.
    let credentials = private_file(folder, "app.creds", &format!("-----BEGIN {SECRET}\n"))?;
    let seed = private_file(folder, "seed", SECRET)?;
    // Every byte of it percent-encoded.
    let hex: String = SECRET.bytes().map(|byte| format!("%{byte:02x}")).collect();
    Ok([
        (
            "PGPASSWORD and a credentials file",
            bare.clone()
                .env("PGPASSWORD", SECRET)
                .flag("--nats-credentials-file", &credentials),
        ),
        (
            "a password file and a seed",
            bare.clone()
                .env("PGPASSFILE", &passfile)
                .flag("--nats-nkey-file", &seed),
        ),
        (
            "URLs with every byte encoded",
            Caller::at(
                &format!("postgres://app:{hex}@{pg_host}/shop"),
                &format!("nats://app:{hex}@{nats_host}"),
            ),
        ),
    ])
}

/// The secret at every place from which it can come, for servers at these ports.
fn callers(folder: &Path, postgres: u16, nats: u16) -> Result<Vec<(&'static str, Caller)>> {
    let secret_file = folder.join("secret");
    std::fs::write(&secret_file, format!("{SECRET}\n"))?;
    let secret_file = secret_file.display().to_string();
    let (pg_host, nats_host) = (format!("127.0.0.1:{postgres}"), format!("127.0.0.1:{nats}"));
    let pg_url = format!("postgres://app:{ENCODED}@{pg_host}/shop");
    let nats_url = format!("nats://app:{ENCODED}@{nats_host}");
    let toml = folder.join("postrider.toml");
    std::fs::write(
        &toml,
        format!(
            "[postgres]\nurl = \"postgres://app@{pg_host}/shop\"\npassword = \"{SECRET}\"\n\
             [nats]\nurl = \"nats://{nats_host}\"\nuser = \"app\"\npassword = \"{SECRET}\"\n"
        ),
    )?;
    let url_files = ["pg_url", "nats_url"].map(|name| folder.join(name));
    for (file, url) in url_files.iter().zip([&pg_url, &nats_url]) {
        std::fs::write(file, url)?;
    }
    let [pg_file, nats_file] = url_files.map(|file| file.display().to_string());
    let bare = Caller::at(
        &format!("postgres://app@{pg_host}/shop"),
        &format!("nats://{nats_host}"),
    );
    let mut all = vec![
        ("URLs as flags", Caller::at(&pg_url, &nats_url)),
        (
            "the usual variables",
            Caller::default()
                .env("DATABASE_URL", &pg_url)
                .env("NATS_URL", &nats_url),
        ),
        (
            "its own variables",
            bare.clone()
                .env("POSTRIDER_POSTGRES_PASSWORD", SECRET)
                .env("POSTRIDER_NATS_USER", "app")
                .env("POSTRIDER_NATS_PASSWORD", SECRET),
        ),
        (
            "files of passwords",
            bare.clone()
                .flag("--postgres-password-file", &secret_file)
                .flag("--nats-token-file", &secret_file),
        ),
        (
            "files of URLs",
            Caller::default()
                .flag("--postgres-url-file", &pg_file)
                .flag("--nats-url-file", &nats_file),
        ),
        (
            "a configuration file",
            Caller::default().flag("--config", &toml.display().to_string()),
        ),
        (
            "a token and a password as a parameter",
            Caller::at(
                &format!("postgres://{pg_host}/shop?user=app&password={ENCODED}"),
                &format!("nats://{ENCODED}@{nats_host}"),
            ),
        ),
    ];
    all.extend(more_callers(folder, &pg_host, &nats_host)?);
    Ok(all)
}

#[tokio::test]
async fn secrets_stay_hidden_when_no_server_answers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    // Nothing listens on a port below 10.
    for (what, caller) in callers(folder.path(), 9, 9)? {
        try_all(&format!("{what}, dead hosts"), &caller).await?;
    }
    Ok(())
}

#[tokio::test]
async fn secrets_stay_hidden_when_the_servers_refuse_them() -> Result<()> {
    let users = "authorization { users = [ { user: admin, password: admin }, \
                 { user: app, password: \"another\" } ] }\nno_auth_user: admin\n";
    let stage = Stage::start_with(
        newest()?,
        |it| it.auth("scram-sha-256"),
        |it| it.config(users),
    )
    .await?;
    stage.postgres.create_database("shop").await?;
    let sql = "CREATE ROLE app LOGIN REPLICATION PASSWORD 'another'";
    stage.postgres.sql("shop", sql).await?;
    let folder = tempfile::tempdir()?;
    let (postgres, nats) = (stage.postgres.port(), stage.nats.port());
    for (what, caller) in callers(folder.path(), postgres, nats)? {
        try_all(&format!("{what}, refused by PostgreSQL"), &caller).await?;
    }
    // With the right password for PostgreSQL it is NATS that refuses.
    stage
        .postgres
        .sql("shop", &format!("ALTER ROLE app PASSWORD '{SECRET}'"))
        .await?;
    let sql = "CREATE TABLE outbox (id int, aggregate_type text, type text, payload text); \
               ALTER TABLE outbox OWNER TO app; GRANT CREATE ON DATABASE shop TO app";
    stage.postgres.sql("shop", sql).await?;
    // Without a slot it would not come so far as to ask NATS.
    for sql in [
        "CREATE PUBLICATION postrider FOR TABLE outbox WITH (publish = 'insert')",
        "SELECT pg_create_logical_replication_slot('postrider', 'pgoutput')",
    ] {
        stage.postgres.sql("shop", sql).await?;
    }
    for (what, caller) in callers(folder.path(), postgres, nats)? {
        try_streamer(&format!("{what}, refused by NATS"), &caller).await?;
    }
    Ok(())
}

#[tokio::test]
async fn secrets_stay_hidden_when_they_work() -> Result<()> {
    let users = format!(
        "authorization {{ users = [ {{ user: admin, password: admin }}, \
         {{ user: app, password: \"{SECRET}\" }} ] }}\nno_auth_user: admin\n"
    );
    let stage = Stage::start_with(
        newest()?,
        |it| it.auth("scram-sha-256"),
        |it| it.config(&users),
    )
    .await?;
    stage.postgres.create_database("shop").await?;
    let sql = format!(
        "CREATE ROLE app LOGIN REPLICATION PASSWORD '{SECRET}'; \
         CREATE TABLE outbox (id int, aggregate_type text, type text, payload text); \
         ALTER TABLE outbox OWNER TO app; GRANT CREATE ON DATABASE shop TO app"
    );
    stage.postgres.sql("shop", &sql).await?;
    let folder = tempfile::tempdir()?;
    let all = callers(folder.path(), stage.postgres.port(), stage.nats.port())?;
    // A token or a seed is no password of a user, so the callers with one are refused here.
    const OTHERS: [&str; 4] = ["token", "files of passwords", "credentials", "seed"];
    let uses_users = |what: &str| !OTHERS.iter().any(|other| what.contains(other));
    for (what, caller) in all.iter().filter(|(what, _)| uses_users(what)) {
        let loud = caller.clone().env("POSTRIDER_LOG", "trace");
        for words in [
            ["setup", "-vv"].as_slice(),
            &["run", "--until-caught-up", "-vv"],
            &["status", "--output", "json"],
            &["teardown"],
        ] {
            let ended = loud.finish(words).await?;
            let what = format!("{words:?} with {what}");
            ensure!(ended.code == Some(0), "{what}: {ended:?}");
            check(&what, &ended)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn secrets_stay_hidden_in_errors_about_the_configuration_itself() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = |text: &str| -> Result<Caller> {
        let path = folder.path().join("bad.toml");
        std::fs::write(&path, text)?;
        Ok(Caller::default().flag("--config", &path.display().to_string()))
    };
    let bad_postgres = [
        format!("postgres://app:{SECRET}@host:port/shop"),
        format!("postgres://app:{ENCODED}@host:99999999/shop"),
        format!("postgres://app:{ENCODED}@host/shop?sslmode=never"),
        format!("postgres://app@host/shop?password={ENCODED}&nonsense=1"),
        format!("mysql://app:{ENCODED}@host/shop"),
        format!("host=a password={SECRET} port=no"),
    ];
    let bad_nats = [
        format!("nats://app:{SECRET}@host:port"),
        format!("http://app:{ENCODED}@host"),
        format!("nats://{SECRET}@host:99999999"),
        format!("nats://app:{ENCODED}@host/path?x=1#y"),
    ];
    let mut callers: Vec<Caller> = bad_postgres
        .iter()
        .map(|url| Caller::at(url, "nats://127.0.0.1:9"))
        .collect();
    callers.extend(
        bad_nats
            .iter()
            .map(|url| Caller::at("postgres://a@127.0.0.1:9/b", url)),
    );
    for caller in &callers {
        let ended = caller.finish(&["setup", "-vv"]).await?;
        ensure!(matches!(ended.code, Some(1 | 2)), "{caller:?}: {ended:?}");
        check(&format!("{caller:?}"), &ended)?;
    }
    for text in [
        format!("[postgres]\npassword = {SECRET}\n"),
        format!("[postgres]\npassword = \"{SECRET}\n"),
        format!("[nats]\npassword = [\"{SECRET}\"]\n"),
        format!("[nats]\npasword = \"{SECRET}\"\n"),
        format!("[nats]\ntoken = \"{SECRET}\"\npassword = \"{SECRET}\"\n"),
    ] {
        let ended = file(&text)?.finish(&["setup", "-vv"]).await?;
        ensure!(ended.code == Some(2), "{text}: {ended:?}");
        check(&text, &ended)?;
    }
    Ok(())
}

#[tokio::test]
async fn no_flag_takes_a_secret_and_the_process_does_not_show_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let flags = ["--postgres-password", "--nats-password", "--nats-token"];
    for flag in flags {
        let caller = Caller::default().flag(flag, SECRET);
        let ended = caller.finish(&["run"]).await?;
        ensure!(ended.code == Some(2), "{flag}: {ended:?}");
        check(flag, &ended)?;
    }
    let help = Caller::default().finish(&["run", "--help"]).await?;
    let is_flag = |text: &str| {
        flags
            .iter()
            .any(|flag| text.split_whitespace().any(|it| it == *flag))
    };
    ensure!(!is_flag(&help.stdout), "{}", help.stdout);
    // Other users of the machine see a process's arguments. Nothing listens on port 9.
    for (what, caller) in callers(folder.path(), 9, 9)? {
        if what.contains("URL") && !what.contains("file") || what.contains("token and") {
            continue;
        }
        let mut run = caller.spawn(&["run"])?;
        let arguments = std::fs::read(format!("/proc/{}/cmdline", run.pid()?));
        wait_log(&mut run, &["next attempt in"]).await?;
        run.terminate()?;
        ended(&mut run).await?;
        let arguments = arguments.unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).to_lowercase();
        ensure!(!arguments.contains("s3cr3t"), "{what}: {arguments}");
    }
    Ok(())
}
