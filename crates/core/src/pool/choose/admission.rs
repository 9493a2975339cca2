//! What the selector knows of multiplexing: which groups may be queued behind other clients, and which busy servers take them.

use std::sync::Arc;

use crate::client_handoff::Replication;
use crate::context::Activity;
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::limits::{MULTIPLEXED_ANSWER_BYTES_MAX, MULTIPLEXED_BACKLOG_BYTES_MAX};
use crate::mail::Shutdown;
use crate::pool::client::state::{Account, Client, ClientState};
use crate::pool::multiplex::estimate::Estimate;
use crate::pool::multiplex::pipelined::{MultiplexLimits, Room};
use crate::pool::prepared::statements::Knows;
use crate::pool::relay::exchange::group::{Group, group_at_front};
use crate::pool::relay::ledger::Ledger;
use crate::pool::server::state::{Server, ServerState};
use crate::pool::{Branch, Gate, Pool};

/// The wish of a client whose group may be queued behind other clients' groups.
#[derive(Clone, Copy)]
pub(super) struct MultiplexWish {
    pub(super) limits: MultiplexLimits,
    /// The group's expected time.
    pub(super) estimate_us: u64,
    /// Whether the group names prepared statements, as [`Group::names_statements`] has it.
    names_statements: bool,
}

/// The result of a survey of the busy servers.
pub(super) struct PipelineSurvey {
    /// Number of servers that take further statements, or would if they were not full. (A server whose head turned out long does
    /// not.)
    pub(super) takers: u32,
    /// The server on which the wait is shortest.
    pub(super) best: Option<ServerId>,
    /// Whether one of these servers is full and will have room soon.
    pub(super) full: bool,
}

impl Pool {
    /// The group that a client asks for, if that may share a server with other clients.
    pub(crate) fn group_of(&mut self, env: &mut Env, id: ClientId, bytes: &[u8]) -> Option<Group> {
        if self.multiplex_limits().is_none() && env.cache.is_none() && !self.state.balances_reads() {
            return None;
        }
        self.look_at_group(env, id, bytes)
    }

    /// The same, whether or not this pool's clients share servers.
    pub(crate) fn look_at_group(&mut self, env: &mut Env, id: ClientId, bytes: &[u8]) -> Option<Group> {
        let account = &self.clients.get(id)?.account;
        if account.replication != Replication::None {
            return None;
        }
        let routines = &self.state.routines;
        let reach = self.state.reach_now(env);
        let group = group_at_front(bytes, &mut env.texts, reach, |name| {
            // What its client was told may have to be compared first.
            let meaning = account.named(name).filter(|meaning| meaning.knows != Knows::AnotherShape)?;
            let known = env.statements.get(meaning.statement)?;
            let runs_code = routines.are_named_in(&known.query) || routines.run_with(|| Some(&known.types));
            let traits = known.traits.as_ref().filter(|_| !runs_code)?;
            Some((traits, known.reads(reach)))
        });
        // If sessions are kept, pgweir must look at its server before any other client may have it.
        group.filter(|group| {
            !self.state.policy.keeps_sessions()
                || !(group.may_touch()
                    || group.asks()
                    || group.draws() && self.keeps_draws(account)
                    || routines.are_outdated(env.shared.routines())
                    || routines.may_run_in(&bytes[..bytes.len().min(group.len as usize)])
                    || self.is_group_watched(env, group))
        })
    }

    /// The bounds of multiplexing in a pool; `None` if it does not multiplex now.
    #[inline]
    pub(crate) fn multiplex_limits(&self) -> Option<MultiplexLimits> {
        // If the operator wants each release looked at, no other client may use the server before the look.
        self.state.policy.multiplex.filter(|_| !self.state.session_checks.at_each())
    }

    /// The expected time of a statement that is known to be short.
    #[inline]
    pub(crate) fn short_estimate_us(&self, env: &Env, key: u64, limits: MultiplexLimits) -> Option<u64> {
        let Estimate { us, bytes } = env.measured.estimates.get(key)?;
        (us < limits.max_us && bytes <= MULTIPLEXED_ANSWER_BYTES_MAX).then_some(us)
    }

    /// The client wants a group that may be queued behind others, and is known to be short. A statement that may wait for a
    /// lock of another transaction has a server for itself.
    #[inline]
    pub(super) fn multiplex_wish(&self, env: &Env, id: ClientId) -> Option<MultiplexWish> {
        let client = self.clients.get(id)?;
        let ClientState::Waiting(waiting) = &client.state else { return None };
        let group = waiting.group.as_ref().filter(|group| group.certainly_reads())?;
        if group.names_several() {
            // A part of it would be answered before all of its statements are known to be what they were.
            return None;
        }
        let limits = self.multiplex_limits()?;
        if self.state.gate_at(client.account.branch) != Gate::Open
            || env.activity != Activity::Active
            || env.stopping == Some(Shutdown::WaitForServers)
        {
            return None;
        }
        let estimate_us = self.short_estimate_us(env, group.estimate_key(self.id), limits)?;
        Some(MultiplexWish { limits, estimate_us, names_statements: group.names_statements() })
    }

    /// Looks at the servers of this node that are busy with short reads, up to so many of them.
    pub(super) fn look_at_pipelines<D: Driver>(
        &self,
        cx: &Cx<'_, D>,
        branch: Branch,
        (id, wish): (ClientId, MultiplexWish),
        among: u32,
    ) -> PipelineSurvey {
        let mut found = PipelineSurvey { takers: 0, best: None, full: false };
        let Some(account) = self.clients.get(id).map(|client| &client.account) else {
            return found;
        };
        let mut least_us = u64::MAX;
        for &server_id in &self.state.node_at(branch).short {
            if found.takers == among {
                break;
            }
            let Some(server) = self.servers.get(server_id) else { continue };
            if !takes_queued(server, cx.env.limits.ledger_entries)
                || cx.driver.backlog(server.conn) > MULTIPLEXED_BACKLOG_BYTES_MAX
            {
                continue;
            }
            let room = server.pipelined.room(cx.env.now.mono_us, server.work.received_bytes, wish.limits);
            if room == Room::Never {
                continue;
            }
            found.takers += 1;
            if !same_session(account, server)
                || wish.names_statements && server.ledger.awaits_earlier_changes()
            {
                continue;
            }
            match room {
                Room::Yes(wait_us)
                    if wait_us < least_us && self.state.reason_to_retire(cx.env, server).is_none() =>
                {
                    (least_us, found.best) = (wait_us, Some(server_id));
                }
                Room::Yes(_) | Room::Never => {}
                Room::Full => found.full = true,
            }
        }
        found
    }

    /// Whether a client has waited so long that an idle server must be woken for it. (The expected further wait does not count: if
    /// too many servers are busy, statements take long for that reason, and one more server would make it worse.)
    pub(super) fn has_waited_enough(&self, env: &Env, branch: Branch, id: ClientId) -> bool {
        let enough_us = self.state.node_at(branch).pace.wake_after_us();
        self.clients.get(id).is_some_and(|client| {
            let waited_us = env.now.mono_us.saturating_sub(client.account.request.since_us);
            matches!(client.state, ClientState::Waiting(_)) && waited_us >= enough_us
        })
    }

    /// Sets the wake-up for the next client: the time at which the client has waited long enough to have an idle server woken, or at
    /// which the first busy server's head turns out not to be short.
    #[cold]
    pub(super) fn note_wake_up(
        &mut self,
        env: &mut Env,
        branch: Branch,
        id: ClientId,
        limits: MultiplexLimits,
    ) {
        let node = self.state.node_at(branch);
        let enough_us = node.pace.wake_after_us();
        let Some(Client { state: ClientState::Waiting(_), account, .. }) = self.clients.get(id) else {
            return;
        };
        let now_us = env.now.mono_us;
        let heads = node.short.iter().filter_map(|&id| self.servers.get(id)?.pipelined.head());
        let long_us = heads.map(|head| head.since_us.saturating_add(limits.max_us + 1));
        let long_us = long_us.filter(|&due_us| due_us > now_us).min().unwrap_or(u64::MAX);
        let due_us = account.request.since_us.saturating_add(enough_us).min(long_us).max(now_us + 1);
        env.wake_at(due_us);
    }
}

/// Whether the session that a server carries is the client's.
fn same_session(account: &Account, server: &Server) -> bool {
    Arc::ptr_eq(&server.params, &account.params) && Arc::ptr_eq(&server.session, &account.session)
}

/// Whether the server takes further groups: nothing sent to it can leave it in a transaction, in a COPY, or linked to a client.
fn takes_queued(server: &Server, entries_max: usize) -> bool {
    let whole = |ledger: &Ledger| ledger.is_between_groups() && ledger.len() < entries_max;
    (server.state.is_serving() || matches!(server.state, ServerState::Draining))
        && server.retiring.is_none()
        && server.cancels == 0
        && server.incoming.paused_us.is_none()
        && server.tx == pgweir_wire::backend::TxStatus::Idle
        && whole(&server.ledger)
}
