//! What answers to a publish say.
//!
//! Whoever subscribes the subject can answer our reply inbox before JetStream does, so an answer
//! counts only if it can be read and names our stream.

use std::borrow::Cow;

use outbox::{PubAck, Refusal};
use serde::Deserialize;

use crate::connect::shortened;

/// A PubAck has some hundred bytes; JetStream's longest error not many more.
const MAX_ACK_BYTES: usize = 16 * 1024;

/// Status of the server's answer when nobody listens on the subject.
const STATUS_NO_RESPONDERS: u16 = 503;

/// Status of JetStream's answer when its ingest queue is full.
const STATUS_TOO_MANY_REQUESTS: u16 = 429;

/// JetStream: too many requests.
const ERR_TOO_MANY_REQUESTS: u32 = 10_167;

/// JetStream: a message with this id is being stored just now (JSStreamDuplicateMessageConflict).
const ERR_DUPLICATE_IN_PROCESS: u32 = 10_158;

/// HTTP-like code that goes with [`ERR_DUPLICATE_IN_PROCESS`].
const CODE_CONFLICT: u16 = 409;

#[derive(Deserialize)]
struct AckWire<'a> {
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    #[serde(borrow, default)]
    error: Option<ErrorWire<'a>>,
}

#[derive(Deserialize)]
struct ErrorWire<'a> {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u32,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
}

/// Reads one answer to a publish into `stream`: its status, where it has one, and its body.
///
/// # Errors
/// What JetStream refuses, and what cannot be read or is not about `stream`.
pub fn parse_ack(stream: &str, status: Option<u16>, payload: &[u8]) -> Result<PubAck, Refusal> {
    match status {
        None => {}
        Some(STATUS_NO_RESPONDERS) => return Err(Refusal::NoResponders),
        Some(STATUS_TOO_MANY_REQUESTS) => return Err(Refusal::TooManyRequests),
        Some(other) => return Err(malformed(format!("status {other}"))),
    }
    if payload.len() > MAX_ACK_BYTES {
        return Err(malformed(format!("{} bytes long", payload.len())));
    }
    let ack: AckWire<'_> =
        serde_json::from_slice(payload).map_err(|error| malformed(error.to_string()))?;
    if let Some(error) = ack.error {
        if error.code == STATUS_TOO_MANY_REQUESTS || error.err_code == ERR_TOO_MANY_REQUESTS {
            return Err(Refusal::TooManyRequests);
        }
        return Err(Refusal::Api {
            code: error.code,
            err_code: error.err_code,
            description: shortened(&error.description),
        });
    }
    if ack.stream != stream {
        return Err(if ack.stream.is_empty() {
            malformed("it names no stream".to_owned())
        } else {
            let stream = shortened(&ack.stream);
            Refusal::ForeignAck { stream }
        });
    }
    match (ack.seq, ack.duplicate) {
        // The id is staged, nothing is stored under it yet and perhaps never will be.
        (0, true) => Err(Refusal::Api {
            code: CODE_CONFLICT,
            err_code: ERR_DUPLICATE_IN_PROCESS,
            description: "duplicate of a message that is not stored yet".to_owned(),
        }),
        (0, false) => Err(malformed("it names no sequence".to_owned())),
        (sequence, duplicate) => Ok(PubAck {
            sequence,
            duplicate,
        }),
    }
}

fn malformed(what: String) -> Refusal {
    let detail = format!("not a JetStream answer: {what}");
    Refusal::Malformed { detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<PubAck, Refusal> {
        parse_ack("S", None, text.as_bytes())
    }

    #[test]
    fn acks_of_every_form() {
        let ack = |sequence, duplicate| {
            Ok(PubAck {
                sequence,
                duplicate,
            })
        };
        assert_eq!(parse(r#"{"stream":"S", "seq":5}"#), ack(5, false));
        assert_eq!(
            parse(r#"{"stream":"S","seq":5,"duplicate": true}"#),
            ack(5, true)
        );
        assert_eq!(
            parse(r#"{"stream":"S","domain":"hub","seq":18446744073709551615,"val":"1"}"#),
            ack(u64::MAX, false)
        );
        assert_eq!(
            parse_ack("a<b", None, br#"{"stream":"a\u003cb","seq":1}"#),
            ack(1, false)
        );
    }

    #[test]
    fn refusals_of_every_form() {
        let api = parse(
            r#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 7"},
               "stream":"S","seq":0}"#,
        );
        assert_eq!(
            api,
            Err(Refusal::Api {
                code: 400,
                err_code: 10071,
                description: "wrong last sequence: 7".into()
            })
        );
        // Old servers give no err_code.
        assert!(matches!(
            parse(r#"{"error":{"code":503}}"#),
            Err(Refusal::Api {
                code: 503,
                err_code: 0,
                ..
            })
        ));
        assert!(matches!(
            parse(r#"{"stream":"S","seq":0,"duplicate":true}"#),
            Err(Refusal::Api {
                err_code: ERR_DUPLICATE_IN_PROCESS,
                ..
            })
        ));
        assert_eq!(
            parse(r#"{"stream":"T","seq":1}"#),
            Err(Refusal::ForeignAck { stream: "T".into() })
        );
        assert_eq!(parse_ack("S", Some(503), b""), Err(Refusal::NoResponders));
        assert_eq!(
            parse_ack("S", Some(429), b"{}"),
            Err(Refusal::TooManyRequests)
        );
        assert_eq!(
            parse(r#"{"error":{"code":429,"err_code":10167}}"#),
            Err(Refusal::TooManyRequests)
        );
    }

    #[test]
    fn what_cannot_be_read_is_malformed() {
        let deep = "[".repeat(10_000);
        let long = format!(r#"{{"stream":"S","seq":1,"x":"{}"}}"#, "y".repeat(20_000));
        for text in [
            "",
            "{}",
            "null",
            "[]",
            "hello",
            "\0\u{1}",
            r#"{"stream":"S"}"#,
            r#"{"stream":"S","seq":0}"#,
            r#"{"stream":"S","seq":-1}"#,
            r#"{"stream":"S","seq":1.5}"#,
            r#"{"stream":"S","seq":18446744073709551616}"#,
            r#"{"stream":"S","seq":1"#,
            r#"{"stream":"S","seq":1}x"#,
            r#"{"stream":"S","seq":1,"seq":2}"#,
            r#"{"seq":1}"#,
            r#"{"stream":null,"seq":1}"#,
            r#"{"stream":"S","seq":1,"duplicate":"yes"}"#,
            &deep,
            &long,
        ] {
            let shown = text.chars().take(60).collect::<String>();
            assert!(
                matches!(parse(text), Err(Refusal::Malformed { .. })),
                "{shown}"
            );
        }
        assert!(matches!(
            parse_ack("S", None, b"{\"stream\":\"\xff\",\"seq\":1}"),
            Err(Refusal::Malformed { .. })
        ));
        assert!(matches!(
            parse_ack("S", Some(100), b""),
            Err(Refusal::Malformed { .. })
        ));
    }

    #[test]
    fn every_truncation_of_an_ack_is_malformed() {
        let text = r#"{"stream":"S","seq":12,"duplicate":true}"#;
        for end in 0..text.len() {
            assert!(
                matches!(parse(&text[..end]), Err(Refusal::Malformed { .. })),
                "{end}"
            );
        }
    }
}
