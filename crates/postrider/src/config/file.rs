//! The configuration file: TOML to values with their lines, every fault on the way collected.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::config::fault::{Fault, Place, Wrong, suggest};
use crate::config::keys::{KEYS, NOT_YET, OUTBOX_KEYS};

/// Largest configuration file, in bytes: thousands of outboxes fit.
pub const CONFIG_FILE_MAX_BYTES: usize = 1 << 20;

/// Most `[[outbox]]` tables: a publication of more is not one service's outbox.
const OUTBOX_MAX_COUNT: usize = 1000;

/// A value as the file has it.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    /// A string.
    Text(String),
    /// An integer, in decimal.
    Integer(String),
    /// A float, as written.
    Float(String),
    /// A boolean.
    Bool(bool),
    /// A table of names and values.
    Table(Vec<(String, usize, Raw)>),
    /// Anything else, by the name of its type.
    Other(&'static str),
}

impl Raw {
    /// The type's name in TOML.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Integer(_) => "integer",
            Self::Float(_) => "float",
            Self::Bool(_) => "boolean",
            Self::Table(_) => "table",
            Self::Other(name) => name,
        }
    }
}

/// A value and its line.
#[derive(Clone, Debug, PartialEq)]
pub struct Located {
    /// The value.
    pub raw: Raw,
    /// Its line, from 1.
    pub line: usize,
}

/// One `[[outbox]]`: its line and its known keys.
#[derive(Clone, Debug, PartialEq)]
pub struct OutboxTable {
    /// Line of the header.
    pub line: usize,
    /// Values by key.
    pub values: BTreeMap<&'static str, Located>,
}

/// What the file says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// Scalar keys by dotted name.
    pub values: BTreeMap<&'static str, Located>,
    /// The outboxes.
    pub outboxes: Vec<OutboxTable>,
    /// Whether there is a file whose values are not known, since it cannot be read or parsed.
    pub unread: bool,
    /// Faults of syntax and unknown keys.
    pub faults: Vec<Fault>,
}

/// Reads a file's text. A file with a fault of syntax yields no values: what the parser made of the
/// rest may not be what was meant.
pub fn parse(path: &Path, text: &str) -> Document {
    let mut reader = Reader {
        path,
        text,
        document: Document::default(),
    };
    let (root, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        reader.root(root.get_ref());
        return reader.document;
    }
    for error in errors {
        // Only the message: the error's own display repeats the line, which may hold a secret.
        let line = error.span().map(|span| reader.line(span.start));
        let place = Place::File {
            path: path.to_owned(),
            line,
        };
        reader
            .document
            .faults
            .push(Wrong::new(error.message().trim(), "").at(place, ""));
    }
    reader.document.faults.sort_by(|a, b| a.place.cmp(&b.place));
    reader.document.unread = true;
    reader.document
}

struct Reader<'a> {
    path: &'a Path,
    text: &'a str,
    document: Document,
}

impl Reader<'_> {
    fn line(&self, offset: usize) -> usize {
        let before = self
            .text
            .as_bytes()
            .get(..offset)
            .unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn fault(&mut self, offset: usize, key: &str, problem: &str, help: &str) {
        let place = Place::File {
            path: self.path.to_owned(),
            line: Some(self.line(offset)),
        };
        self.document
            .faults
            .push(Wrong::new(problem, help).at(place, key));
    }

    fn root(&mut self, root: &DeTable<'_>) {
        for (name, value) in root {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            match (name, value.get_ref()) {
                ("outbox", DeValue::Array(items)) => self.outboxes(items),
                ("outbox", DeValue::Table(_)) => {
                    self.fault(at, name, "[outbox] must be a list", "write [[outbox]]");
                }
                ("postgres" | "nats" | "delivery", DeValue::Table(table)) => {
                    self.section(name, table);
                }
                ("postgres" | "nats" | "delivery" | "outbox", _) => {
                    let problem = format!("{name} is not a table");
                    self.fault(
                        at,
                        name,
                        &problem,
                        &format!("write [{name}] on a line of its own"),
                    );
                }
                _ => self.unknown_top(at, name),
            }
        }
    }

    fn unknown_top(&mut self, at: usize, name: &str) {
        if let Some((_, what)) = NOT_YET.iter().find(|(key, _)| *key == name) {
            let problem = format!("this version of Postrider does not have {what}");
            return self.fault(at, name, &problem, "take it out");
        }
        let sections = ["postgres", "nats", "delivery", "outbox"];
        let help = match KEYS.iter().find(|key| key.leaf() == name) {
            Some(key) => format!("it belongs into [{}]", key.section()),
            None => match suggest(name, sections) {
                Some(section) => format!("did you mean {section}?"),
                None => "known: [postgres], [nats], [delivery], [[outbox]]".to_owned(),
            },
        };
        self.fault(at, name, "unknown key", &help);
    }

    fn section(&mut self, section: &str, table: &DeTable<'_>) {
        for (name, value) in table {
            let at = name.span().start;
            let path = format!("{section}.{}", name.get_ref());
            match KEYS.iter().find(|key| key.name == path) {
                Some(key) => {
                    let located = self.located(value);
                    self.document.values.insert(key.name, located);
                }
                None => self.unknown(at, &path, section, name.get_ref()),
            }
        }
    }

    fn unknown(&mut self, at: usize, path: &str, section: &str, name: &str) {
        let leaves = KEYS
            .iter()
            .filter(|key| key.section() == section)
            .map(|key| key.leaf());
        let leaves: Vec<&str> = leaves.collect();
        let help = match suggest(name, leaves.iter().copied()) {
            Some(leaf) => format!("did you mean {leaf}?"),
            None => match KEYS.iter().find(|key| key.leaf() == name) {
                Some(key) => format!("did you mean {}?", key.name),
                None => format!("keys of [{section}]: {}", leaves.join(", ")),
            },
        };
        self.fault(at, path, "unknown key", &help);
    }

    fn outboxes(&mut self, items: &[Spanned<DeValue<'_>>]) {
        if items.len() > OUTBOX_MAX_COUNT {
            let at = items.first().map_or(0, |item| item.span().start);
            let problem = format!("{} outboxes are too many", items.len());
            return self.fault(at, "outbox", &problem, "at most 1000");
        }
        for (index, item) in items.iter().enumerate() {
            let at = item.span().start;
            let DeValue::Table(table) = item.get_ref() else {
                let problem = "an outbox is not a table";
                self.fault(at, &outbox_path(index, ""), problem, "write [[outbox]]");
                continue;
            };
            let mut values = BTreeMap::new();
            for (name, value) in table {
                match OUTBOX_KEYS
                    .iter()
                    .find(|key| key.name == name.get_ref().as_ref())
                {
                    Some(key) => {
                        values.insert(key.name, self.located(value));
                    }
                    None => self.unknown_outbox(index, name.span().start, name.get_ref()),
                }
            }
            self.document.outboxes.push(OutboxTable {
                line: self.line(at),
                values,
            });
        }
    }

    fn unknown_outbox(&mut self, index: usize, at: usize, name: &str) {
        let path = outbox_path(index, name);
        let full = format!("outbox.{name}");
        if let Some((_, what)) = NOT_YET.iter().find(|(key, _)| *key == full) {
            let problem = format!("this version of Postrider does not have {what}");
            return self.fault(at, &path, &problem, "take it out");
        }
        let help = match suggest(name, OUTBOX_KEYS.iter().map(|key| key.name)) {
            Some(key) => format!("did you mean {key}?"),
            None => {
                let names: Vec<&str> = OUTBOX_KEYS.iter().map(|key| key.name).collect();
                format!("keys of [[outbox]]: {}", names.join(", "))
            }
        };
        self.fault(at, &path, "unknown key", &help);
    }

    fn located(&self, value: &Spanned<DeValue<'_>>) -> Located {
        Located {
            raw: self.raw(value.get_ref()),
            line: self.line(value.span().start),
        }
    }

    fn raw(&self, value: &DeValue<'_>) -> Raw {
        match value {
            DeValue::String(text) => Raw::Text(text.as_ref().to_owned()),
            DeValue::Integer(number) => {
                let decimal = i128::from_str_radix(number.as_str(), number.radix());
                Raw::Integer(decimal.map_or(number.as_str().to_owned(), |n| n.to_string()))
            }
            DeValue::Float(number) => Raw::Float(number.as_str().to_owned()),
            DeValue::Boolean(value) => Raw::Bool(*value),
            DeValue::Table(table) => {
                let entry = |(name, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
                    let name: &std::borrow::Cow<'_, str> = name.get_ref();
                    (
                        name.to_string(),
                        self.line(value.span().start),
                        self.raw(value.get_ref()),
                    )
                };
                Raw::Table(table.iter().map(entry).collect())
            }
            other => Raw::Other(other.type_str()),
        }
    }
}

/// `outbox[2].table`, counted from 1; without a name `outbox[2]`.
pub fn outbox_path(index: usize, name: &str) -> String {
    let dot = if name.is_empty() { "" } else { "." };
    format!("outbox[{}]{dot}{name}", index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> Vec<String> {
        let document = parse(Path::new("p.toml"), text);
        document.faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn values_keep_their_lines() {
        let document = parse(
            Path::new("p.toml"),
            "[postgres]\nslot = \"a\"\n[nats]\ntls_first = true\nreplicas = 0x3\n\
             [[outbox]]\ntable = \"t\"\nheaders = { \"A\" = \"b\" }\n",
        );
        assert_eq!(document.faults, []);
        let slot = Located {
            raw: Raw::Text("a".into()),
            line: 2,
        };
        assert_eq!(document.values["postgres.slot"], slot);
        assert_eq!(
            document.values["nats.replicas"].raw,
            Raw::Integer("3".into())
        );
        assert_eq!(document.outboxes.len(), 1);
        assert_eq!(document.outboxes[0].line, 6);
        let headers = Raw::Table(vec![("A".into(), 8, Raw::Text("b".into()))]);
        assert_eq!(document.outboxes[0].values["headers"].raw, headers);
    }

    #[test]
    fn unknown_keys_get_suggestions() {
        assert_eq!(
            faults("slot = \"x\"\n[postgras]\n[nats]\nstreem = \"A\"\nslot = \"x\"\nzzz = 1\n"),
            [
                "p.toml:5: nats.slot: unknown key\n    help: did you mean postgres.slot?",
                "p.toml:4: nats.streem: unknown key\n    help: did you mean stream?",
                "p.toml:6: nats.zzz: unknown key\n    help: keys of [nats]: url, url_file, user, \
                 password, password_file, token, token_file, credentials_file, nkey_file, tls_ca, \
                 tls_cert, tls_key, tls_first, stream, writers, max_message_bytes, replicas",
                "p.toml:2: postgras: unknown key\n    help: did you mean postgres?",
                "p.toml:1: slot: unknown key\n    help: it belongs into [postgres]",
            ]
        );
        assert_eq!(
            faults("[[outbox]]\ntabel = \"a\"\n[[outbox]]\nmark = \"m\"\n"),
            [
                "p.toml:2: outbox[1].tabel: unknown key\n    help: did you mean table?",
                "p.toml:4: outbox[2].mark: this version of Postrider does not have marking \
                 published rows\n    help: take it out",
            ]
        );
    }

    #[test]
    fn what_comes_later_is_refused_by_name() {
        for text in ["[[message]]\nprefix = \"a\"", "[http]\nlisten = \"a\""] {
            assert!(
                faults(text)[0].contains("this version of Postrider does not have"),
                "{text}"
            );
        }
    }

    #[test]
    fn wrong_shapes() {
        assert!(faults("[outbox]\ntable = \"a\"")[0].contains("write [[outbox]]"));
        assert!(faults("outbox = [1]")[0].contains("write [[outbox]]"));
        assert!(faults("postgres = 1")[0].contains("write [postgres]"));
    }

    #[test]
    fn syntax_faults_are_all_listed_and_repeat_nothing() {
        let text = "[postgres]\npassword = S3CR3T\nurl = \"postgres://u:S3CR3T\n[nats]\n\
                    token = \"a\" S3CR3T\nx = {S3CR3T\n";
        let all = faults(text);
        assert!(all.len() >= 2, "{all:?}");
        assert!(!all.join("\n").contains("S3CR3T"), "{all:?}");
        assert!(all[0].starts_with("p.toml:2: "), "{all:?}");
        assert_eq!(parse(Path::new("p"), text).values.len(), 0);
        assert!(faults("[nats]\nstream = \"a\"\nstream = \"b\"\n")[0].contains("duplicate key"));
    }
}
