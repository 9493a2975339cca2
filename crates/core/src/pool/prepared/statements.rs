//! Prepared statements by content: one text with its parameter types, read under the same settings, is one
//! statement, whichever client prepared it, under whatever name. Clients keep names, servers keep a bounded
//! list of what they have; both point here.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use pgweir_sql::{Block, Traits};
use slotmap::{SlotMap, SparseSecondaryMap};

use crate::ids::{PoolId, StatementId};
use crate::limits::{BEGIN_BYTES_MAX, KEPT_STATEMENT_BYTES_MAX, LEXED_BYTES_MAX};
use crate::pool::catalog::reach::{Reach, Reads, Verdict};
use crate::pool::prepared::names::Names;
use crate::pool::prepared::parse_contexts::ParseContext;
use crate::pool::prepared::shape::{Shape, Told, has_fixed_columns};

/// A statement, and the name by which servers know it.
pub(crate) struct Statement {
    /// The text, without the NUL.
    pub(crate) query: Box<[u8]>,
    /// The parameter types that the Parse gave, four bytes each.
    pub(crate) types: Box<[u8]>,
    /// The traits of the text; `None` if the text is too long to be looked at.
    pub(crate) traits: Option<Traits>,
    /// The block command, if the statement only begins or ends a transaction block.
    pub(crate) block: Option<Block>,
    /// The parse context of the session that prepared the statement.
    pub(crate) parse_context: ParseContext,
    /// Whether all parameters are of PostgreSQL's own types.
    takes_built_in: bool,
    /// The verdict that was found last on whether the statement certainly only reads.
    verdict: Cell<Verdict>,
    serial: u64,
    name: Box<[u8]>,
    /// The number of names of clients, and of servers, that have the statement.
    users: u32,
    /// The number of names of clients that have the statement.
    names: u32,
    /// The pool whose client prepared the statement first. The bytes count there.
    pool: PoolId,
    hash: u64,
    /// The parameters and columns that the first server that prepared the statement told. `None` if no server has answered yet.
    shape: Option<Arc<Shape>>,
}

impl Statement {
    /// Returns the number in the name by which servers know the statement.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Returns the effects that the statement may have on a session. A text that was not looked at may do anything.
    pub(crate) fn marks(&self) -> pgweir_sql::Marks {
        self.traits.map_or(pgweir_sql::Marks::ROUTINES, |traits| traits.marks)
    }

    /// Returns whether the statement only reads, as far as it is known.
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

    /// Returns the name by which servers know the statement.
    pub(crate) fn server_name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the number of bytes that the statement takes, as far as clients decide it.
    pub(crate) fn bytes(&self) -> usize {
        let shape = self.shape.as_ref().map_or(0, |shape| shape.params.len());
        self.query.len() + self.types.len() + shape
    }

    /// Returns the parameters and columns of which clients were told; `None` if no server has told them yet.
    pub(crate) fn shape(&self) -> Option<&Arc<Shape>> {
        self.shape.as_ref()
    }

    /// Returns the parameter types with which a further server prepares the statement, four bytes each: values keep the meaning that they
    /// had on the first server.
    pub(crate) fn resolved_types(&self) -> &[u8] {
        self.shape.as_ref().map_or(&self.types, |shape| &shape.params)
    }

    /// Whether PostgreSQL compares its columns before it runs it.
    pub(crate) fn has_fixed_columns(&self) -> bool {
        has_fixed_columns(&self.query, self.traits.as_ref())
    }
}

/// The statements that clients and servers of this worker have.
#[derive(Default)]
pub(crate) struct Statements {
    all: SlotMap<StatementId, Statement>,
    /// The statements of the present age, by hash of text, types and parse context; the content decides.
    by_hash: HashMap<u64, Vec<StatementId>>,
    age: u64,
    hasher: std::hash::RandomState,
    serial: u64,
    /// The number of bytes of each pool's statements.
    bytes: HashMap<PoolId, usize>,
}

impl Statements {
    /// Returns a table that gives numbers above this one. The numbers of processes that are each other's successors, and of their workers,
    /// do not meet.
    pub(crate) fn numbered_from(serial: u64) -> Statements {
        Statements { serial, ..Statements::default() }
    }

    /// Adds a statement to which another process has given this number, with one more user, and returns its id. The clients that shared it
    /// there are not known: here the clients that come with the same number share it.
    pub(crate) fn adopt(
        &mut self,
        query: &[u8],
        types: &[u8],
        serial: u64,
        (shape, pool): (Option<Shape>, PoolId),
    ) -> StatementId {
        let own = std::mem::replace(&mut self.serial, serial.wrapping_sub(1));
        let id = self.take(query, types, Some(ParseContext::of_statement(serial)), pool);
        self.serial = own;
        if let Some(shape) = shape {
            self.note_shape(id, shape);
        }
        id
    }

    /// Adds a statement of another process for a server, with one more user.
    pub(crate) fn adopt_on_server(
        &mut self,
        query: &[u8],
        types: &[u8],
        serial: u64,
        (shape, pool): (Option<Shape>, PoolId),
    ) -> StatementId {
        let id = self.adopt(query, types, serial, (shape, pool));
        if let Some(statement) = self.all.get_mut(id) {
            statement.names -= 1;
        }
        id
    }

    pub(crate) fn get(&self, id: StatementId) -> Option<&Statement> {
        self.all.get(id)
    }

    /// Begins an age. In another age the same text is another statement; clients that have a statement of an earlier age keep it.
    pub(crate) fn enter_age(&mut self, age: u64) {
        if self.age != age {
            self.age = age;
            self.by_hash.clear();
        }
    }

    /// Retires a statement: a client that prepares the same from here on gets another statement, and clients that have this one keep it.
    pub(crate) fn retire(&mut self, id: StatementId) {
        let hash = self.all.get(id).map(|statement| statement.hash);
        if let Some(same) = hash.and_then(|hash| self.by_hash.get_mut(&hash)) {
            same.retain(|&other| other != id);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the statement of this content, for a client's name, with one more user. If it is not known how the text is read, it is a new
    /// statement, and stays its user's alone.
    pub(crate) fn take(
        &mut self,
        query: &[u8],
        types: &[u8],
        parse_context: Option<ParseContext>,
        pool: PoolId,
    ) -> StatementId {
        let serial = self.serial.wrapping_add(1);
        let parse_context = parse_context.unwrap_or_else(|| ParseContext::of_statement(serial));
        let hash = self.hasher.hash_one((query, types, parse_context));
        let same = self.by_hash.entry(hash).or_default();
        for &id in same.iter() {
            let statement = &mut self.all[id];
            if statement.is(query, types, parse_context) {
                statement.users += 1;
                statement.names += 1;
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
            takes_built_in: pgweir_wire::types::are_built_in(types),
            parse_context,
            verdict: Cell::default(),
            serial,
            name: format!("PGWEIR_{serial}").into_bytes().into(),
            users: 1,
            names: 1,
            pool,
            hash,
            shape: None,
        };
        *self.bytes.entry(pool).or_default() += statement.bytes();
        let id = self.all.insert(statement);
        same.push(id);
        id
    }

    /// Returns the number of bytes of the statements that clients of this pool have prepared.
    pub(crate) fn bytes_of(&self, pool: PoolId) -> usize {
        self.bytes.get(&pool).copied().unwrap_or_default()
    }

    /// Whether a client with this parse context would share a statement of this content.
    pub(crate) fn has(&self, query: &[u8], types: &[u8], parse_context: Option<ParseContext>) -> bool {
        let Some(parse_context) = parse_context else { return false };
        let hash = self.hasher.hash_one((query, types, parse_context));
        let same = self.by_hash.get(&hash).into_iter().flatten();
        same.filter_map(|id| self.all.get(*id)).any(|known| known.is(query, types, parse_context))
    }

    /// Whether only one client's name has the statement.
    pub(crate) fn is_unshared(&self, id: StatementId) -> bool {
        self.all.get(id).is_some_and(|known| {
            known.users == 1 && known.parse_context == ParseContext::of_statement(known.serial)
        })
    }

    /// Whether a client that prepares the content of this statement now gets this statement.
    pub(crate) fn is_of_this_age(&self, id: StatementId) -> bool {
        let hash = self.all.get(id).map(|statement| statement.hash);
        hash.and_then(|hash| self.by_hash.get(&hash)).is_some_and(|same| same.contains(&id))
    }

    /// Returns the statement of the same text and types in this age, for a client with this parse context, with one more user.
    pub(crate) fn take_again(
        &mut self,
        id: StatementId,
        parse_context: Option<ParseContext>,
    ) -> Option<StatementId> {
        let old = self.all.get(id)?;
        let (query, types, pool) = (old.query.clone(), old.types.clone(), old.pool);
        Some(self.take(&query, &types, parse_context, pool))
    }

    /// Returns the statement of this content, if a server has prepared it once and has told its shape.
    pub(crate) fn find(
        &self,
        query: &[u8],
        types: &[u8],
        parse_context: ParseContext,
    ) -> Option<StatementId> {
        let hash = self.hasher.hash_one((query, types, parse_context));
        self.by_hash.get(&hash)?.iter().copied().find(|&id| {
            let statement = &self.all[id];
            statement.shape.is_some() && statement.is(query, types, parse_context)
        })
    }

    /// Notes the parameters and columns that a server has told. Only the first answer counts.
    pub(crate) fn note_shape(&mut self, id: StatementId, shape: Shape) {
        if let Some(statement) = self.all.get_mut(id).filter(|statement| statement.shape.is_none()) {
            *self.bytes.entry(statement.pool).or_default() += shape.params.len();
            statement.shape = Some(Arc::new(shape));
        }
    }

    /// Adds a server to the users of a known statement.
    pub(crate) fn share(&mut self, id: StatementId) {
        if let Some(statement) = self.all.get_mut(id) {
            statement.users += 1;
        }
    }

    fn count_out(&mut self, pool: PoolId, bytes: usize) {
        if let Some(counted) = self.bytes.get_mut(&pool) {
            *counted -= bytes;
            if *counted == 0 {
                self.bytes.remove(&pool);
            }
        }
    }

    /// Adds a client's name to the users of a known statement.
    pub(crate) fn share_name(&mut self, id: StatementId) {
        if let Some(statement) = self.all.get_mut(id) {
            statement.users += 1;
            statement.names += 1;
        }
    }

    /// Removes a client's name from the users of a statement. If no client has the statement any more and it is large, its text is
    /// forgotten. Servers that have it know it by its name alone, until they forget it, too.
    pub(crate) fn give_back_name(&mut self, id: StatementId) {
        let Some(statement) = self.all.get_mut(id) else { return };
        statement.names = statement.names.saturating_sub(1);
        if statement.names == 0 && statement.bytes() > KEPT_STATEMENT_BYTES_MAX {
            let (pool, bytes) = (statement.pool, statement.bytes());
            self.retire(id);
            if let Some(statement) = self.all.get_mut(id) {
                (statement.query, statement.types, statement.shape) = (Box::default(), Box::default(), None);
            }
            self.count_out(pool, bytes);
        }
        self.give_back(id);
    }

    /// Removes a user of a statement. The statement ends with its last user.
    pub(crate) fn give_back(&mut self, id: StatementId) {
        let Some(statement) = self.all.get_mut(id) else { return };
        statement.users -= 1;
        if statement.users > 0 {
            return;
        }
        let hash = statement.hash;
        if let Some(statement) = self.all.remove(id) {
            self.count_out(statement.pool, statement.bytes());
        }
        if let Some(same) = self.by_hash.get_mut(&hash) {
            same.retain(|&other| other != id);
            if same.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
    }
}

/// The statements that a client has prepared, by its own names.
#[derive(Default)]
pub(crate) struct ClientStatements {
    names: Names<Named>,
    /// The names that the client has closed without having been told so yet: an error before that would have kept them.
    closing: Vec<(Box<[u8]>, Named)>,
    tickets: u32,
    /// The number of bytes of names, texts and parameter types, as if no other client had the same. Names that are being closed are
    /// included.
    bytes: usize,
}

struct Named {
    statement: StatementId,
    /// The number of the Parse that gave the name: exactly this name goes if that Parse fails.
    ticket: u32,
    /// The client's last knowledge of the statement's parameters and columns.
    told: Told,
    /// The number of bytes of the name, text and parameter types.
    bytes: usize,
}

/// The meaning of a client's name for a statement.
#[derive(Clone, Copy)]
pub(crate) struct Meaning {
    pub(crate) statement: StatementId,
    /// The ticket of the name.
    pub(crate) ticket: u32,
    pub(crate) knows: Knows,
}

/// The variants of [`Told`] without the shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Knows {
    /// The client knows nothing of the shape ([`Told::AtParse`]).
    Nothing,
    /// The client knows the shape of its statement ([`Told::AsStatement`]).
    Statement,
    /// The client knows another shape ([`Told::Shape`]).
    AnotherShape,
}

impl ClientStatements {
    pub(crate) fn get(&self, name: &[u8]) -> Option<StatementId> {
        self.names.get(name).map(|named| named.statement)
    }

    /// Gives a statement a name. Returns the ticket that takes the name back ([`ClientStatements::forget`]).
    pub(crate) fn insert(&mut self, name: &[u8], statement: StatementId, told: Told, bytes: usize) -> u32 {
        self.tickets = self.tickets.wrapping_add(1);
        let bytes = name.len() + bytes;
        self.bytes += bytes;
        self.names.insert(name.into(), Named { statement, ticket: self.tickets, told, bytes });
        self.tickets
    }

    /// Gives a name to another statement. `before` is the shape of the statement that it stood for.
    pub(crate) fn renew(&mut self, name: &[u8], statement: StatementId, before: Option<&Arc<Shape>>) {
        if let Some(named) = self.names.get_mut(name) {
            named.statement = statement;
            named.told = std::mem::take(&mut named.told).before_renewal(before);
        }
    }

    /// Gives the name with this ticket to another statement. Returns `false` if there is no such name.
    pub(crate) fn renew_ticket(
        &mut self,
        ticket: u32,
        statement: StatementId,
        before: Option<&Arc<Shape>>,
    ) -> bool {
        let Some(name) = self.open_name(ticket) else { return false };
        self.renew(&name, statement, before);
        true
    }

    /// Returns the name with this ticket, if it is not being closed.
    fn open_name(&self, ticket: u32) -> Option<Box<[u8]>> {
        self.names.iter().find(|(_, named)| named.ticket == ticket).map(|(name, _)| name.into())
    }

    /// Returns the client's knowledge of the statement that the name with this ticket stands for, and that statement. Names that are being
    /// closed count.
    pub(crate) fn told(&self, ticket: u32) -> Option<(&Told, StatementId)> {
        let closing = self.closing.iter().map(|(_, named)| named);
        let mut all = self.names.iter().map(|(_, named)| named).chain(closing);
        all.find(|named| named.ticket == ticket).map(|named| (&named.told, named.statement))
    }

    /// Notes what the client was told about the statement that the name with this ticket stands for.
    pub(crate) fn tell(&mut self, ticket: u32, told: Told) {
        if let Some(named) = self.open_name(ticket).and_then(|name| self.names.get_mut(&name)) {
            named.told = told;
        }
    }

    /// Returns the names whose client was told another shape than that of their statement, with the shape that it was told.
    pub(crate) fn told_otherwise(&self) -> impl Iterator<Item = (&[u8], &Shape)> {
        self.names.iter().filter_map(|(name, named)| match &named.told {
            Told::Shape(shape) => Some((name, &**shape)),
            Told::AtParse | Told::AsStatement => None,
        })
    }

    pub(crate) fn remove(&mut self, name: &[u8]) -> Option<StatementId> {
        let (_, named) = self.names.remove(name)?;
        self.bytes -= named.bytes;
        Some(named.statement)
    }

    /// Returns the ticket of a name.
    pub(crate) fn ticket(&self, name: &[u8]) -> Option<u32> {
        self.names.get(name).map(|named| named.ticket)
    }

    /// Returns the name with this ticket, which may be closed by a message that is on its way.
    pub(crate) fn name(&self, ticket: u32) -> Option<&[u8]> {
        let closing = self.closing.iter().map(|(name, named)| (&**name, named));
        self.names.iter().chain(closing).find(|(_, named)| named.ticket == ticket).map(|(name, _)| name)
    }

    /// Returns the meaning of a name.
    #[inline]
    pub(crate) fn named(&self, name: &[u8]) -> Option<Meaning> {
        self.names.get(name).map(|named| Meaning {
            statement: named.statement,
            ticket: named.ticket,
            knows: match named.told {
                Told::AtParse => Knows::Nothing,
                Told::AsStatement => Knows::Statement,
                Told::Shape(_) => Knows::AnotherShape,
            },
        })
    }

    /// Takes back a name after its Parse failed, and returns its statement. Failures are rare, so all names are searched.
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

    /// Removes a name after the client was told that it is closed, and returns its statement.
    pub(crate) fn close_done(&mut self, ticket: u32) -> Option<StatementId> {
        let place = self.closing.iter().position(|(_, named)| named.ticket == ticket)?;
        let (_, named) = self.closing.swap_remove(place);
        self.bytes -= named.bytes;
        Some(named.statement)
    }

    /// Takes back a Close that was skipped by the server's error.
    pub(crate) fn reopen(&mut self, ticket: u32) {
        if let Some(place) = self.closing.iter().position(|(_, named)| named.ticket == ticket) {
            let (name, named) = self.closing.swap_remove(place);
            self.names.insert(name, named);
        }
    }

    /// Returns the names with their statements.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], StatementId)> {
        self.names.iter().map(|(name, named)| (name, named.statement))
    }

    /// Whether a Close is on its way.
    pub(crate) fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Removes all names except those whose ticket is to be kept, and returns their statements.
    pub(crate) fn discard(&mut self, kept: impl Fn(u32) -> bool) -> Vec<StatementId> {
        let gone = self.names.take_if(|named| !kept(named.ticket));
        self.bytes -= gone.iter().map(|named| named.bytes).sum::<usize>();
        gone.into_iter().map(|named| named.statement).collect()
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = StatementId> + '_ {
        self.bytes = 0;
        let closing = self.closing.drain(..);
        self.names.drain().chain(closing).map(|(_, named)| named.statement)
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the number of bytes of names, texts and parameter types, as if no other client had the same.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The statements that a server has, with the time of last use.
#[derive(Default)]
pub(crate) struct ServerStatements {
    used: SparseSecondaryMap<StatementId, Held, foldhash::fast::FixedState>,
    clock: u64,
    count: usize,
}

/// A statement on a server.
#[derive(Clone, Copy)]
struct Held {
    /// The time of last use, by the clock of [`ServerStatements`].
    used: u64,
    copy: ServerCopy,
}

/// State of a statement on one server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServerCopy {
    /// The server has not yet said what its shape is there.
    Unconfirmed,
    /// The statement has the shape that clients were told; after that PostgreSQL itself refuses to run it if it changes.
    Confirmed,
    /// The statement has another shape on this server, or the server did not say: it must be closed and prepared again.
    Outdated,
}

impl ServerStatements {
    /// Returns the server's copy of the statement, if it has one, and notes the use.
    #[inline]
    pub(crate) fn touch(&mut self, id: StatementId) -> Option<ServerCopy> {
        self.clock += 1;
        let held = self.used.get_mut(id)?;
        held.used = self.clock;
        Some(held.copy)
    }

    pub(crate) fn insert(&mut self, id: StatementId, copy: ServerCopy) {
        self.clock += 1;
        if self.used.insert(id, Held { used: self.clock, copy }).is_none() {
            self.count += 1;
        }
    }

    /// Notes the state of a statement on this server, if the server has it.
    pub(crate) fn mark(&mut self, id: StatementId, copy: ServerCopy) {
        if let Some(held) = self.used.get_mut(id) {
            held.copy = copy;
        }
    }

    /// Whether a statement of this server cannot be used before it is compared or prepared again.
    pub(crate) fn has_outdated(&self) -> bool {
        self.used.values().any(|held| held.copy != ServerCopy::Confirmed)
    }

    /// Returns all statements, the one that was not used for longest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = StatementId> {
        let mut by_use: Vec<(u64, StatementId)> =
            self.used.iter().map(|(id, held)| (held.used, id)).collect();
        by_use.sort_unstable();
        by_use.into_iter().map(|(_, id)| id)
    }

    pub(crate) fn remove(&mut self, id: StatementId) -> bool {
        let had = self.used.remove(id).is_some();
        self.count -= usize::from(had);
        had
    }

    /// Returns the statement that was not used for longest, if there are `limit` or more.
    pub(crate) fn surplus(&self, limit: usize) -> Option<StatementId> {
        if self.count < limit {
            return None;
        }
        self.used.iter().min_by_key(|(_, held)| held.used).map(|(id, _)| id)
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
        let one = statements.take(b"select '1/2/2024'", b"", KNOWN, PoolId::default());
        assert_eq!(statements.take(b"select '1/2/2024'", b"", KNOWN, PoolId::default()), one);
        let other = ParseContext::of_statement(7);
        assert_eq!(
            statements.find(b"select '1/2/2024'", b"", ParseContext::UNDETERMINED),
            None,
            "no server has taken it"
        );
        let shape = Shape { params: Box::default(), columns: None };
        statements.note_shape(one, shape);
        assert_eq!(statements.find(b"select '1/2/2024'", b"", ParseContext::UNDETERMINED), Some(one));
        assert_eq!(statements.find(b"select '1/2/2024'", b"", other), None);
        assert_ne!(statements.take(b"select '1/2/2024'", b"", Some(other), PoolId::default()), one);
    }

    #[test]
    fn a_statement_of_unknown_reading_is_not_shared() {
        let mut statements = Statements::default();
        let (one, two) = (
            statements.take(b"select 1", b"", None, PoolId::default()),
            statements.take(b"select 1", b"", None, PoolId::default()),
        );
        assert_ne!(one, two);
        assert!(statements.is_unshared(one));
        let known = statements.take_again(one, KNOWN).expect("it is there");
        assert_eq!(statements.take(b"select 1", b"", KNOWN, PoolId::default()), known);
        assert!(!statements.is_unshared(known));
    }

    #[test]
    fn a_client_with_the_same_number_has_the_same_statement() {
        let mut statements = Statements::numbered_from(1 << 40);
        let one = statements.adopt(b"select 1", b"", 5, (None, PoolId::default()));
        assert_eq!(statements.adopt(b"select 1", b"", 5, (None, PoolId::default())), one);
        assert_ne!(
            statements.adopt(b"select 1", b"", 6, (None, PoolId::default())),
            one,
            "of other clients, or of an earlier age"
        );
        assert_eq!(statements.get(one).map(Statement::serial), Some(5));
        assert_ne!(statements.take(b"select 1", b"", KNOWN, PoolId::default()), one);
    }

    #[test]
    fn what_no_client_has_any_more_takes_no_memory() {
        let mut statements = Statements::default();
        let pool = PoolId::default();
        let long = vec![b'x'; KEPT_STATEMENT_BYTES_MAX + 1];
        let (one, two) = (statements.take(&long, b"", KNOWN, pool), statements.take(&long, b"", KNOWN, pool));
        assert_eq!((one, statements.bytes_of(pool)), (two, long.len()), "each is counted once");
        statements.note_shape(one, Shape { params: [0; 4].into(), columns: None });
        assert_eq!(statements.bytes_of(pool), long.len() + 4);
        assert!(statements.has(&long, b"", KNOWN) && !statements.has(&long, b"", None));
        // A server has it, too.
        statements.share(one);
        statements.give_back_name(one);
        assert_eq!(statements.bytes_of(pool), long.len() + 4);
        statements.give_back_name(two);
        assert_eq!(statements.bytes_of(pool), 0);
        let name = statements.get(one).map(|known| known.server_name().to_vec());
        assert_eq!(name, Some(b"PGWEIR_1".to_vec()), "the server forgets it by its name");
        assert_ne!(statements.take(&long, b"", KNOWN, pool), one);
        statements.give_back(one);
        assert!(statements.get(one).is_none());
    }

    #[test]
    fn a_small_one_is_kept_for_the_next_client_as_long_as_a_server_has_it() {
        let mut statements = Statements::default();
        let pool = PoolId::default();
        let one = statements.take(b"select 1", b"", KNOWN, pool);
        statements.share(one);
        statements.give_back_name(one);
        assert_eq!(statements.bytes_of(pool), 8);
        assert_eq!(statements.take(b"select 1", b"", KNOWN, pool), one);
        statements.give_back_name(one);
        statements.give_back(one);
        assert_eq!(statements.bytes_of(pool), 0);
    }

    #[test]
    fn a_clients_bytes_follow_its_names() {
        let mut names = ClientStatements::default();
        let one = names.insert(b"one", StatementId::default(), Told::AsStatement, 100);
        names.insert(b"two", StatementId::default(), Told::AsStatement, 10);
        assert_eq!(names.bytes(), 116);
        names.close(b"two");
        names.remove(b"one");
        assert_eq!(names.bytes(), 13, "its Close may still fail");
        assert_eq!((names.ticket(b"one"), names.name(one)), (None, None));
        names.drain().for_each(drop);
        assert_eq!(names.bytes(), 0);
    }
}
