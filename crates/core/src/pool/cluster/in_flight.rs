//! What a client of a cluster's pool has asked its server for and has no answer to: what the loss of that server can have done to it.
//!
//! It is found from the client's messages while they are sent, and from nothing else. In doubt it must say
//! [`Sent::Unclear`]: the client is then told that the outcome is unknown.

use pgweir_sql::{Block, Statements, Traits, Verb};
use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::{BindHead, Parse, Query, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::Step;
use crate::pool::begin::BlockGroup;
use crate::pool::client::state::{ClientState, Link, Opening};
use crate::pool::relay::ledger::Kind;
use crate::pool::server::state::{Server, ServerState};

/// What was sent since the server owed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sent {
    /// Statements of a transaction block that do not commit it.
    Inside,
    /// One group that is nothing but the end of a transaction block.
    End(BlockGroup),
    /// One group outside of a transaction that certainly only reads.
    Read,
    /// Anything else.
    Unclear,
}

/// See the file's head.
pub(crate) struct InFlight {
    /// Whose it is.
    client: ClientId,
    sent: Sent,
    /// A BEGIN that was answered before went ahead of it: a transaction is open although the server has not said so yet.
    is_begun: bool,
    /// The client was told an error in the group that is being answered.
    pub(crate) has_failed: bool,
    /// Bytes that the server had sent when it was sent.
    received_bytes: u64,
    /// The text of the client's unnamed statement may commit.
    unnamed: Commits,
}

/// Whether a text may commit the transaction block that it runs in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Commits {
    No,
    Perhaps,
}

impl Commits {
    /// CALL and DO cannot end a transaction block. A ROLLBACK, whatever it rolls back to, makes nothing of it last.
    fn of(traits: &Traits) -> Commits {
        let is_one = matches!(traits.statements, Statements::One | Statements::None);
        match traits.verb {
            // COPY has answers into which no error fits everywhere.
            Verb::Commit | Verb::Prepare | Verb::Copy | Verb::Unknown => Commits::Perhaps,
            _ if is_one => Commits::No,
            _ => Commits::Perhaps,
        }
    }
}

/// How a server was before a client's bytes were sent to it.
struct Before {
    is_at_rest: bool,
    /// As the server said last.
    status: TxStatus,
    /// A BEGIN that was answered goes ahead of them.
    begins: bool,
    /// The length of a group that certainly only reads, and runs again if the server is lost.
    reads: Option<u32>,
    received_bytes: u64,
}

impl InFlight {
    fn new(client: ClientId) -> InFlight {
        InFlight {
            client,
            sent: Sent::Unclear,
            is_begun: false,
            has_failed: false,
            received_bytes: 0,
            unnamed: Commits::Perhaps,
        }
    }

    /// What this client has sent in the transaction that is open. Of a client that has sent nothing, nothing is known.
    pub(crate) fn of(server: &Server, client: ClientId) -> Option<&InFlight> {
        server.in_flight.as_deref().filter(|in_flight| in_flight.client == client)
    }

    pub(crate) fn sent(&self) -> Sent {
        self.sent
    }

    /// The server had a transaction open, or opened one with the first of it.
    pub(crate) fn is_in_block(&self, server: &Server) -> bool {
        self.is_begun || server.tx != TxStatus::Idle
    }

    /// Nothing of the answer has come. `unseen_bytes`: of what the server sent, so much at the end is not looked at.
    pub(crate) fn is_unanswered(&self, server: &Server, unseen_bytes: usize) -> bool {
        server.work.received_bytes == self.received_bytes + unseen_bytes as u64
    }
}

impl Pool {
    /// As [`Pool::send_linked`], in a pool whose clients are told what is lost with their server.
    pub(crate) fn send_in_flight<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Step {
        let before = self.before_sending(id, server_id);
        let step = self.send_linked(cx, id, server_id, bytes);
        if let (Some(before), Step::Used(used)) = (before, step) {
            self.note_sent(cx.env, id, server_id, &bytes[..used.min(bytes.len())], &before);
        }
        step
    }

    fn before_sending(&mut self, id: ClientId, server_id: ServerId) -> Option<Before> {
        let ClientState::Linked(link) = &self.clients.get(id)?.state else { return None };
        let server = self.servers.get_mut(server_id)?;
        if !matches!(server.state, ServerState::Busy(_)) {
            return None;
        }
        let is_at_rest = server.ledger.is_at_rest();
        let status = server.tx;
        let begins = matches!(link.opening, Opening::Unsent(_));
        let may_repeat = is_at_rest && status == TxStatus::Idle && matches!(link.opening, Opening::Done);
        let reads = link.group.filter(|group| may_repeat && group.certainly_reads()).map(|group| group.len);
        if reads.is_some() {
            server.first_ask.keep_all();
        }
        let received_bytes = server.work.received_bytes - server.incoming.inbox.len() as u64;
        Some(Before { is_at_rest, status, begins, reads, received_bytes })
    }

    /// A client's bytes were sent to its server, or answered here.
    fn note_sent(&mut self, env: &mut Env, id: ClientId, server_id: ServerId, bytes: &[u8], before: &Before) {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return;
        };
        let is_here = link.server == server_id && !matches!(link.opening, Opening::Unsent(_));
        let is_partial = link.streaming > 0;
        if !is_here || bytes.is_empty() {
            return;
        }
        let known = self.servers.get_mut(server_id).and_then(|server| server.in_flight.take());
        let mut in_flight = known.unwrap_or_else(|| Box::new(InFlight::new(id)));
        let is_idle = before.status == TxStatus::Idle;
        if in_flight.client != id || before.is_at_rest && is_idle {
            *in_flight = InFlight::new(id);
        }
        let is_first = before.is_at_rest;
        if is_first {
            (in_flight.has_failed, in_flight.received_bytes) = (false, before.received_bytes);
        }
        in_flight.is_begun |= before.begins;
        let is_bound = in_flight.is_begun || !is_idle;
        let end = if is_first && is_bound { self.end_at_front(env, id, bytes) } else { None };
        let sent = match (end, before.reads) {
            _ if is_partial => Sent::Unclear,
            (Some(end), _) if end.len == bytes.len() => Sent::End(end),
            (_, Some(len)) if len as usize == bytes.len() => Sent::Read,
            _ if is_bound => self.sent_inside(env, id, bytes, &mut in_flight.unnamed),
            _ => Sent::Unclear,
        };
        in_flight.sent = match in_flight.sent {
            _ if is_first => sent,
            Sent::Inside if sent == Sent::Inside => Sent::Inside,
            _ => Sent::Unclear,
        };
        if let Some(server) = self.servers.get_mut(server_id) {
            server.in_flight = Some(in_flight);
        }
    }

    /// Messages of a client in a transaction block: whether one of them may commit it.
    fn sent_inside(&self, env: &mut Env, id: ClientId, bytes: &[u8], unnamed: &mut Commits) -> Sent {
        let Some(account) = self.clients.get(id).map(|client| &client.account) else { return Sent::Unclear };
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let Ok(Some(header)) = Header::peek(rest) else { return Sent::Unclear };
            let Some(body) = rest.get(HEADER_LEN..header.total()) else { return Sent::Unclear };
            at += header.total();
            let commits = match header.tag {
                tag::QUERY => match Query::parse(body) {
                    Ok(query) => Commits::of(&env.texts.traits(query.text)),
                    Err(_) => Commits::Perhaps,
                },
                tag::PARSE => match Parse::parse(body) {
                    // It executes nothing, and its text is known when it is bound.
                    Ok(parse) if !parse.name.is_empty() => Commits::No,
                    Ok(parse) => {
                        *unnamed = Commits::of(&env.texts.traits(parse.query));
                        *unnamed
                    }
                    Err(_) => Commits::Perhaps,
                },
                tag::BIND => match BindHead::parse_prefix(body).map(|head| head.statement) {
                    Some(b"") => *unnamed,
                    Some(name) => {
                        let statement = account.statement(name).and_then(|known| env.statements.get(known));
                        let traits = statement.and_then(|statement| statement.traits.as_ref());
                        traits.map_or(Commits::Perhaps, Commits::of)
                    }
                    None => Commits::Perhaps,
                },
                tag::EXECUTE | tag::DESCRIBE | tag::CLOSE | tag::SYNC | tag::FLUSH | tag::FUNCTION_CALL => {
                    Commits::No
                }
                _ => Commits::Perhaps,
            };
            if commits == Commits::Perhaps {
                return Sent::Unclear;
            }
        }
        Sent::Inside
    }
}

/// The end of a transaction that makes nothing of it last.
pub(crate) fn is_rollback(group: BlockGroup, server: &Server) -> bool {
    group.is(Block::Rollback) || server.tx == TxStatus::Failed
}

/// What is owed to a client that has asked for one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owed {
    /// The group was not sent as a whole.
    Part,
    /// Answers, and the group's end.
    Group,
    /// Nothing but the end.
    Ready,
}

/// `None`: nothing is owed to it, or more than one group.
pub(crate) fn owed_group(server: &Server, client: ClientId) -> Option<Owed> {
    let mut owed = None;
    for entry in server.ledger.entries().filter(|entry| entry.owner.client() == Some(client)) {
        owed = match (owed, entry.kind) {
            (Some(Owed::Group | Owed::Ready), _) => return None,
            (None, Kind::Sync) => Some(Owed::Ready),
            (_, kind) if kind.ends_group() => Some(Owed::Group),
            _ => Some(Owed::Part),
        };
    }
    owed
}

/// Nothing is under way between a client and its server but whole messages.
pub(crate) fn is_between_messages(link: &Link, server: &Server) -> bool {
    link.streaming == 0
        && link.kept == 0
        && server.incoming.streaming.is_none_or(|streaming| streaming.to.is_none())
        && !server.ledger.is_copying_in()
}
