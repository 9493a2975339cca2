//! Answers that need no server: the places at which messages meet the query cache (`pool/cache`). pgweir looks a group up before it asks for
//! a server. If the group needs one, pgweir copies the answer as it passes, and keeps it.
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

use std::sync::Arc;

use pgweir_settings::QueryCache as Switch;
use pgweir_sql::{Isolation, begin_modes, varying_name};
use pgweir_wire::backend::TxStatus;

use crate::context::{Cx, Effect, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::cache::capture::{Capture, Heard, SentAt};
use crate::pool::cache::key::{Asked, analysis_key, asked, write_key};
use crate::pool::cache::store::Kept;
use crate::pool::cache::wal::analyses::Known;
use crate::pool::cache::wal::catalog::names_day;
use crate::pool::cache::wal::{Dependence, Fill, FollowedDatabases, Stale};
use crate::pool::cache::{
    PROBE_WAIT_US_MAX, ProbeWait, QueryCache, SEEING, SEEN_ELSEWHERE, Terms, WRITING, hinted_age_us,
};
use crate::pool::client::isolation::{default_isolation, is_read_committed};
use crate::pool::client::state::{Account, ClientState, First, Waiting};
use crate::pool::relay::exchange::group::Group;
use crate::pool::relay::preamble::{Ahead, LinkPhase, Part, Preamble};
use crate::pool::server::following::analysis::AnalysisWanted;
use crate::pool::{Pool, Step};
use crate::stats::obstacle::Obstacle;
use crate::stats::rare_path::RarePath;

/// The bytes of a linked client that are about to be sent to its server while there is a cache.
pub(crate) struct Sending {
    /// The group whose answer may be captured, or why the answer is not kept.
    keepable: Result<Keepable, Obstacle>,
    /// The server runs an earlier statement of the client.
    is_behind: bool,
}

/// The result of looking a group up in the cache.
enum Lookup {
    /// No rule matches the group, or the cache must not be used now.
    NotAsked,
    /// A rule matches, and there is no answer that the client may get: why not the one that is kept, or `None` if none is.
    Miss(Option<Unfresh>),
    /// The client was sent an answer.
    Hit,
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
    /// The client was not told in time that no table had changed.
    NotFresh,
}

/// A statement that the cache is asked for.
pub(super) struct Question<'a> {
    pub(super) terms: Terms,
    text: &'a [u8],
    /// The types of its parameters, four bytes each.
    types: &'a [u8],
}

/// A group whose answer may be kept.
pub(crate) struct Keepable {
    group: Group,
    /// The BEGIN that is sent ahead of the group; `None` if the group is outside of a transaction block.
    begin: Option<Vec<u8>>,
}

impl Keepable {
    /// Returns the value for a group outside of a transaction block.
    pub(crate) fn alone(group: Group) -> Keepable {
        Keepable { group, begin: None }
    }
}

/// Returns the part of a BEGIN that is part of keys: all of it if it names modes.
fn modes_of(begin: Option<&[u8]>) -> &[u8] {
    begin.filter(|begin| begin_modes(begin).is_none_or(|modes| modes.names_modes)).unwrap_or_default()
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
    if found != Err(Stale::Changed) && followed.wants_probe() {
        env.want(Effect::WantProbe(Arc::clone(database), false));
    }
    found.map(|_| ())
}

/// An answer is not kept: it may not have seen a change of one of its tables.
struct JustChanged;

/// Returns what an answer depends on that has arrived as a whole; `None` if its tables are not followed.
fn dependence_of(
    followed: &mut FollowedDatabases,
    database: &str,
    capture: &Capture,
) -> Result<Option<Box<Dependence>>, JustChanged> {
    let Some(fill) = &capture.fill else { return Ok(None) };
    let admitted = followed.opened(database).and_then(|followed| followed.admit(fill));
    admitted.map(|dependence| Some(Box::new(dependence))).ok_or(JustChanged)
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
        let group = self.look_at_group(cx.env, id, bytes)?;
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
            Lookup::NotAsked => None,
            Lookup::Miss(unfresh) => {
                let numbers = &mut self.state.cache.numbers;
                numbers.misses += 1;
                numbers.expired += u64::from(matches!(unfresh, Some(Unfresh::Expired)));
                numbers.own_changes += u64::from(matches!(unfresh, Some(Unfresh::OwnChange)));
                numbers.redefined += u64::from(matches!(unfresh, Some(Unfresh::Redefined)));
                numbers.changed += u64::from(matches!(unfresh, Some(Unfresh::Changed)));
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
        if terms.behind_us.is_some() && begin.is_some() {
            return Lookup::NotAsked;
        }
        let is_queued = waits_since_us.is_some();
        let Some(client) = self.clients.get_mut(id) else { return Lookup::NotAsked };
        let now_us = cx.env.now.mono_us;
        if client.account.wrote_us == WRITING {
            // Its last change was answered before now, and before it began to wait: a statement that is sent from then on sees it.
            client.account.wrote_us = waits_since_us.unwrap_or(now_us.saturating_sub(1));
        }
        let wrote_us = client.account.wrote_us;
        let Some(kept) = cache.store.get(&cache.key) else { return Lookup::Miss(None) };
        let database = &self.state.database;
        let age_us = now_us.saturating_sub(kept.sent.at_us);
        let came_first = waits_since_us.is_some_and(|since_us| since_us < kept.sent.at_us);
        if kept.sent.at_us <= self.state.cache.floor_us || !kept.sent.is_current(cx.env) {
            return Lookup::Miss(Some(Unfresh::Redefined));
        }
        let behind_us = terms.behind_us.filter(|_| !came_first);
        if behind_us.is_none() && kept.sent.at_us <= wrote_us {
            return Lookup::Miss(Some(Unfresh::OwnChange));
        }
        if age_us >= terms.ttl_us && !came_first {
            return Lookup::Miss(Some(Unfresh::Expired));
        }
        if let Some(behind_us) = behind_us {
            if is_queued {
                // A server is about to answer the client, after which it must see more than a probe of now confirms.
                return Lookup::Miss(None);
            }
            match check_followed(cx.env, database, &mut client.account, kept, behind_us) {
                Ok(()) => {}
                Err(Stale::NotFollowed) => return Lookup::Miss(Some(Unfresh::Redefined)),
                Err(Stale::Changed) => {
                    cache.store.drop_answer(&cache.key);
                    return Lookup::Miss(Some(Unfresh::Changed));
                }
                Err(Stale::NotFresh) => return self.await_probe(cx.env, id),
            }
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
        if behind_us.is_none() && client.account.seen_probe != SEEN_ELSEWHERE {
            // The answer may be newer than those whose tables are followed.
            client.account.seen_probe = SEEING;
        }
        // The age of an answer whose tables are followed says nothing.
        if !came_first && behind_us.is_none() {
            self.state.cache.age_max_us = self.state.cache.age_max_us.max(age_us);
            self.state.cache.ages.get_or_insert_default().record(age_us);
        }
        self.state.cache.numbers.saved_us += cx.env.measured.stats.note_hit(self.id, group.statement);
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

    /// Prepares for bytes of a linked client that are about to be sent. An unfinished capture of the server ends. Unless the bytes are one
    /// group that certainly only reads, or that begins or ends a transaction block, they count as a change, which the client must see from
    /// then on. `group` is the group at the front of the bytes, if it is known. The caller passes the result to [`Pool::capture_sent`] when
    /// the bytes are sent.
    #[cold]
    #[inline(never)]
    pub(crate) fn note_sending(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        group: Option<Group>,
        bytes: &[u8],
    ) -> Option<Sending> {
        self.end_capture(server_id);
        let is_behind = self.servers.get_mut(server_id).is_some_and(|server| {
            server.incoming.analysis = None;
            server.work.running.is_named()
        });
        self.note_node(env, id, server_id);
        let in_transaction = self.is_in_transaction(server_id);
        let found = group.or_else(|| self.look_at_group(env, id, bytes));
        let read = found.filter(|group| group.certainly_reads() && group.len as usize == bytes.len());
        // What a COMMIT makes visible was noted when it was sent.
        if read.is_none() && !self.is_block_alone(env, id, bytes) {
            self.clients.get_mut(id)?.account.wrote_us = WRITING;
        }
        let keepable = match (read, found) {
            (Some(read), _) if group.is_some() => Ok(Keepable::alone(read)),
            (Some(read), _) => match self.first_group_to_keep(env, id, read) {
                Some(keepable) => Ok(keepable),
                None if in_transaction => Err(Obstacle::InTransaction),
                None => Err(Obstacle::KeepsServer),
            },
            (None, _) if in_transaction => Err(Obstacle::InTransaction),
            (None, Some(found)) if found.len as usize == bytes.len() => {
                Err(found.obstacle().unwrap_or(Obstacle::Together))
            }
            (None, _) => Err(Obstacle::Together),
        };
        Some(Sending { keepable, is_behind })
    }

    /// Notes that a server answers a linked client, and whether it is certainly the PostgreSQL server whose changes are followed.
    fn note_node(&mut self, env: &Env, id: ClientId, server_id: ServerId) {
        let stream = env.followed.state(&self.state.database).and_then(|state| state.stream());
        let node = self.servers.get(server_id).and_then(|server| server.at.node);
        let is_elsewhere = stream.is_some_and(|stream| node != Some(stream.node()));
        if let Some(client) = self.clients.get_mut(id) {
            client.account.seen_probe = if is_elsewhere { SEEN_ELSEWHERE } else { SEEING };
        }
    }

    /// Returns what may be kept of a linked client's next group, which is looked at message by message, if the group sees the same data and
    /// session as outside of a transaction: it follows the client's settings, or a BEGIN of a READ COMMITTED transaction.
    fn first_group_to_keep(&self, env: &Env, id: ClientId, group: Group) -> Option<Keepable> {
        let client = self.clients.get(id)?;
        let ClientState::Linked(link) = &client.state else { return None };
        match &link.phase {
            _ if link.is_marked() => None,
            LinkPhase::Exchange(Preamble::Sent(Ahead::Session, Part::Open)) => Some(Keepable::alone(group)),
            LinkPhase::Exchange(Preamble::Begin(begin)) => {
                let sees_the_newest = self.reads_committed(env, &client.account, begin);
                sees_the_newest.then(|| Keepable { group, begin: Some(begin.clone()) })
            }
            _ => None,
        }
    }

    /// Begins to capture the answer to bytes that a linked client's server was sent, or notes why the answer is not kept. `sent_len` is the
    /// number of the bytes that were sent.
    #[cold]
    #[inline(never)]
    pub(crate) fn capture_sent(
        &mut self,
        env: &mut Env,
        (id, server_id): (ClientId, ServerId),
        sending: Sending,
        bytes: &[u8],
        sent_len: usize,
    ) {
        match sending.keepable {
            Ok(keepable) if sent_len == bytes.len() => {
                let sent = SentAt::now(env);
                self.begin_capture(env, (id, server_id), &keepable, Some(bytes), Some(sent));
            }
            // A part of the bytes waits: these are sent, and looked at, once more.
            Ok(_) => {}
            // The server runs an earlier statement, which the reason is not about.
            Err(_) if sending.is_behind => {}
            Err(obstacle) => {
                let running = self.servers.get(server_id).map(|server| server.work.running);
                env.measured.stats.note_kept(&running.unwrap_or_default(), Err(obstacle));
            }
        }
    }

    /// Begins to capture the answer to a linked client's group, if a rule matches. `bytes` are those of the group; `None` if the group was sent
    /// while the client was queued: its bytes are the server's attempt then.
    #[inline]
    pub(crate) fn begin_capture(
        &mut self,
        env: &mut Env,
        ids: (ClientId, ServerId),
        keepable: &Keepable,
        bytes: Option<&[u8]>,
        sent: Option<SentAt>,
    ) {
        if env.cache.is_some() {
            self.capture_read(env, ids, keepable, bytes, sent);
        }
    }

    #[cold]
    #[inline(never)]
    fn capture_read(
        &mut self,
        env: &mut Env,
        ids: (ClientId, ServerId),
        keepable: &Keepable,
        bytes: Option<&[u8]>,
        sent: Option<SentAt>,
    ) {
        if let Some(server) = self.servers.get_mut(ids.1) {
            server.incoming.analysis = None;
        }
        self.note_node(env, ids.0, ids.1);
        if let Some(sent) = sent.filter(|_| keepable.group.certainly_reads()) {
            self.capture_answer(env, ids, keepable, bytes, sent);
        }
    }

    fn capture_answer(
        &mut self,
        env: &mut Env,
        ids: (ClientId, ServerId),
        keepable: &Keepable,
        bytes: Option<&[u8]>,
        sent: SentAt,
    ) {
        let Some(mut cache) = env.cache.take() else { return };
        let mut followed = std::mem::take(&mut env.followed);
        let kept = self.capture_with(env, (&mut cache, &mut followed), ids, keepable, (bytes, sent));
        (env.cache, env.followed) = (Some(cache), followed);
        if std::mem::take(&mut self.state.cache.wants_probe) {
            env.want(Effect::WantProbe(Arc::clone(&self.state.database), false));
        }
        // With coalesce, whether others wait is no matter of the statement.
        let is_decided = kept.is_err() || env.rules.config.main.query_cache == Switch::Coalesce;
        if let Some(server) = self.servers.get(ids.1).filter(|_| is_decided) {
            env.measured.stats.note_kept(&server.work.running, kept);
        }
    }

    /// Begins a capture, or returns why the answer will not be kept. With coalesce, an answer is captured only if other clients wait.
    fn capture_with(
        &mut self,
        env: &Env,
        (cache, followed): (&mut QueryCache, &mut FollowedDatabases),
        (id, server_id): (ClientId, ServerId),
        Keepable { group, begin }: &Keepable,
        (bytes, sent): (Option<&[u8]>, SentAt),
    ) -> Result<(), Obstacle> {
        self.end_capture(server_id);
        let Some(server) = self.servers.get(server_id) else { return Ok(()) };
        // A standby may be behind: its answer would be older than it looks.
        if !server.branch.is_primary() {
            return Err(Obstacle::Standby);
        }
        if let Some(obstacle) = self.state.cache_obstacle(env) {
            return Err(obstacle);
        }
        let statement = server.work.running;
        let queued = server.attempt.kept().filter(|_| bytes.is_none()).map(|kept| kept.bytes.clone());
        let messages = bytes.or(queued.as_deref()).and_then(|bytes| bytes.get(..group.len as usize));
        let messages = messages.ok_or(Obstacle::Together)?;
        let question = self.ask_cache(env, cache, id, group, (messages, modes_of(begin.as_deref())))?;
        if varying_name(question.text).is_some() {
            return Err(Obstacle::Varying);
        }
        if env.rules.config.main.query_cache == Switch::Coalesce && self.state.node.waiting == 0 {
            return Ok(());
        }
        let fill = match question.terms.behind_us {
            None => None,
            Some(_) if begin.is_some() => return Err(Obstacle::InTransaction),
            Some(_) => {
                let account = &self.clients.get(id).ok_or(Obstacle::Together)?.account;
                // PostgreSQL must know of each read in a SERIALIZABLE transaction.
                if default_isolation(env, account) == Isolation::Serializable {
                    return Err(Obstacle::Serializable);
                }
                Some(self.basis(followed, server_id, &cache.key, &question, (messages, sent))?)
            }
        };
        let mut capture = cache.capture(env, (id, statement), messages, (sent, begin.is_some()));
        capture.fill = fill;
        if let Some(server) = self.servers.get_mut(server_id) {
            server.incoming.capture = Some(Box::new(capture));
        }
        Ok(())
    }

    /// Returns the basis of an answer that is to be kept until its tables change, or why it is not kept. If the server must be asked for the
    /// tables, that is noted.
    fn basis(
        &mut self,
        followed: &mut FollowedDatabases,
        server_id: ServerId,
        cache_key: &[u8],
        Question { text, types, .. }: &Question<'_>,
        (messages, sent): (&[u8], SentAt),
    ) -> Result<Fill, Obstacle> {
        let servers_from_us = followed.servers_from_us(&self.state.database);
        let followed = followed.opened(&self.state.database).ok_or(Obstacle::NotFollowed)?;
        let opened = followed.number().ok_or(Obstacle::NotFollowed)?;
        // Without a new stamp, transactions that were received since the last one are never settled.
        self.state.cache.wants_probe = followed.wants_probe();
        let key = analysis_key(cache_key, text, types).ok_or(Obstacle::LongText)?;
        let known = followed.analyses.look_up(&key);
        let outside = match known {
            // The text was looked at before.
            Known::Tables(_) => names_day(messages),
            _ => followed.catalog().outside(text, messages).is_some(),
        };
        if outside {
            return Err(Obstacle::Outside);
        }
        let server = self.servers.get_mut(server_id).ok_or(Obstacle::KeepsServer)?;
        if server.at.node != Some(followed.node()) || server.at.since.mono_us < servers_from_us {
            return Err(Obstacle::OtherServer);
        }
        match known {
            Known::Tables(tables) => followed.fill(sent, tables).ok_or(Obstacle::NotFollowed),
            Known::NotFollowed => Err(Obstacle::Unpublished),
            Known::FirstTime => Err(Obstacle::Unanalysed),
            Known::Wanted => {
                let (text, types) = (Box::from(*text), Box::from(*types));
                let wanted = AnalysisWanted { key, text, types, opened };
                server.incoming.analysis = Some(Box::new(wanted));
                self.state.session_checks.interrupt();
                Err(Obstacle::Unanalysed)
            }
        }
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
        env.want(Effect::WantProbe(Arc::clone(&self.state.database), true));
        env.wake_at(until_us);
        if !self.state.cache.await_probe.contains(&id) {
            self.state.cache.await_probe.push(id);
        }
        Lookup::Later
    }

    /// Notes that the statements of clients that wait for a probe are to be looked at again: one was confirmed, or a client has waited long enough.
    /// The caller resumes them.
    pub(crate) fn end_probe_waits(&mut self) {
        let waiting = std::mem::take(&mut self.state.cache.await_probe);
        self.state.due.to_resume.extend(waiting);
    }

    /// Gives bytes that a server sent for a client to the capture of that client's answer, and keeps the answer when it is whole.
    #[cold]
    pub(crate) fn hear_answer<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        client: ClientId,
        bytes: &[u8],
    ) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let Some(mut capture) = server.incoming.capture.take_if(|capture| capture.client == client) else {
            return;
        };
        let Some(cache) = cx.env.cache.as_deref_mut() else { return };
        let numbers = &mut self.state.cache.numbers;
        let stats = &mut cx.env.measured.stats;
        match capture.hear(bytes) {
            Heard::More => server.incoming.capture = Some(capture),
            Heard::Plain => match dependence_of(&mut cx.env.followed, &self.state.database, &capture) {
                Err(JustChanged) => {
                    stats.note_kept(&capture.statement, Err(Obstacle::JustChanged));
                    numbers.unsettled += 1;
                }
                Ok(dependence) => {
                    stats.note_kept(&capture.statement, Ok(()));
                    let (key, sent) = (Arc::clone(&capture.key), capture.sent);
                    let kept = cache.store.keep(key, self.id, capture.answer(), (sent, dependence));
                    numbers.fills += u64::from(kept.is_some());
                    if kept.is_some_and(|evicted| evicted > 0) {
                        cx.driver.reached(RarePath::CacheEvicted);
                    }
                }
            },
            Heard::Unfit => {
                stats.note_kept(&capture.statement, Err(Obstacle::Unfit));
                numbers.unfit += 1;
                cx.driver.reached(RarePath::CacheUnfit);
            }
            Heard::TooLong => {
                stats.note_kept(&capture.statement, Err(Obstacle::LongAnswer));
                numbers.too_long += 1;
                cx.driver.reached(RarePath::CacheTooLong);
            }
        }
        if self.servers.get(id).is_some_and(|server| server.incoming.capture.is_none()) {
            self.state.look_at_passed_over();
        }
    }

    /// The server's capture, if there is one, ends without an answer that is kept.
    fn end_capture(&mut self, id: ServerId) {
        let capture = self.servers.get_mut(id).and_then(|server| server.incoming.capture.take());
        if capture.is_some() {
            self.state.look_at_passed_over();
        }
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
            (client.account.wrote_us, client.account.seen_probe) = (WRITING, SEEING);
            // The next cache gives the same numbers to other settings and rules.
            client.account.reader = None;
        }
    }
}
