//! The outbox tables and the dead-letter table.

use super::{Finding, Object, Outcome, SetupPlan, SetupReport};
use crate::control::Control;
use crate::dead_letter::{DEAD_LETTER_TABLE, DeadLetterAccess};
use crate::error::PgError;
use crate::sql;
use crate::table::{TableInfo, TableKind, TableName};

/// Looks at every table of the plan, making the missing ones if `create`.
pub(super) async fn find(
    control: &Control,
    plan: &SetupPlan,
    create: bool,
    report: &mut SetupReport,
) -> Result<(), PgError> {
    for table in &plan.tables {
        let shown = table.to_string();
        let finding = |outcome, text: &str| Finding::new(Object::Table, &shown, outcome, text);
        let mut outcome = (Outcome::Found, "found");
        let mut info = control.table(table).await?;
        if info.is_none() && create {
            make(control, table).await?;
            outcome = (Outcome::Made, "made from sql/outbox.sql");
            info = control.table(table).await?;
        }
        let Some(info) = info else {
            report.findings.push(missing(control, table).await?);
            continue;
        };
        if let Some(text) = unfit(&info) {
            report.findings.push(finding(Outcome::Wrong, &text));
        } else {
            report.findings.push(finding(outcome.0, outcome.1));
        }
        if info.kind != TableKind::Other {
            report.tables.push(info);
        }
    }
    Ok(())
}

/// The statements that make an outbox table.
pub(super) fn statements(table: &TableName) -> Vec<String> {
    let index = format!("{}_created_at_idx", table.name);
    let values = [
        ("schema", table.schema.as_str()),
        ("table", table.name.as_str()),
        ("index", &index),
    ];
    ["table", "index"]
        .map(|name| sql::render(sql::section(sql::OUTBOX, name), &values))
        .to_vec()
}

async fn make(control: &Control, table: &TableName) -> Result<(), PgError> {
    for statement in statements(table) {
        control.client().batch_execute(&statement).await?;
    }
    Ok(())
}

/// A missing table, with the tables of the same name in other schemas or spellings: a name that
/// was not quoted is the usual reason.
pub(super) async fn missing(control: &Control, table: &TableName) -> Result<Finding, PgError> {
    let rows = control
        .client()
        .query(
            "SELECT format('%I.%I', n.nspname, c.relname) \
             FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE lower(c.relname) = lower($1) AND c.relkind IN ('r', 'p') ORDER BY 1 LIMIT 5",
            &[&table.name],
        )
        .await?;
    let mut similar: Vec<String> = Vec::new();
    for row in rows {
        similar.push(row.try_get(0)?);
    }
    let text = if similar.is_empty() {
        "there is no such table in this database".to_owned()
    } else {
        format!("there is no such table; there is {}", similar.join(", "))
    };
    Ok(
        Finding::new(Object::Table, &table.to_string(), Outcome::Missing, text)
            .cured_by("name an existing table, or run `postrider setup --create-table`"),
    )
}

/// Why a relation cannot be streamed.
pub(super) fn unfit(info: &TableInfo) -> Option<String> {
    if info.kind == TableKind::Other {
        return Some("it is no table but a view, foreign table or the like".to_owned());
    }
    if info.unlogged {
        return Some(format!(
            "it is unlogged or temporary, so its rows are not in the WAL (ALTER TABLE {} SET \
             LOGGED)",
            info.name.to_sql()
        ));
    }
    None
}

/// Whether rows can be parked, as a finding.
pub(super) async fn find_dead_letters(control: &Control) -> Result<Finding, PgError> {
    let finding =
        |outcome, text| Finding::new(Object::DeadLetterTable, DEAD_LETTER_TABLE, outcome, text);
    Ok(match control.dead_letter_access().await? {
        DeadLetterAccess::Writable => finding(Outcome::Found, "found"),
        DeadLetterAccess::NoRight => finding(
            Outcome::Warning,
            "this role may not write it, so that a poison row halts the streamer",
        )
        .cured_by("see sql/roles.sql"),
        DeadLetterAccess::Missing => finding(
            Outcome::Warning,
            "not there, so that a poison row halts the streamer",
        )
        .cured_by("run sql/dead_letter.sql or `postrider setup`"),
    })
}

/// Makes the dead-letter table where it is missing. A role that may not make it gets a warning:
/// streaming works without it.
pub(super) async fn make_dead_letters(control: &Control) -> Result<Finding, PgError> {
    if control.dead_letter_access().await? != DeadLetterAccess::Missing {
        return find_dead_letters(control).await;
    }
    let statements = sql::section(sql::DEAD_LETTER, "dead_letter");
    match control
        .client()
        .batch_execute(statements)
        .await
        .map_err(PgError::from)
    {
        Ok(()) => Ok(Finding::new(
            Object::DeadLetterTable,
            DEAD_LETTER_TABLE,
            Outcome::Made,
            "made from sql/dead_letter.sql",
        )),
        Err(error) if error.fault() == crate::Fault::PermissionDenied => {
            find_dead_letters(control).await
        }
        Err(error) => Err(error),
    }
}
