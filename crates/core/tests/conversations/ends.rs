//! Ends: a client vanishes, or a server, in every state.

use pgweir_core::driver::Closed;

use crate::rig::{End, Rig, be, fe, greeting};

fn busy(rig: &mut Rig) -> (End, End) {
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    (client, server)
}

/// Nothing is counted that is not there.
fn nothing_is_left(rig: &mut Rig) {
    assert_eq!(rig.shared.clients.taken(), 0);
    let database = rig.shared.database("app");
    assert_eq!((database.clients.taken(), database.servers.taken()), (0, 0));
    let user = rig.shared.user("alice");
    assert_eq!((user.clients.taken(), user.servers.taken()), (0, 0));
}

#[test]
fn an_idle_client_leaves_its_pools_servers_alone() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::terminate());
    assert!(rig.is_closed(client) && !rig.is_closed(server));
    assert!(rig.logged("closing because: client close request"));
}

#[test]
fn a_client_that_vanishes_during_its_statement_costs_the_server() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.eof(client);
    assert_eq!(rig.shared.database("app").servers.taken(), 1, "PostgreSQL has not ended its statement");
    rig.lets_go(server);
    assert!(rig.logged("client disconnect while server was not ready"));
    nothing_is_left(&mut rig);
}

#[test]
fn a_client_that_vanishes_in_its_transaction_costs_the_server() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.end(client, Closed::Broken("reset".to_owned()));
    assert!(rig.is_closed(server));
    nothing_is_left(&mut rig);
}

#[test]
fn a_client_that_vanishes_inside_its_message_costs_the_server() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.send(client, &fe::query(&"x".repeat(50_000))[..30_000]);
    rig.eof(client);
    assert!(rig.is_closed(server));
    nothing_is_left(&mut rig);
}

#[test]
fn an_open_group_costs_the_server() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse("", "select 1"), fe::flush()].concat());
    rig.send(server, &be::parse_complete());
    rig.eof(client);
    assert!(rig.is_closed(server), "without its Sync a group is not over");
}

/// A client at the end of its session pooling; its server is asked to forget it.
fn being_reset(main: &str) -> (Rig, End) {
    let mut rig = Rig::with(main, "app = host=pg pool_mode=session", 1);
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.send(client, &fe::terminate());
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    (rig, server)
}

#[test]
fn a_session_that_ends_in_order_leaves_a_clean_server() {
    let (mut rig, server) = being_reset("default_pool_size = 1");
    let next = rig.client("alice");
    rig.send(next, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query select 2"]);
    assert_eq!(rig.new_dials(), 0, "the reset is waited for");
}

#[test]
fn a_reset_that_asks_for_data_costs_the_server() {
    let (mut rig, server) = being_reset("");
    rig.send(server, &be::copy_in());
    assert!(rig.is_closed(server), "nobody would ever send it");
}

#[test]
fn a_reset_that_fails_costs_the_server() {
    let mut rig = Rig::with("", "app = host=pg pool_mode=session", 1);
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.eof(client);
    rig.send(server, &[be::error("XX000", "no"), be::ready('I')].concat());
    assert!(rig.is_closed(server));
    nothing_is_left(&mut rig);
}

#[test]
fn an_idle_server_that_says_goodbye_is_closed() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(server, &be::fatal("57P01", "terminating connection due to administrator command"));
    assert!(rig.is_closed(server));
    rig.gets_nothing(client);
    rig.send(client, &fe::query("select 1"));
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 1"]);
}

#[test]
fn a_servers_goodbye_is_the_clients_only_one() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.send(server, &be::fatal("57P01", "terminating connection"));
    rig.eof(server);
    assert_eq!(rig.gets(client), ["FATAL 57P01 terminating connection"]);
    assert!(rig.is_closed(client));
    nothing_is_left(&mut rig);
}

#[test]
fn a_server_that_said_goodbye_goes_to_no_other_client() {
    let mut rig = Rig::new("default_pool_size = 1\ndefer_begin = packet");
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(client);
    // It is answered at once and takes the server, which has nothing to do yet.
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    let waiting = rig.client("alice");
    rig.send(waiting, &fe::query("select 2"));
    rig.send(server, &be::fatal("57P01", "terminating connection"));
    assert_eq!(rig.gets(client), ["FATAL 57P01 terminating connection"]);
    // The client goes before the end of the server's connection is seen.
    rig.eof(client);
    rig.gets_nothing(waiting);
    assert!(rig.is_closed(server));
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 2"]);
}

#[test]
fn a_goodbye_inside_a_transaction_reaches_its_client() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets(client);
    rig.send(server, &be::fatal("25P03", "terminating connection due to idle-in-transaction timeout"));
    rig.eof(server);
    assert_eq!(rig.gets(client), ["FATAL 25P03 terminating connection due to idle-in-transaction timeout"]);
    assert!(rig.is_closed(client));
}

#[test]
fn a_server_that_dies_while_it_is_settled_ends_its_client() {
    let mut rig = Rig::new("");
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "x")]);
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.eof(server);
    assert_eq!(rig.gets(client), ["FATAL 08006 server conn crashed?"]);
    nothing_is_left(&mut rig);
}

#[test]
fn a_server_that_dies_idle_is_forgotten() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.eof(server);
    assert_eq!(rig.shared.database("app").servers.taken(), 0);
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn a_server_that_dies_during_connect_query_is_replaced_after_a_while() {
    let answered = [be::one_row("1"), be::ready('I')].concat();
    let ends: [fn(&mut Rig, End, &[u8]); 2] =
        [|_, _, _| {}, |rig, server, answered| rig.send(server, answered)];
    for dies in ends {
        let mut rig = Rig::with("server_login_retry = 1", "app = host=pg connect_query='select 1'", 1);
        let client = rig.knock("alice", "app");
        let server = rig.dialed();
        rig.greet(server);
        dies(&mut rig, server, &answered);
        rig.eof(server);
        assert!(rig.logged("connect_query failed: server conn crashed?"));
        // The next one would end in the same way.
        assert_eq!(rig.new_dials(), 0);
        let told = rig.refusal(client);
        assert!(told.contains("connect_query failed: server conn crashed?"), "{told}");
        rig.pass_s(2);
        let client = rig.knock("alice", "app");
        let next = rig.dialed();
        rig.greet(next);
        rig.send(next, &answered);
        rig.send(next, &be::answer(&[]));
        assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
        // A client that comes when the pool's servers are known, and cannot wait, is told.
        let second = rig.client("alice");
        rig.send(client, &fe::query("begin"));
        rig.send(second, &fe::query("select 2"));
        let other = rig.dialed();
        rig.greet(other);
        dies(&mut rig, other, &answered);
        rig.eof(other);
        rig.eof(next);
        let third = rig.client("alice");
        rig.send(third, &fe::query("select 3"));
        let told = rig.gets(third);
        assert!(told[0].contains("connect_query failed: server conn crashed?"), "{told:?}");
    }
}

#[test]
fn connect_query_may_fail_but_not_leave_a_transaction() {
    let mut rig = Rig::with("", "app = host=pg connect_query='begin'", 1);
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    assert!(rig.is_closed(server));
    assert!(rig.refusal(client).contains("connect_query failed: "));
    assert_eq!(rig.new_dials(), 0, "the next one would end in the same way");
    rig.pass_s(16);
    rig.knock("alice", "app");
    assert_eq!(rig.new_dials(), 1);
    let mut rig = Rig::with("", "app = host=pg connect_query='nonsense'", 1);
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.send(server, &[be::error("42601", "syntax error"), be::ready('I')].concat());
    rig.send(server, &be::answer(&[]));
    rig.gets(client);
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query select 1"));
}

#[test]
fn a_transaction_in_statement_pooling_ends_both() {
    let mut rig = Rig::with("", "app = host=pg pool_mode=statement", 1);
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    let told = rig.gets(client);
    let error = "FATAL 0A000 transaction blocks not allowed in statement pooling mode";
    assert_eq!(told, [error], "and not that the transaction has begun");
    rig.lets_go(server);
    nothing_is_left(&mut rig);
}

#[test]
fn both_ends_in_one_turn() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.end_together(&[client, server]);
    nothing_is_left(&mut rig);
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.end_together(&[server, client]);
    nothing_is_left(&mut rig);
}

#[test]
fn notifications_reach_only_a_session_of_ones_own() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::notification(), be::complete("LISTEN"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete LISTEN", "Ready I"], "it may be another client's");
    let mut rig = Rig::with("", "app = host=pg pool_mode=session", 1);
    let (client, server) = busy(&mut rig);
    rig.send(server, &[be::complete("LISTEN"), be::ready('I'), be::notification()].concat());
    assert_eq!(rig.gets(client), ["Complete LISTEN", "Ready I", "Notification"]);
}

#[test]
fn a_server_at_rest_is_not_lost_to_half_of_a_notification() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let notification = be::notification();
    let (half, rest) = notification.split_at(notification.len() / 2);
    rig.send(server, &[&be::complete("SELECT"), &be::ready('I'), half].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT", "Ready I"]);
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"]);
    rig.send(server, &[rest, &be::complete("SELECT"), &be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT", "Ready I"]);
    assert!(!rig.is_closed(server));
}

#[test]
fn a_server_at_rest_with_half_of_an_answer_is_not_used_again() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let stray = be::complete("SELECT");
    rig.send(server, &[&be::complete("SELECT")[..], &be::ready('I'), &stray[..stray.len() / 2]].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT", "Ready I"]);
    rig.send(client, &fe::query("select 2"));
    rig.gets_nothing(server);
    assert!(rig.is_closed(server) && rig.logged("idle server got dirty"));
}

#[test]
fn what_a_server_says_after_its_login_answers_no_question_of_ours() {
    let stray = [be::complete("SELECT"), be::ready('I')].concat();
    for (query, behind) in [("", &stray[..]), ("", &stray[..1]), ("connect_query='select 1'", &stray[..])] {
        let mut rig = Rig::with("default_pool_size = 1", &format!("app = host=pg {query}"), 1);
        rig.catalog = None;
        rig.knock("alice", "app");
        let server = rig.dialed();
        rig.connect(server);
        rig.send(server, &[&greeting()[..], &be::parameter("TimeZone", "UTC"), behind].concat());
        assert!(rig.is_closed(server), "{query}");
        assert!(rig.logged("server sent message 'C' where nothing was due"), "{query}");
    }
}

#[test]
fn what_a_server_says_after_its_answer_is_not_that_of_a_reset() {
    let mut rig = Rig::new("server_reset_query = DISCARD ALL\nserver_reset_query_always = 1");
    let (client, server) = busy(&mut rig);
    let stray = [be::complete("SELECT"), be::ready('I')].concat();
    rig.send(server, &[&stray[..], &be::complete("DISCARD ALL"), &be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT", "Ready I"]);
    assert!(rig.is_closed(server) && rig.logged("server sent message 'C' where nothing was due"));
}

#[test]
fn a_notification_that_is_too_large_or_none_ends_a_server_at_rest() {
    for hostile in [&b"A\x7f\xff\xff\xff"[..], b"A\0\0\0\x03", b"N\xff\xff\xff\xff"] {
        let mut rig = Rig::new("");
        let (client, server) = busy(&mut rig);
        rig.send(server, &[&be::complete("SELECT")[..], &be::ready('I'), hostile].concat());
        assert_eq!(rig.gets(client), ["Complete SELECT", "Ready I"]);
        assert!(rig.is_closed(server) && !rig.is_closed(client), "{hostile:?}");
    }
}

#[test]
fn servers_that_end_right_after_their_login_are_not_opened_over_and_over() {
    let goodbye = be::fatal("57P01", "go away");
    for behind in [goodbye, be::ready('I')] {
        let mut rig = Rig::new("server_login_retry = 1");
        let client = rig.client("alice");
        rig.send(client, &fe::query("select 1"));
        let first = rig.dialed();
        rig.send(first, &[be::complete("SELECT 0"), be::ready('I')].concat());
        rig.gets(client);
        rig.eof(first);
        rig.send(client, &fe::query("select 2"));
        for times in 1..6 {
            let server = rig.dialed();
            rig.connect(server);
            rig.send(server, &[crate::rig::greeting(), behind.clone()].concat());
            assert!(rig.is_closed(server));
            if times >= 3 {
                assert_eq!(rig.new_dials(), 0, "the next one would end in the same way");
                rig.pass_s(2);
            }
        }
        let server = rig.dialed();
        rig.greet(server);
        assert_eq!(rig.gets(server), ["Query select 2"]);
        rig.send(server, &[be::complete("SELECT 0"), be::ready('I')].concat());
        rig.eof(server);
        rig.send(client, &fe::query("select 3"));
        assert_eq!(rig.new_dials(), 1, "one that was of use is replaced at once");
    }
}

/// PostgreSQL says why it ends a session, and hangs up a moment later. What the client has sent in between was not seen by any server.
#[test]
fn nothing_is_answered_after_the_server_has_ended_the_session() {
    let goodbye = be::fatal("57P01", "terminating connection due to administrator command");
    let told = "FATAL 57P01 terminating connection due to administrator command";
    for main in ["defer_begin = packet", "defer_begin = off", "defer_begin = server"] {
        for mode in ["session", "transaction"] {
            for at_work in [false, true] {
                let mut rig = Rig::new(&format!("pool_mode = {mode}\n{main}"));
                let (client, server) = busy(&mut rig);
                if !at_work {
                    rig.send(server, &[be::complete("SELECT 0"), be::ready('I')].concat());
                    rig.gets_raw(client);
                }
                rig.send(server, &goodbye);
                if mode == "transaction" && !at_work {
                    assert!(!rig.is_closed(client), "it has no server");
                    continue;
                }
                if !rig.is_closed(client) {
                    rig.send(client, &fe::query("begin"));
                }
                rig.eof(server);
                assert_eq!(rig.gets(client), [told], "{mode} {main}");
                assert!(rig.is_closed(client) && rig.is_closed(server));
            }
        }
    }
}

/// PostgreSQL that logs durations looks for its own end between the two: a client without a pooler gets the same.
#[test]
fn a_server_that_ends_behind_the_answer_to_begin_says_so_to_its_session() {
    let mut rig = Rig::new("pool_mode = session");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("begin"));
    rig.gets(server);
    let goodbye = be::fatal("57P01", "terminating connection due to administrator command");
    rig.send(server, &[be::complete("BEGIN"), goodbye].concat());
    rig.eof(server);
    let told = ["Complete BEGIN", "FATAL 57P01 terminating connection due to administrator command"];
    assert_eq!(rig.gets(client), told, "once");
}
