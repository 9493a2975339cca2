//! Routines that change their session: no client gets a server before it is known which do. After a client
//! calls one, its session is asked.

use crate::rig::{End, Rig, be, fe};

/// A pool with a catalog that says this.
fn with_catalog(settings: &str, rows: &[[&'static str; 3]]) -> (Rig, End, End) {
    begun(settings, Some(rows.to_vec()))
}

/// The same, or (`None`) a pool with servers that are asked and have not answered yet.
fn begun(settings: &str, catalog: Option<Vec<[&'static str; 3]>>) -> (Rig, End, End) {
    let mut rig = Rig::new(settings);
    rig.catalog = catalog;
    let client = rig.client("alice");
    let server = rig.dialed();
    (rig, client, server)
}

/// A statement, answered; returns what its server is asked after it.
fn run(rig: &mut Rig, client: End, server: End, text: &str) -> Vec<String> {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    let asked = rig.gets(server);
    if asked.is_empty() {
        assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    }
    asked
}

#[test]
fn no_client_gets_a_server_before_it_has_said_what_changes_sessions() {
    let (mut rig, client, server) = begun("default_pool_size = 2", None);
    rig.send(client, &fe::query("select set_tenant('a')"));
    let asked = rig.gets(server);
    assert!(asked.len() == 1 && asked[0].contains("bytes"), "the question is a long text: {asked:?}");
    rig.send(server, &be::answer(&[&["o", "1", "set_tenant"], &["g", "1", ""], &["u", "app.tenant", ""]]));
    assert_eq!(rig.gets(server), ["Query select set_tenant('a')"]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(server).len(), 1, "its session is asked");
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
}

#[test]
fn a_client_that_calls_one_has_its_session_asked() {
    let rows = [["g", "Set_Tenant", ""], ["g", "audited things", ""]];
    let (mut rig, client, server) = with_catalog("default_pool_size = 1", &rows);
    assert!(run(&mut rig, client, server, "select 1, set_tenants()").is_empty());
    for text in
        ["SELECT app.SET_TENANT($$x$$)", "insert into \"audited things\" values (1)", "do_it(set_tenant)"]
    {
        assert_eq!(run(&mut rig, client, server, text).len(), 1, "{text}");
        rig.send(server, &be::answer(&[&["s", "role", "none"]]));
        assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    }
    let parse = fe::parse("p", "select set_tenant($1)");
    let runs = [fe::bind("p"), fe::execute(), fe::sync()].concat();
    for round in 0..2 {
        rig.send(client, &if round == 0 { [&*parse, &*runs].concat() } else { runs.clone() });
        rig.gets(server);
        let parsed = if round == 0 { be::parse_complete() } else { Vec::new() };
        rig.send(server, &[parsed, be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat());
        assert_eq!(rig.gets(server).len(), 1, "round {round}");
        rig.send(server, &be::answer(&[&["s", "role", "none"]]));
        assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    }
}

#[test]
fn what_sql_prepared_calls_one_too() {
    let (mut rig, client, server) = with_catalog("default_pool_size = 1", &[["g", "set_tenant", ""]]);
    let text = "PREPARE p AS SELECT set_tenant('a')";
    assert_eq!(run(&mut rig, client, server, text).len(), 1);
    rig.send(server, &be::answer(&[&["p", "p", text]]));
    rig.gets(client);
    assert_eq!(run(&mut rig, client, server, "EXECUTE p").len(), 1);
    rig.send(server, &be::answer(&[&["p", "p", text]]));
    rig.gets(client);
    rig.send(client, &[fe::bind("p"), fe::execute(), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Bind p", "Execute", "Sync"]);
    rig.send(server, &[be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(server).len(), 1);
}

#[test]
fn none_is_queued_behind_one() {
    let settings = "default_pool_size = 1\nmultiplex_servers = 1";
    let reads = ["r", "set_tenant", ""];
    for state in ["", "session_state = pgbouncer"] {
        for (rows, multiplexing) in [(vec![reads], true), (vec![reads, ["g", "set_tenant", ""]], false)] {
            let (mut rig, one, server) = with_catalog(&format!("{settings}\n{state}"), &rows);
            let two = rig.client("alice");
            for _ in 0..3 {
                rig.send(one, &fe::query("select set_tenant('a')"));
                rig.gets(server);
                rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
                if !multiplexing && state.is_empty() {
                    rig.gets(server);
                    rig.send(server, &be::answer(&[&["s", "role", "none"]]));
                }
            }
            rig.send(one, &fe::query("select set_tenant('a')"));
            rig.gets(server);
            rig.send(two, &fe::query("select set_tenant('b')"));
            assert_eq!(rig.gets(server).len(), usize::from(multiplexing), "{state} {rows:?}");
        }
    }
}

/// A pool of two servers with two clients and a third one that changes code, whose texts are known to be short.
fn with_short_texts(state: &str, rows: &[[&'static str; 3]]) -> (Rig, [End; 3], [End; 2]) {
    let settings = format!("default_pool_size = 2\nmultiplex_servers = 1\n{state}");
    let (mut rig, one, first) = with_catalog(&settings, rows);
    let (two, maker) = (rig.client("alice"), rig.client("alice"));
    for _ in 0..3 {
        assert!(run(&mut rig, one, first, "select total(1)").is_empty());
    }
    rig.send(one, &fe::query("begin"));
    assert_eq!(rig.gets(first), ["Query begin"]);
    rig.send(maker, &fe::query("create function total"));
    let second = rig.dialed();
    rig.greet(second);
    assert_eq!(rig.gets(second), ["Query create function total"]);
    rig.send(first, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets_raw(one);
    rig.send(one, &fe::query("commit"));
    assert_eq!(rig.gets(first), ["Query commit"]);
    rig.send(first, &[be::complete("COMMIT"), be::ready('I')].concat());
    rig.gets_raw(one);
    (rig, [one, two, maker], [first, second])
}

#[test]
fn a_text_is_judged_anew_when_the_catalog_says_something_else() {
    for (now, multiplexing) in [("r", true), ("v", false)] {
        let (mut rig, [one, two, maker], [first, second]) = with_short_texts("", &[["r", "total", ""]]);
        rig.catalog = Some(vec![[now, "total", ""]]);
        rig.send(second, &[be::complete("CREATE FUNCTION"), be::ready('I')].concat());
        rig.gets_raw(maker);
        rig.send(one, &fe::query("select total(1)"));
        rig.send(two, &fe::query("select total(1)"));
        let told = [rig.gets(first).len(), rig.gets(second).len()];
        assert_eq!(told.contains(&2), multiplexing, "{now} {told:?}");
        assert_eq!(told.iter().sum::<usize>(), 2);
    }
}

#[test]
fn what_the_catalog_said_does_not_count_once_code_was_made() {
    for state in ["", "session_state = pgbouncer"] {
        for changes in [false, true] {
            let (mut rig, [one, two, maker], [first, second]) =
                with_short_texts(state, &[["r", "total", ""]]);
            rig.catalog = None;
            if changes {
                rig.send(second, &[be::complete("CREATE FUNCTION"), be::ready('I')].concat());
                rig.gets_raw(maker);
                assert_eq!(rig.gets(second).len(), 1, "the catalog is asked");
            }
            rig.send(one, &fe::query("select total(1)"));
            rig.send(two, &fe::query("select total(1)"));
            assert_eq!(rig.gets(first).len(), if changes { 1 } else { 2 }, "{state}");
        }
    }
}

#[test]
fn what_is_made_meanwhile_is_read_at_the_next_release() {
    let (mut rig, client, server) = with_catalog("default_pool_size = 1", &[]);
    assert!(run(&mut rig, client, server, "select set_tenant('a')").is_empty());
    rig.catalog = Some(vec![["g", "set_tenant", ""]]);
    rig.send(client, &fe::query("create function set_tenant(text) ..."));
    rig.gets(server);
    rig.send(server, &[be::complete("CREATE FUNCTION"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete CREATE FUNCTION", "Ready I"]);
    assert_eq!(run(&mut rig, client, server, "select set_tenant('a')").len(), 1);
}

#[test]
fn what_waited_while_code_was_made_is_judged_anew() {
    let (mut rig, maker, first) = with_catalog("default_pool_size = 2", &[]);
    let (busy, caller) = (rig.client("alice"), rig.client("alice"));
    assert!(run(&mut rig, caller, first, "select set_tenant('a')").is_empty());
    rig.send(maker, &fe::query("begin"));
    rig.gets(first);
    rig.send(first, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets_raw(maker);
    rig.send(busy, &fe::query("begin"));
    let second = rig.dialed();
    rig.greet(second);
    assert_eq!(rig.gets(second), ["Query begin"]);
    rig.send(caller, &fe::query("select set_tenant('b')"));
    rig.catalog = None;
    for (text, tag, status) in
        [("create or replace function set_tenant", "CREATE FUNCTION", 'T'), ("commit", "COMMIT", 'I')]
    {
        rig.send(maker, &fe::query(text));
        assert_eq!(rig.gets(first), [format!("Query {text}")]);
        rig.send(first, &[be::complete(tag), be::ready(status)].concat());
        assert_eq!(rig.gets(maker), [format!("Complete {tag}"), format!("Ready {status}")]);
    }
    assert_eq!(rig.gets(first).len(), 1, "the catalog is asked");
    rig.send(second, &[be::error("57014", "canceled"), be::ready('I')].concat());
    assert_eq!(rig.gets(second), ["Query select set_tenant('b')"]);
    rig.send(second, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(second).len(), 1, "its session is asked");
}

#[test]
fn one_server_is_asked_at_a_time() {
    let (mut rig, one, first) = with_catalog("default_pool_size = 2", &[]);
    let two = rig.client("alice");
    let mut begins = |client, server: Option<End>| {
        rig.send(client, &fe::query("begin"));
        let server = server.unwrap_or_else(|| rig.dialed());
        if rig.gets(server).is_empty() {
            rig.greet(server);
            rig.gets(server);
        }
        rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
        rig.gets_raw(client);
        server
    };
    begins(one, Some(first));
    let second = begins(two, None);
    rig.catalog = None;
    let mut makes = |client, server| {
        for (text, tag, status) in
            [("create function f()", "CREATE FUNCTION", 'T'), ("commit", "COMMIT", 'I')]
        {
            rig.send(client, &fe::query(text));
            rig.gets(server);
            rig.send(server, &[be::complete(tag), be::ready(status)].concat());
            rig.gets_raw(client);
        }
        rig.gets(server)
    };
    assert_eq!(makes(one, first).len(), 1, "it is asked");
    assert_eq!(makes(two, second).len(), 1, "the other one is asked for its session");
    rig.send(second, &be::answer(&[&["s", "role", "none"]]));
    assert!(rig.gets(second).is_empty(), "and for nothing else");
    rig.gets_raw(two);
    assert_eq!(audited(&mut rig, two, second, "select 1"), 1, "what the code does is not known yet");
    rig.send(first, &be::answer(&[&["o", "1", "set_tenant"], &["g", "1", ""]]));
    assert_eq!(rig.gets(first), Vec::<String>::new());
    // What was made since the question is still to be read.
    assert_eq!(audited(&mut rig, one, first, "select 2"), 1);
    assert_eq!(rig.gets(first).len(), 1, "it is asked again");
    rig.send(first, &be::answer(&[&["o", "1", "set_tenant"], &["g", "1", ""]]));
    assert!(run(&mut rig, one, first, "select 3").is_empty());
}

/// Runs a statement; returns how often its session was asked after it.
fn audited(rig: &mut Rig, client: End, server: End, text: &str) -> usize {
    let asked = run(rig, client, server, text).len();
    if asked > 0 {
        rig.send(server, &be::answer(&[&["s", "role", "none"]]));
        assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    }
    asked
}

#[test]
fn names_lead_to_code_by_what_runs_it() {
    let rows = [
        ["g", "setter", ""],
        ["d", "caller", "bsetter"],
        ["o", "caller", "log_in"],
        ["d", "trigger", "rsetter"],
        ["d", "visits", "wtrigger"],
        ["o", "visits", "visits"],
        ["d", "shown", "rcaller"],
        ["o", "shown", "Shown"],
        ["d", "operator", "rsetter"],
        ["o", "operator", "###"],
    ];
    let (mut rig, client, server) = with_catalog("default_pool_size = 1", &rows);
    for text in [
        "select log_in('a')",
        "table shown",
        "select a###b",
        "insert into visits values (1)",
        "with a as (delete from visits) select 1",
    ] {
        assert_eq!(audited(&mut rig, client, server, text), 1, "{text}");
    }
    for text in ["select a from visits", "insert into visit values (1)", "select a ## b"] {
        assert_eq!(audited(&mut rig, client, server, text), 0, "{text}");
    }
}

#[test]
fn the_length_of_a_message_is_no_letter_of_its_text() {
    let rows = [["g", "setter", ""], ["d", "visits", "wsetter"], ["o", "visits", "visits"]];
    let (mut rig, client, server) = with_catalog("default_pool_size = 1", &rows);
    // With the length itself and the NUL: a letter.
    let text = format!("{:1$}", "delete from visits", usize::from(b'A') - 5);
    for _ in 0..3 {
        assert_eq!(audited(&mut rig, client, server, &text), 1);
    }
}

#[test]
fn code_that_runs_without_being_named_is_run_by_any_text() {
    let rows = [["g", "setter", ""], ["d", "0.0", "rsetter"]];
    let (mut rig, client, server) = with_catalog("default_pool_size = 1", &rows);
    assert_eq!(audited(&mut rig, client, server, "select 1"), 1);
    let rows = [["g", "setter", ""], ["d", "0.3", "rsetter"], ["o", "0.3", "comment"]];
    let (mut rig, client, server) = with_catalog("default_pool_size = 1", &rows);
    for (text, asked) in [("select 1", 0), ("comment on table t is 'x'", 1), ("select a into t from u", 1)] {
        assert_eq!(audited(&mut rig, client, server, text), asked, "{text}");
    }
}

#[test]
fn values_of_a_type_of_users_may_run_code() {
    for (rows, asked) in [(vec![], 0), (vec![["g", "setter", ""]], 1)] {
        let (mut rig, client, server) = with_catalog("default_pool_size = 1", &rows);
        for (name, oid, asked) in [("", 23, 0), ("", 99_999, asked), ("p", 23, 0), ("q", 99_999, asked)] {
            let group =
                [fe::parse_typed(name, "select $1", &[oid]), fe::bind(name), fe::execute(), fe::sync()];
            rig.send(client, &group.concat());
            rig.gets_raw(server);
            let done = [be::parse_complete(), be::bind_complete(), be::complete("SELECT 1"), be::ready('I')];
            rig.send(server, &done.concat());
            assert_eq!(rig.gets(server).len(), asked, "{name} {oid} {rows:?}");
            if asked > 0 {
                rig.send(server, &be::answer(&[&["s", "role", "none"]]));
            }
            rig.gets_raw(client);
        }
        rig.send(client, &[fe::bind("q"), fe::execute(), fe::sync()].concat());
        rig.gets_raw(server);
        rig.send(server, &[be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat());
        assert_eq!(rig.gets(server).len(), asked, "{rows:?}");
    }
}

#[test]
fn code_that_a_transaction_makes_may_run_in_it() {
    let (mut rig, client, server) = with_catalog("default_pool_size = 1", &[]);
    let mut transaction = |texts: &[&str]| {
        let mut asked = 0;
        for text in texts {
            rig.send(client, &fe::query(text));
            rig.gets(server);
            let (tag, status) = match text.split(' ').next() {
                Some("begin") => ("BEGIN", 'T'),
                Some("commit") => ("COMMIT", 'I'),
                Some("create") if text.contains(';') => ("CREATE FUNCTION", 'I'),
                Some("create") => ("CREATE FUNCTION", 'T'),
                _ => ("SELECT 1", 'T'),
            };
            rig.send(server, &[be::complete(tag), be::ready(status)].concat());
            asked = rig.gets(server).len();
            if asked > 0 {
                rig.send(server, &be::answer(&[&["s", "role", "none"]]));
            }
            rig.gets_raw(client);
        }
        asked
    };
    let make = "create function f() returns text language sql as 'select set_config(''a.b'', ''c'', false)'";
    assert_eq!(transaction(&["begin", make, "select f()", "commit"]), 1);
    assert_eq!(transaction(&[&format!("{make}; select f()")]), 1);
    let plain = "create function f() returns int language sql as 'select 1'";
    assert_eq!(transaction(&["begin", plain, "select f()", "commit"]), 0);
}

#[test]
fn temporary_tables_put_nothing_in_doubt() {
    let (mut rig, client, server) = with_catalog("default_pool_size = 1\nsession_state = preserve", &[]);
    rig.catalog = None;
    for (text, follows) in
        [("create temp table t (a int) on commit drop", false), ("create table t (a int)", true)]
    {
        rig.send(client, &fe::query(text));
        rig.gets(server);
        rig.send(server, &[be::complete("CREATE TABLE"), be::ready('I')].concat());
        let mut asked = rig.gets(server);
        if !follows {
            assert_eq!(asked.len(), 1, "its session is asked: {asked:?}");
            rig.send(server, &be::answer(&[&["s", "role", "none"]]));
            asked = rig.gets(server);
        }
        assert_eq!(asked.len(), usize::from(follows), "{text}: {asked:?}");
        rig.gets_raw(client);
    }
}

#[test]
fn it_is_read_again_after_some_time_and_with_the_configuration() {
    for reload in [false, true] {
        let settings = "default_pool_size = 1\nserver_idle_timeout = 0\nserver_check_delay = 10000";
        let (mut rig, client, server) = with_catalog(settings, &[["g", "set_tenant", ""]]);
        rig.catalog = Some(vec![]);
        if reload {
            rig.reload(settings, "app = host=pg");
        } else {
            rig.pass_s(601);
        }
        assert!(run(&mut rig, client, server, "select 1").is_empty());
        assert!(run(&mut rig, client, server, "select set_tenant('a')").is_empty(), "it is gone");
    }
}

#[test]
fn where_a_server_does_not_say_each_client_keeps_its_server() {
    let (mut rig, client, server) = begun("default_pool_size = 1", None);
    rig.gets(server);
    rig.send(server, &[be::error("42P01", "no pg_proc"), be::ready('I')].concat());
    assert!(rig.logged("does not tell which routines change their session: no pg_proc"));
    assert_eq!(run(&mut rig, client, server, "select 1").len(), 1, "any text may change a session");
    rig.send(server, &be::answer(&[&["s", "role", "none"]]));
    rig.gets(client);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.eof(client);
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    rig.catalog = Some(vec![["g", "set_tenant", ""]]);
    rig.reload("default_pool_size = 1", "app = host=pg");
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query select 2"], "it is asked again, and says so");
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(other);
    assert!(run(&mut rig, other, server, "select 3").is_empty());
    assert_eq!(run(&mut rig, other, server, "select set_tenant('a')").len(), 1);
}

#[test]
fn rows_that_were_not_asked_for_name_nothing() {
    let (mut rig, client, server) = begun("default_pool_size = 1", None);
    rig.gets(server);
    let rows: &[&[&str]] = &[
        &["g"],
        &["g", "one", "two", "three"],
        &[],
        &["x", "select", ""],
        &["g", "", ""],
        &["o", "set_tenant", "set_tenant"],
        &["g", "set_tenant", "x"],
    ];
    rig.send(server, &be::answer(rows));
    assert!(run(&mut rig, client, server, "select one").is_empty());
    assert_eq!(run(&mut rig, client, server, "select set_tenant('a')").len(), 1);
}

#[test]
fn without_looks_it_is_not_read() {
    let settings = "default_pool_size = 1\nsession_audit_sample = 0\nmultiplex_depth = 0";
    let (mut rig, client, server) = begun(settings, None);
    assert!(run(&mut rig, client, server, "select 1").is_empty());
}

#[test]
fn after_session_pooling_the_server_serves_no_other_client() {
    let mut rig = Rig::with("", "app = host=pg pool_mode=session", 1);
    rig.catalog = None;
    let client = rig.client("alice");
    let server = rig.dialed();
    assert!(run(&mut rig, client, server, "select 1").is_empty());
    rig.reload("", "app = host=pg pool_mode=transaction");
    assert_eq!(run(&mut rig, client, server, "select 1"), ["Terminate"]);
}
