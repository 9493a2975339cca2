//! Messages in pieces: whatever the network cuts, the result is the same.

use pgweir_core::driver::Closed;

use crate::rig::{Rig, be, fe};

/// In a transaction, so that the server is the client's own.
fn in_transaction(rig: &mut Rig) -> (crate::rig::End, crate::rig::End) {
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets(server);
    rig.gets(client);
    (client, server)
}

#[test]
fn answers_in_pieces_of_one_byte() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    let answer =
        [be::notice("hm"), be::columns(), be::row("1"), be::row_of(20_000), be::complete("SELECT 2")];
    rig.send_bytewise(server, &[answer.concat(), be::ready('I')].concat());
    assert_eq!(
        rig.gets(client),
        ["NOTICE 00000 hm", "Columns", "Row 1", "Row (20000 bytes)", "Complete SELECT 2", "Ready I"]
    );
}

#[test]
fn large_messages_in_pieces_of_one_byte() {
    let large = "x".repeat(20_000);
    for tracking in ["", "max_prepared_statements = 0"] {
        let mut rig = Rig::new(tracking);
        let (client, server) = in_transaction(&mut rig);
        let all = [
            fe::parse("s1", &large),
            fe::parse("", &large),
            fe::bind_with("s1", 20_000),
            fe::bind_with("", 20_000),
            fe::describe("s1"),
            fe::execute(),
            fe::sync(),
            fe::query(&large),
        ];
        rig.send_bytewise(client, &all.concat());
        let name = if tracking.is_empty() { "PGWEIR_1" } else { "s1" };
        assert_eq!(
            rig.gets(server),
            [
                &format!("Parse {name} (20000 bytes)"),
                "Parse  (20000 bytes)",
                &format!("Bind {name}"),
                "Bind ",
                &format!("Describe S {name}"),
                "Execute",
                "Sync",
                "Query (20000 bytes)",
            ]
        );
        assert!(!rig.is_closed(client));
    }
}

#[test]
fn a_client_without_server_in_pieces_of_one_byte() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    let all = [fe::parse("s1", "select 1"), fe::bind("s1"), fe::execute(), fe::sync()].concat();
    rig.send_bytewise(client, &all);
    assert_eq!(rig.gets(server), ["Parse PGWEIR_1 select 1", "Bind PGWEIR_1", "Execute", "Sync"]);
}

#[test]
fn a_login_in_pieces_of_one_byte() {
    let mut rig = Rig::new("auth_type = md5");
    let client = rig.accept();
    rig.send_bytewise(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert_eq!(rig.gets(client), ["Auth 5"]);
    rig.send_bytewise(client, &fe::password("md5wrong"));
    assert!(rig.gets(client)[0].starts_with("FATAL 28P01"));
}

#[test]
fn half_a_statement_holds_no_server() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (slow, quick) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(slow, &fe::query("select 'slow'")[..10]);
    rig.send(quick, &fe::query("select 'quick'"));
    assert_eq!(rig.gets(server), ["Query select 'quick'"]);
}

#[test]
fn a_bind_with_names_that_never_end_is_refused() {
    let mut rig = Rig::new("");
    let (client, _) = in_transaction(&mut rig);
    let endless = fe::message(b'B', &vec![b'x'; 1_000_000]);
    for piece in endless[..200_000].chunks(10_000) {
        if rig.is_closed(client) {
            break;
        }
        rig.send(client, piece);
    }
    assert!(rig.is_closed(client), "so much is no name");
    let told = rig.gets(client);
    assert!(told[0].starts_with("FATAL"), "{told:?}");
}

#[test]
fn an_end_inside_a_row_is_not_filled_with_an_error() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    let row = be::row_of(1000);
    rig.send(server, &[be::columns(), row[..500].to_vec()].concat());
    rig.end(server, Closed::Broken("reset".to_owned()));
    assert!(rig.is_closed(client));
    let expected = [be::columns(), row[..500].to_vec()].concat();
    assert!(rig.raw(client) == expected, "the client sees a cut connection, no error inside the row");
}

#[test]
fn an_end_between_two_rows_is_explained() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.send(server, &[be::columns(), be::row("1")].concat());
    rig.eof(server);
    assert_eq!(rig.gets(client), ["Columns", "Row 1", "FATAL 08006 server conn crashed?"]);
    assert!(rig.is_closed(client));
}

#[test]
fn a_large_notice_and_a_large_error_pass() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("do 1"));
    let long = "n".repeat(100_000);
    let answer = [be::notice(&long), be::error("P0001", &long), be::ready('I')].concat();
    for piece in answer.chunks(7_000) {
        rig.send(server, piece);
    }
    assert_eq!(rig.gets(client), ["NOTICE 00000 (100000 bytes)", "ERROR P0001 (100000 bytes)", "Ready I"]);
}

#[test]
fn a_server_that_answers_no_question_is_closed() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I'), be::row("stray")].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    assert!(rig.is_closed(server));
    assert!(!rig.is_closed(client), "its statement was over");
}

#[test]
fn a_broken_length_ends_the_connection() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    rig.send(client, b"Q\0\0\0\x03");
    assert!(rig.gets(client)[0].starts_with("FATAL 08P01"));
    let other = rig.client("alice");
    let server = rig.dialed();
    rig.send(other, &fe::query("select 1"));
    rig.send(server, b"D\xff\xff\xff\xff");
    assert!(rig.is_closed(server) && rig.is_closed(other));
}

#[test]
fn max_packet_size_bounds_what_a_client_sends() {
    let mut rig = Rig::new("max_packet_size = 1000");
    let client = rig.client("alice");
    rig.send(client, &fe::query(&"x".repeat(2000)));
    assert!(rig.gets(client)[0].starts_with("FATAL 54000"));
    let (client, server) = in_transaction(&mut rig);
    rig.send(client, &fe::query(&"x".repeat(2000)));
    assert!(rig.gets(client)[0].starts_with("FATAL 54000"));
    assert!(rig.is_closed(server));
}
