//! Appends fields to a message. Every encoder of this crate goes through here.
//!
//! The writer never fails and never lets one field run into the next; see [`crate::header`].

use crate::reader::split_text;

/// Appends a message: the tag, the length, and the bytes that `body` appends.
pub(crate) fn message(out: &mut Vec<u8>, tag: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    with_length(out, body);
}

/// Appends a packet without a tag, like the first packets of a connection.
pub(crate) fn with_length(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let len = wire_len(out.len() - start);
    if let Some(field) = out.get_mut(start..start + 4) {
        field.copy_from_slice(&len.to_be_bytes());
    }
}

/// Appends a message that has only a tag.
pub(crate) fn bare(out: &mut Vec<u8>, tag: u8) {
    out.extend_from_slice(&[tag, 0, 0, 0, 4]);
}

/// Returns a length for a message. A length that the protocol cannot carry becomes a number that every
/// receiver refuses.
pub(crate) fn wire_len(len: usize) -> u32 {
    match i32::try_from(len) {
        Ok(len) => len.unsigned_abs(),
        Err(_) => u32::MAX,
    }
}

pub(crate) fn u16(out: &mut Vec<u8>, value: u16) {
    out.extend_from_slice(&value.to_be_bytes());
}

pub(crate) fn u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_be_bytes());
}

/// Appends a text and its NUL.
pub(crate) fn text(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(until_nul(value));
    out.push(0);
}

/// Returns the part of `value` that the protocol can carry as a text.
#[must_use]
pub fn until_nul(value: &[u8]) -> &[u8] {
    if value.is_empty() {
        return value;
    }
    split_text(value).map_or(value, |(text, _)| text)
}

/// Appends a value after its length; NULL has the length -1.
pub(crate) fn nullable(out: &mut Vec<u8>, value: Option<&[u8]>) {
    match value {
        Some(value) => {
            u32(out, wire_len(value.len()));
            out.extend_from_slice(value);
        }
        None => u32(out, u32::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_cannot_smuggle_a_field() {
        let mut out = Vec::new();
        text(&mut out, b"user\0superuser");
        assert_eq!(out, b"user\0");
    }

    #[test]
    fn lengths_end_where_the_wire_does() {
        assert_eq!(wire_len(0), 0);
        assert_eq!(wire_len(0x7fff_ffff), 0x7fff_ffff);
        assert_eq!(wire_len(0x8000_0000), u32::MAX);
        assert_eq!(wire_len(usize::MAX), u32::MAX);
    }

    #[test]
    fn a_message_is_appended_behind_what_is_there() {
        let mut out = b"before".to_vec();
        message(&mut out, b'x', |out| text(out, b"ab"));
        bare(&mut out, b'y');
        assert_eq!(out, b"beforex\0\0\0\x07ab\0y\0\0\0\x04");
    }
}
