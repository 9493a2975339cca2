//! The relay's one thread. Every piece is late by the same time, so what was read first is due first: one queue for all
//! connections says what leaves next. What is due for a connection at the same time leaves in one write.
//!
//! A byte is never early: its time counts from when the kernel had it. The thread sleeps while nothing is due and nothing arrives;
//! while much is on its way it looks at most every [`LOOKS_APART`], because a wake-up costs more than a piece.

use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSliceMut, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::prctl::set_timerslack;
use nix::sys::socket::sockopt::ReceiveTimestampns;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Socket, Type};

use crate::processes::interrupt::Interrupt;

/// Between two looks while much is on its way: half of it is added to a delay on average.
const LOOKS_APART: Duration = Duration::from_micros(30);
/// So many pieces on their way are much.
const MUCH: usize = 4;
/// Sleeping for less than this is not worth a system call.
const NAP_MIN: Duration = Duration::from_micros(5);
/// How often a thread that has nothing to do looks whether it is to end.
const IDLE_MS: u16 = 20;
/// The kernel may wake a thread later than asked by this; its own choice is 50 microseconds.
const TIMER_SLACK_NS: u64 = 1;
/// A thread is woken late on a machine that has much to do; what that is on average is taken off, up to this.
const OVERSLEEP_MAX: Duration = Duration::from_micros(200);
/// A lane with so many bytes on their way is not read any further until some have left.
const LANE_BYTES_MAX: usize = 1024 * 1024;
const READ_BYTES_MAX: usize = 64 * 1024;
const EVENTS: usize = 256;
const LISTENER: u64 = u64::MAX;

/// Names a connection's socket, and the lane that begins there: twice the pair's number, and 1 for the server's.
type Key = u64;

/// Relays until the interrupt.
///
/// # Errors
/// The system gives no event queue.
pub(super) fn serve(
    listener: &TcpListener,
    to: u16,
    delay: Duration,
    interrupt: &Interrupt,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    set_timerslack(TIMER_SLACK_NS)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(listener.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let mut relay = Passing {
        epoll,
        to: (Ipv4Addr::LOCALHOST, to).into(),
        delay,
        pairs: HashMap::new(),
        next: 0,
        later: VecDeque::new(),
        arrived: Vec::new(),
        touched: Vec::new(),
        looked: Instant::now(),
        oversleep: Duration::ZERO,
        reader: Reader::new(),
    };
    let mut events = [EpollEvent::empty(); EVENTS];
    while !interrupt.is_raised() {
        let count = relay.wait(&mut events)?;
        relay.turn(&events[..count], listener);
    }
    Ok(())
}

struct Passing {
    epoll: Epoll,
    to: SocketAddr,
    delay: Duration,
    pairs: HashMap<u64, Pair>,
    /// The next pair's number; none is given twice.
    next: u64,
    /// What is on its way: when it is due, in which lane, and what it is.
    later: VecDeque<(Instant, Key, Piece)>,
    /// What was read in this turn, and when it had arrived.
    arrived: Vec<(Instant, Key, Piece)>,
    /// Lanes that have something to write in this turn.
    touched: Vec<Key>,
    /// When arrivals were looked for last.
    looked: Instant,
    /// How much later than asked the thread is woken.
    oversleep: Duration,
    reader: Reader,
}

/// Reads, and tells when the kernel had what was read.
struct Reader {
    buffer: Vec<u8>,
    stamp: Vec<u8>,
    /// The same moment by the clock of stamps and by ours.
    moment: (SystemTime, Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Bytes(usize),
    /// Its sender sends no more.
    End,
    /// The connection broke.
    Break,
}

/// A client's connection, and ours to the server for it, each with the lane that begins there.
struct Pair {
    sockets: [TcpStream; 2],
    lanes: [Lane; 2],
}

/// One direction.
struct Lane {
    /// Bytes on their way, and before these some that have left.
    bytes: Vec<u8>,
    left: usize,
    /// The number of bytes that may leave now.
    due: usize,
    inlet: Inlet,
    outlet: Outlet,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Inlet {
    Open,
    /// Not read, because too much is on its way.
    Held,
    /// Its sender sends no more.
    Over,
    /// The same, and it is time that the receiver is told.
    Told,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outlet {
    Open,
    /// The receiver's socket takes no more at the moment, or is not connected yet.
    Full,
    /// The receiver was told that there is no more.
    Over,
}

impl Passing {
    /// Waits until something has arrived or is due.
    fn wait(&mut self, events: &mut [EpollEvent]) -> io::Result<usize> {
        let mut idle = EpollTimeout::from(IDLE_MS);
        if let Some(&(due, _, _)) = self.later.front() {
            self.sleep(due);
            idle = EpollTimeout::ZERO;
        }
        let count = match self.epoll.wait(events, idle) {
            Err(nix::Error::EINTR) => 0,
            waited => waited?,
        };
        self.looked = Instant::now();
        Ok(count)
    }

    /// Sleeps until something is due, or has arrived.
    fn sleep(&mut self, due: Instant) {
        let mut now = Instant::now();
        let nap = (self.looked + LOOKS_APART).saturating_duration_since(now);
        if self.later.len() >= MUCH && nap >= NAP_MIN {
            thread::sleep(nap);
            now = Instant::now();
        }
        let rest = due.saturating_duration_since(now + self.oversleep);
        if rest < NAP_MIN {
            return;
        }
        let mut fds = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
        // Interrupted or not: what is there is looked at next.
        if ppoll(&mut fds, Some(rest.into()), None) == Ok(0) {
            let late = Instant::now().saturating_duration_since(now + rest);
            self.oversleep = ((self.oversleep * 7 + late) / 8).min(OVERSLEEP_MAX);
        }
    }

    /// Reads what has arrived, and writes what is due.
    fn turn(&mut self, events: &[EpollEvent], listener: &TcpListener) {
        self.reader.moment = (SystemTime::now(), self.looked);
        for event in events {
            match event.data() {
                LISTENER => self.accept(listener),
                key => self.serve(key, event.events()),
            }
        }
        // What comes from one socket is in order already.
        self.arrived.sort_by_key(|(at, _, _)| *at);
        self.later.extend(self.arrived.drain(..).map(|(at, key, piece)| (at + self.delay, key, piece)));
        let now = Instant::now();
        while let Some((_, key, piece)) = self.later.front().copied().filter(|(due, _, _)| *due <= now) {
            self.later.pop_front();
            self.ripen(key, piece);
        }
        while let Some(key) = self.touched.pop() {
            self.give(key);
        }
    }

    fn accept(&mut self, listener: &TcpListener) {
        while let Ok((client, _)) = listener.accept() {
            // A server that is not there ends the client's connection, as it would without us.
            let Ok(server) = dial(self.to) else { continue };
            let number = self.next;
            let ready = client.set_nonblocking(true).is_ok()
                && client.set_nodelay(true).is_ok()
                && setsockopt(&client, ReceiveTimestampns, &true).is_ok()
                && setsockopt(&server, ReceiveTimestampns, &true).is_ok()
                && self.watch(&client, number * 2, EpollFlags::EPOLLIN)
                && self.watch(&server, number * 2 + 1, EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT);
            if ready {
                self.next += 1;
                let lanes = [Lane::new(Outlet::Full), Lane::new(Outlet::Open)];
                self.pairs.insert(number, Pair { sockets: [client, server], lanes });
            }
        }
    }

    fn watch(&self, socket: &TcpStream, key: Key, flags: EpollFlags) -> bool {
        self.epoll.add(socket.as_fd(), EpollEvent::new(flags, key)).is_ok()
    }

    /// A socket is ready.
    fn serve(&mut self, key: Key, flags: EpollFlags) {
        let (side, other) = sides(key);
        let Some(pair) = self.pairs.get_mut(&(key / 2)) else { return };
        if flags.contains(EpollFlags::EPOLLOUT) && pair.lanes[other].outlet == Outlet::Full {
            pair.lanes[other].outlet = Outlet::Open;
            pair.attend(&self.epoll, key);
            self.touched.push(key ^ 1);
        }
        let has_news = flags.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR);
        if !has_news || pair.lanes[side].inlet == Inlet::Over {
            return;
        }
        let (at, piece) = match self.reader.read(&pair.sockets[side]) {
            Ok((at, [])) => (at, Piece::End),
            Ok((at, bytes)) => {
                pair.lanes[side].keep(bytes);
                (at, Piece::Bytes(bytes.len()))
            }
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => return,
            Err(_) => (Instant::now(), Piece::Break),
        };
        if matches!(piece, Piece::End | Piece::Break) {
            pair.lanes[side].inlet = Inlet::Over;
        }
        match piece {
            // It would be reported at each look until its time has come.
            Piece::Break => drop(self.epoll.delete(pair.sockets[side].as_fd())),
            _ if pair.lanes[side].inlet != Inlet::Open => pair.attend(&self.epoll, key),
            _ => {}
        }
        self.arrived.push((at, key, piece));
    }

    /// The time of a piece has come.
    fn ripen(&mut self, key: Key, piece: Piece) {
        let Some(pair) = self.pairs.get_mut(&(key / 2)) else { return };
        let lane = &mut pair.lanes[sides(key).0];
        match piece {
            Piece::Bytes(count) => lane.due += count,
            Piece::End => lane.inlet = Inlet::Told,
            Piece::Break => drop(self.pairs.remove(&(key / 2))),
        }
        if self.touched.last() != Some(&key) {
            self.touched.push(key);
        }
    }

    /// Writes what is due in a lane.
    fn give(&mut self, key: Key) {
        let Some(pair) = self.pairs.get_mut(&(key / 2)) else { return };
        let (side, other) = sides(key);
        let (lane, to) = (&mut pair.lanes[side], &mut pair.sockets[other]);
        if lane.give(to).is_err() {
            self.pairs.remove(&(key / 2));
            return;
        }
        if lane.outlet == Outlet::Full {
            pair.attend(&self.epoll, key ^ 1);
        } else if lane.inlet == Inlet::Told && lane.due == 0 {
            lane.outlet = Outlet::Over;
            let _ = to.shutdown(Shutdown::Write);
        }
        if pair.lanes[side].inlet == Inlet::Held && pair.lanes[side].on_their_way() < LANE_BYTES_MAX / 2 {
            pair.lanes[side].inlet = Inlet::Open;
            pair.attend(&self.epoll, key);
        }
        if pair.lanes.iter().all(|lane| lane.outlet == Outlet::Over) {
            self.pairs.remove(&(key / 2));
        }
    }
}

impl Reader {
    fn new() -> Self {
        let stamp = nix::cmsg_space!(TimeSpec);
        Self { buffer: vec![0; READ_BYTES_MAX], stamp, moment: (SystemTime::now(), Instant::now()) }
    }

    /// What a socket has, and when its last byte was there.
    fn read(&mut self, socket: &TcpStream) -> nix::Result<(Instant, &[u8])> {
        let mut into = [IoSliceMut::new(&mut self.buffer)];
        let fd = socket.as_raw_fd();
        let message = recvmsg::<()>(fd, &mut into, Some(&mut self.stamp), MsgFlags::empty())?;
        let stamp = message.cmsgs()?.find_map(|control| match control {
            ControlMessageOwned::ScmTimestampns(stamp) => Some(Duration::from(stamp)),
            _ => None,
        });
        // The end of a stream has none.
        let now = Instant::now();
        let at = stamp.map_or(now, |stamp| {
            let (clock, moment) = self.moment;
            match (SystemTime::UNIX_EPOCH + stamp).duration_since(clock) {
                Ok(later) => (moment + later).min(now),
                Err(earlier) => moment.checked_sub(earlier.duration()).unwrap_or(now),
            }
        });
        let count = message.bytes;
        Ok((at, &self.buffer[..count]))
    }
}

impl Pair {
    /// Has the system report what can be done with the socket of a key.
    fn attend(&self, epoll: &Epoll, key: Key) {
        let (side, other) = sides(key);
        let mut flags = EpollFlags::empty();
        flags.set(EpollFlags::EPOLLIN, self.lanes[side].inlet == Inlet::Open);
        flags.set(EpollFlags::EPOLLOUT, self.lanes[other].outlet == Outlet::Full);
        // Fails only for a socket that broke, which is not watched any more.
        let _ = epoll.modify(self.sockets[side].as_fd(), &mut EpollEvent::new(flags, key));
    }
}

impl Lane {
    fn new(outlet: Outlet) -> Self {
        Self { bytes: Vec::new(), left: 0, due: 0, inlet: Inlet::Open, outlet }
    }

    fn on_their_way(&self) -> usize {
        self.bytes.len() - self.left
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if self.on_their_way() >= LANE_BYTES_MAX {
            self.inlet = Inlet::Held;
        }
    }

    /// Writes as much of what is due as the socket takes.
    fn give(&mut self, to: &mut TcpStream) -> io::Result<()> {
        if self.due == 0 || self.outlet != Outlet::Open {
            return Ok(());
        }
        let count = match to.write(&self.bytes[self.left..self.left + self.due]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            written => written?,
        };
        self.left += count;
        self.due -= count;
        if self.due > 0 {
            self.outlet = Outlet::Full;
        }
        if self.left == self.bytes.len() {
            self.bytes.clear();
            self.left = 0;
        } else if self.left >= LANE_BYTES_MAX {
            self.bytes.drain(..self.left);
            self.left = 0;
        }
        Ok(())
    }
}

/// Which socket a key names, and the other one.
fn sides(key: Key) -> (usize, usize) {
    if key.is_multiple_of(2) { (0, 1) } else { (1, 0) }
}

/// Begins to connect.
fn dial(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), None)?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(nix::libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// A relay to a port of 127.0.0.1, until it is dropped.
    struct Running {
        port: u16,
        interrupt: Interrupt,
        thread: Option<thread::JoinHandle<io::Result<()>>>,
    }

    impl Running {
        fn start(to: u16, delay: Duration) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            let port = listener.local_addr().expect("bound").port();
            let interrupt = Interrupt::default();
            let end = interrupt.clone();
            let thread = Some(thread::spawn(move || serve(&listener, to, delay, &end)));
            Self { port, interrupt, thread }
        }

        fn connect(&self) -> TcpStream {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("connected");
            stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
            stream
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            self.interrupt.raise();
            let thread = self.thread.take().expect("dropped once");
            thread.join().expect("no panic").expect("served");
        }
    }

    /// A server that sends back what it is sent, for so many connections; its port.
    fn echo(connections: usize) -> u16 {
        let server = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = server.local_addr().expect("bound").port();
        thread::spawn(move || {
            for _ in 0..connections {
                let (mut stream, _) = server.accept().expect("the relay");
                thread::spawn(move || io::copy(&mut stream.try_clone().expect("cloned"), &mut stream));
            }
        });
        port
    }

    #[test]
    fn bytes_come_through_not_before_their_time() {
        let relay = Running::start(echo(1), Duration::from_millis(20));
        let mut client = relay.connect();
        for _ in 0..3 {
            let begin = Instant::now();
            client.write_all(b"hello").expect("sent");
            let mut answer = [0; 5];
            client.read_exact(&mut answer).expect("answered");
            assert_eq!(&answer, b"hello");
            assert!(begin.elapsed() >= Duration::from_millis(40));
        }
    }

    /// More than sockets and lanes hold, so reading stops and goes on; then the end goes through, too, and only in its direction.
    #[test]
    fn a_long_stream_keeps_its_order() {
        const WORDS: u32 = 4_000_000;
        let relay = Running::start(echo(1), Duration::from_micros(200));
        let mut client = relay.connect();
        let mut writer = client.try_clone().expect("cloned");
        let sender = thread::spawn(move || {
            let bytes: Vec<u8> = (0..WORDS).flat_map(u32::to_le_bytes).collect();
            writer.write_all(&bytes).expect("sent");
            writer.shutdown(Shutdown::Write).expect("shut down");
        });
        // Until the sender has filled whatever is in between.
        thread::sleep(Duration::from_millis(100));
        let mut received = Vec::new();
        client.read_to_end(&mut received).expect("received");
        sender.join().expect("no panic");
        let words = received.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().expect("four")));
        assert!(words.eq(0..WORDS), "{} bytes", received.len());
    }

    #[test]
    fn many_connections_get_their_own_bytes() {
        const CONNECTIONS: usize = 300;
        let relay = Running::start(echo(CONNECTIONS), Duration::from_millis(1));
        let mut clients: Vec<TcpStream> = (0..CONNECTIONS).map(|_| relay.connect()).collect();
        for round in 0..5 {
            for (number, client) in clients.iter_mut().enumerate() {
                client.write_all(format!("{number:04}:{round}").as_bytes()).expect("sent");
            }
            for (number, client) in clients.iter_mut().enumerate() {
                let mut answer = [0; 6];
                client.read_exact(&mut answer).expect("answered");
                assert_eq!(answer, *format!("{number:04}:{round}").as_bytes());
            }
        }
    }

    #[test]
    fn a_server_that_is_not_there_ends_the_clients_connection() {
        let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
        let relay = Running::start(gone, Duration::from_millis(1));
        let mut buffer = [0; 1];
        // An end or a reset, but no wait.
        assert!(!matches!(relay.connect().read(&mut buffer), Ok(1)));
        let error = relay.connect().read(&mut buffer).err().map(|error| error.kind());
        assert_ne!(error, Some(io::ErrorKind::WouldBlock));
    }
}
