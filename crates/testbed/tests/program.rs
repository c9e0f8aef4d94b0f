//! Running a program under test.

// A test says by a panic that it failed; so do its helpers.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use postrider_testbed::{Program, Progress, wait_until};

const LIMIT: Duration = Duration::from_secs(20);

fn shell(script: &str) -> Program {
    Program::builder("sh")
        .args(["-c", script])
        .env("GREETING", "hello")
        .spawn()
        .unwrap()
}

async fn wait_for_stdout(program: &Program, wanted: &str) {
    wait_until(LIMIT, "the program to print", async || {
        let text = program.stdout_text();
        Ok(Progress::when(text.contains(wanted), || text))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn output_and_exit_code_are_kept() {
    let mut program = shell("echo $GREETING; echo trouble >&2; exit 5");
    assert_eq!(program.wait_exit(LIMIT).await.unwrap(), Some(5));
    assert_eq!(program.stdout_text(), "hello\n");
    assert_eq!(program.stderr_text(), "trouble\n");
    assert!(!program.is_running());
    program.start_again().unwrap();
    assert_eq!(program.wait_exit(LIMIT).await.unwrap(), Some(5));
    assert_eq!(program.stdout_text(), "hello\nhello\n");
}

#[tokio::test]
async fn sigterm_can_be_caught_and_sigkill_cannot() {
    let script = "trap 'echo caught; exit 7' TERM; echo up; while :; do sleep 0.01; done";
    let mut program = shell(script);
    wait_for_stdout(&program, "up").await;
    program.terminate().unwrap();
    assert_eq!(program.wait_exit(LIMIT).await.unwrap(), Some(7));
    assert!(program.stdout_text().contains("caught"));

    program.start_again().unwrap();
    wait_for_stdout(&program, "up\ncaught\nup").await;
    assert!(program.wait_exit(Duration::from_millis(20)).await.is_err());
    program.pause().unwrap();
    program.resume().unwrap();
    program.kill9().await.unwrap();
    assert_eq!(program.wait_exit(LIMIT).await.unwrap(), None);
    assert!(
        program.terminate().is_err(),
        "there is nothing left to signal"
    );
}

#[tokio::test]
async fn peak_memory_is_read() {
    let mut program = shell("echo up; sleep 600");
    wait_for_stdout(&program, "up").await;
    let peak_bytes = program.rss_peak_bytes().unwrap();
    assert!((100 << 10..100 << 20).contains(&peak_bytes), "{peak_bytes}");
}

#[tokio::test]
async fn a_program_that_does_not_exist_ends_with_127() {
    let mut program = Program::builder("/nonexistent/postrider").spawn().unwrap();
    assert_eq!(program.wait_exit(LIMIT).await.unwrap(), Some(127));
    assert!(
        program.stderr_text().contains("not found"),
        "{}",
        program.stderr_text()
    );
}
