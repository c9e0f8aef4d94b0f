//! The files under `sql/`: one text for people with psql and for this program.
//!
//! The files use psql's own variables, `:"name"` for an identifier and `:'name'` for a literal.
//! What the program runs stands between `-- section: NAME` and `-- end section`; psql's own
//! commands stand outside, so that no interpreter of them is needed here.

use crate::quote::{quote_identifier, quote_literal};

pub(crate) const OUTBOX: &str = include_str!("../../../sql/outbox.sql");
pub(crate) const PUBLICATION_AND_SLOT: &str = include_str!("../../../sql/publication_and_slot.sql");
pub(crate) const ROLES: &str = include_str!("../../../sql/roles.sql");
pub(crate) const SLOT_LAG: &str = include_str!("../../../sql/slot_lag.sql");
pub(crate) const DEAD_LETTER: &str = include_str!("../../../sql/dead_letter.sql");

/// The statements of one section, without the marks. Empty if there is no such section, which a
/// test rules out for every section that is used.
pub(crate) fn section<'a>(file: &'a str, name: &str) -> &'a str {
    let mark = format!("-- section: {name}\n");
    file.split_once(&mark)
        .and_then(|(_, after)| after.split_once("-- end section"))
        .map_or("", |(section, _)| section)
}

/// Puts values in place of psql's variables. One pass, so that a value that looks like a variable
/// stays what it is.
pub(crate) fn render(section: &str, values: &[(&str, &str)]) -> String {
    let mut rendered = String::with_capacity(section.len() + 64);
    let mut rest = section;
    while let Some(colon) = rest.find(':') {
        let (before, at) = rest.split_at(colon);
        rendered.push_str(before);
        match variable(at, values) {
            Some((text, after)) => {
                rendered.push_str(&text);
                rest = after;
            }
            None => {
                // `::type` must not be taken for a variable at its second colon.
                let width = if at.starts_with("::") { 2 } else { 1 };
                let (colons, after) = at.split_at(width);
                rendered.push_str(colons);
                rest = after;
            }
        }
    }
    rendered.push_str(rest);
    rendered
}

/// Reads `:"name"` or `:'name'` at the beginning of `text`; `None` for any other colon and for
/// unknown names.
fn variable<'a>(text: &'a str, values: &[(&str, &str)]) -> Option<(String, &'a str)> {
    let quoted = text.strip_prefix(':')?;
    let (quote, write): (char, fn(&str) -> String) = match quoted.chars().next()? {
        '"' => ('"', quote_identifier),
        '\'' => ('\'', quote_literal),
        _ => return None,
    };
    let (name, after) = quoted.get(1..)?.split_once(quote)?;
    let (_, value) = values.iter().find(|(known, _)| *known == name)?;
    Some((write(value), after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_once_and_casts_are_left_alone() {
        let values = [("table", "a\"b:'slot'"), ("slot", "it's")];
        assert_eq!(
            render(
                "SELECT :'slot'::text, x::int FROM :\"table\" -- 10:30 :\"other\"",
                &values
            ),
            "SELECT 'it''s'::text, x::int FROM \"a\"\"b:'slot'\" -- 10:30 :\"other\"",
        );
    }

    #[test]
    fn every_section_is_there_and_needs_only_known_values() {
        let names = ["schema", "table", "index", "publication", "slot", "role"];
        let values = names.map(|name| (name, "x"));
        for (file, section_name) in [
            (OUTBOX, "table"),
            (OUTBOX, "index"),
            (PUBLICATION_AND_SLOT, "publication"),
            (PUBLICATION_AND_SLOT, "slot"),
            (PUBLICATION_AND_SLOT, "slot_with_failover"),
            (ROLES, "role"),
            (ROLES, "schema"),
            (ROLES, "table"),
            (ROLES, "dead_letters"),
            (ROLES, "monitor"),
            (SLOT_LAG, "slot_lag"),
            (DEAD_LETTER, "dead_letter"),
        ] {
            let text = section(file, section_name);
            assert!(text.contains(';'), "section {section_name} is missing");
            let rendered = render(text, &values);
            for left_over in [":\"", ":'", "\n\\"] {
                assert!(!rendered.contains(left_over), "{section_name}: {rendered}");
            }
        }
    }
}
