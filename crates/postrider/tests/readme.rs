//! The README's tables are those of the code. `POSTRIDER_BLESS=1` writes them anew.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests fail by panic"
)]

use std::collections::BTreeSet;
use std::path::PathBuf;

use postrider::{cli, config, exit};

/// Every header that a message can carry, by the constants of the code.
const HEADERS: [&str; 17] = {
    use outbox::header::*;
    [
        MSG_ID,
        EXPECTED_STREAM,
        EXPECTED_LAST_SEQUENCE,
        TABLE,
        AGGREGATE_TYPE,
        AGGREGATE_ID,
        TYPE,
        CREATED_AT,
        POSITION,
        SETTLED,
        SOURCE,
        PAYLOAD,
        CONTENT_TYPE,
        ORIGIN,
        POSITION_ID,
        // Named by W3C, not by us.
        "traceparent",
        "tracestate",
    ]
};

fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../README.md")
}

/// Start and end of the text between the markers of a table.
fn block(readme: &str, name: &str) -> (usize, usize) {
    let open = format!("<!-- table: {name} -->\n");
    let start = readme
        .find(&open)
        .unwrap_or_else(|| panic!("README lacks {open}"))
        + open.len();
    let length = readme[start..]
        .find("<!-- /table -->")
        .expect("README lacks <!-- /table -->");
    (start, start + length)
}

#[test]
fn tables_are_those_of_the_code() {
    let tables = [
        ("flags", cli::flags_markdown()),
        ("keys", config::keys::markdown_table()),
        ("exit codes", exit::markdown_table()),
    ];
    let before = std::fs::read_to_string(path()).unwrap();
    let mut readme = before.clone();
    for (name, table) in tables {
        let (start, end) = block(&readme, name);
        readme.replace_range(start..end, &format!("\n{table}\n"));
    }
    if std::env::var_os("POSTRIDER_BLESS").is_some() {
        std::fs::write(path(), &readme).unwrap();
    } else {
        assert!(
            before == readme,
            "README.md is stale: run the test with POSTRIDER_BLESS=1"
        );
    }
}

#[test]
fn headers_are_those_of_the_code() {
    let readme = std::fs::read_to_string(path()).unwrap();
    let (start, end) = block(&readme, "headers");
    // Headers of a row stand in backquotes in its first cell.
    let first_cells = readme[start..end]
        .lines()
        .filter_map(|line| line.split('|').nth(1));
    let named: BTreeSet<&str> = first_cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    assert_eq!(named, BTreeSet::from(HEADERS));
}
