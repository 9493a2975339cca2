//! One server process of the model: a connection from its first packet to its end, in virtual time. Its beginning is in
//! `login.rs`.

use std::collections::{BTreeMap, BTreeSet};

use pgweir_auth::Guard;

use super::followed::follower::Follower;
use super::login::encoded;
use super::nodes::lag::{LAG_QUERY, LagAnswer};
use super::outcome::{Lie, Moment, ServerOutcome};
use super::session::{Note, Session, Step};
use super::statement::{Inquiry, Tag};
use crate::sim::check::checks::PoolName;
use crate::sim::context::{Event, LinkId, PoolerEnd, SimContext};
use crate::sim::network::net::{Dir, End};
use crate::sim::network::outbox::Outbox;
use crate::sim::network::proto::{Message, Splitter, report};
use crate::sim::plan::Mode;

/// The stage of a process.
pub(super) enum Stage {
    /// Waits for a first packet.
    Starting,
    /// Waits for a password message.
    Asking(Box<Guard>, Vec<(String, String)>),
    /// Takes its time to log the client in.
    LoggingIn(Vec<(String, String)>),
    /// The process serves a session.
    Serving(Box<Session>),
    /// The process serves a connection by which the pooler follows the database.
    Following(Box<Follower>),
    /// Carries a cancel request, until it has taken effect.
    Cancelling,
    /// Has gone out of its mind, and stays until the pooler has had enough of it.
    Silent,
    /// The process has ended.
    Dead,
}

/// Whether the client may have left state in the session that the pooler cannot know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Doubt {
    None,
    /// The client may have left such state since the pooler last asked for the session's contents.
    New,
    /// The pooler has asked since then, and PostgreSQL could not tell it of that state.
    Audited,
    /// A DISCARD ALL that ends that state is next.
    Discards,
    /// A DISCARD ALL has ended that state. The pooler knows it if it asks before the client's next statement.
    Discarded,
}

/// See the module's head.
pub struct Backend {
    /// The process's number, which is also its process id.
    pub pid: usize,
    /// The node that it is at; 0 where there is no cluster.
    pub node: usize,
    /// The pooler asks it what its node is, and nothing else.
    pub is_watch: bool,
    /// The pooler follows the database by it.
    pub is_follower: bool,
    /// The process's connection.
    pub link: LinkId,
    /// The process that a cancel request names, with the key.
    pub cancels: Option<(usize, Vec<u8>)>,
    /// The secret of its cancel key.
    pub secret: Vec<u8>,
    pub(super) stage: Stage,
    pub(super) outcome: ServerOutcome,
    pub(super) splitter: Splitter,
    /// PostgreSQL's send buffer: kept back until flushed or full.
    kept: Vec<u8>,
    /// Flushed and not taken by the network.
    sending: Outbox,
    pub(super) sent_bytes: u64,
    /// The end of the login, of these.
    pub(super) greeting_bytes: u64,
    readies: u32,
    pub(super) pool: Option<PoolName>,
    /// The client whose transaction or message group is open.
    owner: Option<u32>,
    /// The time at which the last message group was done.
    rested_us: u64,
    used: bool,
    doubt: Doubt,
    /// More was there when the last answer was complete, and whose that was.
    followed: bool,
    answered: Option<u32>,
    /// The client of the message group that the process reads, or has read last, after the group has named
    /// it; and whether that was the group's last message.
    serves: Option<u32>,
    group_read: bool,
    /// The time at which the pooler began to send that group.
    group_sent_us: u64,
    /// Bytes that it has read.
    read_bytes: u64,
    /// The changes that are not committed yet: those of the running message group, and those of the
    /// transaction.
    wrote: Vec<Tag>,
    changes: Vec<(u32, u32)>,
    /// The first client that used a prepared statement, by its name here.
    prepared_by: BTreeMap<String, u32>,
    /// `true` if the process listens for all clients of its pool: it was asked to, and never for a client's
    /// own request.
    is_notify_listener: bool,
    /// The lock that it waits for, and since when its statement waits.
    pub(super) waits_for: Option<u64>,
    pub(super) waits_since_us: Option<u64>,
    /// The channels that the process listens to.
    pub(super) listening: BTreeSet<String>,
    /// Notifications that it has looked at.
    pub(super) heard: usize,
    /// `true` if the process was signalled since then, or sent a notification itself.
    pub(super) signalled: bool,
    alarm: u64,
    pub(super) sleeping: bool,
    /// `true` if the process answered S to SSLRequest.
    pub(super) wants_tls: bool,
}

/// The number of changes of which one is to a table that is not in the log.
const UNRECORDED_ONE_IN: u32 = 3;

/// PostgreSQL's PQ_SEND_BUFFER_SIZE.
const SEND_BUFFER_BYTES: usize = 8192;

/// The time after the end of an answer in which messages still arrive that were sent before that end was seen.
const FOLLOWS_US: u64 = 50_000;

/// A Bind that is longer may come to the pooler in pieces, and leave it in pieces.
const LONG_BIND_BYTES: usize = 2_048;

/// The number of bytes after the Parse of a group with one statement.
const GROUP_END_BYTES: usize = 64;

impl Backend {
    /// A process that was just started for a connection.
    #[must_use]
    pub fn new(pid: usize, link: LinkId, outcome: ServerOutcome, secret: Vec<u8>, node: usize) -> Self {
        Backend {
            pid,
            node,
            is_watch: false,
            is_follower: false,
            link,
            cancels: None,
            secret,
            stage: Stage::Starting,
            outcome,
            splitter: Splitter::default(),
            kept: Vec::new(),
            sending: Outbox::default(),
            sent_bytes: 0,
            greeting_bytes: 0,
            readies: 0,
            pool: None,
            owner: None,
            rested_us: 0,
            used: false,
            doubt: Doubt::None,
            followed: false,
            answered: None,
            serves: None,
            group_read: false,
            group_sent_us: 0,
            read_bytes: 0,
            wrote: Vec::new(),
            changes: Vec::new(),
            prepared_by: BTreeMap::new(),
            is_notify_listener: false,
            waits_for: None,
            waits_since_us: None,
            listening: BTreeSet::new(),
            heard: 0,
            signalled: false,
            alarm: 0,
            sleeping: false,
            wants_tls: false,
        }
    }

    /// Returns whether the process has ended.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.stage, Stage::Dead)
    }

    /// Logged in, nothing to do, no transaction, nothing on its way in either direction.
    #[must_use]
    pub fn is_idle(&self, cx: &SimContext) -> bool {
        let link = cx.link(self.link);
        let rests = matches!(&self.stage, Stage::Serving(session) if session.is_idle());
        let quiet = link.to_pooler.is_empty() && link.to_peer.is_empty() && self.splitter.rest().is_empty();
        rests && quiet && self.kept.is_empty() && self.sending.is_empty()
    }

    /// Returns whether the process watches a node, or is about to.
    #[must_use]
    pub fn is_watching(&self) -> bool {
        self.is_watch || self.pool.is_none()
    }

    /// Returns whether the login is still going on.
    #[must_use]
    pub fn is_being_opened(&self) -> bool {
        matches!(self.stage, Stage::Starting | Stage::Asking(..) | Stage::LoggingIn(_))
            || self.outcome == ServerOutcome::Hangs && !self.is_dead()
    }

    /// Returns whether the process has sent no more than its greeting, and has got no request yet.
    #[must_use]
    pub fn is_greeting(&self) -> bool {
        self.is_serving() && !self.used && self.sent_bytes <= self.greeting_bytes
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

    /// Returns whether the process got a request since its login, or since the pooler reset its session.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.used
    }

    /// Returns whether the process works for this client, or for one that is not known yet.
    #[must_use]
    pub fn may_serve(&self, client: u32, cx: &SimContext) -> bool {
        let whose = self.owner.is_none_or(|owner| owner == client);
        self.is_serving() && !self.is_idle(cx) && whose
    }

    /// Returns whether the session holds state that does not move, so that it belongs to one client until
    /// that leaves. A client that listens may keep its server, too.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.is_notify_listener
            || self.doubt != Doubt::None
            || self.listens()
            || matches!(&self.stage, Stage::Serving(session) if session.is_bound_to_process())
    }

    /// Returns the bytes that the process has read and not begun with.
    #[must_use]
    pub fn unbegun(&self) -> &[u8] {
        self.splitter.rest()
    }

    /// Returns whether the statement has waited for a lock since then or longer.
    #[must_use]
    pub fn waits_for_lock_since(&self, us: u64) -> bool {
        self.waits_since_us.is_some_and(|since_us| since_us <= us)
    }

    /// Returns whether the process works for this client.
    #[must_use]
    pub fn works_for(&self, client: u32, cx: &SimContext) -> bool {
        self.owner == Some(client) && self.is_serving() && !self.is_idle(cx)
    }

    /// Returns whether this client was the last one that the process worked for.
    #[must_use]
    pub fn has_served(&self, client: u32) -> bool {
        self.answered == Some(client) || self.serves == Some(client)
    }

    /// A cancel request arrives: hits whatever runs.
    pub fn cancel(&mut self, cx: &mut SimContext) {
        let Stage::Serving(session) = &mut self.stage else { return };
        cx.note(|| format!("server {} is cancelled, runs {:?}", self.pid, session.running()));
        if let Some(tag) = session.cancel() {
            self.sleeping = false;
            self.waits_for = None;
            self.waits_since_us = None;
            cx.locks.withdraw(self.pid);
            if self.has_queued_behind(cx) {
                cx.count("cancels hit with clients queued behind");
            }
            cx.checks.cancel_hit(self.pid, &tag);
            self.go_on(cx);
        }
    }

    /// An alarm went off: a statement, a login or a cancel has taken its time.
    pub fn alarm(&mut self, cx: &mut SimContext, alarm: u64) {
        if alarm != self.alarm || !self.sleeping {
            return;
        }
        if self.is_cut_off(cx) {
            return self.sleep(cx, 10_000);
        }
        self.sleeping = false;
        match std::mem::replace(&mut self.stage, Stage::Dead) {
            Stage::Cancelling => cx.end(self.link, Dir::ToPooler, End::Fin),
            Stage::LoggingIn(parameters) => self.log_in(cx, &parameters),
            stage => {
                self.stage = stage;
                self.go_on(cx);
            }
        }
    }

    /// The time of its outcome has come: an administrator ends it.
    pub fn terminate(&mut self, cx: &mut SimContext) {
        if let Stage::Serving(_) = self.stage {
            let text = "terminating connection due to administrator command";
            self.keep(cx, &report(b'E', "FATAL", "57P01", text));
            self.flush(cx);
            self.die(cx, End::Fin);
        }
    }

    /// Returns whether the process waits until its transaction is visible.
    fn is_committing(&self, cx: &SimContext) -> bool {
        cx.wal.as_ref().is_some_and(|wal| wal.is_committing(self.pid))
    }

    /// Returns whether no bytes pass between the process's node and the pooler.
    fn is_cut_off(&self, cx: &SimContext) -> bool {
        cx.nodes.as_ref().is_some_and(|nodes| nodes.is_isolated(self.node))
    }

    /// Ends the process because its node has crashed.
    pub fn crash(&mut self, cx: &mut SimContext) {
        if self.is_watch || self.is_follower {
            self.close(cx, End::Reset);
        } else {
            self.die(cx, End::Reset);
        }
    }

    /// Ends the process because its node is stopped.
    pub fn stop(&mut self, cx: &mut SimContext) {
        match self.stage {
            Stage::Serving(_) if !self.is_watch => self.terminate(cx),
            _ => self.crash(cx),
        }
    }

    /// Cuts the connection in between: the pooler sees the end, and the process goes on a moment later.
    pub fn sever(&mut self, cx: &mut SimContext) {
        if !self.is_serving() || self.is_watch || self.sleeping {
            return;
        }
        cx.note(|| format!("server {} is cut off", self.pid));
        if let Some(pool) = &self.pool {
            cx.checks.server_failed(pool);
        }
        if !self.used {
            cx.checks.login_failed(self.pool.as_ref(), cx.now_us);
        }
        cx.cut(self.link, Dir::ToPooler);
        let in_us = *cx.rng.pick(&[1, 5_000, 50_000, 500_000]);
        self.sleep(cx, in_us);
    }

    /// Continues after the node is back. If the connection was given up in the meantime, the process does
    /// nothing more.
    pub fn heal(&mut self, cx: &mut SimContext) {
        if cx.link(self.link).pooler == PoolerEnd::Gone {
            self.close(cx, End::Reset);
        } else {
            self.go_on(cx);
        }
    }

    pub(super) fn sleep(&mut self, cx: &mut SimContext, us: u64) {
        self.alarm += 1;
        self.sleeping = true;
        cx.after(us, Event::Backend(self.pid, self.alarm));
    }

    /// Does what can be done now: sends, works, reads.
    pub fn go_on(&mut self, cx: &mut SimContext) {
        if self.is_cut_off(cx) {
            return;
        }
        loop {
            self.push_out(cx);
            if self.sleeping || self.waits_for.is_some() || !self.sending.is_empty() || self.is_committing(cx)
            {
                return;
            }
            let moved = match &mut self.stage {
                Stage::Dead | Stage::LoggingIn(_) | Stage::Cancelling | Stage::Silent => {
                    return self.look_for_end(cx);
                }
                Stage::Starting => self.start(cx),
                Stage::Asking(..) => self.take_password(cx),
                Stage::Following(_) => self.go_on_following(cx),
                Stage::Serving(session) => {
                    if let Some(nodes) = &mut cx.nodes {
                        let snapshot = nodes.snapshot(self.node, cx.now_us);
                        session.look(snapshot, nodes.nodes[self.node].in_recovery);
                    }
                    if let Some(board) = &cx.board {
                        session.look_at_board([board.value(), 0, 0, 0]);
                    }
                    if let Some(wal) = &cx.wal {
                        session.look_at_board(wal.check.values());
                    }
                    let step = session.step();
                    self.serve(cx, step)
                }
            };
            if !moved && !self.read(cx) {
                return;
            }
        }
    }

    /// Reads what has arrived; `false` if nothing has.
    fn read(&mut self, cx: &mut SimContext) -> bool {
        let slow_us = cx.plan.server.read_us_max;
        let bytes_max = if slow_us > 0 { 600 } else { SEND_BUFFER_BYTES };
        let bytes = cx.read(self.link, Dir::ToPeer, bytes_max);
        if bytes.is_empty() {
            self.look_for_end(cx);
            return false;
        }
        self.splitter.push(&bytes);
        self.read_bytes += bytes.len() as u64;
        if slow_us > 0 {
            let us = cx.rng.below(slow_us);
            self.sleep(cx, us);
        }
        true
    }

    fn look_for_end(&mut self, cx: &mut SimContext) {
        if !self.is_dead() && cx.link(self.link).to_peer.end().is_some() {
            cx.note(|| format!("server {} sees its client go", self.pid));
            self.stage = Stage::Dead;
            self.forget_others(cx);
            cx.end(self.link, Dir::ToPooler, End::Fin);
        }
    }

    pub(super) fn reject(&mut self, cx: &mut SimContext, code: &str, text: &str) -> bool {
        self.send(cx, &encoded(&report(b'E', "FATAL", code, text)));
        self.close(cx, End::Fin);
        false
    }

    /// Carries out what the session does next; `false` if it needs input and none is there.
    fn serve(&mut self, cx: &mut SimContext, step: Step) -> bool {
        self.pass_notes_on(cx);
        match step {
            Step::Say(message) if message.tag == b'Z' => self.say_ready(cx, &message),
            Step::Say(message) => self.keep(cx, &message),
            Step::Flush => self.flush(cx),
            Step::Wait(_) if self.is_at_work() && self.meets_its_fate(cx, Moment::AtWork) => {}
            Step::Wait(us) => self.sleep(cx, us),
            Step::Lock { key, waits } => self.ask_for_lock(cx, key, waits),
            Step::Ask(inquiry) => self.ask_node(cx, &inquiry),
            Step::Quiet => {}
            Step::Quit => self.close(cx, End::Fin),
            Step::NeedInput => return self.tell_at_rest(cx) || self.feed(cx),
        }
        true
    }

    /// A client's statement is being carried out.
    fn is_at_work(&self) -> bool {
        matches!(&self.stage, Stage::Serving(session) if session.running().is_some_and(|tag| tag.client.is_some()))
    }

    fn feed(&mut self, cx: &mut SimContext) -> bool {
        let at = self.read_bytes - self.splitter.rest().len() as u64;
        match self.splitter.message() {
            Ok(Some(message)) => {
                cx.note(|| format!("server {} takes {message:?}", self.pid));
                if self.is_watch && message.tag == b'Q' {
                    if message.body.starts_with(LAG_QUERY.as_bytes()) {
                        self.say_its_lag(cx);
                    } else {
                        self.say_what_it_is(cx);
                    }
                    return true;
                }
                self.used = true;
                self.note_doubt(&message);
                // The end of a COPY is the last message that a Query has.
                let ends = matches!(message.tag, b'Q' | b'S' | b'F' | b'c' | b'f');
                if std::mem::replace(&mut self.group_read, ends) {
                    self.serves = None;
                    self.group_sent_us = cx.link_mut(self.link).sent.take(at).unwrap_or(cx.now_us);
                }
                self.serves = first_named(&message.body).or(self.serves);
                if let Stage::Serving(session) = &mut self.stage {
                    session.feed(message);
                }
                true
            }
            Ok(None) => false,
            Err(why) => {
                cx.checks.malformed(self.pid, &why);
                self.reject(cx, "08P01", &why);
                true
            }
        }
    }

    /// Notes messages after which the session's state is in doubt: a function that is called by its number
    /// may leave any, so may what an EXECUTE runs, and the values of a long Bind may name any. A DISCARD ALL ends a
    /// doubt that the pooler had before it, unless the client has sent more after it, which the pooler may have read before.
    fn note_doubt(&mut self, message: &Message) {
        let beginning = &message.body[..message.body.len().min(32)];
        let has = |text: &[u8]| beginning.windows(text.len()).any(|word| word == text);
        let (discards, executes) = (has(b"DISCARD ALL"), has(b"EXECUTE "));
        // Behind a simple query not even a Flush: the pooler may keep the rest of its group.
        let end_bytes = if message.tag == b'Q' { 0 } else { GROUP_END_BYTES };
        if executes || message.tag == b'F' || message.tag == b'B' && message.body.len() > LONG_BIND_BYTES {
            self.doubt = Doubt::New;
        } else if discards && self.doubt == Doubt::Audited && self.splitter.rest().len() <= end_bytes {
            self.doubt = Doubt::Discards;
        }
    }

    fn say_what_it_is(&mut self, cx: &mut SimContext) {
        let now_us = cx.now_us;
        let answer = cx.nodes.as_mut().map(|nodes| nodes.answer(self.node, now_us)).unwrap_or_default();
        answer.iter().for_each(|message| self.keep(cx, message));
        self.flush(cx);
    }

    fn say_its_lag(&mut self, cx: &mut SimContext) {
        let (node, now_us) = (self.node, cx.now_us);
        match cx.nodes.as_mut().map_or(LagAnswer::Silent, |nodes| nodes.answer_lag(node, now_us)) {
            LagAnswer::Says(messages) => {
                cx.count("lags told");
                messages.iter().for_each(|message| self.keep(cx, message));
                self.flush(cx);
            }
            LagAnswer::Silent => {}
            LagAnswer::Dies => self.close(cx, End::Reset),
        }
    }

    /// A client's statement runs here.
    fn runs_at_node(&self, cx: &mut SimContext) {
        // What was sent before the pooler gave the server up is carried out all the same, as far as it was received.
        let is_given_up = cx.link(self.link).pooler == PoolerEnd::Gone;
        // What follows at once was sent before, too.
        let follows = cx.now_us < self.rested_us + FOLLOWS_US;
        let begins = self.owner.is_none() && !is_given_up && !follows;
        let now_us = cx.now_us;
        let database = self.pool.as_ref().map(|(database, _)| database.as_str()).unwrap_or_default();
        let route = cx.plan.route_of(database).unwrap_or("primary");
        let wrong = cx
            .nodes
            .as_mut()
            .and_then(|nodes| nodes.runs(self.node, begins.then_some(self.group_sent_us), now_us, route));
        if let Some(text) = wrong {
            cx.fail("what is new goes to a node of its route", format!("server {}: {text}", self.pid));
        }
        // In session pooling, and with what cannot move, a client keeps its server.
        let chooses = begins && cx.plan.mode != Mode::Session && !self.is_kept();
        let sent_us = self.group_sent_us;
        let chosen = cx.nodes.as_ref().filter(|_| chooses).and_then(|nodes| nodes.chosen(self.node, sent_us));
        if let Some(text) = chosen {
            cx.fail("no read begins at a standby that is behind", format!("server {}: {text}", self.pid));
        }
        if cx.nodes.as_ref().is_some_and(|nodes| nodes.nodes[self.node].in_recovery) {
            cx.count("statements at standbys");
        }
    }

    fn pass_notes_on(&mut self, cx: &mut SimContext) {
        let Stage::Serving(session) = &mut self.stage else { return };
        let notes = session.take_notes();
        for note in notes {
            cx.note(|| format!("server {} {note:?}", self.pid));
            if let Note::Bound { name, tag: Tag { client: Some(client), .. } } = &note
                && *self.prepared_by.entry(name.clone()).or_insert(*client) != *client
            {
                cx.count("prepared statements shared");
            }
            if let (Note::Runs(_) | Note::Hidden { .. }, Some(nodes)) = (&note, &mut cx.nodes) {
                nodes.begins(self.node, self.pid);
            }
            match &note {
                Note::Told { what, client } => self.tell_others(cx, what, *client),
                Note::Unlocked(key) => self.gave_up_lock(cx, *key),
                Note::Runs(Tag { client: Some(client), .. }) => {
                    self.look_for_strangers(cx, *client);
                    self.runs_at_node(cx);
                    self.is_notify_listener = false;
                    cx.checks.server_listens(self.link, false);
                }
                Note::Misplaced(what) => {
                    let text = format!("server {}: {what} at node{}", self.pid, self.node);
                    cx.fail("nothing but reads goes to standbys by itself", text);
                }
                Note::Refused => cx.count("reads refused by standbys"),
                Note::Hidden { what, .. } if what.starts_with("Everything") => {
                    self.doubt = match self.doubt {
                        Doubt::New | Doubt::Audited => Doubt::Audited,
                        Doubt::Discards | Doubt::Discarded | Doubt::None => Doubt::None,
                    };
                }
                Note::Hidden { what, .. } if what.starts_with("Hold(Listen") && self.answered.is_none() => {
                    self.is_notify_listener = true;
                    cx.checks.server_listens(self.link, true);
                }
                _ => {}
            }
            match &note {
                Note::Wrote(tag) => {
                    self.wrote.push(*tag);
                    self.changes.extend(tag.client.map(|client| (client, tag.number)));
                    self.takes_number(cx, tag);
                }
                Note::Ended { kept } => self.commit_changes(cx, *kept),
                _ => {}
            }
            if let Note::Runs(Tag { client: Some(client), .. }) = &note {
                if std::mem::take(&mut self.followed) && self.answered.is_some_and(|other| other != *client) {
                    cx.count("statements sent behind others");
                }
                self.doubt = match self.doubt {
                    _ if self.answered.is_some_and(|other| other != *client) => Doubt::None,
                    Doubt::Discards => Doubt::Discarded,
                    Doubt::Discarded => Doubt::Audited,
                    other => other,
                };
                self.answered = Some(*client);
            }
            if matches!(&note, Note::Hidden { what, .. } if what == "DiscardAll") {
                self.used = false;
            }
            cx.checks.noted(self.pid, &note, &mut self.owner);
        }
    }

    fn say_ready(&mut self, cx: &mut SimContext, message: &Message) {
        self.readies += 1;
        if message.body == b"I" {
            self.owner = None;
            self.rested_us = cx.now_us;
            self.followed = !self.splitter.rest().is_empty();
        }
        self.commit(cx, message.body == b"I");
        let idle = message.body == b"I";
        if idle {
            self.tell_notifications(cx);
        }
        if idle && (self.meets_its_fate(cx, Moment::InAnswer) || self.meets_its_fate(cx, Moment::BeforeReady))
        {
            return;
        }
        match self.outcome {
            ServerOutcome::DiesBeforeReady(n) if n == self.readies => {
                self.flush(cx);
                self.die(cx, End::Fin);
            }
            ServerOutcome::Lies(n, lie) if lie.needs_queued_behind() => {
                if self.readies >= n && message.body == b"I" && self.has_queued_behind(cx) {
                    cx.count("broken trust");
                    self.lie(cx, lie);
                } else {
                    self.keep(cx, message);
                }
            }
            ServerOutcome::Lies(n, lie) if n == self.readies => self.lie(cx, lie),
            _ => self.keep(cx, message),
        }
        if idle {
            self.meets_its_fate(cx, Moment::AfterReady);
        }
    }

    /// Dies if it is to die in this moment, and the time has come.
    fn meets_its_fate(&mut self, cx: &mut SimContext, now: Moment) -> bool {
        let ServerOutcome::DiesPipelined(left, moment, end) = self.outcome else { return false };
        if moment != now || !self.has_queued_behind(cx) {
            return false;
        }
        self.outcome = ServerOutcome::DiesPipelined(left.saturating_sub(1), moment, end);
        if left > 1 {
            return false;
        }
        cx.count(moment.name());
        match moment {
            Moment::AtWork => self.kept.clear(),
            Moment::InAnswer => self.kept.truncate(self.kept.len() / 2),
            Moment::BeforeReady | Moment::AfterReady => {}
        }
        self.flush(cx);
        self.die(cx, end);
        true
    }

    /// A statement has changed something: its transaction has a number from here on.
    fn takes_number(&self, cx: &mut SimContext, tag: &Tag) {
        let (process, now_us) = (self.pid, cx.now_us);
        let change = (tag.client.unwrap_or_default(), tag.number);
        cx.in_wal(|wal, rng| wal.write(rng, process, change));
        let Some(nodes) = &mut cx.nodes else { return };
        let is_recorded = !tag.number.is_multiple_of(UNRECORDED_ONE_IN);
        if nodes.writes(self.node, self.pid, change, is_recorded, now_us) {
            cx.count("numbers given out again");
        }
    }

    /// The pooler asks for a transaction.
    fn ask_node(&mut self, cx: &mut SimContext, inquiry: &Inquiry) {
        let now_us = cx.now_us;
        if let Inquiry::Outcome { xid, .. } = inquiry {
            self.runs_at_node(cx);
            if cx.nodes.as_ref().is_some_and(|nodes| nodes.is_reused(self.node, *xid)) {
                cx.count("numbers asked for that were given out again");
            }
        }
        if let (Inquiry::Node, Some(wal)) = (inquiry, &cx.wal) {
            let reply = wal.node();
            if let Stage::Serving(session) = &mut self.stage {
                session.replied(reply);
            }
            return;
        }
        let Some(nodes) = &mut cx.nodes else { return };
        let reply = nodes.reply(self.node, self.pid, inquiry, now_us);
        if let Inquiry::Outcome { .. } = inquiry {
            cx.count(match &reply {
                Ok(columns) if columns[0].as_deref() == Some("in progress") => {
                    "transactions asked for in progress"
                }
                Ok(_) => "transactions asked for",
                Err(_) => "transactions asked for in the future",
            });
        }
        if let Stage::Serving(session) = &mut self.stage {
            session.replied(reply);
        }
    }

    /// A transaction is over: what it changed counts from here on, if it was committed.
    fn commit_changes(&mut self, cx: &mut SimContext, kept: bool) {
        let (now_us, changes) = (cx.now_us, std::mem::take(&mut self.changes));
        let sent_bytes =
            cx.link(self.link).to_pooler.taken_bytes() + (self.sending.len() + self.kept.len()) as u64;
        if let Some(board) = cx.board.as_mut().filter(|_| kept) {
            board.commits(&changes, now_us);
        }
        let process = self.pid;
        cx.in_wal(|wal, rng| wal.end(rng, process, kept));
        let Some(nodes) = &mut cx.nodes else { return };
        if !kept {
            return nodes.rolls_back(self.pid);
        }
        if let Some((check, text)) =
            nodes.commits(self.node, self.pid, changes, (self.link, sent_bytes), (self.group_sent_us, now_us))
        {
            cx.fail(check, text);
        }
    }

    /// A transaction, perhaps of one statement, is over.
    fn commit(&mut self, cx: &mut SimContext, idle: bool) {
        for tag in self.wrote.drain(..) {
            if let (Some(client), true) = (tag.client, idle) {
                cx.checks.wrote(client, tag.number);
            }
        }
    }

    /// Returns whether the next bytes, including those on their way, belong to another client than the
    /// current ones.
    fn has_queued_behind(&self, cx: &SimContext) -> bool {
        let Some(serves) = self.serves else { return false };
        let mut bytes = self.splitter.rest().to_vec();
        cx.link(self.link).to_peer.unread().for_each(|piece| bytes.extend_from_slice(piece));
        first_named(&bytes).is_some_and(|next| next != serves)
    }

    /// Says what no server says, and is no server any more.
    pub(super) fn lie(&mut self, cx: &mut SimContext, lie: Lie) {
        cx.note(|| format!("server {} lies: {lie:?}", self.pid));
        self.kept.extend(lie.bytes());
        self.flush(cx);
        if let Some(pool) = self.pool.as_ref().filter(|_| self.readies > 0) {
            cx.checks.server_failed(pool);
        }
        self.stage = Stage::Silent;
        self.forget_others(cx);
    }

    pub(super) fn keep(&mut self, cx: &mut SimContext, message: &Message) {
        if message.tag == b'E' {
            self.wrote.clear();
        }
        message.encode(&mut self.kept);
        if self.kept.len() >= SEND_BUFFER_BYTES {
            self.flush(cx);
        }
    }

    pub(super) fn flush(&mut self, cx: &mut SimContext) {
        let kept = std::mem::take(&mut self.kept);
        self.send(cx, &kept);
    }

    pub(super) fn send(&mut self, cx: &mut SimContext, bytes: &[u8]) {
        self.sending.end().extend_from_slice(bytes);
        self.push_out(cx);
    }

    /// Gives the network what it takes; dies on the way if that is its outcome.
    fn push_out(&mut self, cx: &mut SimContext) {
        if self.sending.is_empty() {
            return;
        }
        let mut upto = self.sending.len();
        let doomed = match self.outcome {
            ServerOutcome::DiesAfterBytes(bytes, end)
                if self.is_serving() && self.sent_bytes + upto as u64 >= bytes =>
            {
                upto = usize::try_from(bytes - self.sent_bytes).unwrap_or(0);
                Some(end)
            }
            _ => None,
        };
        let taken = cx.write(self.link, Dir::ToPooler, &self.sending[..upto]);
        self.sent_bytes += taken as u64;
        self.sending.take(taken);
        if let Some(end) = doomed.filter(|_| taken == upto) {
            self.die(cx, end);
        }
    }

    /// Dies where that may cost a client its connection. Where the pooler may not have got all of the greeting, its login has
    /// failed: that is told to every client that waits, not to one.
    fn die(&mut self, cx: &mut SimContext, end: End) {
        cx.note(|| format!("server {} dies", self.pid));
        let greeting_lost = match end {
            End::Fin => self.sent_bytes < self.greeting_bytes,
            End::Reset => !self.used,
        };
        if greeting_lost {
            cx.checks.login_failed(self.pool.as_ref(), cx.now_us);
        }
        if let Some(pool) = &self.pool {
            cx.checks.server_failed(pool);
        }
        self.close(cx, end);
    }

    pub(super) fn close(&mut self, cx: &mut SimContext, end: End) {
        self.stage = Stage::Dead;
        self.forget_others(cx);
        self.sending = Outbox::default();
        self.kept.clear();
        cx.end(self.link, Dir::ToPooler, end);
    }
}

/// The first client that is named in what was sent to a server.
fn first_named(bytes: &[u8]) -> Option<u32> {
    let text = String::from_utf8_lossy(bytes);
    text.split("c=").skip(1).find_map(|text| text.split_once(" n=")?.0.parse().ok())
}
