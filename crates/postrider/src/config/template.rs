//! Syntax of templates: text with `{column}` placeholders. Rendering is not done here.

use crate::config::fault::{Wrong, quote};
use crate::config::names::check_identifier;

/// Longest template, in bytes: more than any subject that NATS takes (its default line is 4 KiB).
const TEMPLATE_MAX_BYTES: usize = 1024;

/// A piece of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a str),
    Column(&'a str),
}

/// Splits a template into its parts.
fn parts(template: &str) -> Result<Vec<Part<'_>>, Wrong> {
    if template.len() > TEMPLATE_MAX_BYTES {
        let problem = format!("the template {} is too long", quote(template));
        return Err(Wrong::new(problem, "at most 1024 bytes"));
    }
    let braces = || {
        let problem = format!("the braces in {} do not match", quote(template));
        Wrong::new(
            problem,
            "a placeholder is a column name in braces, like {aggregate_type}",
        )
    };
    let mut parts = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.find(['{', '}']) {
        let (text, tail) = rest.split_at(open);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        let tail = tail.strip_prefix('{').ok_or_else(braces)?;
        let (column, after) = tail.split_once('}').ok_or_else(braces)?;
        if column.contains('{') {
            return Err(braces());
        }
        check_identifier(column, "placeholder")?;
        parts.push(Part::Column(column));
        rest = after;
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest));
    }
    Ok(parts)
}

/// Checks a subject template: tokens of text and placeholders, parted by dots.
///
/// # Errors
/// For empty tokens, wildcards, spaces, control and non-ASCII characters in its text, and for
/// subjects that belong to the server (`$...`) or to request inboxes (`_INBOX.`).
pub fn check_subject(template: &str) -> Result<(), Wrong> {
    let help = "write tokens and {column} placeholders parted by dots, like \
                outbox.{aggregate_type}.{type}";
    let wrong = |what: &str| {
        Err(Wrong::new(
            format!("the subject template {} {what}", quote(template)),
            help,
        ))
    };
    let parts = parts(template)?;
    // With each placeholder as one letter, what is left must be a subject.
    let mut subject = String::new();
    for part in &parts {
        subject.push_str(match part {
            Part::Text(text) => text,
            Part::Column(_) => "x",
        });
    }
    if subject.is_empty() {
        return wrong("is empty");
    }
    if let Some(c) = subject.chars().find(|c| !c.is_ascii_graphic()) {
        return wrong(&format!("has {c:?} in it"));
    }
    if let Some(c) = subject.chars().find(|c| "*>".contains(*c)) {
        return wrong(&format!("has the wildcard {c:?} in it"));
    }
    if subject.split('.').any(str::is_empty) {
        return wrong("has an empty token");
    }
    if subject.starts_with('$') {
        return wrong("begins with '$', which belongs to the server");
    }
    if subject.starts_with("_INBOX.") {
        return wrong("begins with _INBOX, which belongs to requests");
    }
    Ok(())
}

/// Checks a key template (`ordering_key`, `dedup_id`): at least one placeholder that is not
/// `{table}`, or all rows would share one key.
///
/// # Errors
/// For unmatched braces, and without such a placeholder.
pub fn check_key(template: &str, example: &str) -> Result<(), Wrong> {
    let varies = |part: &Part<'_>| matches!(part, Part::Column(column) if *column != "table");
    if parts(template)?.iter().any(varies) {
        return Ok(());
    }
    let problem = format!("the template {} is the same for every row", quote(template));
    Err(Wrong::new(
        problem,
        format!("name a column in braces, like {example}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects() {
        for template in [
            "outbox.{aggregate_type}.{type}",
            "{topic}",
            "a",
            "shop.{type}-v1",
            "a_b.{My Col}",
        ] {
            assert_eq!(check_subject(template), Ok(()), "{template}");
        }
        for template in [
            "",
            ".a",
            "a.",
            "a..b",
            "a b",
            "a.*",
            "a.>",
            "é",
            "a.{",
            "a.}",
            "a.{}",
            "{a{b}}",
            "$JS.API.{type}",
            "_INBOX.a",
            "a\n",
        ] {
            assert!(check_subject(template).is_err(), "{template:?}");
        }
        assert!(check_subject(&"a".repeat(2000)).is_err());
    }

    #[test]
    fn keys() {
        for template in ["{id}", "{table}:{id}", "{aggregate_type}/{aggregate_id}"] {
            assert_eq!(check_key(template, "{id}"), Ok(()), "{template}");
        }
        for template in ["", "id", "{table}", "{id", "x}"] {
            assert!(check_key(template, "{id}").is_err(), "{template:?}");
        }
    }
}
