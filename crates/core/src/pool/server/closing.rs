//! Server connections that pgweir has closed, and that count towards a shared limit until PostgreSQL has ended them.
//!
//! If several poolers share a limit, another pooler may open a connection as soon as this one says that it has one less. So a connection
//! counts until PostgreSQL has closed it, too: its process is no longer among those that PostgreSQL counts then. If the connection broke, or
//! PostgreSQL does not close it in time, it counts until `pg_stat_activity` shows that the process is gone.

use crate::context::{Cx, Env, Role};
use crate::driver::{CloseMode, Closed, ConnId, Driver};
use crate::limits::UNCONFIRMED_LOGIN_US;
use crate::pool::server::state::{ConnectionState, Server, ServerState, Serves};
use crate::pool::{Branch, Pool};

/// A connection that pgweir has closed and that still counts.
pub(crate) struct ClosingServer {
    /// The connection while the driver waits for its end; `None` if its end cannot be seen any more, only in `pg_stat_activity`.
    conn: Option<ConnId>,
    /// The process id of the server; 0 if the connection was closed before the server told it.
    pid: u32,
    branch: Branch,
    /// The time at which the connection was closed or broke (monotonic, µs).
    since_us: u64,
}

impl Pool {
    /// Whether this server still counts towards a shared limit after pgweir has closed it. PostgreSQL counts a connection from the end of its login, which may
    /// begin with the startup packet.
    pub(crate) fn counts_on(&self, env: &Env, server: &Server) -> bool {
        env.shares_limits()
            && self.state.policy.is_limited
            && server.serves != Serves::Watch
            && server.connection != ConnectionState::ClosedByServer
            && !matches!(server.state, ServerState::Dialing(_) | ServerState::SecuringTls(_))
    }

    /// Closes the connection of a server that is not in the pool any more, and counts it until its end.
    pub(crate) fn close_and_count<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        server: &Server,
        mode: CloseMode,
    ) {
        let is_open = server.connection == ConnectionState::Open;
        if is_open {
            cx.env.set_role(server.conn, Role::ClosingServer(self.id));
            cx.driver.close(server.conn, CloseMode::Confirm { flushes: mode == CloseMode::Flush });
        }
        self.closing.push(ClosingServer {
            conn: is_open.then_some(server.conn),
            pid: server.at.pid,
            branch: server.branch,
            since_us: cx.env.now.mono_us,
        });
        for counts in self.state.counts_of(server.branch).into_iter().filter(|_| is_open) {
            // There is no limit, so this never fails.
            let _ = counts.closing.try_take(0);
        }
    }

    /// Handles the end of a connection that pgweir has closed.
    pub(crate) fn closing_ended<D: Driver>(&mut self, cx: &mut Cx<'_, D>, conn: ConnId, why: &Closed) {
        cx.env.clear_role(conn);
        let Some(place) = self.closing.iter().position(|one| one.conn == Some(conn)) else { return };
        self.closing[place].conn = None;
        let branch = self.closing[place].branch;
        self.end_closing(branch);
        if *why == Closed::Eof {
            self.closing.swap_remove(place);
            self.give_back_server(cx, branch);
            self.notice();
        }
    }

    /// Notes that one closed connection fewer is expected to end soon.
    fn end_closing(&self, branch: Branch) {
        self.state.counts_of(branch).iter().for_each(|counts| counts.closing.give_back());
    }

    /// The process ids of the servers to a node whose connections are closed and still count.
    pub(crate) fn closing_pids(&self, branch: Branch) -> impl Iterator<Item = u32> {
        self.closing.iter().filter(move |one| one.branch == branch && one.pid > 0).map(|one| one.pid)
    }

    /// Gives back the places of connections to a node whose processes were not among those that it has shown. It was asked at `asked_us`.
    pub(crate) fn settle_closing<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        (branch, asked_us): (Branch, u64),
        pids: &[u32],
    ) {
        let is_gone = |one: &ClosingServer| {
            let is_unconfirmed = one.conn.is_none() && one.branch == branch && one.since_us < asked_us;
            // Without a process id only time tells: PostgreSQL ends a login that takes longer than authentication_timeout.
            let is_unseen = match one.pid {
                0 => asked_us.saturating_sub(one.since_us) >= UNCONFIRMED_LOGIN_US,
                pid => !pids.contains(&pid),
            };
            is_unconfirmed && is_unseen
        };
        while let Some(place) = self.closing.iter().position(is_gone) {
            let gone = self.closing.swap_remove(place);
            self.give_back_server(cx, gone.branch);
            self.notice();
        }
    }

    /// The number of connections to a node whose end can only be seen in `pg_stat_activity`.
    pub(crate) fn unconfirmed(&self, branch: Branch) -> u32 {
        let unconfirmed = self.closing.iter().filter(|one| one.conn.is_none() && one.branch == branch);
        u32::try_from(unconfirmed.count()).unwrap_or(u32::MAX)
    }

    /// Gives back all places: the pool is about to be forgotten.
    pub(crate) fn forget_closing<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        for gone in std::mem::take(&mut self.closing) {
            if let Some(conn) = gone.conn {
                cx.env.clear_role(conn);
                self.end_closing(gone.branch);
            }
            self.give_back_server(cx, gone.branch);
        }
    }
}
