//! The moment *choose*: which server may run what waits, and how. Every group of a client that has its turn asks
//! `choose_server`, and gets one of four answers (`Place`); what only a free server may run asks `choose_free`. Nothing else gives out a
//! server.
//!
//! A group that is known to be short, certainly only reads and may share a server goes, in this order:
//!
//! 1. to a free server, while fewer servers are busy with such groups than `multiplex/pace.rs` wants;
//! 2. behind other clients, on the busy server on which the wait is shortest;
//! 3. nowhere yet, if a busy server will have room before waking a free one is worth it;
//! 4. to a free server;
//! 5. behind other clients, on a server that was left to come to rest.
//!
//! Anything else has its server for itself: a free one (`idle.rs` and `reasons.rs` say which), or none, and then one is to be opened for it.
//! All of them are servers of one node, which was chosen before (`pool/cluster/route.rs`).

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::{Branch, Pool};

/// The place of a group that waits for a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// The group runs on this free server.
    Alone(ServerId),
    /// The group is queued behind other clients' on this busy server. It is expected to take this time (µs).
    Behind(ServerId, u64),
    /// The group waits: a busy server will have room before it would be worth waking an idle one.
    Wait,
    /// The group waits for a server to be opened, as soon as there is room for one.
    Open,
}

impl Pool {
    /// The free server of this node that may run what never goes behind other clients: the group of a client that goes ahead of the queue,
    /// because a server has affinity to it, or a question of pgweir's own (`None`). It is usable now, and is still in the list of free
    /// servers.
    pub(crate) fn choose_free<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        branch: Branch,
        client: Option<ClientId>,
    ) -> Option<ServerId> {
        self.take_idle(cx, branch, client)
    }

    /// The server of this node that may run the group of the client that is next in the queue, and how. A server that is `Alone` is
    /// usable now, and is still in the list of free servers. On the way pgweir closes free servers that are too old, and has others
    /// checked.
    pub(crate) fn choose_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        branch: Branch,
        id: ClientId,
    ) -> Place {
        let Some(wish) = self.multiplex_wish(cx.env, id) else {
            return self.take_idle(cx, branch, Some(id)).map_or(Place::Open, Place::Alone);
        };
        let target = self.state.node_at(branch).pace.target(cx.env.rules.config.main.multiplex_servers);
        let pipelines = self.look_at_pipelines(cx, branch, (id, wish), target);
        if pipelines.takers < target
            && let Some(server) = self.take_idle(cx, branch, Some(id))
        {
            return Place::Alone(server);
        }
        if let Some(server) = pipelines.best {
            return Place::Behind(server, wish.estimate_us);
        }
        if pipelines.full && !self.has_waited_enough(cx.env, branch, id) {
            self.note_wake_up(cx.env, branch, id, wish.limits);
            return Place::Wait;
        }
        if let Some(server) = self.take_idle(cx, branch, Some(id)) {
            self.state.node_at_mut(branch).pace.note_woken(pipelines.takers.saturating_add(1));
            return Place::Alone(server);
        }
        // No free server is left, so those that were to come to rest take statements, too.
        let anywhere = self.look_at_pipelines(cx, branch, (id, wish), u32::MAX);
        anywhere.best.map_or(Place::Open, |server| Place::Behind(server, wish.estimate_us))
    }
}
