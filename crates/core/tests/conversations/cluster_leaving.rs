//! `begin_undeclared=first`, beside everything else that a client does: each group leaves the standby, is refused there with an error and
//! ReadyForQuery, or was never there.

use crate::cluster_auto::balanced_in;
use crate::cluster_reads::Stage;
use crate::rig::node::Node;
use crate::rig::{End, fe};

/// A cluster whose servers answer by themselves, and a client.
pub(super) struct World {
    pub(super) stage: Stage,
    pub(super) client: End,
    pub(super) primary: usize,
    pub(super) standby: usize,
    pub(super) nodes: Vec<Node>,
}

/// What the client's transaction comes after.
#[derive(Clone, Copy, PartialEq, Debug)]
enum After {
    Nothing,
    /// One client of its user has asked for what it drew.
    Lastval,
    /// The same, in the transaction's first group.
    DrawsByWords,
    /// The transaction has failed.
    Failure,
}

impl World {
    pub(super) fn new(main: &str) -> World {
        World::of(main, "app_first")
    }

    pub(super) fn of(main: &str, database: &str) -> World {
        let defers = if main.contains("defer_begin") { "" } else { "defer_begin = packet\n" };
        let (stage, client, primary, standby) = balanced_in(&format!("{defers}{main}"), database);
        let nodes = vec![Node::new(primary, false), Node::new(standby, true)];
        World { stage, client, primary: 0, standby: 1, nodes }
    }

    /// Every server answers until no server has more to say.
    pub(super) fn settle(&mut self) {
        loop {
            self.stage.answer_watches();
            if !self.stage.servers.is_empty() {
                let (server, node) = self.stage.server();
                self.nodes.push(Node::new(server, node > 1));
            }
            let rig = &mut self.stage.rig;
            let answers = self.nodes.iter_mut().filter_map(|node| node.answer(rig).then_some(())).count();
            if answers == 0 && self.stage.servers.is_empty() {
                return;
            }
        }
    }

    /// What a client is told for what it sends.
    pub(super) fn tells(&mut self, client: End, bytes: &[u8]) -> Vec<String> {
        self.stage.rig.send(client, bytes);
        self.settle();
        self.stage.rig.gets(client)
    }

    /// What is told to the client, whose bytes come in one piece or one by one.
    pub(super) fn asks(&mut self, bytes: &[u8], in_pieces: bool) -> Vec<String> {
        let size = if in_pieces { 1 } else { bytes.len() };
        bytes.chunks(size).flat_map(|piece| self.tells(self.client, piece)).collect()
    }

    /// The client is in a transaction that has read at the standby.
    fn reading(after: After) -> World {
        let mut world = World::new("");
        let client = world.client;
        if after == After::Lastval {
            world.tells(client, &fe::query("select lastval()"));
            let other = world.stage.rig.knock("alice", "app_first");
            world.settle();
            world.stage.rig.gets(other);
            for text in ["select 1", "insert into t values (1)"] {
                let told = world.tells(other, &fe::query(text));
                assert_eq!(told.last().map(String::as_str), Some("Ready I"));
            }
        }
        world.tells(client, &fe::query("begin"));
        let first = match after {
            After::DrawsByWords => "with a as (select 1) select * from a",
            _ => "select a from t",
        };
        assert_eq!(world.tells(client, &fe::query(first)).last().map(String::as_str), Some("Ready T"));
        if after == After::Failure {
            world.tells(client, &fe::query("select 1 / 0"));
        }
        assert!(world.nodes[world.standby].ran.contains(&first.to_owned()), "{after:?}");
        world.nodes.iter_mut().for_each(|node| node.ran.clear());
        world
    }

    /// One of the primary's servers ran something.
    fn has_used_primary(&self) -> bool {
        self.nodes.iter().any(|node| !node.is_standby && !node.ran.is_empty())
    }

    /// A standby ran nothing but reads, the ends of transactions, and what pgweir does there by itself.
    fn only_reads_at_standby(&self) -> bool {
        let standbys = self.nodes.iter().filter(|node| node.is_standby);
        standbys.flat_map(|node| &node.ran).map(|text| text.to_lowercase()).all(|text| {
            ["select a ", "select b ", "begin", "commit", "rollback", "discard sequences"]
                .iter()
                .any(|known| text.starts_with(known))
        })
    }
}

/// The number of times that a client is owed ReadyForQuery.
fn readies(bytes: &[u8]) -> usize {
    let (mut at, mut count) = (0, 0);
    while let Some(header) = pgweir_wire::header::Header::peek(&bytes[at..]).expect("a header") {
        count += usize::from(matches!(header.tag, b'Q' | b'S' | b'F'));
        at += header.total();
    }
    count
}

pub(super) fn run(text: &str) -> Vec<u8> {
    [fe::parse("", text), fe::bind(""), fe::execute()].concat()
}

fn bind_portal(portal: &str, statement: &str) -> Vec<u8> {
    let names = [portal.as_bytes(), b"\0", statement.as_bytes(), b"\0"].concat();
    fe::message(b'B', &[&names[..], &[0; 6]].concat())
}

fn execute_portal(portal: &str, rows: u8) -> Vec<u8> {
    fe::message(b'E', &[portal.as_bytes(), &[0, 0, 0, 0, rows]].concat())
}

/// Features that a group may use, as queries.
const TEXTS: [&str; 34] = [
    "insert into t values (1)",
    "with a as (insert into t values (1) returning a) select * from a",
    "select 1; select 2",
    "savepoint a",
    "set local a.b = 'c'",
    "set a.b = 'c'",
    "set transaction isolation level serializable",
    "select pg_advisory_xact_lock(1)",
    "select pg_advisory_lock(1)",
    "select a from t for update",
    "lock t",
    "declare c cursor for select 1",
    "declare c cursor with hold for select 1",
    "fetch c",
    "show work_mem",
    "commit and chain",
    "rollback and chain",
    "select nextval('s')",
    "select currval('s')",
    "select lastval()",
    "select setval('s', 1)",
    "discard sequences",
    "listen a",
    "unlisten a",
    "notify a",
    "prepare p as select 1",
    "execute p",
    "deallocate all",
    "create temp table x (a int)",
    "do 'begin end'",
    "call p()",
    "commit; insert into t values (1)",
    "rollback; begin; insert into t values (1)",
    "select note_it()",
];

/// Groups of extended messages.
fn groups() -> Vec<Vec<u8>> {
    let insert = "insert into t values (1)";
    let two = |one: &str, other: &str| [run(one), run(other), fe::sync()].concat();
    let mut groups: Vec<Vec<u8>> = TEXTS
        .iter()
        .filter(|text| !text.contains(';'))
        .map(|text| [run(text), fe::sync()].concat())
        .collect();
    groups.extend([
        two("commit", insert),
        two("rollback", insert),
        two("select b from t", "do 'begin end'"),
        two("select b from t", insert),
        two("select b from t", "commit"),
        two("select nextval('s')", "select lastval()"),
        two("do 'begin end'", "commit"),
        [fe::parse("s", "execute p"), fe::bind("s"), fe::execute(), fe::sync()].concat(),
        [fe::parse("s", "do 'begin end'"), fe::bind("s"), fe::execute(), fe::sync()].concat(),
        [fe::parse("s", insert), fe::describe("s"), fe::sync()].concat(),
        [fe::parse("s", insert), fe::flush(), fe::bind("s"), fe::execute(), fe::sync()].concat(),
        [fe::parse("", "select b from t"), fe::flush(), fe::bind(""), fe::execute(), fe::sync()].concat(),
        [fe::parse("", insert), fe::sync(), fe::bind(""), fe::execute(), fe::sync()].concat(),
        [run("do 'begin end'"), fe::flush(), run(insert), fe::sync()].concat(),
        [fe::close("s"), fe::sync()].concat(),
        [fe::parse("", "select b from t"), bind_portal("c", ""), execute_portal("c", 1), fe::sync()].concat(),
        [fe::parse("", "select b from t"), fe::bind(""), execute_portal("", 1), fe::sync()].concat(),
        // A pipeline.
        [two("select b from t", insert), two("commit", "begin"), fe::query("insert into t values (2)")]
            .concat(),
        [fe::query("select b from t"), fe::query(insert), fe::query("commit"), fe::query("select b from t")]
            .concat(),
        [run("select b from t"), fe::sync(), run(insert), fe::sync(), run("commit"), fe::sync()].concat(),
        [fe::function_call(), fe::query(insert)].concat(),
        [fe::sync(), fe::query(insert)].concat(),
    ]);
    groups
}

#[test]
fn each_group_leaves_the_standby_or_is_refused_and_is_always_answered() {
    let queries = TEXTS.iter().map(|text| fe::query(text));
    for bytes in queries.chain(groups()) {
        for after in [After::Nothing, After::Lastval, After::DrawsByWords, After::Failure] {
            for in_pieces in [false, true] {
                let mut world = World::reading(after);
                let told = world.asks(&bytes, in_pieces);
                let shown = String::from_utf8_lossy(&bytes).into_owned();
                let ready = told.iter().filter(|line| line.starts_with("Ready")).count();
                assert_eq!(ready, readies(&bytes), "{after:?} {shown:?} {told:?}");
                assert!(world.only_reads_at_standby(), "{shown:?} {:?}", world.nodes[world.standby].ran);
                if after != After::Failure {
                    let refused: Vec<_> = told.iter().filter(|line| line.contains("25006")).collect();
                    assert_eq!(refused, Vec::<&String>::new(), "{after:?} {shown:?}");
                    assert!(!told.iter().any(|line| line.contains("0A000")), "{after:?} {shown:?} {told:?}");
                    assert!(world.has_used_primary(), "{after:?} {shown:?} {told:?}");
                }
                // The client goes on.
                let told = world.asks(&fe::query("rollback"), in_pieces);
                assert_eq!(told.last().map(String::as_str), Some("Ready I"), "{after:?} {shown:?} {told:?}");
                let told = world.asks(&fe::query("insert into t values (3)"), in_pieces);
                let told: Vec<&str> = told.iter().map(String::as_str).collect();
                assert_eq!(told, ["Complete INSERT", "Ready I"], "{after:?} {shown:?}");
            }
        }
    }
}

#[test]
fn a_read_stays_although_its_user_asks_for_what_it_drew() {
    let mut world = World::reading(After::Lastval);
    for text in ["select b from t", "commit"] {
        world.asks(&fe::query(text), false);
    }
    assert!(world.nodes[world.primary].ran.is_empty());
    assert_eq!(world.nodes[world.standby].ran, ["select b from t", "commit"]);
}

#[test]
fn a_portal_that_a_later_group_may_go_on_with_is_the_primarys() {
    let left = [
        [fe::parse("", "select b from t"), bind_portal("c", ""), execute_portal("c", 1), fe::sync()].concat(),
        [fe::parse("", "select b from t"), bind_portal("c", ""), execute_portal("c", 0), fe::sync()].concat(),
        [fe::parse("", "select b from t"), fe::bind(""), execute_portal("", 1), fe::sync()].concat(),
    ];
    let closed = fe::message(b'C', b"Pc\0");
    let over = [
        [fe::parse("", "select b from t"), bind_portal("c", ""), execute_portal("c", 1), closed, fe::sync()]
            .concat(),
        [run("select b from t"), fe::sync()].concat(),
    ];
    for (bytes, leaves) in
        left.iter().map(|bytes| (bytes, true)).chain(over.iter().map(|bytes| (bytes, false)))
    {
        for is_first in [false, true] {
            let mut world = World::new("");
            let client = world.client;
            world.tells(client, &fe::query("begin"));
            if !is_first {
                world.tells(client, &fe::query("select a from t"));
            }
            let told = world.tells(client, bytes);
            assert_eq!(told.last().map(String::as_str), Some("Ready T"), "{told:?}");
            let runs = if leaves { world.primary } else { world.standby };
            assert!(world.nodes[runs].ran.contains(&"select b from t".to_owned()), "{leaves} {is_first}");
            if !leaves {
                continue;
            }
            // It goes on with its portal although it has changed something.
            let portal = if bytes.windows(2).any(|part| part == b"c\0") { "c" } else { "" };
            if portal == "c" {
                world.tells(client, &fe::query("insert into t values (1)"));
            }
            let told = world.tells(client, &[execute_portal(portal, 1), fe::sync()].concat());
            assert_eq!(told, ["Row 1", "Suspended", "Ready T"], "{is_first}");
        }
    }
    // READ ONLY stays at the standby to its end, and so do its portals.
    let mut world = World::new("");
    let client = world.client;
    world.tells(client, &fe::query("begin read only"));
    world.tells(client, &left[0]);
    let told = world.tells(client, &[execute_portal("c", 1), fe::sync()].concat());
    assert_eq!(told, ["Row 1", "Suspended", "Ready T"]);
    assert!(world.nodes[world.primary].ran.is_empty());
}
