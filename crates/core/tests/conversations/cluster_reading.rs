//! `route=auto`: transactions that read at a standby, from their BEGIN to their end.

use crate::cluster_auto::{self, answered, runs_on};
use crate::cluster_reads::Stage;
use crate::rig::{End, be, fe};

/// As there, with BEGINs that travel with the first statement.
fn balanced(main: &str) -> (Stage, End, End, End) {
    let defers = if main.contains("defer_begin") { "" } else { "defer_begin = packet\n" };
    cluster_auto::balanced(&format!("{defers}{main}"))
}

/// BEGIN is answered, and no server is asked.
pub(super) fn begins(stage: &mut Stage, client: End, text: &str) {
    stage.rig.send(client, &fe::query(text));
    let tag = if text.to_lowercase().starts_with("start") { "START TRANSACTION" } else { "BEGIN" };
    assert_eq!(stage.rig.gets(client), [format!("Complete {tag}"), "Ready T".to_owned()], "{text}");
}

/// What a server gets for a BEGIN that was answered before, and the statement behind it.
pub(super) fn with_begin(begin: &str, text: &str) -> Vec<String> {
    vec![format!("Parse  {begin}"), "Bind ".into(), "Execute".into(), format!("Query {text}")]
}

/// The answers to a BEGIN that went ahead.
pub(super) fn begun() -> Vec<u8> {
    [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat()
}

/// A client in a transaction that reads at this standby.
fn reading(main: &str, begin: &str) -> (Stage, End, End, End) {
    let (mut stage, client, primary, standby) = balanced(main);
    begins(&mut stage, client, begin);
    stage.rig.send(client, &fe::query("select a from t"));
    assert_eq!(stage.rig.gets(standby).len(), 4);
    stage.rig.send(standby, &[begun(), be::one_row("1"), be::ready('T')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready T"));
    (stage, client, primary, standby)
}

/// The text is refused: the standby gets one that fails in its place, and the client is told pgweir's words.
fn is_refused(stage: &mut Stage, client: End, standby: End, text: &str, word: &str) {
    stage.rig.send(client, &fe::query(text));
    let failing = format!("SELECT \"pgweir:{word}\"");
    assert_eq!(stage.rig.gets(standby), [format!("Query {failing}")], "{text}");
    let error = be::error("42703", &format!("column \"pgweir:{word}\" does not exist"));
    stage.rig.send(standby, &[error, be::ready('E')].concat());
    let told = stage.rig.gets(client);
    assert!(told[0].starts_with("ERROR 0A000") && told[0].contains(word), "{told:?}");
    assert_eq!(told[1], "Ready E");
}

#[test]
fn a_read_only_transaction_runs_on_a_standby_to_its_end() {
    for begin in ["begin read only", "START TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"] {
        for main in ["", "defer_begin = server"] {
            let (mut stage, client, primary, standby) = balanced(main);
            begins(&mut stage, client, begin);
            stage.rig.gets_nothing(primary);
            stage.rig.send(client, &fe::query("select a from t"));
            assert_eq!(stage.rig.gets(standby)[3], "Query select a from t");
            stage.rig.send_bytewise(standby, &[begun(), be::one_row("7"), be::ready('T')].concat());
            let told = ["Columns", "Row 7", "Complete SELECT 1", "Ready T"];
            assert_eq!(stage.rig.gets(client), told, "{begin} {main}");
            for text in ["select b from t", "set local a.b = 'c'", "declare c cursor for select 1"] {
                stage.runs(client, standby, text, "SELECT 1", 'T');
            }
            stage.runs(client, standby, "commit", "COMMIT", 'I');
            stage.rig.gets_nothing(primary);
            runs_on(&mut stage, client, primary, "insert into t values (1)");
        }
    }
}

#[test]
fn everything_else_begins_on_the_primary() {
    for (begin, first) in [
        ("begin", "select 1"),
        ("begin read write", "select 1"),
        ("begin isolation level serializable read only deferrable", "select 1"),
        ("begin read only", "select note_it()"),
        ("begin read only", "select 1 for update"),
        ("begin read only", "select pg_export_snapshot()"),
        ("begin read only", "select last_value from a_seq"),
        ("begin read only", "set local transaction_read_only = off"),
        ("begin read only", "select 1; select 2"),
        ("begin read only", "select 1 /* pgweir: primary */"),
        ("begin read only /* pgweir: primary */", "select 1"),
    ] {
        let (mut stage, client, primary, standby) = balanced("");
        begins(&mut stage, client, begin);
        stage.rig.send(client, &fe::query(first));
        assert_eq!(stage.rig.gets(primary), with_begin(begin, first));
        stage.rig.gets_nothing(standby);
    }
}

#[test]
fn without_a_deferred_begin_it_is_the_primarys() {
    let (mut stage, client, primary, _) = balanced("defer_begin = off");
    stage.runs(client, primary, "begin read only", "BEGIN", 'T');
    stage.runs(client, primary, "select 1", "SELECT 1", 'T');
}

#[test]
fn a_session_may_be_read_only() {
    let (mut stage, client, primary, standby) = balanced("session_state = preserve");
    stage.rig.send(client, &fe::query("set default_transaction_read_only = on"));
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &[be::complete("SET"), be::ready('I')].concat());
    stage.rig.raw(primary);
    stage.rig.send(primary, &be::answer(&[&["on"]]));
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
    begins(&mut stage, client, "begin");
    stage.rig.send(client, &fe::query("select 1"));
    // Its session has changed, so it has no standby yet.
    let (other, node) = stage.server();
    assert!(node > 1);
    let sent = String::from_utf8_lossy(&stage.rig.raw(other)).into_owned();
    assert!(sent.contains("default_transaction_read_only") && sent.contains("select 1"), "{sent}");
    stage.rig.gets_nothing(primary);
    stage.rig.gets_nothing(standby);
}

#[test]
fn settings_of_the_transaction_may_come_first() {
    for first in ["set local app.tenant = '7'", "select set_config('app.tenant', '7', true)"] {
        let (mut stage, client, _, standby) = balanced("");
        begins(&mut stage, client, "begin read only");
        stage.rig.send(client, &fe::query(first));
        assert_eq!(stage.rig.gets(standby), with_begin("begin read only", first));
        stage.rig.send(standby, &[begun(), be::complete("SET"), be::ready('T')].concat());
        assert_eq!(stage.rig.gets(client), ["Complete SET", "Ready T"]);
        stage.runs(client, standby, "select a from t", "SELECT 1", 'T');
    }
    let (mut stage, client, _, standby) = balanced("");
    begins(&mut stage, client, "begin read only");
    let text = "select set_config('app.tenant', $1, true)";
    stage.rig.send(client, &[fe::parse("", text), fe::bind(""), fe::execute(), fe::sync()].concat());
    assert_eq!(stage.rig.gets(standby).len(), 7);
}

#[test]
fn a_first_group_that_fails_there_runs_on_the_primary_with_its_begin() {
    let begin = "begin read only";
    let error = be::error("42P01", "relation \"new_table\" does not exist");
    for in_begin in [false, true] {
        for extended in [false, true] {
            let (mut stage, client, primary, standby) = balanced("");
            begins(&mut stage, client, begin);
            let text = "select a from new_table";
            let group = match extended {
                false => fe::query(text),
                true => [fe::parse("", text), fe::bind(""), fe::execute(), fe::sync()].concat(),
            };
            // What follows waits.
            stage.rig.send(client, &[group, fe::query("select 2")].concat());
            let sent = if extended { 7 } else { 4 };
            assert_eq!(stage.rig.gets(standby).len(), sent);
            if in_begin {
                stage.rig.send_bytewise(standby, &error);
                if !extended {
                    assert_eq!(stage.rig.gets(standby), ["Sync"], "PostgreSQL waits for one");
                }
                stage.rig.send(standby, &be::ready('I'));
            } else {
                stage.rig.send_bytewise(standby, &[begun(), error.clone(), be::ready('E')].concat());
                assert_eq!(stage.rig.gets(standby), ["Query ROLLBACK"]);
                stage.rig.send(standby, &[be::complete("ROLLBACK"), be::ready('I')].concat());
            }
            stage.rig.gets_nothing(client);
            let sent = stage.rig.gets(primary);
            assert_eq!(sent[..3], with_begin(begin, text)[..3], "{sent:?}");
            let parsed = if extended { [be::parse_complete(), be::bind_complete()].concat() } else { vec![] };
            let row = [be::row("7"), be::complete("SELECT 1"), be::ready('T')].concat();
            stage.rig.send(primary, &[begun(), parsed, row].concat());
            assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready T"));
            assert_eq!(stage.rig.gets(primary), ["Query select 2"]);
            stage.rig.send(primary, &[be::complete("SELECT 1"), be::ready('T')].concat());
            stage.rig.gets_raw(client);
            // It is the primary's to its end.
            stage.runs(client, primary, "select pg_advisory_xact_lock(1)", "SELECT 1", 'T');
            stage.runs(client, primary, "commit", "COMMIT", 'I');
            assert!(!stage.rig.is_closed(standby));
            runs_on(&mut stage, client, standby, "select 3");
            let node = if stage.rig.endpoint(standby).starts_with("10.0.0.2") { "m2" } else { "m3" };
            assert_eq!(stage.second_tries(node), [1, 0]);
        }
    }
}

#[test]
fn a_first_group_whose_standby_is_lost_runs_on_the_primary_with_its_begin() {
    for answer in [vec![], begun(), [begun(), be::columns()].concat()] {
        let (mut stage, client, primary, standby) = balanced("");
        begins(&mut stage, client, "begin read only");
        stage.rig.send(client, &fe::query("select a from t"));
        stage.rig.gets_raw(standby);
        stage.rig.send(standby, &answer);
        stage.rig.eof(standby);
        assert_eq!(stage.rig.gets(primary), with_begin("begin read only", "select a from t"));
        stage.rig.send(primary, &[begun(), be::one_row("7"), be::ready('T')].concat());
        assert_eq!(stage.rig.gets(client)[..3], answered("7")[..3]);
    }
}

#[test]
fn a_standby_that_fails_and_then_ends_the_session_is_not_heard_of() {
    // A second conflict with recovery, while PostgreSQL rolls back for the first one, ends the session as soon as it waits for a command.
    let error = be::error("40001", "canceling statement due to conflict with recovery");
    let end = be::fatal("40001", "terminating connection due to conflict with recovery");
    for is_ready in [false, true] {
        let (mut stage, client, primary, standby) = balanced("");
        begins(&mut stage, client, "begin read only");
        stage.rig.send(client, &fe::query("select a from t"));
        stage.rig.gets_raw(standby);
        stage.rig.send(standby, &[begun(), error.clone()].concat());
        if is_ready {
            stage.rig.send(standby, &be::ready('E'));
            assert_eq!(stage.rig.gets(standby), ["Query ROLLBACK"]);
        }
        stage.rig.send(standby, &end);
        assert!(stage.rig.is_closed(standby));
        stage.rig.gets_nothing(client);
        assert_eq!(stage.rig.gets(primary), with_begin("begin read only", "select a from t"));
        stage.rig.send(primary, &[begun(), be::one_row("7"), be::ready('T')].concat());
        assert_eq!(stage.rig.gets(client)[..3], answered("7")[..3]);
    }
}

#[test]
fn a_standby_that_is_lost_later_rolls_the_transaction_back() {
    let conflict = be::fatal("40001", "terminating connection due to conflict with recovery");
    for (asks, last_words) in [(false, vec![]), (true, vec![]), (false, conflict.clone()), (true, conflict)] {
        let (mut stage, client, primary, standby) = reading("", "begin read only");
        if asks {
            stage.rig.send(client, &fe::query("select 2"));
            stage.rig.gets_raw(standby);
        }
        stage.rig.send(standby, &last_words);
        stage.rig.eof(standby);
        if !asks {
            stage.rig.send(client, &fe::query("select 2"));
        }
        let told = stage.rig.gets(client);
        assert!(told[0].starts_with("ERROR 40001"), "{told:?}");
        assert_eq!(told[1], "Ready E");
        stage.rig.send(client, &fe::query("rollback"));
        assert_eq!(stage.rig.gets(client), ["Complete ROLLBACK", "Ready I"]);
        stage.rig.gets_nothing(primary);
    }
    // In the middle of its first answer.
    let (mut stage, client, _, standby) = balanced("");
    begins(&mut stage, client, "begin read only");
    stage.rig.send(client, &fe::query("select a from t"));
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &[begun(), be::columns(), be::row("1")].concat());
    stage.rig.eof(standby);
    let told = stage.rig.gets(client);
    assert!(told[2].starts_with("ERROR 40001"), "{told:?}");
}

#[test]
fn what_a_standby_does_otherwise_without_an_error_is_refused() {
    for (text, word) in [
        ("select pg_advisory_lock(1)", "pg_advisory_lock"),
        ("select set_config('a.' || x, 'y', false) from t", "session_state"),
        ("select pg_try_advisory_xact_lock(1)", "pg_try_advisory_xact_lock"),
        ("select pg_export_snapshot()", "pg_export_snapshot"),
        ("select last_value from s", "last_value"),
        ("select * from a_seq", "a_seq"),
        ("select Note_It()", "Note_It"),
        ("do $$begin end$$", "do"),
        ("commit; insert into t values (1)", "insert"),
        ("execute s", "EXECUTE"),
        ("declare c cursor with hold for select 1", "hold"),
    ] {
        let (mut stage, client, primary, standby) = reading("", "begin read only");
        is_refused(&mut stage, client, standby, text, word);
        stage.runs(client, standby, "rollback", "ROLLBACK", 'I');
        runs_on(&mut stage, client, primary, text);
    }
}

#[test]
fn what_postgresql_refuses_is_passed_on() {
    let (mut stage, client, _, standby) = reading("", "begin read only");
    for text in ["notify x", "create temp table a (b int)", "insert into t values (1)"] {
        stage.rig.send(client, &fe::query(text));
        assert_eq!(stage.rig.gets(standby), [format!("Query {text}")]);
        let error = be::error("25006", "cannot execute it in a read-only transaction");
        stage.rig.send(standby, &[error, be::ready('E')].concat());
        assert!(stage.rig.gets(client)[0].contains("25006"), "{text}");
    }
}

#[test]
fn the_extended_protocol_is_looked_at_too() {
    let (mut stage, client, _, standby) = reading("", "begin read only");
    let text = "select pg_advisory_lock(1)";
    let group = |name: &str| [fe::bind(name), fe::execute(), fe::sync()].concat();
    stage.rig.send(client, &[fe::parse("", "select 1"), fe::bind(""), fe::execute()].concat());
    assert_eq!(stage.rig.gets(standby).len(), 3);
    stage.rig.send(client, &[fe::parse("", text), group("")].concat());
    let sent = stage.rig.gets(standby);
    assert_eq!(sent[0], "Parse pgweir SELECT \"pgweir:pg_advisory_lock\"", "{sent:?}");
    let error = be::error("42703", "column \"pgweir:pg_advisory_lock\" does not exist");
    let first = [be::parse_complete(), be::bind_complete(), be::row("1"), be::complete("SELECT 1")].concat();
    stage.rig.send(standby, &[first, error, be::ready('E')].concat());
    let told = stage.rig.gets(client);
    assert!(told[4].starts_with("ERROR 0A000") && told[5] == "Ready E", "{told:?}");
    stage.runs(client, standby, "rollback", "ROLLBACK", 'I');
}

#[test]
fn a_statement_that_was_prepared_before_is_looked_at_when_it_is_bound() {
    let (mut stage, client, primary, standby) = balanced("");
    stage.rig.send(client, &[fe::parse("s", "select pg_advisory_lock(1)"), fe::sync()].concat());
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &[be::parse_complete(), be::ready('I')].concat());
    stage.rig.gets_raw(client);
    begins(&mut stage, client, "begin read only");
    stage.rig.send(client, &fe::query("select a from t"));
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &[begun(), be::one_row("1"), be::ready('T')].concat());
    stage.rig.gets_raw(client);
    stage.rig.send(client, &[fe::bind("s"), fe::execute(), fe::sync()].concat());
    let sent = stage.rig.gets(standby);
    assert_eq!(sent[0], "Parse pgweir SELECT \"pgweir:pg_advisory_lock\"", "{sent:?}");
}

#[test]
fn only_an_unnamed_statement_of_the_group_itself_is_known() {
    for (text, is_standbys) in [("set local a.b = 'c'", true), ("select pg_advisory_lock(1)", false)] {
        let (mut stage, client, primary, standby) = balanced("");
        stage.rig.send(client, &[fe::parse("s", "set local a.b = 'c'"), fe::sync()].concat());
        stage.rig.gets_raw(primary);
        stage.rig.send(primary, &[be::parse_complete(), be::ready('I')].concat());
        stage.rig.gets_raw(client);
        begins(&mut stage, client, "begin read only");
        let named = [fe::bind("s"), fe::execute()].concat();
        let unnamed = if is_standbys { fe::parse("", text) } else { Vec::new() };
        stage.rig.send(client, &[named, unnamed, fe::bind(""), fe::execute(), fe::sync()].concat());
        let (runs, rests) = if is_standbys { (standby, primary) } else { (primary, standby) };
        assert!(!stage.rig.gets(runs).is_empty(), "{text}");
        stage.rig.gets_nothing(rests);
    }
}

#[test]
fn a_refusal_is_known_in_each_language_of_the_server() {
    let texts =
        ["Spalte »pgweir:pg_advisory_lock« existiert nicht", "列\"pgweir:pg_advisory_lock\"は存在しません"];
    for text in texts {
        let (mut stage, client, _, standby) = reading("", "begin read only");
        stage.rig.send(client, &fe::query("select pg_advisory_lock(1)"));
        stage.rig.gets_raw(standby);
        stage.rig.send(standby, &[be::error("42703", text), be::ready('E')].concat());
        let told = stage.rig.gets(client);
        let expected = "ERROR 0A000 cannot use pg_advisory_lock in a transaction that reads from a standby";
        assert_eq!(told[0], expected, "{text}");
    }
}

#[test]
fn a_function_call_is_refused() {
    let (mut stage, client, _, standby) = reading("", "begin read only");
    let call = [&b"F\0\0\0\x0e"[..], &2880_u32.to_be_bytes(), &[0; 6]].concat();
    stage.rig.send(client, &call);
    assert_eq!(stage.rig.gets(standby), ["Query SELECT \"pgweir:FunctionCall\""]);
}

#[test]
fn what_follows_the_end_waits_for_it() {
    let (mut stage, client, primary, standby) = reading("", "begin read only");
    let texts = ["select 1", "commit", "insert into t values (1)"];
    stage.rig.send(client, &texts.map(fe::query).concat());
    assert_eq!(stage.rig.gets(standby), ["Query select 1", "Query commit"]);
    stage.rig.send(standby, &[be::complete("SELECT 1"), be::ready('T')].concat());
    stage.rig.gets_nothing(standby);
    stage.rig.gets_nothing(primary);
    stage.rig.send(standby, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(primary), ["Query insert into t values (1)"]);
    // In one group of the extended protocol it would run at the standby.
    let (mut stage, client, _, standby) = reading("", "begin read only");
    let run = |text: &str| [fe::parse("", text), fe::bind(""), fe::execute()].concat();
    stage.rig.send(client, &[run("commit"), run("select 1"), fe::sync()].concat());
    let sent = stage.rig.gets(standby);
    assert!(
        sent[..3] == ["Parse  commit", "Bind ", "Execute"] && sent[4].starts_with("Parse pgweir"),
        "{sent:?}"
    );
}

#[test]
fn an_end_that_comes_in_pieces_is_an_end() {
    let end = [fe::parse("", "commit"), fe::bind(""), fe::execute(), fe::sync()].concat();
    for cut in 1..end.len() {
        let (mut stage, client, primary, standby) = reading("", "begin read only");
        stage.rig.send(client, &end[..cut]);
        let mut sent = stage.rig.gets(standby);
        stage.rig.send(client, &[&end[cut..], &fe::query("insert into t values (1)")].concat());
        sent.extend(stage.rig.gets(standby));
        assert_eq!(
            sent,
            ["Parse  commit", "Bind ", "Execute", "Sync"],
            "in two pieces, the first of {cut} bytes"
        );
        stage.rig.gets_nothing(primary);
        let done = [be::parse_complete(), be::bind_complete(), be::complete("COMMIT"), be::ready('I')];
        stage.rig.send(standby, &done.concat());
        assert_eq!(stage.rig.gets(primary), ["Query insert into t values (1)"]);
    }
}

#[test]
fn a_transaction_goes_on_behind_an_end_that_was_none() {
    let (mut stage, client, _, standby) = reading("", "begin read only");
    stage.runs(client, standby, "rollback to savepoint a", "ROLLBACK", 'T');
    stage.runs(client, standby, "select 1", "SELECT 1", 'T');
    is_refused(&mut stage, client, standby, "select pg_advisory_lock(1)", "pg_advisory_lock");
}

#[test]
fn the_console_says_where_a_transaction_runs() {
    for (main, begin, runs_on, why) in [
        ("", "begin read only", "standby", "READ ONLY"),
        ("", "begin", "primary", "a transaction that may write"),
        ("", "begin read only isolation level serializable", "primary", "SERIALIZABLE"),
        ("", "begin read only /* pgweir: primary */", "primary", "the hint"),
        ("defer_begin = off", "begin read only", "primary", "defer_begin"),
    ] {
        let (mut stage, ..) = balanced(main);
        let console = stage.rig.console();
        let told = stage.rig.command(console, &format!("SHOW ROUTE app_auto '{begin}'"));
        let row = told.iter().find(|line| line.starts_with("Row ")).expect("a row");
        assert!(row.contains(&format!("auto,{runs_on},{why}")), "{begin}: {row}");
    }
}

#[test]
fn without_a_standby_it_is_the_primarys() {
    let (mut stage, client, primary, _) = balanced("");
    stage.command("DRAIN NODE main.m2");
    stage.command("DRAIN NODE main.m3");
    begins(&mut stage, client, "begin read only");
    stage.rig.send(client, &fe::query("select 1"));
    assert_eq!(stage.rig.gets(primary), with_begin("begin read only", "select 1"));
    stage.rig.send(primary, &[begun(), be::one_row("1"), be::ready('T')].concat());
    stage.rig.gets_raw(client);
    stage.runs(client, primary, "select pg_advisory_lock(1)", "SELECT 1", 'T');
}

#[test]
fn a_client_that_a_standby_served_goes_on_without_the_cluster() {
    let (mut stage, client, primary, standby) = reading("", "begin read only");
    stage.runs(client, standby, "commit", "COMMIT", 'I');
    stage.rig.reload("", "app_auto = host=pg");
    assert!(stage.rig.is_closed(primary) && stage.rig.is_closed(standby));
    stage.rig.send(client, &fe::query("select a from t"));
    // The connections that watched the nodes are closed, too.
    let mut server = stage.rig.dialed();
    while stage.rig.is_closed(server) {
        server = stage.rig.dialed();
    }
    stage.rig.greet(server);
    assert_eq!(stage.rig.gets(server), ["Query select a from t"]);
    stage.rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
}
