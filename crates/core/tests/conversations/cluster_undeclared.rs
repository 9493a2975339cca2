//! `begin_undeclared=first`: transactions that do not say READ ONLY read at a standby until they do something else.

use crate::cluster_auto::{balanced_at_level, balanced_in, runs_on};
use crate::cluster_reading::{begins, begun, with_begin};
use crate::cluster_reads::Stage;
use crate::rig::{End, be, fe};

fn balanced(main: &str) -> (Stage, End, End, End) {
    let defers = if main.contains("defer_begin") { "" } else { "defer_begin = packet\n" };
    balanced_in(&format!("{defers}{main}"), "app_first")
}

/// A client in such a transaction, which has read at this standby.
fn reading(main: &str) -> (Stage, End, End, End) {
    let (mut stage, client, primary, standby) = balanced(main);
    begins(&mut stage, client, "begin");
    stage.rig.send(client, &fe::query("select a from t"));
    assert_eq!(stage.rig.gets(standby), with_begin("begin", "select a from t"));
    stage.rig.send(standby, &[begun(), be::one_row("1"), be::ready('T')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready T"));
    (stage, client, primary, standby)
}

/// The transaction has ended at the standby.
fn leaves(stage: &mut Stage, client: End, standby: End) {
    assert_eq!(stage.rig.gets(standby), ["Query ROLLBACK"]);
    stage.rig.gets_nothing(client);
    stage.rig.send(standby, &[be::complete("ROLLBACK"), be::ready('I')].concat());
}

#[test]
fn a_transaction_that_only_reads_ends_at_the_standby() {
    for end in ["commit", "rollback"] {
        for main in ["defer_begin = packet", "defer_begin = server"] {
            let (mut stage, client, primary, standby) = reading(main);
            stage.runs(client, standby, "select b from t", "SELECT 1", 'T');
            stage.runs(client, standby, end, &end.to_uppercase(), 'I');
            stage.rig.gets_nothing(primary);
            runs_on(&mut stage, client, primary, "insert into t values (1)");
            runs_on(&mut stage, client, standby, "select 3");
        }
    }
}

#[test]
fn from_the_first_group_that_may_do_more_it_runs_on_the_primary() {
    for text in [
        "insert into t values (1)",
        "savepoint a",
        "set local a.b = 'c'",
        "select pg_advisory_xact_lock(1)",
        "select 1; select 2",
        "select a from t for update",
        "declare c cursor for select 1",
        "show work_mem",
        "commit and chain",
    ] {
        let (mut stage, client, primary, standby) = reading("");
        stage.rig.send(client, &fe::query(text));
        leaves(&mut stage, client, standby);
        assert_eq!(stage.rig.gets(primary), with_begin("begin", text));
        stage.rig.send(primary, &[begun(), be::complete("X"), be::ready('T')].concat());
        assert_eq!(stage.rig.gets(client), ["Complete X", "Ready T"], "{text}");
        // It is the primary's to its end, and the standby's server is free.
        stage.runs(client, primary, "select a from t", "SELECT 1", 'T');
        stage.runs(client, primary, "commit", "COMMIT", 'I');
        runs_on(&mut stage, client, standby, "select 3");
        let node = if stage.rig.endpoint(standby).starts_with("10.0.0.2") { "m2" } else { "m3" };
        assert_eq!(stage.second_tries(node), [0, 0], "nothing was tried twice");
    }
}

#[test]
fn it_leaves_when_what_it_has_read_is_answered() {
    let (mut stage, client, primary, standby) = reading("");
    stage.rig.send(client, &[fe::query("select b from t"), fe::query("delete from t")].concat());
    assert_eq!(stage.rig.gets(standby), ["Query select b from t"]);
    stage.rig.send(standby, &[be::one_row("2"), be::ready('T')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready T"));
    leaves(&mut stage, client, standby);
    assert_eq!(stage.rig.gets(primary), with_begin("begin", "delete from t"));
}

#[test]
fn the_time_that_it_has_read_is_not_held_against_what_it_asks_the_primary_for() {
    let (mut stage, client, primary, standby) = reading("query_timeout = 3\ndefault_pool_size = 1");
    let busy = stage.rig.knock("alice", "app_first");
    stage.rig.gets_raw(busy);
    stage.runs(busy, primary, "insert into t values (0); begin", "BEGIN", 'T');
    stage.pass_us(2_000_000);
    stage.runs(client, standby, "select b from t", "SELECT 1", 'T');
    stage.pass_us(2_000_000);
    stage.rig.send(client, &fe::query("insert into t values (1)"));
    leaves(&mut stage, client, standby);
    stage.pass_us(2_000_000);
    stage.rig.gets_nothing(client);
    stage.runs(busy, primary, "commit", "COMMIT", 'I');
    let ran = stage.rig.gets(primary);
    assert_eq!(ran.last().map(String::as_str), Some("Query insert into t values (1)"));
}

#[test]
fn groups_of_the_extended_protocol_are_looked_at_as_a_whole() {
    let group = |text: &str| [fe::parse("", text), fe::bind(""), fe::execute(), fe::sync()].concat();
    let row = [be::parse_complete(), be::bind_complete(), be::row("1"), be::complete("SELECT 1")].concat();
    let (mut stage, client, primary, standby) = reading("");
    stage.rig.send(client, &group("select b from t"));
    assert_eq!(stage.rig.gets(standby).len(), 4);
    stage.rig.send(standby, &[row.clone(), be::ready('T')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready T"));
    stage.rig.send(client, &group("update t set a = 1"));
    leaves(&mut stage, client, standby);
    assert_eq!(stage.rig.gets(primary).len(), 7, "with its BEGIN");
    stage.rig.send(primary, &[begun(), row.clone(), be::ready('T')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready T"));
    stage.rig.send(client, &group("commit"));
    assert_eq!(stage.rig.gets(primary).len(), 4);

    let (mut stage, client, primary, standby) = reading("");
    stage.rig.send(client, &group("commit"));
    assert_eq!(stage.rig.gets(standby).len(), 4, "its end needs no primary");
    stage.rig.gets_nothing(primary);
}

#[test]
fn a_transaction_that_has_failed_stays() {
    let (mut stage, client, primary, standby) = reading("");
    stage.rig.send(client, &fe::query("select 1 / 0"));
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &[be::error("22012", "division by zero"), be::ready('E')].concat());
    stage.rig.gets_raw(client);
    stage.runs(client, standby, "insert into t values (1)", "X", 'E');
    stage.runs(client, standby, "rollback", "ROLLBACK", 'I');
    stage.rig.gets_nothing(primary);
}

#[test]
fn a_standby_that_is_lost_while_it_is_left_is_not_missed() {
    let (mut stage, client, primary, standby) = reading("");
    stage.rig.send(client, &fe::query("insert into t values (1)"));
    assert_eq!(stage.rig.gets(standby), ["Query ROLLBACK"]);
    stage.rig.eof(standby);
    assert_eq!(stage.rig.gets(primary), with_begin("begin", "insert into t values (1)"));
}

#[test]
fn other_transactions_begin_where_they_did() {
    for (begin, first) in [
        ("begin", "insert into t values (1)"),
        ("begin", "set local a.b = 'c'"),
        ("begin read write", "select 1"),
        ("begin isolation level repeatable read", "select 1"),
        ("begin isolation level serializable", "select 1"),
        ("begin /* pgweir: primary */", "select 1"),
    ] {
        let (mut stage, client, primary, standby) = balanced("defer_begin = server");
        begins(&mut stage, client, begin);
        stage.rig.send(client, &fe::query(first));
        assert_eq!(stage.rig.gets(primary), with_begin(begin, first));
        stage.rig.gets_nothing(standby);
    }
    let (mut stage, client, primary, standby) = balanced("");
    begins(&mut stage, client, "begin read only");
    stage.rig.send(client, &fe::query("select a from t"));
    assert_eq!(stage.rig.gets(standby), with_begin("begin read only", "select a from t"));
    stage.rig.gets_nothing(primary);
}

/// In a transaction of another level, each statement would see what the first one saw: such a transaction cannot go from node to node.
#[test]
fn a_server_whose_transactions_have_another_level_keeps_them() {
    for level in ["repeatable read", "serializable", ""] {
        let (mut stage, client, primary, standby) =
            balanced_at_level("defer_begin = packet", "app_first", level);
        let console = stage.rig.console();
        let told = stage.rig.command(console, "SHOW ROUTE app_first 'begin'").concat();
        assert!(told.contains("auto,primary,default_transaction_isolation"), "{told}");
        begins(&mut stage, client, "begin");
        stage.rig.send(client, &fe::query("select a from t"));
        assert_eq!(stage.rig.gets(primary), with_begin("begin", "select a from t"), "{level}");
        stage.rig.send(primary, &[begun(), be::one_row("1"), be::ready('T')].concat());
        stage.rig.gets_raw(client);
        stage.runs(client, primary, "commit", "COMMIT", 'I');
        let named = "begin isolation level read committed";
        begins(&mut stage, client, named);
        stage.rig.send(client, &fe::query("select a from t"));
        assert_eq!(stage.rig.gets(standby), with_begin(named, "select a from t"), "{level}");
    }
}

#[test]
fn what_comes_in_pieces_is_looked_at_as_a_whole() {
    let (mut stage, client, primary, standby) = reading("");
    stage.rig.send_bytewise(client, &fe::query("insert into t values (1)"));
    leaves(&mut stage, client, standby);
    assert_eq!(stage.rig.gets(primary), with_begin("begin", "insert into t values (1)"));
    let group = [fe::parse("", "select b from t"), fe::bind(""), fe::execute(), fe::sync()].concat();
    for (bytes, sent) in [(fe::query("commit"), 1), (fe::query("select b from t"), 1), (group, 4)] {
        let (mut stage, client, primary, standby) = reading("");
        stage.rig.send_bytewise(client, &bytes);
        assert_eq!(stage.rig.gets(standby).len(), sent);
        stage.rig.gets_nothing(primary);
    }
}
