//! The moment *prepare*: what goes to a server ahead of a client's message, in the same packet if possible. The order on the
//! connection is the order here.
//!
//! When a client gets a server (`prepare_server`):
//!
//! 1. `session`: the server is brought to the client's session; at its end, if `sequences` says so, the values that other clients
//!    drew are discarded.
//! 2. `multiplex`: a group that this server gets may be queued behind others only if nothing goes ahead of it (`Link::group`).
//!
//! Ahead of the first message:
//!
//! 3. `begin`: the BEGIN that was answered here (`begin_ahead`).
//!
//! Ahead of each message with a text that is not known to touch nothing:
//!
//! 4. `prepared`: the text may use the client's own names of statements (`exposed_names.rs`). It comes first, because it may have
//!    the message wait for answers; at rest, the answer to anything that was sent before would end the transaction.
//! 5. `sequences`: other clients' values are discarded before the client draws or asks.
//! 6. `session`: notes what the text may do to the session; `prepared`, whether it may end names of statements (`note_ending`).
//! 7. `prepared`: the statement that the server lacks, or the client's unnamed statement. A Bind may have to wait until the server has
//!    described the statement (`shapes.rs`); it is looked at once more then, and steps 4 to 6 are not repeated.
//!
//! A feature writes down what the server needs (`relay/ahead.rs`), each message with its entry in the ledger, and answers whether
//! the client's message may follow (`Named`, `UnnamedUse`) or ends its client (`Fault`). `relay` sends the list after each feature, so
//! that the next one finds it in the ledger.
//!
//! If a session cannot be brought to the server in that way, the server is asked by itself and the client's message waits
//! (`session/sync.rs`).

use pgweir_sql::{Marks, Traits};
use pgweir_wire::frontend::{self, BindHead, Close, Describe, Target, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId, StatementId};
use crate::pool::client::state::{ClientState, Waits};
use crate::pool::prepared::exposed_names::{Named, Owed, Sent};
use crate::pool::prepared::messages::{Provided, is_whole, told};
use crate::pool::prepared::shapes::Bind;
use crate::pool::prepared::statements::Meaning;
use crate::pool::prepared::unnamed::UnnamedUse;
use crate::pool::relay::ledger::{Entry, Kind, Owner};
use crate::pool::relay::route::text_of;
use crate::pool::server::state::{ServerState, ServerTask};
use crate::pool::{Pool, Step};

impl Pool {
    /// Prepares the server for a client that was just linked: the client's session comes to the server first.
    pub(crate) fn prepare_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
    ) {
        let clears = self.clears_sequences(id, server_id);
        if !self.has_session_of(id, server_id) || clears {
            self.reread_prepared(cx.env, id, server_id);
            if let Some(syncing) = self.sync_session(cx, id, server_id, clears) {
                self.set_server_state(server_id, ServerState::linked(id, ServerTask::Syncing(syncing)));
            }
            self.send_ahead(cx, server_id);
        }
    }

    /// Whether [`Pool::prepare_text`] has something to do.
    #[inline]
    pub(crate) fn concerns_features(&self, id: ClientId, text: &[u8], traits: &Traits) -> bool {
        self.may_meet_names(id, traits) || self.concerns_sequences(text, traits)
    }

    /// Prepares the server for a text of a linked client that is about to be sent. `simple` is true if the text is a Query. The messages
    /// before it were sent.
    pub(crate) fn prepare_text<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        (text, traits): (&[u8], &Traits),
        (sent, simple): (Sent, bool),
    ) -> Named {
        let named = match self.may_meet_names(id, traits) {
            true => self.meet_names(cx.env, id, server_id, (text, traits), sent),
            false => Named::Unchanged,
        };
        self.send_ahead(cx, server_id);
        self.act_on_names(cx, id, server_id, named);
        if matches!(named, Named::Waits(_)) {
            return named;
        }
        // A Parse or Describe of a statement that has a name executes nothing.
        if sent != Sent::Named && self.concerns_sequences(text, traits) {
            self.use_sequences(cx.env, id, server_id, (text, traits), simple);
            self.send_ahead(cx, server_id);
        }
        named
    }

    /// Acts on the client's own names of statements. If names were exposed, the session is audited at the end of the transaction. If the
    /// names depend on answers that are owed, the message waits.
    fn act_on_names<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        named: Named,
    ) {
        match named {
            Named::Unchanged => {}
            Named::Exposed => self.note_marks(cx.env, id, Marks::PREPARED, b"", false),
            Named::Waits(owed) => self.hold_for_answers(cx, id, server_id, owed),
        }
    }

    /// Sends a Parse, Describe or Close that names a prepared statement, in the form that the server needs. If the server lacks the
    /// statement, it gets the statement first.
    pub(crate) fn send_prepared<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        header: Header,
        message: &[u8],
    ) -> Step {
        match is_whole(header, message) {
            Ok(true) => {}
            Ok(false) => return Step::Wait,
            Err(fault) => return self.refuse_client(cx, id, &fault),
        }
        if let Some(step) = self.prepare_named(cx, id, server_id, header, message).keeps_message() {
            return step;
        }
        let handled = self.prepared_message(cx.env, id, server_id, header, message);
        self.send_ahead(cx, server_id);
        match handled {
            Ok(step) => step,
            Err(fault) => self.refuse_client(cx, id, &fault),
        }
    }

    /// Sends a Bind of a statement that has a name. If the client prepared it through the protocol, `session` notes the statement that is
    /// executed, and its values.
    pub(crate) fn send_bind<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        (header, message): (Header, &[u8]),
        head: BindHead<'_>,
    ) -> Step {
        let body = &message[HEADER_LEN..message.len().min(header.total())];
        let named = self.client_named(id, head.statement);
        match named {
            Some(_) if self.ends_bind_wait(id) => {}
            Some(meaning) => {
                let named = self.prepare_statement(cx, id, server_id, meaning.statement, Sent::Bound);
                if let Some(step) = named.keeps_message() {
                    return step;
                }
            }
            None => self.prepare_bound_by_sql(cx, id, server_id, head.statement),
        }
        let known = self.provide_statement(cx, id, server_id, (head.statement, named));
        if let Some(known) = known.as_ref().filter(|known| known.is_doubtful) {
            match self.look_at_bind(cx.env, id, server_id, (&head, known), (header, message)) {
                Bind::Passes => {}
                Bind::Waits => {
                    self.begin_bind_wait(id);
                    self.hold_for_answers(cx, id, server_id, Owed::IsAsked);
                    return Step::Wait;
                }
                Bind::IsRefused => {
                    let step = self.refuse_bind(cx.env, id, known.ticket, (header, message));
                    self.send_ahead(cx, server_id);
                    return step;
                }
            }
        } else {
            self.forget_doubtful_portal(id);
        }
        let tail = &body[head.tail..];
        let tail_len = header.body_len as usize - head.tail;
        let bound = self.send_bind_head(cx, id, server_id, (head, known), tail_len);
        let Some(server) = self.servers.get(server_id) else { return Step::Gone };
        cx.driver.send(server.conn, tail);
        if let Some(statement) = bound {
            self.note_statement(cx.env, id, statement);
            self.note_values(id, tail);
        }
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            link.streaming = header.total().saturating_sub(message.len());
        }
        Step::Used(header.total().min(message.len()))
    }

    /// Prepares the statement that a Bind names on the server, if the client prepared it through the protocol and the server lacks it.
    /// Returns that statement.
    pub(crate) fn provide_statement<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        (name, named): (&[u8], Option<Meaning>),
    ) -> Option<Provided> {
        let known = self.bound_statement(cx.env, id, server_id, (name, named));
        self.send_ahead(cx, server_id);
        known
    }

    /// Sends the names at the front of a Bind, as the server knows them. The caller sends the rest of the Bind. Returns the statement, if
    /// the client prepared it through the protocol.
    pub(crate) fn send_bind_head<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        (head, known): (BindHead<'_>, Option<Provided>),
        tail_len: usize,
    ) -> Option<StatementId> {
        self.state.numbers.stats.binds += 1;
        if let Some(known) = &known {
            self.note_ending(id, known.marks);
        }
        let (name, ticket) = told(&cx.env.statements, known.as_ref(), head.statement);
        cx.env.scratch.clear();
        frontend::encode_bind_head(&mut cx.env.scratch, head.portal, name, tail_len);
        let server = self.servers.get_mut(server_id)?;
        server.ledger.push(Entry { ticket, ..Entry::new(Owner::Client(id), Kind::Bind) });
        cx.driver.send(server.conn, &cx.env.scratch);
        known.map(|known| known.statement)
    }

    /// Prepares the server for a Parse, a Describe or a Close that names a statement: its text, and the names that it uses.
    fn prepare_named<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        header: Header,
        message: &[u8],
    ) -> Named {
        let body = &message[HEADER_LEN..message.len().min(header.total())];
        match header.tag {
            tag::PARSE => {
                // An earlier text of its group may use the name that it prepares.
                let named = self.meet_new_name(cx.env, id, server_id);
                self.send_ahead(cx, server_id);
                self.act_on_names(cx, id, server_id, named);
                match text_of(cx.env, header, message) {
                    Some((text, traits)) if named == Named::Unchanged => {
                        self.prepare_text(cx, id, server_id, (text, &traits), (Sent::Named, false))
                    }
                    _ => named,
                }
            }
            tag::DESCRIBE => {
                let name = Describe::parse(body).ok().map(|describe| describe.name);
                match name.and_then(|name| self.client_statement(id, name)) {
                    Some(statement) => self.prepare_statement(cx, id, server_id, statement, Sent::Named),
                    None => Named::Unchanged,
                }
            }
            _ => {
                let closed = Close::parse(body).ok().filter(|close| close.target == Target::Statement);
                if closed.is_some_and(|close| self.closes_by_sql(id, close.name)) {
                    // Its session is asked.
                    self.note_marks(cx.env, id, Marks::PREPARED, b"", false);
                }
                Named::Unchanged
            }
        }
    }

    /// Prepares the server for a Bind or a Describe of a client's statement under its name.
    fn prepare_statement<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        statement: StatementId,
        sent: Sent,
    ) -> Named {
        let Some(known) = cx.env.statements.get(statement) else { return Named::Unchanged };
        match known.traits {
            Some(traits) if self.concerns_features(id, &known.query, &traits) => {
                let text = known.query.clone();
                self.prepare_text(cx, id, server_id, (&text, &traits), (sent, false))
            }
            _ => Named::Unchanged,
        }
    }

    /// Prepares the server for a Bind of a statement that the client did not prepare through the protocol, but perhaps by SQL.
    fn prepare_bound_by_sql<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        name: &[u8],
    ) {
        let prepared = self.prepared_by_sql(id, name);
        let text = prepared.map(|prepared| prepared.text.to_vec());
        let Some(text) = text else { return };
        let traits = pgweir_sql::traits(&text);
        if self.concerns_sequences(&text, &traits) {
            self.use_sequences(cx.env, id, server_id, (&text, &traits), false);
            self.send_ahead(cx, server_id);
        }
        let inside = self.marks_inside(cx.env, &text, traits.marks);
        let marks = traits.marks.without(Marks::PREPARED).and(inside);
        if !marks.is_empty() {
            self.note_marks(cx.env, id, marks, &text, false);
        }
    }

    /// Prepares the client's own unnamed statement on the server, because the next message uses or closes it. Returns `false` if the
    /// message must wait.
    pub(crate) fn prepare_unnamed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        kind: Kind,
    ) -> bool {
        let (text, lacks) = match self.owns_unnamed(id, server_id, kind) {
            UnnamedUse::Waits => {
                self.hold_for_answers(cx, id, server_id, Owed::IsAsked);
                return false;
            }
            UnnamedUse::Ready => return true,
            UnnamedUse::Needs { text, lacks } => (text, lacks),
        };
        if let Some(text) = text {
            let traits = pgweir_sql::traits(&text);
            let to_send = (Sent::Unnamed, false);
            let named = self.prepare_text(cx, id, server_id, (&text, &traits), to_send);
            if matches!(named, Named::Waits(_)) {
                return false;
            }
            self.note_text(cx.env, id, &text, &traits);
            self.note_ending(id, traits.marks);
        }
        if lacks {
            self.unnamed_ahead(cx.env, id);
            self.send_ahead(cx, server_id);
            self.unnamed_sent(cx.env, id, server_id);
        }
        true
    }

    /// Makes the client's next message wait for answers that the server owes. If the server may hold them back, a Flush asks for them.
    pub(crate) fn hold_for_answers<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        owed: Owed,
    ) {
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            link.waits.set(Waits::HELD, true);
        }
        if owed == Owed::IsAsked {
            self.ask_for_answers(cx, server_id);
        }
    }

    /// Sends a Flush if the server may hold back answers until a Sync or a Flush.
    pub(crate) fn ask_for_answers<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        if server.ledger.ask() {
            cx.env.scratch.clear();
            pgweir_wire::frontend::encode_flush(&mut cx.env.scratch);
            cx.driver.send(server.conn, &cx.env.scratch);
        }
    }
}
