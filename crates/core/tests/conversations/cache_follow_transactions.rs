//! Answers that are kept until a table changes (`follow=wal`), in transactions of which no server knows yet.

use crate::cache::{begin_ahead, begun, rows_inside};
use crate::cache_follow::{Following, transaction};
use crate::rig::{End, be, fe};

const TEXT: &str = "select a from t";

impl Following {
    /// The client begins, and the server runs the first statement of the transaction.
    fn begins(&mut self, (client, server): (End, End), text: &str, value: &str) {
        self.rig.pass_us(10);
        self.rig.send(client, &fe::query("begin"));
        assert_eq!(self.rig.gets(client), ["Complete BEGIN", "Ready T"]);
        self.rig.send(client, &fe::query(text));
        let got = self.rig.gets(server);
        assert_eq!(got, [begin_ahead("begin"), vec![format!("Query {text}")]].concat());
        self.rig.send(server, &[begun(), rows_inside(value)].concat());
        let told = self.rig.gets(client);
        assert!(told.contains(&format!("Row {value}")), "{got:?} {told:?}");
    }

    /// Another statement of the transaction.
    fn goes_on(&mut self, (client, server): (End, End), text: &str, tag: &str, status: char) {
        self.rig.send(client, &fe::query(text));
        assert_eq!(self.rig.gets(server), [format!("Query {text}")]);
        self.rig.send(server, &[be::complete(tag), be::ready(status)].concat());
        self.rig.gets(client);
    }

    /// The client's transaction is answered without a server.
    fn is_hit_inside(&mut self, client: End, server: End, value: &str) {
        self.rig.send(client, &[fe::query("begin"), fe::query(TEXT), fe::query("commit")].concat());
        let told = self.rig.gets(client);
        assert_eq!((&*told[3], &*told[5], &*told[7]), (&*format!("Row {value}"), "Ready T", "Ready I"));
        self.rig.gets_nothing(server);
    }
}

#[test]
fn the_first_statement_of_transactions_is_analysed_kept_and_given() {
    let mut known = Following::opened("defer_begin = packet");
    let (client, server) = known.client();
    // The isolation level of new connections is read with the catalog.
    known.runs((client, server), "select 0", "a");
    for _ in 0..2 {
        known.begins((client, server), TEXT, "a");
        known.goes_on((client, server), "select 2", "SELECT 1", 'T');
        known.goes_on((client, server), "commit", "COMMIT", 'I');
    }
    known.tells_tables(server, "5");
    known.begins((client, server), TEXT, "a");
    known.goes_on((client, server), "commit", "COMMIT", 'I');
    // It waits for a probe that is newer than what it was told.
    known.rig.send(client, &[fe::query("begin"), fe::query(TEXT)].concat());
    assert_eq!(known.rig.gets(client), ["Complete BEGIN", "Ready T"]);
    known.probed("10:10:", 0x200);
    let told = known.rig.gets(client);
    assert_eq!((&*told[1], &*told[3]), ("Row a", "Ready T"));
    known.rig.send(client, &fe::query("commit"));
    known.rig.gets(client);
    known.is_hit_inside(client, server, "a");
    // Outside of a transaction, too; and a change ends it everywhere.
    known.rig.send(client, &fe::query(TEXT));
    assert_eq!(known.rig.gets(client)[1], "Row a");
    known.rig.send(known.stream, &transaction(10, 0x300));
    known.begins((client, server), TEXT, "b");
}

#[test]
fn a_statement_is_not_analysed_in_a_session_that_may_be_another_one() {
    for (between, tag) in [("set search_path = x", "SET"), ("create temp table t (a int)", "CREATE TABLE")] {
        let mut known = Following::opened("defer_begin = packet");
        let (client, server) = known.client();
        known.runs((client, server), "select 0", "a");
        for _ in 0..3 {
            known.begins((client, server), TEXT, "a");
            known.goes_on((client, server), between, tag, 'T');
            known.goes_on((client, server), "rollback", "ROLLBACK", 'I');
            let asked = String::from_utf8_lossy(&known.rig.raw(server)).into_owned();
            assert!(!asked.contains("pg_lock_status"), "{between}: {asked}");
            if asked.contains("search_path") || asked.contains("pg_settings") {
                known.rig.send(server, &be::answer(&[&["s", "role", "none"]]));
                known.rig.raw(server);
            }
        }
    }
}

#[test]
fn a_transaction_that_sees_one_snapshot_is_neither_answered_nor_kept() {
    let mut known = Following::opened("defer_begin = packet");
    let (client, server) = known.client();
    known.kept((client, server), TEXT);
    known.is_hit(client, TEXT, "10:10:", 0x200);
    known.rig.send(client, &[fe::query("begin isolation level repeatable read"), fe::query(TEXT)].concat());
    assert_eq!(known.rig.gets(server).last().map(String::as_str), Some(&*format!("Query {TEXT}")));
}

/// PostgreSQL must know of each read in a SERIALIZABLE transaction, and statements outside of transactions are such ones, too.
#[test]
fn a_session_whose_transactions_are_serializable_is_left_to_postgresql() {
    let mut known = Following::opened("defer_begin = server");
    let (client, server) = known.client();
    known.runs((client, server), "select 0", "a");
    known.rig.send(client, &fe::query("set default_transaction_isolation = 'serializable'"));
    known.rig.gets(server);
    known.rig.send(server, &[be::complete("SET"), be::ready('I')].concat());
    known.rig.gets(server);
    known.rig.send(server, &be::answer(&[&["serializable"]]));
    known.rig.gets(client);
    for _ in 0..3 {
        known.begins((client, server), TEXT, "a");
        known.goes_on((client, server), "commit", "COMMIT", 'I');
        let asked = String::from_utf8_lossy(&known.rig.raw(server)).into_owned();
        if asked.contains("pg_lock_status") {
            known.answers_reads(server, "5", "{}");
        }
    }
    known.runs((client, server), TEXT, "a");
}
