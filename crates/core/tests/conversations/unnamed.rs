//! The unnamed statement between a client's groups.

use crate::rig::{End, Rig, be, fe};

/// A client that has prepared a statement without a name, with a server that another client has used since.
fn prepared(text: &str) -> (Rig, End, End) {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(client, &[fe::parse("", text), fe::sync()].concat());
    assert_eq!(rig.gets(server), [format!("Parse  {text}"), "Sync".to_owned()]);
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
    if text.starts_with("SET") {
        // It may have been executed, for all that its words tell.
        rig.gets(server);
        rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
        return (rig, client, server);
    }
    rig.send(other, &fe::query("select 2"));
    rig.gets(server);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    (rig, client, server)
}

fn use_it() -> Vec<u8> {
    [fe::bind(""), fe::execute(), fe::sync()].concat()
}

fn done(tag: &str) -> Vec<u8> {
    [be::bind_complete(), be::complete(tag), be::ready('I')].concat()
}

#[test]
fn it_is_there_when_it_is_used_later() {
    let (mut rig, client, server) = prepared("select 1");
    for _ in 0..2 {
        rig.send(client, &use_it());
        assert_eq!(rig.gets(server), ["Parse  select 1", "Bind ", "Execute", "Sync"]);
        rig.send(server, &[be::parse_complete(), done("SELECT 1")].concat());
        assert_eq!(rig.gets(client), ["BindComplete", "Complete SELECT 1", "Ready I"]);
    }
    rig.send(client, &[fe::describe(""), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Parse  select 1", "Describe S ", "Sync"]);
}

#[test]
fn the_next_one_replaces_it() {
    let (mut rig, client, server) = prepared("select 1");
    rig.send(client, &[fe::parse("", "select 3"), use_it()].concat());
    assert_eq!(rig.gets(server), ["Parse  select 3", "Bind ", "Execute", "Sync"]);
    rig.send(server, &[be::parse_complete(), done("SELECT 1")].concat());
    rig.send(client, &use_it());
    assert_eq!(rig.gets(server), ["Close S ", "Bind ", "Execute", "Sync"], "no client gets the older one");
}

#[test]
fn within_a_transaction_it_is_where_it_is() {
    let (mut rig, client, server) = prepared("select 1");
    rig.send(client, &[use_it()].concat());
    rig.gets(server);
    rig.send(
        server,
        &[be::parse_complete(), be::bind_complete(), be::complete("X"), be::ready('T')].concat(),
    );
    rig.send(client, &use_it());
    assert_eq!(rig.gets(server), ["Bind ", "Execute", "Sync"]);
}

#[test]
fn what_it_does_to_the_session_is_asked_when_it_is_used() {
    let (mut rig, client, server) = prepared("SET work_mem = 1");
    rig.send(client, &use_it());
    rig.gets(server);
    rig.send(server, &[be::parse_complete(), done("SET")].concat());
    let asked = rig.gets(server);
    assert!(asked.len() == 1 && asked[0].starts_with("Query ("), "everything is asked for: {asked:?}");
}

#[test]
fn a_failure_to_prepare_it_is_the_clients() {
    let (mut rig, client, server) = prepared("select x from gone");
    rig.send(client, &use_it());
    rig.gets(server);
    rig.send(server, &[be::error("42P01", "relation \"gone\" does not exist"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 42P01 relation \"gone\" does not exist", "Ready I"]);
}

#[test]
fn a_simple_query_ends_it_and_other_statements_do_not_need_it() {
    let (mut rig, client, server) = prepared("select 1");
    rig.send(client, &[fe::bind("s0"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Bind s0", "Sync"]);
    rig.send(
        server,
        &[be::error("26000", "prepared statement \"s0\" does not exist"), be::ready('I')].concat(),
    );
    rig.send(client, &fe::query("select 2"));
    rig.gets(server);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.send(client, &use_it());
    assert_eq!(rig.gets(server), ["Close S ", "Bind ", "Execute", "Sync"]);
}

#[test]
fn a_client_without_one_never_uses_that_of_another_client() {
    let (mut rig, owner, server) = prepared("select 'secret'");
    let client = rig.client("alice");
    for message in [fe::describe(""), fe::bind("")] {
        rig.send(owner, &use_it());
        rig.gets(server);
        rig.send(server, &[be::parse_complete(), done("SELECT 1")].concat());
        rig.gets(owner);
        rig.send(client, &[message.clone(), fe::sync()].concat());
        let sent = rig.gets(server);
        assert_eq!(sent[0], "Close S ", "what others left goes first: {sent:?}");
        let error = be::error("26000", "unnamed prepared statement does not exist");
        rig.send(server, &[be::close_complete(), error, be::ready('I')].concat());
        assert_eq!(rig.gets(client), ["ERROR 26000 unnamed prepared statement does not exist", "Ready I"]);
    }
}

#[test]
fn a_closed_one_is_gone() {
    let (mut rig, client, server) = prepared("select 1");
    rig.send(client, &[fe::close(""), fe::sync()].concat());
    rig.gets(server);
    rig.send(server, &[be::close_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["CloseComplete", "Ready I"]);
    rig.send(client, &use_it());
    assert_eq!(rig.gets(server), ["Close S ", "Bind ", "Execute", "Sync"]);
}

#[test]
fn a_skipped_parse_does_not_make_what_is_there_its_clients() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    let skipped = [fe::bind("nothing"), fe::parse("", "select 1"), fe::sync()].concat();
    rig.send(client, &[skipped, use_it()].concat());
    let first = ["Bind nothing", "Parse  select 1", "Sync", "Flush"];
    assert_eq!(rig.gets(server), first, "the next group waits for what becomes of the Parse");
    rig.send(server, &[be::error("26000", "no such statement"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 26000 no such statement", "Ready I"]);
    assert_eq!(rig.gets(server), ["Close S ", "Bind ", "Execute", "Sync"]);
}

#[test]
fn a_begin_that_was_answered_leaves_nothing_to_use() {
    let portal = [fe::execute(), fe::sync()].concat();
    for (asks, sent) in [
        (portal, vec!["Close P ", "Execute", "Sync"]),
        (use_it(), vec!["Close S ", "Bind ", "Execute", "Sync"]),
    ] {
        let mut rig = Rig::new("default_pool_size = 1\ndefer_begin = server");
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query("BEGIN"));
        rig.send(client, &asks);
        assert_eq!(rig.gets(server), [vec!["Parse  BEGIN", "Bind ", "Execute"], sent].concat());
    }
}
