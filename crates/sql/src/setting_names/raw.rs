//! Reads text in which strings and comments cannot be told apart from the rest: every word counts.

use super::SettingNames;

impl SettingNames {
    /// Reads the words that begin before `end`.
    pub(super) fn read_raw(&mut self, text: &[u8], end: usize) {
        let mut at = 0;
        let mut before: &[u8] = b"";
        let mut is_between = true;
        while let Some(&byte) = text.get(at).filter(|_| at < end) {
            if !is_word(byte) {
                // A line break ends a comment, so the next word may begin a statement.
                is_between |= !matches!(byte, b' ' | b'\t');
                at += 1;
                continue;
            }
            let word = word_at(text, at);
            at += word.len();
            let rest = text.get(at..).unwrap_or_default();
            let opens = [&b"begin"[..], b"then", b"else", b"loop"];
            let begins = is_between || opens.iter().any(|word| before.eq_ignore_ascii_case(word));
            if word.eq_ignore_ascii_case(b"set_config")
                || word.eq_ignore_ascii_case(b"u") && rest.starts_with(b"&\"")
                || word.eq_ignore_ascii_case(b"set") && begins && !self.reads_raw_set(rest)
            {
                self.unreadable = true;
            }
            before = word;
            is_between = false;
        }
    }

    /// Reads what follows SET. Returns `false` if it may be a name that cannot be read.
    fn reads_raw_set(&mut self, rest: &[u8]) -> bool {
        let mut rest = rest.trim_ascii_start();
        let mut name = name_at(rest);
        if name.eq_ignore_ascii_case(b"session") || name.eq_ignore_ascii_case(b"local") {
            rest = rest.get(name.len()..).unwrap_or_default().trim_ascii_start();
            name = name_at(rest);
        }
        let behind = rest.get(name.len()..).unwrap_or_default().trim_ascii_start();
        let goes_on = matches!(
            behind,
            [] | [b'.' | b'"' | b'&' | b'%' | b'{' | b'\'' | b'|' | b'\\' | 0x80.., ..]
                | [b'/', b'*', ..]
                | [b'-', b'-', ..]
        );
        if name.is_empty() {
            // UPDATE ... SET (a, b) = ...
            return rest.starts_with(b"(");
        }
        if goes_on
            || !name.is_ascii()
            || name.split(|byte| *byte == b'.').any(|part| !matches!(part.len(), 1..=63))
        {
            return false;
        }
        self.add(name);
        true
    }
}

fn word_at(text: &[u8], at: usize) -> &[u8] {
    let rest = text.get(at..).unwrap_or_default();
    &rest[..rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len())]
}

fn name_at(text: &[u8]) -> &[u8] {
    let ends = |byte: &u8| !is_word(*byte) && *byte != b'.';
    &text[..text.iter().position(ends).unwrap_or(text.len())]
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | 0x80..)
}
