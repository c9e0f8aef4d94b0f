//! Logs: one line per event on stderr, as text or JSON, without secrets.
//!
//! The level of our own crates is `info`; `-q` makes it `warn`, `-v` debug, `-vv` trace. Other
//! crates log from `warn` on (the NATS client not at all: it calls the end of each of our epochs an
//! error), unless a filter names them: at lower levels they print what they
//! send, and there is too much of it. The filter is `POSTRIDER_LOG`, else `RUST_LOG`, in the usual
//! syntax; a level without a target means our own crates, and gives way to a flag. Whatever is let
//! through passes the [`Redactor`], so a named crate cannot show a secret either.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::fault::{Fault, Place, Wrong, quote};
use crate::config::keys::{LOG_FORMAT_VARIABLE, LOG_VARIABLE};
use crate::redact::Redactor;

/// Longest log line, in bytes; the rest is cut. A row's payload must not become a log.
const LINE_MAX_BYTES: usize = 64 * 1024;

/// Logging flags of the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogInput {
    /// Number of `-v`.
    pub verbose: u8,
    /// `-q`.
    pub quiet: bool,
    /// `--log-format`.
    pub format: Option<String>,
}

/// Form of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Time, level, message, fields.
    Text,
    /// One JSON object.
    Json,
}

/// Checked settings of the logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// Form of a line.
    pub format: LogFormat,
    /// Directives of the filter, for [`EnvFilter`].
    pub filter: String,
    /// Whether text lines say which module speaks.
    pub with_target: bool,
}

/// Checks flags and variables; faults are noted and the default taken instead.
pub fn settings(
    input: &LogInput,
    variable: impl Fn(&str) -> Option<String>,
    faults: &mut Vec<Fault>,
) -> LogSettings {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let format = match (&input.format, variable(LOG_FORMAT_VARIABLE)) {
        (Some(text), _) => Some((text.clone(), Place::Flag("--log-format".to_owned()))),
        (None, Some(text)) => Some((text, Place::Variable(LOG_FORMAT_VARIABLE.to_owned()))),
        (None, None) => None,
    };
    let format = match format {
        None => LogFormat::Text,
        Some((text, _)) if text == "text" => LogFormat::Text,
        Some((text, _)) if text == "json" => LogFormat::Json,
        Some((text, place)) => {
            let problem = format!("{} is not a form of logs", quote(&text));
            faults.push(Wrong::new(problem, "write text or json").at(place, ""));
            LogFormat::Text
        }
    };
    let flag = match (input.quiet, input.verbose) {
        (true, _) => Some("warn"),
        (false, 0) => None,
        (false, 1) => Some("debug"),
        (false, _) => Some("trace"),
    };
    let given = [LOG_VARIABLE, "RUST_LOG"].into_iter();
    let given = given
        .filter_map(|name| variable(name).map(|value| (name, value)))
        .next();
    let (level, named) = match given {
        None => (None, String::new()),
        Some((name, text)) => match split_filter(&text) {
            Ok(parts) => parts,
            Err(problem) => {
                // RUST_LOG is everybody's; only our own variable can be at fault.
                if name == LOG_VARIABLE {
                    let help = "write a level (info) or targets with levels (postrider=debug)";
                    faults.push(Wrong::new(problem, help).at(Place::Variable(name.to_owned()), ""));
                }
                (None, String::new())
            }
        },
    };
    let level = flag
        .map(str::to_owned)
        .or(level)
        .unwrap_or_else(|| "info".to_owned());
    let with_target = matches!(level.as_str(), "debug" | "trace") || !named.is_empty();
    // `postrider` is the beginning of all our crates' names.
    let comma = if named.is_empty() { "" } else { "," };
    LogSettings {
        format,
        filter: format!("warn,async_nats=off,postrider={level}{comma}{named}"),
        with_target,
    }
}

/// The level without a target, and the directives with one.
fn split_filter(text: &str) -> Result<(Option<String>, String), String> {
    let (mut level, mut named) = (None, Vec::new());
    for directive in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let lower = directive.to_ascii_lowercase();
        if ["off", "error", "warn", "info", "debug", "trace"].contains(&lower.as_str()) {
            level = Some(lower);
            continue;
        }
        if EnvFilter::try_new(directive).is_err() {
            return Err(format!("{} is not a log filter", quote(directive)));
        }
        named.push(directive);
    }
    let named = named.join(",");
    // Commas inside of a directive (span fields) were split above; the whole must hold, too.
    match EnvFilter::try_new(&named) {
        Ok(_) => Ok((level, named)),
        Err(_) => Err(format!("{} is not a log filter", quote(text))),
    }
}

/// Starts logging for the whole process. A second call does nothing.
pub fn start(settings: &LogSettings, redactor: &Redactor) {
    let writer = CleanWriter::new(redactor.clone(), Arc::new(io::stderr));
    let filter = EnvFilter::new(&settings.filter);
    let colour = settings.format == LogFormat::Text
        && io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .log_internal_errors(false);
    let started = match settings.format {
        LogFormat::Text => registry
            .with(layer.with_ansi(colour).with_target(settings.with_target))
            .try_init(),
        LogFormat::Json => registry
            .with(
                layer
                    .json()
                    .flatten_event(true)
                    .with_current_span(false)
                    .with_span_list(false),
            )
            .try_init(),
    };
    // Only a second start fails, and then the first one's logs go on.
    drop(started);
}

/// Cleans each event before it goes out: no secrets, one line, bounded.
#[derive(Clone)]
struct CleanWriter<W> {
    redactor: Redactor,
    make: Arc<dyn Fn() -> W + Send + Sync>,
}

impl<W: Write> CleanWriter<W> {
    fn new(redactor: Redactor, make: Arc<dyn Fn() -> W + Send + Sync>) -> Self {
        Self { redactor, make }
    }
}

impl<'a, W: Write + 'a> MakeWriter<'a> for CleanWriter<W> {
    type Writer = CleanLine<W>;

    fn make_writer(&'a self) -> Self::Writer {
        CleanLine {
            redactor: self.redactor.clone(),
            line: Vec::new(),
            out: (self.make)(),
        }
    }
}

/// One event. The subscriber may write it in pieces, so it goes out when it is dropped.
struct CleanLine<W: Write> {
    redactor: Redactor,
    line: Vec<u8>,
    out: W,
}

impl<W: Write> Write for CleanLine<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.line.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<W: Write> Drop for CleanLine<W> {
    fn drop(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let line = String::from_utf8_lossy(&self.line);
        // Cleaned before it is cut: half a secret would not be recognised.
        let line = one_line(&self.redactor.clean(&line));
        // A log that cannot be written must not stop the streamer.
        let _closed = self.out.write_all(line.as_bytes());
    }
}

/// The event as one line: a line break inside would forge another event.
fn one_line(event: &str) -> String {
    let body = event.strip_suffix('\n').unwrap_or(event);
    let mut line = body.replace('\r', "\\r").replace('\n', "\\n");
    if line.len() > LINE_MAX_BYTES {
        let mut end = LINE_MAX_BYTES;
        while !line.is_char_boundary(end) {
            end -= 1;
        }
        line.truncate(end);
        line.push('…');
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn filter(input: &LogInput, variables: &[(&str, &str)]) -> (LogSettings, Vec<String>) {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let mut faults = Vec::new();
        let settings = settings(input, variable, &mut faults);
        (settings, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn levels() {
        let level = |verbose, quiet, variables: &[(&str, &str)]| {
            let input = LogInput {
                verbose,
                quiet,
                format: None,
            };
            let (settings, faults) = filter(&input, variables);
            assert_eq!(faults, Vec::<String>::new());
            settings.filter
        };
        assert_eq!(level(0, false, &[]), "warn,async_nats=off,postrider=info");
        assert_eq!(level(0, true, &[]), "warn,async_nats=off,postrider=warn");
        assert_eq!(level(1, false, &[]), "warn,async_nats=off,postrider=debug");
        assert_eq!(level(9, false, &[]), "warn,async_nats=off,postrider=trace");
        assert_eq!(
            level(0, false, &[("RUST_LOG", "DEBUG")]),
            "warn,async_nats=off,postrider=debug"
        );
        let both = [
            ("RUST_LOG", "trace"),
            ("POSTRIDER_LOG", "error,rustls=trace"),
        ];
        assert_eq!(
            level(0, false, &both),
            "warn,async_nats=off,postrider=error,rustls=trace"
        );
        assert_eq!(
            level(1, false, &both),
            "warn,async_nats=off,postrider=debug,rustls=trace"
        );
        assert_eq!(
            level(0, false, &[("RUST_LOG", "a=nonsense=b")]),
            "warn,async_nats=off,postrider=info"
        );
        assert_eq!(
            level(0, false, &[("RUST_LOG", "")]),
            "warn,async_nats=off,postrider=info"
        );
    }

    #[test]
    fn faults() {
        let input = LogInput {
            format: Some("xml".into()),
            ..LogInput::default()
        };
        let (settings, faults) = filter(&input, &[("POSTRIDER_LOG", "postrider=loud")]);
        assert_eq!(settings.format, LogFormat::Text);
        assert_eq!(
            faults,
            [
                "--log-format: \"xml\" is not a form of logs\n    help: write text or json",
                "POSTRIDER_LOG: \"postrider=loud\" is not a log filter\n    help: write a level \
                 (info) or targets with levels (postrider=debug)",
            ]
        );
        let (settings, faults) = filter(&LogInput::default(), &[("POSTRIDER_LOG_FORMAT", "json")]);
        assert_eq!((settings.format, faults.len()), (LogFormat::Json, 0));
    }

    /// What a subscriber as ours prints for some events.
    fn printed(filter: &str, redactor: &Redactor, json: bool, events: impl FnOnce()) -> String {
        #[derive(Clone, Default)]
        struct Shared(Arc<Mutex<Vec<u8>>>);
        impl Write for Shared {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let shared = Shared::default();
        let clone = shared.clone();
        let writer = CleanWriter::new(redactor.clone(), Arc::new(move || clone.clone()));
        let registry = tracing_subscriber::registry().with(EnvFilter::new(filter));
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(writer)
            .with_ansi(false);
        if json {
            let layer = layer
                .json()
                .flatten_event(true)
                .with_current_span(false)
                .with_span_list(false);
            tracing::subscriber::with_default(registry.with(layer), events);
        } else {
            tracing::subscriber::with_default(registry.with(layer), events);
        }
        let bytes = shared.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn no_secret_passes_even_from_a_named_crate_at_trace() {
        let redactor = Redactor::default();
        redactor.learn("S3CR3T@\"x");
        for json in [false, true] {
            let text = printed("warn,tokio_postgres=trace", &redactor, json, || {
                let config = format!("{:?}", Some("S3CR3T@\"x"));
                tracing::trace!(target: "tokio_postgres", %config, "raw S3CR3T@\"x");
                tracing::debug!(target: "tokio_postgres", config = ?config, "S3CR3T%40%22x");
                tracing::warn!(target: "other", url = "nats://u:0th3r@h", "b");
            });
            assert_eq!(text.lines().count(), 3, "{text}");
            assert!(
                !text.contains("S3CR3T") && !text.contains("0th3r"),
                "{text}"
            );
        }
    }

    #[test]
    fn other_crates_are_quiet_below_warn() {
        let text = printed("warn,postrider=trace", &Redactor::default(), false, || {
            tracing::info!(target: "async_nats::connector", "connecting");
            tracing::trace!(target: "rustls", "bytes");
            tracing::trace!(target: "postrider_jetstream::publisher", "ours");
        });
        assert!(text.contains("ours"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }

    #[test]
    fn an_event_is_one_line() {
        let text = printed("info", &Redactor::default(), false, || {
            tracing::info!(id = %"a\n2026-01-01T00:00:00Z ERROR forged", "row\r\nparked");
            tracing::info!("{}", "é".repeat(LINE_MAX_BYTES));
        });
        assert_eq!(text.lines().count(), 2, "{text:.200}");
        assert!(text.len() < 2 * LINE_MAX_BYTES);
    }

    #[test]
    fn json_has_its_fixed_fields() {
        let text = printed("info", &Redactor::default(), true, || {
            tracing::info!(target: "postrider", lsn = "0/1", count = 3, "confirmed");
        });
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (field, wanted) in [
            ("level", "INFO"),
            ("target", "postrider"),
            ("message", "confirmed"),
            ("lsn", "0/1"),
        ] {
            assert_eq!(value[field], wanted, "{text}");
        }
        assert_eq!(value["count"], 3);
        assert!(value["timestamp"].as_str().unwrap().ends_with('Z'));
    }
}
