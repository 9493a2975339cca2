//! `connect_query`: what it leaves in a server's session is what every client of the pool begins with.

use crate::rig::{End, REPORTED, Rig, be, fe};
use crate::sessions::{finish, run};

/// The question for everything that a session holds is answered.
fn tells(rig: &mut Rig, server: End, rows: &[&[&str]]) {
    let got = rig.gets(server);
    assert!(got.len() == 1 && got[0].contains("bytes"), "the question is a long text: {got:?}");
    rig.send(server, &be::answer(rows));
}

/// `connect_query` runs, and leaves this.
fn leaves(rig: &mut Rig, server: End, query: &str, rows: &[&[&str]]) {
    assert_eq!(rig.gets(server), [format!("Query {query}")]);
    finish(rig, server, "SET");
    tells(rig, server, rows);
}

/// A client of a cold pool with servers that run this, and its server, which is free.
fn begun(rig: &mut Rig, query: &str, rows: &[&[&str]]) -> (End, End) {
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.gets_nothing(client);
    leaves(rig, server, query, rows);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    (client, server)
}

const USER: &[&str] = &["s", "session_authorization", "alice"];
const AS_APP: [&[&str]; 2] = [&["s", "role", "app"], USER];
const AS_ALICE: &[&str] = &["s", "role", "none"];

#[test]
fn it_runs_again_after_a_reset() {
    let mut rig = Rig::with("default_pool_size = 1", "app = host=pg connect_query='set role app'", 1);
    let (one, server) = begun(&mut rig, "set role app", &AS_APP);
    let two = rig.client("alice");
    run(&mut rig, one, server, "select pg_advisory_lock(1)");
    tells(&mut rig, server, &[AS_APP[0], USER, &["a", "", ""]]);
    rig.send(two, &fe::query("select 2"));
    rig.send(one, &fe::terminate());
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    finish(&mut rig, server, "DISCARD ALL");
    leaves(&mut rig, server, "set role app", &AS_APP);
    assert_eq!(rig.gets(server), ["Query select 2"], "it is as its client is");
    finish(&mut rig, server, "SELECT 0");
    assert_eq!(rig.gets(two), ["Complete SELECT 0", "Ready I"]);
    // A routine may have done anything; what it left is what was there.
    run(&mut rig, two, server, "do $$ begin end $$");
    tells(&mut rig, server, &AS_APP);
    let three = rig.client("alice");
    run(&mut rig, three, server, "select 3");
}

#[test]
fn a_new_client_begins_with_what_it_left_whichever_client_had_the_server() {
    let query = "set work_mem = ''7MB''";
    let mut rig = Rig::with("default_pool_size = 1", &format!("app = host=pg connect_query='{query}'"), 1);
    let left = ["s", "work_mem", "7MB"];
    let (one, server) = begun(&mut rig, "set work_mem = '7MB'", &[AS_ALICE, USER, &left]);
    run(&mut rig, one, server, "SET work_mem = '8MB'");
    assert_eq!(rig.gets(server), ["Query SELECT pg_catalog.current_setting('work_mem',true)"]);
    rig.send(server, &be::answer(&[&["8MB"]]));
    let two = rig.client("alice");
    rig.send(two, &fe::query("select 2"));
    let set = "SELECT pg_catalog.set_config('work_mem','7MB',false);";
    assert_eq!(rig.gets(server), fe::shown_replay(&[set], &["Query select 2"]));
}

#[test]
fn its_own_settings_are_asked_for_by_name_and_are_no_difference() {
    let database = "app = host=pg connect_query='set App.tenant = ''x'''";
    let mut rig = Rig::with("default_pool_size = 1\nsession_audit_sample = 1", database, 1);
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.gets(server);
    finish(&mut rig, server, "SET");
    let asked = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    assert!(asked.contains("(VALUES ('m','app.tenant'))"), "{asked}");
    let rows: [&[&str]; 3] = [AS_ALICE, USER, &["m", "app.tenant", "x"]];
    rig.send(server, &be::answer(&rows));
    rig.gets(client);
    run(&mut rig, client, server, "select 1");
    tells(&mut rig, server, &rows);
    run(&mut rig, client, server, "select 1");
    tells(&mut rig, server, &[AS_ALICE, USER]);
    assert!(rig.logged("not what it should be (setting app.tenant)"));
}

#[test]
fn clients_are_told_of_parameters_as_it_left_them() {
    let mut rig = Rig::with("", "app = host=pg connect_query='set timezone to tokyo'", 1);
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.gets(server);
    let changes = [("TimeZone", "Asia/Tokyo"), ("IntervalStyle", "iso_8601"), ("is_superuser", "off")];
    let reported = changes.iter().flat_map(|(name, value)| be::parameter(name, value)).collect();
    rig.send(server, &[reported, be::complete("SET"), be::ready('I')].concat());
    tells(&mut rig, server, &[AS_ALICE, USER, &["s", "TimeZone", "Asia/Tokyo"]]);
    let told = rig.gets(client);
    for (name, value) in changes {
        let of_it: Vec<_> = told.iter().filter(|line| line.contains(&format!(" {name}="))).collect();
        assert_eq!(of_it, [&format!("Parameter {name}={value}")]);
    }
    run(&mut rig, client, server, "select 1");
}

#[test]
fn in_session_pooling_the_first_client_gets_the_first_server() {
    let database = "app = host=pg pool_mode=session connect_query='set role app'";
    let mut rig = Rig::with("", database, 1);
    let (client, server) = begun(&mut rig, "set role app", &AS_APP);
    assert_eq!(rig.new_dials(), 0);
    run(&mut rig, client, server, "select 1");
    rig.send(client, &fe::terminate());
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    // The next one waits for it rather than for another.
    let next = rig.knock("alice", "app");
    finish(&mut rig, server, "DISCARD ALL");
    assert_eq!(rig.gets(server), ["Query set role app"]);
    finish(&mut rig, server, "SET");
    let late = rig.knock("alice", "app");
    assert_eq!(rig.new_dials(), 1, "one for the third");
    tells(&mut rig, server, &AS_APP);
    rig.gets_nothing(late);
    assert_eq!(rig.gets(next).last().map(String::as_str), Some("Ready I"));
    run(&mut rig, next, server, "select 1");
}

#[test]
fn a_server_that_does_not_tell_is_still_used() {
    let mut rig = Rig::with("", "app = host=pg connect_query='set role app'", 1);
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.gets(server);
    finish(&mut rig, server, "SET");
    for _ in 0..3 {
        rig.gets_nothing(client);
        assert_eq!(rig.gets(server).len(), 1);
        rig.send(server, &[be::error("42501", "permission denied"), be::ready('I')].concat());
    }
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    assert!(rig.logged("does not tell what its session holds: permission denied"));
    run(&mut rig, client, server, "select 1");
}

#[test]
fn a_failure_is_not_what_all_clients_begin_with() {
    let mut rig = Rig::with("", "app = host=pg connect_query='set role app'", 1);
    let one = rig.knock("alice", "app");
    let first = rig.dialed();
    rig.greet(first);
    assert_eq!(rig.gets(first), ["Query set role app"]);
    rig.send(first, &[be::error("57014", "canceled"), be::ready('I')].concat());
    tells(&mut rig, first, &[AS_ALICE, USER]);
    let (two, role) = (rig.client("alice"), "pg_catalog.set_config('role','app',false);");
    rig.gets(one);
    rig.send(one, &fe::query("select 1"));
    rig.gets(first);
    rig.send(two, &fe::query("select 2"));
    let second = rig.dialed();
    rig.greet(second);
    leaves(&mut rig, second, "set role app", &AS_APP);
    // A client that began without it goes on so.
    assert!(String::from_utf8_lossy(&rig.raw(second)).contains("set_config('role',NULL,false)"));
    let three = rig.client("alice");
    finish(&mut rig, first, "SELECT 0");
    rig.gets(one);
    rig.send(three, &fe::query("select 3"));
    assert!(String::from_utf8_lossy(&rig.raw(first)).contains(role));
}

#[test]
fn where_sessions_are_nobodys_nothing_is_asked() {
    let database = "app = host=pg session_state=pgbouncer connect_query='set role app'";
    let mut rig = Rig::with("", database, 1);
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(server), ["Query set role app"]);
    let reported = be::parameter("TimeZone", "Asia/Tokyo");
    rig.send(server, &[reported, be::complete("SET"), be::ready('I')].concat());
    assert!(rig.gets(client).contains(&"Parameter TimeZone=Asia/Tokyo".to_owned()));
    run(&mut rig, client, server, "select 1");
}

#[test]
fn what_a_client_asks_for_goes_before() {
    let query = "set search_path = y; set role app";
    let mut rig = Rig::with("default_pool_size = 1", &format!("app = host=pg connect_query='{query}'"), 1);
    let client = rig.accept();
    let options = ("options", "-c search_path=x");
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), options]));
    let server = rig.dialed();
    rig.greet(server);
    leaves(&mut rig, server, query, &[AS_APP[0], USER, &["s", "search_path", "y"]]);
    let back =
        "pg_catalog.set_config('role',NULL,false),pg_catalog.set_config('session_authorization',NULL,false)";
    let set = |path: &str| {
        let sets = format!("pg_catalog.set_config('search_path','{path}',false)");
        format!("SELECT {back},{sets},pg_catalog.set_config('role','app',false);")
    };
    let got = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    assert!(got.contains(&set("x")) && got.contains("current_setting('search_path',true)"), "{got}");
    rig.send(server, &be::answer(&[&["-", "-", "x", "app"]]));
    rig.send(server, &be::answer(&[&["x"]]));
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    run(&mut rig, client, server, "select 1");
    // Another client is not as this one; its RESET goes back to what it asked for.
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 2"));
    let got = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    assert!(got.contains(&set("y")), "{got}");
    rig.send(server, &be::replayed(1));
    finish(&mut rig, server, "SELECT 0");
    rig.gets(other);
    rig.send(client, &fe::query("RESET search_path"));
    let got = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    assert!(got.contains(&set("x")), "{got}");
    rig.send(server, &be::replayed(1));
    finish(&mut rig, server, "RESET");
    assert_eq!(rig.gets(server), ["Query SET \"search_path\"='x';"]);
}

#[test]
fn a_server_that_was_opened_for_a_client_is_what_the_client_asked_for() {
    let query = "set work_mem = 7168; set role app";
    let database = format!("app = host=pg pool_mode=session connect_query='{query}'");
    let mut rig = Rig::with("server_reset_query =", &database, 1);
    let left: [&[&str]; 3] = [AS_APP[0], USER, &["s", "work_mem", "7MB"]];
    let (first, _) = begun(&mut rig, query, &left);
    rig.send(first, &fe::terminate());
    let client = rig.accept();
    let wishes = [("work_mem", "8MB"), ("TimeZone", "Europe/Berlin"), ("geqo", "off")];
    rig.send(client, &fe::startup(&[&[("user", "alice"), ("database", "app")], &wishes[..]].concat()));
    let server = rig.dialed();
    let packet = rig.connect(server);
    assert!(packet.contains("work_mem 8MB "), "{packet}");
    let reported = REPORTED.map(|(name, value)| match name {
        "TimeZone" => be::parameter(name, "Europe/Berlin"),
        _ => be::parameter(name, value),
    });
    rig.send(server, &[be::auth_ok(), reported.concat(), be::key(7), be::ready('I')].concat());
    assert_eq!(rig.gets(server), [format!("Query {query}")]);
    let changed = [("TimeZone", "Asia/Tokyo"), ("DateStyle", "German, DMY")];
    rig.send(server, &changed.map(|(name, value)| be::parameter(name, value)).concat());
    finish(&mut rig, server, "SET");
    tells(&mut rig, server, &left);
    let told = rig.gets(client);
    for parameter in ["TimeZone=Europe/Berlin", "DateStyle=German, DMY"] {
        assert!(told.contains(&format!("Parameter {parameter}")), "{told:?}");
    }
    rig.send(client, &fe::query("select 1"));
    let got = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    assert!(got.contains("SET TimeZone='Europe/Berlin';") && !got.contains("DateStyle"), "{got}");
    let back =
        "pg_catalog.set_config('role',NULL,false),pg_catalog.set_config('session_authorization',NULL,false)";
    let set = "pg_catalog.set_config('work_mem','8MB',false),pg_catalog.set_config('role','app',false)";
    assert!(got.contains(&format!("SELECT {back},{set};")), "{got}");
}

#[test]
fn what_is_no_clients_runs_with_what_it_left() {
    let main = "auth_type = plain\nauth_user = asker\nauth_query = select n, p from f($1)";
    let mut rig = Rig::with(main, "app = host=pg connect_query='set role app'", 1);
    let client = rig.knock("dora", "app");
    let server = rig.dialed();
    rig.greet(server);
    leaves(&mut rig, server, "set role app", &[AS_APP[0], &["s", "session_authorization", "asker"]]);
    assert_eq!(rig.gets(server), ["Parse  select n, p from f($1)", "Bind ", "Execute", "Sync"]);
    rig.gets_nothing(client);
}

fn knock_at_successor(rig: &mut Rig) -> End {
    let client = rig.accept_at(1);
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    client
}

#[test]
fn a_successor_knows_what_clients_begin_with() {
    let database = "app = host=pg connect_query='set role app'";
    let mut rig = Rig::with("", database, 1);
    let (client, server) = begun(&mut rig, "set role app", &AS_APP);
    rig.take_over("", database);
    let fresh = knock_at_successor(&mut rig);
    assert_eq!(rig.gets(fresh).last().map(String::as_str), Some("Ready I"));
    run(&mut rig, fresh, server, "select 1");
    run(&mut rig, client, server, "select 2");

    let mut rig = Rig::with("", database, 1);
    let (client, _) = begun(&mut rig, "set role app", &AS_APP);
    rig.take_over("", "app = host=pg connect_query='set role other'");
    let fresh = knock_at_successor(&mut rig);
    rig.gets_nothing(fresh);
    let server = rig.dialed();
    rig.greet(server);
    leaves(&mut rig, server, "set role other", &[&["s", "role", "other"], USER]);
    assert_eq!(rig.gets(fresh).last().map(String::as_str), Some("Ready I"));
    run(&mut rig, fresh, server, "select 1");
    rig.send(client, &fe::query("select 2"));
    let back =
        "pg_catalog.set_config('role',NULL,false),pg_catalog.set_config('session_authorization',NULL,false)";
    let got = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    assert!(got.contains(&format!("SELECT {back},pg_catalog.set_config('role','app',false);")), "{got}");
}

#[test]
fn when_it_runs_again_its_time_begins_again() {
    let main = "server_connect_timeout = 5\ndefault_pool_size = 1";
    let mut rig = Rig::with(main, "app = host=pg pool_mode=session connect_query='set role app'", 1);
    let (client, server) = begun(&mut rig, "set role app", &AS_APP);
    run(&mut rig, client, server, "select 1");
    rig.pass_s(20);
    rig.send(client, &fe::terminate());
    rig.gets(server);
    finish(&mut rig, server, "DISCARD ALL");
    rig.pass_s(3);
    assert!(!rig.is_closed(server));
    assert_eq!(rig.gets(server), ["Query set role app"]);
    rig.pass_s(4);
    assert!(rig.is_closed(server));
    assert!(!rig.logged("connect_query failed"), "another one is opened at once");
}

#[test]
fn a_session_that_listens_or_cannot_move_is_not_taken_over() {
    let query = "listen news; create temp table t ()";
    let mut rig = Rig::with("default_pool_size = 1", &format!("app = host=pg connect_query='{query}'"), 1);
    let rows: [&[&str]; 4] = [AS_ALICE, USER, &["l", "news", ""], &["t", "", ""]];
    let (client, server) = begun(&mut rig, query, &rows);
    run(&mut rig, client, server, "select 1");
    let other = rig.client("alice");
    run(&mut rig, other, server, "select 2");
    run(&mut rig, client, server, "select 3");
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn a_late_cancel_request_does_not_hit_it() {
    let mut rig = Rig::with("", "app = host=pg pool_mode=session connect_query='set role app'", 1);
    let (client, server) = begun(&mut rig, "set role app", &AS_APP);
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    rig.cancel(client);
    let cancel = rig.dialed();
    rig.connect_silently(cancel);
    finish(&mut rig, server, "SELECT 0");
    rig.send(client, &fe::terminate());
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    finish(&mut rig, server, "DISCARD ALL");
    assert!(!rig.is_closed(server));
    rig.gets_nothing(server);
    rig.eof(cancel);
    leaves(&mut rig, server, "set role app", &AS_APP);
    assert!(!rig.is_closed(server));
}
