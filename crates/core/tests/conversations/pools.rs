//! When a pool opens servers, up to which number, and when it closes them.

use pgweir_core::driver::Closed;

use crate::rig::{End, Rig, be, fe};

/// So many logged-in clients of the same pool; its first server is free.
fn clients(rig: &mut Rig, user: &str, count: usize) -> Vec<End> {
    (0..count).map(|_| rig.client(user)).collect()
}

fn finish(rig: &mut Rig, server: End) {
    rig.send(server, &[be::complete("SELECT 0"), be::ready('I')].concat());
}

#[test]
fn a_cold_pool_opens_one_server_for_each_waiting_client_up_to_its_size() {
    let mut rig = Rig::new("default_pool_size = 3");
    let clients = clients(&mut rig, "alice", 5);
    rig.dialed();
    for &client in &clients {
        rig.send(client, &fe::query("select 1"));
    }
    assert_eq!(rig.new_dials(), 2, "one is there, two more make three");
}

#[test]
fn waiting_clients_are_served_in_their_order() {
    let mut rig = Rig::new("default_pool_size = 1\nmultiplex_depth = 0");
    let clients = clients(&mut rig, "alice", 3);
    let server = rig.dialed();
    for (number, &client) in clients.iter().enumerate() {
        rig.send(client, &fe::query(&format!("select {number}")));
    }
    for (number, &client) in clients.iter().enumerate() {
        assert_eq!(rig.gets(server), [format!("Query select {number}")]);
        finish(&mut rig, server);
        assert_eq!(rig.gets(client), ["Complete SELECT 0", "Ready I"]);
    }
}

#[test]
fn a_client_that_leaves_the_queue_is_not_served() {
    let mut rig = Rig::new("default_pool_size = 1");
    let clients = clients(&mut rig, "alice", 3);
    let server = rig.dialed();
    for (number, &client) in clients.iter().enumerate() {
        rig.send(client, &fe::query(&format!("select {number}")));
    }
    rig.eof(clients[1]);
    rig.gets(server);
    finish(&mut rig, server);
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn the_reserve_is_opened_when_a_client_waited_for_long() {
    let mut rig = Rig::new("default_pool_size = 1\nreserve_pool_size = 1\nreserve_pool_timeout = 5");
    let clients = clients(&mut rig, "alice", 3);
    let first = rig.dialed();
    for &client in &clients {
        rig.send(client, &fe::query("select 1"));
    }
    rig.pass_s(3);
    assert_eq!(rig.new_dials(), 0);
    rig.pass_s(3);
    assert_eq!(rig.new_dials(), 1);
    assert!(rig.logged("taking connection from reserve_pool"));
    let second = rig.dialed();
    rig.greet(second);
    assert_eq!(rig.gets(second).last().map(String::as_str), Some("Query select 1"));
    finish(&mut rig, second);
    finish(&mut rig, first);
    assert_eq!(rig.new_dials(), 0, "not more than the reserve");
}

#[test]
fn max_db_connections_evicts_the_idle_server_of_another_user() {
    let mut rig = Rig::new("max_db_connections = 1");
    let alice = rig.client("alice");
    let hers = rig.dialed();
    let bob = rig.knock("bob", "app");
    assert!(rig.is_closed(hers), "the idle server makes room");
    let his = rig.dialed();
    rig.greet(his);
    rig.send(bob, &fe::query("select 1"));
    rig.gets(bob);
    rig.send(alice, &fe::query("select 2"));
    assert_eq!(rig.new_dials(), 0, "a busy server makes none");
    finish(&mut rig, his);
    assert!(rig.is_closed(his));
    assert_eq!(rig.new_dials(), 1, "it is the other pool's turn");
}

#[test]
fn max_user_connections_counts_over_databases() {
    let mut rig = Rig::with("max_user_connections = 1", "app = host=pg\nother = host=pg", 1);
    let one = rig.client("alice");
    let first = rig.dialed();
    rig.send(one, &fe::query("select 1"));
    rig.knock("alice", "other");
    assert_eq!(rig.new_dials(), 0);
    finish(&mut rig, first);
    assert!(rig.is_closed(first));
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn lifetime_zero_uses_a_server_once() {
    let mut rig = Rig::new("server_lifetime = 0");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.gets(client);
    rig.send(client, &fe::query("select 1"));
    let server = if rig.new_dials() > 0 {
        let next = rig.dialed();
        rig.greet(next);
        next
    } else {
        server
    };
    assert_eq!(rig.gets(server), ["Query select 1"], "a new server is used once before it is too old");
    finish(&mut rig, server);
    assert!(rig.is_closed(server));
    assert_eq!(rig.gets(client), ["Complete SELECT 0", "Ready I"]);
}

#[test]
fn an_old_server_is_closed_at_its_release() {
    let mut rig = Rig::new("server_lifetime = 60");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.pass_s(100);
    assert!(!rig.is_closed(server), "nobody's transaction is cut");
    rig.send(client, &fe::query("commit"));
    finish(&mut rig, server);
    assert!(rig.is_closed(server));
    assert!(rig.logged("server lifetime over"));
}

#[test]
fn idle_servers_go_after_a_while_down_to_the_minimum() {
    let mut rig = Rig::new("server_idle_timeout = 20\nmin_pool_size = 1\nserver_lifetime = 10000");
    let clients = clients(&mut rig, "alice", 2);
    let first = rig.dialed();
    for &client in &clients {
        rig.send(client, &fe::query("select 1"));
    }
    let second = rig.dialed();
    rig.greet(second);
    finish(&mut rig, first);
    finish(&mut rig, second);
    rig.pass_s(30);
    assert_eq!([first, second].iter().filter(|&&server| rig.is_closed(server)).count(), 1);
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn min_pool_size_is_filled_while_a_client_uses_the_pool() {
    let mut rig = Rig::new("min_pool_size = 3");
    rig.client("alice");
    rig.dialed();
    rig.pass_s(1);
    assert_eq!(rig.new_dials(), 2);
}

#[test]
fn a_server_that_idled_for_long_is_checked_before_its_use() {
    let mut rig = Rig::new("server_check_delay = 10");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.pass_s(20);
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query "], "the empty query");
    rig.send(server, &[be::empty_query(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.gets_nothing(client);
}

#[test]
fn a_server_that_fails_its_check_is_replaced_without_a_word() {
    let mut rig = Rig::new("server_check_delay = 10");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.pass_s(20);
    rig.send(client, &fe::query("select 1"));
    rig.end(server, Closed::Broken("reset".to_owned()));
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 1"]);
    rig.gets_nothing(client);
}

#[test]
fn one_waiting_client_has_one_server_checked() {
    let mut rig = Rig::new("server_check_delay = 10");
    let clients = clients(&mut rig, "alice", 3);
    for &client in &clients {
        rig.send(client, &fe::query("select 1"));
    }
    let servers = [rig.dialed(), rig.dialed(), rig.dialed()];
    rig.greet(servers[1]);
    rig.greet(servers[2]);
    for server in servers {
        finish(&mut rig, server);
        rig.gets(server);
    }
    rig.pass_s(20);
    rig.send(clients[0], &fe::query("select 2"));
    let checked = servers.iter().filter(|&&server| !rig.gets(server).is_empty()).count();
    assert_eq!(checked, 1);
}

#[test]
fn the_counters_return_to_zero() {
    let mut rig = Rig::new("max_db_connections = 5\nmax_user_connections = 5");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.eof(client);
    rig.lets_go(server);
    let counts = (rig.shared.database("app"), rig.shared.user("alice"));
    assert_eq!((counts.0.servers.taken(), counts.0.clients.taken()), (0, 0));
    assert_eq!((counts.1.servers.taken(), counts.1.clients.taken()), (0, 0));
    assert_eq!(rig.shared.clients.taken(), 0);
}

#[test]
fn a_pool_that_keeps_servers_without_clients_is_not_forgotten() {
    let forced = "app = host=pg user=alice min_pool_size=1";
    let mut rig = Rig::with("pool_idle_timeout = 1\nserver_login_retry = 15", forced, 1);
    rig.pass_s(1);
    let server = rig.dialed();
    rig.refuse_dial(server, "No route to host");
    rig.pass_s(7);
    assert_eq!(rig.new_dials(), 0, "server_login_retry counts");
    assert!(!rig.logged("cleaning up idle pool"));
    rig.pass_s(9);
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn a_pool_whose_minimum_was_taken_away_is_forgotten() {
    let main = "pool_idle_timeout = 1\nserver_idle_timeout = 1";
    let mut rig = Rig::with(main, "app = host=pg user=alice min_pool_size=1", 1);
    rig.pass_s(1);
    let server = rig.dialed();
    rig.greet(server);
    rig.reload(main, "app = host=pg user=alice");
    rig.pass_s(4);
    assert!(rig.is_closed(server));
    assert!(rig.logged("cleaning up idle pool"));
    assert_eq!(rig.new_dials(), 0);
}
