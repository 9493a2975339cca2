//! Limits that several poolers share (`shared_limits`): this pool's use of them, the servers above this process's part, and the questions
//! about the processes that PostgreSQL has.
//!
//! The control plane decides about the parts. This file must not know other poolers.

use crate::context::{Cx, Env};
use crate::driver::{CloseMode, Driver};
use crate::ids::ServerId;
use crate::mail::{Question, Scarce};
use crate::pool::choose::reasons::ABOVE_PART;
use crate::pool::relay::own_settings::{self, Asks};
use crate::pool::server::asked::{Replies, ServerQuestion};
use crate::pool::server::closing::{PlaceOfServer, Shown};
use crate::pool::{Pool, ServerKind};
use crate::shared::places::{BackendsSeen, LimitSeen};

/// The question for the processes that count towards the limits of a connection's database and of its user. Both lists are text, with
/// commas between the process ids.
const QUESTION: &str = "SELECT pg_catalog.string_agg(a.pid::pg_catalog.text, ',') FILTER (WHERE a.datid OPERATOR(pg_catalog.=) own.datid), \
     pg_catalog.string_agg(a.pid::pg_catalog.text, ',') FILTER (WHERE a.usesysid OPERATOR(pg_catalog.=) own.usesysid) \
     FROM pg_catalog.pg_stat_activity AS a, pg_catalog.pg_stat_activity AS own \
     WHERE own.pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()";

/// The state of the question to a node about the processes that PostgreSQL has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum BackendsQuestion {
    /// There is nothing to ask.
    #[default]
    None,
    /// A free server is asked next.
    Due {
        /// The control plane's number for the request; 0 if only this pool wants to know.
        number: u64,
    },
    /// A server was asked. If the question is wanted again before it is answered, it is sent again: the answer may be older.
    Asked {
        /// The request that came after the question was sent.
        next: Option<u64>,
    },
}

impl BackendsQuestion {
    /// Whether a server is to be asked now.
    pub(crate) fn is_due(&self) -> bool {
        matches!(self, BackendsQuestion::Due { .. })
    }

    /// Notes that the processes must be known, because of this request.
    pub(crate) fn want(&mut self, number: u64) {
        *self = match *self {
            BackendsQuestion::None => BackendsQuestion::Due { number },
            BackendsQuestion::Due { number: other } => BackendsQuestion::Due { number: other.max(number) },
            // The request of the pool itself is answered by any answer that comes later.
            BackendsQuestion::Asked { next } if number == 0 => BackendsQuestion::Asked { next },
            BackendsQuestion::Asked { next } => {
                BackendsQuestion::Asked { next: Some(next.unwrap_or(0).max(number)) }
            }
        };
    }

    /// Notes that the question was answered.
    pub(crate) fn end(&mut self) {
        if let Self::Asked { next } = *self {
            *self = next.map_or(Self::None, |number| Self::Due { number });
        }
    }

    /// Notes that the server that was asked because of this request is lost.
    pub(crate) fn fail(&mut self, number: u64) {
        self.end();
        self.want(number);
    }
}

impl Pool {
    /// Closes free servers as long as the process has more than its part.
    pub(crate) fn close_above_part<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if !cx.env.shares_limits() {
            return;
        }
        for id in self.idle_servers() {
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
            if cx.env.closing.are_in_doubt(self, branch) {
                self.state.node_at_mut(branch).backends.want(0);
            }
            let node = self.state.node_at(branch);
            if !node.backends.is_due() {
                continue;
            }
            let free = node.idle.iter().copied().find(|id| self.reason_to_close(cx.env, *id).is_none());
            if let Some(id) = free {
                self.ask_for_backends(cx, id);
            } else if node.servers(ServerKind::Login) == 0
                && !self.is_full(cx.env, branch)
                && self.take_place(cx, branch, true)
            {
                // All servers may be busy for long.
                self.dial_server(cx, branch, None);
            }
        }
    }

    /// Asks a free server for the processes that PostgreSQL has, if that is due.
    fn ask_for_backends<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId) {
        let Some(server) = self.servers.get(id) else { return };
        let question = &mut self.state.node_at_mut(server.branch).backends;
        let BackendsQuestion::Due { number } = *question else { return };
        *question = BackendsQuestion::Asked { next: None };
        let text = own_settings::question(server.at.version, Asks::Little, QUESTION.as_bytes());
        let asked_us = cx.env.now.mono_us;
        self.ask_server(cx, id, ServerQuestion::Backends { number, asked_us }, &text);
    }

    /// Handles the answer of a server that was asked for the processes that PostgreSQL has.
    pub(crate) fn backends_told<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        (number, asked_us): (u64, u64),
        answer: &Replies,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        let (branch, server) = (server.branch, PlaceOfServer::of(server));
        let lists = answer.rows.first().filter(|_| answer.failed.is_none()).and_then(|row| pids(row));
        self.state.node_at_mut(branch).backends.end();
        if let Some((by_database, by_user)) = lists {
            let of_database = self.state.scarce_at(branch);
            let of_user = Scarce::User(self.state.user.clone());
            cx.env.settle_closing(&Shown {
                by_database: (&of_database, &by_database),
                by_user: (&of_user, &by_user),
                server: &server,
                asked_us,
            });
            self.notice();
            if number > 0 {
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
        for branch in pool.branches() {
            let node = pool.node_at(branch);
            let demand = pool.demand_at(branch) + node.servers_total() - node.servers(ServerKind::Idle)
                + node.servers(ServerKind::Listening);
            let known = self.servers.values().filter(|server| server.branch == branch && server.at.pid > 0);
            let pids: Vec<u32> = known.map(|server| server.at.pid).collect();
            if by_user {
                let of = Scarce::User(pool.user.clone());
                add(seen, LimitSeen { of, demand, unconfirmed: 0, pids: pids.clone() });
            }
            let is_node = branch.is_primary() || branch.is_standby() && (demand > 0 || !pids.is_empty());
            if by_database && is_node {
                let of = pool.scarce_at(branch);
                add(seen, LimitSeen { of, demand, unconfirmed: 0, pids });
            }
        }
    }
}

/// Adds the connections that are closed and that PostgreSQL may still have.
pub(crate) fn add_closing_seen(env: &Env, seen: &mut Vec<LimitSeen>) {
    env.closing.for_each_limit(|of, pid, is_unconfirmed| {
        let pids = if pid > 0 { vec![pid] } else { Vec::new() };
        add(seen, LimitSeen { of: of.clone(), demand: 0, unconfirmed: u32::from(is_unconfirmed), pids });
    });
}

fn add(seen: &mut Vec<LimitSeen>, new: LimitSeen) {
    match seen.iter_mut().find(|one| one.of == new.of) {
        Some(one) => {
            one.demand = one.demand.saturating_add(new.demand);
            one.unconfirmed = one.unconfirmed.saturating_add(new.unconfirmed);
            one.pids.extend(new.pids);
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
