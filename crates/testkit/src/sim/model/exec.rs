//! Running one statement of the model: rows in time, the effect at the end.

use super::copy::CopyIn;
use super::session::{Block, Note, Refusal, Session, Step};
use super::statement::{Hold, Inquiry, SEQUENCE, Statement, Tag, Verb};
use crate::sim::model::state::prepared::row_description;
use crate::sim::model::state::settings::known;
use crate::sim::network::proto::{Body, Message, report};

/// A statement on its way. Every effect happens in its last step: a statement that was cancelled did nothing.
#[derive(Clone, Debug)]
pub(super) struct Run {
    statement: Statement,
    /// RowDescription is still to be sent (simple protocol).
    describes: bool,
    started: bool,
    /// Half of the duration lies before the rows, half between or behind them.
    second_wait_done: bool,
    first_row: u32,
    next_row: u32,
    /// Rows end here, by the statement or by Execute's limit.
    stop_row: u32,
    /// Execute's limit is reached: PortalSuspended follows instead of CommandComplete.
    suspends: bool,
    /// One of several statements in a Query.
    in_string: bool,
    /// `true` if the statement has asked for its advisory lock and no longer waits for it, or has asked its
    /// node.
    was_told: bool,
    /// The answer of a statement that has run, and that is sent later.
    later: Option<String>,
    copy: Option<CopyIn>,
}

/// Locks of tables and rows, behind the keys of advisory locks.
const TABLE_LOCKS: u64 = 1 << 32;

/// The end of a server's report of a session at a standby, which listens to no channel.
pub const AT_STANDBY: &str = ";at a standby";

/// The unit in which a COMMIT says how long after it is committed it is answered.
const LATER_US: u64 = 100;

/// The time for which the pooler lets a server wait before it asks again.
const MOMENT_US: u64 = 100_000;

/// Rows a statement answers; a SELECT without `r` answers one.
fn rows_of(statement: &Statement) -> u32 {
    match statement.verb {
        Verb::Select | Verb::SelectState => statement.tag.rows.max(1),
        Verb::Fail | Verb::CopyOut => statement.tag.rows,
        _ => 0,
    }
}

impl Run {
    /// A statement of a Query; `many` if it is not alone there.
    pub(super) fn simple(statement: Statement, many: bool) -> Self {
        let stop_row = rows_of(&statement);
        Run {
            describes: statement.returns_rows(),
            statement,
            started: false,
            second_wait_done: false,
            first_row: 0,
            next_row: 0,
            stop_row,
            suspends: false,
            in_string: many,
            was_told: false,
            later: None,
            copy: None,
        }
    }

    /// An Execute of a portal that stands at `next_row`.
    pub(super) fn portal(statement: Statement, next_row: u32, max_rows: u32, is_done: bool) -> Self {
        let total = if is_done { next_row } else { rows_of(&statement) };
        // PostgreSQL does not look ahead: exactly the limit is a suspended portal, even if no row is left.
        let suspends = max_rows > 0 && statement.returns_rows() && total - next_row >= max_rows;
        let stop_row = if suspends { next_row + max_rows } else { total };
        let mut run = Run::simple(statement, false);
        run.describes = false;
        run.first_row = next_row;
        run.next_row = next_row;
        run.stop_row = stop_row;
        run.suspends = suspends;
        run
    }

    /// Returns the tag of the statement, which names its client.
    pub(super) fn tag(&self) -> Tag {
        self.statement.tag
    }

    /// Returns whether the statement has run, so that no cancel can hit it.
    pub(super) fn is_done(&self) -> bool {
        self.later.is_some()
    }

    /// COPY FROM STDIN has begun.
    pub(super) fn is_copying_in(&self) -> bool {
        self.copy.is_some()
    }

    /// The first row not sent.
    pub(super) fn next_row(&self) -> u32 {
        self.next_row
    }

    /// `true` if rows may remain behind Execute's limit.
    pub(super) fn is_suspended(&self) -> bool {
        self.suspends
    }

    /// Returns the next step; `None` if the statement is complete.
    pub(super) fn step(&mut self, session: &mut Session) -> Result<Option<Step>, Refusal> {
        if !self.started {
            return self.start(session);
        }
        if self.describes {
            self.describes = false;
            session.say(row_description());
            return Ok(Some(Step::Quiet));
        }
        if let Some(copy) = &mut self.copy {
            if let Some(step) = copy.step(session)? {
                return Ok(Some(step));
            }
        } else if self.statement.verb == Verb::CopyIn {
            session.say(CopyIn::response());
            session.flush();
            self.copy = Some(CopyIn::new(self.statement.tag));
            return Ok(Some(Step::Quiet));
        }
        let rows = self.stop_row - self.first_row;
        if self.next_row < self.stop_row
            && (self.second_wait_done || self.next_row - self.first_row < rows / 2)
        {
            self.row(session);
            return Ok(Some(Step::Quiet));
        }
        if !self.second_wait_done {
            self.second_wait_done = true;
            let wait_us = self.statement.tag.duration_us / 2;
            return Ok(Some(if wait_us > 0 { Step::Wait(wait_us) } else { Step::Quiet }));
        }
        if let Some((key, waits)) = self.wanted_lock()
            && !self.was_told
        {
            self.was_told = true;
            return Ok(Some(Step::Lock { key, waits }));
        }
        if let Verb::Inquire(inquiry) = &self.statement.verb
            && !self.was_told
        {
            self.was_told = true;
            return Ok(Some(Step::Ask(inquiry.clone())));
        }
        if self.statement.verb == Verb::Commit && self.statement.tag.rows > 0 && self.later.is_none() {
            self.later = Some(commit(session));
            return Ok(Some(Step::Wait(LATER_US * u64::from(self.statement.tag.rows))));
        }
        self.complete(session)?;
        session.note_access(&self.statement);
        Ok(None)
    }

    /// The lock that it asks for, and whether it waits.
    fn wanted_lock(&self) -> Option<(u64, bool)> {
        match self.statement.verb {
            Verb::Hold(Hold::Lock { key, waits }) => Some((key, waits)),
            Verb::Write | Verb::Select | Verb::SelectState if self.statement.tag.lock > 0 => {
                Some((TABLE_LOCKS + self.statement.tag.lock, true))
            }
            _ => None,
        }
    }

    /// Returns whether the statement would wait, or waits, for a lock.
    pub(super) fn waits_for_lock(&self) -> bool {
        self.wanted_lock().is_some_and(|(_, waits)| waits)
    }

    fn start(&mut self, session: &mut Session) -> Result<Option<Step>, Refusal> {
        self.started = true;
        if self.first_row == 0 {
            // A portal goes on with the snapshot that it began with; the model has one for all, which is a later one.
            session.take_snapshot();
        }
        session.note_run(&self.statement.tag, &format!("{:?}", self.statement.verb));
        if session.block == Block::Failed && !self.statement.ends_transaction() {
            return Err(Refusal::aborted());
        }
        if self.first_row == 0 {
            self.statement.has_columns()?;
            session.judge_read_only(&self.statement)?;
            session.judge_as_standby(&self.statement)?;
        }
        session.settings.begin();
        session.holdings.begin();
        if let Verb::Hold(Hold::Execute(name)) = &self.statement.verb {
            self.statement = session.executed(name, &self.statement.tag)?;
            self.describes = self.statement.returns_rows();
            self.stop_row = rows_of(&self.statement);
        }
        if self.statement.verb == Verb::CopyOut {
            session.say(Body::new().byte(0).int16(1).int16(0).message(b'H'));
        }
        let tag = self.statement.tag;
        let wait_us = match self.statement.verb {
            Verb::Inquire(Inquiry::Outcome { waits: true, .. }) => MOMENT_US,
            _ => tag.duration_us - tag.duration_us / 2,
        };
        Ok(Some(if wait_us > 0 { Step::Wait(wait_us) } else { Step::Quiet }))
    }

    fn row(&mut self, session: &mut Session) {
        let tag = self.statement.tag;
        let filler = if self.statement.verb == Verb::Fail { Vec::new() } else { filler(&tag, self.next_row) };
        self.next_row += 1;
        if self.statement.verb == Verb::CopyOut {
            let id = row_id(&tag, self.next_row - 1);
            session.say(Body::new().raw(id.as_bytes()).raw(&filler).message(b'd'));
            return;
        }
        answer_row(session, &tag, self.next_row - 1, &tag.text.to_string(), filler);
    }

    fn complete(&mut self, session: &mut Session) -> Result<(), Refusal> {
        if self.wanted_lock().is_some_and(|(key, _)| key > TABLE_LOCKS) {
            let tag = self.statement.tag;
            session.got_table_lock(TABLE_LOCKS + tag.lock, self.statement.verb == Verb::Write);
        }
        if self.suspends {
            session.say(Message::bare(b's'));
            return Ok(());
        }
        let rows = self.next_row - self.first_row;
        let tag = self.statement.tag;
        let done = match &self.statement.verb {
            Verb::Select | Verb::SelectState | Verb::SelectNone | Verb::Empty => format!("SELECT {rows}"),
            Verb::Catalog => catalog(session),
            Verb::Position { replayed } => say_position(session, *replayed)?,
            Verb::Fail => {
                let filler = String::from_utf8(filler(&tag, 0)).expect("letters");
                return Err(Refusal::new("22012", format!("division by zero ({}) {filler}", tag.render())));
            }
            Verb::Write => {
                session.note(Note::Wrote(tag));
                "INSERT 0 1".to_owned()
            }
            Verb::Notices => {
                for i in 0..tag.rows {
                    session.say(report(b'N', "NOTICE", "00000", &format!("{} i={i}", tag.render())));
                }
                "DO".to_owned()
            }
            Verb::Set { local, name, value } => {
                let outcome = session.settings.set(name, value.as_deref(), *local);
                outcome.map_err(|_| {
                    Refusal::new("42704", format!("unrecognized configuration parameter \"{name}\""))
                })?;
                if value.is_some() { "SET".to_owned() } else { "RESET".to_owned() }
            }
            Verb::ResetAll => {
                session.settings.reset_all();
                "RESET".to_owned()
            }
            Verb::Begin | Verb::BeginReadOnly | Verb::NoColumn(_) => begin(session, "BEGIN"),
            Verb::Start => begin(session, "START TRANSACTION"),
            Verb::RollbackTo => return Err(Refusal::new("3B001", "savepoint does not exist")),
            Verb::Commit => self.later.take().unwrap_or_else(|| commit(session)),
            Verb::Rollback => rollback(session),
            Verb::CopyOut => {
                session.say(Message::bare(b'c'));
                format!("COPY {rows}")
            }
            Verb::CopyIn => format!("COPY {}", self.copy.as_ref().map_or(0, CopyIn::checksum)),
            Verb::Values(names) => {
                let value = |name: &String| known(name).map(|name| session.settings.get(name).to_owned());
                let values: Vec<Option<String>> = names.iter().map(value).collect();
                say_row(session, &values);
                "SELECT 1".to_owned()
            }
            Verb::Everything(names) => {
                let own: Vec<(&'static str, String)> =
                    session.settings.own().map(|(name, value)| (name, value.to_owned())).collect();
                for (name, value) in own {
                    say_row(session, &[Some("s".to_owned()), Some(name.to_owned()), Some(value)]);
                }
                for row in session.holdings.rows() {
                    say_row(session, &row);
                }
                if session.prepared.keys().any(|name| !name.is_empty()) {
                    say_row(session, &[Some("h".to_owned()), None, None]);
                }
                for name in names {
                    let value = known(name).map(|name| session.settings.get(name).to_owned());
                    say_row(session, &[Some("m".to_owned()), Some(name.clone()), value]);
                }
                "SELECT".to_owned()
            }
            Verb::SetConfig(calls) => {
                set_config(session, calls);
                "SELECT 1".to_owned()
            }
            Verb::PutBack(values) => {
                put_back(session, values);
                "SELECT 1".to_owned()
            }
            Verb::DiscardAll => self.discard_all(session)?,
            Verb::DiscardSequences => "DISCARD SEQUENCES".to_owned(),
            Verb::CheckSequences => "DO".to_owned(),
            Verb::DeallocateAll => {
                session.prepared.retain(|name, _| name.is_empty());
                session.holdings.deallocate_all();
                "DEALLOCATE ALL".to_owned()
            }
            Verb::Hold(hold) => session.hold(hold, &tag)?,
            Verb::Inquire(_) => reply(session)?,
            Verb::Locks => say_locks(session),
        };
        session.report_settings_early();
        session.say(Body::new().text(&done).message(b'C'));
        Ok(())
    }

    fn discard_all(&self, session: &mut Session) -> Result<String, Refusal> {
        if session.block != Block::None || self.in_string {
            return Err(Refusal::new("25001", "DISCARD ALL cannot run inside a transaction block"));
        }
        session.settings.reset_all();
        session.prepared.clear();
        session.portals.clear();
        session.holdings.discard(&self.statement.tag);
        session.unlock_all();
        Ok("DISCARD ALL".to_owned())
    }
}

fn row_id(tag: &Tag, row: u32) -> String {
    format!("c={} n={} i={row}", tag.client.unwrap_or(0), tag.number)
}

/// Returns the part of a session that its server reports to no client.
fn silent_column(session: &Session, tag: &Tag) -> String {
    let holdings = match session.is_compared(tag) {
        true => session.holdings.tables_line(),
        false => session.holdings.line(),
    };
    let mut line = session.settings.silent_line() + &holdings;
    if session.told_recovery() {
        line.push_str(AT_STANDBY);
    }
    line
}

/// A row of a result: the client that asked, what it is about, and the whole state of the session.
pub(super) fn answer_row(session: &mut Session, tag: &Tag, row: u32, text: &str, filler: Vec<u8>) {
    let fields = [
        row_id(tag, row).into_bytes(),
        text.as_bytes().to_vec(),
        session.process(tag).into_bytes(),
        session.settings.tracked_line().into_bytes(),
        silent_column(session, tag).into_bytes(),
        filler,
    ];
    let count = i16::try_from(fields.len()).expect("few columns");
    let body = fields.iter().fold(Body::new().int16(count), |body, field| body.counted(field));
    session.say(body.message(b'D'));
}

/// The answer to the pooler's question for routines, and for names that may do more than read.
fn catalog(session: &mut Session) -> String {
    let row = |kind: &str, names: &str| [Some(kind.to_owned()), Some(names.to_owned()), None];
    say_row(session, &row("v", ""));
    say_row(session, &row("r", "who\nnone"));
    say_row(session, &row("s", SEQUENCE));
    say_row(session, &row("i", "read committed"));
    "SELECT 4".to_owned()
}

fn reply(session: &mut Session) -> Result<String, Refusal> {
    let columns = session.take_reply()?;
    say_row(session, &columns);
    Ok("SELECT 1".to_owned())
}

fn set_config(session: &mut Session, calls: &[(String, Option<String>, bool)]) {
    for (name, value, local) in calls {
        // Identity is nothing that the model knows.
        if known(name).is_some() {
            let _ = session.settings.set(name, value.as_deref(), *local);
        }
    }
}

/// Sets what is not the session's own.
fn put_back(session: &mut Session, values: &[(String, String)]) {
    for (name, value) in values {
        if let Some(known) = known(name).filter(|name| !session.settings.is_own(name)) {
            let _ = session.settings.set(known, Some(value), false);
        }
    }
}

/// The answer to the pooler's question whether this is a standby, and for the tables that the session has locked.
fn say_locks(session: &mut Session) -> String {
    say_row(session, &[Some("false".to_owned()), Some(session.locks())]);
    "SELECT 1".to_owned()
}

/// The answer to the pooler's question for a position.
fn say_position(session: &mut Session, replayed: bool) -> Result<String, Refusal> {
    match (session.stands(), replayed) {
        (Some(stands), false) if stands.is_standby => Err(Refusal::new("55000", "recovery is in progress")),
        (Some(stands), false) => {
            say_row(session, &stands.told().map(Some));
            Ok("SELECT 1".to_owned())
        }
        (stands, _) => {
            let replayed = stands.filter(|stands| stands.is_standby).map(|stands| stands.told()[0].clone());
            say_row(session, &[replayed]);
            Ok("SELECT 1".to_owned())
        }
    }
}

fn say_row(session: &mut Session, values: &[Option<String>]) {
    let count = i16::try_from(values.len()).expect("few columns");
    let body = values.iter().fold(Body::new().int16(count), |body, value| match value {
        Some(value) => body.counted(value.as_bytes()),
        None => body.int32(-1),
    });
    session.say(body.message(b'D'));
}

fn begin(session: &mut Session, tag: &str) -> String {
    if session.block == Block::Open {
        session.say(report(b'N', "WARNING", "25001", "there is already a transaction in progress"));
    }
    session.block = Block::Open;
    tag.to_owned()
}

fn commit(session: &mut Session) -> String {
    if session.block == Block::None {
        session.say(report(b'N', "WARNING", "25P01", "there is no transaction in progress"));
    }
    let failed = std::mem::replace(&mut session.block, Block::None) == Block::Failed;
    session.end_transaction(!failed);
    if failed { "ROLLBACK".to_owned() } else { "COMMIT".to_owned() }
}

fn rollback(session: &mut Session) -> String {
    if session.block == Block::None {
        session.say(report(b'N', "WARNING", "25P01", "there is no transaction in progress"));
    }
    session.block = Block::None;
    session.end_transaction(false);
    "ROLLBACK".to_owned()
}

/// Bytes that no other client's row has, so that a mixed-up or torn row is seen.
fn filler(tag: &Tag, row: u32) -> Vec<u8> {
    let start = tag.client.unwrap_or(0).wrapping_mul(31).wrapping_add(tag.number * 7 + row);
    (0..tag.bytes).map(|i| b'a' + u8::try_from((start + i) % 26).expect("below 26")).collect()
}

impl Session {
    /// Tells the observer about copy data that is not the COPY's own.
    pub(super) fn check_copy_data(&mut self, owner: &Tag, data: &[u8]) {
        let mut found = Tag::default();
        let head = String::from_utf8_lossy(&data[..data.len().min(60)]).into_owned();
        found.absorb(&head);
        if found.client != owner.client || found.number != owner.number {
            self.note(Note::ForeignCopyData { owner: *owner, data: head });
        }
    }
}
