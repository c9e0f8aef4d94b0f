//! PostgreSQL URLs: no text makes the parser panic, and none makes it show a password.

use postgres::{ConnectConfig, Environment};
use postrider::config::url;

use crate::HIDDEN;
use crate::input::Input;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let environment = Environment {
        user: input.flag().then(|| "somebody".to_owned()),
        ..Environment::default()
    };
    let text = input.text();
    read(&text, &environment);
    if text.contains(HIDDEN) {
        return;
    }
    // The rest of a URL behind a password, and a password behind the rest.
    let join = if text.contains('?') { '&' } else { '?' };
    for url in [
        format!("postgresql://app:{HIDDEN}@{text}"),
        format!("postgresql://app@{text}{join}password={HIDDEN}"),
    ] {
        let shown = read(&url, &environment);
        assert!(
            !shown.contains(HIDDEN),
            "{url:?} shows its password: {shown}"
        );
        let known = url::secrets(&url)
            .iter()
            .any(|secret| secret.contains(HIDDEN));
        assert!(known, "{url:?} has a password that is not known as one");
    }
}

/// Reads a URL; returns all that can be printed of it.
fn read(text: &str, environment: &Environment) -> String {
    let _ = (url::has_password(text), url::public_names(text));
    for secret in url::secrets(text) {
        assert!(!secret.is_empty());
    }
    match ConnectConfig::parse_in(text, environment) {
        Ok(config) => {
            assert!(!config.user().is_empty() && !config.database().is_empty());
            format!("{:?}", config.for_slot("s"))
        }
        Err(errors) => {
            assert!(!errors.0.is_empty() && !errors.to_string().is_empty());
            format!("{errors} {errors:?}")
        }
    }
}
