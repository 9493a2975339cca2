//! The life of a client in transaction pooling: login, query, release, the queue.

use crate::rig::{Rig, be, fe};

#[test]
fn a_query_goes_to_a_server_and_its_answer_comes_back() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dials[0];
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Columns", "Row 1", "Complete SELECT 1", "Ready I"]);
}

#[test]
fn a_waiting_client_comes_before_one_that_asks_in_the_turn_in_which_a_server_is_free() {
    let mut rig = Rig::new("default_pool_size = 1\nmultiplex_depth = 0");
    let (busy, waiting, late) = (rig.client("alice"), rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(busy, &fe::query("select 0"));
    rig.send(waiting, &fe::query("select 1"));
    let end = [be::complete("SELECT 0"), be::ready('I')].concat();
    let (again, more) = (fe::query("select 2"), fe::query("select 3"));
    rig.send_together(&[(server, &end), (late, &more), (busy, &again)]);
    assert_eq!(rig.gets(server), ["Query select 0", "Query select 1"]);
    rig.send(server, &end);
    assert_eq!(rig.gets(server), ["Query select 3"]);
    rig.send(server, &end);
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_server_that_is_free_in_this_turn_is_taken_in_this_turn() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (busy, next) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(busy, &fe::query("select 0"));
    let end = [be::complete("SELECT 0"), be::ready('I')].concat();
    rig.send_together(&[(server, &end), (next, &fe::query("select 1"))]);
    assert_eq!(rig.gets(server), ["Query select 0", "Query select 1"]);
    assert_eq!(rig.gets(busy), ["Complete SELECT 0", "Ready I"]);
}

#[test]
fn a_server_that_dies_in_the_turn_of_its_release_is_not_given_away() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (busy, waiting) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(busy, &fe::query("select 0"));
    rig.send(waiting, &fe::query("select 1"));
    let end = [be::complete("SELECT 0"), be::ready('I'), be::fatal("57P01", "going down")].concat();
    rig.send(server, &end);
    assert!(rig.is_closed(server));
    assert_eq!(rig.gets(busy), ["Complete SELECT 0", "Ready I"], "the goodbye is not its affair");
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 1"]);
}
