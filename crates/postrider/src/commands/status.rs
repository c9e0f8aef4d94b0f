//! `postrider status`.

mod report;
mod text;

use crate::cli::output::{complain, print};
use crate::cli::{Output, StatusArgs};
use crate::config::Settings;
use crate::exit::{CommandError, StatusExit};
use crate::signals::Signals;

use self::report::Report;

/// Runs the command.
///
/// # Errors
/// When stdout cannot be written. Servers that do not answer are part of the report.
pub async fn execute(
    settings: Settings,
    args: StatusArgs,
    signals: &mut Signals,
) -> Result<StatusExit, CommandError> {
    let mut last = None;
    loop {
        let reading = Box::pin(Report::read(&settings, args.limits.max_lag));
        let report = match (signals.unless_asked(reading).await, last) {
            (Ok(report), _) => report,
            // The usual end of `--watch`.
            (Err(_), Some(exit)) => return Ok(exit),
            (Err(asked), None) => return Err(asked.into()),
        };
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
        if signals
            .unless_asked(tokio::time::sleep(pause))
            .await
            .is_err()
        {
            return Ok(exit);
        }
        last = Some(exit);
    }
}
