//! Messages of servers: the client they belong to (the ledger says), and how they reach it. Rows and COPY data pass in runs,
//! and in pieces, as they come.

use pgweir_settings::PoolMode;
use pgweir_wire::backend::{TxStatus, parse_ready, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::{BACKLOG_HIGH_BYTES, HOLD_MESSAGE_BYTES, LEDGER_ENTRIES_MAX, SERVER_ERROR_BYTES_MAX};
use crate::pool::Pool;
use crate::pool::Step;
use crate::pool::begin::BeforeReady;
use crate::pool::client::state::ClientState;
use crate::pool::lookup::Row;
use crate::pool::moves::server::comes_unasked;
use crate::pool::relay::ledger::{Accepted, Kind, Owner, Purpose, Unexpected};
use crate::pool::relay::plain::{DEALLOCATED, ROLLED_BACK, changes_objects, is_discarding, plain_answers};
use crate::pool::relay::send::names_are_uncertain;
use crate::pool::server::state::{ServerState, Streaming};
use crate::pool::session::restore::waits_for_restore;
use crate::pool::show::measure::rows_in_tag;

/// A run of bytes that all go to one client.
#[derive(Clone, Copy)]
struct Run {
    from: usize,
    to: Option<ClientId>,
}

impl Pool {
    /// Bytes of a server, in any state.
    pub(crate) fn server_received<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.state.client().is_some() {
            self.state.numbers.stats.sent_bytes += bytes.len() as u64;
        }
        server.active_us = cx.env.now.mono_us;
        server.work.received_bytes += bytes.len() as u64;
        if server.inbox.is_empty() {
            let used = self.server_consume(cx, id, bytes);
            self.server_keep(cx.env, id, None, bytes, used);
        } else {
            let mut inbox = std::mem::take(&mut server.inbox);
            inbox.extend_from_slice(bytes);
            let used = self.server_consume(cx, id, &inbox);
            self.server_keep(cx.env, id, Some(inbox), &[], used);
        }
        self.resume_released(cx);
    }

    /// Clients whose transaction ended may have sent more. They go on only when all bytes of that server were looked at:
    /// left-over bytes there must not answer the next statement.
    pub(crate) fn resume_released<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        while let Some(client) = self.state.due.to_resume.pop_front() {
            self.client_resume(cx, client);
        }
    }

    fn server_keep(&mut self, env: &mut Env, id: ServerId, held: Option<Vec<u8>>, bytes: &[u8], used: usize) {
        let rest = env.buffers.remainder(held, bytes, used);
        match self.servers.get_mut(id) {
            Some(server) => server.inbox = rest,
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

    /// A replication client has its server for itself: nothing needs to be accounted for.
    fn relay_replication<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) -> Step {
        let client = self.servers.get(id).and_then(|server| server.state.client());
        self.pass(cx, id, client, bytes);
        Step::Used(bytes.len())
    }

    /// Messages of a logged-in server.
    fn relay<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) -> Step {
        let mut at = 0;
        let mut run = Run { from: 0, to: None };
        loop {
            let Some(server) = self.servers.get_mut(id) else { return Step::Gone };
            if let Some(streaming) = &mut server.streaming {
                let used = streaming.left.min(bytes.len() - at);
                streaming.left -= used;
                let (to, done) = (streaming.to, streaming.left == 0);
                if done {
                    server.streaming = None;
                }
                self.extend(cx, id, &mut run, to, bytes, at);
                at += used;
                if !done {
                    break;
                }
                continue;
            }
            let rest = &bytes[at..];
            if server.pipelined.held().is_some() && self.holds_exposed(cx, id, rest) {
                break;
            }
            let Some(server) = self.servers.get_mut(id) else { return Step::Gone };
            if let Some(plain) = plain_answers(&mut server.ledger, rest) {
                server.work.running.rows = server.work.running.rows.saturating_add(plain.rows);
                self.extend(cx, id, &mut run, Some(plain.client), bytes, at);
                at += plain.len;
                continue;
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
                    if header.total() > SERVER_ERROR_BYTES_MAX {
                        return self.violated(cx, id, &run, &bytes[..at], "message from server is too large");
                    }
                    break;
                }
                self.servers[id].streaming =
                    Some(Streaming { left: header.total(), to: self.begin_streamed(cx.env, id, header.tag) });
                continue;
            }
            let message = &rest[..header.total()];
            match self.control(cx, id, header.tag, message, &mut run, bytes, at) {
                Ok(()) => at += header.total(),
                Err(error) => return self.unexpected(cx, id, &run, &bytes[..at], error),
            }
        }
        self.flush(cx, id, &run, &bytes[..at]);
        self.resume_held(cx, id);
        if at == 0 { Step::Wait } else { Step::Used(at) }
    }

    /// A row, or COPY data: how much of it was used, `None` if the rest is needed first.
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
            Owner::Hidden(Purpose::Audit | Purpose::StartupCheck | Purpose::Probe) => {
                if !whole && header.total() > SERVER_ERROR_BYTES_MAX {
                    return Err(self.violated(cx, id, run, &bytes[..at], "message from server is too large"));
                }
                self.extend(cx, id, run, None, bytes, at);
                if !whole {
                    return Ok(None);
                }
                self.hidden_row(id, &rest[HEADER_LEN..header.total()]);
                Ok(Some(header.total()))
            }
            owner => {
                if !whole {
                    let left = header.total() - rest.len();
                    server.streaming = Some(Streaming { left, to: visible(owner) });
                }
                self.extend(cx, id, run, visible(owner), bytes, at);
                Ok(Some(header.total().min(rest.len())))
            }
        }
    }

    /// Continues a client's messages that waited: they came after a change of its prepared statements that is answered now,
    /// or after more messages than a server may owe answers for.
    pub(crate) fn resume_held<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let ServerState::Busy(client_id) = server.state else { return };
        let Some(client) = self.clients.get_mut(client_id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        let certain = link.waits.held
            && !link.opening.holds()
            && !link.ready_due
            && !waits_for_restore(link, server, &[])
            && !names_are_uncertain(link, &server.ledger);
        let shorter = client.reads_paused && !link.waits.held && server.ledger.len() < LEDGER_ENTRIES_MAX / 2;
        if certain || shorter {
            link.waits.held = false;
            self.client_resume(cx, client_id);
        }
    }

    /// A message that goes to `to` begins at `at`: it joins the run, or ends it and begins the next one.
    #[inline]
    fn extend<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        run: &mut Run,
        to: Option<ClientId>,
        bytes: &[u8],
        at: usize,
    ) {
        if run.to != to {
            self.flush(cx, id, run, &bytes[..at]);
            *run = Run { from: at, to };
        } else if to.is_none() {
            run.from = at;
        }
    }

    fn flush<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, run: &Run, bytes: &[u8]) {
        if run.to.is_some() && run.from < bytes.len() {
            self.pass(cx, id, run.to, &bytes[run.from..]);
        }
    }

    /// Bytes for a client; its server waits while too many of them do.
    pub(crate) fn pass<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        to: Option<ClientId>,
        bytes: &[u8],
    ) {
        let Some((to, client)) = to.and_then(|to| Some((to, self.clients.get(to)?))) else { return };
        cx.driver.send(client.conn, bytes);
        if cx.driver.backlog(client.conn) > BACKLOG_HIGH_BYTES {
            self.pause_server(cx, id);
        }
        if self.servers.get(id).is_some_and(|server| !server.taps.is_empty()) {
            self.tap(cx.env, id, to, bytes);
        }
    }

    /// Large errors, notices and function results for a client need not be held until they are whole.
    fn may_stream(&self, id: ServerId, header: Header) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let for_client = server.ledger.head().is_some_and(|head| matches!(head.owner, Owner::Client(_)));
        let large_error = header.tag == tag::ERROR && header.total() > SERVER_ERROR_BYTES_MAX;
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

    /// A whole message that is no row. The run is flushed before anything else is said to its client.
    #[allow(clippy::too_many_arguments, reason = "the run and its bytes are one place in one buffer")]
    fn control<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        message: u8,
        bytes: &[u8],
        run: &mut Run,
        all: &[u8],
        at: usize,
    ) -> Result<(), Unexpected> {
        let body = &bytes[HEADER_LEN..];
        match message {
            tag::PARAMETER_STATUS | tag::NOTICE | tag::NOTIFICATION => {
                let to = match message {
                    tag::PARAMETER_STATUS => self.parameter_changed(cx.env, id, body),
                    tag::NOTICE => self.notice_owner(id),
                    _ => self.notification_owner(cx, id, bytes),
                };
                self.extend(cx, id, run, to, all, at);
                if message == tag::NOTIFICATION && to.is_none() {
                    self.tell_here(cx, id, bytes);
                }
                if message == tag::PARAMETER_STATUS && self.is_session_left(id) {
                    return Err(self.rule_broken(cx.env, id, message, "no change of a parameter"));
                }
                Ok(())
            }
            tag::ERROR => {
                self.extend(cx, id, run, None, all, at);
                run.from = at + bytes.len();
                self.server_error(cx, id, bytes);
                Ok(())
            }
            _ => {
                self.check_answer(cx.env, id, message, body)?;
                if message == tag::READY && self.is_forbidden_transaction(id, body) {
                    self.note_violation(cx.env, id);
                    // The client is told of the error alone, not that its transaction has begun.
                    let told = all[run.from..at]
                        .strip_suffix(BEGIN_COMPLETE)
                        .or(all[run.from..at].strip_suffix(START_COMPLETE));
                    let end = told.map_or(at, |told| run.from + told.len());
                    self.flush(cx, id, run, &all[..end]);
                    *run = Run { from: at, to: None };
                    if let Some(client) = self.servers.get(id).and_then(|server| server.state.client()) {
                        self.refuse_client(cx, client, &Fault::TransactionInStatementMode);
                    }
                    return Ok(());
                }
                let Some(server) = self.servers.get_mut(id) else { return Ok(()) };
                let accepted = server.ledger.accept(message)?;
                let owed_nothing = server.ledger.is_at_rest();
                let before = if message == tag::READY { self.before_ready(id) } else { BeforeReady::Nothing };
                let hidden = matches!(before, BeforeReady::Hidden)
                    || message == tag::READY && self.delays_ready(id, accepted, body);
                if let BeforeReady::Replayed(client) = before {
                    // Told before the end of its group, as a server tells it.
                    self.flush(cx, id, run, &all[..at]);
                    *run = Run { from: at, to: None };
                    self.replay_over(cx, client, id);
                }
                let to = visible(accepted.owner).filter(|_| !hidden);
                self.extend(cx, id, run, to, all, at);
                if message == tag::READY {
                    if let Some(client) = to.filter(|&client| self.has_notifications(client, id, body)) {
                        self.flush(cx, id, run, &all[..at]);
                        *run = Run { from: at, to };
                        self.send_notifications(cx, client);
                    }
                    let end = at + bytes.len();
                    self.flush(cx, id, run, &all[..end]);
                    *run = Run { from: end, to: None };
                    self.ready(cx, id, accepted, body, all.len() - end)?;
                    if owed_nothing { self.was_asked_first(id, &all[end..]) } else { Ok(()) }
                } else if accepted.ended.is_some() {
                    let end = at + bytes.len();
                    self.ended(cx, id, message, accepted, body, run, &all[..end]);
                    Ok(())
                } else {
                    if message == tag::COMMAND_COMPLETE {
                        self.command_completed(cx.env, id, accepted, body);
                    }
                    Ok(())
                }
            }
        }
    }

    /// Refuses what a server cannot say at this place.
    fn check_answer(
        &mut self,
        env: &mut Env,
        id: ServerId,
        message: u8,
        body: &[u8],
    ) -> Result<(), Unexpected> {
        match message {
            tag::READY if parse_ready(body).is_err() => {
                Err(Unexpected { tag: message, expected: "a transaction status" })
            }
            tag::READY if self.strands_others(id, body) => {
                Err(self.rule_broken(env, id, message, "the end of a statement without a transaction"))
            }
            tag::COPY_IN | tag::COPY_OUT | tag::COPY_BOTH => {
                self.misplaced_copy(env, id, message).map_or(Ok(()), Err)
            }
            _ => Ok(()),
        }
    }

    /// An entry of an extended group ended well.
    #[allow(clippy::too_many_arguments, reason = "the run and its bytes are one place in one buffer")]
    fn ended<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        message: u8,
        accepted: Accepted,
        body: &[u8],
        run: &mut Run,
        all: &[u8],
    ) {
        if message == tag::COMMAND_COMPLETE {
            self.command_completed(cx.env, id, accepted, body);
        }
        if let Some(entry) = accepted.ended {
            if entry.owner == Owner::Hidden(Purpose::Replay) && entry.kind == Kind::Execute {
                self.replay_answered(id, body);
            }
            self.begin_answered(accepted.owner, entry);
            self.statement_evicted(cx.env, entry);
            self.statement_parsed(cx.env, entry);
        }
        let local_next = self
            .servers
            .get(id)
            .and_then(|server| server.ledger.head())
            .is_some_and(|head| matches!(head.kind, Kind::Local(_) | Kind::CopyEnd));
        if local_next {
            self.flush(cx, id, run, all);
            *run = Run { from: all.len(), to: None };
            self.conclude_statements(cx, id);
        }
    }

    /// DISCARD ALL, DEALLOCATE ALL and ROLLBACK are known by the tag of their CommandComplete.
    fn command_completed(&mut self, env: &mut Env, id: ServerId, accepted: Accepted, body: &[u8]) {
        self.note_command(id, body);
        if matches!(body, b"DISCARD SEQUENCES\0" | b"DISCARD ALL\0") {
            self.sequences_discarded(id, matches!(accepted.owner, Owner::Client(_)));
        }
        if matches!(accepted.owner, Owner::Client(_))
            && let Some(server) = self.servers.get_mut(id)
        {
            server.work.running.rows = server.work.running.rows.saturating_add(rows_in_tag(body));
        }
        if !is_discarding(body) {
            match accepted.owner.client() {
                Some(client) if body == ROLLED_BACK => self.doubt_session(client),
                Some(_) if body == DEALLOCATED => {
                    let head = self.servers.get(id).and_then(|server| server.ledger.head().copied());
                    if let Some(entry) = accepted.ended.or(head) {
                        self.deallocated(env, entry);
                    }
                }
                Some(client) if changes_objects(body) => self.note_schema_changed(client),
                _ => {}
            }
            return;
        }
        let client = match accepted.owner {
            Owner::Client(client) if self.client_tracks_statements(client) => Some(client),
            Owner::Hidden(_) => None,
            _ => return,
        };
        self.statements_discarded(env, client, id);
    }

    /// ReadyForQuery, followed by this number of the server's bytes that were not looked at yet.
    fn ready<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        accepted: Accepted,
        body: &[u8],
        behind_bytes: usize,
    ) -> Result<(), Unexpected> {
        let Ok(status) = parse_ready(body) else {
            return Err(Unexpected { tag: tag::READY, expected: "a transaction status" });
        };
        let now_us = cx.env.now.mono_us;
        let Some(server) = self.servers.get_mut(id) else { return Ok(()) };
        server.tx = status;
        let (rests, buffers) = (server.ledger.is_empty() && status == TxStatus::Idle, &mut cx.env.buffers);
        server.first_ask.end(rests, buffers);
        self.note_schema_change(cx.env, id, status);
        if matches!(accepted.owner, Owner::Hidden(Purpose::Listen | Purpose::Meet)) {
            self.notify_listener_answered(cx, id);
        }
        if self.reopens(cx, id, status) {
            return Ok(());
        }
        let Some(server) = self.servers.get_mut(id) else { return Ok(()) };
        let rode = !server.pipelined.is_alone();
        let pool = &mut self.state;
        if matches!(accepted.owner, Owner::Client(_)) && (rode || server.ledger.is_empty()) {
            let ended = server.note_end(pool, now_us);
            if let Some(split) = ended {
                self.statement_ended(cx, id, split, behind_bytes);
            }
        }
        self.conclude_statements(cx, id);
        if self.servers.get(id).is_some_and(|server| server.resets) && self.restores(cx, id) {
            return Ok(());
        }
        let Some(server) = self.servers.get(id) else { return Ok(()) };
        if rode {
            self.next_queued(cx, id);
            return Ok(());
        }
        if server.pipelined.head().is_some() && server.tx != TxStatus::Idle {
            self.trust_lost(cx, id);
        }
        let Some(server) = self.servers.get(id) else { return Ok(()) };
        if server.ledger.needs_fence() && server.tx == TxStatus::Idle {
            self.send_hidden(cx, id, Purpose::Fence, b"");
        } else if server.ledger.is_at_rest() && server.tx == TxStatus::Idle {
            self.server_rests(cx, id);
        } else if !matches!(server.state, ServerState::Busy(_)) && server.ledger.is_at_rest() {
            // A hidden statement left a transaction open: no client can be given such a server.
            self.lose_server(cx, id, "a hidden statement left a transaction open".into());
        }
        Ok(())
    }

    /// A server that owed nothing has sent this: it does not answer a request that was sent to the server only now.
    pub(crate) fn was_asked_first(&self, id: ServerId, mut behind: &[u8]) -> Result<(), Unexpected> {
        if self.servers.get(id).is_none_or(|server| server.ledger.is_at_rest()) {
            return Ok(());
        }
        while let Some(&tag) = behind.first() {
            if !comes_unasked(tag) {
                return Err(Unexpected { tag, expected: "nothing" });
            }
            let Ok(Some(header)) = Header::peek(behind) else { break };
            behind = behind.get(header.total()..).unwrap_or_default();
        }
        Ok(())
    }

    /// Statement pooling, and a client's statement left a transaction open.
    fn is_forbidden_transaction(&self, id: ServerId, body: &[u8]) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        self.state.policy.mode == PoolMode::Statement
            && server.state.client().is_some()
            && parse_ready(body).is_ok_and(|status| status != TxStatus::Idle)
    }

    /// A transaction is open while other clients are queued behind it.
    fn strands_others(&self, id: ServerId, ready: &[u8]) -> bool {
        let pipelined = self.servers.get(id).map(|server| &server.pipelined);
        pipelined.is_some_and(|pipelined| pipelined.head().is_some() && !pipelined.is_alone())
            && parse_ready(ready) != Ok(TxStatus::Idle)
    }

    /// COPY at a point at which it cannot be: with other clients queued, or without a client that could send its data.
    fn misplaced_copy(&mut self, env: &mut Env, id: ServerId, message: u8) -> Option<Unexpected> {
        let server = self.servers.get(id)?;
        let hidden = server.ledger.head().is_some_and(|head| matches!(head.owner, Owner::Hidden(_)));
        if !server.pipelined.is_alone() {
            return Some(self.rule_broken(env, id, message, "no COPY"));
        }
        (hidden && message != tag::COPY_OUT).then_some(Unexpected { tag: message, expected: "no COPY" })
    }

    /// A statement broke its rule with other clients queued: the server is given up.
    fn rule_broken(
        &mut self,
        env: &mut Env,
        id: ServerId,
        message: u8,
        expected: &'static str,
    ) -> Unexpected {
        self.note_violation(env, id);
        Unexpected { tag: message, expected }
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

/// CommandComplete of `BEGIN`, and of `START TRANSACTION`.
const BEGIN_COMPLETE: &[u8] = b"C\0\0\0\x0aBEGIN\0";
const START_COMPLETE: &[u8] = b"C\0\0\0\x16START TRANSACTION\0";

/// The client that sees an answer, if any does.
fn visible(owner: Owner) -> Option<ClientId> {
    match owner {
        Owner::Client(client) => Some(client),
        Owner::Prerequisite(_) | Owner::Hidden(_) => None,
    }
}
