//! A pool's row of SHOW CACHE.

use crate::context::Env;
use crate::pool::Pool;
use crate::pool::cache::store::Held;
use crate::stats::obstacle::Obstacle;
use crate::stats::snapshot::CacheNumbers;
use crate::worker::console::report::{Row, cell};

/// Returns the words of the column `state`.
fn state_words(obstacle: Obstacle) -> &'static str {
    match obstacle {
        Obstacle::Off => "off: query_cache=off",
        Obstacle::NoRule => "off: no rule",
        Obstacle::SessionPooling => "off: pool_mode=session",
        Obstacle::SessionState => "off: session_state=pgbouncer",
        other => other.words(),
    }
}

impl Pool {
    /// The pool's row of SHOW CACHE.
    pub(crate) fn cache_row(&self, env: &Env) -> Row {
        let CacheNumbers { answers, bytes, hits, misses, fills, too_long, unfit, evicted, coalesced } =
            self.cache_numbers(env);
        let ages = self.state.cache.ages.as_deref();
        let in_ms = |us: f64| cell(format!("{:.0}", us / 1000.0));
        let median = ages.and_then(|ages| ages.quantile_us(0.5)).and_then(in_ms);
        let oldest = ages.and_then(|_| in_ms(self.state.cache.age_max_us as f64));
        let mut row = vec![
            cell(&self.state.database),
            cell(&self.state.user),
            cell(self.state.cache_obstacle(env).map_or("on", state_words)),
        ];
        row.extend([answers, bytes, hits, misses, fills, too_long, unfit, evicted].map(cell));
        row.extend([median, oldest, cell(coalesced)]);
        row
    }

    /// Returns the pool's counters of the query cache, with the present number and size of its answers.
    pub(crate) fn cache_numbers(&self, env: &Env) -> CacheNumbers {
        let held = env.cache.as_deref().map(|cache| cache.store.held(self.id)).unwrap_or_default();
        let Held { answers, bytes, evicted } = held;
        CacheNumbers { answers, bytes, evicted, ..self.state.cache.numbers }
    }
}
