//! PostgreSQL's timestamps in ISO format as RFC 3339.

use bytes::{BufMut, BytesMut};

/// Appends a timestamp as RFC 3339 in UTC where it is one, else as PostgreSQL wrote it.
///
/// Sessions run with `TimeZone=UTC` and `DateStyle=ISO`, so a `timestamptz` reads
/// `2026-02-03 04:05:06.789+00`. A `timestamp` without zone is taken for UTC, as there is nothing
/// else to take it for. `infinity`, years BC and years beyond 9999 have no RFC 3339 form: they go
/// out as text.
pub(crate) fn push_rfc3339(out: &mut BytesMut, text: &[u8]) {
    match split(text) {
        Some((date, time)) => {
            out.put_slice(date);
            out.put_u8(b'T');
            out.put_slice(time);
            out.put_u8(b'Z');
        }
        None => super::encode::push_header_value(out, text),
    }
}

/// Date and time of `YYYY-MM-DD HH:MM:SS[.ffffff][+00]`.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let date = text.get(..10)?;
    let rest = text.get(10..)?.strip_prefix(b" ")?;
    let time = rest.strip_suffix(b"+00").unwrap_or(rest);
    let (clock, fraction) = time.split_at_checked(8)?;
    let fraction_fits = match fraction.split_first() {
        None => true,
        Some((&dot, digits)) => {
            dot == b'.' && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        }
    };
    (shaped(date, b"0000-00-00") && shaped(clock, b"00:00:00") && fraction_fits)
        .then_some((date, time))
}

/// Whether `text` has digits where `shape` has `0`, and else the very bytes of `shape`.
fn shaped(text: &[u8], shape: &[u8]) -> bool {
    text.len() == shape.len()
        && text.iter().zip(shape).all(|(byte, wanted)| {
            if *wanted == b'0' {
                byte.is_ascii_digit()
            } else {
                byte == wanted
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_become_rfc3339_and_oddities_stay_text() {
        for (text, wanted) in [
            ("2026-02-03 04:05:06.789+00", "2026-02-03T04:05:06.789Z"),
            ("2026-02-03 04:05:06+00", "2026-02-03T04:05:06Z"),
            ("2026-02-03 04:05:06.123456", "2026-02-03T04:05:06.123456Z"),
            ("infinity", "infinity"),
            ("-infinity", "-infinity"),
            ("0044-03-15 12:00:00+00 BC", "0044-03-15 12:00:00+00 BC"),
            ("12026-01-01 00:00:00+00", "12026-01-01 00:00:00+00"),
            ("2026-02-03 04:05:06+05:30", "2026-02-03 04:05:06+05:30"),
            ("2026-02-03", "2026-02-03"),
            ("", ""),
        ] {
            let mut out = BytesMut::new();
            push_rfc3339(&mut out, text.as_bytes());
            assert_eq!(std::str::from_utf8(&out).unwrap(), wanted, "{text:?}");
        }
    }
}
