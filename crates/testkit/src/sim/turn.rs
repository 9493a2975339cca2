//! A worker's turn, as an event loop takes it: what has arrived is handed in, servers are handed out, then everything is
//! written.

use pgweir_core::driver::{ConnId, WorkerId};

use super::context::{Event, LinkId, SimContext};
use super::driver::{Inbound, SimDriver, TLS_HELLO, shown, tls_info};
use super::subject::Subject;
use super::world::{World, now, place};
use crate::sim::network::net::{Dir, End};

impl<E: Subject> World<E> {
    pub(super) fn tick(&mut self, worker: WorkerId) {
        let at = place(worker);
        self.sim_workers[at].tick_planned = false;
        let mut inbox = std::mem::take(&mut self.sim_workers[at].inbox);
        self.shuffle(&mut inbox);
        let now = now(&self.cx);
        self.engines[at].begin_tick(now);
        for inbound in inbox {
            self.hand_in(at, inbound);
        }
        if self.engines[at].deadline().is_some_and(|at_us| at_us <= now.mono_us) {
            self.turn(at, |engine, d| engine.timeout(d));
        }
        self.turn(at, |engine, d| engine.end_tick(d));
        let sim_worker = &mut self.sim_workers[at];
        for conn in std::mem::take(&mut sim_worker.dirty) {
            if sim_worker.write_out(&mut self.cx, conn) {
                sim_worker.deliver(&mut self.cx, Inbound::Drained(conn));
            }
        }
        self.rearm(at);
    }

    pub(super) fn turn(&mut self, at: usize, verb: impl FnOnce(&mut E, &mut SimDriver<'_>)) {
        verb(
            &mut self.engines[at],
            &mut SimDriver { sim_worker: &mut self.sim_workers[at], cx: &mut self.cx },
        );
    }

    /// Readiness is reported in no particular order between connections.
    fn shuffle(&mut self, inbox: &mut [Inbound]) {
        for i in 1..inbox.len() {
            if inbox[i].conn() != inbox[i - 1].conn() && self.cx.rng.percent(30) {
                inbox.swap(i, i - 1);
            }
        }
    }

    fn hand_in(&mut self, at: usize, inbound: Inbound) {
        if inbound.conn().is_some_and(|conn| self.sim_workers[at].any_sock(conn).is_none()) {
            return;
        }
        let is_known = inbound.conn().is_none_or(|conn| self.sim_workers[at].sock(conn).is_some());
        match inbound {
            Inbound::Writable(conn) => {
                if self.sim_workers[at].write_out(&mut self.cx, conn) {
                    self.turn(at, |engine, d| engine.drained(d, conn));
                }
            }
            _ if !is_known => {}
            Inbound::Drained(conn) => {
                let Some(sock) = self.sim_workers[at].sock_mut(conn) else { return };
                if sock.out.is_empty() {
                    self.turn(at, |engine, d| engine.drained(d, conn));
                } else {
                    // More was sent since: the machine is told when that is gone, too.
                    sock.stuck = true;
                }
            }
            Inbound::Accepted(conn, peer) => self.turn(at, |engine, d| engine.accepted(d, conn, peer)),
            Inbound::Adopted(conn, handoff) => self.turn(at, |engine, d| engine.adopted(d, conn, handoff)),
            Inbound::Connected(conn) => {
                self.turn(at, |engine, d| engine.connected(d, conn, "10.0.0.2:4711".to_owned()));
            }
            Inbound::Secured(conn) => self.turn(at, |engine, d| engine.tls_established(d, conn, tls_info())),
            Inbound::Mail(mail) => self.turn(at, |engine, d| engine.mail(d, mail)),
            Inbound::DialFailed(conn, why) => {
                self.sim_workers[at].remove(conn);
                self.turn(at, |engine, d| engine.closed(d, conn, why));
            }
            Inbound::Readable(conn) => self.read(at, conn),
        }
    }

    /// Reads a connection as an event loop does: until nothing is left, reads are paused, or it has had enough for once.
    fn read(&mut self, at: usize, conn: ConnId) {
        while let Some(sock) = self.sim_workers[at].sock(conn) {
            let (Some(link), paused, side) = (sock.link, sock.paused, sock.side) else { return };
            if let Some(hello) = sock.hello {
                return self.shake_hands(at, conn, link, hello);
            }
            let end = self.cx.link(link).to_pooler.end();
            if paused && !(end == Some(End::Reset) && self.cx.rng.percent(50)) {
                return;
            }
            let bytes_max = self.read_size();
            let bytes = if paused { Vec::new() } else { self.cx.read(link, Dir::ToPooler, bytes_max) };
            if bytes.is_empty() {
                if let Some(end) = end {
                    self.ended(at, conn, link, end);
                }
                return;
            }
            self.cx.note(|| {
                format!("{:?} {side:?} {conn:?} received {}", self.sim_workers[at].id, shown(&bytes))
            });
            self.turn(at, |engine, d| engine.received(d, conn, &bytes));
            if self.cx.rng.percent(20) {
                self.sim_workers[at].deliver(&mut self.cx, Inbound::Readable(conn));
                return;
            }
        }
    }

    /// Takes the client's hello; once it is complete the handshake takes its time.
    fn shake_hands(&mut self, at: usize, conn: ConnId, link: LinkId, hello: usize) {
        let missing = TLS_HELLO.len().saturating_sub(hello);
        let got = hello + self.cx.read(link, Dir::ToPooler, missing).len();
        if let Some(sock) = self.sim_workers[at].sock_mut(conn) {
            sock.hello = Some(got);
        }
        if missing > 0 && got >= TLS_HELLO.len() {
            let in_us = 1 + self.cx.rng.below(2_000);
            self.cx.after(in_us, Event::TlsDone(self.sim_workers[at].id, conn));
        } else if missing > 0
            && let Some(end) = self.cx.link(link).to_pooler.end()
        {
            self.ended(at, conn, link, end);
        }
    }

    fn read_size(&mut self) -> usize {
        let tiny = self.cx.plan.net.tiny_reads_percent;
        if self.cx.rng.percent(tiny) { 1 + self.cx.rng.index(8) } else { 65_536 }
    }

    fn ended(&mut self, at: usize, conn: ConnId, link: LinkId, end: End) {
        self.cx.note(|| format!("{:?} {conn:?} ended: {end:?}", self.sim_workers[at].id));
        self.sim_workers[at].remove(conn);
        self.cx.checks.over(link);
        self.cx.end(link, Dir::ToPeer, End::Fin);
        self.turn(at, |engine, d| engine.closed(d, conn, SimContext::closed_by(end)));
    }

    pub(super) fn deadline(&mut self, worker: WorkerId) {
        let sim_worker = &mut self.sim_workers[place(worker)];
        if sim_worker.alarm_us.is_some_and(|at_us| at_us <= self.cx.now_us) {
            sim_worker.alarm_us = None;
            sim_worker.plan_tick(&mut self.cx);
        }
    }

    /// Puts the engine's deadline into the calendar if it is nearer than what is there.
    pub(super) fn rearm(&mut self, at: usize) {
        let Some(deadline_us) = self.engines[at].deadline() else { return };
        let sim_worker = &mut self.sim_workers[at];
        let at_us = deadline_us.max(self.cx.now_us + 1);
        if sim_worker.alarm_us.is_none_or(|planned_us| at_us < planned_us) {
            sim_worker.alarm_us = Some(at_us);
            self.cx.at(at_us, Event::Deadline(sim_worker.id));
        }
    }
}
