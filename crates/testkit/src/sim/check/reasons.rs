//! A client that is disconnected must have given, or suffered, a reason: a limit, a timeout, a dead server, the operator.

use pgweir_core::stats::rare_path::RarePath;

use super::checks::{Checks, PoolName};
use crate::sim::context::LinkId;
use crate::sim::network::proto::ErrorText;
use crate::sim::plan::Mode;

/// The report of a client that is disconnected.
pub struct Disconnected<'a> {
    /// The client's number.
    pub client: u32,
    /// The client's connection.
    pub link: LinkId,
    /// The client's pool.
    pub pool: PoolName,
    /// The FATAL error, if it was told one.
    pub text: Option<&'a ErrorText>,
    /// `true` if the client was logged in.
    pub logged_in: bool,
    /// `true` if the client listens, or has listened.
    pub listens: bool,
    /// The time since the client sent its last request, in microseconds.
    pub waited_us: u64,
    /// The time since the client last had the answers to all its requests, in microseconds.
    pub rested_us: u64,
    /// The time now.
    pub now_us: u64,
}

/// Slack for news to travel.
const NEWS_US: u64 = 1_000_000;

impl Checks {
    /// A client was disconnected by the pooler: there must be a reason.
    pub fn disconnected(&mut self, case: &Disconnected<'_>) {
        self.count("clients disconnected", 1);
        self.clients_lost += 1;
        if let Err(why) = self.excuse(case) {
            let text = case.text.map_or_else(|| "without a word".to_owned(), |text| format!("{text:?}"));
            self.fail(
                "no client is disconnected without a reason",
                format!("client {}: {text}; {why}", case.client),
            );
        }
    }

    fn excuse(&mut self, case: &Disconnected<'_>) -> Result<(), String> {
        let message = case.text.map_or("", |text| text.message.as_str());
        let timeouts = &self.plan.timeouts;
        // When a client is closed for its silence, its next request may be on the way already. The silence begins when the answer is sent; the client
        // reads it later.
        let rested_us = case.rested_us.saturating_add(2 * self.plan.net.delay_us_max);
        let named = [
            ("query_wait_timeout", timeouts.query_wait_s, case.waited_us),
            ("client_idle_timeout", timeouts.client_idle_s, rested_us),
            ("idle transaction timeout", timeouts.idle_transaction_s, rested_us),
            ("query timeout", timeouts.query_s, case.waited_us),
            ("query_timeout", timeouts.query_s, case.waited_us),
        ];
        // What the client calls the beginning of a request, the pooler sees later: it can only be late, not early.
        let is_over = |limit_s: u64, is_us: u64| limit_s > 0 && is_us >= limit_s * 1_000_000;
        if let Some((name, limit_s, is_us)) = named.iter().find(|(name, ..)| message.contains(name)) {
            return match is_over(*limit_s, *is_us) {
                true => Ok(()),
                false => Err(format!("{name} is {limit_s} s, it had been {is_us} us")),
            };
        }
        // In the middle of a message there is no room for a last word.
        if case.text.is_none() && named.iter().any(|(_, limit_s, is_us)| is_over(*limit_s, *is_us)) {
            return Ok(());
        }
        for (i, (name, limit)) in self.crowd_limits().into_iter().enumerate() {
            if message.contains(name) {
                let crowd = self.clients.get(&case.link).map_or(0, |client| client.crowd_at_close[i]);
                // Those that have said Terminate count until what they had sent is run.
                let departed =
                    self.counters().get(RarePath::Departed.name()).map_or(0, |&times| times as usize);
                let why = format!("{crowd} clients were there, {limit} are allowed");
                return if limit > 0 && crowd + departed > limit { Ok(()) } else { Err(why) };
            }
        }
        let excuses =
            |word: &&str| if word.is_empty() { case.text.is_none() } else { message.contains(*word) };
        if self.operator_words.iter().any(excuses) {
            return Ok(());
        }
        // A client in the middle of a message is told nothing.
        let unheard =
            message.contains("notifications may have been missed") || case.text.is_none() && case.listens;
        if unheard && self.plan.has_hubs() {
            let pool = self.pools.get(&case.pool);
            let told = self.operator_words.iter().any(|word| word.contains("notifications"));
            let ended = pool.is_some_and(|pool| pool.deaths > 0 || pool.login_failed_us.is_some());
            return if ended || told { Ok(()) } else { Err("no server of its pool failed".to_owned()) };
        }
        if message.contains("transaction blocks not allowed") && self.plan.mode == Mode::Statement {
            return Ok(());
        }
        // A server that is lost while it runs connect_query is a login that failed: all waiting clients learn of it.
        if message.contains("connect_query failed") && self.plan.connect_query {
            let died = self.pools.get(&case.pool).is_some_and(|pool| pool.deaths > 0);
            return if died { Ok(()) } else { Err("no server of its pool failed".to_owned()) };
        }
        let retry_us = self.plan.login_retry_s * 1_000_000 + NEWS_US;
        let pool = self.pools.entry(case.pool.clone()).or_default();
        let failed =
            pool.login_failed_us.is_some_and(|at_us| at_us + retry_us + case.waited_us >= case.now_us);
        if pool.deaths > pool.deaths_excused {
            pool.deaths_excused += 1;
            Ok(())
        } else if failed {
            Ok(())
        } else {
            Err(format!(
                "{} servers of its pool failed, each was the reason for one client already",
                pool.deaths
            ))
        }
    }
}
