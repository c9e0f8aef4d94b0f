//! The table of what is covered, in `README.md` beside this folder, names tests that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// One line of the table: its number and its tests.
struct Entry {
    number: u32,
    tests: Vec<String>,
}

fn entries() -> Result<Vec<Entry>> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
    let mut entries = Vec::new();
    for line in text.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, number, _, tests, _] = cells.as_slice() else {
            continue;
        };
        if let Ok(number) = number.parse() {
            let names = tests.split(',').map(|name| name.trim().trim_matches('`'));
            entries.push(Entry {
                number,
                tests: names.map(str::to_owned).collect(),
            });
        }
    }
    Ok(entries)
}

/// The names of all tests under a folder.
fn collect(folder: PathBuf, names: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        if path.is_dir() {
            collect(path, names)?;
        } else if path.extension().is_some_and(|it| it == "rs") {
            tests_of(&fs::read_to_string(&path)?, names);
        }
    }
    Ok(())
}

fn tests_of(source: &str, names: &mut BTreeSet<String>) {
    let mut marked = false;
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            marked = true;
        } else if let Some((before, after)) = line.split_once("fn ") {
            if marked && matches!(before, "" | "async ") {
                names.extend(after.split('(').next().map(str::to_owned));
            }
            marked = false;
        }
    }
}

#[test]
fn every_test_that_the_table_names_exists() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut names = BTreeSet::new();
    for folder in ["tests", "src", "../crates"] {
        collect(root.join(folder), &mut names)?;
    }
    let entries = entries()?;
    let known = |name: &&String| !names.contains(*name);
    let missing: Vec<_> = entries
        .iter()
        .flat_map(|it| &it.tests)
        .filter(known)
        .collect();
    ensure!(missing.is_empty(), "no such tests: {missing:?}");
    Ok(())
}

#[test]
fn every_line_has_tests_and_the_numbers_rise() -> Result<()> {
    let entries = entries()?;
    ensure!(entries.len() > 40, "only {} lines were read", entries.len());
    ensure!(entries.is_sorted_by(|one, next| one.number < next.number));
    let bare = |entry: &&Entry| entry.tests.iter().any(String::is_empty);
    let bare: Vec<u32> = entries.iter().filter(bare).map(|it| it.number).collect();
    ensure!(bare.is_empty(), "without a test: {bare:?}");
    Ok(())
}
