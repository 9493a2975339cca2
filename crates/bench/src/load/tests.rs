//! The load generator against a server in this process that answers at once, or badly.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use super::*;
use pgweir_client::{Address, Login};

fn plan(port: u16) -> Plan {
    Plan {
        login: Login::trusted(Address::Loopback(port), "u", "d", "load"),
        tls: false,
        mix: Mix::single("SELECT {1..9}").expect("good"),
        protocol: Protocol::Simple,
        clients: 5,
        idle_clients: 0,
        pace: Pace::Closed { think: Duration::ZERO },
        reconnect: false,
        threads: 2,
        duration: Duration::from_millis(150),
    }
}

/// Runs a plan, made from a port, against a stand-in.
fn against_stand_in(make: impl FnOnce(u16) -> Plan) -> Outcome {
    let server = StandIn::bind(0).expect("a port");
    let (port, interrupt) = (server.port(), Interrupt::default());
    let end = interrupt.clone();
    let thread = thread::spawn(move || server.serve(&end));
    let outcome = run(&make(port), &Interrupt::default(), &mut |_, _| {}).expect("clients are let in");
    interrupt.raise();
    thread.join().expect("no panic").expect("served");
    outcome
}

#[test]
fn every_protocol_is_answered() {
    for protocol in [Protocol::Simple, Protocol::Extended, Protocol::Prepared] {
        let outcome = against_stand_in(|port| Plan { protocol, idle_clients: 20, ..plan(port) });
        assert!(outcome.done > 10, "{protocol:?}: {outcome:?}");
        assert_eq!((outcome.failed, outcome.refused), (0, 0), "{:?}", outcome.errors);
        assert_eq!(outcome.connecting.count(), 25);
        assert_eq!(outcome.latency.count(), outcome.done + outcome.unfinished);
    }
}

#[test]
fn transactions_of_a_mix_are_told_apart() {
    let mix = Mix::parse("[one 1]\nSELECT 1\n[two 1]\nBEGIN\nSELECT 2\nCOMMIT\n").expect("good");
    let outcome = against_stand_in(|port| Plan { mix, ..plan(port) });
    assert!(outcome.by_script.iter().all(|latency| latency.count() > 0));
}

#[test]
fn reconnecting_counts_connections() {
    let outcome = against_stand_in(|port| Plan { reconnect: true, ..plan(port) });
    assert!(outcome.done > 2 && outcome.connecting.count() >= outcome.done, "{outcome:?}");
    assert_eq!(outcome.failed, 0, "{:?}", outcome.errors);
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let pace = Pace::Open { rate: 400.0, burst: 4 };
    let duration = Duration::from_millis(500);
    let outcome = against_stand_in(|port| Plan { pace, duration, ..plan(port) });
    let arrived = outcome.done + outcome.unfinished;
    assert!((40..800).contains(&arrived), "{arrived} of about 200");
}

#[test]
fn what_waits_for_a_slow_server_is_counted_from_when_it_was_due() {
    // It lets every client in and then answers nothing.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        let mut streams = Vec::new();
        let mut greeting = Vec::new();
        pgweir_wire::backend::encode_auth_ok(&mut greeting);
        pgweir_wire::backend::encode_ready(&mut greeting, pgweir_wire::backend::TxStatus::Idle);
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(&greeting);
            streams.push(stream);
        }
    });
    let pace = Pace::Open { rate: 1000.0, burst: 1 };
    let plan = Plan { pace, clients: 1, threads: 1, duration: Duration::from_millis(300), ..plan(port) };
    let outcome = run(&plan, &Interrupt::default(), &mut |_, _| {}).expect("let in");
    assert_eq!(outcome.done, 0);
    assert!(outcome.unfinished > 50, "one was sent, the others waited: {}", outcome.unfinished);
    let longest = outcome.latency.quantile_ms(1.0).expect("they count");
    assert!(longest > 250.0, "{longest}");
}

#[test]
fn a_refusal_is_an_error_in_the_servers_words() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a client");
            let _ = stream.read(&mut [0; 1000]);
            let body = b"SFATAL\0C53300\0Msorry, too many clients already\0\0";
            let mut message = vec![b'E'];
            message.extend(u32::try_from(body.len() + 4).expect("short").to_be_bytes());
            message.extend(body);
            let _ = stream.write_all(&message);
        }
    });
    let error = run(&plan(port), &Interrupt::default(), &mut |_, _| {}).expect_err("refused");
    assert!(error.to_string().contains("53300: sorry, too many clients already"), "{error}");
}

#[test]
fn an_interrupt_ends_a_load_with_its_outcome() {
    let server = StandIn::bind(0).expect("a port");
    let (port, interrupt) = (server.port(), Interrupt::default());
    let end = interrupt.clone();
    let thread = thread::spawn(move || server.serve(&end));
    let long = Plan { duration: Duration::from_secs(3600), ..plan(port) };
    let raiser = interrupt.clone();
    let outcome = run(&long, &interrupt, &mut |_, _| raiser.raise()).expect("an outcome");
    assert!(outcome.done > 0);
    thread.join().expect("no panic").expect("served");
}
