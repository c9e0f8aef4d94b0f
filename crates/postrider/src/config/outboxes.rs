//! `[[outbox]]`: the tables of the file to checked settings.

use std::collections::BTreeMap;

use outbox::{OutboxSpec, Role, Template};

use crate::config::fault::{Wrong, quote};
use crate::config::file::{Located, OutboxTable, Raw, outbox_path};
use crate::config::keys::{OUTBOX_KEYS, OutboxKind};
use crate::config::layers::Layers;
use crate::config::names::{check_header, check_identifier, check_stream};
use crate::config::table_name::TableName;
use crate::config::template::{check_key, check_subject};

/// Table without any `[[outbox]]`.
pub const DEFAULT_TABLE: &str = "outbox";
/// Most mapped headers of one outbox: a message with more is not one.
const HEADERS_MAX_COUNT: usize = 100;

/// Checks all outboxes. Without any there is one, the table `outbox`.
pub fn read(layers: &mut Layers<'_>, tables: &[OutboxTable], stream: &str) -> Vec<OutboxSpec> {
    let mut outboxes: Vec<OutboxSpec> = Vec::new();
    let default = OutboxTable {
        line: 0,
        values: Default::default(),
    };
    let implied = tables.is_empty();
    let tables = if implied {
        std::slice::from_ref(&default)
    } else {
        tables
    };
    for (index, table) in tables.iter().enumerate() {
        let Some(settings) = Reader {
            layers,
            index,
            table,
        }
        .settings(stream) else {
            continue;
        };
        let same = |other: &OutboxSpec| {
            (&other.schema, &other.table) == (&settings.schema, &settings.table)
        };
        if outboxes.iter().any(same) {
            let name = format!("{}.{}", settings.schema, settings.table);
            let line = table
                .values
                .get("table")
                .map_or(table.line, |value| value.line);
            let place = layers.file_place(Some(line));
            let problem = format!("two outboxes have the table {}", quote(&name));
            let help = "one [[outbox]] per table";
            layers
                .faults
                .push(Wrong::new(problem, help).at(place, outbox_path(index, "table")));
            continue;
        }
        outboxes.push(settings);
    }
    outboxes
}

struct Reader<'a, 'b> {
    layers: &'a mut Layers<'b>,
    index: usize,
    table: &'a OutboxTable,
}

impl Reader<'_, '_> {
    /// The settings, also if some other key than `table` is faulty: the faults are noted.
    fn settings(&mut self, nats_stream: &str) -> Option<OutboxSpec> {
        let mut texts = BTreeMap::new();
        for key in OUTBOX_KEYS
            .iter()
            .filter(|key| key.kind != OutboxKind::Headers)
        {
            if let Some(text) = self.text(key.name, key.kind, nats_stream) {
                texts.insert(key.name, text);
            }
        }
        let headers = self.headers();
        let table = match texts.remove("table") {
            Some(text) => text,
            None if self.table.values.contains_key("table") => return None,
            None => DEFAULT_TABLE.to_owned(),
        };
        let table = TableName::parse(&table).ok()?;
        let mut template = |name: &str| Template::parse(&texts.remove(name)?).ok();
        let mut spec = OutboxSpec {
            subject: template("subject"),
            dedup_id: template("dedup_id"),
            ordering_key: template("ordering_key"),
            headers,
            ..OutboxSpec::new(table.schema(), table.table())
        };
        for role in Role::ALL {
            // The key `headers` maps header names; the role's column has a key of its own.
            let key = if role == Role::Headers {
                "headers_column"
            } else {
                role.name()
            };
            spec.columns
                .extend(texts.remove(key).map(|column| (role, column)));
        }
        Some(spec)
    }

    fn fault(&mut self, line: usize, name: &str, wrong: Wrong) {
        let place = self.layers.file_place(Some(line));
        self.layers
            .faults
            .push(wrong.at(place, outbox_path(self.index, name)));
    }

    /// A key that is text.
    fn text(&mut self, name: &str, kind: OutboxKind, nats_stream: &str) -> Option<String> {
        let Located { raw, line } = self.table.values.get(name)?;
        let checked = match raw {
            Raw::Text(text) => check(text, name, kind, nats_stream).map(|()| text.clone()),
            _ => Err(wants("text in quotes", raw)),
        };
        checked.map_err(|wrong| self.fault(*line, name, wrong)).ok()
    }

    /// The mapped headers.
    fn headers(&mut self) -> Vec<(String, String)> {
        let Some(Located { raw, line }) = self.table.values.get("headers") else {
            return Vec::new();
        };
        let Raw::Table(entries) = raw else {
            let mut wrong = wants("a table of header names and columns", raw);
            wrong.help = "write { \"Tenant\" = \"tenant_id\" }; the column with a JSON object of \
                          headers is named by headers_column"
                .to_owned();
            self.fault(*line, "headers", wrong);
            return Vec::new();
        };
        if entries.len() > HEADERS_MAX_COUNT {
            let problem = format!("{} headers are too many", entries.len());
            self.fault(*line, "headers", Wrong::new(problem, "at most 100"));
            return Vec::new();
        }
        let mut headers: Vec<(String, String)> = Vec::new();
        for (name, line, column) in entries {
            let checked = check_header(name).and_then(|()| match column {
                Raw::Text(column) => check_identifier(column, "column").map(|()| column),
                other => Err(wants("the name of a column in quotes", other)),
            });
            match checked {
                Ok(_)
                    if headers
                        .iter()
                        .any(|(other, _)| other.eq_ignore_ascii_case(name)) =>
                {
                    let problem = format!("the header {} is mapped twice", quote(name));
                    let help = "header names differ by more than their capitals";
                    self.fault(*line, "headers", Wrong::new(problem, help));
                }
                Ok(column) => headers.push((name.clone(), column.clone())),
                Err(wrong) => self.fault(*line, "headers", wrong),
            }
        }
        headers
    }
}

fn wants(what: &str, raw: &Raw) -> Wrong {
    Wrong::new(
        format!("this wants {what}, and the value is a {}", raw.type_name()),
        "",
    )
}

fn check(text: &str, name: &str, kind: OutboxKind, nats_stream: &str) -> Result<(), Wrong> {
    match kind {
        OutboxKind::Table => TableName::parse(text).map(|_| ()),
        OutboxKind::Subject => check_subject(text),
        OutboxKind::Column | OutboxKind::Headers => check_identifier(text, "column"),
        OutboxKind::KeyTemplate if name == "dedup_id" => check_key(text, "{id}"),
        OutboxKind::KeyTemplate => check_key(text, "{aggregate_id}"),
        OutboxKind::Stream => {
            check_stream(text)?;
            if text == nats_stream {
                return Ok(());
            }
            let problem = format!(
                "the stream {} is not nats.stream ({}), and this version writes one stream only",
                quote(text),
                quote(nats_stream)
            );
            Err(Wrong::new(
                problem,
                "leave it out, or run one Postrider per stream",
            ))
        }
    }
}
