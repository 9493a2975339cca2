//! `[clusters]`, `[nodes]` and the database key `cluster`: what is read, and what must fit between their lines.

mod common;

use common::{faults, load};

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
