//! What a client must see, as it is kept with the client.

use crate::cluster::token::{Beyond, Token};
use crate::context::Env;
use crate::ids::ClientId;
use crate::pool::client::state::{Client, ClientState};
use crate::pool::{Branch, Pool, PoolState};

/// The changes that a client must see in its reads, and the node that served it last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct MustSee {
    pub(super) token: Token,
    /// The position that the client's session or text demands (`pgweir.read_after`).
    pub(super) after: Token,
    /// A standby that has served the client, and a time before that (monotonic, µs). The client must see at least what that standby
    /// showed.
    pub(super) seen: Option<(Branch, u64)>,
    /// The node that was chosen last, and a time before anything was sent to it (monotonic, µs). That node counts as having served
    /// the client when the client makes its next request.
    pub(super) placed: Option<(Branch, u64)>,
}

impl MustSee {
    /// The record of a client that has got a server of this node at `now_us`.
    pub(super) fn at(branch: Branch, now_us: u64) -> MustSee {
        MustSee { placed: Some((branch, now_us)), ..MustSee::default() }
    }

    /// Whether the client's session or text demands a position.
    pub(super) fn says_after(&self) -> bool {
        self.after != Token::Nothing
    }

    /// Whether the demanded position is none of this cluster.
    pub(super) fn is_refused(&self) -> bool {
        self.after == Token::Refused
    }

    /// Notes that the client's bytes go to the primary at `now_us`, after a standby has not run them.
    pub(crate) fn is_sent_to_primary(&mut self, now_us: u64) {
        self.placed = Some((Branch::PRIMARY, now_us));
    }
}

impl Client {
    /// Whether the client already waits for a server of the primary.
    pub(super) fn waits_at_primary(&self) -> bool {
        self.waits_since_us().is_some() && self.account.branch.is_primary()
    }

    /// Returns the time since which the client has waited with a statement (monotonic, µs). `None` if it does not wait.
    pub(in crate::pool::cluster) fn waits_since_us(&self) -> Option<u64> {
        matches!(self.state, ClientState::Waiting(_)).then_some(self.account.request.since_us)
    }
}

impl Pool {
    /// Notes that a client was linked to a server of a standby. If nothing was sent for the client before, the standby serves it from
    /// this time on.
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

/// The last time that a server of a standby reported that its node is no standby any more.
#[derive(Clone, Copy, Default, Debug)]
pub(in crate::pool::cluster) struct Left {
    /// The time of the report, in `Replayed`'s clock (µs); 0 if there was none.
    pub(in crate::pool::cluster) at_us: u64,
    /// The timeline that the node had as a standby.
    pub(in crate::pool::cluster) timeline: u32,
}

impl PoolState {
    /// Returns what a client must see whose request was sent to a standby at `sent_us`, if the node was promoted since. `None` if the
    /// node was still a standby after it had answered.
    pub(super) fn beyond(&self, env: &Env, (branch, sent_us): (Branch, u64)) -> Option<Token> {
        let Left { at_us, timeline } = self.standby_at(branch)?.left;
        let cluster = self.cluster.as_deref().filter(|_| at_us >= sent_us)?;
        let options = env.rules.config.clusters.get(&*cluster.view.cluster)?;
        let wait_us = u64::from(options.primary_max_age_ms) * 1000;
        Some(Token::Beyond(Beyond { timeline, until_us: at_us.saturating_add(wait_us) }))
    }
}
