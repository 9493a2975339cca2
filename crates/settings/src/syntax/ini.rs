//! The file format: sections, `key = value` lines, comments and `%include`, walked in order and passed to a
//! visitor.
//!
//! PgBouncer's rules hold: a comment is a whole line that starts with `;` or `#`; a value is the rest of its
//! line; `%include file` may stand anywhere, and the section goes on into the included file and out of it.
//! The walk collects faults and goes on, so one run shows all of them. It must never know what a section or a
//! key means.

use crate::config::Place;
use crate::error::LoadError;

/// The maximum depth to which files may include each other.
pub const INCLUDE_DEPTH_MAX: usize = 10;

/// The maximum number of includes that one load follows: files that include each other several times would
/// otherwise never end.
pub const INCLUDES_MAX: usize = 1000;

/// A function that reads a file by its name. The error says why it could not be read.
pub(crate) type Read<'a> = dyn FnMut(&str) -> Result<String, String> + 'a;

/// The receiver of the lines that the walk finds.
pub(crate) trait Visitor {
    /// Takes a section's header.
    fn section(&mut self, name: &str, place: Place);
    /// Takes a `key = value` line.
    fn entry(&mut self, key: String, value: &str, place: Place);
    /// Takes a `key += value` line.
    fn merge(&mut self, key: String, value: &str, place: Place);
    /// Takes a fault of the format.
    fn fault(&mut self, fault: LoadError);
}

/// One line of a file.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Nothing,
    Section(&'a str),
    Include(&'a str),
    Entry(String, &'a str),
    Merge(String, &'a str),
    Broken,
}

/// Walks over the text of `file` and over all files that it includes.
pub(crate) fn walk(file: &str, text: &str, read: &mut Read<'_>, visitor: &mut dyn Visitor) {
    Walk { read, visitor, includes: 0 }.file(file, text, 0);
}

struct Walk<'a, 'r> {
    read: &'a mut Read<'r>,
    visitor: &'a mut dyn Visitor,
    includes: usize,
}

impl Walk<'_, '_> {
    fn file(&mut self, file: &str, text: &str, depth: usize) {
        // Editors on Windows put a byte order mark at the start of a file.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        for (line, number) in text.lines().zip(1u32..) {
            let place = Place { file: file.to_owned(), line: number };
            match parse_line(line) {
                Line::Nothing => {}
                Line::Section(name) => self.visitor.section(name, place),
                Line::Entry(key, value) => self.visitor.entry(key, value, place),
                Line::Include(path) => self.include(path, &place, depth),
                Line::Merge(key, value) => self.visitor.merge(key, value, place),
                Line::Broken => self.visitor.fault(broken(&place)),
            }
        }
    }

    fn include(&mut self, path: &str, place: &Place, depth: usize) {
        self.includes += 1;
        if self.includes > INCLUDES_MAX {
            // The fault is reported once, not for each further include.
            if self.includes == INCLUDES_MAX + 1 {
                let problem = format!("more than {INCLUDES_MAX} includes");
                self.visitor.fault(place.error(format!("{problem} ({place})"), problem));
            }
            return;
        }
        if depth == INCLUDE_DEPTH_MAX {
            let problem = "include nesting level too deep".to_owned();
            return self.visitor.fault(place.error(format!("{problem} ({place})"), problem));
        }
        match (self.read)(path) {
            Ok(text) => self.file(path, &text, depth + 1),
            Err(why) => {
                let problem = format!("could not load file \"{path}\": {why}");
                let text = format!("error processing include file in configuration ({place}): {problem}");
                self.visitor.fault(place.error(text, problem));
            }
        }
    }
}

/// The fault of a line that has none of the known forms.
pub(crate) fn broken(place: &Place) -> LoadError {
    let known = "a line is [section], key = value, %include file or a comment";
    let text = format!("syntax error in configuration ({place}): {known}");
    place.error(text, format!("syntax error: {known}"))
}

fn parse_line(line: &str) -> Line<'_> {
    let line = line.trim();
    // A NUL cannot be in a message of the protocol, so it cannot be in a setting.
    if line.contains('\0') {
        return Line::Broken;
    }
    match line.bytes().next() {
        None | Some(b';' | b'#') => Line::Nothing,
        Some(b'[') => section(line),
        Some(b'%') => include(line),
        Some(_) => entry(line),
    }
}

fn section(line: &str) -> Line<'_> {
    match line[1..].split_once(']') {
        Some((name, rest)) if !name.contains('[') && is_comment(rest.trim_start()) => Line::Section(name),
        _ => Line::Broken,
    }
}

/// Returns whether the rest of a line is empty or a comment.
fn is_comment(rest: &str) -> bool {
    rest.is_empty() || rest.starts_with([';', '#'])
}

fn include(line: &str) -> Line<'_> {
    match line.strip_prefix("%include") {
        Some(path) if path.starts_with([' ', '\t']) => Line::Include(path.trim()),
        _ => Line::Broken,
    }
}

fn entry(line: &str) -> Line<'_> {
    let Some((key, rest)) = key(line) else { return Line::Broken };
    let rest = rest.trim_start();
    match (rest.strip_prefix('='), rest.strip_prefix("+=")) {
        (Some(value), _) => Line::Entry(key, value.trim()),
        (None, Some(value)) => Line::Merge(key, value.trim()),
        (None, None) => Line::Broken,
    }
}

/// Returns the key at the start of a line, and the text after it. PgBouncer's documentation names double
/// quotes, its parser accepts single ones.
fn key(line: &str) -> Option<(String, &str)> {
    match line.chars().next()? {
        quote @ ('\'' | '"') => quoted_key(&line[1..], quote),
        _ => {
            let len = line
                .find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '*')))
                .unwrap_or(line.len());
            (len > 0).then(|| (line[..len].to_owned(), &line[len..]))
        }
    }
}

/// Returns a key up to its closing quote, in which two quotes mean one.
fn quoted_key(text: &str, quote: char) -> Option<(String, &str)> {
    let mut key = String::new();
    let mut rest = text;
    loop {
        let (part, after) = rest.split_once(quote)?;
        key.push_str(part);
        match after.strip_prefix(quote) {
            Some(more) => {
                key.push(quote);
                rest = more;
            }
            None => return (!key.is_empty()).then_some((key, after)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry_of(key: &str, value: &'static str) -> Line<'static> {
        Line::Entry(key.to_owned(), value)
    }

    #[test]
    fn lines_are_told_apart() {
        for (line, is) in [
            ("", Line::Nothing),
            ("   ", Line::Nothing),
            ("; a = b", Line::Nothing),
            ("  # a = b", Line::Nothing),
            ("[databases]", Line::Section("databases")),
            ("  [users]  ", Line::Section("users")),
            ("[ users ]", Line::Section(" users ")),
            ("[users] ; of them [many]", Line::Section("users")),
            ("[users]# all", Line::Section("users")),
            ("%include a b.ini ", Line::Include("a b.ini")),
            ("  %include\tx", Line::Include("x")),
            ("a=b", entry_of("a", "b")),
            (" a-1.b_c* =  b c ; d ", entry_of("a-1.b_c*", "b c ; d")),
            ("a==b", entry_of("a", "=b")),
            ("a=", entry_of("a", "")),
            ("'x y' = b", entry_of("x y", "b")),
            ("\"x \"\"y\"= b\r", entry_of("x \"y", "b")),
            ("'it''s'=1", entry_of("it's", "1")),
            ("* += a=b", Line::Merge("*".to_owned(), "a=b")),
            ("a+= ", Line::Merge("a".to_owned(), "")),
        ] {
            assert_eq!(parse_line(line), is, "{line:?}");
        }
    }

    #[test]
    fn broken_lines_are_broken() {
        for line in [
            "a",
            "a b = c",
            "[users",
            "[users] x",
            "[a]b]",
            "%include",
            "%includex a",
            "%foo a",
            "= b",
            "+= b",
            "a + = b",
            "'a = b",
            "'' = b",
            "\u{e9}=1",
            "a=\0",
        ] {
            assert_eq!(parse_line(line), Line::Broken, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_panic(line in "[\\[\\]%'\"a=; \u{e9}\u{0}]*|\\PC*") {
            let _ = parse_line(&line);
        }
    }
}
