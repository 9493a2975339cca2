//! Statements that make, use or end what a session holds: their effects, and what they answer.

use super::holdings::{PreparedBySql, Told};
use crate::sim::model::exec::answer_row;
use crate::sim::model::session::{Note, Refusal, Session};
use crate::sim::model::statement::{Hold, Statement, Tag};
use crate::sim::network::proto::report;

fn exists(code: &'static str, what: &str, name: &str) -> Refusal {
    Refusal::new(code, format!("{what} \"{name}\" already exists"))
}

fn missing(code: &'static str, what: &str, name: &str) -> Refusal {
    Refusal::new(code, format!("{what} \"{name}\" does not exist"))
}

impl Session {
    /// The statement that an EXECUTE stands for: with what it was prepared for, and as this execution.
    pub(in crate::sim::model) fn executed(&self, name: &str, tag: &Tag) -> Result<Statement, Refusal> {
        let known = self.holdings.prepared(name);
        let known = known.ok_or_else(|| missing("26000", "prepared statement", name))?;
        let tag = Tag { text: known.tag.number, ..*tag };
        Ok(Statement { verb: known.verb.clone(), tag, params: 0 })
    }

    /// Carries out a statement, in its last moment; its command tag.
    pub(in crate::sim::model) fn hold(&mut self, hold: &Hold, tag: &Tag) -> Result<String, Refusal> {
        let done = match hold {
            Hold::Listen(channel) => {
                self.holdings.promise(Told::Listens(channel.clone()), tag);
                "LISTEN"
            }
            Hold::Unlisten(channel) => {
                match channel {
                    Some(channel) => self.holdings.promise(Told::Leaves(channel.clone()), tag),
                    None => self.holdings.promise_to_leave_all(tag),
                }
                "UNLISTEN"
            }
            Hold::Notify(channel, payload) => {
                self.holdings.promise(Told::Notifies(channel.clone(), payload.clone()), tag);
                "NOTIFY"
            }
            Hold::CreateTable(name) => {
                let made = self.holdings.create_table(name, tag);
                made.then_some("CREATE TABLE").ok_or_else(|| exists("42P07", "relation", name))?
            }
            Hold::DropTable(name) => {
                let dropped = self.holdings.drop_table(name, tag);
                dropped.then_some("DROP TABLE").ok_or_else(|| missing("42P01", "table", name))?
            }
            Hold::Prepare { name, verb, source } => {
                let prepared = PreparedBySql { verb: (**verb).clone(), tag: *tag, source: source.clone() };
                let made = !self.prepared.contains_key(name) && self.holdings.prepare(name, prepared);
                made.then_some("PREPARE").ok_or_else(|| exists("42P05", "prepared statement", name))?
            }
            // What it stands for was put in its place before.
            Hold::Execute(name) => return Err(missing("26000", "prepared statement", name)),
            Hold::Deallocate(name) => {
                let known = self.prepared.remove(name).is_some() | self.holdings.deallocate(name);
                known.then_some("DEALLOCATE").ok_or_else(|| missing("26000", "prepared statement", name))?
            }
            Hold::Lock { key, waits } => {
                let got = self.got_lock || *waits;
                if got {
                    self.holdings.lock(*key, tag);
                }
                answer_row(self, tag, 0, if got { "t" } else { "f" }, Vec::new());
                "SELECT 1"
            }
            Hold::Unlock(key) => {
                let had = self.unlock(*key);
                answer_row(self, tag, 0, if had { "t" } else { "f" }, Vec::new());
                "SELECT 1"
            }
            Hold::Declare(name) => {
                let made = self.holdings.declare(name, tag);
                made.then_some("DECLARE CURSOR").ok_or_else(|| exists("42P03", "cursor", name))?
            }
            Hold::Fetch(name, count) => {
                let found = self.holdings.fetch(name, *count);
                let (declared, first, rows) = found.ok_or_else(|| missing("34000", "cursor", name))?;
                for row in first..first + rows {
                    answer_row(self, tag, row, &declared.number.to_string(), Vec::new());
                }
                return Ok(format!("FETCH {rows}"));
            }
            Hold::Close(name) => {
                let known = self.holdings.close(name);
                known.then_some("CLOSE CURSOR").ok_or_else(|| missing("34000", "cursor", name))?
            }
        };
        Ok(done.to_owned())
    }

    fn unlock(&mut self, key: Option<u64>) -> bool {
        let Some(key) = key else {
            self.unlock_all();
            return true;
        };
        let had = self.holdings.unlock(key);
        if had {
            self.note(Note::Unlocked(key));
        } else {
            self.say(report(b'N', "WARNING", "01000", "you don't own a lock of type ExclusiveLock"));
        }
        had
    }

    /// Gives up all advisory locks.
    pub(in crate::sim::model) fn unlock_all(&mut self) {
        for key in self.holdings.unlock_all() {
            self.note(Note::Unlocked(key));
        }
    }
}
