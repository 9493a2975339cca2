//! The API's overview, which the dashboard's first screen shows.

use pgweir_core::stats::errors::ErrorCounts;
use serde_json::{Value, json};

use super::super::WebState;
use super::super::limits::OVERVIEW_DATABASES_MAX;
use super::super::model::{Model, together};
use super::numbers;

pub(super) fn overview(web: &WebState, names: bool) -> Value {
    let model = web.model.borrow();
    let config = web.config();
    let whole = model.sum(None);
    let mut paused: Vec<&str> =
        model.pools().filter(|pool| pool.snapshot.paused).map(|pool| &*pool.snapshot.database).collect();
    paused.dedup();
    paused.retain(|name| config.databases.contains_key(*name));
    let process = &model.process;
    let workers: Vec<Value> = model
        .workers()
        .iter()
        .map(|worker| json!({ "busy": worker.busy, "connections": worker.load.connections }))
        .collect();
    json!({
        "time_s": model.sampled_s(),
        "process": {
            "version": web.version,
            "machine": web.machine.as_deref().filter(|_| names),
            "started_s": process.started_s,
            "state": model.activity().word(),
            "paused_databases": paused,
            "pool_mode": config.main.pool_mode.as_str(),
            "listen": config.main.listen_addr.iter().filter(|_| names).map(|host| format!("{host}:{}", config.main.listen_port)).collect::<Vec<_>>(),
            "max_client_conn": config.main.max_client_conn,
            "open_files": process.open_files,
            "open_files_max": process.open_files_max,
            "resident_bytes": process.resident_bytes,
            "cpu_share": model.cpu_share(),
        },
        "clients": numbers::clients(&whole.clients, model.logging_in()),
        "servers": numbers::servers(&whole.servers, whole.size),
        "rates": numbers::rates(&model.whole().rates()),
        "totals": numbers::totals(&whole.stats, model.counters().errors.total()),
        "latency": numbers::latency(together(model.whole().recent()).as_deref()),
        "queue": { "waiting": whole.clients.waiting, "wait_oldest_us": whole.wait_oldest_us },
        "workers": workers,
        "databases": databases(&model),
        "clusters": super::clusters::summaries(web),
        "errors": errors(&model.counters().errors),
        "multiplexing": {
            "target": whole.multiplexing.target,
            "busy": whole.multiplexing.busy,
            "multiplexed": whole.clients.queued_behind,
            "multiplexed_total": whole.multiplexing.multiplexed,
            "requeued_total": whole.multiplexing.requeued,
            "violations_total": whole.multiplexing.violations,
        },
        "sessions": {
            "pinned": whole.clients.pinned,
            "pins_total": whole.continuity.pins,
            "replays_total": whole.continuity.replays,
            "audits_total": whole.continuity.audits,
            "remembered_total": whole.continuity.remembered,
        },
    })
}

fn databases(model: &Model) -> Vec<Value> {
    let mut all: Vec<_> = model.databases().collect();
    all.sort_by(|(_, one), (_, other)| other.rates().transactions.total_cmp(&one.rates().transactions));
    all.truncate(OVERVIEW_DATABASES_MAX);
    all.into_iter()
        .map(|(name, track)| {
            let sum = model.sum(Some(name));
            let recent = together(track.recent());
            let quantiles = recent.and_then(|recent| recent.total.quantiles_us([0.5, 0.99]));
            json!({
                "name": &**name,
                "paused": model.pools_of(Some(name)).any(|pool| pool.snapshot.paused),
                "clients": numbers::clients(&sum.clients, 0),
                "servers": numbers::servers(&sum.servers, sum.size),
                "rates": numbers::rates(&track.rates()),
                "p50_us": quantiles.map(|[p50, _]| p50),
                "p99_us": quantiles.map(|[_, p99]| p99),
                "wait_oldest_us": sum.wait_oldest_us,
            })
        })
        .collect()
}

fn errors(errors: &ErrorCounts) -> Vec<Value> {
    let mut all: Vec<([u8; 2], u64)> = errors.classes().collect();
    all.sort_by_key(|&(class, total)| (std::cmp::Reverse(total), class));
    all.into_iter()
        .map(|(class, total)| {
            let class = String::from_utf8_lossy(&class).into_owned();
            json!({ "name": class_name(&class), "class": class, "total": total })
        })
        .collect()
}

/// Returns PostgreSQL's name of an error class (appendix "PostgreSQL Error Codes").
pub(in super::super) fn class_name(class: &str) -> &'static str {
    match class {
        "08" => "connection exception",
        "0A" => "feature not supported",
        "20" => "case not found",
        "21" => "cardinality violation",
        "22" => "data exception",
        "23" => "integrity constraint violation",
        "24" => "invalid cursor state",
        "25" => "invalid transaction state",
        "26" => "invalid statement name",
        "28" => "invalid authorization",
        "2B" => "dependent privileges still exist",
        "34" => "invalid cursor name",
        "3D" => "invalid database name",
        "3F" => "invalid schema name",
        "40" => "transaction rollback",
        "42" => "syntax error or access rule violation",
        "44" => "check option violation",
        "53" => "insufficient resources",
        "54" => "program limit exceeded",
        "55" => "object not in prerequisite state",
        "57" => "operator intervention",
        "58" => "system error",
        "F0" => "configuration file error",
        "HV" => "foreign data wrapper error",
        "P0" => "PL/pgSQL error",
        "XX" => "internal error",
        _ => "other",
    }
}
