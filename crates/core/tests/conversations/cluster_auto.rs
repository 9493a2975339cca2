//! `route=auto`: what certainly reads goes to a standby, everything else to the primary; and what a standby does not run, the primary runs.

use crate::cluster_reads::Stage;
use crate::rig::{End, be, fe};

/// A client of a database with `route=auto`, with the server of the primary that told what names stand for.
fn auto(main: &str, database: &str) -> (Stage, End, End) {
    auto_at_level(main, database, "read committed")
}

/// The same. A transaction has this isolation level there if nothing names another.
fn auto_at_level(main: &str, database: &str, level: &'static str) -> (Stage, End, End) {
    let mut stage = Stage::new(main);
    stage.rig.catalog = Some(vec![["v", "note_it", ""], ["s", "a_seq", ""], ["i", level, ""]]);
    let client = stage.rig.knock("alice", database);
    let (primary, node) = stage.server();
    assert_eq!(node, 1, "a client is told what the primary says");
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
    (stage, client, primary)
}

/// The same, with a server of a standby that has run one statement.
pub(super) fn balanced(main: &str) -> (Stage, End, End, End) {
    balanced_in(main, "app_auto")
}

pub(super) fn balanced_in(main: &str, database: &str) -> (Stage, End, End, End) {
    balanced_at_level(main, database, "read committed")
}

pub(super) fn balanced_at_level(main: &str, database: &str, level: &'static str) -> (Stage, End, End, End) {
    let (mut stage, client, primary) = auto_at_level(main, database, level);
    stage.rig.send(client, &fe::query("select 0"));
    let (standby, node) = stage.server();
    assert!(node > 1, "it reads");
    assert_eq!(stage.rig.gets(standby), ["Query select 0"]);
    stage.rig.send(standby, &[be::one_row("0"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), answered("0"));
    (stage, client, primary, standby)
}

pub(super) fn answered(value: &str) -> Vec<String> {
    ["Columns", &format!("Row {value}"), "Complete SELECT 1", "Ready I"].map(str::to_owned).to_vec()
}

/// The text runs on this server, and nowhere else.
pub(super) fn runs_on(stage: &mut Stage, client: End, server: End, text: &str) {
    stage.rig.send(client, &fe::query(text));
    assert_eq!(stage.rig.gets(server), [format!("Query {text}")]);
    stage.rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), answered("1"), "{text}");
    stage.dials_nothing();
}

#[test]
fn what_certainly_reads_goes_to_a_standby_and_all_else_to_the_primary() {
    let (mut stage, client, primary, standby) = balanced("");
    for text in ["select a from t", "values (1)", "table t", "with a as (select 1) select * from a"] {
        runs_on(&mut stage, client, standby, text);
    }
    for text in [
        "insert into t values (1)",
        "select a from t for update",
        "select note_it()",
        "select * from a_seq",
        "select pg_is_in_recovery()",
        "select nextval('b')",
        "select 1; select 2",
        "show work_mem",
        "select current_setting('work_mem')",
    ] {
        runs_on(&mut stage, client, primary, text);
    }
    // A transaction is the primary's, whatever is in it.
    stage.runs(client, primary, "begin", "BEGIN", 'T');
    stage.runs(client, primary, "select 1", "SELECT 1", 'T');
    stage.runs(client, primary, "commit", "COMMIT", 'I');
    runs_on(&mut stage, client, standby, "select 1");
}

#[test]
fn the_extended_protocol_goes_by_the_text_too() {
    let (mut stage, client, primary, standby) = balanced("");
    let unnamed = |text: &str| [fe::parse("", text), fe::bind(""), fe::execute(), fe::sync()].concat();
    stage.rig.send(client, &unnamed("select 1"));
    assert_eq!(stage.rig.gets(standby).len(), 4);
    let done =
        [be::parse_complete(), be::bind_complete(), be::row("1"), be::complete("SELECT 1"), be::ready('I')];
    stage.rig.send(standby, &done.concat());
    assert_eq!(stage.rig.gets(client).len(), 5);
    stage.rig.send(client, &unnamed("insert into t values (1)"));
    assert_eq!(stage.rig.gets(primary).len(), 4);
    stage.rig.send(
        primary,
        &[be::parse_complete(), be::bind_complete(), be::complete("INSERT 0 1"), be::ready('I')].concat(),
    );
    stage.rig.gets_raw(client);
    // A statement with a name was prepared on the primary; a standby gets it when it first runs there.
    stage.rig.send(client, &[fe::parse("s", "select $1"), fe::sync()].concat());
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &[be::parse_complete(), be::ready('I')].concat());
    stage.rig.gets_raw(client);
    let run = [fe::bind("s"), fe::execute(), fe::sync()].concat();
    stage.rig.send(client, &run);
    let sent = stage.rig.gets(standby);
    assert!(sent.len() == 4 && sent[0].contains("select $1"), "{sent:?}");
    stage.rig.send(standby, &done.concat());
    assert_eq!(stage.rig.gets(client), ["BindComplete", "Row 1", "Complete SELECT 1", "Ready I"]);
    stage.rig.gets_nothing(primary);
}

#[test]
fn a_group_of_two_statements_is_the_primarys() {
    let (mut stage, client, primary, standby) = balanced("");
    let one = |text: &str| [fe::parse("", text), fe::bind(""), fe::execute()].concat();
    // The second one could fail at a standby when the client has the answer to the first.
    stage.rig.send(client, &[one("select 1"), one("select 2"), fe::sync()].concat());
    assert_eq!(stage.rig.gets(primary).len(), 7);
    stage.rig.gets_nothing(standby);
}

#[test]
fn an_error_of_a_standby_is_not_shown_and_the_primary_runs_the_read() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.rig.send(client, &fe::query("select a from new_table"));
    assert_eq!(stage.rig.gets(standby), ["Query select a from new_table"]);
    let refused =
        [be::notice("x"), be::error("42P01", "relation \"new_table\" does not exist"), be::ready('I')]
            .concat();
    stage.rig.send_bytewise(standby, &refused);
    assert_eq!(stage.rig.gets(primary), ["Query select a from new_table"]);
    stage.rig.gets_nothing(client);
    stage.rig.send(primary, &[be::one_row("7"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), answered("7"));
    assert!(!stage.rig.is_closed(standby));
    runs_on(&mut stage, client, standby, "select 2");
    // What the primary says of it is the client's.
    stage.rig.send(client, &fe::query("select a from no_table"));
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &[be::error("42P01", "none"), be::ready('I')].concat());
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &[be::error("42P01", "none"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), ["ERROR 42P01 none", "Ready I"]);
}

#[test]
fn a_statement_that_cannot_be_prepared_on_a_standby_runs_on_the_primary() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.rig.send(client, &[fe::parse("s", "select a from new_table"), fe::sync()].concat());
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &[be::parse_complete(), be::ready('I')].concat());
    stage.rig.gets_raw(client);
    stage.rig.send(client, &[fe::bind("s"), fe::execute(), fe::sync()].concat());
    assert_eq!(stage.rig.gets(standby).len(), 4);
    stage.rig.send(standby, &[be::error("42P01", "none"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(primary).len(), 3, "it is prepared there");
    stage.rig.send(
        primary,
        &[be::bind_complete(), be::row("1"), be::complete("SELECT 1"), be::ready('I')].concat(),
    );
    assert_eq!(stage.rig.gets(client), ["BindComplete", "Row 1", "Complete SELECT 1", "Ready I"]);
}

#[test]
fn what_comes_ahead_of_the_first_row_is_held_back_and_what_follows_is_not() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.rig.send(client, &fe::query("select a from t"));
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &be::columns());
    stage.rig.gets_nothing(client);
    stage.rig.send(standby, &be::row("1"));
    assert_eq!(stage.rig.gets(client), ["Columns", "Row 1"]);
    let conflict = be::error("40001", "canceling statement due to conflict with recovery");
    stage.rig.send(standby, &[conflict, be::ready('I')].concat());
    let told = stage.rig.gets(client);
    assert_eq!(told, ["ERROR 40001 canceling statement due to conflict with recovery", "Ready I"]);
    stage.rig.gets_nothing(primary);
    // No rows at all.
    stage.rig.send(client, &fe::query("select a from t"));
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &[be::columns(), be::complete("SELECT 0"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), ["Columns", "Complete SELECT 0", "Ready I"]);
}

#[test]
fn a_cancelled_read_is_not_run_again() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.rig.send(client, &fe::query("select a from t"));
    stage.rig.gets_raw(standby);
    stage.rig.send(
        standby,
        &[be::error("57014", "canceling statement due to user request"), be::ready('I')].concat(),
    );
    assert_eq!(stage.rig.gets(client), ["ERROR 57014 canceling statement due to user request", "Ready I"]);
    stage.rig.gets_nothing(primary);
}

#[test]
fn a_read_whose_standby_is_lost_runs_on_the_primary() {
    for shown in [false, true] {
        for last_words in
            [None, Some(be::fatal("57P01", "terminating connection due to administrator command"))]
        {
            let (mut stage, client, primary, standby) = balanced("");
            stage.rig.send(
                client,
                &[fe::query("select a from t"), fe::query("insert into t values (1)")].concat(),
            );
            assert_eq!(stage.rig.gets(standby), ["Query select a from t"], "the second statement waits");
            stage.rig.send(standby, &be::columns());
            if shown {
                stage.rig.send(standby, &be::row("1"));
                stage.rig.gets_raw(client);
            }
            if let Some(words) = &last_words {
                stage.rig.send(standby, words);
            }
            stage.rig.eof(standby);
            if shown {
                assert!(stage.rig.is_closed(client), "it has seen a row");
                continue;
            }
            assert_eq!(stage.rig.gets(primary)[0], "Query select a from t");
            stage.rig.gets_nothing(client);
            stage.rig.send(primary, &[be::one_row("7"), be::ready('I')].concat());
            assert_eq!(stage.rig.gets(client), answered("7"));
            assert!(stage.rig.is_closed(standby));
        }
    }
}

#[test]
fn statements_that_follow_a_read_are_routed_one_by_one() {
    let (mut stage, client, primary, standby) = balanced("");
    let texts = ["select 1", "insert into t values (1)", "select 2"];
    stage.rig.send(client, &texts.map(fe::query).concat());
    for (text, server) in texts.into_iter().zip([standby, primary, standby]) {
        if server == standby {
            assert_eq!(stage.rig.gets(server), [format!("Query {text}")]);
            stage.rig.gets_nothing(primary);
        } else {
            assert_eq!(stage.rig.gets(server)[0], format!("Query {text}"));
        }
        stage.rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
        assert_eq!(stage.rig.gets(client), ["Complete SELECT 1", "Ready I"]);
        if server == primary {
            break;
        }
    }
}

/// Three clients whose reads follow each other on one server of a standby, and the primary's server.
fn riders() -> (Stage, [End; 3], End, End) {
    let (mut stage, first, primary, standby) = balanced("multiplex_depth = 8\ndefault_pool_size = 1");
    stage.command("DRAIN NODE main.m2");
    let second = stage.rig.client_with(&[("user", "alice"), ("database", "app_auto")]);
    let third = stage.rig.client_with(&[("user", "alice"), ("database", "app_auto")]);
    let standby = if stage.rig.is_closed(standby) {
        stage.rig.send(first, &fe::query("select 0"));
        let (standby, _) = stage.server();
        stage.rig.gets_raw(standby);
        stage.rig.send(standby, &[be::one_row("0"), be::ready('I')].concat());
        stage.rig.gets_raw(first);
        standby
    } else {
        standby
    };
    let clients = [first, second, third];
    for client in clients {
        stage.rig.send(client, &fe::query("select 0"));
    }
    assert_eq!(stage.rig.gets(standby).len(), 3, "they follow each other");
    (stage, clients, primary, standby)
}

#[test]
fn riders_at_a_standby_run_on_the_primary_if_it_refuses_them() {
    let (mut stage, [first, second, third], primary, standby) = riders();
    let refused = [be::error("40001", "conflict"), be::ready('I')].concat();
    stage.rig.send(standby, &refused);
    assert_eq!(stage.rig.gets(primary), ["Query select 0"]);
    stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(first), answered("1"));
    stage.rig.send(standby, &[refused, be::one_row("3"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(third), answered("3"), "one that runs is the standby's");
    assert_eq!(stage.rig.gets(primary), ["Query select 0"]);
    stage.rig.send(primary, &[be::one_row("2"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(second), answered("2"));
}

#[test]
fn a_read_whose_cancel_comes_too_late_is_not_shown_the_standbys_error() {
    let (mut stage, [first, second, _], primary, standby) = riders();
    stage.rig.cancel(first);
    let late = stage.rig.dialed();
    stage.rig.connect(late);
    stage.rig.send(standby, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(first), answered("1"));
    // The next one might be hit by that. Then its client asks for a cancel itself.
    stage.rig.cancel(second);
    stage.rig.send(standby, &[be::error("40001", "conflict"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(primary), ["Query select 0"]);
    stage.rig.send(primary, &[be::one_row("2"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(second), answered("2"));
}

/// The client sets its time zone, on the primary.
fn goes_to_tokyo(stage: &mut Stage, client: End, primary: End) {
    stage.rig.send(client, &fe::query("set timezone = 'Asia/Tokyo'"));
    stage.rig.gets_raw(primary);
    stage.rig.send(
        primary,
        &[be::complete("SET"), be::parameter("TimeZone", "Asia/Tokyo"), be::ready('I')].concat(),
    );
    stage.rig.gets_nothing(primary);
    stage.rig.gets_raw(client);
}

#[test]
fn a_session_is_brought_to_the_standby_and_to_the_primary() {
    let (mut stage, client, primary, standby) = balanced("");
    goes_to_tokyo(&mut stage, client, primary);
    stage.rig.send(client, &fe::query("select a from new_table"));
    let sent = stage.rig.gets(standby);
    assert_eq!(sent.last().map(String::as_str), Some("Query select a from new_table"), "{sent:?}");
    let replayed = be::replayed((sent.len() - 1) / 3 - 2);
    let told = be::parameter("TimeZone", "Asia/Tokyo");
    stage.rig.send(standby, &[replayed, be::error("42P01", "none"), told, be::ready('I')].concat());
    assert_eq!(stage.rig.gets(primary), ["Query select a from new_table"]);
    stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), answered("1"));
    runs_on(&mut stage, client, standby, "select 2");
}

#[test]
fn a_session_that_cannot_be_brought_to_a_standby_reads_from_the_primary() {
    let (mut stage, client, primary, standby) = balanced("");
    goes_to_tokyo(&mut stage, client, primary);
    stage.rig.send(client, &fe::query("select 1"));
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &[be::error("22023", "no such zone"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(primary), ["Query select 1"]);
    stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), answered("1"));
}

#[test]
fn what_a_standby_cannot_prepare_by_sql_stays_prepared() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.runs(client, primary, "prepare p as select a from new_table", "PREPARE", 'I');
    let own = ["p", "p", "prepare p as select a from new_table"];
    let session: [&[&str]; 3] = [&["s", "role", "none"], &["s", "session_authorization", "alice"], &own];
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &be::answer(&session));
    // The session goes ahead of the read, to the other standby. The table is not there yet.
    stage.rig.send(client, &fe::query("select 1"));
    stage.rig.gets_nothing(standby);
    let (standby, _) = stage.server();
    assert_eq!(stage.rig.gets(standby), ["Query prepare p as select a from new_table"]);
    stage.rig.send(standby, &[be::error("42P01", "none"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(primary), ["Query select 1"]);
    stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), answered("1"));
    stage.rig.send(client, &fe::query("execute p"));
    assert_eq!(stage.rig.gets(primary), ["Query execute p"]);
}

#[test]
fn a_text_that_is_no_read_after_all_goes_to_the_primary_from_then_on() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.rig.send(client, &fe::query("select quiet_lock()"));
    assert_eq!(stage.rig.gets(primary), ["Query select quiet_lock()"], "a function that is not known");
    stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("select a from odd_view"));
    stage.rig.gets_raw(standby);
    let refused = be::error("25006", "cannot execute nextval() in a read-only transaction");
    stage.rig.send(standby, &[refused, be::ready('I')].concat());
    assert!(stage.rig.logged("taken for a read"));
    assert_eq!(stage.rig.gets(primary), ["Query select a from odd_view"]);
    // The names are read again before the server is free.
    stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), answered("1"));
    runs_on(&mut stage, client, primary, "select a from odd_view");
    runs_on(&mut stage, client, standby, "select a from t");
    let node = if stage.rig.endpoint(standby).starts_with("10.0.0.2") { "m2" } else { "m3" };
    assert_eq!(stage.second_tries(node), [1, 1]);
    assert_eq!(stage.second_tries("m1"), [0, 0]);
}

#[test]
fn a_standby_that_refuses_much_gets_nothing_for_a_while() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.command("DRAIN NODE main.m3");
    stage.command("DRAIN NODE main.m2");
    stage.command(if stage.rig.is_closed(standby) { "ATTACH NODE main.m2" } else { "" });
    let mut standby = None;
    for _ in 0..21 {
        stage.rig.send(client, &fe::query("select a from t"));
        let server = *standby.get_or_insert_with(|| stage.server().0);
        stage.rig.gets_raw(server);
        stage.rig.send(server, &[be::error("40001", "conflict"), be::ready('I')].concat());
        stage.rig.gets_raw(primary);
        stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
        assert_eq!(stage.rig.gets(client), answered("1"));
    }
    assert_eq!(stage.rig.logged_times("refuses more than a fifth of the reads"), 1);
    runs_on(&mut stage, client, primary, "select a from t");
    stage.pass_us(30_000_000);
    runs_on(&mut stage, client, standby.expect("a standby"), "select a from t");
}

#[test]
fn without_a_standby_reads_run_on_the_primary() {
    let (mut stage, client, primary) = auto("", "app_auto");
    stage.command("DRAIN NODE main.m2");
    stage.command("DRAIN NODE main.m3");
    runs_on(&mut stage, client, primary, "select 1");
}

#[test]
fn in_session_pooling_auto_is_the_primary() {
    let mut stage = Stage::new("pool_mode = session\nserver_reset_query =");
    stage.rig.catalog = Some(vec![["s", "", ""]]);
    let client = stage.rig.knock("alice", "app_auto");
    let (mut own, _) = stage.server();
    stage.answer_watches();
    while !stage.servers.is_empty() {
        own = stage.server().0;
    }
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
    runs_on(&mut stage, client, own, "select 1");
    assert!(stage.rig.endpoint(own).starts_with("10.0.0.1:"));
}

#[test]
fn a_pool_whose_clients_do_not_ask_for_it_is_not_asked_for_names_of_standbys() {
    let mut stage = Stage::new("");
    stage.rig.catalog = None;
    stage.rig.knock("alice", "app_prefer");
    let (standby, _) = stage.server();
    let asked = String::from_utf8_lossy(&stage.rig.raw(standby)).into_owned();
    assert!(!asked.contains("UNION ALL SELECT 's'"), "{asked}");
    stage.rig.knock("alice", "app_auto");
    let (primary, _) = stage.server();
    let asked = String::from_utf8_lossy(&stage.rig.raw(primary)).into_owned();
    assert!(asked.contains("UNION ALL SELECT 's'"), "{asked}");
}

#[test]
fn no_read_goes_to_a_standby_by_what_the_catalog_said_before_a_change() {
    let (mut stage, client, primary, standby) = balanced("");
    runs_on(&mut stage, client, standby, "select 1");
    stage.rig.catalog = None;
    stage.rig.send(client, &fe::query("alter function f() volatile"));
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &[be::complete("ALTER FUNCTION"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), ["Complete ALTER FUNCTION", "Ready I"]);
    assert_eq!(stage.rig.gets(primary).len(), 1, "the catalog is asked");
    stage.rig.send(client, &fe::query("select 2"));
    stage.rig.gets_nothing(standby);
    stage.rig.send(primary, &be::answer(&[&["v", "f", ""], &["r", "", ""], &["s", "", ""]]));
    let ran = stage.rig.gets(primary);
    assert_eq!(ran.last().map(String::as_str), Some("Query select 2"), "it waited: {ran:?}");
    stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), answered("1"));
    runs_on(&mut stage, client, standby, "select 3");
}

#[test]
fn a_read_whose_standby_was_chosen_before_code_was_made_runs_on_the_primary() {
    for is_known_again in [false, true] {
        let (mut stage, client, primary) = auto("default_pool_size = 1", "app_auto");
        stage.rig.send(client, &fe::query("select a from t"));
        let (standby, node) = stage.dialed();
        assert!(node > 1, "it waits for a standby's server");
        let other = stage.rig.knock("alice", "app_auto");
        stage.rig.gets_raw(other);
        stage.rig.catalog = None;
        stage.rig.send(other, &fe::query("create view t"));
        stage.rig.gets_raw(primary);
        stage.rig.send(primary, &[be::complete("CREATE VIEW"), be::ready('I')].concat());
        assert_eq!(stage.rig.gets(other), ["Complete CREATE VIEW", "Ready I"]);
        assert_eq!(stage.rig.gets(primary).len(), 1, "the catalog is asked");
        let catalog = be::answer(&[&["v", "f", ""], &["r", "", ""], &["s", "", ""]]);
        if is_known_again {
            stage.rig.send(primary, &catalog);
        }
        stage.greet(standby, true);
        stage.rig.gets_nothing(standby);
        if !is_known_again {
            stage.rig.send(primary, &catalog);
        }
        let ran = stage.rig.gets(primary);
        assert_eq!(ran.last().map(String::as_str), Some("Query select a from t"), "{ran:?}");
        stage.rig.send(primary, &[be::one_row("1"), be::ready('I')].concat());
        assert_eq!(stage.rig.gets(client), answered("1"));
        runs_on(&mut stage, client, standby, "select 1");
    }
}

#[test]
fn a_hint_goes_before_the_route() {
    let (mut stage, client, primary, standby) = balanced("");
    for text in [
        "/* pgweir: primary */ select 1",
        "select 1 /* pgweir: primary */",
        "/*NO LOAD BALANCE*/ select 1",
        "/* pgweir: primary */ select 1 /* pgweir: standby */",
    ] {
        runs_on(&mut stage, client, primary, text);
    }
    runs_on(&mut stage, client, standby, "/* pgweir: standby */ select pg_is_in_recovery()");
    // PostgreSQL judges, and its word is the client's.
    stage.rig.send(client, &fe::query("insert into t values (1) /* pgweir: standby */"));
    assert_eq!(stage.rig.gets(standby).len(), 1);
    stage.rig.send(standby, &[be::error("25006", "read-only"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), ["ERROR 25006 read-only", "Ready I"]);
    // The whole transaction goes where its first text says.
    stage.runs(client, standby, "begin /* pgweir: standby */", "BEGIN", 'T');
    stage.runs(client, standby, "select 1 /* pgweir: primary */", "SELECT 1", 'T');
    stage.runs(client, standby, "commit", "COMMIT", 'I');
    runs_on(&mut stage, client, standby, "select 1");
}

#[test]
fn a_hint_in_a_prepared_statement_goes_with_it() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.rig.send(client, &[fe::parse("s", "/* pgweir: primary */ select 1"), fe::sync()].concat());
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &[be::parse_complete(), be::ready('I')].concat());
    stage.rig.gets_raw(client);
    for ask in [fe::bind("s"), [fe::describe("s"), fe::bind("s")].concat()] {
        stage.rig.send(client, &[ask, fe::execute(), fe::sync()].concat());
        assert!(stage.rig.gets(primary).len() > 2);
        stage.rig.gets_nothing(standby);
        stage.rig.send(primary, &[be::error("22012", "division"), be::ready('I')].concat());
        stage.rig.gets_raw(client);
    }
}

#[test]
fn a_hint_in_the_text_behind_a_deferred_begin_is_the_transactions() {
    for (begin, first, is_standby) in [
        ("begin", "select 1 /* pgweir: standby */", true),
        ("begin /* pgweir: standby */", "select 1", true),
        ("begin /* pgweir: primary */", "select 1 /* pgweir: standby */", false),
        ("begin", "select 1", false),
    ] {
        let (mut stage, client, primary, standby) = balanced("defer_begin = server");
        stage.rig.send(client, &fe::query(begin));
        assert_eq!(stage.rig.gets(client), ["Complete BEGIN", "Ready T"]);
        stage.rig.send(client, &fe::query(first));
        let (sent, other) = if is_standby { (standby, primary) } else { (primary, standby) };
        assert_eq!(stage.rig.gets(sent).len(), 4, "{begin}; {first}");
        stage.rig.gets_nothing(other);
    }
}

#[test]
fn hints_count_with_every_route_of_a_cluster() {
    let mut stage = Stage::new("");
    let client = stage.rig.knock("alice", "app");
    let (primary, node) = stage.server();
    assert_eq!(node, 1);
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("/* pgweir: standby */ select 1"));
    let (standby, node) = stage.server();
    assert!(node > 1);
    assert_eq!(stage.rig.gets(standby).len(), 1);
    stage.rig.gets_nothing(primary);
}

#[test]
fn the_console_says_where_a_statement_runs_and_which_word_decides() {
    let (mut stage, _client, _primary, _standby) = balanced("");
    let console = stage.rig.console();
    let mut explained = |text: &str| {
        let command = format!("SHOW ROUTE app_auto '{}'", text.replace('\'', "''"));
        let told = stage.rig.command(console, &command);
        told.iter().find(|line| line.starts_with("Row ")).cloned().unwrap_or_else(|| told[0].clone())
    };
    for (text, runs_on, why) in [
        ("select a from t", "standby", "it certainly reads"),
        ("select Note_It(a) from t", "primary", "a word that may do more than read,Note_It"),
        ("select * from a_seq", "primary", "a word that means something else on a standby,a_seq"),
        ("update t set a = 1", "primary", "a word that may do more than read,update"),
        ("select current_setting('x')", "primary", "current_setting"),
        ("/* pgweir: standby */ update t set a = 1", "standby", "the hint"),
        ("/*NO LOAD BALANCE*/ select 1", "primary", "the hint"),
    ] {
        let row = explained(text);
        let expected = format!("Row app_auto,alice,auto,{runs_on},");
        assert!(row.starts_with(&expected) && row.contains(why), "{text}: {row}");
    }
    let told = stage.rig.command(console, "SHOW ROUTE app 'select 1'");
    assert!(told[0].contains("no client of database \"app\" has come yet"), "{told:?}");
    let told = stage.rig.command(console, "SHOW ROUTE nowhere 'select 1'");
    assert!(told[0].contains("no such database"), "{told:?}");
}

#[test]
fn the_configuration_says_of_names_what_the_catalog_does_not() {
    let mut stage = Stage::new("");
    stage.rig.catalog = Some(vec![["v", "note_it", ""], ["s", "", ""]]);
    let client = stage.rig.knock("alice", "app_named");
    let (primary, _) = stage.server();
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("select note_it()"));
    let (standby, node) = stage.server();
    assert!(node > 1, "the operator says that it reads");
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &[be::one_row("0"), be::ready('I')].concat());
    stage.rig.gets_raw(client);
    runs_on(&mut stage, client, primary, "select a from audit_log");
    runs_on(&mut stage, client, standby, "select a from t");
}
