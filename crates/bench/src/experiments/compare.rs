//! `pgweir bench compare a.json b.json`: what changed between two reports.

use std::ffi::OsString;
use std::path::Path;

use serde_json::Value;

use super::json::FORMAT;
use super::results::Metric;
use crate::error::BenchError;
use crate::report::progress::say;
use crate::report::stats::short;
use crate::report::table::Table;

const HELP: &str = "\
usage: pgweir bench compare A.json B.json

Medians of two reports of pgweir bench, side by side: B divided by A. Changes that are smaller than what the
rounds of either report vary by are marked with ~.
";

/// Where a figure stands: experiment, step, target.
type Place = (String, String, String);

/// Runs the comparison.
pub(crate) fn run(args: Vec<OsString>) -> Result<(), BenchError> {
    let paths: Vec<&Path> = args.iter().map(Path::new).collect();
    match paths.as_slice() {
        [word] if ["-h", "--help"].iter().any(|help| word == &Path::new(help)) => say!("{HELP}"),
        [before, after] => say!("{}", compare(&read(before)?, &read(after)?)?),
        _ => return Err(BenchError::Usage("compare takes two files".to_owned())),
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value, BenchError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| BenchError::Usage(format!("{} cannot be read: {error}", path.display())))?;
    let wrong =
        |why: String| BenchError::Usage(format!("{} is no report of pgweir bench: {why}", path.display()));
    let value: Value = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    match value["format"].as_u64() {
        Some(format) if format == u64::from(FORMAT) => Ok(value),
        Some(format) => Err(wrong(format!("its format is {format}, this program reads {FORMAT}"))),
        None => Err(wrong("it has no format".to_owned())),
    }
}

fn compare(before: &Value, after: &Value) -> Result<String, BenchError> {
    let mut text = String::new();
    for part in ["cpu", "cpus", "kernel"] {
        let (old, new) = (&before["machine"][part], &after["machine"][part]);
        if old != new {
            text.push_str(&format!("Careful: another machine, {part} {old} and {new}\n"));
        }
    }
    text.push_str(&other_settings(before, after));
    let (earlier, later) = (targets(before), targets(after));
    for (name, these, those) in [("A", &earlier, &later), ("B", &later, &earlier)] {
        for ((experiment, step, through), _) in these.iter().filter(|(place, _)| !has(those, place)) {
            text.push_str(&format!("Only in {name}: {experiment}, {step}, {through}\n"));
        }
    }
    if !earlier.iter().any(|(place, _)| has(&later, place)) {
        return Err(BenchError::Usage("nothing was measured in both reports".to_owned()));
    }
    let mut table = Table::new(&["experiment", "step", "through", "figure", "A", "B", "B / A"], 4);
    for (place, old) in earlier {
        let Some((_, new)) = later.iter().find(|(other, _)| *other == place) else { continue };
        for metric in [
            Metric::Tps,
            Metric::P50Ms,
            Metric::P99Ms,
            Metric::ConnectMs,
            Metric::PoolerUs,
            Metric::PostgresUs,
        ] {
            let (label, key) = metric.names();
            let (Some(a), Some(b)) = (old["medians"][key].as_f64(), new["medians"][key].as_f64()) else {
                continue;
            };
            let ratio = b / a;
            let noise = spread_of_tps(old).max(spread_of_tps(new));
            let mark = if (ratio - 1.0).abs() <= noise { "~ " } else { "" };
            let (experiment, step, through) = place.clone();
            let ratio = if ratio.is_finite() { format!("{mark}{ratio:.2}x") } else { "-".to_owned() };
            table.row(vec![experiment, step, through, label.to_owned(), short(a), short(b), ratio]);
        }
    }
    Ok(text + &table.render())
}

fn has(all: &[(Place, &Value)], place: &Place) -> bool {
    all.iter().any(|(other, _)| other == place)
}

/// What is not the same load, or not on the same server.
fn other_settings(before: &Value, after: &Value) -> String {
    let mut text = String::new();
    for old in before["experiments"].as_array().into_iter().flatten() {
        let others = after["experiments"].as_array().into_iter().flatten();
        let Some(new) = others.into_iter().find(|new| new["experiment"] == old["experiment"]) else {
            continue;
        };
        let settings = old["settings"].as_object().into_iter().flatten();
        let pairs = settings.map(|(key, value)| (key.as_str(), value, &new["settings"][key]));
        let whole = ["quick", "postgres"].map(|key| (key, &old[key], &new[key]));
        for (key, a, b) in pairs.chain(whole).filter(|(_, a, b)| a != b) {
            let name = old["experiment"].as_str().unwrap_or_default();
            text.push_str(&format!("Careful: {name} was run otherwise, {key} {a} and {b}\n"));
        }
    }
    text
}

/// Every target of every step, with where it stands.
fn targets(report: &Value) -> Vec<(Place, &Value)> {
    let list = |value: &Value| value.as_array().map_or(0, Vec::len);
    let mut found = Vec::new();
    let experiments = &report["experiments"];
    for experiment in (0..list(experiments)).map(|index| &experiments[index]) {
        for step in (0..list(&experiment["steps"])).map(|index| &experiment["steps"][index]) {
            for (name, target) in step["targets"].as_object().into_iter().flatten() {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                found.push(((text(&experiment["experiment"]), text(&step["name"]), name.clone()), target));
            }
        }
    }
    found
}

fn spread_of_tps(target: &Value) -> f64 {
    let rounds = target["rounds"].as_array().into_iter().flatten();
    let values: Vec<f64> = rounds.filter_map(|round| round["tps"].as_f64()).collect();
    crate::report::stats::spread(&values).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(tps: &[f64]) -> Value {
        let rounds: Vec<Value> = tps.iter().map(|tps| json!({"tps": tps})).collect();
        json!({"format": FORMAT, "machine": {"cpu": "x", "cpus": 2, "kernel": "k"}, "experiments": [{
            "experiment": "storm",
            "steps": [{"name": "200 clients", "targets": {"pgweir": {"medians": {"tps": tps[0]}, "rounds": rounds}}}],
        }]})
    }

    #[test]
    fn ratios_are_told_and_small_ones_marked() {
        let text = compare(&report(&[100.0, 101.0]), &report(&[200.0, 202.0])).expect("the same load");
        assert!(text.contains("100  200  2.00x"), "{text}");
        let text = compare(&report(&[100.0, 120.0]), &report(&[110.0, 110.0])).expect("the same load");
        assert!(text.contains("~ 1.10x"), "{text}");
    }

    #[test]
    fn another_machine_is_told() {
        let mut other = report(&[1.0]);
        other["machine"]["kernel"] = json!("other");
        assert!(compare(&report(&[1.0]), &other).expect("the same load").contains("another machine"));
    }

    #[test]
    fn another_load_is_told() {
        let mut other = report(&[2.0]);
        let experiment = &mut other["experiments"][0];
        experiment["settings"] = json!({"scale": 10});
        experiment["quick"] = json!(true);
        let mut one = report(&[1.0]);
        one["experiments"][0]["settings"] = json!({"scale": 100});
        let mut more = one["experiments"][0]["steps"][0].clone();
        more["name"] = json!("400 clients");
        one["experiments"][0]["steps"].as_array_mut().expect("a list").push(more);
        let text = compare(&one, &other).expect("one step is in both");
        assert!(text.contains("storm was run otherwise, scale 100 and 10"), "{text}");
        assert!(text.contains("quick null and true") && text.contains("2.00x"), "{text}");
        assert!(
            text.contains("Only in A: storm, 400 clients, pgweir\n") && !text.contains("Only in B"),
            "{text}"
        );
    }

    #[test]
    fn reports_with_nothing_in_common_are_refused() {
        let mut other = report(&[1.0]);
        other["experiments"][0]["experiment"] = json!("overhead");
        assert_eq!(compare(&report(&[1.0]), &other).expect_err("nothing to compare").exit_code(), 2);
    }

    #[test]
    fn what_is_no_report_is_refused() {
        assert_eq!(read(Path::new("/nonexistent.json")).expect_err("not there").exit_code(), 2);
        assert_eq!(run(vec!["one".into()]).expect_err("two are needed").exit_code(), 2);
    }
}
