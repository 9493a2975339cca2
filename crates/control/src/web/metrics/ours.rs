//! Metrics that only pgweir has: times by their parts, logins, connects, errors by class, workers.

use std::borrow::Cow;

use pgweir_core::stats::continuity::Continuity;
use pgweir_core::stats::histogram::Histogram;
use pgweir_core::stats::times::Times;

use super::super::model::{Activity, Model, Sum};
use super::Group;
use super::text::{Labels, Number, Page};

/// The metric families of times, for each part of [`Times::parts`].
const PARTS: [(&str, &str); 5] = [
    (
        "pgweir_statement_duration_seconds",
        "How long statements took, as clients saw it: waiting, at the server, and delayed by the client",
    ),
    ("pgweir_statement_wait_seconds", "How long statements waited for a server"),
    ("pgweir_statement_server_seconds", "How long statements took at the server"),
    ("pgweir_statement_client_seconds", "How long statements were delayed because the client did not read"),
    ("pgweir_transaction_server_seconds", "How long transactions had their server"),
];

pub(super) fn write(page: &mut Page, model: &Model, groups: &[Group<'_>], version: &str) {
    page.gauge("pgweir_build_info", "Version of pgweir");
    page.labelled(&[("version", version)], 1_u32);
    pools(page, groups);
    cache(page, groups);
    sessions(page, groups);
    times(page, groups);
    whole(page, model);
    workers(page, model);
}

/// Name, help and value of a family.
type Family = (&'static str, &'static str, fn(&Sum) -> Number);

fn cache(page: &mut Page, groups: &[Group<'_>]) {
    let gauges: [Family; 2] = [
        ("pgweir_cache_answers", "Answers that the query cache has", |sum| sum.cache.answers.into()),
        ("pgweir_cache_bytes", "The memory that they take", |sum| sum.cache.bytes.into()),
    ];
    for (name, help, value) in gauges {
        page.gauge(name, help);
        groups.iter().for_each(|group| page.value(&group.labels, value(&group.sum)));
    }
    let counters: [Family; 20] = [
        ("pgweir_cache_hits_total", "Statements that were answered without a server", |sum| {
            sum.cache.hits.into()
        }),
        ("pgweir_cache_misses_total", "Statements of a rule of [cache] that needed a server", |sum| {
            sum.cache.misses.into()
        }),
        ("pgweir_cache_fills_total", "Answers that were kept", |sum| sum.cache.fills.into()),
        ("pgweir_cache_too_long_total", "Answers that were longer than query_cache_max_answer", |sum| {
            sum.cache.too_long.into()
        }),
        ("pgweir_cache_unfit_total", "Answers that were not kept for an error or a notice", |sum| {
            sum.cache.unfit.into()
        }),
        ("pgweir_cache_evicted_total", "Kept answers that gave way to others", |sum| {
            sum.cache.evicted.into()
        }),
        ("pgweir_cache_coalesced_total", "Of the hits, those of clients that waited for a server", |sum| {
            sum.cache.coalesced.into()
        }),
        (
            "pgweir_cache_expired_total",
            "Of the misses, those whose kept answer had reached the age of its rule",
            |sum| sum.cache.expired.into(),
        ),
        (
            "pgweir_cache_own_changes_total",
            "Of the misses, those whose kept answer was from before a change by the client itself",
            |sum| sum.cache.own_changes.into(),
        ),
        (
            "pgweir_cache_redefined_total",
            "Of the misses, those whose kept answer was from before a change of definitions, rights or the primary",
            |sum| sum.cache.redefined.into(),
        ),
        (
            "pgweir_cache_changed_total",
            "Of the misses, those whose kept answer was dropped because a table had changed",
            |sum| sum.cache.changed.into(),
        ),
        (
            "pgweir_cache_row_changed_total",
            "Of the answers that were dropped because a table had changed, those that depended on one row of it",
            |sum| sum.cache.row_changed.into(),
        ),
        (
            "pgweir_cache_not_fresh_total",
            "Of the misses, those whose client was not told in time that no table had changed",
            |sum| sum.cache.not_fresh.into(),
        ),
        (
            "pgweir_cache_unsettled_total",
            "Answers that were not kept because a table was changed at that time",
            |sum| sum.cache.unsettled.into(),
        ),
        (
            "pgweir_cache_verified_total",
            "Kept answers that were compared with a server's (query_cache_verify)",
            |sum| sum.cache.verified.into(),
        ),
        ("pgweir_cache_wrong_total", "Of these, those that were wrong", |sum| sum.cache.wrong.into()),
        (
            "pgweir_cache_purged_total",
            "Answers that were dropped together, by CACHE PURGE for example",
            |sum| sum.cache.purged.into(),
        ),
        (
            "pgweir_cache_aged_total",
            "Of the hits, those whose age counts: without those of clients that waited",
            |sum| sum.cache.aged.into(),
        ),
        ("pgweir_cache_age_seconds_total", "The sum of the ages of these answers", |sum| {
            Number::Us(sum.cache.age_us)
        }),
        (
            "pgweir_cache_saved_seconds_total",
            "Time at PostgreSQL that hits saved, by the statements' mean times",
            |sum| Number::Us(sum.cache.saved_us),
        ),
    ];
    for (name, help, value) in counters {
        page.counter(name, help);
        groups.iter().for_each(|group| page.value(&group.labels, value(&group.sum)));
    }
}

fn pools(page: &mut Page, groups: &[Group<'_>]) {
    let mut each = |counter: bool, name: &str, help: &str, value: fn(&Sum) -> Number| {
        if counter {
            page.counter(name, help);
        } else {
            page.gauge(name, help);
        }
        for group in groups {
            page.value(&group.labels, value(&group.sum));
        }
    };
    each(false, "pgweir_pool_clients", "Clients of the pool", |sum| sum.clients.total().into());
    each(false, "pgweir_pool_clients_linked", "Clients that have a server", |sum| sum.clients.linked.into());
    each(
        false,
        "pgweir_pool_clients_pinned",
        "Clients that keep their server between their transactions",
        |sum| sum.clients.pinned.into(),
    );
    each(
        false,
        "pgweir_pool_clients_multiplexed",
        "Clients whose statement is queued on a server after another client's",
        |sum| sum.clients.queued_behind.into(),
    );
    each(false, "pgweir_multiplex_target", "Servers that are to be busy with short statements", |sum| {
        sum.multiplexing.target.into()
    });
    each(false, "pgweir_multiplex_busy", "Servers that are busy with short statements", |sum| {
        sum.multiplexing.busy.into()
    });
    each(true, "pgweir_multiplex_decisions_total", "How often the target was reconsidered", |sum| {
        sum.multiplexing.decisions.into()
    });
    each(
        true,
        "pgweir_multiplexed_total",
        "Statements that were queued on a server after another client's",
        |sum| sum.multiplexing.multiplexed.into(),
    );
    each(
        true,
        "pgweir_multiplex_requeued_total",
        "Of these, the statements that had to run on another server",
        |sum| sum.multiplexing.requeued.into(),
    );
    each(
        true,
        "pgweir_multiplex_violations_total",
        "Statements that did what they were certain not to do",
        |sum| sum.multiplexing.violations.into(),
    );
    each(false, "pgweir_pool_clients_waiting", "Clients that wait for a server", |sum| {
        sum.clients.waiting.into()
    });
    each(
        false,
        "pgweir_pool_wait_oldest_seconds",
        "How long the client that waits longest has waited",
        |sum| Number::Us(sum.wait_oldest_us),
    );
    each(false, "pgweir_pool_servers", "Server connections of the pool", |sum| sum.servers.total().into());
    each(
        false,
        "pgweir_pool_size",
        "Maximum number of server connections of the pool; 0 is no limit",
        |sum| sum.size.into(),
    );
    each(true, "pgweir_pool_logins_total", "Clients that logged in", |sum| sum.stats.client_logins.into());
    each(true, "pgweir_pool_errors_total", "Errors that clients were sent, by servers or by pgweir", |sum| {
        sum.errors.into()
    });
}

/// Writes a counter for each number of session continuity.
fn sessions(page: &mut Page, groups: &[Group<'_>]) {
    for (place, (name, help, _)) in Continuity::default().each().into_iter().enumerate() {
        page.counter(&format!("pgweir_{name}_total"), help);
        for group in groups {
            page.value(&group.labels, group.sum.continuity.each()[place].2);
        }
    }
}

fn times(page: &mut Page, groups: &[Group<'_>]) {
    let empty = Histogram::default();
    for (place, (name, help)) in PARTS.into_iter().enumerate() {
        page.histogram(name, help);
        for group in groups {
            match &group.times {
                Some(times) => page.times(&group.labels, &part(times, place)),
                None => page.times(&group.labels, &empty),
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
    let counters = model.counters();
    page.histogram("pgweir_client_login_seconds", "How long logins of clients took, from accepting to ready");
    page.times(&Labels::new(&[]), &counters.login);
    page.histogram(
        "pgweir_server_connect_seconds",
        "How long opening connections to servers took, from dialing to ready",
    );
    page.times(&Labels::new(&[]), &counters.connect);
    page.counter("pgweir_server_connect_failures_total", "Connections to servers that could not be opened");
    page.labelled(&[], counters.connect_failures);
    page.counter("pgweir_cancel_requests_total", "Cancel requests of clients");
    page.labelled(&[], counters.cancel_requests);
    page.counter("pgweir_errors_total", "Errors that clients were sent, by class of SQLSTATE");
    let mut classes: Vec<([u8; 2], u64)> = counters.errors.classes().collect();
    classes.sort_unstable();
    for (class, count) in classes {
        page.labelled(&[("class", &String::from_utf8_lossy(&class))], count);
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
    page.labelled(&[], followed.forgotten);
    page.gauge("pgweir_state", "1 for the state that the process is in");
    for activity in [Activity::Active, Activity::Paused, Activity::Suspended, Activity::Stopping] {
        page.labelled(&[("state", activity.word())], u32::from(activity == model.activity()));
    }
}

fn workers(page: &mut Page, model: &Model) {
    let numbers: Vec<String> = (0..model.workers().len()).map(|number| number.to_string()).collect();
    let each = || numbers.iter().zip(model.workers());
    page.counter("pgweir_worker_busy_seconds_total", "Time in which the worker did not wait");
    for (number, worker) in each() {
        page.labelled(&[("worker", number)], Number::Us(worker.load.busy_us));
    }
    page.counter(
        "pgweir_worker_busy_poll_seconds_total",
        "Time in which the worker polled for more instead of sleeping (worker_busy_poll_us)",
    );
    for (number, worker) in each() {
        page.labelled(&[("worker", number)], Number::Us(worker.load.busy_poll_us));
    }
    page.counter(
        "pgweir_worker_batched_sends_total",
        "Messages that left together with others, with one system call (worker_io_uring)",
    );
    for (number, worker) in each() {
        page.labelled(&[("worker", number)], worker.load.batched_sends);
    }
    page.counter("pgweir_worker_turns_total", "Turns of the worker's loop");
    for (number, worker) in each() {
        page.labelled(&[("worker", number)], worker.load.turns);
    }
    page.gauge("pgweir_worker_connections", "Connections of clients and servers that the worker has");
    for (number, worker) in each() {
        page.labelled(&[("worker", number)], worker.load.connections);
    }
}
