//! TLS towards clients.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::thread;

use pgweir_core::driver::{CloseMode, Closed, TlsInfo, TlsRole};
use pgweir_settings::SslMode;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::certs::{Authority, ClientSetup, Identity, towards_clients};
use super::toy::{Plan, Seen, TOY_BACKLOG_MAX_BYTES, World, World0, loopback, pattern};
use crate::options::SocketOptions;
use crate::tls::TlsConfigs;

type TlsClient = StreamOwned<ClientConnection, TcpStream>;

struct Scene {
    authority: Authority,
    own: Identity,
}

impl Scene {
    fn new() -> Self {
        let authority = Authority::new("clients' authority");
        let own = authority.sign("pooler", &["pooler.example"]);
        Self { authority, own }
    }

    fn configs(&self, mode: SslMode) -> TlsConfigs {
        let ca = (mode >= SslMode::VerifyCa).then_some(self.authority.cert.as_str());
        towards_clients(mode, &self.own, ca).unwrap()
    }

    fn client(&self) -> ClientSetup<'_> {
        ClientSetup::new(&self.authority.cert)
    }
}

fn accepting(direct: bool) -> Plan {
    Plan { tls_accept: Some(TlsRole::Accept { direct }), ..Plan::default() }
}

fn world(plan: Plan, tls: TlsConfigs) -> World {
    World::with(World0 { plan, tls, ..World0::default() })
}

fn begin(world: &World, config: Arc<ClientConfig>) -> TlsClient {
    let session = ClientConnection::new(config, "pooler.example".try_into().unwrap()).unwrap();
    StreamOwned::new(session, world.connect())
}

fn established(world: &World) -> TlsInfo {
    world.await_seen(|seen| match seen {
        Seen::Established(info) => Some(info),
        Seen::Closed(why) => panic!("{why:?}"),
        _ => None,
    })
}

fn tls_failure(world: &World) -> String {
    match world.await_closed() {
        Closed::Tls(text) => text,
        other => panic!("{other:?}"),
    }
}

/// Sends and reads back in pieces that fit into the sockets' buffers, on one thread.
fn echo(client: &mut TlsClient, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        client.write_all(piece).unwrap();
        let mut back = vec![0; piece.len()];
        client.read_exact(&mut back).unwrap();
        assert!(back == piece);
    }
}

#[test]
fn both_versions_echo_records_of_all_sizes() {
    let scene = Scene::new();
    for old_version in [false, true] {
        let world = world(accepting(false), scene.configs(SslMode::Require));
        let mut client = begin(&world, ClientSetup { old_version, ..scene.client() }.build());
        for piece in [1, 2, 100, 16_383, 16_384, 16_385, 60_000] {
            echo(&mut client, &pattern(piece * 3), piece);
        }
        let info = established(&world);
        let expected = if old_version {
            "TLSv1.2/ECDHE-ECDSA-AES256-GCM-SHA384"
        } else {
            "TLSv1.3/TLS_AES_256_GCM_SHA384"
        };
        assert_eq!((info.description.as_str(), info.peer_names.len()), (expected, 0));
        // What SCRAM is bound to: the SHA-256 of our certificate.
        assert_eq!(info.end_point.map(|hash| hash.len()), Some(32));
    }
}

#[test]
fn many_tiny_records_in_one_packet() {
    let scene = Scene::new();
    let world = world(accepting(false), scene.configs(SslMode::Require));
    // 32 is the smallest that rustls makes: one byte of content with its header and tag.
    let config = ClientSetup { fragment_bytes: Some(32), ..scene.client() }.build();
    let mut client = begin(&world, config);
    echo(&mut client, &pattern(200_000), 20_000);
}

/// Many bytes both ways at once, read as soon as `may_read`: the client's session is driven by hand, as its two
/// directions share it.
fn flood(client: &mut TlsClient, bytes: &[u8], may_read: impl Fn() -> bool) -> Vec<u8> {
    let (mut sent, mut back) = (0, Vec::new());
    let mut room = vec![0; 65_536];
    client.sock.set_nonblocking(true).unwrap();
    while back.len() < bytes.len() {
        if sent < bytes.len() && !client.conn.wants_write() {
            sent += client.conn.writer().write(&bytes[sent..bytes.len().min(sent + 65_536)]).unwrap();
        }
        while client.conn.wants_write() && client.conn.write_tls(&mut client.sock).is_ok() {}
        if client.conn.is_handshaking() || may_read() {
            receive(client, &mut back, &mut room);
        }
        thread::yield_now();
    }
    client.sock.set_nonblocking(false).unwrap();
    back
}

fn receive(client: &mut TlsClient, back: &mut Vec<u8>, room: &mut [u8]) {
    match client.conn.read_tls(&mut client.sock) {
        Ok(0) => panic!("the end after {} bytes", back.len()),
        Ok(_) => {
            client.conn.process_new_packets().unwrap();
            while let Ok(count) = client.conn.reader().read(room) {
                back.extend_from_slice(&room[..count]);
            }
        }
        Err(e) => assert_eq!(e.kind(), ErrorKind::WouldBlock),
    }
}

#[test]
fn much_flows_both_ways_through_full_sockets() {
    let scene = Scene::new();
    let options = SocketOptions { socket_buffer_bytes: 8192, defer_accept_s: 0, ..SocketOptions::default() };
    let listen = crate::listening::listen::ListenSettings { options, ..loopback() };
    let tls = scene.configs(SslMode::Require);
    let world = World::with(World0 { plan: accepting(false), tls, listen, ..World0::default() });
    let mut client = begin(&world, scene.client().build());
    let bytes = pattern(5_000_000);
    let server_waits = || *world.backlog_max.lock().unwrap() > TOY_BACKLOG_MAX_BYTES;
    assert!(flood(&mut client, &bytes, server_waits) == bytes);
    world.await_seen(|seen| (seen == Seen::Drained).then_some(()));
}

#[test]
fn keys_may_change_in_the_middle() {
    let scene = Scene::new();
    let world = world(accepting(false), scene.configs(SslMode::Require));
    let mut client = begin(&world, scene.client().build());
    for _ in 0..5 {
        echo(&mut client, &pattern(40_000), 20_000);
        client.conn.refresh_traffic_keys().unwrap();
    }
    echo(&mut client, &pattern(100), 100);
}

#[test]
fn sessions_move_between_workers_in_the_middle_of_their_bytes() {
    let scene = Scene::new();
    let plan = Plan { move_after: Some((2, 50_000)), ..accepting(false) };
    let tls = scene.configs(SslMode::Require);
    let world = World::with(World0 { workers: 2, plan, tls, ..World0::default() });
    for old_version in [false, true] {
        let mut client = begin(&world, ClientSetup { old_version, ..scene.client() }.build());
        let bytes = pattern(2_000_000);
        assert!(flood(&mut client, &bytes, || true) == bytes);
    }
    let mut moves = 0;
    while let Ok(seen) = world.seen.try_recv() {
        moves += usize::from(matches!(seen, Seen::Adopted(_)));
    }
    assert!(moves >= 10, "{moves}");
}

#[test]
fn paused_sessions_deliver_everything_later() {
    let scene = Scene::new();
    let plan = Plan { pause_always: true, ..accepting(false) };
    let world = world(plan, scene.configs(SslMode::Require));
    let mut client = begin(&world, scene.client().build());
    client.write_all(&pattern(100_000)).unwrap();
    let mut back = vec![0; 100_000];
    let workers = world.workers();
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                workers.mail(pgweir_core::driver::WorkerId(0), pgweir_core::mail::Mail::Room);
                thread::yield_now();
            }
        });
        let result = client.read_exact(&mut back);
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        result.unwrap();
    });
    assert!(back == pattern(100_000));
}

#[test]
fn the_end_is_in_order_on_both_sides() {
    let scene = Scene::new();
    let words = (b"FATAL: enough".to_vec(), CloseMode::Flush);
    let plan = Plan { last_words: Some(words), ..accepting(false) };
    let leaving = world(plan, scene.configs(SslMode::Require));
    let mut client = begin(&leaving, scene.client().build());
    client.write_all(b"hello").unwrap();
    let mut got = Vec::new();
    // rustls reports an end without close_notify as an error.
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"FATAL: enough");

    let staying = world(accepting(false), scene.configs(SslMode::Require));
    let mut client = begin(&staying, scene.client().build());
    echo(&mut client, b"hello", 5);
    client.conn.send_close_notify();
    client.flush().unwrap();
    assert_eq!(staying.await_closed(), Closed::Eof);
}

#[test]
fn bytes_behind_the_close_notify_do_not_count() {
    let scene = Scene::new();
    let world = world(Plan { tell_bytes: true, ..accepting(false) }, scene.configs(SslMode::Require));
    let mut client = begin(&world, scene.client().build());
    echo(&mut client, b"hello", 5);
    client.conn.send_close_notify();
    let mut last = Vec::new();
    client.conn.write_tls(&mut last).unwrap();
    last.extend_from_slice(b"\x17\x03\x03\x00\x05aaaaa");
    client.sock.write_all(&last).unwrap();
    let mut received = Vec::new();
    let end = world.await_seen(|seen| match seen {
        Seen::Received(bytes) => {
            received.extend_from_slice(&bytes);
            None
        }
        Seen::Closed(why) => Some(why),
        _ => None,
    });
    assert_eq!((received.as_slice(), end), (b"hello".as_slice(), Closed::Eof));
}

#[test]
fn garbage_is_answered_by_an_alert() {
    let scene = Scene::new();
    let world = world(accepting(false), scene.configs(SslMode::Require));
    let mut noise = b"\x16\x03\x01\x02\x00".to_vec();
    noise.extend(pattern(0x200));
    let alert = Some(0x15);
    let cases: [(&[u8], Option<u8>); 5] = [
        (b"\0\0\0\x08\x04\xd2\x16\x2f", alert),
        (b"GET / HTTP/1.1\r\n\r\n", alert),
        (b"\x16\x03\x01\x00\x00", alert),
        (b"\x16\x03\x01\xff\xff", alert),
        // rustls has nothing to say to a handshake message that is too large.
        (&noise, None),
    ];
    for (case, expected) in cases {
        let mut client = world.connect();
        client.write_all(case).unwrap();
        let text = tls_failure(&world);
        assert!(!text.is_empty(), "{case:?}");
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        assert_eq!(got.first().copied(), expected, "{case:?}");
    }
}

#[test]
fn a_broken_record_ends_an_established_session() {
    let scene = Scene::new();
    let world = world(accepting(false), scene.configs(SslMode::Require));
    let mut client = begin(&world, scene.client().build());
    echo(&mut client, b"hello", 5);
    client.sock.write_all(b"\x17\x03\x03\x00\x20aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa").unwrap();
    assert_eq!(tls_failure(&world), "cannot decrypt peer's message");
}

#[test]
fn a_handshake_message_without_end_is_bounded() {
    let scene = Scene::new();
    let world = world(accepting(false), scene.configs(SslMode::Require));
    let mut client = world.connect();
    // A ClientHello that says it has 16 MB, in records of 10,000 bytes.
    let mut record = b"\x16\x03\x01\x27\x10".to_vec();
    record.extend_from_slice(b"\x01\xff\xff\xff\x03\x03");
    record.resize(5 + 10_000, 0);
    let follow_up = [b"\x16\x03\x01\x27\x10".as_slice(), &[0; 10_000]].concat();
    let _ = client.write_all(&record);
    for _ in 0..20 {
        let _ = client.write_all(&follow_up);
    }
    assert!(!tls_failure(&world).is_empty());
}

#[test]
fn direct_tls_needs_alpn_and_any_tls_refuses_a_foreign_one() {
    let scene = Scene::new();
    let postgresql = || vec![b"postgresql".to_vec()];
    for (direct, alpn, problem) in [
        (true, postgresql(), None),
        (false, postgresql(), None),
        (false, Vec::new(), None),
        (true, Vec::new(), Some("received direct SSL connection request without ALPN")),
        (true, vec![b"http/1.1".to_vec()], Some("peer doesn't support any known protocol")),
        (false, vec![b"http/1.1".to_vec()], Some("peer doesn't support any known protocol")),
    ] {
        let world = world(accepting(direct), scene.configs(SslMode::Require));
        let config = ClientSetup { alpn: alpn.clone(), ..scene.client() }.build();
        let mut client = begin(&world, config);
        match problem {
            None => {
                echo(&mut client, b"hello", 5);
                assert_eq!(client.conn.alpn_protocol(), alpn.first().map(Vec::as_slice));
            }
            Some(expected) => {
                let _ = client.write_all(b"hello");
                let text = tls_failure(&world);
                assert!(text.contains(expected), "{text}");
                assert!(client.read_exact(&mut [0; 5]).is_err());
            }
        }
    }
}

#[test]
fn the_first_record_may_have_been_read_already() {
    let scene = Scene::new();
    let plan = Plan { tls_on_first_bytes: Some(TlsRole::Accept { direct: true }), ..Plan::default() };
    let world = world(plan, scene.configs(SslMode::Require));
    let config = ClientSetup { alpn: vec![b"postgresql".to_vec()], ..scene.client() }.build();
    let mut client = begin(&world, config);
    echo(&mut client, &pattern(10_000), 1000);
}

#[test]
fn client_certificates() {
    let scene = Scene::new();
    let known = scene.authority.sign("anna", &["anna.example"]);
    let stranger = Authority::new("somebody").sign("anna", &[]);
    let own_root = super::certs::self_signed("otto", &[]);
    let ca = format!("{}{}", scene.authority.cert, own_root.cert);
    type Expected = Result<&'static [&'static str], &'static str>;
    let cases: [(SslMode, Option<&Identity>, Expected); 8] = [
        (SslMode::VerifyFull, Some(&known), Ok(&["anna", "anna.example"])),
        (SslMode::VerifyCa, Some(&known), Ok(&["anna", "anna.example"])),
        (SslMode::VerifyCa, Some(&own_root), Ok(&["otto"])),
        (
            SslMode::VerifyCa,
            Some(&stranger),
            Err("handshake failed: certificate verify failed (invalid peer certificate: UnknownIssuer)"),
        ),
        (SslMode::VerifyCa, None, Err("peer sent no certificates")),
        (SslMode::Require, None, Ok(&[])),
        (SslMode::Require, Some(&known), Ok(&["anna", "anna.example"])),
        (
            SslMode::Prefer,
            Some(&stranger),
            Err("handshake failed: certificate verify failed (invalid peer certificate: UnknownIssuer)"),
        ),
    ];
    for old_version in [false, true] {
        for (mode, own, expected) in cases {
            let configs = towards_clients(mode, &scene.own, Some(&ca)).unwrap();
            let world = world(accepting(false), configs);
            let mut client = begin(&world, ClientSetup { own, old_version, ..scene.client() }.build());
            let _ = client.write_all(b"hello");
            match expected {
                Ok(names) => assert_eq!(established(&world).peer_names, names),
                Err(text) => assert_eq!(tls_failure(&world), text),
            }
        }
    }
}

#[test]
fn a_new_configuration_is_for_new_sessions() {
    let scene = Scene::new();
    let world = world(accepting(false), scene.configs(SslMode::Require));
    let mut old = begin(&world, scene.client().build());
    echo(&mut old, b"before", 6);
    let other = Scene::new();
    world.workers().set_tls(&other.configs(SslMode::Require));
    let mut new = begin(&world, other.client().build());
    echo(&mut new, b"new", 3);
    echo(&mut old, b"after", 5);
    world.workers().set_tls(&TlsConfigs::default());
    let mut refused = begin(&world, other.client().build());
    assert!(refused.write_all(b"x").and_then(|()| refused.read_exact(&mut [0; 1])).is_err());
    assert_eq!(tls_failure(&world), "TLS towards clients is not configured");
}

#[test]
fn a_client_that_leaves_in_the_middle_of_the_handshake() {
    let scene = Scene::new();
    let world = world(accepting(false), scene.configs(SslMode::Require));
    let mut client = begin(&world, scene.client().build());
    client.conn.write_tls(&mut client.sock).unwrap();
    client.sock.shutdown(Shutdown::Both).unwrap();
    drop(client);
    assert!(matches!(world.await_closed(), Closed::Eof | Closed::Broken(_)));
}
