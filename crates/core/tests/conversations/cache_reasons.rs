//! The columns `cache`, `cache_hits` and `cache_saved_us` of SHOW STATEMENTS: they agree with the query cache, and with what it would do.

use crate::rig::{End, Rig, be, fe};

/// A pool with a rule that keeps each answer for ten seconds.
const ON: &str = "query_cache = on\n[cache]\nall = ttl_ms=10000\n[pgweir]";

fn start(main: &str) -> (Rig, End, End) {
    let mut rig = Rig::new(main);
    let client = rig.client("alice");
    let server = rig.dialed();
    (rig, client, server)
}

fn rows(value: &str) -> Vec<u8> {
    [be::columns(), be::row(value), be::complete("SELECT 1"), be::ready('I')].concat()
}

/// The client sends these messages. A server that is asked answers with `answer` after a millisecond. Returns whether one was asked.
fn asks(rig: &mut Rig, client: End, server: End, messages: &[u8], answer: &[u8]) -> bool {
    rig.send(client, messages);
    let is_asked = !rig.gets(server).is_empty();
    if is_asked {
        rig.pass_us(1_000);
        rig.send(server, answer);
    }
    let told = rig.gets(client);
    let is_answered = told.last().is_some_and(|message| message.starts_with("Ready"));
    assert!(is_answered, "{:?} is not answered: {told:?}", String::from_utf8_lossy(messages));
    is_asked
}

fn runs(rig: &mut Rig, client: End, server: End, text: &str) -> bool {
    asks(rig, client, server, &fe::query(text), &rows("a"))
}

/// The columns `cache`, `cache_hits` and `cache_saved_us` of the statement with this text without literals, with commas between.
fn shown(rig: &mut Rig, text: &str) -> String {
    let console = rig.console();
    let rows = rig.command(console, "SHOW STATEMENTS");
    let part = format!(",{text},");
    let row = rows.iter().find(|row| row.contains(&part)).unwrap_or_else(|| panic!("no {text} in {rows:?}"));
    row.split_once(&part).expect("it has the text").1.to_owned()
}

fn reason(rig: &mut Rig, text: &str) -> String {
    let shown = shown(rig, text);
    shown.rsplitn(3, ',').last().expect("three columns").to_owned()
}

/// Texts, and the reasons not to keep their answers; "" if they are kept.
const TEXTS: [(&str, &str); 18] = [
    ("select a from t", ""),
    ("select now()", ""),
    ("values (a)", ""),
    ("table t", ""),
    ("with x as (select a from t) select * from x", ""),
    ("select \"a\tb\" from t", "may change data: a?b"),
    ("select 1", ""),
    ("select random()", "function random()"),
    ("select Gen_Random_UUID()", "function Gen_Random_UUID()"),
    ("select f(a) from t", "function f() may change data"),
    ("select * from t for update", "may change data: update"),
    ("select * from pg_class", "state of the server: pg_class"),
    ("with x as (insert into t values (1) returning a) select * from x", "may change data: insert"),
    ("insert into t values (1)", "not a SELECT"),
    ("show work_mem", "not a SELECT"),
    ("explain select 1", "not a SELECT"),
    ("vacuum", "not a SELECT"),
    ("select 1; select 2", "several statements"),
];

/// The text as SHOW STATEMENTS has it.
fn bare(text: &str) -> String {
    let mut bare = Vec::new();
    pgweir_sql::without_literals(text.as_bytes(), |piece| {
        bare.extend_from_slice(piece);
        true
    });
    String::from_utf8_lossy(&bare).replace('\t', "?")
}

#[test]
fn the_column_says_what_the_cache_does() {
    for (text, expected) in TEXTS {
        let (mut rig, client, server) = start(ON);
        assert!(runs(&mut rig, client, server, text));
        // What may change something must be answered before what the client asks next.
        rig.pass_us(1_000);
        let is_kept = !runs(&mut rig, client, server, text);
        assert_eq!(is_kept, expected.is_empty(), "{text}");
        let wanted = if is_kept { "yes" } else { expected };
        assert_eq!(reason(&mut rig, &bare(text)), wanted, "{text}");
    }
}

#[test]
fn without_a_cache_the_column_says_what_it_would_do() {
    for (main, unused) in [("", "off"), ("multiplex_depth = 0", "off"), ("query_cache = on", "no rule")] {
        let (mut rig, client, server) = start(main);
        for (text, expected) in TEXTS {
            runs(&mut rig, client, server, text);
            let wanted = if expected.is_empty() { unused } else { expected };
            assert_eq!(reason(&mut rig, &bare(text)), wanted, "{main}: {text}");
        }
    }
}

#[test]
fn a_long_text_is_judged_as_a_whole() {
    let columns = "column_, ".repeat(400);
    for (end, kept, unused) in [
        ("a from t", "yes", "off"),
        ("random() from t", "function random()", "function random()"),
        ("f(a) from t", "function f() may change data", "function f() may change data"),
    ] {
        for (main, wanted) in [(ON, kept), ("", unused)] {
            let (mut rig, client, server) = start(main);
            runs(&mut rig, client, server, &format!("select {columns}{end}"));
            let console = rig.console();
            let rows = rig.command(console, "SHOW STATEMENTS");
            // The text is shown as a number of bytes here.
            let wanted = format!(" bytes),{wanted},0,0");
            assert!(rows.iter().any(|row| row.ends_with(&wanted)), "{main} {end}: {rows:?}");
        }
    }
}

#[test]
fn hits_and_the_time_that_they_save_are_counted() {
    let (mut rig, client, server) = start(ON);
    runs(&mut rig, client, server, "select a from t where b = 1");
    assert_eq!(shown(&mut rig, "select a from t where b = ?"), "yes,0,0");
    for _ in 0..3 {
        assert!(!runs(&mut rig, client, server, "select a from t where b = 1"));
    }
    assert_eq!(shown(&mut rig, "select a from t where b = ?"), "yes,3,3000");
    assert!(runs(&mut rig, client, server, "select a from t where b = 2"), "another value");
    assert!(!runs(&mut rig, client, server, "select a from t where b = 2"));
    assert_eq!(shown(&mut rig, "select a from t where b = ?"), "yes,4,4000");
    rig.reload("", "app = host=pg");
    assert_eq!(shown(&mut rig, "select a from t where b = ?"), "off,4,4000");
}

#[test]
fn a_prepared_statement_is_hit_under_its_text() {
    let (mut rig, client, server) = start(ON);
    let parse = [fe::parse("s", "select $1"), fe::sync()].concat();
    asks(&mut rig, client, server, &parse, &[be::parse_complete(), be::ready('I')].concat());
    let bind = [fe::bind_values("s", &["x"]), fe::execute(), fe::sync()].concat();
    let answer = [be::bind_complete(), be::row("x"), be::complete("SELECT 1"), be::ready('I')].concat();
    rig.pass_us(1_000);
    assert!(asks(&mut rig, client, server, &bind, &answer));
    assert!(!asks(&mut rig, client, server, &bind, &answer));
    assert_eq!(shown(&mut rig, "select ?"), "yes,1,1000");
}

#[test]
fn a_statement_in_a_transaction_is_not_kept() {
    let open = [be::columns(), be::row("a"), be::complete("SELECT 1"), be::ready('T')].concat();
    for (defer_begin, main, once) in [
        ("packet", ON, "yes"),
        ("server", ON, "yes"),
        ("off", ON, "yes"),
        // Without a cache the first execution counts.
        ("packet", "", "in a transaction"),
        ("server", "multiplex_depth = 0", "in a transaction"),
        ("off", "", "in a transaction"),
    ] {
        let (mut rig, client, server) = start(&format!("{main}\ndefer_begin = {defer_begin}"));
        rig.send(client, &fe::query("begin"));
        if !rig.gets(server).is_empty() {
            rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
        }
        rig.gets(client);
        rig.send(client, &fe::query("select a from t"));
        let begin = if rig.gets(server).len() > 1 {
            [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat()
        } else {
            Vec::new()
        };
        rig.send(server, &[begin, open.clone()].concat());
        rig.gets(client);
        // The first statement of a transaction is kept if its BEGIN was answered before.
        let is_kept = main == ON && defer_begin != "off";
        let first = if is_kept { "yes" } else { "in a transaction" };
        assert_eq!(reason(&mut rig, "select a from t"), first, "{defer_begin} {main}");
        asks(
            &mut rig,
            client,
            server,
            &fe::query("commit"),
            &[be::complete("COMMIT"), be::ready('I')].concat(),
        );
        rig.pass_us(1_000);
        runs(&mut rig, client, server, "select a from t");
        assert_eq!(reason(&mut rig, "select a from t"), once, "{defer_begin} {main}");
    }
}

#[test]
fn a_statement_in_the_packet_of_its_begin_is_not_kept() {
    for (main, expected) in [
        (ON, "sent together with other statements"),
        ("", "in a transaction"),
        ("multiplex_depth = 0", "in a transaction"),
    ] {
        let (mut rig, client, server) = start(main);
        let begin = [fe::parse("", "begin"), fe::bind(""), fe::execute()].concat();
        let select = [fe::parse("", "select a from t"), fe::bind(""), fe::execute()].concat();
        let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
        let answer =
            [be::parse_complete(), be::bind_complete(), be::complete("SELECT 0"), be::ready('T')].concat();
        asks(&mut rig, client, server, &[begin, select, fe::sync()].concat(), &[begun, answer].concat());
        assert_eq!(reason(&mut rig, "select a from t"), expected, "{main}");
    }
}

#[test]
fn an_answer_that_is_not_kept_says_why() {
    let long = rows(&"x".repeat(200));
    let failed = [be::columns(), be::error("22012", "division by zero"), be::ready('I')].concat();
    let (mut rig, client, server) = start(&format!("{ON}\nquery_cache_max_answer = 100"));
    for (answer, expected) in
        [(&long, "answer too long"), (&failed, "answer with an error or a notice"), (&rows("a"), "yes")]
    {
        asks(&mut rig, client, server, &fe::query("select a from t"), answer);
        assert_eq!(reason(&mut rig, "select a from t"), expected);
    }
    let (mut rig, client, server) = start("query_cache_max_answer = 100");
    asks(&mut rig, client, server, &fe::query("select a from t"), &long);
    assert_eq!(reason(&mut rig, "select a from t"), "answer too long");
}

#[test]
fn a_statement_of_no_rule_says_so() {
    let main = "query_cache = on\n[cache]\nx = tables=t application_name=board ttl_ms=1000\n[pgweir]";
    let (mut rig, client, server) = start(main);
    runs(&mut rig, client, server, "select a from t");
    assert_eq!(reason(&mut rig, "select a from t"), "no rule");
    let board = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "board")]);
    rig.send(board, &fe::query("select a from t"));
    rig.gets(server);
    rig.send(server, &[be::replayed(1), be::parameter("application_name", "board"), rows("a")].concat());
    rig.gets(board);
    assert_eq!(reason(&mut rig, "select a from t"), "yes", "the last execution counts");
    rig.reload(&main.replace("1000", "2000"), "app = host=pg");
    assert_eq!(reason(&mut rig, "select a from t"), "not executed since the cache changed");
    rig.reload(&main.replace("tables=t", "database=other"), "app = host=pg");
    assert_eq!(reason(&mut rig, "select a from t"), "no rule");
}

#[test]
fn statements_in_one_packet_are_not_kept() {
    let (mut rig, client, server) = start(ON);
    let two = [fe::query("select a from t"), fe::query("update t set a = 1")].concat();
    let updated = [be::complete("UPDATE 1"), be::ready('I')].concat();
    asks(&mut rig, client, server, &two, &rows("a"));
    rig.gets(server);
    rig.send(server, &updated);
    rig.gets(client);
    let prepared = [fe::parse("s", "select b from t"), fe::bind("s"), fe::execute(), fe::sync()].concat();
    let answer =
        [be::parse_complete(), be::bind_complete(), be::complete("SELECT 0"), be::ready('I')].concat();
    rig.pass_us(1_000);
    asks(&mut rig, client, server, &prepared, &answer);
    assert_eq!(reason(&mut rig, "select b from t"), "sent together with other statements");
}

#[test]
fn a_pool_whose_sessions_are_not_known_says_so() {
    for (main, expected) in
        [("pool_mode = session", "session pooling"), ("session_state = pgbouncer", "session_state=pgbouncer")]
    {
        for switch in ["", ON] {
            let (mut rig, client, server) = start(&format!("{switch}\n{main}"));
            runs(&mut rig, client, server, "select a from t");
            assert_eq!(reason(&mut rig, "select a from t"), expected, "{switch}");
        }
    }
}

#[test]
fn a_reload_of_other_settings_changes_no_reason() {
    let (mut rig, client, server) = start(ON);
    runs(&mut rig, client, server, "select a from t");
    rig.reload(&format!("{ON}\nquery_timeout = 77"), "app = host=pg");
    assert_eq!(reason(&mut rig, "select a from t"), "yes");
}

#[test]
fn with_coalesce_a_statement_may_be_asked_for_by_one_client() {
    let (mut rig, client, server) = start("query_cache = coalesce");
    for (text, expected) in [("select a from t", "yes"), ("select random()", "function random()")] {
        runs(&mut rig, client, server, text);
        assert_eq!(reason(&mut rig, text), expected);
    }
    let mut rig = Rig::new("query_cache = coalesce\n[cache]\nothers = user=bob ttl_ms=1\n[pgweir]");
    let (client, server) = (rig.client("alice"), rig.dialed());
    runs(&mut rig, client, server, "select a from t");
    assert_eq!(reason(&mut rig, "select a from t"), "no rule");
}
