//! The unnamed statement survives between a client's groups, whichever servers they run on: what was prepared and not used at
//! once is prepared again in front of the message that uses it.
//!
//! This costs those who do so, and nobody else: a Parse with its Bind right behind it is never kept.

use pgweir_settings::PoolMode;
use pgweir_wire::frontend::{self, BindHead, Parse, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::client::{ClientState, Unnamed};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::ledger::{Entry, Kind, Owner};
use crate::limits::UNNAMED_BYTES_MAX;
use crate::machine::Machine;
use crate::server::ServerState;

/// The first message is a Bind or a Describe of the unnamed statement.
fn uses_unnamed(bytes: &[u8]) -> bool {
    let Some(body) = bytes.get(HEADER_LEN..) else { return false };
    match bytes.first() {
        Some(&tag::BIND) => BindHead::parse_prefix(body).is_some_and(|head| head.statement.is_empty()),
        Some(&tag::DESCRIBE) => body.starts_with(b"S\0"),
        _ => false,
    }
}

impl Machine {
    /// Parse without a name goes to the client's server; what follows it in the same read may be there.
    pub(super) fn note_unnamed(&mut self, id: ClientId, header: Header, message: &[u8]) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), Some(account)) = (&mut client.state, &mut client.account) else {
            return;
        };
        link.unnamed = false;
        let used = message.get(header.total()) == Some(&tag::BIND);
        if used && account.unnamed.is_none() {
            return;
        }
        let body = message.get(HEADER_LEN..header.total());
        let body = body.filter(|body| !used && body.len() <= UNNAMED_BYTES_MAX);
        let parse = body.and_then(|body| Parse::parse(body).ok());
        let parse = parse.filter(|_| self.pools[account.pool].mode != PoolMode::Session);
        account.unnamed = parse
            .map(|parse| Box::new(Unnamed { query: parse.query.into(), types: parse.param_types.into() }));
    }

    /// The client's unnamed statement goes in front of a message that may use it, if the server may lack it.
    #[inline]
    pub(in crate::machine) fn send_unnamed_first<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) {
        let state = self.clients.get(id).map(|client| &client.state);
        let Some(ClientState::Linked(link)) = state else { return };
        if link.unnamed && !link.opening.holds() && uses_unnamed(bytes) {
            self.send_unnamed(d, id, server_id);
        }
    }

    /// A simple query goes to the client's server: PostgreSQL forgets the unnamed statement.
    #[inline]
    pub(super) fn forget_unnamed(&mut self, id: ClientId) {
        if let Some(account) = self.clients.get_mut(id).and_then(|client| client.account.as_deref_mut()) {
            account.unnamed = None;
        }
    }

    fn send_unnamed<D: Driver>(&mut self, d: &mut D, id: ClientId, server_id: ServerId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), Some(account)) = (&mut client.state, &client.account) else { return };
        let Some(unnamed) = &account.unnamed else { return };
        let Some(server) = self.servers.get_mut(server_id) else { return };
        if link.streaming > 0 || matches!(server.state, ServerState::Settling(_) | ServerState::Auditing(_)) {
            return;
        }
        link.unnamed = false;
        let (query, types) = (unnamed.query.clone(), unnamed.types.clone());
        let traits = pgweir_sql::traits(&query);
        if self.concerns_sequences(id, &query, &traits) {
            self.use_sequences(d, id, server_id, (&query, &traits), false);
        }
        let server = &mut self.servers[server_id];
        self.scratch.clear();
        frontend::encode_parse(&mut self.scratch, b"", &query, &types);
        server.ledger.push(Entry::new(Owner::Errand(id), Kind::Parse));
        server.note_begin(self.now.mono_us);
        d.send(server.conn, &self.scratch);
        let marks = pgweir_sql::traits(&query).marks;
        if !marks.is_empty() {
            self.note_marks(id, marks, &query, false);
        }
    }
}
