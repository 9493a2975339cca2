//! The search for names of custom settings (`a.b`), which no list of PostgreSQL shows, in texts that come in pieces and in values that are
//! bound. Bytes only; `notes.rs` notes the names that are found.

use pgweir_sql::SettingNames;

use crate::limits::CUSTOM_NAME_BYTES_MAX;

/// The number of bytes at the end of a piece that are looked at again with the next one: a statement's beginning may go on there.
const OVERLAP_BYTES: usize = 4 * CUSTOM_NAME_BYTES_MAX;

/// A reader of messages that come in pieces.
#[derive(Default)]
pub(crate) struct PartReader {
    /// The end of the last piece. `None` if no more pieces are expected.
    carry: Option<Vec<u8>>,
}

impl PartReader {
    /// Begins a message whose rest will come in pieces.
    pub(crate) fn begin(&mut self) {
        self.carry = Some(Vec::new());
    }

    /// Whether the rest of a message is still to come.
    pub(crate) fn is_open(&self) -> bool {
        self.carry.is_some()
    }

    /// Reads another piece. Returns the names in it, and the bytes that were searched.
    pub(crate) fn pass(&mut self, piece: &[u8], is_last: bool) -> (SettingNames, Vec<u8>) {
        let mut text = self.carry.take().unwrap_or_default();
        text.extend_from_slice(piece);
        let names = SettingNames::of_part(&text, if is_last { 0 } else { OVERLAP_BYTES });
        if !is_last {
            self.carry = Some(text[text.len().saturating_sub(OVERLAP_BYTES)..].to_vec());
        }
        (names, text)
    }
}

/// Returns the values that a Bind carries, from the byte after its names; `None` if they are not all here, or do not have the form that the
/// protocol says.
pub(crate) fn bound_values(body: &[u8]) -> Option<Vec<Option<&[u8]>>> {
    let (formats, rest) = count(body)?;
    let (values, mut rest) = count(rest.get(2 * formats..)?)?;
    let mut found = Vec::with_capacity(values.min(rest.len() / 4));
    for _ in 0..values {
        let (len, behind) = rest.split_first_chunk::<4>()?;
        rest = behind;
        found.push(match i32::from_be_bytes(*len) {
            -1 => None,
            len => {
                let (value, behind) = rest.split_at_checked(usize::try_from(len).ok()?)?;
                rest = behind;
                Some(value)
            }
        });
    }
    Some(found)
}

fn count(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (count, rest) = bytes.split_first_chunk::<2>()?;
    Some((usize::from(u16::from_be_bytes(*count)), rest))
}

/// Returns the bytes after the names of a Bind.
pub(crate) fn behind_names(body: &[u8]) -> &[u8] {
    body.splitn(3, |byte| *byte == 0).nth(2).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_pieces_is_read_wherever_it_is_cut() {
        let text = [&[b' '; 2000][..], b"; set Tenant.id = 'x'; set work_mem = 1", &[b' '; 2000]].concat();
        for cut in 1..text.len() {
            let mut reader = PartReader::default();
            reader.begin();
            let (first, _) = reader.pass(&text[..cut], false);
            assert!(reader.is_open());
            let (last, _) = reader.pass(&text[cut..], true);
            let names: Vec<_> = first.names.iter().chain(&last.names).collect();
            assert!(!reader.is_open() && !first.unreadable && !last.unreadable, "cut at {cut}");
            assert!(!names.is_empty() && names.iter().all(|name| ***name == *b"tenant.id"), "cut at {cut}");
        }
    }

    #[test]
    fn bound_values_are_read_if_all_are_there() {
        let body = b"\0\x01\0\0\0\x03\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0\0\0";
        assert_eq!(bound_values(body), Some(vec![Some(&b"ab"[..]), None, Some(b"")]));
        for len in 0..body.len() - 2 {
            assert_eq!(bound_values(&body[..len]), None, "{len} bytes");
        }
        assert_eq!(behind_names(b"portal\0statement\0xyz\0"), b"xyz\0");
        assert_eq!(behind_names(b"portal\0state"), b"");
    }
}
