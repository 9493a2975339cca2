//! Comparisons of kept answers with a server's (`query_cache_verify`): counts and log. What is compared, and what a difference says, is decided in
//! `pool/cache/comparison.rs`.

use std::sync::Arc;

use crate::context::{Cx, Effect, Env};
use crate::driver::{Driver, Level};
use crate::pool::cache::capture::{Capture, Heard};
use crate::pool::cache::comparison::{Difference, Sampling, Suspect, Verdict, compare};
use crate::pool::client::state::printable;
use crate::pool::{Pool, PoolState};
use crate::stats::rare_path::RarePath;

impl PoolState {
    /// Compares a server's answer, of which this was heard, with the answer that is kept for the same statement. If they differ, no client is given
    /// the kept one from here on.
    pub(super) fn compare_known<D: Driver>(&mut self, cx: &mut Cx<'_, D>, capture: &Capture, heard: &Heard) {
        let env = &mut *cx.env;
        let Some(difference) = capture.difference else { return };
        let Some(cache) = env.cache.as_deref_mut() else { return };
        let Some(followed) = env.followed.opened(&self.database) else { return };
        let Some(kept) = cache.store.get(&capture.key) else { return };
        let counts = kept.dependence.as_deref().is_some_and(|kept| followed.check_changes(kept).is_ok());
        let is_older = kept.sent.at_us < capture.sent.at_us;
        let is_current = kept.sent.changes_made() == capture.sent.changes_made();
        if !counts || !is_older || !is_current || kept.sent.at_us <= self.cache.floor_us {
            return;
        }
        let Some(is_same) = compare(&kept.answer, capture, heard) else { return };
        cx.driver.reached(RarePath::CacheCompared);
        if is_same || difference == Difference::Counts {
            self.cache.numbers.verified += 1;
        }
        if is_same {
            return;
        }
        let Some(kept) = cache.store.take(&capture.key) else { return };
        let Some(dependence) = kept.dependence.filter(|_| difference == Difference::Counts) else { return };
        let text = env.measured.stats.known(&capture.statement).map(|known| known.text.clone());
        self.cache.suspects.add(Suspect { text, sent: kept.sent, dependence, since: followed.progress() });
        env.want(Effect::WantProbe { database: Arc::clone(&self.database), is_awaited: true });
    }

    /// Whether a hit is to be answered by a server, and the kept answer compared. No client waits for a server for that.
    pub(super) fn compares(&self, env: &Env, sampling: &mut Sampling) -> bool {
        sampling.chooses(env.rules.config.main.query_cache_verify, !self.node.idle.is_empty())
    }
}

impl Pool {
    /// Looks again at the kept answers that differ from a server's: more is known of the changes.
    pub(crate) fn judge_suspects<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        let env = &mut *cx.env;
        let (floor_us, database) = (self.state.cache.floor_us, &self.state.database);
        let mut suspects = std::mem::take(&mut self.state.cache.suspects);
        let wrong = suspects.judge(|Suspect { sent, dependence, since, .. }| {
            if !sent.is_current(env) || sent.at_us <= floor_us {
                return Verdict::Void;
            }
            match env.followed.opened(database) {
                None => Verdict::Void,
                Some(followed) if followed.check_changes(dependence).is_err() => Verdict::Void,
                Some(followed) if followed.is_past(*since) => Verdict::Wrong,
                Some(_) => Verdict::NotYet,
            }
        });
        self.state.cache.suspects = suspects;
        self.state.cache.numbers.wrong += wrong.len() as u64;
        for Suspect { text, .. } in wrong {
            let text =
                text.as_deref().map_or_else(|| "a statement".to_owned(), |text| printable(text.as_bytes()));
            let (database, user) = (&self.state.database, &self.state.user);
            let line = format!(
                "query cache: a kept answer was wrong, although PostgreSQL told no change of its tables: {database}/{user}: {text}"
            );
            cx.log(Level::Error, &line);
        }
    }
}
