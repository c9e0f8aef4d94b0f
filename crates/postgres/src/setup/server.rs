//! Can this server serve a streamer, and may our role ask it to?

use super::{Finding, Object, Outcome};
use crate::control::Control;
use crate::error::{Fault, PgError};
use crate::session::ReplicationSession;
use crate::url::ConnectConfig;

/// Every reason at once why streaming could not work here.
pub(super) async fn check(
    config: &ConnectConfig,
    control: &Control,
    slot: &str,
) -> Result<Vec<Finding>, PgError> {
    let name = config.to_string();
    let mut findings = settings(&name, control, slot).await?;
    if let Some((text, cure)) = replication_right(config).await? {
        let finding = Finding::new(Object::Server, &name, Outcome::Wrong, text);
        findings.push(finding.cured_by(cure));
    }
    if !findings
        .iter()
        .any(|finding| finding.outcome == Outcome::Wrong)
    {
        let text = format!(
            "PostgreSQL {}, ready for streaming",
            control.server_version()
        );
        findings.insert(0, Finding::new(Object::Server, &name, Outcome::Found, text));
    }
    Ok(findings)
}

/// What the server's settings forbid or make risky.
async fn settings(name: &str, control: &Control, slot: &str) -> Result<Vec<Finding>, PgError> {
    let row = control
        .client()
        .query_one(
            "SELECT current_setting('wal_level'), \
             current_setting('max_replication_slots')::int8 \
             - (SELECT count(*) FROM pg_replication_slots), \
             EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $1), \
             current_setting('max_replication_slots'), pg_is_in_recovery(), \
             current_setting('max_slot_wal_keep_size')",
            &[&slot],
        )
        .await?;
    let mut findings = Vec::new();
    let mut add = |outcome, text: String, cure: &str| {
        findings.push(Finding::new(Object::Server, name, outcome, text).cured_by(cure));
    };
    let wal_level: &str = row.try_get(0)?;
    if wal_level != "logical" {
        add(
            Outcome::Wrong,
            format!("wal_level is {wal_level} and must be logical"),
            "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL",
        );
    }
    let (free, exists): (i64, bool) = (row.try_get(1)?, row.try_get(2)?);
    if free <= 0 && !exists {
        let max: &str = row.try_get(3)?;
        add(
            Outcome::Wrong,
            format!("all {max} replication slots are in use"),
            "ALTER SYSTEM SET max_replication_slots = ...; then restart PostgreSQL, or drop a \
             slot that is not used",
        );
    }
    if row.try_get::<_, bool>(4)? {
        add(
            Outcome::Wrong,
            "it is a standby, on which nothing can be made".to_owned(),
            "connect to the primary",
        );
    }
    if row.try_get::<_, &str>(5)? == "-1" {
        add(
            Outcome::Warning,
            "max_slot_wal_keep_size is -1: while the streamer is down, WAL may fill the disk"
                .to_owned(),
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        );
    }
    Ok(findings)
}

/// Tries a replication session, because only that tells: on managed services a role membership
/// stands for the attribute, and pg_hba.conf has its say.
async fn replication_right(config: &ConnectConfig) -> Result<Option<(String, String)>, PgError> {
    let error = match ReplicationSession::connect(config).await {
        Ok(session) => {
            session.close().await;
            return Ok(None);
        }
        Err(error) => error,
    };
    let role = config.user();
    Ok(Some(match error.fault() {
        Fault::PermissionDenied => (
            format!("the role {role:?} may not replicate"),
            format!(
                "ALTER ROLE {} REPLICATION; (managed services have a role to grant instead: see \
                 sql/roles.sql)",
                crate::quote::quote_identifier(role)
            ),
        ),
        Fault::AuthFailed => (
            format!(
                "pg_hba.conf refuses a replication session: {}",
                error.one_line()
            ),
            Fault::AuthFailed.cure().unwrap_or_default().to_owned(),
        ),
        Fault::TooManyConnections => (
            "no walsender is free".to_owned(),
            "ALTER SYSTEM SET max_wal_senders = ...; then restart PostgreSQL".to_owned(),
        ),
        Fault::Pooler => (
            format!("no replication session is possible: {}", error.one_line()),
            Fault::Pooler.cure().unwrap_or_default().to_owned(),
        ),
        _ => return Err(error),
    }))
}
