//! All server processes of the model, and what happens to them.

use super::backend::{Backend, Fate, LIES};
use crate::sim::hub::{Hub, LinkId};
use crate::sim::net::End;

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
        let fate = self.fate(hub);
        let mut secret = vec![0; 32];
        hub.rng.fill(&mut secret);
        let pid = self.next_pid();
        if fate != Fate::None {
            hub.note(|| format!("server {pid} will have this fate: {fate:?}"));
        }
        self.backends.push(Backend::new(pid, link, fate, secret));
        hub.checks.server_opened(link);
    }

    fn fate(&self, hub: &mut Hub) -> Fate {
        let serving = self.backends.iter().filter(|backend| backend.is_serving()).count();
        if serving >= hub.plan.server.connections_max {
            return Fate::Refuses("53300");
        }
        let (faults, rng) = (&hub.plan.faults, &mut hub.rng);
        if rng.percent(faults.login_fails) {
            return match rng.below(5) {
                0 => Fate::Hangs,
                1 => Fate::Lies(0, *rng.pick(&LIES)),
                2 => Fate::DiesInLogin(rng.below(400)),
                3 => Fate::Refuses("53300"),
                _ => Fate::Refuses("57P03"),
            };
        }
        if rng.percent(faults.dies) {
            return match rng.below(4) {
                0 => Fate::DiesBeforeReady(rng.count(2, 8)),
                1 => Fate::Terminated,
                2 => Fate::DiesAfterBytes(rng.between(400, 4_000), End::Reset),
                _ => Fate::DiesAfterBytes(rng.between(400, 20_000), End::Fin),
            };
        }
        if rng.percent(faults.nonsense) {
            return Fate::Lies(rng.count(1, 8), *rng.pick(&LIES));
        }
        Fate::None
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

    /// Cancel requests that are being carried out.
    #[must_use]
    pub fn cancels_open(&self) -> usize {
        self.backends.iter().filter(|backend| backend.cancels.is_some() && !backend.is_dead()).count()
    }
}
