//! Answers that need no server, by a toy cache that knows what it has heard.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use pgweir_core::known_answers::{Asked, KnownAnswers};

use crate::rig::{End, Rig, be, fe};

type Shelf = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// Answers by the messages that asked for them.
#[derive(Default)]
struct Toy {
    known: Shelf,
    asked: Vec<Vec<u8>>,
}

impl KnownAnswers for Toy {
    fn answer(&mut self, asked: &Asked<'_>) -> Option<Vec<u8>> {
        self.known.lock().expect("no test panics here").get(asked.messages).cloned()
    }

    fn tap(&mut self, asked: &Asked<'_>) -> Option<(u64, usize)> {
        self.asked.push(asked.messages.to_vec());
        Some((self.asked.len() as u64 - 1, 200))
    }

    fn answered(&mut self, number: u64, answer: &[u8]) {
        let messages = self.asked[number as usize].clone();
        self.known.lock().expect("no test panics here").insert(messages, answer.to_vec());
    }
}

/// A client with its server, and what the cache knows.
fn cached(main: &str) -> (Rig, End, End, Shelf) {
    let known = Shelf::default();
    let toy = Toy { known: Arc::clone(&known), asked: Vec::new() };
    let mut rig = Rig::new(main).answer_by(Box::new(toy));
    let client = rig.client("alice");
    let server = rig.dialed();
    (rig, client, server, known)
}

fn count(known: &Shelf) -> usize {
    known.lock().expect("no test panics here").len()
}

fn answer(rows: usize) -> Vec<u8> {
    [be::row("1").repeat(rows), be::complete("SELECT 1"), be::ready('I')].concat()
}

#[test]
fn what_was_heard_is_answered_without_a_server() {
    for main in ["", "multiplex_depth = 0"] {
        let (mut rig, first, server, known) = cached(main);
        rig.send(first, &fe::query("select 1"));
        assert_eq!(rig.gets(server), ["Query select 1"]);
        // In pieces: what was heard is whole and in order.
        answer(1).iter().for_each(|byte| rig.send(server, &[*byte]));
        let told = rig.gets(first);
        assert_eq!(count(&known), 1, "{main}");

        let second = rig.client("alice");
        rig.send(second, &fe::query("select 1"));
        assert_eq!(rig.gets(second), told);
        rig.gets_nothing(server);
        // Another text is another question.
        rig.send(second, &fe::query("select 2"));
        assert_eq!(rig.gets(server), ["Query select 2"]);
    }
}

#[test]
fn what_may_change_something_is_never_answered_here() {
    let (mut rig, client, server, known) = cached("");
    for text in ["insert into t values (1)", "select f()", "begin"] {
        rig.send(client, &fe::query(text));
        assert_eq!(rig.gets(server), [format!("Query {text}")]);
        rig.send(server, &[be::complete("OK"), be::ready('I')].concat());
        rig.gets(client);
    }
    assert_eq!(count(&known), 0);
}

#[test]
fn an_answer_beyond_the_bound_is_not_heard() {
    let (mut rig, client, server, known) = cached("");
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    rig.send(server, &answer(50));
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    assert_eq!(count(&known), 0);
}

#[test]
fn a_lost_server_teaches_nothing() {
    let (mut rig, client, server, known) = cached("");
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    rig.send(server, &answer(1)[..6]);
    rig.eof(server);
    assert_eq!(count(&known), 0);
}
