//! Column values as parts of subjects and headers: reversible, and never more than they seem.

use bytes::{BufMut, BytesMut};

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// What stands for an empty value, since a subject has no empty token.
const EMPTY_TOKEN: u8 = b'_';

/// Appends `value` as part of one subject token.
///
/// Every character that NATS or a wildcard would read is percent-encoded (`.`, `*`, `>`, `%`,
/// space, control characters), and so is every byte outside ASCII, and the dollar sign at the
/// beginning of a subject, which names a server's own subjects. An empty value becomes `_`, and a
/// value that is a lone `_` becomes `%5F`, so that both can be told apart.
pub(crate) fn push_token(out: &mut BytesMut, value: &[u8], begins_subject: bool) {
    match value {
        [] => out.put_u8(EMPTY_TOKEN),
        [EMPTY_TOKEN] => push_percent(out, EMPTY_TOKEN),
        _ => {
            for (index, &byte) in value.iter().enumerate() {
                let leads = begins_subject && index == 0 && byte == b'$';
                if byte.is_ascii_graphic() && !matches!(byte, b'.' | b'*' | b'>' | b'%') && !leads {
                    out.put_u8(byte);
                } else {
                    push_percent(out, byte);
                }
            }
        }
    }
}

/// Appends a topic: its dots stay, and each token between them is encoded on its own.
pub(crate) fn push_topic(out: &mut BytesMut, topic: &[u8], begins_subject: bool) {
    for (index, token) in topic.split(|&byte| byte == b'.').enumerate() {
        if index > 0 {
            out.put_u8(b'.');
        }
        push_token(out, token, begins_subject && index == 0);
    }
}

/// Appends a header value: as it is, save CR, LF and NUL, which end a line or a text, and bytes
/// that are not UTF-8. Those are percent-encoded.
pub(crate) fn push_header_value(out: &mut BytesMut, value: &[u8]) {
    for chunk in value.utf8_chunks() {
        for piece in chunk
            .valid()
            .as_bytes()
            .split_inclusive(|byte| ends_line(*byte))
        {
            match piece.split_last() {
                Some((&last, before)) if ends_line(last) => {
                    out.put_slice(before);
                    push_percent(out, last);
                }
                _ => out.put_slice(piece),
            }
        }
        for &byte in chunk.invalid() {
            push_percent(out, byte);
        }
    }
}

/// Whether `name` may be the name of a header: printable ASCII without blanks and colon
/// (NATS ADR-4, after RFC 7230).
#[must_use]
pub fn is_header_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b':')
}

const fn ends_line(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | 0)
}

fn push_percent(out: &mut BytesMut, byte: u8) {
    let digit = |nibble: u8| HEX.get(usize::from(nibble)).copied().unwrap_or(b'0');
    out.put_slice(&[b'%', digit(byte >> 4), digit(byte & 15)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(push: impl FnOnce(&mut BytesMut)) -> String {
        let mut out = BytesMut::new();
        push(&mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    fn token(value: &str) -> String {
        rendered(|out| push_token(out, value.as_bytes(), false))
    }

    #[test]
    fn a_value_is_exactly_one_token() {
        for (value, wanted) in [
            ("order", "order"),
            ("a b", "a%20b"),
            ("a.b", "a%2Eb"),
            ("*", "%2A"),
            (">", "%3E"),
            ("a..b", "a%2E%2Eb"),
            (".", "%2E"),
            ("", "_"),
            ("_", "%5F"),
            ("__", "__"),
            ("%2E", "%252E"),
            ("x\r\nPUB evil 0\r\n", "x%0D%0APUB%20evil%200%0D%0A"),
            ("\u{a0}", "%C2%A0"),
            ("é✓", "%C3%A9%E2%9C%93"),
            ("tab\tand\u{1}", "tab%09and%01"),
            ("$SYS", "$SYS"),
        ] {
            assert_eq!(token(value), wanted, "{value:?}");
        }
        assert_eq!(rendered(|out| push_token(out, b"$SYS", true)), "%24SYS");
        assert_eq!(
            rendered(|out| push_token(out, &[0xff, b'a'], false)),
            "%FFa"
        );
    }

    #[test]
    fn tokens_can_be_read_back() {
        let decode = |text: &str| -> Vec<u8> {
            if text == "_" {
                return Vec::new();
            }
            let mut bytes = Vec::new();
            let mut rest = text.as_bytes();
            while let [first, after @ ..] = rest {
                if *first == b'%' {
                    let digits = std::str::from_utf8(&after[..2]).unwrap();
                    bytes.push(u8::from_str_radix(digits, 16).unwrap());
                    rest = &after[2..];
                } else {
                    bytes.push(*first);
                    rest = after;
                }
            }
            bytes
        };
        for first in 0..=255_u8 {
            for second in [b'a', b'_', b'%', b'.', 0, 255] {
                for value in [vec![], vec![first], vec![first, second]] {
                    let mut out = BytesMut::new();
                    push_token(&mut out, &value, false);
                    let text = std::str::from_utf8(&out).unwrap();
                    assert!(
                        !text.contains(['.', '*', '>', ' ', '\r', '\n', '\t']),
                        "{text}"
                    );
                    assert_eq!(decode(text), value, "{text}");
                }
            }
        }
    }

    #[test]
    fn a_topic_keeps_its_dots() {
        for (topic, wanted) in [
            ("order.placed", "order.placed"),
            ("a..b", "a._.b"),
            (".", "_._"),
            ("", "_"),
            ("a.*.>", "a.%2A.%3E"),
            ("a b.c", "a%20b.c"),
        ] {
            let text = rendered(|out| push_topic(out, topic.as_bytes(), false));
            assert_eq!(text, wanted, "{topic:?}");
        }
    }

    #[test]
    fn header_values_stay_on_their_line() {
        for (value, wanted) in [
            (&b"plain"[..], "plain"),
            (b"a\r\nNats-Msg-Id: x", "a%0D%0ANats-Msg-Id: x"),
            (b"\0", "%00"),
            ("é✓\t100%".as_bytes(), "é✓\t100%"),
            (b"\xff\xfeok\n", "%FF%FEok%0A"),
            (b"", ""),
        ] {
            assert_eq!(rendered(|out| push_header_value(out, value)), wanted);
        }
    }

    #[test]
    fn header_names_are_tokens() {
        for good in ["Tenant", "X-Trace-Id", "a", "x!y"] {
            assert!(is_header_name(good), "{good}");
        }
        for bad in ["", "a b", "a:b", "a\r\n", "é", "a\0"] {
            assert!(!is_header_name(bad), "{bad:?}");
        }
    }
}
