//! The answers that a client must get: those from a PostgreSQL that has no other client.
//!
//! Beside each client runs a private session of the model ([`Session`]), in step with the messages that
//! arrive: the next message of the pooler must be the next message of that session. Random results (where a
//! cancel hits, which server process answers) are taken from the message that arrived, after a check that
//! they are possible.

use std::collections::{BTreeMap, BTreeSet};

use crate::sim::check::board;
use crate::sim::check::followed::{Saw, TABLES, Values};
use crate::sim::model::nodes::Snapshot;
use crate::sim::model::nodes::xids::{Change, Told};
use crate::sim::model::state::settings::TRACKED;
use crate::sim::model::statement::Tag;
use crate::sim::model::{AT_STANDBY, Behaviour, COLUMNS, IN_RECOVERY, INTERRUPTED, Note, Session, Step};
use crate::sim::network::proto::{ErrorText, Fields, Message};

/// The result of checking a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The message is right.
    Right,
    /// A FATAL error: the connection ends, and there had better be a reason.
    Fatal(ErrorText),
    /// The message is not the one that was due.
    Wrong(String),
}

/// The requests of a client that may run at a standby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtStandbys {
    /// Every request (`route=standby` and its kin).
    All,
    /// Reads, and transactions that read to their end.
    Reads,
    /// Reads, and the beginnings of transactions, which may go on at the primary (`begin_undeclared=first`).
    Beginnings,
}

/// The judge of what one client is told: see the module's head.
#[derive(Debug)]
pub struct Oracle {
    client: u32,
    reference: Session,
    keeps_server: bool,
    /// `true` if all settings are the client's own, including those that servers do not report.
    keeps_session: bool,
    /// The requests of the client that may run at a standby.
    pub at_standbys: AtStandbys,
    /// `true` if the client learns the outcome of a change outside of a transaction block.
    pub learns_outcomes: bool,
    /// The settings that ParameterStatus has reported.
    told: BTreeMap<String, String>,
    cancels_asked: u32,
    cancels_hit: u32,
    /// Transactions that it was told are lost with their server.
    losses: u32,
    /// `true` if the client was just told of a lost transaction, instead of an answer to a message that may
    /// end it.
    ends_lost: bool,
    /// The server process of this transaction (or session), and whether the pooler may have taken its node for a standby, so that the
    /// transaction may leave it once.
    process: Option<(Vec<u8>, bool)>,
    /// The snapshot of the statement whose rows came last, with its number.
    saw: Option<(u32, Snapshot)>,
    /// The last row that tells of the board.
    saw_board: Option<Saw>,
    /// The changes of the client's open transaction, and its reports about others' changes.
    changes: Vec<Change>,
    told_of: Vec<Told>,
}

/// Column of a result that says which text ran, or whether a lock was got.
const TEXT_COLUMN: usize = 1;
/// Column of a result that names the server process.
const PID_COLUMN: usize = 2;
/// Column with parameters that servers do not report.
const SILENT_COLUMN: usize = 4;

impl Oracle {
    /// Creates the oracle of a client with these startup parameters. `keeps_server`: session pooling.
    #[must_use]
    pub fn new(
        client: u32,
        parameters: &[(String, String)],
        keeps_server: bool,
        keeps_session: bool,
    ) -> Self {
        let mut reference = Session::new(0, parameters, Behaviour::default());
        // The pooler's own greeting is judged by what the client is told, not by its order.
        reference.greeting(b"");
        Oracle {
            client,
            reference,
            keeps_server,
            keeps_session: keeps_server || keeps_session,
            at_standbys: AtStandbys::Reads,
            learns_outcomes: false,
            told: BTreeMap::new(),
            cancels_asked: 0,
            cancels_hit: 0,
            losses: 0,
            ends_lost: false,
            process: None,
            saw: None,
            saw_board: None,
            changes: Vec::new(),
            told_of: Vec::new(),
        }
    }

    /// Returns the snapshot of the statement whose row has just come, with its number.
    pub fn take_saw(&mut self) -> Option<(u32, Snapshot)> {
        self.saw.take()
    }

    /// Returns what the row that has just come tells of the board.
    pub fn take_saw_board(&mut self) -> Option<Saw> {
        self.saw_board.take()
    }

    /// Returns the reports that the client got about its transactions since the last call.
    pub fn take_told(&mut self) -> Vec<Told> {
        std::mem::take(&mut self.told_of)
    }

    /// Notes the last message's report about the client's transactions. `is_unknown`: their outcome is not
    /// known.
    fn note_told(&mut self, is_unknown: bool) {
        for note in self.reference.take_notes() {
            match note {
                Note::Wrote(Tag { client: Some(client), number, .. }) => self.changes.push((client, number)),
                Note::Ended { .. } if self.changes.is_empty() => {}
                Note::Ended { kept } => {
                    let changes = std::mem::take(&mut self.changes);
                    match kept {
                        true => self.told_of.push(Told::Committed(changes)),
                        false if is_unknown => self.told_of.push(Told::Unknown(changes)),
                        false => self.told_of.push(Told::RolledBack(changes)),
                    }
                }
                _ => {}
            }
        }
    }

    /// The client sends a message.
    pub fn sent(&mut self, message: &Message) {
        self.reference.feed(message.clone());
    }

    /// The client asks for a cancel.
    pub fn asked_for_cancel(&mut self) {
        self.cancels_asked += 1;
    }

    /// Returns whether all requests are answered.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.reference.owes_nothing()
    }

    /// The server waits for copy data.
    #[must_use]
    pub fn is_copying(&self) -> bool {
        self.reference.is_copying_in()
    }

    /// Returns whether the client has sent no request, and no part of one, that is not answered.
    #[must_use]
    pub fn is_at_rest(&self) -> bool {
        self.is_settled() && !self.reference.in_group()
    }

    /// The number of its transactions that were lost with their server.
    #[must_use]
    pub fn losses(&self) -> u32 {
        self.losses
    }

    /// A transaction or message group is open, as far as the client was told.
    #[must_use]
    pub fn is_bound(&self) -> bool {
        self.reference.is_bound()
    }

    /// A ParameterStatus, in a greeting or later.
    pub fn parameter_status(&mut self, message: &Message) -> Verdict {
        let mut fields = Fields(&message.body);
        let (Some(name), Some(value)) = (fields.text(), fields.text()) else {
            return Verdict::Wrong("malformed ParameterStatus".to_owned());
        };
        if let Some(owner) =
            value.strip_prefix('c').and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok())
            && owner != self.client
        {
            return Verdict::Wrong(format!("told of client {owner}'s parameter {name}={value}"));
        }
        self.told.insert(name.to_owned(), value.to_owned());
        Verdict::Right
    }

    /// ReadyForQuery: what the client was told of its parameters must be true now.
    pub fn check_parameters(&self) -> Verdict {
        for (name, _) in TRACKED {
            let (is, told) = (self.reference.parameter(name), self.told.get(name).map(String::as_str));
            if told != Some(is) {
                return Verdict::Wrong(format!("parameter {name} is \"{is}\", the client was told {told:?}"));
            }
        }
        Verdict::Right
    }

    /// The channels it listens to, as far as the client was told.
    #[must_use]
    pub fn channels(&self) -> &BTreeSet<String> {
        self.reference.channels()
    }

    /// A notification may come now: between two transactions, or before the end of one is told.
    #[must_use]
    pub fn may_be_notified(&self) -> bool {
        !self.reference.is_in_transaction() || self.lacks_ready_only()
    }

    /// Returns whether only the ReadyForQuery of an answer is missing, and no transaction is open.
    #[must_use]
    pub fn lacks_ready_only(&self) -> bool {
        let mut ahead = self.reference.clone();
        loop {
            match ahead.step() {
                Step::Say(next) if next.tag == b'S' => {}
                Step::Say(next) => return next.tag == b'Z' && next.body == b"I",
                Step::NeedInput | Step::Quit => return false,
                Step::Flush | Step::Wait(_) | Step::Lock { .. } | Step::Ask(_) | Step::Quiet => {}
            }
        }
    }

    /// A message arrived after login.
    pub fn check(&mut self, message: &Message) -> Verdict {
        let mut is_unknown = false;
        match message.tag {
            b'S' => return self.parameter_status(message),
            b'N' if ErrorText::read(message).message.starts_with("No server connection available") => {
                return Verdict::Right;
            }
            b'E' => {
                let text = ErrorText::read(message);
                if text.severity == "FATAL" || text.severity == "PANIC" {
                    return Verdict::Fatal(text);
                }
                is_unknown = text.code == "08007";
                if let Some(wrong) = self.lost(&text) {
                    return wrong;
                }
                let refused = ["25006", "0A000"].into_iter().find(|code| *code == text.code);
                let may_be = self.at_standbys == AtStandbys::All || !text.message.ends_with(IN_RECOVERY);
                if let Some(code) = refused.filter(|_| may_be) {
                    // PostgreSQL says so of a change in any read-only transaction.
                    self.reference.refuse_at_standby(code, &text.message);
                }
                if text.code == "25P02" && self.reference.is_failed() {
                    self.reference.refuse_in_failed();
                }
                if text.code == "40P01" && !self.reference.deadlock_next() {
                    return Verdict::Wrong("a deadlock where nothing waits for a lock".to_owned());
                }
                if text.code == "57014"
                    && text.message.starts_with("canceling")
                    && let Some(wrong) = self.cancelled()
                {
                    return wrong;
                }
            }
            b'D' => {
                // The locks of other sessions decide whether it got a lock.
                let got =
                    columns(message).is_some_and(|columns| columns.get(TEXT_COLUMN) == Some(&&b"t"[..]));
                self.reference.told_of_lock(got);
            }
            _ => {}
        }
        let due = loop {
            match self.reference.step() {
                Step::Say(due) if due.tag == b'S' => {}
                Step::Say(due) => break due,
                Step::NeedInput | Step::Quit => {
                    return Verdict::Wrong(format!("nothing was due, got {message:?}"));
                }
                Step::Flush | Step::Wait(_) | Step::Lock { .. } | Step::Ask(_) | Step::Quiet => {}
            }
        };
        self.note_told(is_unknown);
        let ends_lost = std::mem::take(&mut self.ends_lost);
        if ends_lost && message.tag == b'Z' && message.body == b"I" && due.body == b"E" {
            // COMMIT was told that there is nothing to commit.
            self.reference.leave_block();
            return self.check_ready(message);
        }
        self.ends_lost = ends_lost && message.tag != b'Z';
        match self.compare(&due, message) {
            Ok(()) if due.tag == b'Z' => self.check_ready(message),
            Ok(()) => Verdict::Right,
            Err(why) => Verdict::Wrong(format!("{why}: due {}, got {}", shown(&due), shown(message))),
        }
    }

    /// The pooler may say that its transaction, or its change, is lost with the server. What is wrong with that, if anything.
    fn lost(&mut self, text: &ErrorText) -> Option<Verdict> {
        let code = ["40001", "08007"].into_iter().find(|code| text.code == *code)?;
        let may_end = self.reference.lose_transaction(code, &text.message);
        // If a change was said to be interrupted, the history has it, or does not: that is looked at there.
        let learns = self.learns_outcomes || text.message.starts_with(INTERRUPTED);
        if may_end.is_none() && !(learns && self.reference.lose_change(code, &text.message)) {
            return Some(Verdict::Wrong("a transaction was lost where none was open".to_owned()));
        }
        self.ends_lost = may_end == Some(true);
        self.process = None;
        self.losses += 1;
        None
    }

    fn cancelled(&mut self) -> Option<Verdict> {
        if self.cancels_hit == self.cancels_asked {
            return Some(Verdict::Wrong(
                "a statement was cancelled that no client asked to cancel".to_owned(),
            ));
        }
        self.cancels_hit += 1;
        // A server looked at the statement, or it still waited for one.
        let mut ran = self.reference.clone();
        if ran.cancel_next() {
            self.reference = ran;
            return None;
        }
        (!self.reference.cancel_waiting())
            .then(|| Verdict::Wrong("a cancel came where nothing could be running or waiting".to_owned()))
    }

    fn check_ready(&mut self, message: &Message) -> Verdict {
        if message.body == b"I" && !self.keeps_server {
            self.process = None;
        }
        self.check_parameters()
    }

    fn compare(&mut self, due: &Message, got: &Message) -> Result<(), &'static str> {
        if due.tag != got.tag {
            return Err("another message");
        }
        match due.tag {
            b'D' => self.compare_row(due, got),
            b'E' => {
                let (due, got) = (ErrorText::read(due), ErrorText::read(got));
                // Whose statement failed must be right; how a missing statement is called is the pooler's choice.
                let same_text = due.message == got.message || !due.message.contains("c=");
                // In a failed transaction, which error comes first may be the pooler's choice: it may have lost the server.
                let is_choice = got.code == "25P02" && self.reference.is_failed();
                (is_choice || due.code == got.code && same_text).then_some(()).ok_or("another error")
            }
            b'N' => (ErrorText::read(due) == ErrorText::read(got)).then_some(()).ok_or("another notice"),
            _ => (due.body == got.body).then_some(()).ok_or("other contents"),
        }
    }

    fn compare_row(&mut self, due: &Message, got: &Message) -> Result<(), &'static str> {
        let (due, got) = (columns(due).ok_or("due row")?, columns(got).ok_or("malformed row")?);
        if got.len() != due.len() {
            return Err("another number of columns");
        }
        // A text of all clients names none, and a client's own statements are numbered from 1.
        let tag = Tag::of(&String::from_utf8_lossy(got[0]));
        let is_everybodys = tag.client == Some(0) && tag.number == 0;
        for (i, (due, got)) in due.iter().zip(&got).enumerate() {
            let counts = i != PID_COLUMN && (i != SILENT_COLUMN || self.keeps_session);
            let is_right = due == got
                || i == SILENT_COLUMN && is_same_at_standby(due, got)
                || i == SILENT_COLUMN && is_everybodys && read_with(due) == read_with(got);
            if counts && !is_right {
                return Err(match COLUMNS[i] {
                    "id" => "another client's row, or out of order",
                    "text" => "another prepared text",
                    "tracked" | "silent" => "another session's parameters",
                    _ => "torn row",
                });
            }
        }
        let process = String::from_utf8_lossy(got[PID_COLUMN]);
        let number = Tag::of(&String::from_utf8_lossy(got[0])).number;
        self.saw = Snapshot::read(&process).map(|snapshot| (number, snapshot));
        let (place, board) = process.split_once(board::MARK).unwrap_or((&process, ""));
        self.saw_board = read_board(board).map(|values| {
            let text = std::str::from_utf8(got[TEXT_COLUMN]).ok().and_then(|text| text.parse().ok());
            Saw { values, text: text.filter(|_| is_everybodys) }
        });
        if is_everybodys {
            // It may be an answer that was kept, from another server.
            return Ok(());
        }
        let pid = place.split('@').next().unwrap_or_default().as_bytes().to_vec();
        let at_standby = got[SILENT_COLUMN].ends_with(AT_STANDBY.as_bytes());
        let was_promoted = self.saw.is_some_and(|(_, snapshot)| snapshot.is_of_promoted());
        let begins_at_standby = self.at_standbys == AtStandbys::Beginnings;
        match &self.process {
            Some((bound, _)) if *bound == pid => Ok(()),
            Some((_, true)) if !at_standby => {
                self.process = Some((pid, false));
                Ok(())
            }
            Some(_) => Err("the server changed inside a transaction"),
            None => {
                self.process = Some((pid, begins_at_standby && (at_standby || was_promoted)));
                Ok(())
            }
        }
    }
}

/// A message as it is told of: a row with all of its columns.
fn shown(message: &Message) -> String {
    match columns(message).filter(|_| message.tag == b'D') {
        Some(columns) => {
            columns.iter().map(|value| value.escape_ascii().to_string()).collect::<Vec<_>>().join(" | ")
        }
        None => format!("{message:?}"),
    }
}

/// Reads the values of the board in a row.
fn read_board(text: &str) -> Option<Values> {
    let mut values = [0; TABLES];
    let mut parts = text.split(',');
    for value in &mut values {
        *value = parts.next()?.parse().ok()?;
    }
    Some(values)
}

/// The same session, at a server that is a standby by the last that it has told: it has all but its channels.
fn is_same_at_standby(due: &[u8], got: &[u8]) -> bool {
    got.strip_suffix(AT_STANDBY.as_bytes()).is_some_and(|got| got == without_channels(due))
}

fn without_channels(silent: &[u8]) -> Vec<u8> {
    let parts = silent.split(|byte| *byte == b';').filter(|part| !part.starts_with(b"channel "));
    parts.collect::<Vec<_>>().join(&b';')
}

/// Returns the parts of a session on which the answers depend that all clients share: its settings and temporary tables.
fn read_with(silent: &[u8]) -> Vec<&[u8]> {
    let others: [&[u8]; 4] = [b"channel ", b"cursor ", b"lock ", b"statement "];
    let parts = silent.split(|byte| *byte == b';');
    parts.filter(|part| !others.iter().any(|other| part.starts_with(other))).collect()
}

fn columns(row: &Message) -> Option<Vec<&[u8]>> {
    let mut fields = Fields(&row.body);
    let count = fields.int16()?;
    let columns = (0..count).map(|_| fields.counted()?).collect::<Option<Vec<_>>>()?;
    fields.0.is_empty().then_some(columns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::client::message::{bind, execute, parse, query, sync};
    use crate::sim::network::proto::{Body, report};

    /// Answers of a server with process id 5 to these messages.
    fn answers(messages: &[Message]) -> Vec<Message> {
        let mut server = Session::new(5, &[], Behaviour::default());
        server.greeting(b"");
        messages.iter().for_each(|message| server.feed(message.clone()));
        let mut answers = Vec::new();
        loop {
            match server.step() {
                Step::Say(message) => answers.push(message),
                Step::NeedInput => return answers,
                _ => {}
            }
        }
    }

    /// Client 3 sent these messages and gets these answers.
    fn judge(messages: &[Message], answers: &[Message], cancels: u32) -> Result<(), String> {
        let mut oracle = Oracle::new(3, &[], false, false);
        for (name, value) in TRACKED {
            oracle.parameter_status(&Body::new().text(name).text(value).message(b'S'));
        }
        messages.iter().for_each(|message| oracle.sent(message));
        (0..cancels).for_each(|_| oracle.asked_for_cancel());
        for answer in answers {
            match oracle.check(answer) {
                Verdict::Right => {}
                other => return Err(format!("{other:?}")),
            }
        }
        if oracle.is_settled() { Ok(()) } else { Err("an answer is missing".to_owned()) }
    }

    fn judge_changed(change: impl FnOnce(&mut Vec<Message>)) -> Result<(), String> {
        let mut all = answers(&messages());
        change(&mut all);
        judge(&messages(), &all, 0)
    }

    fn messages() -> Vec<Message> {
        vec![
            query("BEGIN /*c=3 n=1*/; SELECT who /*c=3 n=2 r=3*/"),
            parse("", "SELECT who($1) /*t=4*/"),
            bind("", "", &["c=3 n=3 b=9".to_owned()]),
            execute("", 0),
            sync(),
            query("SET application_name='c3 x' /*c=3 n=4*/; COMMIT /*c=3 n=5*/"),
        ]
    }

    #[test]
    fn the_right_answers_pass() {
        assert_eq!(judge_changed(|_| {}), Ok(()));
    }

    #[test]
    fn every_lost_doubled_or_swapped_message_is_seen() {
        let right = answers(&messages());
        assert!(right.len() > 12);
        for (at, message) in right.iter().enumerate().filter(|(_, message)| message.tag != b'S') {
            assert!(judge_changed(|all| drop(all.remove(at))).is_err(), "lost {message:?}");
            assert!(judge_changed(|all| all.insert(at, message.clone())).is_err(), "doubled {message:?}");
            // ParameterStatus may come at any time before ReadyForQuery.
            if right.get(at + 1).is_some_and(|next| next.tag != b'S') {
                assert!(judge_changed(|all| all.swap(at, at + 1)).is_err(), "swapped {message:?}");
            }
        }
    }

    #[test]
    fn a_row_of_another_client_another_server_or_another_session_is_seen() {
        let row = |from: &'static [u8], to: &'static [u8]| {
            move |all: &mut Vec<Message>| {
                let row = all.iter_mut().rev().find(|m| m.tag == b'D').expect("a row");
                let at = row.body.windows(from.len()).position(|w| w == from).expect("the words");
                row.body[at..at + from.len()].copy_from_slice(to);
            }
        };
        for (from, to) in [
            (&b"c=3"[..], &b"c=4"[..]),
            (b"n=3", b"n=2"),
            (b"\x00\x00\x00\x015", b"\x00\x00\x00\x016"),
            (b"Etc/UTC", b"Etc/GMT"),
        ] {
            assert!(judge_changed(row(from, to)).is_err(), "{}", String::from_utf8_lossy(from));
        }
    }

    #[test]
    fn a_cancel_is_right_only_where_one_was_asked_and_a_statement_ran() {
        let cancel = report(b'E', "ERROR", "57014", "canceling statement due to user request");
        let hit = [cancel, Body::new().byte(b'I').message(b'Z')];
        let text = [query("SELECT who /*c=3 n=1*/")];
        assert_eq!(judge(&text, &hit, 1), Ok(()));
        assert!(judge(&text, &hit, 0).is_err());
        assert!(judge(&[sync()], &hit, 1).is_err());
    }

    #[test]
    fn what_is_told_of_a_transaction_is_noted_with_its_changes() {
        let told = |end: &[Message]| {
            let mut oracle = Oracle::new(3, &[], false, false);
            for (name, value) in TRACKED {
                oracle.parameter_status(&Body::new().text(name).text(value).message(b'S'));
            }
            let block = ["BEGIN /*c=3 n=1*/", "INSERT INTO t /*c=3 n=2*/", "COMMIT /*c=3 n=3*/"].map(query);
            block.iter().for_each(|message| oracle.sent(message));
            let all = answers(&block);
            let begun = &all[..all.len() - 2];
            for answer in begun.iter().chain(end) {
                assert_eq!(oracle.check(answer), Verdict::Right);
            }
            assert!(oracle.is_settled() && !oracle.is_bound());
            oracle.take_told()
        };
        let ready = Body::new().byte(b'I').message(b'Z');
        let lost = |code| [report(b'E', "ERROR", code, "the primary was lost"), ready.clone()];
        let committed = [Body::new().text("COMMIT").message(b'C'), ready.clone()];
        assert_eq!(told(&committed), [Told::Committed(vec![(3, 2)])]);
        assert_eq!(told(&lost("40001")), [Told::RolledBack(vec![(3, 2)])]);
        assert_eq!(told(&lost("08007")), [Told::Unknown(vec![(3, 2)])]);
    }

    #[test]
    fn a_lie_about_a_parameter_is_seen() {
        let lie = |all: &mut Vec<Message>| {
            let status = all.iter_mut().find(|m| m.tag == b'S').expect("a ParameterStatus");
            *status = Body::new().text("application_name").text("c4 y").message(b'S');
        };
        assert!(judge_changed(lie).is_err());
        assert!(judge_changed(|all| all.retain(|m| m.tag != b'S')).is_err());
    }
}
