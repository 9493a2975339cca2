//! Prepared statements by name, on servers that change hands.

use crate::rig::{End, Rig, be, fe};

fn group(messages: &[Vec<u8>]) -> Vec<u8> {
    [messages.concat(), fe::sync()].concat()
}

/// A client prepares a statement; the server has it then.
fn prepare(rig: &mut Rig, client: End, server: End, name: &str, text: &str) {
    rig.send(client, &group(&[fe::parse(name, text)]));
    let asked = rig.gets(server);
    if asked.iter().any(|message| message.starts_with("Parse")) {
        if asked[0].starts_with("Close") {
            rig.send(server, &be::close_complete());
        }
        rig.send(server, &be::parse_complete());
    }
    rig.send(server, &be::ready('I'));
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
}

#[test]
fn a_statement_follows_its_client_to_another_server() {
    let mut rig = Rig::new("default_pool_size = 2");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let first = rig.dialed();
    prepare(&mut rig, one, first, "s1", "select 1");
    rig.send(two, &fe::query("begin"));
    rig.gets(first);
    rig.send(one, &group(&[fe::bind("s1"), fe::execute()]));
    let second = rig.dialed();
    rig.greet(second);
    assert_eq!(rig.gets(second), ["Parse PGWEIR_1 select 1", "Bind PGWEIR_1", "Execute", "Sync"]);
    let answer =
        [be::parse_complete(), be::bind_complete(), be::row("1"), be::complete("SELECT 1"), be::ready('I')];
    rig.send(second, &answer.concat());
    assert_eq!(rig.gets(one), ["BindComplete", "Row 1", "Complete SELECT 1", "Ready I"]);
}

#[test]
fn a_long_statement_that_comes_slowly_holds_no_server() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (slow, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    let text = format!("select '{}'", "x".repeat(100_000));
    let whole = group(&[fe::parse("long", &text)]);
    let (first, rest) = whole.split_at(90_000);
    rig.send(slow, first);
    rig.gets_nothing(server);
    prepare(&mut rig, other, server, "s1", "select 1");
    rig.send(slow, rest);
    assert_eq!(rig.gets(server).len(), 2, "Parse and Sync");
}

#[test]
fn what_the_server_has_already_is_answered_here_in_its_turn() {
    let mut rig = Rig::new("");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    prepare(&mut rig, one, server, "s1", "select 1");
    rig.send(two, &group(&[fe::parse("", "select 2"), fe::parse("mine", "select 1"), fe::bind("mine")]));
    assert_eq!(rig.gets(server), ["Parse  select 2", "Bind PGWEIR_1", "Sync"]);
    rig.gets_nothing(two);
    rig.send(server, &[be::parse_complete(), be::bind_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(two), ["ParseComplete", "ParseComplete", "BindComplete", "Ready I"]);
}

#[test]
fn a_name_in_use_is_an_error_as_postgresql_says_it() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "s1", "select 1");
    rig.send(client, &group(&[fe::parse("s1", "select 2")]));
    let twice = "Parse PGWEIR_0 select 2";
    assert_eq!(rig.gets(server), ["Close S PGWEIR_0", twice, twice, "Sync"], "an error is provoked");
    let refused = be::error("42P05", "prepared statement \"PGWEIR_0\" already exists");
    rig.send(server, &[be::close_complete(), be::parse_complete(), refused, be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 42P05 prepared statement \"s1\" already exists", "Ready I"]);
    rig.send(client, &group(&[fe::bind("s1")]));
    assert_eq!(rig.gets(server), ["Bind PGWEIR_1", "Sync"], "it still is what it was");
}

#[test]
fn a_name_in_use_that_is_closed_after_it_is_still_told() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "s1", "select 1");
    rig.send(client, &group(&[fe::parse("s1", "select 2"), fe::close("s1")]));
    let refused = be::error("42P05", "prepared statement \"PGWEIR_0\" already exists");
    rig.send(server, &[be::close_complete(), be::parse_complete(), refused, be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 42P05 prepared statement \"s1\" already exists", "Ready I"]);
}

#[test]
fn errors_call_a_statement_as_its_client_calls_it() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "one", "select $1");
    rig.send(client, &group(&[fe::parse("two", "select $1")]));
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
    for (message, code) in [(fe::bind("two"), "08P01"), (fe::describe("two"), "26000")] {
        rig.send(client, &group(&[message]));
        rig.gets(server);
        let error = be::error(code, "prepared statement \"PGWEIR_1\" is not so");
        rig.send(server, &[error, be::ready('I')].concat());
        assert_eq!(rig.gets(client)[0], format!("ERROR {code} prepared statement \"two\" is not so"));
    }
    rig.send(client, &group(&[fe::bind("two")]));
    rig.send(server, &[be::error("22P02", "no number: \"PGWEIR_1\""), be::ready('I')].concat());
    assert_eq!(rig.gets(client)[0], "ERROR 22P02 no number: \"PGWEIR_1\"", "that is a value");
}

#[test]
fn a_fatal_error_in_place_of_a_name_in_use_is_told_as_it_is() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "s1", "select 1");
    rig.send(client, &group(&[fe::parse("s1", "select 2")]));
    rig.send(server, &be::fatal("57P01", "terminating connection"));
    assert_eq!(rig.gets(client), ["FATAL 57P01 terminating connection"]);
}

#[test]
fn a_name_that_was_never_prepared_is_the_servers_error() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &group(&[fe::bind("nothing")]));
    assert_eq!(rig.gets(server), ["Bind nothing", "Sync"]);
    let error = be::error("26000", "prepared statement \"nothing\" does not exist");
    rig.send(server, &[error, be::ready('I')].concat());
    assert_eq!(rig.gets(client)[0], "ERROR 26000 prepared statement \"nothing\" does not exist");
}

#[test]
fn a_statement_that_does_not_parse_gives_its_name_back() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &group(&[fe::parse("s1", "selec"), fe::bind("s1"), fe::execute()]));
    rig.send(server, &[be::error("42601", "syntax error"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 42601 syntax error", "Ready I"]);
    rig.gets(server);
    rig.send(client, &group(&[fe::parse("s1", "select 1")]));
    assert_eq!(rig.gets(server).len(), 2, "the name is free again");
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
}

#[test]
fn a_prerequisite_that_fails_is_the_clients_error() {
    let mut rig = Rig::new("");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let first = rig.dialed();
    prepare(&mut rig, one, first, "s1", "select * from t");
    rig.send(two, &fe::query("begin"));
    rig.send(one, &group(&[fe::describe("s1"), fe::bind("s1"), fe::execute()]));
    let second = rig.dialed();
    rig.greet(second);
    rig.send(second, &[be::error("42P01", "no such table"), be::ready('I')].concat());
    assert_eq!(rig.gets(one), ["ERROR 42P01 no such table", "Ready I"]);
    rig.gets(second);
    rig.send(one, &group(&[fe::bind("s1")]));
    assert_eq!(rig.gets(second), ["Parse PGWEIR_1 select * from t", "Bind PGWEIR_1", "Sync"], "tried again");
}

#[test]
fn the_oldest_statement_goes_when_a_server_has_too_many() {
    let mut rig = Rig::new("max_prepared_statements = 2");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "a", "select 'a'");
    prepare(&mut rig, client, server, "b", "select 'b'");
    rig.send(client, &group(&[fe::bind("a")]));
    rig.send(server, &[be::bind_complete(), be::ready('I')].concat());
    rig.gets(server);
    rig.gets(client);
    rig.send(client, &group(&[fe::parse("c", "select 'c'")]));
    assert_eq!(rig.gets(server), ["Close S PGWEIR_2", "Parse PGWEIR_3 select 'c'", "Sync"]);
    rig.send(server, &[be::close_complete(), be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
    rig.send(client, &group(&[fe::bind("b")]));
    assert_eq!(rig.gets(server), ["Close S PGWEIR_1", "Parse PGWEIR_2 select 'b'", "Bind PGWEIR_2", "Sync"]);
}

#[test]
fn close_concerns_the_clients_name_only() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "s1", "select 1");
    rig.send(client, &group(&[fe::close("s1")]));
    assert_eq!(rig.gets(client), ["CloseComplete", "Ready I"], "no server is needed for that");
    rig.gets_nothing(server);
    rig.send(client, &group(&[fe::parse("s1", "select 1"), fe::bind("s1")]));
    assert_eq!(rig.gets(server), ["Bind PGWEIR_1", "Sync"]);
}

#[test]
fn a_skipped_close_leaves_the_statement() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "s1", "select 1");
    // The Bind fails, so PostgreSQL never sees the Close.
    rig.send(client, &group(&[fe::bind(""), fe::close("s1")]));
    rig.send(server, &[be::error("26000", "unnamed statement does not exist"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 26000 unnamed statement does not exist", "Ready I"]);
    rig.gets(server);
    rig.send(client, &group(&[fe::bind("s1")]));
    assert_eq!(rig.gets(server), ["Bind PGWEIR_1", "Sync"]);
}

#[test]
fn a_skipped_pipeline_of_evictions_leaves_the_truth() {
    let mut rig = Rig::new("max_prepared_statements = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "b", "select 'b'");
    prepare(&mut rig, client, server, "a", "select 'a'");
    // The server has a (PGWEIR_2) now. Everything after the failing Bind is skipped.
    rig.send(client, &group(&[fe::bind(""), fe::bind("b"), fe::bind("a")]));
    rig.send(server, &[be::error("26000", "unnamed"), be::ready('I')].concat());
    rig.gets(server);
    rig.gets(client);
    rig.send(client, &group(&[fe::bind("b")]));
    assert_eq!(rig.gets(server), ["Close S PGWEIR_2", "Parse PGWEIR_1 select 'b'", "Bind PGWEIR_1", "Sync"]);
}

#[test]
fn a_server_that_ends_instead_of_an_eviction_says_why_itself() {
    let mut rig = Rig::new("max_prepared_statements = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "b", "select 'b'");
    prepare(&mut rig, client, server, "a", "select 'a'");
    rig.send(client, &group(&[fe::bind("b")]));
    assert_eq!(rig.gets(server)[0], "Close S PGWEIR_2");
    rig.send(server, &be::fatal("57P01", "going"));
    assert_eq!(rig.gets(client), ["FATAL 57P01 going"]);
    assert!(rig.is_closed(server) && rig.is_closed(client), "PostgreSQL says nothing after that");
    rig.gets_nothing(client);
}

#[test]
fn discard_all_forgets_on_both_sides() {
    let mut rig = Rig::new("session_state = pgbouncer");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "s1", "select 1");
    rig.send(client, &fe::query("discard all"));
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    rig.gets(server);
    rig.gets(client);
    rig.send(client, &group(&[fe::parse("s1", "select 1"), fe::bind("s1")]));
    let asked = rig.gets(server);
    assert!(asked[0].starts_with("Parse PGWEIR_"), "it has to be prepared again: {asked:?}");
}

/// What the server has been asked, until now, after the DISCARD ALL in the same packet.
#[test]
fn discard_all_before_parse_in_one_packet() {
    let mut rig = Rig::new("session_state = pgbouncer");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::query("DISCARD ALL"), group(&[fe::parse("s1", "select 1")])].concat());
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete DISCARD ALL", "Ready I", "ParseComplete", "Ready I"]);
    rig.gets(server);
    rig.send(client, &group(&[fe::bind("s1")]));
    let asked = rig.gets(server);
    assert_eq!(asked, ["Bind PGWEIR_1", "Sync"], "the name was given behind the DISCARD ALL");
}

#[test]
fn discard_all_before_a_known_parse() {
    let mut rig = Rig::new("session_state = pgbouncer");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    prepare(&mut rig, one, server, "s1", "select 1");
    rig.send(two, &[fe::query("DISCARD ALL"), group(&[fe::parse("x", "select 1"), fe::bind("x")])].concat());
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    let asked = rig.gets(server);
    let parse = asked.iter().position(|message| message.starts_with("Parse PGWEIR_"));
    let bind = asked.iter().position(|message| message.starts_with("Bind PGWEIR_"));
    assert!(parse.is_some() && parse < bind, "the server forgot it: it must be prepared again: {asked:?}");
}

#[test]
fn statements_do_not_outlive_server_and_client() {
    let mut rig = Rig::new("max_prepared_statements = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "a", "select 'a'");
    // The Close of a is on its way when the server dies.
    rig.send(client, &group(&[fe::parse("b", "select 'b'")]));
    rig.eof(server);
    assert!(rig.is_closed(client));
    let console = rig.console();
    let memory = rig.command(console, "SHOW MEM");
    let row = memory.iter().find(|row| row.contains("server_prepared_statement_cache")).expect("its row");
    assert_eq!(row.split(',').nth(2), Some("0"), "{row}");
}

#[test]
fn unnamed_statements_and_portals_pass_untouched() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(
        client,
        &group(&[
            fe::parse("", "select 1"),
            fe::bind(""),
            fe::describe_portal(),
            fe::execute(),
            fe::close(""),
        ]),
    );
    assert_eq!(rig.gets(server), ["Parse  select 1", "Bind ", "Describe P ", "Execute", "Close S ", "Sync"]);
}

#[test]
fn session_pooling_does_not_touch_names() {
    let mut rig = Rig::with("", "app = host=pg pool_mode=session", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &group(&[fe::parse("s1", "select 1"), fe::bind("s1"), fe::close("s1")]));
    assert_eq!(rig.gets(server), ["Parse s1 select 1", "Bind s1", "Close S s1", "Sync"]);
}

/// The client's statement is there on another server: the reload has closed the one that it had.
fn is_prepared_elsewhere(rig: &mut Rig, client: End, server: End) {
    assert!(rig.is_closed(server));
    rig.send(client, &group(&[fe::bind("s1")]));
    let other = rig.dialed();
    rig.greet(other);
    let sent = rig.gets(other);
    assert_eq!(sent.first().map(String::as_str), Some("Parse PGWEIR_1 select 1"), "{sent:?}");
}

#[test]
fn names_survive_a_reload_to_session_pooling() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "s1", "select 1");
    rig.reload("", "app = host=pg pool_mode=session");
    is_prepared_elsewhere(&mut rig, client, server);
}

#[test]
fn names_survive_a_reload_that_ends_tracking() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    prepare(&mut rig, client, server, "s1", "select 1");
    rig.reload("max_prepared_statements = 0", "app = host=pg");
    is_prepared_elsewhere(&mut rig, client, server);
}

#[test]
fn what_is_prepared_after_a_prepared_deallocate_all_waits_for_it() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    let first = [fe::parse("k", "DEALLOCATE ALL"), fe::bind("k"), fe::execute()];
    rig.send(client, &group(&[first.concat(), fe::parse("k", "select 7"), fe::bind("k")]));
    assert_eq!(rig.gets(server), ["Parse PGWEIR_1 DEALLOCATE ALL", "Bind PGWEIR_1", "Execute", "Flush"]);
    let done = [be::parse_complete(), be::bind_complete(), be::complete("DEALLOCATE ALL")];
    rig.send(server, &done.concat());
    assert_eq!(
        rig.gets(server),
        ["Parse k select 7", "Close S k", "Parse PGWEIR_2 select 7", "Bind PGWEIR_2", "Sync"],
        "the name is free again, as far as the protocol is concerned"
    );
}
