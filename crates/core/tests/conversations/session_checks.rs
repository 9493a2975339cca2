//! The sampled audit: after a release the server is asked what its session holds, and no client gets one that
//! holds something else.

use crate::rig::{End, Rig, be, fe};

/// A statement, answered, and the look after it.
fn run(rig: &mut Rig, client: End, server: End, text: &str) {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
}

fn looked_at(rig: &mut Rig, server: End, rows: &[&[&str]]) {
    let got = rig.gets(server);
    assert!(got.len() == 1 && got[0].contains("bytes"), "a look is a long text: {got:?}");
    rig.send(server, &be::answer(rows));
}

const PLAIN: [&[&str]; 2] = [&["s", "role", "none"], &["s", "session_authorization", "alice"]];

fn with(more: &'static [&'static str]) -> Vec<&'static [&'static str]> {
    PLAIN.into_iter().chain([more]).collect()
}

#[test]
fn no_client_gets_a_server_before_it_was_looked_at() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "select 1");
    rig.send(two, &fe::query("select 2"));
    looked_at(&mut rig, server, &PLAIN);
    assert_eq!(rig.gets(server), ["Query select 2"]);
    assert!(!rig.logged("not what it should be"));
}

#[test]
fn a_session_that_was_changed_unseen_reaches_no_client() {
    for (rows, what) in [
        (with(&["s", "work_mem", "1MB"]), "setting work_mem"),
        (with(&["a", "", ""]), "advisory locks"),
        (with(&["t", "", ""]), "temporary objects"),
        (with(&["c", "held", ""]), "held cursors"),
        (with(&["l", "news", ""]), "channels listened to"),
        (with(&["p", "p", "prepare p as select 1"]), "statements prepared by SQL"),
        (vec![&["s", "role", "bob"]], "setting role"),
    ] {
        let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 1");
        let (one, two) = (rig.client("alice"), rig.client("alice"));
        let server = rig.dialed();
        run(&mut rig, one, server, "select sneaky('secret')");
        rig.send(two, &fe::query("select 2"));
        looked_at(&mut rig, server, &rows);
        assert!(rig.is_closed(server), "{what}");
        assert!(rig.logged(&format!("({what}), changed unseen by: select sneaky(?)")), "{what}");
        assert!(!rig.logged("secret"));
        let fresh = rig.dialed();
        rig.greet(fresh);
        assert_eq!(rig.gets(fresh), ["Query select 2"]);
    }
}

#[test]
fn an_answer_that_cannot_be_read_accuses_no_statement() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 1");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "select 1");
    rig.send(two, &fe::query("select 2"));
    looked_at(&mut rig, server, &with(&["x", "", ""]));
    assert!(rig.is_closed(server));
    assert!(rig.logged("does not tell what its session holds: its answer cannot be read"));
    assert!(!rig.logged("not what it should be"));
    let fresh = rig.dialed();
    rig.greet(fresh);
    assert_eq!(rig.gets(fresh), ["Query select 2"]);
}

#[test]
fn a_statement_that_was_found_out_is_asked_about_from_then_on() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 1");
    let one = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, one, server, "select sneaky(1)");
    looked_at(&mut rig, server, &with(&["s", "work_mem", "1MB"]));
    rig.reload("default_pool_size = 1\nsession_audit_sample = 0", "app = host=pg");
    rig.send(one, &fe::query("select 2"));
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(server), ["Query select 2"]);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(one);
    run(&mut rig, one, server, "select sneaky(2)");
    looked_at(&mut rig, server, &with(&["s", "work_mem", "2MB"]));
    let two = rig.client("alice");
    rig.send(two, &fe::query("select 3"));
    let reset = "SELECT pg_catalog.set_config('work_mem',NULL,false);";
    assert_eq!(rig.gets(server), fe::shown_replay(&[reset], &["Query select 3"]));
}

#[test]
fn what_the_client_has_by_right_is_no_difference() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 1");
    let one = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, one, server, "SET app.who = 'me'");
    assert_eq!(rig.gets(server), ["Query SELECT pg_catalog.current_setting('app.who',true)"]);
    rig.send(server, &be::answer(&[&["me"]]));
    // The look after the release: the custom setting is asked for by name.
    looked_at(&mut rig, server, &with(&["m", "app.who", "me"]));
    run(&mut rig, one, server, "select 1");
    looked_at(&mut rig, server, &with(&["m", "app.who", "me"]));
    run(&mut rig, one, server, "select 1");
    looked_at(&mut rig, server, &with(&["m", "app.who", "you"]));
    assert!(rig.logged("(setting app.who)"));
}

#[test]
fn a_look_that_fails_is_repeated_and_then_closes_the_server() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 1");
    let one = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, one, server, "select 1");
    for _ in 0..3 {
        assert_eq!(rig.gets(server).len(), 1);
        rig.send(server, &[be::error("57014", "canceling statement"), be::ready('I')].concat());
    }
    assert!(rig.is_closed(server));
    assert!(rig.logged("does not tell what its session holds"));
}

#[test]
fn a_difference_of_unknown_origin_is_looked_for() {
    // The first look falls on the second release.
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 2\nmultiplex_depth = 0");
    let one = rig.client("alice");
    let mut server = rig.dialed();
    run(&mut rig, one, server, "select sneaky(1)");
    run(&mut rig, one, server, "select 1 from t");
    looked_at(&mut rig, server, &with(&["s", "work_mem", "1MB"]));
    assert!(rig.logged(
        "changed unseen in one of 2 transactions; the last statements: select ? from t; select sneaky(?)"
    ));
    rig.send(one, &fe::query("select 1 from t"));
    server = rig.dialed();
    rig.greet(server);
    rig.gets(server);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.gets(one);
    looked_at(&mut rig, server, &PLAIN);
    run(&mut rig, one, server, "select sneaky(2)");
    looked_at(&mut rig, server, &with(&["s", "work_mem", "1MB"]));
    assert!(rig.logged("changed unseen by: select sneaky(?)"));
}

#[test]
fn a_database_and_a_user_choose_for_themselves() {
    for (file, databases, looks) in [
        ("session_audit_sample = 0", "app = host=pg session_audit_sample=1", true),
        ("session_audit_sample = 1", "app = host=pg session_audit_sample=0", false),
        ("session_audit_sample = 1\nsession_state = pgbouncer", "app = host=pg", false),
    ] {
        let mut rig = Rig::with(file, databases, 1);
        let one = rig.client("alice");
        let server = rig.dialed();
        run(&mut rig, one, server, "select 1");
        assert_eq!(rig.gets(server).len(), usize::from(looks), "{file}, {databases}");
    }
}

#[test]
fn a_pin_that_lasts_is_logged_once() {
    let mut rig = Rig::new("pin_warn_after = 60\nsession_audit_sample = 0");
    let one = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, one, server, "CREATE TEMP TABLE t (a int)");
    rig.gets(server);
    rig.send(server, &be::answer(&[&["t", "", ""]]));
    let lines = |rig: &Rig| rig.logged_times("has kept its server for");
    rig.pass_us(59_000_000);
    assert_eq!(lines(&rig), 0);
    rig.pass_us(2_000_000);
    rig.pass_us(60_000_000);
    assert_eq!(lines(&rig), 1);
    assert!(rig.logged("(pin_warn_after), for: temporary objects"));
}
