//! CancelRequest: which client a key belongs to, here, on another worker or in another process.

use crate::context::{Cx, Env, KeyOwner};
use crate::driver::{CloseMode, Driver, WorkerId};
use crate::ids::UnpooledId;
use crate::mail::{Mail, Shutdown};
use crate::pool::Step;
use crate::pool::cancel::Requester;
use crate::pool::cancel_key::{head_of, own_form};
use crate::worker::Worker;
use crate::worker::unpooled::UnpooledState;

impl Worker {
    /// Handles a CancelRequest, which was a client's first packet.
    pub(crate) fn cancel_request<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        pid: u32,
        secret: &[u8],
    ) -> Step {
        cx.env.counters.cancel_requests += 1;
        let key: Vec<u8> = pid.to_be_bytes().iter().chain(secret).copied().collect();
        if let Some(owner) = self.shown_by(cx.env, &key) {
            self.await_cancels(id, 1);
            self.cancel_for(cx, Requester::Here(id), owner);
            return if self.unpooled.contains_key(id) { Step::Used(0) } else { Step::Gone };
        }
        if let Some(step) = self.forward_cancel(cx, id, &key) {
            return step;
        }
        cx.driver.pass_back(&key);
        let mut asked = 0;
        for worker in self.other_workers(cx.env) {
            asked += 1;
            let from = Some((cx.env.worker, id));
            cx.driver.mail(worker, Mail::Cancel { key: key.clone(), from });
        }
        if asked == 0 {
            self.remove_unpooled(cx, id, "failed cancel request", CloseMode::Flush);
            return Step::Gone;
        }
        self.await_cancels(id, asked);
        Step::Used(0)
    }

    /// Keeps the connection of a cancel request until so many workers have said that the request is over.
    fn await_cancels(&mut self, id: UnpooledId, workers: u32) {
        if let Some(client) = self.unpooled.get_mut(id) {
            client.state = UnpooledState::Cancelling(workers);
        }
    }

    /// Handles the end of a cancel request at one of the workers that were asked. The connection is closed when all have answered.
    pub(crate) fn cancel_over<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, reason: &str) {
        let Some(client) = self.unpooled.get_mut(id) else { return };
        let UnpooledState::Cancelling(workers) = &mut client.state else { return };
        *workers = workers.saturating_sub(1);
        if *workers == 0 {
            self.remove_unpooled(cx, id, reason, CloseMode::Flush);
        }
    }

    /// Tells the connection that a cancel request came by that the request is over.
    pub(crate) fn end_requester<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        requester: Requester,
        reason: &str,
    ) {
        match requester {
            Requester::Here(id) => self.cancel_over(cx, id, reason),
            Requester::At(worker, requester) => cx.driver.mail(worker, Mail::CancelOver { requester }),
            Requester::Absent => {}
        }
    }

    /// Returns the client that this key belongs to; `None` if it is not a client of this worker.
    fn shown_by(&self, env: &Env, key: &[u8]) -> Option<KeyOwner> {
        let among_peers = env.rules.config.main.peer_id != 0;
        let key: &[u8] = if among_peers { &own_form(key)? } else { key };
        let &owner = env.cancel_keys.get(&head_of(key)?)?;
        let own = match owner {
            KeyOwner::Client(pool, id) => &self.pools.get(pool)?.clients.get(id)?.account.cancel_key,
            KeyOwner::Console(id) => &self.unpooled.get(id)?.console()?.cancel_key,
        };
        own.is_shown_by(key).then_some(owner)
    }

    /// Handles a cancel request that another worker received.
    pub(crate) fn cancel_by_mail<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        key: &[u8],
        from: Option<(WorkerId, UnpooledId)>,
    ) {
        let requester = from.map_or(Requester::Absent, |(worker, id)| Requester::At(worker, id));
        if let Some(owner) = self.shown_by(cx.env, key) {
            return self.cancel_for(cx, requester, owner);
        }
        self.end_requester(cx, requester, "failed cancel request");
        if self.awaits_arrivals && cx.env.stopping == Some(Shutdown::HandOver) && cx.env.worker.0 == 0 {
            // The next process asks; the one before this may have the client.
            cx.driver.pass_back(key);
        }
    }

    fn cancel_for<D: Driver>(&mut self, cx: &mut Cx<'_, D>, requester: Requester, owner: KeyOwner) {
        match owner {
            KeyOwner::Client(pool, target) => {
                self.in_pool(cx, pool, |pool, cx| pool.cancel_target(cx, requester, target));
            }
            KeyOwner::Console(console) => {
                self.cancel_console(cx, console);
                self.end_requester(cx, requester, "successfully sent cancel request");
            }
        }
    }
}
