//! A client gets the place that `selector.rs` chose: alone on a server, or queued behind other clients on a busy one.
//!
//! Both make the client's move and then send: the moment *prepare* follows for a client that is linked, the group itself for one that
//! is queued.

use pgweir_wire::{HEADER_LEN, Message, Messages};

use crate::client_handoff::Replication;
use crate::context::Cx;
use crate::driver::{ConnId, Driver};
use crate::ids::{ClientId, ServerId};
use crate::ledger::{Entry, Owner};
use crate::pool::cache::capture::SentAt;
use crate::pool::client::state::{ClientState, First, Link, QueuedBehind};
use crate::pool::cluster::change;
use crate::pool::multiplex::pipelined::QueuedClient;
use crate::pool::prepared::shapes::Bind;
use crate::pool::relay::preamble::{LinkPhase, Preamble};
use crate::pool::relay::route::{Route, route};
use crate::pool::server::state::ServerState;
use crate::pool::{Pool, Step};

impl Pool {
    /// Waiting → Linked. The server must be free. The caller looks at what the client sent.
    pub(crate) fn link<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        let now_us = cx.env.now.mono_us;
        let (Some(client), Some(server)) = (self.clients.get_mut(id), self.servers.get_mut(server_id)) else {
            return;
        };
        let ClientState::Waiting(waiting) = &mut client.state else {
            debug_assert!(false, "only a waiting client is linked");
            return;
        };
        let pool = &mut self.state;
        pool.numbers.stats.server_assignments += 1;
        let waited_us = now_us.saturating_sub(client.account.request.since_us);
        pool.numbers.stats.wait_us += waited_us;
        let phase = match std::mem::take(&mut waiting.first) {
            First::Nothing if pool.policy.on_loss.asks() => {
                LinkPhase::Exchange(change::block_of(&client.account))
            }
            First::Nothing => LinkPhase::PLAIN,
            First::Begin(text) => LinkPhase::Exchange(Preamble::Begin(text)),
            First::Outcome(at) => return self.link_to_ask(cx, id, server_id, at),
        };
        let link = Link { group: waiting.group, phase, ..Link::new(server_id, pool.policy.mode) };
        pool.move_client(client, ClientState::Linked(link));
        pool.move_server(server_id, server, ServerState::serving(id));
        server.active_us = now_us;
        if !std::mem::replace(&mut server.work.used, true) {
            pool.node_at_mut(server.branch).stillborn = 0;
        }
        server.work.waited_us = waited_us;
        server.work.unseen = server.work.unseen.saturating_add(1);
        server.work.followed.clear();
        if let Some(in_flight) = &mut server.in_flight {
            // Even what this client itself has sent to the server before is of another transaction.
            in_flight.forget();
        }
        client.account.draws.use_server(id, server_id, &mut server.users);
        let replication = client.account.replication;
        if server.kept_for.is_some() || client.account.own.is_some() {
            self.take_own(id, server_id);
        }
        self.log_debug(cx, |pool, _| {
            let (client, server) = pool.log_names(id, server_id)?;
            Some(format!("{client} gets {server} after {waited_us} us"))
        });
        self.end_affinity(Some(server_id), id);
        if replication == Replication::None {
            self.prepare_server(cx, id, server_id);
        }
    }

    /// Waiting → QueuedBehind: sends the client's group after those that are under way.
    pub(crate) fn enqueue_behind<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        estimate_us: u64,
    ) {
        let (Some(client), Some(server)) = (self.clients.get_mut(id), self.servers.get_mut(server_id)) else {
            return;
        };
        let ClientState::Waiting(waiting) = &client.state else { return };
        let Some(group) = waiting.group else { return };
        let inbox = std::mem::take(&mut client.inbox);
        client.account.draws.use_server(id, server_id, &mut server.users);
        let sent = cx.env.cache.as_ref().map(|_| SentAt::now(cx.env));
        let queued_behind = QueuedBehind { server: server_id, group, sent };
        let pool = &mut self.state;
        pool.move_client(client, ClientState::QueuedBehind(queued_behind));
        pool.numbers.multiplexing.multiplexed += 1;
        let key = group.estimate_key(self.id);
        server.work.unseen = server.work.unseen.saturating_add(1);
        let is_first =
            server.pipelined.enqueue_behind(QueuedClient { client: id, key, estimate_us, exposed: false });
        if is_first && let Some(due_us) = server.pipelined.rescue_us() {
            cx.env.wake_at(due_us);
        }
        self.end_affinity(None, id);
        self.send_group(cx, id, server_id, &inbox[..(group.len as usize).min(inbox.len())]);
        if let Some(client) = self.clients.get_mut(id) {
            client.inbox = inbox;
        }
    }

    /// A group that may be queued behind others goes to a server, whose ledger is between groups.
    pub(crate) fn send_group<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) {
        let tracking = self.client_tracks_statements(id);
        let mut sent = 0;
        for Message { header, start, .. } in Messages::of(bytes) {
            let rest = &bytes[start..];
            let Some(server) = self.servers.get_mut(server_id) else { return };
            match route(header, rest, tracking) {
                Route::Pass(None) => {}
                // What has no name is prepared in this very group.
                Route::Pass(Some(kind)) | Route::Unnamed(kind) => {
                    server.ledger.push(Entry::new(Owner::Client(id), kind));
                }
                // Its statement was looked at with the group: it only reads.
                Route::Bind(head) => {
                    send_some(cx.driver, server.conn, &bytes[sent..start]);
                    let named = self.client_named(id, head.statement);
                    let tail_len = header.body_len as usize - head.tail;
                    let known = self.provide_statement(cx, id, server_id, (head.statement, named));
                    let doubtful = known.as_ref().filter(|known| known.is_doubtful);
                    let refused = doubtful.filter(|known| {
                        let message = (header, rest);
                        self.look_at_bind(cx.env, id, server_id, (&head, known), message) == Bind::IsRefused
                    });
                    if let Some(refused) = refused {
                        self.refuse_bind(cx.env, id, refused.ticket, (header, rest));
                        self.send_ahead(cx, server_id);
                        sent = start + header.total();
                    } else {
                        self.send_bind_head(cx, id, server_id, (head, known), tail_len);
                        sent = start + HEADER_LEN + head.tail;
                    }
                }
                Route::Prepared => {
                    send_some(cx.driver, server.conn, &bytes[sent..start]);
                    if self.send_prepared(cx, id, server_id, header, rest) == Step::Gone {
                        return;
                    }
                    sent = start + header.total();
                }
                other => debug_assert!(false, "{other:?} is part of no group that may be queued"),
            }
        }
        if let Some(server) = self.servers.get(server_id) {
            send_some(cx.driver, server.conn, &bytes[sent..]);
        }
    }
}

/// Sends bytes to a connection, unless there are none.
fn send_some<D: Driver>(d: &mut D, to: ConnId, bytes: &[u8]) {
    if !bytes.is_empty() {
        d.send(to, bytes);
    }
}
