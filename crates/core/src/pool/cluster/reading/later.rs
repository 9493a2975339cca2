//! What a client sends in a transaction that reads at a standby, behind its first group.
//!
//! A text that a standby does otherwise than the primary, without an error, is refused. What follows the end of the transaction waits
//! until that is answered: it may be the primary's.

use std::borrow::Cow;

use pgweir_sql::{AtStandby, Marks, NameUse, Verb, prepared_names};
use pgweir_wire::frontend::{BindHead, Parse, Query, tag};
use pgweir_wire::{Message, Messages};

use super::{Progress, SoFar};
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::{HOLD_MESSAGE_BYTES, PARSE_BYTES_MAX};
use crate::pool::client::state::{ClientState, Waits};
use crate::pool::relay::attempt::holds_later;
use crate::pool::{Pool, Step};

/// The decision about the bytes that a client sends in a transaction which reads at a standby.
pub(crate) enum Later {
    /// The first bytes, of this number, are sent without being read as messages: the rest of a message that is being streamed, or the
    /// transaction's first group.
    Pass(usize),
    /// Messages of this number of bytes are sent, as far as possible. The caller then tells [`Pool::note_later`] how many were sent.
    Send(usize, SoFar),
    /// The bytes were handled already: they wait, or an error was sent for them.
    Done(Step),
}

/// The effect of a message on the transaction.
enum Meaning<'a> {
    Nothing,
    /// The message executes a statement that may end the transaction.
    Ends,
    /// The message contains this part (a word of its text), which only the primary may run.
    Differs(Cow<'a, [u8]>),
    /// The message has not come as a whole.
    Partial,
}

impl<'a> From<AtStandby<'a>> for Meaning<'a> {
    fn from(found: AtStandby<'a>) -> Meaning<'a> {
        match found {
            AtStandby { differs: Some(part), .. } => Meaning::Differs(part.into()),
            AtStandby { may_end: true, .. } => Meaning::Ends,
            AtStandby { .. } => Meaning::Nothing,
        }
    }
}

impl Pool {
    /// Looks at what such a client sends.
    #[cold]
    pub(crate) fn look_at_later<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Later {
        if let Some(len) = self.unread_len(id, server_id, bytes) {
            return Later::Pass(len);
        }
        let mut so_far = self.so_far_at(id, server_id);
        if so_far.progress == Progress::Ended {
            return Later::Done(self.waits_at_server(id));
        }
        if self.is_undeclared(id)
            && let Some(later) = self.look_at_undeclared(cx, id, server_id, bytes, so_far)
        {
            return later;
        }
        let mut at = 0;
        for message in Messages::of(bytes) {
            let Message { header, start, .. } = message;
            let rest = &bytes[start..];
            let progress = so_far.progress;
            match self.look_at_message(cx.env, id, message, &mut so_far) {
                Meaning::Partial if header.total() > PARSE_BYTES_MAX => {
                    let fault =
                        Fault::TooLarge("a statement is too long for a transaction at a standby".into());
                    return Later::Done(self.refuse_client(cx, id, &fault));
                }
                Meaning::Partial if at == 0 => return Later::Done(Step::Wait),
                Meaning::Differs(_) if at > 0 => break,
                Meaning::Differs(part) => {
                    let part = part.into_owned();
                    return Later::Done(self.refuse_at_standby(cx, id, server_id, (header, rest), &part));
                }
                Meaning::Partial => break,
                // It would run outside of the transaction.
                Meaning::Nothing if header.tag == tag::BIND && progress == Progress::EndsWithGroup => {
                    if at > 0 {
                        break;
                    }
                    return Later::Done(self.refuse_at_standby(cx, id, server_id, (header, rest), b""));
                }
                Meaning::Ends | Meaning::Nothing => {}
            }
            at = message.end_here();
            if so_far.progress == Progress::Ended {
                break;
            }
        }
        // A header that is not whole is passed on as it is: it waits.
        if at == 0 { Later::Pass(bytes.len()) } else { Later::Send(at, so_far) }
    }

    /// Returns the number of bytes that are sent without being read as messages: the rest of a message that is being streamed, the client's
    /// first group, which is known while the bytes after it are held, or bytes with a preamble. `None` if messages begin here.
    pub(super) fn unread_len(&self, id: ClientId, server_id: ServerId, bytes: &[u8]) -> Option<usize> {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return Some(bytes.len());
        };
        if link.streaming > 0 {
            return Some(link.streaming.min(bytes.len()));
        }
        let is_held = self.servers.get(server_id).is_some_and(|server| holds_later(link, server));
        (is_held || !link.phase.is_clear()).then_some(bytes.len())
    }

    /// Notes that `used` bytes of these messages were sent. `then` is the transaction's state after all of them.
    pub(crate) fn note_later(
        &mut self,
        env: &Env,
        id: ClientId,
        (messages, used): (&[u8], usize),
        then: SoFar,
    ) {
        let so_far = match () {
            () if then.left > 0 => then.sent(used),
            () if used < messages.len() => self.look_again(env, id, &messages[..used]),
            () => then,
        };
        if let Some(routing) = self.routing_mut(id) {
            routing.reading.so_far = so_far;
        }
    }

    /// Returns the state of the transaction after the messages that could be sent.
    #[cold]
    fn look_again(&mut self, env: &Env, id: ClientId, sent: &[u8]) -> SoFar {
        let mut so_far = self.routing_mut(id).map(|routing| routing.reading.so_far).unwrap_or_default();
        for message in Messages::of(sent) {
            self.look_at_message(env, id, message, &mut so_far);
        }
        so_far
    }

    /// Returns the state of the transaction. If the transaction has continued after a statement that should have ended it, the state
    /// is `Inside` again.
    fn so_far_at(&mut self, id: ClientId, server_id: ServerId) -> SoFar {
        let is_at_rest = self.servers.get(server_id).is_some_and(|server| server.ledger.is_at_rest());
        let Some(routing) = self.routing_mut(id) else { return SoFar::default() };
        let so_far = &mut routing.reading.so_far;
        if so_far.progress == Progress::Ended && is_at_rest {
            so_far.progress = Progress::Inside;
        }
        *so_far
    }

    /// Whether the client's transaction at a standby was begun without READ ONLY.
    fn is_undeclared(&mut self, id: ClientId) -> bool {
        self.routing_mut(id).is_some_and(|routing| routing.reading.is_undeclared)
    }

    /// Makes the client wait until its server has answered; its bytes stay in the inbox.
    pub(in crate::pool::cluster) fn waits_at_server(&mut self, id: ClientId) -> Step {
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            link.waits.set(Waits::HELD, true);
        }
        Step::Wait
    }

    /// Returns the meaning of a message, and moves `so_far` to the state after the message.
    fn look_at_message<'a>(
        &self,
        env: &Env,
        id: ClientId,
        message: Message<'a>,
        so_far: &mut SoFar,
    ) -> Meaning<'a> {
        let meaning = self.meaning_of(env, id, message, &mut so_far.unnamed_ends);
        so_far.progress = match (&meaning, message.tag()) {
            (Meaning::Ends, tag::QUERY) => Progress::Ended,
            (Meaning::Ends, _) => Progress::EndsWithGroup,
            (Meaning::Nothing, tag::SYNC) if so_far.progress == Progress::EndsWithGroup => Progress::Ended,
            _ => so_far.progress,
        };
        meaning
    }

    /// `unnamed`: see [`SoFar::unnamed_ends`].
    fn meaning_of<'a>(
        &self,
        env: &Env,
        id: ClientId,
        message: Message<'a>,
        unnamed: &mut Option<bool>,
    ) -> Meaning<'a> {
        let Some(client) = self.clients.get(id) else { return Meaning::Nothing };
        let body = message.body();
        let text = match message.tag() {
            tag::QUERY | tag::PARSE if !message.is_whole() => return Meaning::Partial,
            tag::FUNCTION_CALL => return Meaning::Differs(b"FunctionCall"[..].into()),
            tag::QUERY => Query::parse(body).ok().map(|query| query.text),
            // With a name it executes nothing.
            tag::PARSE => {
                Parse::parse(body).ok().filter(|parse| parse.name.is_empty()).map(|parse| parse.query)
            }
            tag::BIND => {
                let Some(head) = BindHead::parse_prefix(body) else {
                    return if message.bytes.len() < HOLD_MESSAGE_BYTES {
                        Meaning::Partial
                    } else {
                        Meaning::Nothing
                    };
                };
                let bound = match (head.statement, *unnamed) {
                    (b"", Some(ends)) => return if ends { Meaning::Ends } else { Meaning::Nothing },
                    (b"", None) => client.account.unnamed.as_ref().map(|unnamed| &*unnamed.query),
                    (name, _) => self.text_behind(env, id, name),
                };
                return match bound.map_or(Meaning::Nothing, |text| self.text_at_standby(env, id, text)) {
                    Meaning::Differs(part) => Meaning::Differs(part.into_owned().into()),
                    Meaning::Ends => Meaning::Ends,
                    Meaning::Nothing | Meaning::Partial => Meaning::Nothing,
                };
            }
            _ => None,
        };
        let meaning = text.map_or(Meaning::Nothing, |text| self.text_at_standby(env, id, text));
        match (message.tag(), meaning) {
            // It is executed when it is bound.
            (tag::PARSE, Meaning::Ends) => {
                *unnamed = Some(true);
                Meaning::Nothing
            }
            (tag::PARSE, meaning) => {
                if text.is_some() {
                    *unnamed = Some(false);
                }
                meaning
            }
            (_, meaning) => meaning,
        }
    }

    /// The text that the client prepared under a name; `None` if it is not known.
    pub(super) fn text_behind<'a>(&'a self, env: &'a Env, id: ClientId, name: &[u8]) -> Option<&'a [u8]> {
        let statement = self.clients.get(id)?.account.statement(name);
        match statement.and_then(|statement| env.statements.get(statement)) {
            Some(known) => Some(&known.query),
            None => self.prepared_by_sql(id, name).map(|prepared| &*prepared.text),
        }
    }

    fn text_at_standby<'a>(&self, env: &Env, id: ClientId, text: &'a [u8]) -> Meaning<'a> {
        let reach = &self.state.reach;
        let traits = pgweir_sql::traits(text);
        if traits.verb == Verb::Execute || traits.marks.intersects(Marks::PREPARED) {
            let mut is_unknown = false;
            prepared_names(text, |name_use, name| {
                let behind = name.as_deref().and_then(|name| self.text_behind(env, id, name));
                let differs = behind.is_none_or(|text| reach.at_standby(text).differs.is_some());
                is_unknown |= name_use == NameUse::Executes && differs;
            });
            if is_unknown {
                return Meaning::Differs(b"EXECUTE"[..].into());
            }
        }
        match reach.at_standby(text) {
            // The client would keep the standby's server for it.
            AtStandby { differs: None, .. }
                if traits.marks.intersects(KEEPS_SERVER) || self.hides_settings(env, id, text, &traits) =>
            {
                Meaning::Differs(b"session_state"[..].into())
            }
            AtStandby { differs: None, .. } if traits.verb != Verb::Other && names_temporary(text) => {
                Meaning::Differs(b"pg_temp"[..].into())
            }
            // A standby would say that it is done, and the client would listen to its channels as before.
            AtStandby { differs: None, .. }
                if traits.marks.intersects(Marks::LISTENS)
                    && traits.verb != Verb::Listen
                    && self.listens(id) =>
            {
                Meaning::Differs(b"UNLISTEN"[..].into())
            }
            found => found.into(),
        }
    }
}

/// Session state that cannot move to another server.
const KEEPS_SERVER: Marks = Marks::LOCKS.and(Marks::CURSORS).and(Marks::LIBRARY).and(Marks::SEED);

/// The schema of temporary tables, also as a value.
fn names_temporary(text: &[u8]) -> bool {
    text.windows(7).any(|part| part.eq_ignore_ascii_case(b"pg_temp"))
}
