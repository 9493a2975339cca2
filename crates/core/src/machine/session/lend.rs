//! SQL that names what its client prepared through the protocol: EXECUTE, DEALLOCATE, PREPARE, and `pg_prepared_statements`.
//!
//! PostgreSQL has one set of names for both ways to prepare. Servers know the protocol's statements by content, under names of
//! ours. So the server is lent what a text names, under the client's own name, for as long as that text runs; it says
//! itself what becomes of it. A name that was deallocated is the client's no longer.

use pgweir_sql::{Marks, NameUse, Statements, Traits, Verb, prepared_names};
use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::{self, Target, tag};

use crate::client::{ClientState, Lent};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId, StatementId};
use crate::ledger::{Entry, Kind, Owner, Purpose};
use crate::limits::LENT_STATEMENTS_MAX;
use crate::machine::Machine;
use crate::pins::{Reasons, Touched};
use crate::session::Prepared;

/// What a server is to be lent for a text.
#[derive(Default)]
struct Loans {
    /// A name, and what it stands for; `None`: nothing that is ever executed.
    names: Vec<(Box<[u8]>, Option<StatementId>)>,
    /// The ticket of the name that the text deallocates; 0: none.
    ends: u32,
    /// What other clients prepared must not be seen.
    shows: bool,
}

impl Machine {
    /// [`Machine::lend`] may have something to do.
    #[inline]
    pub(in crate::machine) fn may_name_prepared(&self, id: ClientId, traits: &Traits) -> bool {
        traits.marks.intersects(Marks::PREPARED.and(Marks::SHOWS_PREPARED)) && self.lends_to(id)
    }

    #[cold]
    fn lends_to(&self, id: ClientId) -> bool {
        let account = self.clients.get(id).and_then(|client| client.account.as_deref());
        account.is_some_and(|account| self.pools[account.pool].keeps_sessions)
            && self.client_tracks_statements(id)
    }

    /// A text of a linked client is about to go to its server. `simple`: as a Query; else in a group of extended messages.
    pub(in crate::machine) fn lend<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        (text, traits): (&[u8], &Traits),
        simple: bool,
    ) {
        let Some(loans) = self.loans(id, text, traits) else { return };
        if self.servers[server_id].tx == TxStatus::Failed {
            // It fails in any case.
            return;
        }
        if loans.shows {
            let others: Vec<StatementId> = self.servers[server_id].statements.iter().collect();
            others.into_iter().for_each(|statement| self.evict_statement(d, server_id, statement));
        }
        let owner = if simple { Owner::Hidden(Purpose::Lend) } else { Owner::Errand(id) };
        let server = &mut self.servers[server_id];
        self.scratch.clear();
        let out = &mut self.scratch;
        for (name, statement) in &loans.names {
            let known = statement.and_then(|statement| self.statements.get(statement));
            let (query, types) = known.map_or((&b""[..], &b""[..]), |known| (&known.query, &known.types));
            frontend::encode_close(out, Target::Statement, name);
            frontend::encode_parse(out, name, query, types);
            server.ledger.push(Entry::new(owner, Kind::Close));
            server.ledger.push(Entry::new(owner, Kind::Parse));
        }
        if simple && (loans.shows || !loans.names.is_empty()) {
            frontend::encode_sync(out);
            server.ledger.push(Entry::new(owner, Kind::Sync));
        }
        d.send(server.conn, &self.scratch);
        let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) else {
            return;
        };
        link.discards |= loans.ends != 0;
        let lent = link.lent.get_or_insert_default();
        lent.names.extend(loans.names.into_iter().map(|(name, _)| name));
        lent.ends = loans.ends;
    }

    /// A statement that the client prepared through the protocol, or (`None`) perhaps by SQL, is bound.
    pub(in crate::machine) fn lend_for_bind<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        (name, statement): (&[u8], Option<StatementId>),
    ) {
        if let Some(known) = statement.and_then(|statement| self.statements.get(statement)) {
            if let Some(traits) = known.traits
                && self.may_name_prepared(id, &traits)
            {
                let text = known.query.clone();
                self.lend(d, id, server_id, (&text, &traits), false);
            }
            return;
        }
        let prepared = self.prepared_by_sql(id, name);
        let text = prepared.map(|prepared| prepared.text.to_vec());
        let Some(text) = text else { return };
        let traits = pgweir_sql::traits(&text);
        if self.concerns_sequences(id, &text, &traits) {
            self.use_sequences(d, id, server_id, (&text, &traits), false);
        }
        let inside = if self.changes_inside(id, &text) { Marks::ROUTINES } else { Marks::NONE };
        let marks = traits.marks.without(Marks::PREPARED).and(inside);
        if !marks.is_empty() {
            self.note_marks(id, marks, &text, false);
        }
    }

    /// The client prepared this by SQL, in a transaction that is over.
    pub(in crate::machine) fn prepared_by_sql(&self, id: ClientId, name: &[u8]) -> Option<&Prepared> {
        let account = self.clients.get(id)?.account.as_deref()?;
        account.session.prepared().find(|prepared| *prepared.name == *name)
    }

    /// It may have prepared something by SQL that this name means.
    pub(in crate::machine) fn may_be_prepared_by_sql(&self, id: ClientId, name: &[u8]) -> bool {
        !is_ours(name) && (self.may_have_prepared(id) || self.prepared_by_sql(id, name).is_some())
    }

    /// The same, of a name that it is about to prepare through the protocol: where it keeps its server for another reason than what
    /// it prepared, that is known.
    pub(in crate::machine) fn may_be_taken_by_sql(&self, id: ClientId, name: &[u8]) -> bool {
        let untold = Reasons::PREPARED.with(Reasons::UNKNOWN);
        let state = self.clients.get(id).map(|client| &client.state);
        let pin = if let Some(ClientState::Linked(link)) = state { link.pin.as_ref() } else { None };
        let unknown = pin.is_some_and(|pin| pin.reasons.has(untold)) || self.prepares_unseen(id);
        !is_ours(name) && (unknown || self.prepared_by_sql(id, name).is_some())
    }

    /// It may have prepared something by SQL of which nothing is known, or ended what it had.
    fn may_have_prepared(&self, id: ClientId) -> bool {
        let state = self.clients.get(id).map(|client| &client.state);
        let pinned = matches!(state, Some(ClientState::Linked(link)) if link.pin.is_some());
        pinned || self.prepares_unseen(id)
    }

    /// Since its session was asked for, it may have prepared by SQL, or ended what it had.
    fn prepares_unseen(&self, id: ClientId) -> bool {
        let changes = |touched: &Touched| touched.marks.intersects(Marks::PREPARED.and(Marks::ROUTINES));
        let state = self.clients.get(id).map(|client| &client.state);
        matches!(state, Some(ClientState::Linked(link)) if link.touched.as_deref().is_some_and(changes))
    }

    /// The client closes what it may have prepared by SQL: its session is asked.
    pub(in crate::machine) fn note_closed_by_protocol(&mut self, id: ClientId) {
        self.note_marks(id, Marks::PREPARED, b"", false);
    }

    /// What a text needs; `None` if that is nothing.
    fn loans(&self, id: ClientId, text: &[u8], traits: &Traits) -> Option<Loans> {
        let account = self.clients.get(id)?.account.as_deref()?;
        let statements = account.statements.as_deref();
        let mut loans = Loans { shows: traits.marks.intersects(Marks::SHOWS_PREPARED), ..Loans::default() };
        let single = traits.statements == Statements::One;
        if !single && text.windows(4).any(|word| word.eq_ignore_ascii_case(b"copy")) {
            // What is behind a COPY is its data.
            return None;
        }
        let is_copy = |statement: StatementId| {
            let known = self.statements.get(statement);
            known.is_none_or(|known| known.traits.is_none_or(|traits| traits.verb == Verb::Copy))
        };
        let mut lend = |name: &[u8], statement: Option<StatementId>| match loans
            .names
            .iter_mut()
            .find(|(lent, _)| **lent == *name)
        {
            Some((_, lent)) => *lent = lent.or(statement),
            None => loans.names.push((name.into(), statement)),
        };
        let statements = statements.filter(|statements| statements.len() > 0);
        if loans.shows {
            let all = statements.into_iter().flat_map(|statements| statements.iter());
            all.take(LENT_STATEMENTS_MAX).for_each(|(name, statement)| lend(name, Some(statement)));
        }
        let mut ends = 0;
        prepared_names(text, |name_use, name, folds| {
            let name = if folds { name.to_ascii_lowercase() } else { name.to_vec() };
            let Some((statements, statement)) = statements.and_then(|all| Some((all, all.get(&name)?)))
            else {
                return;
            };
            match name_use {
                NameUse::Executes if !is_copy(statement) => lend(&name, Some(statement)),
                NameUse::Ends if single => {
                    ends = statements.ticket(&name).unwrap_or_default();
                    lend(&name, None);
                }
                NameUse::Prepares => lend(&name, None),
                NameUse::Executes | NameUse::Ends => {}
            }
        });
        loans.ends = ends;
        (loans.shows || !loans.names.is_empty()).then_some(loans)
    }

    /// The ticket of the name that is deallocated by what is sent now.
    #[inline]
    pub(in crate::machine) fn ending_ticket(&mut self, id: ClientId, kind: Kind) -> u32 {
        match self.clients.get_mut(id).map(|client| &mut client.state) {
            Some(ClientState::Linked(link)) if matches!(kind, Kind::Query | Kind::Execute) => {
                link.lent.as_mut().map_or(0, |lent| std::mem::take(&mut lent.ends))
            }
            _ => 0,
        }
    }

    /// What ends a group of messages was passed on: the server gives back what it was lent.
    #[inline]
    pub(in crate::machine) fn has_lent(&self, id: ClientId, message: u8) -> bool {
        matches!(message, tag::QUERY | tag::SYNC)
            && matches!(self.clients.get(id).map(|client| &client.state),
                Some(ClientState::Linked(link)) if link.lent.is_some() && link.streaming == 0)
    }

    /// See [`Machine::has_lent`].
    pub(in crate::machine) fn take_back<D: Driver>(&mut self, d: &mut D, id: ClientId, server_id: ServerId) {
        let lent = match self.clients.get_mut(id).map(|client| &mut client.state) {
            Some(ClientState::Linked(link)) => link.lent.take(),
            _ => None,
        };
        let Some(lent) = lent.filter(|lent| !lent.names.is_empty()) else { return };
        let owner = Owner::Hidden(Purpose::Lend);
        let Lent { names, .. } = *lent;
        let server = &mut self.servers[server_id];
        self.scratch.clear();
        for name in &names {
            frontend::encode_close(&mut self.scratch, Target::Statement, name);
            server.ledger.push(Entry::new(owner, Kind::Close));
        }
        frontend::encode_sync(&mut self.scratch);
        server.ledger.push(Entry::new(owner, Kind::Sync));
        d.send(server.conn, &self.scratch);
    }

    /// A DEALLOCATE succeeded; `entry` is that of its message.
    pub(in crate::machine) fn deallocated(&mut self, entry: Entry) {
        if entry.ticket != 0 {
            self.forget_name(entry);
        }
    }
}

/// A name by which servers know the protocol's statements: no client's.
fn is_ours(name: &[u8]) -> bool {
    name.starts_with(b"PGWEIR_")
}
