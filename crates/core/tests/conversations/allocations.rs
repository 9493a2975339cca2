//! The steady state allocates nothing: neither a statement, nor a transaction, alone or behind others, with a cluster or without.

use crate::clusters::{CLUSTER, begin_with_primary, served};
use crate::rig::{End, Rig, be, fe};

/// Runs a round until nothing new is allocated, and counts what a hundred more allocate.
fn counted(rig: &mut Rig, mut round: impl FnMut(&mut Rig)) -> u64 {
    (0..50).for_each(|_| round(rig));
    let before = rig.allocations;
    (0..100).for_each(|_| round(rig));
    rig.allocations - before
}

/// Every client asks, the server answers as often as it is asked, every client takes its answer.
fn exchange(rig: &mut Rig, clients: &[End], server: End, request: &[u8], answer: &[u8]) {
    let requests: Vec<(End, &[u8])> = clients.iter().map(|client| (*client, request)).collect();
    rig.send_together(&requests);
    let mut answered = 0;
    while answered < clients.len() {
        let asked =
            rig.gets(server).iter().filter(|text| text.starts_with("Query") || *text == "Sync").count();
        assert!(asked > 0, "nobody was served");
        (0..asked).for_each(|_| rig.send(server, answer));
        answered += asked;
    }
    clients.iter().for_each(|client| rig.gets_raw(*client));
}

fn pool(clients: usize, main: &str) -> (Rig, Vec<End>, End) {
    let mut rig = Rig::new(&format!("default_pool_size = 1\n{main}"));
    let clients: Vec<End> = (0..clients).map(|_| rig.client("alice")).collect();
    let server = rig.dialed();
    (rig, clients, server)
}

fn row() -> Vec<u8> {
    [be::one_row("1"), be::ready('I')].concat()
}

#[test]
fn a_statement_allocates_nothing() {
    let (mut rig, clients, server) = pool(1, "");
    let request = fe::query("select 1");
    assert_eq!(counted(&mut rig, |rig| exchange(rig, &clients, server, &request, &row())), 0);
}

#[test]
fn multiplexing_allocates_nothing() {
    for main in ["", "multiplex_depth = 4", "multiplex_depth = 0"] {
        let (mut rig, clients, server) = pool(20, main);
        let request = fe::query("select * from t where id = 1");
        assert_eq!(counted(&mut rig, |rig| exchange(rig, &clients, server, &request, &row())), 0, "{main}");
    }
}

#[test]
fn prepared_statements_allocate_nothing() {
    let (mut rig, clients, server) = pool(8, "");
    for (at, client) in clients.iter().enumerate() {
        rig.send(*client, &[fe::parse("s1", "select $1"), fe::sync()].concat());
        if at == 0 {
            rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
            rig.gets(server);
        }
        rig.gets(*client);
    }
    let run = [fe::bind("s1"), fe::execute(), fe::sync()].concat();
    let answer = [be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat();
    assert_eq!(counted(&mut rig, |rig| exchange(rig, &clients, server, &run, &answer)), 0);
}

/// A transaction of three statements.
fn transaction(rig: &mut Rig, client: End, server: End) {
    for (text, tag, status) in
        [("begin", "BEGIN", 'T'), ("update t set a = 1", "UPDATE 1", 'T'), ("commit", "COMMIT", 'I')]
    {
        rig.send(client, &fe::query(text));
        rig.gets(server);
        rig.send(server, &[be::complete(tag), be::ready(status)].concat());
        rig.gets_raw(client);
    }
}

#[test]
fn a_transaction_allocates_nothing() {
    let (mut rig, clients, server) = pool(1, "");
    assert_eq!(counted(&mut rig, |rig| transaction(rig, clients[0], server)), 0);
}

#[test]
fn with_a_cluster_they_allocate_nothing_either() {
    let mut rig = Rig::with("server_check_query =", CLUSTER, 1);
    begin_with_primary(&mut rig);
    let (client, server) = served(&mut rig);
    for text in ["select 1", "select * from t where id = 1", "insert into t values (1)"] {
        let request = fe::query(text);
        assert_eq!(counted(&mut rig, |rig| exchange(rig, &[client], server, &request, &row())), 0, "{text}");
    }
    assert_eq!(counted(&mut rig, |rig| transaction(rig, client, server)), 0);
}
