//! `commit_outcome=exact`: COMMIT is sent when the number of its transaction is known, and nothing is sent with it. So its outcome is
//! never unknown because the server was lost before it was asked, or before its answer was read.
//!
//! A COMMIT that comes in one group with other messages cannot be held back: its client waits for answers to those, and
//! PostgreSQL may keep them back until it gets the end of the group.

use pgweir_sql::Block;
use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::tag;
use pgweir_wire::header::Header;

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::rolled_back::may_become_end;
use crate::pool::client::state::ClientState;
use crate::pool::cluster::commit::Number;
use crate::pool::cluster::in_flight::{InFlight, Sent};
use crate::pool::relay::attempt::holds_later;
use crate::pool::relay::exchange::group_len;
use crate::pool::server::state::Server;

/// The decision about a COMMIT at the front of a client's bytes.
enum Commit {
    /// The first bytes, of this number, are sent.
    Goes(usize),
    /// The COMMIT waits for answers, or for the rest of its own bytes.
    Waits,
    /// The COMMIT waits, and the server is asked for the number of the transaction.
    Asks,
}

impl Pool {
    /// Returns the number of the client's bytes that may be sent now; `None`: all of them wait.
    #[cold]
    pub(super) fn sendable_len<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Option<usize> {
        let all = Some(bytes.len());
        let (Some(client), Some(server)) = (self.clients.get(id), self.servers.get(server_id)) else {
            return all;
        };
        let ClientState::Linked(link) = &client.state else { return all };
        // A group that others may follow is in no transaction. The other cases wait anyway.
        let is_other = link.group.is_some() || holds_later(link, server) || !server.pipelined.is_alone();
        let is_ready = server.state.is_serving() && !link.phase.holds();
        if is_other || !is_ready || !server.branch.is_primary() {
            return all;
        }
        if link.streaming > 0 {
            return Some(link.streaming.min(bytes.len()));
        }
        if is_committing(server, id) {
            return None;
        }
        let ledger = &server.ledger;
        let is_open = server.tx != TxStatus::Idle || !ledger.is_clear_of_clients() || !link.phase.is_plain();
        match self.before_commit(cx.env, id, bytes, (ledger.is_between_groups(), is_open)) {
            0 => {}
            len => return Some(len),
        }
        match self.commit_at_front(cx.env, id, server_id, bytes) {
            Commit::Goes(len) => Some(len),
            Commit::Waits => None,
            Commit::Asks => {
                self.ask_number(cx, server_id, bytes.first() == Some(&tag::QUERY));
                None
            }
        }
    }

    /// The bytes up to the first group that is a COMMIT, or may become one with what is to come. `begins`: a group begins with them.
    /// Unless a transaction is open ahead of them (`is_open`), there is nothing that the first group could commit: it does not wait
    /// for the rest of it.
    fn before_commit(&self, env: &Env, id: ClientId, bytes: &[u8], (begins, is_open): (bool, bool)) -> usize {
        let mut at = if begins { 0 } else { group_len(bytes) };
        while at < bytes.len() {
            let rest = &bytes[at..];
            let may_commit = at > 0 || is_open;
            let is_part =
                may_commit && matches!(Header::peek(rest), Ok(Some(header)) if may_become_end(header, rest));
            if is_part || self.end_at_front(env, id, rest).is_some_and(|end| end.is(Block::Commit)) {
                return at;
            }
            at += group_len(rest);
        }
        at
    }

    fn commit_at_front(&self, env: &Env, id: ClientId, server_id: ServerId, bytes: &[u8]) -> Commit {
        let (Some(server), Some(end)) = (self.servers.get(server_id), self.end_at_front(env, id, bytes))
        else {
            return Commit::Waits;
        };
        let is_done = matches!(
            self.clients.get(id).map(|client| &client.state),
            Some(ClientState::Linked(link)) if link.phase.is_plain()
        );
        let number = InFlight::of(server, id).map(|in_flight| &in_flight.number);
        match number {
            _ if !server.ledger.owes_no_client() => Commit::Waits,
            Some(Number::Told(_)) => Commit::Goes(end.len),
            _ if !server.ledger.is_empty() => Commit::Waits,
            Some(Number::Unknown | Number::Lost)
                if is_done && server.tx == TxStatus::InTransaction && self.answers_number(server) =>
            {
                Commit::Asks
            }
            _ => Commit::Goes(end.len),
        }
    }
}

/// Whether the server, which has no other client, has not yet answered the client's COMMIT.
fn is_committing(server: &Server, id: ClientId) -> bool {
    let sent = InFlight::of(server, id).map(InFlight::sent);
    // A group may be open behind a COMMIT that was answered: pgweir has begun it for a statement of the client's next group.
    matches!(sent, Some(Sent::End(end)) if end.is(Block::Commit)) && server.ledger.owes_client()
}
