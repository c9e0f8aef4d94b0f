//! Configuration: flags, environment and file to checked [`Settings`], with every fault at once.
//!
//! Precedence: flag, `POSTRIDER_*` variable, file, `DATABASE_URL` and `NATS_URL` (only for the two
//! URLs), default. A variable that is empty counts as not set. There is no implied file: it is
//! named by `--config` or `POSTRIDER_CONFIG`.

pub mod environment;
pub mod fault;
pub mod file;
pub mod keys;
pub mod layers;
pub mod names;
pub mod outboxes;
pub mod settings;
pub mod table_name;
pub mod template;
pub mod units;
pub mod url;

mod nats;
mod outbox_keys;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use ::outbox::{OnPoison, OnUnroutable};

pub use crate::config::environment::{Environment, MemoryEnvironment, ProcessEnvironment};
pub use crate::config::fault::{Fault, Faults, Place, Wrong};
pub use crate::config::settings::{
    DeliverySettings, NatsAuth, NatsSettings, NatsTls, PostgresSettings, Settings,
};
pub use crate::config::table_name::TableName;

use crate::config::fault::suggest;
use crate::config::file::{CONFIG_FILE_MAX_BYTES, Document};
use crate::config::keys as k;
use crate::config::layers::{Found, Layer, Layers};
use crate::redact::Redactor;
use crate::secret::{Secret, SecretSource};

/// Configuration as the command line gives it.
#[derive(Clone, Debug, Default)]
pub struct ConfigInput {
    /// `--config`.
    pub file: Option<PathBuf>,
    /// Flags of keys, by key name.
    pub flags: BTreeMap<&'static str, String>,
}

/// Checked settings, and what hides their secrets in logs and errors.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// Knows every secret of the settings.
    pub redactor: Redactor,
}

/// Reads and checks everything. `faults` are those of the command line so far; they join the rest.
///
/// # Errors
/// All faults. Nothing was connected to.
pub fn load(
    input: &ConfigInput,
    environment: &dyn Environment,
    faults: Vec<Fault>,
) -> Result<Loaded, Faults> {
    let mut layers = Layers {
        environment,
        flags: &input.flags,
        variables: BTreeMap::new(),
        file: BTreeMap::new(),
        file_path: None,
        faults,
    };
    read_variables(&mut layers);
    let Document {
        values,
        outboxes,
        faults,
        unread,
    } = read_file(&mut layers, input);
    layers.file = values;
    layers.faults.extend(faults);

    let mut redactor = Redactor::default();
    let postgres = postgres(&mut layers, &mut redactor);
    let nats = nats::read(&mut layers, &mut redactor);
    let delivery = delivery(&mut layers);
    let stream = nats.as_ref().map_or("", |nats| nats.stream.as_str());
    let outboxes = outboxes::read(&mut layers, &outboxes, stream);
    if unread {
        // The file may say what seems to be missing.
        layers.faults.retain(|fault| fault.place != Place::Nowhere);
    }
    match (Faults::from_list(layers.faults), postgres, nats, delivery) {
        (None, Some(postgres), Some(nats), Some(delivery)) => {
            let settings = Settings {
                postgres,
                nats,
                outboxes,
                delivery,
            };
            for name in public_names(&settings) {
                redactor.allow(&name);
            }
            Ok(Loaded { settings, redactor })
        }
        (Some(faults), ..) => Err(faults),
        // Not reached: a part that is missing has a fault. Said, rather than assumed.
        (None, ..) => Err(unnamed_fault()),
    }
}

fn unnamed_fault() -> Faults {
    let wrong = Wrong::new("the configuration is incomplete", "");
    Faults::one(wrong.at(Place::Nowhere, ""))
}

/// Names that logs show anyway; a secret that equals one cannot be hidden by replacing text.
fn public_names(settings: &Settings) -> Vec<String> {
    let mut names = vec![
        settings.postgres.slot.clone(),
        settings.postgres.publication.clone(),
        settings.nats.stream.clone(),
    ];
    for url in [settings.postgres.url.expose(), settings.nats.url.expose()] {
        names.extend(url::public_names(url).into_iter().map(str::to_owned));
    }
    if let NatsAuth::User { user, .. } = &settings.nats.auth {
        names.push(user.clone());
    }
    for outbox in &settings.outboxes {
        names.push(outbox.schema.clone());
        names.push(outbox.table.clone());
    }
    names
}

/// Variables of others that are read: the two URLs, and what libpq reads.
const OTHER_VARIABLES: [&str; 7] = [
    "DATABASE_URL",
    "NATS_URL",
    "USER",
    "LOGNAME",
    "HOME",
    "PGPASSWORD",
    "PGPASSFILE",
];

/// Takes over the variables that concern us, and refuses those that are probably misspelt.
fn read_variables(layers: &mut Layers<'_>) {
    let other = [k::CONFIG_VARIABLE, k::LOG_VARIABLE, k::LOG_FORMAT_VARIABLE];
    let mut known: Vec<String> = k::KEYS.iter().map(|key| key.variable()).collect();
    known.extend(other.map(str::to_owned));
    for (name, value) in layers.environment.variables() {
        let Ok(name) = name.into_string() else {
            continue;
        };
        let of_libpq = ::postgres::TLS_VARIABLES.iter().any(|(it, _)| *it == name);
        let ours = of_libpq || known.contains(&name) || OTHER_VARIABLES.contains(&name.as_str());
        if !ours {
            let place = Place::Variable(name.clone());
            layers
                .faults
                .extend(misspelt(&name, &known).map(|wrong| wrong.at(place, "")));
            continue;
        }
        match value.into_string() {
            Ok(value) if value.is_empty() => {}
            Ok(value) => {
                layers.variables.insert(name, value);
            }
            Err(_) => {
                let wrong = Wrong::new("the value is not UTF-8 text", "");
                layers.faults.push(wrong.at(Place::Variable(name), ""));
            }
        }
    }
}

/// A variable with our prefix that is not ours. Kubernetes sets some for a service that is called
/// like us; they, and what resembles nothing of ours, are left alone.
fn misspelt(name: &str, known: &[String]) -> Option<Wrong> {
    let rest = name.strip_prefix("POSTRIDER_")?;
    let of_service = rest.ends_with("_SERVICE_HOST")
        || rest.ends_with("_PORT")
        || rest.contains("SERVICE_PORT")
        || rest.contains("_PORT_")
        || ["PORT", "SERVICE_HOST"].contains(&rest)
        || rest.starts_with("PORT_");
    let in_section = ["POSTGRES_", "NATS_", "DELIVERY_", "HTTP_"];
    let in_section = in_section.iter().any(|section| rest.starts_with(section));
    let near = suggest(name, known.iter().map(String::as_str));
    if of_service || !(in_section || near.is_some()) {
        return None;
    }
    let help = near.map_or(String::new(), |name| format!("did you mean {name}?"));
    Some(Wrong::new("unknown variable", help))
}

/// The configuration file that was named, parsed.
fn read_file(layers: &mut Layers<'_>, input: &ConfigInput) -> Document {
    let variable = layers.variables.get(k::CONFIG_VARIABLE).map(PathBuf::from);
    let (path, place) = match (&input.file, variable) {
        (Some(path), _) => (path.clone(), Place::Flag("--config".to_owned())),
        (None, Some(path)) => (path, Place::Variable(k::CONFIG_VARIABLE.to_owned())),
        (None, None) => return Document::default(),
    };
    layers.file_path = Some(path.clone());
    let wrong = match layers.environment.read(&path, CONFIG_FILE_MAX_BYTES) {
        Ok(content) => match String::from_utf8(content) {
            Ok(text) => return file::parse(&path, &text),
            Err(_) => Wrong::new(format!("{} is not UTF-8 text", path.display()), ""),
        },
        Err(error) => Wrong::new(format!("cannot read {}: {error}", path.display()), ""),
    };
    layers.faults.push(wrong.at(place, ""));
    Document {
        unread: true,
        ..Document::default()
    }
}

/// A URL by its key, its file, or the variable that applications share.
fn find_url(
    layers: &mut Layers<'_>,
    keys: (&'static k::Key, &'static k::Key),
    shared: &str,
) -> Option<(SecretSource, Found)> {
    let given = layers.find(keys.0).is_some() || layers.find(keys.1).is_some();
    if given {
        return layers.secret(keys.0, keys.1);
    }
    let value = layers.variables.get(shared)?.clone();
    let found = Found {
        raw: file::Raw::Bool(true),
        layer: Layer::Shared,
        place: Place::Variable(shared.to_owned()),
    };
    Some((SecretSource::Value(Secret::new(value)), found))
}

/// `[postgres]`; `None` after a fault.
fn postgres(layers: &mut Layers<'_>, redactor: &mut Redactor) -> Option<PostgresSettings> {
    let before = layers.faults.len();
    let url = find_url(
        layers,
        (&k::POSTGRES_URL, &k::POSTGRES_URL_FILE),
        "DATABASE_URL",
    );
    if url.is_none() && layers.faults.len() == before {
        let help = "give --postgres-url, POSTRIDER_POSTGRES_URL, postgres.url in the file, or \
                    DATABASE_URL";
        let wrong = Wrong::new("no database is given", help);
        layers.fault(Place::Nowhere, &k::POSTGRES_URL, wrong);
    }
    let password = layers.secret(&k::POSTGRES_PASSWORD, &k::POSTGRES_PASSWORD_FILE);
    let slot = layers.text(&k::POSTGRES_SLOT);
    let publication = layers.text(&k::POSTGRES_PUBLICATION);
    let (url, found) = url?;
    let url = url.at_start().clone();
    for secret in url::secrets(url.expose()) {
        redactor.learn(secret);
    }
    let password = match password {
        // The URL of a higher layer brings its own password.
        Some((_, its)) if url::has_password(url.expose()) && its.layer > found.layer => None,
        Some((_, its)) if url::has_password(url.expose()) => {
            let problem = "the URL has a password, and another is given beside it";
            layers.fault(
                its.place,
                &k::POSTGRES_PASSWORD,
                Wrong::new(problem, "give one"),
            );
            None
        }
        other => other.map(|(password, _)| password),
    };
    let settings = PostgresSettings {
        url,
        password,
        slot: slot?,
        publication: publication?,
        libpq: libpq(layers),
    };
    let known = [settings
        .password
        .as_ref()
        .map(|source| source.at_start().expose().as_str())];
    let known = known.into_iter().chain([settings
        .libpq
        .password
        .as_ref()
        .map(::postgres::Password::expose)]);
    for secret in known.flatten() {
        redactor.learn(secret);
    }
    let at_start = settings.password.as_ref().map(SecretSource::at_start);
    if let Err(errors) = settings.parse_url(at_start) {
        for error in errors.0 {
            let wrong = Wrong::new(error.to_string(), "");
            layers.fault(found.place.clone(), &k::POSTGRES_URL, wrong);
        }
    }
    Some(settings)
}

/// What libpq would take from the environment.
fn libpq(layers: &Layers<'_>) -> ::postgres::Environment {
    let text = |name: &str| layers.variables.get(name).cloned();
    ::postgres::Environment {
        user: text("USER").or_else(|| text("LOGNAME")),
        home: text("HOME").map(PathBuf::from),
        password: text("PGPASSWORD").map(::postgres::Password::new),
        passfile: text("PGPASSFILE").map(PathBuf::from),
        tls: ::postgres::TLS_VARIABLES
            .iter()
            .filter_map(|(name, _)| Some((*name, text(name)?)))
            .collect(),
    }
}

/// `[delivery]`; `None` after a fault.
fn delivery(layers: &mut Layers<'_>) -> Option<DeliverySettings> {
    let on_poison = layers.text(&k::DELIVERY_ON_POISON);
    let on_unroutable = layers.text(&k::DELIVERY_ON_UNROUTABLE);
    let confirm_delay = layers.duration(&k::DELIVERY_CONFIRM_DELAY);
    let max_in_flight_bytes = layers.size(&k::DELIVERY_MAX_IN_FLIGHT_BYTES);
    let _only_stream = layers.text(&k::DELIVERY_TRANSACTIONS);
    Some(DeliverySettings {
        on_poison: if on_poison? == "halt" {
            OnPoison::Halt
        } else {
            OnPoison::Park
        },
        on_unroutable: match on_unroutable?.as_str() {
            "park" => OnUnroutable::Park,
            _ => OnUnroutable::Wait,
        },
        confirm_delay: confirm_delay?,
        max_in_flight_bytes: max_in_flight_bytes?,
    })
}
