//! SQL that names statements that its client prepared through the protocol: EXECUTE, DEALLOCATE, PREPARE, and
//! `pg_prepared_statements`.
//!
//! PostgreSQL has one set of names for both ways to prepare. Servers know the protocol's statements by content, under
//! pgweir's names. When SQL uses a name of the protocol, the server forgets pgweir's names, gets the client's statements under the
//! client's own names, and stays with the client until none of them is left: the client's messages pass unchanged from there on.
//! Only a plain DEALLOCATE of one name needs no pin: the name stands for an empty statement while it runs.
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

/// The use that a text makes of names of prepared statements.
#[derive(PartialEq, Eq, Debug)]
enum Concern {
    Nothing,
    /// The text may see or use pgweir's names.
    Ours,
    /// The text only ends this name of the protocol, which has this ticket and cannot be a name of SQL.
    Ends(Box<[u8]>, u32),
    /// The text uses names of the protocol.
    Meets,
}

/// The way in which a client sends a text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// The text is a simple query or the unnamed statement.
    Unnamed,
    /// The text is a statement that has a name, in a Parse or Describe, which execute nothing.
    Named,
    /// The text is a statement that has a name, in a Bind.
    Bound,
}

/// The next step for a message whose text was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Named {
    /// The message is sent as if its text used no names.
    Unchanged,
    /// The server knows the client's own names from here on: at the end of the transaction it must be asked which are left.
    Exposed,
    /// The message waits for answers.
    Waits(Owed),
}

/// Whether the answers that a message waits for come by themselves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// The answers come by themselves: a Sync or a Query was sent after the messages that they answer.
    Comes,
    /// PostgreSQL may keep the answers back until it is asked for them.
    IsAsked,
}

impl Named {
    /// Returns the step for a message that names a prepared statement if the message cannot be sent yet; `None` if it can.
    pub(crate) fn keeps_message(self) -> Option<Step> {
        match self {
            Named::Unchanged => None,
            // It is looked at once more, as a message that passes.
            Named::Exposed => Some(Step::Used(0)),
            Named::Waits(_) => Some(Step::Wait),
        }
    }
}

/// The marks of texts that may use names that the protocol prepared.
pub(crate) const MEETS_NAMES: Marks = Marks::PREPARED.and(Marks::SHOWS_PREPARED).and(Marks::ROUTINES);

impl Pool {
    /// Whether [`Pool::meet_names`] may have something to do.
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

    /// Prepares the server for the names in a text of a linked client, which is about to be sent. Returns the next step for the message.
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

    /// Prepares the server for a name that is about to be prepared, in a group with a text that uses names and may still have to run: as if
    /// that text used this name. Returns the next step for the message.
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

    /// Returns whether the group waits for a ReadyForQuery that tells the transaction status: the transaction had failed when the open
    /// group began, and this group may have rolled it back. In a failed transaction, and after its end, a Sync changes nothing else.
    fn asks_status(&mut self, env: &mut Env, server_id: ServerId) -> Option<Owed> {
        let server = &self.servers[server_id];
        if server.tx != TxStatus::Failed || server.ledger.is_between_groups() {
            return None;
        }
        if !server.ledger.is_empty() {
            return Some(Owed::IsAsked);
        }
        add_sync(&mut env.ahead);
        Some(Owed::Comes)
    }

    /// Whether the meaning of a name in a text depends on answers that are owed.
    fn waits_for_names(&self, id: ClientId, server_id: ServerId) -> bool {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return false;
        };
        let Some(server) = self.servers.get(server_id) else { return false };
        // As `names_are_uncertain` decides, but a change that this very message makes counts although no answer is owed yet.
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

    /// Removes the names by which the server knows the protocol's statements.
    pub(crate) fn hide_names(&mut self, env: &mut Env, server_id: ServerId) {
        let ours: Vec<StatementId> = self.servers[server_id].statements.iter().collect();
        ours.into_iter().for_each(|statement| self.evict_statement(env, server_id, statement));
        env.ahead.add(Entry::new(Owner::Hidden(Purpose::Evict), Kind::Close), |out| {
            frontend::encode_close(out, Target::Statement, PREPARED_TWICE);
        });
    }

    /// Prepares the client's statements on the server under the client's own names, and removes all other names.
    ///
    /// Between two groups each statement is prepared in a separate group: a statement that cannot be prepared any more is missing then, and
    /// no other statement fails with it. In the middle of a group the first that fails ends that group.
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

    /// Notes that an error ended or skipped the Parse that was to expose a name in the middle of a group.
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
                server.retire("session could not be restored");
            }
        }
    }

    /// Notes that the server has none of the client's statements any more: the client has none.
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

    /// Whether the client's own names are on its server.
    pub(crate) fn has_exposed_names(&self, id: ClientId) -> bool {
        self.clients.get(id).is_some_and(Client::has_exposed_names)
    }

    /// Prepares an empty statement under a name while the text that ends the name runs. If the name is still there after that, it is
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

    /// Returns the ticket of the name that the message sent now deallocates.
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

    /// Closes the name that a group of messages was about, after the end of the group was passed on.
    pub(crate) fn take_name_back(&mut self, env: &mut Env, id: ClientId) {
        let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) else {
            return;
        };
        let OwnNames::Ending(name, _) = &link.own_names else { return };
        let close = Entry::new(Owner::Hidden(Purpose::OwnName), Kind::Close);
        env.ahead.add(close, |out| frontend::encode_close(out, Target::Statement, name));
        add_sync(&mut env.ahead);
        link.own_names = OwnNames::Hidden;
    }

    /// Whether this message ends the group after which [`Pool::take_name_back`] must be called.
    #[inline]
    pub(crate) fn is_ending_name(&self, id: ClientId, message: u8) -> bool {
        matches!(message, tag::QUERY | tag::SYNC)
            && matches!(self.clients.get(id).map(|client| &client.state),
                Some(ClientState::Linked(link))
                    if matches!(link.own_names, OwnNames::Ending(..)) && link.streaming == 0)
    }

    /// Handles the success of a DEALLOCATE; `entry` is that of its message.
    pub(crate) fn deallocated(&mut self, env: &mut Env, entry: Entry) {
        if entry.ticket != 0 {
            self.forget_name(env, entry);
        }
    }
}

/// Statements that the client prepared by SQL and uses through the protocol: servers know them by the client's own names.
impl Pool {
    /// Returns the statement of this name that the client prepared by SQL, in a transaction that is over.
    pub(crate) fn prepared_by_sql(&self, id: ClientId, name: &[u8]) -> Option<&Prepared> {
        let account = &self.clients.get(id)?.account;
        account.session.prepared().find(|prepared| *prepared.name == *name)
    }

    /// Whether the client may have prepared a statement of this name by SQL.
    fn may_be_prepared_by_sql(&self, id: ClientId, name: &[u8]) -> bool {
        !is_ours(name) && (self.may_have_prepared(id) || self.prepared_by_sql(id, name).is_some())
    }

    /// Whether a name that the client is about to prepare through the protocol may be prepared by SQL already. If the client keeps its
    /// server for another reason than its prepared statements, that is known.
    pub(crate) fn may_be_taken_by_sql(&self, id: ClientId, name: &[u8]) -> bool {
        let unseen = Reasons::PREPARED.with(Reasons::UNKNOWN);
        let state = self.clients.get(id).map(|client| &client.state);
        let pin = if let Some(ClientState::Linked(link)) = state { link.pin.as_ref() } else { None };
        let unknown = pin.is_some_and(|pin| pin.reasons.has(unseen)) || self.prepares_unseen(id);
        !is_ours(name) && (unknown || self.prepared_by_sql(id, name).is_some())
    }

    /// Whether the client may have prepared a statement by SQL that pgweir does not know of, or deallocated one that it had.
    fn may_have_prepared(&self, id: ClientId) -> bool {
        let state = self.clients.get(id).map(|client| &client.state);
        let pinned = matches!(state, Some(ClientState::Linked(link)) if link.pin.is_some());
        pinned || self.prepares_unseen(id)
    }

    /// Whether the client may have prepared or deallocated a statement by SQL after its session was last audited.
    fn prepares_unseen(&self, id: ClientId) -> bool {
        let changes = |touched: &Touched| touched.marks.intersects(Marks::PREPARED.and(Marks::ROUTINES));
        let state = self.clients.get(id).map(|client| &client.state);
        matches!(state, Some(ClientState::Linked(link)) if link.touched.as_deref().is_some_and(changes))
    }

    /// Whether a Close of this name is about a statement that the client may have prepared by SQL.
    pub(crate) fn closes_by_sql(&self, id: ClientId, name: &[u8]) -> bool {
        self.client_statement(id, name).is_none() && self.may_be_prepared_by_sql(id, name)
    }
}

/// Returns the owner for the messages that prepare the client's own names: between two groups each in a separate hidden group, else in the
/// client's group.
fn owner_of_names(ledger: &Ledger, id: ClientId) -> Owner {
    if ledger.is_between_groups() { Owner::Hidden(Purpose::OwnName) } else { Owner::Prerequisite(id) }
}

/// Returns whether the answers that the server owes come by themselves.
fn owed(ledger: &Ledger) -> Owed {
    if ledger.is_between_groups() { Owed::Comes } else { Owed::IsAsked }
}

/// Prepares this text on the server under this name, even if the name stood for another statement before.
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

/// Adds a Sync of pgweir's own. No client gets its ReadyForQuery, unless an error has PostgreSQL ignore a client's Query ahead of it.
pub(crate) fn add_sync(ahead: &mut Ahead) {
    ahead.add(Entry::new(Owner::Hidden(Purpose::OwnName), Kind::Sync), frontend::encode_sync);
}

/// Whether this is a name of pgweir's, by which servers know the protocol's statements.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    name.starts_with(OUR_PREFIX)
}

/// Whether a text may run code that prepares or ends names: it runs code of which no more is known, and has such a word in it.
fn changes_names_inside(text: &[u8], traits: &Traits) -> bool {
    traits.marks.intersects(Marks::ROUTINES)
        && [&b"prepare"[..], b"deallocate"].iter().any(|word| mentions(text, word))
}

/// Whether the effect of a text may depend on the names that are prepared when it runs, or on their meaning.
fn may_use_names(text: &[u8], traits: &Traits) -> bool {
    let mut uses = traits.marks.intersects(Marks::SHOWS_PREPARED) || changes_names_inside(text, traits);
    prepared_names(text, |name_use, _| uses |= name_use != NameUse::Ends);
    uses
}

/// Whether the word occurs in the text, in letters of any case.
fn mentions(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}
