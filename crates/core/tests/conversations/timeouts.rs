//! Everything that happens by time alone.

use crate::rig::{End, Rig, be, fe};

fn in_transaction(rig: &mut Rig) -> (End, End) {
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets(client);
    (client, server)
}

#[test]
fn a_login_has_its_time() {
    let mut rig = Rig::new("client_login_timeout = 5");
    let silent = rig.accept();
    let waiting = rig.knock("alice", "app");
    rig.pass_s(7);
    assert_eq!(rig.gets(silent), ["FATAL 08P01 client_login_timeout"]);
    assert_eq!(rig.refusal(waiting), "FATAL 08P01 client_login_timeout (server down)");
}

#[test]
fn a_client_that_waited_for_a_pooler_that_stood_still_is_not_late() {
    let mut rig = Rig::new("client_login_timeout = 5\nserver_connect_timeout = 5\nquery_wait_timeout = 5");
    let greeting = rig.accept();
    rig.send(greeting, &fe::ssl_request());
    assert_eq!(rig.raw(greeting), b"N");
    let awaiting = rig.knock("alice", "app");
    let server = rig.dialed();
    // The process was stopped, or its machine asleep. The server's answer is seen in the first turn, the client's packet, which
    // answers what was written before it, only in the next.
    rig.stand_still_s(90);
    rig.greet(server);
    assert_eq!(rig.gets(awaiting).last().map(String::as_str), Some("Ready I"));
    rig.send(greeting, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert_eq!(rig.gets(greeting).last().map(String::as_str), Some("Ready I"));
    rig.pass_s(3);
    assert!(!rig.is_closed(greeting) && !rig.is_closed(awaiting) && !rig.is_closed(server));
}

#[test]
fn after_a_standstill_silence_is_silence() {
    let mut rig = Rig::new("client_login_timeout = 5");
    let silent = rig.accept();
    rig.stand_still_s(90);
    assert!(!rig.is_closed(silent), "it has a moment");
    rig.pass_s(2);
    assert_eq!(rig.gets(silent), ["FATAL 08P01 client_login_timeout"]);
}

#[test]
fn a_worker_that_is_always_late_looks_after_timeouts() {
    let mut rig = Rig::new("client_login_timeout = 5");
    let silent = rig.accept();
    for _ in 0..4 {
        rig.stand_still_s(3);
    }
    assert_eq!(rig.gets(silent), ["FATAL 08P01 client_login_timeout"]);
}

#[test]
fn an_idle_client_goes() {
    let mut rig = Rig::new("client_idle_timeout = 5");
    let client = rig.client("alice");
    rig.pass_s(7);
    assert_eq!(rig.gets(client), ["FATAL 57P05 client_idle_timeout"]);
}

#[test]
fn a_long_statement_is_no_idleness() {
    let mut rig = Rig::new("client_idle_timeout = 5");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select pg_sleep(20)"));
    rig.pass_s(20);
    rig.send(server, &[be::one_row(""), be::ready('I')].concat());
    rig.pass_s(1);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"), "it was not idle until now");
    assert!(!rig.is_closed(client));
    rig.pass_s(7);
    assert!(rig.is_closed(client));
}

#[test]
fn a_waiting_client_is_told_and_then_refused() {
    let mut rig = Rig::new("default_pool_size = 1\nquery_wait_notify = 3\nquery_wait_timeout = 10");
    let (busy, client) = (rig.client("alice"), rig.client("alice"));
    rig.send(busy, &fe::query("select 1"));
    rig.send(client, &fe::query("select 2"));
    rig.pass_s(5);
    assert_eq!(
        rig.gets(client),
        ["NOTICE 00000 No server connection available in postgres backend, client being queued"]
    );
    rig.pass_s(7);
    assert_eq!(rig.gets(client), ["FATAL 57P03 query_wait_timeout"]);
    assert!(!rig.is_closed(busy));
}

#[test]
fn a_statement_has_its_time() {
    let mut rig = Rig::new("query_timeout = 5");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select pg_sleep(100)"));
    rig.pass_s(7);
    assert_eq!(rig.gets(client), ["FATAL 08P01 query timeout"]);
    // Its statement still runs, and is canceled.
    let cancel = rig.dialed();
    assert!(!rig.connect(cancel).is_empty());
    rig.eof(cancel);
    rig.lets_go(server);
}

#[test]
fn a_transaction_has_its_time_idle_or_not() {
    let mut rig = Rig::new("idle_transaction_timeout = 5");
    let (client, server) = in_transaction(&mut rig);
    rig.pass_s(7);
    assert_eq!(rig.gets(client), ["FATAL 25P03 idle transaction timeout"]);
    assert!(rig.is_closed(server));
    let mut rig = Rig::new("transaction_timeout = 5");
    let (client, server) = in_transaction(&mut rig);
    rig.send(client, &fe::query("select pg_sleep(100)"));
    rig.pass_s(7);
    assert_eq!(rig.gets(client), ["FATAL 25P04 transaction timeout"]);
    rig.lets_go(server);
}

#[test]
fn a_busy_session_has_no_transaction_that_could_time_out() {
    let mut rig = Rig::with(
        "transaction_timeout = 5\nidle_transaction_timeout = 5\nquery_timeout = 5",
        "app = host=pg pool_mode=session",
        1,
    );
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    rig.gets(client);
    rig.pass_s(20);
    rig.gets_nothing(client);
    assert!(!rig.is_closed(client));
}

#[test]
fn dialing_and_login_have_their_time() {
    let mut rig = Rig::new("server_connect_timeout = 5\nserver_login_retry = 1");
    for answers in [false, true] {
        let client = rig.knock("alice", "app");
        let server = rig.dialed();
        if answers {
            rig.connect(server);
        }
        rig.pass_s(4);
        rig.gets_nothing(client);
        rig.pass_s(2);
        assert!(rig.is_closed(server) && rig.logged("connect timeout"));
        let told = rig.refusal(client);
        assert!(told.starts_with("FATAL 08001 server login has been failing"), "{told}");
        rig.pass_s(2);
    }
    let client = rig.knock("alice", "app");
    let third = rig.dialed();
    rig.greet(third);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn connect_query_has_the_connect_timeout() {
    let mut rig = Rig::with("server_connect_timeout = 5", "app = host=pg connect_query='select 1'", 1);
    rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.pass_s(7);
    assert!(rig.is_closed(server), "a connect_query that hangs would block the pool");

    // So has the question what it left, of the same time.
    let mut rig = Rig::with("server_connect_timeout = 5", "app = host=pg connect_query='select 1'", 1);
    rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.pass_s(4);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    rig.pass_s(3);
    assert!(rig.is_closed(server));
}

#[test]
fn a_check_has_its_time() {
    let mut rig = Rig::new("server_connect_timeout = 5\nserver_check_delay = 10");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.pass_s(20);
    rig.send(client, &fe::query("select 1"));
    rig.pass_s(7);
    assert!(rig.is_closed(server));
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 1"]);
}

#[test]
fn a_reset_that_hangs_costs_the_server_not_the_pool() {
    let mut rig =
        Rig::with("server_connect_timeout = 5\ndefault_pool_size = 1", "app = host=pg pool_mode=session", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    rig.eof(client);
    assert_eq!(rig.gets(server), ["Query select 1", "Query DISCARD ALL"]);
    rig.pass_s(30);
    assert!(rig.is_closed(server));
}

#[test]
fn all_clients_of_a_cold_pool_are_told_why_it_has_no_server() {
    for mode in ["session", "transaction", "statement"] {
        let mut rig = Rig::new(&format!("server_login_retry = 5\npool_mode = {mode}"));
        let waits = [rig.knock("alice", "app"), rig.knock("alice", "app")];
        let server = rig.dialed();
        rig.refuse_dial(server, "connection refused");
        let comes = rig.knock("alice", "app");
        let reason = "server login has been failing, cached error: connect failed: connection refused";
        for client in [waits[0], waits[1], comes] {
            let told = rig.refusal(client);
            assert!(told.starts_with(&format!("FATAL 08001 {reason}")), "{mode}: {told:?}");
        }
        assert_eq!(rig.new_dials(), 0, "{mode}");
        rig.pass_s(6);
        let client = rig.knock("alice", "app");
        let server = rig.dialed();
        rig.greet(server);
        assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"), "{mode}");
    }
}

#[test]
fn a_client_of_a_cold_pool_waits_while_another_host_may_serve_it() {
    let mut rig = Rig::with("", "app = host=one,two", 1);
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.refuse_dial(server, "refused");
    rig.gets_nothing(client);
    let server = rig.dialed();
    rig.refuse_dial(server, "refused");
    assert!(rig.refusal(client).starts_with("FATAL 08001 server login has been failing"));
}

#[test]
fn a_client_of_a_cold_pool_waits_for_a_server_that_starts_up() {
    let mut rig = Rig::new("server_login_retry = 1");
    let first = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::fatal("57P03", "the database system is starting up"));
    let second = rig.knock("alice", "app");
    rig.gets_nothing(second);
    rig.pass_s(2);
    while rig.new_dials() > 0 {
        let server = rig.dialed();
        rig.greet(server);
    }
    for client in [first, second] {
        assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    }
}

/// The DETAIL of the error that a client was sent last.
fn detail(rig: &mut Rig, client: End) -> Option<String> {
    let raw = rig.raw(client);
    let at = raw.windows(2).position(|part| part == b"\0D")? + 2;
    let end = raw[at..].iter().position(|byte| *byte == 0)? + at;
    Some(String::from_utf8_lossy(&raw[at..end]).into_owned())
}

#[test]
fn the_timeout_of_a_client_that_waited_names_the_last_failure() {
    let why = "The last attempt to open a server connection failed: connect failed: connection refused.";
    let mut rig = Rig::new("server_login_retry = 15\nquery_timeout = 3");
    let warm = rig.client("alice");
    let server = rig.dialed();
    rig.eof(server);
    rig.send(warm, &fe::query("select 1"));
    let server = rig.dialed();
    rig.refuse_dial(server, "connection refused");
    rig.pass_s(4);
    assert_eq!(rig.peek(warm), ["FATAL 08P01 query_timeout"]);
    assert_eq!(detail(&mut rig, warm).as_deref(), Some(why));
    let mut rig = Rig::new("server_login_retry = 15\nquery_wait_timeout = 3");
    let warm = rig.client("alice");
    let server = rig.dialed();
    rig.eof(server);
    rig.send(warm, &fe::query("select 1"));
    let server = rig.dialed();
    rig.refuse_dial(server, "connection refused");
    rig.pass_s(4);
    assert_eq!(detail(&mut rig, warm).as_deref(), Some(why));
}

#[test]
fn a_failure_before_a_client_waited_is_not_its_reason() {
    let mut rig = Rig::new("server_login_retry = 1\nquery_wait_timeout = 3\ndefault_pool_size = 1");
    let first = rig.client("alice");
    let server = rig.dialed();
    rig.eof(server);
    rig.send(first, &fe::query("begin"));
    let server = rig.dialed();
    rig.refuse_dial(server, "connection refused");
    rig.pass_s(2);
    let server = rig.dialed();
    rig.greet(server);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    let second = rig.client("alice");
    rig.send(second, &fe::query("select 1"));
    rig.pass_s(4);
    assert_eq!(rig.peek(second), ["FATAL 57P03 query_wait_timeout"]);
    assert_eq!(detail(&mut rig, second), None);
}

#[test]
fn query_timeout_holds_for_a_client_that_waits_for_the_pools_first_server() {
    for mode in ["session", "transaction", "statement"] {
        let mut rig = Rig::new(&format!("query_timeout = 3\nquery_wait_timeout = 9\npool_mode = {mode}"));
        let client = rig.knock("alice", "app");
        let server = rig.dialed();
        rig.connect(server);
        rig.pass_s(2);
        assert_eq!(rig.gets(client), [""; 0], "{mode}");
        rig.pass_s(2);
        assert_eq!(rig.refusal(client), "FATAL 08P01 query_timeout", "{mode}");
        assert!(rig.is_closed(client), "{mode}");
    }
}

#[test]
fn waiting_for_a_pools_first_server_ends_with_query_wait_timeout() {
    let mut rig = Rig::new("server_login_retry = 5\nquery_wait_timeout = 3");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::fatal("57P03", "the database system is starting up"));
    rig.pass_s(2);
    assert_eq!(rig.gets(client), [""; 0]);
    rig.pass_s(2);
    assert_eq!(rig.refusal(client), "FATAL 57P03 query_wait_timeout");
}

#[test]
fn when_servers_are_gone_logins_go_on_and_statements_fail_fast_until_the_retry() {
    let mut rig = Rig::new("server_login_retry = 5");
    let first = rig.client("alice");
    let server = rig.dialed();
    rig.eof(server);
    rig.send(first, &fe::query("select 1"));
    let server = rig.dialed();
    rig.refuse_dial(server, "connection refused");
    assert!(!rig.is_closed(first), "who waits already goes on waiting");
    let second = rig.knock("alice", "app");
    assert_eq!(rig.gets(second).last().map(String::as_str), Some("Ready I"));
    rig.send(second, &fe::query("select 2"));
    let told = rig.gets(second);
    assert!(
        told[0].starts_with(
            "FATAL 08001 server login has been failing, cached error: connect failed: connection refused"
        ),
        "{told:?}"
    );
    assert_eq!(rig.new_dials(), 0);
    rig.pass_s(6);
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn a_refused_login_is_told_with_the_servers_code() {
    let mut rig = Rig::new("");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::fatal("3D000", "database \"app\" does not exist"));
    assert_eq!(rig.refusal(client), "FATAL 3D000 database \"app\" does not exist");
}

#[test]
fn a_refused_login_is_told_to_clients_that_no_other_server_will_serve() {
    for makes_useless in ["RECONNECT", "replication"] {
        let mut rig = Rig::new("server_login_retry = 5");
        let (holder, server) = in_transaction(&mut rig);
        let waits = rig.client("alice");
        if makes_useless == "RECONNECT" {
            let console = rig.console();
            rig.command(console, "RECONNECT");
        } else {
            let standby = rig.accept();
            let params = [("user", "alice"), ("database", "app"), ("replication", "true")];
            rig.send(standby, &fe::startup(&params));
            let own = rig.dialed();
            rig.greet(own);
            rig.eof(holder);
            assert!(rig.is_closed(server));
        }
        rig.send(waits, &fe::query("select 1"));
        let new = rig.dialed();
        rig.connect(new);
        rig.send(new, &be::fatal("28P01", "password authentication failed for user \"alice\""));
        let told = ["FATAL 28P01 password authentication failed for user \"alice\""];
        assert_eq!(rig.gets(waits), told, "{makes_useless}");
        assert!(rig.is_closed(waits), "{makes_useless}");
        let later = rig.knock("alice", "app");
        let mut told = rig.gets(later);
        if !rig.is_closed(later) {
            rig.send(later, &fe::query("select 1"));
            told = rig.gets(later);
        }
        assert!(
            told.last().is_some_and(|told| told.starts_with("FATAL 08001 server login has been failing")),
            "{makes_useless}: {told:?}"
        );
    }
}

#[test]
fn a_refused_login_leaves_clients_waiting_for_a_server_that_is_busy() {
    let mut rig = Rig::new("server_login_retry = 5");
    let (holder, server) = in_transaction(&mut rig);
    let waits = rig.client("alice");
    rig.send(waits, &fe::query("select 1"));
    let new = rig.dialed();
    rig.connect(new);
    rig.send(new, &be::fatal("53300", "sorry, too many clients already"));
    rig.gets_nothing(waits);
    rig.send(holder, &fe::query("commit"));
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query begin", "Query commit", "Query select 1"]);
}

#[test]
fn a_server_that_starts_up_is_waited_for() {
    let mut rig = Rig::new("server_login_retry = 1");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::fatal("57P03", "the database system is starting up"));
    rig.gets_nothing(client);
    rig.pass_s(2);
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn a_server_that_skips_authentication_is_not_believed() {
    let mut rig = Rig::new("");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &[be::key(1), be::ready('I')].concat());
    assert!(rig.is_closed(server));
    assert!(rig.refusal(client).starts_with("FATAL 08006 server login failed"));
}
