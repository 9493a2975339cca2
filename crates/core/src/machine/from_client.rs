//! A logged-in client's messages: which of them need a server, and how they reach it. The busiest code of the product,
//! with `from_server`: what passes unchanged is passed in runs, without being copied apart.

use pgweir_wire::backend::{self, TxStatus};
use pgweir_wire::frontend::{Target, tag};
use pgweir_wire::header::{HEADER_LEN, Header};

use super::{Machine, Step};
use crate::client::{ClientState, Link};
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::ledger::{Entry, Kind, Ledger, Owner, Pushed};
use crate::limits::{BACKLOG_HIGH_BYTES, HOLD_MESSAGE_BYTES, LEDGER_ENTRIES_MAX, NAMES_BYTES_MAX};
use crate::server::ServerState;

/// What to do with a message of a linked client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    /// As it is; with what the server will owe for it.
    Pass(Option<Kind>),
    /// It names a prepared statement: servers know it by another name.
    Prepared,
    /// As it is; but it may end prepared statements, so what names one waits for its answer.
    Discards(Kind),
    /// The rest of it is needed to tell.
    More,
    /// Names that do not end.
    Endless,
    /// Terminate.
    Leave,
    /// Not of the form that its type has.
    Malformed,
    /// No message of the protocol.
    Unknown,
}

impl Machine {
    /// A message of a client that has no server. Most need one; some are nothing, or can be answered here.
    pub(super) fn idle_client_sent<D: Driver>(&mut self, d: &mut D, id: ClientId, bytes: &[u8]) -> Step {
        let header = match Header::peek(bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return Step::Wait,
            Err(error) => return self.refuse_client(d, id, &Fault::Protocol(error.to_string().into())),
        };
        if let Some(fault) = self.oversized(header) {
            return self.refuse_client(d, id, &fault);
        }
        let whole = bytes.len() >= header.total();
        match header.tag {
            // COPY data for a COPY that failed meanwhile: PostgreSQL ignores it as well.
            tag::COPY_DATA | tag::COPY_DONE | tag::COPY_FAIL => return self.discard(id, bytes.len(), header),
            tag::TERMINATE => return self.client_left(d, id, "client close request"),
            // Nothing is pending and no transaction is open: this is all a server would say.
            tag::SYNC if whole => {
                self.scratch.clear();
                backend::encode_ready(&mut self.scratch, TxStatus::Idle);
                d.send(self.clients[id].conn, &self.scratch);
                return Step::Used(header.total());
            }
            tag::FLUSH if whole => return Step::Used(header.total()),
            tag::CLOSE if whole && self.client_tracks_statements(id) => {
                let body = &bytes[HEADER_LEN..header.total()];
                if let Some(step) = self.close_without_server(d, id, body) {
                    return if step == Step::Gone { step } else { Step::Used(header.total()) };
                }
            }
            tag::PARSE if whole && self.client_tracks_statements(id) => {
                let body = &bytes[HEADER_LEN..header.total()];
                if self.parse_without_server(d, id, body).is_some() {
                    return Step::Used(header.total());
                }
            }
            tag::QUERY if self.rules.config.main.disable_pqexec => {
                return self.refuse_client(d, id, &Fault::SimpleQueryDisabled);
            }
            tag::QUERY
            | tag::PARSE
            | tag::BIND
            | tag::EXECUTE
            | tag::DESCRIBE
            | tag::CLOSE
            | tag::FUNCTION_CALL
            | tag::SYNC
            | tag::FLUSH => {}
            other => return self.unknown_message(d, id, other),
        }
        // A client that is still sending does not hold a server meanwhile, unless it sends much.
        if !whole && bytes.len() < HOLD_MESSAGE_BYTES {
            return Step::Wait;
        }
        self.request_server(d, id)
    }

    /// Passes on what a linked client sent.
    pub(super) fn linked_client_sent<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Step {
        let tracking = self.client_tracks_statements(id);
        let (mut at, mut span) = (0, 0);
        loop {
            let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
            let ClientState::Linked(link) = &mut client.state else { break };
            let Some(server) = self.servers.get_mut(server_id) else { return Step::Gone };
            if matches!(server.state, ServerState::Settling(_)) {
                break;
            }
            if link.streaming > 0 {
                let used = link.streaming.min(bytes.len() - at);
                link.streaming -= used;
                at += used;
                if link.streaming == 0 && server.is_at_rest() && !server.replication {
                    // The answer was there before the message was whole: the server could not be released then.
                    d.send(server.conn, &bytes[span..at]);
                    self.server_rests(d, server_id);
                    return Step::Used(at);
                }
            }
            if server.ledger.len() >= LEDGER_ENTRIES_MAX {
                d.send(server.conn, &bytes[span..at]);
                span = at;
                self.ask_for_answers(d, server_id);
                self.pause_client(d, id);
                break;
            }
            let rest = &bytes[at..];
            let header = match Header::peek(rest) {
                Ok(Some(header)) => header,
                Ok(None) => break,
                Err(error) => return self.refuse_client(d, id, &Fault::Protocol(error.to_string().into())),
            };
            let total = header.total();
            if rest.len() < total && total <= HOLD_MESSAGE_BYTES {
                break;
            }
            let route = route(header, rest, tracking);
            if route == Route::Prepared && names_are_uncertain(link, &server.ledger) {
                // The answer may sit in the server's buffer until somebody asks for it.
                link.held = true;
                d.send(server.conn, &bytes[span..at]);
                span = at;
                self.ask_for_answers(d, server_id);
                break;
            }
            match route {
                Route::Pass(_) | Route::Discards(_) => {
                    let kind = match route {
                        Route::Pass(kind) => kind,
                        Route::Discards(kind) => {
                            link.discards = true;
                            Some(kind)
                        }
                        _ => None,
                    };
                    if header.tag == tag::QUERY && self.rules.config.main.disable_pqexec {
                        return self.refuse_client(d, id, &Fault::SimpleQueryDisabled);
                    }
                    if let Some(kind) = kind.filter(|_| !server.replication) {
                        let pushed = server.ledger.push(Entry::new(Owner::Client(id), kind));
                        if pushed == Pushed::Queued && kind != Kind::CopyEnd {
                            server.note_begin(self.now.mono_us);
                        }
                    }
                    link.streaming = total.saturating_sub(rest.len());
                    at += total.min(rest.len());
                    if kind == Some(Kind::CopyEnd) {
                        self.settle(d, server_id);
                    }
                }
                Route::Prepared => {
                    server.note_begin(self.now.mono_us);
                    d.send(server.conn, &bytes[span..at]);
                    span = at;
                    match self.prepared_message(d, id, server_id, header, rest) {
                        Step::Used(used) => at += used,
                        Step::Wait => break,
                        Step::Gone => return Step::Gone,
                    }
                    span = at;
                }
                Route::More => break,
                Route::Endless => {
                    let text = "portal and statement names are too long";
                    return self.refuse_client(d, id, &Fault::TooLarge(text.into()));
                }
                Route::Leave => {
                    d.send(server.conn, &bytes[span..at]);
                    return self.client_left(d, id, "client close request");
                }
                Route::Malformed => {
                    let text = format!("invalid message format: '{}'", header.tag.escape_ascii());
                    return self.refuse_client(d, id, &Fault::Protocol(text.into()));
                }
                Route::Unknown => return self.unknown_message(d, id, header.tag),
            }
            if let Some(fault) = self.oversized(header) {
                return self.refuse_client(d, id, &fault);
            }
        }
        if let Some(server) = self.servers.get(server_id) {
            if at > span {
                d.send(server.conn, &bytes[span..at]);
            }
            if d.backlog(server.conn) > BACKLOG_HIGH_BYTES {
                self.pause_client(d, id);
            }
        }
        if at == 0 { Step::Wait } else { Step::Used(at) }
    }

    /// Has the server send what it holds back until Sync.
    fn ask_for_answers<D: Driver>(&mut self, d: &mut D, server_id: ServerId) {
        self.scratch.clear();
        pgweir_wire::frontend::encode_flush(&mut self.scratch);
        if let Some(server) = self.servers.get(server_id) {
            d.send(server.conn, &self.scratch);
        }
    }

    /// Drops a message, also one of which only the beginning is here.
    fn discard(&mut self, id: ClientId, available: usize, header: Header) -> Step {
        let Some(client) = self.clients.get_mut(id) else { return Step::Gone };
        client.skip = header.total().saturating_sub(available);
        Step::Used(header.total().min(available))
    }

    fn oversized(&self, header: Header) -> Option<Fault> {
        let max = self.rules.config.main.max_packet_size as usize;
        (header.total() > max).then(|| Fault::TooLarge("message is larger than max_packet_size".into()))
    }

    fn unknown_message<D: Driver>(&mut self, d: &mut D, id: ClientId, tag: u8) -> Step {
        let text = format!("unknown pkt: '{}'", tag.escape_ascii());
        self.refuse_client(d, id, &Fault::Protocol(text.into()))
    }
}

/// What a name of a prepared statement means depends on answers that are still owed.
pub(super) fn names_are_uncertain(link: &mut Link, ledger: &Ledger) -> bool {
    if link.discards && ledger.is_empty() {
        link.discards = false;
    }
    link.discards || ledger.awaits_earlier_changes()
}

/// Where a message goes; decided by its type byte and, for those that name statements, its first bytes.
#[inline]
fn route(header: Header, message: &[u8], tracking: bool) -> Route {
    let body = &message[HEADER_LEN..message.len().min(header.total())];
    let incomplete = body.len() < header.body_len as usize;
    match header.tag {
        tag::QUERY if tracking && may_discard(body) => Route::Discards(Kind::Query),
        tag::QUERY => Route::Pass(Some(Kind::Query)),
        tag::EXECUTE => Route::Pass(Some(Kind::Execute)),
        tag::SYNC => Route::Pass(Some(Kind::Sync)),
        tag::BIND if tracking => match pgweir_wire::frontend::BindHead::parse_prefix(body) {
            Some(head) if head.statement.is_empty() => Route::Pass(Some(Kind::Bind)),
            Some(_) => Route::Prepared,
            None if body.len() > NAMES_BYTES_MAX => Route::Endless,
            None if incomplete => Route::More,
            None => Route::Malformed,
        },
        tag::BIND => Route::Pass(Some(Kind::Bind)),
        tag::PARSE => match body.first() {
            Some(&first) if tracking && first != 0 => Route::Prepared,
            Some(_) if tracking && may_discard(&body[1..]) => Route::Discards(Kind::Parse),
            Some(_) => Route::Pass(Some(Kind::Parse)),
            None if incomplete => Route::More,
            None => Route::Malformed,
        },
        tag::DESCRIBE | tag::CLOSE if incomplete && body.len() < 2 => Route::More,
        tag::DESCRIBE | tag::CLOSE => match (body, target(body)) {
            ([_, first, ..], Some(Target::Statement)) if tracking && *first != 0 => Route::Prepared,
            (_, Some(target)) => Route::Pass(Some(match (header.tag, target) {
                (tag::CLOSE, _) => Kind::Close,
                (_, Target::Statement) => Kind::DescribeStatement,
                (_, Target::Portal) => Kind::DescribePortal,
            })),
            (_, None) => Route::Malformed,
        },
        tag::FLUSH | tag::COPY_DATA => Route::Pass(None),
        tag::COPY_DONE | tag::COPY_FAIL => Route::Pass(Some(Kind::CopyEnd)),
        tag::FUNCTION_CALL => Route::Pass(Some(Kind::FunctionCall)),
        tag::TERMINATE => Route::Leave,
        _ => Route::Unknown,
    }
}

/// A text that begins with DEALLOCATE or DISCARD. Where one of them stands elsewhere in a text, prepared statements that
/// are used in the same pipeline get PostgreSQL's error that they do not exist, or that they do.
#[inline]
fn may_discard(text: &[u8]) -> bool {
    let text = text.trim_ascii_start();
    let begins = |word: &[u8]| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    matches!(text.first(), Some(b'd' | b'D')) && (begins(b"deallocate") || begins(b"discard"))
}

/// What a Describe or Close is about, by its first byte.
fn target(body: &[u8]) -> Option<Target> {
    match body.first() {
        Some(b'S') => Some(Target::Statement),
        Some(b'P') => Some(Target::Portal),
        _ => None,
    }
}
