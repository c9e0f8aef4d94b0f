//! Subjects and what a pattern covers.

/// Whether every subject that `inner` can match is matched by `outer` too. Both may hold the
/// wildcards `*` (one token) and a last `>` (one token or more).
#[must_use]
pub fn covers(outer: &str, inner: &str) -> bool {
    let mut inner = inner.split('.');
    for token in outer.split('.') {
        match (token, inner.next()) {
            (_, None) => return false,
            (">", Some(_)) => return true,
            // A `>` inside may stand for more tokens than any other token outside.
            (_, Some(">")) => return false,
            ("*", Some(_)) => {}
            (outer, Some(inner)) if outer == inner => {}
            _ => return false,
        }
    }
    inner.next().is_none()
}

/// Whether some subject is matched by both patterns.
#[must_use]
pub fn overlaps(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (None, None) | (Some(">"), Some(_)) | (Some(_), Some(">")) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some("*"), Some(_)) | (Some(_), Some("*")) => {}
            (Some(one), Some(other)) if one == other => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{covers, overlaps};

    #[test]
    fn overlaps_both_ways() {
        for (one, other) in [
            ("a.>", "a.b"),
            ("a.*", "a.b"),
            ("a.*", "*.b"),
            (">", "a.*"),
            ("a.*.>", "a.b.c.d"),
            ("a.b", "a.b"),
        ] {
            assert!(
                overlaps(one, other) && overlaps(other, one),
                "{one} {other}"
            );
        }
        for (one, other) in [
            ("a.>", "a"),
            ("a.*", "b.*"),
            ("a.b", "a.b.c"),
            ("a.*.>", "a.b"),
        ] {
            assert!(
                !overlaps(one, other) && !overlaps(other, one),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn covers_as_nats_matches() {
        for (outer, inner) in [
            ("outbox.>", "outbox.a"),
            ("outbox.>", "outbox.a.b"),
            ("outbox.>", "outbox.>"),
            ("outbox.>", "outbox.*.>"),
            ("outbox.>", "outbox.*"),
            (">", "outbox.>"),
            ("*.>", "outbox.>"),
            ("*.*", "a.*"),
            ("a.*.c", "a.b.c"),
            ("a", "a"),
        ] {
            assert!(covers(outer, inner), "{outer} {inner}");
        }
        for (outer, inner) in [
            ("outbox.>", "outbox"),
            ("outbox.>", ">"),
            ("outbox.>", "*.>"),
            ("outbox.*", "outbox.>"),
            ("outbox.*", "outbox.a.b"),
            ("outbox.a", "outbox.*"),
            ("outbox.*.>", "outbox.>"),
            ("a.b.c", "a.b"),
            ("a.b", "a.b.c"),
            ("A", "a"),
        ] {
            assert!(!covers(outer, inner), "{outer} {inner}");
        }
    }
}
