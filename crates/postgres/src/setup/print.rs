//! Everything that setup would do, as SQL for a DBA.

use super::{SetupPlan, publication, slot, tables};
use crate::quote::{quote_identifier, quote_literal};
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
    push_roles(&mut text, plan, user, major.is_some());
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

/// The streamer's role, once, and its rights, those on the tables for each of them. A role that we
/// are connected as is there already.
fn push_roles(text: &mut String, plan: &SetupPlan, user: &str, exists: bool) {
    let role = [("role", user)];
    let section = |name| sql::render(sql::section(sql::ROLES, name), &role);
    if exists {
        let role = quote_identifier(user);
        text.push_str(&format!(
            "\n-- The rights of the role that asked for this. If it may not replicate yet:\n\
             -- ALTER ROLE {role} REPLICATION;\n"
        ));
    } else {
        text.push_str("\n-- The streamer's role and its rights; leave out what exists.\n");
        push(text, &section("role"));
    }
    let mut schemas = Vec::new();
    for table in &plan.tables {
        let values = [
            ("role", user),
            ("schema", table.schema.as_str()),
            ("table", table.name.as_str()),
        ];
        if !schemas.contains(&&table.schema) {
            schemas.push(&table.schema);
            push(
                text,
                &sql::render(sql::section(sql::ROLES, "schema"), &values),
            );
        }
        push(
            text,
            &sql::render(sql::section(sql::ROLES, "table"), &values),
        );
    }
    if plan.dead_letters {
        push(text, &section("dead_letters"));
    }
    push(text, &section("monitor"));
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

    #[test]
    fn the_role_is_printed_once_and_not_at_all_where_it_is_there() {
        let table = |schema: &str, name: &str| TableName {
            schema: schema.to_owned(),
            name: name.to_owned(),
        };
        let plan = SetupPlan {
            slot: "s".to_owned(),
            publication: "p".to_owned(),
            tables: vec![table("a", "x"), table("a", "y"), table("b", "x")],
            create_tables: false,
            dead_letters: true,
            slot_timeout: Duration::from_secs(30),
        };
        for (major, roles) in [(None, 1), (Some(18), 0)] {
            let text = print_sql(&plan, "relay", major);
            let count = |part: &str| text.matches(part).count();
            assert_eq!(count("CREATE ROLE"), roles, "{text}");
            assert_eq!(count("GRANT USAGE ON SCHEMA \"a\""), 1, "{text}");
            assert_eq!(count("GRANT SELECT ON"), 3, "{text}");
            assert_eq!(count("ON postrider.dead_letter TO"), 1, "{text}");
            assert_eq!(count("pg_monitor"), 1, "{text}");
        }
    }
}
