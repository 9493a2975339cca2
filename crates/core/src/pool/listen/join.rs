//! The connection that listens for a pool's clients, its notify listener: how it comes to listen for a client, and how it ends.
//!
//! A client's server and the notify listener must meet: before a certain moment the server passes notifications on, after it
//! the notify listener does. PostgreSQL signals listening backends one after the other, so that the silence of one says nothing
//! about another. But it has one queue, which all backends read in its order. When the notify listener listens, the server
//! sends a barrier, a notification on a channel of the notify listener's own, and listens to it, too: the notifications that each
//! hears on its side of the barrier are all there are, and each comes once. (`SignalBackends` and `asyncQueueReadAllNotifications`
//! in PostgreSQL's `async.c`.)

use super::listeners::{listen_text, statement};
use crate::context::{Cx, Env, duration_us};
use crate::driver::{CloseMode, Driver, Level};
use crate::errors::Fault;
use crate::ids::{ClientId, ServerId};
use crate::limits::AUDIT_ATTEMPTS_MAX;
use crate::pool::listen::notify_listener::NotifyListener;
use crate::pool::relay::ledger::Purpose;
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::server::asked::Replies;
use crate::pool::server::state::Stage;
use crate::pool::session::pins::Reasons;
use crate::pool::{Branch, Pool};

impl Pool {
    /// Handles the channels of a session after they were asked for. Returns `true` if the notify listener must join some first;
    /// otherwise `reasons` decide whether the client keeps its server.
    pub(crate) fn join_channels<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client_id: ClientId,
        reasons: &mut Reasons,
    ) -> bool {
        let session = std::sync::Arc::clone(&self.servers[id].session);
        let server_pid = self.servers[id].at.pid;
        let here = self.listens_here(id) && !session.channels().is_empty();
        let Some(client) = self.clients.get_mut(client_id) else { return false };
        let account = &mut client.account;
        if session.channels().is_empty() && account.listener.is_none() {
            return false;
        }
        let listener = account.listener.get_or_insert_default();
        let notify_listener = self.state.notify_listener.as_deref_mut();
        let (stay, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut listener.joined)
            .into_iter()
            .partition(|channel| session.channels().contains(channel) && !here);
        if let Some(notify_listener) = notify_listener {
            gone.iter().for_each(|channel| notify_listener.leave(channel, client_id));
        }
        listener.joined = stay;
        listener.own_without_listener(account.cancel_key.pid());
        let new: Vec<Box<[u8]>> =
            session.channels().iter().filter(|channel| !listener.joined.contains(channel)).cloned().collect();
        if here {
            *reasons = reasons.with(Reasons::LISTENS);
            listener.from_server.clear();
        } else if listener.told_of_others(&new, server_pid, account.cancel_key.pid()) {
            self.state.due.notified.push(client_id);
        }
        if here || new.is_empty() {
            return false;
        }
        listener.joining.clone_from(&new);
        // A client that listens through the notify listener already stays there: no server would tell it what the notify
        // listener has still to tell.
        let through_listener = !listener.joined.is_empty() || self.has_encoding_of_pool(cx.env, client_id);
        if !through_listener || !self.join(cx, client_id, id, &new) {
            self.listen_here(client_id);
            *reasons = reasons.with(Reasons::LISTENS);
            return false;
        }
        if let Some(auditing) = self.servers[id].state.auditing_mut() {
            auditing.stage = Stage::Joining(*reasons);
        }
        true
    }

    /// Payloads arrive at the notify listener in the encoding of the listener's connection.
    fn has_encoding_of_pool(&self, env: &Env, id: ClientId) -> bool {
        let up = self.state.notify_listener.as_deref().filter(|listener| listener.is_up);
        let params = match up.and_then(|listener| self.servers.get(listener.server)) {
            Some(server) => Some(&server.params),
            None => self.state.greeting.as_deref().map(|greeting| &greeting.params),
        };
        params.is_some_and(|params| self.has_encoding_of(env, id, params))
    }

    // The notify listener.

    /// Makes the notify listener listen to these channels for the client of this server as well. Returns `false` if no notify
    /// listener can be had.
    fn join<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        client_server: ServerId,
        new: &[Box<[u8]>],
    ) -> bool {
        if self.state.notify_listener.is_none() {
            // A notify listener must not take the last place in `max_db_connections`: no statement would ever run. The client's server
            // holds that place. A server of a standby holds none at the primary, even after the standby's promotion.
            if !self.servers[client_server].branch.is_primary()
                || !self.may_dial(cx.env, Branch::PRIMARY)
                || !self.take_place(cx, Branch::PRIMARY, true)
            {
                return false;
            }
            let server = self.dial_server(cx, Branch::PRIMARY, None);
            let mut secret = [0; 8];
            cx.driver.random(&mut secret);
            self.state.notify_listener = Some(Box::new(NotifyListener::new(server, secret)));
        }
        let Some(notify_listener) = self.state.notify_listener.as_deref_mut() else { return false };
        let fresh: Vec<&Box<[u8]>> = new.iter().filter(|channel| notify_listener.join(channel, id)).collect();
        if !notify_listener.is_up {
            notify_listener.waiting.push(id);
            return true;
        }
        let text = listen_text(fresh.iter().map(|channel| &***channel));
        self.ask_notify_listener(cx, Purpose::Listen, &text, vec![id]);
        true
    }

    /// The notify listener has answered the statements that some clients have waited for.
    pub(crate) fn notify_listener_answered<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(notify_listener) =
            self.state.notify_listener.as_deref_mut().filter(|notify_listener| notify_listener.server == id)
        else {
            return;
        };
        for client in notify_listener.owed.pop_front().unwrap_or_default() {
            match self.stage_of(client) {
                Some((server, Stage::Joining(reasons))) => {
                    if let Some(auditing) = self.servers[server].state.auditing_mut() {
                        auditing.stage = Stage::BarrierSent(reasons);
                        auditing.attempts = 0;
                    }
                    self.barrier(cx, server, client);
                }
                Some((server, Stage::Meeting(reasons))) => self.met(cx, server, client, reasons),
                _ => {}
            }
        }
    }

    /// Makes the client's server send a barrier, and listen to it.
    fn barrier<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client: ClientId) {
        let Some(notify_listener) = self.state.notify_listener.as_deref_mut() else { return };
        let barrier = notify_listener.next_barrier(client);
        let Some(listener) = self.account_mut(client).and_then(|account| account.listener.as_deref_mut())
        else {
            return;
        };
        (listener.barrier, listener.has_barrier) = (barrier.clone(), false);
        let mut text = statement(b"LISTEN ", &barrier.channel);
        text.extend_from_slice(b"NOTIFY ");
        pgweir_sql::quote_identifier(&mut text, &barrier.channel);
        text.extend_from_slice(format!(",'{}';", barrier.number).as_bytes());
        self.ask_for_barrier(cx, id, &text);
        let version = self.servers[id].at.version;
        let text = own_settings::question(version, Asks::Little, &statement(b"UNLISTEN ", &barrier.channel));
        self.send_hidden(cx, id, Purpose::Audit, &text);
    }

    fn ask_for_barrier<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, text: &[u8]) {
        let Some(server) = self.servers.get_mut(id) else { return };
        server.active_us = cx.env.now.mono_us;
        if let Some(auditing) = server.state.auditing_mut() {
            auditing.attempts += 1;
            auditing.answer = Replies::default();
        }
        // To listen, PostgreSQL takes a snapshot, for which a serializable transaction may have to wait.
        let text = own_settings::question(server.at.version, Asks::Little, text);
        self.send_hidden(cx, id, Purpose::Audit, &text);
    }

    /// All that was asked for with a barrier is answered.
    pub(crate) fn barrier_answered<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client: ClientId) {
        let Some(auditing) = self.servers[id].state.auditing() else { return };
        let (failed, stage) = (auditing.answer.failed.is_some(), auditing.stage);
        let again = failed && auditing.attempts < AUDIT_ATTEMPTS_MAX;
        let Some(listener) = self.listener(client) else { return };
        let (channel, has_barrier) = (listener.barrier.channel.clone(), listener.has_barrier);
        // It may still listen to barriers then.
        let doubt = if failed { Reasons::UNKNOWN } else { Reasons::NONE };
        match stage {
            Stage::BarrierSent(_) if again => self.barrier(cx, id, client),
            Stage::BarrierSent(reasons) => self.not_met(cx, id, client, reasons),
            Stage::BarrierSeen(_) if again => {
                self.ask_for_barrier(cx, id, &statement(b"UNLISTEN ", &channel));
            }
            Stage::BarrierSeen(reasons) if has_barrier => self.met(cx, id, client, reasons.with(doubt)),
            Stage::BarrierSeen(reasons) => {
                self.set_stage(id, Stage::Meeting(reasons.with(doubt)));
                // A backend that notifies reads all notifications that others sent before it is ready.
                let text = statement(b"NOTIFY ", &channel);
                self.ask_notify_listener(cx, Purpose::Meet, &text, vec![client]);
            }
            Stage::Alone(reasons) => self.listen_alone(cx, id, client, reasons.with(doubt)),
            _ => {}
        }
    }

    /// Continues after the notify listener has received every notification before the barrier, and the barrier if it comes at all.
    fn met<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client: ClientId, reasons: Reasons) {
        let server_pid = self.servers[id].at.pid;
        let Some(account) = self.account_mut(client) else { return };
        let own_pid = account.cancel_key.pid();
        match account.listener.as_deref_mut() {
            Some(listener) if listener.has_barrier => listener.meet(server_pid, own_pid),
            _ => return self.not_met(cx, id, client, reasons),
        }
        self.state.due.notified.push(client);
        self.audit_over(cx, id, client, reasons);
    }

    /// Continues without the notify listener, because it is not at the client's server's host, or that host refuses to send a
    /// barrier.
    fn not_met<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, client: ClientId, reasons: Reasons) {
        let line = format!(
            "{} and the connection that listens for its pool do not hear each other",
            self.server_log_name(&self.servers[id])
        );
        cx.log(Level::Warning, &line);
        if self.listener(client).is_some_and(|listener| !listener.joined.is_empty()) {
            // The notifications on these channels that the notify listener has still to tell it cannot come from its server
            // any more.
            self.refuse_client(cx, client, &Fault::NotificationsLost);
            return;
        }
        self.listen_alone(cx, id, client, reasons);
    }

    /// Makes a client keep the server that it has just begun to listen on.
    fn listen_alone<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client: ClientId,
        reasons: Reasons,
    ) {
        self.listen_here(client);
        self.audit_over(cx, id, client, reasons.with(Reasons::LISTENS));
    }

    /// The notify listener was closed. A client that listened through it may have missed notifications from here on. A client
    /// that was about to listen through it listens on its server.
    #[cold]
    pub(crate) fn notify_listener_lost<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let Some(lost) = self.state.due.lost_listener.take() else { return };
        let clients = lost.clients();
        if !clients.is_empty() {
            let line = format!(
                "the connection that listened for {} clients of {}/{} is gone",
                clients.len(),
                self.state.database,
                self.state.user
            );
            cx.log(Level::Warning, &line);
        }
        for client in clients {
            let joining = self.stage_of(client).and_then(|(server, stage)| match stage {
                Stage::Joining(reasons)
                | Stage::BarrierSent(reasons)
                | Stage::BarrierSeen(reasons)
                | Stage::Meeting(reasons) => Some((server, reasons)),
                Stage::Asking | Stage::Restoring(_) | Stage::Alone(_) | Stage::Owing(_) => None,
            });
            let had_some = self.listener(client).is_some_and(|listener| !listener.joined.is_empty());
            match joining.filter(|_| !had_some) {
                Some((server, reasons)) if self.servers[server].ledger.is_empty() => {
                    self.listen_alone(cx, server, client, reasons);
                }
                Some((server, reasons)) => self.set_stage(server, Stage::Alone(reasons)),
                None => {
                    self.refuse_client(cx, client, &Fault::NotificationsLost);
                }
            }
        }
    }

    /// Leaves the channels that no client wants; a notify listener without any is closed like an unused server.
    pub(crate) fn tend_notify_listener<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let idle_us = duration_us(cx.env.rules.config.main.server_idle_timeout);
        let stopping = cx.env.stopping.is_some();
        let Some(notify_listener) =
            self.state.notify_listener.as_deref_mut().filter(|notify_listener| notify_listener.is_up)
        else {
            return;
        };
        let unwanted: Vec<Box<[u8]>> = notify_listener
            .channels
            .extract_if(|_, clients| clients.is_empty())
            .map(|(channel, _)| channel)
            .collect();
        if !unwanted.is_empty() {
            let text: Vec<u8> =
                unwanted.iter().flat_map(|channel| statement(b"UNLISTEN ", channel)).collect();
            return self.ask_notify_listener(cx, Purpose::Listen, &text, Vec::new());
        }
        let Some(server) = self.unused_listener() else { return };
        let found = &self.servers[server];
        let unused_us = cx.env.now.mono_us.saturating_sub(found.active_us);
        if stopping || found.retiring.is_some() || idle_us > 0 && unused_us >= idle_us {
            self.close_server(cx, server, "no client listens any more", CloseMode::Flush);
        }
    }
}
