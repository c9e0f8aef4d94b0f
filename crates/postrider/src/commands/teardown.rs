//! `postrider teardown`.

use crate::cli::TeardownArgs;
use crate::config::Settings;
use crate::exit::{CommandError, Exit};

/// Runs the command.
///
/// # Errors
/// Always: this build has no servers to talk to.
pub async fn execute(_settings: Settings, _args: TeardownArgs) -> Result<Exit, CommandError> {
    Err(CommandError::message(
        Exit::Failed,
        "`teardown` is not built in",
    ))
}
