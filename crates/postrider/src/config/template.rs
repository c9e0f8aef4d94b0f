//! Checks of templates: text with `{column}` placeholders. `outbox` parses and renders them.

use outbox::{Part, Template};

use crate::config::fault::{Wrong, quote};
use crate::config::names::check_identifier;

/// Longest template, in bytes: more than any subject that NATS takes (its default line is 4 KiB).
const TEMPLATE_MAX_BYTES: usize = 1024;

/// Reads a template and checks the names in it.
fn parse(text: &str) -> Result<Template, Wrong> {
    if text.len() > TEMPLATE_MAX_BYTES {
        return Err(Wrong::new(
            format!("the template {} is too long", quote(text)),
            "at most 1024 bytes",
        ));
    }
    let template = Template::parse(text).map_err(|error| {
        let help = "a placeholder is a column name in braces, like {aggregate_type}";
        Wrong::new(format!("in the template {}: {error}", quote(text)), help)
    })?;
    for place in template.places() {
        check_identifier(place, "placeholder")?;
    }
    Ok(template)
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
    let parsed = parse(template)?;
    // With each placeholder as one letter, what is left must be a subject.
    let mut subject = String::new();
    for part in parsed.parts() {
        subject.push_str(match part {
            Part::Literal(text) => text,
            Part::Place(_) => "x",
        });
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
    if parse(template)?.places().any(|place| place != "table") {
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
