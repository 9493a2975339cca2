//! `pgweir demo --cache`: hot reads through pgweir without and with the query cache, while a writer changes the rows without going through
//! pgweir. The readers check how old the answers are: each value that they get has a date (see [`super::dated`]).

use std::collections::HashMap;
use std::time::Duration;

use super::dated::{self, Checked, Dated, KEYS};
use super::{MAX_CONNECTIONS, Options, page_address, page_settings, prepare, transactions};
use crate::error::BenchError;
use crate::pgbench::{Load, Outcome, Pgbench, Protocol, Script};
use crate::processes::interrupt::Interrupt;
use crate::processes::machine::Business;
use crate::processes::sampler::CpuMark;
use crate::processes::scratch::Scratch;
use crate::report::progress::{Progress, say};
use crate::report::stats::{made, short};
use crate::report::table::Table;
use crate::servers::cluster::{Cluster, ClusterOptions, Entry, free_port};
use crate::servers::pooler::{Pooler, PoolerOptions, PoolerProgram};
use pgweir_client::Client;

const SHARED_BUFFERS_MB: u32 = 64;
const POOL_SIZE: u32 = 20;
/// The age that the rule promises.
const TTL: Duration = Duration::from_millis(1000);
/// The number of clients that check answers beside the load.
const READERS: usize = 4;
/// The application names by which the rule tells the runs apart.
const CACHED: &str = "cached";
const UNCACHED: &str = "uncached";

/// Everything that was started. The fields go in this order: pooler, server, files.
struct Stage {
    pooler: Pooler,
    cluster: Cluster,
    pgbench: Pgbench,
    interrupt: Interrupt,
    _scratch: Scratch,
}

/// A run of the load, with what the readers found meanwhile.
struct Ran {
    outcome: Outcome,
    /// CPU time for each transaction of the load, microseconds.
    pooler_us: Option<f64>,
    servers_us: Option<f64>,
    /// The part of all reads of this run that was answered from the cache.
    hit_share: f64,
    checked: Checked,
}

/// The counters of SHOW CACHE, and the ages of answers since the start.
#[derive(Default)]
struct Counts {
    hits: f64,
    age_p50_ms: Option<String>,
    age_max_ms: Option<String>,
}

/// Runs the demo; ends by itself.
pub(super) fn run(options: &Options) -> Result<(), BenchError> {
    let mut progress = Progress::new();
    let mut stage = Stage::set(options, &mut progress)?;
    let business = Business::look();
    let uncached = stage.load(UNCACHED, options, &mut progress)?;
    let cached = stage.load(CACHED, options, &mut progress)?;
    let counts = stage.counts()?;
    drop(progress);
    say!("\n{}", table(options.clients, &uncached, &cached, &counts));
    if let Some(business) = business {
        say!("{}\n", business.sentence());
    }
    if uncached.checked.too_old + cached.checked.too_old > 0 {
        return Err(BenchError::failed("answers were older than the rule promises", "see the table"));
    }
    if cached.hit_share <= 0.0 {
        return Err(BenchError::failed("the cache answered nothing", "see the table"));
    }
    Ok(())
}

impl Stage {
    fn set(options: &Options, progress: &mut Progress) -> Result<Stage, BenchError> {
        let (interrupt, tools, scratch) = prepare(options, progress)?;
        progress.phase("starting a throw-away PostgreSQL");
        let cluster_options = ClusterOptions {
            max_connections: MAX_CONNECTIONS,
            shared_buffers_mb: SHARED_BUFFERS_MB,
            entry: Entry::Trust,
        };
        let cluster = Cluster::start(&tools, &scratch, cluster_options, &interrupt)?;
        let mut owner = Client::log_in(&cluster.login()).map_err(BenchError::io("logging in"))?;
        owner.query(dated::TABLE).map_err(BenchError::io("making the table"))?;
        progress.done(&format!("port {}, a table of {KEYS} rows", cluster.port()));
        progress.phase("starting the pooler");
        let page_port = free_port()?;
        let mut settings = page_settings(page_port);
        settings.push(("query_cache".to_owned(), "on".to_owned()));
        let rule = format!("hot = application_name={CACHED} tables=hot ttl_ms={}", TTL.as_millis());
        let pooler_options = PoolerOptions {
            pool_size: POOL_SIZE,
            max_client_conn: options.clients + 100,
            port: options.port,
            settings,
            cache_rules: vec![rule.clone()],
            ..PoolerOptions::default()
        };
        let program = options.pooler.clone().map_or_else(PoolerProgram::own, Ok)?;
        let pooler = Pooler::start(&program, &pooler_options, &cluster.login(), &scratch, &interrupt)?;
        progress.done(&format!("port {}, [cache] {rule}", pooler.port()));
        progress.phase("what happens, while it happens");
        progress.done(&format!("{}#/cache", page_address(page_port)));
        let script = format!("\\set key random(1, {KEYS})\n{};\n", dated::statement(":key"));
        let pgbench = Pgbench::new(&tools.pgbench, &scratch)?.with_hot(&scratch, &script)?;
        Ok(Stage { pooler, cluster, pgbench, interrupt, _scratch: scratch })
    }

    /// Runs the load, with the writer and the readers beside it.
    fn load(&mut self, name: &str, options: &Options, progress: &mut Progress) -> Result<Ran, BenchError> {
        let load = Load {
            script: Script::Hot,
            protocol: Protocol::Simple,
            clients: options.clients,
            reconnect: false,
            seconds: options.seconds,
        };
        progress.phase(&format!("hot reads, {} clients, {name}", options.clients));
        let hits = self.counts()?.hits;
        let dated = Dated::start(&self.cluster.login(), &self.pooler.login().named(name), READERS)?;
        let before = CpuMark::take(Some(self.pooler.id()), self.cluster.postmaster());
        let seconds = f64::from(load.seconds);
        let address = self.pooler.address();
        let outcome = self.pgbench.run(&load, name, &address, &self.interrupt, &mut |elapsed, tps| {
            progress.detail(&format!("{:.0} s left, {tps:.0} TPS", (seconds - elapsed).max(0.0)));
        });
        let after = CpuMark::take(Some(self.pooler.id()), self.cluster.postmaster());
        self.cluster.check()?;
        self.pooler.check()?;
        let outcome = outcome?;
        let checked = dated.end(TTL)?;
        let number = transactions(&outcome);
        progress.done(&made(outcome.tps, number));
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 reads")]
        let reads = number + checked.reads as f64;
        Ok(Ran {
            outcome,
            pooler_us: before.pooler_us(&after).map(|used_us| used_us / number),
            servers_us: before.backends_us(&after).map(|used_us| used_us / number),
            hit_share: ((self.counts()?.hits - hits) / reads).min(1.0),
            checked,
        })
    }

    /// Returns the row of SHOW CACHE; zeros if there is no pool yet.
    fn counts(&self) -> Result<Counts, BenchError> {
        let login = self.pooler.console().expect("pgweir has a console");
        let mut console = Client::log_in(&login).map_err(BenchError::io("the pooler's console"))?;
        let (columns, rows) = console.table("SHOW CACHE").map_err(BenchError::io("SHOW CACHE"))?;
        let Some(row) = rows.into_iter().next() else { return Ok(Counts::default()) };
        let row: HashMap<String, String> = columns.into_iter().zip(row).collect();
        let text = |name: &str| row.get(name).filter(|text| !text.is_empty()).cloned();
        let hits = text("hits").and_then(|text| text.parse().ok()).unwrap_or(0.0);
        Ok(Counts { hits, age_p50_ms: text("age_p50_ms"), age_max_ms: text("age_max_ms") })
    }
}

fn table(clients: u32, uncached: &Ran, cached: &Ran, counts: &Counts) -> String {
    let head = [
        "load",
        "query cache",
        "clients",
        "TPS",
        "p50 ms",
        "p99 ms",
        "failed",
        "hits",
        "pooler CPU us/tx",
        "PostgreSQL CPU us/tx",
    ];
    let mut table = Table::new(&head, 2);
    for (name, ran) in [("without", uncached), ("with", cached)] {
        let Ran { outcome, .. } = ran;
        let figure = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), short);
        table.row(vec![
            "hot reads".to_owned(),
            name.to_owned(),
            clients.to_string(),
            format!("{:.0}", outcome.tps),
            figure(outcome.p50_ms),
            figure(outcome.p99_ms),
            outcome.failed.to_string(),
            percent(ran.hit_share),
            figure(ran.pooler_us),
            figure(ran.servers_us),
        ]);
    }
    let Checked { reads, behind, too_old, changes, .. } = &cached.checked;
    let (p50, most) = (counts.age_p50_ms.as_deref(), counts.age_max_ms.as_deref());
    format!(
        "{}\n  with the cache, while a writer that does not use pgweir made {changes} changes:\n  \
         age of answers       p50 {} ms, oldest {} ms; the rule promises less than {} ms\n  \
         answers checked      {reads}, of which {} did not show the row's last change{}\n  \
         older than promised  {too_old}\n\n{}\n",
        table.render(),
        p50.unwrap_or("-"),
        most.unwrap_or("-"),
        TTL.as_millis(),
        behind.len(),
        behind.last().map_or_else(String::new, |most| format!(", up to {} ms after it", most.as_millis())),
        sentence(uncached, cached),
    )
}

/// Says what was shown.
fn sentence(uncached: &Ran, cached: &Ran) -> String {
    let times = cached.outcome.tps / uncached.outcome.tps.max(f64::EPSILON);
    let Checked { reads, too_old, changes_per_s, .. } = &cached.checked;
    let verdict = match too_old {
        0 => format!("none of {reads} checked answers was older than the rule promises"),
        _ => format!("{too_old} of {reads} checked answers were older than the rule promises"),
    };
    format!(
        "The query cache answered {} of the reads without PostgreSQL, with {} times the transactions a second, while the rows changed {changes_per_s:.0} \
         times a second without pgweir's knowledge; {verdict}.",
        percent(cached.hit_share),
        short(times),
    )
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(tps: f64, hit_share: f64, too_old: usize) -> Ran {
        let outcome = Outcome { transactions: 10, failed: 0, tps, p50_ms: Some(0.1), p99_ms: None };
        let behind = vec![Duration::from_millis(7), Duration::from_millis(912)];
        let checked = Checked { changes: 300, changes_per_s: 100.0, reads: 50, behind, too_old };
        Ran { outcome, pooler_us: Some(4.2), servers_us: None, hit_share, checked }
    }

    #[test]
    fn the_text_agrees_with_the_figures() {
        let ages = Counts { hits: 9.0, age_p50_ms: Some("480".into()), age_max_ms: Some("999".into()) };
        let said = |too_old| table(20, &ran(1000.0, 0.0, 0), &ran(5500.0, 0.995, too_old), &ages);
        let good = said(0);
        assert!(good.contains("p50 480 ms, oldest 999 ms; the rule promises less than 1000 ms"), "{good}");
        assert!(
            good.contains("50, of which 2 did not show the row's last change, up to 912 ms after it"),
            "{good}"
        );
        assert!(good.contains("older than promised  0\n"), "{good}");
        assert!(
            good.contains("answered 99.5 % of the reads without PostgreSQL, with 5.50 times the"),
            "{good}"
        );
        assert!(good.ends_with("none of 50 checked answers was older than the rule promises.\n"), "{good}");
        let bad = said(3);
        assert!(bad.contains("older than promised  3\n"), "{bad}");
        assert!(bad.ends_with("3 of 50 checked answers were older than the rule promises.\n"), "{bad}");
    }
}
