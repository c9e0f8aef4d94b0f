//! Can this server serve a streamer, and may our role ask it to?

use super::{Finding, Object, Outcome};
use crate::control::Control;
use crate::error::{Fault, PgError};
use crate::session::ReplicationSession;
use crate::url::ConnectConfig;

/// Every reason at once why nothing could be made here, the right to replicate included.
pub(super) async fn check_all(
    config: &ConnectConfig,
    control: &Control,
    slot: &str,
) -> Result<Vec<Finding>, PgError> {
    let (mut findings, standby) = settings(control, slot).await?;
    if standby {
        let text = "it is a standby, on which nothing can be made";
        let finding = Finding::new(Object::Server, control.shown(), Outcome::Wrong, text);
        findings.push(finding.cured_by("connect to the primary"));
    }
    findings.extend(try_replication(config).await?);
    Ok(with_verdict(control, findings))
}

/// What of the server's settings is in the way of a streamer. The streamer's own session tells
/// whether it may replicate.
///
/// # Errors
/// A standby is an error that time may cure, not a finding.
pub(super) async fn check(control: &Control, slot: &str) -> Result<Vec<Finding>, PgError> {
    let (findings, standby) = settings(control, slot).await?;
    if standby {
        let host = control.shown().to_owned();
        return Err(PgError::Standby { host });
    }
    Ok(with_verdict(control, findings))
}

fn with_verdict(control: &Control, mut findings: Vec<Finding>) -> Vec<Finding> {
    if !findings
        .iter()
        .any(|finding| finding.outcome == Outcome::Wrong)
    {
        let text = format!(
            "PostgreSQL {}, ready for streaming",
            control.server_version()
        );
        let ready = Finding::new(Object::Server, control.shown(), Outcome::Found, text);
        findings.insert(0, ready);
    }
    findings
}

/// What the server's settings forbid or make risky, and whether it is a standby.
async fn settings(control: &Control, slot: &str) -> Result<(Vec<Finding>, bool), PgError> {
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
        let finding = Finding::new(Object::Server, control.shown(), outcome, text);
        findings.push(finding.cured_by(cure));
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
    if row.try_get::<_, &str>(5)? == "-1" {
        add(
            Outcome::Warning,
            "max_slot_wal_keep_size is -1: while the streamer is down, WAL may fill the disk"
                .to_owned(),
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf();",
        );
    }
    Ok((findings, row.try_get(4)?))
}

/// Tries a replication session, because only that tells: on managed services a role membership
/// stands for the attribute, and pg_hba.conf has its say.
async fn try_replication(config: &ConnectConfig) -> Result<Option<Finding>, PgError> {
    match ReplicationSession::connect(config).await {
        Ok(session) => {
            session.close().await;
            Ok(None)
        }
        Err(error) => match replication_refusal(config, &error) {
            Some(finding) => Ok(Some(finding)),
            None => Err(error),
        },
    }
}

/// What the error of a replication session says about rights and settings, with its cure; `None`
/// if it says nothing about them.
#[must_use]
pub fn replication_refusal(config: &ConnectConfig, error: &PgError) -> Option<Finding> {
    let role = config.user();
    let (text, cure) = match error.fault() {
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
        _ => return None,
    };
    let name = config.to_string();
    Some(Finding::new(Object::Server, &name, Outcome::Wrong, text).cured_by(cure))
}
