//! `vip`: the clients that came by the virtual address when it leaves this pooler.

use std::net::SocketAddr;

use pgweir_core::driver::Peer;
use pgweir_core::mail::{Mail, Question, Shutdown};

use crate::rig::{End, Rig, be, fe};

const MOVED: &str = "FATAL 57P01 terminating connection because its address (vip) has left this pooler";

fn tcp(local: &str) -> Peer {
    let address = |text: &str| text.parse::<SocketAddr>().expect("an address");
    Peer::Tcp { remote: address("10.0.0.1:4711"), local: address(local) }
}

/// A client that has logged in, from this peer. The pool has a server already.
fn client_from(rig: &mut Rig, peer: Peer) -> End {
    let client = rig.accept_from(0, peer);
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    client
}

/// A pooler with a free server.
fn rig() -> (Rig, End) {
    let mut rig = Rig::new("multiplex_depth = 0\ndefer_begin = off");
    let first = rig.client("alice");
    let server = rig.dialed();
    rig.send(first, &fe::terminate());
    rig.gets(server);
    (rig, server)
}

fn leaves(rig: &mut Rig, address: &str) {
    rig.mail(0, Mail::AddressLeft(address.parse().expect("an address")));
}

#[test]
fn clients_of_the_address_are_told_and_the_others_stay() {
    for (address, by_address, by_other) in [
        ("10.0.0.9", "10.0.0.9:6432", "10.0.0.2:6432"),
        ("10.0.0.9", "[::ffff:10.0.0.9]:6432", "[::ffff:10.0.0.2]:6432"),
        ("fd00::9", "[fd00::9]:6432", "[fd00::2]:6432"),
    ] {
        let (mut rig, server) = rig();
        let moved = client_from(&mut rig, tcp(by_address));
        let stays = client_from(&mut rig, tcp(by_other));
        let local = client_from(&mut rig, Peer::Unix { pid: 1, uid: 2, same_user: false, port: 6432 });
        let logging_in = rig.accept_from(0, tcp(by_address));
        leaves(&mut rig, address);
        assert_eq!(rig.gets(moved), [MOVED], "{address}");
        assert_eq!(rig.gets(logging_in), [MOVED], "{address}");
        assert!(rig.is_closed(moved) && rig.is_closed(logging_in) && !rig.is_closed(stays));
        assert_eq!(rig.shared.addresses_left(), 1);
        for client in [stays, local] {
            rig.send(client, &fe::query("select 1"));
            assert_eq!(rig.gets(server), ["Query select 1"]);
            rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
            assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
        }
        // The address comes back, and with it new clients.
        let again = client_from(&mut rig, tcp(by_address));
        assert!(!rig.is_closed(again));
    }
}

#[test]
fn an_open_transaction_ends_with_its_server() {
    let (mut rig, server) = rig();
    let client = client_from(&mut rig, tcp("10.0.0.9:6432"));
    rig.send(client, &fe::query("begin"));
    rig.gets(server);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets(client);
    leaves(&mut rig, "10.0.0.9");
    assert_eq!(rig.gets(client), [MOVED]);
    assert!(rig.is_closed(server), "which rolls the transaction back");
}

#[test]
fn a_process_that_ends_waits_until_the_statements_of_these_clients_are_canceled() {
    let (mut rig, server) = rig();
    let client = client_from(&mut rig, tcp("10.0.0.9:6432"));
    rig.send(client, &fe::query("select pg_sleep(1000)"));
    assert_eq!(rig.gets(server), ["Query select pg_sleep(1000)"]);
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForClients));
    leaves(&mut rig, "10.0.0.9");
    assert_eq!(rig.gets(client), [MOVED]);
    let is_drained =
        |rig: &mut Rig| rig.asked().iter().any(|question| matches!(question, Question::Drained(_)));
    rig.pass_s(1);
    assert!(!is_drained(&mut rig));
    assert_eq!(rig.new_dials(), 1, "the statement is canceled");
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.pass_s(1);
    assert!(is_drained(&mut rig));
}
