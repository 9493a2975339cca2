//! A notification has come: who gets it. The listening connection's is spread to the clients that want its channel; a server's own
//! is passed on, or kept until its client's answer is over.

use pgweir_sql::Marks;
use pgweir_wire::backend::NotificationResponse;
use pgweir_wire::header::HEADER_LEN;

use super::notifications::is_open;
use crate::context::Cx;
use crate::driver::Driver;
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::client::state::ClientState;
use crate::pool::listen::notify_listener::{Listener, as_own};
use crate::pool::server::state::Stage;

impl Pool {
    /// Notes a notification that a client's server has received, for the channels of the client's session.
    pub(crate) fn note_notification<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        message: &[u8],
    ) {
        let Some(told) = parsed(message) else { return };
        if self.server_sent_barrier(client_id, &told) {
            return;
        }
        let (server_pid, stage) = (self.servers[id].at.pid, self.stage_of(client_id).map(|(_, stage)| stage));
        let Some(client) = self.clients.get_mut(client_id) else { return };
        let (ClientState::Linked(link), account) = (&client.state, &mut client.account) else { return };
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
            Some(Stage::Asking | Stage::Restoring(_)) => true,
            Some(Stage::Joining(_) | Stage::BarrierSent(_)) => {
                listener.is_some_and(|listener| known(&listener.joining))
            }
            Some(Stage::BarrierSeen(_) | Stage::Meeting(_) | Stage::Alone(_) | Stage::Owing(_)) => false,
        } {
            let listener: &mut Listener = account.listener.get_or_insert_default();
            listener.from_server.push(message.into());
            listener.bytes += message.len();
        } else if let Some(listener) = account.listener.as_deref_mut()
            && matches!(stage, Some(Stage::BarrierSeen(_) | Stage::Meeting(_) | Stage::Alone(_)))
            && known(&listener.joining)
        {
            listener.in_reserve.push(message.into());
            listener.bytes += message.len();
        }
        if self.has_too_many(cx, client_id) {
            self.refuse_client(cx, client_id, &Fault::TooManyNotifications);
        }
    }

    /// Passes a notification of the notify listener on to every client that listens to its channel.
    pub(crate) fn spread<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, message: &[u8]) {
        let Some(told) = parsed(message) else { return };
        let Some(server) = self.servers.get(id) else { return };
        let params = std::sync::Arc::clone(&server.params);
        if self.listen_barriers(&told) {
            return;
        }
        let notify_listener = self.state.notify_listener.as_deref();
        let clients = notify_listener
            .and_then(|notify_listener| notify_listener.channels.get(told.channel))
            .cloned()
            .unwrap_or_default();
        let is_ascii = told.channel.is_ascii() && told.payload.is_ascii();
        for client in clients {
            if !is_ascii && !self.has_encoding_of(cx.env, client, &params) {
                self.refuse_client(cx, client, &Fault::NotificationEncoding);
                continue;
            }
            let Some(account) = self.account_mut(client) else { continue };
            let own_pid = account.cancel_key.pid();
            let Some(listener) = account.listener.as_deref_mut() else { continue };
            if listener.joining.iter().any(|channel| **channel == *told.channel) {
                listener.from_notify_listener.push(message.into());
                listener.bytes += message.len();
            } else {
                listener.tell(message, own_pid);
                self.state.due.notified.push(client);
            }
            if self.has_too_many(cx, client) {
                self.refuse_client(cx, client, &Fault::TooManyNotifications);
            } else if let Some((server, Stage::Owing(reasons))) = self.stage_of(client) {
                self.audit_over(cx, server, client, reasons);
            }
        }
    }

    /// A notification for the client that listens on this server goes to it as it is: not its own, which carry another process
    /// id than the client knows; and not while the client was told of a BEGIN, or of the beginning of a group, that the server
    /// has not seen.
    pub(crate) fn passes_notification(&self, id: ServerId, client: ClientId, message: &[u8]) -> bool {
        let own = parsed(message).map(|told| told.pid) == self.servers.get(id).map(|server| server.at.pid);
        !own && self.is_told_as_it_comes(client)
    }

    /// Forwards a notification that [`Pool::passes_notification`] does not pass as it is, at once or after the client's transaction.
    /// The client's own notification gets the process id that the client knows.
    pub(crate) fn tell_here<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, message: &[u8]) {
        let Some(server) = self.servers.get(id).filter(|_| self.listens_here(id)) else { return };
        let Some(client_id) = server.state.client() else { return };
        let (server_pid, at_once) = (server.at.pid, self.is_told_as_it_comes(client_id));
        let Some(client) = self.clients.get_mut(client_id) else { return };
        let account = &mut client.account;
        let message = as_own(message.into(), server_pid, account.cancel_key.pid());
        if account.listener.is_some() && !at_once {
            self.tell_later(cx, client_id, message);
        } else {
            cx.driver.send(client.conn, &message);
        }
    }
}

fn parsed(message: &[u8]) -> Option<NotificationResponse<'_>> {
    NotificationResponse::parse(message.get(HEADER_LEN..)?).ok()
}
