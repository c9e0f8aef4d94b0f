//! The README does what it says: each of its shell blocks is run here, by CI, or by people before a
//! release.

#![cfg(unix)]

use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use postrider_tests::{
    Ended, NatsVersion, PATIENCE, PgVersion, Program, Stage, Versions, program, read_stream,
};

/// What the README calls its servers; each stands for one of the testbed's.
const SUPERUSER_URL: &str = "postgres://postgres@localhost:5432/shop";
const ROLE_URL: &str = "postgres://postrider@localhost:5432/shop";
const BROKER_URL: &str = "nats://localhost:4222";

/// The blocks that are run here, in the order of the README.
const RUN_HERE: [&str; 7] = [
    "servers",
    "setup",
    "insert",
    "stream",
    "roles",
    "keep_size",
    "dead_letters",
];

/// The blocks that CI runs: each of their lines, the file that has it done, and the words there.
const RUN_BY_CI: [(&str, &str, &str, &str); 4] = [
    ("demo", "cargo xtask demo", ".ci/run", "cargo xtask demo"),
    (
        "build",
        "cargo build --release -p postrider",
        ".ci/run",
        "cargo build --release -p postrider",
    ),
    (
        "build",
        "export PATH=\"$PWD/target/release:$PATH\"",
        ".ci/run",
        "target/release/postrider --version",
    ),
    (
        "development",
        "cargo xtask test",
        ".ci/run",
        "cargo xtask test",
    ),
];

/// The commands that people run before a release, as CONTRIBUTING tells them to, and why CI does
/// not.
const RUN_BEFORE_A_RELEASE: [(&str, &str); 2] = [
    (
        "cargo xtask test --matrix",
        "eight servers instead of three: longer than a change should wait",
    ),
    ("cargo xtask ci", "it runs what CI runs"),
];

fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn readme() -> Result<String> {
    Ok(std::fs::read_to_string(root().join("README.md"))?)
}

/// The text of the fenced block after a marker.
fn block<'a>(readme: &'a str, marker: &str, language: &str) -> Result<&'a str> {
    let open = format!("<!-- {marker} -->\n```{language}\n");
    let (_, rest) = readme
        .split_once(&open)
        .with_context(|| format!("README lacks {open}"))?;
    let (text, _) = rest.split_once("```\n").context("a block is not closed")?;
    Ok(text)
}

/// Names of the blocks with `<!-- run: NAME -->`.
fn marked(readme: &str) -> impl Iterator<Item = &str> {
    readme
        .lines()
        .filter_map(|line| line.strip_prefix("<!-- run: ")?.strip_suffix(" -->"))
}

#[test]
fn every_command_of_the_readme_is_run_here_by_ci_or_before_a_release() -> Result<()> {
    let readme = readme()?;
    let contributing = std::fs::read_to_string(root().join("CONTRIBUTING.md"))?;
    let (_, release) = contributing
        .split_once("### Before a release\n")
        .context("CONTRIBUTING does not say what is run before a release")?;
    for name in marked(&readme) {
        let by_ci: Vec<_> = RUN_BY_CI.iter().filter(|(it, ..)| *it == name).collect();
        if RUN_HERE.contains(&name) {
            continue;
        }
        let text = block(&readme, &format!("run: {name}"), "sh")?;
        for line in text.lines() {
            let command = line.split(" # ").next().unwrap_or_default().trim();
            if RUN_BEFORE_A_RELEASE.iter().any(|(it, _)| *it == command) {
                ensure!(release.contains(command), "CONTRIBUTING lacks `{command}`");
                continue;
            }
            let known = by_ci.iter().find(|(_, it, ..)| *it == command);
            let (_, _, file, words) =
                known.with_context(|| format!("nobody runs `{command}` of the block {name}"))?;
            let there = std::fs::read_to_string(root().join(file))?;
            ensure!(there.contains(words), "{file} does not have `{words}`");
        }
    }
    let (blocks, marks) = (readme.matches("```sh\n").count(), marked(&readme).count());
    ensure!(
        blocks == marks,
        "{blocks} shell blocks and {marks} run marks"
    );
    Ok(())
}

/// A reader's shell: in the repository's folder, with the program, psql and a `nats` on the path.
struct Shell {
    folder: tempfile::TempDir,
    path: OsString,
    urls: [(&'static str, String); 3],
}

impl Shell {
    fn new(stage: &Stage) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("postrider-readme-")
            .tempdir()?;
        // Stands in for the NATS command line: writes down how it was called.
        let nats = folder.path().join("nats");
        std::fs::write(&nats, "#!/bin/sh\nprintf '%s\\n' \"$@\" >\"$0.called\"\n")?;
        std::fs::set_permissions(&nats, std::fs::Permissions::from_mode(0o755))?;
        let program = program()?;
        let own = std::env::var_os("PATH").unwrap_or_default();
        let first = [
            program.parent().context("the program has no folder")?,
            folder.path(),
            stage.postgres.bin_dir(),
        ];
        let all = first.map(Path::to_path_buf).into_iter();
        let path = std::env::join_paths(all.chain(std::env::split_paths(&own)))?;
        let urls = [
            (SUPERUSER_URL, stage.postgres.url("shop")),
            (ROLE_URL, stage.postgres.url_as("postrider", "", "shop")),
            (BROKER_URL, stage.nats.url()),
        ];
        Ok(Self { folder, path, urls })
    }

    /// A text of the README with the testbed's servers in place of its own.
    fn here(&self, text: &str) -> String {
        let replace = |text: String, (from, to): &(&str, String)| text.replace(from, to);
        self.urls.iter().fold(text.to_owned(), replace)
    }

    /// Runs a script after the `servers` block, whose variables the blocks share, and gives back
    /// its stdout. Its exit code must be 0.
    async fn run(&self, servers: &str, script: &str) -> Result<String> {
        let script = self.here(&format!("{servers}\n{script}"));
        let mut bash = Program::builder("bash")
            .args(["--norc", "-euo", "pipefail", "-c", &script])
            .env("PATH", &self.path)
            .env("PSQLRC", "/dev/null")
            .env("PAGER", "cat")
            .current_dir(&root())
            .spawn()?;
        let ended = Ended {
            code: bash.wait_exit(PATIENCE).await?,
            stdout: bash.stdout_text(),
            stderr: bash.stderr_text(),
        };
        ensure!(ended.code == Some(0), "{script}\nended with {ended:#?}");
        Ok(ended.stdout)
    }
}

#[tokio::test]
async fn the_readme_works_as_it_stands() -> Result<()> {
    let readme = readme()?;
    // The one whose fetched build has a psql.
    let versions = Versions {
        postgres: PgVersion::V18,
        nats: NatsVersion::Newest,
    };
    let stage = Stage::start(versions).await?;
    stage.postgres.create_database("shop").await?;
    let shell = Shell::new(&stage)?;
    let sh = |name: &str| block(&readme, &format!("run: {name}"), "sh");
    let servers = sh("servers")?;

    let (mut letters, mut status) = (String::new(), String::new());
    for name in marked(&readme).filter(|name| RUN_HERE.contains(name)) {
        if name == "dead_letters" {
            stream_by_file(&shell, &readme, servers).await?;
        }
        // The servers' own block stands before each of the others.
        let text = if name == "servers" { "" } else { sh(name)? };
        let said = shell.run(servers, text).await?;
        match name {
            "stream" => status = said,
            "dead_letters" => letters = said,
            _ => {}
        }
    }

    let called = std::fs::read_to_string(shell.folder.path().join("nats.called"))?;
    let nats_url = stage.nats.url();
    let wanted = ["--server", &nats_url, "stream", "get", "OUTBOX", "1"];
    ensure!(called.lines().eq(wanted), "nats was called with {called}");
    let holds_one = |line: &str| line.split_whitespace().take(2).eq(["messages", "1,"]);
    ensure!(status.lines().any(holds_one), "{status}");
    ensure!(letters.contains("headers_not_object"), "{letters}");

    let stored = read_stream(&stage.jetstream().await?, "OUTBOX").await?;
    let [first, second, third] = stored.as_slice() else {
        bail!("not the messages of the README: {stored:#?}");
    };
    let (subject, body) = (&first.subject, std::str::from_utf8(&first.payload)?);
    let promise = format!("The message has the subject `{subject}` and the body `{body}`");
    ensure!(first.sequence == 1, "{first:?}");
    ensure!(readme.contains(&promise), "README does not say: {promise}");
    ensure!(second.subject == "outbox.order.shipped", "{second:?}");
    ensure!(third.subject == "outbox.order.lost", "{third:?}");
    Ok(())
}

/// The configuration file of the README, with the role that its SQL has made: streams a good row
/// and parks a bad one, which is mended in its table then.
async fn stream_by_file(shell: &Shell, readme: &str, servers: &str) -> Result<()> {
    let file = shell.folder.path().join("postrider.toml");
    let text = block(readme, "file: postrider.toml", "toml")?;
    std::fs::write(&file, shell.here(text))?;
    let script = format!(
        "psql -q \"$DATABASE_URL\" -c \"INSERT INTO outbox \
         (aggregate_type, aggregate_id, type, headers) VALUES \
         ('order', '42', 'shipped', NULL), ('order', '42', 'lost', '[]')\"\n\
         env -u DATABASE_URL -u NATS_URL postrider -c {file:?} run --until-caught-up\n\
         psql -q \"$DATABASE_URL\" -c \"UPDATE outbox SET headers = NULL WHERE type = 'lost'\""
    );
    shell.run(servers, &script).await?;
    Ok(())
}
