//! A pool's row of SHOW CACHE.

use crate::context::Env;
use crate::pool::Pool;
use crate::pool::cache::store::Held;
use crate::pool::show::rows::time_text;
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
        let numbers = self.cache_numbers(env);
        let CacheNumbers { answers, bytes, hits, misses, fills, too_long, unfit, evicted, .. } = numbers;
        let CacheNumbers { coalesced, expired, own_changes, redefined, purged, saved_us, .. } = numbers;
        let ages = self.state.cache.ages.as_deref();
        // Rounded down, so that an answer below the age of its rule is not shown with that age.
        let in_ms = |us: f64| cell(format!("{:.0}", (us / 1000.0).floor()));
        let median = ages.and_then(|ages| ages.quantile_us(0.5)).and_then(in_ms);
        let oldest = ages.and_then(|_| in_ms(self.state.cache.age_max_us as f64));
        let mut row = vec![
            cell(&self.state.database),
            cell(&self.state.user),
            cell(self.state.cache_obstacle(env).map_or("on", state_words)),
        ];
        row.extend([answers, bytes, hits, misses, fills, too_long, unfit, evicted].map(cell));
        row.extend([median, oldest]);
        row.extend([coalesced, expired, own_changes, redefined, purged, saved_us].map(cell));
        row.extend([numbers.changed, numbers.not_fresh, numbers.unsettled].map(cell));
        let wanted = env.rules.config.follow_obstacle(&self.state.database);
        let following = env.followed.state(&self.state.database).filter(|_| wanted == Some(Ok(())));
        let reason = match wanted {
            Some(Err(obstacle)) => Some(obstacle),
            _ => following.map(|following| &*following.reason).filter(|reason| !reason.is_empty()),
        };
        row.extend([
            match wanted {
                Some(Err(_)) => cell("off"),
                _ => following.and_then(|following| cell(following.state)),
            },
            reason.and_then(cell),
            following.map(|following| time_text(env, following.since_us)),
            following.and_then(|following| cell(following.stream()?.catalog().tables())),
            following.and_then(|following| cell(following.stream()?.lag_bytes)),
            cell(numbers.row_changed),
            cell(numbers.verified),
            cell(numbers.wrong),
        ]);
        row
    }

    /// Returns the pool's counters of the query cache, with the present number and size of its answers.
    pub(crate) fn cache_numbers(&self, env: &Env) -> CacheNumbers {
        let held = env.cache.as_deref().map(|cache| cache.store.held(self.id)).unwrap_or_default();
        let Held { answers, bytes, evicted } = held;
        let ages = self.state.cache.ages.as_deref();
        let aged = ages.map_or(0, |ages| ages.count());
        let age_us = ages.map_or(0, |ages| ages.sum_us());
        CacheNumbers { answers, bytes, evicted, aged, age_us, ..self.state.cache.numbers }
    }
}
