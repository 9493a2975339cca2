//! Servers whose client is gone while a statement runs. PostgreSQL does not stop for that: its backend runs until the statement is over,
//! and counts against `max_connections`. So the server keeps its place in pgweir's limits until then; then it is closed.
//!
//! Terminate follows what the client sent. So PostgreSQL does what it does for a client without a pooler: it runs the messages ahead of
//! it, and takes back a transaction that is open. If the client did not say Terminate itself, PostgreSQL is asked to cancel what
//! runs, after `cancel_vanished_after`.

use crate::context::{Cx, duration_us};
use crate::driver::{CloseMode, Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::limits::{ABANDONED_US, CANCEL_AGAIN_US};
use crate::pool::Pool;
use crate::pool::cancel::Requester;
use crate::pool::client::leaving::Farewell;
use crate::pool::server::state::{Retiring, ServerState};
use crate::stats::rare_path::RarePath;

/// The reason for closing a server whose client left it while a statement ran.
pub(crate) const NOT_READY: &str = "client disconnect while server was not ready";

/// Work that a client that is gone has left running on its server.
pub(crate) struct Abandoned {
    /// The client that is gone.
    pub(crate) client: ClientId,
    /// The way in which the client left.
    pub(crate) farewell: Farewell,
    /// The time at which the client left (monotonic, µs).
    pub(crate) since_us: u64,
    /// The times at which PostgreSQL was first and last asked to cancel the work (monotonic, µs); `None` if it was not asked.
    asked_us: Option<(u64, u64)>,
}

impl Pool {
    /// Notes that the client of this server is gone while PostgreSQL still runs its messages. The server is closed when they are over.
    pub(crate) fn abandon_running<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        (client, farewell): (ClientId, Farewell),
    ) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.retire(NOT_READY);
        cx.driver.reached(RarePath::Abandoned);
        let since_us = cx.env.now.mono_us;
        server.abandoned = Some(Box::new(Abandoned { client, farewell, since_us, asked_us: None }));
        cx.env.scratch.clear();
        pgweir_wire::frontend::encode_terminate(&mut cx.env.scratch);
        cx.driver.send(server.conn, &cx.env.scratch);
        if !matches!(server.state, ServerState::Draining) {
            self.set_server_state(id, ServerState::Draining);
        }
        self.server_unpause(cx, id);
    }

    /// Closes a server on which PostgreSQL has ended the work that a client left, or has ended the connection. Returns `false`, and does
    /// nothing, if no client has left work on this server.
    pub(crate) fn abandoned_is_over<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id).filter(|server| server.abandoned.is_some()) else {
            return false;
        };
        let reason = server.retiring.map_or(NOT_READY, Retiring::reason);
        self.close_server(cx, id, reason, CloseMode::Now);
        true
    }

    /// Abandons servers whose head's client is gone and on which no client is queued any more: the work is of no use then, and ends as if a
    /// client leaves in the middle of a statement.
    pub(crate) fn abandon_drained<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let draining: Vec<ServerId> = self
            .servers
            .iter()
            .filter(|(_, server)| matches!(server.state, ServerState::Draining) && server.abandoned.is_none())
            .filter(|(id, server)| {
                !server.pipelined.behind().any(|queued| self.is_queued_behind(queued.client, *id))
            })
            .map(|(id, _)| id)
            .collect();
        for id in draining {
            // The work only reads, so it does not matter how its client left.
            self.abandon_running(cx, id, (ClientId::default(), Farewell::Vanished));
        }
    }

    /// Whether a statement runs whose client pgweir has ended: it is canceled, which takes no longer than [`ABANDONED_US`]. Without this process it
    /// would run to its end, and keep its locks.
    pub(crate) fn cancels_abandoned(&self) -> bool {
        let abandoned = self.servers.values().filter_map(|server| server.abandoned.as_deref());
        abandoned.into_iter().any(|abandoned| abandoned.farewell == Farewell::Refused)
    }

    /// Sends the cancel requests that are due for abandoned servers, and closes a server if PostgreSQL does not answer them in time.
    pub(crate) fn tend_abandoned<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let abandoned: Vec<ServerId> =
            self.servers.iter().filter(|(_, server)| server.abandoned.is_some()).map(|(id, _)| id).collect();
        for id in abandoned {
            self.tend_abandoned_server(cx, id);
        }
    }

    fn tend_abandoned_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let Some(abandoned) = server.abandoned.as_deref() else { return };
        if server.ledger.of_clients().next().is_none() {
            self.abandoned_is_over(cx, id);
            return;
        }
        let now_us = cx.env.now.mono_us;
        if let Some((first_us, last_us)) = abandoned.asked_us {
            if now_us.saturating_sub(first_us) >= ABANDONED_US {
                // Its place is given back: PostgreSQL may be unreachable, and the statement in code that looks for no cancel request.
                self.close_server(
                    cx,
                    id,
                    "a statement without client was not canceled in time",
                    CloseMode::Now,
                );
                return;
            }
            // One request ends one statement; the client may have sent more of them.
            if now_us.saturating_sub(last_us) < CANCEL_AGAIN_US {
                return;
            }
        } else if !self.is_cancel_due(cx, id) {
            return;
        }
        let is_asked = self.cancels.values().any(|cancel| cancel.server == id);
        if is_asked || server.at.key.is_empty() || !self.may_cancel_more(cx.env) {
            return;
        }
        let Some(abandoned) = self.servers.get_mut(id).and_then(|server| server.abandoned.as_deref_mut())
        else {
            return;
        };
        let first_us = abandoned.asked_us.map_or(now_us, |(first_us, _)| first_us);
        abandoned.asked_us = Some((first_us, now_us));
        let client = abandoned.client;
        cx.driver.reached(RarePath::AbandonedCanceled);
        cx.log(Level::Debug, "a statement whose client is gone is canceled");
        self.dial_cancel(cx, Requester::Absent, client, id);
    }

    /// Whether the work that the client left has run for longer than it may.
    fn is_cancel_due<D: Driver>(&self, cx: &Cx<'_, D>, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let Some(abandoned) = server.abandoned.as_deref() else { return false };
        let config = &cx.env.rules.config;
        let over = |limit_us: u64, start_us: u64| {
            limit_us > 0 && start_us > 0 && cx.env.now.mono_us.saturating_sub(start_us) >= limit_us
        };
        let timeout_us = config.query_timeout(&self.state.user).map_or(0, duration_us);
        if over(timeout_us, server.work.query_us) {
            return true;
        }
        match abandoned.farewell {
            // pgweir itself has ended the client, because of what runs or by an administrator's wish.
            Farewell::Refused => true,
            Farewell::Terminate => false,
            Farewell::Vanished => over(duration_us(config.main.cancel_vanished_after), abandoned.since_us),
        }
    }
}
