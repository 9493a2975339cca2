//! "cached plan must not change result type": a table has changed since a statement on it was prepared.

use crate::rig::{End, Rig, be, fe};

fn group_of(name: &str) -> Vec<u8> {
    [fe::parse(name, "select * from t"), fe::bind(name), fe::execute(), fe::sync()].concat()
}

fn prepared(rig: &mut Rig, client: End, server: End, name: &str) -> Vec<String> {
    rig.send(client, &group_of(name));
    let got = rig.gets(server);
    let answer = [be::bind_complete(), be::complete("SELECT 0"), be::ready('I')].concat();
    let parsed = if got[0].starts_with("Parse") { be::parse_complete() } else { Vec::new() };
    rig.send(server, &[parsed, answer].concat());
    rig.gets(client);
    got
}

#[test]
fn what_is_prepared_after_a_change_of_the_table_is_prepared_again() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (early, changer, late) = (rig.client("alice"), rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    assert_eq!(
        prepared(&mut rig, early, server, "a"),
        ["Parse PGWEIR_1 select * from t", "Bind PGWEIR_1", "Execute", "Sync"]
    );
    assert_eq!(prepared(&mut rig, late, server, "x"), ["Bind PGWEIR_1", "Execute", "Sync"]);
    // It counts when its transaction is over, not before.
    rig.send(changer, &fe::query("BEGIN; ALTER TABLE t ADD b int"));
    rig.gets(server);
    rig.send(server, &[be::complete("BEGIN"), be::complete("ALTER TABLE"), be::ready('T')].concat());
    rig.send(late, &fe::parse("y", "select * from t"));
    rig.send(changer, &fe::query("COMMIT"));
    rig.gets(server);
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(
        prepared(&mut rig, late, server, "z"),
        ["Parse PGWEIR_2 select * from t", "Bind PGWEIR_2", "Execute", "Sync"]
    );
    // A client that prepared it before has what it was told of, and PostgreSQL's word on it.
    rig.send(early, &[fe::bind("a"), fe::execute(), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Bind PGWEIR_1", "Execute", "Sync"]);
    rig.send(server, &[be::outdated(), be::ready('I')].concat());
    assert_eq!(rig.gets(early), ["ERROR 0A000 cached plan must not change result type", "Ready I"]);
}

#[test]
fn what_is_prepared_after_a_change_in_its_transaction_is_its_clients_alone() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    assert!(prepared(&mut rig, two, server, "b")[0].starts_with("Parse PGWEIR_1"));
    let mut names = Vec::new();
    let changes = [
        ("create table t (a int)", "CREATE TABLE"),
        ("create table t as select 1", "SELECT 1"),
        ("explain analyze create table t as select 1", "EXPLAIN"),
        ("select 1 as a into t", "SELECT 1"),
        ("select insert into t from u", "SELECT 1"),
        ("alter table t add b int", "ALTER TABLE"),
        ("drop table t", "DROP TABLE"),
    ];
    for (attempt, (text, tag)) in changes.into_iter().enumerate() {
        // Also before the change is answered.
        for answered in [true, false] {
            rig.send(one, &fe::query(&format!("begin; {text}")));
            rig.gets(server);
            let answers = [be::complete("BEGIN"), be::complete(tag), be::ready('T')].concat();
            if answered {
                rig.send(server, &answers);
            }
            // Neither the statement of before, nor that of an attempt that was rolled back.
            let name = format!("a{attempt}{answered}");
            rig.send(one, &[fe::parse(&name, "select * from t"), fe::sync()].concat());
            let got = rig.gets(server);
            assert!(got[0].starts_with("Parse ") && got[0].ends_with("select * from t"), "{text}: {got:?}");
            names.push(got[0].clone());
            if !answered {
                rig.send(server, &answers);
            }
            rig.send(server, &[be::parse_complete(), be::ready('T')].concat());
            rig.send(one, &fe::query("ROLLBACK"));
            rig.gets(server);
            rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
            rig.gets(one);
        }
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 2 * changes.len(), "{names:?}");
    // After the transactions it is shared again.
    prepared(&mut rig, two, server, "c");
    assert_eq!(prepared(&mut rig, one, server, "d").len(), 3);
}

#[test]
fn what_is_prepared_after_a_routine_in_its_transaction_is_its_clients_alone() {
    for (text, tag) in [("do 'begin end'", "DO"), ("call p()", "CALL")] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        assert!(prepared(&mut rig, client, server, "a")[0].starts_with("Parse PGWEIR_1"));
        rig.send(client, &fe::query(&format!("begin; {text}")));
        rig.gets(server);
        rig.send(server, &[be::complete("BEGIN"), be::complete(tag), be::ready('T')].concat());
        rig.gets(client);
        rig.send(client, &[fe::parse("b", "select * from t"), fe::sync()].concat());
        let got = rig.gets(server);
        assert!(got.contains(&"Parse PGWEIR_2 select * from t".to_owned()), "{text}: {got:?}");
    }
}

#[test]
fn a_change_that_was_made_elsewhere_is_known_by_the_first_error() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    prepared(&mut rig, one, server, "a");
    rig.send(one, &[fe::bind("a"), fe::execute(), fe::sync()].concat());
    rig.gets(server);
    rig.send(server, &[be::outdated(), be::ready('I')].concat());
    assert_eq!(rig.gets(one)[1], "Ready I");
    for (client, name) in [(one, "again"), (two, "b")] {
        let got = prepared(&mut rig, client, server, name);
        assert!(got.contains(&"Bind PGWEIR_2".to_owned()), "{got:?}");
    }
}

/// As libpq runs a prepared statement.
fn run(name: &str) -> Vec<u8> {
    [fe::bind(name), fe::describe_portal(), fe::execute(), fe::sync()].concat()
}

const RUN: [&str; 3] = ["Describe P ", "Execute", "Sync"];

fn shown(before: &[&str], bind: &str) -> Vec<String> {
    before.iter().chain([&bind]).chain(&RUN).map(|message| (*message).to_owned()).collect()
}

/// Its answer.
fn answer(status: char) -> Vec<u8> {
    [be::bind_complete(), be::columns(), be::row("1"), be::complete("SELECT 1"), be::ready(status)].concat()
}

/// The same from a server that was given the statement in front.
fn fresh(status: char) -> Vec<u8> {
    [be::parse_complete(), answer(status)].concat()
}

fn told(status: &str) -> Vec<String> {
    ["BindComplete", "Columns", "Row 1", "Complete SELECT 1", status].map(str::to_owned).to_vec()
}

/// Clients of which the first has prepared `a`, and their one server.
fn pool(clients: usize, main: &str) -> (Rig, Vec<End>, End) {
    let mut rig = Rig::new(&format!("default_pool_size = 1\n{main}"));
    let clients: Vec<End> = (0..clients).map(|_| rig.client("alice")).collect();
    let server = rig.dialed();
    prepared(&mut rig, clients[0], server, "a");
    (rig, clients, server)
}

const OLD: &str = "Bind PGWEIR_1";
const PARSED_AGAIN: &str = "Parse PGWEIR_2 select * from t";

#[test]
fn what_is_dropped_may_come_again_in_another_form() {
    for tag in ["DROP TABLE", "DROP TYPE"] {
        let (mut rig, clients, server) = pool(2, "");
        rig.send(clients[1], &fe::query("drop something"));
        rig.gets(server);
        rig.send(server, &[be::complete(tag), be::ready('I')].concat());
        rig.gets(clients[1]);
        assert_eq!(prepared(&mut rig, clients[1], server, "x")[0], PARSED_AGAIN, "{tag}");
    }
}

#[test]
fn a_type_that_is_gone_and_a_value_that_does_not_fit_tell_of_a_change_made_elsewhere() {
    for (code, text) in [("XX000", "cache lookup failed for type 16384"), ("22003", "value is out of range")]
    {
        let (mut rig, clients, server) = pool(2, "");
        // The client does not ask for the columns: it is told the error.
        rig.send(clients[0], &[fe::bind("a"), fe::execute(), fe::sync()].concat());
        rig.gets(server);
        rig.send(server, &[be::error(code, text), be::ready('I')].concat());
        assert_eq!(rig.gets(clients[0]), [format!("ERROR {code} {text}"), "Ready I".to_owned()]);
        assert_eq!(prepared(&mut rig, clients[1], server, "x")[0], PARSED_AGAIN, "{code}");
        assert_eq!(prepared(&mut rig, clients[1], server, "y")[0], "Bind PGWEIR_2", "{code}: once");
    }
}

#[test]
fn an_outdated_statement_is_prepared_again_and_runs_again_unseen() {
    let (mut rig, clients, server) = pool(2, "");
    let client = clients[0];
    rig.send(client, &run("a"));
    assert_eq!(rig.gets(server), shown(&[], OLD));
    rig.send(server, &be::outdated());
    rig.gets_nothing(client);
    rig.gets_nothing(server);
    // A client that comes in the meantime waits for the whole of it.
    rig.send(clients[1], &fe::query("select 2"));
    rig.send(server, &be::ready('I'));
    assert_eq!(rig.gets(server), shown(&[PARSED_AGAIN], "Bind PGWEIR_2"));
    rig.send_bytewise(server, &fresh('I'));
    assert_eq!(rig.gets(client), told("Ready I"));
    assert_eq!(rig.gets(server), ["Query select 2"]);
    rig.send(server, &[be::one_row("2"), be::ready('I')].concat());
    rig.gets(clients[1]);
    // The name stands for the new statement from then on.
    rig.send(client, &run("a"));
    assert_eq!(rig.gets(server), shown(&[], "Bind PGWEIR_2"));
}

#[test]
fn a_group_that_came_in_pieces_runs_again_as_well() {
    let (mut rig, clients, server) = pool(1, "");
    rig.send_bytewise(clients[0], &run("a"));
    rig.gets(server);
    rig.send(server, &[be::outdated(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), shown(&[PARSED_AGAIN], "Bind PGWEIR_2"));
}

/// libpq's pipeline mode may send the Sync long after the statement.
#[test]
fn a_group_whose_sync_is_still_to_come_runs_again_as_well() {
    for sync_meanwhile in [false, true] {
        let (mut rig, clients, server) = pool(2, "");
        rig.send(clients[0], &[fe::bind("a"), fe::describe_portal(), fe::execute()].concat());
        assert_eq!(rig.gets(server), [OLD, "Describe P ", "Execute"]);
        rig.send(server, &be::outdated());
        assert_eq!(rig.gets(server), ["Sync"]);
        if sync_meanwhile {
            rig.send(clients[0], &fe::sync());
        }
        rig.send(clients[1], &fe::query("select 2"));
        rig.gets_nothing(server);
        rig.send(server, &be::ready('I'));
        let again = [PARSED_AGAIN, "Bind PGWEIR_2", "Describe P ", "Execute"];
        if sync_meanwhile {
            assert_eq!(rig.gets(server), [&again[..], &["Sync"]].concat());
        } else {
            assert_eq!(rig.gets(server), again);
            rig.gets_nothing(clients[0]);
            rig.send(clients[0], &fe::sync());
            assert_eq!(rig.gets(server), ["Sync"]);
        }
        rig.send(server, &fresh('I'));
        assert_eq!(rig.gets(clients[0]), told("Ready I"));
        assert_eq!(rig.gets(server), ["Query select 2"]);
    }
}

#[test]
fn a_description_of_the_statement_alone_is_given_again() {
    let (mut rig, clients, server) = pool(1, "");
    rig.send(clients[0], &[fe::describe("a"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Describe S PGWEIR_1", "Sync"]);
    rig.send(server, &[be::outdated(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), [PARSED_AGAIN, "Describe S PGWEIR_2", "Sync"]);
    let answer = [be::parse_complete(), be::parameters(), be::columns(), be::ready('I')].concat();
    rig.send(server, &answer);
    assert_eq!(rig.gets(clients[0]).last().map(String::as_str), Some("Ready I"));
}

/// PostgreSQL tells of the parameters before it finds that the statement is outdated.
#[test]
fn parameters_are_told_once() {
    for bytewise in [false, true] {
        let (mut rig, clients, server) = pool(1, "");
        let send = |rig: &mut Rig, bytes: &[u8]| match bytewise {
            true => rig.send_bytewise(server, bytes),
            false => rig.send(server, bytes),
        };
        rig.send(clients[0], &[fe::describe("a"), fe::sync()].concat());
        rig.gets(server);
        send(&mut rig, &[be::parameters(), be::outdated(), be::ready('I')].concat());
        assert_eq!(rig.gets(server), [PARSED_AGAIN, "Describe S PGWEIR_2", "Sync"]);
        let answer = [be::parse_complete(), be::parameters(), be::columns(), be::ready('I')].concat();
        send(&mut rig, &answer);
        let told = rig.gets(clients[0]);
        assert_eq!(told.len(), 3, "{told:?}");
        // A message between the two, and another error: both are told.
        for (between, error) in [(be::notice("x"), be::outdated()), (Vec::new(), be::error("XX000", "x"))] {
            rig.send(clients[0], &[fe::describe("a"), fe::sync()].concat());
            rig.gets(server);
            send(&mut rig, &[be::parameters(), between.clone(), error, be::ready('I')].concat());
            let told = rig.gets(clients[0]);
            assert!(told[0].starts_with("Parameters") || told[0].contains("Parameter"), "{told:?}");
            assert_eq!(told.len(), 3 + usize::from(!between.is_empty()), "{told:?}");
        }
    }
}

/// PostgreSQL reads the text again, with the parameter types that it took before.
fn unreadable() -> Vec<u8> {
    refused("42883", "P24\0")
}

/// An error with more fields.
fn refused(code: &str, more: &str) -> Vec<u8> {
    fe::message(b'E', format!("SERROR\0VERROR\0C{code}\0Mx\0{more}\0").as_bytes())
}

/// Another text that a client prepares; what the server is sent for it.
fn another(rig: &mut Rig, client: End, server: End, name: &str) -> String {
    rig.send(client, &[fe::parse(name, "select 2"), fe::bind(name), fe::execute(), fe::sync()].concat());
    let got = rig.gets(server);
    let parsed = if got[0].starts_with("Parse") { be::parse_complete() } else { Vec::new() };
    rig.send(server, &[parsed, be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(client);
    got[0].clone()
}

#[test]
fn a_text_that_means_nothing_with_its_earlier_types_is_prepared_again() {
    let (mut rig, clients, server) = pool(3, "");
    // Another client prepares the text after the change, which pgweir has not seen.
    rig.send(clients[1], &[fe::parse("x", "select * from t"), fe::describe("x"), fe::sync()].concat());
    assert_eq!(rig.gets(server), ["Describe S PGWEIR_1", "Sync"]);
    rig.send(server, &[be::parameters(), unreadable(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), [PARSED_AGAIN, "Describe S PGWEIR_2", "Sync"]);
    rig.send(server, &[be::parse_complete(), be::parameters(), be::columns(), be::ready('I')].concat());
    let got = rig.gets(clients[1]);
    assert_eq!((got.len(), &*got[0], &*got[3]), (4, "ParseComplete", "Ready I"), "{got:?}");
    assert_eq!(prepared(&mut rig, clients[2], server, "y")[0], "Bind PGWEIR_2");
    // A client that prepared it before the change, and asks for the columns.
    rig.send(clients[0], &run("a"));
    assert_eq!(rig.gets(server), shown(&[], OLD));
    rig.send(server, &[unreadable(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), shown(&[], "Bind PGWEIR_2"));
    rig.send(server, &answer('I'));
    assert_eq!(rig.gets(clients[0]), told("Ready I"));
    assert_eq!(prepared(&mut rig, clients[2], server, "z")[0], "Bind PGWEIR_2");
}

#[test]
fn a_text_that_means_nothing_any_more_is_refused_by_its_error() {
    let (mut rig, clients, server) = pool(2, "");
    let gone = || [refused("42P01", "P15\0"), be::ready('I')].concat();
    rig.send(clients[0], &run("a"));
    rig.gets(server);
    rig.send(server, &[unreadable(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), shown(&[PARSED_AGAIN], "Bind PGWEIR_2"));
    rig.send(server, &gone());
    assert_eq!(rig.gets(clients[0]), ["ERROR 42P01 x", "Ready I"]);
    // Each further attempt is one Parse, as each is refused.
    rig.send(clients[0], &run("a"));
    assert_eq!(rig.gets(server), shown(&[PARSED_AGAIN], "Bind PGWEIR_2"));
    rig.send(server, &gone());
    assert_eq!(rig.gets(clients[0]), ["ERROR 42P01 x", "Ready I"]);
}

#[test]
fn an_unreadable_statement_tells_of_a_change_that_others_may_meet() {
    let (mut rig, clients, server) = pool(2, "");
    assert!(another(&mut rig, clients[1], server, "x").starts_with("Parse PGWEIR_2"));
    // A text that never meant anything says nothing of others.
    rig.send(clients[0], &[fe::parse("new", "select x"), fe::sync()].concat());
    rig.gets(server);
    rig.send(server, &[refused("42703", "P8\0"), be::ready('I')].concat());
    rig.gets(clients[0]);
    assert_eq!(another(&mut rig, clients[1], server, "y"), "Bind PGWEIR_2");
    rig.send(clients[0], &[fe::bind("a"), fe::execute(), fe::sync()].concat());
    rig.gets(server);
    rig.send(server, &[unreadable(), be::ready('I')].concat());
    rig.gets(clients[0]);
    let again = another(&mut rig, clients[1], server, "z");
    assert!(again.starts_with("Parse ") && again.ends_with("select 2"), "{again}");
    // The text fails once more: that is known.
    rig.send(clients[0], &[fe::bind("a"), fe::execute(), fe::sync()].concat());
    assert_eq!(rig.gets(server)[..2], ["Close S PGWEIR_1", "Parse PGWEIR_1 select * from t"]);
    rig.send(server, &[be::close_complete(), unreadable(), be::ready('I')].concat());
    assert_eq!(rig.gets(clients[0]).len(), 2);
    assert!(another(&mut rig, clients[1], server, "w").starts_with("Bind "));
}

#[test]
fn an_unreadable_statement_is_not_used_again_where_its_error_is_told() {
    for (code, more, is_blamed) in [
        ("42883", "P24\0", true),
        ("42804", "P24\0", true),
        ("42P01", "", false),
        ("42501", "P24\0", false),
        ("22P02", "P24\0", false),
    ] {
        let (mut rig, clients, server) = pool(2, "");
        // The client does not ask for the columns: it is told the error.
        let group = [fe::bind("a"), fe::execute(), fe::sync()].concat();
        rig.send(clients[0], &group);
        rig.gets(server);
        rig.send(server, &[refused(code, more), be::ready('I')].concat());
        assert_eq!(rig.gets(clients[0]), [format!("ERROR {code} x"), "Ready I".to_owned()]);
        let expected = if is_blamed { PARSED_AGAIN } else { OLD };
        assert_eq!(prepared(&mut rig, clients[1], server, "x")[0], expected, "{code}");
        // It was told no types: they are found once more.
        rig.send(clients[0], &group);
        let got = rig.gets(server);
        assert_eq!(got.contains(&"Parse PGWEIR_1 select * from t".to_owned()), is_blamed, "{code} {got:?}");
        assert!(got.contains(&"Bind PGWEIR_1".to_owned()), "{code} {got:?}");
    }
}

#[test]
fn another_sum_of_column_types_begins_an_age_of_statements() {
    for (sum, expected) in [("1", OLD), ("2", PARSED_AGAIN)] {
        let settings = "default_pool_size = 1\nserver_idle_timeout = 0\nserver_check_delay = 10000";
        let mut rig = Rig::new(settings);
        rig.catalog = Some(vec![["c", "1", ""]]);
        let client = rig.client("alice");
        let server = rig.dialed();
        prepared(&mut rig, client, server, "a");
        rig.catalog = Some(vec![["c", sum, ""]]);
        rig.pass_s(601);
        // The catalog is read behind this statement.
        prepared(&mut rig, client, server, "b");
        assert_eq!(prepared(&mut rig, client, server, "c")[0], expected, "{sum}");
    }
}

#[test]
fn the_first_statement_after_a_begin_runs_again_in_a_new_transaction() {
    for main in ["defer_begin = packet", "defer_begin = server"] {
        let (mut rig, clients, server) = pool(1, main);
        let client = clients[0];
        let begin = ["Parse  BEGIN", "Bind ", "Execute"];
        let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
        rig.send(client, &fe::query("BEGIN"));
        rig.gets(client);
        rig.send(client, &run("a"));
        assert_eq!(rig.gets(server), shown(&begin, OLD));
        rig.send(server, &[begun.clone(), be::outdated(), be::ready('E')].concat());
        assert_eq!(rig.gets(server), ["Query ROLLBACK"]);
        rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
        assert_eq!(rig.gets(server), shown(&[&begin[..], &[PARSED_AGAIN]].concat(), "Bind PGWEIR_2"));
        rig.gets_nothing(client);
        rig.send(server, &[begun, fresh('T')].concat());
        assert_eq!(rig.gets(client), told("Ready T"));
        rig.send(client, &fe::query("COMMIT"));
        assert_eq!(rig.gets(server), ["Query COMMIT"]);
    }
}

#[test]
fn a_client_that_prepares_a_known_text_within_a_transaction_is_not_told_either() {
    for main in ["defer_begin = packet", "defer_begin = server"] {
        let (mut rig, clients, server) = pool(2, main);
        let client = clients[1];
        rig.send(client, &fe::query("BEGIN"));
        rig.send(client, &[fe::parse("b", "select * from t"), fe::sync()].concat());
        assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T", "ParseComplete", "Ready T"]);
        rig.gets_nothing(server);
        rig.send(client, &run("b"));
        rig.gets(server);
        let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
        rig.send(server, &[begun, be::outdated(), be::ready('E')].concat());
        assert_eq!(rig.gets(server), ["Query ROLLBACK"], "{main}");
    }
}

#[test]
fn a_transaction_that_cannot_be_rolled_back_ends_its_server() {
    let (mut rig, clients, server) = pool(1, "defer_begin = packet");
    rig.send(clients[0], &fe::query("BEGIN"));
    rig.send(clients[0], &run("a"));
    rig.gets(clients[0]);
    let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
    rig.send(server, &[begun, be::outdated(), be::ready('E')].concat());
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('E')].concat());
    assert_eq!(rig.gets(clients[0]), ["FATAL 08006 a transaction could not be rolled back"]);
}

#[test]
fn in_the_midst_of_a_transaction_the_error_is_the_clients() {
    let (mut rig, clients, server) = pool(1, "");
    let client = clients[0];
    rig.send(client, &fe::query("BEGIN; select 1"));
    rig.send(server, &[be::complete("BEGIN"), be::one_row("1"), be::ready('T')].concat());
    rig.gets(client);
    rig.send(client, &run("a"));
    rig.gets(server);
    rig.send(server, &[be::outdated(), be::ready('E')].concat());
    assert_eq!(rig.gets(client), ["ERROR 0A000 cached plan must not change result type", "Ready E"]);
}

#[test]
fn after_an_answer_the_error_is_the_clients() {
    let (mut rig, clients, server) = pool(1, "");
    let client = clients[0];
    // In an earlier group of the same packet, which ended well.
    rig.send(client, &[fe::query("select 1"), run("a")].concat());
    rig.gets(server);
    rig.send(server, &[be::one_row("1"), be::ready('I'), be::outdated(), be::ready('I')].concat());
    assert_eq!(rig.gets(client)[4..], ["ERROR 0A000 cached plan must not change result type", "Ready I"]);
    // With another group after it, which may depend on it.
    rig.send(client, &[run("a"), fe::query("select 1")].concat());
    rig.gets(server);
    rig.send(server, &[be::outdated(), be::ready('I'), be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client)[..2], ["ERROR 0A000 cached plan must not change result type", "Ready I"]);
}

#[test]
fn another_error_is_the_clients() {
    let (mut rig, clients, server) = pool(1, "");
    rig.send(clients[0], &run("a"));
    rig.gets(server);
    rig.send(
        server,
        &[be::error("0A000", "cached plan must not change result type"), be::ready('I')].concat(),
    );
    assert_eq!(rig.gets(clients[0]).len(), 2);
}

#[test]
fn all_clients_that_prepared_it_before_get_one_new_statement() {
    let (mut rig, clients, server) = pool(3, "");
    for client in &clients[1..] {
        prepared(&mut rig, *client, server, "a");
    }
    for (at, client) in clients.iter().enumerate() {
        rig.send(*client, &run("a"));
        assert_eq!(rig.gets(server), shown(&[], OLD));
        rig.send(server, &[be::outdated(), be::ready('I')].concat());
        let (before, answer) =
            if at == 0 { (&[PARSED_AGAIN][..], fresh('I')) } else { (&[][..], answer('I')) };
        assert_eq!(rig.gets(server), shown(before, "Bind PGWEIR_2"));
        rig.send(server, &answer);
        assert_eq!(rig.gets(*client), told("Ready I"));
    }
}

#[test]
fn a_change_after_a_change_is_met_as_well_but_not_forever() {
    let (mut rig, clients, server) = pool(2, "");
    let (early, other) = (clients[0], clients[1]);
    // Another client knows the statement of the second age, and then there is a third.
    rig.send(other, &[fe::parse("o", "select 1"), fe::bind("o"), fe::execute(), fe::sync()].concat());
    rig.send(server, &[be::parse_complete(), be::outdated(), be::ready('I')].concat());
    rig.gets(other);
    rig.gets(server);
    prepared(&mut rig, other, server, "a");
    rig.send(early, &run("a"));
    assert_eq!(rig.gets(server), shown(&[], OLD));
    rig.send(server, &[be::outdated(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), shown(&[], "Bind PGWEIR_3"));
    rig.send(server, &[be::outdated(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), shown(&["Parse PGWEIR_4 select * from t"], "Bind PGWEIR_4"));
    rig.send(server, &[be::parse_complete(), be::outdated(), be::ready('I')].concat());
    assert_eq!(rig.gets(early), ["ERROR 0A000 cached plan must not change result type", "Ready I"]);
}

#[test]
fn a_client_that_leaves_meanwhile_takes_its_server_along() {
    let (mut rig, clients, server) = pool(2, "");
    rig.send(clients[0], &run("a"));
    rig.gets(server);
    rig.send(server, &be::outdated());
    rig.send(clients[1], &fe::query("select 2"));
    rig.eof(clients[0]);
    assert!(rig.is_closed(server), "it is in the midst of a statement");
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 2"]);
}

#[test]
fn what_the_client_sends_in_the_meantime_comes_after() {
    let (mut rig, clients, server) = pool(1, "");
    rig.send(clients[0], &run("a"));
    rig.gets(server);
    rig.send(server, &be::outdated());
    rig.send(clients[0], &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(server, &be::ready('I'));
    let expected = [shown(&[PARSED_AGAIN], "Bind PGWEIR_2"), vec!["Query select 2".to_owned()]].concat();
    assert_eq!(rig.gets(server), expected);
}

#[test]
fn a_client_with_a_server_of_its_own_stays_there() {
    let mut rig = Rig::new("");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    prepared(&mut rig, one, server, "a");
    rig.send(one, &fe::query("CREATE TEMP TABLE t (a int)"));
    rig.gets(server);
    rig.send(server, &[be::complete("CREATE TABLE"), be::ready('I')].concat());
    rig.gets(server);
    rig.send(server, &be::answer(&[&["t", "", ""]]));
    rig.gets(one);
    rig.send(one, &run("a"));
    assert_eq!(rig.gets(server), shown(&[], OLD));
    rig.send(server, &be::outdated());
    rig.send(two, &fe::query("select 2"));
    rig.send(server, &be::ready('I'));
    assert_eq!(rig.gets(server), shown(&[PARSED_AGAIN], "Bind PGWEIR_2"));
}

#[test]
fn after_a_replay_it_runs_again_in_the_clients_session() {
    let mut rig = Rig::new("default_pool_size = 1");
    let one = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "one")]);
    let two = rig.client("alice");
    let server = rig.dialed();
    prepared(&mut rig, two, server, "b");
    rig.send(one, &fe::parse("a", "select * from t"));
    assert_eq!(rig.gets(one), ["ParseComplete"]);
    rig.send(one, &run("a"));
    let replay = fe::shown_replay(&["SET application_name='one';"], &[]);
    let replay: Vec<&str> = replay.iter().map(String::as_str).collect();
    assert_eq!(rig.gets(server), shown(&replay, OLD));
    let one_of = |tag: &str| [be::parse_complete(), be::bind_complete(), be::complete(tag)].concat();
    rig.send(server, &["BEGIN", "SET", "COMMIT"].map(one_of).concat());
    rig.send(server, &[be::outdated(), be::parameter("application_name", "one"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), shown(&[PARSED_AGAIN], "Bind PGWEIR_2"));
    rig.send(server, &fresh('I'));
    assert_eq!(rig.gets(one), told("Ready I"));
    // The server has the client's session.
    rig.send(one, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn queued_clients_run_again_one_by_one() {
    let (mut rig, clients, server) = pool(3, "");
    for client in &clients[1..] {
        prepared(&mut rig, *client, server, "a");
    }
    for client in &clients {
        // Known to be short, all of them.
        rig.send(*client, &run("a"));
        rig.send(server, &answer('I'));
        rig.gets(*client);
    }
    rig.gets(server);
    clients.iter().for_each(|client| rig.send(*client, &run("a")));
    assert_eq!(rig.gets(server), vec![shown(&[], OLD); 3].concat(), "they are queued");
    rig.send(server, &[be::outdated(), be::ready('I')].concat().repeat(3));
    let mut sent = rig.gets(server);
    assert_eq!(sent.drain(..5).collect::<Vec<_>>(), shown(&[PARSED_AGAIN], "Bind PGWEIR_2"));
    rig.send(server, &fresh('I'));
    for _ in 1..3 {
        sent.extend(rig.gets(server));
        rig.send(server, &answer('I'));
    }
    assert_eq!(sent, vec![shown(&[], "Bind PGWEIR_2"); 2].concat());
    for client in &clients {
        assert_eq!(rig.gets(*client), told("Ready I"));
    }
}
