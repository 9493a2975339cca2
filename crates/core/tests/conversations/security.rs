//! Mistakes that have opened poolers before, one test for each class. What belongs to `auth_query` is there;
//! what is sent after an SSLRequest, in either direction, is with the logins.

use crate::rig::{Rig, be, fe, greeting};

/// An ErrorResponse of these fields.
fn error_of(fields: &[u8]) -> Vec<u8> {
    fe::message(b'E', fields)
}

#[test]
fn a_server_may_leave_fields_of_its_refusal_out_or_send_them_twice() {
    for (fields, told) in [
        (&b"SFATAL\0Mgo away\0\0"[..], "FATAL 08006 go away"),
        (b"\0", "FATAL 08006 (no message)"),
        (b"C\0M\0\0", "FATAL 08006 "),
        (b"C28000\0C28P01\0Mone\0Mtwo\0\0", "FATAL 28000 one"),
        (b"Cnot a code\0Mtext\0\0", "FATAL 08006 text"),
        (b"", "FATAL 08006 (no message)"),
        (b"Mno terminator", "FATAL 08006 (no message)"),
        (b"zodd\0Mtext\0\0", "FATAL 08006 text"),
    ] {
        let mut rig = Rig::new("");
        let client = rig.knock("alice", "app");
        let server = rig.dialed();
        rig.connect(server);
        rig.send(server, &error_of(fields));
        assert!(rig.is_closed(server), "{}", fields.escape_ascii());
        assert_eq!(rig.refusal(client), told, "{}", fields.escape_ascii());
    }
}

#[test]
fn lengths_that_lie_before_the_login_end_that_connection_only() {
    let mut rig = Rig::new("auth_type = scram-sha-256");
    let good = rig.knock("alice", "app");
    for length in [0_u32, 1, 3, 7, 10_005, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff] {
        let first = rig.accept();
        rig.send(first, &[&length.to_be_bytes()[..], &[0, 3, 0, 0, b'u']].concat());
        assert!(rig.is_closed(first), "a first packet of length {length:#x}");
    }
    for length in [0_u32, 3, 0x7fff_ffff, 0xffff_ffff] {
        let client = rig.knock("alice", "app");
        rig.send(client, &[&b"p"[..], &length.to_be_bytes(), b"SCRAM-SHA-256\0"].concat());
        assert!(rig.is_closed(client), "a password message of length {length:#x}");
    }
    for length in [0x7fff_ffff_u32, 0x8000_0000, 0xffff_fffe, 65_535, 5] {
        let client = rig.knock("alice", "app");
        let body = [&b"SCRAM-SHA-256\0"[..], &length.to_be_bytes(), b"n,,"].concat();
        rig.send(client, &fe::message(b'p', &body));
        assert!(rig.is_closed(client), "a SASL message of length {length:#x}");
    }
    assert_eq!(rig.gets(good), ["Auth 10"]);
    assert_eq!(rig.shared.clients.taken(), 1, "the others are forgotten");
}

#[test]
fn a_hostile_servers_scram_messages_are_bounded() {
    let nonce = |len: usize| "n".repeat(len);
    for challenge in [
        format!("r=%{},s=c2FsdA==,i=4096", nonce(100_000)),
        format!("r=%{},s=c2FsdA==,i=4096", nonce(2_000)),
        format!("r=%x,s={},i=4096", "QUFB".repeat(10_000)),
        "r=%x,s=c2FsdA==,i=2147483647".to_owned(),
        "r=%x,s=c2FsdA==,i=99999999999999999999".to_owned(),
        "r=%,s=c2FsdA==,i=4096".to_owned(),
        "r=x,s=c2FsdA==,i=4096".to_owned(),
        String::new(),
    ] {
        let mut rig = Rig::new("");
        let client = rig.knock("alice", "app");
        let server = rig.dialed();
        rig.connect(server);
        rig.send(server, &fe::message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0"));
        let first = String::from_utf8_lossy(&rig.raw(server)).into_owned();
        let ours = first.split("r=").nth(1).expect("our nonce").to_owned();
        let body = [&b"\0\0\0\x0b"[..], challenge.replace('%', &ours).as_bytes()].concat();
        rig.send(server, &fe::message(b'R', &body));
        assert!(rig.is_closed(server), "{}", &challenge[..challenge.len().min(40)]);
        assert!(rig.refusal(client).starts_with("FATAL 08006 server login failed: "), "its client is told");
    }
}

#[test]
fn a_server_cannot_skip_the_proof_that_it_knows_the_secret() {
    let mut rig = Rig::new("");
    rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &fe::message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0"));
    rig.send(server, &greeting());
    assert!(rig.is_closed(server));
}

#[test]
fn names_without_end_end_nothing() {
    for name in ["x".repeat(64), "x".repeat(5_000), "\u{fffd}".repeat(30)] {
        let mut rig = Rig::with("", "* = host=pg", 1);
        let client = rig.accept();
        rig.send(client, &fe::startup(&[("user", "alice"), ("database", &name)]));
        let told = rig.gets(client);
        assert!(told[0].starts_with("FATAL 08P01 database name too long"), "{told:?}");
        let client = rig.accept();
        rig.send(client, &fe::startup(&[("user", &name.repeat(3)), ("database", "app")]));
        let told = rig.gets(client);
        // A packet that is longer than any startup packet ends the connection without a word.
        assert!(rig.is_closed(client) && told.iter().all(|line| line.starts_with("FATAL ")), "{told:?}");
    }
}

#[test]
fn a_user_that_may_only_look_does_not_act() {
    let mut rig = Rig::new("stats_users = bob");
    let client = rig.client("alice");
    let stats = rig.knock("bob", "pgbouncer");
    rig.gets(stats);
    for command in [
        "KILL_CLIENT 1",
        "KILL",
        "KILL app",
        "PAUSE",
        "PAUSE app",
        "RESUME",
        "RESUME app",
        "DISABLE app",
        "ENABLE app",
        "RECONNECT",
        "RECONNECT app",
        "SUSPEND",
        "WAIT_CLOSE",
        "WAIT_CLOSE app",
        "RELOAD",
        "SHUTDOWN",
        "SHUTDOWN WAIT_FOR_SERVERS",
        "SHUTDOWN WAIT_FOR_CLIENTS",
        "SET max_client_conn = 1",
        "SHOW FDS",
    ] {
        let told = rig.command(stats, command);
        assert!(told[0].contains("admin access needed"), "{command}: {told:?}");
    }
    assert!(!rig.is_closed(client) && rig.asked().is_empty());
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(client), Vec::<String>::new());
    let server = rig.dialed();
    rig.raw(server);
    assert_eq!(rig.answer(server, &[be::one_row("1"), be::ready('I')].concat(), client).len(), 4);
}

#[test]
fn a_name_that_postgresql_cuts_is_shown_to_it_before_the_client_is_told_of_it() {
    for name in ["x".repeat(64), "x".repeat(5_000), "\u{fffd}".repeat(30)] {
        let mut rig = Rig::with("", "* = host=pg", 1);
        let startup = fe::startup(&[("user", "alice"), ("database", "app"), ("application_name", &name)]);
        let client = rig.accept();
        rig.send(client, &startup);
        let server = rig.dialed();
        rig.greet(server);
        let asked = String::from_utf8_lossy(&rig.raw(server)).into_owned();
        assert!(asked.contains(&format!("SET application_name='{name}';")), "{} bytes", name.len());
        rig.gets_nothing(client);
        let cut = &be::parameter("application_name", "cut");
        rig.send(server, &[cut, &be::complete("SET")[..], &be::ready('I')].concat());
        let told = rig.gets(client);
        assert!(told.contains(&"Parameter application_name=cut".to_owned()), "{told:?}");
        assert_eq!(told.last().map(String::as_str), Some("Ready I"));
    }
}
