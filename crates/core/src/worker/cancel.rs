//! CancelRequest: which client a key belongs to, here, on another worker or in another process.

use crate::context::{Cx, Env, KeyOwner};
use crate::driver::{CloseMode, Driver};
use crate::ids::UnpooledId;
use crate::mail::{Mail, Shutdown};
use crate::pool::Step;
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
            if let Some(client) = self.unpooled.get_mut(id) {
                client.state = UnpooledState::Cancelling;
            }
            self.cancel_for(cx, Some(id), owner);
            return if self.unpooled.contains_key(id) { Step::Used(0) } else { Step::Gone };
        }
        if let Some(step) = self.forward_cancel(cx, id, &key) {
            return step;
        }
        cx.driver.pass_back(&key);
        let mut asked = false;
        for worker in self.other_workers(cx.env) {
            asked = true;
            cx.driver.mail(worker, Mail::Cancel { key: key.clone() });
        }
        let reason = if asked { "cancel request passed on" } else { "failed cancel request" };
        self.remove_unpooled(cx, id, reason, CloseMode::Flush);
        Step::Gone
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
    pub(crate) fn cancel_by_mail<D: Driver>(&mut self, cx: &mut Cx<'_, D>, key: &[u8]) {
        if let Some(owner) = self.shown_by(cx.env, key) {
            self.cancel_for(cx, None, owner);
        } else if self.awaits_arrivals && cx.env.stopping == Some(Shutdown::HandOver) && cx.env.worker.0 == 0
        {
            // The next process asks; the one before this may have the client.
            cx.driver.pass_back(key);
        }
    }

    fn cancel_for<D: Driver>(&mut self, cx: &mut Cx<'_, D>, requester: Option<UnpooledId>, owner: KeyOwner) {
        match owner {
            KeyOwner::Client(pool, target) => {
                self.in_pool(cx, pool, |pool, cx| pool.cancel_target(cx, requester, target));
            }
            KeyOwner::Console(console) => {
                self.cancel_console(cx, console);
                if let Some(id) = requester {
                    let reason = "successfully sent cancel request";
                    self.remove_unpooled(cx, id, reason, CloseMode::Flush);
                }
            }
        }
    }
}
