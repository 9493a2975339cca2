//! Messages that servers send unasked: ParameterStatus, NoticeResponse, NotificationResponse, and the clients that get them.
//! (PostgreSQL documentation, "Message Flow", "Asynchronous Operations".)

use std::sync::Arc;

use pgweir_settings::PoolMode;
use pgweir_wire::backend::ParameterStatus;

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::relay::ledger::{Kind, Owner};
use crate::pool::server::greeting::IN_HOT_STANDBY;
use crate::pool::server::state::ServerState;

impl Pool {
    /// Handles a ParameterStatus: notes the server's new value and, if a client uses the server, the client's. Returns the client that must
    /// be told.
    pub(crate) fn parameter_changed(&mut self, env: &mut Env, id: ServerId, body: &[u8]) -> Option<ClientId> {
        let Ok(status) = ParameterStatus::parse(body) else { return None };
        let server = self.servers.get_mut(id)?;
        let client_id = server.state.client();
        let hidden = server.ledger.head().is_some_and(|head| matches!(head.owner, Owner::Hidden(_)));
        let Some(position) = env.tracked.position(status.name) else {
            if status.name == IN_HOT_STANDBY {
                self.state.greeting_telling(status.name, status.value);
                if status.value == b"off" {
                    self.role_reported(env, id);
                }
            }
            let server = self.servers.get_mut(id)?;
            let asked = server.opened.asked.as_ref();
            let is_own = asked.is_some_and(|asked| asked.session().get(status.name).is_some());
            server.state.note_reported(status.name, status.value, is_own);
            return client_id.filter(|_| !hidden);
        };
        let server_knew = server.params.get(position) == Some(status.value);
        if !server_knew {
            let mut params = (*server.params).clone();
            params.set(position, status.value);
            server.params = self.state.known.share_params(params);
        }
        let (client_id, server_params) = (client_id?, Arc::clone(&server.params));
        let client = self.clients.get_mut(client_id)?;
        if matches!(&client.state, ClientState::Linked(link) if link.phase.is_repair()) {
            // The server goes back to a value that was not the client's.
            return None;
        }
        let account = &mut client.account;
        let knew = account.params.get(position) == Some(status.value);
        if let ClientState::Linked(link) = &mut client.state
            && !hidden
            // What was set for the client ahead of its statement is reported with that statement's answer.
            && !(knew && link.changed.has(position))
        {
            let own = self.state.greeting.as_ref().and_then(|greeting| greeting.params.get(position));
            link.changed.note(position, account.params.get(position) == own);
        }
        if account.params.differences(&server_params).next().is_none() {
            account.params = server_params;
        } else if !knew {
            let mut params = (*account.params).clone();
            params.set(position, status.value);
            account.params = self.state.known.share_params(params);
        }
        // A value that the client knew and the server did not is one that was replayed.
        (!knew || (!hidden && server_knew)).then_some(client_id)
    }

    pub(crate) fn notice_owner(&self, id: ServerId) -> Option<ClientId> {
        let server = self.servers.get(id)?;
        match server.ledger.head() {
            Some(head) => match head.owner {
                // The client is told when its own Parse is answered, or was.
                Owner::Prerequisite(_) if matches!(head.kind, Kind::Parse | Kind::DescribeParsed { .. }) => {
                    None
                }
                Owner::Client(client) | Owner::Prerequisite(client) => Some(client),
                Owner::Hidden(_) => None,
            },
            None => server.state.client(),
        }
    }

    /// Returns the client that gets notifications from this server. pgweir may send one only to a client that has the server for itself.
    pub(crate) fn notification_owner<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        message: &[u8],
    ) -> Option<ClientId> {
        let server = self.servers.get(id)?;
        if matches!(server.state, ServerState::Listening) {
            self.spread(cx, id, message);
            return None;
        }
        let client = server.state.client()?;
        if self.state.policy.mode == PoolMode::Session {
            return (!self.keeps_notification(cx, client, message)).then_some(client);
        }
        if self.listens_here(id) {
            return self.passes_notification(id, client, message).then_some(client);
        }
        self.note_notification(cx, id, client, message);
        None
    }
}
