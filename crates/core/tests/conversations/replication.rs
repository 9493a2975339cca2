//! Replication connections: each has its own server, and everything passes.

use pgweir_core::driver::Closed;

use crate::rig::{End, Rig, be, fe, greeting};

fn standby(rig: &mut Rig) -> (End, End) {
    let client = rig.accept();
    let params = [
        ("user", "alice"),
        ("database", "app"),
        ("replication", "true"),
        ("application_name", "standby1"),
        ("options", "-c wal_sender_timeout=0"),
    ];
    rig.send(client, &fe::startup(&params));
    let server = rig.dialed();
    let startup = rig.connect(server);
    assert!(startup.contains("replication true"), "{startup}");
    assert!(startup.contains("options -c wal_sender_timeout=0"), "{startup}");
    assert!(startup.contains("application_name standby1"), "{startup}");
    (client, server)
}

/// What a server with this application_name says at login.
fn greeting_named(name: &str) -> Vec<u8> {
    let mut out = be::auth_ok();
    out.extend(be::parameter("application_name", name));
    out.extend(be::parameter("TimeZone", "UTC"));
    out.extend(be::key(1));
    out.extend(be::ready('I'));
    out
}

fn streaming(rig: &mut Rig) -> (End, End) {
    let (client, server) = standby(rig);
    rig.send(server, &greeting());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    rig.send(client, &fe::query("START_REPLICATION 0/0"));
    assert_eq!(rig.gets(server), ["Query START_REPLICATION 0/0"]);
    rig.send(server, &[be::copy_both(), be::copy_data(b"wal")].concat());
    assert_eq!(rig.gets(client), ["CopyBoth", "CopyData wal"]);
    (client, server)
}

#[test]
fn both_directions_flow() {
    let mut rig = Rig::new("");
    let (client, server) = streaming(&mut rig);
    rig.send_bytewise(client, &fe::copy_data(b"status"));
    assert_eq!(rig.gets(server), ["CopyData status"]);
    rig.send_bytewise(server, &be::copy_data(b"more"));
    assert_eq!(rig.gets(client), ["CopyData more"]);
}

#[test]
fn nothing_of_ours_is_sent_on_it() {
    for mode in ["session", "transaction", "statement"] {
        let mut rig = Rig::new(&format!("pool_mode = {mode}\nsequence_affinity = pin"));
        let (client, server) = standby(&mut rig);
        rig.send(server, &greeting());
        rig.gets(client);
        let texts = [
            "begin read only isolation level repeatable read",
            "create_replication_slot s logical pgoutput (snapshot 'use')",
            "select nextval('s'), currval('s'), lastval()",
            "select set_config('a.b', 'c', false), f()",
            "prepare p as select nextval('s')",
            "execute p",
            "deallocate p",
            "copy public.t to stdout",
            "reset all",
            "discard all",
            "commit",
        ];
        for text in texts {
            rig.send(client, &fe::query(text));
            assert_eq!(rig.gets(server), [format!("Query {text}")], "{mode}");
            rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
            assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"), "{mode}");
        }
        let group = [fe::parse("", "select lastval()"), fe::bind(""), fe::execute(), fe::sync()].concat();
        rig.send_bytewise(client, &group);
        assert_eq!(rig.gets(server), ["Parse  select lastval()", "Bind ", "Execute", "Sync"], "{mode}");
        rig.send(client, &fe::terminate());
        assert!(rig.is_closed(server), "{mode}");
    }
}

#[test]
fn its_messages_are_bounded_and_known() {
    for (main, message) in [
        ("", b"!\0\0\0\x04".to_vec()),
        ("", b"Q\0\0\0\x03".to_vec()),
        ("max_packet_size = 100", fe::query(&"x".repeat(200))),
        ("disable_pqexec = 1", fe::query("IDENTIFY_SYSTEM")),
    ] {
        let mut rig = Rig::new(main);
        let (client, server) = standby(&mut rig);
        rig.send(server, &greeting());
        rig.gets(client);
        rig.send(client, &message);
        assert!(rig.is_closed(client) && rig.is_closed(server), "{main}: {message:?}");
        assert_eq!(rig.gets(server), ["Terminate"], "{main}: {message:?}");
    }
}

#[test]
fn its_server_ends_with_it() {
    let mut rig = Rig::new("");
    let (client, server) = streaming(&mut rig);
    rig.eof(client);
    assert!(rig.is_closed(server));
    assert_eq!(rig.shared.clients.taken(), 0);
}

#[test]
fn it_ends_with_its_server() {
    let mut rig = Rig::new("");
    let (client, server) = streaming(&mut rig);
    rig.eof(server);
    assert!(rig.is_closed(client));
}

#[test]
fn no_error_inside_a_copy_data() {
    let mut rig = Rig::new("");
    let (client, server) = streaming(&mut rig);
    let half = be::copy_data(&[b'w'; 1000])[..500].to_vec();
    rig.send(server, &half);
    rig.end(server, Closed::Broken("reset".to_owned()));
    assert!(rig.is_closed(client));
    assert!(rig.raw(client) == half, "what comes behind would be taken for WAL");
}

#[test]
fn a_client_that_leaves_during_its_servers_login_takes_it_along() {
    let mut rig = Rig::new("");
    let (client, server) = standby(&mut rig);
    rig.eof(client);
    assert!(rig.is_closed(server));
}

#[test]
fn a_refused_replication_login_is_told_to_its_client() {
    let mut rig = Rig::new("");
    let (client, server) = standby(&mut rig);
    rig.send(server, &be::fatal("28000", "no pg_hba.conf entry for replication"));
    assert_eq!(rig.refusal(client), "FATAL 28000 login failed");
    assert!(rig.is_closed(client) && rig.is_closed(server));
}

#[test]
fn a_server_that_refuses_newer_versions_is_asked_again_for_replication_too() {
    let mut rig = Rig::new("");
    let (client, server) = standby(&mut rig);
    rig.send(server, &be::fatal("08P01", "bad packet header"));
    assert!(rig.is_closed(server) && !rig.is_closed(client));
    let again = rig.dialed();
    let startup = rig.connect(again);
    assert!(startup.contains("\u{3}  user") && startup.contains("replication true"), "{startup:?}");
    rig.send(again, &greeting());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn a_refused_replication_login_concerns_no_other_client() {
    let mut rig = Rig::new("");
    let (_, server) = standby(&mut rig);
    let ordinary = rig.knock("alice", "app");
    rig.send(server, &be::fatal("28000", "no pg_hba.conf entry for replication"));
    rig.gets_nothing(ordinary);
    assert!(!rig.is_closed(ordinary));
    let own = rig.dialed();
    rig.greet(own);
    assert_eq!(rig.gets(ordinary).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn an_ordinary_client_is_not_kept_waiting_by_a_replication_login() {
    let mut rig = Rig::new("");
    let (_, _) = standby(&mut rig);
    rig.knock("alice", "app");
    assert_eq!(rig.new_dials(), 1, "the other connection will never be the pool's");
}

#[test]
fn a_replication_client_does_not_shape_the_pools_greeting() {
    let mut rig = Rig::new("");
    let (client, server) = standby(&mut rig);
    rig.send(server, &greeting_named("standby1"));
    assert!(rig.gets(client).contains(&"Parameter application_name=standby1".to_owned()));
    let ordinary = rig.knock("alice", "app");
    if rig.new_dials() > 0 {
        let own = rig.dialed();
        rig.greet(own);
    }
    let told = rig.gets(ordinary);
    assert_eq!(told.last().map(String::as_str), Some("Ready I"));
    assert!(!told.contains(&"Parameter application_name=standby1".to_owned()), "{told:?}");
}

#[test]
fn it_gets_the_place_of_an_idle_server() {
    let mut rig = Rig::new("default_pool_size = 1");
    rig.client("alice");
    let idle = rig.dialed();
    let (_, _) = standby(&mut rig);
    assert!(rig.is_closed(idle));
}

#[test]
fn reconnect_ends_it() {
    let mut rig = Rig::new("");
    let (client, server) = streaming(&mut rig);
    let console = rig.console();
    rig.command(console, "RECONNECT");
    assert!(rig.is_closed(client) && rig.is_closed(server), "it would never be free");
}

/// A replication client that has proven itself; it has nothing yet.
fn asks(rig: &mut Rig) -> End {
    let client = rig.accept();
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), ("replication", "true")]));
    client
}

/// A pool of one server, which its client does not give back.
fn full(main: &str) -> (Rig, End, End) {
    let mut rig = Rig::new(&format!("default_pool_size = 1\n{main}"));
    let busy = rig.client("alice");
    let server = rig.dialed();
    rig.send(busy, &fe::query("select 1"));
    rig.gets(server);
    (rig, busy, server)
}

#[test]
fn it_waits_if_the_pool_is_full_and_comes_before_later_clients() {
    let (mut rig, _, server) = full("");
    let standby = asks(&mut rig);
    rig.gets_nothing(standby);
    assert_eq!(rig.new_dials(), 0);
    let console = rig.console();
    let row = rig.pool(console, "app,alice");
    assert_eq!(row[3], "1", "it is seen to wait: {row:?}");
    let later = rig.client("alice");
    rig.send(later, &fe::query("select 2"));
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert!(rig.is_closed(server), "the free server makes room");
    let own = rig.dialed();
    let startup = rig.connect(own);
    assert!(startup.contains("replication true"), "{startup}");
    rig.send(own, &greeting());
    assert_eq!(rig.gets(standby).last().map(String::as_str), Some("Ready I"));
    // The place is free again when the replication client leaves.
    rig.eof(standby);
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 2"]);
}

#[test]
fn it_waits_behind_earlier_clients() {
    let (mut rig, _, server) = full("");
    let earlier = rig.client("alice");
    rig.send(earlier, &fe::query("begin"));
    rig.pass_us(1000);
    let standby = asks(&mut rig);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query begin"]);
    rig.gets_nothing(standby);
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.send(earlier, &fe::query("commit"));
    rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert!(rig.is_closed(server));
    rig.dialed();
}

#[test]
fn none_is_queued_past_it() {
    let mut rig = Rig::new("default_pool_size = 1");
    let clients: Vec<End> = (0..2).map(|_| rig.client("alice")).collect();
    let server = rig.dialed();
    let answer = [be::one_row("1"), be::ready('I')].concat();
    rig.send(clients[0], &fe::query("select 1"));
    rig.send(server, &answer);
    rig.send(clients[0], &fe::query("select 1"));
    rig.gets(server);
    asks(&mut rig);
    rig.send(clients[1], &fe::query("select 1"));
    rig.gets_nothing(server);
    rig.send(server, &answer);
    assert!(rig.is_closed(server));
}

#[test]
fn it_does_not_wait_forever() {
    let (mut rig, _, server) = full("query_wait_timeout = 5");
    let standby = asks(&mut rig);
    rig.pass_s(6);
    assert_eq!(rig.refusal(standby), "FATAL 57P03 query_wait_timeout");
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert!(!rig.is_closed(server), "nobody waits for its place any more");
}

#[test]
fn a_client_that_leaves_while_it_waits_is_forgotten() {
    let (mut rig, _, server) = full("");
    let standby = asks(&mut rig);
    rig.eof(standby);
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert!(!rig.is_closed(server));
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn a_pause_makes_it_wait_and_resume_serves_it() {
    let mut rig = Rig::new("");
    let console = rig.console();
    rig.command(console, "PAUSE");
    let standby = asks(&mut rig);
    rig.gets_nothing(standby);
    assert_eq!(rig.new_dials(), 0);
    rig.command(console, "RESUME");
    assert_eq!(rig.new_dials(), 1);
}
