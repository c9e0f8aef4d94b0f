//! `postrider teardown`.

use postgres::Outcome;

use crate::cli::TeardownArgs;
use crate::cli::output::print;
use crate::config::Settings;
use crate::driver::command_error;
use crate::exit::{CommandError, Exit};

use super::setup::refused;

/// Runs the command.
///
/// # Errors
/// When a streamer is active and `--force` was not given (exit 3), or PostgreSQL does not answer.
pub async fn execute(settings: Settings, args: TeardownArgs) -> Result<Exit, CommandError> {
    let pg = &settings.postgres;
    let config = pg.connect_config()?;
    let findings = postgres::teardown(&config, &pg.slot, &pg.publication, args.force)
        .await
        .map_err(|error| command_error(&error))?;
    for finding in &findings {
        if finding.outcome == Outcome::Wrong {
            return Err(refused(finding));
        }
        print(&format!("{finding}\n"))?;
    }
    print("tables and stream were left as they are\n")?;
    Ok(Exit::Done)
}
