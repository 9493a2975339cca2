//! Looks at eight bytes of a text at once, in a plain register.
//!
//! The functions find the end of a word, of a run of digits or of the inside of quotes without a step for
//! each byte. A chunk holds eight bytes, the first of them lowest. Bytes that are not there must never
//! decide: after the end of a text a chunk has zeros, which are part of nothing in SQL.

/// The value 1 in each byte.
const ONES: u64 = u64::from_le_bytes([1; 8]);

/// The highest bit of each byte, which marks a byte that was found.
const HIGH: u64 = ONES << 7;

/// All bits of each byte but the highest.
const LOW: u64 = !HIGH;

/// The number of bytes in a chunk.
pub(crate) const CHUNK: usize = 8;

/// Returns the chunk at `at`, with zeros after the end of `text`.
#[inline]
pub(crate) fn load(text: &[u8], at: usize) -> u64 {
    match text.get(at..).and_then(<[u8]>::first_chunk) {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => load_last(text, at),
    }
}

/// Returns the chunk at `at` if fewer than eight bytes are left.
fn load_last(text: &[u8], at: usize) -> u64 {
    let left = text.len().saturating_sub(at);
    if left == 0 {
        return 0;
    }
    // The last eight bytes of the text, shifted, are cheaper than a copy byte by byte.
    if let Some(last) = text.last_chunk() {
        return u64::from_le_bytes(*last) >> (8 * (CHUNK - left));
    }
    let mut bytes = [0; CHUNK];
    for (to, from) in bytes.iter_mut().zip(text.iter().skip(at)) {
        *to = *from;
    }
    u64::from_le_bytes(bytes)
}

/// Returns the chunk's first `len` bytes (eight at most), followed by zeros.
#[inline]
pub(crate) const fn first(chunk: u64, len: usize) -> u64 {
    if len < CHUNK { chunk & ((1 << (8 * len)) - 1) } else { chunk }
}

/// Returns the chunk's first `len` bytes (eight at most), followed by blanks.
#[inline]
pub(crate) const fn padded(chunk: u64, len: usize) -> u64 {
    if len < CHUNK { chunk & ((1 << (8 * len)) - 1) | (ONES * 0x20) << (8 * len) } else { chunk }
}

/// Returns the chunk with letters in lower case, so that words that differ only in case are equal. Other
/// ASCII characters change too, but two different characters of words stay different; `_` becomes 0x7f.
#[inline]
pub(crate) const fn fold(chunk: u64) -> u64 {
    chunk | ((!chunk & HIGH) >> 2)
}

/// Returns the number of bytes at the start of the chunk that may be part of a word: letters, digits, `_`,
/// `$`, and all bytes above 127.
#[inline(always)]
pub(crate) fn word_len(chunk: u64) -> usize {
    let low = chunk & LOW;
    let lower = low | each(b' ');
    let no_letters = !(lower + each(0x80 - b'a')) | (lower + each(0x7f - b'z'));
    let no_others = no_digits(low) & differ(low, b'_') & differ(low, b'$');
    leading(no_letters & no_others & !chunk)
}

/// Returns the number of digits at the start of the chunk.
#[inline(always)]
pub(crate) fn digits_len(chunk: u64) -> usize {
    leading(no_digits(chunk & LOW) | chunk)
}

/// Returns the number of bytes before the first `one` or `other` in the chunk.
#[inline]
pub(crate) fn len_until(chunk: u64, one: u8, other: u8) -> usize {
    // A borrow may mark bytes after the first one found, never bytes before it.
    let is = |byte: u8| {
        let zero = chunk ^ each(byte);
        zero.wrapping_sub(ONES) & !zero
    };
    ((is(one) | is(other)) & HIGH).trailing_zeros() as usize / 8
}

/// Returns a chunk of eight times the same byte.
const fn each(byte: u8) -> u64 {
    ONES * byte as u64
}

/// Marks the bytes that are not digits; `low` is each byte without its highest bit.
#[inline(always)]
const fn no_digits(low: u64) -> u64 {
    (low ^ each(b'0')) + each(0x80 - 10)
}

/// Marks the bytes that differ from `byte`; `low` is each byte without its highest bit.
#[inline(always)]
const fn differ(low: u64, byte: u8) -> u64 {
    (low ^ each(byte)) + LOW
}

/// Returns the number of bytes at the start that are not marked.
#[inline(always)]
fn leading(marked: u64) -> usize {
    match marked & HIGH {
        0 => CHUNK,
        marked => marked.trailing_zeros() as usize / 8,
    }
}

/// Returns the number of bytes of `text` from `at` up to the first `one` or `other`.
#[inline]
pub(crate) fn count_until(text: &[u8], at: usize, one: u8, other: u8) -> usize {
    let mut end = at;
    loop {
        let len = len_until(load(text, end), one, other);
        end += len;
        if len < CHUNK || end >= text.len() {
            return end.min(text.len()).saturating_sub(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn len(bytes: [u8; CHUNK], wanted: impl Fn(u8) -> bool) -> usize {
        bytes.iter().position(|byte| !wanted(*byte)).unwrap_or(CHUNK)
    }

    fn is_word(byte: u8) -> bool {
        byte.is_ascii_alphanumeric() || byte >= 0x80 || byte == b'_' || byte == b'$'
    }

    #[test]
    fn each_byte_is_of_its_kind_at_each_place() {
        for byte in 0..=255u8 {
            for at in 0..CHUNK {
                for around in [b'a', 0x80, b'7', 0xff] {
                    let mut bytes = [around; CHUNK];
                    bytes[at] = byte;
                    let chunk = u64::from_le_bytes(bytes);
                    assert_eq!(word_len(chunk), len(bytes, is_word), "{bytes:?}");
                    assert_eq!(digits_len(chunk), len(bytes, |byte| byte.is_ascii_digit()), "{bytes:?}");
                    let until = len(bytes, |byte| byte != b'\'' && byte != b'\\');
                    assert_eq!(len_until(chunk, b'\'', b'\\'), until, "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn folding_keeps_the_characters_of_words_apart() {
        let folded = |byte: u8| fold(u64::from_le_bytes([byte; CHUNK])).to_le_bytes()[3];
        for one in (0..=255u8).filter(|byte| is_word(*byte)) {
            for other in (0..=255u8).filter(|byte| is_word(*byte)) {
                assert_eq!(folded(one) == folded(other), one.eq_ignore_ascii_case(&other));
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_loaded_is_what_is_there(text in proptest::collection::vec(any::<u8>(), 0..40), at in 0usize..48) {
            let mut bytes = [0; CHUNK];
            let there = text.get(at..).unwrap_or_default();
            let len = there.len().min(CHUNK);
            bytes[..len].copy_from_slice(&there[..len]);
            prop_assert_eq!(load(&text, at).to_le_bytes(), bytes);
            prop_assert_eq!(first(load(&text, at), len), u64::from_le_bytes(bytes));
        }

        #[test]
        fn any_bytes(bytes: [u8; CHUNK]) {
            let chunk = u64::from_le_bytes(bytes);
            prop_assert_eq!(word_len(chunk), len(bytes, is_word));
            prop_assert_eq!(digits_len(chunk), len(bytes, |byte| byte.is_ascii_digit()));
            prop_assert_eq!(len_until(chunk, 1, 2), len(bytes, |byte| byte != 1 && byte != 2));
        }

        #[test]
        fn the_next_of_two_is_found(text in proptest::collection::vec(0u8..12, 0..40), at in 0usize..40) {
            let rest = text.get(at..).unwrap_or_default();
            let expected = rest.iter().position(|byte| matches!(byte, 0 | 1)).unwrap_or(rest.len());
            prop_assert_eq!(count_until(&text, at, 0, 1), expected);
        }
    }
}
