//! Writes pgoutput messages as a walsender would, byte by byte.

use bytes::{BufMut, Bytes, BytesMut};

/// OIDs of the types that the tests use (PostgreSQL, `pg_type.dat`).
pub(crate) mod oid {
    pub(crate) const BYTEA: u32 = 17;
    pub(crate) const INT8: u32 = 20;
    pub(crate) const INT4: u32 = 23;
    pub(crate) const TEXT: u32 = 25;
    pub(crate) const JSON: u32 = 114;
    pub(crate) const FLOAT8: u32 = 701;
    pub(crate) const TIMESTAMPTZ: u32 = 1184;
    pub(crate) const UUID: u32 = 2950;
    pub(crate) const JSONB: u32 = 3802;
}

/// One value of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Val<'a> {
    Null,
    /// A TOASTed value that an update did not touch.
    Unchanged,
    Text(&'a str),
    Bytes(&'a [u8]),
}

impl<'a> From<&'a str> for Val<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

pub(crate) fn begin(commit_lsn: u64) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'B');
    out.put_u64(commit_lsn);
    out.put_i64(0);
    out.put_u32(700);
    out.freeze()
}

pub(crate) fn commit(commit_lsn: u64, end_lsn: u64) -> Bytes {
    let mut out = BytesMut::new();
    out.put_slice(b"C\0");
    out.put_u64(commit_lsn);
    out.put_u64(end_lsn);
    out.put_i64(0);
    out.freeze()
}

pub(crate) fn relation(id: u32, schema: &str, table: &str, columns: &[(&str, u32)]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'R');
    out.put_u32(id);
    for name in [schema, table] {
        out.put_slice(name.as_bytes());
        out.put_u8(0);
    }
    out.put_u8(b'd');
    out.put_u16(columns.len() as u16);
    for (name, oid) in columns {
        out.put_u8(0);
        out.put_slice(name.as_bytes());
        out.put_u8(0);
        out.put_u32(*oid);
        out.put_i32(-1);
    }
    out.freeze()
}

pub(crate) fn tuple(out: &mut BytesMut, values: &[Val<'_>]) {
    out.put_u16(values.len() as u16);
    for value in values {
        let bytes = match value {
            Val::Null => {
                out.put_u8(b'n');
                continue;
            }
            Val::Unchanged => {
                out.put_u8(b'u');
                continue;
            }
            Val::Text(text) => text.as_bytes(),
            Val::Bytes(bytes) => bytes,
        };
        out.put_u8(b't');
        out.put_u32(bytes.len() as u32);
        out.put_slice(bytes);
    }
}

pub(crate) fn insert(relation: u32, values: &[Val<'_>]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'I');
    out.put_u32(relation);
    out.put_u8(b'N');
    tuple(&mut out, values);
    out.freeze()
}

pub(crate) fn update(relation: u32, values: &[Val<'_>]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'U');
    out.put_u32(relation);
    out.put_u8(b'N');
    tuple(&mut out, values);
    out.freeze()
}

pub(crate) fn delete(relation: u32, key: &[Val<'_>]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'D');
    out.put_u32(relation);
    out.put_u8(b'K');
    tuple(&mut out, key);
    out.freeze()
}

pub(crate) fn truncate(relations: &[u32]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'T');
    out.put_u32(relations.len() as u32);
    out.put_u8(0);
    for relation in relations {
        out.put_u32(*relation);
    }
    out.freeze()
}

pub(crate) fn type_message(id: u32, name: &str) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'Y');
    out.put_u32(id);
    out.put_slice(b"public\0");
    out.put_slice(name.as_bytes());
    out.put_u8(0);
    out.freeze()
}

pub(crate) fn origin(name: &str) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'O');
    out.put_u64(1);
    out.put_slice(name.as_bytes());
    out.put_u8(0);
    out.freeze()
}

pub(crate) fn logical_message(transactional: bool, prefix: &str, content: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'M');
    out.put_u8(u8::from(transactional));
    out.put_u64(50);
    out.put_slice(prefix.as_bytes());
    out.put_u8(0);
    out.put_u32(content.len() as u32);
    out.put_slice(content);
    out.freeze()
}

pub(crate) fn stream_abort() -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(b'A');
    out.put_u32(700);
    out.put_u32(701);
    out.freeze()
}
