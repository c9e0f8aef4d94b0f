//! What servers answer, read as each of the things that it could be.

use bytes::Bytes;
use jetstream::{StoredMessage, StreamConfig, check_stream, covers, overlaps, parse_ack};
use outbox::{Position, Source, Writers};
use postgres::{ServerError, ServerVersion, TimelineFork};

use crate::input::Input;

/// The input: what it is, and its bytes.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let choice = input.byte();
    let bytes = input.0;
    match choice % 6 {
        0 => ack(choice, bytes),
        1 => message(bytes),
        2 => headers(bytes),
        3 => stream(bytes),
        4 => server(bytes),
        _ => subjects(&mut input),
    }
}

fn ack(choice: u8, bytes: &[u8]) {
    let status = [None, Some(503), Some(429), Some(404)][usize::from(choice >> 4) % 4];
    match parse_ack("S", status, bytes) {
        Ok(ack) => assert!(ack.sequence > 0 && status.is_none()),
        Err(refusal) => assert!(!format!("{refusal:?}").is_empty()),
    }
}

fn message(bytes: &[u8]) {
    match StoredMessage::from_answer(bytes) {
        Ok(Some(message)) => {
            assert!(message.payload.len() + message.headers.len() <= bytes.len());
            let _ = message.row();
        }
        Ok(None) => {}
        Err(fault) => assert!(!fault.is_empty()),
    }
}

fn headers(bytes: &[u8]) {
    let message = StoredMessage {
        sequence: 7,
        subject: "a".to_owned(),
        time: String::new(),
        headers: Bytes::copy_from_slice(bytes),
        payload: Bytes::new(),
    };
    if let Some(row) = message.row() {
        let position: Position = row.position.to_string().parse().unwrap();
        assert_eq!(position, row.position);
        let source: Source = row.source.to_string().parse().unwrap();
        assert_eq!(source, row.source);
    }
}

fn stream(bytes: &[u8]) {
    let Ok(config) = serde_json::from_slice::<StreamConfig>(bytes) else {
        return;
    };
    let _ = (config.owner(), config.writers(), config.duplicate_window());
    let _ = config.max_message_bytes();
    for writers in [Writers::Exclusive, Writers::Shared] {
        for finding in check_stream(&config, writers, &["outbox.>".to_owned()]) {
            assert!(!format!("{finding:?}").is_empty());
        }
    }
}

fn server(bytes: &[u8]) {
    let error = ServerError::parse(bytes);
    assert!(!error.to_string().is_empty());
    let _ = ServerVersion::parse(&String::from_utf8_lossy(bytes));
    if let Ok(forks) = TimelineFork::parse_history(bytes) {
        assert!(forks.len() <= bytes.len());
    }
}

/// Whoever covers a pattern also overlaps it.
fn subjects(input: &mut Input<'_>) {
    let (outer, inner) = (input.text(), input.text());
    if covers(&outer, &inner) {
        assert!(overlaps(&outer, &inner), "{outer:?} {inner:?}");
    }
    assert_eq!(overlaps(&outer, &inner), overlaps(&inner, &outer));
    assert!(overlaps(&outer, &outer));
}
