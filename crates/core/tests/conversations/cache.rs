//! The query cache: what is answered without a server, and what is not.

use crate::rig::{End, Rig, be, fe};

/// A pool with a rule that keeps each answer for ten seconds.
const ON: &str = "query_cache = on\n[cache]\nall = ttl_ms=10000\n[pgweir]";

/// A client with its server, whose answers are kept.
fn cached(main: &str) -> (Rig, End, End) {
    let mut rig = Rig::new(&format!("{ON}\n{main}"));
    let client = rig.client("alice");
    let server = rig.dialed();
    (rig, client, server)
}

pub(super) fn rows(value: &str) -> Vec<u8> {
    [be::columns(), be::row(value), be::complete("SELECT 1"), be::ready('I')].concat()
}

/// The client asks, and the server is asked for it and answers.
pub(super) fn asks_server(rig: &mut Rig, client: End, server: End, text: &str, value: &str) {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    rig.send(server, &rows(value));
    assert_eq!(rig.gets(client)[1], format!("Row {value}"));
}

/// The client asks, and is answered without a server.
pub(super) fn is_answered(rig: &mut Rig, client: End, text: &str, value: &str) {
    rig.send(client, &fe::query(text));
    let told = rig.gets(client);
    assert_eq!(told.len(), 4, "{told:?}");
    assert_eq!((&*told[1], &*told[3]), (&*format!("Row {value}"), "Ready I"));
}

/// The client's statement runs on the server, which answers with this tag.
fn runs(rig: &mut Rig, client: End, server: End, text: &str, tag: &str) {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    rig.send(server, &[be::complete(tag), be::ready('I')].concat());
    rig.gets(client);
}

/// PostgreSQL's report of the `application_name` that a replay has set.
fn shown_as(application_name: &str) -> Vec<u8> {
    be::parameter("application_name", application_name)
}

/// A cell of the row of SHOW CACHE.
fn shown(rig: &mut Rig, at: usize) -> String {
    let console = rig.console();
    let rows = rig.command(console, "SHOW CACHE");
    let row = rows.iter().find_map(|row| row.strip_prefix("Row app,")).expect("the pool has a row");
    row.split(',').nth(at - 1).expect("it has so many columns").to_owned()
}

#[test]
fn an_answer_is_given_again_until_its_time_is_over() {
    for main in ["", "multiplex_depth = 0"] {
        let (mut rig, first, server) = cached(main);
        let second = rig.client("alice");
        rig.send(first, &fe::query("select 1"));
        assert_eq!(rig.gets(server), ["Query select 1"]);
        // In pieces: what is kept is whole and in order.
        rows("a").iter().for_each(|byte| rig.send(server, &[*byte]));
        let told = rig.gets(first);
        rig.pass_us(9_900_000);
        for client in [first, second] {
            rig.send(client, &fe::query("select 1"));
            assert_eq!(rig.gets(client), told, "{main}");
        }
        rig.gets_nothing(server);
        asks_server(&mut rig, second, server, "select 2", "b");
        rig.pass_us(200_000);
        asks_server(&mut rig, second, server, "select 1", "c");
        is_answered(&mut rig, first, "select 1", "c");
    }
}

#[test]
fn several_groups_in_one_packet_are_answered_in_their_order() {
    let (mut rig, client, server) = cached("");
    asks_server(&mut rig, client, server, "select 1", "a");
    asks_server(&mut rig, client, server, "select 2", "b");
    rig.send(client, &[fe::query("select 2"), fe::query("select 1"), fe::query("select 3")].concat());
    let told = rig.gets(client);
    assert_eq!((&*told[1], &*told[5]), ("Row b", "Row a"));
    assert_eq!(rig.gets(server), ["Query select 3"]);
}

#[test]
fn off_is_off_and_each_switch_begins_empty() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    asks_server(&mut rig, client, server, "select 1", "a");
    asks_server(&mut rig, client, server, "select 1", "b");
    rig.reload(&format!("pool_mode = transaction\n{ON}"), "app = host=pg");
    // After RELOAD names are in doubt until a server has told of them.
    asks_server(&mut rig, client, server, "select 0", "x");
    asks_server(&mut rig, client, server, "select 1", "c");
    is_answered(&mut rig, client, "select 1", "c");
    rig.reload("pool_mode = transaction", "app = host=pg");
    asks_server(&mut rig, client, server, "select 1", "d");
    rig.reload(&format!("pool_mode = transaction\n{ON}"), "app = host=pg");
    asks_server(&mut rig, client, server, "select 0", "x");
    asks_server(&mut rig, client, server, "select 1", "e");
}

#[test]
fn what_was_known_of_a_client_ends_with_the_cache() {
    let mut rig = Rig::new(ON);
    let named = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "x")]);
    rig.send(named, &fe::query("select 1"));
    let server = rig.dialed();
    rig.gets_loosely(server);
    rig.send(server, &[be::replayed(1), shown_as("x"), rows("of x")].concat());
    rig.gets(named);
    is_answered(&mut rig, named, "select 1", "of x");
    rig.reload("pool_mode = transaction", "app = host=pg");
    rig.reload(&format!("pool_mode = transaction\n{ON}"), "app = host=pg");
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 0"));
    rig.gets_loosely(server);
    rig.send(server, &[be::replayed(1), shown_as(""), rows("b")].concat());
    rig.gets(other);
    asks_server(&mut rig, other, server, "select 1", "without a name");
    rig.send(named, &fe::query("select 1"));
    assert!(rig.gets(named).is_empty(), "its session is another one");
}

#[test]
fn a_rule_says_whose_statements_and_for_how_long() {
    let main = "query_cache = on\nquery_cache_ttl_ms = 1000\n[cache]\nnone = database=other ttl_ms=1\nboard = user=b*\n\
                own = user=carol ttl_ms=5000\n[pgweir]";
    let mut rig = Rig::with(main, "app = host=pg user=one password=x", 1);
    let bob = rig.client("bob");
    let server = rig.dialed();
    let [alice, carol] = ["alice", "carol"].map(|user| rig.client(user));
    asks_server(&mut rig, bob, server, "select 1", "a");
    asks_server(&mut rig, alice, server, "select 1", "b");
    is_answered(&mut rig, bob, "select 1", "a");
    rig.pass_us(1_000_000);
    is_answered(&mut rig, carol, "select 1", "a");
    asks_server(&mut rig, bob, server, "select 1", "c");
}

#[test]
fn a_rule_follows_the_application_name() {
    let mut rig = Rig::new("query_cache = on\n[cache]\nboard = application_name=graf* ttl_ms=1000\n[pgweir]");
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "grafana")]);
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    let set = "SET application_name='grafana';";
    assert_eq!(rig.gets(server), fe::shown_replay(&[set], &["Query select 1"]));
    rig.send(server, &[be::replayed(1), shown_as("grafana"), rows("a")].concat());
    rig.gets(client);
    is_answered(&mut rig, client, "select 1", "a");
    let plain = rig.client("alice");
    rig.send(plain, &fe::query("select 1"));
    rig.gets_nothing(plain);
}

#[test]
fn a_rule_with_tables_is_about_no_others() {
    let main = "query_cache = on\n[cache]\nsome = tables=a,s.b* ttl_ms=1000\n[pgweir]";
    let mut rig = Rig::new(main);
    let client = rig.client("alice");
    let server = rig.dialed();
    for text in ["select * from a, s.book", "select * from public.a"] {
        asks_server(&mut rig, client, server, text, "x");
        is_answered(&mut rig, client, text, "x");
    }
    for text in ["select * from a, c", "select * from book", "select (select 1 from c) from a"] {
        asks_server(&mut rig, client, server, text, "x");
        asks_server(&mut rig, client, server, text, "y");
    }
}

#[test]
fn what_may_change_something_or_is_new_each_time_is_not_kept() {
    let (mut rig, client, server) = cached("");
    for text in ["select f()", "select random()", "select gen_random_uuid()", "select * from t for update"] {
        asks_server(&mut rig, client, server, text, "a");
        asks_server(&mut rig, client, server, text, "b");
    }
    rig.pass_us(1_000);
    asks_server(&mut rig, client, server, "select now()", "a");
    is_answered(&mut rig, client, "select now()", "a");
}

#[test]
fn a_client_sees_its_own_changes() {
    let (mut rig, writer, server) = cached("");
    let other = rig.client("alice");
    asks_server(&mut rig, other, server, "select 1", "old");
    runs(&mut rig, writer, server, "update t set a = 1", "UPDATE 1");
    is_answered(&mut rig, other, "select 1", "old");
    rig.pass_us(1_000);
    asks_server(&mut rig, writer, server, "select 1", "new");
    is_answered(&mut rig, other, "select 1", "new");
    is_answered(&mut rig, writer, "select 1", "new");
}

#[test]
fn a_miss_says_why_the_kept_answer_was_not_given() {
    let (mut rig, one, server) = cached("");
    let two = rig.client("alice");
    // expired, own_changes, redefined, purged
    let reasons = |rig: &mut Rig| [14, 15, 16, 17].map(|at| shown(rig, at));
    asks_server(&mut rig, one, server, "select 1", "a");
    assert_eq!(reasons(&mut rig), ["0", "0", "0", "0"]);
    runs(&mut rig, two, server, "update t set a = 1", "UPDATE 1");
    rig.pass_us(1_000);
    asks_server(&mut rig, two, server, "select 1", "b");
    assert_eq!(reasons(&mut rig), ["0", "1", "0", "0"]);
    rig.pass_us(10_000_000);
    asks_server(&mut rig, one, server, "select 1", "c");
    assert_eq!(reasons(&mut rig), ["1", "1", "0", "0"]);
    runs(&mut rig, two, server, "alter table t add b int", "ALTER TABLE");
    rig.gets_loosely(server);
    rig.send(one, &fe::query("select 1"));
    assert_eq!(reasons(&mut rig), ["1", "1", "1", "0"]);
    let console = rig.console();
    rig.command(console, "CACHE PURGE app");
    assert_eq!(reasons(&mut rig), ["1", "1", "1", "1"]);
}

#[test]
fn a_statement_that_was_sent_before_a_change_does_not_hide_it() {
    let (mut rig, writer, first) = cached("default_pool_size = 2\nmultiplex_depth = 0");
    let reader = rig.client("alice");
    rig.send(reader, &fe::query("select 1"));
    rig.gets(first);
    rig.send(writer, &fe::query("update t set a = 1"));
    let second = rig.next_server();
    rig.gets(second);
    rig.pass_us(1_000);
    rig.send(second, &[be::complete("UPDATE 1"), be::ready('I')].concat());
    rig.gets(writer);
    rig.pass_us(1_000);
    rig.send(first, &rows("old"));
    rig.gets(reader);
    is_answered(&mut rig, reader, "select 1", "old");
    rig.send(writer, &fe::query("select 1"));
    rig.gets_nothing(writer);
}

#[test]
fn answers_of_queued_statements_are_kept_by_when_they_were_sent() {
    let (mut rig, one, server) = cached("default_pool_size = 1");
    let two = rig.client("alice");
    for (changes, text) in [(false, "select 7"), (true, "select 6")] {
        rig.pass_us(20_000_000);
        asks_server(&mut rig, one, server, "select 9", "x");
        rig.send(one, &fe::query("select 8"));
        rig.send(two, &fe::query(text));
        assert_eq!(rig.gets(server), ["Query select 8".to_owned(), format!("Query {text}")]);
        rig.pass_us(1_000);
        if changes {
            // Another worker's client has altered a table since both were sent.
            rig.shared.begin_changes();
        }
        rig.send(server, &[rows("a"), rows("b")].concat());
        rig.gets(one);
        rig.gets(two);
        if changes {
            asks_server(&mut rig, two, server, "select 8", "c");
            asks_server(&mut rig, one, server, text, "c");
        } else {
            is_answered(&mut rig, two, "select 8", "a");
            is_answered(&mut rig, one, text, "b");
        }
    }
}

#[test]
fn nothing_is_answered_in_a_transaction() {
    let (mut rig, client, server) = cached("");
    asks_server(&mut rig, client, server, "select 1", "a");
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(server), ["Query begin"]);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets(client);
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn another_session_is_another_question() {
    let (mut rig, client, server) = cached("");
    asks_server(&mut rig, client, server, "select 1", "a");
    let named = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "x")]);
    rig.send(named, &fe::query("select 1"));
    rig.gets_nothing(named);
    rig.gets(server);
    rig.send(server, &[be::replayed(1), shown_as("x"), rows("b")].concat());
    rig.gets(named);
    is_answered(&mut rig, named, "select 1", "b");
    is_answered(&mut rig, client, "select 1", "a");
}

#[test]
fn another_user_is_another_question() {
    let (mut rig, alice, server) = cached("");
    asks_server(&mut rig, alice, server, "select 1", "a");
    let bob = rig.client("bob");
    let own = rig.dialed();
    asks_server(&mut rig, bob, own, "select 1", "b");
    is_answered(&mut rig, bob, "select 1", "b");
    is_answered(&mut rig, alice, "select 1", "a");
}

#[test]
fn definitions_and_rights_that_change_through_pgweir_end_answers() {
    for (text, tag) in [
        ("grant select on t to bob", "GRANT"),
        ("revoke select on t from bob", "REVOKE"),
        ("grant a to bob", "GRANT ROLE"),
        ("alter role bob set search_path = x", "ALTER ROLE"),
        ("alter table t add b int", "ALTER TABLE"),
        ("create policy p on t", "CREATE POLICY"),
        ("drop policy p on t", "DROP POLICY"),
        ("refresh materialized view v", "REFRESH MATERIALIZED VIEW"),
        ("drop table shop.t", "DROP TABLE"),
        ("create table shop.t as select 1", "SELECT 1"),
        ("select 1 into shop.t", "SELECT 1"),
    ] {
        let (mut rig, one, server) = cached("");
        let two = rig.client("alice");
        asks_server(&mut rig, one, server, "select 1", "a");
        runs(&mut rig, two, server, "update t set a = 1", "UPDATE 1");
        is_answered(&mut rig, one, "select 1", "a");
        rig.send(two, &fe::query(text));
        assert_eq!(rig.gets(server), [format!("Query {text}")]);
        rig.send(server, &[be::complete(tag), be::ready('I')].concat());
        rig.gets_loosely(server);
        rig.send(one, &fe::query("select 1"));
        assert!(!rig.gets(one).iter().any(|message| message == "Row a"), "{text}");
    }
}

#[test]
fn a_change_counts_when_it_is_committed_though_a_transaction_goes_on() {
    for (texts, tags, status) in [
        (
            &["begin", "revoke select on t from bob", "commit and chain"][..],
            &["BEGIN", "REVOKE", "COMMIT"][..],
            'T',
        ),
        (&["revoke select on t from bob; commit; begin"], &["REVOKE", "COMMIT", "BEGIN"], 'T'),
        (
            &["begin", "revoke select on t from bob; commit; begin"],
            &["BEGIN", "REVOKE", "COMMIT", "BEGIN"],
            'T',
        ),
    ] {
        let (mut rig, one, server) = cached("default_pool_size = 1");
        let two = rig.client("alice");
        asks_server(&mut rig, one, server, "select 1", "a");
        let mut tags = tags.iter().copied();
        for (at, text) in texts.iter().enumerate() {
            rig.send(two, &fe::query(text));
            rig.gets_loosely(server);
            let commands = if at + 1 == texts.len() { 9 } else { 1 };
            let told: Vec<u8> = tags.by_ref().take(commands).flat_map(be::complete).collect();
            rig.send(
                server,
                &[told, be::ready(if at == 0 && texts.len() > 1 { 'T' } else { status })].concat(),
            );
            rig.gets(two);
        }
        rig.send(one, &fe::query("select 1"));
        assert!(rig.gets(one).is_empty(), "{texts:?}");
    }
}

#[test]
fn answers_with_more_than_was_asked_for_are_not_kept() {
    let notice = [be::columns(), be::notice("x"), be::row("a"), be::complete("SELECT 1"), be::ready('I')];
    let status = [
        be::columns(),
        be::row("a"),
        be::complete("SELECT 1"),
        be::parameter("TimeZone", "GMT"),
        be::ready('I'),
    ];
    let failed = [be::columns(), be::error("22012", "division by zero"), be::ready('I')];
    for answer in [notice.concat(), status.concat(), failed.concat()] {
        let (mut rig, client, server) = cached("");
        rig.send(client, &fe::query("select 1"));
        rig.gets(server);
        rig.send(server, &answer);
        rig.gets(client);
        rig.send(client, &fe::query("select 1"));
        assert!(!rig.gets(client).iter().any(|message| message.starts_with("Row")));
        assert_eq!(shown(&mut rig, 9), "1", "it is counted");
    }
}

#[test]
fn a_long_answer_is_not_kept() {
    let (mut rig, client, server) = cached("query_cache_max_answer = 100");
    for _ in 0..2 {
        rig.send(client, &fe::query("select 1"));
        rig.gets(server);
        rig.send(server, &rows(&"x".repeat(100)));
        rig.gets(client);
    }
    assert_eq!((&*shown(&mut rig, 8), &*shown(&mut rig, 3)), ("2", "0"));
}

#[test]
fn answers_take_no_more_than_their_bytes() {
    let (mut rig, client, server) = cached("query_cache_bytes = 4000\nquery_cache_max_answer = 900");
    for number in 0..40 {
        asks_server(&mut rig, client, server, &format!("select {number}"), "a");
    }
    let bytes: u64 = shown(&mut rig, 4).parse().expect("a number");
    assert!((1000..=4000).contains(&bytes), "{bytes}");
    let [kept, evicted] = [3, 10].map(|at| shown(&mut rig, at).parse::<u64>().expect("a number"));
    assert_eq!(kept + evicted, 40);
}

#[test]
fn a_lost_server_or_a_client_that_leaves_teaches_nothing() {
    let (mut rig, client, server) = cached("");
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    rig.send(server, &rows("a")[..20]);
    rig.eof(server);
    let (mut rig, client, server) = {
        drop((rig, client));
        cached("")
    };
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    rig.send(server, &rows("a")[..20]);
    rig.eof(client);
    rig.send(server, &rows("a")[20..]);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 1"));
    assert!(rig.gets(other).is_empty(), "nothing was kept");
    assert_eq!(shown(&mut rig, 3), "0");
}

#[test]
fn pause_holds_answers_and_purge_and_reconnect_drop_them() {
    let (mut rig, client, server) = cached("");
    asks_server(&mut rig, client, server, "select 1", "a");
    let console = rig.console();
    rig.command(console, "PAUSE app");
    rig.send(client, &fe::query("select 1"));
    rig.gets_nothing(client);
    rig.command(console, "RESUME app");
    assert_eq!(rig.gets(client)[1], "Row a");
    rig.send(client, &fe::query("select 2"));
    let server = rig.next_server();
    rig.gets(server);
    rig.send(server, &rows("b"));
    rig.gets(client);
    is_answered(&mut rig, client, "select 1", "a");
    assert_eq!(rig.command(console, "CACHE PURGE app"), ["Complete CACHE PURGE", "Ready I"]);
    assert_eq!(shown(&mut rig, 3), "0");
    rig.pass_us(1_000);
    asks_server(&mut rig, client, server, "select 1", "c");
    is_answered(&mut rig, client, "select 1", "c");
    rig.command(console, "CACHE PURGE other");
    is_answered(&mut rig, client, "select 1", "c");
    rig.command(console, "RECONNECT app");
    rig.send(client, &fe::query("select 1"));
    rig.gets_nothing(client);
    assert!(rig.command(console, "CACHE EMPTY")[0].starts_with("ERROR"));
}

#[test]
fn a_purge_ends_an_answer_that_is_on_its_way() {
    let (mut rig, client, server) = cached("");
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    let console = rig.console();
    rig.command(console, "CACHE PURGE");
    rig.send(server, &rows("a"));
    rig.gets(client);
    asks_server(&mut rig, client, server, "select 1", "b");
}

#[test]
fn a_client_that_does_not_read_is_not_answered_on_and_on() {
    let (mut rig, client, server) = cached("");
    let value = "x".repeat(60_000);
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    rig.send(server, &rows(&value));
    rig.gets(client);
    rig.stop_taking(client);
    for _ in 0..50 {
        rig.send(client, &fe::query("select 1"));
    }
    assert!(rig.backlog(client) < 2_000_000, "{}", rig.backlog(client));
    assert!(rig.is_paused(client));
    rig.take_again(client);
    assert_eq!(rig.gets(client).len(), 200, "each is answered in the end");
}

#[test]
fn prepared_statements_count_by_what_they_are() {
    let (mut rig, one, server) = cached("");
    let two = rig.client("alice");
    for (client, name) in [(one, "s1"), (two, "other")] {
        rig.send(client, &[fe::parse(name, "select $1"), fe::sync()].concat());
        if rig.gets(server).len() > 1 {
            rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
        }
        rig.gets(client);
    }
    let bind =
        |name: &str, value: &str| [fe::bind_values(name, &[value]), fe::execute(), fe::sync()].concat();
    rig.send(one, &bind("s1", "x"));
    rig.gets(server);
    let answer = [be::bind_complete(), be::row("x"), be::complete("SELECT 1"), be::ready('I')].concat();
    rig.send(server, &answer);
    let told = rig.gets(one);
    // The Parse of each may have been a change.
    rig.pass_us(1_000);
    rig.send(two, &bind("other", "x"));
    if rig.gets(server).len() > 1 {
        rig.send(server, &answer);
        rig.gets(two);
        rig.send(two, &bind("other", "x"));
    }
    assert_eq!(rig.gets(two), told);
    rig.send(two, &bind("other", "y"));
    assert_eq!(rig.gets(server).len(), 3, "another value");
}

#[test]
fn an_unnamed_statement_is_answered_with_what_was_asked_about_it() {
    let (mut rig, client, server) = cached("");
    let plain = [fe::parse("", "select 1"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let described =
        [fe::parse("", "select 1"), fe::bind(""), fe::describe_portal(), fe::execute(), fe::sync()].concat();
    rig.send(client, &plain);
    rig.gets(server);
    let head = [be::parse_complete(), be::bind_complete()].concat();
    let tail = [be::row("a"), be::complete("SELECT 1"), be::ready('I')].concat();
    rig.send(server, &[head.clone(), tail.clone()].concat());
    let told = rig.gets(client);
    rig.send(client, &plain);
    assert_eq!(rig.gets(client), told);
    rig.send(client, &described);
    assert_eq!(rig.gets(server).len(), 5, "its answer has no columns");
    rig.send(server, &[head, be::columns(), tail].concat());
    let told = rig.gets(client);
    rig.send(client, &described);
    assert_eq!(rig.gets(client), told);
}

#[test]
fn what_cannot_be_answered_says_why() {
    for (main, expected) in [
        ("", "off: query_cache=off"),
        ("query_cache = on\n[cache]\nx = database=other ttl_ms=1\n[pgweir]", "off: no rule"),
        ("query_cache = on\npool_mode = session\n[cache]\nx = ttl_ms=1\n[pgweir]", "off: pool_mode=session"),
        (
            "query_cache = on\nsession_state = pgbouncer\n[cache]\nx = ttl_ms=1\n[pgweir]",
            "off: session_state=pgbouncer",
        ),
    ] {
        let mut rig = Rig::new(main);
        let client = rig.client("alice");
        let server = rig.dialed();
        assert_eq!(shown(&mut rig, 2), expected);
        for value in ["a", "b"] {
            asks_server(&mut rig, client, server, "select 1", value);
        }
    }
}

#[test]
fn a_successor_begins_empty() {
    let (mut rig, client, server) = cached("");
    asks_server(&mut rig, client, server, "select 1", "a");
    rig.take_over(&format!("pool_mode = transaction\n{ON}"), "app = host=pg");
    rig.send(client, &fe::query("select 1"));
    assert!(!rig.gets(client).iter().any(|message| message == "Row a"));
}

/// The messages that a server gets for a BEGIN that the client was told of before.
pub(super) fn begin_ahead(begin: &str) -> Vec<String> {
    vec![format!("Parse  {begin}"), "Bind ".to_owned(), "Execute".to_owned()]
}

/// The server's answers to a BEGIN that was sent ahead.
pub(super) fn begun() -> Vec<u8> {
    [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat()
}

/// The rows of a statement in a transaction.
pub(super) fn rows_inside(value: &str) -> Vec<u8> {
    [be::columns(), be::row(value), be::complete("SELECT 1"), be::ready('T')].concat()
}

/// The client begins, is told so without a server, and asks; the server begins with that, and answers.
fn begins_at_server(rig: &mut Rig, client: End, server: End, (begin, text): (&str, &str), value: &str) {
    rig.send(client, &fe::query(begin));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.gets_nothing(server);
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [begin_ahead(begin), vec![format!("Query {text}")]].concat());
    rig.send(server, &[begun(), rows_inside(value)].concat());
    assert_eq!(rig.gets(client)[1], format!("Row {value}"));
}

/// The client ends its transaction at its server.
fn ends_at_server(rig: &mut Rig, client: End, server: End) {
    runs(rig, client, server, "commit", "COMMIT");
}

#[test]
fn a_transaction_is_answered_until_its_first_statement_that_needs_a_server() {
    // The level of new connections is read with the catalog, whatever else asks for the catalog.
    let alone = "defer_begin = packet\nmultiplex_depth = 0\nsession_audit_sample = 0";
    for main in ["defer_begin = server", "defer_begin = packet", alone] {
        let (mut rig, client, server) = cached(main);
        asks_server(&mut rig, client, server, "select 1", "a");
        asks_server(&mut rig, client, server, "select 2", "b");
        let extended = [fe::parse("", "begin"), fe::bind(""), fe::execute(), fe::sync()].concat();
        for begin in [fe::query("begin"), extended] {
            rig.send(client, &begin);
            assert!(rig.gets(client).ends_with(&["Ready T".to_owned()]), "{main}");
            for (text, value) in [("select 1", "a"), ("select 2", "b"), ("select 1", "a")] {
                rig.send(client, &fe::query(text));
                let told = rig.gets(client);
                assert_eq!((&*told[1], &*told[3]), (&*format!("Row {value}"), "Ready T"), "{main}");
            }
            rig.send(client, &fe::query("commit"));
            assert_eq!(rig.gets(client), ["Complete COMMIT", "Ready I"]);
        }
        // In one packet, too.
        let packet = [fe::query("begin"), fe::query("select 1"), fe::query("commit")].concat();
        rig.send(client, &packet);
        let told = rig.gets(client);
        assert_eq!((&*told[3], &*told[5], &*told[7]), ("Row a", "Ready T", "Ready I"), "{main} {told:?}");
        rig.gets_nothing(server);
        rig.send(client, &[fe::query("begin"), fe::query("select 1"), fe::query("delete from t")].concat());
        assert_eq!(rig.gets(server), [begin_ahead("begin"), vec!["Query delete from t".to_owned()]].concat());
        rig.send(server, &[begun(), be::complete("DELETE 1"), be::ready('T')].concat());
        rig.gets(client);
        rig.pass_us(1);
        // Its own change is not in the answer.
        rig.send(client, &fe::query("select 1"));
        assert_eq!(rig.gets(server), ["Query select 1"]);
        rig.send(server, &rows_inside("c"));
        ends_at_server(&mut rig, client, server);
        rig.gets(client);
        asks_server(&mut rig, client, server, "select 1", "d");
    }
}

#[test]
fn the_first_answer_in_a_transaction_is_kept() {
    let (mut rig, client, server) = cached("defer_begin = packet");
    begins_at_server(&mut rig, client, server, ("begin", "select 1"), "a");
    // The second one sees what its transaction did before it.
    rig.send(client, &fe::query("select 2"));
    rig.gets(server);
    rig.send(server, &rows_inside("b"));
    ends_at_server(&mut rig, client, server);
    let other = rig.client("alice");
    is_answered(&mut rig, other, "select 1", "a");
    asks_server(&mut rig, other, server, "select 2", "b");
    rig.send(other, &[fe::query("begin"), fe::query("select 1"), fe::query("select 2")].concat());
    let told = rig.gets(other);
    assert_eq!((&*told[3], &*told[7]), ("Row a", "Row b"), "{told:?}");
}

#[test]
fn a_transaction_that_only_reads_changes_nothing() {
    for main in ["defer_begin = packet", "defer_begin = off"] {
        let (mut rig, client, server) = cached(main);
        asks_server(&mut rig, client, server, "select 1", "a");
        rig.pass_us(1);
        rig.send(client, &fe::query("begin"));
        if main.ends_with("off") {
            assert_eq!(rig.gets(server), ["Query begin"]);
            rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
            rig.gets(client);
        }
        rig.send(client, &fe::query("select 2"));
        rig.gets(server);
        let opened = if main.ends_with("off") { Vec::new() } else { begun() };
        rig.send(server, &[opened, rows_inside("b")].concat());
        ends_at_server(&mut rig, client, server);
        rig.pass_us(1);
        is_answered(&mut rig, client, "select 1", "a");
        // What was changed before the end counts.
        rig.send(client, &[fe::query("begin"), fe::query("delete from t")].concat());
        rig.gets(server);
        if main.ends_with("off") {
            rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
        } else {
            rig.send(server, &begun());
        }
        rig.send(server, &[be::complete("DELETE 1"), be::ready('T')].concat());
        ends_at_server(&mut rig, client, server);
        rig.pass_us(1);
        asks_server(&mut rig, client, server, "select 1", "c");
    }
}

#[test]
fn a_transaction_with_another_snapshot_is_not_answered_and_its_answers_are_not_kept() {
    for begin in ["begin isolation level repeatable read", "begin isolation level serializable read only"] {
        let (mut rig, client, server) = cached("defer_begin = server");
        asks_server(&mut rig, client, server, "select 1", "a");
        begins_at_server(&mut rig, client, server, (begin, "select 1"), "b");
        ends_at_server(&mut rig, client, server);
        for value in ["c", "d"] {
            begins_at_server(&mut rig, client, server, (begin, "select 2"), value);
            ends_at_server(&mut rig, client, server);
        }
        asks_server(&mut rig, client, server, "select 2", "e");
    }
    // The same of a server whose sessions begin with another level, and of one of which that is not known.
    for level in ["repeatable read", ""] {
        let (mut rig, client, server) = cached("defer_begin = server");
        rig.catalog = Some(vec![["i", level, ""]]);
        rig.reload(
            &format!("pool_mode = transaction\ndefer_begin = server\nmax_prepared_statements = 9\n{ON}"),
            "app = host=pg",
        );
        asks_server(&mut rig, client, server, "select 0", "x");
        asks_server(&mut rig, client, server, "select 1", "a");
        is_answered(&mut rig, client, "select 1", "a");
        begins_at_server(&mut rig, client, server, ("begin", "select 1"), "b");
        ends_at_server(&mut rig, client, server);
    }
}

#[test]
fn answers_do_not_pass_between_transactions_of_different_modes() {
    let (mut rig, client, server) = cached("defer_begin = packet");
    let text = "select current_setting('transaction_read_only')";
    asks_server(&mut rig, client, server, text, "off");
    begins_at_server(&mut rig, client, server, ("begin read only", text), "on");
    ends_at_server(&mut rig, client, server);
    rig.send(client, &[fe::query("begin read only"), fe::query(text), fe::query("commit")].concat());
    assert_eq!(rig.gets(client)[3], "Row on");
    rig.send(client, &[fe::query("begin"), fe::query(text), fe::query("commit")].concat());
    assert_eq!(rig.gets(client)[3], "Row off");
}

#[test]
fn a_transaction_of_a_client_that_keeps_its_server_fills_nothing() {
    let (mut rig, client, server) = cached("defer_begin = packet");
    rig.send(client, &fe::query("create temp table t (a int)"));
    rig.gets(server);
    rig.send(server, &[be::complete("CREATE TABLE"), be::ready('I')].concat());
    rig.gets_loosely(server);
    rig.send(server, &be::answer(&[&["t", "", ""]]));
    rig.gets(client);
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.send(client, &fe::query("select a from t"));
    rig.gets(server);
    rig.send(server, &[begun(), rows_inside("temporary")].concat());
    rig.gets(client);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select a from t"));
    let second = rig.next_server();
    assert_eq!(rig.gets(second), ["Query select a from t"]);
    rig.send(second, &rows("lasting"));
    assert_eq!(rig.gets(other)[1], "Row lasting");
}

/// One server, which runs a statement of `first`; then `count` others ask for the same, and wait.
fn herd(main: &str, count: usize) -> (Rig, End, End, Vec<End>) {
    let mut rig = Rig::new(&format!("default_pool_size = 1\nmultiplex_depth = 0\n{main}"));
    let first = rig.client("alice");
    let server = rig.dialed();
    rig.send(first, &fe::query("select 1"));
    rig.gets(server);
    let others: Vec<End> = (0..count).map(|_| rig.client("alice")).collect();
    for other in &others {
        rig.pass_us(1);
        rig.send(*other, &fe::query("select 1"));
        assert!(rig.gets(*other).is_empty());
    }
    rig.pass_us(1);
    (rig, first, server, others)
}

#[test]
fn of_the_same_reads_that_wait_one_runs() {
    for main in ["query_cache = coalesce", ON] {
        let on = main == ON;
        let (mut rig, first, server, others) = herd(main, 4);
        rig.send(server, &rows("a"));
        assert_eq!(rig.gets(first)[1], "Row a");
        if on {
            // This answer is no older than the rule allows.
            others.iter().for_each(|other| assert_eq!(rig.gets(*other)[1], "Row a"));
            rig.gets_nothing(server);
            continue;
        }
        // They came when it was under way: it may be older than their questions.
        assert_eq!(rig.gets(server), ["Query select 1"]);
        let late = rig.client("alice");
        rig.pass_us(1);
        rig.send(late, &fe::query("select 1"));
        rig.send(server, &rows("b"));
        others.iter().for_each(|other| assert_eq!(rig.gets(*other)[1], "Row b"));
        assert_eq!(rig.gets(server), ["Query select 1"]);
        rig.send(server, &rows("c"));
        assert_eq!(rig.gets(late)[1], "Row c");
        assert_eq!((&*shown(&mut rig, 5), &*shown(&mut rig, 13)), ("3", "3"));
        // Nothing is given to anybody who did not wait, nor looked up for them.
        asks_server(&mut rig, first, server, "select 1", "d");
        assert_eq!(shown(&mut rig, 6), "0");
    }
}

#[test]
fn what_else_a_waiting_client_has_sent_follows_its_answer() {
    let (mut rig, first, server, others) = herd("query_cache = coalesce", 2);
    rig.send(others[1], &[fe::query("select 2"), fe::query("delete from t")].concat());
    rig.send(server, &rows("a"));
    rig.gets(first);
    rig.gets(server);
    rig.pass_us(1);
    rig.send(server, &rows("b"));
    assert_eq!(rig.gets(others[0])[1], "Row b");
    assert_eq!(rig.gets(others[1])[1], "Row b");
    assert_eq!(rig.gets(server), ["Query select 2", "Query delete from t"]);
    rig.send(server, &rows("c"));
    assert_eq!(rig.gets(others[1])[1], "Row c");
}

#[test]
fn an_error_is_its_own_clients_and_the_next_one_asks() {
    let (mut rig, first, server, others) = herd("query_cache = coalesce", 3);
    rig.send(server, &rows("a"));
    rig.gets(first);
    rig.gets(server);
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    assert!(rig.gets(others[0])[0].starts_with("ERROR 57014"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &rows("b"));
    assert_eq!((&*rig.gets(others[1])[1], &*rig.gets(others[2])[1]), ("Row b", "Row b"));
}

#[test]
fn waiting_clients_get_nothing_from_before_a_change_and_nothing_of_other_clients() {
    let (mut rig, first, server, others) = herd("query_cache = coalesce", 2);
    let renamed = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "other")]);
    rig.send(renamed, &fe::query("select 1"));
    let changes = rig.client("alice");
    rig.send(changes, &fe::query("revoke select on t from alice"));
    rig.send(server, &rows("a"));
    rig.gets(first);
    rig.gets(server);
    // While it is under way, a right is taken away elsewhere in this pooler.
    rig.send(server, &rows("b"));
    assert_eq!(rig.gets(others[0])[1], "Row b");
    assert_eq!(rig.gets(others[1])[1], "Row b");
    let sent = rig.gets(server).concat();
    assert!(sent.contains("select 1"), "of other settings: {sent}");
}

#[test]
fn a_client_that_was_answered_in_the_queue_has_no_place_there_any_more() {
    let (mut rig, first, server, others) = herd("query_cache = coalesce", 2);
    rig.send(others[1], &fe::query("select 2"));
    let last = rig.client("alice");
    rig.send(last, &fe::query("select 3"));
    rig.send(server, &rows("a"));
    rig.gets(first);
    rig.gets(server);
    rig.pass_us(1);
    rig.send(server, &rows("b"));
    assert_eq!(rig.gets(others[1])[1], "Row b");
    // Its next statement comes behind those that wait.
    assert_eq!(rig.gets(server), ["Query select 3"]);
    rig.send(server, &rows("c"));
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_client_that_was_answered_in_the_queue_is_idle_from_then_on() {
    let (mut rig, first, server, others) = herd("query_cache = coalesce\nclient_idle_timeout = 3", 2);
    rig.send(server, &rows("a"));
    rig.gets(first);
    rig.gets(server);
    rig.pass_s(2);
    rig.send(server, &rows("b"));
    assert_eq!(rig.gets(others[1])[1], "Row b");
    rig.pass_s(2);
    assert!(!rig.is_closed(others[1]), "it has waited for two seconds, and was idle for two");
    rig.pass_s(3);
    assert!(rig.is_closed(others[1]));
}
