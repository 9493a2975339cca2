//! Where a quoted text ends. Every function is given what follows the opening quote (except [`dollar`]) and finds the
//! closing one; when in doubt it says so.

use super::{Doubt, count, is_blank, line_end};

/// The end of a text in which nothing but a doubled quote is special.
pub(super) fn plain<const QUOTE: u8>(inside: &[u8]) -> Result<usize, Doubt> {
    let mut at = 0;
    loop {
        let rest = inside.get(at..).ok_or(Doubt::Unterminated)?;
        at += count(rest, |byte| byte != QUOTE);
        match (inside.get(at), inside.get(at + 1)) {
            (None, _) => return Err(Doubt::Unterminated),
            (Some(_), Some(next)) if *next == QUOTE => at += 2,
            (Some(_), _) => return Ok(at),
        }
    }
}

/// The end of `'...'`. A backslash is a character like others, or makes one of the character behind it if
/// `standard_conforming_strings` is off. The end must be the same either way.
pub(super) fn standard(inside: &[u8]) -> Result<usize, Doubt> {
    let end = plain::<b'\''>(inside)?;
    let text = inside.get(..end).unwrap_or_default();
    if text.contains(&b'\\') {
        match escaped_end(inside) {
            Ok(other) if other == end => {}
            Ok(_) | Err(Doubt::Unterminated) => return Err(Doubt::Backslash),
            Err(doubt) => return Err(doubt),
        }
    }
    Ok(end)
}

/// The end of `E'...'`.
pub(super) fn escape(inside: &[u8]) -> Result<usize, Doubt> {
    let end = escaped_end(inside)?;
    if continues(inside.get(end + 1..).unwrap_or_default()) { Err(Doubt::Continuation) } else { Ok(end) }
}

fn escaped_end(inside: &[u8]) -> Result<usize, Doubt> {
    let mut at = 0;
    loop {
        let rest = inside.get(at..).ok_or(Doubt::Unterminated)?;
        at += count(rest, |byte| byte != b'\'' && byte != b'\\');
        match (inside.get(at), inside.get(at + 1)) {
            (None, _) => return Err(Doubt::Unterminated),
            (Some(b'\\'), _) => {
                // In some encodings a backslash can be the second half of a character.
                if let Some(0x80..) = at.checked_sub(1).and_then(|before| inside.get(before)) {
                    return Err(Doubt::Encoding);
                }
                at += 2;
            }
            (Some(_), Some(b'\'')) => at += 2,
            (Some(_), _) => return Ok(at),
        }
    }
}

/// Whether a string goes on behind its closing quote: blanks with a line end among them, then another quote. The next
/// part follows the rules of the first.
fn continues(mut behind: &[u8]) -> bool {
    let mut new_line = false;
    loop {
        behind = match behind {
            [b'\'', ..] => return new_line,
            [b'-', b'-', rest @ ..] => line_end(rest),
            [byte, rest @ ..] if is_blank(*byte) => {
                new_line |= matches!(byte, b'\n' | b'\r');
                rest
            }
            _ => return false,
        }
    }
}

/// Splits a dollar-quoted text at the start of `sql`, opening delimiter included, into its inside and what is behind
/// its end.
pub(super) fn dollar(sql: &[u8]) -> Result<(&[u8], &[u8]), Doubt> {
    let behind = sql.get(1..).unwrap_or_default();
    let tag_len = count(behind, |byte| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_'));
    match behind.get(tag_len) {
        Some(b'$') => {}
        Some(0x80..) => return Err(Doubt::Encoding),
        _ => return Err(Doubt::Character),
    }
    let (delimiter, inside) = sql.split_at_checked(tag_len + 2).ok_or(Doubt::Unterminated)?;
    let mut at = 0;
    loop {
        let rest = inside.get(at..).ok_or(Doubt::Unterminated)?;
        at += count(rest, |byte| byte != b'$');
        let rest = inside.get(at..).ok_or(Doubt::Unterminated)?;
        if let Some(behind) = rest.strip_prefix(delimiter) {
            return Ok((inside.get(..at).unwrap_or_default(), behind));
        }
        if rest.is_empty() {
            return Err(Doubt::Unterminated);
        }
        at += 1;
    }
}
