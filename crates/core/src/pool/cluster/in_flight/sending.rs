//! The sending of a client's bytes in a pool with a cluster: what is looked at before they are sent, and what is recorded of them.

use pgweir_sql::Block;
use pgweir_wire::backend::TxStatus;
use pgweir_wire::frontend::tag;

use super::{InFlight, Sent};
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::Step;
use crate::pool::client::state::ClientState;
use crate::pool::cluster::commit::Number;
use crate::pool::cluster::first_try::FirstTry;
use crate::pool::cluster::reading::Later;
use crate::pool::policy::OnLoss;
use crate::pool::relay::attempt::KeptFor;
use crate::pool::relay::exchange::effect::{BlockProgress, Effect, Effects};
use crate::pool::relay::exchange::group::Group;
use crate::pool::relay::preamble::{Ahead, LinkPhase, Part, Preamble};

/// The state of a server before a client's bytes were sent to it.
struct Before {
    is_at_rest: bool,
    /// The transaction status that the server reported last.
    status: TxStatus,
    /// Whether a BEGIN that pgweir has answered goes ahead of the bytes.
    begins: bool,
    /// The length of a group that runs again if the server is lost, and what it is: a read, or a BEGIN.
    repeats: Option<(usize, Sent)>,
    received_bytes: u64,
}

impl Pool {
    /// Sends a client's bytes as [`Pool::send_linked`] does, in a pool with a cluster, and records them. In session pooling nothing
    /// is recorded: the client's connection ends with its server.
    pub(crate) fn send_in_cluster<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Step {
        let Some(bytes) = self.up_to_fence(id, server_id, bytes) else { return self.waits_at_server(id) };
        let reads = self.reads_at_standby(id, server_id);
        let bytes = match self.state.policy.on_loss {
            OnLoss::AsksFirst => match self.sendable_len(cx, id, server_id, bytes) {
                Some(len) => &bytes[..len],
                None => return self.waits_at_server(id),
            },
            OnLoss::EndsAtFence if !reads => return self.send_linked(cx, id, server_id, bytes),
            _ => bytes,
        };
        let later = match reads {
            true => self.look_at_later(cx, id, server_id, bytes),
            false => self.look_at_unlisten(cx, id, server_id, bytes),
        };
        let (bytes, then) = match later {
            Later::Pass(len) => (&bytes[..len], None),
            Later::Send(len, then) => (&bytes[..len], Some(then)),
            Later::Done(step) => return step,
        };
        let before = match self.state.policy.on_loss {
            // The transaction began before a reload. After that, the loss of a server ends its client.
            OnLoss::EndsAtFence => None,
            _ => self.before_sending(cx.env, id, server_id, bytes),
        };
        if let Some(before) = before.as_ref().filter(|before| self.asks_ahead(cx.env, id, before, bytes)) {
            debug_assert!(before.is_at_rest);
            self.ask_number(cx, server_id, bytes.first() == Some(&tag::QUERY));
        }
        let step = self.send_linked(cx, id, server_id, bytes);
        if let (Step::Used(used), Some(then)) = (step, then) {
            self.note_later(cx.env, id, (bytes, used), then);
        }
        let used = match (step, &before) {
            // A read at a standby that may still run on the primary is not in flight, unless it begins a transaction.
            (Step::Used(_), Some(before)) if !before.begins && self.is_unshown(id) => None,
            (Step::Used(used), _) => Some(used),
            _ => None,
        };
        if let (Some(before), Some(used)) = (&before, used) {
            let used = &bytes[..used.min(bytes.len())];
            if self.note_sent(cx.env, id, server_id, used, before) == Effect::Writes
                && self.asks_behind(id, server_id, used)
            {
                self.ask_number(cx, server_id, used.first() == Some(&tag::QUERY));
            }
        } else if let Some(before) = before.filter(|before| before.begins) {
            self.note_begin_sent(id, server_id, &before);
        }
        step
    }

    /// Records that only the BEGIN that pgweir had answered was sent. The record of the previous transaction is dropped.
    fn note_begin_sent(&mut self, id: ClientId, server_id: ServerId, before: &Before) {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return;
        };
        let is_sent = link.server == server_id && !link.phase.is_unsent();
        let Some(server) = self.servers.get_mut(server_id).filter(|_| is_sent) else { return };
        let mut in_flight = InFlight::new(id);
        in_flight.is_begun = true;
        if before.is_at_rest {
            in_flight.sent = Sent::Begin;
            in_flight.number = Number::NotNeeded;
            in_flight.received_bytes = before.received_bytes;
        }
        server.in_flight = Some(Box::new(in_flight));
    }

    /// Whether the client's first try was sent, and nothing of its answer was shown.
    fn is_unshown(&self, id: ClientId) -> bool {
        let state = self.clients.get(id).map(|client| &client.state);
        matches!(state, Some(ClientState::Linked(link)) if link.first_try == FirstTry::Unshown)
    }

    /// Whether the number of the client's transaction must be asked before the client's bytes are sent: the bytes commit the
    /// transaction, and the number is not known yet.
    fn asks_ahead(&self, env: &Env, id: ClientId, before: &Before, bytes: &[u8]) -> bool {
        if !self.state.policy.on_loss.asks() || !before.is_at_rest || before.begins {
            return false;
        }
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return false;
        };
        let Some(server) = self.servers.get(link.server) else { return false };
        let lacks = InFlight::of(server, id).is_some_and(|in_flight| in_flight.number == Number::Unknown);
        lacks
            && before.status == TxStatus::InTransaction
            && link.phase.is_plain()
            && self.may_ask_number(server)
            && self.end_at_front(env, id, bytes).is_some_and(|end| end.is(Block::Commit))
    }

    /// Whether the number of the client's transaction must be asked after the bytes that were sent.
    fn asks_behind(&self, id: ClientId, server_id: ServerId, sent: &[u8]) -> bool {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return false;
        };
        let Some(server) = self.servers.get(server_id).filter(|_| link.server == server_id) else {
            return false;
        };
        // Behind a BEGIN that fails, extended messages of ours would run outside of the transaction.
        let is_simple = sent.first() == Some(&tag::QUERY);
        let is_open = matches!(link.phase, LinkPhase::Exchange(Preamble::None | Preamble::Block(_)))
            || is_simple && matches!(link.phase, LinkPhase::Exchange(Preamble::Sent(Ahead::Begin, _)));
        is_open
            && link.streaming == 0
            && server.ledger.is_between_groups()
            && server.tx != TxStatus::Failed
            && self.may_ask_number(server)
    }

    fn before_sending(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
    ) -> Option<Before> {
        let ClientState::Linked(link) = &self.clients.get(id)?.state else { return None };
        let server = self.servers.get(server_id)?;
        if !server.state.is_serving() {
            return None;
        }
        // What pgweir sends ahead of a client's first message says nothing of that.
        let is_at_rest = server.ledger.is_clear_of_clients();
        let status = server.tx;
        let begins = link.phase.is_unsent();
        let is_plain = matches!(
            link.phase,
            LinkPhase::Exchange(Preamble::None | Preamble::Sent(Ahead::Session, Part::Open))
        );
        let may_repeat = is_at_rest && status == TxStatus::Idle && is_plain;
        let (group, is_first_try) = (link.group, link.first_try != FirstTry::None);
        // A client that was moved to another server has no group any more, nor has one whose pool does not multiplex.
        let group = match may_repeat {
            true => group.or_else(|| self.look_at_group(env, id, bytes)).filter(Group::certainly_reads),
            false => None,
        };
        let repeats = match group {
            Some(group) => Some((group.len as usize, Sent::Read)),
            None if may_repeat && !begins => {
                self.begin_alone_at_front(env, id, bytes).map(|len| (len, Sent::BeginAlone))
            }
            None => None,
        };
        let server = self.servers.get_mut(server_id)?;
        if repeats.is_some() && !is_first_try {
            server.attempt.keep_for(KeptFor::LOSS);
        }
        let received_bytes = server.work.received_bytes - server.incoming.inbox.len() as u64;
        Some(Before { is_at_rest, status, begins, repeats, received_bytes })
    }

    /// Records a client's bytes after they were sent to its server, or answered by pgweir. Returns their greatest effect.
    fn note_sent(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        bytes: &[u8],
        before: &Before,
    ) -> Effect {
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return Effect::Reads;
        };
        let is_here = link.server == server_id && !link.phase.is_unsent();
        let is_partial = link.streaming > 0;
        let Some(server) = self.servers.get_mut(server_id).filter(|_| is_here && !bytes.is_empty()) else {
            return Effect::Reads;
        };
        if let Some((_, sent)) = before.repeats.filter(|(len, _)| *len == bytes.len() && !is_partial) {
            let in_flight = server.in_flight.get_or_insert_with(|| Box::new(InFlight::new(id)));
            **in_flight = InFlight::of_repeatable(id, sent, before.received_bytes);
            return Effect::None;
        }
        let known = server.in_flight.take();
        let mut in_flight = known.unwrap_or_else(|| Box::new(InFlight::new(id)));
        let is_idle = before.status == TxStatus::Idle;
        if in_flight.client != id || before.is_at_rest && is_idle {
            *in_flight = InFlight::new(id);
            if before.is_at_rest && is_idle {
                in_flight.number = Number::NotNeeded;
            }
        }
        let is_first = before.is_at_rest;
        if is_first {
            in_flight.received_bytes = before.received_bytes;
            in_flight.block.begin();
        }
        in_flight.is_begun |= before.begins;
        let is_bound = in_flight.is_begun || !is_idle;
        let end = if is_first && is_bound { self.end_at_front(env, id, bytes) } else { None };
        let mut found = Effects::NOTHING;
        let sent = match end {
            _ if is_partial => Sent::Unclear,
            Some(end) if end.len == bytes.len() => Sent::End(end),
            _ => {
                found = self.read_effects(env, id, bytes, &mut in_flight.block);
                found.opens &= !is_bound && is_first;
                in_flight.is_begun |= found.opens && found.executes > 1;
                match found.most {
                    Effect::Commits => Sent::Unclear,
                    Effect::None if is_bound => Sent::Empty,
                    _ if is_bound || in_flight.is_begun => Sent::Inside,
                    _ => Sent::Unclear,
                }
            }
        };
        in_flight.sent = match in_flight.sent {
            _ if is_first => sent,
            Sent::Begin | Sent::Inside | Sent::Empty if matches!(sent, Sent::Inside | Sent::Empty) => {
                Sent::Inside
            }
            _ => Sent::Unclear,
        };
        // Nothing of the transaction that a BEGIN alone opens was sent yet.
        let is_lost = in_flight.sent == Sent::Unclear && !(found.opens && found.most < Effect::Chains);
        in_flight.number.note(is_lost || found.most == Effect::Chains, found.most == Effect::Writes);
        if let Some(server) = self.servers.get_mut(server_id) {
            server.in_flight = Some(in_flight);
        }
        found.most
    }

    /// Reads the effects of a client's messages on the transaction block that they run in or begin.
    fn read_effects(&self, env: &mut Env, id: ClientId, bytes: &[u8], block: &mut BlockProgress) -> Effects {
        let Some(client) = self.clients.get(id) else { return Effects::ALL };
        let reach = self.state.reach_now(env);
        block.read(bytes, &mut env.texts, reach, |name| env.statements.get(client.account.statement(name)?))
    }
}
