//! Messages as the stream holds them: the answer of STREAM.MSG.GET and our headers in it.

use bytes::Bytes;
use outbox::{ReadBack, StoredRow, Tail, header};

/// One message as the stream holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    /// Sequence in the stream.
    pub sequence: u64,
    /// The subject it is stored under.
    pub subject: String,
    /// When it was stored: RFC 3339, as the server wrote it.
    pub time: String,
    /// The header block with its status line; empty where the message has none.
    pub headers: Bytes,
    /// The body.
    pub payload: Bytes,
}

impl StoredMessage {
    /// First value of a header, by its exact name; `None` too where it is not UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }

    /// Our headers, if they are there and can be read.
    #[must_use]
    pub fn row(&self) -> Option<StoredRow> {
        row_from(self.sequence, |name| self.header(name))
    }
}

/// Our headers, read by their names.
pub(crate) fn row_from<'a>(
    sequence: u64,
    get: impl Fn(&str) -> Option<&'a str>,
) -> Option<StoredRow> {
    Some(StoredRow {
        sequence,
        source: get(header::SOURCE)?.parse().ok()?,
        position: get(header::POSITION)?.parse().ok()?,
        dedup_id: get(header::MSG_ID)?.to_owned(),
        settled: get(header::SETTLED).and_then(|settled| settled.parse().ok()),
        chained: get(header::EXPECTED_LAST_SEQUENCE).is_some(),
        origin: get(header::ORIGIN).map(str::to_owned),
        position_id: get(header::POSITION_ID).map(str::to_owned),
    })
}

/// What a message that may be gone says about the tail.
pub(crate) fn tail_of(stored: Option<&StoredMessage>) -> Tail {
    match stored {
        None => Tail::Gone,
        Some(stored) => stored.row().map_or(Tail::Foreign, Tail::Row),
    }
}

/// What a message that may be gone says about a PubAck.
pub(crate) fn read_back_of(stored: Option<&StoredMessage>) -> ReadBack {
    match stored {
        None => ReadBack::Gone,
        Some(stored) => stored.row().map_or(ReadBack::Foreign, ReadBack::Row),
    }
}

/// Finds a header in a block of `Name: value` lines.
fn find_header<'a>(block: &'a [u8], name: &str) -> Option<&'a str> {
    block.split(|&byte| byte == b'\n').find_map(|line| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let value = line.strip_prefix(name.as_bytes())?.strip_prefix(b":")?;
        Some(std::str::from_utf8(value).ok()?.trim())
    })
}

/// Decodes standard base64 with padding, as Go writes byte slices into JSON (RFC 4648 section 4).
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let body = text
        .strip_suffix(b"==")
        .or_else(|| text.strip_suffix(b"="))
        .unwrap_or(text);
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for group in body.chunks(4) {
        let mut bits: u32 = 0;
        for &digit in group {
            bits = (bits << 6) | u32::from(sextet(digit)?);
        }
        // A short last group of n digits holds n - 1 bytes.
        let filled = bits << (6 * (4 - group.len()));
        let [_, high, middle, low] = filled.to_be_bytes();
        bytes.extend([high, middle, low].into_iter().take(group.len() - 1));
    }
    Some(bytes)
}

fn sextet(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_as_in_the_standard() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
        ] {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes.as_bytes()));
        }
        assert_eq!(decode_base64("+/+/"), Some(vec![0xfb, 0xff, 0xbf]));
        for bad in [
            "Z", "Zg", "Zg=", "Z===", "====", "Zm 9", "Zm9v\n", "Zg==Zg==",
        ] {
            assert_eq!(decode_base64(bad), None, "{bad:?}");
        }
    }

    fn stored(headers: &str) -> StoredMessage {
        StoredMessage {
            sequence: 7,
            subject: "outbox.a".into(),
            time: String::new(),
            headers: Bytes::copy_from_slice(headers.as_bytes()),
            payload: Bytes::new(),
        }
    }

    #[test]
    fn our_headers_make_a_row() {
        let message = stored(
            "NATS/1.0\r\nNats-Msg-Id: a\r\nOutbox-Position: 0/16B3748/2\r\n\
             Outbox-Source: 7/1/shop/postrider\r\n\r\n",
        );
        let row = message.row().unwrap();
        assert_eq!((row.sequence, row.position.change), (7, 2));
        assert_eq!(row.dedup_id, "a");
        assert_eq!(tail_of(Some(&message)), Tail::Row(row));
        assert_eq!(tail_of(None), Tail::Gone);
    }

    #[test]
    fn other_headers_make_a_foreign_message() {
        for headers in [
            "",
            "NATS/1.0\r\n\r\n",
            "NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n",
            "NATS/1.0\r\nnats-msg-id: a\r\nOutbox-Position: 0/1/2\r\nOutbox-Source: 7/1/d/s\r\n",
            "NATS/1.0\r\nNats-Msg-Id: a\r\nOutbox-Position: x\r\nOutbox-Source: 7/1/d/s\r\n",
            "NATS/1.0\r\nNats-Msg-Id: a\r\nOutbox-Position: 0/1/2\r\nOutbox-Source: x\r\n",
        ] {
            assert_eq!(tail_of(Some(&stored(headers))), Tail::Foreign, "{headers}");
        }
        let mut bytes = stored("");
        bytes.headers = Bytes::from_static(b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n");
        assert_eq!(read_back_of(Some(&bytes)), ReadBack::Foreign);
    }
}
