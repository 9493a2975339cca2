//! The parse context of a session: the settings under which PostgreSQL reads the text of a statement at Parse. The settings decide the
//! meaning of `'1/2/2024'` (DateStyle), the letters of a text (client_encoding), and the schema of table `t` (search_path, role). So the
//! same text under other settings is another statement. In another pool it is another statement, too: another database has other tables and
//! types, and `"$user"` in a search_path is another schema for another user.
//!
//! This file gives a number to the settings of a session, and the same number to the same settings. It leaves out settings that certainly
//! change nothing ([`keeps_parse_context`]). It never gives a number twice: statements under a forgotten number are not shared any more.

use std::hash::BuildHasher;
use std::num::NonZeroU64;
use std::sync::Arc;

use pgweir_sql::keeps_parse_context;

use slotmap::Key as _;

use crate::ids::PoolId;
use crate::limits::{PARSE_CONTEXT_BYTES_MAX, PARSE_CONTEXTS_MAX};
use crate::pool::session::content::Session;
use crate::pool::session::params::{Params, Tracked};

/// The settings under which a session reads texts, as a number. Two sessions with equal settings have equal numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ParseContext(NonZeroU64);

impl ParseContext {
    /// Returns the parse context of a single statement, which has this serial number: no session is known to read as the session that
    /// prepared it.
    pub(crate) fn of_statement(serial: u64) -> ParseContext {
        ParseContext(NonZeroU64::MIN | (1 << 63 | serial << 1))
    }

    /// Returns the number of the context. Equal contexts have equal numbers.
    pub(crate) fn number(self) -> u64 {
        self.0.get()
    }

    /// The parse context of a statement for which it is not known yet.
    pub(crate) const UNDETERMINED: ParseContext = ParseContext(NonZeroU64::MAX);
}

/// A parse_context, with what it was found for: as long as these are the same objects, it is the same.
pub(crate) struct Known {
    params: Arc<Params>,
    session: Arc<Session>,
    parse_context: Option<ParseContext>,
}

impl Known {
    pub(crate) fn parse_context(&self) -> Option<ParseContext> {
        self.parse_context
    }

    /// Returns the parse context if it was found for these parameters and this session.
    #[inline]
    pub(crate) fn of(&self, params: &Arc<Params>, session: &Arc<Session>) -> Option<Option<ParseContext>> {
        (Arc::ptr_eq(&self.params, params) && Arc::ptr_eq(&self.session, session))
            .then_some(self.parse_context)
    }
}

/// The parse contexts of a worker's clients.
#[derive(Default)]
pub(crate) struct ParseContexts {
    known: Vec<Entry>,
    hasher: foldhash::fast::FixedState,
    clock: u64,
    last: u64,
    /// The buffer in which settings are written to be compared.
    scratch: Vec<u8>,
    /// Whether all settings count, also those that change no text's meaning.
    is_of_all: bool,
}

struct Entry {
    hash: u64,
    /// The names and values of the settings.
    content: Box<[u8]>,
    parse_context: ParseContext,
    used: u64,
}

impl ParseContexts {
    /// Returns an empty table in which all settings count.
    pub(crate) fn of_all_settings() -> ParseContexts {
        ParseContexts { is_of_all: true, ..ParseContexts::default() }
    }

    /// Returns a new parse context that no other session has.
    pub(crate) fn alone(&mut self) -> ParseContext {
        self.last += 1;
        ParseContext(NonZeroU64::MIN.saturating_add(self.last))
    }

    /// Returns the context of a session of this pool with these settings. The session has none if the settings are too long to be
    /// remembered.
    pub(crate) fn find(
        &mut self,
        pool: PoolId,
        tracked: &Tracked,
        params: &Arc<Params>,
        session: &Arc<Session>,
    ) -> Known {
        let mut content = std::mem::take(&mut self.scratch);
        content.clear();
        content.extend_from_slice(&pool.data().as_ffi().to_be_bytes());
        let leaves_out = |name: &[u8]| !self.is_of_all && keeps_parse_context(name);
        write(&mut content, (tracked, params), session, leaves_out);
        let parse_context = (content.len() <= PARSE_CONTEXT_BYTES_MAX).then(|| self.of_content(&content));
        content.shrink_to(PARSE_CONTEXT_BYTES_MAX);
        self.scratch = content;
        Known { params: Arc::clone(params), session: Arc::clone(session), parse_context }
    }

    fn of_content(&mut self, content: &[u8]) -> ParseContext {
        self.clock += 1;
        let hash = self.hasher.hash_one(content);
        let known = self.known.iter_mut().find(|known| known.hash == hash && *known.content == *content);
        if let Some(known) = known {
            known.used = self.clock;
            return known.parse_context;
        }
        if self.known.len() >= PARSE_CONTEXTS_MAX
            && let Some(oldest) = (0..self.known.len()).min_by_key(|&at| self.known[at].used)
        {
            self.known.swap_remove(oldest);
        }
        let parse_context = self.alone();
        self.known.push(Entry { hash, content: content.into(), parse_context, used: self.clock });
        parse_context
    }
}

/// Writes names and values, each with its length, as they can hold any bytes.
fn write(
    out: &mut Vec<u8>,
    (tracked, params): (&Tracked, &Params),
    session: &Session,
    leaves_out: impl Fn(&[u8]) -> bool,
) {
    let mut put = |bytes: &[u8]| {
        out.extend_from_slice(&bytes.len().to_be_bytes());
        out.extend_from_slice(bytes);
    };
    for (position, name) in tracked.names().enumerate() {
        if let Some(value) = params.get(position).filter(|_| !leaves_out(name.as_bytes())) {
            put(name.as_bytes());
            put(value);
        }
    }
    for setting in session.settings().filter(|setting| !leaves_out(&setting.name)) {
        put(&setting.name);
        put(&setting.value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(
        parse_contexts: &mut ParseContexts,
        zone: &str,
        settings: &[(&str, &str)],
    ) -> Option<ParseContext> {
        let tracked = Tracked::new([]);
        let mut params = Params::unknown(&tracked);
        params.set(tracked.position(b"TimeZone").expect("tracked"), zone.as_bytes());
        let mut session = Session::default();
        settings.iter().for_each(|(name, value)| session.set(name.as_bytes(), value.as_bytes()));
        let pool = PoolId::default();
        parse_contexts.find(pool, &tracked, &Arc::new(params), &Arc::new(session)).parse_context
    }

    #[test]
    fn another_pool_is_another_reading() {
        let mut parse_contexts = ParseContexts::default();
        let tracked = Tracked::new([]);
        let (params, session) = (Arc::new(Params::unknown(&tracked)), Arc::new(Session::default()));
        let mut pools = slotmap::SlotMap::<PoolId, ()>::with_key();
        let [one, two] = [pools.insert(()), pools.insert(())];
        let mut find = |pool| parse_contexts.find(pool, &tracked, &params, &session).parse_context;
        assert_eq!(find(one), find(one));
        assert_ne!(find(one), find(two));
    }

    #[test]
    fn the_same_settings_are_one_reading_whatever_objects_they_are() {
        let mut parse_contexts = ParseContexts::default();
        let plain = find(&mut parse_contexts, "UTC", &[]);
        assert!(plain.is_some());
        assert_eq!(find(&mut parse_contexts, "UTC", &[]), plain);
        assert_ne!(find(&mut parse_contexts, "Asia/Tokyo", &[]), plain);
        let other = find(&mut parse_contexts, "UTC", &[("search_path", "a"), ("role", "r")]);
        assert_ne!(other, plain);
        assert_eq!(find(&mut parse_contexts, "UTC", &[("role", "r"), ("search_path", "a")]), other);
        assert_ne!(find(&mut parse_contexts, "UTC", &[("role", "r"), ("search_path", "b")]), other);
    }

    #[test]
    fn what_changes_no_text_is_left_out() {
        let mut parse_contexts = ParseContexts::default();
        let plain = find(&mut parse_contexts, "UTC", &[]);
        assert_eq!(
            find(&mut parse_contexts, "UTC", &[("statement_timeout", "1s"), ("work_mem", "1MB")]),
            plain
        );
        assert_ne!(find(&mut parse_contexts, "UTC", &[("statement_timeouts", "1s")]), plain);
    }

    #[test]
    fn the_one_unused_for_longest_is_forgotten_and_never_given_again() {
        let mut parse_contexts = ParseContexts::default();
        let (first, second) = (find(&mut parse_contexts, "0", &[]), find(&mut parse_contexts, "1", &[]));
        for zone in 2..PARSE_CONTEXTS_MAX {
            find(&mut parse_contexts, &zone.to_string(), &[]);
        }
        assert_eq!(find(&mut parse_contexts, "0", &[]), first);
        find(&mut parse_contexts, "another", &[]);
        assert_eq!(parse_contexts.known.len(), PARSE_CONTEXTS_MAX);
        assert_eq!(find(&mut parse_contexts, "0", &[]), first, "it was used");
        assert_ne!(find(&mut parse_contexts, "1", &[]), second);
        assert_eq!(find(&mut parse_contexts, &"x".repeat(PARSE_CONTEXT_BYTES_MAX), &[]), None);
    }
}
