//! A PostgreSQL as far as a conversation needs one: it answers each message by the protocol's rules, and keeps the answers of a group
//! back until a Sync, a Flush or a Query, as PostgreSQL may.

use std::collections::HashMap;

use pgweir_wire::frontend::{BindHead, Execute, Parse, Query, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use super::{End, Rig, be};

/// What a standby refuses.
const CHANGES: [&str; 7] = ["insert", "update", "delete", "create", "listen", "notify", "lock"];

/// One server connection.
pub(crate) struct Node {
    pub(crate) end: End,
    pub(crate) is_standby: bool,
    /// Of its transaction: `I`, `T` or `E`.
    status: char,
    /// An error has come: what follows is ignored up to Sync.
    skips: bool,
    statements: HashMap<Vec<u8>, String>,
    portals: HashMap<Vec<u8>, String>,
    inbox: Vec<u8>,
    /// Answers that are kept back.
    answers: Vec<u8>,
    /// The texts that it ran without an error.
    pub(crate) ran: Vec<String>,
}

impl Node {
    pub(crate) fn new(end: End, is_standby: bool) -> Node {
        Node {
            end,
            is_standby,
            status: 'I',
            skips: false,
            statements: HashMap::new(),
            portals: HashMap::new(),
            inbox: Vec::new(),
            answers: Vec::new(),
            ran: Vec::new(),
        }
    }

    /// Answers what has come; `false` if there is nothing to say.
    pub(crate) fn answer(&mut self, rig: &mut Rig) -> bool {
        if rig.is_closed(self.end) {
            return false;
        }
        self.inbox.extend(rig.raw(self.end));
        let inbox = std::mem::take(&mut self.inbox);
        let (mut at, mut says) = (0, Vec::new());
        while let Some(header) = Header::peek(&inbox[at..]).expect("a header") {
            let Some(message) = inbox.get(at..at + header.total()) else { break };
            at += message.len();
            if self.take(header.tag, &message[HEADER_LEN..]) {
                says.append(&mut self.answers);
            }
        }
        self.inbox = inbox[at..].to_vec();
        if says.is_empty() {
            return false;
        }
        rig.send_unchanged(self.end, &says);
        true
    }

    /// One message; `true` if the answers go out behind it.
    fn take(&mut self, message: u8, body: &[u8]) -> bool {
        match message {
            tag::QUERY => {
                let text = String::from_utf8_lossy(Query::parse(body).expect("a Query").text).into_owned();
                self.portals.remove(&b""[..]);
                for part in text.split(';').filter(|part| !part.trim().is_empty()) {
                    match self.run(part, true) {
                        Ok(answer) => self.answers.extend(answer),
                        Err(error) => {
                            self.fail(&error);
                            break;
                        }
                    }
                }
                self.is_ready();
            }
            tag::FUNCTION_CALL => {
                self.answers.extend(be::function_result(4));
                self.is_ready();
            }
            tag::SYNC => self.is_ready(),
            tag::FLUSH => return true,
            _ if self.skips => return false,
            _ => {
                match self.extended(message, body) {
                    Ok(answer) => self.answers.extend(answer),
                    Err(error) => {
                        self.fail(&error);
                        self.skips = true;
                    }
                }
                return false;
            }
        }
        true
    }

    fn is_ready(&mut self) {
        self.skips = false;
        if self.status == 'I' {
            self.portals.clear();
        }
        self.answers.extend(be::ready(self.status));
    }

    fn fail(&mut self, error: &[u8]) {
        self.answers.extend_from_slice(error);
        if self.status == 'T' {
            self.status = 'E';
        }
    }

    /// A message of the extended protocol.
    fn extended(&mut self, message: u8, body: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        match message {
            tag::PARSE => {
                let parse = Parse::parse(body).expect("a Parse");
                let text = String::from_utf8_lossy(parse.query).into_owned();
                self.may_run(&text)?;
                self.statements.insert(parse.name.to_vec(), text);
                Ok(be::parse_complete())
            }
            tag::BIND => {
                let head = BindHead::parse_prefix(body).expect("a Bind");
                let text = self.statements.get(head.statement);
                let text = text.ok_or_else(|| be::error("26000", "no such statement"))?.clone();
                self.may_run(&text)?;
                self.portals.insert(head.portal.to_vec(), text);
                Ok(be::bind_complete())
            }
            tag::EXECUTE => {
                let execute = Execute::parse(body).expect("an Execute");
                let text = self.portals.get(execute.portal).cloned();
                let text = text.ok_or_else(|| be::error("34000", "portal does not exist"))?;
                let answer = self.run(&text, false)?;
                match execute.max_rows {
                    0 => Ok(answer),
                    _ => Ok([be::row("1"), vec![b's', 0, 0, 0, 4]].concat()),
                }
            }
            tag::DESCRIBE if body[0] == b'S' => Ok([be::parameters(), be::no_data()].concat()),
            tag::DESCRIBE => Ok(be::no_data()),
            tag::CLOSE => Ok(be::close_complete()),
            other => panic!("{}", char::from(other)),
        }
    }

    /// What PostgreSQL looks at before a statement is run.
    fn may_run(&self, text: &str) -> Result<(), Vec<u8>> {
        let lower = text.to_lowercase();
        match () {
            () if lower.starts_with("rollback") || lower.starts_with("commit") => Ok(()),
            () if self.status == 'E' => Err(be::error("25P02", "the transaction is aborted")),
            () if lower.contains("\"pgweir:") => {
                let name = text.split('"').nth(1).unwrap_or_default();
                Err(be::error("42703", &format!("column \"{name}\" does not exist")))
            }
            () => Ok(()),
        }
    }

    fn run(&mut self, text: &str, is_simple: bool) -> Result<Vec<u8>, Vec<u8>> {
        let text = text.trim();
        let lower = text.to_lowercase();
        let word = lower.split(' ').next().unwrap_or_default();
        self.may_run(text)?;
        if lower.contains("1 / 0") {
            return Err(be::error("22012", "division by zero"));
        }
        if self.is_standby && (CHANGES.contains(&word) || lower.contains("nextval")) {
            return Err(be::error("25006", &format!("cannot execute {word} in a read-only transaction")));
        }
        self.ran.push(text.to_owned());
        let had_failed = self.status == 'E';
        match word {
            "begin" | "start" => self.status = 'T',
            "commit" | "rollback" if !lower.contains(" to ") => {
                self.status = if lower.contains("chain") { 'T' } else { 'I' };
            }
            _ => {}
        }
        Ok(match word {
            "commit" if had_failed => be::complete("ROLLBACK"),
            // A question of pgweir's: the session holds nothing.
            "select" if lower.contains("pg_listening_channels") => {
                [if is_simple { be::columns() } else { Vec::new() }, be::complete("SELECT 0")].concat()
            }
            "select" | "with" | "values" | "fetch" | "show" if is_simple => be::one_row("1"),
            "select" | "with" | "values" | "fetch" | "show" => {
                [be::row("1"), be::complete("SELECT 1")].concat()
            }
            "discard" => be::complete(&text.to_uppercase()),
            _ => be::complete(&word.to_uppercase()),
        })
    }
}
