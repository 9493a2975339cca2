//! Kept answers that are compared with a server's (`query_cache_verify`).

use crate::cache_follow::{Following, definitions, keepalive, probe, transaction};
use crate::rig::{End, be, fe};

const TEXT: &str = "select a from t";

impl Following {
    /// The client asks, and a server is asked for the answer that is kept, too.
    fn is_compared(&mut self, (client, server): (End, End), text: &str, value: &str) {
        let told = self.is_compared_with((client, server), text, &super::cache::rows(value));
        assert_eq!(told[1], format!("Row {value}"));
    }

    /// The same with a server that sends these bytes. Returns what the client gets.
    fn is_compared_with(&mut self, (client, server): (End, End), text: &str, answer: &[u8]) -> Vec<String> {
        self.rig.pass_us(10);
        self.rig.send(client, &fe::query(text));
        self.rig.gets_nothing(server);
        self.probed("10:10:", 0x200);
        assert_eq!(self.rig.gets(server), [format!("Query {text}")]);
        self.rig.send(server, answer);
        self.rig.gets(client)
    }

    /// Time passes until the definitions were looked at so many times. Probes are answered meanwhile: they show this.
    fn looks(&mut self, times: usize, snapshot: &str, position: u64) {
        let mut looked = 0;
        while looked < times {
            self.rig.pass_us(10_000);
            let asked = self.rig.raw(self.monitor);
            let asked = String::from_utf8_lossy(&asked);
            if asked.contains("EXECUTE pgweir_definitions") {
                self.rig.send(self.monitor, &definitions(["1", "2", "3"]));
                looked += 1;
            } else if asked.contains("pg_current_snapshot") {
                self.rig.send(self.monitor, &probe(snapshot, position));
                self.rig.send(self.stream, &keepalive(position, false));
            }
        }
    }

    /// The numbers of answers that were compared, and that were wrong.
    fn verified(&mut self) -> String {
        let row = self.shown();
        let columns: Vec<&str> = row.split(',').collect();
        columns[columns.len() - 2..].join(",")
    }
}

#[test]
fn one_hit_of_a_number_is_answered_by_a_server() {
    let mut known = Following::opened("query_cache_verify = 2");
    let (client, server) = known.client();
    known.kept((client, server), TEXT);
    known.is_hit(client, TEXT, "10:10:", 0x200);
    // The client has not been answered by a server since: it waits for no probe.
    known.rig.send(client, &fe::query(TEXT));
    assert_eq!(known.rig.gets(server), [format!("Query {TEXT}")]);
    known.rig.send(server, &super::cache::rows("a"));
    assert_eq!(known.rig.gets(client)[1], "Row a");
    assert_eq!(known.verified(), "1,0");
}

#[test]
fn an_answer_that_differs_without_a_change_is_wrong() {
    let mut known = Following::opened("query_cache_verify = 1");
    let (client, server) = known.client();
    known.kept((client, server), TEXT);
    known.is_compared((client, server), TEXT, "b");
    // A definition may have been changed past the pooler, which is noticed later.
    known.looks(2, "10:10:", 0x200);
    assert_eq!(known.verified(), "1,0");
    known.looks(1, "10:10:", 0x200);
    assert_eq!(known.verified(), "1,1");
    assert!(known.rig.logged("a kept answer was wrong"));
}

#[test]
fn an_answer_to_a_statement_that_postgresql_refuses_is_wrong() {
    // 57014 says that the statement was canceled: it says nothing of the answer.
    for (code, expected) in [("42501", "1,1"), ("42P01", "1,1"), ("57014", "0,0")] {
        let mut known = Following::opened("query_cache_verify = 1");
        let (client, server) = known.client();
        known.kept((client, server), TEXT);
        let refused = [be::error(code, "no"), be::ready('I')].concat();
        known.is_compared_with((client, server), TEXT, &refused);
        known.looks(4, "10:10:", 0x200);
        assert_eq!(known.verified(), expected, "{code}");
    }
}

#[test]
fn an_answer_is_wrong_if_the_server_has_more_rows_than_are_kept() {
    let mut known = Following::opened("query_cache_verify = 1\nquery_cache_max_answer = 1024");
    let (client, server) = known.client();
    known.kept((client, server), TEXT);
    known.is_compared_with((client, server), TEXT, &super::cache::rows(&"b".repeat(2000)));
    known.looks(4, "10:10:", 0x200);
    assert_eq!(known.verified(), "1,1");
}

#[test]
fn a_change_behind_the_answer_makes_no_answer_wrong() {
    let mut known = Following::opened("query_cache_verify = 1");
    let (client, server) = known.client();
    known.kept((client, server), TEXT);
    known.is_compared((client, server), TEXT, "b");
    // The server's answer has seen a transaction that the stream tells only now.
    known.rig.send(known.stream, &transaction(10, 0x300));
    known.looks(4, "11:11:", 0x300);
    assert_eq!(known.verified(), "1,0");
}

#[test]
fn what_differs_is_given_to_nobody() {
    let mut known = Following::opened("query_cache_verify = 1");
    let (client, server) = known.client();
    known.kept((client, server), TEXT);
    known.is_compared((client, server), TEXT, "b");
    // The probe that is sent behind the server's answer.
    known.probed("10:10:", 0x200);
    known.rig.pass_us(20_000);
    known.is_compared((client, server), TEXT, "b");
    known.looks(4, "10:10:", 0x200);
    assert_eq!(known.verified(), "2,1");
}

#[test]
fn rows_that_a_limit_takes_may_be_others() {
    let text = "select a from t limit 1";
    let mut known = Following::opened("query_cache_verify = 1");
    let (client, server) = known.client();
    known.kept((client, server), text);
    known.is_compared((client, server), text, "b");
    known.is_compared((client, server), text, "b");
    known.looks(4, "10:10:", 0x200);
    assert_eq!(known.verified(), "1,0");
}

#[test]
fn no_client_waits_for_a_server_to_compare() {
    let mut known = Following::opened("query_cache_verify = 1\ndefault_pool_size = 1");
    let (client, server) = known.client();
    known.kept((client, server), TEXT);
    let other = known.rig.client("alice");
    known.rig.send(other, &fe::query("begin"));
    known.rig.gets(server);
    known.is_hit(client, TEXT, "10:10:", 0x200);
    assert_eq!(known.verified(), "0,0");
}
