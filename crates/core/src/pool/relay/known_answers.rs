//! Answers that need no server: the places at which messages meet the query cache (`pool/cache`). pgweir looks a group up before it asks for
//! a server. If the group needs one, pgweir copies the answer as it passes, and keeps it.
//!
//! A worker without a cache pays one branch at each of these places. In doubt the group goes to a server.
//!
//! A client may get an answer that the primary gave to the same messages, in the same pool, to a session with the same settings. The statement
//! must have been sent less than the rule's time ago, after the client's own last change was answered, and after the last change of objects,
//! rights and roles through pgweir.

use std::sync::Arc;

use pgweir_sql::varying_name;

use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::cache::capture::{Heard, SentAt};
use crate::pool::cache::key::{Asked, asked, write_key};
use crate::pool::cache::{QueryCache, WRITING};
use crate::pool::client::state::ClientState;
use crate::pool::relay::group::Group;
use crate::pool::relay::preamble::{Ahead, LinkPhase, Part, Preamble};
use crate::pool::{Pool, Step};
use crate::stats::obstacle::Obstacle;
use crate::stats::rare_path::RarePath;

/// The bytes of a linked client that are about to be sent to its server while there is a cache.
pub(crate) struct Sending {
    /// The group whose answer may be captured, or why the answer is not kept.
    group: Result<Group, Obstacle>,
    /// The server runs an earlier statement of the client.
    is_behind: bool,
}

/// The result of looking a group up in the cache.
enum Lookup {
    /// No rule matches the group, or the cache must not be used now.
    NotAsked,
    /// A rule matches, and there is no answer that the client may get.
    Miss,
    /// The client was sent an answer.
    Hit,
    /// There is an answer, but the client must first read what it was sent before.
    Later,
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
    ) -> Option<Step> {
        cx.env.cache.as_ref()?;
        self.answer_from_cache(cx, id, group?, bytes)
    }

    fn answer_from_cache<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ClientId,
        group: &Group,
        bytes: &[u8],
    ) -> Option<Step> {
        let mut cache = cx.env.cache.take()?;
        let found = self.look_up(cx, &mut cache, id, group, bytes);
        cx.env.cache = Some(cache);
        match found {
            Lookup::NotAsked => None,
            Lookup::Miss => {
                self.state.cache.numbers.misses += 1;
                None
            }
            Lookup::Hit => {
                self.state.numbers.stats.queries += 1;
                self.state.numbers.stats.xacts += 1;
                Some(Step::Used(group.len as usize))
            }
            Lookup::Later => Some(Step::Wait),
        }
    }

    fn look_up<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        cache: &mut QueryCache,
        id: ClientId,
        group: &Group,
        bytes: &[u8],
    ) -> Lookup {
        if !self.state.may_answer_known(cx.env) {
            return Lookup::NotAsked;
        }
        let messages = bytes.get(..group.len as usize);
        let found = messages.map(|messages| self.ask_cache(cx.env, cache, id, group, messages));
        let Some(Ok((ttl_us, _))) = found else { return Lookup::NotAsked };
        let Some(client) = self.clients.get_mut(id) else { return Lookup::NotAsked };
        let now_us = cx.env.now.mono_us;
        if client.account.wrote_us == WRITING {
            // Its last change was answered before now: a statement that is sent from now on sees it.
            client.account.wrote_us = now_us.saturating_sub(1);
        }
        let floor_us = client.account.wrote_us.max(self.state.cache.floor_us);
        let Some(kept) = cache.store.get(&cache.key) else { return Lookup::Miss };
        let age_us = now_us.saturating_sub(kept.sent.at_us);
        if age_us >= ttl_us || kept.sent.at_us <= floor_us || !kept.sent.is_current(cx.env) {
            return Lookup::Miss;
        }
        if cx.driver.backlog(client.conn) > cx.env.limits.backlog_bytes {
            return Lookup::Later;
        }
        kept.note_hit();
        cx.driver.send(client.conn, &kept.answer);
        self.state.numbers.stats.sent_bytes += kept.answer.len() as u64;
        self.state.cache.numbers.hits += 1;
        self.state.cache.age_max_us = self.state.cache.age_max_us.max(age_us);
        self.state.cache.ages.get_or_insert_default().record(age_us);
        cx.env.measured.stats.note_hit(self.id, group.statement);
        Lookup::Hit
    }

    /// Returns the age (µs) up to which the answer to a group may be given to this client, and the statement's text, or why the cache is not
    /// asked. With `Ok`, the group's key is in [`QueryCache::key`].
    fn ask_cache<'a>(
        &mut self,
        env: &'a Env,
        cache: &mut QueryCache,
        id: ClientId,
        group: &Group,
        messages: &'a [u8],
    ) -> Result<(u64, &'a [u8]), Obstacle> {
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
        let named = |name| Some(&*env.statements.get(account.statement(name)?)?.query);
        let text = match asked(messages) {
            Some(Asked::Text(text)) => Some(text),
            Some(Asked::Named(name)) => named(name),
            None => None,
        };
        let text = text.ok_or(Obstacle::PreparedUnnamed)?;
        let ttl_us = self.state.cache_ttl_us(env, cache.version(), account, text).ok_or(Obstacle::NoRule)?;
        write_key(&mut cache.key, (self.id, settings), messages, |name| account.statement(name))
            .ok_or(Obstacle::Together)?;
        if ttl_us > 0 { Ok((ttl_us, text)) } else { Err(Obstacle::NoRule) }
    }

    /// Prepares for bytes of a linked client that are about to be sent. An unfinished capture of the server ends. Unless the bytes are one
    /// group that certainly only reads, they count as a change, which the client must see from then on. `group` is the group at the front of
    /// the bytes, if it is known. The caller passes the result to [`Pool::capture_sent`] when the bytes are sent.
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
        let is_behind = self.servers.get_mut(server_id).is_some_and(|server| {
            server.incoming.capture = None;
            server.work.running.is_named()
        });
        let in_transaction = self.is_in_transaction(server_id);
        let found = group.or_else(|| self.look_at_group(env, id, bytes));
        let read = found.filter(|group| group.certainly_reads() && group.len as usize == bytes.len());
        let client = self.clients.get_mut(id)?;
        if read.is_none() {
            client.account.wrote_us = WRITING;
        }
        // A group that follows the client's settings is looked at message by message, and is its link's first one, too.
        let is_first = matches!(&client.state, ClientState::Linked(link) if matches!(link.phase, LinkPhase::Exchange(Preamble::Sent(Ahead::Session, Part::Open))));
        let group = match (read, found) {
            (Some(read), _) if group.is_some() || is_first => Ok(read),
            _ if in_transaction => Err(Obstacle::InTransaction),
            (Some(_), _) => Err(Obstacle::KeepsServer),
            (None, Some(found)) if found.len as usize == bytes.len() => {
                Err(found.obstacle().unwrap_or(Obstacle::Together))
            }
            (None, _) => Err(Obstacle::Together),
        };
        Some(Sending { group, is_behind })
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
        match sending.group {
            Ok(group) if sent_len == bytes.len() => {
                let sent = SentAt::now(env);
                self.begin_capture(env, (id, server_id), &group, Some(bytes), Some(sent));
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
        (id, server_id): (ClientId, ServerId),
        group: &Group,
        bytes: Option<&[u8]>,
        sent: Option<SentAt>,
    ) {
        if env.cache.is_some()
            && let Some(sent) = sent.filter(|_| group.certainly_reads())
        {
            self.capture_answer(env, (id, server_id), group, bytes, sent);
        }
    }

    #[cold]
    #[inline(never)]
    fn capture_answer(
        &mut self,
        env: &mut Env,
        ids: (ClientId, ServerId),
        group: &Group,
        bytes: Option<&[u8]>,
        sent: SentAt,
    ) {
        let Some(mut cache) = env.cache.take() else { return };
        let kept = self.capture_with(env, &mut cache, ids, group, bytes, sent);
        env.cache = Some(cache);
        if let (Err(obstacle), Some(server)) = (kept, self.servers.get(ids.1)) {
            env.measured.stats.note_kept(&server.work.running, Err(obstacle));
        }
    }

    /// Begins a capture, or returns why the answer will not be kept.
    fn capture_with(
        &mut self,
        env: &Env,
        cache: &mut QueryCache,
        (id, server_id): (ClientId, ServerId),
        group: &Group,
        bytes: Option<&[u8]>,
        sent: SentAt,
    ) -> Result<(), Obstacle> {
        let Some(server) = self.servers.get_mut(server_id) else { return Ok(()) };
        server.incoming.capture = None;
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
        let (_, text) = self.ask_cache(env, cache, id, group, messages)?;
        if varying_name(text).is_some() {
            return Err(Obstacle::Varying);
        }
        let capture = cache.capture(env, (id, statement), messages, sent);
        if let Some(server) = self.servers.get_mut(server_id) {
            server.incoming.capture = Some(Box::new(capture));
        }
        Ok(())
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
            Heard::Plain => {
                stats.note_kept(&capture.statement, Ok(()));
                let (key, sent) = (Arc::clone(&capture.key), capture.sent);
                let kept = cache.store.keep(key, self.id, capture.answer(), sent);
                numbers.fills += u64::from(kept.is_some());
                if kept.is_some_and(|evicted| evicted > 0) {
                    cx.driver.reached(RarePath::CacheEvicted);
                }
            }
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
    }

    /// Drops the answers of the pool, and those that are on their way.
    pub(crate) fn purge_known(&mut self, env: &mut Env) {
        self.state.cache.floor_us = env.now.mono_us;
        if let Some(cache) = env.cache.as_deref_mut() {
            cache.store.drop_pool(self.id);
        }
    }

    /// Forgets what was noted before the cache was switched on or off. All clients count as having a change under way.
    pub(crate) fn begin_caching(&mut self) {
        self.servers.values_mut().for_each(|server| server.incoming.capture = None);
        for client in self.clients.values_mut() {
            client.account.wrote_us = WRITING;
            // The next cache gives the same numbers to other settings and rules.
            client.account.reader = None;
        }
    }
}
