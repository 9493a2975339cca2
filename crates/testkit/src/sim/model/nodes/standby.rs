//! What a standby does with statements, where clients must see nothing of it (`route=auto`): it refuses some reads as PostgreSQL does,
//! and anything but a read should not be there.

use super::super::session::{Note, Refusal, Session};
use super::super::statement::{Hold, Statement, Tag, Verb};

/// Of so many reads a standby refuses one because of a conflict with recovery, and one because something has not arrived.
const REFUSED_ONE_IN: u32 = 12;

/// The shared text that a standby cannot prepare: its table has not arrived.
const TEXT_NOT_ARRIVED: u32 = 4;

impl Session {
    /// A statement is about to run.
    pub(in super::super) fn judge_as_standby(&mut self, statement: &Statement) -> Result<(), Refusal> {
        if !self.behaviour.is_balanced_to || !statement.tag.is_clients() {
            return Ok(());
        }
        if matches!(statement.verb, Verb::Hold(Hold::Prepare { .. })) {
            // Of a client's session, which comes with its read.
            return match statement.tag.number % 3 {
                0 => self.refuse("42P01", "relation does not exist"),
                _ => Ok(()),
            };
        }
        if !matches!(statement.verb, Verb::Select | Verb::SelectNone | Verb::Fail) {
            self.note(Note::Misplaced(format!("{:?}", statement.verb)));
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

    fn refuse(&mut self, code: &'static str, text: &str) -> Result<(), Refusal> {
        self.note(Note::Refused);
        Err(Refusal::new(code, text))
    }

    /// A text is about to be prepared.
    pub(in super::super) fn judges_text_as_standby(&mut self, tag: &Tag) -> Result<(), Refusal> {
        if !self.behaviour.is_balanced_to || tag.text != TEXT_NOT_ARRIVED {
            return Ok(());
        }
        self.refuse("42P01", "relation does not exist")
    }
}
