//! Connections without TLS: every byte arrives once and in order, whatever the sockets do.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use pgweir_core::driver::{CloseMode, Closed, Endpoint, Peer, WorkerId};
use pgweir_core::mail::{self, Mail};

use super::toy::{
    Plan, Seen, TIMEOUT, TOY_BACKLOG_MAX_BYTES, World, World0, exchange, loopback, pattern, with_timeouts,
};
use crate::connection::read::READ_BUFFER_BYTES;
use crate::connection::uring_batch::UringBatch;
use crate::listening::listen::ListenSettings;
use crate::options::SocketOptions;

fn tiny_buffers() -> ListenSettings {
    let options = SocketOptions { socket_buffer_bytes: 4096, defer_accept_s: 0, ..SocketOptions::default() };
    ListenSettings { options, ..loopback() }
}

/// An upstream that echoes, on threads; it ends with the test process.
fn echo_upstream() -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut reader = stream.try_clone().unwrap();
                let _ = std::io::copy(&mut reader, &mut stream);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    Endpoint::Tcp { host: "127.0.0.1".into(), port }
}

#[test]
fn echo_of_all_sizes() {
    let world = World::new(Plan::default());
    let client = world.connect();
    for length in [1, 2, 100, 4095, 4096, 16_383, 16_384, 16_385, 65_536, 300_000] {
        let bytes = pattern(length);
        assert!(exchange(&client, &bytes) == bytes, "{length}");
    }
    let peer = world.await_seen(|seen| match seen {
        Seen::Accepted(peer) => Some(peer),
        _ => None,
    });
    let (remote, local) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
    assert_eq!(peer, Peer::Tcp { remote, local });
}

#[test]
fn full_sockets_lose_nothing() {
    let world = World::with(World0 { listen: tiny_buffers(), ..World0::default() });
    let clients: Vec<TcpStream> = (0..4).map(|_| world.connect()).collect();
    let bytes = pattern(1_000_000);
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| assert!(exchange(client, &bytes) == bytes));
        }
    });
}

#[test]
fn a_client_that_does_not_read_is_waited_for() {
    let world = World::with(World0 { listen: tiny_buffers(), ..World0::default() });
    let client = world.connect();
    let bytes = pattern(10_000_000);
    let mut back = vec![0; bytes.len()];
    thread::scope(|scope| {
        scope.spawn(|| (&client).write_all(&bytes).unwrap());
        while *world.backlog_max.lock().unwrap() <= TOY_BACKLOG_MAX_BYTES {
            thread::yield_now();
        }
        (&client).read_exact(&mut back).unwrap();
    });
    assert!(back == bytes);
    world.await_seen(|seen| (seen == Seen::Drained).then_some(()));
    assert_eq!(exchange(&client, b"still well"), b"still well");
}

/// A bulk flow, many times over, then small pieces again: neither the end of the flow, which fills no
/// portion, nor the pieces after it wait forever.
#[test]
fn what_flows_in_portions_arrives_to_its_last_byte() {
    let world = World::new(Plan::default());
    let client = world.connect();
    let bytes = pattern(4 * 1024 * 1024 + 77);
    assert!(exchange(&client, &bytes) == bytes);
    for length in [1, 8192, 8193] {
        let bytes = pattern(length);
        assert!(exchange(&client, &bytes) == bytes, "{length}");
    }
}

#[test]
fn a_client_that_does_not_read_and_breaks_off_is_noticed() {
    let world = World::with(World0 { listen: tiny_buffers(), ..World0::default() });
    let client = world.connect();
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    client.set_nonblocking(true).unwrap();
    let bytes = pattern(10_000);
    // It never reads; the toy has paused it and waits for its backlog to go.
    while *world.backlog_max.lock().unwrap() <= TOY_BACKLOG_MAX_BYTES {
        let _ = (&client).write(&bytes);
    }
    drop(client);
    assert!(matches!(world.await_closed(), Closed::Broken(_)));
}

#[test]
fn much_flows_through_little_memory() {
    let plan = Plan { upstream: Some(echo_upstream()), ..Plan::default() };
    let world = World::new(plan);
    let client = world.connect();
    let bytes = pattern(50_000_000);
    assert!(exchange(&client, &bytes) == bytes);
    let highest = *world.backlog_max.lock().unwrap();
    assert!(highest <= TOY_BACKLOG_MAX_BYTES + READ_BUFFER_BYTES, "{highest}");
    assert!(matches!(world.await_seen(connected), Some(local) if local.starts_with("127.0.0.1:")));
}

fn connected(seen: Seen) -> Option<Option<String>> {
    match seen {
        Seen::Connected(local) => Some(Some(local)),
        Seen::Closed(_) => Some(None),
        _ => None,
    }
}

#[test]
fn a_client_that_closes_its_direction_still_gets_its_answer() {
    let world = World::with(World0 { listen: tiny_buffers(), ..World0::default() });
    let mut client = world.connect();
    let bytes = pattern(400_000);
    let mut back = Vec::new();
    thread::scope(|scope| {
        let mut writer = client.try_clone().unwrap();
        let bytes = &bytes;
        scope.spawn(move || {
            writer.write_all(bytes).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        client.read_to_end(&mut back).unwrap();
    });
    assert!(back == bytes);
    assert_eq!(world.await_closed(), Closed::Eof);
}

#[test]
fn a_reset_is_told() {
    let world = World::new(Plan::default());
    let client = world.connect();
    assert_eq!(exchange(&client, b"x"), b"x");
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert_eq!(world.await_closed(), Closed::Broken("Connection reset by peer".to_owned()));
}

#[test]
fn paused_means_paused_and_nothing_is_lost() {
    let world = World::new(Plan { pause_always: true, tell_bytes: true, ..Plan::default() });
    let mut client = world.connect();
    let mut expected = Vec::new();
    let mut got = Vec::new();
    for round in 0..50_u8 {
        let piece = [round; 7];
        client.write_all(&piece).unwrap();
        expected.extend_from_slice(&piece);
        world.workers().mail(WorkerId(0), Mail::Room);
        // Between two mails the toy gets at most one piece, however many were sent.
        let mut pieces = 0;
        world.await_seen(|seen| match seen {
            Seen::Received(bytes) => {
                pieces += 1;
                got.extend_from_slice(&bytes);
                None
            }
            Seen::Mail => Some(()),
            _ => None,
        });
        assert!(pieces <= 1);
    }
    while got.len() < expected.len() {
        world.workers().mail(WorkerId(0), Mail::Room);
        world.await_seen(|seen| match seen {
            Seen::Received(bytes) => {
                got.extend_from_slice(&bytes);
                Some(())
            }
            Seen::Mail => Some(()),
            _ => None,
        });
    }
    assert_eq!(got, expected);
    let mut back = vec![0; expected.len()];
    client.read_exact(&mut back).unwrap();
    assert_eq!(back, expected);
}

#[test]
fn a_deep_backlog_that_one_write_takes_is_told_too() {
    // None of the pieces is large enough to leave at once, together they are deep.
    let greeting = vec![pattern(8000), pattern(8000), pattern(8000)];
    let world = World::new(Plan { greeting: greeting.clone(), ..Plan::default() });
    let mut client = world.connect();
    world.await_seen(|seen| (seen == Seen::Drained).then_some(()));
    let mut got = vec![0; 24_000];
    client.read_exact(&mut got).unwrap();
    assert_eq!(got, greeting.concat());
}

#[test]
fn a_deep_backlog_is_told_although_mail_adds_to_it() {
    let greeting = vec![pattern(8000), pattern(8000), pattern(8000)];
    let plan = Plan { greeting: greeting.clone(), by_mail: b"news".to_vec(), ..Plan::default() };
    let world = World::new(plan);
    let mut client = world.connect();
    world.await_seen(|seen| (seen == Seen::Drained).then_some(()));
    let mut got = vec![0; 24_004];
    client.read_exact(&mut got).unwrap();
    assert_eq!(got, [greeting.concat(), b"news".to_vec()].concat());
}

#[test]
fn what_leaves_together_arrives_as_what_leaves_one_by_one() {
    const CLIENTS: usize = 5;
    const MAILS: usize = 20;
    for io_uring in [true, false] {
        let mail = pattern(12_345);
        let plan = Plan { by_mail: mail.clone(), ..Plan::default() };
        // Smaller than a mail: much of what leaves together leaves in part.
        let mut listen = tiny_buffers();
        listen.options.io_uring = io_uring;
        let world = World::with(World0 { plan, listen, ..World0::default() });
        let enter = |_| {
            let client = world.connect();
            world.await_seen(|seen| (seen == Seen::Mail).then_some(client.try_clone().unwrap()))
        };
        let clients: Vec<TcpStream> = (0..CLIENTS).map(enter).collect();
        for _ in 0..MAILS {
            world.workers().mail(WorkerId(0), Mail::Cancel { key: Vec::new(), from: None });
        }
        // Clients that connected earlier got one more mail for each client that connected later.
        for (later, mut client) in clients.iter().rev().enumerate() {
            let mut got = vec![0; mail.len() * (1 + later + MAILS)];
            client.read_exact(&mut got).unwrap();
            assert!(got.chunks(mail.len()).all(|one| one == mail));
        }
        let batched = world.workers().post().loads()[0].batched_sends.load(Ordering::Relaxed);
        assert_eq!(batched > 0, io_uring && UringBatch::new().is_ok());
    }
}

#[test]
fn clients_move_between_workers_in_the_middle_of_their_bytes() {
    let plan = Plan { move_after: Some((3, 100_000)), ..Plan::default() };
    let world = World::with(World0 { workers: 3, plan, listen: tiny_buffers(), ..World0::default() });
    let clients: Vec<TcpStream> = (0..6).map(|_| world.connect()).collect();
    let bytes = pattern(3_000_000);
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| assert!(exchange(client, &bytes) == bytes));
        }
    });
    let mut moves = 0;
    while let Ok(seen) = world.seen.try_recv() {
        moves += usize::from(matches!(seen, Seen::Adopted(_)));
    }
    assert!(moves >= 6 * 10, "{moves}");
}

#[test]
fn the_last_words_are_heard_although_the_client_has_not_read_or_finished() {
    let words = b"FATAL: enough".to_vec();
    let world = World::new(Plan { last_words: Some((words.clone(), CloseMode::Flush)), ..Plan::default() });
    for _ in 0..20 {
        let mut client = world.connect();
        // More than the worker reads at a time: much of it lies unread when it closes.
        client.write_all(&pattern(300_000)).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("an end in order, no reset");
        assert_eq!(got, words);
    }
}

#[test]
fn the_end_of_a_closed_connection_is_told_when_the_peer_has_ended_it() {
    for flushes in [true, false] {
        let last_words = Some((b"bye".to_vec(), CloseMode::Confirm { flushes }));
        let world = World::new(Plan { last_words, ..Plan::default() });
        let mut client = world.connect();
        // More than what is discarded of other closed connections.
        client.write_all(&pattern(3 << 20)).unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("an end in order, no reset");
        assert_eq!(got, if flushes { b"bye".to_vec() } else { Vec::new() });
        let is_told = world.seen.try_iter().any(|seen| matches!(seen, Seen::Closed(_)));
        assert!(!is_told, "the peer has not closed the connection");
        drop(client);
        assert_eq!(world.await_closed(), Closed::Eof);
    }
}

#[test]
fn a_peer_that_does_not_close_a_connection_is_told_after_a_time() {
    let last_words = Some((b"bye".to_vec(), CloseMode::Confirm { flushes: true }));
    let world = World::new(Plan { last_words, ..Plan::default() });
    let mut client = world.connect();
    client.write_all(b"x").unwrap();
    assert!(matches!(world.await_closed(), Closed::Broken(why) if why.contains("in time")));
}

#[test]
fn a_peer_that_never_stops_sending_does_not_keep_a_closed_connection() {
    let world = World::new(Plan { last_words: Some((b"bye".to_vec(), CloseMode::Flush)), ..Plan::default() });
    let mut client = world.connect();
    let endless = pattern(1 << 20);
    let error = loop {
        if let Err(e) = client.write_all(&endless) {
            break e;
        }
    };
    assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
}

#[test]
fn a_server_that_is_not_there() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let upstream = Some(Endpoint::Tcp { host: "127.0.0.1".into(), port });
    let world = World::new(Plan { upstream, ..Plan::default() });
    let mut client = world.connect();
    let expected = format!("connect to 127.0.0.1:{port} failed: Connection refused");
    assert_eq!(world.await_closed(), Closed::DialFailed(expected));
    assert_eq!(client.read(&mut [0; 10]).unwrap(), 0);
}

#[test]
fn a_name_with_several_addresses_is_tried_until_one_answers() {
    let Endpoint::Tcp { port, .. } = echo_upstream() else { unreachable!() };
    // Whatever else it means here (perhaps ::1, where no server listens), it means 127.0.0.1.
    let upstream = Some(Endpoint::Tcp { host: "localhost".into(), port });
    let world = World::new(Plan { upstream, ..Plan::default() });
    for _ in 0..4 {
        let client = world.connect();
        assert_eq!(exchange(&client, b"over a name"), b"over a name");
    }
}

#[test]
fn a_server_whose_last_words_come_with_its_end() {
    // The server answers and closes at once, without reading what is still on its way to it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let words = pattern(200_000);
    let sent = words.clone();
    let server = thread::spawn(move || {
        for _ in 0..10 {
            let mut stream = with_timeouts(listener.accept().unwrap().0);
            stream.read_exact(&mut [0; 1]).unwrap();
            stream.write_all(&sent).unwrap();
        }
    });
    let upstream = Some(Endpoint::Tcp { host: "127.0.0.1".into(), port });
    let world = World::new(Plan { upstream, ..Plan::default() });
    for _ in 0..10 {
        let mut client = world.connect();
        client.write_all(b"x").unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert!(got == words, "{}", got.len());
    }
    server.join().unwrap();
}

#[test]
fn listeners_close_on_command_and_clients_stay() {
    let world = World::with(World0 { workers: 2, ..World0::default() });
    let client = world.connect();
    assert_eq!(exchange(&client, b"before"), b"before");
    world.workers().broadcast(|_| Mail::Shutdown(mail::Shutdown::WaitForClients));
    for _ in 0..2 {
        world.await_seen(|seen| (seen == Seen::Mail).then_some(()));
    }
    assert_eq!(exchange(&client, b"after"), b"after");
    // A worker closes its listeners at the end of the turn in which it has seen the command.
    let started = Instant::now();
    let refused = loop {
        match TcpStream::connect_timeout(&world.address.unwrap(), TIMEOUT) {
            Ok(_) => assert!(started.elapsed() < TIMEOUT, "the listeners are still open"),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}
