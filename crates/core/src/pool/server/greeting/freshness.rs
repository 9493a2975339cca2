//! The age of a pool's greeting: the time at which a server confirmed it, and the values with which PostgreSQL begins new connections. This
//! file has values only; `look.rs` asks servers.

use std::collections::VecDeque;

use crate::limits::{GREETING_CONFIRMED_US, GREETING_LATE_US, GREETING_ORIGINS_MAX};
use crate::pool::server::greeting::IN_HOT_STANDBY;
use crate::pool::session::params::quote_literal;

/// The beginning of the question.
const LOOK: &[u8] = b"SELECT 'o', NULL";

/// Parameters of which `pg_settings` does not say what a new connection begins with: each session has its own value, or each
/// server reports a change by itself.
const NOT_ASKED: [&[u8]; 4] =
    [IN_HOT_STANDBY, b"is_superuser", b"session_authorization", b"application_name"];

/// The time at which a server confirmed the greeting, and what servers said of it.
#[derive(Default)]
pub(crate) struct Freshness {
    /// The time at which a server last confirmed the values that new clients are told (monotonic, µs).
    confirmed_us: u64,
    /// The time at which the first client logged in after the greeting became stale (monotonic, µs). `None` if no client did, or if a
    /// server has confirmed the greeting since.
    wanted_us: Option<u64>,
    /// Whether PostgreSQL gives new connections other values than those in the greeting. Only the login of a new server can tell them.
    pub(crate) is_outdated: bool,
    /// Answers of servers, by the run of the PostgreSQL server that they belong to.
    seen: VecDeque<(Box<[u8]>, Facts)>,
}

/// A server's answer about the values that new connections begin with.
#[derive(Default)]
struct Facts {
    /// The `reset_val` of parameters, as the configuration files have it.
    configured: Vec<Fact>,
    /// The settings of the database and of the role (ALTER DATABASE, ALTER ROLE), the most specific one last.
    of_database: Vec<Fact>,
    /// The parameters whose value this server had from its database or role when it logged in.
    from_database: Vec<Box<[u8]>>,
}

/// The name and the value of a setting.
type Fact = (Box<[u8]>, Box<[u8]>);

/// The meaning of an answer for the greeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The greeting is still right, or the server cannot say.
    Right,
    /// A configuration file was changed and read again. Open connections follow by themselves.
    ConfigurationChanged,
    /// ALTER DATABASE or ALTER ROLE changed a value: open connections keep the old one.
    DatabaseChanged,
}

impl Freshness {
    /// Notes that a server has logged in, or has said that nothing changed.
    pub(crate) fn confirm(&mut self, now_us: u64) {
        (self.confirmed_us, self.wanted_us, self.is_outdated) = (now_us, None, false);
    }

    /// Notes that a client logs in. Returns whether the greeting needs to be confirmed.
    pub(crate) fn want(&mut self, now_us: u64) -> bool {
        if now_us.saturating_sub(self.confirmed_us) < GREETING_CONFIRMED_US {
            return false;
        }
        self.wanted_us.get_or_insert(now_us);
        true
    }

    /// Whether clients have logged in since the greeting became stale.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted_us.is_some()
    }

    /// Whether no server was free for so long that confirming the greeting goes before clients that wait.
    pub(crate) fn is_late(&self, now_us: u64) -> bool {
        self.wanted_us.is_some_and(|wanted_us| now_us.saturating_sub(wanted_us) >= GREETING_LATE_US)
    }

    /// Judges a server's answer. `told` are names and values of the greeting; `is_own` is true for a name if this server's value is not the
    /// one that others begin with; `compares` is `false` if the greeting has values of `connect_query`.
    ///
    /// Hosts of one list may be configured differently. So an answer that the same run of PostgreSQL has given before is no news, whatever
    /// clients are told.
    pub(crate) fn judge(
        &mut self,
        rows: &[Vec<Option<Box<[u8]>>>],
        told: &[(&[u8], &[u8])],
        is_own: &dyn Fn(&[u8]) -> bool,
        compares: bool,
    ) -> Verdict {
        let Some((origin, facts)) = read(rows, is_own) else { return Verdict::Right };
        let contradicts = || compares && told.iter().any(|(name, value)| facts.contradict(name, value));
        let known = self.seen.iter().position(|(known, _)| *known == origin);
        let verdict = match known.map(|at| &self.seen[at].1) {
            None if contradicts() || facts.has_lost_a_setting() => Verdict::ConfigurationChanged,
            Some(before) if before.of_database != facts.of_database => Verdict::DatabaseChanged,
            // A server from before a change of its database has another value, too: then it is told from what clients are told.
            Some(before) if before.is_configured_otherwise(&facts) && (contradicts() || !compares) => {
                Verdict::ConfigurationChanged
            }
            _ => Verdict::Right,
        };
        match known {
            Some(at) => self.seen[at].1.follow(facts),
            None => {
                if self.seen.len() >= GREETING_ORIGINS_MAX {
                    self.seen.pop_front();
                }
                self.seen.push_back((origin, facts));
            }
        }
        verdict
    }
}

impl Facts {
    /// Whether a new connection begins with another value than this one. PostgreSQL may spell a value in another way than ALTER DATABASE
    /// did; that costs one connection that was not needed, once.
    fn contradict(&self, name: &[u8], told: &[u8]) -> bool {
        let of = |facts: &[Fact]| {
            let found = facts.iter().rev().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map(|(_, value)| !value.eq_ignore_ascii_case(told))
        };
        of(&self.of_database).or_else(|| of(&self.configured)).unwrap_or(false)
    }

    /// Whether the server has a value from its database or role that new connections do not get: ALTER DATABASE ... RESET took it away.
    fn has_lost_a_setting(&self) -> bool {
        let remains =
            |name: &[u8]| self.of_database.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        self.from_database.iter().any(|name| !remains(name))
    }

    /// Whether a configuration file now has another value. If the database has a value, that of the file does not count.
    fn is_configured_otherwise(&self, now: &Facts) -> bool {
        let of_database =
            |name: &[u8]| now.of_database.iter().any(|(known, _)| known.eq_ignore_ascii_case(name));
        let differs = |(name, value): &Fact| {
            now.configured.iter().any(|(new_name, new)| new_name == name && new != value)
                && !of_database(name)
        };
        self.configured.iter().any(differs)
    }

    /// Takes over the facts of a new answer. Names about which this server could not speak keep their facts.
    fn follow(&mut self, now: Facts) {
        self.of_database = now.of_database;
        self.configured.retain(|(name, _)| !now.configured.iter().any(|(new, _)| new == name));
        self.configured.extend(now.configured);
    }
}

/// Returns the run of the server that an answer comes from, and the facts in the answer. `None` if the rows are no answer to the question.
fn read(rows: &[Vec<Option<Box<[u8]>>>], is_own: &dyn Fn(&[u8]) -> bool) -> Option<(Box<[u8]>, Facts)> {
    let (mut origin, mut facts) = (None, Facts::default());
    for row in rows {
        let [Some(kind), name, Some(value)] = row.as_slice() else { continue };
        match (&**kind, name) {
            (b"o", None) => origin = Some(value.clone()),
            (b"c", Some(name)) if !is_own(name) => facts.configured.push((name.clone(), value.clone())),
            (b"d", Some(name)) => facts.of_database.push((name.clone(), value.clone())),
            (b"s", Some(name)) => facts.from_database.push(name.clone()),
            _ => {}
        }
    }
    Some((origin?, facts))
}

/// Returns the question for the values with which new connections begin, of the parameters that clients are told.
pub(crate) fn question<'a>(names: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let is_plain = |name: &&[u8]| name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let mut list = b"{".to_vec();
    for name in names.filter(is_plain).filter(|name| !NOT_ASKED.contains(name)) {
        if list.len() > 1 {
            list.push(b',');
        }
        pgweir_sql::quote_identifier(&mut list, name);
    }
    list.push(b'}');
    let mut literal = Vec::new();
    quote_literal(&mut literal, &list);
    let literal: &[u8] = literal.trim_ascii();
    [
        LOOK,
        b", pg_catalog.concat(pg_catalog.inet_server_addr(), ' ', pg_catalog.inet_server_port(), ' ', \
pg_catalog.date_part('epoch', pg_catalog.pg_postmaster_start_time())::pg_catalog.numeric::pg_catalog.int8) \
UNION ALL SELECT 'c', name, reset_val FROM pg_catalog.pg_settings \
WHERE name OPERATOR(pg_catalog.=) ANY (",
        literal,
        b"::pg_catalog.text[]) \
UNION ALL SELECT 's', name, source FROM pg_catalog.pg_settings \
WHERE source OPERATOR(pg_catalog.=) ANY ('{database,user,\"database user\",global}'::pg_catalog.text[]) \
AND name OPERATOR(pg_catalog.=) ANY (",
        literal,
        b"::pg_catalog.text[]) \
UNION ALL SELECT 'c', 'is_superuser', CASE WHEN rolsuper THEN 'on' ELSE 'off' END FROM pg_catalog.pg_roles \
WHERE rolname OPERATOR(pg_catalog.=) SESSION_USER \
UNION ALL SELECT * FROM (SELECT 'd', pg_catalog.split_part(entry, '=', 1), \
pg_catalog.substr(entry, pg_catalog.strpos(entry, '=') OPERATOR(pg_catalog.+) 1) \
FROM pg_catalog.pg_db_role_setting CROSS JOIN LATERAL pg_catalog.unnest(setconfig) AS entry \
WHERE (setdatabase OPERATOR(pg_catalog.=) '0' OR setdatabase OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_database \
WHERE datname OPERATOR(pg_catalog.=) pg_catalog.current_database())) \
AND (setrole OPERATOR(pg_catalog.=) '0' OR setrole OPERATOR(pg_catalog.=) (SELECT oid FROM pg_catalog.pg_roles \
WHERE rolname OPERATOR(pg_catalog.=) SESSION_USER)) \
AND pg_catalog.lower(pg_catalog.split_part(entry, '=', 1)) OPERATOR(pg_catalog.=) ANY (pg_catalog.lower(",
        literal,
        b")::pg_catalog.text[]) ORDER BY setrole OPERATOR(pg_catalog.<>) '0', setdatabase OPERATOR(pg_catalog.<>) '0', entry) AS own",
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: &str, name: Option<&str>, value: &str) -> Vec<Option<Box<[u8]>>> {
        [Some(kind), name, Some(value)].map(|part| part.map(|part| part.as_bytes().into())).into()
    }

    fn answer(origin: &str, facts: &[(&str, &str, &str)]) -> Vec<Vec<Option<Box<[u8]>>>> {
        let facts = facts.iter().map(|(kind, name, value)| row(kind, Some(name), value));
        [row("o", None, origin)].into_iter().chain(facts).collect()
    }

    fn judge(fresh: &mut Freshness, origin: &str, facts: &[(&str, &str, &str)]) -> Verdict {
        let told: [(&[u8], &[u8]); 2] = [(b"TimeZone", b"Europe/Berlin"), (b"server_version", b"18.0")];
        fresh.judge(&answer(origin, facts), &told, &|_| false, true)
    }

    #[test]
    fn the_first_answer_is_held_against_the_greeting() {
        let judge = |facts: &[_]| judge(&mut Freshness::default(), "1", facts);
        assert_eq!(
            judge(&[("c", "TimeZone", "europe/berlin")]),
            Verdict::Right,
            "spelled as it was configured"
        );
        assert_eq!(judge(&[("c", "TimeZone", "UTC")]), Verdict::ConfigurationChanged);
        assert_eq!(judge(&[("c", "TimeZone", "UTC"), ("d", "TimeZone", "Europe/Berlin")]), Verdict::Right);
        let of_role = [("d", "timezone", "UTC"), ("d", "timezone", "Europe/Berlin")];
        assert_eq!(judge(&of_role), Verdict::Right, "the most specific one counts");
        assert_eq!(judge(&[("d", "timezone", "Europe/Paris")]), Verdict::ConfigurationChanged);
        let reset = [("c", "TimeZone", "Europe/Berlin"), ("s", "TimeZone", "database")];
        assert_eq!(judge(&reset), Verdict::ConfigurationChanged, "new connections have it no longer");
        let stays = [reset[0], reset[1], ("d", "TimeZone", "europe/berlin")];
        assert_eq!(judge(&stays), Verdict::Right);
    }

    #[test]
    fn an_answer_that_the_same_server_gave_before_is_no_news() {
        let mut fresh = Freshness::default();
        let mut judge = |origin: &str, facts: &[_]| judge(&mut fresh, origin, facts);
        let (berlin, utc) = (("c", "TimeZone", "Europe/Berlin"), ("c", "TimeZone", "UTC"));
        assert_eq!(judge("1", &[berlin]), Verdict::Right);
        assert_eq!(judge("2", &[utc]), Verdict::ConfigurationChanged, "another host, for the first time");
        assert_eq!(judge("2", &[utc]), Verdict::Right, "the hosts differ");
        assert_eq!(judge("1", &[berlin]), Verdict::Right);
        assert_eq!(judge("1", &[utc]), Verdict::ConfigurationChanged);
        assert_eq!(judge("1", &[utc]), Verdict::Right, "a change is told once");
        assert_eq!(judge("1", &[berlin]), Verdict::Right, "a newer server has told that already");
    }

    #[test]
    fn a_change_of_the_database_is_one_whatever_is_told() {
        let mut fresh = Freshness::default();
        let mut judge = |facts: &[_]| judge(&mut fresh, "1", facts);
        let berlin = ("c", "TimeZone", "Europe/Berlin");
        assert_eq!(judge(&[berlin]), Verdict::Right);
        assert_eq!(judge(&[berlin, ("d", "TimeZone", "europe/berlin")]), Verdict::DatabaseChanged);
        let old = [("c", "TimeZone", "UTC"), ("d", "TimeZone", "europe/berlin")];
        assert_eq!(
            judge(&old),
            Verdict::Right,
            "a server from before the change has another value of its own"
        );
        assert_eq!(judge(&[berlin]), Verdict::DatabaseChanged);
    }

    #[test]
    fn a_value_that_a_client_asked_for_is_no_change() {
        let mut fresh = Freshness::default();
        let mut judge = |value, own: bool| {
            let told: [(&[u8], &[u8]); 1] = [(b"work", b"a")];
            fresh.judge(&answer("1", &[("c", "work", value)]), &told, &|_| own, true)
        };
        assert_eq!(judge("a", false), Verdict::Right);
        assert_eq!(judge("b", true), Verdict::Right);
        assert_eq!(judge("a", false), Verdict::Right);
        assert_eq!(judge("b", false), Verdict::ConfigurationChanged);
    }

    #[test]
    fn with_connect_query_each_server_is_held_against_what_it_said_before() {
        let mut fresh = Freshness::default();
        let mut judge =
            |value| fresh.judge(&answer("1", &[("c", "x", value)]), &[(b"x", b"own")], &|_| false, false);
        assert_eq!(judge("a"), Verdict::Right);
        assert_eq!(judge("a"), Verdict::Right);
        assert_eq!(judge("b"), Verdict::ConfigurationChanged);
    }

    #[test]
    fn an_answer_of_another_kind_says_nothing() {
        let rows = [row("c", Some("TimeZone"), "UTC")];
        assert_eq!(
            Freshness::default().judge(&rows, &[(b"TimeZone", b"x")], &|_| false, true),
            Verdict::Right
        );
    }
}
