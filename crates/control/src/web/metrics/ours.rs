//! What only pgweir tells: times by their parts, logins, connects, errors by class, workers.

use std::borrow::Cow;
use std::collections::BTreeMap;

use pgweir_core::stats::continuity::Continuity;
use pgweir_core::stats::histogram::Histogram;
use pgweir_core::stats::times::Times;

use super::super::model::{Activity, Model, Sum};
use super::Tables;
use super::text::{Page, seconds};

/// The families of times by part of [`Times::parts`].
const PARTS: [(&str, &str); 5] = [
    (
        "pgweir_statement_duration_seconds",
        "How long statements took, as clients saw it: waiting, at the server, and held up by the client",
    ),
    ("pgweir_statement_wait_seconds", "How long statements waited for a server"),
    ("pgweir_statement_server_seconds", "How long statements took at the server"),
    ("pgweir_statement_client_seconds", "How long statements were held up because the client did not read"),
    ("pgweir_transaction_server_seconds", "How long transactions had their server"),
];

pub(super) fn write(page: &mut Page, model: &Model, tables: &Tables, version: &str) {
    page.gauge("pgweir_build_info", "Version of pgweir");
    page.value(&[("version", version)], 1);
    let by_pool = by_pool(model, tables.names);
    pools(page, &by_pool);
    sessions(page, &by_pool);
    times(page, &by_pool);
    whole(page, model);
    workers(page, model);
}

type ByPool<'a> = BTreeMap<(&'a str, &'a str), (Sum, Option<Cow<'a, Times>>)>;

fn by_pool(model: &Model, names: bool) -> ByPool<'_> {
    let mut pools: ByPool<'_> = BTreeMap::new();
    for pool in model.pools() {
        let user = if names { &*pool.sight.user } else { "" };
        let (sum, times) = pools.entry((&pool.sight.database, user)).or_default();
        sum.add(&pool.sight);
        if let Some(its) = &pool.sight.times {
            match times {
                Some(times) => times.to_mut().add(its),
                None => *times = Some(Cow::Borrowed(its)),
            }
        }
    }
    pools
}

fn pools(page: &mut Page, pools: &ByPool<'_>) {
    let mut each = |counter: bool, name: &str, help: &str, value: fn(&Sum) -> String| {
        if counter {
            page.counter(name, help);
        } else {
            page.gauge(name, help);
        }
        for ((database, user), (sum, _)) in pools {
            page.value(&[("database", database), ("user", user)], value(sum));
        }
    };
    each(false, "pgweir_pool_clients", "Clients of the pool", |sum| sum.clients.total().to_string());
    each(false, "pgweir_pool_clients_linked", "Clients that have a server", |sum| {
        sum.clients.linked.to_string()
    });
    each(
        false,
        "pgweir_pool_clients_pinned",
        "Clients that keep their server between their transactions",
        |sum| sum.clients.pinned.to_string(),
    );
    each(
        false,
        "pgweir_pool_clients_riding",
        "Clients whose statement was sent behind another client's",
        |sum| sum.clients.riding.to_string(),
    );
    each(false, "pgweir_multiplex_target", "Servers that are to be busy with short statements", |sum| {
        sum.rides.target.to_string()
    });
    each(false, "pgweir_multiplex_busy", "Servers that are busy with short statements", |sum| {
        sum.rides.busy.to_string()
    });
    each(true, "pgweir_multiplex_decisions_total", "How often the target was looked at anew", |sum| {
        sum.rides.decisions.to_string()
    });
    each(true, "pgweir_multiplex_ridden_total", "Statements that were sent behind another client's", |sum| {
        sum.rides.ridden.to_string()
    });
    each(true, "pgweir_multiplex_requeued_total", "Of these, how many had to be run elsewhere", |sum| {
        sum.rides.requeued.to_string()
    });
    each(
        true,
        "pgweir_multiplex_violations_total",
        "Statements that did what they were certain not to do",
        |sum| sum.rides.violations.to_string(),
    );
    each(false, "pgweir_pool_clients_waiting", "Clients that wait for a server", |sum| {
        sum.clients.waiting.to_string()
    });
    each(
        false,
        "pgweir_pool_wait_oldest_seconds",
        "How long the client that waits longest has waited",
        |sum| seconds(sum.wait_oldest_us),
    );
    each(false, "pgweir_pool_servers", "Server connections of the pool", |sum| {
        sum.servers.total().to_string()
    });
    each(false, "pgweir_pool_size", "How many server connections the pool may have; 0 is no limit", |sum| {
        sum.size.to_string()
    });
    each(true, "pgweir_pool_logins_total", "Clients that logged in", |sum| {
        sum.stats.client_logins.to_string()
    });
    each(true, "pgweir_pool_errors_total", "Errors that clients were sent, by servers or by pgweir", |sum| {
        sum.errors.to_string()
    });
}

/// What session continuity did, a counter each.
fn sessions(page: &mut Page, pools: &ByPool<'_>) {
    for (place, (name, help, _)) in Continuity::default().each().into_iter().enumerate() {
        page.counter(&format!("pgweir_{name}_total"), help);
        for ((database, user), (sum, _)) in pools {
            page.value(&[("database", database), ("user", user)], sum.continuity.each()[place].2);
        }
    }
}

fn times(page: &mut Page, pools: &ByPool<'_>) {
    let empty = Histogram::default();
    for (place, (name, help)) in PARTS.into_iter().enumerate() {
        page.histogram(name, help);
        for ((database, user), (_, times)) in pools {
            let labels = [("database", *database), ("user", *user)];
            match times {
                Some(times) => page.times(&labels, &part(times, place)),
                None => page.times(&labels, &empty),
            }
        }
    }
}

fn part(times: &Times, place: usize) -> Cow<'_, Histogram> {
    match place {
        0 => Cow::Borrowed(&times.total),
        1 => Cow::Owned(times.wait()),
        2 => Cow::Borrowed(&times.server),
        3 => Cow::Owned(times.client()),
        _ => Cow::Borrowed(&times.transaction),
    }
}

fn whole(page: &mut Page, model: &Model) {
    let tally = model.tally();
    page.histogram("pgweir_client_login_seconds", "How long logins of clients took, from accepting to ready");
    page.times(&[], &tally.login);
    page.histogram(
        "pgweir_server_connect_seconds",
        "How long opening connections to servers took, from dialing to ready",
    );
    page.times(&[], &tally.connect);
    page.counter("pgweir_server_connect_failures_total", "Connections to servers that could not be opened");
    page.value(&[], tally.connect_failures);
    page.counter("pgweir_cancel_requests_total", "Cancel requests of clients");
    page.value(&[], tally.cancel_requests);
    page.counter("pgweir_errors_total", "Errors that clients were sent, by class of SQLSTATE");
    let mut classes: Vec<([u8; 2], u64)> = tally.errors.classes().collect();
    classes.sort_unstable();
    for (class, count) in classes {
        page.value(&[("class", &String::from_utf8_lossy(&class))], count);
    }
    page.single(
        "pgweir_prepared_statement_texts",
        "Texts of prepared statements that are kept for clients and servers",
        model.prepared_statements(),
    );
    let followed = model.followed();
    page.single("pgweir_statements_followed", "Statements in the list of SHOW STATEMENTS", followed.count);
    page.single("pgweir_statements_followed_bytes", "Memory that this list takes", followed.bytes);
    page.counter("pgweir_statements_forgotten_total", "Statements that made room for others in this list");
    page.value(&[], followed.forgotten);
    page.gauge("pgweir_state", "1 for the state that the process is in");
    for activity in [Activity::Active, Activity::Paused, Activity::Suspended, Activity::Stopping] {
        page.value(&[("state", activity.word())], u8::from(activity == model.activity()));
    }
}

fn workers(page: &mut Page, model: &Model) {
    let numbers: Vec<String> = (0..model.workers().len()).map(|number| number.to_string()).collect();
    let each = || numbers.iter().zip(model.workers());
    page.counter("pgweir_worker_busy_seconds_total", "Time in which the worker did not wait");
    for (number, worker) in each() {
        page.value(&[("worker", number)], seconds(worker.load.busy_us));
    }
    page.counter("pgweir_worker_turns_total", "Turns of the worker's loop");
    for (number, worker) in each() {
        page.value(&[("worker", number)], worker.load.turns);
    }
    page.gauge("pgweir_worker_connections", "Connections of clients and servers that the worker has");
    for (number, worker) in each() {
        page.value(&[("worker", number)], worker.load.connections);
    }
}
