//! A second lexer, simple and slow, that follows one given reading of a text. It finds only the parts outside
//! quotes and comments.

/// The server's settings that change how it reads a text.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    standard_conforming_strings: bool,
    sjis: bool,
}

impl Reading {
    pub(super) const ALL: [Self; 4] = [
        Self { standard_conforming_strings: true, sjis: false },
        Self { standard_conforming_strings: false, sjis: false },
        Self { standard_conforming_strings: true, sjis: true },
        Self { standard_conforming_strings: false, sjis: true },
    ];
}

/// The parts of a text outside quotes and comments. Each quoted text has become one `~`, each comment one
/// NUL.
pub(super) struct Outside {
    text: Vec<u8>,
    /// `true` if every quote and comment has an end.
    pub(super) closed: bool,
}

impl Outside {
    pub(super) fn statements(&self) -> usize {
        let blank = |piece: &&[u8]| !piece.iter().all(|byte| byte.is_ascii_whitespace() || *byte == b'\0');
        self.text.split(|byte| *byte == b';').filter(blank).count()
    }

    pub(super) fn has_word(&self, word: &[u8]) -> bool {
        let mut words = self.text.split(|byte| !is_word(*byte));
        words.any(|found| found.eq_ignore_ascii_case(word))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte >= 0x80 || byte == b'_' || byte == b'$'
}

pub(super) fn outside(sql: &[u8], reading: Reading) -> Outside {
    let sql = if reading.sjis { without_double_bytes(sql) } else { sql.to_vec() };
    let mut text = Vec::new();
    let mut at = 0;
    let mut closed = true;
    while at < sql.len() {
        let word_before = text.last().copied().is_some_and(is_word);
        match region(&sql[at..], word_before, reading.standard_conforming_strings) {
            Region::None => {
                text.push(sql[at]);
                at += 1;
            }
            Region::Comment(len) => {
                text.push(b'\0');
                at += len.unwrap_or(sql.len());
                closed &= len.is_some();
            }
            Region::Quote(len) => {
                text.push(b'~');
                at += len.unwrap_or(sql.len());
                closed &= len.is_some();
            }
        }
    }
    Outside { text, closed }
}

enum Region {
    None,
    Comment(Option<usize>),
    Quote(Option<usize>),
}

fn region(sql: &[u8], word_before: bool, conforming: bool) -> Region {
    let lower = sql.get(..3).unwrap_or(sql).to_ascii_lowercase();
    if sql.starts_with(b"--") {
        return Region::Comment(Some(sql.iter().position(|b| b"\r\n".contains(b)).unwrap_or(sql.len())));
    }
    if sql.starts_with(b"/*") {
        return Region::Comment(comment(sql));
    }
    if !word_before {
        if lower.starts_with(b"e'") {
            return Region::Quote(continued(sql, 2));
        }
        if lower == b"u&'" || lower == b"u&\"" {
            return Region::Quote(quoted(sql, 3, sql[2], false));
        }
        if sql[0] == b'$' {
            let tag = 1 + sql[1..].iter().take_while(|b| is_word(**b) && **b != b'$').count();
            if sql.get(tag) == Some(&b'$') && !sql.get(1).is_some_and(u8::is_ascii_digit) {
                let delimiter = &sql[..=tag];
                let end = sql[tag + 1..].windows(tag + 1).position(|window| window == delimiter);
                return Region::Quote(end.map(|end| end + 2 * (tag + 1)));
            }
        }
    }
    match sql[0] {
        b'\'' => Region::Quote(quoted(sql, 1, b'\'', !conforming)),
        b'"' => Region::Quote(quoted(sql, 1, b'"', false)),
        _ => Region::None,
    }
}

fn comment(sql: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0);
    loop {
        let pair = sql.get(at..at + 2)?;
        match pair {
            b"/*" => depth += 1,
            b"*/" => depth -= 1,
            _ => {}
        }
        at += if pair == b"/*" || pair == b"*/" { 2 } else { 1 };
        if depth == 0 {
            return Some(at);
        }
    }
}

/// Returns the length of a quoted text with its quotes. The first `at` bytes are the opening.
fn quoted(sql: &[u8], mut at: usize, quote: u8, escapes: bool) -> Option<usize> {
    loop {
        match *sql.get(at)? {
            b'\\' if escapes => at += 2,
            byte if byte == quote && sql.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
}

/// Returns the length of an escape text with its continuations on other lines.
fn continued(sql: &[u8], at: usize) -> Option<usize> {
    let mut end = quoted(sql, at, b'\'', true)?;
    loop {
        let mut next = end;
        let mut lines = 0;
        while let Some(byte) = sql.get(next) {
            if sql[next..].starts_with(b"--") {
                next += sql[next..].iter().position(|b| b"\r\n".contains(b)).unwrap_or(sql.len() - next);
            } else if byte.is_ascii_whitespace() {
                lines += usize::from(b"\r\n".contains(byte));
                next += 1;
            } else {
                break;
            }
        }
        if lines == 0 || sql.get(next) != Some(&b'\'') {
            return Some(end);
        }
        end = quoted(sql, next + 1, b'\'', true)?;
    }
}

/// Replaces each character of two bytes with two letters, as a conversion to UTF-8 would produce letters.
fn without_double_bytes(sql: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < sql.len() {
        match (sql[at], sql.get(at + 1)) {
            (0x81..=0x9f | 0xe0..=0xfc, Some(0x40..=0x7e | 0x80..=0xfc)) => {
                out.extend_from_slice(b"\xe9\xe9");
                at += 2;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}
