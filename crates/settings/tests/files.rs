//! Whole files: what loads, what does not, and what is said about it.

mod common;

use std::time::Duration;

use common::{faults, load, load_files};
use pgweir_settings::{AuthType, Config, INCLUDE_DEPTH_MAX, LoadBalanceHosts, PoolMode, SslMode};
use proptest::prelude::*;

#[test]
fn a_file_from_production_loads_unchanged() {
    let config = load(include_str!("data/pgbouncer.ini")).expect("a good file");
    let main = &config.main;
    assert_eq!(main.listen_addr, ["127.0.0.1", "::1"]);
    assert_eq!(main.unix_socket_mode, 0o770);
    assert_eq!(main.auth_type, AuthType::ScramSha256);
    assert_eq!(main.server_tls_sslmode, SslMode::VerifyFull);
    assert_eq!(main.admin_users, ["postgres", "dba"]);
    assert_eq!(main.pool_mode, PoolMode::Transaction);
    assert_eq!(main.server_idle_timeout, Duration::from_millis(500));
    assert_eq!(main.tcp_keepidle, Duration::from_secs(60));
    assert_eq!(main.tcp_user_timeout, Duration::from_millis(12500));
    assert_eq!(main.ignore_startup_parameters, ["extra_float_digits", "options"]);
    assert_eq!(config.peers[&2].port, 6433);
    assert_eq!(config.users["report"].max_user_connections, Some(10));
    let names: Vec<&str> = config.databases.keys().map(String::as_str).collect();
    assert_eq!(names, ["legacy", "metrics", "replicas", "sessions", "shop", "weird-name with space"]);

    let shop = &config.databases["shop"];
    assert_eq!(shop.hosts, ["db-1.example.net"]);
    assert_eq!(shop.server_dbname(), "shop_production");
    assert_eq!(shop.password.as_ref().map(|password| password.reveal()), Some("s3cr't pass"));
    assert_eq!((shop.pool_size, shop.reserve_pool_size), (Some(40), Some(5)));
    let metrics = &config.databases["metrics"];
    assert!(metrics.hosts.is_empty());
    assert_eq!((metrics.port, metrics.server_dbname()), (5432, "metrics"));
    let query = config.databases["legacy"].connect_query.as_deref();
    assert_eq!(query, Some("SELECT set_config('search_path', 'old, public', false)"));
    let replicas = &config.databases["replicas"];
    assert_eq!(replicas.hosts, ["db-2.example.net", "db-3.example.net", "/var/run/postgresql"]);
    assert_eq!(replicas.load_balance_hosts, Some(LoadBalanceHosts::Disable));
    assert_eq!(config.databases["sessions"].pool_size, None);

    let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    assert!(!warnings.iter().any(|text| text.contains("auth_")), "{warnings:?}");
    assert!(!warnings.iter().any(|text| text.contains("pkt_buf") || text.contains("_tls_")), "{warnings:?}");
}

#[test]
fn nothing_that_is_printed_holds_a_password() {
    let config = load(include_str!("data/pgbouncer.ini")).expect("a good file");
    assert!(!format!("{config:?}").contains("s3cr"));
    for entry in [
        "x = host=a password=hunter2 nosuch=1",
        "x = host=a password=hunter2 port=0",
        "x = host=a password='hunter2",
        "x = host=a password=two hunter2=words",
        "x = password=two port=hunter2",
    ] {
        for text in faults(&format!("[pgbouncer]\n[databases]\n{entry}\n")) {
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}

#[test]
fn the_fallback_takes_the_name_that_is_asked_for() {
    let config = load("[databases]\na = host=x\n* = host=y pool_size=3\n[pgbouncer]\n").expect("a good file");
    assert_eq!(config.database("a").expect("its entry").hosts, ["x"]);
    let made = config.database("b").expect("the fallback");
    assert_eq!((made.name.as_str(), made.server_dbname(), made.pool_size), ("b", "b", Some(3)));
    assert_eq!(made.hosts, ["y"]);
    assert!(config.database("pgbouncer").is_none());
    assert!(config.database("").is_none());
    assert!(config.database(&"b".repeat(63)).is_some());
    assert!(config.database(&"b".repeat(64)).is_none());

    let one = load("[databases]\n* = dbname=one\n[pgbouncer]\n").expect("a good file");
    assert_eq!(one.database("b").expect("the fallback").server_dbname(), "one");
    let none = load("[databases]\na = host=x\n[pgbouncer]\n").expect("a good file");
    assert!(none.database("b").is_none());
}

/// The first words of each message are PgBouncer's own, with the place where it has one.
#[test]
fn faults_of_lines_have_pgbouncers_words() {
    for (line, words) in [
        ("nosuch = 1", "unknown parameter: pgbouncer/nosuch in configuration (t.ini:2)"),
        ("[nosuch]\na = 1", "invalid section \"nosuch\" in configuration (t.ini:2)"),
        ("[PgBouncer]\na = 1", "invalid section \"PgBouncer\" in configuration (t.ini:2)"),
        ("[ users ]", "invalid section \" users \" in configuration (t.ini:2)"),
        ("bad line", "syntax error in configuration (t.ini:2)"),
        ("[databases", "syntax error in configuration (t.ini:2)"),
        ("%foo x", "syntax error in configuration (t.ini:2)"),
        (
            "%include no.ini",
            "error processing include file in configuration (t.ini:2): could not load file \"no.ini\"",
        ),
    ] {
        let found = faults(&format!("[pgbouncer]\n{line}\n"));
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert!(found[0].starts_with(words), "{line}:\n{}\n{words}", found[0]);
    }
    let near = &faults("[pgbouncer]\nmax_client_con = 1\n")[0];
    assert!(near.ends_with("; did you mean \"max_client_conn\"?"), "{near}");
    assert_eq!(faults("a = 1\n[pgbouncer]\n"), ["value without section: a in configuration (t.ini:1)"]);
    for text in ["", "[databases]\na = host=b\n"] {
        assert!(faults(text)[0].starts_with("main section missing from config file"));
    }
}

#[test]
fn wrong_values_have_pgbouncers_words_and_the_reason() {
    for (section, key, value, reason) in [
        ("pgbouncer", "max_client_conn", "abc", "it must be a whole number"),
        ("pgbouncer", "max_client_conn", "", "it must be a whole number"),
        ("pgbouncer", "listen_port", "65536", "it must be between 0 and 65535"),
        ("pgbouncer", "pool_mode", "bad", "it must be one of session, transaction, statement"),
        ("databases", "x", "port=0", "invalid port: 0: it must be between 1 and 65535"),
        ("databases", "x", "port=65536", "invalid port: 65536: it must be between 1 and 65535"),
        (
            "databases",
            "x",
            "pool_mode=b",
            "invalid pool mode: b: it must be one of session, transaction, statement",
        ),
        ("databases", "x", "pool_size=abc", "invalid pool_size: abc: it must be a whole number"),
        (
            "databases",
            "x",
            "auth_dbname=pgbouncer",
            "invalid auth_dbname: pgbouncer: cannot use the reserved \"pgbouncer\" database as an auth_dbname",
        ),
        ("databases", "pgbouncer", "host=a", "database name \"pgbouncer\" is reserved"),
        ("databases", &"d".repeat(64), "host=a", "too long db name: it has more than 63 bytes"),
        ("peers", "1", "port=1", "a peer needs a host"),
        ("peers", "0", "host=a", "the id of a peer must be between 1 and 65535"),
        ("peers", "65536", "host=a", "the id of a peer must be between 1 and 65535"),
        ("peers", "99999999999", "host=a", "the id of a peer must be between 1 and 65535"),
        ("peers", "a", "host=a", "the id of a peer must be between 1 and 65535"),
    ] {
        let found = faults(&format!("[pgbouncer]\n[{section}]\n{key} = {value}\n"));
        let expected =
            format!("invalid value \"{value}\" for parameter {key} in configuration (t.ini:3): {reason}");
        assert_eq!(found, [expected]);
    }
    // An unknown key may be a misspelled password: its value is not shown.
    for (section, value, shown, reason) in [
        ("databases", "host=a foo=1", "host=a foo=***", "unrecognized connection parameter: foo"),
        ("databases", "host", "***", "syntax error in connection string"),
        ("users", "foo=1", "foo=***", "unrecognized user parameter: foo"),
        ("users", "host=a", "host=***", "unrecognized user parameter: host"),
        ("peers", "host=a user=b", "host=a user=***", "unrecognized peer parameter: user"),
    ] {
        let found = faults(&format!("[pgbouncer]\n[{section}]\n1 = {value}\n"));
        let expected =
            format!("invalid value \"{shown}\" for parameter 1 in configuration (t.ini:3): {reason}");
        assert_eq!(found, [expected]);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_the_only_fault() {
    let found = Config::load("x.ini", &mut |_| Err("Permission denied".to_owned())).expect_err("no file");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].to_string(), "could not load file \"x.ini\": Permission denied");
    assert_eq!((found[0].file.as_str(), found[0].line), ("x.ini", 0));
}

#[test]
fn all_faults_are_told_in_their_order() {
    let found = load_files(&[
        ("t.ini", "[pgbouncer]\na = 1\n%include more.ini\nb\n[databases]\nx = port=0 c=d\n[what]\ny = z\n"),
        ("more.ini", "\nmax_client_conn = many\n"),
    ])
    .expect_err("faults");
    let places: Vec<(&str, u32)> = found.iter().map(|fault| (fault.file.as_str(), fault.line)).collect();
    assert_eq!(
        places,
        [("t.ini", 2), ("more.ini", 2), ("t.ini", 4), ("t.ini", 6), ("t.ini", 6), ("t.ini", 7)]
    );
}

#[test]
fn the_section_goes_into_an_included_file_and_out_of_it() {
    let config = load_files(&[
        ("t.ini", "[pgbouncer]\n  %include  sub dir/a.ini \nx = host=a\n"),
        ("sub dir/a.ini", "log_stats = 0\n[databases]\n"),
    ])
    .expect("good files");
    assert!(!config.main.log_stats);
    assert_eq!(config.given["log_stats"].to_string(), "sub dir/a.ini:1");
    assert!(config.databases.contains_key("x"));
}

#[test]
fn includes_go_ten_files_deep() {
    let chain = |deep: usize| {
        let names: Vec<String> = (0..=deep).map(|i| format!("c{i}.ini")).collect();
        let texts: Vec<String> = (0..=deep)
            .map(|i| {
                if i == deep {
                    "log_stats = 0\n".to_owned()
                } else {
                    format!("[pgbouncer]\n%include c{}.ini\n", i + 1)
                }
            })
            .collect();
        let files: Vec<(&str, &str)> =
            names.iter().zip(&texts).map(|(name, text)| (name.as_str(), text.as_str())).collect();
        load_files(&files)
    };
    assert!(!chain(INCLUDE_DEPTH_MAX).expect("ten deep").main.log_stats);
    let found = chain(INCLUDE_DEPTH_MAX + 1).expect_err("eleven deep");
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].text, "include nesting level too deep (c10.ini:2)");
}

#[test]
fn files_that_include_each_other_end() {
    let found = faults("[pgbouncer]\n%include t.ini\n%include t.ini\n%include t.ini\n");
    assert!(found.iter().any(|text| text.starts_with("more than 1000 includes")));
    assert!(found.len() <= 1001);
}

#[test]
fn a_repeated_header_resets_what_has_a_default() {
    let config = load_files(&[
        ("t.ini", "[pgweir]\nworkers = 2\n[pgbouncer]\nauth_user = u\nmax_client_conn = 7\nlog_stats=1\n%include a.ini\n"),
        ("a.ini", "[databases]\nx = host=a\n[pgbouncer]\ndefault_pool_size = 9\n"),
    ])
    .expect("good files");
    assert_eq!((config.main.max_client_conn, config.main.default_pool_size), (100, 9));
    assert_eq!(config.main.auth_user.as_deref(), Some("u"), "without a default: stays");
    assert_eq!(config.main.workers, 2, "not PgBouncer's: stays");
    assert!(!config.given.contains_key("max_client_conn"));
    assert_eq!(config.main.conffile.as_deref(), Some("t.ini"));
    let warned = config.warnings.iter().find(|warning| warning.text.contains("repeated [pgbouncer] header"));
    let warned = warned.expect("a warning").to_string();
    assert!(warned.ends_with("back to their defaults: max_client_conn (a.ini:3)"), "{warned}");
}

#[test]
fn pgweir_is_another_name_for_the_section() {
    let config = load("[pgweir]\nmax_client_conn = 7\n").expect("a good file");
    assert_eq!(config.main.max_client_conn, 7);
    let config = load("[pgbouncer]\nmax_client_conn = 7\n[pgweir]\nworkers = 3\n").expect("a good file");
    assert_eq!((config.main.max_client_conn, config.main.workers), (7, 3));
}

#[test]
fn the_last_of_the_same_key_or_entry_counts() {
    let config = load("[pgbouncer]\nlog_stats=0\nlog_stats=1\n[databases]\nx=host=a port=1\nx=host=b\n")
        .expect("good");
    assert!(config.main.log_stats);
    assert_eq!(
        (config.databases["x"].hosts.as_slice(), config.databases["x"].port),
        (["b".to_owned()].as_slice(), 5432)
    );
}

#[test]
fn keys_may_stand_in_either_kind_of_quotes() {
    let config = load("[pgbouncer]\n\"log_stats\" = 0\n[databases]\n'a b'=host=x\n\"c\"\"d\" = host=y\n")
        .expect("good");
    assert!(!config.main.log_stats);
    assert!(config.databases.contains_key("a b") && config.databases.contains_key("c\"d"));
}

#[test]
fn files_of_windows_load() {
    let config = load("\u{feff}[pgbouncer]\r\nlogfile = c.log \r\n\r\n; x\r\n").expect("good");
    assert_eq!(config.main.logfile, "c.log");
}

#[test]
fn settings_without_effect_give_no_warning_at_their_default() {
    let config = load(
        "[pgbouncer]\npkt_buf = 4096\nauth_hba_file =\nclient_tls_ciphers = secure\nclient_tls_protocols = default\n",
    );
    assert_eq!(config.expect("good").warnings, []);
}

#[test]
fn old_versions_of_tls_are_told_of() {
    let warned = |list: &str| {
        let config = load(&format!("[pgbouncer]\nserver_tls_protocols = {list}\n")).expect("good");
        config
            .warnings
            .iter()
            .any(|warning| warning.to_string().contains("tlsv1.0 and tlsv1.1 are never spoken"))
    };
    assert!(warned("tlsv1.0,tlsv1.2") && warned("TLSv1.1, tlsv1.3"));
    assert!(!warned("secure") && !warned("all") && !warned("all,!tlsv1.0") && !warned("tlsv1.3"));
}

/// Lines that look like lines of a file, well formed or nearly.
const LINE: &str = concat!(
    r"(\[(pgbouncer|databases|users|peers|pgweir)\])",
    r"|(%include (a|t.ini))",
    r#"|([a-z_*1'"]{1,6} ?= ?[a-z0-9=' ,%é]*)"#,
    r"|((pool_mode|query_timeout|listen_port) = [-0-9a-z.]{0,30})",
    r"|(x = (host|port|pool_size|password|pool_mode)=[-0-9a-z' ]*)",
);

proptest! {
    #[test]
    fn any_text_loads_or_not_without_panic(text in "\\PC*", lines in prop::collection::vec(LINE, 0..12)) {
        let _ = load(&text);
        let _ = load(&lines.join("\n"));
        let _ = load_files(&[("t.ini", &lines.join("\r\n")), ("a", &text)]);
    }

    #[test]
    fn what_a_connection_string_says_is_what_is_read(
        host in "[a-z0-9./@:-]{1,20}", port in 1u16.., password in "[ -~]{1,20}", size in 0u32..1000,
    ) {
        let quoted = password.replace('\'', "''");
        let entry = format!("host={host} port={port} password='{quoted}' pool_size={size}");
        let config = load(&format!("[pgbouncer]\n[databases]\nx = {entry}\n")).expect("good");
        let entry = &config.databases["x"];
        prop_assert_eq!(&entry.hosts, &[host]);
        prop_assert_eq!(entry.port, port);
        prop_assert_eq!(entry.password.as_ref().map(|secret| secret.reveal().to_owned()), Some(password));
        prop_assert_eq!(entry.pool_size, Some(size));
    }
}

#[test]
fn a_file_that_does_not_load_may_still_say_where_the_log_is() {
    let text = "[pgbouncer]\nlogfile = /var/log/x\nlisten_backlog = many\nuser = u\n[nothing]\n";
    let mut read = |_: &str| Ok(text.to_owned());
    assert!(Config::load("x.ini", &mut read).is_err());
    let (Config { main, .. }, found) = Config::survey("x.ini", &[], &mut read);
    assert_eq!((&*main.logfile, main.user.as_deref()), ("/var/log/x", Some("u")));
    assert_eq!(found.iter().map(|fault| fault.line).collect::<Vec<_>>(), [3, 5]);
    let (Config { main: nothing, .. }, _) =
        Config::survey("x.ini", &[], &mut |_| Err("there is none".to_owned()));
    assert_eq!(nothing.logfile, "");
}

/// What a report says beside the place: names in quotes, and what may be meant.
#[test]
fn problems_are_told_without_their_place() {
    for (text, problem) in [
        ("[pgbouncer]\npool_mod = session\n", "unknown setting \"pool_mod\"; did you mean \"pool_mode\"?"),
        ("[pgbouncer]\nnosuch = 1\n", "unknown setting \"nosuch\""),
        (
            "[pgbouncer]\n[database]\n",
            "unknown section \"database\": there are databases, users, clusters, nodes, routes, cache, peers, pgbouncer and pgweir; did you mean \"databases\"?",
        ),
        (
            "[pgbouncer]\nauth_type = md6\n",
            "invalid value \"md6\" for \"auth_type\": it must be one of any, trust, plain, md5, cert, hba, ldap, pam, scram-sha-256",
        ),
        (
            "[pgbouncer]\n[databases]\na = hots=x\n",
            "invalid value \"hots=***\" for \"a\": unrecognized connection parameter: hots; did you mean \"host\"?",
        ),
    ] {
        let faults = Config::load("t.ini", &mut |_| Ok(text.to_owned())).expect_err(text);
        assert_eq!(faults.iter().map(|fault| &*fault.problem).collect::<Vec<_>>(), [problem]);
        assert!(faults[0].text.contains("(t.ini:") && faults[0].line > 0, "{faults:?}");
    }
}

#[test]
fn no_fault_shows_a_password() {
    for line in [
        "a = postgres://u:s3cret@h/d",
        "a = postgres://u:s3cret@h/d?pool_size=many",
        "a = host=h pasword=s3cret",
        "a = host=h pasword=s3cret port=x",
        "a = host=h password=s3cret port=x",
        "a = host=h password=my s3cret pool_mode=x",
        "a = host=h port=x password='s3cret",
        "pgbouncer = host=h password=s3cret",
    ] {
        let text = format!("[pgbouncer]\nlisten_port = postgres://u:s3cret@h\n[databases]\n{line}\n");
        let faults = Config::load("t.ini", &mut |_| Ok(text.clone())).expect_err(line);
        assert!(faults.len() >= 2, "{faults:?}");
        assert!(!format!("{faults:?}").contains("s3cret"), "{line}: {faults:?}");
    }
}

#[test]
fn an_empty_host_in_a_list_is_a_warning() {
    for (hosts, warning) in [
        ("a,b", None),
        ("a, ,b", Some("database \"d\": the host list has an empty host, which is ignored (t.ini:2)")),
        ("a,", Some("database \"d\": the host list has an empty host, which is ignored (t.ini:2)")),
        ("','", Some("database \"d\": the host list is empty, so the unix socket is used (t.ini:2)")),
    ] {
        let text = format!("[databases]\nd = host={}\n[pgbouncer]\n", hosts.replace(", ,", ",,"));
        let config = Config::load("t.ini", &mut |_| Ok(text.clone())).expect("a good file");
        assert_eq!(
            config.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
            Vec::from_iter(warning)
        );
        assert_eq!(config.database_places["d"].line, 2);
    }
}
