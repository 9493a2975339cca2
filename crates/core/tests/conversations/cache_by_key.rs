//! Answers that depend on one row (`follow=wal`): a change of another row of the table leaves them.

use super::cache_follow::{Following, changes};
use crate::rig::{be, fe};

const BY_KEY: &str = "select a from t where id = 7";
/// Table 5 with its primary key, and table 6 without one.
const TABLES: &str = "5:id=23,6";

/// The description of table 5 with this replica identity, whose key is this column of this type.
fn relation(identity: u8, name: &str, oid: u32) -> Vec<u8> {
    let column = |flags: u8, name: &str, oid: u32| {
        [&[flags][..], name.as_bytes(), &[0], &oid.to_be_bytes(), &[0xff; 4]].concat()
    };
    let head = [b"R", &5u32.to_be_bytes()[..], b"public\0t\0", &[identity], &[0, 2]].concat();
    [head, column(1, name, oid), column(0, "a", 25)].concat()
}

fn described() -> Vec<u8> {
    relation(b'd', "id", 23)
}

fn tuple(kind: u8, id: &str) -> Vec<u8> {
    let id = id.as_bytes();
    [&[kind, 0, 2, b't'][..], &(id.len() as u32).to_be_bytes(), id, b"n"].concat()
}

/// A row of table 5 with this key was changed.
fn changed(id: &str) -> Vec<u8> {
    [b"U", &5u32.to_be_bytes()[..], &tuple(b'N', id)].concat()
}

/// A row of table 5 got another key.
fn moved(from: &str, to: &str) -> Vec<u8> {
    [b"U", &5u32.to_be_bytes()[..], &tuple(b'K', from), &tuple(b'N', to)].concat()
}

/// A database that is followed, with a client whose answer to [`BY_KEY`] is kept.
fn kept() -> (Following, crate::rig::End, crate::rig::End) {
    let mut known = Following::opened_with("", TABLES);
    let (client, server) = known.client();
    known.kept((client, server), BY_KEY);
    known.is_hit(client, BY_KEY, "10:10:", 0x200);
    (known, client, server)
}

/// Whether the client is still given the answer after this transaction.
fn outlives(messages: &[Vec<u8>]) -> bool {
    let (mut known, client, server) = kept();
    known.rig.send(known.stream, &changes(10, 0x300, messages));
    known.rig.pass_us(10);
    known.rig.send(client, &fe::query(BY_KEY));
    let is_hit = !known.rig.gets(client).is_empty();
    assert_eq!(known.rig.gets(server).is_empty(), is_hit);
    is_hit
}

#[test]
fn only_a_change_of_the_row_ends_its_answer() {
    assert!(outlives(&[described(), changed("8"), moved("9", "70")]));
    assert!(!outlives(&[described(), changed("8"), changed("7")]));
    assert!(!outlives(&[described(), moved("7", "8")]), "it has another key now");
    assert!(!outlives(&[described(), moved("8", "7")]), "it got this key");
}

#[test]
fn a_change_without_certain_keys_ends_all_answers_of_the_table() {
    for table in [
        relation(b'f', "id", 23),
        relation(b'd', "b", 23),
        relation(b'd', "id", 20),
        relation(b'i', "id", 23),
    ] {
        assert!(!outlives(&[table, changed("8")]), "the catalog has another key");
    }
    assert!(!outlives(&[changed("8")]), "the table was not described");
    let truncate = [b"T", &1u32.to_be_bytes()[..], &[0], &5u32.to_be_bytes()].concat();
    assert!(!outlives(&[truncate]));
    let many: Vec<Vec<u8>> = (100..165).map(|id: u32| changed(&id.to_string())).collect();
    assert!(!outlives(&[&[described()][..], &many].concat()));
    assert!(outlives(&[&[described()][..], &many[..64]].concat()));
}

#[test]
fn statements_of_the_table_end_with_each_change() {
    let mut known = Following::opened_with("", TABLES);
    let (client, server) = known.client();
    known.kept((client, server), "select a from t where id = 7 or id = 8");
    known.rig.send(known.stream, &changes(10, 0x300, &[described(), changed("9")]));
    known.runs((client, server), "select a from t where id = 7 or id = 8", "b");
}

#[test]
fn what_ends_answers_is_shown() {
    let (mut known, client, server) = kept();
    let console = known.rig.console();
    let rows = known.rig.command(console, "SHOW STATEMENTS");
    assert!(rows.iter().any(|row| row.contains("yes, by key")), "{rows:?}");
    assert!(known.shown().ends_with(",0,0,0"), "{}", known.shown());
    known.rig.send(known.stream, &changes(10, 0x300, &[described(), changed("7")]));
    known.runs((client, server), BY_KEY, "b");
    assert!(known.shown().ends_with(",1,0,0"), "{}", known.shown());
}

#[test]
fn a_transaction_that_is_not_visible_yet_keeps_answers_of_its_rows_out() {
    let (mut known, client, server) = kept();
    known.rig.send(known.stream, &changes(10, 0x300, &[described(), changed("7")]));
    // It is received before it is visible: the server's answer still lacks it, and must not be kept.
    known.runs((client, server), BY_KEY, "a");
    known.rig.pass_us(20_000);
    known.probed("10:11:10", 0x310);
    known.runs((client, server), BY_KEY, "b");
    // A row that it did not change is kept meanwhile.
    let other = "select a from t where id = 8";
    known.kept((client, server), other);
    known.is_hit(client, other, "10:11:10", 0x320);
}

#[test]
fn a_parameter_is_the_key_with_the_type_that_the_server_has_given_it() {
    for (types, is_by_key) in [("{23}", true), ("{1700}", false)] {
        let mut known = Following::opened_with("", TABLES);
        let (client, server) = known.client();
        let text = "select a from t where id = $1";
        let group =
            |id: &str| [fe::parse("", text), fe::bind_values("", &[id]), fe::execute(), fe::sync()].concat();
        let answer = [
            be::parse_complete(),
            be::bind_complete(),
            be::row_values(&[Some(b"a")]),
            be::complete("SELECT 1"),
            be::ready('I'),
        ];
        for execution in 0..3 {
            known.rig.pass_us(10);
            known.rig.send(client, &group("7"));
            known.rig.gets(server);
            known.rig.send(server, &answer.concat());
            known.rig.gets(client);
            if execution == 1 {
                known.tells_reads(server, "5", types);
            }
        }
        known.rig.pass_us(10);
        known.rig.send(known.stream, &changes(9, 0x300, &[described(), changed("8")]));
        known.rig.send(client, &group("7"));
        if is_by_key {
            known.probed("11:11:", 0x310);
        }
        assert_eq!(known.rig.gets(server).is_empty(), is_by_key, "{types}");
    }
}
