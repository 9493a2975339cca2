//! The settings and demands of this process, and the time as its workers have it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pgweir_core::mail::Scarce;
use pgweir_settings::{Config, Main, SharedLimits, SourceUrl};

use crate::sources::Login;

/// The time for which a demand counts that was higher than it is now. So grants do not follow each moment.
const DEMAND_LASTS: Duration = Duration::from_secs(3);

/// The settings of shared limits. If they change, another duty begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Spec {
    pub(super) endpoints: Vec<SourceUrl>,
    pub(super) login: Option<Login>,
    pub(super) prefix: String,
    pub(super) ttl: Duration,
    pub(super) label: String,
}

impl Spec {
    /// Returns the spec; `None` if limits are not shared. Faults were refused when the file was loaded; SET does not check them.
    pub(super) fn of(main: &Main) -> Option<Spec> {
        let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let host = host.unwrap_or_else(|| "localhost".to_owned());
        (main.shared_limits == SharedLimits::Etcd).then(|| Spec {
            endpoints: main.etcd_endpoints.iter().filter_map(|text| SourceUrl::parse(text).ok()).collect(),
            login: Login::of(main.etcd_user.as_ref(), main.etcd_password.as_ref()),
            prefix: main.shared_limits_prefix.clone(),
            ttl: main.shared_limits_ttl,
            label: format!("{host}:{}/{}", main.listen_port, main.peer_id),
        })
    }
}

impl Spec {
    /// The time for which a part may be used after the lease was renewed. The rest of the lease's time is for logins that are under way, and
    /// for clocks that run differently.
    pub(super) fn part_lasts(&self) -> Duration {
        self.ttl / 2
    }
}

/// Returns a limit of the configuration; 0 if there is none.
pub(super) fn limit_of(config: &Config, of: &Scarce) -> u32 {
    match of {
        Scarce::Database(database) | Scarce::Standby(database, _) => {
            config.database(database).map_or(0, |database| config.max_db_connections(&database))
        }
        Scarce::User(user) => config.max_user_connections(user),
    }
}

/// Whether all connections that count towards a limit are to one PostgreSQL server, which can tell them all.
pub(super) fn is_one_server(config: &Config, of: &Scarce) -> bool {
    match of {
        Scarce::Database(database) | Scarce::Standby(database, _) => {
            config.database(database).is_some_and(|database| database.hosts.len() < 2)
        }
        Scarce::User(_) => {
            let place = |database: &pgweir_settings::Database| match &database.cluster {
                Some(_) => None,
                None if database.hosts.len() < 2 => Some((database.hosts.first().cloned(), database.port)),
                None => None,
            };
            let places: Option<BTreeSet<_>> = config.databases.values().map(place).collect();
            places.is_some_and(|places| places.len() == 1)
        }
    }
}

/// The demands of this process, each as its highest value of the last seconds.
#[derive(Default)]
pub(super) struct Demands(BTreeMap<Scarce, Vec<(Instant, u32)>>);

impl Demands {
    /// Notes the present demands.
    pub(super) fn note<'a>(&mut self, now: Instant, demands: impl Iterator<Item = (&'a Scarce, u32)>) {
        for (of, demand) in demands {
            let seen = self.0.entry(of.clone()).or_default();
            seen.retain(|(at, other)| now.duration_since(*at) < DEMAND_LASTS && *other > demand);
            seen.push((now, demand));
        }
        self.0.retain(|_, seen| seen.last().is_some_and(|(at, _)| now.duration_since(*at) < DEMAND_LASTS));
    }

    pub(super) fn of(&self, of: &Scarce) -> u32 {
        self.0.get(of).and_then(|seen| seen.first()).map_or(0, |(_, demand)| *demand)
    }
}

/// The clock of the workers. It is read in their reports: at the moment at which a report is read, it shows at least the time in it.
#[derive(Default)]
pub(super) struct WorkerClock(Option<(Instant, u64)>);

impl WorkerClock {
    /// Notes a report of that time which was read at `now`. The latest reading of the clock is kept.
    pub(super) fn note(&mut self, now: Instant, at_us: u64) {
        if self.at(now).is_none_or(|known_us| at_us > known_us) {
            self.0 = Some((now, at_us));
        }
    }

    /// Returns a time that the workers' clock does not show before `then`, or shows just then; `None` if no report was read yet.
    pub(super) fn at(&self, then: Instant) -> Option<u64> {
        let (read, at_us) = self.0?;
        Some(match then.checked_duration_since(read) {
            Some(later) => at_us.saturating_add(micros(later)),
            None => at_us.saturating_sub(micros(read.duration_since(then))),
        })
    }

    /// Returns the time that the workers' clock shows at least now.
    pub(super) fn now_us(&self) -> Option<u64> {
        self.at(Instant::now())
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_demand_lasts_for_a_moment() {
        let (mut demands, of, start) = (Demands::default(), Scarce::User("u".into()), Instant::now());
        let mut note = |ms, demand| {
            demands.note(start + Duration::from_millis(ms), [(&of, demand)].into_iter());
            demands.of(&of)
        };
        assert_eq!(note(0, 9), 9);
        assert_eq!(note(1000, 3), 9);
        assert_eq!(note(2000, 5), 9);
        assert_eq!(note(3500, 2), 5, "that of the first second is over");
        assert_eq!(note(4000, 20), 20);
    }

    #[test]
    fn the_workers_clock_is_never_ahead_of_what_they_see() {
        let (mut clock, start) = (WorkerClock::default(), Instant::now());
        assert_eq!(clock.at(start), None);
        clock.note(start, 5_000_000);
        clock.note(start + Duration::from_secs(1), 5_900_000);
        assert_eq!(clock.at(start + Duration::from_secs(2)), Some(7_000_000), "that report came late");
        clock.note(start + Duration::from_secs(1), 6_100_000);
        assert_eq!(clock.at(start), Some(5_100_000));
    }

    #[test]
    fn connections_to_several_servers_cannot_be_counted_by_one() {
        let one = |text: &str, of: &Scarce| {
            let config = Config::load("x.ini", &mut |_| Ok(text.to_owned())).expect("good");
            (is_one_server(&config, of), limit_of(&config, of))
        };
        let (database, user) = (Scarce::Database("a".into()), Scarce::User("u".into()));
        let same = "[databases]\na = host=h port=1 max_db_connections=7\nb = host=h port=1\n[pgbouncer]\nmax_user_connections=9\n";
        assert_eq!((one(same, &database), one(same, &user)), ((true, 7), (true, 9)));
        let two = "[databases]\na = host=h,i\nb = host=h\n[pgbouncer]\nmax_db_connections=5\n";
        assert_eq!((one(two, &database), one(two, &user)), ((false, 5), (false, 0)));
    }
}
