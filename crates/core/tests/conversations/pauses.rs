//! Pipelines that owe more answers than a server may owe: the client's messages wait, and go on whatever else begins or ends while
//! they wait.

use pgweir_core::limits::Limits;

use crate::rig::{End, Rig, be, fe};

/// A rig whose servers may owe so few answers.
fn rig_of(entries: usize, main: &str) -> Rig {
    Rig::new(main).limit_by(Limits { ledger_entries: entries, ..Limits::default() })
}

/// The messages of so many statements.
fn statements(count: usize) -> Vec<u8> {
    [fe::parse("", "select 1"), fe::bind(""), fe::describe_portal(), fe::execute()].concat().repeat(count)
}

/// A server that answers as PostgreSQL does: extended messages only when a Sync or Flush asks for their answers.
#[derive(Default)]
struct Answering {
    kept: Vec<u8>,
    is_copying_in: bool,
}

impl Answering {
    /// Answers what the server has got; `false` if that was nothing.
    fn answer(&mut self, rig: &mut Rig, server: End) -> bool {
        let got = rig.gets(server);
        for message in &got {
            self.take(message);
            if message == "Sync" || message == "Flush" || message.starts_with("Query") || self.is_copying_in {
                let answers = std::mem::take(&mut self.kept);
                if !answers.is_empty() {
                    rig.send(server, &answers);
                }
            }
        }
        !got.is_empty()
    }

    fn take(&mut self, message: &str) {
        let word = message.split(' ').next().unwrap_or_default();
        let answer = match word {
            "Parse" => be::parse_complete(),
            "Bind" => be::bind_complete(),
            "Describe" => be::no_data(),
            "Execute" if self.is_copying_in => Vec::new(),
            "Execute" => be::complete("SELECT 0"),
            "Close" => panic!("the unnamed statement is the client's, and was prepared in the same group"),
            "Sync" => be::ready('I'),
            "Query" if message.contains("copy") => {
                self.is_copying_in = true;
                be::copy_in()
            }
            "Query" => [be::complete("SELECT 0"), be::ready('I')].concat(),
            "CopyDone" => {
                self.is_copying_in = false;
                self.kept.extend_from_slice(&be::complete("COPY 1"));
                be::ready('I')
            }
            _ => Vec::new(),
        };
        self.kept.extend_from_slice(&answer);
    }

    /// Until nothing more comes.
    fn answer_all(&mut self, rig: &mut Rig, server: End) {
        while self.answer(rig, server) {}
    }
}

fn readies(told: &[String]) -> usize {
    told.iter().filter(|line| line.starts_with("Ready")).count()
}

/// What happens while a client's messages wait.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    ServerDrains,
    ClientDrains,
    Suspends,
    ClientSendsOn,
}

impl Meanwhile {
    const ALL: [Meanwhile; 5] = [
        Meanwhile::Nothing,
        Meanwhile::ServerDrains,
        Meanwhile::ClientDrains,
        Meanwhile::Suspends,
        Meanwhile::ClientSendsOn,
    ];
}

/// A pipeline of `count` statements meets a server that may owe `entries` answers; returns what the client is told.
fn pipeline(entries: usize, count: usize, meanwhile: Meanwhile, main: &str) -> Vec<String> {
    let mut rig = rig_of(entries, main);
    let client = rig.client("alice");
    let server = rig.dialed();
    let messages = [statements(count), fe::sync()].concat();
    match meanwhile {
        Meanwhile::Nothing => rig.send(client, &messages),
        Meanwhile::ServerDrains => {
            rig.stop_taking(server);
            rig.send(client, &messages);
            rig.take_again(server);
        }
        Meanwhile::ClientDrains => {
            rig.stop_taking(client);
            rig.send(client, &messages);
            Answering::default().answer_all(&mut rig, server);
            rig.take_again(client);
            return rig.gets(client);
        }
        Meanwhile::Suspends => {
            rig.send(client, &messages);
            let console = rig.console();
            rig.command(console, "suspend");
            Answering::default().answer_all(&mut rig, server);
            rig.command(console, "resume");
        }
        Meanwhile::ClientSendsOn => {
            let (first, second) = messages.split_at(messages.len() - 7);
            rig.send(client, first);
            if !rig.is_paused(client) {
                rig.send(client, second);
                Answering::default().answer_all(&mut rig, server);
                return rig.gets(client);
            }
            let mut answering = Answering::default();
            answering.answer_all(&mut rig, server);
            assert!(!rig.is_paused(client), "its messages are on their way");
            rig.send(client, second);
            answering.answer_all(&mut rig, server);
            return rig.gets(client);
        }
    }
    Answering::default().answer_all(&mut rig, server);
    let told = rig.gets(client);
    assert!(!rig.is_paused(client), "nothing waits");
    told
}

#[test]
fn a_pipeline_beyond_a_full_ledger_is_answered_whatever_happens_meanwhile() {
    for entries in [1, 2, 3, 10] {
        for meanwhile in Meanwhile::ALL {
            for main in ["", "pool_mode = session", "max_prepared_statements = 0"] {
                let told = pipeline(entries, 9, meanwhile, main);
                let case = format!("{entries} entries, {meanwhile:?}, {main:?}: {told:?}");
                assert_eq!(told.len(), 9 * 4 + 1, "{case}");
                assert_eq!(told.last().map(String::as_str), Some("Ready I"), "{case}");
            }
        }
    }
}

#[test]
fn a_pipeline_beyond_the_limit_of_the_binary_is_answered() {
    for meanwhile in Meanwhile::ALL {
        let told = pipeline(Limits::default().ledger_entries, 4_500, meanwhile, "");
        assert_eq!(told.len(), 4_500 * 4 + 1, "{meanwhile:?}");
    }
}

#[test]
fn groups_beyond_a_full_ledger_are_answered() {
    for entries in [1, 3, 7] {
        let mut rig = rig_of(entries, "");
        let client = rig.client("alice");
        let server = rig.dialed();
        let group = [statements(1), fe::sync()].concat();
        rig.stop_taking(server);
        rig.send(client, &group.repeat(20));
        rig.take_again(server);
        Answering::default().answer_all(&mut rig, server);
        assert_eq!(readies(&rig.gets(client)), 20, "{entries}");
    }
}

#[test]
fn simple_queries_beyond_a_full_ledger_are_answered() {
    for entries in [1, 3, 7] {
        for main in ["", "pool_mode = session"] {
            let mut rig = rig_of(entries, main);
            let client = rig.client("alice");
            let server = rig.dialed();
            rig.stop_taking(server);
            rig.send(client, &fe::query("select 1").repeat(50));
            rig.take_again(server);
            Answering::default().answer_all(&mut rig, server);
            assert_eq!(readies(&rig.gets(client)), 50, "{entries} {main}");
        }
    }
}

#[test]
fn the_data_of_a_copy_passes_a_full_ledger() {
    for entries in [1, 2, 3] {
        let mut rig = rig_of(entries, "");
        let client = rig.client("alice");
        let server = rig.dialed();
        let copy = [fe::query("copy t from stdin"), fe::copy_data(b"1"), fe::copy_done()].concat();
        rig.send(client, &[fe::query("select 1"), copy.clone(), copy, fe::query("select 1")].concat());
        Answering::default().answer_all(&mut rig, server);
        let told = rig.gets(client);
        assert_eq!(readies(&told), 4, "{entries}: {told:?}");
    }
}

#[test]
fn named_statements_beyond_a_full_ledger_are_answered() {
    for entries in [1, 2, 3, 5] {
        let mut rig = rig_of(entries, "");
        let client = rig.client("alice");
        let server = rig.dialed();
        let one = |name: &str| {
            [fe::parse(name, "select 1"), fe::bind(name), fe::execute(), fe::close(name)].concat()
        };
        let all: Vec<u8> = ["a", "b", "a", "c", "a"].iter().flat_map(|name| one(name)).collect();
        rig.stop_taking(server);
        rig.send(client, &[all, fe::sync()].concat());
        rig.take_again(server);
        Answering::default().answer_all(&mut rig, server);
        let told = rig.gets(client);
        assert_eq!((told.len(), readies(&told)), (5 * 4 + 1, 1), "{entries}: {told:?}");
    }
}

#[test]
fn an_error_ahead_of_a_full_ledger_skips_to_the_sync() {
    let mut rig = rig_of(3, "");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.stop_taking(server);
    rig.send(client, &[statements(3), fe::sync(), fe::query("select 2")].concat());
    rig.take_again(server);
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Flush"));
    rig.send(server, &be::error("42601", "syntax error"));
    assert_eq!(rig.gets(server).last().map(String::as_str), Some("Query select 2"));
    rig.send(server, &[be::ready('I'), be::complete("SELECT 0"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["ERROR 42601 syntax error", "Ready I", "Complete SELECT 0", "Ready I"]);
}
