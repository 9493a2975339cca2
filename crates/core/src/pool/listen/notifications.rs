//! LISTEN in transaction pooling: one connection of each pool, its notify listener, listens for all of its clients.
//!
//! A client's LISTEN and UNLISTEN run on whatever server it has. When that transaction is over, the audit says which channels
//! the session listens to now; rolled back or not, by any statement. The notify listener joins the new ones, and only then the
//! client is told that its transaction is over: no notification that is sent afterwards can be missed. Notifications that its
//! server got meanwhile are put ahead of those that the notify listener got (`join.rs`).
//!
//! Notifications reach a client when none of its transactions is open, as in PostgreSQL, in the order in which the notify
//! listener got them, and its own before its ReadyForQuery. If no notify listener can be had, a client that listens keeps its
//! server. A notify listener that breaks ends the clients that listen: no client is left to believe that nothing happened.

use pgweir_settings::PoolMode;
use pgweir_sql::Marks;
use pgweir_wire::backend::{TxStatus, encode_ready};

use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::NOTIFICATIONS_BYTES_MAX;
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::listen::notify_listener::{Listener, Message};
use crate::pool::relay::ledger::{Ledger, Owner, Purpose};
use crate::pool::server::state::{Auditing, Stage};
use crate::pool::session::pins::Reasons;

impl Pool {
    // The end of a transaction.

    /// Whether ReadyForQuery must be delayed, because other connections must learn of the transaction's end before the client does.
    pub(crate) fn delays_ready(&mut self, id: ServerId, owner: Owner, status: TxStatus) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let Some(client_id) = server.state.served_client() else { return false };
        let Some(client) = self.clients.get_mut(client_id) else { return false };
        let ClientState::Linked(link) = &mut client.state else { return false };
        let listener = client.account.listener.as_deref();
        // Most clients neither listen nor ever did.
        if link.touched.is_none() && listener.is_none() {
            return false;
        }
        if owner != Owner::Client(client_id)
            || !self.state.policy.keeps_sessions()
            || !(server.ledger.is_at_rest() || is_being_restored(&server.ledger))
            || !server.pipelined.is_alone()
            || status != TxStatus::Idle
        {
            return false;
        }
        // DISCARD ALL is the end of listening, too.
        let ends = if listener.is_some() { Marks::DISCARDS } else { Marks::NONE };
        let telling = Marks::LISTENS.and(ends);
        let listens = link.touched.as_ref().is_some_and(|touched| touched.marks.intersects(telling));
        let owes = listener.is_some_and(|listener| !listener.own.is_empty());
        link.ready_due =
            (listens || owes) && link.streaming == 0 && link.made_in != PoolMode::Session && is_open(link);
        link.ready_due
    }

    /// Forwards the delayed ReadyForQuery to the client.
    pub(crate) fn give_ready<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        if !std::mem::take(&mut link.ready_due) {
            return;
        }
        self.send_notifications(cx, id);
        cx.env.scratch.clear();
        encode_ready(&mut cx.env.scratch, TxStatus::Idle);
        if let Some(client) = self.clients.get(id) {
            cx.driver.send(client.conn, &cx.env.scratch);
        }
    }

    /// Returns the state of a server (the moment *rest*) whose client's own notifications have not all come from the notify listener.
    /// The server stays with the client until they have come.
    pub(crate) fn own_notifications_due(&self, id: ClientId) -> Option<Box<Auditing>> {
        let client = self.clients.get(id).filter(|client| client.account.owes_notifications())?;
        let ClientState::Linked(link) = &client.state else { return None };
        let reasons = link.pin.as_ref().map_or(Reasons::NONE, |pin| pin.reasons);
        Some(Box::new(Auditing::new(Stage::Owing(reasons))))
    }

    // Notifications.

    /// Queues a notification that comes too early to be passed on as it is: the server does not know of a BEGIN that pgweir has
    /// answered, or earlier notifications are queued. Returns whether it was queued.
    pub(crate) fn keeps_notification<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        message: &[u8],
    ) -> bool {
        let waits = self.listener(id).is_some_and(|listener| !listener.queue.is_empty());
        let begins = match self.clients.get(id).map(|client| &client.state) {
            Some(ClientState::Linked(link)) => !is_open(link),
            _ => false,
        };
        if waits || begins {
            self.tell_later(cx, id, message.into());
        }
        waits || begins
    }

    /// Queues a notification for a client until its transaction is over. Ends the client if too many are queued.
    pub(super) fn tell_later<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId, message: Message) {
        let Some(account) = self.account_mut(id) else { return };
        let listener: &mut Listener = account.listener.get_or_insert_default();
        listener.bytes += message.len();
        listener.queue.push(message);
        self.state.due.notified.push(id);
        if self.has_too_many(cx, id) {
            self.refuse_client(cx, id, &Fault::TooManyNotifications);
        }
    }

    pub(super) fn is_told_as_it_comes(&self, id: ClientId) -> bool {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return false;
        };
        // In the middle of a group that pgweir began to answer here, the server does not know of the group.
        let server = self.servers.get(link.server);
        is_open(link)
            && server.is_some_and(|server| server.ledger.is_at_rest())
            && self.listener(id).is_none_or(|listener| listener.queue.is_empty())
    }

    pub(super) fn has_too_many<D: Driver>(&self, cx: &Cx<'_, D>, id: ClientId) -> bool {
        let waiting = self.listener(id).map_or(0, |listener| listener.bytes);
        let conn = self.clients.get(id).map(|client| client.conn);
        waiting + conn.map_or(0, |conn| cx.driver.backlog(conn)) > NOTIFICATIONS_BYTES_MAX && waiting > 0
    }

    /// Whether queued notifications can be sent with the client's ReadyForQuery. In the middle of a pipeline, none is sent that may
    /// be the client's own, because the notify listener may be faster than the server.
    #[inline]
    pub(crate) fn has_notifications(&self, id: ClientId, server: ServerId, status: TxStatus) -> bool {
        let Some(listener) = self.listener(id).filter(|listener| !listener.queue.is_empty()) else {
            return false;
        };
        let Some(server) = self.servers.get(server) else { return false };
        let doubtful = !server.ledger.is_at_rest() && listener.may_wait_for(server.at.pid);
        !doubtful && status == TxStatus::Idle
    }

    /// Forwards the queued notifications to the client.
    pub(crate) fn send_notifications<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let conn = client.conn;
        let listener = client.account.listener.as_deref_mut();
        let told = listener.map(Listener::take).unwrap_or_default();
        if !told.is_empty() {
            cx.driver.send(conn, &told);
        }
    }

    /// Tells the clients that have no transaction open; the other clients later.
    pub(crate) fn notify_clients<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        for id in std::mem::take(&mut self.state.due.notified) {
            if self.listener(id).is_none_or(|listener| listener.queue.is_empty()) {
                continue;
            }
            if self.is_between_statements(id) {
                self.send_notifications(cx, id);
            } else {
                self.state.due.notified.push(id);
            }
        }
    }

    fn is_between_statements(&self, id: ClientId) -> bool {
        match self.clients.get(id).map(|client| &client.state) {
            // A client that waits for a server may have had part of its answer, and is told at the end of it.
            Some(ClientState::Idle) => true,
            Some(ClientState::Linked(link)) => {
                let server = self.servers.get(link.server);
                server.is_some_and(|server| server.state.is_serving() && server.is_at_rest())
                    && link.streaming == 0
                    && !link.ready_due
                    && is_open(link)
            }
            _ => false,
        }
    }
}

/// Whether only pgweir's own statement after a RESET or DISCARD is left to be answered.
fn is_being_restored(ledger: &Ledger) -> bool {
    ledger.entries().all(|entry| matches!(entry.owner, Owner::Hidden(Purpose::Restore | Purpose::OwnName)))
}

/// Whether pgweir has no statement of its own between the client and its server's answers.
pub(super) fn is_open(link: &crate::pool::client::state::Link) -> bool {
    link.phase.is_clear()
}
