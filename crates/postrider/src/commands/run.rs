//! `postrider run`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outbox::{Relay, RelaySettings, StopKind};
use pgoutput::Lsn;
use postgres::{Control, DeadLetterAccess, PgError};
use tokio::time::Instant;

use crate::cli::{RunArgs, SetupArgs};
use crate::config::Settings;
use crate::driver::{Driver, command_error};
use crate::exit::{CommandError, Exit};
use crate::signals::{Asked, Signals};

/// How long the target of `--until-caught-up` waits for the WAL of asynchronous commits to reach
/// the disk. The WAL writer does that within three times `wal_writer_delay` (200 ms by default).
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// How often it looks.
const FLUSH_POLL: Duration = Duration::from_millis(20);

/// Wait between attempts to ask a server that cannot be reached for that target.
const TARGET_RETRY: Duration = Duration::from_secs(1);

/// Runs the command.
///
/// # Errors
/// When the streamer stopped for another reason than being told to, with its exit code.
pub async fn execute(
    settings: Settings,
    args: RunArgs,
    signals: &mut Signals,
) -> Result<Exit, CommandError> {
    let preparing = Box::pin(prepare(&settings, &args));
    let relay_settings = match signals.unless_asked(preparing).await {
        Ok(prepared) => prepared?,
        // Whoever asked for a goal must not take a stop on the way for reaching it.
        Err(asked) if args.until_caught_up => return Err(asked.into()),
        Err(Asked(signal)) => {
            tracing::info!(signal, "stopped before the streamer had begun");
            return Ok(Exit::Done);
        }
    };
    let relay = Relay::new(relay_settings, std::time::Instant::now());
    let stopped = Driver::new(settings, relay).run(signals).await;
    let (exit, help) = match stopped.kind {
        StopKind::Drained if args.until_caught_up => {
            let text = format!("stopped before it had caught up ({})", stopped.detail);
            let error = CommandError::message(Exit::Failed, text);
            return Err(error.with_help("run it again: it goes on from there"));
        }
        StopKind::Drained | StopKind::CaughtUp => return Ok(Exit::Done),
        StopKind::SlotLost => (Exit::SlotLost, None),
        StopKind::Refused => (Exit::Refused, None),
        StopKind::Failed => (Exit::Failed, None),
        StopKind::Misconfigured => (Exit::Usage, None),
        StopKind::Halted => (
            Exit::Poison,
            Some(
                "repair what makes the row impossible to publish, or let it go to the table \
                 postrider.dead_letter (on_poison = \"park\", and the right to write that table), \
                 and start again",
            ),
        ),
    };
    let error = CommandError::message(exit, stopped.detail);
    Err(match help {
        Some(help) => error.with_help(help),
        None => error,
    })
}

/// What comes before streaming.
async fn prepare(settings: &Settings, args: &RunArgs) -> Result<RelaySettings, CommandError> {
    if args.setup {
        super::setup::execute(settings.clone(), SetupArgs::default()).await?;
    }
    let mut relay_settings = relay_settings(settings);
    if args.until_caught_up {
        let target = caught_up_target(settings).await?;
        tracing::info!(until = %target, "streaming until everything committed so far is confirmed");
        relay_settings.caught_up_at = Some(target);
    }
    tell_about_dead_letters(settings).await;
    Ok(relay_settings)
}

fn relay_settings(settings: &Settings) -> RelaySettings {
    let delivery = &settings.delivery;
    let defaults = RelaySettings::new(settings.outboxes.clone());
    RelaySettings {
        on_poison: delivery.on_poison,
        on_unroutable: delivery.on_unroutable,
        confirm_delay: delivery.confirm_delay,
        max_in_flight_bytes: usize::try_from(delivery.max_in_flight_bytes).unwrap_or(usize::MAX),
        max_message_bytes: settings.nats.max_message_bytes.unwrap_or(u64::MAX),
        jitter_seed: jitter_seed(),
        ..defaults
    }
}

/// Two instances that start together should not retry together.
fn jitter_seed() -> u64 {
    let clock = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::from(std::process::id()).rotate_left(32) ^ u64::from(clock.subsec_nanos())
}

/// The position up to which everything is committed now. A server that cannot be reached is waited
/// for, as the streamer itself does.
async fn caught_up_target(settings: &Settings) -> Result<Lsn, CommandError> {
    let config = settings.postgres.connect_config()?;
    loop {
        let asked = async { flushed_position(&Control::connect(&config).await?).await };
        match asked.await {
            Ok(target) => return Ok(target),
            Err(error) if error.fault().is_transient() => {
                tracing::warn!("{}; next attempt in 1 s", error.one_line());
                tokio::time::sleep(TARGET_RETRY).await;
            }
            Err(error) => return Err(command_error(&error)),
        }
    }
}

/// The end of the flushed WAL, once it has everything that is inserted by now: what commits with
/// `synchronous_commit = off` is sent only after it is flushed.
async fn flushed_position(control: &Control) -> Result<Lsn, PgError> {
    let position = async |function: &str| {
        let row = control
            .client()
            .query_one(&format!("SELECT {function}()::text"), &[])
            .await?;
        let text: String = row.try_get(0)?;
        text.parse::<Lsn>().map_err(|error| PgError::Protocol {
            reason: error.to_string(),
        })
    };
    let inserted = position("pg_current_wal_insert_lsn").await?;
    let deadline = Instant::now() + FLUSH_TIMEOUT;
    loop {
        let flushed = position("pg_current_wal_flush_lsn").await?;
        // At the edge of a page the inserted position counts the next page's header.
        if flushed >= inserted || Instant::now() >= deadline {
            return Ok(flushed);
        }
        tokio::time::sleep(FLUSH_POLL).await;
    }
}

/// Says at the start what `park` cannot do. A server that does not answer is told about later.
async fn tell_about_dead_letters(settings: &Settings) {
    if settings.delivery.on_poison == outbox::OnPoison::Halt {
        return;
    }
    let Ok(config) = settings.postgres.connect_config() else {
        return;
    };
    let Ok(control) = Control::connect(&config).await else {
        return;
    };
    match control.dead_letter_access().await {
        Ok(DeadLetterAccess::Writable) | Err(_) => {}
        Ok(DeadLetterAccess::Missing) => tracing::warn!(
            "there is no table postrider.dead_letter: a row that can never be published will halt \
             the streamer. `postrider setup` makes the table"
        ),
        Ok(DeadLetterAccess::NoRight) => tracing::warn!(
            "this role may not write postrider.dead_letter: a row that can never be published will \
             halt the streamer. Cure: GRANT USAGE ON SCHEMA postrider TO ...; GRANT INSERT ON \
             postrider.dead_letter TO ..."
        ),
    }
}
