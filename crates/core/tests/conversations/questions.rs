//! The settings under which pgweir asks: none of the session's own changes an answer, and none of those that a question sets is taken for
//! the session's.

use crate::rig::{End, Rig, be, fe};
use crate::sessions::run;

const ISOLATION: &str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED;";

/// What the server got, as it came.
fn raw(rig: &mut Rig, server: End) -> String {
    String::from_utf8_lossy(&rig.raw(server)).into_owned()
}

/// The client calls this, and its server is asked what its session holds.
fn asked_after(rig: &mut Rig, client: End, server: End, text: &str) -> String {
    rig.send(client, &fe::query(text));
    rig.raw(server);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    raw(rig, server)
}

#[test]
fn a_question_sets_what_it_depends_on_for_itself() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    let asked = asked_after(&mut rig, client, server, "select set_config('a.b', 'c', false)");
    assert!(
        asked.contains(&format!("{ISOLATION}SHOW statement_timeout;SHOW lock_timeout;SHOW jit;")),
        "{asked}"
    );
    for own in ["statement_timeout=0", "lock_timeout=0", "jit=off", "transaction_timeout=0"] {
        assert!(asked.contains(&format!("SET LOCAL {own};")), "{own}: {asked}");
    }
}

#[test]
fn a_question_for_a_value_does_not_set_it() {
    for name in ["jit", "statement_timeout", "lock_timeout"] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        let asked = asked_after(&mut rig, client, server, &format!("set {name} = 1"));
        assert!(
            asked.contains(ISOLATION) && asked.contains(&format!("current_setting('{name}',true)")),
            "{asked}"
        );
        assert!(!asked.contains(&format!("SET LOCAL {name}=")), "{asked}");
    }
}

#[test]
fn what_a_question_sets_is_not_the_sessions() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    asked_after(&mut rig, client, server, "select set_config('statement_timeout', '5s', false)");
    // SHOW tells the session's values; the rows tell what RESET goes back to.
    let answer = be::answer(&[
        &["5s"],
        &["0"],
        &["on"],
        &["1min"],
        &["s", "jit", "on"],
        &["s", "lock_timeout", "0"],
        &["s", "statement_timeout", "0"],
        &["s", "transaction_timeout", "60000"],
        &["s", "transaction_isolation", "read committed"],
    ]);
    rig.send(server, &answer);
    rig.gets(client);
    rig.send(other, &fe::query("select 2"));
    let sent = raw(&mut rig, server);
    assert!(sent.contains("set_config('statement_timeout',NULL,false)"), "{sent}");
    for name in ["jit", "lock_timeout", "transaction_timeout", "transaction_isolation"] {
        assert!(!sent.contains(&format!("set_config('{name}'")), "{name}: {sent}");
    }
}

#[test]
fn a_session_with_such_settings_is_left_without_them() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, other) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    for (name, value) in [("jit_above_cost", "0"), ("default_transaction_isolation", "serializable")] {
        run(&mut rig, client, server, &format!("set {name} = '{value}'"));
        rig.gets(server);
        rig.send(server, &be::answer(&[&[value]]));
        rig.gets(client);
    }
    rig.send(other, &fe::query("select 2"));
    let sent = raw(&mut rig, server);
    let [isolation, jit, query] =
        [ISOLATION, "SET LOCAL jit=off;", "SELECT pg_catalog.set_config"].map(|text| sent.find(text));
    assert!(isolation.is_some() && isolation < jit && jit < query, "{sent}");
}

#[test]
fn a_server_of_an_old_version_is_asked_as_it_is() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.knock("alice", "app");
    let server = rig.dialed();
    rig.connect(server);
    let greeting = [be::auth_ok(), be::parameter("server_version", "9.6.24"), be::key(4242), be::ready('I')];
    rig.send(server, &greeting.concat());
    rig.gets(client);
    let asked = asked_after(&mut rig, client, server, "select set_config('a.b', 'c', false)");
    assert!(asked.contains("SELECT 's', name") && !asked.contains("SET "), "{asked}");
}
