//! `[clusters]`, `[nodes]` and the database key `cluster`: what is read, and what must fit between their lines.

mod common;

use common::{faults, load};
use pgweir_settings::{Discovery, Route, RouteSubject, SourceLost};

const GOOD: &str = "[pgbouncer]\nauth_user = asker\n[clusters]\nmain = nodes=m1,m2 check_interval_ms=200 primary_wait=5\n\
                    [nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.2 port=5433 attached=0\n\
                    [databases]\napp = cluster=main\n* = cluster=main\n";

#[test]
fn a_cluster_and_its_nodes_are_read() {
    let config = load(GOOD).expect("a good file");
    let cluster = &config.clusters["main"];
    assert_eq!(cluster.nodes, ["m1", "m2"]);
    assert_eq!((cluster.check_interval_ms, cluster.check_timeout_ms), (200, 1000));
    assert_eq!(cluster.primary_wait.as_secs(), 5);
    assert_eq!(config.check_user(cluster), Some("asker"), "auth_user stands in");
    let node = &config.nodes["m2"];
    assert_eq!((node.host.as_str(), node.port, node.attached), ("10.0.0.2", 5433, false));
    assert_eq!(config.database("any").expect("from *").cluster.as_deref(), Some("main"));
}

#[test]
fn a_cluster_and_a_node_that_change_are_in_the_diff() {
    let old = load(GOOD).expect("a good file");
    let new = load(&GOOD.replace("primary_wait=5", "primary_wait=6").replace("10.0.0.1", "10.0.0.9"));
    let diff = old.diff(&new.expect("a good file"));
    assert_eq!((diff.clusters, diff.nodes), (vec!["main".to_owned()], vec!["m1".to_owned()]));
    assert!(old.diff(&load(GOOD).expect("a good file")).is_empty());
}

#[test]
fn every_fault_between_the_lines_is_told_with_its_place() {
    let text = "[pgbouncer]\n[clusters]\nmain = nodes=m1,m3,m1 check_timeout_ms=9000 primary_max_age_ms=8000 check_interval_ms=8000\n\
                other = nodes=m1 check_user=c\nnone = check_user=c\na.b = nodes=m1 check_user=c\n\
                [nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.1\nm4 = port=1\nm5 = host=a,b\n\
                [databases]\napp = cluster=mian\nweb = cluster=main host=10.0.0.1\n";
    let found = faults(text);
    for (line, words) in [
        (3, "cluster \"main\": there is no node \"m3\" in [nodes]; did you mean"),
        (3, "cluster \"main\": node \"m1\" is listed twice"),
        (3, "cluster \"main\": a cluster needs check_user, or the global auth_user"),
        (3, "cluster \"main\": check_timeout_ms must not be above primary_max_age_ms"),
        (3, "cluster \"main\": check_interval_ms must be below primary_max_age_ms"),
        (4, "cluster \"other\": node \"m1\" belongs to cluster \"main\" already"),
        (5, "cluster \"none\": a cluster needs nodes"),
        (6, "the name of a cluster must have letters"),
        (9, "node \"m2\": node \"m1\" has the same address"),
        (10, "a node needs a host"),
        (11, "a node has one host"),
        (13, "database \"app\": there is no cluster \"mian\" in [clusters]; did you mean \"main\"?"),
        (14, "host cannot stand beside cluster"),
    ] {
        let place = format!("t.ini:{line}");
        assert!(
            found.iter().any(|fault| fault.contains(words) && fault.contains(&place)),
            "{words} at {place}\n{}",
            found.join("\n")
        );
    }
    assert_eq!(found.len(), 13, "{}", found.join("\n"));
}

const ROUTED: &str = "[pgbouncer]\nauth_user = asker\n[clusters]\nmain = nodes=m1,m2\n[nodes]\nm1 = host=10.0.0.1\nm2 = host=10.0.0.2\n\
                      [databases]\napp = cluster=main\n[routes]\nbi = user=report_* application_name=meta*base route=standby\n\
                      a = database=app node=m2\nrest = route=any\n";

#[test]
fn the_first_line_that_a_client_matches_counts() {
    let config = load(ROUTED).expect("a good file");
    let line = |database, user, application_name: &str| {
        let application_name = application_name.as_bytes();
        let line = config.route_line(RouteSubject { database, user, application_name, number: 7 });
        line.map(|line| line.name.as_str())
    };
    assert_eq!(line("app", "report_1", "meta and base"), Some("bi"));
    assert_eq!(line("app", "report_1", "psql"), Some("a"), "in the order of the file, not of the names");
    assert_eq!(line("other", "alice", ""), Some("rest"));
    let new = load(&ROUTED.replace("rest = route=any", "rest = route=primary")).expect("a good file");
    assert!(config.diff(&new).routes && !config.diff(&config).routes);
}

#[test]
fn clients_that_are_not_drawn_go_on_to_the_next_line() {
    let config = load(&ROUTED.replace("route=standby", "route=standby percent=25")).expect("a good file");
    let of = |number| {
        let client = RouteSubject { database: "x", user: "report_", application_name: b"metabase", number };
        config.route_line(client).expect("the last line takes all").name.clone()
    };
    let drawn = (0..4000).filter(|number| of(*number) == "bi").count();
    assert!((850..1150).contains(&drawn), "{drawn}");
    assert!((0..4000).all(|number| ["bi", "rest"].contains(&of(number).as_str())));
}

#[test]
fn every_fault_of_a_route_is_told_with_its_place() {
    let text = format!(
        "{ROUTED}one = user=x\ntwo = route=any node=m1\nthree = node=m3\nfour = route=any percent=101\nrest = node=m1\nfive = route=auto?\n"
    );
    let found = faults(&text);
    for (line, words) in [
        (14, "route \"one\": a line needs route or node"),
        (15, "route \"two\": route and node cannot stand in one line"),
        (16, "route \"three\": there is no node \"m3\" in [nodes]; did you mean \"m1\"?"),
        (17, "invalid percent: 101"),
        (18, "there is a route of this name in t.ini:13 already"),
        (19, "invalid route: auto?"),
    ] {
        let place = format!("t.ini:{line}");
        assert!(
            found.iter().any(|fault| fault.contains(words) && fault.contains(&place)),
            "{words}\n{found:#?}"
        );
    }
    let weightless = ROUTED.replace("10.0.0.1", "10.0.0.1 weight=0").replace("10.0.0.2", "10.0.0.2 weight=0");
    let found = faults(&weightless);
    assert!(
        found[0]
            .contains("route \"bi\": route=standby, and every node of the cluster of \"app\" has weight 0")
    );
    assert_eq!(found.len(), 1, "a line may name a node of weight 0");
}

#[test]
fn the_second_port_is_another_one_and_needs_a_cluster() {
    let with = |port: &str| ROUTED.replace("auth_user", &format!("standby_listen_port = {port}\nauth_user"));
    let config = load(&with("6433")).expect("a good file");
    assert_eq!(config.main.standby_listen_port, 6433);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
    let same = faults(&with("6432"));
    assert_eq!(same, ["standby_listen_port must be another port than listen_port (t.ini:2)"]);
    let alone = load("[pgbouncer]\nstandby_listen_port = 6433\n").expect("a good file");
    assert!(alone.warnings[0].text.contains("no effect without a database that has a cluster"));
}

#[test]
fn less_lag_is_preferred_by_a_limit_only() {
    let text = ROUTED.replace("nodes=m1,m2", "nodes=m1,m2 prefer_lower_lag=1");
    assert!(load(&text).is_ok());
    let found = faults(&text.replace("prefer_lower_lag=1", "prefer_lower_lag=1 lag_limit_ms=0"));
    assert_eq!(found, ["cluster \"main\": prefer_lower_lag needs lag_limit_ms or lag_limit_bytes (t.ini:4)"]);
}

#[test]
fn a_statement_gives_the_lag() {
    let text = ROUTED.replace("nodes=m1,m2", "nodes=m1,m2 lag_query='select ''1''::int'");
    let config = load(&text).expect("a good file");
    assert_eq!(config.clusters["main"].lag_query.as_deref(), Some("select '1'::int"));
    let none = load(ROUTED).expect("a good file");
    assert_eq!(none.clusters["main"].lag_query, None);
    assert_eq!(config.diff(&none).clusters, ["main"]);
}

#[test]
fn a_program_gives_the_lag_or_a_statement_does() {
    let text = ROUTED.replace("nodes=m1,m2", "nodes=m1,m2 lag_command='/bin/lag -v' lag_command_timeout=3");
    let cluster = &load(&text).expect("a good file").clusters["main"];
    assert_eq!(cluster.lag_command.as_deref(), Some("/bin/lag -v"));
    assert_eq!(cluster.lag_command_timeout.as_secs(), 3);
    let found = faults(&text.replace("nodes=m1,m2", "nodes=m1,m2 lag_query='select 1'"));
    assert_eq!(found, ["cluster \"main\": lag_query and lag_command cannot stand in one cluster (t.ini:4)"]);
    assert!(faults(&text.replace("timeout=3", "timeout=0"))[0].contains("lag_command_timeout"));
}

#[test]
fn a_program_promotes_where_patroni_does_not() {
    let text = ROUTED
        .replace("nodes=m1,m2", "nodes=m1,m2 promote_command='/bin/promote -v' promote_command_timeout=3");
    let cluster = &load(&text).expect("a good file").clusters["main"];
    assert_eq!(cluster.promote_command.as_deref(), Some("/bin/promote -v"));
    assert_eq!(cluster.promote_command_timeout.as_secs(), 3);
    let patroni = text.replace("nodes=m1,m2", "discovery=patroni patroni_api=http://10.0.0.1:8008");
    let found = faults(&patroni);
    assert!(found.iter().any(|fault| fault.contains("with discovery=patroni Patroni promotes")), "{found:?}");
    assert!(faults(&text.replace("timeout=3", "timeout=0"))[0].contains("promote_command_timeout"));
}

#[test]
fn a_user_does_not_wait_for_standbys_that_get_no_reads() {
    let file = |weight| {
        format!(
            "[pgbouncer]\nauth_user = asker\n[clusters]\nmain = nodes=m1,m2\n[nodes]\nm1 = host=10.0.0.1 weight=0\n\
             m2 = host=10.0.0.2 weight={weight}\n[databases]\napp = cluster=main\n[users]\nreader = route=standby\n"
        )
    };
    assert!(load(&file(1)).is_ok());
    let found = faults(&file(0));
    assert_eq!(
        found,
        ["user \"reader\": route=standby, and every node of the clusters has weight 0 (t.ini:11)"]
    );
}

const DISCOVERED: &str = "[pgbouncer]\netcd_endpoints = http://10.1.0.1:2379,https://etcd.local:2379\netcd_user = u\netcd_password = secret-of-etcd\n\
                          source_tls_ca_file = /ca.crt\nallow_discovered_hosts = 10.1.0.0/16, *.db.local\nauth_user = asker\n\
                          [clusters]\none = discovery=dns host=pg-nodes port=5433\n\
                          two = discovery=patroni patroni_api=http://10.1.0.1:8008,http://10.1.0.2:8008 patroni_user=p patroni_password=secret-of-api\n\
                          three = discovery=etcd etcd_prefix=/service/main source_lost=hold\n\
                          [nodes]\n10.1.0.9 = attached=0\npg-0.db = attached=0\n[databases]\napp = cluster=one\n";

#[test]
fn clusters_that_are_discovered() {
    let config = load(DISCOVERED).expect("a good file");
    assert_eq!(config.clusters["one"].discovery, Discovery::Dns);
    assert_eq!(
        (config.clusters["one"].host.as_deref(), config.clusters["one"].port),
        (Some("pg-nodes"), 5433)
    );
    assert_eq!(config.clusters["two"].patroni_api, ["http://10.1.0.1:8008", "http://10.1.0.2:8008"]);
    assert_eq!(config.clusters["three"].source_lost, SourceLost::Hold);
    assert!(!config.nodes["10.1.0.9"].attached, "a line has options for a node that is found");
    let shown = format!("{config:?} {:?}", config.show());
    assert!(!shown.contains("secret-of"), "no secret is shown");
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn every_fault_of_a_discovered_cluster_is_told_with_its_place() {
    let text = "[pgbouncer]\nauth_user = a\netcd_endpoints = 10.0.0.1:2379\nallow_discovered_hosts = 10.0.0.0/33\nsource_tls_cert_file = /c\netcd_user = u\n\
                [clusters]\na = nodes=m1 port=5432\nb = discovery=dns nodes=m2 source_lost=hold\nc = discovery=patroni etcd_prefix=/x patroni_user=u\n\
                d = discovery=patroni patroni_api=https://h:1,http://u:pw-in-url@h:1,h\ne = discovery=etcd\nf = discovery=zk\n\
                [nodes]\nm1 = port=1\nm2 = attached=0\n";
    let found = faults(text);
    for (line, words) in [
        (3, "etcd_endpoints: \"10.0.0.1:2379\": an address must be http://host:port"),
        (4, "allow_discovered_hosts: \"10.0.0.0/33\": it must be"),
        (5, "source_tls_cert_file needs source_tls_key_file"),
        (6, "etcd_user needs etcd_password"),
        (8, "port needs discovery=dns, and this cluster has discovery=sql"),
        (9, "nodes needs discovery=sql, and this cluster has discovery=dns"),
        (9, "source_lost needs discovery=patroni or etcd"),
        (9, "a cluster with discovery=dns needs host"),
        (10, "etcd_prefix needs discovery=etcd"),
        (10, "a cluster with discovery=patroni needs patroni_api"),
        (10, "patroni_user and patroni_password need each other"),
        (11, "patroni_api: https://h:1 needs the global source_tls_ca_file"),
        (11, "patroni_api: an address has no user and no password"),
        (11, "patroni_api: \"h\": an address must be"),
        (12, "a cluster with discovery=etcd needs etcd_prefix"),
        (13, "it must be one of sql, dns, patroni, etcd"),
        (15, "node \"m1\": a node needs a host"),
    ] {
        let place = format!("t.ini:{line}");
        assert!(
            found.iter().any(|fault| fault.contains(words) && fault.contains(&place)),
            "{words} at {place}\n{}",
            found.join("\n")
        );
    }
    assert!(
        found.iter().all(|fault| !fault.contains("pw-in-url")),
        "a password in an address is not repeated"
    );
    let bare = faults(
        "[pgbouncer]\nauth_user=a\n[clusters]\nc = discovery=patroni patroni_api=http://h:1\ne = discovery=etcd etcd_prefix=/x\n",
    );
    for words in [
        "patroni needs the global allow_discovered_hosts",
        "etcd needs the global etcd_endpoints",
        "etcd needs the global allow_discovered_hosts",
    ] {
        assert!(bare.iter().any(|fault| fault.contains(words)), "{words}\n{}", bare.join("\n"));
    }
}

#[test]
fn a_primary_that_is_trusted_longer_than_patronis_ttl_is_warned_of() {
    let config =
        load(&DISCOVERED.replace("source_lost=hold", "primary_max_age_ms=30000")).expect("a good file");
    let [warning] = config.warnings.as_slice() else { panic!("{:?}", config.warnings) };
    assert!(
        warning.text.contains("cluster \"three\": primary_max_age_ms=30000 is above 20000")
            && warning.line == 11
    );
}

#[test]
fn a_users_route_goes_before_its_databases() {
    let text = GOOD
        .replace("primary_wait=5", "route=any")
        .replace("app = cluster=main", "app = cluster=main route=read-only");
    let config = load(&format!("{text}[users]\nbob = route=prefer-standby\n")).expect("a good file");
    let of = |database: &str, user: &str| config.route(&config.database(database).expect("from *"), user);
    assert_eq!(of("app", "bob"), Route::PreferStandby);
    assert_eq!(of("app", "alice"), Route::Standby);
    assert_eq!(of("other", "alice"), Route::Any);
    let plain = load(GOOD).expect("a good file");
    assert_eq!(plain.route(&plain.databases["app"], "alice"), Route::Primary);
}

#[test]
fn a_database_whose_standbys_take_no_reads_is_a_fault() {
    let text = GOOD.replace("host=10.0.0.1", "host=10.0.0.1 weight=0").replace("attached=0", "weight=0");
    assert!(load(&text).is_ok(), "its clients go to the primary");
    let faults = faults(&text.replace("app = cluster=main", "app = cluster=main route=standby"));
    assert!(
        faults.iter().any(|fault| fault.contains("every node of its cluster has weight 0")),
        "{faults:?}"
    );
}
