//! Listening and accepting: unix sockets, inherited sockets, and descriptors that run out.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pgweir_core::driver::{Closed, Endpoint, Level, Peer};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use super::toy::{Plan, Seen, TIMEOUT, World, World0, exchange, loopback, with_timeouts};
use crate::listening::listen::{ListenError, ListenSettings, open_listeners};
use crate::options::SocketOptions;

/// An empty directory of the test's own.
fn directory() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("pgweir-net-{}-{number}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

fn on_unix(dir: &str) -> ListenSettings {
    ListenSettings { addresses: Vec::new(), unix_dir: dir.to_owned(), port: 6432, ..loopback() }
}

fn open(settings: &ListenSettings) -> Result<crate::listening::listen::Listeners, ListenError> {
    open_listeners(settings, &mut Vec::new(), &|_, _| {})
}

fn echo_over(stream: &mut UnixStream, bytes: &[u8]) {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(back, bytes);
}

#[test]
fn a_unix_socket_has_its_mode_and_knows_its_clients() {
    let dir = directory();
    let path = dir.join(".s.PGSQL.6432");
    let listen = ListenSettings { unix_mode: 0o640, ..on_unix(dir.to_str().unwrap()) };
    let world = World::with(World0 { listen, ..World0::default() });
    let found = fs::metadata(&path).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o640);
    let mut client = UnixStream::connect(&path).unwrap();
    echo_over(&mut client, b"hello");
    let peer = world.await_seen(|seen| match seen {
        Seen::Accepted(peer) => Some(peer),
        _ => None,
    });
    let (pid, uid) = (std::process::id(), found.uid());
    assert_eq!(peer, Peer::Unix { pid, uid, same_user: true, port: 6432 });
    drop(world);
    assert!(!path.exists(), "it is removed at the end");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_socket_in_use_is_left_alone_and_a_stale_one_is_replaced() {
    let dir = directory();
    let settings = on_unix(dir.to_str().unwrap());
    let path = dir.join(".s.PGSQL.6432");
    let other = UnixListener::bind(&path).unwrap();
    assert_eq!(open(&settings).err().unwrap().to_string(), "unix socket is in use, cannot continue");
    drop(other);
    assert!(path.exists());
    let mut first = open(&settings).unwrap();
    // Another process took the path over: the file is not ours any more, and stays.
    fs::remove_file(&path).unwrap();
    let second = UnixListener::bind(&path).unwrap();
    first.socket_files.pop().unwrap().remove();
    assert!(path.exists());
    drop(second);
    fs::write(dir.join(".s.PGSQL.6432.lock"), "1").unwrap();
    assert_eq!(open(&settings).err().unwrap().to_string(), "unix port 6432 is in use");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_second_port_has_its_own_socket_and_its_clients_are_told_apart() {
    let dir = directory();
    let listen = ListenSettings { standby_port: 7432, ..on_unix(dir.to_str().unwrap()) };
    let world = World::with(World0 { listen, ..World0::default() });
    for port in [7432, 6432] {
        let mut client = UnixStream::connect(dir.join(format!(".s.PGSQL.{port}"))).unwrap();
        echo_over(&mut client, b"hello");
        let came_by = world.await_seen(|seen| match seen {
            Seen::Accepted(peer) if peer.port() == port => Some(peer.port()),
            _ => None,
        });
        assert_eq!(came_by, port);
    }
    drop(world);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "both are removed at the end");
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn what_cannot_be_listened_on_is_said() {
    let dir = directory();
    let name = dir.to_str().unwrap();
    let text = |settings: &ListenSettings| open(settings).err().unwrap().to_string();
    let group = ListenSettings { unix_group: "no-such-group".to_owned(), ..on_unix(name) };
    assert_eq!(text(&group), "unix_socket_group: no group \"no-such-group\"");
    let path = format!("{name}/missing/.s.PGSQL.6432");
    assert_eq!(
        text(&on_unix(&format!("{name}/missing"))),
        format!("could not listen on unix:{path}: No such file or directory")
    );
    let lines = std::cell::RefCell::new(Vec::new());
    let log = |level, line: &str| lines.borrow_mut().push((level, line.to_owned()));
    let both = ListenSettings { unix_dir: format!("{name}/missing"), ..loopback() };
    let listeners = open_listeners(&both, &mut Vec::new(), &log).expect("TCP works");
    assert_eq!(lines.borrow().iter().filter(|(level, _)| *level == Level::Warning).count(), 1, "{lines:?}");
    drop(listeners);
    let long = format!("{name}/{}", "x".repeat(120));
    assert!(text(&on_unix(&long)).ends_with("the path is too long for a unix socket"));
    assert!(matches!(open(&on_unix("")), Err(ListenError::Nothing)));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn one_address_that_fails_is_a_warning_and_all_are_an_error() {
    let first = open(&loopback()).unwrap();
    let port = first.tcp_addresses()[0].port();
    let lines = std::cell::RefCell::new(Vec::new());
    let log = |level, line: &str| lines.borrow_mut().push((level, line.to_owned()));
    let taken = ListenSettings { port, ..loopback() };
    assert!(matches!(open_listeners(&taken, &mut Vec::new(), &log), Err(ListenError::NoAddress(_))));
    let text = format!("could not listen on 127.0.0.1:{port}: Address already in use");
    assert_eq!(lines.borrow_mut().remove(0), (Level::Warning, text));
    let addresses = vec!["127.0.0.1".to_owned(), "127.0.0.2".to_owned()];
    let second =
        open_listeners(&ListenSettings { addresses, port, ..loopback() }, &mut Vec::new(), &log).unwrap();
    assert_eq!(second.tcp_addresses(), [format!("127.0.0.2:{port}").parse().unwrap()]);
    assert_eq!(lines.borrow()[1], (Level::Log, format!("listening on 127.0.0.2:{port}")));
}

#[test]
fn so_reuseport_shares_a_port() {
    let settings = ListenSettings { reuse_port: true, ..loopback() };
    let first = open(&settings).unwrap();
    let port = first.tcp_addresses()[0].port();
    assert!(open(&ListenSettings { port, ..settings }).is_ok());
}

#[test]
fn abstract_sockets_both_ways() {
    let name = format!("@pgweir-net-{}", std::process::id());
    let world = World::with(World0 { listen: on_unix(&name), ..World0::default() });
    let path = format!("{name}/.s.PGSQL.6432");
    let address = SocketAddr::from_abstract_name(&path[1..]).unwrap();
    let mut client = UnixStream::connect_addr(&address).unwrap();
    echo_over(&mut client, b"hello");
    assert_eq!(open(&on_unix(&name)).err().unwrap().to_string(), "unix socket is in use, cannot continue");
    let upstream = Some(Endpoint::Unix { path: path.into() });
    let relay = World::new(Plan { upstream, ..Plan::default() });
    let client = relay.connect();
    assert_eq!(exchange(&client, b"through two"), b"through two");
    let local = relay.await_seen(|seen| match seen {
        Seen::Connected(local) => Some(local),
        _ => None,
    });
    assert_eq!(local, "");
    drop(world);
}

#[test]
fn a_unix_socket_that_is_not_there() {
    let path = "/nonexistent/.s.PGSQL.5432";
    let world = World::new(Plan { upstream: Some(Endpoint::Unix { path: path.into() }), ..Plan::default() });
    let _client = world.connect();
    let text = format!("connect to unix:{path} failed: No such file or directory");
    assert_eq!(world.await_closed(), Closed::DialFailed(text));
}

#[test]
fn a_unix_server_whose_queue_is_full_is_tried_again() {
    let dir = directory();
    let path = dir.join("full");
    let address = SockAddr::unix(&path).unwrap();
    let server = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    server.bind(&address).unwrap();
    server.listen(0).unwrap();
    let mut queued = Vec::new();
    loop {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).unwrap();
        match socket.connect(&address) {
            Ok(()) => queued.push(socket),
            Err(e) => break assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock),
        }
    }
    let upstream = Some(Endpoint::Unix { path: path.to_str().unwrap().into() });
    let world = World::new(Plan { upstream, ..Plan::default() });
    let _client = world.connect();
    world.await_seen(|seen| matches!(seen, Seen::Accepted(_)).then_some(()));
    // Whatever the timing: as long as the server accepts nothing, nothing is reported.
    assert!(world.seen.recv_timeout(Duration::from_millis(100)).is_err());
    let mut accepted = Vec::new();
    for _ in 0..=queued.len() {
        accepted.push(server.accept().unwrap());
    }
    world.await_seen(|seen| (seen == Seen::Connected(String::new())).then_some(()));
    fs::remove_dir_all(dir).unwrap();
}

#[test]
fn accepted_sockets_inherit_the_listeners_options() {
    let options = SocketOptions {
        keepidle_s: 77,
        keepintvl_s: 7,
        keepcnt: 5,
        user_timeout_ms: 4321,
        socket_buffer_bytes: 20_000,
        defer_accept_s: 1,
        ..SocketOptions::default()
    };
    let listeners = open(&ListenSettings { options, ..loopback() }).unwrap();
    let client = with_timeouts(TcpStream::connect(listeners.tcp_addresses()[0]).unwrap());
    // Deferred: it can be accepted once its first bytes are there.
    (&client).write_all(b"x").unwrap();
    let accepted = loop {
        match crate::sys::accept(&listeners.sockets[0].socket) {
            Ok((socket, _)) => break socket,
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock),
        }
        std::thread::yield_now();
    };
    assert!(accepted.tcp_nodelay().unwrap());
    assert!(accepted.keepalive().unwrap());
    assert_eq!(accepted.tcp_keepalive_time().unwrap(), Duration::from_secs(77));
    assert_eq!(accepted.tcp_keepalive_interval().unwrap(), Duration::from_secs(7));
    assert_eq!(accepted.tcp_keepalive_retries().unwrap(), 5);
    assert_eq!(accepted.tcp_user_timeout().unwrap(), Some(Duration::from_millis(4321)));
    // The kernel doubles what is asked for.
    assert_eq!(accepted.send_buffer_size().unwrap(), 40_000);
    assert!(accepted.nonblocking().unwrap());
    assert!(!SockRef::from(&client).keepalive().unwrap());
}

#[test]
fn a_clients_first_bytes_are_read_in_the_turn_that_accepts_it() {
    let options = SocketOptions { defer_accept_s: 1, ..SocketOptions::default() };
    let plan = Plan { tell_bytes: true, tell_turns: true, ..Plan::default() };
    let world =
        World::with(World0 { plan, listen: ListenSettings { options, ..loopback() }, ..World0::default() });
    let mut client = world.connect();
    client.write_all(b"hello").unwrap();
    let accepted = |seen| matches!(seen, Seen::Accepted(_)).then_some(());
    world.await_seen(accepted);
    let next = world.await_seen(Some);
    assert_eq!(next, Seen::Received(b"hello".to_vec()));
    // Bytes that come later are read as before.
    client.write_all(b"world").unwrap();
    world.await_seen(|seen| (seen == Seen::Received(b"world".to_vec())).then_some(()));
}

/// The variable that is set in the environment of the test that is a child process.
const CHILD: &str = "PGWEIR_NET_TEST_CHILD";

/// The child of [`descriptors_that_run_out`]: an echo server that may open a few more files only. It writes its port
/// and then its log, and ends when its input does.
#[test]
#[ignore = "run by another test, in a separate process"]
fn child_with_few_descriptors() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let world = World::new(Plan::default());
    let next = fs::File::open("/dev/null").unwrap();
    let limit = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&next)).unwrap() + 10;
    drop(next);
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, limit, hard).unwrap();
    // Some numbers above the lowest free one may be taken: count what is left.
    let spare = std::iter::from_fn(|| fs::File::open("/dev/null").ok()).collect::<Vec<_>>().len();
    println!("\nport {} spare {spare}", world.address.unwrap().port());
    std::thread::scope(|scope| {
        let log = &world.log;
        let input = scope.spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
        while !input.is_finished() {
            if let Ok((level, line)) = log.recv_timeout(Duration::from_millis(20)) {
                println!("{level:?}: {line}");
            }
        }
    });
}

#[test]
fn descriptors_that_run_out() {
    let name = "tests::sockets::child_with_few_descriptors";
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let numbers = |line: String| {
        let (port, spare) = line.strip_prefix("port ")?.split_once(" spare ")?;
        Some((port.parse::<u16>().ok()?, spare.parse::<usize>().ok()?))
    };
    let (port, spare) = lines.find_map(numbers).unwrap();
    assert!((2..100).contains(&spare), "{spare}");
    let connect = || with_timeouts(TcpStream::connect(("127.0.0.1", port)).unwrap());
    let clients: Vec<TcpStream> = (0..spare + 2).map(|_| connect()).collect();
    // Which other parts lack a descriptor, and say so first, depends on who was faster.
    let complaint = lines.find(|line| line.starts_with("Error: ")).unwrap();
    assert!(
        complaint.starts_with("Error: accept() failed: Too many open files; nothing is accepted for 5 s"),
        "{complaint}"
    );
    // Connected clients are served meanwhile, and when they leave, the waiting clients get their turn after the pause.
    assert_eq!(exchange(&clients[0], b"served"), b"served");
    let (first, rest) = clients.split_at(spare);
    for client in first {
        client.shutdown(std::net::Shutdown::Both).unwrap();
    }
    for client in rest {
        assert_eq!(exchange(client, b"late"), b"late");
    }
    drop(child.stdin.take());
    let complaints = lines.filter(|line| line.starts_with("Error: accept()")).count();
    assert_eq!(complaints, 0, "the pause was complained about once, and one was enough");
    assert!(child.wait().unwrap().success());
}
