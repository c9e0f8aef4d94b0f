//! The house rules that no other tool checks, over all sources of the workspace.
//!
//! Comments and literals are blanked out before code is looked at, so that a rule may be named
//! where it is explained.

// A test says by a panic that it failed; so do its helpers.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::fs;
use std::path::{Path, PathBuf};

const LINE_MAX_CHARS: usize = 100;
const FILE_MAX_LINES: usize = 600;
const FUNCTION_MAX_LINES: usize = 70;
/// The program's entry is a checklist.
const MAIN_MAX_LINES: usize = 150;

/// Words that stand for work left undone, each in two halves so that this file has none of them.
const UNFINISHED: [(&str, &str); 5] = [
    ("TO", "DO"),
    ("FIX", "ME"),
    ("XX", "X"),
    ("to", "do!"),
    ("#[ign", "ore"),
];

/// Rooms that decide without a clock, a socket, a thread or dice (design: "now is an argument").
const PURE_ROOMS: [&str; 2] = ["pgoutput", "outbox"];
const IMPURE_WORDS: [&str; 12] = [
    "tokio",
    "async_nats",
    "tokio_postgres",
    "std::net",
    "std::fs",
    "std::thread",
    "std::env",
    "Instant::now",
    "SystemTime",
    "tracing",
    "log::",
    "rand::",
];

/// Packages that users get, and what may not be among their dependencies.
const SHIPPED: [&str; 5] = ["pgoutput", "outbox", "postgres", "jetstream", "postrider"];
const NOT_SHIPPED: [&str; 2] = ["testbed", "xtask"];

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// A path as a fault names it.
fn shown(path: &Path) -> String {
    path.strip_prefix(workspace())
        .unwrap_or(path)
        .display()
        .to_string()
}

/// All files with this ending below the folder, with their text, build output left out.
fn files(folder: &Path, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    folders.push(path);
                }
            } else if name.ends_with(ending) {
                found.push((path.clone(), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort();
    found
}

fn sources() -> Vec<(PathBuf, String)> {
    let found = files(&workspace(), ".rs");
    assert!(found.len() > 20, "the sources were not found");
    found
}

fn assert_none(faults: &[String]) {
    assert!(
        faults.is_empty(),
        "{} faults:\n{}",
        faults.len(),
        faults.join("\n")
    );
}

/// The code with comments and the inside of literals turned into spaces, line for line.
fn code_only(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_end(bytes, at),
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(bytes, at),
            b'"' => string_end(bytes, at),
            b'r' if !is_word(bytes, at.wrapping_sub(1)) || bytes[at - 1] == b'b' => {
                raw_string_end(bytes, at).unwrap_or(at)
            }
            b'\'' => char_end(bytes, at).unwrap_or(at),
            _ => at,
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn is_word(bytes: &[u8], at: usize) -> bool {
    bytes
        .get(at)
        .is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

fn find(bytes: &[u8], from: usize, wanted: &[u8]) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    let found = rest
        .windows(wanted.len())
        .position(|window| window == wanted);
    found.map_or(bytes.len(), |position| from + position)
}

fn line_end(bytes: &[u8], at: usize) -> usize {
    find(bytes, at, b"\n")
}

fn comment_end(bytes: &[u8], at: usize) -> usize {
    let mut depth = 0_u32;
    let mut at = at;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if bytes[at..].starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..]
        .iter()
        .take_while(|byte| **byte == b'#')
        .count();
    let quote = at + 1 + hashes;
    if bytes.get(quote) != Some(&b'"') {
        return None;
    }
    let mut closing = vec![b'"'];
    closing.resize(1 + hashes, b'#');
    Some((find(bytes, quote + 1, &closing) + closing.len()).min(bytes.len()))
}

/// The end of a character literal; `None` for a lifetime.
fn char_end(bytes: &[u8], at: usize) -> Option<usize> {
    if bytes.get(at + 1) == Some(&b'\\') {
        return Some((find(bytes, at + 3, b"'") + 1).min(bytes.len()));
    }
    let text = std::str::from_utf8(bytes.get(at + 1..)?).ok()?;
    let width = text.chars().next()?.len_utf8();
    (bytes.get(at + 1 + width) == Some(&b'\'')).then_some(at + 2 + width)
}

/// Name, first line and number of lines of each function with a body, in blanked code.
fn functions(code: &str) -> Vec<(String, usize, usize)> {
    let bytes = code.as_bytes();
    let mut found = Vec::new();
    let mut at = find(bytes, 0, b"fn ");
    while at < bytes.len() {
        let begins_word = at == 0 || !is_word(bytes, at - 1);
        let name: String = code[at + 3..]
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        if begins_word
            && !name.is_empty()
            && let Some(end) = body_end(bytes, at)
        {
            let first = code[..at].matches('\n').count() + 1;
            let count = code[at..end].matches('\n').count() + 1;
            found.push((name, first, count));
        }
        at = find(bytes, at + 3, b"fn ");
    }
    found
}

/// Where the body of the function at `at` ends; `None` where it has none.
fn body_end(bytes: &[u8], at: usize) -> Option<usize> {
    let (mut brackets, mut braces) = (0_i32, 0_i32);
    for (offset, byte) in bytes.get(at..)?.iter().enumerate() {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b';' if brackets == 0 && braces == 0 => return None,
            b'{' => braces += 1,
            b'}' => {
                braces -= 1;
                if braces == 0 && brackets == 0 {
                    return Some(at + offset + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether `word` stands in `code` by itself, not as a part of a longer name.
fn has_word(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let after = at + word.len();
        let ends = word.ends_with(':') || !is_word(code.as_bytes(), after);
        ends && (at == 0 || !is_word(code.as_bytes(), at - 1))
    })
}

#[test]
fn lines_and_files_are_short() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        let path = shown(&path);
        let count = text.lines().count();
        if count > FILE_MAX_LINES {
            faults.push(format!("{path}: {count} lines, at most {FILE_MAX_LINES}"));
        }
        for (number, line) in text.lines().enumerate() {
            let width = line.chars().count();
            if width > LINE_MAX_CHARS {
                faults.push(format!("{path}:{}: {width} characters wide", number + 1));
            }
        }
    }
    let main = workspace().join("crates/postrider/src/main.rs");
    let count = fs::read_to_string(main).unwrap().lines().count();
    if count > MAIN_MAX_LINES {
        faults.push(format!(
            "main.rs of postrider: {count} lines, at most {MAIN_MAX_LINES}"
        ));
    }
    assert_none(&faults);
}

#[test]
fn functions_are_short() {
    let mut faults = Vec::new();
    for (path, text) in sources() {
        for (name, first, count) in functions(&code_only(&text)) {
            if count > FUNCTION_MAX_LINES {
                let path = shown(&path);
                faults.push(format!(
                    "{path}:{first}: `{name}` has {count} lines, at most {FUNCTION_MAX_LINES}"
                ));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn nothing_is_left_undone() {
    let mut faults = Vec::new();
    let mut all = sources();
    for ending in [".sql", ".sh", ".md", ".toml"] {
        all.extend(files(&workspace(), ending));
    }
    for (path, text) in all {
        for (number, line) in text.lines().enumerate() {
            for (head, tail) in UNFINISHED {
                let word = format!("{head}{tail}");
                if has_word(line, &word)
                    || (!word.starts_with(char::is_alphabetic) && line.contains(&word))
                {
                    faults.push(format!("{}:{}: {word}", shown(&path), number + 1));
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn libraries_are_documented() {
    let mut faults = Vec::new();
    for room in fs::read_dir(workspace().join("crates")).unwrap().flatten() {
        let path = room.path().join("src/lib.rs");
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        if !text.contains("#![warn(missing_docs)]") {
            faults.push(format!("{}: no #![warn(missing_docs)]", shown(&path)));
        }
        if !text.starts_with("//!") {
            faults.push(format!("{}: does not begin with its purpose", shown(&path)));
        }
    }
    assert_none(&faults);
}

#[test]
fn the_deciding_rooms_do_no_io() {
    let mut faults = Vec::new();
    for room in PURE_ROOMS {
        let folder = workspace().join("crates").join(room).join("src");
        let sources = files(&folder, ".rs");
        assert!(!sources.is_empty(), "no sources of {room}");
        for (path, text) in sources {
            let code = code_only(&text);
            for word in IMPURE_WORDS {
                if has_word(&code, word) {
                    faults.push(format!("{}: {word}", shown(&path)));
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn what_is_shipped_does_not_depend_on_test_tools() {
    let mut faults = Vec::new();
    for room in SHIPPED {
        let path = workspace().join("crates").join(room).join("Cargo.toml");
        let text = fs::read_to_string(&path).unwrap();
        let mut in_dependencies = false;
        for line in text.lines() {
            if line.starts_with('[') {
                in_dependencies = line == "[dependencies]";
            }
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if in_dependencies && NOT_SHIPPED.contains(&name) {
                faults.push(format!("{}: depends on {name}", shown(&path)));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn the_checks_see_through_comments_and_literals() {
    let text = "// tokio {\n/* a /* b */ { */ fn one() { let s = \"}\\\"{\"; let c = '{'; }\n\
                fn two<'a>(x: &'a str) {\n  let r = r#\"} \" {\"#;\n  let e = '\\'';\n}\n\
                fn three();\ntype F = fn (u8);\n";
    let code = code_only(text);
    assert_eq!(code.lines().count(), text.lines().count());
    assert!(!has_word(&code, "tokio"));
    let found = functions(&code);
    assert_eq!(
        found,
        [(String::from("one"), 2, 1), (String::from("two"), 3, 4)]
    );
    assert!(has_word("use tokio::net;", "tokio") && !has_word("my_tokio", "tokio"));
    assert!(has_word("rand::random()", "rand::") && !has_word("operand::x", "rand::"));
}
