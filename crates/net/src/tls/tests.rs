//! Two sessions against each other, without sockets: any split of the bytes gives the same result.

use pgweir_core::driver::{Closed, TlsInfo, TlsRole};
use pgweir_settings::SslMode;

use super::stream::{SCRATCH_BYTES, TLS_PIECE_BYTES, TlsStream};
use crate::connection::out::BufferPool;
use crate::tests::certs::{self_signed, towards_clients, towards_servers};
use crate::tests::toy::pattern;

/// One end of a session, with its incoming and outgoing bytes.
struct End {
    stream: TlsStream,
    arriving: Vec<u8>,
    plain: Vec<u8>,
    info: Option<TlsInfo>,
}

struct Rig {
    ends: [End; 2],
    pool: BufferPool,
    seed: u64,
}

impl Rig {
    fn new(seed: u64) -> Self {
        let identity = self_signed("db.example", &["db.example"]);
        let clients = towards_clients(SslMode::Require, &identity, None).unwrap();
        let servers = towards_servers(SslMode::VerifyFull, Some(&identity.cert), None).unwrap();
        let connect = TlsRole::Connect { host: "db.example".into() };
        let end = |stream: TlsStream| End { stream, arriving: Vec::new(), plain: Vec::new(), info: None };
        let client = TlsStream::new(&servers, &connect).unwrap();
        let server = TlsStream::new(&clients, &TlsRole::Accept { direct: false }).unwrap();
        Self { ends: [end(client), end(server)], pool: BufferPool::default(), seed }
    }

    fn random(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.seed >> 33).unwrap() % below.max(1)
    }

    /// Passes some bytes to this end, as a read from a socket would.
    fn feed(&mut self, at: usize) {
        let mut buffer = vec![0; 64 * 1024];
        let count = match self.random(3) {
            0 => 1,
            1 => self.random(40),
            _ => self.random(40_000),
        };
        let end = &mut self.ends[at];
        let kept = end.stream.unread(&mut buffer);
        let count = count.min(end.arriving.len()).min(buffer.len() - kept);
        buffer[kept..kept + count].copy_from_slice(&end.arriving[..count]);
        end.arriving.drain(..count);
        let info = end.stream.feed(&mut buffer[..kept + count], &mut end.plain, &mut self.pool);
        assert!(info.is_none() || end.info.is_none(), "told once");
        end.info = end.info.take().or(info);
        self.carry(at);
    }

    /// Moves the outgoing bytes of one end to the other.
    fn carry(&mut self, from: usize) {
        let [client, server] = &mut self.ends;
        let (from, to) = if from == 0 { (client, server) } else { (server, client) };
        to.arriving.extend_from_slice(from.stream.wire.as_slice());
        from.stream.wire.clear(&mut self.pool);
    }

    fn write(&mut self, from: usize, plain: &[u8]) {
        let mut sealed = vec![0; SCRATCH_BYTES];
        let count = self.ends[from].stream.encrypt(plain, &mut sealed).unwrap();
        self.ends[1 - from].arriving.extend_from_slice(&sealed[..count]);
    }

    fn run(&mut self) {
        while self.ends.iter().any(|end| !end.arriving.is_empty()) {
            self.feed(0);
            self.feed(1);
        }
    }

    fn established(seed: u64) -> Self {
        let mut rig = Self::new(seed);
        rig.feed(0);
        rig.run();
        for end in &rig.ends {
            assert!(end.stream.is_established());
            assert_eq!(end.info.as_ref().unwrap().description, "TLSv1.3/TLS_AES_256_GCM_SHA384");
        }
        rig
    }
}

#[test]
fn any_split_gives_the_same_bytes() {
    for seed in 0..30 {
        let mut rig = Rig::established(seed);
        let mut expected = [Vec::new(), Vec::new()];
        for _ in 0..20 {
            let from = rig.random(2);
            let length = 1 + rig.random([3, 100, TLS_PIECE_BYTES][rig.seed as usize % 3]);
            let bytes = pattern(length);
            rig.write(from, &bytes);
            expected[1 - from].extend_from_slice(&bytes);
            // Writing goes on while incomplete records lie on both sides.
            rig.feed(0);
            rig.feed(1);
        }
        rig.run();
        let [client, server] = &rig.ends;
        assert!([&client.plain, &server.plain] == [&expected[0], &expected[1]], "seed {seed}");
    }
}

#[test]
fn a_piece_of_the_largest_size_fits_the_scratch_buffer() {
    let mut rig = Rig::established(1);
    rig.write(0, &pattern(TLS_PIECE_BYTES));
    rig.run();
    assert!(rig.ends[1].plain == pattern(TLS_PIECE_BYTES));
}

#[test]
fn between_records_a_session_owns_no_buffer() {
    let mut rig = Rig::established(2);
    rig.write(0, b"hello");
    rig.run();
    let mut buffer = [0; 1];
    for end in &rig.ends {
        assert_eq!(end.stream.unread(&mut buffer), 0);
        assert!(!end.stream.has_work());
        assert_eq!(end.stream.buffers_bytes(), 0);
    }
}

#[test]
fn goodbye_is_said_once_and_is_an_end_in_order() {
    let mut rig = Rig::established(3);
    let mut sealed = vec![0; SCRATCH_BYTES];
    rig.write(0, b"last");
    let count = rig.ends[0].stream.close_notify(&mut sealed);
    assert!(count > 0);
    assert_eq!(rig.ends[0].stream.close_notify(&mut sealed), 0);
    rig.ends[1].arriving.extend_from_slice(&sealed[..count]);
    rig.run();
    assert_eq!(rig.ends[1].plain, b"last");
    assert_eq!(rig.ends[1].stream.ended(), Some(Closed::Eof));
    // The other direction still works: the peer only said that it sends no more.
    rig.write(1, b"answer");
    rig.run();
    assert_eq!(rig.ends[0].plain, b"answer");
}

#[test]
fn damage_anywhere_fails_and_never_panics() {
    for at in 0..200 {
        let mut rig = Rig::established(at);
        rig.write(0, &pattern(150));
        let place = usize::try_from(at).unwrap() % rig.ends[1].arriving.len();
        rig.ends[1].arriving[place] ^= 0x41;
        for _ in 0..100 {
            rig.feed(1);
        }
        let end = &rig.ends[1];
        let outcome = (matches!(end.stream.ended(), Some(Closed::Tls(_))), end.plain.len());
        match place {
            // The record's version means nothing since TLS 1.3.
            1 | 2 => assert!(outcome == (true, 0) || outcome == (false, 150), "byte {place}: {outcome:?}"),
            // A length that grew only waits for more.
            3 | 4 => assert_eq!(outcome.1, 0, "byte {place}"),
            _ => assert_eq!(outcome, (true, 0), "byte {place}"),
        }
    }
}

#[test]
fn handshakes_of_noise_fail_and_never_panic() {
    for seed in 0..300 {
        let mut rig = Rig::new(seed);
        rig.feed(0);
        // Some of the true bytes, then noise that looks like records.
        let keep = rig.random(rig.ends[1].arriving.len());
        rig.ends[1].arriving.truncate(keep);
        for _ in 0..10 {
            let length = rig.random(300);
            let kind = [0x14, 0x15, 0x16, 0x17, 0x16][rig.random(5)];
            let mut record = vec![kind, 3, 3, u8::try_from(length >> 8).unwrap(), (length & 0xff) as u8];
            record.extend((0..length).map(|_| (rig.random(256) & 0xff) as u8));
            if kind == 0x16 && length > 4 {
                // A plausible start of a message.
                record[5..8].copy_from_slice(&[1, 0, 0]);
            }
            rig.ends[1].arriving.extend(record);
        }
        for _ in 0..200 {
            if rig.ends[1].stream.ended().is_none() {
                rig.feed(1);
            }
        }
        assert!(!rig.ends[1].stream.is_established());
        assert!(rig.ends[1].plain.is_empty());
    }
}
