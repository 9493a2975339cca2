//! Reads a message's body, field by field. Every parser of this crate goes through here.
//!
//! The reader never reads past the body, and each error names the message and the field.

use crate::error::WireError;
use crate::limits::CANCEL_KEY_LEN_MAX;

/// A body, with the part of it that has not been read yet.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    message: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Creates a reader. `message` is the message's name for errors.
    pub(crate) fn new(message: &'static str, body: &'a [u8]) -> Self {
        Self { message, rest: body }
    }

    /// Returns the next `len` bytes.
    pub(crate) fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], WireError> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => {
                Err(WireError::Truncated { message: self.message, field, needed: len, left: self.rest.len() })
            }
        }
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], WireError> {
        match self.rest.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => {
                Err(WireError::Truncated { message: self.message, field, needed: N, left: self.rest.len() })
            }
        }
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, WireError> {
        Ok(u8::from_be_bytes(self.array(field)?))
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array(field)?))
    }

    /// Returns the next four bytes.
    pub(crate) fn four(&mut self, field: &'static str) -> Result<[u8; 4], WireError> {
        self.array(field)
    }

    /// Returns the bytes up to the next NUL, which is read, too.
    pub(crate) fn text(&mut self, field: &'static str) -> Result<&'a [u8], WireError> {
        match split_text(self.rest) {
            Some((text, rest)) => {
                self.rest = rest;
                Ok(text)
            }
            None => Err(WireError::Unterminated { message: self.message, field }),
        }
    }

    /// Returns a value that follows its length; a length of -1 means NULL.
    pub(crate) fn nullable(&mut self, field: &'static str) -> Result<Option<&'a [u8]>, WireError> {
        let len = self.u32(field)?;
        if len == u32::MAX { Ok(None) } else { self.take(len as usize, field).map(Some) }
    }

    /// Returns all bytes that have not been read.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Ends the reading. It is an error if bytes are left over.
    pub(crate) fn finish(self) -> Result<(), WireError> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(WireError::Trailing { message: self.message, left: self.rest.len() })
        }
    }

    /// Returns the error for a value that was read but is not allowed.
    pub(crate) fn refuse(&self, field: &'static str, expected: &'static str, got: u32) -> WireError {
        WireError::Value { message: self.message, field, expected, got }
    }
}

/// Splits at the first NUL. Returns the bytes before it and those after it, or `None` if there is no NUL.
#[inline]
#[must_use]
pub fn split_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    // Most portals, and many statements, have no name.
    if let [0, rest @ ..] = bytes {
        return Some((&[], rest));
    }
    let (text, rest) = bytes.split_at_checked(nul_at(bytes)?)?;
    Some((text, rest.get(1..)?))
}

/// Returns the place of the first NUL.
fn nul_at(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // Names are short; texts need not be.
    let (chunks, _) = bytes.as_chunks::<8>();
    let mut at = 0;
    for chunk in chunks.iter().take(CHUNKS_LOOKED_AT) {
        let chunk = u64::from_le_bytes(*chunk);
        let zeros = chunk.wrapping_sub(ONES) & !chunk & (ONES << 7);
        if zeros != 0 {
            return Some(at + zeros.trailing_zeros() as usize / 8);
        }
        at += 8;
    }
    memchr::memchr(0, bytes.get(at..)?).map(|behind| at + behind)
}

/// The number of chunks of eight bytes that are checked before a longer search begins.
const CHUNKS_LOOKED_AT: usize = 4;

/// Reads the rest of a message that ends in a cancel key.
pub(crate) fn cancel_key(reader: Reader<'_>) -> Result<&[u8], WireError> {
    let len = reader.rest.len();
    if (1..=CANCEL_KEY_LEN_MAX).contains(&len) {
        Ok(reader.rest)
    } else {
        Err(reader.refuse("length of the key", "1 to 256", u32::try_from(len).unwrap_or(u32::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_first_nul_is_found(bytes in proptest::collection::vec(prop_oneof![Just(0u8), 1u8.., Just(0x80), Just(1)], 0..90)) {
            prop_assert_eq!(nul_at(&bytes), bytes.iter().position(|byte| *byte == 0));
        }

        #[test]
        fn a_nul_at_each_place(len in 0usize..90, at in 0usize..90, fill in 1u8..) {
            let mut bytes = vec![fill; len];
            if let Some(place) = bytes.get_mut(at) {
                *place = 0;
            }
            prop_assert_eq!(nul_at(&bytes), (at < len).then_some(at));
        }
    }
}
