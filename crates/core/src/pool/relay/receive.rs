//! The bytes of servers on their way to clients: the ledger says to which. Rows and COPY data pass in runs, and in pieces, as they
//! come; a message that needs a closer look goes to the moment *answer*.

use pgweir_wire::backend::{DataRow, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::limits::{HOLD_MESSAGE_BYTES, SERVER_MESSAGE_BYTES_MAX};
use crate::pool::client::state::{ClientState, Waits};
use crate::pool::lookup::Row;
use crate::pool::relay::ledger::{Owner, Purpose, Unexpected};
use crate::pool::relay::plain::{Commands, plain_answers};
use crate::pool::relay::send::names_are_uncertain;
use crate::pool::server::state::{Server, ServerState, Streaming};
use crate::pool::{Pool, Step};
use crate::stats::rare_path::RarePath;

/// A run of bytes that all go to one client.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) from: usize,
    pub(super) to: Option<ClientId>,
}

impl Pool {
    /// Handles bytes of a server, in any state.
    pub(crate) fn server_received<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.state.client().is_some() {
            self.state.numbers.stats.sent_bytes += bytes.len() as u64;
        }
        server.active_us = cx.env.now.mono_us;
        server.work.received_bytes += bytes.len() as u64;
        if server.incoming.inbox.is_empty() {
            let used = self.server_consume(cx, id, bytes);
            self.server_keep(cx.env, id, None, bytes, used);
        } else {
            let mut inbox = std::mem::take(&mut server.incoming.inbox);
            inbox.extend_from_slice(bytes);
            let used = self.server_consume(cx, id, &inbox);
            self.server_keep(cx.env, id, Some(inbox), &[], used);
        }
        self.resume_released(cx);
    }

    /// Continues clients whose transaction ended, and that may have sent more. They go on only when all bytes of their server were looked
    /// at: bytes that are left over must not answer the next statement.
    pub(crate) fn resume_released<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        while let Some(client) = self.state.due.to_resume.pop_front() {
            self.client_resume(cx, client);
        }
    }

    fn server_keep(&mut self, env: &mut Env, id: ServerId, held: Option<Vec<u8>>, bytes: &[u8], used: usize) {
        if held.is_none() && used == bytes.len() {
            return;
        }
        let rest = env.buffers.remainder(held, bytes, used);
        match self.servers.get_mut(id) {
            Some(server) => server.incoming.inbox = rest,
            None => env.buffers.give_back(rest),
        }
    }

    fn server_consume<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let Some(server) = self.servers.get(id) else { return bytes.len() };
            let rest = &bytes[at..];
            let step = match &server.state {
                ServerState::Dialing(_) => Step::Wait,
                ServerState::SecuringTls(_) => self.tls_answered(cx, id, rest),
                ServerState::LoggingIn(_) => self.login_message(cx, id, rest),
                ServerState::Watching(watching) if watching.stream.is_some() => {
                    self.stream_received(id, rest)
                }
                _ if server.is_replication() => self.relay_replication(cx, id, rest),
                _ => self.relay(cx, id, rest),
            };
            match step {
                Step::Used(used) => at += used,
                Step::Wait => break,
                Step::Gone => return bytes.len(),
            }
        }
        at
    }

    /// Passes on the bytes of a replication client's server. The client has the server for itself, so nothing needs to be accounted for.
    fn relay_replication<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) -> Step {
        let client = self.servers.get(id).and_then(|server| server.state.client());
        self.pass(cx, id, client, bytes);
        Step::Used(bytes.len())
    }

    /// Handles the messages of a logged-in server.
    fn relay<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) -> Step {
        let mut at = 0;
        let mut run = Run { from: 0, to: None };
        loop {
            let Some(server) = self.servers.get_mut(id) else { return Step::Gone };
            if let Some(streaming) = &mut server.incoming.streaming {
                let used = streaming.left.min(bytes.len() - at);
                streaming.left -= used;
                let (to, done) = (streaming.to, streaming.left == 0);
                if done {
                    server.incoming.streaming = None;
                }
                self.extend(cx, id, &mut run, to, bytes, at);
                at += used;
                if !done {
                    break;
                }
                continue;
            }
            if at == bytes.len() {
                break;
            }
            let mut rest = &bytes[at..];
            if server.pipelined.held().is_some() && self.holds_back(cx, id, rest) {
                break;
            }
            let Some(server) = self.servers.get_mut(id) else { return Step::Gone };
            let commands = match server.work.changes.is_empty() {
                true => Commands::SomeTell,
                false => Commands::AllTell,
            };
            if let Some(plain) = plain_answers(&mut server.ledger, rest, commands) {
                server.work.running.rows = server.work.running.rows.saturating_add(plain.rows);
                self.extend(cx, id, &mut run, Some(plain.client), bytes, at);
                at += plain.len;
                // The message after them is not plain.
                rest = &bytes[at..];
            }
            let header = match Header::peek(rest) {
                Ok(Some(header)) => header,
                Ok(None) => break,
                Err(_) => return self.violated(cx, id, &run, &bytes[..at], "bad packet from server"),
            };
            let whole = rest.len() >= header.total();
            if matches!(header.tag, tag::DATA_ROW | tag::COPY_DATA) {
                match self.row(cx, id, header, &mut run, bytes, at) {
                    Ok(Some(used)) => at += used,
                    Ok(None) => break,
                    Err(step) => return step,
                }
                continue;
            }
            if !whole {
                if header.total() <= HOLD_MESSAGE_BYTES || !self.may_stream(id, header) {
                    if header.total() > SERVER_MESSAGE_BYTES_MAX {
                        return self.violated(cx, id, &run, &bytes[..at], "message from server is too large");
                    }
                    break;
                }
                self.servers[id].incoming.streaming =
                    Some(Streaming { left: header.total(), to: self.begin_streamed(cx.env, id, header.tag) });
                continue;
            }
            let (message, behind) = rest.split_at(header.total());
            if header.tag == tag::PARAMETER_DESCRIPTION {
                match self.shows_description(id, message, behind) {
                    // What comes next decides.
                    None => break,
                    Some(true) => {}
                    Some(false) => {
                        self.extend(cx, id, &mut run, None, bytes, at);
                        at += header.total();
                        continue;
                    }
                }
            }
            match self.control(cx, id, header.tag, message, &mut run, bytes, at) {
                Ok(()) => at += header.total(),
                Err(error) => return self.unexpected(cx, id, &run, &bytes[..at], error),
            }
        }
        self.flush(cx, id, &run, &bytes[..at]);
        self.resume_held(cx, id);
        if at == 0 { Step::Wait } else { Step::Used(at) }
    }

    /// Handles a row, or COPY data. Returns the number of bytes that were used; `None` if the rest is needed first.
    fn row<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        header: Header,
        run: &mut Run,
        bytes: &[u8],
        at: usize,
    ) -> Result<Option<usize>, Step> {
        let Some(server) = self.servers.get_mut(id) else { return Err(Step::Gone) };
        let rest = &bytes[at..];
        let whole = rest.len() >= header.total();
        let accepted = match server.ledger.accept(header.tag) {
            Ok(accepted) => accepted,
            Err(error) => return Err(self.unexpected(cx, id, run, &bytes[..at], error)),
        };
        match accepted.owner {
            Owner::Hidden(Purpose::AuthQuery) if header.tag == tag::DATA_ROW => {
                match self.lookup_row(id, rest, header) {
                    Row::Read(used) => Ok(Some(used)),
                    Row::Part => Ok(None),
                    Row::TooLong => {
                        Err(self.violated(cx, id, run, &bytes[..at], "row of auth_query is too long"))
                    }
                }
            }
            Owner::Hidden(purpose) if reads_rows(server, purpose) => {
                if !whole && header.total() > SERVER_MESSAGE_BYTES_MAX {
                    return Err(self.violated(cx, id, run, &bytes[..at], "message from server is too large"));
                }
                self.extend(cx, id, run, None, bytes, at);
                if !whole {
                    return Ok(None);
                }
                self.hidden_row(id, purpose, &rest[HEADER_LEN..header.total()]);
                Ok(Some(header.total()))
            }
            owner => {
                if !whole {
                    let left = header.total() - rest.len();
                    server.incoming.streaming = Some(Streaming { left, to: visible(owner) });
                }
                self.extend(cx, id, run, visible(owner), bytes, at);
                Ok(Some(header.total().min(rest.len())))
            }
        }
    }

    /// Handles a row that answers a statement of pgweir's own.
    fn hidden_row(&mut self, id: ServerId, purpose: Purpose, body: &[u8]) {
        let Ok(row) = DataRow::parse(body) else { return };
        match purpose {
            Purpose::Audit => self.audit_row(id, &row, body.len()),
            Purpose::Probe => self.probe_row(id, &row),
            Purpose::Number | Purpose::Outcome => {
                let columns = row.columns().map(|value| value.map(Box::from)).collect();
                self.outcome_row(id, purpose, columns);
            }
            _ => self.question_row(id, &row, body.len()),
        }
    }

    /// Continues a client's messages that waited: they came after a change of its prepared statements that is answered now, or after more
    /// messages than a server may owe answers for. The data of a COPY also continues: without it the COPY does not end, and it names no
    /// statement.
    pub(crate) fn resume_held<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let Some(client_id) = server.state.served_client() else { return };
        let Some(client) = self.clients.get_mut(client_id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        let is_copying_in = server.ledger.is_copying_in();
        let certain = link.waits.has(Waits::HELD)
            && !link.phase.holds()
            && !link.ready_due
            && (is_copying_in || !names_are_uncertain(link, &server.ledger));
        let shorter = link.waits.has(Waits::FULL)
            && (is_copying_in || server.ledger.len() <= cx.env.limits.ledger_entries / 2);
        if certain || shorter {
            if shorter {
                cx.driver.reached(RarePath::LedgerShorter);
            }
            link.waits.look_again();
            self.client_resume(cx, client_id);
        }
    }

    /// Whether a message can be passed on before it is whole: large errors, notices and function results for a client can.
    fn may_stream(&self, id: ServerId, header: Header) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let for_client = server.ledger.head().is_some_and(|head| matches!(head.owner, Owner::Client(_)));
        let large_error = header.tag == tag::ERROR && header.total() > SERVER_MESSAGE_BYTES_MAX;
        for_client && (large_error || matches!(header.tag, tag::FUNCTION_RESPONSE | tag::NOTICE))
    }

    fn begin_streamed(&mut self, env: &mut Env, id: ServerId, message: u8) -> Option<ClientId> {
        let server = self.servers.get_mut(id)?;
        let owner = server.ledger.head()?.owner;
        if matches!(message, tag::FUNCTION_RESPONSE | tag::ERROR) {
            // Only a FunctionCall can be answered so; anything else shows when the rest arrives.
            let ended = server.ledger.accept(message).ok()?.ended;
            if message == tag::ERROR {
                self.undo_failed(env, id, ended);
                owner.client().into_iter().for_each(|client| self.statement_failed(client, id));
            }
        }
        visible(owner)
    }

    fn unexpected<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        run: &Run,
        bytes: &[u8],
        error: Unexpected,
    ) -> Step {
        self.flush(cx, id, run, bytes);
        if self.servers.contains_key(id) {
            self.lose_server(cx, id, error.to_string().into());
        }
        Step::Gone
    }

    fn violated<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        run: &Run,
        bytes: &[u8],
        reason: &'static str,
    ) -> Step {
        self.flush(cx, id, run, bytes);
        self.lose_server(cx, id, reason.into());
        Step::Gone
    }
}

/// Whether pgweir reads the rows that answer this statement of its own.
fn reads_rows(server: &Server, purpose: Purpose) -> bool {
    match purpose {
        Purpose::Audit | Purpose::Probe | Purpose::Number | Purpose::Outcome => true,
        Purpose::Question => server.state.reads_rows(),
        _ => false,
    }
}

/// Returns the client that sees an answer, if any does.
pub(super) fn visible(owner: Owner) -> Option<ClientId> {
    match owner {
        Owner::Client(client) => Some(client),
        Owner::Prerequisite(_) | Owner::Hidden(_) => None,
    }
}
