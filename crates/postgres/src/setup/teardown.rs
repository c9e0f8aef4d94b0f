//! Dropping slot and publication; tables stay.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Finding, Object, Outcome};
use crate::control::Control;
use crate::error::{Fault, PgError};
use crate::lag::SlotHolder;
use crate::quote::quote_identifier;
use crate::url::ConnectConfig;

/// How long an ended session may take to let go of the slot.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

/// How often the slot is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Drops the slot and then the publication, if they are there. While a session holds the slot
/// nothing is dropped, unless `force`: then that one session is ended, and no other.
///
/// # Errors
/// No connection, or an error of the server that is no finding.
pub async fn teardown(
    config: &ConnectConfig,
    slot: &str,
    publication: &str,
    force: bool,
) -> Result<Vec<Finding>, PgError> {
    let control = Control::connect(config).await?;
    let slot_finding = drop_slot(&control, slot, force).await?;
    let held = slot_finding.outcome == Outcome::Wrong;
    let mut findings = vec![slot_finding];
    if !held {
        findings.push(drop_publication(&control, publication).await?);
    }
    Ok(findings)
}

/// Drops a slot; `Wrong` names the session that holds it.
///
/// # Errors
/// A broken connection, or an error of the server that is no finding.
pub async fn drop_slot(control: &Control, slot: &str, force: bool) -> Result<Finding, PgError> {
    let finding = |outcome, text: String| Finding::new(Object::Slot, slot, outcome, text);
    let deadline = Instant::now() + RELEASE_LIMIT;
    let mut ended = None;
    loop {
        let exists = "SELECT FROM pg_replication_slots WHERE slot_name = $1";
        if control
            .client()
            .query_opt(exists, &[&slot])
            .await?
            .is_none()
        {
            return Ok(finding(
                Outcome::Found,
                "not there, nothing to drop".to_owned(),
            ));
        }
        match control.slot_holder(slot).await? {
            None => match drop_free_slot(control, slot).await {
                Ok(()) => return Ok(finding(Outcome::Dropped, "dropped".to_owned())),
                // Taken, or dropped, between the look and the deed: look again.
                Err(error)
                    if matches!(error.fault(), Fault::SlotActive { .. } | Fault::SlotMissing)
                        && Instant::now() < deadline => {}
                Err(error) => return Err(error),
            },
            Some(holder) if !force || Instant::now() >= deadline => {
                let text = format!("held by {}; nothing was dropped", shown(&holder));
                return Ok(finding(Outcome::Wrong, text)
                    .cured_by("stop that process first, or use --force"));
            }
            Some(holder) if ended != Some(holder.pid) => {
                let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots \
                           WHERE slot_name = $1 AND active_pid = $2";
                control
                    .client()
                    .query_opt(end, &[&slot, &holder.pid])
                    .await?;
                ended = Some(holder.pid);
            }
            Some(_) => {}
        }
        sleep(LOOK_EVERY).await;
    }
}

async fn drop_free_slot(control: &Control, slot: &str) -> Result<(), PgError> {
    control
        .client()
        .execute("SELECT pg_drop_replication_slot($1)", &[&slot])
        .await?;
    Ok(())
}

fn shown(holder: &SlotHolder) -> String {
    match &holder.application_name {
        Some(name) => format!("pid {} ({name})", holder.pid),
        None => format!("pid {}", holder.pid),
    }
}

async fn drop_publication(control: &Control, publication: &str) -> Result<Finding, PgError> {
    let exists = control.publication(publication, &[]).await?.is_some();
    let finding = |outcome, text| Finding::new(Object::Publication, publication, outcome, text);
    if !exists {
        return Ok(finding(Outcome::Found, "not there, nothing to drop"));
    }
    let statement = format!(
        "DROP PUBLICATION IF EXISTS {}",
        quote_identifier(publication)
    );
    match control
        .client()
        .batch_execute(&statement)
        .await
        .map_err(PgError::from)
    {
        Ok(()) => Ok(finding(Outcome::Dropped, "dropped")),
        Err(error) if error.fault() == Fault::PermissionDenied => {
            Ok(finding(Outcome::Wrong, "this role may not drop it")
                .cured_by(format!("as its owner: {statement};")))
        }
        Err(error) => Err(error),
    }
}
