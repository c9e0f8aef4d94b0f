//! The publication: made as it should be, or checked as it is.

use super::{Finding, Object, Outcome, SetupPlan, SetupReport};
use crate::control::Control;
use crate::error::{Fault, PgError};
use crate::lag::SlotLag;
use crate::publication::{Publication, PublishedTable};
use crate::quote::quote_identifier;
use crate::sql;
use crate::table::{Column, TableInfo, TableKind, TableName};

/// The statements that make the publication: the first table as in the file, the others added.
pub(super) fn statements(publication: &str, tables: &[TableName]) -> Vec<String> {
    let mut statements = Vec::new();
    for table in tables {
        if statements.is_empty() {
            let values = [
                ("publication", publication),
                ("schema", table.schema.as_str()),
                ("table", table.name.as_str()),
            ];
            let section = sql::section(sql::PUBLICATION_AND_SLOT, "publication");
            statements.push(sql::render(section, &values).trim().to_owned());
        } else {
            statements.push(add_table(publication, table));
        }
    }
    statements
}

fn add_table(publication: &str, table: &TableName) -> String {
    format!(
        "ALTER PUBLICATION {} ADD TABLE {};",
        quote_identifier(publication),
        table.to_sql()
    )
}

/// Makes the publication if it is missing, in one transaction; checks it otherwise.
pub(super) async fn make(
    control: &Control,
    plan: &SetupPlan,
    report: &mut SetupReport,
) -> Result<Vec<Finding>, PgError> {
    let name = &plan.publication;
    if control.publication(name, &plan.tables).await?.is_some() {
        return find(control, plan, report).await;
    }
    if let Some(slot) = control.read_lag(&plan.slot).await? {
        return Ok(vec![too_young(plan, &slot)]);
    }
    let statements = statements(&plan.publication, &plan.tables).join("\n");
    // Several statements in one simple query are one transaction.
    match control
        .client()
        .batch_execute(&statements)
        .await
        .map_err(PgError::from)
    {
        Ok(()) => Ok(vec![Finding::new(
            Object::Publication,
            &plan.publication,
            Outcome::Made,
            "made, for inserts of the outbox tables only",
        )]),
        Err(error) if error.fault() == Fault::PermissionDenied => {
            let text = format!("cannot be made by this role: {}", error.one_line());
            Ok(vec![
                Finding::new(Object::Publication, &plan.publication, Outcome::Wrong, text)
                    .cured_by(format!("as the owner of the tables: {statements}")),
            ])
        }
        // Another setup was faster.
        Err(error)
            if error
                .server()
                .is_some_and(|server| server.code.as_str() == "42710") =>
        {
            find(control, plan, report).await
        }
        Err(error) if is_lock_timeout(&error) => Ok(vec![locked(control, plan, report).await?]),
        Err(error) => Err(error),
    }
}

/// A publication that was made now would be younger than the slot, which decodes every change with
/// the catalog of its time: up to 17 such a pair fails for ever, from 18 on rows are left out.
fn too_young(plan: &SetupPlan, slot: &SlotLag) -> Finding {
    let since = slot
        .confirmed_flush_lsn
        .map_or_else(|| "the slot was made".to_owned(), |lsn| lsn.to_string());
    let text = format!(
        "not there, while slot {} is: one made now would be younger than the slot, which cannot \
         stream with it; rows that committed after {since} are in the table alone",
        plan.slot
    );
    Finding::new(
        Object::Publication,
        &plan.publication,
        Outcome::Missing,
        text,
    )
    .of_fault(Fault::PublicationMissing)
}

fn is_lock_timeout(error: &PgError) -> bool {
    error
        .server()
        .is_some_and(|server| server.code.as_str() == "55P03")
}

/// Making a publication waits for all that hold a table against changes of its definition.
async fn locked(
    control: &Control,
    plan: &SetupPlan,
    report: &SetupReport,
) -> Result<Finding, PgError> {
    let oids: Vec<u32> = report.tables.iter().map(|table| table.oid).collect();
    let row = control
        .client()
        .query_opt(
            // The modes that conflict with SHARE UPDATE EXCLUSIVE (manual, "Table-Level Locks").
            "SELECT l.pid, COALESCE(a.application_name, ''), COALESCE(a.state, '') FROM pg_locks l \
             LEFT JOIN pg_stat_activity a ON a.pid = l.pid \
             WHERE l.relation = ANY($1) AND l.granted AND l.pid <> pg_backend_pid() AND l.mode IN \
             ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', \
             'AccessExclusiveLock') AND l.database = \
             (SELECT oid FROM pg_database WHERE datname = current_database()) LIMIT 1",
            &[&oids],
        )
        .await?;
    let holder = match row {
        Some(row) => {
            let (pid, name, state): (i32, String, String) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            format!("pid {pid} ({name}, {state})")
        }
        None => "another session".to_owned(),
    };
    let text = format!(
        "not made within {} s: {holder} holds a lock on a table",
        plan.slot_timeout.as_secs_f32()
    );
    Ok(
        Finding::new(Object::Publication, &plan.publication, Outcome::Wrong, text)
            .cured_by("let it end (SELECT pg_terminate_backend(PID)), or give a longer --timeout"),
    )
}

/// Checks the publication as it is. Of the report's tables, the columns are left that it sends.
pub(super) async fn find(
    control: &Control,
    plan: &SetupPlan,
    report: &mut SetupReport,
) -> Result<Vec<Finding>, PgError> {
    let mut findings = look(control, plan, &mut report.tables).await?;
    let is_fault = |it: &Finding| matches!(it.outcome, Outcome::Wrong | Outcome::Missing);
    if !findings.iter().any(is_fault) {
        let name = &plan.publication;
        let found = Finding::new(Object::Publication, name, Outcome::Found, "found");
        findings.insert(0, found);
    }
    Ok(findings)
}

/// What is wrong with the publication or worth a warning. Of the tables, the columns are left that
/// it sends.
pub(super) async fn look(
    control: &Control,
    plan: &SetupPlan,
    tables: &mut [TableInfo],
) -> Result<Vec<Finding>, PgError> {
    let name = &plan.publication;
    let Some(publication) = control.publication(name, &plan.tables).await? else {
        let missing = Finding::new(Object::Publication, name, Outcome::Missing, "not there");
        return Ok(vec![match control.read_lag(&plan.slot).await? {
            Some(_) => missing.of_fault(Fault::PublicationMissing),
            None => missing.cured_by("run `postrider setup`"),
        }]);
    };
    let major = control.server_version().major();
    let findings = verify(&publication, tables, major);
    for table in tables {
        let entry = publication.table(&table.name.schema, &table.name.name);
        if let Some(entry) = entry {
            table.columns.retain(|column| is_sent(entry, column, major));
        }
    }
    Ok(findings)
}

fn is_sent(entry: &PublishedTable, column: &Column, major: u16) -> bool {
    let listed = match &entry.columns {
        Some(published) => published.contains(&column.name),
        None => true,
    };
    listed && (!column.generated || major >= 18)
}

/// Everything about a publication that would lose rows (wrong) or surprise (warning).
fn verify(publication: &Publication, tables: &[TableInfo], major: u16) -> Vec<Finding> {
    let name = &publication.name;
    let quoted = quote_identifier(name);
    let finding = |outcome, text: String| Finding::new(Object::Publication, name, outcome, text);
    let mut findings = Vec::new();
    if !publication.inserts {
        findings.push(
            finding(Outcome::Wrong, "it does not publish inserts".to_owned()).cured_by(format!(
                "ALTER PUBLICATION {quoted} SET (publish = 'insert');"
            )),
        );
    }
    if publication.more_than_inserts {
        let text = "it publishes more than inserts: updates and deletes are sent for nothing, and \
                    fail in the application on tables without primary key";
        findings.push(finding(Outcome::Warning, text.to_owned()).cured_by(format!(
            "ALTER PUBLICATION {quoted} SET (publish = 'insert');"
        )));
    }
    if publication.all_tables {
        let text = "it is for all tables: rows of other tables are sent and thrown away";
        findings.push(finding(Outcome::Warning, text.to_owned()));
    }
    for table in tables {
        let via_leaf = table.kind == TableKind::Partitioned && !publication.via_root;
        if via_leaf {
            let text = format!(
                "{} is partitioned, and its rows would come under the names of its partitions",
                table.name
            );
            findings.push(finding(Outcome::Wrong, text).cured_by(format!(
                "ALTER PUBLICATION {quoted} SET (publish_via_partition_root = true);"
            )));
            continue;
        }
        match publication.table(&table.name.schema, &table.name.name) {
            None => findings.push(
                finding(Outcome::Wrong, format!("it lacks the table {}", table.name))
                    .cured_by(add_table(name, &table.name)),
            ),
            Some(entry) => findings.extend(verify_entry(name, table, entry, major)),
        }
    }
    let others = publication.other_tables;
    if others > 0 && !publication.all_tables {
        let text = format!("it holds {others} other tables, whose rows are thrown away");
        findings.push(finding(Outcome::Warning, text));
    }
    findings
}

/// Columns that are not published, and rows that are filtered.
fn verify_entry(
    publication: &str,
    table: &TableInfo,
    entry: &PublishedTable,
    major: u16,
) -> Vec<Finding> {
    let finding =
        |text: String| Finding::new(Object::Publication, publication, Outcome::Warning, text);
    let mut findings = Vec::new();
    if let Some(filter) = &entry.row_filter {
        let text = format!("it sends only rows of {} with {filter}", table.name);
        findings.push(finding(text));
    }
    let columns = table.columns.iter();
    let hidden = columns.filter(|column| !is_sent(entry, column, major));
    let hidden: Vec<&str> = hidden.map(|column| column.name.as_str()).collect();
    if !hidden.is_empty() {
        let text = format!(
            "it does not send these columns of {}: {}",
            table.name,
            hidden.join(", ")
        );
        findings.push(finding(text));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(kind: TableKind) -> TableInfo {
        let column = |name: &str, generated| Column {
            name: name.to_owned(),
            type_name: "text".to_owned(),
            generated,
        };
        TableInfo {
            name: TableName {
                schema: "Audit".to_owned(),
                name: "out\"box".to_owned(),
            },
            oid: 1,
            kind,
            unlogged: false,
            columns: vec![column("id", false), column("g", true)],
            readable: true,
        }
    }

    fn publication(tables: Vec<PublishedTable>) -> Publication {
        Publication {
            name: "p".to_owned(),
            inserts: true,
            more_than_inserts: false,
            all_tables: false,
            via_root: true,
            tables,
            other_tables: 0,
        }
    }

    fn entry(schema: &str, columns: Option<&[&str]>, filter: Option<&str>) -> PublishedTable {
        PublishedTable {
            schema: schema.to_owned(),
            name: "out\"box".to_owned(),
            columns: columns.map(|list| list.iter().map(|name| (*name).to_owned()).collect()),
            row_filter: filter.map(str::to_owned),
        }
    }

    fn texts(publication: &Publication, kind: TableKind, major: u16) -> Vec<(Outcome, String)> {
        let table = table(kind);
        let findings = verify(publication, &[table], major);
        findings
            .into_iter()
            .map(|finding| (finding.outcome, finding.to_string()))
            .collect()
    }

    #[test]
    fn a_publication_that_fits_is_silent() {
        let fits = publication(vec![entry("Audit", Some(&["id", "g"]), None)]);
        assert_eq!(texts(&fits, TableKind::Partitioned, 18), []);
    }

    #[test]
    fn what_would_lose_rows_is_wrong_and_names_the_cure() {
        let mut broken = publication(vec![entry("public", None, None)]);
        broken.inserts = false;
        let found = texts(&broken, TableKind::Ordinary, 15);
        assert!(
            found
                .iter()
                .any(|(outcome, text)| *outcome == Outcome::Wrong
                    && text
                        .contains("ALTER PUBLICATION \"p\" ADD TABLE \"Audit\".\"out\"\"box\";"))
        );
        assert!(
            found
                .iter()
                .any(|(_, text)| text.contains("SET (publish = 'insert')"))
        );

        broken.inserts = true;
        broken.via_root = false;
        let found = texts(&broken, TableKind::Partitioned, 15);
        assert!(
            found
                .iter()
                .any(|(outcome, text)| *outcome == Outcome::Wrong
                    && text.contains("publish_via_partition_root"))
        );
    }

    #[test]
    fn hidden_columns_and_filters_are_named() {
        let found = texts(
            &publication(vec![entry("Audit", Some(&["id"]), Some("(id > 5)"))]),
            TableKind::Ordinary,
            18,
        );
        assert_eq!(found.len(), 2);
        assert!(found[0].1.contains("(id > 5)") && found[1].1.ends_with(": g"));
        let old = texts(
            &publication(vec![entry("Audit", None, None)]),
            TableKind::Ordinary,
            14,
        );
        assert!(old[0].1.ends_with(": g"));
    }

    #[test]
    fn several_tables_are_one_publication() {
        let table = |name: &str| TableName {
            schema: "s".to_owned(),
            name: name.to_owned(),
        };
        let statements = statements("P", &[table("a"), table("b")]);
        assert_eq!(statements.len(), 2);
        assert!(statements[0].starts_with("CREATE PUBLICATION \"P\" FOR TABLE \"s\".\"a\""));
        assert_eq!(
            statements[1],
            "ALTER PUBLICATION \"P\" ADD TABLE \"s\".\"b\";"
        );
    }
}
