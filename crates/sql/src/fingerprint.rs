//! A number for a text without its literals.
//!
//! Texts that differ only in literals, parameters, case, blanks and comments get the same fingerprint, in
//! every process and version of this crate. It is for estimates and statistics: two different texts may share
//! one (by chance, or by the rules below), so nothing that must be right may be decided by it.
//!
//! Constants and parameters count as the same, a list of them in parentheses counts as one (`IN (1, 2, 3)` is
//! `IN (1)`), and so does a sign before a number if no operand precedes it.

use crate::scan::chunks::{self, CHUNK};

/// 2^64 divided by the golden ratio: an odd number with its bits well spread.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The initial value of a fingerprint.
const START: u64 = 0x243f_6a88_85a3_08d3;

/// The value that replaces any literal or parameter.
const LITERAL: u64 = 1;

/// The value that replaces a rest that could not be lexed.
const CUT: u64 = 2;

/// A fingerprint that is being computed.
pub(crate) struct Fingerprint {
    hash: u64,
    before: Before,
    /// The number of open parentheses.
    depth: usize,
    /// `true` after a `;`, which counts only if something follows.
    split: bool,
}

/// The previous lexeme, if the reading of the next one depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nothing, or an operator or symbol: a sign that follows belongs to its number. (After a word it may be
    /// an operator.)
    NoOperand,
    /// Any other lexeme.
    Other,
    /// A literal inside parentheses.
    Literal,
    /// A literal inside parentheses and a comma: the next lexeme decides whether the list goes on.
    LiteralComma,
    /// A sign that may belong to a number; its byte.
    Sign(u8),
    /// A sign that may belong to a number, in a list that may go on; its byte.
    LiteralCommaSign(u8),
}

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Self { hash: START, before: Before::NoOperand, depth: 0, split: false }
    }

    #[inline]
    fn mix(&mut self, value: u64) {
        let mixed = (self.hash ^ value).wrapping_mul(SPREAD);
        self.hash = mixed ^ (mixed >> 29);
    }

    /// Takes a `;`.
    #[inline]
    pub(crate) fn semicolon(&mut self) {
        self.settle();
        self.split = self.hash != START;
        self.before = Before::NoOperand;
    }

    /// Takes a word; `head` is its beginning as the lexer gives it.
    #[inline]
    pub(crate) fn word(&mut self, head: u64, text: &[u8]) {
        self.begin();
        self.settle();
        // Folding turns the zeros after a short word into blanks.
        self.mix(chunks::fold(head));
        let mut at = CHUNK;
        while at <= text.len() {
            self.mix(chunks::fold(chunks::load(text, at)));
            at += CHUNK;
        }
        self.before = Before::Other;
    }

    /// Takes a name in double quotes.
    pub(crate) fn quoted_word(&mut self, text: &[u8]) {
        self.begin();
        self.settle();
        self.bytes(text);
        self.before = Before::Other;
    }

    /// Counts a `;` that was put off, because a lexeme follows it.
    #[inline]
    fn begin(&mut self) {
        if self.split {
            self.split = false;
            self.mix(u64::from(b';'));
        }
    }

    /// Takes a constant or a parameter.
    #[inline]
    pub(crate) fn literal(&mut self) {
        self.begin();
        match self.before {
            // The literal continues a list that has been counted.
            Before::LiteralComma | Before::LiteralCommaSign(_) => {}
            _ => self.mix(LITERAL),
        }
        self.before = if self.depth > 0 { Before::Literal } else { Before::Other };
    }

    /// Takes a symbol other than `;`.
    #[inline]
    pub(crate) fn symbol(&mut self, byte: u8) {
        self.begin();
        if byte == b',' && self.before == Before::Literal {
            self.before = Before::LiteralComma;
            return;
        }
        self.settle();
        match byte {
            b'(' => self.depth += 1,
            b')' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.mix(u64::from(byte));
        self.before = if matches!(byte, b')' | b']') { Before::Other } else { Before::NoOperand };
    }

    /// Takes an operator.
    #[inline]
    pub(crate) fn operator(&mut self, text: &[u8]) {
        self.begin();
        // `a =-1` is cut as PostgreSQL cuts it only when it is parsed; here the sign is still at the operator's end.
        let (operator, sign) = match text {
            [operator @ .., sign @ (b'-' | b'+')] => (operator, Some(*sign)),
            _ => (text, None),
        };
        self.before = match (self.before, sign) {
            (Before::LiteralComma, Some(sign)) if operator.is_empty() => Before::LiteralCommaSign(sign),
            (Before::NoOperand, Some(sign)) if operator.is_empty() => Before::Sign(sign),
            (_, Some(sign)) if !operator.is_empty() => {
                self.settle();
                self.bytes(operator);
                Before::Sign(sign)
            }
            _ => {
                self.settle();
                self.bytes(text);
                Before::NoOperand
            }
        };
    }

    /// Counts the lexemes that were put off: they are not part of a literal.
    #[inline]
    fn settle(&mut self) {
        match self.before {
            Before::LiteralComma => self.mix(u64::from(b',')),
            Before::Sign(sign) => self.mix(u64::from(sign)),
            Before::LiteralCommaSign(sign) => {
                self.mix(u64::from(b','));
                self.mix(u64::from(sign));
            }
            Before::NoOperand | Before::Other | Before::Literal => {}
        }
    }

    /// Counts the bytes of a text, eight at a time, padded with blanks; a full last chunk is followed by one
    /// more, of blanks.
    #[inline]
    fn bytes(&mut self, text: &[u8]) {
        let mut at = 0;
        while at <= text.len() {
            self.mix(chunks::padded(chunks::load(text, at), text.len() - at));
            at += CHUNK;
        }
    }

    /// Returns the fingerprint of a text whose rest could not be lexed.
    pub(crate) fn cut_short(&mut self) -> u64 {
        self.settle();
        self.before = Before::Other;
        self.mix(CUT);
        self.finish()
    }

    /// Returns the fingerprint, which is never 0.
    #[inline(always)]
    pub(crate) fn finish(&mut self) -> u64 {
        self.settle();
        let mixed = (self.hash ^ (self.hash >> 32)).wrapping_mul(SPREAD);
        (mixed ^ (mixed >> 32)).max(1)
    }
}

#[cfg(test)]
mod tests {
    use crate::traits;

    fn fingerprint(sql: &str) -> u64 {
        traits(sql.as_bytes()).fingerprint
    }

    #[test]
    fn literals_blanks_case_and_comments_make_no_difference() {
        for (one, other) in [
            ("select * from t where id = 7", "SELECT *\n FROM T where /* x */ ID = $1;"),
            ("select 'a'", "select E'b\\n'"),
            ("select * from t where id in (1)", "select * from t where id in (1, 2, 'x', $4)"),
            ("update a set b = b + 12 where c = 3", "UPDATE a SET b = b + -12 WHERE c =-3"),
            ("insert into t values (1, -2)", "insert into t values ($1)"),
            ("select 1 where a < 3", "select 1 where a < +3"),
            (";; select 1 ;", "select 2"),
            ("select $$x$$, größe from t", "select 1, größe from t -- end"),
        ] {
            assert_eq!(fingerprint(one), fingerprint(other), "{one} | {other}");
        }
    }

    #[test]
    fn anything_else_does() {
        let texts = [
            "",
            "select 1",
            "select 1, 2",
            "select a",
            "select b",
            "select a, b",
            "select a b",
            "select ab",
            "select a - 1",
            "select a + 1",
            "select a -b",
            "select (1, a)",
            "select (1, -a)",
            "select (1 - a)",
            "select \"A\"",
            "select a from t",
            "select a from t where c = 1",
            "select a from t where c <= 1",
            "select a from t where c =- d",
            "select a from t where c = d",
            "select a; select b",
            "select a select b",
            "select abcdefgh",
            "select abcdefg h",
            "insert into t (a) values (1)",
            "insert into t (a, b) values (1, 2)",
        ];
        for (at, one) in texts.iter().enumerate() {
            for other in &texts[at + 1..] {
                assert_ne!(fingerprint(one), fingerprint(other), "{one} | {other}");
            }
        }
    }

    #[test]
    fn it_is_the_same_in_every_process() {
        assert_eq!(fingerprint("select 1"), 0x2692_8135_9fb2_4ffa);
    }

    #[test]
    fn a_text_that_cannot_be_lexed_to_its_end_has_one_of_its_own_kind() {
        let (cut, whole) =
            (fingerprint("select a from t where b = 'x"), fingerprint("select a from t where b ="));
        assert_ne!(cut, whole);
        assert_eq!(cut, fingerprint("select a from t where b = 'another one"));
    }
}
