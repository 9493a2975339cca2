//! A server that was sent the end of its transaction will be free: who is next has its BEGIN answered already.

use crate::rig::{End, Rig, be, fe};

const OPENED: [&str; 2] = ["Complete BEGIN", "Ready T"];
const FIRST: [&str; 4] = ["Parse  begin", "Bind ", "Execute", "Query select 2"];

/// A client in a transaction with the pool's only server, and as many as asked for that wait with a BEGIN.
fn waiting(more: usize, main: &str) -> (Rig, End, End, Vec<End>) {
    let mut rig =
        Rig::new(&format!("default_pool_size = 1\ndefer_begin = packet\nquery_wait_notify = 0\n{main}"));
    let client = rig.client("alice");
    let server = rig.dialed();
    let others: Vec<End> = (0..more).map(|_| rig.client("alice")).collect();
    rig.send(client, &fe::query("begin"));
    rig.send(client, &fe::query("select 1"));
    rig.gets_loosely(server);
    let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
    rig.send(server, &[begun, be::one_row("1"), be::ready('T')].concat());
    rig.gets(client);
    for &other in &others {
        rig.send(other, &fe::query("begin"));
        rig.gets_nothing(other);
    }
    (rig, client, server, others)
}

fn committed() -> Vec<u8> {
    [be::complete("COMMIT"), be::ready('I')].concat()
}

fn answered() -> Vec<u8> {
    let begun = [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat();
    [begun, be::one_row("2"), be::ready('T')].concat()
}

#[test]
fn who_is_next_has_its_begin_answered_when_the_transaction_before_is_about_to_end() {
    let extended = [fe::parse("", "end"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let parsed = [be::parse_complete(), be::bind_complete()].concat();
    let simple = |text: &str| (fe::query(text), Vec::new());
    for (end, before) in [simple("commit"), simple("ROLLBACK;"), (extended, parsed)] {
        let (mut rig, client, server, others) = waiting(2, "");
        rig.send(client, &end);
        assert_eq!(rig.gets(others[0]), OPENED);
        rig.gets_nothing(others[1]);
        rig.gets(server);
        // Its first statement may be there before the server is: it is sent at once then.
        rig.send(others[0], &fe::query("select 2"));
        rig.gets_nothing(server);
        rig.send(server, &[before, committed()].concat());
        assert_eq!(rig.gets(server), FIRST);
        rig.send(server, &answered());
        assert_eq!(rig.gets(others[0]).last().map(String::as_str), Some("Ready T"));
        rig.gets_nothing(others[1]);
    }
}

#[test]
fn it_gets_the_server_also_if_it_says_nothing_more() {
    let (mut rig, client, server, others) = waiting(2, "");
    rig.send(client, &fe::query("commit"));
    rig.gets(server);
    rig.send(server, &committed());
    assert_eq!((rig.gets(client).len(), rig.gets(others[0]).len()), (2, 2));
    rig.gets_nothing(others[1]);
    let late = rig.client("alice");
    rig.send(late, &fe::query("select 3"));
    rig.gets_nothing(server);
    rig.send(others[0], &fe::query("select 2"));
    assert_eq!(rig.gets(server), FIRST);

    for (limit, code) in [("idle_transaction_timeout", "25P03"), ("transaction_timeout", "25P04")] {
        let (mut rig, client, server, others) = waiting(1, &format!("{limit} = 3"));
        rig.send(client, &fe::query("commit"));
        rig.send(server, &committed());
        rig.gets(others[0]);
        rig.pass_s(5);
        let told = rig.gets(others[0]);
        assert!(told[0].starts_with(&format!("FATAL {code}")), "as whoever has a server: {told:?}");
    }
}

#[test]
fn no_more_are_told_so_than_servers_are_at_work() {
    let (mut rig, client, server, others) = waiting(3, "");
    // A second server, which the next one has by now.
    rig.reload("default_pool_size = 2\ndefer_begin = packet\nquery_wait_notify = 0", "app = host=pg");
    rig.pass_s(1);
    let second = rig.dialed();
    rig.greet(second);
    assert_eq!(rig.gets(others[0]), OPENED);
    rig.send(others[0], &fe::query("select 2"));
    rig.send(second, &answered());
    rig.gets(others[0]);
    rig.send(client, &fe::query("commit"));
    assert_eq!(rig.gets(others[1]), OPENED);
    rig.eof(server);
    rig.send(others[0], &fe::query("commit"));
    rig.gets_nothing(others[2]);
    rig.send(second, &committed());
    rig.gets_nothing(others[2]);
    rig.send(others[1], &fe::query("select 2"));
    assert_eq!(rig.gets(second)[5..], FIRST);
}

#[test]
fn who_ends_an_empty_transaction_meanwhile_gives_up_its_place() {
    let (mut rig, client, server, others) = waiting(2, "");
    rig.send(client, &fe::query("commit"));
    rig.gets(server);
    rig.gets(others[0]);
    rig.send(others[0], &fe::query("commit"));
    rig.gets(others[0]);
    rig.send(others[0], &fe::query("begin"));
    rig.gets_nothing(others[0]);
    rig.send(server, &committed());
    assert_eq!(rig.gets(others[1]), OPENED);
    rig.gets_nothing(others[0]);
}

#[test]
fn who_was_told_so_has_one_place_in_the_queue() {
    let (mut rig, client, server, others) = waiting(3, "");
    rig.send(client, &fe::query("commit"));
    rig.send(others[0], &fe::query("select 2"));
    let last = rig.client("alice");
    rig.send(last, &fe::query("begin"));
    rig.send(server, &committed());
    rig.send(server, &answered());
    rig.send(others[0], &fe::query("commit"));
    rig.send(server, &committed());
    rig.send(others[0], &fe::query("begin"));
    for other in &others[1..] {
        rig.gets_nothing(last);
        rig.send(*other, &fe::query("select 2"));
        rig.send(server, &answered());
        rig.send(*other, &fe::query("commit"));
        rig.send(server, &committed());
    }
    assert_eq!(rig.gets(last), OPENED, "it came before the other one came back");
}

#[test]
fn whose_server_does_not_survive_the_commit_gets_another_one() {
    let (mut rig, client, server, others) = waiting(1, "");
    rig.send(client, &fe::query("commit"));
    assert_eq!(rig.gets(others[0]), OPENED);
    rig.send(others[0], &fe::query("select 2"));
    rig.eof(server);
    assert!(rig.gets(client)[0].starts_with("FATAL 08"));
    let fresh = rig.dialed();
    rig.greet(fresh);
    assert_eq!(rig.gets(fresh), FIRST);
}

#[test]
fn who_leaves_meanwhile_leaves_nothing_behind() {
    let (mut rig, client, server, others) = waiting(2, "");
    rig.send(client, &fe::query("commit"));
    rig.gets(others[0]);
    rig.eof(others[0]);
    rig.send(server, &committed());
    assert_eq!(rig.gets(others[1]), OPENED);
}

#[test]
fn nothing_is_told_early_where_the_server_may_stay_busy() {
    for sent in [
        fe::query("commit and chain"),
        fe::query("commit; select 1"),
        fe::query("commit prepared 'x'"),
        [fe::query("commit"), fe::query("select 1")].concat(),
        [fe::parse("", "commit"), fe::bind(""), fe::execute()].concat(),
        [fe::query("select 1"), fe::query("commit")].concat(),
        [fe::query("commit"), fe::query("commit")].concat(),
    ] {
        let (mut rig, client, server, others) = waiting(1, "");
        rig.send(client, &sent);
        rig.gets(server);
        rig.gets_nothing(others[0]);
    }
    // Another statement is to be answered before.
    let (mut rig, client, _, others) = waiting(1, "");
    rig.send(client, &fe::query("select 1"));
    rig.send(client, &fe::query("commit"));
    rig.gets_nothing(others[0]);
    // What looks like a COMMIT is the end of data for a COPY that has failed.
    let (mut rig, client, server, others) = waiting(1, "");
    rig.send(client, &fe::query("copy t from stdin"));
    rig.send(server, &be::copy_in());
    let end = fe::query("commit");
    let data = fe::copy_data(&[vec![0; 100_000], end.clone()].concat());
    rig.send(client, &data[..data.len() - end.len()]);
    rig.send(server, &[be::error("22P02", "no"), be::ready('E')].concat());
    rig.send(client, &end);
    rig.gets_nothing(others[0]);
    // Somebody else's statement is first in the queue, or goes along with the BEGIN.
    let (mut rig, client, _, _) = waiting(0, "");
    let (asking, after) = (rig.client("alice"), rig.client("alice"));
    rig.send(asking, &[fe::query("begin"), fe::query("select 4")].concat());
    rig.send(after, &fe::query("begin"));
    rig.send(client, &fe::query("commit"));
    rig.gets_nothing(asking);
    rig.gets_nothing(after);
    // A client that keeps its server for what lives there.
    let (mut rig, client, server, others) = waiting(1, "");
    rig.send(client, &fe::query("create temp table t (a int)"));
    rig.send(server, &[be::complete("CREATE TABLE"), be::ready('T')].concat());
    rig.send(client, &fe::query("commit"));
    rig.gets_nothing(others[0]);
}

#[test]
fn a_server_that_is_to_be_closed_is_for_nobody() {
    for command in ["PAUSE", "RECONNECT app", "SHUTDOWN WAIT_FOR_SERVERS"] {
        let (mut rig, client, server, others) = waiting(1, "");
        let console = rig.console();
        rig.send(console, &fe::query(command));
        rig.send(client, &fe::query("commit"));
        rig.gets(server);
        assert_ne!(rig.gets(others[0]), OPENED, "{command}");
    }
    let (mut rig, client, _, others) = waiting(1, "server_lifetime = 60");
    rig.pass_s(61);
    rig.send(client, &fe::query("commit"));
    rig.gets_nothing(others[0]);
}

#[test]
fn where_a_client_keeps_its_server_nobody_is_told_of_it() {
    let main = "default_pool_size = 1\ndefer_begin = packet\nquery_wait_notify = 0";
    let mut rig = Rig::with(main, "app = host=pg pool_mode=session", 1);
    let (client, next) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(client, &fe::query("begin"));
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(server), FIRST);
    rig.send(server, &answered());
    rig.send(next, &fe::query("begin"));
    rig.send(client, &fe::query("commit"));
    assert_eq!(rig.gets(server), ["Query commit"]);
    rig.gets_nothing(next);
}

#[test]
fn the_reserve_is_for_who_waits_longest_though_another_one_is_next() {
    let (mut rig, client, _, others) =
        waiting(2, "reserve_pool_size = 1\nreserve_pool_timeout = 5\nquery_wait_timeout = 0");
    rig.send(client, &fe::query("commit"));
    assert_eq!(rig.gets(others[0]), OPENED);
    assert_eq!(rig.new_dials(), 0);
    rig.pass_s(6);
    let reserve = rig.dialed();
    rig.greet(reserve);
    assert!(rig.logged("taking connection from reserve_pool"));
    // In the order in which they came.
    rig.send(others[0], &fe::query("select 2"));
    assert_eq!(rig.gets(reserve), FIRST);
    rig.gets_nothing(others[1]);
}
