//! Statement multiplexing: short statements of several clients on one server, one after the other.

use pgweir_core::driver::Closed;

use crate::rig::{End, Rig, be, fe};

/// Clients, and the one server of their pool, which knows `select 1` and `insert into t values (1)` to be short.
fn pool(clients: usize, main: &str) -> (Rig, Vec<End>, End) {
    let mut rig = Rig::new(&format!("default_pool_size = 1\n{main}"));
    let clients: Vec<End> = (0..clients).map(|_| rig.client("alice")).collect();
    let server = rig.dialed();
    for text in ["select 1", "insert into t values (1)", "update t set a = 1"] {
        rig.send(clients[0], &fe::query(text));
        rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    }
    rig.gets(server);
    rig.gets(clients[0]);
    (rig, clients, server)
}

fn answer(text: &str) -> Vec<u8> {
    [be::one_row(text), be::ready('I')].concat()
}

fn answered(text: &str) -> Vec<String> {
    ["Columns", &format!("Row {text}"), "Complete SELECT 1", "Ready I"].map(str::to_owned).to_vec()
}

#[test]
fn short_statements_follow_each_other_and_everyone_gets_its_own_answer() {
    let (mut rig, clients, server) = pool(3, "");
    for (at, client) in clients.iter().enumerate() {
        rig.send(*client, &fe::query(&format!("select {at}")));
    }
    assert_eq!(rig.gets(server), ["Query select 0", "Query select 1", "Query select 2"]);
    rig.send(server, &[answer("0"), answer("1")].concat());
    assert_eq!(rig.gets(clients[0]), answered("0"));
    assert_eq!(rig.gets(clients[1]), answered("1"));
    rig.gets_nothing(clients[2]);
    rig.send_bytewise(server, &answer("2"));
    assert_eq!(rig.gets(clients[2]), answered("2"));
    let console = rig.console();
    let row = rig.pool(console, "app,alice");
    assert_eq!(row[18..23], ["0", "0", "2", "0", "0"], "{row:?}");
}

#[test]
fn no_statement_follows_a_client_that_has_sent_more() {
    for more in ["begin", "select pg_sleep(1)", "set x = 1"] {
        let (mut rig, clients, server) = pool(2, "");
        rig.send(clients[0], &fe::query("select 1"));
        rig.send(clients[0], &fe::query(more));
        rig.send(clients[1], &fe::query("select 2"));
        assert_eq!(rig.gets(server), ["Query select 1".to_owned(), format!("Query {more}")]);
        rig.send(server, &answer("1"));
        assert_eq!(rig.gets(clients[0]), answered("1"));
        rig.gets_nothing(server);
    }
}

#[test]
fn what_is_queued_together_leaves_in_one_packet() {
    let (mut rig, clients, server) = pool(3, "");
    let texts: Vec<Vec<u8>> = (0..3).map(|at| fe::query(&format!("select {at}"))).collect();
    let together: Vec<(End, &[u8])> = clients.iter().copied().zip(texts.iter().map(Vec::as_slice)).collect();
    rig.send_together(&together);
    assert_eq!(rig.gets(server).len(), 3);
}

#[test]
fn no_statement_follows_what_is_not_certain_or_not_known() {
    for first in
        ["begin", "select pg_sleep(1)", "set x = 1", "select 1; select 2", "insert into other values (1)"]
    {
        let (mut rig, clients, server) = pool(2, "");
        rig.send(clients[0], &fe::query(first));
        rig.send(clients[1], &fe::query("select 1"));
        assert_eq!(rig.gets(server), [format!("Query {first}")], "{first}");
    }
    let (mut rig, clients, server) = pool(2, "multiplex_depth = 0");
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(clients[1], &fe::query("select 1"));
    assert_eq!(rig.gets(server).len(), 1, "it is turned off");
}

#[test]
fn what_is_not_certain_does_not_follow() {
    for second in ["begin", "set x = 1", "select 1; select 2", "listen a", "select pg_sleep(1)"] {
        let (mut rig, clients, server) = pool(2, "");
        rig.send(clients[0], &fe::query("select 1"));
        rig.send(clients[1], &fe::query(second));
        assert_eq!(rig.gets(server), ["Query select 1"], "{second}");
        rig.send(server, &answer("1"));
        assert_eq!(rig.gets(server), [format!("Query {second}")]);
    }
}

#[test]
fn no_client_overtakes_one_that_waits_longer() {
    let (mut rig, clients, server) = pool(3, "");
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(clients[1], &fe::query("begin"));
    rig.send(clients[2], &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &answer("1"));
    assert_eq!(rig.gets(server), ["Query begin"]);
}

#[test]
fn extended_groups_are_multiplexed_too_and_bring_what_they_need() {
    let (mut rig, clients, server) = pool(3, "");
    let prepare = [fe::parse("s1", "select $1"), fe::sync()].concat();
    let run = [fe::bind("s1"), fe::execute(), fe::sync()].concat();
    for (at, client) in clients[..2].iter().enumerate() {
        rig.send(*client, &prepare);
        if at == 0 {
            rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
        }
        rig.send(*client, &run);
        rig.send(server, &[be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat());
        rig.gets(*client);
    }
    rig.gets(server);
    rig.send(clients[0], &run);
    rig.send(clients[1], &run);
    let unnamed = [fe::parse("", "select 1"), fe::bind(""), fe::execute(), fe::sync()].concat();
    rig.send(clients[2], &unnamed);
    let got = rig.gets(server);
    assert_eq!(
        got.iter().filter(|message| *message == "Sync").count(),
        2,
        "the third is not known yet: {got:?}"
    );
    let one = [be::bind_complete(), be::complete("SELECT 7"), be::ready('I')].concat();
    rig.send(server, &[one.clone(), one].concat());
    for client in &clients[..2] {
        assert_eq!(rig.gets(*client), ["BindComplete", "Complete SELECT 7", "Ready I"]);
    }
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Sync"));
}

#[test]
fn a_name_is_not_used_while_its_statement_may_still_be_refused() {
    let (mut rig, clients, server) = pool(3, "max_prepared_statements = 1\nmultiplex_servers = 1");
    let prepare = |text: &str| [fe::parse("s", text), fe::sync()].concat();
    let run = [fe::bind("s"), fe::execute(), fe::sync()].concat();
    let done = [be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat();
    rig.send(clients[0], &prepare("select a from t"));
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    rig.send(clients[1], &prepare("select a from t"));
    for _ in 0..2 {
        rig.send(clients[0], &run);
        rig.send(server, &done);
    }
    // The server forgets it for another one.
    rig.send(clients[2], &prepare("select 2"));
    rig.send(server, &[be::close_complete(), be::parse_complete(), be::ready('I')].concat());
    rig.gets(server);
    clients.iter().for_each(|client| drop(rig.gets(*client)));
    let asked = ["Close S PGWEIR_2", "Parse PGWEIR_1 select a from t", "Bind PGWEIR_1", "Execute", "Sync"];
    rig.send(clients[0], &run);
    rig.send(clients[1], &run);
    assert_eq!(rig.gets(server), asked, "the table may be gone");
    let refused = be::error("42P01", "relation \"t\" does not exist");
    rig.send(server, &[be::close_complete(), refused.clone(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), asked[1..], "the second client is told the reason, too");
    rig.send(server, &[refused, be::ready('I')].concat());
    for client in &clients[..2] {
        assert_eq!(rig.gets(*client), ["ERROR 42P01 relation \"t\" does not exist", "Ready I"]);
    }
}

#[test]
fn an_error_is_its_own_statements_alone() {
    let (mut rig, clients, server) = pool(3, "");
    for client in &clients {
        rig.send(*client, &fe::query("select 1"));
    }
    let failed = [be::error("22012", "division by zero"), be::ready('I')].concat();
    rig.send(server, &[answer("0"), failed, answer("2")].concat());
    assert_eq!(rig.gets(clients[0]), answered("0"));
    assert_eq!(rig.gets(clients[1]), ["ERROR 22012 division by zero", "Ready I"]);
    assert_eq!(rig.gets(clients[2]), answered("2"));
}

#[test]
fn what_a_dead_server_had_not_begun_runs_elsewhere_unseen() {
    begun_by_none(Closed::Eof);
    begun_by_none(Closed::Broken("Connection reset by peer".to_owned()));
}

fn begun_by_none(why: Closed) {
    let (mut rig, clients, server) = pool(4, "");
    rig.send(clients[0], &fe::query("select 0"));
    rig.send(clients[1], &fe::query("select 1"));
    rig.send(clients[2], &fe::query("select 2"));
    rig.send(clients[3], &fe::query("begin"));
    rig.gets(server);
    rig.end(server, why);
    assert_eq!(rig.gets(clients[0]), ["FATAL 08006 server conn crashed?"]);
    let fresh = rig.dialed();
    rig.greet(fresh);
    let mut served = Vec::new();
    for client in &clients[1..] {
        assert!(!rig.is_closed(*client));
    }
    for _ in 0..2 {
        served.extend(rig.gets(fresh));
        rig.send(fresh, &answer("x"));
    }
    served.extend(rig.gets(fresh));
    assert_eq!(served, ["Query select 1", "Query select 2", "Query begin"]);
    assert_eq!(rig.gets(clients[1]), answered("x"));
    assert_eq!(rig.gets(clients[2]), answered("x"));
}

#[test]
fn a_statement_that_leaves_a_transaction_open_costs_the_server_and_is_not_trusted_again() {
    let (mut rig, clients, server) = pool(4, "");
    rig.send(clients[0], &fe::query("select 0"));
    rig.send(clients[1], &fe::query("select 1"));
    rig.send(server, &[be::one_row("0"), be::ready('T')].concat());
    assert!(rig.is_closed(server));
    let fresh = rig.dialed();
    rig.greet(fresh);
    assert_eq!(rig.gets(fresh).last().map(String::as_str), Some("Query select 1"), "it was behind it");
    rig.send(fresh, &answer("1"));
    assert_eq!(rig.gets(clients[1]), answered("1"));
    rig.send(clients[2], &fe::query("select 2"));
    rig.send(clients[3], &fe::query("select 3"));
    assert_eq!(rig.gets(fresh), ["Query select 2"], "nothing is queued behind it now");
    let console = rig.console();
    let row = rig.pool(console, "app,alice");
    assert_eq!(row[22], "1", "{row:?}");
}

#[test]
fn in_statement_pooling_too_no_client_stays_behind_an_open_transaction() {
    let (mut rig, clients, server) = pool(2, "pool_mode = statement");
    rig.send(clients[0], &fe::query("select 0"));
    rig.send(clients[1], &fe::query("select 1"));
    rig.send(server, &[be::one_row("0"), be::ready('T')].concat());
    assert!(rig.is_closed(server));
    assert!(rig.is_closed(clients[0]));
    assert!(!rig.is_closed(clients[1]), "it runs elsewhere");
    let console = rig.console();
    let row = rig.pool(console, "app,alice");
    assert_eq!(row[22], "1", "{row:?}");
}

#[test]
fn a_copy_or_another_session_costs_the_server() {
    for surprise in [be::copy_in(), be::parameter("TimeZone", "Asia/Tokyo")] {
        let (mut rig, clients, server) = pool(2, "");
        rig.send(clients[0], &fe::query("select 0"));
        rig.send(clients[1], &fe::query("select 1"));
        rig.send(server, &surprise);
        assert!(rig.is_closed(server));
        let fresh = rig.dialed();
        rig.greet(fresh);
        assert_eq!(rig.gets(fresh).last().map(String::as_str), Some("Query select 1"));
    }
}

#[test]
fn a_head_that_leaves_is_answered_to_no_client() {
    let (mut rig, clients, server) = pool(3, "");
    for client in &clients {
        rig.send(*client, &fe::query("select 1"));
    }
    rig.eof(clients[0]);
    rig.eof(clients[1]);
    rig.send(server, &[answer("0"), answer("1"), answer("2")].concat());
    assert_eq!(rig.gets(clients[2]), answered("2"));
    rig.send(clients[2], &fe::query("select 1"));
    rig.gets(server);
    rig.send(server, &answer("3"));
    assert_eq!(rig.gets(clients[2]), answered("3"));
}

#[test]
fn a_server_without_clients_is_closed() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let (mut rig, clients, server) = pool(4, "");
        for client in &clients[..3] {
            rig.send(*client, &fe::query("select 1"));
        }
        assert_eq!(rig.gets(server).len(), 3);
        for at in order {
            assert!(!rig.is_closed(server), "a client is queued on it");
            rig.eof(clients[at]);
        }
        rig.pass_s(1);
        rig.lets_go(server);
        rig.send(clients[3], &fe::query("select 3"));
        let fresh = rig.next_server();
        assert_eq!(rig.gets(fresh).last().map(String::as_str), Some("Query select 3"));
    }
}

#[test]
fn a_head_that_is_nobodys_does_not_outlast_reconnect() {
    let (mut rig, clients, server) = pool(2, "");
    for client in &clients {
        rig.send(*client, &fe::query("select 1"));
    }
    let console = rig.console();
    rig.command(console, "RECONNECT");
    rig.eof(clients[0]);
    rig.pass_us(90_000);
    assert!(!rig.is_closed(server), "its queued is waited for");
    rig.eof(clients[1]);
    rig.pass_s(1);
    rig.lets_go(server);
    assert!(rig.logged("obsolete connection"));
}

#[test]
fn a_server_with_only_late_clients_is_closed() {
    let (mut rig, clients, server) = pool(4, "query_timeout = 5");
    for client in &clients[..3] {
        rig.send(*client, &fe::query("select 1"));
    }
    rig.pass_s(6);
    assert!(clients[..3].iter().all(|client| rig.is_closed(*client)));
    rig.lets_go(server);
    rig.send(clients[3], &fe::query("select 3"));
    let fresh = rig.next_server();
    assert_eq!(rig.gets(fresh).last().map(String::as_str), Some("Query select 3"));
}

#[test]
fn a_queued_client_that_pipelines_has_its_next_statement_later() {
    let (mut rig, clients, server) = pool(2, "session_state = pgbouncer");
    rig.send(clients[0], &fe::query("select 0"));
    rig.send(clients[1], &[fe::query("select 1"), fe::query("begin")].concat());
    rig.send(clients[0], &fe::query("set x = 1"));
    assert_eq!(rig.gets(server), ["Query select 0", "Query select 1"]);
    rig.send(server, &[answer("0"), answer("1")].concat());
    assert_eq!(rig.gets(server), ["Query set x = 1"]);
    rig.send(server, &[be::complete("SET"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query begin"]);
    assert_eq!(rig.gets(clients[1]), answered("1"));
}

#[test]
fn the_depth_is_kept_to() {
    let (mut rig, clients, server) = pool(5, "multiplex_depth = 3");
    for client in &clients {
        rig.send(*client, &fe::query("select 1"));
    }
    assert_eq!(rig.gets(server).len(), 3);
    rig.send(server, &answer("0"));
    assert_eq!(rig.gets(server).len(), 1);
}

#[test]
fn a_head_that_turns_out_long_takes_nobody_more() {
    let (mut rig, clients, server) = pool(2, "");
    rig.send(clients[0], &fe::query("select 1"));
    rig.gets(server);
    rig.pass_us(5_001);
    rig.send(clients[1], &fe::query("select 1"));
    rig.gets_nothing(server);
}

#[test]
fn an_idle_server_is_woken_for_a_client_that_waits_too_long() {
    let settings = "multiplex_depth = 2\nmultiplex_servers = 1\nmin_pool_size = 2\nmultiplex_max_ms = 1000";
    let (mut rig, clients, server) = pool(4, settings);
    rig.reload(&format!("default_pool_size = 2\n{settings}"), "app = host=pg");
    rig.pass_us(400_000);
    let second = rig.dialed();
    rig.greet(second);
    rig.gets(second);
    let first_text = fe::query("select 1");
    for client in &clients {
        rig.send(*client, &first_text);
    }
    let queued = rig.gets(server).len() + rig.gets(second).len();
    assert_eq!(queued, 2, "one server is busy, the other is left alone");
    rig.pass_us(40_000);
    assert_eq!(rig.gets(server).len() + rig.gets(second).len(), 0);
    rig.pass_us(10_500);
    assert_eq!(rig.gets(server).len() + rig.gets(second).len(), 2);
}

/// The first of three clients' statements is to be cancelled; the cancel was sent.
fn cancelled() -> (Rig, Vec<End>, End, End) {
    let (mut rig, clients, server) = pool(4, "");
    for client in &clients[..3] {
        rig.send(*client, &fe::query("select 1"));
    }
    assert_eq!(rig.gets(server).len(), 3);
    rig.cancel(clients[0]);
    let cancel = rig.dialed();
    assert!(!rig.connect(cancel).is_empty());
    rig.send(clients[3], &fe::query("select 1"));
    rig.gets_nothing(server);
    (rig, clients, server, cancel)
}

#[test]
fn a_client_hit_by_a_strangers_cancel_runs_again_unseen() {
    let (mut rig, clients, server, cancel) = cancelled();
    rig.send(server, &answer("0"));
    assert_eq!(rig.gets(clients[0]), answered("0"), "the cancel came too late for it");
    rig.send_bytewise(server, &[be::columns(), be::row("1")].concat());
    rig.gets_nothing(clients[1]);
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I'), answer("2")].concat());
    rig.gets_nothing(clients[1]);
    assert_eq!(rig.gets(clients[2]), answered("2"));
    rig.gets_nothing(server);
    rig.eof(cancel);
    assert_eq!(rig.gets(server), ["Query select 1"], "nobody follows what runs again");
    rig.send(server, &answer("1"));
    assert_eq!(rig.gets(clients[1]), answered("1"));
    rig.send(server, &answer("3"));
    assert_eq!(rig.gets(clients[3]), answered("3"));
}

#[test]
fn a_client_hit_in_the_middle_of_an_unexpectedly_large_answer_runs_again_unseen() {
    let (mut rig, clients, server, cancel) = cancelled();
    rig.send(server, &answer("0"));
    rig.gets(clients[0]);
    rig.send(server, &be::columns());
    for _ in 0..4 {
        rig.send(server, &be::row_of(60_000));
    }
    rig.gets_nothing(clients[1]);
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I'), answer("2")].concat());
    rig.gets_nothing(clients[1]);
    rig.eof(cancel);
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &answer("1"));
    assert_eq!(rig.gets(clients[1]), answered("1"));
}

#[test]
fn a_client_hit_behind_more_of_its_answer_than_is_held_runs_again_unseen() {
    let (mut rig, clients, server, cancel) = cancelled();
    rig.send(server, &answer("0"));
    rig.gets(clients[0]);
    rig.send(server, &be::columns());
    for _ in 0..5 {
        rig.send(server, &be::row_of(60_000));
    }
    rig.gets_nothing(clients[1]);
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I'), answer("2")].concat());
    rig.gets_nothing(clients[1]);
    assert_eq!(rig.gets(clients[2]), answered("2"));
    rig.eof(cancel);
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &answer("1"));
    assert_eq!(rig.gets(clients[1]), answered("1"));
}

#[test]
fn a_client_that_asked_for_the_cancel_is_told_of_it() {
    let (mut rig, clients, server, cancel) = cancelled();
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    assert_eq!(rig.gets(clients[0]), ["ERROR 57014 canceled", "Ready I"]);
    rig.send(server, &[answer("1"), answer("2")].concat());
    assert_eq!(rig.gets(clients[1]), answered("1"));
    assert_eq!(rig.gets(clients[2]), answered("2"));
    rig.gets_nothing(server);
    rig.eof(cancel);
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn a_queued_clients_own_cancel_waits_for_its_turn() {
    let (mut rig, clients, server) = pool(3, "");
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(clients[1], &fe::query("select 1"));
    let requester = rig.cancel(clients[1]);
    assert_eq!(rig.new_dials(), 0);
    rig.send(clients[2], &fe::query("select 1"));
    assert_eq!(rig.gets(server).len(), 2, "nobody follows any more");
    rig.send(server, &answer("0"));
    let cancel = rig.dialed();
    assert!(!rig.connect(cancel).is_empty());
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    assert_eq!(rig.gets(clients[1]), ["ERROR 57014 canceled", "Ready I"]);
    rig.eof(cancel);
    assert!(rig.is_closed(requester));
    assert_eq!(rig.gets(server).len(), 1);
}
