//! `commit_outcome`: changes outside of a transaction block, which pgweir runs in one.

use crate::cluster_outcomes::{PROMOTED, Stage, cluster, number, outcome, text};
use crate::clusters::{begin_with_primary, served};
use crate::rig::{Rig, be, fe};

const INSERT: &str = "insert into t values (1)";

const ROLLED_BACK: [&str; 2] =
    ["ERROR 40001 the transaction was rolled back: the connection to the primary was lost", "Ready I"];

fn begun() -> Vec<u8> {
    [be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat()
}

fn inserted() -> Vec<u8> {
    [be::complete("INSERT 0 1"), be::ready('T')].concat()
}

fn extended() -> Vec<u8> {
    [fe::parse("", INSERT), fe::bind(""), fe::execute(), fe::sync()].concat()
}

/// The answer to a statement of pgweir's beside the client's own.
fn aside(answer: &[u8]) -> Vec<u8> {
    let closed = [be::close_complete(), be::close_complete()].concat();
    [&be::close_complete()[..], &be::parse_complete(), &be::bind_complete(), answer, &closed].concat()
}

fn ended(tag: &str) -> Vec<u8> {
    [aside(&be::complete(tag)), be::ready('I')].concat()
}

fn told() -> Vec<u8> {
    number(Some("731"), Some("0/3000058"))
}

impl Stage {
    /// A client that asks for nothing.
    fn idle(setting: &str) -> Stage {
        let mut rig = Rig::with("server_check_query =", &cluster(setting), 1);
        let watches = begin_with_primary(&mut rig);
        let (client, server) = served(&mut rig);
        Stage { rig, watches, client, server }
    }

    /// A client that has asked for a change, which its server got in a block, with the question behind it.
    fn asked_for(group: &[u8]) -> Stage {
        let mut stage = Stage::idle("on");
        stage.rig.send(stage.client, group);
        let sent = text(&mut stage.rig, stage.server);
        let at = |part: &str| sent.find(part).unwrap_or_else(|| panic!("{part}: {sent}"));
        assert!(at("BEGIN") < at(INSERT) && at(INSERT) < at("txid_current_if_assigned"), "{sent}");
        assert!(!sent.contains("COMMIT"), "{sent}");
        stage
    }

    /// Its change was answered, and the question, too.
    fn at_commit() -> Stage {
        let mut stage = Stage::asked_for(&fe::query(INSERT));
        stage.rig.send(stage.server, &[begun(), inserted()].concat());
        assert_eq!(stage.rig.gets(stage.client), ["Complete INSERT 0 1"]);
        stage.rig.gets_nothing(stage.server);
        stage.rig.send(stage.server, &told());
        stage.gets("COMMIT");
        stage
    }

    /// The server gets the end of the block.
    fn gets(&mut self, end: &str) {
        let sent = text(&mut self.rig, self.server);
        assert_eq!(
            (sent.matches(end).count(), sent.matches("PGWEIR_ASIDE").count() > 1),
            (1, true),
            "{sent}"
        );
        self.rig.gets_nothing(self.client);
    }
}

#[test]
fn a_change_is_committed_when_its_number_is_known() {
    for setting in ["on", "exact"] {
        let mut stage = Stage::idle(setting);
        stage.rig.send(stage.client, &[fe::query(INSERT), fe::query("select 2")].concat());
        stage.rig.gets_raw(stage.server);
        stage.rig.send_bytewise(stage.server, &[begun(), inserted()].concat());
        assert_eq!(stage.rig.gets(stage.client), ["Complete INSERT 0 1"]);
        stage.rig.gets_nothing(stage.server);
        stage.rig.send_bytewise(stage.server, &told());
        stage.gets("COMMIT");
        stage.rig.send_bytewise(stage.server, &ended("COMMIT"));
        assert_eq!(stage.rig.gets(stage.client), ["Ready I"]);
        assert_eq!(stage.rig.gets(stage.server), ["Query select 2"], "what follows is no change");
    }
}

#[test]
fn extended_messages_are_one_change() {
    for group in [extended(), [fe::parse("", INSERT), fe::bind(""), fe::execute(), extended()].concat()] {
        let mut stage = Stage::asked_for(&group);
        let executes = group.iter().filter(|&&byte| byte == b'E').count();
        let one = [be::parse_complete(), be::bind_complete(), be::complete("INSERT 0 1")].concat();
        let asked = number(Some("731"), Some("0/3000058"));
        let (row, ready) = asked.split_at(asked.len() - be::ready('T').len());
        let row = row.strip_prefix(&be::columns()[..]).expect("the columns are not asked for");
        let answers = [begun(), one.repeat(executes), be::ready('T'), aside(row), ready.to_vec()].concat();
        stage.rig.send_bytewise(stage.server, &answers);
        let told = ["ParseComplete", "BindComplete", "Complete INSERT 0 1"].repeat(executes);
        assert_eq!(stage.rig.gets(stage.client), told);
        stage.gets("COMMIT");
        stage.rig.send(stage.server, &ended("COMMIT"));
        assert_eq!(stage.rig.gets(stage.client), ["Ready I"]);
    }
}

#[test]
fn a_change_that_fails_is_rolled_back() {
    let mut stage = Stage::asked_for(&fe::query(INSERT));
    let aborted = be::error("25P02", "current transaction is aborted");
    let failed = [begun(), be::error("23505", "duplicate key"), be::ready('E')].concat();
    stage.rig.send(stage.server, &[failed, aborted, be::ready('E')].concat());
    assert_eq!(stage.rig.gets(stage.client), ["ERROR 23505 duplicate key"]);
    stage.gets("ROLLBACK");
    stage.rig.send(stage.server, &ended("ROLLBACK"));
    assert_eq!(stage.rig.gets(stage.client), ["Ready I"]);
    stage.goes_on(stage.server);
}

#[test]
fn a_commit_that_fails_is_told() {
    for lost in [false, true] {
        let mut stage = Stage::at_commit();
        let error = be::error("23503", "violates a deferred constraint");
        let failed = [be::close_complete(), be::parse_complete(), be::bind_complete(), error].concat();
        stage.rig.send(stage.server, &failed);
        assert_eq!(stage.rig.gets(stage.client), ["ERROR 23503 violates a deferred constraint"]);
        match lost {
            true => stage.rig.eof(stage.server),
            false => stage.rig.send(stage.server, &be::ready('I')),
        }
        assert_eq!(stage.rig.gets(stage.client), ["Ready I"]);
    }
}

#[test]
fn the_next_primary_tells_what_became_of_a_change() {
    for (recovered, told) in [("0/3000060", "Ready I"), ("0/3000050", ROLLED_BACK[0])] {
        let mut stage = Stage::at_commit();
        stage.rig.eof(stage.server);
        let server = stage.asks();
        stage.rig.send(server, &outcome(Some("committed"), Some(recovered), PROMOTED));
        assert_eq!(stage.rig.gets(stage.client)[0], told);
        stage.goes_on(server);
    }
}

#[test]
fn a_change_that_is_lost_before_its_commit_runs_again_or_is_rolled_back() {
    // Nothing of it was shown.
    for group in [fe::query(INSERT), extended()] {
        let mut stage = Stage::asked_for(&group);
        stage.rig.eof(stage.server);
        stage.rig.gets_nothing(stage.client);
        let again = stage.rig.dialed();
        stage.rig.greet(again);
        let sent = text(&mut stage.rig, again);
        assert_eq!((sent.matches("BEGIN").count(), sent.matches(INSERT).count()), (1, 1), "{sent}");
    }
    for answers in [[begun(), be::complete("INSERT 0 1")].concat(), [begun(), inserted()].concat()] {
        let mut stage = Stage::asked_for(&fe::query(INSERT));
        stage.rig.send(stage.server, &answers);
        stage.rig.eof(stage.server);
        assert_eq!(stage.rig.gets(stage.client), ["Complete INSERT 0 1", ROLLED_BACK[0], "Ready I"]);
        stage.rig.send(stage.client, &fe::query("select 4"));
        let again = stage.rig.dialed();
        stage.rig.greet(again);
        assert_eq!(stage.rig.gets(again), ["Query select 4"]);
    }
    // It was told its own error, and gets no second one.
    for behind in [vec![], be::ready('E')] {
        let mut stage = Stage::asked_for(&fe::query(INSERT));
        stage.rig.send(stage.server, &[begun(), be::error("23505", "duplicate key"), behind].concat());
        stage.rig.eof(stage.server);
        assert_eq!(stage.rig.gets(stage.client), ["ERROR 23505 duplicate key", "Ready I"]);
    }
}

#[test]
fn a_begin_that_fails_is_the_changes_error() {
    for group in [fe::query(INSERT), extended()] {
        let is_simple = group[0] == b'Q';
        let mut stage = Stage::asked_for(&group);
        stage.rig.send(stage.server, &be::error("57014", "canceling statement due to user request"));
        assert_eq!(stage.rig.gets(stage.client), ["ERROR 57014 canceling statement due to user request"]);
        let asked = match is_simple {
            true => {
                assert_eq!(stage.rig.gets(stage.server), ["Sync"], "PostgreSQL waits for one");
                be::ready('I')
            }
            // The question was sent behind the client's Sync.
            false => {
                let none = number(None, None);
                let row = none.strip_prefix(&be::columns()[..]).expect("the columns are not asked for");
                let (row, _) = row.split_at(row.len() - be::ready('T').len());
                [be::ready('I'), aside(row), be::ready('I')].concat()
            }
        };
        stage.rig.send(stage.server, &asked);
        assert_eq!(stage.rig.gets(stage.client), ["Ready I"]);
        stage.goes_on(stage.server);
    }
}

#[test]
fn what_is_no_change_runs_as_it_is() {
    for sent in
        ["select 1", "create table u (a int)", "insert into t values (1); select 2", "vacuum", "call p()"]
    {
        let mut stage = Stage::idle("on");
        stage.rig.send(stage.client, &fe::query(sent));
        assert_eq!(stage.rig.gets(stage.server), [format!("Query {sent}")]);
    }
    let mut stage = Stage::idle("off");
    stage.rig.send(stage.client, &fe::query(INSERT));
    assert_eq!(stage.rig.gets(stage.server), [format!("Query {INSERT}")]);
}

#[test]
fn the_server_is_first_brought_to_the_clients_session() {
    let mut stage = Stage::idle("on");
    let named = [("user", "alice"), ("database", "app"), ("application_name", "one")];
    let client = stage.rig.client_with(&named);
    stage.rig.send(client, &fe::query(INSERT));
    assert_eq!(stage.rig.gets(stage.server), ["Query SET application_name='one';"]);
    let set = [be::complete("SET"), be::parameter("application_name", "one"), be::ready('I')].concat();
    stage.rig.send(stage.server, &set);
    let sent = text(&mut stage.rig, stage.server);
    assert_eq!((sent.matches("BEGIN").count(), sent.matches(INSERT).count()), (1, 1), "{sent}");
}

#[test]
fn an_outdated_statement_runs_again() {
    let mut stage = Stage::idle("on");
    let update = "update t set a = 1 returning *";
    stage.rig.send(stage.client, &[fe::parse("s", update), fe::sync()].concat());
    stage.rig.gets_raw(stage.server);
    stage.rig.send(stage.server, &[be::parse_complete(), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(stage.client), ["ParseComplete", "Ready I"]);
    let group = [fe::bind("s"), fe::describe_portal(), fe::execute(), fe::sync()].concat();
    stage.rig.send(stage.client, &group);
    stage.rig.gets_raw(stage.server);
    let aborted = be::error("25P02", "current transaction is aborted");
    let failed = [be::outdated(), be::ready('E'), aborted, be::ready('E')].concat();
    stage.rig.send(stage.server, &[begun(), failed].concat());
    assert_eq!(stage.rig.gets(stage.server), ["Query ROLLBACK"]);
    stage.rig.send(stage.server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    let sent = text(&mut stage.rig, stage.server);
    assert_eq!(sent.matches(update).count(), 1, "it is prepared again: {sent}");
    stage.rig.gets_nothing(stage.client);
}

#[test]
fn a_server_whose_block_ends_by_itself_is_not_trusted() {
    let mut stage = Stage::asked_for(&fe::query(INSERT));
    let out_of_it = [be::columns(), be::complete("SELECT 0"), be::ready('I')].concat();
    stage.rig.send(stage.server, &[begun(), inserted(), out_of_it].concat());
    assert!(stage.rig.is_closed(stage.server));
    assert_eq!(stage.rig.gets(stage.client), ["Complete INSERT 0 1", ROLLED_BACK[0], "Ready I"]);
}
