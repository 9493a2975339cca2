//! Causal reads: a client that reads from a standby sees its own changes, and nothing older than what it has seen.

use crate::cluster_reads::{CLUSTER, Stage};
use crate::clusters::{MAIN, says};
use crate::rig::{End, be, fe};

/// `PRIMARY_QUESTION`.
pub(super) const POSITION: &str = "Query (179 bytes)";
/// `STANDBY_QUESTION`.
const REPLAYED: &str = "Query SELECT pg_catalog.pg_last_wal_replay_lsn()::pg_catalog.text";

impl Stage {
    /// A client has changed something on the primary, and now a standby is there for its reads.
    pub(super) fn changed(words: &str) -> (Stage, End, End) {
        let mut stage = Stage::causal(words);
        ["m2", "m3"].iter().for_each(|node| stage.command(&format!("DRAIN NODE main.{node}")));
        let (client, primary, node) = stage.served("app_prefer");
        assert_eq!(node, 1);
        stage.runs(client, primary, "delete from t where (1)", "DELETE 1", 'I');
        stage.command("ATTACH NODE main.m2");
        stage.rig.gets_nothing(primary);
        (stage, client, primary)
    }

    /// The primary is asked for its position, and says this.
    pub(super) fn tells_position(&mut self, primary: End, position: &str) {
        assert_eq!(self.rig.gets(primary), [POSITION]);
        self.rig.send(primary, &be::answer(&[&[position, "8192", "00000001"]]));
    }

    /// A standby is asked how far it is, and says this.
    pub(super) fn tells_replayed(&mut self, standby: End, position: &str) {
        assert_eq!(self.rig.gets(standby), [REPLAYED]);
        self.rig.send(standby, &be::answer(&[&[position]]));
    }

    pub(super) fn asks(&mut self, client: End, text: &str) {
        self.rig.gets_raw(client);
        self.rig.send(client, &fe::query(text));
    }

    /// A server gets a client's text, and answers it.
    pub(super) fn reads(&mut self, client: End, server: End, text: &str) {
        assert_eq!(self.rig.gets(server), [format!("Query {text}")]);
        self.rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
        assert_eq!(self.rig.gets(client).last().map(String::as_str), Some("Ready I"));
    }

    /// A standby's server that is at the client's own change.
    fn at_standby(&mut self, client: End, primary: End) -> End {
        self.asks(client, "select 0");
        self.tells_position(primary, "0/3000100");
        let (standby, node) = self.server();
        assert_eq!(node, 2);
        self.rig.pass_us(1_000);
        self.tells_replayed(standby, "0/3000100");
        self.reads(client, standby, "select 0");
        self.rig.pass_us(1_000);
        standby
    }
}

#[test]
fn a_read_waits_until_a_standby_shows_its_clients_change() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session");
    stage.asks(client, "select 1");
    stage.tells_position(primary, "0/3000100");
    let (standby, node) = stage.server();
    assert_eq!(node, 2);
    stage.tells_replayed(standby, "0/30000F8");
    stage.rig.gets_nothing(standby);
    stage.rig.pass_us(1_000);
    stage.tells_replayed(standby, "0/3000100");
    stage.reads(client, standby, "select 1");
    stage.asks(client, "select 2");
    stage.reads(client, standby, "select 2");
    stage.rig.gets_nothing(primary);
}

#[test]
fn the_primary_takes_a_read_that_has_waited_for_too_long() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session causal_wait_ms=20");
    stage.asks(client, "select 1");
    stage.tells_position(primary, "0/3000100");
    let (standby, _) = stage.server();
    stage.tells_replayed(standby, "0/30000F8");
    stage.rig.pass_us(19_000);
    stage.rig.gets_nothing(primary);
    stage.rig.pass_us(1_500);
    stage.reads(client, primary, "select 1");
}

#[test]
fn a_position_behind_the_header_of_a_page_is_reached_at_its_start() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session");
    stage.asks(client, "select 1");
    stage.tells_position(primary, "0/4002018");
    let (standby, _) = stage.server();
    stage.tells_replayed(standby, "0/4002000");
    stage.reads(client, standby, "select 1");
}

#[test]
fn with_off_nothing_is_asked() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=off");
    stage.asks(client, "select 1");
    let (standby, _) = stage.server();
    stage.reads(client, standby, "select 1");
    stage.rig.gets_nothing(primary);
}

#[test]
fn one_question_serves_all_that_wait_and_only_those_that_came_before_it() {
    let (mut stage, first, primary) = Stage::changed("causal_reads=session");
    let second = stage.rig.knock("alice", "app_prefer");
    stage.command("DRAIN NODE main.m2");
    let late = stage.rig.knock("alice", "app_prefer");
    stage.runs(second, primary, "delete from t where (2)", "DELETE 1", 'I');
    stage.command("ATTACH NODE main.m2");
    stage.asks(first, "select 1");
    stage.asks(second, "select 2");
    assert_eq!(stage.rig.gets(primary), [POSITION]);
    // While it is under way another client changes something.
    stage.command("DRAIN NODE main.m2");
    stage.asks(late, "delete from t where (3)");
    let other = stage.server().0;
    assert_eq!(stage.rig.gets(other), ["Query select 1"]);
    stage.rig.send(other, &[be::complete("DELETE 1"), be::ready('I')].concat());
    stage.command("ATTACH NODE main.m2");
    stage.rig.gets_raw(late);
    stage.asks(late, "select 3");
    stage.rig.send(primary, &be::answer(&[&["0/3000100", "8192", "00000001"]]));
    let asked: Vec<Vec<String>> = [primary, other].map(|server| stage.rig.gets(server)).to_vec();
    assert!(
        asked.iter().flatten().any(|text| text == POSITION),
        "the late client needs another one: {asked:?}"
    );
}

#[test]
fn what_a_standby_said_before_a_new_connection_does_not_count_for_that() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session");
    let standby = stage.at_standby(client, primary);
    // The standby starts again, and nothing says so but its connections.
    stage.rig.eof(standby);
    stage.pass_us(100_000);
    stage.asks(client, "select 1");
    let (new, node) = stage.server();
    assert_eq!(node, 2);
    stage.tells_replayed(new, "0/3000080");
    stage.tells_position(primary, "0/3000100");
    stage.rig.pass_us(1_000);
    stage.tells_replayed(new, "0/3000100");
    stage.reads(client, new, "select 1");
}

#[test]
fn an_old_connection_that_answers_shows_that_a_new_one_is_of_the_same_run() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session");
    let standby = stage.at_standby(client, primary);
    stage.asks(client, "select long");
    assert_eq!(stage.rig.gets(standby), ["Query select long"]);
    let other = stage.rig.knock("alice", "app_prefer");
    stage.asks(other, "select other");
    let (new, node) = stage.server();
    assert_eq!(node, 2);
    stage.reads(other, new, "select other");
    stage.rig.send(standby, &[be::complete("SELECT 1"), be::ready('I')].concat());
    stage.pass_us(100);
    stage.asks(client, "select 1");
    stage.tells_replayed(standby, "0/3000100");
    stage.rig.gets_nothing(primary);
    let served = [standby, new].map(|server| stage.rig.gets(server));
    assert!(served.iter().flatten().any(|text| text == "Query select 1"), "{served:?}");
}

#[test]
fn a_client_that_leaves_its_standby_asks_the_primary_first() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session");
    stage.at_standby(client, primary);
    stage.command("ATTACH NODE main.m3");
    stage.command("DRAIN NODE main.m2");
    stage.asks(client, "select 1");
    stage.tells_position(primary, "0/3000200");
    let (standby, node) = stage.server();
    assert_eq!(node, 3);
    stage.tells_replayed(standby, "0/3000200");
    stage.reads(client, standby, "select 1");
}

#[test]
fn with_database_each_read_asks_for_what_any_client_has_changed() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=database");
    let standby = stage.at_standby(client, primary);
    stage.asks(client, "select 1");
    stage.tells_position(primary, "0/3000200");
    stage.tells_replayed(standby, "0/3000200");
    stage.reads(client, standby, "select 1");
}

#[test]
fn after_a_promotion_the_new_primary_is_asked() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session");
    stage.command("ATTACH NODE main.m3");
    stage.asks(client, "select 1");
    assert_eq!(stage.rig.gets(primary), [POSITION]);
    stage.says[0] = None;
    stage.says[1] = Some(says(false, 2, 2));
    stage.says[2] = Some(says(true, 2, 3));
    stage.rig.eof(primary);
    stage.pass_us(4_000_000);
    assert!(stage.rig.logged("m2 is the primary"));
    let (new, node) = stage.dialed();
    assert_eq!(node, 2, "the wait is over: the primary takes the read");
    stage.greet(new, false);
    assert_eq!(stage.rig.gets(new), [POSITION]);
    stage.rig.send(new, &be::answer(&[&["0/3000200", "8192", "00000002"]]));
    assert_eq!(stage.rig.gets(new), ["Query select 1"]);
}

#[test]
fn what_a_primary_lost_in_a_crash_is_not_waited_for() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session causal_wait_ms=60000");
    stage.asks(client, "select 1");
    stage.tells_position(primary, "0/3000100");
    let (standby, node) = stage.server();
    assert_eq!(node, 2);
    stage.tells_replayed(standby, "0/30000F8");
    stage.says[0] = Some(says(false, 1, 9));
    stage.rig.eof(primary);
    stage.pass_us(2_000_000);
    let (new, node) = stage.dialed();
    assert_eq!(node, 1);
    stage.greet(new, false);
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &be::answer(&[&["0/30000F8"]]));
    stage.tells_position(new, "0/30000F8");
    stage.reads(client, standby, "select 1");
}

impl Stage {
    /// A client with `route=auto` and one standby, which has run its first statement; and the servers of the primary and the standby.
    fn auto(words: &str) -> (Stage, End, End, End) {
        let mut stage = Stage::causal(words);
        stage.command("DRAIN NODE main.m3");
        stage.rig.catalog = Some(vec![["v", "note_it", ""], ["s", "a_seq", ""]]);
        let client = stage.rig.knock("alice", "app_auto");
        let (primary, node) = stage.server();
        assert_eq!(node, 1);
        assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
        stage.rig.pass_us(1_000);
        stage.asks(client, "select 0");
        let (standby, node) = stage.server();
        assert_eq!(node, 2, "a client that nothing was shown to must see nothing");
        stage.reads(client, standby, "select 0");
        (stage, client, primary, standby)
    }
}

#[test]
fn with_auto_a_client_sees_its_own_change_whoever_shows_it() {
    let (mut stage, client, primary, standby) = Stage::auto("causal_reads=session causal_wait_ms=20");
    stage.asks(client, "select 1");
    stage.reads(client, standby, "select 1");
    stage.rig.gets_nothing(primary);
    stage.runs(client, primary, "delete from t where (1)", "DELETE 1", 'I');
    stage.asks(client, "select 2");
    stage.tells_position(primary, "0/3000100");
    stage.tells_replayed(standby, "0/3000100");
    stage.reads(client, standby, "select 2");
    stage.runs(client, primary, "delete from t where (2)", "DELETE 1", 'I');
    stage.asks(client, "select 3");
    stage.tells_position(primary, "0/3000200");
    stage.tells_replayed(standby, "0/3000100");
    stage.rig.gets_nothing(primary);
    stage.rig.pass_us(20_500);
    stage.reads(client, primary, "select 3");
}

#[test]
fn a_hint_sends_no_client_to_a_standby_that_lacks_its_change() {
    let (mut stage, client, primary, standby) = Stage::auto("causal_reads=session causal_wait_ms=0");
    stage.runs(client, primary, "delete from t where (1)", "DELETE 1", 'I');
    stage.asks(client, "/* pgweir: standby */ select 1");
    stage.tells_position(primary, "0/3000100");
    stage.tells_replayed(standby, "0/30000F8");
    stage.rig.pass_us(1_000);
    stage.tells_replayed(standby, "0/30000F8");
    stage.rig.gets_nothing(primary);
    stage.rig.pass_us(2_000);
    stage.tells_replayed(standby, "0/3000100");
    stage.reads(client, standby, "/* pgweir: standby */ select 1");
}

#[test]
fn what_the_primary_showed_in_place_of_a_standby_must_be_seen_from_then_on() {
    let (mut stage, client, primary, standby) = Stage::auto("causal_reads=session");
    stage.asks(client, "select a from new_table");
    assert_eq!(stage.rig.gets(standby).len(), 1);
    stage.rig.send(standby, &[be::error("42P01", "no such table"), be::ready('I')].concat());
    stage.reads(client, primary, "select a from new_table");
    stage.asks(client, "select 2");
    stage.tells_position(primary, "0/3000100");
    stage.tells_replayed(standby, "0/3000100");
    stage.reads(client, standby, "select 2");
}

/// A server of the standby answers, and says that its node was promoted.
fn answers_promoted(stage: &mut Stage, client: End, standby: End, text: &str) {
    assert_eq!(stage.rig.gets(standby), [format!("Query {text}")]);
    let off = be::parameter("in_hot_standby", "off");
    stage.rig.send(standby, &[be::complete("DELETE 1"), off, be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn a_standby_that_says_that_it_was_promoted_takes_nothing_more() {
    let (mut stage, client, primary, standby) = Stage::auto("causal_reads=session causal_wait_ms=20");
    stage.asks(client, "delete from t where (1) /* pgweir: standby */");
    answers_promoted(&mut stage, client, standby, "delete from t where (1) /* pgweir: standby */");
    assert!(stage.rig.is_closed(standby));
    // The view still has the old primary, which does not have the change. No standby that follows it does.
    stage.command("ATTACH NODE main.m3");
    stage.asks(client, "select 1");
    stage.rig.pass_us(19_000);
    stage.rig.gets_nothing(primary);
    stage.dials_nothing();
    stage.rig.pass_us(1_500);
    stage.reads(client, primary, "select 1");
    // That the primary has answered something says nothing of the other history.
    stage.asks(client, "select 2 /* pgweir: standby */");
    stage.rig.pass_us(100_000);
    stage.rig.gets_nothing(primary);
    stage.dials_nothing();
    // The view follows the promotion, and the new primary is asked.
    stage.says[0] = None;
    stage.says[1] = Some(says(false, 2, 2));
    stage.says[2] = Some(says(true, 2, 3));
    stage.rig.eof(primary);
    stage.pass_us(1_000_000);
    assert!(stage.rig.logged("m2 is the primary"));
    let (new, node) = stage.dialed();
    assert_eq!(node, 2);
    stage.greet(new, false);
    assert_eq!(stage.rig.gets(new), [POSITION]);
    stage.rig.send(new, &be::answer(&[&["0/3000200", "8192", "00000002"]]));
    let (other, node) = stage.server();
    assert_eq!(node, 3);
    stage.tells_replayed(other, "0/3000200");
    stage.reads(client, other, "select 2 /* pgweir: standby */");
}

#[test]
fn a_promotion_that_no_view_follows_is_waited_for_only_so_long() {
    let (mut stage, client, primary, standby) = Stage::auto("causal_reads=session");
    stage.asks(client, "select 1");
    answers_promoted(&mut stage, client, standby, "select 1");
    stage.command("ATTACH NODE main.m3");
    stage.asks(client, "select 2 /* pgweir: standby */");
    stage.pass_us(2_900_000);
    stage.rig.gets_nothing(primary);
    stage.dials_nothing();
    stage.pass_us(200_000);
    stage.tells_position(primary, "0/3000200");
    let (other, node) = stage.server();
    assert!(node > 1, "by a new connection, which says that its node is a standby");
    stage.tells_replayed(other, "0/3000200");
    stage.reads(client, other, "select 2 /* pgweir: standby */");
}

#[test]
fn a_connection_that_was_logged_in_later_is_asked_although_no_client_has_seen_it() {
    let (mut stage, client, primary) = Stage::changed("causal_reads=session causal_wait_ms=60000");
    let standby = stage.at_standby(client, primary);
    let second = stage.rig.knock("alice", "app_prefer");
    stage.runs(second, primary, "/* pgweir: primary */ delete from t where (2)", "DELETE 1", 'I');
    stage.asks(client, "select long");
    assert_eq!(stage.rig.gets(standby), ["Query select long"]);
    stage.asks(second, "select 2");
    stage.tells_position(primary, "0/3000100");
    let (new, node) = stage.server();
    assert_eq!(node, 2);
    stage.tells_replayed(new, "0/3000080");
    stage.rig.gets_nothing(new);
    stage.rig.pass_us(1_000);
    stage.tells_replayed(new, "0/3000100");
    stage.reads(second, new, "select 2");
}

/// A client waits for a standby that is behind, and m2 is promoted. The new primary is asked for its position, and says it. Its server, and
/// that of m3.
pub(super) fn waits_over_a_promotion(words: &str, timeline_of_m3: u32) -> (Stage, End, [End; 2]) {
    let (mut stage, client, primary) = Stage::changed(words);
    stage.asks(client, "select 1");
    stage.tells_position(primary, "0/3000100");
    let (standby, node) = stage.server();
    assert_eq!(node, 2);
    stage.tells_replayed(standby, "0/3000080");
    stage.command("ATTACH NODE main.m3");
    stage.says[0] = None;
    stage.says[1] = Some(says(false, 2, 2));
    stage.says[2] = Some(says(true, timeline_of_m3, 3));
    stage.rig.eof(primary);
    stage.pass_us(4_000_000);
    assert!(stage.rig.logged("m2 is the primary"));
    let mut servers = [stage.dialed(), stage.dialed()];
    servers.sort_by_key(|(_, node)| *node);
    let [(new, 2), (other, 3)] = servers else { panic!("{servers:?}") };
    stage.greet(new, false);
    stage.greet(other, true);
    stage.rig.gets_raw(other);
    assert_eq!(stage.rig.gets(new), [POSITION]);
    stage.rig.send(new, &be::answer(&[&["0/3000200", "8192", "00000002"]]));
    (stage, client, [new, other])
}

#[test]
fn what_an_old_primary_said_is_asked_of_the_new_one() {
    let (mut stage, client, [_, other]) =
        waits_over_a_promotion("causal_reads=session causal_wait_ms=60000", 2);
    stage.rig.send(other, &be::answer(&[&["0/3000200"]]));
    stage.reads(client, other, "select 1");
}

#[test]
fn a_position_counts_on_its_timeline_alone() {
    let (mut stage, client, [_, other]) =
        waits_over_a_promotion("causal_reads=session causal_wait_ms=60000", 1);
    stage.rig.send(other, &be::answer(&[&["0/3000300"]]));
    stage.rig.pass_us(1_000);
    assert_eq!(stage.rig.gets(other), [REPLAYED]);
    stage.says[2] = Some(says(true, 2, 3));
    stage.pass_us(2_000_000);
    stage.rig.send(other, &be::answer(&[&["0/3000300"]]));
    stage.rig.gets_raw(other);
    stage.rig.send(other, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn no_connection_to_a_promoted_standby_stays() {
    let (mut stage, client, _, standby) = Stage::auto("causal_reads=session");
    stage.asks(client, "select long /* pgweir: standby */");
    let second = stage.rig.knock("alice", "app_auto");
    stage.asks(second, "select 2 /* pgweir: standby */");
    let (other, node) = stage.server();
    assert_eq!(node, 2);
    stage.reads(second, other, "select 2 /* pgweir: standby */");
    answers_promoted(&mut stage, client, standby, "select long /* pgweir: standby */");
    assert!(stage.rig.is_closed(standby) && stage.rig.is_closed(other));
}

#[test]
fn another_process_does_not_know_what_its_clients_have_seen_and_asks() {
    let words = "causal_reads=session causal_wait_ms=60000 balance=statement";
    let (mut stage, client, primary) = Stage::changed(words);
    let standby = stage.at_standby(client, primary);
    stage.asks(client, "begin");
    stage.asks(client, "select 1");
    stage.rig.gets_raw(standby);
    let begun = [be::complete("BEGIN"), be::ready('T')].concat();
    stage.rig.send(standby, &[begun, be::complete("SELECT 1"), be::ready('T')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready T"));
    stage.rig.take_over(MAIN, &CLUSTER.replace("causal_reads=off", words));
    stage.pass_us(2_000_000);
    stage.runs(client, standby, "commit", "COMMIT", 'I');
    stage.asks(client, "select 2");
    stage.pass_us(1_000);
    assert_eq!(stage.rig.gets(primary), [POSITION]);
}
