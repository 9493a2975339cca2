//! Parts that several answers of the API have in common.

use pgweir_core::snapshot::{ClientNumbers, ServerNumbers};
use pgweir_core::stats::Stats;
use pgweir_core::stats::histogram::Histogram;
use pgweir_core::stats::times::Times;
use serde_json::{Value, json};

use super::super::model::Rates;

pub(super) fn clients(clients: &ClientNumbers, login: u32) -> Value {
    json!({
        "total": clients.total() + login,
        "active": clients.linked,
        "multiplexed": clients.queued_behind,
        "waiting": clients.waiting,
        "idle": clients.idle,
        "pinned": clients.pinned,
        "idle_in_transaction": clients.idle_in_transaction,
        "login": login,
    })
}

pub(super) fn servers(servers: &ServerNumbers, limit: u64) -> Value {
    json!({
        "total": servers.total(),
        "active": servers.active,
        "idle": servers.idle,
        "used": servers.used,
        "tested": servers.tested,
        "login": servers.login,
        "being_canceled": servers.being_canceled,
        "limit": limit,
    })
}

pub(super) fn rates(rates: &Rates) -> Value {
    json!({
        "transactions": rates.transactions,
        "queries": rates.queries,
        "received_bytes": rates.received_bytes,
        "sent_bytes": rates.sent_bytes,
        "errors": rates.errors,
        "logins": rates.logins,
    })
}

pub(super) fn totals(stats: &Stats, errors: u64) -> Value {
    json!({
        "transactions": stats.xacts,
        "queries": stats.queries,
        "received_bytes": stats.received_bytes,
        "sent_bytes": stats.sent_bytes,
        "errors": errors,
        "logins": stats.client_logins,
    })
}

pub(super) fn latency(times: Option<&Times>) -> Value {
    json!({
        "count": times.map_or(0, |times| times.total.count()),
        "total": times.map(|times| quantiles(&times.total)),
        "wait": times.map(|times| quantiles(&times.wait())),
        "server": times.map(|times| quantiles(&times.server)),
        "client": times.map(|times| quantiles(&times.client())),
        "transaction": times.map(|times| quantiles(&times.transaction)),
    })
}

pub(super) fn quantiles(part: &Histogram) -> Value {
    let Some(mean_us) = part.mean_us() else { return Value::Null };
    let Some([p50, p90, p95, p99, p999]) = part.quantiles_us([0.5, 0.9, 0.95, 0.99, 0.999]) else {
        return Value::Null;
    };
    json!({
        "mean_us": mean_us,
        "p50_us": p50,
        "p90_us": p90,
        "p95_us": p95,
        "p99_us": p99,
        "p999_us": p999,
        "max_us": part.max_us(),
    })
}
