//! One session of the model PostgreSQL, at the level of messages: what comes in, what goes out, in which order.
//!
//! The rules are those of <https://www.postgresql.org/docs/current/protocol-flow.html> and `tcop/postgres.c`: implicit
//! transactions, messages ignored until Sync after an error, portals that end with their transaction, COPY that swallows
//! Sync and Flush. A session knows no time and no network: [`Session::step`] says what happens next, and the caller waits
//! or sends. The same code serves twice, as the server behind the pooler and as the reference a client holds its answers
//! against.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::exec::Run;
use super::nodes::Snapshot;
use super::nodes::xids::Reply;
use super::statement::{Hold, Inquiry, Statement, Tag, Verb, parse};
use crate::sim::check::board;
use crate::sim::check::followed::{DEFINITIONS, Values, values_read};
use crate::sim::model::followed::asked;
use crate::sim::model::state::holdings::{Holdings, Told};
use crate::sim::model::state::prepared::{Portal, Prepared};
use crate::sim::model::state::settings::Settings;
use crate::sim::network::proto::{Body, Fields, Message, report};

/// The next step of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends a message (PostgreSQL keeps it in its buffer until the buffer is full or flushed).
    Say(Message),
    /// Sends what is buffered.
    Flush,
    /// Works for so many microseconds.
    Wait(u64),
    /// Asks for an advisory lock: the caller says with [`Session::told_of_lock`] whether it got it, or waits until it has.
    Lock {
        /// The lock's key.
        key: u64,
        /// `true` if the session waits until it gets the lock.
        waits: bool,
    },
    /// Asks its node, which answers by [`Session::replied`].
    Ask(Inquiry),
    /// Did something that no client sees.
    Quiet,
    /// Has nothing to do until more messages come.
    NeedInput,
    /// Ended itself.
    Quit,
}

/// A report to an observer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Note {
    /// A statement, or a function call, starts.
    Runs(Tag),
    /// A statement that changes something was carried out; whether that stays is decided with its transaction.
    Wrote(Tag),
    /// A statement without an owner starts: the pooler's own.
    Hidden {
        /// The text of the statement.
        what: String,
        /// A transaction block or a message group was open before it.
        bound: bool,
    },
    /// A transaction was committed that did something for other sessions.
    Told {
        /// The report.
        what: Told,
        /// The client whose statement did it; `None` for a statement of the pooler.
        client: Option<u32>,
    },
    /// A transaction is over, perhaps of one statement.
    Ended {
        /// `true` if the transaction was committed.
        kept: bool,
    },
    /// An advisory lock was given up, once.
    Unlocked(u64),
    /// A named prepared statement is bound.
    Bound {
        /// The statement's name.
        name: String,
        /// The tag of the parameters, which names their client.
        tag: Tag,
    },
    /// A client's statement starts at a standby that only reads are sent to, and is none: what it is.
    Misplaced(String),
    /// A standby refuses a read that the primary would run.
    Refused,
    /// A query text arrived that the model does not understand and no client wrote.
    NotUnderstood(String),
    /// Copy data of another client arrived in a COPY.
    ForeignCopyData {
        /// The tag of the COPY, which names its client.
        owner: Tag,
        /// The beginning of the data.
        data: String,
    },
}

/// Transaction block, as ReadyForQuery reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Block {
    None,
    Open,
    Failed,
}

/// An error that a statement or message ends in.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: &'static str,
    pub(super) text: String,
}

impl Refusal {
    pub(super) fn new(code: &'static str, text: impl Into<String>) -> Self {
        Refusal { code, text: text.into() }
    }

    pub(super) fn aborted() -> Self {
        let text = "current transaction is aborted, commands ignored until end of transaction block";
        Refusal::new("25P02", text)
    }
}

/// The access that a transaction block has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    /// The block may read and write.
    Write,
    /// The block is read-only, and none of its statements has run.
    Begun,
    /// The block is read-only, and a statement of it has run.
    Read,
    /// The transaction began at a standby and does not say what it does. None of its statements has run. A statement that is no read must
    /// run on the primary.
    UndeclaredBegun,
    /// The same transaction after its first statement.
    UndeclaredRead,
}

impl Access {
    /// No statement of a transaction that may only read has run.
    pub(super) fn is_begun(self) -> bool {
        matches!(self, Access::Begun | Access::UndeclaredBegun)
    }
}

/// The message a session is at work on.
#[derive(Clone, Debug, Default)]
pub(super) enum Doing {
    #[default]
    Nothing,
    /// A Query, with the statements that are still to come.
    Simple { rest: VecDeque<Statement>, many: bool, run: Option<Run> },
    /// A running Execute.
    Execute { portal: String, run: Run },
    /// A FunctionCall.
    Call { tag: Tag, fails: bool, started: bool },
}

/// The settings and messages in which a session of this server differs.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// ParameterStatus comes at once, as before PostgreSQL 14, not just before ReadyForQuery.
    pub reports_early: bool,
    /// The value of in_hot_standby that the session reports at login; `None` if there is no cluster.
    pub in_hot_standby: Option<bool>,
    /// The work that the pooler may bring to the session by itself.
    pub balanced: Balanced,
    /// The pooler compares answers (`query_cache_verify`): those to texts of all clients tell nothing that the statement does not read.
    pub are_compared: bool,
}

/// The work that the pooler may bring to a session at a standby by itself (`route=auto`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balanced {
    /// The session is at a primary, or its database has another route: whatever comes was meant for it.
    #[default]
    Nothing,
    /// Statements and read-only transactions that only read. The standby may refuse them.
    Reads,
    /// The same, and transactions that do not say what they do, as long as they read (`begin_undeclared=first`).
    ReadsUndeclared,
}

/// The end of the error for a statement that PostgreSQL refuses at a standby in any transaction.
pub const IN_RECOVERY: &str = "during recovery";

/// See the module's head.
#[derive(Clone, Debug)]
pub struct Session {
    pub(super) pid: u32,
    pub(super) settings: Settings,
    pub(super) holdings: Holdings,
    /// `true` if the session got the advisory lock that it asked for last.
    pub(super) got_lock: bool,
    /// The answer of the session's node.
    reply: Option<Reply>,
    /// `true` if the node was promoted and the session has not reported it.
    has_left_recovery: bool,
    /// Locks of tables and rows that it has until its transaction ends, each as often as it was taken.
    table_locks: Vec<u64>,
    pub(super) block: Block,
    /// The access of the open block, if there is one.
    pub(super) access: Access,
    /// Messages of an extended group came since the last ReadyForQuery.
    pub(super) group_open: bool,
    /// `true` if one of them began a transaction; a Close does not.
    group_began: bool,
    pub(super) skipping: bool,
    pub(super) prepared: BTreeMap<String, Prepared>,
    pub(super) portals: BTreeMap<String, Portal>,
    pub(super) inbox: VecDeque<Message>,
    outbox: VecDeque<Step>,
    doing: Doing,
    notes: Vec<Note>,
    pub(super) behaviour: Behaviour,
    /// The snapshots of a statement that begins now, and of the running one, in whose rows it follows the
    /// process's number.
    sees: Sees,
}

#[derive(Clone, Debug, Default)]
struct Sees {
    next: Option<Snapshot>,
    /// The values of the board.
    board: Option<Values>,
    now: String,
}

/// The error for a read outside of a transaction that is lost with its server, if a part of its answer was
/// seen.
pub const INTERRUPTED: &str = "the statement was interrupted: the connection to the";

impl Session {
    /// A session that has just logged in.
    #[must_use]
    pub fn new(pid: u32, startup: &[(String, String)], behaviour: Behaviour) -> Self {
        Session {
            pid,
            settings: Settings::new(startup),
            holdings: Holdings::default(),
            got_lock: false,
            reply: None,
            has_left_recovery: false,
            table_locks: Vec::new(),
            block: Block::None,
            access: Access::Write,
            group_open: false,
            group_began: false,
            skipping: false,
            prepared: BTreeMap::new(),
            portals: BTreeMap::new(),
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            doing: Doing::Nothing,
            notes: Vec::new(),
            behaviour,
            sees: Sees::default(),
        }
    }

    /// The messages a server sends once the client is authenticated, up to ReadyForQuery.
    pub fn greeting(&mut self, key: &[u8]) -> Vec<Message> {
        let mut messages = vec![Body::new().int32(0).message(b'R')];
        messages.extend(self.settings.report_all());
        if let Some(standby) = self.behaviour.in_hot_standby {
            let value = if standby { "on" } else { "off" };
            messages.push(Body::new().text("in_hot_standby").text(value).message(b'S'));
        }
        let pid = i32::try_from(self.pid).expect("pids are small");
        messages.push(Body::new().int32(pid).raw(key).message(b'K'));
        messages.push(Body::new().byte(b'I').message(b'Z'));
        messages
    }

    /// Gives the session a message to work on after those it has.
    pub fn feed(&mut self, message: Message) {
        self.inbox.push_back(message);
    }

    /// Sets the snapshot of a statement that begins with the next step.
    pub fn look(&mut self, sees: Snapshot, in_recovery: bool) {
        self.sees.next = Some(sees);
        self.has_left_recovery = self.behaviour.in_hot_standby == Some(true) && !in_recovery;
    }

    /// Sets the values of the board for a statement that begins with the next step.
    pub fn look_at_board(&mut self, values: Values) {
        self.sees.board = Some(values);
    }

    /// Returns the tables that PostgreSQL has locked to read the statement that the pooler has prepared.
    pub(super) fn locks(&self) -> String {
        let prepared = self.prepared.get("PGWEIR_CACHE").and_then(|prepared| prepared.statement.as_ref());
        let definitions = self.sees.board.map_or(0, |values| values[DEFINITIONS]);
        prepared.map(|statement| asked::locks(statement.tag.text, definitions)).unwrap_or_default()
    }

    /// Returns the present place of the session's node.
    pub(super) fn stands(&self) -> Option<Snapshot> {
        self.sees.next
    }

    /// Returns the process's number, and what the statement saw, in the form for a row.
    pub(super) fn process(&self, tag: &Tag) -> String {
        match self.sees.board.filter(|_| self.is_compared(tag)) {
            None => format!("{}{}", self.pid, self.sees.now),
            Some(values) => {
                let [a, b, c, d] = values_read(tag.text, values);
                format!("0{}{a},{b},{c},{d}", board::MARK)
            }
        }
    }

    /// Whether the pooler may compare the answer to a statement with another one.
    pub(super) fn is_compared(&self, tag: &Tag) -> bool {
        self.behaviour.are_compared && tag.client.is_none()
    }

    /// A statement takes its snapshot.
    pub(super) fn take_snapshot(&mut self) {
        self.sees.now = self.sees.next.map(Snapshot::render).unwrap_or_default();
        if let Some([a, b, c, d]) = self.sees.board {
            self.sees.now.push_str(&format!("{}{a},{b},{c},{d}", board::MARK));
        }
    }

    /// Returns the reports since the last call.
    pub fn take_notes(&mut self) -> Vec<Note> {
        std::mem::take(&mut self.notes)
    }

    /// Returns whether the session is as ReadyForQuery `I` left it: no request in progress, none unread, no
    /// transaction.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let quiet = self.inbox.is_empty() && self.outbox.is_empty() && matches!(self.doing, Doing::Nothing);
        quiet && !self.is_bound()
    }

    /// Returns whether the session is in a transaction block or in the middle of a message group.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.block != Block::None || self.group_open || self.skipping
    }

    /// Returns whether the session is in a transaction, in which it gets no notification.
    #[must_use]
    pub fn is_in_transaction(&self) -> bool {
        self.block != Block::None || self.group_began || self.skipping
    }

    /// The value of a parameter.
    #[must_use]
    pub fn parameter(&self, name: &'static str) -> &str {
        self.settings.get(name)
    }

    /// The channels it listens to.
    #[must_use]
    pub fn channels(&self) -> &BTreeSet<String> {
        self.holdings.channels()
    }

    /// Returns whether the client needs this very process, because it holds state that does not move.
    #[must_use]
    pub fn is_bound_to_process(&self) -> bool {
        self.settings.get("search_path").contains("pg_temp") || self.holdings.is_bound_to_process()
    }

    /// Another client whose things the session holds, and what they are.
    #[must_use]
    pub fn stranger(&self, client: u32) -> Option<(u32, String)> {
        self.holdings.stranger(client)
    }

    /// The answer to [`Step::Ask`].
    pub fn replied(&mut self, reply: Reply) {
        self.reply = Some(reply);
    }

    pub(super) fn take_reply(&mut self) -> Result<Vec<Option<String>>, Refusal> {
        let reply = self.reply.take().unwrap_or_else(|| Err(("0A000", "there is no cluster".to_owned())));
        reply.map_err(|(code, text)| Refusal::new(code, text))
    }

    /// The answer to [`Step::Lock`].
    pub fn told_of_lock(&mut self, got: bool) {
        self.got_lock = got;
    }

    /// A statement got the lock of a table or row that it needed, and keeps it until its transaction ends, or does not.
    pub(super) fn got_table_lock(&mut self, key: u64, keeps: bool) {
        match keeps {
            true => self.table_locks.push(key),
            false => self.notes.push(Note::Unlocked(key)),
        }
    }

    /// Waiting for the lock that it asks for would never end: the statement fails.
    pub fn deadlock(&mut self) -> bool {
        let waits = match &self.doing {
            Doing::Simple { run: Some(run), .. } | Doing::Execute { run, .. } => run.waits_for_lock(),
            _ => false,
        };
        waits && self.break_off(&Refusal::new("40P01", "deadlock detected")).is_some()
    }

    /// Fails the statement like [`Session::cancel_next`], if it waits for a lock.
    pub fn deadlock_next(&mut self) -> bool {
        self.run_up_to_next() && self.deadlock()
    }

    /// `true` if no answer is due for all it was given.
    #[must_use]
    pub fn owes_nothing(&self) -> bool {
        // Cheaper than to look ahead, where there is much: nothing here can have a Query ignored.
        let simple = self.inbox.iter().all(|message| matches!(message.tag, b'Q' | b'F' | b'd' | b'c'));
        let asked = self.inbox.iter().any(|message| matches!(message.tag, b'Q' | b'F'));
        let ignores = self.skipping || matches!(self.doing, Doing::Execute { .. });
        let told = self.outbox.iter().any(|step| matches!(step, Step::Say(_)));
        if told || simple && asked && !ignores {
            return false;
        }
        if self.inbox.is_empty() && self.outbox.is_empty() && matches!(self.doing, Doing::Nothing) {
            return true;
        }
        let mut ahead = self.clone();
        loop {
            match ahead.step() {
                Step::Say(_) => return false,
                Step::NeedInput | Step::Quit => return true,
                Step::Flush | Step::Wait(_) | Step::Lock { .. } | Step::Ask(_) | Step::Quiet => {}
            }
        }
    }

    /// COPY FROM STDIN waits for data.
    #[must_use]
    pub fn is_copying_in(&self) -> bool {
        match &self.doing {
            Doing::Simple { run: Some(run), .. } | Doing::Execute { run, .. } => run.is_copying_in(),
            _ => false,
        }
    }

    /// Returns whether the session is in the middle of a message group, whose Sync is still to come.
    #[must_use]
    pub fn in_group(&self) -> bool {
        self.group_open
    }

    /// The statement that runs now.
    #[must_use]
    pub fn running(&self) -> Option<Tag> {
        match &self.doing {
            Doing::Simple { run: Some(run), .. } | Doing::Execute { run, .. } if run.is_done() => None,
            Doing::Simple { run: Some(run), .. } | Doing::Execute { run, .. } => Some(run.tag()),
            Doing::Call { tag, .. } => Some(*tag),
            Doing::Simple { run: None, .. } | Doing::Nothing => None,
        }
    }

    /// A cancel arrives. It hits whatever runs, and does nothing to an idle session.
    pub fn cancel(&mut self) -> Option<Tag> {
        self.break_off(&Refusal::new("57014", "canceling statement due to user request"))
    }

    fn break_off(&mut self, why: &Refusal) -> Option<Tag> {
        let hit = self.running()?;
        let simple = !matches!(self.doing, Doing::Execute { .. });
        self.doing = Doing::Nothing;
        self.fail(why, simple);
        Some(hit)
    }

    /// Runs up to the next statement, without a word to the client, and cancels it: what a reference does when it sees
    /// that a cancel hit. `false` if a cancel could not have come here.
    pub fn cancel_next(&mut self) -> bool {
        self.run_up_to_next() && self.cancel().is_some()
    }

    /// Runs up to the next statement, without a word to the client. `false` if there is none before that.
    fn run_up_to_next(&mut self) -> bool {
        loop {
            while self.outbox.front() == Some(&Step::Flush) {
                self.outbox.pop_front();
            }
            if !self.outbox.is_empty() {
                return false;
            }
            if self.running().is_some() {
                return true;
            }
            if !matches!(self.step(), Step::Quiet | Step::Wait(_) | Step::Flush) {
                return false;
            }
        }
    }

    /// Cancels what was asked for before a server looks at it: what a reference does when the pooler says that a statement
    /// was cancelled while it waited. The whole group is given up. `false` if nothing could have waited here.
    pub fn cancel_waiting(&mut self) -> bool {
        self.give_up_waiting(Block::None, &Refusal::new("57014", "canceling statement due to user request"))
    }

    /// The transaction that is open is gone, with the connection to the primary: what a reference does when the pooler says so in place
    /// of an answer, or of the rest of one. `Some(true)`: what comes next may end the transaction. `None` if that could not be.
    pub fn lose_transaction(&mut self, code: &'static str, text: &str) -> Option<bool> {
        let ends = |message: &Message| match message.tag {
            b'Q' | b'P' => {
                let text = message.body.split(|byte| *byte == 0).rev().find(|part| part.len() > 2);
                text.is_some_and(|text| {
                    [&b"COMMIT"[..], b"END"].iter().any(|word| {
                        text.get(..word.len()).is_some_and(|front| front.eq_ignore_ascii_case(word))
                    })
                })
            }
            // Perhaps of a statement that was prepared before.
            b'B' => true,
            _ => false,
        };
        let may_end = self.inbox.front().is_some_and(ends);
        let refusal = Refusal::new(code, text);
        if self.give_up_waiting(Block::Open, &refusal) {
            return Some(may_end);
        }
        if self.block != Block::Open || self.skipping {
            return None;
        }
        let is_ready = |step: &Step| matches!(step, Step::Say(message) if message.tag == b'Z');
        let is_simple = match self.doing {
            Doing::Simple { .. } | Doing::Call { .. } => true,
            Doing::Execute { .. } => false,
            Doing::Nothing if self.outbox.iter().any(|step| matches!(step, Step::Say(_))) => {
                self.outbox.iter().any(is_ready)
            }
            Doing::Nothing => return None,
        };
        self.outbox.clear();
        self.doing = Doing::Nothing;
        self.fail(&refusal, is_simple);
        Some(false)
    }

    /// The same of a change outside of a transaction block, which is certainly rolled back, or perhaps. `false` if that could not be.
    pub fn lose_change(&mut self, code: &'static str, text: &str) -> bool {
        let refusal = Refusal::new(code, text);
        if self.give_up_waiting(Block::None, &refusal) {
            return true;
        }
        if self.block != Block::None || self.skipping {
            return false;
        }
        let is_ready = |step: &Step| matches!(step, Step::Say(message) if message.tag == b'Z');
        let is_simple = match self.doing {
            Doing::Simple { .. } | Doing::Call { .. } => true,
            Doing::Execute { .. } => false,
            Doing::Nothing if self.group_open && !self.outbox.iter().any(is_ready) => false,
            // The end of a simple statement is lost.
            Doing::Nothing if text.starts_with(INTERRUPTED) && self.outbox.iter().any(is_ready) => true,
            Doing::Nothing => return false,
        };
        self.outbox.clear();
        self.doing = Doing::Nothing;
        self.fail(&refusal, is_simple);
        true
    }

    /// The transaction has failed.
    #[must_use]
    pub fn is_failed(&self) -> bool {
        self.block == Block::Failed
    }

    /// The pooler refuses what comes next, because the transaction has failed. A server would execute an empty statement; where the server
    /// is lost, the pooler need not.
    pub fn refuse_in_failed(&mut self) {
        let mut ahead = self.clone();
        let due = loop {
            match ahead.step() {
                Step::Say(due) => break due,
                Step::NeedInput | Step::Quit => return,
                Step::Flush | Step::Wait(_) | Step::Lock { .. } | Step::Ask(_) | Step::Quiet => {}
            }
        };
        if due.tag == b'1' {
            self.give_up_waiting(Block::Failed, &Refusal::aborted());
        }
    }

    /// The pooler, or a standby, refuses what comes next in a transaction that only reads: what a reference does when it hears of that.
    /// `false` if the primary would run it and a standby would do the same.
    pub fn refuse_at_standby(&mut self, code: &'static str, text: &str) -> bool {
        let is_in_recovery = text.ends_with(IN_RECOVERY);
        // Whatever the transaction is, or without one at a server that the client keeps.
        let is_unlisten = code == "0A000" && text.starts_with("cannot use UNLISTEN");
        if !is_in_recovery && !is_unlisten && (self.access == Access::Write || self.block != Block::Open) {
            return false;
        }
        let is_otherwise = |statement: &Statement| match is_in_recovery {
            true => statement.is_refused_in_recovery(),
            false if is_unlisten => matches!(statement.verb, Verb::Hold(Hold::Unlisten(_))),
            false => statement.is_otherwise_at_standby(code),
        };
        let answers = |message: &&Message| !matches!(message.tag, b'H' | b'd' | b'c' | b'f');
        let differs = match self.inbox.iter().find(answers) {
            Some(message) if matches!(message.tag, b'Q' | b'P') => {
                let mut fields = Fields(&message.body);
                let text = if message.tag == b'P' {
                    fields.text().and_then(|_| fields.text())
                } else {
                    fields.text()
                };
                text.and_then(|text| parse(text).ok()).is_some_and(|all| all.iter().any(is_otherwise))
            }
            Some(message) if message.tag == b'B' => {
                let mut fields = Fields(&message.body);
                let name = fields.text().and_then(|_| fields.text());
                let prepared = name.and_then(|name| self.prepared.get(name));
                prepared.and_then(|prepared| prepared.statement.as_ref()).is_some_and(is_otherwise)
            }
            Some(message) if message.tag == b'E' => {
                let portal = Fields(&message.body).text().and_then(|name| self.portals.get(name));
                portal.and_then(|portal| portal.statement.as_ref()).is_some_and(is_otherwise)
            }
            Some(message) => message.tag == b'F' && code == "0A000",
            None => false,
        };
        differs && self.give_up_waiting(self.block, &Refusal::new(code, text))
    }

    /// Returns whether the session's node is a standby, as far as it has reported.
    pub(super) fn is_in_recovery(&self) -> bool {
        self.told_recovery() && !self.has_left_recovery
    }

    /// The session's node is a standby by the last that it has told: it may be promoted, and the pooler, which cannot know, replays no LISTEN.
    pub(super) fn told_recovery(&self) -> bool {
        self.behaviour.in_hot_standby == Some(true)
    }

    /// The transaction is over.
    pub fn leave_block(&mut self) {
        self.block = Block::None;
    }

    fn give_up_waiting(&mut self, block: Block, refusal: &Refusal) -> bool {
        while matches!(self.outbox.front(), Some(Step::Flush)) {
            self.outbox.pop_front();
        }
        // They have no answer.
        while matches!(self.inbox.front(), Some(message) if matches!(message.tag, b'H' | b'd' | b'c' | b'f'))
        {
            self.inbox.pop_front();
        }
        let at_rest = self.outbox.is_empty() && matches!(self.doing, Doing::Nothing);
        let Some(first) = self.inbox.front().map(|message| message.tag) else { return false };
        if !at_rest || self.block != block || self.skipping || matches!(first, b'S' | b'X') {
            return false;
        }
        let simple = matches!(first, b'Q' | b'F');
        if simple {
            self.inbox.pop_front();
        }
        self.group_open |= !simple;
        self.fail(refusal, simple);
        true
    }

    /// Takes the next step.
    pub fn step(&mut self) -> Step {
        if let Some(step) = self.outbox.pop_front() {
            return step;
        }
        match std::mem::take(&mut self.doing) {
            Doing::Nothing => match self.inbox.pop_front() {
                Some(message) => self.receive(&message),
                None => Step::NeedInput,
            },
            Doing::Simple { rest, many, run } => self.go_on_simple(rest, many, run),
            Doing::Execute { portal, run } => self.go_on_execute(portal, run),
            Doing::Call { tag, fails, started } => self.go_on_call(tag, fails, started),
        }
    }

    fn receive(&mut self, message: &Message) -> Step {
        let outcome = match message.tag {
            b'X' => return Step::Quit,
            b'S' => {
                self.sync();
                Ok(())
            }
            b'd' | b'c' | b'f' => Ok(()),
            _ if self.skipping => Ok(()),
            b'H' => return Step::Flush,
            b'Q' => {
                self.query(&message.body);
                return Step::Quiet;
            }
            b'F' => {
                self.function_call(&message.body);
                return Step::Quiet;
            }
            b'P' => self.parse(&message.body),
            b'B' => self.bind(&message.body),
            b'D' => self.describe(&message.body),
            b'C' => self.close(&message.body),
            b'E' => self.execute(&message.body),
            other => {
                let text = format!("invalid frontend message type {other}");
                self.say(report(b'E', "FATAL", "08P01", &text));
                self.outbox.push_back(Step::Flush);
                self.outbox.push_back(Step::Quit);
                return Step::Quiet;
            }
        };
        if let Err(refusal) = outcome {
            self.fail(&refusal, false);
        }
        Step::Quiet
    }

    fn sync(&mut self) {
        if self.block == Block::None {
            self.end_transaction(true);
        }
        self.ready();
    }

    fn query(&mut self, body: &[u8]) {
        self.prepared.remove("");
        self.portals.remove("");
        let Some(text) = Fields(body).text() else {
            self.fail(&Refusal::new("08P01", "invalid message format"), true);
            return;
        };
        match parse(text) {
            Ok(statements) if statements.is_empty() || statements[0].verb == Verb::Empty => {
                let tag = statements.first().map(|s| s.tag).unwrap_or_default();
                self.note_run(&tag, "an empty query");
                self.say(Message::bare(b'I'));
                self.finish_simple();
            }
            Ok(statements) => {
                let many = statements.len() > 1;
                self.doing = Doing::Simple { rest: statements.into(), many, run: None };
            }
            Err(text_of_error) => {
                self.note_misunderstood(text);
                self.fail(&Refusal::new("42601", text_of_error), true);
            }
        }
    }

    fn go_on_simple(&mut self, mut rest: VecDeque<Statement>, many: bool, run: Option<Run>) -> Step {
        let Some(mut run) = run else {
            match rest.pop_front() {
                Some(statement) => {
                    let run = Run::simple(statement, many);
                    self.doing = Doing::Simple { rest, many, run: Some(run) };
                }
                None => self.finish_simple(),
            }
            return Step::Quiet;
        };
        match run.step(self) {
            Ok(Some(step)) => {
                self.doing = Doing::Simple { rest, many, run: Some(run) };
                step
            }
            Ok(None) => {
                self.doing = Doing::Simple { rest, many, run: None };
                Step::Quiet
            }
            Err(refusal) => {
                self.fail(&refusal, true);
                Step::Quiet
            }
        }
    }

    fn go_on_execute(&mut self, portal: String, mut run: Run) -> Step {
        match run.step(self) {
            Ok(Some(step)) => {
                self.doing = Doing::Execute { portal, run };
                step
            }
            Ok(None) => {
                if let Some(portal) = self.portals.get_mut(&portal) {
                    portal.advance(&run);
                }
                Step::Quiet
            }
            Err(refusal) => {
                self.fail(&refusal, false);
                Step::Quiet
            }
        }
    }

    /// FunctionCall: the first argument says whose call it is; function 9999 does not exist.
    fn function_call(&mut self, body: &[u8]) {
        let mut fields = Fields(body);
        let oid = fields.int32().unwrap_or(0);
        let formats = usize::try_from(fields.int16().unwrap_or(0)).unwrap_or(0);
        let _ = fields.take(formats * 2);
        let arguments = fields.int16().unwrap_or(0);
        let mut tag = Tag::default();
        if arguments > 0
            && let Some(Some(argument)) = fields.counted()
        {
            tag.absorb(&String::from_utf8_lossy(argument));
        }
        self.holdings.call_by_number();
        self.doing = Doing::Call { tag, fails: oid == 9999, started: false };
    }

    fn go_on_call(&mut self, tag: Tag, fails: bool, started: bool) -> Step {
        if !started {
            self.note_run(&tag, "a function call");
            self.doing = Doing::Call { tag, fails, started: true };
            return if tag.duration_us > 0 { Step::Wait(tag.duration_us) } else { Step::Quiet };
        }
        if self.block == Block::Failed {
            self.fail(&Refusal::aborted(), true);
        } else if fails {
            self.fail(&Refusal::new("42883", format!("function does not exist ({})", tag.render())), true);
        } else {
            self.say(Body::new().counted(tag.render().as_bytes()).message(b'V'));
            self.finish_simple();
        }
        Step::Quiet
    }

    fn finish_simple(&mut self) {
        if self.block == Block::None {
            self.end_transaction(true);
        }
        self.ready();
    }

    /// A message of an extended group that begins a transaction, where none is open.
    pub(super) fn begin_in_group(&mut self) {
        (self.group_open, self.group_began) = (true, true);
    }

    fn ready(&mut self) {
        (self.group_open, self.group_began) = (false, false);
        self.skipping = false;
        self.report_settings();
        if std::mem::take(&mut self.has_left_recovery) {
            self.behaviour.in_hot_standby = Some(false);
            self.say(Body::new().text("in_hot_standby").text("off").message(b'S'));
        }
        let status = match self.block {
            Block::None => b'I',
            Block::Open => b'T',
            Block::Failed => b'E',
        };
        self.say(Body::new().byte(status).message(b'Z'));
        self.outbox.push_back(Step::Flush);
    }

    /// An error: the transaction is lost, and after an extended message everything up to Sync is ignored.
    fn fail(&mut self, refusal: &Refusal, simple: bool) {
        self.say(report(b'E', "ERROR", refusal.code, &refusal.text));
        // elog.c flushes every report, even where no Sync or Flush would.
        self.outbox.push_back(Step::Flush);
        self.end_transaction(false);
        if self.block == Block::Open {
            self.block = Block::Failed;
        }
        if simple {
            self.ready();
        } else {
            self.skipping = true;
        }
    }

    pub(super) fn end_transaction(&mut self, keep: bool) {
        self.notes.push(Note::Ended { kept: keep });
        self.settings.end(keep);
        self.notes.extend(self.table_locks.drain(..).map(Note::Unlocked));
        for (what, client) in self.holdings.end(keep) {
            self.notes.push(Note::Told { what, client });
        }
        self.portals.clear();
    }

    pub(super) fn say(&mut self, message: Message) {
        self.outbox.push_back(Step::Say(message));
    }

    pub(super) fn flush(&mut self) {
        self.outbox.push_back(Step::Flush);
    }

    pub(super) fn report_settings(&mut self) {
        for message in self.settings.report() {
            self.say(message);
        }
    }

    pub(super) fn report_settings_early(&mut self) {
        if self.behaviour.reports_early {
            self.report_settings();
        }
    }

    pub(super) fn start_execute(&mut self, portal: String, run: Run) {
        self.doing = Doing::Execute { portal, run };
    }

    pub(super) fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    pub(super) fn note_run(&mut self, tag: &Tag, what: &str) {
        self.notes.push(match tag.is_clients() {
            true => Note::Runs(*tag),
            false => {
                Note::Hidden { what: what.to_owned(), bound: self.is_bound() && !self.may_end_read(what) }
            }
        });
    }

    pub(super) fn note_misunderstood(&mut self, text: &str) {
        let mut tag = Tag::default();
        tag.absorb(&text.replace("/*", " ").replace("*/", " "));
        if !tag.is_clients() {
            self.notes.push(Note::NotUnderstood(text.to_owned()));
        }
    }
}
