//! Hosts with several addresses, and hosts that move: which server is meant, and which servers are given up.

use std::net::SocketAddr;

use pgweir_core::Engine;

use crate::rig::{End, Rig, be, fe};

/// The dialed server comes up at this address of its host, and lets us in.
fn greet_at(rig: &mut Rig, server: End, address: &str) {
    rig.turn(0, |_, driver| driver.reached = Some(address.parse().expect("an address")));
    rig.greet(server);
}

/// The host `pg` has only these addresses now.
fn moves_to(rig: &mut Rig, addresses: &[&str]) {
    let addresses: Vec<SocketAddr> = addresses.iter().map(|text| text.parse().expect("an address")).collect();
    rig.turn(0, |machine, driver| machine.host_moved(driver, "pg", &addresses));
}

/// A client with a running statement on a server at 10.0.0.1, and one with a running statement on a server at
/// 10.0.0.2.
fn two_busy(rig: &mut Rig) -> [(End, End); 2] {
    let clients = [rig.accept(), rig.accept()];
    rig.send(clients[0], &fe::startup(&[("user", "alice"), ("database", "app")]));
    let first = rig.dialed();
    greet_at(rig, first, "10.0.0.1:5432");
    rig.gets_raw(clients[0]);
    rig.send(clients[1], &fe::startup(&[("user", "alice"), ("database", "app")]));
    rig.gets_raw(clients[1]);
    rig.send(clients[0], &fe::query("begin"));
    rig.send(first, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.send(clients[1], &fe::query("begin"));
    let second = rig.dialed();
    greet_at(rig, second, "10.0.0.2:5432");
    rig.send(second, &[be::complete("BEGIN"), be::ready('T')].concat());
    for end in [clients[0], clients[1], first, second] {
        rig.gets_raw(end);
    }
    [(clients[0], first), (clients[1], second)]
}

#[test]
fn servers_at_an_address_that_was_left_end_with_their_transaction() {
    let mut rig = Rig::new("multiplex_depth = 0");
    let [(_, kept), (leaving, left)] = two_busy(&mut rig);
    moves_to(&mut rig, &["10.0.0.3:0", "10.0.0.1:0"]);
    assert!(!rig.is_closed(kept) && !rig.is_closed(left), "both are in a transaction");
    rig.send(leaving, &fe::query("commit"));
    rig.send(left, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(rig.gets(leaving), ["Complete COMMIT", "Ready I"]);
    assert!(rig.is_closed(left) && !rig.is_closed(kept));
    assert!(rig.logged("closing because: host has another address"));
    moves_to(&mut rig, &["10.0.0.1:0"]);
    assert!(!rig.is_closed(kept), "it is there still");
}

#[test]
fn free_servers_at_an_address_that_was_left_end_at_once() {
    let mut rig = Rig::new("");
    let client = rig.accept();
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    let server = rig.dialed();
    greet_at(&mut rig, server, "10.0.0.1:5432");
    moves_to(&mut rig, &["10.0.0.9:0"]);
    assert!(rig.is_closed(server));
    rig.gets_raw(client);
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.new_dials(), 1, "the client does not notice");
}

#[test]
fn a_cancel_request_goes_to_the_address_of_the_server_it_is_meant_for() {
    let mut rig = Rig::new("multiplex_depth = 0");
    let [(one, _), (other, _)] = two_busy(&mut rig);
    for (client, place) in [(one, "10.0.0.1:5432"), (other, "10.0.0.2:5432")] {
        rig.send(client, &fe::query("select pg_sleep(100)"));
        rig.cancel(client);
        let cancel = rig.dialed();
        assert_eq!(rig.endpoint(cancel), place);
    }
}

/// No server listens at the host that the pooler has just dialed.
fn nobody_listens(rig: &mut Rig, server: End) {
    rig.refuse_dial(server, "connection refused");
}

#[test]
fn another_host_of_the_list_is_tried_at_once() {
    let mut rig = Rig::with("server_login_retry = 15", "app = host=dead,pg", 1);
    let client = rig.knock("alice", "app");
    let dead = rig.dialed();
    assert_eq!(rig.endpoint(dead), "dead:5432");
    nobody_listens(&mut rig, dead);
    let server = rig.dialed();
    assert_eq!(rig.endpoint(server), "pg:5432");
    rig.greet(server);
    rig.gets_raw(client);
    rig.send(client, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets_raw(client);
    let other = rig.knock("alice", "app");
    rig.gets_raw(other);
    rig.send(other, &fe::query("select 1"));
    let second = rig.dialed();
    assert_eq!(rig.endpoint(second), "pg:5432", "it was the other one's turn, but that failed just now");
    nobody_listens(&mut rig, second);
    rig.gets_nothing(other);
    rig.pass_s(1);
    assert_eq!(rig.dials.len(), 3, "all have failed: that is waited for");
    rig.pass_s(15);
    assert_eq!(rig.dials.len(), 4);
}

#[test]
fn connections_that_fail_together_are_one_failure_of_their_host() {
    let line = "app = host=dead,pg load_balance_hosts=disable";
    let mut rig = Rig::with("server_login_retry = 15", line, 1);
    let clients = [rig.knock("alice", "app"), rig.knock("alice", "app")];
    let first = rig.dialed();
    rig.greet(first);
    for client in clients {
        rig.gets_raw(client);
    }
    rig.eof(first);
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(clients[1], &fe::query("select 2"));
    let dead = [rig.dialed(), rig.dialed()];
    for server in dead {
        assert_eq!(rig.endpoint(server), "dead:5432");
    }
    for server in dead {
        nobody_listens(&mut rig, server);
    }
    for _ in clients {
        let server = rig.dialed();
        assert_eq!(rig.endpoint(server), "pg:5432");
        rig.greet(server);
    }
    assert_eq!(rig.dials.len(), 5);
}
