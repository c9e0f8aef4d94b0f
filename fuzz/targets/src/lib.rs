//! What the fuzzers try: each target is a function of bytes that must not panic, whatever they are.
//!
//! `fuzz/fuzz_targets` gives them to libFuzzer, which needs a nightly compiler. [`short`] tries the
//! seeds and random changes of them with any compiler; it does not know which code it reached, so
//! it finds less, but it runs everywhere and every day.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a target says by a panic that it failed"
)]

mod answers;
mod config;
mod decode;
mod input;
mod nats_url;
mod postgres_url;
mod relay;
mod render;
pub mod seeds;
pub mod short;
mod template;

/// One target.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, of its seeds' folder too.
    pub name: &'static str,
    /// Tries one input.
    pub run: fn(&[u8]),
    /// Longest input that is worth trying, in bytes.
    pub max_len_bytes: usize,
}

/// All targets.
pub const TARGETS: [Target; 8] = [
    Target {
        name: "decode",
        run: decode::run,
        max_len_bytes: 65_536,
    },
    Target {
        name: "relay",
        run: relay::run,
        max_len_bytes: 2_048,
    },
    Target {
        name: "render",
        run: render::run,
        max_len_bytes: 4_096,
    },
    Target {
        name: "template",
        run: template::run,
        max_len_bytes: 512,
    },
    Target {
        name: "config",
        run: config::run,
        max_len_bytes: 4_096,
    },
    Target {
        name: "postgres_url",
        run: postgres_url::run,
        max_len_bytes: 1_024,
    },
    Target {
        name: "nats_url",
        run: nats_url::run,
        max_len_bytes: 1_024,
    },
    Target {
        name: "answers",
        run: answers::run,
        max_len_bytes: 8_192,
    },
];

/// The target with this name.
#[must_use]
pub fn named(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

/// Tries one input on the target with this name; libFuzzer comes in here.
///
/// # Panics
/// If there is no such target, or the input is a finding.
pub fn run(name: &str, input: &[u8]) {
    let target = named(name);
    assert!(target.is_some(), "no target is named {name}");
    if let Some(target) = target {
        (target.run)(input);
    }
}

/// Stands for a password in inputs; no output may hold it.
const HIDDEN: &str = "hushQ7x9";
