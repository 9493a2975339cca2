//! Parameters that are each client's own, on servers that all clients share.

use crate::rig::{End, Rig, be, fe, greeting};

fn named(rig: &mut Rig, name: &str) -> End {
    rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", name)])
}

fn finish(rig: &mut Rig, server: End) {
    rig.send(server, &[be::complete("SELECT 0"), be::ready('I')].concat());
}

#[test]
fn a_server_is_settled_before_the_clients_statement() {
    let mut rig = Rig::new("");
    let client = named(&mut rig, "one");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    let replay = fe::shown_replay(&["SET application_name='one';"], &["Query select 1"]);
    assert_eq!(rig.gets(server), replay, "in the same packet");
    rig.send(server, &be::replayed(1));
    rig.gets_nothing(client);
    // As from PostgreSQL 14 on; it is what the client knows.
    rig.send(server, &[be::complete("SELECT 0"), be::parameter("application_name", "one")].concat());
    rig.send(server, &be::ready('I'));
    assert_eq!(rig.gets(client), ["Complete SELECT 0", "Ready I"]);
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"], "it is settled already");
}

#[test]
fn a_client_without_wishes_gets_the_servers_values_back() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (plain, other) = (rig.client("alice"), named(&mut rig, "other"));
    let server = rig.dialed();
    rig.send(other, &fe::query("select 1"));
    rig.send(server, &[be::replayed(1), be::parameter("application_name", "other")].concat());
    finish(&mut rig, server);
    rig.gets(server);
    rig.send(plain, &fe::query("select 1"));
    assert_eq!(rig.gets(server), fe::shown_replay(&["SET application_name='';"], &["Query select 1"]));
}

#[test]
fn what_a_client_sets_by_itself_is_kept_for_it() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(one, &fe::query("set timezone to 'Europe/Paris'"));
    let set = [be::parameter("TimeZone", "Europe/Paris"), be::complete("SET"), be::ready('I')].concat();
    rig.send(server, &set);
    assert_eq!(rig.gets(one), ["Parameter TimeZone=Europe/Paris", "Complete SET", "Ready I"]);
    rig.gets(server);
    rig.send(two, &fe::query("select now()"));
    assert_eq!(rig.gets(server), fe::shown_replay(&["SET TimeZone='UTC';"], &["Query select now()"]));
    rig.send(server, &[be::parameter("TimeZone", "UTC"), be::replayed(1)].concat());
    rig.gets_nothing(two);
    finish(&mut rig, server);
    rig.gets(server);
    rig.send(one, &fe::query("select now()"));
    let replay = fe::shown_replay(&["SET TimeZone='Europe/Paris';"], &["Query select now()"]);
    assert_eq!(rig.gets(server), replay);
}

#[test]
fn a_value_that_the_server_spells_differently_is_settled_once() {
    let mut rig = Rig::new("session_state = pgbouncer");
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("DateStyle", "ISO")]);
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), fe::shown_replay(&["SET DateStyle='ISO';"], &["Query select 1"]));
    // It is "ISO, MDY" already: PostgreSQL has no change to report.
    rig.send(server, &be::replayed(1));
    finish(&mut rig, server);
    assert_eq!(rig.gets(client), ["Complete SELECT 0", "Parameter DateStyle=ISO, MDY", "Ready I"]);
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"], "not before every statement");
}

#[test]
fn a_value_that_no_server_takes_ends_the_client() {
    let mut rig = Rig::new("session_state = pgbouncer");
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("TimeZone", "Mars")]);
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    let mut server = server;
    for _ in 0..2 {
        rig.send(server, &be::error("22023", "invalid value"));
        assert!(rig.is_closed(server));
        rig.gets_nothing(client);
        server = rig.dialed();
        rig.greet(server);
    }
    rig.send(server, &be::error("22023", "invalid value"));
    let told = rig.gets(client);
    assert!(told[0].starts_with("FATAL 22023") && told[0].contains("invalid value"), "{told:?}");
    assert!(rig.is_closed(client) && rig.is_closed(server));
}

#[test]
fn quotes_do_not_end_the_statement_of_ours() {
    let mut rig = Rig::new("");
    let client = named(&mut rig, "a'; drop table t; --\\");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    let statement = "SET application_name= E'a''; drop table t; --\\\\';";
    assert_eq!(rig.gets(server), fe::shown_replay(&[statement], &["Query select 1"]));
}

#[test]
fn unknown_parameters_are_refused_or_ignored_as_configured() {
    let mut rig = Rig::new("session_state = pgbouncer\nignore_startup_parameters = extra_float_digits");
    let client = rig.accept();
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), ("geqo", "off")]));
    assert_eq!(rig.gets(client), ["FATAL 08P01 unsupported startup parameter: geqo"]);
    let client = rig.accept();
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), ("options", "-c geqo=off")]));
    assert_eq!(rig.gets(client), ["FATAL 08P01 unsupported startup parameter in options: geqo"]);
    rig.client_with(&[("user", "alice"), ("database", "app"), ("extra_float_digits", "3")]);
}

#[test]
fn every_client_is_told_what_the_first_server_said() {
    let mut rig = Rig::new("session_state = pgbouncer");
    let first = rig.knock("alice", "app");
    rig.gets_nothing(first);
    let server = rig.dialed();
    rig.connect(server);
    rig.send_bytewise(server, &greeting());
    let told = rig.gets(first);
    assert_eq!(told.first().map(String::as_str), Some("Auth ok"));
    assert!(told.contains(&"Parameter server_version=18.0".to_owned()));
    assert!(told.contains(&"Parameter TimeZone=UTC".to_owned()));
    let second = rig.accept();
    rig.send(second, &fe::startup(&[("user", "alice"), ("database", "app"), ("TimeZone", "Asia/Tokyo")]));
    assert!(rig.gets(second).contains(&"Parameter TimeZone=Asia/Tokyo".to_owned()));
    assert_eq!(rig.new_dials(), 0, "no server is needed for that");
}

/// A server logs in and says whether it is a standby.
fn greet_as(rig: &mut Rig, server: End, standby: &str) {
    let said = greeting();
    let (auth_ok, rest) = said.split_at(be::auth_ok().len());
    rig.connect(server);
    rig.send(server, &[auth_ok, &be::parameter("in_hot_standby", standby), rest].concat());
}

/// What a new client is told of that.
fn told_now(rig: &mut Rig) -> Option<String> {
    let client = rig.knock("alice", "app");
    rig.gets(client).into_iter().find(|told| told.starts_with("Parameter in_hot_standby"))
}

#[test]
fn new_clients_are_told_of_a_promotion_that_a_server_reports() {
    let mut rig = Rig::new("");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    greet_as(&mut rig, server, "on");
    assert!(rig.gets(client).contains(&"Parameter in_hot_standby=on".to_owned()));
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    let promoted = be::parameter("in_hot_standby", "off");
    rig.send(server, &[be::complete("SELECT 0"), promoted, be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT 0", "Parameter in_hot_standby=off", "Ready I"]);
    assert_eq!(told_now(&mut rig).as_deref(), Some("Parameter in_hot_standby=off"));
}

#[test]
fn new_clients_are_told_what_the_newest_server_says_it_is() {
    let mut rig = Rig::new("");
    let client = rig.knock("alice", "app");
    let old = rig.dialed();
    greet_as(&mut rig, old, "on");
    rig.gets(client);
    assert_eq!(told_now(&mut rig).as_deref(), Some("Parameter in_hot_standby=on"));
    rig.eof(old);
    rig.send(client, &fe::query("select 1"));
    let new = rig.dialed();
    greet_as(&mut rig, new, "off");
    assert_eq!(rig.gets(new), ["Query select 1"]);
    assert_eq!(told_now(&mut rig).as_deref(), Some("Parameter in_hot_standby=off"));
}

#[test]
fn a_client_that_leaves_while_its_server_is_settled_takes_it_along() {
    let mut rig = Rig::new("");
    let client = named(&mut rig, "one");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.eof(client);
    rig.lets_go(server);
}

#[test]
fn what_a_client_sets_back_after_a_replay_it_is_told() {
    let mut rig = Rig::new("");
    let client = named(&mut rig, "one");
    let server = rig.dialed();
    rig.send(client, &fe::query("reset application_name"));
    rig.gets(server);
    // It is as it was reported last: PostgreSQL says nothing.
    rig.send(server, &[be::replayed(1), be::complete("RESET"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete RESET", "Parameter application_name=", "Ready I"]);
}
