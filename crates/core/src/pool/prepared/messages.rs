//! Protocol-level prepared statements if servers change hands: a client's names become names by content, a server that lacks
//! a statement gets it in the same packet, and a request about a statement that the server is known to have is answered
//! here, in its turn.

use pgweir_sql::Marks;
use pgweir_wire::WireError;
use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::frontend::{self, Close, Describe, Parse, Target, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::{Cx, Env};
use crate::driver::{ConnId, Driver};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId, StatementId};
use crate::limits::{
    CLIENT_STATEMENTS_BYTES_MAX, CLIENT_STATEMENTS_MAX, NAMES_BYTES_MAX, PARSE_BYTES_MAX,
    POOL_STATEMENTS_BYTES_MAX,
};
use crate::pool::Pool;
use crate::pool::Step;
use crate::pool::client::state::{ClientState, Waits};
use crate::pool::prepared::exposed_names::is_ours;
use crate::pool::prepared::shape::Told;
use crate::pool::prepared::statements::{
    ClientStatements, Knows, Meaning, ServerCopy, Statement, Statements,
};
use crate::pool::relay::ahead::Ahead;
use crate::pool::relay::ledger::{Concluded, Entry, Kind, Local, Owner, Purpose};

/// A client's statement on a server.
pub(crate) struct Provided {
    pub(crate) statement: StatementId,
    /// The effects that the statement may have on a session.
    pub(crate) marks: Marks,
    /// The client's name for it.
    pub(crate) ticket: u32,
    /// The statement may have another shape on this server than the client was told: before it is bound, `shapes.rs` says what follows.
    pub(crate) is_doubtful: bool,
}

/// The beginning of the names by which servers know the protocol's statements.
pub(crate) const OUR_PREFIX: &[u8] = b"PGWEIR_";

/// The name by which servers know a statement that was prepared under a name in use.
pub(crate) const PREPARED_TWICE: &[u8] = b"PGWEIR_0";

/// Whether enough of a message that names a prepared statement has arrived. Fails if the message is too long.
pub(crate) fn is_whole(header: Header, message: &[u8]) -> Result<bool, Fault> {
    let bytes_max = if header.tag == tag::PARSE { PARSE_BYTES_MAX } else { NAMES_BYTES_MAX };
    if header.total() > bytes_max {
        let text = format!("a message that names a prepared statement is larger than {bytes_max} bytes");
        return Err(Fault::TooLarge(text.into()));
    }
    Ok(message.len() >= header.total())
}

/// Sends a Parse whose name is in use. PostgreSQL says so with an error, which also ends the client's transaction, and only after it has
/// looked at the text. So PostgreSQL is asked to prepare the text twice under a name of pgweir's, and that name is corrected in its error.
/// The statement that the error leaves there is closed the next time.
fn parse_again(ahead: &mut Ahead, id: ClientId, ticket: u32, parse: &Parse<'_>) {
    let encode =
        |out: &mut Vec<u8>| frontend::encode_parse(out, PREPARED_TWICE, parse.query, parse.param_types);
    ahead.add(Entry::new(Owner::Prerequisite(id), Kind::Close), |out| {
        frontend::encode_close(out, Target::Statement, PREPARED_TWICE);
    });
    ahead.add(Entry::new(Owner::Prerequisite(id), Kind::Parse), encode);
    ahead.add(Entry { ticket, ..Entry::new(Owner::Client(id), Kind::ParseAgain) }, encode);
}

/// Sends a Parse and a Close of the client's own name, because the client may have prepared another statement by SQL under this name. Only
/// the server knows, when it reads the message: if so, it reports that after it has looked at the text, and skips the messages that follow;
/// if not, the name is given back.
fn try_own_name(ahead: &mut Ahead, id: ClientId, parse: &Parse<'_>) {
    ahead.add(Entry::new(Owner::Prerequisite(id), Kind::Parse), |out| {
        frontend::encode_parse(out, parse.name, parse.query, parse.param_types);
    });
    ahead.add(Entry::new(Owner::Prerequisite(id), Kind::Close), |out| {
        frontend::encode_close(out, Target::Statement, parse.name);
    });
}

impl Pool {
    /// Sends a Parse, Describe or Close that names a prepared statement, under the server's name for it. A fault ends the client.
    pub(crate) fn prepared_message(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server: ServerId,
        header: Header,
        message: &[u8],
    ) -> Result<Step, Fault> {
        let Some(body) = message.get(HEADER_LEN..header.total()) else { return Ok(Step::Wait) };
        let bad = |error: WireError| Fault::Protocol(error.to_string().into());
        match header.tag {
            tag::PARSE => self.parse(env, id, server, &Parse::parse(body).map_err(bad)?)?,
            tag::DESCRIBE => self.describe(env, id, server, &Describe::parse(body).map_err(bad)?),
            _ => self.close(env, id, server, &Close::parse(body).map_err(bad)?),
        }
        Ok(Step::Used(header.total()))
    }

    fn parse(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        parse: &Parse<'_>,
    ) -> Result<(), Fault> {
        let Some(account) = self.clients.get_mut(id).map(|client| &mut client.account) else {
            return Ok(());
        };
        self.state.numbers.stats.client_parses += 1;
        if account.statement(parse.name).is_none() && self.may_be_taken_by_sql(id, parse.name) {
            try_own_name(&mut env.ahead, id, parse);
        }
        let parse_context = self.parse_context_of(env, id);
        let Some(account) = self.clients.get_mut(id).map(|client| &mut client.account) else {
            return Ok(());
        };
        let statements = account.statements.get_or_insert_default();
        if let Some(ticket) = statements.ticket(parse.name) {
            parse_again(&mut env.ahead, id, ticket, parse);
            return Ok(());
        }
        env.statements.enter_age(env.shared.age());
        let bytes = parse.query.len() + parse.param_types.len();
        refuse_surplus(statements, parse.name.len() + bytes)?;
        if env.statements.bytes_of(self.id) + bytes > POOL_STATEMENTS_BYTES_MAX
            && !env.statements.has(parse.query, parse.param_types, parse_context)
        {
            let text = format!(
                "the prepared statements of database \"{}\" and user \"{}\" would take more than {POOL_STATEMENTS_BYTES_MAX} bytes",
                self.state.database, self.state.user
            );
            return Err(Fault::TooLarge(text.into()));
        }
        let statement = env.statements.take(parse.query, parse.param_types, parse_context, self.id);
        let ticket = statements.insert(parse.name, statement, Told::AsStatement, bytes);
        let owner = Owner::Client(id);
        let server = &mut self.servers[server_id];
        let copy = server.statements.touch(statement);
        // In a failed transaction PostgreSQL refuses every Parse, even of a statement that it has: so it is asked.
        let is_asked = server.tx == TxStatus::Failed || !server.ledger.is_status_known();
        match copy {
            Some(ServerCopy::Confirmed | ServerCopy::Unconfirmed) if !is_asked => {
                let kind = Kind::Local(Local::ParseComplete);
                self.answer_local(env, server_id, Entry { owner, kind, statement: Some(statement), ticket });
            }
            Some(_) => {
                self.evict_statement(env, server_id, statement);
                self.parse_ahead(env, server_id, statement, (owner, ticket), true);
            }
            None => self.parse_ahead(env, server_id, statement, (owner, ticket), true),
        }
        Ok(())
    }

    /// Handles a Parse of a client that has no server. Returns `false` if it needs a server: no server has prepared the same statement
    /// before.
    pub(crate) fn parse_without_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        body: &[u8],
    ) -> bool {
        self.take_known_statement(cx.env, id, body).is_some_and(|conn| {
            cx.env.scratch.clear();
            backend::encode_parse_complete(&mut cx.env.scratch);
            cx.driver.send(conn, &cx.env.scratch);
            true
        })
    }

    /// Gives the client's name to a statement that a server has prepared before. Returns the client's connection.
    fn take_known_statement(&mut self, env: &mut Env, id: ClientId, body: &[u8]) -> Option<ConnId> {
        let parse = Parse::parse(body).ok().filter(|parse| !parse.name.is_empty())?;
        if self.prepared_by_sql(id, parse.name).is_some() || self.has_exposed_names(id) {
            // Its server must know the name, or says that it has it.
            return None;
        }
        env.statements.enter_age(env.shared.age());
        let parse_context = self.parse_context_of(env, id)?;
        let known = env.statements.find(parse.query, parse.param_types, parse_context)?;
        let marks = env.statements.get(known)?.marks();
        if marks.intersects(Marks::PREPARED.and(Marks::SHOWS_PREPARED)) {
            // Its server may have to know the client's own names.
            return None;
        }
        let client = self.clients.get_mut(id)?;
        let account = &mut client.account;
        if account.listener.is_some() {
            // Up to its Sync it is told of no notification: its server knows about that.
            return None;
        }
        let statements = account.statements.get_or_insert_default();
        let bytes = parse.query.len() + parse.param_types.len();
        if statements.get(parse.name).is_some()
            || refuse_surplus(statements, parse.name.len() + bytes).is_err()
        {
            return None;
        }
        statements.insert(parse.name, known, Told::AtParse, bytes);
        env.statements.share_name(known);
        self.state.numbers.stats.client_parses += 1;
        Some(client.conn)
    }

    /// Writes a Parse for a statement that the server lacks, and a Describe that tells its shape there. The oldest statement is closed if
    /// the server has too many. `own` is true if this is the client's Parse, with the parameter types that the client gave. Otherwise the
    /// types are those that clients were told, as in PostgreSQL itself when it analyses a statement again.
    fn parse_ahead(
        &mut self,
        env: &mut Env,
        server_id: ServerId,
        statement: StatementId,
        (owner, ticket): (Owner, u32),
        own: bool,
    ) {
        self.evict_statements(env, server_id);
        let server = &mut self.servers[server_id];
        let entry = Entry { owner, kind: Kind::Parse, statement: Some(statement), ticket };
        if server.ledger.is_skipping() {
            // The server skips to the next Sync: it will not have the statement, and the client not the name.
            self.forget_name(env, entry);
        } else {
            server.statements.insert(statement, ServerCopy::Unconfirmed);
            env.statements.share(statement);
        }
        let Some(known) = env.statements.get(statement) else { return };
        let types = if own { &known.types } else { known.resolved_types() };
        env.ahead.add(entry, |out| frontend::encode_parse(out, known.server_name(), &known.query, types));
        let owner = owner.client().map_or(owner, Owner::Prerequisite);
        let entry = Entry { owner, kind: Kind::DescribeParsed { own }, statement: Some(statement), ticket };
        env.ahead.add(entry, |out| {
            frontend::encode_describe(out, Target::Statement, known.server_name());
        });
        self.state.numbers.stats.server_parses += 1;
    }

    fn evict_statements(&mut self, env: &mut Env, server_id: ServerId) {
        let limit = env.rules.config.main.max_prepared_statements as usize;
        while let Some(oldest) = self.servers[server_id].statements.surplus(limit.max(1)) {
            if self.servers[server_id].ledger.is_skipping() {
                return;
            }
            self.evict_statement(env, server_id, oldest);
        }
    }

    /// Closes a statement on the server. The server's use of the statement ends when the Close is answered; a Close that is skipped gives
    /// it back.
    pub(crate) fn evict_statement(&mut self, env: &mut Env, server_id: ServerId, statement: StatementId) {
        let server = &mut self.servers[server_id];
        if server.ledger.is_skipping() {
            return;
        }
        server.statements.remove(statement);
        let mut entry = Entry::new(Owner::Hidden(Purpose::Evict), Kind::Close);
        entry.statement = Some(statement);
        let name = env.statements.get(statement).map(Statement::server_name);
        env.ahead.add(entry, |out| {
            if let Some(name) = name {
                frontend::encode_close(out, Target::Statement, name);
            }
        });
    }

    /// Prepares the statement that a client's name stands for on the server if the server lacks it, before the next message. Returns the
    /// statement, and what is known of it on that server.
    fn provide(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        (name, Meaning { statement, ticket, knows }): (&[u8], Meaning),
    ) -> (StatementId, ServerCopy) {
        // A standby may lag behind what is known already.
        let decides = knows == Knows::Nothing && self.servers[server_id].branch.is_primary();
        let mut copy = self.servers[server_id].statements.touch(statement);
        let mut wanted = statement;
        if copy.is_none() {
            wanted = self.reread_statement(env, id, name, statement);
            if wanted != statement {
                copy = self.servers[server_id].statements.touch(wanted);
            }
        }
        if decides || knows == Knows::Nothing && copy == Some(ServerCopy::Confirmed) {
            self.tell_name(id, ticket, Told::AsStatement);
        }
        match copy {
            Some(copy @ (ServerCopy::Confirmed | ServerCopy::Unconfirmed)) => return (wanted, copy),
            Some(ServerCopy::Outdated) => self.evict_statement(env, server_id, wanted),
            None => {}
        }
        self.parse_ahead(env, server_id, wanted, (Owner::Prerequisite(id), ticket), decides);
        (wanted, ServerCopy::Unconfirmed)
    }

    /// Returns the statement that a client's name stands for on this server, after [`Pool::provide`] has prepared it. A name that the
    /// client never prepared is sent unchanged, for the server's own error.
    fn server_name(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server: ServerId,
        (name, named): (&[u8], Option<Meaning>),
    ) -> Option<Provided> {
        let Some(meaning) = named else {
            if is_ours(name) {
                // Servers know another client's statement by it.
                self.hide_names(env, server);
            }
            return None;
        };
        let (statement, copy) = self.provide(env, id, server, (name, meaning));
        let known = env.statements.get(statement)?;
        let is_doubtful = copy != ServerCopy::Confirmed
            || meaning.knows == Knows::AnotherShape
            || statement != meaning.statement;
        Some(Provided { statement, marks: known.marks(), ticket: meaning.ticket, is_doubtful })
    }

    pub(crate) fn client_statement(&self, id: ClientId, name: &[u8]) -> Option<StatementId> {
        self.client_named(id, name).map(|meaning| meaning.statement)
    }

    /// Returns the meaning of a client's name for a statement.
    pub(crate) fn client_named(&self, id: ClientId, name: &[u8]) -> Option<Meaning> {
        self.clients.get(id)?.account.statements.as_ref()?.named(name)
    }

    /// Returns the statement that a Bind is about, for this server. It may be another one than the client's name stood for before.
    pub(crate) fn bound_statement(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        (name, named): (&[u8], Option<Meaning>),
    ) -> Option<Provided> {
        self.server_name(env, id, server_id, (name, named))
    }

    fn describe(&mut self, env: &mut Env, id: ClientId, server_id: ServerId, describe: &Describe<'_>) {
        let named = self.client_named(id, describe.name);
        let known = self.server_name(env, id, server_id, (describe.name, named));
        let (name, ticket) = told(&env.statements, known.as_ref(), describe.name);
        let doubtful = known.as_ref().filter(|known| known.is_doubtful);
        let statement = doubtful.map(|known| known.statement);
        let entry = Entry { statement, ticket, ..Entry::new(Owner::Client(id), Kind::DescribeStatement) };
        if statement.is_some() {
            self.note_described(id, server_id, ticket);
        }
        env.ahead.add(entry, |out| frontend::encode_describe(out, Target::Statement, name));
    }

    /// Notes that a text with these marks is sent or bound. If it may end or change names, their meaning is uncertain until it is answered.
    #[inline]
    pub(crate) fn note_ending(&mut self, id: ClientId, marks: Marks) {
        if marks.intersects(Marks::DISCARDS.and(Marks::PREPARED))
            && let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state)
        {
            link.waits.set(Waits::DISCARDS, true);
        }
    }

    /// Closes the client's name. Servers keep the statement for other clients that use it.
    fn close(&mut self, env: &mut Env, id: ClientId, server_id: ServerId, close: &Close<'_>) {
        if self.closes_by_sql(id, close.name) {
            env.ahead.add(Entry::new(Owner::Client(id), Kind::Close), |out| {
                frontend::encode_close(out, Target::Statement, close.name);
            });
            return;
        }
        let mut entry = Entry::new(Owner::Client(id), Kind::Local(Local::CloseComplete));
        let account = self.clients.get_mut(id).map(|client| &mut client.account);
        let statements = account.and_then(|account| account.statements.as_mut());
        if let Some((ticket, statement)) = statements.and_then(|statements| statements.close(close.name)) {
            (entry.ticket, entry.statement) = (ticket, Some(statement));
        }
        self.answer_local(env, server_id, entry);
    }

    /// Handles a Close of a named statement by a client that has no server. Returns `false` if the Close is about something else. A fault
    /// ends the client.
    pub(crate) fn close_without_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        body: &[u8],
    ) -> Result<bool, Fault> {
        let close = Close::parse(body).map_err(|error| Fault::Protocol(error.to_string().into()))?;
        if close.target != Target::Statement
            || close.name.is_empty()
            || self.client_statement(id, close.name).is_none()
                && self.prepared_by_sql(id, close.name).is_some()
        {
            return Ok(false);
        }
        self.forget_statement(cx.env, id, close.name);
        cx.env.scratch.clear();
        backend::encode_close_complete(&mut cx.env.scratch);
        cx.driver.send(self.clients[id].conn, &cx.env.scratch);
        Ok(true)
    }

    fn forget_statement(&mut self, env: &mut Env, id: ClientId, name: &[u8]) {
        let Some(account) = self.clients.get_mut(id).map(|client| &mut client.account) else {
            return;
        };
        if let Some(statement) = account.statements.as_mut().and_then(|statements| statements.remove(name)) {
            env.statements.give_back_name(statement);
        }
    }

    /// Notes that pgweir answers the client's message when its turn comes. If the server skips the messages up to there, it has no answer.
    fn answer_local(&mut self, env: &mut Env, server_id: ServerId, entry: Entry) {
        if self.servers[server_id].ledger.is_skipping() {
            self.undo(env, server_id, entry);
        } else {
            env.ahead.add_local(entry);
        }
    }

    /// Sends pgweir's own answers that are due.
    pub(crate) fn conclude_statements<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) {
        while let Some(settled) = self.servers.get_mut(server_id).and_then(|server| server.ledger.conclude())
        {
            let Concluded::Answer(entry, local) = settled else {
                debug_assert!(false, "what an error skips is taken back with that error");
                continue;
            };
            let client = entry.owner.client().and_then(|id| self.clients.get(id));
            let Some(client) = client else { continue };
            cx.env.scratch.clear();
            match local {
                Local::ParseComplete => backend::encode_parse_complete(&mut cx.env.scratch),
                Local::CloseComplete => backend::encode_close_complete(&mut cx.env.scratch),
            }
            cx.driver.send(client.conn, &cx.env.scratch);
            if local == Local::CloseComplete {
                self.close_done(cx.env, entry);
            }
        }
    }

    /// Takes back notes that assumed success, the last first: an error of the server ended one entry (if it was of an extended group) and
    /// skips others.
    pub(crate) fn undo_failed(&mut self, env: &mut Env, server_id: ServerId, failed: Option<Entry>) {
        let mut undone: Vec<Entry> = failed.into_iter().collect();
        while let Some(server) = self.servers.get_mut(server_id).filter(|server| server.ledger.is_skipping())
        {
            match server.ledger.conclude() {
                Some(Concluded::Skipped(entry)) => undone.push(entry),
                Some(Concluded::Answer(..)) | None => break,
            }
        }
        for entry in undone.into_iter().rev() {
            self.undo(env, server_id, entry);
        }
    }

    fn undo(&mut self, env: &mut Env, server_id: ServerId, entry: Entry) {
        match (entry.kind, entry.statement) {
            (Kind::Parse, Some(statement)) => {
                let had =
                    self.servers.get_mut(server_id).is_some_and(|server| server.statements.remove(statement));
                if had {
                    env.statements.give_back(statement);
                }
                self.forget_name(env, entry);
            }
            (Kind::Local(Local::ParseComplete), _) => self.forget_name(env, entry),
            (Kind::Local(Local::CloseComplete), Some(_)) => {
                if let Some(statements) = self.statements_of(entry) {
                    statements.reopen(entry.ticket);
                }
            }
            // The server has not said what it is there.
            (Kind::DescribeParsed { own }, Some(statement)) => {
                if let Some(id) = entry.owner.client().filter(|_| own) {
                    self.tell_name(id, entry.ticket, Told::AtParse);
                }
                if let Some(server) = self.servers.get_mut(server_id) {
                    server.statements.mark(statement, ServerCopy::Outdated);
                }
            }
            // The server still has the statement that it was to forget. (That is rare, so it is not known any more how it was.)
            (Kind::Close, Some(statement)) => match self.servers.get_mut(server_id) {
                Some(server) => server.statements.insert(statement, ServerCopy::Outdated),
                None => env.statements.give_back(statement),
            },
            (Kind::Parse | Kind::Close, None) if entry.is_unnamed() => self.unnamed_undone(server_id, entry),
            _ if entry.exposes_name() => self.exposing_undone(server_id, entry),
            _ => {}
        }
    }

    /// Notes that the client was told that its statement is closed.
    fn close_done(&mut self, env: &mut Env, entry: Entry) {
        let closed = self.statements_of(entry).and_then(|statements| statements.close_done(entry.ticket));
        if let Some(statement) = closed {
            env.statements.give_back_name(statement);
        }
    }

    /// Notes what the client was told about the statement that the name with this ticket stands for.
    pub(crate) fn tell_name(&mut self, id: ClientId, ticket: u32, told: Told) {
        let account = self.clients.get_mut(id).map(|client| &mut client.account);
        if let Some(statements) = account.and_then(|account| account.statements.as_deref_mut()) {
            statements.tell(ticket, told);
        }
    }

    fn statements_of(&mut self, entry: Entry) -> Option<&mut ClientStatements> {
        self.clients.get_mut(entry.owner.client()?)?.account.statements.as_deref_mut()
    }

    /// Ends the server's use of a statement whose hidden Close was answered.
    pub(crate) fn statement_evicted(&mut self, env: &mut Env, entry: Entry) {
        if let (Kind::Close, Owner::Hidden(Purpose::Evict), Some(statement)) =
            (entry.kind, entry.owner, entry.statement)
        {
            env.statements.give_back(statement);
        }
    }

    pub(crate) fn forget_name(&mut self, env: &mut Env, entry: Entry) {
        if !matches!(entry.owner, Owner::Client(_)) {
            return;
        }
        let forgotten = self.statements_of(entry).and_then(|statements| statements.forget(entry.ticket));
        if let Some(statement) = forgotten {
            env.statements.give_back_name(statement);
        }
    }

    /// Handles the success of DISCARD ALL or DEALLOCATE ALL. Client and server have no prepared statements any more, except those whose
    /// Parse is still owed, because it came later.
    pub(crate) fn statements_discarded(
        &mut self,
        env: &mut Env,
        client: Option<ClientId>,
        server_id: ServerId,
    ) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        let parses = |entry: &&Entry| matches!(entry.kind, Kind::Parse | Kind::Local(Local::ParseComplete));
        let behind: Vec<Entry> = server.ledger.entries().filter(parses).copied().collect();
        let mut gone: Vec<StatementId> = server.statements.drain().collect();
        for entry in &behind {
            if let (Kind::Parse, Some(statement)) = (entry.kind, entry.statement)
                && let Some(place) = gone.iter().position(|&other| other == statement)
            {
                gone.swap_remove(place);
                server.statements.insert(statement, ServerCopy::Unconfirmed);
            }
        }
        let account = client.and_then(|id| self.clients.get_mut(id)).map(|client| &mut client.account);
        if let Some(statements) = account.and_then(|account| account.statements.as_mut()) {
            let kept = |ticket: u32| behind.iter().any(|entry| entry.ticket == ticket);
            for statement in statements.discard(kept) {
                env.statements.give_back_name(statement);
            }
        }
        for statement in gone {
            env.statements.give_back(statement);
        }
    }
}

/// Returns a fault if the client may not have one more statement of this size, because of the number or the bytes of its statements.
fn refuse_surplus(statements: &ClientStatements, bytes: usize) -> Result<(), Fault> {
    let text = if statements.len() >= CLIENT_STATEMENTS_MAX {
        format!("a client may have {CLIENT_STATEMENTS_MAX} prepared statements")
    } else if statements.bytes() + bytes > CLIENT_STATEMENTS_BYTES_MAX {
        format!("a client's prepared statements may have {CLIENT_STATEMENTS_BYTES_MAX} bytes together")
    } else {
        return Ok(());
    };
    Err(Fault::TooLarge(text.into()))
}

/// Returns the name that is sent to the server, and the ticket of the client's name. A statement that the client never prepared has no
/// ticket.
pub(crate) fn told<'a>(
    statements: &'a Statements,
    known: Option<&Provided>,
    name: &'a [u8],
) -> (&'a [u8], u32) {
    let provided =
        known.and_then(|known| Some((statements.get(known.statement)?.server_name(), known.ticket)));
    provided.unwrap_or((name, 0))
}
