//! LISTEN in transaction pooling: one connection listens for all clients of a pool.

use std::slice::from_ref;

use crate::cluster_reads::Stage;
use crate::clusters::says;
use crate::rig::{End, Rig, be, fe};

fn answer(rows: &[[&str; 3]]) -> Vec<u8> {
    let rows = rows.iter().flat_map(|row| be::row_values(&row.map(|value| Some(value.as_bytes()))));
    be::columns().into_iter().chain(rows).chain(be::complete("SELECT")).chain(be::ready('I')).collect()
}

pub(super) fn done(tag: &str) -> Vec<u8> {
    [be::complete(tag), be::ready('I')].concat()
}

fn empty() -> Vec<u8> {
    [be::empty_query(), be::ready('I')].concat()
}

/// The audit's answer: the session listens to these.
pub(super) fn channels(rig: &mut Rig, server: End, channels: &[&str]) {
    let got = rig.gets_loosely(server);
    assert!(got.len() == 1, "one question was due: {got:?}");
    let rows: Vec<[&str; 3]> = channels.iter().map(|channel| ["l", channel, ""]).collect();
    rig.send(server, &answer(&rows));
}

/// A client's server and the connection that listens for it, which has just joined its channel `a`.
fn joining(rig: &mut Rig, client: End) -> (End, End) {
    let server = rig.dialed();
    rig.send(client, &fe::query("LISTEN a"));
    assert_eq!(rig.gets(server), ["Query LISTEN a"]);
    rig.send(server, &done("LISTEN"));
    channels(rig, server, &["a"]);
    let notify_listener = rig.dialed();
    rig.greet(notify_listener);
    let asked = rig.gets(notify_listener).concat();
    assert!(asked.starts_with("Query LISTEN \"a\";LISTEN \"pgweir_"), "{asked}");
    assert_eq!(rig.gets(client), ["Complete LISTEN"], "it is not told before the notify_listener listens");
    rig.send(notify_listener, &[be::complete("LISTEN"), done("LISTEN")].concat());
    (server, notify_listener)
}

/// A client, its server, and the connection that listens: the client listens to `a`.
fn listening(rig: &mut Rig) -> (End, End, End) {
    let client = rig.client("alice");
    let (server, notify_listener) = joining(rig, client);
    let mark = Mark::asked_for(rig, server);
    rig.send(server, &mark.answered(&[], &[]));
    rig.gets_nothing(client);
    mark.reaches(rig, notify_listener, &[], &[]);
    assert_eq!(rig.gets(client), ["Ready I"]);
    (client, server, notify_listener)
}

/// What tells what a server passes on from what the notify listener does.
pub(super) struct Mark {
    channel: String,
    number: String,
}

impl Mark {
    /// A server was asked for one.
    pub(super) fn asked_for(rig: &mut Rig, server: End) -> Mark {
        let got = rig.gets(server);
        let parts: Vec<&str> = got[0].split(['"', '\'']).collect();
        let (channel, number) = (parts[1].to_owned(), parts[5].to_owned());
        let due = [
            format!("Query LISTEN \"{channel}\";NOTIFY \"{channel}\",'{number}';"),
            format!("Query UNLISTEN \"{channel}\";"),
        ];
        assert_eq!(got, due);
        Mark { channel, number }
    }

    fn told(&self) -> Vec<u8> {
        be::notified(4242, &self.channel, &self.number)
    }

    /// The server's answer, with what it was notified of before and after it.
    pub(super) fn answered(&self, before: &[Vec<u8>], behind: &[Vec<u8>]) -> Vec<u8> {
        let sent = [be::complete("LISTEN"), be::complete("NOTIFY"), before.concat(), self.told()].concat();
        [sent, behind.concat(), be::ready('I'), done("UNLISTEN")].concat()
    }

    /// The notify listener had not come to it when the server had, and is asked.
    pub(super) fn reaches(
        &self,
        rig: &mut Rig,
        notify_listener: End,
        before: &[Vec<u8>],
        behind: &[Vec<u8>],
    ) {
        assert_eq!(rig.gets(notify_listener), [format!("Query NOTIFY \"{}\";", self.channel)]);
        let told = [before.concat(), self.told(), behind.concat()].concat();
        rig.send(notify_listener, &[be::complete("NOTIFY"), told, be::ready('I')].concat());
    }
}

fn pid(rig: &Rig, client: End) -> u32 {
    u32::from_be_bytes(*rig.key_of(client).first_chunk().expect("a process id"))
}

#[test]
fn notifications_come_from_the_connection_that_listens_for_all() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(notify_listener, &be::notified(9, "a", "one"));
    assert_eq!(rig.gets(client), ["Notification 9 a one"]);
    // The server carries the client's session, and hears it, too.
    rig.send(server, &be::notified(9, "a", "one"));
    rig.gets_nothing(client);
    // Any client may have it: nothing was pinned.
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 1"));
    let got = rig.gets(server);
    assert!(got.iter().any(|message| message.contains("UNLISTEN *")), "{got:?}");
    assert!(got.contains(&"Query select 1".to_owned()), "{got:?}");
}

/// A client that is told that the notify listener listens; one more listens to the same, and the notify listener has just said that it does already.
fn second_listener(rig: &mut Rig) -> (End, End, End, End) {
    let (one, server, notify_listener) = listening(rig);
    let two = rig.client("alice");
    rig.send(two, &fe::query("LISTEN a"));
    let replayed = rig.gets(server);
    assert!(replayed.contains(&"Query LISTEN a".to_owned()), "{replayed:?}");
    let replay = replayed.iter().filter(|message| message.starts_with("Execute")).count();
    let mut answers = Vec::new();
    for number in 0..replay {
        let tag = if number + 1 == replay { "COMMIT" } else { "OK" };
        answers.extend([be::parse_complete(), be::bind_complete(), be::complete(tag)].concat());
    }
    answers.extend(done("LISTEN"));
    rig.send(server, &answers);
    channels(rig, server, &["a"]);
    assert_eq!(rig.gets(notify_listener), ["Query "], "it listens already");
    rig.send(notify_listener, &empty());
    (one, two, server, notify_listener)
}

#[test]
fn a_second_listener_is_told_once_and_in_order_wherever_the_mark_stands() {
    let [before, between, behind] = ["1", "2", "3"].map(|number| be::notified(9, "a", number));
    let due = ["Notification 9 a 1", "Notification 9 a 2", "Notification 9 a 3"];
    for notify_listener_first in [true, false] {
        for server_tells_more in [true, false] {
            let mut rig = Rig::new("");
            let (one, two, server, notify_listener) = second_listener(&mut rig);
            let mark = Mark::asked_for(&mut rig, server);
            let more = if server_tells_more { vec![behind.clone()] } else { Vec::new() };
            let of_server = mark.answered(&[before.clone(), between.clone()], &more);
            if notify_listener_first {
                rig.send(
                    notify_listener,
                    &[before.clone(), between.clone(), mark.told(), behind.clone()].concat(),
                );
                rig.gets_loosely(two);
                rig.send(server, &of_server);
                rig.gets_nothing(notify_listener);
            } else {
                // It is signalled late.
                rig.send(server, &of_server);
                mark.reaches(
                    &mut rig,
                    notify_listener,
                    &[before.clone(), between.clone()],
                    from_ref(&behind),
                );
            }
            let told = rig.gets(two);
            let told: Vec<&String> = told.iter().filter(|told| *told != "Complete LISTEN").collect();
            assert_eq!(told[..3], due, "{notify_listener_first} {server_tells_more}");
            assert_eq!(told[3..], ["Ready I"]);
            assert_eq!(rig.gets(one), due);
        }
    }
}

#[test]
fn the_same_notification_twice_is_two() {
    let same = be::notified(9, "a", "");
    let mut rig = Rig::new("");
    let (_, two, server, notify_listener) = second_listener(&mut rig);
    let mark = Mark::asked_for(&mut rig, server);
    rig.send(server, &mark.answered(from_ref(&same), &[]));
    mark.reaches(&mut rig, notify_listener, &[same.clone(), same.clone()], &[same]);
    assert_eq!(rig.gets(two), ["Complete LISTEN", "Notification 9 a ", "Notification 9 a ", "Ready I"]);
}

#[test]
fn a_mark_that_is_refused_is_sent_again_and_then_the_client_keeps_its_server() {
    let refused = [be::error("57014", "canceling statement"), be::ready('I')].concat();
    for times in [2, 3] {
        let mut rig = Rig::new("");
        let client = rig.client("alice");
        let (server, notify_listener) = joining(&mut rig, client);
        for _ in 1..times {
            Mark::asked_for(&mut rig, server);
            rig.send(server, &[be::notified(9, "a", "1"), refused.clone(), done("UNLISTEN")].concat());
        }
        rig.gets_nothing(client);
        let mark = Mark::asked_for(&mut rig, server);
        if times == 2 {
            // The second statement alone is repeated; a mark counts once.
            rig.send(server, &[be::complete("LISTEN"), be::complete("NOTIFY"), mark.told()].concat());
            rig.send(server, &[be::ready('I'), refused.clone()].concat());
            rig.gets_nothing(client);
            assert_eq!(rig.gets(server), [format!("Query UNLISTEN \"{}\";", mark.channel)]);
            rig.send(server, &done("UNLISTEN"));
            mark.reaches(&mut rig, notify_listener, &[], &[]);
            assert_eq!(rig.gets(client), ["Notification 9 a 1", "Ready I"]);
            continue;
        }
        rig.send(server, &[refused.clone(), done("UNLISTEN")].concat());
        assert_eq!(rig.gets(client), ["Notification 9 a 1", "Notification 9 a 1", "Ready I"]);
        rig.send(server, &be::notified(9, "a", "2"));
        assert_eq!(rig.gets(client), ["Notification 9 a 2"]);
    }
}

#[test]
fn a_hub_that_does_not_hear_the_mark_is_none_for_this_client() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let (server, notify_listener) = joining(&mut rig, client);
    let mark = Mark::asked_for(&mut rig, server);
    rig.send(server, &mark.answered(&[be::notified(9, "a", "1")], &[be::notified(9, "a", "2")]));
    assert_eq!(rig.gets(notify_listener), [format!("Query NOTIFY \"{}\";", mark.channel)]);
    // It is another PostgreSQL's, or refuses.
    rig.send(notify_listener, &[be::error("57014", "canceling statement"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Notification 9 a 1", "Notification 9 a 2", "Ready I"]);
    rig.send(server, &be::notified(9, "a", "3"));
    assert_eq!(rig.gets(client), ["Notification 9 a 3"]);
    assert!(!rig.is_closed(notify_listener), "others may listen through it");
}

#[test]
fn a_client_of_a_hub_that_no_longer_hears_is_told_that_something_may_be_missed() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(client, &fe::query("LISTEN b"));
    rig.gets(server);
    rig.send(server, &done("LISTEN"));
    channels(&mut rig, server, &["a", "b"]);
    assert_eq!(rig.gets(notify_listener), ["Query LISTEN \"b\";"]);
    rig.send(notify_listener, &done("LISTEN"));
    let mark = Mark::asked_for(&mut rig, server);
    rig.send(server, &mark.answered(&[], &[]));
    rig.gets(notify_listener);
    rig.send(notify_listener, &done("NOTIFY"));
    let told = rig.gets(client);
    assert!(told[1].starts_with("FATAL 08006") && told[1].contains("may have been missed"), "{told:?}");
}

#[test]
fn nothing_is_told_inside_of_a_transaction() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(client, &fe::query("BEGIN; select 1"));
    rig.gets(server);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('T')].concat());
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready T"]);
    rig.send(notify_listener, &be::notified(9, "a", "one"));
    rig.gets_nothing(client);
    rig.send(client, &fe::query("COMMIT"));
    rig.send(server, &done("COMMIT"));
    assert_eq!(rig.gets(client), ["Complete COMMIT", "Notification 9 a one", "Ready I"]);
}

#[test]
fn a_clients_own_notification_comes_before_its_statement_is_over() {
    let mut rig = Rig::new("");
    for notify_listener_first in [true, false] {
        let (client, server, notify_listener) = listening(&mut rig);
        rig.send(client, &fe::query("NOTIFY a"));
        assert_eq!(rig.gets(server), ["Query NOTIFY a"]);
        let own = be::notified(4242, "a", "");
        if notify_listener_first {
            rig.send(notify_listener, &own);
            rig.gets_nothing(client);
        }
        rig.send(server, &[be::complete("NOTIFY"), own.clone(), be::ready('I')].concat());
        if !notify_listener_first {
            assert_eq!(rig.gets(client), ["Complete NOTIFY"]);
            rig.send(notify_listener, &own);
        }
        let told = rig.gets(client).join(", ");
        let expected = format!("Notification {} a , Ready I", pid(&rig, client));
        assert!(told.ends_with(&expected), "{told}");
        rig = Rig::new("");
    }
}

#[test]
fn a_hub_that_is_faster_than_a_pipeline_is_not_waited_for_again() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(client, &[fe::query("select 1"), fe::query("NOTIFY a")].concat());
    rig.gets(server);
    let own = be::notified(4242, "a", "");
    rig.send(notify_listener, &own);
    // A notification that may be its own is not told before its server has told that it is.
    rig.send(server, &done("SELECT 1"));
    assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
    rig.send(server, &[be::complete("NOTIFY"), own, be::ready('I')].concat());
    let pid = pid(&rig, client);
    assert_eq!(rig.gets(client), ["Complete NOTIFY", &format!("Notification {pid} a "), "Ready I"]);
}

#[test]
fn a_client_that_notifies_itself_and_stops_listening_at_once_is_told_and_not_forgotten() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(client, &[fe::query("NOTIFY a"), fe::query("UNLISTEN a")].concat());
    rig.gets(server);
    let own = be::notified(4242, "a", "");
    rig.send(server, &[be::complete("NOTIFY"), own.clone(), be::ready('I'), done("UNLISTEN")].concat());
    channels(&mut rig, server, &[]);
    let pid = pid(&rig, client);
    let told = rig.gets(client);
    assert!(told.ends_with(&[format!("Notification {pid} a "), "Ready I".to_owned()]), "{told:?}");
    rig.send(notify_listener, &own);
    rig.gets_nothing(client);
}

#[test]
fn what_is_rolled_back_was_never_listened_to() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("BEGIN; LISTEN a; ROLLBACK"));
    rig.gets(server);
    rig.send(server, &done("ROLLBACK"));
    channels(&mut rig, server, &[]);
    assert_eq!(rig.gets(client), ["Complete ROLLBACK", "Ready I"]);
    assert_eq!(rig.new_dials(), 0);
}

#[test]
fn a_client_that_stops_listening_is_told_nothing_more() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(client, &fe::query("UNLISTEN *"));
    rig.gets(server);
    rig.send(server, &done("UNLISTEN"));
    channels(&mut rig, server, &[]);
    assert_eq!(rig.gets(client), ["Complete UNLISTEN", "Ready I"]);
    rig.send(notify_listener, &be::notified(9, "a", "late"));
    rig.gets_nothing(client);
    rig.pass_s(1);
    assert_eq!(rig.gets(notify_listener), ["Query UNLISTEN \"a\";"]);
}

#[test]
fn discard_all_is_the_end_of_listening_before_anything_else_is_sent() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(client, &[fe::query("DISCARD ALL"), fe::query("NOTIFY a")].concat());
    // What follows a DISCARD in the same packet goes on; alone it would have waited.
    rig.gets(server);
    rig.send(server, &done("DISCARD ALL"));
    rig.send(server, &done("NOTIFY"));
    channels(&mut rig, server, &[]);
    rig.send(notify_listener, &be::notified(4242, "a", ""));
    let told = rig.gets(client);
    assert!(told.ends_with(&["Ready I".to_owned()]), "{told:?}");
    rig.gets_nothing(client);
}

/// Another pool waits for its place in a limit.
#[test]
fn a_connection_that_listens_for_no_client_makes_room() {
    let mut rig = Rig::new("max_db_connections = 2");
    let (alice, server, notify_listener) = listening(&mut rig);
    let bob = rig.knock("bob", "app");
    assert!(rig.is_closed(server), "her free server makes room");
    let his = rig.dialed();
    rig.greet(his);
    rig.gets(bob);
    rig.send(bob, &fe::query("begin"));
    rig.send(his, &[be::complete("BEGIN"), be::ready('T')].concat());
    rig.knock("carol", "app");
    rig.pass_s(1);
    assert!(!rig.is_closed(notify_listener), "it listens for alice");
    rig.eof(alice);
    rig.pass_s(1);
    assert_eq!(rig.gets(notify_listener), ["Query UNLISTEN \"a\";"]);
    assert!(!rig.is_closed(notify_listener), "it has an answer to give");
    rig.send(notify_listener, &done("UNLISTEN"));
    rig.pass_s(1);
    assert!(rig.is_closed(notify_listener));
    assert_eq!(rig.new_dials(), 1, "carol's turn");
}

/// A standby refuses LISTEN. After its promotion its servers allow it, but hold no place at the primary.
#[test]
fn no_connection_listens_in_the_only_place_of_the_primary() {
    let mut stage = Stage::new("max_db_connections = 1");
    stage.command("DRAIN NODE main.m3");
    let (alice, server, node) = stage.served("app_prefer");
    assert_eq!(node, 2);
    stage.runs(alice, server, "begin", "BEGIN", 'T');
    stage.says[0] = None;
    stage.says[1] = Some(says(false, 2, 2));
    stage.pass_us(2_000_000);
    assert!(stage.rig.logged("m2 is the primary"));
    stage.runs(alice, server, "listen a", "LISTEN", 'T');
    stage.rig.send(alice, &fe::query("commit"));
    assert_eq!(stage.rig.gets(server), ["Query commit"]);
    stage.rig.send(server, &done("COMMIT"));
    channels(&mut stage.rig, server, &["a"]);
    stage.dials_nothing();
    assert!(stage.rig.is_closed(server), "the server that she listens on takes nothing more");
    let bob = stage.rig.knock("alice", "app_prefer");
    stage.rig.send(bob, &fe::query("select 1"));
    let (new, node) = stage.dialed();
    stage.greet(new, false);
    assert_eq!((node, stage.rig.gets(new)), (2, vec!["Query select 1".to_owned()]));
}

#[test]
fn a_connection_that_breaks_ends_the_clients_that_listened() {
    let mut rig = Rig::new("");
    let (client, _, notify_listener) = listening(&mut rig);
    rig.eof(notify_listener);
    let told = rig.gets(client);
    assert!(told[0].starts_with("FATAL 08006") && told[0].contains("may have been missed"), "{told:?}");
}

/// A client that keeps its server, as no notify listener can be had for its channel `a`.
fn listening_alone(rig: &mut Rig) -> (End, End) {
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("LISTEN a"));
    rig.gets(server);
    rig.send(server, &done("LISTEN"));
    channels(rig, server, &["a"]);
    rig.gets(client);
    let notify_listener = rig.dialed();
    rig.refuse_dial(notify_listener, "too many connections");
    assert_eq!(rig.gets(client), ["Ready I"]);
    (client, server)
}

#[test]
fn without_a_hub_a_client_keeps_its_server() {
    let mut rig = Rig::new("");
    let (client, server) = listening_alone(&mut rig);
    rig.send(server, &be::notified(9, "a", "here"));
    assert_eq!(rig.gets(client), ["Notification 9 a here"]);
}

#[test]
fn a_client_that_listens_on_its_own_server_is_told_nothing_after_a_begin_that_was_answered_here() {
    let mut rig = Rig::new("defer_begin = packet");
    let (client, server) = listening_alone(&mut rig);
    rig.send(client, &fe::query("BEGIN"));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.gets_nothing(server);
    rig.send(server, &be::notified(9, "a", "one"));
    rig.gets_nothing(client);
    rig.send(client, &fe::query("COMMIT"));
    let told = rig.gets(client);
    assert_eq!(told, ["Complete COMMIT", "Ready I", "Notification 9 a one"]);
}

#[test]
fn in_the_midst_of_a_group_no_client_is_told_anything() {
    for alone in [true, false] {
        let mut rig = Rig::new("");
        let (client, server, teller) = match alone {
            true => {
                let (client, server) = listening_alone(&mut rig);
                (client, server, server)
            }
            false => listening(&mut rig),
        };
        rig.send(client, &[fe::parse("s", "select 1"), fe::sync()].concat());
        rig.gets(server);
        rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
        assert_eq!(rig.gets(client), ["ParseComplete", "Ready I"]);
        // The server has this statement; PostgreSQL would still have begun a transaction.
        rig.send(client, &fe::parse("t", "select 1"));
        rig.send(teller, &be::notified(9, "a", "one"));
        let told = rig.gets_loosely(client);
        assert!(told.iter().all(|told| told == "ParseComplete"), "{alone} {told:?}");
        rig.send(client, &fe::sync());
        assert_eq!(rig.gets(server), ["Sync"]);
        rig.send(server, &be::ready('I'));
        assert_eq!(rig.gets(client)[..], ["Notification 9 a one", "Ready I"], "{alone}");
    }
}

#[test]
fn what_is_listened_to_for_a_while_in_a_pipeline_is_told() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::query("LISTEN a"), fe::query("UNLISTEN a")].concat());
    rig.gets(server);
    rig.send(server, &[done("LISTEN"), be::notified(9, "a", "one"), done("UNLISTEN")].concat());
    channels(&mut rig, server, &[]);
    let told = rig.gets(client);
    assert_eq!(told.iter().filter(|told| *told == "Notification 9 a one").count(), 1, "{told:?}");
}

#[test]
fn a_client_that_waits_for_a_server_is_told_when_its_answer_is_complete() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, server, notify_listener) = listening(&mut rig);
    let other = rig.client("alice");
    rig.send(other, &fe::query("BEGIN"));
    rig.gets_loosely(server);
    // Parse of a known statement is answered here, before there is a server.
    let group = [fe::parse("s", "select 1"), fe::bind("s"), fe::execute(), fe::sync()].concat();
    rig.send(client, &group);
    rig.gets(client);
    rig.send(notify_listener, &be::notified(9, "a", "one"));
    rig.gets_nothing(client);
}

#[test]
fn a_client_that_keeps_its_server_to_listen_knows_its_own_notifications() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    let own = be::notified(4242, "a", "own");
    // Told while it was not clear yet which connection listens for it.
    rig.send(client, &[fe::query("LISTEN a"), fe::query("NOTIFY a, 'own'")].concat());
    rig.gets(server);
    rig.send(server, &[done("LISTEN"), be::complete("NOTIFY"), own.clone(), be::ready('I')].concat());
    channels(&mut rig, server, &["a"]);
    rig.gets(client);
    let notify_listener = rig.dialed();
    rig.refuse_dial(notify_listener, "too many connections");
    let pid = pid(&rig, client);
    assert_eq!(rig.gets(client), [format!("Notification {pid} a own"), "Ready I".to_owned()]);
    // And when it was, in one read with what stands before it and after it.
    rig.send(client, &fe::query("NOTIFY a, 'own'"));
    assert_eq!(rig.gets(server), ["Query NOTIFY a, 'own'"]);
    let strange = be::notified(9, "a", "strange");
    rig.send(server, &[be::complete("NOTIFY"), strange, own, be::ready('I')].concat());
    let told = rig.gets(client);
    let due =
        ["Complete NOTIFY", "Notification 9 a strange", &format!("Notification {pid} a own"), "Ready I"];
    assert_eq!(told, due);
}

#[test]
fn a_client_that_does_not_take_its_notifications_is_ended() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(client, &fe::query("BEGIN; select 1"));
    rig.gets(server);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('T')].concat());
    rig.gets(client);
    let payload = "x".repeat(7900);
    for _ in 0..600 {
        if rig.is_closed(client) {
            break;
        }
        rig.send(notify_listener, &be::notified(9, "a", &payload));
    }
    let told = rig.gets(client);
    assert!(told[0].starts_with("FATAL 54000"), "{told:?}");
}

#[test]
fn what_waited_for_the_hub_does_not_keep_a_servers_answer_from_being_asked_for() {
    let mut rig = Rig::new("defer_begin = packet");
    let (client, server, notify_listener) = listening(&mut rig);
    let pinned = answer(&[["t", "", ""], ["l", "a", ""]]);
    rig.send(client, &fe::query("CREATE TEMP TABLE t (a int)"));
    rig.send(server, &done("CREATE TABLE"));
    rig.send(server, &pinned);
    rig.gets_loosely(server);
    // The names in the second text are known when the first is answered; and the ends of both wait for the
    // notify listener.
    let (first, second) = ("DEALLOCATE x; NOTIFY a", "DEALLOCATE \"PGWEIR_9\"; NOTIFY a");
    rig.send(client, &[fe::query(first), fe::query(second)].concat());
    assert_eq!(rig.gets(server), [&format!("Query {first}"), "Flush"]);
    let own = be::notified(4242, "a", "");
    for closes in [Vec::new(), be::close_complete()] {
        let told = [closes, be::complete("DEALLOCATE"), be::complete("NOTIFY"), own.clone(), be::ready('I')];
        rig.send(server, &told.concat());
        rig.send(server, &pinned);
        rig.send(notify_listener, &own);
        assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"));
    }
    rig.gets_loosely(server);
    rig.send(client, &fe::query("begin"));
    assert_eq!(rig.gets(client), ["Complete BEGIN", "Ready T"]);
    rig.send(client, &fe::query("DEALLOCATE \"PGWEIR_9\""));
    assert_eq!(rig.gets_loosely(server).last().map(String::as_str), Some("Flush"));
    rig.send(server, &[be::parse_complete(), be::bind_complete(), be::complete("BEGIN")].concat());
    assert_eq!(rig.gets(server), ["Close S PGWEIR_0", "Query DEALLOCATE \"PGWEIR_9\""]);
}

#[test]
fn no_client_is_told_anything_in_an_encoding_that_is_not_its_own() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    rig.send(client, &fe::query("SET client_encoding = 'LATIN1'"));
    rig.gets(server);
    let answer = [be::complete("SET"), be::parameter("client_encoding", "LATIN1"), be::ready('I')];
    rig.send(server, &answer.concat());
    rig.gets_loosely(server);
    rig.gets(client);
    rig.send(notify_listener, &be::notified(9, "a", "plain"));
    assert_eq!(rig.gets(client), ["Notification 9 a plain"]);
    rig.send(notify_listener, &be::notified(9, "a", "\u{e9}"));
    let told = rig.gets(client);
    assert!(told[0].starts_with("FATAL 0A000") && told[0].contains("client_encoding"), "{told:?}");
}

#[test]
fn a_client_that_listens_through_the_hub_stays_there_in_whatever_encoding() {
    let mut rig = Rig::new("");
    let (client, server, notify_listener) = listening(&mut rig);
    let statement = "SET client_encoding = 'LATIN1'; LISTEN b";
    rig.send(client, &fe::query(statement));
    assert_eq!(rig.gets(server), [format!("Query {statement}")]);
    let set = [be::complete("SET"), be::parameter("client_encoding", "LATIN1"), done("LISTEN")];
    rig.send(server, &set.concat());
    channels(&mut rig, server, &["a", "b"]);
    assert_eq!(rig.gets(notify_listener), ["Query LISTEN \"b\";"]);
    // It was signalled of what came before late: no server tells that.
    rig.send(notify_listener, &[be::notified(9, "a", "one"), done("LISTEN")].concat());
    let mark = Mark::asked_for(&mut rig, server);
    rig.send(server, &mark.answered(&[be::notified(9, "b", "two")], &[]));
    mark.reaches(&mut rig, notify_listener, &[be::notified(9, "b", "two")], &[]);
    let told = rig.gets(client);
    assert_eq!(told[told.len() - 3..], ["Notification 9 a one", "Notification 9 b two", "Ready I"]);
}

#[test]
fn a_hub_that_breaks_while_a_server_sends_its_mark_leaves_the_client_its_server() {
    let [one, two, three] = ["1", "2", "3"].map(|number| be::notified(9, "a", number));
    for parts_before in 0..4 {
        let mut rig = Rig::new("");
        let client = rig.client("alice");
        let (server, notify_listener) = joining(&mut rig, client);
        let mark = Mark::asked_for(&mut rig, server);
        let parts = [
            [be::complete("LISTEN"), be::complete("NOTIFY"), one.clone()].concat(),
            mark.told(),
            [two.clone(), be::ready('I'), three.clone()].concat(),
            done("UNLISTEN"),
        ];
        rig.send(server, &parts[..parts_before].concat());
        rig.eof(notify_listener);
        rig.gets_nothing(client);
        rig.send(server, &parts[parts_before..].concat());
        let due = ["Notification 9 a 1", "Notification 9 a 2", "Notification 9 a 3", "Ready I"];
        assert_eq!(rig.gets(client), due, "{parts_before}");
        rig.send(server, &be::notified(9, "a", "4"));
        assert_eq!(rig.gets(client), ["Notification 9 a 4"]);
    }
}

#[test]
fn a_mark_counts_once_and_only_its_clients_does() {
    let [one, two, three] = ["1", "2", "3"].map(|number| be::notified(9, "a", number));
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let (server, notify_listener) = joining(&mut rig, client);
    let mark = Mark::asked_for(&mut rig, server);
    let strange =
        ["", "x", "99", "18446744073709551616"].map(|number| be::notified(9, &mark.channel, number));
    let of_server = [one.clone(), strange.concat(), two.clone()];
    rig.send(server, &mark.answered(&of_server, &[three.clone(), mark.told()]));
    mark.reaches(
        &mut rig,
        notify_listener,
        &[one, strange.concat(), two],
        &[three, mark.told(), strange.concat()],
    );
    let due = ["Notification 9 a 1", "Notification 9 a 2", "Notification 9 a 3", "Ready I"];
    assert_eq!(rig.gets(client), due);
    rig.send(server, &[mark.told(), strange.concat()].concat());
    rig.send(notify_listener, &mark.told());
    rig.gets_nothing(client);
}

#[test]
fn while_the_connection_that_listens_logs_in_no_free_server_is_too_many() {
    let mut rig = Rig::new("default_pool_size = 1");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("LISTEN a"));
    rig.gets(server);
    rig.send(server, &done("LISTEN"));
    channels(&mut rig, server, &["a"]);
    rig.dialed();
    rig.eof(client);
    rig.gets(server);
    rig.send(server, &done("DISCARD ALL"));
    rig.pass_s(2);
    assert!(rig.is_up(server) && !rig.is_closed(server));
}
