//! `currval` and `lastval` in a later transaction than the one that drew the value.

use crate::rig::{End, Rig, be, fe};

fn done(rig: &mut Rig, client: End, server: End) {
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
}

/// A statement that the server gets as it is.
fn run(rig: &mut Rig, client: End, server: End, text: &str) {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    done(rig, client, server);
}

const INSERT: &str = "insert into t values (1)";
const ASK: &str = "select lastval()";
const DISCARD: &str = "Query DISCARD SEQUENCES";

fn discarded() -> Vec<u8> {
    [be::complete("DISCARD SEQUENCES"), be::ready('I')].concat()
}

/// A client that may ask draws on a server that other clients have used.
fn draw(rig: &mut Rig, client: End, server: End) {
    rig.send(client, &fe::query(INSERT));
    assert_eq!(rig.gets(server), [DISCARD, "Query insert into t values (1)"]);
    rig.send(server, &discarded());
    done(rig, client, server);
}

/// A statement in a transaction.
fn run_open(rig: &mut Rig, client: End, server: End, text: &str) {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    rig.send(server, &[be::complete("OK"), be::ready('T')].concat());
    rig.gets(client);
}

fn discard_replayed() -> Vec<u8> {
    let tags = ["BEGIN", "DISCARD SEQUENCES", "COMMIT"];
    tags.iter()
        .flat_map(|tag| [be::parse_complete(), be::bind_complete(), be::complete(tag)].concat())
        .collect()
}

fn undefined() -> Vec<u8> {
    [be::error("55000", "lastval is not yet defined in this session"), be::ready('I')].concat()
}

/// Two servers, of which the first is the one that is given out first, and their clients.
fn two_servers(settings: &str) -> (Rig, [End; 2], [End; 2]) {
    let mut rig = Rig::new(&format!("default_pool_size = 2\nsession_audit_sample = 0\n{settings}"));
    let clients = [rig.client("alice"), rig.client("alice")];
    let first = rig.dialed();
    for client in clients {
        rig.send(client, &fe::query("begin"));
    }
    let second = rig.dialed();
    rig.greet(second);
    for (client, server) in [(clients[1], second), (clients[0], first)] {
        assert_eq!(rig.gets(server), ["Query begin"]);
        rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
        rig.gets(client);
        run_in_block(&mut rig, client, server);
    }
    (rig, clients, [first, second])
}

fn run_in_block(rig: &mut Rig, client: End, server: End) {
    rig.send(client, &fe::query("rollback"));
    assert_eq!(rig.gets(server), ["Query rollback"]);
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    rig.gets(client);
}

#[test]
fn a_server_waits_for_the_client_that_drew_on_it() {
    let (mut rig, [one, two], [first, second]) = two_servers("");
    run(&mut rig, one, first, INSERT);
    // The other client gets the other server, although this one came back last.
    run(&mut rig, two, second, "select 2");
    run(&mut rig, one, first, ASK);
}

#[test]
fn what_a_client_drew_last_is_its_own_although_others_used_the_server_before() {
    let (mut rig, [one, two], [first, second]) = two_servers("");
    run(&mut rig, two, first, "select 2");
    draw(&mut rig, one, first);
    run(&mut rig, two, second, "select 2");
    run(&mut rig, one, first, ASK);
    // It is known to ask from here on: that must not discard its own value.
    run(&mut rig, one, first, ASK);
}

/// One of two clients on one server asks for what it drew, and the other one was there in the meantime:
/// values that the other one drew are discarded.
fn asking_after_another() -> (Rig, End, End) {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, INSERT);
    run(&mut rig, two, server, "select 2");
    rig.send(one, &fe::query(ASK));
    assert_eq!(rig.gets(server), [DISCARD, "Query select lastval()"]);
    (rig, one, server)
}

#[test]
fn without_another_server_no_client_waits_for_one_that_never_asked() {
    let (mut rig, one, server) = asking_after_another();
    rig.send(server, &[discarded(), undefined()].concat());
    let told = rig.gets(one);
    assert!(told[0].starts_with("ERROR 55000 lastval is not yet defined in this session"), "{told:?}");
    assert_eq!(told.last().map(String::as_str), Some("Ready I"));
}

#[test]
fn a_server_that_wants_data_where_drawn_values_are_discarded_is_given_up() {
    let (mut rig, one, server) = asking_after_another();
    rig.send(server, &be::copy_in());
    assert!(rig.is_closed(server));
    let told = rig.gets(one);
    assert!(told[0].starts_with("FATAL"), "it is not left waiting: {told:?}");
}

#[test]
fn nothing_is_put_before_a_parse_that_fails_in_any_case() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, two, server, "select 2");
    run_open(&mut rig, one, server, "begin read only");
    rig.send(one, &fe::query("select 1/0"));
    rig.gets(server);
    rig.send(server, &[be::error("22012", "division by zero"), be::ready('E')].concat());
    rig.gets(one);
    rig.send(one, &[fe::parse("", INSERT), fe::sync()].concat());
    // It would be skipped after another error, and the unnamed statement before it would stay.
    assert_eq!(rig.gets(server), [format!("Parse  {INSERT}"), "Sync".to_owned()]);
}

#[test]
fn a_server_is_kept_for_a_client_that_is_known_to_ask_and_no_longer_than_said() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0\nsequence_affinity_ms = 200");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, INSERT);
    rig.send(one, &fe::query(ASK));
    rig.gets(server);
    done(&mut rig, one, server);
    run(&mut rig, one, server, INSERT);
    rig.send(two, &fe::query("select 2"));
    rig.gets_nothing(server);
    run(&mut rig, one, server, ASK);
    assert_eq!(rig.gets(server), ["Query select 2"], "it asked: nothing keeps the server any more");
    done(&mut rig, two, server);
    // Other clients were there in the meantime: what it draws next must not be mixed with theirs.
    rig.send(one, &fe::query(INSERT));
    let got = rig.gets(server);
    assert_eq!(got, fe::shown_replay(&["DISCARD SEQUENCES"], &[&format!("Query {INSERT}")]));
    rig.send(server, &discard_replayed());
    done(&mut rig, one, server);
    rig.send(two, &fe::query("select 2"));
    rig.pass_us(150_000);
    rig.gets_nothing(server);
    rig.pass_us(60_000);
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_client_that_leaves_is_not_waited_for() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0\nsequence_affinity_ms = 5000");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, INSERT);
    run(&mut rig, one, server, ASK);
    run(&mut rig, one, server, INSERT);
    rig.send(two, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.eof(one);
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn a_client_like_one_that_asked_is_known() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    let (asker, alike, other) = (rig.client("alice"), rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, asker, server, ASK);
    // It never asked itself, and gets a server that cannot tell it what other clients drew.
    rig.send(alike, &fe::query(INSERT));
    let got = rig.gets(server);
    assert_eq!(got, fe::shown_replay(&["DISCARD SEQUENCES"], &[&format!("Query {INSERT}")]));
    rig.send(server, &discard_replayed());
    done(&mut rig, alike, server);
    rig.send(other, &fe::query("select 2"));
    rig.gets_nothing(server);
    run(&mut rig, alike, server, ASK);
    assert_eq!(rig.gets(server), ["Query select 2"]);
    // What takes part in nothing of this costs nothing.
    done(&mut rig, other, server);
    run(&mut rig, asker, server, "select 3");
}

#[test]
fn a_client_that_may_ask_draws_on_a_clear_server_and_pays_for_it_no_longer_than_it_may() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    for _ in 0..3 {
        run(&mut rig, two, server, "select 2");
        draw(&mut rig, one, server);
        // No other client was there between.
        run(&mut rig, one, server, "select 1");
    }
    run(&mut rig, two, server, "select 2");
    run(&mut rig, one, server, INSERT);
    run(&mut rig, one, server, "with a as (insert into t values (1)) select 1");
}

/// A client that drew three times without asking, in a transaction in which it may have drawn again.
fn late_asker() -> (Rig, End, End) {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    for _ in 0..3 {
        run(&mut rig, one, server, INSERT);
    }
    run(&mut rig, one, server, INSERT);
    run(&mut rig, two, server, "select 2");
    for text in ["begin", INSERT] {
        run_open(&mut rig, one, server, text);
    }
    (rig, one, server)
}

#[test]
fn what_a_transaction_did_not_draw_is_discarded_before_its_question() {
    let (mut rig, one, server) = late_asker();
    rig.send(one, &fe::query(ASK));
    let got = rig.gets(server);
    assert!(got[0].starts_with("Query (") && got[0].ends_with("bytes)"), "{got:?}");
    assert_eq!(got[1..], [format!("Query {ASK}")]);
    let told = [
        be::complete("DO"),
        be::ready('T'),
        be::error("55000", "lastval is not yet defined"),
        be::ready('E'),
    ];
    rig.send(server, &told.concat());
    assert_eq!(rig.gets(one), ["ERROR 55000 lastval is not yet defined", "Ready E"]);
}

#[test]
fn what_cannot_be_told_is_discarded_before_a_question() {
    let (mut rig, one, server) = late_asker();
    let text = "select currval(s) from sequences";
    rig.send(one, &fe::query(text));
    assert_eq!(rig.gets(server), [DISCARD.to_owned(), format!("Query {text}")]);
}

#[test]
fn what_failed_to_be_discarded_is_discarded_the_next_time() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, two, server, INSERT);
    for text in ["begin", "savepoint a"] {
        run_open(&mut rig, one, server, text);
    }
    let failing = [fe::parse("", "x"), fe::bind(""), fe::execute(), fe::sync()].concat();
    let asking = [fe::parse("", ASK), fe::bind(""), fe::execute(), fe::sync()].concat();
    rig.send(one, &[failing, asking].concat());
    rig.gets(server);
    let failed = be::error("25P02", "current transaction is aborted");
    rig.send(server, &[be::error("42601", "x"), be::ready('E'), failed, be::ready('E')].concat());
    rig.gets(one);
    run_open(&mut rig, one, server, "rollback to a");
    rig.send(one, &fe::query(ASK));
    assert_eq!(rig.gets(server), [DISCARD.to_owned(), format!("Query {ASK}")]);
}

#[test]
fn a_question_inside_of_a_block_or_a_prepared_statement_is_one() {
    for text in ["do $$begin perform lastval(); end$$", "call p((select currval('s')))"] {
        let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
        let (one, two) = (rig.client("alice"), rig.client("alice"));
        let server = rig.dialed();
        run(&mut rig, two, server, INSERT);
        rig.send(one, &fe::query(text));
        assert_eq!(rig.gets(server)[..2], [DISCARD.to_owned(), format!("Query {text}")]);
    }
}

#[test]
fn in_a_transaction_that_drew_nothing_strangers_values_go_first() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, two, server, INSERT);
    rig.send(one, &fe::query("begin"));
    rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.gets(one);
    rig.gets(server);
    // Also in the extended protocol, in which a group may be open: its error is the client's.
    let group = [fe::parse("", ASK), fe::bind(""), fe::execute(), fe::sync()].concat();
    rig.send(one, &group);
    let got = rig.gets(server);
    assert_eq!(
        &got[..6],
        [
            "Close S PGWEIR_ASIDE",
            "Parse PGWEIR_ASIDE DISCARD SEQUENCES",
            "Bind PGWEIR_ASIDE",
            "Execute",
            "Close P PGWEIR_ASIDE",
            "Close S PGWEIR_ASIDE",
        ]
    );
    assert_eq!(got.len(), 10, "{got:?}");
}

#[test]
fn with_pin_a_client_keeps_its_server_until_it_discards_what_it_drew() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0\nsequence_affinity = pin");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, INSERT);
    rig.send(two, &fe::query("select 2"));
    run(&mut rig, one, server, ASK);
    rig.gets_nothing(server);
    let console = rig.console();
    assert!(rig.command(console, "SHOW CLIENTS_EXTENDED").iter().any(|row| row.contains(",sequences,")));
    rig.send(one, &fe::query("discard sequences"));
    assert_eq!(rig.gets(server), ["Query discard sequences"]);
    rig.send(server, &discarded());
    rig.gets(one);
    let asked = rig.gets(server);
    assert!(asked.len() == 1 && asked[0].contains("bytes"), "DISCARD is followed by a question: {asked:?}");
    rig.send(server, &[be::columns(), be::complete("SELECT 0"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query select 2"]);
}

#[test]
fn with_pin_a_question_that_shows_names_does_not_wait_for_what_is_discarded() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0\nsequence_affinity = pin");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, two, server, "select 2");
    let text = "select name from pg_prepared_statements; select nextval('s'), lastval()";
    rig.send(one, &fe::query(text));
    assert_eq!(rig.gets(server), ["Close S PGWEIR_0", DISCARD, &format!("Query {text}")]);
}

#[test]
fn with_off_nothing_is_done() {
    let mut rig = Rig::new("default_pool_size = 1\nsession_audit_sample = 0\nsequence_affinity = off");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    run(&mut rig, one, server, INSERT);
    run(&mut rig, two, server, INSERT);
    run(&mut rig, one, server, ASK);
}
