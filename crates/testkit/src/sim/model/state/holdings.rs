//! The state of a model session besides settings: temporary tables, held cursors, advisory locks, statements
//! that were prepared by SQL, the channels it listens to. State that follows transactions here does so in
//! PostgreSQL.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::sim::model::statement::{Tag, Verb};

/// A statement that was prepared by SQL.
#[derive(Clone, Debug)]
pub(in crate::sim::model) struct PreparedBySql {
    /// The statement that is prepared.
    pub(in crate::sim::model) verb: Verb,
    /// The PREPARE's.
    pub(in crate::sim::model) tag: Tag,
    /// The statement's text.
    pub(in crate::sim::model) source: String,
}

/// A cursor that outlives its transaction.
#[derive(Clone, Debug)]
struct Cursor {
    tag: Tag,
    next_row: u32,
}

/// The effects of a transaction on other sessions after its commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    /// LISTEN.
    Listens(String),
    /// UNLISTEN.
    Leaves(String),
    /// NOTIFY: channel, payload.
    Notifies(String, String),
}

/// See the module's head.
#[derive(Clone, Debug, Default)]
pub(in crate::sim::model) struct Holdings {
    tables: BTreeMap<String, Tag>,
    cursors: BTreeMap<String, Cursor>,
    /// The locks, each with the tags of the statements that took it, once for each time.
    locks: BTreeMap<u64, Vec<Tag>>,
    statements: BTreeMap<String, PreparedBySql>,
    channels: BTreeSet<String>,
    /// A function was called by its number: what that left in the session is not known.
    called: bool,
    /// The client that made or dropped tables and the like: what it prepared by SQL, also in the same transaction, may stay here.
    reshaped_by: Option<u32>,
    /// Tables as they were when the open transaction began, and cursors that are not its own.
    before: Option<(BTreeMap<String, Tag>, BTreeSet<String>)>,
    /// The effects of the open transaction after its commit, each with its client.
    pending: Vec<(Told, Option<u32>)>,
}

impl Holdings {
    /// A transaction begins, unless one is open.
    pub(in crate::sim::model) fn begin(&mut self) {
        if self.before.is_none() {
            self.before = Some((self.tables.clone(), self.cursors.keys().cloned().collect()));
        }
    }

    /// The open transaction ends; what it did for other sessions if it was committed.
    pub(in crate::sim::model) fn end(&mut self, keep: bool) -> Vec<(Told, Option<u32>)> {
        let pending = std::mem::take(&mut self.pending);
        let before = self.before.take();
        if !keep {
            if let Some((tables, cursors)) = before {
                self.tables = tables;
                self.cursors.retain(|name, _| cursors.contains(name));
            }
            return Vec::new();
        }
        let mut told = Vec::new();
        // A session that leaves a channel and listens again has never left it: PostgreSQL looks at the channels when it tells.
        let listens_behind = |at: usize, channel: &String| {
            pending[at..].iter().any(|(told, _)| matches!(told, Told::Listens(again) if again == channel))
        };
        let returns: Vec<bool> = pending
            .iter()
            .enumerate()
            .map(|(at, (told, _))| matches!(told, Told::Leaves(channel) if listens_behind(at, channel)))
            .collect();
        for ((what, whose), returns) in pending.into_iter().zip(returns) {
            match &what {
                Told::Leaves(_) if returns => continue,
                Told::Listens(channel) if !self.channels.insert(channel.clone()) => continue,
                Told::Leaves(channel) if !self.channels.remove(channel) => continue,
                _ => {}
            }
            told.push((what, whose));
        }
        told
    }

    /// A statement's effect for other sessions, when its transaction is committed.
    pub(in crate::sim::model) fn promise(&mut self, what: Told, whose: &Tag) {
        self.pending.push((what, whose.client));
    }

    /// Promises to leave all channels, like [`Holdings::promise`]: those it listens to and those it was about
    /// to.
    pub(in crate::sim::model) fn promise_to_leave_all(&mut self, whose: &Tag) {
        let coming = self.pending.iter().filter_map(|(told, _)| match told {
            Told::Listens(channel) => Some(channel),
            _ => None,
        });
        let all: BTreeSet<String> = self.channels.iter().chain(coming).cloned().collect();
        all.into_iter().for_each(|channel| self.promise(Told::Leaves(channel), whose));
    }

    /// `false` if it exists.
    pub(in crate::sim::model) fn create_table(&mut self, name: &str, tag: &Tag) -> bool {
        if self.tables.contains_key(name) {
            return false;
        }
        self.tables.insert(name.to_owned(), *tag);
        self.reshaped_by = tag.client;
        true
    }

    /// `false` if it does not exist.
    pub(in crate::sim::model) fn drop_table(&mut self, name: &str, tag: &Tag) -> bool {
        self.reshaped_by = tag.client;
        self.tables.remove(name).is_some()
    }

    /// `false` if it exists.
    pub(in crate::sim::model) fn prepare(&mut self, name: &str, prepared: PreparedBySql) -> bool {
        if self.statements.contains_key(name) {
            return false;
        }
        self.statements.insert(name.to_owned(), prepared);
        true
    }

    /// A statement that was prepared by SQL.
    pub(in crate::sim::model) fn prepared(&self, name: &str) -> Option<&PreparedBySql> {
        self.statements.get(name)
    }

    /// `false` if it does not exist.
    pub(in crate::sim::model) fn deallocate(&mut self, name: &str) -> bool {
        self.statements.remove(name).is_some()
    }

    /// DEALLOCATE ALL.
    pub(in crate::sim::model) fn deallocate_all(&mut self) {
        self.statements.clear();
        self.reshaped_by = None;
    }

    /// The session got a lock.
    pub(in crate::sim::model) fn lock(&mut self, key: u64, tag: &Tag) {
        self.locks.entry(key).or_default().push(*tag);
    }

    /// `false` if it does not have it.
    pub(in crate::sim::model) fn unlock(&mut self, key: u64) -> bool {
        let Some(times) = self.locks.get_mut(&key) else { return false };
        times.pop();
        if times.is_empty() {
            self.locks.remove(&key);
        }
        true
    }

    /// Releases all locks. Returns them, each as often as it was taken.
    pub(in crate::sim::model) fn unlock_all(&mut self) -> Vec<u64> {
        let all = std::mem::take(&mut self.locks);
        all.into_iter().flat_map(|(key, times)| vec![key; times.len()]).collect()
    }

    /// `false` if it exists.
    pub(in crate::sim::model) fn declare(&mut self, name: &str, tag: &Tag) -> bool {
        if self.cursors.contains_key(name) {
            return false;
        }
        self.cursors.insert(name.to_owned(), Cursor { tag: *tag, next_row: 0 });
        true
    }

    /// The next rows of a cursor: the statement that declared it, the first row, the number of rows.
    pub(in crate::sim::model) fn fetch(&mut self, name: &str, count: u32) -> Option<(Tag, u32, u32)> {
        let cursor = self.cursors.get_mut(name)?;
        let (first, rows) = (cursor.next_row, cursor.tag.rows.max(1));
        cursor.next_row = (first + count).min(rows);
        Some((cursor.tag, first, cursor.next_row - first))
    }

    /// `false` if it does not exist.
    pub(in crate::sim::model) fn close(&mut self, name: &str) -> bool {
        self.cursors.remove(name).is_some()
    }

    /// DISCARD ALL, but for the locks.
    pub(in crate::sim::model) fn discard(&mut self, whose: &Tag) {
        self.tables.clear();
        self.cursors.clear();
        self.called = false;
        self.deallocate_all();
        self.promise_to_leave_all(whose);
    }

    /// A FunctionCall.
    pub(in crate::sim::model) fn call_by_number(&mut self) {
        self.called = true;
    }

    /// The channels it listens to.
    pub(in crate::sim::model) fn channels(&self) -> &BTreeSet<String> {
        &self.channels
    }

    /// Returns whether the session holds state that lives in this one process.
    pub(in crate::sim::model) fn is_bound_to_process(&self) -> bool {
        let mut prepared = self.statements.values().filter_map(|known| known.tag.client);
        !(self.tables.is_empty() && self.cursors.is_empty() && self.locks.is_empty())
            || self.called
            || prepared.any(|client| self.reshaped_by == Some(client))
    }

    /// Another client whose things the session holds, and what they are.
    pub(in crate::sim::model) fn stranger(&self, client: u32) -> Option<(u32, String)> {
        let tables = self.tables.iter().map(|(name, tag)| (tag, format!("temporary table {name}")));
        let cursors = self.cursors.iter().map(|(name, cursor)| (&cursor.tag, format!("held cursor {name}")));
        let locks = self
            .locks
            .iter()
            .flat_map(|(key, tags)| tags.iter().map(move |tag| (tag, format!("lock {key}"))));
        let prepared = self.statements.iter().map(|(name, known)| (&known.tag, format!("statement {name}")));
        let all = tables.chain(cursors).chain(locks).chain(prepared);
        all.filter_map(|(tag, what)| Some((tag.client?, what))).find(|(owner, _)| *owner != client)
    }

    /// Returns the holdings as PostgreSQL's catalogs show them: the kind, the name and the value.
    pub(in crate::sim::model) fn rows(&self) -> Vec<[Option<String>; 3]> {
        let row = |kind: &str, name: Option<&String>, value: Option<&String>| {
            [Some(kind.to_owned()), name.cloned(), value.cloned()]
        };
        let mut rows = Vec::new();
        rows.extend(self.statements.iter().map(|(name, known)| row("p", Some(name), Some(&known.source))));
        rows.extend(self.cursors.keys().map(|name| row("c", Some(name), None)));
        rows.extend(self.channels.iter().map(|name| row("l", Some(name), None)));
        rows.extend((!self.tables.is_empty()).then(|| row("t", None, None)));
        rows.extend((!self.locks.is_empty()).then(|| row("a", None, None)));
        rows
    }

    /// Returns the holdings in one text, for a result row; empty if there are none.
    pub(in crate::sim::model) fn line(&self) -> String {
        let mut line = self.tables_line();
        for (name, cursor) in &self.cursors {
            let _ = write!(line, ";cursor {name}={}@{}", cursor.tag.number, cursor.next_row);
        }
        for (key, tags) in &self.locks {
            let _ = write!(line, ";lock {key}={}", tags.len());
        }
        for (name, known) in &self.statements {
            let _ = write!(line, ";statement {name}={}", known.tag.number);
        }
        for channel in &self.channels {
            let _ = write!(line, ";channel {channel}");
        }
        line
    }

    /// Returns the part of the line about temporary tables.
    pub(in crate::sim::model) fn tables_line(&self) -> String {
        let mut line = String::new();
        for (name, tag) in &self.tables {
            let _ = write!(line, ";table {name}={}", tag.number);
        }
        line
    }
}
