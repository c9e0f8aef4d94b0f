//! Sequences of messages through one decoder: no bytes may make it panic, and whatever it accepts
//! can be walked to its end.

use bytes::Bytes;
use pgoutput::{Decoder, Message, OldRow, ProtocolVersion, Relation, Tuple, Value};

/// Checks a row by every way there is to read it.
fn walk(row: &Tuple, input: &Bytes) {
    assert_eq!(row.iter().len(), row.len());
    assert_eq!(row.iter().count(), row.len());
    for value in row.iter() {
        let Some(bytes) = value.as_bytes() else {
            continue;
        };
        assert_eq!(row.share(bytes).as_deref(), Some(bytes));
        assert!(bytes.is_empty() || input.as_ptr_range().contains(&bytes.as_ptr()));
    }
    if let Some(last) = row.len().checked_sub(1) {
        assert_eq!(row.get(last), row.iter().last());
        assert_eq!(
            row.bytes(last).as_deref(),
            row.iter().last().and_then(Value::as_bytes)
        );
    }
    assert_eq!(row.get(row.len()), None);
}

/// A Relation may not hold more columns than its bytes can stand for.
fn check_relation(relation: &Relation, data: &Bytes) {
    assert!(relation.columns.capacity() * 10 <= data.len());
    assert_eq!(relation.detached(), *relation);
}

fn check(message: &Message, data: &Bytes) {
    match message {
        Message::Insert(insert) => walk(&insert.new, data),
        Message::Update(update) => {
            walk(&update.new, data);
            update
                .old
                .iter()
                .map(OldRow::tuple)
                .for_each(|row| walk(row, data));
        }
        Message::Delete(delete) => walk(delete.old.tuple(), data),
        Message::Relation(relation) => check_relation(relation, data),
        Message::Truncate(truncate) => {
            assert!(truncate.relation_ids.capacity() * 4 <= data.len());
        }
        _ => {}
    }
    assert_eq!(Some(&message.kind().tag()), data.first());
    assert!(!format!("{message:?}").is_empty());
}

/// The input is a byte for the protocol version, then messages with their length (2 bytes) each.
pub(crate) fn run(input: &[u8]) {
    let Some((version, mut rest)) = input.split_first() else {
        return;
    };
    let version = match version % 4 {
        0 => ProtocolVersion::V1,
        1 => ProtocolVersion::V2,
        2 => ProtocolVersion::V3,
        _ => ProtocolVersion::V4,
    };
    let mut decoder = Decoder::new(version);
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(tail.len());
        let (data, tail) = tail.split_at(length);
        rest = tail;
        let data = Bytes::copy_from_slice(data);
        let in_stream = decoder.is_in_stream();
        match decoder.decode(data.clone()) {
            Ok(message) => check(&message, &data),
            Err(error) => {
                assert_eq!(decoder.is_in_stream(), in_stream);
                assert!(error.offset() <= data.len());
                assert!(!error.to_string().is_empty());
            }
        }
    }
}
