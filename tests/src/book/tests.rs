//! Each kind of violation is found; a history that keeps the guarantee has none.

use async_nats::HeaderMap;
use pgoutput::Lsn;

use super::*;

fn row(number: u64, key: &str) -> Committed {
    Committed {
        id: number.to_string(),
        aggregate_id: key.to_owned(),
        commit_lsn: Lsn::new(100 * number),
        end_lsn: Lsn::new(100 * number + 50),
        payload_hash: witness::payload_hash(b"{}"),
    }
}

/// The message of a row, stored at the time that is its number.
fn message(sequence: u64, row: &Committed) -> Stored {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", row.id.as_str());
    headers.insert("Outbox-Position", format!("{}/0", row.commit_lsn));
    Stored {
        sequence,
        stored_at_unix_ns: i128::from(sequence),
        subject: String::from("outbox.order.placed"),
        headers,
        payload: "{}".into(),
    }
}

fn sample(confirmed: Lsn, taken_at_unix_ns: i128) -> Sample {
    Sample {
        confirmed,
        taken_at_unix_ns,
    }
}

/// Rows 1 to 3, of which 1 and 3 have one key, all committed.
fn book(writers: Writers) -> (Book, [Committed; 3]) {
    let rows = [row(1, "a"), row(2, "b"), row(3, "a")];
    let mut book = Book::new(writers);
    rows.iter().for_each(|row| book.commit(row.clone()));
    (book, rows)
}

fn counts(book: &Book) -> [u64; 4] {
    let found = &book.findings;
    [
        found.lost,
        found.out_of_order,
        found.stored_twice,
        found.phantoms,
    ]
}

#[test]
fn a_history_that_keeps_the_guarantee_is_clean() {
    let (mut book, rows) = book(Writers::Exclusive);
    for (sequence, row) in (1..).zip(&rows) {
        book.store(&message(sequence, row));
    }
    book.sample(sample(rows[2].end_lsn, 4));
    book.forget(3);
    book.sample(sample(rows[2].end_lsn, 5));
    book.close(3);
    assert!(book.findings.is_clean(), "{:?}", book.findings.described);
    assert_eq!((book.findings.rows, book.findings.messages), (3, 3));
}

#[test]
fn order_is_of_all_rows_or_of_each_key() {
    for (writers, misplaced) in [(Writers::Exclusive, 1), (Writers::Shared, 0)] {
        let (mut book, [one, two, three]) = book(writers);
        for (sequence, row) in (1..).zip([&two, &one, &three]) {
            book.store(&message(sequence, row));
        }
        assert_eq!(counts(&book), [0, misplaced, 0, 0], "{writers:?}");
    }
    let (mut book, [one, two, three]) = book(Writers::Shared);
    for (sequence, row) in (1..).zip([&three, &two, &one]) {
        book.store(&message(sequence, row));
    }
    assert_eq!(counts(&book), [0, 1, 0, 0]);
}

#[test]
fn a_confirmation_before_the_row_is_stored_is_found_whenever_the_row_comes() {
    let (mut book, rows) = book(Writers::Exclusive);
    book.store(&message(1, &rows[0]));
    book.sample(sample(rows[0].end_lsn, 2));
    assert_eq!(counts(&book), [0, 0, 0, 0]);
    book.sample(sample(rows[1].end_lsn, 3));
    assert_eq!(counts(&book), [1, 0, 0, 0]);
    book.store(&message(9, &rows[1]));
    book.sample(sample(rows[1].end_lsn, 8));
    assert_eq!(counts(&book), [2, 0, 0, 0]);
}

#[test]
fn copies_strangers_and_changed_messages_are_found_and_what_is_missing_in_the_end() {
    let (mut book, rows) = book(Writers::Shared);
    book.store(&message(1, &rows[0]));
    book.forget(5);
    book.store(&message(2, &rows[0]));
    assert_eq!(counts(&book), [0, 0, 1, 0]);
    book.store(&message(3, &row(7, "a")));
    assert_eq!(counts(&book), [0, 0, 1, 1]);
    let mut changed = message(4, &rows[1]);
    changed.payload = "[]".into();
    book.store(&changed);
    assert_eq!(counts(&book), [0, 0, 1, 2]);
    let mut moved = message(5, &rows[2]);
    moved.headers.insert("Outbox-Position", "0/1/0");
    book.store(&moved);
    assert_eq!(counts(&book), [0, 0, 1, 3]);
    book.close(4);
    assert_eq!(counts(&book), [1, 0, 1, 3]);
    assert_eq!(book.findings.described.len(), 5);
}

#[test]
fn a_row_that_is_never_stored_is_lost() {
    let (mut book, rows) = book(Writers::Exclusive);
    book.store(&message(1, &rows[0]));
    book.close(3);
    assert_eq!(counts(&book), [2, 0, 0, 0]);
}
