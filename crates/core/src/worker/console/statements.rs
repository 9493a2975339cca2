//! SHOW STATEMENTS and SHOW PERCENTILES: what the pools measured.

use crate::context::Env;
use crate::limits::STATEMENTS_SHOWN_MAX;
use crate::stats::snapshot::StatementSnapshot;
use crate::worker::Worker;
use crate::worker::console::table::Row;

use crate::worker::console::report::cell;

impl Worker {
    /// The statements that took most time on this worker.
    pub(crate) fn top_statements(&self, env: &Env) -> Vec<StatementSnapshot> {
        let shown = env.measured.stats.top(STATEMENTS_SHOWN_MAX).into_iter().filter_map(|known| {
            let pool = self.pools.get(known.pool)?;
            let totals = known.totals();
            let quantile_us = |share| totals.quantile_us(share).unwrap_or_default().min(known.max_us as f64);
            Some(StatementSnapshot {
                database: pool.state.database.clone(),
                user: pool.state.user.clone(),
                fingerprint: known.fingerprint,
                text: known.text.clone(),
                calls: known.calls,
                total_us: known.total_us,
                wait_us: known.wait_us,
                client_us: known.client_us,
                max_us: known.max_us,
                p50_us: quantile_us(0.5),
                p95_us: quantile_us(0.95),
                p99_us: quantile_us(0.99),
                rows: known.rows,
                bytes: known.bytes,
                errors: known.errors,
                cache: pool.cache_column(env, known),
                cache_hits: known.cache_hits,
                cache_saved_us: known.cache_saved_us,
            })
        });
        shown.collect()
    }

    /// Returns the rows of SHOW PERCENTILES: the time of the last whole period's statements, by its parts, and of the statements since
    /// then.
    pub(crate) fn percentile_rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for pool in self.pools.values() {
            let pool = &pool.state;
            let Some(times) = pool.numbers.recent_times() else { continue };
            for (part, histogram) in times.parts() {
                let Some(mean_us) = histogram.mean_us() else { continue };
                let mut row =
                    vec![cell(&pool.database), cell(&pool.user), cell(part), cell(histogram.count())];
                row.push(whole(mean_us));
                let quantiles = [0.5, 0.9, 0.95, 0.99];
                row.extend(quantiles.map(|share| whole(histogram.quantile_us(share).unwrap_or_default())));
                row.push(cell(histogram.max_us().unwrap_or_default()));
                rows.push(row);
            }
        }
        rows
    }
}

/// Returns the rows of SHOW STATEMENTS of all workers, in descending order of time.
pub(crate) fn statement_rows(mut statements: Vec<StatementSnapshot>) -> Vec<Row> {
    statements.sort_by_key(|statement| std::cmp::Reverse(statement.total_us));
    statements.truncate(STATEMENTS_SHOWN_MAX);
    let row = |statement: StatementSnapshot| {
        vec![
            cell(&statement.database),
            cell(&statement.user),
            cell(statement.calls),
            cell(statement.total_us),
            cell(statement.mean_us()),
            whole(statement.p50_us),
            whole(statement.p95_us),
            whole(statement.p99_us),
            cell(statement.max_us),
            cell(statement.wait_us),
            cell(statement.server_us()),
            cell(statement.client_us),
            cell(statement.rows),
            cell(statement.bytes),
            cell(statement.errors),
            cell(&statement.text),
            cell(&statement.cache),
            cell(statement.cache_hits),
            cell(statement.cache_saved_us),
        ]
    };
    statements.into_iter().map(row).collect()
}

fn whole(us: f64) -> Option<String> {
    Some(format!("{us:.0}"))
}
