//! The rules of `[cache]`: the clients and tables that a rule matches, and the checks of the rules.

use std::time::Duration;

use crate::config::Config;
use crate::error::{LoadError, Warning};
use crate::route::Route;
use crate::rules::routes::fits;
use crate::syntax::value::Value;
use crate::table::CacheRule;
use crate::{Kind, QueryCache};

/// The condition under which an answer is not given any more.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub enum CacheFollow {
    /// The answer has reached the age `ttl_ms`.
    #[default]
    Time,
    /// PostgreSQL has told, through logical replication, that a table which the answer depends on was changed.
    Wal,
}

impl CacheFollow {
    /// The words that the configuration file may have.
    pub const WORDS: &'static [&'static str] = &["time", "wal"];
}

impl Value for CacheFollow {
    fn parse(text: &str, _: Kind) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "time" => Ok(CacheFollow::Time),
            "wal" => Ok(CacheFollow::Wal),
            "own" | "coalesce" => Err("this version knows time and wal only".to_owned()),
            _ => Err("it must be time or wal".to_owned()),
        }
    }

    fn show(&self, _: Kind) -> Option<String> {
        Some(self.to_string())
    }

    fn unset() -> Self {
        CacheFollow::default()
    }
}

impl std::fmt::Display for CacheFollow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            CacheFollow::Time => "time",
            CacheFollow::Wal => "wal",
        })
    }
}

/// The client whose statement the rules are asked about.
#[derive(Clone, Copy, Debug)]
pub struct CacheSubject<'a> {
    /// The database that the client asked for.
    pub database: &'a str,
    /// The user that the client logged in as.
    pub user: &'a str,
    /// The client's `application_name`, in the encoding of the client.
    pub application_name: &'a [u8],
}

impl CacheRule {
    /// Returns whether the rule matches this client. Its `tables` are compared with each statement.
    pub fn is_about(&self, client: CacheSubject<'_>) -> bool {
        let fits = |pattern: &Option<String>, text: &[u8]| {
            pattern.as_ref().is_none_or(|pattern| fits(pattern.as_bytes(), text))
        };
        fits(&self.database, client.database.as_bytes())
            && fits(&self.user, client.user.as_bytes())
            && fits(&self.application_name, client.application_name)
    }

    /// Returns whether the rule matches this database.
    pub fn may_name_database(&self, database: &str) -> bool {
        self.database.as_ref().is_none_or(|pattern| fits(pattern.as_bytes(), database.as_bytes()))
    }

    /// Returns whether the rule's `tables` name this table. `schema` is empty if the statement names none.
    pub fn names_table(&self, schema: &[u8], table: &[u8]) -> bool {
        self.tables.iter().any(|pattern| {
            let (in_schema, name) =
                pattern.rsplit_once('.').map_or((None, &**pattern), |(s, t)| (Some(s), t));
            in_schema.is_none_or(|own| own.as_bytes() == schema) && fits(name.as_bytes(), table)
        })
    }

    /// Returns the age from which on answers are not given; `None` if there is none, which only rules with `follow=wal` may have.
    pub fn ttl(&self, config: &Config) -> Option<Duration> {
        match self.follow(config) {
            CacheFollow::Time => Some(self.ttl_ms.unwrap_or(config.main.query_cache_ttl_ms)),
            CacheFollow::Wal => self.ttl_ms.filter(|ttl| !ttl.is_zero()),
        }
    }

    /// Returns the condition under which answers are not given any more.
    pub fn follow(&self, config: &Config) -> CacheFollow {
        self.follow.unwrap_or(config.main.query_cache_follow)
    }
}

impl Config {
    /// Returns whether the changes of the tables of a database are followed: a rule with `follow=wal` matches the database, and nothing stands
    /// against it.
    pub fn is_followed(&self, database: &str) -> bool {
        self.follow_obstacle(database) == Some(Ok(()))
    }

    /// Returns whether the changes of a database can be followed, or the reason why not, for the operator. `None` if no rule asks for it.
    pub fn follow_obstacle(&self, database: &str) -> Option<Result<(), &'static str>> {
        let asks =
            |rule: &CacheRule| rule.follow(self) == CacheFollow::Wal && rule.may_name_database(database);
        let is_on = matches!(self.main.query_cache, QueryCache::On | QueryCache::Hinted);
        if !is_on || !self.cache.iter().any(asks) {
            return None;
        }
        Some(match self.databases.get(database) {
            None => Err("follow=wal needs a line of the database's own name in [databases]"),
            Some(entry) if self.route_of_database(entry) == Some(Route::Standby) => {
                Err("the database reads at standbys only (route=standby), and their answers are not kept")
            }
            Some(entry) if entry.hosts.len() > 1 => {
                Err("follow=wal needs one host, and the database has several: use ttl_ms")
            }
            Some(_) => Ok(()),
        })
    }
}

/// Returns every fault of the rules.
pub(crate) fn faults(config: &Config) -> Vec<LoadError> {
    let mut faults = Vec::new();
    for rule in &config.cache {
        let Some(place) = config.cache_places.get(&rule.name) else { continue };
        let mut say = |reason: String| {
            let problem = format!("rule \"{}\" of [cache]: {reason}", rule.name);
            faults.push(place.error(format!("{problem} ({place})"), problem));
        };
        let keeps = config.main.query_cache != QueryCache::Coalesce;
        if rule.ttl(config).is_some_and(|ttl| ttl.is_zero()) && keeps {
            say("it needs ttl_ms, or query_cache_ttl_ms must be set".to_owned());
        }
        if keeps && rule.follow(config) == CacheFollow::Wal && config.main.query_cache_user.is_empty() {
            say("follow=wal needs query_cache_user, a role with the right REPLICATION".to_owned());
        }
        for pattern in &rule.tables {
            let front = pattern.strip_suffix('*').unwrap_or(pattern);
            let parts = front.split('.').count();
            if front.contains('*') || parts > 2 || pattern.starts_with('.') || pattern.ends_with('.') {
                say(format!("\"{pattern}\" in tables is no name of a table, with or without its schema"));
            }
        }
    }
    let (age, probe) = (config.main.query_cache_max_age_ms, config.main.query_cache_probe_ms);
    if config.main.query_cache != QueryCache::Off
        && config.cache.iter().any(|rule| rule.follow(config) == CacheFollow::Wal)
        && u64::from(age) < 2 * u64::from(probe)
        && let Some(place) =
            ["query_cache_max_age_ms", "query_cache_probe_ms"].iter().find_map(|name| config.given.get(name))
    {
        let problem = format!(
            "query_cache_max_age_ms is {age}, which is less than twice query_cache_probe_ms ({probe}): no answer would be young enough"
        );
        faults.push(place.error(format!("{problem} ({place})"), problem));
    }
    let (bytes, answer) = (config.main.query_cache_bytes, config.main.query_cache_max_answer);
    if config.main.query_cache != QueryCache::Off
        && answer > bytes / 4
        && let Some(place) = ["query_cache_max_answer", "query_cache_bytes", "query_cache"]
            .iter()
            .find_map(|name| config.given.get(name))
    {
        let problem = format!(
            "query_cache_max_answer is {answer}, which is more than a quarter of query_cache_bytes ({bytes})"
        );
        faults.push(place.error(format!("{problem} ({place})"), problem));
    }
    faults
}

/// Returns the warnings about the cache.
pub(crate) fn warnings(config: &Config) -> Vec<Warning> {
    let keeps = matches!(config.main.query_cache, QueryCache::On | QueryCache::Hinted);
    let is_without_rules = keeps && config.cache.is_empty();
    let place = config.given.get("query_cache").filter(|_| is_without_rules);
    place
        .map(|place| {
            place.warning(format!(
                "query_cache={} has no effect without a line in [cache]",
                config.main.query_cache
            ))
        })
        .into_iter()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_named_with_its_schema_or_without() {
        let rule = |tables: &[&str]| CacheRule {
            tables: tables.iter().map(|name| (*name).to_owned()).collect(),
            ..CacheRule::default()
        };
        for (tables, schema, table, expected) in [
            (&["a", "b"][..], "", "b", true),
            (&["a", "b"], "public", "b", true),
            (&["a"], "", "ab", false),
            (&["a*"], "", "ab", true),
            (&["s.a"], "s", "a", true),
            (&["s.a"], "", "a", false),
            (&["s.*"], "s", "x", true),
            (&["s.*"], "t", "x", false),
            (&[], "", "a", false),
        ] {
            let names = rule(tables).names_table(schema.as_bytes(), table.as_bytes());
            assert_eq!(names, expected, "{tables:?} {schema}.{table}");
        }
    }
}
