//! Each kind with a sample configuration, written after its project's documentation.

mod pgpool_cache;
mod replicas;

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{Fault, FindingKind, Import, Kind, Places, Source, import};

/// Passwords in the samples: none of them may be shown.
const SECRETS: [&str; 4] = ["hunter2", "hunter3", "hunter4", "hunter5"];

const PGPOOL: &str = include_str!("../../tests/samples/pgpool.conf");
const ODYSSEY: &str = include_str!("../../tests/samples/odyssey.conf");
const PGCAT: &str = include_str!("../../tests/samples/pgcat.toml");
const PGDOG: &str = include_str!("../../tests/samples/pgdog.toml");
const DOORMAN_YAML: &str = include_str!("../../tests/samples/pg_doorman.yaml");
const DOORMAN_TOML: &str = include_str!("../../tests/samples/pg_doorman.toml");
const EDOBURU: &str = include_str!("../../tests/samples/edoburu.env");
const BITNAMI: &str = include_str!("../../tests/samples/bitnami.env");

const FILES: [(&str, &str); 3] = [
    ("pool_hba.conf", include_str!("../../tests/samples/pool_hba.conf")),
    ("pool_passwd", include_str!("../../tests/samples/pool_passwd")),
    ("users.toml", include_str!("../../tests/samples/users.toml")),
];

fn read_with(kind: Kind, text: &str, files: &[(&str, &str)]) -> Result<Import, Vec<Fault>> {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    let source = Source { name: "sample", text, ..Source::default() };
    import(kind, &source, &mut |name| {
        files.get(name).map(|text| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
    })
}

/// Reads a configuration that is correct, and checks that its findings contain no secret.
fn read(kind: Kind, text: &str) -> Import {
    let read = match read_with(kind, text, &FILES) {
        Ok(read) => read,
        Err(faults) => panic!("{kind:?}: {faults:?}"),
    };
    let shown = Places { hide_secrets: true, ..Places::default() };
    let said: Vec<String> = read.findings().iter().map(ToString::to_string).collect();
    for secret in SECRETS {
        assert!(!said.iter().any(|line| line.contains(secret)), "{kind:?}: {said:?}");
        assert!(!read.ini(&shown).contains(secret), "{kind:?}: {}", read.ini(&shown));
    }
    read
}

fn faults(kind: Kind, text: &str) -> Vec<String> {
    match read_with(kind, text, &FILES) {
        Ok(_) => panic!("{kind:?}: it was read"),
        Err(faults) => faults.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the subjects of the findings of one kind, in order.
fn about(read: &Import, kind: FindingKind) -> Vec<&str> {
    read.findings()
        .iter()
        .filter(|finding| finding.kind == kind)
        .map(|finding| finding.what.as_str())
        .collect()
}

fn has(read: &Import, lines: &[&str]) {
    let ini = read.ini(&Places::default());
    for line in lines {
        assert!(ini.lines().any(|own| own == *line), "{line:?} is not in\n{ini}");
    }
}

#[test]
fn kinds_are_told_by_their_contents() {
    for (kind, text) in [
        (Kind::Pgpool, PGPOOL),
        (Kind::Odyssey, ODYSSEY),
        (Kind::PgCat, PGCAT),
        (Kind::PgDog, PGDOG),
        (Kind::PgDoorman, DOORMAN_YAML),
        (Kind::PgDoorman, DOORMAN_TOML),
        (Kind::Environment, EDOBURU),
        (Kind::Environment, BITNAMI),
    ] {
        assert_eq!(Kind::of(text), Some(kind));
        assert_eq!(Kind::named(kind.name()), Some(kind));
    }
    for text in ["", "[databases]\na = host=b\n[pgbouncer]\nlisten_port = 6432\n", "hello"] {
        assert_eq!(Kind::of(text), None, "{text}");
    }
}

#[test]
fn pgpool() {
    let read = read(Kind::Pgpool, PGPOOL);
    has(
        &read,
        &[
            "* = cluster=main",
            "main = nodes=node0,node1 begin_undeclared=first check_interval_ms=10000 check_timeout_ms=20000 check_user=checker primary_max_age_ms=20000 \
             primary_wait=300 route=auto check_password=hunter2",
            "node0 = host=db1.example port=5432",
            "node1 = host=db2.example port=5433",
            "listen_addr = *",
            "listen_port = 9999",
            "unix_socket_dir = /var/run/postgresql",
            "pool_mode = session",
            "default_pool_size = 40",
            "max_client_conn = 120",
            "server_idle_timeout = 300",
            "client_idle_timeout = 300",
            "server_reset_query = DISCARD ALL",
            "auth_type = hba",
            "server_tls_sslmode = disable",
        ],
    );
    let users = read.users().unwrap();
    assert_eq!(users, "\"alice\" \"hunter2\"\n\"bob\" \"md5a3556571e93b0d20722ba62be61e8c2d\"\n");
    let rules = read.rules().unwrap();
    assert!(rules.contains("host    all       all   0.0.0.0/0     reject\n"), "{rules}");
    assert_eq!(about(&read, FindingKind::Unknown), ["no_such_key"]);
    assert_eq!(
        about(&read, FindingKind::Missing),
        ["failover_command", "password of carol"],
        "what is switched off is not told"
    );
    assert_eq!(about(&read, FindingKind::Differs), ["health_check_period", "load_balance_mode"]);
    assert!(read.ini_has_secret(), "the password of the checks");
    assert!(read.findings().iter().any(|finding| finding.line == 35 && finding.what == "no_such_key"));
}

#[test]
fn pgpool_refuses_what_would_be_wrong() {
    let native =
        "backend_clustering_mode = 'native_replication'\nbackend_hostname0 = 'a'\npool_passwd = ''\n";
    assert!(faults(Kind::Pgpool, native)[0].contains("sample:1: backend_clustering_mode"));
    let all = faults(Kind::Pgpool, "port = 99999\nssl = maybe\nbackend_hostname0 = 'a\n= y\n");
    assert_eq!(all.len(), 2, "{all:?}");
    let values =
        faults(Kind::Pgpool, "backend_hostname0 = 'a'\nport = 99999\nssl = maybe\nclient_idle_limit = 5m\n");
    assert_eq!(values.len(), 3, "all of them: {values:?}");
    let rules =
        [("pool_hba.conf", "host all all evil.example reject\nhost all all all md5\n"), ("pool_passwd", "")];
    let refused = read_with(Kind::Pgpool, "backend_hostname0 = 'a'\nenable_pool_hba = on\n", &rules);
    let refused = refused.err().expect("a rule that keeps clients out must not be lost");
    assert!(refused[0].to_string().contains("pool_hba.conf:1: this rule rejects clients"), "{refused:?}");
}

#[test]
fn pgpools_nodes_are_a_cluster() {
    let text = "backend_hostname0 = 'a'\nbackend_application_name0 = 'server0'\nbackend_hostname1 = 'b'\nbackend_port1 = 5433\n\
                backend_application_name1 = 'server1'\nhealth_check_period = 5\nhealth_check_timeout = 2s\nhealth_check_max_retries = 3\n\
                health_check_user = 'prober'\nhealth_check_database = 'template1'\nhealth_check_password = 'AESabc'\n\
                search_primary_node_timeout = 0\nload_balance_mode = off\npool_passwd = ''\n";
    let read = read(Kind::Pgpool, text);
    has(
        &read,
        &[
            "* = cluster=main",
            "main = nodes=server0,server1 check_dbname=template1 check_interval_ms=5000 check_timeout_ms=2000 check_user=prober \
             down_after_ms=9000 primary_wait=86400",
            "server0 = host=a port=5432",
            "server1 = host=b port=5433",
        ],
    );
    assert_eq!(about(&read, FindingKind::Missing), ["health_check_password", "pool_passwd"]);
    assert_eq!(about(&read, FindingKind::Differs), ["search_primary_node_timeout"]);
    assert!(!read.ini_has_secret());
}

#[test]
fn pgpools_program_that_tells_the_lag() {
    let text = "backend_hostname0 = 'a'\nbackend_hostname1 = 'b'\nsr_check_user = 'prober'\nload_balance_mode = off\npool_passwd = ''\n\
                search_primary_node_timeout = 5\n";
    let with = |more: &str| read(Kind::Pgpool, &format!("{text}replication_delay_source_cmd = {more}\n"));
    let told = with("'/usr/bin/lag -v'\nreplication_delay_source_timeout = 3");
    let line = "main = nodes=node0,node1 check_user=prober lag_command='/usr/bin/lag -v' lag_command_timeout=3 primary_wait=5";
    has(&told, &[line]);
    assert_eq!(about(&told, FindingKind::Differs), ["replication_delay_source_cmd"]);
    has(
        &with("'lag'\nreplication_delay_source_timeout = 0"),
        &["main = nodes=node0,node1 check_user=prober lag_command=lag lag_command_timeout=1 primary_wait=5"],
    );
    let shell = with("'lag | tail -1'");
    assert!(about(&shell, FindingKind::Missing).contains(&"replication_delay_source_cmd"));
    assert!(!shell.ini(&Places::default()).contains("lag_command"));
    assert!(!with("''").ini(&Places::default()).contains("lag_command"));
}

#[test]
fn pgpools_reads_from_standbys() {
    let text = "backend_hostname0 = 'a'\nbackend_hostname1 = 'b'\nbackend_weight0 = 0\nbackend_weight1 = 0.5\nsr_check_user = 'prober'\n\
                delay_threshold = 10000000\ndelay_threshold_by_time = 3\nprefer_lower_delay_standby = on\n\
                statement_level_load_balance = on\nload_balance_mode = off\npool_passwd = ''\n\
                app_name_redirect_preference_list = 'psql:primary,^report_.*$:standby(0.25)'\n\
                database_redirect_preference_list = 'shop:1,my[0-4]:primary'\nuser_redirect_preference_list = ''\n";
    let read = read(Kind::Pgpool, text);
    has(
        &read,
        &[
            "main = nodes=node0,node1 balance=statement check_user=prober lag_limit_bytes=10000000 lag_limit_ms=3000 prefer_lower_lag=1 \
             primary_wait=300",
            "node0 = host=a port=5432 weight=0",
            "node1 = host=b port=5432 weight=1000",
            "[routes]",
            "application_name1 = application_name=psql route=primary",
        ],
    );
    let told: Vec<&str> = read.findings().iter().map(|finding| finding.why.as_str()).collect();
    for line in [
        "`application_name = application_name=report_* route=prefer-standby percent=25`",
        "`database = database=shop node=node1`",
        "\"my[0-4]\" is a regular expression",
    ] {
        assert!(told.iter().any(|why| why.contains(line)), "{line}: {told:?}");
    }
}

#[test]
fn pgpools_lists_of_names() {
    let text = "backend_hostname0 = 'a'\nbackend_hostname1 = 'b'\nsr_check_user = 'prober'\npool_passwd = ''\n\
                write_function_list = 'nextval,set_.*,(a|b)_write'\nread_only_function_list = 'price_of'\n\
                primary_routing_query_pattern_list = '.*accounts.*;.*SELECT .* FROM stock.*'\n\
                disable_load_balance_on_write = 'always'\nallow_sql_comments = on\n";
    let read_on = read(Kind::Pgpool, text);
    has(
        &read_on,
        &[
            "main = nodes=node0,node1 begin_undeclared=first check_user=prober primary_names='accounts*' primary_wait=300 \
             read_functions=price_of route=auto write_functions='nextval,set_*'",
        ],
    );
    assert_eq!(
        about(&read_on, FindingKind::Missing),
        ["write_function_list", "primary_routing_query_pattern_list", "pool_passwd"]
    );
    let off = format!("{text}load_balance_mode = off\ndisable_load_balance_on_write = 'transaction'\n");
    let read_off = read(Kind::Pgpool, &off);
    has(&read_off, &["main = nodes=node0,node1 check_user=prober primary_wait=300"]);
    assert_eq!(about(&read_off, FindingKind::Missing), ["pool_passwd"], "they do nothing");
}

#[test]
fn pgpools_nodes_without_checks_or_in_other_modes() {
    let two = "backend_hostname0 = 'a'\nbackend_hostname1 = 'b'\nbackend_application_name0 = 'x'\nbackend_application_name1 = 'x'\npool_passwd = ''\n";
    let plain = read(Kind::Pgpool, two);
    has(
        &plain,
        &[
            "main = nodes=node0,node1 begin_undeclared=first check_user=nobody primary_wait=300 route=auto",
            "node1 = host=b port=5432",
        ],
    );
    assert_eq!(
        about(&plain, FindingKind::Differs),
        ["sr_check_user", "load_balance_mode"],
        "it is on by default"
    );
    let raw = format!("{two}backend_clustering_mode = 'raw'\n");
    has(
        &read(Kind::Pgpool, &raw),
        &["* = host=a port=5432", "; database_standby1 = host=b port=5432 dbname=database"],
    );
    let flagged = format!("{raw}backend_flag1 = 'ALWAYS_PRIMARY|DISALLOW_TO_FAILOVER'\n");
    has(&read(Kind::Pgpool, &flagged), &["* = host=b port=5432"]);
    has(&read(Kind::Pgpool, "backend_hostname0 = 'a'\npool_passwd = ''\n"), &["* = host=a port=5432"]);
}

#[test]
fn pgpool_with_tls() {
    let text = "backend_hostname0 = 'a'\nssl = on\nssl_key = '/k'\nssl_cert = '/c'\nssl_ca_cert = '/ca'\n";
    let read = read(Kind::Pgpool, text);
    has(
        &read,
        &[
            "client_tls_sslmode = allow",
            "client_tls_key_file = /k",
            "server_tls_sslmode = verify-ca",
            "auth_type = md5",
        ],
    );
    assert_eq!(about(&read, FindingKind::Differs), ["ssl_ca_cert"]);
}

#[test]
fn odyssey() {
    let read = read(Kind::Odyssey, ODYSSEY);
    has(
        &read,
        &[
            "shop = cluster=shop dbname=shop_live pool_mode=transaction pool_size=20 route=auto",
            "shop = nodes=shop_1,shop_2 check_dbname=shop_live check_user=alice",
            "shop_1 = host=db1.example port=5432",
            "shop_2 = host=db2.example port=5433",
            "report = pool_mode=session pool_size=5",
            "listen_addr = *",
            "max_client_conn = 500",
            "stats_period = 60",
            "query_wait_timeout = 4",
            "server_idle_timeout = 60",
            "admin_users = admin",
            "auth_type = hba",
        ],
    );
    let rules = read.rules().unwrap();
    let expected = [
        "host \"pgbouncer\" \"admin\" all scram-sha-256",
        "host \"shop\" \"alice\" all scram-sha-256",
        "host \"shop\" \"report\" all md5",
        "host all all all reject",
    ];
    let hosts: Vec<&str> = rules.lines().filter(|line| line.starts_with("host")).collect();
    assert_eq!(hosts, expected);
    assert_eq!(about(&read, FindingKind::Missing), [""; 0]);
    assert_eq!(
        about(&read, FindingKind::Differs),
        [
            "target_session_attrs of shop",
            "target_session_attrs of shop",
            "check_user of shop",
            "server_reset_query of report on shop"
        ],
        "one of its users is in session pooling"
    );
}

#[test]
fn odyssey_with_rules_by_address() {
    let text = ODYSSEY.replace("daemonize no", "daemonize no\nhba_file \"odyssey_hba.conf\"");
    let rules = [("odyssey_hba.conf", "# all\nhost all evil all deny\nhost shop all 10.0.0.0/8 allow\n")];
    let read = read_with(Kind::Odyssey, &text, &rules).expect("it is good");
    let rules = read.rules().unwrap();
    let hosts: Vec<&str> = rules.lines().filter(|line| line.starts_with("host")).collect();
    assert_eq!(
        hosts[1..],
        [
            "host all evil all reject",
            "host \"shop\" \"alice\" 10.0.0.0/8 scram-sha-256",
            "host \"shop\" \"report\" 10.0.0.0/8 md5",
            "host shop all 10.0.0.0/8 reject"
        ]
    );
}

#[test]
fn odyssey_includes_and_their_loops() {
    let main = "include \"more\"\n";
    let read = read_with(Kind::Odyssey, main, &[("more", ODYSSEY)]);
    assert!(read.is_ok());
    let looped = read_with(Kind::Odyssey, main, &[("more", main)]).err().expect("a loop ends");
    assert!(looped[0].text.contains("more than 64 files"), "{looped:?}");
    assert!(faults(Kind::Odyssey, "storage \"a\" { host \"b\" }\ndatabase \"x\" { user \"u\" { storage \"c\" authentication \"md5\" } }\n")[0]
        .contains("sample:2: user u: its storage is not there"));
}

#[test]
fn pgcat() {
    let read = read(Kind::PgCat, PGCAT);
    has(
        &read,
        &[
            "shop = cluster=shop dbname=shop_live pool_size=9 route=auto",
            "shop = nodes=shop_1,shop_2 check_dbname=shop_live check_user=alice",
            "shop_2 = host=db2.example port=5432",
            "report = pool_size=3 query_timeout=60",
            "listen_addr = 0.0.0.0",
            "pool_mode = transaction",
            "server_connect_timeout = 5",
            "server_idle_timeout = 30",
            "server_lifetime = 86400",
            "server_tls_sslmode = disable",
            "log_connections = 0",
            "admin_users = admin",
            "auth_type = md5",
        ],
    );
    assert_eq!(read.rules(), None);
    assert_eq!(about(&read, FindingKind::Missing), [""; 0]);
    assert_eq!(about(&read, FindingKind::Differs), ["check_user of shop"]);
}

#[test]
fn pgcat_does_not_shard() {
    let text =
        format!("{PGCAT}\n[pools.shop.shards.1]\nservers = [[\"c\", 5432, \"primary\"]]\ndatabase = \"x\"\n");
    assert!(faults(Kind::PgCat, &text)[0].contains("no server that pgweir could use"));
    let broken =
        PGCAT.replace("5432, \"primary\"", "0, \"primary\"").replace("port = 6432", "port = \"6432x\"");
    assert_eq!(faults(Kind::PgCat, &broken).len(), 2);
}

#[test]
fn pgdog() {
    let read = read(Kind::PgDog, PGDOG);
    has(
        &read,
        &[
            "shop = cluster=shop dbname=shop_live pool_mode=transaction pool_size=10 route=auto",
            "shop_2 = host=10.0.0.2 port=5432",
            "stock = host=10.0.0.3 port=5432 user=stock_owner pool_mode=session pool_size=5",
            "query_wait_timeout = 5",
            "server_lifetime = 86400",
            "tcp_keepidle = 60",
            "stats_period = 15",
            "admin_users = admin",
            "auth_type = hba",
        ],
    );
    // Only bob may ask for a database whose server connections have a forced user.
    let rules = read.rules().unwrap();
    assert!(rules.contains("host \"stock\" \"bob\" all scram-sha-256\n"), "{rules}");
    assert!(!rules.contains("\"stock\" \"alice\""), "{rules}");
    assert!(read.users().unwrap().contains("\"stock_owner\" \"hunter5\"\n"));
    assert_eq!(about(&read, FindingKind::Missing), [""; 0]);
    assert_eq!(about(&read, FindingKind::Differs), ["database_name of shop", "check_user of shop"]);
    let alone = read_with(Kind::PgDog, PGDOG, &[]).err().expect("without users there is nothing to be done");
    assert!(alone[0].text.contains("--users"));
}

#[test]
fn pg_doorman() {
    let read = read(Kind::PgDoorman, DOORMAN_YAML);
    has(
        &read,
        &[
            "shop = host=db1.example port=5432",
            "default_pool_size = 40",
            "max_client_conn = 8192",
            "server_idle_timeout = 300",
            "server_lifetime = 300",
            "server_tls_sslmode = allow",
            "auth_type = hba",
        ],
    );
    assert!(
        read.rules()
            .unwrap()
            .contains("hostssl all all 0.0.0.0/0 scram-sha-256\nhost all all 10.0.0.0/8 md5\n")
    );
    assert_eq!(about(&read, FindingKind::Missing), ["pools.shop.users.token.password"]);

    let read = self::read(Kind::PgDoorman, DOORMAN_TOML);
    let ini = read.ini(&Places::default());
    assert!(ini.contains("auth_user=auth_lookup"), "{ini}");
    assert!(ini.contains("host=/var/run/postgresql"), "{ini}");
    assert!(ini.contains("(SELECT passwd FROM lookup($1)) AS found"), "{ini}");
    assert!(read.findings().is_empty(), "{:?}", read.findings());
}

#[test]
fn environments() {
    let read = read(Kind::Environment, EDOBURU);
    has(
        &read,
        &[
            "shop = host=db1.example port=5433",
            "listen_port = 5432",
            "pool_mode = transaction",
            "max_client_conn = 200",
            "default_pool_size = 25",
            "server_tls_sslmode = require",
        ],
    );
    assert_eq!(read.users().as_deref(), Some("\"alice\" \"hunter2\"\n"), "the address is decoded");
    assert!(read.findings().is_empty(), "{:?}", read.findings());

    let read = self::read(Kind::Environment, BITNAMI);
    has(
        &read,
        &[
            "shop = host=db1.example port=5432 dbname=shop_live",
            "listen_port = 6432",
            "pool_mode = transaction",
        ],
    );
    assert_eq!(about(&read, FindingKind::Missing), ["PGBOUNCER_EXTRA_ARGS"]);

    let file = [("/run/secrets/db", "hunter2\n")];
    let text = "DB_HOST=a\nDB_USER=alice\nDB_PASSWORD_FILE=/run/secrets/db\nNO_SUCH=hunter3\n";
    let read = read_with(Kind::Environment, text, &file).expect("it is good");
    assert_eq!(read.users().as_deref(), Some("\"alice\" \"hunter2\"\n"));
    assert_eq!(about(&read, FindingKind::Unknown), ["NO_SUCH"]);
}

/// A quote that is missing or misplaced turns the text after it into names: no message repeats that text.
#[test]
fn misplaced_quotes_tell_no_password() {
    let cut = ODYSSEY.replacen("storage_db \"shop_live\"", "storage_db shop_live\"", 1);
    assert_eq!(faults(Kind::Odyssey, &cut), ["sample:34: a quote begins within a word"]);
    let ends = ODYSSEY.replacen("storage_db \"shop_live\"", "storage_db \"shop_live\"x", 1);
    assert_eq!(faults(Kind::Odyssey, &ends), ["sample:34: a quote ends before a word"]);
    let quoted = PGCAT.replacen("[general]\n", "[general]\n\"password = hunter2\" = 1\n", 1);
    let read = read(Kind::PgCat, &quoted);
    assert!(about(&read, FindingKind::Unknown).contains(&"general.(not a name)"), "{:?}", read.findings());
}

/// A variable of two quoted words is not one in quotes; several URLs are edoburu's, too.
#[test]
fn environment_files_in_less_usual_forms() {
    let text = format!("{BITNAMI}PGBOUNCER_USERLIST=\"bob\" \"hunter4\"\n");
    let users = read(Kind::Environment, &text).users().unwrap();
    assert!(users.contains("\"bob\" \"hunter4\"\n"), "{users}");
    let urls = "DATABASE_URLS=postgres://alice:hunter2@db1/shop,postgres://alice:hunter2@db2/stock\n";
    assert_eq!(Kind::of(urls), Some(Kind::Environment));
}

#[test]
fn values_that_no_file_can_hold_are_refused() {
    let text = PGCAT.replace("\"hunter2\"", "\"a\\nb\"");
    assert!(faults(Kind::PgCat, &text)[0].contains("line breaks"));
    let reserved = PGCAT.replace("pools.shop", "pools.pgbouncer");
    assert!(faults(Kind::PgCat, &reserved)[0].contains("reserved"));
    let injected = PGCAT.replace("db1.example", "a' user=postgres password='x");
    let read = read_with(Kind::PgCat, &injected, &[]).expect("it is quoted");
    assert!(read.ini(&Places::default()).contains("host='a'' user=postgres password=''x'"));
}

proptest! {
    /// Damages a file: the result is an error, or a configuration that loads.
    #[test]
    fn damaged_samples_do_no_harm(
        which in 0usize..8,
        at in 0.0f64..1.0,
        cut in 0usize..40,
        noise in "[\\[\\]{}=:#'\"\\\\ \n\ta-z0-9*$%.,-]{0,12}|\\PC{0,4}",
    ) {
        let samples = [PGPOOL, ODYSSEY, PGCAT, PGDOG, DOORMAN_YAML, DOORMAN_TOML, EDOBURU, BITNAMI];
        let kinds = [Kind::Pgpool, Kind::Odyssey, Kind::PgCat, Kind::PgDog, Kind::PgDoorman, Kind::PgDoorman];
        let kind = kinds.get(which).copied().unwrap_or(Kind::Environment);
        let letters: Vec<char> = samples[which].chars().collect();
        let begin = (letters.len() as f64 * at) as usize;
        let end = (begin + cut).min(letters.len());
        let text: String = letters[..begin].iter().copied().chain(noise.chars()).chain(letters[end..].iter().copied()).collect();
        match read_with(kind, &text, &FILES) {
            // This includes the final check: the files that were written have been loaded again.
            Ok(read) => prop_assert!(read.ini(&Places::default()).contains("[databases]")),
            Err(faults) => {
                prop_assert!(!faults.is_empty());
                prop_assert!(faults.iter().all(|fault| !fault.to_string().contains('\n')));
            }
        }
        for kind in Kind::ALL {
            let _ = read_with(kind, &text, &[]);
        }
    }
}
