//! The console: commands, what they do, and which users may give them.

use pgweir_core::console::command::Outcome;
use pgweir_core::driver::Peer;
use pgweir_core::mail::{Mail, Question, Shutdown};

use crate::rig::{End, Rig, be, fe};

fn busy(rig: &mut Rig) -> (End, End) {
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    (client, server)
}

fn finish(rig: &mut Rig, server: End) {
    rig.send(server, &[be::complete("SELECT 1"), be::ready('I')].concat());
}

#[test]
fn pause_waits_for_running_statements_and_resume_goes_on() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let console = rig.console();
    assert_eq!(rig.command(console, "PAUSE"), Vec::<String>::new());
    finish(&mut rig, server);
    assert!(rig.is_closed(server));
    assert_eq!(rig.gets(console), ["Complete PAUSE", "Ready I"]);
    rig.gets(client);
    rig.send(client, &fe::query("select 2"));
    rig.pass_s(3);
    assert_eq!(rig.new_dials(), 0);
    assert_eq!(rig.command(console, "PAUSE"), ["ERROR 08P01 already suspended/paused", "Ready I"]);
    rig.command(console, "RESUME");
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 2"]);
}

#[test]
fn a_console_that_waits_for_a_pause_that_is_undone_is_not_told_that_all_is_paused() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let (one, two) = (rig.console(), rig.console());
    for (pause, resume) in [("PAUSE", "RESUME"), ("PAUSE app", "RESUME app")] {
        assert_eq!(rig.command(one, pause), Vec::<String>::new());
        assert_eq!(rig.command(two, resume), ["Complete RESUME", "Ready I"]);
        assert_eq!(rig.gets(one), ["ERROR 55000 PAUSE was undone by RESUME", "Ready I"]);
    }
    rig.command(one, "PAUSE");
    rig.mail(0, Mail::Continue);
    assert_eq!(rig.gets(one), ["ERROR 55000 PAUSE was undone by RESUME", "Ready I"]);
    rig.command(one, "PAUSE app");
    rig.reload("", "other = host=pg");
    assert_eq!(rig.gets(one), ["ERROR 55000 PAUSE was undone: database removed", "Ready I"]);
    assert!(rig.is_closed(client) && rig.is_closed(server));
}

#[test]
fn a_pause_that_is_undone_for_one_worker_is_for_all() {
    let mut rig = Rig::with("", "app = host=pg", 2);
    let (_, _) = busy(&mut rig);
    let (one, two) = (rig.console_at(0), rig.console_at(1));
    assert_eq!(rig.command(one, "PAUSE"), Vec::<String>::new());
    rig.command(two, "RESUME");
    assert_eq!(rig.gets(one), ["ERROR 55000 PAUSE was undone by RESUME", "Ready I"]);
}

#[test]
fn a_cancelled_pause_is_undone_and_says_so() {
    let mut rig = Rig::with("", "app = host=pg\nother = host=pg", 1);
    let (client, server) = busy(&mut rig);
    let console = rig.console();
    for pause in ["PAUSE", "PAUSE app"] {
        assert_eq!(rig.command(console, pause), Vec::<String>::new());
        rig.cancel(console);
        assert_eq!(rig.gets(console), ["ERROR 57014 canceling PAUSE due to user request", "Ready I"]);
    }
    finish(&mut rig, server);
    rig.gets(client);
    rig.send(client, &fe::query("select 2"));
    assert_eq!(rig.gets(server), ["Query select 2"], "nothing is paused");
    assert_eq!(rig.gets(console), Vec::<String>::new(), "nothing more is said");
}

#[test]
fn a_cancelled_wait_close_leaves_a_pause_alone() {
    let mut rig = Rig::with("", "app = host=pg\nother = host=pg", 1);
    let (_, server) = busy(&mut rig);
    let (console, other) = (rig.console(), rig.console());
    rig.command(console, "RECONNECT");
    assert_eq!(rig.command(console, "WAIT_CLOSE"), Vec::<String>::new());
    assert_eq!(rig.command(other, "PAUSE"), Vec::<String>::new());
    rig.cancel(console);
    assert_eq!(rig.gets(console), ["ERROR 57014 canceling WAIT_CLOSE due to user request", "Ready I"]);
    finish(&mut rig, server);
    assert_eq!(rig.gets(other), ["Complete PAUSE", "Ready I"]);
}

#[test]
fn pause_of_one_database_leaves_the_others() {
    let mut rig = Rig::with("", "app = host=pg\nother = host=pg", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    let other = rig.client_with(&[("user", "alice"), ("database", "other")]);
    let others = rig.dialed();
    let console = rig.console();
    assert_eq!(rig.command(console, "PAUSE app"), ["Complete PAUSE", "Ready I"]);
    assert!(rig.is_closed(server) && !rig.is_closed(others));
    rig.send(client, &fe::query("select 1"));
    rig.send(other, &fe::query("select 2"));
    assert_eq!(rig.gets(others), ["Query select 2"]);
    assert_eq!(rig.new_dials(), 0);
    rig.command(console, "RESUME app");
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn reconnect_replaces_servers_when_they_are_free() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let console = rig.console();
    assert_eq!(rig.command(console, "RECONNECT"), ["Complete RECONNECT", "Ready I"]);
    assert!(!rig.is_closed(server));
    assert_eq!(rig.command(console, "WAIT_CLOSE"), Vec::<String>::new());
    finish(&mut rig, server);
    assert!(rig.is_closed(server));
    assert_eq!(rig.gets(console), ["Complete WAIT_CLOSE", "Ready I"]);
    rig.gets(client);
    rig.send(client, &fe::query("select 2"));
    let next = rig.dialed();
    rig.greet(next);
    assert_eq!(rig.gets(next), ["Query select 2"]);
}

#[test]
fn kill_disconnects_all_clients_and_leaves_the_database_paused() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let waiting = rig.knock("bob", "app");
    let bobs = rig.dialed();
    let console = rig.console();
    assert_eq!(rig.command(console, "KILL app"), ["Complete KILL", "Ready I"]);
    assert_eq!(rig.gets(client), ["FATAL 57P01 database removed"]);
    assert_eq!(rig.refusal(waiting), "FATAL 57P01 database removed");
    assert!(rig.is_closed(server) && rig.is_closed(bobs));
    assert_eq!(rig.shared.clients.taken(), 0);
    assert_eq!(rig.shared.database("app").servers.taken(), 0);
    rig.knock("alice", "app");
    assert_eq!(rig.new_dials(), 0, "paused");
    rig.command(console, "RESUME app");
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn kill_client_ends_one() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    let console = rig.console();
    let rows = rig.command(console, "SHOW CLIENTS");
    let row = rows.iter().find(|row| row.starts_with("Row C,alice")).expect("a row");
    let id = row.split(',').nth(20).expect("an id").to_owned();
    assert_eq!(rig.command(console, &format!("KILL_CLIENT {id}")), ["Complete KILL_CLIENT", "Ready I"]);
    assert_eq!(rig.gets(client), ["FATAL 57P01 admin forced disconnect"]);
    rig.lets_go(server);
    let again = rig.command(console, &format!("KILL_CLIENT {id}"));
    assert_eq!(again, ["ERROR 08P01 client not found", "Ready I"]);
}

#[test]
fn a_client_waits_while_its_statement_runs_and_not_between_two() {
    for mode in ["transaction", "session"] {
        let mut rig = Rig::new(&format!("pool_mode = {mode}\ndefer_begin = off"));
        let client = rig.client("alice");
        let server = rig.dialed();
        let console = rig.console();
        let wait_s = |rig: &mut Rig| {
            let rows = rig.command(console, "SHOW CLIENTS");
            let row = rows.iter().find(|row| row.starts_with("Row C,alice")).expect("a row");
            row.split(',').nth(11).expect("wait").to_owned()
        };
        rig.send(client, &fe::query("begin"));
        rig.pass_s(3);
        assert_eq!(wait_s(&mut rig), "3", "{mode}: it runs");
        rig.send(server, &[be::complete("BEGIN"), be::ready('T')].concat());
        rig.pass_s(3);
        assert_eq!(wait_s(&mut rig), "0", "{mode}: it is open");
        rig.send(client, &fe::query("select 1"));
        rig.pass_s(2);
        assert_eq!(wait_s(&mut rig), "2", "{mode}: the next one runs");
        rig.send(server, &[be::complete("SELECT 1"), be::ready('T')].concat());
        rig.send(client, &fe::query("commit"));
        rig.send(server, &[be::complete("COMMIT"), be::ready('I')].concat());
        rig.pass_s(2);
        assert_eq!(wait_s(&mut rig), "0", "{mode}: it is over");
    }
}

#[test]
fn disable_refuses_new_clients_only() {
    let mut rig = Rig::new("");
    let client = rig.client("alice");
    let server = rig.dialed();
    let console = rig.console();
    rig.command(console, "DISABLE app");
    let refused = rig.knock("alice", "app");
    assert_eq!(rig.refusal(refused), "FATAL 55000 database \"app\" is disabled");
    rig.send(client, &fe::query("select 1"));
    assert_eq!(rig.gets(server), ["Query select 1"]);
    rig.command(console, "ENABLE app");
    rig.client("alice");
}

/// The end of a row of SHOW DATABASES or SHOW USERS: what is counted, and what may be.
fn shown(rig: &mut Rig, console: End, what: &str, name: &str) -> Vec<String> {
    let rows = rig.command(console, what);
    let row = rows.iter().find(|row| row.starts_with(&format!("Row {name},"))).expect("a row");
    row.split(',').map(str::to_owned).collect()
}

#[test]
fn limits_of_users_and_databases_count_the_console() {
    for (main, name) in [
        ("max_user_client_connections = 2", "max_user_client_connections"),
        ("max_db_client_connections = 2", "max_db_client_connections"),
    ] {
        let mut rig = Rig::new(&format!("stats_users = bob, carol\n{main}"));
        let admins: Vec<End> = (0..3).map(|_| rig.console()).collect();
        for admin in &admins[1..] {
            rig.eof(*admin);
        }
        let first = rig.knock("bob", "pgbouncer");
        let second = rig.knock("bob", "pgbouncer");
        if name == "max_user_client_connections" {
            assert_eq!(rig.gets(second).last().map(String::as_str), Some("Ready I"), "{name}");
            let elsewhere = rig.knock("bob", "app");
            assert_eq!(rig.refusal(elsewhere), format!("FATAL 53300 client connections exceeded ({name})"));
            let row = shown(&mut rig, admins[0], "SHOW USERS", "bob");
            assert_eq!(row[6..], ["2", "2"]);
            assert_eq!(shown(&mut rig, admins[0], "SHOW USERS", "admin")[7], "1", "admins are counted");
        } else {
            assert_eq!(rig.refusal(second), format!("FATAL 53300 client connections exceeded ({name})"));
            let row = shown(&mut rig, admins[0], "SHOW DATABASES", "pgbouncer");
            assert_eq!(row[13..15], ["2", "2"]);
        }
        rig.console();
        rig.eof(first);
        let third = rig.knock("carol", "pgbouncer");
        assert_eq!(rig.gets(third).last().map(String::as_str) == Some("Ready I"), name.contains("user"));
    }
}

#[test]
fn suspend_waits_until_all_is_flushed_or_its_time_is_over() {
    let mut rig = Rig::new("suspend_timeout = 5");
    let (client, server) = busy(&mut rig);
    rig.stop_taking(client);
    rig.send(server, &be::columns());
    let console = rig.console();
    assert_eq!(rig.command(console, "SUSPEND"), Vec::<String>::new());
    rig.pass_s(7);
    assert_eq!(rig.gets(console), ["Complete SUSPEND", "Ready I"]);
    assert!(rig.is_closed(client), "it did not take its bytes in time");
    assert_eq!(rig.command(console, "RESUME"), ["Complete RESUME", "Ready I"]);
}

#[test]
fn a_suspend_that_is_undone_disconnects_no_client() {
    let mut rig = Rig::new("suspend_timeout = 5");
    let (client, server) = busy(&mut rig);
    rig.stop_taking(client);
    rig.send(server, &be::columns());
    let (one, two) = (rig.console(), rig.console());
    assert_eq!(rig.command(one, "SUSPEND"), Vec::<String>::new());
    assert_eq!(rig.command(two, "RESUME"), ["Complete RESUME", "Ready I"]);
    assert_eq!(rig.gets(one), ["ERROR 55000 SUSPEND was undone by RESUME", "Ready I"]);
    assert_eq!(rig.command(one, "SUSPEND"), Vec::<String>::new());
    rig.cancel(one);
    assert_eq!(rig.gets(one), ["ERROR 57014 canceling SUSPEND due to user request", "Ready I"]);
    rig.pass_s(7);
    assert!(!rig.is_closed(client));
}

#[test]
fn a_suspend_is_undone_when_its_console_leaves() {
    let mut rig = Rig::new("");
    let (client, server) = busy(&mut rig);
    rig.stop_taking(client);
    rig.send(server, &be::columns());
    let console = rig.console();
    rig.command(console, "SUSPEND");
    assert!(rig.is_paused(client));
    rig.eof(console);
    assert!(!rig.is_paused(client));
}

#[test]
fn shutdown_waits_as_it_is_told() {
    for (text, kind) in
        [("WAIT_FOR_CLIENTS", Shutdown::WaitForClients), ("WAIT_FOR_SERVERS", Shutdown::WaitForServers)]
    {
        let mut rig = Rig::new("");
        let (client, server) = busy(&mut rig);
        let console = rig.console();
        let told = rig.command(console, &format!("SHUTDOWN {text}"));
        assert_eq!(told, ["Complete SHUTDOWN", "Ready I"]);
        assert!(matches!(rig.asked()[..], [Question::Shutdown(asked)] if asked == kind));
        rig.mail(0, Mail::Shutdown(kind));
        assert!(rig.stopped_listening());
        rig.pass_us(1);
        let late = rig.knock("alice", "app");
        assert_eq!(rig.refusal(late), "FATAL 57P03 pooler is shutting down");
        assert!(rig.asked().is_empty(), "a statement runs");
        finish(&mut rig, server);
        assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
        if kind == Shutdown::WaitForClients {
            assert!(rig.asked().is_empty(), "a client is there");
            rig.send(client, &fe::query("select 2"));
            assert_eq!(rig.gets(server), ["Query select 2"], "and may go on");
            rig.eof(client);
        }
        assert!(matches!(rig.asked()[..], [Question::Drained(_)]));
    }
}

#[test]
fn a_shutdown_ends_suspend() {
    for kind in [Shutdown::WaitForClients, Shutdown::WaitForServers] {
        let mut rig = Rig::new("");
        let (client, server) = busy(&mut rig);
        let console = rig.console();
        assert_eq!(rig.command(console, "SUSPEND"), ["Complete SUSPEND", "Ready I"]);
        assert!(rig.is_paused(client));
        rig.mail(0, Mail::Shutdown(kind));
        assert!(!rig.is_paused(client), "it may finish");
        finish(&mut rig, server);
        assert_eq!(rig.gets(client), ["Complete SELECT 1", "Ready I"]);
        if kind == Shutdown::WaitForClients {
            rig.send(client, &fe::query("select 2"));
            assert_eq!(rig.gets(server), ["Query select 2"]);
            rig.eof(client);
        }
        assert!(matches!(rig.asked()[..], [Question::Drained(_)]));
        // A command that is given later has an end, too.
        assert_eq!(rig.command(console, "SUSPEND").last().map(String::as_str), Some("Ready I"));
        assert_eq!(rig.command(console, "RESUME"), ["Complete RESUME", "Ready I"]);
    }
}

#[test]
fn a_pause_can_be_lifted_while_clients_are_waited_for() {
    for (pause, resume, early) in
        [("PAUSE", "RESUME", true), ("PAUSE app", "RESUME app", true), ("PAUSE", "RESUME", false)]
    {
        let mut rig = Rig::new("");
        let client = rig.client("alice");
        let console = rig.console();
        if early {
            rig.command(console, pause);
        }
        rig.mail(0, Mail::Shutdown(Shutdown::WaitForClients));
        if !early {
            rig.command(console, pause);
        }
        let before = rig.dials.len();
        rig.send(client, &fe::query("select 1"));
        assert_eq!(rig.dials.len(), before, "it is paused");
        assert_eq!(rig.command(console, resume), ["Complete RESUME", "Ready I"]);
        assert_eq!(rig.dials.len(), before + 1);
    }
}

#[test]
fn with_fast_close_an_idle_session_ends_when_its_server_is_to_be_replaced() {
    let main = "pool_mode = session\nserver_fast_close = 1";
    for how in ["RECONNECT", "RELOAD"] {
        let mut rig = Rig::new(main);
        let (idle, first) = busy(&mut rig);
        finish(&mut rig, first);
        rig.gets(idle);
        let (within, second) = (rig.client("alice"), rig.dialed());
        rig.send(within, &fe::query("begin"));
        rig.send(second, &[be::complete("BEGIN"), be::ready('T')].concat());
        rig.gets(within);
        let console = rig.console();
        match how {
            "RECONNECT" => drop(rig.command(console, "RECONNECT")),
            _ => rig.reload(main, "app = host=elsewhere"),
        }
        rig.send(console, &fe::query("WAIT_CLOSE app"));
        rig.pass_s(1);
        assert_eq!(rig.gets(idle), ["FATAL 08006 database configuration changed"], "{how}");
        assert!(rig.is_closed(first) && !rig.is_closed(within), "{how}");
        rig.gets_nothing(console);
        rig.send(within, &fe::query("commit"));
        rig.send(second, &[be::complete("COMMIT"), be::ready('I')].concat());
        let told = rig.gets(within);
        assert_eq!(told, ["Complete COMMIT", "Ready I", "FATAL 08006 database configuration changed"]);
        assert_eq!(rig.gets(console), ["Complete WAIT_CLOSE", "Ready I"]);
    }
}

#[test]
fn a_database_that_is_removed_takes_its_switches_along() {
    for with_fallback in ["", "* = host=pg"] {
        let mut rig = Rig::with("", "app = host=pg\nother = host=pg", 1);
        let console = rig.console();
        for command in ["PAUSE app", "DISABLE app", "DISABLE other"] {
            rig.command(console, command);
        }
        rig.reload("", &format!("other = host=pg\n{with_fallback}"));
        assert_eq!(rig.command(console, "SUSPEND"), ["Complete SUSPEND", "Ready I"]);
        assert_eq!(rig.command(console, "RESUME"), ["Complete RESUME", "Ready I"]);
        rig.reload("", "app = host=pg\nother = host=pg");
        let client = rig.client("alice");
        rig.send(client, &fe::query("select 1"));
        let server = rig.dialed();
        assert_eq!(rig.gets(server), ["Query select 1"], "{with_fallback}");
        let refused = rig.knock("alice", "other");
        assert_eq!(rig.refusal(refused), "FATAL 55000 database \"other\" is disabled", "it stayed");
    }
}

#[test]
fn a_shorter_stats_period_begins_at_once() {
    let mut rig = Rig::new("stats_period = 60\nlog_stats = 1");
    rig.client("alice");
    rig.pass_s(3);
    rig.asked();
    rig.reload("stats_period = 1\nlog_stats = 1", "app = host=pg");
    rig.pass_s(3);
    let periods = rig.asked().iter().filter(|asked| matches!(asked, Question::PeriodOver(_))).count();
    assert!((2..=3).contains(&periods), "{periods}");
}

#[test]
fn shutdown_now_just_ends() {
    let mut rig = Rig::new("");
    let console = rig.console();
    assert_eq!(rig.command(console, "SHUTDOWN"), Vec::<String>::new());
    assert!(rig.is_closed(console));
    assert!(matches!(rig.asked()[..], [Question::Shutdown(Shutdown::Now)]));
}

#[test]
fn a_shutdown_for_servers_refuses_waiting_clients() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (_, _) = busy(&mut rig);
    let waiting = rig.client("alice");
    rig.send(waiting, &fe::query("select 2"));
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForServers));
    assert_eq!(rig.gets(waiting), ["FATAL 57P01 server shutting down"]);
}

#[test]
fn a_shutdown_for_servers_serves_what_was_asked_before_while_a_server_comes() {
    for mode in ["transaction", "statement", "session"] {
        let mut rig = Rig::new(&format!("pool_mode = {mode}\ndefault_pool_size = 1"));
        rig.catalog = None;
        let client = rig.client("alice");
        let later = if mode == "session" { None } else { Some(rig.client("alice")) };
        let server = rig.dialed();
        rig.send(client, &fe::query("select 1"));
        later.into_iter().for_each(|later| rig.send(later, &fe::query("select 2")));
        if mode != "session" {
            assert_eq!(rig.gets(server).len(), 1, "it is asked for its routines: not free yet");
        }
        rig.mail(0, Mail::Shutdown(Shutdown::WaitForServers));
        rig.gets_nothing(client);
        assert!(!rig.is_closed(client), "{mode}");
        if let Some(later) = later {
            assert_eq!(
                rig.gets(later),
                ["FATAL 57P01 server shutting down"],
                "{mode}: no server comes for it"
            );
        }
        if mode != "session" {
            rig.send(server, &be::answer(&[]));
        }
        assert_eq!(rig.gets(server), ["Query select 1"], "{mode}");
        assert!(rig.asked().is_empty(), "{mode}: the server is waited for");
        rig.send(server, &[be::one_row("1"), be::ready('I')].concat());
        assert_eq!(rig.gets(client).last().map(String::as_str), Some("Ready I"), "{mode}");
        if mode != "session" {
            assert!(rig.is_closed(server), "{mode}");
            assert!(matches!(rig.asked()[..], [Question::Drained(_)]), "{mode}");
        }
        rig.send(client, &fe::query("select 3"));
        if mode != "session" {
            assert_eq!(rig.gets(client), ["FATAL 57P01 server shutting down"], "{mode}");
        }
    }
}

#[test]
fn a_client_that_loses_its_server_during_a_shutdown_for_servers_is_told() {
    let mut rig = Rig::new("");
    rig.catalog = None;
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForServers));
    rig.gets_nothing(client);
    rig.eof(server);
    assert_eq!(rig.gets(client), ["FATAL 57P01 server shutting down"]);
    assert!(matches!(rig.asked()[..], [Question::Drained(_)]));
}

#[test]
fn a_shutdown_for_servers_serves_no_client_of_a_paused_pool() {
    let mut rig = Rig::new("");
    rig.catalog = None;
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("select 1"));
    let console = rig.console();
    rig.send(console, &fe::query("PAUSE app"));
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForServers));
    assert_eq!(rig.gets(client), ["FATAL 57P01 server shutting down"]);
    rig.gets(server);
    rig.send(server, &be::answer(&[]));
    assert!(rig.is_closed(server));
}

#[test]
fn reload_is_the_control_planes_affair_and_its_outcome_is_told() {
    let mut rig = Rig::new("");
    let console = rig.console();
    for (outcome, answer) in [
        (Outcome::Done, "Complete RELOAD"),
        (Outcome::Failed("RELOAD failed".to_owned()), "ERROR F0000 RELOAD failed"),
    ] {
        rig.send(console, &[fe::query("RELOAD"), fe::query("SHOW VERSION")].concat());
        rig.gets_nothing(console);
        let asked = rig.asked();
        let [Question::Reload { ticket, .. }] = asked[..] else { panic!("{asked:?}") };
        rig.mail(0, Mail::Outcome { ticket, outcome });
        let told = rig.gets(console);
        assert_eq!(told[0], answer);
        assert_eq!(told.last().map(String::as_str), Some("Ready I"));
        assert_eq!(told.len(), 6, "the command behind it is carried out, too: {told:?}");
    }
}

#[test]
fn a_reload_takes_effect() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (client, server) = busy(&mut rig);
    let other = rig.client("alice");
    rig.send(other, &fe::query("select 2"));
    assert_eq!(rig.new_dials(), 0);
    rig.reload("default_pool_size = 2", "app = host=pg");
    assert_eq!(rig.new_dials(), 1, "a larger pool");
    rig.reload("default_pool_size = 2", "app = host=elsewhere");
    assert!(!rig.is_closed(server));
    finish(&mut rig, server);
    assert!(rig.is_closed(server), "it is a server of the old host");
    rig.gets(client);
    rig.reload("default_pool_size = 2", "new = host=pg");
    assert_eq!(rig.gets(client), ["FATAL 57P01 database removed"]);
    assert_eq!(rig.gets(other), ["FATAL 57P01 database removed"]);
    assert_eq!(rig.shared.database("app").servers.taken(), 0);
    assert_eq!(rig.shared.clients.taken(), 0);
}

#[test]
fn a_name_that_moves_between_its_entry_and_the_star_is_another_database() {
    let star = "* = host=star";
    let mut rig = Rig::with("default_pool_size = 1", &format!("app = host=pg\n{star}"), 1);
    let (client, server) = busy(&mut rig);
    rig.reload("default_pool_size = 1", star);
    assert_eq!(rig.gets(client), ["FATAL 57P01 database removed"]);
    assert!(rig.is_closed(server));
    let next = rig.knock("alice", "app");
    let server = rig.dialed();
    assert!(rig.endpoint(server).contains("star"), "{}", rig.endpoint(server));
    rig.greet(server);
    rig.gets(next);
    rig.send(next, &fe::query("select 1"));
    rig.gets(server);
    // And back: the client that is there stays, the servers of the other database do not.
    rig.reload("default_pool_size = 1", &format!("app = host=pg\n{star}"));
    assert!(!rig.is_closed(server));
    finish(&mut rig, server);
    assert!(rig.is_closed(server));
    rig.gets(next);
    rig.send(next, &fe::query("select 2"));
    let server = rig.dialed();
    assert!(rig.endpoint(server).contains("pg"), "{}", rig.endpoint(server));
}

#[test]
fn with_verbose_it_is_logged_which_client_gets_which_server_and_what_is_set_there() {
    for (main, logged) in [("verbose = 1", true), ("", false)] {
        let mut rig = Rig::new(&format!("default_pool_size = 1\n{main}"));
        let other = rig.client("alice");
        let server = rig.dialed();
        rig.send(other, &fe::query("select 1"));
        rig.gets(server);
        finish(&mut rig, server);
        let client = rig.accept();
        let startup = [("user", "alice"), ("database", "app"), ("TimeZone", "Asia/Tokyo")];
        rig.send(client, &fe::startup(&startup));
        rig.gets(server);
        rig.send(
            server,
            &[be::parameter("TimeZone", "Asia/Tokyo"), be::complete("SET"), be::ready('I')].concat(),
        );
        rig.gets_loosely(server);
        rig.gets(client);
        rig.send(other, &fe::query("select 2"));
        for text in [" gets S-0x", " gives S-0x", "varcache_apply: SET TimeZone="] {
            assert_eq!(rig.logged(text), logged, "{text} {:?}", rig.gets(server));
        }
    }
}

#[test]
fn errors_name_what_is_wrong() {
    let mut rig = Rig::new("");
    let console = rig.console();
    for (text, error) in [
        ("PAUSE nowhere", "no such database: nowhere"),
        ("PAUSE pgbouncer", "cannot pause admin db: pgbouncer"),
        ("RESUME", "pooler is not paused/suspended"),
        ("RESUME app", "database app is not paused"),
        ("DISABLE", "a database is required"),
        ("KILL_CLIENT x", "invalid client pointer supplied"),
        ("FOO", "invalid command 'FOO', use SHOW HELP;"),
    ] {
        assert_eq!(rig.command(console, text), [format!("ERROR 08P01 {error}"), "Ready I".to_owned()]);
    }
}

#[test]
fn stats_users_may_look_and_not_act() {
    let mut rig = Rig::new("stats_users = bob");
    let bob = rig.knock("bob", "pgbouncer");
    rig.gets(bob);
    for text in [
        "PAUSE",
        "RESUME",
        "DISABLE app",
        "ENABLE app",
        "RECONNECT",
        "KILL app",
        "KILL_CLIENT 1",
        "SUSPEND",
        "RELOAD",
        "SHUTDOWN",
        "SHUTDOWN WAIT_FOR_CLIENTS",
        "WAIT_CLOSE",
        "SET pool_mode=session",
        "SHOW FDS",
    ] {
        assert_eq!(rig.command(bob, text), ["ERROR 08P01 admin access needed", "Ready I"], "{text}");
    }
    assert_eq!(rig.command(bob, "SHOW POOLS").last().map(String::as_str), Some("Ready I"));
    assert!(rig.asked().is_empty());
}

#[test]
fn the_extended_protocol_is_served_on_the_console() {
    let mut rig = Rig::new("");
    let console = rig.console();
    let group =
        [fe::parse("", "SHOW VERSION"), fe::bind(""), fe::describe_portal(), fe::execute(), fe::sync()];
    rig.send(console, &group.concat());
    let told = rig.gets(console);
    assert_eq!(told.len(), 6, "{told:?}");
    assert_eq!(told[4..], ["Complete SHOW", "Ready I"]);
    // The error is told once, and the rest of the group ignored.
    rig.send(
        console,
        &[fe::parse("", "PAUSE nowhere"), fe::bind(""), fe::execute(), fe::execute(), fe::sync()].concat(),
    );
    let told = rig.gets(console);
    assert_eq!(told[2..], ["ERROR 08P01 no such database: nowhere", "Ready I"]);
    rig.send(console, &[7; 20].map(|_| fe::parse("", "SHOW VERSION")).concat());
    assert_eq!(rig.gets(console).len(), 20, "the unnamed statement is replaced");
}

#[test]
fn show_pools_counts_what_there_is() {
    let mut rig = Rig::new("default_pool_size = 1");
    let (_, _) = busy(&mut rig);
    let waiting = rig.client("alice");
    rig.client("alice");
    rig.send(waiting, &fe::query("select 2"));
    rig.pass_us(2_500_000);
    let console = rig.console();
    let row = rig.pool(console, "app,alice");
    assert_eq!(row[2..4], ["2", "1"], "cl_active, cl_waiting");
    assert_eq!(row[6..13], ["1", "0", "0", "0", "0", "0", "0"], "servers");
    assert_eq!(row[13..15], ["2", "500000"], "maxwait");
}

#[test]
fn a_session_server_is_reset_when_a_reload_releases_it() {
    let mut rig = Rig::with("", "app = host=pg pool_mode=session", 1);
    let client = rig.client("alice");
    let server = rig.dialed();
    rig.send(client, &fe::query("create temp table t ()"));
    finish(&mut rig, server);
    rig.gets(server);
    rig.reload("", "app = host=pg pool_mode=transaction");
    rig.send(client, &fe::query("select 1"));
    rig.gets(server);
    finish(&mut rig, server);
    assert!(
        rig.is_closed(server) || rig.gets(server) == ["Query DISCARD ALL"],
        "what the session left there is not for the next client"
    );
}

#[test]
fn a_shutdown_does_not_become_less_urgent() {
    let mut rig = Rig::new("");
    let (_, server) = busy(&mut rig);
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForServers));
    rig.mail(0, Mail::Shutdown(Shutdown::WaitForClients));
    finish(&mut rig, server);
    assert!(rig.is_closed(server));
    assert!(matches!(rig.asked()[..], [Question::Drained(_)]), "the servers are gone");
}

/// SHOW CONFIG keeps PgBouncer's columns; where a value comes from is in a table beside it. What a successor gets is shown to a process of
/// the same user only: it may hold secrets.
#[test]
fn where_a_value_comes_from() {
    let mut rig = Rig::new("query_timeout = 77");
    let console = rig.console();
    let rows = rig.command(console, "SHOW CONFIG_EXTENDED");
    let row = |rows: &[String], start: &str| {
        rows.iter().find(|row| row.contains(start)).cloned().unwrap_or_default()
    };
    assert!(row(&rows, "query_timeout,77").contains(".ini:"), "{}", row(&rows, "query_timeout,77"));
    assert!(row(&rows, "tcp_keepcnt,").contains(",default"), "{}", row(&rows, "tcp_keepcnt,"));
    assert!(!row(&rig.command(console, "SHOW CONFIG"), "query_timeout,77").contains(".ini"));
    let refused = "ERROR 55000 only a process of the same user can ask for the overlay, over the unix socket";
    assert_eq!(rig.command(console, "SHOW OVERLAY"), [refused, "Ready I"]);
    let house = |same_user| Peer::Unix { pid: 77, uid: 1000, same_user, port: 6432 };
    let own = rig.accept_from(0, house(true));
    rig.send(own, &fe::startup(&[("user", "pgbouncer"), ("database", "pgbouncer")]));
    rig.gets(own);
    assert_eq!(rig.command(own, "SHOW OVERLAY").last().map(String::as_str), Some("Ready I"));
    assert!(!rig.command(own, "SHOW OVERLAY").iter().any(|line| line.contains("ERROR")));
}

#[test]
fn a_reload_that_ends_session_pooling_warns_of_what_sessions_lose() {
    for (connected, warned) in [(true, 1), (false, 0)] {
        let mut rig = Rig::new("pool_mode = session");
        let client = rig.client("alice");
        let server = rig.dialed();
        if connected {
            rig.send(client, &fe::query("set work_mem = '1MB'"));
            rig.gets(server);
            rig.send(server, &[be::complete("SET"), be::ready('I')].concat());
            rig.gets(client);
        } else {
            rig.eof(client);
        }
        rig.reload("pool_mode = transaction", "app = host=pg");
        assert_eq!(rig.logged_times("1 connected clients lose what their sessions hold"), warned);
        rig.reload("pool_mode = transaction\nquery_timeout = 3", "app = host=pg");
        assert_eq!(rig.logged_times("connected clients lose what their sessions hold"), warned);
    }
}
