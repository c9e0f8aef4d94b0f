//! Names that PostgreSQL, NATS and HTTP-style headers accept.

use crate::config::fault::{Wrong, quote};

/// Longest PostgreSQL identifier, in bytes (NAMEDATALEN 64 less the end byte).
pub const IDENTIFIER_MAX_BYTES: usize = 63;

/// Longest stream name, in bytes (`JSMaxNameLen` of nats-server).
pub const STREAM_NAME_MAX_BYTES: usize = 255;

/// Longest header name, in bytes. Our own bound: far above any in use, far below `max_payload`.
pub const HEADER_NAME_MAX_BYTES: usize = 256;

/// Headers that come from columns of their own; a mapping beside them would send them twice.
const COLUMN_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// Checks a PostgreSQL identifier as stored: 1 to 63 bytes, no NUL.
///
/// # Errors
/// For any other name; `what` names it in the message.
pub fn check_identifier(name: &str, what: &str) -> Result<(), Wrong> {
    let problem = if name.is_empty() {
        format!("the {what} is empty")
    } else if name.len() > IDENTIFIER_MAX_BYTES {
        format!("the {what} {} is {} bytes long", quote(name), name.len())
    } else if name.contains('\0') {
        format!("the {what} {} has a NUL in it", quote(name))
    } else {
        return Ok(());
    };
    Err(Wrong::new(
        problem,
        "PostgreSQL names are 1 to 63 bytes long",
    ))
}

/// Checks a stream name: no space, `.`, `*`, `>`, `/`, `\` or control character.
///
/// # Errors
/// For any other name.
pub fn check_stream(name: &str) -> Result<(), Wrong> {
    let help = "write letters, digits, - and _, by habit in capitals, like OUTBOX";
    let bad = |c: char| c.is_whitespace() || c.is_control() || ".*>/\\".contains(c);
    let problem = if name.is_empty() {
        "the stream name is empty".to_owned()
    } else if name.len() > STREAM_NAME_MAX_BYTES {
        format!(
            "the stream name {} is {} bytes long",
            quote(name),
            name.len()
        )
    } else {
        match name.chars().find(|c| bad(*c)) {
            None => return Ok(()),
            Some(c) => format!("the stream name {} has {c:?} in it", quote(name)),
        }
    };
    Err(Wrong::new(problem, help))
}

/// Checks the name of a mapped header: a token of RFC 7230, section 3.2.6, that is not ours.
///
/// # Errors
/// For any other name.
pub fn check_header(name: &str) -> Result<(), Wrong> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let help = "write letters, digits and -, like Tenant-Id";
    if name.is_empty() {
        return Err(Wrong::new("a header name is empty", help));
    }
    if name.len() > HEADER_NAME_MAX_BYTES {
        let problem = format!(
            "the header name {} is {} bytes long",
            quote(name),
            name.len()
        );
        return Err(Wrong::new(problem, help));
    }
    if let Some(c) = name
        .chars()
        .find(|c| !c.is_ascii() || !u8::try_from(*c).is_ok_and(token))
    {
        return Err(Wrong::new(
            format!("the header name {} has {c:?} in it", quote(name)),
            help,
        ));
    }
    if let Some(reason) = outbox::header_name_fault(name) {
        let problem = format!("the header {} cannot be mapped: {reason}", quote(name));
        return Err(Wrong::new(problem, help));
    }
    if COLUMN_HEADERS
        .iter()
        .any(|header| header.eq_ignore_ascii_case(name))
    {
        let problem = format!("the header {} comes from a column of its own", quote(name));
        let help = format!("name the column by the key {}", name.to_ascii_lowercase());
        return Err(Wrong::new(problem, help));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers() {
        assert_eq!(check_identifier("My Publication", "publication"), Ok(()));
        assert_eq!(check_identifier(&"é".repeat(31), "publication"), Ok(()));
        for name in ["", "a\0b", &"é".repeat(32)] {
            assert!(check_identifier(name, "publication").is_err(), "{name:?}");
        }
    }

    #[test]
    fn streams() {
        assert_eq!(check_stream("OUTBOX-2_a"), Ok(()));
        for name in [
            "", "a.b", "a b", "a*", ">", "a/b", "a\\b", "a\tb", "a\u{a0}b",
        ] {
            assert!(check_stream(name).is_err(), "{name:?}");
        }
        assert!(check_stream(&"A".repeat(256)).is_err());
    }

    #[test]
    fn headers() {
        for name in ["Tenant", "x-request-id", "Nats-TTL", "Content-Type", "a!#b"] {
            assert_eq!(check_header(name), Ok(()), "{name}");
        }
        for name in ["", "a b", "a:b", "é", "a\r\nb", "a(b)"] {
            assert!(check_header(name).is_err(), "{name:?}");
        }
        for name in [
            "Nats-Msg-Id",
            "nats-expected-stream",
            "Outbox-Table",
            "Traceparent",
        ] {
            assert!(check_header(name).is_err(), "{name:?}");
        }
    }
}
