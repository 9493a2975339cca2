//! SQL that names statements that its client prepared through the protocol: EXECUTE, DEALLOCATE, PREPARE, and
//! `pg_prepared_statements`.
//!
//! PostgreSQL has one set of names for both ways to prepare. Servers know the protocol's statements by content, under names of
//! ours. When SQL meets a name of the protocol, the server forgets our names, gets the client's statements under the client's
//! own names, and stays with the client until none of them is left: its messages pass unchanged from there on. A plain
//! DEALLOCATE of one name is all that needs no pin: the name stands for an empty statement while it runs.
//!
//! This file never tells one client's names or texts to another: before a client may see names, those that are not its own go.

use pgweir_sql::{Marks, NameUse, Statements, Traits, prepared_names};
use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::{self, Target, tag};

use crate::context::Env;
use crate::ids::{ClientId, ServerId, StatementId};
use crate::pool::client::state::{Client, ClientState, OwnNames, Waits};
use crate::pool::prepared::messages::{OUR_PREFIX, PREPARED_TWICE};
use crate::pool::relay::ahead::Ahead;
use crate::pool::relay::ledger::{Entry, Kind, Ledger, Owner, Purpose};
use crate::pool::session::content::Prepared;
use crate::pool::session::pins::{Reasons, Touched};
use crate::pool::{Pool, Step};

/// How a text uses names of prepared statements.
#[derive(PartialEq, Eq, Debug)]
enum Concern {
    Nothing,
    /// It may see or use our names.
    Ours,
    /// It ends this name of the protocol, which has this ticket and cannot be one of SQL, and does nothing else.
    Ends(Box<[u8]>, u32),
    /// It meets names of the protocol.
    Meets,
}

/// How a client sends a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// As a simple query or as the unnamed statement.
    Unnamed,
    /// As a statement that has a name: Parse or Describe, which execute nothing.
    Named,
    /// As a statement that has a name, in a Bind.
    Bound,
}

/// The next step for a message whose text was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// It goes as it would have gone.
    Unchanged,
    /// The server knows the client's own names from here on: its session must be asked which are there.
    Exposed,
    /// It waits for answers.
    Waits(Owed),
}

/// Whether the answers that a message waits for come by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// Yes: a Sync or a Query was sent after what they answer.
    Comes,
    /// PostgreSQL may keep them back until it is asked.
    IsAsked,
}

impl Named {
    /// Why a message that names a prepared statement does not go on as it is.
    pub(crate) fn keeps_message(self) -> Option<Step> {
        match self {
            Named::Unchanged => None,
            // It is looked at once more, as a message that passes.
            Named::Exposed => Some(Step::Used(0)),
            Named::Waits(_) => Some(Step::Wait),
        }
    }
}

/// Texts with one of these may meet names that the protocol prepared.
pub(crate) const MEETS_NAMES: Marks = Marks::PREPARED.and(Marks::SHOWS_PREPARED).and(Marks::ROUTINES);

impl Pool {
    /// [`Pool::meet_names`] may have something to do.
    #[inline]
    pub(crate) fn may_meet_names(&self, id: ClientId, traits: &Traits) -> bool {
        traits.marks.intersects(MEETS_NAMES) && self.may_expose(id)
    }

    #[cold]
    fn may_expose(&self, id: ClientId) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        let ClientState::Linked(link) = &client.state else {
            return false;
        };
        self.state.policy.keeps_sessions()
            && link.own_names != OwnNames::Exposed
            && self.client_tracks_statements(id)
    }

    /// A text of a linked client is about to go to its server.
    pub(crate) fn meet_names(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        (text, traits): (&[u8], &Traits),
        sent: Sent,
    ) -> Named {
        let concern = self.concern(id, text, traits, sent);
        if sent != Sent::Named
            && may_use_names(text, traits)
            && let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state)
        {
            link.names_used_in = Some(self.servers[server_id].ledger.group());
        }
        self.meet(env, id, server_id, concern)
    }

    /// A name is about to be prepared, in a group with a text that uses names and may still have to run: as if that text met
    /// this name.
    pub(crate) fn meet_new_name(&mut self, env: &mut Env, id: ClientId, server_id: ServerId) -> Named {
        let state = self.clients.get(id).map(|client| &client.state);
        let Some(ClientState::Linked(link)) = state else { return Named::Unchanged };
        let is_used = link.names_used_in == Some(self.servers[server_id].ledger.group());
        match is_used && self.may_expose(id) {
            true => self.meet(env, id, server_id, Concern::Meets),
            false => Named::Unchanged,
        }
    }

    fn meet(&mut self, env: &mut Env, id: ClientId, server_id: ServerId, concern: Concern) -> Named {
        if concern == Concern::Nothing || self.servers[server_id].ledger.is_skipping() {
            return Named::Unchanged;
        }
        if self.waits_for_names(id, server_id) {
            return Named::Waits(Owed::IsAsked);
        }
        if concern != Concern::Ours
            && let Some(owed) = self.asks_status(env, server_id)
        {
            return Named::Waits(owed);
        }
        // Every Parse or Execute in a failed transaction fails.
        let has_failed = self.servers[server_id].tx == TxStatus::Failed;
        match concern {
            Concern::Ours => self.hide_names(env, server_id),
            Concern::Ends(name, ticket) if !has_failed => {
                self.put_empty_statement(env, id, server_id, (name, ticket));
            }
            Concern::Meets if !has_failed => {
                let ledger = &self.servers[server_id].ledger;
                if !ledger.is_between_groups() && !ledger.is_empty() {
                    // If the group fails, none of the names is there, and the messages after the group must not count on
                    // them.
                    return Named::Waits(owed(ledger));
                }
                self.expose_names(env, id, server_id);
                return Named::Exposed;
            }
            _ => {}
        }
        Named::Unchanged
    }

    /// The transaction had failed when the open group began, and this group may have rolled it back: only a ReadyForQuery tells.
    /// In a failed transaction, and after its end, a Sync changes nothing else.
    fn asks_status(&mut self, env: &mut Env, server_id: ServerId) -> Option<Owed> {
        let server = &self.servers[server_id];
        if server.tx != TxStatus::Failed || server.ledger.is_between_groups() {
            return None;
        }
        if !server.ledger.is_empty() {
            return Some(Owed::IsAsked);
        }
        env.ahead.add(Entry::new(Owner::Hidden(Purpose::OwnName), Kind::Sync), frontend::encode_sync);
        Some(Owed::Comes)
    }

    /// The meaning of a name in a text depends on answers that are owed.
    fn waits_for_names(&self, id: ClientId, server_id: ServerId) -> bool {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return false;
        };
        let Some(server) = self.servers.get(server_id) else { return false };
        // As `names_are_uncertain`; but a change that this very message makes is not forgotten because no answer is owed
        // yet.
        let uncertain = link.waits.has(Waits::DISCARDS) && !server.ledger.is_empty()
            || server.ledger.awaits_earlier_changes();
        // The possible actions depend on whether the transaction has failed.
        uncertain || !server.ledger.is_status_known()
    }

    fn concern(&self, id: ClientId, text: &[u8], traits: &Traits, sent: Sent) -> Concern {
        let Some(account) = self.clients.get(id).map(|client| &client.account) else {
            return Concern::Nothing;
        };
        let own = account.statements.as_deref().filter(|statements| statements.len() > 0);
        let shows = traits.marks.intersects(Marks::SHOWS_PREPARED);
        if shows && (own.is_some() || sent != Sent::Unnamed) {
            return Concern::Meets;
        }
        if let Some(own) = own {
            let (mut met, mut ends, mut names, mut unread) = (false, None, 0, false);
            prepared_names(text, |name_use, name| {
                names += 1;
                let Some(name) = name else {
                    unread = true;
                    return;
                };
                let Some(ticket) = own.ticket(&name) else { return };
                met = true;
                if name_use == NameUse::Ends {
                    ends = Some((name.into_owned().into_boxed_slice(), ticket));
                }
            });
            let inside = changes_names_inside(text, traits);
            match ends {
                Some((name, ticket))
                    if names == 1
                        && traits.statements == Statements::One
                        && !self.may_be_taken_by_sql(id, &name) =>
                {
                    // The name stays as it is until the text runs.
                    return if sent == Sent::Named { Concern::Nothing } else { Concern::Ends(name, ticket) };
                }
                _ if met || unread || inside => return Concern::Meets,
                _ => {}
            }
        }
        if shows || mentions(text, OUR_PREFIX) { Concern::Ours } else { Concern::Nothing }
    }

    /// The server forgets the names by which it knows the protocol's statements.
    pub(crate) fn hide_names(&mut self, env: &mut Env, server_id: ServerId) {
        let ours: Vec<StatementId> = self.servers[server_id].statements.iter().collect();
        ours.into_iter().for_each(|statement| self.evict_statement(env, server_id, statement));
        env.ahead.add(Entry::new(Owner::Hidden(Purpose::Evict), Kind::Close), |out| {
            frontend::encode_close(out, Target::Statement, PREPARED_TWICE);
        });
    }

    /// The server knows the client's statements by the client's own names from here on, and no others.
    ///
    /// Between two groups each statement is prepared in a separate group: a statement that cannot be prepared any more is
    /// missing then, and no other statement fails with it. In the middle of a group the first that fails ends that group.
    fn expose_names(&mut self, env: &mut Env, id: ClientId, server_id: ServerId) {
        let owner = owner_of_names(&self.servers[server_id].ledger, id);
        self.hide_names(env, server_id);
        let account = self.clients.get(id).map(|client| &client.account);
        let own = account.and_then(|account| account.statements.as_deref());
        let mut names: Vec<_> = own
            .into_iter()
            .flat_map(|own| own.iter().map(|(name, id)| (name, id, own.ticket(name).unwrap_or_default())))
            .collect();
        // As the client prepared them: one may execute another.
        names.sort_unstable_by_key(|(.., ticket)| *ticket);
        for (name, statement, ticket) in names {
            let Some(known) = env.statements.get(statement) else { continue };
            let statement = (name, &*known.query, known.resolved_types());
            prepare_name(&mut env.ahead, (owner, ticket), statement);
        }
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            link.own_names = OwnNames::Exposed;
        }
    }

    /// An error ended or skipped the Parse that was to expose a name in the middle of a group.
    #[cold]
    pub(crate) fn exposing_undone(&mut self, server_id: ServerId, entry: Entry) {
        let id = entry.owner.client();
        if let Some(ClientState::Linked(link)) =
            id.and_then(|id| self.clients.get_mut(id)).map(|client| &mut client.state)
            && link.own_names == OwnNames::Exposed
        {
            link.own_names = OwnNames::Hidden;
            if let Some(server) = self.servers.get_mut(server_id) {
                // Some of the names may be there.
                server.retire.get_or_insert("session could not be restored");
            }
        }
    }

    /// The server has none of the client's statements any more: the client has none.
    pub(crate) fn conceal_names(&mut self, env: &mut Env, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), account) = (&mut client.state, &mut client.account) else {
            return;
        };
        link.own_names = OwnNames::Hidden;
        let own = account.statements.as_deref_mut();
        for statement in own.map(|own| own.discard(|_| false)).unwrap_or_default() {
            env.statements.give_back_name(statement);
        }
    }

    /// The client's own names are on its server.
    pub(crate) fn has_exposed_names(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(Client::has_exposed_names)
    }

    /// The name stands for an empty statement while the text that ends it runs. If it is still there after that, it is
    /// closed.
    fn put_empty_statement(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        (name, ticket): (Box<[u8]>, u32),
    ) {
        let owner = owner_of_names(&self.servers[server_id].ledger, id);
        prepare_name(&mut env.ahead, (owner, 0), (&name, b"", b""));
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            link.waits.set(Waits::DISCARDS, true);
            link.own_names = OwnNames::Ending(name, ticket);
        }
    }

    /// The ticket of the name that the message sent now deallocates.
    #[inline]
    pub(crate) fn ending_ticket(&mut self, id: ClientId, kind: Kind) -> u32 {
        match self.clients.get_mut(id).map(|client| &mut client.state) {
            Some(ClientState::Linked(link)) if matches!(kind, Kind::Query | Kind::Execute) => {
                match &mut link.own_names {
                    OwnNames::Ending(_, ticket) => std::mem::take(ticket),
                    _ => 0,
                }
            }
            _ => 0,
        }
    }

    /// The end of a group of messages was passed on: the server forgets the name that the group was about.
    pub(crate) fn take_name_back(&mut self, env: &mut Env, id: ClientId) {
        let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) else {
            return;
        };
        let OwnNames::Ending(name, _) = &link.own_names else { return };
        let owner = Owner::Hidden(Purpose::OwnName);
        env.ahead.add(Entry::new(owner, Kind::Close), |out| {
            frontend::encode_close(out, Target::Statement, name);
        });
        env.ahead.add(Entry::new(owner, Kind::Sync), frontend::encode_sync);
        link.own_names = OwnNames::Hidden;
    }

    /// See [`Pool::take_name_back`].
    #[inline]
    pub(crate) fn is_ending_name(&self, id: ClientId, message: u8) -> bool {
        matches!(message, tag::QUERY | tag::SYNC)
            && matches!(self.clients.get(id).map(|client| &client.state),
                Some(ClientState::Linked(link))
                    if matches!(link.own_names, OwnNames::Ending(..)) && link.streaming == 0)
    }

    /// A DEALLOCATE succeeded; `entry` is that of its message.
    pub(crate) fn deallocated(&mut self, env: &mut Env, entry: Entry) {
        if entry.ticket != 0 {
            self.forget_name(env, entry);
        }
    }
}

/// Statements that the client prepared by SQL and uses through the protocol: servers know them by the client's own names.
impl Pool {
    /// The client prepared this by SQL, in a transaction that is over.
    pub(crate) fn prepared_by_sql(&self, id: ClientId, name: &[u8]) -> Option<&Prepared> {
        let account = &self.clients.get(id)?.account;
        account.session.prepared().find(|prepared| *prepared.name == *name)
    }

    /// It may have prepared something by SQL that this name means.
    fn may_be_prepared_by_sql(&self, id: ClientId, name: &[u8]) -> bool {
        !is_ours(name) && (self.may_have_prepared(id) || self.prepared_by_sql(id, name).is_some())
    }

    /// The same, of a name that it is about to prepare through the protocol: if it keeps its server for another reason than its
    /// prepared statements, that is known.
    pub(crate) fn may_be_taken_by_sql(&self, id: ClientId, name: &[u8]) -> bool {
        let unseen = Reasons::PREPARED.with(Reasons::UNKNOWN);
        let state = self.clients.get(id).map(|client| &client.state);
        let pin = if let Some(ClientState::Linked(link)) = state { link.pin.as_ref() } else { None };
        let unknown = pin.is_some_and(|pin| pin.reasons.has(unseen)) || self.prepares_unseen(id);
        !is_ours(name) && (unknown || self.prepared_by_sql(id, name).is_some())
    }

    /// It may have prepared a statement by SQL that pgweir does not know of, or deallocated one that it had.
    fn may_have_prepared(&self, id: ClientId) -> bool {
        let state = self.clients.get(id).map(|client| &client.state);
        let pinned = matches!(state, Some(ClientState::Linked(link)) if link.pin.is_some());
        pinned || self.prepares_unseen(id)
    }

    /// Since its session was asked for, it may have prepared by SQL, or deallocated a statement that it had.
    fn prepares_unseen(&self, id: ClientId) -> bool {
        let changes = |touched: &Touched| touched.marks.intersects(Marks::PREPARED.and(Marks::ROUTINES));
        let state = self.clients.get(id).map(|client| &client.state);
        matches!(state, Some(ClientState::Linked(link)) if link.touched.as_deref().is_some_and(changes))
    }

    /// A Close of this name is about a statement that the client may have prepared by SQL.
    pub(crate) fn closes_by_sql(&self, id: ClientId, name: &[u8]) -> bool {
        self.client_statement(id, name).is_none() && self.may_be_prepared_by_sql(id, name)
    }
}

/// The owner for which the client's own names are prepared: between two groups each in a separate hidden group, else in the
/// client's group.
fn owner_of_names(ledger: &Ledger, id: ClientId) -> Owner {
    if ledger.is_between_groups() { Owner::Hidden(Purpose::OwnName) } else { Owner::Prerequisite(id) }
}

/// What a message waits for that waits until everything is answered that its server owes.
fn owed(ledger: &Ledger) -> Owed {
    if ledger.is_between_groups() { Owed::Comes } else { Owed::IsAsked }
}

/// The server prepares this text under this name, even if the name stood for another statement before.
fn prepare_name(
    ahead: &mut Ahead,
    (owner, ticket): (Owner, u32),
    (name, query, types): (&[u8], &[u8], &[u8]),
) {
    ahead.add(Entry { ticket, ..Entry::new(owner, Kind::Close) }, |out| {
        frontend::encode_close(out, Target::Statement, name);
    });
    ahead.add(Entry { ticket, ..Entry::new(owner, Kind::Parse) }, |out| {
        frontend::encode_parse(out, name, query, types);
    });
    if matches!(owner, Owner::Hidden(_)) {
        ahead.add(Entry::new(owner, Kind::Sync), frontend::encode_sync);
    }
}

/// A name by which servers know the protocol's statements: no client's.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    name.starts_with(OUR_PREFIX)
}

/// A text that runs code of which no more is known, with a word in it that prepares or ends names.
fn changes_names_inside(text: &[u8], traits: &Traits) -> bool {
    traits.marks.intersects(Marks::ROUTINES)
        && [&b"prepare"[..], b"deallocate"].iter().any(|word| mentions(text, word))
}

/// What a text does when it runs may depend on the names that are prepared then, or on what they mean.
fn may_use_names(text: &[u8], traits: &Traits) -> bool {
    let mut uses = traits.marks.intersects(Marks::SHOWS_PREPARED) || changes_names_inside(text, traits);
    prepared_names(text, |name_use, _| uses |= name_use != NameUse::Ends);
    uses
}

/// The word stands in the text, in letters of any case.
fn mentions(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}
