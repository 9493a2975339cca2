//! Which clients of a pool listen to which channels, and what each client is still to be told. Values only;
//! `join.rs`, `spread.rs` and `notifications.rs` move them.

use std::collections::{HashMap, VecDeque};

use pgweir_wire::backend::NotificationResponse;
use pgweir_wire::header::HEADER_LEN;

use crate::ids::{ClientId, ServerId};

/// The connection that listens for all clients of a pool.
pub(crate) struct NotifyListener {
    pub(crate) server: ServerId,
    /// It is logged in.
    pub(crate) is_up: bool,
    /// The channels it listens to, and the clients that want each. It leaves a channel that no client wants
    /// any longer a little later.
    pub(crate) channels: HashMap<Box<[u8]>, Vec<ClientId>>,
    /// The clients that wait for the answers that it owes, in their order.
    pub(crate) owed: VecDeque<Vec<ClientId>>,
    /// The clients that wait for it to be logged in.
    pub(crate) waiting: Vec<ClientId>,
    /// It listens here for the barriers that servers send for the clients it is about to listen for. No other
    /// connection knows the name.
    pub(crate) barriers_channel: Box<[u8]>,
    /// Marks that it has not come to yet, by number, and the client of each.
    barriers: Vec<(u64, ClientId)>,
    barriers_sent: u64,
}

impl NotifyListener {
    /// One that is being opened; `secret` is random.
    pub(crate) fn new(server: ServerId, secret: [u8; 8]) -> NotifyListener {
        let name = format!("pgweir_{:016x}", u64::from_be_bytes(secret));
        NotifyListener {
            server,
            is_up: false,
            channels: HashMap::new(),
            owed: VecDeque::new(),
            waiting: Vec::new(),
            barriers_channel: name.into_bytes().into(),
            barriers: Vec::new(),
            barriers_sent: 0,
        }
    }

    /// A client's next barrier.
    pub(crate) fn next_barrier(&mut self, client: ClientId) -> Barrier {
        self.barriers_sent += 1;
        self.barriers.push((self.barriers_sent, client));
        Barrier { channel: self.barriers_channel.clone(), number: self.barriers_sent }
    }

    /// It has come to this barrier; returns its number and its client.
    pub(crate) fn take_mark(&mut self, payload: &[u8]) -> Option<(u64, ClientId)> {
        let at = self.barriers.iter().position(|(number, _)| is_number(payload, *number))?;
        Some(self.barriers.swap_remove(at))
    }

    /// A client wants a channel; `true` if no client did before.
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

    /// A client's barriers are of no use any more.
    pub(crate) fn forget_marks(&mut self, client: ClientId) {
        self.barriers.retain(|(_, other)| *other != client);
    }

    /// It is logged in, and no client wants any of its channels.
    pub(crate) fn is_unused(&self) -> bool {
        self.is_up && self.channels.values().all(Vec::is_empty)
    }

    /// All clients that would miss something without it.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        let mut clients: Vec<ClientId> = self.channels.values().flatten().copied().collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }
}

/// What a client's server is asked to send, to the notify listener and to itself.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Barrier {
    pub(crate) channel: Box<[u8]>,
    pub(crate) number: u64,
}

/// A NotificationResponse, with its header.
pub(crate) type Message = Box<[u8]>;

/// What a client listens to in transaction pooling, and what it is still to be told.
///
/// The servers that it runs on listen to its channels, too, for the sake of what is asked there; what they are notified of is
/// not passed on, as the notify listener is notified of the same. But it tells which notifications are the client's own: they carry the
/// server's process id, and the client must see its own in its place.
#[derive(Default)]
pub(crate) struct Listener {
    /// The notify listener listens to these for it.
    pub(crate) joined: Vec<Box<[u8]>>,
    /// Its transaction listens to these, and the notify listener does not yet for it.
    pub(crate) joining: Vec<Box<[u8]>>,
    /// What its server was notified of on channels that are not joined, up to the barrier.
    pub(crate) from_server: Vec<Message>,
    /// What the notify listener was notified of on those that it is joining; since the barrier, once it has come to it.
    pub(crate) from_notify_listener: Vec<Message>,
    /// What its server was notified of on them since the barrier: needed only if the notify listener is lost now.
    pub(crate) in_reserve: Vec<Message>,
    /// The barrier that was asked for last.
    pub(crate) barrier: Barrier,
    /// The notify listener has come to it.
    pub(crate) has_barrier: bool,
    /// Its own notifications, as its server was notified of them; they are to come from the notify listener.
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

    /// The notify listener's copy of a notification on a joined channel. `true` if it was the client's own.
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
        // The notify listener may have been faster.
        match self.queue.iter_mut().find(|told| ***told == *message) {
            Some(told) => *told = with_pid(message, own_pid),
            None => {
                self.bytes += message.len();
                self.own.push(message.into());
            }
        }
    }

    /// The notify listener will not tell its copies of the client's own notifications any more, except on the
    /// channels that it stays on: the server's take their place.
    pub(crate) fn own_without_listener(&mut self, own_pid: u32) {
        let (stay, gone): (Vec<Message>, Vec<Message>) =
            std::mem::take(&mut self.own).into_iter().partition(|message| is_on(message, &self.joined));
        self.own = stay;
        self.queue.extend(gone.iter().map(|message| with_pid(message, own_pid)));
    }

    /// The transaction's channels are known. The client is told what its server was notified of on other
    /// channels: they were listened to only for a while, and the notify listener never did for this client.
    /// `true` if there is any.
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

    /// A barrier is the one that was asked for last.
    pub(crate) fn is_its_mark(&self, payload: &[u8]) -> bool {
        is_number(payload, self.barrier.number)
    }

    /// The notify listener has come to a barrier: what it was notified of before, the server was before its own.
    pub(crate) fn listen_barriers(&mut self, number: u64) {
        if number == self.barrier.number {
            self.from_notify_listener.clear();
            self.has_barrier = true;
            self.count();
        }
    }

    /// Server and notify listener have come to the barrier. The server's notifications before the barrier and the
    /// listener's after it are all there are, each once.
    pub(crate) fn meet(&mut self, server_pid: u32, own_pid: u32) {
        self.in_reserve.clear();
        self.queue.extend(self.from_server.drain(..).map(|message| as_own(message, server_pid, own_pid)));
        self.queue.append(&mut self.from_notify_listener);
        self.joined.append(&mut self.joining);
        self.count();
    }

    fn count(&mut self) {
        let lists = [&self.from_server, &self.from_notify_listener, &self.in_reserve, &self.own, &self.queue];
        self.bytes = lists.into_iter().flatten().map(|message| message.len()).sum();
    }

    /// The notify listener is lost or was never there: what its server was notified of is all there is, and all that is due.
    pub(crate) fn without_notify_listener(&mut self, server_pid: u32, own_pid: u32) {
        let told = self.from_server.drain(..).chain(self.in_reserve.drain(..));
        self.queue.extend(told.map(|message| as_own(message, server_pid, own_pid)));
        self.from_notify_listener.clear();
        self.count();
    }

    /// Takes what can be told.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let queue = std::mem::take(&mut self.queue);
        self.count();
        queue.concat()
    }
}

fn is_number(payload: &[u8], number: u64) -> bool {
    payload == number.to_string().as_bytes()
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

    fn listener(server: &[(u32, &str)], notify_listener: &[(u32, &str)]) -> Listener {
        let all = |of: &[(u32, &str)]| of.iter().map(|(pid, payload)| message(*pid, payload)).collect();
        Listener {
            from_server: all(server),
            from_notify_listener: all(notify_listener),
            ..Listener::default()
        }
    }

    fn met(mut listener: Listener) -> Vec<(u32, String)> {
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
        let behind = |before: &[(u32, &str)], after: &[(u32, &str)]| {
            let mut listener = listener(&[(1, "a"), (1, "a")], before);
            listener.barrier.number = 3;
            listener.listen_barriers(2);
            assert_eq!(listener.from_notify_listener.len(), before.len(), "an older barrier says nothing");
            listener.listen_barriers(3);
            listener.from_notify_listener.extend(after.iter().map(|(pid, payload)| message(*pid, payload)));
            met(listener)
        };
        assert_eq!(behind(&[], &[]), told(&[(1, "a"), (1, "a")]));
        assert_eq!(behind(&[(1, "a")], &[]), told(&[(1, "a"), (1, "a")]));
        assert_eq!(behind(&[(9, "early"), (1, "a")], &[(1, "a")]), told(&[(1, "a"), (1, "a"), (1, "a")]));
    }

    #[test]
    fn a_mark_is_taken_once() {
        let client = ClientId::default();
        let mut notify_listener = NotifyListener::new(ServerId::default(), *b"\0\x01\xff45678");
        assert_eq!(*notify_listener.barriers_channel, *b"pgweir_0001ff3435363738");
        for number in 1..=3 {
            assert_eq!(
                notify_listener.next_barrier(client),
                Barrier { channel: notify_listener.barriers_channel.clone(), number }
            );
        }
        assert_eq!(notify_listener.take_mark(b"2"), Some((2, client)));
        assert_eq!(
            (
                notify_listener.take_mark(b"2"),
                notify_listener.take_mark(b"x"),
                notify_listener.take_mark(b"")
            ),
            (None, None, None)
        );
        notify_listener.forget_marks(client);
        assert_eq!(notify_listener.take_mark(b"3"), None);
    }

    #[test]
    fn a_clients_own_carries_its_own_process_id() {
        // A notification that the server did not see in the client's transaction belongs to a client that had
        // the server later.
        assert_eq!(
            met(listener(&[(7, "a"), (7, "b")], &[(7, "b"), (7, "c")])),
            told(&[(99, "a"), (99, "b"), (7, "b"), (7, "c")])
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
