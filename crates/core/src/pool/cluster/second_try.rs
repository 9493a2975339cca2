//! Reads that a standby does not run (`route=auto`): they run again on the primary, and their clients see nothing of that.
//!
//! A client's first try is a whole group that certainly reads. Its bytes are kept (`relay/attempt/`), and what the client sends after them
//! waits, until the group is answered. What the standby says is held back until a row, or the end of a statement, tells that the read
//! runs there (`multiplex/held.rs`). An error that comes before, or the end of the connection, is not shown.
//!
//! **Invariant: an error of a standby is not shown as long as nothing of the answer was shown.**

use pgweir_wire::backend::{ErrorFields, tag};
use pgweir_wire::error::SqlState;
use pgweir_wire::header::HEADER_LEN;

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::cluster::reading::{FirstGroup, is_reading};
use crate::pool::cluster::route::Asked;
use crate::pool::multiplex::held::{Beginning, HeldBack, Unshown};
use crate::pool::relay::attempt::after_failure::{AfterFailure, ExchangeFailure, decide};
use crate::pool::relay::ledger::{Owner, Purpose};
use crate::pool::relay::preamble::{Again, Ahead, LinkPhase, Preamble};

/// SQLSTATE of a change in a read-only transaction.
const READ_ONLY_SQL_TRANSACTION: &[u8] = b"25006";

/// The reason for closing a standby's server that sent its client a FATAL error.
const SAID_FATAL: &str = "the standby ended the session";

impl Pool {
    /// Looks at the head's answer before it is passed on. Returns whether the answer must wait for more bytes.
    #[cold]
    pub(crate) fn holds_back<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, bytes: &[u8]) -> bool {
        if let Some(HeldBack::Exposed(_)) =
            self.servers.get_mut(id).and_then(|server| server.pipelined.held())
            && self.holds_exposed(cx, id, bytes)
        {
            return true;
        }
        match self.servers.get_mut(id).and_then(|server| server.pipelined.held()) {
            Some(HeldBack::Unshown(unshown)) => {
                let unshown = *unshown;
                self.holds_unshown(cx, id, unshown, bytes)
            }
            _ => false,
        }
    }

    /// Looks at the beginning of a standby's answer to a first try. Returns whether the answer must wait for more bytes.
    fn holds_unshown<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        mut unshown: Unshown,
        bytes: &[u8],
    ) -> bool {
        let Some(server) = self.servers.get_mut(id) else { return false };
        let begins = match server.ledger.head().map(|head| head.owner) {
            // What went ahead of it is answered first.
            None | Some(Owner::Hidden(_)) => return false,
            Some(Owner::Prerequisite(_)) if bytes.first() != Some(&tag::ERROR) => return false,
            Some(Owner::Prerequisite(_)) => true,
            Some(Owner::Client(_)) => false,
        };
        let error = match unshown.look(bytes) {
            Beginning::Nothing => {
                server.pipelined.hold(Some(HeldBack::Unshown(unshown)));
                return true;
            }
            Beginning::Answer => None,
            Beginning::Error(error) => Some(&error[HEADER_LEN..]),
        };
        server.pipelined.hold(None);
        if let Some(client) = server.state.served_client() {
            self.first_try_decided(cx, id, client, (error, begins));
        }
        false
    }

    /// The first try runs, or fails with this error. `begins`: that is of the BEGIN ahead of it.
    fn first_try_decided<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        (error, begins): (Option<&[u8]>, bool),
    ) {
        let Some(client) = self.clients.get_mut(client_id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        let needs_sync = begins
            && matches!(link.phase, LinkPhase::Exchange(Preamble::Sent(Ahead::Begin, group)) if group.lacks_sync());
        let was = link.first_try;
        let fields = error.and_then(|body| ErrorFields::parse(body).ok());
        let code = fields.as_ref().and_then(ErrorFields::code);
        // A cancel request or a timeout is meant for the statement, wherever it runs.
        let is_refused =
            was == FirstTry::Unshown && error.is_some() && code != Some(SqlState::QUERY_CANCELED.as_bytes());
        link.first_try = if is_refused { FirstTry::Failed } else { FirstTry::None };
        let decision = decide(ExchangeFailure::StandbyRefused, Some(client), self.servers.get(id));
        if !is_refused || decision != AfterFailure::AtPrimary {
            return self.transaction_stays(cx.env, client_id);
        }
        self.standby_refused(cx, id, client_id, code);
        if fields.is_some_and(|fields| matches!(fields.severity(), Some(b"FATAL" | b"PANIC"))) {
            return self.lose_standby(cx, id);
        }
        self.repeat_on_primary(cx, id, client_id, needs_sync);
    }

    /// A standby describes the statement of a first try in another way than its client was told.
    #[cold]
    pub(crate) fn first_try_misfits<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
    ) {
        let Some(ClientState::Linked(link)) = self.clients.get_mut(client_id).map(|client| &mut client.state)
        else {
            return;
        };
        link.first_try = FirstTry::Failed;
        if let Some(server) = self.servers.get_mut(id) {
            server.pipelined.hold(None);
        }
        self.standby_refused(cx, id, client_id, None);
        self.repeat_on_primary(cx, id, client_id, false);
    }

    /// A first try has failed: no client gets its answer, and it runs on the primary when that is complete.
    fn repeat_on_primary<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        needs_sync: bool,
    ) {
        if !self.servers[id].pipelined.is_alone() {
            return self.run_again(cx, id, client_id, "a read that a standby refused runs on the primary");
        }
        self.end_pipeline(id);
        if let (Some(client), Some(server)) = (self.clients.get_mut(client_id), self.servers.get_mut(id)) {
            server.attempt.take_back(&mut client.inbox, &mut cx.env.buffers);
            server.ledger.disown_head(Purpose::Rerun);
        }
        if needs_sync {
            // PostgreSQL ignores the Query behind the BEGIN.
            self.send_sync(cx, id, Purpose::Reopen);
        }
        if let Some(ClientState::Linked(link)) =
            self.clients.get_mut(client_id).map(|client| &mut client.state)
        {
            link.phase = LinkPhase::Again(Again { begin: None, rolls_back: false });
        }
    }

    /// A standby has ended the session of a first try: the group runs on the primary.
    pub(crate) fn lose_standby<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let branch = server.branch;
        self.suspect_node(cx.env, branch, false);
        self.lose_server(cx, id, SAID_FATAL.into());
    }

    /// The first group of a transaction runs here, or has failed here for good: what follows need not wait.
    fn transaction_stays(&mut self, env: &mut Env, id: ClientId) {
        if self.clients.get(id).is_some_and(is_reading) {
            self.drop_attempt(env, id);
        }
    }

    /// ReadyForQuery after a first try that has failed: the group runs on the primary, and the standby's server is free. `false`: it was
    /// no first try.
    #[cold]
    pub(crate) fn runs_on_primary<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server_id: ServerId,
        id: ClientId,
    ) -> bool {
        if !self.goes_to_primary(cx, id, server_id) {
            return false;
        }
        let mode = self.state.policy.mode;
        self.release_server(cx, server_id, mode);
        true
    }

    /// An error of a standby ends a first try.
    fn standby_refused<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        code: Option<&[u8]>,
    ) {
        let now_us = cx.env.now.mono_us;
        let branch = self.servers[id].branch;
        if code == Some(READ_ONLY_SQL_TRANSACTION) {
            self.note_misrouted(cx, id, client_id);
        }
        if let Some(name) = self.state.note_refused(branch, now_us) {
            let line = format!(
                "{} standby \"{name}\" refuses more than a fifth of the reads: it gets none for {} s",
                self.server_log_name(&self.servers[id]),
                super::standbys::REST_US / 1_000_000
            );
            cx.log(Level::Warning, &line);
        }
    }

    /// A text that certainly reads would have changed something: what is known of names is read again, and until it says something else
    /// the text runs on the primary.
    fn note_misrouted<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client_id: ClientId) {
        let client = self.clients.get(client_id);
        let routing = client.and_then(|client| client.account.routing.as_deref());
        let statement = match routing.map(|routing| routing.asked) {
            Some(Asked::Read(group)) => group.statement,
            Some(Asked::Transaction(FirstGroup { statement: Some(statement), .. })) => statement,
            _ => return,
        };
        self.state.note_misrouted_at(self.servers[id].branch);
        self.state.reach.bar(statement);
        self.state.routines.doubt();
        let line = format!(
            "{} a statement that was taken for a read is refused in a read-only transaction",
            self.server_log_name(&self.servers[id])
        );
        cx.log(Level::Warning, &line);
    }
}
