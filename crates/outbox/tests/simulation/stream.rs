//! A fake JetStream stream with the answers that real servers give.

use std::collections::HashMap;

use outbox::{
    EpochStart, LookBack, LookBackRange, Outgoing, Position, PubAck, Reach, ReadBack, ReadNext,
    Refusal, SeenMessage, Source, StoredRow, Tail, Writers, header,
};

#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) id: String,
    pub(crate) position: Option<Position>,
    pub(crate) source: Option<Source>,
    settled: Option<Position>,
    chained: bool,
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) writers: Writers,
    /// Replicated servers look for duplicates before they check the expected sequence.
    pub(crate) replicated: bool,
    pub(crate) duplicate_window_micros: u64,
    messages: Vec<Option<Stored>>,
    ids: HashMap<String, (u64, u64)>,
    pub(crate) full: bool,
    /// Acks one row without storing it: the third, if it is not the first of its transaction.
    lies: bool,
}

impl Stream {
    pub(crate) fn new(
        writers: Writers,
        replicated: bool,
        duplicate_window_micros: u64,
        lies: bool,
    ) -> Self {
        Self {
            writers,
            replicated,
            duplicate_window_micros,
            messages: Vec::new(),
            ids: HashMap::new(),
            full: false,
            lies,
        }
    }

    pub(crate) fn last_sequence(&self) -> u64 {
        self.messages.len() as u64
    }

    pub(crate) fn messages(&self) -> impl Iterator<Item = &Stored> {
        self.messages.iter().flatten()
    }

    /// One publish reaches the stream.
    pub(crate) fn publish(&mut self, now: u64, row: &Outgoing) -> Result<PubAck, Refusal> {
        let refuse = |code, err_code: u32| {
            Err(Refusal::Api {
                code,
                err_code,
                description: format!("fake {err_code}"),
            })
        };
        let id = row
            .headers
            .get(header::MSG_ID)
            .unwrap_or_default()
            .to_owned();
        if row.payload.as_ref() == b"large" {
            return refuse(400, 10_054);
        }
        if self.full {
            return refuse(503, 10_077);
        }
        let duplicate = self
            .ids
            .get(&id)
            .filter(|(_, at)| now - at < self.duplicate_window_micros)
            .map(|(sequence, _)| PubAck {
                sequence: *sequence,
                duplicate: true,
            });
        let broken = row
            .expected_last_sequence
            .is_some_and(|expected| expected != self.last_sequence());
        match duplicate {
            Some(ack) if self.replicated || !broken => return Ok(ack),
            _ if broken => return refuse(400, 10_071),
            _ => {}
        }
        let change = row.headers.get(header::POSITION);
        if self.lies && self.ids.len() == 2 && change.is_some_and(|text| !text.ends_with("/0")) {
            self.lies = false;
            return Ok(PubAck {
                sequence: self.last_sequence() + 1,
                duplicate: false,
            });
        }
        self.messages.push(Some(Stored {
            position: row
                .headers
                .get(header::POSITION)
                .and_then(|text| text.parse().ok()),
            source: row
                .headers
                .get(header::SOURCE)
                .and_then(|text| text.parse().ok()),
            id: id.clone(),
            settled: row.settled,
            chained: row.expected_last_sequence.is_some(),
        }));
        let sequence = self.last_sequence();
        self.ids.insert(id, (sequence, now));
        Ok(PubAck {
            sequence,
            duplicate: false,
        })
    }

    /// Somebody else publishes.
    pub(crate) fn publish_foreign(&mut self) {
        self.messages.push(Some(Stored {
            id: String::new(),
            position: None,
            source: None,
            settled: None,
            chained: false,
        }));
    }

    /// The server loses its newest messages; returns how many.
    pub(crate) fn forget_newest(&mut self, count: u64) -> u64 {
        let keep = self.last_sequence().saturating_sub(count);
        let lost = self.last_sequence() - keep;
        self.messages.truncate(keep as usize);
        self.ids.retain(|_, (sequence, _)| *sequence <= keep);
        lost
    }

    /// The last message is deleted; its sequence stays used. Returns what it was.
    pub(crate) fn delete_last(&mut self) -> Option<Stored> {
        self.messages.last_mut()?.take()
    }

    pub(crate) fn at(&self, sequence: u64) -> Option<&Stored> {
        self.messages
            .get(sequence.checked_sub(1)? as usize)?
            .as_ref()
    }

    pub(crate) fn epoch_start(&self) -> EpochStart {
        let tail = match self.messages.last() {
            None => Tail::Empty,
            Some(None) => Tail::Gone,
            Some(Some(stored)) => match row_of(self.last_sequence(), stored) {
                Some(row) => Tail::Row(row),
                None => Tail::Foreign,
            },
        };
        EpochStart {
            writers: self.writers,
            created_unix_nanos: 1,
            last_sequence: self.last_sequence(),
            tail,
            max_message_bytes: 1 << 20,
        }
    }

    /// The newest messages, as the reader of a real stream gives them.
    pub(crate) fn look_back(&self, range: &LookBackRange) -> LookBack {
        let mut messages = Vec::new();
        let mut ours = 0;
        let mut reach = if range.from > 1 {
            Reach::Wanted
        } else {
            Reach::Beginning
        };
        for sequence in (range.from..=range.to.min(self.last_sequence())).rev() {
            if ours >= range.rows {
                reach = Reach::Wanted;
                break;
            }
            let Some(stored) = self.at(sequence) else {
                continue;
            };
            let row = row_of(sequence, stored);
            let is_ours = row
                .as_ref()
                .is_some_and(|row| row.source.same_log(&range.source));
            ours += usize::from(is_ours);
            if is_ours || range.writers == Writers::Exclusive {
                messages.push(SeenMessage { sequence, row });
            }
        }
        messages.reverse();
        LookBack { messages, reach }
    }

    /// The first message at or behind a sequence.
    pub(crate) fn read_next(&self, sequence: u64) -> ReadNext {
        let found = (sequence..=self.last_sequence())
            .find_map(|sequence| Some((sequence, self.at(sequence)?)));
        match found {
            Some((sequence, stored)) => ReadNext::Message(SeenMessage {
                sequence,
                row: row_of(sequence, stored),
            }),
            None => ReadNext::End,
        }
    }

    pub(crate) fn read_back(&self, sequence: u64) -> ReadBack {
        match self.at(sequence) {
            Some(stored) => row_of(sequence, stored).map_or(ReadBack::Foreign, ReadBack::Row),
            None => ReadBack::Gone,
        }
    }
}

fn row_of(sequence: u64, stored: &Stored) -> Option<StoredRow> {
    Some(StoredRow {
        sequence,
        source: stored.source.clone()?,
        position: stored.position?,
        dedup_id: stored.id.clone(),
        settled: stored.settled,
        chained: stored.chained,
        origin: None,
        position_id: None,
    })
}
