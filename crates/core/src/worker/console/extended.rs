//! The extended protocol on the console: drivers that know no other can read it (psycopg, pgx, Npgsql and their like).
//! Statements are commands without parameters; results come as text or, if Bind asks for it, in PostgreSQL's binary formats.

use std::collections::VecDeque;

use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::error::{SqlState, WireError};
use pgweir_wire::frontend::{BindHead, BindTail, Close, Describe, Execute, Parse, Target, tag};

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::UnpooledId;
use crate::limits::CONSOLE_STATEMENTS_MAX;
use crate::pool::client::state::printable;
use crate::worker::Worker;
use crate::worker::console::command::Command;
use crate::worker::console::session::{Portal, Progress, Reply};
use crate::worker::console::table::{self, Formats};

/// An error in a message: the client is told, and later messages are ignored up to Sync.
struct Complaint(SqlState, String);

impl From<WireError> for Complaint {
    fn from(error: WireError) -> Complaint {
        Complaint(SqlState::PROTOCOL_VIOLATION, error.to_string())
    }
}

impl Worker {
    /// Handles a message of the extended protocol. Returns `false` if the message does not belong to that protocol.
    pub(crate) fn console_extended<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        message: u8,
        body: &[u8],
    ) -> bool {
        let known = matches!(
            message,
            tag::PARSE | tag::BIND | tag::DESCRIBE | tag::EXECUTE | tag::CLOSE | tag::FLUSH | tag::SYNC
        );
        let Some(console) = self.console_mut(id) else { return true };
        if !known || message == tag::FLUSH {
            return known;
        }
        if message == tag::SYNC {
            console.extended.skipping = false;
            console.extended.portals.clear();
        } else if console.extended.skipping {
            return true;
        }
        cx.env.scratch.clear();
        let result = match message {
            tag::SYNC => {
                backend::encode_ready(&mut cx.env.scratch, TxStatus::Idle);
                Ok(())
            }
            tag::PARSE => self.console_parse(cx.env, id, body),
            tag::BIND => self.console_bind(cx.env, id, body),
            tag::DESCRIBE => self.console_describe(cx.env, id, body),
            tag::CLOSE => self.console_close(cx.env, id, body),
            _ => return self.console_execute(cx, id, body),
        };
        match (result, self.unpooled.get(id)) {
            (Ok(()), Some(client)) => cx.driver.send(client.conn, &cx.env.scratch),
            (Err(complaint), Some(_)) => self.complain(cx, id, &complaint),
            (_, None) => {}
        }
        true
    }

    fn complain<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, Complaint(code, text): &Complaint) {
        if let Some(console) = self.console_mut(id) {
            console.reply = Reply::Execute { portal: Vec::new(), formats: Formats::default(), max_rows: 0 };
        }
        self.say_error(cx, id, *code, text);
    }

    fn console_parse(&mut self, env: &mut Env, id: UnpooledId, body: &[u8]) -> Result<(), Complaint> {
        let parse = Parse::parse(body)?;
        let text = String::from_utf8_lossy(parse.query);
        let command = match text.trim().trim_end_matches(';').is_empty() {
            true => None,
            false => {
                let parsed = Command::parse(&text);
                Some(
                    parsed
                        .map_err(|none| Complaint(SqlState::PROTOCOL_VIOLATION, self.why_none(id, none)))?,
                )
            }
        };
        let Some(console) = self.console_mut(id) else { return Ok(()) };
        let statements = &mut console.extended.statements;
        if !parse.name.is_empty() && statements.contains_key(parse.name) {
            let text = format!("prepared statement \"{}\" already exists", printable(parse.name));
            return Err(Complaint(SqlState::DUPLICATE_PREPARED_STATEMENT, text));
        }
        if statements.len() >= CONSOLE_STATEMENTS_MAX && !statements.contains_key(parse.name) {
            let text = format!("a console client has at most {CONSOLE_STATEMENTS_MAX} prepared statements");
            return Err(Complaint(SqlState::PROGRAM_LIMIT_EXCEEDED, text));
        }
        statements.insert(parse.name.to_vec(), command);
        backend::encode_parse_complete(&mut env.scratch);
        Ok(())
    }

    fn console_bind(&mut self, env: &mut Env, id: UnpooledId, body: &[u8]) -> Result<(), Complaint> {
        let malformed = || Complaint(SqlState::PROTOCOL_VIOLATION, "malformed Bind".to_owned());
        let head = BindHead::parse_prefix(body).ok_or_else(malformed)?;
        let tail = BindTail::parse(&body[head.tail..])?;
        let Some(console) = self.console_mut(id) else { return Ok(()) };
        let command = console.extended.statements.get(head.statement).cloned();
        let command = command.ok_or_else(|| no_statement(head.statement))?;
        if tail.parameters > 0 {
            let text = format!(
                "bind message supplies {} parameters, but commands of the console take none",
                tail.parameters
            );
            return Err(Complaint(SqlState::PROTOCOL_VIOLATION, text));
        }
        let formats = Formats::new(tail.binary_results());
        let compatible_with = env.rules.config.main.compatible_with;
        let columns = command.as_ref().map_or(0, |command| table::columns_of(command, compatible_with).len());
        if columns > 0 && !formats.fit(columns) {
            let text = format!("bind message has result formats that do not fit {columns} columns");
            return Err(Complaint(SqlState::PROTOCOL_VIOLATION, text));
        }
        let portals = &mut console.extended.portals;
        if portals.len() >= CONSOLE_STATEMENTS_MAX && !portals.contains_key(head.portal) {
            let text = format!("a console client has at most {CONSOLE_STATEMENTS_MAX} portals");
            return Err(Complaint(SqlState::PROGRAM_LIMIT_EXCEEDED, text));
        }
        portals.insert(head.portal.to_vec(), Portal { command, formats, progress: Progress::Fresh });
        backend::encode_bind_complete(&mut env.scratch);
        Ok(())
    }

    fn console_describe(&mut self, env: &mut Env, id: UnpooledId, body: &[u8]) -> Result<(), Complaint> {
        let describe = Describe::parse(body)?;
        let Some(console) = self.console_mut(id) else { return Ok(()) };
        let extended = &console.extended;
        let (command, formats) = match describe.target {
            Target::Statement => {
                let command = extended.statements.get(describe.name);
                let command = command.ok_or_else(|| no_statement(describe.name))?;
                (command, Formats::default())
            }
            Target::Portal => {
                let portal = extended.portals.get(describe.name);
                let portal = portal.ok_or_else(|| no_portal(describe.name))?;
                (&portal.command, portal.formats.clone())
            }
        };
        let compatible_with = env.rules.config.main.compatible_with;
        let columns =
            command.as_ref().map(|command| table::columns_of(command, compatible_with)).unwrap_or_default();
        if describe.target == Target::Statement {
            backend::encode_parameter_description(&mut env.scratch, &[]);
        }
        if columns.is_empty() {
            backend::encode_no_data(&mut env.scratch);
        } else {
            table::encode_columns(&mut env.scratch, &columns, &formats);
        }
        Ok(())
    }

    fn console_close(&mut self, env: &mut Env, id: UnpooledId, body: &[u8]) -> Result<(), Complaint> {
        let close = Close::parse(body)?;
        let Some(console) = self.console_mut(id) else { return Ok(()) };
        match close.target {
            Target::Statement => drop(console.extended.statements.remove(close.name)),
            Target::Portal => drop(console.extended.portals.remove(close.name)),
        }
        backend::encode_close_complete(&mut env.scratch);
        Ok(())
    }

    /// Carries a portal's command out, or goes on with its rows.
    fn console_execute<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, body: &[u8]) -> bool {
        let execute = match Execute::parse(body) {
            Ok(execute) => execute,
            Err(error) => {
                self.complain(cx, id, &error.into());
                return true;
            }
        };
        let Some(console) = self.console_mut(id) else { return true };
        let Some(portal) = console.extended.portals.get_mut(execute.portal) else {
            self.complain(cx, id, &no_portal(execute.portal));
            return true;
        };
        let max_rows = usize::try_from(execute.max_rows).unwrap_or(0);
        let (command, formats) = (portal.command.clone(), portal.formats.clone());
        let progress = std::mem::replace(&mut portal.progress, Progress::Done);
        let Some(command) = command else {
            backend::encode_empty_query(&mut cx.env.scratch);
            self.send_scratch(cx, id);
            return true;
        };
        let rest = match progress {
            Progress::Fresh => {
                let portal = execute.portal.to_vec();
                console.reply = Reply::Execute { portal, formats, max_rows };
                self.run_command(cx, id, command);
                return true;
            }
            Progress::Rest(rows) => rows,
            Progress::Done => VecDeque::new(),
        };
        let columns = table::columns_of(&command, cx.env.rules.config.main.compatible_with);
        self.say_part(cx.env, id, &columns, execute.portal, &formats, max_rows, rest);
        self.send_scratch(cx, id);
        true
    }
}

fn no_statement(name: &[u8]) -> Complaint {
    let text = format!("prepared statement \"{}\" does not exist", printable(name));
    Complaint(SqlState::INVALID_SQL_STATEMENT_NAME, text)
}

fn no_portal(name: &[u8]) -> Complaint {
    Complaint(SqlState::INVALID_CURSOR_NAME, format!("portal \"{}\" does not exist", printable(name)))
}
