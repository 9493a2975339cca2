//! One read for all clients that send the same one. While a server runs a statement whose answer will be kept, a client that could be given
//! this answer waits for it, and takes no server.
//!
//! The client keeps its place in the queue, and those behind it are served meanwhile. It waits once for each request: if it cannot be given
//! the answer (an error, or more bytes than are kept), it begins to wait for a server like any other client, and limits of waiting
//! (`query_wait_timeout`, `max_waiting_clients`, `reserve_pool_timeout`) count from then on.

use slotmap::SlotMap;

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::cache::capture::SentAt;
use crate::pool::cache::{QueryCache, Terms};
use crate::pool::client::state::{Account, Client, ClientState, First, Request, Waiting};
use crate::pool::relay::exchange::group::Group;
use crate::pool::server::state::Server;
use crate::stats::rare_path::RarePath;

/// The wait of a request for the answer to another client's statement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum SameRead {
    /// No such statement was found.
    #[default]
    NotFound,
    /// The client waits while this is so: the server runs the statement, which was sent at this time (monotonic, µs).
    Runs(ServerId, u64),
    /// The client has waited, and was not given the answer.
    Over,
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
        let is_passed_over = self.is_passed_over(id);
        let Some(client) = self.clients.get_mut(id) else { return false };
        let ClientState::Waiting(Waiting { group: Some(group), first: First::Nothing }) = client.state else {
            return false;
        };
        let request = &mut client.account.request;
        match request.same_read {
            SameRead::NotFound => {}
            SameRead::Runs(..) if is_passed_over => return true,
            SameRead::Runs(..) => {
                // It begins to wait for a server.
                let code_age = request.code_age;
                *request = Request { same_read: SameRead::Over, code_age, ..Request::new(cx.env) };
                return false;
            }
            SameRead::Over => return false,
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
        let Some((server, sent_us)) = found else { return false };
        client.account.request.same_read = SameRead::Runs(server, sent_us);
        cx.driver.reached(RarePath::CacheWaitForSame);
        true
    }

    /// Returns the server, and the time of sending (µs), of a statement whose answer this client may be given when it is there.
    fn find_same_read(
        &mut self,
        env: &Env,
        cache: &mut QueryCache,
        id: ClientId,
        (group, bytes): (&Group, &[u8]),
    ) -> Option<(ServerId, u64)> {
        if self.servers.values().all(|server| server.incoming.capture.is_none()) {
            return None;
        }
        let messages = bytes.get(..group.len as usize)?;
        let terms = self.ask_cache(env, cache, id, group, (messages, b"")).ok()?.terms;
        let account = &self.clients.get(id)?.account;
        let mut reads = self.servers.iter().filter_map(|(id, server)| {
            let capture = server.incoming.capture.as_deref()?;
            let is_same = *capture.key == *cache.key && self.may_wait(env, account, capture.sent, terms);
            is_same.then_some((id, capture.sent.at_us))
        });
        reads.find(|&(server, sent_us)| runs(&self.clients, &self.servers, server, sent_us))
    }

    /// Whether the answer to a statement that was sent then is one that the client may be given, by the rules for answers that are kept
    /// (`known_answers.rs`).
    fn may_wait(&self, env: &Env, account: &Account, sent: SentAt, terms: Terms) -> bool {
        let age_us = env.now.mono_us.saturating_sub(sent.at_us);
        // All that the client has changed was answered before its request.
        let came_first = account.request.since_us < sent.at_us;
        let sees_own = came_first || account.wrote_us < sent.at_us;
        // A client that has begun to wait gets no answer that must be confirmed (`follow=wal`): only one that its own statement could have had.
        let is_young = terms.behind_us.is_none() && age_us < terms.ttl_us;
        sent.at_us > self.state.cache.floor_us && sent.is_current(env) && sees_own && (came_first || is_young)
    }

    /// Whether the client waits for the answer to another client's statement, and needs no server meanwhile.
    pub(crate) fn is_passed_over(&self, id: ClientId) -> bool {
        match self.clients.get(id).map(|client| client.account.request.same_read) {
            Some(SameRead::Runs(server, sent_us)) => runs(&self.clients, &self.servers, server, sent_us),
            _ => false,
        }
    }
}

/// Whether the server still runs the statement that was sent then, and its answer will be kept, as far as is known. It will not if the client
/// that it belongs to reads it too slowly.
fn runs(
    clients: &SlotMap<ClientId, Client>,
    servers: &SlotMap<ServerId, Server>,
    id: ServerId,
    sent_us: u64,
) -> bool {
    let Some(server) = servers.get(id) else { return false };
    let Some(capture) = server.incoming.capture.as_deref().filter(|capture| capture.sent.at_us == sent_us)
    else {
        return false;
    };
    let is_owned = match clients.get(capture.client).map(|client| &client.state) {
        Some(ClientState::Linked(link)) => link.server == id,
        Some(ClientState::QueuedBehind(behind)) => behind.server == id,
        _ => false,
    };
    is_owned && server.incoming.paused_us.is_none()
}
