//! The statements that begin and end a transaction block, where they say nothing else.
//!
//! What this file is for: to tell those texts that PostgreSQL answers with `BEGIN`, `COMMIT` or `ROLLBACK` and nothing else,
//! whatever the server (<https://www.postgresql.org/docs/current/sql-begin.html>). It must never say so of a text that
//! PostgreSQL could refuse, or that does more.

use crate::lexer::{Kind, Lexer};

/// A statement about a transaction block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block {
    /// BEGIN, with or without modes.
    Begin,
    /// START TRANSACTION, with or without modes.
    Start,
    /// COMMIT or END.
    Commit,
    /// ROLLBACK or ABORT.
    Rollback,
}

impl Block {
    /// The command tag that PostgreSQL answers with, where a transaction's state allows the statement.
    #[must_use]
    pub fn tag(self) -> &'static str {
        match self {
            Block::Begin => "BEGIN",
            Block::Start => "START TRANSACTION",
            Block::Commit => "COMMIT",
            Block::Rollback => "ROLLBACK",
        }
    }
}

/// Words that a text of this kind can have at most; more are no such text.
const WORDS_MAX: usize = 24;

/// The longest word that is looked at (UNCOMMITTED), and one letter more.
const WORD_BYTES_MAX: usize = 12;

/// What such a text begins with.
const BEGINNINGS: [[u8; WORD_BYTES_MAX]; 6] = [
    *b"begin\0\0\0\0\0\0\0",
    *b"start\0\0\0\0\0\0\0",
    *b"commit\0\0\0\0\0\0",
    *b"end\0\0\0\0\0\0\0\0\0",
    *b"rollback\0\0\0\0",
    *b"abort\0\0\0\0\0\0\0",
];

/// The texts that drivers send, without the semicolon that may follow.
const USUAL: [(&[u8], Block); 3] =
    [(b"BEGIN", Block::Begin), (b"COMMIT", Block::Commit), (b"ROLLBACK", Block::Rollback)];

/// What `sql` is, if it is exactly one of these statements. Takes time linear in its length and allocates nothing.
#[must_use]
pub fn block(sql: &[u8]) -> Option<Block> {
    let text = sql.strip_suffix(b";").unwrap_or(sql);
    if let Some((_, block)) = USUAL.iter().find(|(usual, _)| text.eq_ignore_ascii_case(usual)) {
        return Some(*block);
    }
    // Nearly all texts begin with another word, which needs no lexer.
    match sql.first_chunk::<2>()?.map(|byte| byte.to_ascii_lowercase()) {
        [b'b', b'e'] | [b's', b't'] | [b'c' | b'r', b'o'] | [b'e', b'n'] | [b'a', b'b'] => lexed_block(sql),
        [first, _] if first.is_ascii_alphabetic() => None,
        _ => lexed_block(sql),
    }
}

fn lexed_block(sql: &[u8]) -> Option<Block> {
    let mut words = [[0u8; WORD_BYTES_MAX]; WORDS_MAX];
    let mut count = 0;
    let mut ended = false;
    for lexeme in Lexer::new(sql) {
        let lexeme = lexeme.ok()?;
        if lexeme.kind == Kind::Symbol && lexeme.text == b";" && count > 0 {
            ended = true;
            continue;
        }
        let comma = lexeme.kind == Kind::Symbol && lexeme.text == b",";
        if ended || !(comma || lexeme.kind == Kind::Word) || lexeme.text.len() > WORD_BYTES_MAX {
            return None;
        }
        let word = words.get_mut(count)?;
        for (to, from) in word.iter_mut().zip(lexeme.text) {
            *to = from.to_ascii_lowercase();
        }
        if count == 0 && !BEGINNINGS.contains(word) {
            // Nearly all texts are of another kind: the rest need not be looked at.
            return None;
        }
        count += 1;
    }
    let mut rest = Words(words.get(..count)?);
    match rest.next()? {
        b"begin" => {
            rest.skip_noise();
            rest.modes().then_some(Block::Begin)
        }
        b"start" => (rest.next()? == b"transaction" && rest.modes()).then_some(Block::Start),
        b"commit" | b"end" => rest.ends().then_some(Block::Commit),
        b"rollback" | b"abort" => rest.ends().then_some(Block::Rollback),
        _ => None,
    }
}

/// What is left of the words.
struct Words<'a>(&'a [[u8; WORD_BYTES_MAX]]);

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a [u8]> {
        let word = self.0.first()?;
        let len = word.iter().position(|&byte| byte == 0).unwrap_or(word.len());
        word.get(..len)
    }

    fn next(&mut self) -> Option<&'a [u8]> {
        let word = self.peek()?;
        self.0 = self.0.get(1..)?;
        Some(word)
    }

    fn takes(&mut self, words: &[&[u8]]) -> bool {
        let before = self.0;
        let taken = words.iter().all(|word| self.next() == Some(*word));
        if !taken {
            self.0 = before;
        }
        taken
    }

    /// WORK or TRANSACTION.
    fn skip_noise(&mut self) {
        if matches!(self.peek(), Some(b"work" | b"transaction")) {
            self.next();
        }
    }

    /// Nothing but noise and AND NO CHAIN.
    fn ends(&mut self) -> bool {
        self.skip_noise();
        self.takes(&[b"and", b"no", b"chain"]);
        self.0.is_empty()
    }

    /// A list of transaction modes, with or without commas; or none at all.
    fn modes(&mut self) -> bool {
        if self.0.is_empty() {
            return true;
        }
        loop {
            let mode = self.takes(&[b"read", b"only"])
                || self.takes(&[b"read", b"write"])
                || self.takes(&[b"deferrable"])
                || self.takes(&[b"not", b"deferrable"])
                || self.takes(&[b"isolation", b"level", b"serializable"])
                || self.takes(&[b"isolation", b"level", b"repeatable", b"read"])
                || self.takes(&[b"isolation", b"level", b"read", b"committed"])
                || self.takes(&[b"isolation", b"level", b"read", b"uncommitted"]);
            if !mode {
                return false;
            }
            if self.0.is_empty() {
                return true;
            }
            self.takes(&[b","]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_begin_and_end() {
        for (sql, is) in [
            ("BEGIN", Block::Begin),
            (" begin work; ", Block::Begin),
            ("start transaction /* x */", Block::Start),
            ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY, NOT DEFERRABLE", Block::Begin),
            ("start transaction isolation level read uncommitted", Block::Start),
            ("COMMIT", Block::Commit),
            ("end transaction;", Block::Commit),
            ("commit and no chain", Block::Commit),
            ("rollback -- x", Block::Rollback),
            ("ABORT WORK", Block::Rollback),
        ] {
            assert_eq!(block(sql.as_bytes()), Some(is), "{sql}");
        }
    }

    #[test]
    fn nothing_else_is_one() {
        for sql in [
            "",
            ";",
            "select 1",
            "begin; begin",
            "begin; select 1",
            "begin atomic",
            "begin read",
            "begin read only,",
            "begin , read only",
            "begin isolation level chaos",
            "start",
            "start work",
            "commit prepared 'x'",
            "commit and chain",
            "rollback to savepoint a",
            "rollback to a",
            "\"begin\"",
            "begin 'x'",
            "begin /* open",
            "beginning",
        ] {
            assert_eq!(block(sql.as_bytes()), None, "{sql}");
        }
        assert_eq!(block("begin ".repeat(100).as_bytes()), None);
    }
}
