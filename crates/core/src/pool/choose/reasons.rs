//! Why a server is closed, or looked at, before another client gets it.

use pgweir_settings::PoolMode;

use crate::context::{Activity, Env, duration_us};
use crate::ids::ServerId;
use crate::mail::Shutdown;
use crate::pool::moves::server::comes_unasked;
use crate::pool::server::state::{Retiring, Server};
use crate::pool::{Gate, Pool, PoolState};

/// The reason for closing a server that is older than `server_lifetime`.
pub(crate) const LIFETIME_OVER: &str = "server lifetime over";

/// The reason for closing a server above this process's part of a limit that several poolers share.
pub(crate) const ABOVE_PART: &str = "another pooler has this part of a shared limit";

impl Pool {
    /// Returns the reason to close the server with this id, as [`PoolState::reason_to_close`] does.
    pub(crate) fn reason_to_close(&self, env: &Env, id: ServerId) -> Option<&'static str> {
        self.state.reason_to_close(env, self.servers.get(id)?)
    }
}

impl PoolState {
    /// Why a server that rests should not be used again.
    #[inline]
    pub(crate) fn reason_to_close(&self, env: &Env, server: &Server) -> Option<&'static str> {
        // A message that may come at any time may still be incomplete: if the server closed now, a client that listened here
        // would miss later notifications.
        let is_dirty = server.incoming.inbox.first().is_some_and(|&tag| !comes_unasked(tag));
        if is_dirty || server.incoming.streaming.is_some() {
            return Some(server.retiring.map_or("idle server got dirty", Retiring::reason));
        }
        self.reason_to_retire(env, server)
    }

    /// Why a server should not be used any more when its present work is over.
    pub(crate) fn reason_to_retire(&self, env: &Env, server: &Server) -> Option<&'static str> {
        if let Some(retiring) = server.retiring {
            return Some(retiring.reason());
        }
        if !server.opened.is_plain() && !self.gets_own_server() {
            return Some("opened for a session");
        }
        if env.stopping == Some(Shutdown::WaitForServers) && self.waiting() == 0 {
            return Some("server shutting down");
        }
        if self.gate == Gate::Paused || env.activity == Activity::Paused {
            return Some("pause mode");
        }
        let lifetime_us = self.policy.lifetime_us;
        let age_us = env.now.mono_us.saturating_sub(server.at.since.mono_us);
        // `server_lifetime = 0` is "use once", not "never".
        if age_us < lifetime_us || (lifetime_us == 0 && !server.work.used) {
            return None;
        }
        // Servers that were opened together do not all end together.
        let node = self.node_at(server.branch);
        let spread_us = lifetime_us / u64::from(node.servers_total().max(1));
        let spread = lifetime_us == 0
            || node.aged_us == 0
            || env.now.mono_us >= node.aged_us.saturating_add(spread_us);
        spread.then_some(LIFETIME_OVER)
    }

    pub(crate) fn needs_check(&self, env: &Env, server: &Server) -> bool {
        let main = &env.rules.config.main;
        let idle_us = env.now.mono_us.saturating_sub(server.active_us);
        !main.server_check_query.is_empty() && idle_us > duration_us(main.server_check_delay)
    }

    /// Whether each of the pool's clients has its own server.
    pub(crate) fn gets_own_server(&self) -> bool {
        self.policy.mode == PoolMode::Session && self.policy.tries_startup()
    }
}

impl PoolState {
    /// Whether several poolers share a limit that this server counts towards.
    fn counts_towards_shared(&self, env: &Env, server: &Server) -> bool {
        self.policy.is_limited && env.shares_limits() && server.is_for_clients()
    }

    /// Whether a server that rests is above this process's part of a limit.
    pub(crate) fn is_above_part(&self, env: &Env, server: &Server) -> bool {
        self.counts_towards_shared(env, server)
            && self.counts_of(server.branch).iter().any(|counts| counts.is_above_part())
    }

    /// Whether the login of a server must not go on: this process lost its part of a shared limit, or the time for which the part holds,
    /// after the connection was opened.
    pub(crate) fn lost_its_part(&self, env: &Env, server: &Server) -> bool {
        self.counts_towards_shared(env, server) && !env.shared.parts_hold(env.now.mono_us)
    }
}
