//! Comments that say what the query cache may do.

use crate::cache::{asks_server, is_answered};
use crate::rig::{End, Rig, fe};

/// A pool that keeps answers for ten seconds.
fn cached(main: &str) -> (Rig, End, End) {
    let mut rig = Rig::new(&format!("{main}\n[cache]\nall = ttl_ms=10000\n[pgweir]"));
    let client = rig.client("alice");
    let server = rig.dialed();
    (rig, client, server)
}

/// The server is asked each time: nothing is kept.
fn is_never_kept(rig: &mut Rig, client: End, server: End, text: &str) {
    asks_server(rig, client, server, text, "a");
    asks_server(rig, client, server, text, "b");
}

#[test]
fn a_comment_says_what_the_cache_may_do() {
    let (mut rig, client, server) = cached("query_cache = on\nquery_cache_hints = 1");
    for text in
        ["/* pgweir: no cache */ select 1", "select 1 /* pgweir: no cache */", "/*NO QUERY CACHE*/ select 1"]
    {
        is_never_kept(&mut rig, client, server, text);
    }
    let short = "/* pgweir: cache 2s */ select 1";
    asks_server(&mut rig, client, server, short, "a");
    rig.pass_us(1_900_000);
    is_answered(&mut rig, client, short, "a");
    rig.pass_us(200_000);
    asks_server(&mut rig, client, server, short, "b");
    // A comment raises no limit.
    let long = "/* pgweir: cache 1h */ select 1";
    asks_server(&mut rig, client, server, long, "c");
    rig.pass_us(9_900_000);
    is_answered(&mut rig, client, long, "c");
    rig.pass_us(200_000);
    asks_server(&mut rig, client, server, long, "d");
    is_never_kept(&mut rig, client, server, "/* pgweir: cache 0s */ select 1");
}

#[test]
fn comments_count_only_where_they_are_to() {
    let (mut rig, client, server) = cached("query_cache = on");
    let text = "/* pgweir: no cache */ select 1";
    asks_server(&mut rig, client, server, text, "a");
    is_answered(&mut rig, client, text, "a");
}

#[test]
fn with_hinted_only_what_asks_for_it_is_kept() {
    let (mut rig, client, server) = cached("query_cache = hinted");
    is_never_kept(&mut rig, client, server, "select 1");
    is_never_kept(&mut rig, client, server, "/* pgweir: no cache */ select 1");
    for (text, value) in [("/* pgweir: cache */ select 1", "c"), ("select 1 /* pgweir: cache 1s */", "d")] {
        asks_server(&mut rig, client, server, text, value);
        is_answered(&mut rig, client, text, value);
    }
    rig.pass_us(1_100_000);
    asks_server(&mut rig, client, server, "select 1 /* pgweir: cache 1s */", "e");
    is_answered(&mut rig, client, "/* pgweir: cache */ select 1", "c");
    asks_server(&mut rig, client, server, "select 1, 2", "f");
    asks_server(&mut rig, client, server, "select 1, 2, 3 /* pgweir: no cache */", "g");
    let console = rig.console();
    let rows = rig.command(console, "SHOW STATEMENTS").concat();
    assert!(rows.contains("select ?, ?,no comment asks for it"), "{rows}");
    assert!(rows.contains("select ?, ?, ?,a comment says no"), "{rows}");
}

/// The comment also keeps the client from getting the answer to another client's statement of the same text.
#[test]
fn a_comment_keeps_a_statement_from_being_coalesced() {
    let mut rig =
        Rig::new("query_cache = coalesce\nquery_cache_hints = 1\ndefault_pool_size = 1\nmultiplex_depth = 0");
    let (first, second) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    asks_server(&mut rig, first, server, "select 0", "x");
    let text = "/* pgweir: no cache */ select 1";
    rig.send(first, &fe::query("select 2"));
    rig.gets(server);
    let third = rig.client("alice");
    for client in [second, third] {
        rig.send(client, &fe::query(text));
    }
    rig.send(server, &crate::cache::rows("b"));
    rig.gets(first);
    for value in ["c", "d"] {
        assert_eq!(rig.gets(server), [format!("Query {text}")]);
        rig.send(server, &crate::cache::rows(value));
    }
    assert_eq!(rig.gets(second)[1], "Row c");
    assert_eq!(rig.gets(third)[1], "Row d");
}
