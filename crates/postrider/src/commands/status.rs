//! `postrider status`.

use crate::cli::StatusArgs;
use crate::config::Settings;
use crate::exit::{CommandError, Exit, StatusExit};

/// Runs the command.
///
/// # Errors
/// Always: this build has no servers to talk to.
pub async fn execute(_settings: Settings, _args: StatusArgs) -> Result<StatusExit, CommandError> {
    Err(CommandError::message(
        Exit::Failed,
        "`status` is not built in",
    ))
}
