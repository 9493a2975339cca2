//! The questions for positions: of the primary, and how far standbys have replayed. At most one of each is under way at a node, for all
//! clients that wait for it. A free server answers it, before any client gets that server.

use crate::cluster::token::{PRIMARY_QUESTION, Position, STANDBY_QUESTION, replayed};
use crate::context::{Activity, Cx, Env};
use crate::driver::Driver;
use crate::errors::Refusal;
use crate::ids::{ClientId, ServerId};
use crate::pool::cluster::causal::guards::FAILED_US;
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::sequences::state::Hold;
use crate::pool::server::asked::{Replies, ServerQuestion};
use crate::pool::{Branch, Gate, Pool};

/// Time until a question is tried again that found no free server.
const UNSENT_US: u64 = 300;
impl Pool {
    /// Places clients again that have waited long enough, and then sends the questions that are due, before any client gets a server
    /// that is free for them.
    pub(crate) fn ask_positions<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let now_us = cx.env.now.mono_us;
        self.leave_promoted(cx);
        self.refuse_positions(cx);
        self.state.standby_branches().for_each(|branch| self.place_again_at(cx.env, branch));
        if self.state.cluster.as_deref().is_some_and(|cluster| cluster.asking_due_us <= now_us) {
            self.place_asking(cx.env);
        }
        self.place_overdue(cx);
        let Some(cluster) = self.state.cluster.as_deref() else { return };
        let (due_us, again_us) = (cluster.asking_due_us, cluster.asks_again_us);
        if due_us < u64::MAX {
            cx.env.wake_at(due_us);
        }
        if cluster.asks.is_due() && again_us > now_us {
            cx.env.wake_at(again_us);
        } else if cluster.asks.is_due() && self.locate(cx, Branch::PRIMARY, PRIMARY_QUESTION) {
            self.state.cluster.iter_mut().for_each(|cluster| cluster.asks.send());
        }
        for branch in self.state.standby_branches() {
            let Some(guard) = self.state.standby_at(branch).map(|standby| standby.guard) else { continue };
            if guard.is_due() && guard.again_us > now_us {
                cx.env.wake_at(guard.again_us);
            } else if guard.is_due()
                && self.locate(cx, branch, STANDBY_QUESTION)
                && let Some(standby) = self.state.standby_mut(branch)
            {
                standby.guard.send();
            }
        }
    }

    /// Sends clients the error that the position of their `pgweir.read_after` is none of this cluster.
    fn refuse_positions<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let Some(cluster) = self.state.cluster.as_deref_mut() else { return };
        if !std::mem::take(&mut cluster.refuses_positions) {
            return;
        }
        let is_refused = |id: &ClientId| {
            let client = self.clients.get(*id);
            client
                .and_then(|client| client.account.must_see.as_deref())
                .is_some_and(|must_see| must_see.is_refused())
        };
        let asking = self.state.node_at(Branch::ASKING).clients.iter().copied();
        let refused: Vec<ClientId> = asking.filter(is_refused).collect();
        for id in refused {
            self.turn_down(cx, id, Refusal::NoPosition);
        }
    }

    /// Sends a question for a position to a free server of a node. Returns `false` if the question could not be sent; a server is
    /// opened if the node has none.
    fn locate<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch, text: &str) -> bool {
        if self.state.gate_at(branch) != Gate::Open || cx.env.activity != Activity::Active {
            return false;
        }
        let now_us = cx.env.now.mono_us;
        let Some(id) = self.idle_for_question(cx.env, branch) else {
            let is_empty = self.state.node_at(branch).servers_total() == 0;
            if is_empty {
                self.open_for_question(cx, branch);
            }
            cx.env.wake_at(now_us + if is_empty { FAILED_US } else { UNSENT_US });
            return false;
        };
        let asked_us =
            self.state.standby_at(branch).map_or(now_us, |standby| standby.replayed.asks_at(now_us));
        let text = own_settings::question(self.servers[id].at.version, Asks::Little, text.as_bytes());
        self.ask_server(cx, id, ServerQuestion::Position { asked_us }, &text);
        true
    }

    /// Returns the free server that has been logged in longest: its answer tells most about the standby's run. The server need not be
    /// checked first, because the question does that. A server kept for a client that drew sequence values on it comes last.
    fn idle_for_question(&mut self, env: &Env, branch: Branch) -> Option<ServerId> {
        self.state.drawn.affinities.expire(env.now.mono_us);
        let holds = |id: ServerId| self.state.drawn.affinities.hold(id, None);
        let idle = self.state.node_at(branch).idle.iter().copied();
        let is_usable =
            |id: &ServerId| !matches!(holds(*id), Hold::Until(_)) && self.reason_to_close(env, *id).is_none();
        idle.filter(is_usable).min_by_key(|id| (holds(*id) == Hold::Soft, self.servers[*id].at.logged_in_us))
    }

    /// Opens a server for a question, because the pool has no server of this node.
    fn open_for_question<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) {
        if self.may_dial(cx.env, branch) && self.has_room(cx, branch) && self.take_place(cx, branch, true) {
            self.dial_server(cx, branch, None);
        }
    }

    /// Handles the answer of a server that was asked for its node's position at `asked_us`.
    pub(crate) fn located<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        asked_us: u64,
        answer: &Replies,
    ) {
        let now_us = cx.env.now.mono_us;
        let Some(server) = self.servers.get(id) else { return };
        let (branch, logged_in_us) = (server.branch, server.at.logged_in_us);
        let row = answer.rows.first().filter(|_| answer.failed.is_none());
        if branch.is_primary() {
            self.state.position_told(now_us, row.and_then(|row| Position::of_primary(row)));
        } else if let Some(standby) = self.state.standby_mut(branch) {
            match row {
                Some(row) => standby.replayed.told(logged_in_us, asked_us, replayed(row)),
                None => standby.guard.again_us = now_us + FAILED_US,
            }
            standby.guard.end();
        }
        self.free_server(cx, id);
        self.place_asking(cx.env);
        if let Some(standby) = self.state.standby_mut(branch) {
            standby.sent.guards += 1;
            standby.sent.guard_misses += u64::from(standby.guard.answered(now_us));
        }
        self.notice();
    }
}
