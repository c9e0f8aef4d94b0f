//! From the text of a URL to libpq's keywords and values.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::UrlError;

/// Keyword to decoded value, as libpq's own parser makes of a URL; a later one wins.
pub(super) type Pairs = BTreeMap<String, String>;

const SCHEMES: [&str; 2] = ["postgres://", "postgresql://"];

/// Splits and decodes `url`. Faults are added to `faults`; what could be read is returned anyway,
/// so that the faults of later parts are found in the same run.
pub(super) fn pairs(url: &str, faults: &mut Vec<UrlError>) -> Pairs {
    let mut pairs = Pairs::new();
    let Some(rest) = SCHEMES.iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        faults.push(UrlError::Scheme);
        return pairs;
    };
    let authority_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(authority_end);
    let (path, query) = match tail.split_once('?') {
        Some((path, query)) => (path, query),
        None => (tail, ""),
    };

    let hosts = credentials(authority, &mut pairs, faults);
    host_list(hosts, &mut pairs, faults);
    if path.contains('@') {
        faults.push(UrlError::StrayAt {
            part: "database name",
        });
    } else if let Some(database) = path.strip_prefix('/').filter(|name| !name.is_empty()) {
        store("dbname", database, "database name", &mut pairs, faults);
    }
    // An `@` behind the host may mean that an unencoded `/` or `?` has cut a password in two: then
    // no unknown text is repeated in a message.
    let names_are_safe = !tail.contains('@');
    options(query, names_are_safe, &mut pairs, faults);
    pairs
}

/// Reads `user:password@` and returns the rest.
fn credentials<'a>(authority: &'a str, pairs: &mut Pairs, faults: &mut Vec<UrlError>) -> &'a str {
    let Some((credentials, hosts)) = authority.split_once('@') else {
        return authority;
    };
    let (user, password) = match credentials.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (credentials, None),
    };
    if !user.is_empty() {
        store("user", user, "user name", pairs, faults);
    }
    if let Some(password) = password.filter(|password| !password.is_empty()) {
        store("password", password, "password", pairs, faults);
    }
    if hosts.contains('@') {
        faults.push(UrlError::StrayAt { part: "host" });
        return "";
    }
    hosts
}

/// Reads `host:port,[v6]:port,...` into the comma-separated `host` and `port` of libpq.
fn host_list(list: &str, pairs: &mut Pairs, faults: &mut Vec<UrlError>) {
    if list.is_empty() {
        return;
    }
    let mut names = Vec::new();
    let mut ports = Vec::new();
    for entry in list.split(',') {
        let (name, port) = match entry.strip_prefix('[') {
            Some(bracketed) => match bracketed.split_once(']') {
                Some((name, "")) if !name.is_empty() => (name, ""),
                Some((name, after)) if !name.is_empty() && after.starts_with(':') => {
                    (name, after.get(1..).unwrap_or(""))
                }
                _ => {
                    faults.push(UrlError::Brackets);
                    return;
                }
            },
            None => entry.split_once(':').unwrap_or((entry, "")),
        };
        names.push(name);
        ports.push(port);
    }
    if names.iter().any(|name| !name.is_empty()) {
        store("host", &names.join(","), "host", pairs, faults);
    }
    if ports.iter().any(|port| !port.is_empty()) {
        store("port", &ports.join(","), "port", pairs, faults);
    }
}

fn options(query: &str, names_are_safe: bool, pairs: &mut Pairs, faults: &mut Vec<UrlError>) {
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let split = option
            .split_once('=')
            .filter(|(_, value)| !value.contains('='));
        let Some((name, value)) = split else {
            if !faults.contains(&UrlError::OptionSyntax) {
                faults.push(UrlError::OptionSyntax);
            }
            continue;
        };
        let name = match decode(name) {
            Some(name) if names_are_safe => name,
            // Known names are checked by `options::checked`; this one will not be repeated.
            Some(name) if super::options::is_known(&name) => name,
            _ => "?".to_owned(),
        };
        // JDBC's way of writing it, which libpq reads too.
        let (name, value) = match (name.as_str(), value) {
            ("ssl", "true") => ("sslmode".to_owned(), "require"),
            _ => (name, value),
        };
        let part = if super::options::is_known(&name) {
            format!("option {name}")
        } else {
            "options".to_owned()
        };
        store(&name, value, &part, pairs, faults);
    }
}

fn store(name: &str, raw: &str, part: &str, pairs: &mut Pairs, faults: &mut Vec<UrlError>) {
    match decode(raw) {
        Some(value) => {
            pairs.insert(name.to_owned(), value);
        }
        None => faults.push(UrlError::PercentEncoding {
            part: part.to_owned(),
        }),
    }
}

/// Undoes percent-encoding; `None` for a stray `%`, a NUL (which no startup packet can carry) and
/// bytes that are not UTF-8. `+` stays `+`, as in libpq.
fn decode(raw: &str) -> Option<String> {
    let mut rest = raw;
    while let Some((_, after)) = rest.split_once('%') {
        let digits = after.get(..2)?;
        if digits == "00" || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        rest = after.get(2..)?;
    }
    if raw.contains('\0') {
        return None;
    }
    percent_encoding::percent_decode_str(raw)
        .decode_utf8()
        .ok()
        .map(Cow::into_owned)
}
