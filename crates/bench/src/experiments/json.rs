//! The report for programs: everything, each round and each series.

use serde_json::{Map, Value, json};

use super::monitor::Reading;
use super::results::{Metric, Results};
use super::run::Run;
use crate::processes::machine::Machine;

/// Raised when the shape changes.
pub(super) const FORMAT: u32 = 1;

/// All experiments of a command.
pub(super) fn report(all: &[Results], started: &str) -> Value {
    let machine = Machine::look();
    json!({
        "format": FORMAT,
        "tool": "pgweir bench",
        "version": pgweir_version::VERSION,
        "started": started,
        "machine": {
            "cpu": machine.cpu, "cpus": machine.cpus, "memory_mib": machine.memory_mib, "kernel": machine.kernel,
        },
        "experiments": all.iter().map(experiment).collect::<Vec<_>>(),
    })
}

fn experiment(results: &Results) -> Value {
    let experiment = results.experiment;
    let targets: Vec<Value> = results
        .targets
        .iter()
        .map(|target| json!({"name": target.name, "version": target.version}))
        .collect();
    let left_out: Vec<Value> = results
        .left_out
        .iter()
        .map(|(target, reason)| json!({"target": results.targets[*target].name, "reason": reason}))
        .collect();
    json!({
        "experiment": experiment.key,
        "title": experiment.title,
        "published": experiment.published,
        "postgres": results.postgres,
        "settings": {
            "max_connections": results.max_connections, "shared_buffers_mb": experiment.shared_buffers_mb,
            "scale": results.scale, "auth": experiment.entry.name(), "pool_mode": experiment.mode,
            "default_pool_size": experiment.pool_size, "max_client_conn": experiment.max_client_conn,
            "further": experiment.settings.iter().map(|(name, value)| format!("{name} = {value}")).collect::<Vec<_>>(),
        },
        "quick": results.quick,
        "rounds": results.rounds,
        "steal": results.steal,
        "load_average_before": results.load_before,
        "warnings": results.warnings(),
        "targets": targets,
        "left_out": left_out,
        "steps": (0..experiment.steps.len()).map(|step| self::step(results, step)).collect::<Vec<_>>(),
    })
}

fn step(results: &Results, step: usize) -> Value {
    let mut targets = Map::new();
    for (target, facts) in results.targets.iter().enumerate() {
        let runs: Vec<Value> = results.runs_of(step, target).map(run).collect();
        if runs.is_empty() {
            continue;
        }
        let mut medians = Map::new();
        for metric in Metric::ALL {
            if let Some(value) = results.median(step, target, metric) {
                medians.insert(metric.names().1.to_owned(), json!(value));
            }
        }
        let command = results.commands.iter().find(|(of, to, _)| (*of, *to) == (step, target));
        let command = command.map(|(_, _, line)| line);
        targets.insert(facts.name.clone(), json!({"command": command, "medians": medians, "rounds": runs}));
    }
    let ratios: Map<String, Value> = results
        .ratios(step)
        .into_iter()
        .map(|(name, ratios)| {
            let named = ratios.into_iter().map(|(metric, ratio)| (metric.names().1.to_owned(), json!(ratio)));
            (name, Value::Object(named.collect()))
        })
        .collect();
    json!({"name": results.experiment.steps[step].name, "targets": targets, "pgweir_divided_by": ratios})
}

fn run(run: &Run) -> Value {
    let latency: Map<String, Value> =
        run.latency_ms.iter().map(|(share, ms)| (format!("p{share}"), json!(ms))).collect();
    json!({
        "round": run.round, "tps": run.tps, "transactions": run.transactions, "failed": run.failed,
        "clients_aborted": run.aborted, "refusal": run.refusal, "interrupted": run.interrupted,
        "connect_ms": run.connect_ms, "latency_ms": latency,
        "progress": run.progress,
        "series": series(&run.readings),
    })
}

/// Columns are shorter than rows with names.
fn series(readings: &[Reading]) -> Value {
    let column = |value: fn(&Reading) -> Value| readings.iter().map(value).collect::<Vec<_>>();
    json!({
        "at_s": column(|reading| json!(reading.at_s)),
        "connections": column(|reading| json!(reading.connections)),
        "active": column(|reading| json!(reading.active)),
        "idle": column(|reading| json!(reading.idle)),
        "idle_in_transaction": column(|reading| json!(reading.idle_in_transaction)),
        "transactions": column(|reading| json!(reading.transactions)),
        "buffers_allocated": column(|reading| json!(reading.buffers_allocated)),
        "buffers_cleaned": column(|reading| json!(reading.buffers_cleaned)),
        "buffers_checkpoint": column(|reading| json!(reading.buffers_checkpoint)),
        "buffers_backend": column(|reading| json!(reading.buffers_backend)),
        "postgres_cpu_ms": column(|reading| json!(reading.postgres_cpu_ms)),
        "pooler_cpu_ms": column(|reading| json!(reading.pooler_cpu_ms)),
        "pool_clients_active": column(|reading| json!(reading.pool.map(|pool| pool.clients_active))),
        "pool_clients_waiting": column(|reading| json!(reading.pool.map(|pool| pool.clients_waiting))),
        "pool_servers_active": column(|reading| json!(reading.pool.map(|pool| pool.servers_active))),
        "pool_servers_idle": column(|reading| json!(reading.pool.map(|pool| pool.servers_idle))),
    })
}
