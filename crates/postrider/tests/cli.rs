//! The real binary: help, version, exit codes, faults, secrets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panic"
)]

use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// The binary with nothing in its environment.
fn postrider(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command
        .env_clear()
        .env("USER", "tester")
        .args(args)
        .stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A file in the folder that cargo gives to integration tests.
fn file(name: &str, content: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, content).unwrap();
    path
}

#[test]
fn help_of_every_command_has_an_example() {
    for command in ["setup", "run", "status", "teardown"] {
        for flag in ["--help", "-h"] {
            let output = postrider(&[command, flag]).output().unwrap();
            assert_eq!(output.status.code(), Some(0));
            let text = stdout(&output);
            assert!(text.contains("Example"), "{command}: {text}");
            assert!(text.contains(&format!("postrider {command}")), "{text}");
            assert_eq!(stderr(&output), "");
        }
    }
}

#[test]
fn help_shows_no_secret_of_the_environment() {
    let output = postrider(&["--help"])
        .env("DATABASE_URL", "postgres://u:S3CR3T@h/d")
        .env("POSTRIDER_NATS_TOKEN", "S3CR3T")
        .output()
        .unwrap();
    let text = stdout(&output);
    assert!(text.contains("--postgres-slot"), "{text}");
    assert!(!text.contains("S3CR3T"), "{text}");
}

#[test]
fn version() {
    let output = postrider(&["--version"]).output().unwrap();
    assert_eq!(
        stdout(&output),
        format!("postrider {}\n", env!("CARGO_PKG_VERSION"))
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn usage_errors_exit_2_and_3_for_status() {
    for (args, code) in [
        (&["run", "--nope"][..], 2),
        (&["nope"], 2),
        (&[], 2),
        (&["run"], 2),
        (&["setup", "--timeout", "soon"], 2),
        (&["-c", "/does/not/exist.toml", "run"], 2),
        (&["run", "--log-format", "xml"], 2),
        (&["status", "--nope"], 3),
        (&["status"], 3),
        (&["status", "--max-lag-bytes", "-1"], 3),
    ] {
        let output = postrider(args).output().unwrap();
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            stderr(&output)
        );
        assert_eq!(stdout(&output), "", "{args:?}");
        assert_ne!(stderr(&output), "", "{args:?}");
    }
}

#[test]
fn all_faults_at_once_before_any_connection() {
    let config = file(
        "all_faults.toml",
        "[postgres]\nurl = \"postgres://u:S3CR3T@127.0.0.1:1/d\"\n\
         [nats]\nstream = \"a.b\"\nmax_message_bytes = -1\nwritrs = \"shared\"\n\
         [delivery]\nmax_in_flight_bytes = \"99999999TiB\"\nconfirm_delay = nan\n\
         [[outbox]]\ntable = \"outbox\"\n[[outbox]]\ntable = \"public.outbox\"\n\
         headers = { \"Bad Header\" = \"x\" }\n",
    );
    let output = postrider(&["run", "--postgres-slot", "No Slot", "-c"])
        .arg(&config)
        .env("POSTRIDER_DELIVERY_ON_POISON", "explode")
        .output()
        .unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for part in [
        "error: 9 faults in the configuration; nothing was started",
        "--postgres-slot: a slot name has 1 to 63 lower-case letters",
        "POSTRIDER_DELIVERY_ON_POISON: \"explode\"",
        "all_faults.toml:4: nats.stream: ",
        "all_faults.toml:5: nats.max_message_bytes: \"-1\" is negative",
        "all_faults.toml:6: nats.writrs: unknown key\n    help: did you mean writers?",
        "all_faults.toml:8: delivery.max_in_flight_bytes: ",
        "all_faults.toml:9: delivery.confirm_delay: \"nan\" is not a duration",
        "all_faults.toml:13: outbox[2].table: two outboxes have the table",
        "all_faults.toml:14: outbox[2].headers: the header name \"Bad Header\"",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert!(!text.contains("S3CR3T"), "{text}");
}

#[test]
fn a_secret_shows_in_no_fault() {
    let misplaced = [
        (&["run", "postgres://u:S3CR3T@h/d"][..], ""),
        (&["run", "--postgres-slot", "postgres://u:S3CR3T@h/d"], ""),
        (&["run", "--postgres-url", "postgres://u:S3CR3T/x@h/d"], ""),
        (&["run", "--nats-url", "nats://u:S3CR3T/x@h"], ""),
        (&["run", "--nats-url", "http://S3CR3T@h"], ""),
        (
            &["-c", "/nope", "-vv", "run"],
            "postgres://u:S3CR3T%40x@h/d",
        ),
        (
            &["run", "--postgres-slot", "A"],
            "postgres://u:S3CR3T@x@h/d",
        ),
        (&["run"], "host=h password=S3CR3T"),
    ];
    for (args, url) in misplaced {
        let output = postrider(args).env("DATABASE_URL", url).output().unwrap();
        let text = stderr(&output) + &stdout(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(!text.contains("S3CR3T"), "{args:?}: {text}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let mut child = postrider(&["--help"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut text = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{text}");
    assert_eq!(text, "");
}
