//! Limits that several poolers share (`shared_limits`): this pool's use of them, the servers above this process's part, and the questions
//! about the processes that PostgreSQL has.
//!
//! The control plane decides about the parts. This file must not know other poolers.

use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Driver};
use crate::ids::ServerId;
use crate::mail::{Question, Scarce};
use crate::pool::choose::reasons::ABOVE_PART;
use crate::pool::node::Look;
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::server::asked::{Replies, ServerQuestion};
use crate::pool::{Branch, Pool, ServerKind};
use crate::shared::places::{BackendsSeen, LimitSeen};

/// The question for the processes that count towards the limits of a connection's database and of its user. Both lists are text, with
/// commas between the process ids.
const QUESTION: &str = "SELECT pg_catalog.string_agg(a.pid::pg_catalog.text, ',') FILTER (WHERE a.datid OPERATOR(pg_catalog.=) own.datid), \
     pg_catalog.string_agg(a.pid::pg_catalog.text, ',') FILTER (WHERE a.usesysid OPERATOR(pg_catalog.=) own.usesysid) \
     FROM pg_catalog.pg_stat_activity AS a, pg_catalog.pg_stat_activity AS own \
     WHERE own.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()";

impl Pool {
    /// Closes free servers as long as the process has more than its part.
    pub(crate) fn close_above_part<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let idle: Vec<ServerId> = self.state.nodes().flat_map(|node| node.idle.iter().copied()).collect();
        for id in idle {
            if self.servers.get(id).is_some_and(|server| self.state.is_above_part(cx.env, server)) {
                self.close_server(cx, id, ABOVE_PART, CloseMode::Flush);
            }
        }
    }

    /// Asks for the processes that PostgreSQL has, at each node where that is due: a free server, or one that is opened for it if none is
    /// free there.
    pub(crate) fn look_if_due<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        for branch in self.state.branches() {
            // Also after the setting is off: until then the connections count towards this pooler's own limits.
            if self.ghosts(branch) > 0 {
                self.state.node_at_mut(branch).look.want(0);
            }
            let node = self.state.node_at(branch);
            if !matches!(node.look, Look::Due { .. }) {
                continue;
            }
            let free = node.idle.iter().copied().find(|id| self.reason_to_close(cx.env, *id).is_none());
            if let Some(id) = free {
                self.ask_for_backends(cx, id);
            } else if node.servers(ServerKind::Login) == 0
                && self.may_dial(cx.env, branch)
                && self.has_place(cx.env, branch)
                && self.take_place(cx, branch, true)
            {
                // All servers may be busy for long.
                self.dial_server(cx, branch, None);
            }
        }
    }

    /// Whether `pool_size` leaves room for one more server.
    fn has_place(&self, env: &Env, branch: Branch) -> bool {
        let pool = &self.state;
        let size = env.rules.config.pool_size(&pool.config, &pool.user);
        size == 0 || pool.node_at(branch).servers_total() < size
    }

    /// Asks a server that is free for the processes that PostgreSQL has. Returns `false` if no question is due.
    pub(crate) fn ask_for_backends<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let look = &mut self.state.node_at_mut(server.branch).look;
        let Look::Due { number } = *look else { return false };
        *look = Look::Asked { next: None };
        let text = own_settings::question(server.at.version, Asks::Little, QUESTION.as_bytes());
        let asked_us = cx.env.now.mono_us;
        self.ask_server(cx, id, ServerQuestion::Backends { number, asked_us }, &text);
        true
    }

    /// Handles the answer of a server that was asked for the processes that PostgreSQL has.
    pub(crate) fn backends_told<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        (number, asked_us): (u64, u64),
        answer: &Replies,
    ) {
        let Some(branch) = self.servers.get(id).map(|server| server.branch) else { return };
        let lists = answer.rows.first().filter(|_| answer.failed.is_none()).and_then(|row| pids(row));
        self.state.node_at_mut(branch).look.end();
        if let Some((by_database, by_user)) = lists {
            self.settle_departed(cx, (branch, asked_us), &by_database);
            if number > 0 {
                let of_database = self.state.scarce_at(branch);
                let of_user = Scarce::User(self.state.user.clone());
                cx.driver.ask(Question::Backends(Box::new(BackendsSeen {
                    number,
                    by_database: (of_database, by_database),
                    by_user: (of_user, by_user),
                })));
            }
        }
        self.free_server(cx, id);
    }

    /// Adds this pool's use of limits that span pools.
    pub(crate) fn add_limits_seen(&self, env: &Env, seen: &mut Vec<LimitSeen>) {
        let pool = &self.state;
        let config = &env.rules.config;
        let (by_database, by_user) =
            (config.max_db_connections(&pool.config) > 0, config.max_user_connections(&pool.user) > 0);
        if !by_database && !by_user {
            return;
        }
        let one_server = pool.config.hosts.len() < 2;
        for branch in pool.branches() {
            let node = pool.node_at(branch);
            let demand = pool.demand_at(branch) + node.servers_total() - node.servers(ServerKind::Idle)
                + node.servers(ServerKind::Listening);
            let ghosts = self.ghosts(branch);
            let known = self.servers.values().filter(|server| server.branch == branch && server.at.pid > 0);
            let mut pids: Vec<u32> = known.map(|server| server.at.pid).collect();
            pids.extend(self.departing_pids(branch));
            if by_user {
                let of = Scarce::User(pool.user.clone());
                add(seen, LimitSeen { of, demand, ghosts, pids: pids.clone(), is_one_server: one_server });
            }
            let is_node = branch.is_primary() || branch.is_standby() && (demand > 0 || !pids.is_empty());
            if by_database && is_node {
                let of = pool.scarce_at(branch);
                add(seen, LimitSeen { of, demand, ghosts, pids, is_one_server: one_server });
            }
        }
    }
}

fn add(seen: &mut Vec<LimitSeen>, new: LimitSeen) {
    match seen.iter_mut().find(|one| one.of == new.of) {
        Some(one) => {
            one.demand = one.demand.saturating_add(new.demand);
            one.ghosts = one.ghosts.saturating_add(new.ghosts);
            one.pids.extend(new.pids);
            one.is_one_server &= new.is_one_server;
        }
        None => seen.push(new),
    }
}

/// Returns both lists of a row; `None` if the row is not understood. The first list is never empty: it has the server that was asked.
fn pids(row: &[Option<Box<[u8]>>]) -> Option<(Vec<u32>, Vec<u32>)> {
    let [Some(by_database), Some(by_user)] = row else { return None };
    let list = |text: &[u8]| {
        let text = std::str::from_utf8(text).ok()?;
        text.split(',').map(|pid| pid.parse().ok()).collect::<Option<Vec<u32>>>()
    };
    Some((list(by_database)?, list(by_user)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(by_database: &[u8], by_user: &[u8]) -> Option<(Vec<u32>, Vec<u32>)> {
        pids(&[Some(by_database.into()), Some(by_user.into())])
    }

    #[test]
    fn lists_of_processes_are_read_whole_or_not_at_all() {
        assert_eq!(read(b"1,22,333", b"1"), Some((vec![1, 22, 333], vec![1])));
        for bad in [&b""[..], b"1,", b"1,x", b"-1", b"\xff", b"99999999999"] {
            assert_eq!(read(bad, b"1"), None, "{bad:?}");
        }
        assert_eq!(pids(&[Some(b"1"[..].into()), None]), None);
    }
}
