//! Several workers: a client moves to its pool's worker, and mail goes between them.

use pgweir_core::console::command::Command;
use pgweir_core::driver::WorkerId;
use pgweir_core::mail::Mail;

use crate::rig::{End, Rig, be, fe};

/// A client accepted by a worker that does not own its pool, logged in at the one that does.
fn moved(rig: &mut Rig) -> (End, End) {
    let first = rig.client("alice");
    assert_eq!(rig.worker_of(first), 0);
    let server = rig.dialed();
    let client = rig.accept_at(1);
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert_eq!(rig.worker_of(client), 0, "the pool lives on the first worker");
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    (client, server)
}

#[test]
fn a_client_moves_to_its_pool() {
    let mut rig = Rig::with("", "app = host=pg", 2);
    let (client, server) = moved(&mut rig);
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    assert_eq!(rig.answer(server, &[be::one_row("1"), be::ready('I')].concat(), client).len(), 4);
    assert_eq!(rig.shared.clients.taken(), 2);
    rig.eof(client);
    assert_eq!(rig.shared.clients.taken(), 1);
}

/// The other worker cannot take its socket.
#[test]
fn a_client_that_is_lost_on_its_way_leaves_its_places() {
    let mut rig = Rig::with("max_db_client_connections = 2\nmax_client_conn = 2", "app = host=pg", 2);
    rig.client("alice");
    rig.loses_moved = true;
    let lost = rig.accept_at(1);
    rig.send(lost, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert_eq!(rig.shared.clients.taken(), 1);
    rig.loses_moved = false;
    let next = rig.accept_at(1);
    rig.send(next, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert_eq!(rig.gets(next).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn bytes_after_the_login_travel_with_the_client() {
    let mut rig = Rig::with("", "app = host=pg", 2);
    rig.client("alice");
    let server = rig.dialed();
    let client = rig.accept_at(1);
    let query = fe::query("select 1");
    let startup = fe::startup(&[("user", "alice"), ("database", "app")]);
    rig.send(client, &[startup, query[..7].to_vec()].concat());
    rig.send(client, &query[7..]);
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn an_adopted_client_may_be_younger_than_the_tick() {
    let mut rig = Rig::with("max_user_client_connections = 1", "app = host=pg", 2);
    rig.client("alice");
    let second = rig.accept_at(1);
    rig.set_back_us(50_000);
    // The owner's turn began before this client came; it refuses the client in that same turn.
    rig.send(second, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert!(rig.refusal(second).contains("max_user_client_connections"));
    assert_eq!(rig.shared.clients.taken(), 1);
}

#[test]
fn a_cancel_finds_its_client_on_another_worker() {
    let mut rig = Rig::with("", "app = host=pg", 2);
    let (client, server) = moved(&mut rig);
    rig.send(client, &fe::query("select pg_sleep(100)"));
    rig.gets(server);
    let requester = rig.cancel_at(1, client);
    let cancel = rig.dialed();
    assert!(!rig.connect(cancel).is_empty(), "the request is sent");
    assert!(!rig.is_closed(requester), "the client's next statement would be hit");
    rig.eof(cancel);
    assert!(rig.is_closed(requester));
    rig.send(server, &[be::error("57014", "canceled"), be::ready('I')].concat());
    let idle = rig.cancel_at(1, client);
    assert!(rig.is_closed(idle));
    let wrong_key = rig.accept_at(1);
    rig.send(wrong_key, &fe::cancel(&[1, 2, 3, 4, 5, 6, 7, 8]));
    assert!(rig.is_closed(wrong_key));
}

#[test]
fn show_adds_up_all_workers() {
    let mut rig = Rig::with("", "app = host=pg\nother = host=pg", 2);
    moved(&mut rig);
    let far = rig.accept_at(1);
    rig.send(far, &fe::startup(&[("user", "admin"), ("database", "pgbouncer")]));
    rig.gets(far);
    let pools = rig.command(far, "SHOW POOLS");
    assert_eq!(pools.last().map(String::as_str), Some("Ready I"));
    assert!(pools.iter().any(|row| row.starts_with("Row app,alice,2,0")), "{pools:?}");
    let clients = rig.command(far, "SHOW CLIENTS");
    assert_eq!(clients.iter().filter(|row| row.starts_with("Row C")).count(), 3, "{clients:?}");
    for topic in [
        "ACTIVE_SOCKETS",
        "CONFIG",
        "DATABASES",
        "DNS_HOSTS",
        "DNS_ZONES",
        "FDS",
        "LIMITS",
        "LISTS",
        "MEM",
        "PEERS",
        "PEER_POOLS",
        "SERVERS",
        "SOCKETS",
        "STATE",
        "STATS",
        "STATS_AVERAGES",
        "STATS_TOTALS",
        "TOTALS",
        "USERS",
        "VERSION",
        "VIP",
        "HELP",
        "client_encoding",
    ] {
        let answer = rig.command(far, &format!("SHOW {topic}"));
        assert_eq!(answer.last().map(String::as_str), Some("Ready I"), "SHOW {topic}: {answer:?}");
    }
}

#[test]
fn a_limit_that_spans_workers_evicts_on_the_other_one() {
    let mut rig = Rig::with("max_db_connections = 1", "app = host=pg", 2);
    for _ in 0..64 {
        rig.shared.note_client(WorkerId(0), true);
    }
    assert_eq!(rig.shared.owner("app", "alice").0, 1);
    for _ in 0..64 {
        rig.shared.note_client(WorkerId(0), false);
    }
    let first = rig.client("alice");
    assert_eq!(rig.worker_of(first), 1);
    let idle = rig.dialed();
    let bob = rig.knock("bob", "app");
    assert_eq!(rig.worker_of(bob), 0);
    assert!(rig.is_closed(idle), "the other worker gave it up");
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn one_server_is_evicted_for_one_that_is_needed_however_many_workers_there_are() {
    let mut rig = Rig::with("max_db_connections = 3", "app = host=pg", 4);
    // A pool with a free server on each of three workers.
    for (number, user) in ["alice", "carol", "admin"].into_iter().enumerate() {
        for worker in (0..4).filter(|&worker| worker != number + 1) {
            for _ in 0..64 {
                rig.shared.note_client(WorkerId(worker as u16), true);
            }
        }
        let client = rig.client(user);
        assert_eq!(rig.worker_of(client), number + 1);
        for worker in (0..4).filter(|&worker| worker != number + 1) {
            for _ in 0..64 {
                rig.shared.note_client(WorkerId(worker as u16), false);
            }
        }
    }
    let servers: Vec<End> = (0..3).map(|_| rig.dialed()).collect();
    let bob = rig.knock("bob", "app");
    assert_eq!(rig.worker_of(bob), 0);
    let closed = servers.iter().filter(|&&server| rig.is_closed(server)).count();
    assert_eq!((closed, rig.new_dials()), (1, 1));
}

#[test]
fn pause_waits_for_all_workers() {
    let mut rig = Rig::with("", "app = host=pg", 2);
    let (client, server) = moved(&mut rig);
    rig.send(client, &fe::query("select 1"));
    let far = rig.accept_at(1);
    rig.send(far, &fe::startup(&[("user", "admin"), ("database", "pgbouncer")]));
    rig.gets(far);
    assert_eq!(rig.command(far, "PAUSE"), Vec::<String>::new());
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(far), ["Complete PAUSE", "Ready I"]);
    assert!(rig.is_closed(server));
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.new_dials(), 0);
    assert_eq!(rig.command(far, "RESUME"), ["Complete RESUME", "Ready I"]);
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn a_client_that_moves_into_a_suspended_worker_is_not_read() {
    let mut rig = Rig::with("", "app = host=pg", 2);
    rig.client("alice");
    rig.mail(0, Mail::Command { from: WorkerId(1), ticket: 0, command: Command::Suspend });
    let client = rig.accept_at(1);
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert_eq!(rig.worker_of(client), 0);
    assert!(rig.is_paused(client));
}

#[test]
fn only_the_console_that_suspended_is_missed() {
    let mut rig = Rig::with("", "app = host=pg", 2);
    let near = rig.console();
    let far = rig.accept_at(1);
    rig.send(far, &fe::startup(&[("user", "admin"), ("database", "pgbouncer")]));
    rig.gets(far);
    assert_eq!(rig.command(far, "SUSPEND"), ["Complete SUSPEND", "Ready I"]);
    assert_eq!(rig.command(far, "RESUME"), ["Complete RESUME", "Ready I"]);
    assert_eq!(rig.command(near, "SUSPEND"), ["Complete SUSPEND", "Ready I"]);
    rig.eof(far);
    let late = rig.accept();
    assert!(rig.is_paused(late), "still suspended");
}

#[test]
fn a_pool_has_one_owner_also_when_it_moves() {
    let mut rig = Rig::with("", "app = host=pg", 2);
    let (client, _) = moved(&mut rig);
    let console = rig.console();
    rig.command(console, "KILL app");
    assert!(rig.is_closed(client));
    rig.command(console, "RESUME app");
    for worker in [1, 0, 1] {
        let next = rig.accept_at(worker);
        rig.send(next, &fe::startup(&[("user", "alice"), ("database", "app")]));
    }
    let server = rig.dialed();
    rig.greet(server);
    let pools = rig.command(console, "SHOW POOLS");
    assert_eq!(pools.iter().filter(|row| row.starts_with("Row app,alice")).count(), 1, "{pools:?}");
}
