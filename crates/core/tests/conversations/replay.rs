//! A client's session that goes to another server in the packet of the client's statement: what comes of it when it fails.

use crate::rig::{End, Rig, be, fe};

const SET: &str = "SET application_name='one';";

/// A client with statements that need a replay on the pool's only server.
fn rig() -> (Rig, End, End) {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "one")]);
    let server = rig.dialed();
    (rig, client, server)
}

fn cancelled() -> Vec<u8> {
    be::error("57014", "canceling statement due to user request")
}

#[test]
fn a_cancelled_replay_is_a_cancelled_statement() {
    let (mut rig, client, server) = rig();
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), fe::shown_replay(&[SET], &["Query select 1"]));
    rig.send(
        server,
        &[be::parse_complete(), be::bind_complete(), be::complete("BEGIN"), cancelled()].concat(),
    );
    assert_eq!(rig.gets(client), ["ERROR 57014 canceling statement due to user request"]);
    // PostgreSQL ignores the query, and waits for a Sync.
    assert_eq!(rig.gets(server), ["Sync"]);
    rig.send(server, &be::ready('E'));
    assert_eq!(rig.gets(server), ["Query ROLLBACK"]);
    rig.gets_nothing(client);
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Ready I"]);
    // The server has not got the session.
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(server), fe::shown_replay(&[SET], &["Query select 2"]));
}

#[test]
fn an_extended_group_after_a_cancelled_replay_is_skipped_up_to_its_sync() {
    let (mut rig, client, server) = rig();
    rig.send(client, &[fe::parse("", "SET x = 1"), fe::bind(""), fe::execute()].concat());
    rig.gets(server);
    rig.send(server, &cancelled());
    rig.gets(client);
    rig.gets_nothing(server);
    // The rest of the group is ignored, too, and leaves no trace.
    rig.send(client, &[fe::parse("", "RESET y"), fe::sync(), fe::query("select 2")].concat());
    assert_eq!(rig.gets(server), ["Parse  RESET y", "Sync"]);
    rig.send(server, &be::ready('I'));
    assert_eq!(rig.gets(server), ["Query ROLLBACK"]);
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Ready I"]);
    assert_eq!(rig.gets(server), fe::shown_replay(&[SET], &["Query select 2"]));
}

#[test]
fn a_second_group_waits_until_the_replay_has_succeeded() {
    let (mut rig, client, server) = rig();
    let group = [fe::parse("", "select 1"), fe::bind(""), fe::execute(), fe::sync()].concat();
    rig.send(client, &group.repeat(2));
    let whole = ["Parse  select 1", "Bind ", "Execute", "Sync"];
    assert_eq!(rig.gets(server), fe::shown_replay(&[SET], &whole));
    rig.send(server, &[be::replayed(1), be::parameter("application_name", "one")].concat());
    assert_eq!(rig.gets(server), whole);
    let answer =
        [be::parse_complete(), be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat();
    rig.send(server, &answer);
    rig.send(server, &answer);
    assert_eq!(rig.gets(client), ["ParseComplete", "BindComplete", "Complete SELECT 1", "Ready I"].repeat(2));
}

#[test]
fn a_server_that_refuses_the_session_is_replaced() {
    let (mut rig, client, server) = rig();
    let (simple, group) = (fe::query("select 1"), [fe::bind("s"), fe::execute(), fe::sync()].concat());
    rig.send(client, &[simple, group].concat());
    assert_eq!(rig.gets(server), fe::shown_replay(&[SET], &["Query select 1"]));
    let refused = be::error("26000", "prepared statement \"p1\" does not exist");
    rig.send(server, &refused);
    assert!(rig.is_closed(server));
    let another = rig.dialed();
    rig.greet(another);
    assert_eq!(rig.gets(another), fe::shown_replay(&[SET], &["Query select 1"]), "all of it, in its order");
    rig.send(another, &[be::replayed(1), be::parameter("application_name", "one")].concat());
    rig.send(another, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    assert_eq!(rig.gets(another), ["Bind s", "Execute", "Sync"]);
}

#[test]
fn what_cannot_be_restored_ends_this_client_alone() {
    let (mut rig, client, server) = rig();
    let group = [fe::parse("", "select 1"), fe::bind(""), fe::execute(), fe::sync()].concat();
    rig.send(client, &group.repeat(2));
    let refused = [be::error("22023", "role \"r\" does not exist"), be::ready('I')].concat();
    let whole = ["Parse  select 1", "Bind ", "Execute", "Sync"];
    let mut server = server;
    for _ in 0..2 {
        assert_eq!(rig.gets(server), fe::shown_replay(&[SET], &whole));
        rig.send(server, &refused);
        assert!(rig.is_closed(server), "it may be this server's fault");
        rig.gets_nothing(client);
        server = rig.dialed();
        rig.greet(server);
    }
    rig.gets(server);
    rig.send(server, &refused);
    let told = rig.gets(client);
    assert_eq!(
        told,
        ["FATAL 22023 the session could not be brought to another server: role \"r\" does not exist"]
    );
    rig.gets_nothing(server);
    assert!(rig.is_closed(server));
}

#[test]
fn a_client_that_gets_another_server_is_told_once_that_it_waits() {
    let mut rig = Rig::new("default_pool_size = 1\nquery_wait_notify = 3");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(one, &fe::query("SET work_mem = '1MB'"));
    rig.send(server, &[be::complete("SET"), be::ready('I')].concat());
    rig.send(server, &[be::one_row("1MB"), be::ready('I')].concat());
    rig.send(one, &fe::query("select pg_sleep(5)"));
    rig.gets(server);
    rig.send(two, &fe::query("select 2"));
    rig.pass_s(5);
    assert!(rig.gets(two)[0].starts_with("NOTICE"));
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query select 2"));
    rig.send(server, &be::error("22023", "role \"r\" does not exist"));
    assert!(rig.is_closed(server));
    let another = rig.dialed();
    rig.pass_s(5);
    rig.gets_nothing(two);
    rig.greet(another);
    assert_eq!(rig.gets(another), ["Query select 2"]);
}

#[test]
fn a_begin_that_was_answered_goes_after_the_replay() {
    let mut rig = Rig::new("default_pool_size = 1\ndefer_begin = server");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(one, &fe::query("SET work_mem = '1MB'"));
    rig.send(server, &[be::complete("SET"), be::ready('I')].concat());
    rig.send(server, &[be::one_row("1MB"), be::ready('I')].concat());
    rig.gets(server);
    rig.send(two, &fe::query("BEGIN"));
    rig.send(two, &fe::query("select 2"));
    let reset = "SELECT pg_catalog.set_config('work_mem',NULL,false);";
    let then = ["Parse  BEGIN", "Bind ", "Execute", "Query select 2"];
    assert_eq!(rig.gets(server), fe::shown_replay(&[reset], &then));
    rig.gets(two);
    // The client was told of a transaction: it gets that on another server.
    rig.send(server, &cancelled());
    rig.gets_nothing(two);
    assert!(rig.is_closed(server));
    let another = rig.dialed();
    rig.greet(another);
    assert_eq!(rig.gets(another), then);
}

#[test]
fn what_is_replayed_and_reset_in_one_group_is_told_before_its_end() {
    let (mut rig, client, server) = rig();
    rig.send(client, &fe::query("DISCARD ALL"));
    rig.gets(server);
    // At its end the server's parameters are what they were: it has nothing to report.
    rig.send(server, &[be::replayed(1), be::complete("DISCARD ALL"), be::ready('I')].concat());
    let told = rig.gets(client);
    assert_eq!(told.first().map(String::as_str), Some("Complete DISCARD ALL"));
    assert!(told[1].starts_with("Parameter application_name"), "{told:?}");
    assert_eq!(told.last().map(String::as_str), Some("Ready I"));
}

#[test]
fn a_function_call_after_a_replay_releases_the_server() {
    let (mut rig, client, server) = rig();
    rig.send(client, &fe::function_call());
    assert_eq!(rig.gets(server), fe::shown_replay(&[SET], &["FunctionCall"]));
    let answer = [be::function_result(1), be::parameter("application_name", "one"), be::ready('I')];
    rig.send(server, &[be::replayed(1), answer.concat()].concat());
    let asked = rig.gets(server);
    assert_eq!(asked.len(), 1, "what the function did is asked: {asked:?}");
}

#[test]
fn the_data_of_a_copy_behind_a_replay_and_a_reset_is_not_kept_back() {
    let (mut rig, client, server) = rig();
    let copy = "reset all; copy t from stdin";
    rig.send(client, &[fe::query(copy), fe::copy_data(b"1\n"), fe::copy_done()].concat());
    assert_eq!(rig.gets(server), fe::shown_replay(&[SET], &[&format!("Query {copy}")]));
    rig.send(server, &[be::replayed(1), be::complete("RESET"), be::copy_in()].concat());
    assert_eq!(rig.gets(server), ["CopyData 1\n", "CopyDone"], "PostgreSQL waits for it");
}
