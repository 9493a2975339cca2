//! The fence: when the primary has changed, a server of an older epoch takes nothing more. A switchover waits for what is open before it.
//!
//! What a deposed primary commits is lost, so the fence lets nothing of a change through in either direction: no message is sent to its
//! servers, and no answer of theirs is passed on. It closes them in the moment in which the view arrives, and their clients are told what
//! the loss of a primary means (`server/lost.rs`): 40001, the outcome by the next primary, or 08007. Only a read whose answer a client has
//! seen in part goes on to its end. This file must never look at what an answer says.

use std::sync::Arc;

use pgweir_wire::backend::TxStatus;

use crate::cluster::view::{Retirement, View};
use crate::context::Cx;
use crate::driver::{CloseMode, Driver};
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::ClientState;
use crate::pool::cluster::in_flight::{InFlight, Sent};
use crate::pool::node::NodePool;
use crate::pool::relay::attempt::holds_later;
use crate::pool::relay::exchange::group_len;
use crate::pool::server::state::{LinkedServer, Retiring, Server, ServerState, ServerTask};
use crate::pool::{Gate, Pool, ServerKind};
use crate::stats::rare_path::RarePath;

/// Why a server of an older epoch is closed.
const FENCED: &str = "the primary has changed";

/// Why a server is closed whose transaction lasted longer than a switchover waits.
const SWITCHED_OVER: &str = "the cluster switches over";

/// Why a server is closed whose node is down or refused.
const CUT_OFF: &str = "the node is not the primary any more";

/// Why a server of a standby is closed whose node is down or refused.
const DOWN: &str = "the standby is down or refused";

/// Why a server is closed whose transaction lasted longer than its node is drained.
const DRAINED: &str = "the node was drained (drain_timeout)";

/// Why a server of a standby is closed that is drained, promoted or gone.
pub(super) const LEFT: &str = "the node takes no more reads";

impl Pool {
    /// Follows a new view of the pool's cluster.
    pub(crate) fn follow_view<D: Driver>(&mut self, cx: &mut Cx<'_, D>, view: &Arc<View>) {
        let Some(cluster) = self.state.cluster.as_deref_mut() else { return };
        if cluster.view.cluster != view.cluster {
            return;
        }
        let before = std::mem::replace(&mut cluster.view, Arc::clone(view));
        cluster.is_refused = false;
        if before.epoch != view.epoch {
            cluster.asks.begin_term();
            self.state.node.begin_role();
            self.purge_known(cx.env);
        }
        self.state.set_paused(self.state.gate == Gate::Paused);
        self.state.nodes_mut().for_each(NodePool::forget_failures);
        self.state.follow_standbys(cx.env, view);
        let servers: Vec<ServerId> = self.servers.keys().collect();
        servers.into_iter().for_each(|id| self.fence_server(cx, id));
        self.place_again(cx);
    }

    /// A server that is not of the present epoch takes nothing more.
    pub(crate) fn fence_server<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let (Some(cluster), Some(server)) = (&self.state.cluster, self.servers.get_mut(id)) else { return };
        note_promotion(&cluster.view, server);
        let (retirement, cut, ends) = match &server.at.term {
            Some(term) if server.at.is_promoted => (cluster.view.retirement_at_promoted(term), DOWN, LEFT),
            Some(term) if !server.branch.is_primary() => {
                (cluster.view.retirement_at_standby(term), DOWN, LEFT)
            }
            term => (cluster.view.retirement(term.as_ref()), CUT_OFF, FENCED),
        };
        let is_drained =
            server.at.term.as_ref().is_some_and(|term| cluster.view.drained.contains(&term.node));
        let reason = match retirement {
            Retirement::Cut if is_drained => DRAINED,
            Retirement::Cut => cut,
            _ => ends,
        };
        self.end_server(cx, id, retirement, (reason, ends));
    }

    /// A server of a standby that is promoted takes nothing more.
    pub(crate) fn end_at_standby<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        self.end_server(cx, id, Retirement::Ends, (LEFT, LEFT));
    }

    /// Ends a server as its retirement demands: at once, or after its transaction. `reason` is logged if it ends at once, `ends` if
    /// its transaction may end first.
    fn end_server<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        retirement: Retirement,
        (reason, ends): (&'static str, &'static str),
    ) {
        let Some(server) = self.servers.get(id) else { return };
        match (retirement, server.state.kind()) {
            (Retirement::Stays, _) => {}
            (_, ServerKind::Login) if server.state.client().is_none() => {
                self.close_server(cx, id, reason, CloseMode::Now);
            }
            (_, ServerKind::Login) => self.login_failed(cx, id, "connect failed", reason),
            (_, ServerKind::Idle | ServerKind::Listening) => {
                self.close_server(cx, id, reason, CloseMode::Flush);
            }
            (Retirement::Cut, _) => self.lose_server(cx, id, reason.into()),
            (Retirement::Ends | Retirement::Deposed, _)
                if server.is_replication() || is_kept_at_rest(server) =>
            {
                self.lose_server(cx, id, reason.into());
            }
            (Retirement::Deposed, _) if !only_reads(server) => {
                cx.driver.reached(RarePath::ServerDeposed);
                self.lose_server(cx, id, reason.into());
            }
            (Retirement::Ends | Retirement::Deposed, _) => {
                if retirement == Retirement::Deposed {
                    cx.driver.reached(RarePath::ReadAtDeposed);
                }
                self.servers[id].fence(ends);
            }
        }
    }

    /// A switchover waits no longer for the transactions that are open.
    pub(crate) fn cut_open<D: Driver>(&mut self, cx: &mut Cx<'_, D>, cluster: &str) {
        if self.open_transactions(cluster) == 0 {
            return;
        }
        let open: Vec<ServerId> =
            self.servers.iter().filter(|(_, server)| is_at_work(server)).map(|(id, _)| id).collect();
        open.into_iter().for_each(|id| self.lose_server(cx, id, SWITCHED_OVER.into()));
    }

    /// The number of servers of this cluster's primary that are at work: in a transaction, or with an answer to come.
    pub(crate) fn open_transactions(&self, cluster: &str) -> u32 {
        let is_ours = self.state.cluster.as_ref().is_some_and(|own| *own.view.cluster == *cluster);
        if !is_ours {
            return 0;
        }
        let open = self.servers.values().filter(|server| is_at_work(server)).count();
        u32::try_from(open).unwrap_or(u32::MAX)
    }

    /// The part of a client's bytes that its server may get now. A server that takes nothing more gets one group at a time, because the
    /// transaction may end with any group. So does a standby whose client listens: the next group may be UNLISTEN, which belongs at the
    /// primary. `None`: the server has not answered the previous group.
    pub(super) fn up_to_fence<'a>(
        &self,
        id: ClientId,
        server_id: ServerId,
        bytes: &'a [u8],
    ) -> Option<&'a [u8]> {
        let takes_one_group =
            |server: &&Server| server.is_fenced() || server.branch.is_standby() && self.listens(id);
        let Some(server) = self.servers.get(server_id).filter(takes_one_group) else { return Some(bytes) };
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return Some(bytes);
        };
        if holds_later(link, server) || link.phase.is_unsent() || !server.pipelined.is_alone() {
            return Some(bytes);
        }
        if link.streaming > 0 {
            return Some(&bytes[..link.streaming.min(bytes.len())]);
        }
        let ledger = &server.ledger;
        let may_begin = match server.tx {
            TxStatus::Idle => ledger.is_at_rest(),
            _ => ledger.owes_no_client(),
        };
        if ledger.is_between_groups() && !may_begin {
            return None;
        }
        Some(&bytes[..group_len(bytes)])
    }

    /// Ends the server instead of keeping it for its client if the client's transaction is over and the server is fenced.
    pub(crate) fn ends_behind_fence<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        if let Some(server) = self.servers.get(id).filter(|server| is_kept_at_rest(server))
            && let Some(Retiring::Fenced(reason)) = server.retiring
        {
            self.lose_server(cx, id, reason.into());
        }
    }
}

/// A server that was opened to a standby is one of the primary's if the view names its node as that: what the next primary's history lacks
/// is lost there, too.
fn note_promotion(view: &View, server: &mut Server) {
    let (Some(primary), Some(term)) = (&view.primary, &mut server.at.term) else { return };
    if server.branch.is_standby() && primary.term.is_same_start(term) {
        *term = primary.term.clone();
        server.at.is_promoted = true;
    }
}

/// Whether a server of the primary is working for a client, or finishing work after one.
fn is_at_work(server: &Server) -> bool {
    let is_counted = server.branch.is_primary() && !server.is_replication();
    is_counted && server.state.kind() != ServerKind::Login && !server.is_at_rest()
}

/// Whether everything that this server has still to answer changes nothing: it belongs to a read outside of a transaction whose answer its
/// client has seen in part, so that it cannot run again, or to a question of pgweir's after the end of a transaction that its client knows
/// of.
fn only_reads(server: &Server) -> bool {
    match &server.state {
        ServerState::Linked(LinkedServer { client, task: ServerTask::Serving }) => {
            let unseen_bytes = server.incoming.inbox.len();
            server.tx == TxStatus::Idle
                && InFlight::of(server, *client).is_some_and(|in_flight| {
                    in_flight.sent() == Sent::Read && !in_flight.is_unanswered(server, unseen_bytes)
                })
        }
        ServerState::Linked(LinkedServer { task: ServerTask::Syncing(_), .. }) => false,
        _ => true,
    }
}

/// Whether a client has the server, and no transaction is open on it.
fn is_kept_at_rest(server: &Server) -> bool {
    server.state.is_serving() && server.is_at_rest()
}
