//! The questions to the monitor's connection, and the times at which they are due.

use std::sync::atomic::Ordering;

use super::{Asked, Opening, Phase, Subscription, Wanted};
use crate::context::{Cx, Env};
use crate::driver::Driver;
use crate::limits::SUBSCRIPTION_ANSWER_US_MAX;
use crate::pool::cache::wal::ChangesMade;
use crate::pool::cache::wal::changes::StampNumber;
use crate::pool::server::watching::WatchState;
use crate::worker::subscriptions::spill::SPILL_EVERY_US;
use crate::worker::subscriptions::{definitions, questions};

/// The time after which a probe that is not confirmed is followed by one that makes PostgreSQL write its log.
const FLUSH_AFTER_US: u64 = 20_000;
/// The time after which a probe for which a client waits is followed by one that makes PostgreSQL write its log.
const AWAITED_FLUSH_AFTER_US: u64 = 2_000;
/// After a change through pgweir the definitions are asked for at once, but not more often than that: one in so many intervals.
const DEFINITIONS_SOONER: u64 = 10;

impl Subscription {
    /// Asks the monitor the next question that is due, if it has answered the one before.
    pub(super) fn ask_next<D: Driver>(&mut self, cx: &mut Cx<'_, D>) {
        if self.asked.is_some() || self.monitor.watch_state() != WatchState::Answered {
            return;
        }
        let now_us = cx.env.now.mono_us;
        let publication = &self.options.publication;
        let version = self.session.checked.as_ref().map_or(0, |checked| checked.version);
        let (asked, text) = if self.session.checked.is_none() {
            (Asked::Check, questions::check(publication))
        } else if self.session.definitions.is_none() || now_us >= self.definitions_due_us(cx.env) {
            self.session.looked_us = now_us;
            self.session.changes.0 = changes_made(cx.env);
            let text = match self.session.definitions {
                None => definitions::first_definitions(publication, version),
                Some(_) => definitions::DEFINITIONS.to_owned(),
            };
            (Asked::Definitions, text)
        } else if self.session.catalog.is_none() {
            (Asked::Catalog, questions::catalog(publication, version))
        } else if now_us >= self.spill_due_us() {
            self.session.spill.asked_us = now_us;
            (Asked::Spilled, questions::spilled(&self.slot))
        } else if self.is_streaming() && now_us >= self.probe_due_us() {
            (Asked::Probe, self.probe(now_us).to_owned())
        } else {
            return;
        };
        self.asked = Some((asked, now_us));
        self.monitor.ask_follower(cx, &text);
    }

    fn probe(&mut self, now_us: u64) -> &'static str {
        let flush_us = self.flush_us();
        let session = &mut self.session;
        (session.probed_us, session.wanted) = (now_us, Wanted::No);
        let number = self.probes_sent.fetch_add(1, Ordering::SeqCst) + 1;
        session.probes.send(StampNumber(number), now_us);
        let waits_us = session.probes.unconfirmed_since_us().map(|since_us| now_us.saturating_sub(since_us));
        match waits_us {
            _ if matches!(self.phase, Phase::Opening(Opening::Marking)) => questions::FLUSHING_PROBE,
            Some(waits_us) if waits_us >= flush_us => questions::FLUSHING_PROBE,
            _ => questions::PROBE,
        }
    }

    /// The time after which a probe that is not confirmed is followed by one that makes PostgreSQL write its log (µs).
    fn flush_us(&self) -> u64 {
        if self.session.is_awaited { AWAITED_FLUSH_AFTER_US } else { FLUSH_AFTER_US }
    }

    fn is_streaming(&self) -> bool {
        matches!(self.phase, Phase::Opening(_) | Phase::Following)
    }

    /// The time at which the next probe is due (monotonic, µs).
    fn probe_due_us(&self) -> u64 {
        let regular_us = self.session.probed_us.saturating_add(self.options.probe_us);
        let unconfirmed_us = self.session.probes.unconfirmed_since_us();
        let flush_due_us = match unconfirmed_us {
            Some(_) => self.session.probed_us.saturating_add(self.flush_us()),
            None => u64::MAX,
        };
        match (&self.phase, self.session.wanted) {
            (Phase::Opening(Opening::Marked), _) => 0,
            (Phase::Opening(_), _) => regular_us,
            (Phase::Following, Wanted::Now) => 0,
            (Phase::Following, Wanted::Soon) => regular_us.min(flush_due_us),
            // A probe that is not confirmed may need another one.
            (Phase::Following, Wanted::No) if unconfirmed_us.is_some() => flush_due_us,
            _ => u64::MAX,
        }
    }

    /// The time at which the spilled bytes are to be asked for next (monotonic, µs).
    fn spill_due_us(&self) -> u64 {
        match self.phase {
            Phase::Off | Phase::Dialing(_) | Phase::Identifying(_) => u64::MAX,
            Phase::Creating | Phase::Starting(_) | Phase::Opening(_) | Phase::Following => {
                self.session.spill.asked_us.saturating_add(SPILL_EVERY_US)
            }
        }
    }

    /// The time at which the definitions are to be asked for next (monotonic, µs).
    fn definitions_due_us(&self, env: &Env) -> u64 {
        let every_us = self.options.definitions_us;
        let has_changed = changes_made(env) != self.session.changes.0;
        let after_us = if has_changed { every_us / DEFINITIONS_SOONER } else { every_us };
        self.session.looked_us.saturating_add(after_us)
    }

    /// Sets the time of the next action.
    ///
    /// # Errors
    /// The server has not answered in time.
    pub(super) fn rearm(&mut self, env: &Env) -> Result<(), String> {
        let now_us = env.now.mono_us;
        let patience_us = |since_us: u64| since_us.saturating_add(SUBSCRIPTION_ANSWER_US_MAX);
        let question_late_us = self.asked.map_or(u64::MAX, |(_, asked_us)| patience_us(asked_us));
        let phase_late_us = match &self.phase {
            Phase::Dialing(since_us) | Phase::Identifying(since_us) | Phase::Starting(since_us) => {
                patience_us(*since_us)
            }
            // The slot is made when the transactions that have written are over.
            _ => u64::MAX,
        };
        let late_us = question_late_us.min(phase_late_us);
        if now_us >= late_us {
            return Err("the server did not answer in time".to_owned());
        }
        let next_us = match (self.asked, self.session.checked.is_some()) {
            (None, true) => self.definitions_due_us(env).min(self.probe_due_us()).min(self.spill_due_us()),
            _ => u64::MAX,
        };
        self.due_us = late_us.min(next_us).max(now_us);
        Ok(())
    }
}

/// Returns the changes that were made through pgweir up to now.
fn changes_made(env: &Env) -> ChangesMade {
    ChangesMade { age: env.shared.age(), changes: env.shared.changes() }
}
