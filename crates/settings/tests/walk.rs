//! A walk over the tables: each row keeps the promises that all rows make.

mod common;

use std::collections::BTreeSet;

use common::load;
use pgweir_settings::{
    CACHE_ROWS, CLUSTER_ROWS, Change, Config, DATABASE_ROWS, Kind, MAIN_ROWS, Main, NODE_ROWS, Origin,
    PEER_ROWS, ROUTE_ROWS, Row, SetOutcome, Status, USER_ROWS, row,
};

/// A text that a setting of this kind takes, that is not its default, and what `SHOW CONFIG` makes of it.
fn other_value<T>(row: &Row<T>) -> (String, String) {
    let (text, shown) = match row.kind {
        Kind::Bool if row.default == Some("1") => ("off", "0"),
        Kind::Bool => ("1", "1"),
        Kind::Count(..) | Kind::Limit => ("77", "77"),
        Kind::Bytes(least, _) if least > 65_536 => ("2MB", "2097152"),
        Kind::Bytes(..) => ("64kB", "65536"),
        Kind::Mode => ("0700", "448"),
        Kind::Seconds => ("90s", "90"),
        Kind::WholeSeconds(_) => ("2min", "120"),
        Kind::Milliseconds => ("7s", "7000"),
        Kind::AuthDatabase | Kind::Text | Kind::Path => ("some text; here", "some text; here"),
        Kind::List => ("one , two,,", "one,two"),
        Kind::Names => ("one  two,\tthree,,", "one,two,three"),
        Kind::TextWithSecret => ("a=1 ldapbindpasswd=hunter2", "a=1 ldapbindpasswd=***"),
        Kind::Choice(words) => {
            let word = words.iter().find(|word| Some(**word) != row.default).expect("two words");
            return (word.to_ascii_uppercase(), (*word).to_owned());
        }
        Kind::Secret => ("hunter2", "***"),
        Kind::OwnSize | Kind::OwnLimit | Kind::OwnLifetime | Kind::OwnSeconds => {
            panic!("{}: not a kind of the process's settings", row.name)
        }
    };
    (text.to_owned(), shown.to_owned())
}

#[test]
fn the_counts_are_those_of_pgbouncer() {
    let origin = |origin| MAIN_ROWS.iter().filter(move |row| row.origin == origin);
    assert_eq!(origin(Origin::PgBouncer).count(), 100);
    assert_eq!(origin(Origin::PgBouncer).filter(|row| row.change == Change::Restart).count(), 14);
    let ours: BTreeSet<&str> = origin(Origin::Ours).map(|row| row.name).collect();
    let expected = [
        "allow_discovered_hosts",
        "cancel_vanished_after",
        "compatible_with",
        "defer_begin",
        "etcd_endpoints",
        "etcd_password",
        "etcd_user",
        "http_anonymous",
        "http_listen",
        "http_tls_cert_file",
        "http_tls_key_file",
        "log_format",
        "log_min_duration_ms",
        "max_parallel_connects",
        "max_pinned",
        "max_waiting_clients",
        "multiplex_depth",
        "multiplex_max_ms",
        "multiplex_servers",
        "otlp_endpoint",
        "pin_warn_after",
        "query_cache",
        "query_cache_bytes",
        "query_cache_ddl_ms",
        "query_cache_follow",
        "query_cache_hints",
        "query_cache_lag_bytes",
        "query_cache_max_age_ms",
        "query_cache_max_answer",
        "query_cache_probe_ms",
        "query_cache_publication",
        "query_cache_ttl_ms",
        "query_cache_user",
        "query_cache_verify",
        "sequence_affinity",
        "sequence_affinity_ms",
        "server_protocol",
        "session_audit_sample",
        "session_state",
        "shared_limits",
        "shared_limits_prefix",
        "shared_limits_ttl",
        "shutdown_drain_seconds",
        "source_tls_ca_file",
        "source_tls_cert_file",
        "source_tls_key_file",
        "standby_listen_port",
        "statement_stats_bytes",
        "trace_one_in",
        "version_text",
        "vip",
        "vip_down_command",
        "vip_interface",
        "vip_ttl",
        "vip_up_command",
        "worker_busy_poll_us",
        "worker_io_uring",
        "worker_scheduling",
        "workers",
        "zone",
    ];
    assert_eq!(ours, BTreeSet::from(expected));
    assert_eq!(DATABASE_ROWS.len(), 36);
    assert_eq!(CLUSTER_ROWS.len(), 39);
    assert_eq!(NODE_ROWS.len(), 5);
    assert_eq!(ROUTE_ROWS.len(), 6);
    assert_eq!(CACHE_ROWS.len(), 6);
    assert_eq!(USER_ROWS.len(), 22);
    assert_eq!(PEER_ROWS.len(), 3);
}

#[test]
fn names_are_unique_and_documented() {
    fn check<T>(rows: &[Row<T>]) {
        let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), rows.len());
        for row in rows {
            assert!(row.doc.trim().ends_with('.') && row.doc.len() > 15, "{}: {:?}", row.name, row.doc);
        }
    }
    check(MAIN_ROWS);
    check(DATABASE_ROWS);
    check(USER_ROWS);
    check(CLUSTER_ROWS);
    check(NODE_ROWS);
    check(ROUTE_ROWS);
    check(CACHE_ROWS);
    check(PEER_ROWS);
}

#[test]
fn each_default_reads_and_shows_itself() {
    let main = Main::default();
    for row in MAIN_ROWS {
        let shown = row.render(&main);
        let expected = match (row.name, row.default) {
            // As PgBouncer: the default is shown as the table has it, the value in decimal.
            ("unix_socket_mode", _) => Some("511"),
            ("verbose", _) => Some("0"),
            (_, default) => default,
        };
        assert_eq!(shown.as_deref(), expected, "{}", row.name);
    }
}

#[test]
fn each_setting_loads_from_a_file_and_is_shown() {
    for row in MAIN_ROWS {
        let (text, shown) = other_value(row);
        // What must fit between settings is not what this is about.
        let text = format!("[pgbouncer]\n{} = {text}\n", row.name);
        let (config, _) = Config::survey("t.ini", &[], &mut |_| Ok(text.clone()));
        assert_eq!(row.render(&config.main), Some(shown), "{}", row.name);
        assert_eq!(config.given.keys().copied().collect::<Vec<_>>(), [row.name]);
        let warned = config.warnings.iter().any(|warning| {
            warning.to_string() == format!("setting {} is accepted, not yet in effect (t.ini:2)", row.name)
        });
        assert_eq!(warned, row.status == Status::NotYet, "{}: {:?}", row.name, config.warnings);
    }
}

#[test]
fn each_setting_can_be_set_or_says_that_it_needs_a_restart() {
    for row in MAIN_ROWS {
        let (text, shown) = other_value(row);
        let mut config = Config::default();
        let before = row.render(&config.main);
        let outcome = config.set(row.name, &text).expect("a good value");
        let after = row.render(&config.main);
        if row.change == Change::Restart {
            assert_eq!((outcome, after), (SetOutcome::NeedsRestart, before), "{}", row.name);
        } else {
            assert_eq!((outcome, after), (SetOutcome::Applied, Some(shown)), "{}", row.name);
        }
    }
}

#[test]
fn each_setting_takes_or_refuses_hostile_values_and_stays_as_it_was() {
    let hostile = [
        "",
        "-1",
        "-9223372036854775808",
        "9223372036854775807",
        "99999999999999999999999",
        "4294967296",
        "2147483648",
        "1e308",
        "1e999",
        "-0",
        "nan",
        "inf",
        "0x",
        "0xffffffffffffffff",
        "1 2",
        "1s1",
        "99999999999d",
        "9223372036854775807GB",
        "\u{e9}",
        "'",
        "a\0b",
    ];
    for row in MAIN_ROWS {
        for text in hostile {
            let mut config = Config::default();
            let before = config.clone();
            if config.set(row.name, text).is_err() {
                assert_eq!(config, before, "{} = {text:?}", row.name);
            }
            let _ = load(&format!("[pgbouncer]\n{} = {text}\n", row.name));
            let _ = load(&format!("[databases]\nx = {}={text}\n[pgbouncer]\n", row.name));
        }
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    for (key, value) in [
        ("max_client_conn", "-5"),
        ("max_client_conn", "2147483648"),
        ("max_client_conn", "1k"),
        ("max_client_conn", ""),
        ("max_db_connections", "4294967297"),
        ("listen_port", "65536"),
        ("listen_port", "-1"),
        ("unix_socket_mode", "010000"),
        ("query_timeout", "-1"),
        ("query_timeout", "1e30"),
        ("query_timeout", "inf"),
        ("query_timeout", "nan"),
        ("query_timeout", ""),
        ("query_timeout", "0x"),
        ("stats_period", "0"),
        ("stats_period", "1.5"),
        ("query_wait_notify", "500ms"),
        ("tcp_keepidle", "4294967296"),
        ("pkt_buf", "4GB"),
        ("workers", "1025"),
        ("max_parallel_connects", "0"),
        ("server_fast_close", "maybe"),
        ("pool_mode", "sessions"),
        ("server_protocol", "3.1"),
        ("auth_dbname", "pgbouncer"),
    ] {
        let error = Config::default().set(key, value).expect_err(key).to_string();
        assert!(error.starts_with(&format!("invalid value \"{value}\" for parameter {key}: ")), "{error}");
    }
    let error = Config::default().set("nosuch", "1").expect_err("unknown").to_string();
    assert_eq!(error, "unknown parameter: pgbouncer/nosuch");
}

#[test]
fn a_limit_below_zero_is_no_limit() {
    let mut config = Config::default();
    config.set("max_db_connections", "-1").expect("as PgBouncer");
    assert_eq!(config.main.max_db_connections, 0);
}

/// The rows of SHOW CONFIG of a real PgBouncer 1.18 (Debian): name, default and changeable of each.
#[test]
fn a_real_pgbouncer_shows_the_same_defaults() {
    let rows = Config::default().show();
    for line in include_str!("data/show_config_1_18.txt").lines() {
        let mut fields = line.split('|');
        let [key, default, changeable] = [(); 3].map(|()| fields.next().expect("three fields"));
        let row = rows.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no row {key}"));
        // Newer versions have other defaults for these.
        let default = match key {
            "client_tls_ciphers" | "server_tls_ciphers" => "default",
            "server_check_query" => "<empty>",
            "server_tls_sslmode" => "prefer",
            _ => default,
        };
        assert_eq!(row.default.unwrap_or_default(), default, "{key}");
        assert_eq!(row.changeable, changeable == "yes", "{key}");
    }
}

#[test]
fn show_config_is_in_pgbouncers_order() {
    let mut keys: Vec<&str> = Config::default().show().iter().map(|row| row.key).collect();
    assert_eq!(keys.len(), MAIN_ROWS.len());
    let mode = keys.iter().position(|key| *key == "pool_mode").expect("a row");
    assert_eq!(keys[mode + 1], "pool_idle_timeout");
    keys.swap(mode, mode + 1);
    assert!(keys.is_sorted());
}

#[test]
fn show_config_writes_values_as_pgbouncer_does() {
    let config = load(
        "[pgbouncer]\nserver_idle_timeout = 0.5\nreserve_pool_timeout = 1e6\nquery_timeout = 1234567.5\n\
         max_client_conn = 0x20\ndefault_pool_size = 010\nquery_wait_timeout = 5min\nconffile = x.ini\n",
    )
    .expect("a good file");
    let rows = config.show();
    let value = |key: &str| rows.iter().find(|row| row.key == key).and_then(|row| row.value.clone());
    for (key, shown) in [
        ("server_idle_timeout", Some("0.5")),
        ("reserve_pool_timeout", Some("1e+06")),
        ("query_timeout", Some("1.23457e+06")),
        ("max_client_conn", Some("32")),
        ("default_pool_size", Some("8")),
        ("query_wait_timeout", Some("300")),
        ("conffile", Some("x.ini")),
        ("auth_user", None),
        ("auth_hba_file", Some("")),
        ("verbose", Some("0")),
    ] {
        assert_eq!(value(key).as_deref(), shown, "{key}");
    }
}

#[test]
fn an_empty_text_unsets_what_has_no_default() {
    let mut config = Config::default();
    config.set("auth_user", "someone").expect("good");
    assert_eq!(config.main.auth_user.as_deref(), Some("someone"));
    config.set("auth_user", "").expect("good");
    assert_eq!(config.main.auth_user, None);
}

#[test]
fn rows_are_found_by_their_exact_name() {
    assert!(row(MAIN_ROWS, "max_client_conn").is_some());
    assert!(row(MAIN_ROWS, "Max_client_conn").is_none());
    assert!(row(DATABASE_ROWS, "host").is_some());
    assert!(row(DATABASE_ROWS, "hosts").is_none());
}
