//! Answers the Describe that follows each named Parse, so that conversations that are about something else need not mention it. What a
//! server gets and says is followed message by message, as the protocol has it.

use std::collections::VecDeque;

use pgweir_wire::backend::tag as answer;
use pgweir_wire::frontend::{self, Describe, Parse, Target, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::rig::be;

/// A server's end.
#[derive(Default)]
pub(crate) struct Describer {
    /// It has said ReadyForQuery for the first time: before, messages are those of a login.
    is_up: bool,
    /// What was sent to it, as far as it is no whole message.
    unread: Vec<u8>,
    /// Messages that it has not answered, by their types; a Parse that is followed by such a Describe is `1`.
    owed: VecDeque<u8>,
    /// The part of an answer's message that has passed.
    begun: Vec<u8>,
}

impl Describer {
    /// These bytes were sent to the server.
    pub(crate) fn sent(&mut self, bytes: &[u8]) {
        if !self.is_up {
            return;
        }
        self.unread.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(Ok(Some(header))) = self.unread.get(at..).map(Header::peek)
            && let Some(message) = self.unread.get(at..at + header.total())
        {
            let rest = &self.unread[at + header.total()..];
            let described = describes(message, rest);
            match header.tag {
                tag::PARSE if described.is_some() => self.owed.push_back(b'1'),
                tag::FLUSH | tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL | tag::TERMINATE => {}
                other => self.owed.push_back(other),
            }
            at += header.total() + described.unwrap_or(0);
        }
        self.unread.drain(..at);
    }

    /// What the server says, and what it says to such a Describe.
    pub(crate) fn answers(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut told = Vec::new();
        for byte in bytes {
            told.push(*byte);
            self.begun.push(*byte);
            let header = Header::peek(&self.begun);
            if matches!(header, Ok(Some(header)) if self.begun.len() == header.total()) {
                let is_described = self.answered(self.begun[0]);
                self.begun.clear();
                if is_described {
                    told.extend([be::parameters(), be::no_data()].concat());
                }
            }
        }
        told
    }

    /// Whether a Parse was answered that is followed by such a Describe.
    fn answered(&mut self, message: u8) -> bool {
        let first = self.owed.front().copied();
        let ends_group = |kind: &u8| matches!(*kind, tag::SYNC | tag::QUERY | tag::FUNCTION_CALL);
        match message {
            answer::READY if !self.is_up => self.is_up = true,
            answer::READY => while self.owed.pop_front().is_some_and(|kind| !ends_group(&kind)) {},
            answer::ERROR => {
                while self.owed.front().is_some_and(|kind| !ends_group(kind)) {
                    self.owed.pop_front();
                }
            }
            answer::PARSE_COMPLETE => {
                while let Some(kind) = self.owed.pop_front() {
                    if matches!(kind, tag::PARSE | b'1') {
                        return kind == b'1';
                    }
                }
            }
            answer::BIND_COMPLETE if first == Some(tag::BIND) => drop(self.owed.pop_front()),
            answer::CLOSE_COMPLETE if first == Some(tag::CLOSE) => drop(self.owed.pop_front()),
            answer::NO_DATA | answer::ROW_DESCRIPTION if first == Some(tag::DESCRIBE) => {
                self.owed.pop_front();
            }
            answer::COMMAND_COMPLETE | answer::EMPTY_QUERY | answer::PORTAL_SUSPENDED
                if first == Some(tag::EXECUTE) =>
            {
                self.owed.pop_front();
            }
            _ => {}
        }
        false
    }
}

/// The length of the Describe after this message, if the message is a Parse of a statement that the Describe is about.
pub(crate) fn describes(message: &[u8], rest: &[u8]) -> Option<usize> {
    let parse = Parse::parse(message.get(HEADER_LEN..)?).ok().filter(|_| message[0] == tag::PARSE)?;
    let header = Header::peek(rest).ok()??;
    let body = rest.get(HEADER_LEN..header.total()).filter(|_| header.tag == frontend::tag::DESCRIBE)?;
    let describe = Describe::parse(body).ok()?;
    let is_ours = describe.target == Target::Statement
        && describe.name == parse.name
        && parse.name.starts_with(b"PGWEIR_")
        && !matches!(parse.name, b"PGWEIR_0" | b"PGWEIR_ASIDE");
    is_ours.then_some(header.total())
}
