//! A configured outbox bound to the columns that its table has now.

use bytes::{BufMut, Bytes, BytesMut};
use pgoutput::{Name, Relation};

use super::encode::{push_header_value, push_token};
use super::spec::{OutboxSpec, Role};
use super::template::{Part, Template};

/// OIDs of the types that decide how a payload goes out (PostgreSQL, `pg_type.dat`).
mod type_oid {
    pub(super) const BYTEA: u32 = 17;
    pub(super) const INT8: u32 = 20;
    pub(super) const INT2: u32 = 21;
    pub(super) const INT4: u32 = 23;
    pub(super) const JSON: u32 = 114;
    pub(super) const JSONB: u32 = 3802;
}

/// The table cannot serve as the configured outbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableFault {
    /// A role that every row needs has no column.
    #[error(
        "table {table} has no column for {role} (looked for: {tried}); \
         name it with `{role} = \"COLUMN\"` in its [[outbox]]"
    )]
    NoColumn {
        /// `schema.table`.
        table: String,
        /// The role's name.
        role: &'static str,
        /// The names that were looked for.
        tried: String,
    },
    /// The configuration names a column that the table lacks.
    #[error("table {table} has no column {column:?}, which {place} names")]
    NamedColumnMissing {
        /// `schema.table`.
        table: String,
        /// The missing column.
        column: String,
        /// Where it is named.
        place: String,
    },
    /// No column could make a subject.
    #[error(
        "table {table} has neither topic nor aggregate_type nor type, of which the default subject \
         is made; give a `subject` in its [[outbox]]"
    )]
    NoSubject {
        /// `schema.table`.
        table: String,
    },
    /// Rows of two tables could have one dedup id.
    #[error(
        "ids of table {table} are integers, unique only in that table, and several outboxes share \
         the stream: put {{table}} into their dedup_id, for example \"{{table}}:{{id}}\""
    )]
    IdsCollide {
        /// `schema.table`.
        table: String,
    },
    /// A table that was streamed under one name now has another.
    #[error(
        "table {old} is now named {new}; name it so in [[outbox]], or rename it back, and start \
         again: its rows are kept by the slot until then"
    )]
    Renamed {
        /// `schema.table` at first sight.
        old: String,
        /// `schema.table` now.
        new: String,
    },
}

/// What a piece of subject, dedup id or ordering key is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Literal(Bytes),
    Value(usize),
    Topic(usize),
}

/// How the payload column's text becomes the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PayloadKind {
    Json,
    Bytea,
    Text,
}

/// A column and its place in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bound {
    pub(crate) index: usize,
    type_oid: u32,
}

/// Everything that rendering a row of one table needs, worked out once per Relation message.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// `schema.table`, safe in a header.
    pub(crate) table: Bytes,
    pub(crate) subject: Vec<Piece>,
    pub(crate) dedup_id: Vec<Piece>,
    pub(crate) ordering_key: Vec<Piece>,
    pub(crate) id: Bound,
    pub(crate) payload: Bound,
    pub(crate) payload_kind: PayloadKind,
    pub(crate) aggregate_type: Option<Bound>,
    pub(crate) aggregate_id: Option<Bound>,
    pub(crate) event_type: Option<Bound>,
    pub(crate) created_at: Option<Bound>,
    pub(crate) trace_parent: Option<Bound>,
    pub(crate) trace_state: Option<Bound>,
    pub(crate) headers_column: Option<Bound>,
    /// Header name, column index.
    pub(crate) headers: Vec<(String, usize)>,
    /// Ids are integers and the dedup id does not say of which table.
    pub(crate) ids_only_unique_in_table: bool,
}

impl Plan {
    /// Binds `spec` to the columns that `relation` has.
    ///
    /// # Errors
    ///
    /// If a needed or named column is missing.
    pub(crate) fn bind(spec: &OutboxSpec, relation: &Relation) -> Result<Self, TableFault> {
        let binder = Binder {
            spec,
            relation,
            table: table_name(relation),
        };
        let id = binder.required(Role::Id)?;
        let payload = binder.required(Role::Payload)?;
        let dedup_id = match &spec.dedup_id {
            Some(template) => binder.pieces(template, "dedup_id")?,
            None => vec![Piece::Value(id.index)],
        };
        let names_table = spec
            .dedup_id
            .as_ref()
            .is_some_and(|template| template.places().any(|place| place == "table"));
        let is_integer = matches!(
            id.type_oid,
            type_oid::INT2 | type_oid::INT4 | type_oid::INT8
        );
        Ok(Self {
            subject: binder.subject()?,
            dedup_id,
            ordering_key: binder.ordering_key()?,
            id,
            payload,
            payload_kind: match payload.type_oid {
                type_oid::JSON | type_oid::JSONB => PayloadKind::Json,
                type_oid::BYTEA => PayloadKind::Bytea,
                _ => PayloadKind::Text,
            },
            aggregate_type: binder.optional(Role::AggregateType)?,
            aggregate_id: binder.optional(Role::AggregateId)?,
            event_type: binder.optional(Role::Type)?,
            created_at: binder.optional(Role::CreatedAt)?,
            trace_parent: binder.optional(Role::TraceParent)?,
            trace_state: binder.optional(Role::TraceState)?,
            headers_column: binder.optional(Role::Headers)?,
            headers: binder.headers()?,
            ids_only_unique_in_table: is_integer && !names_table,
            table: header_safe(&binder.table),
        })
    }
}

impl Plan {
    /// The subject's parts, columns by the names that the table has now.
    pub(crate) fn parts(&self, relation: &Relation) -> impl Iterator<Item = Part> {
        self.subject.iter().map(|piece| match piece {
            Piece::Literal(text) => Part::Literal(String::from_utf8_lossy(text).into_owned()),
            Piece::Value(index) | Piece::Topic(index) => {
                let column = relation.columns.get(*index);
                Part::Place(
                    column
                        .map(|column| column.name.to_string())
                        .unwrap_or_default(),
                )
            }
        })
    }
}

/// Whether a table with these columns (name and type as PostgreSQL writes it) can serve as the
/// configured outbox, beside `others` outboxes in one stream.
///
/// # Errors
///
/// If a needed or named column is missing, or if dedup ids of several tables could collide.
pub fn check_columns<'a>(
    spec: &OutboxSpec,
    columns: impl IntoIterator<Item = (&'a str, &'a str)>,
    others: usize,
) -> Result<(), TableFault> {
    let relation = relation(spec, columns);
    let plan = Plan::bind(spec, &relation)?;
    if plan.ids_only_unique_in_table && others > 0 {
        let table = table_name(&relation);
        return Err(TableFault::IdsCollide { table });
    }
    Ok(())
}

/// Whether ids of a table with these columns are integers, unique only within the table, and the
/// dedup ids made of them do not name it: in a shared stream another writer may use the same.
pub fn ids_may_collide<'a>(
    spec: &OutboxSpec,
    columns: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> bool {
    Plan::bind(spec, &relation(spec, columns)).is_ok_and(|plan| plan.ids_only_unique_in_table)
}

/// A table as a Relation message would describe it, from its columns' names and types as
/// PostgreSQL writes them (`format_type`).
pub(crate) fn relation<'a>(
    spec: &OutboxSpec,
    columns: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Relation {
    let column = |(name, type_name): (&str, &str)| pgoutput::Column {
        flags: 0,
        name: Name::new(Bytes::copy_from_slice(name.as_bytes())),
        type_oid: match type_name {
            "bytea" => type_oid::BYTEA,
            "smallint" => type_oid::INT2,
            "integer" => type_oid::INT4,
            "bigint" => type_oid::INT8,
            "json" => type_oid::JSON,
            "jsonb" => type_oid::JSONB,
            _ => 0,
        },
        type_modifier: -1,
    };
    Relation {
        xid: None,
        id: 0,
        namespace: Name::new(Bytes::copy_from_slice(spec.schema.as_bytes())),
        name: Name::new(Bytes::copy_from_slice(spec.table.as_bytes())),
        replica_identity: pgoutput::ReplicaIdentity::Default,
        columns: columns.into_iter().map(column).collect(),
    }
}

/// `schema.table` as people write it, for messages and headers.
pub(crate) fn table_name(relation: &Relation) -> String {
    format!("{}.{}", relation.namespace, relation.name)
}

fn header_safe(text: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(text.len());
    push_header_value(&mut out, text.as_bytes());
    out.freeze()
}

/// Schema and table as two tokens: names may hold anything, blanks and wildcards too.
fn subject_safe(relation: &Relation) -> Bytes {
    let mut out = BytesMut::new();
    push_token(&mut out, relation.namespace.as_bytes(), true);
    out.put_u8(b'.');
    push_token(&mut out, relation.name.as_bytes(), false);
    out.freeze()
}

struct Binder<'a> {
    spec: &'a OutboxSpec,
    relation: &'a Relation,
    table: String,
}

impl Binder<'_> {
    fn column(&self, name: &str) -> Option<Bound> {
        self.relation
            .columns
            .iter()
            .enumerate()
            .find(|(_, column)| column.name == name)
            .map(|(index, column)| Bound {
                index,
                type_oid: column.type_oid,
            })
    }

    fn named(&self, name: &str, place: &str) -> Result<Bound, TableFault> {
        self.column(name)
            .ok_or_else(|| TableFault::NamedColumnMissing {
                table: self.table.clone(),
                column: name.to_owned(),
                place: place.to_owned(),
            })
    }

    /// The role's column: the configured one, else the first usual name that the table has.
    fn optional(&self, role: Role) -> Result<Option<Bound>, TableFault> {
        match self.spec.columns.iter().find(|(named, _)| *named == role) {
            Some((_, name)) => self
                .named(name, &format!("`{} = \"{name}\"`", role.name()))
                .map(Some),
            None => Ok(role.usual_names().iter().find_map(|name| self.column(name))),
        }
    }

    fn required(&self, role: Role) -> Result<Bound, TableFault> {
        self.optional(role)?.ok_or_else(|| TableFault::NoColumn {
            table: self.table.clone(),
            role: role.name(),
            tried: role.usual_names().join(", "),
        })
    }

    /// A template's pieces. A place is a role, else a column; `{table}` is the table's own name.
    fn pieces(&self, template: &Template, setting: &str) -> Result<Vec<Piece>, TableFault> {
        let place_piece = |name: &str| {
            if name == "table" {
                return Ok(Piece::Literal(match setting {
                    "subject" => subject_safe(self.relation),
                    _ => Bytes::copy_from_slice(self.table.as_bytes()),
                }));
            }
            let bound = match Role::named(name) {
                Some(role) => self.optional(role)?,
                None => None,
            };
            let index = match bound {
                Some(bound) => bound.index,
                None => {
                    self.named(name, &format!("{{{name}}} in `{setting}`"))?
                        .index
                }
            };
            let keeps_dots = setting == "subject" && name == Role::Topic.name();
            Ok(if keeps_dots {
                Piece::Topic(index)
            } else {
                Piece::Value(index)
            })
        };
        template
            .parts()
            .iter()
            .map(|part| match part {
                Part::Literal(text) => Ok(Piece::Literal(Bytes::copy_from_slice(text.as_bytes()))),
                Part::Place(name) => place_piece(name),
            })
            .collect()
    }

    fn subject(&self) -> Result<Vec<Piece>, TableFault> {
        if let Some(template) = &self.spec.subject {
            return self.pieces(template, "subject");
        }
        let prefix = Piece::Literal(Bytes::from_static(b"outbox."));
        if let Some(topic) = self.optional(Role::Topic)? {
            return Ok(vec![prefix, Piece::Topic(topic.index)]);
        }
        let dot = || Piece::Literal(Bytes::from_static(b"."));
        match (
            self.optional(Role::AggregateType)?,
            self.optional(Role::Type)?,
        ) {
            (Some(aggregate), Some(event)) => Ok(vec![
                prefix,
                Piece::Value(aggregate.index),
                dot(),
                Piece::Value(event.index),
            ]),
            (Some(only), None) | (None, Some(only)) => Ok(vec![prefix, Piece::Value(only.index)]),
            (None, None) => Err(TableFault::NoSubject {
                table: self.table.clone(),
            }),
        }
    }

    fn ordering_key(&self) -> Result<Vec<Piece>, TableFault> {
        match &self.spec.ordering_key {
            Some(template) => self.pieces(template, "ordering_key"),
            None => Ok(self
                .optional(Role::AggregateId)?
                .map(|bound| Piece::Value(bound.index))
                .into_iter()
                .collect()),
        }
    }

    fn headers(&self) -> Result<Vec<(String, usize)>, TableFault> {
        self.spec
            .headers
            .iter()
            .map(|(header, column)| {
                let bound = self.named(column, &format!("header {header:?}"))?;
                Ok((header.clone(), bound.index))
            })
            .collect()
    }
}
