//! Cancel requests between processes: several poolers that share a port (`so_reuseport`) or run behind one load balancer get
//! each other's cancel requests. A key carries the id of the process that gave it; a request with another process's id is
//! forwarded there as it came, on a separate connection, which that process closes when it is done.
//!
//! Only the other process can tell which client's statement is meant.

use std::collections::VecDeque;
use std::sync::Arc;

use pgweir_settings::Peer;
use pgweir_wire::frontend::encode_cancel;
use slotmap::SlotMap;

use crate::context::Cx;
use crate::context::Role;
use crate::driver::{CloseMode, ConnId, Driver, Endpoint, Level};
use crate::ids::{ForwardId, UnpooledId};
use crate::pool::Step;
use crate::pool::cancel_key;
use crate::shared::Counts;
use crate::worker::Worker;
use crate::worker::maintenance::take_out;
use crate::worker::unpooled::UnpooledState;

/// Requests on their way to peers, and requests that wait.
#[derive(Default)]
pub(crate) struct Peering {
    pub(crate) forwards: SlotMap<ForwardId, Forward>,
    waiting: VecDeque<WaitingForward>,
}

/// A connection to a peer for one cancel request.
pub(crate) struct Forward {
    conn: ConnId,
    peer: u32,
    requester: UnpooledId,
    key: Vec<u8>,
    /// The request was sent to the peer.
    sent: bool,
    since_us: u64,
    /// The counters of these requests.
    counts: Arc<Counts>,
}

/// A request that waits: a peer is sent at most `pool_size` at a time.
struct WaitingForward {
    peer: u32,
    requester: UnpooledId,
    key: Vec<u8>,
    since_us: u64,
}

impl Worker {
    /// Forwards a cancel request whose key names a peer; `None` if it names none.
    pub(crate) fn forward_cancel<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        key: &[u8],
    ) -> Option<Step> {
        let config = &cx.env.rules.config;
        let own = config.main.peer_id;
        let peer = cancel_key::peer_of(key).filter(|&peer| own != 0 && peer != own)?;
        if !config.peers.contains_key(&peer) {
            return None;
        }
        let Some(key) = cancel_key::one_hop_less(key) else {
            let line = format!("cancel request for peer {peer} went round too often, dropped");
            cx.log(Level::Warning, &line);
            self.remove_unpooled(cx, id, "failed cancel request", CloseMode::Flush);
            return Some(Step::Gone);
        };
        if let Some(client) = self.unpooled.get_mut(id) {
            client.state = UnpooledState::Cancelling(1);
        }
        let since_us = cx.env.now.mono_us;
        self.peering.waiting.push_back(WaitingForward { peer, requester: id, key, since_us });
        self.forward_waiting(cx);
        Some(Step::Used(0))
    }

    /// Dials for the requests that are next. Requests to different peers do not wait for each other.
    fn forward_waiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let config = Arc::clone(&cx.env.rules.config);
        for _ in 0..self.peering.waiting.len() {
            let Some(waiting) = self.peering.waiting.pop_front() else { return };
            let Some(peer) = config.peers.get(&waiting.peer) else {
                self.remove_unpooled(cx, waiting.requester, "failed cancel request", CloseMode::Flush);
                continue;
            };
            let counts = cx.env.shared.peer(peer.id);
            if counts.servers.try_take(peer.pool_size.unwrap_or(config.main.default_pool_size)) {
                self.dial_peer(cx, peer, waiting, counts);
            } else {
                self.peering.waiting.push_back(waiting);
            }
        }
    }

    fn dial_peer<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        peer: &Peer,
        waiting: WaitingForward,
        counts: Arc<Counts>,
    ) {
        let conn = cx.driver.dial(&Endpoint::of_host(&peer.host, peer.port));
        let WaitingForward { peer, requester, key, .. } = waiting;
        let since_us = cx.env.now.mono_us;
        let forward = Forward { conn, peer, requester, key, sent: false, since_us, counts };
        let id = self.peering.forwards.insert(forward);
        cx.env.set_role(conn, Role::Peer(id));
    }

    /// The connection to the peer is up.
    pub(crate) fn peer_connected<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ForwardId) {
        let Some(forward) = self.peering.forwards.get_mut(id) else { return };
        let Some((pid, secret)) = forward.key.split_first_chunk::<4>() else { return };
        forward.sent = true;
        cx.env.scratch.clear();
        encode_cancel(&mut cx.env.scratch, u32::from_be_bytes(*pid), secret);
        cx.driver.send(forward.conn, &cx.env.scratch);
    }

    /// The peer has closed the connection, or never took it.
    pub(crate) fn peer_closed<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ForwardId) {
        let sent = self.peering.forwards.get(id).is_some_and(|forward| forward.sent);
        self.end_forward(
            cx,
            id,
            if sent { "successfully sent cancel request" } else { "failed cancel request" },
        );
    }

    /// Ends a request whose peer has sent bytes: peers send nothing on such a connection.
    pub(crate) fn peer_received<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ForwardId) {
        self.end_forward(cx, id, "peer answered a cancel request");
    }

    fn end_forward<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ForwardId, reason: &str) {
        let Some(forward) = self.peering.forwards.remove(id) else { return };
        cx.env.clear_role(forward.conn);
        cx.driver.close(forward.conn, CloseMode::Now);
        forward.counts.servers.give_back();
        self.remove_unpooled(cx, forward.requester, reason, CloseMode::Flush);
        self.forward_waiting(cx);
    }

    /// Ends the requests that have been on their way, or have waited, for too long; and sends those that are next, as far as
    /// another worker has made room.
    pub(crate) fn peer_timeouts<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        is_stuck: impl Fn(u64) -> bool,
        is_tired: impl Fn(u64) -> bool,
    ) {
        let forwards = self.peering.forwards.iter();
        let stuck: Vec<ForwardId> =
            forwards.filter(|(_, forward)| is_stuck(forward.since_us)).map(|(id, _)| id).collect();
        for id in stuck {
            self.end_forward(cx, id, "failed cancel request");
        }
        for tired in take_out(&mut self.peering.waiting, |waiting| is_tired(waiting.since_us)) {
            self.remove_unpooled(cx, tired.requester, "cancel_wait_timeout", CloseMode::Flush);
        }
        self.forward_waiting(cx);
    }

    /// A row of SHOW PEER_POOLS: active and waiting requests of clients, connections that carry one, connections being
    /// opened.
    pub(crate) fn peer_pool_numbers(&self, peer: u32) -> [usize; 4] {
        let ours = || self.peering.forwards.values().filter(move |forward| forward.peer == peer);
        let sent = ours().filter(|forward| forward.sent).count();
        let waiting = self.peering.waiting.iter().filter(|waiting| waiting.peer == peer).count();
        [sent, waiting + ours().count() - sent, sent, ours().count() - sent]
    }
}
