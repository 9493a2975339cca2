//! `currval` and `lastval` in a later transaction than the transaction that drew the value (`sequence_affinity`).
//!
//! PostgreSQL keeps drawn values in the session. Inside of one transaction nothing else is needed. After a transaction that may
//! have drawn a value, its server keeps its *affinity* to the client for a moment: it is free, but other clients get it only if
//! there is no other server, and, if the client is known to ask, not before `sequence_affinity_ms` are over.
//!
//! No client is told another client's value. On a server that other clients have used, pgweir discards their values before a
//! client draws, as long as the client may ask; and before it asks: it then gets PostgreSQL's own error 55000. A client that
//! drew often and never asked pays nothing any more. If it does ask after a statement that may have drawn, in the same
//! transaction, the server is asked to discard all values unless the requested value was drawn in this transaction.

use std::borrow::Cow;
use std::hash::BuildHasher;

use pgweir_settings::SequenceAffinity;
use pgweir_sql::{Marks, Traits};
use pgweir_wire::backend::TxStatus;

use crate::context::Env;
use crate::context::duration_us;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::{Account, ClientState};
use crate::pool::relay::ledger::{Owner, Purpose};
use crate::pool::sequences::state::{self as sequences, Drawing, Habit, Measure, Users};
use crate::pool::server::state::ServerState;
use crate::pool::session::content::{Prepared, Session};
use crate::pool::session::pins::Reasons;

use crate::pool::relay::preamble::{Ahead, LinkPhase, Part, Preamble};

impl Pool {
    /// Whether [`Pool::use_sequences`] has something to do.
    #[inline]
    pub(crate) fn concerns_sequences(&self, text: &[u8], traits: &Traits) -> bool {
        sequences::draws(traits) || sequences::asks(traits.marks) || self.asks_inside(text)
    }

    /// Whether the text names a routine that asks for drawn values.
    #[inline]
    fn asks_inside(&self, text: &[u8]) -> bool {
        self.state.routines.asks_in(text)
    }

    /// Prepares the server for a linked client's statement about which [`Pool::concerns_sequences`] is true, before it is sent. `simple` is
    /// true for a Query, and false for a message of the extended protocol.
    pub(crate) fn use_sequences(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        (text, traits): (&[u8], &Traits),
        simple: bool,
    ) {
        let Some(server) = self.servers.get(server_id) else { return };
        if self.state.policy.sequences == SequenceAffinity::Off {
            return;
        }
        let users = server.users;
        let Some(client) = self.clients.get(id) else { return };
        let (ClientState::Linked(link), account) = (&client.state, &client.account) else { return };
        let Touching { draws, plainly, asks: asking } = touching(&account.session, text, traits);
        let inside = self.asks_inside(text);
        let asking = asking.or_else(|| inside.then_some(Cow::Borrowed(text)));
        // If the replay before it fails, so does this.
        let is_own = users == Users::Only(id)
            || link.drawing == Drawing::Cleared
                && matches!(link.phase, LinkPhase::Exchange(Preamble::Sent(Ahead::Session, Part::Open)));
        // Before a statement that may commit inside of it (CALL), nothing is put into its transaction.
        let keeps = (self.keeps_draws(account) || link.pin.is_some())
            && (simple && plainly || !traits.marks.intersects(Marks::ROUTINES));
        // A statement of ours that fails before it there would have it skipped, and an unnamed Parse does something even
        // then.
        let fails = !simple && server.tx == TxStatus::Failed && server.ledger.of_clients().next().is_none();
        let measure = match is_own || fails {
            true => Measure::Nothing,
            false => sequences::measure(link.drawing, draws, asking.is_some(), keeps),
        };
        let before = match measure {
            Measure::Nothing => None,
            Measure::Discard => Some((Drawing::Cleared, Cow::Borrowed(sequences::DISCARD))),
            Measure::Check if inside => Some((Drawing::Checked, Cow::Borrowed(sequences::DISCARD))),
            Measure::Check => {
                let asked = asking.as_deref().unwrap_or(text);
                Some((Drawing::Checked, Cow::Owned(sequences::discard_unless_drawn(asked))))
            }
        };
        let asks = asking.is_some();
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            if let Some((drawing, _)) = before {
                link.drawing = drawing;
            }
            if draws && !link.drawing.drew() {
                link.drawing = Drawing::Drew;
            }
        }
        if asks {
            self.remember_currval_client(env, id);
        }
        match before {
            None => {}
            Some((_, text)) if simple => env.ahead.add_hidden(Purpose::Sequences, &text),
            Some((_, text)) => env.ahead.add_aside(Owner::Prerequisite(id), &text),
        }
    }

    /// Remembers that clients of this user and `application_name` ask for drawn values: their servers are kept for them from here on.
    fn remember_currval_client(&mut self, env: &Env, id: ClientId) {
        let Some(account) = self.clients.get(id).map(|client| &client.account) else { return };
        if account.draws.habit == Habit::Asks {
            return;
        }
        let key = self.currval_key(env, account);
        self.state.drawn.currval_clients.insert(key);
        let alike: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| self.currval_key(env, &client.account) == key)
            .map(|(id, _)| id)
            .collect();
        for id in alike {
            if let Some(account) = self.clients.get_mut(id).map(|client| &mut client.account) {
                account.draws.habit = Habit::Asks;
            }
        }
    }

    /// Checks for a client that has logged in whether similar clients asked for drawn values before.
    pub(crate) fn recall_currval_client(&mut self, env: &Env, id: ClientId) {
        let Some(account) = self.clients.get(id).map(|client| &client.account) else { return };
        let known = &self.state.drawn.currval_clients;
        if !known.is_empty()
            && known.contains(self.currval_key(env, account))
            && let Some(account) = self.clients.get_mut(id).map(|client| &mut client.account)
        {
            account.draws.habit = Habit::Asks;
        }
    }

    fn currval_key(&self, env: &Env, account: &Account) -> u64 {
        let position = env.tracked.position(b"application_name");
        let name = position.and_then(|position| account.params.get(position)).unwrap_or_default();
        foldhash::fast::FixedState::default().hash_one((&*account.user, name))
    }

    /// Whether a group of this client that may draw is looked at message by message, and is not multiplexed: the client may ask for the
    /// values.
    pub(crate) fn keeps_draws(&self, account: &Account) -> bool {
        match self.state.policy.sequences {
            SequenceAffinity::Off => false,
            SequenceAffinity::Wait => account.draws.habit != Habit::DoesNotAsk,
            SequenceAffinity::Pin => true,
        }
    }

    /// Returns whether the values that other clients drew on the server must be discarded first: the client is known to ask, and begins a
    /// statement that may ask.
    pub(crate) fn clears_sequences(&mut self, id: ClientId, server_id: ServerId) -> bool {
        let (Some(client), Some(server)) = (self.clients.get_mut(id), self.servers.get(server_id)) else {
            return false;
        };
        let (ClientState::Linked(link), account) = (&mut client.state, &client.account) else {
            return false;
        };
        let clears = account.draws.habit == Habit::Asks
            && self.state.policy.sequences != SequenceAffinity::Off
            && link.group.is_none()
            && server.users != Users::Only(id);
        if clears {
            link.drawing = Drawing::Cleared;
        }
        clears
    }

    /// Returns the reasons for which a client keeps its server at the moment *rest*: it drew a value, and `sequence_affinity` is `pin`.
    pub(crate) fn pins_drawer(&mut self, id: ClientId) -> Option<Reasons> {
        let ClientState::Linked(link) = &mut self.clients.get_mut(id)?.state else { return None };
        if self.state.policy.sequences != SequenceAffinity::Pin {
            if link.pin.is_some() {
                // Its next transaction is another one.
                link.drawing = Drawing::Nothing;
            }
            return None;
        }
        let reasons = link.pin.as_ref().map_or(Reasons::NONE, |pin| pin.reasons);
        link.drawing.drew().then(|| reasons.with(Reasons::SEQUENCES))
    }

    /// Notes that the session's knowledge of sequences is gone: by the client's will, or by pgweir's before the client's statement.
    pub(crate) fn sequences_discarded(&mut self, server_id: ServerId, by_client: bool) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        let client = server.state.client();
        server.users = client.map_or(Users::NoClient, Users::Only);
        if let Some(client) = client.and_then(|client| self.clients.get_mut(client))
            && let ClientState::Linked(link) = &mut client.state
            && by_client
        {
            if link.drawing == Drawing::Drew {
                link.drawing = Drawing::Nothing;
            }
            if let Some(pin) = &mut link.pin {
                pin.reasons = pin.reasons.without(Reasons::SEQUENCES);
            }
        }
    }

    /// Begins the affinity of a server that its client has left, after a transaction that may have drawn a value.
    pub(crate) fn begin_affinity(&mut self, env: &Env, id: ServerId, client_id: ClientId) {
        let now_us = env.now.mono_us;
        let affinity_us = duration_us(env.rules.config.main.sequence_affinity_ms);
        let Some(account) = self.clients.get_mut(client_id).map(|client| &mut client.account) else {
            return;
        };
        let pool = &mut self.state;
        if pool.policy.sequences != SequenceAffinity::Wait {
            return;
        }
        let firm = match account.draws.habit {
            Habit::Asks => true,
            Habit::New(left) => {
                account.draws.habit = if left > 1 { Habit::New(left - 1) } else { Habit::DoesNotAsk };
                false
            }
            Habit::DoesNotAsk => {
                account.draws.on = None;
                return;
            }
        };
        account.draws.on = Some(id);
        let is_free = self.servers.get(id).is_some_and(|server| matches!(server.state, ServerState::Idle));
        if is_free && affinity_us > 0 {
            pool.drawn.affinities.begin(id, client_id, now_us.saturating_add(affinity_us), firm);
        }
    }

    /// Ends the affinity of a server that a client got (or on which it got a place), and every affinity for this client.
    #[inline]
    pub(crate) fn end_affinity(&mut self, server: Option<ServerId>, client: ClientId) {
        let pool = &mut self.state;
        if pool.drawn.affinities.is_empty() {
            return;
        }
        server.into_iter().for_each(|server| pool.drawn.affinities.end(server));
        if pool.drawn.affinities.end_for(client) && pool.is_starving() {
            self.notice();
        }
    }
}

/// The use that a text makes of sequences.
struct Touching<'a> {
    /// Whether the text may draw a value.
    draws: bool,
    /// Whether the statements that may draw are known.
    plainly: bool,
    /// The text that asks for drawn values: this one, or one that it runs. `None` if it does not ask.
    asks: Option<Cow<'a, [u8]>>,
}

fn touching<'a>(session: &'a Session, text: &'a [u8], traits: &Traits) -> Touching<'a> {
    let runs = traits.marks.intersects(Marks::ROUTINES);
    let asks = sequences::asks(traits.marks) || runs && sequences::mentions(text);
    let asks = asks.then_some(Cow::Borrowed(text));
    if !traits.marks.contains(Marks::ROUTINES.and(Marks::PREPARED)) {
        return Touching { draws: sequences::draws(traits), plainly: true, asks };
    }
    let inside = |prepared: &&Prepared| sequences::mentions(&prepared.text);
    let (known, asking) = match pgweir_sql::executed_name(text) {
        Some(name) => {
            let known = session.prepared().find(|prepared| *prepared.name == *name);
            (known, known.filter(inside))
        }
        None => (None, session.prepared().find(inside)),
    };
    Touching {
        draws: known.is_none_or(|prepared| sequences::mentions_draws(&prepared.text)),
        plainly: known.is_some(),
        asks: asks.or(asking.map(|prepared| Cow::Borrowed(&*prepared.text))),
    }
}
