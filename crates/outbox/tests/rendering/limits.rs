//! What is too long, too large or without an id goes to the dead letters, its neighbours flow.

use super::support::wire::Val::{Null, Text};
use super::support::wire::{self, oid};
use super::support::{Bench, OUTBOX, columns, id_of};
use super::{letter, message, send, spec, subject};
use crate::outbox::{OnPoison, PoisonReason, RelaySettings, Role, StopKind, Writers};

/// README, "Limits": the longest subject and the largest block of headers, in bytes.
const MAX_SUBJECT_BYTES: usize = 3_800;
const MAX_HEADERS_BYTES: usize = 65_000;

#[test]
fn the_longest_subject_fits_and_one_byte_more_is_poison() {
    let prefix = "outbox.".len();
    for (length, fits) in [(MAX_SUBJECT_BYTES, true), (MAX_SUBJECT_BYTES + 1, false)] {
        let topic = "t".repeat(length - prefix);
        let row = [
            ("id", oid::TEXT, Text("1")),
            ("topic", oid::TEXT, Text(topic.as_str())),
            ("payload", oid::JSONB, Text("{}")),
        ];
        if fits {
            assert_eq!(subject(&message(&spec(), &row)).len(), length);
        } else {
            let wanted = PoisonReason::SubjectTooLong {
                size_bytes: length,
                limit_bytes: MAX_SUBJECT_BYTES,
            };
            assert_eq!(letter(&spec(), &row).reason, wanted);
        }
    }
}

#[test]
fn the_largest_headers_fit_and_one_byte_more_is_poison() {
    let mut spec = spec();
    spec.headers = vec![("Filler".to_owned(), "filler".to_owned())];
    let filled = |filler: &str| {
        let row = [
            ("id", oid::TEXT, Text("1")),
            ("type", oid::TEXT, Text("t")),
            ("payload", oid::JSONB, Text("{}")),
            ("filler", oid::TEXT, Text(filler)),
        ];
        send(&spec, &row)
    };
    let without = filled("").sent[0].headers.as_block().len();
    let mut filler = "f".repeat(MAX_HEADERS_BYTES - without);
    let fits = filled(&filler);
    assert_eq!(fits.sent[0].headers.as_block().len(), MAX_HEADERS_BYTES);
    filler.push('f');
    let too_large = filled(&filler);
    let wanted = PoisonReason::HeadersTooLarge {
        size_bytes: MAX_HEADERS_BYTES + 1,
        limit_bytes: MAX_HEADERS_BYTES,
    };
    assert_eq!(too_large.letters()[0].reason, wanted);
    assert_eq!(
        too_large.letters()[0].headers.as_block().len(),
        MAX_HEADERS_BYTES + 1
    );
}

#[test]
fn a_message_of_exactly_the_limit_fits_and_one_byte_more_is_poison() {
    let body = "p".repeat(1_000);
    let row = [
        ("id", oid::TEXT, Text("1")),
        ("type", oid::TEXT, Text("t")),
        ("payload", oid::TEXT, Text(body.as_str())),
    ];
    let plain = message(&spec(), &row);
    let size_bytes = (plain.headers.as_block().len() + plain.payload.len()) as u64;
    let columns: Vec<_> = row.iter().map(|(name, oid, _)| (*name, *oid)).collect();
    let values: Vec<_> = row.iter().map(|(.., value)| *value).collect();
    for (limit_bytes, fits) in [(size_bytes, true), (size_bytes - 1, false)] {
        let mut settings = RelaySettings::new(vec![spec()]);
        settings.max_message_bytes = limit_bytes;
        let bench = super::send_row(settings, "public", "outbox", &columns, &values);
        if fits {
            assert_eq!(bench.sent.len(), 1);
        } else {
            let wanted = PoisonReason::TooLarge {
                size_bytes,
                limit_bytes,
            };
            assert_eq!(bench.letters()[0].reason, wanted);
            let text = wanted.to_string();
            assert!(text.contains(&size_bytes.to_string()), "{text}");
            assert!(text.contains(&limit_bytes.to_string()), "{text}");
        }
    }
}

#[test]
fn a_row_without_an_id_is_poison() {
    for (id, dedup) in [(Null, None), (Text(""), None), (Null, Some("x:{id}"))] {
        let mut spec = spec();
        spec.dedup_id = dedup.and_then(super::template);
        let row = [
            ("id", oid::TEXT, id),
            ("type", oid::TEXT, Text("t")),
            ("payload", oid::JSONB, Text("{}")),
        ];
        assert_eq!(letter(&spec, &row).reason, PoisonReason::NoId);
    }
}

#[test]
fn a_dedup_id_that_comes_out_empty_is_poison() {
    let mut spec = spec();
    spec.dedup_id = super::template("{tenant}");
    let row = [
        ("id", oid::TEXT, Text("1")),
        ("type", oid::TEXT, Text("t")),
        ("tenant", oid::TEXT, Null),
        ("payload", oid::JSONB, Text("{}")),
    ];
    assert_eq!(letter(&spec, &row).reason, PoisonReason::NoId);
}

#[test]
fn the_neighbours_of_a_poison_row_flow_and_it_is_confirmed_once_parked() {
    let mut bench = Bench::new(Writers::Exclusive);
    bench.wal(100, wire::begin(100));
    bench.describe();
    bench.row("a", "k");
    bench.wal(
        0,
        wire::insert(OUTBOX, &[Null, Text("k"), Text("t"), Text("{}")]),
    );
    bench.row("c", "k");
    bench.wal(100, wire::commit(100, 110));
    let sent = bench.take_sent();
    assert_eq!(sent.iter().map(id_of).collect::<Vec<_>>(), ["a"]);
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 0);
    let letter = bench.letters()[0].clone();
    assert_eq!(letter.reason, PoisonReason::NoId);
    assert_eq!(letter.table, "public.outbox");
    assert_eq!(letter.position, super::support::position(100, 1));
    assert_eq!(letter.source, "7001/1/shop/postrider");
    bench.parked(letter.token);
    let sent = bench.take_sent();
    assert_eq!(sent.iter().map(id_of).collect::<Vec<_>>(), ["c"]);
    assert_eq!(sent[0].expected_last_sequence, Some(1));
    bench.ack(&sent[0]);
    assert_eq!(bench.settled(), 110);
}

#[test]
fn a_poison_row_under_halt_stops_and_names_the_row() {
    let mut spec = spec();
    spec.columns = vec![(Role::Id, "id".to_owned())];
    let mut settings = RelaySettings::new(vec![spec]);
    settings.on_poison = OnPoison::Halt;
    let values = [Text("r-7"), Text("k"), Text("t"), Text("{}")];
    settings.max_message_bytes = 10;
    let bench = super::send_row(settings, "public", "outbox", &columns(), &values);
    let (kind, text) = bench.stop().unwrap();
    assert_eq!(kind, StopKind::Halted);
    for wanted in ["r-7", "public.outbox", "0/16B3748/0", "limit is 10"] {
        assert!(text.contains(wanted), "{text}");
    }
    assert!(bench.letters().is_empty());
}
