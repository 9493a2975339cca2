//! A database that is served by a cluster: its nodes are asked what they are, its clients go to the primary, and wait while there is none.

use pgweir_core::carried::CarriedSwitches;
use pgweir_core::driver::{Closed, WorkerId};
use pgweir_core::mail::Question;
use pgweir_settings::Config;

use crate::rig::{End, Rig, be, fe, greeting};

pub(super) const MAIN: &str = "multiplex_depth = 0\nserver_check_query =";

/// Two nodes, asked every second, down after half of one.
pub(super) const CLUSTER: &str = "app = cluster=main\n\
    [clusters]\nmain = nodes=m1,m2 check_user=carol down_after_ms=500 primary_max_age_ms=3000 primary_wait=5\n\
    [nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.2\n";

/// A row of a node's answer: `started_us` is its run.
pub(super) fn says(in_recovery: bool, timeline: u32, started_us: i64) -> Vec<u8> {
    says_at("0/3000060", in_recovery, timeline, started_us)
}

/// The same of a node at this position.
pub(super) fn says_at(position: &str, in_recovery: bool, timeline: u32, started_us: i64) -> Vec<u8> {
    row(position, None, in_recovery, timeline, started_us)
}

/// A standby that receives the primary's log.
pub(super) fn streams() -> Vec<u8> {
    row("0/3000060", Some(b"0/3000060"), true, 1, 2)
}

fn row(
    position: &str,
    received: Option<&[u8]>,
    in_recovery: bool,
    timeline: u32,
    started_us: i64,
) -> Vec<u8> {
    let (role, timeline, started) =
        (in_recovery.to_string(), format!("{timeline:08X}"), started_us.to_string());
    let columns: [Option<&[u8]>; 9] = [
        Some(role.as_bytes()),
        Some(position.as_bytes()),
        received,
        None,
        Some(timeline.as_bytes()),
        Some(b"7000000000000000001"),
        Some(started.as_bytes()),
        Some(b"180000"),
        Some(b"none"),
    ];
    [be::columns(), be::row_values(&columns), be::complete("SELECT 1"), be::ready('I')].concat()
}

pub(super) fn primary(timeline: u32) -> Vec<u8> {
    says(false, timeline, 1)
}

pub(super) fn standby() -> Vec<u8> {
    says(true, 1, 2)
}

/// The watch's connections to both nodes, logged in and asked.
pub(super) fn watches(rig: &mut Rig) -> [End; 2] {
    rig.pass_us(1);
    let mut dialed = [rig.dialed(), rig.dialed()];
    dialed.sort_by_key(|&end| rig.endpoint(end));
    for (number, watch) in dialed.into_iter().enumerate() {
        assert_eq!(rig.endpoint(watch), format!("10.0.0.{}:5432", number + 1));
        let startup = rig.connect(watch);
        assert!(startup.contains("user carol") && startup.contains("database postgres"), "{startup}");
        rig.send(watch, &greeting());
        is_asked(rig, watch);
    }
    dialed
}

pub(super) fn is_asked(rig: &mut Rig, watch: End) {
    let asked = String::from_utf8_lossy(&rig.raw(watch)).into_owned();
    assert!(asked.starts_with('Q') && asked.matches("pg_is_in_recovery").count() == 1, "{asked}");
}

/// A cluster whose first node is the primary.
fn with_primary(workers: u16) -> (Rig, [End; 2]) {
    let mut rig = Rig::with(MAIN, CLUSTER, workers);
    let watches = begin_with_primary(&mut rig);
    (rig, watches)
}

/// The first of two nodes is the primary, the other one is its standby.
pub(super) fn begin_with_primary(rig: &mut Rig) -> [End; 2] {
    let watches = watches(rig);
    rig.send(watches[0], &primary(1));
    rig.send(watches[1], &standby());
    watches
}

/// The second node is promoted, and the first one is gone.
pub(super) fn fail_over(rig: &mut Rig, watches: [End; 2]) {
    rig.eof(watches[0]);
    rig.pass_us(1_000_000);
    let again = rig.dialed();
    assert_eq!(rig.endpoint(again), "10.0.0.1:5432");
    rig.refuse_dial(again, "connection refused");
    rig.send(watches[1], &says(false, 2, 2));
}

/// The first node says that it was started again, on the same timeline. Connections of before live on here, as if its clock had been set.
fn restart(rig: &mut Rig, watches: [End; 2]) {
    rig.pass_us(1_000_000);
    watches.into_iter().for_each(|watch| is_asked(rig, watch));
    rig.send(watches[0], &says(false, 1, 9));
    rig.send(watches[1], &standby());
}

/// A client of `app` with a server that is up, and both idle.
pub(super) fn served(rig: &mut Rig) -> (End, End) {
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.gets_raw(client);
    (client, server)
}

/// The client is in a transaction that its server knows of.
pub(super) fn begins(rig: &mut Rig, (client, server): (End, End)) {
    rig.send(client, &fe::query("begin"));
    rig.gets_raw(server);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets_raw(client);
}

/// The client's next statement runs, on a new server.
pub(super) fn goes_on(rig: &mut Rig, client: End) {
    rig.send(client, &fe::query("select 4"));
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(server), ["Query select 4"]);
}

#[test]
fn each_node_is_asked_at_each_interval_and_faster_without_a_primary() {
    let mut rig = Rig::with(MAIN, CLUSTER, 1);
    let [one, other] = watches(&mut rig);
    for _ in 0..500 {
        rig.send(one, &standby());
        rig.send(other, &standby());
        rig.pass_us(9_999);
        rig.gets_nothing(one);
        rig.pass_us(1);
        is_asked(&mut rig, one);
        is_asked(&mut rig, other);
    }
    // No client waits any more for longer than primary_wait, which is 5 s.
    rig.send(one, &standby());
    rig.send(other, &standby());
    rig.pass_us(99_000);
    rig.gets_nothing(one);
    rig.pass_us(1_000);
    is_asked(&mut rig, one);
    is_asked(&mut rig, other);
    rig.send(one, &primary(1));
    rig.send(other, &standby());
    rig.pass_us(900_000);
    rig.gets_nothing(one);
    rig.pass_us(100_000);
    is_asked(&mut rig, one);
    is_asked(&mut rig, other);
    assert_eq!(rig.new_dials(), 0, "on the same connections");
}

#[test]
fn a_new_primary_is_asked_for_two_servers_at_first() {
    let (mut rig, watches) = with_primary(1);
    let mut clients = vec![served(&mut rig).0];
    for _ in 0..7 {
        let client = rig.knock("alice", "app");
        rig.gets_raw(client);
        clients.push(client);
    }
    fail_over(&mut rig, watches);
    clients.into_iter().for_each(|client| rig.send(client, &fe::query("select 1")));
    let (one, other) = (rig.dialed(), rig.dialed());
    assert_eq!(rig.new_dials(), 0);
    // Each login that succeeds takes the place of one, and allows one more.
    rig.greet(one);
    assert_eq!(rig.new_dials(), 2);
    rig.greet(other);
    assert_eq!(rig.new_dials(), 4);
}

#[test]
fn a_question_that_is_not_answered_in_time_is_asked_again_on_another_connection() {
    let (mut rig, [one, _]) = with_primary(1);
    rig.pass_us(1_000_000);
    is_asked(&mut rig, one);
    rig.pass_us(999_999);
    assert!(!rig.is_closed(one));
    rig.pass_us(1);
    assert!(rig.is_closed(one));
    rig.pass_us(100_000);
    let again = rig.dialed();
    assert_eq!(rig.endpoint(again), "10.0.0.1:5432");
    rig.greet(again);
}

#[test]
fn clients_wait_for_a_primary_and_go_to_it() {
    let mut rig = Rig::with(MAIN, CLUSTER, 1);
    let [one, other] = watches(&mut rig);
    rig.send(one, &standby());
    let client = rig.knock("alice", "app");
    assert_eq!(rig.new_dials(), 0);
    rig.gets_nothing(client);
    rig.send(other, &primary(1));
    let server = rig.dialed();
    assert_eq!(rig.endpoint(server), "10.0.0.2:5432");
    rig.greet(server);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn a_client_does_not_wait_for_longer_than_primary_wait() {
    let mut rig = Rig::with(MAIN, CLUSTER, 1);
    let [one, other] = watches(&mut rig);
    let client = rig.knock("alice", "app");
    for _ in 0..9 {
        for watch in [one, other] {
            rig.gets_loosely(watch);
            rig.send(watch, &standby());
        }
        rig.pass_us(500_000);
    }
    rig.gets_nothing(client);
    rig.pass_us(900_000);
    let told = rig.refusal(client);
    assert_eq!(told, "FATAL 57P03 cluster \"main\" has no primary (primary_wait)");
    assert!(rig.is_closed(client));
}

#[test]
fn a_server_that_says_it_is_a_standby_serves_no_client() {
    let (mut rig, [one, _]) = with_primary(1);
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    let told = [be::auth_ok(), be::parameter("in_hot_standby", "on"), be::key(1), be::ready('I')].concat();
    rig.send(server, &told);
    assert!(rig.is_closed(server) && rig.logged("the server is a standby"));
    rig.gets_nothing(client);
    assert_eq!(rig.new_dials(), 0, "not at once");
    rig.pass_us(100_000);
    assert!(rig.is_closed(one), "the node is asked on a new connection");
    let dialed: Vec<End> = (0..rig.new_dials()).map(|_| rig.dialed()).collect();
    let endpoints: Vec<String> = dialed.into_iter().map(|end| rig.endpoint(end)).collect();
    assert!(endpoints.iter().filter(|place| **place == "10.0.0.1:5432").count() >= 2, "{endpoints:?}");
}

#[test]
fn a_server_of_an_older_epoch_takes_nothing_more() {
    let (mut rig, watches) = with_primary(1);
    let (working, busy) = served(&mut rig);
    rig.send(working, &fe::query("begin"));
    rig.send(busy, &[be::complete("BEGIN"), be::ready('T')].concat());
    let (idle_client, idle) = {
        let client = rig.client("alice");
        rig.send(client, &fe::query("select 1"));
        let server = rig.dialed();
        rig.greet(server);
        rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
        (client, server)
    };
    rig.gets_raw(working);
    rig.gets_raw(idle_client);
    restart(&mut rig, watches);
    assert!(rig.is_closed(idle) && rig.logged("closing because: the primary has changed"));
    assert!(!rig.is_closed(busy), "it ends with its transaction");
    rig.send(idle_client, &fe::query("select 2"));
    let new = rig.dialed();
    assert_eq!(rig.endpoint(new), "10.0.0.1:5432");
    rig.gets_raw(busy);
    rig.send(working, &fe::query("commit"));
    assert_eq!(rig.gets(busy), ["Query commit"]);
    rig.send(busy, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(rig.gets(working), ["Complete COMMIT", "Ready I"]);
    assert!(rig.is_closed(busy));
}

/// A client may send more before it has read the answers to what it sent before.
#[test]
fn what_follows_a_transaction_at_once_does_not_go_to_the_old_epoch() {
    let commit = [fe::parse("", "commit"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let later = [fe::parse("", "insert into t values (1)"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let all = [fe::query("select 1"), commit, later].concat();
    for piece in [all.len(), 7, 1] {
        let (mut rig, watches) = with_primary(1);
        let (client, server) = served(&mut rig);
        begins(&mut rig, (client, server));
        restart(&mut rig, watches);
        all.chunks(piece).for_each(|bytes| rig.send(client, bytes));
        assert_eq!(rig.gets(server), ["Query select 1"]);
        rig.send(server, &[be::complete("SELECT 1"), be::ready('T')].concat());
        assert_eq!(rig.gets(server), ["Parse  commit", "Bind ", "Execute", "Sync"]);
        let committed = [be::parse_complete(), be::bind_complete(), be::complete("COMMIT")].concat();
        rig.send(server, &committed);
        assert!(!rig.is_closed(server));
        rig.send(server, &be::ready('I'));
        assert!(rig.gets(client).ends_with(&["Complete COMMIT".to_owned(), "Ready I".to_owned()]));
        assert!(rig.is_closed(server));
        let new = rig.dialed();
        assert_eq!(rig.endpoint(new), "10.0.0.1:5432");
        rig.greet(new);
        assert_eq!(rig.gets(new).first().map(String::as_str), Some("Parse  insert into t values (1)"));
    }
}

/// Such a client has one server until it leaves. Here pgweir ends its connection, when it has the answers to the group that was open.
#[test]
fn what_a_session_pooled_client_sends_at_once_does_not_go_to_the_old_epoch() {
    let cluster = CLUSTER.replace("app = cluster=main", "app = cluster=main pool_mode=session");
    let group = [fe::bind(""), fe::execute(), fe::sync()].concat();
    // What follows is a change, or no message at all.
    for later in [fe::query("insert into t values (1)"), b"Q\0\0\0\0 \xff".to_vec()] {
        let all = [group.clone(), later].concat();
        for piece in [all.len(), 7, 1] {
            let mut rig = Rig::with(MAIN, &cluster, 1);
            let watches = begin_with_primary(&mut rig);
            let (client, server) = served(&mut rig);
            rig.send(client, &fe::parse("", "select 1"));
            assert_eq!(rig.gets(server), ["Parse  select 1"]);
            restart(&mut rig, watches);
            assert!(!rig.is_closed(server));
            all.chunks(piece).for_each(|bytes| rig.send(client, bytes));
            assert_eq!(rig.gets(server), ["Bind ", "Execute", "Sync"]);
            let answer = [be::parse_complete(), be::bind_complete(), be::complete("SELECT 1")].concat();
            rig.send(server, &answer);
            rig.gets_nothing(server);
            rig.send(server, &be::ready('I'));
            assert!(rig.is_closed(server));
            let told = rig.gets(client);
            assert!(told.contains(&"Ready I".to_owned()), "{told:?}");
            assert!(rig.is_closed(client), "{told:?}");
        }
    }
}

#[test]
fn what_follows_the_first_group_behind_a_session_does_not_go_there_either() {
    let (mut rig, watches) = with_primary(1);
    let (_, server) = served(&mut rig);
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "one")]);
    rig.send(client, &[fe::parse("", "select 1"), fe::bind("")].concat());
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Bind "), "its session goes ahead");
    rig.send(server, &[be::replayed(1), be::parse_complete(), be::bind_complete()].concat());
    restart(&mut rig, watches);
    assert!(!rig.is_closed(server));
    rig.send(client, &[fe::execute(), fe::sync(), fe::query("insert into t values (1)")].concat());
    assert_eq!(rig.gets(server), ["Execute", "Sync"]);
    let reported = be::parameter("application_name", "one");
    rig.send(server, &[be::complete("SELECT 0"), reported, be::ready('I')].concat());
    assert!(rig.is_closed(server));
    let new = rig.dialed();
    assert_eq!(rig.endpoint(new), "10.0.0.1:5432");
    rig.greet(new);
    assert_eq!(rig.gets(new).last().map(String::as_str), Some("Query insert into t values (1)"));
}

/// The data of a COPY, and its end, belong to it.
#[test]
fn a_copy_goes_on_to_its_end_in_the_old_epoch() {
    let data = [fe::copy_data(b"1\n"), fe::sync(), fe::copy_data(b"2\n"), fe::copy_done()].concat();
    let all = [fe::query("copy t from stdin"), data, fe::query("commit")].concat();
    for piece in [all.len(), 3] {
        let (mut rig, watches) = with_primary(1);
        let (client, server) = served(&mut rig);
        begins(&mut rig, (client, server));
        restart(&mut rig, watches);
        all.chunks(piece).for_each(|bytes| rig.send(client, bytes));
        assert_eq!(rig.gets(server), ["Query copy t from stdin"]);
        rig.send(server, &be::copy_in());
        assert_eq!(rig.gets(server).last().map(String::as_str), Some("CopyDone"));
        rig.send(server, &[be::complete("COPY 2"), be::ready('T')].concat());
        assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query commit"));
        rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
        assert!(rig.gets(client).ends_with(&["Complete COMMIT".to_owned(), "Ready I".to_owned()]));
        assert!(rig.is_closed(server));
    }
}

/// The names of its prepared statements were uncertain once, which the data does not wait for.
#[test]
fn a_copy_goes_on_behind_the_fence_after_statements_were_deallocated() {
    let (mut rig, watches) = with_primary(1);
    let (client, server) = served(&mut rig);
    begins(&mut rig, (client, server));
    rig.send(client, &fe::query("deallocate all"));
    rig.send(server, &[be::complete("DEALLOCATE ALL"), be::ready('T')].concat());
    rig.gets_raw(client);
    rig.gets_raw(server);
    restart(&mut rig, watches);
    rig.send(client, &[fe::query("copy t from stdin"), fe::copy_data(b"1\n"), fe::copy_done()].concat());
    assert_eq!(rig.gets(server), ["Query copy t from stdin"]);
    rig.send(server, &be::copy_in());
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("CopyDone"));
}

#[test]
fn a_node_that_is_down_has_its_servers_closed_and_the_client_is_told() {
    let (mut rig, [one, other]) = with_primary(1);
    let (client, server) = served(&mut rig);
    rig.send(client, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets_raw(client);
    rig.eof(one);
    for _ in 0..10 {
        rig.pass_us(100_000);
        while rig.new_dials() > 0 {
            let again = rig.dialed();
            rig.refuse_dial(again, "no route to host");
        }
    }
    assert!(rig.is_closed(server));
    rig.gets_nothing(client);
    rig.send(client, &fe::query("insert into t values (1)"));
    let told = rig.gets(client);
    assert!(told[0].starts_with("ERROR 40001") && told[0].contains("rolled back"), "{told:?}");
    assert_eq!(told[1], "Ready E");
    assert!(rig.logged("cluster main: node m1 is down: connect failed: no route to host"));
    assert!(!rig.is_closed(other));
}

/// A client whose transaction was open at the primary when the connection ended.
fn bereft(fatal: bool) -> (Rig, End) {
    let (mut rig, _) = with_primary(1);
    let (client, server) = served(&mut rig);
    rig.send(client, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets_raw(client);
    if fatal {
        rig.send(server, &be::fatal("57P01", "terminating connection due to administrator command"));
    }
    rig.eof(server);
    rig.gets_nothing(client);
    (rig, client)
}

const ROLLED_BACK: &str =
    "ERROR 40001 the transaction was rolled back: the connection to the primary was lost";
const ABORTED: &str =
    "ERROR 25P02 current transaction is aborted, commands ignored until end of transaction block";

#[test]
fn a_session_outlives_the_loss_of_the_primary_in_a_transaction() {
    for fatal in [false, true] {
        let (mut rig, client) = bereft(fatal);
        rig.send(client, &[fe::query("select 1"), fe::query("select 2")].concat());
        assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready E", ABORTED, "Ready E"]);
        let group = [fe::parse("", "select 3"), fe::bind(""), fe::execute(), fe::sync()].concat();
        rig.send(client, &group);
        assert_eq!(rig.gets(client), [ABORTED, "Ready E"]);
        rig.send(client, &fe::query("commit"));
        assert_eq!(rig.gets(client), ["Complete ROLLBACK", "Ready I"]);
        goes_on(&mut rig, client);
    }
}

#[test]
fn commit_of_a_transaction_that_is_lost_fails() {
    let commit = [fe::parse("", "commit"), fe::bind(""), fe::execute(), fe::sync()];
    for group in [fe::query("COMMIT"), commit.concat()] {
        let (mut rig, client) = bereft(false);
        rig.send(client, &group);
        assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready I"]);
    }
    // It comes in pieces.
    let (mut rig, client) = bereft(false);
    let query = fe::query("commit");
    rig.send(client, &query[..7]);
    rig.gets_nothing(client);
    rig.send(client, &query[7..]);
    assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready I"]);
    let (mut rig, client) = bereft(false);
    for piece in &commit[..3] {
        rig.send(client, piece);
        rig.gets_nothing(client);
    }
    rig.send(client, &commit[3]);
    assert_eq!(rig.gets(client), [ROLLED_BACK, "Ready I"]);
}

#[test]
fn rollback_of_a_transaction_that_is_lost_is_what_it_says() {
    let (mut rig, client) = bereft(true);
    let close = [fe::close("a"), fe::sync()].concat();
    rig.send(client, &[fe::sync(), fe::query("; -- nothing"), close, fe::query("rollback")].concat());
    let nothing = ["Ready T", "Empty", "Ready T", "CloseComplete", "Ready T"];
    assert_eq!(rig.gets(client), [&nothing[..], &["Complete ROLLBACK", "Ready I"]].concat());
}

#[test]
fn what_asks_for_an_answer_at_once_is_told_of_the_loss_at_once() {
    let (mut rig, client) = bereft(false);
    rig.send(client, &[fe::parse("", "select 1"), fe::flush()].concat());
    assert_eq!(rig.gets(client), [ROLLED_BACK]);
    rig.send(client, &[fe::bind(""), fe::execute()].concat());
    rig.gets_nothing(client);
    rig.send(client, &[fe::sync(), fe::terminate()].concat());
    assert_eq!(rig.gets(client), ["Ready E"]);
    assert!(rig.is_closed(client));
}

#[test]
fn a_begin_that_no_server_has_seen_goes_to_the_next_one() {
    let mut rig = Rig::with(&format!("{MAIN}\ndefer_begin = packet"), CLUSTER, 1);
    let watches = watches(&mut rig);
    rig.send(watches[0], &primary(1));
    rig.send(watches[1], &standby());
    let (client, server) = served(&mut rig);
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.gets_nothing(server);
    rig.eof(server);
    rig.gets_nothing(client);
    rig.send(client, &fe::query("select 2"));
    let next = rig.dialed();
    rig.greet(next);
    let sent = rig.gets(next);
    assert!(
        sent[0].contains("begin") && sent.last().is_some_and(|last| last == "Query select 2"),
        "{sent:?}"
    );
}

#[test]
fn what_a_rollback_does_not_take_back_is_lost_with_the_server() {
    for text in ["select pg_advisory_lock(1)", "prepare a as select 1", "do 'begin end'"] {
        let (mut rig, _) = with_primary(1);
        let (client, server) = served(&mut rig);
        for (text, tag) in [("begin", "BEGIN"), (text, "SELECT 1")] {
            rig.send(client, &fe::query(text));
            rig.send(server, &[be::complete(tag), be::ready('T')].concat());
            rig.gets_raw(client);
        }
        rig.eof(server);
        assert!(rig.gets(client)[0].contains("40001") && rig.is_closed(client), "{text}");
    }
}

#[test]
fn what_may_have_been_executed_is_unknown_and_what_only_reads_is_not() {
    for (text, status, code) in [("insert into t values (1)", 'I', "08007"), ("commit", 'T', "08007")] {
        let (mut rig, _) = with_primary(1);
        let (client, server) = served(&mut rig);
        if status == 'T' {
            rig.send(client, &fe::query("begin"));
            rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
            rig.gets_raw(client);
        }
        rig.send(client, &fe::query(text));
        rig.eof(server);
        let told = rig.gets(client);
        assert!(told[0].contains(code), "{text}: {told:?}");
    }
}

#[test]
fn the_end_of_a_connection_that_served_is_no_evidence() {
    let (mut rig, [one, other]) = with_primary(1);
    rig.send(one, &be::fatal("57P01", "terminating connection due to administrator command"));
    rig.eof(one);
    rig.eof(other);
    let console = rig.console();
    let rows = rig.command(console, "SHOW NODES");
    let errors = rows.iter().filter(|row| row.starts_with("Row main,") && !row.ends_with(",-"));
    assert_eq!(errors.count(), 0, "no check has failed: {rows:?}");
    rig.pass_us(100_000);
    for watch in [rig.dialed(), rig.dialed()] {
        rig.greet(watch);
        is_asked(&mut rig, watch);
        let answer = if rig.endpoint(watch).starts_with("10.0.0.1") { primary(1) } else { standby() };
        rig.send(watch, &answer);
    }
    assert!(!rig.logged("unsure") && !rig.logged("down") && rig.logged_times("is the primary") == 1);
}

#[test]
fn our_own_lack_of_descriptors_is_no_evidence() {
    let (mut rig, [one, _]) = with_primary(1);
    let (_, server) = served(&mut rig);
    rig.eof(one);
    for _ in 0..20 {
        rig.pass_us(100_000);
        while rig.new_dials() > 0 {
            let again = rig.dialed();
            rig.refuse_dial(again, "connect to 10.0.0.1:5432 failed: Too many open files");
        }
    }
    assert!(!rig.is_closed(server) && !rig.logged("is down"));
}

#[test]
fn a_primary_that_does_not_say_so_gets_nothing_new() {
    let (mut rig, [one, _]) = with_primary(1);
    let (client, server) = served(&mut rig);
    for _ in 0..3 {
        rig.pass_us(900_000);
        // It lives: that is no evidence against it, and no word for it.
        if !rig.gets_loosely(one).is_empty() {
            rig.send(one, &[be::error("53200", "out of memory"), be::ready('I')].concat());
        }
    }
    assert!(!rig.logged("unsure"));
    rig.pass_us(400_000);
    assert!(rig.logged("cluster main: node m1 is unsure: it has not confirmed"));
    rig.send(client, &fe::query("select 1"));
    rig.gets_nothing(server);
    rig.send(one, &primary(1));
    assert_eq!(rig.gets(server), ["Query select 1"], "the same server, in the same epoch");
}

#[test]
fn a_client_that_keeps_its_server_ends_with_the_epoch() {
    let (mut rig, watches) = with_primary(1);
    let (client, server) = served(&mut rig);
    rig.send(client, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets_raw(client);
    restart(&mut rig, watches);
    rig.send(client, &fe::query("create temporary table t ()"));
    rig.send(server, &[be::complete("CREATE TABLE"), be::ready('T')].concat());
    rig.gets_raw(server);
    rig.send(client, &fe::query("commit"));
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    // What the session holds now is asked: a temporary table, which keeps the client on its server.
    assert!(!rig.raw(server).is_empty() && !rig.is_closed(server));
    rig.gets_raw(client);
    rig.send(server, &be::answer(&[&["t", "t", ""]]));
    assert!(rig.is_closed(server) && rig.is_closed(client));
    assert!(rig.gets(client)[0].starts_with("FATAL 08006"));
}

#[test]
fn one_worker_watches_and_all_follow() {
    let (mut rig, watches) = with_primary(2);
    let at_each: Vec<End> = (0..2).map(|worker| rig.accept_at(worker)).collect();
    let mut servers = Vec::new();
    for (number, client) in at_each.iter().enumerate() {
        let user = ["alice", "bob"][number];
        // The first worker has so many clients that the next pool is the second one's.
        (0..64 * number).for_each(|_| rig.shared.note_client(WorkerId(0), true));
        rig.send(*client, &fe::startup(&[("user", user), ("database", "app")]));
        let server = rig.dialed();
        assert_eq!(rig.endpoint(server), "10.0.0.1:5432");
        rig.greet(server);
        rig.gets_raw(*client);
        assert_eq!(rig.worker_of(server), number);
        servers.push(server);
    }
    assert_eq!(rig.new_dials(), 0, "each node is watched once");
    fail_over(&mut rig, watches);
    assert!(servers.into_iter().all(|server| rig.is_closed(server)), "also where nothing else happens");
    for client in at_each {
        rig.send(client, &fe::query("select 1"));
        let server = rig.dialed();
        assert_eq!(rig.endpoint(server), "10.0.0.2:5432");
        rig.greet(server);
    }
    for worker in 0..2 {
        let console = rig.console_at(worker);
        let rows = rig.command(console, "SHOW CLUSTERS");
        assert!(rows.iter().any(|row| row.starts_with("Row main,m2,2,2,available,0,")), "{rows:?}");
        let rows = rig.command(console, "SHOW NODES");
        assert_eq!(rows.iter().filter(|row| row.starts_with("Row main,m")).count(), 2, "{rows:?}");
        let row = rows.iter().find(|row| row.starts_with("Row main,m2,")).expect("it is shown");
        assert_eq!(row.split(',').nth(15), Some("2"), "both workers have a busy server there: {row}");
    }
}

#[test]
fn a_successor_keeps_the_servers_of_the_present_epoch_only() {
    for (timeline, stays) in [(1, true), (2, false)] {
        let (mut rig, _) = with_primary(1);
        let (client, server) = served(&mut rig);
        rig.take_over(MAIN, CLUSTER);
        assert!(rig.asked().iter().any(|question| matches!(question, Question::Drained(_))));
        rig.send(client, &fe::query("select 1"));
        rig.gets_nothing(server);
        let new = [rig.dialed(), rig.dialed()];
        let first = new.into_iter().find(|&watch| rig.endpoint(watch).starts_with("10.0.0.1"));
        let watch = first.expect("both nodes are dialed");
        rig.greet(watch);
        is_asked(&mut rig, watch);
        rig.send(watch, &primary(timeline));
        assert_eq!(rig.is_closed(server), !stays);
        if stays {
            assert_eq!(rig.gets(server), ["Query select 1"]);
        }
    }
}

#[test]
fn a_successor_knows_which_nodes_are_drained() {
    let (mut rig, _) = with_primary(1);
    let console = rig.console();
    assert_eq!(rig.command(console, "DRAIN NODE main.m1"), ["Complete DRAIN NODE", "Ready I"]);
    let carried = CarriedSwitches::decode(&CarriedSwitches::encode(&rig.shared)).expect("good");
    let config = Config::load("t.ini", &mut |_| Ok(format!("[pgbouncer]\n[databases]\n{CLUSTER}")));
    rig.take_over(MAIN, CLUSTER);
    carried.inherit(&rig.shared, &config.expect("good"));
    rig.pass_us(1);
    let new = [rig.dialed(), rig.dialed()];
    let first = new.into_iter().find(|&watch| rig.endpoint(watch).starts_with("10.0.0.1"));
    let watch = first.expect("both nodes are dialed");
    rig.greet(watch);
    rig.send(watch, &primary(1));
    let client = rig.accept_at(1);
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    rig.gets_nothing(client);
    let console = rig.console_at(1);
    let rows = rig.command(console, "SHOW NODES");
    assert!(
        rows.iter()
            .any(|row| row.contains("m1,") && row.contains("primary,primary") && row.contains("draining")),
        "{rows:?}"
    );
}

#[test]
fn a_node_that_sends_rubbish_is_not_trusted() {
    let mut rig = Rig::with(MAIN, CLUSTER, 1);
    let [one, other] = watches(&mut rig);
    rig.send(one, &be::answer(&[&["false", "0/1"]]));
    rig.send(other, b"\xff\xff\xff\xff\xff\xff");
    assert!(rig.is_closed(other) && !rig.is_closed(one));
    let console = rig.console();
    let rows = rig.command(console, "SHOW NODES");
    assert!(rows.iter().any(|row| row.contains("its answer cannot be read: number of columns")), "{rows:?}");
    rig.end(one, Closed::Broken("reset".to_owned()));
    let client = rig.knock("alice", "app");
    rig.gets_nothing(client);
}
