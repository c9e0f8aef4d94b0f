//! A short round of every target, each day the same: the seeds and many changes of them.

use postrider_fuzz_targets::short::{Until, round};
use postrider_fuzz_targets::{TARGETS, seeds};

/// Inputs per target: some seconds of an unoptimised build in all.
const INPUTS: u64 = 1_500;

/// The configuration takes milliseconds for each, as the program does at its start.
const CONFIG_INPUTS: u64 = 150;

#[test]
fn no_target_panics() {
    std::thread::scope(|scope| {
        for target in TARGETS {
            scope.spawn(move || {
                let inputs = if target.name == "config" {
                    CONFIG_INPUTS
                } else {
                    INPUTS
                };
                let result = round(target, 1, Until::Inputs(inputs));
                let finding = result.err().map(|found| (found.panic, found.input));
                assert!(finding.is_none(), "{}: {finding:?}", target.name);
            });
        }
    });
}

#[test]
fn every_target_has_seeds_within_its_limit() {
    for target in TARGETS {
        let seeds = seeds::of(target.name);
        assert!(
            seeds.len() >= 3,
            "{} has {} seeds",
            target.name,
            seeds.len()
        );
        assert!(seeds.iter().all(|seed| seed.len() <= target.max_len_bytes));
    }
}
