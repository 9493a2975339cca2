//! The statements that took the most time, and the last slow ones. Their texts have no literals, but names of
//! tables, so only readers who may see names get them.

use std::cmp::Reverse;
use std::time::Duration;

use pgweir_core::snapshot::{SlowSnapshot, Snapshot, SnapshotRequest, StatementSnapshot};
use serde_json::{Value, json};

use super::super::WebState;
use super::super::access::Reader;
use super::super::reply::Refusal;
use super::query::Query;

/// The maximum and the default number of rows in an answer.
const LIMIT: (usize, usize) = (1_000, 100);

pub(super) async fn statements(web: &WebState, reader: &Reader, query: &Query) -> Result<Value, Refusal> {
    super::need_names(reader)?;
    let sort = query.word("sort", &SORTS.map(|(name, _)| name))?;
    let limit = query.number("limit", 1, LIMIT.0, LIMIT.1)?;
    let database = query.get("database");
    let late = |_| Refusal::Unavailable("A worker did not answer in time.");
    // The number of statements has to fit the list, so both are read now.
    web.refresh().await.map_err(late)?;
    let (mut top, mut slow) = (Vec::new(), Vec::new());
    for worker in web.worker_rpc.workers() {
        if let Snapshot::Statements { top: its, slow: its_slow } =
            web.worker_rpc.look(worker, SnapshotRequest::Statements).await.map_err(late)?
        {
            top.extend(its);
            slow.extend(its_slow);
        }
    }
    top.retain(|one| database.is_none_or(|name| *one.database == *name));
    slow.retain(|one| database.is_none_or(|name| *one.database == *name));
    let by = SORTS.into_iter().find(|(name, _)| Some(*name) == sort).map_or(SORTS[0].1, |(_, by)| by);
    top.sort_by_key(|one| (Reverse(by(one)), Reverse(one.total_us)));
    slow.sort_by_key(|one| Reverse(one.at_us));
    let config = web.config();
    let slow_after = config.main.log_min_duration_ms;
    let model = web.model.borrow();
    let followed = model.followed();
    Ok(json!({
        "time_s": model.sampled_s(),
        "enabled": config.main.statement_stats_bytes > 0,
        "tracked": followed.count,
        "forgotten": followed.forgotten,
        "statements": top.iter().take(limit).map(statement).collect::<Vec<_>>(),
        "slow_ms": (slow_after > Duration::ZERO).then_some(slow_after.as_secs_f64() * 1_000.0),
        "slow": slow.iter().take(limit).map(slow_statement).collect::<Vec<_>>(),
    }))
}

/// The value by which a list is sorted, the largest first.
type Sort = fn(&StatementSnapshot) -> u64;

/// The orders that a reader can ask for; the first is the default.
const SORTS: [(&str, Sort); 11] = [
    ("total_us", |one| one.total_us),
    ("server_us", StatementSnapshot::server_us),
    ("calls", |one| one.calls),
    ("mean_us", StatementSnapshot::mean_us),
    ("p99_us", |one| one.p99_us as u64),
    ("max_us", |one| one.max_us),
    ("wait_us", |one| one.wait_us),
    ("rows", |one| one.rows),
    ("bytes", |one| one.bytes),
    ("errors", |one| one.errors),
    ("cache_saved_us", |one| one.cache_saved_us),
];

fn statement(one: &StatementSnapshot) -> Value {
    json!({
        "fingerprint": format!("{:016x}", one.fingerprint),
        "text": one.text,
        "database": &*one.database,
        "user": &*one.user,
        "calls": one.calls,
        "errors": one.errors,
        "total_us": one.total_us,
        "wait_us": one.wait_us,
        "server_us": one.server_us(),
        "client_us": one.client_us,
        "mean_us": one.mean_us(),
        "p50_us": one.p50_us,
        "p95_us": one.p95_us,
        "p99_us": one.p99_us,
        "max_us": one.max_us,
        "rows": one.rows,
        "bytes": one.bytes,
        "cache": one.cache,
        "cache_hits": one.cache_hits,
        "cache_saved_us": one.cache_saved_us,
    })
}

fn slow_statement(one: &SlowSnapshot) -> Value {
    json!({
        "time_s": one.at_us as f64 / 1e6,
        "database": &*one.database,
        "user": &*one.user,
        "application_name": one.application_name,
        "text": one.text,
        "total_us": one.split.total_us(),
        "wait_us": one.split.wait_us,
        "server_us": one.split.server_us,
        "client_us": one.split.client_us,
        "rows": one.rows,
        "bytes": one.bytes,
        "failed": one.failed,
    })
}
