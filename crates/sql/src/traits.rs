//! Tells what can be known about a text from its lexemes.
//!
//! One pass over a text gives one answer, which is never wrongly "certain". Statement multiplexing asks
//! whether a text may share a server connection; session continuity asks for its marks (`marks.rs`). The file
//! must never try to be clever where it is not certain: each rule says why it holds.

use crate::fingerprint::Fingerprint;
use crate::lexer::{Kind, Lexer, Sink};
use crate::marks::{Marker, Marks};
use crate::scan::chunks;
use crate::scan::words::{self, Keyword, may_be_session_name, session_name};

#[cfg(test)]
mod tests;

/// The first keyword of a text, after opening parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// SELECT.
    Select,
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
    /// MERGE.
    Merge,
    /// WITH: a query or a change, with common table expressions.
    With,
    /// VALUES.
    Values,
    /// TABLE.
    Table,
    /// BEGIN or START.
    Begin,
    /// COMMIT or END (also of a prepared transaction).
    Commit,
    /// ROLLBACK or ABORT (also to a savepoint, or of a prepared transaction).
    Rollback,
    /// SAVEPOINT.
    Savepoint,
    /// SET.
    Set,
    /// RESET.
    Reset,
    /// SHOW.
    Show,
    /// DISCARD.
    Discard,
    /// DEALLOCATE.
    Deallocate,
    /// PREPARE (also of a transaction).
    Prepare,
    /// EXECUTE.
    Execute,
    /// LISTEN.
    Listen,
    /// UNLISTEN.
    Unlisten,
    /// NOTIFY.
    Notify,
    /// COPY.
    Copy,
    /// Another word.
    Other,
    /// No statement: only blanks, comments and semicolons.
    Empty,
    /// The verb cannot be told: the text begins with something other than a word, or the lexer gave up before
    /// it.
    Unknown,
}

/// The number of statements in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statements {
    /// Certainly none: PostgreSQL answers with `EmptyQueryResponse`.
    None,
    /// Certainly one; semicolons and comments around it do not count.
    One,
    /// More than one, if PostgreSQL can parse them.
    Many,
    /// The number cannot be told: the lexer gave up, or a semicolon may be part of a statement.
    Unknown,
}

/// The result of [`traits`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// The first keyword of the first statement. It is known even if the lexer gave up further on.
    pub verb: Verb,
    /// The number of statements.
    pub statements: Statements,
    /// `true` if the text is certainly exactly one statement (SELECT, VALUES, TABLE, INSERT, UPDATE, DELETE,
    /// MERGE, or WITH and one of these) that opens or ends no transaction, is no COPY, and names nothing that
    /// reads or changes the state of a session: settings, temporary relations, advisory locks, sequences,
    /// listening, prepared statements, cursors, seeds, loaded libraries. If PostgreSQL cannot parse it, it
    /// fails as a whole, which is as good.
    ///
    /// `false` means "don't know". `true` says nothing about what a user's own function or rule does inside;
    /// and an INSERT may draw from a sequence through a column's default, so code that follows `currval` must
    /// look at the verb too.
    pub certainly_self_contained: bool,
    /// The changes that the text may make to its session; see [`Marks`].
    pub marks: Marks,
    /// The text without its literals, parameters, comments and blanks, as a number that is the same in every
    /// process (see `fingerprint.rs`); never 0. If the lexer gave up, the number covers the text before that.
    /// Texts with the same number are mostly, not certainly, alike, so it is for estimates and statistics
    /// only.
    pub fingerprint: u64,
}

/// Reads `sql`, the text of a `Query` or `Parse` in the client's encoding, without its NUL. Takes time linear
/// in its length and allocates nothing; the caller bounds the length.
#[must_use]
pub fn traits(sql: &[u8]) -> Traits {
    let mut scan = Scan::new();
    let mut lexer = Lexer::new(sql);
    loop {
        match lexer.step(&mut scan) {
            Ok(true) => {}
            Ok(false) => return scan.finish(),
            // The lexemes before this place were certain.
            Err(_) => return scan.give_up(lexer.rest()),
        }
    }
}

/// One pass over a text.
struct Scan {
    verb: Option<Verb>,
    /// The number of statements that have begun.
    begun: usize,
    at: Position,
    /// The number of open parentheses and brackets.
    depth: usize,
    /// `true` after a semicolon that may be inside a statement.
    split_in_doubt: bool,
    /// `true` after a lexeme that is not certainly harmless.
    marked: bool,
    /// The previous lexeme, if it was a keyword.
    before: Option<Keyword>,
    marker: Marker,
    fingerprint: Fingerprint,
}

/// The place of the scan in a statement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    /// Before the first lexeme.
    Before,
    /// After nothing but opening parentheses.
    Parentheses,
    /// After the first word.
    Inside,
}

impl Sink<'_> for Scan {
    #[inline(always)]
    fn word(&mut self, head: u64, text: &[u8]) {
        self.fingerprint.word(head, text);
        let keyword = words::keyword(head, text);
        let before = std::mem::replace(&mut self.before, keyword);
        // Most words are names of tables and columns, which this branch skips.
        if keyword.is_some() || self.at != Position::Inside || self.marker.waits() {
            self.word_that_counts(keyword, before, text);
        }
        if may_be_session_name(head) {
            self.name(text, true);
        }
    }

    fn quoted_word(&mut self, kind: Kind, text: &[u8]) {
        self.before = None;
        self.fingerprint.quoted_word(text);
        self.no_word();
        if kind == Kind::UnicodeWord {
            // The name is written in code points, which no client does without a reason.
            self.marker.unreadable_name();
            self.marked = true;
            return;
        }
        self.marker.other();
        if may_be_session_name(chunks::fold(chunks::load(text, 0))) {
            self.name(text, false);
        }
    }

    #[inline(always)]
    fn literal(&mut self, _kind: Kind, _text: &[u8]) {
        self.before = None;
        self.fingerprint.literal();
        self.no_word();
    }

    #[inline(always)]
    fn operator(&mut self, text: &[u8]) {
        self.before = None;
        self.fingerprint.operator(text);
        self.no_word();
    }

    #[inline(always)]
    fn symbol(&mut self, byte: u8, _text: &[u8]) {
        self.before = None;
        match byte {
            b';' => {
                self.fingerprint.semicolon();
                self.marker.semicolon();
                // In CREATE RULE ... DO (...; ...) the semicolon belongs to the statement.
                self.split_in_doubt |= self.depth > 0;
                self.at = Position::Before;
                return;
            }
            b'(' => {
                self.depth += 1;
                if self.at == Position::Before {
                    self.begin();
                }
            }
            b'[' => {
                self.depth += 1;
                self.no_word();
            }
            b')' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                self.no_word();
            }
            _ => self.no_word(),
        }
        self.fingerprint.symbol(byte);
    }
}

impl Scan {
    fn new() -> Self {
        Self {
            verb: None,
            begun: 0,
            at: Position::Before,
            depth: 0,
            split_in_doubt: false,
            marked: false,
            before: None,
            marker: Marker::default(),
            fingerprint: Fingerprint::new(),
        }
    }

    /// Begins a statement with the next lexeme.
    fn begin(&mut self) {
        self.begun += 1;
        self.at = Position::Parentheses;
    }

    /// Notes a lexeme that cannot be the first word of a statement.
    #[inline]
    fn no_word(&mut self) {
        if self.at != Position::Inside {
            if self.at == Position::Before {
                self.begin();
            }
            self.start(Verb::Unknown);
        }
    }

    fn name(&mut self, name: &[u8], folds: bool) {
        if let Some(marks) = session_name(name, folds) {
            self.marked = true;
            self.marker.name(marks);
        }
    }

    /// Notes a word that decides something; `before` is the keyword before it.
    fn word_that_counts(&mut self, word: Option<Keyword>, before: Option<Keyword>, text: &[u8]) {
        if self.at == Position::Before {
            self.begin();
        }
        if self.at == Position::Parentheses {
            self.marker.first_word(word);
            // The body of CREATE FUNCTION ... BEGIN ATOMIC ...; END has semicolons inside of the statement.
            self.split_in_doubt |= word == Some(Keyword::Create);
            self.start(verb_of(word));
            return;
        }
        self.marker.word(word, before, text);
        self.marked |= match word {
            // In statements that can be certain, these words are columns at best.
            Some(
                Keyword::Begin
                | Keyword::Call
                | Keyword::Copy
                | Keyword::Deallocate
                | Keyword::Declare
                | Keyword::Discard
                | Keyword::Execute
                | Keyword::Listen
                | Keyword::Load
                | Keyword::Prepare
                | Keyword::Reset
                | Keyword::Unlisten,
            ) => true,
            Some(Keyword::Transaction) => before == Some(Keyword::Start),
            // UPDATE ... SET, ON CONFLICT DO UPDATE SET, MERGE ... UPDATE SET.
            Some(Keyword::Set) => {
                !matches!(self.verb, Some(Verb::Update | Verb::Insert | Verb::Merge | Verb::With))
            }
            // ON CONFLICT DO, MERGE ... DO NOTHING.
            Some(Keyword::Do) => !matches!(self.verb, Some(Verb::Insert | Verb::Merge | Verb::With)),
            // SELECT ... INTO makes a table. INSERT and MERGE may be names of columns, hence the next rule.
            Some(Keyword::Into) => !matches!(before, Some(Keyword::Insert | Keyword::Merge)),
            Some(Keyword::Temp | Keyword::Local | Keyword::Global) => before == Some(Keyword::Into),
            _ => false,
        };
    }

    fn start(&mut self, verb: Verb) {
        self.at = Position::Inside;
        self.verb.get_or_insert(verb);
    }

    /// Returns the answer if the lexer cannot go on at `rest`.
    fn give_up(&mut self, rest: &[u8]) -> Traits {
        let changes_rows = matches!(self.verb, Some(Verb::Update | Verb::Insert | Verb::Merge | Verb::With));
        self.marker.raw(rest, changes_rows);
        Traits {
            verb: self.verb.unwrap_or(Verb::Unknown),
            statements: Statements::Unknown,
            certainly_self_contained: false,
            marks: self.marker.marks(),
            fingerprint: self.fingerprint.cut_short(),
        }
    }

    #[inline(always)]
    fn finish(&mut self) -> Traits {
        let statements = match self.begun {
            0 => Statements::None,
            1 if self.depth == 0 => Statements::One,
            // An unclosed parenthesis may hide a semicolon, and PostgreSQL would refuse the text.
            _ if self.depth > 0 || self.split_in_doubt => Statements::Unknown,
            _ => Statements::Many,
        };
        let verb = match self.verb {
            None if self.begun == 0 => Verb::Empty,
            verb => verb.unwrap_or(Verb::Unknown),
        };
        let certainly_self_contained =
            statements == Statements::One && !self.marked && !self.split_in_doubt && is_plain(verb);
        let marks = self.marker.marks();
        Traits { verb, statements, certainly_self_contained, marks, fingerprint: self.fingerprint.finish() }
    }
}

/// Returns whether a statement with this verb can be certain. The grammar lets none of these hold a command
/// of another kind, and a WITH is followed by nothing but one of the others.
fn is_plain(verb: Verb) -> bool {
    matches!(
        verb,
        Verb::Select
            | Verb::Insert
            | Verb::Update
            | Verb::Delete
            | Verb::Merge
            | Verb::With
            | Verb::Values
            | Verb::Table
    )
}

fn verb_of(word: Option<Keyword>) -> Verb {
    match word {
        Some(Keyword::Select) => Verb::Select,
        Some(Keyword::Insert) => Verb::Insert,
        Some(Keyword::Update) => Verb::Update,
        Some(Keyword::Delete) => Verb::Delete,
        Some(Keyword::Merge) => Verb::Merge,
        Some(Keyword::With) => Verb::With,
        Some(Keyword::Values) => Verb::Values,
        Some(Keyword::Table) => Verb::Table,
        Some(Keyword::Begin | Keyword::Start) => Verb::Begin,
        Some(Keyword::Commit | Keyword::End) => Verb::Commit,
        Some(Keyword::Rollback | Keyword::Abort) => Verb::Rollback,
        Some(Keyword::Savepoint) => Verb::Savepoint,
        Some(Keyword::Set) => Verb::Set,
        Some(Keyword::Reset) => Verb::Reset,
        Some(Keyword::Show) => Verb::Show,
        Some(Keyword::Discard) => Verb::Discard,
        Some(Keyword::Deallocate) => Verb::Deallocate,
        Some(Keyword::Prepare) => Verb::Prepare,
        Some(Keyword::Execute) => Verb::Execute,
        Some(Keyword::Listen) => Verb::Listen,
        Some(Keyword::Unlisten) => Verb::Unlisten,
        Some(Keyword::Notify) => Verb::Notify,
        Some(Keyword::Copy) => Verb::Copy,
        Some(
            Keyword::Alter
            | Keyword::Call
            | Keyword::Close
            | Keyword::Constraints
            | Keyword::Create
            | Keyword::Declare
            | Keyword::Default
            | Keyword::Do
            | Keyword::Drop
            | Keyword::Global
            | Keyword::Hold
            | Keyword::Into
            | Keyword::Load
            | Keyword::Local
            | Keyword::Replace
            | Keyword::Temp
            | Keyword::Transaction,
        )
        | None => Verb::Other,
    }
}
