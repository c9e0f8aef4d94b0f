//! Whatever the columns hold, a row becomes one sound message or one dead letter with its reason.

use super::support::wire::Val::{Null, Text};
use super::support::wire::{Val, oid};
use super::{send, spec};
use crate::outbox::{Outgoing, PoisonReason, header, is_header_name};

/// Rows tried; each has a machine of its own, which takes a millisecond.
const ROWS: u64 = 2_000;

/// Pieces that mean something to NATS, to JSON, to a header or to a wildcard.
const PIECES: [&str; 40] = [
    "a",
    "é",
    "✓",
    "\u{a0}",
    "\u{feff}",
    "\0",
    "\u{1}",
    "\u{7f}",
    "\r",
    "\n",
    "\r\n",
    "\t",
    " ",
    ".",
    "..",
    "*",
    ">",
    "%",
    "%2E",
    "_",
    "$",
    "$SYS",
    ":",
    ": ",
    "\"",
    "\\",
    "\\u0000",
    "{",
    "}",
    "[",
    "]",
    "1e400",
    "-0",
    "NaN",
    "infinity",
    "null",
    "\\x",
    "\\x0g",
    "Nats-Msg-Id: x",
    "Outbox-Source",
];

/// JSON that a headers column can hold, and text that is none.
const JSON: [&str; 16] = [
    "{}",
    "{\"a\": 1, \"a\": 2, \"A\": \"3\"}",
    "{\"n\": 12345678901234567890123456789012345678901234567890.0e-999}",
    "{\"big\": 1e400, \"deep\": {\"a\": [[[{\"b\": null}]]]}}",
    "{\"Nats-TTL\": \"5s\"}",
    "{\"Nats-Rollup\": \"all\"}",
    "{\"nats-msg-id\": \"x\"}",
    "{\"Outbox-Origin\": \"replay\"}",
    "{\"a\\r\\nb\": \"1\"}",
    "{\"\": \"1\"}",
    "{\"a b\": \"1\"}",
    "{\"\\u0000\": \"\\u0000\"}",
    "{\"v\": \"line\\r\\nNats-Msg-Id: stolen\", \"surrogate\": \"\\ud800\"}",
    "[1, 2]",
    "\"text\"",
    "{\"open\": ",
];

/// Chance from a counter, so that a row that fails is the same one every time (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) as usize % end
    }

    fn text(&mut self) -> Option<String> {
        match self.below(12) {
            0 => None,
            1 => Some(String::new()),
            2 => Some(PIECES[self.below(PIECES.len())].repeat(1 + self.below(5_000))),
            _ => {
                let count = 1 + self.below(6);
                Some(
                    (0..count)
                        .map(|_| PIECES[self.below(PIECES.len())])
                        .collect(),
                )
            }
        }
    }

    fn json(&mut self) -> Option<String> {
        match self.below(4) {
            0 => self.text(),
            1 => Some(format!("{{\"T\": {:?}}}", "x".repeat(self.below(70_000)))),
            _ => Some(JSON[self.below(JSON.len())].to_owned()),
        }
    }
}

fn val(text: &Option<String>) -> Val<'_> {
    text.as_deref().map_or(Null, Text)
}

/// Subject and headers are what NATS can carry, and say nothing that is not ours to say.
fn check(message: &Outgoing, seed: u64) {
    let subject = std::str::from_utf8(&message.subject).unwrap();
    let sound = |token: &str| {
        let plain = token.bytes().all(|byte| byte.is_ascii_graphic());
        plain && !token.is_empty() && !token.contains(['*', '>'])
    };
    assert!(subject.len() <= 3_800, "{seed}");
    assert!(subject.split('.').all(sound), "{seed}: {subject}");
    assert_eq!(subject.split('.').count(), 3, "{seed}: {subject}");
    let block = std::str::from_utf8(message.headers.as_block()).unwrap();
    assert!(block.len() <= 65_000 && block.ends_with("\r\n"), "{seed}");
    for line in block.trim_end_matches("\r\n").split("\r\n") {
        let (name, value) = line.split_once(": ").unwrap();
        assert!(is_header_name(name), "{seed}: {name:?}");
        assert!(!value.contains(['\r', '\n', '\0']), "{seed}: {value:?}");
    }
    for name in [
        header::MSG_ID,
        header::POSITION,
        header::SOURCE,
        header::TABLE,
    ] {
        let named = message.headers.iter().filter(|(of, _)| *of == name);
        assert_eq!(named.count(), 1, "{seed}: {name}");
    }
    assert_eq!(message.headers.get(header::ORIGIN), None, "{seed}");
}

#[test]
fn any_column_values_become_one_sound_message_or_a_named_dead_letter() {
    let mut spec = spec();
    spec.headers = vec![("Mapped".to_owned(), "mapped".to_owned())];
    let (mut messages, mut letters) = (0, std::collections::BTreeSet::new());
    for seed in 0..ROWS {
        let mut dice = Dice(seed.wrapping_mul(0x0100_0000_01B3));
        let texts: Vec<_> = (0..8).map(|_| dice.text()).collect();
        let headers = dice.json();
        let payload_oid = [oid::JSONB, oid::TEXT, oid::BYTEA][dice.below(3)];
        let row = [
            ("id", oid::TEXT, val(&texts[0])),
            ("aggregate_type", oid::TEXT, val(&texts[1])),
            ("aggregate_id", oid::TEXT, val(&texts[2])),
            ("type", oid::TEXT, val(&texts[3])),
            ("payload", payload_oid, val(&texts[4])),
            ("created_at", oid::TEXT, val(&texts[5])),
            ("mapped", oid::TEXT, val(&texts[6])),
            ("traceparent", oid::TEXT, val(&texts[7])),
            ("headers", oid::JSONB, val(&headers)),
        ];
        let mut bench = send(&spec, &row);
        assert_eq!(bench.stop(), None, "{seed}");
        let sent = bench.take_sent();
        match (&sent[..], &bench.letters()[..]) {
            ([message], []) => {
                messages += 1;
                check(message, seed);
                if payload_oid != oid::BYTEA {
                    let body = texts[4].as_deref().unwrap_or_default();
                    assert_eq!(message.payload, body.as_bytes(), "{seed}");
                }
            }
            ([], [letter]) => {
                assert!(!letter.reason.to_string().is_empty(), "{seed}");
                let no_id = texts[0].as_ref().is_none_or(String::is_empty);
                assert_eq!(
                    no_id,
                    letter.reason == PoisonReason::NoId,
                    "{seed}: {letter:?}"
                );
                letters.insert(letter.reason.name());
            }
            other => panic!("{seed}: {other:?}"),
        }
    }
    assert!(messages > ROWS / 6, "{messages} messages");
    let all = [
        "header_refused",
        "headers_not_object",
        "headers_too_large",
        "no_id",
        "payload_not_hex",
        "subject_too_long",
    ];
    assert_eq!(letters.into_iter().collect::<Vec<_>>(), all);
}
