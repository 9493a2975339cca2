//! Clients whose server is lost while a statement of theirs is under way.

use crate::clusters::{self, begin_with_primary, begins};
use crate::rig::{End, Rig, be, fe};

const MAIN: &str = "server_check_query =";

const CLUSTER: &str = "app = cluster=main\n\
    [clusters]\nmain = nodes=m1,m2 check_user=carol down_after_ms=500 primary_max_age_ms=3000 primary_wait=5\n\
    [nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.2\n";

const ROLLED_BACK: &str =
    "ERROR 40001 the transaction was rolled back: the connection to the primary was lost";
const ABORTED: &str =
    "ERROR 25P02 current transaction is aborted, commands ignored until end of transaction block";
const INTERRUPTED: &str = "ERROR 40001 the statement was interrupted: the connection to the primary was lost";
const UNKNOWN: &str =
    "FATAL 08007 the connection to the primary was lost; it is not known whether the statement took effect";

/// A client of `app` with a server that is up, and both idle.
fn served() -> (Rig, End, End) {
    served_by("")
}

fn served_by(setting: &str) -> (Rig, End, End) {
    let mut rig = Rig::with(&format!("{MAIN}\n{setting}"), CLUSTER, 1);
    begin_with_primary(&mut rig);
    let (client, server) = clusters::served(&mut rig);
    (rig, client, server)
}

/// The same, in a transaction that the server knows of.
fn bound() -> (Rig, End, End) {
    let (mut rig, client, server) = served();
    begins(&mut rig, (client, server));
    (rig, client, server)
}

/// The answer to a BEGIN that went ahead, and this.
fn begun(answer: &[u8]) -> Vec<u8> {
    [&be::parse_complete()[..], &be::bind_complete(), &be::complete("BEGIN"), answer].concat()
}

/// The way in which a server ends.
fn lose(rig: &mut Rig, server: End, says: bool) {
    if says {
        rig.send(server, &be::fatal("57P01", "terminating connection due to administrator command"));
    }
    if !rig.is_closed(server) {
        rig.eof(server);
    }
}

/// The client ends its transaction, and its next statement runs, on a new server.
fn goes_on(rig: &mut Rig, client: End) {
    rig.send(client, &fe::query("rollback"));
    assert_eq!(rig.gets(client), ["Complete ROLLBACK", "Ready I"]);
    clusters::goes_on(rig, client);
}

#[test]
fn a_statement_of_a_transaction_fails_at_once() {
    for says in [false, true] {
        let (mut rig, client, server) = bound();
        rig.send(client, &fe::query("update t set a = 1"));
        rig.gets_raw(server);
        lose(&mut rig, server, says);
        assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready E"]);
        rig.send(client, &fe::query("select 2"));
        assert_eq!(rig.gets(client), [ABORTED, "Ready E"]);
        goes_on(&mut rig, client);
    }
}

#[test]
fn what_was_set_for_a_client_is_no_change_of_its_own() {
    let (mut rig, _, server) = served();
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "one")]);
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query begin"), "its session goes ahead");
    // PostgreSQL reports the name with the first answer of the client's.
    let reported = [be::replayed(1), be::parameter("application_name", "one")].concat();
    rig.send(server, &[reported, be::complete("BEGIN"), be::ready('T')].concat());
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.send(client, &fe::query("update t set a = 1"));
    rig.gets_raw(server);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready E"]);
}

#[test]
fn the_first_statement_of_a_transaction_fails_at_once() {
    for answered in [false, true] {
        let (mut rig, client, server) = served_by("defer_begin = packet");
        rig.send(client, &fe::query("begin"));
        rig.gets_raw(client);
        rig.send(client, &fe::query("insert into t values (1)"));
        rig.gets_raw(server);
        if answered {
            rig.send(server, &begun(&be::complete("INSERT 0 1")));
            assert_eq!(rig.gets(client), ["Complete INSERT 0 1"]);
        }
        lose(&mut rig, server, false);
        assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready E"]);
        goes_on(&mut rig, client);
    }
}

#[test]
fn rows_that_were_shown_are_followed_by_the_error() {
    let (mut rig, client, server) = bound();
    rig.send(client, &fe::query("select a from t"));
    rig.gets_raw(server);
    rig.send(server, &[be::columns(), be::row("1")].concat());
    assert_eq!(rig.gets(client), ["Columns", "Row 1"]);
    lose(&mut rig, server, true);
    assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready E"]);
    goes_on(&mut rig, client);
}

#[test]
fn a_group_without_its_sync_is_ignored_up_to_that() {
    let (mut rig, client, server) = bound();
    let group = [fe::parse("", "update t set a = 1"), fe::bind(""), fe::execute(), fe::flush()].concat();
    rig.send(client, &group);
    rig.gets_raw(server);
    rig.send(server, &be::parse_complete());
    assert_eq!(rig.gets(client), ["ParseComplete"]);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), [ROLLED_BACK]);
    rig.send(client, &[fe::bind(""), fe::execute()].concat());
    rig.gets_nothing(client);
    rig.send(client, &fe::sync());
    assert_eq!(rig.gets(client), ["Ready E"]);
    goes_on(&mut rig, client);
}

/// No more than its beginning is here: it is not waited for.
#[test]
fn a_short_message_that_is_to_be_long_ends_its_client() {
    for (tag, expected) in [(b'S', "FATAL 08P01"), (b'H', "FATAL 08P01"), (b'C', "FATAL 54000")] {
        for after in ["nothing", "the loss", "a part of a group"] {
            let (mut rig, client, server) = bound();
            if after != "nothing" {
                let group = [fe::parse("", "update t set a = 1"), fe::flush()].concat();
                let open = if after == "the loss" { Vec::new() } else { group };
                rig.send(client, &open);
                lose(&mut rig, server, false);
                rig.gets_raw(client);
            }
            rig.send(client, &[&[tag][..], &1_000_000_u32.to_be_bytes(), b"S"].concat());
            let told = rig.gets(client);
            assert!(told.last().is_some_and(|line| line.starts_with(expected)), "{after}: {told:?}");
            assert!(rig.is_closed(client), "{after}");
        }
    }
}

#[test]
fn a_statement_that_failed_is_told_no_second_error() {
    let (mut rig, client, server) = bound();
    rig.send(client, &fe::query("select 1/0"));
    rig.gets_raw(server);
    rig.send(server, &be::error("22012", "division by zero"));
    assert_eq!(rig.gets(client), ["ERROR 22012 division by zero"]);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), ["Ready E"]);
    goes_on(&mut rig, client);
}

#[test]
fn a_group_behind_one_that_failed_is_told_an_error_too() {
    let extended = [fe::parse("", "select 2"), fe::bind(""), fe::execute(), fe::sync()].concat();
    for later in [fe::query("select 2"), extended] {
        let (mut rig, client, server) = bound();
        rig.send(client, &[fe::query("select 1/0"), later].concat());
        rig.gets_raw(server);
        rig.send(server, &[be::error("22012", "division by zero"), be::ready('E')].concat());
        assert_eq!(rig.gets(client), ["ERROR 22012 division by zero", "Ready E"]);
        lose(&mut rig, server, false);
        assert_eq!(rig.gets(client), [ABORTED, "Ready E"]);
        goes_on(&mut rig, client);
    }
}

/// PostgreSQL executes Close in a failed transaction, too.
#[test]
fn a_close_in_a_transaction_that_had_failed_is_answered() {
    let (portal, sync) = (fe::message(b'C', b"Pp\0"), fe::sync());
    let refused = [fe::parse("", "select 2"), fe::bind(""), fe::execute()].concat();
    let (closed, ready) = ("CloseComplete", "Ready E");
    for (group, told) in [
        ([&portal[..], &sync].concat(), &[closed, ready][..]),
        ([&portal[..], &portal, &sync].concat(), &[closed, closed, ready]),
        ([&portal[..], &fe::close("s"), &portal, &sync].concat(), &[closed, closed, closed, ready]),
        ([&portal[..], &refused, &sync].concat(), &[closed, ABORTED, ready]),
        ([&refused[..], &portal, &sync].concat(), &[ABORTED, ready]),
        ([&portal[..], &fe::flush()].concat(), &[closed]),
        ([&portal[..], &refused, &fe::flush()].concat(), &[closed, ABORTED]),
    ] {
        let (mut rig, client, server) = bound();
        rig.send(client, &[fe::parse("s", "select 7"), fe::sync(), fe::query("select 1/0")].concat());
        let failed = [be::error("22012", "division by zero"), be::ready('E')].concat();
        rig.send(server, &[be::parse_complete(), be::ready('T'), failed].concat());
        rig.gets_raw(client);
        rig.send(client, &group);
        rig.gets_raw(server);
        lose(&mut rig, server, false);
        assert_eq!(rig.gets(client), told);
        if !told.contains(&ready) {
            rig.send(client, &sync);
            assert_eq!(rig.gets(client), [ready]);
        }
        goes_on(&mut rig, client);
    }
}

#[test]
fn a_query_without_a_statement_is_answered() {
    for (fails, status) in [(false, "Ready T"), (true, "Ready E")] {
        let (mut rig, client, server) = bound();
        if fails {
            rig.send(client, &fe::query("select 1/0"));
            rig.send(server, &[be::error("22012", "division by zero"), be::ready('E')].concat());
            rig.gets(client);
        }
        rig.gets_raw(server);
        rig.send(client, &fe::query("/* nothing */"));
        assert_eq!(rig.gets(server), ["Query /* nothing */"]);
        lose(&mut rig, server, false);
        assert_eq!(rig.gets(client), ["Empty", status]);
        rig.send(client, &fe::query("select 2"));
        assert_eq!(rig.gets(client), [if fails { ABORTED } else { ROLLED_BACK }, "Ready E"]);
        goes_on(&mut rig, client);
    }
}

/// PostgreSQL binds no such statement in a failed transaction.
#[test]
fn a_statement_that_is_empty_is_not_bound() {
    let (mut rig, client, server) = bound();
    rig.send(client, &fe::parse("", ""));
    rig.gets_raw(server);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), [ROLLED_BACK]);
    rig.send(client, &[fe::bind(""), fe::execute(), fe::sync()].concat());
    assert_eq!(rig.gets(client), ["Ready E"]);
    goes_on(&mut rig, client);
}

#[test]
fn a_group_that_only_lacks_its_end_gets_it() {
    let (mut rig, client, server) = bound();
    let group = [fe::parse("", "update t set a = 1"), fe::bind(""), fe::execute(), fe::sync()].concat();
    rig.send(client, &group);
    rig.gets_raw(server);
    rig.send(server, &[be::parse_complete(), be::bind_complete(), be::complete("UPDATE 1")].concat());
    rig.gets_raw(client);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), ["Ready T"]);
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready E"]);
    goes_on(&mut rig, client);
}

#[test]
fn a_rollback_under_way_is_done() {
    let rollback = [fe::parse("", "rollback"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let told = ["ParseComplete", "BindComplete", "Complete ROLLBACK", "Ready I"];
    for (group, told) in [(fe::query("rollback"), &told[2..]), (rollback, &told[..])] {
        let (mut rig, client, server) = bound();
        rig.send(client, &group);
        rig.gets_raw(server);
        lose(&mut rig, server, true);
        assert_eq!(rig.gets(client), told);
        rig.send(client, &fe::query("select 4"));
        let server = rig.dialed();
        rig.greet(server);
        assert_eq!(rig.gets(server), ["Query select 4"]);
    }
}

#[test]
fn a_rollback_behind_other_statements_is_done() {
    let rollback =
        [fe::parse("", "rollback"), fe::bind(""), fe::describe_portal(), fe::execute(), fe::sync()];
    let answer = [be::parse_complete(), be::bind_complete(), be::no_data(), be::complete("ROLLBACK")];
    let told = ["ParseComplete", "BindComplete", "NoData", "Complete ROLLBACK", "Ready I"];
    let failed = [be::error("22012", "division by zero"), be::ready('E')].concat();
    for (text, first) in
        [("select 1/0", failed), ("select 1", [be::complete("SELECT 1"), be::ready('T')].concat())]
    {
        for answered in 0..=4 {
            for piece in [7, 1000] {
                let (mut rig, client, server) = bound();
                let group = [fe::query(text), rollback.concat()].concat();
                group.chunks(piece).for_each(|bytes| rig.send(client, bytes));
                rig.gets_raw(server);
                rig.send(server, &[first.clone(), answer[..answered].concat()].concat());
                lose(&mut rig, server, true);
                let got = rig.gets(client);
                assert_eq!(got[2..], told, "{got:?}");
                rig.send(client, &fe::query("select 4"));
                let server = rig.dialed();
                rig.greet(server);
                assert_eq!(rig.gets(server), ["Query select 4"]);
            }
        }
    }
}

/// The Sync comes later, or waits at pgweir because the server owes as many answers as it may.
#[test]
fn a_rollback_is_done_whose_sync_was_not_sent() {
    let rollback = [fe::parse("", "rollback"), fe::bind(""), fe::describe_portal(), fe::execute()].concat();
    let answer = [be::parse_complete(), be::bind_complete(), be::no_data()];
    for failed in [be::error("22012", "division by zero"), be::complete("SELECT 1")] {
        let status = if failed[0] == b'E' { 'E' } else { 'T' };
        for answered in 0..=3 {
            let (mut rig, client, server) = bound();
            rig.send(client, &fe::query("select 1/a from t"));
            rig.gets_raw(server);
            rig.send(server, &[failed.clone(), be::ready(status)].concat());
            rig.gets_raw(client);
            rig.send(client, &[rollback.clone(), fe::flush()].concat());
            rig.gets_raw(server);
            rig.send(server, &answer[..answered].concat());
            let mut got = rig.gets(client);
            lose(&mut rig, server, true);
            got.extend(rig.gets(client));
            assert_eq!(
                got,
                ["ParseComplete", "BindComplete", "NoData", "Complete ROLLBACK"],
                "{status} {answered}"
            );
            rig.send(client, &fe::sync());
            assert_eq!(rig.gets(client), ["Ready I"]);
        }
    }
}

/// It runs outside of the transaction block.
#[test]
fn what_follows_a_rollback_may_have_taken_effect() {
    let insert =
        [fe::parse("", "insert into t values (1)"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let group = [fe::parse("", "rollback"), fe::bind(""), fe::execute(), insert.clone()].concat();
    let (simple, ready) = (fe::query("rollback"), [be::complete("ROLLBACK"), be::ready('I')].concat());
    let ended = [be::parse_complete(), be::bind_complete(), be::complete("ROLLBACK")].concat();
    for (sent, answered) in [(group, ended), ([simple, insert].concat(), ready)] {
        let (mut rig, client, server) = bound();
        rig.send(client, &[fe::query("select 1"), sent].concat());
        rig.gets_raw(server);
        rig.send(server, &[be::complete("SELECT 1"), be::ready('T'), answered].concat());
        rig.gets_raw(client);
        lose(&mut rig, server, false);
        assert_eq!(rig.gets(client).last().map(String::as_str), Some(UNKNOWN));
        assert!(rig.is_closed(client));
    }
}

#[test]
fn a_commit_under_way_may_have_taken_effect() {
    let unnamed = [fe::parse("", "commit"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let by_name = [fe::bind("c"), fe::execute(), fe::sync()].concat();
    let both = fe::query("update t set a = 1; commit");
    let later = [fe::query("select 2"), fe::query("commit")].concat();
    for group in [fe::query("commit"), unnamed, by_name, both, later, fe::query("prepare transaction 'a'")] {
        let (mut rig, client, server) = bound();
        rig.send(client, &[fe::parse("c", "commit"), fe::sync()].concat());
        rig.send(server, &[be::parse_complete(), be::ready('T')].concat());
        rig.gets_raw(client);
        rig.send(client, &group);
        rig.gets_raw(server);
        lose(&mut rig, server, false);
        assert_eq!(rig.gets(client).last().map(String::as_str), Some(UNKNOWN));
        assert!(rig.is_closed(client));
    }
}

#[test]
fn a_change_outside_of_a_transaction_may_have_taken_effect() {
    let (mut rig, client, server) = served();
    rig.send(client, &fe::query("update t set a = 1"));
    rig.gets_raw(server);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), [UNKNOWN]);
}

#[test]
fn a_row_cut_in_half_ends_the_client() {
    let (mut rig, client, server) = bound();
    rig.send(client, &fe::query("select a from t"));
    rig.gets_raw(server);
    let row = be::row(&"x".repeat(100_000));
    rig.send(server, &[be::columns(), row[..50_000].to_vec()].concat());
    rig.gets_raw(client);
    lose(&mut rig, server, false);
    assert!(rig.is_closed(client));
}

#[test]
fn a_read_that_nothing_was_shown_of_runs_again() {
    let extended = [fe::parse("", "select a from t"), fe::bind(""), fe::execute(), fe::sync()].concat();
    for (group, asked) in [
        (fe::query("select a from t"), &["Query select a from t"][..]),
        (extended, &["Parse \"\" select a from t", "Bind \"\" \"\"", "Execute", "Sync"][..]),
    ] {
        for says in [false, true] {
            let (mut rig, client, server) = served();
            rig.send(client, &group);
            rig.gets_raw(server);
            lose(&mut rig, server, says);
            rig.gets_nothing(client);
            let server = rig.dialed();
            rig.greet(server);
            assert_eq!(rig.gets(server).len(), asked.len());
            rig.send(server, &[be::complete("SELECT 0"), be::ready('I')].concat());
        }
    }
}

/// It has changed nothing, so nothing is unknown, and its session goes on.
#[test]
fn a_read_that_something_was_shown_of_is_interrupted() {
    for says in [false, true] {
        let (mut rig, client, server) = served();
        rig.send(client, &fe::query("select a from t"));
        rig.gets_raw(server);
        rig.send(server, &[be::columns(), be::row("1")].concat());
        assert_eq!(rig.gets(client), ["Columns", "Row 1"]);
        lose(&mut rig, server, says);
        assert_eq!(rig.gets(client), [INTERRUPTED, "Ready I"]);
        clusters::goes_on(&mut rig, client);
    }
}

#[test]
fn a_read_that_only_lacks_its_end_gets_it() {
    let group = [fe::parse("", "select a from t"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let answer = [be::parse_complete(), be::bind_complete(), be::complete("SELECT 0")].concat();
    let (mut rig, client, server) = served();
    rig.send(client, &group);
    rig.gets_raw(server);
    rig.send(server, &answer);
    rig.gets_raw(client);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), ["Ready I"]);
    clusters::goes_on(&mut rig, client);
    let (mut rig, client, server) = served();
    rig.send(client, &group);
    rig.gets_raw(server);
    rig.send(server, &be::error("42P01", "relation \"t\" does not exist"));
    rig.gets_raw(client);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), ["Ready I"], "no second error");
}

#[test]
fn a_read_that_is_lost_half_way_through_a_row_ends_the_client() {
    let (mut rig, client, server) = served();
    rig.send(client, &fe::query("select a from t"));
    rig.gets_raw(server);
    let row = be::row(&"x".repeat(100_000));
    rig.send(server, &[be::columns(), row[..50_000].to_vec()].concat());
    rig.gets_raw(client);
    lose(&mut rig, server, false);
    assert!(rig.is_closed(client));
}

/// The servers of a primary that dies end one after the other: the read may meet a second one that is dead already.
#[test]
fn a_read_runs_again_as_often_as_a_session_is_tried() {
    for setting in ["", "multiplex_depth = 0"] {
        let (mut rig, client, mut server) = served_by(setting);
        rig.send(client, &fe::query("select a from t"));
        for _ in 0..2 {
            assert_eq!(rig.gets(server), ["Query select a from t"], "{setting}");
            lose(&mut rig, server, false);
            rig.gets_nothing(client);
            rig.pass_us(300_000);
            server = rig.dialed();
            rig.greet(server);
        }
        assert_eq!(rig.gets(server), ["Query select a from t"]);
        // A read that ends each server is given up.
        lose(&mut rig, server, false);
        assert_eq!(rig.gets(client), [INTERRUPTED, "Ready I"]);
    }
}

#[test]
fn a_read_behind_its_clients_session_runs_again() {
    for group in [
        fe::query("select a from t"),
        [fe::parse("", "select a from t"), fe::bind(""), fe::execute(), fe::sync()].concat(),
    ] {
        let (mut rig, _, server) = served();
        let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "one")]);
        rig.send(client, &group);
        assert!(rig.gets(server).len() > 1, "its session goes ahead");
        lose(&mut rig, server, false);
        rig.gets_nothing(client);
        let next = rig.dialed();
        rig.greet(next);
        let asked = rig.gets(next);
        assert!(
            asked.len() > 1 && asked.iter().any(|message| message.contains("select a from t")),
            "{asked:?}"
        );
    }
}

/// The head of a server that others were queued on was one of them.
#[test]
fn a_read_that_was_queued_runs_again() {
    for seen in [false, true] {
        let (mut rig, first, server) = served_by("default_pool_size = 1");
        let second = rig.client("alice");
        for client in [first, first, first] {
            rig.send(client, &fe::query("select 1"));
            rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
            rig.gets_raw(client);
        }
        rig.gets_raw(server);
        rig.send(first, &fe::query("select 1"));
        rig.send(second, &fe::query("select 1"));
        assert_eq!(rig.gets(server), ["Query select 1", "Query select 1"], "both are there");
        let of_second = if seen { be::columns() } else { Vec::new() };
        // The second one's answer begins in the same read.
        rig.send(server, &[be::one_row("1"), be::ready('I'), of_second].concat());
        assert_eq!(rig.gets(first).last().map(String::as_str), Some("Ready I"));
        lose(&mut rig, server, false);
        if seen {
            assert_eq!(rig.gets(second), ["Columns", INTERRUPTED, "Ready I"]);
            clusters::goes_on(&mut rig, second);
        } else {
            rig.gets_nothing(second);
            let next = rig.dialed();
            rig.greet(next);
            assert_eq!(rig.gets(next), ["Query select 1"]);
        }
    }
}

/// It has done nothing yet.
#[test]
fn a_begin_under_way_goes_to_the_next_primary() {
    let extended = [fe::parse("", "begin"), fe::bind(""), fe::execute(), fe::sync()].concat();
    for group in [fe::query("begin"), extended.clone()] {
        let (mut rig, client, server) = served();
        rig.send(client, &group);
        rig.gets_raw(server);
        lose(&mut rig, server, false);
        rig.gets_nothing(client);
        let next = rig.dialed();
        rig.greet(next);
        assert!(rig.gets(next)[0].ends_with("begin"));
        rig.send(next, &[be::complete("BEGIN"), be::ready('T')].concat());
    }
    // A part of the answer was seen: the client's next statement is told.
    let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
    for (group, answer) in [(fe::query("begin"), be::complete("BEGIN")), (extended, begun)] {
        let (mut rig, client, server) = served();
        rig.send(client, &group);
        rig.gets_raw(server);
        rig.send(server, &answer);
        assert_eq!(rig.gets(client).last().map(String::as_str), Some("Complete BEGIN"));
        lose(&mut rig, server, true);
        assert_eq!(rig.gets(client), ["Ready T"]);
        rig.send(client, &fe::query("insert into t values (1)"));
        assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready E"]);
        goes_on(&mut rig, client);
    }
}

/// The client was not told that a transaction is open, so none is lost.
#[test]
fn a_begin_that_is_answered_in_part_is_interrupted() {
    let (mut rig, client, server) = served();
    rig.send(client, &[fe::parse("", "begin"), fe::bind(""), fe::execute(), fe::sync()].concat());
    rig.gets_raw(server);
    rig.send(server, &[be::parse_complete(), be::bind_complete()].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "BindComplete"]);
    lose(&mut rig, server, true);
    assert_eq!(rig.gets(client), [INTERRUPTED, "Ready I"]);
    clusters::goes_on(&mut rig, client);
}

#[test]
fn a_name_whose_parse_was_not_answered_is_free_again() {
    let (mut rig, client, server) = bound();
    rig.send(client, &[fe::parse("s", "select 7"), fe::bind("s"), fe::execute(), fe::sync()].concat());
    rig.gets_raw(server);
    lose(&mut rig, server, false);
    assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready E"]);
    rig.send(client, &fe::query("rollback"));
    assert_eq!(rig.gets(client), ["Complete ROLLBACK", "Ready I"]);
    rig.send(client, &[fe::parse("s", "select 7"), fe::sync()].concat());
    let server = rig.dialed();
    rig.greet(server);
    rig.gets_raw(server);
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
}
