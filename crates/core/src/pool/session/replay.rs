//! A client's session goes to another server in the same packet as the client's own statement: no round trip is added.
//!
//! The changes of the server's session are a separate transaction, sent as messages of the extended protocol without a Sync.
//! PostgreSQL commits it with the Execute of its COMMIT. If anything in it fails, PostgreSQL ignores every message after it up
//! to the next Sync: so no statement of the client runs in a session that is not the client's. That Sync is the client's own,
//! or (after a simple query) pgweir's; later messages of the client wait until the replay is answered.

use std::sync::Arc;

use pgweir_wire::error::SqlState;
use pgweir_wire::frontend;

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::relay::exchange::block::NO_PARAMETERS;
use crate::pool::relay::ledger::{Entry, Kind, Owner, Purpose};
use crate::pool::relay::preamble::{Ahead, LinkPhase, Part, Preamble, Repair};

/// The reason for closing a server that does not reach the state that its client needs.
pub(crate) const NOT_RESTORED: &str = "session could not be restored";

impl Pool {
    /// Sends the statements that bring the server to its client's session. The client's next message must follow right after them. Returns
    /// `false` if that is not possible; then nothing was sent.
    pub(crate) fn replay(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        statements: &[Vec<u8>],
    ) -> bool {
        if self.may_go_unreported(id, server_id) {
            return false;
        }
        let Some(client) = self.clients.get_mut(id) else { return false };
        let (ClientState::Linked(link), account) = (&mut client.state, &client.account) else {
            return false;
        };
        let server = &mut self.servers[server_id];
        match link.phase {
            LinkPhase::Exchange(Preamble::None) => {
                link.phase = LinkPhase::Exchange(Preamble::Sent(Ahead::Session, Part::Open));
            }
            // Messages after that BEGIN wait for its answer, which comes after the answers to the replay. Reported
            // parameters must be compared when the first group is over: the link cannot do that as well.
            _ if account.params.differences(&server.params).next().is_some() => return false,
            _ => {}
        }
        // No group may be queued behind it.
        link.group = None;
        let owner = Owner::Hidden(Purpose::Replay);
        let texts = statements.iter().map(Vec::as_slice);
        for text in [&b"BEGIN"[..]].into_iter().chain(texts).chain([&b"COMMIT"[..]]) {
            let ahead = &mut env.ahead;
            ahead.add(Entry::new(owner, Kind::Parse), |out| frontend::encode_parse(out, b"", text, &[]));
            ahead.add(Entry::new(owner, Kind::Bind), |out| {
                frontend::encode_bind_head(out, b"", b"", NO_PARAMETERS.len());
                out.extend_from_slice(&NO_PARAMETERS);
            });
            ahead.add(Entry::new(owner, Kind::Execute), |out| frontend::encode_execute(out, b"", 0));
        }
        server.attempt.note_replay();
        self.state.numbers.continuity.replays += 1;
        true
    }

    /// Whether the client might not be told of a change of its session that the server reports, because its first message may take the
    /// change back. PostgreSQL reports parameters when a group ends, and only those that differ from their last report.
    fn may_go_unreported(&self, id: ClientId, server_id: ServerId) -> bool {
        let Some(client) = self.clients.get(id) else { return false };
        let (ClientState::Linked(link), account) = (&client.state, &client.account) else {
            return false;
        };
        let server = &self.servers[server_id];
        if link.group.is_some() || Arc::ptr_eq(&server.session, &account.session) {
            return false;
        }
        let greeting = self.state.greeting.as_ref();
        let reported = |name: &[u8]| greeting.is_some_and(|greeting| greeting.reports(name));
        // A role's rights are reported as is_superuser.
        let changed = server.session.changed(&account.session);
        changed.into_iter().any(|name| matches!(name, b"role" | b"session_authorization") || reported(name))
    }

    /// Notes that a statement of a replay was executed; the last one is COMMIT.
    pub(crate) fn replay_answered(&mut self, server_id: ServerId, tag: &[u8]) {
        let Some(server) = self.servers.get_mut(server_id) else { return };
        let Some(id) = server.state.served_client() else { return };
        let Some(client) = self.clients.get_mut(id).filter(|_| tag == b"COMMIT\0") else { return };
        let (ClientState::Linked(link), account) = (&mut client.state, &client.account) else { return };
        server.session = Arc::clone(&account.session);
        if matches!(link.phase, LinkPhase::Exchange(Preamble::Sent(Ahead::Session, _))) {
            link.phase = LinkPhase::Exchange(Preamble::Replayed);
        }
    }

    /// Ends a replay, because the first group after it is answered: the server has reported its parameters.
    pub(crate) fn replay_over<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, server_id: ServerId) {
        if let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) {
            link.phase = LinkPhase::PLAIN;
        }
        self.adopt_params(cx, server_id, id);
    }

    /// Handles a client's session that cannot be brought to this server. If a cancel request or the client's own timeout ended the replay,
    /// only the client's statement ends. Any other error is not the client's fault: this returns `true`, and the client must get another
    /// server.
    pub(crate) fn replay_failed<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        message: &[u8],
        code: SqlState,
    ) -> bool {
        let Some(id) = self.servers.get(server_id).and_then(|server| server.state.served_client()) else {
            return false;
        };
        let Some(client) = self.clients.get_mut(id) else { return false };
        let ClientState::Linked(link) = &mut client.state else { return false };
        // The replay begins under the timeouts of the session that the server still has: another client's.
        let server = &self.servers[server_id];
        let ended_by_other = server.session.has_timeout() && server.cancels == 0;
        if code == SqlState::QUERY_CANCELED
            && !ended_by_other
            && let LinkPhase::Exchange(Preamble::Sent(Ahead::Session, group)) = link.phase
        {
            link.phase = LinkPhase::Repair(Repair::Awaited { group, text: b"ROLLBACK" });
            link.touched = None;
            cx.driver.send(client.conn, message);
            if self.servers[server_id].session.prepared().next().is_some() {
                // A DEALLOCATE is not taken back with its transaction.
                self.servers[server_id].retire(NOT_RESTORED);
            }
            if group.lacks_sync() {
                self.send_sync(cx, server_id, Purpose::Reopen);
            }
            return false;
        }
        true
    }
}
