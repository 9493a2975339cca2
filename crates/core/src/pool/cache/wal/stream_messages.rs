//! Messages of `pgoutput`, as tests write them.

fn message(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    [&[tag][..], &parts.concat()].concat()
}

pub(crate) fn begin(xid: u32) -> Vec<u8> {
    message(b'B', &[&[0; 16], &xid.to_be_bytes()])
}

pub(crate) fn commit(end: u64) -> Vec<u8> {
    message(b'C', &[&[0; 9], &end.to_be_bytes(), &[0; 8]])
}

/// A table with columns of this name and type; those in upper case are its key.
pub(crate) fn relation(table: u32, identity: u8, columns: &[(&str, u32)]) -> Vec<u8> {
    let mut out = message(b'R', &[&table.to_be_bytes(), b"public\0t\0", &[identity]]);
    out.extend((columns.len() as u16).to_be_bytes());
    for (name, oid) in columns {
        let is_key = name.bytes().all(|byte| byte.is_ascii_uppercase());
        out.push(u8::from(is_key));
        out.extend(name.to_ascii_lowercase().bytes());
        out.push(0);
        out.extend([oid.to_be_bytes(), u32::MAX.to_be_bytes()].concat());
    }
    out
}

/// The value of a column that is stored apart and did not change.
pub(crate) const UNCHANGED: &str = "(unchanged)";

fn tuple(kind: u8, values: &[Option<&str>]) -> Vec<u8> {
    let mut out = vec![kind];
    out.extend((values.len() as u16).to_be_bytes());
    for value in values {
        match value {
            None => out.push(b'n'),
            Some(text) if *text == UNCHANGED => out.push(b'u'),
            Some(text) => {
                out.push(b't');
                out.extend((text.len() as u32).to_be_bytes());
                out.extend(text.bytes());
            }
        }
    }
    out
}

pub(crate) fn insert(table: u32, values: &[Option<&str>]) -> Vec<u8> {
    message(b'I', &[&table.to_be_bytes(), &tuple(b'N', values)])
}

/// `old` is empty if the old row is not told.
pub(crate) fn update(table: u32, old: &[Option<&str>], new: &[Option<&str>]) -> Vec<u8> {
    let old = if old.is_empty() { Vec::new() } else { tuple(b'K', old) };
    message(b'U', &[&table.to_be_bytes(), &old, &tuple(b'N', new)])
}

pub(crate) fn delete(table: u32, old: &[Option<&str>]) -> Vec<u8> {
    message(b'D', &[&table.to_be_bytes(), &tuple(b'K', old)])
}

pub(crate) fn truncate(table: u32) -> Vec<u8> {
    message(b'T', &[&1u32.to_be_bytes(), &[0], &table.to_be_bytes()])
}

pub(crate) fn stream_start(xid: u32) -> Vec<u8> {
    message(b'S', &[&xid.to_be_bytes(), &[1]])
}

pub(crate) fn stream_stop() -> Vec<u8> {
    b"E".to_vec()
}

pub(crate) fn stream_commit(xid: u32, end: u64) -> Vec<u8> {
    message(b'c', &[&xid.to_be_bytes(), &[0; 9], &end.to_be_bytes(), &[0; 8]])
}

pub(crate) fn stream_abort(xid: u32, part: u32) -> Vec<u8> {
    message(b'A', &[&xid.to_be_bytes(), &part.to_be_bytes()])
}

/// The same message as a part of a transaction that was not committed yet.
pub(crate) fn in_part(xid: u32, message: &[u8]) -> Vec<u8> {
    [&message[..1], &xid.to_be_bytes(), &message[1..]].concat()
}
