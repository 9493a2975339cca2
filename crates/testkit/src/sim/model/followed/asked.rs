//! The questions of the pooler about a database that it follows, and their answers.

use crate::sim::check::followed::tables_read;
use crate::sim::model::followed::sender::{followed_tables, number};
use crate::sim::model::followed::{Wal, What};
use crate::sim::model::nodes::xids::Reply;
use crate::sim::rng::Rng;

/// The reply to a question of a connection that follows.
pub(super) enum Answer {
    /// One row.
    Row(Vec<Option<String>>),
    /// An error.
    Error(&'static str, &'static str),
    /// The answer comes when transactions have ended.
    Later,
    /// The stream begins.
    Stream,
    /// No question that is known.
    Unknown,
}

/// Number of the database, and the system identifier.
const DATABASE: &str = "5";
const SYSTEM: &str = "-7000000000000000001";

/// Returns the numbers of the tables that PostgreSQL locks when it reads this text of all clients.
#[must_use]
pub fn locks(text: u32, definitions: u64) -> String {
    let numbers: Vec<String> =
        tables_read(text, definitions).iter().map(|table| number(*table).to_string()).collect();
    numbers.join(",")
}

impl Wal {
    /// The answer to the question which server a session is at.
    pub(in crate::sim::model) fn node(&self) -> Reply {
        let text = |text: &str| Some(text.to_owned());
        let started = Some(self.started_us.to_string());
        Ok(vec![started, text(SYSTEM), text(DATABASE), text("false"), text("read committed")])
    }

    /// Answers a question of a connection that follows the database.
    pub(super) fn answer(&mut self, rng: &mut Rng, process: usize, question: &str, now_us: u64) -> Answer {
        let text = |text: &str| Some(text.to_owned());
        if question.starts_with("SET search_path") {
            let level = if self.outside.is_logical(now_us) { "logical" } else { "replica" };
            return Answer::Row(vec![
                text("150004"),
                Some(self.started_us.to_string()),
                text(SYSTEM),
                text(DATABASE),
                text("8192"),
                Some(self.snapshot()),
                text(level),
                text("false"),
                text("false"),
                text("true"),
            ]);
        }
        if question.contains("EXECUTE pgweir_definitions") {
            let definitions = self.check.values()[crate::sim::check::followed::DEFINITIONS];
            return Answer::Row(
                [self.publication, definitions, self.settings].map(|n| Some(n.to_string())).to_vec(),
            );
        }
        if question.starts_with("SELECT (SELECT string_agg(c.oid") {
            let tables = followed_tables(self.has_ledger());
            return Answer::Row(vec![Some(tables), None, text("board"), None]);
        }
        if question.starts_with("SELECT (SELECT spill_bytes::text") {
            // Large transactions are sent before their commit: nothing is written to the disk.
            return Answer::Row(vec![text("0"), Some(self.snapshot())]);
        }
        if question.starts_with("SELECT pg_current_snapshot()") {
            return Answer::Row(self.probe(rng, question.contains("pg_logical_emit_message")));
        }
        if question.starts_with("SELECT (EXTRACT(epoch FROM pg_catalog.pg_postmaster_start_time())") {
            return self.node().map_or(Answer::Unknown, Answer::Row);
        }
        if let Some(rest) = question.strip_prefix("CREATE_REPLICATION_SLOT ") {
            if self.outside.refuses_slots(now_us) {
                return Answer::Error("53400", "all replication slots are in use");
            }
            if !self.slots.contains_key(&process) {
                self.begin_slot(process);
            }
            let name = rest.split(' ').next().map(str::to_owned);
            return match self.is_slot_made(process) {
                true => Answer::Row(vec![name, text("0/0"), None, text("pgoutput")]),
                false => Answer::Later,
            };
        }
        match question.starts_with("START_REPLICATION SLOT ") && self.senders.contains_key(&process) {
            true => Answer::Stream,
            false => Answer::Unknown,
        }
    }

    /// Returns whether the publication has the second table, as far as a snapshot shows.
    fn has_ledger(&self) -> bool {
        // It begins with it, and each change is the opposite of the one before.
        !self.publication.is_multiple_of(2)
    }

    /// The answer to a probe. One that makes the server write its log is a transaction of its own.
    fn probe(&mut self, rng: &mut Rng, flushes: bool) -> Vec<Option<String>> {
        let snapshot = self.snapshot();
        let position = self.inserts_at();
        let mut row = vec![Some(snapshot), Some(lsn(position)), Some(self.started_us.to_string())];
        if flushes {
            let xid = self.begin();
            self.append(rng, What::Other);
            let end = self.append(rng, What::Commit { xid });
            self.flushed(rng, end);
            self.complete(xid);
            row.push(Some(lsn(end)));
        }
        row
    }
}

/// A position, as PostgreSQL writes it.
fn lsn(position: u64) -> String {
    format!("{:X}/{:X}", position >> 32, position & 0xffff_ffff)
}
