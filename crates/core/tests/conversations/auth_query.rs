//! `auth_query`: which server is asked, what it gets to see, and what becomes of the client.

use pgweir_auth::{PlainPassword, ScramSecret};
use pgweir_core::driver::Closed;

use crate::rig::{End, Rig, be, fe, greeting};

const MAIN: &str = "auth_type = plain\nauth_user = asker\nauth_query = select n, p from f($1)";

/// A stranger of `app`, and the server that is asked for it: logged in, with the question at hand.
fn stranger(rig: &mut Rig, user: &str) -> (End, End) {
    let client = rig.knock(user, "app");
    let server = rig.dialed();
    let startup = rig.connect(server);
    assert!(startup.contains("user asker") && !startup.contains(user), "{startup}");
    rig.send(server, &greeting());
    (client, server)
}

fn asked() -> [String; 4] {
    ["Parse  select n, p from f($1)", "Bind ", "Execute", "Sync"].map(str::to_owned)
}

fn answer(rows: &[Vec<u8>]) -> Vec<u8> {
    let rows = rows.concat();
    let tag = be::complete("SELECT");
    [be::parse_complete(), be::bind_complete(), rows, tag, be::ready('I')].concat()
}

/// A row of these values; `-` is NULL.
fn row(values: &[&str]) -> Vec<u8> {
    be::row_values(
        &values.iter().map(|value| (*value != "-").then_some(value.as_bytes())).collect::<Vec<_>>(),
    )
}

#[test]
fn a_user_that_is_not_listed_is_looked_up() {
    let mut rig = Rig::new(MAIN);
    let (client, server) = stranger(&mut rig, "dora");
    assert_eq!(rig.gets(server), asked());
    rig.gets_nothing(client);
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    assert_eq!(rig.gets(client), ["Auth 3"]);
    rig.send(client, &fe::password("doras"));
    let own = rig.dialed();
    assert!(rig.connect(own).contains("user dora"));
    rig.send(own, &be::auth_cleartext());
    assert_eq!(rig.raw(own), fe::password("doras"), "its servers are told what was found");
    rig.send(own, &greeting());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

#[test]
fn physical_replication_names_no_database_that_could_be_asked() {
    for (main, asked) in [(MAIN.to_owned(), "postgres"), (format!("{MAIN}\nauth_dbname = authdb"), "authdb")]
    {
        let mut rig = Rig::with(&main, "* = host=pg", 1);
        let client = rig.accept();
        let params = [("user", "dora"), ("database", "replication"), ("replication", "true")];
        rig.send(client, &fe::startup(&params));
        let server = rig.dialed();
        assert!(rig.connect(server).contains(&format!("database {asked} ")));
    }
}

#[test]
fn a_disabled_database_is_not_asked() {
    for main in [format!("{MAIN}\nauth_dbname = authdb"), MAIN.to_owned()] {
        let asked = if main.contains("authdb") { "authdb" } else { "app" };
        let mut rig = Rig::with(&main, "app = host=pg\nauthdb = host=pg", 1);
        let console = rig.accept();
        rig.send(console, &fe::startup(&[("user", "admin"), ("database", "pgbouncer")]));
        rig.send(console, &fe::password("admins"));
        rig.gets(console);
        rig.command(console, &format!("DISABLE {asked}"));
        let client = rig.knock("dora", "app");
        let told = [format!("FATAL 55000 authentication database \"{asked}\" is disabled")];
        assert_eq!(rig.gets(client), told);
        assert_eq!(rig.new_dials(), 0);
        assert_eq!(rig.shared.clients.taken(), 0);
        let listed = rig.knock("alice", "app");
        assert_eq!(rig.gets(listed), ["Auth 3"], "it needs nobody");
        rig.command(console, &format!("ENABLE {asked}"));
        rig.knock("dora", "app");
        assert_eq!(rig.new_dials(), 1);
    }
}

#[test]
fn a_login_waits_for_its_question_no_longer_than_a_client_would() {
    let mut rig = Rig::new(&format!("{MAIN}\nquery_wait_timeout = 3\nserver_login_retry = 1"));
    let client = rig.knock("dora", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.pass_s(2);
    rig.gets_nothing(client);
    rig.pass_s(2);
    assert_eq!(rig.gets(client), ["FATAL 57P03 query_wait_timeout"]);
    assert!(rig.is_closed(client));
    assert_eq!(rig.shared.clients.taken(), 0);
    rig.send(server, &greeting());
    assert_eq!(rig.gets(server), [""; 0], "its question is forgotten");
}

#[test]
fn listed_users_need_no_query() {
    let mut rig = Rig::new(MAIN);
    let client = rig.knock("alice", "app");
    assert_eq!(rig.gets(client), ["Auth 3"]);
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn the_question_carries_the_name_and_nothing_else_of_the_client() {
    let mut rig = Rig::new(MAIN);
    let client = rig.accept();
    let evil = [
        ("user", "x'; drop table t; --"),
        ("database", "app"),
        ("application_name", "evil"),
        ("DateStyle", "German"),
        ("options", "-c IntervalStyle=sql_standard"),
    ];
    rig.send(client, &fe::startup(&evil));
    let server = rig.dialed();
    let startup = rig.connect(server);
    rig.send(server, &greeting());
    let sent = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    for word in ["evil", "German", "sql_standard"] {
        assert!(!startup.contains(word) && !sent.contains(word), "{word} in {startup} {sent}");
    }
    assert_eq!(sent.matches("drop table").count(), 1, "once, as the parameter's value: {sent}");
    assert!(sent.find("drop table") > sent.find("f($1)"), "not in the statement's text");
}

#[test]
fn a_user_that_does_not_exist_is_told_what_a_wrong_password_is_told() {
    let mut rig = Rig::new(MAIN);
    let (client, server) = stranger(&mut rig, "dora");
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    rig.gets(client);
    rig.send(client, &fe::password("wrong"));
    let wrong = rig.raw(client);
    let nobody = rig.knock("nobody", "app");
    rig.gets(server);
    rig.send(server, &answer(&[]));
    assert_eq!(rig.gets(nobody), ["Auth 3"], "asked like everybody");
    rig.send(nobody, &fe::password("wrong"));
    assert_eq!(rig.raw(nobody), wrong);
    assert!(rig.is_closed(nobody) && rig.logged("closing because: no such user"));
    assert_eq!((rig.shared.clients.taken(), rig.new_dials()), (0, 0));
}

#[test]
fn no_client_gets_in_as_the_user_that_asks() {
    for method in ["plain", "md5", "scram-sha-256", "trust"] {
        let mut rig = Rig::new(&MAIN.replace("plain", method));
        let (client, server) = stranger(&mut rig, "nobody");
        rig.send(server, &answer(&[]));
        if method != "trust" {
            rig.send(client, &fe::password("md50123"));
        }
        assert!(rig.is_closed(client), "{method}");
        assert_eq!(rig.new_dials(), 0);
    }
}

#[test]
fn null_matches_nothing_and_trust_knows_the_user() {
    let mut rig = Rig::new(MAIN);
    let (client, server) = stranger(&mut rig, "dora");
    rig.send(server, &answer(&[row(&["dora", "-"])]));
    rig.send(client, &fe::password("-"));
    assert!(rig.is_closed(client));
    let mut rig = Rig::new(&MAIN.replace("plain", "trust"));
    let (_, server) = stranger(&mut rig, "dora");
    rig.send(server, &answer(&[row(&["dora", "-"])]));
    let own = rig.dialed();
    assert!(rig.connect(own).contains("user dora"));
}

#[test]
fn answers_of_another_form_are_the_administrators_fault() {
    let error = [be::error("42883", "function f does not exist"), be::ready('I')].concat();
    for answer in [
        answer(&[row(&["dora", "doras", "more"])]),
        answer(&[row(&["dora"])]),
        answer(&[row(&["-", "doras"])]),
        error,
    ] {
        let mut rig = Rig::new(MAIN);
        let (client, server) = stranger(&mut rig, "dora");
        rig.send(server, &answer);
        assert_eq!(rig.gets(client), ["FATAL F0000 bouncer config error"]);
        assert!(rig.is_closed(client) && !rig.is_closed(server));
        assert_eq!(rig.shared.clients.taken(), 0);
        assert!(!rig.logged("doras"), "no secret in the log");
    }
}

#[test]
fn a_row_may_come_in_pieces_but_not_without_end() {
    let mut rig = Rig::new(MAIN);
    let (client, server) = stranger(&mut rig, "dora");
    rig.send_bytewise(server, &answer(&[row(&["dora", "doras"])]));
    assert_eq!(rig.gets(client), ["Auth 3"]);
    let mut rig = Rig::new(MAIN);
    let (client, server) = stranger(&mut rig, "dora");
    rig.send(server, &answer(&[row(&["dora", &"s".repeat(70_000)])]));
    assert!(rig.is_closed(server) && rig.is_closed(client));
}

#[test]
fn whatever_becomes_of_the_server_the_client_is_told() {
    let mut rig = Rig::new(MAIN);
    let (client, server) = stranger(&mut rig, "dora");
    rig.end(server, Closed::Eof);
    assert_eq!(rig.gets(client), ["FATAL 08001 the password could not be checked"]);
    assert!(rig.is_closed(client));
    let mut rig = Rig::new(MAIN);
    let client = rig.knock("dora", "app");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::fatal("28P01", "password authentication failed for user \"asker\""));
    assert_eq!(
        rig.gets(client),
        ["FATAL 08001 the password could not be checked"],
        "it is the first failure"
    );
    let next = rig.knock("dora", "app");
    let told = rig.gets(next);
    assert!(
        told[0].starts_with("FATAL 08001 server login has been failing"),
        "{told:?}: nor is it kept waiting"
    );
    assert_eq!(rig.shared.clients.taken(), 0);
}

#[test]
fn a_client_that_leaves_leaves_no_question_behind() {
    let mut rig = Rig::new(&format!("{MAIN}\ndefault_pool_size = 1"));
    let (first, server) = stranger(&mut rig, "dora");
    assert_eq!(rig.gets(server), asked());
    let second = rig.knock("emma", "app");
    rig.eof(second);
    rig.eof(first);
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    rig.gets_nothing(server);
    assert_eq!(rig.shared.clients.taken(), 0);
    let third = rig.knock("fran", "app");
    assert_eq!(rig.gets(server), asked(), "one question for one client");
    rig.send(server, &answer(&[row(&["fran", "frans"])]));
    assert_eq!(rig.gets(third), ["Auth 3"]);
}

#[test]
fn questions_wait_for_a_server_that_has_to_be_checked() {
    let mut rig = Rig::new(&format!("{MAIN}\nserver_check_delay = 1"));
    let (client, server) = stranger(&mut rig, "dora");
    rig.gets(server);
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    rig.eof(client);
    rig.pass_s(3);
    let next = rig.knock("emma", "app");
    assert_eq!(rig.gets(server), ["Query "], "the check");
    rig.send(server, &[be::empty_query(), be::ready('I')].concat());
    assert_eq!(rig.gets(server), asked());
    rig.send(server, &answer(&[row(&["emma", "emmas"])]));
    assert_eq!(rig.gets(next), ["Auth 3"]);
}

#[test]
fn the_database_says_who_asks_what_and_where() {
    let databases =
        "app = host=pg auth_user=own auth_query='select 1, $1' auth_dbname=users\nusers = host=there";
    let mut rig = Rig::with(MAIN, databases, 1);
    rig.knock("dora", "app");
    let server = rig.dialed();
    let startup = rig.connect(server);
    assert!(startup.contains("user own") && startup.contains("database users"), "{startup}");
    rig.send(server, &greeting());
    assert_eq!(rig.gets(server)[0], "Parse  select 1, $1");
}

#[test]
fn the_password_of_a_forced_user_is_not_the_askers() {
    let mut rig = Rig::with(MAIN, "app = host=pg user=forced password=secret", 1);
    let client = rig.knock("dora", "app");
    let server = rig.dialed();
    assert!(rig.connect(server).contains("user asker"));
    rig.send(server, &be::auth_cleartext());
    assert!(!String::from_utf8_lossy(&rig.raw(server)).contains("secret"));
    assert!(rig.is_closed(server) && rig.is_closed(client));
}

#[test]
fn the_name_that_comes_back_counts() {
    let mut rig = Rig::new(MAIN);
    let (client, server) = stranger(&mut rig, "DORA");
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    rig.send(client, &fe::password("doras"));
    let own = rig.dialed();
    assert!(rig.connect(own).contains("user dora"));
}

#[test]
fn a_question_crosses_workers() {
    let mut rig = Rig::with(&format!("{MAIN}\nauth_dbname = users"), "app = host=pg\nusers = host=there", 2);
    // The asker's pool lives on worker 0.
    let first = rig.knock("dora", "app");
    let server = rig.dialed();
    rig.greet(server);
    rig.gets(server);
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    assert_eq!(rig.gets(first), ["Auth 3"]);
    let other = rig.accept_at(1);
    rig.send(other, &fe::startup(&[("user", "emma"), ("database", "app")]));
    assert_eq!(rig.gets(server), asked());
    let gone = rig.accept_at(1);
    rig.send(gone, &fe::startup(&[("user", "fran"), ("database", "app")]));
    let second_server = rig.dialed();
    rig.eof(gone);
    rig.send(server, &answer(&[row(&["emma", "emmas"])]));
    assert_eq!(rig.gets(other), ["Auth 3"]);
    rig.greet(second_server);
    rig.gets_nothing(second_server);
}

#[test]
fn what_cannot_be_asked_fails_like_a_wrong_password() {
    // No such database, and the console: there is nothing to ask without auth_dbname.
    for database in ["nowhere", "pgbouncer"] {
        let mut rig = Rig::new(MAIN);
        let client = rig.knock("dora", database);
        assert_eq!(rig.gets(client), ["Auth 3"]);
        rig.send(client, &fe::password("doras"));
        assert!(rig.gets(client)[0].starts_with("FATAL 28P01 password authentication failed"));
    }
    let mut rig = Rig::new(&format!("{MAIN}\nauth_dbname = missing"));
    let client = rig.knock("dora", "app");
    assert_eq!(rig.gets(client), ["FATAL F0000 bouncer config error"]);
    assert!(rig.logged("authentication database \"missing\" is not configured."));
}

#[test]
fn a_paused_database_answers_later_and_a_stopping_pooler_not_at_all() {
    let mut rig = Rig::new(MAIN);
    let admin = rig.knock("admin", "pgbouncer");
    rig.send(admin, &fe::password("admins"));
    rig.gets(admin);
    rig.command(admin, "PAUSE app");
    let client = rig.knock("dora", "app");
    assert_eq!(rig.new_dials(), 0);
    assert_eq!(rig.pool(admin, "app,asker")[3], "1", "it waits");
    rig.command(admin, "RESUME app");
    rig.pass_s(1);
    let server = rig.dialed();
    rig.greet(server);
    assert_eq!(rig.gets(server), asked());
    rig.command(admin, "SHUTDOWN WAIT_FOR_SERVERS");
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    assert_eq!(rig.gets(client), ["Auth 3"], "an answer on its way is not lost");
    let late = rig.knock("emma", "app");
    assert_eq!(rig.gets(late), ["FATAL 57P01 server shutting down"]);
}

#[test]
fn a_client_without_a_password_leaves_the_one_that_another_gave() {
    let doras = ScramSecret::derive(&PlainPassword::new("doras"), b"salt", 2).expect("2 are computed");
    let found = answer(&[row(&["dora", &doras.format()])]);
    let mut rig = Rig::new(MAIN);
    let main = MAIN.replace("auth_type = plain\n", "");
    rig.reload_access(&main, "host all all all password\nlocal all all trust\n", "");
    let (client, asker) = stranger(&mut rig, "dora");
    rig.send(asker, &found);
    rig.send(client, &fe::password("doras"));
    let server = rig.dialed();
    rig.greet(server);
    rig.end(server, Closed::Eof);
    rig.gets(asker);
    let local = rig.accept_unix(1000);
    rig.send(local, &fe::startup(&[("user", "dora"), ("database", "app")]));
    assert_eq!(rig.gets(asker), asked());
    rig.send(asker, &found);
    assert_eq!(rig.gets(local).last().map(String::as_str), Some("Ready I"));
    rig.send(local, &fe::query("select 1"));
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::auth_cleartext());
    assert_eq!(rig.raw(server), fe::password("doras"), "the SCRAM secret that was found opens nothing");
}

#[test]
fn a_database_that_is_asked_is_in_use() {
    let mut rig = Rig::with(&format!("{MAIN}\nautodb_idle_timeout = 10"), "* = host=pg", 1);
    let (client, server) = stranger(&mut rig, "dora");
    rig.gets(server);
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    rig.eof(client);
    rig.pass_s(8);
    let next = rig.knock("emma", "app");
    assert_eq!(rig.gets(server), asked());
    rig.pass_s(4);
    rig.send(server, &answer(&[row(&["emma", "emmas"])]));
    assert_eq!(rig.gets(next), ["Auth 3"], "12 seconds after the pool was made, 4 after it was last asked");
    rig.pass_s(12);
    assert!(rig.is_closed(server), "now it is idle");
}

#[test]
fn databases_that_strangers_make_up_are_soon_forgotten() {
    let mut rig = Rig::with(MAIN, "* = host=pg", 1);
    let admin = rig.knock("admin", "pgbouncer");
    rig.send(admin, &fe::password("admins"));
    rig.gets(admin);
    let pools = |rig: &mut Rig| rig.command(admin, "SHOW POOLS").join("\n").matches("made_up").count();
    let client = rig.knock("dora", "made_up");
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::fatal("3D000", "database \"made_up\" does not exist"));
    assert!(rig.is_closed(client));
    assert_eq!(pools(&mut rig), 1, "for a moment it is known that it fails");
    rig.pass_s(16);
    assert_eq!(pools(&mut rig), 0);
}

#[test]
fn what_a_client_sent_early_waits_for_the_answer() {
    let mut rig = Rig::new(MAIN);
    let client = rig.accept();
    let early = [fe::startup(&[("user", "dora"), ("database", "app")]), fe::password("doras")].concat();
    rig.send(client, &early);
    let server = rig.dialed();
    rig.greet(server);
    rig.gets(server);
    rig.send(server, &answer(&[row(&["dora", "doras"])]));
    assert_eq!(rig.gets(client)[0], "Auth 3");
    let own = rig.dialed();
    assert!(rig.connect(own).contains("user dora"), "its password was read");
}
