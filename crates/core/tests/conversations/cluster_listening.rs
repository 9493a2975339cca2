//! LISTEN and standbys: a session's channels are the primary's, and no standby is asked to listen, which PostgreSQL refuses there.

use crate::cluster_auto::balanced_in;
use crate::cluster_reading::{begins, begun, with_begin};
use crate::cluster_reads::Stage;
use crate::listening::{Mark, channels, done};
use crate::rig::{End, be, fe};

/// A client that listens to `a`, the servers that it has used, and the notify listener.
fn listening(database: &str) -> (Stage, End, [End; 3]) {
    let (mut stage, client, primary, standby) = balanced_in("defer_begin = packet", database);
    stage.rig.send(client, &fe::query("LISTEN a"));
    assert_eq!(stage.rig.gets(primary), ["Query LISTEN a"]);
    stage.rig.send(primary, &done("LISTEN"));
    channels(&mut stage.rig, primary, &["a"]);
    let (notify_listener, node) = stage.server();
    assert_eq!(node, 1);
    stage.rig.gets_raw(notify_listener);
    stage.rig.send(notify_listener, &[be::complete("LISTEN"), done("LISTEN")].concat());
    let mark = Mark::asked_for(&mut stage.rig, primary);
    stage.rig.send(primary, &mark.answered(&[], &[]));
    mark.reaches(&mut stage.rig, notify_listener, &[], &[]);
    assert_eq!(stage.rig.gets(client), ["Complete LISTEN", "Ready I"]);
    // A client whose session has changed has no standby of its own.
    let is_m2 = stage.rig.endpoint(standby).starts_with("10.0.0.2");
    stage.command(if is_m2 { "DRAIN NODE main.m3" } else { "DRAIN NODE main.m2" });
    (stage, client, [primary, standby, notify_listener])
}

/// The text runs at the server as it is: nothing goes ahead of it.
fn runs_alone(stage: &mut Stage, client: End, server: End, text: &str) {
    stage.rig.send(client, &fe::query(text));
    assert_eq!(stage.rig.gets(server), [format!("Query {text}")]);
    stage.rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
}

/// The client is still told of notifications.
fn hears(stage: &mut Stage, client: End, notify_listener: End) {
    stage.rig.gets_nothing(notify_listener);
    stage.rig.send(notify_listener, &be::notified(9, "a", "x"));
    assert_eq!(stage.rig.gets(client), ["Notification 9 a x"]);
}

#[test]
fn channels_do_not_go_to_a_standby() {
    let (mut stage, client, [primary, standby, notify_listener]) = listening("app_auto");
    let other = stage.rig.knock("alice", "app_auto");
    stage.rig.gets_raw(other);
    for text in ["select 1", "/* pgweir: standby */ select 2", "/* pgweir: standby */ show work_mem"] {
        runs_alone(&mut stage, client, standby, text);
        hears(&mut stage, client, notify_listener);
        // A client that listens to nothing: nothing is left, either.
        runs_alone(&mut stage, other, standby, text);
    }
    stage.rig.gets_nothing(primary);
    // At the primary they follow the client.
    runs_alone(&mut stage, client, primary, "insert into t values (1)");
    stage.rig.send(other, &fe::query("insert into t values (2)"));
    let sent = stage.rig.gets(primary).concat();
    assert!(sent.contains("UNLISTEN *"), "{sent}");
}

#[test]
fn what_else_a_session_holds_goes_without_them() {
    let (mut stage, client, [primary, standby, notify_listener]) = listening("app_auto");
    stage.rig.send(client, &fe::query("set lock_timeout = 77"));
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &done("SET"));
    stage.rig.gets_raw(primary);
    stage.rig.send(primary, &be::answer(&[&["77"]]));
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("select 1"));
    let sent = stage.rig.gets(standby).concat();
    assert!(sent.contains("'lock_timeout','77'") && !sent.contains("LISTEN"), "{sent}");
    stage.rig.send(standby, &[be::replayed(1), be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
    hears(&mut stage, client, notify_listener);
}

#[test]
fn a_standby_that_is_asked_what_its_session_holds_says_nothing_of_channels() {
    let (mut stage, client, [_, standby, notify_listener]) = listening("app_auto");
    let text = "/* pgweir: standby */ do 'begin end'";
    stage.rig.send(client, &fe::query(text));
    assert_eq!(stage.rig.gets(standby), [format!("Query {text}")]);
    stage.rig.send(standby, &done("DO"));
    channels(&mut stage.rig, standby, &[]);
    assert_eq!(stage.rig.gets(client), ["Complete DO", "Ready I"]);
    hears(&mut stage, client, notify_listener);
    runs_alone(&mut stage, client, standby, "select 1");
}

#[test]
fn what_ends_listening_is_the_primarys() {
    for text in ["/* pgweir: standby */ unlisten a", "/* pgweir: standby */ DISCARD ALL"] {
        let (mut stage, client, [primary, standby, _]) = listening("app_auto");
        stage.rig.send(client, &fe::query(text));
        assert_eq!(stage.rig.gets(primary), [format!("Query {text}")]);
        stage.rig.gets_nothing(standby);
    }
    // Without channels a hint is a hint.
    let (mut stage, client, _, standby) = balanced_in("", "app_auto");
    stage.rig.send(client, &fe::query("/* pgweir: standby */ unlisten a"));
    assert_eq!(stage.rig.gets(standby), ["Query /* pgweir: standby */ unlisten a"]);
}

/// A client need not wait for the answer at the standby before it sends UNLISTEN.
#[test]
fn what_ends_listening_is_the_primarys_also_behind_a_read() {
    let (mut stage, client, [primary, standby, _]) = listening("app_auto");
    let read = "/* pgweir: standby */ show work_mem";
    stage.rig.send(client, &[fe::query(read), fe::query("unlisten a"), fe::query("select 1")].concat());
    assert_eq!(stage.rig.gets(standby), [format!("Query {read}")]);
    stage.rig.gets_nothing(primary);
    stage.rig.send(standby, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(stage.rig.gets(client).last().map(String::as_str), Some("Ready I"));
    assert_eq!(stage.rig.gets(primary)[0], "Query unlisten a");
}

#[test]
fn a_transaction_at_a_standby_does_not_end_it() {
    let (mut stage, client, [primary, standby, _]) = listening("app_auto");
    begins(&mut stage, client, "begin read only");
    stage.rig.send(client, &fe::query("select a from t"));
    assert_eq!(stage.rig.gets(standby), with_begin("begin read only", "select a from t"));
    stage.rig.send(standby, &[begun(), be::one_row("1"), be::ready('T')].concat());
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("unlisten a"));
    assert_eq!(stage.rig.gets(standby), ["Query SELECT \"pgweir:UNLISTEN\""]);
    stage.rig.gets_nothing(primary);
}

#[test]
fn a_transaction_that_was_sent_to_a_standby_does_not_end_it() {
    for behind in [false, true] {
        let (mut stage, client, [_, standby, notify_listener]) = listening("app_auto");
        let begin = "/* pgweir: standby */ begin isolation level repeatable read";
        stage.rig.send(client, &fe::query(&format!("{begin}; select 1")));
        stage.rig.gets_raw(standby);
        stage.rig.send(standby, &[be::complete("BEGIN"), be::one_row("1"), be::ready('T')].concat());
        stage.rig.gets_raw(client);
        let unlisten =
            [fe::parse("", "select 1; unlisten a"), fe::bind(""), fe::execute(), fe::sync()].concat();
        match behind {
            true => {
                let group = [fe::parse("", "select 2"), fe::bind(""), fe::execute()].concat();
                stage.rig.send(client, &[group, unlisten].concat());
                let sent = stage.rig.gets(standby);
                assert_eq!(
                    sent[..4],
                    ["Parse  select 2", "Bind ", "Execute", "Parse pgweir SELECT \"pgweir:UNLISTEN\""]
                );
            }
            false => {
                stage.rig.send(client, &fe::query("unlisten *"));
                assert_eq!(stage.rig.gets(standby), ["Query SELECT \"pgweir:UNLISTEN\""]);
                let refused = be::error("42703", "column \"pgweir:UNLISTEN\" does not exist");
                stage.rig.send(standby, &[refused, be::ready('E')].concat());
                let told = stage.rig.gets(client);
                assert!(told[0].starts_with("ERROR 0A000 cannot use UNLISTEN"), "{told:?}");
            }
        }
        stage.rig.gets_nothing(notify_listener);
    }
}

/// The UNLISTEN is behind more bytes than a client's other messages may take before they are sent on.
#[test]
fn a_long_text_does_not_end_it_either() {
    let (mut stage, client, [_, standby, notify_listener]) = listening("app_auto");
    let begin = "/* pgweir: standby */ begin isolation level repeatable read; select 1";
    stage.rig.send(client, &fe::query(begin));
    stage.rig.gets_raw(standby);
    stage.rig.send(standby, &[be::complete("BEGIN"), be::one_row("1"), be::ready('T')].concat());
    stage.rig.gets_raw(client);
    let text = fe::query(&format!("select 1 /* {} */; unlisten a", "x".repeat(100_000)));
    for piece in text.chunks(4096) {
        stage.rig.gets_nothing(standby);
        stage.rig.send(client, piece);
    }
    assert_eq!(stage.rig.gets(standby), ["Query SELECT \"pgweir:UNLISTEN\""]);
    stage.rig.gets_nothing(notify_listener);
}

/// The standby is promoted before it runs the LISTEN, which it then does not refuse. Its connection ends, and with it the client's: no client
/// is told that it listens, and then hears nothing.
#[test]
fn a_listen_at_a_node_that_was_promoted_is_not_forgotten() {
    let (mut stage, client, primary, standby) = balanced_in("", "app_auto");
    let text = "/* pgweir: standby */ listen a";
    stage.rig.send(client, &fe::query(text));
    assert_eq!(stage.rig.gets(standby), [format!("Query {text}")]);
    let off = be::parameter("in_hot_standby", "off");
    stage.rig.send(standby, &[be::complete("LISTEN"), off, be::ready('I')].concat());
    channels(&mut stage.rig, standby, &["a"]);
    let told = stage.rig.gets(client);
    assert!(told.last().is_some_and(|line| line.starts_with("FATAL 08006")), "{told:?}");
    assert!(stage.rig.is_closed(client));
    stage.rig.gets_nothing(primary);
}

#[test]
fn a_client_that_listens_may_leave_a_standby() {
    let (mut stage, client, [primary, standby, notify_listener]) = listening("app_first");
    begins(&mut stage, client, "begin");
    stage.rig.send(client, &fe::query("select a from t"));
    assert_eq!(stage.rig.gets(standby), with_begin("begin", "select a from t"));
    stage.rig.send(standby, &[begun(), be::one_row("1"), be::ready('T')].concat());
    stage.rig.gets_raw(client);
    stage.rig.send(client, &fe::query("unlisten a"));
    assert_eq!(stage.rig.gets(standby), ["Query ROLLBACK"]);
    stage.rig.send(standby, &done("ROLLBACK"));
    assert_eq!(stage.rig.gets(primary), with_begin("begin", "unlisten a"));
    stage.rig.gets_nothing(notify_listener);
}
