//! The words that matter, in one place.
//!
//! What this file is for: to look a word up, in any case, without allocating. It must never decide what a statement
//! does; that is for [`crate::traits()`].

/// A keyword that [`crate::traits()`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keyword {
    Abort,
    Begin,
    Call,
    Commit,
    Copy,
    Create,
    Deallocate,
    Declare,
    Delete,
    Discard,
    Do,
    End,
    Execute,
    Global,
    Insert,
    Into,
    Listen,
    Load,
    Local,
    Merge,
    Notify,
    Prepare,
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
    pub(crate) fn new(word: &[u8]) -> Self {
        let mut bytes = [0; LEN_MAX];
        for (to, from) in bytes.iter_mut().zip(word) {
            *to = from.to_ascii_lowercase();
        }
        Self { bytes, len: word.len().min(LEN_MAX) }
    }

    /// The folded word.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The keyword that `word` is. It must be folded and must have stood there without quotes.
pub(crate) fn keyword(word: &[u8]) -> Option<Keyword> {
    Some(match word {
        b"abort" => Keyword::Abort,
        b"begin" => Keyword::Begin,
        b"call" => Keyword::Call,
        b"commit" => Keyword::Commit,
        b"copy" => Keyword::Copy,
        b"create" => Keyword::Create,
        b"deallocate" => Keyword::Deallocate,
        b"declare" => Keyword::Declare,
        b"delete" => Keyword::Delete,
        b"discard" => Keyword::Discard,
        b"do" => Keyword::Do,
        b"end" => Keyword::End,
        b"execute" => Keyword::Execute,
        b"global" => Keyword::Global,
        b"insert" => Keyword::Insert,
        b"into" => Keyword::Into,
        b"listen" => Keyword::Listen,
        b"load" => Keyword::Load,
        b"local" => Keyword::Local,
        b"merge" => Keyword::Merge,
        b"notify" => Keyword::Notify,
        b"prepare" => Keyword::Prepare,
        b"reset" => Keyword::Reset,
        b"rollback" => Keyword::Rollback,
        b"savepoint" => Keyword::Savepoint,
        b"select" => Keyword::Select,
        b"set" => Keyword::Set,
        b"show" => Keyword::Show,
        b"start" => Keyword::Start,
        b"table" => Keyword::Table,
        b"temp" | b"temporary" => Keyword::Temp,
        b"transaction" => Keyword::Transaction,
        b"unlisten" => Keyword::Unlisten,
        b"update" => Keyword::Update,
        b"values" => Keyword::Values,
        b"with" => Keyword::With,
        _ => return None,
    })
}

/// Names of routines and relations that read or change what belongs to a session, or run SQL that is given to them as
/// a string.
const SESSION_NAMES: [&[u8]; 10] = [
    b"currval",
    b"lastval",
    b"nextval",
    b"pg_listening_channels",
    // An UPDATE of this view is a SET.
    b"pg_settings",
    b"set_config",
    // pg_trgm: sets pg_trgm.similarity_threshold.
    b"set_limit",
    b"setseed",
    b"setval",
    b"xpath_table",
];

/// How such names begin, where there is a family of them.
const SESSION_PREFIXES: [&[u8]; 16] = [
    b"connectby",
    b"crosstab",
    b"cursor_to_xml",
    // Connections of its own, kept in the session.
    b"dblink",
    b"pg_advisory_",
    // Replication slots can be temporary: until the session ends.
    b"pg_copy_",
    b"pg_create_",
    b"pg_my_temp_",
    b"pg_replication_",
    b"pg_temp",
    b"pg_toast_temp",
    b"pg_try_advisory_",
    b"postgres_fdw_",
    b"query_to_xml",
    b"ts_rewrite",
    b"ts_stat",
];

/// Whether `name` belongs to the session, see [`SESSION_NAMES`] and [`SESSION_PREFIXES`]. It must be folded, unless
/// it stood in quotes.
pub(crate) fn is_session_name(name: &[u8]) -> bool {
    // Few words begin like a name in the lists; the others are not compared any further.
    match name.first() {
        Some(b'c' | b'd' | b'l' | b'n' | b'p' | b'q' | b's' | b't' | b'x') => {
            SESSION_NAMES.contains(&name) || SESSION_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_fits() {
        for name in SESSION_NAMES.iter().chain(&SESSION_PREFIXES) {
            assert!(name.len() < LEN_MAX);
            assert!(is_session_name(name), "{}", name.escape_ascii());
            assert_eq!(Folded::new(&name.to_ascii_uppercase()).as_bytes(), *name);
        }
    }

    #[test]
    fn a_long_word_is_no_short_name() {
        let long = [&b"lastval"[..], &[b'x'; 100]].concat();
        assert!(!is_session_name(Folded::new(&long).as_bytes()));
        assert_eq!(keyword(Folded::new(b"begins").as_bytes()), None);
        assert_eq!(keyword(Folded::new(b"").as_bytes()), None);
        assert_eq!(keyword(Folded::new(b"BeGiN").as_bytes()), Some(Keyword::Begin));
        assert!(is_session_name(Folded::new(b"PG_CREATE_logical_replication_slot").as_bytes()));
    }
}
