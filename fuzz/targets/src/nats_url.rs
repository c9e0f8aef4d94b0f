//! NATS URLs: no text makes the parser panic, and none makes it show a password or a token.

use jetstream::{NatsOptions, NatsSettings, Secret};
use postrider::config::url;

use crate::HIDDEN;
use crate::input::Input;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let with_user = input.flag();
    let with_prefix = input.flag();
    let text = input.text();
    let prefix = input.text();
    let settings = |text: String| NatsSettings {
        url: Secret::from(text),
        user: with_user.then(|| "app".to_owned()),
        password: with_user.then(|| Secret::from(HIDDEN.to_owned())),
        inbox_prefix: with_prefix.then(|| prefix.clone()),
        slot: "postrider".to_owned(),
        ..NatsSettings::default()
    };
    let _ = (url::nats_has_login(&text), url::public_names(&text));
    let shown = read(settings(text.clone()));
    if text.contains(HIDDEN) || prefix.contains(HIDDEN) {
        return;
    }
    assert!(!shown.contains(HIDDEN), "{shown}");
    let urls = [
        format!("nats://app:{HIDDEN}@{text}"),
        format!("tls://a:4222,nats://app:{HIDDEN}@{text}"),
        // An `@` behind a token makes it a part of something longer, which may be a name.
        format!("nats://{HIDDEN}@{}", text.replace('@', "")),
    ];
    for url in urls {
        let shown = read(settings(url.clone()));
        assert!(
            !shown.contains(HIDDEN),
            "{url:?} shows its password: {shown}"
        );
        let known = url::secrets(&url)
            .iter()
            .any(|secret| secret.contains(HIDDEN));
        assert!(known, "{url:?} has a secret that is not known as one");
    }
}

/// Checks the settings; returns all that can be printed of them.
fn read(settings: NatsSettings) -> String {
    let text = format!("{settings:?}");
    match NatsOptions::new(settings) {
        Ok(options) => {
            assert!(!options.servers().is_empty());
            format!("{text} {options:?} {}", options.servers())
        }
        Err(faults) => {
            assert!(!faults.0.is_empty() && !faults.to_string().is_empty());
            format!("{text} {faults:?} {faults}")
        }
    }
}
