//! The API's pools and percentiles. Readers who may not see names get one entry per database.

use std::borrow::Cow;

use pgweir_core::stats::times::Times;
use serde_json::{Value, json};

use super::super::WebState;
use super::super::access::Reader;
use super::super::model::{Lately, Model, PoolState, Rates, Sum, together};
use super::super::reply::Refusal;
use super::numbers;
use super::query::Query;

/// Returns the pools that are shown as one: each on its own, or all of a database.
fn groups<'a>(model: &'a Model, reader: &Reader) -> Vec<Vec<&'a PoolState>> {
    let mut groups: Vec<Vec<&PoolState>> = Vec::new();
    for pool in model.pools() {
        let last = groups.last_mut().filter(|last| {
            !reader.sees_names()
                && last.first().is_some_and(|first| first.snapshot.database == pool.snapshot.database)
        });
        match last {
            Some(last) => last.push(pool),
            None => groups.push(vec![pool]),
        }
    }
    groups
}

pub(super) fn pools(web: &WebState, reader: &Reader) -> Value {
    let model = web.model.borrow();
    let rows: Vec<Value> = groups(&model, reader).iter().map(|group| pool(group, reader)).collect();
    json!({ "time_s": model.sampled_s(), "pools": rows })
}

fn pool(group: &[&PoolState], reader: &Reader) -> Value {
    let sum = Sum::of(group.iter().map(|pool| &pool.snapshot));
    let recent = together(group.iter().flat_map(|pool| pool.track.recent()));
    let mut rates = Rates::default();
    group.iter().for_each(|pool| rates.add(&pool.track.rates()));
    let mut lately = Lately::default();
    group.iter().filter_map(|pool| pool.lately).for_each(|its| lately.add(its));
    let first = group.first().map(|pool| &pool.snapshot);
    let failures = group.iter().filter_map(|pool| pool.snapshot.failure.as_ref());
    let failure = failures.min_by_key(|failure| failure.retry_in_us);
    let names = reader.sees_names();
    json!({
        "database": first.map(|pool| &*pool.database),
        "user": first.filter(|_| names).map(|pool| &*pool.user),
        "mode": first.map(|pool| pool.mode.as_str()),
        "paused": group.iter().any(|pool| pool.snapshot.paused),
        "clients": numbers::clients(&sum.clients, 0),
        "servers": numbers::servers(&sum.servers, sum.size),
        "rates": numbers::rates(&rates),
        "totals": numbers::totals(&sum.stats, sum.errors),
        "latency": numbers::latency(recent.as_deref()),
        "wait_oldest_us": sum.wait_oldest_us,
        "lately": {
            "clients_active": lately.clients_active,
            "clients_waiting": lately.clients_waiting,
            "servers_active": lately.servers_active,
        },
        "connect_failing": failure.is_some(),
        "next_connect_us": failure.map(|failure| failure.retry_in_us),
        "last_connect_error": failure.filter(|_| names).map(|failure| &*failure.text),
    })
}

pub(super) fn percentiles(web: &WebState, reader: &Reader, query: &Query) -> Result<Value, Refusal> {
    let recent = query.word("window", &["10"])?.is_some();
    let model = web.model.borrow();
    let mut whole: Option<Times> = None;
    let mut rows = Vec::new();
    for group in groups(&model, reader) {
        let times: Vec<_> = group.iter().filter_map(|pool| times_of(pool, recent)).collect();
        let times = together(times.iter().map(|times| &**times));
        if let Some(times) = &times {
            whole.get_or_insert_default().add(times);
        }
        let first = group.first().map(|pool| &pool.snapshot);
        rows.push(json!({
            "database": first.map(|pool| &*pool.database),
            "user": first.filter(|_| reader.sees_names()).map(|pool| &*pool.user),
            "latency": numbers::latency(times.as_deref()),
        }));
    }
    rows.insert(0, json!({ "database": null, "user": null, "latency": numbers::latency(whole.as_ref()) }));
    Ok(json!({ "time_s": model.sampled_s(), "rows": rows }))
}

/// Returns the times since the start, or those of about the last ten seconds.
fn times_of(pool: &PoolState, recent: bool) -> Option<Cow<'_, Times>> {
    if recent { together(pool.track.recent()) } else { pool.snapshot.times.as_deref().map(Cow::Borrowed) }
}
