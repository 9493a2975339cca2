//! `commit_outcome=exact`: COMMIT is sent when the number of its transaction is known.

use crate::cluster_outcomes::{
    COMMITTED, PROMOTED, ROLLED_BACK, Stage, is_reset, number, outcome, replayed_in, text, with_session_ahead,
};
use crate::rig::{be, fe};

const INSERT: &str = "insert into t values (1)";

fn inserted() -> Vec<u8> {
    [be::complete("INSERT 0 1"), be::ready('T')].concat()
}

fn told() -> Vec<u8> {
    number(Some("731"), Some("0/3000058"))
}

impl Stage {
    /// A client that has changed something, and an answer to that: the question behind it is not answered.
    fn exact() -> Stage {
        let mut stage = Stage::begun_with("exact");
        stage.rig.send(stage.client, &fe::query(INSERT));
        stage.gets_question();
        stage.rig.send(stage.server, &inserted());
        assert_eq!(stage.rig.gets(stage.client), ["Complete INSERT 0 1", "Ready T"]);
        stage
    }

    /// Its client has committed.
    fn between_transactions() -> Stage {
        let mut stage = Stage::exact();
        stage.rig.send(stage.server, &told());
        stage.rig.send(stage.client, &fe::query("commit"));
        stage.rig.send(stage.server, &[be::complete("COMMIT"), be::ready('I')].concat());
        stage.rig.gets_raw(stage.client);
        stage.rig.gets_raw(stage.server);
        stage
    }

    fn gets_question(&mut self) {
        let asked = text(&mut self.rig, self.server);
        assert_eq!(asked.matches("pg_current_wal_insert_lsn").count(), 1, "{asked}");
        assert!(!asked.contains("commit"), "{asked}");
    }

    /// COMMIT is under way, the primary is lost, and the next one has it.
    fn is_committed(&mut self) {
        self.rig.eof(self.server);
        let server = self.asks();
        self.rig.send(server, &outcome(Some("committed"), Some("0/3000060"), PROMOTED));
        assert_eq!(self.rig.gets(self.client), COMMITTED);
        self.goes_on(server);
    }
}

#[test]
fn commit_waits_for_the_answer_to_the_question() {
    let mut stage = Stage::exact();
    stage.rig.send(stage.client, &fe::query("commit"));
    stage.rig.gets_nothing(stage.server);
    stage.rig.send(stage.server, &told());
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
    stage.is_committed();
}

#[test]
fn commit_goes_at_once_if_the_number_is_known() {
    let mut stage = Stage::exact();
    stage.rig.send(stage.server, &told());
    stage.rig.send(stage.client, &fe::query("commit"));
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
    stage.rig.send(stage.server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(stage.client), COMMITTED);
}

#[test]
fn a_transaction_that_only_read_is_not_asked_about() {
    let mut stage = Stage::begun_with("exact");
    stage.rig.send(stage.client, &[fe::query("select a from t"), fe::query("commit")].concat());
    assert_eq!(stage.rig.gets(stage.server), ["Query select a from t"]);
    stage.rig.send(stage.server, &[be::complete("SELECT 0"), be::ready('T')].concat());
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
}

#[test]
fn what_is_not_known_is_asked_and_commit_waits() {
    let mut stage = Stage::begun_with("exact");
    let group = [fe::parse("", INSERT), fe::bind(""), fe::execute()].concat();
    stage.rig.send(stage.client, &[group, fe::flush()].concat());
    stage.rig.gets_raw(stage.server);
    let answers = [be::parse_complete(), be::bind_complete(), be::complete("INSERT 0 1")].concat();
    stage.rig.send(stage.server, &answers);
    stage.rig.send(stage.client, &[fe::sync(), fe::query("commit")].concat());
    assert_eq!(stage.rig.gets(stage.server), ["Sync"]);
    stage.rig.send(stage.server, &be::ready('T'));
    stage.rig.gets_raw(stage.client);
    stage.gets_question();
    stage.rig.send(stage.server, &told());
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
    stage.is_committed();
}

#[test]
fn copy_may_have_ended_the_transaction_so_the_open_one_is_asked_about() {
    let mut stage = Stage::begun_with("exact");
    stage.rig.send(stage.client, &fe::query("copy t from stdin"));
    stage.rig.gets_raw(stage.server);
    stage.rig.send(stage.server, &be::copy_in());
    stage.rig.gets_raw(stage.client);
    stage.rig.send(stage.client, &[fe::copy_data(b"1\n"), fe::copy_done(), fe::query("commit")].concat());
    let sent = text(&mut stage.rig, stage.server);
    assert!(!sent.contains("commit") && !sent.contains("SELECT"), "{sent}");
    stage.rig.send(stage.server, &[be::complete("COPY 1"), be::ready('T')].concat());
    stage.rig.gets_raw(stage.client);
    stage.gets_question();
    stage.rig.send(stage.server, &told());
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
    stage.is_committed();
}

#[test]
fn a_sync_that_may_have_no_answer_holds_no_commit_back() {
    // PostgreSQL ignores a Sync that comes while it reads the data of a COPY; whether it did is not told.
    let mut stage = Stage::begun_with("exact");
    let copy = [fe::parse("", "copy t from stdin"), fe::bind(""), fe::execute(), fe::sync()].concat();
    stage.rig.send(stage.client, &copy);
    stage.rig.gets_raw(stage.server);
    stage.rig.send(stage.server, &[be::parse_complete(), be::bind_complete(), be::copy_in()].concat());
    stage.rig.gets_raw(stage.client);
    stage.rig.send(stage.client, &[fe::copy_fail("no"), fe::sync()].concat());
    stage.rig.gets_raw(stage.server);
    stage.rig.send(stage.server, &[be::error("57014", "COPY from stdin failed"), be::ready('E')].concat());
    stage.rig.send(stage.client, &fe::query("commit"));
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
}

#[test]
fn commit_goes_alone() {
    let mut stage = Stage::begun_with("exact");
    let all = [fe::query(INSERT), fe::query("commit"), fe::query("select 1")].concat();
    stage.rig.send(stage.client, &all);
    stage.gets_question();
    stage.rig.send(stage.server, &inserted());
    stage.rig.gets_nothing(stage.server);
    stage.rig.send(stage.server, &told());
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
    stage.rig.send(stage.server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(stage.server), ["Query select 1"]);
}

#[test]
fn a_commit_in_pieces_waits_as_a_whole() {
    let mut stage = Stage::exact();
    stage.rig.send(stage.server, &told());
    stage.rig.send(stage.client, &[fe::parse("", "commit"), fe::bind("")].concat());
    stage.rig.gets_nothing(stage.server);
    stage.rig.send(stage.client, &[fe::execute(), fe::sync()].concat());
    stage.rig.gets_raw(stage.server);
    stage.rig.eof(stage.server);
    let server = stage.asks();
    stage.rig.send(server, &outcome(Some("committed"), Some("0/3000060"), PROMOTED));
    let told = ["ParseComplete", "BindComplete", "Complete COMMIT", "Ready I"];
    assert_eq!(stage.rig.gets(stage.client), told);
}

#[test]
fn a_commit_in_a_group_with_others_does_not_wait() {
    let mut stage = Stage::begun_with("exact");
    let one = |text| [fe::parse("", text), fe::bind(""), fe::execute()].concat();
    stage.rig.send(stage.client, &one(INSERT));
    stage.rig.send(stage.client, &[one("commit"), fe::sync()].concat());
    let sent = text(&mut stage.rig, stage.server);
    assert!(sent.contains(INSERT) && sent.contains("commit"), "{sent}");
}

#[test]
fn a_commit_that_waits_when_the_primary_is_lost_was_not_sent() {
    let mut stage = Stage::exact();
    stage.rig.send(stage.client, &fe::query("commit"));
    stage.rig.eof(stage.server);
    assert_eq!(stage.rig.gets(stage.client), ROLLED_BACK);
}

#[test]
fn a_commit_outside_of_a_transaction_does_not_wait() {
    let mut stage = Stage::between_transactions();
    stage.rig.send(stage.client, &fe::query("commit"));
    assert_eq!(stage.rig.gets(stage.server), ["Query commit"]);
}

/// A client that has sent part of a group has a server meanwhile: it is not kept from it for a COMMIT that has nothing to commit.
#[test]
fn part_of_a_group_outside_of_a_transaction_does_not_wait() {
    let mut stage = Stage::between_transactions();
    stage.rig.send(stage.client, &fe::parse("", INSERT));
    assert!(text(&mut stage.rig, stage.server).contains(INSERT));
    // The same goes for one that is none.
    stage.rig.send(stage.client, b"P\0\0\0\x07abc");
    let told = stage.rig.gets(stage.client);
    assert!(told.iter().any(|message| message.contains("08P01")), "{told:?}");
}

/// The session goes ahead of it, and is not answered before it.
#[test]
fn what_follows_a_commit_that_was_answered_waits_for_nothing() {
    let (mut rig, client, server) = with_session_ahead("exact");
    let mut sends = |text: &str, tag: &str, status: char| {
        rig.send(client, &fe::query(text));
        let sent = rig.gets(server);
        assert_eq!(sent.last(), Some(&format!("Query {text}")), "{sent:?}");
        rig.send(server, &[replayed_in(&sent), be::complete(tag), be::ready(status)].concat());
        assert_eq!(rig.gets(client), [format!("Complete {tag}"), format!("Ready {status}")]);
        if status == 'I' {
            is_reset(&mut rig, server);
        }
    };
    sends("begin", "BEGIN", 'T');
    sends("commit", "COMMIT", 'I');
    sends("begin", "BEGIN", 'T');
}

/// The client keeps its server behind COMMIT, as it has a temporary table. A statement that the server has closed meanwhile is prepared
/// once more, and a Bind waits for its description.
#[test]
fn a_bind_behind_a_commit_that_was_answered_waits_for_its_description_only() {
    let mut stage = Stage::of("max_prepared_statements = 1", "exact");
    stage.rig.describes = true;
    let (client, server) = (stage.client, stage.server);
    let ints = || be::described(&[], &[("a", 23)]);
    for (name, closed) in [("s", Vec::new()), ("other", be::close_complete())] {
        stage.rig.send(client, &[fe::parse(name, &format!("select a from {name}")), fe::sync()].concat());
        stage.rig.gets_raw(server);
        stage.rig.send(server, &[closed, be::parse_complete(), ints(), be::ready('T')].concat());
        assert_eq!(stage.rig.gets(client), ["ParseComplete", "Ready T"]);
    }
    stage.rig.send(client, &fe::query("create temp table x (a int)"));
    stage.rig.gets_raw(server);
    stage.rig.send(server, &[be::complete("CREATE TABLE"), be::ready('T'), told()].concat());
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("commit"));
    assert_eq!(stage.rig.gets(server), ["Query commit"]);
    stage.rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client), COMMITTED);
    stage.rig.gets_raw(server);
    stage.rig.send(server, &be::answer(&[&["t", "", ""]]));
    stage.rig.send(client, &[fe::bind("s"), fe::execute(), fe::sync()].concat());
    let asked = ["Close S PGWEIR_2", "Parse PGWEIR_3 select a from s", "Describe S PGWEIR_3", "Flush"];
    assert_eq!(stage.rig.gets(server), asked);
    stage.rig.send(server, &[be::close_complete(), be::parse_complete(), ints()].concat());
    assert_eq!(stage.rig.gets(server), ["Bind PGWEIR_3", "Execute", "Sync"]);
}
