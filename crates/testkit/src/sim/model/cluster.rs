//! The server processes of the model, and the events that affect them.

use super::backend::Backend;
use super::followed::WalEvent;
use super::nodes::{Act, Status, TOLD, schedule};
use super::outcome::ServerOutcome;
use crate::sim::context::{Event, LinkId, SimContext};

/// The model PostgreSQL. A process's number is its place here.
#[derive(Default)]
pub struct Cluster {
    /// The processes, including those that have ended.
    pub backends: Vec<Backend>,
}

impl Cluster {
    /// The number of the next process.
    #[must_use]
    pub fn next_pid(&self) -> usize {
        self.backends.len()
    }

    /// Starts a process for a connection.
    pub fn start(&mut self, cx: &mut SimContext, link: LinkId, node: usize) {
        let serving = self.backends.iter().filter(|backend| backend.is_serving()).count();
        let starting = cx.nodes.as_ref().is_some_and(|nodes| nodes.nodes[node].status == Status::Starting);
        let outcome = match starting {
            true => ServerOutcome::Refuses("57P03"),
            false => ServerOutcome::draw(cx, serving),
        };
        let mut secret = vec![0; 32];
        cx.rng.fill(&mut secret);
        let pid = self.next_pid();
        if outcome != ServerOutcome::None {
            cx.note(|| format!("server {pid} will have this outcome: {outcome:?}"));
        }
        self.backends.push(Backend::new(pid, link, outcome, secret, node));
        cx.checks.server_opened(link, node);
    }

    /// Carries out the events of nodes that are due, for the nodes and for their processes.
    pub fn nodes_act(&mut self, cx: &mut SimContext) {
        let now_us = cx.now_us;
        while let Some(act) = cx.nodes.as_mut().and_then(|nodes| nodes.take_due(now_us)) {
            cx.note(|| format!("NODES {act:?}"));
            cx.count(act.name());
            cx.checks.operator_words.extend(TOLD);
            let (Act::Crash(node)
            | Act::Stop(node)
            | Act::Start(node)
            | Act::Serve(node)
            | Act::Promote(node)
            | Act::Part(node)
            | Act::Heal(node)
            | Act::Terminate(node)
            | Act::Sever(node)) = act;
            for backend in
                self.backends.iter_mut().filter(|backend| backend.node == node && !backend.is_dead())
            {
                match act {
                    Act::Crash(_) => backend.crash(cx),
                    Act::Stop(_) => backend.stop(cx),
                    Act::Heal(_) => backend.heal(cx),
                    Act::Terminate(_) if cx.rng.percent(60) => backend.terminate(cx),
                    Act::Sever(_) if cx.rng.percent(80) => backend.sever(cx),
                    _ => {}
                }
            }
        }
        schedule(cx);
    }

    /// One of the connections by which the pooler follows the database ends.
    pub fn end_follower(&mut self, cx: &mut SimContext) {
        let followers: Vec<usize> =
            self.backends.iter().filter(|one| one.is_follower && !one.is_dead()).map(|one| one.pid).collect();
        if !followers.is_empty() {
            let pid = *cx.rng.pick(&followers);
            cx.count("followers ended");
            self.backends[pid].crash(cx);
        }
    }

    /// The server of the followed database is restarted.
    pub fn restart(&mut self, cx: &mut SimContext) {
        cx.count("followed servers restarted");
        cx.note(|| "the server is restarted".to_owned());
        for backend in self.backends.iter_mut().filter(|backend| !backend.is_dead()) {
            backend.stop(cx);
        }
        let now_us = cx.now_us;
        let up_in_us = 1 + cx.rng.skewed(300_000);
        cx.in_wal(|wal, rng| {
            wal.others_lose();
            wal.shut_down(rng, now_us);
            wal.due.push((up_in_us, WalEvent::Up));
        });
    }

    /// A cancel request takes effect, as `kill(pid, SIGINT)` does: on whatever that process is doing now.
    pub fn cancel(&mut self, cx: &mut SimContext, canceller: usize) {
        if let Some((pid, secret)) = self.backends[canceller].cancels.clone() {
            match self.backends.get_mut(pid) {
                Some(target) if target.secret == secret => target.cancel(cx),
                _ => cx.count("cancel requests without a target"),
            }
        }
        self.backends[canceller].cancel_done(cx);
    }

    /// Advisory locks were given up: those that have waited longest get them.
    pub fn unlocked(&mut self, cx: &mut SimContext) {
        while let Some(pid) = cx.locks.next() {
            self.backends[pid].try_lock_again(cx);
        }
    }

    /// A notification was committed: listeners are signalled one after the other, and the signalling process may be put aside
    /// between two of them (`SignalBackends` in PostgreSQL's `async.c`).
    pub fn notified(&mut self, cx: &mut SimContext) {
        for backend in self.backends.iter().filter(|backend| backend.listens()) {
            let in_us = cx.rng.skewed(500);
            cx.after(in_us, Event::Signalled(backend.pid));
        }
    }

    /// Cancel requests that are being carried out.
    #[must_use]
    pub fn cancels_open(&self) -> usize {
        self.backends.iter().filter(|backend| backend.cancels.is_some() && !backend.is_dead()).count()
    }
}
