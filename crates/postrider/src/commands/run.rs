//! `postrider run`.

use crate::cli::RunArgs;
use crate::config::Settings;
use crate::exit::{CommandError, Exit};

/// Runs the command.
///
/// # Errors
/// Always: this build has no servers to talk to.
pub async fn execute(_settings: Settings, _args: RunArgs) -> Result<Exit, CommandError> {
    Err(CommandError::message(Exit::Failed, "`run` is not built in"))
}
