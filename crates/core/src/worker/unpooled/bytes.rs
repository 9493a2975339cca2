//! The loop that takes the bytes of a client without a pool through its states.

use crate::context::Cx;
use crate::driver::Driver;
use crate::ids::UnpooledId;
use crate::pool::Step;
use crate::worker::Worker;
use crate::worker::unpooled::UnpooledState;

impl Worker {
    /// Handles bytes of a client that is in no pool.
    pub(crate) fn unpooled_received<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId, bytes: &[u8]) {
        let Some(client) = self.unpooled.get_mut(id) else { return };
        if client.inbox.is_empty() {
            let used = self.unpooled_consume(cx, id, bytes);
            self.unpooled_keep(cx, id, None, bytes, used);
        } else {
            let mut inbox = std::mem::take(&mut client.inbox);
            inbox.extend_from_slice(bytes);
            let used = self.unpooled_consume(cx, id, &inbox);
            self.unpooled_keep(cx, id, Some(inbox), &[], used);
        }
    }

    /// Handles bytes that a client sent earlier, because its state has changed or because it has read what was sent to it.
    pub(crate) fn unpooled_resume<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: UnpooledId) {
        let Some(client) = self.unpooled.get_mut(id) else { return };
        if client.inbox.is_empty() {
            self.go_to_pool(cx, id);
        } else {
            let inbox = std::mem::take(&mut client.inbox);
            let used = self.unpooled_consume(cx, id, &inbox);
            self.unpooled_keep(cx, id, Some(inbox), &[], used);
        }
        self.unpause_unpooled(cx, id);
    }

    /// Keeps the bytes that were not used, and stops reading from a client that has too much waiting here.
    pub(crate) fn unpooled_keep<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        held: Option<Vec<u8>>,
        bytes: &[u8],
        used: usize,
    ) {
        let Some(client) = self.unpooled.get_mut(id) else {
            if let Some(buffer) = held {
                cx.env.buffers.give_back(buffer);
            }
            return;
        };
        debug_assert!(client.inbox.is_empty(), "bytes were kept while others were being looked at");
        client.inbox = cx.env.buffers.remainder(held, bytes, used);
        let too_much_waits = client.inbox.len() > cx.env.limits.inbox_bytes && client.is_stalled();
        // A client that sends requests without reading the answers is not read further.
        if too_much_waits || cx.driver.backlog(client.conn) > cx.env.limits.backlog_bytes {
            self.pause_unpooled(cx, id);
        }
        self.go_to_pool(cx, id);
    }

    /// Takes bytes through the client's states until they are used up or must wait; returns the number of bytes used.
    pub(crate) fn unpooled_consume<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: UnpooledId,
        bytes: &[u8],
    ) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let Some(client) = self.unpooled.get(id) else { return bytes.len() };
            let rest = &bytes[at..];
            let step = match &client.state {
                UnpooledState::Greeting(_) => self.greet(cx, id, rest),
                UnpooledState::Authenticating(_) => self.authenticate(cx, id, rest),
                UnpooledState::AwaitingAnswer(_) | UnpooledState::Proven(_) | UnpooledState::Refused(_) => {
                    Step::Wait
                }
                // Nothing more is expected; nothing more is kept.
                UnpooledState::Cancelling(_) => Step::Used(rest.len()),
                UnpooledState::Console(_) => self.console_sent(cx, id, rest),
            };
            match step {
                Step::Used(used) => at += used,
                Step::Wait => break,
                Step::Gone => return bytes.len(),
            }
        }
        at
    }
}
