//! No process and no folder outlives its owner, whatever ended it; and the same as another user.

// A test says by a panic that it failed; so do its helpers.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use postrider_testbed as testbed;
use testbed::{Nats, Postgres, Program, Progress, wait_until};

/// Tells the test `in_a_process_of_its_own` what to do; without it, it does nothing.
const ROLE_VARIABLE: &str = "TESTBED_TEST_ROLE";
const ROLE_TEST: &str = "in_a_process_of_its_own";

/// How long the owner may take to start its servers, and the guards to clean up after it: seconds
/// on an idle machine, and a guard's own limits add up to 5 s.
const PATIENCE: Duration = Duration::from_secs(120);

/// An account that every Linux system has.
const NOBODY: u32 = 65_534;

/// A process with its descendants, and its folder.
struct Traces {
    pids: Vec<u32>,
    folders: Vec<PathBuf>,
}

impl Traces {
    fn of(postgres: &mut Postgres, nats: &mut Nats, program: &mut Program) -> Self {
        let mut pids = vec![nats.pid().unwrap(), program.pid().unwrap()];
        let postmaster = postgres.pid().unwrap();
        pids.extend(children_of(postmaster));
        pids.push(postmaster);
        let folders = vec![
            postgres.socket_dir().to_path_buf(),
            nats.dir().to_path_buf(),
        ];
        Self { pids, folders }
    }

    fn left(&self) -> Option<String> {
        if let Some(pid) = self.pids.iter().find(|pid| is_alive(**pid)) {
            return Some(format!("process {pid}"));
        }
        let folder = self.folders.iter().find(|folder| folder.exists());
        folder.map(|folder| folder.display().to_string())
    }
}

fn stat_of(pid: u32) -> Option<(String, u32)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = text.rsplit(") ").next()?.split(' ');
    Some((fields.next()?.to_string(), fields.next()?.parse().ok()?))
}

fn is_alive(pid: u32) -> bool {
    stat_of(pid).is_some_and(|(state, _)| state != "Z")
}

fn children_of(parent: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| stat_of(*pid).is_some_and(|(_, its_parent)| its_parent == parent))
        .collect()
}

async fn start_all() -> (Postgres, Nats, Program) {
    let postgres = Postgres::builder().start().await.unwrap();
    let nats = Nats::builder().start().await.unwrap();
    let program = Program::builder("sleep").arg("600").spawn().unwrap();
    (postgres, nats, program)
}

#[tokio::test]
async fn a_dropped_handle_leaves_nothing_even_when_paused() {
    let (mut postgres, mut nats, mut program) = start_all().await;
    let traces = Traces::of(&mut postgres, &mut nats, &mut program);
    assert!(traces.pids.len() > 5, "the postmaster has children");
    assert!(traces.left().is_some());
    postgres.pause().unwrap();
    nats.pause().unwrap();
    drop((postgres, nats, program));
    assert_eq!(traces.left(), None);
}

#[tokio::test]
async fn a_panic_leaves_nothing() {
    let (sender, receiver) = mpsc::channel();
    let doomed = tokio::spawn(async move {
        let (mut postgres, mut nats, mut program) = start_all().await;
        sender
            .send(Traces::of(&mut postgres, &mut nats, &mut program))
            .unwrap();
        panic!("as a failed assertion would");
    });
    assert!(doomed.await.unwrap_err().is_panic());
    assert_eq!(receiver.recv().unwrap().left(), None);
}

#[tokio::test]
async fn kill_9_of_the_owner_leaves_nothing() {
    // Its stdin ends when we do, however that comes about, and it ends then.
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", ROLE_TEST, "--nocapture"])
        .env(ROLE_VARIABLE, "hold")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut traces = Traces {
        pids: Vec::new(),
        folders: Vec::new(),
    };
    for line in lines_of(&mut owner) {
        match line.split_once(' ') {
            Some(("pid", number)) => traces.pids.push(number.parse().unwrap()),
            Some(("folder", path)) => traces.folders.push(PathBuf::from(path)),
            _ if line == "ready" => break,
            _ => {}
        }
    }
    assert!(
        traces.pids.len() > 5 && traces.folders.len() == 2,
        "the owner started its servers"
    );
    assert!(traces.pids.iter().all(|pid| is_alive(*pid)));
    owner.kill().unwrap();
    owner.wait().unwrap();
    wait_until(PATIENCE, "the guards to clean up", async || {
        Ok(match traces.left() {
            None => Progress::Done(()),
            Some(left) => Progress::NotYet(format!("{left} is still there")),
        })
    })
    .await
    .unwrap();
}

/// What a child prints, as long as no line takes too long.
fn lines_of(child: &mut Child) -> impl Iterator<Item = String> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in lines.map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    std::iter::from_fn(move || receiver.recv_timeout(PATIENCE).ok())
}

/// Root runs this very file as an ordinary user, with a home that does not exist.
#[tokio::test]
async fn works_as_an_ordinary_user() {
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        // Then every other test of this file is this test.
        return;
    }
    let folder = tempfile::Builder::new()
        .prefix("postrider-")
        .tempdir_in("/tmp")
        .unwrap();
    chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    // The folder that cargo builds in may be closed to others.
    let program = folder.path().join("tests");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let output = Command::new(&program)
        .args(["--exact", ROLE_TEST, "--nocapture"])
        .current_dir(folder.path())
        .env(ROLE_VARIABLE, "round")
        .env("HOME", "/nonexistent")
        .env_remove("CARGO_TARGET_DIR")
        .uid(NOBODY)
        .gid(NOBODY)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("uid 65534: round done"),
        "{text}{errors}"
    );
}

/// Not a test by itself: the part of the two tests above that needs its own process.
#[tokio::test]
async fn in_a_process_of_its_own() {
    let Ok(role) = std::env::var(ROLE_VARIABLE) else {
        return;
    };
    let (mut postgres, mut nats, mut program) = start_all().await;
    let traces = Traces::of(&mut postgres, &mut nats, &mut program);
    if role == "hold" {
        for pid in &traces.pids {
            println!("pid {pid}");
        }
        for folder in &traces.folders {
            println!("folder {}", folder.display());
        }
        println!("ready");
        // Killed by the test, or ended with it.
        let mut nothing = Vec::new();
        std::io::stdin().read_to_end(&mut nothing).unwrap();
        return;
    }
    postgres.kill9().await.unwrap();
    postgres.start_again().await.unwrap();
    nats.pause().unwrap();
    nats.resume().unwrap();
    nats.restart().await.unwrap();
    assert_eq!(
        owner_of(postgres.socket_dir()),
        owner_of(Path::new("/proc/self"))
    );
    drop((postgres, nats, program));
    assert_eq!(traces.left(), None);
    println!("uid {}: round done", owner_of(Path::new("/proc/self")));
}

fn owner_of(path: &Path) -> u32 {
    fs::metadata(path).unwrap().uid()
}
