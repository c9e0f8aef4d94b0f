//! The mutations: each breaks one law of the machine on purpose.

use super::{CaughtBy, Mutation};

const LEDGER: &str = "crates/outbox/src/ledger.rs";
const BROKER: &str = "crates/outbox/src/relay/broker.rs";
const INPUT: &str = "crates/outbox/src/relay/input.rs";
const ORDER: &str = "crates/outbox/src/relay/order.rs";
const OUTPUT: &str = "crates/outbox/src/relay/output.rs";
const RESUME: &str = "crates/outbox/src/relay/resume.rs";
const SURVEY: &str = "crates/outbox/src/relay/survey.rs";
const ROW: &str = "crates/outbox/src/render/row.rs";
const SOURCE: &str = "crates/outbox/src/relay/source.rs";
const STANDING: &str = "crates/outbox/src/source.rs";

/// The assertion that the machine would stop itself by. Without it the simulator has to notice.
const CONFIRMED_ASSERTION: (&str, &str) = (
    "assert!(
            self.confirmations.confirmed <= self.ledger.settled(),",
    "assert!(
            true || self.confirmations.confirmed <= self.ledger.settled(),",
);

pub(super) const MUTATIONS: &[Mutation] = &[
    Mutation {
        name: "what is received is confirmed",
        law: "1: confirmed <= settled",
        file: OUTPUT,
        edits: &[
            (
                ".advance(now, self.ledger.settled(), settings.confirm_delay);",
                ".advance(now, self.ledger.received(), settings.confirm_delay);",
            ),
            CONFIRMED_ASSERTION,
        ],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a keepalive moves the received position back",
        law: "1: none goes down",
        file: LEDGER,
        edits: &[(
            "if self.is_open() || wal_end <= self.received {",
            "if self.is_open() {",
        )],
        caught_by: CaughtBy::Test {
            target: "--lib",
            name: "ledger::tests::keepalives_queue_behind_rows_and_never_go_back",
        },
    },
    Mutation {
        name: "a commit is settled before its end",
        law: "2: settled is the end of a commit",
        file: LEDGER,
        edits: &[(
            "entry.end_lsn = Some(end_lsn);",
            "entry.end_lsn = Some(Lsn::new(end_lsn.as_u64() - 1));",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a transaction is settled with rows outstanding",
        law: "2: all its rows stored or parked",
        file: LEDGER,
        edits: &[
            (
                "outstanding: 0,
                ..
            }) = self.queue.front()",
                "..
            }) = self.queue.front()",
            ),
            (
                "assert!(outstanding > 0, \"a row was settled twice: {transaction:?}\");",
                "let _ = (outstanding, transaction);",
            ),
            (
                "entry.outstanding -= 1;",
                "entry.outstanding = entry.outstanding.saturating_sub(1);",
            ),
        ],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a dead letter that failed counts as parked",
        law: "2: stored or parked",
        file: OUTPUT,
        edits: &[(
            "if let Some(letter) = self.dead_letter(token) {
            self.actions.push_back(Action::Park(Box::new(letter)));
        }",
            "self.settle(token);",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a refused row counts as stored",
        law: "2: stored or parked",
        file: BROKER,
        edits: &[(
            "RowVerdict::Retry(reason) => {
",
            "RowVerdict::Retry(reason) => {
                self.settle(token);
",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a keepalive counts inside a transaction",
        law: "3: no transaction open",
        file: LEDGER,
        edits: &[(
            "if self.is_open() || wal_end <= self.received {",
            "if wal_end <= self.received {",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a keepalive overtakes the rows before it",
        law: "3: nothing outstanding before it",
        file: LEDGER,
        edits: &[(
            "None => self.queue.push_back(Entry {
                end_lsn: Some(wal_end),
                outstanding: 0,
                commit_time_micros: None,
            }),",
            "None => self.settled = wal_end,",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "rows in flight are not counted",
        law: "4: bounded by count",
        file: SOURCE,
        edits: &[(
            "self.window.len() < self.settings.max_in_flight_rows",
            "self.window.len() < usize::MAX",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "bytes in flight are not counted",
        law: "4: bounded by bytes",
        file: SOURCE,
        edits: &[(
            "self.window.bytes() < self.settings.max_in_flight_bytes",
            "self.window.bytes() < usize::MAX",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "no status update while the window is full",
        law: "4: status updates never stop",
        file: OUTPUT,
        edits: &[(
            "if !self.session.is_up() {
            return None;",
            "if !self.session.is_up() || !self.wants_wal() {
            return None;",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "the chain is not sent",
        law: "5: commit order, exclusive stream",
        file: OUTPUT,
        edits: &[(
            "expected_last_sequence: sequence.map(|sequence| sequence - 1),",
            "expected_last_sequence: sequence.and(None),",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "rows of one key are in flight together",
        law: "5: commit order, shared stream",
        file: ORDER,
        edits: &[
            (
                "if queue.is_empty() {
                ready.push_back(token);
            }",
                "ready.push_back(token);",
            ),
            (
                "assert!(
            queue.front() == Some(&token),",
                "if queue.front() != Some(&token) {
            queue.retain(|queued| *queued != token);
            return;
        }
        assert!(
            queue.front() == Some(&token),",
            ),
            ("Some(next) => ready.push_back(*next),", "Some(_) => {}"),
        ],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "an ack with another sequence than the chain's is believed",
        law: "5: commit order, exclusive stream",
        file: BROKER,
        edits: &[(
            "sequence.filter(|expected| *expected != ack.sequence)",
            "sequence.filter(|_| false)",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a refused row is sent again within its epoch",
        law: "5: commit order",
        file: BROKER,
        edits: &[(
            "RowVerdict::Retry(reason) => {
                self.end_epoch(now, EpochReason::Refused(reason));
",
            "RowVerdict::Retry(_) => {
                live.order.give_back(token);
",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a row on its way to the dead letters is offered again",
        law: "5: a key waits for its parked row",
        file: ORDER,
        edits: &[(
            "ready.retain(|token| !window.get(*token).is_some_and(parking));",
            "let _ = (&ready, parking);",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "rows overtake one that is being parked",
        law: "5 and the resume point: the tail is never ahead",
        file: OUTPUT,
        edits: &[(
            "Some(SendOrder::Chain { .. }) | None => false,
            Some(order @ SendOrder::PerKey { .. }) => {",
            "None => false,
            Some(order) => {",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "the window outlives its session",
        law: "6: nothing is remembered",
        file: SOURCE,
        edits: &[(
            "        self.window.clear();
",
            "",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "confirmations outlive their session",
        law: "6: nothing is remembered; 1: received in this session",
        file: SOURCE,
        edits: &[
            (
                "        self.counters.sessions += 1;
        self.confirmations.reset(now);
",
                "        self.counters.sessions += 1;
",
            ),
            (
                "        self.sent.clear();
        self.confirmations.reset(now);
",
                "        self.sent.clear();
",
            ),
        ],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "the newest stored position outlives its session",
        law: "6: nothing is remembered",
        file: SOURCE,
        edits: &[(
            "        self.seen.newest_stored = None;
",
            "",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "the dedup id holds the position",
        law: "7: a function of the row",
        file: ROW,
        edits: &[(
            "push_pieces(out, &plan.dedup_id, values);
",
            "push_pieces(out, &plan.dedup_id, values);
        push_display(out, row.position);
",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "skipped rows are settled before the proof",
        law: "resume point: a skip is proved",
        file: RESUME,
        edits: &[("self.ledger.hold();", "let _ = &self.ledger;")],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "any row at the resume position proves it",
        law: "resume point: a skip is proved",
        file: RESUME,
        edits: &[(
            "if !stored.has_resume_id(&row.dedup_id) {",
            "if stored.resume_id().is_none() {",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a resume position that was passed is kept",
        law: "resume point: void when passed",
        file: RESUME,
        edits: &[(
            "&& reached > row.position.commit_lsn",
            "&& reached > row.position.commit_lsn
            && false",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "the row behind the resume position is skipped too",
        law: "resume point: rows after it are not stored",
        file: RESUME,
        edits: &[(
            "std::cmp::Ordering::Greater if *skipped > 0 => Arrival::Void,",
            "std::cmp::Ordering::Greater if *skipped > 0 => Arrival::Skip,",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a void tail is believed again",
        law: "resume point: void when passed",
        file: RESUME,
        edits: &[(
            "self.void_up_to = self.void_up_to.max(sequence);",
            "let _ = sequence;",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a second writer's message is not looked for",
        law: "resume point: an exclusive stream holds a prefix only if nobody else wrote",
        file: SURVEY,
        edits: &[(
            "let before_stranger = hiding.is_none_or(|first| row.sequence < first);",
            "let before_stranger = hiding.is_none_or(|_| true);",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "everything up to the newest message of a shared stream is skipped",
        law: "resume point: a shared stream has holes",
        file: SURVEY,
        edits: &[(
            ".filter(|row| row.position <= settled)",
            ".filter(|row| row.position >= settled)",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "single rows behind the resume position are not remembered",
        law: "resume point: nothing stored is stored twice",
        file: SURVEY,
        edits: &[(
            ".filter(|row| Some(row.position) > covered)",
            ".filter(|row| Some(row.position) > covered && false)",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "the rows of a session are not looked for in its next epoch",
        law: "resume point: nothing stored is stored twice",
        file: RESUME,
        edits: &[(
            "Writers::Shared => self.look_for_sent(now),",
            "Writers::Shared => {}",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a tail read before the session counts",
        law: "resume point: a stale tail counts for nothing",
        file: RESUME,
        edits: &[(
            "if self.epoch_session != self.counters.sessions {",
            "if self.epoch_session == u64::MAX {",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a tail of another timeline counts beyond the fork",
        law: "resume point: positions compare within one timeline",
        file: STANDING,
        edits: &[(
            "Some(fork) if fork.holds(row.position) => Standing::Held,",
            "Some(_) => Standing::Held,",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a tail of a timeline that the server never was on counts",
        law: "resume point: positions compare within one timeline",
        file: STANDING,
        edits: &[(
            "None => Standing::OtherTimeline,",
            "None => Standing::Held,",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a tail beyond the end of the log counts",
        law: "resume point: a walsender sends what is flushed",
        file: STANDING,
        edits: &[(
            "return if row.position.commit_lsn < log_end {",
            "return if row.position.commit_lsn < log_end || true {",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a tail of another server counts",
        law: "resume point: positions compare within one log",
        file: STANDING,
        edits: &[(
            "if !row.source.same_log(&self.source) {",
            "if !row.source.same_log(&row.source) {",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "rows before the tail are taken for stored without a look",
        law: "resume point: each row at its own sequence",
        file: RESUME,
        edits: &[
            (
                "row.due_sequence.filter(|due| *due <= last_sequence)",
                "row.due_sequence.filter(|_| false).filter(|due| *due <= last_sequence)",
            ),
            (
                "row.state == RowState::Waiting && row.due_sequence.is_none()",
                "row.state == RowState::Waiting",
            ),
        ],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a stream that lost messages goes unnoticed",
        law: "resume point: the stream itself",
        file: BROKER,
        edits: &[(
            "if let Some(detail) = lost {",
            "if let Some(detail) = lost.filter(|_| false) {",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a duplicate is believed",
        law: "dedup: a duplicate is read back",
        file: BROKER,
        edits: &[(
            "if ack.duplicate {
            row.state",
            "if ack.duplicate && sequence.is_some() {
            row.state",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a duplicate is known by its id alone",
        law: "dedup: the same row, not only the same id",
        file: BROKER,
        edits: &[(
            "let here = stored.position == row.position || stored.origin.is_some();",
            "let here = true;",
        )],
        caught_by: CaughtBy::Simulator,
    },
    Mutation {
        name: "a duplicate whose message is gone counts as stored",
        law: "dedup: a duplicate is read back",
        file: BROKER,
        edits: &[(
            "_ => (false, false),",
            "_ => (found == ReadBack::Gone, false),",
        )],
        // In the simulator whatever is gone was stored once, so that no row is missing.
        caught_by: CaughtBy::Test {
            target: "relay",
            name: "duplicates::a_gone_duplicate_on_the_first_attempt_is_not_ours",
        },
    },
    Mutation {
        name: "change numbers count outbox rows only",
        law: "resume point: the position names the row",
        file: INPUT,
        edits: &[("next.change += 1;", "next.change += 2;")],
        caught_by: CaughtBy::Simulator,
    },
];
