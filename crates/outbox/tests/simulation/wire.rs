//! Writes the pgoutput messages that the fake walsender sends.

use bytes::{BufMut, Bytes, BytesMut};
use pgoutput::Lsn;

pub(crate) const RELATION_ID: u32 = 16_385;
pub(crate) const FOREIGN_RELATION_ID: u32 = 16_400;

pub(crate) fn begin(commit_lsn: Lsn) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'B');
    out.put_u64(commit_lsn.as_u64());
    out.put_i64(0);
    out.put_u32(700);
    out.freeze()
}

pub(crate) fn commit(commit_lsn: Lsn, end_lsn: Lsn) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'C');
    out.put_u8(0);
    out.put_u64(commit_lsn.as_u64());
    out.put_u64(end_lsn.as_u64());
    out.put_i64(0);
    out.freeze()
}

/// Where the transaction ends whose commit this is.
pub(crate) fn commit_end(data: &[u8]) -> Option<Lsn> {
    let [b'C', _, _, _, _, _, _, _, _, _, rest @ ..] = data else {
        return None;
    };
    let bytes = rest.first_chunk::<8>()?;
    Some(Lsn::new(u64::from_be_bytes(*bytes)))
}

pub(crate) fn is_begin(data: &[u8]) -> bool {
    data.first() == Some(&b'B')
}

pub(crate) fn relation(id: u32, table: &str) -> Bytes {
    let columns = ["id", "aggregate_id", "type", "payload"];
    let mut out = BytesMut::new();
    out.put_u8(b'R');
    out.put_u32(id);
    out.put_slice(b"public\0");
    out.put_slice(table.as_bytes());
    out.put_slice(b"\0d");
    out.put_u16(columns.len() as u16);
    for name in columns {
        out.put_u8(0);
        out.put_slice(name.as_bytes());
        out.put_u8(0);
        out.put_u32(25);
        out.put_i32(-1);
    }
    out.freeze()
}

pub(crate) fn insert(relation: u32, values: [Option<&str>; 4]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'I');
    out.put_u32(relation);
    out.put_u8(b'N');
    out.put_u16(values.len() as u16);
    for value in values {
        match value {
            None => out.put_u8(b'n'),
            Some(text) => {
                out.put_u8(b't');
                out.put_u32(text.len() as u32);
                out.put_slice(text.as_bytes());
            }
        }
    }
    out.freeze()
}
