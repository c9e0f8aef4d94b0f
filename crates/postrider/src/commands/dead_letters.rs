//! `postrider dead-letters`: what JetStream could not take, and what becomes of it.

mod list;
mod retry;
mod source;

use postgres::{Control, DeadLetterAccess, DeadLetterEntry, PgError};

use crate::cli::DeadLettersArgs;
use crate::cli::output::{complain, print};
use crate::config::Settings;
use crate::driver::command_error;
use crate::exit::{CommandError, Exit};

/// Runs the command.
///
/// # Errors
/// When there is no table of dead letters or no right to use it (exit 3), a server does not answer,
/// or what was asked for could not be done for each letter (exit 1).
pub async fn execute(settings: Settings, args: DeadLettersArgs) -> Result<Exit, CommandError> {
    let config = settings.postgres.connect_config()?;
    let control = Control::connect(&config)
        .await
        .map_err(|error| command_error(&error))?;
    require_table(&control).await?;
    match args {
        DeadLettersArgs::List(args) => list::execute(&settings, &control, args).await,
        DeadLettersArgs::Retry(args) => retry::execute(&settings, &config, control, args).await,
        DeadLettersArgs::Discard(ids) => discard(&settings, &control, &ids).await,
    }
}

async fn require_table(control: &Control) -> Result<(), CommandError> {
    match control.dead_letter_access().await {
        Ok(DeadLetterAccess::Missing) => Err(CommandError::message(
            Exit::Refused,
            format!("there is no table {}", postgres::DEAD_LETTER_TABLE),
        )
        .with_help("`postrider setup` makes it")),
        Ok(_) => Ok(()),
        Err(error) => Err(command_error(&error)),
    }
}

/// An error of the table; a right that is missing comes with the statement that grants it.
fn table_error(error: &PgError) -> CommandError {
    command_error(error)
}

/// `discard`: removes those that are named and says what they were.
async fn discard(
    settings: &Settings,
    control: &Control,
    ids: &[i64],
) -> Result<Exit, CommandError> {
    let slot = &settings.postgres.slot;
    let mut missing = Vec::new();
    for &id in ids {
        let removed = control.remove_dead_letter(id, slot).await;
        match removed.map_err(|error| table_error(&error))? {
            Some(entry) => print(&format!("discarded {}\n", described(&entry)))?,
            None => missing.push(id),
        }
    }
    not_there(&missing, slot)
}

/// The end of a command after which these numbers were not found.
fn not_there(missing: &[i64], slot: &str) -> Result<Exit, CommandError> {
    if missing.is_empty() {
        return Ok(Exit::Done);
    }
    let ids: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let text = format!(
        "no dead letter of slot {slot} has the id {}",
        ids.join(", ")
    );
    Err(CommandError::message(Exit::Failed, text)
        .with_help("`postrider dead-letters list` shows those that there are"))
}

/// A dead letter in one line.
fn described(entry: &DeadLetterEntry) -> String {
    let row = entry.row_id.as_deref().unwrap_or("without id");
    let subject = entry.subject.as_deref().unwrap_or("no subject");
    format!(
        "{}: row {} of {} at {}, {}, {}",
        entry.id,
        list::shortened(row),
        entry.table_name,
        entry.position,
        list::shortened(subject),
        entry.reason
    )
}

/// What can be done about a dead letter with this reason.
fn advice(reason: &str) -> &'static str {
    match reason {
        "too_large" => "raise the limit that is named, or shorten the row in its table; then retry",
        "subject_too_long" => {
            "change `subject` of its [[outbox]], or the row in its table; then retry"
        }
        "subject_unfit" => "mend the subject in postrider.dead_letter; then retry",
        "headers_too_large" => "shorten the headers of the row in its table; then retry",
        "headers_not_object" | "header_refused" => {
            "mend the headers of the row in its table with UPDATE; then retry"
        }
        "no_id" => "insert the row anew with an id; then discard",
        "id_taken" => {
            "if ids are unique only per table, put {table} into dedup_id, then retry; if it is a \
             copy, discard"
        }
        "payload_not_hex" => "mend the payload of the row in its table; then retry",
        _ => "cure what JetStream names; then retry",
    }
}

/// Says on stderr what went wrong with one of many.
fn note(text: &str) {
    complain(text);
}
