//! `docs/metrics.md` is made from a scrape of a pooler that has everything; the test fails when the page is stale. `UPDATE=1`
//! writes it again.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use pgweir_core::console::column_names;
use pgweir_core::console::command::Topic;
use pgweir_core::snapshot::ClientCount;
use pgweir_settings::Config;

use super::super::api::ShowRow;
use super::super::model::tests::{film, pool};
use super::super::process::Process;
use super::text::{Format, Page};
use super::{Tables, clusters, groups, limits, ours, pgbouncer, vip};

const HEAD: &str = r"# Metrics

This page is generated from the code that answers a scrape.

```ini
http_listen = 127.0.0.1:9127
```

```sh
curl --silent http://127.0.0.1:9127/metrics
```

Without signing in, the labels `user` and `application_name` are empty, and series that differ only in them are added up. For
the names, scrape with a user of `stats_users` and HTTP basic authentication, or set [`http_anonymous=all`](dashboard.md#who-sees-what).
Seconds have fractions. Histograms have the series `_bucket`, `_sum` and `_count`. A metric without data, for example the processor time outside of
Linux, is left out.

[deploy/](../deploy/README.md) has a scrape configuration, alerts and dashboards for these metrics.
";

/// The families of one writer as a table under a heading.
fn section(out: &mut String, heading: &str, text: &str, write: impl FnOnce(&mut Page)) {
    let mut page = Page::new(Format::Prometheus);
    write(&mut page);
    let text_page = String::from_utf8(page.finish()).expect("a page of metrics is text");
    let _ =
        write!(out, "\n## {heading}\n\n{text}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n");
    for family in text_page.split("# HELP ").filter(|family| !family.is_empty()) {
        let mut lines = family.lines();
        let (name, help) = lines.next().and_then(|line| line.split_once(' ')).expect("a name and its help");
        let kind = lines.next().and_then(|line| line.rsplit(' ').next()).expect("a kind");
        let sample = lines.next().unwrap_or_else(|| panic!("{name} has no sample to take the labels from"));
        let labels = sample.split_once('{').map_or("", |(_, rest)| rest.rsplit_once('}').expect("its end").0);
        let names = labels.split(',').filter_map(|pair| pair.split_once('=')).map(|(label, _)| label);
        let names: Vec<String> =
            names.filter(|label| *label != "le").map(|label| format!("`{label}`")).collect();
        let help = help.trim_end_matches('.').replace('|', "\\|");
        let _ = writeln!(out, "| `{name}` | {kind} | {} | {help} |", names.join(", "));
    }
}

/// One row of a SHOW with a value in each column.
fn full_row(topic: Topic) -> ShowRow {
    let names = column_names(topic, Config::default().main.compatible_with);
    let cells = names.iter().map(|_| Some("1".to_owned())).collect();
    ShowRow::of(&names, cells)
}

fn markdown() -> String {
    let mut film = film();
    film.show(vec![pool("shop", "web", 1, None)]);
    film.model.process = Process {
        cpu_s: Some(1.0),
        open_files: Some(1),
        open_files_max: Some(1),
        resident_bytes: Some(1),
        virtual_bytes: Some(1),
        virtual_bytes_max: Some(1),
        started_s: Some(1.0),
    };
    let lists = pgbouncer::LISTS.map(|(list, _, _)| {
        ShowRow::of(&["list", "items"], vec![Some(list.to_owned()), Some("1".to_owned())])
    });
    let client = ClientCount {
        database: "shop".into(),
        user: "web".into(),
        application_name: String::new(),
        state: "active",
        count: 1,
    };
    let tables = Tables {
        databases: vec![full_row(Topic::Databases)],
        lists: lists.into(),
        version: String::new(),
        clients: vec![client],
        names: true,
    };
    let groups = groups(&film.model, true);
    let mut out = HEAD.to_owned();
    section(
        &mut out,
        "Metrics of pgbouncer_exporter",
        "These have the names, labels and meanings of prometheus-community's exporter, so its dashboards and alerts work.",
        |page| pgbouncer::write(page, &film.model, &groups, &tables, &Config::default()),
    );
    section(
        &mut out,
        "Pools, times and workers",
        "For each pool and for the whole process. SHOW on the [console](operate/console.md) has the same numbers.",
        |page| ours::write(page, &film.model, &groups, ""),
    );
    section(
        &mut out,
        "Clusters and nodes",
        "Only if the file has a [cluster](configure/clusters.md).",
        |page| clusters::write(page, &[full_row(Topic::Clusters)], &[full_row(Topic::Nodes)]),
    );
    section(
        &mut out,
        "Virtual address",
        "Only if [`vip`](operate/high-availability.md#an-address-that-moves-vip) is set. The sum of `pgweir_vip_holds` over all poolers is 1.",
        |page| vip::write(page, &[full_row(Topic::Vip)]),
    );
    section(
        &mut out,
        "Shared limits",
        "Only with [`shared_limits=etcd`](operate/shared-limits.md). Readers who do not see names of users get only the limits on databases.",
        |page| limits::write(page, &[full_row(Topic::Limits)], true),
    );
    out
}

#[test]
fn the_page_of_metrics_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = markdown();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).expect("the page can be written");
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == page,
        "docs/metrics.md is stale: run UPDATE=1 cargo test -p pgweir-control --lib metrics"
    );
}
