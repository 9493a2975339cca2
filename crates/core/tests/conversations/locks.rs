//! No client waits for a lock that is not its own: nothing is queued behind a statement that may wait for
//! one, and what is queued behind a statement that takes long runs on another server.

use pgweir_core::mail::{Mail, Question, Shutdown};

use crate::rig::{End, Rig, be, fe};

fn answer(text: &str) -> Vec<u8> {
    [be::one_row(text), be::ready('I')].concat()
}

fn answered(text: &str) -> Vec<String> {
    ["Columns", &format!("Row {text}"), "Complete SELECT 1", "Ready I"].map(str::to_owned).to_vec()
}

/// Clients, and the first server of their pool, which has run each of these texts so often that it is known to be short.
fn pool(size: u32, clients: usize, catalog: &[[&'static str; 3]], texts: &[&str]) -> (Rig, Vec<End>, End) {
    pool_with(size, clients, catalog, texts, "")
}

/// The same with further settings.
fn pool_with(
    size: u32,
    clients: usize,
    catalog: &[[&'static str; 3]],
    texts: &[&str],
    main: &str,
) -> (Rig, Vec<End>, End) {
    let mut rig = Rig::new(&format!(
        "default_pool_size = {size}\nmultiplex_servers = 1\nsession_audit_sample = 0\n{main}"
    ));
    rig.catalog = Some(catalog.to_vec());
    let clients: Vec<End> = (0..clients).map(|_| rig.client("alice")).collect();
    let server = rig.dialed();
    for text in texts.iter().chain(&["select 1"]) {
        for _ in 0..2 {
            rig.send(clients[0], &fe::query(text));
            rig.send(server, &answer("1"));
        }
    }
    rig.gets(server);
    rig.gets(clients[0]);
    (rig, clients, server)
}

/// What may wait for a lock of another transaction, or run code of users.
const MAY_WAIT: [&str; 14] = [
    "insert into t values (1)",
    "update t set a = 1",
    "delete from t",
    "merge into t using u on true when matched then delete",
    "select a from t for update",
    "select a from t for no key update",
    "select a from t for share",
    "with changed as (update t set a = 1 returning a) select * from changed",
    "select own()",
    "select \"own\"()",
    "select t.note_it from t",
    "select a from watched",
    "select pg_sleep(0)",
    "select pg_try_advisory_xact_lock(1)",
];

const NAMES: [[&str; 3]; 2] = [["v", "note_it\nwatched", ""], ["r", "total", ""]];

#[test]
fn nothing_is_queued_behind_what_may_wait_for_a_lock() {
    for first in MAY_WAIT {
        let (mut rig, clients, server) = pool(1, 2, &NAMES, &[first]);
        rig.send(clients[0], &fe::query(first));
        rig.send(clients[1], &fe::query("select 1"));
        assert_eq!(rig.gets(server), [format!("Query {first}")]);
    }
    for first in ["select total(a), lower(b) from t", "values (1)", "with x as (select 1) select * from x"] {
        let (mut rig, clients, server) = pool(1, 2, &NAMES, &[first]);
        rig.send(clients[0], &fe::query(first));
        rig.send(clients[1], &fe::query("select 1"));
        assert_eq!(rig.gets(server), [&format!("Query {first}"), "Query select 1"]);
    }
}

#[test]
fn what_may_wait_for_a_lock_is_not_queued_behind_anything() {
    for second in MAY_WAIT {
        let (mut rig, clients, server) = pool(1, 2, &NAMES, &[second]);
        rig.send(clients[0], &fe::query("select 1"));
        rig.send(clients[1], &fe::query(second));
        assert_eq!(rig.gets(server), ["Query select 1"], "{second}");
        rig.send(server, &answer("1"));
        assert_eq!(rig.gets(server).last(), Some(&format!("Query {second}")));
    }
}

#[test]
fn prepared_statements_are_told_apart_in_the_same_way() {
    for (text, types, follows) in [
        ("select $1", vec![23], true),
        ("select $1", vec![16_384], false),
        ("update t set a = $1", vec![], false),
        ("select own($1)", vec![], false),
        ("select total($1)", vec![], true),
    ] {
        for name in ["", "s"] {
            let (mut rig, clients, server) = pool(1, 2, &NAMES, &[]);
            let parse = fe::parse_typed(name, text, &types);
            let run = [fe::bind(name), fe::execute(), fe::sync()].concat();
            let group = if name.is_empty() { [parse.clone(), run.clone()].concat() } else { run.clone() };
            if !name.is_empty() {
                rig.send(clients[0], &[parse, fe::sync()].concat());
                rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
            }
            let parsed = if name.is_empty() { be::parse_complete() } else { Vec::new() };
            for _ in 0..2 {
                rig.send(clients[0], &group);
                let done = [be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat();
                rig.send(server, &[parsed.clone(), done].concat());
            }
            rig.gets(server);
            rig.send(clients[0], &group);
            rig.send(clients[1], &fe::query("select 1"));
            let got = rig.gets(server);
            assert_eq!(
                got.last().is_some_and(|last| last == "Query select 1"),
                follows,
                "{text} {types:?} {name}"
            );
        }
    }
}

#[test]
fn a_text_that_is_known_to_be_short_is_queued_by_what_its_values_are() {
    let group = |types: &[u32]| {
        [fe::parse_typed("", "select $1", types), fe::bind(""), fe::execute(), fe::sync()].concat()
    };
    let done = [be::parse_complete(), be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat();
    // The text is the same, and so is its estimate; but a user's type may run code of users.
    for (types, follows) in [(23, true), (16_384, false)] {
        let (mut rig, clients, server) = pool(1, 2, &NAMES, &[]);
        for _ in 0..2 {
            rig.send(clients[1], &group(&[23]));
            rig.send(server, &done);
        }
        rig.gets(server);
        rig.send(clients[0], &fe::query("select 1"));
        rig.send(clients[1], &group(&[types]));
        assert_eq!(rig.gets(server).len() > 1, follows, "{types}");
    }
}

#[test]
fn where_the_catalog_says_nothing_nothing_is_queued() {
    let (mut rig, clients, server) = pool(1, 2, &[["z", "", ""]], &[]);
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(clients[1], &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"], "there is more code than the server told");
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    rig.catalog = None;
    let clients = [rig.client("alice"), rig.client("alice")];
    let server = rig.dialed();
    rig.send(server, &[be::error("42P01", "no pg_proc"), be::ready('I')].concat());
    for _ in 0..3 {
        rig.send(clients[0], &fe::query("select 1"));
        rig.send(server, &answer("1"));
    }
    rig.gets(server);
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(clients[1], &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &answer("1"));
    assert_eq!(
        rig.gets(server),
        ["Query select 2"],
        "sessions are not looked at, so no client keeps its server"
    );
}

#[test]
fn what_the_catalog_said_holds_no_longer_than_it_answers() {
    let (mut rig, clients, server) = pool(1, 2, &NAMES, &[]);
    rig.catalog = None;
    rig.reload("default_pool_size = 1\nmultiplex_servers = 1\nsession_audit_sample = 0", "app = host=pg");
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(server, &answer("1"));
    let asked = rig.gets(server);
    assert_eq!(asked.len(), 2, "the catalog is asked again: {asked:?}");
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(clients[1], &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn each_change_has_a_server_for_itself() {
    let texts = ["update t set a = 1"];
    let (mut rig, clients, server) = pool(3, 4, &NAMES, &texts);
    for client in &clients[..2] {
        rig.send(*client, &fe::query(texts[0]));
    }
    assert_eq!(
        (rig.gets(server).len(), rig.new_dials()),
        (1, 1),
        "the number of servers for short reads bounds no changes"
    );
    rig.send(clients[2], &fe::query(texts[0]));
    rig.send(clients[3], &fe::query("select 1"));
    assert_eq!(rig.new_dials(), 2, "one for each client that waits, as far as the pool's size allows");
    let console = rig.console();
    let row = rig.pool(console, "app,alice");
    assert_eq!((&*row[2], &*row[3]), ("1", "3"), "cl_active and cl_waiting: {row:?}");
}

/// Three clients: what the first reads takes long, and the others are queued behind it. The pool may have another server.
fn held_up(size: u32) -> (Rig, Vec<End>, End) {
    let (mut rig, clients, server) = pool(size, 4, &NAMES, &[]);
    for (client, text) in clients.iter().zip(["select 0", "select 1", "select 2"]) {
        rig.send(*client, &fe::query(text));
    }
    assert_eq!(rig.gets(server), ["Query select 0", "Query select 1", "Query select 2"]);
    (rig, clients, server)
}

#[test]
fn what_is_queued_behind_a_statement_that_takes_long_runs_elsewhere() {
    let (mut rig, clients, server) = held_up(2);
    rig.pass_us(99_000);
    assert_eq!(rig.new_dials(), 0);
    rig.pass_us(1_100);
    let second = rig.dialed();
    rig.greet(second);
    assert_eq!(rig.gets(second).last().map(String::as_str), Some("Query select 1"), "one by one");
    rig.send(second, &answer("b"));
    assert_eq!(rig.gets(clients[1]), answered("b"));
    assert_eq!(rig.gets(second), ["Query select 2"]);
    // Their answers here are dropped, also when they come in the meantime, in pieces.
    rig.gets_nothing(clients[0]);
    rig.send_bytewise(server, &[answer("a"), answer("late")].concat());
    assert_eq!(rig.gets(clients[0]), answered("a"));
    rig.send(second, &answer("c"));
    assert_eq!(rig.gets(clients[2]), answered("c"));
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    clients.iter().for_each(|client| rig.gets_nothing(*client));
    assert!(!rig.is_closed(server));
    // Both serve on.
    for server in [second, server] {
        rig.send(clients[if server == second { 1 } else { 2 }], &fe::query("begin"));
    }
    assert_eq!([rig.gets(server), rig.gets(second)].concat(), ["Query begin", "Query begin"]);
}

#[test]
fn what_ran_elsewhere_is_not_queued_again() {
    let (mut rig, clients, _server) = held_up(2);
    rig.pass_us(100_100);
    let second = rig.dialed();
    rig.greet(second);
    rig.gets(second);
    rig.send(clients[3], &fe::query("select 1"));
    rig.gets_nothing(second);
    rig.pass_s(2);
    assert_eq!(rig.new_dials(), 0);
    rig.gets_nothing(second);
    rig.send(second, &answer("b"));
    assert_eq!(
        rig.gets(second),
        ["Query select 2"],
        "nothing is queued behind it, and it is queued behind nothing"
    );
}

#[test]
fn a_client_that_was_brought_elsewhere_asks_for_more() {
    let (mut rig, clients, server) = held_up(2);
    rig.pass_us(100_100);
    let second = rig.dialed();
    rig.greet(second);
    rig.send(second, &answer("b"));
    rig.send(second, &answer("c"));
    rig.gets(second);
    rig.gets(clients[1]);
    // The first server is still at a statement that another server has answered when the client is queued
    // there again.
    rig.send(server, &answer("a"));
    rig.send(clients[1], &fe::query("select 3"));
    let (here, there) = (rig.gets(server), rig.gets(second));
    assert_eq!([here.clone(), there].concat(), ["Query select 3"]);
    rig.send(server, &[answer("late"), answer("late")].concat());
    rig.gets_nothing(clients[1]);
    rig.send(if here.is_empty() { second } else { server }, &answer("d"));
    assert_eq!(rig.gets(clients[1]), answered("d"));
}

#[test]
fn a_client_that_was_brought_elsewhere_is_not_brought_away_from_there() {
    let (mut rig, clients, _first) = held_up(2);
    rig.pass_us(100_100);
    let second = rig.dialed();
    rig.greet(second);
    rig.send(second, &answer("b"));
    rig.send(second, &answer("c"));
    rig.gets(second);
    rig.gets(clients[1]);
    let ask_both = |rig: &mut Rig, wait_us| {
        rig.send(clients[3], &fe::query("select 3"));
        rig.send(clients[1], &fe::query("select 4"));
        assert_eq!(rig.gets(second), ["Query select 3", "Query select 4"]);
        rig.pass_us(wait_us);
        rig.gets_nothing(second);
        rig.send(second, &[answer("d"), answer("e")].concat());
        assert_eq!(rig.gets(clients[3]), answered("d"));
        assert_eq!(rig.gets(clients[1]), answered("e"));
        rig.gets_nothing(second);
    };
    // All servers are looked at 100 ms after the first of these times: the first server, too, but not yet the second one.
    ask_both(&mut rig, 0);
    rig.pass_us(95_000);
    ask_both(&mut rig, 5_100);
}

#[test]
fn one_that_waits_for_its_turn_counts_as_waiting() {
    let (mut rig, _clients, _server) = held_up(1);
    rig.pass_us(50_000);
    let console = rig.console();
    for passed_us in [50_000, 2_050_000] {
        let row = rig.pool(console, "app,alice");
        assert_eq!((&*row[2], &*row[3]), ("2", "2"), "cl_active and cl_waiting: {row:?}");
        let maxwait_us =
            row[13].parse::<u64>().expect("seconds") * 1_000_000 + row[14].parse::<u64>().expect("a part");
        assert!(maxwait_us >= passed_us, "{maxwait_us}");
        let clients = rig.command(console, "SHOW CLIENTS");
        assert_eq!(clients.iter().filter(|row| row.contains(",waiting,")).count(), 2, "{clients:?}");
        rig.pass_s(2);
    }
}

#[test]
fn a_cancel_request_that_waited_for_the_turn_is_told_at_once() {
    let (mut rig, clients, server) = held_up(1);
    let requester = rig.cancel(clients[1]);
    rig.gets_nothing(clients[1]);
    rig.pass_us(100_100);
    assert_eq!(rig.gets(clients[1]).len(), 2, "an error and the end of the statement");
    assert!(rig.is_closed(requester));
    rig.send(server, &[answer("a"), answer("late"), answer("late")].concat());
    rig.gets_nothing(clients[1]);
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_client_that_leaves_or_waits_too_long_in_the_meantime_is_forgotten() {
    let (mut rig, clients, server) = held_up(1);
    rig.pass_us(100_100);
    rig.eof(clients[1]);
    rig.send(server, &[answer("a"), answer("late"), answer("late")].concat());
    assert_eq!(rig.gets(server), ["Query select 2"]);
    rig.send(server, &answer("c"));
    assert_eq!(rig.gets(clients[2]), answered("c"));
    let (mut rig, clients, _server) = held_up(1);
    rig.pass_s(121);
    let told = rig.gets(clients[2]);
    assert!(told.last().is_some_and(|last| last.contains("query_wait_timeout")), "{told:?}");
}

#[test]
fn the_first_server_may_end_in_between() {
    let (mut rig, clients, server) = held_up(2);
    rig.pass_us(100_100);
    rig.eof(server);
    assert_eq!(rig.gets(clients[0]), ["FATAL 08006 server conn crashed?"]);
    let second = rig.dialed();
    rig.greet(second);
    rig.send(second, &answer("b"));
    rig.send(second, &answer("c"));
    assert_eq!(rig.gets(clients[1]), answered("b"));
    assert_eq!(rig.gets(clients[2]), answered("c"));
}

#[test]
fn the_one_that_takes_long_may_leave() {
    let (mut rig, clients, server) = held_up(2);
    rig.pass_us(100_100);
    rig.eof(clients[0]);
    rig.pass_s(1);
    // What is left on it is of no use.
    rig.lets_go(server);
    assert!(!rig.is_closed(clients[1]) && !rig.is_closed(clients[2]));
}

#[test]
fn a_slow_reader_holds_up_no_other_client() {
    let (mut rig, clients, server) = held_up(2);
    rig.stop_taking(clients[0]);
    rig.send(server, &[be::columns(), be::row_of(60_000).repeat(8)].concat());
    assert!(rig.is_paused(server));
    rig.pass_us(100_100);
    let second = rig.dialed();
    rig.greet(second);
    rig.send(second, &answer("b"));
    assert_eq!(rig.gets(clients[1]), answered("b"));
    assert!(rig.is_paused(server) && !rig.is_closed(clients[0]), "it may take its time");
}

#[test]
fn while_no_server_is_given_out_it_waits_where_it_is() {
    let (mut rig, clients, server) = held_up(2);
    let console = rig.console();
    rig.command(console, "PAUSE");
    rig.pass_us(500_000);
    rig.send(server, &[answer("a"), answer("b"), answer("c")].concat());
    assert_eq!(rig.gets(clients[2]), answered("c"));
}

#[test]
fn a_head_has_its_time_and_what_is_queued_behind_it_runs_elsewhere() {
    for (timeout, leaves) in
        [("query", false), ("query", true), ("transaction", false), ("transaction", true)]
    {
        let (mut rig, clients, server) = pool_with(1, 3, &NAMES, &[], &format!("{timeout}_timeout = 5"));
        rig.send(clients[0], &fe::query("select 1"));
        rig.pass_us(3_000);
        for client in &clients[1..] {
            rig.send(*client, &fe::query("select 1"));
        }
        assert_eq!(rig.gets(server).len(), 3);
        if leaves {
            rig.eof(clients[0]);
        }
        for _ in 0..11 {
            rig.pass_us(420_000);
        }
        // The clients queued behind it came later, and have a few milliseconds left.
        rig.pass_us(378_000);
        rig.lets_go(server);
        if !leaves {
            let told = rig.gets(clients[0]);
            assert!(told.len() == 1 && told[0].starts_with("FATAL"), "{told:?}");
        }
        let fresh = rig.next_server();
        for client in &clients[1..] {
            assert_eq!(rig.gets(fresh).last().map(String::as_str), Some("Query select 1"), "{timeout}");
            rig.send(fresh, &answer("2"));
            assert_eq!(rig.gets(*client), answered("2"));
        }
    }
}

#[test]
fn what_was_queued_on_a_lost_server_is_told_of_a_shutdown() {
    let (mut rig, clients, server) = pool(2, 3, &NAMES, &[]);
    for client in &clients {
        rig.send(*client, &fe::query("select 1"));
    }
    assert_eq!(rig.gets(server).len(), 3);
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForServers));
    rig.eof(server);
    for client in &clients {
        let told = rig.gets(*client);
        assert!(told.len() == 1 && told[0].starts_with("FATAL"), "{told:?}");
        assert!(rig.is_closed(*client));
    }
    assert!(matches!(rig.asked()[..], [Question::Drained(_)]));
}
