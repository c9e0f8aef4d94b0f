//! `postrider setup`.

use crate::cli::SetupArgs;
use crate::config::Settings;
use crate::exit::{CommandError, Exit};

/// Runs the command.
///
/// # Errors
/// Always: this build has no servers to talk to.
pub async fn execute(_settings: Settings, _args: SetupArgs) -> Result<Exit, CommandError> {
    Err(CommandError::message(
        Exit::Failed,
        "`setup` is not built in",
    ))
}
