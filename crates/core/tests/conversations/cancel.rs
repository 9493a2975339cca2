//! Cancel requests reach the statement they were meant for, or nothing.

use pgweir_core::driver::Closed;

use crate::rig::{End, Rig, be, fe};

fn busy(rig: &mut Rig) -> (End, End) {
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select pg_sleep(100)"));
    rig.gets(server);
    (client, server)
}

/// CancelRequest for the server that the rig greets.
fn request() -> Vec<u8> {
    fe::cancel(&[4242_u32.to_be_bytes().to_vec(), vec![7; 4]].concat())
}

/// The cancel's connection to PostgreSQL comes up: whether anything is sent on it.
fn is_sent(rig: &mut Rig, cancel: End) -> bool {
    !rig.connect(cancel).is_empty()
}

#[test]
fn a_running_statement_is_cancelled_and_its_server_held_until_that_is_over() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, server) = busy(&mut rig);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 2"));
    let requester = rig.cancel(client);
    let cancel = rig.dialed();
    assert_eq!(rig.connect(cancel), String::from_utf8_lossy(&request()).replace('\0', " "));
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 57014 canceled", "Ready I"]);
    rig.gets_nothing(server);
    rig.eof(cancel);
    assert!(rig.is_closed(requester));
    assert_eq!(rig.gets(server), ["Query select 2"], "now nobody else's statement can be hit");
    rig.send(server, &[be::one_row("2"), be::ready('I')].concat());
    assert_eq!(rig.gets(other).len(), 4);
}

#[test]
fn an_idle_clients_cancel_goes_nowhere() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    rig.dialed();
    let requester = rig.cancel(client);
    assert!(rig.is_closed(requester));
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn a_cancel_that_comes_too_late_is_not_sent() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, server) = busy(&mut rig);
    let requester = rig.cancel(client);
    let cancel = rig.dialed();
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"]);
    assert!(!is_sent(&mut rig, cancel), "it would hit somebody else");
    assert!(rig.is_closed(requester) && rig.is_closed(cancel));
}

#[test]
fn a_wrong_key_is_ignored() {
    let mut rig = Rig::new("");
    let (_, _) = busy(&mut rig);
    let requester = rig.accept();
    rig.send(requester, &fe::cancel(&[1, 2, 3, 4, 5, 6, 7, 8]));
    assert!(rig.is_closed(requester));
    rig.gets_nothing(requester);
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn a_cancel_that_never_ends_costs_the_server() {
    let mut rig = Rig::new("default_pool_size = 1\nserver_connect_timeout = 5");
    let (client, server) = busy(&mut rig);
    let requester = rig.cancel(client);
    let cancel = rig.dialed();
    rig.connect(cancel);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert!(!rig.is_closed(server));
    rig.pass_s(10);
    assert!(rig.is_closed(server) && rig.is_closed(cancel) && rig.is_closed(requester));
}

#[test]
fn a_cancel_connection_that_is_refused_changes_nothing() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, server) = busy(&mut rig);
    let requester = rig.cancel(client);
    let cancel = rig.dialed();
    rig.refuse_dial(cancel, "refused");
    assert!(rig.is_closed(requester));
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(client);
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_requester_that_leaves_does_not_stop_its_cancel() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let requester = rig.cancel(client);
    let cancel = rig.dialed();
    rig.eof(requester);
    assert!(is_sent(&mut rig, cancel));
    rig.end(cancel, Closed::Broken("reset".to_owned()));
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 57014 canceled", "Ready I"]);
    assert!(!rig.is_closed(server));
}

#[test]
fn a_server_that_dies_ends_its_cancels() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let requester = rig.cancel(client);
    let cancel = rig.dialed();
    rig.connect(cancel);
    rig.eof(server);
    rig.eof(cancel);
    assert!(rig.is_closed(requester) && rig.is_closed(client));
    let console = rig.console();
    assert_eq!(rig.pool(console, "app,alice")[11], "0", "sv_active_cancel");
}

/// A pool of one server: two cancels at a time.
fn six_cancels(rig: &mut Rig) -> (End, End, Vec<End>, Vec<End>) {
    let (client, server) = busy(rig);
    let requesters: Vec<End> = (0..6).map(|_| rig.cancel(client)).collect();
    assert_eq!(rig.new_dials(), 2);
    let cancels = vec![rig.dialed(), rig.dialed()];
    (client, server, requesters, cancels)
}

#[test]
fn waiting_cancels_all_end() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, server, requesters, cancels) = six_cancels(&mut rig);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(client);
    for cancel in cancels {
        rig.connect(cancel);
    }
    let open = requesters.iter().filter(|&&requester| !rig.is_closed(requester)).count();
    assert_eq!(open, 0, "the statement is over: no request has anything to wait for");
}

#[test]
fn waiting_cancels_end_when_their_target_is_gone() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, _, requesters, cancels) = six_cancels(&mut rig);
    rig.eof(client);
    for cancel in cancels {
        rig.refuse_dial(cancel, "refused");
    }
    let open = requesters.iter().filter(|&&requester| !rig.is_closed(requester)).count();
    assert_eq!(open, 0);
}

#[test]
fn kill_ends_waiting_cancels() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (_, _, requesters, cancels) = six_cancels(&mut rig);
    let console = rig.console();
    rig.command(console, "KILL app");
    assert!(cancels.iter().all(|&cancel| rig.is_closed(cancel)));
    let open = requesters.iter().filter(|&&requester| !rig.is_closed(requester)).count();
    assert_eq!(open, 0);
}

#[test]
fn a_waiting_cancel_times_out() {
    let mut rig = Rig::new("default_pool_size = 1\ncancel_wait_timeout = 3\nserver_connect_timeout = 60");
    let (_, _, requesters, _) = six_cancels(&mut rig);
    rig.pass_s(5);
    let open = requesters.iter().filter(|&&requester| !rig.is_closed(requester)).count();
    assert_eq!(open, 2, "those that are on their way remain");
}

/// A pool of one server, which is busy, and a client in its queue that has sent these messages.
fn queued(rig: &mut Rig, messages: &[u8]) -> (End, End) {
    let (_, server) = busy(rig);
    let client = rig.client("alice");
    rig.send(client, messages);
    rig.gets_nothing(server);
    (client, server)
}

const CANCELED: &str = "ERROR 57014 canceling statement due to user request";

#[test]
fn a_statement_that_waits_is_cancelled_here_and_the_session_goes_on() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, server) = queued(&mut rig, &fe::query("select 2"));
    let requester = rig.cancel(client);
    assert_eq!(rig.gets(client), [CANCELED, "Ready I"]);
    assert!(rig.is_closed(requester));
    assert_eq!(rig.new_dials(), 0, "PostgreSQL hears nothing of it");
    let console = rig.console();
    assert_eq!(rig.pool(console, "app,alice")[3], "0", "cl_waiting");
    rig.send(client, &fe::query("select 3"));
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query select 3"]);
}

#[test]
fn only_the_first_of_several_statements_is_cancelled_and_the_next_waits_at_the_end() {
    let mut rig = Rig::new("default_pool_size = 1\nmultiplex_depth = 0");
    let two = [fe::query("select 2"), fe::query("select 3")].concat();
    let (client, server) = queued(&mut rig, &two);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 4"));
    rig.cancel(client);
    assert_eq!(rig.gets(client), [CANCELED, "Ready I"]);
    for text in ["select 4", "select 3"] {
        rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
        assert_eq!(rig.gets(server), [format!("Query {text}")]);
    }
}

#[test]
fn an_extended_group_is_cancelled_up_to_its_sync_whenever_that_comes() {
    let mut rig = Rig::new("default_pool_size = 1");
    let begin = [fe::parse("", "select 2"), fe::bind("")].concat();
    let (client, server) = queued(&mut rig, &[begin.clone(), fe::execute(), fe::flush()].concat());
    rig.cancel(client);
    assert_eq!(rig.gets(client), [CANCELED], "ReadyForQuery answers Sync");
    // Ignored, as PostgreSQL does after an error.
    rig.send(client, &begin);
    rig.cancel(client);
    rig.gets_nothing(client);
    rig.send_bytewise(client, &[fe::execute(), fe::sync(), fe::query("select 3")].concat());
    assert_eq!(rig.gets(client), ["Ready I"]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query select 3"]);
}

#[test]
fn a_client_that_leaves_after_a_cancel_inside_of_a_group_is_gone() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, _) = queued(&mut rig, &fe::bind(""));
    rig.cancel(client);
    assert_eq!(rig.gets(client), [CANCELED]);
    rig.send(client, &fe::terminate());
    assert!(rig.is_closed(client));
}

#[test]
fn a_deferred_transaction_cannot_be_cancelled_while_it_waits() {
    let mut rig = Rig::new("default_pool_size = 1\ndefer_begin = server");
    busy(&mut rig);
    let client = rig.client("alice");
    rig.send(client, &fe::query("begin"));
    rig.gets(client);
    rig.send(client, &fe::query("select 2"));
    let requester = rig.cancel(client);
    assert!(rig.is_closed(requester));
    rig.gets_nothing(client);
}

#[test]
fn a_queue_that_is_too_long_turns_down_those_that_came_last() {
    let mut rig = Rig::new("default_pool_size = 1\nmax_waiting_clients = 2\nmultiplex_depth = 0");
    let (_, server) = busy(&mut rig);
    let clients: Vec<End> = (0..4).map(|_| rig.client("alice")).collect();
    // In one turn: none of them may be told before it is known which of them gets a server.
    let texts: Vec<Vec<u8>> = (0..4).map(|number| fe::query(&format!("select {number}"))).collect();
    let pieces: Vec<(End, &[u8])> = clients.iter().zip(&texts).map(|(end, text)| (*end, &text[..])).collect();
    rig.send_together(&pieces);
    let full = "ERROR 53300 too many clients wait for a server connection (max_waiting_clients)";
    for &late in &clients[2..] {
        let told = rig.gets(late);
        assert!(told[0].starts_with(full) && told[1..] == ["Ready I"], "{told:?}");
    }
    for (number, &early) in clients[..2].iter().enumerate() {
        rig.gets_nothing(early);
        rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
        assert_eq!(rig.gets(server), [format!("Query select {number}")]);
    }
    // Both left the queue: there is room again.
    rig.send(clients[3], &[fe::query("select 8"), fe::query("select 9")].concat());
    rig.gets_nothing(clients[3]);
    rig.reload("default_pool_size = 1\nmultiplex_depth = 0", "app = host=pg max_waiting_clients=1");
    rig.send(clients[2], &[fe::query("select 8"), fe::query("select 9")].concat());
    let told = rig.gets(clients[2]);
    assert_eq!(told.iter().filter(|text| text.starts_with(full)).count(), 2, "each is answered: {told:?}");
}
