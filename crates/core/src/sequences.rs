//! What `currval` and `lastval` need to be right although servers change hands: whose drawn values a server's session may hold, who
//! is likely to ask for them, and which free server waits a moment for its last client. Values only;
//! `machine/session/sequences.rs` decides by them.

use std::collections::VecDeque;

use pgweir_sql::{Marks, Traits, Verb};

use crate::ids::{ClientId, ServerId};
use crate::limits::{ASKERS_MAX, DRAWS_TRIED};

/// Whose transactions a session has seen since it held no drawn value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Users {
    /// Nobody's: `currval` of any sequence is an error there.
    #[default]
    Nobody,
    /// This client's alone: whatever `currval` says is its own.
    Only(ClientId),
    /// Several clients': it may be anybody's, but for what this one, which was there last, has drawn since.
    Several(ClientId),
}

impl Users {
    /// A client's statement goes there. `true` if another one was there before it.
    #[inline]
    pub(crate) fn note(&mut self, id: ClientId) -> bool {
        let (before, now) = match *self {
            Users::Nobody => (None, Users::Only(id)),
            Users::Only(other) if other == id => return false,
            Users::Only(other) | Users::Several(other) => (Some(other), Users::Several(id)),
        };
        *self = now;
        before.is_some_and(|other| other != id)
    }

    /// Who was there last.
    #[inline]
    pub(crate) fn last(self) -> Option<ClientId> {
        match self {
            Users::Nobody => None,
            Users::Only(id) | Users::Several(id) => Some(id),
        }
    }
}

/// What a client's present transaction (or pin) did with sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Drawing {
    /// Nothing that is known.
    #[default]
    Nothing,
    /// What others had drawn on the server was discarded, because the client asks.
    Cleared,
    /// It may have drawn a value.
    Drew,
}

/// Whether a client asks for what it drew in an earlier transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Habit {
    /// Nobody knows yet; so many transactions that draw will tell.
    New(u8),
    /// It did, or one of its user and `application_name` did.
    Asks,
    /// It drew often and never asked.
    DoesNotAsk,
}

/// What is known of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draws {
    pub(crate) habit: Habit,
    /// Where it drew last, if it may ask, and nobody has been there since.
    pub(crate) on: Option<ServerId>,
}

impl Default for Draws {
    fn default() -> Draws {
        Draws { habit: Habit::New(DRAWS_TRIED), on: None }
    }
}

/// A statement that may draw a value from a sequence, as far as its words tell.
#[inline]
pub(crate) fn draws(traits: &Traits) -> bool {
    matches!(traits.verb, Verb::Insert | Verb::Merge | Verb::Copy | Verb::With)
        || traits.marks.intersects(Marks::DRAWS_SEQUENCE.and(Marks::ROUTINES))
}

/// A statement that asks for a value that was drawn.
#[inline]
pub(crate) fn asks(marks: Marks) -> bool {
    marks.intersects(Marks::ASKS_SEQUENCE)
}

/// Who of a pool's clients was seen to ask, by user and `application_name`: as hashes, the newest at the end. Two that share one
/// cost a moment's waiting, no more.
#[derive(Default)]
pub(crate) struct Askers {
    known: VecDeque<u64>,
}

impl Askers {
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
        if self.known.len() >= ASKERS_MAX {
            self.known.pop_front();
        }
        self.known.push_back(key);
    }
}

/// A free server that waits for its last client.
#[derive(Clone, Copy, Debug)]
struct Linger {
    server: ServerId,
    client: ClientId,
    until_us: u64,
    /// Nobody else gets it before that; else, nobody who could have another one.
    firm: bool,
}

/// What a free server is to a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    /// It waits for nobody, or for this very client.
    Free,
    /// It is given away if there is no other.
    Soft,
    /// It is not given away before this time (monotonic, µs).
    Until(u64),
}

/// A pool's servers that linger.
#[derive(Default)]
pub(crate) struct Lingering {
    all: Vec<Linger>,
}

impl Lingering {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn begin(&mut self, server: ServerId, client: ClientId, until_us: u64, firm: bool) {
        self.end(server);
        self.all.push(Linger { server, client, until_us, firm });
    }

    /// The server is taken, or gone.
    pub(crate) fn end(&mut self, server: ServerId) {
        self.all.retain(|linger| linger.server != server);
    }

    /// The client asks for something else, or is gone. `true` if a server was kept for it.
    pub(crate) fn end_for(&mut self, client: ClientId) -> bool {
        let before = self.all.len();
        self.all.retain(|linger| linger.client != client);
        before != self.all.len()
    }

    /// A server waits for this very client.
    pub(crate) fn is_for(&self, client: ClientId) -> bool {
        self.all.iter().any(|linger| linger.client == client)
    }

    /// Those whose time is over linger no more.
    pub(crate) fn expire(&mut self, now_us: u64) {
        self.all.retain(|linger| linger.until_us > now_us);
    }

    pub(crate) fn hold(&self, server: ServerId, client: Option<ClientId>) -> Hold {
        match self.all.iter().find(|linger| linger.server == server) {
            Some(linger) if Some(linger.client) == client => Hold::Free,
            Some(Linger { firm: true, until_us, .. }) => Hold::Until(*until_us),
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
        assert!(!users.note(one), "nobody was there between");
    }

    #[test]
    fn a_server_lingers_for_its_client_and_for_so_long() {
        let mut clients = SlotMap::<ClientId, ()>::with_key();
        let mut servers = SlotMap::<ServerId, ()>::with_key();
        let (one, two) = (clients.insert(()), clients.insert(()));
        let (first, second) = (servers.insert(()), servers.insert(()));
        let mut lingering = Lingering::default();
        lingering.begin(first, one, 100, false);
        lingering.begin(second, two, 200, true);
        assert_eq!(lingering.hold(first, Some(one)), Hold::Free);
        assert_eq!(lingering.hold(first, Some(two)), Hold::Soft);
        assert_eq!(lingering.hold(second, Some(one)), Hold::Until(200));
        assert_eq!(lingering.hold(second, None), Hold::Until(200));
        lingering.expire(150);
        assert_eq!(lingering.hold(first, Some(two)), Hold::Free);
        assert!(lingering.end_for(two) && !lingering.end_for(two));
        assert!(lingering.is_empty());
    }

    #[test]
    fn words_tell_who_may_draw_and_who_asks() {
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
}
