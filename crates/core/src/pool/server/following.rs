//! The two connections by which the changes of a database are followed: one has the replication stream, the other is asked questions. Each is the
//! only server of a pool without clients, so that login and TLS are those of every server. Servers of clients are compared with them.

pub(crate) mod analysis;

use std::sync::Arc;

use pgweir_wire::backend::tag;
use pgweir_wire::header::{HEADER_LEN, Header};
use pgweir_wire::limits::STREAM_MESSAGE_BYTES_MAX;
use pgweir_wire::replication::{CHANGE_BYTES_MAX, Change, DATA_HEAD_BYTES, Frame, encode_status};

use crate::cluster::answer::Lsn;
use crate::context::{Cx, Effect};
use crate::driver::{CloseMode, ConnId, Driver};
use crate::ids::ServerId;
use crate::pool::cache::wal::Followed;
use crate::pool::cache::wal::decoder::{Committed, Decoder};
use crate::pool::cache::wal::node::{self, Told};
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::server::asked::{Replies, ServerQuestion};
use crate::pool::server::errors::code_and_text;
use crate::pool::server::state::{ServerState, Serves, Watching};
use crate::pool::{Branch, Pool, ServerKind, Step};

/// A replication stream, as far as its bytes have arrived.
#[derive(Default)]
pub(crate) struct Stream {
    decoder: Decoder,
    /// The number of bytes that follow of a message whose beginning told enough.
    skipped: usize,
    /// The news that have arrived and were not taken yet, in order.
    news: Vec<Streamed>,
    /// The reason why the stream cannot go on. Nothing is read after that.
    fault: Option<String>,
}

/// A piece of news of a replication stream.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Streamed {
    /// The server has begun to send.
    Began,
    /// A transaction that is committed, with all its changes.
    Committed(Committed),
    /// The server has read its log up to this position, and has sent what concerns the receiver.
    Position(Lsn),
    /// The server wants to know that the receiver is alive.
    WantsReply,
}

impl Stream {
    /// Takes bytes of the server. Returns the number of bytes that were used: the rest is the beginning of a message.
    fn take(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while self.fault.is_none() {
            let skipped = self.skipped.min(bytes.len() - at);
            self.skipped -= skipped;
            at += skipped;
            match self.message(&bytes[at..]) {
                Ok(Some(used)) => at += used,
                Ok(None) => return at,
                Err(fault) => self.fault = Some(fault),
            }
        }
        bytes.len()
    }

    /// Reads the message at the front. Returns the number of bytes that were used; `None` if more bytes are needed.
    fn message(&mut self, bytes: &[u8]) -> Result<Option<usize>, String> {
        let header = match Header::peek(bytes) {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let Some(body) = bytes.get(HEADER_LEN..header.total()) else {
            return self.beginning(header, bytes);
        };
        match header.tag {
            tag::COPY_BOTH => self.news.push(Streamed::Began),
            tag::COPY_DATA => self.data(body)?,
            tag::ERROR => {
                let (code, text) = code_and_text(body);
                return Err(format!("{text} (SQLSTATE {})", String::from_utf8_lossy(code.as_bytes())));
            }
            tag::NOTICE | tag::PARAMETER_STATUS => {}
            tag::COPY_DONE => return Err("the server has ended the replication stream".to_owned()),
            other => {
                return Err(format!(
                    "unexpected message '{}' in the replication stream",
                    other.escape_ascii()
                ));
            }
        }
        Ok(Some(header.total()))
    }

    fn data(&mut self, body: &[u8]) -> Result<(), String> {
        match Frame::parse(body).map_err(|error| error.to_string())? {
            Frame::Data(message) => {
                let committed = self.decoder.take(message)?;
                self.news.extend(committed.map(Streamed::Committed));
            }
            Frame::Keepalive { position, wants_reply } => {
                self.news.push(Streamed::Position(Lsn(position)));
                self.news.extend(wants_reply.then_some(Streamed::WantsReply));
            }
        }
        Ok(())
    }

    /// Reads the beginning of a message that has not arrived as a whole. A long row is not waited for.
    fn beginning(&mut self, header: Header, bytes: &[u8]) -> Result<Option<usize>, String> {
        if header.total() <= STREAM_MESSAGE_BYTES_MAX {
            return Ok(None);
        }
        let needed = HEADER_LEN + DATA_HEAD_BYTES + CHANGE_BYTES_MAX;
        let Some(body) = bytes.get(HEADER_LEN..needed) else { return Ok(None) };
        match Frame::parse(body) {
            Ok(Frame::Data(message)) if message.first().is_some_and(|tag| Change::may_be_long(*tag)) => {
                self.decoder.take(message)?;
                self.skipped = header.total() - bytes.len();
                Ok(Some(bytes.len()))
            }
            _ => Err("a message of the replication stream is too long".to_owned()),
        }
    }
}

impl Pool {
    /// Opens the connection: `serves` says which of the two it is. Returns `None` if there is no room for one.
    pub(crate) fn dial_follower<D: Driver>(&mut self, cx: &mut Cx<'_, D>, serves: Serves) -> Option<ConnId> {
        if !self.take_watch_place(cx.env) {
            return None;
        }
        let id = self.dial_server(cx, Branch::PRIMARY, None);
        let server = self.servers.get_mut(id)?;
        server.serves = serves;
        Some(server.conn)
    }

    /// Asks a server that has just logged in which PostgreSQL server it is, if the changes of its database are followed. Returns whether the server
    /// is asked. No client gets the server before, so that a client that was answered by another server is known from the start.
    pub(crate) fn asks_node<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        if cx.env.cache.is_none() || !cx.env.rules.config.is_followed(&self.state.database) {
            return false;
        }
        let Some(server) = self.servers.get(id) else { return false };
        // The connection that listens runs no statements of clients.
        if !server.opened.is_plain() || !server.branch.is_primary() || self.is_notify_listener(id) {
            return false;
        }
        let text = own_settings::question(server.at.version, Asks::Little, node::QUESTION.as_bytes());
        self.ask_server(cx, id, ServerQuestion::Node, &text);
        true
    }

    /// Takes the answer to [`Pool::asks_node`]. If the server is another one than the one whose changes are followed, nothing more is kept or
    /// given.
    pub(crate) fn node_told<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, answer: &Replies) {
        let row = answer.rows.first().filter(|_| answer.failed.is_none());
        let told = row.and_then(|row| Told::read(row));
        if let Some(server) = self.servers.get_mut(id) {
            server.at.node = told.filter(|told| !told.is_serializable).map(|told| told.node);
        }
        let state = cx.env.followed.state(&self.state.database);
        let is_other = |stream: &Followed| told.is_none_or(|told| told.node != stream.node());
        if state.and_then(|state| state.stream()).is_some_and(is_other) {
            cx.env.want(Effect::OtherNode(Arc::clone(&self.state.database)));
        }
        if !self.reads_catalog(cx, id) {
            self.free_server(cx, id);
        }
    }

    /// The settings with which connections begin may have changed: servers that have logged in before are closed when no client uses them.
    pub(crate) fn leave_old_settings<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        const REASON: &str = "settings of roles, databases or the server may have changed (query_cache)";
        // New connections may begin with another isolation level, as after RECONNECT.
        self.state.routines.doubt();
        let servers: Vec<ServerId> = self.servers.keys().collect();
        for id in servers {
            let Some(server) = self.servers.get_mut(id) else { continue };
            if !server.branch.is_primary() {
                // Answers of standbys are not kept.
                continue;
            }
            match server.state.kind() {
                ServerKind::Idle => self.close_server(cx, id, REASON, CloseMode::Flush),
                // It runs no statements of clients.
                ServerKind::Listening => {}
                _ => server.retire(REASON),
            }
        }
    }

    /// The connection is logged in: it waits for a question.
    pub(crate) fn begin_following(&mut self, id: ServerId) {
        let watching = Watching { is_answered: true, ..Watching::default() };
        self.set_server_state(id, ServerState::Watching(Box::new(watching)));
    }

    /// Asks a question, when the one before is answered.
    pub(crate) fn ask_follower<D: Driver>(&mut self, cx: &mut Cx<'_, D>, text: &str) {
        self.ask_node(cx, text.as_bytes());
    }

    /// Takes the answer to the last question, if it is complete.
    pub(crate) fn take_answer(&mut self) -> Option<Replies> {
        match self.servers.values_mut().next().map(|server| &mut server.state) {
            Some(ServerState::Watching(watching)) if watching.is_answered => {
                Some(std::mem::take(&mut watching.answer))
            }
            _ => None,
        }
    }

    /// Asks for the replication stream. From now on the connection has no answers, only the stream.
    pub(crate) fn begin_stream<D: Driver>(&mut self, cx: &mut Cx<'_, D>, text: &str) {
        let Some(server) = self.servers.values_mut().next() else { return };
        let ServerState::Watching(watching) = &mut server.state else { return };
        watching.is_answered = false;
        watching.stream = Some(Box::default());
        cx.env.scratch.clear();
        pgweir_wire::frontend::encode_query(&mut cx.env.scratch, text.as_bytes());
        cx.driver.send(server.conn, &cx.env.scratch);
    }

    /// Takes bytes of the stream.
    pub(crate) fn stream_received(&mut self, id: ServerId, bytes: &[u8]) -> Step {
        let state = self.servers.get_mut(id).map(|server| &mut server.state);
        let Some(ServerState::Watching(watching)) = state else { return Step::Gone };
        let Some(stream) = &mut watching.stream else { return Step::Gone };
        match stream.take(bytes) {
            0 => Step::Wait,
            used => Step::Used(used),
        }
    }

    /// Takes what has arrived in the stream, in order.
    ///
    /// # Errors
    /// The stream cannot go on, for this reason. What arrived before counts no more.
    pub(crate) fn take_streamed(&mut self) -> Result<Vec<Streamed>, String> {
        match self.servers.values_mut().next().map(|server| &mut server.state) {
            Some(ServerState::Watching(watching)) => match &mut watching.stream {
                Some(stream) => match stream.fault.take() {
                    Some(fault) => Err(fault),
                    None => Ok(std::mem::take(&mut stream.news)),
                },
                None => Ok(Vec::new()),
            },
            _ => Ok(Vec::new()),
        }
    }

    /// Tells the server that the stream was read up to this position.
    pub(crate) fn acknowledge<D: Driver>(&mut self, cx: &mut Cx<'_, D>, position: Lsn) {
        let Some(server) = self.servers.values().next() else { return };
        cx.env.scratch.clear();
        encode_status(&mut cx.env.scratch, position.0, false);
        cx.driver.send(server.conn, &cx.env.scratch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::cache::wal::decoder::ChangedRows;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    fn data(body: &[u8]) -> Vec<u8> {
        message(b'd', &[b"w", &[0; 24][..], body].concat())
    }

    fn transaction(row: &[u8]) -> Vec<u8> {
        [
            message(b'W', b"\0\0\0"),
            data(&[b"B", &[0; 16][..], &9u32.to_be_bytes()].concat()),
            data(&[b"I", &5u32.to_be_bytes()[..], row].concat()),
            data(&[b"C", &[0; 9][..], &77u64.to_be_bytes(), &[0; 8]].concat()),
            message(b'd', &[b"k", &80u64.to_be_bytes()[..], &[0; 8], &[1]].concat()),
        ]
        .concat()
    }

    /// Gives the stream pieces of this size, as a connection does.
    fn in_pieces(bytes: &[u8], size: usize) -> Stream {
        let mut stream = Stream::default();
        let mut inbox = Vec::new();
        for piece in bytes.chunks(size) {
            inbox.extend_from_slice(piece);
            let used = stream.take(&inbox);
            inbox.drain(..used);
            assert!(inbox.len() <= STREAM_MESSAGE_BYTES_MAX, "it keeps {} bytes", inbox.len());
        }
        stream
    }

    #[test]
    fn a_transaction_is_read_in_pieces_of_any_size() {
        let committed = Committed { xid: 9, tables: [(5, ChangedRows::All)].into(), end: Lsn(77) };
        let expected = [
            Streamed::Began,
            Streamed::Committed(committed),
            Streamed::Position(Lsn(80)),
            Streamed::WantsReply,
        ];
        for row in [vec![0; 3], vec![0; 300_000]] {
            let bytes = transaction(&row);
            for size in [1, 7, 100, 70_000, bytes.len()] {
                if size < 100 && row.len() > 1000 {
                    continue;
                }
                let stream = in_pieces(&bytes, size);
                assert_eq!(stream.fault, None);
                assert_eq!(stream.news, expected, "{size}");
            }
        }
    }

    #[test]
    fn hostile_lengths_and_messages_end_the_stream() {
        let truncate = [b"T", &u32::MAX.to_be_bytes()[..], &[0; 200_000]].concat();
        for bytes in [
            message(b'd', b"x"),
            message(b'Z', b"I"),
            message(b'c', b""),
            b"d\0\0\0\x01".to_vec(),
            b"d\xff\xff\xff\xff".to_vec(),
            data(&truncate)[..100].to_vec(),
            [&b"N\x7f\xff\xff\xff"[..], &[0; 100]].concat(),
            data(b"C"),
        ] {
            let mut stream = Stream::default();
            stream.take(&bytes);
            assert!(stream.fault.is_some(), "{}", bytes[..bytes.len().min(20)].escape_ascii());
            assert_eq!(stream.take(b"anything"), 8, "nothing more is read");
        }
    }
}
