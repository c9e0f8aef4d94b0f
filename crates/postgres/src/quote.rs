//! Names and texts inside SQL and replication commands, which take no parameters.

/// A quoted identifier: `"` doubled, so that any name means itself.
#[must_use]
pub fn quote_identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A quoted literal for `standard_conforming_strings = on` or off: with a backslash inside, the
/// `E''` form is used, whose meaning does not depend on that setting.
#[must_use]
pub fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') {
        format!(" E'{}'", quoted.replace('\\', "\\\\"))
    } else {
        format!("'{quoted}'")
    }
}

/// `schema.table`, both quoted.
#[must_use]
pub fn quote_qualified(schema: &str, table: &str) -> String {
    format!("{}.{}", quote_identifier(schema), quote_identifier(table))
}

/// The value of `publication_names`: a literal that holds a list of quoted identifiers. The server
/// splits it with `SplitIdentifierString`, which folds unquoted names to lower case. The grammar of
/// replication commands knows `''` and no `E''`.
pub(crate) fn publication_names(names: &[String]) -> String {
    let list: Vec<String> = names.iter().map(|name| quote_identifier(name)).collect();
    format!("'{}'", list.join(",").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_means_itself() {
        for (name, quoted) in [
            ("outbox", "\"outbox\""),
            ("My-Outbox", "\"My-Outbox\""),
            ("select", "\"select\""),
            ("a\"b", "\"a\"\"b\""),
            ("it's", "\"it's\""),
            ("a.b", "\"a.b\""),
        ] {
            assert_eq!(quote_identifier(name), quoted);
        }
        assert_eq!(
            quote_qualified("Audit", "out\"box"),
            "\"Audit\".\"out\"\"box\""
        );
    }

    #[test]
    fn literals_do_not_depend_on_the_server_setting() {
        assert_eq!(quote_literal("it's"), "'it''s'");
        assert_eq!(quote_literal("a\\b"), " E'a\\\\b'");
    }

    #[test]
    fn publication_names_are_quoted_twice() {
        let names = |list: &[&str]| {
            publication_names(
                &list
                    .iter()
                    .map(|name| (*name).to_owned())
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(names(&["pub"]), "'\"pub\"'");
        assert_eq!(names(&["My Pub", "b"]), "'\"My Pub\",\"b\"'");
        assert_eq!(names(&["it's", "a\"b"]), "'\"it''s\",\"a\"\"b\"'");
    }
}
