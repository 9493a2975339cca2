//! `shared_limits`: what a pool does with its part of a limit that several poolers share.

use std::sync::Arc;

use pgweir_core::driver::{CloseMode, Closed};
use pgweir_core::mail::{Mail, Question, Scarce};
use pgweir_core::places::{BackendsSeen, LimitSeen};
use pgweir_core::shared::Counts;

use crate::rig::{End, Rig, be, fe};

const SHARED: &str =
    "shared_limits = etcd\netcd_endpoints = http://e:2379\nmax_db_connections = 4\nmultiplex_depth = 0";

fn of() -> Scarce {
    Scarce::Database("app".into())
}

fn counts(rig: &Rig) -> Arc<Counts> {
    rig.shared.counts(&of())
}

/// The control plane gives this process a part of the limit.
fn grant(rig: &mut Rig, part: u32) {
    rig.shared.hold_parts_until(u64::MAX);
    let counts = counts(rig);
    counts.servers.set_part(part);
    counts.keep(part);
    rig.mail(0, Mail::Parts);
}

/// A client whose statement runs on a server of its own.
fn busy(rig: &mut Rig) -> (End, End) {
    let client = rig.client("alice");
    // The first client's login has opened a server.
    let first = (rig.new_dials() > 0).then(|| rig.dialed());
    rig.send(client, &fe::query("update t set a = 1"));
    let server = first.unwrap_or_else(|| rig.next_server());
    assert_eq!(rig.gets(server), ["Query update t set a = 1"]);
    (client, server)
}

fn finish(rig: &mut Rig, (client, server): (End, End)) {
    rig.send(server, &[be::complete("UPDATE 1"), be::ready('I')].concat());
    assert_eq!(rig.gets(client), ["Complete UPDATE 1", "Ready I"]);
}

/// Whether this server is asked for the processes that PostgreSQL has.
fn is_asked(rig: &mut Rig, server: End) -> bool {
    String::from_utf8_lossy(&rig.raw(server)).contains("pg_stat_activity")
}

fn limit_seen(rig: &mut Rig) -> LimitSeen {
    rig.asked();
    rig.pass_s(1);
    let seen = rig.asked().into_iter().filter_map(|question| match question {
        Question::Limits(seen) => Some(seen),
        _ => None,
    });
    let all = seen.last().expect("the worker tells").limits;
    all.into_iter().find(|one| one.of == of()).expect("of this limit")
}

#[test]
fn without_a_part_clients_wait_and_are_told_of_to_the_control_plane() {
    let mut rig = Rig::new(SHARED);
    rig.knock("alice", "app");
    assert_eq!(rig.new_dials(), 0, "a newcomer has nothing");
    assert_eq!(limit_seen(&mut rig).demand, 1);
    grant(&mut rig, 1);
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn a_part_bounds_the_servers_below_the_limit() {
    let mut rig = Rig::new(SHARED);
    grant(&mut rig, 2);
    let (first, second) = (busy(&mut rig), busy(&mut rig));
    let third = rig.client("alice");
    rig.send(third, &fe::query("select 3"));
    assert_eq!(rig.new_dials(), 0);
    let seen = limit_seen(&mut rig);
    assert_eq!((seen.demand, seen.pids.len(), seen.unconfirmed), (3, 2, 0));
    grant(&mut rig, 3);
    assert_eq!(rig.new_dials(), 1);
    finish(&mut rig, first);
    finish(&mut rig, second);
}

#[test]
fn a_lower_part_closes_free_servers_first_and_busy_ones_when_they_are_free() {
    let mut rig = Rig::new(SHARED);
    grant(&mut rig, 3);
    let (first, second, third) = (busy(&mut rig), busy(&mut rig), busy(&mut rig));
    finish(&mut rig, first);
    assert_eq!(counts(&rig).servers.taken(), 3);
    grant(&mut rig, 1);
    assert!(rig.is_closed(first.1), "it was free");
    assert!(!rig.is_closed(second.1) && !rig.is_closed(third.1));
    finish(&mut rig, second);
    assert!(rig.is_closed(second.1));
    finish(&mut rig, third);
    assert!(!rig.is_closed(third.1), "one is left");
    assert_eq!(counts(&rig).servers.taken(), 3, "PostgreSQL has ended none of them yet");
    rig.eof(first.1);
    rig.eof(second.1);
    assert_eq!(counts(&rig).servers.taken(), 1);
}

#[test]
fn a_place_is_free_when_postgresql_has_ended_the_connection() {
    let mut rig = Rig::new(SHARED);
    grant(&mut rig, 1);
    let first = busy(&mut rig);
    finish(&mut rig, first);
    let console = rig.console();
    rig.command(console, "RECONNECT");
    assert_eq!(rig.wire(first.1).closed, Some(CloseMode::Confirm { flushes: true }));
    rig.send(first.0, &fe::query("select 2"));
    assert_eq!(rig.new_dials(), 0, "PostgreSQL counts it still");
    rig.eof(first.1);
    assert_eq!(rig.new_dials(), 1);
}

#[test]
fn a_connection_that_broke_counts_until_postgresql_shows_that_it_is_gone() {
    let mut rig = Rig::new(SHARED);
    grant(&mut rig, 2);
    let (first, second) = (busy(&mut rig), busy(&mut rig));
    rig.end(first.1, Closed::Broken("timed out".to_owned()));
    let seen = limit_seen(&mut rig);
    assert_eq!((seen.unconfirmed, counts(&rig).servers.taken()), (1, 2));
    assert_eq!(seen.pids.len(), 2, "its process is this pooler's until it is gone");
    finish(&mut rig, second);
    assert!(is_asked(&mut rig, second.1));
    let still = format!("{},{}", seen.pids[0], seen.pids[1]);
    rig.send(second.1, &be::answer(&[&[&still, &still]]));
    assert_eq!(counts(&rig).servers.taken(), 2);
    for taken in [2, 1] {
        rig.pass_s(1);
        assert!(is_asked(&mut rig, second.1));
        rig.send(second.1, &be::answer(&[&["999", "999"]]));
        assert_eq!(counts(&rig).servers.taken(), taken, "one answer is not enough");
    }
    assert_eq!(limit_seen(&mut rig).unconfirmed, 0);
}

#[test]
fn a_connection_that_broke_stops_counting_after_the_setting_is_off_too() {
    let mut rig = Rig::new(SHARED);
    grant(&mut rig, 2);
    let (first, second) = (busy(&mut rig), busy(&mut rig));
    rig.end(first.1, Closed::Broken("timed out".to_owned()));
    let pids = limit_seen(&mut rig).pids;
    let still = format!("{},{}", pids[0], pids[1]);
    rig.reload("pool_mode = transaction\nmax_db_connections = 2\nmultiplex_depth = 0", "app = host=pg");
    finish(&mut rig, second);
    rig.pass_s(1);
    for (shown, taken) in [(&*still, 2), ("999", 2), ("999", 1)] {
        rig.pass_s(1);
        assert!(is_asked(&mut rig, second.1));
        rig.send(second.1, &be::answer(&[&[shown, shown]]));
        assert_eq!(counts(&rig).servers.taken(), taken);
    }
}

fn of_user() -> Scarce {
    Scarce::User("alice".into())
}

fn users_counts(rig: &Rig) -> Arc<Counts> {
    rig.shared.counts(&of_user())
}

const SHARED_BY_USER: &str =
    "shared_limits = etcd\netcd_endpoints = http://e:2379\nmax_user_connections = 4\nmultiplex_depth = 0";

fn user_seen(rig: &mut Rig) -> Option<LimitSeen> {
    rig.asked();
    rig.pass_s(1);
    let seen = rig.asked().into_iter().filter_map(|question| match question {
        Question::Limits(seen) => Some(seen),
        _ => None,
    });
    seen.last().expect("the worker tells").limits.into_iter().find(|one| one.of == of_user())
}

/// A process that may have this part of its user's limit, with one client whose server of the database `app` is free.
fn of_two_databases() -> (Rig, (End, End)) {
    let mut rig = Rig::with(SHARED_BY_USER, "app = host=pg\nother = host=pg", 1);
    rig.shared.hold_parts_until(u64::MAX);
    users_counts(&rig).servers.set_part(3);
    let first = busy(&mut rig);
    finish(&mut rig, first);
    (rig, first)
}

#[test]
fn connections_of_a_removed_database_count_until_postgresql_has_ended_them() {
    let (mut rig, first) = of_two_databases();
    rig.reload(SHARED_BY_USER, "other = host=pg");
    assert_eq!(rig.wire(first.1).closed, Some(CloseMode::Confirm { flushes: true }));
    assert_eq!(users_counts(&rig).servers.taken(), 1, "PostgreSQL counts it still");
    let seen = user_seen(&mut rig).expect("the other poolers are told of it");
    assert_eq!((seen.pids.len(), seen.unconfirmed), (1, 0));
    rig.eof(first.1);
    assert_eq!(users_counts(&rig).servers.taken(), 0);
    assert_eq!(user_seen(&mut rig), None);
}

#[test]
fn a_broken_connection_of_a_removed_database_is_looked_for_by_other_pools_of_its_server() {
    let (mut rig, first) = of_two_databases();
    let pid = user_seen(&mut rig).expect("its server").pids[0].to_string();
    rig.reload(SHARED_BY_USER, "other = host=pg");
    rig.end(first.1, Closed::Broken("timed out".to_owned()));
    rig.stand_still_s(60);
    assert_eq!(user_seen(&mut rig).map(|seen| (seen.pids.len(), seen.unconfirmed)), Some((1, 1)));
    rig.client_with(&[("user", "alice"), ("database", "other")]);
    let server = rig.dialed();
    let before = users_counts(&rig).servers.taken();
    for (shown, taken) in [("999", before), (&*pid, before), ("999", before), ("999", before - 1)] {
        rig.pass_s(1);
        assert!(is_asked(&mut rig, server));
        rig.send(server, &be::answer(&[&["7", shown]]));
        assert_eq!(users_counts(&rig).servers.taken(), taken);
    }
}

#[test]
fn a_broken_connection_that_nothing_can_be_asked_about_stops_counting_at_last() {
    let (mut rig, first) = of_two_databases();
    rig.reload(SHARED_BY_USER, "other = host=elsewhere");
    rig.end(first.1, Closed::Broken("timed out".to_owned()));
    rig.stand_still_s(900);
    rig.pass_s(2);
    assert_eq!(users_counts(&rig).servers.taken(), 1);
    rig.stand_still_s(100);
    rig.pass_s(2);
    assert_eq!(users_counts(&rig).servers.taken(), 0);
}

#[test]
fn connections_of_a_forgotten_database_count_until_postgresql_has_ended_them() {
    let settings = format!("{SHARED_BY_USER}\nautodb_idle_timeout = 5\nserver_idle_timeout = 0");
    let mut rig = Rig::with(&settings, "* = host=pg", 1);
    rig.shared.hold_parts_until(u64::MAX);
    users_counts(&rig).servers.set_part(3);
    let first = busy(&mut rig);
    finish(&mut rig, first);
    rig.eof(first.0);
    rig.pass_s(7);
    assert_eq!(rig.wire(first.1).closed, Some(CloseMode::Confirm { flushes: true }));
    assert_eq!(users_counts(&rig).servers.taken(), 1, "PostgreSQL counts it still");
    rig.eof(first.1);
    assert_eq!(users_counts(&rig).servers.taken(), 0);
}

#[test]
fn logins_are_counted_until_postgresql_shows_them_or_they_are_given_up() {
    let mut rig = Rig::new(SHARED);
    grant(&mut rig, 4);
    let logins = |rig: &Rig| counts(rig).logins.taken();
    rig.knock("alice", "app");
    let server = rig.dialed();
    assert_eq!(logins(&rig), 1);
    rig.connect_silently(server);
    assert_eq!(logins(&rig), 1);
    rig.shared.hold_parts_until(1);
    rig.send(server, &be::auth_ok());
    rig.pass_s(20);
    assert!(rig.is_closed(server));
    assert_eq!((logins(&rig), counts(&rig).servers.taken()), (1, 1), "it may succeed in PostgreSQL");
    rig.eof(server);
    assert_eq!((logins(&rig), counts(&rig).servers.taken()), (0, 0));
    grant(&mut rig, 4);
    let first = busy(&mut rig);
    assert_eq!((logins(&rig), counts(&rig).servers.taken()), (0, 1));
    finish(&mut rig, first);
}

#[test]
fn the_control_plane_gets_what_postgresql_shows() {
    let mut rig = Rig::new(SHARED);
    grant(&mut rig, 1);
    let first = busy(&mut rig);
    finish(&mut rig, first);
    rig.gets(first.1);
    rig.asked();
    rig.mail(0, Mail::LookAtBackends { number: 7, of: of() });
    assert!(is_asked(&mut rig, first.1));
    rig.send(first.1, &be::answer(&[&["11,12,13", "11,12"]]));
    let told = rig.asked().into_iter().find_map(|question| match question {
        Question::Backends(told) => Some(*told),
        _ => None,
    });
    let by_user = (Scarce::User("alice".into()), vec![11, 12]);
    assert_eq!(told, Some(BackendsSeen { number: 7, by_database: (of(), vec![11, 12, 13]), by_user }));
}

#[test]
fn a_part_whose_time_is_over_opens_nothing_and_ends_logins() {
    let mut rig = Rig::new(SHARED);
    grant(&mut rig, 4);
    let first = busy(&mut rig);
    let waiting = rig.client("alice");
    rig.send(waiting, &fe::query("select 2"));
    let server = rig.dialed();
    rig.shared.hold_parts_until(1);
    rig.connect_silently(server);
    assert!(rig.is_closed(server), "PostgreSQL is not asked for a login any more");
    rig.pass_s(1);
    assert_eq!(rig.new_dials(), 0);
    finish(&mut rig, first);
    assert_eq!(rig.gets(first.1).last().map(String::as_str), Some("Query select 2"), "what is open serves");
}

#[test]
fn limits_of_one_pooler_are_as_ever() {
    let mut rig = Rig::new("max_db_connections = 1\nmultiplex_depth = 0");
    let first = busy(&mut rig);
    let waiting = rig.client("alice");
    rig.send(waiting, &fe::query("select 2"));
    rig.end(first.1, Closed::Broken("timed out".to_owned()));
    assert_eq!(rig.new_dials(), 1, "its place is free at once");
    rig.pass_s(1);
    assert!(!rig.asked().iter().any(|question| matches!(question, Question::Limits(_))));
}
