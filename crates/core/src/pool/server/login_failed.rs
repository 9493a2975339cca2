//! Failed logins: the connection is closed, and the clients that waited for it get an error or go elsewhere.

use pgweir_wire::error::SqlState;

use crate::context::Cx;
use crate::driver::{CloseMode, Driver, Level};
use crate::errors::Fault;
use crate::ids::ServerId;
use crate::limits::CACHED_ERROR_BYTES_MAX;
use crate::pool::lookup::answer_lookup;
use crate::pool::server::state::{Ending, ServerState};
use crate::pool::{Branch, Failure, Pool};
use crate::worker::login::inquiry::{Answer, Obstacle};

/// Why a connection is closed whose login failed.
pub(crate) const LOGIN_FAILED: &str = "login failed";

impl Pool {
    /// Handles a connection that could not be opened, or a login that failed for a reason of pgweir's or of the network's.
    pub(crate) fn login_failed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        reason: &str,
        text: &str,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        let line = format!("{} {reason}: {text}", self.server_log_name(server));
        cx.log(server.log_level(Level::Warning), &line);
        let in_exchange = matches!(server.state, ServerState::LoggingIn(_))
            && reason == LOGIN_FAILED
            && !server.is_replication();
        let branch = server.branch;
        let told = if reason == text { text.to_owned() } else { format!("{reason}: {text}") };
        let goes_on = self.fail_login(cx, id, reason, &told, None);
        if in_exchange && !goes_on && !self.has_usable_server(branch) {
            let text = format!("server login failed: {text}");
            self.refuse_waiting(cx, branch, &Fault::ServerRefused(SqlState::CONNECTION_FAILURE, text));
        }
    }

    /// Notes the failure and closes the connection; a replication client that it was opened for learns of it. Returns whether another host
    /// of the list is tried at once: as long as there is one, nothing has failed for the pool.
    pub(crate) fn fail_login<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        reason: &str,
        text: &str,
        code: Option<SqlState>,
    ) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let (only_for, endpoint, branch) = (server.state.client(), server.at.endpoint.clone(), server.branch);
        cx.env.counters.connect_failures += 1;
        let goes_on = self.host_failed(cx.env, &endpoint);
        self.suspect_node(cx.env, branch, true);
        match only_for {
            Some(client) => {
                let code = code.unwrap_or(SqlState::CONNECTION_FAILURE);
                self.servers[id].ending = Ending::Lost;
                // The client leaves in state AwaitingServer, which would close this connection by itself.
                self.refuse_client(cx, client, &Fault::ReplicationRefused(code, text.to_owned()));
            }
            None if goes_on => {}
            None => {
                let text = text.chars().take(CACHED_ERROR_BYTES_MAX).collect();
                self.state.node_at_mut(branch).failure =
                    Some(Failure { at_us: cx.env.now.mono_us, text, code });
            }
        }
        self.close_server(cx, id, reason, CloseMode::Now);
        if !branch.is_primary() {
            self.place_again(cx);
        }
        goes_on
    }

    /// Tells every client that waits for a server of this node why there is none.
    pub(crate) fn refuse_waiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch, fault: &Fault) {
        if branch == self.state.asks_at {
            self.refuse_lookups(cx, Obstacle::Unreachable);
        }
        self.state.node_at_mut(branch).passed_over = 0;
        while let Some(client) = self.next_waiter(branch) {
            self.refuse_client(cx, client, fault);
        }
        for client in std::mem::take(&mut self.state.node_at_mut(branch).awaiting) {
            self.refuse_client(cx, client, fault);
        }
        if !branch.is_primary() {
            return;
        }
        for client in std::mem::take(&mut self.state.queue.replicating) {
            self.refuse_client(cx, client, fault);
        }
    }

    /// Answers the `auth_query` lookups that wait: no server of this pool will.
    pub(crate) fn refuse_lookups<D: Driver>(&mut self, cx: &mut Cx<'_, D>, obstacle: Obstacle) {
        for lookup in std::mem::take(&mut self.state.queue.lookups) {
            answer_lookup(cx, &lookup, Answer::Unavailable(obstacle));
        }
    }
}
