//! What old certificates say where new ones have other places for it.
//!
//! PostgreSQL's own manual shows how to make a certificate that names its host in the subject's
//! common name alone, and with OpenSSL up to 3.1 it comes out as X.509 version 1. libpq takes both.
//! rustls looks for a host in the subject alternative names and reads version 3 only.

use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use rustls::{CertificateError, Error, RootCertStore};

/// `id-at-commonName`, 2.5.4.3 (RFC 5280, appendix A.1).
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

const TAG_OBJECT_IDENTIFIER: u8 = 0x06;
const TAG_SEQUENCE: u8 = 0x30;
const TAG_SET: u8 = 0x31;

/// UTF8String, PrintableString, TeletexString, IA5String: those whose bytes can be a host name.
const TEXT_TAGS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];

/// Why a certificate of version 1 is refused where it would have to be verified.
pub(super) const VERSION_ONE: &str = "the server's certificate is X.509 version 1, which cannot be \
    verified: sign it again as version 3 (openssl x509 -req with -extfile and a subjectAltName)";

/// Whether rustls refused a certificate for its version.
pub(super) fn is_version_one(error: &Error) -> bool {
    matches!(error, Error::InvalidCertificate(CertificateError::Other(reason))
        if reason.to_string() == "UnsupportedCertVersion")
}

/// Whether the first common name of the certificate's subject names this host, as libpq compares
/// them.
pub(super) fn common_name_is(certificate: &CertificateDer<'_>, host: &str) -> bool {
    let Some(subject) = anchor_of(certificate, |store| {
        store.roots.first().map(|anchor| anchor.subject.to_vec())
    }) else {
        return false;
    };
    common_name(&subject).is_some_and(|name| names(&name, host))
}

/// The certificate's public key, whatever its version.
pub(super) fn public_key(
    certificate: &CertificateDer<'_>,
) -> Option<SubjectPublicKeyInfoDer<'static>> {
    anchor_of(certificate, |store| {
        let anchor = store.roots.first()?;
        Some(sequence(&anchor.subject_public_key_info)?.into())
    })
}

/// Reads subject and key with the reader for roots, the one that takes version 1 as well. Nothing
/// is trusted by it.
fn anchor_of<T>(
    certificate: &CertificateDer<'_>,
    take: impl FnOnce(&RootCertStore) -> Option<T>,
) -> Option<T> {
    let mut store = RootCertStore::empty();
    store.add(certificate.clone().into_owned()).ok()?;
    take(&store)
}

/// The first common name in the content of a `Name` (RFC 5280, section 4.1.2.4).
fn common_name(subject: &[u8]) -> Option<String> {
    let mut names = subject;
    while !names.is_empty() {
        let (mut attributes, rest) = value(names, TAG_SET)?;
        names = rest;
        while !attributes.is_empty() {
            let (attribute, rest) = value(attributes, TAG_SEQUENCE)?;
            attributes = rest;
            let (kind, text) = value(attribute, TAG_OBJECT_IDENTIFIER)?;
            if kind != COMMON_NAME {
                continue;
            }
            let tag = text.first().filter(|tag| TEXT_TAGS.contains(tag))?;
            let (text, _) = value(text, *tag)?;
            return std::str::from_utf8(text).ok().map(str::to_owned);
        }
    }
    None
}

/// One DER value of this tag and what follows it. Lengths up to 65,535, which no name exceeds.
fn value(input: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = input.split_first()?;
    if *found != tag {
        return None;
    }
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81 => {
            let (length, rest) = rest.split_first()?;
            (usize::from(*length), rest)
        }
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// Puts DER content into a sequence.
fn sequence(content: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(content.len()).ok()?;
    let mut der = vec![TAG_SEQUENCE, 0x82];
    match u8::try_from(length) {
        Ok(length @ 0..=0x7f) => der = vec![TAG_SEQUENCE, length],
        Ok(length) => der = vec![TAG_SEQUENCE, 0x81, length],
        Err(_) => der.extend_from_slice(&length.to_be_bytes()),
    }
    der.extend_from_slice(content);
    Some(der)
}

/// libpq's comparison: without regard to case, and a leading `*.` stands for one label.
fn names(name: &str, host: &str) -> bool {
    if name.contains('\0') || name.is_empty() {
        return false;
    }
    if name.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(suffix) = name
        .strip_prefix('*')
        .filter(|suffix| suffix.starts_with('.'))
    else {
        return false;
    };
    // As in libpq, `*.com` is no wildcard: there must be another dot behind the first.
    let is_domain = suffix.get(1..).is_some_and(|domain| domain.contains('.'));
    let label = host
        .split_once('.')
        .map(|(label, _)| label)
        .unwrap_or_default();
    let rest = host.get(label.len()..).unwrap_or_default();
    is_domain && !label.is_empty() && rest.eq_ignore_ascii_case(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_names_are_compared_as_libpq_does() {
        for (name, host, wanted) in [
            ("db.example", "db.example", true),
            ("DB.Example", "db.example", true),
            ("db.example", "other.example", false),
            ("*.example.org", "db.example.org", true),
            ("*.example.org", "a.b.example.org", false),
            ("*.example.org", ".example.org", false),
            ("*.org", "example.org", false),
            ("*", "db", false),
            ("db.example\0.evil", "db.example", false),
            ("", "", false),
            ("10.0.0.5", "10.0.0.5", true),
        ] {
            assert_eq!(names(name, host), wanted, "{name:?} for {host:?}");
        }
    }

    #[test]
    fn a_broken_subject_has_no_name() {
        // SET { SEQUENCE { commonName, UTF8String "ab" } }
        let good = [
            0x31, 0x0b, 0x30, 0x09, 0x06, 0x03, 0x55, 0x04, 0x03, 0x0c, 0x02, b'a', b'b',
        ];
        assert_eq!(common_name(&good).as_deref(), Some("ab"));
        for end in 0..good.len() {
            assert_eq!(common_name(&good[..end]), None, "{end}");
        }
        for index in 0..good.len() {
            for byte in [0, 0x7f, 0x80, 0x82, 0x84, 0xff] {
                let mut bad = good;
                bad[index] = byte;
                let _ = common_name(&bad);
            }
        }
    }

    #[test]
    fn lengths_of_a_sequence_have_their_three_forms() {
        for (length, head) in [
            (5, vec![0x30, 5]),
            (200, vec![0x30, 0x81, 200]),
            (300, vec![0x30, 0x82, 1, 44]),
        ] {
            let der = sequence(&vec![0; length]).unwrap();
            assert!(der.starts_with(&head));
            assert_eq!(value(&der, TAG_SEQUENCE).unwrap().0.len(), length);
        }
    }
}
