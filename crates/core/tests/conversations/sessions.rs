//! Session continuity: a client's session follows it from server to server, or keeps it on one.

use crate::rig::{End, Rig, be, fe};

fn finish(rig: &mut Rig, server: End, tag: &str) {
    rig.send(server, &[be::complete(tag), be::ready('I')].concat());
}

fn row(values: &[&str]) -> Vec<u8> {
    let values: Vec<Option<&[u8]>> = values.iter().map(|value| Some(value.as_bytes())).collect();
    let mut out = Vec::new();
    pgweir_wire::backend::encode_data_row(&mut out, &values);
    out
}

fn answer(rows: &[&[&str]]) -> Vec<u8> {
    let rows = rows.iter().flat_map(|values| row(values));
    be::columns().into_iter().chain(rows).chain(be::complete("SELECT")).chain(be::ready('I')).collect()
}

/// The client sends a text, and the server that has it answers.
fn run(rig: &mut Rig, client: End, server: End, text: &str) {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    finish(rig, server, "OK");
    assert_eq!(rig.gets(client), ["Complete OK", "Ready I"]);
}

/// One statement of ours that asks for everything; returns its text.
fn asked(rig: &mut Rig, server: End) -> String {
    let got = rig.gets(server);
    let [text] = got.as_slice() else { panic!("one message was due: {got:?}") };
    assert!(
        text.starts_with("Query SELECT 's', name") || text.starts_with("(") || text.contains("bytes"),
        "{text}"
    );
    text.clone()
}

#[test]
fn a_setting_is_asked_for_and_brought_to_the_next_server() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "SET search_path TO a, b");
    assert_eq!(rig.gets(server), ["Query SELECT pg_catalog.current_setting('search_path',true)"]);
    // Nobody has the server before the answer is there.
    rig.send(two, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(server, &answer(&[&["a, b"]]));
    let reset = "SELECT pg_catalog.set_config('search_path',NULL,false);";
    assert_eq!(rig.gets(server), fe::shown_replay(&[reset], &["Query select 2"]));
    rig.send(server, &be::replayed(1));
    finish(&mut rig, server, "SELECT 0");
    rig.gets(two);
    rig.send(one, &fe::query("select 1"));
    let set = "SELECT pg_catalog.set_config('search_path','a, b',false);";
    assert_eq!(rig.gets(server), fe::shown_replay(&[set], &["Query select 1"]));
    rig.send(server, &be::replayed(1));
    rig.gets_nothing(one);
    finish(&mut rig, server, "SELECT 0");
    assert_eq!(rig.gets(one), ["Complete SELECT 0", "Ready I"]);
}

#[test]
fn what_servers_report_by_themselves_is_not_asked_for() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, client, server, "SET application_name = 'x'");
    rig.gets_nothing(server);
    run(&mut rig, client, server, "BEGIN; SET LOCAL work_mem = '1MB'; COMMIT");
    rig.gets_nothing(server);
}

#[test]
fn a_client_with_a_temporary_table_keeps_its_server_until_the_table_is_gone() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "CREATE TEMP TABLE t (a int)");
    asked(&mut rig, server);
    rig.send(server, &answer(&[&["s", "role", "none"], &["t", "", ""]]));
    rig.send(two, &fe::query("select 2"));
    rig.gets_nothing(server);
    run(&mut rig, one, server, "SELECT 1");
    rig.gets_nothing(server);
    run(&mut rig, one, server, "DROP TABLE t");
    asked(&mut rig, server);
    rig.send(server, &answer(&[&["s", "role", "none"]]));
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn what_a_pinned_client_leaves_behind_is_discarded() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "CREATE TEMP TABLE t (a int)");
    asked(&mut rig, server);
    rig.send(server, &answer(&[&["t", "", ""]]));
    rig.send(two, &fe::query("select 2"));
    rig.eof(one);
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    finish(&mut rig, server, "DISCARD ALL");
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_client_that_leaves_while_its_session_is_asked_for_leaves_no_trace() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "SET work_mem = '1MB'");
    rig.gets(server);
    rig.eof(one);
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    rig.send(server, &answer(&[&["1MB"]]));
    finish(&mut rig, server, "DISCARD ALL");
    rig.send(two, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_session_that_can_not_be_told_keeps_the_server() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "SET statement_timeout = '1ms'");
    for _ in 0..3 {
        assert_eq!(rig.gets(server), ["Query SELECT pg_catalog.current_setting('statement_timeout',true)"]);
        rig.send(server, &[be::error("57014", "canceling statement"), be::ready('I')].concat());
    }
    rig.gets_nothing(server);
    rig.send(two, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(one, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn more_pins_than_allowed_are_refused_with_the_reason() {
    let mut rig = Rig::new("max_pinned = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let first = rig.dialed();
    run(&mut rig, one, first, "CREATE TEMP TABLE t (a int)");
    asked(&mut rig, first);
    rig.send(first, &answer(&[&["t", "", ""]]));
    rig.send(two, &fe::query("CREATE TEMP TABLE u (a int)"));
    let second = rig.dialed();
    rig.greet(second);
    rig.gets(second);
    finish(&mut rig, second, "CREATE TABLE");
    asked(&mut rig, second);
    rig.gets(two);
    rig.send(second, &answer(&[&["t", "", ""]]));
    let told = rig.gets(two);
    assert!(told[0].starts_with("FATAL 53400") && told[0].contains("temporary objects"), "{told:?}");
    assert_eq!(rig.gets(second), ["Query DISCARD ALL"]);
}

#[test]
fn where_pins_are_errors_the_client_is_told_what_it_did() {
    let mut rig = Rig::new("session_state = error");
    let client = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, client, server, "CREATE TEMP TABLE t (a int)");
    asked(&mut rig, server);
    rig.send(server, &answer(&[&["t", "", ""]]));
    let told = rig.gets(client);
    assert!(told[0].starts_with("FATAL 0A000") && told[0].contains("temporary objects"), "{told:?}");
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
}

#[test]
fn startup_parameters_are_tried_before_the_client_is_let_in() {
    let mut rig = Rig::new("");
    rig.client("alice");
    let server = rig.dialed();
    let startup = fe::startup(&[("user", "alice"), ("database", "app"), ("options", "-c work_mem=1024")]);
    let client = rig.accept();
    rig.send(client, &startup);
    assert_eq!(
        rig.gets(server),
        [
            "Query SELECT pg_catalog.set_config('work_mem','1024',false);",
            "Query SELECT pg_catalog.current_setting('work_mem',true)"
        ]
    );
    rig.gets_nothing(client);
    rig.send(server, &[answer(&[&["1MB"]]), answer(&[&["1MB"]])].concat());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    // The next one with the same wishes needs no server.
    let next = rig.accept();
    rig.send(next, &startup);
    rig.gets_nothing(server);
    assert_eq!(rig.gets(next).last().map(String::as_str), Some("Ready I"));
    // RESET goes back to them, in the same packet.
    rig.send(next, &fe::query("RESET work_mem"));
    assert_eq!(
        rig.gets(server),
        ["Query RESET work_mem", "Query SELECT pg_catalog.set_config('work_mem','1MB',false);"]
    );
}

#[test]
fn what_postgresql_refuses_is_refused_at_login_in_its_words() {
    let mut rig = Rig::new("");
    rig.client("alice");
    let server = rig.dialed();
    let client = rig.accept();
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), ("geqo", "perhaps")]));
    rig.gets(server);
    let refused =
        [be::error("22023", "parameter \"geqo\" requires a Boolean value"), be::ready('I')].concat();
    rig.send(server, &[refused, answer(&[&["on"]])].concat());
    assert_eq!(rig.gets(client), ["FATAL 22023 parameter \"geqo\" requires a Boolean value"]);
    assert!(!rig.is_closed(server));
}
