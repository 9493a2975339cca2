//! Another process takes the place of this one: everything that is at rest goes over, what is busy goes when
//! it comes to rest, what cannot travel stays.

use pgweir_core::driver::TlsInfo;
use pgweir_core::mail::{Mail, Question, Shutdown};

use crate::rig::{End, Rig, be, fe};

const NEW: usize = 1;

fn succeed(rig: &mut Rig) {
    rig.take_over("", "app = host=pg");
}

fn is_new(rig: &Rig, ends: &[End]) -> bool {
    ends.iter().all(|&end| rig.worker_of(end) == NEW)
}

/// The old process has said that it is through.
fn old_is_done(rig: &mut Rig) -> bool {
    rig.asked().iter().any(|question| matches!(question, Question::Drained(_)))
}

/// A console of the new process.
fn console(rig: &mut Rig) -> End {
    rig.console_at(NEW)
}

#[test]
fn idle_clients_and_free_servers_go_at_once() {
    let mut rig = Rig::new("");
    let clients = [rig.client("alice"), rig.client("alice")];
    let server = rig.dialed();
    succeed(&mut rig);
    assert!(is_new(&rig, &clients) && is_new(&rig, &[server]));
    assert!(old_is_done(&mut rig));
    rig.send(clients[1], &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(clients[1]), ["Complete SELECT 1", "Ready I"]);
    let console = console(&mut rig);
    let row = rig.pool(console, "app,alice");
    assert_eq!((&*row[2], &*row[9]), ("2", "1"), "cl_active, sv_idle");
    assert_eq!(rig.shared.user("alice").servers.taken(), 1);
    assert_eq!(rig.shared.user("alice").clients.taken(), 2);
    rig.eof(clients[0]);
    rig.eof(clients[1]);
    assert_eq!(rig.shared.user("alice").clients.taken(), 0);
}

#[test]
fn a_transaction_goes_between_two_statements() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("begin"));
    rig.gets(server);
    succeed(&mut rig);
    assert_eq!(rig.worker_of(client), 0, "an answer is owed");
    assert!(!old_is_done(&mut rig));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.pass_us(5_000);
    assert!(is_new(&rig, &[client, server]));
    assert!(old_is_done(&mut rig));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    let other = rig.accept_at(NEW);
    rig.send(other, &fe::startup(&[("user", "alice"), ("database", "app")]));
    rig.send(other, &fe::query("select 'not inside'"));
    rig.gets_nothing(server);
    rig.send(client, &fe::query("commit"));
    assert_eq!(rig.gets(server), ["Query commit"]);
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete COMMIT", "Ready I"]);
    assert_eq!(rig.gets(server), ["Query select 'not inside'"]);
}

#[test]
fn a_session_keeps_its_server() {
    let mut rig = Rig::with("pool_mode = session", "app = host=pg", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(client);
    rig.take_over("pool_mode = session", "app = host=pg");
    assert!(is_new(&rig, &[client, server]));
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.eof(client);
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"], "a session's traces");
}

#[test]
fn a_client_that_waits_for_a_server_waits_on_with_what_it_sent() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (busy, waiting) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(busy, &fe::query("select 1"));
    rig.gets(server);
    rig.send(waiting, &[fe::query("select 2"), b"Q\0\0".to_vec()].concat());
    succeed(&mut rig);
    assert!(is_new(&rig, &[waiting]));
    let fresh = rig.dialed();
    rig.greet(fresh);
    assert_eq!(rig.gets(fresh), ["Query select 2"]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.pass_us(5_000);
    assert!(is_new(&rig, &[busy, server]));
    assert_eq!(rig.gets(busy), ["Complete SELECT 1", "Ready I"]);
}

#[test]
fn a_client_that_is_logging_in_goes_when_it_is_proven() {
    let mut rig = Rig::new("");
    let client = rig.accept();
    succeed(&mut rig);
    assert_eq!(rig.worker_of(client), 0);
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), ("application_name", "x")]));
    assert!(is_new(&rig, &[client]));
    let server = rig.dialed();
    assert_eq!(rig.worker_of(server), NEW);
    rig.greet(server);
    assert!(rig.gets(client).contains(&"Parameter application_name=x".to_owned()));
}

#[test]
fn tls_stays_until_it_leaves() {
    let mut rig = Rig::new("client_tls_sslmode = allow\nclient_tls_cert_file = /c\nclient_tls_key_file = /k");
    let client = rig.accept();
    rig.send(client, &fe::ssl_request());
    rig.secure(client, TlsInfo { description: "TLSv1.3/X".to_owned(), ..TlsInfo::default() });
    rig.raw(client);
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    let server = rig.dialed();
    rig.greet(server);
    rig.gets(client);
    succeed(&mut rig);
    assert_eq!(rig.worker_of(client), 0);
    assert_eq!(rig.worker_of(server), 0, "its client may need it");
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    assert!(!old_is_done(&mut rig));
    rig.eof(client);
    assert!(is_new(&rig, &[server]));
    assert!(old_is_done(&mut rig));
}

#[test]
fn prepared_statements_keep_their_names() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse("p", "select 1"), fe::sync()].concat());
    let prepared = rig.gets(server);
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    rig.gets(client);
    succeed(&mut rig);
    rig.send(client, &[fe::bind("p"), fe::execute(), fe::sync()].concat());
    let bound = rig.gets(server);
    let name = prepared[0].split_whitespace().find(|word| word.starts_with("PGWEIR_")).expect("a name");
    assert!(bound[0].contains(name), "{bound:?}");
    rig.send(server, &[be::bind_complete(), be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(client);
    rig.send(client, &[fe::parse("q", "select 2"), fe::sync()].concat());
    let next = rig.gets(server);
    assert!(next[0].split_whitespace().all(|word| word != name), "a name is given once: {next:?}");
}

#[test]
fn servers_of_other_settings_are_not_used_again() {
    let mut rig = Rig::new("");
    let (idle, inside) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(inside, &fe::query("begin"));
    rig.gets(server);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.take_over("", "app = host=other");
    rig.send(inside, &fe::query("commit"));
    assert_eq!(rig.gets(server), ["Query commit"], "its transaction ends where it began");
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert!(rig.is_closed(server));
    rig.send(idle, &fe::query("select 1"));
    let fresh = rig.dialed();
    assert_eq!(rig.endpoint(fresh), "other:5432");
}

#[test]
fn clients_of_a_database_that_is_gone_are_told() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.gets(client);
    rig.take_over("", "different = host=pg");
    assert_eq!(rig.gets(client), ["FATAL 57P01 database removed"]);
    assert!(rig.is_closed(client) && rig.is_closed(server));
}

#[test]
fn a_console_that_is_no_house_user_cannot_ask_for_it() {
    let mut rig = Rig::new("");
    let console = rig.console();
    let told = rig.command(console, "TAKE_OVER");
    assert!(told[0].starts_with("ERROR 55000 only a process of the same user"), "{told:?}");
}

/// What reached a server, as one text.
fn sent(rig: &mut Rig, server: End) -> String {
    rig.gets(server).join(" / ")
}

#[test]
fn a_begin_that_no_server_knows_of_goes_over_with_its_client() {
    for defer in ["packet", "server"] {
        let mut rig = Rig::new(&format!("defer_begin = {defer}"));
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query("begin"));
        assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
        rig.gets_nothing(server);
        succeed(&mut rig);
        assert!(is_new(&rig, &[client, server]), "{defer}");
        assert!(old_is_done(&mut rig));
        rig.send(client, &fe::query("insert into t values (1)"));
        let got = sent(&mut rig, server);
        assert!(got.find("begin").is_some_and(|place| place < got.find("insert").unwrap()), "{defer}: {got}");
    }
}

#[test]
fn a_begin_of_a_client_that_waits_for_a_server_goes_over_too() {
    let mut rig = Rig::new("defer_begin = server\ndefault_pool_size = 1\nmultiplex_depth = 0");
    let busy = rig.client("alice");
    let server = rig.dialed();
    let client = rig.client("alice");
    rig.send(busy, &fe::query("select 1"));
    rig.gets(server);
    rig.send(client, &[fe::query("begin")].concat());
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.send(client, &fe::query("insert into t values (1)"));
    rig.take_over("default_pool_size = 1", "app = host=pg");
    assert!(is_new(&rig, &[client]));
    let fresh = rig.dialed();
    rig.greet(fresh);
    let got = sent(&mut rig, fresh);
    assert!(got.find("begin").is_some_and(|place| place < got.find("insert").unwrap()), "{got}");
}

/// A client with a statement that runs while another process takes the place of this one, and its server.
fn late() -> (Rig, End, End) {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select pg_sleep(60)"));
    rig.gets(server);
    succeed(&mut rig);
    (rig, client, server)
}

/// The statement ends; the connections that can go over go.
fn comes_to_rest(rig: &mut Rig, server: End) {
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.pass_us(5_000);
}

#[test]
fn a_late_client_goes_through_the_process_between() {
    let (mut rig, client, server) = late();
    succeed(&mut rig);
    assert!(!old_is_done(&mut rig), "the process between is the late one's only way");
    comes_to_rest(&mut rig, server);
    assert_eq!((rig.worker_of(client), rig.worker_of(server)), (NEW + 1, NEW + 1));
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    rig.asked();
    rig.mail(NEW, Mail::AllArrived);
    assert!(old_is_done(&mut rig), "nobody else is late");
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn a_signal_to_stop_keeps_no_client_from_going_over() {
    let (mut rig, client, server) = late();
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForClients));
    comes_to_rest(&mut rig, server);
    assert_eq!(rig.worker_of(client), NEW);
}

#[test]
fn a_late_client_stays_when_the_new_process_is_gone() {
    let (mut rig, client, server) = late();
    rig.mail(0, Mail::SuccessorGone);
    comes_to_rest(&mut rig, server);
    assert_eq!((rig.worker_of(client), rig.worker_of(server)), (0, 0));
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    assert!(!old_is_done(&mut rig));
    rig.eof(client);
    assert!(old_is_done(&mut rig));
}
