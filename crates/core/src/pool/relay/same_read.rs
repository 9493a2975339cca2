//! One read for all clients that wait with the same one: while a server runs a statement whose answer will be kept, a client that could be
//! given this answer waits for it, and takes no server.
//!
//! The client keeps its place in the queue, and those behind it are served meanwhile. It waits once for each request: if it cannot be given
//! the answer (an error, or more bytes than are kept), the client gets a server as if nobody had asked before.

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::cache::QueryCache;
use crate::pool::cache::capture::SentAt;
use crate::pool::client::state::{Account, ClientState, First, Waiting};
use crate::pool::relay::exchange::group::Group;
use crate::stats::rare_path::RarePath;

/// The statement for whose answer a client waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SameRead {
    /// The server that runs the statement.
    server: ServerId,
    /// The time at which the statement was sent (monotonic, µs).
    sent_us: u64,
}

impl Pool {
    /// Whether the client, which waits for a server, is to wait for the answer to the same statement of another client. `bytes` are those that
    /// the client has sent; `None` if they are in its inbox.
    pub(crate) fn waits_for_same_read<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        bytes: Option<&[u8]>,
    ) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        let ClientState::Waiting(Waiting { group: Some(group), first: First::Nothing }) = client.state else {
            return false;
        };
        if let Some(same_read) = client.account.request.same_read {
            return self.runs(same_read);
        }
        if !client.account.branch.is_primary() || !self.state.may_answer_known(cx.env) {
            return false;
        }
        let Some(mut cache) = cx.env.cache.take() else { return false };
        let inbox = if bytes.is_none() { std::mem::take(&mut client.inbox) } else { Vec::new() };
        let found = self.find_same_read(cx.env, &mut cache, id, (&group, bytes.unwrap_or(&inbox)));
        cx.env.cache = Some(cache);
        let Some(client) = self.clients.get_mut(id) else { return false };
        if bytes.is_none() {
            client.inbox = inbox;
        }
        client.account.request.same_read = found;
        if found.is_some() {
            cx.driver.reached(RarePath::CacheWaitForSame);
        }
        found.is_some()
    }

    /// Returns the statement of another client whose answer this client may be given when it is there.
    fn find_same_read(
        &mut self,
        env: &Env,
        cache: &mut QueryCache,
        id: ClientId,
        (group, bytes): (&Group, &[u8]),
    ) -> Option<SameRead> {
        if self.servers.values().all(|server| server.incoming.capture.is_none()) {
            return None;
        }
        let messages = bytes.get(..group.len as usize)?;
        let (ttl_us, _) = self.ask_cache(env, cache, id, group, (messages, b"")).ok()?;
        let account = &self.clients.get(id)?.account;
        let mut reads = self.servers.iter().filter_map(|(id, server)| {
            let capture = server.incoming.capture.as_deref()?;
            let is_same = *capture.key == *cache.key && self.may_wait(env, account, capture.sent, ttl_us);
            is_same.then_some(SameRead { server: id, sent_us: capture.sent.at_us })
        });
        reads.find(|read| self.runs(*read))
    }

    /// Whether the answer to a statement that was sent then is one that the client may be given, by the rules for answers that are kept
    /// (`known_answers.rs`).
    fn may_wait(&self, env: &Env, account: &Account, sent: SentAt, ttl_us: u64) -> bool {
        let age_us = env.now.mono_us.saturating_sub(sent.at_us);
        // All that the client has changed was answered before its request.
        let came_first = account.request.since_us < sent.at_us;
        let sees_own = came_first || account.wrote_us < sent.at_us;
        sent.at_us > self.state.cache.floor_us
            && sent.is_current(env)
            && sees_own
            && (came_first || age_us < ttl_us)
    }

    /// Whether the statement is still run for its client, and its answer will be kept, as far as is known. It is not if the client reads its
    /// answer too slowly.
    fn runs(&self, read: SameRead) -> bool {
        let Some(server) = self.servers.get(read.server) else { return false };
        let Some(capture) =
            server.incoming.capture.as_deref().filter(|capture| capture.sent.at_us == read.sent_us)
        else {
            return false;
        };
        let owner = self.clients.get(capture.client).map(|client| &client.state);
        let is_owned = match owner {
            Some(ClientState::Linked(link)) => link.server == read.server,
            Some(ClientState::QueuedBehind(behind)) => behind.server == read.server,
            _ => false,
        };
        is_owned && server.incoming.paused_us.is_none()
    }

    /// Whether the client goes on waiting for the answer to another client's statement.
    pub(crate) fn goes_on_waiting(&self, id: ClientId) -> bool {
        let same_read = self.clients.get(id).and_then(|client| client.account.request.same_read);
        same_read.is_some_and(|read| self.runs(read))
    }
}
