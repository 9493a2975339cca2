//! Extended protocol of the model: prepared statements, portals, and what Describe says about them.

use crate::sim::model::exec::Run;
use crate::sim::model::session::{Block, Note, Refusal, Session};
use crate::sim::model::statement::{Statement, Tag, Verb, parse};
use crate::sim::network::proto::{Body, Fields, Message};

/// A prepared statement; `None` for an empty query string.
#[derive(Clone, Debug)]
pub(in crate::sim::model) struct Prepared {
    pub(in crate::sim::model) statement: Option<Statement>,
}

/// A bound statement, and how far its rows were fetched.
#[derive(Clone, Debug)]
pub(in crate::sim::model) struct Portal {
    pub(in crate::sim::model) statement: Option<Statement>,
    next_row: u32,
    is_done: bool,
}

impl Portal {
    /// Remembers where an Execute stopped.
    pub(in crate::sim::model) fn advance(&mut self, run: &Run) {
        self.next_row = run.next_row();
        self.is_done = !run.is_suspended();
    }
}

/// A message whose fields do not fit its length.
fn malformed() -> Refusal {
    Refusal::new("08P01", "invalid message format")
}

/// OID of type text.
const TEXT_OID: i32 = 25;

/// The columns of every result set: name, then as in `pg_attribute`.
pub const COLUMNS: [&str; 6] = ["id", "text", "pid", "tracked", "silent", "filler"];

/// RowDescription of every result set.
#[must_use]
pub fn row_description() -> Message {
    let count = i16::try_from(COLUMNS.len()).expect("few columns");
    COLUMNS
        .iter()
        .fold(Body::new().int16(count), |body, name| {
            body.text(name).int32(0).int16(0).int32(TEXT_OID).int16(-1).int32(-1).int16(0)
        })
        .message(b'T')
}

impl Session {
    /// Handles a Parse.
    pub(in crate::sim::model) fn parse(&mut self, body: &[u8]) -> Result<(), Refusal> {
        self.begin_in_group();
        let mut fields = Fields(body);
        let name = fields.text().ok_or_else(malformed)?;
        let text = fields.text().ok_or_else(malformed)?;
        if name.is_empty() {
            self.prepared.remove("");
        }
        let mut statements = parse(text).map_err(|error| {
            self.note_misunderstood(text);
            Refusal::new("42601", error)
        })?;
        if statements.len() > 1 {
            return Err(Refusal::new("42601", "cannot insert multiple commands into a prepared statement"));
        }
        let statement = statements.pop().filter(|s| s.verb != Verb::Empty);
        self.check_failed_block(statement.as_ref())?;
        if let Some(statement) = &statement {
            self.judges_text_as_standby(&statement.tag)?;
            statement.has_columns()?;
        }
        if !name.is_empty() && self.prepared.contains_key(name) {
            return Err(Refusal::new("42P05", format!("prepared statement \"{name}\" already exists")));
        }
        self.prepared.insert(name.to_owned(), Prepared { statement });
        self.say(Message::bare(b'1'));
        Ok(())
    }

    /// Handles a Bind.
    pub(in crate::sim::model) fn bind(&mut self, body: &[u8]) -> Result<(), Refusal> {
        self.begin_in_group();
        let mut fields = Fields(body);
        let portal = fields.text().ok_or_else(malformed)?.to_owned();
        let name = fields.text().ok_or_else(malformed)?;
        let mut statement = self.find_prepared(name)?.statement.clone();
        let formats = usize::try_from(fields.int16().ok_or_else(malformed)?).map_err(|_| malformed())?;
        fields.take(formats * 2).ok_or_else(malformed)?;
        let given = fields.int16().ok_or_else(malformed)?;
        let mut parameters = Tag::default();
        if let Some(statement) = &statement {
            parameters = statement.tag;
        }
        for _ in 0..given {
            if let Some(value) = fields.counted().ok_or_else(malformed)? {
                parameters.absorb(&String::from_utf8_lossy(value));
            }
        }
        let wanted = statement.as_ref().map_or(0, |s| s.params);
        if i32::from(given) != i32::from(wanted) {
            let text = format!("bind message supplies {given} parameters, but it requires {wanted}");
            return Err(Refusal::new("08P01", text));
        }
        self.check_failed_block(statement.as_ref())?;
        if !portal.is_empty() && self.portals.contains_key(&portal) {
            return Err(Refusal::new("42P03", format!("cursor \"{portal}\" already exists")));
        }
        if !name.is_empty() {
            self.note(Note::Bound { name: name.to_owned(), tag: parameters });
        }
        if let Some(statement) = &mut statement {
            statement.tag = parameters;
        }
        if self.block == Block::None {
            self.settings.begin();
            self.holdings.begin();
        }
        self.portals.insert(portal, Portal { statement, next_row: 0, is_done: false });
        self.say(Message::bare(b'2'));
        Ok(())
    }

    /// Handles a Describe.
    pub(in crate::sim::model) fn describe(&mut self, body: &[u8]) -> Result<(), Refusal> {
        self.begin_in_group();
        let mut fields = Fields(body);
        let target = fields.byte().ok_or_else(malformed)?;
        let name = fields.text().ok_or_else(malformed)?;
        let statement = match target {
            b'S' => self.find_prepared(name)?.statement.clone(),
            _ => self.find_portal(name)?.statement.clone(),
        };
        let returns_rows = statement.as_ref().is_some_and(Statement::returns_rows);
        if self.block == Block::Failed && returns_rows {
            return Err(Refusal::aborted());
        }
        if target == b'S' {
            let count = statement.as_ref().map_or(0, |s| s.params);
            let body = Body::new().int16(count.cast_signed());
            let body = (0..count).fold(body, |body, _| body.int32(TEXT_OID));
            self.say(body.message(b't'));
        }
        self.say(if returns_rows { row_description() } else { Message::bare(b'n') });
        Ok(())
    }

    /// Close. Closing what does not exist is no error.
    pub(in crate::sim::model) fn close(&mut self, body: &[u8]) -> Result<(), Refusal> {
        self.group_open = true;
        let mut fields = Fields(body);
        let target = fields.byte().ok_or_else(malformed)?;
        let name = fields.text().ok_or_else(malformed)?;
        if target == b'S' {
            self.prepared.remove(name);
        } else {
            self.portals.remove(name);
        }
        self.say(Message::bare(b'3'));
        Ok(())
    }

    /// Handles an Execute.
    pub(in crate::sim::model) fn execute(&mut self, body: &[u8]) -> Result<(), Refusal> {
        self.begin_in_group();
        let mut fields = Fields(body);
        let name = fields.text().ok_or_else(malformed)?;
        let max_rows = u32::try_from(fields.int32().ok_or_else(malformed)?).unwrap_or(0);
        let portal = self.find_portal(name)?;
        let (next_row, is_done) = (portal.next_row, portal.is_done);
        let Some(statement) = portal.statement.clone() else {
            self.say(Message::bare(b'I'));
            return Ok(());
        };
        if is_done && !statement.returns_rows() {
            return Err(Refusal::new("55000", format!("portal \"{name}\" cannot be run")));
        }
        let run = Run::portal(statement, next_row, max_rows, is_done);
        self.start_execute(name.to_owned(), run);
        Ok(())
    }

    fn find_prepared(&self, name: &str) -> Result<&Prepared, Refusal> {
        self.prepared.get(name).ok_or_else(|| {
            let text = match name {
                "" => "unnamed prepared statement does not exist".to_owned(),
                name => format!("prepared statement \"{name}\" does not exist"),
            };
            Refusal::new("26000", text)
        })
    }

    fn find_portal(&self, name: &str) -> Result<&Portal, Refusal> {
        self.portals
            .get(name)
            .ok_or_else(|| Refusal::new("34000", format!("portal \"{name}\" does not exist")))
    }

    fn check_failed_block(&self, statement: Option<&Statement>) -> Result<(), Refusal> {
        match statement {
            Some(statement) if self.block == Block::Failed && !statement.ends_transaction() => {
                Err(Refusal::aborted())
            }
            _ => Ok(()),
        }
    }
}
