//! `[nats]`: URL, login, TLS and stream.

use std::path::PathBuf;

use jetstream::OptionsFault;
use outbox::Writers;

use crate::config::fault::{Place, Wrong};
use crate::config::keys as k;
use crate::config::layers::{Layer, Layers};
use crate::config::settings::{NatsAuth, NatsSettings, NatsTls};
use crate::config::{find_url, url};
use crate::redact::Redactor;
use crate::secret::Secret;

/// Server without a URL: what every NATS client falls back to.
const DEFAULT_URL: &str = "nats://localhost:4222";

/// Shortest line of a credentials or key file that counts as secret, in bytes. Seeds are 58.
const KEY_LINE_MIN_BYTES: usize = 16;

/// Reads the section; `None` after a fault.
pub(super) fn read(layers: &mut Layers<'_>, redactor: &mut Redactor) -> Option<NatsSettings> {
    let (url, layer, url_place) =
        match find_url(layers, (&k::NATS_URL, &k::NATS_URL_FILE), "NATS_URL") {
            Some((source, found)) => (source.at_start().clone(), found.layer, found.place),
            None => (
                Secret::new(DEFAULT_URL.to_owned()),
                Layer::Shared,
                Place::Nowhere,
            ),
        };
    for secret in url::secrets(url.expose()) {
        redactor.learn(secret);
    }
    let url_login = url::nats_has_login(url.expose());
    let auth = auth(
        layers,
        redactor,
        url_login.then_some((layer, url_place.clone())),
    );
    let tls = tls(layers);
    let stream = layers.text(&k::NATS_STREAM);
    let writers = layers.text(&k::NATS_WRITERS);
    let max_message_bytes = layers.size(&k::NATS_MAX_MESSAGE_BYTES);
    let replicas = layers.integer(&k::NATS_REPLICAS);
    let settings = NatsSettings {
        url,
        auth,
        tls,
        stream: stream?,
        writers: writers.map(|word| match word.as_str() {
            "shared" => Writers::Shared,
            _ => Writers::Exclusive,
        }),
        max_message_bytes,
        replicas: replicas.and_then(|count| u8::try_from(count).ok()),
    };
    check_url(layers, &settings, url_place);
    Some(settings)
}

/// Checks the URL as the client reads it. What else the client checks was checked with its place.
fn check_url(layers: &mut Layers<'_>, settings: &NatsSettings, place: Place) {
    let only_url = jetstream::NatsSettings {
        url: jetstream::Secret::new(settings.url.expose().as_str()),
        ..jetstream::NatsSettings::default()
    };
    let Err(faults) = jetstream::NatsOptions::new(only_url) else {
        return;
    };
    for fault in faults.0 {
        let problem = match &fault {
            OptionsFault::Url { source, .. } => format!("{fault}: {source}"),
            _ => fault.to_string(),
        };
        let help = "write nats://HOST:4222 or tls://HOST:4222, several separated by commas";
        layers.fault(place.clone(), &k::NATS_URL, Wrong::new(problem, help));
    }
}

/// One way to log in that was given.
struct Way {
    layer: Layer,
    place: Place,
    name: &'static str,
    auth: NatsAuth,
}

/// The way to log in: of those given, the one from the highest layer. Two from one layer are a
/// fault, since it cannot be told which is meant.
fn auth(
    layers: &mut Layers<'_>,
    redactor: &mut Redactor,
    in_url: Option<(Layer, Place)>,
) -> NatsAuth {
    let mut ways = Vec::new();
    ways.extend(in_url.map(|(layer, place)| Way {
        layer,
        place,
        name: "a login in the URL",
        auth: NatsAuth::InUrl,
    }));
    ways.extend(user(layers, redactor));
    if let Some((token, found)) = layers.secret(&k::NATS_TOKEN, &k::NATS_TOKEN_FILE) {
        redactor.learn(token.at_start().expose());
        let (layer, place) = (found.layer, found.place);
        ways.push(Way {
            layer,
            place,
            name: "nats.token",
            auth: NatsAuth::Token(token),
        });
    }
    type Wrap = fn(PathBuf) -> NatsAuth;
    let files: [(&k::Key, Wrap); 2] = [
        (&k::NATS_CREDENTIALS_FILE, NatsAuth::CredentialsFile),
        (&k::NATS_NKEY_FILE, NatsAuth::NkeyFile),
    ];
    for (key, wrap) in files {
        let Some((path, found, content)) = layers.path(key) else {
            continue;
        };
        for line in String::from_utf8_lossy(&content).lines().map(str::trim) {
            if line.len() >= KEY_LINE_MIN_BYTES && !line.starts_with('-') {
                redactor.learn(line);
            }
        }
        let (layer, place) = (found.layer, found.place);
        ways.push(Way {
            layer,
            place,
            name: key.name,
            auth: wrap(path),
        });
    }
    // Stable: ways of one layer stay in the order above.
    ways.sort_by_key(|way| way.layer);
    let mut ways = ways.into_iter();
    let Some(first) = ways.next() else {
        return NatsAuth::InUrl;
    };
    if let Some(second) = ways.next().filter(|second| second.layer == first.layer) {
        let problem = format!("two ways to log in: {} and {}", first.name, second.name);
        let wrong = Wrong::new(problem, "give one of them");
        layers.faults.push(wrong.at(second.place, second.name));
    }
    first.auth
}

/// User and password, each from any layer.
fn user(layers: &mut Layers<'_>, redactor: &mut Redactor) -> Option<Way> {
    let found = layers.find(&k::NATS_USER);
    let user = layers.text(&k::NATS_USER);
    let password = layers.secret(&k::NATS_PASSWORD, &k::NATS_PASSWORD_FILE);
    if let Some((password, _)) = &password {
        redactor.learn(password.at_start().expose());
    }
    match (user, found, password) {
        (Some(user), Some(found), Some((password, its))) => Some(Way {
            layer: found.layer.min(its.layer),
            place: found.place,
            name: "nats.user",
            auth: NatsAuth::User { user, password },
        }),
        (Some(_), Some(found), None) => {
            let help = "give POSTRIDER_NATS_PASSWORD or nats.password_file; a token is nats.token";
            let given = [&k::NATS_PASSWORD, &k::NATS_PASSWORD_FILE];
            if given.iter().all(|key| layers.find(key).is_none()) {
                let wrong = Wrong::new("a user without a password", help);
                layers.fault(found.place, &k::NATS_USER, wrong);
            }
            None
        }
        (None, None, Some((_, its))) => {
            let wrong = Wrong::new("a password without a user", "give nats.user");
            layers.fault(its.place, &k::NATS_PASSWORD, wrong);
            None
        }
        _ => None,
    }
}

/// The TLS files. A certificate and its key belong together.
fn tls(layers: &mut Layers<'_>) -> NatsTls {
    let ca = layers.path(&k::NATS_TLS_CA).map(|found| found.0);
    for (one, other) in [
        (&k::NATS_TLS_CERT, &k::NATS_TLS_KEY),
        (&k::NATS_TLS_KEY, &k::NATS_TLS_CERT),
    ] {
        if let (Some(found), None) = (layers.find(one), layers.find(other)) {
            let problem = format!("{} without {}", one.name, other.name);
            layers.fault(
                found.place,
                one,
                Wrong::new(problem, "give both or neither"),
            );
        }
    }
    NatsTls {
        ca,
        cert: layers.path(&k::NATS_TLS_CERT).map(|found| found.0),
        key: layers.path(&k::NATS_TLS_KEY).map(|found| found.0),
        first: layers.boolean(&k::NATS_TLS_FIRST).unwrap_or(false),
    }
}
