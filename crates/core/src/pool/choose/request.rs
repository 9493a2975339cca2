//! A client asks for a server: what it gets at once, or the queue.

use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::ClientId;
use crate::mail::Shutdown;
use crate::pool::Pool;
use crate::pool::Step;
use crate::pool::choose::selector::{Place, ServerRequest};
use crate::pool::client::state::{ClientState, Waiting};
use crate::pool::relay::group::Group;

impl Pool {
    /// An idle client needs a server: it gets one at once, if one is free and no client waits; else it joins the queue.
    pub(crate) fn request_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        group: Option<Group>,
    ) -> Step {
        let now_us = cx.env.now.mono_us;
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        let begin = match &mut client.state {
            ClientState::DeferredBegin(deferred) => Some(std::mem::take(&mut deferred.text)),
            _ => None,
        };
        let account = &mut client.account;
        account.request_us = now_us;
        account.refused_servers = 0;
        // Its messages are looked at one by one then.
        let group = group.filter(|_| account.unnamed.is_none());
        let waiting = Waiting { since_us: now_us, notified: false, group, begin };
        self.set_client_state(id, ClientState::Waiting(waiting));
        // A message that waits for this server is not the other clients' turn.
        if self.state.affinities.is_for(id)
            && let Place::Alone(server) = self.choose_server(cx, ServerRequest::Ahead(id))
        {
            self.link(cx, id, server);
            return Step::Used(0);
        }
        let pool = &mut self.state;
        if pool.queue.waiting == 1
            && self.state.queue.at_login() == 0
            && let Place::Alone(server) = self.choose_server(cx, ServerRequest::Next(id))
        {
            self.link(cx, id, server);
            return Step::Used(0);
        }
        self.state.queue.clients.push_back(id);
        self.notice();
        if let Some(fault) = self.known_failure(cx.env) {
            return self.refuse_client(cx, id, &fault);
        }
        if cx.env.stopping == Some(Shutdown::WaitForServers) {
            return self.refuse_client(cx, id, &Fault::ServerShuttingDown);
        }
        Step::Wait
    }

    /// The client that is next to get a server, if there is one. It stays where it is.
    pub(crate) fn next_waiter(&mut self) -> Option<ClientId> {
        let pool = &mut self.state;
        while let Some(&id) = pool.queue.clients.front() {
            let state = self.clients.get(id).map(|client| &client.state);
            if matches!(state, Some(ClientState::Waiting(_))) {
                return Some(id);
            }
            pool.queue.clients.pop_front();
        }
        debug_assert_eq!(pool.queue.waiting, 0, "a waiting client is in no queue");
        None
    }

    /// The client that has waited longest, and since when (monotonic, µs).
    pub(crate) fn first_waiting(&self) -> Option<(ClientId, u64)> {
        self.state.queue.clients.iter().find_map(|&id| match &self.clients.get(id)?.state {
            ClientState::Waiting(waiting) => Some((id, waiting.since_us)),
            _ => None,
        })
    }
}
