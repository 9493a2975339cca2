//! Who listens where: a client's part in the listening connection, the stage at which it joins, and what that connection is asked.
//! Nothing here tells a client anything.

use pgweir_wire::backend::NotificationResponse;

use crate::context::{Cx, Env};
use crate::driver::{Driver, Level};
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::{Account, ClientState};
use crate::pool::listen::notify_listener::Listener;
use crate::pool::relay::ledger::Purpose;
use crate::pool::server::state::{ServerState, Stage};
use crate::pool::session::params::Params;
use crate::pool::{Client, Pool};

impl Pool {
    /// A client leaves.
    pub(crate) fn forget_listener(&mut self, account: &Account, id: ClientId) {
        let Some(listener) = &account.listener else { return };
        let Some(notify_listener) = self.state.notify_listener.as_deref_mut() else {
            return;
        };
        listener
            .joined
            .iter()
            .chain(&listener.joining)
            .for_each(|channel| notify_listener.leave(channel, id));
        notify_listener.forget_barriers(id);
    }

    /// Whether this server is the pool's notify listener, or will be after its login.
    pub(crate) fn is_notify_listener(&self, id: ServerId) -> bool {
        self.state.notify_listener.as_deref().is_some_and(|notify_listener| notify_listener.server == id)
    }

    /// Returns the notify listener's connection if no client would miss it and it owes no answer.
    pub(crate) fn unused_listener(&self) -> Option<ServerId> {
        let notify_listener =
            self.state.notify_listener.as_deref().filter(|listener| listener.is_unused())?;
        let server = self.servers.get(notify_listener.server)?;
        server.ledger.is_empty().then_some(notify_listener.server)
    }

    pub(crate) fn set_stage(&mut self, id: ServerId, stage: Stage) {
        if let Some(auditing) = self.servers.get_mut(id).and_then(|server| server.state.auditing_mut()) {
            auditing.stage = stage;
        }
    }

    /// Whether the client's encoding is the one in these parameters, so that it can get a notification unchanged.
    pub(crate) fn has_encoding_of(&self, env: &Env, id: ClientId, params: &Params) -> bool {
        let position = env.tracked.position(b"client_encoding").unwrap_or_default();
        let account = self.clients.get(id).map(|client| &client.account);
        account.is_some_and(|account| account.params.get(position) == params.get(position))
    }

    /// Handles a barrier that a client's server has received: after the client's own barrier only the notify listener's notifications
    /// count. Returns `false` if the notification is no barrier.
    pub(crate) fn server_sent_barrier(&mut self, client: ClientId, told: &NotificationResponse<'_>) -> bool {
        let listener = self.listener(client).filter(|listener| *listener.barrier.channel == *told.channel);
        let Some(listener) = listener else { return false };
        if listener.is_its_barrier(told.payload)
            && let Some((server, Stage::BarrierSent(reasons))) = self.stage_of(client)
        {
            self.set_stage(server, Stage::BarrierSeen(reasons));
        }
        true
    }

    /// Handles a barrier that the notify listener has received: its notifications before the barrier do not count. Returns `false` if
    /// the notification is no barrier.
    pub(crate) fn listen_barriers(&mut self, told: &NotificationResponse<'_>) -> bool {
        let Some(notify_listener) = self.state.notify_listener.as_deref_mut() else { return false };
        if *notify_listener.barriers_channel != *told.channel {
            return false;
        }
        if let Some((number, client)) = notify_listener.take_barrier(told.payload)
            && let Some(listener) =
                self.account_mut(client).and_then(|account| account.listener.as_deref_mut())
        {
            listener.listen_barriers(number);
        }
        true
    }

    /// Moves the listening of a client to its own server, because no notify listener can listen for it.
    pub(crate) fn listen_here(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::Linked(link), account) = (&client.state, &mut client.account) else {
            return;
        };
        let server_pid = self.servers[link.server].at.pid;
        let own_pid = account.cancel_key.pid();
        let Some(listener) = &mut account.listener else { return };
        listener.without_notify_listener(server_pid, own_pid);
        let mut gone = std::mem::take(&mut listener.joined);
        gone.append(&mut listener.joining);
        if let Some(notify_listener) = self.state.notify_listener.as_deref_mut() {
            gone.iter().for_each(|channel| notify_listener.leave(channel, id));
        }
        listener.own_without_listener(own_pid);
        self.state.due.notified.push(id);
    }

    /// The notify listener is logged in.
    pub(crate) fn notify_listener_up<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        self.set_server_state(id, ServerState::Listening);
        self.notice();
        let Some(notify_listener) = self.state.notify_listener.as_deref_mut() else { return };
        notify_listener.is_up = true;
        let who = std::mem::take(&mut notify_listener.waiting);
        let channels = notify_listener.channels.keys().chain([&notify_listener.barriers_channel]);
        let text = listen_text(channels.map(AsRef::as_ref));
        self.ask_notify_listener(cx, Purpose::Listen, &text, who);
        let line = format!("{} listens for the clients of its pool", self.server_log_name(&self.servers[id]));
        cx.log(Level::Debug, &line);
    }

    pub(crate) fn ask_notify_listener<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        purpose: Purpose,
        text: &[u8],
        who: Vec<ClientId>,
    ) {
        let Some(notify_listener) = self.state.notify_listener.as_deref_mut() else { return };
        notify_listener.owed.push_back(who);
        let server = notify_listener.server;
        if self.servers[server].ledger.is_empty() {
            self.servers[server].active_us = cx.env.now.mono_us;
        }
        self.send_hidden(cx, server, purpose, text);
    }

    pub(crate) fn listener(&self, id: ClientId) -> Option<&Listener> {
        self.clients.get(id)?.account.listener.as_deref()
    }

    /// Returns the server that a client is linked to, and the stage of the work that the client waits for there. `None` if it waits
    /// for none.
    pub(crate) fn stage_of(&self, id: ClientId) -> Option<(ServerId, Stage)> {
        let ClientState::Linked(link) = &self.clients.get(id)?.state else { return None };
        let auditing = self.servers.get(link.server)?.state.auditing()?;
        Some((link.server, auditing.stage))
    }

    pub(crate) fn account_mut(&mut self, id: ClientId) -> Option<&mut Account> {
        Some(&mut self.clients.get_mut(id)?.account)
    }

    /// Whether the client of this server listens on this very server.
    pub(crate) fn listens_here(&self, id: ServerId) -> bool {
        let client = self.servers.get(id).and_then(|server| server.state.client());
        client.and_then(|client| self.clients.get(client)).is_some_and(Client::listens_on_server)
    }
}

pub(super) fn statement(word: &[u8], channel: &[u8]) -> Vec<u8> {
    let mut text = word.to_vec();
    pgweir_sql::quote_identifier(&mut text, channel);
    text.push(b';');
    text
}

pub(super) fn listen_text<'a>(channels: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    channels.flat_map(|channel| statement(b"LISTEN ", channel)).collect()
}
