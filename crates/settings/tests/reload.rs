//! What a reload changes.

mod common;

use common::load;
use pgweir_settings::{Change, Config, DATABASE_ROWS, Diff, MAIN_ROWS};

fn config(text: &str) -> Config {
    load(&format!("[pgbouncer]\n{text}\n")).expect("a good file")
}

fn diff(old: &str, new: &str) -> Diff {
    config(old).diff(&config(new))
}

fn texts(diff: &Diff) -> Vec<String> {
    diff.warnings.iter().map(ToString::to_string).collect()
}

#[test]
fn the_same_file_changes_nothing() {
    let same = "max_client_conn = 5\n[databases]\na = host=b user=c\n* = host=d\n[users]\nu = pool_size=1\n[peers]\n1 = host=e\n";
    let diff = diff(same, same);
    assert!(diff.is_empty());
    assert_eq!(diff.merged, config(same));
}

#[test]
fn changed_settings_are_named_and_taken() {
    let diff = diff("max_client_conn = 5\nlog_stats = 0", "max_client_conn = 6\npool_mode = statement");
    assert_eq!(diff.main, ["log_stats", "pool_mode", "max_client_conn"]);
    assert_eq!(diff.merged.main.max_client_conn, 6);
    assert!(diff.merged.main.log_stats, "a key that is gone goes back to its default");
    assert!(!diff.tls_changed() && !diff.is_empty());
}

#[test]
fn a_changed_tls_setting_is_noticed() {
    assert!(diff("", "client_tls_key_file = x").tls_changed());
    assert!(diff("", "server_tls13_ciphers = x").tls_changed());
}

#[test]
fn settings_that_need_a_restart_keep_their_value() {
    let diff = diff("listen_port = 1\nworkers = 2", "listen_port = 3\nworkers = 2\nlisten_addr = *");
    assert_eq!(diff.restart, ["listen_addr", "listen_port"]);
    assert!(diff.main.is_empty());
    assert_eq!((diff.merged.main.listen_port, diff.merged.main.listen_addr.len()), (1, 0));
    assert_eq!(
        texts(&diff)[1],
        "setting listen_port can only be changed by a restart; it keeps its value (t.ini:2)"
    );
}

#[test]
fn each_setting_is_either_taken_or_kept() {
    let old = config("");
    for row in MAIN_ROWS {
        // A config that differs in this one setting, whatever its kind.
        let other = [
            "1",
            "7",
            "700",
            "5000",
            "verify-full",
            "hba",
            "statement",
            "3.0",
            "0",
            "none",
            "error",
            "json",
            "off",
            "on",
            "prompt",
            "wal",
            "1.26",
            "etcd",
            "pgweir",
            "2000000",
        ]
        .iter()
        .find_map(|text| {
            // Faults between settings are not what this is about.
            let text = format!("[pgbouncer]\n{} = {text}\n", row.name);
            let (new, _) = Config::survey("t.ini", &[], &mut |_| Ok(text.clone()));
            (row.render(&new.main) != row.render(&old.main)).then_some(new)
        });
        let other = other.unwrap_or_else(|| panic!("no other value for {}", row.name));
        let diff = old.diff(&other);
        if row.change == Change::Restart {
            assert_eq!((diff.main.len(), diff.restart.as_slice()), (0, [row.name].as_slice()));
            assert_eq!(row.render(&diff.merged.main), row.render(&old.main));
        } else {
            assert_eq!((diff.main.as_slice(), diff.restart.len()), ([row.name].as_slice(), 0));
            assert_eq!(row.render(&diff.merged.main), row.render(&other.main));
        }
    }
}

#[test]
fn what_was_set_on_the_console_is_lost_at_a_reload_but_not_the_verbosity() {
    let file = config("auth_user = u");
    let mut running = file.clone();
    for (key, value) in [("max_client_conn", "5"), ("verbose", "2"), ("auth_user", "other")] {
        running.set(key, value).expect("good");
    }
    let diff = running.diff(&file);
    assert_eq!(diff.main, ["max_client_conn", "auth_user"]);
    assert_eq!((diff.merged.main.max_client_conn, diff.merged.main.verbose), (100, 2));
    assert_eq!(diff.merged.main.auth_user.as_deref(), Some("u"));
    let quiet = config("verbose = 0");
    assert_eq!(running.diff(&quiet).merged.main.verbose, 0, "the file says so");
}

#[test]
fn what_is_not_set_any_more_is_unset() {
    let diff = diff("auth_user = u", "");
    assert_eq!(diff.main, ["auth_user"]);
    assert_eq!(diff.merged.main.auth_user, None);
}

#[test]
fn databases_come_and_go() {
    let diff =
        diff("[databases]\na = host=x\nb = host=x\n", "[databases]\nb = host=x\nc = host=x\n* = host=y\n");
    assert_eq!((diff.added, diff.removed), (vec!["c".to_owned(), "*".to_owned()], vec!["a".to_owned()]));
    assert!(diff.recycled.is_empty() && diff.changed.is_empty());
}

/// The list is PgBouncer's, and cluster: what is not in it is not noticed by PgBouncer either.
#[test]
fn only_some_changes_of_a_database_recycle_its_servers() {
    let recycling: Vec<&str> =
        DATABASE_ROWS.iter().filter(|row| row.change == Change::Recycle).map(|row| row.name).collect();
    assert_eq!(
        recycling,
        [
            "dbname",
            "host",
            "port",
            "cluster",
            "user",
            "auth_query",
            "auth_dbname",
            "connect_query",
            "load_balance_hosts"
        ]
    );
    for row in DATABASE_ROWS {
        let value = match row.name {
            "pool_mode" => "statement",
            "load_balance_hosts" => "disable",
            "session_state" => "error",
            "route" => "standby",
            "balance" => "statement",
            "commit_outcome" => "on",
            "causal_reads" => "database",
            "begin_undeclared" => "first",
            _ => "77",
        };
        for name in ["a", "*"] {
            // The cluster that `cluster=77` names.
            let others = "[clusters]\n77 = nodes=n check_user=c\n[nodes]\nn = host=h\n";
            let new = format!("{others}[databases]\n{name} = {}={value}\n", row.name);
            let diff = diff(&format!("{others}[databases]\n{name} =\n"), &new);
            let (hit, missed) = match row.change {
                Change::Recycle => (&diff.recycled, &diff.changed),
                _ => (&diff.changed, &diff.recycled),
            };
            assert_eq!((hit.as_slice(), missed.len()), ([name.to_owned()].as_slice(), 0), "{}", row.name);
        }
    }
}

#[test]
fn a_forced_user_cannot_be_taken_away() {
    let one = diff("[databases]\na = user=u password=p\n", "[databases]\na =\n");
    assert!(one.is_empty());
    assert_eq!(one.merged.databases["a"].user.as_deref(), Some("u"));
    assert_eq!(one.merged.databases["a"].password.as_ref().map(|p| p.reveal()), Some("p"));
    assert!(texts(&one)[0].contains("forced user of database \"a\""));
    let other = diff("[databases]\na = user=u\n", "[databases]\na = user=v\n");
    assert_eq!(other.recycled, ["a"]);
}

#[test]
fn users_and_peers_that_differ_are_named() {
    let old = "[users]\na = pool_size=1\nb = pool_size=1\nc = pool_size=1\n[peers]\n1 = host=x\n2 = host=x\n";
    let new = "[users]\nb = pool_size=2\nc = pool_size=1\nd = pool_size=1\n[peers]\n2 = host=y\n3 = host=x\n";
    let diff = diff(old, new);
    assert_eq!(diff.users, ["a", "b", "d"]);
    assert_eq!(diff.peers, [1, 2, 3]);
    assert_eq!(diff.merged.users.len(), 3, "the options of a user whose line is gone are gone");
}

#[test]
fn the_warnings_of_the_new_file_are_told() {
    let diff = diff("sbuf_loopcnt = 1", "sbuf_loopcnt = 2");
    assert_eq!(texts(&diff), ["setting sbuf_loopcnt is accepted, not yet in effect (t.ini:2)"]);
}
