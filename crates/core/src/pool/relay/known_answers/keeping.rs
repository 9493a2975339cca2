//! Answers that are kept: pgweir copies the answer to a group as it passes to the client, and keeps it when it is whole. Here is decided whether a
//! group's answer may be kept, when the group is sent. Whether a kept answer is given is decided in `known_answers.rs`.

use std::sync::Arc;

use pgweir_settings::QueryCache as Switch;
use pgweir_sql::{Isolation, varying_name};

use super::{Question, modes_of};
use crate::context::{Cx, Effect, Env};
use crate::driver::Driver;
use crate::ids::{ClientId, ServerId};
use crate::pool::Pool;
use crate::pool::cache::capture::{Capture, Heard, SentAt};
use crate::pool::cache::comparison::Difference;
use crate::pool::cache::key::analysis_key;
use crate::pool::cache::wal::analyses::Known;
use crate::pool::cache::wal::catalog::names_day;
use crate::pool::cache::wal::{Dependence, Fill, FollowedDatabases};
use crate::pool::cache::{QueryCache, SEEING, SEEN_ELSEWHERE};
use crate::pool::client::isolation::default_isolation;
use crate::pool::client::state::ClientState;
use crate::pool::relay::exchange::group::Group;
use crate::pool::relay::preamble::{Ahead, LinkPhase, Part, Preamble};
use crate::pool::server::following::analysis::AnalysisWanted;
use crate::stats::obstacle::{KeptUntil, Obstacle};
use crate::stats::rare_path::RarePath;

/// The bytes of a linked client that are about to be sent to its server while there is a cache.
pub(crate) struct Sending {
    /// The group whose answer may be captured, or why the answer is not kept.
    keepable: Result<Keepable, Obstacle>,
    /// The server runs an earlier statement of the client.
    is_behind: bool,
}

/// A group whose answer may be kept.
struct Keepable {
    group: Group,
    /// The BEGIN that is sent ahead of the group; `None` if the group is outside of a transaction block.
    begin: Option<Vec<u8>>,
}

impl Keepable {
    /// Returns the value for a group outside of a transaction block.
    fn alone(group: Group) -> Keepable {
        Keepable { group, begin: None }
    }
}

/// Returns what ends an answer with this dependence.
pub(super) fn kept_until(dependence: Option<&Dependence>) -> KeptUntil {
    dependence.map_or(KeptUntil::AgeOrTables, Dependence::kept_until)
}

/// An answer is not kept: it may not have seen a change of one of its tables.
struct JustChanged;

/// Returns what an answer depends on that has arrived as a whole; `None` if its tables are not followed.
fn dependence_of(
    followed: &mut FollowedDatabases,
    database: &str,
    capture: &Capture,
) -> Result<Option<Box<Dependence>>, JustChanged> {
    let Some(fill) = capture.fill() else { return Ok(None) };
    let admitted = followed.opened(database).and_then(|followed| followed.admit(fill));
    admitted.map(|dependence| Some(Box::new(dependence))).ok_or(JustChanged)
}

impl Pool {
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
        let is_behind = self.servers.get(server_id).is_some_and(|server| server.work.running.is_named());
        self.note_node(env, id, server_id);
        let in_transaction = self.is_in_transaction(server_id);
        let found = group.or_else(|| self.look_at_group(env, id, bytes));
        let read = found.filter(|group| group.certainly_reads() && group.len as usize == bytes.len());
        // What a COMMIT makes visible was noted when it was sent.
        let may_change = read.is_none() && !self.is_block_alone(env, id, bytes);
        if may_change {
            self.note_own_change(env, id, bytes);
        }
        if let Some(server) = self.servers.get_mut(server_id) {
            // A statement is analysed in the session in which it ran.
            server.incoming.analysis.take_if(|wanted| may_change || wanted.client != id);
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
                self.capture_answer(env, (id, server_id), &keepable, (Some(bytes), sent));
            }
            // A part of the bytes waits: these are sent, and looked at, once more.
            Ok(_) => {}
            // The server still runs an earlier statement, and the reason concerns a later one.
            Err(_) if sending.is_behind => {}
            Err(obstacle) => {
                let running = self.servers.get(server_id).map(|server| server.work.running);
                env.measured.stats.note_kept(&running.unwrap_or_default(), Err(obstacle));
            }
        }
    }

    /// Begins to capture the answer to a group that was sent while its client was queued, if a rule matches. The group's bytes are the server's
    /// attempt. `sent` is when the group was sent; `None` if that was while there was no cache.
    #[inline]
    pub(crate) fn begin_capture(
        &mut self,
        env: &mut Env,
        ids: (ClientId, ServerId),
        group: Group,
        sent: Option<SentAt>,
    ) {
        if env.cache.is_some() {
            self.capture_queued(env, ids, group, sent);
        }
    }

    #[cold]
    #[inline(never)]
    fn capture_queued(
        &mut self,
        env: &mut Env,
        ids: (ClientId, ServerId),
        group: Group,
        sent: Option<SentAt>,
    ) {
        if let Some(server) = self.servers.get_mut(ids.1) {
            server.incoming.analysis = None;
        }
        self.note_node(env, ids.0, ids.1);
        if let Some(sent) = sent.filter(|_| group.certainly_reads()) {
            self.capture_answer(env, ids, &Keepable::alone(group), (None, sent));
        }
    }

    /// Begins to capture the answer to a group, if a rule matches. `bytes` are those of the group; `None` if they are the server's attempt.
    fn capture_answer(
        &mut self,
        env: &mut Env,
        ids: (ClientId, ServerId),
        keepable: &Keepable,
        (bytes, sent): (Option<&[u8]>, SentAt),
    ) {
        let Some(mut cache) = env.cache.take() else { return };
        let mut followed = std::mem::take(&mut env.followed);
        let kept = self.capture_with(env, (&mut cache, &mut followed), ids, keepable, (bytes, sent));
        (env.cache, env.followed) = (Some(cache), followed);
        if std::mem::take(&mut self.state.cache.wants_probe) {
            env.want(Effect::WantProbe { database: Arc::clone(&self.state.database), is_awaited: false });
        }
        // With coalesce, whether others wait is no matter of the statement.
        let is_decided = kept.is_err() || env.rules.config.main.query_cache == Switch::Coalesce;
        if let Some(server) = self.servers.get(ids.1).filter(|_| is_decided) {
            let kept = kept.map(|()| KeptUntil::AgeOrTables);
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
            Some(_) => {
                let account = &self.clients.get(id).ok_or(Obstacle::Together)?.account;
                // PostgreSQL must know of each read in a SERIALIZABLE transaction. A BEGIN ahead of the group is of READ COMMITTED.
                if begin.is_none() && default_isolation(env, account) == Isolation::Serializable {
                    return Err(Obstacle::Serializable);
                }
                Some(self.basis(followed, (id, server_id), &cache.key, &question, (messages, sent))?)
            }
        };
        let mut capture = cache.capture(env, (id, statement), messages, (sent, begin.is_some()));
        let is_followed = fill.is_some();
        capture.set_fill(fill);
        let verifies = is_followed && env.rules.config.main.query_cache_verify > 0;
        capture.difference = verifies.then(|| Difference::of(question.text));
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
        (id, server_id): (ClientId, ServerId),
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
            Known::Reads(_) => names_day(messages),
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
            Known::Reads(reads) => followed.fill(sent, reads.subject(messages)).ok_or(Obstacle::NotFollowed),
            Known::NotFollowed => Err(Obstacle::Unpublished),
            Known::FirstTime => Err(Obstacle::Unanalysed),
            Known::Wanted => {
                let (text, types) = (Box::from(*text), Box::from(*types));
                let wanted = AnalysisWanted { client: id, key, text, types, opened };
                server.incoming.analysis = Some(Box::new(wanted));
                self.state.session_checks.interrupt();
                Err(Obstacle::Unanalysed)
            }
        }
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
        let heard = capture.hear(bytes);
        if heard != Heard::More {
            self.state.compare_known(cx, &capture, &heard);
        }
        let Some(cache) = cx.env.cache.as_deref_mut() else { return };
        let Some(server) = self.servers.get_mut(id) else { return };
        let numbers = &mut self.state.cache.numbers;
        let stats = &mut cx.env.measured.stats;
        match heard {
            Heard::More => server.incoming.capture = Some(capture),
            Heard::Plain => match dependence_of(&mut cx.env.followed, &self.state.database, &capture) {
                Err(JustChanged) => {
                    stats.note_kept(&capture.statement, Err(Obstacle::JustChanged));
                    numbers.unsettled += 1;
                }
                Ok(dependence) => {
                    let until = kept_until(dependence.as_deref());
                    stats.note_kept(&capture.statement, Ok(until));
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
}
