//! The parts of pgpool.conf for the cache of query results.
//!
//! pgpool drops an answer at each write to its tables, unless `memqcache_auto_cache_invalidation` is off. pgweir
//! gives an answer for a time, except to a client that has written since. So this file switches the cache on only
//! if pgpool's answers end by time alone. For other files it reports the lines that the administrator can add; it
//! must never let answers get older than they do in pgpool.

use super::{is_on, line};
use crate::dialect::{self, Given, Takes};
use crate::kinds::Kind;
use crate::plan::Line;
use crate::reader::Reader;
use crate::tree::Table;
use crate::write;

/// The key that switches pgpool's cache on.
const SWITCH: &str = "memory_cache_enabled";
const SAFE_LIST: &str = "cache_safe_memqcache_table_list";
const UNSAFE_LIST: &str = "cache_unsafe_memqcache_table_list";

/// The names of the lists of tables before 4.2.
const OLD_NAMES: [(&str, &str); 2] =
    [(SAFE_LIST, "white_memqcache_table_list"), (UNSAFE_LIST, "black_memqcache_table_list")];

/// The name of the one line of `[cache]`.
const RULE: &str = "all";

/// pgpool's own sizes, in bytes, for keys that the file does not have.
const TOTAL_DEFAULT: u64 = 64 << 20;
const MAXCACHE_DEFAULT: u64 = 400 << 10;

/// The largest `query_cache_bytes`.
const BYTES_MAX: u64 = (1 << 31) - 1;

/// The `ttl_ms` of the lines to add, for a file in which answers have no age limit.
const SUGGESTED_TTL_MS: u64 = 10_000;

/// The `tables` of a line to add for which the administrator must write the names. pgweir refuses it, so that the
/// line cannot be taken unchanged.
const TO_BE_NAMED: &str = "...";

/// Writes the settings of the cache and its line of `[cache]`, or reports the lines that could be added.
pub(super) fn cache(table: &Table, reader: &mut Reader<'_, '_>) {
    if !is_on(table, SWITCH) {
        return;
    }
    memory(table, reader);
    let expire = table.text("memqcache_expire");
    let expire = expire.and_then(|text| dialect::understand_text(Takes::Seconds, Kind::Pgpool, text).ok());
    let ttl_ms = match expire {
        Some(Given::TimeMs(ms)) if ms > 0 => Some(ms),
        _ => None,
    };
    let mut tables = safe_tables(table, reader);
    let obstacles = obstacles(table, ttl_ms, &mut tables);
    let mut pairs = Vec::new();
    if !tables.is_empty() {
        pairs.push(("tables", tables.join(",")));
    }
    pairs.push(("ttl_ms", ttl_ms.unwrap_or(SUGGESTED_TTL_MS).to_string()));
    let rule = Line { name: RULE.to_owned(), pairs };
    if obstacles.is_empty() {
        reader.set("query_cache", "on");
        reader.set("query_cache_hints", "1");
        reader.plan.cache.push(rule);
    } else {
        let why = format!(
            "{}. To switch the cache on, add `query_cache = on` and `query_cache_hints = 1` to `[pgbouncer]`, and `{}` to a section `[cache]`",
            obstacles.join(". "),
            write::line(&rule).trim_end()
        );
        reader.missing(line(table, SWITCH), SWITCH, &why);
    }
    differences(table, &tables, reader);
}

/// Returns the reasons for which the cache is not switched on, as sentences without their full stops. Names the
/// tables if the administrator must choose them.
fn obstacles(table: &Table, ttl_ms: Option<u64>, tables: &mut Vec<String>) -> Vec<String> {
    let mut obstacles = Vec::new();
    let invalidation = "memqcache_auto_cache_invalidation";
    if table.get(invalidation).is_none() || is_on(table, invalidation) {
        obstacles.push(
            "pgpool drops an answer when a client writes to its tables, and pgweir would give it to all other clients \
             until it is `ttl_ms` old"
                .to_owned(),
        );
    }
    if ttl_ms.is_none() {
        obstacles.push(format!(
            "`memqcache_expire` is 0, which means no age limit: pgweir needs one, and {SUGGESTED_TTL_MS} ms is only \
             a suggestion"
        ));
    }
    let given = |key| list(table, key).1.next().is_some();
    if tables.is_empty() && (given(UNSAFE_LIST) || given(SAFE_LIST)) {
        tables.push(TO_BE_NAMED.to_owned());
        let why = format!(
            "pgweir has no list of tables whose answers are not kept, and no expressions: write the names of the others instead of \
             `{TO_BE_NAMED}`"
        );
        obstacles.push(why);
    } else if given(UNSAFE_LIST) {
        obstacles.push(format!("pgweir has no list of tables whose answers are not kept: see that `tables` has none of `{UNSAFE_LIST}`"));
    }
    obstacles
}

/// Sets the memory of the cache and the longest answer.
fn memory(table: &Table, reader: &mut Reader<'_, '_>) {
    let size = |key| {
        let given = dialect::understand_text(Takes::Bytes, Kind::Pgpool, table.text(key)?);
        if let Ok(Given::Text(bytes)) = given { bytes.parse::<u64>().ok() } else { None }
    };
    let (total_key, longest_key) = ("memqcache_total_size", "memqcache_maxcache");
    let has_memcached =
        table.text("memqcache_method").is_some_and(|text| text.eq_ignore_ascii_case("memcached"));
    if has_memcached {
        let why = "pgweir keeps answers in its own memory (`query_cache_bytes`), and shares them with no other pooler";
        reader.missing(line(table, "memqcache_method"), "memqcache_method", why);
    }
    // The size is that of pgpool's shared memory: memcached has its own.
    let total = size(total_key).filter(|_| !has_memcached).unwrap_or(TOTAL_DEFAULT);
    let bytes = total.min(BYTES_MAX);
    if bytes < total {
        let why = format!("`query_cache_bytes` is at most {BYTES_MAX}");
        reader.differs(line(table, total_key), total_key, &why);
    }
    let longest = size(longest_key).unwrap_or(MAXCACHE_DEFAULT);
    let answer = longest.min(bytes / 4);
    if answer < longest {
        let why = format!(
            "`query_cache_max_answer` was lowered from {longest} to {answer} bytes, which is a quarter of `query_cache_bytes`: more is \
             not allowed"
        );
        reader.differs(line(table, longest_key), longest_key, &why);
    }
    reader.set("query_cache_bytes", bytes.to_string());
    reader.set("query_cache_max_answer", answer.to_string());
}

/// Returns the key of a list of tables, in its newer or older form, with the entries.
fn list<'t>(table: &'t Table, key: &'static str) -> (&'static str, impl Iterator<Item = &'t str>) {
    let old = OLD_NAMES.iter().find(|(new, _)| *new == key).map_or(key, |(_, old)| *old);
    let key = if table.get(key).is_some() { key } else { old };
    let entries = table.text(key).unwrap_or_default().split(',');
    (key, entries.map(str::trim).filter(|entry| !entry.is_empty()))
}

/// Returns the names of the list of safe tables. Reports entries that are no names.
fn safe_tables(table: &Table, reader: &mut Reader<'_, '_>) -> Vec<String> {
    let (key, entries) = list(table, SAFE_LIST);
    let mut tables = Vec::new();
    for entry in entries {
        if let Some(name) = table_pattern(entry) {
            tables.push(name);
            continue;
        }
        let why = format!(
            "\"{entry}\" is a regular expression; `tables` of a line of `[cache]` has names, with `*` at the end for any rest"
        );
        reader.missing(line(table, key), key, &why);
    }
    tables
}

/// Returns the entry of `tables` for a name, with or without its schema, or for the beginning of a name.
fn table_pattern(expression: &str) -> Option<String> {
    let text = expression.trim_start_matches('^').trim_end_matches('$');
    let (text, rest) = text.strip_suffix(".*").map_or((text, ""), |begin| (begin, "*"));
    let is_name =
        |name: &str| !name.is_empty() && name.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    let parts: Vec<&str> = text.split('.').collect();
    (parts.len() <= 2 && parts.into_iter().all(is_name)).then(|| format!("{text}{rest}"))
}

/// Reports the differences between pgpool's cache and pgweir's that the administrator has to know in any case.
fn differences(table: &Table, tables: &[String], reader: &mut Reader<'_, '_>) {
    let mut tell = |key: &str, why: &str| reader.differs(line(table, key), key, why);
    if tables.is_empty() {
        let why = "pgpool keeps no answers of views, unlogged tables and system catalogs. pgweir keeps them: if it must not, name the other \
                   tables in `tables` of the line of `[cache]`, or write `/*NO QUERY CACHE*/` ahead of the statements";
        tell(SWITCH, why);
    } else if tables != [TO_BE_NAMED] {
        let why = "the line of `[cache]` is for these tables alone. pgpool also keeps the answers of ordinary tables: add those that many clients read. \
                   `/*FORCE QUERY CACHE*/` has no effect";
        tell(list(table, SAFE_LIST).0, why);
    }
    if reader.pool_mode().is_none_or(|mode| mode == "session") {
        let why = "pgweir answers clients from the cache in transaction pooling. With the imported `pool_mode = session` it answers none: \
                   import with --pool-mode=transaction, or set `pool_mode = transaction`";
        reader.differs(line(table, SWITCH), SWITCH, why);
    }
    let is_auto = |option: Option<&String>| option.is_some_and(|route| route == "auto");
    if reader.plan.clusters.iter().any(|cluster| is_auto(cluster.options.get("route"))) {
        let why = "`load_balance_mode` is on, so reads go to standbys, and pgweir keeps only answers of the primary: write a line of \
                   `[routes]` with `route=primary` for the clients that the cache is for";
        reader.differs(line(table, SWITCH), SWITCH, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables_and_expressions() {
        for (given, expected) in [
            ("orders", Some("orders")),
            ("public.orders", Some("public.orders")),
            ("^report_.*$", Some("report_*")),
            ("public.report_.*", Some("public.report_*")),
            ("report.*", Some("report*")),
            (".*", None),
            ("public..*", None),
            (".*_cache_ok", None),
            ("t[0-9]", None),
            ("a.b.c", None),
            ("a|b", None),
            ("^$", None),
        ] {
            assert_eq!(table_pattern(given).as_deref(), expected, "{given}");
        }
    }
}
