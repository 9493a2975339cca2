//! The API's query cache: its settings, its rules, and SHOW CACHE. Readers who may not see names get one entry per database, and no reason why
//! changes are not followed, because it can name roles and tables.

use std::collections::BTreeSet;

use pgweir_core::console::command::Topic;
use pgweir_settings::{CacheRule, Config};
use serde_json::{Map, Value, json};

use super::super::WebState;
use super::super::access::Reader;
use super::super::reply::Refusal;
use super::connections::unix_s;
use super::tables::ShowRow;

/// Columns of SHOW CACHE that are added up if several pools are shown as one.
const SUMS: [&str; 20] = [
    "answers",
    "bytes",
    "hits",
    "coalesced",
    "misses",
    "expired",
    "own_changes",
    "redefined",
    "fills",
    "too_long",
    "unfit",
    "evicted",
    "purged",
    "saved_us",
    "dropped_by_write",
    "dropped_by_key",
    "not_fresh",
    "refused_unsettled",
    "verified",
    "wrong",
];

pub(super) async fn cache(web: &WebState, reader: &Reader) -> Result<Value, Refusal> {
    let rows = web.show(Topic::Cache).await?;
    let config = web.config();
    let main = &config.main;
    let names = reader.sees_names();
    let rules: Vec<Value> = config.cache.iter().filter(|_| names).map(|one| rule(one, &config)).collect();
    Ok(json!({
        "time_s": web.model.borrow().sampled_s(),
        "query_cache": main.query_cache.as_str(),
        "bytes_max": main.query_cache_bytes,
        "answer_bytes_max": main.query_cache_max_answer,
        "query_cache_verify": main.query_cache_verify,
        "rules_total": config.cache.len(),
        "rules": rules,
        "followed": groups(&rows, false).iter().filter_map(|group| followed(group, names)).collect::<Vec<_>>(),
        "pools": groups(&rows, names).iter().map(|group| pool(group, names)).collect::<Vec<_>>(),
    }))
}

/// Returns the pools that are shown as one: each on its own, or all of a database.
fn groups(rows: &[ShowRow], names: bool) -> Vec<Vec<&ShowRow>> {
    let mut groups: Vec<Vec<&ShowRow>> = Vec::new();
    for row in rows {
        let is_of = |group: &&mut Vec<&ShowRow>| {
            !names && group.first().is_some_and(|first| first.get("database") == row.get("database"))
        };
        match groups.iter_mut().find(is_of) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

fn pool(group: &[&ShowRow], names: bool) -> Value {
    let first = group.first();
    // Half of the answers of several pools cannot be told from the halves of each.
    let median = first.filter(|_| group.len() == 1).and_then(|row| row.number("age_p50_ms"));
    let states: BTreeSet<&str> = group.iter().filter_map(|row| row.get("state")).collect();
    let mut object = Map::new();
    object.insert("database".to_owned(), first.and_then(|row| row.get("database")).into());
    object.insert("user".to_owned(), first.filter(|_| names).and_then(|row| row.get("user")).into());
    object.insert("states".to_owned(), states.into_iter().collect());
    for key in SUMS {
        let sum: u64 = group.iter().filter_map(|row| row.number(key)).sum();
        object.insert(key.to_owned(), sum.into());
    }
    object.insert("age_p50_ms".to_owned(), median.into());
    let oldest = group.iter().filter_map(|row| row.number("age_max_ms")).max();
    object.insert("age_max_ms".to_owned(), oldest.into());
    object.into()
}

/// Returns what is known of following the database of these pools; `None` if no rule has it followed. Each worker takes news by itself: if some
/// follow the database and others do not yet, the entry is that of a worker which does not, since its pools keep no answers.
fn followed(group: &[&ShowRow], names: bool) -> Option<Value> {
    let states = group.iter().filter(|row| row.get("follow_state").is_some_and(|state| !state.is_empty()));
    let row = states.min_by_key(|row| row.get("follow_state") == Some("following"))?;
    Some(json!({
        "database": row.get("database"),
        "state": row.get("follow_state"),
        "reason": row.get("follow_reason").filter(|reason| names && !reason.is_empty()),
        "since_s": unix_s(row.get("follow_since")),
        "tables": row.number("follow_tables"),
        "lag_bytes": row.number("lag_bytes"),
    }))
}

fn rule(rule: &CacheRule, config: &Config) -> Value {
    json!({
        "name": rule.name,
        "database": rule.database,
        "user": rule.user,
        "application_name": rule.application_name,
        "tables": rule.tables,
        "follow": rule.follow(config).to_string(),
        "ttl_ms": rule.ttl(config).map(|ttl| u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(database: &str, user: &str, state: &str, hits: &str, ages: [Option<&str>; 2]) -> ShowRow {
        let [median, oldest] = ages.map(|age| age.map(str::to_owned));
        let texts = [database, user, state, hits].map(|cell| Some(cell.to_owned()));
        let names = ["database", "user", "state", "hits", "age_p50_ms", "age_max_ms"];
        ShowRow::of(&names, texts.into_iter().chain([median, oldest]).collect())
    }

    #[test]
    fn a_reader_without_names_gets_a_row_for_each_database() {
        let rows = [
            row("shop", "ann", "on", "5", [Some("3"), Some("90")]),
            row("shop", "bob", "off: pool_mode=session", "0", [None, None]),
            row("other", "ann", "on", "2", [Some("7"), Some("8")]),
        ];
        let shown = |names| groups(&rows, names).iter().map(|group| pool(group, names)).collect::<Vec<_>>();
        let named = shown(true);
        assert_eq!(named.len(), 3);
        assert_eq!((&named[0]["user"], &named[0]["age_p50_ms"]), (&json!("ann"), &json!(3)));
        let summed = shown(false);
        assert_eq!(summed.len(), 2);
        assert_eq!(summed[0]["user"], Value::Null);
        assert_eq!(summed[0]["states"], json!(["off: pool_mode=session", "on"]));
        assert_eq!((&summed[0]["hits"], &summed[0]["age_max_ms"]), (&json!(5), &json!(90)));
        assert_eq!((&summed[0]["age_p50_ms"], &summed[1]["age_p50_ms"]), (&Value::Null, &json!(7)));
    }

    fn follower(database: &str, cells: [Option<&str>; 5]) -> ShowRow {
        let names =
            ["database", "follow_state", "follow_reason", "follow_since", "follow_tables", "lag_bytes"];
        let cells = [Some(database)].into_iter().chain(cells);
        ShowRow::of(&names, cells.map(|cell| cell.map(str::to_owned)).collect())
    }

    #[test]
    fn followed_databases_have_an_entry_each() {
        let since = Some("2026-11-19 23:59:59 UTC");
        let rows = [
            follower("shop", [Some("following"), None, since, Some("3"), Some("120")]),
            follower("shop", [Some("opening"), Some("connecting"), None, None, None]),
            follower("stock", [Some("following"), None, since, Some("1"), Some("0")]),
            follower("plain", [None; 5]),
            follower("new", [Some(""), None, None, None, None]),
        ];
        let shown = |names| groups(&rows, false).iter().filter_map(|group| followed(group, names)).collect();
        let of = |reason: Option<&str>| {
            json!([
                { "database": "shop", "state": "opening", "reason": reason, "since_s": null, "tables": null, "lag_bytes": null },
                { "database": "stock", "state": "following", "reason": null, "since_s": 1_795_132_799, "tables": 1, "lag_bytes": 0 },
            ])
        };
        assert_eq!((shown(true), shown(false)), (of(Some("connecting")), of(None)));
    }
}
