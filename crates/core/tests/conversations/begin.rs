//! BEGIN is answered at once, and travels with the transaction's first statement.

use crate::rig::{End, Rig, be, fe};

fn begun(text: &str, main: &str) -> (Rig, End, End) {
    let mut rig = Rig::new(&format!(
        "default_pool_size = 1\n{}",
        if main.is_empty() { "defer_begin = server" } else { main }
    ));
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query(text));
    (rig, client, server)
}

const SENT: [&str; 3] = ["Parse  begin", "Bind ", "Execute"];

fn opened() -> Vec<u8> {
    [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat()
}

#[test]
fn it_is_answered_without_a_server_and_goes_before_the_first_statement() {
    let (mut rig, client, server) = begun("begin", "");
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.gets_nothing(server);
    rig.send(client, &fe::query("update t set a = 1"));
    assert_eq!(rig.gets(server), [&SENT[..], &["Query update t set a = 1"]].concat());
    rig.send_bytewise(server, &[opened(), be::complete("UPDATE 1"), be::ready('T')].concat());
    assert_eq!(rig.gets(client), ["Complete UPDATE 1", "Ready T"]);
    rig.send(client, &fe::query("commit"));
    assert_eq!(rig.gets(server), ["Query commit"]);
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete COMMIT", "Ready I"]);
}

#[test]
fn a_copy_after_it_gets_its_data_also_from_a_client_that_keeps_its_server() {
    let mut rig = Rig::new("default_pool_size = 1\ndefer_begin = packet");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("CREATE TEMP TABLE t (a int)"));
    rig.gets(server);
    rig.send(server, &[be::complete("CREATE TABLE"), be::ready('I')].concat());
    rig.gets_loosely(server);
    rig.send(server, &be::answer(&[&["t", "", ""]]));
    rig.gets(client);
    rig.send(client, &fe::query("DEALLOCATE x"));
    rig.gets(server);
    rig.send(server, &[be::error("26000", "no such statement"), be::ready('I')].concat());
    rig.gets_loosely(server);
    rig.send(server, &be::answer(&[&["t", "", ""]]));
    rig.gets(client);
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    // The data comes without waiting for the server to ask for it.
    rig.send(client, &[fe::query("COPY t FROM STDIN"), fe::copy_data(b"1"), fe::copy_done()].concat());
    assert_eq!(rig.gets(server), [&SENT[..], &["Query COPY t FROM STDIN"]].concat());
    rig.send(server, &[opened(), be::copy_in()].concat());
    assert_eq!(rig.gets(server).len(), 2, "the data and its end");
}

#[test]
fn meanwhile_the_server_is_everybodys() {
    let (mut rig, client, server) = begun("start transaction read only", "");
    assert_eq!(rig.gets(client), ["Complete START TRANSACTION", "Ready T"]);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 1"));
    rig.gets(server);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(other).len(), 4);
}

#[test]
fn a_server_that_was_not_needed_after_all_is_everybodys_again() {
    let (mut rig, client, server) = begun("begin", "");
    rig.gets(client);
    let prepare = |name: &str| [fe::parse(name, "select 7"), fe::sync()].concat();
    let first = rig.client("alice");
    rig.send(first, &prepare("a"));
    rig.gets(server);
    rig.send(client, &prepare("b"));
    rig.gets_nothing(client);
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready T"], "the server has it by now");
    rig.send(first, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(client, &fe::query("update t set a = 1"));
    rig.gets_nothing(server);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), [&SENT[..], &["Query update t set a = 1"]].concat());
}

#[test]
fn an_empty_transaction_never_reaches_a_server() {
    for (end, tag) in
        [("commit", "COMMIT"), ("END", "COMMIT"), ("rollback", "ROLLBACK"), ("abort work", "ROLLBACK")]
    {
        let (mut rig, client, server) = begun("begin", "");
        rig.send(client, &[fe::sync(), fe::flush(), fe::query(end)].concat());
        assert_eq!(
            rig.gets(client),
            [
                "Complete BEGIN".to_owned(),
                "Ready T".into(),
                "Ready T".into(),
                format!("Complete {tag}"),
                "Ready I".into()
            ]
        );
        rig.gets_nothing(server);
    }
}

#[test]
fn whatever_else_comes_first_brings_it_along() {
    for first in
        ["set transaction isolation level serializable", "begin", "commit and chain", "savepoint a", "selec"]
    {
        let (mut rig, client, server) = begun("begin", "");
        rig.send(client, &fe::query(first));
        assert_eq!(rig.gets(server).last(), Some(&format!("Query {first}")));
    }
}

#[test]
fn what_is_not_plain_goes_as_it_is() {
    for text in ["begin; select 1", "begin isolation level chaos", "begin transaction x", "select 1"] {
        let (mut rig, client, server) = begun(text, "");
        rig.gets_nothing(client);
        assert_eq!(rig.gets(server), [format!("Query {text}")]);
    }
    for main in ["defer_begin = off", "defer_begin = off\npool_mode = session"] {
        let (mut rig, client, server) = begun("begin", main);
        rig.gets_nothing(client);
        assert_eq!(rig.gets(server), ["Query begin"], "{main}");
    }
}

#[test]
fn the_extended_protocol_gets_all_its_answers() {
    let mut rig = Rig::new("default_pool_size = 1\ndefer_begin = server");
    let client = rig.client("alice");
    let server = rig.dialed();
    let group = |text: &str| {
        [fe::parse("", text), fe::bind(""), fe::describe_portal(), fe::execute(), fe::sync()].concat()
    };
    rig.send(client, &group("begin"));
    assert_eq!(rig.gets(client), ["ParseComplete", "BindComplete", "NoData", "Complete BEGIN", "Ready T"]);
    rig.gets_nothing(server);
    rig.send(client, &group("select 1"));
    let got = rig.gets(server);
    assert_eq!(got[..3], SENT.map(str::to_owned));
    assert_eq!(got.last().map(String::as_str), Some("Sync"));
    let answer =
        [be::parse_complete(), be::bind_complete(), be::no_data(), be::complete("SELECT 1")].concat();
    rig.send(server, &[opened(), answer, be::ready('T')].concat());
    assert_eq!(rig.gets(client), ["ParseComplete", "BindComplete", "NoData", "Complete SELECT 1", "Ready T"]);
}

#[test]
fn a_failed_begin_is_a_failed_transaction() {
    let (mut rig, client, server) = begun("begin read write", "");
    rig.send(client, &fe::query("delete from t"));
    rig.gets(client);
    rig.gets(server);
    // PostgreSQL ignores the query after the error.
    rig.send(
        server,
        &[be::parse_complete(), be::bind_complete(), be::error("25006", "in recovery")].concat(),
    );
    assert_eq!(rig.gets(server), ["Sync"]);
    rig.send(client, &fe::query("delete from u"));
    rig.gets_nothing(server);
    rig.send(server, &be::ready('I'));
    assert_eq!(rig.gets(client), ["ERROR 25006 in recovery"]);
    assert_eq!(rig.gets(server), ["Query BEGIN;ROLLBACK TO SAVEPOINT pgweir"]);
    rig.send(
        server,
        &[be::complete("BEGIN"), be::error("3B001", "no such savepoint"), be::ready('E')].concat(),
    );
    assert_eq!(rig.gets(client), ["Ready E"]);
    assert_eq!(rig.gets(server), ["Query delete from u"]);
    rig.send(server, &[be::error("25P02", "aborted"), be::ready('E')].concat());
    assert_eq!(rig.gets(client), ["ERROR 25P02 aborted", "Ready E"]);
    rig.send(client, &fe::query("rollback"));
    rig.gets(server);
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete ROLLBACK", "Ready I"]);
}

#[test]
fn nothing_further_is_sent_before_it_is_answered() {
    let (mut rig, client, server) = begun("begin", "");
    rig.send(
        client,
        &[fe::query("insert into t values (1)"), fe::query("insert into t values (2)")].concat(),
    );
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query insert into t values (1)"));
    rig.send(server, &opened());
    assert_eq!(rig.gets(server), ["Query insert into t values (2)"]);
}

#[test]
fn a_client_that_leaves_or_idles_in_it_costs_no_server() {
    let (mut rig, client, server) = begun("begin", "");
    rig.send(client, &fe::terminate());
    assert!(rig.is_closed(client) && !rig.is_closed(server));
    let (mut rig, client, server) = begun("begin", "defer_begin = server\nidle_transaction_timeout = 2");
    rig.gets(client);
    rig.pass_s(3);
    assert_eq!(rig.gets(client), ["FATAL 25P03 idle transaction timeout"]);
    assert!(!rig.is_closed(server));
}

const PACKET: &str = "defer_begin = packet";

#[test]
fn with_a_server_it_holds_that_and_is_sent_with_the_first_statement() {
    let (mut rig, client, server) = begun("begin", PACKET);
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.gets_nothing(server);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 1"));
    rig.gets_nothing(server);
    rig.send(client, &[fe::flush(), fe::sync(), fe::query("update t set a = 1")].concat());
    assert_eq!(rig.gets(client), ["Ready T"]);
    assert_eq!(rig.gets(server), [&SENT[..], &["Query update t set a = 1"]].concat());
    rig.send_bytewise(server, &[opened(), be::complete("UPDATE 1"), be::ready('T')].concat());
    assert_eq!(rig.gets(client), ["Complete UPDATE 1", "Ready T"]);
    rig.send(client, &fe::query("commit"));
    assert_eq!(rig.gets(server), ["Query commit"]);
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete COMMIT", "Ready I"]);
    assert_eq!(rig.gets(server), ["Query select 1"], "the next one's turn");
}

#[test]
fn with_a_server_it_waits_for_one() {
    let (mut rig, client, server) = begun("select 1", PACKET);
    rig.gets(server);
    let second = rig.client("alice");
    rig.send(second, &fe::query("begin"));
    rig.gets_nothing(second);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    rig.gets(client);
    assert_eq!(rig.gets(second), ["Complete BEGIN", "Ready T"]);
    rig.gets_nothing(server);
}

#[test]
fn with_a_server_an_empty_transaction_gives_it_back_unused() {
    let (mut rig, client, server) = begun("begin", PACKET);
    rig.gets(client);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 1"));
    rig.gets_nothing(server);
    rig.send(client, &fe::query("rollback"));
    assert_eq!(rig.gets(client), ["Complete ROLLBACK", "Ready I"]);
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn with_a_server_a_leaving_client_gives_it_back_clean_and_none_idles_in_it_forever() {
    let (mut rig, client, server) = begun("begin", PACKET);
    rig.send(client, &fe::terminate());
    assert!(rig.is_closed(client) && !rig.is_closed(server));
    let (mut rig, client, _) = begun("begin", "defer_begin = packet\nidle_transaction_timeout = 2");
    rig.gets(client);
    rig.pass_s(3);
    assert_eq!(rig.gets(client), ["FATAL 25P03 idle transaction timeout"]);
}

#[test]
fn in_session_pooling_it_goes_with_the_first_statement_if_it_is_a_simple_query() {
    for main in ["defer_begin = packet\npool_mode = session", "defer_begin = server\npool_mode = session"] {
        let (mut rig, client, server) = begun("begin", main);
        assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"], "{main}");
        rig.gets_nothing(server);
        rig.send(client, &fe::query("commit"));
        assert_eq!(rig.gets(client), ["Complete COMMIT", "Ready I"]);
        rig.gets_nothing(server);
        rig.send(client, &fe::query("begin"));
        rig.gets(client);
        rig.send(client, &fe::query("update t set a = 1"));
        assert_eq!(rig.gets(server), [&SENT[..], &["Query update t set a = 1"]].concat());
        rig.send_bytewise(server, &[opened(), be::complete("UPDATE 1"), be::ready('T')].concat());
        assert_eq!(rig.gets(client), ["Complete UPDATE 1", "Ready T"]);
        let extended = [fe::parse("", "begin"), fe::bind(""), fe::execute(), fe::sync()].concat();
        let (mut rig, client, server) = begun("select 1", main);
        rig.gets(server);
        rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
        rig.gets(client);
        rig.send(client, &extended);
        rig.gets_nothing(client);
        assert_eq!(rig.gets(server), ["Parse  begin", "Bind ", "Execute", "Sync"]);
    }
}

#[test]
fn with_a_server_that_dies_its_client_is_told() {
    let (mut rig, client, server) = begun("begin", PACKET);
    rig.gets(client);
    rig.eof(server);
    assert!(rig.gets(client).iter().any(|line| line.starts_with("FATAL")));
    assert!(rig.is_closed(client));
}

#[test]
fn a_begin_that_is_answered_here_ends_the_unnamed_statement() {
    for defer_begin in ["server", "packet"] {
        let (mut rig, client, server) = begun("select 1", &format!("defer_begin = {defer_begin}"));
        rig.gets(server);
        rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
        rig.gets(client);
        rig.send(client, &[fe::parse("", "select 2"), fe::sync()].concat());
        if !rig.gets(server).is_empty() {
            rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
        }
        rig.gets(client);
        rig.send(client, &fe::query("begin"));
        if defer_begin == "packet" {
            rig.gets(server);
        }
        rig.gets(client);
        rig.send(client, &[fe::bind(""), fe::execute(), fe::sync()].concat());
        let sent = rig.gets(server);
        assert!(!sent.contains(&"Parse  select 2".to_owned()), "{defer_begin} {sent:?}");
        let closed = sent.iter().position(|message| message == "Close S ");
        let bound = sent.iter().rposition(|message| message == "Bind ");
        assert!(closed.is_some() && closed < bound, "{defer_begin} {sent:?}");
    }
}

#[test]
fn the_time_of_a_transaction_counts_from_its_begin() {
    for defer_begin in ["server", "packet"] {
        let settings = format!("defer_begin = {defer_begin}\ntransaction_timeout = 2");
        let (mut rig, client, _) = begun("begin", &settings);
        rig.gets(client);
        rig.pass_s(3);
        assert!(rig.gets(client)[0].starts_with("FATAL 25P04"), "{defer_begin}");
    }
}
