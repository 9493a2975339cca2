//! Clients that read the same text in another way: what one prepared is not given to the other.

use crate::rig::{End, Rig, be, fe};

fn group(messages: &[Vec<u8>]) -> Vec<u8> {
    [messages.concat(), fe::sync()].concat()
}

/// The client that has the server changes a parameter that servers report.
fn moves_to_tokyo(rig: &mut Rig, client: End, server: End) {
    rig.send(client, &fe::query("set timezone to 'Asia/Tokyo'"));
    rig.gets(server);
    rig.send(
        server,
        &[be::parameter("TimeZone", "Asia/Tokyo"), be::complete("SET"), be::ready('I')].concat(),
    );
    rig.gets(client);
}

/// The client prepares a text on a server that has its session; whether the server was asked to.
fn prepares(rig: &mut Rig, client: End, server: End, name: &str) -> bool {
    rig.send(client, &group(&[fe::parse(name, "select '1/2/2024'")]));
    let asked = rig.gets(server).iter().any(|message| message.starts_with("Parse"));
    if asked {
        rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    }
    assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
    asked
}

/// A statement of the client that changes a setting: the server is asked for its value.
fn sets(rig: &mut Rig, client: End, server: End, name: &str, value: &str) {
    rig.send(client, &fe::query(&format!("SET {name} = {value}")));
    rig.gets(server);
    rig.send(server, &[be::complete("SET"), be::ready('I')].concat());
    rig.gets(server);
    rig.send(server, &be::answer(&[&[value]]));
    rig.gets(client);
}

#[test]
fn clients_with_other_parameters_do_not_share() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two, three) = (rig.client("alice"), rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    assert!(prepares(&mut rig, one, server, "s"));
    moves_to_tokyo(&mut rig, two, server);
    assert!(prepares(&mut rig, two, server, "s"));
    assert!(!prepares(&mut rig, two, server, "again"));
    assert!(!prepares(&mut rig, three, server, "s"), "who reads as the first one shares its statement");
    rig.send(two, &group(&[fe::bind("s")]));
    assert_eq!(rig.gets(server), ["Bind PGWEIR_2", "Sync"]);
}

#[test]
fn a_client_that_changed_a_setting_prepares_again() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    assert!(prepares(&mut rig, client, server, "a"));
    assert!(!prepares(&mut rig, client, server, "b"));
    sets(&mut rig, client, server, "search_path", "x");
    assert!(prepares(&mut rig, client, server, "c"));
    sets(&mut rig, client, server, "statement_timeout", "1");
    assert!(!prepares(&mut rig, client, server, "d"), "that changes no text");
}

#[test]
fn what_is_prepared_in_a_transaction_with_settings_of_its_own_is_not_shared() {
    for (set, shares) in [
        ("BEGIN; SET LOCAL search_path = x", false),
        ("BEGIN; SET search_path = x", false),
        ("BEGIN; SET LOCAL lock_timeout = 1", true),
        ("BEGIN; CALL p()", false),
    ] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        assert!(prepares(&mut rig, client, server, "a"));
        rig.send(client, &fe::query(set));
        rig.gets(server);
        rig.send(server, &[be::complete("SET"), be::ready('T')].concat());
        rig.gets(client);
        for name in ["b", "c"] {
            rig.send(client, &group(&[fe::parse(name, "select '1/2/2024'")]));
            let asked = rig.gets(server);
            assert_eq!(!asked.iter().any(|message| message.starts_with("Parse")), shares, "{set}: {asked:?}");
            for message in &asked {
                match message.split(' ').next() {
                    Some("Parse") => rig.send(server, &be::parse_complete()),
                    Some("Close") => rig.send(server, &be::close_complete()),
                    _ => rig.send(server, &be::ready('T')),
                }
            }
            assert_eq!(rig.gets(client), ["ParseComplete", "Ready T"]);
        }
    }
}

#[test]
fn a_statement_that_moves_under_other_settings_is_another_one() {
    let mut rig = Rig::new("default_pool_size = 2");
    let (client, blocker) = (rig.client("alice"), rig.client("alice"));
    let first = rig.dialed();
    assert!(prepares(&mut rig, client, first, "a"));
    sets(&mut rig, client, first, "search_path", "x");
    rig.send(blocker, &fe::query("begin"));
    rig.gets(first);
    rig.send(first, &[be::replayed(1), be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets(blocker);
    rig.send(client, &group(&[fe::bind("a")]));
    let second = rig.dialed();
    rig.greet(second);
    let asked = rig.gets(second);
    assert!(asked.contains(&"Parse PGWEIR_2 select '1/2/2024'".to_owned()), "{asked:?}");
    assert!(asked.contains(&"Bind PGWEIR_2".to_owned()), "{asked:?}");
}

#[test]
fn what_was_prepared_by_sql_under_other_settings_is_prepared_again() {
    const PREPARE: &str = "PREPARE p AS SELECT '1/2/2024'";
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    moves_to_tokyo(&mut rig, two, server);
    for (client, zone, changes) in [(one, "UTC", 1), (two, "Asia/Tokyo", 2)] {
        rig.send(client, &fe::query(PREPARE));
        rig.gets(server);
        rig.send(server, &[be::parameter("TimeZone", zone), be::replayed(changes)].concat());
        rig.send(server, &[be::complete("PREPARE"), be::ready('I')].concat());
        rig.gets(server);
        rig.send(server, &be::answer(&[&["p", "p", PREPARE]]));
        assert_eq!(rig.gets(client), ["Complete PREPARE", "Ready I"]);
    }
    rig.send(one, &fe::query("EXECUTE p"));
    let asked = rig.gets(server).concat();
    assert!(asked.contains("DEALLOCATE \"p\""), "{asked}");
}
