//! Host names: a cache per worker, and a few threads that ask the operating system, which may block.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::{io, thread};

use pgweir_core::driver::ConnId;

use crate::mesh::{Letter, Mailbox};

/// Threads that ask; one name that hangs does not hold up the others.
const RESOLVER_THREADS: usize = 3;
/// Names a worker remembers.
const NAMES_MAX: usize = 1024;

/// A name to be looked up.
pub(crate) struct Request {
    host: Arc<str>,
    reply_to: Mailbox,
}

/// What the operating system said.
pub(crate) struct Answer {
    host: Arc<str>,
    result: Result<Vec<SocketAddr>, String>,
}

/// What is known of a name.
pub(crate) enum Lookup {
    /// Its addresses, the one whose turn it is first.
    Found(Vec<SocketAddr>),
    /// It has none; why.
    Failed(String),
    /// Not known yet; the connection is remembered.
    Asked,
}

/// Somebody who waited for a name.
pub(crate) struct Waiter {
    pub(crate) id: ConnId,
    pub(crate) result: Result<Vec<SocketAddr>, String>,
}

struct Known {
    result: Result<Vec<SocketAddr>, String>,
    until_us: u64,
    /// Whose turn it is.
    turn: usize,
}

/// The names a worker knows.
pub(crate) struct Names {
    known: HashMap<Arc<str>, Known>,
    waiting: HashMap<Arc<str>, Vec<(ConnId, u16)>>,
    ask: Sender<Request>,
    me: Mailbox,
}

impl Names {
    pub(crate) fn new(ask: Sender<Request>, me: Mailbox) -> Self {
        Self { known: HashMap::new(), waiting: HashMap::new(), ask, me }
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
        let waiting = self.waiting.entry(Arc::clone(host)).or_default();
        waiting.push((id, port));
        if waiting.len() == 1 {
            let request = Request { host: Arc::clone(host), reply_to: self.me.clone() };
            if self.ask.send(request).is_err() {
                self.waiting.remove(host);
                return Lookup::Failed("the resolver has ended".to_owned());
            }
        }
        Lookup::Asked
    }

    /// Remembers an answer for `ttl` (found, failed) microseconds and says who waited for it.
    pub(crate) fn answered(&mut self, answer: Answer, now_us: u64, ttl: (u64, u64)) -> Vec<Waiter> {
        let ttl_us = if answer.result.is_ok() { ttl.0 } else { ttl.1 };
        // The turn goes on where it was, so that short times to live do not favour the first address.
        let turn = self.known.get(&answer.host).map_or(0, |old| old.turn);
        let mut known = Known { result: answer.result, until_us: now_us.saturating_add(ttl_us), turn };
        let waiting = self.waiting.remove(&answer.host).unwrap_or_default();
        let waiters = waiting.into_iter().map(|(id, port)| Waiter { id, result: known.next(port) }).collect();
        if self.known.len() >= NAMES_MAX {
            self.known.retain(|_, known| known.until_us > now_us);
        }
        if self.known.len() < NAMES_MAX {
            self.known.insert(answer.host, known);
        }
        waiters
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

/// Starts the threads; they end when the last sender is gone and they are not in the middle of a look-up.
pub(crate) fn start_resolver() -> io::Result<Sender<Request>> {
    let (ask, requests) = channel();
    let requests = Arc::new(Mutex::new(requests));
    for number in 0..RESOLVER_THREADS {
        let requests = Arc::clone(&requests);
        thread::Builder::new().name(format!("resolver-{number}")).spawn(move || answer_all(&requests))?;
    }
    Ok(ask)
}

fn answer_all(requests: &Mutex<Receiver<Request>>) {
    loop {
        // Only `recv` runs under the lock, and it does not panic.
        let Ok(guard) = requests.lock() else { return };
        let Ok(request) = guard.recv() else { return };
        drop(guard);
        let result = ask_system(&request.host);
        request.reply_to.send(Letter::Resolved(Box::new(Answer { host: request.host, result })));
    }
}

fn ask_system(host: &str) -> Result<Vec<SocketAddr>, String> {
    let mut addresses: Vec<SocketAddr> = Vec::new();
    for address in (host, 0).to_socket_addrs().map_err(|e| format!("could not resolve \"{host}\": {e}"))? {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(format!("could not resolve \"{host}\": no addresses"));
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::WAKER;

    fn names() -> (Names, Receiver<Request>, mio::Poll) {
        let (ask, asked) = channel();
        let poll = mio::Poll::new().unwrap();
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER).unwrap());
        let (letters, _) = channel();
        (Names::new(ask, Mailbox { letters, waker }), asked, poll)
    }

    fn id(index: u32) -> ConnId {
        ConnId { index, generation: 0 }
    }

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
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
        let answer = Answer { host: Arc::clone(&host), result: Ok(addresses(&["10.0.0.1:0", "10.0.0.2:0"])) };
        let waiters = names.answered(answer, 100, (50, 50));
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
        names.answered(Answer { host: Arc::clone(&host), result: Err("no".into()) }, 0, (1000, 10));
        assert!(matches!(names.lookup(id(2), &host, 1, 9), Lookup::Failed(text) if text == "no"));
        assert!(matches!(names.lookup(id(3), &host, 1, 10), Lookup::Asked));
        assert_eq!(asked.try_iter().count(), 2);
    }

    #[test]
    fn the_cache_is_bounded() {
        let (mut names, _asked, _poll) = names();
        for number in 0..NAMES_MAX + 50 {
            let answer = Answer { host: format!("h{number}").into(), result: Err("no".into()) };
            names.answered(answer, 0, (10, 10));
        }
        assert_eq!(names.known.len(), NAMES_MAX);
        names.answered(Answer { host: "late".into(), result: Err("no".into()) }, 11, (10, 10));
        assert_eq!(names.known.len(), 1);
    }
}
