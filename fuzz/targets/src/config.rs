//! The configuration: words of the command line, variables and a TOML file, together. Whatever
//! they say, there are settings or faults, and no password in what is printed.

use std::ffi::OsString;
use std::path::PathBuf;

use postrider::cli;
use postrider::config::{self, ConfigInput, Fault, MemoryEnvironment};
use postrider::redact::scrub;
use postrider::secret::Secret;

use crate::HIDDEN;
use crate::input::Input;

const FILE: &str = "/etc/postrider.toml";

/// The input: words and `NAME=VALUE` variables, one a line, and the file; each ends with a NUL.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let (words, variables, file) = (input.text(), input.text(), input.text());
    let may_show = [&words, &variables, &file]
        .iter()
        .any(|text| text.contains(HIDDEN));
    let hidden = |text: &str| assert!(may_show || !text.contains(HIDDEN), "{text}");

    let (flags, faults) = read_words(&words);

    let mut environment = MemoryEnvironment::with_variables(
        variables.lines().filter_map(|line| line.split_once('=')),
    )
    .file(FILE, &file);
    let url = format!("postgres://app:{HIDDEN}@db/shop");
    environment.variables.insert("DATABASE_URL".to_owned(), url);
    let nats = format!("nats://app:{HIDDEN}@broker");
    environment.variables.insert("NATS_URL".to_owned(), nats);
    // A secret file's path may be anything; each has the same content.
    let path = PathBuf::from("/run/secret");
    environment.files.insert(path, HIDDEN.into());
    let flags = ConfigInput {
        file: flags.file.or_else(|| Some(FILE.into())),
        ..flags
    };
    match config::load(&flags, &environment, faults) {
        Ok(loaded) => {
            hidden(&format!("{loaded:?}"));
            let urls = [&loaded.settings.postgres.url, &loaded.settings.nats.url];
            for url in urls.map(Secret::expose) {
                hidden(&loaded.redactor.clean(url));
            }
            assert!(!loaded.settings.outboxes.is_empty());
            for outbox in &loaded.settings.outboxes {
                assert!(!outbox.subject_pattern().is_empty());
            }
        }
        Err(faults) => {
            assert!(!faults.list().is_empty());
            hidden(&scrub(&faults.to_string()));
            hidden(&format!("{faults:?}"));
        }
    }
}

/// Reads the command line, if there is one: making its parser takes longer than all the rest.
fn read_words(words: &str) -> (ConfigInput, Vec<Fault>) {
    let args = ["postrider"].into_iter().chain(words.lines());
    if words.is_empty() {
        return (ConfigInput::default(), Vec::new());
    }
    match cli::parse(args.map(OsString::from)) {
        Ok(invocation) => (invocation.config, invocation.faults),
        Err(stop) => {
            assert!(!stop.text.is_empty());
            (ConfigInput::default(), Vec::new())
        }
    }
}
