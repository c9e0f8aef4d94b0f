//! `cargo xtask test`: all that must hold before a change lands.

use anyhow::Result;
use clap::Args;
use testbed::{NatsVersion, PgVersion};

use crate::steps::{Steps, cargo};

/// How many histories the simulation runs through, each from its own seed: what two cores do in
/// well under a minute.
const SIMULATED_HISTORIES: u32 = 20_000;

/// Packages whose tests start real servers; they have steps of their own.
const SERVER_TEST_PACKAGES: [&str; 4] = [
    "postrider-testbed",
    "postrider-postgres",
    "postrider-jetstream",
    "postrider-tests",
];

/// The one of them whose tests each take a single nats-server, and so are run once for each.
const ONE_NATS_AT_A_TIME: &str = "postrider-jetstream";

/// Options of `cargo xtask test`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Tests on every server version: PostgreSQL 14 to 18, nats-server 2.10, 2.12 and the newest
    #[arg(long)]
    matrix: bool,

    /// All rounds of each fault and the full sizes, which takes an hour or more
    #[arg(long)]
    long: bool,
}

impl Options {
    fn postgres(&self) -> Vec<PgVersion> {
        if self.matrix {
            PgVersion::ALL.to_vec()
        } else {
            vec![PgVersion::V15, PgVersion::V18]
        }
    }

    fn nats(&self) -> Vec<NatsVersion> {
        if self.matrix {
            vec![NatsVersion::V2_10, NatsVersion::V2_12, NatsVersion::Newest]
        } else {
            vec![NatsVersion::Newest]
        }
    }
}

/// Runs all steps, up to the first that fails.
pub(crate) fn run(options: &Options) -> Result<()> {
    let mut steps = Steps::default();
    steps.command("format", &mut cargo(&["fmt", "--all", "--check"]))?;
    let lints = [
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    steps.command("lints", &mut cargo(&lints))?;
    let mut doc = cargo(&["doc", "--no-deps", "--workspace"]);
    steps.command("documentation", doc.env("RUSTDOCFLAGS", "-D warnings"))?;

    let mut unit = cargo(&["test", "--workspace"]);
    for package in SERVER_TEST_PACKAGES {
        unit.args(["--exclude", package]);
    }
    steps.command("unit tests", &mut unit)?;
    crate::deny::check(&mut steps)?;
    let mut simulation = crate::simulate::simulator();
    simulation.env("POSTRIDER_SIM_HISTORIES", SIMULATED_HISTORIES.to_string());
    steps.command(
        &format!("simulation of {SIMULATED_HISTORIES} histories"),
        &mut simulation,
    )?;

    let (postgres, nats) = (options.postgres(), options.nats());
    let (postgres_list, nats_list) = (list(&postgres), list(&nats));
    steps.step("servers", || {
        println!("PostgreSQL {postgres_list}; nats-server {nats_list}");
        // Some tests need the oldest and the newest, whatever is under test.
        let all_nats = [&nats[..], &[NatsVersion::V2_10, NatsVersion::Newest]].concat();
        let all_postgres = [&postgres[..], &[PgVersion::V18]].concat();
        testbed::prefetch(&all_postgres, &all_nats)
    })?;
    steps.command("the program", &mut cargo(&["build", "-p", "postrider"]))?;
    for package in SERVER_TEST_PACKAGES {
        let nats_lists = match package {
            ONE_NATS_AT_A_TIME => nats.iter().map(ToString::to_string).collect(),
            _ => vec![nats_list.clone()],
        };
        for nats_list in nats_lists {
            let mut tests = cargo(&["test", "-p", package]);
            tests
                .env("POSTRIDER_TEST_PG", &postgres_list)
                .env("POSTRIDER_TEST_NATS", &nats_list)
                .env("POSTRIDER_TEST_LONG", if options.long { "1" } else { "0" });
            let step = format!("tests on real servers: {package}, nats-server {nats_list}");
            steps.command(&step, &mut tests)?;
        }
    }
    steps.print_summary();
    Ok(())
}

/// As the testbed's `versions_under_test` reads it.
fn list(versions: &[impl ToString]) -> String {
    versions
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_has_every_postgres_and_the_oldest_nats() {
        let long = false;
        let options = Options { matrix: true, long };
        assert_eq!(list(&options.postgres()), "14,15,16,17,18");
        assert_eq!(list(&options.nats()), "2.10,2.12,newest");
        let options = Options {
            matrix: false,
            long,
        };
        assert_eq!(list(&options.postgres()), "15,18");
        assert_eq!(list(&options.nats()), "newest");
    }
}
