//! Where the secrets are in a URL that may be malformed, so that they are hidden before anyone
//! parses it. The rooms that connect parse and check the URLs.

/// User part, host and the rest of a URL.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Split<'a> {
    /// Everything before the last `@` ahead of path and query.
    user: Option<&'a str>,
    /// Host and port.
    host: &'a str,
    /// Path and query.
    tail: &'a str,
}

fn split(url: &str) -> Split<'_> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    Split { user, host, tail }
}

/// Whether a NATS URL says how to log in.
pub fn nats_has_login(urls: &str) -> bool {
    urls.split(',')
        .any(|url| split(url).user.is_some_and(|user| !user.is_empty()))
}

/// Whether a PostgreSQL URL has a password.
pub fn has_password(url: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(has_password("postgres://u:p@h/d"));
        assert!(has_password("postgres://h/d?password=p"));
        assert!(!has_password("postgres://u@h/d"));
        assert!(nats_has_login("nats://h,nats://tok@g"));
        assert!(!nats_has_login("nats://h"));
        assert_eq!(
            public_names("postgres://shop:p@db:5432/orders?x=y"),
            ["shop", "db", "orders"]
        );
    }
}
