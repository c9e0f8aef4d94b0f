//! The net below [`crate::secret`]: takes secrets out of text that other code made.
//!
//! Our own code never formats a secret. Libraries that get the password or URL may, in a log line
//! or an error text; everything that goes to stderr passes through here.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::secret::MASK;

/// Shortest secret that is searched for, in bytes. A shorter one is part of half of all words.
const SECRET_MIN_BYTES: usize = 4;

/// How often a text may have been escaped on its way into a log line.
const ESCAPE_LEVELS: usize = 3;

/// Words that logs are made of. A secret that equals one is not replaced: the gap would tell it.
const WORDS: [&str; 8] = [
    "postgres",
    "postrider",
    "nats",
    "outbox",
    "password",
    "secret",
    "token",
    "test",
];

/// What the mildest encoder of user parts encodes; the strictest spares only letters and digits.
const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Knows the secrets of a configuration in every spelling that a library may use. Clones share
/// what they learn.
#[derive(Clone, Default)]
pub struct Redactor {
    state: Arc<RwLock<State>>,
}

#[derive(Default)]
struct State {
    /// Spellings, longest first, so that no part of one is left.
    forms: Vec<String>,
    secrets: BTreeSet<String>,
    public: BTreeSet<String>,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

impl Redactor {
    /// Learns a secret, as written (percent-encoded or not).
    pub fn learn(&self, secret: &str) {
        self.change(|state| {
            state.secrets.insert(secret.to_owned());
            if let Ok(decoded) = percent_decode_str(secret).decode_utf8() {
                state.secrets.insert(decoded.into_owned());
            }
        });
    }

    /// Learns a name that logs may show.
    pub fn allow(&self, name: &str) {
        self.change(|state| {
            state.public.insert(name.to_owned());
        });
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        let hidden = |secret: &&String| {
            secret.len() >= SECRET_MIN_BYTES
                && !state.public.contains(*secret)
                && !WORDS.contains(&secret.as_str())
        };
        let forms: BTreeSet<String> = state
            .secrets
            .iter()
            .filter(hidden)
            .flat_map(|secret| spellings(secret))
            .collect();
        state.forms = forms.into_iter().collect();
        state
            .forms
            .sort_by_key(|form| std::cmp::Reverse(form.len()));
    }

    /// The text without any known secret, and without the user part of any URL.
    pub fn clean<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = scrub(text);
        let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
        for form in &state.forms {
            if text.contains(form.as_str()) {
                text = Cow::Owned(text.replace(form.as_str(), MASK));
            }
        }
        text
    }
}

/// The spellings of a secret: raw, percent-encoded, escaped as by `Debug` and JSON, as bytes.
fn spellings(secret: &str) -> BTreeSet<String> {
    let most = utf8_percent_encode(secret, NON_ALPHANUMERIC).to_string();
    let some = utf8_percent_encode(secret, UNRESERVED).to_string();
    let mut forms = BTreeSet::from([secret.to_owned(), lower_hex(&most), lower_hex(&some)]);
    forms.extend([most, some]);
    let bytes = format!("{:?}", secret.as_bytes());
    forms.insert(inner(&bytes).to_owned());
    // A `Debug` text within a field that is again shown by `Debug`, and that as JSON.
    for _ in 0..ESCAPE_LEVELS {
        let escaped = |form: &String| {
            let json = serde_json::to_string(form).unwrap_or_default();
            [
                inner(&format!("{form:?}")).to_owned(),
                inner(&json).to_owned(),
            ]
        };
        let more: Vec<String> = forms.iter().flat_map(escaped).collect();
        forms.extend(more);
    }
    forms.retain(|form| form.len() >= SECRET_MIN_BYTES);
    forms
}

/// Text without its first and last byte, which are quotes or brackets.
fn inner(text: &str) -> &str {
    text.get(1..text.len().saturating_sub(1)).unwrap_or("")
}

/// Percent-encoding with lower-case digits.
fn lower_hex(encoded: &str) -> String {
    let mut text = String::with_capacity(encoded.len());
    let mut digits = 0;
    for c in encoded.chars() {
        let digit = digits > 0;
        digits = if c == '%' {
            2
        } else {
            usize::saturating_sub(digits, 1)
        };
        text.push(if digit { c.to_ascii_lowercase() } else { c });
    }
    text
}

/// Masks the user part of every URL and the value of every `password=` in a text, also when no
/// secret is known yet (a flag in the wrong place, a URL under the wrong key).
pub fn scrub(text: &str) -> Cow<'_, str> {
    if !text.contains("://") && !text.contains("assword=") {
        return Cow::Borrowed(text);
    }
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>');
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, tail) = rest.split_at(at + "://".len());
        clean.push_str(before);
        let (url, after) = tail.split_at(tail.find(ends).unwrap_or(tail.len()));
        match url.rsplit_once('@') {
            Some((_, host)) => {
                clean.push_str(MASK);
                clean.push('@');
                clean.push_str(host);
            }
            None => clean.push_str(url),
        }
        rest = after;
    }
    clean.push_str(rest);
    let mut rest = std::mem::take(&mut clean);
    while let Some(at) = rest.find("assword=") {
        let tail = rest.split_off(at + "assword=".len());
        clean.push_str(&rest);
        clean.push_str(MASK);
        let end = match tail.strip_prefix('\'') {
            Some(inner) => inner.find('\'').map_or(tail.len(), |end| end + 2),
            None => tail
                .find(|c: char| ends(c) || c == '&')
                .unwrap_or(tail.len()),
        };
        rest = tail.get(end..).unwrap_or("").to_owned();
    }
    clean.push_str(&rest);
    Cow::Owned(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_hidden() {
        let secret = "S3CR3T@x\"\\é/";
        let redactor = Redactor::default();
        redactor.learn(secret);
        let all = spellings(secret)
            .into_iter()
            .collect::<Vec<_>>()
            .join(" | ");
        assert!(
            all.contains("S3CR3T%40x") && all.contains("S3CR3T@x"),
            "{all}"
        );
        assert!(all.contains("S3CR3T%40x%22%5c"), "{all}");
        let clean = redactor.clean(&all);
        assert!(
            !clean.contains("S3CR3T") && !clean.contains("83, 51"),
            "{clean}"
        );
        assert_eq!(redactor.clean("nothing here"), "nothing here");
    }

    #[test]
    fn an_encoded_secret_hides_the_decoded_one() {
        let redactor = Redactor::default();
        redactor.learn("S3CR3T%40x");
        assert_eq!(redactor.clean("a S3CR3T@x b S3CR3T%40x"), "a *** b ***");
    }

    #[test]
    fn names_and_short_secrets_do_not_blind_the_log() {
        let redactor = Redactor::default();
        for secret in ["postgres", "shop", "abc", ""] {
            redactor.learn(secret);
        }
        redactor.allow("shop");
        let line = "postgres connected to shop abc";
        assert_eq!(redactor.clean(line), line);
    }

    #[test]
    fn clones_share_what_they_learn() {
        let redactor = Redactor::default();
        let clone = redactor.clone();
        redactor.learn("S3CR3T");
        assert_eq!(clone.clean("S3CR3T"), MASK);
        assert_eq!(format!("{clone:?}"), "Redactor");
    }

    #[test]
    fn unknown_urls_are_scrubbed() {
        for (text, clean) in [
            (
                "got 'postgres://u:S3CR3T@h/d' here",
                "got 'postgres://***@h/d' here",
            ),
            ("nats://a:S3/CR3T@x@h1,nats://b@h2", "nats://***@h2"),
            (
                "postgres://h/d?password=S3CR3T&x=y",
                "postgres://h/d?password=***&x=y",
            ),
            (
                "host=h password='S3 CR3T' user=u",
                "host=h password=*** user=u",
            ),
            ("host=h password=S3CR3T", "host=h password=***"),
            ("postgres://h/d and nats://h", "postgres://h/d and nats://h"),
            ("password='S3CR3T x", "password=***"),
        ] {
            assert_eq!(scrub(text), clean);
        }
    }
}
