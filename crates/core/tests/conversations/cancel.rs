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
