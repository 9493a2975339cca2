//! Names of settings that no list of PostgreSQL shows: they are read however they are spelled, or their client keeps its server.

use crate::rig::{End, Rig, be, fe};
use crate::sessions::{finish, run};

const AS_ALICE: &[&str] = &["s", "role", "none"];

/// One statement of ours that asks for everything, with all its bytes.
fn question(rig: &mut Rig, server: End) -> String {
    String::from_utf8_lossy(&rig.raw(server)).into_owned()
}

/// What a client left is taken back before another one gets the server.
fn is_discarded(rig: &mut Rig, client: End, server: End) {
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.eof(client);
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    finish(rig, server, "DISCARD ALL");
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_name_is_asked_for_as_postgresql_reads_it() {
    for (text, name) in [
        ("set \"tenant.id\" = 'x'", "tenant.id"),
        ("SET \"Tenant\" . /* it */ \"Id\" TO 'x'", "tenant.id"),
        ("set U&\"tenant\\002eid\" = 'x'", "tenant.id"),
        ("set session a.b.c = 'x'", "a.b.c"),
    ] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        run(&mut rig, client, server, text);
        let asked = question(&mut rig, server);
        assert!(
            asked.contains(&format!("pg_catalog.current_setting('{name}',true)"))
                || asked.contains(&format!("('m','{name}')")),
            "{asked}"
        );
        let by_name = !asked.contains("VALUES");
        rig.send(
            server,
            &if by_name { be::answer(&[&["x"]]) } else { be::answer(&[AS_ALICE, &["m", name, "x"]]) },
        );
        let other = rig.client("alice");
        rig.send(other, &fe::query("select 2"));
        let reset = format!("SELECT pg_catalog.set_config('{name}',NULL,false);");
        assert_eq!(rig.gets(server), fe::shown_replay(&[&reset], &["Query select 2"]));
    }
}

#[test]
fn values_are_read_again_in_another_encoding() {
    for (value, asks) in [("\u{e4}", true), ("a", false)] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        run(&mut rig, client, server, &format!("set a.b = '{value}'"));
        let by_name = !question(&mut rig, server).contains("VALUES");
        let said =
            if by_name { be::answer(&[&[value]]) } else { be::answer(&[AS_ALICE, &["m", "a.b", value]]) };
        rig.send(server, &said);
        rig.send(client, &fe::query("set names 'LATIN1'"));
        rig.gets(server);
        let reported = be::parameter("client_encoding", "LATIN1");
        rig.send(server, &[be::complete("SET"), reported, be::ready('I')].concat());
        let asked = rig.gets_loosely(server).concat();
        assert_eq!(asked.contains("Query"), asks, "the server sends it in LATIN1 now: {asked}");
    }
}

#[test]
fn a_client_keeps_its_server_for_a_name_that_cannot_be_known() {
    let many = (0..70).map(|number| format!("set a.n{number} = 'x'")).collect::<Vec<_>>().join("; ");
    let long = format!("select set_config('a.{}', 'x', false)", "b".repeat(200));
    for text in [
        "select set_config('a.' || 'b', 'x', false)",
        "set größe.x = 1",
        "do $$begin execute format('set %I = 1', x); end$$",
        "prepare p as select set_config($1, 'x', false)",
        &many,
        &long,
    ] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        rig.send(client, &fe::query(text));
        rig.gets(server);
        finish(&mut rig, server, "OK");
        assert_eq!(rig.gets(client), ["Complete OK", "Ready I"]);
        rig.gets(server);
        rig.send(server, &be::answer(&[AS_ALICE]));
        is_discarded(&mut rig, client, server);
    }
}

#[test]
fn a_client_that_takes_all_back_keeps_its_server_no_longer() {
    for (text, ends) in [
        ("DISCARD ALL", true),
        ("reset all", true),
        ("/* a */ discard all /* b */ ; -- c", true),
        ("reset all; set a.b = 'x'", false),
        ("begin; reset all", false),
    ] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        for text in ["select set_config('a.' || 'b', 'x', false)", text] {
            run(&mut rig, client, server, text);
            rig.gets(server);
            rig.send(server, &be::answer(&[AS_ALICE]));
        }
        let other = rig.client("alice");
        rig.send(other, &fe::query("select 2"));
        match ends {
            true => assert_eq!(rig.gets(server), ["Query select 2"], "{text}"),
            false => rig.gets_nothing(server),
        }
    }
}

#[test]
fn discard_all_by_the_extended_protocol_takes_all_back_once_it_succeeds() {
    for (answer, ends) in [
        (be::complete("DISCARD ALL"), true),
        (be::error("25001", "DISCARD ALL cannot run inside a transaction block"), false),
    ] {
        let mut rig = Rig::new("default_pool_size = 1");
        let client = rig.client("alice");
        let server = rig.dialed();
        run(&mut rig, client, server, "select set_config('a.' || 'b', 'x', false)");
        rig.gets(server);
        rig.send(server, &be::answer(&[AS_ALICE]));
        let group = [fe::parse("", "DISCARD ALL"), fe::bind(""), fe::execute(), fe::sync()].concat();
        rig.send(client, &group);
        rig.gets(server);
        rig.send(
            server,
            &[be::parse_complete(), be::bind_complete(), answer.clone(), be::ready('I')].concat(),
        );
        rig.gets(server);
        rig.send(server, &be::answer(&[AS_ALICE]));
        let other = rig.client("alice");
        rig.send(other, &fe::query("select 2"));
        match ends {
            true => assert_eq!(rig.gets(server), ["Query select 2"]),
            false => rig.gets_nothing(server),
        }
    }
}

#[test]
fn a_question_for_one_client_does_not_name_what_others_made_up() {
    let mut rig = Rig::new("default_pool_size = 1\nsequence_affinity = off");
    rig.catalog = Some(vec![["g", "set_tenant", "select set_config('app.tenant', $1, false)"]]);
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, "set made.up = 'x'");
    rig.gets(server);
    rig.send(server, &be::answer(&[&["x"]]));
    rig.send(two, &fe::query("do 'begin end'"));
    let reset = "SELECT pg_catalog.set_config('made.up',NULL,false);";
    assert_eq!(rig.gets(server), fe::shown_replay(&[reset], &["Query do 'begin end'"]));
    rig.send(server, &be::replayed(1));
    finish(&mut rig, server, "DO");
    let asked = question(&mut rig, server);
    assert!(asked.contains("('n','app.tenant')") && !asked.contains("made.up"), "{asked}");
}

#[test]
fn bound_names_are_read() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    let bind = fe::bind_values("", &["App.Who", "me"]);
    let group = [fe::parse("", "select set_config($1, $2, false)"), bind, fe::execute(), fe::sync()].concat();
    rig.send(client, &group);
    rig.gets(server);
    let answers = [be::parse_complete(), be::bind_complete(), be::complete("SELECT 1"), be::ready('I')];
    rig.send(server, &answers.concat());
    let asked = question(&mut rig, server);
    assert!(asked.contains("('m','app.who')"), "{asked}");
}

#[test]
fn what_was_reset_unseen_goes_back_to_what_the_client_started_with() {
    let mut rig = Rig::new("default_pool_size = 1");
    rig.client("alice");
    let server = rig.dialed();
    let client = rig.accept();
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), ("TimeZone", "Asia/Tokyo")]));
    assert_eq!(rig.gets(server), ["Query SET TimeZone='Asia/Tokyo';"]);
    let back = [be::parameter("TimeZone", "Asia/Tokyo"), be::complete("SET"), be::ready('I')].concat();
    rig.send(server, &back);
    rig.gets(client);
    for is_lost in [true, false] {
        rig.send(client, &fe::query("do 'begin reset all; end'"));
        rig.gets(server);
        let reported = if is_lost { be::parameter("TimeZone", "UTC") } else { Vec::new() };
        rig.send(server, &[be::complete("DO"), reported, be::ready('I')].concat());
        rig.gets(client);
        rig.gets(server);
        let rows: &[&[&str]] =
            if is_lost { &[AS_ALICE] } else { &[AS_ALICE, &["s", "TimeZone", "Asia/Tokyo"]] };
        rig.send(server, &be::answer(rows));
        if is_lost {
            assert_eq!(rig.gets(server), ["Query SET TimeZone='Asia/Tokyo';"]);
            let back =
                [be::parameter("TimeZone", "Asia/Tokyo"), be::complete("SET"), be::ready('I')].concat();
            rig.send(server, &back);
            assert_eq!(rig.gets(client), ["Parameter TimeZone=Asia/Tokyo"]);
        }
        rig.gets_nothing(server);
    }
}

/// A replay sends nothing for a value that the server has from its login, so the server does not list it as set.
#[test]
fn a_value_that_the_client_set_itself_is_no_reset() {
    let mut rig = Rig::new("default_pool_size = 1");
    rig.client("alice");
    let server = rig.dialed();
    let client = rig.accept();
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app"), ("TimeZone", "Asia/Tokyo")]));
    assert_eq!(rig.gets(server), ["Query SET TimeZone='Asia/Tokyo';"]);
    let told = |value, tag| [be::parameter("TimeZone", value), be::complete(tag), be::ready('I')].concat();
    rig.send(server, &told("Asia/Tokyo", "SET"));
    rig.gets(client);
    rig.send(client, &fe::query("set timezone = 'UTC'"));
    rig.gets(server);
    rig.send(server, &told("UTC", "SET"));
    rig.gets(client);
    rig.send(client, &fe::query("do 'begin end'"));
    rig.gets(server);
    rig.send(server, &[be::complete("DO"), be::ready('I')].concat());
    rig.gets(client);
    let asked = question(&mut rig, server);
    assert!(asked.contains("pg_settings"), "{asked}");
    rig.send(server, &be::answer(&[AS_ALICE]));
    rig.gets_nothing(server);
    // A change that is rolled back leaves the server's own value, too.
    rig.send(client, &fe::query("begin; do 'begin end'; set timezone = 'Europe/Paris'"));
    rig.gets(server);
    let tags = ["BEGIN", "DO", "SET"].map(be::complete).concat();
    rig.send(server, &[tags, be::parameter("TimeZone", "Europe/Paris"), be::ready('T')].concat());
    rig.send(client, &fe::query("rollback"));
    rig.gets(server);
    rig.send(server, &[be::complete("ROLLBACK"), be::parameter("TimeZone", "UTC"), be::ready('I')].concat());
    question(&mut rig, server);
    rig.send(server, &be::answer(&[AS_ALICE]));
    rig.gets_nothing(server);
}
