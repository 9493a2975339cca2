//! Errors of servers: the client that an ErrorResponse is told to, and the next step if it answers a statement of pgweir's.

use pgweir_wire::backend::{ErrorFields, tag};
use pgweir_wire::error::{Report, SqlState, encode_error};
use pgweir_wire::header::HEADER_LEN;

use crate::context::Cx;
use crate::driver::{CloseMode, Closed, Driver, Level};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::leaving::Farewell;
use crate::pool::client::state::{ClientState, printable};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::prepared::shapes::changed_result;
use crate::pool::relay::attempt::after_failure::AfterFailure;
use crate::pool::relay::ledger::{Kind, Owner, Purpose};
use crate::pool::relay::preamble::{Again, LinkPhase};
use crate::pool::server::state::{Description, LinkedServer, Server, ServerState, ServerTask};
use crate::pool::session::replay::NOT_RESTORED;

/// The codes with which a server shuts down, crashes, or ends a session because an administrator said so, and that of a standby that ends a
/// session for a conflict with recovery.
const SHUTDOWN: [SqlState; 4] = [
    SqlState::ADMIN_SHUTDOWN,
    SqlState::CRASH_SHUTDOWN,
    SqlState::CANNOT_CONNECT_NOW,
    SqlState::SERIALIZATION_FAILURE,
];

impl Pool {
    /// Handles a whole ErrorResponse.
    pub(crate) fn server_error<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, message: &[u8]) {
        let body = &message[HEADER_LEN..];
        let fatal = ErrorFields::parse(body).is_ok_and(|fields| fields.ends_session());
        if fatal && self.outlives_shutdown(cx, id, message) {
            return self.lose_server(cx, id, "the server ended the session".into());
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        let accepted = match server.ledger.accept(tag::ERROR) {
            Ok(accepted) => accepted,
            Err(_) => return self.unasked_error(cx, id, message, fatal),
        };
        let renewed = self.renews_statement(cx.env, id, accepted, body);
        let description =
            self.servers.get_mut(id).map(|server| std::mem::take(&mut server.incoming.description));
        if let (Some(Description::Held(message)), None) = (description, renewed) {
            self.pass(cx, id, accepted.owner.client(), &message);
        }
        if renewed.is_none() {
            self.note_misfit(cx.env, id, accepted, body);
        }
        match accepted.owner {
            // The exchange is sent again, and what it resets is noted at the end of that attempt.
            Owner::Client(client) | Owner::Prerequisite(client) if renewed.is_some() => {
                self.doubt_session(client);
            }
            Owner::Client(client) | Owner::Prerequisite(client) => {
                let server = &mut self.servers[id];
                if fatal {
                    server.says_goodbye();
                }
                if let Some(in_flight) = &mut server.in_flight {
                    in_flight.fail(&server.ledger);
                }
                let tx = server.tx;
                let refusal = self.refusal_in_place_of(id, message);
                let changed = changed_result(accepted.ended, message, tx);
                if changed.is_none() {
                    self.note_shape_error(cx.env, &message[HEADER_LEN..]);
                }
                let refusal = refusal.or(changed);
                let message = refusal.as_deref().unwrap_or(message);
                self.note_server_error(cx.env, id, &message[HEADER_LEN..]);
                self.statement_failed(client, id);
                match accepted.ended {
                    Some(entry) if entry.kind == Kind::ParseAgain && is_provoked(body) => {
                        self.name_in_use(cx, client, entry.ticket);
                    }
                    _ => {
                        let told = self.by_own_name(client, accepted.ended, message);
                        let told = told.or_else(|| self.explain(client, message, fatal));
                        self.pass(cx, id, Some(client), told.as_deref().unwrap_or(message));
                    }
                }
            }
            Owner::Hidden(Purpose::Replay) => {}
            // This is the end of the session, and no answer to a question of pgweir. The groups queued behind it have not begun, and run elsewhere when
            // the connection ends.
            Owner::Hidden(_) if fatal && self.is_missed(id) => self.unasked_error(cx, id, message, fatal),
            Owner::Hidden(Purpose::Commit) => self.change_failed(cx, id, message),
            Owner::Hidden(purpose) => self.hidden_failed(cx, id, purpose, body),
        }
        self.undo_failed(cx.env, id, accepted.ended);
        if let Some(renewed) = renewed {
            self.ask_again(cx, id, renewed);
        } else if accepted.owner == Owner::Hidden(Purpose::Replay) {
            let (code, text) = code_and_text(body);
            if self.replay_failed(cx, id, message, code) {
                self.session_sync_failed(cx, id, code, text);
            }
        } else {
            self.begin_failed(cx, id, accepted.owner);
        }
        self.conclude_statements(cx, id);
        if fatal && accepted.owner.client().is_some() {
            self.session_ended(cx, id);
        }
    }

    /// Makes the exchange run again, at the server that this decision names. From here on no client gets the first attempt's answers.
    #[cold]
    #[inline(never)]
    fn ask_again<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        (client_id, decision): (ClientId, AfterFailure),
    ) {
        let reason = "a prepared statement was outdated: pgweir prepares it again and runs it again";
        if decision != AfterFailure::Here {
            return self.run_again(cx, id, client_id, reason);
        }
        cx.log(Level::Debug, reason);
        if let (Some(client), Some(server)) = (self.clients.get_mut(client_id), self.servers.get_mut(id))
            && let ClientState::Linked(link) = &mut client.state
        {
            server.ledger.disown_head(Purpose::Rerun);
            let lacks_sync = server.ledger.is_skipping();
            let begin = server.attempt.take_back(&mut client.inbox, &mut cx.env.buffers);
            link.asked_again += 1;
            link.phase = LinkPhase::Again(Again { begin, rolls_back: false });
            if lacks_sync {
                // The client's own one goes behind the second attempt.
                self.send_sync(cx, id, Purpose::Rerun);
            }
        }
        self.end_pipeline(id);
    }

    /// Closes a server that has told its client that the session ends. PostgreSQL ends the connection next, but nothing may be answered
    /// before that: a client that has sent a BEGIN meanwhile would read two answers to it.
    fn session_ended<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        if self.servers.get(id).is_some_and(Server::has_said_fatal) {
            self.server_closed(cx, id, &Closed::Eof);
        }
    }

    /// Returns whether the client is kept from seeing the end of the session, because its exchange runs on another server. This server
    /// shuts down, or was told to end this session, in the middle of the exchange.
    fn outlives_shutdown<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, message: &[u8]) -> bool {
        let (code, _) = code_and_text(&message[HEADER_LEN..]);
        let Some(server) = self.servers.get(id) else { return false };
        let answers = server.ledger.head().is_some_and(|head| head.owner.client().is_some());
        let client = server.state.client().filter(|_| answers && SHUTDOWN.contains(&code));
        client.is_some_and(|client| self.outlives_server(cx, client, id, message.len()))
    }

    /// Whether the server's client would notice the end of the server: it runs statements there, or has left something in the session.
    fn is_missed(&self, id: ServerId) -> bool {
        let state = self.servers.get(id).map(|server| &server.state);
        state.is_some_and(|state| state.is_serving() || state.auditing().is_some())
    }

    /// Sends the client PostgreSQL's error for a name that is in use, with the client's own name for the statement.
    fn name_in_use<D: Driver>(&mut self, cx: &mut Cx<'_, D>, client: ClientId, ticket: u32) {
        let Some(client) = self.clients.get(client) else { return };
        let name = client.account.statements.as_ref().and_then(|statements| statements.name(ticket));
        let text = format!("prepared statement \"{}\" already exists", printable(name.unwrap_or_default()));
        cx.env.scratch.clear();
        encode_error(&mut cx.env.scratch, &Report::error(SqlState::DUPLICATE_PREPARED_STATEMENT, &text));
        cx.driver.send(client.conn, &cx.env.scratch);
    }

    /// Handles an error that answers nothing: the server is about to leave (57P01, 57P05 and similar codes).
    fn unasked_error<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, message: &[u8], fatal: bool) {
        if fatal && self.first_try_at(id) != FirstTry::None {
            // Nothing of the standby was shown to its client, whose group runs on the primary.
            return self.lose_standby(cx, id);
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        let client = server.state.client();
        if fatal && client.is_some_and(|client| self.outlives_server(cx, client, id, message.len())) {
            return self.lose_server(cx, id, "the server ended the session".into());
        }
        let Some(server) = self.servers.get_mut(id) else { return };
        if fatal {
            server.says_goodbye();
        }
        match server.state.client() {
            Some(client) => {
                let told = self.explain(client, message, fatal);
                self.pass(cx, id, Some(client), told.as_deref().unwrap_or(message));
                self.session_ended(cx, id);
            }
            None => {
                let text = ErrorFields::parse(&message[HEADER_LEN..])
                    .ok()
                    .and_then(|fields| fields.message().map(printable))
                    .unwrap_or_default();
                let line = format!("{} idle server said: {text}", self.server_log_name(&self.servers[id]));
                cx.log(Level::Warning, &line);
                self.note_stillborn(cx.env, id);
                if fatal {
                    self.end_session_of(cx, id, message, &text);
                }
                self.close_server(cx, id, "idle server got dirty", CloseMode::Now);
            }
        }
    }

    /// Ends the client that was told of this server in session pooling, as on a direct connection, even though the client has not sent a
    /// statement yet.
    fn end_session_of<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, message: &[u8], text: &str) {
        let Some(client_id) = self.idle_keeper(id) else { return };
        let code = ErrorFields::parse(&message[HEADER_LEN..]).ok().and_then(|fields| fields.code());
        self.note_error(cx.env, client_id, code.unwrap_or_default());
        if let Some(client) = self.clients.get(client_id) {
            cx.driver.send(client.conn, message);
        }
        self.remove_client(cx, client_id, text, (CloseMode::Flush, Farewell::Refused));
    }

    fn hidden_failed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, purpose: Purpose, body: &[u8]) {
        let (code, text) = code_and_text(body);
        let (what, reason) = match purpose {
            Purpose::Question => match self.question_failed(id, code, &text) {
                Some(failed) => failed,
                None => return,
            },
            Purpose::SyncSession => ("SET of a client's parameters", Some("invalid server parameter")),
            Purpose::Audit => return self.audit_refused(id, code, &text),
            Purpose::Number if !self.number_refused(cx, id, code, &text) => return,
            Purpose::Number => {
                return self.lose_server(cx, id, "a question of pgweir failed in a transaction".into());
            }
            Purpose::Outcome => return self.outcome_refused(id, code, text),
            Purpose::Restore => ("putting back startup parameters", None),
            // A statement that cannot be prepared is not there: the client learns so when it uses it.
            Purpose::OwnName => return,
            // The primary may be able to.
            Purpose::Prepare if self.first_try_at(id) != FirstTry::None => {
                return self.session_sync_failed(cx, id, code, text);
            }
            Purpose::Prepare => return self.prepare_refused(cx, id, &text),
            // The client's statement fails for the same reason.
            Purpose::Sequences if code == SqlState::IN_FAILED_SQL_TRANSACTION => return,
            Purpose::Sequences => ("DISCARD SEQUENCES", Some("DISCARD SEQUENCES failed")),
            Purpose::AuthQuery => ("auth_query", None),
            Purpose::Evict => ("Close", Some("Close failed")),
            Purpose::Listen => ("LISTEN", Some("LISTEN failed")),
            Purpose::Meet => ("NOTIFY", None),
            Purpose::Rerun
            | Purpose::Reopen
            | Purpose::Replay
            | Purpose::Probe
            | Purpose::Fence
            | Purpose::Commit => return,
        };
        let line = format!("{} {what} failed: {text}", self.server_log_name(&self.servers[id]));
        cx.log(Level::Warning, &line);
        match (purpose, reason) {
            (Purpose::SyncSession, _) => self.session_sync_failed(cx, id, code, text),
            (Purpose::AuthQuery, _) => self.lookup_refused(id),
            (_, Some(reason)) => self.lose_server(cx, id, reason.into()),
            (_, None) => {}
        }
    }

    /// Handles a server that does not reach the state that it should. The client gets another server, up to a number of times, and then an
    /// error. The server is not used any more.
    pub(crate) fn session_sync_failed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        code: SqlState,
        text: String,
    ) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        server.retire(NOT_RESTORED);
        if self.gets_another_server(cx, server_id) {
            let line = format!(
                "{} could not be brought to a session: {text}",
                self.server_log_name(&self.servers[server_id])
            );
            cx.log(Level::Warning, &line);
            return self.close_server(cx, server_id, NOT_RESTORED, CloseMode::Now);
        }
        let Some(server) = self.servers.get(server_id) else { return };
        match server.state {
            ServerState::Linked(LinkedServer {
                client,
                task: ServerTask::Serving | ServerTask::Syncing(_),
            }) => {
                self.refuse_client(cx, client, &Fault::SessionNotRestored(code, text));
            }
            _ => self.lose_server(cx, server_id, format!("session could not be restored: {text}").into()),
        }
    }
}

/// Returns the code and text of a server's error, for statements of pgweir's own.
pub(crate) fn code_and_text(body: &[u8]) -> (SqlState, String) {
    let fields = ErrorFields::parse(body).ok();
    let code = fields.as_ref().and_then(|fields| fields.code().and_then(SqlState::from_bytes));
    let text = fields.as_ref().and_then(|fields| fields.message().map(printable));
    (code.unwrap_or(SqlState::CONNECTION_FAILURE), text.unwrap_or_default())
}

/// Whether this is the error that was provoked, and not another one that came first, for example because the transaction had failed before
/// or the server shuts down.
fn is_provoked(body: &[u8]) -> bool {
    let code = ErrorFields::parse(body).ok().and_then(|fields| fields.code().and_then(SqlState::from_bytes));
    code == Some(SqlState::DUPLICATE_PREPARED_STATEMENT)
}
