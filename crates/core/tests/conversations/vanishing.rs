//! Clients that leave while a statement of theirs runs: PostgreSQL runs what was sent ahead of a Terminate, and its backend counts
//! until it is over.

use pgweir_core::driver::Closed;
use pgweir_core::limits::Limits;

use crate::rig::{End, Rig, be, fe};

/// The answer to a simple query.
fn answer() -> Vec<u8> {
    [be::complete("INSERT 0 1"), be::ready('I')].concat()
}

fn servers(rig: &Rig) -> u32 {
    rig.shared.database("app").servers.taken()
}

/// A client whose statement runs on the only server.
fn running(main: &str) -> (Rig, End, End) {
    let mut rig = Rig::new(&format!("default_pool_size = 1\n{main}"));
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("insert into t select pg_sleep(60)"));
    rig.gets(server);
    (rig, client, server)
}

#[test]
fn what_comes_ahead_of_a_terminate_is_sent() {
    for main in ["", "pool_mode = session", "pool_mode = statement", "session_state = pgbouncer"] {
        for vanishes in [false, true] {
            let mut rig = Rig::new(main);
            let client = rig.client("alice");
            let server = rig.dialed();
            let all = [fe::query("insert into t values (1)"), fe::terminate()].concat();
            if vanishes {
                rig.send_and_end(client, &all);
            } else {
                rig.send(client, &all);
            }
            assert_eq!(
                rig.gets(server),
                ["Query insert into t values (1)", "Terminate"],
                "{main} {vanishes}"
            );
            assert_eq!(servers(&rig), 1);
            rig.send(server, &answer());
            assert!(rig.is_closed(server) && rig.is_closed(client));
            assert_eq!((servers(&rig), rig.shared.clients.taken()), (0, 0));
        }
    }
}

#[test]
fn a_group_ahead_of_a_terminate_is_sent() {
    for messages in [
        [fe::parse("", "insert"), fe::bind(""), fe::execute(), fe::sync()].concat(),
        [fe::parse("s", "insert"), fe::bind("s"), fe::execute(), fe::sync()].concat(),
    ] {
        let mut rig = Rig::new("");
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send_and_end(client, &[messages, fe::terminate()].concat());
        let got = rig.gets(server);
        assert_eq!((got.len(), &*got[3], &*got[4]), (5, "Sync", "Terminate"), "{got:?}");
        let answers = [be::parse_complete(), be::bind_complete(), answer()].concat();
        rig.send(server, &answers);
        assert!(rig.is_closed(server));
    }
}

#[test]
fn a_statement_that_waits_for_a_server_is_sent_if_a_terminate_follows() {
    for terminates in [true, false] {
        let (mut rig, busy, server) = running("");
        let client = rig.client("alice");
        let mut all = fe::query("insert into t values (2)");
        if terminates {
            all.extend(fe::terminate());
        }
        rig.send_and_end(client, &all);
        rig.send(server, &answer());
        rig.gets(busy);
        match terminates {
            true => {
                let got = rig.gets(server);
                let last: Vec<&str> = got.iter().rev().take(2).map(String::as_str).collect();
                assert_eq!(last, ["Terminate", "Query insert into t values (2)"], "{got:?}");
                (1..got.len()).for_each(|_| rig.send(server, &answer()));
                assert!(rig.is_closed(server));
            }
            false => rig.gets_nothing(server),
        }
        assert_eq!(rig.shared.clients.taken(), 1);
    }
}

#[test]
fn a_statement_behind_a_session_that_is_brought_is_sent() {
    let mut rig = Rig::new("default_pool_size = 1");
    let params = [("user", "alice"), ("database", "app"), ("application_name", "other")];
    let client = rig.client_with(&params);
    let server = rig.dialed();
    rig.send_and_end(client, &[fe::query("insert"), fe::terminate()].concat());
    let got = rig.gets(server);
    assert_eq!(got.last().map(String::as_str), Some("Query insert"), "{got:?}");
}

#[test]
fn a_commit_is_sent_though_its_client_is_gone() {
    for how in [Closed::Eof, Closed::Broken("reset".to_owned())] {
        let mut rig = Rig::new("");
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query("begin"));
        rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
        rig.stop_taking(server);
        rig.send(client, &fe::query("commit"));
        rig.end(client, how);
        rig.take_again(server);
        assert_eq!(rig.gets(server).last().map(String::as_str), Some("Terminate"));
        rig.pass_us(500_000);
        assert_eq!(rig.new_dials(), 0, "it has a second");
        rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
        assert!(rig.is_closed(server));
    }
}

#[test]
fn a_statement_whose_client_has_vanished_is_canceled_and_counts_until_it_is_over() {
    let (mut rig, client, server) = running("cancel_vanished_after = 2");
    rig.eof(client);
    let next = rig.client("alice");
    rig.send(next, &fe::query("select 1"));
    rig.pass_us(1_600_000);
    assert_eq!((rig.new_dials(), servers(&rig)), (0, 1), "the pool has one server");
    rig.pass_s(1);
    let cancel = rig.dialed();
    assert!(rig.connect(cancel).contains('\u{4}'), "{}", rig.connect(cancel));
    rig.eof(cancel);
    assert_eq!(servers(&rig), 1);
    assert_eq!(rig.gets(server), ["Terminate"]);
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    assert!(rig.is_closed(server));
    let fresh = rig.dialed();
    rig.greet(fresh);
    assert_eq!(rig.gets(fresh).last().map(String::as_str), Some("Query select 1"));
}

#[test]
fn each_statement_that_a_vanished_client_has_sent_is_canceled() {
    let (mut rig, client, server) = running("");
    rig.send(client, &fe::query("insert into t select pg_sleep(60)"));
    rig.eof(client);
    for _ in 0..2 {
        rig.pass_s(2);
        let cancel = rig.dialed();
        assert!(!rig.connect(cancel).is_empty());
        rig.eof(cancel);
        rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    }
    assert!(rig.is_closed(server));
}

#[test]
fn a_server_that_ends_nothing_gives_its_place_back_in_the_end() {
    let (mut rig, client, server) = running("server_connect_timeout = 5");
    rig.eof(client);
    rig.pass_s(9);
    assert_eq!((rig.is_closed(server), servers(&rig)), (false, 1));
    rig.pass_s(5);
    assert!(rig.is_closed(server) && rig.logged("not canceled in time"));
    assert_eq!(servers(&rig), 0);
}

#[test]
fn a_statement_ahead_of_a_terminate_has_the_time_that_it_may_take() {
    let (mut rig, client, server) = running("");
    rig.send(client, &fe::terminate());
    rig.pass_s(100);
    assert_eq!((rig.new_dials(), rig.is_closed(server)), (0, false));
    rig.lets_go(server);
    let (mut rig, client, _) = running("query_timeout = 10");
    rig.send(client, &fe::terminate());
    rig.pass_s(9);
    assert_eq!(rig.new_dials(), 0);
    rig.pass_s(2);
    assert_eq!(rig.new_dials(), 1, "it is canceled");
}

#[test]
fn cancel_vanished_after_0_cancels_nothing() {
    let (mut rig, client, server) = running("cancel_vanished_after = 0");
    rig.eof(client);
    rig.pass_s(100);
    assert_eq!((rig.new_dials(), rig.is_closed(server), servers(&rig)), (0, false, 1));
    rig.lets_go(server);
}

#[test]
fn an_open_transaction_and_a_copy_end_at_once() {
    for first in ["begin", "copy t from stdin"] {
        let mut rig = Rig::new("");
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query(first));
        match first {
            "begin" => rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat()),
            _ => rig.send(server, &be::copy_in()),
        }
        rig.eof(client);
        assert!(rig.is_closed(server), "{first}");
    }
}

#[test]
fn nonsense_ahead_of_the_login_ends_without_a_word() {
    for bytes in [&b"X\0\0\0\x04"[..], b"X\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x07"] {
        let mut rig = Rig::new("");
        let client = rig.accept();
        rig.send(client, bytes);
        assert!(rig.is_closed(client));
        assert_eq!(rig.raw(client), b"");
    }
}

#[test]
fn a_session_that_idles_is_ended() {
    let mut rig = Rig::with("client_idle_timeout = 5", "app = host=pg pool_mode=session", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select pg_sleep(60)"));
    rig.pass_s(20);
    assert!(!rig.is_closed(client), "its statement runs");
    rig.send(server, &answer());
    rig.pass_s(4);
    assert!(!rig.is_closed(client));
    rig.pass_s(2);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("FATAL 57P05 client_idle_timeout"));
    assert!(!rig.is_closed(server), "another client can have it");
}

#[test]
fn a_server_that_waits_for_a_client_is_read_again_when_the_client_is_gone() {
    let mut rig = Rig::new("").limit_by(Limits { ledger_entries: 1, ..Limits::default() });
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    rig.stop_taking(client);
    rig.send(client, &[fe::query("insert into t values (2)"), fe::terminate()].concat());
    while !rig.is_paused(server) {
        rig.send(server, &be::notice(&"x".repeat(10_000)));
    }
    rig.eof(client);
    assert!(rig.is_closed(client) && !rig.is_paused(server));
    rig.send(server, &answer());
    let got = rig.gets(server);
    assert!(got.contains(&"Query insert into t values (2)".to_owned()), "{got:?}");
}
