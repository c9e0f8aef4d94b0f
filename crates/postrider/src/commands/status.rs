//! `postrider status`.

mod report;
mod text;

use crate::cli::output::{complain, print};
use crate::cli::{Output, StatusArgs};
use crate::config::Settings;
use crate::exit::{CommandError, StatusExit};

use self::report::Report;

/// Runs the command.
///
/// # Errors
/// When stdout cannot be written. Servers that do not answer are part of the report.
pub async fn execute(settings: Settings, args: StatusArgs) -> Result<StatusExit, CommandError> {
    loop {
        let report = Report::read(&settings, args.limits.max_lag).await;
        let (exit, reasons) = report.verdict(&args.limits);
        match args.output {
            Output::Table => print(&text::table(&report, args.watch.is_some()))?,
            Output::Json => print(&format!("{}\n", report.json()))?,
        }
        for reason in reasons {
            complain(&reason);
        }
        let Some(pause) = args.watch else {
            return Ok(exit);
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = tokio::signal::ctrl_c() => return Ok(exit),
        }
    }
}
