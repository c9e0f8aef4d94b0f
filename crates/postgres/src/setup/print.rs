//! Everything that setup would do, as SQL for a DBA.

use super::{SetupPlan, publication, slot, tables};
use crate::quote::quote_literal;
use crate::sql;

/// The statements of `plan` in their order, with explanations; runs in psql as it is. Without a
/// `major` version, the form for 17 and newer stands beside the one for older servers.
#[must_use]
pub fn print_sql(plan: &SetupPlan, user: &str, major: Option<u16>) -> String {
    let mut text = String::from(
        "-- Run each statement by itself, in this order: the publication must be committed before \
         the\n-- slot is made. Needs wal_level = logical.\n",
    );
    if plan.create_tables {
        text.push_str("\n-- The outbox tables.\n");
        for table in &plan.tables {
            for statement in tables::statements(table) {
                push(&mut text, &statement);
            }
        }
    }
    text.push_str("\n-- The publication, as the owner of the tables.\n");
    for statement in publication::statements(&plan.publication, &plan.tables) {
        push(&mut text, &statement);
    }
    if plan.dead_letters {
        text.push_str("\n-- Rows that JetStream cannot take.\n");
        push(&mut text, sql::section(sql::DEAD_LETTER, "dead_letter"));
    }
    text.push_str("\n-- The streamer's role and its rights; leave out what exists.\n");
    for table in &plan.tables {
        let values = [
            ("role", user),
            ("schema", table.schema.as_str()),
            ("table", table.name.as_str()),
        ];
        push(
            &mut text,
            &sql::render(sql::section(sql::ROLES, "roles"), &values),
        );
    }
    text.push_str("\n-- The slot. From now on PostgreSQL keeps WAL until it is confirmed.\n");
    match major {
        Some(major) => push(&mut text, &slot::statement(&plan.slot, major)),
        None => {
            text.push_str("-- PostgreSQL 17 and newer:\n");
            push(&mut text, &slot::statement(&plan.slot, 17));
            text.push_str("-- PostgreSQL 14 to 16 instead:\n");
            text.push_str(&commented(&slot::statement(&plan.slot, 16)));
        }
    }
    let name = quote_literal(&plan.slot);
    text.push_str(&format!(
        "\n-- To undo: SELECT pg_drop_replication_slot({}); and DROP PUBLICATION.\n",
        name.trim_start()
    ));
    text
}

fn push(text: &mut String, statement: &str) {
    text.push_str(statement.trim());
    text.push('\n');
}

fn commented(statement: &str) -> String {
    statement
        .lines()
        .map(|line| format!("-- {line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TableName;
    use std::time::Duration;

    #[test]
    fn the_publication_comes_before_the_slot_and_names_are_quoted() {
        let plan = SetupPlan {
            slot: "s".to_owned(),
            publication: "My Pub".to_owned(),
            tables: vec![TableName {
                schema: "Audit".to_owned(),
                name: "out-box".to_owned(),
            }],
            create_tables: true,
            dead_letters: true,
            slot_timeout: Duration::from_secs(30),
        };
        let text = print_sql(&plan, "relay", None);
        let place = |part: &str| {
            text.find(part)
                .unwrap_or_else(|| panic!("{part} not in {text}"))
        };
        assert!(place("CREATE TABLE IF NOT EXISTS \"Audit\".\"out-box\"") < place("CREATE PUB"));
        assert!(place("CREATE PUBLICATION \"My Pub\"") < place("pg_create_logical"));
        assert!(place("CREATE ROLE \"relay\"") > place("postrider.dead_letter"));
        assert!(place("false, false, true);") < place("-- SELECT pg_create_logical"));
        assert!(!text.contains(":\"") && !text.contains(":'"));
    }
}
