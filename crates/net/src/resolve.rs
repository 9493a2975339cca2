//! Host names: a cache in each worker, and a few threads that look names up, which may block. They ask the
//! operating system, or the name servers of `resolv_conf`. If the zone of a name reports a change, its names
//! are looked up again.

mod conf;
mod dns;
mod thread_pool;
mod zones;

use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;

use pgweir_core::driver::{ConnId, HostSeen, NamesSeen, ZoneSeen};

use self::conf::ResolvConf;
pub(crate) use self::thread_pool::Resolver;
use self::zones::{Verdict, Zones, zone_of};
use crate::worker::mesh::Mailbox;

/// The maximum number of names that a worker remembers.
const NAMES_MAX: usize = 1024;

/// The files with the operating system's name servers and host names.
const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";

/// A look-up for the threads.
pub(crate) struct Request {
    about: About,
    reply_to: Mailbox,
}

enum About {
    Host(Arc<str>),
    Zone(Arc<str>),
}

/// The result of a look-up.
pub(crate) enum Answer {
    /// A host's addresses.
    Host {
        /// The host's name.
        host: Arc<str>,
        /// The host's addresses, without a port.
        result: Result<Vec<SocketAddr>, Unresolved>,
    },
    /// A zone's serial number.
    Zone {
        /// The zone's name.
        zone: Arc<str>,
        /// The zone's serial number.
        result: Result<u32, String>,
    },
}

/// The reason why a host has no addresses.
pub(crate) struct Unresolved {
    text: String,
    cause: Cause,
}

/// The cause of a failed look-up.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The host does not exist.
    Host,
    /// No name server could be asked.
    NameServers,
}

/// The consequences of an answer for the worker.
#[derive(Default)]
pub(crate) struct AnswerEffects {
    /// The connections that waited for the answer.
    pub(crate) waiters: Vec<Waiter>,
    /// A host that has left one of its old addresses, with its current addresses.
    pub(crate) moved: Option<(Arc<str>, Vec<SocketAddr>)>,
    /// A line for the log.
    pub(crate) warning: Option<String>,
}

/// The result of looking a name up in the cache.
pub(crate) enum Lookup {
    /// The host's addresses, in the order in which they are to be tried.
    Found(Vec<SocketAddr>),
    /// The reason why the host has no addresses.
    Failed(String),
    /// The name is being looked up, and the connection gets the answer later.
    Asked,
}

/// A connection that waited for a name, with the answer.
pub(crate) struct Waiter {
    pub(crate) id: ConnId,
    pub(crate) result: Result<Vec<SocketAddr>, String>,
}

struct Known {
    result: Result<Vec<SocketAddr>, String>,
    until_us: u64,
    /// The index of the address whose turn it is.
    turn: usize,
}

/// The host names that a worker knows.
pub(crate) struct Names {
    known: HashMap<Arc<str>, Known>,
    waiting: HashMap<Arc<str>, Vec<(ConnId, u16)>>,
    zones: Zones,
    ask: Resolver,
    me: Mailbox,
}

impl Names {
    pub(crate) fn new(ask: Resolver, me: Mailbox) -> Self {
        Self { known: HashMap::new(), waiting: HashMap::new(), zones: Zones::default(), ask, me }
    }

    pub(crate) fn lookup(&mut self, id: ConnId, host: &Arc<str>, port: u16, now_us: u64) -> Lookup {
        if let Ok(address) = host.parse::<IpAddr>() {
            return Lookup::Found(vec![SocketAddr::new(address, port)]);
        }
        if let Some(known) = self.known.get_mut(host)
            && known.until_us > now_us
        {
            return match known.next(port) {
                Ok(addresses) => Lookup::Found(addresses),
                Err(text) => Lookup::Failed(text),
            };
        }
        if self.asks(host) {
            self.waiting.entry(Arc::clone(host)).or_default().push((id, port));
            Lookup::Asked
        } else {
            Lookup::Failed("the resolver has ended".to_owned())
        }
    }

    /// Starts a look-up of the host unless one is under way. Returns `false` if no thread can answer it.
    fn asks(&mut self, host: &Arc<str>) -> bool {
        if self.waiting.contains_key(host) {
            return true;
        }
        let request = Request { about: About::Host(Arc::clone(host)), reply_to: self.me.clone() };
        let sent = self.ask.send(request);
        if sent {
            self.waiting.insert(Arc::clone(host), Vec::new());
        }
        sent
    }

    /// Stores an answer. A host is remembered for `ttl` microseconds: the first value counts for addresses,
    /// the second for a failure.
    pub(crate) fn answered(&mut self, answer: Answer, now_us: u64, ttl: (u64, u64)) -> AnswerEffects {
        match answer {
            Answer::Host { host, result } => self.host_answered(host, result, now_us, ttl),
            Answer::Zone { zone, result } => {
                let warning = match self.zones.answered(&zone, result.as_ref().ok().copied()) {
                    Verdict::Same => None,
                    Verdict::FailedNow => {
                        Some(format!("zone check of \"{zone}\" failed: {}", result.err().unwrap_or_default()))
                    }
                    Verdict::Changed => {
                        self.look_up_again(&zone);
                        None
                    }
                };
                AnswerEffects { warning, ..AnswerEffects::default() }
            }
        }
    }

    fn host_answered(
        &mut self,
        host: Arc<str>,
        result: Result<Vec<SocketAddr>, Unresolved>,
        now_us: u64,
        ttl: (u64, u64),
    ) -> AnswerEffects {
        let ttl_us = if result.is_ok() { ttl.0 } else { ttl.1 };
        let old = self.known.get(&host);
        let mut warning = None;
        let result = match (result, old.map(|old| &old.result)) {
            // The host may well have kept its addresses.
            (Err(Unresolved { text, cause: Cause::NameServers }), Some(Ok(before))) => {
                warning = Some(format!("{text}; the addresses that it had stay in use"));
                Ok(before.clone())
            }
            (result, _) => result.map_err(|unresolved| unresolved.text),
        };
        let moved = match (old.map(|old| &old.result), &result) {
            (Some(Ok(before)), Ok(after)) if before.iter().any(|address| !after.contains(address)) => {
                Some((Arc::clone(&host), after.clone()))
            }
            _ => None,
        };
        // The rotation goes on where it was, so that short times to live do not favour the first address.
        let turn = old.map_or(0, |old| old.turn);
        let mut known = Known { result, until_us: now_us.saturating_add(ttl_us), turn };
        let waiting = self.waiting.remove(&host).unwrap_or_default();
        let waiters = waiting.into_iter().map(|(id, port)| Waiter { id, result: known.next(port) }).collect();
        // The cache is full: expired names go first. If none has expired, this one is not remembered.
        if self.known.len() >= NAMES_MAX {
            self.known.retain(|_, known| known.until_us > now_us);
            let known = &self.known;
            self.zones.retain(|zone| known.keys().any(|host| zone_of(host) == Some(zone)));
        }
        if self.known.len() < NAMES_MAX {
            zone_of(&host).into_iter().for_each(|zone| self.zones.note(zone));
            self.known.insert(host, known);
        }
        AnswerEffects { waiters, moved, warning }
    }

    /// Looks up all hosts of a zone that has changed, whether connections wait for them or not.
    fn look_up_again(&mut self, zone: &str) {
        let concerned: Vec<Arc<str>> =
            self.known.keys().filter(|host| zone_of(host) == Some(zone)).map(Arc::clone).collect();
        for host in concerned {
            self.asks(&host);
        }
    }

    /// Returns the time at which [`Names::check_zones`] has something to do.
    pub(crate) fn deadline_us(&self, period_us: u64) -> Option<u64> {
        self.zones.due_us(period_us)
    }

    /// Asks zones whether they have changed, at the interval of `dns_zone_check_period`.
    #[inline]
    pub(crate) fn check_zones(&mut self, now_us: u64, period_us: u64) {
        if self.zones.due_us(period_us).is_some_and(|due_us| due_us <= now_us) {
            self.ask_zones(now_us, period_us);
        }
    }

    fn ask_zones(&mut self, now_us: u64, period_us: u64) {
        for zone in self.zones.take_due(now_us, period_us) {
            // This fails only if the resolver has ended because the process is ending.
            let _ = self.ask.send(Request { about: About::Zone(zone), reply_to: self.me.clone() });
        }
    }

    /// Returns everything that is known, for SHOW.
    pub(crate) fn seen(&self, now_us: u64) -> NamesSeen {
        let host = |(name, known): (&Arc<str>, &Known)| HostSeen {
            name: Arc::clone(name),
            left_us: known.until_us.saturating_sub(now_us),
            addresses: known.result.clone().unwrap_or_default(),
        };
        let zone = |(name, serial): (&str, u32)| ZoneSeen {
            name: name.into(),
            serial,
            hosts: self.known.keys().filter(|host| zone_of(host) == Some(name)).count(),
        };
        NamesSeen {
            hosts: self.known.iter().map(host).collect(),
            zones: self.zones.iter().map(zone).collect(),
            asked: self.waiting.len() + self.zones.asked(),
        }
    }
}

impl Known {
    fn next(&mut self, port: u16) -> Result<Vec<SocketAddr>, String> {
        let mut addresses = self.result.clone()?;
        for address in &mut addresses {
            address.set_port(port);
        }
        let first = self.turn % addresses.len().max(1);
        addresses.rotate_left(first);
        self.turn = self.turn.wrapping_add(1);
        Ok(addresses)
    }
}

/// Looks a host up, which may block: in the name servers of `resolv_conf`, or with an empty `resolv_conf` in
/// the operating system.
///
/// # Errors
///
/// The reason why the host has no addresses.
pub fn addresses_of(resolv_conf: &str, host: &str) -> Result<Vec<IpAddr>, String> {
    let found = match resolv_conf {
        "" => ask_system(host),
        path => ask_servers(Path::new(path), host),
    };
    found
        .map(|addresses| addresses.into_iter().map(|address| address.ip()).collect())
        .map_err(|unresolved| unresolved.text)
}

/// Looks up a host or a zone, which may block.
fn look_up(about: About, resolv_conf: Option<&Path>) -> Answer {
    match about {
        About::Host(host) => {
            let result = match resolv_conf {
                None => ask_system(&host),
                Some(path) => ask_servers(path, &host),
            };
            Answer::Host { host, result }
        }
        About::Zone(zone) => {
            let path = resolv_conf.unwrap_or(Path::new(RESOLV_CONF));
            let result = read_conf(path).and_then(|conf| dns::serial(&conf, &zone));
            Answer::Zone { zone, result }
        }
    }
}

/// Reads `resolv.conf`. It is read for each look-up, so that a change is noticed; as names are remembered,
/// that is not often.
fn read_conf(path: &Path) -> Result<ResolvConf, String> {
    match fs::read(path) {
        Ok(bytes) => Ok(ResolvConf::parse(&String::from_utf8_lossy(&bytes))),
        Err(error) => Err(format!("could not read {}: {error}", path.display())),
    }
}

fn unresolved(host: &str, why: &str, cause: Cause) -> Unresolved {
    Unresolved { text: format!("could not resolve \"{host}\": {why}"), cause }
}

fn ask_servers(path: &Path, host: &str) -> Result<Vec<SocketAddr>, Unresolved> {
    // A system without a hosts file is treated like one with an empty file.
    let hosts = fs::read(HOSTS).unwrap_or_default();
    let mut found = conf::in_hosts(&String::from_utf8_lossy(&hosts), host);
    if found.is_empty() {
        found = read_conf(path)
            .and_then(|conf| dns::addresses(&conf, host))
            .map_err(|why| unresolved(host, &why, Cause::NameServers))?;
    }
    if found.is_empty() {
        return Err(unresolved(host, "no such host", Cause::Host));
    }
    Ok(found.into_iter().map(|address| SocketAddr::new(address, 0)).collect())
}

fn ask_system(host: &str) -> Result<Vec<SocketAddr>, Unresolved> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    let found = (host, 0).to_socket_addrs().map_err(|error| {
        let text = error.to_string();
        let cause = if says_no_such_host(&text) { Cause::Host } else { Cause::NameServers };
        unresolved(host, &text, cause)
    })?;
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(unresolved(host, "no addresses", Cause::Host));
    }
    Ok(addresses)
}

/// Returns whether these are the C library's words for EAI_NONAME and EAI_NODATA (gai_strerror(3)), of glibc
/// and musl: the standard library keeps only the text. The texts are not translated, as the process has the
/// locale C.
fn says_no_such_host(text: &str) -> bool {
    [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "Name has no usable address",
    ]
    .iter()
    .any(|words| text.contains(words))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::connection::table::WAKER;

    fn names() -> (Names, Receiver<Request>, mio::Poll) {
        let (ask, asked) = Resolver::answered_by_test();
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).unwrap());
        let (messages, _) = channel();
        (Names::new(ask, Mailbox { messages, waker }), asked, poll)
    }

    fn id(index: u32) -> ConnId {
        ConnId { index, generation: 0 }
    }

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn answer(host: &Arc<str>, result: Result<Vec<SocketAddr>, String>) -> Answer {
        let result = result.map_err(|text| Unresolved { text, cause: Cause::Host });
        Answer::Host { host: Arc::clone(host), result }
    }

    #[test]
    fn an_address_needs_no_resolver() {
        let (mut names, asked, _poll) = names();
        let Lookup::Found(found) = names.lookup(id(0), &"::1".into(), 5432, 0) else { panic!() };
        assert_eq!(found, addresses(&["[::1]:5432"]));
        assert!(asked.try_recv().is_err());
    }

    #[test]
    fn one_question_serves_all_and_addresses_take_turns_until_they_expire() {
        let (mut names, asked, _poll) = names();
        let host: Arc<str> = "db".into();
        assert!(matches!(names.lookup(id(1), &host, 1, 0), Lookup::Asked));
        assert!(matches!(names.lookup(id(2), &host, 2, 0), Lookup::Asked));
        assert_eq!(asked.try_iter().count(), 1);
        let answer = answer(&host, Ok(addresses(&["10.0.0.1:0", "10.0.0.2:0"])));
        let waiters = names.answered(answer, 100, (50, 50)).waiters;
        let told: Vec<_> = waiters.into_iter().map(|w| (w.id, w.result.unwrap())).collect();
        assert_eq!(told[0], (id(1), addresses(&["10.0.0.1:1", "10.0.0.2:1"])));
        assert_eq!(told[1], (id(2), addresses(&["10.0.0.2:2", "10.0.0.1:2"])));
        let Lookup::Found(found) = names.lookup(id(3), &host, 3, 149) else { panic!() };
        assert_eq!(found, addresses(&["10.0.0.1:3", "10.0.0.2:3"]));
        assert!(matches!(names.lookup(id(4), &host, 4, 150), Lookup::Asked));
        assert_eq!(asked.try_iter().count(), 1);
    }

    #[test]
    fn failures_are_remembered_for_their_own_time() {
        let (mut names, asked, _poll) = names();
        let host: Arc<str> = "nowhere".into();
        assert!(matches!(names.lookup(id(1), &host, 1, 0), Lookup::Asked));
        names.answered(answer(&host, Err("no".into())), 0, (1000, 10));
        assert!(matches!(names.lookup(id(2), &host, 1, 9), Lookup::Failed(text) if text == "no"));
        assert!(matches!(names.lookup(id(3), &host, 1, 10), Lookup::Asked));
        assert_eq!(asked.try_iter().count(), 2);
    }

    #[test]
    fn the_cache_is_bounded() {
        let (mut names, _asked, _poll) = names();
        for number in 0..NAMES_MAX + 50 {
            names.answered(answer(&format!("h{number}.example").into(), Err("no".into())), 0, (10, 10));
        }
        assert_eq!(names.known.len(), NAMES_MAX);
        names.answered(answer(&"late".into(), Err("no".into())), 11, (10, 10));
        assert_eq!((names.known.len(), names.zones.iter().count()), (1, 0));
    }

    #[test]
    fn a_host_that_leaves_an_address_has_moved_and_one_that_gains_one_has_not() {
        let (mut names, _asked, _poll) = names();
        let host: Arc<str> = "db".into();
        let mut moved = |result: Result<&[&str], &str>| {
            let result = result.map(addresses).map_err(str::to_owned);
            names.answered(answer(&host, result), 0, (10, 10)).moved.map(|(_, now)| now)
        };
        assert_eq!(moved(Ok(&["10.0.0.1:0"])), None, "the first time");
        assert_eq!(moved(Ok(&["10.0.0.2:0", "10.0.0.1:0"])), None);
        assert_eq!(moved(Ok(&["10.0.0.2:0"])), Some(addresses(&["10.0.0.2:0"])));
        assert_eq!(moved(Err("no answer")), None, "that a server fails says nothing of the host");
    }

    #[test]
    fn name_servers_that_fail_are_no_reason_to_forget() {
        let (mut names, asked, _poll) = names();
        let host: Arc<str> = "db".into();
        let failed = || Answer::Host {
            host: "db".into(),
            result: Err(unresolved("db", "no answer", Cause::NameServers)),
        };
        assert!(names.answered(failed(), 0, (10, 10)).warning.is_none());
        assert!(matches!(names.lookup(id(1), &host, 1, 5), Lookup::Failed(_)), "it was never known");
        names.answered(answer(&host, Ok(addresses(&["10.0.0.1:0"]))), 10, (10, 10));
        let warning = names.answered(failed(), 20, (1000, 10)).warning;
        let expected = "could not resolve \"db\": no answer; the addresses that it had stay in use";
        assert_eq!(warning.as_deref(), Some(expected));
        assert!(matches!(names.lookup(id(2), &host, 1, 29), Lookup::Found(_)));
        assert!(matches!(names.lookup(id(3), &host, 1, 30), Lookup::Asked), "it is tried again soon");
        assert_eq!(asked.try_iter().count(), 1);
        names.answered(answer(&host, Err("no such host".into())), 40, (10, 10));
        assert!(matches!(names.lookup(id(4), &host, 1, 41), Lookup::Failed(_)), "now it is gone");
    }

    #[test]
    fn a_zone_that_changed_has_its_hosts_looked_up_again_without_waiters() {
        let (mut names, asked, _poll) = names();
        let host: Arc<str> = "db.example".into();
        names.answered(answer(&host, Ok(addresses(&["10.0.0.1:0"]))), 0, (1_000_000, 10));
        names.check_zones(0, 0);
        assert_eq!((names.deadline_us(0), asked.try_iter().count()), (None, 0), "switched off");
        let zone = |serial| Answer::Zone { zone: "example".into(), result: Ok(serial) };
        for (now_us, serial, questions) in [(0, 1, 1), (10, 1, 1), (20, 2, 2)] {
            names.check_zones(now_us, 10);
            names.answered(zone(serial), now_us, (10, 10));
            assert_eq!(asked.try_iter().count(), questions, "serial {serial} at {now_us}");
        }
        assert_eq!(names.seen(30).asked, 1);
        let news = names.answered(answer(&host, Ok(addresses(&["10.0.0.2:0"]))), 30, (1_000_000, 10));
        assert!(news.waiters.is_empty() && news.moved.is_some());
        let seen = names.seen(31);
        assert_eq!((seen.hosts.len(), seen.zones[0].serial, seen.zones[0].hosts, seen.asked), (1, 2, 1, 0));
        let failed = Answer::Zone { zone: "example".into(), result: Err("no answer".into()) };
        let warning = names.answered(failed, 40, (10, 10)).warning;
        assert_eq!(warning.as_deref(), Some("zone check of \"example\" failed: no answer"));
    }
}
