//! Several messages before the first answer: each answer finds its own, errors skip what PostgreSQL skips.

use crate::rig::{Rig, be, fe};

#[test]
fn a_pipeline_of_queries_keeps_its_server_to_the_end() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(client, &[fe::query("select 1"), fe::query("select 2")].concat());
    rig.send(other, &fe::query("select 3"));
    assert_eq!(rig.gets(server), ["Query select 1", "Query select 2"]);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    rig.gets_nothing(server);
    rig.send(server, &[be::one_row("2"), be::ready('I')].concat());
    assert_eq!(rig.gets(client).len(), 8);
    assert_eq!(rig.gets(server), ["Query select 3"]);
    rig.send(server, &[be::one_row("3"), be::ready('I')].concat());
    assert_eq!(rig.gets(other), ["Columns", "Row 3", "Complete SELECT 1", "Ready I"]);
}

#[test]
fn an_error_skips_to_the_sync_and_no_further() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    let group = [fe::parse("", "selec"), fe::bind(""), fe::describe_portal(), fe::execute(), fe::sync()];
    rig.send(client, &[group.concat(), fe::query("select 2")].concat());
    rig.send(server, &[be::error("42601", "syntax error"), be::ready('I')].concat());
    rig.send(server, &[be::one_row("2"), be::ready('I')].concat());
    assert_eq!(
        rig.gets(client),
        ["ERROR 42601 syntax error", "Ready I", "Columns", "Row 2", "Complete SELECT 1", "Ready I"]
    );
    assert!(!rig.is_closed(server));
}

#[test]
fn messages_after_an_error_are_ignored_until_the_sync_comes() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse("", "selec"), fe::flush()].concat());
    rig.send(server, &be::error("42601", "syntax error"));
    rig.gets(client);
    rig.gets(server);
    rig.send(
        client,
        &[fe::parse("s1", "select 1"), fe::bind("s1"), fe::close("s1"), fe::query("x")].concat(),
    );
    rig.gets(server);
    rig.gets_nothing(client);
    rig.send(client, &fe::sync());
    assert_eq!(rig.gets(server), ["Sync"]);
    rig.send(server, &be::ready('I'));
    assert_eq!(rig.gets(client), ["Ready I"]);
    rig.send(client, &[fe::parse("s1", "select 1"), fe::sync()].concat());
    let asked = rig.gets(server);
    assert!(asked[0].starts_with("Parse PGWEIR_") && asked[0].ends_with("select 1"), "{asked:?}");
}

#[test]
fn an_error_of_the_commit_comes_with_the_sync() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse("", "insert"), fe::bind(""), fe::execute(), fe::sync()].concat());
    let answer = [be::parse_complete(), be::bind_complete(), be::complete("INSERT 0 1")].concat();
    rig.send(server, &[answer, be::error("23503", "foreign key"), be::ready('I')].concat());
    assert_eq!(
        rig.gets(client),
        ["ParseComplete", "BindComplete", "Complete INSERT 0 1", "ERROR 23503 foreign key", "Ready I"]
    );
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query select 1"));
}

#[test]
fn a_group_without_sync_keeps_its_server() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(client, &[fe::parse("", "select 1"), fe::describe(""), fe::flush()].concat());
    rig.send(server, &[be::parse_complete(), be::parameters(), be::no_data()].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Parameters", "NoData"]);
    rig.gets(server);
    rig.send(other, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(client, &[fe::bind(""), fe::execute(), fe::sync()].concat());
    rig.send(server, &[be::bind_complete(), be::complete("SELECT 0"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Bind ", "Execute", "Sync", "Query select 2"]);
}

#[test]
fn an_idle_client_that_only_syncs_needs_no_server() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::flush(), fe::sync(), fe::sync()].concat());
    assert_eq!(rig.gets(client), ["Ready I", "Ready I"]);
    rig.gets_nothing(server);
}

#[test]
fn a_transaction_keeps_its_server_also_a_failed_one() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(client, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.send(client, &fe::query("selec"));
    rig.send(server, &[be::error("42601", "syntax error"), be::ready('E')].concat());
    rig.gets(server);
    rig.send(other, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(client, &fe::query("rollback"));
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query rollback", "Query select 2"]);
}

#[test]
fn what_is_typed_while_waiting_is_sent_in_order() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (busy, client) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(busy, &fe::query("select 0"));
    rig.send(client, &fe::query("select 1"));
    rig.send(client, &fe::query("select 2"));
    rig.send(server, &[be::one_row("0"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query select 0", "Query select 1", "Query select 2"]);
}

#[test]
fn statistics_count_statements_and_transactions() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    for status in ['T', 'T', 'I'] {
        rig.send(client, &fe::query("x"));
        rig.pass_us(1000);
        rig.send(server, &[be::complete("X"), be::ready(status)].concat());
    }
    let console = rig.console();
    let rows = rig.command(console, "SHOW STATS_TOTALS");
    let row = rows.iter().find(|row| row.starts_with("Row app,")).expect("a row");
    let cells: Vec<&str> = row.split(',').collect();
    assert_eq!(&cells[1..4], ["1", "1", "3"], "assignments, transactions, queries: {row}");
    assert_eq!((cells[6], cells[7]), ("3000", "3000"), "time in transaction and in queries: {row}");
}

#[test]
fn stray_bytes_after_the_end_answer_nothing() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    // What names a statement waits for the end of the DISCARD.
    rig.send(client, &[fe::query("DISCARD ALL"), fe::parse("s1", "select 1"), fe::sync()].concat());
    let stray = [be::complete("DISCARD ALL"), be::ready('I'), be::parse_complete(), be::ready('I')];
    rig.send(server, &stray.concat());
    let told = rig.gets(client);
    assert!(!told.contains(&"ParseComplete".to_owned()), "nobody had asked for it yet: {told:?}");
    assert!(rig.is_closed(server));
}
