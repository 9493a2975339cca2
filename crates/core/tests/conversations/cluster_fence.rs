//! A primary that is deposed and lives: nothing of a change is sent to it any more, and nothing that it says of one is believed.

use pgweir_core::driver::WorkerId;

use crate::cluster_outcomes::{PROMOTED, cluster, number, outcome, text};
use crate::clusters::{begin_with_primary, begins, goes_on, is_asked, primary, says, served};
use crate::rig::{End, Rig, be, fe};

const MAIN: &str = "server_check_query =";

const ROLLED_BACK: &str =
    "ERROR 40001 the transaction was rolled back: the connection to the primary was lost";
const UNKNOWN: &str =
    "FATAL 08007 the connection to the primary was lost; it is not known whether the statement took effect";
const COMMITTED: [&str; 2] = ["Complete COMMIT", "Ready I"];

/// A client of `app` and its server, and the watch's connections. `mode`: the pool's keys.
struct Scene {
    rig: Rig,
    watches: [End; 2],
    client: End,
    server: End,
}

impl Scene {
    fn new(outcome: &str, mode: &str) -> Scene {
        let databases = cluster(outcome).replace("app = cluster=main", &format!("app = cluster=main {mode}"));
        let mut rig = Rig::with(MAIN, &databases, 1);
        let watches = begin_with_primary(&mut rig);
        let (client, server) = served(&mut rig);
        Scene { rig, watches, client, server }
    }

    /// The client is in a transaction that the server knows of.
    fn begun(outcome: &str, mode: &str) -> Scene {
        let mut scene = Scene::new(outcome, mode);
        begins(&mut scene.rig, (scene.client, scene.server));
        scene
    }

    /// The same, with a change, of which the server was asked for the number.
    fn changed(outcome: &str) -> Scene {
        let mut scene = Scene::begun(outcome, "");
        scene.rig.send(scene.client, &fe::query("insert into t values (1)"));
        scene.rig.gets_raw(scene.server);
        let told = [be::complete("INSERT 0 1"), be::ready('T')].concat();
        scene.rig.send(scene.server, &[told, number(Some("731"), Some("0/3000058"))].concat());
        assert_eq!(scene.rig.gets(scene.client), ["Complete INSERT 0 1", "Ready T"]);
        scene
    }

    fn sends(&mut self, bytes: &[u8]) {
        self.rig.send(self.client, bytes);
        self.rig.gets_raw(self.server);
    }

    /// The second node says for the first time that it was promoted. The first one is as it was: it may be frozen, or serve.
    fn deposes(&mut self) {
        self.rig.pass_us(1_000_000);
        self.watches.into_iter().for_each(|watch| is_asked(&mut self.rig, watch));
        self.rig.send(self.watches[1], &says(false, 2, 2));
    }

    /// It says so again, until it is the primary. Returns a server of it, logged in.
    fn goes_on_at_next(&mut self) -> End {
        for _ in 0..2 {
            self.rig.pass_us(10_000);
            is_asked(&mut self.rig, self.watches[1]);
            self.rig.send(self.watches[1], &says(false, 2, 2));
        }
        assert!(self.rig.logged("cluster main: m2 is the primary (epoch 2, timeline 2)"));
        let server = self.rig.dialed();
        assert_eq!(self.rig.endpoint(server), "10.0.0.2:5432");
        self.rig.greet(server);
        server
    }

    /// What the deposed primary still says goes to no client.
    fn is_not_believed(&mut self, answer: &[u8]) {
        if !self.rig.is_closed(self.server) {
            self.rig.send(self.server, answer);
        }
        assert!(self.rig.is_closed(self.server));
    }
}

#[test]
fn a_transaction_that_is_open_is_rolled_back_and_its_commit_is_not_sent() {
    for (outcome, commit) in [("off", true), ("on", true), ("exact", true), ("on", false)] {
        let mut scene = Scene::changed(outcome);
        scene.deposes();
        assert!(scene.rig.is_closed(scene.server), "already when the newer timeline is known");
        assert!(scene.rig.logged("cluster main: timeline 2 has begun, what is open on older ones ends"));
        scene.rig.gets_nothing(scene.client);
        scene.rig.send(scene.client, &fe::query(if commit { "commit" } else { "select 1" }));
        assert_eq!(scene.rig.gets(scene.client), [ROLLED_BACK, if commit { "Ready I" } else { "Ready E" }]);
        if !commit {
            scene.rig.send(scene.client, &fe::query("rollback"));
            assert_eq!(scene.rig.gets(scene.client), ["Complete ROLLBACK", "Ready I"]);
        }
        scene.rig.send(scene.client, &fe::query("select 4"));
        let next = scene.goes_on_at_next();
        assert_eq!(scene.rig.gets(next), ["Query select 4"]);
    }
}

#[test]
fn the_next_primary_is_asked_for_a_commit_that_the_deposed_one_has() {
    for setting in ["on", "exact"] {
        for (status, told) in [("committed", &COMMITTED[..]), ("aborted", &[ROLLED_BACK, "Ready I"])] {
            let mut scene = Scene::changed(setting);
            scene.sends(&fe::query("commit"));
            scene.deposes();
            scene.is_not_believed(&[be::complete("COMMIT"), be::ready('I')].concat());
            scene.rig.gets_nothing(scene.client);
            let next = scene.goes_on_at_next();
            let asked = text(&mut scene.rig, next);
            assert!(asked.contains("txid_status('731')"), "{asked}");
            // The second node had replayed less than the COMMIT: it is known to be rolled back, or it came from elsewhere.
            scene.rig.send(next, &outcome(Some(status), None, PROMOTED));
            let got = scene.rig.gets(scene.client);
            if status == "aborted" {
                assert_eq!(got, told);
            } else {
                assert!(got == told || got[0].starts_with("ERROR 08007"), "{got:?}");
            }
        }
    }
}

#[test]
fn without_the_outcome_a_commit_is_unknown() {
    for mode in ["", "pool_mode=session"] {
        let mut scene = Scene::begun("off", mode);
        scene.sends(&fe::query("commit"));
        scene.deposes();
        scene.is_not_believed(&[be::complete("COMMIT"), be::ready('I')].concat());
        assert_eq!(scene.rig.gets(scene.client), [UNKNOWN]);
        assert!(scene.rig.is_closed(scene.client));
    }
}

/// The view comes while a part of the answer is here: a message that is not whole was not read.
#[test]
fn what_was_read_of_an_answer_before_is_believed_and_nothing_more() {
    let answer = [be::complete("COMMIT"), be::ready('I')].concat();
    for read in [0, 1, 4, answer.len() - 7] {
        let mut scene = Scene::begun("off", "");
        scene.sends(&fe::query("commit"));
        scene.rig.send(scene.server, &answer[..read]);
        scene.rig.gets_nothing(scene.client);
        scene.deposes();
        scene.is_not_believed(&answer[read..]);
        assert_eq!(scene.rig.gets(scene.client), [UNKNOWN]);
    }
}

#[test]
fn no_change_of_any_kind_is_believed() {
    let extended =
        [fe::parse("", "insert into t values (1)"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let copy = [fe::query("copy t from stdin"), fe::copy_data(b"1\n"), fe::copy_done()].concat();
    let call = fe::message(b'F', &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    for (group, first, answer) in [
        (fe::query("insert into t values (1)"), Vec::new(), be::complete("INSERT 0 1")),
        (
            fe::query("select f()"),
            Vec::new(),
            [be::columns(), be::row("1"), be::complete("SELECT 1")].concat(),
        ),
        (fe::query("begin; insert into t values (1); commit"), be::complete("BEGIN"), be::complete("COMMIT")),
        (fe::query("commit prepared 'x'"), Vec::new(), be::complete("COMMIT PREPARED")),
        (fe::query("do $$ begin commit; end $$"), Vec::new(), be::complete("DO")),
        (extended, [be::parse_complete(), be::bind_complete()].concat(), be::complete("INSERT 0 1")),
        (copy, be::copy_in(), be::complete("COPY 1")),
        (call, Vec::new(), fe::message(b'V', &[0xff; 4])),
    ] {
        for mode in ["", "pool_mode=session", "pool_mode=statement"] {
            let mut scene = Scene::new("off", mode);
            scene.sends(&group);
            scene.rig.send(scene.server, &first);
            scene.rig.gets_raw(scene.client);
            scene.deposes();
            scene.is_not_believed(&[answer.clone(), be::ready('I')].concat());
            let told = scene.rig.gets(scene.client);
            assert_eq!(told, [UNKNOWN], "{mode} {group:?}");
            assert!(scene.rig.is_closed(scene.client));
        }
    }
}

#[test]
fn a_prepared_transaction_is_unknown() {
    let mut scene = Scene::begun("exact", "");
    scene.sends(&fe::query("prepare transaction 'x'"));
    scene.deposes();
    scene.is_not_believed(&[be::complete("PREPARE TRANSACTION"), be::ready('I')].concat());
    assert_eq!(scene.rig.gets(scene.client), [UNKNOWN]);
}

#[test]
fn what_follows_a_commit_at_once_is_not_sent_either() {
    let mut scene = Scene::begun("off", "");
    scene.sends(&[fe::query("commit"), fe::query("insert into t values (1)")].concat());
    scene.deposes();
    assert!(scene.rig.is_closed(scene.server));
    assert_eq!(scene.rig.gets(scene.client), [UNKNOWN]);
}

#[test]
fn a_begin_that_was_only_answered_goes_to_the_next_primary() {
    let databases = cluster("on");
    let mut rig = Rig::with(&format!("{MAIN}\ndefer_begin = server"), &databases, 1);
    let watches = begin_with_primary(&mut rig);
    let (client, server) = served(&mut rig);
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    let mut scene = Scene { rig, watches, client, server };
    scene.deposes();
    assert!(scene.rig.is_closed(scene.server));
    scene.rig.send(scene.client, &fe::query("insert into t values (1)"));
    scene.rig.gets_nothing(scene.client);
    let next = scene.goes_on_at_next();
    assert!(text(&mut scene.rig, next).contains("insert into t values (1)"));
}

#[test]
fn a_session_ends_with_its_transaction() {
    let mut scene = Scene::begun("on", "pool_mode=session");
    scene.deposes();
    assert!(scene.rig.is_closed(scene.server));
    let told = scene.rig.gets(scene.client);
    assert!(told[0].starts_with("FATAL") && told[0].contains("rolled back"), "{told:?}");
    assert!(scene.rig.is_closed(scene.client));
}

/// Nothing of it can be lost. A part was seen, so it cannot run again.
#[test]
fn a_read_goes_on_to_its_end_if_a_part_of_it_was_seen() {
    let mut scene = Scene::new("on", "");
    scene.sends(&fe::query("select a from t"));
    scene.rig.send(scene.server, &[be::columns(), be::row("1")].concat());
    scene.deposes();
    assert!(!scene.rig.is_closed(scene.server));
    scene.rig.send(scene.client, &fe::query("insert into t values (1)"));
    scene.rig.gets_nothing(scene.server);
    scene.rig.send(scene.server, &[be::row("2"), be::complete("SELECT 2"), be::ready('I')].concat());
    assert_eq!(scene.rig.gets(scene.client), ["Columns", "Row 1", "Row 2", "Complete SELECT 2", "Ready I"]);
    assert!(scene.rig.is_closed(scene.server));
    let next = scene.goes_on_at_next();
    assert!(text(&mut scene.rig, next).contains("insert into t values (1)"));
}

#[test]
fn a_read_that_was_not_seen_runs_again() {
    let mut scene = Scene::new("on", "");
    scene.sends(&fe::query("select a from t"));
    scene.deposes();
    assert!(scene.rig.is_closed(scene.server));
    scene.rig.gets_nothing(scene.client);
    let next = scene.goes_on_at_next();
    assert_eq!(scene.rig.gets(next), ["Query select a from t"]);
}

/// A row in a transaction was seen, too: but what follows it there could change something.
#[test]
fn a_read_of_a_transaction_ends_with_it() {
    let mut scene = Scene::begun("on", "");
    scene.sends(&fe::query("select a from t"));
    scene.rig.send(scene.server, &[be::columns(), be::row("1")].concat());
    scene.deposes();
    assert!(scene.rig.is_closed(scene.server));
    assert_eq!(scene.rig.gets(scene.client), ["Columns", "Row 1", ROLLED_BACK, "Ready E"]);
}

#[test]
fn a_transaction_that_has_only_read_is_committed_if_it_is_at_its_end() {
    let mut scene = Scene::begun("on", "");
    scene.sends(&fe::query("select a from t"));
    scene.rig.send(scene.server, &[be::columns(), be::complete("SELECT 0"), be::ready('T')].concat());
    scene.rig.gets_raw(scene.client);
    scene.sends(&fe::query("commit"));
    scene.deposes();
    assert_eq!(scene.rig.gets(scene.client), COMMITTED);
}

#[test]
fn what_its_session_holds_is_still_asked() {
    let mut scene = Scene::begun("off", "");
    scene.sends(&fe::query("create temporary table t ()"));
    scene.rig.send(scene.server, &[be::complete("CREATE TABLE"), be::ready('T')].concat());
    scene.rig.send(scene.client, &fe::query("commit"));
    scene.rig.send(scene.server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert!(!scene.rig.raw(scene.server).is_empty(), "it is asked");
    scene.rig.gets_raw(scene.client);
    scene.deposes();
    assert!(!scene.rig.is_closed(scene.server));
    scene.rig.send(scene.server, &be::answer(&[]));
    assert!(scene.rig.is_closed(scene.server) && !scene.rig.is_closed(scene.client));
}

/// A worker that the mail has not reached knows what the process knows before it looks at any more bytes.
#[test]
fn no_worker_believes_it_once_one_of_them_knows() {
    for resumes in [false, true] {
        let mut rig = Rig::with(MAIN, &cluster("off"), 2);
        let watches = begin_with_primary(&mut rig);
        (0..64).for_each(|_| rig.shared.note_client(WorkerId(0), true));
        let (client, server) = served(&mut rig);
        assert_eq!(rig.worker_of(server), 1);
        begins(&mut rig, (client, server));
        let mut scene = Scene { rig, watches, client, server };
        if !resumes {
            scene.sends(&fe::query("commit"));
        }
        scene.rig.hold_mail();
        scene.deposes();
        assert!(!scene.rig.is_closed(scene.server), "the other worker has not had a turn");
        if resumes {
            scene.rig.send(scene.client, &fe::query("commit"));
            scene.rig.gets_nothing(scene.server);
            assert_eq!(scene.rig.gets(scene.client), [ROLLED_BACK, "Ready I"]);
        } else {
            scene.is_not_believed(&[be::complete("COMMIT"), be::ready('I')].concat());
            assert_eq!(scene.rig.gets(scene.client), [UNKNOWN]);
        }
        scene.rig.deliver_mail();
    }
}

/// Bytes of both in one turn: what was read ahead of the newer timeline is believed, what was read behind it is not.
#[test]
fn the_order_within_a_turn_counts() {
    for first in [false, true] {
        let mut scene = Scene::begun("off", "");
        scene.sends(&fe::query("commit"));
        scene.rig.pass_us(1_000_000);
        scene.watches.into_iter().for_each(|watch| is_asked(&mut scene.rig, watch));
        let answer = [be::complete("COMMIT"), be::ready('I')].concat();
        let (claim, server) = (says(false, 2, 2), scene.server);
        let mut together = [(scene.watches[1], &claim[..]), (server, &answer[..])];
        if first {
            together.reverse();
        }
        scene.rig.send_together(&together);
        assert!(scene.rig.is_closed(server));
        let told = scene.rig.gets(scene.client);
        assert_eq!(told, if first { COMMITTED.to_vec() } else { vec![UNKNOWN] });
    }
}

/// A node that shows a newer timeline only for a moment costs transactions, and nothing else.
#[test]
fn the_primary_goes_on_if_the_newer_timeline_is_gone() {
    let mut scene = Scene::begun("on", "");
    scene.deposes();
    assert!(scene.rig.is_closed(scene.server));
    scene.rig.send(scene.client, &fe::query("rollback"));
    assert_eq!(scene.rig.gets(scene.client), ["Complete ROLLBACK", "Ready I"]);
    scene.rig.send(scene.watches[0], &primary(1));
    scene.rig.pass_us(10_000);
    is_asked(&mut scene.rig, scene.watches[1]);
    scene.rig.send(scene.watches[1], &says(true, 1, 2));
    scene.rig.gets_nothing(scene.client);
    goes_on(&mut scene.rig, scene.client);
}

/// An operator has said that it does not count.
#[test]
fn a_detached_node_deposes_no_primary() {
    let mut scene = Scene::begun("on", "");
    let console = scene.rig.console();
    scene.rig.command(console, "DETACH NODE main.m2");
    scene.rig.pass_us(100_000);
    while scene.rig.new_dials() > 0 {
        // The nodes are asked on new connections.
        let again = scene.rig.dialed();
        scene.rig.greet(again);
        is_asked(&mut scene.rig, again);
        let is_first = scene.rig.endpoint(again) == "10.0.0.1:5432";
        scene.rig.send(again, &if is_first { primary(1) } else { says(false, 2, 2) });
    }
    assert!(scene.rig.is_closed(scene.watches[1]), "it was asked again");
    assert!(!scene.rig.is_closed(scene.server));
    scene.sends(&fe::query("commit"));
    scene.rig.send(scene.server, &[be::complete("COMMIT"), be::ready('I')].concat());
    assert_eq!(scene.rig.gets(scene.client), COMMITTED);
}
