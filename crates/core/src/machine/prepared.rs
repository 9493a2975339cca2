//! Protocol-level prepared statements where servers change hands: a client's names become names by content, a server that
//! lacks a statement gets it in the same packet, and what a server is known to have is answered here, in its turn.

use pgweir_wire::backend;
use pgweir_wire::frontend::{self, BindHead, Close, Describe, Parse, Target, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use super::{Machine, Step};
use crate::client::ClientState;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId, StatementId};
use crate::ledger::{Entry, Kind, Local, Owner, Purpose, Pushed, Settled};
use crate::limits::{CLIENT_STATEMENTS_MAX, NAMES_BYTES_MAX, PARSE_BYTES_MAX};

impl Machine {
    /// Statements of this client are known by content: it shares servers with others, and `max_prepared_statements` is on.
    pub(super) fn client_tracks_statements(&self, id: ClientId) -> bool {
        let Some(account) = self.clients.get(id).and_then(|client| client.account.as_deref()) else {
            return false;
        };
        self.pools[account.pool].tracks_statements && account.replication == crate::luggage::Replication::None
    }

    /// A message that names a prepared statement.
    pub(super) fn prepared_message<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server: ServerId,
        header: Header,
        message: &[u8],
    ) -> Step {
        if header.tag == tag::BIND {
            return self.bind(d, id, server, header, message);
        }
        let bytes_max = if header.tag == tag::PARSE { PARSE_BYTES_MAX } else { NAMES_BYTES_MAX };
        if header.total() > bytes_max {
            let text = format!("a message that names a prepared statement is larger than {bytes_max} bytes");
            return self.refuse_client(d, id, &Fault::TooLarge(text.into()));
        }
        let Some(body) = message.get(HEADER_LEN..header.total()) else { return Step::Wait };
        let handled = match header.tag {
            tag::PARSE => Parse::parse(body).map(|parse| self.parse(d, id, server, &parse)),
            tag::DESCRIBE => Describe::parse(body).map(|describe| self.describe(d, id, server, &describe)),
            _ => Close::parse(body).map(|close| self.close(d, id, server, &close)),
        };
        match handled {
            Ok(Ok(())) => Step::Used(header.total()),
            Ok(Err(fault)) => self.refuse_client(d, id, &fault),
            Err(error) => self.refuse_client(d, id, &Fault::Protocol(error.to_string().into())),
        }
    }

    fn parse<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        parse: &Parse<'_>,
    ) -> Result<(), Fault> {
        let Some(account) = self.clients.get_mut(id).and_then(|client| client.account.as_deref_mut()) else {
            return Ok(());
        };
        self.pools[account.pool].stats.client_parses += 1;
        let statements = account.statements.get_or_insert_default();
        if let Some(known) = statements.get(parse.name) {
            let ticket = statements.ticket(parse.name).unwrap_or_default();
            return self.parse_again(d, id, server_id, known, ticket);
        }
        if statements.len() >= CLIENT_STATEMENTS_MAX {
            return Err(Fault::TooLarge(
                format!("a client may have {CLIENT_STATEMENTS_MAX} prepared statements").into(),
            ));
        }
        let statement = self.statements.take(parse.query, parse.param_types);
        let ticket = statements.insert(parse.name, statement);
        let owner = Owner::Client(id);
        if self.servers[server_id].statements.touch(statement) {
            let entry =
                Entry { owner, kind: Kind::Local(Local::ParseComplete), statement: Some(statement), ticket };
            self.push_local(d, server_id, entry);
        } else {
            self.send_parse(d, server_id, statement, owner, ticket);
        }
        Ok(())
    }

    /// The name is in use. PostgreSQL says so with an error, which also ends the client's transaction: so it is provoked
    /// there, by preparing what the server has already; only the name in its text is corrected.
    fn parse_again<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        statement: StatementId,
        ticket: u32,
    ) -> Result<(), Fault> {
        self.provide(d, id, server_id, statement);
        let Some(known) = self.statements.get(statement) else { return Ok(()) };
        self.scratch.clear();
        frontend::encode_parse(&mut self.scratch, known.server_name().as_bytes(), b"", b"");
        let server = &mut self.servers[server_id];
        server.ledger.push(Entry { ticket, ..Entry::new(Owner::Client(id), Kind::ParseAgain) });
        d.send(server.conn, &self.scratch);
        Ok(())
    }

    /// Sends Parse for a statement that the server lacks; the oldest one goes when the server has too many.
    fn send_parse<D: Driver>(
        &mut self,
        d: &mut D,
        server_id: ServerId,
        statement: StatementId,
        owner: Owner,
        ticket: u32,
    ) {
        self.evict_statements(d, server_id);
        let server = &mut self.servers[server_id];
        let entry = Entry { owner, kind: Kind::Parse, statement: Some(statement), ticket };
        if server.ledger.push(entry) == Pushed::Ignored {
            // The server skips to the next Sync: it will not have the statement, and the client not the name.
            self.forget_name(entry);
        } else {
            server.statements.insert(statement);
            self.statements.share(statement);
        }
        let Some(known) = self.statements.get(statement) else { return };
        self.scratch.clear();
        frontend::encode_parse(&mut self.scratch, known.server_name().as_bytes(), &known.query, &known.types);
        let server = &self.servers[server_id];
        self.pools[server.pool].stats.server_parses += 1;
        d.send(server.conn, &self.scratch);
    }

    fn evict_statements<D: Driver>(&mut self, d: &mut D, server_id: ServerId) {
        let limit = self.rules.config.main.max_prepared_statements as usize;
        while let Some(oldest) = self.servers[server_id].statements.surplus(limit.max(1)) {
            let server = &mut self.servers[server_id];
            if server.ledger.is_skipping() {
                return;
            }
            let mut entry = Entry::new(Owner::Hidden(Purpose::Evict), Kind::Close);
            entry.statement = Some(oldest);
            server.ledger.push(entry);
            server.statements.remove(oldest);
            if let Some(known) = self.statements.get(oldest) {
                self.scratch.clear();
                frontend::encode_close(&mut self.scratch, Target::Statement, known.server_name().as_bytes());
                d.send(server.conn, &self.scratch);
            }
            // Its use by the server ends when the Close is answered: a Close that is skipped gives it back.
        }
    }

    /// Makes sure that the server has a statement when the next message arrives there.
    fn provide<D: Driver>(&mut self, d: &mut D, id: ClientId, server_id: ServerId, statement: StatementId) {
        if !self.servers[server_id].statements.touch(statement) {
            self.send_parse(d, server_id, statement, Owner::Errand(id), 0);
        }
    }

    /// The name by which this server knows the client's statement, once [`Machine::provide`] saw to it; a name that the
    /// client never prepared goes as it is, for the server's own error.
    fn server_name<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server: ServerId,
        name: &[u8],
    ) -> Option<String> {
        let account = self.clients.get(id)?.account.as_deref()?;
        let statement = account.statement(name)?;
        self.provide(d, id, server, statement);
        self.statements.get(statement).map(|known| known.server_name())
    }

    fn bind<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        header: Header,
        message: &[u8],
    ) -> Step {
        let body = &message[HEADER_LEN..message.len().min(header.total())];
        let Some(head) = BindHead::parse_prefix(body) else { return Step::Wait };
        let pool = self.servers[server_id].pool;
        self.pools[pool].stats.binds += 1;
        let name = self.server_name(d, id, server_id, head.statement);
        let name = name.as_deref().map_or(head.statement, str::as_bytes);
        let tail_len = header.body_len as usize - head.tail;
        self.scratch.clear();
        frontend::encode_bind_head(&mut self.scratch, head.portal, name, tail_len);
        let server = &mut self.servers[server_id];
        server.ledger.push(Entry::new(Owner::Client(id), Kind::Bind));
        d.send(server.conn, &self.scratch);
        d.send(server.conn, &body[head.tail..]);
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            link.streaming = header.total().saturating_sub(message.len());
        }
        Step::Used(header.total().min(message.len()))
    }

    fn describe<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        describe: &Describe<'_>,
    ) -> Result<(), Fault> {
        let name = self.server_name(d, id, server_id, describe.name);
        let name = name.as_deref().map_or(describe.name, str::as_bytes);
        self.scratch.clear();
        frontend::encode_describe(&mut self.scratch, Target::Statement, name);
        let server = &mut self.servers[server_id];
        server.ledger.push(Entry::new(Owner::Client(id), Kind::DescribeStatement));
        d.send(server.conn, &self.scratch);
        Ok(())
    }

    /// Servers keep the statement for whoever else uses it; the client's name goes.
    fn close<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        close: &Close<'_>,
    ) -> Result<(), Fault> {
        let skipping = self.servers[server_id].ledger.is_skipping();
        if !skipping {
            self.forget_statement(id, close.name);
        }
        let entry = Entry::new(Owner::Client(id), Kind::Local(Local::CloseComplete));
        self.push_local(d, server_id, entry);
        Ok(())
    }

    /// Close of a named statement by a client that has no server: needs none. `None` if it is about something else.
    pub(super) fn close_without_server<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        body: &[u8],
    ) -> Option<Step> {
        let close = match Close::parse(body) {
            Ok(close) => close,
            Err(error) => {
                return Some(self.refuse_client(d, id, &Fault::Protocol(error.to_string().into())));
            }
        };
        if close.target != Target::Statement || close.name.is_empty() {
            return None;
        }
        self.forget_statement(id, close.name);
        self.scratch.clear();
        backend::encode_close_complete(&mut self.scratch);
        d.send(self.clients[id].conn, &self.scratch);
        Some(Step::Used(0))
    }

    fn forget_statement(&mut self, id: ClientId, name: &[u8]) {
        let Some(account) = self.clients.get_mut(id).and_then(|client| client.account.as_deref_mut()) else {
            return;
        };
        if let Some(statement) = account.statements.as_mut().and_then(|statements| statements.remove(name)) {
            self.statements.give_back(statement);
        }
    }

    fn push_local<D: Driver>(&mut self, d: &mut D, server_id: ServerId, entry: Entry) {
        if self.servers[server_id].ledger.push(entry) == Pushed::Ignored {
            self.forget_name(entry);
        } else {
            self.settle(d, server_id);
        }
    }

    /// Gives the answers of ours whose turn has come, and takes back what the server skipped.
    pub(super) fn settle<D: Driver>(&mut self, d: &mut D, server_id: ServerId) {
        while let Some(settled) = self.servers.get_mut(server_id).and_then(|server| server.ledger.settle()) {
            match settled {
                Settled::Skipped(entry) => self.parse_undone(server_id, entry),
                Settled::Answer(entry, local) => {
                    let client = entry.owner.client().and_then(|id| self.clients.get(id));
                    let Some(client) = client else { continue };
                    self.scratch.clear();
                    match local {
                        Local::ParseComplete => backend::encode_parse_complete(&mut self.scratch),
                        Local::CloseComplete => backend::encode_close_complete(&mut self.scratch),
                    }
                    d.send(client.conn, &self.scratch);
                }
            }
        }
    }

    /// After an error that is still being passed on: what the server skips is taken back. No answer of ours can be due before
    /// the next ReadyForQuery.
    pub(super) fn settle_silently(&mut self, server_id: ServerId) {
        while let Some(Settled::Skipped(entry)) = self
            .servers
            .get_mut(server_id)
            .filter(|server| server.ledger.is_skipping())
            .and_then(|server| server.ledger.settle())
        {
            self.parse_undone(server_id, entry);
        }
    }

    /// An entry failed or was skipped: what was noted for it on the assumption that it succeeds is taken back.
    pub(super) fn parse_undone(&mut self, server_id: ServerId, entry: Entry) {
        let Some(statement) = entry.statement else { return };
        match entry.kind {
            Kind::Parse => {
                if self.servers[server_id].statements.remove(statement) {
                    self.statements.give_back(statement);
                }
                self.forget_name(entry);
            }
            Kind::Local(Local::ParseComplete) => self.forget_name(entry),
            // The server still has what it was to forget.
            Kind::Close => self.servers[server_id].statements.insert(statement),
            _ => {}
        }
    }

    /// A hidden Close was answered: the server's use of the statement is over.
    pub(super) fn statement_evicted(&mut self, entry: Entry) {
        if let (Kind::Close, Owner::Hidden(Purpose::Evict), Some(statement)) =
            (entry.kind, entry.owner, entry.statement)
        {
            self.statements.give_back(statement);
        }
    }

    fn forget_name(&mut self, entry: Entry) {
        let Owner::Client(id) = entry.owner else { return };
        let account = self.clients.get_mut(id).and_then(|client| client.account.as_deref_mut());
        if let Some(statement) = account.and_then(|account| account.statements.as_mut()?.forget(entry.ticket))
        {
            self.statements.give_back(statement);
        }
    }

    /// DISCARD ALL or DEALLOCATE ALL succeeded: client and server have no prepared statements any more.
    pub(super) fn statements_discarded(&mut self, client: Option<ClientId>, server_id: ServerId) {
        let mut gone: Vec<StatementId> = Vec::new();
        if let Some(server) = self.servers.get_mut(server_id) {
            gone.extend(server.statements.drain());
        }
        let account = client.and_then(|id| self.clients.get_mut(id)?.account.as_deref_mut());
        if let Some(account) = account {
            gone.extend(account.statements.iter_mut().flat_map(|statements| statements.drain()));
        }
        for statement in gone {
            self.statements.give_back(statement);
        }
    }
}
