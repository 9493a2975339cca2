//! A client asks for a server: what it gets at once, or the queue.

use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::mail::Shutdown;
use crate::pool::choose::selector::Place;
use crate::pool::client::state::{ClientState, First, Request, Waiting};
use crate::pool::cluster::route::Asking;
use crate::pool::relay::exchange::group::Group;
use crate::pool::{Branch, Pool, Step};

impl Pool {
    /// An idle client needs a server for what it sent: it gets one at once, if one is free and no client waits; else it joins the queue.
    /// `group` is at the front of `bytes`.
    pub(crate) fn request_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        bytes: &[u8],
        group: Option<Group>,
    ) -> Step {
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        let first = match &mut client.state {
            ClientState::DeferredBegin(deferred) => First::Begin(std::mem::take(&mut deferred.text)),
            _ => First::Nothing,
        };
        let account = &mut client.account;
        account.request = Request::new(cx.env);
        account.refused_servers = 0;
        // Its messages are looked at one by one then.
        let group = group.filter(|_| account.unnamed.is_none());
        let asking = Asking { begin: first.begin(), bytes, group: group.as_ref() };
        let branch = self.branch_of_request(cx.env, id, asking);
        let waiting = Waiting { group, first };
        self.set_client_state(id, ClientState::Waiting(waiting));
        if self.state.policy.on_loss.asks() {
            self.run_in_block(cx.env, id, branch, bytes);
        }
        // A message that waits for this server is not the other clients' turn.
        if self.state.drawn.affinities.is_for(id)
            && let Some(server) = self.choose_free(cx, branch, Some(id))
        {
            return self.link_at_once(cx, id, branch, server);
        }
        let node = self.state.node_at(branch);
        if node.waiting == 1
            && node.awaiting.is_empty()
            && self.state.queue.replicating.is_empty()
            && (cx.env.cache.is_none() || !self.waits_for_same_read(cx, id, Some(bytes)))
            && let Place::Alone(server) = self.choose_server(cx, branch, id)
        {
            return self.link_at_once(cx, id, branch, server);
        }
        self.state.node_at_mut(branch).clients.push_back(id);
        self.notice();
        if let Some(fault) = self.known_failure(cx.env, branch) {
            return self.refuse_client(cx, id, &fault);
        }
        if cx.env.stopping == Some(Shutdown::WaitForServers) {
            return self.refuse_client(cx, id, &Fault::ServerShuttingDown);
        }
        Step::Wait
    }

    /// The caller looks at what the client sent.
    #[inline]
    fn link_at_once<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        branch: Branch,
        server: ServerId,
    ) -> Step {
        self.link(cx, id, server);
        if !branch.is_primary() {
            self.begin_first_try(cx.env, id);
        }
        Step::Used(0)
    }
}
