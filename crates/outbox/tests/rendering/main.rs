//! From row to message, seen from outside: pgoutput messages in, publishes and dead letters out.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a test fails by panicking"
)]

extern crate postrider_outbox as outbox;

mod any_values;
mod changes;
mod limits;
mod rules;
#[path = "../support/mod.rs"]
mod support;
mod usual_tables;
mod values;

use outbox::{DeadLetter, OutboxSpec, Outgoing, RelaySettings, Role, Template};

use support::send_row;
use support::wire::Val;

/// `public.outbox` with its columns found by their names.
fn spec() -> OutboxSpec {
    OutboxSpec::new("public", "outbox")
}

fn template(text: &str) -> Option<Template> {
    Some(Template::parse(text).unwrap())
}

fn with_columns(mut spec: OutboxSpec, columns: &[(Role, &str)]) -> OutboxSpec {
    spec.columns = columns
        .iter()
        .map(|(role, name)| (*role, (*name).to_owned()))
        .collect();
    spec
}

fn send(spec: &OutboxSpec, row: &[(&str, u32, Val<'_>)]) -> support::Bench {
    let columns: Vec<_> = row.iter().map(|(name, oid, _)| (*name, *oid)).collect();
    let values: Vec<_> = row.iter().map(|(.., value)| *value).collect();
    let settings = RelaySettings::new(vec![spec.clone()]);
    send_row(settings, &spec.schema, &spec.table, &columns, &values)
}

/// The one message that the row becomes.
fn message(spec: &OutboxSpec, row: &[(&str, u32, Val<'_>)]) -> Outgoing {
    let mut bench = send(spec, row);
    assert_eq!(bench.stop(), None);
    assert_eq!(bench.letters(), Vec::<&DeadLetter>::new());
    let mut sent = bench.take_sent();
    assert_eq!(sent.len(), 1);
    sent.remove(0)
}

/// The dead letter that the row becomes.
fn letter(spec: &OutboxSpec, row: &[(&str, u32, Val<'_>)]) -> DeadLetter {
    let bench = send(spec, row);
    assert_eq!(bench.stop(), None);
    assert!(bench.sent.is_empty());
    assert_eq!(bench.letters().len(), 1);
    bench.letters()[0].clone()
}

fn subject(row: &Outgoing) -> &str {
    std::str::from_utf8(&row.subject).unwrap()
}

fn header<'a>(row: &'a Outgoing, name: &str) -> Option<&'a str> {
    row.headers.get(name)
}

/// Everything that goes out, as text: subject, headers in their order, payload.
fn shown(row: &Outgoing) -> String {
    let headers = std::str::from_utf8(row.headers.as_block()).unwrap();
    let payload = std::str::from_utf8(&row.payload).unwrap();
    let headers = headers.replace("\r\n", "\n");
    format!("{}\n{headers}\n{payload}", subject(row))
}
