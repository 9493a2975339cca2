use super::*;

/// A catalog for the tests: `known` only reads, `barred` does more, and there are no other names.
fn reads(sql: &str) -> bool {
    certainly_reads(sql.as_bytes(), |role, hash| {
        hash != name_hash(b"barred")
            && hash != 0
            && (role == NameRole::Mentioned || hash == name_hash(b"known"))
    })
}

#[test]
fn queries_that_only_read_are_seen() {
    for sql in [
        "select 1",
        "SELECT abalance FROM pgbench_accounts WHERE aid = 5;",
        "(select a from t) union all (select b from u)",
        "values (1), (2)",
        "table t",
        "with x as (select 1), y as materialized (select 2) select * from x, y",
        "with recursive t(n) as (select 1 union all select n + 1 from t) select n from t",
        "select count(*), max(t.a), coalesce(b, now()) from t as s(a, b) where c in (1, 2) and exists (select 1)",
        "select pg_catalog.lower($1), known(x), \"known\"(1), s.known(2) from \"T\"",
        "select cast(a as numeric(10, 2)), b::varchar(3), (select 1) from t",
        "select ($1).known, (x).lower",
        "select substring(a for 3), row_number() over (partition by b order by c) from t limit (3)",
        "select for_share, updates, t.update from t -- for update",
        "select * from t where a = 'for update' /* insert */ ;;",
        "select key, share from t where key = 1",
        "select random(), gen_random_uuid(), pg_typeof(1)",
    ] {
        assert!(reads(sql), "{sql}");
    }
}

#[test]
fn what_locks_rows_or_changes_them_does_not_only_read() {
    for sql in [
        "",
        ";",
        "(",
        "insert into t values (1)",
        "update t set a = 1",
        "delete from t",
        "merge into t using u on true when matched then delete",
        "select 1 for update",
        "select 1 FOR NO KEY UPDATE OF t SKIP LOCKED",
        "select 1 for share",
        "select 1 for/**/key share",
        "select * from (select 1 for share) s",
        "with x as (delete from t returning a) select * from x",
        "with x as (select 1) insert into t select * from x",
        "select 1 into t",
        "select 1; select 2",
        "select 1; update t set a = 1",
        "begin",
        "explain analyze update t set a = 1",
        "explain select 1",
        "lock table t",
        "create view v as select 1",
        "call p()",
        "do $$ begin end $$",
        "execute p",
        "\"select\" 1",
        "1",
        "select 'x",
    ] {
        assert!(!reads(sql), "{sql}");
    }
}

#[test]
fn what_runs_code_that_is_not_known_does_not_only_read() {
    for sql in [
        "select f()",
        "select F /* x */ (1)",
        "select s.f(1)",
        "select \"f\"(1)",
        "select s.in(1)",
        "select \"in\"(1)",
        "select distinct on (a) f(b) from t",
        "select ($1).f",
        "select (x).f from t",
        "select a[1].f from t",
        "select $1.f",
        "select (4711::bigint).pg_advisory_lock",
        "select * from f(1) as t(a)",
        "select * from rows from (known(1), f(2))",
        "select * from barred",
        "select t.barred from t",
        "select 1::barred",
        "select Barred",
        "select 1 as barred",
        "select \"barred\" from t",
        "select pg_sleep(1)",
        "select pg_advisory_xact_lock(1)",
        "select pg_try_advisory_lock(1)",
        "select * from pg_stat_activity",
        "select * from information_schema.tables",
        "select nextval('s')",
        "select set_config('a', 'b', false)",
        "select dblink('x', 'y')",
        "select query_to_xml('update t set a = 1', true, true, '')",
        "select größe from t",
        "select U&\"barred\" from t",
        "select \"a\"\"b\" from t",
    ] {
        assert!(!reads(sql), "{sql}");
    }
    let long = "x".repeat(64);
    assert!(!reads(&format!("select {long}")) && reads(&format!("select {}", &long[..63])));
}

#[test]
fn the_lists_are_in_order() {
    for list in [KEYWORDS, FUNCTIONS] {
        assert!(list.is_sorted_by(|one, other| one < other));
        assert!(list.iter().all(|name| name.bytes().all(|byte| !byte.is_ascii_uppercase())));
    }
}

#[test]
fn names_have_numbers_as_the_catalog_writes_them() {
    assert_ne!(name_hash(b"a"), name_hash(b"A"));
    assert_eq!(name_hash("größe".as_bytes()), 0);
    assert_ne!(name_hash(b""), 0);
}

proptest::proptest! {
    #[test]
    fn whatever_reads_is_self_contained_or_names_a_session(
        pieces in proptest::collection::vec(proptest::sample::select(&[
            "select", "1", ";", "for", "update", "share", "(", ")", ".", "f", "known", "with", "x", "as", "insert", "into", "'", "\"",
            ",", "begin", "--", "\n", "$1", "[", "]", "values", "table", "t", "key", "barred",
        ][..]), 0..10)
    ) {
        let sql = pieces.join(" ");
        if reads(&sql) {
            let traits = crate::traits(sql.as_bytes());
            // Behind a dot, INTO is a column's name; to the other question it is a doubt.
            let names_into = pieces.contains(&".") && pieces.contains(&"into");
            let is_fine = traits.certainly_self_contained || names_into || pieces.contains(&"begin");
            proptest::prop_assert!(is_fine, "{}", sql);
        }
    }
}

#[test]
fn the_part_that_decides_is_told() {
    let barred = name_hash(b"note_it");
    let part = |sql: &'static str| {
        let found = doubtful_part(sql.as_bytes(), |_, name| name != barred);
        found.map(|part| std::str::from_utf8(part).expect("ASCII"))
    };
    assert_eq!(part("select a from t"), None);
    for (sql, word) in [
        ("select Note_It(a) from t", "Note_It"),
        ("select a from t for update", "update"),
        ("insert into t values (1)", "insert"),
        ("select * from pg_stat_activity", "pg_stat_activity"),
        ("select 1; select 2", "select"),
        ("select 'open", ""),
    ] {
        assert!(part(sql).is_some_and(|part| part == word), "{sql}: {:?}", part(sql));
    }
    assert_eq!(find_name(b"select \"A\", b from t", |name| name == b"b"), Some(&b"b"[..]));
    assert_eq!(find_name(b"select 'b' -- b", |name| name == b"b"), None);
}
