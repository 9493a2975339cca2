//! The form of odyssey.conf: `key value`, and `key "name" { ... }`, with `#` comments and double quotes.

use crate::limits::{DEPTH_MAX, NODES_MAX};
use crate::tree::{Broken, Node, Table, Value};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Word {
    /// A word without quotes.
    Bare(String),
    Quoted(String),
    Open,
    Close,
}

/// Reads the text of one file.
pub(super) fn parse(text: &str) -> Result<Table, Broken> {
    let words = words(text)?;
    if words.len() > NODES_MAX {
        return Err((0, "it has too many values".to_owned()));
    }
    let mut parser = Parser { words: &words, at: 0 };
    let table = parser.table(0)?;
    match parser.next() {
        None => Ok(table),
        Some((line, _)) => Err((*line, "there is a } without its {".to_owned())),
    }
}

/// Returns whether a word without quotes ends before this letter.
fn ends(letter: &char) -> bool {
    letter.is_whitespace() || "{}\"#;".contains(*letter)
}

/// Returns the words with their lines.
fn words(text: &str) -> Result<Vec<(u32, Word)>, Broken> {
    let mut words = Vec::new();
    let mut line = 1;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' => line += 1,
            '#' => while letters.next_if(|letter| *letter != '\n').is_some() {},
            '{' => words.push((line, Word::Open)),
            '}' => words.push((line, Word::Close)),
            '"' => {
                let begin = line;
                let mut word = String::new();
                loop {
                    match letters.next().ok_or((begin, "a quote is not closed".to_owned()))? {
                        '"' => break,
                        '\\' => match letters.next() {
                            Some('n') => word.push('\n'),
                            Some('t') => word.push('\t'),
                            Some(letter @ ('"' | '\\')) => word.push(letter),
                            Some(letter) => word.extend(['\\', letter]),
                            None => return Err((begin, "a quote is not closed".to_owned())),
                        },
                        letter => {
                            line += u32::from(letter == '\n');
                            word.push(letter);
                        }
                    }
                }
                // Otherwise an earlier quote is missing, and text that looks like a key from here on may be a
                // password.
                if letters.peek().is_some_and(|letter| !ends(letter) || *letter == '"') {
                    return Err((line, "a quote ends before a word".to_owned()));
                }
                words.push((begin, Word::Quoted(word)));
            }
            letter if letter.is_whitespace() || letter == ';' => {}
            letter => {
                let mut word = String::from(letter);
                while let Some(letter) = letters.next_if(|letter| !ends(letter)) {
                    word.push(letter);
                }
                if letters.peek() == Some(&'"') {
                    return Err((line, "a quote begins within a word".to_owned()));
                }
                words.push((line, Word::Bare(word)));
            }
        }
    }
    Ok(words)
}

struct Parser<'a> {
    words: &'a [(u32, Word)],
    at: usize,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a (u32, Word)> {
        let word = self.words.get(self.at);
        self.at += usize::from(word.is_some());
        word
    }

    /// Reads statements up to the closing brace, or the end.
    fn table(&mut self, depth: usize) -> Result<Table, Broken> {
        let mut table = Table::default();
        loop {
            match self.words.get(self.at) {
                None | Some((_, Word::Close)) => return Ok(table),
                Some((line, Word::Bare(key))) => {
                    self.at += 1;
                    let value = self.value(*line, depth)?;
                    table.0.push((key.clone(), Node { line: *line, value }));
                }
                Some((line, _)) => return Err((*line, "a key was expected".to_owned())),
            }
        }
    }

    /// Reads the words after a key, and its block if there is one. A word without quotes in another line, or
    /// after a value, is the next key.
    fn value(&mut self, line: u32, depth: usize) -> Result<Value, Broken> {
        let mut values = Vec::new();
        loop {
            match self.words.get(self.at) {
                Some((own, Word::Quoted(text))) if *own == line => values.push(text.clone()),
                Some((own, Word::Bare(text))) if *own == line && values.is_empty() => {
                    values.push(text.clone());
                }
                Some((_, Word::Open)) => {
                    if depth >= DEPTH_MAX {
                        return Err((line, "it is nested too deep".to_owned()));
                    }
                    self.at += 1;
                    let table = self.table(depth + 1)?;
                    return match self.next() {
                        Some((_, Word::Close)) => Ok(Value::Block(values, table)),
                        _ => Err((line, "its } is missing".to_owned())),
                    };
                }
                _ => break,
            }
            self.at += 1;
        }
        match values.len() {
            0 => Err((line, "a key has no value".to_owned())),
            1 => Ok(Value::Text(values.remove(0))),
            _ => Ok(Value::List(
                values.into_iter().map(|text| Node { line, value: Value::Text(text) }).collect(),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_comments_and_quotes() {
        let text = "daemonize no # a comment\nlog_format \"%p \\\"x\\\"\\n\"\n\ndatabase \"a b\"\n{\n user default {\n  pool \"session\" pool_size 5\n }\n}\n";
        let table = parse(text).unwrap();
        assert_eq!((table.text("daemonize"), table.text("log_format")), (Some("no"), Some("%p \"x\"\n")));
        let (line, words, database) = table.blocks("database").next().unwrap();
        assert_eq!((line, words), (4, &["a b".to_owned()][..]));
        let (_, words, user) = database.blocks("user").next().unwrap();
        assert_eq!(
            (words, user.text("pool"), user.text("pool_size")),
            (&["default".to_owned()][..], Some("session"), Some("5"))
        );
    }

    #[test]
    fn broken_texts() {
        for (text, line) in
            [("a", 1), ("a 1\nb \"x", 2), ("a {\n", 1), ("}\n", 1), ("\"a\" 1", 1), ("a 1\n{ }", 0)]
        {
            match parse(text) {
                Err((at, _)) => assert_eq!(at, line, "{text:?}"),
                Ok(_) => assert_eq!(line, 0, "{text:?}"),
            }
        }
        assert!(parse(&"a {".repeat(10_000)).is_err());
    }
}
