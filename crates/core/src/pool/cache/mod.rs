//! The query cache: answers to reads, given again without a server (`query_cache`; for users: docs/configure/query-cache.md).
//!
//! A rule of `[cache]` names clients, tables and an age. This room has the values: the answers of a worker ([`store`]), their keys ([`key`]),
//! the captures of answers on their way ([`capture`]), comparisons with a server's answers ([`comparison`]), and what of a statement alone
//! decides whether its answer is kept ([`judgement`]). It answers no client and sends nothing: `relay/known_answers.rs` does.

pub(crate) mod capture;
pub(crate) mod comparison;
pub(crate) mod judgement;
pub(crate) mod key;
pub(crate) mod store;
pub(crate) mod wal;

use std::collections::BTreeSet;

use pgweir_settings::{CacheFollow, CacheRule, CacheSubject, Config, QueryCache as Switch};
use pgweir_sql::{CacheHint, cache_hint, names_only_tables};

use crate::context::{Activity, Env, duration_us};
use crate::ids::{ClientId, PoolId};
use crate::pool::cache::capture::{Capture, SentAt};
use crate::pool::cache::comparison::{Sampling, Suspects};
use crate::pool::cache::store::Store;
use crate::pool::client::state::Account;
use crate::pool::prepared::parse_contexts::{Known, ParseContext, ParseContexts};
use crate::pool::{Gate, PoolState};
use crate::shared::Shared;
use crate::stats::histogram::Histogram;
use crate::stats::obstacle::Obstacle;
use crate::stats::snapshot::CacheNumbers;
use crate::stats::statements::Running;

/// The query cache of a worker.
pub(crate) struct QueryCache {
    pub(crate) store: Store,
    /// The numbers of sessions by their settings: two sessions have the same number if all their settings are the same.
    pub(crate) settings: ParseContexts,
    /// The key of the group that was looked at last.
    pub(crate) key: Vec<u8>,
    /// The choice of the hits that are compared with a server's answer (`query_cache_verify`).
    pub(crate) sampling: Sampling,
    /// The version of the rules, which rises with each reload.
    version: u64,
}

/// The facts about a client on which its keys and rules depend, as last found.
pub(crate) struct Reader {
    settings: Known,
    version: u64,
    /// The positions of the rules that match the client, among the rules of the configuration. Their `tables` are compared for each
    /// statement.
    rules: Box<[u16]>,
}

/// The state of a pool that the query cache needs.
#[derive(Default)]
pub(crate) struct PoolCache {
    /// A time (monotonic, µs): answers to statements that were sent at this time or before are not given. It moves when the primary or the
    /// database's server changes, and with CACHE PURGE.
    pub(crate) floor_us: u64,
    /// The counters of the pool. Its fields for the present number and size of answers, for evictions and for ages stay 0: the store and
    /// `ages` have them.
    pub(crate) numbers: CacheNumbers,
    /// Whether a probe is to be asked for, because an answer is to be kept.
    pub(crate) wants_probe: bool,
    /// The clients that wait for a probe.
    pub(crate) await_probe: BTreeSet<ClientId>,
    /// The kept answers that differ from a server's, about which nothing is known yet.
    pub(crate) suspects: Suspects,
    /// The ages of the answers that were given; `None` if none was.
    pub(crate) ages: Option<Box<Histogram>>,
    /// The highest of these ages.
    pub(crate) age_max_us: u64,
}

/// The terms on which a rule has an answer given.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    /// The age (µs) from which on the answer is not given.
    pub(crate) ttl_us: u64,
    /// The answer is given until its tables have changed: the time (µs) by which it may be behind. `None` if only the age counts.
    pub(crate) behind_us: Option<u64>,
}

impl Terms {
    /// Returns stricter terms: the answer may be this old (µs) at most.
    pub(crate) fn at_most(self, age_us: u64) -> Terms {
        match self.behind_us {
            None => Terms { ttl_us: self.ttl_us.min(age_us), ..self },
            Some(behind_us) => Terms { behind_us: Some(behind_us.min(age_us)), ..self },
        }
    }
}

/// A client that waits until it is known whether the tables of its answer were changed lately.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) enum ProbeWait {
    /// The client does not wait.
    #[default]
    No,
    /// The client waits since this time (monotonic, µs).
    Since(u64),
}

/// The value of [`Account::seen_probe`] for a client that may have been answered by a server since the cache was last asked.
pub(crate) const SEEING: u64 = u64::MAX;

/// The value of [`Account::seen_probe`] for a client that may have been answered by another PostgreSQL server than the one whose changes are
/// followed: it gets no answers that are followed.
pub(crate) const SEEN_ELSEWHERE: u64 = u64::MAX - 1;

/// The value of [`Account::wrote_us`] for a client whose last change may not be answered yet.
pub(crate) const WRITING: u64 = u64::MAX;

impl QueryCache {
    /// Returns the cache of a worker; `None` if the configuration has none.
    pub(crate) fn of(config: &Config, shared: &Shared) -> Option<Box<QueryCache>> {
        is_on(config).then(|| {
            Box::new(QueryCache {
                store: Store::new(share_bytes(config, shared)),
                settings: ParseContexts::of_all_settings(),
                key: Vec::new(),
                sampling: Sampling::default(),
                version: 0,
            })
        })
    }

    /// Follows a new configuration, which has a cache, too. Returns the number of answers that were evicted.
    pub(crate) fn follow(&mut self, config: &Config, shared: &Shared) -> usize {
        self.version += 1;
        self.store.resize(share_bytes(config, shared))
    }

    /// Returns the present version of the rules.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Returns the number of the client's session; `None` if its settings are too long to be compared.
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

    /// Returns a capture for the answer to the group `messages`, whose statement is `statement` in SHOW STATEMENTS. The caller has written
    /// the group's key to [`QueryCache::key`]. `is_in_block`: a BEGIN was sent ahead of it.
    pub(crate) fn capture(
        &self,
        env: &Env,
        (client, statement): (ClientId, Running),
        messages: &[u8],
        (sent, is_in_block): (SentAt, bool),
    ) -> Capture {
        let bytes_max = answer_bytes_max(&env.rules.config, self.store.bytes_max());
        let what = (self.key.as_slice().into(), sent);
        Capture::new(client, statement, what, (messages, is_in_block), bytes_max, &self.store)
    }
}

/// Returns whether the configuration uses answers more than once at all.
fn is_on(config: &Config) -> bool {
    match config.main.query_cache {
        Switch::Off => false,
        Switch::Coalesce => true,
        Switch::On | Switch::Hinted => !config.cache.is_empty(),
    }
}

/// Returns whether all statements count: `coalesce` needs no rule.
fn names_all(config: &Config) -> bool {
    config.main.query_cache == Switch::Coalesce && config.cache.is_empty()
}

/// Returns the age (µs) up to which the comments of a text allow its answer to be given, or why they do not allow it at all.
pub(crate) fn hinted_age_us(config: &Config, text: &[u8]) -> Result<u64, Obstacle> {
    let is_asked = config.main.query_cache == Switch::Hinted;
    let hint = if is_asked || config.main.query_cache_hints { cache_hint(text) } else { None };
    match hint {
        Some(CacheHint::Never) => Err(Obstacle::Hint),
        Some(CacheHint::AtMost(age_ms)) => Ok(age_ms.saturating_mul(1000)),
        Some(CacheHint::Any) => Ok(u64::MAX),
        None if is_asked => Err(Obstacle::NoHint),
        None => Ok(u64::MAX),
    }
}

/// Returns the number of bytes for one worker: all workers have equal shares.
fn share_bytes(config: &Config, shared: &Shared) -> usize {
    config.main.query_cache_bytes as usize / usize::from(shared.workers()).max(1)
}

/// Returns the number of bytes of the longest answer that is kept in a store of `store_bytes_max` bytes.
fn answer_bytes_max(config: &Config, store_bytes_max: usize) -> usize {
    // As the rules of settings say of all workers together, an answer takes a quarter of the room at most.
    (config.main.query_cache_max_answer as usize).min(store_bytes_max / 4)
}

impl PoolState {
    /// Returns the reason why the cache is not used in this pool; `None` if it may be used.
    pub(crate) fn cache_obstacle(&self, env: &Env) -> Option<Obstacle> {
        let config = &env.rules.config;
        let is_named =
            || names_all(config) || config.cache.iter().any(|rule| rule.may_name_database(&self.database));
        match () {
            () if config.main.query_cache == Switch::Off => Some(Obstacle::Off),
            () if !is_named() => Some(Obstacle::NoRule),
            () => self.session_obstacle(),
        }
    }

    /// Returns the reason why no cache can be used in this pool: pgweir does not know the settings of its clients.
    pub(crate) fn session_obstacle(&self) -> Option<Obstacle> {
        match () {
            () if self.policy.keeps_server() => Some(Obstacle::SessionPooling),
            () if !self.policy.keeps_sessions() => Some(Obstacle::SessionState),
            () => None,
        }
    }

    /// Returns whether clients of the pool may be answered from the cache now. PAUSE holds their statements, as if a server were needed.
    pub(crate) fn may_answer_known(&self, env: &Env) -> bool {
        self.gate == Gate::Open
            && env.activity == Activity::Active
            && env.stopping.is_none()
            && self.session_obstacle().is_none()
    }

    /// Returns the terms on which an answer to this text is given to the client; `None` if the text matches no rule. With
    /// `query_cache=coalesce` the age is 0.
    pub(crate) fn cache_terms(
        &self,
        env: &Env,
        version: u64,
        account: &mut Account,
        text: &[u8],
    ) -> Option<Terms> {
        const COALESCED: Terms = Terms { ttl_us: 0, behind_us: None };
        let config = &env.rules.config;
        if names_all(config) {
            return Some(COALESCED);
        }
        let rules = self.rules_of(env, version, account)?.iter().map(|&at| config.cache.get(usize::from(at)));
        let fits = |rule: &&CacheRule| {
            rule.tables.is_empty() || names_only_tables(text, |schema, table| rule.names_table(schema, table))
        };
        let rule = rules.flatten().find(fits)?;
        match config.main.query_cache {
            Switch::Coalesce => Some(COALESCED),
            Switch::On | Switch::Hinted | Switch::Off => {
                let ttl_us = rule.ttl(config).map_or(u64::MAX, duration_us);
                let behind_us = match rule.follow(config) {
                    CacheFollow::Time => None,
                    CacheFollow::Wal => Some(u64::from(config.main.query_cache_max_age_ms) * 1000),
                };
                Some(Terms { ttl_us, behind_us }).filter(|terms| terms.ttl_us > 0)
            }
        }
    }

    /// Returns the positions of the rules that name the client, among the rules of the configuration. `None` if the cache has not looked at
    /// the client's settings yet.
    pub(crate) fn rules_of<'a>(
        &self,
        env: &Env,
        version: u64,
        account: &'a mut Account,
    ) -> Option<&'a [u16]> {
        if account.reader.as_deref()?.version != version {
            let rules = self.rules_about(env, account);
            let reader = account.reader.as_deref_mut()?;
            (reader.version, reader.rules) = (version, rules);
        }
        Some(&account.reader.as_deref()?.rules)
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
