//! Marks the changes that a text may make to the session that it runs in, as far as its words tell.
//!
//! Every text that *may* touch a session's state must be marked, so that the session is asked for its state
//! when the transaction is over. A superfluous mark costs that question; a missing mark would be a leak. The
//! effects of a user's own routine cannot be seen here. A mark never says what a session holds: only the
//! session knows.

use crate::scan::words::{self, Keyword, may_be_session_name, session_name};

/// A set of marks.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks(u32);

impl Marks {
    /// No mark: an ordinary statement.
    pub const NONE: Marks = Marks(0);
    /// SET and RESET, also of the role and the session's user; [`crate::assignments()`] can name the
    /// settings. SET LOCAL, SET TRANSACTION and SET CONSTRAINTS do not count: they end with their
    /// transaction.
    pub const SETTINGS: Marks = Marks(1);
    /// Settings return to the values that the session started with: RESET, DISCARD, SET ... TO DEFAULT (also
    /// with LOCAL).
    pub const RESETS: Marks = Marks(1 << 1);
    /// Statements prepared by SQL: PREPARE, EXECUTE, DEALLOCATE.
    pub const PREPARED: Marks = Marks(1 << 2);
    /// LISTEN and UNLISTEN.
    pub const LISTENS: Marks = Marks(1 << 3);
    /// DECLARE ... WITH HOLD.
    pub const CURSORS: Marks = Marks(1 << 4);
    /// CREATE TEMP, INTO TEMP, and names in `pg_temp`.
    pub const TEMPORARY: Marks = Marks(1 << 5);
    /// Advisory locks that a session holds.
    pub const LOCKS: Marks = Marks(1 << 6);
    /// LOAD.
    pub const LIBRARY: Marks = Marks(1 << 7);
    /// `setseed`, SET SEED.
    pub const SEED: Marks = Marks(1 << 8);
    /// `currval` and `lastval`, which ask for a value that an earlier statement of the session drew.
    pub const ASKS_SEQUENCE: Marks = Marks(1 << 9);
    /// `nextval` and `setval`, which draw or set a value of a sequence.
    pub const DRAWS_SEQUENCE: Marks = Marks(1 << 10);
    /// Code that cannot be seen here: DO, CALL, EXECUTE, SQL in strings.
    pub const ROUTINES: Marks = Marks(1 << 11);
    /// Statements that change nothing by themselves but may end something that a session holds: CLOSE, DROP,
    /// `pg_advisory_unlock`.
    pub const ENDS: Marks = Marks(1 << 12);
    /// Settings changed other than by SET: `set_config`, UPDATE of `pg_settings`.
    pub const CALLS_SETTINGS: Marks = Marks(1 << 14);
    /// A reading of `pg_prepared_statements`, which shows prepared statements.
    pub const SHOWS_PREPARED: Marks = Marks(1 << 15);
    /// DISCARD of any kind.
    pub const DISCARDS: Marks = Marks(1 << 13);
    /// PostgreSQL may read other texts differently until the transaction ends: after SET LOCAL of a setting
    /// that texts are read under ([`keeps_parse_context`]), and after statements that create or change
    /// objects (ALTER, CREATE, DROP, SELECT ... INTO, DO, CALL).
    pub const READS_LOCALLY: Marks = Marks(1 << 16);

    /// Returns whether all of `other` are in this set.
    #[must_use]
    pub const fn contains(self, other: Marks) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether any of `other` is in this set.
    #[must_use]
    pub const fn intersects(self, other: Marks) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns whether the set has no marks.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Marks) -> Marks {
        Marks(self.0 | other.0)
    }

    /// Returns this set without the marks in `other`.
    #[must_use]
    pub const fn without(self, other: Marks) -> Marks {
        Marks(self.0 & !other.0)
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub const fn only(self, other: Marks) -> Marks {
        Marks(self.0 & other.0)
    }

    /// Adds the marks in `other`.
    pub const fn add(&mut self, other: Marks) {
        self.0 |= other.0;
    }
}

impl std::fmt::Debug for Marks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const NAMES: [&str; 17] = [
            "SETTINGS",
            "RESETS",
            "PREPARED",
            "LISTENS",
            "CURSORS",
            "TEMPORARY",
            "LOCKS",
            "LIBRARY",
            "SEED",
            "ASKS_SEQUENCE",
            "DRAWS_SEQUENCE",
            "ROUTINES",
            "ENDS",
            "DISCARDS",
            "CALLS_SETTINGS",
            "SHOWS_PREPARED",
            "READS_LOCALLY",
        ];
        let set = NAMES.iter().enumerate().filter(|&(bit, _)| self.0 & (1 << bit) != 0);
        f.debug_set().entries(set.map(|(_, name)| name)).finish()
    }
}

/// Collects the marks of a text, lexeme by lexeme.
#[derive(Default)]
pub(crate) struct Marker {
    marks: Marks,
    /// The first keyword of the current statement, if it is one.
    first: Option<Keyword>,
    open: Open,
}

/// The kind of a statement whose next words decide.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Open {
    /// No statement whose next words decide.
    #[default]
    No,
    /// Directly after SET.
    Set,
    /// Inside a SET that outlives its transaction.
    SetSession,
    /// Directly after SET LOCAL.
    Local,
    /// Inside a SET LOCAL, SET TRANSACTION or SET CONSTRAINTS.
    SetLocal,
    /// Directly after PREPARE.
    Prepare,
}

impl Marker {
    pub(crate) fn marks(&self) -> Marks {
        self.marks
    }

    /// Ends the statement.
    pub(crate) fn semicolon(&mut self) {
        self.open = Open::No;
    }

    /// Takes the first word of a statement.
    #[inline]
    pub(crate) fn first_word(&mut self, word: Option<Keyword>) {
        self.first = word;
        match word {
            Some(Keyword::Set) => self.open = Open::Set,
            Some(Keyword::Prepare) => self.open = Open::Prepare,
            Some(word) => self.marks.add(verb_marks(word)),
            None => {}
        }
    }

    /// Returns whether a word that is not a keyword would decide something.
    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.open != Open::No
    }

    /// Takes another word, without quotes; `before` is the lexeme before it, if that was a keyword.
    pub(crate) fn word(&mut self, word: Option<Keyword>, before: Option<Keyword>, text: &[u8]) {
        match self.open {
            Open::No => {}
            Open::Set => {
                let local =
                    matches!(word, Some(Keyword::Local | Keyword::Transaction | Keyword::Constraints));
                self.open = match word {
                    Some(Keyword::Local) => Open::Local,
                    _ if local => Open::SetLocal,
                    _ => Open::SetSession,
                };
                if !local {
                    self.marks.add(Marks::SETTINGS);
                    self.marks.add(if text.eq_ignore_ascii_case(b"seed") {
                        Marks::SEED
                    } else {
                        Marks::NONE
                    });
                }
            }
            Open::SetSession | Open::Local | Open::SetLocal => {
                if self.open == Open::Local {
                    self.open = Open::SetLocal;
                    self.marks.add(if keeps_parse_context(text) {
                        Marks::NONE
                    } else {
                        Marks::READS_LOCALLY
                    });
                }
                // SET TIME ZONE LOCAL is SET TIME ZONE DEFAULT.
                if matches!(word, Some(Keyword::Default | Keyword::Local)) {
                    self.marks.add(Marks::RESETS);
                }
                if text.eq_ignore_ascii_case(b"seed") {
                    self.marks.add(Marks::SEED);
                }
            }
            Open::Prepare => {
                self.open = Open::No;
                if word != Some(Keyword::Transaction) {
                    self.marks.add(Marks::PREPARED);
                }
            }
        }
        match (word, before) {
            // CREATE TABLE ... AS EXECUTE, EXPLAIN ANALYZE EXECUTE.
            (Some(Keyword::Execute), _) => self.marks.add(Marks::PREPARED.and(Marks::ROUTINES)),
            // CREATE is a reserved word, so it is never a name. EXPLAIN ANALYZE may precede it.
            (Some(Keyword::Create), _) => self.marks.add(Marks::READS_LOCALLY),
            // INSERT and MERGE may be names of columns.
            (Some(Keyword::Into), Some(Keyword::Insert | Keyword::Merge))
                if self.first != Some(Keyword::Select) => {}
            (Some(Keyword::Into), _) => self.marks.add(Marks::READS_LOCALLY),
            (Some(Keyword::Hold), Some(Keyword::With)) => self.marks.add(Marks::CURSORS),
            (
                Some(Keyword::Temp),
                Some(Keyword::Create | Keyword::Replace | Keyword::Local | Keyword::Global | Keyword::Into),
            ) => self.marks.add(Marks::TEMPORARY),
            _ => {}
        }
    }

    /// Adds the marks of a name, with or without quotes.
    #[inline]
    pub(crate) fn name(&mut self, marks: Marks) {
        self.marks.add(marks);
    }

    /// Takes a lexeme that is not a word without quotes.
    #[inline]
    pub(crate) fn other(&mut self) {
        match self.open {
            Open::Set => {
                self.open = Open::SetSession;
                self.marks.add(Marks::SETTINGS);
            }
            Open::Local => {
                self.open = Open::SetLocal;
                self.marks.add(Marks::READS_LOCALLY);
            }
            Open::Prepare => {
                self.open = Open::No;
                self.marks.add(Marks::PREPARED);
            }
            _ => {}
        }
    }

    /// Takes a name that is written in code points and may be any name.
    pub(crate) fn unreadable_name(&mut self) {
        self.other();
        self.marks.add(Marks::ROUTINES);
    }

    /// Reads the rest of a text in which quotes and comments cannot be told apart from other text: every word
    /// counts, wherever it occurs. `changes_rows`: the statement is one in which SET is only a clause.
    pub(crate) fn raw(&mut self, rest: &[u8], changes_rows: bool) {
        self.other();
        let mut boundary = false;
        let mut at = 0;
        while let Some(&byte) = rest.get(at) {
            if !is_word(byte) {
                boundary = byte == b';' || boundary && byte.is_ascii_whitespace();
                at += 1;
                continue;
            }
            let len = rest[at..].iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len() - at);
            self.raw_word(&rest[at..at + len], boundary || !changes_rows);
            boundary = false;
            at += len;
        }
    }

    fn raw_word(&mut self, text: &[u8], may_set: bool) {
        let head = words::head(text);
        match words::keyword(head, text) {
            // TO DEFAULT may follow anywhere in the rest, so the settings may also be reset.
            Some(Keyword::Set) if may_set => self.marks.add(Marks::SETTINGS.and(Marks::RESETS)),
            Some(Keyword::Default) => self.marks.add(Marks::RESETS),
            Some(Keyword::Prepare) => self.marks.add(Marks::PREPARED),
            Some(Keyword::Hold) => self.marks.add(Marks::CURSORS),
            Some(Keyword::Temp) => self.marks.add(Marks::TEMPORARY),
            Some(Keyword::Into) => self.marks.add(Marks::READS_LOCALLY),
            Some(word) => self.marks.add(verb_marks(word)),
            None => {}
        }
        if may_be_session_name(head) {
            self.marks.add(session_name(text, true).unwrap_or(Marks::NONE));
        }
    }
}

/// Settings that certainly do not change how PostgreSQL reads the text of a statement: its meaning, its
/// result columns, its parameters. The list is short and has the settings that clients change most.
const KEEP_READING: [&[u8]; 15] = [
    b"application_name",
    b"client_min_messages",
    b"idle_in_transaction_session_timeout",
    b"idle_session_timeout",
    b"jit",
    b"lock_timeout",
    b"log_min_duration_statement",
    b"log_min_messages",
    b"log_statement",
    b"maintenance_work_mem",
    b"random_page_cost",
    b"statement_timeout",
    b"synchronous_commit",
    b"transaction_timeout",
    b"work_mem",
];

/// Returns whether a setting, by name in any case, certainly does not change how PostgreSQL reads the text of
/// a statement.
#[must_use]
pub fn keeps_parse_context(name: &[u8]) -> bool {
    KEEP_READING.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns the marks of a statement that its first word alone decides.
fn verb_marks(word: Keyword) -> Marks {
    match word {
        Keyword::Reset => Marks::SETTINGS.and(Marks::RESETS),
        Keyword::Discard => Marks::DISCARDS.and(Marks::SETTINGS).and(Marks::RESETS),
        Keyword::Execute => Marks::PREPARED.and(Marks::ROUTINES),
        Keyword::Deallocate => Marks::PREPARED,
        Keyword::Listen | Keyword::Unlisten => Marks::LISTENS,
        Keyword::Load => Marks::LIBRARY,
        Keyword::Do | Keyword::Call => Marks::ROUTINES.and(Marks::READS_LOCALLY),
        Keyword::Close => Marks::ENDS,
        Keyword::Drop => Marks::ENDS.and(Marks::READS_LOCALLY),
        Keyword::Alter | Keyword::Create => Marks::READS_LOCALLY,
        _ => Marks::NONE,
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte >= 0x80 || byte == b'_' || byte == b'$'
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traits;

    fn marks(sql: &str) -> Marks {
        traits(sql.as_bytes()).marks
    }

    #[test]
    fn ordinary_statements_carry_none() {
        for sql in [
            "select 1",
            "update t set a = default where b = 'set x'",
            "insert into t values (1) on conflict do update set a = 1",
            "begin; savepoint a; rollback to a; commit and chain",
            "set local work_mem = '1MB'",
            "SET LOCAL Lock_Timeout TO 1",
            "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
            "set constraints all deferred",
            "select temp, hold, session from weather where local = 'do'",
            "declare c cursor for select 1",
            "declare c cursor without hold for select 1",
            "prepare transaction 'x'",
            "select pg_advisory_xact_lock(1), pg_try_advisory_xact_lock_shared(2)",
            "show all",
            "notify a",
            "copy t from stdin",
            "commit prepared 'x'",
            "with a as (insert into t values (1) returning *) select * from a",
            "merge into t using s on t.a = s.a when matched then do nothing",
            "select \"into\", alter, drop from t",
            "insert into t values ('c:\\temp\\x', 'say')",
            "",
        ] {
            assert_eq!(marks(sql), Marks::NONE, "{sql}");
        }
    }

    #[test]
    fn what_touches_a_session_is_marked() {
        let resets = Marks::SETTINGS.and(Marks::RESETS);
        let makes = Marks::READS_LOCALLY;
        for (sql, expected) in [
            ("set x = 1", Marks::SETTINGS),
            ("SET SESSION x TO 1", Marks::SETTINGS),
            ("set \"X\" = 1", Marks::SETTINGS),
            ("/* a */ ; ;set time zone 'UTC'", Marks::SETTINGS),
            ("set time zone local", resets),
            ("set x to default", resets),
            ("set local x = 1", Marks::READS_LOCALLY),
            ("SET LOCAL TIME ZONE 'UTC'", Marks::READS_LOCALLY),
            ("begin; set local \"X\" = 1", Marks::READS_LOCALLY),
            ("set local U&\"x\" = 1", Marks::READS_LOCALLY.and(Marks::ROUTINES)),
            ("set local x to default", Marks::RESETS.and(Marks::READS_LOCALLY)),
            ("set local work_mem to default", Marks::RESETS),
            ("set session characteristics as transaction read only", Marks::SETTINGS),
            ("begin; set role a", Marks::SETTINGS),
            ("reset all", resets),
            ("discard all", resets.and(Marks::DISCARDS)),
            ("select set_config('a', 'b', false)", Marks::CALLS_SETTINGS),
            ("select pg_catalog.\"set_config\"('a', 'b', false)", Marks::CALLS_SETTINGS),
            ("select U&\"set\\005fconfig\"('a', 'b', false)", Marks::ROUTINES),
            ("update pg_settings set setting = 1", Marks::CALLS_SETTINGS),
            ("set seed to 0.5", Marks::SETTINGS.and(Marks::SEED)),
            ("select setseed(0.5)", Marks::SEED),
            ("prepare p as select 1", Marks::PREPARED),
            ("prepare \"p\" as select 1", Marks::PREPARED),
            ("create table t as execute p(1)", makes.and(Marks::PREPARED).and(Marks::ROUTINES)),
            ("deallocate p", Marks::PREPARED),
            ("listen a", Marks::LISTENS),
            ("unlisten *", Marks::LISTENS),
            ("declare c cursor with hold for select 1", Marks::CURSORS),
            ("close c", Marks::ENDS),
            ("create temp table t (a int)", makes.and(Marks::TEMPORARY)),
            ("create or replace temporary view v as select 1", makes.and(Marks::TEMPORARY)),
            ("create local temporary table t ()", makes.and(Marks::TEMPORARY)),
            ("select 1 into temp t", makes.and(Marks::TEMPORARY)),
            (
                "create function pg_temp.f() returns int language sql as 'select 1'",
                makes.and(Marks::TEMPORARY),
            ),
            ("select pg_advisory_lock(1)", Marks::LOCKS),
            ("select pg_try_advisory_lock_shared(1)", Marks::LOCKS),
            ("load 'x'", Marks::LIBRARY),
            ("do $$begin end$$", makes.and(Marks::ROUTINES)),
            ("call p()", makes.and(Marks::ROUTINES)),
            ("select lastval(), currval('s')", Marks::ASKS_SEQUENCE),
            ("select nextval('s')", Marks::DRAWS_SEQUENCE),
            ("create table t (a int default 1)", makes),
            ("create function f() returns int language sql set search_path = a as 'select 1'", makes),
            ("explain analyze create table t as select 1", makes),
            ("alter role r set work_mem = '1MB'", makes),
            ("alter system set work_mem = '1MB'", makes),
            ("begin; drop table t", makes.and(Marks::ENDS)),
            ("select a into t from u", makes),
            ("with u as (select 1) select * into unlogged t from u", makes),
            ("insert into u select 1; select insert into t from u", makes),
        ] {
            assert_eq!(marks(sql), expected, "{sql}");
        }
    }

    #[test]
    fn what_cannot_be_lexed_is_marked_by_its_words() {
        for (sql, expected) in [
            (r"select 'a\'; set x = 1; --'", Marks::SETTINGS.and(Marks::RESETS)),
            (r"update t set a = '\'; set x = 1; --'", Marks::SETTINGS.and(Marks::RESETS)),
            (r"update t set a = 'C:\x'", Marks::NONE),
            (r"select 'C:\x', set_config('a', 'b', false)", Marks::CALLS_SETTINGS),
            (r"select 'C:\x'; listen a", Marks::LISTENS),
            (r"select 'C:\x'; create table t ()", Marks::READS_LOCALLY),
            (r"select 'C:\x' into t", Marks::READS_LOCALLY),
        ] {
            assert_eq!(marks(sql), expected, "{sql}");
        }
    }
}
