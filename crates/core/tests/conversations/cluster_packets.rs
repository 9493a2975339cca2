//! `route=auto`: where a transaction runs does not depend on how its BEGIN and its first statement come: by themselves, in one packet, in
//! one group of extended messages, or in pieces.

use crate::cluster_auto::balanced;
use crate::cluster_leaving::{World, run};
use crate::cluster_reading::begun;
use crate::rig::{be, fe};

/// BEGIN and the statement, in each form in which drivers send them.
fn forms(begin: &str, text: &str) -> [Vec<u8>; 5] {
    let described = [fe::parse("", text), fe::bind(""), fe::describe_portal(), fe::execute()].concat();
    [
        [fe::query(begin), fe::query(text)].concat(),
        [fe::query(begin), run(text), fe::sync()].concat(),
        [run(begin), fe::sync(), described.clone(), fe::sync()].concat(),
        [run(begin), described, fe::sync()].concat(),
        [fe::parse("begin", begin), fe::bind("begin"), fe::execute(), fe::sync(), fe::query(text)].concat(),
    ]
}

/// What the client is told without what the form of its messages alone decides.
fn essence(told: &[String]) -> Vec<&str> {
    let is_form = |line: &&str| {
        ["ParseComplete", "BindComplete", "NoData", "Columns"].contains(line) || line.starts_with("Ready")
    };
    told.iter().map(String::as_str).filter(|line| !is_form(line)).collect()
}

#[test]
fn a_transaction_that_reads_gets_a_standby_however_it_comes() {
    for (database, begin) in [
        ("app_auto", "begin read only"),
        ("app_auto", "start transaction isolation level repeatable read, read only"),
        ("app_first", "begin read only"),
        ("app_first", "begin"),
    ] {
        for main in ["", "defer_begin = server"] {
            for (form, bytes) in forms(begin, "select a from t").into_iter().enumerate() {
                for in_pieces in [false, true] {
                    let mut world = World::of(main, database);
                    if form == 4 {
                        // The name of a statement that a server knows.
                        world.asks(&[fe::parse("x", begin), fe::sync()].concat(), false);
                    }
                    world.nodes.iter_mut().for_each(|node| node.ran.clear());
                    let told = world.asks(&bytes, in_pieces);
                    let tag = if begin.starts_with("start") { "START TRANSACTION" } else { "BEGIN" };
                    let due = [&format!("Complete {tag}"), "Row 1", "Complete SELECT 1"];
                    assert_eq!(essence(&told), due, "{begin} {form} {in_pieces} {told:?}");
                    assert_eq!(told.last().map(String::as_str), Some("Ready T"));
                    let readies = told.iter().filter(|line| line.starts_with("Ready")).count();
                    assert_eq!(readies, if form == 3 { 1 } else { 2 }, "{told:?}");
                    let ran = &world.nodes[world.standby].ran;
                    assert_eq!(*ran, [begin, "select a from t"], "{database} {main} {form} {in_pieces}");
                    assert!(world.nodes[world.primary].ran.is_empty());
                    let told = world.asks(&fe::query("commit"), in_pieces);
                    assert_eq!(told, ["Complete COMMIT", "Ready I"]);
                }
            }
        }
    }
}

#[test]
fn in_two_pieces_cut_anywhere() {
    let bytes = &forms("begin read only", "select a from t")[3];
    for cut in 1..bytes.len() {
        let mut world = World::of("", "app_auto");
        let client = world.client;
        let mut told = world.tells(client, &bytes[..cut]);
        told.extend(world.tells(client, &bytes[cut..]));
        assert_eq!(essence(&told), ["Complete BEGIN", "Row 1", "Complete SELECT 1"], "{cut}");
        assert!(world.nodes[world.primary].ran.is_empty(), "cut behind {cut} bytes");
    }
}

#[test]
fn everything_else_is_the_primarys_however_it_comes() {
    for (database, begin, text) in [
        ("app_auto", "begin", "select a from t"),
        ("app_auto", "begin read only", "select note_it()"),
        ("app_auto", "begin isolation level serializable read only", "select a from t"),
        ("app_auto", "begin read only /* pgweir: primary */", "select a from t"),
        ("app_first", "begin", "insert into t values (1)"),
        ("app_first", "begin read write", "select a from t"),
    ] {
        for (form, bytes) in forms(begin, text).into_iter().enumerate() {
            for in_pieces in [false, true] {
                let mut world = World::of("", database);
                world.nodes.iter_mut().for_each(|node| node.ran.clear());
                let told = world.asks(&bytes, in_pieces);
                assert_eq!(told.last().map(String::as_str), Some("Ready T"), "{form} {told:?}");
                assert_eq!(essence(&told)[0], "Complete BEGIN", "{form} {told:?}");
                let ran = &world.nodes[world.primary].ran;
                assert_eq!(*ran, [begin, text], "{database} {form} {in_pieces}");
                assert!(world.nodes[world.standby].ran.is_empty());
            }
        }
    }
    let mut world = World::of("defer_begin = off", "app_auto");
    let client = world.client;
    world.tells(client, &forms("begin read only", "select a from t")[0]);
    assert_eq!(world.nodes[world.primary].ran, ["begin read only", "select a from t"]);
}

#[test]
fn a_client_that_asks_for_answers_within_its_group_does_not_wait() {
    let mut world = World::of("", "app_auto");
    let client = world.client;
    let told = world.tells(client, &[run("begin read only"), fe::flush()].concat());
    assert_eq!(told, ["ParseComplete", "BindComplete", "Complete BEGIN"]);
    let told = world.tells(client, &[run("select a from t"), fe::sync()].concat());
    assert_eq!(told.last().map(String::as_str), Some("Ready T"));
    // The same behind BEGIN.
    let mut world = World::of("", "app_auto");
    let client = world.client;
    world.tells(client, &fe::query("begin read only"));
    let told =
        world.tells(client, &[fe::parse("", "select a from t"), fe::describe(""), fe::flush()].concat());
    assert_eq!(told, ["ParseComplete", "Parameters", "NoData"]);
    let told = world.tells(client, &[fe::bind(""), fe::execute(), fe::sync()].concat());
    assert_eq!(told.last().map(String::as_str), Some("Ready T"));
}

#[test]
fn a_group_with_its_begin_that_fails_at_the_standby_runs_on_the_primary() {
    let (mut stage, client, primary, standby) = balanced("defer_begin = packet");
    let begin = "begin read only";
    stage.rig.send(client, &[run(begin), run("select a from new_table"), fe::sync()].concat());
    assert_eq!(stage.rig.gets(standby).len(), 7);
    let error = be::error("42P01", "relation \"new_table\" does not exist");
    stage.rig.send(standby, &[begun(), error, be::ready('E')].concat());
    assert_eq!(stage.rig.gets(standby), ["Query ROLLBACK"]);
    stage.rig.send(standby, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    let sent = stage.rig.gets(primary);
    assert_eq!((sent.len(), &*sent[0], &*sent[6]), (7, "Parse  begin read only", "Sync"), "{sent:?}");
    let row = [be::parse_complete(), be::bind_complete(), be::row("7"), be::complete("SELECT 1")].concat();
    stage.rig.send(primary, &[begun(), row, be::ready('T')].concat());
    let told = stage.rig.gets(client);
    assert_eq!(essence(&told), ["Complete BEGIN", "Row 7", "Complete SELECT 1"]);
    assert_eq!(told.iter().filter(|line| line.starts_with("Ready")).count(), 1, "{told:?}");
}

#[test]
fn a_group_that_ends_the_transaction_it_begins_is_the_primarys() {
    let mut world = World::of("", "app_auto");
    let bytes = [run("begin read only"), run("select a from t"), run("commit"), fe::sync()].concat();
    let told = world.asks(&bytes, true);
    assert_eq!(essence(&told), ["Complete BEGIN", "Row 1", "Complete SELECT 1", "Complete COMMIT"]);
    assert_eq!(told.last().map(String::as_str), Some("Ready I"));
    assert_eq!(world.nodes[world.primary].ran.len(), 3);
}
