//! A standby that says it is none any more, before the view does. Its servers were opened for reads, and the fence of a promotion has not
//! fallen: they take nothing more, and what they have shown stands in no history that the view knows.

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::ServerId;
use crate::pool::Pool;
use crate::pool::cluster::causal::must_see::Left;
use crate::pool::cluster::fence::LEFT;

impl Pool {
    /// A server says in the middle of its life that its node is no standby any more: it was promoted. The node is asked. From here on the
    /// server's transactions may change something: it takes no other.
    pub(crate) fn role_reported(&mut self, env: &mut Env, id: ServerId) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let branch = server.branch;
        let Some(standby) = self.state.standby_mut(branch) else { return };
        server.fence(LEFT);
        server.at.is_promoted = true;
        // Nothing goes there until a view names it again, and then only by new servers.
        let named = standby.standby.take().map(|known| known.target.term.run.timeline);
        let opened_in = server.at.term.as_ref().map(|term| term.run.timeline);
        let at_us = standby.replayed.asks_at(env.now.mono_us);
        standby.left = Left { at_us, timeline: named.max(opened_in).unwrap_or_default() };
        standby.is_to_be_left = true;
        self.suspect_node(env, branch, false);
        self.notice();
    }

    /// Ends the servers of promoted nodes, and places the clients that wait for them elsewhere.
    pub(crate) fn leave_promoted<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        for branch in self.state.standby_branches() {
            let Some(standby) = self.state.standby_mut(branch) else { continue };
            if !std::mem::take(&mut standby.is_to_be_left) {
                continue;
            }
            let servers: Vec<ServerId> =
                self.servers.iter().filter(|(_, server)| server.branch == branch).map(|(id, _)| id).collect();
            servers.into_iter().for_each(|id| self.end_at_standby(cx, id));
            self.place_again(cx);
        }
    }
}
