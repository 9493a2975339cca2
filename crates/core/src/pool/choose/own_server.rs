//! In session pooling a client has one server from its first statement to its end. It is told at login which server that will
//! be: a server that is opened with the client's own startup packet, or one that was opened for a similar client before and is
//! free, or about to be. So RESET goes back to the values that the client asked for, and the process id that it was told is
//! that of its server.
//!
//! A server that is kept so for a client that has not asked for anything yet goes to another one only when the pool has no room
//! for one more; and if there is none at all at login, the client gets any later on, brought to its parameters by SET. A server
//! that was opened with a client's parameters never goes to one that did not ask for the same: the settings of a startup packet
//! cannot be taken back.

use std::sync::Arc;

use crate::client_handoff::{Login, Replication};
use crate::context::{Cx, Env, KeyOwner};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::client::state::{Account, ClientState, Own};
use crate::pool::server::asked::ServerQuestion;
use crate::pool::server::greeting::ServerGreeting;
use crate::pool::server::state::Server;
use crate::pool::session::params::Params;
use crate::pool::startup::checked::{CheckedStartup, Opened};
use crate::pool::{Branch, Pool, ServerKind};

/// How well a free server fits a client, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fitness {
    /// The server is kept for the client.
    Own,
    /// The server was opened for a similar client.
    Like,
    /// The server was opened without parameters that would have to be reset for the client.
    Plain,
    /// The server was opened with parameters that cannot be reset.
    Unfit,
}

impl Pool {
    /// Whether the client waits for a server that is being opened for it, or soon will be.
    pub(crate) fn awaits_own_server(&self, env: &Env, branch: Branch, id: ClientId) -> bool {
        self.state.gets_own_server()
            && (self.kept_is_coming(id)
                || !self.is_full(env, branch) && self.opens_as_many_as_it_may(env, branch))
    }

    /// The parameters that its login asks for, noted once.
    pub(super) fn note_opening(&mut self, env: &Env, id: ClientId, greeting: &ServerGreeting) {
        // A login that must be refused for its parameters is refused when it is admitted.
        let _ = self.sort_startup(env, id, greeting);
        let Some(client) = self.clients.get_mut(id) else { return };
        let (ClientState::AwaitingServer(login), account) = (&client.state, &mut client.account) else {
            return;
        };
        if account.own.is_none() {
            let opening = Opened::new(&env.tracked, &greeting.params, &login.params, &login.session);
            account.own = Some(Box::new(Own { opening, kept: None }));
        }
    }

    /// Returns the server that is kept for a client; `None` if there is none any more.
    pub(super) fn kept(&self, id: ClientId) -> Option<ServerId> {
        let own = self.clients.get(id)?.account.own.as_deref()?;
        own.kept.filter(|&server| self.servers.get(server).is_some_and(|server| server.kept_for == Some(id)))
    }

    /// Whether the server that is kept for a client is being opened, or brought back to its first state.
    pub(super) fn kept_is_coming(&self, id: ClientId) -> bool {
        let kind = self.kept(id).map(|server| self.servers[server].state.kind());
        matches!(kind, Some(ServerKind::Login | ServerKind::Tested))
    }

    /// Returns a server that was opened for a similar client and is being brought back to its first state. It is free sooner than a
    /// new one is opened.
    pub(super) fn soon_free(&self, env: &Env, branch: Branch, client: ClientId) -> Option<ServerId> {
        let wanted = &self.clients.get(client)?.account.own.as_deref()?.opening;
        let fits = |&id: &ServerId| {
            let server = &self.servers[id];
            // connect_query runs after a reset, too.
            let resets = matches!(
                server.state.question(),
                Some(
                    ServerQuestion::Reset
                        | ServerQuestion::ConnectQuery(_)
                        | ServerQuestion::AfterConnectQuery(_)
                )
            );
            resets
                && server.opened.fits(wanted)
                && !self.is_kept_for_another(server, id, Some(client))
                && self.state.reason_to_retire(env, server).is_none()
        };
        self.state.node_at(branch).tested.iter().copied().find(fits)
    }

    /// Whether the server is kept for another client, which was told of it and has not yet asked for anything.
    fn is_kept_for_another(&self, server: &Server, id: ServerId, client: Option<ClientId>) -> bool {
        server.kept_for.is_some_and(|keeper| Some(keeper) != client && self.kept(keeper) == Some(id))
    }

    /// Returns the client that was told of this server's process, if it has not asked for anything yet.
    pub(crate) fn idle_keeper(&self, id: ServerId) -> Option<ClientId> {
        let keeper = self.servers.get(id)?.kept_for.filter(|&keeper| self.kept(keeper) == Some(id))?;
        matches!(self.clients.get(keeper)?.state, ClientState::Idle).then_some(keeper)
    }

    pub(super) fn keep(&mut self, client: ClientId, server: ServerId) {
        let account = self.clients.get_mut(client).map(|client| &mut client.account);
        if let Some(own) = account.and_then(|account| account.own.as_deref_mut()) {
            own.kept = Some(server);
            self.servers[server].kept_for = Some(client);
        }
    }

    /// The free server that is best for a client (`None`: for work of no client); those that are kept for other clients only
    /// if `all`.
    pub(super) fn best_idle(
        &self,
        env: &Env,
        branch: Branch,
        client: Option<ClientId>,
        all: bool,
    ) -> Option<(Fitness, ServerId)> {
        let pool = &self.state;
        let account = client.and_then(|client| self.clients.get(client)).map(|client| &client.account);
        let own = account.and_then(|account| account.own.as_deref());
        let plain = Opened::default();
        let wanted = own.map_or(&plain, |own| &own.opening);
        let kept = client.and_then(|client| self.kept(client));
        let judge = |&id: &ServerId| {
            let server = self.servers.get(id)?;
            let taken = self.is_kept_for_another(server, id, client);
            let fitness = match () {
                () if kept == Some(id) => Fitness::Own,
                () if server.opened.fits(wanted) => Fitness::Like,
                () if server.opened.is_plain() => Fitness::Plain,
                () => Fitness::Unfit,
            };
            (all || !taken).then(|| ((taken, fitness, self.state.needs_check(env, server)), id))
        };
        let judged = pool.node_at(branch).idle.iter().filter_map(judge);
        let best = match env.rules.config.main.server_round_robin {
            true => judged.min_by_key(|(rank, _)| *rank),
            false => judged.rev().min_by_key(|(rank, _)| *rank),
        };
        best.map(|((_, fitness, _), id)| (fitness, id))
    }

    /// Ends the keeping of servers for a client that was linked to this server, and of this server for another client.
    pub(crate) fn take_own(&mut self, id: ClientId, server_id: ServerId) {
        let server = &mut self.servers[server_id];
        server.kept_for = None;
        let Some(account) = self.clients.get_mut(id).map(|client| &mut client.account) else {
            return;
        };
        let Some(own) = &mut account.own else { return };
        own.kept = None;
        if let Some(asked) = &server.opened.asked {
            // It has the values that the client asked for by itself, unless connect_query has set others since.
            let mut session = (*server.session).clone();
            for name in asked.session().settings().map(|setting| &setting.name) {
                if let (None, Some(value)) = (session.get(name), account.session.get(name)) {
                    session.set(name, value);
                }
            }
            server.session = match session == *account.session {
                true => Arc::clone(&account.session),
                false => self.state.known.sessions.share(session),
            };
        }
    }

    /// Releases the server that was kept for a client that goes to another node. A waiting client can get it.
    pub(crate) fn give_up_kept(&mut self, id: ClientId) {
        let Some(kept) = self.kept(id) else { return };
        self.servers[kept].kept_for = None;
        if let Some(own) = self.clients.get_mut(id).and_then(|client| client.account.own.as_deref_mut()) {
            own.kept = None;
        }
        self.notice();
    }

    /// Releases the server that was kept for a client that leaves. A waiting client can get it.
    pub(crate) fn give_up_own(&mut self, account: &Account, id: ClientId) {
        let Some(server_id) = account.own.as_deref().and_then(|own| own.kept) else { return };
        if let Some(server) = self.servers.get_mut(server_id)
            && server.kept_for == Some(id)
        {
            server.kept_for = None;
            self.notice();
        }
    }

    /// The parameters that a server that is to log in now is opened with: those of the client that waits for it.
    pub(crate) fn opening_for(&self, id: ServerId) -> Option<(&Login, Opened)> {
        let client = self.servers.get(id)?.kept_for?;
        if self.kept(client) != Some(id) {
            return None;
        }
        let client = self.clients.get(client)?;
        let ClientState::AwaitingServer(login) = &client.state else { return None };
        if login.replication != Replication::None {
            return None;
        }
        Some((login, client.account.own.as_deref()?.opening.clone()))
    }

    /// A server is ready for its first client: clients that ask for the same parameters are told the parameters that it
    /// reports. `at_login` are the reported parameters at its login, which were asked for.
    pub(crate) fn learn_opened(&mut self, id: ServerId, reported: &ServerGreeting, at_login: &Params) {
        let server = &self.servers[id];
        let Some(asked) = server.opened.asked.clone() else { return };
        let pool = &mut self.state;
        let Some(greeting) = pool.greeting.clone() else { return };
        let reported = CheckedStartup {
            params: pool.known.share_params(asked.params_of(at_login, &reported.params)),
            session: pool.known.sessions.share(asked.session().clone()),
            reported: greeting.changes(reported),
        };
        pool.known.startup_checks.insert(asked, Arc::new(reported));
    }

    /// The client is to be told of the server's process. Returns the other messages that the server sent at its login.
    ///
    /// If processes are peers, the process id says which of them the client belongs to: it cannot be the server's.
    pub(crate) fn show_process<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
    ) -> Vec<u8> {
        let server = &mut self.servers[server_id];
        let (pid, notices) = (server.at.pid, std::mem::take(&mut server.at.notices));
        let is_process = i32::try_from(pid).is_ok_and(|pid| pid > 0);
        if cx.env.rules.config.main.peer_id != 0 || !is_process {
            return notices;
        }
        let Some(account) = self.clients.get(id).map(|client| &client.account) else {
            return notices;
        };
        let (old, minor) = (account.cancel_key.head(), account.cancel_key.minor());
        cx.env.cancel_keys.remove(&old);
        let key = cx.new_cancel_key(KeyOwner::Client(self.id, id), minor, Some(pid));
        if let Some(account) = self.clients.get_mut(id).map(|client| &mut client.account) {
            account.cancel_key = key;
        }
        notices
    }
}
