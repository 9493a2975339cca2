//! Looking on: nobody may be forgotten, and nothing may be left over.

use super::checks::PoolName;
use super::client::run::Client;
use super::hub::{Event, PeerEnd, PoolerEnd};
use super::model::backend::Backend;
use super::plan::Mode;
use super::subject::Subject;
use super::world::World;

/// Without a message to any client for so long, somebody has been forgotten.
const STANDSTILL_US: u64 = 60_000_000;
/// How often waiters are looked for.
pub(super) const PROBE_US: u64 = 20_000;
/// An idle server and a client that waits for it may coexist for this long (delays of the network and busy workers).
const NEGLECT_US: u64 = 100_000;

impl<E: Subject> World<E> {
    pub(super) fn probe(&mut self) {
        let gone = self.clients.iter().filter(|client| client.is_gone()).count() as u64;
        let seen = self.hub.checks.counters().get("messages to clients").copied().unwrap_or(0) + gone;
        if seen != self.progress.0 {
            self.progress = (seen, self.hub.now_us);
        }
        if self.resting_since_us.is_none() {
            if self.hub.now_us > self.progress.1 + STANDSTILL_US {
                let waiting: Vec<String> =
                    self.clients.iter().filter(|client| !client.is_gone()).map(Client::describe).collect();
                self.hub
                    .fail("nobody is forgotten", format!("no message for {STANDSTILL_US} us; {waiting:?}"));
            }
            self.look_for_neglect();
        }
        self.hub.after(PROBE_US, Event::Probe);
    }

    /// A client waits for a server while a server of its pool is idle: not for longer than news travel.
    fn look_for_neglect(&mut self) {
        if self.cluster.cancels_open() > 0 || self.cancellers.iter().any(|canceller| !canceller.done) {
            return; // A server may rightly be held.
        }
        if self.operator.as_ref().is_some_and(|operator| operator.holds) {
            return;
        }
        let before_us = self.hub.now_us.saturating_sub(NEGLECT_US);
        let mut found = None;
        for client in &self.clients {
            if client.waits_for_server(&self.hub).is_none_or(|since_us| since_us > before_us) {
                continue;
            }
            let (id, pool) = (client.id(), client.pool());
            let served = |backend: &&Backend| backend.may_serve(id, &self.hub);
            let free = |backend: &&Backend| {
                let unbound = self.hub.plan.mode != Mode::Session || !backend.is_used();
                backend.pool() == Some(&pool)
                    && unbound
                    && backend.is_idle(&self.hub)
                    && self.hub.link(backend.link).moved_us < before_us
                    && matches!(self.hub.link(backend.link).pooler, PoolerEnd::At(..))
            };
            if !self.cluster.backends.iter().any(|backend| served(&backend))
                && let Some(idle) =
                    self.cluster.backends.iter().filter(free).nth(self.unseen_transactions(&pool))
            {
                found =
                    Some(format!("client {id} waits for a server of {pool:?}, server {} is idle", idle.pid));
            }
        }
        if let Some(text) = found {
            self.hub.fail("no waiter is forgotten while a server idles", text);
        }
    }

    /// Clients of a pool that may hold a server which knows nothing of their transaction yet.
    fn unseen_transactions(&self, pool: &PoolName) -> usize {
        if self.hub.plan.defer_begin() != "packet" {
            return 0;
        }
        let seen = |id: u32| self.cluster.backends.iter().any(|backend| backend.works_for(id, &self.hub));
        self.clients
            .iter()
            .filter(|client| client.pool() == *pool && client.is_bound() && !seen(client.id()))
            .count()
    }

    pub(super) fn check_the_end(&mut self) {
        let mut left = Vec::new();
        for (id, link) in self.hub.links() {
            let fine = match (link.pooler, link.peer) {
                (PoolerEnd::Gone, _) => true,
                (_, PeerEnd::Backend(pid)) => self.cluster.backends[pid].is_idle(&self.hub),
                _ => false,
            };
            if !fine {
                left.push(format!("{id:?} {:?} to {:?}", link.pooler, link.peer));
            }
        }
        if !left.is_empty() {
            self.hub.fail("no connection is left over", left.join(", "));
        }
        self.hub.checks.at_end();
    }
}
