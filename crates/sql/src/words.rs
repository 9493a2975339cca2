//! The words that matter, in one place.
//!
//! What this file is for: to look a word up, in any case, without allocating. It must never decide what a statement
//! does; that is for [`crate::traits()`].

use crate::marks::Marks;

/// A keyword that [`crate::traits()`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keyword {
    Abort,
    Begin,
    Call,
    Close,
    Commit,
    Constraints,
    Copy,
    Create,
    Deallocate,
    Declare,
    Default,
    Delete,
    Discard,
    Do,
    Drop,
    End,
    Execute,
    Global,
    Hold,
    Insert,
    Into,
    Listen,
    Load,
    Local,
    Merge,
    Notify,
    Prepare,
    Replace,
    Reset,
    Rollback,
    Savepoint,
    Select,
    Set,
    Show,
    Start,
    Table,
    Temp,
    Transaction,
    Unlisten,
    Update,
    Values,
    With,
}

/// How many bytes of a word are looked at: more than the longest name in this file has.
const LEN_MAX: usize = 24;

/// A word in lower case, cut after [`LEN_MAX`] bytes. No name in this file is that long, so none is taken for the
/// start of a longer word by mistake.
pub(crate) struct Folded {
    bytes: [u8; LEN_MAX],
    len: usize,
}

impl Folded {
    /// Folds ASCII letters, as PostgreSQL does for keywords (and for identifiers, where other letters may fold too,
    /// but into no ASCII one).
    #[inline]
    pub(crate) fn new(word: &[u8]) -> Self {
        let len = word.len().min(LEN_MAX);
        let mut bytes = [0; LEN_MAX];
        bytes[..len].copy_from_slice(&word[..len]);
        // All of them at once, whatever the length: no loop.
        bytes.make_ascii_lowercase();
        Self { bytes, len }
    }

    /// The folded word.
    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    /// The keyword that it is, if it stood there without quotes.
    #[inline]
    pub(crate) fn keyword(&self) -> Option<Keyword> {
        if self.len > KEYWORD_LEN_MAX {
            return None;
        }
        let key = key(&self.bytes);
        KEYWORDS.binary_search_by_key(&key, |(known, _)| *known).ok().map(|at| KEYWORDS[at].1)
    }
}

/// The longest keyword in this file.
const KEYWORD_LEN_MAX: usize = 11;

/// What words are compared by: their first bytes as a number, in the order of the alphabet.
const fn key(bytes: &[u8]) -> u128 {
    let mut first = [0; 16];
    let mut at = 0;
    while at < bytes.len() && at < first.len() {
        first[at] = bytes[at];
        at += 1;
    }
    u128::from_be_bytes(first)
}

/// The keywords by [`key`].
const KEYWORDS: [(u128, Keyword); SPELLED.len()] = {
    let mut keyed = [(0, Keyword::Abort); SPELLED.len()];
    let mut at = 0;
    while at < SPELLED.len() {
        keyed[at] = (key(SPELLED[at].0), SPELLED[at].1);
        at += 1;
    }
    keyed
};

/// The keywords in the order of the alphabet.
const SPELLED: [(&[u8], Keyword); 43] = [
    (b"abort", Keyword::Abort),
    (b"begin", Keyword::Begin),
    (b"call", Keyword::Call),
    (b"close", Keyword::Close),
    (b"commit", Keyword::Commit),
    (b"constraints", Keyword::Constraints),
    (b"copy", Keyword::Copy),
    (b"create", Keyword::Create),
    (b"deallocate", Keyword::Deallocate),
    (b"declare", Keyword::Declare),
    (b"default", Keyword::Default),
    (b"delete", Keyword::Delete),
    (b"discard", Keyword::Discard),
    (b"do", Keyword::Do),
    (b"drop", Keyword::Drop),
    (b"end", Keyword::End),
    (b"execute", Keyword::Execute),
    (b"global", Keyword::Global),
    (b"hold", Keyword::Hold),
    (b"insert", Keyword::Insert),
    (b"into", Keyword::Into),
    (b"listen", Keyword::Listen),
    (b"load", Keyword::Load),
    (b"local", Keyword::Local),
    (b"merge", Keyword::Merge),
    (b"notify", Keyword::Notify),
    (b"prepare", Keyword::Prepare),
    (b"replace", Keyword::Replace),
    (b"reset", Keyword::Reset),
    (b"rollback", Keyword::Rollback),
    (b"savepoint", Keyword::Savepoint),
    (b"select", Keyword::Select),
    (b"set", Keyword::Set),
    (b"show", Keyword::Show),
    (b"start", Keyword::Start),
    (b"table", Keyword::Table),
    (b"temp", Keyword::Temp),
    (b"temporary", Keyword::Temp),
    (b"transaction", Keyword::Transaction),
    (b"unlisten", Keyword::Unlisten),
    (b"update", Keyword::Update),
    (b"values", Keyword::Values),
    (b"with", Keyword::With),
];

/// Names of routines and relations that read or change what belongs to a session, or run SQL that is given to them as
/// a string; and what they mark.
const SESSION_NAMES: [(&[u8], Marks); 10] = [
    (b"currval", Marks::ASKS_SEQUENCE),
    (b"lastval", Marks::ASKS_SEQUENCE),
    (b"nextval", Marks::DRAWS_SEQUENCE),
    (b"pg_listening_channels", Marks::NONE),
    // An UPDATE of this view is a SET.
    (b"pg_settings", Marks::CALLS_SETTINGS),
    (b"set_config", Marks::CALLS_SETTINGS),
    // pg_trgm: sets pg_trgm.similarity_threshold.
    (b"set_limit", Marks::CALLS_SETTINGS),
    (b"setseed", Marks::SEED),
    (b"setval", Marks::DRAWS_SEQUENCE),
    (b"xpath_table", Marks::ROUTINES),
];

/// How such names begin, where there is a family of them. The first that fits counts.
const SESSION_PREFIXES: [(&[u8], Marks); 19] = [
    (b"connectby", Marks::ROUTINES),
    (b"crosstab", Marks::ROUTINES),
    (b"cursor_to_xml", Marks::ROUTINES),
    // Connections of its own, kept in the session, where nobody can see them.
    (b"dblink", Marks::NONE),
    (b"pg_advisory_unlock", Marks::ENDS),
    // These end with their transaction.
    (b"pg_advisory_xact_", Marks::NONE),
    (b"pg_advisory_", Marks::LOCKS),
    // Replication slots can be temporary: until the session ends.
    (b"pg_copy_", Marks::ROUTINES),
    (b"pg_create_", Marks::ROUTINES),
    (b"pg_my_temp_", Marks::NONE),
    (b"pg_replication_", Marks::ROUTINES),
    (b"pg_temp", Marks::TEMPORARY),
    (b"pg_toast_temp", Marks::TEMPORARY),
    (b"pg_try_advisory_xact_", Marks::NONE),
    (b"pg_try_advisory_", Marks::LOCKS),
    (b"postgres_fdw_", Marks::NONE),
    (b"query_to_xml", Marks::ROUTINES),
    (b"ts_rewrite", Marks::ROUTINES),
    (b"ts_stat", Marks::ROUTINES),
];

/// What `name` marks, if it belongs to the session, see [`SESSION_NAMES`] and [`SESSION_PREFIXES`]; it may be no mark, where
/// nothing is left behind. It must be folded, unless it stood in quotes.
#[inline]
pub(crate) fn session_name(name: &[u8]) -> Option<Marks> {
    // Few words begin like a name in the lists; the others are not compared any further.
    match name.first_chunk()? {
        b"conn" | b"cros" | b"curr" | b"curs" | b"dbli" | b"last" | b"next" | b"pg_a" | b"pg_c" | b"pg_l"
        | b"pg_m" | b"pg_r" | b"pg_s" | b"pg_t" | b"post" | b"quer" | b"set_" | b"sets" | b"setv"
        | b"ts_r" | b"ts_s" | b"xpat" => find_session_name(name),
        _ => None,
    }
}

#[cold]
fn find_session_name(name: &[u8]) -> Option<Marks> {
    let whole = SESSION_NAMES.iter().find(|(known, _)| *known == name);
    let found = whole.or_else(|| SESSION_PREFIXES.iter().find(|(known, _)| name.starts_with(known)));
    found.map(|&(_, marks)| marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_fits() {
        for (name, marks) in SESSION_NAMES.iter().chain(&SESSION_PREFIXES) {
            assert!(name.len() < LEN_MAX);
            assert_eq!(session_name(name), Some(*marks), "{}", name.escape_ascii());
            assert_eq!(Folded::new(&name.to_ascii_uppercase()).as_bytes(), *name);
        }
    }

    #[test]
    fn every_keyword_is_found() {
        assert!(KEYWORDS.is_sorted());
        for (word, keyword) in SPELLED {
            assert!(word.len() <= KEYWORD_LEN_MAX);
            assert_eq!(Folded::new(&word.to_ascii_uppercase()).keyword(), Some(keyword));
            assert_eq!(Folded::new(&word[1..]).keyword(), None);
        }
        assert_eq!(Folded::new(b"transactions").keyword(), None);
    }

    #[test]
    fn a_long_word_is_no_short_name() {
        let long = [&b"lastval"[..], &[b'x'; 100]].concat();
        assert_eq!(session_name(Folded::new(&long).as_bytes()), None);
        assert_eq!(Folded::new(b"begins").keyword(), None);
        assert_eq!(Folded::new(b"").keyword(), None);
        assert_eq!(Folded::new(b"BeGiN").keyword(), Some(Keyword::Begin));
        assert!(session_name(Folded::new(b"PG_CREATE_logical_replication_slot").as_bytes()).is_some());
    }
}
