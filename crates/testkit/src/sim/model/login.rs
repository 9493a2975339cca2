//! The beginning of a server process: first packets, authentication, greeting; or a cancel request, and that is all.

use pgweir_auth::{Guard, GuardEnv, Method, Secret, Verdict};

use super::backend::{Backend, Stage};
use super::fate::Fate;
use super::session::{Manner, Session};
use super::settings::known;
use crate::sim::hub::{Event, Hub};
use crate::sim::net::End;
use crate::sim::plan::{SCRAM_ITERATIONS, Theme, password};
use crate::sim::proto::{
    Body, CANCEL_REQUEST, Fields, GSS_REQUEST, Message, PROTOCOL_3_0, PROTOCOL_3_2, SSL_REQUEST,
};

impl Backend {
    pub(super) fn start(&mut self, hub: &mut Hub) -> bool {
        let packet = match self.splitter.first_packet() {
            Ok(Some(packet)) => {
                if self.wants_tls && !hub.link(self.link).is_tls {
                    hub.fail("TLS where it was agreed", format!("server {} got plain text", self.pid));
                }
                packet
            }
            Ok(None) => return false,
            Err(why) => return self.reject(hub, "08P01", &why),
        };
        let mut fields = Fields(&packet);
        match fields.int32() {
            Some(SSL_REQUEST) if hub.plan.server.speaks_tls => {
                self.wants_tls = true;
                self.send(hub, b"S");
            }
            Some(SSL_REQUEST | GSS_REQUEST) => self.send(hub, b"N"),
            Some(CANCEL_REQUEST) => self.take_cancel(hub, &mut fields),
            Some(version @ (PROTOCOL_3_0 | PROTOCOL_3_2)) => {
                self.agree_on_version(hub, version);
                return self.take_startup(hub, &mut fields);
            }
            other => return self.reject(hub, "0A000", &format!("unsupported frontend protocol {other:?}")),
        }
        true
    }

    /// Servers before PostgreSQL 18 know 3.0 only. They name the version whole, not its minor number alone, and give short
    /// keys.
    fn agree_on_version(&mut self, hub: &mut Hub, version: i32) {
        if version == PROTOCOL_3_0 || !hub.plan.server.speaks_3_2 {
            self.secret.truncate(4);
        }
        if version == PROTOCOL_3_2 && !hub.plan.server.speaks_3_2 {
            let negotiate = Body::new().int32(PROTOCOL_3_0).int32(0).message(b'v');
            self.send(hub, &encoded(&negotiate));
        }
    }

    fn take_cancel(&mut self, hub: &mut Hub, fields: &mut Fields<'_>) {
        let pid = fields.int32().and_then(|pid| usize::try_from(pid).ok()).unwrap_or(usize::MAX);
        self.cancels = Some((pid, fields.0.to_vec()));
        self.stage = Stage::Cancelling;
        hub.count("cancel requests at servers");
        if self.fate == Fate::Hangs {
            return;
        }
        let at_most_us = hub.plan.server.cancel_us_max;
        // A signal that comes late hits the client that was aboard next.
        let late = hub.plan.theme == Theme::Perils;
        let in_us = if late { hub.rng.below(at_most_us) } else { hub.rng.skewed(at_most_us) };
        hub.after(in_us, Event::CancelFires(self.pid));
    }

    /// The cancel request has taken effect; its connection ends.
    pub fn cancel_done(&mut self, hub: &mut Hub) {
        let in_us = hub.rng.skewed(hub.plan.server.cancel_us_max);
        self.sleep(hub, in_us);
    }

    fn take_startup(&mut self, hub: &mut Hub, fields: &mut Fields<'_>) -> bool {
        let mut parameters = Vec::new();
        let (mut user, mut database) = (String::new(), String::new());
        while let Some(name) = fields.text().filter(|name| !name.is_empty()) {
            let value = fields.text().unwrap_or("").to_owned();
            match name {
                "user" => user = value,
                "database" => database = value,
                name if known(name).is_some() => parameters.push((name.to_owned(), value)),
                other => {
                    let text = format!("unrecognized configuration parameter \"{other}\"");
                    return self.reject(hub, "42704", &text);
                }
            }
        }
        let pool = (database, user);
        self.pool = Some(pool.clone());
        hub.checks.server_named(self.link, pool.clone());
        match self.fate {
            Fate::Refuses(code) => {
                hub.checks.login_failed(Some(&pool), hub.now_us);
                return self.reject(hub, code, "the login is refused");
            }
            Fate::Lies(0, lie) => {
                hub.checks.login_failed(Some(&pool), hub.now_us);
                self.lie(hub, lie);
                return true;
            }
            Fate::Hangs => {
                hub.checks.login_hangs(self.link);
                self.stage = Stage::Silent;
                return true;
            }
            _ => {}
        }
        let method = match hub.rng.below(100) {
            0..55 => Method::Trust,
            55..75 => Method::Plain,
            75..88 => Method::Md5,
            _ => Method::ScramSha256,
        };
        let secret = Secret::parse(&password(&pool.1));
        let env = GuardEnv { mock_seed: &[9; 32], scram_iterations: SCRAM_ITERATIONS, end_point: None };
        let verdict =
            Guard::begin(method, &pool.1, Some(&secret), &env, &mut |out: &mut [u8]| hub.rng.fill(out));
        self.follow(hub, verdict, parameters);
        true
    }

    pub(super) fn take_password(&mut self, hub: &mut Hub) -> bool {
        let Ok(Some(message)) = self.splitter.message() else { return false };
        let Stage::Asking(guard, parameters) = std::mem::replace(&mut self.stage, Stage::Dead) else {
            return false;
        };
        if message.tag == b'X' {
            self.close(hub, End::Fin);
            return true;
        }
        if message.tag != b'p' {
            hub.fail(
                "the pooler logs in to servers",
                format!("server {}: {message:?} as a password", self.pid),
            );
        }
        let verdict = guard.handle(&message.body, &mut |out: &mut [u8]| hub.rng.fill(out));
        self.follow(hub, verdict, parameters);
        true
    }

    fn follow(&mut self, hub: &mut Hub, verdict: Verdict, parameters: Vec<(String, String)>) {
        match verdict {
            Verdict::Ask(guard, question) => {
                self.stage = Stage::Asking(Box::new(guard), parameters);
                self.send(hub, &question);
            }
            Verdict::Proven { send, .. } => {
                self.send(hub, &send);
                self.begin_login(hub, parameters);
            }
            Verdict::Refused(refusal) => {
                hub.fail("the pooler logs in to servers", format!("server {}: {}", self.pid, refusal.text()));
                self.reject(hub, "28P01", "password authentication failed");
            }
        }
    }

    fn begin_login(&mut self, hub: &mut Hub, parameters: Vec<(String, String)>) {
        self.stage = Stage::LoggingIn(parameters);
        let in_us = hub.rng.skewed(hub.plan.server.login_us_max);
        self.sleep(hub, in_us);
    }

    pub(super) fn log_in(&mut self, hub: &mut Hub, parameters: &[(String, String)]) {
        let pid = u32::try_from(self.pid).expect("few processes");
        let manner = Manner { reports_early: hub.plan.server.reports_early };
        let mut session = Session::new(pid, parameters, manner);
        let mut greeting = Vec::new();
        session.welcome(&self.secret).iter().for_each(|message| message.encode(&mut greeting));
        if let Fate::DiesInLogin(bytes) = self.fate {
            let upto = usize::try_from(bytes).unwrap_or(0) % greeting.len();
            greeting.truncate(upto);
            hub.checks.login_failed(self.pool.as_ref(), hub.now_us);
            self.send(hub, &greeting);
            self.close(hub, End::Reset);
            return;
        }
        self.stage = Stage::Serving(Box::new(session));
        (self.sent_bytes, self.greeting_bytes) = (0, greeting.len() as u64);
        self.send(hub, &greeting);
        if self.fate == Fate::Terminated {
            let in_us = hub.rng.skewed(400_000);
            hub.after(in_us, Event::Fate(self.pid));
        }
        self.go_on(hub);
    }
}

pub(super) fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}
