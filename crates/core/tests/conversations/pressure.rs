//! Back-pressure: which clients are not read any more, and that none stays so.

use crate::rig::{Rig, be, fe};

/// More than any queue may hold before its source is paused.
const MUCH: usize = 600_000;

#[test]
fn a_slow_client_stops_its_server_until_it_has_read() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select much"));
    rig.stop_taking(client);
    rig.send(server, &[be::columns(), be::row_of(MUCH)].concat());
    assert!(rig.is_paused(server));
    rig.take_again(client);
    assert!(!rig.is_paused(server));
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client).len(), 4);
}

#[test]
fn a_released_server_is_read_from_again() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select much"));
    rig.stop_taking(client);
    let all = [be::columns(), be::row_of(MUCH), be::complete("SELECT 1"), be::ready('I')].concat();
    rig.send(server, &all);
    assert!(!rig.is_paused(server), "it is nobody's now");
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 1"));
    rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
    assert_eq!(rig.gets(other).len(), 4);
    rig.take_again(client);
    assert_eq!(rig.gets(client).len(), 4);
}

#[test]
fn a_server_is_read_from_again_when_its_slow_client_is_gone() {
    let mut rig = Rig::with("", "app = host=pg pool_mode=session", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select much"));
    rig.stop_taking(client);
    let all = [be::columns(), be::row_of(MUCH), be::complete("SELECT 1"), be::ready('I')].concat();
    rig.send(server, &all);
    assert!(rig.is_paused(server));
    rig.eof(client);
    assert!(!rig.is_paused(server), "its reset query must be answered");
    rig.gets(server);
    rig.send(server, &[be::complete("DISCARD ALL"), be::ready('I')].concat());
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
}

#[test]
fn a_slow_server_stops_its_client_until_it_has_read() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("copy t from stdin"));
    rig.send(server, &be::copy_in());
    rig.stop_taking(server);
    rig.send(client, &fe::copy_data(&vec![b'x'; MUCH]));
    assert!(rig.is_paused(client));
    rig.take_again(server);
    assert!(!rig.is_paused(client));
    rig.send(client, &fe::copy_done());
    rig.send(server, &[be::complete("COPY 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["CopyIn", "Complete COPY 1", "Ready I"]);
}

#[test]
fn named_binds_are_held_back_too() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &[fe::parse("s1", "select 1"), fe::sync()].concat());
    rig.send(server, &[be::parse_complete(), be::ready('I')].concat());
    rig.stop_taking(server);
    for _ in 0..60 {
        if rig.is_paused(client) {
            break;
        }
        rig.send(client, &fe::bind_with("s1", 10_000));
    }
    assert!(rig.is_paused(client), "{} bytes wait for the server", rig.backlog(server));
    rig.take_again(server);
    assert!(!rig.is_paused(client));
}

#[test]
fn a_client_that_waits_may_not_send_without_end() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (busy, client) = (rig.client("alice"), rig.client("alice"));
    let server = rig.dialed();
    rig.send(busy, &fe::query("select 1"));
    for _ in 0..20 {
        if !rig.is_paused(client) {
            rig.send(client, &fe::query(&"x".repeat(10_000)));
        }
    }
    assert!(rig.is_paused(client));
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert!(!rig.is_paused(client), "it has a server now, which takes everything");
    rig.raw(server);
}

#[test]
fn a_paused_client_is_read_again_when_its_server_is_settled() {
    let mut rig = Rig::new("default_pool_size = 1");
    let busy = rig.client("alice");
    let client = rig.client_with(&[("user", "alice"), ("database", "app"), ("application_name", "other")]);
    let server = rig.dialed();
    rig.send(busy, &fe::query("select 1"));
    for _ in 0..20 {
        if !rig.is_paused(client) {
            rig.send(client, &fe::query(&"x".repeat(10_000)));
        }
    }
    rig.raw(server);
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    let replay = fe::shown_replay(&["SET application_name='other';"], &["Query (10000 bytes)"]);
    assert_eq!(rig.gets(server), replay);
    // What follows the first statement waits for its answer.
    rig.gets_nothing(server);
    let settled = [be::replayed(1), be::parameter("application_name", "other"), be::complete("SELECT 1")];
    rig.send(server, &[settled.concat(), be::ready('I')].concat());
    assert!(!rig.is_paused(client));
}

#[test]
fn a_client_that_never_reads_is_not_answered_without_end() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    rig.stop_taking(client);
    let many = fe::sync().repeat(10_000);
    for _ in 0..100 {
        if rig.is_paused(client) {
            break;
        }
        rig.send(client, &many);
    }
    assert!(rig.is_paused(client), "{} bytes wait for the client", rig.backlog(client));
    rig.take_again(client);
    assert!(!rig.is_paused(client));
}

#[test]
fn console_answers_wait_for_a_reader() {
    let mut rig = Rig::new("");
    let console = rig.console();
    rig.stop_taking(console);
    rig.send(console, &fe::query("SHOW CONFIG").repeat(2000));
    assert!(rig.backlog(console) < 2_000_000, "{} bytes wait for the client", rig.backlog(console));
    let mut answers = 0;
    for _ in 0..2000 {
        rig.take_again(console);
        answers += rig.gets(console).iter().filter(|message| *message == "Ready I").count();
        rig.stop_taking(console);
    }
    assert_eq!(answers, 2000, "all are answered in the end");
}

#[test]
fn a_long_pipeline_is_bounded() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select pg_sleep(1000)"));
    let syncs = fe::sync().repeat(10_000);
    let mut sent = 0;
    while sent < 100 && !rig.is_paused(client) {
        rig.send(client, &syncs);
        sent += 1;
    }
    assert!(sent < 100, "a million answers are owed to one client");
    let due: usize = rig.gets(server).iter().filter(|message| *message == "Sync").count();
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    rig.send(server, &be::ready('I').repeat(due));
    assert!(!rig.is_paused(client), "answered, it may go on");
}

#[test]
fn suspend_stops_reading_and_resume_goes_on() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let console = rig.console();
    assert_eq!(rig.command(console, "SUSPEND"), ["Complete SUSPEND", "Ready I"]);
    assert!(rig.is_paused(client) && !rig.is_paused(console));
    let late = rig.accept();
    assert!(rig.is_paused(late));
    assert_eq!(rig.command(console, "RESUME"), ["Complete RESUME", "Ready I"]);
    assert!(!rig.is_paused(client) && !rig.is_paused(late));
}

#[test]
fn a_console_that_waits_is_not_read_without_end() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    rig.send(client, &fe::query("select 1"));
    let console = rig.console();
    rig.send(console, &fe::query("PAUSE"));
    for _ in 0..20 {
        if !rig.is_paused(console) {
            rig.send(console, &fe::query("SHOW VERSION").repeat(1000));
        }
    }
    assert!(rig.is_paused(console));
    let server = rig.dialed();
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
    assert!(!rig.is_paused(console));
}

#[test]
fn a_console_that_did_not_read_may_end_a_suspend() {
    let mut rig = Rig::new("");
    let (console, other) = (rig.console(), rig.console());
    rig.stop_taking(console);
    while !rig.is_paused(console) {
        rig.send(console, &fe::query("SHOW CONFIG"));
    }
    rig.command(other, "SUSPEND");
    rig.take_again(console);
    assert!(!rig.is_paused(console));
}
