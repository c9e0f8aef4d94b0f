//! What must be known of the two URLs before anyone connects: that they are what they claim, and
//! where their secrets are. The rooms that connect parse them in full.

use crate::config::fault::Wrong;

/// Scheme and user part of a URL.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Split<'a> {
    scheme: Option<&'a str>,
    /// Everything before the last `@` ahead of path and query.
    user: Option<&'a str>,
    /// Host and port.
    host: &'a str,
    /// Path and query.
    tail: &'a str,
}

fn split(url: &str) -> Split<'_> {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, url),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    Split {
        scheme,
        user,
        host,
        tail,
    }
}

/// Checks that a URL is one of PostgreSQL.
///
/// # Errors
/// For another scheme or none, and for spaces and control characters. Nothing of the URL but a
/// plain scheme is repeated.
pub fn check_postgres(url: &str) -> Result<(), Wrong> {
    let help = "write postgres://USER@HOST:5432/DATABASE; in user and password percent-encode \
                everything but letters and digits";
    check_characters(url, help)?;
    match split(url).scheme {
        Some("postgres" | "postgresql") => Ok(()),
        Some(scheme) if is_scheme(scheme) => Err(Wrong::new(
            format!("a URL with the scheme {scheme} is not PostgreSQL's"),
            help,
        )),
        _ if url.contains('=') && !url.contains("://") => Err(Wrong::new(
            "this looks like a keyword string, not a URL",
            help,
        )),
        _ => Err(Wrong::new("this is not a URL", help)),
    }
}

/// Checks a list of NATS URLs, separated by commas.
///
/// # Errors
/// For another scheme than `nats` and `tls`, a missing host, a bad port, a path. Nothing of the URL
/// but a plain scheme is repeated.
pub fn check_nats(urls: &str) -> Result<(), Wrong> {
    let help = "write nats://HOST:4222 or tls://HOST:4222, several separated by commas; in user, \
                password and token percent-encode everything but letters and digits";
    for url in urls.split(',').map(str::trim) {
        check_characters(url, help)?;
        let parts = split(url);
        match parts.scheme {
            None | Some("nats" | "tls") => {}
            Some(scheme) if is_scheme(scheme) => {
                let problem = format!("a URL with the scheme {scheme} is not supported for NATS");
                return Err(Wrong::new(problem, help));
            }
            Some(_) => return Err(Wrong::new("this is not a URL", help)),
        }
        if !matches!(parts.tail, "" | "/") {
            let problem = "a NATS URL has no path or query, and this one seems to";
            return Err(Wrong::new(problem, help));
        }
        let (host, port) = match parts.host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (parts.host, None),
        };
        if host.is_empty() {
            return Err(Wrong::new("a NATS URL has no host", help));
        }
        let bare_ipv6 = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
        if bare_ipv6 {
            return Err(Wrong::new(
                "an IPv6 address needs brackets, like [::1]:4222",
                help,
            ));
        }
        if port.is_some_and(|port| !matches!(port.parse::<u16>(), Ok(port) if port > 0)) {
            return Err(Wrong::new(
                "the port of a NATS URL is not a number from 1 to 65535",
                help,
            ));
        }
    }
    Ok(())
}

/// Whether a NATS URL says how to log in.
pub fn nats_has_login(urls: &str) -> bool {
    urls.split(',')
        .any(|url| split(url).user.is_some_and(|user| !user.is_empty()))
}

/// Whether a PostgreSQL URL has a password.
pub fn postgres_has_password(url: &str) -> bool {
    let parts = split(url);
    let in_user = parts.user.and_then(|user| user.split_once(':'));
    let in_query = query(parts.tail).any(|(name, _)| name == "password");
    in_user.is_some_and(|(_, password)| !password.is_empty()) || in_query
}

/// Everything in a URL that may be a secret, as written there. In doubt more than less: an
/// unencoded `@` or `/` in a password must not uncover a part of it.
pub fn secrets(urls: &str) -> Vec<&str> {
    let mut found = Vec::new();
    // A list of URLs, and the whole as one URL: a comma may belong to the password.
    for url in urls.split(',').chain([urls]) {
        let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
        let users = [rest.rsplit_once('@').map(|(user, _)| user), split(url).user];
        for user in users.into_iter().flatten() {
            // A user without a password is a token, in NATS; in PostgreSQL it is only a name.
            let token = url.trim_start().starts_with("nats") || url.trim_start().starts_with("tls");
            match user.split_once(':') {
                Some((_, password)) => found.push(password),
                None if token => found.push(user),
                None => {}
            }
        }
        let tail = rest.split_once('?').map_or("", |(_, query)| query);
        let secret = query(tail).filter(|(name, _)| name.contains("password"));
        found.extend(secret.map(|(_, value)| value));
    }
    found.retain(|secret| !secret.is_empty());
    found.sort_unstable();
    found.dedup();
    found
}

/// Names in a URL that logs show anyway: user, host, database.
pub fn public_names(urls: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for url in urls.split(',') {
        let parts = split(url);
        found.extend(
            parts
                .user
                .and_then(|user| user.split_once(':'))
                .map(|(user, _)| user),
        );
        found.push(
            parts
                .host
                .rsplit_once(':')
                .map_or(parts.host, |(host, _)| host),
        );
        let path = parts.tail.strip_prefix('/').unwrap_or("");
        found.push(path.split('?').next().unwrap_or(""));
    }
    found.retain(|name| !name.is_empty());
    found
}

fn query(tail: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = tail.split_once('?').map_or(tail, |(_, query)| query);
    query.split('&').filter_map(|pair| pair.split_once('='))
}

/// Whether a scheme is plain enough to be repeated in a message.
fn is_scheme(scheme: &str) -> bool {
    const MOST_CHARS: usize = 24;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    !scheme.is_empty() && scheme.len() <= MOST_CHARS && scheme.chars().all(plain)
}

fn check_characters(url: &str, help: &str) -> Result<(), Wrong> {
    if url.is_empty() {
        return Err(Wrong::new("the URL is empty", help));
    }
    if url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(Wrong::new(
            "the URL has a space or control character in it",
            help,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgres_urls() {
        for url in [
            "postgres://u:p@h:5432/d",
            "postgresql://",
            "postgres:///d?host=/run/postgresql",
            "postgres://h1:1,h2:2/d",
            "postgresql://%2Frun%2Fpg/d",
        ] {
            assert_eq!(check_postgres(url), Ok(()), "{url}");
        }
        for url in [
            "",
            "mysql://S3CR3T@h/d",
            "host=h password=S3CR3T",
            "h/d",
            "postgres://a b",
        ] {
            let wrong = check_postgres(url).unwrap_err();
            assert!(!format!("{wrong:?}").contains("S3CR3T"), "{wrong:?}");
        }
        assert!(
            check_postgres("mysql://h/d")
                .unwrap_err()
                .problem
                .contains("mysql")
        );
    }

    #[test]
    fn nats_urls() {
        for urls in [
            "nats://localhost:4222",
            "tls://h",
            "h:4222",
            "nats://u:p@h, nats://t@[::1]:4222",
            "nats://h/",
        ] {
            assert_eq!(check_nats(urls), Ok(()), "{urls}");
        }
        for urls in [
            "",
            "http://h",
            "nats://",
            "nats://h:0",
            "nats://h:70000",
            "nats://h:S3CR3T",
            "nats://u:S3CR3T/x@h",
            "nats://h,,",
            "nats://::1:4222",
            "nats://h?x=S3CR3T",
        ] {
            let wrong = check_nats(urls).unwrap_err();
            assert!(!format!("{wrong:?}").contains("S3CR3T"), "{wrong:?}");
        }
    }

    #[test]
    fn secrets_are_found_wherever_they_are() {
        assert_eq!(secrets("postgres://u:S3CR3T%40x@h/d"), ["S3CR3T%40x"]);
        assert!(secrets("postgres://u:S3/CR3T@x@h/d").contains(&"S3/CR3T@x"));
        assert_eq!(secrets("postgres://h/d?user=u&password=abc&x=y"), ["abc"]);
        assert_eq!(secrets("postgres://h/d?sslpassword=abc"), ["abc"]);
        assert!(secrets("nats://tok@h1,nats://u:pw@h2").contains(&"tok"));
        assert!(secrets("nats://tok@h1,nats://u:pw@h2").contains(&"pw"));
        assert!(secrets("postgres://u:a,b@h/d").contains(&"a,b"));
        assert!(secrets("postgres://u@h/d").is_empty());
        assert!(secrets("nats://h:4222").is_empty());
    }

    #[test]
    fn logins_are_noticed() {
        assert!(postgres_has_password("postgres://u:p@h/d"));
        assert!(postgres_has_password("postgres://h/d?password=p"));
        assert!(!postgres_has_password("postgres://u@h/d"));
        assert!(nats_has_login("nats://h,nats://tok@g"));
        assert!(!nats_has_login("nats://h"));
        assert_eq!(
            public_names("postgres://shop:p@db:5432/orders?x=y"),
            ["shop", "db", "orders"]
        );
    }
}
