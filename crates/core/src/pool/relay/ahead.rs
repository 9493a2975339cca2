//! Messages that go to a server ahead of a client's message, or instead of it, with their entries in the ledger. Features write them down;
//! `relay` alone sends them, in one piece, in the order in which the moment *prepare* asks the features.
//!
//! There is one list for each worker, which is empty between two messages of clients.

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::ServerId;
use crate::pool::Pool;
use crate::pool::relay::hidden::{ASIDE, encode_aside};
use crate::pool::relay::ledger::{Entry, Kind, Owner, Purpose};

/// The messages that go to a server ahead of a client's message, or instead of it, and their ledger entries in the same order.
#[derive(Default)]
pub(crate) struct Ahead {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Ahead {
    /// Adds a message, and the ledger entry for the answer that the server will owe for it.
    pub(crate) fn add(&mut self, entry: Entry, encode: impl FnOnce(&mut Vec<u8>)) {
        encode(&mut self.bytes);
        self.entries.push(entry);
    }

    /// Adds a client's message that pgweir answers itself when its turn comes. The server never sees this message.
    pub(crate) fn add_local(&mut self, entry: Entry) {
        debug_assert!(matches!(entry.kind, Kind::Local(_)));
        self.entries.push(entry);
    }

    /// Adds a statement of pgweir's own, in the simple protocol. No client sees its answer.
    pub(crate) fn add_hidden(&mut self, purpose: Purpose, text: &[u8]) {
        let entry = Entry::new(Owner::Hidden(purpose), Kind::Query);
        self.add(entry, |out| pgweir_wire::frontend::encode_query(out, text));
    }

    /// Adds a statement of pgweir's own in the middle of a group. The client's unnamed statement and portal are not touched.
    pub(crate) fn add_aside(&mut self, owner: Owner, text: &[u8]) {
        encode_aside(&mut self.bytes, text);
        self.entries.extend(ASIDE.map(|kind| Entry::new(owner, kind)));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Pool {
    /// Sends the messages that features have written down. If the turn of an answer of pgweir's own has come, the client gets that answer.
    #[inline]
    pub(crate) fn send_ahead<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) {
        if !cx.env.ahead.is_empty() {
            self.send_list(cx, server_id);
        }
    }

    fn send_list<D: Driver>(&mut self, cx: &mut Cx<'_, D>, server_id: ServerId) {
        let Ahead { bytes, entries } = &mut cx.env.ahead;
        let answers = entries.iter().any(|entry| matches!(entry.kind, Kind::Local(_)));
        if let Some(server) = self.servers.get_mut(server_id) {
            // A server that ignores them does so at the next Sync at the latest; the features have taken that into account.
            for entry in entries.drain(..) {
                server.ledger.push(entry);
            }
            if !bytes.is_empty() {
                cx.driver.send(server.conn, bytes);
            }
        }
        entries.clear();
        bytes.clear();
        if answers {
            self.conclude_statements(cx, server_id);
        }
    }
}
