//! The state that makes `currval` and `lastval` right although servers change hands: the client whose drawn values a server's session may
//! hold, the clients that are likely to ask for them, and the free server that waits a moment for its last client. Values only;
//! `affinity.rs` decides by them.

use std::collections::VecDeque;

use pgweir_sql::{Marks, Question, Traits, Verb, questions};

use crate::ids::{ClientId, ServerId};
use crate::limits::{CURRVAL_CLIENTS_MAX, DRAWS_TRIED};

/// The clients that have used a session since it held no drawn value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Users {
    /// The session had no client: `currval` of any sequence is an error there.
    #[default]
    NoClient,
    /// Only this client has used the session: any value that `currval` returns is its own.
    Only(ClientId),
    /// Several clients have used the session: a value may be any client's, except those that this client, which used it last, has drawn
    /// since.
    Several(ClientId),
}

impl Users {
    /// Notes that a client's statement goes to the session. Returns `true` if another client used the session before it.
    #[inline]
    pub(crate) fn note(&mut self, id: ClientId) -> bool {
        let (before, now) = match *self {
            Users::NoClient => (None, Users::Only(id)),
            Users::Only(other) if other == id => return false,
            Users::Only(other) | Users::Several(other) => (Some(other), Users::Several(id)),
        };
        *self = now;
        before.is_some_and(|other| other != id)
    }

    /// Returns the client that used the session last.
    #[inline]
    pub(crate) fn last(self) -> Option<ClientId> {
        match self {
            Users::NoClient => None,
            Users::Only(id) | Users::Several(id) => Some(id),
        }
    }
}

/// The use of sequences in a client's present transaction (or pin).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Drawing {
    /// The transaction has not used a sequence, as far as pgweir knows.
    #[default]
    Nothing,
    /// The values that other clients had drawn on the server were discarded, because the client asks, or draws and may ask.
    Cleared,
    /// The client may have drawn a value.
    Drew,
    /// The client may have drawn a value, and a value that it asked for was discarded if it was not its own.
    Checked,
}

impl Drawing {
    /// Whether a value may have been drawn.
    #[inline]
    pub(crate) fn drew(self) -> bool {
        matches!(self, Drawing::Drew | Drawing::Checked)
    }

    /// Whether pooling is a cause of PostgreSQL's error that no value was drawn.
    pub(crate) fn took_away(self) -> bool {
        matches!(self, Drawing::Cleared | Drawing::Checked)
    }
}

/// The habit of a client to ask for the values that it drew in an earlier transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Habit {
    /// The habit is not known yet. It will be after this number of transactions that draw.
    New(u8),
    /// The client has asked, or a client of its user and `application_name` has.
    Asks,
    /// The client drew often and never asked.
    DoesNotAsk,
}

/// The knowledge of a client's use of sequences.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    pub(crate) habit: Habit,
    /// The server on which the client drew last, if it may ask, and no other client has used that server since.
    pub(crate) on: Option<ServerId>,
}

impl Default for Draws {
    fn default() -> Draws {
        Draws { habit: Habit::New(DRAWS_TRIED), on: None }
    }
}

impl Draws {
    /// Notes that this client's statements go to a server from here on, which has had these users. If the client drew there before, its
    /// values may be gone.
    #[inline]
    pub(crate) fn use_server(&mut self, id: ClientId, server_id: ServerId, users: &mut Users) {
        if users.note(id) && self.on == Some(server_id) {
            self.on = None;
        }
    }
}

/// Whether a statement may draw a value from a sequence, as far as its words tell.
#[inline]
pub(crate) fn draws(traits: &Traits) -> bool {
    matches!(traits.verb, Verb::Insert | Verb::Merge | Verb::Copy | Verb::With)
        || traits.marks.intersects(Marks::DRAWS_SEQUENCE.and(Marks::ROUTINES))
}

/// Whether a statement asks for a value that was drawn.
#[inline]
pub(crate) fn asks(marks: Marks) -> bool {
    marks.intersects(Marks::ASKS_SEQUENCE)
}

/// The step that a server which other clients have used needs before a statement that may ask or draw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Measure {
    /// The server needs no step: the values there are the client's own, or no client will know.
    Nothing,
    /// All values that were drawn there are discarded.
    Discard,
    /// All values that were drawn there are discarded, unless the requested value was drawn in this very transaction.
    Check,
}

/// Returns the step that is needed. `keeps` is true if the values that the client draws are kept for it, because it may ask.
pub(crate) fn measure(before: Drawing, draws: bool, asks: bool, keeps: bool) -> Measure {
    match before {
        Drawing::Nothing if asks || draws && keeps => Measure::Discard,
        // The discard is certain only when the server has said so.
        Drawing::Cleared if asks => Measure::Discard,
        Drawing::Drew | Drawing::Checked if asks => Measure::Check,
        _ => Measure::Nothing,
    }
}

/// The statement that discards all values that were drawn.
pub(crate) const DISCARD: &[u8] = b"DISCARD SEQUENCES";

/// Returns the text that discards all drawn values, unless the value that `text` asks for was drawn in the transaction that is open.
///
/// A session that draws from a sequence locks it until the transaction ends (`lock_and_open_sequence` in PostgreSQL's `sequence.c`), rolled
/// back to a savepoint or not. So the locks tell from which sequences a transaction drew. If a sequence was locked for another reason,
/// `lastval` is compared with the values that those sequences give.
pub(crate) fn discard_unless_drawn(text: &[u8]) -> Vec<u8> {
    let mut conditions: Vec<Vec<u8>> = Vec::new();
    let read = questions(text, |question| {
        let condition = match question {
            Question::Last => LAST_IS_DRAWN.to_vec(),
            Question::Current(argument) => {
                [b"((", argument, b"\n)::pg_catalog.regclass::pg_catalog.oid", AMONG_DRAWN].concat()
            }
        };
        if !conditions.contains(&condition) {
            conditions.push(condition);
        }
    });
    // A dollar could end the text of the block.
    if read.is_err() || conditions.is_empty() || conditions.iter().flatten().any(|byte| *byte == b'$') {
        return DISCARD.to_vec();
    }
    [CHECK_HEAD, &conditions.join(&b" AND "[..]), CHECK_TAIL].concat()
}

const CHECK_HEAD: &[u8] = b"DO $pgweir$DECLARE pgweir_drawn pg_catalog.oid[]; BEGIN \
pgweir_drawn := ARRAY(SELECT l.relation FROM pg_catalog.pg_locks AS l JOIN pg_catalog.pg_class AS c \
ON c.oid OPERATOR(pg_catalog.=) l.relation WHERE c.relkind OPERATOR(pg_catalog.=) 'S' \
AND l.locktype OPERATOR(pg_catalog.=) 'relation' AND l.mode OPERATOR(pg_catalog.=) 'RowExclusiveLock' \
AND l.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()); IF (";

const CHECK_TAIL: &[u8] = b") IS NOT TRUE THEN DISCARD SEQUENCES; END IF; \
EXCEPTION WHEN OTHERS THEN DISCARD SEQUENCES; END$pgweir$";

const LAST_IS_DRAWN: &[u8] = b"pg_catalog.lastval() OPERATOR(pg_catalog.=) ANY (ARRAY(\
SELECT pg_catalog.currval(s) FROM pg_catalog.unnest(pgweir_drawn) AS s \
WHERE pg_catalog.has_sequence_privilege(s, 'USAGE, SELECT')))";

const AMONG_DRAWN: &[u8] = b" OPERATOR(pg_catalog.=) ANY (pgweir_drawn))";

/// Whether a text that runs other code may ask inside of it.
pub(crate) fn mentions(text: &[u8]) -> bool {
    has_one_of(text, &[b"currval", b"lastval"])
}

/// Whether a statement that was prepared by SQL may draw.
pub(crate) fn mentions_draws(text: &[u8]) -> bool {
    has_one_of(text, &[b"insert", b"merge", b"nextval", b"setval"])
}

fn has_one_of(text: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|word| text.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word)))
}

/// The clients of a pool that were seen to ask, by user and `application_name`: as hashes, the newest at the end. Two that share a hash
/// only cost a moment's waiting.
#[derive(Default)]
pub(crate) struct CurrvalClients {
    known: VecDeque<u64>,
}

impl CurrvalClients {
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(crate) fn contains(&self, key: u64) -> bool {
        self.known.contains(&key)
    }

    pub(crate) fn insert(&mut self, key: u64) {
        if self.contains(key) {
            return;
        }
        if self.known.len() >= CURRVAL_CLIENTS_MAX {
            self.known.pop_front();
        }
        self.known.push_back(key);
    }
}

/// The wait of a free server for its last client.
#[derive(Clone, Copy, Debug)]
struct Affinity {
    server: ServerId,
    client: ClientId,
    until_us: u64,
    /// Whether no other client gets the server before the time is over. If false, a client that can have no other server gets it.
    firm: bool,
}

/// The availability of a free server for a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// The server waits for no client, or for this very client.
    Free,
    /// The server waits for another client, and is given away if there is no other server.
    Soft,
    /// The server waits for another client, and is not given away before this time (monotonic, µs).
    Until(u64),
}

/// The knowledge of a pool about the values that its clients draw from sequences.
#[derive(Default)]
pub(crate) struct Drawn {
    /// The clients that ask for drawn values.
    pub(crate) currval_clients: CurrvalClients,
    pub(crate) affinities: Affinities,
}

/// The servers of a pool that are kept for a client for a moment.
#[derive(Default)]
pub(crate) struct Affinities {
    all: Vec<Affinity>,
}

impl Affinities {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn begin(&mut self, server: ServerId, client: ClientId, until_us: u64, firm: bool) {
        self.end(server);
        self.all.push(Affinity { server, client, until_us, firm });
    }

    /// Ends the wait of a server that is taken, or gone.
    pub(crate) fn end(&mut self, server: ServerId) {
        self.all.retain(|affinity| affinity.server != server);
    }

    /// Ends the waits for a client that asks for something else, or is gone. Returns `true` if a server was kept for it.
    pub(crate) fn end_for(&mut self, client: ClientId) -> bool {
        let before = self.all.len();
        self.all.retain(|affinity| affinity.client != client);
        before != self.all.len()
    }

    /// Whether a server waits for this very client.
    pub(crate) fn is_for(&self, client: ClientId) -> bool {
        self.all.iter().any(|affinity| affinity.client == client)
    }

    /// Ends the affinities that have expired.
    pub(crate) fn expire(&mut self, now_us: u64) {
        self.all.retain(|affinity| affinity.until_us > now_us);
    }

    pub(crate) fn hold(&self, server: ServerId, client: Option<ClientId>) -> Hold {
        match self.all.iter().find(|affinity| affinity.server == server) {
            Some(affinity) if Some(affinity.client) == client => Hold::Free,
            Some(Affinity { firm: true, until_us, .. }) => Hold::Until(*until_us),
            Some(_) => Hold::Soft,
            None => Hold::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use pgweir_sql::traits;
    use slotmap::SlotMap;

    use super::*;

    #[test]
    fn a_session_is_one_clients_until_another_one_uses_it() {
        let mut ids = SlotMap::<ClientId, ()>::with_key();
        let (one, two) = (ids.insert(()), ids.insert(()));
        let mut users = Users::default();
        assert!(!users.note(one) && !users.note(one));
        assert_eq!(users, Users::Only(one));
        assert!(users.note(two) && users.note(one));
        assert_eq!((users, users.last()), (Users::Several(one), Some(one)));
        assert!(!users.note(one), "no client was there between");
    }

    #[test]
    fn a_server_waits_for_its_client_and_for_so_long() {
        let mut clients = SlotMap::<ClientId, ()>::with_key();
        let mut servers = SlotMap::<ServerId, ()>::with_key();
        let (one, two) = (clients.insert(()), clients.insert(()));
        let (first, second) = (servers.insert(()), servers.insert(()));
        let mut affinities = Affinities::default();
        affinities.begin(first, one, 100, false);
        affinities.begin(second, two, 200, true);
        assert_eq!(affinities.hold(first, Some(one)), Hold::Free);
        assert_eq!(affinities.hold(first, Some(two)), Hold::Soft);
        assert_eq!(affinities.hold(second, Some(one)), Hold::Until(200));
        assert_eq!(affinities.hold(second, None), Hold::Until(200));
        affinities.expire(150);
        assert_eq!(affinities.hold(first, Some(two)), Hold::Free);
        assert!(affinities.end_for(two) && !affinities.end_for(two));
        assert!(affinities.is_empty());
    }

    #[test]
    fn words_tell_which_statements_may_draw_and_which_ask() {
        let of = |text: &str| {
            let traits = traits(text.as_bytes());
            (draws(&traits), asks(traits.marks))
        };
        for text in
            ["insert into t values (1)", "with x as (insert into t values (1)) select 1", "copy t from stdin"]
        {
            assert_eq!(of(text), (true, false), "{text}");
        }
        assert_eq!(of("select nextval('s')"), (true, false));
        assert_eq!(of("do $$begin end$$"), (true, false));
        assert_eq!(of("select lastval()"), (false, true));
        assert_eq!(of("insert into t values (1); select currval('s')"), (true, true));
        assert_eq!(of("select 1"), (false, false));
    }

    #[test]
    fn what_can_be_told_from_locks_is_checked_and_the_rest_discarded() {
        let check =
            |text: &str| String::from_utf8(discard_unless_drawn(text.as_bytes())).expect("it is ASCII");
        let last = check("select lastval() as id");
        assert!(last.starts_with("DO $pgweir$") && last.contains("pg_catalog.lastval()"), "{last}");
        let current = check("select currval('a.s'), currval('a.s')");
        assert_eq!(current.matches("(('a.s'\n)::pg_catalog.regclass").count(), 1, "{current}");
        assert!(!current.contains("lastval"));
        for text in
            ["select currval($1)", "select f()", "select currval('$pgweir$;drop')", "select currval('a"]
        {
            assert_eq!(check(text), "DISCARD SEQUENCES", "{text}");
        }
    }

    #[test]
    fn a_measure_is_taken_only_where_values_could_be_mixed_up() {
        use {Drawing::*, Measure::*};
        for (before, draws, asks, keeps, expected) in [
            (Drawing::Nothing, true, false, false, Measure::Nothing),
            (Drawing::Nothing, true, false, true, Discard),
            (Drawing::Nothing, false, true, false, Discard),
            (Drawing::Nothing, false, false, true, Measure::Nothing),
            (Cleared, false, true, false, Discard),
            (Cleared, true, false, true, Measure::Nothing),
            (Drew, true, false, true, Measure::Nothing),
            (Drew, false, true, false, Check),
            (Checked, true, true, true, Check),
        ] {
            assert_eq!(measure(before, draws, asks, keeps), expected, "{before:?} {draws} {asks} {keeps}");
        }
    }
}
