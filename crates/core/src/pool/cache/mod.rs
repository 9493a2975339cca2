//! The query cache: answers to reads, given again without a server (`query_cache`; for users: docs/configure/query-cache.md).
//!
//! A rule of `[cache]` says of which statements of which clients, and up to which age. This room has the values: the answers of a worker
//! ([`store`]), their keys, and the captures of answers on their way. It answers no client and sends nothing: `relay/known_answers.rs` acts.

pub(crate) mod capture;
pub(crate) mod key;
pub(crate) mod store;

use pgweir_settings::{CacheRule, CacheSubject, Config, QueryCache as Switch};
use pgweir_sql::names_only_tables;

use crate::context::{Activity, Env, duration_us};
use crate::ids::{ClientId, PoolId};
use crate::pool::cache::capture::{Capture, SentAt};
use crate::pool::cache::store::Store;
use crate::pool::client::state::Account;
use crate::pool::prepared::parse_contexts::{Known, ParseContext, ParseContexts};
use crate::pool::{Gate, PoolState};
use crate::shared::Shared;
use crate::stats::histogram::Histogram;
use crate::stats::snapshot::CacheNumbers;

/// The query cache of a worker.
pub(crate) struct QueryCache {
    pub(crate) store: Store,
    /// The settings of clients' sessions, all of them, by number.
    pub(crate) settings: ParseContexts,
    /// The key of the group that is looked at.
    pub(crate) key: Vec<u8>,
    /// Rises with each change of the rules.
    version: u64,
}

/// What the cache knows of a client.
pub(crate) struct Reader {
    settings: Known,
    version: u64,
    /// The rules that are about the client, as far as their tables match: their places among the rules of the configuration.
    rules: Box<[u16]>,
}

/// What a pool has of the cache.
#[derive(Default)]
pub(crate) struct PoolCache {
    /// Answers to statements that were sent at this time (monotonic, µs) or before are not given: the pool's database, or its primary, may
    /// be another one since, or the operator has purged them.
    pub(crate) floor_us: u64,
    /// What is counted; what is kept now is the store's knowledge.
    pub(crate) numbers: CacheNumbers,
    /// How old the answers were that were given; `None` without any.
    pub(crate) ages: Option<Box<Histogram>>,
}

/// [`Account::wrote_us`] of a client whose last change may not have been answered.
pub(crate) const WRITING: u64 = u64::MAX;

impl QueryCache {
    /// The cache of a worker, if the configuration has one.
    pub(crate) fn of(config: &Config, shared: &Shared) -> Option<Box<QueryCache>> {
        is_on(config).then(|| {
            Box::new(QueryCache {
                store: Store::new(share_bytes(config, shared)),
                settings: ParseContexts::of_all_settings(),
                key: Vec::new(),
                version: 0,
            })
        })
    }

    /// The configuration has changed, and has a cache still. Returns the number of answers that gave way.
    pub(crate) fn follow(&mut self, config: &Config, shared: &Shared) -> usize {
        self.version += 1;
        self.store.resize(share_bytes(config, shared))
    }

    /// The number of the rules' present version.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The number of the settings of the client's session. `None`: they are too long to be compared.
    pub(crate) fn settings_of(
        &mut self,
        env: &Env,
        pool: PoolId,
        account: &mut Account,
    ) -> Option<ParseContext> {
        let reader = account.reader.as_deref();
        if let Some(known) = reader.and_then(|reader| reader.settings.of(&account.params, &account.session)) {
            return known;
        }
        let settings = self.settings.find(pool, &env.tracked, &account.params, &account.session);
        let number = settings.parse_context();
        // `application_name` may be another one.
        account.reader = Some(Box::new(Reader { settings, version: u64::MAX, rules: Box::default() }));
        number
    }

    /// Capture of the answer to the group that is `messages`, whose key is [`QueryCache::key`].
    pub(crate) fn capture(&self, env: &Env, client: ClientId, messages: &[u8], sent: SentAt) -> Capture {
        let bytes_max = env.rules.config.main.query_cache_max_answer as usize;
        let what = (self.key.as_slice().into(), sent);
        Capture::new(client, what, messages, bytes_max, self.store.underway())
    }
}

/// Whether answers are kept at all.
fn is_on(config: &Config) -> bool {
    config.main.query_cache == Switch::On && !config.cache.is_empty()
}

/// Each worker has an equal share.
fn share_bytes(config: &Config, shared: &Shared) -> usize {
    config.main.query_cache_bytes as usize / usize::from(shared.workers()).max(1)
}

impl PoolState {
    /// Why no client of this pool is answered from the cache, and no answer to one is kept. `None`: some may be.
    pub(crate) fn cache_obstacle(&self, env: &Env) -> Option<&'static str> {
        let config = &env.rules.config;
        let is_named = || config.cache.iter().any(|rule| rule.may_name_database(&self.database));
        match () {
            () if config.main.query_cache == Switch::Off => Some("off: query_cache=off"),
            () if !is_named() => Some("off: no rule"),
            () if self.policy.keeps_server() => Some("off: pool_mode=session"),
            () if !self.policy.keeps_sessions() => Some("off: session_state=pgbouncer"),
            () => None,
        }
    }

    /// Statements of its clients may be answered now. PAUSE holds them, as if a server were needed.
    pub(crate) fn may_answer_known(&self, env: &Env) -> bool {
        self.gate == Gate::Open
            && env.activity == Activity::Active
            && env.stopping.is_none()
            && self.policy.keeps_sessions()
            && !self.policy.keeps_server()
    }

    /// The age (µs) at which an answer to this text is not given to the client any more, by the first rule that it matches.
    pub(crate) fn cache_ttl_us(
        &self,
        env: &Env,
        version: u64,
        account: &mut Account,
        text: &[u8],
    ) -> Option<u64> {
        let config = &env.rules.config;
        if account.reader.as_deref()?.version != version {
            let rules = self.rules_about(env, account);
            let reader = account.reader.as_deref_mut()?;
            (reader.version, reader.rules) = (version, rules);
        }
        let rules = account.reader.as_deref()?.rules.iter().map(|&at| config.cache.get(usize::from(at)));
        let fits = |rule: &&CacheRule| {
            rule.tables.is_empty() || names_only_tables(text, |schema, table| rule.names_table(schema, table))
        };
        let rule = rules.flatten().find(fits)?;
        Some(duration_us(rule.ttl(config)))
    }

    fn rules_about(&self, env: &Env, account: &Account) -> Box<[u16]> {
        let client = CacheSubject {
            database: &self.database,
            user: &account.user,
            application_name: env.application_name(&account.params).unwrap_or_default(),
        };
        let rules = env.rules.config.cache.iter().enumerate().filter(|(_, rule)| rule.is_about(client));
        rules.map_while(|(at, _)| u16::try_from(at).ok()).collect()
    }
}
