//! `[cache]`: what is refused, and what a RELOAD sees.

mod common;

use common::load;

/// The faults of a file with these lines of `[pgbouncer]` and of `[cache]`.
fn faults(main: &str, rules: &str) -> Vec<String> {
    let text = format!("[pgbouncer]\n{main}\n[cache]\n{rules}\n");
    load(&text).err().unwrap_or_default().into_iter().map(|fault| fault.problem).collect()
}

#[test]
fn time_and_changes_are_followed() {
    assert_eq!(faults("", "a = follow=time ttl_ms=1000"), Vec::<String>::new());
    for follow in ["own", "coalesce"] {
        let faults = faults("", &format!("a = follow={follow} ttl_ms=1000"));
        assert!(
            faults.len() == 1 && faults[0].contains("this version knows time and wal only"),
            "{faults:?}"
        );
    }
    assert!(faults("", "a = follow=moon ttl_ms=1000")[0].contains("it must be time or wal"));
}

#[test]
fn changes_are_followed_by_a_role() {
    let user = "query_cache_user = reader";
    assert_eq!(faults(user, "a = follow=wal"), Vec::<String>::new(), "it needs no time");
    assert_eq!(faults(&format!("{user}\nquery_cache_follow = wal"), "a = user=x"), Vec::<String>::new());
    assert!(faults("", "a = follow=wal")[0].contains("follow=wal needs query_cache_user"));
    assert!(faults("query_cache_follow = wal", "a = user=x")[0].contains("needs query_cache_user"));
    assert_eq!(faults("query_cache = coalesce", "a = follow=wal"), Vec::<String>::new(), "nothing is kept");
    let ages = format!("query_cache = on\n{user}\nquery_cache_max_age_ms = 30\nquery_cache_probe_ms = 20");
    let found = faults(&ages, "a = follow=wal");
    assert!(found.len() == 1 && found[0].contains("less than twice query_cache_probe_ms"), "{found:?}");
    assert_eq!(faults(&ages, "a = ttl_ms=1"), Vec::<String>::new(), "nothing is followed");
}

#[test]
fn a_database_is_followed_by_its_name() {
    let is_followed = |rules: &str, database: &str| {
        let text = format!(
            "[databases]\napp = host=h\nother = host=h\n* = host=h\n[pgbouncer]\nquery_cache = on\nquery_cache_user = u\n[cache]\n{rules}\n"
        );
        load(&text).expect("it loads").is_followed(database)
    };
    assert!(is_followed("a = follow=wal", "app") && is_followed("a = database=a* follow=wal", "app"));
    assert!(!is_followed("a = database=a* follow=wal", "other") && !is_followed("a = ttl_ms=1", "app"));
    assert!(!is_followed("a = follow=wal", "unknown"), "it has no line of its own");
}

#[test]
fn a_rule_needs_a_time() {
    assert!(faults("", "a = user=x")[0].contains("it needs ttl_ms, or query_cache_ttl_ms must be set"));
    assert!(faults("", "a = ttl_ms=0")[0].contains("it needs ttl_ms"));
    assert_eq!(faults("query_cache_ttl_ms = 5000", "a = user=x"), Vec::<String>::new());
}

#[test]
fn tables_are_names() {
    assert_eq!(faults("", "a = tables=a,s.b,s.*,t* ttl_ms=1"), Vec::<String>::new());
    for tables in ["a*b", "a.b.c", ".a", "a."] {
        let faults = faults("", &format!("a = tables={tables} ttl_ms=1"));
        assert!(faults.len() == 1 && faults[0].contains("is no name of a table"), "{tables}: {faults:?}");
    }
}

#[test]
fn an_answer_is_small_beside_the_whole() {
    let sizes = "query_cache_bytes = 100000\nquery_cache_max_answer = 50000";
    assert_eq!(faults(sizes, ""), Vec::<String>::new(), "the cache is off");
    let found = faults(&format!("query_cache = on\n{sizes}"), "");
    assert!(found.len() == 1 && found[0].contains("more than a quarter of query_cache_bytes"), "{found:?}");
}

#[test]
fn two_rules_of_one_name_are_a_fault() {
    let found = faults("", "a = ttl_ms=1\na = ttl_ms=2");
    assert!(found.len() == 1 && found[0].contains("there is a rule of this name"), "{found:?}");
}

#[test]
fn a_cache_without_rules_is_warned_of_and_a_reload_sees_the_rules() {
    let config =
        |rules: &str| load(&format!("[pgbouncer]\nquery_cache = on\n[cache]\n{rules}\n")).expect("it loads");
    let (none, one) = (config(""), config("a = ttl_ms=1"));
    assert!(none.warnings.iter().any(|warning| warning.text.contains("without a line in [cache]")));
    assert!(one.warnings.is_empty(), "{:?}", one.warnings);
    assert!(none.diff(&one).cache && !one.diff(&one).cache);
}
