//! The syntax of keepalived's file: lines of words, some of which open a block in braces.

/// A line, with the block that it opens, if there is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Statement {
    pub(super) words: Vec<String>,
    pub(super) inner: Vec<Statement>,
}

/// A file whose braces or quotation marks do not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// The line, from 1.
    pub line: usize,
    /// The fault, as a part of a sentence.
    pub what: &'static str,
}

impl std::fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for SyntaxError {}

impl Statement {
    pub(super) fn keyword(&self) -> &str {
        self.words.first().map_or("", String::as_str)
    }

    pub(super) fn argument(&self) -> Option<&str> {
        self.words.get(1).map(String::as_str)
    }

    /// Returns the last statement with this keyword in the block, because keepalived lets a later one replace
    /// an earlier one.
    pub(super) fn get(&self, keyword: &str) -> Option<&Statement> {
        self.inner.iter().rev().find(|statement| statement.keyword() == keyword)
    }

    pub(super) fn value(&self, keyword: &str) -> Option<&str> {
        self.get(keyword)?.argument()
    }

    pub(super) fn has(&self, keyword: &str) -> bool {
        self.get(keyword).is_some()
    }
}

/// Reads a file.
pub(super) fn parse(text: &str) -> Result<Vec<Statement>, SyntaxError> {
    // The blocks that are open, the innermost last; the first is the file.
    let mut open = vec![Statement::default()];
    for (line, number) in text.lines().zip(1..) {
        let wrong = |what| SyntaxError { line: number, what };
        let mut words: Vec<String> = Vec::new();
        for token in tokens(line).ok_or_else(|| wrong("a quotation mark is missing"))? {
            match token {
                Token::Word(word) => words.push(word),
                Token::Open => {
                    if words.is_empty() {
                        // The brace stands on a line by itself, after the line that it belongs to.
                        let block = open.last_mut().and_then(|block| block.inner.pop());
                        open.push(block.ok_or_else(|| wrong("a block without a name"))?);
                    } else {
                        open.push(Statement { words: std::mem::take(&mut words), inner: Vec::new() });
                    }
                }
                Token::Close => {
                    end(&mut open, std::mem::take(&mut words));
                    let closed = open.pop().filter(|_| !open.is_empty());
                    let closed = closed.ok_or_else(|| wrong("a closing brace too many"))?;
                    open.last_mut().expect("the file is open").inner.push(closed);
                }
            }
        }
        end(&mut open, words);
    }
    match open.len() {
        1 => Ok(open.remove(0).inner),
        _ => Err(SyntaxError { line: text.lines().count(), what: "a closing brace is missing" }),
    }
}

fn end(open: &mut [Statement], words: Vec<String>) {
    if let Some(block) = open.last_mut().filter(|_| !words.is_empty()) {
        block.inner.push(Statement { words, inner: Vec::new() });
    }
}

enum Token {
    Word(String),
    Open,
    Close,
}

/// Returns the tokens of a line without its comment; `None` if a quotation mark is not closed.
fn tokens(line: &str) -> Option<Vec<Token>> {
    let mut found = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let used = match first {
            '#' | '!' => break,
            '{' | '}' => {
                found.push(if first == '{' { Token::Open } else { Token::Close });
                1
            }
            '"' => {
                let length = rest[1..].find('"')?;
                found.push(Token::Word(rest[1..=length].to_owned()));
                length + 2
            }
            _ => {
                let length =
                    rest.find(|c: char| c.is_whitespace() || "{}\"".contains(c)).unwrap_or(rest.len());
                found.push(Token::Word(rest[..length].to_owned()));
                length
            }
        };
        rest = rest[used..].trim_start();
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_however_they_are_written() {
        let text = "! a remark\nvrrp_script a { # another\n  script \"/bin/x  -y #z\"\n}\nvrrp_instance b\n{\n  unicast_peer { 10.0.0.2 }\n  nopreempt\n}\n";
        let file = parse(text).expect("good");
        assert_eq!(file.iter().map(Statement::keyword).collect::<Vec<_>>(), ["vrrp_script", "vrrp_instance"]);
        assert_eq!(file[0].value("script"), Some("/bin/x  -y #z"));
        assert!(file[1].has("nopreempt") && file[1].argument() == Some("b"));
        assert_eq!(file[1].get("unicast_peer").map(|peers| peers.inner[0].keyword()), Some("10.0.0.2"));
    }

    #[test]
    fn what_does_not_match_is_refused() {
        for (text, line) in [("a {\nb", 2), ("a {\n}\n}\n", 3), ("a \"b\n", 1), ("{\n}", 1), ("}", 1)] {
            assert_eq!(parse(text).map_err(|error| error.line), Err(line), "{text}");
        }
        assert_eq!(parse(""), Ok(Vec::new()));
    }
}
