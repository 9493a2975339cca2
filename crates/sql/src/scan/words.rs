//! The words that matter, in one place.
//!
//! The functions look a word up, in any case, without allocating. They must never decide what a statement
//! does; that is for [`crate::traits()`].

use crate::marks::Marks;
use crate::scan::chunks::{self, CHUNK};

/// A keyword that [`crate::traits()`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Keyword {
    Abort,
    Alter,
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

/// Returns the keyword that a word without quotes is. `head` is the beginning of the word as the lexer gives
/// it.
#[inline]
pub(crate) fn keyword(head: u64, text: &[u8]) -> Option<Keyword> {
    let place = &KEYWORDS[(head.wrapping_mul(KEYWORDS_SPREAD) >> KEYWORDS_SHIFT) as usize];
    if place.head != head {
        return None;
    }
    let rest = text.get(CHUNK..).unwrap_or_default();
    if rest.eq_ignore_ascii_case(place.rest) { place.keyword } else { None }
}

/// Returns the first bytes of `word` as the lexer gives them for a text that is exactly this word.
pub(crate) const fn head(word: &[u8]) -> u64 {
    let mut bytes = [0; CHUNK];
    let mut at = 0;
    while at < word.len() && at < CHUNK {
        bytes[at] = word[at];
        at += 1;
    }
    let len = if word.len() < CHUNK { word.len() } else { CHUNK };
    chunks::first(chunks::fold(u64::from_le_bytes(bytes)), len)
}

/// A place of the hash table of keywords.
#[derive(Clone, Copy)]
struct Place {
    head: u64,
    /// The keyword's bytes after the first eight.
    rest: &'static [u8],
    keyword: Option<Keyword>,
}

/// The hash table has 2^(64 - this) places.
const KEYWORDS_SHIFT: u32 = 56;

/// A factor that leads each keyword to a place of its own.
const KEYWORDS_SPREAD: u64 = {
    let mut heads = [0; SPELLED.len()];
    let mut at = 0;
    while at < heads.len() {
        heads[at] = head(SPELLED[at].0);
        at += 1;
    }
    spread(&heads, KEYWORDS_SHIFT)
};

static KEYWORDS: [Place; 1 << (64 - KEYWORDS_SHIFT)] = {
    let mut places = [Place { head: 0, rest: &[], keyword: None }; 1 << (64 - KEYWORDS_SHIFT)];
    let mut at = 0;
    while at < SPELLED.len() {
        let (word, keyword) = SPELLED[at];
        let head = head(word);
        let rest = if word.len() > CHUNK { word.split_at(CHUNK).1 } else { &[] };
        let place = &mut places[(head.wrapping_mul(KEYWORDS_SPREAD) >> KEYWORDS_SHIFT) as usize];
        *place = Place { head, rest, keyword: Some(keyword) };
        at += 1;
    }
    places
};

/// Finds a factor, by trying, whose product with each of `heads` differs in the bits from `shift` on.
const fn spread(heads: &[u64], shift: u32) -> u64 {
    let mut factor = 0x9e37_79b9_7f4a_7c15u64;
    loop {
        let mut taken = [0; 256];
        let mut at = 0;
        while at < heads.len() {
            let place = &mut taken[(heads[at].wrapping_mul(factor) >> shift) as usize];
            if *place != 0 && *place != heads[at] {
                break;
            }
            *place = heads[at];
            at += 1;
        }
        if at == heads.len() {
            return factor;
        }
        // The next odd factor to try.
        factor = factor.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_406);
    }
}

/// The keywords in alphabetical order.
const SPELLED: [(&[u8], Keyword); 44] = [
    (b"abort", Keyword::Abort),
    (b"alter", Keyword::Alter),
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

/// Names of routines and relations that read or change the state of a session, or that run SQL given to them
/// as a string; with the marks that they set.
const SESSION_NAMES: [(&[u8], Marks); 11] = [
    (b"currval", Marks::ASKS_SEQUENCE),
    (b"lastval", Marks::ASKS_SEQUENCE),
    (b"nextval", Marks::DRAWS_SEQUENCE),
    (b"pg_listening_channels", Marks::NONE),
    (b"pg_prepared_statements", Marks::SHOWS_PREPARED),
    // An UPDATE of this view is a SET.
    (b"pg_settings", Marks::CALLS_SETTINGS),
    (b"set_config", Marks::CALLS_SETTINGS),
    // pg_trgm: sets pg_trgm.similarity_threshold.
    (b"set_limit", Marks::CALLS_SETTINGS),
    (b"setseed", Marks::SEED),
    (b"setval", Marks::DRAWS_SEQUENCE),
    (b"xpath_table", Marks::ROUTINES),
];

/// Prefixes of families of such names. The first prefix that fits counts.
const SESSION_PREFIXES: [(&[u8], Marks); 19] = [
    (b"connectby", Marks::ROUTINES),
    (b"crosstab", Marks::ROUTINES),
    (b"cursor_to_xml", Marks::ROUTINES),
    // dblink opens connections and keeps them in the session, where the pooler cannot see them.
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

/// Returns whether a name with this beginning may be in one of the two lists; most are not. `head` is the
/// beginning of the word as the lexer gives it.
#[inline]
pub(crate) fn may_be_session_name(head: u64) -> bool {
    let start = head & 0xffff_ffff;
    u64::from(STARTS[(start.wrapping_mul(STARTS_SPREAD) >> STARTS_SHIFT) as usize]) == start
}

/// The first four bytes of each name, in the low half.
const NAMES: [u64; SESSION_NAMES.len() + SESSION_PREFIXES.len()] = {
    let mut starts = [0; SESSION_NAMES.len() + SESSION_PREFIXES.len()];
    let mut at = 0;
    while at < starts.len() {
        let list = at >= SESSION_NAMES.len();
        let name = if list { SESSION_PREFIXES[at - SESSION_NAMES.len()].0 } else { SESSION_NAMES[at].0 };
        assert!(name.len() >= 4);
        starts[at] = head(name) & 0xffff_ffff;
        at += 1;
    }
    starts
};

const STARTS_SHIFT: u32 = 57;
const STARTS_SPREAD: u64 = spread(&NAMES, STARTS_SHIFT);

/// The hash table of the names' beginnings.
static STARTS: [u32; 1 << (64 - STARTS_SHIFT)] = {
    let mut places = [0; 1 << (64 - STARTS_SHIFT)];
    let mut at = 0;
    while at < NAMES.len() {
        places[(NAMES[at].wrapping_mul(STARTS_SPREAD) >> STARTS_SHIFT) as usize] = NAMES[at] as u32;
        at += 1;
    }
    places
};

/// Returns the marks of `name` if [`SESSION_NAMES`] or [`SESSION_PREFIXES`] has it; these can be
/// [`Marks::NONE`] if it leaves nothing in the session. `folds`: the name was written without quotes, in
/// letters of any case.
#[cold]
pub(crate) fn session_name(name: &[u8], folds: bool) -> Option<Marks> {
    let same = |one: &[u8], known: &[u8]| if folds { one.eq_ignore_ascii_case(known) } else { one == known };
    let whole = SESSION_NAMES.iter().find(|(known, _)| same(name, known));
    let begins = |known: &[u8]| name.get(..known.len()).is_some_and(|start| same(start, known));
    let found = whole.or_else(|| SESSION_PREFIXES.iter().find(|(known, _)| begins(known)));
    found.map(|&(_, marks)| marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyword_of(word: &[u8]) -> Option<Keyword> {
        keyword(head(word), word)
    }

    fn marks_of(word: &[u8]) -> Option<Marks> {
        session_name(word, true).filter(|_| may_be_session_name(head(word)))
    }

    #[test]
    fn every_name_is_found_and_fits() {
        for (name, marks) in SESSION_NAMES.iter().chain(&SESSION_PREFIXES) {
            assert_eq!(marks_of(name), Some(*marks), "{}", name.escape_ascii());
            assert_eq!(marks_of(&name.to_ascii_uppercase()), Some(*marks));
            assert_eq!(session_name(name, false), Some(*marks));
            assert_eq!(session_name(&name.to_ascii_uppercase(), false), None);
        }
    }

    #[test]
    fn every_keyword_is_found() {
        for (word, keyword) in SPELLED {
            assert_eq!(keyword_of(&word.to_ascii_uppercase()), Some(keyword));
            assert_eq!(keyword_of(&word[1..]), None);
            assert_eq!(keyword_of(&[word, b"x"].concat()), None);
        }
        assert_eq!(keyword_of(b"transactions"), None);
        assert_eq!(keyword_of(b"transact"), None);
        assert_eq!(keyword_of(b""), None);
        assert_eq!(keyword_of(b"BeGiN"), Some(Keyword::Begin));
    }

    #[test]
    fn a_long_word_is_no_short_name() {
        let long = [&b"lastval"[..], &[b'x'; 100]].concat();
        assert_eq!(marks_of(&long), None);
        assert!(marks_of(b"PG_CREATE_logical_replication_slot").is_some());
        assert!(!may_be_session_name(head(b"abalance")));
    }
}
