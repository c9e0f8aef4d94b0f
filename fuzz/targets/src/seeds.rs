//! The inputs to begin with: files of `fuzz/seeds/TARGET`, and the recorded messages for the
//! decoder.

use std::fs;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The seeds of a target, in a fixed order. A seed file is text; `\0` in it stands for a NUL, `\x`
/// and two digits for any byte.
///
/// # Panics
/// If a file cannot be read: the seeds are part of the repository.
#[must_use]
pub fn of(target: &str) -> Vec<Vec<u8>> {
    let folder = workspace().join("fuzz/seeds").join(target);
    let mut paths: Vec<_> = fs::read_dir(folder)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    paths.sort();
    let read = |path: &PathBuf| fs::read(path).unwrap();
    let mut seeds: Vec<_> = paths.iter().map(|path| unescaped(&read(path))).collect();
    if target == "decode" {
        seeds.extend(golden());
    }
    seeds
}

/// Writes the seeds of a target into a folder, as a corpus for libFuzzer.
///
/// # Errors
/// When the folder cannot be written.
pub fn write(target: &str, folder: &Path) -> std::io::Result<usize> {
    fs::create_dir_all(folder)?;
    let seeds = of(target);
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:04}")), seed)?;
    }
    Ok(seeds.len())
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, rest) {
            (b'\\', [b'0', ..]) => {
                out.push(0);
                rest = &rest[1..];
            }
            (b'\\', [b'x', digits @ ..]) => {
                let digits = std::str::from_utf8(&digits[..2]).unwrap();
                out.push(u8::from_str_radix(digits, 16).unwrap());
                rest = &rest[3..];
            }
            _ => out.push(byte),
        }
    }
    out
}

/// The messages recorded from real servers: each alone, and each session as a whole. A seed begins
/// with the protocol version, a message with its length.
fn golden() -> Vec<Vec<u8>> {
    let folder = workspace().join("crates/pgoutput/tests/golden");
    let mut seeds = Vec::new();
    for major in 14..=18 {
        let text = fs::read_to_string(folder.join(format!("pg{major}.txt"))).unwrap();
        let mut session: Vec<u8> = Vec::new();
        for line in text.lines() {
            let words: Vec<_> = line.split(' ').collect();
            match words.as_slice() {
                ["scenario", ..] if session.len() > 1 => seeds.push(session.clone()),
                ["proto", version, ..] => session = vec![version.parse::<u8>().unwrap() - 1],
                ["message", _, _, hex, ..] => {
                    let bytes = from_hex(hex);
                    let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
                    let message = [&length[..], &bytes].concat();
                    seeds.push([&session[..1], &message].concat());
                    session.extend(message);
                }
                _ => {}
            }
        }
        seeds.push(session);
    }
    seeds
}

fn from_hex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
