//! Session continuity: a client's session follows it from server to server, or keeps it on one.

use crate::rig::{End, Rig, be, fe};

/// A statement's answer.
pub(crate) fn finish(rig: &mut Rig, server: End, tag: &str) {
    rig.send(server, &[be::complete(tag), be::ready('I')].concat());
}

/// The client sends a text, and the server that has it answers.
pub(crate) fn run(rig: &mut Rig, client: End, server: End, text: &str) {
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
    // No client has the server before the answer is there.
    rig.send(two, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(server, &be::answer(&[&["a, b"]]));
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

/// A server's session has a role by number, and its name may stand for another one now.
#[test]
fn a_server_with_a_role_ends_when_a_role_is_dropped() {
    let mut rig = Rig::new("default_pool_size = 2");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "set role app");
    asked(&mut rig, server);
    rig.send(server, &be::answer(&[&["s", "role", "app"]]));
    rig.send(one, &fe::query("begin"));
    assert_eq!(rig.gets(server), ["Query begin"]);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.send(two, &fe::query("drop role app"));
    let other = rig.dialed();
    rig.greet(other);
    assert_eq!(rig.gets(other), ["Query drop role app"]);
    finish(&mut rig, other, "DROP ROLE");
    assert!(!rig.is_closed(server), "its transaction goes on");
    rig.send(one, &fe::query("rollback"));
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    assert!(rig.is_closed(server));
    assert!(!rig.is_closed(other), "it has no role");
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
    rig.send(server, &be::answer(&[&["s", "role", "none"], &["t", "", ""]]));
    rig.send(two, &fe::query("select 2"));
    rig.gets_nothing(server);
    run(&mut rig, one, server, "SELECT 1");
    rig.gets_nothing(server);
    run(&mut rig, one, server, "DROP TABLE t");
    asked(&mut rig, server);
    rig.send(server, &be::answer(&[&["s", "role", "none"]]));
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn what_a_pinned_client_leaves_behind_is_discarded() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "CREATE TEMP TABLE t (a int)");
    asked(&mut rig, server);
    rig.send(server, &be::answer(&[&["t", "", ""]]));
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
    rig.send(server, &be::answer(&[&["1MB"]]));
    finish(&mut rig, server, "DISCARD ALL");
    rig.send(two, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_session_that_cannot_be_told_keeps_the_server() {
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

/// The statements that take a session back run under its timeouts.
#[test]
fn a_timeout_of_the_client_before_ends_no_statement_of_the_next_one() {
    for (setting, is_timeout) in [("statement_timeout", true), ("work_mem", false)] {
        let mut rig = Rig::new("default_pool_size = 1");
        let (one, two) = (rig.client("alice"), rig.client("alice"));
        let server = rig.dialed();
        run(&mut rig, one, server, &format!("SET {setting} = 1"));
        rig.gets(server);
        rig.send(server, &be::answer(&[&["1"]]));
        rig.send(two, &fe::query("select 2"));
        rig.gets(server);
        rig.send(server, &be::error("57014", "canceling statement due to statement timeout"));
        if !is_timeout {
            // Only a cancel request for it, or its own timeout, ends it.
            assert_eq!(rig.gets(two), ["ERROR 57014 canceling statement due to statement timeout"]);
            continue;
        }
        rig.gets_nothing(two);
        assert!(rig.is_closed(server));
        let another = rig.dialed();
        rig.greet(another);
        assert_eq!(rig.gets(another), ["Query select 2"]);
        finish(&mut rig, another, "SELECT 1");
        assert_eq!(rig.gets(two), ["Complete SELECT 1", "Ready I"]);
    }
}

/// The server ends the session while it is asked what the session holds, or before it got the question.
#[test]
fn the_end_of_a_session_that_is_looked_at_is_told_as_the_server_says_it() {
    for is_asked_first in [true, false] {
        let mut rig = Rig::new("");
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query("SET a.b = 1"));
        rig.gets(server);
        let (done, end) =
            ([be::complete("SET"), be::ready('I')].concat(), be::fatal("57P01", "terminating connection"));
        if is_asked_first {
            rig.send(server, &done);
            assert!(!rig.raw(server).is_empty(), "it is asked");
            rig.send(server, &end);
        } else {
            rig.send(server, &[done, end].concat());
        }
        assert_eq!(rig.gets(client), ["Complete SET", "Ready I", "FATAL 57P01 terminating connection"]);
        assert!(rig.is_closed(client) && rig.is_closed(server));
    }
}

#[test]
fn more_pins_than_allowed_are_refused_with_the_reason() {
    let mut rig = Rig::new("max_pinned = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let first = rig.dialed();
    run(&mut rig, one, first, "CREATE TEMP TABLE t (a int)");
    asked(&mut rig, first);
    rig.send(first, &be::answer(&[&["t", "", ""]]));
    rig.send(two, &fe::query("CREATE TEMP TABLE u (a int)"));
    let second = rig.dialed();
    rig.greet(second);
    rig.gets(second);
    finish(&mut rig, second, "CREATE TABLE");
    asked(&mut rig, second);
    rig.gets(two);
    rig.send(second, &be::answer(&[&["t", "", ""]]));
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
    rig.send(server, &be::answer(&[&["t", "", ""]]));
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
    rig.send(server, &[be::answer(&[&["1MB"]]), be::answer(&[&["1MB"]])].concat());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    // The next one with the same wishes needs no server.
    let next = rig.accept();
    rig.send(next, &startup);
    rig.gets_nothing(server);
    assert_eq!(rig.gets(next).last().map(String::as_str), Some("Ready I"));
}

/// What puts back the startup value of [`resetting`]'s client.
const PUT_BACK: &str = "Query SET \"work_mem\"='1MB';";

/// A client with a startup value has sent something that resets it.
fn resetting(messages: &[u8]) -> (Rig, End, End) {
    let mut rig = Rig::new("default_pool_size = 1");
    rig.client("alice");
    let server = rig.dialed();
    let client = rig.accept();
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), ("options", "-c work_mem=1MB")]));
    rig.gets(server);
    rig.send(server, &[be::answer(&[&["1MB"]]), be::answer(&[&["1MB"]])].concat());
    rig.gets(client);
    rig.send(client, messages);
    (rig, client, server)
}

#[test]
fn reset_goes_back_to_what_the_client_started_with_before_anything_else_runs() {
    let (mut rig, client, server) =
        resetting(&[fe::query("RESET work_mem"), fe::query("show work_mem")].concat());
    assert_eq!(rig.gets(server), ["Query RESET work_mem"], "what follows waits");
    rig.send(client, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(server, &[be::complete("RESET"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete RESET", "Ready I"]);
    assert_eq!(rig.gets(server), [PUT_BACK, "Query show work_mem", "Query select 2"]);
}

#[test]
fn the_sync_of_a_reset_that_was_answered_for_a_flush_is_not_kept_back() {
    let group = [fe::parse("", "RESET ALL"), fe::bind(""), fe::execute(), fe::flush()].concat();
    let (mut rig, client, server) = resetting(&group);
    rig.gets(server);
    rig.send(server, &[be::parse_complete(), be::bind_complete(), be::complete("RESET")].concat());
    rig.gets(client);
    rig.send(client, &[fe::sync(), fe::query("select 2")].concat());
    assert_eq!(rig.gets(server), ["Sync"], "what is behind it waits");
    rig.send(server, &be::ready('I'));
    assert_eq!(rig.gets(client), ["Ready I"]);
    assert_eq!(rig.gets(server), [PUT_BACK, "Query select 2"]);
}

#[test]
fn discard_of_something_else_puts_nothing_back() {
    for what in ["PLANS", "TEMP", "SEQUENCES"] {
        let (mut rig, _, server) =
            resetting(&[fe::query(&format!("DISCARD {what}")), fe::query("select 2")].concat());
        assert_eq!(rig.gets(server), [format!("Query DISCARD {what}"), "Query select 2".to_owned()]);
    }
}

#[test]
fn a_reset_within_a_transaction_is_followed_within_it() {
    let messages = [
        fe::query("begin"),
        fe::parse("", "RESET ALL"),
        fe::bind(""),
        fe::execute(),
        fe::sync(),
        fe::query("commit"),
    ];
    let (mut rig, client, server) = resetting(&messages.concat());
    assert_eq!(rig.gets(server), ["Query begin", "Parse  RESET ALL", "Bind ", "Execute", "Sync"]);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets_nothing(server);
    let done = [be::parse_complete(), be::bind_complete(), be::complete("RESET"), be::ready('T')];
    rig.send(server, &done.concat());
    // The transaction's unnamed statement and portal stay what they are.
    let aside = ["Bind PGWEIR_ASIDE", "Execute", "Close P PGWEIR_ASIDE", "Close S PGWEIR_ASIDE", "Sync"];
    let put_back = "Parse PGWEIR_ASIDE SET \"work_mem\"='1MB';";
    let first = ["Close S PGWEIR_ASIDE", put_back];
    assert_eq!(rig.gets(server), [&first[..], &aside[..], &["Query commit"]].concat());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready T"));
}

#[test]
fn a_reset_that_failed_is_followed_by_nothing() {
    let (mut rig, client, server) =
        resetting(&[fe::query("select 1/0"), fe::query("DISCARD ALL"), fe::query("show work_mem")].concat());
    assert_eq!(rig.gets(server), ["Query select 1/0", "Query DISCARD ALL"]);
    rig.send(server, &[be::error("22012", "division by zero"), be::ready('I')].concat());
    rig.gets_nothing(server);
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    let asked = rig.gets(server);
    assert!(
        asked.len() == 1 && asked[0] != PUT_BACK,
        "what the session holds is asked for at once: {asked:?}"
    );
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn an_error_before_the_reset_does_not_concern_it() {
    let (mut rig, _, server) =
        resetting(&[fe::query("select 1/0"), fe::query("RESET ALL"), fe::query("show work_mem")].concat());
    rig.gets(server);
    rig.send(server, &[be::error("22012", "division by zero"), be::ready('I')].concat());
    rig.send(server, &[be::complete("RESET ALL"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), [PUT_BACK, "Query show work_mem"]);
}

#[test]
fn what_puts_back_startup_values_is_not_hit_by_a_cancel() {
    let (mut rig, client, server) = resetting(&fe::query("RESET ALL"));
    rig.gets(server);
    let early = rig.cancel(client);
    let cancel = rig.dialed();
    assert_ne!(rig.connect(cancel), "");
    rig.send(server, &[be::complete("RESET ALL"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete RESET ALL", "Ready I"]);
    rig.send(client, &fe::query("show work_mem"));
    rig.gets_nothing(server);
    rig.eof(cancel);
    assert!(rig.is_closed(early));
    assert_eq!(rig.gets(server), [PUT_BACK, "Query show work_mem"]);
}

#[test]
fn a_cancel_that_comes_while_startup_values_are_put_back_is_not_sent() {
    let (mut rig, client, server) = resetting(&fe::query("RESET ALL"));
    rig.gets(server);
    rig.send(server, &[be::complete("RESET ALL"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), [PUT_BACK]);
    let late = rig.cancel(client);
    let cancel = rig.dialed();
    assert_eq!(rig.connect(cancel), "");
    assert!(rig.is_closed(late));
}

#[test]
fn a_client_that_leaves_meanwhile_costs_no_server() {
    let (mut rig, client, server) = resetting(&fe::query("RESET ALL"));
    rig.gets(server);
    rig.send(server, &[be::complete("RESET"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), [PUT_BACK]);
    rig.send(client, &fe::terminate());
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 1"));
    rig.send(server, &be::answer(&[&["1MB"]]));
    rig.gets_nothing(server);
    finish(&mut rig, server, "DISCARD ALL");
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn the_data_of_a_copy_does_not_wait_for_a_reset_before_it() {
    let data = [fe::copy_data(b"1\n"), fe::copy_done(), fe::query("select 2")];
    let (mut rig, client, server) = resetting(&fe::query("RESET work_mem; COPY t FROM STDIN"));
    rig.gets(server);
    rig.send(server, &[be::complete("RESET"), be::copy_in()].concat());
    rig.gets(client);
    rig.send(client, &data.concat());
    assert_eq!(rig.gets(server), ["CopyData 1\n", "CopyDone"]);
    rig.send(server, &[be::complete("COPY 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), [PUT_BACK, "Query select 2"]);
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
    rig.send(server, &[refused, be::answer(&[&["on"]])].concat());
    assert_eq!(rig.refusal(client), "FATAL 22023 parameter \"geqo\" requires a Boolean value");
    assert!(!rig.is_closed(server));
}

/// A rig with a client that has run a SET twice, so that the pool knows what it does.
fn known(text: &str) -> (Rig, End, End) {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    let asks = "Query SELECT pg_catalog.current_setting('search_path',true)";
    run(&mut rig, client, server, text);
    assert_eq!(rig.gets(server), [asks]);
    rig.send(server, &be::answer(&[&["a"]]));
    run(&mut rig, client, server, text);
    let probe = "Query SET LOCAL search_path = a;SELECT pg_catalog.current_setting('search_path',true)";
    assert_eq!(rig.gets(server), [asks, probe]);
    rig.send(server, &[be::answer(&[&["a"]]), be::complete("SET"), be::answer(&[&["a"]])].concat());
    (rig, client, server)
}

#[test]
fn what_a_set_does_is_asked_until_it_is_known() {
    let (mut rig, client, server) = known("SET search_path = a");
    run(&mut rig, client, server, "SET search_path = a");
    rig.gets_nothing(server);
    // It is still the client's own, and no other client has it.
    let other = rig.client("alice");
    rig.send(other, &fe::query("SET search_path = a"));
    let reset = "SELECT pg_catalog.set_config('search_path',NULL,false);";
    assert_eq!(rig.gets(server), fe::shown_replay(&[reset], &["Query SET search_path = a"]));
    rig.send(server, &be::replayed(1));
    finish(&mut rig, server, "SET");
    rig.gets_nothing(server);
    run(&mut rig, client, server, "select 1");
}

#[test]
fn a_set_in_a_block_counts_when_it_is_committed() {
    let (mut rig, client, server) = known("SET search_path = a");
    let step = |rig: &mut Rig, text: &str, tag: &str, status: char| {
        rig.send(client, &fe::query(text));
        assert_eq!(rig.gets(server), [format!("Query {text}")]);
        rig.send(server, &[be::complete(tag), be::ready(status)].concat());
    };
    let set = |rig: &mut Rig, end: (&str, &str)| {
        step(rig, "BEGIN", "BEGIN", 'T');
        step(rig, "SET search_path = a", "SET", 'T');
        step(rig, end.0, end.1, 'I');
    };
    set(&mut rig, ("COMMIT", "COMMIT"));
    rig.gets_nothing(server);
    // Anything that was rolled back, or that failed, is a matter for the server to tell: a value alone does
    // not say which client it belongs to.
    set(&mut rig, ("COMMIT", "ROLLBACK"));
    asked(&mut rig, server);
}

#[test]
fn a_set_that_is_refused_leaves_nothing_to_take_back() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    let statement = fe::query("SET log_statement = 'all'");
    let group = [fe::parse("", "SET port = 1"), fe::bind(""), fe::execute(), fe::sync()].concat();
    for bytes in [statement, group] {
        rig.send(one, &bytes);
        rig.gets(server);
        rig.send(server, &[be::error("42501", "permission denied"), be::ready('I')].concat());
        asked(&mut rig, server);
        rig.send(server, &be::answer(&[]));
        rig.gets(one);
    }
    run(&mut rig, two, server, "select 2");
}

#[test]
fn of_what_may_not_have_been_set_a_value_is_no_answer() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    let group = [fe::parse("", "SET work_mem = 1"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let done = [be::parse_complete(), be::bind_complete(), be::complete("SET"), be::ready('I')].concat();
    rig.send(client, &group);
    rig.gets(server);
    rig.send(server, &done);
    asked(&mut rig, server);
    rig.send(server, &be::answer(&[&["s", "work_mem", "1kB"]]));
    rig.gets(client);
    // From here on it is known that this user can set it, and take it back.
    rig.send(client, &group);
    rig.gets(server);
    rig.send(server, &done);
    assert_eq!(rig.gets(server), ["Query SELECT pg_catalog.current_setting('work_mem',true)"]);
}

#[test]
fn a_set_of_the_extended_protocol_is_asked_for() {
    let (mut rig, client, server) = known("SET search_path = a");
    let group = [fe::parse("", "SET search_path = a"), fe::bind(""), fe::execute(), fe::sync()].concat();
    rig.send(client, &group);
    rig.gets(server);
    let done = [be::parse_complete(), be::bind_complete(), be::complete("SET"), be::ready('I')];
    rig.send(server, &done.concat());
    assert_eq!(rig.gets(server), ["Query SELECT pg_catalog.current_setting('search_path',true)"]);
}

#[test]
fn a_probe_that_fails_changes_nothing() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    for round in 0..3 {
        run(&mut rig, client, server, "SET search_path = a");
        let asked = rig.gets(server);
        assert_eq!(asked.len(), if round == 0 { 1 } else { 2 }, "{asked:?}");
        rig.send(server, &be::answer(&[&["a"]]));
        if round > 0 {
            rig.send(server, &[be::error("42501", "permission denied"), be::ready('I')].concat());
        }
    }
    run(&mut rig, client, server, "select 1");
}

/// A client that has prepared `p` by SQL; another one has used its server since.
fn prepared_by_sql(rig: &mut Rig, text: &str) -> (End, End, End) {
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(rig, client, server, text);
    asked(rig, server);
    rig.send(server, &be::answer(&[&["p", "p", text]]));
    rig.send(other, &fe::query("select 2"));
    assert_eq!(rig.gets(server), fe::shown_replay(&["DEALLOCATE \"p\";"], &["Query select 2"]));
    rig.send(server, &be::replayed(1));
    finish(rig, server, "SELECT 0");
    rig.gets(other);
    (client, other, server)
}

#[test]
fn what_was_prepared_by_sql_is_prepared_again_elsewhere() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, _, server) = prepared_by_sql(&mut rig, "PREPARE p AS SELECT 1");
    rig.send(client, &fe::query("EXECUTE p"));
    assert_eq!(rig.gets(server), ["Query PREPARE p AS SELECT 1"]);
    finish(&mut rig, server, "PREPARE");
    assert_eq!(rig.gets(server), ["Query EXECUTE p"]);
    finish(&mut rig, server, "SELECT 1");
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    // It is known what that did; of another one nothing is.
    run(&mut rig, client, server, "EXECUTE p");
    rig.gets_nothing(server);
    run(&mut rig, client, server, "EXECUTE q");
    asked(&mut rig, server);
}

#[test]
fn a_statement_that_cannot_be_prepared_any_more_is_gone_for_its_client_alone() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, other, server) = prepared_by_sql(&mut rig, "PREPARE p AS SELECT x FROM t");
    rig.send(client, &fe::query("EXECUTE p"));
    rig.gets(server);
    rig.send(server, &[be::error("42P01", "relation \"t\" does not exist"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query EXECUTE p"]);
    rig.send(server, &[be::error("26000", "no such statement"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 26000 no such statement", "Ready I"]);
    asked(&mut rig, server);
    rig.send(server, &be::answer(&[&["s", "role", "none"]]));
    run(&mut rig, other, server, "select 2");
}

#[test]
fn what_is_more_than_a_prepare_keeps_the_server() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    let text = "PREPARE p AS SELECT 1; SELECT 2";
    run(&mut rig, client, server, text);
    asked(&mut rig, server);
    rig.send(server, &be::answer(&[&["p", "p", text]]));
    rig.send(other, &fe::query("select 2"));
    rig.gets_nothing(server);
}

#[test]
fn a_server_that_is_lost_takes_along_what_its_client_kept_and_says_so() {
    for (said, told) in [
        (None, "FATAL 08006 server conn crashed?"),
        (Some(be::fatal("57P01", "terminating connection")), "FATAL 57P01 terminating connection"),
    ] {
        let mut rig = Rig::new("default_pool_size = 1");
        let (one, two) = (rig.client("alice"), rig.client("alice"));
        let server = rig.dialed();
        run(&mut rig, one, server, "CREATE TEMP TABLE t (a int)");
        asked(&mut rig, server);
        rig.send(server, &be::answer(&[&["t", "", ""]]));
        if let Some(said) = &said {
            rig.send(server, said);
        }
        rig.eof(server);
        let raw = rig.raw(one);
        let detail = b"Lost with the server, which this client kept: temporary objects.";
        assert!(raw.windows(detail.len()).any(|part| part == detail), "{}", raw.escape_ascii());
        let words = told.split_once(' ').map(|(_, rest)| rest.split_once(' ').map_or(rest, |(_, text)| text));
        let words = words.unwrap_or_default().as_bytes();
        assert!(raw.windows(words.len()).any(|part| part == words), "{}", raw.escape_ascii());
        assert!(rig.is_closed(one));
        rig.send(two, &fe::query("select 2"));
        let fresh = rig.dialed();
        rig.greet(fresh);
        assert_eq!(rig.gets(fresh), ["Query select 2"]);
    }
}

#[test]
fn two_clients_set_the_same_parameter_in_turn_forever() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    let clients = [rig.client("alice"), rig.client("alice")];
    let server = rig.dialed();
    let mut carried = None;
    for turn in 0..100_000_u32 {
        let who = (turn % 2) as usize;
        let client = clients[who];
        // Each sets its own value once, and from then on finds it.
        if turn < 2 {
            run(&mut rig, client, server, &format!("SET app.who = 'c{who}'"));
            assert_eq!(rig.gets(server).len(), 1, "the server is asked");
            rig.send(server, &be::answer(&[&[&format!("c{who}")]]));
            carried = Some(who);
            if turn == 0 {
                // No other client has the value.
                rig.send(clients[1], &fe::query("select 0"));
                let reset = "SELECT pg_catalog.set_config('app.who',NULL,false);";
                assert_eq!(rig.gets(server), fe::shown_replay(&[reset], &["Query select 0"]));
                rig.send(server, &be::replayed(1));
                finish(&mut rig, server, "SELECT 0");
                rig.gets(clients[1]);
            }
            continue;
        }
        assert_ne!(carried.replace(who), Some(who));
        rig.send(client, &fe::query("select 1"));
        let raw = rig.raw(server);
        let own = format!("set_config('app.who','c{who}',false)");
        let at = raw.windows(own.len()).position(|part| part == own.as_bytes());
        assert!(at.is_some() && raw.ends_with(b"select 1\0"), "turn {turn}: {}", raw.escape_ascii());
        rig.send(server, &be::replayed(1));
        finish(&mut rig, server, "SELECT 0");
        rig.raw(client);
    }
}

#[test]
fn a_client_that_keeps_its_server_is_told_of_a_name_in_use_by_sql() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    for (text, held) in [("PREPARE p AS SELECT 1", false), ("SELECT pg_advisory_lock(1)", true)] {
        run(&mut rig, client, server, text);
        asked(&mut rig, server);
        let prepared: &[&str] = &["p", "p", "PREPARE p AS SELECT 1"];
        let rows: Vec<&[&str]> = if held { vec![prepared, &["a", "", ""]] } else { vec![prepared] };
        rig.send(server, &be::answer(&rows));
    }
    rig.send(client, &[fe::parse("p", "select 2"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Parse p select 2", "Close S p", "Parse PGWEIR_1 select 2", "Sync"]);
    rig.send(server, &[be::error("42P05", "\"p\" already exists"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 42P05 \"p\" already exists", "Ready I"]);
    // Of another name it is known that there is none.
    rig.send(client, &[fe::parse("q", "select 2"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Parse PGWEIR_2 select 2", "Sync"]);
}

#[test]
fn after_a_close_of_what_sql_prepared_the_server_is_asked_whether_the_name_is_free() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, client, server, "PREPARE p AS SELECT 1");
    asked(&mut rig, server);
    rig.send(server, &be::answer(&[&["p", "p", "PREPARE p AS SELECT 1"]]));
    let parse = fe::parse("p", "select 2");
    rig.send(client, &[fe::bind("p"), fe::close("p"), fe::sync(), parse, fe::sync()].concat());
    let tried = ["Parse p select 2", "Close S p", "Parse PGWEIR_1 select 2", "Sync"];
    assert_eq!(rig.gets(server)[..], [&["Bind p", "Close S p", "Sync"][..], &tried].concat());
    rig.send(server, &[be::bind_complete(), be::close_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["BindComplete", "CloseComplete", "Ready I"]);
    rig.send(
        server,
        &[be::parse_complete(), be::close_complete(), be::parse_complete(), be::ready('I')].concat(),
    );
    asked(&mut rig, server);
    rig.send(server, &be::answer(&[]));
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
}
