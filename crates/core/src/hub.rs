//! Who listens to what in a pool, and what each client is still to be told. Values only; `machine/session/listen.rs` moves
//! them.

use std::collections::{HashMap, VecDeque};

use pgweir_wire::backend::NotificationResponse;
use pgweir_wire::header::HEADER_LEN;

use crate::ids::{ClientId, ServerId};

/// The connection that listens for all clients of a pool.
pub(crate) struct Hub {
    pub(crate) server: ServerId,
    /// It is logged in.
    pub(crate) is_up: bool,
    /// What it listens to, and for whom. A channel that nobody wants any longer is left a little later.
    pub(crate) channels: HashMap<Box<[u8]>, Vec<ClientId>>,
    /// Who waits for the answers that it owes, in their order.
    pub(crate) owed: VecDeque<Vec<ClientId>>,
    /// Who waits for it to be logged in.
    pub(crate) waiting: Vec<ClientId>,
}

impl Hub {
    /// One that is being opened.
    pub(crate) fn new(server: ServerId) -> Hub {
        Hub { server, is_up: false, channels: HashMap::new(), owed: VecDeque::new(), waiting: Vec::new() }
    }

    /// A client wants a channel; `true` if nobody did before.
    pub(crate) fn join(&mut self, channel: &[u8], client: ClientId) -> bool {
        match self.channels.get_mut(channel) {
            Some(clients) => {
                clients.push(client);
                false
            }
            None => {
                self.channels.insert(channel.into(), vec![client]);
                true
            }
        }
    }

    /// A client wants a channel no longer.
    pub(crate) fn leave(&mut self, channel: &[u8], client: ClientId) {
        if let Some(clients) = self.channels.get_mut(channel) {
            clients.retain(|other| *other != client);
        }
    }

    /// Everybody who would miss something without it.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        let mut clients: Vec<ClientId> = self.channels.values().flatten().copied().collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }
}

/// A NotificationResponse, with its header.
pub(crate) type Message = Box<[u8]>;

/// What a client listens to in transaction pooling, and what it is still to be told.
///
/// The servers that it runs on listen to its channels, too, for the sake of what is asked there; what they are notified of is
/// not passed on, as the hub is notified of the same. But it tells which notifications are the client's own: they carry the
/// server's process id, and the client must see its own in its place.
#[derive(Default)]
pub(crate) struct Listener {
    /// The hub listens to these for it.
    pub(crate) joined: Vec<Box<[u8]>>,
    /// Its transaction listens to these, and the hub does not yet for it.
    pub(crate) joining: Vec<Box<[u8]>>,
    /// What its server was notified of on channels that are not joined.
    pub(crate) from_server: Vec<Message>,
    /// What the hub was notified of on those that it is joining.
    pub(crate) from_hub: Vec<Message>,
    /// What its server was notified of on them since the hub alone counts: needed only if that one is lost now.
    pub(crate) in_reserve: Vec<Message>,
    /// Its own notifications, as its server was notified of them; they are to come from the hub.
    pub(crate) own: Vec<Message>,
    /// What it can be told when no transaction is open.
    pub(crate) queue: Vec<Message>,
    /// Bytes of all these messages.
    pub(crate) bytes: usize,
}

impl Listener {
    /// Nothing is listened to, nothing is to be told.
    pub(crate) fn is_idle(&self) -> bool {
        self.joined.is_empty() && self.joining.is_empty() && self.queue.is_empty()
    }

    /// The hub's copy of a notification on a joined channel. `true` if it was the client's own.
    pub(crate) fn tell(&mut self, message: &[u8], own_pid: u32) -> bool {
        let own = self.own.iter().position(|own| **own == *message);
        if let Some(at) = own {
            self.own.remove(at);
        } else {
            self.bytes += message.len();
        }
        self.queue.push(if own.is_some() { with_pid(message, own_pid) } else { message.into() });
        own.is_some()
    }

    /// The server's copy of a notification of the client's own.
    pub(crate) fn note_own(&mut self, message: &[u8], own_pid: u32) {
        // The hub may have been faster.
        match self.queue.iter_mut().find(|told| ***told == *message) {
            Some(told) => *told = with_pid(message, own_pid),
            None => {
                self.bytes += message.len();
                self.own.push(message.into());
            }
        }
    }

    /// The hub's copies of its own notifications will not be told any more on channels other than those that it stays on: the
    /// server's take their place.
    pub(crate) fn own_without_hub(&mut self, own_pid: u32) {
        let (stay, gone): (Vec<Message>, Vec<Message>) =
            std::mem::take(&mut self.own).into_iter().partition(|message| is_on(message, &self.joined));
        self.own = stay;
        self.queue.extend(gone.iter().map(|message| with_pid(message, own_pid)));
    }

    /// The transaction's channels are known. What its server was notified of on others is told: they were listened to only for
    /// a while, and the hub never did for this client. `true` if there is any.
    pub(crate) fn told_of_others(&mut self, channels: &[Box<[u8]>], server_pid: u32, own_pid: u32) -> bool {
        let (stay, others): (Vec<Message>, Vec<Message>) =
            std::mem::take(&mut self.from_server).into_iter().partition(|message| is_on(message, channels));
        self.from_server = stay;
        let any = !others.is_empty();
        self.queue.extend(others.into_iter().map(|message| as_own(message, server_pid, own_pid)));
        any
    }

    /// Something waits that may be its own, as it is from the process of its server; that one has not told yet.
    pub(crate) fn may_wait_for(&self, server_pid: u32) -> bool {
        self.queue.iter().any(|message| pid_of(message) == Some(server_pid))
    }

    /// What server and hub were notified of, from when the server's transaction listened until both are known to have passed on
    /// what came before the other began or ended: the end of the one is the beginning of the other.
    pub(crate) fn meet(&mut self, server_pid: u32, own_pid: u32) {
        let (server, hub) = (std::mem::take(&mut self.from_server), std::mem::take(&mut self.from_hub));
        self.in_reserve.clear();
        let told = told_by_server(&server, &hub);
        self.queue.extend(server.into_iter().map(|message| as_own(message, server_pid, own_pid)));
        self.queue.extend(hub.into_iter().zip(told).filter(|(_, told)| !told).map(|(message, _)| message));
        self.joined.append(&mut self.joining);
        self.bytes = self.queue.iter().chain(&self.own).map(|message| message.len()).sum();
    }

    /// The hub is lost or was never there: what its server was notified of is all there is, and all that is due.
    pub(crate) fn without_hub(&mut self, server_pid: u32, own_pid: u32) {
        let told = self.from_server.drain(..).chain(self.in_reserve.drain(..));
        self.queue.extend(told.map(|message| as_own(message, server_pid, own_pid)));
        self.from_hub.clear();
    }

    /// Takes what can be told.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let queue = std::mem::take(&mut self.queue);
        self.bytes = self.own.iter().map(|message| message.len()).sum();
        queue.concat()
    }
}

/// Which of the hub's notifications the server has told as well, or are older: each channel for itself, as the hub may have
/// joined one long before another.
fn told_by_server(server: &[Message], hub: &[Message]) -> Vec<bool> {
    let mut channels: HashMap<&[u8], (Vec<&Message>, Vec<usize>)> = HashMap::new();
    for message in server {
        channels.entry(channel_of(message)).or_default().0.push(message);
    }
    for (at, message) in hub.iter().enumerate() {
        channels.entry(channel_of(message)).or_default().1.push(at);
    }
    let mut told = vec![false; hub.len()];
    for (server, places) in channels.into_values() {
        // A hub that listened before may be late with what was sent before the server did.
        let here: Vec<&Message> = places.iter().map(|&at| &hub[at]).collect();
        let (early, both) = overlap(&server, &here);
        places[..early + both].iter().for_each(|&at| told[at] = true);
    }
    told
}

/// Where the end of what the server said stands in what the hub said: from which place on, and how much of it. The most that can be
/// found, and the first place of several.
fn overlap(server: &[&Message], hub: &[&Message]) -> (usize, usize) {
    // Both backwards, one behind the other: how far each place agrees with the beginning (the "Z function").
    let all: Vec<&Message> = server.iter().rev().chain(hub.iter().rev()).copied().collect();
    let mut agrees = vec![0; all.len()];
    let (mut from, mut to) = (0, 0);
    let (mut place, mut most) = (0, 0);
    for at in 1..all.len() {
        let mut count = if at < to { agrees[at - from].min(to - at) } else { 0 };
        while at + count < all.len() && all[count] == all[at + count] {
            count += 1;
        }
        agrees[at] = count;
        if at + count > to {
            (from, to) = (at, at + count);
        }
        let both = count.min(server.len());
        if at >= server.len() && both > 0 && both >= most {
            (place, most) = (all.len() - at - both, both);
        }
    }
    (place, most)
}

/// A notification as its sender is to see it: what its server's process sent, it sent itself.
pub(crate) fn as_own(message: Message, server_pid: u32, own_pid: u32) -> Message {
    if pid_of(&message) == Some(server_pid) { with_pid(&message, own_pid) } else { message }
}

fn is_on(message: &[u8], channels: &[Box<[u8]>]) -> bool {
    channels.iter().any(|name| **name == *channel_of(message))
}

/// Only messages that were read before are kept.
fn channel_of(message: &[u8]) -> &[u8] {
    let told = message.get(HEADER_LEN..).and_then(|body| NotificationResponse::parse(body).ok());
    told.map_or(b"", |told| told.channel)
}

fn pid_of(message: &[u8]) -> Option<u32> {
    NotificationResponse::parse(message.get(HEADER_LEN..)?).ok().map(|notification| notification.pid)
}

fn with_pid(message: &[u8], pid: u32) -> Message {
    let mut message: Message = message.into();
    if let Some(place) = message.get_mut(HEADER_LEN..HEADER_LEN + 4) {
        place.copy_from_slice(&pid.to_be_bytes());
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(pid: u32, payload: &str) -> Message {
        let mut out = Vec::new();
        pgweir_wire::backend::encode_notification(&mut out, pid, b"c", payload.as_bytes());
        out.into()
    }

    fn listener(server: &[(u32, &str)], hub: &[(u32, &str)]) -> Listener {
        let all = |of: &[(u32, &str)]| of.iter().map(|(pid, payload)| message(*pid, payload)).collect();
        Listener { from_server: all(server), from_hub: all(hub), ..Listener::default() }
    }

    fn met(server: &[(u32, &str)], hub: &[(u32, &str)]) -> Vec<(u32, String)> {
        let mut listener = listener(server, hub);
        listener.meet(7, 99);
        let queue = std::mem::take(&mut listener.queue);
        let read = |message: &Message| {
            let read = NotificationResponse::parse(&message[HEADER_LEN..]).expect("a notification");
            (read.pid, String::from_utf8_lossy(read.payload).into_owned())
        };
        queue.iter().map(read).collect()
    }

    fn told(list: &[(u32, &str)]) -> Vec<(u32, String)> {
        list.iter().map(|(pid, payload)| (*pid, (*payload).to_owned())).collect()
    }

    #[test]
    fn where_server_and_hub_meet_nothing_is_lost_and_nothing_told_twice() {
        assert_eq!(met(&[], &[]), []);
        assert_eq!(met(&[(1, "a"), (2, "b")], &[]), told(&[(1, "a"), (2, "b")]));
        assert_eq!(met(&[], &[(1, "a")]), told(&[(1, "a")]));
        assert_eq!(
            met(&[(1, "a"), (2, "b"), (1, "c")], &[(2, "b"), (1, "c"), (3, "d")]),
            told(&[(1, "a"), (2, "b"), (1, "c"), (3, "d")])
        );
        assert_eq!(met(&[(2, "b")], &[(1, "a"), (2, "b"), (3, "c")]), told(&[(2, "b"), (3, "c")]));
        assert_eq!(met(&[(1, "a"), (1, "a")], &[(1, "a"), (2, "b")]), told(&[(1, "a"), (1, "a"), (2, "b")]));
        // The hub is late with what was sent before the server listened there, and the server had listened elsewhere before.
        assert_eq!(
            met(&[(1, "a"), (2, "b"), (1, "c")], &[(3, "late"), (2, "b"), (1, "c"), (3, "d")]),
            told(&[(1, "a"), (2, "b"), (1, "c"), (3, "d")])
        );
        assert_eq!(met(&[(1, "a")], &[(1, "a"), (1, "a")]), told(&[(1, "a"), (1, "a")]));
    }

    #[test]
    fn each_channel_meets_for_itself() {
        let on = |channel: &[u8], payload: &[u8]| {
            let mut out = Vec::new();
            pgweir_wire::backend::encode_notification(&mut out, 1, channel, payload);
            Message::from(out)
        };
        // The hub was on `a` already, and joined `b` later.
        let mut listener = Listener {
            from_server: vec![on(b"b", b"1"), on(b"a", b"2"), on(b"b", b"3")],
            from_hub: vec![on(b"a", b"0"), on(b"a", b"2"), on(b"b", b"4"), on(b"a", b"5")],
            ..Listener::default()
        };
        listener.meet(7, 99);
        let all = [on(b"b", b"1"), on(b"a", b"2"), on(b"b", b"3"), on(b"b", b"4"), on(b"a", b"5")];
        assert_eq!(listener.queue, all);
    }

    #[test]
    fn the_overlap_is_what_a_slow_search_finds() {
        let words = |number: u32, base: u32| {
            let digits = (0..6).map(move |place| number / base.pow(place) % base);
            digits.map(|digit| message(digit, "x")).collect::<Vec<Message>>()
        };
        for number in 0..729 {
            let (server, hub) = (&words(number, 3)[..2 + (number % 5) as usize], words(number * 31, 3));
            let found = (1..=server.len().min(hub.len())).rev().find_map(|both| {
                let end = &server[server.len() - both..];
                (0..=hub.len() - both).find(|&at| hub[at..].starts_with(end)).map(|at| (at, both))
            });
            let (server, hub): (Vec<&Message>, Vec<&Message>) =
                (server.iter().collect(), hub.iter().collect());
            assert_eq!(overlap(&server, &hub), found.unwrap_or_default(), "{number}");
        }
        let some = message(1, "x");
        assert_eq!((overlap(&[], &[&some]), overlap(&[&some], &[])), ((0, 0), (0, 0)));
    }

    #[test]
    fn a_clients_own_carries_its_own_process_id() {
        // What the server did not see in the client's transaction is somebody else's, who had it later.
        assert_eq!(
            met(&[(7, "a"), (7, "b")], &[(7, "b"), (7, "c")]),
            told(&[(99, "a"), (99, "b"), (7, "c")])
        );
        for server_first in [true, false] {
            let mut listener = Listener::default();
            if server_first {
                listener.note_own(&message(7, "a"), 99);
            }
            assert_eq!(listener.tell(&message(7, "a"), 99), server_first);
            if !server_first {
                listener.note_own(&message(7, "a"), 99);
            }
            assert!(listener.own.is_empty());
            assert_eq!(listener.take(), message(99, "a").to_vec());
            assert_eq!(listener.bytes, 0);
        }
    }
}
