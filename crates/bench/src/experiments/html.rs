//! The report as one HTML file that needs nothing but itself.

use std::fmt::Write as _;

use super::chart::{self, Series, escape};
use super::conclusion::conclusion;
use super::monitor::{PoolReading, Reading};
use super::results::{Metric, Results};
use super::run::Run;
use crate::processes::machine::Machine;
use crate::report::stats::short;

/// Targets have the first colours, states the ones after them.
const TARGET_COLOURS: usize = 6;
const ACTIVE: usize = 6;
const IDLE: usize = 7;
const IN_TRANSACTION: usize = 8;

/// Ratios that are this near to 1 are neither good nor bad.
const LEVEL: f64 = 0.03;

const STYLE: &str = "
:root { --bg:#f6f7f9; --card:#fff; --ink:#1c2330; --soft:#5d6778; --rule:#dfe3ea; --good:#0a7d4f; --bad:#b3341f; --warn:#fff4d6;
  --c0:#8a94a6; --c1:#0b6bcb; --c2:#e08a00; --c3:#00916e; --c4:#b5479d; --c5:#c9481e; --c6:#0b6bcb; --c7:#b9c4d4; --c8:#e0a100; }
@media (prefers-color-scheme: dark) { :root { --bg:#11151c; --card:#1a2029; --ink:#e6eaf1; --soft:#9aa6b8; --rule:#2c3542; --good:#4cc38a;
  --bad:#ff8f73; --warn:#3a3114; --c0:#9aa6b8; --c1:#5aa9ff; --c2:#ffb340; --c3:#3fc9a0; --c4:#dd86c9; --c5:#ff8a5c; --c6:#5aa9ff;
  --c7:#4a586c; --c8:#ffcc4d; } }
* { box-sizing:border-box }
body { margin:0; background:var(--bg); color:var(--ink); font:15px/1.5 system-ui, -apple-system, 'Segoe UI', sans-serif }
main { max-width:1240px; margin:0 auto; padding:28px 24px 60px }
h1 { font-size:26px; margin:0 0 4px } h2 { font-size:21px; margin:44px 0 2px } h3 { font-size:17px; margin:26px 0 8px } h4 { font-size:14px; margin:14px 0 0; color:var(--soft) }
p { margin:4px 0 } .conclusion { font-size:19px; line-height:1.35; font-weight:600; margin:14px 0; text-wrap:balance } .soft { color:var(--soft) } a { color:var(--c1) }
.cards { display:grid; grid-template-columns:repeat(auto-fit,minmax(150px,1fr)); gap:12px; margin:8px 0 16px }
.card, figure { background:var(--card); border:1px solid var(--rule); border-radius:10px; padding:14px 16px; margin:0 }
.card b { display:block; font-size:24px; font-variant-numeric:tabular-nums; line-height:1.25 } .card span { color:var(--soft); font-size:13px }
.good { color:var(--good) } .bad { color:var(--bad) }
.scroll { overflow-x:auto; background:var(--card); border:1px solid var(--rule); border-radius:10px }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums } th, td { padding:7px 12px; text-align:right; white-space:nowrap }
th:first-child, td:first-child { text-align:left } th { color:var(--soft); font-weight:600; font-size:13px; border-bottom:1px solid var(--rule) }
tr + tr td { border-top:1px solid var(--rule) } tr.ratio td { color:var(--soft); font-size:14px }
.charts { display:grid; grid-template-columns:repeat(auto-fill,minmax(min(370px,100%),1fr)); gap:14px; margin:14px 0 }
figcaption { font-weight:600; margin-bottom:6px } figcaption small { font-weight:400; color:var(--soft) }
svg { width:100%; height:auto; display:block } svg text { font-size:14px; fill:var(--soft) }
.grid { stroke:var(--rule); stroke-width:1 } .y { text-anchor:end } .x { text-anchor:middle } .value { text-anchor:middle; font-size:12px }
.line { fill:none; stroke-width:2; stroke-linejoin:round } .area { opacity:.85; stroke:none }
.legend { display:flex; flex-wrap:wrap; gap:4px 14px; font-size:12.5px; color:var(--soft); margin-top:4px }
.legend i { display:inline-block; width:10px; height:10px; border-radius:3px; margin-right:5px }
.warn { background:var(--warn); border:1px solid var(--rule); border-radius:10px; padding:10px 16px; margin:12px 0 }
.warn ul { margin:4px 0; padding-left:20px } details { margin:10px 0 } summary { cursor:pointer; color:var(--soft) }
pre { overflow-x:auto; background:var(--card); border:1px solid var(--rule); border-radius:10px; padding:10px 14px; font-size:12.5px }
dl { display:grid; grid-template-columns:max-content 1fr; gap:4px 16px; font-size:13.5px } dt { font-weight:600 } dd { margin:0; color:var(--soft) }
nav { display:flex; flex-wrap:wrap; gap:6px 16px; margin:14px 0 }
";

/// For readers who have never seen a pooler.
const INTRODUCTION: &str = "<p style=\"margin-top:14px\">Each load went straight to PostgreSQL (<b>direct</b>), and through each pooler, \
    which lets many clients share few connections to PostgreSQL. All took turns on this machine. Large figures compare: 2.00 means twice as \
    much through pgweir; <b class=\"good\">green</b> is better, <b class=\"bad\">red</b> is worse.</p>";

/// The page.
pub(super) fn page(all: &[Results], started: &str) -> String {
    let mut html = String::from("<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">");
    html.push_str("<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\">");
    let title = all.iter().map(|results| results.experiment.key).collect::<Vec<_>>().join(", ");
    let _ = write!(html, "<title>pgweir bench: {title}</title><style>{STYLE}");
    for colour in 0..=IN_TRANSACTION {
        let _ = writeln!(
            html,
            ".line.c{colour} {{ stroke:var(--c{colour}) }} .area.c{colour}, .bar.c{colour} {{ fill:var(--c{colour}) }} \
             i.c{colour} {{ background:var(--c{colour}) }}"
        );
    }
    html.push_str("</style></head><body><main>");
    let Machine { cpu, cpus, memory_mib, kernel } = Machine::look();
    let _ = write!(
        html,
        "<h1>pgweir bench</h1><p class=\"soft\">{} &middot; {cpus} CPUs ({}), {} GiB, Linux {} &middot; pgweir {}</p>",
        escape(&readable(started)),
        escape(&cpu),
        memory_mib / 1024,
        escape(&kernel),
        pgweir_version::VERSION
    );
    let _ = write!(html, "<p class=\"conclusion\">{}</p>", escape(&conclusion(all)));
    html.push_str(INTRODUCTION);
    if all.len() > 1 {
        html.push_str("<nav>");
        for results in all {
            let key = results.experiment.key;
            let _ = write!(html, "<a href=\"#{key}\">{key}</a>");
        }
        html.push_str("</nav>");
    }
    for results in all {
        experiment(&mut html, results, all.len() > 1);
    }
    html.push_str(
        "<p class=\"soft\" style=\"margin-top:40px\">Medians of interleaved rounds; curves are the round nearest to the median. \
         CPU time is the kernel's own count of all threads. Every figure and series is in report.json beside this file.</p>\
         </main></body></html>\n",
    );
    html
}

/// `one_of_several`: the conclusion at the head of the page is of all of them.
fn experiment(html: &mut String, results: &Results, one_of_several: bool) {
    let experiment = results.experiment;
    let _ = write!(
        html,
        "<section id=\"{0}\"><h2>{0}</h2><p>{1}</p><p class=\"soft\">PostgreSQL {2}, max_connections {3}, scale {4}, \
         {5} pooling, pool of {6}, {7} interleaved rounds{8}</p><p class=\"soft\">Published: {9}</p>",
        experiment.key,
        escape(experiment.title),
        results.postgres,
        results.max_connections,
        results.scale,
        experiment.mode,
        experiment.pool_size,
        results.rounds,
        if results.quick { ", quick" } else { "" },
        escape(experiment.published)
    );
    if one_of_several {
        let _ = write!(html, "<p><b>{}</b></p>", escape(&conclusion(std::slice::from_ref(results))));
    }
    let warnings = results.warnings();
    if !warnings.is_empty() {
        html.push_str("<div class=\"warn\"><b>Careful</b><ul>");
        for warning in warnings {
            let _ = write!(html, "<li>{}</li>", escape(&warning));
        }
        html.push_str("</ul></div>");
    }
    for (step, of) in experiment.steps.iter().enumerate() {
        if results.runs.iter().all(|run| run.step != step) {
            continue;
        }
        let _ = write!(html, "<h3>{}</h3>", escape(of.name));
        cards(html, results, step);
        table(html, results, step);
        for (target, facts) in results.targets.iter().enumerate() {
            if let Some(reason) = results.refusal(step, target) {
                let text = results.refusal_text(of, step, target, reason);
                let _ = write!(html, "<p class=\"bad\">{}: {}</p>", escape(&facts.name), escape(&text));
            }
        }
        charts(html, results, step);
    }
    for (target, reason) in &results.left_out {
        let _ = write!(
            html,
            "<p class=\"bad\">{}: left out, {}</p>",
            escape(&results.targets[*target].name),
            escape(reason)
        );
    }
    html.push_str("<details><summary>Commands and versions</summary><pre tabindex=\"0\">");
    for target in &results.targets {
        let _ = writeln!(html, "{}: {}", escape(&target.name), escape(&target.version));
    }
    for (_, target, line) in &results.commands {
        let _ = writeln!(html, "\n# {}\n{}", escape(&results.targets[*target].name), escape(line));
    }
    html.push_str(
        "\n# added to each for measuring\n--progress=1 --log --log-prefix=FILE\n</pre></details></section>",
    );
}

/// The verdicts.
fn cards(html: &mut String, results: &Results, step: usize) {
    let ratios = results.ratios(step);
    if ratios.is_empty() {
        return;
    }
    for (name, ratios) in ratios {
        let name = escape(&name);
        let _ = write!(html, "<h4>pgweir, compared with {name}</h4><div class=\"cards\">");
        for (metric, ratio) in ratios {
            let (what, more_is_better) = match metric {
                Metric::Tps => ("transactions a second", true),
                Metric::P99Ms => ("latency that 99 of 100 transactions keep", false),
                Metric::PoolerUs => ("pooler's CPU time for a transaction", false),
                Metric::PostgresUs => ("PostgreSQL's CPU time for a transaction", false),
                _ => continue,
            };
            let class = match ratio {
                ratio if (ratio - 1.0).abs() < LEVEL => "",
                ratio if (ratio > 1.0) == more_is_better => "good",
                _ => "bad",
            };
            let _ = write!(
                html,
                "<div class=\"card\"><b class=\"{class}\">{ratio:.2}&times;</b><span>{what}</span></div>"
            );
        }
        html.push_str("</div>");
    }
}

fn table(html: &mut String, results: &Results, step: usize) {
    let metrics = results.metrics(step);
    html.push_str("<div class=\"scroll\" role=\"region\" aria-label=\"Figures\" tabindex=\"0\"><table><tr><th>through</th>");
    for metric in &metrics {
        let _ = write!(html, "<th>{}</th>", metric.names().0);
    }
    html.push_str("</tr>");
    for (target, facts) in results.targets.iter().enumerate() {
        if results.runs_of(step, target).next().is_none() {
            continue;
        }
        let _ = write!(html, "<tr><td>{}</td>", escape(&facts.name));
        for metric in &metrics {
            let value = results.median(step, target, *metric).map_or_else(|| "&ndash;".to_owned(), short);
            let _ = write!(html, "<td>{value}</td>");
        }
        html.push_str("</tr>");
    }
    for (name, ratios) in results.ratios(step) {
        let _ = write!(html, "<tr class=\"ratio\"><td>pgweir / {}</td>", escape(&name));
        for metric in &metrics {
            let ratio = ratios.iter().find(|(found, _)| found == metric);
            let text = ratio.map_or_else(String::new, |(_, ratio)| format!("{ratio:.2}&times;"));
            let _ = write!(html, "<td>{text}</td>");
        }
        html.push_str("</tr>");
    }
    html.push_str("</table></div><details><summary>What the columns say</summary><dl>");
    for metric in &metrics {
        let _ = write!(html, "<dt>{}</dt><dd>{}</dd>", metric.names().0, metric.meaning());
    }
    html.push_str("</dl></details>");
}

/// `2025-11-21 18:45 UTC` of `20251121T184500Z`.
fn readable(started: &str) -> String {
    let part = |from: usize, to: usize| started.get(from..to);
    match (part(0, 4), part(4, 6), part(6, 8), part(9, 11), part(11, 13)) {
        (Some(year), Some(month), Some(day), Some(hour), Some(minute)) => {
            format!("{year}-{month}-{day} {hour}:{minute} UTC")
        }
        _ => started.to_owned(),
    }
}

fn charts(html: &mut String, results: &Results, step: usize) {
    let typical: Vec<(usize, &Run)> = (0..results.targets.len())
        .filter_map(|target| Some((target, results.typical(step, target)?)))
        .collect();
    if typical.is_empty() {
        return;
    }
    let name = |target: usize| results.targets[target].name.clone();
    let colour = |target: usize| target % TARGET_COLOURS;
    let curve = |target: usize, points| Series { name: name(target), colour: colour(target), points };
    let each = |points: &dyn Fn(&Run) -> Vec<(f64, f64)>| -> Vec<Series> {
        typical.iter().map(|(target, run)| curve(*target, points(run))).collect()
    };
    html.push_str("<div class=\"charts\">");
    let tps = each(&|run| rate(&run.readings, |reading| reading.transactions));
    figure(html, "Transactions a second", "pg_stat_database", &chart::lines(&tps, "s", 0.0));
    let share = 100.0 / f64::from(results.max_connections.max(1));
    let used = each(&|run| values(&run.readings, |reading| reading.connections * share));
    figure(html, "Used connections", "% of max_connections", &chart::lines(&used, "s", 100.0));
    let top = typical
        .iter()
        .flat_map(|(_, run)| run.readings.iter().map(|reading| reading.connections))
        .fold(0.0, f64::max);
    for (target, run) in &typical {
        let title = format!("Server connections, {}", name(*target));
        figure(html, &title, "by state", &chart::stacked(&states(&run.readings), top));
    }
    latency(html, results, &typical);
    cpu(html, results, step, &typical);
    for (target, run) in &typical {
        let pool = pool(&run.readings);
        if !pool.is_empty() {
            figure(html, &format!("Pool, {}", name(*target)), "SHOW POOLS", &chart::lines(&pool, "s", 0.0));
        }
    }
    let allocated = each(&|run| rate(&run.readings, |reading| reading.buffers_allocated));
    figure(html, "Buffers allocated", "a second", &chart::lines(&allocated, "s", 0.0));
    let cleaned = each(&|run| rate(&run.readings, |reading| reading.buffers_cleaned));
    figure(html, "Buffers cleaned", "a second, by the background writer", &chart::lines(&cleaned, "s", 0.0));
    html.push_str("</div>");
}

fn latency(html: &mut String, results: &Results, typical: &[(usize, &Run)]) {
    let Some((_, first)) = typical.iter().find(|(_, run)| !run.latency_ms.is_empty()) else { return };
    let shares = first.latency_ms.iter().map(|(share, _)| *share);
    let groups: Vec<(String, Vec<(usize, f64)>)> = shares
        .enumerate()
        .map(|(place, share)| {
            let bar =
                |(index, (_, run)): (usize, &(usize, &Run))| Some((index, run.latency_ms.get(place)?.1));
            (format!("p{share}"), typical.iter().enumerate().filter_map(bar).collect())
        })
        .collect();
    figure(html, "Latency", "milliseconds, by percentile", &chart::bars(&groups, &names(results, typical)));
}

fn cpu(html: &mut String, results: &Results, step: usize, typical: &[(usize, &Run)]) {
    let groups: Vec<(String, Vec<(usize, f64)>)> =
        [("pooler", Metric::PoolerUs), ("PostgreSQL", Metric::PostgresUs)]
            .into_iter()
            .map(|(title, metric)| {
                let bar = |(index, (target, _)): (usize, &(usize, &Run))| {
                    Some((index, results.median(step, *target, metric)?))
                };
                (title.to_owned(), typical.iter().enumerate().filter_map(bar).collect())
            })
            .collect();
    if groups.iter().any(|(_, bars): &(String, Vec<(usize, f64)>)| !bars.is_empty()) {
        let chart = chart::bars(&groups, &names(results, typical));
        figure(html, "CPU time per transaction", "microseconds", &chart);
    }
}

fn names(results: &Results, typical: &[(usize, &Run)]) -> Vec<(String, usize)> {
    typical
        .iter()
        .map(|(target, _)| (results.targets[*target].name.clone(), target % TARGET_COLOURS))
        .collect()
}

fn figure(html: &mut String, title: &str, unit: &str, chart: &str) {
    let (title, unit) = (escape(title), escape(unit));
    // A picture that is read aloud needs a name.
    let chart = chart.replacen("<svg ", &format!("<svg aria-label=\"{title}, {unit}\" "), 1);
    let _ = write!(html, "<figure><figcaption>{title} <small>{unit}</small></figcaption>{chart}</figure>");
}

fn values(readings: &[Reading], value: impl Fn(&Reading) -> f64) -> Vec<(f64, f64)> {
    readings.iter().map(|reading| (reading.at_s, value(reading))).collect()
}

/// How fast a counter grew between each two looks. PostgreSQL's sessions report what they did once a second at most, so
/// neighbours are taken together.
fn rate(readings: &[Reading], value: impl Fn(&Reading) -> f64) -> Vec<(f64, f64)> {
    const APART: usize = 3;
    let last = readings.len().saturating_sub(APART);
    (0..last)
        .map(|index| {
            let (from, to) = (&readings[index], &readings[index + APART]);
            let seconds = (to.at_s - from.at_s).max(1e-3);
            ((from.at_s + to.at_s) / 2.0, (value(to) - value(from)).max(0.0) / seconds)
        })
        .collect()
}

fn states(readings: &[Reading]) -> Vec<Series> {
    let series = |name: &str, colour, value: fn(&Reading) -> f64| Series {
        name: name.to_owned(),
        colour,
        points: values(readings, value),
    };
    vec![
        series("active", ACTIVE, |reading| reading.active),
        series("idle in transaction", IN_TRANSACTION, |reading| reading.idle_in_transaction),
        series("idle", IDLE, |reading| reading.idle),
    ]
}

fn pool(readings: &[Reading]) -> Vec<Series> {
    if readings.iter().all(|reading| reading.pool.is_none()) {
        return Vec::new();
    }
    let series = |name: &str, colour, value: fn(&PoolReading) -> f64| Series {
        name: name.to_owned(),
        colour,
        points: readings
            .iter()
            .filter_map(|reading| Some((reading.at_s, value(reading.pool.as_ref()?))))
            .collect(),
    };
    vec![
        series("clients active", 1, |pool| pool.clients_active),
        series("clients waiting", 2, |pool| pool.clients_waiting),
        series("servers active", 3, |pool| pool.servers_active),
        series("servers idle", 0, |pool| pool.servers_idle),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::catalog::ALL;
    use super::super::results::TargetFacts;
    use super::*;

    /// An experiment of two targets and two rounds.
    fn results() -> Results {
        let reading = |second: u32| Reading {
            at_s: f64::from(second),
            connections: 40.0,
            active: 10.0,
            transactions: f64::from(second) * 1000.0,
            pooler_cpu_ms: Some(f64::from(second) * 30.0),
            pool: Some(PoolReading { clients_waiting: 7.0, ..PoolReading::default() }),
            ..Reading::default()
        };
        let run = |target, round, tps| Run {
            target,
            round,
            tps: Some(tps),
            transactions: 5000.0,
            latency_ms: vec![(50.0, 1.5), (99.0, 9.0)],
            readings: (0..6).map(reading).collect(),
            ..Run::default()
        };
        let facts = |name: &str| TargetFacts { name: name.to_owned(), version: String::new() };
        Results {
            experiment: &ALL[2],
            targets: vec![facts("direct"), facts("pgweir"), facts("<peer>")],
            postgres: "17.0".to_owned(),
            max_connections: 100,
            scale: 5,
            rounds: 2,
            quick: true,
            commands: vec![(0, 1, "pgbench -C".to_owned())],
            runs: vec![run(1, 1, 1000.0), run(2, 1, 500.0), run(1, 2, 1100.0), run(2, 2, 500.0)],
            left_out: vec![(0, "it ended".to_owned())],
            steal: Some(0.5),
            load_before: 0.0,
            cpus: 2,
        }
    }

    #[test]
    fn the_page_has_its_charts_and_needs_nothing_else() {
        let html = page(&[results()], "20251121T184500Z");
        for part in [
            "Used connections",
            "Server connections, pgweir",
            "Pool, pgweir",
            "Latency",
            "CPU time",
            "2.10&times;",
            "2025-11-21 18:45 UTC",
            "compared with &lt;peer&gt;",
            "<dt>TPS</dt><dd>transactions a second",
            "pgweir made 2.10 times the transactions of &lt;peer&gt;.</p>",
        ] {
            assert!(html.contains(part), "{part} is missing");
        }
        assert!(html.contains("&lt;peer&gt;") && !html.contains("<peer>"));
        assert!(!html.contains("http://") && !html.contains("https://") && !html.contains("<script"));
        assert!(!html.contains("NaN") && !html.contains("inf "), "numbers are numbers");
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
    }

    #[test]
    fn the_text_tells_medians_ratios_and_doubts() {
        let text = results().text();
        assert!(text.contains("pgweir / <peer>  2.10x"), "{text}");
        assert!(text.contains(", pgweir made 2.10 times the transactions of <peer>.\n"), "{text}");
        assert!(text.contains("direct: left out, it ended"), "{text}");
        assert!(text.contains("the hypervisor took 50.0 %"), "{text}");
        // 150 ms of CPU for 5000 transactions.
        assert!(text.contains("30.0"), "{text}");
    }
}
