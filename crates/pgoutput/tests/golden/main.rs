//! The decoder against messages that real servers sent. See `record.sh` for where they come from.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod fixture;
mod hostile;
mod transcript;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use fixture::{SERVERS, folder, sessions};
use postrider_pgoutput::{Decoder, MessageKind};
use transcript::transcript;

/// The lines of `expected/NAME.txt` that hold for a server: one that begins with `18:` holds
/// from 18 on.
fn expected(name: &str, server: u32) -> Vec<String> {
    let path = folder().join("expected").join(format!("{name}.txt"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let holds = |line: &str| match line.split_once(": ") {
        Some((from, rest)) if from.parse::<u32>().is_ok() => {
            (server >= from.parse().unwrap()).then(|| rest.to_owned())
        }
        _ => Some(line.to_owned()),
    };
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(holds)
        .collect()
}

#[test]
fn every_scenario_reads_as_its_sql_says() {
    for server in SERVERS {
        for session in sessions(server) {
            let name = &session.name;
            let read = transcript(&session);
            let wanted = expected(name, server);
            assert_eq!(read, wanted, "{name} on {server}:\n{}\n", read.join("\n"));
        }
    }
}

#[test]
fn every_scenario_was_recorded() {
    for server in SERVERS {
        let recorded: BTreeSet<_> = sessions(server).into_iter().map(|s| s.name).collect();
        for entry in fs::read_dir(folder().join("sql")).unwrap() {
            let path = entry.unwrap().path();
            let sql = fs::read_to_string(&path).unwrap();
            let from = sql.lines().find_map(|line| line.strip_prefix("-- server "));
            if from.is_none_or(|from| server >= from.parse().unwrap()) {
                let name = Path::new(&path).file_stem().unwrap().to_str().unwrap();
                assert!(recorded.contains(name), "{name} on {server}");
            }
        }
    }
}

#[test]
fn every_kind_was_recorded_off_every_server_that_has_it() {
    let two_phase = [
        MessageKind::BeginPrepare,
        MessageKind::Prepare,
        MessageKind::CommitPrepared,
        MessageKind::RollbackPrepared,
        MessageKind::StreamPrepare,
    ];
    for server in SERVERS {
        let mut seen = BTreeSet::new();
        for session in sessions(server) {
            let mut decoder = Decoder::new(session.version);
            for row in &session.rows {
                seen.insert(decoder.decode(row.data.clone()).unwrap().kind().tag());
            }
        }
        for kind in MessageKind::ALL {
            let has = server >= 15 || !two_phase.contains(kind);
            assert_eq!(seen.contains(&kind.tag()), has, "{kind} on {server}");
        }
    }
}
