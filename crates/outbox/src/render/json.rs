//! The `headers` column: a JSON object whose values become headers.

use std::fmt;

use serde_json::value::RawValue;

/// Members of a JSON object in their order, values as JSON text.
pub(crate) struct Members<'a>(pub(crate) Vec<(String, &'a RawValue)>);

/// Reads the object.
///
/// # Errors
///
/// If the text is not a JSON object.
pub(crate) fn members(text: &[u8]) -> Result<Members<'_>, serde_json::Error> {
    serde_json::from_slice(text)
}

/// A string's own text, `None` for any other JSON value.
pub(crate) fn string_text(value: &RawValue) -> Option<String> {
    value
        .get()
        .starts_with('"')
        .then(|| serde_json::from_str(value.get()).ok())
        .flatten()
}

impl<'de: 'a, 'a> serde::Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry::<String, &RawValue>()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_order_and_digits() {
        let text = br#"{"b": 12345678901234567890.10, "a": "x\ny", "c": {"d": [1, 2]}, "n": null}"#;
        let Members(members) = members(text).unwrap();
        let shown: Vec<_> = members
            .iter()
            .map(|(name, value)| (name.as_str(), value.get()))
            .collect();
        assert_eq!(
            shown,
            [
                ("b", "12345678901234567890.10"),
                ("a", r#""x\ny""#),
                ("c", r#"{"d": [1, 2]}"#),
                ("n", "null"),
            ]
        );
        assert_eq!(string_text(members[1].1).unwrap(), "x\ny");
        assert!(string_text(members[0].1).is_none());
    }

    #[test]
    fn only_an_object_will_do() {
        for text in [&b"[]"[..], b"null", b"\"x\"", b"{", b"", b"{\"a\":\xff}"] {
            assert!(members(text).is_err());
        }
    }
}
