//! NATS URLs as users write them: several, separated by commas, with credentials inside.
//!
//! async-nats ignores credentials in a URL, so they are taken out here and given to the
//! authentication. Nothing in this file's errors repeats a piece of the text: a comma or an `@` in
//! a password that was not percent-encoded would otherwise put half of it into a log.

use std::fmt;

use percent_encoding::percent_decode_str;

use crate::secret::Secret;

/// The port where NATS servers listen for clients unless told otherwise.
const DEFAULT_PORT: u16 = 4222;

/// Servers in one list; a longer one is a mistake, not a cluster.
const MAX_SERVERS: usize = 64;

/// One server, without credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// TLS was asked for by `tls://`.
    pub tls: bool,
    /// Name or address; an IPv6 address in brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "tls" } else { "nats" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

/// Credentials that stood in a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UrlAuth {
    /// `user:password@`.
    UserPassword(String, Secret),
    /// `token@`.
    Token(Secret),
}

/// What is wrong with one URL. The text itself is not repeated, it may hold a secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlFault {
    /// More servers than a list may hold.
    #[error("it is one too many, a list holds up to {MAX_SERVERS} servers")]
    TooMany,
    /// Nothing between two commas, or nothing at all.
    #[error("it is empty")]
    Empty,
    /// Neither `nats://` nor `tls://`.
    #[error("its scheme is neither nats:// nor tls://")]
    Scheme,
    /// No host name.
    #[error("it names no host")]
    NoHost,
    /// A host that cannot be one.
    #[error(
        "its host holds a character that no host name has (in a password, write `,` as %2C, \
         `@` as %40, `/` as %2F, `:` as %3A)"
    )]
    Host,
    /// A port that is no number from 1 to 65535.
    #[error(
        "its port is no number from 1 to 65535 (in a password, write `,` as %2C and `@` as %40)"
    )]
    Port,
    /// Something behind the port.
    #[error("it has a path, a query or a fragment, which NATS does not know")]
    Trailing,
    /// `%` without two hexadecimal digits, or bytes that are no UTF-8.
    #[error("its user, password or token is not properly percent-encoded")]
    Encoding,
    /// `:password@` or `@` without a name before it.
    #[error("its user or token is empty")]
    EmptyUser,
}

/// One URL: where, and who.
type Parsed = (Server, Option<UrlAuth>);

/// Reads a comma-separated list; every fault comes with the number of its URL, counted from 1.
pub(crate) fn parse_urls(text: &str) -> Result<Vec<Parsed>, Vec<(usize, UrlFault)>> {
    let mut servers = Vec::new();
    let mut faults = Vec::new();
    for (index, url) in text.split(',').enumerate() {
        if index == MAX_SERVERS {
            faults.push((index + 1, UrlFault::TooMany));
            break;
        }
        match parse_url(url.trim()) {
            Ok(server) => servers.push(server),
            Err(fault) => faults.push((index + 1, fault)),
        }
    }
    if faults.is_empty() {
        Ok(servers)
    } else {
        Err(faults)
    }
}

fn parse_url(text: &str) -> Result<Parsed, UrlFault> {
    if text.is_empty() {
        return Err(UrlFault::Empty);
    }
    let (tls, rest) = match text.split_once("://") {
        None => (false, text),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("nats") => (false, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("tls") => (true, rest),
        Some(_) => return Err(UrlFault::Scheme),
    };
    let (auth, place) = match rest.rsplit_once('@') {
        None => (None, rest),
        Some((user, place)) => (Some(parse_auth(user)?), place),
    };
    let place = place.strip_suffix('/').unwrap_or(place);
    if place.contains(['/', '?', '#']) {
        return Err(UrlFault::Trailing);
    }
    let (host, port) = parse_place(place)?;
    Ok((Server { tls, host, port }, auth))
}

fn parse_auth(text: &str) -> Result<UrlAuth, UrlFault> {
    let (user, password) = match text.split_once(':') {
        None => (decoded(text)?, None),
        Some((user, password)) => (decoded(user)?, Some(decoded(password)?)),
    };
    if user.is_empty() {
        return Err(UrlFault::EmptyUser);
    }
    Ok(match password {
        None => UrlAuth::Token(Secret::new(user)),
        Some(password) => UrlAuth::UserPassword(user, Secret::new(password)),
    })
}

fn decoded(text: &str) -> Result<String, UrlFault> {
    let sound = text.split('%').skip(1).all(|after| {
        let mut digits = after.bytes();
        let mut hex = || digits.next().is_some_and(|byte| byte.is_ascii_hexdigit());
        hex() && hex()
    });
    if !sound {
        return Err(UrlFault::Encoding);
    }
    let text = percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| UrlFault::Encoding)?;
    Ok(text.into_owned())
}

fn parse_place(place: &str) -> Result<(String, u16), UrlFault> {
    let (host, port) = if place.starts_with('[') {
        let end = place.find(']').ok_or(UrlFault::Host)?;
        let (host, rest) = place.split_at(end + 1);
        let address = host.trim_start_matches('[').trim_end_matches(']');
        if address.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(UrlFault::Host);
        }
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(UrlFault::Port),
        }
    } else {
        match place.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (place, None),
        }
    };
    if host.is_empty() {
        return Err(UrlFault::NoHost);
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if !host.starts_with('[') && !host.bytes().all(plain) {
        return Err(UrlFault::Host);
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits
            .parse()
            .ok()
            .filter(|&port| port != 0)
            .ok_or(UrlFault::Port)?,
        Some(_) => return Err(UrlFault::Port),
    };
    Ok((host.to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> (Server, Option<UrlAuth>) {
        parse_urls(text).unwrap().remove(0)
    }

    #[test]
    fn servers_in_every_form() {
        for (text, shown) in [
            ("localhost", "nats://localhost:4222"),
            ("localhost:4333", "nats://localhost:4333"),
            ("nats://a.example:1/", "nats://a.example:1"),
            ("NATS://h", "nats://h:4222"),
            ("tls://h:443", "tls://h:443"),
            ("[::1]:5", "nats://[::1]:5"),
            ("nats://[::1]", "nats://[::1]:4222"),
            (" 127.0.0.1 ", "nats://127.0.0.1:4222"),
        ] {
            let (server, auth) = one(text);
            assert_eq!(server.to_string(), shown);
            assert_eq!(auth, None);
        }
        let several = parse_urls("a, tls://b:1 ,nats://u:p@c").unwrap();
        assert_eq!(several.len(), 3);
    }

    #[test]
    fn credentials_are_decoded_and_taken_out() {
        let (server, auth) = one("nats://us%65r:S3CR3T%40x%2C%25%20%C3%BC@h:1");
        assert_eq!(server.to_string(), "nats://h:1");
        let password = Secret::new("S3CR3T@x,% ü");
        assert_eq!(auth, Some(UrlAuth::UserPassword("user".into(), password)));
        let (_, auth) = one("tok%2Fen@h");
        assert_eq!(auth, Some(UrlAuth::Token(Secret::new("tok/en"))));
        let (_, auth) = one("nats://u:@h");
        let password = Secret::new("");
        assert_eq!(auth, Some(UrlAuth::UserPassword("u".into(), password)));
        // Forgotten encodings that can be told all the same.
        let (server, auth) = one("nats://u:p@ss/w:rd?#@h");
        assert_eq!(server.host, "h");
        let password = Secret::new("p@ss/w:rd?#");
        assert_eq!(auth, Some(UrlAuth::UserPassword("u".into(), password)));
    }

    #[test]
    fn faults_are_listed_by_number() {
        for (text, fault) in [
            ("", UrlFault::Empty),
            ("http://h", UrlFault::Scheme),
            ("ws://h", UrlFault::Scheme),
            ("nats://", UrlFault::NoHost),
            ("nats://:4222", UrlFault::NoHost),
            ("nats://h:0", UrlFault::Port),
            ("nats://h:65536", UrlFault::Port),
            ("nats://h:+1", UrlFault::Port),
            ("nats://h:", UrlFault::Port),
            ("nats://h/x", UrlFault::Trailing),
            ("nats://h?x", UrlFault::Trailing),
            ("nats://h h", UrlFault::Host),
            ("nats://[::1", UrlFault::Host),
            ("nats://[x]", UrlFault::Host),
            ("nats://[::1]x", UrlFault::Port),
            ("nats://u:%zz@h", UrlFault::Encoding),
            ("nats://u:%4@h", UrlFault::Encoding),
            ("nats://u:%FF@h", UrlFault::Encoding),
            ("nats://@h", UrlFault::EmptyUser),
            ("nats://:p@h", UrlFault::EmptyUser),
        ] {
            assert_eq!(parse_urls(text), Err(vec![(1, fault)]), "{text}");
        }
        let faults = parse_urls("a,,b,ftp://x").unwrap_err();
        assert_eq!(faults, [(2, UrlFault::Empty), (4, UrlFault::Scheme)]);
    }

    #[test]
    fn a_password_with_a_bare_comma_leaks_nowhere() {
        let faults = parse_urls("nats://user:S3C,R3T@h").unwrap_err();
        let shown = format!("{faults:?}{}", faults[0].1);
        assert!(!shown.contains("S3C"), "{shown}");
        let auth = one("nats://user:S3CR3T@h").1;
        assert!(!format!("{auth:?}").contains("S3CR3T"));
    }
}
