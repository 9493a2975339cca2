//! The statements that begin and end a transaction block and do nothing else.
//!
//! The file recognizes the texts that every server answers with `BEGIN`, `COMMIT` or `ROLLBACK` and nothing
//! else (<https://www.postgresql.org/docs/current/sql-begin.html>). It must never accept a text that
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
    /// The command tag that PostgreSQL answers with, if the transaction's state allows the statement.
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

/// The isolation level of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isolation {
    /// READ COMMITTED, or READ UNCOMMITTED, which PostgreSQL treats the same.
    ReadCommitted,
    /// REPEATABLE READ.
    RepeatableRead,
    /// SERIALIZABLE.
    Serializable,
}

/// The modes that a BEGIN names. If it names a mode twice, the last one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransactionModes {
    /// The mode ISOLATION LEVEL; `None` if the statement does not name it.
    pub isolation: Option<Isolation>,
    /// `true` for READ ONLY, `false` for READ WRITE, `None` if the statement names neither.
    pub read_only: Option<bool>,
    /// Whether the statement names a mode of any kind.
    pub names_modes: bool,
}

/// The most words that a text of this kind can have.
const WORDS_MAX: usize = 24;

/// The length of the longest word that matters (UNCOMMITTED), and one byte more.
const WORD_BYTES_MAX: usize = 12;

/// The first words of these statements.
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

/// Returns the kind of `sql` if it is exactly one of these statements. Takes time linear in its length and
/// allocates nothing.
#[must_use]
pub fn block(sql: &[u8]) -> Option<Block> {
    usual(sql).or_else(|| if may_be_block(sql) { lexed_block(sql) } else { None })
}

/// Returns the statement if it is one of [`USUAL`]: comparing is cheaper than lexing.
fn usual(sql: &[u8]) -> Option<Block> {
    let text = sql.strip_suffix(b";").unwrap_or(sql);
    USUAL.iter().find(|(usual, _)| text.eq_ignore_ascii_case(usual)).map(|(_, block)| *block)
}

/// Returns whether [`block`] has to look at a text. Nearly all texts begin with another word, as their first
/// two letters tell.
#[must_use]
#[inline]
pub fn may_be_block(sql: &[u8]) -> bool {
    match sql.first_chunk::<2>().map(|letters| letters.map(|byte| byte.to_ascii_lowercase())) {
        Some([b'b', b'e'] | [b's', b't'] | [b'c' | b'r', b'o'] | [b'e', b'n'] | [b'a', b'b']) => true,
        Some([first, _]) => !first.is_ascii_alphabetic(),
        None => false,
    }
}

/// Returns the modes of `sql` if it is exactly one BEGIN or START TRANSACTION. Takes time linear in its
/// length and allocates nothing.
#[must_use]
pub fn begin_modes(sql: &[u8]) -> Option<TransactionModes> {
    if let Some(block) = usual(sql) {
        return (block == Block::Begin).then(TransactionModes::default);
    }
    match lexed(sql)? {
        (Block::Begin | Block::Start, modes) => Some(modes),
        _ => None,
    }
}

fn lexed_block(sql: &[u8]) -> Option<Block> {
    lexed(sql).map(|(block, _)| block)
}

fn lexed(sql: &[u8]) -> Option<(Block, TransactionModes)> {
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
            // Most texts are of another kind and are left after their first word.
            return None;
        }
        count += 1;
    }
    let mut rest = Words(words.get(..count)?);
    let none = TransactionModes::default();
    match rest.next()? {
        b"begin" => {
            rest.skip_noise();
            Some((Block::Begin, rest.modes()?))
        }
        b"start" if rest.next()? == b"transaction" => Some((Block::Start, rest.modes()?)),
        b"commit" | b"end" => rest.ends().then_some((Block::Commit, none)),
        b"rollback" | b"abort" => rest.ends().then_some((Block::Rollback, none)),
        _ => None,
    }
}

/// The words that have not been read yet.
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

    /// Skips WORK or TRANSACTION.
    fn skip_noise(&mut self) {
        if matches!(self.peek(), Some(b"work" | b"transaction")) {
            self.next();
        }
    }

    /// Returns whether only noise words and AND NO CHAIN are left.
    fn ends(&mut self) -> bool {
        self.skip_noise();
        self.takes(&[b"and", b"no", b"chain"]);
        self.0.is_empty()
    }

    fn isolation(&mut self) -> Option<Isolation> {
        let levels: [(&[&[u8]], Isolation); 4] = [
            (&[b"serializable"], Isolation::Serializable),
            (&[b"repeatable", b"read"], Isolation::RepeatableRead),
            (&[b"read", b"committed"], Isolation::ReadCommitted),
            (&[b"read", b"uncommitted"], Isolation::ReadCommitted),
        ];
        levels.into_iter().find(|(words, _)| self.takes(words)).map(|(_, level)| level)
    }

    /// Reads a list of transaction modes, with or without commas, which may be empty. `None` if other words
    /// are among them.
    fn modes(&mut self) -> Option<TransactionModes> {
        let mut modes = TransactionModes::default();
        if self.0.is_empty() {
            return Some(modes);
        }
        modes.names_modes = true;
        loop {
            if self.takes(&[b"isolation", b"level"]) {
                modes.isolation = Some(self.isolation()?);
            } else if self.takes(&[b"read", b"only"]) {
                modes.read_only = Some(true);
            } else if self.takes(&[b"read", b"write"]) {
                modes.read_only = Some(false);
            } else if !self.takes(&[b"deferrable"]) && !self.takes(&[b"not", b"deferrable"]) {
                return None;
            }
            if self.0.is_empty() {
                return Some(modes);
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
    fn the_last_mode_of_each_kind_counts() {
        let modes = |isolation, read_only| Some(TransactionModes { isolation, read_only, names_modes: true });
        for (sql, is) in [
            ("BEGIN", Some(TransactionModes::default())),
            ("start transaction;", Some(TransactionModes::default())),
            ("begin work not deferrable", modes(None, None)),
            ("begin read only", modes(None, Some(true))),
            ("start transaction read write, read only", modes(None, Some(true))),
            (
                "begin read only isolation level repeatable read",
                modes(Some(Isolation::RepeatableRead), Some(true)),
            ),
            ("begin isolation level serializable, deferrable", modes(Some(Isolation::Serializable), None)),
            (
                "begin isolation level read uncommitted read write",
                modes(Some(Isolation::ReadCommitted), Some(false)),
            ),
            ("begin read only; select 1", None),
            ("commit", None),
        ] {
            assert_eq!(begin_modes(sql.as_bytes()), is, "{sql}");
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
