//! Causal reads: a client that reads from a standby sees what it has committed, and nothing older than what it has seen.
//!
//! What a client must see is found when it asks for a node, from the node that served it last: behind the primary that is the primary's
//! position, asked for after the client's last answer; at a standby it is what that standby has shown, as long as it runs. So nothing is
//! done when a transaction ends, and a client that never reads from a standby costs nothing.
//!
//! A client for which no standby is known to be far enough waits at [`Branch::ASKING`], until an answer says that one is
//! (`questions.rs`), or the primary takes its statement (`causal_wait_ms`).

pub(crate) mod guards;
pub(crate) mod must_see;
pub(crate) mod questions;

use pgweir_settings::{CausalReads, Route};

use crate::cluster::choice::{self, Candidate};
use crate::cluster::replayed::Seen;
use crate::cluster::token::{Beyond, Position, ReadAfter, Token};
use crate::context::Env;
use crate::pool::client::state::{Account, Client, ClientState};
use crate::pool::cluster::causal::must_see::MustSee;
use crate::pool::cluster::route::Wish;
use crate::pool::cluster::standbys::StandbyPool;
use crate::pool::{Branch, PoolState};

/// How a standby relates to what a client must see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    /// The standby shows what the client must see.
    Shown,
    /// The standby is not known to have replayed this position.
    NotYet(Position),
    /// The position that the client must see is not known yet: the primary is asked for its position.
    NoPosition,
    /// The history that contains what the client must see is not known: the standby that showed it was promoted.
    NoHistory(Beyond),
    /// The standby is asked how far it is, and with that whether it is still in the run that the client knows.
    Unproven,
    /// The client's `pgweir.read_after` is no position of this cluster.
    Refused,
}

impl StandbyPool {
    /// Whether the standby is known to have replayed a position on its timeline.
    fn shows(&self, position: Position) -> bool {
        let timeline = self.standby.as_ref().map(|standby| standby.target.term.run.timeline);
        timeline == Some(position.timeline) && self.replayed.lsn().is_some_and(|lsn| lsn >= position.lsn)
    }
}

impl PoolState {
    /// A token that asks for the primary's position as it is from now on.
    fn next_token(&self) -> Token {
        self.cluster.as_deref().map_or(Token::Nothing, |cluster| cluster.asks.next())
    }

    /// The primary's timeline.
    fn timeline(&self) -> Option<u32> {
        self.cluster.as_deref()?.view.primary.as_ref().map(|primary| primary.term.run.timeline)
    }

    /// Returns what a client taken over from another process must see, which was served at this node last. `None` without a cluster.
    pub(crate) fn must_see_taken_over(&self, branch: Branch, now_us: u64) -> Option<Box<MustSee>> {
        let cluster = self.cluster.as_deref()?;
        Some(Box::new(MustSee { token: cluster.asks.next(), ..MustSee::at(branch, now_us) }))
    }

    /// Whether a standby shows what a client must see.
    fn look(&self, env: &Env, must_see: &mut MustSee, branch: Branch) -> Look {
        let (Some(cluster), Some(standby)) = (self.cluster.as_deref(), self.standby_at(branch)) else {
            return Look::NoPosition;
        };
        let mut is_unproven = false;
        if let Some((home, since_us)) = must_see.seen {
            match standby.replayed.seen_since(since_us) {
                Seen::Here if home == branch => {}
                Seen::Unproven if home == branch => is_unproven = true,
                // The primary has all that a standby has shown.
                _ => *must_see = MustSee { token: cluster.asks.next(), seen: None, ..*must_see },
            }
        }
        let primary = self.timeline();
        let present = |token: Token| match cluster.asks.resolve(token) {
            // What of that has survived a promotion, the new primary has.
            Token::At(position) if primary.is_some_and(|primary| primary > position.timeline) => {
                cluster.asks.next()
            }
            beyond @ Token::Beyond(_) if !beyond.is_beyond(primary, env.now.mono_us) => cluster.asks.next(),
            token => token,
        };
        (must_see.token, must_see.after) = (present(must_see.token), present(must_see.after));
        if matches!(must_see.token, Token::At(position) if cluster.asks.may_be_lost(position)) {
            must_see.token = cluster.asks.next();
        }
        if let Token::At(position) = must_see.after
            && cluster.asks.is_far_ahead(position) == Some(true)
        {
            must_see.after = Token::Refused;
        }
        for token in [must_see.after, must_see.token] {
            match token {
                Token::Refused => return Look::Refused,
                Token::Asked(_) => return Look::NoPosition,
                Token::Beyond(beyond) => return Look::NoHistory(beyond),
                Token::At(position) if !standby.shows(position) => return Look::NotYet(position),
                Token::At(_) | Token::Nothing => {}
            }
        }
        if is_unproven { Look::Unproven } else { Look::Shown }
    }

    /// Whether a position is too far ahead to be one of this cluster; `None` if the primary has not told its position yet.
    fn is_far_ahead(&self, position: Position) -> Option<bool> {
        self.cluster.as_deref()?.asks.is_far_ahead(position)
    }

    /// The standby that is next among those that are known to show a position.
    fn next_that_shows(&self, env: &Env, position: Position) -> Option<Branch> {
        let candidate = |standby: &StandbyPool| {
            let candidate = standby.candidate(env);
            if standby.shows(position) { candidate } else { Candidate { share: 0, ..candidate } }
        };
        choice::next(self.standbys.iter().map(candidate)).map(|(place, _)| Branch::of_place(place))
    }

    /// Notes that the node that a client was sent to last has served it, because the client asks for a node again. `is_first`: it is
    /// the client's first request.
    pub(super) fn note_served(&self, env: &Env, account: &mut Account, wish: Wish, is_first: bool) {
        if wish.causal == CausalReads::Off {
            account.must_see = None;
            return;
        }
        let may_read = wish.route != Route::Primary;
        let must_see = match &mut account.must_see {
            Some(must_see) => must_see,
            // Where it was served does not stand anywhere.
            None if may_read && !is_first => {
                account.must_see.insert(Box::new(MustSee { token: self.next_token(), ..MustSee::default() }))
            }
            None if wish.causal == CausalReads::Database && may_read => {
                account.must_see.insert(Box::default())
            }
            None => return,
        };
        let placed = must_see.placed.take();
        if let Some(beyond) = placed.and_then(|placed| self.beyond(env, placed)) {
            (must_see.token, must_see.seen) = (beyond, None);
        }
        if must_see.token.is_beyond(self.timeline(), env.now.mono_us) {
            return;
        }
        match placed {
            Some((branch, _)) if branch.is_primary() => {
                (must_see.token, must_see.seen) = (self.next_token(), None);
            }
            Some(placed) if wish.keeps => (must_see.token, must_see.seen) = (Token::Nothing, Some(placed)),
            Some(_) => {}
            None => {}
        }
        if wish.causal == CausalReads::Database && may_read {
            (must_see.token, must_see.seen) = (self.next_token(), None);
        }
    }

    /// Notes the position that the client's session or text demands (`pgweir.read_after`), after [`PoolState::note_served`].
    pub(super) fn note_read_after(&self, account: &mut Account, after: Option<ReadAfter>) {
        match (&mut account.must_see, after) {
            (must_see, Some(after)) => {
                must_see.get_or_insert_default().after = after.token(self.timeline());
            }
            (Some(must_see), None) => must_see.after = Token::Nothing,
            (None, None) => {}
        }
    }

    /// Returns the branch for a client whose route has led to this node: a standby only if it shows what the client must see.
    /// `since_us` is the time at which the client began to ask (monotonic, µs).
    pub(super) fn place_where_shown(
        &mut self,
        env: &Env,
        client: &mut Client,
        (wish, chosen): (Wish, Branch),
        since_us: u64,
    ) -> Branch {
        let must_see = client.account.must_see.as_deref();
        if wish.causal == CausalReads::Off && !must_see.is_some_and(MustSee::says_after) {
            return chosen;
        }
        let to =
            if chosen.is_standby() { self.showing(env, client, (wish, chosen), since_us) } else { chosen };
        let placed = (to.is_primary() || to.is_standby()).then_some((to, env.now.mono_us));
        match &mut client.account.must_see {
            Some(must_see) => must_see.placed = placed,
            None if to.is_standby() => {
                client.account.must_see = Some(Box::new(MustSee::at(to, env.now.mono_us)));
            }
            None => {}
        }
        to
    }

    fn showing(
        &mut self,
        env: &Env,
        client: &mut Client,
        (wish, chosen): (Wish, Branch),
        since_us: u64,
    ) -> Branch {
        let waits_at_primary = client.waits_at_primary();
        let Some(must_see) = client.account.must_see.as_deref_mut() else { return chosen };
        let look = self.look(env, must_see, chosen);
        let after = must_see.after;
        let mut wakes_us = u64::MAX;
        match look {
            Look::Shown => return chosen,
            Look::NoPosition => self.want_position(),
            Look::Unproven => self.want_replayed(chosen),
            Look::Refused => return self.refused_branch(client),
            Look::NoHistory(beyond) => wakes_us = beyond.until_us,
            Look::NotYet(position) => match self.next_that_shows(env, position) {
                Some(other) => return other,
                None => {
                    // Whether it is a position of this cluster at all, the primary's tells.
                    if after == Token::At(position) && self.is_far_ahead(position).is_none() {
                        self.want_position();
                    }
                    self.want_all_replayed(chosen);
                }
            },
        }
        let due_us = since_us.saturating_add(wish.wait_us);
        if wish.route != Route::Standby && due_us <= env.now.mono_us {
            if !waits_at_primary {
                self.count_behind();
            }
            return Branch::PRIMARY;
        }
        if wish.route != Route::Standby {
            wakes_us = wakes_us.min(due_us);
        }
        if let Some(cluster) = self.cluster.as_deref_mut() {
            cluster.asking_due_us = cluster.asking_due_us.min(wakes_us);
        }
        Branch::ASKING
    }

    /// Returns the branch for a client whose `pgweir.read_after` is no position of this cluster: it gets the error at its turn. After
    /// a BEGIN that pgweir has answered the client goes to the primary instead.
    fn refused_branch(&mut self, client: &Client) -> Branch {
        let is_begun = match &client.state {
            ClientState::Waiting(waiting) => !waiting.first.is_nothing(),
            ClientState::DeferredBegin(_) => true,
            _ => false,
        };
        let Some(cluster) = self.cluster.as_deref_mut().filter(|_| !is_begun) else {
            return Branch::PRIMARY;
        };
        cluster.refuses_positions = true;
        Branch::ASKING
    }
}
