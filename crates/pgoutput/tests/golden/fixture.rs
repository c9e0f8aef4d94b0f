//! Reads the files that `record.sh` wrote.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use postrider_pgoutput::{Lsn, ProtocolVersion};

/// Major versions of the servers that were recorded.
pub(crate) const SERVERS: [u32; 5] = [14, 15, 16, 17, 18];

/// A position in the log and the server's clock there.
#[derive(Default, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) lsn: Lsn,
    pub(crate) unix_micros: i64,
}

/// One message.
pub(crate) struct Row {
    /// As the server labelled it outside of the message; 0/0 if it did not.
    pub(crate) lsn: Lsn,
    /// The transaction as the server labelled it outside of the message; 0 if it did not.
    pub(crate) xid: u32,
    pub(crate) data: Bytes,
}

/// The messages of one scenario, and what else the server said about it.
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) version: ProtocolVersion,
    /// `schema.name` of tables and types.
    pub(crate) oids: HashMap<u32, Vec<u8>>,
    pub(crate) from: Moment,
    pub(crate) to: Moment,
    pub(crate) rows: Vec<Row>,
}

/// Where the recordings are.
pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "{text}");
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

fn moment(lsn: &str, micros: &str) -> Moment {
    Moment {
        lsn: lsn.parse().unwrap(),
        unix_micros: micros.parse().unwrap(),
    }
}

/// All sessions recorded off one server.
pub(crate) fn sessions(server: u32) -> Vec<Session> {
    let path = folder().join(format!("pg{server}.txt"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut sessions: Vec<Session> = Vec::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["scenario", name] = words[..] {
            sessions.push(Session {
                name: name.to_owned(),
                version: ProtocolVersion::V1,
                oids: HashMap::new(),
                from: Moment::default(),
                to: Moment::default(),
                rows: Vec::new(),
            });
            continue;
        }
        let session = sessions.last_mut().unwrap();
        match words[..] {
            ["proto", number] => {
                session.version = match number {
                    "1" => ProtocolVersion::V1,
                    "2" => ProtocolVersion::V2,
                    "3" => ProtocolVersion::V3,
                    "4" => ProtocolVersion::V4,
                    _ => panic!("{line}"),
                }
            }
            ["oid", oid, name] => {
                session.oids.insert(oid.parse().unwrap(), unhex(name));
            }
            ["from", lsn, micros] => session.from = moment(lsn, micros),
            ["to", lsn, micros] => session.to = moment(lsn, micros),
            ["message", lsn, xid, data] => session.rows.push(Row {
                lsn: lsn.parse().unwrap(),
                xid: xid.parse().unwrap(),
                data: Bytes::from(unhex(data)),
            }),
            _ => panic!("{line}"),
        }
    }
    sessions
}
