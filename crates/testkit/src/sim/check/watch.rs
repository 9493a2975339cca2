//! Looking on: no client may be forgotten, and nothing may be left over.

use std::collections::BTreeMap;

use pgweir_core::limits::RESCUE_AFTER_US;
use pgweir_core::mail::{Mail, Question};
use pgweir_core::snapshot::{MultiplexNumbers, Snapshot, SnapshotRequest};

use super::checks::PoolName;
use super::queued_behind::QueuedBehind;
use crate::sim::client::run::Client;
use crate::sim::context::{Event, PeerEnd, PoolerEnd};
use crate::sim::model::backend::Backend;
use crate::sim::plan::Mode;
use crate::sim::subject::Subject;
use crate::sim::world::{World, place};

/// The time without a message to any client after which a client must have been forgotten.
const STANDSTILL_US: u64 = 60_000_000;
/// The interval at which waiting clients are looked for.
pub(in crate::sim) const PROBE_US: u64 = 20_000;
/// An idle server and a client that waits for it may coexist for this long (delays of the network and busy workers).
const NEGLECT_US: u64 = 100_000;

impl<E: Subject> World<E> {
    pub(in crate::sim) fn probe(&mut self) {
        let gone = self.clients.iter().filter(|client| client.is_gone()).count() as u64;
        let seen = self.cx.checks.counters().get("messages to clients").copied().unwrap_or(0) + gone;
        if seen != self.progress.0 {
            self.progress = (seen, self.cx.now_us);
        }
        if self.resting_since_us.is_none() {
            if self.cx.now_us > self.progress.1 + STANDSTILL_US {
                let waiting: Vec<String> =
                    self.clients.iter().filter(|client| !client.is_gone()).map(Client::describe).collect();
                self.cx.fail(
                    "no client is forgotten",
                    format!("no message for {STANDSTILL_US} us; {waiting:?}"),
                );
            }
            self.look_for_neglect();
        }
        self.cx.after(PROBE_US, Event::Probe);
    }

    /// A client waits for a server while a server of its pool is idle: not for longer than news travel.
    ///
    /// A client whose statement was sent to a server behind another's waits there, unless that one has waited for a lock for longer than
    /// the machine has named: then it waits for a server, too.
    fn look_for_neglect(&mut self) {
        if self.cluster.cancels_open() > 0 || self.cancellers.iter().any(|canceller| !canceller.done) {
            return; // A server may rightly be held.
        }
        if self.operator.as_ref().is_some_and(|operator| operator.holds) {
            return;
        }
        if self.cx.nodes.as_ref().is_some_and(|nodes| !nodes.is_settled(self.cx.now_us)) {
            return;
        }
        let before_us = self.cx.now_us.saturating_sub(NEGLECT_US);
        let stuck_us = before_us.saturating_sub(RESCUE_AFTER_US);
        let mut found = None;
        // Mostly there is none, and the clients need not be looked at.
        let mut idle_of: BTreeMap<PoolName, Option<usize>> = BTreeMap::new();
        for client in self.clients.iter().filter(|client| !client.is_gone()) {
            let (id, pool) = (client.id(), client.pool());
            let idle = *idle_of.entry(pool.clone()).or_insert_with(|| self.idle_server(&pool, before_us));
            let Some(idle) = idle else { continue };
            if !client.waits_for_server(&self.cx, before_us) {
                continue;
            }
            // Which of its nodes a client waits for is the pooler's to know.
            if self.cx.plan.route_of(&pool.0).is_some_and(|route| route != "primary") {
                continue;
            }
            let served = |backend: &Backend| backend.may_serve(id, &self.cx);
            let queued = |backend: &Backend| {
                let is_stuck =
                    backend.waits_for_lock_since(stuck_us) && client.waits_for_server(&self.cx, stuck_us);
                !is_stuck && self.queued_behind(backend).may_have(id)
            };
            if !self.cluster.backends.iter().any(served) && !self.cluster.backends.iter().any(queued) {
                found = Some(format!("client {id} waits for a server of {pool:?}, server {idle} is idle"));
            }
        }
        if let Some(text) = found {
            self.cx.fail("no waiter is forgotten while a server idles", text);
        }
    }

    /// A server of a pool that any client could have had since then.
    fn idle_server(&self, pool: &PoolName, before_us: u64) -> Option<usize> {
        let free = |backend: &&Backend| {
            let unbound = self.cx.plan.mode != Mode::Session || !backend.is_used();
            backend.pool() == Some(pool)
                && unbound
                && !backend.is_kept()
                && backend.is_idle(&self.cx)
                && self.cx.link(backend.link).moved_us < before_us
                && matches!(self.cx.link(backend.link).pooler, PoolerEnd::At(..))
        };
        let mut free = self.cluster.backends.iter().filter(free).map(|backend| backend.pid).peekable();
        free.peek()?;
        free.nth(self.unseen_transactions(pool) + self.unseen_groups(pool))
    }

    /// The clients that were sent to a server and have to wait there.
    fn queued_behind(&self, backend: &Backend) -> QueuedBehind {
        let link = self.cx.link(backend.link);
        let mut bytes = backend.unbegun().to_vec();
        link.to_peer.unread().for_each(|piece| bytes.extend_from_slice(piece));
        if let PoolerEnd::At(worker, conn) = link.pooler
            && let Some(sock) = self.sim_workers[place(worker)].sock(conn)
        {
            bytes.extend_from_slice(&sock.out);
        }
        QueuedBehind::read(&bytes)
    }

    /// Clients of a pool that may hold a server which knows nothing of their transaction yet, or never will: one without a
    /// statement is over before a server heard of it, and in session pooling the server stays the client's.
    fn unseen_transactions(&self, pool: &PoolName) -> usize {
        let sessions = self.cx.plan.mode == Mode::Session;
        match self.cx.plan.defer_begin() {
            "packet" => {}
            // In session pooling its server is the client's in either way.
            "server" if sessions => {}
            _ => return 0,
        }
        let knows = |backend: &Backend, id| {
            backend.works_for(id, &self.cx) || sessions && backend.is_used() && backend.has_served(id)
        };
        let seen = |id: u32| self.cluster.backends.iter().any(|backend| knows(backend, id));
        let may_hold = |client: &&Client| client.is_bound() || sessions && client.was_answered();
        let of_pool = self.clients.iter().filter(|client| client.pool() == *pool);
        of_pool.filter(may_hold).filter(|client| !seen(client.id())).count()
    }

    /// Clients of a pool that may hold a server which knows nothing of their group yet.
    fn unseen_groups(&self, pool: &PoolName) -> usize {
        let seen = |id: u32| self.cluster.backends.iter().any(|backend| backend.works_for(id, &self.cx));
        let is_sending = |client: &&Client| client.is_sending(&self.cx);
        let of_pool = self.clients.iter().filter(|client| client.pool() == *pool);
        of_pool.filter(is_sending).filter(|client| !seen(client.id())).count()
    }

    /// Adds the machines' own counters to the report.
    pub(in crate::sim) fn count_rides(&mut self) {
        self.cx.questions.clear();
        let follows = self.cx.wal.is_some();
        for at in 0..self.sim_workers.len() {
            let look = Mail::SnapshotRequest {
                ticket: 0,
                look: SnapshotRequest::Pools { skip: 0, limit: usize::MAX },
            };
            self.turn(at, |engine, d| engine.mail(d, look));
        }
        for question in std::mem::take(&mut self.cx.questions) {
            let Question::Seen { snapshot: Snapshot::Pools { pools, .. }, .. } = question else { continue };
            for pool in pools {
                let MultiplexNumbers { multiplexed, requeued, violations, .. } = pool.multiplexing;
                let numbers = [
                    ("multiplexed", multiplexed),
                    ("multiplexed put back", requeued),
                    ("multiplex violations", violations),
                    ("answers from the cache", pool.cache.hits),
                    ("answers that were followed", if follows { pool.cache.hits } else { 0 }),
                    ("answers whose tables had changed", pool.cache.changed),
                    ("answers not kept for a change on its way", pool.cache.unsettled),
                    ("statements that the cache could not answer", pool.cache.misses),
                    ("answers that the cache kept", pool.cache.fills),
                ];
                numbers.into_iter().for_each(|(what, times)| self.cx.checks.count(what, times));
            }
        }
    }

    pub(in crate::sim) fn check_the_end(&mut self) {
        let mut left = Vec::new();
        // If servers are opened before a client needs them, one may be under way, or the end of its login on the way.
        let opens = self.cx.plan.extras.iter().any(|(name, _)| *name == "min_pool_size");
        for (id, link) in self.cx.links() {
            let fine = match (link.pooler, link.peer) {
                (PoolerEnd::Gone, _) => true,
                (_, PeerEnd::Backend(pid)) => {
                    let backend = &self.cluster.backends[pid];
                    let fresh = backend.is_being_opened() || backend.is_greeting();
                    // A node may crash in the last moment: the pooler is about to learn that.
                    let is_ending = backend.is_dead() && !link.to_pooler.is_empty();
                    backend.is_idle(&self.cx)
                        || opens && fresh
                        || backend.is_follower
                        || self.cx.nodes.is_some() && (backend.is_watching() || is_ending)
                }
                _ => false,
            };
            if !fine {
                left.push(format!("{id:?} {:?} to {:?}", link.pooler, link.peer));
            }
        }
        if !left.is_empty() {
            self.cx.fail("no connection is left over", left.join(", "));
        }
        if self.cx.wal.as_ref().is_some_and(|wal| !wal.is_followed()) {
            self.cx.fail("a database is followed again when nothing goes wrong", "it is not".to_owned());
        }
        self.cx.checks.at_end();
    }
}
