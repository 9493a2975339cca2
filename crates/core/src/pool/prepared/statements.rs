//! Prepared statements by content: one text with its parameter types, read under the same settings, is one
//! statement, whichever client prepared it, under whatever name. Clients keep names, servers keep a bounded
//! list of what they have; both point here.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::BuildHasher;

use pgweir_sql::{Block, Traits};
use slotmap::{SlotMap, SparseSecondaryMap};

use crate::ids::StatementId;
use crate::limits::{BEGIN_BYTES_MAX, LEXED_BYTES_MAX};
use crate::pool::catalog::reach::{Reach, Reads, Verdict};
use crate::pool::prepared::names::Names;
use crate::pool::prepared::parse_contexts::ParseContext;

/// What a statement is, and how servers call it.
pub(crate) struct Statement {
    /// Text, without the NUL.
    pub(crate) query: Box<[u8]>,
    /// Parameter types as they stood in Parse: four bytes each.
    pub(crate) types: Box<[u8]>,
    /// What can be told of the text; `None` if it is too long to be looked at.
    pub(crate) traits: Option<Traits>,
    /// It is nothing but the begin or end of a transaction block.
    pub(crate) block: Option<Block>,
    /// How the session that prepared it reads.
    pub(crate) parse_context: ParseContext,
    /// Its parameters are of PostgreSQL's own types.
    takes_built_in: bool,
    /// Whether it certainly only reads, as it was found last.
    verdict: Cell<Verdict>,
    serial: u64,
    name: Box<[u8]>,
    users: u32,
    hash: u64,
    /// A server has accepted it once.
    parsed: bool,
}

impl Statement {
    /// The number in the name servers know it by.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// What it may do to a session; what was not looked at may do anything.
    pub(crate) fn marks(&self) -> pgweir_sql::Marks {
        self.traits.map_or(pgweir_sql::Marks::ROUTINES, |traits| traits.marks)
    }

    /// What is known of its text.
    #[inline]
    pub(crate) fn reads(&self, reach: &Reach) -> Reads {
        self.verdict.get().under(reach).unwrap_or_else(|| self.look(reach))
    }

    #[cold]
    fn look(&self, reach: &Reach) -> Reads {
        let Some(traits) = self.traits.as_ref().filter(|_| self.takes_built_in) else {
            return Reads::InDoubt;
        };
        let mut verdict = Verdict::default();
        let found = reach.reads(&self.query, traits, &mut verdict);
        self.verdict.set(verdict);
        found
    }

    fn is(&self, query: &[u8], types: &[u8], parse_context: ParseContext) -> bool {
        self.parse_context == parse_context && *self.query == *query && *self.types == *types
    }

    /// The name servers know it by.
    pub(crate) fn server_name(&self) -> &[u8] {
        &self.name
    }
}

/// Parameter types, four bytes each, are PostgreSQL's own: with values of others (domains) code of users may run.
pub(crate) fn are_built_in(types: &[u8]) -> bool {
    let (types, _) = types.as_chunks();
    types.iter().all(|oid| u32::from_be_bytes(*oid) < FIRST_OWN_OID)
}

/// Objects with this number and above are users' own (`FirstNormalObjectId`).
const FIRST_OWN_OID: u32 = 16_384;

/// All statements that a client or a server of this worker has.
#[derive(Default)]
pub(crate) struct Statements {
    all: SlotMap<StatementId, Statement>,
    /// The statements of the present age, by hash of text, types and parse_context; the content decides.
    by_hash: HashMap<u64, Vec<StatementId>>,
    age: u64,
    hasher: std::hash::RandomState,
    serial: u64,
}

impl Statements {
    /// Numbers above this one: those of processes that are each other's successors, and of their workers, do
    /// not meet.
    pub(crate) fn numbered_from(serial: u64) -> Statements {
        Statements { serial, ..Statements::default() }
    }

    /// A statement that another process has given this number, with one user more. The clients that shared it
    /// there are not known: here the clients that come with the same number share it.
    pub(crate) fn adopt(&mut self, query: &[u8], types: &[u8], serial: u64) -> StatementId {
        let own = std::mem::replace(&mut self.serial, serial.wrapping_sub(1));
        let id = self.take(query, types, Some(ParseContext::of_statement(serial)));
        self.serial = own;
        id
    }

    pub(crate) fn get(&self, id: StatementId) -> Option<&Statement> {
        self.all.get(id)
    }

    /// In another age the same text is another statement; clients that have one of an earlier age keep it.
    pub(crate) fn enter_age(&mut self, age: u64) {
        if self.age != age {
            self.age = age;
            self.by_hash.clear();
        }
    }

    /// A client that prepares the same from here on gets another statement; clients that have this one keep
    /// it.
    pub(crate) fn retire(&mut self, id: StatementId) {
        let hash = self.all.get(id).map(|statement| statement.hash);
        if let Some(same) = hash.and_then(|hash| self.by_hash.get_mut(&hash)) {
            same.retain(|&other| other != id);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// The statement of this content, with one user more. If it is not known how the text is read, it is a
    /// new statement, and stays its user's alone.
    pub(crate) fn take(
        &mut self,
        query: &[u8],
        types: &[u8],
        parse_context: Option<ParseContext>,
    ) -> StatementId {
        let serial = self.serial.wrapping_add(1);
        let parse_context = parse_context.unwrap_or_else(|| ParseContext::of_statement(serial));
        let hash = self.hasher.hash_one((query, types, parse_context));
        let same = self.by_hash.entry(hash).or_default();
        for &id in same.iter() {
            let statement = &mut self.all[id];
            if statement.is(query, types, parse_context) {
                statement.users += 1;
                return id;
            }
        }
        self.serial = serial;
        let statement = Statement {
            query: query.into(),
            types: types.into(),
            block: if types.is_empty() && query.len() <= BEGIN_BYTES_MAX {
                pgweir_sql::block(query)
            } else {
                None
            },
            traits: (query.len() <= LEXED_BYTES_MAX).then(|| pgweir_sql::traits(query)),
            takes_built_in: are_built_in(types),
            parse_context,
            verdict: Cell::default(),
            serial,
            name: format!("PGWEIR_{serial}").into_bytes().into(),
            users: 1,
            hash,
            parsed: false,
        };
        let id = self.all.insert(statement);
        same.push(id);
        id
    }

    /// Only one client's name has it.
    pub(crate) fn is_unshared(&self, id: StatementId) -> bool {
        self.all.get(id).is_some_and(|known| {
            known.users == 1 && known.parse_context == ParseContext::of_statement(known.serial)
        })
    }

    /// A client that prepares its content now gets this statement.
    pub(crate) fn is_of_this_age(&self, id: StatementId) -> bool {
        let hash = self.all.get(id).map(|statement| statement.hash);
        hash.and_then(|hash| self.by_hash.get(&hash)).is_some_and(|same| same.contains(&id))
    }

    /// The statement of the same text and types in this age, for a client that reads it so, with one user
    /// more.
    pub(crate) fn take_again(
        &mut self,
        id: StatementId,
        parse_context: Option<ParseContext>,
    ) -> Option<StatementId> {
        let old = self.all.get(id)?;
        let (query, types) = (old.query.clone(), old.types.clone());
        Some(self.take(&query, &types, parse_context))
    }

    /// The statement of this content, if a server has accepted it once.
    pub(crate) fn find(
        &self,
        query: &[u8],
        types: &[u8],
        parse_context: ParseContext,
    ) -> Option<StatementId> {
        let hash = self.hasher.hash_one((query, types, parse_context));
        self.by_hash.get(&hash)?.iter().copied().find(|&id| {
            let statement = &self.all[id];
            statement.parsed && statement.is(query, types, parse_context)
        })
    }

    /// A server has accepted it.
    pub(crate) fn note_parsed(&mut self, id: StatementId) {
        if let Some(statement) = self.all.get_mut(id) {
            statement.parsed = true;
        }
    }

    /// One user more of a statement that is known.
    pub(crate) fn share(&mut self, id: StatementId) {
        if let Some(statement) = self.all.get_mut(id) {
            statement.users += 1;
        }
    }

    /// One user fewer; the last one ends the statement.
    pub(crate) fn give_back(&mut self, id: StatementId) {
        let Some(statement) = self.all.get_mut(id) else { return };
        statement.users -= 1;
        if statement.users > 0 {
            return;
        }
        let hash = statement.hash;
        self.all.remove(id);
        if let Some(same) = self.by_hash.get_mut(&hash) {
            same.retain(|&other| other != id);
            if same.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
    }
}

/// What a client prepared, by its own names.
#[derive(Default)]
pub(crate) struct ClientStatements {
    names: Names<Named>,
    /// Closed by the client, which has not been told so yet: an error before that would have kept them.
    closing: Vec<(Box<[u8]>, Named)>,
    tickets: u32,
}

struct Named {
    statement: StatementId,
    /// Of the Parse that gave the name, so that exactly this name goes if that Parse fails.
    ticket: u32,
}

impl ClientStatements {
    pub(crate) fn get(&self, name: &[u8]) -> Option<StatementId> {
        self.names.get(name).map(|named| named.statement)
    }

    /// Gives a statement a name; the ticket takes it back ([`ClientStatements::forget`]).
    pub(crate) fn insert(&mut self, name: &[u8], statement: StatementId) -> u32 {
        self.tickets = self.tickets.wrapping_add(1);
        self.names.insert(name.into(), Named { statement, ticket: self.tickets });
        self.tickets
    }

    /// A name stands for another statement from here on.
    pub(crate) fn renew(&mut self, name: &[u8], statement: StatementId) {
        if let Some(named) = self.names.get_mut(name) {
            named.statement = statement;
        }
    }

    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<StatementId> {
        self.names.remove(name).map(|(_, named)| named.statement)
    }

    /// The ticket under which a name was given, and the way back.
    pub(crate) fn ticket(&self, name: &[u8]) -> Option<u32> {
        self.names.get(name).map(|named| named.ticket)
    }

    /// See [`ClientStatements::ticket`]. The name may be closed by a message that is on its way.
    pub(crate) fn name(&self, ticket: u32) -> Option<&[u8]> {
        let closing = self.closing.iter().map(|(name, named)| (&**name, named));
        self.names.iter().chain(closing).find(|(_, named)| named.ticket == ticket).map(|(name, _)| name)
    }

    /// What a name stands for, and its ticket.
    pub(crate) fn named(&self, name: &[u8]) -> Option<(StatementId, u32)> {
        self.names.get(name).map(|named| (named.statement, named.ticket))
    }

    /// Takes back a name after its Parse failed. Failures are rare, so it is looked for.
    pub(crate) fn forget(&mut self, ticket: u32) -> Option<StatementId> {
        let name: Box<[u8]> = self.name(ticket)?.into();
        self.remove(&name)
    }

    /// Closes a name, for the time being; see [`ClientStatements::close_done`] and [`ClientStatements::reopen`].
    pub(crate) fn close(&mut self, name: &[u8]) -> Option<(u32, StatementId)> {
        let (name, named) = self.names.remove(name)?;
        let closed = (named.ticket, named.statement);
        self.closing.push((name, named));
        Some(closed)
    }

    /// The client knows that the name is closed.
    pub(crate) fn close_done(&mut self, ticket: u32) -> Option<StatementId> {
        let place = self.closing.iter().position(|(_, named)| named.ticket == ticket)?;
        Some(self.closing.swap_remove(place).1.statement)
    }

    /// The Close was skipped by the server's error.
    pub(crate) fn reopen(&mut self, ticket: u32) {
        if let Some(place) = self.closing.iter().position(|(_, named)| named.ticket == ticket) {
            let (name, named) = self.closing.swap_remove(place);
            self.names.insert(name, named);
        }
    }

    /// Names and statements.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], StatementId)> {
        self.names.iter().map(|(name, named)| (name, named.statement))
    }

    /// A Close is on its way.
    pub(crate) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Ends all names but those whose ticket is to be kept.
    pub(crate) fn discard(&mut self, kept: impl Fn(u32) -> bool) -> Vec<StatementId> {
        self.names.take_if(|named| !kept(named.ticket)).into_iter().map(|named| named.statement).collect()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = StatementId> + '_ {
        let closing = self.closing.drain(..);
        self.names.drain().chain(closing).map(|(_, named)| named.statement)
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

/// What a server has, with the time of last use.
#[derive(Default)]
pub(crate) struct ServerStatements {
    used: SparseSecondaryMap<StatementId, u64, foldhash::fast::FixedState>,
    clock: u64,
    count: usize,
}

impl ServerStatements {
    /// Whether the server has it; notes the use.
    pub(crate) fn touch(&mut self, id: StatementId) -> bool {
        self.clock += 1;
        match self.used.get_mut(id) {
            Some(used) => {
                *used = self.clock;
                true
            }
            None => false,
        }
    }

    pub(crate) fn insert(&mut self, id: StatementId) {
        self.clock += 1;
        if self.used.insert(id, self.clock).is_none() {
            self.count += 1;
        }
    }

    /// All, the one that was not used for longest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = StatementId> {
        let mut by_use: Vec<(u64, StatementId)> = self.used.iter().map(|(id, &used)| (used, id)).collect();
        by_use.sort_unstable();
        by_use.into_iter().map(|(_, id)| id)
    }

    pub(crate) fn remove(&mut self, id: StatementId) -> bool {
        let had = self.used.remove(id).is_some();
        self.count -= usize::from(had);
        had
    }

    /// The one that was not used for longest, if there are `limit` or more.
    pub(crate) fn surplus(&self, limit: usize) -> Option<StatementId> {
        if self.count < limit {
            return None;
        }
        self.used.iter().min_by_key(|&(_, &used)| used).map(|(id, _)| id)
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = StatementId> + '_ {
        self.count = 0;
        self.used.drain().map(|(id, _)| id)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: Option<ParseContext> = Some(ParseContext::UNDETERMINED);

    #[test]
    fn a_text_that_is_read_in_another_way_is_another_statement() {
        let mut statements = Statements::default();
        let one = statements.take(b"select '1/2/2024'", b"", KNOWN);
        assert_eq!(statements.take(b"select '1/2/2024'", b"", KNOWN), one);
        let other = ParseContext::of_statement(7);
        assert_eq!(
            statements.find(b"select '1/2/2024'", b"", ParseContext::UNDETERMINED),
            None,
            "no server has taken it"
        );
        statements.note_parsed(one);
        assert_eq!(statements.find(b"select '1/2/2024'", b"", ParseContext::UNDETERMINED), Some(one));
        assert_eq!(statements.find(b"select '1/2/2024'", b"", other), None);
        assert_ne!(statements.take(b"select '1/2/2024'", b"", Some(other)), one);
    }

    #[test]
    fn a_statement_of_unknown_reading_is_not_shared() {
        let mut statements = Statements::default();
        let (one, two) = (statements.take(b"select 1", b"", None), statements.take(b"select 1", b"", None));
        assert_ne!(one, two);
        assert!(statements.is_unshared(one));
        let known = statements.take_again(one, KNOWN).expect("it is there");
        assert_eq!(statements.take(b"select 1", b"", KNOWN), known);
        assert!(!statements.is_unshared(known));
    }

    #[test]
    fn a_client_with_the_same_number_has_the_same_statement() {
        let mut statements = Statements::numbered_from(1 << 40);
        let one = statements.adopt(b"select 1", b"", 5);
        assert_eq!(statements.adopt(b"select 1", b"", 5), one);
        assert_ne!(statements.adopt(b"select 1", b"", 6), one, "of other clients, or of an earlier age");
        assert_eq!(statements.get(one).map(Statement::serial), Some(5));
        assert_ne!(statements.take(b"select 1", b"", KNOWN), one);
    }
}
