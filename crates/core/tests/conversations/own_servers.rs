//! Session pooling: a client has a server for itself from its login on, opened with its own startup packet.

use pgweir_core::mail::{Mail, Shutdown};

use crate::rig::{End, REPORTED, Rig, be, fe};

fn session(main: &str) -> Rig {
    Rig::with(main, "app = host=pg pool_mode=session", 1)
}

/// The login of a server with this process id, which reports `params` in place of what servers report as a rule.
fn greeting(pid: u32, params: &[(&str, &str)]) -> Vec<u8> {
    let reported = REPORTED.iter().map(|(name, value)| {
        let own = params.iter().find(|(own, _)| own == name);
        be::parameter(name, own.map_or(value, |(_, value)| value))
    });
    std::iter::once(be::auth_ok()).chain(reported).chain([be::key(pid), be::ready('I')]).flatten().collect()
}

/// A client that asked for these knocks; its own server comes up. Returns client, server, and the server's startup packet.
fn opened(rig: &mut Rig, pid: u32, params: &[(&str, &str)]) -> (End, End, String) {
    let client = knock(rig, params);
    let server = rig.dialed();
    let packet = rig.connect(server);
    rig.send(server, &greeting(pid, params));
    (client, server, packet)
}

fn knock(rig: &mut Rig, params: &[(&str, &str)]) -> End {
    let client = rig.accept();
    rig.send(client, &fe::startup(&[&[("user", "alice"), ("database", "app")], params].concat()));
    client
}

/// A client without wishes came and left: the pool knows what its servers report. That server is free.
fn known(rig: &mut Rig) -> End {
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::terminate());
    rig.gets(server);
    server
}

fn run(rig: &mut Rig, client: End, server: End, text: &str) {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    rig.send(server, &[be::complete("OK"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete OK", "Ready I"]);
}

fn pid(rig: &Rig, client: End) -> u32 {
    let key = rig.key_of(client);
    u32::from_be_bytes(*key.first_chunk().expect("a process id"))
}

#[test]
fn startup_parameters_travel_in_the_servers_own_startup_packet() {
    let mut rig = session("");
    known(&mut rig);
    let wishes = [("IntervalStyle", "iso_8601"), ("DateStyle", "German, DMY"), ("application_name", "one")];
    let (client, server, packet) = opened(&mut rig, 77, &wishes);
    for expected in ["IntervalStyle iso_8601 ", "DateStyle German, DMY ", "application_name one "] {
        assert!(packet.contains(expected), "{packet}");
    }
    let told = rig.gets(client);
    for expected in ["Parameter DateStyle=German, DMY", "Parameter IntervalStyle=iso_8601", "Ready I"] {
        assert!(told.contains(&expected.to_owned()), "{told:?}");
    }
    assert_eq!(pid(&rig, client), 77);
    // Nothing is set, and nothing is put back: the server does so by itself.
    run(&mut rig, client, server, "RESET DateStyle");
    rig.gets_nothing(server);
}

/// The server of a client that asked for 7 MB is being reset. Returns it.
fn being_reset(rig: &mut Rig) -> End {
    known(rig);
    let (first, server, _) = opened(rig, 77, &[("work_mem", "7MB")]);
    rig.gets(first);
    run(rig, first, server, "select 1");
    rig.send(first, &fe::terminate());
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    server
}

#[test]
fn a_like_client_waits_for_a_server_that_is_being_reset() {
    let mut rig = session("");
    let server = being_reset(&mut rig);
    let like = knock(&mut rig, &[("work_mem", "7MB")]);
    assert_eq!(rig.new_dials(), 0, "it is free sooner than another one is opened");
    rig.gets(like);
    // It is one client's; the next one's is opened, and so is that of one with other wishes.
    let (second, _, packet) = opened(&mut rig, 78, &[("work_mem", "7MB")]);
    assert!(packet.contains("work_mem 7MB"), "{packet}");
    rig.gets(second);
    assert_eq!(pid(&rig, second), 78);
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    assert_eq!(rig.gets(like).last().map(String::as_str), Some("Ready I"));
    assert_eq!(pid(&rig, like), 77);
    run(&mut rig, like, server, "select 2");

    let mut rig = session("");
    being_reset(&mut rig);
    let (_, _, packet) = opened(&mut rig, 79, &[("work_mem", "8MB")]);
    assert!(packet.contains("work_mem 8MB"), "{packet}");
}

#[test]
fn a_reset_that_fails_leaves_no_login_behind() {
    let refused = [be::error("XX000", "no"), be::ready('I')].concat();
    let endings: [fn(&mut Rig, End, &[u8]); 3] = [
        |rig, server, refused| rig.send(server, refused),
        |rig, server, _| rig.eof(server),
        // Not a word: it may take as long as a login may.
        |rig, _, _| rig.pass_s(6),
    ];
    for ends in endings {
        let mut rig = session("server_connect_timeout = 5");
        let server = being_reset(&mut rig);
        let like = knock(&mut rig, &[("work_mem", "7MB")]);
        ends(&mut rig, server, &refused);
        let fresh = rig.dialed();
        assert!(rig.connect(fresh).contains("work_mem 7MB"));
        rig.send(fresh, &greeting(80, &[("work_mem", "7MB")]));
        assert_eq!(rig.gets(like).last().map(String::as_str), Some("Ready I"));
        assert_eq!(pid(&rig, like), 80);
    }
}

#[test]
fn a_client_that_leaves_while_it_waits_for_a_reset_keeps_nothing() {
    let mut rig = session("");
    let server = being_reset(&mut rig);
    let gone = knock(&mut rig, &[("work_mem", "7MB")]);
    rig.eof(gone);
    let like = knock(&mut rig, &[("work_mem", "7MB")]);
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    assert_eq!((rig.gets(like).len() > 3, rig.new_dials()), (true, 0));
    assert_eq!(pid(&rig, like), 77);
}

#[test]
fn a_server_goes_to_a_client_that_asked_for_the_same_and_to_no_other() {
    let mut rig = session("default_pool_size = 2");
    let plain = known(&mut rig);
    let (first, server, _) = opened(&mut rig, 77, &[("work_mem", "7MB"), ("application_name", "one")]);
    rig.gets(first);
    run(&mut rig, first, server, "select 1");
    rig.send(first, &fe::terminate());
    assert_eq!(rig.gets(server), ["Query DISCARD ALL"]);
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());

    let like = knock(&mut rig, &[("work_mem", "7MB"), ("application_name", "one")]);
    assert_eq!(rig.gets(like).last().map(String::as_str), Some("Ready I"));
    assert_eq!((pid(&rig, like), rig.new_dials()), (77, 0));
    run(&mut rig, like, server, "select 2");
    rig.send(like, &fe::terminate());
    rig.gets(server);
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());

    let other = knock(&mut rig, &[("work_mem", "8MB")]);
    assert!(rig.is_closed(server) || rig.is_closed(plain), "there is no room for a third one");
    assert_eq!(rig.new_dials(), 1);
    let own = rig.dialed();
    assert!(rig.connect(own).contains("work_mem 8MB "));
    rig.send(own, &greeting(78, &[]));
    rig.gets(other);
    run(&mut rig, other, own, "select 3");
}

#[test]
fn a_server_that_is_kept_for_a_silent_client_goes_to_one_that_needs_it() {
    let mut rig = session("default_pool_size = 1");
    let silent = rig.client("alice");
    let server = rig.dialed();
    let asking = rig.client("alice");
    assert_eq!(pid(&rig, silent), 4242);
    assert_ne!(pid(&rig, asking), 4242, "it was let in without a server");
    run(&mut rig, asking, server, "select 1");
    rig.send(silent, &fe::query("select 2"));
    rig.gets_nothing(server);
    rig.send(asking, &fe::terminate());
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    assert_eq!(rig.gets(server), ["Query DISCARD ALL", "Query select 2"]);
}

#[test]
fn a_server_that_was_kept_for_a_client_that_left_goes_to_a_waiting_one() {
    let mut rig = session("default_pool_size = 1");
    let first = rig.client("alice");
    let server = rig.dialed();
    run(&mut rig, first, server, "select 1");
    // There is no room for a server that it has for itself; then there is, for one that does not come up, and
    // for another client's.
    let waiting = rig.client("alice");
    rig.send(waiting, &fe::query("select 2"));
    rig.reload("default_pool_size = 3", "app = host=pg pool_mode=session");
    rig.eof(server);
    rig.dialed();
    let (gone, kept, _) = opened(&mut rig, 77, &[]);
    assert_eq!((rig.gets(gone).last().map(String::as_str), pid(&rig, gone)), (Some("Ready I"), 77));
    rig.gets_nothing(kept);
    rig.eof(gone);
    assert_eq!(rig.gets(kept), ["Query select 2"]);
}

#[test]
fn a_client_that_finds_no_room_is_brought_to_its_parameters_by_set() {
    let mut rig = session("default_pool_size = 1");
    let server = known(&mut rig);
    let (first, own, _) = opened(&mut rig, 77, &[("work_mem", "7MB")]);
    assert!(rig.is_closed(server), "it made room");
    rig.gets(first);
    run(&mut rig, first, own, "select 1");
    let late = knock(&mut rig, &[("application_name", "late")]);
    assert_eq!(rig.gets(late).last().map(String::as_str), Some("Ready I"));
    rig.send(late, &fe::query("select 2"));
    rig.send(first, &fe::terminate());
    rig.gets(own);
    rig.send(own, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    assert!(rig.is_closed(own), "what it was opened with cannot be taken back");
    let plain = rig.dialed();
    rig.greet(plain);
    let got = rig.gets(plain);
    assert!(got.contains(&"Parse  SET application_name='late';".to_owned()), "{got:?}");
}

#[test]
fn a_value_that_is_refused_costs_that_client_alone() {
    let mut rig = session("");
    known(&mut rig);
    let client = knock(&mut rig, &[("work_mem", "much")]);
    let server = rig.dialed();
    rig.connect(server);
    rig.send(server, &be::auth_ok());
    let text = "invalid value for parameter \"work_mem\": \"much\"";
    rig.send(server, &be::fatal("22023", text));
    assert_eq!(rig.gets(client).last(), Some(&format!("FATAL 22023 {text}")));
    let (next, own, _) = opened(&mut rig, 78, &[("work_mem", "7MB")]);
    rig.gets(next);
    run(&mut rig, next, own, "select 1");
}

#[test]
fn notices_of_the_servers_login_reach_the_client_it_is_opened_for() {
    let mut rig = session("");
    known(&mut rig);
    let client = knock(&mut rig, &[("work_mem", "7MB")]);
    let server = rig.dialed();
    rig.connect(server);
    let mut login = be::auth_ok();
    login.extend(be::notice("good morning"));
    rig.send(server, &login);
    rig.send(server, &greeting(77, &[])[be::auth_ok().len()..]);
    let told = rig.gets(client);
    assert!(told.contains(&"NOTICE 00000 good morning".to_owned()), "{told:?}");
}

#[test]
fn a_cancel_request_needs_the_clients_own_secret() {
    let mut rig = session("");
    let (one, two) = (rig.client("alice"), rig.client("alice"));
    let (first, second) = (rig.dialed(), rig.dialed());
    assert_eq!((pid(&rig, one), pid(&rig, two)), (4242, 4242));
    assert_ne!(rig.key_of(one), rig.key_of(two));
    rig.send(two, &fe::query("select pg_sleep(1)"));
    assert_eq!(rig.gets(second), ["Query select pg_sleep(1)"]);
    rig.gets_nothing(first);
    rig.cancel(one);
    assert_eq!(rig.new_dials(), 0, "the other one has nothing to cancel");
    rig.cancel(two);
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn a_client_that_has_asked_for_nothing_ends_with_the_words_of_its_server() {
    for (code, text) in [
        ("57P01", "terminating connection due to administrator command"),
        ("57P05", "terminating connection due to idle-session timeout"),
    ] {
        let mut rig = session("");
        let (client, server, _) = opened(&mut rig, 7, &[]);
        rig.gets(client);
        rig.send(server, &be::fatal(code, text));
        assert_eq!(rig.gets(client), [format!("FATAL {code} {text}")]);
        assert!(rig.is_closed(client) && rig.is_closed(server));
        assert_eq!(rig.shared.clients.taken(), 0);
    }
}

#[test]
fn a_server_that_ends_without_a_word_is_replaced_for_a_client_that_has_asked_for_nothing() {
    let mut rig = session("");
    let (client, server, _) = opened(&mut rig, 7, &[]);
    rig.gets(client);
    rig.eof(server);
    assert!(!rig.is_closed(client));
    rig.send(client, &fe::query("select 1"));
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 1"]);
}

#[test]
fn a_free_server_that_is_terminated_ends_no_client() {
    let mut rig = session("");
    let free = known(&mut rig);
    let (client, _, _) = opened(&mut rig, 7, &[("work_mem", "5MB")]);
    rig.gets(client);
    rig.send(free, &be::fatal("57P01", "terminating connection due to administrator command"));
    rig.gets_nothing(client);
    assert!(!rig.is_closed(client));
}

#[test]
fn a_shutdown_for_servers_serves_a_client_that_waits_on_a_server_that_was_kept_for_another() {
    let mut rig = session("");
    let (idle, kept, _) = opened(&mut rig, 7, &[]);
    rig.gets(idle);
    let (waits, lost, _) = opened(&mut rig, 8, &[]);
    rig.gets(waits);
    rig.eof(lost);
    rig.send(waits, &fe::query("select 1"));
    rig.gets_nothing(waits);
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForServers));
    assert_eq!(rig.gets(kept), ["Query select 1"], "no other one is opened");
    assert_eq!(rig.answer(kept, &[be::one_row("1"), be::ready('I')].concat(), waits).len(), 4);
}

/// A client with another time zone on a server that was opened for another: the pool was full.
fn brought_by_statements(rig: &mut Rig) -> (End, End) {
    rig.client("alice");
    let server = rig.dialed();
    let client = knock(rig, &[("TimeZone", "Asia/Tokyo")]);
    rig.gets(client);
    rig.send(client, &fe::query("select 1"));
    let brought = rig.gets(server);
    assert!(brought[0].contains("Asia/Tokyo"), "{brought:?}");
    rig.send(server, &be::parameter("TimeZone", "Asia/Tokyo"));
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    let asked = rig.gets(server);
    assert!(asked.is_empty() || asked == ["Query select 1"], "{asked:?}");
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    (client, server)
}

/// The answer to `text`, during which PostgreSQL went back to its own time zone.
fn resets(rig: &mut Rig, (client, server): (End, End), text: &str, answer: &[u8]) {
    rig.send(client, &fe::query(text));
    assert_eq!(rig.gets(server), [format!("Query {text}")]);
    rig.send(server, answer);
    rig.send(server, &[be::parameter("TimeZone", "UTC"), be::ready('I')].concat());
    rig.send(client, &fe::query("show timezone"));
    let sent = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    let back = sent.find("VALUES ('timezone','Asia/Tokyo'))").expect("the value is put back");
    assert!(sent.find("show timezone").expect("the statement follows") > back, "{sent}");
}

#[test]
fn what_a_failed_group_has_reset_is_put_back() {
    let mut rig = session("default_pool_size = 1");
    let pair = brought_by_statements(&mut rig);
    resets(&mut rig, pair, "reset all; commit; select nonsense", &be::error("42703", "no such column"));
}

#[test]
fn what_a_block_of_code_has_reset_is_put_back() {
    let mut rig = session("default_pool_size = 1");
    let pair = brought_by_statements(&mut rig);
    resets(&mut rig, pair, "do $$begin reset all; end$$", &be::complete("DO"));
}

#[test]
fn what_was_reset_before_a_transaction_failed_is_put_back_behind_its_end() {
    let mut rig = session("default_pool_size = 1");
    let (client, server) = brought_by_statements(&mut rig);
    rig.send(client, &fe::query("reset all; commit; begin; select nonsense"));
    rig.gets(server);
    rig.send(server, &[be::error("42703", "no such column"), be::parameter("TimeZone", "UTC")].concat());
    rig.send(server, &be::ready('E'));
    rig.send(client, &fe::query("rollback"));
    assert_eq!(rig.gets(server), ["Query rollback"]);
    rig.send(server, &[be::complete("ROLLBACK"), be::ready('I')].concat());
    let back = String::from_utf8_lossy(&rig.raw(server)).into_owned();
    assert!(back.contains("VALUES ('timezone','Asia/Tokyo'))"), "{back}");
}

#[test]
fn a_block_of_code_that_resets_nothing_is_not_asked_about() {
    let mut rig = session("default_pool_size = 1");
    let (client, server) = brought_by_statements(&mut rig);
    run(&mut rig, client, server, "do $$begin end$$");
    rig.gets_nothing(server);
    run(&mut rig, client, server, "show timezone");
}
