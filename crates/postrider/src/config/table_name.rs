//! Table names as SQL writes them: `outbox`, `public.outbox`, `"My Schema"."Out-Box"`.

use std::fmt;

use crate::config::fault::{Wrong, quote};
use crate::config::names::check_identifier;

/// Schema of a table name that has none. Not the `search_path`: it differs by role and session,
/// and two sessions must never mean two tables.
pub const DEFAULT_SCHEMA: &str = "public";

const HELP: &str = "write schema.table as in SQL, with double quotes around names that have \
                    capitals, dots or spaces: '\"My Schema\".\"Out-Box\"'";

/// Schema and table, each as stored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TableName {
    schema: String,
    table: String,
}

impl TableName {
    /// Reads a name as SQL does: without quotes, ASCII letters become lower-case; in double quotes
    /// everything stands for itself and `""` for one quote.
    ///
    /// # Errors
    /// For more than two parts, empty or over-long parts, and unquoted characters that SQL refuses.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let wrong = |what: &str| Wrong::new(format!("the table name {} {what}", quote(text)), HELP);
        let mut parts = Vec::new();
        let mut rest = text.trim();
        loop {
            let (part, tail) = match rest.strip_prefix('"') {
                Some(quoted) => {
                    quoted_part(quoted).ok_or_else(|| wrong("has a quote that is not closed"))?
                }
                None => bare_part(rest).map_err(|what| wrong(&what))?,
            };
            check_identifier(&part, "table name")?;
            parts.push(part);
            if tail.is_empty() {
                break;
            }
            rest = tail
                .strip_prefix('.')
                .ok_or_else(|| wrong("has text behind a quote"))?;
        }
        let mut parts = parts.into_iter();
        match (parts.next(), parts.next(), parts.next()) {
            (Some(table), None, None) => Ok(Self {
                schema: DEFAULT_SCHEMA.to_owned(),
                table,
            }),
            (Some(schema), Some(table), None) => Ok(Self { schema, table }),
            _ => Err(wrong("has more than two parts")),
        }
    }

    /// The schema, as stored.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The table, as stored.
    pub fn table(&self) -> &str {
        &self.table
    }
}

impl fmt::Display for TableName {
    /// `schema.table`, as stored, without quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.schema, self.table)
    }
}

/// The part up to its closing quote, and what follows.
fn quoted_part(text: &str) -> Option<(String, &str)> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let (before, after) = rest.split_once('"')?;
        part.push_str(before);
        match after.strip_prefix('"') {
            Some(tail) => {
                part.push('"');
                rest = tail;
            }
            None => return Some((part, after)),
        }
    }
}

/// The unquoted part up to a dot or the end, folded to lower case, and what follows.
fn bare_part(text: &str) -> Result<(String, &str), String> {
    let (part, tail) = text.split_at(text.find('.').unwrap_or(text.len()));
    let first = part.chars().next().ok_or("has an empty part")?;
    if first.is_ascii_digit() || first == '$' {
        return Err(format!("begins with {first:?}, which needs double quotes"));
    }
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii();
    match part
        .chars()
        .find(|c| !bare(*c) || c.is_whitespace() || c.is_control())
    {
        Some(c) => Err(format!("has {c:?} in it, which needs double quotes")),
        None => Ok((part.to_ascii_lowercase(), tail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<(String, String)> {
        let name = TableName::parse(text).ok()?;
        Some((name.schema().to_owned(), name.table().to_owned()))
    }

    fn pair(schema: &str, table: &str) -> Option<(String, String)> {
        Some((schema.to_owned(), table.to_owned()))
    }

    #[test]
    fn names_as_in_sql() {
        assert_eq!(parse("outbox"), pair("public", "outbox"));
        assert_eq!(parse("Audit.OutBox"), pair("audit", "outbox"));
        assert_eq!(
            parse(r#""My Schema"."Out-Box""#),
            pair("My Schema", "Out-Box")
        );
        assert_eq!(parse(r#"app."a.b""#), pair("app", "a.b"));
        assert_eq!(parse(r#""a""b""#), pair("public", "a\"b"));
        assert_eq!(parse("événements"), pair("public", "événements"));
    }

    #[test]
    fn bad_names() {
        for text in [
            "", ".", "a.", ".a", "a.b.c", "out-box", "my table", r#""a"#, r#""a"b"#, r#""""#,
            r#""a".""#, "1a", "a;b", "a\0",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse(&"a".repeat(64)), None);
        assert_eq!(parse(&"é".repeat(32)), None);
    }

    #[test]
    fn quoting_comes_back() {
        let name = TableName::parse(r#""My ""S"".x"."Out-Box""#).unwrap();
        let quoted = ::postgres::quote_qualified(name.schema(), name.table());
        assert_eq!(TableName::parse(&quoted).unwrap(), name);
        assert_eq!(name.to_string(), r#"My "S".x.Out-Box"#);
    }
}
