//! The statement that a server runs, for the top list of SHOW STATEMENTS and the slow log: by its text without literals.
//!
//! A statement is a piece with one answer: a Query, or the messages up to a Sync. If a piece has several, the first that does more than
//! begin a transaction counts. Nothing here may decide anything: it only watches.

use pgweir_settings::Main;
use pgweir_sql::{Traits, Verb};
use pgweir_wire::Messages;
use pgweir_wire::backend::{ErrorFields, TxStatus};
use pgweir_wire::frontend::{BindHead, Parse, tag};

use crate::context::{Cx, Env};
use crate::driver::{Driver, Endpoint, Level};
use crate::ids::{ClientId, ServerId, StatementId};
use crate::limits::SLOW_STATEMENTS_KEPT;
use crate::mail::Question;
use crate::pool::client::state::{ClientState, Link};
use crate::pool::relay::exchange::group::Group;
use crate::pool::relay::preamble::{Ahead, LinkPhase, Preamble};
use crate::pool::server::state::Server;
use crate::pool::{Pool, PoolState};
use crate::shared::Shared;
use crate::stats::snapshot::SlowSnapshot;
use crate::stats::statements::{Prepared, Running, Seen};
use crate::stats::times::Split;
use crate::stats::trace::{Traced, TracedStatement};

/// Returns a worker's share of `statement_stats_bytes`.
pub(crate) fn share_bytes(main: &Main, shared: &Shared) -> usize {
    main.statement_stats_bytes as usize / usize::from(shared.workers()).max(1)
}

/// The values of a statement for the slow log and the traces.
pub(crate) struct Told {
    split: Split,
    running: Running,
    bytes: u64,
    text: Option<Box<str>>,
    traced: Option<Box<Traced>>,
    slow: bool,
}

impl PoolState {
    /// Notes that a server's statement is answered. `behind_bytes` is the number of bytes after the answer that were not looked at yet.
    /// Returns the values for the slow log and the traces, if the statement was slow or is traced.
    #[inline]
    pub(crate) fn statement_ended(
        &self,
        env: &mut Env,
        server: &mut Server,
        split: Split,
        behind_bytes: usize,
    ) -> Option<Told> {
        let answered_bytes = server.work.received_bytes.saturating_sub(behind_bytes as u64);
        let work = &mut server.work;
        work.recent.note(&work.running);
        let bytes = answered_bytes.saturating_sub(work.running.from_bytes);
        let traced = work.traced.take();
        let slow = split.total_us() >= self.policy.slow_us;
        let known = env.measured.stats.note(&work.running, split, bytes);
        let told = (slow || traced.is_some()).then(|| {
            let text = known.map(|known| known.text.clone());
            Told { split, running: work.running, bytes, text, traced, slow }
        });
        // The statement that is queued behind it begins there.
        work.running.begin(answered_bytes);
        told
    }
}

impl Pool {
    /// Whether neither the top list nor traces need statements.
    #[inline]
    fn watches_nothing(&self, env: &Env) -> bool {
        env.measured.stats.is_off() && !env.measured.sampler.is_on()
    }

    /// Notes that a linked client's Query or Parse goes to its server. The text may be only its beginning.
    pub(crate) fn measure_text(
        &mut self,
        env: &mut Env,
        id: ClientId,
        message: u8,
        body: &[u8],
        traits: &Traits,
        text: &[u8],
    ) {
        if self.watches_nothing(env) {
            return;
        }
        let statement = Prepared { fingerprint: traits.fingerprint, light: traits.verb == Verb::Begin };
        let Some(client) = self.clients.get(id) else { return };
        let ClientState::Linked(link) = &client.state else { return };
        let server_id = link.server;
        if message == tag::PARSE {
            let name = body.split(|byte| *byte == 0).next().unwrap_or_default();
            let Some(server) = self.servers.get_mut(server_id) else { return };
            server.work.followed.note(name, statement);
            // If it is in use when it is bound, its text is no longer at hand.
            self.enter_parsed(env, server_id, statement.fingerprint, text);
            if env.measured.sampler.is_on() {
                self.trace(env, server_id, Some(text));
            }
        } else {
            self.measure_as(env, server_id, statement, |_, _| Some(text.to_vec()));
        }
    }

    /// Notes that a linked client's Bind goes to its server unchanged.
    pub(crate) fn measure_bind(&mut self, env: &mut Env, id: ClientId, body: &[u8]) {
        if self.watches_nothing(env) {
            return;
        }
        let Some(head) = BindHead::parse_prefix(body) else { return };
        let Some(client) = self.clients.get(id) else { return };
        let ClientState::Linked(link) = &client.state else { return };
        let server_id = link.server;
        let followed =
            self.servers.get(server_id).and_then(|server| server.work.followed.get(head.statement));
        if let Some(statement) = followed {
            self.measure_as(env, server_id, statement, |_, _| None);
        }
    }

    /// Notes that a linked client's Bind of a statement that is known by content goes to its server.
    pub(crate) fn measure_statement(&mut self, env: &mut Env, id: ClientId, statement: StatementId) {
        if self.watches_nothing(env) {
            return;
        }
        let Some(known) = env.statements.get(statement).and_then(|known| known.traits) else { return };
        let prepared = Prepared { fingerprint: known.fingerprint, light: known.verb == Verb::Begin };
        let Some(ClientState::Linked(link)) = self.clients.get(id).map(|client| &client.state) else {
            return;
        };
        self.measure_as(env, link.server, prepared, |_, env| {
            env.statements.get(statement).map(|known| known.query.to_vec())
        });
    }

    /// Notes that a client's group, which was looked at as a whole, was sent to its server, or its turn has come there. `bytes` are its
    /// bytes; if they are `None`, the group is at the front of the client's inbox.
    #[inline]
    pub(crate) fn measure_group(
        &mut self,
        env: &mut Env,
        id: ClientId,
        server_id: ServerId,
        group: &Group,
        bytes: Option<&[u8]>,
    ) {
        if self.watches_nothing(env) {
            return;
        }
        let statement = Prepared { fingerprint: group.statement, light: false };
        self.measure_as(env, server_id, statement, |worker, env| {
            let bytes = bytes.or_else(|| Some(&*worker.clients.get(id)?.inbox))?;
            worker.group_text(env, id, bytes)
        });
    }

    /// Notes that a server runs this statement. Its text is asked for only if it is not known, or traces are on.
    #[inline]
    fn measure_as(
        &mut self,
        env: &mut Env,
        id: ServerId,
        statement: Prepared,
        text: impl FnOnce(&Pool, &Env) -> Option<Vec<u8>>,
    ) {
        let Some(server) = self.servers.get_mut(id) else { return };
        let Prepared { fingerprint, light } = statement;
        let pool = self.id;
        if server.work.running.is_named()
            || env.measured.stats.name_known(&mut server.work.running, pool, fingerprint, light)
                && !env.measured.sampler.is_on()
        {
            return;
        }
        let text = text(self, env);
        if env.measured.sampler.is_on() {
            self.trace(env, id, text.as_deref());
        }
        if let Some(text) = text {
            self.measure_new(env, id, statement, &text);
        }
    }

    /// Decides whether a server's statement is traced, with its text.
    #[cold]
    fn trace(&mut self, env: &mut Env, id: ServerId, text: Option<&[u8]>) {
        let Some(server) = self.servers.get_mut(id) else { return };
        if server.work.traced.as_ref().is_none_or(|traced| traced.context.is_none())
            && let Some(traced) = env.measured.sampler.choose(text)
        {
            server.work.traced = Some(Box::new(traced));
        }
    }

    /// Enters a statement that is prepared on a server in the list, unless it is there.
    #[cold]
    #[inline(never)]
    fn enter_parsed(&self, env: &mut Env, id: ServerId, fingerprint: u64, text: &[u8]) {
        let pool = self.id;
        if !env.measured.stats.has(pool, fingerprint) {
            let is_in_transaction = self.is_in_transaction(id);
            env.measured.stats.make(Seen { pool, fingerprint, text, is_in_transaction });
        }
    }

    /// Whether a transaction block is open on the server, or was begun by messages that were sent or are to be sent ahead of the next one.
    pub(crate) fn is_in_transaction(&self, id: ServerId) -> bool {
        let Some(server) = self.servers.get(id) else { return false };
        let client = server.state.client().and_then(|client| self.clients.get(client));
        let begins = matches!(
            client.map(|client| &client.state),
            Some(ClientState::Linked(Link {
                phase: LinkPhase::Exchange(
                    Preamble::Begin(_) | Preamble::Sent(Ahead::Begin, _) | Preamble::Block(_)
                ),
                ..
            }))
        );
        begins || server.tx != TxStatus::Idle || server.work.running.is_begin()
    }

    #[cold]
    fn measure_new(&mut self, env: &mut Env, id: ServerId, statement: Prepared, text: &[u8]) {
        let Prepared { fingerprint, light } = statement;
        let pool = self.id;
        let is_in_transaction = self.is_in_transaction(id);
        env.measured.stats.make(Seen { pool, fingerprint, text, is_in_transaction });
        if let Some(server) = self.servers.get_mut(id) {
            env.measured.stats.name_known(&mut server.work.running, pool, fingerprint, light);
        }
    }

    /// Returns the text of the group's first statement, of which the fingerprint for the statistics is made.
    #[cold]
    fn group_text(&self, env: &Env, id: ClientId, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut unnamed = None;
        for message in Messages::of(bytes).whole() {
            let body = message.body();
            let name = match message.tag() {
                tag::QUERY => return Some(body.strip_suffix(b"\0").unwrap_or(body).to_vec()),
                tag::PARSE => {
                    unnamed = Some(Parse::parse(body).ok()?.query);
                    continue;
                }
                tag::BIND => BindHead::parse_prefix(body)?.statement,
                tag::DESCRIBE if body.first() == Some(&b'S') => body.get(1..)?.strip_suffix(b"\0")?,
                _ => continue,
            };
            if name.is_empty() {
                return unnamed.map(<[u8]>::to_vec);
            }
            let statement = self.clients.get(id)?.account.statement(name)?;
            return env.statements.get(statement).map(|known| known.query.to_vec());
        }
        None
    }

    /// Reports a statement that was slow, or is traced, and is answered.
    #[cold]
    pub(crate) fn tell_statement<D: Driver>(&mut self, cx: &mut Cx<'_, D>, id: ServerId, told: Told) {
        let Told { split, running, bytes, text, traced, slow } = told;
        if let Some(traced) = traced {
            self.traced_statement(cx, id, split, running, *traced, text.clone());
        }
        if slow {
            self.slow_statement(cx, id, split, running, bytes, text);
        }
    }

    /// Reports a traced statement that is answered.
    #[cold]
    fn traced_statement<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        split: Split,
        running: Running,
        traced: Traced,
        text: Option<Box<str>>,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        let (host, port) = match &server.at.endpoint {
            Endpoint::Tcp { host, port } => (host.to_string(), *port),
            Endpoint::Unix { .. } => (String::new(), self.state.config.port),
        };
        let statement = TracedStatement {
            context: traced.context,
            at_us: cx.env.now.wall_us,
            split,
            database: self.state.database.clone(),
            host,
            port,
            text,
            rows: running.rows,
            failed: running.failed,
        };
        cx.driver.ask(Question::Traced(Box::new(statement)));
    }

    /// Counts an error that a client is sent.
    pub(crate) fn note_error(&mut self, env: &mut Env, client: ClientId, code: &[u8]) {
        env.counters.errors.note(code);
        if self.clients.contains_key(client) {
            self.state.numbers.errors += 1;
        }
    }

    /// Counts a server's ErrorResponse that goes to a client, by its body.
    pub(crate) fn note_server_error(&mut self, env: &mut Env, id: ServerId, body: &[u8]) {
        let fields = ErrorFields::parse(body).ok();
        env.counters.errors.note(fields.and_then(|fields| fields.code()).unwrap_or_default());
        let Some(server) = self.servers.get_mut(id) else { return };
        server.work.running.failed = true;
        self.state.numbers.errors += 1;
    }

    /// Logs a statement that took longer than `log_min_duration_ms`.
    #[cold]
    fn slow_statement<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        id: ServerId,
        split: Split,
        running: Running,
        bytes: u64,
        text: Option<Box<str>>,
    ) {
        let Some(server) = self.servers.get(id) else { return };
        let Some(client) = server.state.client().and_then(|client| self.clients.get(client)) else { return };
        let account = &client.account;
        let ms = |us: u64| format!("{}.{:03}", us / 1_000, us % 1_000);
        let line = format!(
            "{} duration: {} ms (wait {} ms, server {} ms, client {} ms), {} rows, {bytes} bytes{}  statement: {}",
            self.client_log_name(client),
            ms(split.total_us()),
            ms(split.wait_us),
            ms(split.server_us),
            ms(split.client_us),
            running.rows,
            if running.failed { ", failed" } else { "" },
            text.as_deref().unwrap_or("(not known)")
        );
        let application =
            cx.env.tracked.position(b"application_name").and_then(|position| account.params.get(position));
        let snapshot = SlowSnapshot {
            at_us: cx.env.now.wall_us,
            database: self.state.database.clone(),
            user: account.user.clone(),
            application_name: String::from_utf8_lossy(application.unwrap_or_default()).into_owned(),
            text,
            split,
            rows: running.rows,
            bytes,
            failed: running.failed,
        };
        if cx.env.measured.slow.len() >= SLOW_STATEMENTS_KEPT {
            cx.env.measured.slow.pop_front();
        }
        cx.env.measured.slow.push_back(snapshot);
        cx.log(Level::Log, &line);
    }
}

/// Returns the number of rows that a CommandComplete names: the number at the end of `SELECT 5` or `INSERT 0 5`; 0 if there is none.
#[inline]
pub(crate) fn rows_in_tag(body: &[u8]) -> u64 {
    let text = body.strip_suffix(b"\0").unwrap_or(body);
    let digits = text.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    text[text.len() - digits..]
        .iter()
        .fold(0u64, |sum, digit| sum.saturating_mul(10).saturating_add(u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_name_their_rows() {
        for (tag, rows) in [
            (&b"SELECT 5\0"[..], 5),
            (b"INSERT 0 12\0", 12),
            (b"CREATE TABLE\0", 0),
            (b"", 0),
            (b"SELECT 99999999999999999999999\0", u64::MAX),
        ] {
            assert_eq!(rows_in_tag(tag), rows);
        }
    }
}
