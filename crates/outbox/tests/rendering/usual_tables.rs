//! The tables that people have: they work as they are.

use super::support::wire::Val::{Null, Text};
use super::support::wire::oid;
use super::{message, shown, spec};
use crate::outbox::OutboxSpec;

#[test]
fn table_with_topic_and_payload() {
    let spec = OutboxSpec::new("public", "outbox609");
    let row = [
        ("id", oid::INT8, Text("22")),
        ("topic", oid::TEXT, Text("order.placed")),
        ("payload", oid::JSONB, Text(r#"{"order_id": 21}"#)),
        ("sent_at", oid::TIMESTAMPTZ, Null),
    ];
    let wanted = "\
outbox.order.placed
Nats-Msg-Id: 22
Outbox-Table: public.outbox609
Outbox-Position: 0/16B3748/0
Outbox-Source: 7001/1/shop/postrider
Content-Type: application/json

{\"order_id\": 21}";
    let row = message(&spec, &row);
    assert_eq!(shown(&row), wanted);
    assert_eq!(row.expected_last_sequence, Some(0));
    assert_eq!(row.settled, None);
}

#[test]
fn table_with_aggregate_id_type_and_published_at() {
    let row = [
        ("id", oid::INT8, Text("9223372036854775807")),
        ("aggregate_id", oid::TEXT, Text("order-17")),
        ("type", oid::TEXT, Text("OrderPlaced")),
        ("payload", oid::JSONB, Text(r#"{"total": 19.90}"#)),
        (
            "created_at",
            oid::TIMESTAMPTZ,
            Text("2026-02-03 04:05:06.789+00"),
        ),
        ("published_at", oid::TIMESTAMPTZ, Null),
    ];
    let wanted = "\
outbox.OrderPlaced
Nats-Msg-Id: 9223372036854775807
Outbox-Table: public.outbox
Outbox-Aggregate-Id: order-17
Outbox-Type: OrderPlaced
Outbox-Created-At: 2026-02-03T04:05:06.789Z
Outbox-Position: 0/16B3748/0
Outbox-Source: 7001/1/shop/postrider
Content-Type: application/json

{\"total\": 19.90}";
    assert_eq!(shown(&message(&spec(), &row)), wanted);
}

#[test]
fn table_of_debeziums_event_router() {
    let spec = OutboxSpec::new("inventory", "outboxevent");
    let row = [
        (
            "id",
            oid::UUID,
            Text("0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"),
        ),
        ("aggregatetype", oid::TEXT, Text("Order")),
        ("aggregateid", oid::TEXT, Text("123")),
        ("type", oid::TEXT, Text("OrderCreated")),
        ("payload", oid::JSONB, Text(r#"{"id": 123}"#)),
    ];
    let wanted = "\
outbox.Order.OrderCreated
Nats-Msg-Id: 0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0
Outbox-Table: inventory.outboxevent
Outbox-Aggregate-Type: Order
Outbox-Aggregate-Id: 123
Outbox-Type: OrderCreated
Outbox-Position: 0/16B3748/0
Outbox-Source: 7001/1/shop/postrider
Content-Type: application/json

{\"id\": 123}";
    assert_eq!(shown(&message(&spec, &row)), wanted);
}

#[test]
fn the_recommended_table() {
    let row = [
        ("id", oid::INT8, Text("1")),
        ("aggregate_type", oid::TEXT, Text("order")),
        ("aggregate_id", oid::TEXT, Text("o 1")),
        ("type", oid::TEXT, Text("placed")),
        ("payload", oid::JSONB, Text("{}")),
        (
            "headers",
            oid::JSONB,
            Text(r#"{"Tenant": "blue", "Retries": 3}"#),
        ),
        (
            "created_at",
            oid::TIMESTAMPTZ,
            Text("2026-02-03 04:05:06+00"),
        ),
    ];
    let sql = include_str!("../../../../sql/outbox.sql");
    let mut from = 0;
    for (column, ..) in &row {
        let definition = format!("\n    {column} ");
        let found = sql[from..].find(&definition);
        from += found.unwrap_or_else(|| panic!("outbox.sql has no column {column} here"));
    }
    let wanted = "\
outbox.order.placed
Nats-Msg-Id: 1
Outbox-Table: public.outbox
Outbox-Aggregate-Type: order
Outbox-Aggregate-Id: o 1
Outbox-Type: placed
Outbox-Created-At: 2026-02-03T04:05:06Z
Outbox-Position: 0/16B3748/0
Outbox-Source: 7001/1/shop/postrider
Tenant: blue
Retries: 3
Content-Type: application/json

{}";
    assert_eq!(shown(&message(&spec(), &row)), wanted);
}

#[test]
fn every_usual_column_name_is_found_and_the_first_wins() {
    let row = [
        ("event_type", oid::TEXT, Text("renamed")),
        ("event_id", oid::TEXT, Text("e-1")),
        ("body", oid::TEXT, Text("from body")),
        ("data", oid::TEXT, Text("from data")),
        (
            "timestamp",
            oid::TIMESTAMPTZ,
            Text("2026-02-03 04:05:06+00"),
        ),
        ("aggregatetype", oid::TEXT, Text("user")),
        ("traceparent", oid::TEXT, Text("00-4bf9-00f0-01")),
        ("tracestate", oid::TEXT, Text("vendor=1")),
    ];
    let wanted = "\
outbox.user.renamed
Nats-Msg-Id: e-1
Outbox-Table: public.outbox
Outbox-Aggregate-Type: user
Outbox-Type: renamed
traceparent: 00-4bf9-00f0-01
tracestate: vendor=1
Outbox-Created-At: 2026-02-03T04:05:06Z
Outbox-Position: 0/16B3748/0
Outbox-Source: 7001/1/shop/postrider
Content-Type: text/plain; charset=utf-8

from data";
    assert_eq!(shown(&message(&spec(), &row)), wanted);
    let row = [
        ("id", oid::TEXT, Text("1")),
        ("subject", oid::TEXT, Text("from.subject")),
        ("type", oid::TEXT, Text("unused")),
        ("payload", oid::TEXT, Text("")),
    ];
    let row = message(&spec(), &row);
    assert_eq!(super::subject(&row), "outbox.from.subject");
    assert_eq!(super::header(&row, "Outbox-Type"), Some("unused"));
}
