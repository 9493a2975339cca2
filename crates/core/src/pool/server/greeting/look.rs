//! A look at a free server, so that clients that log in are told what new connections begin with now. If PostgreSQL's
//! configuration was changed, a new server is opened: its login alone tells values as PostgreSQL spells them.
//!
//! A client that logs in waits for this, for a bounded time. No statement waits for it, unless the pool has had no free server for
//! long. A client that is logged in already must never be told anything here: its values are its own.

use std::sync::Arc;

use pgweir_settings::Database;

use crate::context::{Activity, Cx, Env};
use crate::driver::{CloseMode, Driver};
use crate::ids::ServerId;
use crate::limits::GREETING_WAIT_US;
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::sequences::state::Hold;
use crate::pool::server::asked::{Replies, ServerQuestion};
use crate::pool::server::greeting::freshness::{Verdict, question};
use crate::pool::server::state::{Server, ServerState, Serves};
use crate::pool::{Branch, Gate, Pool, ServerKind};

/// The reason for closing servers after ALTER DATABASE or ALTER ROLE, and the server that told of a change.
const CHANGED: &str = "server settings changed";

impl Pool {
    /// Notes that a client logs in at this node. Returns whether the greeting must be confirmed before the client is told.
    pub(crate) fn awaits_greeting(&mut self, env: &Env, branch: Branch) -> bool {
        branch.is_primary()
            && self.state.greeting.is_some()
            && self.state.freshness.want(env.now.mono_us)
            && self.known_failure(env, branch).is_none()
            && self.can_confirm(env)
    }

    /// Whether the greeting is being confirmed, or can be.
    fn can_confirm(&self, env: &Env) -> bool {
        let may_ask = self.state.gate_at(Branch::PRIMARY) == Gate::Open
            && env.activity == Activity::Active
            && env.stopping.is_none();
        let is_vacant = self.state.node_at(Branch::PRIMARY).servers_total() == 0;
        may_ask
            && (self.is_being_confirmed()
                || !self.state.freshness.is_outdated && !self.state.node_at(Branch::PRIMARY).idle.is_empty()
                || (is_vacant || self.state.freshness.is_outdated) && self.may_dial(env, Branch::PRIMARY))
    }

    /// Whether a server is being asked for the greeting, or logs in.
    fn is_being_confirmed(&self) -> bool {
        self.servers.values().any(|server| {
            let asked = matches!(server.state.question(), Some(ServerQuestion::Greeting { .. }));
            let logs_in = server.state.kind() == ServerKind::Login && server.serves == Serves::Clients;
            server.branch.is_primary() && (asked || logs_in)
        })
    }

    /// Confirms the greeting if a client has logged in since it became stale. Returns whether clients that log in at this node wait for
    /// that.
    #[inline]
    pub(crate) fn confirms_greeting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, branch: Branch) -> bool {
        self.state.freshness.is_wanted() && branch.is_primary() && self.confirm_greeting(cx)
    }

    #[cold]
    fn confirm_greeting<D: Driver>(&mut self, cx: &mut Cx<'_, D>) -> bool {
        if self.state.greeting.is_none() || !self.can_confirm(cx.env) {
            return false;
        }
        let now_us = cx.env.now.mono_us;
        let node = self.state.node_at(Branch::PRIMARY);
        let waited_us = node.awaiting.iter().filter_map(|id| {
            let client = self.clients.get(*id)?;
            Some(now_us.saturating_sub(client.account.request.since_us))
        });
        let waits = waited_us.max().is_some_and(|waited_us| waited_us < GREETING_WAIT_US);
        let is_late = self.state.freshness.is_late(now_us);
        if self.is_being_confirmed() || node.awaiting.is_empty() && !is_late {
            return waits;
        }
        if self.state.freshness.is_outdated {
            return self.open_to_confirm(cx) && waits;
        }
        // No client waits for an idle server: each could have had it when it was released.
        if !node.idle.is_empty() {
            return self.look(cx) && waits;
        }
        // The login of the first server confirms it. In session pooling a client has one opened with its own parameters.
        waits && node.servers_total() == 0 && !self.state.gets_own_server()
    }

    /// Opens a server, whose login tells the changes. Returns `false` if there is no room for one.
    fn open_to_confirm<D: Driver>(&mut self, cx: &mut Cx<'_, D>) -> bool {
        let branch = Branch::PRIMARY;
        if self.state.gets_own_server() && self.state.node_at(branch).servers_total() == 0 {
            // In session pooling the client that logs in has one opened with its own parameters.
            return false;
        }
        let opens = self.may_dial(cx.env, branch)
            && !self.opens_as_many_as_it_may(cx.env, branch)
            && self.has_room(cx, branch)
            && self.take_place(cx, branch, true);
        if opens {
            self.dial_server(cx, branch, None);
        }
        opens
    }

    /// Asks a free server, preferably the newest one whose session need not be changed for the question. Returns `false` if no server is
    /// fit.
    fn look<D: Driver>(&mut self, cx: &mut Cx<'_, D>) -> bool {
        self.state.drawn.affinities.expire(cx.env.now.mono_us);
        let env = &*cx.env;
        let is_fit = |id: &ServerId| {
            let is_held = matches!(self.state.drawn.affinities.hold(*id, None), Hold::Until(_));
            !is_held && self.idle_keeper(*id).is_none() && self.reason_to_close(env, *id).is_none()
        };
        let rank = |id: &ServerId| {
            let server = &self.servers[*id];
            let is_held = self.state.drawn.affinities.hold(*id, None) == Hold::Soft;
            (!is_held, *server.session == self.new_session(*id), server.at.since.mono_us)
        };
        let idle = self.state.node_at(Branch::PRIMARY).idle.iter().copied();
        let Some(id) = idle.filter(is_fit).max_by_key(rank) else { return false };
        let Some(greeting) = self.state.greeting.clone() else { return false };
        let told = greeting.all(&cx.env.tracked);
        let text = question(told.iter().map(|(name, _)| *name));
        let text = own_settings::question(self.servers[id].at.version, Asks::Little, &text);
        let unused_us = self.servers[id].active_us;
        self.make_plain(cx, id);
        self.ask_server(cx, id, ServerQuestion::Greeting { unused_us }, &text);
        true
    }

    /// Handles the answer of a server that was unused since `unused_us`.
    pub(crate) fn looked<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        unused_us: u64,
        answer: &Replies,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        let Some(greeting) = self.state.greeting.clone() else { return self.free_server(cx, id) };
        let told = greeting.all(&cx.env.tracked);
        let opened = server.opened.clone();
        let database = Arc::clone(&self.state.config);
        let is_own = |name: &[u8]| opened.decides(&cx.env.tracked, name) || configures(&database, name);
        let told: Vec<_> = told.into_iter().filter(|(name, _)| !is_own(name)).collect();
        let compares = self.state.connect_query().is_none();
        let verdict = match &answer.failed {
            None => self.state.freshness.judge(&answer.rows, &told, &is_own, compares),
            Some(_) => Verdict::Right,
        };
        self.notice();
        if verdict == Verdict::Right {
            self.state.freshness.confirm(cx.env.now.mono_us);
            self.free_server(cx, id);
            if let Some(server) =
                self.servers.get_mut(id).filter(|server| matches!(server.state, ServerState::Idle))
            {
                // For server_idle_timeout a look is no use.
                server.active_us = unused_us;
            }
            return;
        }
        self.state.freshness.is_outdated = true;
        if verdict == Verdict::DatabaseChanged {
            // The connection that listens for clients shows none of them a value.
            let is_older = |(other, server): &(ServerId, &Server)| {
                let serves_clients = server.branch.is_primary() && server.serves == Serves::Clients;
                serves_clients && *other != id && server.state.kind() != ServerKind::Listening
            };
            let older: Vec<ServerId> = self.servers.iter().filter(is_older).map(|(id, _)| id).collect();
            older.into_iter().for_each(|older| self.recycle_server(cx, older, CHANGED));
        }
        self.close_server(cx, id, CHANGED, CloseMode::Flush);
    }
}

/// Whether pgweir's configuration has a value of this parameter, with which each server is opened.
fn configures(database: &Database, name: &[u8]) -> bool {
    let configured = [
        ("client_encoding", &database.client_encoding),
        ("datestyle", &database.datestyle),
        ("timezone", &database.timezone),
    ];
    configured.iter().any(|(known, value)| value.is_some() && name.eq_ignore_ascii_case(known.as_bytes()))
}
