//! Transactions whose BEGIN says nothing of what they may do (`begin_undeclared=first`). They read at a standby as long as each group
//! certainly reads. At the first that does not, the transaction ends there, and begins on the primary with that group. Only with READ
//! COMMITTED, where each statement sees what was committed before it anyway.
//!
//! Each group of such a transaction has one of three ends: it runs at the standby, it begins the transaction on the primary, or the
//! standby refuses it with an error and with ReadyForQuery.
//!
//! **Invariant: a group reaches the standby of such a transaction only if it certainly reads and leaves no portal that a later group may
//! go on with, or ends the transaction; or the transaction has failed there.**
//!
//! **Invariant: nothing waits within a group.** The server answers it when its Sync has come.

use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::tag;
use pgweir_wire::header::Header;

use super::{Later, Progress, SoFar};
use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::{ClientState, Link, OwnNames};
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::relay::exchange::is_partial_group;
use crate::pool::relay::ledger::Purpose;
use crate::pool::relay::preamble::{Again, LinkPhase};
use crate::pool::{Pool, Step};

impl Link {
    /// Whether the client's transaction may go on at another server, because it has left nothing at this one. What the link says of
    /// sequences does not count: no value can be drawn at a standby, and what other clients drew there before is discarded on the next
    /// server as well.
    fn may_leave(&self) -> bool {
        self.phase.is_clear()
            && self.touched.is_none()
            && self.pin.is_none()
            && self.own_names == OwnNames::Hidden
            && !self.ready_due
            && self.streaming == 0
    }
}

impl SoFar {
    /// Returns the decision to send the first `len` bytes, which are a whole group or message.
    fn sends(self, len: u32) -> Later {
        Later::Send(len as usize, SoFar { left: len, ..self })
    }

    /// Returns the state after `len` bytes of the current group were sent.
    pub(super) fn sent(self, len: usize) -> SoFar {
        let left = self.left.saturating_sub(len as u32);
        match self.progress {
            Progress::EndsWithGroup if left == 0 => SoFar { left, progress: Progress::Ended, ..self },
            progress => SoFar { left, progress, ..self },
        }
    }
}

impl Pool {
    /// Looks at what a client sends in such a transaction. `None`: PostgreSQL judges it.
    pub(super) fn look_at_undeclared<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
        so_far: SoFar,
    ) -> Option<Later> {
        if so_far.left > 0 {
            return Some(Later::Send(bytes.len().min(so_far.left as usize), so_far));
        }
        let server = self.servers.get(server_id)?;
        if !server.ledger.is_between_groups() {
            // The server answers nothing of a group before its Sync, for which nothing may wait.
            return None;
        }
        let header = Header::peek(bytes).ok().flatten()?;
        if matches!(header.tag, tag::TERMINATE | tag::SYNC | tag::FLUSH) && bytes.len() >= header.total() {
            return Some(so_far.sends(header.total() as u32));
        }
        if let Some(group) = self.end_at_front(cx.env, id, bytes) {
            return Some(SoFar { progress: Progress::EndsWithGroup, ..so_far }.sends(group.len as u32));
        }
        if is_partial_group(bytes) {
            return Some(Later::Done(Step::Wait));
        }
        let group = self.group_of(cx.env, id, bytes);
        if let Some(group) = self.state.certain_read(cx.env, group.as_ref())
            && !group.leaves_portal()
        {
            return Some(so_far.sends(group.len));
        }
        let server = self.servers.get(server_id)?;
        let is_ready = server.state.is_serving() && server.ledger.is_at_rest();
        if !is_ready {
            return Some(Later::Done(self.waits_at_server(id)));
        }
        if server.tx == TxStatus::Failed {
            return None;
        }
        let Some(ClientState::Linked(link)) = self.clients.get_mut(id).map(|client| &mut client.state) else {
            return None;
        };
        if !link.may_leave() {
            return None;
        }
        link.first_try = FirstTry::Left;
        link.phase = LinkPhase::Again(Again { begin: None, rolls_back: true });
        // It has read, and nothing else: that ends it as COMMIT does.
        self.send_hidden(cx, server_id, Purpose::Rerun, b"ROLLBACK");
        Some(Later::Done(self.waits_at_server(id)))
    }
}
