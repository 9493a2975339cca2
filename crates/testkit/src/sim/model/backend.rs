//! One server process of the model: a connection from its first packet to its end, in virtual time.

use std::collections::BTreeMap;

use pgweir_auth::{Guard, GuardEnv, Method, Secret, Verdict};

use super::session::{Manner, Note, Session, Step};
use super::settings::known;
use super::statement::Tag;
use crate::sim::checks::PoolName;
use crate::sim::hub::{Event, Hub, LinkId};
use crate::sim::net::{Dir, End};
use crate::sim::plan::{SCRAM_ITERATIONS, password};
use crate::sim::proto::{
    Body, CANCEL_REQUEST, Fields, GSS_REQUEST, Message, PROTOCOL_3_0, PROTOCOL_3_2, SSL_REQUEST, Splitter,
    report,
};

/// How a server process is going to end, or to lie, if not in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing special.
    None,
    /// Refuses the login, with this SQLSTATE.
    Refuses(&'static str),
    /// Dies during the login, after so many bytes.
    DiesInLogin(u64),
    /// Never says a word after the startup packet (or the cancel request).
    Hangs,
    /// Dies after so many bytes of answers, perhaps in the middle of a message.
    DiesAfterBytes(u64, End),
    /// Dies instead of sending its n-th ReadyForQuery.
    DiesBeforeReady(u32),
    /// Is terminated by an administrator at a time that is in the calendar.
    Terminated,
    /// Sends nonsense instead of its n-th ReadyForQuery; 0 is the answer to the startup packet.
    Lies(u32, Lie),
}

/// What PostgreSQL would never send, and what is plain to see wherever the stream is cut. (A well-formed message too many
/// is not: it may arrive when the next client's answer is due.)
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// A message type that does not exist.
    UnknownType,
    /// A length field of 3.
    ShortLength,
    /// A length field of 2^31-1.
    EndlessLength,
    /// A ReadyForQuery with a status that does not exist.
    UnknownStatus,
}

/// Every lie there is.
pub const LIES: [Lie; 4] = [Lie::UnknownType, Lie::ShortLength, Lie::EndlessLength, Lie::UnknownStatus];

enum Stage {
    /// Waits for a first packet.
    Starting,
    /// Waits for a password message.
    Asking(Box<Guard>, Vec<(String, String)>),
    /// Takes its time to log the client in.
    LoggingIn(Vec<(String, String)>),
    /// Serves.
    Serving(Box<Session>),
    /// Carries a cancel request, until it has taken effect.
    Cancelling,
    /// Has gone out of its mind, and stays until the pooler has had enough of it.
    Silent,
    /// Ended.
    Dead,
}

/// See the module's head.
pub struct Backend {
    /// Its number; also its process id.
    pub pid: usize,
    /// Its connection.
    pub link: LinkId,
    /// Whom it cancels.
    pub cancels: Option<(usize, Vec<u8>)>,
    /// The secret of its cancel key.
    pub secret: Vec<u8>,
    stage: Stage,
    fate: Fate,
    splitter: Splitter,
    /// PostgreSQL's send buffer: kept back until flushed or full.
    kept: Vec<u8>,
    /// Flushed and not taken by the network.
    sending: Vec<u8>,
    sent_bytes: u64,
    readies: u32,
    pool: Option<PoolName>,
    /// The client whose transaction or message group is open.
    owner: Option<u32>,
    /// The client whose statement ran last.
    last_client: Option<u32>,
    used: bool,
    /// The first client that used a prepared statement, by its name here.
    prepared_by: BTreeMap<String, u32>,
    alarm: u64,
    sleeping: bool,
    /// It answered S to SSLRequest.
    wants_tls: bool,
}

/// PostgreSQL's PQ_SEND_BUFFER_SIZE.
const SEND_BUFFER_BYTES: usize = 8192;

impl Backend {
    /// A process that was just started for a connection.
    #[must_use]
    pub fn new(pid: usize, link: LinkId, fate: Fate, secret: Vec<u8>) -> Self {
        Backend {
            pid,
            link,
            cancels: None,
            secret,
            stage: Stage::Starting,
            fate,
            splitter: Splitter::default(),
            kept: Vec::new(),
            sending: Vec::new(),
            sent_bytes: 0,
            readies: 0,
            pool: None,
            owner: None,
            last_client: None,
            used: false,
            prepared_by: BTreeMap::new(),
            alarm: 0,
            sleeping: false,
            wants_tls: false,
        }
    }

    /// It has ended.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.stage, Stage::Dead)
    }

    /// Logged in, nothing to do, no transaction, nothing on its way in either direction.
    #[must_use]
    pub fn is_idle(&self, hub: &Hub) -> bool {
        let link = hub.link(self.link);
        let rests = matches!(&self.stage, Stage::Serving(session) if session.is_idle());
        let quiet = link.to_pooler.is_empty() && link.to_peer.is_empty() && self.splitter.rest().is_empty();
        rests && quiet && self.kept.is_empty() && self.sending.is_empty()
    }

    /// Logged in and serving.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        matches!(self.stage, Stage::Serving(_))
    }

    /// The pool it serves.
    #[must_use]
    pub fn pool(&self) -> Option<&PoolName> {
        self.pool.as_ref()
    }

    /// It was asked for something since its login, or since the pooler reset its session.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used
    }

    /// The client of its last statement.
    #[must_use]
    pub fn last_client(&self) -> Option<u32> {
        self.last_client
    }

    /// A cancel request arrives: hits whatever runs.
    pub fn cancel(&mut self, hub: &mut Hub) {
        let Stage::Serving(session) = &mut self.stage else { return };
        hub.note(|| format!("server {} is cancelled, runs {:?}", self.pid, session.running()));
        if let Some(tag) = session.cancel() {
            self.sleeping = false;
            hub.checks.cancel_hit(self.pid, &tag);
            self.go_on(hub);
        }
    }

    /// An alarm went off: a statement, a login or a cancel has taken its time.
    pub fn alarm(&mut self, hub: &mut Hub, alarm: u64) {
        if alarm != self.alarm || !self.sleeping {
            return;
        }
        self.sleeping = false;
        match std::mem::replace(&mut self.stage, Stage::Dead) {
            Stage::Cancelling => hub.end(self.link, Dir::ToPooler, End::Fin),
            Stage::LoggingIn(parameters) => self.log_in(hub, &parameters),
            stage => {
                self.stage = stage;
                self.go_on(hub);
            }
        }
    }

    /// The time of its fate has come: an administrator ends it.
    pub fn terminate(&mut self, hub: &mut Hub) {
        if let Stage::Serving(_) = self.stage {
            let text = "terminating connection due to administrator command";
            self.keep(hub, &report(b'E', "FATAL", "57P01", text));
            self.flush(hub);
            self.die(hub, End::Fin);
        }
    }

    fn sleep(&mut self, hub: &mut Hub, us: u64) {
        self.alarm += 1;
        self.sleeping = true;
        hub.after(us, Event::Backend(self.pid, self.alarm));
    }

    /// Does what can be done now: sends, works, reads.
    pub fn go_on(&mut self, hub: &mut Hub) {
        loop {
            self.push_out(hub);
            if self.sleeping || !self.sending.is_empty() {
                return;
            }
            let moved = match &mut self.stage {
                Stage::Dead | Stage::LoggingIn(_) | Stage::Cancelling | Stage::Silent => {
                    return self.look_for_end(hub);
                }
                Stage::Starting => self.start(hub),
                Stage::Asking(..) => self.take_password(hub),
                Stage::Serving(session) => {
                    let step = session.step();
                    self.serve(hub, step)
                }
            };
            if !moved && !self.read(hub) {
                return;
            }
        }
    }

    /// Reads what has arrived; `false` if nothing has.
    fn read(&mut self, hub: &mut Hub) -> bool {
        let slow_us = hub.plan.server.read_us_max;
        let bytes_max = if slow_us > 0 { 600 } else { SEND_BUFFER_BYTES };
        let bytes = hub.read(self.link, Dir::ToPeer, bytes_max);
        if bytes.is_empty() {
            self.look_for_end(hub);
            return false;
        }
        self.splitter.push(&bytes);
        if slow_us > 0 {
            let us = hub.rng.below(slow_us);
            self.sleep(hub, us);
        }
        true
    }

    fn look_for_end(&mut self, hub: &mut Hub) {
        if !self.is_dead() && hub.link(self.link).to_peer.end().is_some() {
            hub.note(|| format!("server {} sees its client go", self.pid));
            if self.fate == Fate::Hangs && self.pool.is_some() {
                hub.checks.login_failed(self.pool.as_ref(), hub.now_us);
            }
            self.stage = Stage::Dead;
            hub.end(self.link, Dir::ToPooler, End::Fin);
        }
    }

    fn start(&mut self, hub: &mut Hub) -> bool {
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
        let in_us = hub.rng.skewed(hub.plan.server.cancel_us_max);
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
        let env = GuardEnv { mock_seed: &[9; 32], scram_iterations: SCRAM_ITERATIONS };
        let verdict =
            Guard::begin(method, &pool.1, Some(&secret), &env, &mut |out: &mut [u8]| hub.rng.fill(out));
        self.follow(hub, verdict, parameters);
        true
    }

    fn take_password(&mut self, hub: &mut Hub) -> bool {
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

    fn log_in(&mut self, hub: &mut Hub, parameters: &[(String, String)]) {
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
        self.sent_bytes = 0;
        self.send(hub, &greeting);
        if self.fate == Fate::Terminated {
            let in_us = hub.rng.skewed(400_000);
            hub.after(in_us, Event::Fate(self.pid));
        }
        self.go_on(hub);
    }

    fn reject(&mut self, hub: &mut Hub, code: &str, text: &str) -> bool {
        self.send(hub, &encoded(&report(b'E', "FATAL", code, text)));
        self.close(hub, End::Fin);
        false
    }

    /// Carries out what the session does next; `false` if it needs input and none is there.
    fn serve(&mut self, hub: &mut Hub, step: Step) -> bool {
        self.pass_notes_on(hub);
        match step {
            Step::Say(message) if message.tag == b'Z' => self.say_ready(hub, &message),
            Step::Say(message) => self.keep(hub, &message),
            Step::Flush => self.flush(hub),
            Step::Wait(us) => self.sleep(hub, us),
            Step::Quiet => {}
            Step::Quit => self.close(hub, End::Fin),
            Step::NeedInput => return self.feed(hub),
        }
        true
    }

    fn feed(&mut self, hub: &mut Hub) -> bool {
        match self.splitter.message() {
            Ok(Some(message)) => {
                hub.note(|| format!("server {} takes {message:?}", self.pid));
                self.used = true;
                if let Stage::Serving(session) = &mut self.stage {
                    session.feed(message);
                }
                true
            }
            Ok(None) => false,
            Err(why) => {
                hub.checks.malformed(self.pid, &why);
                self.reject(hub, "08P01", &why);
                true
            }
        }
    }

    fn pass_notes_on(&mut self, hub: &mut Hub) {
        let Stage::Serving(session) = &mut self.stage else { return };
        for note in session.take_notes() {
            hub.note(|| format!("server {} {note:?}", self.pid));
            if let Note::Bound { name, tag: Tag { client: Some(client), .. } } = &note
                && *self.prepared_by.entry(name.clone()).or_insert(*client) != *client
            {
                hub.count("prepared statements shared");
            }
            if matches!(&note, Note::Hidden { what, .. } if what == "DiscardAll") {
                self.used = false;
            }
            hub.checks.noted(self.pid, &note, &mut self.owner);
            self.last_client = self.owner.or(self.last_client);
        }
    }

    fn say_ready(&mut self, hub: &mut Hub, message: &Message) {
        self.readies += 1;
        if message.body == b"I" {
            self.owner = None;
        }
        match self.fate {
            Fate::DiesBeforeReady(n) if n == self.readies => {
                self.flush(hub);
                self.die(hub, End::Fin);
            }
            Fate::Lies(n, lie) if n == self.readies => self.lie(hub, lie),
            _ => self.keep(hub, message),
        }
    }

    /// Says what no server says, and is no server any more.
    fn lie(&mut self, hub: &mut Hub, lie: Lie) {
        hub.note(|| format!("server {} lies: {lie:?}", self.pid));
        let mut bytes = Vec::new();
        match lie {
            Lie::UnknownType => Message { tag: b'%', body: vec![0; 9] }.encode(&mut bytes),
            Lie::ShortLength => bytes.extend([b'Z', 0, 0, 0, 3]),
            Lie::EndlessLength => bytes.extend([b'Z', 0x7f, 0xff, 0xff, 0xff, b'I']),
            Lie::UnknownStatus => Message { tag: b'Z', body: vec![b'Q'] }.encode(&mut bytes),
        }
        self.kept.extend(bytes);
        self.flush(hub);
        if let Some(pool) = self.pool.as_ref().filter(|_| self.readies > 0) {
            hub.checks.server_failed(pool);
        }
        self.stage = Stage::Silent;
    }

    fn keep(&mut self, hub: &mut Hub, message: &Message) {
        message.encode(&mut self.kept);
        if self.kept.len() >= SEND_BUFFER_BYTES {
            self.flush(hub);
        }
    }

    fn flush(&mut self, hub: &mut Hub) {
        let kept = std::mem::take(&mut self.kept);
        self.send(hub, &kept);
    }

    fn send(&mut self, hub: &mut Hub, bytes: &[u8]) {
        self.sending.extend_from_slice(bytes);
        self.push_out(hub);
    }

    /// Gives the network what it takes; dies on the way if that is its fate.
    fn push_out(&mut self, hub: &mut Hub) {
        if self.sending.is_empty() {
            return;
        }
        let mut upto = self.sending.len();
        let doomed = match self.fate {
            Fate::DiesAfterBytes(bytes, end)
                if self.is_serving() && self.sent_bytes + upto as u64 >= bytes =>
            {
                upto = usize::try_from(bytes - self.sent_bytes).unwrap_or(0);
                Some(end)
            }
            _ => None,
        };
        let taken = hub.write(self.link, Dir::ToPooler, &self.sending[..upto]);
        self.sent_bytes += taken as u64;
        self.sending.drain(..taken);
        if let Some(end) = doomed.filter(|_| taken == upto) {
            self.die(hub, end);
        }
    }

    /// Dies where that may cost a client its connection.
    fn die(&mut self, hub: &mut Hub, end: End) {
        hub.note(|| format!("server {} dies", self.pid));
        if let Some(pool) = &self.pool {
            hub.checks.server_failed(pool);
        }
        self.close(hub, end);
    }

    fn close(&mut self, hub: &mut Hub, end: End) {
        self.stage = Stage::Dead;
        self.sending.clear();
        self.kept.clear();
        hub.end(self.link, Dir::ToPooler, end);
    }
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}
