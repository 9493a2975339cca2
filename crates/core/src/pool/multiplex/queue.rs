//! Multiplexing: statements of several clients on one server, one after the other.
//!
//! A queued client has sent a whole group that is certainly over with its own answer, and so has every client before it. The
//! first one has the server as any linked client has it; when its answer is complete, the next one becomes the first. The
//! messages of a queued client stay in its inbox until then, and are the server's `Attempt` from then on: as long as the client has
//! seen no answer, they can be sent again on another server.

use pgweir_wire::backend::TxStatus;

use crate::context::{Activity, Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::limits::RESCUE_AFTER_US;
use crate::mail::Shutdown;
use crate::pool::client::state::{Account, ClientState, First, Link};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::cluster::in_flight::note_promoted;
use crate::pool::multiplex::held::{HeldAnswer, HeldBack, Unshown};
use crate::pool::multiplex::pipelined::Head;
use crate::pool::relay::attempt::Attempt;
use crate::pool::relay::attempt::after_failure::{AfterFailure, ExchangeFailure, decide};
use crate::pool::relay::exchange::group::Group;
use crate::pool::relay::ledger::Purpose;
use crate::pool::server::state::{Server, ServerState};
use crate::pool::{Gate, Pool, PoolState};
use crate::stats::rare_path::RarePath;

impl PoolState {
    /// Notes the time and the size of a statement that was at the head of a server.
    #[inline]
    fn measure(&mut self, env: &mut Env, server: &Server, head: Option<Head>, account: Option<&Account>) {
        let Some(head) = head else { return };
        let now_us = env.now.mono_us;
        let took_us = now_us.saturating_sub(head.since_us);
        let bytes = server.work.received_bytes - head.received_bytes;
        env.measured.estimates.note(head.key, took_us, bytes, self.policy.long_us);
        if let (Some(account), Some(_)) = (account, head.estimate_us) {
            let response_us = now_us.saturating_sub(account.request.since_us);
            let wait_us = response_us.saturating_sub(took_us);
            if self.node_at_mut(server.branch).pace.note(now_us, response_us, wait_us) {
                let size = env.rules.config.pool_size(&self.config, &self.user);
                let size = if size == 0 { u32::MAX } else { size };
                self.node_at_mut(server.branch).pace.judge(now_us, size);
            }
        }
    }
}

impl Pool {
    /// Begins a pipeline after a linked client's group was sent as a whole, with nothing after it. If the group certainly only reads,
    /// other clients' groups may follow.
    pub(crate) fn begin_pipeline(&mut self, env: &Env, id: ServerId, group: &Group) {
        let Some(server) = self.servers.get(id) else { return };
        let received_bytes = server.work.received_bytes;
        let Some(limits) = self.multiplex_limits() else { return };
        if !group.certainly_reads()
            || server.ledger.is_empty()
            || !server.ledger.is_between_groups()
            || server.tx != TxStatus::Idle
        {
            return;
        }
        let key = group.estimate_key(self.id);
        let estimate_us = self.short_estimate_us(env, key, limits);
        let since_us = env.now.mono_us;
        self.servers[id].pipelined.begin(Head { key, since_us, received_bytes, estimate_us });
        if estimate_us.is_some() {
            let branch = self.servers[id].branch;
            self.state.node_at_mut(branch).short.push(id);
        }
    }

    /// Ends the pipeline, because the head's client sends more or its server is released. No statement may be queued behind the head
    /// any more.
    pub(crate) fn end_pipeline(&mut self, id: ServerId) {
        if let Some(server) = self.servers.get_mut(id)
            && server.pipelined.end().is_some()
        {
            self.leave_short(id);
        }
    }

    /// Makes the next queued client the head after the head's ReadyForQuery. `behind_bytes` is the number of the server's bytes that
    /// were not looked at yet.
    pub(crate) fn next_queued<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, behind_bytes: usize) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let (branch, is_paused) = (server.branch, server.incoming.paused_us.is_some());
        let received_bytes = server.work.received_bytes;
        let (was, next) = server.pipelined.next(cx.env.now.mono_us, received_bytes);
        let head = server.state.client().and_then(|head| Some((head, self.clients.get_mut(head)?)));
        let account = head.as_ref().map(|(_, client)| &client.account);
        self.state.measure(cx.env, server, was, account);
        if let Some((head, client)) = head {
            self.state.unlink(cx.env, head, client);
            self.end_cancels_for(cx, head);
        }
        match next.filter(|&next| self.promote(cx, id, next)) {
            Some(next) if self.state.cluster.is_some() => {
                self.servers
                    .get_mut(id)
                    .into_iter()
                    .for_each(|server| note_promoted(server, next, behind_bytes));
            }
            Some(_) => {}
            None => self.set_server_state(id, ServerState::Draining),
        }
        if is_paused {
            self.server_unpause(cx, id);
        }
        if self.state.node_at(branch).waiting > 0 {
            self.notice();
        }
    }

    /// Whether the client is queued on this server.
    pub(crate) fn is_queued_behind(&self, client: ClientId, server: ServerId) -> bool {
        let state = self.clients.get(client).map(|client| &client.state);
        matches!(state, Some(ClientState::QueuedBehind(queued)) if queued.server == server)
    }

    /// QueuedBehind → Linked: makes a queued client the head. Returns `false` if the client is not queued on this server any more.
    fn promote<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client_id: ClientId) -> bool {
        let now_us = cx.env.now.mono_us;
        let (Some(server), Some(client)) = (self.servers.get_mut(id), self.clients.get_mut(client_id)) else {
            return false;
        };
        let ClientState::QueuedBehind(queued) = &client.state else { return false };
        if queued.server != id {
            return false;
        }
        let waited_us = now_us.saturating_sub(client.account.request.since_us);
        let (group, sent_at) = (queued.group, queued.sent);
        let from_bytes = server.work.running.from_bytes;
        server.note_begin(now_us);
        server.work.running.from_bytes = from_bytes;
        server.active_us = now_us;
        server.work.waited_us = waited_us;
        let pool = &mut self.state;
        pool.numbers.stats.server_assignments += 1;
        pool.numbers.stats.wait_us += waited_us;
        let mut sent = std::mem::take(&mut client.inbox);
        if sent.len() > group.len as usize {
            client.inbox = sent.split_off(group.len as usize);
        }
        server.attempt = Attempt::queued(sent);
        pool.move_client(client, ClientState::Linked(Link::new(id, pool.policy.mode)));
        pool.pass_server_on(id, server, client_id);
        let is_first_try = !server.branch.is_primary();
        self.measure_group(cx.env, client_id, id, &group, None);
        self.begin_capture(cx.env, (client_id, id), group, sent_at);
        if is_first_try {
            self.begin_first_try(cx.env, client_id);
        }
        if !self.state.queue.cancels.is_empty() {
            // Perhaps one for this client waited until now.
            self.next_cancel(cx);
        }
        true
    }

    /// Ends the pipeline after the head's last answer, and notes the time and size of the statement.
    pub(crate) fn pipeline_head_answered(&mut self, env: &mut Env, id: ServerId) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if let Some(head) = server.pipelined.end() {
            server.pipelined.shrink();
            let client = server.state.client().and_then(|client| self.clients.get(client));
            self.state.measure(env, server, Some(head), client.map(|client| &client.account));
            self.leave_short(id);
        }
    }

    /// Bars the statement at the head, which has done what it was certain not to do.
    pub(crate) fn note_violation(&mut self, env: &mut Env, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let Some(head) = server.pipelined.head() else { return };
        self.state.numbers.multiplexing.violations += 1;
        env.measured.estimates.bar(head.key);
    }

    /// Bars a statement that was taken for self-contained and has left a transaction open, and logs it. No other client was queued
    /// behind it, so no client is affected.
    pub(crate) fn trust_lost<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        self.note_violation(cx.env, id);
        self.end_pipeline(id);
        let Some(server) = self.servers.get(id) else { return };
        let line = format!(
            "{} a statement that was taken for self-contained left a transaction open",
            self.server_log_name(server)
        );
        cx.log(Level::Warning, &line);
    }

    /// Whether the server's parameters are no longer those of every queued client.
    pub(crate) fn is_session_left(&self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        server.pipelined.behind().any(|queued| {
            let account = self.clients.get(queued.client).map(|client| &client.account);
            account.is_some_and(|account| !std::sync::Arc::ptr_eq(&account.params, &server.params))
        })
    }

    /// Moves the groups queued behind a head to other servers if the head was known to be short and runs for long: it may wait for a
    /// lock. Each group moves once, to a server of its own, and its answer here is dropped. (Groups stay while no server is given
    /// out.)
    pub(crate) fn rescue_queued<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let is_open =
            cx.env.activity == Activity::Active && cx.env.stopping != Some(Shutdown::WaitForServers);
        if self.state.count.queued_behind == 0 {
            return;
        }
        let short: Vec<ServerId> = self.state.nodes().flat_map(|node| node.short.iter().copied()).collect();
        for id in short {
            let Some(server) = self.servers.get_mut(id) else { continue };
            let Some(due_us) = server.pipelined.rescue_us() else { continue };
            let is_due = due_us <= cx.env.now.mono_us;
            if is_due && is_open && self.state.gate_at(server.branch) == Gate::Open {
                let clients = server.pipelined.rescue();
                clients.iter().for_each(|&client| server.ledger.disown(client, Purpose::Rerun));
                self.take_off(cx, id, &clients);
                cx.driver.reached(RarePath::Rescued);
                let text = format!(
                    "{} statements that were queued behind one that takes long run elsewhere",
                    clients.len()
                );
                cx.log(Level::Debug, &text);
                continue;
            }
            let again_us = if is_due { cx.env.now.mono_us + RESCUE_AFTER_US } else { due_us };
            cx.env.wake_at(again_us);
        }
    }

    /// Notes that no cancel request of another client can hit the head any more. If the head may run on another node instead, its
    /// answer is still looked at.
    pub(crate) fn trust_head(&mut self, id: ServerId) {
        let is_first_try = self.first_try_at(id) == FirstTry::Unshown;
        let Some(server) = self.servers.get_mut(id) else { return };
        server.pipelined.trust_head();
        if is_first_try && server.pipelined.held().is_none() {
            server.pipelined.hold(Some(HeldBack::Unshown(Unshown::default())));
        }
    }

    /// The head's answer may be that to a stranger's cancel request: it is passed on when it is whole and is not. The statement runs again
    /// if it is, or is too long to be kept.
    pub(crate) fn holds_exposed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        bytes: &[u8],
    ) -> bool {
        let Some(server) = self.servers.get_mut(id) else { return false };
        let Some(HeldBack::Exposed(held)) = server.pipelined.held() else { return false };
        let runs_again = match held.look(bytes) {
            HeldAnswer::Partial => return true,
            // Even if an answer follows the error, the statement has failed as a whole.
            HeldAnswer::Whole { cancelled } | HeldAnswer::Odd { cancelled } => cancelled,
            // The error may still come, and its client must not see it.
            HeldAnswer::Long => true,
        };
        let client = server.state.client();
        self.trust_head(id);
        if let Some(client) = client.filter(|_| runs_again) {
            let exchange = (self.clients.get(client), self.servers.get(id));
            if decide(ExchangeFailure::StrangersCancel, exchange.0, exchange.1) == AfterFailure::Told {
                return false;
            }
            cx.driver.reached(RarePath::StrangersCancel);
            let reason = "a statement that a stranger's cancel request may have hit runs again";
            self.run_again(cx, id, client, reason);
        }
        false
    }

    /// Linked → Waiting: a stranger's cancel request has hit its statement, or may have; it has changed; or a standby did not run it. What
    /// the server still says of it goes to no client.
    pub(crate) fn run_again<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        reason: &str,
    ) {
        let (Some(client), Some(server)) = (self.clients.get_mut(client_id), self.servers.get_mut(id)) else {
            return;
        };
        if !matches!(client.state, ClientState::Linked(_)) || server.attempt.kept().is_none() {
            return;
        }
        server.attempt.take_back(&mut client.inbox, &mut cx.env.buffers);
        server.ledger.disown_head(Purpose::Rerun);
        (server.work.query_us, server.work.xact_us) = (0, 0);
        self.set_server_state(id, ServerState::Draining);
        if self.goes_to_primary(cx, client_id, id) {
            return;
        }
        self.requeue(cx, client_id, First::Nothing);
        self.state.numbers.multiplexing.requeued += 1;
        cx.log(Level::Debug, reason);
    }
}
