//! Cancel requests that wait: for a server's answer, for their client's turn, for a connection of their own.

use super::Requester;
use super::{CancelConnection, Stage, WaitingCancel};
use crate::context::{Cx, Effect, Env, Role};
use crate::driver::{Driver, Level};
use crate::errors::Refusal;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;

impl Pool {
    /// The target has no server any more: cancels that waited for its statement have nothing to cancel.
    #[inline]
    pub(crate) fn end_cancels_for<D: Driver>(&mut self, cx: &mut Cx<'_, D>, target: ClientId) {
        if !self.state.queue.cancels.is_empty() {
            self.end_cancels_of(cx, target);
        }
    }

    /// Cancels that waited have their turn.
    pub(crate) fn next_cancel<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        loop {
            let pool = &mut self.state;
            let size = cx.env.rules.config.pool_size(&pool.config, &pool.user);
            if !may_cancel(size, self.cancels.len()) {
                return;
            }
            let clients = &self.clients;
            // A client that is queued behind others must wait for its turn there.
            let due = pool.queue.cancels.iter().position(|waiting| {
                !clients
                    .get(waiting.target)
                    .is_some_and(|client| matches!(client.state, ClientState::QueuedBehind(_)))
            });
            let Some(waiting) = due.and_then(|at| pool.queue.cancels.remove(at)) else { return };
            self.cancel_target(cx, waiting.requester, waiting.target);
        }
    }

    /// Whether the pool may open another connection for a cancel request.
    pub(crate) fn may_cancel_more(&self, env: &Env) -> bool {
        may_cancel(env.rules.config.pool_size(&self.state.config, &self.state.user), self.cancels.len())
    }

    /// The statement of this client is to be cancelled.
    pub(crate) fn cancel_target<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        requester: Requester,
        target: ClientId,
    ) {
        let Some(client) = self.clients.get(target) else {
            return end_requester(cx, requester, "failed cancel request");
        };
        let place = match &client.state {
            ClientState::Linked(link) => Some((link.server, false)),
            ClientState::QueuedBehind(queued_behind) => Some((queued_behind.server, true)),
            _ => None,
        };
        let Some((server, queued_behind)) = place else {
            let waited = self.turn_down(cx, target, Refusal::Canceled);
            let reason = if waited {
                "canceled a statement that waited for a server"
            } else {
                "cancel request for idle client"
            };
            return end_requester(cx, requester, reason);
        };
        if let Some(server) = self.servers.get_mut(server) {
            server.pipelined.close();
        }
        let since_us = cx.env.now.mono_us;
        if queued_behind {
            // Until it is at the head, a cancel would hit another client's statement.
            self.state.queue.cancels.push_back(WaitingCancel { requester, target, since_us });
            return cx
                .log(Level::Debug, "a cancel request waits until its statement is the first on its server");
        }
        self.trust_head(server);
        let size = cx.env.rules.config.pool_size(&self.state.config, &self.state.user);
        if !may_cancel(size, self.cancels.len()) {
            self.state.queue.cancels.push_back(WaitingCancel { requester, target, since_us });
            return;
        }
        self.dial_cancel(cx, requester, target, server);
    }

    pub(crate) fn dial_cancel<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        requester: Requester,
        target: ClientId,
        server_id: ServerId,
    ) {
        let Some(server) = self.servers.get(server_id) else {
            return end_requester(cx, requester, "failed cancel request");
        };
        let conn = cx.driver.dial(&server.place());
        let since_us = cx.env.now.mono_us;
        let stage = Stage::Dialing;
        let cancel = CancelConnection { conn, requester, target, server: server_id, stage, since_us };
        let id = self.cancels.insert(cancel);
        cx.env.set_role(conn, Role::Cancel(self.id, id));
    }

    pub(crate) fn end_cancels_of<D: Driver>(&mut self, cx: &mut Cx<'_, D>, target: ClientId) {
        let pool = &mut self.state;
        let mut idle = Vec::new();
        pool.queue.cancels.retain(|waiting| {
            let aimed = waiting.target == target;
            if aimed {
                idle.push(waiting.requester);
            }
            !aimed
        });
        for requester in idle {
            end_requester(cx, requester, "cancel request for idle client");
        }
    }
}

pub(crate) fn end_requester<D: Driver>(cx: &mut Cx<'_, D>, requester: Requester, reason: &str) {
    if requester != Requester::Absent {
        cx.env.want(Effect::EndRequester(requester, reason.to_owned().into()));
    }
}

/// Whether another cancel connection is allowed: at most twice as many as the pool has servers; 0 is no limit.
fn may_cancel(pool_size: u32, cancels: usize) -> bool {
    pool_size == 0 || cancels < pool_size.saturating_mul(2) as usize
}
