//! The beginning of a server process: first packets, authentication, greeting; or a cancel request, and that is all.

use pgweir_auth::{Guard, GuardEnv, Method, Secret, Verdict};

use super::backend::{Backend, Stage};
use super::followed::FOLLOWER;
use super::nodes::{Nodes, WATCHER};
use super::outcome::ServerOutcome;
use super::session::{Balanced, Behaviour, Session};
use crate::sim::context::{Event, SimContext};
use crate::sim::model::state::settings::known;
use crate::sim::network::net::End;
use crate::sim::network::proto::{
    Body, CANCEL_REQUEST, Fields, GSS_REQUEST, Message, PROTOCOL_3_0, PROTOCOL_3_2, SSL_REQUEST,
};
use crate::sim::plan::{SCRAM_ITERATIONS, Theme, password};

impl Backend {
    pub(super) fn start(&mut self, cx: &mut SimContext) -> bool {
        let packet = match self.splitter.first_packet() {
            Ok(Some(packet)) => {
                if self.wants_tls && !cx.link(self.link).is_tls {
                    cx.fail("TLS where it was agreed", format!("server {} got plain text", self.pid));
                }
                packet
            }
            Ok(None) => return false,
            Err(why) => return self.reject(cx, "08P01", &why),
        };
        let mut fields = Fields(&packet);
        match fields.int32() {
            Some(SSL_REQUEST) if cx.plan.server.speaks_tls => {
                self.wants_tls = true;
                self.send(cx, b"S");
            }
            Some(SSL_REQUEST | GSS_REQUEST) => self.send(cx, b"N"),
            Some(CANCEL_REQUEST) => self.take_cancel(cx, &mut fields),
            Some(version @ (PROTOCOL_3_0 | PROTOCOL_3_2)) => {
                self.agree_on_version(cx, version);
                return self.take_startup(cx, &mut fields);
            }
            other => return self.reject(cx, "0A000", &format!("unsupported frontend protocol {other:?}")),
        }
        true
    }

    /// Servers before PostgreSQL 18 know 3.0 only. They name the version whole, not its minor number alone, and give short
    /// keys.
    fn agree_on_version(&mut self, cx: &mut SimContext, version: i32) {
        if version == PROTOCOL_3_0 || !cx.plan.server.speaks_3_2 {
            self.secret.truncate(4);
        }
        if version == PROTOCOL_3_2 && !cx.plan.server.speaks_3_2 {
            let negotiate = Body::new().int32(PROTOCOL_3_0).int32(0).message(b'v');
            self.send(cx, &encoded(&negotiate));
        }
    }

    fn take_cancel(&mut self, cx: &mut SimContext, fields: &mut Fields<'_>) {
        let pid = fields.int32().and_then(|pid| usize::try_from(pid).ok()).unwrap_or(usize::MAX);
        self.cancels = Some((pid, fields.0.to_vec()));
        self.stage = Stage::Cancelling;
        cx.count("cancel requests at servers");
        if self.outcome == ServerOutcome::Hangs {
            return;
        }
        let at_most_us = cx.plan.server.cancel_us_max;
        // A signal that comes late hits the client that was queued next.
        let late = cx.plan.theme == Theme::Faults;
        let in_us = if late { cx.rng.below(at_most_us) } else { cx.rng.skewed(at_most_us) };
        cx.after(in_us, Event::CancelFires(self.pid));
    }

    /// The cancel request has taken effect; its connection ends.
    pub fn cancel_done(&mut self, cx: &mut SimContext) {
        let in_us = cx.rng.skewed(cx.plan.server.cancel_us_max);
        self.sleep(cx, in_us);
    }

    fn take_startup(&mut self, cx: &mut SimContext, fields: &mut Fields<'_>) -> bool {
        let mut parameters = Vec::new();
        let (mut user, mut database) = (String::new(), String::new());
        while let Some(name) = fields.text().filter(|name| !name.is_empty()) {
            let value = fields.text().unwrap_or("").to_owned();
            match name {
                "user" => user = value,
                "database" => database = value,
                "replication" if cx.wal.is_some() => {}
                name if known(name).is_some() => parameters.push((name.to_owned(), value)),
                other => {
                    let text = format!("unrecognized configuration parameter \"{other}\"");
                    return self.reject(cx, "42704", &text);
                }
            }
        }
        let pool = (database, user);
        self.is_watch = cx.nodes.is_some() && pool.1 == WATCHER;
        self.is_follower = cx.wal.is_some() && pool.1 == FOLLOWER;
        if !self.is_watch && !self.is_follower {
            self.pool = Some(pool.clone());
            let has_changed = cx.nodes.as_ref().is_some_and(|nodes| nodes.has_changed_role(self.node));
            cx.checks.server_named(self.link, pool.clone(), has_changed);
        }
        match self.outcome {
            ServerOutcome::Refuses(code) => {
                cx.checks.login_failed(Some(&pool), cx.now_us);
                return self.reject(cx, code, "the login is refused");
            }
            ServerOutcome::Lies(0, lie) => {
                cx.checks.login_failed(Some(&pool), cx.now_us);
                self.lie(cx, lie);
                return true;
            }
            ServerOutcome::Hangs => {
                cx.checks.login_hangs(self.link);
                self.stage = Stage::Silent;
                return true;
            }
            _ => {}
        }
        let method = match cx.rng.below(100) {
            0..55 => Method::Trust,
            55..75 => Method::Plain,
            75..88 => Method::Md5,
            _ => Method::ScramSha256,
        };
        let secret = Secret::parse(&password(&pool.1));
        let env = GuardEnv { mock_seed: &[9; 32], scram_iterations: SCRAM_ITERATIONS, end_point: None };
        let verdict =
            Guard::begin(method, &pool.1, Some(&secret), &env, &mut |out: &mut [u8]| cx.rng.fill(out));
        self.follow(cx, verdict, parameters);
        true
    }

    pub(super) fn take_password(&mut self, cx: &mut SimContext) -> bool {
        let Ok(Some(message)) = self.splitter.message() else { return false };
        let Stage::Asking(guard, parameters) = std::mem::replace(&mut self.stage, Stage::Dead) else {
            return false;
        };
        if message.tag == b'X' {
            self.close(cx, End::Fin);
            return true;
        }
        if message.tag != b'p' {
            cx.fail(
                "the pooler logs in to servers",
                format!("server {}: {message:?} as a password", self.pid),
            );
        }
        let verdict = guard.handle(&message.body, &mut |out: &mut [u8]| cx.rng.fill(out));
        self.follow(cx, verdict, parameters);
        true
    }

    fn follow(&mut self, cx: &mut SimContext, verdict: Verdict, parameters: Vec<(String, String)>) {
        match verdict {
            Verdict::Ask(guard, question) => {
                self.stage = Stage::Asking(Box::new(guard), parameters);
                self.send(cx, &question);
            }
            Verdict::Proven { send, .. } => {
                self.send(cx, &send);
                self.begin_login(cx, parameters);
            }
            Verdict::Refused(refusal) => {
                cx.fail("the pooler logs in to servers", format!("server {}: {}", self.pid, refusal.text()));
                self.reject(cx, "28P01", "password authentication failed");
            }
        }
    }

    fn begin_login(&mut self, cx: &mut SimContext, parameters: Vec<(String, String)>) {
        self.stage = Stage::LoggingIn(parameters);
        let in_us = cx.rng.skewed(cx.plan.server.login_us_max);
        self.sleep(cx, in_us);
    }

    /// Returns the work that the pooler may bring to the process by itself: reads, if it is at a standby and its database has
    /// `route=auto`.
    fn balanced(&self, cx: &SimContext) -> Balanced {
        let database = self.pool.as_ref().map(|(database, _)| database.as_str());
        let route = database.and_then(|database| cx.plan.route_of(database));
        let in_recovery = cx.nodes.as_ref().is_some_and(|nodes| nodes.nodes[self.node].in_recovery);
        match route {
            Some("auto") if in_recovery && cx.plan.begins_undeclared() => Balanced::ReadsUndeclared,
            Some("auto") if in_recovery => Balanced::Reads,
            _ => Balanced::Nothing,
        }
    }

    pub(super) fn log_in(&mut self, cx: &mut SimContext, parameters: &[(String, String)]) {
        let pid = u32::try_from(self.pid).expect("few processes");
        let in_recovery = |nodes: &Nodes| nodes.nodes[self.node].in_recovery;
        let behaviour = Behaviour {
            reports_early: cx.plan.server.reports_early,
            in_hot_standby: cx.nodes.as_ref().map(in_recovery),
            balanced: self.balanced(cx),
            are_compared: cx.plan.follow().is_some_and(|follow| follow.verify > 0),
        };
        let mut session = Session::new(pid, parameters, behaviour);
        let mut greeting = Vec::new();
        session.greeting(&self.secret).iter().for_each(|message| message.encode(&mut greeting));
        if let ServerOutcome::DiesInLogin(bytes) = self.outcome {
            let upto = usize::try_from(bytes).unwrap_or(0) % greeting.len();
            greeting.truncate(upto);
            cx.checks.login_failed(self.pool.as_ref(), cx.now_us);
            self.send(cx, &greeting);
            self.close(cx, End::Reset);
            return;
        }
        self.stage = match self.is_follower {
            true => Stage::Following(Box::default()),
            false => Stage::Serving(Box::new(session)),
        };
        (self.sent_bytes, self.greeting_bytes) = (0, greeting.len() as u64);
        self.send(cx, &greeting);
        if self.outcome == ServerOutcome::Terminated {
            let in_us = cx.rng.skewed(400_000);
            cx.after(in_us, Event::Outcome(self.pid));
        }
        self.go_on(cx);
    }
}

pub(super) fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}
