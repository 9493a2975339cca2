//! The answers of the monitor's connection: what a subscription learns of the server, of definitions and of transactions.

use std::sync::Arc;

use super::{Asked, Opening, Phase, RETRY_US_MAX, Subscription};
use crate::context::Cx;
use crate::driver::Driver;
use crate::pool::cache::wal::News;
use crate::pool::cache::wal::node::Node;
use crate::pool::server::asked::Replies;
use crate::worker::subscriptions::definitions::Definitions;
use crate::worker::subscriptions::questions::{self, Checked};

/// The part of a server's time that the question for definitions may take: one in so many.
const DEFINITIONS_SHARE: u64 = 100;
/// The number of such questions of which the fastest one counts.
const DEFINITIONS_MEASURED: usize = 8;

impl Subscription {
    pub(super) fn take_answer<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        asked: Asked,
        asked_us: u64,
        answer: &Replies,
        next_number: &mut u64,
    ) -> Result<(), String> {
        match asked {
            Asked::Check => {
                let checked = Checked::read(answer, &self.options.publication)?;
                self.session.near = Some(Arc::new(checked.stamp.clone()));
                self.session.checked = Some(checked);
                Ok(())
            }
            Asked::Definitions => self.take_definitions(cx.env.now.mono_us, asked_us, answer),
            Asked::Catalog => {
                let catalog = Arc::new(questions::read_catalog(answer)?);
                self.session.catalog = Some(Arc::clone(&catalog));
                match self.phase {
                    Phase::Following => {
                        self.news.push(News::Catalog(catalog));
                        self.open(cx, next_number);
                    }
                    Phase::Opening(_) => self.news.push(News::Catalog(catalog)),
                    _ => {}
                }
                Ok(())
            }
            Asked::Spilled => self.take_spilled(answer),
            Asked::Probe => self.take_probe(cx, answer, next_number),
        }
    }

    fn take_definitions(&mut self, now_us: u64, asked_us: u64, answer: &Replies) -> Result<(), String> {
        let found = Definitions::read(answer)?;
        self.measure_definitions(now_us.saturating_sub(asked_us))?;
        let node = self.node()?;
        let begins_with = (node, found.settings.clone());
        if self.settings.as_ref() != Some(&begins_with) {
            // Servers that logged in before may have other settings than those that log in now.
            self.settings = Some(begins_with);
            self.news.push(News::Settings);
        }
        let is_told = matches!(self.phase, Phase::Following | Phase::Opening(_));
        self.session.changes.1 = self.session.changes.0;
        let looked = News::Looked(self.session.changes.1);
        let before = self.session.definitions.replace(found.clone());
        if before.as_ref().is_none_or(|before| *before == found) {
            self.news.extend(is_told.then_some(looked));
            return Ok(());
        }
        self.session.catalog = None;
        if is_told {
            self.news.push(News::Closed("definitions, rights or settings have changed".into()));
            self.news.push(looked);
        }
        if before.is_some_and(|before| before.publication != found.publication) && is_told {
            // Changes that a transaction made before its table was published are never sent.
            self.wait_for_transactions();
        }
        Ok(())
    }

    fn take_spilled(&mut self, answer: &Replies) -> Result<(), String> {
        let (bytes, stamp) = questions::read_spilled(answer)?;
        let spilled_bytes = self.session.spill.take(bytes, stamp);
        if spilled_bytes <= self.options.lag_bytes {
            return Ok(());
        }
        Err(format!(
            "PostgreSQL has written {spilled_bytes} bytes of transactions under way to its disk for the slot (query_cache_lag_bytes)"
        ))
    }

    /// Returns the server that the monitor has reached.
    pub(super) fn node(&self) -> Result<Node, String> {
        self.session
            .checked
            .as_ref()
            .map(|checked| checked.node)
            .ok_or_else(|| "the server is not known".to_owned())
    }

    /// Notes the duration of a question for definitions (µs).
    ///
    /// # Errors
    /// The questions take too much of a server's time.
    fn measure_definitions(&mut self, duration_us: u64) -> Result<(), String> {
        let durations_us = &mut self.session.durations_us;
        if durations_us.len() >= DEFINITIONS_MEASURED {
            durations_us.remove(0);
        }
        durations_us.push(duration_us);
        let fastest_us = durations_us.iter().min().copied().unwrap_or(0);
        let needed_us = fastest_us.saturating_mul(DEFINITIONS_SHARE);
        if durations_us.len() < DEFINITIONS_MEASURED || needed_us <= self.options.definitions_us {
            return Ok(());
        }
        // With this configuration the next attempt will hardly go better.
        self.retry_us = RETRY_US_MAX;
        // Rounded up, so that the same text is logged once.
        let needed_ms = needed_us.div_ceil(1_000_000) * 1000;
        Err(format!(
            "asking whether definitions have changed takes more than a hundredth of query_cache_ddl_ms: set it to {needed_ms} or more"
        ))
    }

    fn take_probe<D: Driver>(
        &mut self,
        cx: &mut Cx<'_, D>,
        answer: &Replies,
        next_number: &mut u64,
    ) -> Result<(), String> {
        let (stamp, position) = questions::read_probe(answer, &self.node()?)?;
        let page_bytes = self.session.checked.as_ref().map_or(0, |checked| checked.page_bytes);
        let stamp = Arc::new(stamp);
        let Some(probe) = self.session.probes.answer(position, page_bytes) else { return Ok(()) };
        self.session.near = Some(Arc::clone(&stamp));
        self.news.push(News::Stamp(probe.number, Arc::clone(&stamp)));
        if let Phase::Opening(Opening::Marking) = self.phase {
            self.phase = Phase::Opening(Opening::Marked);
            return self.confirm();
        }
        if let Phase::Opening(Opening::Marked) = self.phase {
            self.phase = Phase::Opening(Opening::Awaiting(Arc::clone(&stamp)));
        }
        let Phase::Opening(Opening::Awaiting(first)) = &self.phase else { return self.confirm() };
        if stamp.is_after_all_of(first) {
            if self.session.catalog.is_some() {
                self.phase = Phase::Following;
                self.open(cx, next_number);
            }
        } else {
            let reason = format!("waiting for transaction {}, which was open at the start", stamp.oldest());
            self.news.push(News::Closed(reason.into()));
        }
        self.confirm()
    }
}
