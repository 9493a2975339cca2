//! Cancel requests between processes: forwarded to the peer that gave the key, not too many at once, not
//! forever.

use crate::rig::{End, Rig, fe};

const OTHERS: &str = "[peers]\n1 = host=/one\n2 = host=/two port=6543 pool_size=1\n3 = host=three";

fn rig(main: &str) -> Rig {
    Rig::with(&format!("peer_id = 1\n{main}"), &format!("app = host=pg\n{OTHERS}"), 1)
}

/// A key of this peer with so many hops left.
fn key(peer: u16, hops: u8) -> [u8; 8] {
    let [low, high] = peer.to_le_bytes();
    [1, low, high, 4, 5, 6, 7, 0xf0 | hops]
}

fn ask(rig: &mut Rig, key: [u8; 8]) -> End {
    let requester = rig.accept();
    rig.send(requester, &fe::cancel(&key));
    requester
}

/// What is sent on a connection that comes up.
fn sent(rig: &mut Rig, forward: End) -> Vec<u8> {
    rig.connect_silently(forward);
    rig.raw(forward)
}

#[test]
fn a_request_goes_to_the_peer_of_its_key_with_one_hop_less() {
    let mut rig = rig("");
    let requester = ask(&mut rig, key(2, 3));
    let forward = rig.dialed();
    assert_eq!(rig.endpoint(forward), "unix:/two/.s.PGSQL.6543");
    assert_eq!(sent(&mut rig, forward), fe::cancel(&key(2, 2)));
    assert!(!rig.is_closed(requester), "it learns when it is over");
    rig.eof(forward);
    assert!(rig.is_closed(requester));
    rig.gets_nothing(requester);
    ask(&mut rig, key(3, 1));
    let forward = rig.dialed();
    assert_eq!(rig.endpoint(forward), "three:6432");
}

#[test]
fn a_request_without_hops_or_of_an_unknown_peer_ends_here() {
    let mut rig = rig("");
    for key in [key(2, 0), key(9, 3), key(1, 3), key(0, 3)] {
        let requester = ask(&mut rig, key);
        assert!(rig.is_closed(requester), "{key:?}");
        assert_eq!(rig.new_dials(), 0, "{key:?}");
    }
    assert!(rig.logged("went round too often"));
}

#[test]
fn without_an_id_of_our_own_nothing_is_forwarded() {
    let mut rig = Rig::with("", &format!("app = host=pg\n{OTHERS}"), 1);
    let requester = ask(&mut rig, key(2, 3));
    assert!(rig.is_closed(requester));
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn our_own_clients_are_found_by_keys_that_travelled() {
    let mut rig = rig("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select pg_sleep(100)"));
    rig.gets(server);
    let mut key = rig.key_of(client);
    assert_eq!(key[1..3], [1, 0], "it names us");
    key[7] &= !0b11;
    let requester = rig.accept();
    rig.send(requester, &fe::cancel(&key));
    let cancel = rig.dialed();
    assert_eq!(rig.endpoint(cancel), "pg:5432");
    assert!(!rig.is_closed(requester));
}

#[test]
fn a_peer_gets_so_many_at_a_time_and_the_others_wait_their_time() {
    let mut rig = rig("cancel_wait_timeout = 5\nserver_connect_timeout = 60");
    let first = ask(&mut rig, key(2, 3));
    let second = ask(&mut rig, key(2, 3));
    let third = ask(&mut rig, key(2, 3));
    let other_peer = ask(&mut rig, key(3, 3));
    assert_eq!(rig.new_dials(), 2);
    let (forward, other) = (rig.dialed(), rig.dialed());
    sent(&mut rig, forward);
    let console = rig.console();
    let rows = rig.command(console, "SHOW PEER_POOLS");
    assert_eq!(rows[1..4], ["Row 1,0,0,0,0", "Row 2,1,2,1,0", "Row 3,0,1,0,1"]);
    rig.eof(forward);
    assert!(rig.is_closed(first) && !rig.is_closed(second));
    rig.dialed();
    rig.pass_s(6);
    assert!(rig.is_closed(third), "it waited too long");
    assert!(!rig.is_closed(second), "it is on its way");
    rig.refuse_dial(other, "refused");
    assert!(rig.is_closed(other_peer));
}

#[test]
fn a_peer_that_does_not_answer_is_given_up() {
    let mut rig = rig("server_connect_timeout = 5");
    let requester = ask(&mut rig, key(2, 3));
    let forward = rig.dialed();
    sent(&mut rig, forward);
    rig.pass_s(6);
    assert!(rig.is_closed(requester) && rig.is_closed(forward));
}

#[test]
fn a_reload_may_take_peers_away() {
    let mut rig = rig("");
    let first = ask(&mut rig, key(2, 3));
    let second = ask(&mut rig, key(2, 3));
    let forward = rig.dialed();
    rig.reload("peer_id = 1", "app = host=pg");
    rig.eof(forward);
    assert!(rig.is_closed(first) && rig.is_closed(second));
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn a_client_that_came_before_a_shutdown_is_let_in() {
    let mut rig = rig("");
    let early = rig.accept();
    let console = rig.console();
    rig.command(console, "SHUTDOWN WAIT_FOR_CLIENTS");
    assert!(rig.stopped_listening());
    rig.pass_us(1000);
    let late = rig.knock("alice", "app");
    assert_eq!(rig.refusal(late), "FATAL 57P03 pooler is shutting down");
    rig.send(early, &fe::startup(&[("user", "alice"), ("database", "app")]));
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(early).last().map(String::as_str), Some("Ready I"));
}
