//! Clients that wait are placed again when the nodes have changed, or what is known of them. Which node it is to be, `route.rs` decides.

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::ClientId;
use crate::pool::node::NodePool;
use crate::pool::{Branch, Gate, Pool};

/// Time after which a waiting client is placed again if a server of another node is free.
const ASKED_AGAIN_US: u64 = 5_000;

impl Pool {
    /// Places a client that waits again. The client stays at `home` if no other node is much better.
    pub(crate) fn place_client(&mut self, env: &Env, id: ClientId, home: Branch) {
        let Some(client) = self.clients.get_mut(id) else { return };
        if let Some(to) = self.state.choose_again(env, client, home) {
            self.give_up_kept(id);
            self.move_waiting(id, to);
        }
    }

    /// Clients that wait for some time at one node while a server of another one is free are asked again where to.
    pub(crate) fn place_overdue<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let is_free = |branch: &Branch| {
            !self.state.node_at(*branch).idle.is_empty() && self.state.gate_at(*branch) == Gate::Open
        };
        if !self.state.branches().any(|branch| is_free(&branch)) {
            return;
        }
        let now_us = cx.env.now.mono_us;
        for branch in self.state.branches().filter(|branch| *branch != Branch::ASKING) {
            while let Some((id, since_us)) = self.first_waiting(branch) {
                let due_us = since_us.saturating_add(ASKED_AGAIN_US);
                if due_us > now_us {
                    cx.env.wake_at(due_us);
                    break;
                }
                self.place_client(cx.env, id, Branch::NO_STANDBY);
                if self.clients[id].account.branch == branch {
                    break;
                }
            }
        }
    }

    /// The nodes have changed, or one of them fails: clients that wait are asked again where to. Those that move keep their time.
    pub(crate) fn place_again<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if !self.state.standbys.is_empty() {
            let at = |node: &NodePool| node.clients.iter().chain(&node.awaiting).copied().collect::<Vec<_>>();
            let clients: Vec<ClientId> = self.state.nodes().flat_map(at).collect();
            for id in clients {
                let home = self.clients.get(id).map_or(Branch::PRIMARY, |client| client.account.branch);
                self.place_client(cx.env, id, home);
            }
        }
        self.notice();
    }

    /// The clients that wait for a standby to be far enough are asked again where to.
    pub(super) fn place_asking(&mut self, env: &Env) {
        if let Some(cluster) = self.state.cluster.as_deref_mut() {
            cluster.asking_due_us = u64::MAX;
        }
        let asking: Vec<ClientId> = self.state.node_at(Branch::ASKING).clients.iter().copied().collect();
        for id in asking {
            self.place_client(env, id, Branch::ASKING);
        }
    }

    /// Places the clients that wait at a standby again after a server of it has logged in, or after clients came back to it: they
    /// were checked before that.
    pub(super) fn place_again_at(&mut self, env: &Env, branch: Branch) {
        let Some(standby) = self.state.standby_mut(branch) else { return };
        if !std::mem::take(&mut standby.looks_again) {
            return;
        }
        let waiting: Vec<ClientId> = standby.node.clients.iter().copied().collect();
        for id in waiting {
            if self.clients.get(id).is_some_and(|client| client.account.must_see.is_some()) {
                self.place_client(env, id, branch);
            }
        }
    }
}
