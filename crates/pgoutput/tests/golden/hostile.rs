//! The golden messages, damaged in every simple way.

use std::collections::HashSet;

use bytes::Bytes;
use postrider_pgoutput::{DecodeReason, Decoder, Message, MessageKind, OldRow, ProtocolVersion};

use crate::fixture::{SERVERS, Session, sessions};

/// Calls `check` with each golden message and the decoder as it is before that message.
fn for_each_message(mut check: impl FnMut(&Session, &Decoder, &Bytes)) {
    for server in SERVERS {
        for session in sessions(server) {
            let mut decoder = Decoder::new(session.version);
            for row in &session.rows {
                check(&session, &decoder, &row.data);
                decoder.decode(row.data.clone()).unwrap();
            }
        }
    }
}

/// Reads all there is to read, and checks that rows have as many columns as they say.
fn walk(message: &Message) {
    let tuples = match message {
        Message::Insert(insert) => vec![&insert.new],
        Message::Update(update) => update
            .old
            .iter()
            .map(OldRow::tuple)
            .chain([&update.new])
            .collect(),
        Message::Delete(delete) => vec![delete.old.tuple()],
        _ => Vec::new(),
    };
    for tuple in tuples {
        assert_eq!(tuple.iter().count(), tuple.len());
    }
    assert!(!format!("{message:?}").is_empty());
}

/// A Stream Abort of version 4 may end after the subtransaction's id.
fn is_short_abort(session: &Session, data: &[u8]) -> bool {
    session.version == ProtocolVersion::V4 && data.len() == 9 && data[0] == b'A'
}

#[test]
fn every_cut_is_an_error() {
    for_each_message(|session, decoder, data| {
        for length in 0..data.len() {
            let cut = data.slice(..length);
            let mut tried = decoder.clone();
            let result = tried.decode(cut.clone());
            if is_short_abort(session, &cut) {
                result.unwrap();
                continue;
            }
            let error = result.expect_err("cut");
            assert!(error.offset() <= length, "{error}");
            assert_eq!(error.kind().is_some(), length > 0, "{error}");
            assert!(
                matches!(
                    error.reason(),
                    DecodeReason::Truncated { .. }
                        | DecodeReason::MissingNul { .. }
                        | DecodeReason::BadCount { .. }
                ),
                "{error}"
            );
            assert_eq!(tried.is_in_stream(), decoder.is_in_stream());
        }
    });
}

#[test]
fn every_byte_too_many_is_an_error() {
    for_each_message(|session, decoder, data| {
        for byte in [0, b'N', 0xff] {
            let longer = Bytes::from([data, &[byte][..]].concat());
            let mut tried = decoder.clone();
            let error = tried.decode(longer).expect_err("a byte too many");
            if is_short_abort(session, data) {
                assert_eq!(
                    error.reason(),
                    DecodeReason::Truncated { needed: 8, left: 1 }
                );
            } else {
                assert_eq!(error.reason(), DecodeReason::LeftOver { count: 1 });
                assert_eq!(error.offset(), data.len());
            }
            assert_eq!(tried.is_in_stream(), decoder.is_in_stream());
        }
    });
}

#[test]
fn no_changed_byte_makes_it_panic() {
    for_each_message(|_, decoder, data| {
        for at in 0..data.len() {
            let old = data[at];
            let nearby = [
                old ^ 1,
                old ^ 0x80,
                old.wrapping_add(1),
                old.wrapping_sub(1),
            ];
            let tags = MessageKind::ALL
                .iter()
                .map(|kind| kind.tag())
                .filter(|_| at == 0);
            let letters = b"nutbNKO\0\x7f\xff".iter().copied();
            for new in nearby.into_iter().chain(tags).chain(letters) {
                let mut changed = data.to_vec();
                changed[at] = new;
                if let Ok(message) = decoder.clone().decode(Bytes::from(changed)) {
                    walk(&message);
                }
            }
        }
    });
}

/// No message has structure behind this, only the one long value.
const STRUCTURE_BYTES_MAX: usize = 300;

/// All 256 values of each byte, for one message of each kind and length.
#[test]
fn no_byte_value_makes_it_panic() {
    let mut seen = HashSet::new();
    for_each_message(|session, decoder, data| {
        if !seen.insert((session.version, decoder.is_in_stream(), data[0], data.len())) {
            return;
        }
        for at in 0..data.len().min(STRUCTURE_BYTES_MAX) {
            for new in 0..=u8::MAX {
                let mut changed = data.to_vec();
                changed[at] = new;
                if let Ok(message) = decoder.clone().decode(Bytes::from(changed)) {
                    walk(&message);
                }
            }
        }
    });
}

#[test]
fn rows_share_the_memory_of_their_message() {
    for_each_message(|_, decoder, data| {
        if let Message::Insert(insert) = decoder.clone().decode(data.clone()).unwrap() {
            let range = data.as_ptr_range();
            for index in 0..insert.new.len() {
                let Some(value) = insert.new.bytes(index).filter(|value| !value.is_empty()) else {
                    continue;
                };
                assert!(range.contains(&value.as_ptr()));
            }
        }
    });
}
