//! LISTEN in transaction pooling: one connection of each pool, its hub, listens for all of its clients.
//!
//! A client's LISTEN and UNLISTEN run on whatever server it has. When that transaction is over, the audit says which channels
//! the session listens to now; rolled back or not, by whatever statement. The hub joins the new ones, and only then
//! the client is told that its transaction is over: no notification that is sent afterwards can be missed. What
//! its server was notified of meanwhile is put in front of what the hub was (`hub.rs`).
//!
//! Notifications reach a client when none of its transactions is open, as in PostgreSQL, in the order in which the hub got
//! them, and its own before its ReadyForQuery. Where no hub can be had, a client that listens keeps its server. A
//! hub that breaks ends the clients that listen: nobody is left believing that nothing happened.

use pgweir_wire::backend::{NotificationResponse, TxStatus, encode_ready, parse_ready};
use pgweir_wire::header::HEADER_LEN;

use pgweir_settings::PoolMode;
use pgweir_sql::Marks;

use crate::client::{Account, ClientState, Opening};
use crate::driver::{CloseMode, Driver, Level};
use crate::errors::Fault;
use crate::hub::{Hub, Listener, Message, as_own};
use crate::ids::{ClientId, PoolId, ServerId};
use crate::ledger::{Accepted, Ledger, Owner, Purpose};
use crate::limits::NOTIFICATIONS_BYTES_MAX;
use crate::machine::{Machine, duration_us};
use crate::pins::Reasons;
use crate::server::{Auditing, Replies, ServerState, Stage};
use crate::session::quote_identifier;

impl Machine {
    // The end of a transaction.

    /// A transaction ends that others have to know of before the client is told.
    pub(in crate::machine) fn delays_ready(&mut self, id: ServerId, accepted: Accepted, body: &[u8]) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let ServerState::Busy(client_id) = server.state else { return false };
        let Some(client) = self.clients.get_mut(client_id) else { return false };
        let ClientState::Linked(link) = &mut client.state else { return false };
        let listener = client.account.as_deref().and_then(|account| account.listener.as_deref());
        // Most clients neither listen nor ever did.
        if link.touched.is_none() && listener.is_none() {
            return false;
        }
        if accepted.owner != Owner::Client(client_id)
            || !self.pools[server.pool].keeps_sessions
            || !(server.ledger.is_at_rest() || is_being_restored(&server.ledger))
            || !server.riders.is_alone()
            || parse_ready(body) != Ok(TxStatus::Idle)
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

    /// What was delayed.
    pub(super) fn give_ready<D: Driver>(&mut self, d: &mut D, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let ClientState::Linked(link) = &mut client.state else { return };
        if !std::mem::take(&mut link.ready_due) {
            return;
        }
        self.send_notifications(d, id);
        self.scratch.clear();
        encode_ready(&mut self.scratch, TxStatus::Idle);
        if let Some(client) = self.clients.get(id) {
            d.send(client.conn, &self.scratch);
        }
    }

    /// The client's own notifications have not yet come from the hub.
    pub(super) fn owes_notifications(&self, id: ClientId) -> bool {
        self.listener(id).is_some_and(|listener| !listener.own.is_empty())
    }

    /// As [`Machine::owes_notifications`]; the server stays with it until they have.
    pub(super) fn awaits_own(&mut self, id: ServerId, client: ClientId) -> bool {
        if !self.owes_notifications(client) {
            return false;
        }
        let reasons = match self.clients.get(client).map(|client| &client.state) {
            Some(ClientState::Linked(link)) => link.pin.as_ref().map_or(Reasons::NONE, |pin| pin.reasons),
            _ => return false,
        };
        let auditing = Auditing {
            client,
            everything: false,
            names: Vec::new(),
            sticky: Reasons::NONE,
            reshaped: false,
            answer: Replies::default(),
            attempts: 0,
            probe: None,
            stage: Stage::Owing(reasons),
        };
        self.set_server_state(id, ServerState::Auditing(Box::new(auditing)));
        true
    }

    /// The channels of a session are known. `true` if the hub has to join some first; else the reasons have the last word.
    pub(super) fn join_channels<D: Driver>(
        &mut self,
        d: &mut D,
        id: ServerId,
        client_id: ClientId,
        reasons: &mut Reasons,
    ) -> bool {
        let session = std::sync::Arc::clone(&self.servers[id].session);
        let (pool_id, server_pid) = (self.servers[id].pool, self.servers[id].pid);
        let here = self.listens_here(id) && !session.channels().is_empty();
        let Some(client) = self.clients.get_mut(client_id) else { return false };
        let Some(account) = client.account.as_deref_mut() else { return false };
        if session.channels().is_empty() && account.listener.is_none() {
            return false;
        }
        let listener = account.listener.get_or_insert_default();
        let hub = self.pools[pool_id].hub.as_deref_mut();
        let (stay, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut listener.joined)
            .into_iter()
            .partition(|channel| session.channels().contains(channel) && !here);
        if let Some(hub) = hub {
            gone.iter().for_each(|channel| hub.leave(channel, client_id));
        }
        listener.joined = stay;
        listener.own_without_hub(account.cancel_key.pid());
        let new: Vec<Box<[u8]>> =
            session.channels().iter().filter(|channel| !listener.joined.contains(channel)).cloned().collect();
        if here {
            *reasons = reasons.with(Reasons::LISTENS);
        }
        if here {
            listener.from_server.clear();
        } else if listener.told_of_others(&new, server_pid, account.cancel_key.pid()) {
            self.notified.push(client_id);
        }
        if here || new.is_empty() {
            return false;
        }
        listener.joining.clone_from(&new);
        if !self.has_encoding_of_pool(client_id, pool_id) || !self.join(d, pool_id, client_id, &new) {
            self.listen_here(client_id);
            *reasons = reasons.with(Reasons::LISTENS);
            return false;
        }
        if let ServerState::Auditing(auditing) = &mut self.servers[id].state {
            auditing.stage = Stage::Joining(*reasons);
        }
        true
    }

    /// No hub listens for it: its own server does.
    fn listen_here(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), Some(account)) = (&client.state, client.account.as_deref_mut())
        else {
            return;
        };
        let server_pid = self.servers[link.server].pid;
        let own_pid = account.cancel_key.pid();
        let Some(listener) = &mut account.listener else { return };
        listener.without_hub(server_pid, own_pid);
        let mut gone = std::mem::take(&mut listener.joined);
        gone.append(&mut listener.joining);
        if let Some(hub) = self.pools[account.pool].hub.as_deref_mut() {
            gone.iter().for_each(|channel| hub.leave(channel, id));
        }
        listener.own_without_hub(own_pid);
        self.notified.push(id);
    }

    /// Payloads arrive at the hub in the encoding of its own connection.
    fn has_encoding_of_pool(&self, id: ClientId, pool_id: PoolId) -> bool {
        let position = self.tracked.position(b"client_encoding").unwrap_or_default();
        let account = self.clients.get(id).and_then(|client| client.account.as_deref());
        let welcome = self.pools[pool_id].welcome.as_deref();
        account
            .zip(welcome)
            .is_some_and(|(account, welcome)| account.params.get(position) == welcome.params.get(position))
    }

    // The hub.

    /// Has the hub listen to these for a client, too; `false` if there is none to be had.
    fn join<D: Driver>(&mut self, d: &mut D, pool_id: PoolId, id: ClientId, new: &[Box<[u8]>]) -> bool {
        if self.pools[pool_id].hub.is_none() {
            if !self.may_dial(pool_id) || !self.take_place(d, pool_id, true) {
                return false;
            }
            let server = self.dial_server(d, pool_id, None);
            self.pools[pool_id].hub = Some(Box::new(Hub::new(server)));
        }
        let Some(hub) = self.pools[pool_id].hub.as_deref_mut() else { return false };
        let fresh: Vec<&Box<[u8]>> = new.iter().filter(|channel| hub.join(channel, id)).collect();
        if !hub.is_up {
            hub.waiting.push(id);
            return true;
        }
        let text = listen_text(fresh.iter().map(|channel| &***channel));
        self.ask_hub(d, pool_id, &text, vec![id]);
        true
    }

    fn ask_hub<D: Driver>(&mut self, d: &mut D, pool_id: PoolId, text: &[u8], who: Vec<ClientId>) {
        let Some(hub) = self.pools[pool_id].hub.as_deref_mut() else { return };
        hub.owed.push_back(who);
        let server = hub.server;
        if self.servers[server].ledger.is_empty() {
            self.servers[server].active_us = self.now.mono_us;
        }
        self.send_hidden(d, server, Purpose::Listen, text);
    }

    /// This connection listens for its pool, or will when it is logged in.
    pub(in crate::machine) fn is_hub(&self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        self.pools[server.pool].hub.as_deref().is_some_and(|hub| hub.server == id)
    }

    /// The hub is logged in.
    pub(in crate::machine) fn hub_up<D: Driver>(&mut self, d: &mut D, id: ServerId) {
        let pool_id = self.servers[id].pool;
        self.set_server_state(id, ServerState::Listening);
        self.notice(pool_id);
        let Some(hub) = self.pools[pool_id].hub.as_deref_mut() else { return };
        hub.is_up = true;
        let who = std::mem::take(&mut hub.waiting);
        let text = listen_text(hub.channels.keys().map(AsRef::as_ref));
        self.ask_hub(d, pool_id, &text, who);
        let line = format!("{} listens for the clients of its pool", self.server_log_name(&self.servers[id]));
        self.log(d, Level::Debug, &line);
    }

    /// The hub has answered what some have waited for.
    pub(in crate::machine) fn hub_answered<D: Driver>(&mut self, d: &mut D, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let Some(hub) = self.pools[server.pool].hub.as_deref_mut().filter(|hub| hub.server == id) else {
            return;
        };
        for client in hub.owed.pop_front().unwrap_or_default() {
            let Some((server_id, stage)) = self.stage_of(client) else { continue };
            match stage {
                Stage::Joining(reasons) => {
                    self.set_stage(server_id, Stage::Leaving(reasons));
                    self.servers[server_id].active_us = self.now.mono_us;
                    self.send_hidden(d, server_id, Purpose::Audit, b"");
                }
                Stage::Meeting(reasons) => {
                    let server_pid = self.servers[server_id].pid;
                    let Some(account) = self.account_mut(client) else { continue };
                    let own_pid = account.cancel_key.pid();
                    if let Some(listener) = account.listener.as_deref_mut() {
                        listener.meet(server_pid, own_pid);
                    }
                    self.notified.push(client);
                    self.audit_over(d, server_id, client, reasons);
                }
                Stage::Asking | Stage::Leaving(_) | Stage::Owing(_) => {}
            }
        }
    }

    /// A client's server has passed on what it was notified of before the hub had joined; now the hub is asked for the same.
    pub(super) fn meet<D: Driver>(&mut self, d: &mut D, id: ServerId, client: ClientId) {
        let pool_id = self.servers[id].pool;
        self.ask_hub(d, pool_id, b"", vec![client]);
    }

    /// The hub ended. Who listened through it may have missed something from here on; who was about to, listens on its server.
    pub(in crate::machine) fn hub_lost<D: Driver>(&mut self, d: &mut D, pool_id: PoolId, id: ServerId) {
        let Some(pool) = self.pools.get_mut(pool_id) else { return };
        let Some(hub) = pool.hub.take_if(|hub| hub.server == id) else { return };
        let clients = hub.clients();
        if !clients.is_empty() {
            let line = format!(
                "the connection that listened for {} clients of {}/{} is gone",
                clients.len(),
                pool.database,
                pool.user
            );
            self.log(d, Level::Warning, &line);
        }
        for client in clients {
            let joining = self.stage_of(client).and_then(|(server, stage)| match stage {
                Stage::Joining(reasons) | Stage::Leaving(reasons) | Stage::Meeting(reasons) => {
                    Some((server, reasons))
                }
                Stage::Asking | Stage::Owing(_) => None,
            });
            let had_some = self.listener(client).is_some_and(|listener| !listener.joined.is_empty());
            match joining.filter(|(server, _)| !had_some && self.servers[*server].ledger.is_empty()) {
                Some((server, reasons)) => {
                    self.listen_here(client);
                    self.audit_over(d, server, client, reasons.with(Reasons::LISTENS));
                }
                None => {
                    self.refuse_client(d, client, &Fault::NotificationsLost);
                }
            }
        }
    }

    /// Leaves the channels that nobody wants; a hub without any is closed like an unused server.
    pub(in crate::machine) fn tend_hub<D: Driver>(&mut self, d: &mut D, pool_id: PoolId) {
        let idle_us = duration_us(self.rules.config.main.server_idle_timeout);
        let stopping = self.stopping.is_some();
        let Some(hub) = self.pools[pool_id].hub.as_deref_mut().filter(|hub| hub.is_up) else { return };
        let unwanted: Vec<Box<[u8]>> =
            hub.channels.extract_if(|_, clients| clients.is_empty()).map(|(channel, _)| channel).collect();
        let (is_unused, server) = (hub.channels.is_empty(), hub.server);
        if !unwanted.is_empty() {
            let text: Vec<u8> =
                unwanted.iter().flat_map(|channel| statement(b"UNLISTEN ", channel)).collect();
            return self.ask_hub(d, pool_id, &text, Vec::new());
        }
        let Some(found) = self.servers.get(server) else { return };
        let unused_us = self.now.mono_us.saturating_sub(found.active_us);
        if is_unused
            && found.ledger.is_empty()
            && (stopping || found.retire.is_some() || idle_us > 0 && unused_us >= idle_us)
        {
            self.close_server(d, server, "nobody listens any more", CloseMode::Flush);
        }
    }

    /// A client leaves.
    pub(in crate::machine) fn forget_listener(&mut self, account: &Account, id: ClientId) {
        let Some(listener) = &account.listener else { return };
        let Some(hub) = self.pools.get_mut(account.pool).and_then(|pool| pool.hub.as_deref_mut()) else {
            return;
        };
        listener.joined.iter().chain(&listener.joining).for_each(|channel| hub.leave(channel, id));
    }

    // Notifications.

    /// The hub was notified: everybody who listens is told.
    pub(in crate::machine) fn spread<D: Driver>(&mut self, d: &mut D, id: ServerId, message: &[u8]) {
        let Some(told) = parsed(message) else { return };
        let Some(server) = self.servers.get(id) else { return };
        let hub = self.pools[server.pool].hub.as_deref();
        let clients = hub.and_then(|hub| hub.channels.get(told.channel)).cloned().unwrap_or_default();
        for client in clients {
            let Some(account) = self.account_mut(client) else { continue };
            let own_pid = account.cancel_key.pid();
            let Some(listener) = account.listener.as_deref_mut() else { continue };
            if listener.joining.iter().any(|channel| **channel == *told.channel) {
                listener.from_hub.push(message.into());
                listener.bytes += message.len();
            } else {
                listener.tell(message, own_pid);
                self.notified.push(client);
            }
            if self.has_too_many(d, client) {
                self.refuse_client(d, client, &Fault::TooManyNotifications);
            } else if let Some((server, Stage::Owing(reasons))) = self.stage_of(client) {
                self.audit_over(d, server, client, reasons);
            }
        }
    }

    /// A client's server was notified of something, for the channels of the session that it carries.
    pub(in crate::machine) fn note_notification<D: Driver>(
        &mut self,
        d: &mut D,
        id: ServerId,
        client_id: ClientId,
        message: &[u8],
    ) {
        let Some(told) = parsed(message) else { return };
        let (server_pid, stage) = (self.servers[id].pid, self.stage_of(client_id).map(|(_, stage)| stage));
        let Some(client) = self.clients.get_mut(client_id) else { return };
        let (ClientState::Linked(link), Some(account)) = (&client.state, &mut client.account) else { return };
        let own_pid = account.cancel_key.pid();
        let marked = link.touched.as_ref().is_some_and(|touched| touched.marks.intersects(Marks::LISTENS));
        let known = |channels: &[Box<[u8]>]| channels.iter().any(|channel| **channel == *told.channel);
        let listener = account.listener.as_deref();
        if listener.is_some_and(|listener| known(&listener.joined)) {
            if told.pid == server_pid
                && let Some(listener) = account.listener.as_deref_mut()
            {
                listener.note_own(message, own_pid);
            }
        } else if match stage {
            // Before the session is this client's, it is told of another one's channels.
            None => marked && is_open(link),
            Some(Stage::Asking) => true,
            Some(Stage::Joining(_) | Stage::Leaving(_)) => {
                listener.is_some_and(|listener| known(&listener.joining))
            }
            Some(Stage::Meeting(_) | Stage::Owing(_)) => false,
        } {
            let listener: &mut Listener = account.listener.get_or_insert_default();
            listener.from_server.push(message.into());
            listener.bytes += message.len();
        } else if let Some(listener) = account.listener.as_deref_mut()
            && matches!(stage, Some(Stage::Meeting(_)))
            && known(&listener.joining)
        {
            listener.in_reserve.push(message.into());
            listener.bytes += message.len();
        }
        if self.has_too_many(d, client_id) {
            self.refuse_client(d, client_id, &Fault::TooManyNotifications);
        }
    }

    /// A notification for the client that listens on this server goes to it as it is: not its own, which carry another process id than it
    /// knows; and not while it was told of a BEGIN, or of the beginning of a group, that the server has not seen.
    pub(in crate::machine) fn passes_notification(
        &self,
        id: ServerId,
        client: ClientId,
        message: &[u8],
    ) -> bool {
        let own = parsed(message).map(|told| told.pid) == self.servers.get(id).map(|server| server.pid);
        !own && self.is_told_as_it_comes(client)
    }

    /// See [`Machine::passes_notification`]: one that does not.
    pub(in crate::machine) fn tell_here<D: Driver>(&mut self, d: &mut D, id: ServerId, message: &[u8]) {
        let Some(server) = self.servers.get(id).filter(|_| self.listens_here(id)) else { return };
        let Some(client_id) = server.state.client() else { return };
        let (server_pid, at_once) = (server.pid, self.is_told_as_it_comes(client_id));
        let Some(client) = self.clients.get_mut(client_id) else { return };
        let Some(account) = client.account.as_deref_mut() else { return };
        let message = as_own(message.into(), server_pid, account.cancel_key.pid());
        if account.listener.is_some() && !at_once {
            self.tell_later(d, client_id, message);
        } else {
            d.send(client.conn, &message);
        }
    }

    /// A notification of a session that is passed on as it is comes too early: the server does not know of a BEGIN that was
    /// answered here, or others wait for its end already. It is kept then.
    pub(in crate::machine) fn keeps_notification<D: Driver>(
        &mut self,
        d: &mut D,
        id: ClientId,
        message: &[u8],
    ) -> bool {
        let waits = self.listener(id).is_some_and(|listener| !listener.queue.is_empty());
        let begins = match self.clients.get(id).map(|client| &client.state) {
            Some(ClientState::Linked(link)) => !is_open(link),
            _ => false,
        };
        if waits || begins {
            self.tell_later(d, id, message.into());
        }
        waits || begins
    }

    /// It is told when its transaction is over.
    fn tell_later<D: Driver>(&mut self, d: &mut D, id: ClientId, message: Message) {
        let Some(account) = self.account_mut(id) else { return };
        let listener: &mut Listener = account.listener.get_or_insert_default();
        listener.bytes += message.len();
        listener.queue.push(message);
        self.notified.push(id);
        if self.has_too_many(d, id) {
            self.refuse_client(d, id, &Fault::TooManyNotifications);
        }
    }

    fn is_told_as_it_comes(&self, id: ClientId) -> bool {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return false;
        };
        // In the midst of a group whose beginning was answered here, the server does not know of it.
        let server = self.servers.get(link.server);
        is_open(link)
            && server.is_some_and(|server| server.ledger.is_at_rest())
            && self.listener(id).is_none_or(|listener| listener.queue.is_empty())
    }

    fn has_too_many<D: Driver>(&self, d: &D, id: ClientId) -> bool {
        let waiting = self.listener(id).map_or(0, |listener| listener.bytes);
        let conn = self.clients.get(id).map(|client| client.conn);
        waiting + conn.map_or(0, |conn| d.backlog(conn)) > NOTIFICATIONS_BYTES_MAX && waiting > 0
    }

    /// Something waits for the client's ReadyForQuery. In the middle of a pipeline nothing is told that may be the client's own: the
    /// hub may be faster than the server.
    #[inline]
    pub(in crate::machine) fn has_notifications(&self, id: ClientId, server: ServerId, ready: &[u8]) -> bool {
        let Some(listener) = self.listener(id).filter(|listener| !listener.queue.is_empty()) else {
            return false;
        };
        let Some(server) = self.servers.get(server) else { return false };
        let doubtful = !server.ledger.is_at_rest() && listener.may_wait_for(server.pid);
        !doubtful && parse_ready(ready) == Ok(TxStatus::Idle)
    }

    /// Sends what waits.
    pub(in crate::machine) fn send_notifications<D: Driver>(&mut self, d: &mut D, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let conn = client.conn;
        let listener = client.account.as_deref_mut().and_then(|account| account.listener.as_deref_mut());
        let told = listener.map(Listener::take).unwrap_or_default();
        if !told.is_empty() {
            d.send(conn, &told);
        }
    }

    /// Tells those who have no transaction open; the others later.
    pub(in crate::machine) fn notify_clients<D: Driver>(&mut self, d: &mut D) {
        for id in std::mem::take(&mut self.notified) {
            if self.listener(id).is_none_or(|listener| listener.queue.is_empty()) {
                continue;
            }
            if self.is_between_statements(id) {
                self.send_notifications(d, id);
            } else {
                self.notified.push(id);
            }
        }
    }

    fn is_between_statements(&self, id: ClientId) -> bool {
        match self.clients.get(id).map(|client| &client.state) {
            // Who waits for a server may have had part of its answer, and is told at the end of it.
            Some(ClientState::Idle) => true,
            Some(ClientState::Linked(link)) => {
                let server = self.servers.get(link.server);
                server
                    .is_some_and(|server| matches!(server.state, ServerState::Busy(_)) && server.is_at_rest())
                    && link.streaming == 0
                    && !link.ready_due
                    && is_open(link)
            }
            _ => false,
        }
    }

    fn listener(&self, id: ClientId) -> Option<&Listener> {
        self.clients.get(id)?.account.as_deref()?.listener.as_deref()
    }

    fn account_mut(&mut self, id: ClientId) -> Option<&mut Account> {
        self.clients.get_mut(id)?.account.as_deref_mut()
    }

    /// The server that a client is linked to, and what is waited for on it.
    fn stage_of(&self, id: ClientId) -> Option<(ServerId, Stage)> {
        let ClientState::Linked(link) = &self.clients.get(id)?.state else { return None };
        match &self.servers.get(link.server)?.state {
            ServerState::Auditing(auditing) => Some((link.server, auditing.stage)),
            _ => None,
        }
    }

    fn set_stage(&mut self, id: ServerId, stage: Stage) {
        if let Some(ServerState::Auditing(auditing)) =
            self.servers.get_mut(id).map(|server| &mut server.state)
        {
            auditing.stage = stage;
        }
    }
}

/// Nothing but our own statement behind a RESET or DISCARD is left to be answered.
fn is_being_restored(ledger: &Ledger) -> bool {
    ledger.entries().all(|entry| matches!(entry.owner, Owner::Hidden(Purpose::Restore | Purpose::Lend)))
}

/// Nothing of our own stands between the client and its server's answers.
fn is_open(link: &crate::client::Link) -> bool {
    matches!(link.opening, Opening::Done | Opening::Replayed)
}

fn parsed(message: &[u8]) -> Option<NotificationResponse<'_>> {
    NotificationResponse::parse(message.get(HEADER_LEN..)?).ok()
}

fn statement(word: &[u8], channel: &[u8]) -> Vec<u8> {
    let mut text = word.to_vec();
    quote_identifier(&mut text, channel);
    text.push(b';');
    text
}

fn listen_text<'a>(channels: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    channels.flat_map(|channel| statement(b"LISTEN ", channel)).collect()
}
