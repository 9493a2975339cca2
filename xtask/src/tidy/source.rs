//! A Rust file as code without comments and literals, with its functions. A scanner, not a parser: it knows exactly as much
//! of the language as is needed to tell code from text.

use std::ops::Range;

/// A Rust file.
#[derive(Debug)]
pub(crate) struct Source {
    /// The text with every comment and the inside of every literal replaced by blanks; lines stay where they are.
    code: String,
    /// Byte ranges of `code` that are compiled for tests only.
    tests: Vec<Range<usize>>,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    /// Line of the word `fn`, from 1.
    pub(super) first_line: usize,
    /// Line of the closing brace.
    pub(super) last_line: usize,
}

impl Function {
    /// Length, signature included.
    pub(super) fn lines(&self) -> usize {
        self.last_line - self.first_line + 1
    }
}

impl Source {
    pub(crate) fn new(text: &str) -> Self {
        let code = blank_text(text);
        let tests = test_modules(&code);
        Self { code, tests }
    }

    /// The code, line by line from 1, with test modules left out.
    pub(crate) fn lines_without_tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let mut offset = 0;
        self.code.split_inclusive('\n').enumerate().filter_map(move |(index, line)| {
            let begin = offset;
            offset += line.len();
            let in_tests = self.tests.iter().any(|range| range.contains(&begin));
            (!in_tests).then_some((index + 1, line))
        })
    }

    /// The code, line by line from 1.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The texts in quotes of `text`, which this is of, with the lines where they begin; test modules left out.
    pub(super) fn strings<'a>(&self, text: &'a str) -> Vec<(usize, &'a str)> {
        let bytes = text.as_bytes();
        let mut strings = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let length = foreign_length(&bytes[at..], at.checked_sub(1).map(|before| bytes[before]));
            let is_string = length > 0 && matches!(bytes[at], b'"' | b'r');
            if is_string && !self.tests.iter().any(|range| range.contains(&at)) {
                strings.push((line_of(text, at), &text[at..at + length]));
            }
            at += length.max(1);
        }
        strings
    }

    /// Every function that has a body, nested ones too.
    pub(super) fn functions(&self) -> Vec<Function> {
        let code = &self.code;
        let mut functions = Vec::new();
        for (begin, _) in code.match_indices("fn ").filter(|(begin, _)| is_word(code, *begin, 2)) {
            let name: String = code[begin + 3..].chars().take_while(|c| is_name(*c)).collect();
            // A function pointer type has no name, a declaration no body.
            if let Some(body) = body_after(code, begin).filter(|_| !name.is_empty()) {
                functions.push(Function {
                    name,
                    first_line: line_of(code, begin),
                    last_line: line_of(code, body.end),
                });
            }
        }
        functions
    }
}

/// Whether the code in `line` has `word` as a whole word; `word` may be a path like `std::fs`.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(begin, _)| is_word(line, begin, word.len()))
}

fn is_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn is_word(text: &str, begin: usize, length: usize) -> bool {
    let before = text[..begin].chars().next_back();
    let after = text[begin + length..].chars().next();
    !before.is_some_and(is_name) && !after.is_some_and(is_name)
}

fn line_of(code: &str, offset: usize) -> usize {
    code[..offset].matches('\n').count() + 1
}

/// The first `{ ... }` behind `begin` that comes before a `;` outside of brackets: the position of its braces.
fn body_after(code: &str, begin: usize) -> Option<Range<usize>> {
    let mut brackets = 0_i32;
    let mut braces = 0_i32;
    let mut opened = None;
    for (index, byte) in code.bytes().enumerate().skip(begin) {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b';' if opened.is_none() && brackets == 0 => return None,
            b'{' if brackets == 0 || opened.is_some() => {
                opened = opened.or(Some(index));
                braces += 1;
            }
            b'}' if opened.is_some() => {
                braces -= 1;
                if braces == 0 {
                    return Some(opened?..index);
                }
            }
            _ => {}
        }
    }
    None
}

fn test_modules(code: &str) -> Vec<Range<usize>> {
    let marks = code.match_indices("#[cfg(test)]").map(|(begin, _)| begin);
    marks.filter_map(|begin| body_after(code, begin + 1).map(|body| begin..body.end + 1)).collect()
}

/// Replaces comments and what is inside of literals by blanks, byte for byte.
fn blank_text(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = at + foreign_length(&bytes[at..], at.checked_sub(1).map(|before| bytes[before]));
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8(code).expect("whole characters were replaced by blanks")
}

/// The number of bytes at the beginning of `rest` that are a comment or a literal; 0 for code.
fn foreign_length(rest: &[u8], before: Option<u8>) -> usize {
    let inside_a_name = before.is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => block_comment(rest),
        [b'"', ..] => quoted(rest, b'"'),
        [b'r', b'"' | b'#', ..] if !inside_a_name || before == Some(b'b') => raw_string(rest),
        [b'\'', ..] => character(rest),
        _ => 0,
    }
}

fn block_comment(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            b'\\' => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// `r"..."`, `r#"..."#`; 0 for a raw name like `r#type`.
fn raw_string(rest: &[u8]) -> usize {
    let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
    if rest.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let mut closing = vec![b'"'];
    closing.resize(1 + hashes, b'#');
    let begin = 2 + hashes;
    let found = rest[begin..].windows(closing.len()).position(|window| window == closing);
    found.map_or(rest.len(), |position| begin + position + closing.len())
}

/// A character literal; 0 for a lifetime.
fn character(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        return quoted(rest, b'\'');
    }
    // One character of up to four bytes, then the quote; `'a` without one is a lifetime.
    let end = rest.iter().skip(2).take(4).position(|byte| *byte == b'\'').map(|position| position + 2);
    let Some(end) = end else { return 0 };
    let one_character = std::str::from_utf8(&rest[1..end]).is_ok_and(|text| text.chars().count() == 1);
    if one_character { end + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_become_blanks() {
        let text = "a /* x /* y */ z */ b // c\n\"d\\\"e\" r#\"f\"g\"# 'h' '\\'' 'ä' &'i str br\"j\" r#type";
        let code = blank_text(text);
        assert_eq!(code.len(), text.len());
        let words: Vec<&str> = code.split_whitespace().collect();
        assert_eq!(words, ["a", "b", "&'i", "str", "b", "r#type"]);
    }

    #[test]
    fn functions_are_found_with_their_lengths() {
        let text = "trait T {\n    fn declared(&self) -> [u8; 2];\n}\n\nfn one() {}\n\
                    fn two(f: fn(u8) -> u8) -> [u8; 3]\nwhere\n    u8: Copy,\n{\n    let s = \"}\"; { }\n}\n";
        let functions = Source::new(text).functions();
        let found: Vec<_> = functions.iter().map(|f| (f.name.as_str(), f.first_line, f.lines())).collect();
        assert_eq!(found, [("one", 5, 1), ("two", 6, 6)]);
    }

    #[test]
    fn test_modules_are_left_out() {
        let text = "use a;\n#[cfg(test)]\nmod tests {\n    use b;\n}\nuse c;\n";
        let source = Source::new(text);
        let left: String = source.lines_without_tests().map(|(_, line)| line).collect();
        assert_eq!(left, "use a;\nuse c;\n");
        assert_eq!(source.lines().count(), 6);
    }

    #[test]
    fn a_test_module_in_another_file_hides_nothing_here() {
        let source = Source::new("#[cfg(test)]\nmod tests;\nfn f() {}\n");
        assert_eq!(source.lines_without_tests().count(), 3);
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("use std::fs::File;", "std::fs"));
        assert!(!has_word("let instant_us = 1;", "Instant"));
        assert!(!has_word("fn std_fs()", "fs"));
        assert!(has_word("unsafe { }", "unsafe"));
        assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
    }
}
