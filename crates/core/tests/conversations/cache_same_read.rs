//! Clients that send what a server already runs for another client wait for its answer.

use crate::cache::{begun, rows, rows_inside};
use crate::rig::{End, Rig, be, fe};

const ON: &str = "multiplex_depth = 0\nquery_cache = on\n[cache]\nall = ttl_ms=10000\n[pgweir]";

/// A pool with two free servers, and this number of clients. The pool can open no third server.
fn two_servers(main: &str, count: usize) -> (Rig, [End; 2], Vec<End>) {
    let mut rig = Rig::new(&format!("default_pool_size = 2\n{main}"));
    let clients: Vec<End> = (0..count).map(|_| rig.client("alice")).collect();
    let first = rig.dialed();
    rig.send(clients[0], &fe::query("select 'a'"));
    rig.send(clients[1], &fe::query("select 'b'"));
    let second = rig.next_server();
    for (client, server) in [(clients[0], first), (clients[1], second)] {
        rig.gets(server);
        rig.send(server, &rows("x"));
        rig.gets(client);
    }
    rig.pass_us(10);
    (rig, [first, second], clients)
}

/// The client sends its read, and the server that runs it is returned.
fn leads(rig: &mut Rig, servers: [End; 2], client: End, text: &str) -> (End, End) {
    rig.send(client, &fe::query(text));
    rig.pass_us(10);
    let runs = format!("Query {text}");
    let [first, second] = servers;
    if rig.gets(first) == [runs.clone()] {
        rig.gets_nothing(second);
        return (first, second);
    }
    assert_eq!(rig.gets(second), [runs]);
    (second, first)
}

fn waits(rig: &mut Rig, client: End, text: &str, idle: End) {
    rig.send(client, &fe::query(text));
    rig.pass_us(10);
    assert!(rig.gets(client).is_empty());
    rig.gets_nothing(idle);
}

#[test]
fn one_read_answers_all_and_those_behind_them_are_served() {
    let (mut rig, servers, clients) = two_servers(ON, 4);
    let (busy, free) = leads(&mut rig, servers, clients[0], "select 1");
    waits(&mut rig, clients[1], "select 1", free);
    waits(&mut rig, clients[2], "select 1", free);
    rig.send(clients[3], &fe::query("select 2"));
    assert_eq!(rig.gets(free), ["Query select 2"]);
    rig.send(free, &rows("2"));
    assert_eq!(rig.gets(clients[3])[1], "Row 2");
    let answer = rows("1");
    rig.send(busy, &answer[..answer.len() - 1]);
    assert!(rig.gets(clients[1]).is_empty());
    rig.send(busy, &answer[answer.len() - 1..]);
    for client in &clients[..3] {
        let told = rig.gets(*client);
        assert_eq!((told.len(), &*told[1], &*told[3]), (4, "Row 1", "Ready I"));
    }
    rig.gets_nothing(busy);
    rig.gets_nothing(free);
}

#[test]
fn what_cannot_be_given_sends_all_that_wait_to_servers() {
    let error = [be::error("22012", "division by zero"), be::ready('I')].concat();
    let noticed = [be::notice("x"), rows("a")].concat();
    let long = rows(&"x".repeat(100_000));
    for answer in [error, noticed, long] {
        let (mut rig, servers, clients) = two_servers(ON, 4);
        let (busy, free) = leads(&mut rig, servers, clients[0], "select 1");
        for client in &clients[1..] {
            waits(&mut rig, *client, "select 1", free);
        }
        rig.send(busy, &answer);
        rig.gets(clients[0]);
        // They do not wait for one another: the next answer may be no better.
        assert_eq!(rig.gets(busy), ["Query select 1"]);
        assert_eq!(rig.gets(free), ["Query select 1"]);
        rig.send(free, &rows("b"));
        rig.send(busy, &rows("b"));
        for client in &clients[1..] {
            assert_eq!(rig.gets(*client)[1], "Row b");
        }
    }
}

#[test]
fn a_client_that_goes_leaves_nobody_waiting() {
    let (mut rig, servers, clients) = two_servers(ON, 3);
    let (_, free) = leads(&mut rig, servers, clients[0], "select 1");
    waits(&mut rig, clients[1], "select 1", free);
    waits(&mut rig, clients[2], "select 1", free);
    rig.eof(clients[0]);
    assert_eq!(rig.gets(free), ["Query select 1"]);
    rig.gets_nothing(clients[1]);
    rig.eof(clients[1]);
    rig.eof(free);
    // The pool has room for further servers.
    let next = rig.next_server();
    assert_eq!(rig.gets(next), ["Query select 1"]);
    rig.send(next, &rows("a"));
    assert_eq!(rig.gets(clients[2])[1], "Row a");
}

#[test]
fn a_lost_server_leaves_nobody_waiting() {
    let (mut rig, servers, clients) = two_servers(ON, 2);
    let (busy, free) = leads(&mut rig, servers, clients[0], "select 1");
    waits(&mut rig, clients[1], "select 1", free);
    rig.eof(busy);
    assert_eq!(rig.gets(free), ["Query select 1"]);
    rig.send(free, &rows("a"));
    assert_eq!(rig.gets(clients[1])[1], "Row a");
}

#[test]
fn a_client_that_does_not_read_keeps_nobody_waiting() {
    let (mut rig, servers, clients) =
        two_servers(&format!("query_cache_max_answer = 10000000\nquery_cache_bytes = 100000000\n{ON}"), 2);
    let (busy, free) = leads(&mut rig, servers, clients[0], "select 1");
    waits(&mut rig, clients[1], "select 1", free);
    rig.stop_taking(clients[0]);
    while !rig.is_paused(busy) {
        rig.send(busy, &[be::columns(), be::row(&"x".repeat(50_000))].concat());
        rig.send(busy, &be::row(&"x".repeat(50_000)));
    }
    assert_eq!(rig.gets(free), ["Query select 1"]);
}

#[test]
fn a_client_sees_its_own_change_and_no_older_state_of_definitions() {
    let (mut rig, servers, clients) = two_servers(ON, 3);
    let (busy, free) = leads(&mut rig, servers, clients[0], "select 1");
    rig.send(clients[1], &fe::query("update t set a = 1"));
    assert_eq!(rig.gets(free), ["Query update t set a = 1"]);
    rig.send(free, &[be::complete("UPDATE 1"), be::ready('I')].concat());
    rig.gets(clients[1]);
    rig.pass_us(10);
    rig.send(clients[1], &fe::query("select 1"));
    assert_eq!(rig.gets(free), ["Query select 1"], "the other one was sent before the change");
    rig.send(free, &rows("b"));
    assert_eq!(rig.gets(clients[1])[1], "Row b");
    rig.send(clients[1], &fe::query("revoke select on t from bob"));
    rig.gets(free);
    rig.send(free, &[be::complete("REVOKE"), be::ready('I')].concat());
    rig.gets(clients[1]);
    rig.gets_loosely(free);
    rig.send(clients[2], &fe::query("select 1"));
    rig.pass_s(1);
    assert!(rig.gets_loosely(free).contains(&"Query select 1".to_owned()), "rights may have changed");
    rig.send(busy, &rows("a"));
    assert_eq!(rig.gets(clients[0])[1], "Row a");
}

#[test]
fn clients_of_other_settings_do_not_wait() {
    let (mut rig, servers, clients) = two_servers(ON, 2);
    let (_, free) = leads(&mut rig, servers, clients[0], "select 1");
    let other = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "x")]);
    rig.send(other, &fe::query("select 1"));
    assert!(rig.gets(free).concat().contains("select 1"));
}

#[test]
fn a_pause_holds_them_and_a_switch_frees_them() {
    let (mut rig, servers, clients) = two_servers(ON, 2);
    let (busy, free) = leads(&mut rig, servers, clients[0], "select 1");
    waits(&mut rig, clients[1], "select 1", free);
    let console = rig.console();
    rig.send(console, &fe::query("PAUSE"));
    rig.send(busy, &rows("a"));
    assert_eq!(rig.gets(clients[0])[1], "Row a");
    rig.gets_nothing(clients[1]);
    rig.gets(console);
    rig.command(console, "RESUME");
    assert_eq!(rig.gets(clients[1])[1], "Row a");

    let (mut rig, servers, clients) = two_servers(ON, 2);
    let (_, free) = leads(&mut rig, servers, clients[0], "select 1");
    waits(&mut rig, clients[1], "select 1", free);
    rig.reload("pool_mode = transaction\ndefault_pool_size = 2\nmultiplex_depth = 0", "app = host=pg");
    assert_eq!(rig.gets(free), ["Query select 1"]);
}

#[test]
fn of_a_herd_that_waits_one_runs_whatever_the_number_of_servers() {
    let main = "multiplex_depth = 0\nquery_cache = coalesce";
    let (mut rig, servers, clients) = two_servers(main, 6);
    let [first, second] = servers;
    for (client, text) in [(0, "select 8"), (1, "select 9")] {
        rig.send(clients[client], &fe::query(text));
    }
    for client in &clients[2..] {
        rig.pass_us(10);
        rig.send(*client, &fe::query("select 1"));
    }
    rig.pass_us(10);
    rig.gets(first);
    rig.gets(second);
    rig.send(first, &rows("8"));
    assert_eq!(rig.gets(first), ["Query select 1"]);
    rig.send(second, &rows("9"));
    rig.gets_nothing(second);
    // It came when the statement was under way, and takes the server that is free.
    rig.send(clients[0], &fe::query("select 1"));
    assert_eq!(rig.gets(second), ["Query select 1"]);
    rig.send(first, &rows("a"));
    for client in &clients[2..] {
        assert_eq!(rig.gets(*client)[1], "Row a");
    }
}

#[test]
fn limits_of_waiting_for_a_server_begin_when_it_needs_one() {
    let limits = "query_wait_timeout = 5\nquery_wait_notify = 2\nmax_waiting_clients = 1";
    let (mut rig, servers, clients) = two_servers(&format!("{limits}\n{ON}"), 5);
    let (busy, free) = leads(&mut rig, servers, clients[0], "select 1");
    waits(&mut rig, clients[1], "select 1", free);
    waits(&mut rig, clients[2], "select 1", free);
    rig.pass_s(7);
    assert!(rig.gets(clients[1]).is_empty(), "a server runs it for another client");
    rig.send(clients[3], &fe::query("select 2"));
    assert_eq!(rig.gets(free), ["Query select 2"]);
    rig.send(clients[4], &fe::query("select 3"));
    assert!(rig.gets(clients[4]).is_empty(), "it is the only one that waits for a server");
    rig.send(free, &rows("2"));
    assert_eq!(rig.gets(free), ["Query select 3"]);
    rig.send(busy, &[be::error("22012", "division by zero"), be::ready('I')].concat());
    assert_eq!(rig.gets(busy), ["Query select 1"]);
    rig.pass_s(3);
    assert!(rig.gets(clients[2])[0].contains("being queued"));
    rig.pass_s(3);
    assert_eq!(rig.gets(clients[2]), ["FATAL 57P03 query_wait_timeout"]);
    assert!(rig.gets(clients[1]).is_empty());
}

#[test]
fn the_limit_of_a_statement_counts_while_another_client_runs_it() {
    let (mut rig, servers, clients) = two_servers(&format!("query_timeout = 5\n{ON}"), 2);
    let (_, free) = leads(&mut rig, servers, clients[0], "select 1");
    rig.pass_s(1);
    waits(&mut rig, clients[1], "select 1", free);
    rig.stop_taking(clients[0]);
    rig.pass_s(7);
    assert!(rig.is_closed(clients[0]));
    rig.pass_s(7);
    assert!(rig.is_closed(clients[1]), "{:?}", rig.gets(clients[1]));
}

#[test]
fn what_is_read_in_a_transaction_is_given_before_its_end() {
    let long = "x".repeat(100_000);
    for (value, is_given) in [("a", true), (&*long, false)] {
        let (mut rig, servers, clients) = two_servers(&format!("defer_begin = server\n{ON}"), 2);
        rig.send(clients[0], &fe::query("begin"));
        rig.gets(clients[0]);
        rig.send(clients[0], &fe::query("select 1"));
        rig.pass_us(10);
        let is_first = !rig.gets(servers[0]).is_empty();
        let (busy, free) = if is_first { (servers[0], servers[1]) } else { (servers[1], servers[0]) };
        rig.gets(busy);
        waits(&mut rig, clients[1], "select 1", free);
        rig.send(busy, &[begun(), rows_inside(value)].concat());
        if is_given {
            assert_eq!(rig.gets(clients[1])[1], "Row a");
            rig.gets_nothing(free);
        } else {
            assert_eq!(rig.gets(free), ["Query select 1"]);
        }
    }
}
