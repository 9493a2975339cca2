//! All server processes of the model, and what happens to them.

use super::backend::Backend;
use super::fate::Fate;
use crate::sim::hub::{Event, Hub, LinkId};

/// The model PostgreSQL. A process's number is its place here.
#[derive(Default)]
pub struct Cluster {
    /// All processes that ever were.
    pub backends: Vec<Backend>,
}

impl Cluster {
    /// The number of the next process.
    #[must_use]
    pub fn next_pid(&self) -> usize {
        self.backends.len()
    }

    /// Starts a process for a connection.
    pub fn start(&mut self, hub: &mut Hub, link: LinkId) {
        let serving = self.backends.iter().filter(|backend| backend.is_serving()).count();
        let fate = Fate::draw(hub, serving);
        let mut secret = vec![0; 32];
        hub.rng.fill(&mut secret);
        let pid = self.next_pid();
        if fate != Fate::None {
            hub.note(|| format!("server {pid} will have this fate: {fate:?}"));
        }
        self.backends.push(Backend::new(pid, link, fate, secret));
        hub.checks.server_opened(link);
    }

    /// A cancel request takes effect, as `kill(pid, SIGINT)` does: on whatever that process is doing now.
    pub fn cancel(&mut self, hub: &mut Hub, canceller: usize) {
        if let Some((pid, secret)) = self.backends[canceller].cancels.clone() {
            match self.backends.get_mut(pid) {
                Some(target) if target.secret == secret => target.cancel(hub),
                _ => hub.count("cancel requests without a target"),
            }
        }
        self.backends[canceller].cancel_done(hub);
    }

    /// Advisory locks were given up: those that have waited longest get them.
    pub fn unlocked(&mut self, hub: &mut Hub) {
        while let Some(pid) = hub.locks.next() {
            self.backends[pid].try_lock_again(hub);
        }
    }

    /// A notification was committed: listeners are signalled one after the other, and the signalling process may be put aside
    /// between two of them (`SignalBackends` in PostgreSQL's `async.c`).
    pub fn notified(&mut self, hub: &mut Hub) {
        for backend in self.backends.iter().filter(|backend| backend.listens()) {
            let in_us = hub.rng.skewed(500);
            hub.after(in_us, Event::Signalled(backend.pid));
        }
    }

    /// Cancel requests that are being carried out.
    #[must_use]
    pub fn cancels_open(&self) -> usize {
        self.backends.iter().filter(|backend| backend.cancels.is_some() && !backend.is_dead()).count()
    }
}
