//! What clients that log in are told of the servers' parameters: what the newest server reports, confirmed every few seconds.

use crate::rig::{End, LOOK, REPORTED, Rig, be, fe};

/// What a server reports at its login, with other values than usual.
fn greeting_with(other: &[(&str, &str)]) -> Vec<u8> {
    let mut out = be::auth_ok();
    let usual = REPORTED.iter().filter(|(name, _)| !other.iter().any(|(changed, _)| changed == name));
    usual.chain(other).for_each(|(name, value)| out.extend(be::parameter(name, value)));
    [out, be::key(4242), be::ready('I')].concat()
}

/// The next server that was dialed logs us in so.
fn greet_with(rig: &mut Rig, other: &[(&str, &str)]) -> End {
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &greeting_with(other));
    server
}

/// The value that a client was told at login.
fn told(messages: &[String], name: &str) -> Option<String> {
    let begin = format!("Parameter {name}=");
    messages.iter().find_map(|message| message.strip_prefix(&begin).map(str::to_owned))
}

/// A client has logged in when the pool had no server: it was told this value.
fn first_client(rig: &mut Rig, other: &[(&str, &str)]) -> (End, End) {
    let client = rig.knock("alice", "app");
    let server = greet_with(rig, other);
    rig.gets(client);
    (client, server)
}

fn is_asked(rig: &mut Rig, server: End) -> bool {
    rig.raw(server).windows(LOOK.len()).any(|part| part == LOOK)
}

#[test]
fn a_promotion_is_told_to_the_next_client_that_logs_in() {
    let mut rig = Rig::new("");
    rig.look = None;
    let (_, server) = first_client(&mut rig, &[("in_hot_standby", "on")]);
    rig.pass_s(4);
    let client = rig.knock("alice", "app");
    rig.gets_nothing(client);
    assert!(is_asked(&mut rig, server), "no statement was ever sent to it");
    let mut answer = be::look(&[]);
    let at = answer.len() - be::ready('I').len();
    answer.splice(at..at, be::parameter("in_hot_standby", "off"));
    rig.send(server, &answer);
    assert_eq!(told(&rig.gets(client), "in_hot_standby").as_deref(), Some("off"));
    let client = rig.client("alice");
    rig.gets_nothing(client);
    assert!(!is_asked(&mut rig, server), "it has just said so");
}

#[test]
fn the_newest_server_says_what_clients_are_told() {
    let mut rig = Rig::new("");
    let (one, first) = first_client(&mut rig, &[("default_transaction_read_only", "off")]);
    rig.send(one, &fe::query("select 1"));
    rig.gets(first);
    let two = rig.client("alice");
    rig.send(two, &fe::query("select 2"));
    let changed = [("default_transaction_read_only", "on"), ("TimeZone", "Europe/Berlin")];
    let second = greet_with(&mut rig, &changed);
    let replay = fe::shown_replay(&["SET TimeZone='UTC';"], &["Query select 2"]);
    assert_eq!(rig.gets(second), replay, "what a client was told before is its own");
    let client = rig.knock("alice", "app");
    let messages = rig.gets(client);
    assert_eq!(told(&messages, "default_transaction_read_only").as_deref(), Some("on"));
    assert_eq!(told(&messages, "TimeZone").as_deref(), Some("Europe/Berlin"));
}

#[test]
fn a_changed_configuration_is_told_by_a_new_server() {
    let mut rig = Rig::new("");
    rig.look = Some(vec![["c", "TimeZone", "UTC"]]);
    let (_, server) = first_client(&mut rig, &[]);
    rig.pass_s(4);
    let client = rig.client("alice");
    rig.gets_nothing(client);
    assert!(!rig.is_closed(server), "nothing has changed");
    rig.pass_s(4);
    rig.look = Some(vec![["c", "TimeZone", "europe/berlin"]]);
    let (client, other) = (rig.knock("alice", "app"), rig.accept());
    rig.send(other, &fe::startup(&[("user", "alice"), ("database", "app"), ("application_name", "x")]));
    assert!(rig.is_closed(server), "a new one tells how PostgreSQL spells it");
    rig.gets_nothing(client);
    greet_with(&mut rig, &[("TimeZone", "Europe/Berlin")]);
    for client in [client, other] {
        assert_eq!(told(&rig.gets(client), "TimeZone").as_deref(), Some("Europe/Berlin"));
    }
    rig.pass_s(4);
    rig.client("alice");
    assert_eq!(rig.new_dials(), 0, "a change is followed once");
}

#[test]
fn what_startup_parameters_lead_to_is_asked_again_after_a_change() {
    let mut rig = Rig::new("");
    let (busy, first) = first_client(&mut rig, &[]);
    let asks = [("user", "alice"), ("database", "app"), ("DateStyle", "German")];
    let check = |rig: &mut Rig, server, zone| {
        let client = rig.accept();
        rig.send(client, &fe::startup(&asks));
        if rig.peek(client).is_empty() {
            let reported =
                [be::parameter("DateStyle", "German, DMY"), be::parameter("TimeZone", zone)].concat();
            rig.send(server, &[reported, be::complete("SET"), be::ready('I')].concat());
        }
        told(&rig.gets(client), "TimeZone")
    };
    assert_eq!(check(&mut rig, first, "UTC").as_deref(), Some("UTC"));
    rig.gets(first);
    rig.send(busy, &fe::query("select 1"));
    let two = rig.client("alice");
    rig.send(two, &fe::query("select 2"));
    let second = greet_with(&mut rig, &[("TimeZone", "Europe/Berlin")]);
    rig.send(second, &be::replayed(1));
    rig.send(second, &[be::complete("SELECT 0"), be::parameter("TimeZone", "UTC"), be::ready('I')].concat());
    rig.gets(second);
    let zone = check(&mut rig, second, "Europe/Berlin");
    assert_eq!(zone.as_deref(), Some("Europe/Berlin"), "as clients without them are told");
}

#[test]
fn servers_from_before_a_change_of_the_database_are_closed() {
    let mut rig = Rig::new("");
    let (one, first) = first_client(&mut rig, &[]);
    rig.send(one, &fe::query("select 1"));
    let two = rig.client("alice");
    rig.send(two, &fe::query("select 2"));
    let second = greet_with(&mut rig, &[]);
    rig.send(second, &[be::complete("SELECT 0"), be::ready('I')].concat());
    rig.pass_s(4);
    rig.client("alice");
    rig.pass_s(4);
    rig.look = Some(vec![["d", "default_transaction_read_only", "on"]]);
    let client = rig.knock("alice", "app");
    assert!(rig.is_closed(second), "it was asked");
    greet_with(&mut rig, &[("default_transaction_read_only", "on")]);
    assert_eq!(told(&rig.gets(client), "default_transaction_read_only").as_deref(), Some("on"));
    assert!(!rig.is_closed(first), "its client's statement goes on");
    rig.send(first, &[be::complete("SELECT 0"), be::ready('I')].concat());
    assert!(rig.is_closed(first), "no client is told one value and finds another");
}

#[test]
fn a_pool_without_servers_opens_one_to_know_what_to_tell() {
    let mut rig = Rig::new("server_idle_timeout = 2");
    let (_, server) = first_client(&mut rig, &[("in_hot_standby", "on")]);
    rig.pass_s(5);
    assert!(rig.is_closed(server));
    let client = rig.knock("alice", "app");
    rig.gets_nothing(client);
    greet_with(&mut rig, &[("in_hot_standby", "off")]);
    assert_eq!(told(&rig.gets(client), "in_hot_standby").as_deref(), Some("off"));
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn clients_log_in_with_what_is_known_if_no_server_can_be_had() {
    let mut rig = Rig::new("server_idle_timeout = 2");
    let (_, server) = first_client(&mut rig, &[]);
    rig.pass_s(5);
    assert!(rig.is_closed(server));
    let client = rig.knock("alice", "app");
    let dialed = rig.dialed();
    rig.refuse_dial(dialed, "Connection refused");
    rig.pass_us(1);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    let again = rig.knock("alice", "app");
    assert_eq!(rig.gets(again).last().map(String::as_str), Some("Ready I"), "at once");
}

#[test]
fn a_login_does_not_wait_for_long() {
    let mut rig = Rig::new("default_pool_size = 1");
    rig.look = None;
    let (first, server) = first_client(&mut rig, &[]);
    rig.pass_s(4);
    let client = rig.knock("alice", "app");
    rig.pass_us(500_000);
    rig.gets_nothing(client);
    rig.pass_us(600_000);
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    assert!(is_asked(&mut rig, server));
    let late = rig.knock("alice", "app");
    rig.send(server, &be::look(&[]));
    assert_eq!(rig.gets(late).last().map(String::as_str), Some("Ready I"));
    rig.send(first, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.pass_s(4);
    let client = rig.knock("alice", "app");
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"), "no server is free");
}

#[test]
fn no_statement_waits_for_a_look_unless_no_server_is_free_for_long() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (one, server) = first_client(&mut rig, &[]);
    rig.look = None;
    let two = rig.client("alice");
    let answer = [be::complete("SELECT 0"), be::ready('I')].concat();
    rig.send(one, &fe::query("select 1"));
    rig.pass_s(4);
    rig.client("alice");
    rig.send(two, &fe::query("select 2"));
    rig.gets(server);
    rig.send(server, &answer);
    assert_eq!(rig.gets(server), ["Query select 2"], "a statement goes first");
    rig.pass_s(11);
    rig.send(one, &fe::query("select 1"));
    rig.send(server, &answer);
    assert!(is_asked(&mut rig, server), "the look was due for long");
    rig.send(server, &be::look(&[]));
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn a_server_that_cannot_say_is_not_asked_at_each_login() {
    let mut rig = Rig::new("");
    rig.look = None;
    let (_, server) = first_client(&mut rig, &[]);
    rig.pass_s(4);
    let client = rig.knock("alice", "app");
    rig.gets(server);
    rig.send(server, &[be::error("42501", "permission denied"), be::ready('I')].concat());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    rig.client("alice");
    rig.gets_nothing(server);
    assert!(!rig.is_closed(server));
}

#[test]
fn the_answer_is_asked_for_in_a_session_without_settings_of_clients() {
    let mut rig = Rig::new("");
    rig.look = None;
    let client = rig.knock("alice", "app");
    let server = greet_with(&mut rig, &[]);
    rig.gets(client);
    rig.send(client, &fe::query("set statement_timeout = 1"));
    rig.send(server, &[be::complete("SET"), be::ready('I')].concat());
    let asked = rig.gets(server);
    assert!(asked[asked.len() - 1].contains("statement_timeout"), "{asked:?}");
    rig.send(server, &be::answer(&[&["1ms"]]));
    rig.pass_s(4);
    rig.knock("alice", "app");
    let sent = rig.raw(server);
    let at = |text: &[u8]| sent.windows(text.len()).position(|part| part == text);
    let (reset, asked) = (at(b"'statement_timeout',NULL"), at(LOOK));
    assert!(reset.is_some() && reset < asked, "{}", sent.escape_ascii());
}

#[test]
fn a_pause_keeps_the_look_away() {
    let mut rig = Rig::new("");
    let (_, server) = first_client(&mut rig, &[]);
    let console = rig.console();
    rig.pass_s(4);
    rig.command(console, "PAUSE app");
    assert!(rig.is_closed(server));
    let client = rig.knock("alice", "app");
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn in_session_pooling_a_change_is_told_too() {
    let mut rig = Rig::new("pool_mode = session");
    rig.look = Some(vec![["c", "TimeZone", "UTC"]]);
    let (one, _) = first_client(&mut rig, &[]);
    rig.eof(one);
    rig.pass_s(4);
    let two = rig.knock("alice", "app");
    assert_eq!(told(&rig.gets(two), "TimeZone").as_deref(), Some("UTC"));
    rig.eof(two);
    rig.pass_s(4);
    rig.look = Some(vec![["c", "TimeZone", "UTC"], ["d", "TimeZone", "Europe/Berlin"]]);
    let three = rig.knock("alice", "app");
    rig.gets_nothing(three);
    greet_with(&mut rig, &[("TimeZone", "Europe/Berlin")]);
    assert_eq!(told(&rig.gets(three), "TimeZone").as_deref(), Some("Europe/Berlin"));
}

#[test]
fn a_process_that_takes_over_has_the_greeting_confirmed() {
    let mut rig = Rig::new("");
    let (_, server) = first_client(&mut rig, &[]);
    rig.take_over("", "app = host=pg");
    rig.look = None;
    let client = rig.accept_at(1);
    rig.send(client, &fe::startup(&[("user", "alice"), ("database", "app")]));
    assert!(is_asked(&mut rig, server), "time has passed");
}

#[test]
fn a_look_is_no_use_of_a_server() {
    let mut rig = Rig::new("server_idle_timeout = 10");
    let (_, server) = first_client(&mut rig, &[]);
    for _ in 0..3 {
        rig.pass_s(4);
        rig.knock("alice", "app");
    }
    assert!(rig.is_closed(server), "no client has used it");
}
