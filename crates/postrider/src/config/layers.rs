//! Precedence: flag, then `POSTRIDER_*` variable, then file. One place asks all three and checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::environment::Environment;
use crate::config::fault::{Fault, Place, Wrong, quote};
use crate::config::file::{Located, Raw};
use crate::config::keys::{Key, Kind};
use crate::config::names;
use crate::config::units;
use crate::secret::{SECRET_FILE_MAX_BYTES, Secret, SecretSource, read_secret};

/// Where a value came from; what comes first wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// A flag.
    Flag,
    /// A `POSTRIDER_*` variable.
    Variable,
    /// The file.
    File,
    /// `DATABASE_URL` or `NATS_URL`.
    Shared,
}

/// A value, its layer and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// The value.
    pub raw: Raw,
    /// Its layer.
    pub layer: Layer,
    /// Its place, for messages.
    pub place: Place,
}

/// All layers and the faults found so far.
#[derive(Debug)]
pub struct Layers<'a> {
    /// Files.
    pub environment: &'a dyn Environment,
    /// Flags, by key name.
    pub flags: &'a BTreeMap<&'static str, String>,
    /// Variables that are not empty, by name.
    pub variables: BTreeMap<String, String>,
    /// Values of the file, by key name.
    pub file: BTreeMap<&'static str, Located>,
    /// The file's path, if there is one.
    pub file_path: Option<PathBuf>,
    /// The faults.
    pub faults: Vec<Fault>,
}

impl Layers<'_> {
    /// The value of a key in one layer.
    fn find_in(&self, key: &Key, layer: Layer) -> Option<Found> {
        let (raw, place) = match layer {
            Layer::Flag => {
                let value = self.flags.get(key.name)?;
                (Raw::Text(value.clone()), Place::Flag(key.flag()?))
            }
            Layer::Variable => {
                let name = key.variable();
                (
                    Raw::Text(self.variables.get(&name)?.clone()),
                    Place::Variable(name),
                )
            }
            Layer::File => {
                let located = self.file.get(key.name)?;
                (located.raw.clone(), self.file_place(Some(located.line)))
            }
            Layer::Shared => return None,
        };
        Some(Found { raw, layer, place })
    }

    /// The value of a key by precedence.
    pub fn find(&self, key: &Key) -> Option<Found> {
        let layers = [Layer::Flag, Layer::Variable, Layer::File];
        layers
            .into_iter()
            .find_map(|layer| self.find_in(key, layer))
    }

    /// A place in the file.
    pub fn file_place(&self, line: Option<usize>) -> Place {
        match &self.file_path {
            Some(path) => Place::File {
                path: path.clone(),
                line,
            },
            None => Place::Nowhere,
        }
    }

    /// Notes a fault of a value.
    pub fn fault(&mut self, place: Place, key: &Key, wrong: Wrong) {
        self.faults.push(wrong.at(place, key.name));
    }

    /// The checked value of a key, or its default; `None` where there is neither or a fault.
    fn checked<T>(
        &mut self,
        key: &Key,
        check: impl Fn(&str) -> Result<T, Wrong>,
    ) -> Option<(T, Option<Found>)> {
        let Some(found) = self.find(key) else {
            return check(key.default?).ok().map(|value| (value, None));
        };
        match as_text(&found.raw, key.kind).and_then(|text| check(&text)) {
            Ok(value) => Some((value, Some(found))),
            Err(wrong) => {
                self.fault(found.place, key, wrong);
                None
            }
        }
    }

    /// Text, a name or a word of a choice.
    pub fn text(&mut self, key: &Key) -> Option<String> {
        self.checked(key, |text| check_text(text, key).map(|()| text.to_owned()))
            .map(|v| v.0)
    }

    /// A boolean.
    pub fn boolean(&mut self, key: &Key) -> Option<bool> {
        let check = |text: &str| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(Wrong::new(
                format!("{} is neither true nor false", quote(text)),
                "",
            )),
        };
        self.checked(key, check).map(|v| v.0)
    }

    /// A size in bytes.
    pub fn size(&mut self, key: &Key) -> Option<u64> {
        let Kind::Size(bounds) = key.kind else {
            return None;
        };
        self.checked(key, |text| units::parse_size(text, bounds))
            .map(|v| v.0)
    }

    /// A duration.
    pub fn duration(&mut self, key: &Key) -> Option<Duration> {
        let Kind::Duration(bounds) = key.kind else {
            return None;
        };
        self.checked(key, |text| units::parse_duration(text, bounds))
            .map(|v| v.0)
    }

    /// A whole number.
    pub fn integer(&mut self, key: &Key) -> Option<u64> {
        let Kind::Integer(bounds) = key.kind else {
            return None;
        };
        self.checked(key, |text| units::parse_integer(text, bounds))
            .map(|v| v.0)
    }

    /// A file that is readable now, with its content. A path in the configuration file is
    /// relative to that file's folder.
    pub fn path(&mut self, key: &Key) -> Option<(PathBuf, Found, Vec<u8>)> {
        let found = self.find(key)?;
        self.read_path(key, found)
    }

    fn read_path(&mut self, key: &Key, found: Found) -> Option<(PathBuf, Found, Vec<u8>)> {
        let read = as_text(&found.raw, key.kind).and_then(|text| {
            if text.is_empty() {
                return Err(Wrong::new("the path is empty", "write the path of a file"));
            }
            let path = self.resolve(&text, found.layer);
            match self
                .environment
                .read(&path, SECRET_FILE_MAX_BYTES.max(CERTIFICATES_MAX_BYTES))
            {
                Ok(content) => Ok((path, content)),
                Err(error) => {
                    let problem = format!("cannot read {}: {error}", path.display());
                    Err(Wrong::new(problem, "name a file that this user can read"))
                }
            }
        });
        match read {
            Ok((path, content)) => Some((path, found, content)),
            Err(wrong) => {
                self.fault(found.place, key, wrong);
                None
            }
        }
    }

    fn resolve(&self, text: &str, layer: Layer) -> PathBuf {
        let folder = self.file_path.as_deref().and_then(Path::parent);
        match folder {
            Some(folder) if layer == Layer::File => folder.join(text),
            _ => PathBuf::from(text),
        }
    }

    /// A secret that is given by value or by file. In the layer that wins only one may be given.
    pub fn secret(&mut self, value: &Key, file: &Key) -> Option<(SecretSource, Found)> {
        for layer in [Layer::Flag, Layer::Variable, Layer::File] {
            match (self.find_in(value, layer), self.find_in(file, layer)) {
                (None, None) => {}
                (Some(_), Some(found)) => {
                    let problem = format!("{} and {} are both given", value.name, file.name);
                    self.fault(found.place, file, Wrong::new(problem, "give one of them"));
                    return None;
                }
                (Some(found), None) => {
                    let text = as_text(&found.raw, value.kind);
                    let text = text.and_then(|text| check_text(&text, value).map(|()| text));
                    return match text {
                        Ok(text) => Some((SecretSource::Value(Secret::new(text)), found)),
                        Err(wrong) => {
                            self.fault(found.place, value, wrong);
                            None
                        }
                    };
                }
                (None, Some(found)) => {
                    let (path, found, content) = self.read_path(file, found)?;
                    return match read_secret(&path, &content) {
                        Ok(at_start) => Some((SecretSource::File { path, at_start }, found)),
                        Err(error) => {
                            let wrong = Wrong::new(error.to_string(), "");
                            self.fault(found.place, file, wrong);
                            None
                        }
                    };
                }
            }
        }
        None
    }
}

/// Largest file of certificates, in bytes. A bundle of all public authorities is about 250 KiB.
const CERTIFICATES_MAX_BYTES: usize = 4 << 20;

/// A raw value as text for the checks of its kind.
fn as_text(raw: &Raw, kind: Kind) -> Result<String, Wrong> {
    let wants = |what: &str, example: &str| {
        let problem = format!("this wants {what}, and the value is a {}", raw.type_name());
        Err(Wrong::new(problem, format!("example: {example}")))
    };
    match (raw, kind) {
        (Raw::Text(text), _) => Ok(text.clone()),
        (Raw::Bool(value), Kind::Bool) => Ok(value.to_string()),
        (_, Kind::Bool) => wants("a boolean", "true"),
        (
            Raw::Integer(text) | Raw::Float(text),
            Kind::Size(_) | Kind::Duration(_) | Kind::Integer(_),
        ) => Ok(text.clone()),
        (_, Kind::Size(_)) => wants("a size in quotes", "\"16MiB\""),
        (_, Kind::Duration(_)) => wants("a duration in quotes", "\"30s\""),
        (_, Kind::Integer(_)) => wants("a whole number", "3"),
        (_, Kind::Choice(words)) => wants("a word in quotes", &format!("{:?}", words.join("|"))),
        _ => wants("text in quotes", "\"...\""),
    }
}

/// Checks of the kinds that stay text.
fn check_text(text: &str, key: &Key) -> Result<(), Wrong> {
    match key.kind {
        Kind::Slot => {
            let wrong = |problem| Wrong::new(problem, "write a name like postrider");
            ::postgres::check_slot_name(text).map_err(wrong)
        }
        Kind::Publication => names::check_identifier(text, "publication name"),
        Kind::Stream => names::check_stream(text),
        Kind::Choice(words) if words.contains(&text) => Ok(()),
        Kind::Choice(words) => {
            let allowed = words.join(" or ");
            if key.name == "delivery.transactions" && text == "atomic" {
                let problem = "this version of Postrider does not have atomic batches";
                return Err(Wrong::new(
                    problem,
                    format!("write {allowed}, or take it out"),
                ));
            }
            let problem = format!("{} is not one of the words allowed here", quote(text));
            Err(Wrong::new(problem, format!("write {allowed}")))
        }
        _ if text.is_empty() => Err(Wrong::new("the value is empty", "")),
        _ if text.contains('\0') => Err(Wrong::new("the value has a NUL in it", "")),
        _ => Ok(()),
    }
}
