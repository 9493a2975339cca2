//! A client that outlives the server of its transaction. The connection to a node of its cluster ended: PostgreSQL has rolled the
//! transaction back. The client is told so, SQLSTATE 40001, after which applications repeat a transaction: at once if a statement of it
//! was under way (`lost_in_flight.rs`), else with its next statement. Its session goes on; until it ends the transaction, it is in a
//! failed one, which no server knows of.
//!
//! A client whose BEGIN no server has seen loses nothing: it goes on with another server.

use pgweir_sql::{Block, Marks, Statements};
use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::error::{Report, SqlState, encode_error};
use pgweir_wire::frontend::{Query, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::client_handoff::Replication;
use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::IN_FAILED_TRANSACTION;
use crate::ids::{ClientId, ServerId};
use crate::limits::BEGIN_BYTES_MAX;
use crate::pool::Pool;
use crate::pool::Step;
use crate::pool::client::state::{ClientState, DeferredBegin, Link};
use crate::pool::client::turned_down::is_whole_group;
use crate::pool::relay::attempt::holds_later;
use crate::pool::relay::ledger::Purpose;
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::server::state::Server;
use crate::stats::rare_path::RarePath;

/// The client's knowledge of the loss of its transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RolledBack {
    /// The client has not been told of the loss. Its next statement gets the error.
    Untold,
    /// The client was told an error within a group. Its messages up to Sync are ignored.
    Ignoring,
    /// The client was told that the transaction has failed, and must end it.
    Told,
}

impl RolledBack {
    /// The client was told this state of its transaction last.
    pub(super) fn knowing(status: TxStatus) -> RolledBack {
        if status == TxStatus::Failed { RolledBack::Told } else { RolledBack::Untold }
    }

    /// The transaction status that the client was told.
    fn status(self) -> TxStatus {
        match self {
            RolledBack::Untold => TxStatus::InTransaction,
            RolledBack::Ignoring | RolledBack::Told => TxStatus::Failed,
        }
    }
}

/// The effects of a transaction that a rollback undoes, so that the client's session loses nothing with the server. (SET of a
/// parameter that servers report is checked separately: the client would have to be told the former value.)
pub(super) const TAKEN_BACK: Marks = Marks::SETTINGS
    .and(Marks::RESETS)
    .and(Marks::CALLS_SETTINGS)
    .and(Marks::LISTENS)
    .and(Marks::CURSORS)
    .and(Marks::TEMPORARY)
    .and(Marks::ASKS_SEQUENCE)
    .and(Marks::DRAWS_SEQUENCE)
    .and(Marks::SHOWS_PREPARED)
    .and(Marks::READS_LOCALLY);

impl Pool {
    /// Lets a client's session go on without its server, which is lost or about to be. Returns `false` if the client has lost more than its
    /// transaction, or if the transaction's outcome is not known. `unseen_bytes` is how many of the last bytes of the server no client has got.
    pub(crate) fn outlives_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        unseen_bytes: usize,
    ) -> bool {
        let (Some(client), Some(server)) = (self.clients.get_mut(id), self.servers.get(server_id)) else {
            return false;
        };
        let ClientState::Linked(link) = &mut client.state else { return false };
        if self.state.cluster.is_none()
            || self.state.policy.keeps_server()
            || client.account.replication != Replication::None
        {
            return false;
        }
        if matches!(link.phase, LinkPhase::Outcome(_)) {
            self.asks_again(cx, id, server_id);
            return true;
        }
        if matches!(link.phase, LinkPhase::Exchange(Preamble::Block(_))) {
            return self.outlives_change(cx, id, server_id, unseen_bytes);
        }
        if !loses_nothing(link, server) {
            return self.outlives_in_flight(cx, id, server_id, unseen_bytes);
        }
        let begin = match std::mem::replace(&mut link.phase, LinkPhase::PLAIN) {
            LinkPhase::Exchange(Preamble::Begin(text)) => Some(text),
            _ if server.tx == TxStatus::Idle => return false,
            _ => None,
        };
        // In a transaction that has failed, the client knows that nothing will come of it.
        let knows = RolledBack::knowing(server.tx);
        self.leave_lost(cx, id, server_id);
        let since_us = cx.env.now.mono_us;
        self.set_client_state(
            id,
            match begin {
                Some(text) => ClientState::DeferredBegin(DeferredBegin { text, since_us }),
                None => ClientState::RolledBack(knows),
            },
        );
        true
    }

    /// A message of a client whose transaction is gone.
    pub(crate) fn rolled_back_client_sent<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        bytes: &[u8],
    ) -> Step {
        let header = match self.first_header(cx, id, bytes) {
            Ok(header) => header,
            Err(step) => return step,
        };
        let Some(ClientState::RolledBack(knows)) = self.clients.get(id).map(|client| &client.state) else {
            return Step::Wait;
        };
        let knows = *knows;
        match header.tag {
            tag::TERMINATE => return self.client_left(cx, id, "client close request"),
            tag::SYNC if bytes.len() < header.total() => return Step::Wait,
            tag::SYNC => {
                self.tell(cx, id, None, Some(knows.status()));
                if knows == RolledBack::Ignoring {
                    self.set_client_state(id, ClientState::RolledBack(RolledBack::Told));
                }
                return Step::Used(header.total());
            }
            tag::FLUSH | tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL => {
                return self.discard(id, bytes.len(), header);
            }
            _ if knows == RolledBack::Ignoring => return self.discard(id, bytes.len(), header),
            // A Close executes nothing, so it is answered here.
            tag::CLOSE if bytes.len() < header.total() => return Step::Wait,
            tag::CLOSE => return self.close_after_loss(cx, id, header, bytes),
            _ => {}
        }
        if is_empty_query(header, bytes) {
            self.answer_empty_query(cx, id, knows.status());
            return Step::Used(header.total());
        }
        if let Some(group) = self.end_at_front(cx.env, id, bytes) {
            if group.is(Block::Commit) && knows == RolledBack::Untold {
                self.tell_rolled_back(cx, id, Some(TxStatus::Idle));
            } else {
                self.answer_block(cx, id, group.rolling_back(), TxStatus::Idle);
            }
            self.set_client_state(id, ClientState::Idle);
            return Step::Used(group.len);
        }
        if may_become_end(header, bytes) {
            return Step::Wait;
        }
        let is_alone = matches!(header.tag, tag::QUERY | tag::FUNCTION_CALL);
        let status = is_alone.then_some(TxStatus::Failed);
        match knows {
            RolledBack::Untold => self.tell_rolled_back(cx, id, status),
            _ => self.tell_failed(cx, id, status),
        }
        let knows = if is_alone { RolledBack::Told } else { RolledBack::Ignoring };
        self.set_client_state(id, ClientState::RolledBack(knows));
        self.discard(id, bytes.len(), header)
    }
}

impl Pool {
    /// Close, also of a portal, which was gone with the transaction.
    fn close_after_loss<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        header: Header,
        bytes: &[u8],
    ) -> Step {
        match self.close_without_server(cx, id, &bytes[HEADER_LEN..header.total()]) {
            Err(fault) => return self.refuse_client(cx, id, &fault),
            Ok(true) => {}
            Ok(false) => self.tell_closed(cx, id),
        }
        Step::Used(header.total())
    }

    pub(super) fn tell_closed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        cx.env.scratch.clear();
        backend::encode_close_complete(&mut cx.env.scratch);
        cx.driver.send(client.conn, &cx.env.scratch);
    }

    /// The transaction is gone. `status`: the error is the end of what the client asked for.
    pub(crate) fn tell_rolled_back<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        status: Option<TxStatus>,
    ) {
        let Some(client) = self.clients.get(id) else { return };
        cx.driver.reached(RarePath::RolledBackByLoss);
        let node = if client.account.branch.is_primary() { "primary" } else { "standby" };
        let text = format!("the transaction was rolled back: the connection to the {node} was lost");
        let report = Report::error(SqlState::SERIALIZATION_FAILURE, &text)
            .with_hint("Try the whole transaction again. The session goes on.");
        self.tell(cx, id, Some(&report), status);
    }

    /// A read outside of a transaction is lost, and its client has seen a part of it, or has lost too many servers with it.
    pub(super) fn tell_interrupted<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get(id) else { return };
        let node = if client.account.branch.is_primary() { "primary" } else { "standby" };
        let text = format!("the statement was interrupted: the connection to the {node} was lost");
        let report = Report::error(SqlState::SERIALIZATION_FAILURE, &text)
            .with_hint("It has changed nothing. Try it again. The session goes on.");
        cx.driver.reached(RarePath::ReadInterrupted);
        self.tell(cx, id, Some(&report), Some(TxStatus::Idle));
    }

    /// A Query without a statement.
    pub(super) fn answer_empty_query<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        status: TxStatus,
    ) {
        cx.env.scratch.clear();
        backend::encode_empty_query(&mut cx.env.scratch);
        backend::encode_ready(&mut cx.env.scratch, status);
        cx.driver.send(self.clients[id].conn, &cx.env.scratch);
    }

    /// Sends the error with which PostgreSQL answers a statement in a failed transaction, and ReadyForQuery if `status` is given.
    pub(crate) fn tell_failed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        status: Option<TxStatus>,
    ) {
        let report = Report::error(SqlState::IN_FAILED_SQL_TRANSACTION, IN_FAILED_TRANSACTION);
        self.tell(cx, id, Some(&report), status);
    }

    pub(crate) fn tell<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        report: Option<&Report<'_>>,
        status: Option<TxStatus>,
    ) {
        let Some(client) = self.clients.get(id) else { return };
        cx.env.scratch.clear();
        if let Some(report) = report {
            encode_error(&mut cx.env.scratch, report);
        }
        if let Some(status) = status {
            backend::encode_ready(&mut cx.env.scratch, status);
        }
        cx.driver.send(client.conn, &cx.env.scratch);
        if let Some(report) = report {
            self.note_error(cx.env, id, report.code.as_bytes());
        }
    }
}

/// Whether everything that the client asked for is answered, and only the open transaction is lost with the server.
fn loses_nothing(link: &Link, server: &Server) -> bool {
    let marks = link.touched.as_ref().map_or(Marks::NONE, |touched| touched.marks);
    server.state.is_serving()
        && server.ledger.only_owes(Purpose::Number)
        && server.pipelined.is_alone()
        && server.incoming.streaming.is_none()
        && matches!(link.phase, LinkPhase::Exchange(Preamble::None | Preamble::Begin(_)))
        && link.streaming == 0
        && !holds_later(link, server)
        && link.pin.is_none()
        && marks.without(TAKEN_BACK).is_empty()
        && !link.changed.by_statements()
}

/// Whether a message is a Query without a statement, which PostgreSQL answers even in a failed transaction.
fn is_empty_query(header: Header, bytes: &[u8]) -> bool {
    let query = bytes.get(HEADER_LEN..header.total()).filter(|_| header.tag == tag::QUERY);
    let query = query.and_then(|body| Query::parse(body).ok());
    query.is_some_and(|query| pgweir_sql::traits(query.text).statements == Statements::None)
}

/// Whether a message is incomplete and may still become the end of the transaction.
pub(crate) fn may_become_end(header: Header, bytes: &[u8]) -> bool {
    let is_whole = match header.tag {
        tag::QUERY => bytes.len() >= header.total(),
        tag::PARSE | tag::BIND => is_whole_group(bytes),
        _ => true,
    };
    !is_whole && bytes.len().max(header.total()) <= BEGIN_BYTES_MAX
}
