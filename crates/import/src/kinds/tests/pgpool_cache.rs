//! Tests of pgpool's cache of query results, which becomes pgweir's query cache if its answers end by time alone.

use super::{FILES, about, has, read};
use crate::{FindingKind, Import, Kind, Places, Source, import};

/// One server, and a cache whose answers end by time alone.
const TIMED: &str = "backend_hostname0 = 'a'\npool_passwd = 'pool_passwd'\nmemory_cache_enabled = on\n\
                     memqcache_auto_cache_invalidation = off\nmemqcache_expire = 90\n";

/// Returns the result for the file with these lines in addition, and `pool_mode = transaction`.
fn with(lines: &str) -> Import {
    let text = format!("{TIMED}{lines}\n");
    let source = Source { name: "sample", text: &text, pool_mode: Some("transaction"), ..Source::default() };
    let mut open = |name: &str| {
        let found = FILES.iter().find(|(known, _)| *known == name);
        found.map(|(_, text)| (*text).to_owned()).ok_or_else(|| "no such file".to_owned())
    };
    import(Kind::Pgpool, &source, &mut open).unwrap_or_else(|faults| panic!("{faults:?}"))
}

/// Returns what is said about a key.
fn said(read: &Import, key: &str) -> String {
    let of_key = read.findings().iter().filter(|finding| finding.what == key);
    of_key.map(|finding| finding.why.as_str()).collect::<Vec<_>>().join("\n")
}

fn is_off(read: &Import) {
    let ini = read.ini(&Places::default());
    assert!(!ini.contains("query_cache = ") && !ini.contains("[cache]"), "{ini}");
}

/// Adds the lines that a finding proposes to the file, and returns the errors with which pgweir refuses it.
fn refusals(read: &Import, finding: &str) -> Vec<String> {
    let quoted: Vec<&str> = finding.split('`').collect();
    let rule = quoted.iter().find(|text| text.starts_with("all = ")).expect("it proposes a line");
    assert!(quoted.contains(&"query_cache = on"), "{finding}");
    let ini = format!("{}query_cache = on\n\n[cache]\n{rule}\n", read.ini(&Places::default()));
    let loaded = pgweir_settings::Config::load("pgweir.ini", &mut |_| Ok(ini.clone()));
    loaded.err().unwrap_or_default().iter().map(|error| error.text.clone()).collect()
}

#[test]
fn answers_that_end_by_time_alone_are_kept() {
    let timed = with("");
    has(
        &timed,
        &[
            "query_cache = on",
            "query_cache_hints = 1",
            "[cache]",
            "all = ttl_ms=90000",
            "query_cache_bytes = 67108864",
            "query_cache_max_answer = 409600",
        ],
    );
    assert_eq!(about(&timed, FindingKind::Differs), ["memory_cache_enabled"], "views are kept, too");
    assert!(said(&timed, "memory_cache_enabled").contains("`/*NO QUERY CACHE*/`"));
    has(&with("memqcache_expire = 2min"), &["all = ttl_ms=120000"]);
    let in_sessions = read(Kind::Pgpool, TIMED);
    has(&in_sessions, &["query_cache = on", "pool_mode = session"]);
    assert!(said(&in_sessions, "memory_cache_enabled").contains("--pool-mode=transaction"));
}

#[test]
fn a_cache_that_is_off_says_nothing() {
    let off = with(
        "memory_cache_enabled = off\nmemqcache_method = 'memcached'\nmemqcache_total_size = 1kB\n\
         cache_safe_memqcache_table_list = 't[0-9]'\ncache_unsafe_memqcache_table_list = 'a'",
    );
    is_off(&off);
    assert!(!off.ini(&Places::default()).contains("query_cache"));
    assert_eq!(about(&off, FindingKind::Missing), ["password of carol"]);
    assert_eq!(about(&off, FindingKind::Differs), [""; 0]);
}

/// pgpool drops such answers at each write, so that switching pgweir's cache on would make readers see older rows.
#[test]
fn answers_that_end_at_writes_are_left_to_the_administrator() {
    let missing_key = TIMED.replace("memqcache_auto_cache_invalidation = off\n", "");
    let by_default = read(Kind::Pgpool, &missing_key);
    is_off(&by_default);
    for (lines, rule) in [
        ("memqcache_auto_cache_invalidation = on", "`all = ttl_ms=90000`"),
        ("memqcache_auto_cache_invalidation = on\nmemqcache_expire = 0", "`all = ttl_ms=10000`"),
        ("memqcache_expire = 0", "`all = ttl_ms=10000`"),
    ] {
        let read = with(lines);
        is_off(&read);
        assert!(about(&read, FindingKind::Missing).contains(&"memory_cache_enabled"), "{lines}");
        let why = said(&read, "memory_cache_enabled");
        assert!(why.contains(rule), "{lines}: {why}");
        assert_eq!(why.contains("when a client writes"), lines.contains("= on"), "{lines}: {why}");
        assert_eq!(why.contains("`memqcache_expire` is 0"), lines.contains("= 0"), "{lines}: {why}");
        assert_eq!(refusals(&read, &why), [""; 0], "{lines}: {why}");
    }
}

#[test]
fn sizes_fit_together() {
    let small = with("memqcache_total_size = 1MB\nmemqcache_maxcache = 400kB");
    has(&small, &["query_cache_bytes = 1048576", "query_cache_max_answer = 262144"]);
    assert!(said(&small, "memqcache_maxcache").contains("from 409600 to 262144 bytes"));
    let fits = with("memqcache_total_size = 1MB\nmemqcache_maxcache = 262144");
    assert_eq!(said(&fits, "memqcache_maxcache"), "");
    let large = with("memqcache_total_size = 4GB");
    has(&large, &["query_cache_bytes = 2147483647", "query_cache_max_answer = 409600"]);
    assert!(said(&large, "memqcache_total_size").contains("at most 2147483647"));
    // The lines that the administrator may add need sizes that fit, too.
    let left = with("memqcache_expire = 0\nmemqcache_total_size = 1MB");
    assert_eq!(refusals(&left, &said(&left, "memory_cache_enabled")), [""; 0]);
    let elsewhere = with("memqcache_method = 'memcached'\nmemqcache_total_size = 1MB");
    has(&elsewhere, &["query_cache_bytes = 67108864"]);
    assert!(about(&elsewhere, FindingKind::Missing).contains(&"memqcache_method"));
}

#[test]
fn lists_of_tables() {
    for key in ["cache_safe_memqcache_table_list", "white_memqcache_table_list"] {
        let safe = with(&format!("{key} = 'totals, public.totals,report_.*,t[0-9]'"));
        has(&safe, &["query_cache = on", "all = tables='totals,public.totals,report_*' ttl_ms=90000"]);
        assert!(said(&safe, key).contains("\"t[0-9]\" is a regular expression"));
        assert_eq!(about(&safe, FindingKind::Differs), [key], "ordinary tables are not in the line");
    }
    let both = with("cache_safe_memqcache_table_list = 'totals'\ncache_unsafe_memqcache_table_list = 'x.*'");
    is_off(&both);
    let why = said(&both, "memory_cache_enabled");
    assert!(why.contains("`all = tables=totals ttl_ms=90000`"), "{why}");
    assert_eq!(refusals(&both, &why), [""; 0]);
    for lines in [
        "cache_unsafe_memqcache_table_list = 'secrets'",
        "black_memqcache_table_list = 'secrets'",
        "cache_safe_memqcache_table_list = 't[0-9]'",
    ] {
        let read = with(lines);
        is_off(&read);
        let why = said(&read, "memory_cache_enabled");
        let refusals = refusals(&read, &why);
        assert!(refusals.len() == 1 && refusals[0].contains("is no name of a table"), "{why}: {refusals:?}");
    }
}

#[test]
fn answers_of_standbys_are_not_kept() {
    let two = "backend_hostname1 = 'b'\nsr_check_user = 'prober'\n";
    assert!(said(&with(two), "memory_cache_enabled").contains("`route=primary`"));
    let at_primary = with(&format!("{two}load_balance_mode = off"));
    assert!(!said(&at_primary, "memory_cache_enabled").contains("`route=primary`"));
}

#[test]
fn sizes_and_times_of_another_form_are_refused() {
    let text = TIMED.replace("= 90", "= 1.5").replace("_enabled = on", "_enabled = perhaps");
    let faults = super::faults(Kind::Pgpool, &text);
    assert!(faults.len() == 2 && faults[0].contains("memory_cache_enabled"), "{faults:?}");
}
