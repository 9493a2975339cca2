//! A standby's handling of statements if clients must not notice it (`route=auto`): it refuses some reads as
//! PostgreSQL does, and anything but a read, or a transaction that only reads, should not be there.

use super::super::session::{Access, Balanced, Block, IN_RECOVERY, Note, Refusal, Session};
use super::super::statement::{Hold, Statement, Tag, Verb};

/// The number of reads of which a standby refuses one because of a conflict with recovery, and one because
/// data has not arrived.
const REFUSED_ONE_IN: u32 = 12;

/// The shared text that a standby cannot prepare: its table has not arrived.
const TEXT_NOT_ARRIVED: u32 = 4;

impl Statement {
    /// Returns whether a read-only transaction at a standby is refused with this code by the pooler (0A000)
    /// or PostgreSQL (25006), while the primary does not refuse it.
    #[must_use]
    pub fn is_otherwise_at_standby(&self, code: &str) -> bool {
        match &self.verb {
            Verb::SelectState | Verb::Notices | Verb::Hold(Hold::Lock { .. } | Hold::Unlock(_)) => {
                code == "0A000"
            }
            Verb::Set { value, .. } => {
                code == "0A000" && value.as_deref().is_some_and(|value| value.contains("pg_temp"))
            }
            Verb::Hold(Hold::Declare(_) | Hold::Execute(_)) => code == "0A000",
            Verb::Hold(Hold::Prepare { verb, .. }) => code == "0A000" && **verb == Verb::SelectState,
            Verb::Hold(Hold::Listen(_) | Hold::Notify(..) | Hold::CreateTable(_)) => code == "25006",
            _ => false,
        }
    }

    /// A standby refuses it, whatever the transaction is.
    #[must_use]
    pub fn is_refused_in_recovery(&self) -> bool {
        matches!(self.verb, Verb::Hold(Hold::Listen(_) | Hold::Notify(..)))
    }

    /// A column that is not there is found before anything runs.
    pub(in super::super) fn has_columns(&self) -> Result<(), Refusal> {
        match &self.verb {
            Verb::NoColumn(name) => Err(Refusal::new("42703", format!("column \"{name}\" does not exist"))),
            _ => Ok(()),
        }
    }
}

impl Session {
    /// A statement has run: what the transaction block may do from here on.
    pub(in super::super) fn note_access(&mut self, statement: &Statement) {
        self.access = match (&statement.verb, self.access) {
            (Verb::Begin | Verb::Start, _)
                if self.behaviour.balanced == Balanced::ReadsUndeclared && self.is_in_recovery() =>
            {
                Access::UndeclaredBegun
            }
            (Verb::Begin | Verb::Start, _) => Access::Write,
            (Verb::BeginReadOnly, _) => Access::Begun,
            (_, Access::Begun) => Access::Read,
            (_, Access::UndeclaredBegun) => Access::UndeclaredRead,
            (_, access) => access,
        };
    }

    /// A statement is about to run, in a transaction that may be read-only.
    pub(in super::super) fn judge_read_only(&mut self, statement: &Statement) -> Result<(), Refusal> {
        let is_read_only = self.block == Block::Open && self.access != Access::Write;
        match statement.verb {
            Verb::Write if is_read_only => {
                Err(Refusal::new("25006", "cannot execute INSERT in a read-only transaction"))
            }
            Verb::CopyIn if is_read_only => {
                Err(Refusal::new("25006", "cannot execute COPY FROM in a read-only transaction"))
            }
            _ => Ok(()),
        }
    }

    /// A statement is about to run.
    pub(in super::super) fn judge_as_standby(&mut self, statement: &Statement) -> Result<(), Refusal> {
        if self.behaviour.balanced == Balanced::Nothing || !statement.tag.is_clients() {
            return match self.is_in_recovery() && statement.is_refused_in_recovery() {
                true => Err(Refusal::new("25006", format!("cannot execute it {IN_RECOVERY}"))),
                false => Ok(()),
            };
        }
        let is_read_only = self.block != Block::None && self.access != Access::Write;
        if is_read_only && (self.block == Block::Failed || !self.access.is_begun()) {
            return match self.access {
                Access::UndeclaredBegun | Access::UndeclaredRead => self.judge_undeclared(statement),
                _ => self.judge_later(statement),
            };
        }
        match statement.verb {
            Verb::BeginReadOnly => return Ok(()),
            Verb::Begin | Verb::Start if self.behaviour.balanced == Balanced::ReadsUndeclared => {
                return Ok(());
            }
            // Of a client's session, which comes with its read.
            Verb::Hold(Hold::Prepare { .. }) if self.block == Block::None => {
                return match statement.tag.number % 3 {
                    0 => self.refuse("42P01", "relation does not exist"),
                    _ => Ok(()),
                };
            }
            Verb::Select | Verb::SelectNone | Verb::Fail => {}
            // The node may have been promoted, which the pooler does not know yet.
            Verb::Set { local: true, .. } | Verb::Commit | Verb::Rollback if self.block != Block::None => {
                return Ok(());
            }
            _ => self.note(Note::Misplaced(format!("{:?}", statement.verb))),
        }
        match statement.tag.number % REFUSED_ONE_IN {
            _ if statement.verb == Verb::Fail => Ok(()),
            1 => self.refuse("40001", "canceling statement due to conflict with recovery"),
            2 => self.refuse("42P01", "relation does not exist"),
            3 if statement.verb == Verb::SelectNone => {
                self.refuse("25006", "cannot execute nextval() in a read-only transaction")
            }
            _ => Ok(()),
        }
    }

    /// The same, behind the first statement of a transaction that only reads.
    fn judge_later(&mut self, statement: &Statement) -> Result<(), Refusal> {
        if statement.is_otherwise_at_standby("25006") {
            return Err(Refusal::new("25006", "cannot execute it in a read-only transaction"));
        }
        if statement.is_otherwise_at_standby("0A000")
            && !matches!(statement.verb, Verb::Hold(Hold::Execute(_)))
        {
            self.note(Note::Misplaced(format!("{:?}", statement.verb)));
        }
        Ok(())
    }

    /// The same of a transaction that does not say what it does: whatever is no read belongs at the primary, unless the transaction has
    /// failed, and nothing comes of it.
    fn judge_undeclared(&mut self, statement: &Statement) -> Result<(), Refusal> {
        let ends = matches!(statement.verb, Verb::Commit | Verb::Rollback);
        let reads = matches!(statement.verb, Verb::Select | Verb::SelectNone | Verb::Fail);
        if self.block != Block::Failed && !ends && !reads {
            self.note(Note::Misplaced(format!("{:?} in a transaction that says nothing", statement.verb)));
        }
        Ok(())
    }

    /// The pooler's own statement in a transaction that only reads: in place of one that it refuses, or the end of one whose first
    /// statement the standby has refused.
    pub(in super::super) fn may_end_read(&self, what: &str) -> bool {
        // In a transaction that has failed nothing runs, whatever the node is by now. Otherwise an UNLISTEN is refused, which a standby would
        // say is done; the pooler takes the node for one until it is told otherwise.
        let is_refusal = match self.block {
            Block::Failed => what.starts_with("NoColumn"),
            _ => self.told_recovery() && what.starts_with("NoColumn(\"pgweir:UNLISTEN"),
        };
        if is_refusal {
            return true;
        }
        self.behaviour.balanced != Balanced::Nothing
            && match self.access {
                Access::Write => false,
                Access::Begun if self.block == Block::Failed && what == "Rollback" => true,
                // The transaction leaves.
                Access::UndeclaredBegun | Access::UndeclaredRead if what == "Rollback" => true,
                Access::UndeclaredBegun | Access::UndeclaredRead => {
                    self.block == Block::Failed && what.starts_with("NoColumn")
                }
                Access::Begun | Access::Read => what.starts_with("NoColumn"),
            }
    }

    fn refuse(&mut self, code: &'static str, text: &str) -> Result<(), Refusal> {
        self.note(Note::Refused);
        Err(Refusal::new(code, text))
    }

    /// A text is about to be prepared.
    pub(in super::super) fn judges_text_as_standby(&mut self, tag: &Tag) -> Result<(), Refusal> {
        let goes_on =
            self.block == Block::Open && matches!(self.access, Access::Read | Access::UndeclaredRead);
        if self.behaviour.balanced == Balanced::Nothing || goes_on || tag.text != TEXT_NOT_ARRIVED {
            return Ok(());
        }
        self.refuse("42P01", "relation does not exist")
    }
}
