//! Which clients of a pool listen to which channels, and what each client is still to be told. Values only;
//! `join.rs`, `spread.rs` and `notifications.rs` move them.

use std::collections::{HashMap, VecDeque};

use pgweir_wire::backend::NotificationResponse;
use pgweir_wire::header::HEADER_LEN;

use crate::ids::{ClientId, ServerId};

/// The connection that listens for all clients of a pool.
pub(crate) struct NotifyListener {
    pub(crate) server: ServerId,
    /// Whether the connection is logged in.
    pub(crate) is_up: bool,
    /// The channels that the connection listens to, and the clients that want each. A channel that no client wants any longer is left
    /// a little later.
    pub(crate) channels: HashMap<Box<[u8]>, Vec<ClientId>>,
    /// The clients that wait for the answers that the connection owes, in the order of the answers.
    pub(crate) owed: VecDeque<Vec<ClientId>>,
    /// The clients that wait until the connection is logged in.
    pub(crate) waiting: Vec<ClientId>,
    /// The channel on which the listener receives the barriers that servers send for clients that join. No other connection knows its
    /// name.
    pub(crate) barriers_channel: Box<[u8]>,
    /// The barriers that the connection has not received yet, by number, and the client of each.
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

    /// Takes the barrier with this payload, which the listener has received. Returns the barrier's number and its client.
    pub(crate) fn take_barrier(&mut self, payload: &[u8]) -> Option<(u64, ClientId)> {
        let at = self.barriers.iter().position(|(number, _)| is_number(payload, *number))?;
        Some(self.barriers.swap_remove(at))
    }

    /// Adds a client to a channel. Returns `true` if no client wanted the channel before.
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
    pub(crate) fn forget_barriers(&mut self, client: ClientId) {
        self.barriers.retain(|(_, other)| *other != client);
    }

    /// Whether the connection is logged in, and no client wants one of its channels.
    pub(crate) fn is_unused(&self) -> bool {
        self.is_up && self.channels.values().all(Vec::is_empty)
    }

    /// Returns all clients that would miss notifications without the connection.
    pub(crate) fn clients(&self) -> Vec<ClientId> {
        let mut clients: Vec<ClientId> = self.channels.values().flatten().copied().collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }
}

/// A barrier that a client's server is asked to send to the notify listener and to itself, so that both know which notifications came
/// before.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Barrier {
    pub(crate) channel: Box<[u8]>,
    pub(crate) number: u64,
}

/// A NotificationResponse, with its header.
pub(crate) type Message = Box<[u8]>;

/// The listening of a client in transaction pooling, and the notifications that it must still be sent.
///
/// The servers that the client runs on listen to its channels as well, for the statements that ask for them. Their notifications are
/// not passed on, because the notify listener receives the same. But they show which notifications are the client's own: those carry
/// the server's process id, and the client must see its own process id instead.
#[derive(Default)]
pub(crate) struct Listener {
    /// The channels that the notify listener listens to for the client.
    pub(crate) joined: Vec<Box<[u8]>>,
    /// The channels that the client's transaction listens to, and that the notify listener does not yet listen to for it.
    pub(crate) joining: Vec<Box<[u8]>>,
    /// The notifications that the client's server has received on channels that are not joined, up to the barrier.
    pub(crate) from_server: Vec<Message>,
    /// The notifications that the notify listener has received on the joining channels. After the barrier, only those that follow it.
    pub(crate) from_notify_listener: Vec<Message>,
    /// The notifications that the client's server has received on the joining channels since the barrier. They are needed only if the
    /// notify listener is lost now.
    pub(crate) in_reserve: Vec<Message>,
    /// The barrier that was asked for last.
    pub(crate) barrier: Barrier,
    /// Whether the notify listener has come to the barrier.
    pub(crate) has_barrier: bool,
    /// The client's own notifications, as its server has received them. The notify listener must still receive them.
    pub(crate) own: Vec<Message>,
    /// The notifications that the client is sent when no transaction is open.
    pub(crate) queue: Vec<Message>,
    /// Bytes of all these messages.
    pub(crate) bytes: usize,
}

impl Listener {
    /// Whether the client listens to no channel, and no notification is queued for it.
    pub(crate) fn is_idle(&self) -> bool {
        self.joined.is_empty() && self.joining.is_empty() && self.queue.is_empty()
    }

    /// Queues the notify listener's copy of a notification on a joined channel. Returns `true` if the notification was the client's
    /// own.
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

    /// Notes the server's copy of a notification of the client's own.
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

    /// Replaces the notify listener's copies of the client's own notifications by the server's, except on the channels that the
    /// notify listener stays on, because its copies will not come any more.
    pub(crate) fn own_without_listener(&mut self, own_pid: u32) {
        let (stay, gone): (Vec<Message>, Vec<Message>) =
            std::mem::take(&mut self.own).into_iter().partition(|message| is_on(message, &self.joined));
        self.own = stay;
        self.queue.extend(gone.iter().map(|message| with_pid(message, own_pid)));
    }

    /// Queues the notifications of the client's server on channels other than these, the transaction's. The server listened to them
    /// only for a while, and the notify listener never did for this client. Returns `true` if there are any.
    pub(crate) fn told_of_others(&mut self, channels: &[Box<[u8]>], server_pid: u32, own_pid: u32) -> bool {
        let (stay, others): (Vec<Message>, Vec<Message>) =
            std::mem::take(&mut self.from_server).into_iter().partition(|message| is_on(message, channels));
        self.from_server = stay;
        let any = !others.is_empty();
        self.queue.extend(others.into_iter().map(|message| as_own(message, server_pid, own_pid)));
        any
    }

    /// Whether a queued notification may be the client's own, because it is from the process of the client's server, and the server's
    /// copy has not come yet.
    pub(crate) fn may_wait_for(&self, server_pid: u32) -> bool {
        self.queue.iter().any(|message| pid_of(message) == Some(server_pid))
    }

    /// Whether a barrier is the one that was asked for last.
    pub(crate) fn is_its_barrier(&self, payload: &[u8]) -> bool {
        is_number(payload, self.barrier.number)
    }

    /// Notes that the notify listener has received a barrier. Its notifications before the client's barrier are dropped, because the
    /// server has received them before its own.
    pub(crate) fn listen_barriers(&mut self, number: u64) {
        if number == self.barrier.number {
            self.from_notify_listener.clear();
            self.has_barrier = true;
            self.count();
        }
    }

    /// Joins the channels after both the server and the notify listener have received the barrier. The server's notifications before
    /// it, and the listener's after it, are all of them, each once.
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

    /// Queues the server's notifications, because the notify listener was lost or never there. They are all the notifications that
    /// the client must be sent.
    pub(crate) fn without_notify_listener(&mut self, server_pid: u32, own_pid: u32) {
        let told = self.from_server.drain(..).chain(self.in_reserve.drain(..));
        self.queue.extend(told.map(|message| as_own(message, server_pid, own_pid)));
        self.from_notify_listener.clear();
        self.count();
    }

    /// Takes the bytes of the queued notifications.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let queue = std::mem::take(&mut self.queue);
        self.count();
        queue.concat()
    }
}

fn is_number(payload: &[u8], number: u64) -> bool {
    payload == number.to_string().as_bytes()
}

/// Returns a notification as its sender must see it: if the server's process sent it, it carries the client's own process id.
pub(crate) fn as_own(message: Message, server_pid: u32, own_pid: u32) -> Message {
    if pid_of(&message) == Some(server_pid) { with_pid(&message, own_pid) } else { message }
}

fn is_on(message: &[u8], channels: &[Box<[u8]>]) -> bool {
    channels.iter().any(|name| **name == *channel_of(message))
}

/// Returns the channel of a notification that was parsed before.
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
    fn a_barrier_is_taken_once() {
        let client = ClientId::default();
        let mut notify_listener = NotifyListener::new(ServerId::default(), *b"\0\x01\xff45678");
        assert_eq!(*notify_listener.barriers_channel, *b"pgweir_0001ff3435363738");
        for number in 1..=3 {
            assert_eq!(
                notify_listener.next_barrier(client),
                Barrier { channel: notify_listener.barriers_channel.clone(), number }
            );
        }
        assert_eq!(notify_listener.take_barrier(b"2"), Some((2, client)));
        assert_eq!(
            (
                notify_listener.take_barrier(b"2"),
                notify_listener.take_barrier(b"x"),
                notify_listener.take_barrier(b"")
            ),
            (None, None, None)
        );
        notify_listener.forget_barriers(client);
        assert_eq!(notify_listener.take_barrier(b"3"), None);
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
