//! A model client at work: connects, sends its script, checks what comes back.

use super::message;
use super::oracle::{AtStandbys, Oracle, Verdict};
use super::proving::Proving;
use super::script::{Ending, Script, Vanish, Wait};
use crate::sim::check::checks::PoolName;
use crate::sim::check::pairs::InUse;
use crate::sim::check::reasons::Disconnected;
use crate::sim::context::{ClientTimer, Event, LinkId, PeerEnd, PoolerEnd, SimContext};
use crate::sim::driver::{TLS_HELLO, shown};
use crate::sim::model::nodes::OLD_READ;
use crate::sim::model::nodes::xids::Told;
use crate::sim::network::net::{Dir, End};
use crate::sim::network::outbox::Outbox;
use crate::sim::network::proto::{ErrorText, Fields, Message, PROTOCOL_3_9999, SSL_REQUEST, Splitter};
use crate::sim::plan::{Mode, Plan};

/// The stage of a client's life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Has not connected yet.
    Unborn,
    /// Asked for encryption; the number of the request.
    Asking(usize),
    /// Waits for the end of the TLS handshake; then request number so-and-so is next.
    Securing(usize),
    /// Sent its startup packet.
    LoggingIn,
    /// The client is logged in.
    Running,
    /// Sent something that is not the protocol, and waits for what comes of it.
    Intruding,
    /// Gone, in whatever way.
    Gone,
}

/// One model client.
pub struct Client {
    /// The client's place among the clients.
    index: usize,
    pool: PoolName,
    script: Script,
    phase: Phase,
    link: Option<LinkId>,
    splitter: Splitter,
    oracle: Oracle,
    /// The features that it uses, as far as its script was sent.
    in_use: InUse,
    step: usize,
    waits: Option<Wait>,
    /// The step was sent with Flush at its end: answers come without ReadyForQuery.
    ends_in_flush: bool,
    out: Outbox,
    /// The number of bytes after which the client vanishes.
    vanish_after_bytes: Option<usize>,
    key: Option<Vec<u8>>,
    proving: Proving,
    /// `true` after the client was told of the negotiated protocol version.
    negotiated: bool,
    /// The time since which the client waits for the answer to its last request.
    asked_us: u64,
    /// The time since which the client was silent, with nothing to wait for, before that request.
    rested_us: u64,
    write_planned: bool,
    read_planned: bool,
    leaving: bool,
    /// `true` if the client has sent Terminate in the middle of its script.
    said_goodbye: bool,
}

/// The time that an intruder waits to be disconnected.
const INTRUDER_STAYS_US: u64 = 1_500_000;
/// The time that the last notification may take to reach even a slow client.
const NEWS_US_MAX: u64 = 10_000_000;
/// The number of bytes that a client reads at once when it is not slow.
const READ_BYTES: usize = 1 << 20;

impl Client {
    /// The client of a script.
    #[must_use]
    pub fn new(index: usize, plan: &Plan) -> Self {
        let script = plan.clients[index].clone();
        let mut oracle =
            Oracle::new(script.id, &script.parameters, plan.mode == Mode::Session, plan.keeps_sessions);
        oracle.learns_outcomes = plan.cluster.as_ref().is_some_and(|cluster| cluster.commit_outcome != "off");
        let route = plan.route_of(&script.database);
        oracle.at_standbys = match route {
            Some("standby" | "prefer-standby" | "any") => AtStandbys::All,
            Some("auto") if plan.begins_undeclared() => AtStandbys::Beginnings,
            _ => AtStandbys::Reads,
        };
        let proving = Proving::new(&script.user);
        let pool = plan.pool_of(&script.database, &script.user);
        Client {
            index,
            pool,
            script,
            phase: Phase::Unborn,
            link: None,
            splitter: Splitter::default(),
            oracle,
            in_use: InUse::default(),
            step: 0,
            waits: None,
            ends_in_flush: false,
            out: Outbox::default(),
            vanish_after_bytes: None,
            key: None,
            proving,
            negotiated: false,
            asked_us: 0,
            rested_us: 0,
            write_planned: false,
            read_planned: false,
            leaving: false,
            said_goodbye: false,
        }
    }

    /// Returns whether the client has left and will do nothing more.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.phase == Phase::Gone
    }

    /// Returns the client's number in statements.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.script.id
    }

    /// Returns the client's pool.
    #[must_use]
    pub fn pool(&self) -> PoolName {
        self.pool.clone()
    }

    /// Returns whether the client was told that it is in a transaction.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.oracle.is_bound()
    }

    /// Returns whether the client has had answers and waits for none.
    #[must_use]
    pub fn was_answered(&self) -> bool {
        self.phase == Phase::Running && self.step > 0 && self.oracle.is_settled()
    }

    /// Database and user as it asks for them.
    #[must_use]
    pub fn name(&self) -> PoolName {
        (self.script.database.clone(), self.script.user.clone())
    }

    /// Returns whether the client came over a unix socket.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        self.script.unix
    }

    /// Returns the client's description for a report.
    #[must_use]
    pub fn describe(&self) -> String {
        format!(
            "client {} {:?} at step {} of {}, {} bytes unsent, link {:?}, settled {}",
            self.script.id,
            self.phase,
            self.step,
            self.script.steps.len(),
            self.out.len(),
            self.link,
            self.oracle.is_settled()
        )
    }

    /// Logged in, between transactions, has sent all of its request, and no answer to it is on the way: since then at the latest.
    #[must_use]
    pub fn waits_for_server(&self, cx: &SimContext, before_us: u64) -> bool {
        let Some(link) = self.link.map(|link| cx.link(link)) else { return false };
        let free = self.phase == Phase::Running && !self.oracle.is_bound() && !self.leaving;
        let asked = self.out.is_empty() && link.to_pooler.is_empty() && link.to_peer.is_empty();
        // If a server listens for the client, that decides when the end of a statement is told, not the server that ran it.
        let told = || cx.plan.has_hubs() && self.oracle.lacks_ready_only();
        free && asked && link.moved_us <= before_us && !self.oracle.is_settled() && !told()
    }

    /// Returns whether a part of what the client has sent is still on its way. The pooler may have begun with what has come: a message that is too
    /// long to be waited for goes to a server piece by piece, and messages before it may be answered without the server.
    #[must_use]
    pub fn is_sending(&self, cx: &SimContext) -> bool {
        let Some(link) = self.link.map(|link| cx.link(link)) else { return false };
        let is_under_way = !self.out.is_empty() || !link.to_pooler.is_empty();
        self.phase == Phase::Running && is_under_way && !self.oracle.is_settled()
    }

    /// Runs an action that the client has planned. A cancel request is returned, and the world has to send
    /// it.
    pub fn timer(&mut self, cx: &mut SimContext, timer: ClientTimer) -> Option<Vec<u8>> {
        match timer {
            ClientTimer::Begin => self.begin(cx),
            ClientTimer::Step(step)
                if self.phase == Phase::Running && self.step == step && self.waits.is_none() =>
            {
                self.send_step(cx);
            }
            ClientTimer::Write => {
                self.write_planned = false;
                self.room(cx);
            }
            ClientTimer::Read => {
                self.read_planned = false;
                self.read(cx);
            }
            ClientTimer::Vanish if self.phase != Phase::Gone => self.vanish(cx),
            ClientTimer::Cancel(step) if self.phase == Phase::Running && self.step == step => {
                self.oracle.asked_for_cancel();
                cx.checks.cancel_asked(self.script.id);
                cx.note(|| format!("client {} asks for a cancel", self.script.id));
                return self.key.clone();
            }
            ClientTimer::Step(_) | ClientTimer::Vanish | ClientTimer::Cancel(_) => {}
        }
        None
    }

    fn begin(&mut self, cx: &mut SimContext) {
        let link = cx.open_link(PoolerEnd::Moving, PeerEnd::Client(self.index));
        self.link = Some(link);
        let in_us = 1 + cx.rng.skewed(1000);
        cx.after(in_us, Event::Accept(link));
        if let Some(garbage) = self.script.intruder.clone() {
            self.intrude(cx, &garbage);
        } else if self.script.direct_tls {
            self.secure(cx, 0);
        } else {
            self.ask(cx, 0);
        }
    }

    /// Begins the TLS handshake; request number `next` follows it.
    fn secure(&mut self, cx: &mut SimContext, next: usize) {
        self.phase = Phase::Securing(next);
        self.out.end().extend(TLS_HELLO);
        self.write(cx);
    }

    /// The TLS handshake is over.
    pub fn secured(&mut self, cx: &mut SimContext) {
        if let Phase::Securing(next) = self.phase {
            cx.count("clients with TLS");
            self.ask(cx, next);
        }
    }

    /// Sends what no client sends. The pooler throws it out or waits for more; either way no other client may notice.
    fn intrude(&mut self, cx: &mut SimContext, garbage: &[u8]) {
        cx.count("intruders");
        // Thrown out or leaving, it may cost the server it has.
        cx.checks.intruded();
        self.phase = Phase::Intruding;
        self.out.end().extend_from_slice(garbage);
        self.write(cx);
        cx.after(INTRUDER_STAYS_US, Event::Client(self.index, ClientTimer::Vanish));
    }

    /// Sends request number `at`, or the startup packet.
    fn ask(&mut self, cx: &mut SimContext, at: usize) {
        self.asked_us = cx.now_us;
        self.rested_us = cx.now_us;
        match self.script.requests.get(at) {
            Some(&code) => {
                self.phase = Phase::Asking(at);
                self.out.end().extend(message::request(code));
            }
            None => {
                self.phase = Phase::LoggingIn;
                let mut parameters = vec![
                    ("user".to_owned(), self.script.user.clone()),
                    ("database".to_owned(), self.script.database.clone()),
                ];
                parameters.extend(self.script.parameters.iter().cloned());
                self.out.end().extend(message::startup(self.script.version, &parameters));
            }
        }
        self.write(cx);
    }

    fn send_step(&mut self, cx: &mut SimContext) {
        let Some(step) = self.script.steps.get(self.step).cloned() else {
            self.leave(cx);
            return;
        };
        let messages = match step.unless_copying {
            Some(otherwise) if !self.oracle.is_copying() => otherwise,
            _ => step.messages,
        };
        for pair in
            self.in_use.send(&cx.plan, &self.script.database, &messages, (step.wait, step.cancel_after_us))
        {
            cx.count(pair);
        }
        // The data of a COPY is not a new request.
        if self.oracle.is_at_rest() && !self.oracle.is_copying() {
            self.asked_us = cx.now_us;
        }
        let before = self.out.len();
        for message in &messages {
            self.oracle.sent(message);
            message.encode(self.out.end());
        }
        self.said_goodbye |= messages.last().is_some_and(|last| last.tag == b'X');
        self.ends_in_flush = messages.last().is_some_and(|last| last.tag == b'H');
        cx.note(|| {
            format!("client {} step {} {:?} sends {messages:?}", self.script.id, self.step, step.wait)
        });
        if let Some(Vanish { step, byte, .. }) = self.script.vanish
            && step == self.step
        {
            self.vanish_after_bytes = Some((before + byte).min(self.out.len()));
        }
        if let Some(in_us) = step.cancel_after_us {
            cx.after(in_us, Event::Client(self.index, ClientTimer::Cancel(self.step)));
        }
        match step.wait {
            Wait::Nothing => self.plan_next_step(cx),
            wait => self.waits = Some(wait),
        }
        self.write(cx);
        self.go_on_if_answered(cx);
    }

    fn plan_next_step(&mut self, cx: &mut SimContext) {
        let pipelined = self.script.steps.get(self.step).is_some_and(|step| step.wait == Wait::Nothing);
        self.step += 1;
        let think_us = match self.script.steps.get(self.step) {
            Some(_) if pipelined => cx.rng.skewed(100),
            Some(step) => step.think_us,
            None => cx.rng.skewed(1000),
        };
        cx.after(think_us, Event::Client(self.index, ClientTimer::Step(self.step)));
    }

    fn go_on_if_answered(&mut self, cx: &mut SimContext) {
        if self.waits.is_some() && self.out.is_empty() && self.oracle.is_settled() {
            self.waits = None;
            self.rested_us = cx.now_us;
            self.plan_next_step(cx);
        }
    }

    /// Continues to send, because the network has room again.
    pub fn room(&mut self, cx: &mut SimContext) {
        self.write(cx);
        self.go_on_if_answered(cx);
    }

    fn write(&mut self, cx: &mut SimContext) {
        let Some(link) = self.link.filter(|_| self.phase != Phase::Gone && !self.write_planned) else {
            return;
        };
        let mut piece = self.out.len();
        if let Some(bytes_max) = self.script.pieces {
            piece = piece.min(cx.rng.index(bytes_max) + 1);
        }
        if let Some(left) = self.vanish_after_bytes {
            piece = piece.min(left);
        }
        let taken = cx.write(link, Dir::ToPooler, &self.out[..piece]);
        self.out.take(taken);
        if let Some(left) = &mut self.vanish_after_bytes {
            *left -= taken;
            if *left == 0 {
                let in_us = self.script.vanish.map_or(0, |vanish| vanish.after_us);
                self.vanish_after_bytes = None;
                self.write_planned = true; // nothing more is written
                cx.after(in_us, Event::Client(self.index, ClientTimer::Vanish));
                return;
            }
        }
        if taken == piece && !self.out.is_empty() {
            self.write_planned = true;
            let in_us = cx.rng.skewed(300);
            cx.after(in_us, Event::Client(self.index, ClientTimer::Write));
        }
        if self.out.is_empty() && self.leaving {
            self.close(cx, End::Fin);
        }
    }

    /// Reads bytes that have arrived.
    pub fn arrived(&mut self, cx: &mut SimContext) {
        match self.script.slow {
            Some((_, pause_us)) if self.phase == Phase::Running => {
                if !self.read_planned {
                    self.read_planned = true;
                    cx.after(pause_us, Event::Client(self.index, ClientTimer::Read));
                }
            }
            _ => self.read(cx),
        }
    }

    fn read(&mut self, cx: &mut SimContext) {
        let Some(link) = self.link.filter(|_| self.phase != Phase::Gone) else { return };
        let bytes_max = self.script.slow.map_or(READ_BYTES, |(bytes, _)| bytes);
        let bytes = cx.read(link, Dir::ToPeer, bytes_max);
        if !bytes.is_empty() {
            cx.note(|| format!("client {} reads {}", self.script.id, shown(&bytes)));
        }
        self.splitter.push(&bytes);
        self.digest(cx);
        if self.phase == Phase::Gone {
            return;
        }
        if cx.link(link).to_peer.readable() > 0 {
            self.arrived(cx);
        } else if let Some(end) = cx.link(link).to_peer.end() {
            cx.note(|| format!("client {} is disconnected: {end:?}", self.script.id));
            self.disconnected(cx, None);
        }
    }

    fn digest(&mut self, cx: &mut SimContext) {
        loop {
            match self.phase {
                Phase::Asking(at) => match self.splitter.byte() {
                    None => return,
                    Some(b'N') => self.ask(cx, at + 1),
                    Some(b'S') if self.script.requests[at] == SSL_REQUEST => {
                        self.secure(cx, at + 1);
                    }
                    Some(other) => {
                        self.wrong(cx, format!("'{}' as the answer to a request", other.escape_ascii()));
                        return;
                    }
                },
                Phase::LoggingIn | Phase::Running => match self.splitter.message() {
                    Ok(Some(message)) => self.take(cx, &message),
                    Ok(None) => return,
                    Err(why) => {
                        self.wrong(cx, why);
                        return;
                    }
                },
                Phase::Intruding => {
                    self.splitter = Splitter::default();
                    return;
                }
                Phase::Unborn | Phase::Securing(_) | Phase::Gone => return,
            }
        }
    }

    fn take(&mut self, cx: &mut SimContext, message: &Message) {
        cx.checks.count("messages to clients", 1);
        if self.phase == Phase::LoggingIn {
            self.take_greeting(cx, message);
            return;
        }
        if message.tag == b'A' {
            return self.notified(cx, message);
        }
        let losses = self.oracle.losses();
        let verdict = self.oracle.check(message);
        if self.oracle.losses() > losses {
            cx.count("transactions lost by sessions that go on");
        }
        if let Some((number, snapshot)) = self.oracle.take_saw()
            && let Some(wrong) =
                cx.nodes.as_mut().and_then(|nodes| nodes.saw(self.script.id, number, snapshot))
        {
            cx.fail(OLD_READ, format!("client {}: {wrong}", self.script.id));
        }
        if let Some(saw) = self.oracle.take_saw_board() {
            let (client, asked_us) = (self.script.id, self.asked_us);
            let wrong = match (&mut cx.wal, &cx.board) {
                (Some(wal), _) => wal.check.saw(client, &saw, asked_us),
                (None, Some(board)) if saw.text.is_some() => board.saw(client, saw.values[0], asked_us),
                _ => None,
            };
            if let Some((check, text)) = wrong {
                cx.fail(check, text);
            }
        }
        self.oracle.take_told().iter().for_each(|told| self.told(cx, told));
        match verdict {
            Verdict::Right => {}
            Verdict::Fatal(text) => self.disconnected(cx, Some(&text)),
            Verdict::Wrong(why) => self.wrong(cx, why),
        }
        match message.tag {
            b'D' => cx.count("rows"),
            b'E' => cx.count("errors"),
            b's' => cx.count("portals suspended"),
            b'G' => cx.count("copies in"),
            b'H' => cx.count("copies out"),
            b'V' => cx.count("function calls"),
            b'N' => cx.count("notices"),
            _ => {}
        }
        // In a pipeline the pooler learns what a session listens to when all of it is answered.
        if message.tag == b'Z' && self.oracle.is_settled() {
            cx.notify_check.told(self.script.id, self.oracle.channels());
        }
        if matches!(message.tag, b'Z' | b'G') || self.ends_in_flush {
            self.go_on_if_answered(cx);
        }
    }

    /// Checks a report about a transaction.
    fn told(&self, cx: &mut SimContext, told: &Told) {
        if let Some(board) = &mut cx.board {
            board.told(told);
        }
        if let Some(wal) = &mut cx.wal {
            wal.check.told(told);
        }
        let Some(mut nodes) = cx.nodes.take() else { return };
        let wrong = nodes.told(told, |link| cx.link(link).to_pooler.read_bytes());
        cx.nodes = Some(nodes);
        if let Some((check, text)) = wrong {
            cx.fail(check, format!("client {}: {text}", self.script.id));
        }
    }

    fn notified(&mut self, cx: &mut SimContext, message: &Message) {
        cx.count("notifications");
        let mut fields = Fields(&message.body);
        let read = (fields.int32(), fields.text(), fields.text());
        let (Some(pid), Some(channel), Some(payload)) = read else {
            return self.wrong(cx, "malformed NotificationResponse".to_owned());
        };
        if !self.oracle.may_be_notified() {
            return self.wrong(cx, format!("a notification inside of a transaction: {payload}"));
        }
        let own_pid = self.key.as_deref().and_then(|key| Fields(key).int32());
        match cx.notify_check.heard(self.script.id, channel, payload) {
            Err(why) => self.misheard(cx, &why),
            Ok(None) => {}
            Ok(Some(sender)) => {
                let own = sender == self.script.id;
                if cx.plan.mode != Mode::Session && own != (own_pid == Some(pid)) {
                    self.wrong(cx, format!("\"{payload}\" comes from process {pid}, its own is {own_pid:?}"));
                }
            }
        }
    }

    fn misheard(&mut self, cx: &mut SimContext, why: &str) {
        let text = format!("client {} at step {}: {why}", self.script.id, self.step);
        cx.fail("a client hears what it listens to: all of it, once, in order", text);
    }

    fn take_greeting(&mut self, cx: &mut SimContext, message: &Message) {
        match message.tag {
            b'R' => self.prove(cx, message),
            b'S' => {
                if let Verdict::Wrong(why) = self.oracle.parameter_status(message) {
                    self.wrong(cx, why);
                }
            }
            b'K' => self.key = Some(message.body.clone()),
            b'v' if self.script.version == PROTOCOL_3_9999 => self.negotiated = true,
            b'N' => {}
            b'E' => {
                let text = ErrorText::read(message);
                self.disconnected(cx, Some(&text));
            }
            b'Z' => self.logged_in(cx),
            _ => self.wrong(cx, format!("{message:?} in a greeting")),
        }
    }

    fn prove(&mut self, cx: &mut SimContext, message: &Message) {
        match self.proving.answer(message, &mut cx.rng) {
            Ok(bytes) => {
                self.out.end().extend(bytes);
                self.write(cx);
            }
            Err(why) => self.wrong(cx, format!("cannot log in: {why}")),
        }
    }

    fn logged_in(&mut self, cx: &mut SimContext) {
        if let Verdict::Wrong(why) = self.oracle.check_parameters() {
            self.wrong(cx, why);
        }
        if self.script.version == PROTOCOL_3_9999 && !self.negotiated {
            self.wrong(cx, "no NegotiateProtocolVersion for a version that does not exist".to_owned());
        }
        if self.key.is_none() {
            self.wrong(cx, "no BackendKeyData in the greeting".to_owned());
        }
        self.phase = Phase::Running;
        self.asked_us = cx.now_us;
        self.rested_us = cx.now_us;
        if let Some(link) = self.link {
            cx.checks.logged_in(link);
        }
        let think_us = self.script.steps.first().map_or(0, |step| step.think_us);
        cx.after(think_us, Event::Client(self.index, ClientTimer::Step(0)));
    }

    fn wrong(&mut self, cx: &mut SimContext, why: String) {
        let text = format!("client {} at step {}: {why}", self.script.id, self.step);
        cx.fail("every client gets exactly its own answers, in order", text);
    }

    fn disconnected(&mut self, cx: &mut SimContext, text: Option<&ErrorText>) {
        let Some(link) = self.link.filter(|_| self.phase != Phase::Gone) else { return };
        cx.checks.may_be_cancelled(self.script.id);
        if self.said_goodbye {
            cx.checks.vanished(true);
        }
        if self.leaving || self.said_goodbye || self.phase == Phase::Intruding {
            // It was on its way out; what the pooler made of that is no longer its business.
            self.close(cx, End::Fin);
            return;
        }
        cx.note(|| format!("client {} lost its connection: {text:?}", self.script.id));
        let case = Disconnected {
            client: self.script.id,
            link,
            pool: self.pool(),
            text,
            logged_in: self.phase == Phase::Running,
            listens: cx.notify_check.has_listened(self.script.id),
            waited_us: cx.now_us - self.asked_us,
            // What a slow client still has to read left the pooler long ago: the model cannot say when it was told all.
            rested_us: if self.script.slow.is_some() { u64::MAX } else { cx.now_us - self.rested_us },
            now_us: cx.now_us,
        };
        cx.checks.disconnected(&case);
        self.close(cx, End::Fin);
    }

    fn leave(&mut self, cx: &mut SimContext) {
        cx.checks.may_be_cancelled(self.script.id);
        if self.waits_for_news(cx) {
            return;
        }
        if self.oracle.is_bound() {
            // Only after a cancel or an error at the end of a block.
            cx.checks.vanished(true);
        }
        cx.count("clients finished");
        match self.script.ending.clone() {
            Ending::Garbage(garbage) => return self.intrude(cx, &garbage),
            Ending::Terminate => message::terminate().encode(self.out.end()),
            Ending::Eof => {}
        }
        self.leaving = true;
        self.write(cx);
    }

    /// Returns whether the client waits for a notification that it must get, and checks that this is not
    /// forever.
    fn waits_for_news(&mut self, cx: &mut SimContext) -> bool {
        let held = self.oracle.is_bound() || cx.plan.has_operator;
        let Some(missing) = cx.notify_check.missing(self.script.id).filter(|_| !held).map(str::to_owned)
        else {
            return false;
        };
        if cx.now_us > cx.notify_check.last_us() + NEWS_US_MAX {
            self.misheard(cx, &format!("never told of \"{missing}\""));
        }
        cx.after(NEWS_US_MAX / 100, Event::Client(self.index, ClientTimer::Step(self.step)));
        true
    }

    fn vanish(&mut self, cx: &mut SimContext) {
        let free = self.oracle.is_settled() && !self.oracle.is_bound() && !self.oracle.is_copying();
        let busy = !(free && self.out.is_empty());
        cx.note(|| format!("client {} vanishes (busy: {busy})", self.script.id));
        if self.phase != Phase::Intruding {
            cx.checks.vanished(busy);
        }
        self.close(cx, self.script.vanish.map_or(End::Reset, |vanish| vanish.end));
    }

    fn close(&mut self, cx: &mut SimContext, end: End) {
        self.phase = Phase::Gone;
        cx.checks.may_be_cancelled(self.script.id);
        cx.notify_check.left(self.script.id);
        if let Some(link) = self.link {
            cx.end(link, Dir::ToPooler, end);
        }
    }
}
