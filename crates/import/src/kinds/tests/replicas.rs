//! Tests that replicas, roles and Patroni of each kind become clusters; and of pgpool's older and rarer keys.

use super::{FILES, about, faults, has, read, read_with};
use crate::{FindingKind, Kind, Places, Source, import};

const PGCAT: &str = "[general]\nport = 6432\n[pools.shop]\npool_mode = \"transaction\"\ndefault_role = \"primary\"\n\
                     [pools.shop.users.0]\nusername = \"alice\"\npassword = \"hunter2\"\npool_size = 2\n\
                     [pools.shop.shards.0]\ndatabase = \"shop\"\n\
                     servers = [[\"db1\", 5432, \"primary\"], [\"db2\", 5432, \"replica\"]]\n";

/// Returns the line of the sample's database.
fn pgcat(changes: &[(&str, &str)]) -> (String, Vec<String>) {
    let text = changes.iter().fold(PGCAT.to_owned(), |text, (from, to)| text.replace(from, to));
    let read = read(Kind::PgCat, &text);
    let ini = read.ini(&Places::default());
    let line = ini.lines().find(|line| line.starts_with("shop = ")).unwrap_or_default().to_owned();
    (line, about(&read, FindingKind::Differs).into_iter().map(str::to_owned).collect())
}

#[test]
fn roles_of_pgcat() {
    let role = |role: &str| pgcat(&[("default_role = \"primary\"", role)]);
    assert_eq!(pgcat(&[]).0, "shop = cluster=shop route=primary");
    assert_eq!(role("default_role = \"replica\"").0, "shop = cluster=shop route=standby");
    let any = role("default_role = \"any\"");
    assert_eq!(any.0, "shop = cluster=shop route=auto");
    assert!(
        any.1.contains(&"pools.shop.default_role".to_owned()),
        "changes do not go to any server: {any:?}"
    );
    let parsed =
        "default_role = \"primary\"\nquery_parser_enabled = true\nquery_parser_read_write_splitting = ";
    assert_eq!(role(&format!("{parsed}true")).0, "shop = cluster=shop route=auto");
    assert_eq!(role(&format!("{parsed}false")).0, "shop = cluster=shop route=primary");
    let session =
        pgcat(&[("transaction", "session"), ("default_role", "query_parser_enabled = true\ndefault_role")]);
    assert!(session.1.contains(&"pools.shop.default_role".to_owned()), "{session:?}");
}

#[test]
fn replicas_alone_take_turns() {
    let (line, _) = pgcat(&[("\"primary\"],", "\"replica\"],")]);
    assert_eq!(line, "shop = host=db1,db2 port=5432");
    let (line, _) = pgcat(&[("\"db2\"", "\"db1\"")]);
    assert_eq!(line, "shop = host=db1 port=5432", "one server twice");
}

#[test]
fn the_mode_that_the_caller_names() {
    let files = FILES;
    let source = |text| Source { name: "sample", text, pool_mode: Some("transaction"), ..Source::default() };
    let mut open = |name: &str| {
        let found = files.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
    };
    let imported = import(Kind::Pgpool, &source(super::PGPOOL), &mut open).expect("it is good");
    has(&imported, &["pool_mode = transaction"]);
    assert_eq!(about(&imported, FindingKind::Differs), ["health_check_period"], "reads go to standbys now");
    let imported = import(Kind::Odyssey, &source(super::ODYSSEY), &mut open).expect("it is good");
    has(&imported, &["pool_mode = transaction", "report = pool_size=5"]);
}

#[test]
fn settings_of_pgdog_for_clusters() {
    let more = "[general]\nread_write_strategy = \"aggressive\"\nban_replica_lag = 5000\nban_replica_lag_bytes = 1000\n";
    let text = super::PGDOG
        .replace("[general]\n", more)
        .replace("role = \"replica\"", "role = \"auto\"\nlb_weight = 3");
    has(
        &read(Kind::PgDog, &text),
        &[
            "shop = nodes=shop_1,shop_2 begin_undeclared=first check_dbname=shop_live check_user=alice lag_limit_bytes=1000 \
             lag_limit_ms=5000",
            "shop_2 = host=10.0.0.2 port=5432 weight=3",
        ],
    );
    let text = super::PGDOG.replace("[general]\n", "[general]\nread_write_split = \"prefer_primary\"\n");
    let primary = read(Kind::PgDog, &text).ini(&Places::default());
    assert!(primary.contains("shop = cluster=shop") && primary.contains("route=primary"), "{primary}");
    let all = super::PGDOG.replace("database_name = \"shop_live\"", "role = \"replica\"");
    has(
        &read(Kind::PgDog, &all),
        &["shop = host=10.0.0.1,10.0.0.2 port=5432 pool_mode=transaction pool_size=10"],
    );
}

#[test]
fn session_attributes_and_watchdog_of_odyssey() {
    let watchdog = "type \"remote\"\n\twatchdog {\n\t\tstorage_user \"checker\"\n\t\tstorage_password \"hunter5\"\n\t\tstorage_db \"postgres\"\n\
                    \t\twatchdog_lag_query \"SELECT ts FROM mon;\"\n\t}";
    let text = super::ODYSSEY
        .replacen("type \"remote\"", watchdog, 1)
        .replacen(
            "pool \"transaction\"",
            "pool \"transaction\"\n\t\ttarget_session_attrs \"read-write\"\n\t\tcatchup_timeout 3",
            1,
        )
        .replacen(
            "pool \"session\"",
            "pool \"session\"\n\t\ttarget_session_attrs \"read-only\"\n\t\tcatchup_timeout 9",
            1,
        );
    let imported = read(Kind::Odyssey, &text);
    has(
        &imported,
        &[
            "shop = cluster=shop dbname=shop_live pool_mode=transaction pool_size=20 route=primary",
            "report = pool_mode=session pool_size=5 route=standby",
            "shop = nodes=shop_1,shop_2 check_dbname=postgres check_user=checker lag_limit_ms=3000 \
             lag_query='SELECT extract(epoch FROM clock_timestamp()) - (SELECT ts FROM mon)' check_password=hunter5",
        ],
    );
    assert_eq!(
        about(&imported, FindingKind::Differs),
        ["catchup_timeout", "server_reset_query of report on shop"]
    );
    let second = "}\n\nlisten {\n\thost \"*\"\n\tport 6433\n\ttarget_session_attrs \"read-only\"\n}\n\nstorage \"main\"";
    let text = super::ODYSSEY.replacen("}\n\nstorage \"main\"", second, 1);
    has(&read(Kind::Odyssey, &text), &["listen_port = 6432", "standby_listen_port = 6433"]);
}

#[test]
fn patroni_of_pg_doorman() {
    let urls = "    patroni_api_urls: [\"http://10.0.0.1:8008\", \"http://10.0.0.2:8008/\"]\n    fallback_cooldown: \"30s\"\n";
    let text = super::DOORMAN_YAML.replacen("    server_port", &format!("{urls}    server_port"), 1);
    let imported = read(Kind::PgDoorman, &text);
    has(
        &imported,
        &[
            "shop = cluster=shop",
            "shop = check_dbname=shop check_user=alice discovery=patroni patroni_api=http://10.0.0.1:8008,http://10.0.0.2:8008",
            "allow_discovered_hosts = 10.0.0.1, 10.0.0.2, db1.example",
        ],
    );
    assert!(!imported.ini(&Places::default()).contains("[nodes]"));
    assert_eq!(about(&imported, FindingKind::Differs), ["pools.shop.patroni_api_urls", "check_user of shop"]);
    let tls = read(Kind::PgDoorman, &text.replace("http://10.0.0.1", "https://10.0.0.1"));
    has(&tls, &["source_tls_ca_file = /etc/ssl/certs/ca-certificates.crt"]);
    let wrong = faults(Kind::PgDoorman, &text.replace("http://10.0.0.1:8008", "ftp://hunter2"));
    assert!(wrong[0].contains("patroni_api_urls") && !wrong[0].contains("hunter2"), "{wrong:?}");
}

#[test]
fn switches_of_pgpool_before_4_2() {
    let two = "backend_hostname0 = 'a'\nbackend_hostname1 = 'b'\nsr_check_user = 'c'\npool_passwd = ''\n";
    let refused = faults(Kind::Pgpool, &format!("{two}replication_mode = on\n"));
    assert!(
        refused[0].contains("sample:5: replication_mode: pgweir sends a statement to one server"),
        "{refused:?}"
    );
    let of = |more: &str| read(Kind::Pgpool, &format!("{two}{more}"));
    let stream = of("replication_mode = off\nmaster_slave_mode = on\nmaster_slave_sub_mode = 'stream'\n");
    has(&stream, &["* = cluster=main"]);
    assert_eq!(about(&stream, FindingKind::Unknown), [""; 0]);
    has(&of("master_slave_mode = on\nmaster_slave_sub_mode = 'slony'\n"), &["* = host=a port=5432"]);
    has(&of("replication_mode = off\nmaster_slave_mode = off\n"), &["* = host=a port=5432"]);
    has(&of(""), &["* = cluster=main"]);
}

#[test]
fn plain_passwords_of_pgpool() {
    let files = [(
        "pool_passwd",
        "alice:hunter2\nbob:md5hunter3\ncarol:md5a3556571e93b0d20722ba62be61e8c2d:rest\ndave:\n",
    )];
    let imported = read_with(Kind::Pgpool, "backend_hostname0 = 'a'\n", &files).expect("it is good");
    assert_eq!(
        imported.users().as_deref(),
        Some(
            "\"alice\" \"hunter2\"\n\"bob\" \"md5hunter3\"\n\"carol\" \"md5a3556571e93b0d20722ba62be61e8c2d\"\n"
        )
    );
    assert_eq!(about(&imported, FindingKind::Missing), ["password of dave"]);
}

#[test]
fn limits_of_the_lag_without_a_unit() {
    let two = "backend_hostname0 = 'a'\nbackend_hostname1 = 'b'\nsr_check_user = 'c'\npool_passwd = ''\nload_balance_mode = off\n";
    for (text, limit_ms, is_told) in [
        ("3", 3000, true),
        ("999", 999_000, true),
        ("1000", 1000, true),
        ("10000", 10_000, true),
        ("3s", 3000, false),
        ("500ms", 500, false),
    ] {
        let imported = read(Kind::Pgpool, &format!("{two}delay_threshold_by_time = {text}\n"));
        let ini = imported.ini(&Places::default());
        assert!(ini.contains(&format!("lag_limit_ms={limit_ms} ")), "{text}: {ini}");
        assert_eq!(
            about(&imported, FindingKind::Differs).contains(&"delay_threshold_by_time"),
            is_told,
            "{text}"
        );
    }
}

#[test]
fn what_belongs_to_a_key_is_told_with_it() {
    let watchdog = "backend_hostname0 = 'a'\npool_passwd = ''\nuse_watchdog = on\nwd_port0 = 9000\nwd_priority = 1\nhostname0 = 'x'\ndelegate_ip = ''\n";
    let imported = read(Kind::Pgpool, watchdog);
    assert_eq!(about(&imported, FindingKind::Missing), ["use_watchdog", "pool_passwd"]);
    let told = imported.findings().iter().find(|finding| finding.what == "use_watchdog").expect("it is told");
    assert!(told.why.ends_with("4 more keys belong to it"), "{}", told.why);
    assert_eq!(
        about(&read(Kind::Pgpool, &watchdog.replace("= on", "= off")), FindingKind::Missing),
        ["pool_passwd"]
    );
}
