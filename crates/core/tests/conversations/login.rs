//! The way in: what is asked, what is told, which clients are refused and how.

use pgweir_core::driver::{Closed, TlsInfo, TlsRole};

use crate::rig::{Rig, be, fe};

fn refusal(rig: &mut Rig, params: &[(&str, &str)]) -> String {
    let client = rig.accept();
    rig.send(client, &fe::startup(params));
    let told = rig.gets(client);
    assert!(rig.is_closed(client), "{told:?}");
    told.last().cloned().unwrap_or_default()
}

#[test]
fn refusals_say_why() {
    let mut rig = Rig::new("");
    assert_eq!(refusal(&mut rig, &[("database", "app")]), "FATAL 28000 no username supplied");
    assert_eq!(
        refusal(&mut rig, &[("user", "alice"), ("database", "nowhere")]),
        "FATAL 3D000 no such database: nowhere"
    );
    assert_eq!(
        refusal(&mut rig, &[("user", "nobody"), ("database", "app")]),
        "FATAL 28P01 \"trust\" authentication failed"
    );
    assert_eq!(refusal(&mut rig, &[("user", "alice"), ("database", "pgbouncer")]), "FATAL 28000 not allowed");
    assert_eq!(rig.shared.clients.taken(), 0, "all are given back");
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn what_there_is_is_said_only_to_a_client_with_a_proven_user() {
    let mut rig = Rig::new("auth_type = plain");
    let client = rig.knock("alice", "nowhere");
    assert_eq!(rig.gets(client), ["Auth 3"]);
    rig.send(client, &fe::password("wrong"));
    assert_eq!(rig.gets(client), ["FATAL 28P01 password authentication failed"]);
    let client = rig.knock("alice", "nowhere");
    rig.send(client, &fe::password("alices"));
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("FATAL 3D000 no such database: nowhere"));
    let client = rig.knock("nobody", "app");
    rig.send(client, &fe::password("alices"));
    assert_eq!(
        rig.gets(client).last().map(String::as_str),
        Some("FATAL 28P01 password authentication failed")
    );
    assert_eq!(rig.shared.clients.taken(), 0);
    assert!(!rig.logged("alices"), "no password in the log");
}

#[test]
fn a_password_opens() {
    let mut rig = Rig::new("auth_type = plain");
    let client = rig.knock("alice", "app");
    rig.gets(client);
    rig.send(client, &fe::password("alices"));
    rig.gets_nothing(client);
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::auth_cleartext());
    assert_eq!(rig.raw(server), fe::password("alices"), "the server is told the same user's password");
    rig.send(server, &crate::rig::greeting());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn max_client_conn_spares_the_console() {
    let mut rig = Rig::new("max_client_conn = 1");
    let client = rig.client("alice");
    assert_eq!(
        refusal(&mut rig, &[("user", "alice"), ("database", "app")]),
        "FATAL 53300 no more connections allowed (max_client_conn)"
    );
    rig.console();
    rig.eof(client);
    rig.client("alice");
}

#[test]
fn max_client_conn_of_0_lets_clients_in_to_the_console_only() {
    let mut rig = Rig::new("max_client_conn = 0");
    assert_eq!(
        refusal(&mut rig, &[("user", "alice"), ("database", "app")]),
        "FATAL 53300 no more connections allowed (max_client_conn)"
    );
    rig.console();
}

#[test]
fn limits_of_database_and_user() {
    let mut rig = Rig::new("max_db_client_connections = 1");
    let client = rig.client("alice");
    let refused = "FATAL 53300 client connections exceeded (max_db_client_connections)";
    assert_eq!(refusal(&mut rig, &[("user", "bob"), ("database", "app")]), refused);
    rig.eof(client);
    assert_eq!(rig.shared.database("app").clients.taken(), 0);
    let mut rig = Rig::new("max_user_client_connections = 1");
    rig.client("alice");
    let refused = "FATAL 53300 client connections exceeded (max_user_client_connections)";
    assert_eq!(refusal(&mut rig, &[("user", "alice"), ("database", "app")]), refused);
    assert_eq!(rig.shared.database("app").clients.taken(), 1);
}

#[test]
fn encryption_is_refused_once_and_the_login_goes_on() {
    let mut rig = Rig::new("");
    let client = rig.accept();
    rig.send(client, &fe::ssl_request());
    assert_eq!(rig.raw(client), b"N");
    rig.send(client, &fe::gss_request());
    assert_eq!(rig.raw(client), b"N");
    rig.send(client, &fe::ssl_request());
    assert!(rig.gets(client)[0].starts_with("FATAL 08P01 SSL was requested twice"));
}

#[test]
fn plain_text_after_a_request_for_encryption_is_refused() {
    let mut rig = Rig::new("client_tls_sslmode = allow\nclient_tls_key_file = k\nclient_tls_cert_file = c");
    let client = rig.accept();
    let startup = fe::startup(&[("user", "alice"), ("database", "app")]);
    rig.send(client, &[fe::ssl_request(), startup].concat());
    assert!(rig.gets(client)[0].starts_with("FATAL 08P01 received unencrypted data"));
    assert!(rig.wire(client).tls.is_none());
}

#[test]
fn tls_is_demanded_where_configured() {
    let mut rig = Rig::new("client_tls_sslmode = require\nclient_tls_key_file = k\nclient_tls_cert_file = c");
    assert_eq!(refusal(&mut rig, &[("user", "alice"), ("database", "app")]), "FATAL 28000 SSL required");
    let client = rig.accept();
    rig.send(client, &fe::ssl_request());
    assert_eq!(rig.raw(client), b"S");
    assert_eq!(rig.wire(client).tls, Some(TlsRole::Accept { direct: false }));
    rig.secure(
        client,
        TlsInfo { description: "TLSv1.3/X".to_owned(), peer_names: Vec::new(), end_point: None },
    );
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    assert!(rig.logged("tls=TLSv1.3/X"));
}

#[test]
fn other_protocol_versions_are_negotiated() {
    let mut rig = Rig::new("");
    for (minor, agreed) in [(1, Some(0)), (2, None), (3, Some(2)), (9999, Some(2))] {
        let client = rig.accept();
        rig.send(client, &fe::startup_of(minor, &[("user", "alice"), ("database", "app")]));
        if rig.new_dials() > 0 {
            let server = rig.dialed();
            rig.greet(server);
        }
        let told = rig.gets(client);
        let expected = agreed.map(|agreed| format!("Negotiate {agreed}"));
        assert_eq!(told.first().filter(|first| first.starts_with("Neg")).cloned(), expected, "3.{minor}");
        assert_eq!(told.last().map(String::as_str), Some("Ready I"));
    }
}

#[test]
fn a_login_that_ends_early_is_forgotten() {
    let mut rig = Rig::new("auth_type = md5");
    let greeting = rig.accept();
    rig.eof(greeting);
    let asked = rig.knock("alice", "app");
    rig.eof(asked);
    let polite = rig.knock("alice", "app");
    rig.send(polite, &fe::terminate());
    assert!(rig.is_closed(polite));
    let odd = rig.knock("alice", "app");
    rig.gets(odd);
    rig.send(odd, &fe::query("select 1"));
    assert_eq!(rig.gets(odd), ["FATAL 08P01 expected a password message"]);
    assert_eq!(rig.shared.clients.taken(), 0);
}

#[test]
fn a_client_that_leaves_before_it_is_greeted_is_forgotten() {
    let mut rig = Rig::new("");
    let client = rig.knock("alice", "app");
    rig.eof(client);
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.shared.clients.taken(), 0);
    assert_eq!(rig.shared.database("app").clients.taken(), 0);
    let next = rig.knock("alice", "app");
    assert_eq!(rig.gets(next).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn a_server_may_be_reached_by_tls_or_not_at_all() {
    let mut rig = Rig::new("server_tls_sslmode = require");
    rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect_silently(server);
    assert_eq!(rig.raw(server), fe::ssl_request());
    rig.send(server, b"N");
    assert!(rig.is_closed(server));
    let mut rig = Rig::new("server_tls_sslmode = prefer");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect_silently(server);
    rig.raw(server);
    rig.send(server, b"N");
    assert!(String::from_utf8_lossy(&rig.raw(server)).contains("alice"), "the startup packet, in plain text");
    rig.send(server, &crate::rig::greeting());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn bytes_after_the_answer_to_ssl_request_are_refused() {
    let mut rig = Rig::new("server_tls_sslmode = prefer");
    rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect_silently(server);
    rig.send(server, &[b"S".to_vec(), be::auth_ok()].concat());
    assert!(rig.is_closed(server));
}

#[test]
fn a_tls_handshake_that_fails_is_logged() {
    let mut rig = Rig::new("client_tls_sslmode = require\nclient_tls_key_file = k\nclient_tls_cert_file = c");
    let client = rig.accept();
    rig.send(client, &fe::ssl_request());
    rig.end(client, Closed::Tls("no shared cipher".to_owned()));
    assert!(rig.logged("TLS handshake error: no shared cipher"));
}

#[test]
fn control_characters_of_a_name_do_not_reach_the_log() {
    let mut rig = Rig::new("auth_type = plain");
    let client = rig.knock("alice\nFATAL forged line", "app\u{1b}[2J");
    rig.send(client, &fe::password("wrong"));
    assert!(rig.is_closed(client));
    assert!(!rig.logged("\u{1b}"), "nor does it move a terminal's cursor");
    assert!(!rig.logged("\n"), "one line is one line");
}

#[test]
fn a_server_that_refuses_newer_versions_is_asked_for_3_0() {
    let refused = be::fatal("0A000", "unsupported frontend protocol 3.2: server supports 1.0 to 3.0");
    for main in ["", "pool_mode = session", "server_protocol = 3.0"] {
        let mut rig = Rig::new(&format!("default_pool_size = 1\n{main}"));
        let client = rig.knock("alice", "app");
        let server = rig.dialed();
        let startup = rig.connect(server);
        if main != "server_protocol = 3.0" {
            assert!(startup.contains("\u{3} \u{2}user"), "{startup:?}");
            rig.send(server, &refused);
            assert!(rig.is_closed(server));
            let again = rig.dialed();
            let startup = rig.connect(again);
            assert!(startup.contains("\u{3}  user"), "{startup:?}");
            // The client is told what is wrong with that.
            rig.send(again, &refused);
            assert!(rig.gets(client).concat().contains("FATAL 0A000 unsupported"));
        } else {
            assert!(startup.contains("\u{3}  user"), "{startup:?}");
        }
    }
}

#[test]
fn what_is_refused_after_the_proof_is_no_matter_of_versions() {
    let mut rig = Rig::new("");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &[be::auth_ok(), be::fatal("0A000", "no such thing")].concat());
    assert!(rig.gets(client).concat().contains("FATAL 0A000 no such thing"));
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn a_proven_client_is_told_so_ahead_of_any_other_error() {
    let mut rig = Rig::new("max_db_client_connections = 1");
    let client = rig.knock("alice", "nowhere");
    assert_eq!(rig.gets(client), ["Auth ok", "FATAL 3D000 no such database: nowhere"], "as PostgreSQL");
    let client = rig.knock("alice", "pgbouncer");
    assert_eq!(rig.gets(client), ["Auth ok", "FATAL 28000 not allowed"]);
    let first = rig.knock("alice", "app");
    let refused = rig.knock("alice", "app");
    let limit = "FATAL 53300 client connections exceeded (max_db_client_connections)";
    assert_eq!(rig.gets(refused), ["Auth ok", limit]);
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::fatal("3D000", "database \"app\" does not exist"));
    assert_eq!(rig.gets(first), ["Auth ok", "FATAL 3D000 database \"app\" does not exist"]);
}

#[test]
fn nothing_but_an_error_is_told_to_a_client_that_is_not_proven() {
    let mut rig = Rig::new("auth_type = plain\nmax_client_conn = 1");
    let client = rig.knock("alice", "nowhere");
    let second = rig.knock("alice", "app");
    let limit = "FATAL 53300 no more connections allowed (max_client_conn)";
    assert_eq!(rig.gets(second), [limit]);
    rig.send(client, &fe::password("wrong"));
    assert_eq!(rig.gets(client), ["Auth 3", "FATAL 28P01 password authentication failed"]);
}
