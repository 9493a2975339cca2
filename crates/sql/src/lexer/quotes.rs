//! Finds the end of a quoted text, and writes quoted names. Every function but [`dollar`] and [`quote_identifier`] gets the whole text and
//! the offset of the inside, and returns the offset of the closing quote, or a doubt.

use super::{Doubt, is_blank, line_len};
use crate::scan::chunks::count_until;

/// Returns the end of a text in which nothing but a doubled quote is special.
pub(super) fn plain<const QUOTE: u8>(sql: &[u8], mut at: usize) -> Result<usize, Doubt> {
    loop {
        at += count_until(sql, at, QUOTE, QUOTE);
        match (sql.get(at), sql.get(at + 1)) {
            (None, _) => return Err(Doubt::Unterminated),
            (Some(_), Some(next)) if *next == QUOTE => at += 2,
            (Some(_), _) => return Ok(at),
        }
    }
}

/// Returns the end of `'...'`. If `standard_conforming_strings` is off, a backslash escapes the next
/// character; the end must be the same either way.
pub(super) fn standard(sql: &[u8], from: usize) -> Result<usize, Doubt> {
    let mut at = from;
    loop {
        at += count_until(sql, at, b'\'', b'\\');
        match (sql.get(at), sql.get(at + 1)) {
            (None, _) => return Err(Doubt::Unterminated),
            // The text is lexed again from its start, under both values of the setting.
            (Some(b'\\'), _) => return with_backslash(sql, from),
            (Some(_), Some(b'\'')) => at += 2,
            (Some(_), _) => return Ok(at),
        }
    }
}

fn with_backslash(sql: &[u8], from: usize) -> Result<usize, Doubt> {
    let end = plain::<b'\''>(sql, from)?;
    match escaped_end(sql, from) {
        Ok(other) if other == end => Ok(end),
        Ok(_) | Err(Doubt::Unterminated) => Err(Doubt::Backslash),
        Err(doubt) => Err(doubt),
    }
}

/// Returns the end of `E'...'`.
pub(super) fn escape(sql: &[u8], from: usize) -> Result<usize, Doubt> {
    let end = escaped_end(sql, from)?;
    if continues(sql, end + 1) { Err(Doubt::Continuation) } else { Ok(end) }
}

fn escaped_end(sql: &[u8], from: usize) -> Result<usize, Doubt> {
    let mut at = from;
    loop {
        at += count_until(sql, at, b'\'', b'\\');
        match (sql.get(at), sql.get(at + 1)) {
            (None, _) => return Err(Doubt::Unterminated),
            (Some(b'\\'), _) => {
                // In some encodings a backslash can be the second half of a character.
                let before = sql.get(from..at).and_then(<[u8]>::last);
                if let Some(0x80..) = before {
                    return Err(Doubt::Encoding);
                }
                at += 2;
            }
            (Some(_), Some(b'\'')) => at += 2,
            (Some(_), _) => return Ok(at),
        }
    }
}

/// Returns whether a string goes on after its closing quote: blanks with a line end among them, then another
/// quote. The next part follows the rules of the first.
fn continues(sql: &[u8], mut at: usize) -> bool {
    let mut new_line = false;
    loop {
        match sql.get(at..).unwrap_or_default() {
            [b'\'', ..] => return new_line,
            [b'-', b'-', ..] => at += 2 + line_len(sql, at + 2),
            [byte, ..] if is_blank(*byte) => {
                new_line |= matches!(byte, b'\n' | b'\r');
                at += 1;
            }
            _ => return false,
        }
    }
}

/// Returns the begin and the end of the inside of the dollar-quoted text at `start`, and the end of its
/// closing delimiter.
pub(super) fn dollar(sql: &[u8], start: usize) -> Result<(usize, usize, usize), Doubt> {
    let behind = sql.get(start + 1..).unwrap_or_default();
    let in_tag = |byte: &u8| matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_');
    let tag_len = behind.iter().position(|byte| !in_tag(byte)).unwrap_or(behind.len());
    match behind.get(tag_len) {
        Some(b'$') => {}
        // A tag may have letters beyond ASCII, whose bytes depend on the encoding.
        Some(0x80..) => return Err(Doubt::Encoding),
        _ => return Err(Doubt::Character),
    }
    let from = start + tag_len + 2;
    let delimiter = sql.get(start..from).ok_or(Doubt::Unterminated)?;
    let mut at = from;
    loop {
        at += count_until(sql, at, b'$', b'$');
        let rest = sql.get(at..).unwrap_or_default();
        if rest.starts_with(delimiter) {
            return Ok((from, at, at + delimiter.len()));
        }
        if rest.is_empty() {
            return Err(Doubt::Unterminated);
        }
        at += 1;
    }
}

/// A name as SQL spells it, appended to `out`: in double quotes, with each double quote of the name doubled.
pub fn quote_identifier(out: &mut Vec<u8>, name: &[u8]) {
    out.push(b'"');
    for &byte in name {
        if byte == b'"' {
            out.push(byte);
        }
        out.push(byte);
    }
    out.push(b'"');
}
