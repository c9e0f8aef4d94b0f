//! Looking again, while a streamer runs, at what it reads from.
//!
//! Rows of a table that left its publication simply do not come: on every version when the table
//! was taken out, and from server 18 on when the whole publication is gone. Nothing in the stream
//! tells, so the catalog has to. What was taken away and put back between two looks is known by its
//! new oid.

use pgoutput::Lsn;

use super::{Finding, Object, Outcome, SetupPlan, publication, tables};
use crate::control::Control;
use crate::error::PgError;
use crate::table::{TableInfo, TableName};

/// The oids of everything that a streamer reads from, at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watched {
    /// The end of the log at a moment before the look: what was found held from there on.
    pub as_of: Lsn,
    publication: Option<u32>,
    tables: Vec<WatchedTable>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct WatchedTable {
    name: TableName,
    oid: u32,
    /// Oid of its entry in the publication; none where the publication is for all tables or for
    /// those of a schema.
    entry: Option<u32>,
}

/// What a look has to say.
#[derive(Debug, Clone)]
pub struct Look {
    /// What is wrong or worth a warning.
    pub findings: Vec<Finding>,
    /// The outbox tables with the columns that the publication sends.
    pub tables: Vec<TableInfo>,
    /// To be given to the next look.
    pub watched: Watched,
}

impl Look {
    /// The first finding that keeps rows from coming.
    #[must_use]
    pub fn fault(&self) -> Option<&Finding> {
        let mut findings = self.findings.iter();
        findings.find(|finding| matches!(finding.outcome, Outcome::Wrong | Outcome::Missing))
    }
}

/// Looks at publication and tables; with `before`, also for what was made anew since then.
///
/// # Errors
/// A broken connection, or the server's error.
pub async fn look(
    control: &Control,
    plan: &SetupPlan,
    before: Option<&Watched>,
) -> Result<Look, PgError> {
    let as_of = control.wal_insert_position().await?;
    let mut findings = Vec::new();
    let mut infos = Vec::new();
    for name in &plan.tables {
        match control.table(name).await? {
            Some(info) => {
                let shown = name.to_string();
                findings.extend(
                    tables::unfit(&info)
                        .map(|text| Finding::new(Object::Table, &shown, Outcome::Wrong, text)),
                );
                infos.push(info);
            }
            None => findings.push(gone(control, name, before).await?),
        }
    }
    findings.extend(publication::look(control, plan, &mut infos).await?);
    let watched = identify(control, plan, as_of, &infos).await?;
    if let Some(before) = before {
        findings.extend(before.replaced(plan, &watched));
    }
    Ok(Look {
        findings,
        tables: infos,
        watched,
    })
}

/// A table that is no longer there under its name: perhaps under another one.
async fn gone(
    control: &Control,
    name: &TableName,
    before: Option<&Watched>,
) -> Result<Finding, PgError> {
    let known = before.and_then(|before| before.table(name));
    let Some(known) = known else {
        return tables::missing(control, name).await;
    };
    let sql = "SELECT n.nspname || '.' || c.relname FROM pg_class c \
               JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = $1";
    let finding =
        |text: String| Finding::new(Object::Table, &name.to_string(), Outcome::Missing, text);
    Ok(match control.client().query_opt(sql, &[&known.oid]).await? {
        Some(row) => {
            let now: String = row.try_get(0)?;
            finding(format!(
                "{}.{} is now named {now}",
                name.schema, name.name
            ))
            .cured_by("name it so in the configuration, or give it its old name again")
        }
        None => finding(format!("{}.{} was dropped", name.schema, name.name)).cured_by(
            "make it again, put it into the publication (`postrider setup` prints the statement), \
             and start again",
        ),
    })
}

async fn identify(
    control: &Control,
    plan: &SetupPlan,
    as_of: Lsn,
    infos: &[TableInfo],
) -> Result<Watched, PgError> {
    let oids: Vec<u32> = infos.iter().map(|info| info.oid).collect();
    let rows = control
        .client()
        .query(
            "SELECT p.oid, r.prrelid, r.oid FROM pg_publication p \
             LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = ANY($2) \
             WHERE p.pubname = $1",
            &[&plan.publication, &oids],
        )
        .await?;
    let mut entries = Vec::new();
    let mut publication = None;
    for row in rows {
        publication = Some(row.try_get(0)?);
        if let Some(relation) = row.try_get::<_, Option<u32>>(1)? {
            entries.push((relation, row.try_get::<_, u32>(2)?));
        }
    }
    let entry = |oid: u32| entries.iter().find(|(relation, _)| *relation == oid);
    let tables = infos.iter().map(|info| WatchedTable {
        name: info.name.clone(),
        oid: info.oid,
        entry: entry(info.oid).map(|(_, entry)| *entry),
    });
    Ok(Watched {
        as_of,
        publication,
        tables: tables.collect(),
    })
}

impl Watched {
    fn table(&self, name: &TableName) -> Option<&WatchedTable> {
        self.tables.iter().find(|table| table.name == *name)
    }

    /// What is there again and is not what it was. A table made anew is told only where its
    /// publication has to name it: for all tables, the new one streams from its first row.
    fn replaced(&self, plan: &SetupPlan, now: &Self) -> Vec<Finding> {
        let cure = "look in the table for rows that the stream lacks, then start again";
        let finding = |object, name: &str, text: String| {
            Finding::new(object, name, Outcome::Wrong, text).cured_by(cure)
        };
        let mut findings = Vec::new();
        if self.publication.is_some()
            && now.publication.is_some()
            && self.publication != now.publication
        {
            let text = "it was dropped and made anew".to_owned();
            findings.push(finding(Object::Publication, &plan.publication, text));
            return findings;
        }
        for table in &self.tables {
            let Some(other) = now.table(&table.name) else {
                continue;
            };
            if table.entry.is_none() || other.entry.is_none() || table.entry == other.entry {
                continue;
            }
            let TableName { schema, name } = &table.name;
            let text = if table.oid == other.oid {
                format!(
                    "table {schema}.{name} was taken out of it and put in again, or its columns \
                     or row filter were changed"
                )
            } else {
                format!("table {schema}.{name} was replaced by another of that name")
            };
            findings.push(finding(Object::Publication, &plan.publication, text));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched(publication: Option<u32>, oid: u32, entry: Option<u32>) -> Watched {
        Watched {
            as_of: Lsn::ZERO,
            publication,
            tables: vec![WatchedTable {
                name: TableName {
                    schema: "public".to_owned(),
                    name: "outbox".to_owned(),
                },
                oid,
                entry,
            }],
        }
    }

    fn told(before: &Watched, now: &Watched) -> String {
        let plan = SetupPlan {
            slot: "s".to_owned(),
            publication: "p".to_owned(),
            tables: Vec::new(),
            create_tables: false,
            dead_letters: false,
            slot_timeout: std::time::Duration::ZERO,
        };
        let findings = before.replaced(&plan, now);
        let texts: Vec<_> = findings.into_iter().map(|it| it.text).collect();
        texts.join("; ")
    }

    #[test]
    fn what_was_made_anew_between_two_looks_is_told() {
        let before = watched(Some(1), 10, Some(100));
        assert_eq!(told(&before, &before), "");
        let anew = told(&before, &watched(Some(2), 10, Some(101)));
        assert_eq!(anew, "it was dropped and made anew");
        let out_and_in = told(&before, &watched(Some(1), 10, Some(101)));
        assert!(out_and_in.contains("put in again"), "{out_and_in}");
        let replaced = told(&before, &watched(Some(1), 11, Some(101)));
        assert!(replaced.contains("replaced by another"), "{replaced}");
        // Missing altogether is found by the look itself, and a table made anew under a
        // publication for all tables is streamed.
        assert_eq!(told(&before, &watched(None, 10, None)), "");
        let all = watched(Some(1), 10, None);
        assert_eq!(told(&all, &watched(Some(1), 11, None)), "");
    }
}
