//! What a client must see, as it is kept with the client.

use crate::cluster::token::Token;
use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::{Branch, Pool};

/// What a client must see, and where it was shown something.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct MustSee {
    pub(super) token: Token,
    /// The same, as its session or the text that it sent says (`pgweir.read_after`).
    pub(super) after: Token,
    /// A standby that has served it, and a time before that (monotonic, µs): what it showed must be seen as well.
    pub(super) seen: Option<(Branch, u64)>,
    /// The node that was chosen last, and a time before anything was sent to it: it has served the client by its next request.
    pub(super) placed: Option<(Branch, u64)>,
}

impl MustSee {
    /// It has a server of this node now.
    pub(super) fn at(branch: Branch, now_us: u64) -> MustSee {
        MustSee { placed: Some((branch, now_us)), ..MustSee::default() }
    }

    /// Its session or its text says what it must see.
    pub(super) fn says_after(&self) -> bool {
        self.after != Token::Nothing
    }

    /// That is no position of this cluster.
    pub(super) fn is_refused(&self) -> bool {
        self.after == Token::Refused
    }

    /// What was sent to a standby is sent to the primary.
    pub(crate) fn is_sent_to_primary(&mut self, now_us: u64) {
        self.placed = Some((Branch::PRIMARY, now_us));
    }
}

impl Client {
    /// It waits for the primary already.
    pub(super) fn waits_at_primary(&self) -> bool {
        self.waits_since_us().is_some() && self.account.branch.is_primary()
    }

    /// Since when it waits with a statement (monotonic, µs).
    pub(in crate::pool::cluster) fn waits_since_us(&self) -> Option<u64> {
        matches!(self.state, ClientState::Waiting(_)).then_some(self.account.request.since_us)
    }
}

impl Pool {
    /// A client has a server of a standby now. If nothing was sent for it before, it is served from now on.
    pub(crate) fn begins_to_see(&mut self, env: &Env, id: ClientId) {
        let Some(Client { state: ClientState::Linked(link), account, .. }) = self.clients.get_mut(id) else {
            return;
        };
        if self.servers.get(link.server).is_some_and(|server| server.attempt.holds_later()) {
            return;
        }
        if let Some(MustSee { placed: Some((branch, sent_us)), .. }) = account.must_see.as_deref_mut()
            && let Some(standby) = self.state.standby_at(*branch)
        {
            *sent_us = standby.replayed.asks_at(env.now.mono_us);
        }
    }
}
