//! Answers that need no server: the places at which messages meet the query cache (`pool/cache`). pgweir looks a group up before it asks for
//! a server. If the group needs one, pgweir copies the answer as it passes, and keeps it ([`keeping`]).
//!
//! A worker without a cache pays one branch at each of these places. In doubt the group goes to a server.
//!
//! A client may get an answer that the primary gave to the same messages, in the same pool, to a session with the same settings. The statement
//! must have been sent less than the rule's time ago, after the client's own last change was answered, and after the last change of objects,
//! rights and roles through pgweir. A client that waits for a server may also get an answer whose statement was sent after the client began to
//! wait, whatever the rule's time: it is one that the client's own statement could have had (`query_cache=coalesce`).
//!
//! With `follow=wal` an answer is given until one of its tables has changed (`pool/cache/wal`). Then the client's own changes, and what it has seen,
//! are compared by the number of a probe.

mod comparing;
pub(crate) mod keeping;
mod own_changes;
pub(crate) mod same_read;

use std::sync::Arc;

use pgweir_settings::QueryCache as Switch;
use pgweir_sql::begin_modes;
use pgweir_wire::backend::TxStatus;

use crate::context::{Cx, Effect, Env};
use crate::driver::Driver;
use crate::ids::ClientId;
use crate::limits::PROBE_WAIT_US_MAX;
use crate::pool::cache::key::{Asked, asked, write_key};
use crate::pool::cache::store::Kept;
use crate::pool::cache::wal::Stale;
use crate::pool::cache::{ProbeWait, QueryCache, SEEING, SEEN_ELSEWHERE, Terms, WRITING, hinted_age_us};
use crate::pool::client::isolation::is_read_committed;
use crate::pool::client::state::{Account, ClientState, First, Waiting};
use crate::pool::relay::exchange::group::Group;
use crate::pool::relay::known_answers::keeping::kept_until;
use crate::pool::relay::known_answers::own_changes::settle_own_changes;
use crate::pool::{Pool, Step};
use crate::stats::obstacle::Obstacle;
use crate::stats::rare_path::RarePath;

/// The result of looking a group up in the cache.
enum Lookup {
    /// No rule matches the group, or the cache must not be used now.
    NotAsked,
    /// A rule matches, and there is no answer that the client may get: why not the one that is kept, or `None` if none is.
    Miss(Option<Unfresh>),
    /// The client was sent an answer.
    Hit,
    /// There is an answer that the client may get. A server is asked for it, too, and both are compared.
    Compared,
    /// There is an answer, but the client must first read what it was sent before.
    Later,
}

/// The reason why a client is not given an answer that is kept.
enum Unfresh {
    /// The answer has reached the age of its rule.
    Expired,
    /// The client has changed something since the statement was sent.
    OwnChange,
    /// Definitions, rights or the primary may have changed since the statement was sent.
    Redefined,
    /// A table of the answer has changed.
    Changed,
    /// The row that the answer depends on has changed.
    RowChanged,
    /// Whether a table of the answer has changed lately is not known yet. The client may wait for that.
    Unconfirmed,
    /// The client was not told in time that no table had changed.
    NotFresh,
}

/// The reason why a client may be given an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Basis {
    /// The answer is younger than its rule says: its age (µs).
    Aged(u64),
    /// The answer's statement was sent after the client had begun to wait for a server.
    CameFirst,
    /// The answer's tables have not changed.
    Followed,
}

/// The times by which an answer is judged (monotonic, µs).
struct Times {
    now_us: u64,
    /// The time since which a client in the queue waits; `None` if the client does not wait yet.
    waits_since_us: Option<u64>,
    /// The time up to which all answers of the pool were dropped.
    floor_us: u64,
}

/// A statement that the cache is asked for.
pub(super) struct Question<'a> {
    pub(super) terms: Terms,
    text: &'a [u8],
    /// The types of its parameters, four bytes each.
    types: &'a [u8],
}

/// Returns the part of a BEGIN that is part of keys: all of it if it names modes.
fn modes_of(begin: Option<&[u8]>) -> &[u8] {
    begin.filter(|begin| begin_modes(begin).is_none_or(|modes| modes.names_modes)).unwrap_or_default()
}

/// Returns why an answer that is kept may be given to the client, or why not.
fn judge(
    env: &mut Env,
    database: &Arc<str>,
    account: &mut Account,
    kept: &Kept,
    terms: Terms,
    times: &Times,
) -> Result<Basis, Option<Unfresh>> {
    let sent_us = kept.sent.at_us;
    if sent_us <= times.floor_us || !kept.sent.is_current(env) {
        return Err(Some(Unfresh::Redefined));
    }
    let age_us = times.now_us.saturating_sub(sent_us);
    let came_first = times.waits_since_us.is_some_and(|since_us| since_us < sent_us);
    let behind_us = terms.behind_us.filter(|_| !came_first);
    // The stream tells of rows that the client has changed.
    let must_show_us = if behind_us.is_none() { account.wrote_us } else { account.redefined_us };
    if sent_us <= must_show_us {
        return Err(Some(Unfresh::OwnChange));
    }
    if age_us >= terms.ttl_us && !came_first {
        return Err(Some(Unfresh::Expired));
    }
    let Some(behind_us) = behind_us else {
        return Ok(if came_first { Basis::CameFirst } else { Basis::Aged(age_us) });
    };
    if times.waits_since_us.is_some() {
        // A server is about to answer the client. That answer may show later changes than a probe of now would confirm.
        return Err(None);
    }
    check_followed(env, database, account, kept, behind_us).map(|()| Basis::Followed).map_err(|stale| {
        Some(match stale {
            Stale::NotFollowed => Unfresh::Redefined,
            Stale::Changed => Unfresh::Changed,
            Stale::RowChanged => Unfresh::RowChanged,
            Stale::NotFresh => Unfresh::Unconfirmed,
        })
    })
}

/// Checks whether a kept answer may be given to the client: none of its tables has changed, as far as the client may know. Has a probe asked for.
fn check_followed(
    env: &mut Env,
    database: &Arc<str>,
    account: &mut Account,
    kept: &Kept,
    behind_us: u64,
) -> Result<(), Stale> {
    let now_us = env.now.mono_us;
    let followed = env.followed.opened(database).ok_or(Stale::NotFollowed)?;
    let dependence = kept.dependence.as_deref().ok_or(Stale::NotFollowed)?;
    if account.seen_probe == SEEN_ELSEWHERE {
        return Err(Stale::NotFollowed);
    }
    if account.seen_probe == SEEING {
        // What the client was answered before now is confirmed by each probe that is sent from now on.
        account.seen_probe = followed.last_probe();
    }
    let found = followed.check(dependence, account.seen_probe, (now_us, behind_us));
    if found.is_ok() {
        account.seen_probe = account.seen_probe.max(dependence.seen());
        account.probe_wait = ProbeWait::No;
    }
    if !matches!(found, Err(Stale::Changed | Stale::RowChanged)) && followed.wants_probe() {
        env.want(Effect::WantProbe { database: Arc::clone(database), is_awaited: false });
    }
    found.map(|_| ())
}

impl Pool {
    /// Answers a group instead of a server, in the moment *request*. Returns `None` if the group needs a server.
    #[inline]
    pub(crate) fn answer_known<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        group: Option<&Group>,
        bytes: &[u8],
        status: TxStatus,
    ) -> Option<Step> {
        cx.env.cache.as_ref()?;
        let answered = match status {
            _ if cx.env.rules.config.main.query_cache == Switch::Coalesce => None,
            TxStatus::Idle => group.and_then(|group| self.answer_from_cache(cx, id, group, bytes, None)),
            TxStatus::InTransaction => self.answer_in_deferred(cx, id, bytes),
            TxStatus::Failed => None,
        };
        if answered.is_none()
            && let Some(client) = self.clients.get_mut(id)
        {
            // A server answers the client from here on.
            (client.account.seen_probe, client.account.probe_wait) = (SEEING, ProbeWait::No);
        }
        answered
    }

    /// Answers a group of a transaction of which no server knows yet. Each statement of a READ COMMITTED transaction sees what was committed
    /// before it, so that the answer is the one that the statement has outside of a transaction.
    fn answer_in_deferred<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        bytes: &[u8],
    ) -> Option<Step> {
        let client = self.clients.get(id)?;
        let ClientState::DeferredBegin(deferred) = &client.state else { return None };
        if !self.reads_committed(cx.env, &client.account, &deferred.text) {
            return None;
        }
        let begin = deferred.text.clone();
        // A portal that the transaction may use later must be there then.
        let group = self.look_at_group(cx.env, id, bytes).filter(|group| !group.leaves_portal())?;
        self.answer_from_cache(cx, id, &group, bytes, Some(&begin))
    }

    fn reads_committed(&self, env: &Env, account: &Account, begin: &[u8]) -> bool {
        begin_modes(begin).is_some_and(|modes| is_read_committed(env, account, modes, &self.state.reach))
    }

    /// Whether the client's first group after this BEGIN may be answered from the cache. No server is taken for the BEGIN then.
    pub(crate) fn may_be_known_after(&mut self, env: &mut Env, id: ClientId, begin: &[u8]) -> bool {
        let Some(mut cache) = env.cache.take() else { return false };
        let may_be = self.has_rule(env, &mut cache, id)
            && self.clients.get(id).is_some_and(|client| self.reads_committed(env, &client.account, begin));
        env.cache = Some(cache);
        may_be
    }

    /// Whether answers are kept in this pool, and a rule names the client.
    fn has_rule(&mut self, env: &Env, cache: &mut QueryCache, id: ClientId) -> bool {
        let keeps = matches!(env.rules.config.main.query_cache, Switch::On | Switch::Hinted);
        if !keeps || self.state.cache_obstacle(env).is_some() {
            return false;
        }
        let Some(client) = self.clients.get_mut(id) else { return false };
        let account = &mut client.account;
        cache.settings_of(env, self.id, account).is_some()
            && self.state.rules_of(env, cache.version(), account).is_some_and(|rules| !rules.is_empty())
    }

    fn answer_from_cache<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        group: &Group,
        bytes: &[u8],
        begin: Option<&[u8]>,
    ) -> Option<Step> {
        let mut cache = cx.env.cache.take()?;
        let found = self.look_up(cx, &mut cache, id, group, (bytes, begin), None);
        cx.env.cache = Some(cache);
        match found {
            Lookup::NotAsked | Lookup::Compared => None,
            Lookup::Miss(unfresh) => {
                let numbers = &mut self.state.cache.numbers;
                numbers.misses += 1;
                numbers.expired += u64::from(matches!(unfresh, Some(Unfresh::Expired)));
                numbers.own_changes += u64::from(matches!(unfresh, Some(Unfresh::OwnChange)));
                numbers.redefined += u64::from(matches!(unfresh, Some(Unfresh::Redefined)));
                numbers.changed += u64::from(matches!(unfresh, Some(Unfresh::Changed | Unfresh::RowChanged)));
                numbers.row_changed += u64::from(matches!(unfresh, Some(Unfresh::RowChanged)));
                numbers.not_fresh += u64::from(matches!(unfresh, Some(Unfresh::NotFresh)));
                None
            }
            Lookup::Hit => Some(Step::Used(group.len as usize)),
            Lookup::Later => Some(Step::Wait),
        }
    }

    /// Answers a client that has its turn in the queue, if the answer to its group has become known while it waited. Returns whether it was
    /// answered: the caller takes it out of the queue, and looks at what else the client has sent.
    pub(crate) fn answer_waiting<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ClientId) -> bool {
        let Some(client) = self.clients.get_mut(id) else { return false };
        let ClientState::Waiting(Waiting { group: Some(group), first: First::Nothing }) = client.state else {
            return false;
        };
        let since_us = client.account.request.since_us;
        let Some(mut cache) = cx.env.cache.take() else { return false };
        let inbox = std::mem::take(&mut client.inbox);
        let found = self.look_up(cx, &mut cache, id, &group, (&inbox, None), Some(since_us));
        cx.env.cache = Some(cache);
        let is_answered = matches!(found, Lookup::Hit);
        let used = if is_answered { group.len as usize } else { 0 };
        let Some(client) = self.clients.get_mut(id) else { return false };
        client.inbox = cx.env.buffers.remainder(Some(inbox), &[], used);
        if is_answered {
            client.account.active_us = cx.env.now.mono_us;
            self.state.numbers.stats.wait_us += cx.env.now.mono_us.saturating_sub(since_us);
            self.state.cache.numbers.coalesced += 1;
            cx.driver.reached(RarePath::CacheHitInQueue);
            self.set_client_state(id, ClientState::Idle);
        }
        is_answered
    }

    /// Looks a group up, and sends the client its answer. `waits_since_us` is the time since which a client in the queue waits; `None` if the
    /// client does not wait yet.
    fn look_up<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        cache: &mut QueryCache,
        id: ClientId,
        group: &Group,
        (bytes, begin): (&[u8], Option<&[u8]>),
        waits_since_us: Option<u64>,
    ) -> Lookup {
        if !self.state.may_answer_known(cx.env) {
            return Lookup::NotAsked;
        }
        let messages = bytes.get(..group.len as usize);
        let asking = |messages| self.ask_cache(cx.env, cache, id, group, (messages, modes_of(begin)));
        let found = messages.map(asking);
        let Some(Ok(Question { terms, .. })) = found else { return Lookup::NotAsked };
        let Some(client) = self.clients.get_mut(id) else { return Lookup::NotAsked };
        let now_us = cx.env.now.mono_us;
        // Its last change was answered before now, and before it began to wait: a statement that is sent from then on sees it.
        settle_own_changes(&mut client.account, waits_since_us.unwrap_or(now_us.saturating_sub(1)));
        let Some(kept) = cache.store.get(&cache.key) else { return Lookup::Miss(None) };
        let times = Times { now_us, waits_since_us, floor_us: self.state.cache.floor_us };
        let basis = match judge(cx.env, &self.state.database, &mut client.account, kept, terms, &times) {
            Ok(basis) => basis,
            Err(Some(Unfresh::Unconfirmed)) => return self.await_probe(cx.env, id),
            Err(unfresh) => {
                if let Some(Unfresh::Changed | Unfresh::RowChanged) = unfresh {
                    cache.store.take(&cache.key);
                }
                return Lookup::Miss(unfresh);
            }
        };
        if basis == Basis::Followed && self.state.compares(cx.env, &mut cache.sampling) {
            return Lookup::Compared;
        }
        if cx.driver.backlog(client.conn) > cx.env.limits.backlog_bytes {
            return Lookup::Later;
        }
        kept.note_hit();
        // Answers are kept as they are outside of a transaction: the last byte is the transaction status.
        match (begin, kept.answer.split_last()) {
            (Some(_), Some((_, answer))) => {
                cx.driver.send(client.conn, answer);
                cx.driver.send(client.conn, b"T");
                cx.driver.reached(RarePath::CacheHitInTransaction);
            }
            _ => cx.driver.send(client.conn, &kept.answer),
        }
        let stats = &mut self.state.numbers.stats;
        stats.queries += 1;
        stats.xacts += u64::from(begin.is_none());
        stats.sent_bytes += kept.answer.len() as u64;
        self.state.cache.numbers.hits += 1;
        if basis != Basis::Followed && client.account.seen_probe != SEEN_ELSEWHERE {
            // The answer may be newer than those whose tables are followed.
            client.account.seen_probe = SEEING;
        }
        // The age of an answer whose tables are followed says nothing.
        if let Basis::Aged(age_us) = basis {
            self.state.cache.age_max_us = self.state.cache.age_max_us.max(age_us);
            self.state.cache.ages.get_or_insert_default().record(age_us);
        }
        self.state.cache.numbers.saved_us +=
            cx.env.measured.stats.note_hit(self.id, group.statement, kept_until(kept.dependence.as_deref()));
        Lookup::Hit
    }

    /// Returns the group's statement, with the terms on which the answer may be given to this client, or why the cache is not asked. With `Ok`,
    /// the group's key is in [`QueryCache::key`].
    pub(super) fn ask_cache<'a>(
        &mut self,
        env: &'a Env,
        cache: &mut QueryCache,
        id: ClientId,
        group: &Group,
        (messages, modes): (&'a [u8], &[u8]),
    ) -> Result<Question<'a>, Obstacle> {
        if let Some(obstacle) = group.obstacle() {
            return Err(obstacle);
        }
        let account = &mut self.clients.get_mut(id).ok_or(Obstacle::Together)?.account;
        if account.unnamed.is_some() {
            return Err(Obstacle::PreparedUnnamed);
        }
        // What a client must see of a cluster's primary is not compared.
        if account.must_see.is_some() {
            return Err(Obstacle::CausalReads);
        }
        let settings = cache.settings_of(env, self.id, account).ok_or(Obstacle::LongSettings)?;
        let named = |name| {
            let statement = env.statements.get(account.statement(name)?)?;
            Some((&*statement.query, &*statement.types))
        };
        let statement = match asked(messages) {
            Some(Asked::Text { text, types }) => Some((text, types)),
            Some(Asked::Named(name)) => named(name),
            None => None,
        };
        let (text, types) = statement.ok_or(Obstacle::PreparedUnnamed)?;
        let terms = self.state.cache_terms(env, cache.version(), account, text).ok_or(Obstacle::NoRule)?;
        let terms = terms.at_most(hinted_age_us(&env.rules.config, text)?);
        write_key(&mut cache.key, (self.id, settings, modes), messages, |name| account.statement(name))
            .ok_or(Obstacle::Together)?;
        Ok(Question { terms, text, types })
    }

    /// Has a client wait until it is known whether a table of its answer was changed lately. If that takes too long, the client's statement goes
    /// to a server.
    fn await_probe(&mut self, env: &mut Env, id: ClientId) -> Lookup {
        let Some(client) = self.clients.get_mut(id) else { return Lookup::NotAsked };
        let now_us = env.now.mono_us;
        let since_us = match client.account.probe_wait {
            ProbeWait::Since(since_us) => since_us,
            ProbeWait::No => now_us,
        };
        let until_us = since_us.saturating_add(PROBE_WAIT_US_MAX);
        if now_us >= until_us {
            return Lookup::Miss(Some(Unfresh::NotFresh));
        }
        client.account.probe_wait = ProbeWait::Since(since_us);
        env.want(Effect::WantProbe { database: Arc::clone(&self.state.database), is_awaited: true });
        env.wake_at(until_us);
        self.state.cache.await_probe.insert(id);
        Lookup::Later
    }

    /// Notes that the statements of clients that wait for a probe are to be looked at again: one was confirmed, or a client has waited long enough.
    /// The caller resumes them.
    pub(crate) fn end_probe_waits(&mut self) {
        let waiting = std::mem::take(&mut self.state.cache.await_probe);
        self.state.due.to_resume.extend(waiting);
    }

    /// Drops the answers of the pool, and those that are on their way.
    pub(crate) fn purge_known(&mut self, env: &mut Env) {
        self.state.cache.floor_us = env.now.mono_us;
        if let Some(cache) = env.cache.as_deref_mut() {
            self.state.cache.numbers.purged += cache.store.drop_pool(self.id) as u64;
        }
    }

    /// Forgets what was noted before the cache was switched on or off. All clients count as having a change under way.
    pub(crate) fn begin_caching(&mut self) {
        self.servers.values_mut().for_each(|server| server.incoming.capture = None);
        self.state.look_at_passed_over();
        for client in self.clients.values_mut() {
            let account = &mut client.account;
            (account.wrote_us, account.redefined_us, account.seen_probe) = (WRITING, WRITING, SEEING);
            // The next cache gives the same numbers to other settings and rules.
            client.account.reader = None;
        }
    }
}
